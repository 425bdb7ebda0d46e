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

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import NamedTuple

from drfd.common.indices import Ids
from drfd.core.amounts.vectors import Vector
from drfd.core.ledger.windows import length_s
from drfd.core.model.job import Array, Group, GroupKey, Job, JobSpec, JobState, Outcome

#: (-priority, job id); ids grow with the time of submission.
Entry = tuple[int, int]
#: Entries of one priority with all ids from the first to the last: (-priority, first, last).
Run = tuple[int, int, int]

#: Number of runs in a new block of a line; a block is split at twice this.
_BLOCK = 512
#: Number of runs from which rebuilding the affected blocks is cheaper than single changes.
_MANY = 16


class Line:
    """Sorted entries, in blocks, so that a change moves the entries of one block only.

    The waiting tasks of an array are one run, however many they are; a task that leaves from the
    middle of a run splits it.
    """

    __slots__ = ("_blocks", "_length")

    def __init__(self) -> None:
        self._blocks: list[list[Run]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        for priority, first, last in self.runs():
            if first == last:
                yield priority, first
            else:
                for job_id in range(first, last + 1):
                    yield priority, job_id

    def __contains__(self, entry: Entry) -> bool:
        return self._find(entry) is not None

    def __getitem__(self, index: int) -> Entry:
        for priority, first, last in self.runs():
            if index <= last - first:
                return priority, first + index
            index -= last - first + 1
        raise IndexError(index)

    @property
    def first(self) -> Entry:
        return self._blocks[0][0][:2]

    @property
    def first_run(self) -> Run:
        return self._blocks[0][0]

    @property
    def last(self) -> Entry:
        priority, _, last = self._blocks[-1][-1]
        return priority, last

    @property
    def run_count(self) -> int:
        return sum(map(len, self._blocks))

    def runs(self) -> Iterator[Run]:
        for block in self._blocks:
            yield from block

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Line({list(self.runs())!r})"

    def add(self, entry: Entry) -> None:
        self.add_run((*entry, entry[1]))

    def add_run(self, run: Run) -> None:
        self._length += run[2] - run[1] + 1
        self._insert(run)

    def remove(self, entry: Entry) -> None:
        self.remove_run((*entry, entry[1]))

    def remove_run(self, run: Run) -> None:
        """Remove the run. Raises KeyError, and changes nothing, unless all of it is present."""
        priority, first, last = run
        if first == last and self._blocks:
            # Single jobs leave from the front, mostly.
            head = self._blocks[0][0]
            if head[:2] == (priority, first):
                self._length -= 1
                if last == head[2]:
                    self._cut(0, 0)
                else:
                    self._blocks[0][0] = priority, last + 1, head[2]
                return
        if not self._covers(run):
            raise KeyError(run)
        self._length -= last - first + 1
        while first <= last:
            place = self._find((priority, first))
            assert place is not None
            _, start, end = self._cut(*place)
            if start < first:
                self._insert((priority, start, first - 1))
            if last < end:
                self._insert((priority, last + 1, end))
            first = end + 1

    def add_runs(self, runs: Sequence[Run]) -> None:
        """Add runs, which must be sorted; faster than `add_run` for each of thousands."""
        if len(runs) < _MANY:
            for run in runs:
                self._length += run[2] - run[1] + 1
                self._insert(run)
            return
        self._length += _count(runs)
        blocks = self._blocks_around(runs)
        self._blocks[blocks] = _in_blocks(sorted([*chain(*self._blocks[blocks]), *runs]))

    def remove_runs(self, runs: Sequence[Run]) -> None:
        """Remove runs, which must be sorted; faster than `remove_run` for each of thousands.

        Raises KeyError if one of them is not present; then some of them may have been removed.
        """
        if len(runs) >= _MANY:
            blocks, gone = self._blocks_around(runs), frozenset(runs)
            here = [*chain(*self._blocks[blocks])]
            left = [run for run in here if run not in gone]
            if len(here) - len(left) == len(gone):
                self._length -= _count(runs)
                self._blocks[blocks] = _in_blocks(left)
                return
        # There are few of them, or the runs present have other bounds.
        for run in runs:
            self.remove_run(run)

    def take_first(self, most: int) -> Run:
        """Remove and return the first entries: up to `most` of the first run."""
        priority, first, last = self._blocks[0][0]
        run = priority, first, min(last, first + most - 1)
        self.remove_run(run)
        return run

    def take_last(self, most: int) -> Run:
        """Remove and return the last entries: up to `most` of the last run."""
        priority, first, last = self._blocks[-1][-1]
        run = priority, max(first, last - most + 1), last
        self.remove_run(run)
        return run

    def _blocks_around(self, runs: Sequence[Run]) -> slice:
        """Return the range of blocks that these runs are in or belong to."""
        return slice(self._block_of(runs[0][:2]), self._block_of(runs[-1][:2]) + 1)

    def _insert(self, run: Run) -> None:
        # New jobs are last, so the common case costs one comparison.
        if not self._blocks or self._blocks[-1][-1] < run:
            if not self._blocks or len(self._blocks[-1]) >= _BLOCK:
                self._blocks.append([])
            self._blocks[-1].append(run)
            return
        at = self._block_of(run[:2])
        block = self._blocks[at]
        block.insert(bisect_left(block, run), run)
        if len(block) >= 2 * _BLOCK:
            self._blocks[at : at + 1] = [block[:_BLOCK], block[_BLOCK:]]

    def _cut(self, at: int, place: int) -> Run:
        run = self._blocks[at].pop(place)
        if not self._blocks[at]:
            del self._blocks[at]
        return run

    def _covers(self, run: Run) -> bool:
        priority, first, last = run
        while first <= last:
            place = self._find((priority, first))
            if place is None:
                return False
            at, here = place
            first = self._blocks[at][here][2] + 1
        return True

    def _find(self, entry: Entry) -> tuple[int, int] | None:
        """Return the block, and the place in it, of the run that contains the entry."""
        at = self._block_of(entry)
        if at == len(self._blocks):
            return None
        place = bisect_right(self._blocks[at], (*entry, inf)) - 1
        if place < 0:
            return None
        priority, _, last = self._blocks[at][place]
        return (at, place) if priority == entry[0] and last >= entry[1] else None

    def _block_of(self, entry: Entry) -> int:
        """Return the first block that ends with the entry or after it."""
        return bisect_left(self._blocks, entry, key=_end)


def _in_blocks(runs: list[Run]) -> list[list[Run]]:
    return [runs[at : at + _BLOCK] for at in range(0, len(runs), _BLOCK)]


def _count(runs: Sequence[Run]) -> int:
    return sum([last - first for _, first, last in runs]) + len(runs)


def _end(block: list[Run]) -> Entry:
    priority, _, last = block[-1]
    return priority, last


class LeafQueue:
    """Lines of entries by demand vector; empty groups are dropped."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[Vector, Line] = {}

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))

    def __bool__(self) -> bool:
        return bool(self.groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeafQueue) and self.groups == other.groups

    __hash__ = None  # type: ignore[assignment]  # mutable

    def add(self, demand: Vector, entry: Entry) -> None:
        self.add_runs(demand, [(*entry, entry[1])])

    def add_runs(self, demand: Vector, runs: Sequence[Run]) -> None:
        group = self.groups.get(demand)
        if group is None:
            group = self.groups[demand] = Line()
        group.add_runs(runs)

    def remove(self, demand: Vector, entry: Entry) -> None:
        self.remove_runs(demand, [(*entry, entry[1])])

    def remove_runs(self, demand: Vector, runs: Sequence[Run]) -> None:
        group = self.groups[demand]
        group.remove_runs(runs)
        if not group:
            del self.groups[demand]


#: Number of changed demand vectors recorded for a leaf; beyond that, all count as changed.
_MOST_NOTED = 1_000


class Queues(dict[str, LeafQueue]):
    """Queues of jobs that wait to start or to go on, by leaf; a leaf without any is absent."""

    def __init__(self, arrays: ArrayStates, groups: GroupStates) -> None:
        super().__init__()
        self._arrays, self._groups = arrays, groups
        #: Leaves whose queue has changed since the reader of this table last cleared it, with the
        #: changed demand vectors, or None if there are too many of them. An event of one task may
        #: change the queues of other pools, if tasks of its array are there.
        self.changed: dict[str, set[Vector] | None] = {}
        #: The length of the longest jobs in the queues, in seconds; longer ones are held back.
        self.longest_s = inf
        #: All jobs in the queues and those held back, by their lengths; None while `longest_s`
        #: is infinite.
        self._by_length: dict[int, dict[_Place, Line]] | None = None
        #: The number of jobs of each leaf that are held back.
        self._held_back = Counter[str]()

    def change(self, job: Job, wanted: Vector, runs: Sequence[Run], sign: int) -> None:
        """Add (`sign` 1) or remove (-1) a waiting job, or tasks that it represents.

        `runs` must be sorted. Tasks beyond the limit of their array are left out of the queue; see
        `ArrayState.moves`.
        """
        if job.array_id is not None and job.state is JobState.PENDING:
            array_state = self._arrays.bound_of(job)
            if array_state is not None:
                runs = array_state.add(runs) if sign > 0 else array_state.remove(runs)
        if runs:
            self.put(job, wanted, runs, sign)

    def put(self, job: Job, wanted: Vector, runs: Sequence[Run], sign: int) -> None:
        """Add (`sign` 1) or remove (-1) runs, without the limit of their array. Jobs that are too
        long, and those beyond the limit of their group, are left out of the queue; see
        `hold_back` and `GroupGate`."""
        place = _place_of(job, wanted)
        if self._by_length is not None:
            length = length_s(job)
            self._note_length(length, place, runs, sign)
            if length > self.longest_s:
                count = sum(last - first + 1 for _, first, last in runs)
                self._count_held_back(place.leaf, sign * count)
                return
        self._put_at(place, runs, sign)

    def hold_back(self, longest_s: float, waiting: Iterable[tuple[Job, Vector, Run]]) -> None:
        """Let only jobs of up to so many seconds be in the queues. `waiting` are all jobs, with
        their demands, that are in them or beyond the limit of a group; they are read only when jobs
        begin to be held back."""
        if self._by_length is None:
            if longest_s == inf:
                return
            self._by_length = {}
            for job, wanted, run in waiting:
                self._note_length(length_s(job), _place_of(job, wanted), [run], 1)
        before, self.longest_s = self.longest_s, longest_s
        for length, places in self._by_length.items():
            if (length > before) is not (length > longest_s):
                sign = -1 if length > longest_s else 1
                for place, line in places.items():
                    self._count_held_back(place.leaf, -sign * len(line))
                    self._put_at(place, [*line.runs()], sign)
        if longest_s == inf:
            self._by_length = None

    def is_held_back(self, job: Job) -> bool:
        """True if a waiting job is too long to be in the queue, unless the limit of its array keeps
        it out."""
        return self._by_length is not None and length_s(job) > self.longest_s

    def held_back(self) -> Counter[str]:
        """Return the number of jobs of each leaf that are held back."""
        return self._held_back

    def _count_held_back(self, leaf: str, count: int) -> None:
        self._held_back[leaf] += count
        if not self._held_back[leaf]:
            del self._held_back[leaf]

    def _note_length(self, length: int, place: _Place, runs: Sequence[Run], sign: int) -> None:
        assert self._by_length is not None
        places = self._by_length.setdefault(length, {})
        line = places.setdefault(place, Line())
        if sign > 0:
            line.add_runs(runs)
            return
        line.remove_runs(runs)
        if not line:
            del places[place]
            if not places:
                del self._by_length[length]

    def _put_at(self, place: _Place, runs: Sequence[Run], sign: int) -> None:
        leaf, wanted, key, kind = place
        if key is None or kind is None:
            self._put(leaf, wanted, runs, sign)
            return
        state = self._groups.setdefault(key, GroupState())
        gate = state.kinds.get(kind)
        if gate is None:
            gate = state.kinds[kind] = GroupGate()
        self._put(leaf, wanted, gate.add(runs) if sign > 0 else gate.remove(runs), sign)
        self._settle(kind, gate, state.running)
        if not (gate.open or gate.shut):
            del state.kinds[kind]
            self._groups.drop_if_over(key)

    def count_waiting(self, spec: JobSpec, demand: Vector, change: int) -> None:
        """Add `change` equal jobs to those that wait in their group, whether or not they are in
        its lines yet."""
        key, kind = spec.group_key, kind_of(spec, demand)
        if key is None or kind is None:
            return
        waiting = self._groups.setdefault(key, GroupState()).waiting
        waiting[kind] += change
        if not waiting[kind]:
            del waiting[kind]
            self._groups.drop_if_over(key)

    def count_running(self, key: GroupKey, sign: int) -> None:
        """Take account of a job of a group that has started (`sign` 1) or ended (-1)."""
        state = self._groups.setdefault(key, GroupState())
        state.running += sign
        for kind, gate in state.kinds.items():
            self._settle(kind, gate, state.running)
        self._groups.drop_if_over(key)

    def _settle(self, kind: Kind, gate: GroupGate, running: int) -> None:
        leaf, wanted, at_once = kind
        for sign, run in gate.settle(max(0, at_once - running)):
            self._put(leaf, wanted, [run], sign)

    def _put(self, leaf: str, wanted: Vector, runs: Sequence[Run], sign: int) -> None:
        """Add (`sign` 1) or remove (-1) runs in the queue of the leaf, without any limit."""
        if not runs:
            return
        self._note(leaf, wanted)
        if sign > 0:
            queue = self.get(leaf)
            if queue is None:
                queue = self[leaf] = LeafQueue()
            queue.add_runs(wanted, runs)
        else:
            self[leaf].remove_runs(wanted, runs)
            if not self[leaf]:
                del self[leaf]

    def _note(self, leaf: str, wanted: Vector) -> None:
        if leaf not in self.changed:
            self.changed[leaf] = set()
        changed = self.changed[leaf]
        if changed is not None:
            changed.add(wanted)
            if len(changed) > _MOST_NOTED:
                self.changed[leaf] = None

    def is_shut_out(self, job: Job, wanted: Vector) -> bool:
        """True if a waiting job is not in the queue because its array or its group is at its
        limit, or because it is held back. `wanted` is its demand."""
        return (
            self.is_held_back(job) or self.is_beyond_array(job) or self.is_beyond_group(job, wanted)
        )

    def is_beyond_array(self, job: Job) -> bool:
        """True if a pending task is not in the queue because its array is at its limit."""
        array_state = self._arrays.bound_of(job)
        return array_state is not None and entry_of(job) in array_state.shut

    def is_beyond_group(self, job: Job, wanted: Vector) -> bool:
        """True if a pending job is not in the queue because its group is at the job's limit, or
        because enough jobs that are alike come before it. `wanted` is its demand."""
        group = job.spec.group
        if group is None or group.at_once is None:
            return False
        state = self._groups.get((job.spec.user, group.name))
        gate = None if state is None else state.kinds.get((job.spec.leaf, wanted, group.at_once))
        return gate is not None and entry_of(job) in gate.shut


class _Place(NamedTuple):
    """The queue, or the lines of a group, that waiting jobs belong to."""

    leaf: str
    demand: Vector
    #: The group, and the kind of jobs that name a limit of their group.
    group: GroupKey | None = None
    kind: Kind | None = None


def _place_of(job: Job, wanted: Vector) -> _Place:
    key, kind = job.spec.group_key, kind_of(job.spec, wanted)
    if key is None or kind is None or job.state is not JobState.PENDING:
        return _Place(job.spec.leaf, wanted)
    return _Place(job.spec.leaf, wanted, key, kind)


class Gate:
    """Pending entries in two lines: those that are in the queue, and behind them those that are
    kept out of it."""

    open: Line
    shut: Line

    def add(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Add pending entries, and return those of them that may start now.

        `settle` must be called afterwards, to bring both lines to their lengths.
        """
        at = bisect_left(runs, self.open.last, key=_first) if self.open else 0
        self.open.add_runs(runs[:at])
        self.shut.add_runs(runs[at:])
        return runs[:at]

    def remove(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Remove pending entries, and return those of them that were in `open`."""
        at = bisect_right(runs, self.open.last, key=_first) if self.open else 0
        opened, shut = [*runs[:at]], [*runs[at:]]
        if opened and (opened[-1][0], opened[-1][2]) > self.open.last:
            # `open` ends within this run.
            priority, first, last = opened.pop()
            cut = self.open.last[1]
            opened.append((priority, first, cut))
            shut.insert(0, (priority, cut + 1, last))
        self.open.remove_runs(opened)
        self.shut.remove_runs(shut)
        return opened

    def settle(self, startable: int) -> Iterator[tuple[int, Run]]:
        """Move entries between the lines until `startable` of them are open, or all; yield runs
        that may start now (1) or no longer (-1)."""
        while len(self.open) < startable and self.shut:
            run = self.shut.take_first(startable - len(self.open))
            self.open.add_run(run)
            yield 1, run
        while len(self.open) > startable:
            run = self.open.take_last(len(self.open) - startable)
            self.shut.add_run(run)
            yield -1, run


@dataclass
class GroupGate(Gate):
    """Pending jobs of a group that are alike: of one leaf, with one demand and one limit."""

    open: Line = field(default_factory=Line)
    shut: Line = field(default_factory=Line)


#: Leaf, demand, and the most jobs of the group that may run at once.
Kind = tuple[str, Vector, int]


def kind_of(spec: JobSpec, demand: Vector) -> Kind | None:
    """Return the kind of a job within its group, or None if it names no limit."""
    if spec.group is None or spec.group.at_once is None:
        return None
    return spec.leaf, demand, spec.group.at_once


@dataclass
class GroupState:
    """The live jobs of a user's group."""

    #: The number of jobs that have an allocation.
    running: int = 0
    #: The pending jobs that name a limit and may start but for it.
    kinds: dict[Kind, GroupGate] = field(default_factory=dict)
    #: Number of jobs with a limit that have not started, by kind: those in `kinds`, and those that
    #: are held or wait for a time or another job, any of which may join `kinds`.
    waiting: Counter[Kind] = field(default_factory=Counter)


class GroupStates(dict[GroupKey, GroupState]):
    """The groups of which a job runs, or waits with a limit."""

    def running(self, key: GroupKey) -> int:
        state = self.get(key)
        return 0 if state is None else state.running

    def drop_if_over(self, key: GroupKey) -> None:
        state = self[key]
        if not state.running and not state.kinds and not state.waiting:
            del self[key]


#: Id and outcome of a task that did not complete.
FailedTask = tuple[int, Outcome]
#: An array, the ids of its tasks without a record, and the first task that did not complete.
LiveArray = tuple[Array, tuple[Ids, ...], FailedTask | None]


@dataclass
class ArrayState(Gate):
    array: Array
    #: Tasks that have no record of their own.
    unmaterialized: Line
    #: The first task, by index, that ended and did not complete.
    failed: FailedTask | None = None
    #: Live tasks with a record, and how many of them have an allocation.
    live: set[int] = field(default_factory=set)
    active: int = 0
    open: Line = field(default_factory=Line)
    shut: Line = field(default_factory=Line)
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
        is_as_before = common.spec.priority == self.array.spec.priority
        self.note_change()
        if common.state is not JobState.ENDED and is_as_before:
            # The line of tasks, which may have very many runs, need not be rebuilt.
            self.array = replace(self.array, common=common)
            return
        ids = self.ids()
        if common.state is JobState.ENDED:
            self.array = replace(self.array, common=common, cancelled=ids)
            self.note_failure(ids[0][0], common.outcome)
            ids = ()
        else:
            self.array = replace(self.array, common=common)
        self.unmaterialized = _line(self.array, ids)

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
        return tuple((first, last) for _, first, last in self.unmaterialized.runs())

    def has_unmaterialized(self, job_id: int) -> bool:
        return (-self.array.spec.priority, job_id) in self.unmaterialized

    def moves(self) -> Iterator[tuple[int, Run]]:
        """Let as many tasks be open as the limit on running ones allows; see `settle`."""
        if self.array.at_once is None:
            return
        yield from self.settle(max(0, self.array.at_once - self.active))


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

    def drop_if_over(self, array_state: ArrayState) -> None:
        if array_state.is_over:
            del self[array_state.array.id]
            del self._ids[bisect_left(self._ids, array_state.array.id)]

    def of_task(self, job_id: int) -> int | None:
        """Return the id of the live array that has a task with this id, or None."""
        at = bisect_left(self._ids, job_id) - 1
        return self._ids[at] if at >= 0 and self[self._ids[at]].array.has_task(job_id) else None

    def unmaterialized(self, job_id: int) -> Job | None:
        """Return a task that has no record of its own, or None if there is no such task."""
        at = bisect_left(self._ids, job_id) - 1
        array_state = self[self._ids[at]] if at >= 0 else None
        if array_state is None or not array_state.has_unmaterialized(job_id):
            return None
        if (
            self._last is None
            or self._last[0] is not array_state.array
            or self._last[1].id != job_id
        ):
            self._last = array_state.array, array_state.array.task(job_id)
        return self._last[1]

    def bound_of(self, job: Job) -> ArrayState | None:
        """Return the state of the task's array if that limits how many run at once, else None."""
        array_state = None if job.array_id is None else self.get(job.array_id)
        is_bounded = array_state is not None and array_state.array.at_once is not None
        return array_state if is_bounded else None

    def groups(self) -> list[Group]:
        """Return the tasks without a record of their own, array by array."""
        return [Group(each.array, each.ids()) for each in self.values() if each.unmaterialized]

    def live(self) -> list[LiveArray]:
        return [(each.array, each.ids(), each.failed) for each in self.values()]


def _line(array: Array, ids: Iterable[Ids]) -> Line:
    line = Line()
    line.add_runs([(-array.spec.priority, first, last) for first, last in ids])
    return line


def _first(run: Run) -> Entry:
    return run[:2]


def entry_of(job: Job) -> Entry:
    return -job.spec.priority, job.id
