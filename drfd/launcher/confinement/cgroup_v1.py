"""Job cgroups on cgroup v1: one directory per attempt below each controller.

Kernel documents: cgroup-v1/*.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from os.path import exists
from pathlib import Path

from drfd.launcher.attempt_files import Key
from drfd.launcher.confinement.cgroup_files import (
    counters_v1,
    setting,
    whole_pages,
)
from drfd.launcher.confinement.cgroups import Cgroups
from drfd.launcher.confinement.cores import PERIOD_US, open_v1
from drfd.launcher.confinement.device_hiding import HiddenByController
from drfd.launcher.confinement.interface import (
    CgroupPlan,
    CgroupSetting,
    Counter,
    LimitFailed,
)
from drfd.launcher.confinement.processes import MembersV1
from drfd.launcher.protocol import AttemptLimits, Devices, DiskLimit
from drfd.launcher.system.files import put
from drfd.linux.device_nodes import DeviceNode

#: Controllers without which no job is started. Of the optional ones, cpuacct serves accounting,
#: blkio disk limits, and cpuset pinned CPUs.
REQUIRED = ("cpu", "memory", "pids", "freezer")
OPTIONAL = ("blkio", "cpuacct", "cpuset")
USED = REQUIRED + OPTIONAL
_SIZE, _SWAP = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
#: The limit of buffers of sockets, of UDP, too (kernel: cgroup-v1/memory.rst, section 2.7).
_SOCKETS = "memory.kmem.tcp.limit_in_bytes"


class CgroupV1(Cgroups):
    kind = "cgroup-v1"
    disks = "blkio"
    #: The usual one is the kernel's value in a new cgroup.
    weight_file = "cpu.shares"
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
        self._devices, self.hides_in_place = devices, devices.is_shared
        super().__init__(mounts, group)
        memory = self._parents["memory"]
        #: Files that take a job's memory limit. Buffers of sockets count apart here, and without a
        #: limit of their own not at all. Memory and swap together are no more than memory alone.
        #: Not all kernels have both.
        self._sizes = [_SIZE, *(name for name in (_SOCKETS, _SWAP) if exists(f"{memory}/{name}"))]
        with suppress(OSError):
            # Jobs' cgroups begin with it.
            put(f"{memory}/memory.swappiness", "0")

    def controls(self) -> dict[str, str]:
        disk = "not controlled: the kernel has no blkio controller"
        if "blkio" in self._mounts:
            disk = "enforced"
        return {
            "cores": "enforced",
            "memory": "enforced"
            if _SOCKETS in self._sizes
            else f"enforced: without buffers of sockets, as the kernel has no {_SOCKETS}",
            "read": disk,
            "write": f"{disk}: direct I/O only; cgroup v1 does not attribute buffered writes"
            if disk == "enforced"
            else disk,
            "processes": "enforced",
        }

    def mounts(self) -> dict[str, str]:
        return dict(self._mounts)

    def hiding(self) -> tuple[bool, str]:
        return self._devices.hiding()

    def plan(
        self, key: Key, limits: AttemptLimits, devices: Devices, *, is_pinned: bool
    ) -> CgroupPlan:
        memory = self._directory("memory", key)
        # A thread that moves itself alone, by 0 in `tasks`, does not take the lock that stops all
        # forks and exits (since Linux 5.5). For that lock a write to `cgroup.procs` may wait 20 ms:
        # an RCU grace period, if nothing has been moved in the last 30 ms (kernel/cgroup/cgroup.c,
        # cgroup_procs_write_start).
        return (
            super()
            .plan(key, limits, devices, is_pinned=is_pinned)
            ._replace(
                entries=[f"{directory}/tasks" for directory in self._entered(key)],
                freezer=f"{self._directory('freezer', key)}/freezer.state",
                oom_control=f"{memory}/memory.oom_control",
                event_control=f"{memory}/cgroup.event_control",
            )
        )

    def _entered(self, key: Key) -> Iterator[str]:
        """Yield the directories in the order in which a process enters them."""
        memory = self._directory("memory", key)
        # The last one counts what is opened for the others.
        yield from (one for one in self._directories(key) if one != memory)
        yield from self._devices.entrance(key)
        yield memory

    def _counters(self, key: Key) -> list[Counter]:
        return counters_v1({name: self._directory(name, key) for name in self._mounts})

    def _removed(self, key: Key) -> list[str]:
        return [*self._devices.directories(key), *super()._removed(key)]

    def leftovers(self) -> list[Key]:
        return sorted({*super().leftovers(), *self._devices.leftovers()})

    def close(self) -> None:
        super().close()
        self._devices.close()

    def _members(self, key: Key) -> MembersV1:
        return MembersV1(*self._directories(key), *self._devices.directories(key))

    def _lacks(self, controller: str) -> str:
        return self._why_no_pins

    def _hide(self, key: Key, hidden: frozenset[DeviceNode]) -> None:
        self._devices.hide(key, self._place(key), hidden)

    def _open(self, top: str, group: str) -> None:
        if top == self._parents.get("cpuset"):
            open_v1(self._mounts["cpuset"], f"{self._group}/{group}")

    def _limits(self, key: Key, limits: AttemptLimits, devices: Devices) -> list[CgroupSetting]:
        if limits.disks and "blkio" not in self._mounts:
            raise LimitFailed("disk limits need the blkio controller, which this kernel lacks")
        memory, size = self._directory("memory", key), whole_pages(limits.memory_bytes)
        return [
            *(setting(memory, name, size) for name in self._sizes),
            setting(
                self._directory("cpu", key), self.weight_file, self._weight_of(limits.cores_milli)
            ),
            setting(self._directory("pids", key), "pids.max", limits.pids),
        ]

    def _quota(self, key: Key, quota_us: int) -> list[CgroupSetting]:
        cpu = self._directory("cpu", key)
        return [
            setting(cpu, "cpu.cfs_period_us", PERIOD_US),
            setting(cpu, "cpu.cfs_quota_us", quota_us),
        ]

    def _disk(self, key: Key, disk: DiskLimit) -> list[CgroupSetting]:
        block = self._directory("blkio", key)
        rates = {"read": disk.read_bps, "write": disk.write_bps}
        return [
            setting(block, f"blkio.throttle.{name}_bps_device", f"{disk.device} {rate}")
            for name, rate in rates.items()
            if rate
        ]
