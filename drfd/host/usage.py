"""What a job uses now, read from its cgroup, or from the processes below its runner.

Every reading may be stale; what has vanished, or is in no form that is known, reads as None and is
never an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import psutil

from drfd.core.job import Usage
from drfd.core.limits import Sample
from drfd.host.disks import SYS_DEV_BLOCK

T = TypeVar("T")

#: Of memory.stat on version 2: what the kernel cannot drop or write elsewhere.
_KEPT = (
    *("anon", "shmem", "kernel_stack", "pagetables", "sec_pagetables", "percpu", "vmalloc"),
    "slab_unreclaimable",
)


def sample_cgroup_v1(mounts: Mapping[str, str], cgroup: str, mono_s: float) -> Sample:
    """A sample from the counters of one attempt's cgroups. Memory is what cannot be dropped:
    anonymous and shared memory, without page cache."""
    cpu_ns = _number(mounts, "cpuacct", cgroup, "cpuacct.usage")
    stat = _table(mounts, "memory", cgroup, "memory.stat")
    memory = None if stat is None else stat.get("total_rss", 0) + stat.get("total_shmem", 0)
    read_bytes, written_bytes = _disk_bytes(mounts, cgroup)
    return Sample(
        mono_s=mono_s,
        memory_bytes=memory,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        cpu_s=None if cpu_ns is None else cpu_ns / 1e9,
    )


def peak_memory_v1(mounts: Mapping[str, str], cgroup: str) -> int | None:
    """The most memory ever charged, page cache included: what the limit is compared with."""
    return _number(mounts, "memory", cgroup, "memory.max_usage_in_bytes")


def sample_cgroup_v2(mount: str, cgroup: str, mono_s: float) -> Sample:
    """The same of one attempt's cgroup on version 2; memory with what the kernel cannot drop."""
    mounts = {"": mount}
    cpu = _table(mounts, "", cgroup, "cpu.stat") or {}
    memory = _table(mounts, "", cgroup, "memory.stat")
    usage_us = cpu.get("usage_usec")
    read_bytes, written_bytes = _read(mounts, "", cgroup, "io.stat", _io_stat) or (None, None)
    return Sample(
        mono_s=mono_s,
        memory_bytes=None if memory is None else sum(memory.get(name, 0) for name in _KEPT),
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        cpu_s=None if usage_us is None else usage_us / 1e6,
    )


def peak_memory_v2(mount: str, cgroup: str) -> int | None:
    """The same on version 2; None also on kernels before 5.19, which do not record it."""
    return _number({"": mount}, "", cgroup, "memory.peak")


def pinned_cpus_v1(mounts: Mapping[str, str], cgroup: str) -> str | None:
    """The CPUs that an attempt has for itself, as "0-3,8"; None if none. Its memory follows it."""
    if _text(mounts, "cpuset", cgroup, "cpuset.memory_migrate") != "1\n":
        return None
    return (_text(mounts, "cpuset", cgroup, "cpuset.cpus") or "").strip() or None


def pinned_cpus_v2(mount: str, cgroup: str) -> str | None:
    """The same on version 2, where it has memory nodes of its own then."""
    if not (_text({"": mount}, "", cgroup, "cpuset.mems") or "").strip():
        return None
    return (_text({"": mount}, "", cgroup, "cpuset.cpus") or "").strip() or None


def kept_memory(directory: Path) -> int | None:
    """What the kernel cannot drop of a cgroup's memory, of either version, with all below it."""
    stat = _table({"": str(directory)}, "", ".", "memory.stat")
    if stat is None:
        return None
    if "total_rss" in stat:
        return stat["total_rss"] + stat.get("total_shmem", 0)
    return sum(stat.get(name, 0) for name in _KEPT)


def sample_processes(runner_pid: int, mono_s: float) -> Sample:
    """A sample of everything below a runner. What short-lived children used is lost here."""
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


def usage_between(before: Sample | None, after: Sample, peak_bytes: int) -> Usage:
    """What people are shown of two samples: rates from their difference, the rest from the last."""
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
    """Memory shared with others counts in part (PSS), so that a forked tree is not counted twice;
    where PSS cannot be read, all that is resident counts."""
    try:
        return int(member.memory_full_info().pss)
    except (psutil.AccessDenied, AttributeError):
        return int(member.memory_info().rss)


def _disk_bytes(mounts: Mapping[str, str], cgroup: str) -> tuple[int | None, int | None]:
    def read(text: str) -> tuple[int, int]:
        totals = {"Read": 0, "Write": 0}
        for line in text.splitlines():
            words = line.split()
            if len(words) == 3 and words[1] in totals:
                totals[words[1]] += _count(words[2])
        return totals["Read"], totals["Write"]

    found = _read(mounts, "blkio", cgroup, "blkio.throttle.io_service_bytes", read)
    return found or (None, None)


def _io_stat(text: str) -> tuple[int, int]:
    """Bytes read and written on all disks. What passed a disk made of others (LVM, LUKS, md) is
    counted again below."""
    read_bytes = written_bytes = 0
    for line in text.splitlines():
        device, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs)
        if {"rbytes", "wbytes"} <= values.keys() and not _is_stacked(device):
            read_bytes += _count(values["rbytes"])
            written_bytes += _count(values["wbytes"])
    return read_bytes, written_bytes


def _is_stacked(device: str) -> bool:
    try:
        return bool(os.listdir(f"{SYS_DEV_BLOCK}/{device}/slaves"))
    except OSError:
        return False


def _number(mounts: Mapping[str, str], controller: str, cgroup: str, name: str) -> int | None:
    return _read(mounts, controller, cgroup, name, _count)


def _table(
    mounts: Mapping[str, str], controller: str, cgroup: str, name: str
) -> dict[str, int] | None:
    def read(text: str) -> dict[str, int]:
        return {key: _count(value) for key, value in (line.split() for line in text.splitlines())}

    return _read(mounts, controller, cgroup, name, read)


def _text(mounts: Mapping[str, str], controller: str, cgroup: str, name: str) -> str | None:
    return _read(mounts, controller, cgroup, name, str)


def _count(text: str) -> int:
    """The kernel's have 64 bits."""
    value = int(text)
    if not 0 <= value < 1 << 64:
        raise ValueError(text)
    return value


def _read(
    mounts: Mapping[str, str],
    controller: str,
    cgroup: str,
    name: str,
    read: Callable[[str], T],
) -> T | None:
    """None: no such file, or not in the form that is known."""
    if controller not in mounts:
        return None
    try:
        with open(os.path.join(mounts[controller], cgroup, name)) as file:
            return read(file.read())
    except (OSError, ValueError):
        return None
