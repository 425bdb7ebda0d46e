"""Queues of waiting jobs by leaf, and live arrays, whose limits keep some tasks out of the queues.

A queue is in the order of priority and then of submission. Jobs with the same demand vector form a
group, so a pass looks at the head of each group only.

In an array with a limit on how many tasks run at once, the pending tasks form two lines: `open` has
the first of them, as many as may start, which are in the queue of their leaf; `shut` has the rest.
So do the pending jobs of a user's group that are alike, if they name a limit for the group. Of each
kind as many are open as may start: a kind that does not fit keeps no other one from starting. A
pass may therefore choose too many jobs of a group, and drops those again (`scheduling_pass`).

Jobs that would run into a maintenance window are held back: they are in no queue, and in no line of
a group, until `Queues.hold_back` lets them in again.

Only the ledger writes these tables, and they decide nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from drfd.common.indices import Ids
from drfd.core.amounts.vectors import Vector
from drfd.core.ledger.windows import length_s
from drfd.core.model.job import Array, Group, GroupKey, Job, JobSpec, JobState, Outcome

#: (-priority, job id); ids grow with the time of submission.
Entry = tuple[int, int]
#: Entries of one priority with all ids from the first to the last: (-priority, first, last).
Run = tuple[int, int, int]

#: Number of runs from which sorting a line anew is cheaper than single changes.
_MANY = 16


class Line:
    """Sorted entries, as runs of adjacent ones.

    The waiting tasks of an array are one run, however many they are; a task that leaves from the
    middle of a run splits it.
    """

    __slots__ = ("_length", "_runs")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        for priority, first, last in self._runs:
            for job_id in range(first, last + 1):
                yield priority, job_id

    def __contains__(self, entry: Entry) -> bool:
        at = self._at(entry)
        return at >= 0 and self._runs[at][0] == entry[0] and self._runs[at][2] >= entry[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Line({self._runs!r})"

    @property
    def first(self) -> Entry:
        return self._runs[0][:2]

    @property
    def last(self) -> Entry:
        priority, _, last = self._runs[-1]
        return priority, last

    @property
    def runs(self) -> Sequence[Run]:
        return self._runs

    def change(self, runs: Sequence[Run], sign: int) -> None:
        """Add (`sign` 1) or remove (-1) runs, which must be sorted.

        Raises KeyError if one to remove is not present; then others may have been removed.
        """
        if sign < 0:
            self._remove(runs)
            return
        self._length += _count(runs)
        if not self._runs or (runs and self._runs[-1] < runs[0]):
            # New jobs are last.
            self._runs.extend(runs)
        elif len(runs) < _MANY:
            for run in runs:
                insort(self._runs, run)
        else:
            self._runs = sorted([*self._runs, *runs])

    def take(self, most: int, at: int) -> Run:
        """Remove and return the first (`at` 0) or last (-1) entries: up to `most` of their run."""
        priority, first, last = self._runs[at]
        run = priority, first, min(last, first + most - 1)
        if at:
            run = priority, max(first, last - most + 1), last
        self._remove([run])
        return run

    def _remove(self, runs: Sequence[Run]) -> None:
        if len(runs) >= _MANY:
            gone = frozenset(runs)
            left = [run for run in self._runs if run not in gone]
            if len(self._runs) - len(left) == len(gone):
                self._runs, self._length = left, self._length - _count(runs)
                return
        # There are few of them, or the runs present have other bounds.
        for run in runs:
            self._remove_run(run)

    def _remove_run(self, run: Run) -> None:
        priority, first, last = run
        begin = end = bisect_right(self._runs, (priority, first, inf)) - 1
        its_priority, start, stop = (
            self._runs[begin] if begin >= 0 else (priority, first, first - 1)
        )
        if its_priority != priority or stop < first:
            raise KeyError(run)
        while stop < last:
            end += 1
            if end == len(self._runs) or self._runs[end][:2] != (priority, stop + 1):
                raise KeyError(run)
            stop = self._runs[end][2]
        before = [(priority, start, first - 1)] if start < first else []
        behind = [(priority, last + 1, stop)] if last < stop else []
        self._runs[begin : end + 1] = before + behind
        self._length -= last - first + 1

    def _at(self, entry: Entry) -> int:
        """Return the place of the run that contains the entry, if any does."""
        return bisect_right(self._runs, (*entry, inf)) - 1


def _count(runs: Sequence[Run]) -> int:
    return sum([last - first for _, first, last in runs]) + len(runs)


#: The waiting jobs of a leaf, a line for each demand vector that any of them has.
LeafQueue = dict[Vector, Line]


class Queues(dict[str, LeafQueue]):
    """Queues of jobs that wait to start or to go on, by leaf; a leaf without any is absent."""

    def __init__(self, arrays: ArrayStates, groups: GroupStates) -> None:
        super().__init__()
        self._arrays, self._groups = arrays, groups
        #: Leaves whose queue has changed since the reader of this table last cleared it, with the
        #: changed demand vectors. An event of one task may change the queues of other pools, if
        #: tasks of its array are there.
        self.changed: dict[str, set[Vector]] = {}
        #: The length of the longest jobs in the queues, in seconds; longer ones are held back.
        self.longest_s = inf
        #: All jobs in the queues and those held back, by their lengths.
        self._by_length = defaultdict[int, defaultdict[Kind, Line]](lambda: defaultdict(Line))

    def change(self, job: Job, wanted: Vector, runs: Sequence[Run], sign: int) -> None:
        """Add (`sign` 1) or remove (-1) a waiting job, or tasks that it represents.

        `runs` must be sorted. Tasks beyond the limit of their array are left out of the queue.
        """
        array_state = self._arrays.bound_of(job) if job.state is JobState.PENDING else None
        if array_state is not None:
            runs = array_state.gate.change(runs, sign)
        if runs:
            self.put(job, wanted, runs, sign)

    def put(self, job: Job, wanted: Vector, runs: Sequence[Run], sign: int) -> None:
        """Add (`sign` 1) or remove (-1) runs, without the limit of their array. Jobs that are too
        long, and those beyond the limit of their group, are left out of the queue; see
        `hold_back` and `Gate`."""
        # A suspended job counts among those that run.
        is_pending = job.state is JobState.PENDING
        kind = kind_of(job.spec, wanted) if is_pending else (job.spec.leaf, wanted, None, None)
        length = length_s(job)
        kinds = self._by_length[length]
        kinds[kind].change(runs, sign)
        if not kinds[kind]:
            del kinds[kind]
            if not kinds:
                del self._by_length[length]
        if length <= self.longest_s:
            self._put_in_group(kind, runs, sign)

    def hold_back(self, longest_s: float) -> None:
        """Let only jobs of up to so many seconds be in the queues."""
        before, self.longest_s = self.longest_s, longest_s
        if before == longest_s:
            return
        for length, kinds in self._by_length.items():
            if (length > before) is not (length > longest_s):
                for kind, line in kinds.items():
                    self._put_in_group(kind, line.runs, -1 if length > longest_s else 1)

    def is_held_back(self, job: Job) -> bool:
        """True if a waiting job is too long to be in the queue, unless the limit of its array keeps
        it out."""
        return length_s(job) > self.longest_s

    def held_back(self) -> Counter[str]:
        """Return the number of jobs of each leaf that are held back."""
        found = Counter[str]()
        for length, kinds in self._by_length.items() if self.longest_s < inf else ():
            if length > self.longest_s:
                for (leaf, *_), line in kinds.items():
                    found[leaf] += len(line)
        return found

    def _put_in_group(self, kind: Kind, runs: Sequence[Run], sign: int) -> None:
        leaf, wanted, key, _ = kind
        if key is None:
            self._put(leaf, wanted, runs, sign)
            return
        gate = self._groups.gate(key, kind)
        self._put(leaf, wanted, gate.change(runs, sign), sign)
        self._settle(kind, gate, self._groups[key].running)
        self._groups.drop_if_over(key, kind)

    def count_waiting(self, spec: JobSpec, demand: Vector, change: int) -> None:
        """Add `change` equal jobs to those that wait in their group, whether or not they are in
        its lines yet."""
        kind = kind_of(spec, demand)
        if kind[2] is not None:
            self._groups.gate(kind[2], kind).waiting += change
            self._groups.drop_if_over(kind[2], kind)

    def count_running(self, key: GroupKey, sign: int) -> None:
        """Take account of a job of a group that has started (`sign` 1) or ended (-1)."""
        state = self._groups.setdefault(key, GroupState())
        state.running += sign
        for kind, gate in state.kinds.items():
            self._settle(kind, gate, state.running)
        self._groups.drop_if_over(key)

    def _settle(self, kind: Kind, gate: Gate, running: int) -> None:
        leaf, wanted, _, at_once = kind
        for sign, run in gate.settle(max(0, (at_once or 0) - running)):
            self._put(leaf, wanted, [run], sign)

    def _put(self, leaf: str, wanted: Vector, runs: Sequence[Run], sign: int) -> None:
        """Add (`sign` 1) or remove (-1) runs in the queue of the leaf, without any limit."""
        if not runs:
            return
        self.changed.setdefault(leaf, set()).add(wanted)
        queue = self.setdefault(leaf, {})
        line = queue.get(wanted)
        if line is None:
            line = queue[wanted] = Line()
        line.change(runs, sign)
        if not line:
            del queue[wanted]
            if not queue:
                del self[leaf]

    def is_shut_out(self, job: Job, wanted: Vector) -> bool:
        """True if a waiting job is not in the queue because its array or its group is at its
        limit, or because it is held back. `wanted` is its demand."""
        return (
            self.is_held_back(job) or self.is_beyond_array(job) or self.is_beyond_group(job, wanted)
        )

    def is_beyond_array(self, job: Job) -> bool:
        """True if a pending task is not in the queue because its array is at its limit."""
        array_state = self._arrays.bound_of(job)
        return array_state is not None and entry_of(job) in array_state.gate.shut

    def is_beyond_group(self, job: Job, wanted: Vector) -> bool:
        """True if a pending job is not in the queue because its group is at the job's limit, or
        because enough jobs that are alike come before it. `wanted` is its demand."""
        kind = kind_of(job.spec, wanted)
        state = None if kind[2] is None else self._groups.get(kind[2])
        gate = None if state is None else state.kinds.get(kind)
        return gate is not None and entry_of(job) in gate.shut


#: What jobs of one line have in common: leaf, demand, and of those that name a limit of their
#: group, the group and how many of its jobs may run at once; else None twice.
Kind = tuple[str, Vector, GroupKey | None, int | None]


@dataclass
class Gate:
    """Pending entries in two lines: those that are in the queue, and behind them those that are
    kept out of it."""

    open: Line = field(default_factory=Line)
    shut: Line = field(default_factory=Line)

    def change(self, runs: Sequence[Run], sign: int) -> Sequence[Run]:
        """Add (`sign` 1) or remove (-1) pending entries, and return those of them that may start
        now, or might until now. `settle` must be called afterwards, to bring both lines to their
        lengths."""
        at = bisect_right(runs, (*self.open.last, inf)) if self.open else 0
        opened, shut = [*runs[:at]], [*runs[at:]]
        if opened and (opened[-1][0], opened[-1][2]) > self.open.last:
            # `open` ends within this run.
            priority, first, last = opened.pop()
            cut = self.open.last[1]
            opened.append((priority, first, cut))
            shut.insert(0, (priority, cut + 1, last))
        self.open.change(opened, sign)
        self.shut.change(shut, sign)
        return opened

    def settle(self, startable: int) -> Iterator[tuple[int, Run]]:
        """Move entries between the lines until `startable` of them are open, or all; yield runs
        that may start now (1) or no longer (-1)."""
        while len(self.open) < startable and self.shut:
            run = self.shut.take(startable - len(self.open), 0)
            self.open.change([run], 1)
            yield 1, run
        while len(self.open) > startable:
            run = self.open.take(len(self.open) - startable, -1)
            self.shut.change([run], 1)
            yield -1, run


def kind_of(spec: JobSpec, demand: Vector) -> Kind:
    if spec.group is None or spec.group.at_once is None:
        return spec.leaf, demand, None, None
    return spec.leaf, demand, spec.group_key, spec.group.at_once


@dataclass
class GroupGate(Gate):
    """The pending jobs of a kind that may start but for the limit of their group."""

    #: Number of jobs of the kind that have not started: those in the lines, and those that are held
    #: or wait for a time or another job, any of which may join them.
    waiting: int = 0


@dataclass
class GroupState:
    """The live jobs of a user's group."""

    #: The number of jobs that have an allocation.
    running: int = 0
    #: The kinds of jobs with a limit that wait.
    kinds: dict[Kind, GroupGate] = field(default_factory=dict)


