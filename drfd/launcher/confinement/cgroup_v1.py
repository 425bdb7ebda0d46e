"""Job cgroups on cgroup v1: one directory per attempt below each controller.

The file descriptors are cgroupspy's. Its trees and `create_cgroup` (0.2.3) are not used: they walk
the whole hierarchy, and adopt directories with stale limits. Kernel documents: cgroup-v1/*.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from drfd.launcher.attempt_files import Attempt, Key
from drfd.launcher.confinement.cgroup_files import (
    BlockIO,
    CpuFiles,
    Memory,
    Pids,
    count_v1,
    oom_kills_v1,
    verify,
)
from drfd.launcher.confinement.cgroups import Cgroups
from drfd.launcher.confinement.cores import PERIOD_US, open_v1, quota_us
from drfd.launcher.confinement.device_hiding import HiddenByController
from drfd.launcher.confinement.interface import WRITTEN, Counted, Entrance, Killing, LimitFailed
from drfd.launcher.confinement.processes import MembersV1, remove_all
from drfd.launcher.protocol import AttemptLimits, Devices, DiskLimit
from drfd.launcher.system.files import Plain
from drfd.linux.device_nodes import DeviceNode

#: Controllers without which no job is started. Of the optional ones, cpuacct serves accounting,
#: blkio disk limits, and cpuset pinned CPUs.
REQUIRED = ("cpu", "memory", "pids", "freezer")
OPTIONAL = ("blkio", "cpuacct", "cpuset")
USED = REQUIRED + OPTIONAL
#: The limit of buffers of sockets, of UDP, too (kernel: cgroup-v1/memory.rst, section 2.7).
_SOCKETS = "memory.kmem.tcp.limit_in_bytes"


class CgroupV1(Cgroups):
    kind = "cgroup-v1"
    disks = "blkio"
    #: The usual one is the kernel's value of cpu.shares in a new cgroup.
    weights = 2, 1024, 1 << 18
    members_of = MembersV1

    def __init__(self, mounts: dict[str, str], group: str, devices: HiddenByController) -> None:
        """`mounts` maps each controller to its mount point. `group` is the launcher's directory
        below each mount point, made if missing. Raises OSError if it cannot be made."""
        mounts = dict(mounts)
        for mount in set(mounts.values()):
            Path(mount, group).mkdir(parents=True, exist_ok=True)
        self._why_no_pins = "no cpuset controller is mounted"
        if "cpuset" in mounts:
            try:
                open_v1(mounts["cpuset"], group)
            except OSError as error:
                # No job could enter a cpuset there.
                self._why_no_pins = f"{error.filename or mounts['cpuset']}: {error.strerror}"
                del mounts["cpuset"]
        self._devices = devices
        #: What has been seen in a new cgroup and need not be looked for in every other: settings
        #: with the wanted value (`_begins_with`), and a file that not all kernels have.
        self._given: set[str] = set()
        super().__init__(mounts, group)
        with suppress(OSError):
            # Each job's is set where this is not possible.
            Memory(self._parent("memory")).swappiness = 0

    def controls(self) -> dict[str, str]:
        disk = "not controlled: the kernel has no blkio controller"
        if "blkio" in self._mounts:
            disk = "enforced"
        return {
            "cores": "enforced",
            "memory": "enforced"
            if self._has(self._parent("memory"), _SOCKETS)
            else f"enforced: without buffers of sockets, as the kernel has no {_SOCKETS}",
            "read": disk,
            "write": f"{disk}: direct I/O only; cgroup v1 does not attribute buffered writes"
            if disk == "enforced"
            else disk,
            "processes": "enforced",
        }

    def mounts(self) -> dict[str, str]:
        return dict(self._mounts)

    def adopt(self, key: Key, attempt: Attempt | None) -> None:
        self._devices.adopt(key, self._members(key).pids)

    def limitable_gpus(self) -> frozenset[str]:
        return frozenset()

    def hiding(self) -> tuple[str, str]:
        return self._devices.hiding()

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

    def oom_kills(self, key: Key) -> tuple[bool, bool]:
        return oom_kills_v1(self._directory("memory", key))

    def counted(self, key: Key) -> Counted:
        return count_v1({name: self._directory(name, key) for name in self._mounts})

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
        if not (super().remove(key) and all(map(remove_all, self._devices.directories(key)))):
            return False
        self._devices.gone(key)
        return True

    def leftovers(self) -> list[Key]:
        return sorted({*super().leftovers(), *self._devices.leftovers()})

    def close(self) -> None:
        for mount in self._hierarchies():
            with suppress(OSError):
                # It fails if jobs still run in it, or if it is gone.
                os.rmdir(self._below(mount))
        self._devices.close()

    def _lacks(self, controller: str) -> str:
        return self._why_no_pins

    def _hide(self, key: Key, hidden: frozenset[DeviceNode]) -> None:
        self._devices.hide(key, hidden)

    def _limit(self, key: Key, limits: AttemptLimits, devices: Devices) -> None:
        self._limit_memory(key, limits.memory_bytes)
        cpu, shares = CpuFiles(self._directory("cpu", key)), self._weight_for(limits)
        _, usual, _ = self.weights
        if shares != usual or not self._begins_with(cpu, "shares", usual):
            cpu.shares = shares
            verify("cpu.shares", shares, cpu.shares)
        self._cores.limit(key, limits, devices.numa_nodes)
        self._limit_pids(key, limits.pids)
        for disk in limits.disks:
            self._limit_disk(key, disk)

    def _set_quota(self, key: Key, quota_us: int) -> None:
        """Give a cgroup its first quota. Only later can the kernel change the period: it doubles
        both for a cgroup whose timer comes late (sched_cfs_period_timer in kernel/sched/fair.c)."""
        cpu = CpuFiles(self._directory("cpu", key))
        if not self._begins_with(cpu, "cfs_period_us", PERIOD_US):
            cpu.cfs_period_us = PERIOD_US
            verify("cpu.cfs_period_us", PERIOD_US, cpu.cfs_period_us)
        cpu.cfs_quota_us = quota_us
        verify("cpu.cfs_quota_us", quota_us, cpu.cfs_quota_us)

    def _move_quota(self, key: Key, cores_milli: int) -> None:
        """The kernel may have doubled the cgroup's period (`_set_quota`), or doubles it just now: a
        quota for the shorter period would be half of what is wanted."""
        cpu, period_us = CpuFiles(self._directory("cpu", key)), 0
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
