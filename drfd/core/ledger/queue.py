"""Queues of waiting jobs by leaf, and live arrays. Only the ledger writes these tables.

A queue is in the order of priority and then of submission. The jobs of a leaf with one demand
vector form a line, of which a pass looks at the first job only. The tasks of an array that have no
record of their own are one entry of a line.

The jobs of a line are in classes, which are alike for the gates: whether one more task of the array
may run, one more job of the group, and a job of this length before the next maintenance window
(`Queues.is_open`). A class with a blocked gate is in no queue. A pass counts what it starts, and
asks the gates again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush, merge
from itertools import chain, repeat
from math import inf
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from drfd.common.indices import Ids
from drfd.core.model.hours import length_s
from drfd.core.model.job import Array, GroupKey, Job, JobSpec, JobState, Outcome, Tasks
from drfd.core.model.machine import Vector

K = TypeVar("K")
T = TypeVar("T")
#: (-priority, job id); ids grow with the time of submission.
Entry = tuple[int, int]
#: Entries of one priority with all ids from the first to the last: (-priority, first, last).
Run = tuple[int, int, int]
#: A group of a user, or an array (by its id), of which not all jobs may run at once.
Limited = GroupKey | tuple[str, int]
#: How many of its jobs may run at once.
AtOnce = tuple[Limited, int]


class JobClass(NamedTuple):
    """What the gates ask of a waiting job."""

    #: For how many seconds it runs at most.
    length_s: int = 0
    #: Those of its array and its group. A suspended job has none: it counts among those that run.
    limits: tuple[AtOnce, ...] = ()


class TaskIds:
    """Ids of tasks in ascending ranges, from which single ones are taken."""

    __slots__ = ("_count", "ranges")

    def __init__(self, ranges: Iterable[Ids] = ()) -> None:
        self.ranges = list(ranges)
        self._count = sum([last - first + 1 for first, last in self.ranges])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return (job_id for first, last in self.ranges for job_id in range(first, last + 1))

    def __contains__(self, job_id: int) -> bool:
        return self.after(job_id - 1) == job_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskIds) and self.ranges == other.ranges

    @property
    def first(self) -> int:
        return self.ranges[0][0]

    def after(self, job_id: int) -> int | None:
        """Return the next id, or None."""
        at = bisect_right(self.ranges, (job_id, inf))
        if at and self.ranges[at - 1][1] > job_id:
            return job_id + 1
        return self.ranges[at][0] if at < len(self.ranges) else None

    def take(self, job_id: int) -> None:
        """Remove an id. Raises KeyError."""
        at = bisect_right(self.ranges, (job_id, inf)) - 1
        if at < 0 or self.ranges[at][1] < job_id:
            raise KeyError(job_id)
        first, last = self.ranges[at]
        parts = (first, job_id - 1), (job_id + 1, last)
        self.ranges[at : at + 1] = [part for part in parts if part[0] <= part[1]]
        self._count -= 1


class JobsOfClass:
    """The waiting jobs of one class in a line, in order."""

    __slots__ = ("_arrays", "_jobs", "_states")

    def __init__(self) -> None:
        #: Jobs with a record of their own.
        self._jobs: list[Entry] = []
        #: The arrays whose tasks without a record are here, in order, as the ids of an array and of
        #: its tasks are between those of any others.
        self._arrays: list[Entry] = []
        self._states: dict[Entry, ArrayState] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs or self._arrays)

    def __len__(self) -> int:
        tasks = sum([len(each.unmaterialized) for each in self._states.values()])
        return len(self._jobs) + tasks

    def __iter__(self) -> Iterator[Entry]:
        for priority, first, last in self.runs():
            for job_id in range(first, last + 1):
                yield priority, job_id

    def __contains__(self, entry: Entry) -> bool:
        return self.after((entry[0], entry[1] - 1)) == entry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobsOfClass) and [*self] == [*other]

    def add(self, source: Entry | ArrayState) -> None:
        if isinstance(source, ArrayState):
            self._states[source.entry] = source
            insort(self._arrays, source.entry)
        else:
            insort(self._jobs, source)

    def remove(self, source: Entry | ArrayState) -> None:
        """Raises KeyError."""
        if isinstance(source, ArrayState):
            entries, entry = self._arrays, source.entry
        else:
            entries, entry = self._jobs, source
        at = bisect_left(entries, entry)
        if entries[at : at + 1] != [entry]:
            raise KeyError(entry)
        del entries[at]
        self._states.pop(entry, None)

    @property
    def first(self) -> Entry:
        first_tasks = [self._states[each].first for each in self._arrays[:1]]
        return min([*self._jobs[:1], *first_tasks])

    def after(self, entry: Entry) -> Entry | None:
        """Return the next entry, or None."""
        at = bisect_right(self._jobs, entry)
        found = self._jobs[at : at + 1]
        at = bisect_right(self._arrays, entry)
        # It may be within the array before it.
        for each in self._arrays[max(0, at - 1) : at + 1]:
            task = self._states[each].after(entry)
            found += [] if task is None else [task]
        return min(found, default=None)

    def runs(self) -> Iterator[Run]:
        jobs = ((priority, job_id, job_id) for priority, job_id in self._jobs)
        tasks = chain.from_iterable(self._states[each].runs() for each in self._arrays)
        return merge(jobs, tasks) if self._arrays else jobs


class Line(dict[JobClass, JobsOfClass]):
    """The waiting jobs of a leaf with one demand vector, by class."""

    def __init__(self) -> None:
        super().__init__()
        #: The first job of each class, in order.
        self.heads: list[tuple[Entry, JobClass]] = []
        self._first: dict[JobClass, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Add a job for which no gate is ever closed."""
        alike = self.get(JobClass(), JobsOfClass())
        alike.add(entry)
        self.put(JobClass(), alike)

    def put(self, cls: JobClass, alike: JobsOfClass) -> None:
        """Add a class, or take account of a change of its jobs."""
        self.drop(cls)
        self[cls], self._first[cls] = alike, alike.first
        insort(self.heads, (alike.first, cls))

    def drop(self, cls: JobClass) -> None:
        if cls in self:
            del self[cls]
            del self.heads[bisect_left(self.heads, (self._first.pop(cls), cls))]

    @property
    def first(self) -> Entry:
        return self.heads[0][0]

    def class_of(self, entry: Entry) -> JobClass:
        """Return the class of a job; without limits if it is not in the line."""
        for first, cls in self.heads[bisect_left(self.heads, (entry,)) :][:1]:
            if first == entry:
                return cls
        return next((cls for cls, alike in self.items() if entry in alike), JobClass())


