"""Reservations for big jobs, and backfill around them (docs/fairness.md 1.3).

`shadow` computes when a job that does not fit will start and what is reserved for it; `allows`
decides whether another job may start beside one reservation; `Backfill` applies both to all
reservations of a pass, and is what policies call.

There are at most `depth` reservations (1: EASY backfilling; many: nearly conservative), each behind
the earlier ones. Those of the last pass come first, in their order: a job starts if it fits and
delays no earlier reservation; otherwise its reservation is renewed.

The shadow time is the first moment at which a job fits for its estimated run time, if running jobs
end as estimated and jobs reserved before it start at their shadow times; what is free then beyond
all of them is extra. A job may start if, for each reservation, it ends before the shadow time or
fits into the extra, on every resource by itself.

A reservation becomes a drain when its first shadow time is past by `drain_after_s`, or a second one
has passed: no other job may start in what it needs. That helps only against jobs that have outlived
their estimates, so drains one after the other would only let the machine idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import merge
from itertools import accumulate
from math import inf, isfinite
from operator import itemgetter
from typing import NamedTuple

from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.share_tree import path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import Entry
from drfd.core.model.hours import first_start_s
from drfd.core.model.hours import length_s as window_length_s
from drfd.core.model.job import JobState
from drfd.core.model.machine import (
    Room,
    Vector,
    fits,
    least,
    minus,
    place,
    placed,
    plus,
    remainder,
)
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.core.scheduling.release_times import (
    Certainty,
    Ends,
    LineEnd,
    RunTimes,
    least_certain,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The resources reserved for one job. A reservation goes from one pass to the next."""

    job_id: int
    leaf: str
    demand: Vector
    #: What the job will hold when it starts at the shadow time.
    held: Vector
    #: The shadow time (Unix time): the job starts by then if all jobs end as estimated.
    start_s: float
    #: The estimated end of the job if it starts at the shadow time (Unix time).
    end_s: float
    #: The resources that other jobs may hold beyond the shadow time.
    extra: Vector
    #: The first shadow time that it was given.
    due_s: float
    #: How many times the shadow time has passed without a start of the job.
    missed: int = 0
    #: Whether no other job may start in what this one needs of the free resources.
    is_drain: bool = False
    #: Whether jobs have been preempted for this one. Such a reservation is a drain from the start
    #: and is kept while the job waits, whatever `ReservationSettings` says.
    is_forced: bool = False
    #: Whether the shadow time is unknown since a restart, so that it cannot have been missed.
    is_restored: bool = False

    @property
    def kept(self) -> KeptReservation:
        return KeptReservation(self.job_id, self.due_s, self.missed, self.is_forced)


class KeptReservation(NamedTuple):
    """What outlives the daemon of a reservation. A pass computes the rest again, so this changes
    only when a reservation is made, is kept, or becomes late."""

    job_id: int
    due_s: float
    missed: int = 0
    is_forced: bool = False

    def restored(self, leaf: str, demand: Vector, now_s: float) -> Reservation:
        """Return the reservation, which the next pass renews before it starts anything. Until then
        its times are not known any more."""
        start_s = max(self.due_s, now_s)
        return Reservation(
            job_id=self.job_id,
            leaf=leaf,
            demand=demand,
            held=demand,
            start_s=start_s,
            end_s=start_s,
            extra=minus(demand, demand),
            due_s=self.due_s,
            missed=self.missed,
            is_forced=self.is_forced,
            is_restored=True,
        )


_time, _held = itemgetter(0), itemgetter(2)


def forced(job_id: int, leaf: str, demand: Vector, now_s: float) -> Reservation:
    """Return the reservation of a job for which others are preempted, without times yet."""
    kept = KeptReservation(job_id, now_s, is_forced=True)
    return replace(kept.restored(leaf, demand, now_s), is_drain=True, is_restored=False)


class Shadow(NamedTuple):
    """When a job can start if all jobs end as estimated."""

    #: Unix time.
    start_s: float
    #: What is free then beside it.
    extra: Vector
    #: What it holds then.
    held: Vector


