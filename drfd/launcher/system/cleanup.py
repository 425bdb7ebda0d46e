"""Removal of what the jobs of a user leave behind: IPC objects, and directory trees.

Shared memory, semaphores and message queues outlive every process. When the last job of a user is
gone and the user has no other process on the machine, the user's objects are removed, as
systemd-logind does at the end of a user's last session (logind.conf(5), RemoveIPC=). A process with
the user's own rights does it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import ParamSpec

from drfd.launcher.attempt_files import Key
from drfd.launcher.system.background import BackgroundWork, become_bare
from drfd.launcher.system.files import get
from drfd.linux import syscalls
from drfd.linux.descriptors import opened

Given = ParamSpec("Given")

#: Seconds that a user must be without a job, so that jobs in a row cause no sweep each. Scripts
#: sleep for whole seconds: a sweep that begins then would delay the start of their next job.
_QUIET_S = 1.5
#: Seconds that a sweep may take.
_SWEEP_S = 30.0
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
        self._owners: dict[Key, int] = {}
        self._jobs: Counter[int] = Counter()
        #: uid → when its sweep is due (monotonic time), in this order.
        self._due: dict[int, float] = {}
        #: uid → pid of the sweep that is running, and the uids whose sweep has been killed.
        self._live: dict[int, int] = {}
        self._called_off: set[int] = set()

    def begun(self, key: Key, uid: int) -> None:
        """Stop any sweep of this user, because an attempt of the user is about to start."""
        if key not in self._owners:
            self._owners[key] = uid
            self._jobs[uid] += 1
        self._due.pop(uid, None)
        if uid in self._live and uid not in self._called_off:
            self._called_off.add(uid)
            self._background.kill(self._live[uid])

    def gone(self, key: Key) -> None:
        """Schedule a sweep if this attempt, of which nothing is left, was the last of its user."""
        uid = self._owners.pop(key, None)
        if uid is None:
            return
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
            if not is_anything_there():
                continue
            try:
                pid = self._background.start(partial(sweep, uid), partial(self._done, uid))
            except OSError:
                # The machine is short of processes. The objects stay and count as external load.
                continue
            self._live[uid] = pid

    def _done(self, uid: int) -> None:
        del self._live[uid]
        self._called_off.discard(uid)


def is_anything_there() -> bool:
    """Return whether any IPC object exists: a quick check before a process is started."""
    for kind in _KINDS:
        try:
            with open(f"{_SYSV}/{kind}") as file:
                # The first line holds the column names.
                if file.readline() and file.readline():
                    return True
        except OSError:
            continue
    return any(_names_in(directory) for directory in _DIRECTORIES)


def _names_in(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


def sweep(uid: int) -> None:
    """Remove this user's IPC objects, unless a process of the user is alive. Runs as root in a
    process of its own, which becomes the user."""
    if has_processes(uid):
        return
    become_bare(uid)
    for kind, (column, remove) in _KINDS.items():
        for row in table(kind):
            # A segment that a process has attached is in use.
            if row["uid"] == uid and not row.get("nattch"):
                try:
                    remove(row[column])
                except OSError:
                    continue
    until_mono_s = time.monotonic() + _SWEEP_S
    for directory in _DIRECTORIES:
        _sweep_directory(directory, until_mono_s)


def has_processes(uid: int) -> bool:
    """Return whether any living process has this real, effective, saved or file system uid."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            text = get(f"/proc/{name}/status")
        except OSError:
            # The process is gone.
            continue
        # The program's name comes first; line feeds in it are escaped.
        fields = dict(line.partition(":\t")[::2] for line in text.split("\n"))
        if str(uid) in fields["Uid"].split() and not fields["State"].startswith(("Z", "X")):
            return True
    return False


def table(kind: str) -> Iterator[dict[str, int]]:
    """Yield the rows of one table of System V IPC, as column → number."""
    try:
        columns, *rows = (line.split() for line in get(f"{_SYSV}/{kind}").splitlines())
    except OSError:
        return
    for row in rows:
        cells = zip(columns, row, strict=True)
        yield {name: int(word) for name, word in cells if word.removeprefix("-").isdecimal()}


def _sweep_directory(path: str, until_mono_s: float) -> None:
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
            _sweep_inner(name, fd, until_mono_s)
        except OSError:
            continue


def _sweep_inner(name: str, above: int, until_mono_s: float) -> None:
    try:
        os.rmdir(name, dir_fd=above)
    except OSError as error:
        # The error is EPERM for another user's directory, and EBUSY for a mount point.
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            remove_tree(name, above, until_mono_s)


# -- directory trees ----------------------------------------------------------------------------
# The user may have filled the tree, and nothing in it is trusted. Every step is relative to an open
# directory, follows no link and stays on the file system it began on. The depth of the tree costs
# neither descriptors nor stack: directories are moved up to the top before they are emptied.


def empty_directory(top: int, until_mono_s: float) -> bool:
    """Delete everything in the directory open at `top`, as far as this process may, until this
    time (monotonic clock). Returns whether it is empty. A pass that deletes nothing is the last."""
    device = os.fstat(top).st_dev
    while time.monotonic() < until_mono_s and _pass(top, top, device, until_mono_s):
        pass
    with os.scandir(top) as left:
        return next(left, None) is None


def remove_tree(name: str, above: int, until_mono_s: float) -> bool:
    """Delete `name`, with its contents, in the directory `above`. Returns whether it is gone."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=above)
    except FileNotFoundError:
        return True
    except OSError:
        # A link or a file.
        return _is_done(os.unlink, name, dir_fd=above)
    try:
        is_empty = empty_directory(fd, until_mono_s)
    finally:
        os.close(fd)
    return is_empty and _is_done(os.rmdir, name, dir_fd=above)


def _pass(directory: int, top: int, device: int, until_mono_s: float) -> int:
    """Delete the files in `directory` and in its subdirectories, and move deeper directories up to
    `top`. Returns how many entries were deleted or moved."""
    done = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if time.monotonic() > until_mono_s:
                break
            if not entry.is_dir(follow_symlinks=False):
                done += _is_done(os.unlink, entry.name, dir_fd=directory)
            elif _is_done(os.rmdir, entry.name, dir_fd=directory):
                done += 1
            elif directory != top:
                # No other entry has this name.
                unique = f".drfd-{os.urandom(12).hex()}"
                done += _is_done(
                    os.rename, entry.name, unique, src_dir_fd=directory, dst_dir_fd=top
                )
            else:
                done += _descend(entry.name, top, device, until_mono_s)
    return done


def _descend(name: str, top: int, device: int, until_mono_s: float) -> int:
    try:
        with opened(name, _DIRECTORY, dir_fd=top) as fd:
            # Another file system may be mounted here; it is not part of the tree.
            if os.fstat(fd).st_dev != device:
                return 0
            done = _pass(fd, top, device, until_mono_s)
    except OSError:
        return 0
    return done + _is_done(os.rmdir, name, dir_fd=top)


def _is_done(step: Callable[Given, object], *args: Given.args, **kwargs: Given.kwargs) -> bool:
    """Take a step and return whether the kernel has let it pass."""
    try:
        step(*args, **kwargs)
    except OSError:
        return False
    return True
