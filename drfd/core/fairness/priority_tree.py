"""The order of service: waiting leaves in the tree, the least satisfied first.

At every level of the tree the least satisfied child comes first. The satisfaction of an inner node
is the minimum of its own and that of the nodes below it (min-satisfaction). Ties go to the node
with less decayed usage, then to the node whose next job was submitted first, then to the name. A
pool's next job is the next job of the child that comes first in the pool. If the waiting jobs have
several demand vectors, there is one tree for each vector, and a pool's key is the least of its keys
in these trees.

Nodes are compared by their level over their weight, not by their satisfaction: both order siblings
in the same way, but satisfaction changes for all of them when one comes or goes. With s the share
that a node holds of its entitlement and w its weight, the key of a leaf is s / w; that of an inner
node is min(s, W · least key of its children) / w, with W the sum of the children's weights. So a
change of one leaf changes the keys of the nodes above it, and no others: the work grows with the
depth of the tree and the logarithm of its width.

`ServingOrder` and `Levels` give the order to explanations; they compute it when it is read.

Past usage enters the order in two ways. `DecayedUsage` decides ties and nothing else. `ShortJobs`
has the jobs that ended less than `Rules.min_hold_s` (the key `min_charge_time`) after their start:
until that time is over, the leaves are compared as if these jobs still ran (as with Armada's short
job penalty). Otherwise a user with a stream of one-second jobs would always seem to hold nothing,
and the user's next job would always start first. The resources of these jobs are free, and do not
count against limits, so that nothing idles.
"""

from __future__ import annotations

from collections import Counter, UserList
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from heapq import heapify, heappop, heappush
from math import expm1, inf, log, log2
from typing import Any, Generic, NamedTuple, TypeVar

from drfd.core.amounts.vectors import Vector, fits, minus, plus
from drfd.core.fairness.entitlement import Level, over
from drfd.core.fairness.share_tree import TOP, ShareNode, ShareTree, parent_of, path_up


class ServingOrder(UserList[str]):
    """The waiting leaves in the order in which they are served, computed on first use."""

    def __init__(self, work_out: Callable[[], list[str]]) -> None:
        self._work_out = work_out

    @cached_property
    def data(self) -> list[str]:  # type: ignore[override]  # the attribute of the base class
        return self._work_out()

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)


class Levels:
    """How satisfied nodes are, and would be if leaves held more or less."""

    def __init__(self, share_tree: ShareTree, given_back: Mapping[str, Vector]) -> None:
        """`given_back` is to be taken from what these nodes hold."""
        self._share_tree = share_tree
        self._used = {
            path: minus(share_tree.used[path], amounts)
            for path, amounts in given_back.items()
            if path in share_tree.used
        }
        self._known: dict[str, Fraction] = {}

    def hold(self, leaf: str, demand: Vector) -> None:
        """Let the leaf, and all nodes above it, hold `demand` more."""
        for path in path_up(leaf):
            self._used[path] = plus(self._used_of(path), demand)
            self._known.pop(path, None)

    def keeps_promise(self, leaf: str, demand: Vector) -> bool:
        """Return whether the leaf, or a pool that it is in, would still hold no more than it is
        promised with `demand` more."""
        nodes = self._share_tree.nodes
        return any(
            node.entitlement.level(plus(self._used_of(node.path), demand))
            <= node.factor * node.entitlement.unit
            for node in map(nodes.__getitem__, self._share_tree.promising(leaf))
        )

    def has_less(self, other: str, leaf: str) -> bool:
        """Return whether `other`, or a pool that it is in, is less satisfied than `leaf` where
        their paths separate."""
        ours, theirs = path_up(leaf), path_up(other)
        while len(ours) > 1 and len(theirs) > 1 and ours[-1] == theirs[-1]:
            ours, theirs = ours[:-1], theirs[:-1]
        # A pool may be as satisfied as ours and contain a leaf that is less so.
        return min(map(self._level, theirs)) < min(map(self._level, ours))

    def is_within_limits(self, leaf: str, demand: Vector) -> bool:
        """Return whether the limits let the leaf, and all nodes above it, hold `demand` more."""
        nodes = [self._share_tree.nodes[path] for path in path_up(leaf)]
        return all(
            fits(demand, minus(node.limit, self._used_of(node.path)))
            for node in nodes
            if node.limit is not None
        )

    def first_of(self, heads: Mapping[str, int], favoured: str) -> str:
        """Return the leaf that is served first of those in `heads`, each with its first job.
        `favoured` wins ties, then the leaf with the older job."""
        roads = {leaf: path_up(leaf)[::-1] for leaf in heads}
        depth = 0
        while len(roads) > 1:
            # A node is as satisfied as the least satisfied of itself and of those below it.
            keys: dict[str, tuple[bool, Fraction, bool, int]] = {}
            for leaf, road in roads.items():
                is_last = road[depth] in self._share_tree.last
                key = is_last, min(map(self._level, road[depth:])), leaf != favoured, heads[leaf]
                keys[road[depth]] = min(keys.get(road[depth], key), key)
            first = min(keys, key=keys.__getitem__)
            roads = {leaf: road for leaf, road in roads.items() if road[depth] == first}
            depth += 1
        return next(iter(roads))

    def _used_of(self, path: str) -> Vector:
        return self._used.get(path, self._share_tree.used[path])

    def _level(self, path: str) -> Fraction:
        if path not in self._known:
            self._known[path] = self._share_tree.satisfaction_key(path, self._used_of(path))
        return self._known[path]


