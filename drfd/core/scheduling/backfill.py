"""Reservations for big jobs, and backfill around them (docs/fairness.md 1.3).

`shadow` computes when a job that does not fit will start and what is reserved for it; `allows`
decides whether another job may start beside one reservation; `Backfill` applies both to all
reservations of a pass, and is what policies call.

A reservation is made at the node that keeps the job back: the innermost one of its path whose limit
leaves too little, or the root, which stands for the machine. It counts there and at all limited
nodes below on the path, and holds back only jobs below these. Each node is to the jobs below it
what the machine is to all: what its limit leaves is free, and comes back when these jobs end.

At each node there are at most `depth` reservations (1: EASY backfilling; many: nearly
conservative), each behind the earlier ones. Those of the last pass come first, those of the machine
before all: a job starts if it fits and delays no earlier reservation; otherwise its reservation is
renewed.

The shadow time is the first moment at which a job fits for its estimated run time, if running jobs
end as estimated and jobs reserved before it start at their shadow times; what is free then beyond
all of them is extra. A job may start if, for each reservation, it ends before the shadow time or
fits into the extra, on every resource by itself.

A reservation holds back no job that needs at most a part, `passes`, of each resource that the
reserved job needs. It becomes a drain when its first shadow time is past by `drain_after_s`: no
other job, however small, may start in what it needs. That helps only against jobs that have
outlived their estimates, so drains one after the other would only let the machine idle.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import inf, isfinite
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple, Protocol

from drfd.common.units import show_need, utc_time
from drfd.core.fairness.rules import ReservationSettings, Rules
from drfd.core.fairness.share_tree import ShareTree, path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import Entry
from drfd.core.model.calendar import length_s as longest_run_s
from drfd.core.model.events import StartReason
from drfd.core.model.job import ROOT, Job, JobState
from drfd.core.model.machine import Allocation, FreeResources, Vector
from drfd.core.scheduling.debts import Debt
from drfd.core.scheduling.gates import Gate, gates_of
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.core.scheduling.release_times import (
    Certainty,
    Ends,
    LineEnd,
    RunTimes,
    least_certain,
)
from drfd.core.scheduling.waits import Columns, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The resources reserved for one job. A reservation goes from one pass to the next."""

    job_id: int
    leaf: str
    demand: Vector
    #: What the job will hold when it starts at the shadow time.
    held: Allocation
    #: The shadow time (Unix time): the job starts by then if all jobs end as estimated.
    start_s: float
    #: The estimated end of the job if it starts at the shadow time (Unix time).
    end_s: float
    #: What jobs below each node at which the reservation counts may hold beyond the shadow time.
    extras: Mapping[str, FreeResources]
    #: The first shadow time that it was given.
    due_s: float
    #: Whether no other job may start in what this one needs of the free resources.
    is_drain: bool = False
    #: Whether jobs have been preempted for this one. Such a reservation is a drain from the start
    #: and is kept while the job waits, whatever `ReservationSettings` says.
    is_forced: bool = False
    #: The outermost node at which it counts: all jobs that it holds back are below.
    within: str = ROOT
    #: The part of its demand up to which it holds back no job, unless it is a drain.
    passes: Fraction = Fraction(0)

    def holds_back(self, demand: Vector) -> bool:
        """Return whether the reservation concerns jobs of this demand."""
        part, whole = self.passes.numerator, self.passes.denominator
        return self.is_drain or any(
            asked * whole > part * reserved
            for asked, reserved in zip(demand, self.demand, strict=True)
            if reserved
        )

    @property
    def extra(self) -> FreeResources:
        """Return what jobs on the machine may hold beyond the shadow time."""
        return self.extras[ROOT]

    @property
    def kept(self) -> KeptReservation:
        return KeptReservation(self.job_id, self.due_s, self.is_forced, self.within)


