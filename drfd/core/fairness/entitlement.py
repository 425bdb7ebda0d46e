"""Entitlements: the part of the machine that each node is promised, and levels to measure by them.

Entitlements depend on weights, guarantees and limits alone, not on use. W of the root is 1 on every
axis; a node's W is divided among its active children in proportion to their weights, each clipped
to its guarantee from below and its limit from above: find x with the sum of
clip(x · weight, guarantee, limit) equal to the parent's W. All are exact fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from drfd.core.amounts.vectors import Vector

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
        """Return the entitlement to `parts` of this one."""
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
