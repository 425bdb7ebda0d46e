"""The files of a job's cgroup: its mount points, limits as typed descriptors, and counters.

Only mountinfo tells where a controller is: by the type of the file system, not by the usual path.
Of version 2, only those controllers are of use that version 1 does not have (hybrid machines).

A limit that is set is read back. Version 1: cgroupspy's descriptors serve, with the file types that
cgroupspy 0.2.3 lacks. Version 2: of cgroupspy 0.2.3 only the descriptors serve; its tree and its
file types know version 1 alone, and fail on "max" and on nested keys.

Counters are read once, at the job's end. A counter that this kernel lacks, or that has vanished, is
left out, so that it is not taken for zero.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from cgroupspy.interfaces import BaseFileInterface, DictFile, FlagFile

from drfd.launcher.attempt_files import Key, cgroup_key
from drfd.launcher.confinement.interface import CgroupSetting, Counted, LimitFailed
from drfd.launcher.system.files import Plain, exchange
from drfd.linux.kernel_files import get_record, mounts


def find_mounts(mountinfo: str, wanted: Collection[str]) -> dict[str, str]:
    """Return controller → mount point for the `wanted` controllers on v1 hierarchies
    (proc_pid_mountinfo(5))."""
    return {
        controller: mount.point
        for mount in mounts(mountinfo)
        if mount.filesystem == "cgroup"
        for controller in mount.options
        if controller in wanted
    }


def find_unified(mountinfo: str) -> str | None:
    """Return the mount point of the v2 hierarchy, or None if there is none. Later mounts of it,
    such as a container runtime's, are ignored."""
    points = (mount.point for mount in mounts(mountinfo) if mount.filesystem == "cgroup2")
    return next(points, None)


def find_own(mountinfo: str, memberships: str, controller: str) -> str | None:
    """Return the directory of the caller's own cgroup of a controller on version 1, or None if the
    controller is not mounted or that cgroup is not visible below its mount point. `memberships` is
    the text of /proc/self/cgroup."""
    lines = (line.split(":", 2) for line in memberships.splitlines())
    own = next((path for _, names, path in lines if controller in names.split(",")), None)
    found = None
    for mount in mounts(mountinfo):
        # A container may see only a part of the hierarchy, and its membership from the whole's top.
        top = mount.root.rstrip("/")
        if mount.filesystem == "cgroup" and controller in mount.options and own is not None:
            is_visible = f"{own}/".startswith(f"{top}/")
            found = f"{mount.point}{own[len(top) :]}".rstrip("/") if is_visible else None
    return found


def ancestors(mount: str, group: str) -> list[str]:
    """Return the ancestors of a cgroup below a mount point, the mount point first."""
    parts = Path(group.strip("/")).parts
    return [str(Path(mount, *parts[:depth])) for depth in range(len(parts))]


#: The beginning of the names of groups of attempts.
_GROUP = "of-"


def cgroups_of(parent: str) -> tuple[dict[Key, str], list[str]]:
    """Return the places of attempts below `parent`, and those of groups of attempts, the outer ones
    first."""
    attempts, groups, left = dict[Key, str](), list[str](), [""]
    while left:
        above = left.pop()
        try:
            names = os.listdir(f"{parent}/{above}")
        except FileNotFoundError:
            continue
        for name in names:
            if (key := cgroup_key(name)) is not None:
                attempts[key] = f"{above}{name}"
            elif name.startswith(_GROUP):
                groups.append(f"{above}{name}")
                left.append(f"{above}{name}/")
    return attempts, groups


def keys_of(parent: str) -> list[Key]:
    """Return the attempts that have a cgroup below `parent`, in ascending order."""
    return sorted(cgroups_of(parent)[0])


class Freezer(Plain):
    state = BaseFileInterface("freezer.state")


def setting(directory: str, name: str, value: object, line: str | None = None) -> CgroupSetting:
    """Return that a file of a cgroup gets this value; its line is the same if none is given."""
    return CgroupSetting(f"{directory}/{name}", str(value), str(value) if line is None else line)


def whole_pages(size_bytes: int) -> int:
    """Return a size as the kernel keeps it in a limit."""
    page = os.sysconf("SC_PAGE_SIZE")
    return size_bytes // page * page


def carry_out(settings: Iterable[CgroupSetting]) -> None:
    """Set limits of a running job, as start.h does those of a new one. Raises LimitFailed, and
    FileNotFoundError if its cgroup is gone."""
    for path, text, line in settings:
        try:
            # The kernel may change a value at the same moment.
            for _ in range(2):
                there = exchange(path, text).splitlines()
                if line in there:
                    break
            else:
                raise LimitFailed(f"{path} was set to {text} and reads {'; '.join(there)}")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LimitFailed(f"{path}: {error.strerror}") from error


