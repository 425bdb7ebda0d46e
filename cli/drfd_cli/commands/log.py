"""drf log: a job's output, read with the caller's own rights."""

from __future__ import annotations

import os
import stat
import sys
from typing import BinaryIO

import click

from drfd.errors import Refused
from drfd_cli import output
from drfd_cli.client import Client, Watch
from drfd_cli.options import connect, job_id

_POLL_S = 0.2


@click.command("log")
@job_id
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--err", is_flag=True, help="Its errors instead of its output.")
def command(job_id: int, follow: bool, err: bool) -> None:
    """A job's output."""
    client = connect()
    job = client.request("show", id=job_id)["job"]
    path = job["stderr" if err else "stdout"]
    if follow:
        _follow(client, job_id, path)
    elif os.path.exists(path):
        with _open(path) as file:
            _copy(file)
    elif job["started_at"] is None:
        raise Refused("no-output", f"job {job_id} has not started: {output.why_line(job)}")
    else:
        raise Refused("no-output", f"the output file {path} is not there any more")


def _follow(client: Client, job_id: int, path: str) -> None:
    """Copy what is there and what comes, until the job has ended."""
    file: BinaryIO | None = None
    watch = Watch(client, job_id)
    ended = None
    while True:
        if file is None and os.path.exists(path):
            file = _open(path)
        if file is not None:
            _copy(file)
        # Once more after the end: it may have written until the last moment.
        if ended is not None:
            return
        ended, _ = watch.poll(_POLL_S)


def _open(path: str) -> BinaryIO:
    try:
        # Without O_NONBLOCK a pipe that nobody writes would hang here.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise Refused("no-output", f"cannot read {path}: {error.strerror}") from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise Refused("no-output", f"cannot read {path}: Is a directory")
    if not stat.S_ISREG(mode):
        raise Refused("no-output", f"the output went to {path}, which is no file that keeps it")
    return open(fd, "rb")


def _copy(file: BinaryIO) -> None:
    if os.fstat(file.fileno()).st_size < file.tell():
        # Emptied by its job: start again.
        file.seek(0)
    while piece := file.read(1 << 16):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