class GroupStates(dict[GroupKey, GroupState]):
    """The groups of which a job runs, or waits with a limit."""

    def running(self, key: GroupKey) -> int:
        return self[key].running if key in self else 0

    def gate(self, key: GroupKey, kind: Kind) -> GroupGate:
        return self.setdefault(key, GroupState()).kinds.setdefault(kind, GroupGate())

    def drop_if_over(self, key: GroupKey, kind: Kind | None = None) -> None:
        state = self[key]
        gate = None if kind is None else state.kinds[kind]
        if kind is not None and gate is not None and not (gate.waiting or gate.open or gate.shut):
            del state.kinds[kind]
        if not state.running and not state.kinds:
            del self[key]


#: Id and outcome of a task that did not complete.
FailedTask = tuple[int, Outcome]
#: An array, the ids of its tasks without a record, and the first task that did not complete.
LiveArray = tuple[Array, tuple[Ids, ...], FailedTask | None]


@dataclass
class ArrayState:
    array: Array
    #: Tasks that have no record of their own.
    unmaterialized: Line
    #: The first task, by index, that ended and did not complete.
    failed: FailedTask | None = None
    #: Live tasks with a record, and how many of them have an allocation.
    live: set[int] = field(default_factory=set)
    active: int = 0
    #: The tasks that may start but for a limit on the running ones.
    gate: Gate = field(default_factory=Gate)
    #: Cache: the task that delays dependents of the array longest, or the array's id for the tasks
    #: without a record, or None after a change.
    slowest: int | None = field(default=None, compare=False)
    #: Cache: number of live tasks by state, or None after a change.
    states: Counter[JobState] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, array: Array, ids: Iterable[Ids], bad: FailedTask | None = None) -> ArrayState:
        return cls(array, _line(array, ids), bad)

    def become(self, common: Job) -> None:
        """Set the state that the tasks without a record share from now on."""
        self.note_change()
        before, self.array = self.array, replace(self.array, common=common)
        if common.state is JobState.ENDED:
            self.array = replace(self.array, cancelled=self.ids())
            self.note_failure(self.array.cancelled[0][0], common.outcome)
            self.unmaterialized = Line()
        elif common.spec.priority != before.spec.priority:
            # Otherwise the line of tasks, which may have very many runs, need not be rebuilt.
            self.unmaterialized = _line(self.array, self.ids())

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
        return tuple((first, last) for _, first, last in self.unmaterialized.runs)

    @property
    def common(self) -> Job | None:
        """The job that represents the tasks that have no record, or None if there are none."""
        return self.array.common if self.unmaterialized else None

    @property
    def group(self) -> Group | None:
        """The tasks that have no record of their own, or None if there are none."""
        return Group(self.array, self.ids()) if self.unmaterialized else None

    def has_unmaterialized(self, job_id: int) -> bool:
        return (-self.array.spec.priority, job_id) in self.unmaterialized


