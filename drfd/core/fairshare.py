"""Where everybody stands: the tree of pools and users, what each node holds and is promised.

Hierarchical weighted Dominant Resource Fairness with min-satisfaction. A node's dominant share is
the largest part that it holds of any resource (Ghodsi et al., NSDI 2011); its satisfaction is the
largest part of what it holds over what it is entitled to, per resource; at 1 and above the promise
is kept. For the choice of who is served next, an inner node counts as satisfied as the least
satisfied of itself and its children that can still launch: comparing pools by their own share alone
starves a child whose sibling is rich in another resource (see `core.ladder`).

Paths are dotted, "root.lab.alice"; a node is known by its path, and needs no entry to exist.
All comparisons are of integers or exact fractions, never of floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction

from drfd.core.entitlement import ONE, ZERO, Claim, Shares, Yard
from drfd.core.node import Division, Node
from drfd.core.resources import Vector, fits, minus, plus
from drfd.core.tree import PLAIN, TOP, NodeRule, parent_of, path_up


@dataclass(frozen=True)
class FairShare:
    """The machine's capacity and what is configured of its nodes."""

    capacity: Vector
    rules: Mapping[str, NodeRule] = field(default_factory=dict)

    def rule(self, path: str) -> NodeRule:
        return self.rules.get(path, PLAIN)

    def dominant_share(self, used: Vector) -> Fraction:
        return max(self._shares(used), default=ZERO)

    def dominant_axis(self, used: Vector) -> int | None:
        """The axis of the largest share, the first of equals; None when nothing is held."""
        shares = self._shares(used)
        most = max(shares, default=ZERO)
        return shares.index(most) if most else None

    def standing(self, used: Mapping[str, Vector], active: Iterable[str]) -> Standing:
        """Where everybody stands while the leaves of `used` and `active` compete."""
        standing = Standing(self)
        for leaf in sorted({*used, *active}):
            standing.enter(leaf)
        for leaf, held in used.items():
            standing.hold(leaf, held)
        standing.settle()
        return standing

    def claims(self, path: str) -> list[Claim]:
        """What a node claims on each axis."""
        rule = self.rule(path)
        return [
            Claim(
                weight=rule.weights[axis] if rule.weights else ONE,
                guarantee=self._part(rule.guarantee, axis) or ZERO,
                limit=self._part(rule.limit, axis),
            )
            for axis in range(len(self.capacity))
        ]

    def _shares(self, used: Vector) -> list[Fraction]:
        pairs = zip(used, self.capacity, strict=True)
        return [Fraction(amount, top) if top > 0 else ZERO for amount, top in pairs]

    def _part(self, amounts: tuple[int | None, ...] | None, axis: int) -> Fraction | None:
        """The amount as a part of the machine; None where there is none."""
        amount = None if amounts is None else amounts[axis]
        if amount is None or not self.capacity[axis]:
            return None
        return Fraction(min(amount, self.capacity[axis]), self.capacity[axis])


