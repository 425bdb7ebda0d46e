"""The index of waiting jobs, kept from pass to pass.

It is derived from queues, allocations and usage. The caller names each leaf that changes (`touch`),
and only that leaf is read again before the next pass. A pass moves leaves as it admits jobs, and
touches them, because its decisions count only once the ledger has applied them.

Leaves are grouped by demand vector (`DemandGroup`), so a vector that does not fit is skipped,
however many leaves wait for it. The work of a change grows with the number of these vectors, with
the depth of the tree, and with the logarithm of the number of leaves. A leaf that waits for more
than a few vectors stands apart: it is in no group, and all its vectors are in a tree of its own
(`core.scheduling.demand_tree`), in which a change costs a few nodes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from drfd.core.amounts.vectors import Vector, fits, minus, plus
from drfd.core.fairness.priority_tree import NEVER, IndexedHeap, PriorityTree
from drfd.core.fairness.share_tree import TOP, FairShare, ShareNode, ShareTree, parent_of, path_up
from drfd.core.ledger.queue import Entry, LeafQueue, Queues
from drfd.core.scheduling.backfill import PassContext
from drfd.core.scheduling.demand_tree import ANY_LENGTH, Demands

#: The jobs that wait first, by leaf, each with its demand.
_First = Mapping[str, tuple[Entry, Vector]]
#: From this number of noted paths on, a group does not wait until it is read.
_MOST_NOTED = 1_000


class DemandGroup:
    """The leaves that wait for one demand vector, in the orders in which a pass reads them.

    A change is only noted: there are many groups, and a pass reads those whose demand fits.
    """

    def __init__(
        self,
        demand: Vector,
        share_tree: ShareTree,
        past_usage: Mapping[str, float],
        first: _First,
    ) -> None:
        """`first` has the first job of each leaf, whatever its demand."""
        self.demand = demand
        #: The first job of this demand of each leaf in the group. Who changes it must call `note`.
        self.jobs: dict[str, int] = {}
        self._share_tree, self._past_usage, self._first = share_tree, past_usage, first
        self._whole_level = share_tree.whole_level(demand)
        #: Leaves and pools of which something has changed since the orders were last read.
        self._noted: set[str] = set()
        self._now = PriorityTree(share_tree, past_usage, demand)
        self._after: PriorityTree | None = None
        if self.may_keep_promise:
            self._after = self._make_after()
        #: The leaves whose job is short enough for the latest deadline; see `in_time`.
        self._short = PriorityTree(share_tree, past_usage, demand)
        #: The run times of the jobs in seconds: (negative run time, leaf) of the leaves in
        #: `_short`, (run time, leaf) of the others. Those of `_unmeasured` leaves are outdated.
        self._in: IndexedHeap[tuple[float, str]] = IndexedHeap()
        self._out: IndexedHeap[tuple[float, str]] = IndexedHeap()
        self._unmeasured: set[str] = set()

    def note(self, path: str) -> None:
        """Take account of a change of a leaf or pool: of its first jobs, of what it holds or has
        used, or of the estimated run times of its jobs."""
        self._noted.add(path)
        if len(self._noted) > _MOST_NOTED:
            self.refresh()

    @property
    def now(self) -> PriorityTree:
        """The leaves by what they hold."""
        if self._noted:
            self._catch_up()
        return self._now

    @property
    def after(self) -> PriorityTree:
        """The leaves by what they would hold with one more such job. Among many users no job keeps
        a promise, and nobody reads this."""
        if self._noted:
            self._catch_up()
        if self._after is None:
            self._after = self._make_after()
        return self._after

    def _make_after(self) -> PriorityTree:
        after = PriorityTree(self._share_tree, self._past_usage, self.demand, is_after=True)
        for leaf, head in self._now.heads.items():
            after.put(leaf, head)
        return after

    def _catch_up(self) -> None:
        for path in self._noted:
            head = None
            if path in self.jobs:
                (_, head), _ = self._first[path]
            self._now.put(path, head)
            if self._after is not None:
                self._after.put(path, head)
            self._short.lift(path)
        self._unmeasured |= self._noted
        self._noted.clear()

    @property
    def may_keep_promise(self) -> bool:
        """Return False if it is known that no node keeps its promise with one such job."""
        return self._share_tree.may_keep_promise(self._whole_level)

    def refresh(self) -> None:
        """Make the keys of all changed leaves now, and not when the group is read."""
        self._catch_up()
        self._now.refresh()
        if self._after is not None:
            self._after.refresh()

    def in_time(self, deadline_s: float, pass_context: PassContext) -> PriorityTree:
        """Return the leaves whose job would end by the deadline, as estimated, if it started
        now. A call costs as much as there are leaves between its deadline and the one before."""
        heads = self.now.heads

        def sort(leaf: str, length_s: float) -> None:
            if pass_context.now_s + length_s <= deadline_s:
                self._in.put((-length_s, leaf))
                self._short.put(leaf, heads[leaf])
            else:
                self._out.put((length_s, leaf))
                self._short.put(leaf, None)

        for leaf in self._unmeasured:
            self._in.drop(leaf)
            self._out.drop(leaf)
            if leaf in self.jobs:
                sort(leaf, pass_context.length_s(self.jobs[leaf]))
            else:
                self._short.put(leaf, None)
        self._unmeasured.clear()
        while (longest := self._in.least()) and pass_context.now_s - longest[0] > deadline_s:
            self._in.drop(longest[1])
            sort(longest[1], -longest[0])
        while (shortest := self._out.least()) and pass_context.now_s + shortest[0] <= deadline_s:
            self._out.drop(shortest[1])
            sort(shortest[1], shortest[0])
        return self._short


#: The largest number of demand vectors of a leaf that does not stand apart.
FEW_VECTORS = 8


#: From this number of changed leaves on, a pass does not leave it to the next ones to order them.
_MANY_LEAVES = 16


class _Place(NamedTuple):
    """What the keys of a leaf in the demand groups are made of, besides what it holds."""

    #: The first job, or None if no job waits.
    head: int | None
    #: The decayed usage of the leaf and of the pools above it.
    past_usage: tuple[float, ...]


#: The place of a leaf in which nothing waits.
_NOWHERE = _Place(None, ())


class _LineWalk:
    """An iterator over a line of jobs that skips those that the pass has admitted."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self._next = next(entries, None)

    def head(self, admitted: Collection[int]) -> Entry | None:
        while self._next is not None and self._next[1] in admitted:
            self._next = next(self._entries, None)
        return self._next


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafTables:
    """The tables that passes read, by leaf. They may change between passes."""

    queues: Mapping[str, LeafQueue]
    #: The resources that each leaf holds.
    used: Mapping[str, Vector]
    shares: FairShare
    #: The decayed usage of each node, which decides ties; see `core.fairness.priority_tree`.
    past_usage: Mapping[str, float] = field(default_factory=dict)
    #: The resources of recently ended short jobs by leaf, which count as held, but not against
    #: limits; see `core.fairness.priority_tree.ShortJobs`.
    recent: Mapping[str, Vector] = field(default_factory=dict)
    #: Returns the time limit of a waiting job in seconds, or 0 if the job may end earlier than its
    #: limit and its user's estimate say.
    limit_s: Callable[[int], int] = lambda job_id: 0


