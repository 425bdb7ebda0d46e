"""The index of waiting jobs, stored from pass to pass and derived from queues, allocations and
usage.

Only leaves that change (`touch`) are read again before the next pass. A pass enters the jobs that
it admits and touches their leaves, because its decisions count only once the ledger has applied
them.

Of the jobs of a leaf with one demand vector, a pass looks only at the first that no gate blocks. A
vector that does not fit is skipped, however many leaves wait for it; and where more vectors than
leaves wait, a leaf is skipped if the least that it needs of each resource does not fit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice, repeat
from math import inf

from drfd.core.fairness.service_order import PassOver, Rank, ServiceOrder, Turns
from drfd.core.fairness.share_tree import FairShare, ShareNode, ShareTree
from drfd.core.ledger.queue import Changes, Entry, JobClass, LeafQueue, Limited, Place, Queues
from drfd.core.model.machine import FreeResources, Vector, fits, minus, plus
from drfd.core.scheduling.backfill import PassContext

#: The first waiting job of a line: its entry in the queue, and its demand.
Head = tuple[Entry, Vector]
#: The least that a leaf's jobs need is computed anew when one in so many of its demands has gone.
_STALE = 16
#: The shortest estimate is looked for among so many demands of a leaf at most.
_FEW = 64
#: Returns the order of a policy. `Mapping` has the decayed usage of each node, which decides ties.
MakeRank = Callable[[ShareTree, Mapping[str, float]], Rank]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafTables:
    """The tables that passes read, by leaf. They may change between passes."""

    queues: Mapping[str, LeafQueue]
    #: The resources that each leaf holds.
    used: Mapping[str, Vector]
    shares: FairShare
    #: Where limits of arrays and groups are counted, also where an explanation looks at few queues.
    all_queues: Queues = field(default_factory=Queues)
    #: The decayed usage of each node, which decides ties; see `core.fairness.service_order`.
    past_usage: Mapping[str, float] = field(default_factory=dict)
    #: The resources of recently ended short jobs by leaf, which count as held, but not against
    #: limits; see `core.fairness.service_order.ShortJobs`.
    recent: Mapping[str, Vector] = field(default_factory=dict)


class Ranked:
    """Leaves in the order of a number that each has."""

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.line: list[tuple[float, str]] = []

    def put(self, leaf: str, number: float | None) -> None:
        """Give the leaf its number; None removes it."""
        before = self.numbers.pop(leaf, None)
        if number is not None:
            self.numbers[leaf] = number
        if number == before:
            return
        if before is not None:
            del self.line[bisect_left(self.line, (before, leaf))]
        if number is not None:
            insort(self.line, (number, leaf))


class WaitIndex:
    """The waiting jobs by leaf and demand vector, and the share tree of the active leaves."""

    def __init__(self, tables: LeafTables, share_tree: ShareTree | None = None) -> None:
        """`share_tree`, if it is given, has all leaves and what they hold already: the tables name
        those of it that wait, and no resources."""
        self.tables, self.shares = tables, tables.shares
        self.share_tree = share_tree or ShareTree(tables.shares)
        #: The first waiting job of each demand of a leaf, by demand, and in the order of the queue.
        #: Only demands that are touched are read again.
        self.heads: dict[str, dict[Vector, Entry]] = {}
        self.heads_in_order: dict[str, list[Head]] = {}
        #: See `least_needed`; and how many demands of the leaf have gone since it was computed.
        self._least: dict[str, tuple[Vector, int]] = {}
        #: Each demand vector that any leaf waits for → its first jobs in order, with their leaves.
        self.alike: dict[Vector, list[tuple[Entry, str]]] = {}
        #: The first waiting job of each leaf. Jobs that can never start (which a change of the
        #: configuration leaves behind) count only if the leaf has no others.
        self.first: dict[str, Head] = {}
        #: The time since which that job may start (Unix time).
        self._since_s = Ranked()
        self._nothing: Vector = (0,) * len(tables.shares.capacity)
        #: Leaves that have changed → the demands for which their queues have.
        self._touched: dict[str, set[Vector]] = {
            leaf: set() for leaf in [*tables.queues, *tables.used, *tables.recent]
        }
        #: The `used` and `recent` resources of each active leaf that are entered in `share_tree`.
        self._held: dict[str, tuple[Vector, Vector]] = {}
        if share_tree is not None:
            self._held = dict.fromkeys(tables.queues, (self._nothing, self._nothing))
        #: The time of the latest pass (Unix time).
        self._latest_s = -inf
        #: The shortest estimated run time of the first jobs of each leaf in seconds, or less where
        #: they are many, but for leaves in which one has changed (see `shortest_s`).
        self.shortest = Ranked()
        self._unmeasured = set[str]()
        self._make_rank: MakeRank | None = None
        self._order: ServiceOrder
        #: See `begin`.
        self._lead_room: FreeResources | None = None
        #: The jobs that the present pass has admitted, how many of each array and group with a
        #: limit and of each class, and the first job of each class behind those admitted, with the
        #: classes of such jobs.
        self._admitted: set[int] = set()
        self._started, self._taken = Counter[Limited](), Counter[Place]()
        self._firsts: dict[Place, Entry] = {}
        self._classes: dict[Entry, JobClass] = {}

    def touch(self, leaf: str, demands: Iterable[Vector] = ()) -> None:
        """Read the leaf again before the next pass, because its queue has changed for these
        demands, or the resources that it or its pools hold or have used."""
        self._touched.setdefault(leaf, set()).update(demands)

    def forget_lengths(self, leaf: str) -> None:
        """Ask again for the estimated run times of all jobs of the leaf."""
        self.shortest.put(leaf, None)
        self._unmeasured.add(leaf)

    def catch_up(self, changes: Changes) -> None:
        """Touch the leaves that have changed since the last call, and clear their table."""
        for leaf, demands in changes.leaves.items():
            self.touch(leaf, demands)
        changes.leaves.clear()

    def loses_leaves(self, changes: Changes) -> bool:
        """Return whether these changes divide the machine among fewer leaves."""
        return any(leaf in self._held and not self._is_active(leaf) for leaf in changes.leaves)

    def begin(
        self,
        pass_context: PassContext,
        make_rank: MakeRank,
        lead_room: FreeResources | None = None,
    ) -> None:
        """Begin a pass of a policy: read what has changed. In the order of service, jobs that do
        not fit into `lead_room` do not count as the next ones of their leaves.

        Keys are made of shares and first jobs, so these are read before leaves are put
        into the order."""
        self._admitted.clear()
        self._started.clear()
        self._taken.clear()
        self._firsts.clear()
        self._classes.clear()
        touched = {
            leaf: demands
            for leaf, demands in self._touched.items()
            if leaf in self._held or self._is_active(leaf)
        }
        self._touched.clear()
        for leaf, _ in pass_context.suspended.values():
            # What is left of a suspended job changes with time.
            self.forget_lengths(leaf)
        for leaf, demands in touched.items():
            if demands:
                self.forget_lengths(leaf)
            self._weigh(leaf)
        remeasured = self.share_tree.redivide()
        for leaf, demands in touched.items():
            self._read(leaf, demands)
        changed = {*touched, *(leaf for node in remeasured for leaf in _leaves(node))}
        if make_rank is not self._make_rank or lead_room != self._lead_room:
            self._make_rank, self._lead_room, changed = make_rank, lead_room, set(self.first)
            rank = make_rank(self.share_tree, self.tables.past_usage)
            self._order = ServiceOrder(self.share_tree, rank)
        for path in changed:
            self._put(path)
        is_set_back, self._latest_s = pass_context.now_s < self._latest_s, pass_context.now_s
        # A time that was in the past may be in the future now.
        for leaf in {*touched, *self.first} if is_set_back else touched:
            self._set_since(leaf, pass_context)

    def turns(self, pass_over: PassOver = lambda path, keys: 0) -> Turns:
        """Return the waiting leaves that are not passed over, in the order of service."""
        return Turns(self._order, pass_over)

    def order(self) -> Iterator[str]:
        """Yield the leaves that still wait, in the order of service if everything fitted."""
        turns = self.turns()
        while (leaf := turns.first()) is not None:
            yield leaf
            turns.drop(leaf)

    def take(self, leaf: str, head: Head, pass_context: PassContext) -> bool:
        """Enter a job that the pass has admitted. Returns whether limits are reached now for
        jobs of other leaves."""
        entry, demand = head
        changed, queues = {leaf: {demand}}, self.tables.all_queues
        self._admitted.add(entry[1])
        cls = self._class_of(leaf, head)
        self._taken[leaf, demand, cls] += 1
        for key, _ in cls.limits:
            self._started[key] += 1
            for path, asks, _ in queues.closed_by(key, queues.running[key] + self._started[key]):
                if path in self.heads:
                    changed.setdefault(path, set()).add(asks)
        held, recent = self._held[leaf]
        self._held[leaf] = plus(held, demand), recent
        self.share_tree.hold(leaf, demand)
        for path, demands in changed.items():
            self.touch(path, demands)
            self._read(path, demands)
            self._put(path)
            self._set_since(path, pass_context)
        return len(changed) > 1

    def _class_of(self, leaf: str, head: Head) -> JobClass:
        entry, demand = head
        if entry in self._classes:
            return self._classes[entry]
        line = self.tables.queues.get(leaf, {}).get(demand)
        # A reserved job may be in a part of the queues that this pass does not see.
        return JobClass() if line is None else line.class_of(entry)

    def is_open(self, leaf: str, head: Head) -> bool:
        """Return whether no limit of its class is reached in this pass for a job in a queue."""
        return self.tables.all_queues.is_open(self._class_of(leaf, head), self._started)

    def count(self, leaf: str, demand: Vector) -> int:
        """Return how many more jobs of a leaf that have this demand its limits let start."""
        found, room = 0, self.tables.all_queues.room
        for cls, alike in self.tables.queues[leaf][demand].items():
            left = len(alike) - self._taken[leaf, demand, cls]
            found += min([left, *[room(limit, self._started) for limit in cls.limits]])
        return found

    def first_jobs(self, demands: Iterable[Vector]) -> Iterator[tuple[Entry, str, Vector]]:
        """Yield the first job of each of these demands of each leaf, with both, in order; perhaps
        those of other demands, too. What is merged are demands or leaves, whichever are fewer."""
        if not self.are_unlike:
            alike = [zip(self.alike[each], repeat(each)) for each in demands]
            return ((entry, leaf, demand) for (entry, leaf), demand in merge(*alike))
        lines = [zip(line, repeat(leaf)) for leaf, line in self.heads_in_order.items()]
        return ((entry, leaf, demand) for (entry, demand), leaf in merge(*lines))

    @property
    def are_unlike(self) -> bool:
        """Return whether more demand vectors than leaves wait."""
        return len(self.alike) > len(self.heads)

    def least_needed(self, leaf: str) -> Vector:
        """Return the least that any of the leaf's first jobs needs, of each resource by itself, or
        less: it is computed anew only when some of the demands have gone."""
        least, removed = self._least.get(leaf, (self._nothing, 0))
        if leaf not in self._least or removed * _STALE > len(self.heads[leaf]):
            least = tuple(map(min, zip(*self.heads[leaf], strict=True)))
            self._least[leaf] = least, 0
        return least

    def shortest_s(self, pass_context: PassContext) -> float:
        """Bring `shortest` up to date, and return the least of it."""
        for leaf in self._unmeasured & self.heads.keys():
            heads = self.heads[leaf]
            first = islice(heads.values(), _FEW)
            lengths = [pass_context.length_s(job_id) for _, job_id in first]
            self.shortest.put(leaf, min(lengths) if len(lengths) == len(heads) else 0.0)
        self._unmeasured.clear()
        return self.shortest.line[0][0] if self.shortest.line else inf

    def late_leaves(self, pass_context: PassContext) -> Iterator[str]:
        """Yield the leaves whose first job has waited long enough for a reservation, the one that
        has waited longest first."""
        return (leaf for _, leaf in islice(self._since_s.line, self._count_late(pass_context)))

    def is_late(self, leaf: str, pass_context: PassContext) -> bool:
        """Return whether the leaf's first job has waited long enough for a reservation."""
        since_s = self._since_s.numbers.get(leaf)
        return since_s is not None and pass_context.late_s(since_s) <= pass_context.now_s

    def next_late_s(self, pass_context: PassContext) -> float:
        """Return the time at which the next of these leaves is late, or infinity (Unix time)."""
        line, at = self._since_s.line, self._count_late(pass_context)
        return pass_context.late_s(line[at][0]) if at < len(line) else inf

    def _count_late(self, pass_context: PassContext) -> int:
        line, now_s = self._since_s.line, pass_context.now_s
        if not line or pass_context.late_s(line[0][0]) > now_s:
            return 0
        return bisect_right(line, now_s, key=lambda each: pass_context.late_s(each[0]))

    def leads(self, leaf: str) -> Head | None:
        """Return the job that counts as the next one of the leaf in the order of service."""
        first, room = self.first.get(leaf), self._lead_room
        if first is None or room is None:
            return first
        most = self.shares.most(leaf)
        able = (
            head for head in self.heads_in_order[leaf] if room.fits(head[1]) and fits(head[1], most)
        )
        return next(able, None)

    def _put(self, path: str) -> None:
        first = self.leads(path)
        self._order.put(path, None if first is None else first[0][1])

    def _is_active(self, leaf: str) -> bool:
        tables = self.tables
        return leaf in tables.queues or leaf in tables.used or leaf in tables.recent

    def _weigh(self, leaf: str) -> None:
        """Enter the leaf's holdings in the share tree."""
        before = self._held.pop(leaf, None)
        held, recent = before or (self._nothing, self._nothing)
        now = self._nothing, self._nothing
        is_active = self._is_active(leaf)
        if is_active:
            if before is None:
                self.share_tree.enter(leaf)
            tables = self.tables
            now = tables.used.get(leaf, self._nothing), tables.recent.get(leaf, self._nothing)
            self._held[leaf] = now
        if now[0] != held:
            self.share_tree.hold(leaf, minus(now[0], held))
        if now[1] != recent:
            self.share_tree.hold_recent(leaf, minus(now[1], recent))
        if not is_active:
            self.share_tree.leave(leaf)

    def _read(self, leaf: str, demands: Collection[Vector]) -> None:
        """Read the first job of each of these demands, and of all if the leaf was not waiting."""
        queue = self.tables.queues.get(leaf)
        heads = self.heads.get(leaf)
        if heads is None:
            if queue is None:
                return
            heads, demands = self.heads.setdefault(leaf, {}), queue
            self.heads_in_order[leaf] = []
        for demand in demands:
            entry = self._head(queue, leaf, demand)
            if entry != heads.get(demand):
                self._set_head(leaf, demand, entry)
        if not heads:
            del self.heads[leaf], self.heads_in_order[leaf]
            self._least.pop(leaf, None)
            self.forget_lengths(leaf)
            self.first.pop(leaf, None)
            return
        most = self.shares.most(leaf)
        line = self.heads_in_order[leaf]
        self.first[leaf] = next((head for head in line if fits(head[1], most)), line[0])

    def _set_head(self, leaf: str, demand: Vector, entry: Entry | None) -> None:
        heads, line = self.heads[leaf], self.heads_in_order[leaf]
        self.forget_lengths(leaf)
        before = heads.pop(demand, None)
        if leaf in self._least and (before is None or entry is None):
            least, removed = self._least[leaf]
            if entry is not None:
                least = tuple(map(min, least, demand))
            self._least[leaf] = least, removed + (entry is None)
        alike = self.alike.setdefault(demand, [])
        if before is not None:
            del line[bisect_left(line, (before, demand))]
            del alike[bisect_left(alike, (before, leaf))]
        if entry is not None:
            heads[demand] = entry
            insort(line, (entry, demand))
            insort(alike, (entry, leaf))
        elif not alike:
            del self.alike[demand]

    def _head(self, queue: LeafQueue | None, leaf: str, demand: Vector) -> Entry | None:
        """Return the leaf's first job of this demand that may start beside those that the pass has
        admitted, or None."""
        line = None if queue is None else queue.get(demand)
        if line is None:
            return None
        if not self._admitted:
            return line.first
        found: Entry | None = None
        for head, cls in line.heads:
            if found is not None and found < head:
                break
            place = leaf, demand, cls
            first: Entry | None = self._firsts.get(place, head)
            while first is not None and first[1] in self._admitted:
                first = line[cls].after(first)
            if first is None:
                continue
            self._firsts[place] = first
            is_open = self.tables.all_queues.is_open(cls, self._started)
            if is_open and (found is None or first < found):
                found, self._classes[first] = first, cls
        return found

    def _set_since(self, leaf: str, pass_context: PassContext) -> None:
        first = self.first.get(leaf)
        self._since_s.put(leaf, None if first is None else pass_context.since_s(first[0][1]))


def _leaves(node: ShareNode) -> Iterator[str]:
    if node.competes:
        yield node.path
    for child in node.below.values():
        yield from _leaves(child)
