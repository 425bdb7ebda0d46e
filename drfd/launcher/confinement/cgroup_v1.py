"""Job cgroups on cgroup v1: one directory per attempt below each controller.

The file descriptors are cgroupspy's. Its trees and `create_cgroup` (0.2.3) are not used: they walk
the whole hierarchy, and adopt directories with stale limits. Kernel documents: cgroup-v1/*.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from drfd.launcher.attempt_files import Attempt, Key, cgroup_key, cgroup_name
from drfd.launcher.confinement import cores
from drfd.launcher.confinement.cgroup_files import (
    BlockIO,
    CpuFiles,
    Memory,
    Pids,
    ancestors,
    count_v1,
    explain,
    limit_processes,
    oom_kills_v1,
    verify,
)
from drfd.launcher.confinement.cores import (
    PERIOD_US,
    Cores,
    Cpusets,
    Pins,
    open_v1,
    quota_us,
    weight_of,
)
from drfd.launcher.confinement.device_hiding import HiddenByController
from drfd.launcher.confinement.interface import (
    LENT_CORES,
    LENT_DISKS,
    WRITTEN,
    Counted,
    Entrance,
    Killing,
    LimitFailed,
    insist_on_entry,
    reach_before_devices,
    reach_before_limits,
)
from drfd.launcher.confinement.processes import MembersV1, first_process, remove_all
from drfd.launcher.protocol import AttemptLimits, Devices, DiskLimit
from drfd.launcher.system.files import Plain, put, unless_gone

#: Controllers without which no job is started. Of the optional ones, cpuacct serves accounting,
#: blkio disk limits, and cpuset pinned CPUs.
REQUIRED = ("cpu", "memory", "pids", "freezer")
OPTIONAL = ("blkio", "cpuacct", "cpuset")
USED = REQUIRED + OPTIONAL
#: The kernel's value of cpu.shares in a new cgroup: that of a job of one core.
_USUAL_SHARES = 1024
#: The kernel's bounds of cpu.shares.
_LEAST_SHARES, _MOST_SHARES = 2, 1 << 18
#: The limit of buffers of sockets, of UDP, too (kernel: cgroup-v1/memory.rst, section 2.7).
_SOCKETS = "memory.kmem.tcp.limit_in_bytes"


class CgroupV1:
    kind = "cgroup-v1"

    def __init__(self, mounts: dict[str, str], group: str, devices: HiddenByController) -> None:
        """`mounts` maps each controller to its mount point. `group` is the launcher's directory
        below each mount point, made if missing. Raises OSError if it cannot be made."""
        self._group = group
        self._mounts = dict(mounts)
        for mount in self._hierarchies():
            Path(mount, group).mkdir(parents=True, exist_ok=True)
        self._devices = devices
        self._cores = Cores(self._open_pins(), self._set_quota)
        #: cpu.shares per core of a job.
        self._shares = min(_USUAL_SHARES, _MOST_SHARES // (os.cpu_count() or 1))
        #: What has been seen in a new cgroup and need not be looked for in every other: settings
        #: with the wanted value (`_begins_with`), and a file that not all kernels have.
        self._given: set[str] = set()
        with suppress(OSError):
            # Each job's is set where this is not possible.
            Memory(f"{mounts['memory']}/{group}").swappiness = 0

    def controls(self) -> dict[str, str]:
        disk = "not controlled: the kernel has no blkio controller"
        if "blkio" in self._mounts:
            disk = "enforced"
        return {
            "cores": "enforced",
            "memory": "enforced"
            if self._has(f"{self._mounts['memory']}/{self._group}", _SOCKETS)
            else f"enforced: without buffers of sockets, as the kernel has no {_SOCKETS}",
            "read": disk,
            "write": f"{disk}: direct I/O only; cgroup v1 does not attribute buffered writes"
            if disk == "enforced"
            else disk,
            "processes": "enforced",
        }

    def cores(self) -> dict[str, str]:
        return self._cores.controls()

    def ancestors(self) -> list[str]:
        return ancestors(self._mounts["pids"], self._group)

    def limit_processes(self, processes: int) -> None:
        limit_processes(f"{self._mounts['pids']}/{self._group}", processes)

    def mounts(self) -> dict[str, str]:
        return dict(self._mounts)

    def cgroup_path(self, key: Key) -> str | None:
        return f"{self._group}/{cgroup_name(key)}"

    def adopt(self, key: Key, attempt: Attempt | None) -> None:
        self._devices.adopt(key, self._members(key).pids)

    def limitable_gpus(self) -> frozenset[str]:
        return frozenset()

    def hiding(self) -> tuple[str, str]:
        return self._devices.hiding()

    def create(self, key: Key, limits: AttemptLimits, devices: Devices) -> None:
        try:
            for directory in self._directories(key):
                # mkdir fails on an existing directory: stale limits and peaks must not be reused.
                os.mkdir(directory)
            reach_before_limits()
            self._limit_memory(key, limits.memory_bytes)
            self._limit_cpu(key, limits, devices.numa_nodes)
            self._limit_pids(key, limits.pids)
            for disk in limits.disks:
                self._limit_disk(key, disk)
            if devices.hidden:
                reach_before_devices()
                self._devices.hide(key, devices.hidden)
        except (OSError, LimitFailed) as error:
            self.remove(key)
            if isinstance(error, OSError):
                raise LimitFailed(explain(error)) from error
            raise

    def lendable(self) -> tuple[str, ...]:
        return (LENT_CORES, LENT_DISKS) if "blkio" in self._mounts else (LENT_CORES,)

    def lend(self, key: Key, cores_milli: int | None, disks: tuple[DiskLimit, ...]) -> None:
        if cores_milli is not None:
            self._move_quota(CpuFiles(self._directory("cpu", key)), cores_milli)
        for disk in disks:
            self._limit_disk(key, disk)

    def entry(self) -> tuple[str, str]:
        return (
            WRITTEN,
            "a job's process enters its cgroups by itself, without a wait for the kernel",
        )

    def entrance(self, key: Key, limits: AttemptLimits, uid: int) -> Entrance:
        # A thread that moves itself alone, by 0 in `tasks`, does not take the lock that stops all
        # forks and exits (since Linux 5.5). For that lock a write to `cgroup.procs` may wait 20 ms:
        # an RCU grace period, if nothing has been moved in the last 30 ms (kernel/cgroup/cgroup.c,
        # cgroup_procs_write_start).
        return Entrance(files=tuple(f"{directory}/tasks" for directory in self._entered(key)))

    def _entered(self, key: Key) -> Iterator[str]:
        """Yield the directories in the order in which a process enters them."""
        memory = self._directory("memory", key)
        # The last one counts what is opened for the others.
        yield from (one for one in self._directories(key) if one != memory)
        yield from self._devices.entrance(key)
        yield memory

    def join(self, key: Key, pid: int) -> None:
        insist_on_entry(self._directory("pids", key), pid)
        for directory in self._entered(key):
            put(f"{directory}/cgroup.procs", str(pid))

    def oom_kills(self, key: Key) -> tuple[bool, bool]:
        return oom_kills_v1(self._directory("memory", key))

    def counted(self, key: Key) -> Counted:
        return count_v1({name: self._directory(name, key) for name in self._mounts})

    def signal(self, key: Key, attempt: Attempt | None, number: int) -> None:
        self._cores.thaw(key)
        self._members(key).signal(number, first_process(attempt))

    def freeze(self, key: Key, attempt: Attempt | None) -> bool:
        is_frozen = self._members(key).freeze()
        if is_frozen:
            self._cores.frozen(key)
        return is_frozen

    def thaw(self, key: Key, attempt: Attempt | None) -> None:
        with unless_gone():
            self._cores.thaw(key)
            self._members(key).thaw()

    def members(self, key: Key, attempt: Attempt | None) -> list[int]:
        return self._members(key).pids()

    def kill_pass(self, key: Key, attempt: Attempt | None) -> bool:
        members = self._members(key)
        if not members.is_populated():
            return True
        members.kill()
        return not members.is_populated()

    def killing(self, key: Key) -> Killing:
        freezer, memory = self._directory("freezer", key), self._directory("memory", key)
        state = f"{freezer}/freezer.state"
        return Killing(
            freezer=state, freeze="FROZEN", thaw="THAWED", state=state, frozen="FROZEN",
            members=f"{freezer}/cgroup.procs",
            oom_control=f"{memory}/memory.oom_control",
            event_control=f"{memory}/cgroup.event_control",
        )  # fmt: skip

    def remove(self, key: Key) -> bool:
        for directory in (*self._directories(key), *self._devices.directories(key)):
            if not remove_all(directory):
                return False
        self._devices.gone(key)
        self._cores.gone(key)
        return True

    def leftovers(self) -> list[Key]:
        names = {
            name for mount in self._hierarchies() for name in os.listdir(f"{mount}/{self._group}")
        }
        keys = {key for name in names if (key := cgroup_key(name)) is not None}
        return sorted(keys.union(self._devices.leftovers()))

    def close(self) -> None:
        for mount in self._hierarchies():
            with suppress(OSError):
                # It fails if jobs still run in it, or if it is gone.
                os.rmdir(f"{mount}/{self._group}")
        self._devices.close()

    def _open_pins(self) -> Pins | str:
        """Return the pins, or the reason why pinning is not available."""
        if "cpuset" not in self._mounts:
            return "no cpuset controller is mounted"
        mount = self._mounts["cpuset"]
        cpusets = Cpusets(f"{mount}/{self._group}", is_v1=True)
        try:
            open_v1(mount, self._group)
            machine = cores.read_machine(cpusets.cpus() & cores.usable_cpus())
        except OSError as error:
            # No job could enter a cpuset there.
            del self._mounts["cpuset"]
            return f"{error.filename or mount}: {error.strerror}"
        return Pins(
            cpusets,
            machine,
            is_frozen=lambda key: self._members(key).are_frozen(),
            memory_bytes=self._memory_limit,
        )

    def _limit_cpu(self, key: Key, limits: AttemptLimits, near: frozenset[int]) -> None:
        cpu = CpuFiles(self._directory("cpu", key))
        shares = weight_of(limits.cores_milli, self._shares, _LEAST_SHARES, _MOST_SHARES)
        if shares != _USUAL_SHARES or not self._begins_with(cpu, "shares", _USUAL_SHARES):
            cpu.shares = shares
            verify("cpu.shares", shares, cpu.shares)
        self._cores.limit(key, limits, near)

    def _set_quota(self, key: Key, quota_us: int) -> None:
        """Give a cgroup its first quota. Only later can the kernel change the period: it doubles
        both for a cgroup whose timer comes late (sched_cfs_period_timer in kernel/sched/fair.c)."""
        cpu = CpuFiles(self._directory("cpu", key))
        if not self._begins_with(cpu, "cfs_period_us", PERIOD_US):
            cpu.cfs_period_us = PERIOD_US
            verify("cpu.cfs_period_us", PERIOD_US, cpu.cfs_period_us)
        cpu.cfs_quota_us = quota_us
        verify("cpu.cfs_quota_us", quota_us, cpu.cfs_quota_us)

    def _move_quota(self, cpu: CpuFiles, cores_milli: int) -> None:
        """Change the quota of a cgroup whose period the kernel may have doubled (`_set_quota`), or
        doubles just now: a quota for the shorter period would be half of what is wanted."""
        period_us = 0
        while period_us != cpu.cfs_period_us:
            period_us = cpu.cfs_period_us
            wanted = quota_us(cores_milli, period_us)
            there = cpu.cfs_quota_us
            if there != wanted:
                cpu.cfs_quota_us = wanted
                there = cpu.cfs_quota_us
        verify("cpu.cfs_quota_us", wanted, there)

    def _begins_with(self, files: Plain, name: str, value: int) -> bool:
        """Return whether the setting of a new cgroup has this value already. What has been seen
        once holds for every new cgroup: the kernel's default, or what `__init__` has set for the
        group, which hands it down."""
        if name not in self._given and getattr(files, name) == value:
            self._given.add(name)
        return name in self._given

    def _memory_limit(self, key: Key) -> int:
        try:
            return int(Memory(self._directory("memory", key)).limit_in_bytes)
        except FileNotFoundError:
            return 0

    def _limit_memory(self, key: Key, limit_bytes: int) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        rounded = limit_bytes // page * page
        memory = Memory(self._directory("memory", key))
        memory.limit_in_bytes = rounded
        if not self._begins_with(memory, "swappiness", 0):
            memory.swappiness = 0
        # Buffers of sockets count apart here, and without a limit of their own not at all.
        if self._has(memory.directory, _SOCKETS):
            memory.sockets_limit_in_bytes = rounded
            verify(_SOCKETS, rounded, memory.sockets_limit_in_bytes)
        # Memory and swap together no more than memory alone; absent without swap accounting.
        if self._has(memory.directory, "memory.memsw.limit_in_bytes"):
            memory.memsw_limit_in_bytes = rounded
            verify("memory.memsw.limit_in_bytes", rounded, memory.memsw_limit_in_bytes)
        verify("memory.limit_in_bytes", rounded, memory.limit_in_bytes)

    def _has(self, directory: str, name: str) -> bool:
        """Return whether a cgroup has this file, which not all kernels have."""
        if name not in self._given and os.path.exists(f"{directory}/{name}"):
            self._given.add(name)
        return name in self._given

    def _limit_pids(self, key: Key, most: int) -> None:
        pids = Pids(self._directory("pids", key))
        pids.max = most
        verify("pids.max", str(most), pids.max)

    def _limit_disk(self, key: Key, disk: DiskLimit) -> None:
        if "blkio" not in self._mounts:
            raise LimitFailed("disk limits need the blkio controller, which this kernel lacks")
        block = BlockIO(self._directory("blkio", key))
        for name, rate in (("read_bps", disk.read_bps), ("write_bps", disk.write_bps)):
            if not rate:
                continue
            setattr(block, name, [f"{disk.device} {rate}"])
            wanted = f"{disk.device} {rate}"
            lines = [str(line) for line in getattr(block, name)]
            # The file lists the limits of all disks.
            mine = [line for line in lines if line.split()[0] == disk.device]
            verify(f"blkio {name} of disk {disk.device}", [wanted], mine)

    def _members(self, key: Key) -> MembersV1:
        return MembersV1(self._directory("freezer", key))

    def _hierarchies(self) -> list[str]:
        """Mount points, each once: controllers may share one (cpu,cpuacct)."""
        return list(dict.fromkeys(self._mounts.values()))

    def _directory(self, controller: str, key: Key) -> str:
        return f"{self._mounts[controller]}/{self._group}/{cgroup_name(key)}"

    def _directories(self, key: Key) -> list[str]:
        return [f"{mount}/{self._group}/{cgroup_name(key)}" for mount in self._hierarchies()]
