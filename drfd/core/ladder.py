"""Who is served next: waiting leaves lined up in the tree, the least satisfied first.

At every level of the tree the least satisfied child comes first; an inner node counts as satisfied
as the least satisfied of itself and of what stands below it (min-satisfaction). Ties go to who has
used less lately, then to whose next job was submitted first, then to the name. For a pool, that is
the next job of the child that comes first in it; where leaves wait for several demand vectors, each
vector has a ladder of its own, and a pool's turn is the least of its turns in them.

Nodes are compared by their level over their weight, not by their satisfaction: both order siblings
in the same way, but satisfaction changes for all of them when one comes or goes. With s the share
that a node holds of its yard and w its weight, the key of a leaf is s / w; that of an inner node is
min(s, W · least key of its children) / w, with W the sum of the children's weights. So a change of
one leaf changes the keys of the nodes above it, and no others: the work grows with the depth of the
tree and the logarithm of its width.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

from drfd.core.entitlement import Level, plain
from drfd.core.fairshare import Standing
from drfd.core.node import Node
from drfd.core.resources import Vector, plus
from drfd.core.tree import TOP, parent_of, path_up

#: Stands for "has used nothing lately" (see `core.history`).
NEVER = float("-inf")


class Turn(NamedTuple):
    """A node's place among its siblings; compared field by field."""

    #: The level without what is behind the point: spares most comparisons of fractions.
    rough: int
    level: Level
    spent: float
    #: The next job.
    head: int
    path: str


Key = TypeVar("Key", bound=tuple[Any, ...])


class Rank(Generic[Key]):
    """Names with their keys, and at once the least of them. The last item of a key is the name."""

    __slots__ = ("_heap", "keys")

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        #: Each present key, and some of the past: those are dropped when they come up.
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


class Ladder:
    """The leaves that wait for one thing."""

    def __init__(
        self,
        standing: Standing,
        spent: Mapping[str, float],
        demand: Vector | None = None,
        *,
        is_after: bool = False,
    ) -> None:
        """Without nodes whose limits a job of this `demand` would break. `is_after`: as they would
        stand if they held `demand` more."""
        self._standing = standing
        self._spent = spent
        self._demand = demand
        self._more = demand if is_after else None
        #: The leaves in it, and the next job of each.
        self.heads: dict[str, int] = {}
        #: The turns of the children of each node.
        self._ranks: dict[str, Rank[Turn]] = {}
        #: Nodes that have been set aside.
        self._aside: set[str] = set()

    def put(self, leaf: str, head: int | None) -> None:
        """Let the leaf stand in it, whose next job is `head`; None: it does not."""
        if head is not None:
            self.heads[leaf] = head
        else:
            self.heads.pop(leaf, None)
        self.lift(leaf)

    def lift(self, path: str) -> None:
        """What the node holds, or what stands below it, has changed: find its turn anew, and those
        of all above it."""
        for each, above in _road(path):
            self._settle(each, above)

    def set_aside(self, path: str) -> None:
        """Let the node be passed over until `take_back`."""
        self._aside.add(path)
        self.lift(path)

    def take_back(self) -> None:
        aside, self._aside = self._aside, set()
        for path in aside:
            self.lift(path)

    def least(self, path: str) -> Turn | None:
        """The turn of the child that is served first; None: nobody stands below the node."""
        rank = self._ranks.get(path)
        return None if rank is None else rank.least()

    def turn(self, path: str) -> Turn | None:
        """The turn of a node; None: it cannot be served."""
        rank = self._ranks.get(parent_of(path))
        return None if rank is None else rank.keys.get(path)

    def share(self, node: Node) -> Level:
        """What the node holds, over its weight."""
        used = self._standing.used[node.path]
        level = node.yard.level(used if self._more is None else plus(used, self._more))
        return over(level, node.weight)

    def next_leaf(self) -> str | None:
        """From the top, always the child that is served first."""
        path = TOP
        while path not in self.heads:
            turn = self.least(path)
            if turn is None:
                return None
            path = turn.path
        return path

    def _settle(self, path: str, above: str) -> None:
        turn = self._turn(path)
        rank = self._ranks.get(above)
        if turn is not None:
            if rank is None:
                rank = self._ranks[above] = Rank()
            rank.put(turn)
        elif rank is not None:
            rank.drop(path)
            if not rank.keys:
                del self._ranks[above]

    def _turn(self, path: str) -> Turn | None:
        head = self.heads.get(path)
        least = self.least(path) if head is None else None
        node = self._standing.nodes.get(path)
        if node is None or (head is None and least is None) or path in self._aside:
            return None
        if self._demand is not None and not self._standing.may_hold(node, self._demand):
            return None
        level = self.share(node)
        if least is not None:
            level, head = min(level, over(node.total * least.level, node.weight)), least.head
        assert head is not None
        rough = level if isinstance(level, int) else level.numerator // level.denominator
        return Turn(rough, level, self._spent.get(path, NEVER), head, path)


def over(level: Level, weight: Level) -> Level:
    return level if weight == 1 else plain(Fraction(level) / weight)


@lru_cache(maxsize=1 << 16)
def _road(path: str) -> tuple[tuple[str, str], ...]:
    """The node and those above it, each with its parent."""
    return tuple([(each, parent_of(each)) for each in path_up(path)])
