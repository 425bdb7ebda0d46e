"""Which jobs have CPUs of their own, and where all others run: on what nobody has pinned.

The kernel's files tell it (cpusets.py), to this launcher and to the next. They are read at the
start; after that nobody else changes them. A frozen job keeps its CPUs in name only: others may
have them, and it gets as many again before it is thawed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from drfd.launcher import placement, topology
from drfd.launcher.attempts import Key
from drfd.launcher.confinement import LimitFailed
from drfd.launcher.cpusets import Cpusets
from drfd.launcher.placement import Cpu, Cpus

log = logging.getLogger("drfd.launcher")


class Pins:
    def __init__(
        self,
        cpusets: Cpusets,
        machine: tuple[Cpu, ...],
        *,
        is_frozen: Callable[[Key], bool],
        memory_bytes: Callable[[Key], int],
        room_bytes: Callable[[int], int] = topology.room_bytes,
    ) -> None:
        """`machine`: the CPUs that jobs may use. `memory_bytes`: what a job may use at most;
        `room_bytes`: what a node has left now."""
        self._cpusets = cpusets
        self._machine = machine
        self._all = frozenset(cpu.number for cpu in machine)
        self._is_frozen = is_frozen
        self._memory_bytes = memory_bytes
        self._room_bytes = room_bytes
        self._pinned: dict[Key, Cpus] = {}
        #: Of frozen jobs.
        self._parked: dict[Key, Cpus] = {}
        for key in cpusets.jobs():
            cpus = cpusets.pinned(key)
            if cpus is not None:
                (self._parked if is_frozen(key) else self._pinned)[key] = cpus
        # An earlier launcher may have been killed half-way.
        self._give_back()

    def pin(self, key: Key, count: int) -> bool:
        """Give a new job CPUs of its own, which the others leave first. False: there are not so
        many, which is so only where more is given out than there is. Raises LimitFailed."""
        cpus = self._choose(key, count)
        if cpus is None:
            return False
        self._pinned[key] = cpus
        self._push_others(key)
        self._cpusets.pin(key, cpus, self._nodes(key, cpus))
        return True

    def share(self, key: Key) -> None:
        """Let a new job run where nothing is pinned. Raises LimitFailed."""
        self._cpusets.share(key, self._common())

    def forget(self, key: Key) -> None:
        """The job's cgroup is gone."""
        self._parked.pop(key, None)
        if self._pinned.pop(key, None) is not None:
            self._give_back()

    def park(self, key: Key) -> None:
        """The job is frozen."""
        cpus = self._pinned.pop(key, None)
        if cpus is not None:
            self._parked[key] = cpus
            self._give_back()

    def unpark(self, key: Key) -> int:
        """The job is about to be thawed. 0: all is as it should be; else it runs with the others
        now, and this is the number of CPUs that it was to have."""
        before = self._parked.pop(key, None)
        if before is None:
            return 0
        try:
            cpus = self._choose(key, len(before), before)
            if cpus is not None:
                self._pinned[key] = cpus
                self._push_others(key)
                if cpus != before:
                    self._cpusets.pin(key, cpus, self._nodes(key, cpus))
                return 0
        except (OSError, LimitFailed) as error:
            log.error("event=not-pinned job=%d attempt=%d error=%s", *key, error)
            self._pinned.pop(key, None)
        self._give_back()
        return len(before)

    def _choose(self, key: Key, count: int, before: Cpus | None = None) -> Cpus | None:
        """Those that it had `before`, if it can be."""
        free = self._free()
        if count == len(free) and not all(map(self._is_frozen, self._others(key))):
            # More is given out than there is; somebody must be left with something.
            return None
        if before is not None and before <= free:
            return before
        parked = frozenset[int]().union(*self._parked.values())
        return placement.choose(count, free, self._machine, avoid=parked)

    def _free(self) -> Cpus:
        """Those of offline processors left out."""
        return (self._all & self._cpusets.cpus()).difference(*self._pinned.values())

    def _common(self) -> Cpus:
        return self._free() or self._cpusets.cpus()

    def _nodes(self, key: Key, cpus: Cpus) -> frozenset[int]:
        """Memory nodes: those of the CPUs, if all that the job may use can be had there, beside
        what others there may use yet. Else it could die for want of memory that there is."""
        everywhere = self._cpusets.memory_nodes()
        own = placement.nodes_of(cpus, self._machine) & everywhere
        if own == everywhere or not own:
            return everywhere
        promised = sum(
            self._memory_bytes(other)
            for other, theirs in self._pinned.items()
            if other != key and placement.nodes_of(theirs, self._machine) & own
        )
        room = sum(map(self._room_bytes, own)) - promised
        return own if self._memory_bytes(key) <= room else everywhere

    def _others(self, key: Key) -> list[Key]:
        """Jobs that have no CPUs of their own."""
        known = {key, *self._pinned, *self._parked}
        return [other for other in self._cpusets.jobs() if other not in known]

    def _push_others(self, key: Key) -> None:
        """Off what is pinned. Raises LimitFailed."""
        for other in self._others(key):
            try:
                self._cpusets.share(other, self._common())
            except FileNotFoundError:
                continue

    def _give_back(self) -> None:
        """Let all others run on all that is free; if that fails, they have less than they might."""
        for other in self._others((0, 0)):
            try:
                self._cpusets.share(other, self._common())
            except (OSError, LimitFailed) as error:
                log.error("event=not-shared job=%d attempt=%d error=%s", *other, error)
