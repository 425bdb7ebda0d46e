"""The interface to the limits of jobs, which a class implements for each kind of machine.

Every method may be called again; it has no further effect once its work is done.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Key, Records
from drfd.launcher.protocol import AttemptLimits, Devices
from drfd.linux.kernel_files import get

#: Numbers by the names of their counters.
Counted = dict[str, int]


class CgroupSetting(NamedTuple):
    """A limit as data: a file of a cgroup, what is written to it, and a line that it then has."""

    path: str
    text: str
    line: str


class Counter(NamedTuple):
    """A counter of an attempt's as data: the number in a file of its cgroup after `key`, as in "key
    5" and "key=5", or the first one if `key` is "". One that begins with "user." is an extended
    attribute. `name` is its name on record."""

    path: str
    key: str
    name: str
    #: It is only read if the counter before it is not below this number.
    least: str = "0"


class LimitFailed(Exception):
    """A limit could not be applied, so the job must not start; the text names it and the reason."""


class Prepared(NamedTuple):
    """What the launcher has done of the cgroups of a new attempt."""

    #: Number of `directories`, from the last one on, that the attempt's runner makes.
    makes: int = 0
    #: Whether the attempt has CPUs to itself.
    is_pinned: bool = False


class ProcessLimits(NamedTuple):
    """Limits that a process of an attempt sets for itself."""

    #: CPUs that it keeps to; none of them stands for all.
    cpus: frozenset[int] = frozenset()
    #: Its limit of processes of its user (RLIMIT_NPROC); 0 for the inherited one.
    processes: int = 0


class CgroupPlan(NamedTuple):
    """What an attempt's runner does with its cgroups; a file is "" if there is none. The plans of
    alike attempts differ in the name of the cgroup alone.

    The runner kills its children again and again: when one dies, its own become the runner's. It
    reads no list of a cgroup's processes: on version 1 an open file lists those of its first
    reading, whose pids may be other processes' by now (kernel: cgroup_pidlist_start in
    cgroup-v1.c)."""

    #: Limits that it sets before the job begins.
    settings: Sequence[CgroupSetting] = ()
    #: Directory of the cgroup of version 2 that the job's process is forked into; "" if it enters
    #: by itself: it writes "0" into these files then, in this order.
    cgroup: str = ""
    entries: Sequence[str] = ()
    #: Takes "0", so that no process forks any more and their number only falls.
    pids_max: str = ""
    #: Takes "THAWED": what is frozen on version 1 does not die.
    freezer: str = ""
    #: Has the line "oom_kill 0" unless the kernel has killed for memory, where the others must be
    #: killed then. An eventfd that is written to `event_control` tells of such a kill.
    oom_control: str = ""
    event_control: str = ""
    #: Counters that it puts on record at the end, and cgroups that it removes then, in this order.
    counters: Sequence[Counter] = ()
    directories: Sequence[str] = ()


def is_in_job(pid: int) -> bool:
    """Return whether a process is in a job's cgroup. Raises OSError."""
    return any(map(attempt_files.cgroup_key, re.split("[/\n]", get(f"/proc/{pid}/cgroup"))))


def insist_on_room(directory: str, of_all: str, *, threads: int) -> None:
    """Raise LimitFailed if the limit of processes of this job, or of all jobs, has no room for so
    many threads more: the kernel looks at it only when one is forked."""
    for place, whose in ((directory, "the job has"), (of_all, "all jobs have")):
        with suppress(FileNotFoundError):
            present, most = get(f"{place}/pids.current"), get(f"{place}/pids.max")
            if most.strip() != "max" and int(present) + threads > int(most):
                raise LimitFailed(f"{whose} as many processes as allowed")


#: Mode of cgroups' directories: their files can be read by name, as programs do that ask for their
#: limits. Who could list a directory could keep it locked for as long as they like (getdents(2)
#: into a page of a FUSE file of their own), and nothing is made or removed in it meanwhile.
CGROUP_MODE = 0o711


class JobGroupGone(Exception):
    """The directory of all job cgroups has vanished, so the launcher must be restarted."""


