"""The kernel's files about the cgroups of a demo's jobs."""

from __future__ import annotations

from pathlib import Path


def directory(controller: str, cgroup: str, name: str) -> Path | None:
    """Return the directory of the cgroup under a controller of cgroup v1, or under v2 if it has a
    file of this name there; None if there is neither."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        place = Path(before.split(" ")[4], cgroup.lstrip("/"))
        if kind == "cgroup" and controller in options.split(",") and place.is_dir():
            return place
        if kind == "cgroup2" and (place / name).exists():
            return place
    return None


def cpu_s(cgroup: str) -> float | None:
    """Return the processor time that a cgroup has used, in seconds, or None if it is gone."""
    place = directory("cpuacct", cgroup, "cpu.stat")
    try:
        if place is None:
            return None
        if (place / "cpuacct.usage").exists():
            return int((place / "cpuacct.usage").read_text()) / 1e9
        lines = (place / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("usage_usec "))
    except OSError:
        return None
