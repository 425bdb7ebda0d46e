"""Private temporary space of one attempt: what its processes see in /tmp, /var/tmp and /dev/shm.

A process that enters the space gets a mount namespace of its own, in which two directories of the
attempt cover /tmp and /var/tmp, and an empty tmpfs covers /dev/shm. The tmpfs disappears with the
last process in the namespace; its pages are charged to the cgroup of the process that wrote them.
The launcher makes the directories and removes them with the job.

Output files and the socket of `drf run`, which the user named for drfd itself, are opened as the
machine outside sees them, so that the user finds them where they were named.

The directories of all attempts lie in one directory of root's that nobody else may enter:

    ID.ATTEMPT.UID/tmp    covers /tmp
    ID.ATTEMPT.UID/var    covers /var/tmp
    gone-HEX-UID/…        left by an attempt that is over; rm removes it

An attempt file says where the attempt has its directories ("space" in its first record), so that a
launcher with another configuration finds them.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Set
from contextlib import suppress
from functools import partial

from drfd.launcher.attempt_files import Key
from drfd.launcher.system.background import BackgroundWork
from drfd.linux.kernel_files import opened
from drfd.payload.signature import open_roots

#: Directory of the attempt → what it covers. The launcher makes the directories.
COVERED = {"tmp": "/tmp", "var": "/var/tmp"}  # noqa: S108

log = logging.getLogger("drfd.launcher")

#: Name of the directory of all spaces, in the launcher's unless the configuration names another.
SPACES = "private"
_LIVE = re.compile(r"[1-9][0-9]{0,17}\.[1-9][0-9]{0,17}\.[0-9]{1,10}")
_GONE = re.compile(r"gone-[0-9a-f]+-[0-9]{1,10}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RM = "/bin/rm"
#: How many spaces one program removes, and its memory in bytes. What it leaves is left to the next
#: launcher.
_MOST_NAMES = 1000
_RM_BYTES = 1 << 29
#: Seconds in which rm says whose it is: it may lie on a file system that hangs.
_RM_SAYS_S = 20.0


class Unsafe(Exception):
    """Spaces cannot be made, because users could turn that against others; the text says why."""


def open_home(path: str, *, makes: bool = True) -> tuple[str, int]:
    """Open the directory for all spaces, made if it is missing unless `makes` is false. Returns its
    path without links, and a descriptor. Raises Unsafe if anybody but root could replace it, and
    OSError."""
    real = os.path.realpath(path)
    above, name = os.path.split(real)
    try:
        fd = open_roots(above)
    except PermissionError:
        raise Unsafe(f"{above} is not root's all the way, or others may write there") from None
    try:
        if makes:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=fd)
        home = os.open(name, _DIRECTORY, dir_fd=fd)
    finally:
        os.close(fd)
    status = os.fstat(home)
    if status.st_uid != 0 or status.st_mode & 0o077:
        os.close(home)
        raise Unsafe(f"{real} does not belong to root alone: it must have mode 0700")
    return real, home


class PrivateSpaces:
    """The directories of all attempts' private spaces, made and removed."""

    def __init__(self, background: BackgroundWork, home: str | None) -> None:
        """`home` is the directory for the spaces of new attempts, or None if they have none. Raises
        Unsafe, OSError."""
        self._background = background
        self._homes: dict[str, int] = {}
        #: The directory for new attempts, without links.
        self.home: str | None = None
        #: uid → (home, name) of each space that is to be removed, in order.
        self._waste: dict[int, dict[tuple[str, str], None]] = {}
        #: Users whose spaces a program is removing: however long one takes, others do not wait.
        self._cleaning: set[int] = set()
        if home is not None:
            _insist_on_gnus_rm()
            self.home, fd = open_home(home)
            self._homes[self.home] = fd

    def place_for(self, key: Key, uid: int) -> str | None:
        """Return the path of a new attempt's space, or None if attempts have none."""
        return None if self.home is None else f"{self.home}/{key[0]}.{key[1]}.{uid}"

    def make(self, place: str | None) -> None:
        """Make the directories of a space. Raises OSError."""
        if place is None:
            return
        home, name = os.path.split(place)
        above = self._homes[home]
        try:
            os.mkdir(name, 0o700, dir_fd=above)
        except FileExistsError:
            # An earlier attempt of this name had it, and a crash interrupted its removal.
            self._throw_away(home, name)
            os.mkdir(name, 0o700, dir_fd=above)
        with opened(name, _DIRECTORY, dir_fd=above) as fd:
            for each in COVERED:
                os.mkdir(each, dir_fd=fd)
                # The mode is that of /tmp; only the job's user can reach this directory.
                os.chmod(each, 0o1777, dir_fd=fd)  # noqa: S103

    def remove(self, place: str | None) -> None:
        """Remove an ended attempt's space, in another process: also an empty directory takes the
        kernel seconds if somebody has asked for a million names in it that are not there."""
        if place is None:
            return
        home, name = os.path.split(place)
        if self._open(home) is not None:
            self._throw_away(home, name)

    def sweep(self, places: Set[str], usual: str | None) -> None:
        """Remove spaces of attempts that have no file any more, after a crash or a reboot: all but
        `places`. Called once, when all attempts have been adopted. `usual` is a directory that may
        hold spaces of an earlier configuration."""
        homes = {*self._homes, *map(os.path.dirname, places)}
        if usual is not None and os.path.isdir(usual):
            homes.add(os.path.realpath(usual))
        for home in homes:
            above = self._open(home)
            if above is None:
                continue
            for name in os.listdir(above):
                if _GONE.fullmatch(name):
                    self._discard(home, name)
                elif _LIVE.fullmatch(name) and f"{home}/{name}" not in places:
                    self._throw_away(home, name)

    def _open(self, home: str) -> int | None:
        if home not in self._homes:
            # One of an earlier configuration may be another user's by now.
            try:
                _, fd = open_home(home, makes=False)
            except (OSError, Unsafe) as error:
                log.error("event=space-not-removed home=%s error=%s", home, error)
                return None
            self._homes[home] = fd
        return self._homes[home]

    def _throw_away(self, home: str, name: str) -> None:
        gone = f"gone-{os.urandom(8).hex()}-{_uid_in(name)}"
        above = self._homes[home]
        try:
            os.rename(name, gone, src_dir_fd=above, dst_dir_fd=above)
        except OSError:
            # The disk may be too full even for this. The space is removed under its old name.
            gone = name
        self._discard(home, gone)

    def _discard(self, home: str, name: str) -> None:
        self._waste.setdefault(_uid_in(name), {})[home, name] = None
        self._clean()

    def _clean(self) -> None:
        """Begin the removal of the spaces of each user for whom it has not begun."""
        for uid, waste in self._waste.items():
            if uid in self._cleaning:
                continue
            home, _ = next(iter(waste))
            fd, names = self._homes[home], [name for where, name in waste if where == home]
            turn = names[:_MOST_NAMES]
            # If the machine is short of processes, the end of the next attempt tries again.
            with suppress(OSError):
                self._remove_by_rm(fd, turn, partial(self._cleaned, uid, home, turn))
                self._cleaning.add(uid)

    def _remove_by_rm(self, home: int, names: list[str], on_end: Callable[[int], None]) -> None:
        """Have coreutils' rm remove these spaces, as root: a program of the user's uid could be
        traced by the user, outside of all jobs. It works relative to open directories, follows no
        link, and stays on the file system. Raises OSError."""
        pid = self._background.start(
            [_RM, "-rf", "--one-file-system", "--", *names],
            on_end,
            # The names in its complaints are the user's.
            stderr=subprocess.DEVNULL,
            cwd=f"/proc/self/fd/{home}",
            env={},
        )
        with suppress(OSError):
            # Of a tree of a million levels it would keep each in memory.
            resource.prlimit(pid, resource.RLIMIT_AS, (_RM_BYTES, _RM_BYTES))

    def _cleaned(self, uid: int, home: str, names: list[str], status: int) -> None:
        self._cleaning.discard(uid)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            # As for lack of memory: the end of the next attempt tries again.
            log.warning("event=removal-killed uid=%d", uid)
            return
        for name in names:
            del self._waste[uid][home, name]
            if os.access(name, os.F_OK, dir_fd=self._homes[home], follow_symlinks=False):
                log.error("event=space-not-removed path=%s/%s", home, name)
        if not self._waste[uid]:
            del self._waste[uid]
        self._clean()


def _uid_in(name: str) -> int:
    return int(re.split("[.-]", name)[-1])


def _insist_on_gnus_rm() -> None:
    """Raise Unsafe if another program removes spaces: early versions of uutils follow links that
    are put in their way, and busybox does not know the options. Raises OSError."""
    command = [_RM, "--version"]
    try:
        said = subprocess.run(command, capture_output=True, env={}, timeout=_RM_SAYS_S).stdout
    except subprocess.TimeoutExpired:
        said = b""
    if b"GNU coreutils" not in said:
        raise Unsafe(f"{_RM} is not that of GNU coreutils")
