"""drf log: the output of jobs, read from their files with the rights of the caller.

A file is followed while it grows, also after it is truncated or replaced.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

import click

from drfd.client.connection import Connection
from drfd.client.outputs import last_bytes, open_file
from drfd.client.streams import Watch
from drfd.client.words import Ref
from drfd.common.errors import NotPermitted, Refused
from drfd_cli import output
from drfd_cli.options import colour_option, connect, group_option, in_group, job_ids
from drfd_cli.output import label

if TYPE_CHECKING:
    from drfd.protocol.replies import JobView


#: Seconds between two reads of a file that is followed.
_POLL_S = 0.2
#: Ended jobs of a group that are shown.
_RECENT = 20
#: Longest list of indices that is repeated in a hint.
_INDICES = 40
#: Bytes read at once.
_BLOCK_BYTES = 1 << 16
#: Bytes after which a line is broken, where each line has its job's id before it.
_LINE_BYTES = 1 << 16
#: Colours of the ids before lines, by id (ECMA-48 SGR).
_COLOURS = (36, 33, 32, 35, 34, 31)


@click.command("log")
@job_ids(required=True, only_read=True)
@group_option(
    f"Your jobs of this group: live ones and the last {_RECENT} ended; with -f live ones."
)
@click.option("-f", "--follow", is_flag=True, help="Print new output until the jobs have ended.")
@click.option(
    "--err",
    is_flag=True,
    help="Print the error file, or the output where there is none of its own.",
)
@click.option(
    "-n",
    "--lines",
    "--tail",
    metavar="LINES",
    type=click.IntRange(0),
    help="Begin with the last LINES lines.",
)
@colour_option
def command(
    ids: tuple[Ref, ...], group: str | None, follow: bool, err: bool, lines: int | None
) -> int:
    """The output of a job; of several, with the job's id before each line.

    -f waits for a job that has not started, and follows one that is run again. For
    a job that did not complete, stderr says how it ended.
    """
    client = connect()
    if group is not None:
        ids += _in_group(client, group, live_only=follow, has_others=bool(ids))
    jobs = [_job(client, job_id) for job_id in dict.fromkeys(ids)]
    tails = {
        job["id"]: Tail(
            job["stderr" if err else "stdout"] or "",
            job["uid"],
            lines,
            plain if len(jobs) == 1 else Prefixed(label(job), is_coloured=output.has_colour()),
        )
        for job in jobs
    }
    if follow:
        return _follow(client, jobs, tails)
    status = 0
    for job in jobs:
        try:
            _print(job, tails[job["id"]])
        except Refused as error:
            if len(jobs) == 1:
                raise
            output.say(str(error))
            status = error.exit_code
    return status


def _in_group(
    client: Connection, group: str, *, live_only: bool, has_others: bool
) -> tuple[Ref, ...]:
    """Return the caller's jobs of the group whose output is shown. Raises Refused if there are
    none, unless the command has others."""
    rows = [row for row in in_group(client, group, ended=_RECENT) if output.has_run(row)]
    live = [row for row in rows if row["outcome"] is None]
    taken = live if live_only else rows
    ended = output.counted(len(rows) - len(live), "ended job")
    if not taken and not has_others:
        if rows:
            raise Refused(
                "no-output",
                f"no job of yours in the group {group} runs",
                hint=f"of {ended}: drf log -g {group}",
            )
        raise Refused("no-output", f"no job of yours in the group {group} has started")
    if len(taken) < len(rows):
        output.say(f"{ended} of the group {group} left out (drf log -g {group} shows them)")
    return tuple(output.ref(row) for row in taken)


def _job(client: Connection, job_id: Ref) -> JobView:
    reply = client.request("show", id=job_id)
    if "array" in reply:
        indices = reply["array"]["array_tasks"]
        first = indices.partition("-")[0].partition(",")[0]
        several = first != indices and len(indices) <= _INDICES
        every = f"; of all: drf log '{job_id}_[{indices}]'" if several else ""
        raise Refused(
            "no-output",
            f"{job_id} is an array; each task has an output of its own",
            hint=f"drf log {job_id}_{first}{every}",
        )
    job: JobView = reply["job"]
    if job["stdout"] is None:
        raise NotPermitted("not-yours", f"job {label(job)} belongs to {job['user']}")
    return job


def _print(job: JobView, tail: Tail) -> None:
    if os.path.exists(tail.path):
        tail.copy()
        tail.finish()
        _tell_end(job, tail)
    elif not output.has_run(job):
        raise _not_started(job)
    else:
        # Removed, or not yet made by a node of Slurm, where a job runs before its file is there.
        raise Refused("no-output", f"the output file {tail.path} is not there")


def _not_started(job: JobView) -> Refused:
    return Refused("no-output", f"job {label(job)} has not started: {output.why_line(job)}")


def _tell_end(job: JobView, tail: Tail) -> None:
    """Print how a job ended that did not complete."""
    if job["outcome"] is not None and job["outcome"]["code"] != "COMPLETED":
        if tail.is_within_line and output.is_terminal():
            click.echo(err=True)
        output.say(f"job {label(job)} {output.why_line(job)}")


def _follow(client: Connection, jobs: list[JobView], tails: dict[int, Tail]) -> int:
    """Copy the output until the jobs have ended, and return the exit code."""
    status = 0

    def fail(job_id: int, error: Refused) -> None:
        nonlocal status
        if len(jobs) == 1:
            raise error
        output.say(str(error))
        status = error.exit_code
        del tails[job_id]

    for job in jobs:
        if job["outcome"] is None and job["started_at"] is None:
            waits = "waits to run again" if output.has_run(job) else "has not started"
            output.say(f"job {label(job)} {waits}: {output.why_line(job)}")
    watch = Watch(client, *tails)
    while True:
        for job_id, tail in list(tails.items()):
            try:
                tail.copy(is_live=True)
            except Refused as error:
                fail(job_id, error)
        if not tails:
            return status
        reply, _ = watch.poll(_POLL_S)
        if reply is not None:
            # Only single jobs are followed.
            ends = {job["id"]: cast("JobView", job) for job in reply["ended"]}
            for job_id in (ends.keys() or set(tails)) & set(tails):
                # The job may have written between the last copy and its end.
                tail, ended = tails[job_id], ends.get(job_id)
                if ended is not None and not output.has_run(ended) and not tail.has_begun:
                    fail(job_id, _not_started(ended))
                    continue
                tail.copy()
                tail.finish()
                del tails[job_id]
                if ended is not None:
                    _tell_end(ended, tail)
            if not tails:
                return status
            watch = Watch(client, *tails)


class Tail:
    """Copies a file to stdout, with each call the part that is new."""

    def __init__(
        self, path: str, uid: int, lines: int | None, write: Callable[[bytes], None]
    ) -> None:
        """`uid`: the job's user. `write` is called with each piece. The first call of `copy` begins
        with the last `lines` lines of the file, or at its beginning if `lines` is None."""
        self.path = path
        self._uid = uid
        self._lines = lines
        self._write = write
        self._file: BinaryIO | None = None
        #: True if the last line has been written without its end.
        self.is_within_line = False

    @property
    def has_begun(self) -> bool:
        """True if the file is there, or was."""
        return self._file is not None or self._open()

    def copy(self, *, is_live: bool = False) -> None:
        """Write what was added to the file since the last call. If `is_live`, also the text of a
        line that is not complete but overwritten, such as a progress bar. Raises Refused."""
        if self._file is None and not self._open():
            return
        self._copy_file()
        if self._is_replaced() and self._open():
            self._copy_file()
        if is_live and isinstance(self._write, Prefixed):
            self._write.show_progress()
        sys.stdout.buffer.flush()

    def finish(self) -> None:
        """Close the file, and end a last line that has no newline."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if isinstance(self._write, Prefixed):
            self._write.finish()
            sys.stdout.buffer.flush()

    def _open(self) -> bool:
        """Open the file. Returns False if it does not exist (yet)."""
        fd = open_file(self.path, self._uid)
        if fd is None:
            return False
        file = open(fd, "rb")  # noqa: SIM115  # it stays open between calls
        if self._file is not None:
            self._file.close()
        elif self._lines is not None:
            file.seek(_start_of_last(file, self._lines))
        self._file = file
        return True

    def _copy_file(self) -> None:
        file = self._file
        assert file is not None
        if os.fstat(file.fileno()).st_size < file.tell():
            # The job has truncated the file.
            file.seek(0)
        while piece := file.read(_BLOCK_BYTES):
            self._write(piece)
            self.is_within_line = not isinstance(self._write, Prefixed) and piece[-1:] != b"\n"

    def _is_replaced(self) -> bool:
        """Return whether the path is another file now, as after a log rotation."""
        assert self._file is not None
        try:
            now, ours = os.stat(self.path), os.fstat(self._file.fileno())
        except OSError:
            return False
        return (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino)


