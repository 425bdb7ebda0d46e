"""Removal of the IPC objects that the jobs of a user leave behind.

Shared memory, semaphores and message queues outlive every process. When the last job of a user is
gone and the user has no other process on the machine, the user's objects are removed, as
systemd-logind does at the end of a user's last session (logind.conf(5), RemoveIPC=). A process with
the user's own rights does it:

    python -m drfd.launcher.system.cleanup LAUNCHER UID
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from drfd.launcher.system import process
from drfd.launcher.system.background import BackgroundWork, own_program
from drfd.linux import syscalls
from drfd.linux.kernel_files import get
from drfd.linux.own_process import NOBODY, drop_rights

#: Seconds that a user must be without a job, so that jobs in a row cause no sweep each. Scripts
#: sleep for whole seconds: a sweep that begins then would delay the start of their next job.
_QUIET_S = 1.5
#: The program that sweeps.
_PROGRAM = "drfd.launcher.system.cleanup"
#: Seconds that a sweep may take.
_SWEEP_S = 30
_SYSV = "/proc/sysvipc"
#: Kind → the column with its identifier, and the function that removes it (sysvipc(7),
#: proc_sysvipc(5)).
_KINDS: dict[str, tuple[str, Callable[[int], None]]] = {
    "shm": ("shmid", syscalls.remove_shared_memory),
    "sem": ("semid", syscalls.remove_semaphores),
    "msg": ("msqid", syscalls.remove_message_queue),
}
#: Directories in which POSIX shared memory and message queues are files (shm_overview(7),
#: mq_overview(7)).
_DIRECTORIES = ("/dev/shm", "/dev/mqueue")  # noqa: S108
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class IpcSweeps:
    """The users who have jobs, and the users whose IPC objects are to be removed."""

    def __init__(
        self,
        background: BackgroundWork,
        *,
        min_uid: int | None,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        """`min_uid` is the least uid whose objects are removed, whatever uids may run jobs; None
        turns the removal off."""
        self._background = background
        self._min_uid = min_uid
        self._mono = mono
        self._jobs: Counter[int] = Counter()
        #: uid → when its sweep is due (monotonic time), in this order.
        self._due: dict[int, float] = {}
        #: uid → pid of the sweep that is running.
        self._live: dict[int, int] = {}

    def begun(self, uid: int) -> None:
        """Stop any sweep of this user, because an attempt of the user is about to start."""
        self._jobs[uid] += 1
        self._due.pop(uid, None)
        if uid in self._live:
            self._background.kill(self._live[uid])

    def gone(self, uid: int) -> None:
        """Schedule a sweep if this attempt, of which nothing is left, was the last of its user."""
        self._jobs[uid] -= 1
        if self._jobs[uid] == 0:
            del self._jobs[uid]
            if self._min_uid is not None and uid >= max(1, self._min_uid):
                self._due[uid] = self._mono() + _QUIET_S

    def pause_s(self) -> float | None:
        """Return the seconds until the next sweep is due, or None if there is none."""
        if not self._due:
            return None
        return max(0.0, next(iter(self._due.values())) - self._mono())

    def run_due(self) -> None:
        """Begin the sweeps that are due."""
        while self.pause_s() == 0:
            uid = next(iter(self._due))
            del self._due[uid]
            if uid in self._live:
                # The killed sweep has not ended and may never do so, so there is only one per user.
                self._due[uid] = self._mono() + _QUIET_S
                continue
            # If the machine is short of processes, the objects stay and count as external load.
            with suppress(OSError):
                self._live[uid] = self._background.start(
                    own_program(_PROGRAM, uid), partial(self._swept, uid)
                )

    def _swept(self, uid: int, status: int) -> None:
        del self._live[uid]


def main(words: Sequence[str]) -> None:
    launcher, uid = map(int, words)
    process.die_with(launcher)
    sweep(uid, launcher)


def sweep(uid: int, launcher: int) -> None:
    """Remove this user's IPC objects, unless a process of the user is alive. Runs as root in a
    process of its own, which becomes the user, without any groups."""
    if has_processes(uid):
        return
    drop_rights(uid, NOBODY, [])
    # The change of uid has taken the signal away (prctl(2)).
    process.die_with(launcher)
    signal.alarm(_SWEEP_S)
    for kind, (column, remove) in _KINDS.items():
        for row in table(kind):
            # A segment that a process has attached is in use.
            if row["uid"] == uid and not row.get("nattch"):
                try:
                    remove(row[column])
                except OSError:
                    continue
    for directory in _DIRECTORIES:
        _sweep_directory(directory)


def has_processes(uid: int) -> bool:
    """Return whether any living process has this real, effective, saved or file system uid."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return any(uid in process.uids(pid) and process.start_ticks(pid) is not None for pid in pids)


def table(kind: str) -> Iterator[dict[str, int]]:
    """Yield the rows of one table of System V IPC, as column → number."""
    try:
        columns, *rows = (line.split() for line in get(f"{_SYSV}/{kind}").splitlines())
    except OSError:
        return
    for row in rows:
        cells = zip(columns, row, strict=True)
        yield {name: int(word) for name, word in cells if word.removeprefix("-").isdecimal()}


def _sweep_directory(path: str) -> None:
    """Remove this user's files in a directory; the process is this user. No name is examined before
    the kernel has shown that it is the user's and no mount point, because another user's own file
    system (FUSE) may refuse to name the owner, or never answer."""
    try:
        fd = os.open(path, _DIRECTORY)
    except OSError:
        return
    if not os.fstat(fd).st_mode & stat.S_ISVTX:
        # Without the sticky bit anybody may remove anything there, so unlink tells no owner.
        return
    for name in os.listdir(fd):
        try:
            os.unlink(name, dir_fd=fd)
        except IsADirectoryError:
            _sweep_inner(name, fd)
        except OSError:
            continue


def _sweep_inner(name: str, above: int) -> None:
    try:
        os.rmdir(name, dir_fd=above)
    except OSError as error:
        # The error is EPERM for another user's directory, and EBUSY for a mount point.
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            # One too deep for it stays: whose it is may keep the others, too.
            with suppress(RecursionError):
                shutil.rmtree(name, ignore_errors=True, dir_fd=above)


if __name__ == "__main__":
    main(sys.argv[1:])
