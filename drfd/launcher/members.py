"""The processes in a job's cgroup, on either version: who they are; frozen, thawed and signalled.

A cgroup that has vanished has none. Kernel documents: cgroup-v1/freezer-subsystem.rst,
cgroup-v2.rst.
"""

from __future__ import annotations

import errno
import os
import time
from abc import ABC, abstractmethod
from signal import SIGKILL

from cgroupspy.nodes import Node

from drfd.launcher import process
from drfd.launcher.attempts import Attempt
from drfd.launcher.cgroup_v1_files import Freezer
from drfd.launcher.cgroup_v2_files import JobCgroup
from drfd.launcher.files import get
from drfd.launcher.patience import PATIENCE
from drfd.launcher.vanishing import unless_gone


class Members(ABC):
    """Those of the cgroup in one directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes that live in there."""

    @abstractmethod
    def is_populated(self) -> bool:
        """Whether any process lives in there, cgroups further in included."""

    def freeze(self) -> bool:
        """Whether all processes stand still within a short time; one that waits for a disk delays
        the freeze, which goes on in the background."""
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

    def signal(self, number: int) -> None:
        """Signal all processes while none of them can fork, so that a fork bomb cannot outrun us,
        nor a pid be given to somebody else. Afterwards they are thawed."""
        with unless_gone():
            self._set_frozen(True)
            # Those that are listed can be signalled even if the freeze is delayed.
            self._stand_still()
            process.signal_all(self.pids(), number)
            self._set_frozen(False)

    def kill(self) -> None:
        self.signal(SIGKILL)

    @abstractmethod
    def _set_frozen(self, wanted: bool) -> None: ...

    @abstractmethod
    def _is_frozen(self) -> bool: ...

    def _stand_still(self) -> bool:
        with PATIENCE.wait() as until_mono_s:
            while not self._is_frozen():
                if time.monotonic() > until_mono_s:
                    return False
                time.sleep(0.0005)
            return True


def inner_groups(directory: str) -> list[str]:
    """The cgroups that a job of root's has made in its own, the innermost last."""
    with unless_gone():
        # Each adds a link; nearly all jobs have none.
        if os.stat(directory).st_nlink > 2:
            return [inner for inner, _, _ in os.walk(directory)][1:]
    return []


def remove_all(directory: str) -> bool:
    """Remove a cgroup, and those within it; False: not all of them are empty."""
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
    """By the directory of the freezer controller."""

    def pids(self) -> list[int]:
        found: list[int] = []
        for directory in [self._directory, *inner_groups(self._directory)]:
            with unless_gone():
                found += _listed(directory)
        return found

    def is_populated(self) -> bool:
        return bool(self.pids())

    def _set_frozen(self, wanted: bool) -> None:
        Freezer(Node(self._directory)).state = "FROZEN" if wanted else "THAWED"

    def _is_frozen(self) -> bool:
        return bool(Freezer(Node(self._directory)).state == "FROZEN")


class MembersV2(Members):
    def pids(self) -> list[int]:
        found: list[int] = []
        for inner, _, _ in os.walk(self._directory):
            # One for threads alone (EOPNOTSUPP) lists its processes further out.
            with unless_gone(errno.EOPNOTSUPP):
                found += _listed(inner)
        return found

    def is_populated(self) -> bool:
        with unless_gone():
            return bool(self._cgroup.events["populated"])
        return False

    def kill(self) -> None:
        if os.path.exists(f"{self._directory}/cgroup.kill"):
            with unless_gone():
                self._cgroup.kill = True
        else:
            # Kernels before 5.14.
            super().kill()

    def fled(self, attempt: Attempt | None) -> list[int]:
        """Processes of the job that are in another cgroup, as far as they are children of its
        runner, which all of them are at the latest when their parents have died. Users cannot move
        processes out, but systemd does it for them (systemd-run --user --scope)."""
        # When it is over, its runner may have another job's processes for children.
        if attempt is None or attempt.is_over or attempt.runner is None:
            return []
        if attempt.created["boot_id"] not in (None, process.boot_id()):
            return []
        runner = attempt.runner["pid"]
        if process.start_ticks(runner) != attempt.runner["start_ticks"]:
            return []
        living = filter(process.start_ticks, process.children(runner))
        return sorted({*living} - {*self.pids()})

    def _set_frozen(self, wanted: bool) -> None:
        self._cgroup.freeze = wanted

    def _is_frozen(self) -> bool:
        return bool(self._cgroup.events["frozen"] == 1)

    @property
    def _cgroup(self) -> JobCgroup:
        return JobCgroup.at(self._directory)


def _listed(directory: str) -> list[int]:
    # 0 stands for a process outside our pid namespace: not ours to name.
    return [pid for word in get(f"{directory}/cgroup.procs").split() if (pid := int(word))]