def shadow(
    demand: Vector,
    length_s: float,
    *,
    free: Vector,
    now_s: float,
    ends: Sequence[LineEnd],
    reservations: Sequence[Reservation] = (),
) -> Shadow | None:
    """Return the shadow time for this demand and run time, or None if it never fits. `free` are the
    resources that are free now, `ends` the estimated ends of jobs in order of time, and
    `reservations` come before the new one."""
    nothing = minus(free, free)
    others = []
    for each in reservations:
        others += [(each.start_s, 0, minus(nothing, each.held)), (each.end_s, 0, each.held)]
    changes = merge(ends, sorted(others, key=_time), key=_time)
    change, at_s = next(changes, None), now_s
    # Reservations give nothing back that they have not taken: the sums do not suffice before this.
    for axis, (asked, there) in enumerate(zip(demand, free, strict=True)):
        if asked > max(there, 0):
            sums = accumulate(map(itemgetter(axis), map(_held, ends)))
            needed = asked - there
            count = next((at for at, held in enumerate(sums) if held >= needed), None)
            if count is None:
                return None
            at_s = max(at_s, ends[count][0])
    while True:
        # Apply all changes of one moment together.
        while change is not None and change[0] <= at_s:
            free = plus(free, change[2])
            change = next(changes, None)
        if fits(demand, free):
            later = [each for each in reservations if at_s < each.start_s]
            if _delayed(later, demand, at_s + length_s, free) is None:
                held = placed(demand, left_by(later, at_s + length_s, free))
                return Shadow(at_s, minus(free, held), held)
        if change is None:
            return None
        at_s = change[0]


def allows(reservation: Reservation, demand: Vector, end_s: float, free: Vector) -> bool:
    """Return whether a job with this demand and estimated end may start in `free`, before the
    shadow time, without delaying the reservation."""
    if reservation.is_drain and not fits(demand, remainder(free, reservation.held)):
        return False
    if end_s <= reservation.start_s:
        return True
    # The same node or instance must have enough free now and at the shadow time.
    extra = reservation.extra
    return fits(demand, least(free, extra) if isinstance(free, Room) else extra)


def _delayed(
    reservations: Sequence[Reservation], demand: Vector, end_s: float, free: Vector
) -> Reservation | None:
    """Return the first of the reservations that such a job would delay, or None. The instances
    that one reservation leaves may be those that another needs."""
    for at, each in enumerate(reservations):
        if not allows(each, demand, end_s, free):
            return each
        if at and isinstance(free, Room):
            left = left_by(reservations[: at + 1], end_s, free)
            if left is not free and not fits(demand, left):
                return each
    return None


def left_by(reservations: Iterable[Reservation], end_s: float, free: Vector) -> Vector:
    """Return what the reservations leave of `free` to a job with this estimated end: what a drain
    does not need now, and of the others what is left at their shadow times."""
    left = free
    for each in reservations:
        if each.is_drain:
            left = least(left, remainder(free, each.held))
        if end_s > each.start_s:
            left = least(left, each.extra)
    return left


def taken(reservation: Reservation, held: Vector, end_s: float) -> Reservation:
    """Return the reservation after a job has been started before its shadow time."""
    if end_s <= reservation.start_s:
        return reservation
    return replace(reservation, extra=minus(reservation.extra, held))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassContext:
    """The facts about time that a pass needs in order to reserve and to backfill."""

    now_s: float
    patience: ReservationSettings
    #: Returns the estimated ends of the running jobs in order of time. Most passes reserve nothing,
    #: and do not ask for them.
    ends: Callable[[], Sequence[LineEnd]]
    #: Returns the time since which a waiting job may start (Unix time).
    since_s: Callable[[int], float]
    #: Returns the estimated run time of a waiting job in seconds. When `since_s` or `length_s`
    #: changes for a job, a wait index that is kept must be told of its leaf (`WaitIndex.touch`).
    length_s: Callable[[int], float]
    #: Returns the entry of a job in its queue, or None if the job no longer waits.
    entry: Callable[[int], Entry | None]
    #: The reservations of the last pass, in order.
    before: tuple[Reservation, ...]
    #: Suspended jobs that wait to be resumed: id → (leaf, the resources that they wait for). Until
    #: they have been resumed and have ended, they keep their memory.
    suspended: Mapping[int, tuple[str, Vector]] = field(default_factory=dict)
    #: The load from outside drfd, or None; `ends` has its expected end.
    external: ExternalLoad | None = None
    #: Returns how certain it is that enough has ended by a time (Unix time).
    certainty: Callable[[float], Certainty] = lambda start_s: Certainty.ESTIMATED
    #: Returns the first time, from a given one on, at which a waiting job may start so that it ends
    #: before the next maintenance window, and at whose hour its limits let it (Unix times).
    when_allowed_s: Callable[[int, float], float] = lambda job_id, start_s: start_s

    def end_s(self, job_id: int) -> float:
        """Return the estimated end of a waiting job if it started now."""
        return self.now_s + self.length_s(job_id)

    def is_late(self, job_id: int) -> bool:
        return self.is_late_since(self.since_s(job_id))

    def is_late_since(self, since_s: float) -> bool:
        """Return whether a job that waits since then has waited long enough for a reservation."""
        # After the clock was set back, the wait may have begun in the future.
        waited_s = max(0.0, self.now_s - since_s)
        return self.patience.reserves and waited_s >= self.patience.patience_s

    def has_waited_too_long(self, job_id: int) -> bool:
        """Return whether no later job of its leaf may pass this job, provided that no job has
        waited longer."""
        waited_s = self.now_s - self.since_s(job_id)
        return self.patience.reserves and waited_s > self.patience.drain_after_s


