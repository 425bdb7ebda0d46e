"""The page with a job's output: a part of the file, read with the rights of the caller.

A large file is shown in parts: the last one follows the file as it grows, and scrolling over the
end of a part leads to the next one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.segment import Segment

from drfd.client.connection import Connection
from drfd.client.words import Ref
from drfd.common.errors import DrfdError, Refused
from drfd.common.units import show_size
from drfd_cli.output import before_start, clean, has_run
from drfd_cli.top.paint import Line, Theme, fit
from drfd_cli.waiting.output_files import last_lines, open_file

if TYPE_CHECKING:
    from drfd.protocol.replies import ShowReply

#: Bytes of a part.
PART_BYTES = 1 << 20


@dataclass(frozen=True)
class LogQuery:
    """Which output, and the offset at which the part begins, or None for the end of the file."""

    label: str
    errors: bool
    begin: int | None = None


@dataclass(frozen=True)
class LogPart:
    """A part of an output."""

    query: LogQuery
    path: str = ""
    lines: tuple[str, ...] = ()
    #: The offsets of the part in the file, and the size of the file.
    begin: int = 0
    end: int = 0
    size: int = 0
    #: What tells whether the file has changed.
    stamp: tuple[int, ...] = ()
    #: Why there are no lines.
    problem: str = ""


def fetch_log(connection: Connection, query: LogQuery, ref: Ref, last: LogPart | None) -> LogPart:
    """Read a part of a job's output. `last` is the last result, or None; if it is of the same
    output, the daemon is not asked for the path again."""
    is_known = last is not None and last.path and _is_same_file(last.query, query)
    path = last.path if last is not None and is_known and not last.problem else ""
    if not path:
        try:
            path, problem = _path(connection.request("show", id=ref), query.errors)
        except DrfdError as error:
            return LogPart(query, problem=str(error))
        if problem:
            return LogPart(query, path, problem=problem)
    return read_part(query, path, last)


def _is_same_file(one: LogQuery, other: LogQuery) -> bool:
    return replace(one, begin=None) == replace(other, begin=None)


def _path(show: ShowReply, errors: bool) -> tuple[str, str]:
    """Return the path of the output, and the reason if it cannot be read."""
    if "job" not in show:
        return "", "each task of an array has an output of its own"
    job = show["job"]
    path = job["stderr" if errors else "stdout"]
    if path is None:
        return "", "only its owner is told where the output is"
    return path, "" if has_run(job) else before_start(job)


def read_part(query: LogQuery, path: str, last: LogPart | None = None) -> LogPart:
    """Read the part of a file. `last` is returned again if it is the same part and the file has not
    changed."""
    try:
        fd = open_file(path)
    except Refused as error:
        return LogPart(query, path, problem=str(error))
    if fd is None:
        return LogPart(query, path, problem="the file is not there")
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        size, stamp = status.st_size, (status.st_ino, status.st_size, status.st_mtime_ns)
        if last is not None and (last.query, last.path, last.stamp) == (query, path, stamp):
            return last
        begin = max(0, size - PART_BYTES) if query.begin is None else min(query.begin, size)
        file.seek(max(0, begin - 1))
        before = file.read(1) if begin else b"\n"
        data = file.read(PART_BYTES)
    if before != b"\n":
        # A line of which the beginning is missing would mislead.
        rest = data.partition(b"\n")[2] or data
        begin, data = begin + len(data) - len(rest), rest
    end = begin + len(data)
    if end < size and b"\n" in data:
        # The next part begins with a whole line.
        data = data[: data.rindex(b"\n") + 1]
        end = begin + len(data)
    lines = tuple(last_lines(data)) if data else ()
    return LogPart(query, path, lines, begin, end, size, stamp, "" if data else "nothing yet")


def find(lines: Sequence[str], text: str, after: int, step: int) -> int | None:
    """Return the index of the next line with the text, from `after` on in steps of 1 or -1, in
    letters of either case, or None."""
    wanted = text.casefold()
    at = after
    while 0 <= at < len(lines):
        if wanted in lines[at].casefold():
            return at
        at += step
    return None


def log_title(part: LogPart | None, query: LogQuery, columns: int, theme: Theme) -> Line:
    """Return the heading of the page."""
    what = "errors" if query.errors else "output"
    if part is None or not part.path:
        words = f" {what} of job {query.label}"
        return [Segment(fit(words, columns), theme["head_focus"])]
    where = ", following" if query.begin is None else ""
    if part.begin or part.end < part.size:
        parts = f"{show_size(part.begin)} to {show_size(part.end)} of {show_size(part.size)}"
    else:
        parts = show_size(part.size)
    right = f"{parts}{where} "
    left = fit(f" {what} of job {query.label}  {clean(part.path, 400)}", columns - len(right))
    return [Segment(left + right, theme["head_focus"])]


def log_lines(
    part: LogPart | None, first: int, room: int, columns: int, theme: Theme, *,
    text: str, shift: int,
) -> list[Line]:  # fmt: skip
    """Return the lines of the page from `first` on, with what is searched for highlighted."""
    if part is None:
        return [[Segment(fit(" reading the file …", columns), theme["dim"])]]
    if part.problem:
        return [[Segment(fit(f" {part.problem}", columns), theme["dim"])]]
    found = []
    for words in part.lines[first : first + room]:
        is_hit = bool(text) and text.casefold() in words.casefold()
        begin = "‹" if shift and words else " "
        cut = fit(begin + words[shift:], columns)
        found.append([Segment(cut, theme["title" if is_hit else "plain"])])
    return found
