"""The order of service: waiting leaves in the tree, the least satisfied first.

At every level of the tree the child with the least key is served. A policy defines the key
(`Rank`). Under drfd's own (`by_satisfaction`) it is the satisfaction of a node, and of an inner
node the minimum of its own and those below it (docs/fairness.md 1.1). Ties go to less decayed
usage, then to the earlier submission of the next job, then to the name.

Nodes are compared by their level over their weight, which orders siblings as satisfaction does but
does not change for all of them when one comes or goes. With s the share that a node holds of its
entitlement and w its weight, the key of a leaf is s / w; that of an inner node is min(s, W · least
key of its children) / w, with W the sum of the children's weights. So a change of one leaf changes
only the keys of the nodes above it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from math import expm1, inf, log, log2
from typing import Any, NamedTuple

from drfd.core.fairness.share_tree import ShareNode, ShareTree, over, parent_of, path_up
from drfd.core.model.job import ROOT
from drfd.core.model.machine import Vector, minus, plus

#: The decayed usage of a node that has none (see `DecayedUsage`).
NEVER = -inf
_LN2 = log(2)


class SortKey(NamedTuple):
    """The key by which a node is compared with its siblings, field by field."""

    #: What the policy compares; an exact number, or a tuple of them.
    value: Any
    past_usage: float
    #: The next job.
    head: int
    path: str


#: Returns the first two fields of a node's key: of a leaf (None), or of an inner node whose child
#: with this key comes first.
Rank = Callable[[ShareNode, SortKey | None], tuple[Any, float]]


def by_satisfaction(share_tree: ShareTree, past_usage: Mapping[str, float]) -> Rank:
    """Return the order of drfd's own policy."""

    def rank(node: ShareNode, least: SortKey | None) -> tuple[Any, float]:
        level = share_tree.share(node)
        if least is not None:
            level = min(level, over(node.total * least.value, node.weight))
        return level, past_usage.get(node.path, NEVER)

    return rank


class ServiceOrder:
    """The waiting leaves in the order of service, kept up to date leaf by leaf."""

    def __init__(self, share_tree: ShareTree, rank: Rank) -> None:
        self._share_tree, self._rank = share_tree, rank
        #: The next job of each waiting leaf.
        self.heads: dict[str, int] = {}
        #: The keys of the children of each node below which a leaf waits, in order.
        self._children: dict[str, list[SortKey]] = {}
        self._keys: dict[str, SortKey] = {}

    def put(self, leaf: str, head: int | None) -> None:
        """Enter the leaf with its next job, or remove it if `head` is None; renew its key and those
        of the nodes above it."""
        if head is not None:
            self.heads[leaf] = head
        else:
            self.heads.pop(leaf, None)
        self.renew(leaf)

    def renew(self, path: str) -> None:
        """Renew the keys of the node and of those above it."""
        for each, above in _road(path):
            before, key = self._keys.get(each), self._make(each)
            if key == before:
                continue
            siblings = self._children.setdefault(above, [])
            if before is not None:
                del siblings[bisect_left(siblings, before)]
            if key is not None:
                insort(siblings, key)
                self._keys[each] = key
                continue
            del self._keys[each]
            if not siblings:
                del self._children[above]

    def first(self) -> str | None:
        """Return the leaf that is served first, or None if no leaf waits."""
        path = ROOT
        while path not in self.heads:
            children = self.children(path)
            if not children:
                return None
            path = children[0].path
        return path

    def children(self, path: str) -> list[SortKey]:
        """Return the keys of the node's children below which a leaf waits, in order."""
        return self._children.get(path, [])

    def _make(self, path: str) -> SortKey | None:
        node, head, least = self._share_tree.nodes.get(path), self.heads.get(path), None
        if node is None:
            return None
        if head is None:
            children = self.children(path)
            if not children:
                return None
            least = children[0]
            head = least.head
        return SortKey(*self._rank(node, least), head, path)


#: Returns how many of a node's children that are left, which are given in order, are passed over
#: before the first that is served.
PassOver = Callable[[str, Sequence[SortKey]], int]


