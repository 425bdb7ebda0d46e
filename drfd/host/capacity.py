"""What the machine has for jobs: all of it, less what its own cgroup denies and a reserve."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from drfd.host.usage import kept_memory

_NO_LIMIT = 1 << 60
_ARC = Path("/proc/spl/kstat/zfs/arcstats")
#: Of a line of /proc/stat: user, system, irq, softirq (proc(5)). Not nice: who asks for what nobody
#: else wants takes nothing away.
_BUSY = (0, 2, 5, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cores_milli: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUse:
    """What all processes of the machine use at one moment."""

    mono_s: float
    #: Processor time since the machine was started, without that of niced processes.
    cpu_s: float
    #: Without page cache and all else that can be had back at once.
    memory_bytes: int


def read_machine() -> Machine:
    """Cores and memory that this process may use: in a container, the container's."""
    memory = psutil.virtual_memory().total
    return Machine(
        cores_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_bytes=min(memory, own_memory_limit()),
    )


def read_machine_use(proc_self_cgroup: str = "/proc/self/cgroup") -> MachineUse:
    """Of the processors and the memory that `read_machine` tells of."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available + _spare_arc_bytes()
    for directory, limit in _memory_limits(proc_self_cgroup):
        if limit < memory.total:
            total = min(total, limit)
            available = min(available, limit - (kept_memory(directory) or 0))
    return MachineUse(
        mono_s=time.monotonic(),
        cpu_s=busy_s(Path("/proc/stat").read_text(), os.sched_getaffinity(0)),
        memory_bytes=max(0, total - available),
    )


def _spare_arc_bytes() -> int:
    try:
        return spare_arc(_ARC.read_text())
    except OSError:
        return 0


def spare_arc(arcstats: str) -> int:
    """What ZFS would give back of its cache, which the kernel does not count as available."""
    lines = (line.split() for line in arcstats.splitlines())
    stats = {words[0]: words[-1] for words in lines if len(words) == 3}
    return max(0, int(stats.get("size", "0")) - int(stats.get("c_min", "0")))


def busy_s(stat: str, cpus: set[int]) -> float:
    """Processor time that these processors have given to others than niced processes. `stat`: the
    text of /proc/stat."""
    ticks = 0
    for line in stat.splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu" and int(name[3:]) in cpus:
            ticks += sum(int(numbers[at]) for at in _BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")


def own_memory_limit(proc_self_cgroup: str = "/proc/self/cgroup") -> int:
    """The memory limit of the cgroup that we were started in; very large where there is none."""
    return min([_NO_LIMIT, *(limit for _, limit in _memory_limits(proc_self_cgroup))])


def _memory_limits(proc_self_cgroup: str) -> Iterator[tuple[Path, int]]:
    for line in Path(proc_self_cgroup).read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield from _limits_above("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
        elif not controllers:
            yield from _limits_above("/sys/fs/cgroup", path, "memory.max")


def _limits_above(mount: str, path: str, name: str) -> Iterator[tuple[Path, int]]:
    """The limits of a cgroup and of those that it is in, with their places: each of them holds."""
    here = Path(mount + path)
    for directory in (here, *here.parents):
        try:
            yield directory, int((directory / name).read_text())
        except (OSError, ValueError):
            # Not there, or "max".
            continue


def default_reserve(memory_bytes: int) -> int:
    """Memory kept for the system when the configuration does not say: an eighth, 4 GiB at most."""
    return min(memory_bytes // 8, 4 << 30)
