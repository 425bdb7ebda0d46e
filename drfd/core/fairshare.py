"""Where everybody stands: the tree of pools and users, what each node holds and is promised.

Hierarchical weighted Dominant Resource Fairness with min-satisfaction. A node's dominant share is
the largest part that it holds of any resource (Ghodsi et al., NSDI 2011); its satisfaction is the
largest part of what it holds over what it is entitled to, per resource; at 1 and above the promise
is kept. For the choice of who is served next, an inner node counts as satisfied as the least
satisfied of itself and its children that can still launch: comparing pools by their own share alone
starves a child whose sibling is rich in another resource.

Paths are dotted, "root.lab.alice"; a node is known by its path, and needs no entry to exist.
All comparisons are of integers or exact fractions, never of floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction

from drfd.core.entitlement import ONE, ZERO, Claim, Shares, divide_all
from drfd.core.resources import Vector, fits, minus, plus

#: Satisfactions are compared as integers in units of 1 / 2^_BITS. Two different ones differ by far
#: more, since they are fractions of amounts below 2^60.
_BITS = 192
_UNBOUNDED = 1 << 80
_INFINITE = 1 << (_BITS + 80)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """What the configuration says of a node. A tuple has one entry per axis."""

    #: None: 1 on every axis.
    weights: Shares | None = None
    #: The most that the node may hold, in amounts; None for an axis without limit.
    limit: tuple[int | None, ...] | None = None
    #: What it is promised while it is active, in amounts.
    guarantee: Vector | None = None


PLAIN = NodeRule()


#: The root: entitled to everything, and never compared with anybody.
TOP = "root"


def parent_of(path: str) -> str:
    """The node above. A path need not begin with the root's name to be below it."""
    return path.rpartition(".")[0] or TOP


def path_up(leaf: str) -> list[str]:
    """The leaf and the nodes above it, up to the children of the root."""
    nodes = []
    while leaf != TOP:
        nodes.append(leaf)
        leaf = parent_of(leaf)
    return nodes


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
        return Standing(self, used, {*used, *active})

    def _shares(self, used: Vector) -> list[Fraction]:
        pairs = zip(used, self.capacity, strict=True)
        return [Fraction(amount, top) if top > 0 else ZERO for amount, top in pairs]

    def _claims(self, path: str) -> list[Claim]:
        rule = self.rule(path)
        axes = range(len(self.capacity))
        return [
            Claim(
                weight=rule.weights[axis] if rule.weights else ONE,
                guarantee=self._part(rule.guarantee, axis) or ZERO,
                limit=self._part(rule.limit, axis),
            )
            for axis in axes
        ]

    def _part(self, amounts: tuple[int | None, ...] | None, axis: int) -> Fraction | None:
        """The amount as a part of the machine; None where there is none."""
        amount = None if amounts is None else amounts[axis]
        if amount is None or not self.capacity[axis]:
            return None
        return Fraction(min(amount, self.capacity[axis]), self.capacity[axis])

    def is_plain(self, path: str) -> bool:
        """Weight 1 and nothing else: such siblings are all promised the same."""
        return path not in self.rules


