"""When waiting jobs would start: in which order, at what time, and with which smaller demand now.

`upcoming` returns the order in which leaves are served, without regard to which jobs fit, and to
reservations. `Forecast` runs the ledger ahead on a virtual clock, with the daemon's own passes, as
if running jobs ended when estimated and nobody submitted more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import starmap
from math import inf, isfinite
from typing import NamedTuple

from msgspec import structs

from drfd.common.errors import Refused
from drfd.core.decisions.dependencies import begin, report_all_ends
from drfd.core.decisions.stimuli import Now, SubmitAsked
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.service_order import ServiceOrder
from drfd.core.fairness.share_tree import path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import Run
from drfd.core.model import events as ev
from drfd.core.model.calendar import length_s
from drfd.core.model.job import Job, JobSpec, JobState
from drfd.core.model.machine import Vector
from drfd.core.model.resources import Axes, Resources
from drfd.core.scheduling.kept_free import ExternalLoad, free_of
from drfd.core.scheduling.policies import RANKS, Plan
from drfd.core.scheduling.release_times import Certainty, StartForecast, least_certain
from drfd.core.scheduling.scheduler import Scheduler, start_events

#: Maximum number of passes in a forecast, also of those that are due by time alone.
_MOST_PASSES = 600
#: The expected start of a job of which too little is known.
NEVER_KNOWN = StartForecast(None, Certainty.UNKNOWN)
#: Stands for the end of the load from outside in place of a job's id.
_EXTERNAL = 0


@dataclass
class Forecast:
    """A ledger and a scheduler that are run ahead of time, and are of no other use then."""

    ledger: Ledger
    rules: Rules
    scheduler: Scheduler
    #: The virtual time; both clocks advance together.
    now: Now
    #: The load of processes outside drfd, or None if there is none or it has ended.
    external: ExternalLoad | None = None
    #: Whether a start was not known because nobody knows when the external load ends.
    is_unknown_for_external: bool = False
    #: The nodes that the external load has left; "" where there is one machine.
    _freed: frozenset[str] = frozenset()

    def copy(self) -> Forecast:
        """Return a forecast from the same state with a ledger and a scheduler of its own."""
        ledger = self.ledger.with_axes(self.rules.axes)
        return replace(self, ledger=ledger, scheduler=self.scheduler.ahead())

    def add(self, asked: SubmitAsked) -> Job:
        """Submit a job or array to the forecast; return the job, or the array's first task. Raises
        Refused as a submission does."""
        job_id = self.ledger.next_id
        for event in asked.decide(self.ledger, self.rules):
            self.ledger.apply(event)
        return self.ledger.jobs[job_id + bool(asked.spans)]

    def start_s(self, wanted: int) -> float | None:
        """Return the Unix time at which the waiting job `wanted` starts or goes on. None if it does
        not within `_MOST_PASSES` passes, besides those at which limits change."""
        [(_, start_s, _)] = self._look_ahead([wanted])
        return start_s

    def expected_start(self, wanted: int) -> StartForecast:
        """Return the start of the waiting job `wanted` with its certainty. It does not move while
        nothing happens."""
        [(_, found)] = self.expected_starts([wanted])
        return found

    def expected_starts(self, wanted: Iterable[int]) -> Iterator[tuple[int, StartForecast]]:
        """Yield each of the waiting jobs with its start, in the order in which these are found."""
        for job_id, start_s, certainty in self._look_ahead(wanted):
            is_known = start_s is not None and certainty is not Certainty.UNKNOWN
            if not is_known and start_s is None and (self.external is not None or self._freed):
                self.is_unknown_for_external = True
            yield job_id, StartForecast(start_s, certainty) if is_known else NEVER_KNOWN

    def _look_ahead(self, wanted: Iterable[int]) -> Iterator[tuple[int, float | None, Certainty]]:
        ends: list[tuple[float, int, Certainty]] = []
        certainty = Certainty.LIMITS
        for job in self.ledger.allocated_jobs():
            # A suspended job has an expected end only after it goes on.
            if job.state is not JobState.SUSPENDED:
                self._expect_end(job, ends)
        if self.external is not None and isfinite(self.external.until_s):
            ends.append((self.external.until_s, _EXTERNAL, Certainty.UNKNOWN))
        heapify(ends)
        #: Of each job, until when the limits by hour are known that concern it.
        left = {job_id: self._known_until_s(job_id) for job_id in wanted}
        for _ in range(_MOST_PASSES + len(self.ledger.calendar.times)):
            for job_id in [job_id for job_id, until_s in left.items() if self.now.at_s >= until_s]:
                del left[job_id]
                yield job_id, None, Certainty.UNKNOWN
            if not left:
                return
            plan = self.pass_now()
            for job_id in plan.admitted:
                if self.ledger.jobs[job_id].node in self._freed:
                    self.is_unknown_for_external = True
                    certainty = least_certain((certainty, Certainty.UNKNOWN))
                if left.pop(job_id, None) is not None:
                    yield job_id, self.now.at_s, certainty
                    if not left:
                        return
                self._expect_end(self.ledger.jobs[job_id], ends)
            next_s = self._next_s(ends)
            if next_s == inf:
                break
            self._wait_until(max(self.now.at_s, next_s))
            # One pass for all jobs that end at the same time.
            while ends and ends[0][0] <= self.now.at_s:
                _, job_id, rests_on = heappop(ends)
                # What the external load leaves matters on its nodes alone.
                if job_id != _EXTERNAL:
                    certainty = least_certain((certainty, rests_on))
                self._end(job_id)
            for event in begin(self.ledger, self.now.at_s):
                self.ledger.apply(event)
        for job_id in left:
            yield job_id, None, Certainty.UNKNOWN

    def _known_until_s(self, job_id: int) -> float:
        """Return the Unix time from which it is not known when the job would start."""
        job, calendar = self.ledger.jobs.get(job_id), self.ledger.calendar
        if job is None:
            return inf
        if calendar.first_start_s(self.now.at_s, length_s(job)) is None:
            # It is too long for all gaps between weekly windows.
            return -inf
        # The limits by hour that may concern the job are known for some weeks.
        return calendar.until_s if calendar.covers(path_up(job.spec.leaf)) else inf

    def _next_s(self, ends: list[tuple[float, int, Certainty]]) -> float:
        """Return when something changes next; infinity if nothing does."""
        ledger, now_s = self.ledger, self.now.at_s
        times = (
            ends[0][0] if ends else None,
            ledger.begins.first_s(),
            self.scheduler.next_pass_s,
            ledger.calendar.next_s(now_s),
        )
        return min([each for each in times if each is not None])

    def _expect_end(self, job: Job, ends: list[tuple[float, int, Certainty]]) -> None:
        end_s, certainty = self.scheduler.run_times.expected_end(job, self.now.at_s)
        if isfinite(end_s):
            heappush(ends, (end_s, job.id, certainty))

    def pass_now(self) -> Plan:
        """Make one pass and apply the launches that it decides."""
        report_all_ends(self.ledger, self.now.at_s)
        plan = self.scheduler.plan(self.ledger, self.rules, self.now, self.external)
        for event in start_events(self.ledger, plan, self.now):
            self.ledger.apply(event)
            if isinstance(event, ev.Admitted):
                self.ledger.apply(event.launched(self.now.mono_s))
        return plan

    def _end(self, job_id: int) -> None:
        if job_id == _EXTERNAL:
            if self.external is not None:
                self._freed = frozenset((self.rules.axes.home,))
            self.external = None
            return
        job, now_s = self.ledger.jobs[job_id], self.now.at_s
        if job.state is not JobState.CLEANING:
            self.ledger.apply(ev.Exited.completed(job_id, job.attempt, now_s))
        self.ledger.apply(ev.Cleaned(job_id, now_s, attempt=job.attempt))

    def _wait_until(self, at_s: float) -> None:
        self.now = Now(at_s, self.now.mono_s + at_s - self.now.at_s)
        limits = self.ledger.calendar.at(at_s)
        if limits != self.rules.limits_now:
            self.rules = replace(self.rules, limits_now=limits)


#: Maximum number of live jobs for `smaller_demand`; copies of more would take too long.
MOST_JOBS = 20_000
#: A suggested demand is at least one part in this many of the original one.
_LEAST_PART = 4
_MIB = 1 << 20


def smaller_demand(present: Forecast, job: Job) -> JobSpec | None:
    """Return the specification, with a smaller demand or time limit, with which the job would start
    now, or None, tried with the daemon's own pass on copies of the present state."""
    if job.state is not JobState.PENDING:
        return None
    changes = _changes(present, job)
    return next((spec for spec in changes if _starts(present.copy(), job, spec)), None)


