"""drf log: the output of jobs, read from their files with the rights of the caller.

A file is followed while it grows, also after it is truncated or replaced.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

import click

from drfd.client.connection import Connection
from drfd.client.streams import Watch
from drfd.client.words import Ref
from drfd.common.errors import NotPermitted, Refused
from drfd_cli import output
from drfd_cli.options import colour_option, connect, group_option, in_group, job_ids
from drfd_cli.output import label
from drfd_cli.waiting.output_files import open_file

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
@group_option(f"Yours of this group that have started: live, and the last {_RECENT} ended.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the jobs have ended.")
@click.option("--err", is_flag=True, help="Their errors, where they have a file of their own.")
@click.option(
    "-n", "--lines", metavar="LINES", type=click.IntRange(0), help="Begin with the last LINES only."
)
@colour_option
def command(
    ids: tuple[Ref, ...], group: str | None, follow: bool, err: bool, lines: int | None
) -> int:
    """The output of a job; of several, with the job's id before each line.

    While it is followed, an output may begin late, grow, be emptied or replaced; the job may be
    queued again.
    """
    client = connect()
    if group is not None:
        rows = in_group(client, group, ended=_RECENT)
        ids += tuple(output.ref(row) for row in rows if row["started_at"] is not None)
        if not ids:
            raise Refused("no-output", f"no job of yours in the group {group} has started")
    jobs = [_job(client, job_id) for job_id in dict.fromkeys(ids)]
    tails = {
        job["id"]: Tail(
            job["stderr" if err else "stdout"] or "",
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


def _job(client: Connection, job_id: Ref) -> JobView:
    reply = client.request("show", id=job_id)
    if "array" in reply:
        indices = reply["array"]["array_tasks"]
        first = indices.partition("-")[0].partition(",")[0]
        several = first != indices and len(indices) <= _INDICES
        every = f"; of all: drf log '{job_id}_[{indices}]'" if several else ""
        raise Refused(
            "no-output", f"{job_id} is an array; each task has an output of its own",
            hint=f"drf log {job_id}_{first}{every}",
        )  # fmt: skip
    job = reply["job"]
    if job["stdout"] is None:
        raise NotPermitted("not-yours", f"job {label(job)} belongs to {job['user']}")
    return job


def _print(job: JobView, tail: Tail) -> None:
    if os.path.exists(tail.path):
        tail.copy()
        tail.finish()
    elif job["started_at"] is None:
        raise Refused("no-output", f"job {label(job)} has not started: {output.why_line(job)}")
    else:
        raise Refused("no-output", f"the output file {tail.path} is not there any more")


def _follow(client: Connection, jobs: list[JobView], tails: dict[int, Tail]) -> int:
    """Copy the output until the jobs have ended, and return the exit code."""
    for job in jobs:
        if job["started_at"] is None and job["outcome"] is None:
            output.say(f"job {label(job)} has not started: {output.why_line(job)}")
    status = 0
    watch = Watch(client, *tails)
    while True:
        for job_id, tail in list(tails.items()):
            try:
                tail.copy()
            except Refused as error:
                if len(jobs) == 1:
                    raise
                output.say(str(error))
                status = error.exit_code
                del tails[job_id]
        if not tails:
            return status
        reply, _ = watch.poll(_POLL_S)
        if reply is not None:
            over = {job["id"] for job in reply["ended"]} or set(tails)
            for job_id in over & set(tails):
                # The job may have written between the last copy and its end.
                tail = tails.pop(job_id)
                tail.copy()
                tail.finish()
            if not tails:
                return status
            watch = Watch(client, *tails)


class Tail:
    """Copies a file to stdout, with each call the part that is new."""

    def __init__(self, path: str, lines: int | None, write: Callable[[bytes], None]) -> None:
        """`write` is called with each piece. The first call of `copy` begins with the last `lines`
        lines of the file, or at its beginning if `lines` is None."""
        self.path = path
        self._lines = lines
        self._write = write
        self._file: BinaryIO | None = None

    def copy(self) -> None:
        """Write what was added to the file since the last call. Raises Refused."""
        if self._file is None and not self._open():
            return
        self._copy_file()
        if self._is_replaced() and self._open():
            self._copy_file()
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
        fd = open_file(self.path)
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

    def _is_replaced(self) -> bool:
        """Return whether the path is another file now, as after a log rotation."""
        assert self._file is not None
        try:
            now, ours = os.stat(self.path), os.fstat(self._file.fileno())
        except OSError:
            return False
        return (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino)


class Prefixed:
    """Writes whole lines to stdout, each with the job's label before it."""

    def __init__(self, label: str, *, is_coloured: bool) -> None:
        self._prefix = f"{label}: ".encode()
        if is_coloured:
            colour = _COLOURS[int(label.rpartition("_")[2]) % len(_COLOURS)]
            self._prefix = b"\x1b[%dm%s\x1b[0m" % (colour, self._prefix)
        self._rest = b""

    def __call__(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) >= _LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        sys.stdout.buffer.write(b"".join(self._prefix + line + b"\n" for line in lines))

    def finish(self) -> None:
        if self._rest:
            self(b"\n")


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