class Confinement(ABC):
    """The limits of all attempts on one kind of machine; where nothing else is said, one on which
    jobs have no cgroups."""

    #: "cgroup-v2", "cgroup-v1" or "none".
    kind: str

    @abstractmethod
    def controls(self) -> dict[str, str]:
        """Return resource → "enforced", "measured" or "not controlled", with a reason after a
        colon. An enforced limit is applied or the job does not start; a measured one is checked by
        the controller."""

    @abstractmethod
    def cores(self) -> dict[str, str]:
        """Return how cores are controlled in each of CORES_MODES; `controls` has that of quotas."""

    def ancestors(self) -> list[str]:
        """Return the cgroups above that of all jobs, which count processes of others, too."""
        return []

    def limit_processes(self, processes: int) -> None:
        """Limit the processes of all jobs together, from now on. Raises OSError."""
        return

    def mounts(self) -> dict[str, str]:
        """Return controller → mount point that `cgroup_path` is below; empty without cgroups."""
        return {}

    def cgroup_path(self, key: Key, groups: Sequence[str]) -> str | None:
        """Return the attempt's cgroup, relative to each mount point, or None without cgroups."""
        return None

    @abstractmethod
    def hiding(self) -> tuple[bool, str]:
        """Return whether device nodes can be hidden from jobs, and in a sentence how or why not."""

    def limitable_gpus(self) -> frozenset[str]:
        """Return the PCI addresses of the GPUs whose memory the kernel limits where `create` is
        told to: of other GPUs it cannot."""
        return frozenset()

    def to_make(self, key: Key, limits: AttemptLimits, devices: Devices) -> list[str]:
        """Return the cgroups of an attempt that must be there before its runner starts, the outer
        ones first. Raises JobGroupGone, OSError."""
        return []

    @abstractmethod
    def create(
        self, key: Key, limits: AttemptLimits, devices: Devices, is_made: bool = False
    ) -> Prepared:
        """Prepare the cgroups of an attempt. Its runner makes them, but for those of `to_make`:
        where the job has CPUs to itself, or those of others are, or devices are hidden. `is_made`:
        these are there. Raises JobGroupGone, and LimitFailed, also if a device cannot be hidden."""

    def plan(
        self, key: Key, limits: AttemptLimits, devices: Devices, *, is_pinned: bool
    ) -> CgroupPlan:
        """Return what the attempt's runner is to do. Raises LimitFailed."""
        return CgroupPlan()

    def adopt(self, key: Key, cgroup: str) -> None:
        """Take over an attempt of an earlier launcher, whose `cgroup_path` was this."""
        return

    def begun(self, key: Key) -> None:
        """Take note that the runner has made the attempt's cgroups: CPUs may have been given to
        another job meanwhile."""
        return

    def insist_on_group(self) -> None:
        """Raise JobGroupGone if the directory of all job cgroups has vanished. Groups below it that
        have are made anew."""
        return

    def has_ranges(self) -> bool:
        """Return whether the kernel divides cores between jobs with ranges of them."""
        return False

    def weigh(self, cores_milli: Mapping[str, int]) -> None:
        """Divide cores among these groups of attempts, by their paths, in these proportions."""
        return

    def process_limits(self, key: Key, limits: AttemptLimits, uid: int) -> ProcessLimits:
        """Return what the first process of the attempt, which is about to become `uid`, limits
        itself to."""
        return ProcessLimits()

    def join(self, key: Key, pid: int, pidfd: int) -> None:
        """Put a process, with all its threads, into the attempt's cgroup, unless it is in a job:
        what it has taken of memory there would count in neither. It is killed if the job has more
        processes then than it may have. Raises LimitFailed, OSError."""
        raise LimitFailed("jobs have no cgroups here")

    def numbers(self, key: Key) -> Counted:
        """Return the present numbers of the attempt's counters."""
        return {}

    @abstractmethod
    def signal(self, key: Key, attempt: Records | None, *numbers: int) -> None:
        """Send signals to every process of the attempt that each is for (see drfd.common.signals),
        and thaw them if they were frozen."""

    @abstractmethod
    def freeze(self, key: Key, attempt: Records | None) -> bool:
        """Stop all processes of the attempt; True once none runs. Frozen ones can be killed."""

    @abstractmethod
    def thaw(self, key: Key, attempt: Records | None) -> None:
        """Undo `freeze`."""

    @abstractmethod
    def members(self, key: Key, attempt: Records | None) -> list[int]:
        """Return the living processes of the attempt."""

    @abstractmethod
    def kill_pass(self, key: Key, attempt: Records | None) -> bool:
        """Send SIGKILL to every process of the attempt; True once none is left."""

    def clearing(self, key: Key) -> list[str]:
        """Return the command that kills what is in the attempt's cgroups and removes them, with
        status 0 once they are gone: in directories that a user may enter, the launcher itself looks
        for none that may be missing, and removes none. Both wait for the removal of another, which
        takes seconds after the user has asked for a million names in it that are not there
        (negative dentries, fs/dcache.c). Empty without cgroups."""
        return []

    @abstractmethod
    def remove(self, key: Key) -> bool:
        """Remove what `create` made, just now; False when it is in use."""

    @abstractmethod
    def forget(self, key: Key) -> None:
        """Forget an attempt of which nothing is left."""

    def leftovers(self) -> list[Key]:
        """Return the attempts for which something exists that `remove` would delete."""
        return []

    def close(self) -> None:
        """Release what is not in use, because the launcher ends; jobs may continue to run."""
        return
