"""The processes in a job's cgroup, on either version: listed, frozen, thawed and signalled.

A cgroup that has vanished has no processes. Kernel documents: cgroup-v1/freezer-subsystem.rst,
cgroup-v2.rst.
"""

from __future__ import annotations

import errno
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from signal import SIGKILL

from drfd.common.signals import number_of, reached
from drfd.launcher.attempt_files import Records
from drfd.launcher.confinement.cgroup_files import Freezer, JobCgroup
from drfd.launcher.system import process
from drfd.launcher.system.files import unless_gone
from drfd.linux.kernel_files import get

#: Seconds that are waited for a freeze. Nearly all cgroups freeze within a millisecond, but not one
#: with a process that waits for a disk.
_FREEZE_S = 0.005


class Members(ABC):
    """The processes of the cgroups at `directory`, where they are frozen, and at `others`, those of
    other hierarchies: a process may be in some alone."""

    def __init__(self, directory: str, *others: str) -> None:
        self._directory, self._others = directory, others

    def pids(self) -> list[int]:
        """Return the living processes, those of cgroups further in included."""
        return [*self._each()]

    def _each(self) -> Iterator[int]:
        """Yield them, those of the first hierarchy before the others are read: nearly always these
        are all, of which there may be thousands, and each list takes the kernel milliseconds."""
        found = pids_in(self._directory)
        yield from found
        for other in self._others:
            more = set(pids_in(other)).difference(found)
            yield from more
            found += more

    @abstractmethod
    def is_populated(self) -> bool:
        """Return whether any process is alive there, cgroups further in included."""

    def freeze(self) -> bool:
        """Freeze the cgroup. Returns whether all processes are stopped within a short time; one
        that waits for a disk delays the freeze, which continues in the background."""
        with unless_gone():
            self._set_frozen(True)
            return self._stand_still()
        return False

    def thaw(self) -> None:
        with unless_gone():
            self._set_frozen(False)

    def are_frozen(self) -> bool:
        with unless_gone():
            return self._is_frozen()
        return False

    def signal(self, *numbers: int, first: int | None = None) -> None:
        """Send these signals to the processes that the first of them is for, `first` being the
        job's first one, while all are frozen, so that a fork bomb cannot outrun this. Thaws them
        afterwards."""
        with unless_gone():
            self._set_frozen(True)
            # Where it is delayed, listed processes can be signalled all the same.
            self._stand_still()
        # Where the cgroup that freezes is gone, another may be in use.
        pids = reached(self._each(), numbers[0], first)
        process.signal_those(pids, self._each, *map(number_of, numbers))
        with unless_gone():
            self._set_frozen(False)

    def kill(self) -> None:
        self.signal(SIGKILL)

    def escaped(self, attempt: Records | None) -> list[int]:
        """Return processes of the job in other cgroups, as far as they are children of its runner.
        Each becomes one at the latest when its parent has died. Users cannot move processes out
        of the cgroup, but systemd does so for them (systemd-run --user --scope)."""
        runner = living_runner(attempt)
        if runner is None:
            return []
        living = filter(process.start_ticks, process.children(runner))
        return sorted({*living} - {*self.pids()})

    @abstractmethod
    def _set_frozen(self, wanted: bool) -> None: ...

    @abstractmethod
    def _is_frozen(self) -> bool: ...

    def _stand_still(self) -> bool:
        until_mono_s = time.monotonic() + _FREEZE_S
        while not self._is_frozen():
            if time.monotonic() > until_mono_s:
                return False
            time.sleep(0.0005)
        return True


def pids_in(directory: str) -> list[int]:
    """Return the living processes of a cgroup, and of those further in."""
    found: list[int] = []
    for each in [directory, *inner_groups(directory)]:
        # A threaded cgroup (EOPNOTSUPP) lists its processes in the cgroup around it.
        with unless_gone(errno.EOPNOTSUPP):
            words = get(f"{each}/cgroup.procs").split()
            # 0 stands for a process outside this pid namespace, which has no pid here.
            found += [pid for word in words if (pid := int(word))]
    return found


def apart(directories: Sequence[str]) -> set[int]:
    """Return the living processes that are in some of these cgroups and not in all."""
    found = [set(pids_in(directory)) for directory in directories]
    return found[0].union(*found) - found[0].intersection(*found)


def inner_groups(directory: str) -> list[str]:
    """Return the cgroups that a job of root's has made inside its own, the innermost last."""
    with unless_gone():
        # Each inner cgroup adds a link; nearly all jobs have none.
        if os.stat(directory).st_nlink > 2:
            return [inner for inner, _, _ in os.walk(directory)][1:]
    return []


def remove_all(directory: str) -> bool:
    """Remove a cgroup, and those within it. Returns False if not all of them are empty."""
    if _remove(directory):
        return True
    return all(map(_remove, [*reversed(inner_groups(directory)), directory]))


def _remove(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise
    return True


class MembersV1(Members):
    """The processes of a cgroup on version 1, by its directory of the freezer controller."""

    def is_populated(self) -> bool:
        return next(self._each(), None) is not None

    def _set_frozen(self, wanted: bool) -> None:
        Freezer(self._directory).state = "FROZEN" if wanted else "THAWED"

    def _is_frozen(self) -> bool:
        return bool(Freezer(self._directory).state == "FROZEN")


class MembersV2(Members):
    """The processes of a cgroup on version 2."""

    def is_populated(self) -> bool:
        with unless_gone():
            return bool(self._cgroup.events["populated"])
        return False

    def kill(self) -> None:
        with unless_gone():
            self._cgroup.kill = True

    def _set_frozen(self, wanted: bool) -> None:
        self._cgroup.freeze = wanted

    def _is_frozen(self) -> bool:
        return bool(self._cgroup.events["frozen"] == 1)

    @property
    def _cgroup(self) -> JobCgroup:
        return JobCgroup(self._directory)


def first_process(attempt: Records | None) -> int | None:
    """Return the pid of the job's first process, or None if it is not known."""
    return None if attempt is None else (attempt.launched or {}).get("pid")


def living_runner(attempt: Records | None) -> int | None:
    """Return the pid of the attempt's runner, or None if it is not alive."""
    if attempt is None or attempt.runner is None or not is_of_this_boot(attempt):
        return None
    pid: int = attempt.runner["pid"]
    return pid if process.start_ticks(pid) == attempt.runner["start_ticks"] else None


def is_of_this_boot(attempt: Records) -> bool:
    return bool(attempt.created["boot_id"] == process.boot_id())
