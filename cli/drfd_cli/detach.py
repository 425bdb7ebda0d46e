"""Leaving a job's terminal without hanging up: a process in the background keeps it for us.

It reads what the job writes into the job's output file, and ends with the job. When it is killed,
the job loses its terminal as if we had hung up.
"""

from __future__ import annotations

import os
import signal

from drfd.client.watch import Watch
from drfd.errors import DrfdError
from drfd_cli.options import connect
from drfd_cli.stage import Stage, write_all

_POLL_S = 5.0


def detach(stage: Stage, watch: Watch, job_id: int) -> str:
    """The path that the output goes to from now on, for the process that may leave. Raises OSError
    when it cannot be written: then nothing has happened."""
    path = _output_path(job_id)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    if os.fork():
        os.close(fd)
        return path
    try:
        _keep(stage, watch, fd)
    finally:
        os._exit(0)


def _output_path(job_id: int) -> str:
    """Where `drf log` looks."""
    client = connect()
    try:
        return str(client.request("show", id=job_id)["job"]["stdout"])
    except DrfdError:
        return os.path.abspath(f"drf-{job_id}.out")
    finally:
        client.close()


def _keep(stage: Stage, watch: Watch, fd: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)
    # The shell's hang-up is what was to be escaped from.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(null, each)
    reply = None
    while reply is None:
        reply, _ = watch.poll(_POLL_S, stage.outputs())
        while piece := stage.read():
            try:
                write_all(fd, piece)
            except OSError:
                # The disk is full: what does not fit is lost, but the job is not held up.
                continue