def _changes(present: Forecast, job: Job) -> Iterator[JobSpec]:
    """Yield the specifications to try, the smallest change first."""
    spec, demand = job.spec, job.spec.demand
    ledger, shares = present.ledger, present.rules.shares
    share_tree = shares.share_tree(ledger.used, [spec.leaf])
    free = free_of(ledger, present.rules, present.external)
    nearest = free.nearest(present.rules.axes.vector(demand))
    if nearest is None:
        return
    headroom = share_tree.headroom(spec.leaf, nearest)
    shrunk = _within(demand, headroom, present.rules.axes)
    if shrunk is not None and shrunk != demand:
        yield structs.replace(spec, demand=shrunk)
    # Times until the reservations of other jobs, or a maintenance window, begin.
    kept_s = [
        each.start_s - present.now.at_s
        for each in present.scheduler.reservations
        if each.job_id != job.id
    ]
    longest = ledger.calendar.longest_s(present.now.at_s)
    kept_s += [] if longest == inf else [longest]
    if shrunk is not None and kept_s:
        most_s = int(min(kept_s)) // 60 * 60
        limit_s = spec.time_limit_s
        if most_s > 0 and (limit_s is None or most_s < limit_s):
            yield structs.replace(spec, demand=shrunk, time_limit_s=most_s)


