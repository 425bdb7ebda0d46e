"""Cores of jobs: the CPUs of the machine, and their allocation by quota, weight, pins or affinity.

A job of several CPUs is fastest where they share memory and caches, and slowest where half of a
physical core works for another job: so `choose_cpus` prefers one memory node to several, and whole
cores to parts. /sys, which describes the CPUs, is documented in the kernel's
admin-guide/cputopology.rst.

The kernel's cpuset files alone record which job is pinned, for this launcher and the next: a pinned
job has memory nodes of its own (version 2), or memory that moves along when its nodes change
(version 1, where every cpuset must have nodes). They are read at the start; after that only this
launcher changes them. What is set is read back. All other jobs run on the CPUs that nobody has
pinned. Kernel documents: cgroup-v1/cpusets.rst, cgroup-v2.rst.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cgroupspy.interfaces import CommaDashSetFile, FlagFile

from drfd.launcher.attempt_files import Key, cgroup_name
from drfd.launcher.confinement.cgroup_files import keys_of
from drfd.launcher.confinement.interface import LimitFailed
from drfd.launcher.protocol import PIN, QUOTA, WEIGHT, AttemptLimits
from drfd.launcher.system.files import VANISHED, Plain, unless_gone
from drfd.linux.kernel_files import word_in

log = logging.getLogger("drfd.launcher")

Cpus = frozenset[int]


@dataclass(frozen=True, slots=True)
class LogicalCpu:
    """A logical CPU. `core` is the physical core that it is a thread of; the same number on another
    node is another core."""

    number: int
    node: int
    core: int


def choose_cpus(
    count: int,
    free: Cpus,
    machine: Iterable[LogicalCpu],
    near: frozenset[int] = frozenset(),
) -> Cpus | None:
    """Return `count` of the `free` CPUs, first of the nodes that are `near`, on as few nodes as
    possible, preferring the node that is left with the fewest; None if there are not enough."""
    nodes: dict[int, list[LogicalCpu]] = {}
    for cpu in sorted(machine, key=lambda cpu: cpu.number):
        nodes.setdefault(cpu.node, []).append(cpu)
    left = {node: len(free.intersection(_numbers(cpus))) for node, cpus in nodes.items()}
    if count > sum(left.values()):
        return None
    chosen: set[int] = set()
    while len(chosen) < count:
        wanted = count - len(chosen)
        nearest = {
            node: free_cpus for node, free_cpus in left.items() if node in near and free_cpus
        }
        node = _node_for(wanted, nearest or left)
        chosen |= _on_node(min(wanted, left.pop(node)), free, nodes[node])
    return frozenset(chosen)


def _node_for(wanted: int, left: dict[int, int]) -> int:
    """Return the fullest node that has enough free CPUs, or else the emptiest node."""
    enough = [node for node, count in left.items() if count >= wanted]
    if enough:
        return min(enough, key=lambda node: (left[node], node))
    return min(left, key=lambda node: (-left[node], node))


def _on_node(count: int, free: Cpus, cpus: list[LogicalCpu]) -> set[int]:
    """Choose `count` CPUs of a node: whole cores as long as they fit, then CPUs of cores that are
    partly used, and only then a part of a whole core."""
    cores: dict[int, list[int]] = {}
    for cpu in cpus:
        cores.setdefault(cpu.core, []).append(cpu.number)
    whole = [core for core in cores.values() if free.issuperset(core)]
    parts = [[cpu for cpu in core if cpu in free] for core in cores.values() if core not in whole]
    chosen: set[int] = set()
    broken: list[list[int]] = []
    for core in sorted(whole):
        if len(core) <= count - len(chosen):
            chosen.update(core)
        else:
            broken.append(core)
    # The core with the fewest free CPUs comes first, because it is of the least use to others.
    for part in sorted(parts, key=lambda part: (len(part), part)) + broken:
        chosen.update(sorted(part)[: count - len(chosen)])
    return chosen


def _numbers(cpus: Iterable[LogicalCpu]) -> Cpus:
    return frozenset(cpu.number for cpu in cpus)


_SYS = Path("/sys/devices/system")


def usable_cpus() -> Cpus:
    """Return the CPUs that this process may run on (`own_process.take_cpus`): without isolated CPUs
    and those that the cpuset of its service leaves out."""
    return frozenset(os.sched_getaffinity(0))


def read_machine(cpus: Iterable[int], sys: Path = _SYS) -> tuple[LogicalCpu, ...]:
    """Return the node and core of these CPUs. Those missing from /sys: one node, a core each."""
    nodes: dict[int, int] = {}
    for place in sys.glob("node/node[0-9]*"):
        node = int(place.name.removeprefix("node"))
        for number in parse_list(word_in(f"{place}/cpulist")):
            # Emulated nodes (numa=fake) each have all CPUs.
            nodes[number] = min(node, nodes.get(number, node))
    found = []
    for number in sorted(cpus):
        siblings = parse_list(word_in(f"{sys}/cpu/cpu{number}/topology/thread_siblings_list"))
        found.append(LogicalCpu(number, nodes.get(number, 0), min(siblings, default=number)))
    return tuple(found)


def parse_list(text: str) -> Cpus:
    """Parse CPUs or nodes as the kernel lists them: "0-3,8"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def affinity_controls(why: str) -> dict[str, str]:
    """Return what `Confinement.cores` does; `why` is the reason that there is nothing better."""
    kept = "measured: kept on as many CPUs as it declares, rounded up;"
    return {
        **dict.fromkeys((QUOTA, PIN), f"{kept} {why}"),
        WEIGHT: f"not controlled: jobs have weights only in cgroups; {why}",
    }