#: The waiting jobs of a leaf, a line for each demand vector that any of them has.
LeafQueue = dict[Vector, Line]
#: Where the jobs of a class wait: leaf, demand and class.
Place = tuple[str, Vector, JobClass]
_NONE: Mapping[Limited, int] = MappingProxyType({})
#: What jobs of a group may differ in: leaf, demand, and how many of the group may run at once.
Kind = tuple[str, Vector, int]


class Queues(dict[str, LeafQueue]):
    """Queues of jobs that wait to start or to go on, by leaf; a leaf without any is absent, and so
    are classes for which a gate is closed. While the limit of an array or group leaves room, all of
    the class are in a queue; `startable` has as many as may start."""

    def __init__(self, arrays: ArrayStates | None = None) -> None:
        super().__init__()
        self._arrays = ArrayStates() if arrays is None else arrays
        #: Leaves whose queue has changed since the reader of this table last cleared it, with the
        #: changed demand vectors. An event of one job may change the queues of other leaves, if
        #: jobs of its array or group are there.
        self.changed: dict[str, set[Vector]] = {}
        #: All waiting jobs by class, in a queue or not.
        self.all: dict[Place, JobsOfClass] = {}
        #: These classes by each array and group that limits them, and by length.
        self._places = defaultdict[Limited | int, set[Place]](set)
        #: How many jobs of each group and array have an allocation.
        self.running = Counter[Limited]()
        #: Of each group, how many jobs of each kind have not started. They need not be in a queue:
        #: held jobs count, and those that wait for a time or another job.
        self.kinds = defaultdict[GroupKey, Counter[Kind]](Counter)
        #: The length of the longest jobs that may start now, in seconds.
        self.longest_s = inf

    def add(self, job: Job, wanted: Vector, array_state: ArrayState | None = None) -> None:
        """Add a waiting job, or the tasks without a record that it represents. `wanted` are the
        resources that it waits for."""
        place = self._place(job, wanted)
        if place not in self.all:
            self.all[place] = JobsOfClass()
            for gate in _gates(place):
                self._places[gate].add(place)
        self.all[place].add(array_state or entry_of(job))
        self._settle([place])

    def remove(self, job: Job, wanted: Vector, array_state: ArrayState | None = None) -> None:
        place = self._place(job, wanted)
        self.all[place].remove(array_state or entry_of(job))
        if not self.all[place]:
            del self.all[place]
            for gate in _gates(place):
                self._places[gate].remove(place)
                if not self._places[gate]:
                    del self._places[gate]
        self._settle([place])

    def note_task(self, job: Job, wanted: Vector) -> None:
        """Take account of a task that has left those without a record, which `job` represents."""
        self._settle([self._place(job, wanted)])

    def count_running(self, job: Job, sign: int) -> None:
        """Take account of a job that has started (`sign` 1) or ended (-1)."""
        for key in (job.spec.group_key, array_key(job)):
            if key is not None:
                more = self.running[key] + (sign > 0)
                add_to(self.running, key, sign)
                self._settle(self.closed_by(key, more))

    def count_waiting(self, spec: JobSpec, demand: Vector, change: int) -> None:
        """Add `change` equal jobs to those of their group that have not started."""
        key, kind = spec.group_key, kind_of(spec, demand)
        if key is not None and kind is not None:
            add_to(self.kinds[key], kind, change)
            if not self.kinds[key]:
                del self.kinds[key]

    def hold_back(self, longest_s: float) -> None:
        """Let only jobs of up to so many seconds be in the queues."""
        before, self.longest_s = self.longest_s, longest_s
        for length, places in self._places.items() if before != longest_s else ():
            if isinstance(length, int) and (length > before) is not (length > longest_s):
                self._settle(places)

    def is_open(self, cls: JobClass, started: Mapping[Limited, int] = _NONE) -> bool:
        """Return whether one more job of the class may start beside those that run, and those that
        a pass has `started`."""
        length, limits = cls
        return length <= self.longest_s and not (
            limits and any(self.running[key] + started.get(key, 0) >= n for key, n in limits)
        )

    def closed_by(self, key: Limited, count: int) -> list[Place]:
        """Return the classes of which no job may start from so many running jobs on."""
        return [place for place in self._places.get(key, ()) if (key, count) in place[2].limits]

    def _place(self, job: Job, wanted: Vector) -> Place:
        limits, spec = list[AtOnce](), job.spec
        if job.state is JobState.PENDING:
            key = array_key(job)
            at_once = None if key is None else self._arrays[key[1]].array.at_once
            if key is not None and at_once is not None:
                limits.append((key, at_once))
            if spec.group is not None and spec.group.at_once is not None:
                limits.append(((spec.user, spec.group.name), spec.group.at_once))
        return spec.leaf, wanted, JobClass(length_s(job), tuple(limits))

    def _settle(self, places: Iterable[Place]) -> None:
        """Let classes be in the queues of their leaves if all gates are open for them."""
        for leaf, demand, cls in places:
            self.changed.setdefault(leaf, set()).add(demand)
            alike = self.all.get((leaf, demand, cls))
            if alike is not None and self.is_open(cls):
                self.setdefault(leaf, {}).setdefault(demand, Line()).put(cls, alike)
                continue
            queue = self.get(leaf, {})
            if demand in queue:
                queue[demand].drop(cls)
                if not queue[demand]:
                    del queue[demand]
                if not queue:
                    del self[leaf]

    def is_held_back(self, job: Job) -> bool:
        """True if a waiting job is too long to start before a maintenance window."""
        return length_s(job) > self.longest_s

    def limit_of(self, job: Job, wanted: Vector) -> AtOnce | None:
        """Return the limit for which a waiting job does not start: it is reached, or as many jobs
        come before it as may start. `wanted` is its demand."""
        leaf, demand, (_, limits) = self._place(job, wanted)
        places = {place for key, _ in limits for place in self._places.get(key, ())}
        for (_, first, last), limit in self._walk(
            place for place in places if place[:2] == (leaf, demand) and self._is_short(place)
        ):
            if limit in limits:
                # The next tasks of an array that may run more may wait for their group.
                return next((each for each in limits if self.running[each[0]] >= each[1]), limit)
            if first <= job.id <= last:
                break
        return None

    def is_shut_out(self, job: Job, wanted: Vector) -> bool:
        """True if a gate is closed for a waiting job. `wanted` is its demand."""
        return self.is_held_back(job) or self.limit_of(job, wanted) is not None

    def startable(self, leaf: str) -> Iterator[tuple[Run, Vector]]:
        """Yield the jobs of a leaf for which no gate is closed, with their demands, in order."""
        queue = self.get(leaf, {})

        def begin(demand: Vector) -> Iterator[tuple[Run, Vector]]:
            places = [(leaf, demand, cls) for cls in queue[demand]]
            return zip(self._within(places), repeat(demand))

        return _merged([(line.first, demand) for demand, line in queue.items()], begin)

    def count_startable(self, leaf: str) -> int:
        lines = self.get(leaf, {}).items()
        return sum([self._count([(leaf, demand, cls) for cls in line]) for demand, line in lines])

    def beyond_limits(self) -> Iterator[Run]:
        """Yield the pending jobs that only a limit on the running jobs of their array or group
        does not let start, in order."""
        lines = defaultdict[tuple[str, Vector], set[Place]](set)
        for key, places in self._places.items():
            for place in places if isinstance(key, tuple) else ():
                if self._is_short(place):
                    lines[place[:2]].add(place)
        yield from merge(*map(self._beyond, lines.values()))

    def held_back(self) -> Counter[str]:
        """Return the number of jobs of each leaf that are held back for a maintenance window."""
        found = Counter[str]()
        for place in self.all if self.longest_s < inf else ():
            count = 0 if self._is_short(place) else self._count([place])
            if count:
                found[place[0]] += count
        return found

    def _is_short(self, place: Place) -> bool:
        return place[2].length_s <= self.longest_s

    def _within(self, places: Iterable[Place]) -> Iterator[Run]:
        return (run for run, limit in self._walk(places) if limit is None)

    def _beyond(self, places: Iterable[Place]) -> Iterator[Run]:
        return (run for run, limit in self._walk(places) if limit is not None)

    def _count(self, places: Iterable[Place]) -> int:
        """Return how many jobs of these classes of one line may start."""
        counts, by_several = Counter[tuple[AtOnce, ...]](), list[Place]()
        for place in places:
            counts[place[2].limits] += len(self.all[place])
            by_several += [place] if len(place[2].limits) > 1 else []
        if by_several:
            # Who comes first decides what is left of each limit.
            return sum([last - first + 1 for _, first, last in self._within(places)])
        for limits in counts:
            for key, at_once in limits:
                counts[limits] = min(counts[limits], max(0, at_once - self.running[key]))
        return counts.total()

    def _walk(self, places: Iterable[Place]) -> Iterator[tuple[Run, AtOnce | None]]:
        """Yield the jobs of these classes of one line in order, each run with the limit for which
        it does not start, or None."""
        left: dict[AtOnce, int] = {}

        def begin(place: Place) -> Iterator[tuple[Run, tuple[AtOnce, ...]]]:
            return zip(self.all[place].runs(), repeat(place[2].limits))

        for run, limits in _merged([(self.all[place].first, place) for place in places], begin):
            priority, first, last = run
            for limit in limits:
                if limit not in left:
                    key, at_once = limit
                    left[limit] = max(0, at_once - self.running[key])
            count = min([last - first + 1, *[left[limit] for limit in limits]])
            if count:
                yield (priority, first, first + count - 1), None
            if first + count <= last:
                reached = next(limit for limit in limits if left[limit] == count)
                yield (priority, first + count, last), reached
            for limit in limits:
                left[limit] -= count


