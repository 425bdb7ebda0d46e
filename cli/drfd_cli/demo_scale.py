"""The DRF paper's machines, scaled to this one: what a CPU and a GB of theirs are here."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drfd.errors import Refused
from drfd.units import exact_size, show_size

MIB = 1 << 20
#: Beside what a task touches, its interpreter needs some memory, of which it declares all.
_INTERPRETER_BYTES = 16 * MIB
#: A task must have room for its interpreter.
_LEAST_TASK_BYTES = 24 * MIB
_MOST_GB_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class Scale:
    cpu_milli: int
    gb_bytes: int

    def demand(self, cpus: float, gb: float) -> dict[str, Any]:
        return {"cores_milli": int(cpus * self.cpu_milli), "memory_bytes": int(gb * self.gb_bytes)}

    @property
    def words(self) -> str:
        return (
            f"A CPU of the paper is {self.cpu_milli / 1000:g} cores here, a GB "
            f"{show_size(self.gb_bytes)}."
        )


def scale_for(cpus: int, gb: int, *, smallest_gb: float = 1) -> Scale:
    """So that so many fill four fifths of this machine's cores, and at most a quarter of the memory
    that is free; half of it if tasks need that, of which the smallest has `smallest_gb`. Raises
    Refused on a machine that is too small for that."""
    cores = len(os.sched_getaffinity(0))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fair = free // 4 // gb // MIB * MIB
    least = int(_LEAST_TASK_BYTES / smallest_gb)
    if 2 * fair < least:
        needed = show_size(2 * gb * least)
        raise Refused("too-small", f"the demo needs {needed} of free memory")
    return Scale(
        cpu_milli=max(50, cores * 800 // cpus),
        gb_bytes=min(_MOST_GB_BYTES, max(least, fair)),
    )


def config_for(
    place: Path, pools: list[str], *, cores_milli: int, memory_bytes: int, scheduling: str = ""
) -> str:
    """A machine of this size; tasks are short, so nothing in it takes long."""
    tables = "\n".join(f"[pools.{name}]" for name in pools)
    return f"""
[capacity]
cores = {cores_milli / 1000}
memory = "{exact_size(memory_bytes)}"
reserve_memory = 0
[[disk]]
name = "demo"
path = "{place}"
read = "1G"
write = "1G"
{tables}
[scheduling]
external_load = false
min_hold = 0
patience = "1s"
{scheduling}
[enforcement]
grace = "2s"
"""


def argv_for(demand: dict[str, Any], seconds: float, *, greedy: bool) -> list[str]:
    """A task that uses what it declares. A greedy one would take a whole core if it were let."""
    cores = 1.0 if greedy else demand["cores_milli"] / 1000
    return [
        *_workload(demand, seconds),
        *("--cores", f"{cores:.3f}"),
    ]


def argv_for_rounds(
    demand: dict[str, Any], seconds: float, *, rounds: int, cache: str | None
) -> list[str]:
    """A task that goes through its memory again and again."""
    argv = [*_workload(demand, seconds), "--rounds", str(rounds)]
    return argv if cache is None else [*argv, "--cache", cache]


def _workload(demand: dict[str, Any], seconds: float) -> list[str]:
    touched = max(MIB, demand["memory_bytes"] - _INTERPRETER_BYTES)
    return [
        *(sys.executable, "-I", "-m", "drfd_cli.workload"),
        *("--seconds", f"{seconds:.1f}", "--memory", str(touched)),
    ]
