"""The machines of the DRF paper scaled to this one: what one of their CPUs and GBs is here."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from drfd.common.errors import Refused
from drfd.common.units import exact_size, show_size

MIB = 1 << 20
#: Bytes that the interpreter of a task needs; the task touches the rest of its memory.
_INTERPRETER_BYTES = 16 * MIB
#: Least memory of a task in bytes, its interpreter included.
_LEAST_TASK_BYTES = 24 * MIB
#: Most bytes that stand for a GB of the paper.
_MOST_GB_BYTES = 64 * MIB
#: Keys of [scheduling] for tasks that are as short as here.
SHORT_TASKS = 'min_charge_time = 0\nreservation_delay = "1s"'


@dataclass(frozen=True, slots=True)
class Scale:
    cpu_milli: int
    gb_bytes: int

    def demand(self, cpus: float, gb: float) -> dict[str, int]:
        return {"cores_milli": int(cpus * self.cpu_milli), "memory_bytes": int(gb * self.gb_bytes)}

    @property
    def words(self) -> str:
        return (
            f"A CPU of the paper is {self.cpu_milli / 1000:g} cores here, a GB "
            f"{show_size(self.gb_bytes)}."
        )


def scale_for(cpus: int, gb: int, *, smallest_gb: float = 1) -> Scale:
    """Return the scale of a machine with these CPUs and GB. They become four fifths of the cores
    here, and a quarter of the free memory, or up to a half if the smallest task, of `smallest_gb`,
    needs it. Raises Refused if this machine is too small."""
    cores = len(os.sched_getaffinity(0))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fair = free // 4 // gb // MIB * MIB
    least = int(_LEAST_TASK_BYTES / smallest_gb)
    if 2 * fair < least:
        needed = show_size(2 * gb * least)
        raise Refused("too-small", f"the demo needs {needed} of free memory")
    return Scale(
        cpu_milli=max(50, cores * 800 // cpus), gb_bytes=min(_MOST_GB_BYTES, max(least, fair))
    )


def config_for(
    place: Path, pools: list[str], *, cores_milli: int, memory_bytes: int, disk: str = "1G",
    scheduling: str = SHORT_TASKS,
) -> str:  # fmt: skip
    """Return the configuration of a machine with this capacity. `disk` is the rate of its disk."""
    # Root's daemon would else become the user drfd, if there is one, and take signed jobs alone.
    user = 'user = "root"' if os.getuid() == 0 else ""
    tables = "\n".join(f"[pools.{name}]" for name in pools)
    return f"""
[capacity]
cores = {cores_milli / 1000}
memory = "{exact_size(memory_bytes)}"
reserve_memory = 0
[[disk]]
name = "demo"
path = "{place}"
read = "{disk}"
write = "{disk}"
{tables}
[scheduling]
respect_external_load = false
{scheduling}
[daemon]
{user}
[enforcement]
grace = "2s"
"""


def argv_for(demand: dict[str, int], seconds: float, *options: str) -> list[str]:
    """Return the command of a task that uses the demanded memory, with `options` of
    `demo.workload`."""
    touched = max(MIB, demand["memory_bytes"] - _INTERPRETER_BYTES)
    return [
        *(sys.executable, "-I", "-m", "drfd_cli.demo.workload"),
        *("--seconds", f"{seconds:.1f}", "--memory", str(touched), *options),
    ]