class ArrayStates(dict[int, ArrayState]):
    """The states of live arrays by the array's id."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: list[int] = []
        #: Cache of the latest result of `unmaterialized`, which a pass asks for repeatedly.
        self._last: tuple[Array, Job] | None = None

    def enrol(self, array_state: ArrayState) -> None:
        """Add an array with a higher id than all others."""
        self[array_state.array.id] = array_state
        self._ids.append(array_state.array.id)

    def drop(self, array_state: ArrayState) -> None:
        del self[array_state.array.id]
        del self._ids[bisect_left(self._ids, array_state.array.id)]

    def of_task(self, job_id: int) -> Array | None:
        """Return the live array that has a task with this id, or None."""
        at = bisect_left(self._ids, job_id) - 1
        array = self[self._ids[at]].array if at >= 0 else None
        return array if array is not None and array.has_task(job_id) else None

    def unmaterialized(self, job_id: int) -> Job | None:
        """Return a task that has no record of its own, or None if there is no such task."""
        array = self.of_task(job_id)
        if array is None or not self[array.id].has_unmaterialized(job_id):
            return None
        if self._last is None or self._last[0] is not array or self._last[1].id != job_id:
            self._last = array, array.task(job_id)
        return self._last[1]

    def bound_of(self, job: Job) -> ArrayState | None:
        """Return the state of the task's array if that limits how many run at once, else None."""
        array_state = None if job.array_id is None else self.get(job.array_id)
        is_bounded = array_state is not None and array_state.array.at_once is not None
        return array_state if is_bounded else None

    def groups(self) -> list[Group]:
        """Return the tasks without a record of their own, array by array."""
        return [group for each in self.values() if (group := each.group) is not None]

    def live(self) -> list[LiveArray]:
        return [(each.array, each.ids(), each.failed) for each in self.values()]


def _line(array: Array, ids: Iterable[Ids]) -> Line:
    line = Line()
    line.change([(-array.spec.priority, first, last) for first, last in ids], 1)
    return line


def entry_of(job: Job) -> Entry:
    return -job.spec.priority, job.id


def run_of(job: Job) -> Run:
    return -job.spec.priority, job.id, job.id