class KeptReservation(NamedTuple):
    """What outlives the daemon of a reservation. A pass computes the rest again, so this changes
    only when a reservation is made, is kept, or becomes late."""

    job_id: int
    due_s: float
    is_forced: bool = False
    within: str = ROOT

    def restored(self, leaf: str, demand: Vector, now_s: float) -> Reservation:
        """Return the reservation, which the next pass renews before it starts anything. Until then
        its times are not known."""
        start_s = max(self.due_s, now_s)
        return Reservation(
            job_id=self.job_id,
            leaf=leaf,
            demand=demand,
            held=Allocation(tuple(demand)),
            start_s=start_s,
            end_s=start_s,
            extras={self.within: FreeResources((0,) * len(demand))},
            due_s=self.due_s,
            is_drain=self.is_forced,
            is_forced=self.is_forced,
            within=self.within,
        )


_time = itemgetter(0)


class Shadow(NamedTuple):
    """When a job can start if all jobs end as estimated."""

    #: Unix time.
    start_s: float
    #: What is free then beside it.
    extra: FreeResources
    #: What it holds then.
    held: Allocation


def shadow(
    demand: Vector,
    length_s: float,
    *,
    free: FreeResources,
    now_s: float,
    ends: Sequence[LineEnd],
    reservations: Sequence[Reservation] = (),
) -> Shadow | None:
    """Return the shadow time for this demand and run time, or None if it never fits. `free` are the
    resources that are free now, `ends` the estimated ends of jobs in order of time, and
    `reservations` come before the new one."""
    changes = ends
    if reservations:
        taken = [(each.start_s, 0, -each.held) for each in reservations]
        returned = [(each.end_s, 0, each.held) for each in reservations]
        changes = sorted([*ends, *taken, *returned], key=_time)
    at_s, done = now_s, 0
    # Reservations give nothing back that they have not taken: the sums do not suffice before this.
    for axis, (asked, there) in enumerate(zip(demand, free.sums, strict=True)):
        if asked > max(there, 0):
            for end_s, _, held in ends:
                there += held.sums[axis]
                if asked <= there:
                    at_s = max(at_s, end_s)
                    break
            else:
                return None
    while True:
        # Apply all changes of one moment together.
        upto = bisect_right(changes, at_s, done, key=_time)
        free = free.with_all([held for _, _, held in changes[done:upto]])
        done = upto
        if free.fits(demand):
            later = [each for each in reservations if at_s < each.start_s]
            if _delayed(later, demand, at_s + length_s, free) is None:
                holding = [each for each in later if each.holds_back(demand)]
                held = left_by(holding, at_s + length_s, free).placed(demand)
                return Shadow(at_s, free - held, held)
        if done == len(changes):
            return None
        at_s = changes[done][0]


def allows(reservation: Reservation, demand: Vector, end_s: float, free: FreeResources) -> bool:
    """Return whether a job with this demand and estimated end may start in `free`, before the
    shadow time, without delaying the reservation."""
    if reservation.is_drain and not free.remainder(reservation.held).fits(demand):
        return False
    if end_s <= reservation.start_s:
        return True
    # The same node or instance must have enough free now and at the shadow time.
    extra = reservation.extra
    return (free.least(extra) if free.capacity else extra).fits(demand)


def _delayed(
    reservations: Sequence[Reservation], demand: Vector, end_s: float, free: FreeResources
) -> Reservation | None:
    """Return the first of the reservations that such a job would delay, or None. The instances
    that one reservation leaves may be those that another needs."""
    for at, each in enumerate(reservations):
        if not allows(each, demand, end_s, free) and each.holds_back(demand):
            return each
        if at and free.capacity:
            holding = [each for each in reservations[: at + 1] if each.holds_back(demand)]
            left = left_by(holding, end_s, free)
            if left is not free and not left.fits(demand):
                return each
    return None


def left_by(
    reservations: Iterable[Reservation], end_s: float, free: FreeResources
) -> FreeResources:
    """Return what the reservations leave of `free` to a job with this estimated end: what a drain
    does not need now, and of the others what is left at their shadow times."""
    left = free
    for each in reservations:
        if each.is_drain:
            left = left.least(free.remainder(each.held))
        if end_s > each.start_s:
            left = left.least(each.extra)
    return left


def at_node(reservations: Iterable[Reservation], path: str) -> list[Reservation]:
    """Return the reservations that count at the node, as if it were the machine."""
    if path == ROOT:
        return [each for each in reservations if path in each.extras]
    return [
        replace(each, held=Allocation(each.demand), extras={ROOT: each.extras[path]})
        for each in reservations
        if path in each.extras
    ]