class Prefixed:
    """Writes whole lines to stdout, each with the job's label before it.

    A carriage return would put the cursor on the label: of a line that is overwritten, the last
    text is written, as a terminal shows it in the end.
    """

    def __init__(self, label: str, *, is_coloured: bool) -> None:
        self._prefix = f"{label}: ".encode()
        if is_coloured:
            colour = _COLOURS[int(label.rpartition("_")[2]) % len(_COLOURS)]
            self._prefix = b"\x1b[%dm%s\x1b[0m" % (colour, self._prefix)
        self._rest = b""
        #: The text of the incomplete line that was written before its end.
        self._shown: bytes | None = None

    def __call__(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) >= _LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._put(_last_text(line))
            self._shown = None

    def show_progress(self) -> None:
        """Write the text of a line that is being overwritten, without waiting for its end."""
        text = _last_text(self._rest)
        if text and b"\r" in self._rest:
            self._put(text)
            self._shown = text
            self._rest = text + b"\r"

    def finish(self) -> None:
        if self._rest:
            self(b"\n")

    def _put(self, text: bytes) -> None:
        if text != self._shown:
            sys.stdout.buffer.write(self._prefix + text + b"\n")


def _last_text(line: bytes) -> bytes:
    """Return the text that a line shows after its last carriage return with text after it."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def plain(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Return the offset of the last `lines` lines. A last line without a newline counts."""
    size = file.seek(0, os.SEEK_END)
    if lines == 0 or size == 0:
        return size
    # A newline at the very end ends the last line and begins none.
    at = size - 1
    while at > 0:
        begin = max(0, at - _BLOCK_BYTES)
        file.seek(begin)
        block = file.read(at - begin)
        end = len(block)
        while (found := block.rfind(b"\n", 0, end)) >= 0:
            lines -= 1
            if lines == 0:
                return begin + found + 1
            end = found
        at = begin
    return 0


