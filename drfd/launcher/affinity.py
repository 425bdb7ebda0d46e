"""Where no quota can be had: each job on as many CPUs as it declares, neighbours on others.

A program can undo this for itself, so it is not called enforced.
"""

from __future__ import annotations

import os
from collections import Counter

from drfd.launcher import placement, topology
from drfd.launcher.attempts import Attempt, Key
from drfd.launcher.placement import Cpus
from drfd.launcher.protocol import PIN, QUOTA, WEIGHT, Limits


def controls(why: str) -> dict[str, str]:
    """As `Confinement.cores`; `why` there is nothing better."""
    return {
        QUOTA: f"measured: kept on as many CPUs as it declares, rounded up; {why}",
        WEIGHT: f"not controlled: jobs have weights only in cgroups; {why}",
        PIN: "measured: whole cores on CPUs of their own, as far as there are some and programs "
        f"stay there; {why}",
    }


class Affinity:
    def __init__(self) -> None:
        self._machine = topology.read_machine(topology.usable_cpus())
        self._all = frozenset(cpu.number for cpu in self._machine)
        self._next_cpu = 0
        #: The jobs that are to stay on some CPUs.
        self._kept: dict[Key, Cpus] = {}
        #: Those of them that are to be alone there.
        self._alone: set[Key] = set()

    def adopt(self, key: Key, attempt: Attempt | None) -> None:
        """A job of an earlier launcher, which may have been alone: nobody is put beside it while
        there is room elsewhere."""
        if attempt is None or attempt.running is None or attempt.is_over:
            return
        try:
            cpus = frozenset(os.sched_getaffinity(attempt.running["pid"]))
        except ProcessLookupError:
            return
        if cpus < self._all:
            self._kept[key] = cpus
            self._alone.add(key)

    def choose(self, key: Key, limits: Limits) -> None:
        """For a new job, in the launcher; its runner is forked after this."""
        if limits.cores_by == WEIGHT:
            return
        count = min(max(1, -(-limits.cores_milli // 1000)), len(self._all))
        if limits.cores_by == QUOTA:
            self._kept[key] = self._in_turn(count)
            return
        is_whole = limits.cores_milli == count * 1000
        taken = [self._kept[other] for other in self._alone]
        free = self._all.difference(*(self._kept.values() if is_whole else taken))
        # Parts go together, so that whole CPUs stay free; from the top, as whole ones do not.
        found = placement.choose(count, free, self._machine) if is_whole else self._top(count, free)
        self._kept[key] = found or self._least_used(count)
        if is_whole:
            self._alone.add(key)

    def keep(self, key: Key, pid: int) -> None:
        """As `Confinement.enter`."""
        if key in self._kept:
            os.sched_setaffinity(pid, self._kept[key])

    def forget(self, key: Key) -> None:
        self._kept.pop(key, None)
        self._alone.discard(key)

    def _in_turn(self, count: int) -> Cpus:
        cpus = sorted(self._all)
        first, self._next_cpu = self._next_cpu, self._next_cpu + count
        return frozenset(cpus[(first + i) % len(cpus)] for i in range(count))

    def _top(self, count: int, free: Cpus) -> Cpus | None:
        return frozenset(sorted(free)[-count:]) if count <= len(free) else None

    def _least_used(self, count: int) -> Cpus:
        used = Counter(cpu for cpus in self._kept.values() for cpu in cpus)
        return frozenset(sorted(self._all, key=lambda cpu: (used[cpu], cpu))[:count])
