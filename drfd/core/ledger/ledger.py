"""The ledger: every live job, every allocation, and every queue. The journal has ended jobs.

`apply` is the only writer. It decides nothing, because it also replays the past, and is given only
events that are durable or about to be.

The ledger also counts jobs by state and user (`JobCounts`), and has the jobs with a condition: the
end of another job (`Dependents`), or a time (`Begins`). A job with a condition is PENDING but in no
queue.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, sub
from types import MappingProxyType
from typing import NamedTuple

from msgspec import structs

from drfd.common.indices import Ids, joined
from drfd.core.ledger.queue import (
    ArrayState,
    ArrayStates,
    Changes,
    Entry,
    LiveArray,
    Queues,
    add_to,
)
from drfd.core.model import events as ev
from drfd.core.model.calendar import Calendar
from drfd.core.model.events import InvalidTransition
from drfd.core.model.job import (
    ALLOCATED_STATES,
    ROOT,
    WAITING_STATES,
    Array,
    Dependency,
    Job,
    JobSpec,
    JobState,
    Outcome,
    Postponed,
    Tasks,
    Whose,
    notice_demand,
)
from drfd.core.model.machine import (
    Allocation,
    Instance,
    Vector,
    count_instances,
    each_instance,
)
from drfd.core.model.resources import Axes


def keeps_allocation(before: Job, job: Job) -> bool:
    """True if the job's allocation is unchanged and it is in no queue before or after."""
    return (
        before.spec is job.spec
        and before.state in ALLOCATED_STATES
        and job.state in ALLOCATED_STATES
        and before.suspended_at is job.suspended_at is None
        and before.instances is job.instances
        and before.node is job.node
        and before.only_notifies is job.only_notifies
    )


@dataclass
class JobCounts:
    """Counters of live jobs; keys with a count of zero are absent."""

    states: Counter[JobState] = field(default_factory=Counter)
    #: Running jobs that may be stopped for others.
    preemptible: int = 0
    #: Jobs not yet started (PENDING or HELD) by user name.
    waiting: Counter[str] = field(default_factory=Counter)
    #: The same by leaf.
    waiting_of: Counter[str] = field(default_factory=Counter)
    #: Live jobs and arrays by user name.
    submissions: Counter[str] = field(default_factory=Counter)
    #: Dependencies beyond the first of each job, by user name; tasks of an array that have the same
    #: ones count as one job.
    more_dependencies: Counter[str] = field(default_factory=Counter)
    #: Dependencies beyond the first of each task of an array, by user name.
    task_dependencies: Counter[str] = field(default_factory=Counter)

    def count(self, spec: JobSpec, state: JobState, change: int) -> None:
        """Add `change` equal jobs to the counters of this state."""
        if state is JobState.ENDED:
            return
        add_to(self.states, state, change)
        if spec.preemptible and state is JobState.RUNNING:
            self.preemptible += change
        if state is JobState.PENDING or state is JobState.HELD:
            add_to(self.waiting, spec.user, change)
            add_to(self.waiting_of, spec.leaf, change)

    def count_dependencies(self, spec: JobSpec, sign: int) -> None:
        add_to(self.more_dependencies, spec.user, sign * more_dependencies(spec.after))


def more_dependencies(after: Sequence[Dependency]) -> int:
    """Return the number of dependencies beyond the first, which counts with the job."""
    return max(0, len(after) - 1)


class End(NamedTuple):
    """The end of a job, task or array for which some jobs still wait."""

    outcome: Outcome
    #: Unix time of the end.
    at_s: float