class Affinity:
    """The CPUs of each job where no quota can be had: as many as it declares, in turn. A program
    can undo this for itself, so it is not called enforced."""

    def __init__(self) -> None:
        self._all = sorted(usable_cpus())
        self._next_cpu = 0
        #: The CPUs of each job that is to stay on some.
        self._kept: dict[Key, Cpus] = {}

    def choose(self, key: Key, limits: AttemptLimits) -> None:
        """Choose the CPUs of a new job, in the launcher, before its runner is started."""
        if limits.cores_by == WEIGHT:
            return
        count = min(max(1, -(-limits.cores_milli // 1000)), len(self._all))
        first, self._next_cpu = self._next_cpu, self._next_cpu + count
        self._kept[key] = frozenset(self._all[(first + i) % len(self._all)] for i in range(count))

    def cpus(self, key: Key) -> Cpus:
        """Return the CPUs that a process of the job keeps to; none of them stands for all."""
        return self._kept.get(key, frozenset())

    def forget(self, key: Key) -> None:
        self._kept.pop(key, None)


class _V1(Plain):
    cpus = CommaDashSetFile("cpuset.cpus")
    mems = CommaDashSetFile("cpuset.mems")
    effective_cpus = CommaDashSetFile("cpuset.effective_cpus", readonly=True)
    effective_mems = CommaDashSetFile("cpuset.effective_mems", readonly=True)
    memory_migrate = FlagFile("cpuset.memory_migrate")


class _V2(Plain):
    cpus = CommaDashSetFile("cpuset.cpus")
    mems = CommaDashSetFile("cpuset.mems")
    effective_cpus = CommaDashSetFile("cpuset.cpus.effective", readonly=True)
    effective_mems = CommaDashSetFile("cpuset.mems.effective", readonly=True)


class Cpusets:
    """The cpusets of the jobs below one parent."""

    def __init__(
        self, parent: str, place: Callable[[Key], str] = cgroup_name, *, is_v1: bool
    ) -> None:
        self._parent, self._place = parent, place
        self._is_v1 = is_v1

    def cpus(self) -> Cpus:
        """Return the CPUs that jobs may run on."""
        return frozenset(self._at(self._parent).effective_cpus)

    def memory_nodes(self) -> frozenset[int]:
        return frozenset(self._at(self._parent).effective_mems)

    def jobs(self) -> list[Key]:
        """Return the jobs that have a cpuset."""
        return keys_of(self._parent)

    def pinned(self, key: Key) -> Cpus | None:
        """Return the CPUs of a pinned job, or None if the job is not pinned."""
        own = self._at(self._directory(key))
        with unless_gone():
            is_pinned = own.memory_migrate if self._is_v1 else own.mems
            return frozenset(own.cpus) if is_pinned else None
        return None

    def pin(self, key: Key, cpus: Cpus) -> None:
        """Give a job these CPUs, and all memory nodes. Raises LimitFailed."""
        own = self._at(self._directory(key))
        self._set(own, "cpus", cpus)
        if self._is_v1:
            self._set(own, "memory_migrate", True)
        self._set(own, "mems", self.memory_nodes())

    def share(self, key: Key, cpus: Cpus) -> None:
        """Let an unpinned job run on these CPUs. Raises LimitFailed, or FileNotFoundError if the
        job's cgroup has vanished."""
        own = self._at(self._directory(key))
        if own.effective_cpus != cpus:
            self._set(own, "cpus", cpus)
        if self._is_v1 and own.memory_migrate:
            self._set(own, "memory_migrate", False)
        # On version 2 an unpinned job has no nodes of its own and uses those of its parent.
        nodes = self.memory_nodes() if self._is_v1 else frozenset[int]()
        if own.mems != nodes:
            self._set(own, "mems", nodes)

    def _set(self, own: Plain, name: str, value: object) -> None:
        try:
            setattr(own, name, value)
        except OSError as error:
            path = own.path_of(name)
            if error.errno in VANISHED:
                raise FileNotFoundError(error.errno, error.strerror, path) from None
            raise LimitFailed(f"{path}: {error.strerror}") from error
        there = getattr(own, name)
        if there != value:
            raise LimitFailed(f"{own.path_of(name)} was set to {value} and reads {there}")

    def _directory(self, key: Key) -> str:
        return f"{self._parent}/{self._place(key)}"

    def _at(self, directory: str) -> Plain:
        return (_V1 if self._is_v1 else _V2)(directory)


def open_v1(mount: str, group: str) -> None:
    """Let the group use all CPUs and nodes of its parent, and hand them down: on version 1 a new
    cpuset is empty otherwise, and accepts no process. Raises OSError."""
    parent = _V1(mount)
    for part in Path(group).parts:
        own = _V1(os.path.join(parent.directory, part))
        for name in ("cpus", "mems"):
            if getattr(own, name) != getattr(parent, f"effective_{name}"):
                setattr(own, name, getattr(parent, f"effective_{name}"))
        parent = own
    parent.clone_children = True


class Pins:
    """The CPUs that jobs have to themselves, by their cpusets."""

    def __init__(self, cpusets: Cpusets, machine: tuple[LogicalCpu, ...]) -> None:
        """`machine` lists the CPUs that jobs may use, and that the kernel gives a new cpuset."""
        self._cpusets, self._machine = cpusets, machine
        self._all = frozenset(cpu.number for cpu in machine)
        self._pinned: dict[Key, Cpus] = {}
        for key in cpusets.jobs():
            cpus = cpusets.pinned(key)
            if cpus is not None:
                self._pinned[key] = cpus
        # An earlier launcher may have been killed between two of these steps.
        self._give_back()

    def pin(self, key: Key, count: int, near: frozenset[int] = frozenset()) -> bool:
        """Give a new job CPUs of its own, which the others leave first, if possible on the nodes
        that are `near`. Returns False if there are not enough, as happens where suspended jobs
        have them, or more cores are granted than exist. Raises LimitFailed."""
        free, others = self._free(), self._others(key)
        cpus = choose_cpus(count, free, self._machine, near)
        # The jobs that are not pinned must keep a CPU.
        if cpus is None or (cpus == free and others):
            return False
        self._pinned[key] = cpus
        for other in others:
            # Its runner may remove it now.
            with unless_gone():
                self._cpusets.share(other, self._common())
        self._cpusets.pin(key, cpus)
        return True

    @property
    def concern_all(self) -> bool:
        """Whether a new job that has no CPUs to itself must be given those that are left."""
        return bool(self._pinned)

    def share(self, key: Key) -> None:
        """Let a new job run on the CPUs that nobody has pinned. Raises LimitFailed."""
        if self.concern_all:
            self._cpusets.share(key, self._common())

    def begun(self, key: Key) -> None:
        """Take CPUs from a job that were pinned before it had a cpuset. A failure is logged."""
        if self._pinned and key not in self._pinned:
            self._share_again(key)

    def forget(self, key: Key) -> None:
        """Release the job's CPUs: its cgroup is gone."""
        if self._pinned.pop(key, None) is not None:
            self._give_back()

    def _free(self) -> Cpus:
        """Return the CPUs that nobody has pinned, without those that are offline."""
        return (self._all & self._cpusets.cpus()).difference(*self._pinned.values())

    def _common(self) -> Cpus:
        return self._free() or self._cpusets.cpus()

    def _others(self, key: Key) -> list[Key]:
        """Return the jobs, other than `key`, that have no CPUs of their own."""
        known = {key, *self._pinned}
        return [other for other in self._cpusets.jobs() if other not in known]

    def _give_back(self) -> None:
        """Let all unpinned jobs run on all free CPUs. A failure is logged and leaves a job with
        fewer CPUs than it could have."""
        for other in self._others((0, 0)):
            self._share_again(other)

    def _share_again(self, other: Key) -> None:
        try:
            with unless_gone():
                self._cpusets.share(other, self._common())
        except (OSError, LimitFailed) as error:
            log.error("event=not-shared job=%d attempt=%d error=%s", *other, error)


#: Period of a CPU quota, in microseconds.
PERIOD_US = 100_000


def whole_cores(limits: AttemptLimits) -> int:
    """Return the number of cores of a job that is to have them to itself; 0 for another."""
    count, part = divmod(limits.cores_milli, 1000)
    return 0 if limits.cores_by != PIN or part or limits.cores_max_milli else count


def quota_us(cores_milli: int) -> int:
    """Return the quota for these cores in microseconds per PERIOD_US: at least a millisecond."""
    return max(1000, cores_milli * PERIOD_US // 1000)


def weight_of(cores_milli: int, per_core: int, least: int, most: int) -> int:
    """Return the kernel's weight for these cores, the nearest one that it accepts."""
    return min(most, max(least, (cores_milli * per_core + 500) // 1000))
