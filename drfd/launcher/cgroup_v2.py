"""Job cgroups on cgroup v2: one directory per attempt, below a parent that is ours (holder.py).

Of each limit, what the kernel has made of it is read back. Kernel document: cgroup-v2.rst.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from signal import SIGKILL

from drfd.launcher import affinity, process, topology
from drfd.launcher.affinity import Affinity
from drfd.launcher.attempts import Attempt, Key, cgroup_key, cgroup_name
from drfd.launcher.cgroup_v2_files import JobCgroup
from drfd.launcher.confinement import LimitFailed, PlaceGone, reach_before_limits
from drfd.launcher.cores import PERIOD_US, Cores
from drfd.launcher.counters import Counted, count_v2
from drfd.launcher.cpusets import Cpusets
from drfd.launcher.files import put
from drfd.launcher.members import MembersV2, remove_all
from drfd.launcher.pins import Pins
from drfd.launcher.protocol import QUOTA, UNIFIED, DiskLimit, Limits
from drfd.launcher.vanishing import unless_gone

#: Without these no job is confined; the others may be kept from an ordinary user.
REQUIRED = ("memory", "pids")
OPTIONAL = ("cpu", "io", "cpuset")


class CgroupV2:
    kind = "cgroup-v2"

    def __init__(
        self, mount: str, group: str, controllers: frozenset[str], release: Callable[[], None]
    ) -> None:
        """`group`: the parent of all jobs, below `mount`; `controllers` are enabled for its
        children. `release` gives it back once it is empty and we end."""
        self._mount, self._group = mount, group
        self._parent = f"{mount}/{group}"
        self._controllers = controllers
        self._release = release
        self._affinity = Affinity()
        #: An affinity is kept in memory, for lack of the controller.
        self.keeps_runners = "cpu" in controllers
        self._cores = Cores(self._open_pins(), self._set_quota)
        #: A job's weight for each of its cores: the kernel takes no more than 10000 in all.
        self._weight = max(1, min(100, 10_000 // (os.cpu_count() or 1)))

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
            return affinity.controls(self._lacks("cpu"))
        return self._cores.controls()

    def mounts(self) -> dict[str, str]:
        return {UNIFIED: self._mount}

    def cgroup_path(self, key: Key) -> str | None:
        return f"{self._group}/{cgroup_name(key)}"

    def adopt(self, key: Key, attempt: Attempt | None) -> None:
        if "cpu" not in self._controllers:
            self._affinity.adopt(key, attempt)

    def create(self, key: Key, limits: Limits) -> None:
        if "cpu" not in self._controllers:
            self._affinity.choose(key, limits)
        try:
            # Exclusive: limits and peaks of an earlier run must not be taken over.
            os.mkdir(self._directory(key))
        except FileNotFoundError:
            raise PlaceGone(
                f"{self._parent} has vanished; who ended it has ended its jobs"
            ) from None
        except OSError as error:
            why = error.strerror
            if error.errno == errno.ENOSPC:
                why = "the kernel has no room for another cgroup (65535 memory cgroups at most)"
            raise LimitFailed(f"{self._directory(key)}: {why}") from error
        reach_before_limits()
        try:
            self._limit(key, limits)
        except (LimitFailed, OSError):
            self.remove(key)
            raise

    def enter(self, key: Key, limits: Limits, uid: int, pid: int) -> None:
        path = f"{self._directory(key)}/cgroup.procs"
        try:
            put(path, str(pid))
        except OSError as error:
            raise LimitFailed(f"{path}: {error.strerror}") from error
        self._affinity.keep(key, pid)

    def oom_descriptor(self, key: Key) -> int | None:
        """None: memory.oom.group has the kernel kill all of the job at once."""
        return None

    def oom_kills(self, key: Key) -> tuple[bool, bool]:
        group = self._cgroup(key)
        with unless_gone():
            everywhere = group.memory_events
            # A limit further in, which the job has made for a part of itself, is its own affair.
            own = everywhere
            if os.path.exists(f"{self._directory(key)}/memory.events.local"):
                own = group.own_memory_events
            # Counts also kills by a shortage further out, of which "oom" says nothing.
            over_limit = own["oom"] > 0 and everywhere["oom_kill"] > 0
            killed = over_limit or own["oom_kill"] > 0 or self._has_oomd_come(key)
            return killed, over_limit
        return False, False

    def counted(self, key: Key) -> Counted:
        return count_v2(self._directory(key))

    def signal(self, key: Key, attempt: Attempt | None, number: int) -> None:
        self._cores.thaw(key)
        members = self._members(key)
        members.signal(number)
        process.signal_all(members.fled(attempt), number)

    def freeze(self, key: Key, attempt: Attempt | None) -> bool:
        is_frozen = self._members(key).freeze()
        if is_frozen:
            self._cores.frozen(key)
        return is_frozen

    def thaw(self, key: Key, attempt: Attempt | None) -> None:
        self._cores.thaw(key)
        self._members(key).thaw()

    def kill_pass(self, key: Key, attempt: Attempt | None) -> bool:
        members = self._members(key)
        if not members.is_populated():
            fled = members.fled(attempt)
            process.signal_all(fled, SIGKILL)
            return not fled
        members.kill()
        return not members.is_populated()

    def remove(self, key: Key) -> bool:
        directory = self._directory(key)
        # A job of root's may have made cgroups of its own in there.
        if not remove_all(directory):
            return False
        self._affinity.forget(key)
        self._cores.gone(key)
        return True

    def leftovers(self) -> list[Key]:
        try:
            names = os.listdir(self._parent)
        except FileNotFoundError:
            return []
        return sorted(key for name in names if (key := cgroup_key(name)) is not None)

    def close(self) -> None:
        try:
            os.rmdir(self._parent)
        except FileNotFoundError:
            pass
        except OSError:
            # Jobs live on in it.
            return
        self._release()

    def _limit(self, key: Key, limits: Limits) -> None:
        group = self._cgroup(key)
        page = os.sysconf("SC_PAGE_SIZE")
        group.limit("memory_max", limits.memory_bytes // page * page)
        # Absent without swap accounting.
        if os.path.exists(f"{self._directory(key)}/memory.swap.max"):
            group.limit("swap_max", 0)
        group.limit("oom_group", True)
        group.limit("pids_max", limits.pids)
        if "cpu" in self._controllers:
            weight = min(10_000, max(1, limits.cores_milli * self._weight // 1000))
            group.limit("cpu_weight", weight)
            self._cores.limit(key, limits)
        if "io" in self._controllers:
            for disk in limits.disks:
                self._limit_disk(group, disk)

    def _set_quota(self, key: Key, quota_us: int) -> None:
        self._cgroup(key).limit("cpu_max", (quota_us, PERIOD_US))

    def _open_pins(self) -> Pins | str:
        """Or why there are none."""
        if "cpuset" not in self._controllers:
            return self._lacks("cpuset")
        cpusets = Cpusets(self._parent, is_v1=False)
        return Pins(
            cpusets,
            topology.read_machine(cpusets.cpus() & topology.usable_cpus()),
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
        """systemd-oomd kills for a shortage of the whole machine, and leaves this mark."""
        try:
            return int(os.getxattr(self._directory(key), "user.oomd_ooms")) > 0
        except (OSError, ValueError):
            return False

    def _directory(self, key: Key) -> str:
        return f"{self._parent}/{cgroup_name(key)}"

    def _members(self, key: Key) -> MembersV2:
        return MembersV2(self._directory(key))

    def _cgroup(self, key: Key) -> JobCgroup:
        return JobCgroup.at(self._directory(key))
