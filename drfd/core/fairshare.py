"""Shares: how far each leaf is from what it is entitled to, as exact numbers.

Dominant Resource Fairness (Ghodsi et al., NSDI 2011) for a flat set of weighted leaves: users and
pools side by side below the root. A leaf's dominant share is the largest fraction it holds of any
resource; its entitlement is weight / sum of the weights of the active leaves; its satisfaction is
dominant share / entitlement. All comparisons are of integers or exact fractions, never of floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from drfd.core.resources import Vector

ONE = Fraction(1)


@dataclass(frozen=True)
class FairShare:
    """The machine's capacity and the weights of its leaves (1 where none is configured).

    Shares are kept as whole multiples of 1 / `unit`, where `unit` is a common multiple of all
    capacities, so that adding and comparing them stays exact and cheap.
    """

    capacity: Vector
    weights: Mapping[str, Fraction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unit = lcm(*(amount for amount in self.capacity if amount > 0))
        scales = tuple(unit // amount if amount > 0 else 0 for amount in self.capacity)
        tops = lcm(*(weight.numerator for weight in self.weights.values()))
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "_scales", scales)
        object.__setattr__(self, "_tops", tops)

    unit: int = field(init=False, repr=False, compare=False)
    _scales: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _tops: int = field(init=False, repr=False, compare=False)

    def weight(self, leaf: str) -> Fraction:
        return self.weights.get(leaf, ONE)

    def dominant_units(self, used: Vector) -> int:
        """The dominant share in multiples of 1 / `unit`."""
        return max([amount * scale for amount, scale in zip(used, self._scales, strict=True)])

    def dominant_axis(self, used: Vector) -> int | None:
        """The axis of the largest share, the first of equals; None when nothing is held."""
        shares = [amount * scale for amount, scale in zip(used, self._scales, strict=True)]
        most = max(shares)
        return shares.index(most) if most else None

    def order_key(self, leaf: str, used: Vector) -> int:
        """Orders leaves by weighted dominant share, which is their order by satisfaction: all of
        them divide by the same sum of weights."""
        weight = self.weight(leaf)
        return self.dominant_units(used) * weight.denominator * (self._tops // weight.numerator)

    def total_weight(self, active: Iterable[str]) -> Fraction:
        return sum((self.weight(leaf) for leaf in active), Fraction(0))

    def keeps_promise(self, leaf: str, used_after: Vector, total_weight: Fraction) -> bool:
        """Would the leaf, holding `used_after`, still be within its entitlement on every axis?"""
        weight = self.weight(leaf)
        units = self.dominant_units(used_after)
        return (
            units * weight.denominator * total_weight.numerator
            <= weight.numerator * total_weight.denominator * self.unit
        )

    def dominant_share(self, used: Vector) -> Fraction:
        return Fraction(self.dominant_units(used), self.unit)

    def entitlement(self, leaf: str, active: Iterable[str]) -> Fraction:
        """The promised share of the machine, in 0..1, while `active` leaves compete (`leaf`
        counts as one of them)."""
        return self.weight(leaf) / self.total_weight({leaf, *active})

    def satisfaction(self, leaf: str, used: Vector, active: Iterable[str]) -> Fraction:
        """1 and above: the promise is kept."""
        return self.dominant_share(used) / self.entitlement(leaf, active)