# -- the end of an output file -----------------------------------------------------------------


#: Control sequences (ECMA-48), which are removed from the last lines.
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def output_of(job: JobView, *, errors: bool) -> tuple[str, str]:
    """Return the path of a job's output, or its errors, and why there is nothing to read, or ""."""
    path = job["stderr" if errors else "stdout"]
    if path is None:
        return "", "only its owner is told where it is"
    if output.has_run(job):
        return path, ""
    ended = f"it ended before it started: {output.why_line(job)}"
    return path, "not started yet" if job["outcome"] is None else ended


def tail_of(path: str, uid: int, most_bytes: int, most_lines: int) -> tuple[list[str], str]:
    """Return the last lines of a file of this user's job, and why there are none, or ""."""
    try:
        data = last_bytes(path, uid, most_bytes)
    except Refused as error:
        return [], str(error)
    if data is None:
        return [], "the file is not there"
    return last_lines(data)[-most_lines:] if data else [], "" if data else "nothing yet"


def last_lines(data: bytes) -> list[str]:
    """Return the lines as a terminal shows them: the last text of a line that was overwritten."""
    text = _SEQUENCES.sub("", data.decode(errors="replace"))
    lines = text.removesuffix("\n").split("\n")
    return [line.rstrip("\r").rpartition("\r")[2].expandtabs() for line in lines]
