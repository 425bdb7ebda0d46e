"""Big jobs: reservations, so that they start, and backfill around them, so that nothing idles.

A head job that does not fit and has waited for `patience_s` gets a place and keeps it; `depth` jobs
may have one at a time (1: EASY backfilling; many: nearly the conservative kind), each placed behind
those before it.
Its shadow time is the first moment at which it fits for as long as it is estimated to run, if the
running jobs end as estimated and the jobs reserved before it start at their own shadow times; what
is free then beyond all of them is spare. Between those starts free resources only grow, so another
job may start if, for each reservation, it ends before the shadow time or fits into the spare, on
every resource by itself. When the first shadow time that a job was given is past by
`drain_after_s`, or when its shadow time has passed twice, nothing may start in what it needs of the
free resources at all: a drain. Only jobs that have outlived their estimates are cured by one. Long
jobs that run as estimated end no sooner by it; and where all have waited for long, drains for
whoever has would follow one upon another, and most of the machine would idle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from operator import itemgetter

from drfd.core.resources import Vector, fits, minus, plus, short_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """When waiting turns into a reservation, and that into a drain, or a wait without one into a
    bar (see `core.eldest`); seconds."""

    patience_s: float = 30.0
    drain_after_s: float = 4 * 30.0 + 86400
    #: Off: jobs that do not fit are passed over for ever.
    reserves: bool = True
    #: How many jobs may be reserved for at a time.
    depth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What is kept for one job. Goes from one pass to the next."""

    job_id: int
    leaf: str
    demand: Vector
    #: The shadow time, Unix time: it starts by then if all ends as estimated.
    start_s: float
    #: When it will have ended then, as estimated.
    end_s: float
    #: What others may take beyond the shadow time.
    spare: Vector
    #: The first shadow time that it was given.
    due_s: float
    #: How often the shadow time has passed and the job has not started.
    missed: int = 0
    #: Nothing may start in what it needs any more.
    is_drain: bool = False
    #: Room has been made for this very job: a drain from the start, kept for as long as the job
    #: waits, whatever `Patience` says and however many others there are.
    is_forced: bool = False


_time = itemgetter(0)

#: (time, what comes back) of one job after another.
Coming = Iterable[tuple[float, Vector]]


class InOrder(ABC):
    """Those that are in order of time already: no more of them are read than are needed."""

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[float, Vector]]: ...


def reserve(
    *,
    job_id: int,
    leaf: str,
    demand: Vector,
    length_s: float,
    free: Vector,
    ends: Coming | InOrder,
    given: Coming = (),
    kept: Sequence[Reservation],
    before: Reservation | None,
    now_s: float,
    rules: Patience,
) -> Reservation | None:
    """The reservation for a job that cannot start in `free`: when what is held comes back (`ends`,
    and of what this pass has `given`), and what is `kept` for others. `before` is its own of the
    pass before. None: it would not fit even when all has come back."""
    found = shadow(demand, length_s, free, ends, now_s, kept, given)
    if found is None:
        return None
    start_s, spare = found
    missed, due_s = 0, start_s
    if before is not None:
        due_s = before.due_s
        missed = before.missed + (now_s > before.start_s and start_s > before.start_s)
    is_forced = before is not None and before.is_forced
    return Reservation(
        job_id=job_id,
        leaf=leaf,
        demand=demand,
        start_s=start_s,
        end_s=start_s + length_s,
        spare=spare,
        due_s=due_s,
        missed=missed,
        is_drain=now_s - due_s > rules.drain_after_s or missed >= 2 or is_forced,
        is_forced=is_forced,
    )


def forced(job_id: int, leaf: str, demand: Vector, now_s: float) -> Reservation:
    """For a job that room is being made for; the next pass works out its times."""
    return Reservation(
        job_id=job_id,
        leaf=leaf,
        demand=demand,
        start_s=now_s,
        end_s=now_s,
        spare=minus(demand, demand),
        due_s=now_s,
        is_drain=True,
        is_forced=True,
    )


def shadow(
    demand: Vector,
    length_s: float,
    free: Vector,
    ends: Coming | InOrder,
    now_s: float,
    kept: Sequence[Reservation] = (),
    given: Coming = (),
) -> tuple[float, Vector] | None:
    """(shadow time, spare) of a demand behind those that are `kept` already."""
    nothing = minus(free, free)
    others = [*given]
    for each in kept:
        others += [(each.start_s, minus(nothing, each.demand)), (each.end_s, each.demand)]
    changes = iter(ends if isinstance(ends, InOrder) else sorted(ends, key=_time))
    if others:
        changes = merge(changes, sorted(others, key=_time), key=_time)
    if not kept:
        return _first_room(demand, free, changes, now_s)
    change, at_s = next(changes, None), now_s
    while True:
        # All that comes and goes at the same moment has done so at that moment.
        while change is not None and change[0] <= at_s:
            free = plus(free, change[1])
            change = next(changes, None)
        if fits(demand, free) and all(
            allows(each, demand, at_s + length_s, free) for each in kept if at_s < each.start_s
        ):
            return at_s, minus(free, demand)
        if change is None:
            return None
        at_s = change[0]


def _first_room(
    demand: Vector, free: Vector, changes: Iterator[tuple[float, Vector]], now_s: float
) -> tuple[float, Vector] | None:
    """The same where things only come back: then it is enough to watch what is lacking."""
    at_s, back = now_s, [free]
    lacking = short_axes(demand, free)
    axis = lacking[0] if lacking else 0
    lack = demand[axis] - free[axis]
    for end_s, held in changes:
        if not lacking and end_s > at_s:
            break
        back.append(held)
        if end_s > at_s:
            at_s = end_s
        lack -= held[axis]
        if lacking and lack <= 0:
            free = _sum(back)
            back = [free]
            lacking = short_axes(demand, free)
            if lacking:
                axis = lacking[0]
                lack = demand[axis] - free[axis]
    return None if lacking else (at_s, minus(_sum(back), demand))


def _sum(vectors: list[Vector]) -> Vector:
    return tuple(map(sum, zip(*vectors, strict=True)))


def allows(kept: Reservation, demand: Vector, end_s: float, free: Vector) -> bool:
    """May a job with this demand and estimated end start beside the reservation, before its shadow
    time, when so much is free?"""
    if kept.is_drain:
        left = tuple([max(0, a - b) for a, b in zip(free, kept.demand, strict=True)])
        if not fits(demand, left):
            return False
    return end_s <= kept.start_s or fits(demand, kept.spare)


def taken(kept: Reservation, demand: Vector, end_s: float) -> Reservation:
    """The reservation after such a job has been let in before its shadow time."""
    if end_s <= kept.start_s:
        return kept
    return replace(kept, spare=minus(kept.spare, demand))