class Standing:
    """A snapshot that a pass may carry on with `hold`: usage moves, entitlements stay."""

    def __init__(self, shares: FairShare, used: Mapping[str, Vector], leaves: set[str]) -> None:
        self._shares = shares
        self._nothing: Vector = (0,) * len(shares.capacity)
        #: Active children of each inner node.
        self.children: dict[str, list[str]] = {}
        #: What each active node holds.
        self.used: dict[str, Vector] = {}
        self._place(sorted(leaves))
        for leaf, vector in used.items():
            self.hold(leaf, vector)
        self._entitled: dict[str, Shares] = {TOP: (ONE,) * len(shares.capacity)}
        #: Satisfaction's factors: per axis (multiplier, divisor), the same for equal entitlements.
        self._scales: dict[str, tuple[tuple[int, int], ...]] = {}
        self._promised: dict[str, Vector] = {}
        self._promise(TOP)

    def hold(self, leaf: str, demand: Vector) -> None:
        """The leaf, and all above it, hold `demand` more."""
        for path in path_up(leaf):
            self.used[path] = plus(self.used.get(path, self._nothing), demand)

    def entitled(self, path: str) -> Shares:
        """The promised part of the machine on each axis."""
        return self._entitled[path]

    def entitlement(self, path: str) -> Fraction:
        """One figure for people: the least of the promised parts."""
        pairs = zip(self._entitled[path], self._shares.capacity, strict=True)
        return min((part for part, top in pairs if top), default=ONE)

    def satisfaction(self, path: str) -> Fraction:
        """1 and above: the promise is kept."""
        found = ZERO
        for amount, part, top in zip(
            self.used[path], self._entitled[path], self._shares.capacity, strict=True
        ):
            if amount and top and part:
                found = max(found, Fraction(amount, top) / part)
        return found

    def satisfaction_key(self, path: str) -> int:
        """Orders nodes as their satisfactions do."""
        pairs = zip(self.used[path], self._scales[path], strict=True)
        return max([amount * factor // divisor for amount, (factor, divisor) in pairs])

    def copy(self) -> Standing:
        """One whose usage may be moved without moving this one's."""
        other = copy(self)
        other.used = dict(self.used)
        return other

    def keeps_promise(self, leaf: str, demand: Vector) -> bool:
        """Would the leaf, or a pool that it is in, still hold no more than it is promised?"""
        return any(self.keeps_promise_of(path, demand) for path in path_up(leaf))

    def keeps_promise_of(self, path: str, demand: Vector) -> bool:
        return fits(plus(self.used[path], demand), self._promised[path])

    def headroom(self, leaf: str, free: Vector) -> Vector:
        """What the leaf may still take of `free` within the limits of all nodes above it."""
        room = free
        for path in path_up(leaf):
            limit = self._shares.rule(path).limit
            if limit is not None:
                left = minus(self._capped(limit), self.used[path])
                room = tuple([min(a, b) for a, b in zip(room, left, strict=True)])
        return room

    def _capped(self, limit: tuple[int | None, ...]) -> Vector:
        pairs = zip(limit, self._shares.capacity, strict=True)
        return tuple([top if most is None else min(most, top) for most, top in pairs])

    def _place(self, leaves: list[str]) -> None:
        for leaf in leaves:
            for path in path_up(leaf):
                if path in self.used:
                    break
                self.used[path] = self._nothing
                self.children.setdefault(parent_of(path), []).append(path)

    def _promise(self, top: str) -> None:
        """Divide what each node is entitled to among its active children, from the top down."""
        front = [top]
        while front:
            parent = front.pop()
            children = self.children.get(parent, [])
            if not children:
                continue
            for child, part in self._divided(self._entitled[parent], children).items():
                self._entitled[child] = part
            self._settle(children)
            front += children

    def _divided(self, whole: Shares, children: list[str]) -> dict[str, Shares]:
        plain = [child for child in children if self._shares.is_plain(child)]
        if len(plain) == len(children):
            part = tuple(share / len(children) for share in whole)
            return dict.fromkeys(children, part)
        return divide_all(whole, {child: self._shares._claims(child) for child in children})

    def _settle(self, children: list[str]) -> None:
        """Promised amounts and comparison factors; computed once for equal entitlements."""
        done: dict[Shares, tuple[Vector, tuple[tuple[int, int], ...]]] = {}
        capacity = self._shares.capacity
        for child in children:
            part = self._entitled[child]
            if part not in done:
                pairs = list(zip(part, capacity, strict=True))
                # A resource that the machine lacks is in nobody's share.
                promised = tuple([int(share * top) if top else _UNBOUNDED for share, top in pairs])
                done[part] = promised, tuple([_scale(share, top) for share, top in pairs])
            self._promised[child], self._scales[child] = done[part]


def _scale(share: Fraction, top: int) -> tuple[int, int]:
    """(factor, divisor) such that amount · factor / divisor is amount / (share · top), in units."""
    if top <= 0:
        return 0, 1
    if not share:
        return _INFINITE, 1
    return share.denominator << _BITS, share.numerator * top
