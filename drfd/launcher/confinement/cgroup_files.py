"""The files of a job's cgroup: its mount points, limits as typed descriptors, and counters.

Only mountinfo tells where a controller is: by the type of the file system, not by the usual path.
Of version 2, only those controllers are of use that version 1 does not have (hybrid machines).

A limit that is set is read back. Version 1: cgroupspy's descriptors serve, with the file types that
cgroupspy 0.2.3 lacks. Version 2: of cgroupspy 0.2.3 only the descriptors serve; its tree and its
file types know version 1 alone, and fail on "max" and on nested keys.

Counters are data (`Counter`): a job's runner puts their numbers on record at the end, and the
controller judges these (`drfd.daemon.launcher_link.failures`).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from cgroupspy.interfaces import BaseFileInterface, DictFile, FlagFile

from drfd.launcher.attempt_files import Key, cgroup_key
from drfd.launcher.confinement.interface import CgroupSetting, Counted, Counter
from drfd.launcher.protocol import NO_CGROUP
from drfd.launcher.system.files import Plain
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


def explain(error: OSError) -> str:
    # A refused write has no file name, because it is noticed when the file is closed.
    name = os.fsdecode(error.filename) if error.filename else "a cgroup's limit"
    if error.errno == errno.ENOSPC:
        return f"{name}: {NO_CGROUP}"
    return f"{name}: {error.strerror}"


def regions_of_gpus(directory: str) -> dict[str, str]:
    """Return PCI address → region of the memory of each GPU that the kernel can limit in cgroups
    like this (kernel/cgroup/dmem.c)."""
    try:
        lines = get_record(f"{directory}/dmem.max").splitlines()
    except OSError:
        lines = []
    regions = (line.partition(" ")[0] for line in lines)
    return {match[1]: match[0] for region in regions if (match := _GPU_REGION.fullmatch(region))}


#: The memory of a GPU by the name that amdgpu gives it.
_GPU_REGION = re.compile(r"drm/([0-9a-f:.]+)/vram")


class JobCgroup(Plain):
    events = DictFile("cgroup.events", readonly=True)
    freeze = FlagFile("cgroup.freeze")
    kill = FlagFile("cgroup.kill", writeonly=True)


#: Name of the bytes of shared memory and of files in memory that are still charged to the cgroup
#: when no process is left in it: they stay in use and belong to no job any more.
LEFT = "left_bytes"
#: Memory peak, in bytes, below which LEFT is not read: for a short job that would cost more than
#: all other counters together.
_LEAST_LEFT_BYTES = 16 << 20
#: On version 1, controller, file, key and name of each counter. It does not count disk waits
#: (kernel: cgroup-v1/blkio-controller.rst, throttling has bytes and operations).
_V1 = (
    ("cpu", "cpu.stat", "nr_periods", "quota_periods"),
    ("cpu", "cpu.stat", "nr_throttled", "throttled_periods"),
    ("cpu", "cpu.stat", "throttled_time", "throttled_ns"),
    ("cpuacct", "cpuacct.usage", "", "cpu_ns"),
    ("memory", "memory.oom_control", "oom_kill", "oom_kills"),
    ("memory", "memory.failcnt", "", "hits"),
    ("memory", "memory.memsw.failcnt", "", "swap_hits"),
    ("memory", "memory.limit_in_bytes", "", "limit_bytes"),
    ("memory", "memory.max_usage_in_bytes", "", "memory_peak_bytes"),
)
#: On version 2. Only newer kernels have peaks and pressure, whose first line is "some avg10=0.00 …
#: total=123" in microseconds (kernel: accounting/psi.rst). systemd-oomd leaves an attribute where
#: it has killed for a shortage of the whole machine.
_V2 = (
    ("cpu.stat", "nr_periods", "quota_periods"),
    ("cpu.stat", "nr_throttled", "throttled_periods"),
    ("cpu.stat", "throttled_usec", "throttled_us"),
    ("cpu.stat", "usage_usec", "cpu_us"),
    ("memory.events", "max", "limit_hits"),
    ("memory.events", "oom_kill", "oom_kills"),
    ("memory.events.local", "oom", "own_ooms"),
    ("memory.events.local", "oom_kill", "own_oom_kills"),
    ("pids.peak", "", "processes_peak"),
    ("io.pressure", "total", "io_stalled_us"),
    ("", "user.oomd_ooms", "oomd_ooms"),
    ("memory.peak", "", "memory_peak_bytes"),
)


def counters_v1(directories: Mapping[str, str]) -> list[Counter]:
    """Return the counters on version 1. `directories` maps each controller to the job's."""
    found = [
        Counter(f"{directories[controller]}/{file}", key, name)
        for controller, file, key, name in _V1
        if controller in directories
    ]
    if "memory" in directories:
        found.append(_left(directories["memory"], "total_shmem"))
    return found


def counters_v2(directory: str) -> list[Counter]:
    """Return the counters on version 2."""
    found = [Counter(f"{directory}/{file}", key, name) for file, key, name in _V2]
    return [*found, _left(directory, "shmem")]


def _left(directory: str, key: str) -> Counter:
    """Return the counter of LEFT, which follows that of the memory peak."""
    return Counter(f"{directory}/memory.stat", key, LEFT, str(_LEAST_LEFT_BYTES))


def read_counters(counters: Iterable[Counter]) -> Counted:
    """Return the numbers that there are, as wait.h does for an attempt that ends."""
    found: Counted = {}
    number: int | None = None
    for path, key, name, least in counters:
        if number is not None and number < int(least):
            continue
        number = _number(path, key)
        if number is not None:
            found[name] = number
    return found


def _number(path: str, key: str) -> int | None:
    try:
        if key.startswith("user."):
            return int(os.getxattr(path, key))
        pattern = rf"(?:^|[ \n]){key}[ =](\d+)" if key else r"\A(\d+)"
        match = re.search(pattern, get_record(path))
        return None if match is None else int(match[1])
    except (OSError, ValueError):
        return None
