"""Job cgroups on cgroup v2: one directory per attempt, below the launcher's (detect.py).

Kernel document: cgroup-v2.rst.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from drfd.launcher.attempt_files import Key
from drfd.launcher.confinement.cgroup_files import (
    counters_v2,
    regions_of_gpus,
    setting,
    whole_pages,
)
from drfd.launcher.confinement.cgroups import Cgroups
from drfd.launcher.confinement.cores import PERIOD_US
from drfd.launcher.confinement.device_hiding import HiddenByBpf
from drfd.launcher.confinement.interface import (
    CgroupPlan,
    CgroupSetting,
    Counter,
)
from drfd.launcher.confinement.processes import MembersV2
from drfd.launcher.protocol import QUOTA, UNIFIED, AttemptLimits, Devices, DiskLimit
from drfd.launcher.system.files import put
from drfd.linux.device_nodes import DeviceNode

#: Controllers without which jobs are not confined; an ordinary user may lack the optional ones.
REQUIRED = ("memory", "pids")
OPTIONAL = ("cpu", "io", "cpuset", "dmem")


class CgroupV2(Cgroups):
    kind = "cgroup-v2"
    disks = "io"
    weight_file = "cpu.weight"
    #: With the usual one, hundredths of a core are told apart.
    weights = 1, 100, 10_000
    members_of = MembersV2

    def __init__(
        self, mount: str, group: str, controllers: frozenset[str], release: Callable[[], None]
    ) -> None:
        """`group` is the parent of all jobs, below `mount`; `controllers` are enabled for its
        children. `release` gives the group back when it is empty and the launcher ends."""
        self._mount = mount
        self._release = release
        self._devices = HiddenByBpf(mount, group)
        self._controllers = " ".join(f"+{name}" for name in sorted({*controllers, *REQUIRED}))
        named = {*controllers, *REQUIRED, "freezer"}
        super().__init__(dict.fromkeys(named, mount), group)

    def controls(self) -> dict[str, str]:
        disk = "enforced"
        if "io" not in self._mounts:
            disk = f"measured: stopped when far over for long; {self._lacks('io')}"
        memory = "enforced"
        if not os.path.exists(f"{self._tops[0]}/memory.peak"):
            memory += ": peaks are the highest samples, this kernel records none"
        return {
            "cores": self.cores()[QUOTA],
            "memory": memory,
            "read": disk,
            "write": disk,
            "processes": "enforced",
        }

    def mounts(self) -> dict[str, str]:
        return {UNIFIED: self._mount}

    def limitable_gpus(self) -> frozenset[str]:
        if "dmem" not in self._mounts:
            return frozenset()
        return frozenset(regions_of_gpus(self._parents["dmem"]))

    def hiding(self) -> tuple[bool, str]:
        return self._devices.hiding()

    def plan(
        self, key: Key, limits: AttemptLimits, devices: Devices, *, is_pinned: bool
    ) -> CgroupPlan:
        # Out of memory, the kernel kills all of them by itself (memory.oom.group).
        found = super().plan(key, limits, devices, is_pinned=is_pinned)
        return found._replace(cgroup=self._directory_of(key))

    def _counters(self, key: Key) -> list[Counter]:
        return counters_v2(self._directory_of(key))

    def close(self) -> None:
        super().close()
        if not os.path.exists(self._tops[0]):
            self._release()

    def _limits(self, key: Key, limits: AttemptLimits, devices: Devices) -> list[CgroupSetting]:
        group = self._directory_of(key)
        found = {"memory.max": whole_pages(limits.memory_bytes), "pids.max": limits.pids}
        # The file is absent without swap accounting.
        if os.path.exists(f"{self._parents['memory']}/memory.swap.max"):
            found["memory.swap.max"] = 0
        found["memory.oom.group"] = 1
        if "cpu" in self._mounts:
            found[self.weight_file] = self._weight_of(limits.cores_milli)
        settings = [setting(group, name, value) for name, value in found.items()]
        # The use of GPUs that the kernel cannot limit is measured alone.
        has_regions = devices.memory and "dmem" in self._mounts
        regions = regions_of_gpus(self._parents["dmem"]) if has_regions else {}
        return settings + [
            setting(group, "dmem.max", f"{regions[pci]} {whole_pages(size)}")
            for pci, size in devices.memory
            if pci in regions
        ]

    def _quota(self, key: Key, quota_us: int) -> list[CgroupSetting]:
        return [setting(self._directory_of(key), "cpu.max", f"{quota_us} {PERIOD_US}")]

    def _lacks(self, controller: str) -> str:
        return f"the {controller} controller is not given to us in /{self._group}"

    def _hide(self, key: Key, hidden: frozenset[DeviceNode]) -> None:
        self._devices.hide(self._directory_of(key), hidden)

    def _open(self, top: str, group: str) -> None:
        put(f"{top}/{group}/cgroup.subtree_control", self._controllers)

    def _entered(self, key: Key) -> list[str]:
        return [self._directory_of(key)]

    def _disk(self, key: Key, disk: DiskLimit) -> list[CgroupSetting]:
        text = f"{disk.device} rbps={disk.read_bps or 'max'} wbps={disk.write_bps or 'max'}"
        return [setting(self._directory_of(key), "io.max", text, f"{text} riops=max wiops=max")]

    def _directory_of(self, key: Key) -> str:
        return self._directory("memory", key)
