"""Job cgroups on either version: a directory per attempt in each hierarchy of the kernel, below
those of the groups that it is in, its pools and its user.

The kernel divides cores among groups by their weights, and among the attempts of one by theirs. The
directories record which attempt is where, for this launcher and the next, and the attempt's file
does as long as its runner has not made them.

Limits are data (`CgroupSetting`): a runner makes the directories of a new job and sets its limits.
The launcher makes the groups, which jobs share, and sets what a job cannot have alone: CPUs, on
which those of other jobs depend, and the refusal of devices.
"""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, chain
from signal import SIGKILL, pidfd_send_signal
from typing import ClassVar

from drfd.common.failpoints import reach
from drfd.common.signals import number_of, reached
from drfd.launcher.attempt_files import Key, Records, cgroup_name
from drfd.launcher.confinement import cores
from drfd.launcher.confinement.cgroup_files import (
    ancestors,
    cgroups_of,
    explain,
    read_counters,
)
from drfd.launcher.confinement.cores import (
    Affinity,
    Cpusets,
    Pins,
    quota_us,
    weight_of,
    whole_cores,
)
from drfd.launcher.confinement.interface import (
    CGROUP_MODE,
    CgroupPlan,
    CgroupSetting,
    Confinement,
    Counted,
    Counter,
    JobGroupGone,
    LimitFailed,
    Prepared,
    ProcessLimits,
    insist_on_room,
    is_in_job,
)
from drfd.launcher.confinement.processes import (
    Members,
    MembersV1,
    apart,
    first_process,
    remove_all,
)
from drfd.launcher.protocol import NO_PIN, PIN, QUOTA, WEIGHT, AttemptLimits, Devices, DiskLimit
from drfd.launcher.system import process
from drfd.launcher.system.background import own_program
from drfd.launcher.system.files import put, unless_gone
from drfd.linux.device_nodes import DeviceNode

#: How often what a process forks meanwhile is put where the process is. It is frozen, so this
#: ends at the second time, but for processes that wait for a disk and so are not frozen yet.
_GATHER_TRIES = 16
_CLEARING = "drfd.launcher.confinement.clearing"


