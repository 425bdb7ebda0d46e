"""Measurements of this machine: its cores and memory, pressure, and the usage of it and of jobs.

A figure may be stale. A file that has vanished, or has an unknown form, reads as None and is never
an error. Limits of the cgroup that drfd itself runs in count as the machine's: in a container they
are the container's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil

from drfd.core.decisions.outcome import Sample
from drfd.core.model.job import Usage
from drfd.host.disks import SYS_DEV_BLOCK
from drfd.linux.kernel_files import get, get_record, word_in

_NO_LIMIT = 1 << 60
_ARC = "/proc/spl/kstat/zfs/arcstats"
_MEMORY = re.compile(r"^(MemTotal|MemAvailable): +(\d+) kB$", re.MULTILINE | re.ASCII)
_OWN_CGROUPS = "/proc/self/cgroup"
_LIMIT_V1 = "memory.limit_in_bytes"
#: Limits of cgroup v2: the hard one, and that beyond which the kernel slows processes down.
_MAX, _HIGH = "memory.max", "memory.high"
#: Columns of a line of /proc/stat: user, system, irq, softirq (proc(5)). Not nice: such processes
#: get only time that no other process wants.
_BUSY = (0, 2, 5, 6)
_NICED = 1
#: Words after the name in /proc/PID/stat: utime, stime, cutime, cstime.
_TIMES = slice(11, 15)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cores_milli: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUse:
    """Resources that all processes of the machine use at one moment."""

    mono_s: float
    #: CPU time since boot, without that of niced processes.
    cpu_s: float
    #: Memory in use, without page cache and all else that the kernel can reclaim at once.
    memory_bytes: int
    #: CPU time of niced processes since boot.
    niced_s: float = 0.0


def read_machine() -> Machine:
    """Return the cores and memory that this process may use: in a container, the container's."""
    return Machine(
        cores_milli=len(os.sched_getaffinity(0)) * 1000,
        memory_bytes=min(_machine_memory()[0], own_memory_limit()),
    )


def read_machine_use(proc_self_cgroup: str = _OWN_CGROUPS) -> MachineUse:
    """Return the use of the cores and the memory that `read_machine` returns."""
    total, available = machine_bytes, _ = _machine_memory()
    for directory, limit in _memory_limits(proc_self_cgroup, _MAX):
        if limit < machine_bytes:
            total = min(total, limit)
            available = min(available, limit - (kept_memory(directory) or 0))
    times = cpu_times(get("/proc/stat"), os.sched_getaffinity(0))
    return MachineUse(
        mono_s=time.monotonic(),
        cpu_s=times.busy_s,
        memory_bytes=max(0, total - available),
        niced_s=times.niced_s,
    )


@dataclass(frozen=True, slots=True)
class MemoryHeadroom:
    """A limit on the memory that this process may use, and the part of it that is free."""

    #: The machine or the cgroup that has the limit, for people.
    of: str
    free_bytes: int
    total_bytes: int


def spare_memory(proc_self_cgroup: str = _OWN_CGROUPS) -> list[MemoryHeadroom]:
    """Return the free memory of the machine, and of each cgroup with a limit that we are in. Limits
    beyond which the kernel only slows processes down (memory.high) are included."""
    total, available = _machine_memory()
    found = [MemoryHeadroom("the machine", available, total)]
    for directory, limit in _memory_limits(proc_self_cgroup, _MAX, _HIGH):
        if limit < total:
            left = max(0, limit - (kept_memory(directory) or 0))
            found.append(MemoryHeadroom(f"the cgroup {directory}", left, limit))
    return found


def _machine_memory() -> tuple[int, int]:
    """Return the bytes of this machine's memory, and those available: what nobody uses, or the
    kernel or ZFS can reclaim at once."""
    found = {name: int(kib) << 10 for name, kib in _MEMORY.findall(get_record("/proc/meminfo"))}
    try:
        spare = spare_arc(get(_ARC))
    except OSError:
        spare = 0
    return found["MemTotal"], found["MemAvailable"] + spare


