"""The tree of pools and users, with the resources that each node holds and is entitled to
(docs/fairness.md 1.1).

Entitlements depend on weights, guarantees and limits only: the entitlement W of a node is divided
among its active children in proportion to their weights, each clipped to its guarantee and its
limit (`divide`). Satisfaction is the largest part of what a node holds over what it is entitled to,
per resource; at 1 the promise is kept.

Paths are dotted, "root.lab.alice"; a node is known by its path, and needs no entry to exist. All
comparisons are of integers or exact fractions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from math import lcm
from operator import eq

from drfd.core.model.job import ROOT
from drfd.core.model.machine import Vector, fits, least, minus, not_negative, plus

ZERO, ONE = Fraction(0), Fraction(1)

#: One fraction per axis.
Shares = tuple[Fraction, ...]
#: An exact number: an int wherever possible, because ints compare ten times faster.
Level = int | Fraction

#: The level of one unit held of a resource of which nothing is promised: above any other level.
_INFINITE = 1 << 80


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisClaim:
    """The claim of one child on one axis, as parts of the whole machine."""

    weight: Fraction
    guarantee: Fraction = ZERO
    limit: Fraction | None = None


def divide(whole: Fraction, claims: Sequence[AxisClaim]) -> list[Fraction]:
    """Return the part of `whole` for each claim. The parts sum to `whole`, or to less when all
    limits are reached; guarantees that sum to more are cut in proportion."""
    guaranteed = sum((claim.guarantee for claim in claims), ZERO)
    if guaranteed >= whole:
        return [claim.guarantee * whole / guaranteed if guaranteed else ZERO for claim in claims]
    # Between the points at which a claim leaves its guarantee or reaches its limit, the sum of the
    # parts is a straight line, which rises by the weights of those in between.
    turns = []
    for claim in claims:
        if claim.limit is None or claim.limit > claim.guarantee:
            turns.append((claim.guarantee / claim.weight, claim.weight))
            if claim.limit is not None:
                turns.append((claim.limit / claim.weight, -claim.weight))
    level = rising = ZERO
    total = sum((_clip(level, claim) for claim in claims), ZERO)
    for point, more in sorted(turns):
        if total + rising * (point - level) >= whole:
            break
        total += rising * (point - level)
        level, rising = point, rising + more
    if rising:
        level += (whole - total) / rising
    return [_clip(level, claim) for claim in claims]


def _clip(level: Fraction, claim: AxisClaim) -> Fraction:
    """Return the claim's part at `level`, which is x in the module's docstring."""
    part = max(level * claim.weight, claim.guarantee)
    return part if claim.limit is None else min(part, claim.limit)


def divide_all(whole: Shares, claims: Mapping[str, Sequence[AxisClaim]]) -> dict[str, Shares]:
    names = list(claims)
    columns = [
        divide(part, [claims[name][axis] for name in names]) for axis, part in enumerate(whole)
    ]
    return {name: tuple(column[at] for column in columns) for at, name in enumerate(names)}


@dataclass(frozen=True)
class Entitlement:
    """A part of the machine. Levels of all entitlements of one machine can be compared: they are in
    units of 1 / `unit`, in which those of the whole machine are integers."""

    capacity: Vector
    parts: Shares
    unit: int = field(init=False, compare=False)
    #: Whether the part of a resource that the machine has is nothing.
    has_gap: bool = field(init=False, compare=False)
    _scales: list[Level] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        unit = lcm(*(top for top in self.capacity if top > 0))
        pairs = list(zip(self.parts, self.capacity, strict=True))
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "has_gap", any(top > 0 and not part for part, top in pairs))
        object.__setattr__(self, "_scales", [_scale(unit, part, top) for part, top in pairs])

    @cached_property
    def least(self) -> Fraction:
        """The least part above zero of a resource that the machine has."""
        pairs = zip(self.parts, self.capacity, strict=True)
        return min([part for part, top in pairs if top and part], default=ZERO)

    @cached_property
    def most(self) -> Fraction:
        """The largest part of a resource that the machine has."""
        pairs = zip(self.parts, self.capacity, strict=True)
        return max([part for part, top in pairs if top > 0], default=ZERO)

    def level(self, amounts: Vector) -> Level:
        """Return the largest part that the amounts are of any resource: the dominant share."""
        return max(self.levels(amounts))

    def level_with(self, amounts: Vector, more: Vector) -> Level:
        """Return the level of the sums of each two amounts."""
        rows = zip(amounts, more, self._scales, strict=True)
        return max([(amount + extra) * scale for amount, extra, scale in rows])

    def levels(self, amounts: Vector) -> list[Level]:
        """Return the part that each amount is of its resource."""
        return [amount * scale for amount, scale in zip(amounts, self._scales, strict=True)]

    def cut(self, parts: Shares) -> Entitlement:
        return Entitlement(
            self.capacity, tuple([a * b for a, b in zip(self.parts, parts, strict=True)])
        )


def _scale(unit: int, part: Fraction, top: int) -> Level:
    # A resource that the machine lacks has no share.
    if top <= 0:
        return 0
    return plain(unit / (part * top)) if part else unit * _INFINITE


def plain(number: Fraction) -> Level:
    return number.numerator if number.denominator == 1 else number


def over(level: Level, weight: Level) -> Level:
    return level if weight == 1 else plain(Fraction(level) / weight)


# -- nodes and their paths -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """The configuration of one node. A tuple has one entry per axis."""

    #: None means 1 on every axis.
    weights: Shares | None = None
    #: The largest amounts that the node may hold; None for an axis without limit.
    limit: tuple[int | None, ...] | None = None
    #: The amounts that the node is promised while it is active.
    guarantee: Vector | None = None


PLAIN = NodeRule()


def parent_of(path: str) -> str:
    """Return the node above. A path need not begin with the root's name to be below it."""
    return path.rpartition(".")[0] or ROOT