class Standing:
    """What each active node holds and is promised, kept up to date leaf by leaf.

    When a leaf enters or leaves, its siblings are promised other parts, but they stand to each
    other as before: nothing is worked out for them. Only where there are guarantees, limits that
    bind, or weights by resource, a list of siblings is divided anew, by `settle`.
    """

    def __init__(self, shares: FairShare) -> None:
        self._shares = shares
        self._nothing: Vector = (0,) * len(shares.capacity)
        whole = Yard(shares.capacity, (ONE,) * len(shares.capacity))
        self.nodes: dict[str, Node] = {TOP: Node(TOP, None, whole, PLAIN)}
        #: What counts as held by each active node; the root is not among them.
        self.used: dict[str, Vector] = {}
        #: Of that, what is not held any more.
        self._past: dict[str, Vector] = {}
        self._division = Division(shares.claims)
        self._is_settled = True

    def enter(self, leaf: str) -> None:
        """It competes from now on."""
        (self.nodes.get(leaf) or self._add(leaf)).competes = True

    def leave(self, leaf: str) -> None:
        """It neither holds anything nor waits any more."""
        node = self.nodes[leaf]
        node.competes = False
        while (above := node.above) is not None and not node.competes and not node.below:
            self._remove(node, above)
            node = above

    def hold(self, leaf: str, demand: Vector) -> None:
        """The leaf, and all above it, hold `demand` more."""
        for path in path_up(leaf):
            self.used[path] = plus(self.used[path], demand)

    def remember(self, leaf: str, demand: Vector) -> None:
        """`demand` more counts as held, but not against limits."""
        self.hold(leaf, demand)
        for path in path_up(leaf):
            self._past[path] = plus(self._past.get(path, self._nothing), demand)

    def held(self, path: str) -> Vector:
        """What an active node really holds."""
        past = self._past.get(path)
        return self.used[path] if past is None else minus(self.used[path], past)

    def settle(self) -> list[Node]:
        """To be called when leaves have entered or left. The nodes below which anybody's measure
        has changed, beyond the sums of weights."""
        if self._is_settled:
            return []
        self._is_settled = True
        return self._division.settle()

    def entitled(self, path: str) -> Shares:
        """The promised part of the machine on each axis."""
        return self.nodes[path].entitled

    def entitlement(self, path: str) -> Fraction:
        """One figure for people: the least of the promised parts that are not nothing."""
        pairs = zip(self.entitled(path), self._shares.capacity, strict=True)
        return min((part for part, top in pairs if top and part), default=ZERO)

    def satisfaction(self, path: str) -> Fraction:
        """1 and above: the promise is kept."""
        rows = zip(self.used[path], self.entitled(path), self._shares.capacity, strict=True)
        found = (Fraction(amount, top) / part for amount, part, top in rows if top and part)
        return max(found, default=ZERO)

    def satisfaction_key(self, path: str) -> Fraction:
        """Orders nodes as their satisfactions do; last who holds what is not promised at all."""
        node = self.nodes[path]
        return Fraction(node.yard.level(self.used[path])) / node.factor

    def as_held(self) -> Standing:
        """A copy, whose usage may be moved, in which only what is really held counts."""
        other = copy(self)
        other.used = {path: self.held(path) for path in self.used}
        other._past = {}
        return other

    def keeps_promise(self, leaf: str, demand: Vector) -> bool:
        """Would the leaf, or a pool that it is in, still hold no more than it is promised?"""
        return any(self.keeps_promise_of(path, demand) for path in path_up(leaf))

    def keeps_promise_of(self, path: str, demand: Vector) -> bool:
        node = self.nodes[path]
        return node.yard.level(plus(self.used[path], demand)) <= node.factor * node.yard.unit

    def is_within_limits(self, leaf: str, demand: Vector) -> bool:
        """May the leaf, and all above it, hold `demand` more?"""
        return all(self.may_hold(self.nodes[path], demand) for path in path_up(leaf))

    def most(self, leaf: str) -> Vector:
        """The most that one job of the leaf could ever hold."""
        room = self._shares.capacity
        for path in path_up(leaf):
            limit = self.nodes[path].limit
            if limit is not None:
                room = tuple([min(pair) for pair in zip(room, limit, strict=True)])
        return room

    def may_hold(self, node: Node, demand: Vector) -> bool:
        return node.limit is None or fits(demand, minus(node.limit, self.held(node.path)))

    def _add(self, path: str) -> Node:
        name = parent_of(path)
        above = self.nodes.get(name) or self._add(name)
        node = Node(path, above, above.yard, self._shares.rule(path))
        self.nodes[path], self.used[path], above.below[path] = node, self._nothing, node
        if node.is_special:
            above.special[path] = node
            self._division.watch(above)
        above.weigh(node.own_weight)
        self._is_settled = False
        return node

    def _remove(self, node: Node, above: Node) -> None:
        del self.nodes[node.path], self.used[node.path], above.below[node.path]
        above.special.pop(node.path, None)
        self._division.forget(node)
        self._past.pop(node.path, None)
        above.weigh(-node.own_weight)
        self._is_settled = False