def _merged(
    parts: list[tuple[Entry, K]], begin: Callable[[K], Iterator[tuple[Run, T]]]
) -> Iterator[tuple[Run, T]]:
    """Merge parts of a queue, each with its first job. A part begins when it is the turn of that:
    thousands may wait of which a list shows a few."""
    parts.sort(key=itemgetter(0), reverse=True)
    begun: list[tuple[Run, int, T, Iterator[tuple[Run, T]]]] = []
    while parts or begun:
        if parts and (not begun or parts[-1][0] < begun[0][0][:2]):
            number, rest = len(parts), begin(parts.pop()[1])
        else:
            run, number, value, rest = heappop(begun)
            yield run, value
        for run, value in rest:
            heappush(begun, (run, number, value, rest))
            break


def _gates(place: Place) -> list[Limited | int]:
    _, _, (length, limits) = place
    return [length, *[key for key, _ in limits]]


def add_to(counter: Counter[Any], key: object, change: int) -> None:
    """Count; a key with a count of zero is absent."""
    count = counter.get(key, 0) + change
    if count:
        counter[key] = count
    else:
        counter.pop(key, None)


def array_key(job: Job) -> tuple[str, int] | None:
    return None if job.array_id is None else (job.spec.user, job.array_id)


def kind_of(spec: JobSpec, demand: Vector) -> Kind | None:
    """Return the kind of a job that names a limit of its group, else None."""
    if spec.group is None or spec.group.at_once is None:
        return None
    return spec.leaf, demand, spec.group.at_once