def taken(
    reservation: Reservation, held: Allocation, end_s: float, nodes: Collection[str]
) -> Reservation:
    """Return the reservation after a job has been started before its shadow time, below these
    nodes."""
    if end_s <= reservation.start_s or reservation.extras.keys().isdisjoint(nodes):
        return reservation
    extras = {
        path: extra - held if path in nodes else extra for path, extra in reservation.extras.items()
    }
    return replace(reservation, extras=extras)


@dataclass(slots=True, kw_only=True)
class PassContext:
    """The facts about time that a pass needs in order to reserve and to backfill. Of itself it
    knows nothing of times, and reserves nothing."""

    now_s: float = 0.0
    reserving: ReservationSettings = field(
        default_factory=lambda: ReservationSettings(reserves=False)
    )
    #: The reservations of the last pass, in order.
    before: tuple[Reservation, ...] = ()
    #: The debts of leaves after the last pass.
    debts: Mapping[str, Debt] = field(default_factory=dict)
    #: Suspended jobs that wait to be resumed: id → (leaf, the resources that they wait for). Until
    #: they have been resumed and have ended, they keep their memory.
    suspended: Mapping[int, tuple[str, Vector]] = field(default_factory=dict)
    #: The load from outside drfd, or None; `ends` has its expected end.
    external: ExternalLoad | None = None
    gates: tuple[Gate, ...] = ()
    #: See `ends`. Most passes reserve nothing, and do not ask for them: None until they are.
    line: Sequence[LineEnd] | None = None

    def ends(self) -> Sequence[LineEnd]:
        """Return the estimated ends of the running jobs in order of time."""
        return self.line or ()

    def since_s(self, job_id: int) -> float:
        """Return the time since which a waiting job may start (Unix time). When this or `length_s`
        changes for a job, a wait index that is kept must be told (`WaitIndex.touch` with its
        demand, or `forget_lengths`)."""
        return 0.0

    def length_s(self, job_id: int) -> float:
        """Return the estimated run time of a waiting job in seconds."""
        return inf

    def entry(self, job_id: int) -> Entry | None:
        """Return the entry of a job in its queue, or None if the job no longer waits."""
        return None

    def leaf(self, job_id: int) -> str:
        """Return the leaf of a job that runs or waits."""
        return ROOT

    def certainty(self, start_s: float) -> Certainty:
        """Return how certain it is that enough has ended by a time (Unix time)."""
        return Certainty.ESTIMATED

    def when_allowed_s(self, job_id: int, start_s: float) -> float:
        """Return the first time, from `start_s` on, at which a waiting job may start so that it
        ends before the next maintenance window, and at whose hour its limits let it (Unix
        times)."""
        return start_s

    def end_s(self, job_id: int) -> float:
        """Return the estimated end of a waiting job if it started now."""
        return self.now_s + self.length_s(job_id)

    def late_s(self, since_s: float) -> float:
        """Return the time from which on a job that waits since then has waited long enough for a
        reservation (Unix time), or infinity."""
        # After the clock was set back, the wait may have begun in the future.
        begin_s = min(since_s, self.now_s)
        return begin_s + self.reserving.delay_s if self.reserving.reserves else inf

    def has_waited_too_long(self, job_id: int) -> bool:
        """Return whether no later job of its leaf may pass this job, provided that no job has
        waited longer."""
        waited_s = self.now_s - self.since_s(job_id)
        return self.reserving.reserves and waited_s > self.reserving.drain_after_s


#: A job whose wait begins more than this many seconds in the future came before the clock was set
#: back. It counts as waiting longest: by its own time it might not be late for years.
_AHEAD_S = 3600.0


