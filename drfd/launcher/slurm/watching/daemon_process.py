"""Which process a daemon on this machine is, by its pid file: cheaper than to ask the daemon.

One that was killed and started again is another process, and so is one that was restarted. Newer
versions of slurmctld may become another program in the same process when they read their
configuration, before which they store all that they know.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from drfd.common.units import is_number
from drfd.launcher.system.process import start_ticks


class RunningProcess(NamedTuple):
    """A process, with the time of its start, which tells it from later ones with its pid."""

    pid: int
    start_ticks: int


def running_process(pid_file: str, program: str) -> RunningProcess | None:
    """Return the process whose pid is in this file; None if there is none, if it is of another
    program, or if nothing can be seen of it. An empty path is no file."""
    try:
        text = Path(pid_file).read_text().strip() if pid_file else ""
        pid = int(text) if is_number(text) else 0
        if pid == 0 or Path(f"/proc/{pid}/comm").read_text().strip() != program:
            return None
    except (OSError, UnicodeDecodeError):
        return None
    ticks = start_ticks(pid)
    return None if ticks is None else RunningProcess(pid, ticks)
