"""What the kernel has counted of a job, read once, at its end: the job's last words.

The keys are fields of `core.job.Usage`. What a kernel does not count, or what has vanished, is left
out: nobody may take it for zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from drfd.launcher.files import get

Counted = dict[str, int]
T = TypeVar("T")

#: Field → file, and how its number is made of what the file says.
_V1_CPU = {"quota_periods": "nr_periods", "throttled_periods": "nr_throttled"}
_V2_CPU = {**_V1_CPU, "throttled_us": "throttled_usec"}
_V2_MEMORY = {"limit_hits": "max", "oom_kills": "oom_kill"}
#: So much below its limit a job is killed at the least.
_NEAR_BYTES = 1 << 20


def count_v1(directories: Mapping[str, str]) -> Counted:
    """`directories`: controller → the job's directory there. Disk waits are not counted on
    version 1 (kernel: cgroup-v1/blkio-controller.rst, throttling has bytes and operations)."""
    counted: Counted = {}
    cpu = _table(directories.get("cpu"), "cpu.stat")
    _take(counted, cpu, _V1_CPU)
    if "throttled_time" in cpu:
        counted["throttled_us"] = cpu["throttled_time"] // 1000
    memory = directories.get("memory")
    _take(counted, _table(memory, "memory.oom_control"), {"oom_kills": "oom_kill"})
    peak = _number(memory, "memory.max_usage_in_bytes")
    _put(counted, "memory_peak_bytes", peak)
    _put(counted, "limit_hits", _limit_hits_v1(memory, peak))
    cpu_ns = _number(directories.get("cpuacct"), "cpuacct.usage")
    _put(counted, "cpu_us", None if cpu_ns is None else cpu_ns // 1000)
    return counted


def oom_kills_v1(memory: str) -> tuple[bool, bool]:
    """As `Confinement.oom_kills`. The counter also counts kills by a machine-wide shortage; then
    the limit was not hit."""
    if not _table(memory, "memory.oom_control").get("oom_kill"):
        return False, False
    peak = _number(memory, "memory.max_usage_in_bytes") or 0
    limit = _number(memory, "memory.limit_in_bytes")
    return True, limit is not None and peak >= limit - _NEAR_BYTES


def count_v2(directory: str) -> Counted:
    """The job's one directory. Peaks and pressure are there on newer kernels only."""
    counted: Counted = {}
    cpu = _table(directory, "cpu.stat")
    if "nr_periods" in cpu:
        _take(counted, cpu, _V2_CPU)
    _take(counted, cpu, {"cpu_us": "usage_usec"})
    _take(counted, _table(directory, "memory.events"), _V2_MEMORY)
    _put(counted, "memory_peak_bytes", _number(directory, "memory.peak"))
    _put(counted, "processes_peak", _number(directory, "pids.peak"))
    _put(counted, "io_stalled_us", _stalled_us(directory))
    return counted


def _limit_hits_v1(memory: str | None, peak: int | None) -> int | None:
    """None also when the count cannot be true: where swap is accounted for, its limit is the same
    and is met first, and newer kernels (seen on 6.18) do not count that."""
    counts = [_number(memory, f"memory.{kind}failcnt") for kind in ("", "memsw.")]
    hits = max((count for count in counts if count is not None), default=None)
    limit = _number(memory, "memory.limit_in_bytes")
    if hits == 0 and peak is not None and limit is not None and peak >= limit:
        return None
    return hits


def _take(counted: Counted, table: Mapping[str, int], names: Mapping[str, str]) -> None:
    for field, name in names.items():
        _put(counted, field, table.get(name))


def _put(counted: Counted, field: str, value: int | None) -> None:
    if value is not None:
        counted[field] = value


def _stalled_us(directory: str) -> int | None:
    """Of "some avg10=0.00 … total=123" in io.pressure (kernel: accounting/psi.rst)."""
    return _read(directory, "io.pressure", _total_of_some)


def _total_of_some(text: str) -> int:
    first = next(line for line in text.splitlines() if line.startswith("some "))
    return int(first.rpartition("total=")[2])


def _number(directory: str | None, name: str) -> int | None:
    return _read(directory, name, int)


def _table(directory: str | None, name: str) -> dict[str, int]:
    return _read(directory, name, _pairs) or {}


def _pairs(text: str) -> dict[str, int]:
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def _read(directory: str | None, name: str, read: Callable[[str], T]) -> T | None:
    """None: no such file, or not in the form that is known."""
    if directory is None:
        return None
    try:
        return read(get(f"{directory}/{name}"))
    except (OSError, ValueError, StopIteration):
        return None
