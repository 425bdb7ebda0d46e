"""Users' own file systems (FUSE) that keep killed processes.

A process whose request the server has begun waits for the answer even when it has been killed. The
server is no part of the job, and may never answer. Kernel document: fuse.rst.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from drfd.launcher.system import process
from drfd.launcher.system.files import put
from drfd.linux.kernel_files import get

#: Control files of each such file system, which belong to its user.
_CONNECTIONS = Path("/sys/fs/fuse/connections")


def abort_unanswered(pids: Iterable[int], uid: int) -> int:
    """If one of these processes of the user waits for a file system of this kind, abort those of
    the user that owe an answer, so that every access to them fails from now on. Returns their
    number."""
    count = 0
    if any(_waits(thread) for pid in pids for thread in process.threads(pid)):
        for control in _CONNECTIONS.iterdir():
            # It may be unmounted meanwhile.
            with suppress(OSError):
                if control.stat().st_uid == uid and int(get(f"{control}/waiting")) > 0:
                    put(f"{control}/abort", "1")
                    count += 1
    return count


def _waits(thread: int) -> bool:
    with suppress(OSError):
        return "fuse" in get(f"/proc/{thread}/stack")
    return False
