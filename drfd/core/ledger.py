"""The books: every live job, who holds what, who waits where.

`apply` is the only writer. It holds no judgement, because it must replay history that was decided
by older judgement; it is given only events that are, or are about to be, durable.
Ended jobs leave the ledger; the journal keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from drfd.core import awaiting
from drfd.core import events as ev
from drfd.core.job import Job, JobState, Outcome, Stop
from drfd.core.lifecycle import InvalidTransition, next_state
from drfd.core.queue import Entry, LeafQueue, Line
from drfd.core.resources import Axes, Vector, minus, plus


class Ledger:
    """Correlated tables over one set of jobs; never written but through `apply`."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        #: Live jobs by id; an ended job is not here.
        self.jobs: dict[int, Job] = {}
        #: Jobs that wait to start, or to go on, by leaf; a leaf without any is absent.
        self.queues: dict[str, LeafQueue] = {}
        #: What each leaf holds; a leaf that holds nothing is absent.
        self.used: dict[str, Vector] = {}
        #: Jobs that hold resources, by leaf; their sum is `used`.
        self.holding: dict[str, set[int]] = {}
        #: Sum of `used`.
        self.booked: Vector = self.nothing
        #: Jobs not yet started (PENDING or HELD) by user name.
        self.waiting: Counter[str] = Counter()
        #: Jobs that wait for a live job's end, by that job's id.
        self.dependents: dict[int, set[int]] = {}
        #: (Unix time, job id) of those not to start before a time.
        self.begins = Line()
        self.next_id = 1
        self.draining = False

    @classmethod
    def of_jobs(
        cls, axes: Axes, jobs: Iterable[Job], *, next_id: int = 1, draining: bool = False
    ) -> Ledger:
        """The ledger that the events behind `jobs` would have made."""
        ledger = cls(axes)
        for job in jobs:
            ledger._put(None, job)
        ledger.next_id = max(next_id, ledger.next_id)
        ledger.draining = draining
        return ledger

    @classmethod
    def of_events(cls, axes: Axes, events: Iterable[ev.Event]) -> Ledger:
        ledger = cls(axes)
        for event in events:
            ledger.apply(event)
        return ledger

    def with_axes(self, axes: Axes) -> Ledger:
        """The same books on a machine with other resources."""
        jobs = self.jobs.values()
        return Ledger.of_jobs(axes, jobs, next_id=self.next_id, draining=self.draining)

    def used_disks(self) -> frozenset[str]:
        """All that a job names with a rate."""
        demands = (job.spec.demand for job in self.jobs.values())
        return frozenset[str]().union(*(each.used_disks for each in demands if each.disks))

    @property
    def nothing(self) -> Vector:
        return (0,) * len(self.axes.names)

    def demand(self, job: Job) -> Vector:
        return self.axes.vector(job.spec.demand)

    def held(self, job: Job) -> Vector:
        """What the job holds now."""
        if not job.holds_resources:
            return self.nothing
        demand = self.demand(job)
        return demand if job.suspended_at is None else minus(demand, self.axes.released(demand))

    def wanted(self, job: Job) -> Vector | None:
        """What it waits for: to start, or to go on; None when it does not wait, or not for this."""
        if job.state is JobState.PENDING and job.eligible_at is not None:
            return self.demand(job)
        if job.state is JobState.SUSPENDED and job.held_by is None:
            return self.axes.released(self.demand(job))
        return None

    def active_leaves(self) -> set[str]:
        return {*self.queues, *self.used}

    def holders(self) -> Iterable[Job]:
        """Jobs that hold resources now."""
        return (self.jobs[job_id] for ids in self.holding.values() for job_id in ids)

    def apply(self, event: ev.Event) -> Job | None:
        """Take the event into the books; the job as it is now (None: not about a job).

        Raises InvalidTransition, and changes nothing, when the table does not allow it.
        """
        if isinstance(event, ev.Drained):
            self.draining = event.on
            return None
        if isinstance(event, ev.Submitted):
            if event.job_id < self.next_id:
                raise InvalidTransition(f"job {event.job_id} is born twice: {event!r}")
            job = awaiting.submitted(event)
            self._put(None, job)
            return job
        before = self.jobs.get(event.job_id)
        if before is None:
            raise InvalidTransition(f"no live job {event.job_id} for {event!r}")
        job = _moved(before, event, next_state(before.state, event))
        self._put(before, job)
        return job

    def _put(self, before: Job | None, job: Job) -> None:
        """Replace `before` by `job` in every table."""
        if before is not None:
            self._count(before, -1)
        self._count(job, 1)
        if job.state is JobState.ENDED:
            self.jobs.pop(job.id, None)
        else:
            self.jobs[job.id] = job
        self.next_id = max(self.next_id, job.id + 1)

    def _count(self, job: Job, sign: int) -> None:
        """Enter (`sign` 1) or strike out (-1) a job in the tables that its state puts it in."""
        leaf = job.spec.leaf
        if job.state in (JobState.PENDING, JobState.HELD):
            self.waiting[job.spec.user] += sign
            if not self.waiting[job.spec.user]:
                del self.waiting[job.spec.user]
            self._count_conditions(job, sign)
        wanted = self.wanted(job)
        if wanted is not None:
            entry: Entry = (-job.spec.priority, job.id)
            if sign > 0:
                self.queues.setdefault(leaf, LeafQueue()).add(wanted, entry)
            else:
                self.queues[leaf].remove(wanted, entry)
                if not self.queues[leaf]:
                    del self.queues[leaf]
        if job.holds_resources:
            held = self.held(job)
            change = plus if sign > 0 else minus
            self.booked = change(self.booked, held)
            self.used[leaf] = change(self.used.get(leaf, self.nothing), held)
            if sign > 0:
                self.holding.setdefault(leaf, set()).add(job.id)
            else:
                self.holding[leaf].remove(job.id)
                if not self.holding[leaf]:
                    del self.holding[leaf], self.used[leaf]

    def _count_conditions(self, job: Job, sign: int) -> None:
        for on in {each.job_id for each in job.awaits}:
            if sign > 0:
                self.dependents.setdefault(on, set()).add(job.id)
            else:
                self.dependents[on].remove(job.id)
                if not self.dependents[on]:
                    del self.dependents[on]
        if job.not_before_s is not None:
            change = self.begins.add if sign > 0 else self.begins.remove
            change((job.not_before_s, job.id))

    def check(self) -> None:
        """Raise AssertionError if the tables disagree with the jobs: a bug."""
        fresh = Ledger.of_jobs(self.axes, self.jobs.values())
        tables = ("queues", "used", "holding", "booked", "waiting", "dependents", "begins")
        for table in tables:
            assert getattr(self, table) == getattr(fresh, table), f"ledger: {table} is wrong"
        assert all(amount >= 0 for amount in self.booked)
        assert all(job_id < self.next_id for job_id in self.jobs)
        assert self.dependents.keys() <= self.jobs.keys(), "a job waits for one that has ended"