@dataclass(slots=True, kw_only=True)
class LedgerContext(PassContext):
    """What a ledger says of times, and the estimates of how long its jobs run."""

    ledger: Ledger
    run_times: RunTimes
    #: The ends that are kept from pass to pass, if they are.
    known: Ends | None
    #: Results of `certainty`: with 500 running jobs, 3,000 that would delay one reservation are
    #: explained in 0.1 s for 3.4.
    certainties: dict[float, Certainty] = field(default_factory=dict)

    def ends(self) -> Sequence[LineEnd]:
        if self.line is None:
            known = self.known or Ends(self.ledger)
            line = known.all(self.ledger, self.run_times, self.now_s)
            external = self.external
            if external is not None and isfinite(external.until_s):
                kept = self.ledger.axes.at_home(external.kept)
                insort(line, (external.until_s, 0, kept), key=_time)
            self.line = line
        return self.line

    def since_s(self, job_id: int) -> float:
        job = self.ledger.jobs[job_id]
        since_s = job.submitted_at if job.eligible_at is None else job.eligible_at
        if job.suspended_at is not None:
            since_s = job.suspended_at
        return since_s if since_s <= self.now_s + _AHEAD_S else 0.0

    def length_s(self, job_id: int) -> float:
        job = self.ledger.jobs[job_id]
        if job.suspended_at is not None:
            # The remaining time must be exactly what `ends` say, or the job would delay itself.
            return self.run_times.end_s(job, self.now_s) - self.now_s
        return self.run_times.length_s(job.spec)

    def entry(self, job_id: int) -> Entry | None:
        ledger = self.ledger
        job = ledger.jobs.get(job_id)
        wanted = None if job is None else ledger.wanted(job)
        if job is None or wanted is None or ledger.queues.is_shut_out(job, wanted):
            return None
        return -job.spec.priority, job_id

    def leaf(self, job_id: int) -> str:
        return self.ledger.jobs[job_id].spec.leaf

    def certainty(self, start_s: float) -> Certainty:
        if self.external is not None and self.external.until_s <= start_s:
            return Certainty.UNKNOWN
        if start_s not in self.certainties:
            run_times, now_s = self.run_times, self.now_s
            self.certainties[start_s] = least_certain(
                expected.certainty if expected.end_s <= start_s else Certainty.UNKNOWN
                for job in self.ledger.allocated_jobs()
                if run_times.end_s(job, now_s) <= start_s
                for expected in (run_times.expected_end(job, now_s),)
            )
        return self.certainties[start_s]

    def when_allowed_s(self, job_id: int, start_s: float) -> float:
        ledger = self.ledger
        if not ledger.calendar:
            return start_s
        job, length = ledger.jobs[job_id], longest_run_s(ledger.jobs[job_id])
        demand = dict(zip(ledger.axes.names, ledger.wanted(job) or (), strict=False))
        found = ledger.calendar.first_start_s(start_s, length, path_up(job.spec.leaf), demand)
        # A job that may start at no time is held back and reserves nothing.
        return start_s if found is None else found


def make_pass_context(
    ledger: Ledger,
    rules: Rules,
    run_times: RunTimes,
    *,
    now_s: float,
    before: tuple[Reservation, ...],
    debts: Mapping[str, Debt] = MappingProxyType({}),
    external: ExternalLoad | None = None,
    known: Ends | None = None,
) -> LedgerContext:
    """Return the context of a pass at `now_s` (Unix time). `before` and `debts` are those of
    the last pass, and `known` the ends that are kept from pass to pass."""
    suspended = {}
    if ledger.job_counts.states[JobState.SUSPENDED]:
        for job in ledger.allocated_jobs():
            if (wanted := ledger.wanted(job)) is not None:
                suspended[job.id] = job.spec.leaf, wanted
    return LedgerContext(
        ledger=ledger,
        run_times=run_times,
        known=known,
        now_s=now_s,
        reserving=rules.reserving,
        before=before,
        debts=debts,
        suspended=suspended,
        external=external,
        gates=tuple(gates_of(ledger, rules, now_s)),
    )


class Start(NamedTuple):
    """A job that starts."""

    #: What it holds then.
    held: Allocation
    #: The rule by which it starts.
    why: StartReason


# -- the gates of room and reservations ------------------------------------------------------------


class Starts(Protocol):
    """What a plan says of reservations."""

    def reservation_of(self, job_id: int) -> Reservation | None: ...

    def known_start_s(self, reservation: Reservation | None) -> float | None: ...


class NoRoom(NamedTuple):
    """Too little is left at a node: by its limit, or of the root what is free on the machine.
    `core.explain.reasons` looks for those who hold it."""

    path: str