class Turns(ServiceOrder):
    """A copy of an order from which leaves are dropped while they are served. A node is looked at
    only when it comes first: of those that are passed over then, none is served. Lists of siblings
    are copied when they are reached, so it costs what is read of it."""

    def __init__(self, order: ServiceOrder, pass_over: PassOver) -> None:
        super().__init__(order._share_tree, order._rank)
        self.heads, self._order, self._pass_over = order.heads, order, pass_over
        #: The nodes that were not passed over since the last renewal.
        self._judged = set[str]()

    def first(self) -> str | None:
        path = ROOT
        while path not in self.heads:
            siblings = self._children.get(path, self._order.children(path))
            if siblings and siblings[0].path not in self._judged:
                passed = self._pass_over(path, siblings)
                if path in self._children:
                    del siblings[:passed]
                else:
                    siblings = self._children[path] = siblings[passed:]
                self._judged.update([key.path for key in siblings[:1]])
                if passed and path != ROOT:
                    # The key of a node is made of that of its first child.
                    self._renew_first(_road(path))
                    path = ROOT
                    continue
            if not siblings:
                return None
            path = siblings[0].path
        return path

    def drop(self, leaf: str) -> None:
        """Serve the leaf, which is the first one, no more."""
        (_, above), *road = _road(leaf)
        del self._children[above][0]
        self._renew_first(road)

    def renew(self, path: str) -> None:
        """Renew the keys of the leaf, which was the first one, and of the nodes above it."""
        self._judged.clear()
        self._renew_first(_road(path))

    def children(self, path: str) -> list[SortKey]:
        found = self._children.get(path)
        if found is None:
            found = self._children[path] = self._order.children(path).copy()
        return found

    def _renew_first(self, road: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> None:
        """Renew the keys of nodes, each of which is the first of its siblings."""
        for path, above in road:
            siblings, key = self._children[above], self._make(path)
            del siblings[0]
            if key is not None:
                insort(siblings, key)


@lru_cache(maxsize=1 << 16)
def _road(path: str) -> tuple[tuple[str, str], ...]:
    """Return the node and the nodes above it, each with its parent."""
    return tuple([(each, parent_of(each)) for each in path_up(path)])


# -- past usage ------------------------------------------------------------------------------------


@dataclass
class ShortJobs:
    """The jobs that ended less than `Rules.min_charge_s` (`min_charge_time`) after their start.

    Until that time is over, leaves are compared as if these jobs still ran (as with Armada's short
    job penalty), because a stream of one-second jobs would seem to hold nothing. Their resources
    are free and do not count against limits.
    """

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


@dataclass
class DecayedUsage:
    """The recent usage of each node, in dominant-share-seconds that halve every `half_life_s`; it
    only decides ties.

    Each node's usage is stored as the logarithm of its worth at time 0: all decays at the same
    rate, so no clock is needed to compare. Usage dated in the future, by a wall clock that was
    ahead, counts as if it were of now.
    """

    half_life_s: float
    #: log2 of the usage of each node that has any; a larger value means more usage.
    past_usage: dict[str, float] = field(default_factory=dict)
    #: The latest time of any use (Unix time).
    newest_s: float = 0.0

    def add(self, leaf: str, dominant_share: float, start_s: float, end_s: float) -> None:
        """Add a job of `leaf` that held `dominant_share` from `start_s` to `end_s` (Unix time)."""
        self.newest_s = max(self.newest_s, end_s)
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
        ahead_s, self.newest_s = self.newest_s - now_s, min(self.newest_s, now_s)
        if ahead_s <= 0:
            return False
        # The integral of 2^(-t / half life) over all t that have passed.
        most = log2(self.half_life_s / _LN2) + now_s / self.half_life_s
        over = {path: used for path, used in self.past_usage.items() if used > most}
        for path, used in over.items():
            self.past_usage[path] = min(used - ahead_s / self.half_life_s, most)
        return bool(over)

    def halving_in(self, half_life_s: float, now_s: float) -> DecayedUsage:
        """Return the usage for another half-life: each node's is worth as much at `now_s`."""
        shift = now_s / half_life_s - now_s / self.half_life_s
        usage = {path: used + shift for path, used in self.past_usage.items()}
        return DecayedUsage(half_life_s, usage, self.newest_s)


def _log2_sum(left: float | None, right: float) -> float:
    """Return log2(2^left + 2^right) without overflow. If `left` is None, the first term is 0."""
    if left is None:
        return right
    high, low = max(left, right), min(left, right)
    return high + log2(1 + 2 ** (low - high))