@lru_cache(maxsize=1 << 16)
def path_up(leaf: str) -> tuple[str, ...]:
    """Return the leaf and the nodes above it, up to the children of the root."""
    nodes = []
    while leaf != ROOT:
        nodes.append(leaf)
        leaf = parent_of(leaf)
    return tuple(nodes)


def ways_apart(leaf: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes from each of two leaves up to where their paths join, without those that
    are on both."""
    ours, theirs = path_up(leaf), path_up(other)
    shared = sum(map(eq, reversed(ours), reversed(theirs)))
    return ours[: len(ours) - shared], theirs[: len(theirs) - shared]


class ShareNode:
    """An active node: a job runs or waits in it, or below."""

    def __init__(
        self, path: str, above: ShareNode | None, entitlement: Entitlement, rule: NodeRule
    ) -> None:
        self.path, self.above, self.entitlement, self.rule = path, above, entitlement, rule
        self.below: dict[str, ShareNode] = {}
        #: Whether the node has jobs of its own.
        self.competes = False
        #: The largest amounts that the node may hold, or None if it has no limit.
        self.limit: Vector | None = None
        if rule.limit is not None:
            self.limit = tuple([_INFINITE if most is None else most for most in rule.limit])
        #: The node's weight among its siblings, and the sum of its children's weights. Where the
        #: children are given their parts one by one, each has an entitlement of its own, and all
        #: weights are 1.
        self.weight: Level = self.own_weight
        self.total: Level = 0
        self.is_split = False
        #: The sum of the children's configured weights, and those that may need their own part.
        self.sum: Level = 0
        self.special: dict[str, ShareNode] = {}
        #: The number of children of each configured weight.
        self._weights = Counter[Level]()

    @property
    def own_weight(self) -> Level:
        """Return the configured weight. A node with split weights needs a part of its own."""
        return plain(self.rule.weights[0]) if self.rule.weights else 1

    @property
    def is_special(self) -> bool:
        rule = self.rule
        return bool(rule.limit or rule.guarantee or len(set(rule.weights or ())) > 1)

    @property
    def ratio(self) -> tuple[int, int]:
        """Return the part of its entitlement that the node is promised, as numerator and
        denominator that may have common divisors: fractions at each step are slow."""
        up, down, node = 1, 1, self
        while node.above is not None:
            weight, total = node.weight, node.above.total
            up *= weight.numerator * total.denominator
            down *= weight.denominator * total.numerator
            node = node.above
        return up, down

    @property
    def factor(self) -> Fraction:
        return Fraction(*self.ratio)

    @property
    def entitled(self) -> Shares:
        factor = self.factor
        return tuple([part * factor for part in self.entitlement.parts])

    @property
    def heaviest(self) -> Level:
        return 1 if self.is_split else max(self._weights)

    def weigh(self, weight: Level, sign: int) -> None:
        """Add a child of this weight (`sign` 1), or remove it (-1)."""
        self.sum += sign * weight
        self._weights[weight] += sign
        if not self._weights[weight]:
            del self._weights[weight]
        if not self.is_split:
            self.total = self.sum


@dataclass(frozen=True)
class FairShare:
    """The machine's capacity and the configuration of the nodes."""

    capacity: Vector
    rules: Mapping[str, NodeRule] = field(default_factory=dict)

    @cached_property
    def has_limits(self) -> bool:
        return any(rule.limit is not None for rule in self.rules.values())

    def rule(self, path: str) -> NodeRule:
        return self.rules.get(path, PLAIN)

    def most(self, leaf: str) -> Vector:
        """Return the largest amounts that one job of the leaf could hold by the present limits."""
        most = self.capacity
        for path in path_up(leaf):
            limit = self.rule(path).limit
            if limit is not None:
                pairs = zip(most, limit, strict=True)
                most = tuple([top if bound is None else min(top, bound) for top, bound in pairs])
        return most

    def fits_alone(self, leaf: str, demand: Vector) -> bool:
        """Return whether the present limits let the leaf hold a demand when it holds nothing."""
        return fits(demand, self.most(leaf))

    def dominant_share(self, used: Vector) -> Fraction:
        return max(self._shares(used), default=ZERO)

    def rounded_dominant_share(self, used: Vector) -> float:
        """Return the float nearest to the dominant share, without fractions, which take longer."""
        pairs = zip(used, self.capacity, strict=True)
        return max([amount / top for amount, top in pairs if top > 0], default=0.0)

    def dominant_axis(self, used: Vector) -> int | None:
        """Return the axis of the largest share, the first of equals, or None if nothing is held."""
        shares = self._shares(used)
        most = max(shares, default=ZERO)
        return shares.index(most) if most else None

    def share_tree(self, used: Mapping[str, Vector], active: Iterable[str]) -> ShareTree:
        share_tree = ShareTree(self)
        for leaf in sorted({*used, *active}):
            share_tree.enter(leaf)
        for leaf, held in used.items():
            share_tree.hold(leaf, held)
        share_tree.redivide()
        return share_tree

    def claims(self, path: str) -> list[AxisClaim]:
        rule = self.rule(path)
        return [
            AxisClaim(
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
        """Return the amount as a part of the machine, or None if there is none."""
        amount = None if amounts is None else amounts[axis]
        if amount is None or not self.capacity[axis]:
            return None
        return Fraction(min(amount, self.capacity[axis]), self.capacity[axis])


class ShareTree:
    """The active nodes with their holdings and entitlements, updated leaf by leaf.

    A node's entitlement is a part of its parent's, so nothing is computed for the siblings of a
    leaf that enters or leaves. Only where there are guarantees, limits that bind, or weights by
    resource, `redivide` divides siblings one by one.
    """

    def __init__(self, shares: FairShare) -> None:
        self._shares = shares
        self._nothing: Vector = (0,) * len(shares.capacity)
        whole = Entitlement(shares.capacity, (ONE,) * len(shares.capacity))
        self._top = ShareNode(ROOT, None, whole, PLAIN)
        self.nodes: dict[str, ShareNode] = {ROOT: self._top}
        #: The resources that count as held by each active node except the root: those that it
        #: holds, and those of recently ended short jobs.
        self.charged: dict[str, Vector] = {}
        #: The latter alone.
        self._recent: dict[str, Vector] = {}
        #: Results of `share` by path, until what the node holds changes, or any promise.
        self._shares_held: dict[str, Level] = {}
        #: Results of `promised` by path, until a node enters or leaves, or a promise changes.
        self._promised: dict[str, Level] = {}
        #: Nodes whose children may have to be divided again.
        self._watched: dict[str, ShareNode] = {}
        self._is_divided = True

    def enter(self, leaf: str) -> None:
        (self.nodes.get(leaf) or self._add(leaf)).competes = True

    def leave(self, leaf: str) -> None:
        """Remove a leaf that holds nothing and waits for nothing any more."""
        node = self.nodes[leaf]
        node.competes = False
        while (above := node.above) is not None and not node.competes and not node.below:
            self._remove(node, above)
            node = above

    def hold(self, leaf: str, demand: Vector) -> None:
        """Add `demand` to the holdings of the leaf and of all nodes above it."""
        for path in path_up(leaf):
            self.charged[path] = plus(self.charged[path], demand)
            self._shares_held.pop(path, None)

    def share(self, node: ShareNode) -> Level:
        """Return the node's level over its weight, by which it is compared with its siblings."""
        share = self._shares_held.get(node.path)
        if share is None:
            share = over(node.entitlement.level(self.charged[node.path]), node.weight)
            self._shares_held[node.path] = share
        return share

    def promised(self, node: ShareNode) -> Level:
        """Return the level up to which the node keeps its promise."""
        level = self._promised.get(node.path)
        if level is None:
            level = self._promised[node.path] = plain(node.factor * node.entitlement.unit)
        return level

    def hold_recent(self, leaf: str, demand: Vector) -> None:
        """Let `demand` count as held in addition, but not against limits."""
        self.hold(leaf, demand)
        for path in path_up(leaf):
            self._recent[path] = plus(self._recent.get(path, self._nothing), demand)

    def held(self, path: str) -> Vector:
        """Return the holdings of an active node, without recently ended short jobs."""
        recent = self._recent.get(path)
        return self.charged[path] if recent is None else minus(self.charged[path], recent)

    def redivide(self) -> list[ShareNode]:
        """Bring the promises up to date after leaves have entered or left. Returns the nodes
        below which entitlements have changed by more than the sums of weights."""
        if self._is_divided:
            return []
        self._is_divided = True
        self._promised.clear()
        watched = sorted(self._watched.values(), key=lambda node: len(path_up(node.path)))
        changed = [node for node in watched if self._divide(node)]
        if changed:
            self._shares_held.clear()
        return changed

    def entitled(self, path: str) -> Shares:
        return self.nodes[path].entitled

    def least_entitled(self, path: str) -> Fraction:
        """Return one figure to show to people: the least of the promised parts above zero."""
        node = self.nodes[path]
        return node.entitlement.least * node.factor

    def satisfaction(self, path: str) -> Fraction:
        """Return the node's satisfaction (see the module)."""
        rows = zip(self.charged[path], self.entitled(path), self._shares.capacity, strict=True)
        found = (Fraction(amount, top) / part for amount, part, top in rows if top and part)
        return max(found, default=ZERO)

    def satisfaction_key(self, path: str) -> Fraction:
        """Return a key that orders nodes by satisfaction. A node that holds a resource of which
        it is promised nothing comes last."""
        node = self.nodes[path]
        return Fraction(node.entitlement.level(self.charged[path])) / node.factor

    def as_held(self) -> ShareTree:
        """Return a copy, which may be changed, in which recently ended short jobs do not count."""
        other = copy(self)
        other.charged = {path: self.held(path) for path in self.charged}
        other._recent, other._shares_held, other._promised = {}, {}, {}
        return other

    def without(self, released: Iterable[tuple[str, Vector]]) -> ShareTree:
        """Return a copy in which these leaves hold so much less."""
        other = copy(self)
        other.nodes, other.charged, other._shares_held = dict(self.nodes), dict(self.charged), {}
        for leaf, demand in released:
            other.hold(leaf, minus(self._nothing, demand))
        return other

    def keeps_promise(self, leaf: str, demand: Vector) -> bool:
        """Return whether the leaf, or a pool that it is in, would still hold no more than it is
        promised with `demand` more."""
        return any(self.keeps_promise_of(path, demand) for path in path_up(leaf))

    def keeps_promise_of(self, path: str, demand: Vector) -> bool:
        node = self.nodes[path]
        return node.entitlement.level_with(self.charged[path], demand) <= self.promised(node)

    def may_keep_below(self, node: ShareNode, demands: Iterable[Vector]) -> bool:
        """Return False if it is known that no child of the node keeps its promise with one more of
        the demands: each alone is more than the heaviest child is promised."""
        most, level = self.promised(node) * node.heaviest, node.entitlement.level
        return any(level(demand) * node.total <= most for demand in demands)

    def headroom(self, leaf: str, free: Vector) -> Vector:
        """Return the part of the free resources that the limits of the leaf, and of all nodes
        above it, let it use. No amount is negative: what is not asked for breaks no limit."""
        for path in self.limited_nodes(leaf):
            free = least(free, self.room_below(path))
        return not_negative(free)

    def limited_nodes(self, leaf: str) -> list[str]:
        """Return the nodes that have a limit, of the leaf and those above it, the leaf first."""
        if not self._shares.has_limits:
            return []
        return [path for path in path_up(leaf) if self.nodes[path].limit is not None]

    def room_below(self, path: str) -> Vector:
        """Return what the limit of a node that has one lets it hold more; an amount is negative
        where it holds more than its limit. A limit says nothing of nodes and single instances."""
        limit = self.nodes[path].limit
        assert limit is not None
        return minus(limit, self.held(path))

    def is_within_limits(self, leaf: str, demand: Vector) -> bool:
        """Return whether the limits let the leaf, and all nodes above it, hold `demand` more."""
        return self.reached_limit(leaf, demand) is None

    def reached_limit(self, leaf: str, demand: Vector) -> str | None:
        """Return the node, of the leaf and those above it, whose limit does not let it hold
        `demand` more, or None."""
        nodes = self.limited_nodes(leaf)
        return next((each for each in nodes if not fits(demand, self.room_below(each))), None)

    def _add(self, path: str) -> ShareNode:
        name = parent_of(path)
        above = self.nodes.get(name) or self._add(name)
        node = ShareNode(path, above, above.entitlement, self._shares.rule(path))
        self.nodes[path], self.charged[path], above.below[path] = node, self._nothing, node
        if node.is_special:
            above.special[path] = node
            self._watched[above.path] = above
        above.weigh(node.own_weight, 1)
        self._is_divided = False
        self._promised.clear()
        return node

    def _remove(self, node: ShareNode, above: ShareNode) -> None:
        del self.nodes[node.path], self.charged[node.path], above.below[node.path]
        above.special.pop(node.path, None)
        self._watched.pop(node.path, None)
        self._recent.pop(node.path, None)
        self._shares_held.pop(node.path, None)
        above.weigh(node.own_weight, -1)
        self._is_divided = False
        self._promised.clear()

    def _divide(self, parent: ShareNode, *, anew: bool = False) -> bool:
        """Divide the node's children; return whether an entitlement below it has changed. `anew`
        says that its own has."""
        parts = self._parts(parent)
        if parts is None and not parent.is_split and not anew:
            return False
        parent.is_split, parent.total = parts is not None, parent.sum if parts is None else 1
        if parent.is_split:
            self._watched[parent.path] = parent
        has_changed = False
        for path, child in parent.below.items():
            entitlement = (
                parent.entitlement if parts is None else parent.entitlement.cut(parts[path])
            )
            weight = child.own_weight if parts is None else 1
            if child.entitlement != entitlement:
                child.entitlement = entitlement
                self._divide(child, anew=True)
                has_changed = True
            if child.weight != weight:
                child.weight = weight
                has_changed = True
        return has_changed

    def _parts(self, parent: ShareNode) -> dict[str, Shares] | None:
        """Return each child's part of the node's promise; None if the parts follow the weights."""
        if not parent.special and not (parent.entitlement.has_gap and parent.below):
            return None
        whole = parent.entitled
        if not parent.entitlement.has_gap and not any(
            self._binds(child, whole, parent.sum) for child in parent.special.values()
        ):
            return None
        claims = {path: self._shares.claims(path) for path in parent.below}
        return {
            path: tuple([part / of if of else ZERO for part, of in zip(parts, whole, strict=True)])
            for path, parts in divide_all(whole, claims).items()
        }

    def _binds(self, child: ShareNode, whole: Shares, total: Level) -> bool:
        """Return whether the child's part differs from that in proportion to its weight."""
        for claim, of in zip(self._shares.claims(child.path), whole, strict=True):
            part = of * claim.weight / total
            if claim.weight != child.own_weight or claim.guarantee > part:
                return True
            if claim.limit is not None and claim.limit < part:
                return True
        return False