#: For a pass in which nothing is known of times, and nothing is reserved.
UNTIMED = PassContext(
    now_s=0.0,
    patience=ReservationSettings(reserves=False),
    ends=lambda: (),
    since_s=lambda job_id: 0.0,
    length_s=lambda job_id: inf,
    entry=lambda job_id: None,
    before=(),
)


#: How often the next hour at which a job's limits let it start, and the next time without a window,
#: are looked for in turn.
_MOST_TURNS = 20
#: A job whose wait begins more than this many seconds in the future came before the clock was set
#: back. It counts as waiting longest: by its own time it might not be late for years.
_AHEAD_S = 3600.0


def make_pass_context(
    ledger: Ledger,
    run_times: RunTimes,
    *,
    patience: ReservationSettings,
    now_s: float,
    before: tuple[Reservation, ...],
    external: ExternalLoad | None = None,
    known: Ends | None = None,
) -> PassContext:
    """Return the context of a pass at `now_s` (Unix time). `before` are the reservations of the
    last pass, and `known` the ends that are kept from pass to pass."""

    def since_s(job_id: int) -> float:
        job = ledger.job(job_id)
        since_s = job.submitted_at if job.eligible_at is None else job.eligible_at
        if job.suspended_at is not None:
            since_s = job.suspended_at
        return since_s if since_s <= now_s + _AHEAD_S else 0.0

    def length_s(job_id: int) -> float:
        job = ledger.job(job_id)
        if job.suspended_at is not None:
            # The remaining time must be exactly what `ends` say, or the job would delay itself.
            return run_times.end_s(job, now_s) - now_s
        return run_times.length_s(job.spec)

    def entry(job_id: int) -> Entry | None:
        job = ledger.find(job_id)
        wanted = None if job is None else ledger.wanted(job)
        if job is None or wanted is None or ledger.queues.is_shut_out(job, wanted):
            return None
        return -job.spec.priority, job_id

    @cache
    def ends() -> Sequence[LineEnd]:
        line = (known or Ends()).all(ledger, run_times, now_s)
        if external is not None and isfinite(external.until_s):
            line.insert(0, (external.until_s, 0, ledger.axes.at_home(external.kept)))
        return sorted(line, key=_time)

    def certainty(start_s: float) -> Certainty:
        if external is not None and external.until_s <= start_s:
            return Certainty.UNKNOWN
        return least_certain(
            expected.certainty if expected.end_s <= start_s else Certainty.UNKNOWN
            for job in ledger.allocated_jobs()
            if run_times.end_s(job, now_s) <= start_s
            for expected in (run_times.expected_end(job, now_s),)
        )

    def when_allowed_s(job_id: int, start_s: float) -> float:
        job = ledger.job(job_id)
        demand = dict(zip(ledger.axes.names, ledger.wanted(job) or (), strict=False))
        at_s = start_s
        for _ in range(_MOST_TURNS):
            after_s = first_start_s(ledger.windows, window_length_s(job), at_s)
            if after_s is not None:
                after_s = ledger.limit_hours.first_fit_s(path_up(job.spec.leaf), demand, after_s)
            if after_s is None:
                # A job that is too long for all gaps between windows, or larger than its limits
                # at all hours, is held back and reserves nothing.
                return start_s
            if after_s == at_s:
                break
            at_s = after_s
        return at_s

    suspended = {}
    if ledger.job_counts.states[JobState.SUSPENDED]:
        for job in ledger.allocated_jobs():
            if (wanted := ledger.wanted(job)) is not None:
                suspended[job.id] = job.spec.leaf, wanted
    return PassContext(
        now_s=now_s,
        patience=patience,
        ends=ends,
        since_s=since_s,
        length_s=length_s,
        entry=entry,
        before=before,
        suspended=suspended,
        external=external,
        certainty=certainty,
        when_allowed_s=when_allowed_s,
    )


