"""Who is promised how much: entitlements, from weights, guarantees and limits alone; and how much
of what is promised is held.

W of the root is 1 on every axis; a node's W is divided among its active children in proportion to
their weights, each clipped to its guarantee from below and its limit from above:
find x with the sum of clip(x · weight, guarantee, limit) equal to the parent's W.
Exact fractions; nothing here depends on what anybody uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from drfd.core.resources import Vector

ZERO, ONE = Fraction(0), Fraction(1)

#: One fraction per axis.
Shares = tuple[Fraction, ...]
#: An exact number: an int wherever it can be one, because those compare ten times faster.
Level = int | Fraction

#: What holding one unit counts where nothing is promised: more than any share of a promise.
_INFINITE = 1 << 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one child may claim on one axis, as parts of the whole machine."""

    weight: Fraction
    guarantee: Fraction = ZERO
    #: None: without limit.
    limit: Fraction | None = None


def divide(whole: Fraction, claims: Sequence[Claim]) -> list[Fraction]:
    """The parts of `whole` for each claim. They sum to `whole`, or to less when all limits are
    reached; guarantees that sum to more are cut in proportion."""
    guaranteed = sum((claim.guarantee for claim in claims), ZERO)
    if guaranteed >= whole:
        return [claim.guarantee * whole / guaranteed if guaranteed else ZERO for claim in claims]
    level = _level(whole, claims)
    return [_clip(level, claim) for claim in claims]


def _clip(level: Fraction | None, claim: Claim) -> Fraction:
    """The part at `level` (x in the module's text); None: everybody is at the limit."""
    if level is None:
        assert claim.limit is not None
        return claim.limit
    part = max(level * claim.weight, claim.guarantee)
    return part if claim.limit is None else min(part, claim.limit)


def _level(whole: Fraction, claims: Sequence[Claim]) -> Fraction | None:
    """The x at which the clipped parts sum to `whole`: walk over the points where a claim leaves
    its guarantee or reaches its limit; between two of them the sum is a straight line."""
    points = sorted(
        {claim.guarantee / claim.weight for claim in claims}
        | {claim.limit / claim.weight for claim in claims if claim.limit is not None}
    )
    for point in points:
        total = sum((_clip(point, claim) for claim in claims), ZERO)
        if total >= whole:
            return _before(point, whole, claims, total)
    last = points[-1]
    rising = sum((claim.weight for claim in claims if claim.limit is None), ZERO)
    if not rising:
        return None
    total = sum((_clip(last, claim) for claim in claims), ZERO)
    return last + (whole - total) / rising


def _before(point: Fraction, whole: Fraction, claims: Sequence[Claim], total: Fraction) -> Fraction:
    """The x on the line that ends at `point`, where the sum is `total` >= `whole`."""
    rising = sum(
        (
            claim.weight
            for claim in claims
            if claim.guarantee < point * claim.weight
            and (claim.limit is None or point * claim.weight <= claim.limit)
        ),
        ZERO,
    )
    return point - (total - whole) / rising if rising else point


def divide_all(whole: Shares, claims: Mapping[str, Sequence[Claim]]) -> dict[str, Shares]:
    """`divide` on every axis: child → its shares."""
    names = list(claims)
    columns = [
        divide(part, [claims[name][axis] for name in names]) for axis, part in enumerate(whole)
    ]
    return {name: tuple(column[at] for column in columns) for at, name in enumerate(names)}


@dataclass(frozen=True)
class Yard:
    """A part of the machine, to measure by. Levels of all yards of one machine can be compared:
    they are in units of 1 / `unit`, in which those of the whole machine are integers."""

    capacity: Vector
    #: The part on each axis.
    parts: Shares
    unit: int = field(init=False, compare=False)
    #: There is a resource of which the part is nothing, though the machine has it.
    has_gap: bool = field(init=False, compare=False)
    _scales: list[Level] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        unit = lcm(*(top for top in self.capacity if top > 0))
        pairs = list(zip(self.parts, self.capacity, strict=True))
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "has_gap", any(top > 0 and not part for part, top in pairs))
        object.__setattr__(self, "_scales", [_scale(unit, part, top) for part, top in pairs])

    def level(self, amounts: Vector) -> Level:
        """The largest part that the amounts are of any resource: the dominant share."""
        pairs = zip(amounts, self._scales, strict=True)
        return max([amount * scale for amount, scale in pairs])

    def cut(self, parts: Shares) -> Yard:
        """These parts of this one's."""
        return Yard(self.capacity, tuple([a * b for a, b in zip(self.parts, parts, strict=True)]))


def _scale(unit: int, part: Fraction, top: int) -> Level:
    # A resource that the machine lacks is in nobody's share.
    if top <= 0:
        return 0
    return plain(unit / (part * top)) if part else unit * _INFINITE


def plain(number: Fraction) -> Level:
    return number.numerator if number.denominator == 1 else number