#: Is added to the integer part of the level of nodes that are served last among their siblings.
_LAST = 1 << 256
#: The decayed usage of a node that has none (see `DecayedUsage`).
NEVER = float("-inf")


class SiblingKey(NamedTuple):
    """The key by which a node is compared with its siblings, field by field."""

    #: The integer part of the level, which makes most comparisons of fractions unnecessary. Of a
    #: node that is served last (`ShareTree.last`), it is more than any level, so that the node
    #: keeps no promise.
    rough: int
    level: Level
    past_usage: float
    #: The next job.
    head: int
    path: str


Key = TypeVar("Key", bound=tuple[Any, ...])


class IndexedHeap(Generic[Key]):
    """A heap in which the key of a name can be replaced. The last item of a key is the name."""

    __slots__ = ("_heap", "keys")

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        #: Every present key, and some old keys, which are dropped when they reach the top.
        self._heap: list[Key] = []

    def put(self, key: Key) -> None:
        name = key[-1]
        if self.keys.get(name) == key:
            return
        self.keys[name] = key
        heappush(self._heap, key)
        if len(self._heap) > 2 * len(self.keys) + 16:
            self._heap = list(self.keys.values())
            heapify(self._heap)

    def drop(self, name: str) -> None:
        self.keys.pop(name, None)

    def least(self) -> Key | None:
        heap = self._heap
        while heap and self.keys.get(heap[0][-1]) is not heap[0]:
            heappop(heap)
        return heap[0] if heap else None


#: The number of nodes whose keys are outdated in one tree at most, so that a tree that has not been
#: read for long is brought up to date in a few milliseconds.
_MOST_STALE = 1000