class Delays(NamedTuple):
    """The job would delay a reservation that counts at a node."""

    path: str
    reservation: Reservation

    def reason(self, job: Job, first_id: int, plan: Starts, ledger: Ledger, rules: Rules) -> Wait:
        """Return what the job waits for: it, or the first job of its demand, was asked about."""
        reservation = self.reservation
        reserved = ledger.jobs.get(reservation.job_id)
        needs = zip(rules.axes.names, reservation.demand, strict=True)
        return KeptFor(
            str(reservation.job_id) if reserved is None else reserved.label,
            None if reserved is None else reserved.spec.user,
            tuple([(axis, amount) for axis, amount in needs if amount]),
            plan.known_start_s(reservation),
            reservation.is_drain,
            None if first_id == job.id else ledger.jobs[first_id].label,
            plan.known_start_s(plan.reservation_of(job.id)),
        )


class KeptFor(Wait, frozen=True):
    """The job fits, but would delay a reservation."""

    code = "RESERVATION"
    ahead = "{0.job}"
    #: The job with the reservation; the user is None if it has left the ledger.
    job: str
    user: str | None
    needs: tuple[tuple[str, int], ...]
    #: Its expected start, if one is known.
    start_s: float | None
    is_drain: bool
    #: An earlier job with the same demand, which would delay the reservation in place of this one.
    behind: str | None = None
    #: The start of this job's own reservation.
    own_start_s: float | None = None

    def text(self) -> str:
        behind = f"job {self.behind}, which needs the same, comes first; " if self.behind else ""
        who = self.job if self.user is None else f"{self.job} ({self.user})"
        needs = ", ".join(show_need(axis, amount) for axis, amount in self.needs)
        kept = "everything that it needs" if self.is_drain else "room"
        start = ""
        if self.start_s is not None:
            late = "" if behind or self.is_drain else "; this job would not have ended by then"
            start = f" and is expected to start by {utc_time(self.start_s)}{late}"
        return (
            f"it fits, but {behind}{kept} is kept free for job {who}, which needs {needs}"
            f"{start}{_own_start(self.own_start_s)}"
        )

    def columns(self) -> Columns:
        by = "reservation" if self.user is None else f"reservation ({self.user})"
        return Columns(f"start of {self.job}", by, until_s=self.start_s)


class Behind(NamedTuple):
    """Another job comes first, and waits itself."""

    job_id: int

    def reason(
        self, job: Job, first_id: int, plan: Starts, ledger: Ledger, rules: Rules
    ) -> Wait | None:
        """Return what the job waits for; None if the other one has gone since the pass."""
        first = ledger.jobs.get(self.job_id)
        if first is None:
            return None
        if rules.policy == "drf":
            return MayNotPass(first.label, plan.known_start_s(plan.reservation_of(job.id)))
        return BehindInOrder(first.label, first.spec.user, rules.policy)


class MayNotPass(Wait, frozen=True):
    """The job fits, but an earlier job of its user has waited too long to be passed."""

    code = "RESERVATION"
    waits_for, blocked_by = "start of {0.job}", "starvation guard"
    ahead = "{0.job}"
    job: str
    #: The start of the waiting job's own reservation.
    own_start_s: float | None = None

    def text(self) -> str:
        return (
            f"it fits, but job {self.job} comes first: it has waited so long that no later job may "
            f"pass it{_own_start(self.own_start_s)}"
        )


class BehindInOrder(Wait, frozen=True):
    code = "RESERVATION"
    says = (
        "job {0.job} ({0.user}) comes first and waits itself; with the policy {0.policy} nobody "
        "passes it"
    )
    waits_for, blocked_by = "start of {0.job}", "job {0.job} ({0.user})"
    ahead = "{0.job}"
    job: str
    user: str
    policy: str


def _own_start(at_s: float | None) -> str:
    return "" if at_s is None else f"; it starts by {utc_time(at_s)} itself"


#: A gate that is closed for a job: the reason, or the facts of one.
Closed = Wait | NoRoom | Delays | Behind


