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
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from cgroupspy.contenttypes import DeviceThrottle
from cgroupspy.controllers import BlkIOController, CpuController, MemoryController
from cgroupspy.interfaces import BaseFileInterface, DictFile, FlagFile, IntegerFile, TypedFile

from drfd.launcher.attempt_files import Key, cgroup_key
from drfd.launcher.confinement.interface import Counted, LimitFailed
from drfd.launcher.system.files import Plain, get_record


def layout(mountinfo: str) -> str:
    """Return "unified" (version 2 alone), "legacy" (version 1 alone), "hybrid", or "none"."""
    kinds = {kind for kind, *_ in _mounts(mountinfo)}
    if kinds == {"cgroup", "cgroup2"}:
        return "hybrid"
    return {"cgroup": "legacy", "cgroup2": "unified"}[kinds.pop()] if kinds else "none"


def find_mounts(mountinfo: str, wanted: Collection[str]) -> dict[str, str]:
    """Return controller → mount point for the `wanted` controllers on v1 hierarchies
    (proc_pid_mountinfo(5))."""
    return {
        controller: place
        for kind, place, _, options in _mounts(mountinfo)
        if kind == "cgroup"
        for controller in options
        if controller in wanted
    }


def find_unified(mountinfo: str) -> str | None:
    """Return the mount point of the v2 hierarchy, or None if there is none. Later mounts of it,
    such as a container runtime's, are ignored."""
    places = [place for kind, place, *_ in _mounts(mountinfo) if kind == "cgroup2"]
    return places[0] if places else None


def find_own(mountinfo: str, memberships: str, controller: str) -> str | None:
    """Return the directory of the caller's own cgroup of a controller on version 1, or None if the
    controller is not mounted or that cgroup is not visible below its mount point. `memberships` is
    the text of /proc/self/cgroup."""
    lines = (line.split(":", 2) for line in memberships.splitlines())
    own = next((path for _, names, path in lines if controller in names.split(",")), None)
    found = None
    for kind, place, root, options in _mounts(mountinfo):
        # A container may see only a part of the hierarchy, and its membership from the whole's top.
        top = root.rstrip("/")
        if kind == "cgroup" and controller in options and own is not None:
            is_visible = f"{own}/".startswith(f"{top}/")
            found = f"{place}{own[len(top) :]}".rstrip("/") if is_visible else None
    return found


def ancestors(mount: str, group: str) -> list[str]:
    """Return the ancestors of a cgroup below a mount point, the mount point first."""
    parts = Path(group.strip("/")).parts
    return [str(Path(mount, *parts[:depth])) for depth in range(len(parts))]


def keys_of(parent: str) -> list[Key]:
    """Return the attempts that have a cgroup below `parent`, in ascending order."""
    try:
        names = os.listdir(parent)
    except FileNotFoundError:
        return []
    return sorted(key for name in names if (key := cgroup_key(name)) is not None)


def limit_processes(cgroup: str, most: int) -> None:
    """Allow `most` processes in the cgroup and below; running ones go on. Raises OSError."""
    Path(cgroup, "pids.max").write_text(str(most))


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield (file system, mount point, cgroup that is mounted there, options of the hierarchy) for
    each cgroup mount."""
    # Users can mount, too, and name their directories freely, except for the escaped characters.
    for line in mountinfo.split("\n"):
        before, _, after = line.partition(" - ")
        places, kinds = before.split(" "), after.split(" ", 2)
        # A line in another form is no cgroup mount.
        if len(places) > 4 and len(kinds) == 3 and kinds[0] in ("cgroup", "cgroup2"):
            yield kinds[0], _unescape(places[4]), _unescape(places[3]), kinds[2].split(",")


def _unescape(path: str) -> str:
    """Return the path in a mountinfo field, in which blanks and the like are written as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)


class _ThrottleFile(TypedFile):  # type: ignore[misc]  # cgroupspy has no types
    """Lines of "major:minor bytes_per_second"."""

    def __init__(self, filename: str) -> None:
        super().__init__(filename, contenttype=DeviceThrottle, many=True)


class BlockIO(Plain, BlkIOController):  # type: ignore[misc]  # cgroupspy has no types
    read_bps = _ThrottleFile("blkio.throttle.read_bps_device")
    write_bps = _ThrottleFile("blkio.throttle.write_bps_device")


class CpuFiles(Plain, CpuController):  # type: ignore[misc]  # cgroupspy has no types
    pass


class Memory(Plain, MemoryController):  # type: ignore[misc]  # cgroupspy has no types
    sockets_limit_in_bytes = IntegerFile("memory.kmem.tcp.limit_in_bytes")


class Pids(Plain):
    #: A number, or "max".
    max = BaseFileInterface("pids.max")


class Freezer(Plain):
    state = BaseFileInterface("freezer.state")


def verify(what: str, wanted: object, there: object) -> None:
    if wanted != there:
        raise LimitFailed(f"{what} was set to {wanted} and reads {there}")