class Cgroups(Confinement):
    """What both versions do alike."""

    #: The controller of disk rates.
    disks: ClassVar[str]
    #: The file of a weight, its bounds, and the weight of a core where these allow it.
    weight_file: ClassVar[str]
    weights: ClassVar[tuple[int, int, int]]
    members_of: ClassVar[type[Members]]
    #: Whether devices are refused in a cgroup that an attempt has anyway.
    hides_in_place: bool = True

    def __init__(self, mounts: dict[str, str], group: str) -> None:
        """`mounts` maps each controller, and "freezer", to its mount point. `group` is the parent
        of all jobs, below each of them."""
        self._mounts, self._group = mounts, group
        #: That parent below each controller.
        self._parents = {name: f"{mount}/{group}" for name, mount in mounts.items()}
        #: The same, each once, as controllers may share one (cpu,cpuacct). What a process forks
        #: while it enters is in the first of them, which freezes, and bounded by the second.
        first = (self._parents["freezer"], self._parents["pids"])
        self._tops = list(dict.fromkeys((*first, *self._parents.values())))
        #: Where attempts are below each of these, and the cores of groups, by their places.
        self._places: dict[Key, str] = {}
        self._parts: dict[str, int] = {}
        for top in self._tops:
            with suppress(PermissionError):
                os.chmod(top, CGROUP_MODE)
            self._places |= cgroups_of(top)[0]
        #: The groups that this launcher has made, or completed after another one.
        self._groups = set[str]()
        self._affinity = Affinity()
        self._pins, self._why_not_pinned = self._open_pins()
        least, usual, most = self.weights
        self._weight = max(least, min(usual, most // (os.cpu_count() or 1)))

    def cores(self) -> dict[str, str]:
        if "cpu" not in self._mounts:
            return cores.affinity_controls(self._lacks("cpu"))
        pin, why = "whole cores as CPUs of their own, parts by quota on the other CPUs", ""
        if self._pins is None:
            pin, why = NO_PIN, f": {self._why_not_pinned}"
        return {
            QUOTA: "enforced",
            WEIGHT: "enforced: at least what a job declares, and what others leave idle",
            PIN: f"enforced: {pin}{why}",
        }

    def ancestors(self) -> list[str]:
        return ancestors(self._mounts["pids"], self._group)

    def limit_processes(self, processes: int) -> None:
        put(f"{self._parents['pids']}/pids.max", str(processes))

    def cgroup_path(self, key: Key, groups: Sequence[str]) -> str:
        return "/".join((self._group, *groups, cgroup_name(key)))

    def to_make(self, key: Key, limits: AttemptLimits, devices: Devices) -> list[str]:
        self._open_groups(limits.groups)
        path = self.cgroup_path(key, limits.groups).removeprefix(self._group)
        return [f"{top}{path}" for top in self._tops] if self._makes(limits, devices) else []

    def _makes(self, limits: AttemptLimits, devices: Devices) -> bool:
        """Return whether the attempt needs cgroups before its runner starts."""
        if self.hides_in_place and devices.hidden:
            return True
        return self._pins is not None and (self._pins.concern_all or whole_cores(limits) > 0)

    def create(
        self, key: Key, limits: AttemptLimits, devices: Devices, is_made: bool = False
    ) -> Prepared:
        if "cpu" not in self._mounts:
            self._affinity.choose(key, limits)
        try:
            self._open_groups(limits.groups)
            self.adopt(key, self.cgroup_path(key, limits.groups))
            reach("launch.before-limits")
            pins, whole, is_pinned = self._pins, whole_cores(limits), False
            if self._makes(limits, devices) and not is_made:
                for directory in self._directories(key):
                    _make(directory)
                is_made = True
            if pins is not None and is_made:
                is_pinned = whole > 0 and pins.pin(key, whole, devices.numa_nodes)
                if not is_pinned:
                    pins.share(key)
            if devices.hidden:
                reach("launch.before-devices")
                self._hide(key, devices.hidden)
            return Prepared(0 if is_made else len(self._tops), is_pinned)
        except (OSError, LimitFailed) as error:
            self.remove(key)
            if isinstance(error, OSError):
                raise LimitFailed(explain(error)) from error
            raise

    def plan(
        self, key: Key, limits: AttemptLimits, devices: Devices, *, is_pinned: bool
    ) -> CgroupPlan:
        settings = self._limits(key, limits, devices)
        has_quota = limits.cores_by != WEIGHT or limits.cores_max_milli > 0
        if "cpu" in self._mounts and has_quota and not is_pinned:
            settings += self._quota(key, quota_us(limits.quota_milli))
        if self.disks in self._mounts:
            settings += chain.from_iterable(self._disk(key, disk) for disk in limits.disks)
        return CgroupPlan(
            settings=settings,
            pids_max=f"{self._directory('pids', key)}/pids.max",
            counters=self._counters(key),
            directories=self._removed(key),
        )

    def process_limits(self, key: Key, limits: AttemptLimits, uid: int) -> ProcessLimits:
        return ProcessLimits(self._affinity.cpus(key))

    def adopt(self, key: Key, cgroup: str) -> None:
        # Its runner may be about to make it.
        if cgroup.startswith(f"{self._group}/"):
            self._places[key] = cgroup.removeprefix(f"{self._group}/")

    def begun(self, key: Key) -> None:
        if self._pins is not None:
            self._pins.begun(key)

    def insist_on_group(self) -> None:
        self._groups.clear()
        for top in self._tops:
            if not os.path.isdir(top):
                raise _gone(top)

    def has_ranges(self) -> bool:
        return "cpu" in self._mounts

    def weigh(self, cores_milli: Mapping[str, int]) -> None:
        self._parts |= cores_milli
        for group in cores_milli:
            self._weigh(group)

    def join(self, key: Key, pid: int, pidfd: int) -> None:
        if is_in_job(pid):
            raise LimitFailed("the process that asks is in a job already")
        group, directories = self._directory("pids", key), [*self._entered(key)]
        insist_on_room(group, self._parents["pids"], threads=1)
        for directory in directories:
            put(f"{directory}/cgroup.procs", str(pid))
        moved: set[int] = set()
        try:
            self._gather(key, directories, moved)
            # Until it was inside, its user could have it start threads, whose number has no limit.
            insist_on_room(group, self._parents["pids"], threads=0)
        except LimitFailed:
            pidfd_send_signal(pidfd, SIGKILL)
            process.signal_those(moved, self._members(key).pids, SIGKILL)
            raise
        if cpus := self._affinity.cpus(key):
            os.sched_setaffinity(pid, cpus)

    def _gather(self, key: Key, directories: list[str], moved: set[int]) -> None:
        """Put what a process has forked between two of these directories into all of them, while
        the job stands still: all of it is in the first, which freezes. Adds to `moved` what was in
        some alone. Raises LimitFailed."""
        if not apart(directories):
            return
        members = self._members(key)
        was_frozen = members.are_frozen()
        members.freeze()
        try:
            for _ in range(_GATHER_TRIES):
                strays = apart(directories)
                if not strays:
                    return
                moved |= strays
                for pid in strays:
                    for directory in directories:
                        # It may have ended.
                        with unless_gone(errno.ESRCH):
                            put(f"{directory}/cgroup.procs", str(pid))
        finally:
            if not was_frozen:
                members.thaw()
        raise LimitFailed("it forks faster than it can be moved")

    def signal(self, key: Key, attempt: Records | None, *numbers: int) -> None:
        members, first = self._members(key), first_process(attempt)
        listed = partial(members.escaped, attempt)
        # Afterwards the job may have ended, and who looks at its cgroups waits for their removal.
        escaped = listed()
        members.signal(*numbers, first=first)
        for number in numbers:
            process.signal_those(reached(escaped, number, first), listed, number_of(number))

    def freeze(self, key: Key, attempt: Records | None) -> bool:
        return self._members(key).freeze()

    def thaw(self, key: Key, attempt: Records | None) -> None:
        with unless_gone():
            self._members(key).thaw()

    def members(self, key: Key, attempt: Records | None) -> list[int]:
        members = self._members(key)
        return [*members.pids(), *members.escaped(attempt)]

    def kill_pass(self, key: Key, attempt: Records | None) -> bool:
        members = self._members(key)
        if not members.is_populated():
            escaped = members.escaped(attempt)
            process.signal_those(escaped, partial(members.escaped, attempt), SIGKILL)
            return not escaped
        members.kill()
        return False

    def numbers(self, key: Key) -> Counted:
        return read_counters(self._counters(key))

    def clearing(self, key: Key) -> list[str]:
        if key not in self._places:
            return []
        return own_program(_CLEARING, self.members_of.__name__, *self._removed(key))

    def remove(self, key: Key) -> bool:
        if not all(map(remove_all, self._removed(key))):
            return False
        self.forget(key)
        return True

    def forget(self, key: Key) -> None:
        self._places.pop(key, None)
        self._affinity.forget(key)
        if self._pins is not None:
            self._pins.forget(key)

    def leftovers(self) -> list[Key]:
        return sorted(self._places)

    def close(self) -> None:
        self._remove_groups()
        for top in self._tops:
            with suppress(OSError):
                # It fails if jobs still run in it, or if it is gone.
                os.rmdir(top)

    # -- what differs -----------------------------------------------------------------------------

    @abstractmethod
    def _limits(self, key: Key, limits: AttemptLimits, devices: Devices) -> list[CgroupSetting]:
        """Return the limits of a new cgroup but for cores and disks. Raises LimitFailed."""

    @abstractmethod
    def _disk(self, key: Key, disk: DiskLimit) -> list[CgroupSetting]: ...

    @abstractmethod
    def _quota(self, key: Key, quota_us: int) -> list[CgroupSetting]:
        """Return a quota of cores, per PERIOD_US."""

    @abstractmethod
    def _counters(self, key: Key) -> list[Counter]: ...

    @abstractmethod
    def _hide(self, key: Key, hidden: frozenset[DeviceNode]) -> None:
        """Refuse these devices in a new cgroup. Raises LimitFailed, OSError."""

    @abstractmethod
    def _entered(self, key: Key) -> Iterable[str]:
        """Return the attempt's directories, in the order in which a process enters them."""

    @abstractmethod
    def _lacks(self, controller: str) -> str:
        """Return why there is no such controller, for people."""

    # -- directories ----------------------------------------------------------------------------

    @abstractmethod
    def _open(self, top: str, group: str) -> None:
        """Let the cgroup of a group below `top` have cgroups. Raises OSError."""

    def _open_groups(self, groups: Sequence[str]) -> None:
        """Make those of these groups that are missing: pools, and in them that of the user. They
        stay as long as the launcher. Raises JobGroupGone, OSError."""
        above = [*accumulate(groups, "{}/{}".format)]
        if self._groups.issuperset(above):
            return
        missing = [group for group in above if group not in self._groups]
        for top in self._tops:
            for group in missing:
                with suppress(FileExistsError):
                    _make(f"{top}/{group}")
                self._open(top, group)
        self._groups.update(missing)
        for group in missing:
            self._weigh(group)

    def _weigh(self, group: str) -> None:
        """Give a group its weight, if there is such a group and it has one."""
        part = self._parts.get(group)
        if part is not None and "cpu" in self._parents:
            with unless_gone():
                path = f"{self._parents['cpu']}/{group}/{self.weight_file}"
                put(path, str(self._weight_of(part)))

    def _remove_groups(self) -> None:
        """Remove the groups that have no attempt, not even one whose runner is about to make its
        cgroup."""
        self._groups.clear()
        in_use = {f"{os.path.dirname(place)}/" for place in self._places.values()}
        for top in self._tops:
            for group in reversed(cgroups_of(top)[1]):
                if not any(each.startswith(f"{group}/") for each in in_use):
                    with suppress(OSError):
                        os.rmdir(f"{top}/{group}")

    def _place(self, key: Key) -> str:
        return self._places.get(key) or cgroup_name(key)

    def _directory(self, controller: str, key: Key) -> str:
        return f"{self._parents[controller]}/{self._place(key)}"

    def _directories(self, key: Key) -> list[str]:
        place = self._place(key)
        return [f"{top}/{place}" for top in self._tops]

    def _removed(self, key: Key) -> list[str]:
        """Return the attempt's directories in the order in which they are removed."""
        # The one in which they are frozen is needed until the others are empty.
        return self._directories(key)[::-1]

    def _members(self, key: Key) -> Members:
        return self.members_of(*self._directories(key))

    def _weight_of(self, cores_milli: int) -> int:
        least, _, most = self.weights
        return weight_of(cores_milli, self._weight, least, most)

    def _open_pins(self) -> tuple[Pins | None, str]:
        """Return the pins, or the reason why pinning is not available."""
        for name in ("cpu", "cpuset"):
            if name not in self._mounts:
                return None, self._lacks(name)
        cpusets = Cpusets(self._parents["cpuset"], self._place, is_v1=self.members_of is MembersV1)
        machine = cores.read_machine(cpusets.cpus() & cores.usable_cpus())
        return Pins(cpusets, machine), ""


def _make(directory: str) -> None:
    """Make a cgroup, which must not be there: stale limits and peaks are not to be reused. Raises
    JobGroupGone, OSError."""
    try:
        os.mkdir(directory, CGROUP_MODE)
    except FileNotFoundError:
        raise _gone(os.path.dirname(directory)) from None


def _gone(directory: str) -> JobGroupGone:
    return JobGroupGone(f"{directory} has vanished; who ended it has ended its jobs")
