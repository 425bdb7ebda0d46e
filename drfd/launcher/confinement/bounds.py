"""Bounds on the processes of jobs, in all and for each user, and on what the launcher itself keeps.

They follow from the kernel's own limits for the whole machine. The launcher answers every order
beyond its bounds with a shortage and starts nothing, whatever the controller orders.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from drfd.launcher.confinement.cgroup_files import ancestors, find_mounts, find_unified
from drfd.linux.kernel_files import get, word_in

#: Share of the kernel's processes that is kept for the system and drfd itself (one in
#: `_RESERVE_PART`), and its least number.
_RESERVE_PART, _RESERVE_LEAST = 8, 512
#: Descriptors that the launcher needs for a running attempt: two, and one for its notification.
_FDS_EACH = 3
#: Descriptors that the launcher needs for everything else.
_FDS_SPARE = 64
#: At most one in `_RUNNER_PART` of the possible processes may be a runner.
_RUNNER_PART = 4
_MOST_RUNNING = 20_000
#: Attempts that the launcher may know, running or waiting for removal, for each that may run.
KNOWN_EACH = 4


@dataclass(frozen=True, slots=True)
class ProcessBounds:
    """Largest numbers of processes. Threads count as processes, as they do to the kernel."""

    #: Processes of all jobs together.
    total: int
    #: Processes of one user, those outside drfd included.
    per_user: int


def process_bounds(limit: int, total: int | None, per_user: int | None) -> ProcessBounds:
    """Return the bounds that follow from the machine's `limit`. `total` and `per_user` are the
    configured values, or None for the defaults; they are lowered where they would cut into the
    reserve."""
    most = max(limit - max(_RESERVE_LEAST, limit // _RESERVE_PART), limit // 2, 1)
    total = most if total is None else min(total, most)
    per_user = max(1, total // 2) if per_user is None else min(per_user, total)
    return ProcessBounds(total, per_user)


def most_running(descriptors: int, limit: int) -> int:
    """Return how many attempts may have a runner, given the launcher's descriptors and the
    machine's process limit."""
    by_descriptors = (descriptors - _FDS_SPARE) // _FDS_EACH
    return max(1, min(by_descriptors, limit // _RUNNER_PART, _MOST_RUNNING))


def read_most_running(mountinfo: str) -> int:
    """Return that of this process, by its resource limits and its cgroups."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        descriptors = _MOST_RUNNING * _FDS_EACH + _FDS_SPARE
    return most_running(descriptors, kernel_limit(_own_cgroups(mountinfo)))


def kernel_limit(cgroups: Iterable[str]) -> int:
    """Return how many processes there can be, by the kernel's limits and those of these cgroups;
    for an ordinary user, no more than that user may have."""
    limits = [int(get(f"/proc/sys/kernel/{name}")) for name in ("pid_max", "threads-max")]
    if os.getuid() != 0:
        limits.append(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    # The root cgroup has no limit, and a container does not see all of them.
    texts = (word_in(f"{cgroup}/pids.max") for cgroup in cgroups)
    limits += [int(text) for text in texts if text not in ("", "max")]
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


def _own_cgroups(mountinfo: str) -> Collection[str]:
    """Return the cgroups of this process and their ancestors, as far as they are visible."""
    lines = [line.split(":", 2) for line in get("/proc/self/cgroup").splitlines()]
    v1, v2 = find_mounts(mountinfo, ("pids",)).get("pids"), find_unified(mountinfo)
    found: list[str] = []
    for _, names, path in lines:
        mount = v2 if not names else v1 if "pids" in names.split(",") else None
        if mount is not None:
            found += [*ancestors(mount, path), f"{mount}/{path.strip('/')}"]
    return found
