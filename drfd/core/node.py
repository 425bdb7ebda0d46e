"""The active nodes of the tree, and what each is promised of what the one above is.

In proportion to its weight; only below nodes where there are guarantees, limits that bind, or
weights by resource, a list of siblings is divided one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from drfd.core.entitlement import ONE, ZERO, Claim, Level, Shares, Yard, divide_all, plain
from drfd.core.resources import Vector
from drfd.core.tree import NodeRule, path_up


class Node:
    """An active node: a job runs or waits in it, or below."""

    def __init__(self, path: str, above: Node | None, yard: Yard, rule: NodeRule) -> None:
        self.path, self.above, self.yard, self.rule = path, above, yard, rule
        self.below: dict[str, Node] = {}
        #: It has jobs of its own.
        self.competes = False
        #: The most that it may hold; None: without limit.
        self.limit: Vector | None = None
        if rule.limit is not None:
            pairs = zip(rule.limit, yard.capacity, strict=True)
            self.limit = tuple([top if most is None else min(most, top) for most, top in pairs])
        #: What it counts among its siblings, and the sum of what its children count. Where the
        #: children are given their parts one by one, each has a yard of its own, and all count 1.
        self.weight: Level = self.own_weight
        self.total: Level = 0
        self.is_split = False
        #: Of its children: the sum of their weights, and those that may need a part of their own.
        self.sum: Level = 0
        self.special: dict[str, Node] = {}

    @property
    def own_weight(self) -> Level:
        """As configured; where resources differ, the node needs a part of its own anyway."""
        return plain(self.rule.weights[0]) if self.rule.weights else 1

    @property
    def is_special(self) -> bool:
        """It may need a part of its own."""
        rule = self.rule
        return bool(rule.limit or rule.guarantee or len(set(rule.weights or ())) > 1)

    @property
    def factor(self) -> Fraction:
        """The part of its yard that it is promised."""
        factor, node = ONE, self
        while node.above is not None:
            factor *= Fraction(node.weight) / node.above.total
            node = node.above
        return factor

    @property
    def entitled(self) -> Shares:
        """The promised part of the machine on each axis."""
        factor = self.factor
        return tuple([part * factor for part in self.yard.parts])

    def weigh(self, weight: Level) -> None:
        """Its children count so much more."""
        self.sum += weight
        if not self.is_split:
            self.total = self.sum


class Division:
    """Divides anew the lists of siblings that may need it."""

    def __init__(self, claims: Callable[[str], list[Claim]]) -> None:
        """`claims`: what a node claims on each axis."""
        self._claims = claims
        #: Nodes whose children may have to be divided anew.
        self._watched: dict[str, Node] = {}

    def watch(self, node: Node) -> None:
        self._watched[node.path] = node

    def forget(self, node: Node) -> None:
        self._watched.pop(node.path, None)

    def settle(self) -> list[Node]:
        """The nodes below which anybody's measure has changed."""
        watched = sorted(self._watched.values(), key=lambda node: len(path_up(node.path)))
        return [node for node in watched if self._divide(node)]

    def _divide(self, parent: Node, *, anew: bool = False) -> bool:
        """Has anybody's measure below the node changed? `anew`: its own yard has."""
        parts = self._parts(parent)
        if parts is None and not parent.is_split and not anew:
            return False
        parent.is_split, parent.total = parts is not None, parent.sum if parts is None else 1
        if parent.is_split:
            self.watch(parent)
        has_changed = False
        for path, child in parent.below.items():
            yard = parent.yard if parts is None else parent.yard.cut(parts[path])
            weight = child.own_weight if parts is None else 1
            if child.yard != yard:
                child.yard = yard
                self._divide(child, anew=True)
                has_changed = True
            if child.weight != weight:
                child.weight = weight
                has_changed = True
        return has_changed

    def _parts(self, parent: Node) -> dict[str, Shares] | None:
        """What each child is promised of what the node is; None: in proportion to its weight."""
        if not parent.special and not (parent.yard.has_gap and parent.below):
            return None
        whole = parent.entitled
        if not parent.yard.has_gap and not any(
            self._binds(child, whole, parent.sum) for child in parent.special.values()
        ):
            return None
        claims = {path: self._claims(path) for path in parent.below}
        return {
            path: tuple([part / of if of else ZERO for part, of in zip(parts, whole, strict=True)])
            for path, parts in divide_all(whole, claims).items()
        }

    def _binds(self, child: Node, whole: Shares, total: Level) -> bool:
        """Is its part another one than in proportion to its weight?"""
        for claim, of in zip(self._claims(child.path), whole, strict=True):
            part = of * claim.weight / total
            if claim.weight != child.own_weight or claim.guarantee > part:
                return True
            if claim.limit is not None and claim.limit < part:
                return True
        return False