class Dependents(dict[int, dict[int, set[int]]]):
    """The jobs that wait for a job's end, by that job's id: by the id of each single job or array,
    itself or the tasks that wait."""

    def __init__(self) -> None:
        #: Ends that have not been reported to all waiting jobs yet, by key; `report_ends` in
        #: `core.decisions.dependencies` reports them.
        self.ended: dict[int, End] = {}
        #: The single jobs and arrays that wait for such an end, by their user and that key. The
        #: ends are in the order in which they happened.
        self.untold: dict[str, dict[int, dict[int, None]]] = {}

    def add(self, on: int, owner: int, ids: Iterable[int], user: str) -> None:
        """`user`: whose the waiting jobs are."""
        self.setdefault(on, {}).setdefault(owner, set()).update(ids)
        if on in self.ended:
            self._note_untold(on, owner, user)

    def remove(self, on: int, owner: int, job_id: int, user: str) -> None:
        waiting = self[on]
        waiting[owner].remove(job_id)
        if waiting[owner]:
            return
        del waiting[owner]
        if not waiting:
            del self[on]
        if on in self.ended:
            ends = self.untold[user]
            del ends[on][owner]
            if not ends[on]:
                del ends[on]
            if not ends:
                del self.untold[user]
        if not waiting:
            self.ended.pop(on, None)

    def note_end(self, on: int, end: End, user_of: Callable[[int], str]) -> None:
        """Record the end of a job, task or array if any job waits for it. `user_of` returns whose a
        waiting job or array is."""
        if on not in self:
            return
        self.ended[on] = end
        for owner in sorted(self[on]):
            self._note_untold(on, owner, user_of(owner))

    def _note_untold(self, on: int, owner: int, user: str) -> None:
        self.untold.setdefault(user, {}).setdefault(on, {})[owner] = None


@dataclass
class Begins:
    """Earliest start times with the job's id, in order, by the jobs' user."""

    #: Begin times of users, and pauses of drfd.
    all: dict[str, list[Entry]] = field(default_factory=dict)
    #: Those that are pauses.
    pauses: dict[str, list[Entry]] = field(default_factory=dict)

    def count(self, user: str, entry: Entry, sign: int, *, is_pause: bool) -> None:
        """Add (`sign` 1) or remove (-1) a time."""
        for times in (self.all, self.pauses) if is_pause else (self.all,):
            if sign > 0:
                insort(times.setdefault(user, []), entry)
                continue
            del times[user][bisect_left(times[user], entry)]
            if not times[user]:
                del times[user]

    def first_s(self) -> float | None:
        """Return the first of all times, or None if there is none."""
        return min((float(times[0][0]) for times in self.all.values()), default=None)


