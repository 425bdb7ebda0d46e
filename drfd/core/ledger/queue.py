"""Queues of waiting jobs by leaf, and live arrays. Only the ledger writes these tables.

A queue is in the order of priority and then of submission. The jobs of a leaf with one demand
vector form a line, of which a pass looks at the first job only.

The jobs of a line are in classes, each with the same bounds: whether one more task of the array
may run, one more job of the group, and a job of this length before the next maintenance window
(`Queues.is_open`). A class that a bound keeps from starting is in no queue. A pass counts what it
starts, and looks at the bounds again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush, merge
from itertools import repeat
from math import inf
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from drfd.common.indices import Ids
from drfd.core.model.calendar import length_s
from drfd.core.model.events import InvalidTransition, JobEvent, Released
from drfd.core.model.job import (
    WAITING_STATES,
    Array,
    Dependency,
    GroupKey,
    Job,
    JobSpec,
    JobState,
    Outcome,
    Tasks,
)
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
    """The bounds on the start of a waiting job that do not depend on what is free."""

    #: For how many seconds it runs at most.
    length_s: int = 0
    #: Those of its array and its group. A suspended job has none: it counts among those that run.
    limits: tuple[AtOnce, ...] = ()


class JobsOfClass:
    """The waiting jobs of one class in a line, in order: single jobs, and adjacent tasks of one
    array together."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        for priority, first, last in self._runs:
            for job_id in range(first, last + 1):
                yield priority, job_id

    def __contains__(self, entry: Entry) -> bool:
        return self.after((entry[0], entry[1] - 1)) == entry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobsOfClass) and [*self] == [*other]

    def add(self, run: Run, among: Ids) -> None:
        """Add jobs that are not there yet. They join adjacent ones within the ids `among`, those
        of the tasks of their array."""
        priority, first, last = run
        self._count += last - first + 1
        begin = end = bisect_left(self._runs, run)
        if begin and first > among[0] and self._runs[begin - 1][::2] == (priority, first - 1):
            begin -= 1
            first = self._runs[begin][1]
        following = self._runs[end : end + 1]
        if following and last < among[1] and following[0][:2] == (priority, last + 1):
            last = following[0][2]
            end += 1
        self._runs[begin:end] = [(priority, first, last)]

    def remove(self, entry: Entry) -> None:
        """Raises KeyError."""
        priority, job_id = entry
        at = bisect_right(self._runs, (priority, job_id, inf)) - 1
        if at < 0 or self._runs[at][0] != priority or self._runs[at][2] < job_id:
            raise KeyError(entry)
        _, first, last = self._runs[at]
        parts = (priority, first, job_id - 1), (priority, job_id + 1, last)
        self._runs[at : at + 1] = [part for part in parts if part[1] <= part[2]]
        self._count -= 1

    @property
    def first(self) -> Entry:
        return self._runs[0][:2]

    def after(self, entry: Entry) -> Entry | None:
        """Return the next entry, or None."""
        priority, job_id = entry
        at = bisect_right(self._runs, (priority, job_id, inf))
        if at and self._runs[at - 1][0] == priority and self._runs[at - 1][2] > job_id:
            return priority, job_id + 1
        return self._runs[at][:2] if at < len(self._runs) else None

    def runs(self) -> Iterator[Run]:
        return iter(self._runs)


