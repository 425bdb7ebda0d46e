"""Entitlements: weights, guarantees and limits, to the digits of the goldens."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as some

from drfd.core.fairness.entitlement import AxisClaim, divide
from seeds import examples

FRACTIONS = some.builds(Fraction, some.integers(0, 12), some.just(12))
WEIGHTS = some.builds(Fraction, some.integers(1, 9), some.integers(1, 9))
CLAIMS = some.lists(
    some.builds(
        AxisClaim, weight=WEIGHTS, guarantee=FRACTIONS, limit=some.none() | FRACTIONS
    ).filter(lambda claim: claim.limit is None or claim.limit >= claim.guarantee),
    min_size=1,
    max_size=6,
)


def slow_divide(whole: Fraction, claims: list[AxisClaim]) -> list[Fraction]:
    """By bisection over x, to 200 halvings: no shared code."""

    def at(level: Fraction) -> list[Fraction]:
        found = [max(level * claim.weight, claim.guarantee) for claim in claims]
        pairs = zip(found, claims, strict=True)
        return [part if c.limit is None else min(part, c.limit) for part, c in pairs]

    low, high = Fraction(0), Fraction(1000)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle)) < whole else (low, middle)
    return at(high)


@examples(300, quick=32)
@given(FRACTIONS.filter(bool), CLAIMS)
def test_the_parts_are_those_of_a_slow_search(whole: Fraction, claims: list[AxisClaim]) -> None:
    found = divide(whole, claims)
    if sum(claim.guarantee for claim in claims) >= whole:
        assert sum(found) == whole
        return
    slow = slow_divide(whole, claims)
    assert max(abs(a - b) for a, b in zip(found, slow, strict=True)) < Fraction(1, 1 << 100)