class Ledger:
    """Correlated tables over one set of jobs; only `apply` writes them."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self._nothing: Vector = (0,) * len(axes.names)
        #: Live jobs, the tasks of arrays among them, by id.
        self.jobs: dict[int, Job] = {}
        #: Live arrays by id.
        self.arrays = ArrayStates()
        #: What is new to the scheduler.
        self.changes = Changes()
        self.queues = Queues(self.arrays, self.changes)
        #: Sum of the allocations of each leaf; a leaf without any is absent.
        self.used: dict[str, Vector] = {}
        #: What each job holds that has an allocation, by leaf and id; a leaf without any is absent.
        self.allocations: dict[str, dict[int, Allocation]] = {}
        #: Sum of `used`.
        self.allocated = Allocation(self.nothing)
        #: Allocated instances of countable resources, each of one job.
        self.taken: Counter[Instance] = Counter()
        #: Counters of live jobs.
        self.job_counts = JobCounts()
        #: Jobs that wait for another job's end, by that job's id.
        self.dependents = Dependents()
        #: Waiting jobs that can never start and are to be cancelled.
        self.doomed: set[int] = set()
        #: (Unix time, job id) of jobs with an earliest start time.
        self.begins = Begins()
        self.next_id = 1
        #: The nodes on which launching is stopped, each with the event that did it; "" for all.
        self.drains: dict[str, ev.Drained] = {}
        #: The nodes whose launcher is away, each since when (Unix time); the owner of the ledger
        #: may replace them.
        self.nodes_away: Mapping[str, float] = {}
        #: The array that the latest event was about, as a whole or through one of its tasks, even
        #: if that event ended it; None if it was about no array.
        self.latest_array: ArrayState | None = None
        #: The shortage of the machine for which launches were postponed.
        self.pause: Postponed | None = None
        #: The owner of the ledger may replace it. Its windows count from the next `hold_back` on.
        self.calendar = Calendar()
        self._latest_pass_s = 0.0

    @classmethod
    def of_jobs(
        cls,
        axes: Axes,
        jobs: Iterable[Job],
        *,
        arrays: Iterable[LiveArray] = (),
        next_id: int = 1,
        drains: Mapping[str, ev.Drained] = MappingProxyType({}),
        ended: Callable[[Sequence[int]], Mapping[int, End]] | None = None,
    ) -> Ledger:
        """Return the ledger that the events behind `jobs` and live `arrays` would have made.
        `ended` returns the ends of those of the given ids that have ended."""
        ledger = cls(axes)
        for array, failed, untouched, submitted in arrays:
            array_state = ArrayState(array, failed)
            ledger._enrol(array_state)
            for ids in untouched:
                assert submitted is not None
                ledger._put_tasks(array_state, submitted, ids)
        for job in jobs:
            ledger._put(None, job)
        ledger.next_id = max(next_id, ledger.next_id)
        ledger.drains = dict(drains)
        if ended is not None:
            gone = [each for each in ledger.dependents if not ledger.lives(each)]
            for on, end in ended(gone).items() if gone else ():
                ledger.dependents.note_end(on, end, ledger._user_of)
        return ledger

    @classmethod
    def of_events(cls, axes: Axes, events: Iterable[ev.Event]) -> Ledger:
        ledger = cls(axes)
        for event in events:
            ledger.apply(event)
        return ledger

    def with_axes(self, axes: Axes) -> Ledger:
        """Return a ledger with the same jobs, for a machine with other resources."""
        ledger = Ledger.of_jobs(
            axes,
            self.jobs.values(),
            arrays=self.arrays.live(),
            next_id=self.next_id,
            drains=self.drains,
            ended=lambda ids: self.dependents.ended,
        )
        ledger.pause, ledger.nodes_away = self.pause, self.nodes_away
        ledger.calendar = self.calendar
        return ledger

    def specs(self) -> Iterator[JobSpec]:
        """Yield the specification of each live job; that of like tasks once."""
        last = None
        for job in self.jobs.values():
            if job.spec is not last:
                last = job.spec
                yield last

    def pools(self) -> set[str]:
        """Return the paths of the pools that live jobs are in; a user without a pool has none."""
        homes = {(spec.pool, spec.user) for spec in self.specs()}
        return {pool for pool, user in homes if pool != f"{ROOT}.{user}"}

    @property
    def closed_nodes(self) -> frozenset[str]:
        """The nodes on which nothing starts now."""
        return frozenset((*self.drains, *self.nodes_away)) - {""}

    @property
    def draining(self) -> bool:
        return "" in self.drains

    @property
    def is_empty(self) -> bool:
        return not self.jobs and not self.arrays

    def spec_of(self, job_id: int) -> JobSpec | None:
        """Return the specification of a live job or array, or None if there is none."""
        array_state = self.arrays.get(job_id)
        if array_state is not None:
            return array_state.array.spec
        job = self.jobs.get(job_id)
        return None if job is None else job.spec

    def lives(self, job_id: int) -> bool:
        return job_id in self.jobs or job_id in self.arrays

    def tasks(self, array: Array) -> Iterator[Job]:
        """Yield the live tasks of an array in order; they may change meanwhile."""
        first, last = array.ids
        found = map(self.jobs.get, range(first, last + 1))
        return (job for job in found if job is not None)

    def rows(self, array_state: ArrayState) -> Sequence[Job | Tasks]:
        """Return the live tasks of an array as rows of lists, those that have not been started and
        are alike as one row."""
        if array_state.rows is None:
            array = array_state.array
            groups = defaultdict[object, list[Job]](list)
            for job in self.tasks(array):
                key: object = job.id
                if not job.attempt and job.state in WAITING_STATES:
                    # What else is set of a job that has never been started.
                    key = (
                        *(id(job.spec), job.state, job.held_by),
                        *(id(job.awaits), job.broken, job.not_before_s),
                    )
                groups[key].append(job)
            array_state.rows = [
                jobs[0]
                if len(jobs) == 1 and isinstance(key, int)
                else Tasks(array, tuple(joined(job.id for job in jobs)), jobs[0])
                for key, jobs in groups.items()
            ]
        return array_state.rows

    def label_of(self, job_id: int) -> str:
        """Return the label of a job that is live or has just ended. The array of a task is known
        while it has live tasks."""
        array = self.arrays.of_task(job_id)
        return str(job_id) if array is None else array.label_of(job_id)

    @property
    def nothing(self) -> Vector:
        return self._nothing

    def demand(self, job: Job) -> Vector:
        return self.axes.vector(job.spec.demand)

    def allocation(self, job: Job) -> Allocation:
        """Return the job's allocation; a frozen job keeps only memory and instances, and one of
        which only a notification is left, what that may use."""
        if job.state not in ALLOCATED_STATES:
            return Allocation(self._nothing)
        if job.only_notifies:
            return self.axes.held(self.axes.vector(notice_demand(job.spec.demand)), (), job.node)
        held = self.axes.held(self.demand(job), job.instances, job.node)
        return held if job.suspended_at is None else held - self.axes.released(held)

    def wanted(self, job: Job) -> Vector | None:
        """Return the resources that the job waits for, to start or to go on. None if it does not
        wait, or waits for something else."""
        if job.state is JobState.PENDING and job.eligible_at is not None:
            return self.demand(job)
        if job.state is JobState.SUSPENDED and job.held_by is None:
            return self.axes.to_resume(self.demand(job), job.node)
        return None

    def active_leaves(self) -> set[str]:
        return {*self.queues, *self.used, *self.queues.held_back()}

    def hold_back(self, now_s: float) -> None:
        """Keep the jobs out of the queues that would run into a maintenance window if they started
        at that Unix time, and let the others in. A pass begins with this."""
        self._latest_pass_s = now_s
        self.queues.hold_back(self.calendar.longest_s(now_s))

    @property
    def latest_pass_s(self) -> float:
        return self._latest_pass_s

    def allocated_jobs(self) -> Iterable[Job]:
        return (self.jobs[job_id] for ids in self.allocations.values() for job_id in ids)

    def slots_taken(self) -> dict[str, int]:
        """Return the number of jobs of each leaf that occupy a slot. A frozen job does not: it has
        released its slot and needs one to go on."""
        frozen = JobState.SUSPENDED
        return {
            leaf: sum(self.jobs[job_id].state is not frozen for job_id in ids)
            for leaf, ids in self.allocations.items()
        }

    def apply(self, event: ev.Event) -> Job | None:
        """Apply the event, and return the job after it, or None if it is not about a job. Raises
        InvalidTransition, and changes nothing, when the state of the job does not allow it."""
        self.latest_array = None
        if isinstance(event, ev.Drained):
            self.drains.pop(event.node, None)
            if event.on:
                self.drains[event.node] = event
            return None
        if isinstance(event, ev.IdsRaised):
            self.next_id = max(self.next_id, event.next_id)
            return None
        if isinstance(event, ev.ArraySubmitted):
            self._refuse_known(event.array_id, event)
            common = event.new_job()
            plain = structs.replace(common, awaits=(), broken=None, not_before_s=None)
            array = Array(common=plain, spans=event.spans, at_once=event.at_once)
            self.latest_array = ArrayState(array)
            self._enrol(self.latest_array)
            self._put_tasks(self.latest_array, common, array.ids)
            return common
        if isinstance(event, ev.Submitted):
            self._refuse_known(event.job_id, event)
            job = event.new_job()
            self._put(None, job)
            return job
        array_state = self.arrays.get(event.job_id)
        if array_state is not None:
            self.latest_array = array_state
            return array_state.order(event)
        before = self.jobs.get(event.job_id)
        if before is None:
            raise InvalidTransition(f"no live job {event.job_id} for {event!r}")
        job = event.apply(before)
        array_state = None if job.array_id is None else self.arrays[job.array_id]
        self.latest_array = array_state
        self._put(before, job)
        if job.state is JobState.ENDED:
            self._note_end(job, array_state, event.at_s)
        if isinstance(event, ev.LaunchPostponed) and event.why.whose is Whose.MACHINE:
            self.pause = event.why
        elif isinstance(event, ev.Launched) or (
            # The report of its start has been lost.
            isinstance(event, ev.Exited) and (event.exit_code, event.signal) != (None, None)
        ):
            self.pause = None
        return job

    def _note_end(self, job: Job, array_state: ArrayState | None, at_s: float) -> None:
        """Record for dependents that the job has ended, and its array if it has."""
        end = End(job.outcome or Outcome.CANCELLED, at_s)
        self.dependents.note_end(job.id, end, self._user_of)
        if array_state is not None and array_state.is_over:
            outcome = Outcome.COMPLETED if array_state.failed is None else array_state.failed[1]
            self.dependents.note_end(array_state.array.id, End(outcome, at_s), self._user_of)

    def _user_of(self, job_id: int) -> str:
        """Return whose a live job or array is."""
        spec = self.spec_of(job_id)
        assert spec is not None
        return spec.user

    def _refuse_known(self, job_id: int, event: ev.Event) -> None:
        if job_id < self.next_id:
            raise InvalidTransition(f"job {job_id} is born twice: {event!r}")

    def _enrol(self, array_state: ArrayState) -> None:
        self.arrays.enrol(array_state)
        add_to(self.job_counts.submissions, array_state.array.spec.user, 1)
        self.next_id = max(self.next_id, array_state.array.last_id + 1)

    def _put_tasks(self, array_state: ArrayState, like: Job, ids: Ids) -> None:
        """Add the tasks with these ids, which are like this job, to every table at once."""
        first, last = ids
        count = last - first + 1
        tasks = {job.id: job for job in array_state.array.tasks(like, ids)}
        task = tasks[first]
        self.jobs.update(tasks)
        array_state.change(None, task, count)
        self._count_dependencies(array_state, None, task.spec, count)
        self.job_counts.count(task.spec, task.state, count)
        if task.spec.group is not None:
            self.queues.count_waiting(task.spec, self.demand(task), count)
        wanted = self.wanted(task)
        if wanted is not None:
            self.queues.add(task, wanted, ids)
        if task.awaits or task.broken is not None or task.not_before_s is not None:
            for job in tasks.values():
                self._count_conditions(None, job)

    def _put(self, before: Job | None, job: Job) -> None:
        """Replace `before` by `job` in every table."""
        is_ended = job.state is JobState.ENDED
        array_state = None if job.array_id is None else self.arrays[job.array_id]
        if array_state is not None:
            array_state.change(before, job)
        elif before is None or is_ended:
            add_to(self.job_counts.submissions, job.spec.user, 1 if before is None else -1)
        old, new = None if before is None else before.spec, None if is_ended else job.spec
        self._count_dependencies(array_state, old, new)
        if before is not None and keeps_allocation(before, job):
            # No other table changes.
            self.changes.jobs.add(job.id)
            if job.state is not before.state:
                self.job_counts.count(before.spec, before.state, -1)
                self.job_counts.count(job.spec, job.state, 1)
            self.jobs[job.id] = job
            return
        if before is not None:
            self._count(before, -1)
        self._count(job, 1)
        self._count_conditions(before, job)
        if is_ended:
            self.jobs.pop(job.id, None)
        else:
            self.jobs[job.id] = job
        if job.id >= self.next_id:
            self.next_id = job.id + 1
        if array_state is not None and is_ended:
            array_state.note_failure(job.id, job.outcome)
            if array_state.is_over:
                add_to(self.job_counts.submissions, array_state.array.spec.user, -1)
                self.arrays.drop(array_state)

    def _count_dependencies(
        self,
        array_state: ArrayState | None,
        before: JobSpec | None,
        after: JobSpec | None,
        count: int = 1,
    ) -> None:
        """Replace the specification of a job, or add that of new tasks. None stands for no job."""
        old, new = (None if spec is None else spec.after for spec in (before, after))
        if old is new:
            return
        for spec, change in ((before, -1), (after, count)):
            if spec is None or not spec.after:
                continue
            if array_state is None:
                self.job_counts.count_dependencies(spec, change)
                continue
            more = change * more_dependencies(spec.after)
            add_to(self.job_counts.task_dependencies, spec.user, more)
            there = array_state.afters[spec.after]
            add_to(array_state.afters, spec.after, change)
            if not there or there + change == 0:
                self.job_counts.count_dependencies(spec, 1 if change > 0 else -1)

    def _count_conditions(self, before: Job | None, after: Job | None) -> None:
        """Replace the conditions of a job by its present ones; None stands for no job. Only those
        of a job that has not started count, and only differences are written."""
        old, new = _awaited(before), _awaited(after)
        for job, sign, ids in (before, -1, old - new), (after, 1, new - old):
            if job is None or job.state not in WAITING_STATES:
                continue
            array_state = None if job.array_id is None else self.arrays[job.array_id]
            owner = job.submission_id
            if job.broken is not None:
                if array_state is not None:
                    (array_state.broken.add if sign > 0 else array_state.broken.discard)(job.id)
                if job.spec.cancel_if_never:
                    (self.doomed.add if sign > 0 else self.doomed.discard)(job.id)
            for on in ids:
                if sign > 0:
                    self.dependents.add(on, owner, (job.id,), job.spec.user)
                else:
                    self.dependents.remove(on, owner, job.id, job.spec.user)
                if array_state is not None:
                    add_to(array_state.awaits, on, sign)
            if job.not_before_s is None:
                continue
            is_pause = job.not_before_s != job.spec.begin_s
            entry = job.not_before_s, job.id
            self.begins.count(job.spec.user, entry, sign, is_pause=is_pause)

    def _count(self, job: Job, sign: int) -> None:
        """Add (`sign` 1) or remove (-1) a job in the tables that its state belongs to."""
        self.job_counts.count(job.spec, job.state, sign)
        if job.spec.group is not None and job.state in WAITING_STATES:
            self.queues.count_waiting(job.spec, self.demand(job), sign)
        wanted = self.wanted(job)
        if wanted is not None:
            (self.queues.add if sign > 0 else self.queues.remove)(job, wanted)
        if job.state not in ALLOCATED_STATES:
            return
        leaf = job.spec.leaf
        self.changes.leaves.setdefault(leaf, set())
        self.changes.jobs.add(job.id)
        held = self.allocation(job) if sign > 0 else self.allocations[leaf][job.id]
        if job.instances and not job.only_notifies:
            count_instances(job.instances, sign, self.taken)
        change = add if sign > 0 else sub
        self.allocated = change(self.allocated, held)
        self.used[leaf] = tuple(map(change, self.used.get(leaf, self._nothing), held.sums))
        if sign > 0:
            self.allocations.setdefault(leaf, {})[job.id] = held
        else:
            del self.allocations[leaf][job.id]
            if not self.allocations[leaf]:
                del self.allocations[leaf], self.used[leaf]
        self.queues.count_running(job, sign)

    def check(self) -> None:
        """Raise AssertionError if the tables disagree with the jobs, which is a bug."""
        fresh = Ledger.of_jobs(self.axes, self.jobs.values(), arrays=self.arrays.live())
        fresh.queues.hold_back(self.queues.longest_s)
        tables = "queues used allocations allocated taken job_counts dependents doomed begins"
        for table in (*tables.split(), "arrays"):
            assert getattr(self, table) == getattr(fresh, table), f"ledger: {table} is wrong"
        for table in ("all", "running", "kinds"):
            mine, its = getattr(self.queues, table), getattr(fresh.queues, table)
            assert mine == its, f"ledger: queues.{table} is wrong"
        assert all(amount >= 0 for amount in self.allocated.sums)
        # Jobs that declare their memory there may share one, also from before sharing was ended.
        own = {
            (name, each)
            for job in self.allocated_jobs()
            if not job.only_notifies
            for name, each in each_instance(job.instances)
            if name not in dict(job.spec.demand.gres_memory)
        }
        assert all(self.taken[each] == 1 for each in own), "an instance is held twice"
        if self.axes.shared is not None:
            parts = self.allocated.parts(self.axes.home)
            assert max(parts, default=0) <= self.axes.shared[1], "an instance is full"
        assert all(job_id < self.next_id for job_id in self.jobs)
        gone = {each for each in self.dependents if not self.lives(each)}
        assert gone == self.dependents.ended.keys(), "a job waits for one that has ended"
        waiting = {(on, owner) for on in gone for owner in self.dependents[on]}
        untold = {
            (on, owner)
            for ends in self.dependents.untold.values()
            for on, owners in ends.items()
            for owner in owners
        }
        assert untold == waiting, "a job is not told of an end"


def _awaited(job: Job | None) -> frozenset[int]:
    if job is None or not job.awaits or job.state not in WAITING_STATES:
        return frozenset()
    return frozenset(each.job_id for each in job.awaits)