class Line(dict[JobClass, JobsOfClass]):
    """The waiting jobs of a leaf with one demand vector, by class."""

    def __init__(self) -> None:
        super().__init__()
        #: The first job of each class, in order.
        self.heads: list[tuple[Entry, JobClass]] = []
        self._first: dict[JobClass, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Add a job that no bound ever keeps from starting."""
        alike = self.get(JobClass(), JobsOfClass())
        alike.add((*entry, entry[1]), (entry[1], entry[1]))
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


@dataclass
class Changes:
    """What has changed since the reader of the ledger, a scheduler, last cleared these tables."""

    #: Leaves whose queue has changed, with the demand vectors for which it has; none if only what
    #: the leaf holds has. An event of one job may change the queues of other leaves, if jobs of its
    #: array or group are there.
    leaves: dict[str, set[Vector]] = field(default_factory=dict, compare=False)
    #: Jobs that have an allocation, or had one.
    jobs: set[int] = field(default_factory=set, compare=False)


class Queues(dict[str, LeafQueue]):
    """Queues of jobs that wait to start or to go on, by leaf; a leaf without any is absent, and so
    are classes that a bound keeps from starting. While the limit of an array or group leaves room,
    all of the class are in a queue; `within_limits` has as many as may start."""

    def __init__(self, arrays: ArrayStates | None = None, changes: Changes | None = None) -> None:
        super().__init__()
        self._arrays = ArrayStates() if arrays is None else arrays
        self._changes = Changes() if changes is None else changes
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

    def add(self, job: Job, wanted: Vector, ids: Ids | None = None) -> None:
        """Add a waiting job, or the tasks with these ids that are like it. `wanted` are the
        resources that it waits for."""
        place = self._place(job, wanted)
        if place not in self.all:
            self.all[place] = JobsOfClass()
            for bound in _bounds_of(place):
                self._places[bound].add(place)
        first, last = ids or (job.id, job.id)
        among = first, last
        if job.array_id is not None:
            among = self._arrays[job.array_id].array.ids
        self.all[place].add((-job.spec.priority, first, last), among)
        self._settle([place])

    def remove(self, job: Job, wanted: Vector) -> None:
        place = self._place(job, wanted)
        self.all[place].remove(entry_of(job))
        if not self.all[place]:
            del self.all[place]
            for bound in _bounds_of(place):
                self._places[bound].remove(place)
                if not self._places[bound]:
                    del self._places[bound]
        self._settle([place])

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
        return length <= self.longest_s and (
            not limits or all(self.room(each, started) for each in limits)
        )

    def room(self, limit: AtOnce, started: Mapping[Limited, int] = _NONE) -> int:
        """Return how many more jobs may start by this limit beside the same ones."""
        key, at_once = limit
        return max(0, at_once - self.running[key] - started.get(key, 0))

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
        """Let classes be in the queues of their leaves if their bounds let them start."""
        for leaf, demand, cls in places:
            self._changes.leaves.setdefault(leaf, set()).add(demand)
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
            place for place in places if place[:2] == (leaf, demand) and self._ends_in_time(place)
        ):
            if limit in limits:
                # The next tasks of an array that may run more may wait for their group.
                return next((each for each in limits if not self.room(each)), limit)
            if first <= job.id <= last:
                break
        return None

    def is_shut_out(self, job: Job, wanted: Vector) -> bool:
        """True if a bound keeps a waiting job from starting. `wanted` is its demand."""
        return self.is_held_back(job) or self.limit_of(job, wanted) is not None

    def within_limits(self, leaf: str) -> Iterator[tuple[Run, Vector]]:
        """Yield the jobs of a leaf that their bounds let start, with their demands, in order."""
        queue = self.get(leaf, {})

        def begin(demand: Vector) -> Iterator[tuple[Run, Vector]]:
            places = [(leaf, demand, cls) for cls in queue[demand]]
            return zip(self._within(places), repeat(demand))

        return _merged([(line.first, demand) for demand, line in queue.items()], begin)

    def beyond_limits(self) -> Iterator[Run]:
        """Yield the pending jobs that only a limit on the running jobs of their array or group
        does not let start, in order."""
        lines = defaultdict[tuple[str, Vector], set[Place]](set)
        for key, places in self._places.items():
            for place in places if isinstance(key, tuple) else ():
                if self._ends_in_time(place):
                    lines[place[:2]].add(place)
        yield from merge(*map(self._beyond, lines.values()))

    def held_back(self) -> set[str]:
        """Return the leaves of which jobs are held back for a maintenance window."""
        places = self.all if self.longest_s < inf else ()
        return {place[0] for place in places if not self._ends_in_time(place)}

    def _ends_in_time(self, place: Place) -> bool:
        return place[2].length_s <= self.longest_s

    def _within(self, places: Iterable[Place]) -> Iterator[Run]:
        return (run for run, limit in self._walk(places) if limit is None)

    def _beyond(self, places: Iterable[Place]) -> Iterator[Run]:
        return (run for run, limit in self._walk(places) if limit is not None)

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
                    left[limit] = self.room(limit)
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


def _bounds_of(place: Place) -> list[Limited | int]:
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


def _some() -> deque[Any]:
    """Return a list of the latest values: so many kinds of tasks of an array are told apart."""
    return deque(maxlen=16)


def _shared(latest: deque[T], value: T) -> T:
    """Return what is equal to `value` among the latest ones, which it joins if it is new."""
    for each in latest:
        if each is value or each == value:
            return each
    latest.appendleft(value)
    return value


#: Id and outcome of a task that did not complete.
FailedTask = tuple[int, Outcome]


class LiveArray(NamedTuple):
    """A live array as the journal has it."""

    array: Array
    #: The first task, by index, that ended and did not complete.
    failed: FailedTask | None = None
    #: The ids of the tasks that are as they were submitted, and a job with the array's id that is
    #: like them.
    untouched: tuple[Ids, ...] = ()
    submitted: Job | None = None


@dataclass
class ArrayState:
    """A live array, with sums over its tasks. The tasks themselves are jobs of the ledger."""

    array: Array
    #: The first task, by index, that ended and did not complete.
    failed: FailedTask | None = None
    #: Number of live tasks by state.
    states: Counter[JobState] = field(default_factory=Counter)
    #: Number of waiting tasks that wait for each other job.
    awaits: Counter[int] = field(default_factory=Counter)
    #: Waiting tasks that can never start.
    broken: set[int] = field(default_factory=set)
    #: Number of live tasks with each list of dependencies.
    afters: Counter[tuple[Dependency, ...]] = field(default_factory=Counter)
    #: Cache: the rows of the live tasks in lists (see `Ledger.rows`), or None after a change.
    rows: Sequence[Job | Tasks] | None = field(default=None, compare=False)
    #: The latest specifications and lists of awaited jobs: the next ones that are equal are shared.
    _specs: deque[JobSpec] = field(default_factory=_some, compare=False)
    _awaits: deque[tuple[Dependency, ...]] = field(default_factory=_some, compare=False)

    def change(self, before: Job | None, job: Job, count: int = 1) -> None:
        """Take account of a change of a task, or of `count` new ones."""
        self.rows = None
        if before is not None:
            add_to(self.states, before.state, -1)
        if job.state is not JobState.ENDED:
            add_to(self.states, job.state, count)
            self._share(job)

    def order(self, event: JobEvent) -> Job:
        """Record an order about the array as a whole, and return what the array is from then on.
        Its tasks have events of their own. Raises InvalidTransition."""
        common = self.array.common
        # The array itself is not held if tasks were held alone.
        if not isinstance(event, Released) or common.state is JobState.HELD:
            common = structs.replace(event.apply(common), awaits=(), not_before_s=None)
        if common.state not in WAITING_STATES:
            raise InvalidTransition(f"array {self.array.id} does not allow {event!r}")
        self.array = replace(self.array, common=common)
        return common

    def _share(self, job: Job) -> None:
        """Let a task share what is equal with those that changed before it, since many are changed
        alike, and tasks that differ may take turns."""
        structs.force_setattr(job, "spec", _shared(self._specs, job.spec))
        structs.force_setattr(job, "awaits", _shared(self._awaits, job.awaits))

    def note_failure(self, job_id: int, outcome: Outcome | None) -> None:
        """Record the end of a task; an outcome of None counts as CANCELLED."""
        if outcome is not Outcome.COMPLETED:
            each = job_id, outcome or Outcome.CANCELLED
            self.failed = each if self.failed is None else min(self.failed, each)

    @property
    def is_over(self) -> bool:
        return not self.states


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

    def live(self) -> list[LiveArray]:
        return [LiveArray(each.array, each.failed) for each in self.values()]