class PriorityTree:
    """The leaves with waiting jobs of one demand vector, or of any, in the order of service.

    Keys are made when they are read: there is a tree for each demand, every change of a leaf
    concerns all trees in which it waits, and a pass reads those whose demand fits.
    """

    def __init__(
        self,
        share_tree: ShareTree,
        past_usage: Mapping[str, float],
        demand: Vector | None = None,
        *,
        is_after: bool = False,
    ) -> None:
        """Leave out nodes whose limits a job of this `demand` would break. With `is_after`,
        nodes are compared as if they also held `demand`."""
        self._share_tree = share_tree
        self._past_usage = past_usage
        self._demand = demand
        self._more = demand if is_after else None
        #: The next job of each leaf in the tree.
        self.heads: dict[str, int] = {}
        #: The keys of the children of each node.
        self._ranks: dict[str, IndexedHeap[SiblingKey]] = {}
        #: Nodes that are excluded until `take_back`.
        self._aside: set[str] = set()
        #: Nodes whose keys, and those of the nodes above them, are made anew when a key is read.
        self._stale: set[str] = set()

    def put(self, leaf: str, head: int | None) -> None:
        """Enter the leaf with its next job `head`, or remove it if `head` is None."""
        if head is not None:
            self.heads[leaf] = head
        else:
            self.heads.pop(leaf, None)
        self.lift(leaf)

    def lift(self, path: str) -> None:
        """Update the keys of the node and of all nodes above it, after a change of what the node
        holds or of the leaves below it."""
        self._stale.add(path)
        if len(self._stale) > _MOST_STALE:
            self.refresh()

    def set_aside(self, path: str) -> None:
        """Exclude the node until `take_back`."""
        self._aside.add(path)
        self.lift(path)

    def take_back(self) -> None:
        """Restore all excluded nodes."""
        aside, self._aside = self._aside, set()
        for path in aside:
            self.lift(path)

    def least(self, path: str) -> SiblingKey | None:
        """Return the key of the child that is served first, or None if no leaf waits below."""
        if self._stale:
            self.refresh()
        rank = self._ranks.get(path)
        return None if rank is None else rank.least()

    def key_of(self, path: str) -> SiblingKey | None:
        """Return the key of the node, or None if it cannot be served."""
        if self._stale:
            self.refresh()
        rank = self._ranks.get(parent_of(path))
        return None if rank is None else rank.keys.get(path)

    def serves(self, path: str, above: str) -> bool:
        """Return whether the node, a child of `above`, can be served."""
        if self._stale:
            self.refresh()
        rank = self._ranks.get(above)
        return rank is not None and path in rank.keys

    def share(self, node: ShareNode) -> Level:
        """Return the node's level over its weight."""
        if self._more is None:
            return self._share_tree.share(node)
        used = self._share_tree.used[node.path]
        return over(node.entitlement.level(plus(used, self._more)), node.weight)

    def next_leaf(self) -> str | None:
        """Return the leaf that is served first, or None if no leaf waits."""
        path = TOP
        while path not in self.heads:
            key = self.least(path)
            if key is None:
                return None
            path = key.path
        return path

    def refresh(self) -> None:
        """Make the keys of stale nodes anew, and those of the nodes above them."""
        stale, self._stale = self._stale, set()
        if len(stale) == 1:
            for path, above in _road(*stale):
                self._update(path, above)
            return
        children_of_top = set[str]()
        by_depth: dict[int, dict[str, str]] = {}
        for leaf in stale:
            *below, (last, _) = _road(leaf)
            children_of_top.add(last)
            for depth, (path, above) in enumerate(reversed(below)):
                by_depth.setdefault(depth, {})[path] = above
        # A node is known by its children's keys, so the deepest come first.
        for depth in sorted(by_depth, reverse=True):
            for path, above in by_depth[depth].items():
                self._update(path, above)
        for path in children_of_top:
            self._update(path, TOP)

    def _update(self, path: str, above: str) -> None:
        key = self._make_key(path)
        rank = self._ranks.get(above)
        if key is not None:
            if rank is None:
                rank = self._ranks[above] = IndexedHeap()
            rank.put(key)
        elif rank is not None:
            rank.drop(path)
            if not rank.keys:
                del self._ranks[above]

    def _make_key(self, path: str) -> SiblingKey | None:
        head, least = self.heads.get(path), None
        if head is None:
            rank = self._ranks.get(path)
            least = None if rank is None else rank.least()
        node = self._share_tree.nodes.get(path)
        if node is None or (head is None and least is None) or path in self._aside:
            return None
        if (
            node.limit is not None
            and self._demand is not None
            and not self._share_tree.may_hold(node, self._demand)
        ):
            return None
        level = self._share_tree.share(node) if self._more is None else self.share(node)
        if least is not None:
            level, head = min(level, over(node.total * least.level, node.weight)), least.head
        assert head is not None
        rough = level if isinstance(level, int) else level.numerator // level.denominator
        if path in self._share_tree.last:
            rough += _LAST
        return SiblingKey(rough, level, self._past_usage.get(path, NEVER), head, path)


