"""Transitions: the job that results from a job and an event.

A job that waits for other jobs, for its begin time or for the pause before a retry is PENDING but
not eligible, and in no queue. Only the ledger uses this module, and like the ledger it decides
nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from drfd.core.amounts.resources import NOTHING
from drfd.core.ledger.queue import Line
from drfd.core.model import events as ev
from drfd.core.model.account import NO_ACCOUNT, account_of_run
from drfd.core.model.job import Broken, Job, JobState, Outcome, Stop

#: Number of requested signals that a job remembers. Older ones that could not be sent meanwhile are
#: lost, much as the kernel merges equal pending signals.
SIGNALS_KEPT = 16


class End(NamedTuple):
    """The end of a job, task or array for which some jobs still wait."""

    outcome: Outcome
    #: Unix time of the end.
    at_s: float
    #: The owner of the ended job.
    user: str
    #: Serial number of the end, in the order in which ends happened.
    number: int


class Dependents(dict[int, set[int]]):
    """Ids of the jobs that wait for a job's end, by that job's id. Only the ledger writes it."""

    def __init__(self) -> None:
        super().__init__()
        #: The keys, sorted.
        self._ids: list[int] = []
        #: Ends that have not been reported to all waiting jobs yet, by key; `Settlement` in
        #: `core.decisions.dependencies` reports them.
        self.ended: dict[int, End] = {}
        #: Number of the latest end.
        self.last_number = 0

    def add(self, on: int, job_id: int) -> None:
        if on not in self:
            self[on] = set()
            insort(self._ids, on)
        self[on].add(job_id)

    def remove(self, on: int, job_id: int) -> None:
        self[on].remove(job_id)
        if not self[on]:
            del self[on]
            del self._ids[bisect_left(self._ids, on)]
            self.ended.pop(on, None)

    def note_end(self, on: int, outcome: Outcome, at_s: float, user: str) -> None:
        """Record the end of a job, task or array if any job waits for it."""
        if on in self:
            self.last_number += 1
            self.ended[on] = End(outcome, at_s, user, self.last_number)

    def resume(self, ended: Mapping[int, End]) -> None:
        """Take over the ends recorded by the ledger before this one."""
        self.ended = dict(ended)
        self.last_number = max((end.number for end in ended.values()), default=0)

    def within(self, first: int, last: int) -> list[int]:
        """Return the keys from `first` to `last`, both included."""
        return self._ids[bisect_left(self._ids, first) : bisect_right(self._ids, last)]


class Begins(Line):
    """Earliest start times with the job's id, in order: begin times of users, and pauses of drfd.

    Only the ledger writes it.
    """

    __slots__ = ("pauses",)

    def __init__(self) -> None:
        super().__init__()
        #: The entries that are pauses.
        self.pauses = Line()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Begins) and self.pauses != other.pauses:
            return False
        return super().__eq__(other)

    __hash__ = None  # mutable

    def count(self, job: Job, sign: int) -> None:
        """Add (`sign` 1) or remove (-1) the earliest start time of a job, if it has one."""
        if job.not_before_s is None:
            return
        for line in (self, self.pauses) if job.not_before_s != job.spec.begin_s else (self,):
            change = line.add if sign > 0 else line.remove
            change((job.not_before_s, job.id))


def submitted(event: ev.Submitted | ev.ArraySubmitted) -> Job:
    """Return the new job, or the job that represents all tasks of the new array."""
    spec = event.spec
    is_early = spec.begin_s is not None and spec.begin_s > event.at_s
    must_wait = event.held or bool(spec.after) or is_early
    return Job(
        id=event.job_id if isinstance(event, ev.Submitted) else event.array_id,
        array_id=event.array_id if isinstance(event, ev.ArraySubmitted) else None,
        spec=spec,
        state=JobState.HELD if event.held else JobState.PENDING,
        submitted_at=event.at_s,
        eligible_at=None if must_wait else event.at_s,
        held_by=spec.user if event.held else None,
        awaits=spec.after,
        not_before_s=spec.begin_s if must_wait else None,
    )


def eligible(job: Job, at_s: float) -> Job:
    """Return the job, marked eligible if no condition delays it at that Unix time."""
    is_early = job.not_before_s is not None and job.not_before_s > at_s
    if job.state is not JobState.PENDING or job.awaits or job.broken is not None or is_early:
        return structs.replace(job, eligible_at=None)
    since_s = at_s if job.eligible_at is None else job.eligible_at
    return structs.replace(job, eligible_at=since_s, not_before_s=None)


def settled(job: Job, event: ev.DependencySettled) -> Job:
    gone = {each.on for each in event.all}
    awaits = tuple([each for each in job.awaits if each.job_id not in gone])
    broken = job.broken
    if broken is None:
        unmet = (Broken(each.on, each.outcome) for each in event.all if not each.is_met)
        broken = next(unmet, None)
    return eligible(structs.replace(job, awaits=awaits, broken=broken), event.at_s)


def altered(job: Job, event: ev.Altered) -> Job:
    spec, limit_s = job.spec, event.time_limit_s
    spec = replace(
        spec,
        name=spec.name if event.name is None else event.name,
        pool=spec.pool if event.pool is None else event.pool,
        priority=spec.priority if event.priority is None else event.priority,
        time_limit_s=spec.time_limit_s if limit_s is None else limit_s or None,
        demand=spec.demand if event.demand is None else event.demand,
        after=spec.after if event.after is None else event.after,
        begin_s=spec.begin_s if event.begin_s is None else event.begin_s or None,
        group=spec.group if event.group is None else event.group if event.group.name else None,
        most=spec.most if event.most is None else event.most if event.most != NOTHING else None,
    )
    job = structs.replace(job, spec=spec)
    if event.after is not None:
        job = structs.replace(job, awaits=spec.after, broken=None, is_never_notified=False)
    if event.begin_s is not None:
        job = structs.replace(job, not_before_s=spec.begin_s)
    is_plain = event.after is None and event.begin_s is None
    return job if is_plain else eligible(job, event.at_s)


def _next_step(job: Job) -> str:
    """Say what a waiting job has not done yet."""
    if job.retries:
        return "was tried again"
    return "started again" if job.earlier_runs else "started"


def queued_again(job: Job, event: ev.Requeued | ev.Retried) -> Job:
    """Return the job without the state of its last attempt, waiting again.

    It is eligible from now on, except that a job whose launch was postponed keeps its earlier time.
    """
    run = account_of_run(job)
    again = Job(
        id=job.id,
        spec=job.spec,
        state=JobState.PENDING,
        attempt=job.attempt,
        submitted_at=job.submitted_at,
        preempted_at=job.preempted_at,
        retries=job.retries,
        last_end=job.last_end,
        earlier_runs=job.earlier_runs if run is None else (job.earlier_runs or NO_ACCOUNT) + run,
        array_id=job.array_id,
        array_index=job.array_index,
        postponements=job.postponements,
    )
    if job.postponed is not None and job.outcome is None:
        again = structs.replace(
            again,
            postponed=job.postponed,
            not_before_s=job.not_before_s,
            eligible_at=job.eligible_at,
        )
    if isinstance(event, ev.Retried):
        again = structs.replace(
            again,
            not_before_s=event.not_before_s,
            retries=job.retries + 1,
            last_end=f"attempt {job.attempt} ended {job.outcome} ({job.outcome_text})",
        )
    return eligible(again, event.at_s)


def signalled(job: Job, number: int) -> Job:
    signals = (*job.signals, number)[-SIGNALS_KEPT:]
    return structs.replace(job, signals=signals, signal_count=job.signal_count + 1)


def recount_conditions(before: Job, job: Job, dependents: Dependents, begins: Begins) -> None:
    """Replace the conditions of a waiting job by its present ones.

    Only the difference is written: of a thousand dependencies, usually a single one has ended.
    """
    waits = (JobState.PENDING, JobState.HELD)
    if before.state not in waits or job.state not in waits:
        count_conditions(before, -1, dependents, begins)
        count_conditions(job, 1, dependents, begins)
        return
    if before.awaits != job.awaits:
        old = {each.job_id for each in before.awaits}
        new = {each.job_id for each in job.awaits}
        for on in old - new:
            dependents.remove(on, job.id)
        for on in new - old:
            dependents.add(on, job.id)
    begins.count(before, -1)
    begins.count(job, 1)


def count_conditions(job: Job, sign: int, dependents: Dependents, begins: Begins) -> None:
    """Add (`sign` 1) or remove (-1) the conditions of a job that has not started.

    The job may represent all tasks of an array that have no record of their own.
    """
    if job.state not in (JobState.PENDING, JobState.HELD):
        return
    if not job.awaits and job.not_before_s is None:
        return
    for on in {each.job_id for each in job.awaits}:
        if sign > 0:
            dependents.add(on, job.id)
        else:
            dependents.remove(on, job.id)
    begins.count(job, sign)


def moved(job: Job, event: ev.JobEvent, state: JobState) -> Job:
    """Return the job after the event; `state` is its next state by the state table."""
    match event:
        # The events of every job come first: patterns are tried in order.
        case ev.Admitted():
            return structs.replace(
                job,
                state=state,
                attempt=event.attempt,
                instances=event.instances,
                node=event.node,
            )
        case ev.Launched():
            return structs.replace(
                job,
                state=state,
                started_at=event.at_s,
                started_mono_s=event.mono_s,
                cgroup=event.cgroup,
                postponed=None,
            )
        case ev.Exited():
            return structs.replace(
                job,
                state=state,
                freezing=False,
                ended_at=event.at_s,
                exit_code=event.exit_code,
                signal=event.signal,
                outcome=event.outcome,
                outcome_text=event.text,
                loss=event.loss,
                usage=event.usage,
            )
        case ev.Cleaned():
            return structs.replace(job, state=state)
        case ev.Held():
            return structs.replace(job, state=state, held_by=event.by, eligible_at=None)
        case ev.Released():
            return eligible(structs.replace(job, state=state, held_by=None), event.at_s)
        case ev.Cancelled():
            return structs.replace(
                job,
                state=state,
                ended_at=event.at_s,
                outcome=Outcome.CANCELLED,
                outcome_text=event.why or f"cancelled by {event.by} before it {_next_step(job)}",
            )
        case ev.LaunchFailed():
            return structs.replace(
                job,
                state=state,
                freezing=False,
                ended_at=event.at_s,
                outcome=event.outcome,
                outcome_text=event.text,
            )
        case ev.LaunchPostponed():
            return structs.replace(
                job,
                state=state,
                freezing=False,
                started_at=None,
                started_mono_s=None,
                ended_at=event.at_s,
                not_before_s=event.not_before_s,
                postponed=event.why,
                postponements=job.postponements + 1,
            )
        case ev.StopRequested():
            stop = Stop(
                outcome=event.outcome,
                text=event.text,
                at_s=event.at_s,
                mono_s=event.mono_s,
                # A frozen job cannot act on SIGTERM, so there is no grace time.
                escalated=job.suspended_at is not None,
                held_by=event.held_by,
            )
            if job.stop is not None:
                # Its grace time has begun already.
                stop = replace(
                    job.stop, outcome=event.outcome, text=event.text, held_by=event.held_by
                )
            job = structs.replace(job, state=state, stop=stop, freezing=False)
            if state is JobState.CLEANING:
                return structs.replace(job, outcome=event.outcome, outcome_text=event.text)
            return job
        case ev.PreemptRequested():
            stop = Stop(outcome=None, text=event.text, at_s=event.at_s, mono_s=event.mono_s)
            return structs.replace(
                job, state=state, stop=stop, freezing=False, preempted_at=event.at_s
            )
        case ev.Escalated():
            assert job.stop is not None
            return structs.replace(job, state=state, stop=replace(job.stop, escalated=True))
        case ev.Requeued() | ev.Retried():
            return queued_again(job, event)
        case ev.DependencySettled():
            return settled(job, event)
        case ev.OwnerNotified():
            return structs.replace(job, is_never_notified=True)
        case ev.BeginReached():
            return eligible(structs.replace(job, not_before_s=None), event.at_s)
        case ev.Altered():
            return altered(job, event)
        case ev.Warned():
            return signalled(structs.replace(job, warned=True), event.signal)
        case ev.SignalRequested():
            return signalled(job, event.signal)
        case ev.SuspendRequested():
            if state is JobState.RUNNING:
                job = structs.replace(job, freezing=True)
            preempted_at = event.at_s if event.by is None else job.preempted_at
            return structs.replace(job, held_by=event.by, preempted_at=preempted_at)
        case ev.Suspended():
            return structs.replace(
                job,
                state=state,
                freezing=False,
                suspended_at=event.at_s,
                suspended_mono_s=event.mono_s,
                suspensions=job.suspensions + 1,
            )
        case ev.ResumeRequested():
            return structs.replace(job, held_by=None)
        case ev.Resumed():
            assert job.suspended_mono_s is not None
            return structs.replace(
                job,
                state=state,
                suspended_at=None,
                suspended_mono_s=None,
                suspended_s=job.suspended_s + event.mono_s - job.suspended_mono_s,
            )
        case ev.Submitted():
            raise AssertionError("a job is born once")