def explain(error: OSError) -> str:
    # A refused write has no file name, because it is noticed when the file is closed.
    name = os.fsdecode(error.filename) if error.filename else "a cgroup's limit"
    if error.errno == errno.ENOSPC:
        return f"{name}: the kernel has no room for another cgroup (65535 memory cgroups at most)"
    return f"{name}: {error.strerror}"


def regions_of_gpus(directory: str) -> dict[str, str]:
    """Return PCI address → region of the memory of each GPU that the kernel can limit in cgroups
    like this (kernel/cgroup/dmem.c)."""
    lines = _read(directory, "dmem.max", str.splitlines) or []
    regions = (line.partition(" ")[0] for line in lines)
    return {match[1]: match[0] for region in regions if (match := _GPU_REGION.fullmatch(region))}


#: The memory of a GPU by the name that amdgpu gives it.
_GPU_REGION = re.compile(r"drm/([0-9a-f:.]+)/vram")


class JobCgroup(Plain):
    events = DictFile("cgroup.events", readonly=True)
    freeze = FlagFile("cgroup.freeze")
    kill = FlagFile("cgroup.kill", writeonly=True)
    memory_events = DictFile("memory.events", readonly=True)
    own_memory_events = DictFile("memory.events.local", readonly=True)


#: Field → key in the file.
_V1_CPU = {"quota_periods": "nr_periods", "throttled_periods": "nr_throttled"}
_V2_CPU = {**_V1_CPU, "throttled_us": "throttled_usec"}
_V2_MEMORY = {"limit_hits": "max", "oom_kills": "oom_kill"}
#: Key of the bytes of shared memory and of files in memory that are still charged to the cgroup
#: when no process is left in it: they stay in use and belong to no job any more.
LEFT = "left_bytes"
#: Memory peak, in bytes, below which LEFT is not read: for a short job that would cost more than
#: all other counters together.
_LEAST_LEFT_BYTES = 16 << 20
#: Largest distance, in bytes, from its limit at which the kernel kills a job for that limit.
_NEAR_BYTES = 1 << 20


def count_v1(directories: Mapping[str, str]) -> Counted:
    """Return the counters on version 1. `directories` maps each controller to the job's directory.
    Version 1 does not count disk waits (kernel: cgroup-v1/blkio-controller.rst, throttling has
    bytes and operations)."""
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
    _put(counted, LEFT, _left(memory, "total_shmem", peak))
    cpu_ns = _number(directories.get("cpuacct"), "cpuacct.usage")
    _put(counted, "cpu_us", None if cpu_ns is None else cpu_ns // 1000)
    return counted


def oom_kills_v1(memory: str) -> tuple[bool, bool]:
    """Return what `Confinement.oom_kills` does, on version 1. The counter includes kills by a
    machine-wide shortage, in which case the limit was not hit."""
    if not _table(memory, "memory.oom_control").get("oom_kill"):
        return False, False
    peak = _number(memory, "memory.max_usage_in_bytes") or 0
    limit = _number(memory, "memory.limit_in_bytes")
    return True, limit is not None and peak >= limit - _NEAR_BYTES


def count_v2(directory: str) -> Counted:
    """Return the counters on version 2. Only newer kernels have peaks and pressure."""
    counted: Counted = {}
    cpu = _table(directory, "cpu.stat")
    if "nr_periods" in cpu:
        _take(counted, cpu, _V2_CPU)
    _take(counted, cpu, {"cpu_us": "usage_usec"})
    _take(counted, _table(directory, "memory.events"), _V2_MEMORY)
    peak = _number(directory, "memory.peak")
    _put(counted, "memory_peak_bytes", peak)
    _put(counted, LEFT, _left(directory, "shmem", peak))
    _put(counted, "processes_peak", _number(directory, "pids.peak"))
    _put(counted, "io_stalled_us", _stalled_us(directory))
    return counted


def _left(directory: str | None, name: str, peak: int | None) -> int | None:
    """Return the bytes left behind, which memory.stat calls `name`, or None if they are unknown or
    too few to matter."""
    if peak is not None and peak < _LEAST_LEFT_BYTES:
        return None
    return _table(directory, "memory.stat").get(name) or None


def _limit_hits_v1(memory: str | None, peak: int | None) -> int | None:
    """Return how often the memory limit was hit, or None if that is unknown or the count cannot be
    true: with swap accounting, the limit of memory and swap is the same and is hit first, and newer
    kernels (seen on 6.18) do not count that."""
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
    """Return the total of the line "some avg10=0.00 … total=123" in io.pressure, in microseconds
    (kernel: accounting/psi.rst)."""
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


T = TypeVar("T")


def _read(directory: str | None, name: str, read: Callable[[str], T]) -> T | None:
    """Return the parsed contents, or None if there is no such file or its form is unknown."""
    if directory is None:
        return None
    try:
        return read(get_record(f"{directory}/{name}"))
    except (OSError, ValueError, StopIteration):
        return None