@lru_cache(maxsize=1 << 16)
def _road(path: str) -> tuple[tuple[str, str], ...]:
    """Return the node and the nodes above it, each with its parent."""
    return tuple([(each, parent_of(each)) for each in path_up(path)])


@dataclass
class ShortJobs:
    """The jobs that ended soon after their start and still count as held by their leaves."""

    #: The amounts that still count, by leaf.
    counted: dict[str, Vector] = field(default_factory=dict)
    #: A heap of (end on the monotonic clock, leaf, demand), and the number of entries per leaf.
    _until: list[tuple[float, str, Vector]] = field(default_factory=list)
    _number: Counter[str] = field(default_factory=Counter)

    def add(self, leaf: str, demand: Vector, until_mono_s: float) -> None:
        """Let a job of the leaf that has ended count until `until_mono_s`."""
        heappush(self._until, (until_mono_s, leaf, demand))
        self._number[leaf] += 1
        before = self.counted.get(leaf)
        self.counted[leaf] = demand if before is None else plus(before, demand)

    def forget(self, now_mono_s: float) -> list[str]:
        """Drop the jobs whose time is over. Returns their leaves."""
        leaves = []
        while self._until and self._until[0][0] <= now_mono_s:
            _, leaf, demand = heappop(self._until)
            self.counted[leaf] = minus(self.counted[leaf], demand)
            self._number[leaf] -= 1
            if not self._number[leaf]:
                del self._number[leaf], self.counted[leaf]
            leaves.append(leaf)
        return leaves


_LN2 = log(2)


@dataclass
class DecayedUsage:
    """The recent usage of each node, in dominant-share-seconds that halve every `half_life_s`.

    All usage decays at the same rate, so the order of two nodes never changes by itself: each
    node's usage is kept as the logarithm of what it would be worth at time 0, and no clock is
    needed to compare. Times are those of the wall clock, which may have been years ahead for a
    while; usage that is dated in the future counts as if it were of now, because it would not decay
    until then.
    """

    half_life_s: float
    #: log2 of the usage of each node that has any; a larger value means more usage.
    past_usage: dict[str, float] = field(default_factory=dict)
    #: The latest time of any use (Unix time).
    _newest_s: float = -inf

    def add(self, leaf: str, dominant_share: float, start_s: float, end_s: float) -> None:
        """Add a job of `leaf` that held `dominant_share` from `start_s` to `end_s` (Unix time)."""
        self._newest_s = max(self._newest_s, end_s)
        life_s = end_s - start_s
        if life_s <= 0 or dominant_share <= 0:
            return
        # The integral of share · 2^(-(end - t) / half life) over the job's life.
        worth = -dominant_share * self.half_life_s / _LN2 * expm1(-_LN2 * life_s / self.half_life_s)
        term = log2(worth) + end_s / self.half_life_s
        for path in path_up(leaf):
            self.past_usage[path] = _log2_sum(self.past_usage.get(path), term)

    def clamp(self, now_s: float) -> bool:
        """Treat usage that is dated after `now_s` (Unix time) as if it had happened at `now_s`.
        Returns whether the order of nodes may have changed: only if the usage of a node was more
        than the whole machine can have used since the epoch."""
        ahead_s, self._newest_s = self._newest_s - now_s, min(self._newest_s, now_s)
        if ahead_s <= 0:
            return False
        # The integral of 2^(-t / half life) over all t that have passed.
        most = log2(self.half_life_s / _LN2) + now_s / self.half_life_s
        over = {path: used for path, used in self.past_usage.items() if used > most}
        for path, used in over.items():
            self.past_usage[path] = min(used - ahead_s / self.half_life_s, most)
        return bool(over)


def _log2_sum(left: float | None, right: float) -> float:
    """Return log2(2^left + 2^right) without overflow. If `left` is None, the first term is 0."""
    if left is None:
        return right
    high, low = max(left, right), min(left, right)
    return high + log2(1 + 2 ** (low - high))
