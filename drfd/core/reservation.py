"""Big jobs: one reservation, so that they start, and backfill around it, so that nothing idles.

The first head job that does not fit and has waited for `patience_s` gets the reservation and keeps
it. Its shadow time is the first moment at which it fits if the running jobs end as estimated; what
is free then beyond its demand is spare. Another job may start if it ends before the shadow time, or
fits into the spare (EASY backfilling, on every resource by itself). After `drain_after_s`, or when
its shadow time has passed twice, nothing may start in what it needs of the free resources at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from drfd.core.resources import Vector, fits, minus, plus


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """When waiting turns into a reservation, and a reservation into a drain; seconds."""

    patience_s: float = 30.0
    drain_after_s: float = 4 * 30.0 + 86400
    #: Off: jobs that do not fit are passed over for ever.
    reserves: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What is kept for one job. Goes from one pass to the next."""

    job_id: int
    leaf: str
    demand: Vector
    #: The shadow time, Unix time: it starts by then if all ends as estimated.
    start_s: float
    #: What others may take beyond the shadow time.
    spare: Vector
    #: How often the shadow time has passed and the job has not started.
    missed: int = 0
    #: Nothing may start in what it needs any more.
    is_drain: bool = False
    #: Others are being stopped for it.
    is_hard: bool = False


def reserve(
    *,
    job_id: int,
    leaf: str,
    demand: Vector,
    free: Vector,
    ends: Iterable[tuple[float, Vector]],
    before: Reservation | None,
    now_s: float,
    waited_s: float,
    rules: Patience,
) -> Reservation | None:
    """The reservation for a job that does not fit into `free`, given when what is held comes back
    (`ends`: time and amount). `before` is its reservation of the pass before. None: it would not
    fit even then."""
    found = shadow(demand, free, ends, now_s)
    if found is None:
        return None
    start_s, spare = found
    missed, is_hard = 0, False
    if before is not None and before.job_id == job_id:
        is_hard = before.is_hard
        missed = before.missed + (now_s > before.start_s and start_s > before.start_s)
    return Reservation(
        job_id=job_id,
        leaf=leaf,
        demand=demand,
        start_s=start_s,
        spare=spare,
        missed=missed,
        is_drain=is_hard or waited_s > rules.drain_after_s or missed >= 2,
        is_hard=is_hard,
    )


def hard(job_id: int, leaf: str, demand: Vector, now_s: float) -> Reservation:
    """For a job that others are being stopped for: what they give back is its own."""
    nothing = (0,) * len(demand)
    return Reservation(
        job_id=job_id,
        leaf=leaf,
        demand=demand,
        start_s=now_s,
        spare=nothing,
        is_drain=True,
        is_hard=True,
    )


def shadow(
    demand: Vector, free: Vector, ends: Iterable[tuple[float, Vector]], now_s: float
) -> tuple[float, Vector] | None:
    """(shadow time, spare) of a demand."""
    at_s = now_s
    waiting = sorted(ends)
    while not fits(demand, free):
        if not waiting:
            return None
        at_s, back = waiting.pop(0)
        free = plus(free, back)
    # All that comes back at the same moment is there at that moment.
    while waiting and waiting[0][0] <= at_s:
        free = plus(free, waiting.pop(0)[1])
    return at_s, minus(free, demand)


def allows(kept: Reservation, demand: Vector, end_s: float, free: Vector) -> bool:
    """May a job with this demand and estimated end start beside the reservation?"""
    if kept.is_drain:
        left = tuple([max(0, a - b) for a, b in zip(free, kept.demand, strict=True)])
        return fits(demand, left)
    return end_s <= kept.start_s or fits(demand, kept.spare)


def taken(kept: Reservation, demand: Vector, end_s: float) -> Reservation:
    """The reservation after such a job has been admitted."""
    if kept.is_drain or end_s <= kept.start_s:
        return kept
    return replace(kept, spare=minus(kept.spare, demand))
