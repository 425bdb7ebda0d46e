"""The books: every live job, who holds what, who waits where.

`apply` is the only writer. It holds no judgement, because it must replay history that was decided
by older judgement; it is given only events that are, or are about to be, durable.
Ended jobs leave the ledger; the journal keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from drfd.core import events as ev
from drfd.core.array import Array
from drfd.core.awaiting import count_conditions, submitted
from drfd.core.census import Census
from drfd.core.holding import Holding, holds_the_same
from drfd.core.instances import Instance, count
from drfd.core.job import Job, JobState
from drfd.core.lifecycle import InvalidTransition, next_state
from drfd.core.moves import moved
from drfd.core.queue import Line
from drfd.core.queues import Queues
from drfd.core.resources import Axes, Resources, Vector, minus, plus
from drfd.core.roster import Left, Roster, Rosters, entry_of


class Ledger:
    """Correlated tables over one set of jobs; never written but through `apply`."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        #: Live jobs by id; an ended job is not here, nor a task that has no record: see `find`.
        self.jobs: dict[int, Job] = {}
        #: Arrays with a task that is not over, by id.
        self.arrays = Rosters()
        self.queues = Queues(self.arrays)
        #: What each leaf holds; a leaf that holds nothing is absent.
        self.used: dict[str, Vector] = {}
        #: Jobs that hold resources, by leaf; their sum is `used`.
        self.holding = Holding()
        #: Sum of `used`.
        self.booked: Vector = self.nothing
        #: Countable things that jobs hold, each by one job.
        self.taken: Counter[Instance] = Counter()
        #: How many jobs there are of each kind, those tasks of arrays included that have no record.
        self.census = Census()
        #: Jobs that wait for a live job's end, by that job's id.
        self.dependents: dict[int, set[int]] = {}
        #: (Unix time, job id) of those not to start before a time.
        self.begins = Line()
        self.next_id = 1
        self.draining = False

    @classmethod
    def of_jobs(
        cls,
        axes: Axes,
        jobs: Iterable[Job],
        *,
        arrays: Iterable[Left] = (),
        next_id: int = 1,
        draining: bool = False,
    ) -> Ledger:
        """The ledger that the events behind `jobs` and live `arrays` would have made."""
        ledger = cls(axes)
        for left in arrays:
            ledger._enrol(Roster.of(*left))
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
        return Ledger.of_jobs(
            axes,
            self.jobs.values(),
            arrays=self.arrays.left(),
            next_id=self.next_id,
            draining=self.draining,
        )

    def demands(self) -> Iterator[Resources]:
        """What live jobs ask for, and the tasks of each live array."""
        yield from (job.spec.demand for job in self.jobs.values())
        yield from (array.spec.demand for array, *_ in self.arrays.left())

    @property
    def is_empty(self) -> bool:
        """Nothing waits or runs."""
        return not self.jobs and not self.arrays

    def find(self, job_id: int) -> Job | None:
        """A live job; also a task of an array that has no record of its own yet."""
        return self.jobs.get(job_id) or self.arrays.unborn(job_id)

    def job(self, job_id: int) -> Job:
        """The same for one that is known to live."""
        job = self.find(job_id)
        if job is None:
            raise KeyError(job_id)
        return job

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
        if job.instances:
            demand = minus(demand, self.axes.retired(job.instances))
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

    def largest_holder(self, axis: int) -> Job | None:
        """The job that holds most on an axis, the eldest of equals; None: nobody holds any."""
        largest = self.holding.largest(axis, lambda job_id: self.held(self.jobs[job_id]))
        return None if largest is None else self.jobs[largest]

    def holders(self) -> Iterable[Job]:
        """Jobs that hold resources now."""
        return (self.jobs[job_id] for ids in self.holding.values() for job_id in ids)

    def slots_taken(self) -> dict[str, int]:
        """How many jobs of each leaf hold resources, but for those that are frozen: they have given
        their slot back, and need one to go on."""
        frozen = JobState.SUSPENDED
        return {
            leaf: sum(self.jobs[job_id].state is not frozen for job_id in ids)
            for leaf, ids in self.holding.items()
        }

    def apply(self, event: ev.Event) -> Job | None:
        """Take the event into the books; the job as it is now (None: not about a job).

        Raises InvalidTransition, and changes nothing, when the table does not allow it.
        """
        if isinstance(event, ev.Drained):
            self.draining = event.on
            return None
        if isinstance(event, ev.ArraySubmitted):
            self._refuse_known(event.array_id, event)
            common = submitted(event)
            array = Array(common=common, spans=event.spans, at_once=event.at_once)
            self._enrol(Roster.of(array, array.whole.ids))
            return common
        if isinstance(event, ev.Submitted):
            self._refuse_known(event.job_id, event)
            job = submitted(event)
            self._put(None, job)
            return job
        roster = self.arrays.get(event.job_id)
        if roster is not None:
            return self._move_together(roster, event)
        before = self.find(event.job_id)
        if before is None:
            raise InvalidTransition(f"no live job {event.job_id} for {event!r}")
        job = moved(before, event, next_state(before.state, event))
        self._put(before, job)
        return job

    def _move_together(self, roster: Roster, event: ev.JobEvent) -> Job:
        """All tasks of the array that have no record of their own."""
        before = roster.array.common
        job = moved(before, event, next_state(before.state, event))
        if not roster.unborn or job.holds_resources:
            raise InvalidTransition(f"no task of array {before.id} is there for {event!r}")
        self._count_unborn(roster, -1)
        roster.become(job)
        self._count_unborn(roster, 1)
        self._settle(roster)
        self.arrays.drop_if_over(roster)
        return job

    def _refuse_known(self, job_id: int, event: ev.Event) -> None:
        if job_id < self.next_id:
            raise InvalidTransition(f"job {job_id} is born twice: {event!r}")

    def _enrol(self, roster: Roster) -> None:
        self.arrays.enrol(roster)
        self._count_unborn(roster, 1)
        self._settle(roster)
        self.next_id = max(self.next_id, roster.array.last_id + 1)

    def _put(self, before: Job | None, job: Job) -> None:
        """Replace `before` by `job` in every table."""
        if before is not None and holds_the_same(before, job):
            # All other tables hold what they would be told anew.
            self.census.count(before.spec, before.state, -1)
            self.census.count(job.spec, job.state, 1)
            self.jobs[job.id] = job
            return
        roster = None if job.array_id is None else self.arrays[job.array_id]
        if before is not None:
            self._count(before, -1)
            if before.id in self.jobs:
                count_conditions(before, -1, self.dependents, self.begins)
        if roster is not None and (before is None or before.id not in self.jobs):
            # It gets a record of its own.
            roster.live.add(job.id)
            if before is not None:
                roster.unborn.remove(entry_of(before))
                if not roster.unborn:
                    count_conditions(roster.array.common, -1, self.dependents, self.begins)
        self._count(job, 1)
        count_conditions(job, 1, self.dependents, self.begins)
        if job.state is JobState.ENDED:
            self.jobs.pop(job.id, None)
        else:
            self.jobs[job.id] = job
        self.next_id = max(self.next_id, job.id + 1)
        if roster is not None:
            if job.state is JobState.ENDED:
                roster.live.remove(job.id)
                roster.note_bad(job.id, job.outcome)
            self._settle(roster)
            self.arrays.drop_if_over(roster)

    def _settle(self, roster: Roster) -> None:
        """Let as many tasks of the array into the queue as may start."""
        for sign, run in roster.moves():
            # Only tasks without a record stand in one run with others.
            job = self.jobs.get(run[1]) or roster.array.common
            wanted = self.wanted(job)
            assert wanted is not None
            self.queues.put(job, wanted, run, sign)

    def _count_unborn(self, roster: Roster, sign: int) -> None:
        if not roster.unborn:
            return
        common = roster.array.common
        self.census.count(common.spec, common.state, sign * len(roster.unborn))
        count_conditions(common, sign, self.dependents, self.begins)
        wanted = self.wanted(common)
        if wanted is not None:
            for run in roster.unborn.runs():
                self.queues.line_up(common, wanted, run, sign)

    def _count(self, job: Job, sign: int) -> None:
        """Enter (`sign` 1) or strike out (-1) a job in the tables that its state puts it in."""
        leaf = job.spec.leaf
        self.census.count(job.spec, job.state, sign)
        wanted = self.wanted(job)
        if wanted is not None:
            self.queues.line_up(job, wanted, (*entry_of(job), job.id), sign)
        if job.holds_resources:
            held = self.held(job)
            count(job.instances, sign, self.taken)
            change = plus if sign > 0 else minus
            self.booked = change(self.booked, held)
            self.used[leaf] = change(self.used.get(leaf, self.nothing), held)
            if sign > 0:
                self.holding.add(leaf, job.id)
            else:
                self.holding.remove(leaf, job.id)
                if leaf not in self.holding:
                    del self.used[leaf]
            roster = self.arrays.bound_of(job)
            if roster is not None:
                roster.active += sign

    def check(self) -> None:
        """Raise AssertionError if the tables disagree with the jobs: a bug."""
        fresh = Ledger.of_jobs(self.axes, self.jobs.values(), arrays=self.arrays.left())
        tables = "queues used holding booked taken census dependents begins"
        for table in (*tables.split(), "arrays"):
            assert getattr(self, table) == getattr(fresh, table), f"ledger: {table} is wrong"
        assert all(amount >= 0 for amount in self.booked)
        assert all(each == 1 for each in self.taken.values()), "an instance is held twice"
        assert all(job_id < self.next_id for job_id in self.jobs)
        known = all(self.find(each) or each in self.arrays for each in self.dependents)
        assert known, "a job waits for one that has ended"
