"""A bound on what all tasks of a demo hold together, so that no more than that is ever at stake.

Where the daemon has cgroups and we may write to them, the kernel keeps it: from tasks that together
want more it takes pages away, which they have to get again, as on a machine that swaps. Elsewhere
this process can only do as an OOM daemon does: it looks often, and kills the largest.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

#: In the environment of each task; how we know it for one of ours.
MARK = "DRF_DEMO"


class Bound(Protocol):
    #: Who keeps it, for people.
    keeper: str
    #: Are tasks slowed down, not killed?
    reclaims: bool

    def held_bytes(self) -> int:
        """What all tasks hold now; makes room if that is too much."""
        ...


def bound(cgroup: str | None, mark: str, most_bytes: int) -> Bound:
    """`cgroup`: of any one of the jobs, if it has one; `mark`: in the environment of all."""
    if cgroup is not None:
        place = _memory_group(str(Path(cgroup).parent))
        if place is not None:
            try:
                return _ByKernel(place, most_bytes)
            except OSError:
                # Another's to write to, as in a scope of a user's own manager.
                pass
    return _ByHand(mark, most_bytes)


def _memory_group(group: str) -> Path | None:
    """Its directory, on whichever version has the memory controller."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        place = Path(before.split(" ")[4], group.lstrip("/"))
        if kind == "cgroup" and "memory" in options.split(",") and place.is_dir():
            return place
        if kind == "cgroup2" and (place / "memory.max").exists():
            return place
    return None


class _ByKernel:
    keeper = "the kernel: from tasks that together want more, it takes pages away"
    reclaims = True

    def __init__(self, place: Path, most_bytes: int) -> None:
        """Raises OSError when it cannot be set."""
        if (place / "memory.max").exists():
            limits, self._held = ["memory.max"], place / "memory.current"
        else:
            # Memory and swap together: with the one bounded alone, the rest would go to the swap.
            limits = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
            self._held = place / "memory.usage_in_bytes"
        for name in limits:
            if (place / name).exists():
                (place / name).write_text(str(most_bytes))

    def held_bytes(self) -> int:
        return int(self._held.read_text())


class _ByHand:
    keeper = "this program, which kills the largest task: there is no cgroup to bound them all"
    reclaims = False

    def __init__(self, mark: str, most_bytes: int) -> None:
        self._mark, self._most_bytes = f"{MARK}={mark}".encode(), most_bytes

    def held_bytes(self) -> int:
        sizes = {pid: size for pid in self._tasks() if (size := _size(pid)) is not None}
        held = sum(sizes.values())
        while sum(sizes.values()) > self._most_bytes:
            largest = max(sizes, key=lambda pid: sizes[pid])
            self._kill(largest)
            del sizes[largest]
        return held

    def _tasks(self) -> Iterator[int]:
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal() and self._is_ours(int(entry.name)):
                yield int(entry.name)

    def _is_ours(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            # Gone, or not ours to look at.
            return False

    def _kill(self, pid: int) -> None:
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return
        try:
            # Looked at again: until just now the number might have become another's.
            if self._is_ours(pid):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(process)


def _size(pid: int) -> int | None:
    """What it holds, with its part of what it shares; None when it has gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:")), None
    )