def explain(error: OSError) -> str:
    # A refused write has no file name, because it is noticed when the file is closed.
    name = os.fsdecode(error.filename) if error.filename else "a cgroup's limit"
    if error.errno == errno.ENOSPC:
        return f"{name}: the kernel has no room for another cgroup (65535 memory cgroups at most)"
    return f"{name}: {error.strerror}"


class _Amount(BaseFileInterface):  # type: ignore[misc]  # cgroupspy has no types
    """A number; None is the kernel's "max", no limit."""

    def sanitize_get(self, value: str) -> int | None:
        return None if value == "max" else int(value)


class _Quota(BaseFileInterface):  # type: ignore[misc]  # cgroupspy has no types
    """(quota, period) in microseconds; no quota is None."""

    def sanitize_get(self, value: str) -> tuple[int | None, int]:
        quota, period = value.split()
        return None if quota == "max" else int(quota), int(period)

    def sanitize_set(self, value: tuple[int, int]) -> str:
        return f"{value[0]} {value[1]}"


class _IoMaxFile(BaseFileInterface):  # type: ignore[misc]  # cgroupspy has no types
    """Lines of "major:minor rbps=1000 wbps=max …": read as device → its rates that are limited,
    written one device at a time."""

    def sanitize_get(self, value: str) -> dict[str, dict[str, int]]:
        found = {}
        for line in value.splitlines():
            device, *pairs = line.split()
            rates = (pair.split("=", 1) for pair in pairs)
            found[device] = {name: int(rate) for name, rate in rates if rate != "max"}
        return found

    def sanitize_set(self, value: tuple[str, Mapping[str, int]]) -> str:
        device, rates = value
        return " ".join([device, *(f"{name}={rate}" for name, rate in rates.items())])


class _RegionsFile(BaseFileInterface):  # type: ignore[misc]  # cgroupspy has no types
    """Lines of "region bytes", for all regions of device memory that drivers have registered: read
    as region → limit, None for none; written one region at a time (kernel/cgroup/dmem.c)."""

    def sanitize_get(self, value: str) -> dict[str, int | None]:
        pairs = (line.split() for line in value.splitlines())
        return {region: None if size == "max" else int(size) for region, size in pairs}

    def sanitize_set(self, value: tuple[str, int]) -> str:
        region, size = value
        return f"{region} {size}"


def regions_of_gpus(group: JobCgroup) -> dict[str, str]:
    """Return PCI address → region of the memory of each GPU that the kernel can limit for this
    cgroup. A GPU with memory in several regions is left out, because its sum cannot be limited."""
    found: dict[str, list[str]] = {}
    try:
        regions = group.dmem_max
    except (OSError, ValueError):
        return {}
    for region in regions:
        # drm/0000:03:00.0/vram of amdgpu, drm/0000:03:00.0/vram0 of xe.
        if match := _GPU_REGION.fullmatch(region):
            found.setdefault(match[1], []).append(region)
    return {pci: some[0] for pci, some in found.items() if len(some) == 1}


_GPU_REGION = re.compile(r"drm/([0-9a-f:.]+)/vram[0-9]*")


class JobCgroup(Plain):
    events = DictFile("cgroup.events", readonly=True)
    freeze = FlagFile("cgroup.freeze")
    kill = FlagFile("cgroup.kill", writeonly=True)
    cpu_max = _Quota("cpu.max")
    cpu_weight = _Amount("cpu.weight")
    memory_max = _Amount("memory.max")
    swap_max = _Amount("memory.swap.max")
    oom_group = FlagFile("memory.oom.group")
    memory_events = DictFile("memory.events", readonly=True)
    own_memory_events = DictFile("memory.events.local", readonly=True)
    pids_max = _Amount("pids.max")
    io_max = _IoMaxFile("io.max")
    dmem_max = _RegionsFile("dmem.max")

    def limit(self, name: str, value: object) -> None:
        """Set a limit and read it back. Raises LimitFailed, which names the file."""
        self._write(name, value)
        self._verify(name, value, getattr(self, name))

    def limit_disk(self, device: str, rates: Mapping[str, int]) -> None:
        """Set one disk's limits in io.max and read them back. `rates` is bytes per second by key,
        such as "rbps". Raises LimitFailed."""
        self._write("io_max", (device, rates))
        self._verify("io_max", rates, self.io_max.get(device))

    def limit_region(self, region: str, size_bytes: int) -> None:
        """Set the limit of one region of device memory and read it back. Raises LimitFailed."""
        self._write("dmem_max", (region, size_bytes))
        self._verify("dmem_max", size_bytes, self.dmem_max.get(region))

    def _write(self, name: str, value: object) -> None:
        try:
            setattr(self, name, value)
        except OSError as error:
            # For a missing file the kernel answers, misleadingly, that it cannot be created here.
            there = os.path.exists(self.path_of(name))
            why = error.strerror if there else "the kernel offers no such file here"
            raise LimitFailed(f"{self.path_of(name)}: {why}") from error

    def _verify(self, name: str, wanted: object, there: object) -> None:
        if wanted != there:
            raise LimitFailed(f"{self.path_of(name)} was set to {wanted} and reads {there}")


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