def spare_arc(arcstats: str) -> int:
    """Return the bytes that ZFS would release, which the kernel does not count as available."""
    lines = (line.split() for line in arcstats.splitlines())
    stats = {words[0]: words[-1] for words in lines if len(words) == 3}
    return max(0, int(stats.get("size", "0")) - int(stats.get("c_min", "0")))


class CpuTimes(NamedTuple):
    """CPU time since boot, in seconds."""

    #: Without that of niced processes.
    busy_s: float
    #: Of niced processes.
    niced_s: float


def cpu_times(stat: str, cpus: set[int]) -> CpuTimes:
    """Return the CPU time of these CPUs. `stat` is the text of /proc/stat."""
    busy = niced = 0
    for line in stat.splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu" and int(name[3:]) in cpus:
            busy += sum(int(numbers[at]) for at in _BUSY)
            niced += int(numbers[_NICED])
    return CpuTimes(busy / _TICKS_PER_S, niced / _TICKS_PER_S)


def own_memory_limit(proc_self_cgroup: str = _OWN_CGROUPS) -> int:
    """Return the memory limit of the cgroup that we were started in, or a very large number."""
    return min([_NO_LIMIT, *(limit for _, limit in _memory_limits(proc_self_cgroup, _MAX))])


def _memory_limits(proc_self_cgroup: str, *names_v2: str) -> Iterator[tuple[str, int]]:
    """Yield the limits in these files of cgroup v2, and the hard ones of version 1, of our cgroup
    and its ancestors, all of which hold, with their directories."""
    for line in get(proc_self_cgroup).splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            mount, names = "/sys/fs/cgroup/memory", [_LIMIT_V1]
        elif not controllers:
            mount, names = "/sys/fs/cgroup", [*names_v2]
        else:
            continue
        while True:
            for name in names:
                # The file is missing, or contains "max".
                if (text := word_in(f"{mount}{path}/{name}")).isdecimal():
                    yield mount + path, int(text)
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]