def _starts(future: Forecast, job: Job, spec: JobSpec) -> bool:
    future.ledger.apply(ev.Cancelled(job.id, future.now.at_s, by=spec.user))
    try:
        # Drop its conditions, which are met: it waits for resources only.
        free = structs.replace(spec, after=(), begin_s=None)
        added = future.add(SubmitAsked(future.now, free))
    except Refused:
        return False
    return added.id in future.pass_now().admitted


def _within(demand: Resources, headroom: Vector, axes: Axes) -> Resources | None:
    """Return the demand cut down to the headroom, rounded, or None if too little is left."""
    free = axes.resources(headroom)
    steps = {"cores": 500 if free.cores_milli >= 500 else 50, "memory": 16 * _MIB}
    asked, axes_by_name = axes.vector(demand), {name: at for at, name in enumerate(axes.names)}
    for name, _ in demand.gres:
        at = axes_by_name.get(axes.axis_of(name))
        if at is None or asked[at] > headroom[at]:
            return None
    cut = demand.with_amounts(
        {
            axis: _cut(amount, free.amount(axis), steps.get(axis, _MIB))
            for axis, amount in demand.amounts.items()
        }
    )
    pairs = zip(asked, axes.vector(cut), strict=True)
    return cut if all(left * _LEAST_PART >= asked for asked, left in pairs) else None


def _cut(asked: int, free: int, step: int) -> int:
    if asked <= free:
        return asked
    # Round down to as few digits as `round_size` leaves.
    while step * 16 < free:
        step *= 2
    return free // step * step


class Next(NamedTuple):
    """A single job of a queue, or adjacent tasks of an array with the same demand."""

    run: Run
    demand: Vector

    @property
    def size(self) -> int:
        _, first, last = self.run
        return last - first + 1


def upcoming(
    ledger: Ledger, last: Plan | None, rules: Rules, past_usage: Mapping[str, float]
) -> Iterator[Next]:
    """Yield the jobs of all queues; the ledger may not change meanwhile. `last` is the latest pass,
    or None; `past_usage` decides ties (see `core.fairness.service_order`)."""
    known = None if last is None else last.share_tree
    if known is None or not all(leaf in known.nodes for leaf in ledger.queues):
        known = rules.shares.share_tree(ledger.used, ledger.queues)
    share_tree = known.as_held()
    make_rank = RANKS[rules.policy]
    order = ServiceOrder(share_tree, make_rank(share_tree, past_usage))
    lines = {leaf: line(ledger, leaf) for leaf in ledger.queues}
    heads = {leaf: next(entries) for leaf, entries in lines.items()}
    for leaf, head in heads.items():
        order.put(leaf, head.run[1])
    while (leaf_ := order.first()) is not None:
        given = heads[leaf_]
        yield given
        share_tree.hold(leaf_, tuple([amount * given.size for amount in given.demand]))
        following = next(lines[leaf_], None)
        if following is not None:
            heads[leaf_] = following
        order.put(leaf_, None if following is None else following.run[1])


def line(ledger: Ledger, leaf: str) -> Iterator[Next]:
    """Yield the jobs of one leaf in the order of its queue."""
    return starmap(Next, ledger.queues.within_limits(leaf))


def shut_out(ledger: Ledger) -> Iterator[Next]:
    """Yield the pending jobs that only a limit on the running jobs of their group or array keeps
    out of the queues: higher priority first, then older, as each limit lets them in."""
    return (Next(run, ()) for run in ledger.queues.beyond_limits())