@dataclass
class Backfill:
    """What is free and what is reserved while a pass runs, and which gates that closes."""

    pass_context: PassContext
    #: What nodes hold now, and their limits.
    share_tree: ShareTree
    #: The resources that are left on the machine.
    free: FreeResources
    #: The reservations in order: no later one may delay an earlier one.
    reservations: list[Reservation] = field(default_factory=list)
    #: The jobs that start, in order.
    starts: dict[int, Start] = field(default_factory=dict)
    #: Nodes → the job that no other one below the node may pass.
    unpassed: dict[str, int] = field(default_factory=dict)
    #: The first time at which one of the gates opens that were closed, or infinity (Unix time).
    opens_s: float = inf

    def closed_gate(self, demand: Vector, job_id: int, leaf: str) -> Closed | None:
        """Return the gate that keeps a job of the queues from starting now, the first of those that
        are closed, that of the innermost node, or None: then it may start. Resources only shrink
        while a pass runs, so a gate that it found closed is closed at its end too."""
        for gate in self.pass_context.gates:
            reason = gate.closed(leaf, demand, len(self.starts))
            if reason is not None:
                self.opens_s = min(self.opens_s, reason.opens_s or inf)
                return reason
        for path in (*self.share_tree.limited_nodes(leaf), ROOT):
            if not self._room(path).fits(demand):
                return NoRoom(path)
            delayed = self._delayed_at(path, demand, job_id)
            if delayed is not None:
                return Delays(path, delayed)
        for path in (ROOT, *path_up(leaf)) if self.unpassed else ():
            if self.unpassed.get(path, job_id) != job_id:
                return Behind(self.unpassed[path])
        return None

    def may_renew(self, before: Reservation) -> bool:
        return before.is_forced or self.may_add(before.within)

    def may_add(self, path: str = ROOT) -> bool:
        """Return whether there may be one more reservation at the node."""
        how = self.pass_context.reserving
        there = [each for each in self.reservations if each.within == path and not each.is_forced]
        return how.reserves and len(there) < how.depth

    @property
    def has_drain(self) -> bool:
        """Return whether a reservation is a drain that was not made for a starving job."""
        return any(each.is_drain and not each.is_forced for each in self.reservations)

    def is_reserved(self, job_id: int, path: str) -> bool:
        """Return whether the job has a reservation that counts at the node."""
        return any(each.job_id == job_id and path in each.extras for each in self.reservations)

    def concerns(self, leaf: str) -> bool:
        """Return whether a reservation counts at a node that the leaf is below."""
        nodes = (ROOT, *path_up(leaf)) if self.reservations else ()
        return any(not each.extras.keys().isdisjoint(nodes) for each in self.reservations)

    def never_fits(self, job_id: int, leaf: str, demand: Vector) -> bool:
        """Return whether the job would not fit even when all jobs have ended."""
        return self._shadows(job_id, leaf, demand, ROOT) is None

    def deadline_s(self, demand: Vector) -> float | None:
        """Return the time by which a job of this demand that starts now must have ended, so that it
        delays no reservation of the machine; infinity if it may run on, or None if no job of this
        demand may start, however short."""
        there, free = at_node(self.reservations, ROOT), self.free
        starts = sorted([each.start_s for each in there], reverse=True)
        allowed = (
            until_s for until_s in (inf, *starts) if _delayed(there, demand, until_s, free) is None
        )
        return next(allowed, None)

    def _delayed_at(self, path: str, demand: Vector, job_id: int) -> Reservation | None:
        """Return the first reservation at the node that the job would delay if it started now, or
        None."""
        others = [each for each in at_node(self.reservations, path) if each.job_id != job_id]
        if not others:
            return None
        if job_id in self.pass_context.suspended:
            # A drain may be waiting for the memory of this job, which must run and end to free it.
            others = [each if each.is_forced else replace(each, is_drain=False) for each in others]
        return _delayed(others, demand, self.pass_context.end_s(job_id), self._room(path))

    def _room(self, path: str) -> FreeResources:
        return self.free if path == ROOT else FreeResources(self.share_tree.room_below(path))

    def admit(self, demand: Vector, job_id: int, leaf: str, why: StartReason | None = None) -> None:
        """Take what a job that starts now holds out of what is free, and out of the extras of the
        reservations. It leaves the reserved jobs their instances if it can."""
        if why is None:
            why = StartReason.BACKFILL if self.concerns(leaf) else StartReason.TURN
        held = None
        if self.free.capacity and self.reservations:
            there = at_node(self.reservations, ROOT)
            held = left_by(there, self.pass_context.end_s(job_id), self.free).place(demand)
        held = held or self.free.placed(demand)
        self.starts[job_id] = Start(held, why)
        self.free -= held
        if self.reservations:
            end_s, nodes = self.pass_context.end_s(job_id), (ROOT, *path_up(leaf))
            self.reservations = [taken(each, held, end_s, nodes) for each in self.reservations]

    def reserve(
        self,
        job_id: int,
        leaf: str,
        demand: Vector,
        within: str = ROOT,
        before: Reservation | None = None,
    ) -> bool:
        """Reserve for the job at the node `within`, in place of a reservation further in. Returns
        whether the job would fit there at any time."""
        others = [each for each in self.reservations if each.job_id != job_id]
        found = self._shadows(job_id, leaf, demand, within, others)
        if found is None:
            return False
        context, now_s = self.pass_context, self.pass_context.now_s
        start_s = max((each.start_s for each in found.values()), default=now_s)
        due_s, is_forced = start_s, False
        if before is not None:
            due_s, is_forced = before.due_s, before.is_forced
        is_overdue = now_s - due_s > context.reserving.drain_after_s
        allowed_s = context.when_allowed_s(job_id, start_s)
        if allowed_s > start_s:
            # All jobs that have a time limit end before a window, so nothing is kept till then; nor
            # till the hour at which the job's limits let it start.
            start_s, due_s = allowed_s, allowed_s if before is None else max(due_s, allowed_s)
        made = Reservation(
            job_id=job_id,
            leaf=leaf,
            demand=demand,
            held=found[ROOT].held if ROOT in found else Allocation(tuple(demand)),
            start_s=start_s,
            end_s=start_s + context.length_s(job_id),
            extras={path: each.extra for path, each in found.items()},
            due_s=due_s,
            is_drain=is_overdue or is_forced,
            is_forced=is_forced,
            within=within,
            passes=context.reserving.passes,
        )
        self.reservations = [
            taken(each, made.held, made.end_s, made.extras)
            if made.start_s <= each.start_s
            else each
            for each in others
        ]
        self.reservations.append(made)
        return True

    def _shadows(
        self,
        job_id: int,
        leaf: str,
        demand: Vector,
        within: str,
        reservations: Sequence[Reservation] = (),
    ) -> dict[str, Shadow] | None:
        """Return the shadow at each node that counts; all have the same time. None if the job
        never fits at one of them."""
        context = self.pass_context
        nodes = [
            path
            for path in self.share_tree.limited_nodes(leaf)
            if within == ROOT or path == within or path.startswith(f"{within}.")
        ]
        start_s, found = context.now_s, dict[str, Shadow]()
        while True:
            for path in (*nodes, ROOT) if within == ROOT else nodes:
                if path in found and found[path].start_s == start_s:
                    continue
                at = shadow(
                    demand,
                    context.length_s(job_id),
                    free=self._room(path),
                    now_s=start_s,
                    ends=self._ends_at(path),
                    reservations=at_node(reservations, path),
                )
                if at is None:
                    return None
                found[path], start_s = at, at.start_s
            if all(each.start_s == start_s for each in found.values()):
                return found

    def _ends_at(self, path: str) -> Sequence[LineEnd]:
        """Return the ends of the jobs below the node, with those that this pass has admitted."""
        context, is_root = self.pass_context, path == ROOT
        ends = context.ends() if is_root else self._ends_below[path]
        started = [
            (context.end_s(each), each, held)
            for each, (held, _) in self.starts.items()
            if is_root or path in path_up(context.leaf(each))
        ]
        return sorted([*ends, *started], key=_time) if started else ends

    @cached_property
    def _ends_below(self) -> Mapping[str, Sequence[LineEnd]]:
        """The ends of the jobs below each node that ran before the pass: there may be as many nodes
        with reservations as users."""
        found = defaultdict[str, list[LineEnd]](list)
        for end_s, job_id, held in self.pass_context.ends():
            for path in path_up(self.pass_context.leaf(job_id)) if job_id else ():
                found[path].append((end_s, job_id, held))
        return found