@dataclass
class Backfill:
    """The reservations as they stand while a pass runs."""

    pass_context: PassContext
    #: The reservations in order: no later one may delay an earlier one.
    reservations: list[Reservation] = field(default_factory=list)

    def may_renew(self, before: Reservation) -> bool:
        return before.is_forced or self.may_add

    @property
    def may_add(self) -> bool:
        rules = self.pass_context.patience
        return (
            rules.reserves and sum(not each.is_forced for each in self.reservations) < rules.depth
        )

    @property
    def has_drain(self) -> bool:
        """Return whether a reservation is a drain that was not made for a starving job."""
        return any(each.is_drain and not each.is_forced for each in self.reservations)

    def may_reserve(self, job_id: int) -> bool:
        return self.may_add and self.pass_context.is_late(job_id) and not self.is_reserved(job_id)

    def is_reserved(self, job_id: int) -> bool:
        return any(each.job_id == job_id for each in self.reservations)

    def never_fits(
        self, job_id: int, demand: Vector, *, free: Vector, admitted: Mapping[int, Vector]
    ) -> bool:
        """Return whether the job would not fit even when all jobs have ended. `admitted` as for
        `reserve`."""
        return self._shadow(job_id, demand, free, admitted) is None

    def deadline_s(self, demand: Vector, free: Vector) -> float | None:
        """Return the time by which a job of this demand that starts in `free` now must have
        ended, so that it delays no reservation; infinity if it may run on, or None if no job of
        this demand may start, however short."""
        starts = sorted([each.start_s for each in self.reservations], reverse=True)
        allowed = (
            until_s
            for until_s in (inf, *starts)
            if _delayed(self.reservations, demand, until_s, free) is None
        )
        return next(allowed, None)

    def allows(self, demand: Vector, job_id: int, free: Vector) -> bool:
        return self.delayed_reservation(demand, job_id, free) is None

    def delayed_reservation(self, demand: Vector, job_id: int, free: Vector) -> Reservation | None:
        """Return the first reservation that the job would delay if it started now, or None."""
        if not self.reservations:
            return None
        end_s = self.pass_context.end_s(job_id)
        others = [each for each in self.reservations if each.job_id != job_id]
        if job_id in self.pass_context.suspended:
            # A drain may be waiting for the memory of this job, which must run and end to free it.
            others = [each if each.is_forced else replace(each, is_drain=False) for each in others]
        return _delayed(others, demand, end_s, free)

    def placed(self, demand: Vector, job_id: int, free: Vector) -> Vector:
        """Return what a job that starts now in `free` holds, which leaves the reserved jobs their
        instances if it can."""
        if not (isinstance(free, Room) and self.reservations):
            return placed(demand, free)
        left = left_by(self.reservations, self.pass_context.end_s(job_id), free)
        return place(demand, left) or placed(demand, free)

    def admit(self, held: Vector, job_id: int) -> None:
        """Take a job that starts now out of the extra of the reservations."""
        if self.reservations:
            end_s = self.pass_context.end_s(job_id)
            self.reservations = [taken(each, held, end_s) for each in self.reservations]

    def reserve(
        self,
        job_id: int,
        leaf: str,
        demand: Vector,
        *,
        free: Vector,
        admitted: Mapping[int, Vector],
        before: Reservation | None = None,
    ) -> bool:
        """Reserve for the job; `admitted` is what the jobs hold that this pass has admitted.
        Returns whether the job would fit at any time."""
        found = self._shadow(job_id, demand, free, admitted, self.reservations)
        if found is None:
            return False
        context, now_s, start_s = self.pass_context, self.pass_context.now_s, found.start_s
        missed, due_s, is_forced = 0, start_s, False
        if before is not None:
            due_s, is_forced = before.due_s, before.is_forced
            has_passed = now_s > before.start_s and not before.is_restored
            missed = before.missed + (has_passed and start_s > before.start_s)
        is_overdue = now_s - due_s > context.patience.drain_after_s or missed >= 2
        allowed_s = context.when_allowed_s(job_id, start_s)
        if allowed_s > start_s:
            # All jobs that have a time limit end before a window, so nothing is kept till then; nor
            # till the hour at which the job's limits let it start.
            start_s, due_s = allowed_s, allowed_s if before is None else max(due_s, allowed_s)
        made = Reservation(
            job_id=job_id,
            leaf=leaf,
            demand=demand,
            held=found.held,
            start_s=start_s,
            end_s=start_s + context.length_s(job_id),
            extra=found.extra,
            due_s=due_s,
            missed=missed,
            is_drain=is_overdue or is_forced,
            is_forced=is_forced,
        )
        self.reservations = [
            taken(each, made.held, made.end_s) if made.start_s <= each.start_s else each
            for each in self.reservations
        ]
        self.reservations.append(made)
        return True

    def _shadow(
        self,
        job_id: int,
        demand: Vector,
        free: Vector,
        admitted: Mapping[int, Vector],
        reservations: Sequence[Reservation] = (),
    ) -> Shadow | None:
        context, ends = self.pass_context, self.pass_context.ends()
        if admitted:
            started = [(context.end_s(each), each, held) for each, held in admitted.items()]
            ends = sorted([*ends, *started], key=_time)
        return shadow(
            demand,
            context.length_s(job_id),
            free=free,
            now_s=context.now_s,
            ends=ends,
            reservations=reservations,
        )
