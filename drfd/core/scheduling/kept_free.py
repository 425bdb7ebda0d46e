"""The capacity that is withheld from jobs because of load from outside drfd.

The measured load is smoothed to a level, which moves only when all of the latest `SAMPLES` samples
are on one side of it, and then to the nearest of them. The resources outside the capacity cover the
first part of the level; the rest is withheld from new jobs once it is large enough to be noticed,
until it is less than half of that. Running jobs and entitlements are not affected.

An instance, such as a GPU, that a process outside drfd uses is given to no job. On other nodes the
jobs count that were submitted to the node's own scheduler past drfd, with their allocations.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from msgspec import structs

from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.machine import Allocation, FreeResources, Instance, each_instance
from drfd.core.model.resources import NOTHING, Axes, Resources


def free_of(
    ledger: Ledger, rules: Rules, external: ExternalLoad | None, leaving: Allocation | None = None
) -> FreeResources:
    """Return the resources that are free when jobs have released what is `leaving`; an amount is
    negative where more is held than there is."""
    free = rules.free - ledger.allocated
    if leaving is not None:
        free += leaving
    free = free.without(ledger.closed_nodes)
    return free if external is None else external.taken_from(free, ledger)


#: The number of latest samples that must be on one side of the level to move it.
SAMPLES = 5
#: The number of latest readings that decide whether an instance is in use outside drfd.
_READINGS = 3
#: Seconds after which a reading says nothing any more: who takes them has died, or hangs.
_STALE_S = 30.0
#: A load is expected to last as long again as it has lasted, and at least this many seconds.
_LEAST_S = 60.0
#: A load that has lasted this many seconds is expected to stay: nothing waits for its end.
_LASTING_S = 3600.0

#: Cores (thousandths) and memory (bytes): all that can be seen from outside.
_Pair = tuple[int, int]


class OutsideUse(NamedTuple):
    """What all processes of a program that a user runs outside drfd use."""

    user: str
    program: str
    used: Resources


def is_news(memory_bytes: int, before_bytes: int, capacity_bytes: int) -> bool:
    """Return whether memory in use outside has begun or ended or changed by a twentieth of the
    capacity since what the next daemon was left."""
    change = abs(memory_bytes - before_bytes)
    return change * 20 >= capacity_bytes or (change > 0 and 0 in (memory_bytes, before_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalLoad:
    #: The use by processes outside drfd.
    used: Resources
    #: The part of the capacity that is kept free for them.
    kept: Resources
    #: The expected end (Unix time); infinity if it is unknown.
    until_s: float
    #: Instances that they use and no job has, each with the names of their users.
    instances: tuple[tuple[Instance, tuple[str, ...]], ...] = ()
    #: Who uses most here, in no order.
    users: tuple[OutsideUse, ...] = ()

    def taken_from(self, free: FreeResources, ledger: Ledger) -> FreeResources:
        """Return what is left of `free`, without shared instances that are in use outside."""
        kept = ledger.axes.at_home(self.kept)
        return (free - kept).shut(self.shared_names(ledger.axes))

    def shared_names(self, axes: Axes) -> tuple[str, ...]:
        """Return which instances of the resource that jobs may share they use."""
        return tuple([each for (name, each), _ in self.instances if axes.is_shared(name)])

    @property
    def is_of_instances_alone(self) -> bool:
        return not self.used.cores_milli and not self.used.memory_bytes


def beside_jobs(load: ExternalLoad | None, ledger: Ledger) -> ExternalLoad | None:
    """Return the load with the instances that no job has counted as used and kept free: one that a
    job has is not free anyway. None if nothing is left of it."""
    if load is None or not load.instances:
        return load
    axes = ledger.axes
    free = set(each_instance(axes.instances)) - ledger.taken.keys()
    # Of a shared one, the part that no job has is kept free: `free_of` subtracts it.
    left = tuple(
        (each, users)
        for each, users in load.instances
        if each in free or (axes.is_shared(each[0]) and each in ledger.taken)
    )
    counts = Counter(name for (name, _), _ in left if not axes.is_shared(name))
    gres = tuple(sorted(counts.items()))
    if not left and load.kept == NOTHING:
        return None
    return replace(
        load,
        used=structs.replace(load.used, gres=gres),
        kept=structs.replace(load.kept, gres=gres),
        instances=left,
    )


@dataclass
class ExternalLoadEstimator:
    """Estimates the external load from samples."""

    #: See `ExternalLoad`.
    kept: Resources = NOTHING
    instances: dict[Instance, tuple[str, ...]] = field(default_factory=dict)
    users: tuple[OutsideUse, ...] = ()
    #: Those of the latest readings.
    _readings: deque[frozenset[Instance]] = field(default_factory=lambda: deque(maxlen=_READINGS))
    #: When the latest reading was taken (Unix time).
    _read_at_s: float = -inf
    _samples: deque[_Pair] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    _level: _Pair = (0, 0)
    #: The time since which anything has been kept free (Unix time).
    _since_s: float = 0.0

    def see(self, use: Resources, rules: Rules, now_s: float) -> bool:
        """Take a sample of what processes other than drfd and its jobs use. Returns whether it
        changes what is kept free."""
        if rules.beside is None:
            before, self.kept, self._level = self.kept, NOTHING, (0, 0)
            self._samples.clear()
            return before != NOTHING
        self._samples.append((use.cores_milli, use.memory_bytes))
        if len(self._samples) < SAMPLES:
            return False
        cores, memory = zip(*self._samples, strict=True)
        self._level = _drawn(self._level[0], cores), _drawn(self._level[1], memory)
        return self._judge(rules, rules.beside, now_s)

    def leave(self, memory_bytes: int, rules: Rules, now_s: float) -> bool:
        """Count memory that a job has left in use at its end as external load, before samples show
        it: a job that starts meanwhile would be given the same memory. Return whether the amount
        changed."""
        if rules.beside is None:
            return False
        self._level = self._level[0], self._level[1] + memory_bytes
        # Earlier samples lack this memory, and must not draw the level back.
        self._samples = deque(
            ((cores, memory + memory_bytes) for cores, memory in self._samples), maxlen=SAMPLES
        )
        return self._judge(rules, rules.beside, now_s)

    def see_instances(
        self, used: Mapping[Instance, tuple[str, ...]], rules: Rules, now_s: float
    ) -> bool:
        """Take a reading of the instances that processes outside drfd use, with their users. Return
        whether the withheld ones change: those in all of the latest readings, until they are in
        none."""
        before = self.instances
        if rules.beside is None:
            self.instances = {}
            self._readings.clear()
            return bool(before)
        if now_s - self._read_at_s > _STALE_S:
            self._readings.clear()
        self._read_at_s = now_s
        self._readings.append(frozenset(used))
        if len(self._readings) == _READINGS:
            in_all = frozenset.intersection(*self._readings)
            in_any = frozenset.union(*self._readings)
            busy = in_all | (in_any & before.keys())
            self.instances = {each: used.get(each) or before.get(each, ()) for each in sorted(busy)}
        return self.instances.keys() != before.keys()

    def resume(self, memory_bytes: int, rules: Rules, now_s: float) -> None:
        """Withhold as much memory as before a restart until there are enough samples."""
        if rules.beside is not None and memory_bytes:
            self._level = self._level[0], memory_bytes + rules.beside.memory_bytes
            self._judge(rules, rules.beside, now_s)

    def _judge(self, rules: Rules, beside: Resources, now_s: float) -> bool:
        """Compute what is kept free from the level. Returns whether that has changed."""
        before, capacity = self.kept, rules.own_capacity
        self.kept = Resources(
            cores_milli=_noticed(
                self._level[0] - beside.cores_milli if rules.waits_for_cores else 0,
                least=max(500, capacity.cores_milli // 16),
                is_seen=before.cores_milli > 0,
            ),
            memory_bytes=_noticed(
                self._level[1] - beside.memory_bytes,
                least=min(1 << 30, capacity.memory_bytes // 16),
                is_seen=before.memory_bytes > 0,
            ),
        )
        if before == NOTHING:
            self._since_s = now_s
        return self.kept != before

    def load(self, now_s: float) -> ExternalLoad | None:
        is_stale = now_s - self._read_at_s > _STALE_S
        instances = () if is_stale else tuple(self.instances.items())
        if self.kept == NOTHING:
            if not instances:
                return None
            # Nothing says when a GPU will be free again.
            return ExternalLoad(used=NOTHING, kept=NOTHING, until_s=inf, instances=instances)
        lasted_s = now_s - self._since_s
        return ExternalLoad(
            used=Resources(cores_milli=self._level[0], memory_bytes=self._level[1]),
            kept=self.kept,
            until_s=inf if instances or lasted_s >= _LASTING_S else now_s + max(_LEAST_S, lasted_s),
            instances=instances,
            users=self.users,
        )


def _drawn(level: int, samples: tuple[int, ...]) -> int:
    """Return the level, moved to the nearest sample if all are above it or all below."""
    return max(min(samples), min(max(samples), level))


def _noticed(beyond: int, *, least: int, is_seen: bool) -> int:
    """Return the amount to keep free for a use `beyond` the resources set aside for it. Less than
    `least` is background work of the system, or an error of measurement."""
    return beyond if beyond >= (least // 2 if is_seen else least) and beyond > 0 else 0