def default_reserve(memory_bytes: int) -> int:
    """Return the default reserve for the system: an eighth of the memory, at most 4 GiB."""
    return min(memory_bytes // 8, 4 << 30)


def default_kept(memory_bytes: int) -> int:
    """Return the default for the bytes that drfd stores for all users' jobs: a sixteenth of the
    memory, at least 256 MiB and at most 4 GiB."""
    return min(max(memory_bytes // 16, 256 << 20), 4 << 30)


PRESSURE = Path("/proc/pressure")
_RESOURCES = ("cpu", "memory", "io")
_AVG10 = re.compile(r"^(\w+) avg10=(\d+(?:\.\d+)?)\b", re.MULTILINE | re.ASCII)

#: Resource → "some" and "full": the percentage of the last ten seconds in which some process, or
#: all, waited for it (accounting/psi.rst), or None if the kernel does not report it.
Pressure = dict[str, dict[str, float | None]]


def read_pressure(directory: Path = PRESSURE) -> Pressure | None:
    """Return the pressure by resource, or None if the kernel keeps no such figures."""
    # None can be read where PSI is not built in, or switched off (EOPNOTSUPP).
    texts = {name: word_in(f"{directory}/{name}") for name in _RESOURCES}
    return {name: _figures(text) for name, text in texts.items()} if any(texts.values()) else None


def _figures(text: str) -> dict[str, float | None]:
    """Parse lines like "some avg10=0.12 avg60=0.05 avg300=0.01 total=123"."""
    found = dict(_AVG10.findall(text))
    return {kind: float(found[kind]) if kind in found else None for kind in ("some", "full")}


T = TypeVar("T")

#: Key in `mounts`, as the launcher sends them, for the one hierarchy of cgroup v2.
UNIFIED = "cgroup2"
#: Fields of memory.stat of cgroup v2 with memory that the kernel can neither drop nor write back.
_KEPT = (
    *("anon", "shmem", "kernel_stack", "pagetables", "sec_pagetables", "percpu", "vmalloc"),
    "slab_unreclaimable",
)


def sample_cgroup(
    mounts: Mapping[str, str], cgroup: str, mono_s: float, before: Sample | None = None
) -> Sample:
    """Return a sample of one attempt's cgroup, or cgroups of version 1. Memory is all memory that
    the kernel cannot drop. If nothing has run since the sample `before`, only the time differs."""
    cpu_s = None
    if UNIFIED in mounts:
        cpu_us = (_read(mounts, "cpu", cgroup, "cpu.stat", _table) or {}).get("usage_usec")
        cpu_s = None if cpu_us is None else cpu_us / 1e6
    else:
        cpu_ns = _read(mounts, "cpuacct", cgroup, "cpuacct.usage", _count)
        cpu_s = None if cpu_ns is None else cpu_ns / 1e9
    if before is not None and cpu_s is not None and cpu_s == before.cpu_s:
        return replace(before, mono_s=mono_s)
    moved = disk_counters(mounts, cgroup)
    if moved is not None and UNIFIED in mounts:
        # The disks below those made of others (LVM, LUKS, md) count the same bytes.
        moved = {device: pair for device, pair in moved.items() if not _is_stacked(device)}
    return Sample(
        mono_s=mono_s,
        memory_bytes=_read(mounts, "memory", cgroup, "memory.stat", _kept_memory),
        read_bytes=None if moved is None else sum(read for read, _ in moved.values()),
        written_bytes=None if moved is None else sum(written for _, written in moved.values()),
        cpu_s=cpu_s,
    )


def disk_counters(mounts: Mapping[str, str], cgroup: str) -> dict[str, tuple[int, int]] | None:
    """Return the bytes that one attempt has read and written by device, "major:minor", or None if
    they cannot be read. A device that it has not used may be missing."""
    if UNIFIED in mounts:
        return _read(mounts, "io", cgroup, "io.stat", _io_stat)
    return _read(mounts, "blkio", cgroup, "blkio.throttle.io_service_bytes", _io_service_bytes)


def niced_processes(mounts: Mapping[str, str], cgroup: str) -> dict[int, float]:
    """Return the CPU time of each niced process of one attempt, by pid, with that of its children
    that have ended; infinite where it is hidden. No kernel before Linux 6.13 counts it by cgroup,
    and none with version 1."""
    pids = _read(mounts, "cpu", cgroup, "cgroup.procs", str.split)
    found = {}
    for pid in map(int, pids or ()):
        with suppress(ProcessLookupError):
            # A system call for each process costs a tenth of a file.
            if os.getpriority(os.PRIO_PROCESS, pid) > 0:
                found[pid] = _with_children_s(pid)
    return found


def niced_between(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the CPU time of an attempt's niced processes between two readings, at most: infinite
    if one is hidden. What ended processes had used counts once more with their parent's."""
    return sum(
        now_s if now_s == inf else max(0.0, now_s - before.get(pid, 0.0))
        for pid, now_s in after.items()
    )


def _with_children_s(pid: int) -> float:
    try:
        words = get_record(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        # It has ended just now, or /proc is mounted with hidepid (proc(5)).
        return inf
    return sum(map(int, words[_TIMES])) / _TICKS_PER_S


def peak_memory(mounts: Mapping[str, str], cgroup: str) -> int | None:
    """Return the most memory ever charged, page cache included, as the limit counts it. None if it
    is not known: cgroup v2 counts it from Linux 5.19 on."""
    name = "memory.peak" if UNIFIED in mounts else "memory.max_usage_in_bytes"
    return _read(mounts, "memory", cgroup, name, _count)


def pinned_cpus(mounts: Mapping[str, str], cgroup: str) -> str | None:
    """Return the CPUs that an attempt is pinned to, as "0-3,8", or None if it is not pinned. The
    cgroup of a pinned attempt names memory nodes and, on version 1, migrates memory to them."""

    def text(name: str) -> str:
        return (_read(mounts, "cpuset", cgroup, name, str) or "").strip()

    if UNIFIED in mounts:
        is_pinned = bool(text("cpuset.mems"))
    else:
        is_pinned = text("cpuset.memory_migrate") == "1"
    return (text("cpuset.cpus") or None) if is_pinned else None


def kept_memory(directory: str) -> int | None:
    """Return the memory that the kernel cannot drop in a cgroup, of either version, and below."""
    return _read({UNIFIED: directory}, "memory", ".", "memory.stat", _kept_memory)


def _kept_memory(text: str) -> int:
    stat = _table(text)
    if "total_rss" in stat:
        # Version 1, whose figures without "total" leave out the cgroups below.
        return stat["total_rss"] + stat.get("total_shmem", 0)
    return sum(stat.get(name, 0) for name in _KEPT)


def sample_processes(runner_pid: int, mono_s: float) -> Sample:
    """Return a sample of all processes below a runner, without what ended children used."""
    memory = read_bytes = written_bytes = 0
    cpu_s = 0.0
    try:
        members = psutil.Process(runner_pid).children(recursive=True)
    except psutil.Error:
        members = []
    for member in members:
        try:
            with member.oneshot():
                memory += _own_memory(member)
                times = member.cpu_times()
                cpu_s += times.user + times.system + times.children_user + times.children_system
                io = member.io_counters()
                read_bytes += io.read_bytes
                written_bytes += io.write_bytes
        except (psutil.Error, OSError):
            continue
    return Sample(
        mono_s=mono_s,
        memory_bytes=memory,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        cpu_s=cpu_s,
    )


def ancestors(pid: int) -> list[int]:
    """Return the parent of a process, its parent and so on, or none if the process is gone."""
    try:
        return [each.pid for each in psutil.Process(pid).parents()]
    except (psutil.Error, OSError):
        return []


def usage_between(before: Sample | None, after: Sample, peak_bytes: int) -> Usage:
    """Return the usage for people: rates between two samples, the rest from the last."""
    cores_milli = 0
    if before is not None and after.mono_s > before.mono_s:
        spent = max(0.0, (after.cpu_s or 0.0) - (before.cpu_s or 0.0))
        cores_milli = round(spent / (after.mono_s - before.mono_s) * 1000)
    return Usage(
        cores_milli=cores_milli,
        memory_bytes=after.memory_bytes or 0,
        memory_peak_bytes=max(peak_bytes, after.memory_bytes or 0),
        read_bytes=after.read_bytes or 0,
        written_bytes=after.written_bytes or 0,
        cpu_s=after.cpu_s or 0.0,
    )


def _own_memory(member: psutil.Process) -> int:
    """Return the proportional memory of a process (PSS), so that a forked tree is not counted
    twice, or all its resident memory if PSS cannot be read."""
    try:
        return int(member.memory_full_info().pss)
    except (psutil.AccessDenied, AttributeError):
        return int(member.memory_info().rss)


def _io_service_bytes(text: str) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        match line.split():
            case [device, "Read" | "Write" as kind, number]:
                read, written = found.get(device, (0, 0))
                count = _count(number)
                found[device] = (count, written) if kind == "Read" else (read, count)
    return found


def _io_stat(text: str) -> dict[str, tuple[int, int]]:
    found = {}
    for line in text.splitlines():
        device, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs)
        if {"rbytes", "wbytes"} <= values.keys():
            found[device] = _count(values["rbytes"]), _count(values["wbytes"])
    return found


def _is_stacked(device: str) -> bool:
    try:
        return bool(os.listdir(f"{SYS_DEV_BLOCK}/{device}/slaves"))
    except (OSError, ValueError):
        return False


def _table(text: str) -> dict[str, int]:
    return {key: _count(value) for key, value in (line.split() for line in text.splitlines())}


def _count(text: str) -> int:
    """Parse a counter. Raises ValueError if it does not fit into the kernel's 64 bits."""
    value = int(text)
    if not 0 <= value < 1 << 64:
        raise ValueError(text)
    return value


def _read(
    mounts: Mapping[str, str], controller: str, cgroup: str, name: str, read: Callable[[str], T]
) -> T | None:
    """Return the parsed content, or None if the file is missing or has an unknown form.
    `controller` names its hierarchy on version 1."""
    mount = mounts.get(UNIFIED) or mounts.get(controller)
    if mount is None:
        return None
    try:
        return read(get(f"{mount}/{cgroup}/{name}"))
    except (OSError, ValueError):
        return None