class WaitIndex:
    """The waiting jobs by leaf and demand vector, and the share tree of the active leaves."""

    def __init__(self, tables: LeafTables, *, few: int = FEW_VECTORS) -> None:
        """Build an index over `tables`. A leaf with more than `few` demand vectors stands apart."""
        queues, used, recent = tables.queues, tables.used, tables.recent
        shares, past_usage, limit_s = tables.shares, tables.past_usage, tables.limit_s
        self.tables = tables
        self.shares = shares
        self.share_tree = ShareTree(shares)
        #: The groups of the leaves that do not stand apart, by demand vector.
        self.demand_groups: dict[Vector, DemandGroup] = {}
        self.apart: dict[str, Demands] = {}
        #: The leaves whose first job has waited long enough for a reservation, by the demand of
        #: that job and whether the leaf stands apart.
        self.late: dict[tuple[Vector, bool], PriorityTree] = {}
        #: The decayed usage of each node.
        self.past_usage = past_usage
        #: The first waiting job of each leaf with its demand. Jobs that can never start (which a
        #: change of the configuration leaves behind) count only if the leaf has no others.
        self.first: dict[str, tuple[Entry, Vector]] = {}
        self._queues, self._used, self._recent = queues, used, recent
        self._nothing: Vector = (0,) * len(shares.capacity)
        self._limit_s, self._few = limit_s, few
        #: Leaves that have changed → the demands for which their queues have, or None for all.
        self._touched: dict[str, set[Vector] | None] = dict.fromkeys([*queues, *used, *recent])
        #: Leaves whose jobs may not be looked at.
        self._shut: frozenset[str] = frozenset()
        #: Nodes that have used up their quota; see `put_last`.
        self.beyond: frozenset[str] = frozenset()
        #: The `used` and `recent` resources of each active leaf that are entered in `share_tree`.
        self._held: dict[str, tuple[Vector, Vector]] = {}
        self._places: dict[str, _Place] = {}
        #: The first job of each demand of each leaf that does not stand apart, without the jobs
        #: that the present pass has admitted. Only demands that are touched are read again.
        self._heads: dict[str, dict[Vector, Entry]] = {}
        #: Leaves of which every demand is read again with the next reading.
        self._unread: set[str] = set()
        #: (start of the wait of the first job, Unix time; leaf) for leaves that are not late.
        self._young: IndexedHeap[tuple[float, str]] = IndexedHeap()
        #: The key in `late` of each leaf in it.
        self._late: dict[str, tuple[Vector, bool]] = {}
        #: (start of the wait of the first job, Unix time; leaf) for late leaves, in order.
        self._longest_waiting: list[tuple[float, str]] = []
        self._ages: dict[str, float] = {}
        #: Leaves for which `_date` must decide again whether they are late.
        self._undated: set[str] = set()
        self._dated_s = float("-inf")
        #: The jobs that the present pass has admitted, and its iterators past them.
        self._admitted: set[int] = set()
        self._walks: dict[tuple[str, Vector], _LineWalk] = {}

    def touch(self, leaf: str, demands: Iterable[Vector] | None = None) -> None:
        """Read the leaf again before the next pass, because its queue has changed, or the resources
        that it or its pools hold or have used. `demands` are those for which the queue may have
        changed (empty for none), or None for any."""
        noted = self._touched.setdefault(leaf, set())
        if demands is None:
            self._touched[leaf] = None
        elif noted is not None:
            noted.update(demands)

    def shut(self, leaves: frozenset[str]) -> None:
        """Treat these leaves, and no others, as if their queues were empty."""
        for leaf in leaves ^ self._shut:
            self.touch(leaf, ())
            self._unread.add(leaf)
        self._shut = leaves

    def put_last(self, paths: frozenset[str]) -> None:
        """Serve these nodes, and no others, after their siblings that wait and are not in here."""
        self.beyond = paths

    def catch_up(self, queues: Queues) -> None:
        """Touch the leaves whose queues have changed since the last call, and clear their list."""
        for leaf, demands in queues.changed.items():
            self.touch(leaf, demands)
        queues.changed.clear()

    def open_queues(self) -> Mapping[str, LeafQueue]:
        """Return the queues of the leaves that are not shut."""
        if not self._shut:
            return self._queues
        return {leaf: queue for leaf, queue in self._queues.items() if leaf not in self._shut}

    def begin(self, pass_context: PassContext | None) -> None:
        """Begin a pass: read what has changed."""
        self._admitted.clear()
        self._walks.clear()
        touched = {
            leaf: demands
            for leaf, demands in self._touched.items()
            if leaf in self._held or self._is_active(leaf)
        }
        self._touched.clear()
        moved = {leaf for leaf in touched if self._weigh(leaf)}
        remeasured = self.share_tree.redivide()
        for leaf, demands in touched.items():
            self._build(leaf, demands, has_moved=leaf in moved)
        if len(touched) > _MANY_LEAVES:
            for demand_group in self.demand_groups.values():
                demand_group.refresh()
        for node in remeasured:
            for leaf in _leaves(node):
                for demand_group in self.demand_groups.values():
                    demand_group.note(leaf)
                self._lift_late(leaf)
        if self.beyond or self.share_tree.last:
            self._find_last()
        if pass_context is not None and pass_context.patience.reserves:
            self._date(pass_context)

    def _find_last(self) -> None:
        """Find the nodes that are served last: those of `beyond` of which a sibling comes first."""
        rivals: dict[str, bool] = {}
        last = frozenset([path for path in self.beyond if self._has_rival(path, rivals)])
        moved, self.share_tree.last = last ^ self.share_tree.last, last
        for path in moved:
            for demand_group in self.demand_groups.values():
                demand_group.note(path)
            self._lift_late(path)

    def _has_rival(self, path: str, known: dict[str, bool]) -> bool:
        """Return whether a sibling comes first; `known` keeps that by the node above them."""
        node = self.share_tree.nodes.get(path)
        if node is None or node.above is None:
            return False
        above = node.above
        if above.path not in known:
            known[above.path] = any(
                each not in self.beyond and self._waits(below)
                for each, below in above.below.items()
            )
        return known[above.path]

    def _waits(self, node: ShareNode) -> bool:
        return node.path in self.first or any(map(self._waits, node.below.values()))

    def head(self, leaf: str, demand: Vector) -> Entry | None:
        """Return the leaf's first job of this demand that the pass has not admitted, or None."""
        if leaf in self.apart:
            return self._head(self._queue(leaf), leaf, demand)
        heads = self._heads.get(leaf)
        return None if heads is None else heads.get(demand)

    def _head(self, queue: LeafQueue | None, leaf: str, demand: Vector) -> Entry | None:
        line = None if queue is None else queue.groups.get(demand)
        if line is None:
            return None
        first = line.first
        if first[1] not in self._admitted:
            return first
        walk = self._walks.get((leaf, demand))
        if walk is None:
            walk = self._walks[leaf, demand] = _LineWalk(iter(line))
        return walk.head(self._admitted)

    def take(
        self, leaf: str, demand: Vector, job_id: int, *, pass_context: PassContext | None
    ) -> None:
        """Enter a job that the pass has admitted; with a context, also among the late leaves."""
        self.touch(leaf, (demand,))
        self._admitted.add(job_id)
        held, recent = self._held[leaf]
        self._held[leaf] = plus(held, demand), recent
        self.share_tree.hold(leaf, demand)
        if leaf in self.apart:
            self._read(leaf, demand)
        self._find_place(leaf, (demand,), has_moved=True)
        if pass_context is not None:
            is_late = leaf in self.first and pass_context.is_late(self._job(leaf))
            if is_late or leaf in self._late:
                self._set_late(leaf, is_late=is_late)
                self._set_age(leaf, pass_context if is_late else None)
            self._lift_late(leaf)

    def longest_waiting(self) -> Iterator[str]:
        """Return the late leaves, the one whose first job has waited longest first."""
        return (leaf for _, leaf in self._longest_waiting)

    def order(self) -> list[str]:
        """Return the leaves that still wait, in the order of service if everything fitted."""
        priority_tree = PriorityTree(self.share_tree, self.past_usage)
        for leaf in self.first:
            priority_tree.put(leaf, self._job(leaf))
        found = []
        while (leaf_ := priority_tree.next_leaf()) is not None:
            found.append(leaf_)
            priority_tree.put(leaf_, None)
        return found

    def _is_active(self, leaf: str) -> bool:
        return leaf in self._queues or leaf in self._used or leaf in self._recent

    def _weigh(self, leaf: str) -> bool:
        """Enter the leaf's holdings in the share tree. Returns whether they have changed."""
        before = self._held.pop(leaf, None)
        held, recent = before or (self._nothing, self._nothing)
        is_active = self._is_active(leaf)
        if is_active:
            if before is None:
                self.share_tree.enter(leaf)
            now = self._used.get(leaf, self._nothing), self._recent.get(leaf, self._nothing)
            self._held[leaf] = now
        else:
            now = self._nothing, self._nothing
        self.share_tree.hold(leaf, minus(now[0], held))
        if now[1] != recent:
            self.share_tree.remember(leaf, minus(now[1], recent))
        if not is_active:
            self.share_tree.leave(leaf)
        return now != before

    def _build(self, leaf: str, demands: set[Vector] | None, *, has_moved: bool) -> None:
        self._take_apart(leaf, demands)
        self._find_place(leaf, demands, has_moved=has_moved)
        self._lift_late(leaf)
        if leaf in self._late:
            self._set_late(leaf, is_late=True)
        self._undated.add(leaf)

    def _find_place(
        self, leaf: str, demands: Collection[Vector] | None, *, has_moved: bool
    ) -> None:
        """Find the leaf's first jobs, and enter it with them in the demand groups. `demands`: see
        `touch`; `has_moved` says that what the leaf holds has changed."""
        has_changed = self._read_heads(leaf, demands)
        if leaf in self.apart:
            self._find_first_of(leaf, self.apart[leaf])
        elif has_changed:
            self._find_first(leaf)
        for demand in self._heads.get(leaf, ()):
            self.demand_groups[demand].note(leaf)
        place, pool = self._place(leaf), parent_of(leaf)
        if pool != TOP and (has_moved or place != self._places.get(leaf, _NOWHERE)):
            # The pools above the leaf may be in any group.
            for demand_group in self.demand_groups.values():
                demand_group.note(pool)
        if place is _NOWHERE:
            self._places.pop(leaf, None)
        else:
            self._places[leaf] = place

    def _read_heads(self, leaf: str, demands: Collection[Vector] | None) -> bool:
        """Read the first job of each of these demands (see `touch`), of all demands if the leaf
        has not been read before, and enter them in the demand groups. Returns whether any of them
        is another one now."""
        heads, queue = self._heads.get(leaf), self._queue(leaf)
        if leaf in self.apart:
            queue, demands = None, None
        if leaf in self._unread:
            self._unread.remove(leaf)
            demands = None
        if heads is None:
            if queue is None:
                return False
            heads, demands = self._heads.setdefault(leaf, {}), None
        if demands is None:
            demands = {*heads, *(() if queue is None else queue.groups)}
        has_changed = False
        for demand in demands:
            entry = self._head(queue, leaf, demand)
            if entry != heads.get(demand):
                has_changed = True
                self._set_head(leaf, heads, demand, entry)
        if not heads:
            del self._heads[leaf]
        return has_changed

    def _set_head(
        self, leaf: str, heads: dict[Vector, Entry], demand: Vector, entry: Entry | None
    ) -> None:
        """Set the leaf's first job of this demand; `_find_place` notes it in the group."""
        group = self.demand_groups.get(demand)
        if group is None:
            group = self.demand_groups[demand] = DemandGroup(
                demand, self.share_tree, self.past_usage, self.first
            )
        if entry is not None:
            heads[demand] = entry
            group.jobs[leaf] = entry[1]
        else:
            del heads[demand], group.jobs[leaf]
            group.note(leaf)
        if not group.jobs:
            del self.demand_groups[demand]

    def _find_first(self, leaf: str) -> None:
        """Find the first job of a leaf that does not stand apart."""
        found = [(entry, demand) for demand, entry in self._heads.get(leaf, {}).items()]
        if not found:
            self.first.pop(leaf, None)
            return
        first = min(found)
        most = self.share_tree.most(leaf)
        if not fits(first[1], most):
            first = min([each for each in found if fits(each[1], most)], default=first)
        self.first[leaf] = first

    def _take_apart(self, leaf: str, demands: set[Vector] | None) -> None:
        """Let the leaf stand apart if it waits for many vectors. `demands`: see `touch`."""
        queue = self._queues.get(leaf)
        if queue is None or len(queue.groups) <= self._few:
            if self.apart.pop(leaf, None) is not None:
                self.first.pop(leaf, None)
            return
        if demands is None or leaf not in self.apart:
            self.apart[leaf] = Demands(self.shares.capacity)
            demands = set(queue.groups)
        for demand in demands:
            self._read(leaf, demand)

    def _read(self, leaf: str, demand: Vector) -> None:
        """Read the first job of this demand of a leaf that stands apart."""
        entry = self._head(self._queues.get(leaf), leaf, demand)
        if entry is None:
            self.apart[leaf].drop(demand)
        else:
            self.apart[leaf].put(demand, entry, self._limit_s(entry[1]))

    def _lift_late(self, leaf: str) -> None:
        for priority_tree in self.late.values():
            priority_tree.lift(leaf)

    def _place(self, leaf: str) -> _Place:
        if leaf not in self.first:
            return _NOWHERE
        past_usage = tuple([self.past_usage.get(path, NEVER) for path in path_up(leaf)])
        return _Place(self._job(leaf), past_usage)

    def _find_first_of(self, leaf: str, demands: Demands) -> None:
        """Find the first job of a leaf that stands apart."""
        item = None
        if leaf not in self._shut:
            item = demands.first((*self.share_tree.most(leaf), ANY_LENGTH)) or demands.first()
        if item is not None:
            self.first[leaf] = item.entry, item.demand
        else:
            self.first.pop(leaf, None)

    def _queue(self, leaf: str) -> LeafQueue | None:
        return None if leaf in self._shut else self._queues.get(leaf)

    def _job(self, leaf: str) -> int:
        (_, job_id), _ = self.first[leaf]
        return job_id

    def _date(self, pass_context: PassContext) -> None:
        """Find the leaves that are late by now."""
        if pass_context.now_s < self._dated_s:
            # The clock has been set back.
            self._undated.update(self.first)
            self._undated.update(self._late)
        self._dated_s = pass_context.now_s
        for leaf in self._undated:
            is_late = False
            if leaf in self.first:
                since_s = pass_context.since_s(self._job(leaf))
                is_late = pass_context.is_late_since(since_s)
            if leaf in self.first and not is_late:
                self._young.put((since_s, leaf))
            else:
                self._young.drop(leaf)
            if is_late is not (leaf in self._late):
                self._set_late(leaf, is_late=is_late)
            if is_late or leaf in self._ages:
                self._set_age(leaf, pass_context if is_late else None)
        self._undated.clear()
        while (oldest := self._young.least()) is not None and pass_context.is_late(
            self._job(oldest[1])
        ):
            self._young.drop(oldest[1])
            self._set_late(oldest[1], is_late=True)
            self._set_age(oldest[1], pass_context)

    def _set_age(self, leaf: str, pass_context: PassContext | None) -> None:
        """Enter the leaf among the longest waiting, or remove it if `pass_context` is None."""
        before = self._ages.pop(leaf, None)
        if before is not None:
            del self._longest_waiting[bisect_left(self._longest_waiting, (before, leaf))]
        if pass_context is not None:
            self._ages[leaf] = pass_context.since_s(self._job(leaf))
            insort(self._longest_waiting, (self._ages[leaf], leaf))

    def _set_late(self, leaf: str, *, is_late: bool) -> None:
        before = self._late.pop(leaf, None)
        now = None
        if is_late and leaf in self.first:
            now = self.first[leaf][1], leaf in self.apart
            self._late[leaf] = now
            if now not in self.late:
                self.late[now] = PriorityTree(self.share_tree, self.past_usage, now[0])
            self.late[now].put(leaf, self._job(leaf))
        if before is not None and before != now:
            self.late[before].put(leaf, None)
            if not self.late[before].heads:
                del self.late[before]


def _leaves(node: ShareNode) -> Iterator[str]:
    if node.competes:
        yield node.path
    for child in node.below.values():
        yield from _leaves(child)