def _moved(job: Job, event: ev.JobEvent, state: JobState) -> Job:
    match event:
        case ev.Held():
            return replace(job, state=state, held_by=event.by, eligible_at=None)
        case ev.Released():
            return awaiting.eligible(replace(job, state=state, held_by=None), event.at_s)
        case ev.Cancelled():
            return replace(
                job,
                state=state,
                ended_at=event.at_s,
                outcome=Outcome.CANCELLED,
                outcome_text=f"cancelled by {event.by} before it "
                + ("was tried again" if job.retries else "started"),
            )
        case ev.Admitted():
            return replace(job, state=state, attempt=event.attempt)
        case ev.Launched():
            return replace(
                job,
                state=state,
                started_at=event.at_s,
                started_mono_s=event.mono_s,
                cgroup=event.cgroup,
            )
        case ev.LaunchFailed():
            return replace(
                job,
                state=state,
                freezing=False,
                ended_at=event.at_s,
                outcome=event.outcome,
                outcome_text=event.text,
            )
        case ev.StopRequested():
            stop = Stop(
                outcome=event.outcome,
                text=event.text,
                at_s=event.at_s,
                mono_s=event.mono_s,
                # What is frozen cannot take a SIGTERM, nor the time to act on it.
                escalated=job.suspended_at is not None,
            )
            if job.stop is not None:
                # It was to be requeued: its grace time runs already.
                stop = replace(job.stop, outcome=event.outcome, text=event.text)
            job = replace(job, state=state, stop=stop, freezing=False)
            if state is JobState.CLEANING:
                return replace(job, outcome=event.outcome, outcome_text=event.text)
            return job
        case ev.PreemptRequested():
            stop = Stop(outcome=None, text=event.text, at_s=event.at_s, mono_s=event.mono_s)
            return replace(job, state=state, stop=stop, freezing=False, preempted_at=event.at_s)
        case ev.Escalated():
            assert job.stop is not None
            return replace(job, state=state, stop=replace(job.stop, escalated=True))
        case ev.Exited():
            return replace(
                job,
                state=state,
                freezing=False,
                ended_at=event.at_s,
                exit_code=event.exit_code,
                signal=event.signal,
                outcome=event.outcome,
                outcome_text=event.text,
                usage=event.usage,
            )
        case ev.Cleaned():
            return replace(job, state=state)
        case ev.Requeued() | ev.Retried():
            return awaiting.queued_again(job, event)
        case ev.DependencySettled():
            return awaiting.settled(job, event)
        case ev.BeginReached():
            return awaiting.eligible(replace(job, not_before_s=None), event.at_s)
        case ev.Changed():
            return awaiting.changed(job, event)
        case ev.Warned():
            return awaiting.signalled(replace(job, warned=True), event.signal)
        case ev.SignalRequested():
            return awaiting.signalled(job, event.signal)
        case ev.SuspendRequested():
            if state is JobState.RUNNING:
                job = replace(job, freezing=True)
            preempted_at = event.at_s if event.by is None else job.preempted_at
            return replace(job, held_by=event.by, preempted_at=preempted_at)
        case ev.Suspended():
            return replace(
                job,
                state=state,
                freezing=False,
                suspended_at=event.at_s,
                suspended_mono_s=event.mono_s,
                suspensions=job.suspensions + 1,
            )
        case ev.ResumeRequested():
            return replace(job, held_by=None)
        case ev.Resumed():
            assert job.suspended_mono_s is not None
            return replace(
                job,
                state=state,
                suspended_at=None,
                suspended_mono_s=None,
                suspended_s=job.suspended_s + event.mono_s - job.suspended_mono_s,
            )
        case ev.Submitted():
            raise AssertionError("a job is born once")
