"""Job cgroups on cgroup v2: one directory per attempt, below the launcher's (detect.py).

Each limit is read back after it is set. Kernel document: cgroup-v2.rst.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from signal import SIGKILL

from drfd.common.signals import number_of, reached
from drfd.launcher.attempt_files import Attempt, Key, cgroup_name
from drfd.launcher.confinement import cores
from drfd.launcher.confinement.cgroup_files import (
    JobCgroup,
    ancestors,
    count_v2,
    keys_of,
    limit_processes,
    regions_of_gpus,
)
from drfd.launcher.confinement.cores import (
    PERIOD_US,
    Affinity,
    Cores,
    Cpusets,
    Pins,
    quota_us,
    weight_of,
)
from drfd.launcher.confinement.device_hiding import HiddenByBpf
from drfd.launcher.confinement.interface import (
    FORKED,
    LENT_CORES,
    LENT_DISKS,
    MOVED,
    Counted,
    Entrance,
    JobGroupGone,
    Killing,
    LimitFailed,
    insist_on_entry,
    reach_before_devices,
    reach_before_limits,
)
from drfd.launcher.confinement.processes import MembersV2, first_process, remove_all
from drfd.launcher.protocol import QUOTA, UNIFIED, AttemptLimits, Devices, DiskLimit
from drfd.launcher.system import process
from drfd.launcher.system.files import put, unless_gone
from drfd.linux import syscalls

#: Controllers without which jobs are not confined; an ordinary user may lack the optional ones.
REQUIRED = ("memory", "pids")
OPTIONAL = ("cpu", "io", "cpuset", "dmem")
#: The kernel's bounds of cpu.weight, and the weight of a job of one core where the bounds allow it:
#: then hundredths of a core are told apart.
_LEAST_WEIGHT, _MOST_WEIGHT, _USUAL_WEIGHT = 1, 10_000, 100


class CgroupV2:
    kind = "cgroup-v2"

    def __init__(
        self, mount: str, group: str, controllers: frozenset[str], release: Callable[[], None]
    ) -> None:
        """`group` is the parent of all jobs, below `mount`; `controllers` are enabled for its
        children. `release` gives the group back when it is empty and the launcher ends."""
        self._mount, self._group = mount, group
        self._parent = f"{mount}/{group}"
        self._controllers = controllers
        self._release = release
        self._affinity = Affinity()
        #: Why processes cannot be forked into a cgroup here; None if they can.
        self._why_moved = syscalls.why_no_fork_into()
        self._devices = HiddenByBpf(mount, group)
        self._cores = Cores(self._open_pins(), self._set_quota)
        #: cpu.weight per core of a job.
        self._weight = max(1, min(_USUAL_WEIGHT, _MOST_WEIGHT // (os.cpu_count() or 1)))

    def controls(self) -> dict[str, str]:
        disk = "enforced"
        if "io" not in self._controllers:
            disk = f"measured: stopped when far over for long; {self._lacks('io')}"
        memory = "enforced"
        if not os.path.exists(f"{self._parent}/memory.peak"):
            memory += ": peaks are the highest samples, this kernel records none"
        return {
            "cores": self.cores()[QUOTA],
            "memory": memory,
            "read": disk,
            "write": disk,
            "processes": "enforced",
        }

    def cores(self) -> dict[str, str]:
        if "cpu" not in self._controllers:
            return cores.affinity_controls(self._lacks("cpu"))
        return self._cores.controls()

    def ancestors(self) -> list[str]:
        return ancestors(self._mount, self._group)

    def limit_processes(self, processes: int) -> None:
        limit_processes(self._parent, processes)

    def mounts(self) -> dict[str, str]:
        return {UNIFIED: self._mount}

    def cgroup_path(self, key: Key) -> str | None:
        return f"{self._group}/{cgroup_name(key)}"

    def adopt(self, key: Key, attempt: Attempt | None) -> None:
        if "cpu" not in self._controllers:
            self._affinity.adopt(key, attempt)

    def limitable_gpus(self) -> frozenset[str]:
        if "dmem" not in self._controllers:
            return frozenset()
        return frozenset(regions_of_gpus(JobCgroup(self._parent)))

    def hiding(self) -> tuple[str, str]:
        return self._devices.hiding()

    def create(self, key: Key, limits: AttemptLimits, devices: Devices) -> None:
        if "cpu" not in self._controllers:
            self._affinity.choose(key, limits)
        try:
            # mkdir fails on an existing directory: stale limits and peaks must not be reused.
            os.mkdir(self._directory(key))
        except FileNotFoundError:
            raise JobGroupGone(
                f"{self._parent} has vanished; who ended it has ended its jobs"
            ) from None
        except OSError as error:
            why = error.strerror
            if error.errno == errno.ENOSPC:
                why = "the kernel has no room for another cgroup (65535 memory cgroups at most)"
            raise LimitFailed(f"{self._directory(key)}: {why}") from error
        reach_before_limits()
        try:
            self._limit(key, limits, devices.numa_nodes)
            if devices.memory and "dmem" in self._controllers:
                self._limit_gpus(key, devices.memory)
            if devices.hidden:
                reach_before_devices()
                self._devices.hide(self._directory(key), devices.hidden)
        except (LimitFailed, OSError):
            self.remove(key)
            raise

    def lendable(self) -> tuple[str, ...]:
        found = {LENT_CORES: "cpu", LENT_DISKS: "io"}
        return tuple(what for what, name in found.items() if name in self._controllers)

    def lend(self, key: Key, cores_milli: int | None, disks: tuple[DiskLimit, ...]) -> None:
        group = self._cgroup(key)
        if cores_milli is not None and "cpu" in self._controllers:
            group.limit("cpu_max", (quota_us(cores_milli), PERIOD_US))
        if "io" in self._controllers:
            for disk in disks:
                self._limit_disk(group, disk)

    def entry(self) -> tuple[str, str]:
        why = self._why_moved
        if why is None:
            return (
                FORKED,
                "a job's process is forked into its cgroup, without a wait for the kernel",
            )
        slow = "a job's process is moved into its cgroup, for which the kernel may take 10 to 20 ms"
        cure = f"mount -o remount,favordynmods {self._mount} (Linux 6.0) avoids that"
        return MOVED, f"{slow}; {cure}, at some cost for every fork and exit; {why}"

    def entrance(self, key: Key, limits: AttemptLimits, uid: int) -> Entrance:
        directory, cpus = self._directory(key), self._affinity.cpus(key)
        if self._why_moved is None:
            return Entrance(cgroup=directory, cpus=cpus)
        return Entrance(files=(f"{directory}/cgroup.procs",), cpus=cpus)

    def join(self, key: Key, pid: int) -> None:
        directory = self._directory(key)
        insist_on_entry(directory, pid)
        put(f"{directory}/cgroup.procs", str(pid))
        cpus = self._affinity.cpus(key)
        if cpus is not None:
            os.sched_setaffinity(pid, cpus)

    def oom_kills(self, key: Key) -> tuple[bool, bool]:
        group = self._cgroup(key)
        with unless_gone():
            everywhere = group.memory_events
            # A limit that the job has set on a cgroup of its own, further in, does not count here.
            own = everywhere
            if os.path.exists(f"{self._directory(key)}/memory.events.local"):
                own = group.own_memory_events
            # "oom_kill" also counts kills by a shortage further out, which "oom" does not.
            over_limit = own["oom"] > 0 and everywhere["oom_kill"] > 0
            killed = over_limit or own["oom_kill"] > 0 or self._has_oomd_come(key)
            return killed, over_limit
        return False, False

    def counted(self, key: Key) -> Counted:
        return count_v2(self._directory(key))

    def signal(self, key: Key, attempt: Attempt | None, number: int) -> None:
        self._cores.thaw(key)
        members = self._members(key)
        first = first_process(attempt)
        members.signal(number, first)
        escaped = partial(members.escaped, attempt)
        process.signal_those(reached(escaped(), number, first), escaped, number_of(number))

    def freeze(self, key: Key, attempt: Attempt | None) -> bool:
        is_frozen = self._members(key).freeze()
        if is_frozen:
            self._cores.frozen(key)
        return is_frozen

    def thaw(self, key: Key, attempt: Attempt | None) -> None:
        self._cores.thaw(key)
        self._members(key).thaw()

    def members(self, key: Key, attempt: Attempt | None) -> list[int]:
        members = self._members(key)
        return [*members.pids(), *members.escaped(attempt)]

    def kill_pass(self, key: Key, attempt: Attempt | None) -> bool:
        members = self._members(key)
        if not members.is_populated():
            escaped = members.escaped(attempt)
            process.signal_those(escaped, partial(members.escaped, attempt), SIGKILL)
            return not escaped
        members.kill()
        return not members.is_populated()

    def killing(self, key: Key) -> Killing:
        return killing_in(self._directory(key))

    def remove(self, key: Key) -> bool:
        directory = self._directory(key)
        # A job of root's may have made cgroups inside its own.
        if not remove_all(directory):
            return False
        self._affinity.forget(key)
        self._cores.gone(key)
        return True

    def leftovers(self) -> list[Key]:
        return keys_of(self._parent)

    def close(self) -> None:
        try:
            os.rmdir(self._parent)
        except FileNotFoundError:
            pass
        except OSError:
            # Jobs still run in it.
            return
        self._release()

    def _limit(self, key: Key, limits: AttemptLimits, near: frozenset[int]) -> None:
        group = self._cgroup(key)
        page = os.sysconf("SC_PAGE_SIZE")
        group.limit("memory_max", limits.memory_bytes // page * page)
        # The file is absent without swap accounting.
        if os.path.exists(f"{self._directory(key)}/memory.swap.max"):
            group.limit("swap_max", 0)
        group.limit("oom_group", True)
        group.limit("pids_max", limits.pids)
        if "cpu" in self._controllers:
            weight = weight_of(limits.cores_milli, self._weight, _LEAST_WEIGHT, _MOST_WEIGHT)
            group.limit("cpu_weight", weight)
            self._cores.limit(key, limits, near)
        if "io" in self._controllers:
            for disk in limits.disks:
                self._limit_disk(group, disk)

    def _limit_gpus(self, key: Key, memory: tuple[tuple[str, int], ...]) -> None:
        """Limit the memory on these GPUs, of those that the kernel can limit. The use of others is
        measured alone."""
        group, page = self._cgroup(key), os.sysconf("SC_PAGE_SIZE")
        regions = regions_of_gpus(group)
        for pci, size in memory:
            if pci in regions:
                group.limit_region(regions[pci], size // page * page)

    def _set_quota(self, key: Key, quota_us: int) -> None:
        self._cgroup(key).limit("cpu_max", (quota_us, PERIOD_US))

    def _open_pins(self) -> Pins | str:
        """Return the pins, or the reason why pinning is not available."""
        if "cpuset" not in self._controllers:
            return self._lacks("cpuset")
        cpusets = Cpusets(self._parent, is_v1=False)
        return Pins(
            cpusets,
            cores.read_machine(cpusets.cpus() & cores.usable_cpus()),
            is_frozen=lambda key: self._members(key).are_frozen(),
            memory_bytes=self._memory_limit,
        )

    def _lacks(self, controller: str) -> str:
        return f"the {controller} controller is not given to us in /{self._group}"

    def _memory_limit(self, key: Key) -> int:
        with unless_gone():
            return self._cgroup(key).memory_max or 0
        return 0

    def _limit_disk(self, group: JobCgroup, disk: DiskLimit) -> None:
        rates = {"rbps": disk.read_bps, "wbps": disk.write_bps}
        group.limit_disk(disk.device, {name: rate for name, rate in rates.items() if rate})

    def _has_oomd_come(self, key: Key) -> bool:
        """Return whether systemd-oomd has killed the job for a shortage of the whole machine: it
        leaves an extended attribute on the cgroup."""
        try:
            return int(os.getxattr(self._directory(key), "user.oomd_ooms")) > 0
        except (OSError, ValueError):
            return False

    def _directory(self, key: Key) -> str:
        return f"{self._parent}/{cgroup_name(key)}"

    def _members(self, key: Key) -> MembersV2:
        return MembersV2(self._directory(key))

    def _cgroup(self, key: Key) -> JobCgroup:
        return JobCgroup(self._directory(key))


def killing_in(directory: str) -> Killing:
    """Return how the processes of the cgroup at `directory` are killed (`Confinement.killing`). Out
    of memory, the kernel kills all of them by itself (memory.oom.group)."""
    events, kill = f"{directory}/cgroup.events", f"{directory}/cgroup.kill"
    return Killing(
        # Kernels before 5.14 have no cgroup.kill.
        kill=kill if os.path.exists(kill) else None,
        freezer=f"{directory}/cgroup.freeze",
        freeze="1",
        thaw="0",
        state=events,
        frozen="frozen 1",
        members=f"{directory}/cgroup.procs",
        populated=events,
        empty="populated 0",
    )
