"""What the machine has for jobs: all of it, less what its own cgroup denies and a reserve."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cores_milli: int
    memory_bytes: int


def read_machine() -> Machine:
    """Cores and memory that this process may use: in a container, the container's."""
    memory = psutil.virtual_memory().total
    return Machine(
        cores_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_bytes=min(memory, own_memory_limit()),
    )


def own_memory_limit(proc_self_cgroup: str = "/proc/self/cgroup") -> int:
    """The memory limit of the cgroup that we were started in; very large where there is none."""
    limits = [_NO_LIMIT]
    for line in Path(proc_self_cgroup).read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            limits += _limits_above("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
        elif not controllers:
            limits += _limits_above("/sys/fs/cgroup", path, "memory.max")
    return min(limits)


def _limits_above(mount: str, path: str, name: str) -> list[int]:
    """The limits of a cgroup and of those that it is in: each of them holds."""
    here = Path(mount + path)
    found = []
    for directory in (here, *here.parents):
        try:
            found.append(int((directory / name).read_text()))
        except (OSError, ValueError):
            # Not there, or "max".
            continue
    return found


def default_reserve(memory_bytes: int) -> int:
    """Memory kept for the system when the configuration does not say: an eighth, 4 GiB at most."""
    return min(memory_bytes // 8, 4 << 30)
