"""What `drf demo` submits: the DRF paper's example, a third pool for the disk, and a liar."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drfd.units import exact_size

GIB = 1 << 30
MIB = 1 << 20

#: Seconds after the first wave until the third pool comes.
SECOND_WAVE_S = 3.0
_TASK_S = 5
_DISK_BPS = 200 * MIB
#: All processes together touch at most this much memory, and a quarter of what is free.
_TOUCH_BYTES = 1 * GIB
_DECLARED_BYTES = 14 * GIB


@dataclass(frozen=True, slots=True)
class Task:
    """A job of the demo, with what it declares and whether it keeps to that."""

    name: str
    pool: str
    cores_milli: int
    memory_bytes: int
    write_bps: int = 0
    lies: bool = False

    @property
    def demand(self) -> dict[str, Any]:
        return {
            "cores_milli": self.cores_milli,
            "memory_bytes": self.memory_bytes,
            "write_bps": self.write_bps,
        }


def config_for(directory: Path) -> str:
    """Section 4.1 of the DRF paper: 9 CPUs and 18 GB, whatever this machine has."""
    return f"""
[capacity]
cores = 9
memory = "18G"
reserve_memory = 0
[[disk]]
name = "demo"
path = "{directory}"
read = "{exact_size(_DISK_BPS)}"
write = "{exact_size(_DISK_BPS)}"
[pools.A]
[pools.B]
[pools.C]
[scheduling]
external_load = false
[enforcement]
grace = "2s"
"""


def first_wave() -> list[Task]:
    """B is there first, so it wins the tie at zero: B A A B A."""
    b = [Task("B-cpu", "B", 3000, 1 * GIB)] * 3
    a = [Task("A-memory", "A", 1000, 4 * GIB)] * 4
    return [*b, *a]


def second_wave() -> list[Task]:
    return [
        *[Task("C-disk", "C", 500, 512 * MIB, write_bps=60 * MIB)] * 4,
        Task("C-liar", "C", 500, 64 * MIB, lies=True),
    ]


def memory_scale() -> float:
    """The part of its declared memory that each process really touches, so that the demo does no
    harm to a small machine."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(1.0, min(_TOUCH_BYTES, free / 4) / _DECLARED_BYTES)


def argv_for(task: Task, directory: Path, scale: float) -> list[str]:
    argv = [sys.executable, "-I", "-m", "drfd_cli.workload", "--seconds", str(_TASK_S)]
    if task.lies:
        return [*argv, "--memory", "200M"]
    # The program itself needs some of what it declares.
    touched = int(task.memory_bytes * scale)
    argv += ["--memory", str(max(MIB, touched - 32 * MIB))]
    if task.write_bps:
        return [*argv, "--write", str(directory / f"data-{os.urandom(4).hex()}")]
    return [*argv, "--cores", str(task.cores_milli / 1000)]


def went_as_planned(jobs: list[dict[str, Any]], tasks: dict[int, Task]) -> bool:
    """All that keep to what they declare completed; the liar was stopped."""
    states = {job["id"]: job["state"] for job in jobs}
    return all(
        states.get(job_id) in (("OUT_OF_MEMORY", "LIMIT_EXCEEDED") if task.lies else ("COMPLETED",))
        for job_id, task in tasks.items()
    )
