"""The books: every live job, who holds what, who waits where.

`apply` is the only writer. It holds no judgement, because it must replay history that was decided
by older judgement; it is given only events that are, or are about to be, durable.
Ended jobs leave the ledger; the journal keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from drfd.core import events as ev
from drfd.core.job import Job, JobState, Outcome, Stop
from drfd.core.lifecycle import InvalidTransition, next_state
from drfd.core.queue import Entry, LeafQueue
from drfd.core.resources import Axes, Vector, minus, plus


class Ledger:
    """Correlated tables over one set of jobs; never written but through `apply`."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        #: Live jobs by id; an ended job is not here.
        self.jobs: dict[int, Job] = {}
        #: PENDING jobs by leaf; a leaf without any is absent.
        self.queues: dict[str, LeafQueue] = {}
        #: What each leaf holds; a leaf that holds nothing is absent.
        self.used: dict[str, Vector] = {}
        #: Jobs that hold resources, by leaf; their sum is `used`.
        self.holding: dict[str, set[int]] = {}
        #: Sum of `used`.
        self.booked: Vector = self.nothing
        #: Jobs not yet started (PENDING or HELD) by user name.
        self.waiting: Counter[str] = Counter()
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

    @property
    def nothing(self) -> Vector:
        return (0,) * len(self.axes.names)

    def demand(self, job: Job) -> Vector:
        return self.axes.vector(job.spec.demand)

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
            job = Job(
                id=event.job_id,
                spec=event.spec,
                state=JobState.HELD if event.held else JobState.PENDING,
                submitted_at=event.at_s,
                eligible_at=None if event.held else event.at_s,
                held_by=event.spec.user if event.held else None,
            )
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
        if job.state is JobState.PENDING:
            entry: Entry = (-job.spec.priority, job.id)
            if sign > 0:
                self.queues.setdefault(leaf, LeafQueue()).add(self.demand(job), entry)
            else:
                self.queues[leaf].remove(self.demand(job), entry)
                if not self.queues[leaf]:
                    del self.queues[leaf]
        if job.holds_resources:
            demand = self.demand(job)
            change = plus if sign > 0 else minus
            self.booked = change(self.booked, demand)
            self.used[leaf] = change(self.used.get(leaf, self.nothing), demand)
            if sign > 0:
                self.holding.setdefault(leaf, set()).add(job.id)
            else:
                self.holding[leaf].remove(job.id)
                if not self.holding[leaf]:
                    del self.holding[leaf], self.used[leaf]

    def check(self) -> None:
        """Raise AssertionError if the tables disagree with the jobs: a bug."""
        fresh = Ledger.of_jobs(self.axes, self.jobs.values())
        for table in ("queues", "used", "holding", "booked", "waiting"):
            assert getattr(self, table) == getattr(fresh, table), f"ledger: {table} is wrong"
        assert all(amount >= 0 for amount in self.booked)
        assert all(job_id < self.next_id for job_id in self.jobs)


def _moved(job: Job, event: ev.JobEvent, state: JobState) -> Job:
    match event:
        case ev.Held():
            return replace(job, state=state, held_by=event.by, eligible_at=None)
        case ev.Released():
            return replace(job, state=state, held_by=None, eligible_at=event.at_s)
        case ev.Cancelled():
            return replace(
                job,
                state=state,
                ended_at=event.at_s,
                outcome=Outcome.CANCELLED,
                outcome_text=f"cancelled by {event.by} before it started",
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
                ended_at=event.at_s,
                outcome=event.outcome,
                outcome_text=event.text,
            )
        case ev.StopRequested():
            stop = Stop(
                outcome=event.outcome, text=event.text, at_s=event.at_s, mono_s=event.mono_s
            )
            return replace(job, state=state, stop=stop)
        case ev.Escalated():
            assert job.stop is not None
            return replace(job, state=state, stop=replace(job.stop, escalated=True))
        case ev.Exited():
            return replace(
                job,
                state=state,
                ended_at=event.at_s,
                exit_code=event.exit_code,
                signal=event.signal,
                outcome=event.outcome,
                outcome_text=event.text,
                usage=event.usage,
            )
        case ev.Cleaned():
            return replace(job, state=state)
        case ev.Submitted():
            raise AssertionError("a job is born once")