def entry_of(job: Job) -> Entry:
    return -job.spec.priority, job.id


#: Id and outcome of a task that did not complete.
FailedTask = tuple[int, Outcome]
#: An array, the ids of its tasks without a record, and the first task that did not complete.
LiveArray = tuple[Array, tuple[Ids, ...], FailedTask | None]


@dataclass
class ArrayState:
    array: Array
    #: Tasks that have no record of their own.
    unmaterialized: TaskIds
    #: The first task, by index, that ended and did not complete.
    failed: FailedTask | None = None
    #: Live tasks with a record.
    live: set[int] = field(default_factory=set)
    #: Cache: the task that delays dependents of the array longest, or the array's id for the tasks
    #: without a record, or None after a change.
    slowest: int | None = field(default=None, compare=False)
    #: Cache: number of live tasks by state, or None after a change.
    states: Counter[JobState] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, array: Array, ids: Iterable[Ids], bad: FailedTask | None = None) -> ArrayState:
        return cls(array, TaskIds(ids), bad)

    def become(self, common: Job) -> None:
        """Set the state that the tasks without a record share from now on."""
        self.note_change()
        self.array = replace(self.array, common=common)

    def note_change(self) -> None:
        """Drop the caches after an event of a task, or of all tasks without a record."""
        self.slowest = self.states = None

    def note_failure(self, job_id: int, outcome: Outcome | None) -> None:
        """Record the end of a task; an outcome of None counts as CANCELLED."""
        if outcome is not Outcome.COMPLETED:
            each = job_id, outcome or Outcome.CANCELLED
            self.failed = each if self.failed is None else min(self.failed, each)

    @property
    def is_over(self) -> bool:
        return not self.unmaterialized and not self.live

    def ids(self) -> tuple[Ids, ...]:
        """Return the id ranges of the tasks that have no record of their own."""
        return tuple(self.unmaterialized.ranges)

    @property
    def common(self) -> Job | None:
        """The job that represents the tasks that have no record, or None if there are none."""
        return self.array.common if self.unmaterialized else None

    @property
    def tasks(self) -> Tasks | None:
        """The tasks that have no record of their own, or None if there are none."""
        return Tasks(self.array, self.ids()) if self.unmaterialized else None

    @property
    def entry(self) -> Entry:
        """The place of the array among others."""
        return -self.array.spec.priority, self.array.id

    @property
    def first(self) -> Entry:
        """The first task without a record."""
        return -self.array.spec.priority, self.unmaterialized.first

    def after(self, entry: Entry) -> Entry | None:
        """Return the first task without a record that comes after an entry, or None."""
        priority = -self.array.spec.priority
        job_id = self.unmaterialized.after(entry[1] if priority == entry[0] else 0)
        return None if job_id is None or priority < entry[0] else (priority, job_id)

    def runs(self) -> Iterator[Run]:
        priority = -self.array.spec.priority
        return ((priority, first, last) for first, last in self.unmaterialized.ranges)


class ArrayStates(dict[int, ArrayState]):
    """The states of live arrays by the array's id."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: list[int] = []

    def enrol(self, array_state: ArrayState) -> None:
        """Add an array with a higher id than all others."""
        self[array_state.array.id] = array_state
        self._ids.append(array_state.array.id)

    def drop(self, array_state: ArrayState) -> None:
        del self[array_state.array.id]
        del self._ids[bisect_left(self._ids, array_state.array.id)]

    def of_task(self, job_id: int) -> Array | None:
        at = bisect_left(self._ids, job_id) - 1
        array = self[self._ids[at]].array if at >= 0 else None
        return array if array is not None and array.has_task(job_id) else None

    def of_unmaterialized(self, job_id: int) -> Array | None:
        """Return the array of a task without a record of its own, or None if there is no such
        task."""
        array = self.of_task(job_id)
        if array is None or job_id not in self[array.id].unmaterialized:
            return None
        return array

    def waiting(self) -> list[int]:
        """Return the ids of arrays with tasks without a record of their own."""
        return [array_id for array_id, each in self.items() if each.unmaterialized.ranges]

    def live(self) -> list[LiveArray]:
        return [(each.array, each.ids(), each.failed) for each in self.values()]
