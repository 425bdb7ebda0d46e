"""Entitlements: weights, guarantees and limits, to the digits of the goldens."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.fairness.entitlement import AxisClaim, divide
from seeds import examples

STEADY = examples(300)


def parts(whole: str, *claims: tuple[str, str, str | None]) -> list[Fraction]:
    """`divide` for (weight, guarantee, limit) written as decimals."""
    return divide(
        Fraction(whole),
        [
            AxisClaim(
                weight=Fraction(weight),
                guarantee=Fraction(guarantee),
                limit=None if limit is None else Fraction(limit),
            )
            for weight, guarantee, limit in claims
        ],
    )


def decimals(*numbers: str) -> list[Fraction]:
    return [Fraction(number) for number in numbers]


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ([("1", "0.6", None), ("1", "0.2", None)], ["0.6", "0.4"]),
        ([("3", "0.6", None), ("1", "0.2", None)], ["0.75", "0.25"]),
        ([("1", "0.6", None), ("1", "0.2", None), ("1", "0", None)], ["0.6", "0.2", "0.2"]),
    ],
)
def test_guarantees_as_in_the_documents_of_ytsaurus(
    claims: list[tuple[str, str, str | None]], expected: list[str]
) -> None:
    """docs/fairness.md 2.6: guarantees of 0.6 and 0.2 under several weights."""
    assert parts("1", *claims) == decimals(*expected)


def test_cohorts_as_in_story_3_of_kueues_proposal() -> None:
    """docs/fairness.md 2.6: 300 units for two equal cohorts; weights 1, 1, 3 in the first."""
    first, second = parts("300", ("1", "0", None), ("1", "0", None))
    assert (first, second) == (150, 150)
    below = parts("150", ("1", "0", None), ("1", "0", None), ("3", "0", None))
    assert below == [30, 30, 90]


def test_what_a_limit_takes_away_goes_to_the_others_by_weight() -> None:
    assert parts("1", ("1", "0", "0.1"), ("1", "0", None), ("2", "0", None)) == decimals(
        "0.1", "0.3", "0.6"
    )


def test_when_all_are_at_their_limits_some_is_left() -> None:
    assert parts("1", ("1", "0", "0.2"), ("5", "0", "0.3")) == decimals("0.2", "0.3")


def test_guarantees_of_more_than_there_is_are_cut_in_proportion() -> None:
    assert parts("0.5", ("1", "0.6", None), ("1", "0.4", None)) == decimals("0.3", "0.2")


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


@STEADY
@given(FRACTIONS.filter(bool), CLAIMS)
def test_the_parts_are_those_of_a_slow_search(whole: Fraction, claims: list[AxisClaim]) -> None:
    found = divide(whole, claims)
    if sum(claim.guarantee for claim in claims) >= whole:
        assert sum(found) == whole
        return
    slow = slow_divide(whole, claims)
    assert max(abs(a - b) for a, b in zip(found, slow, strict=True)) < Fraction(1, 1 << 100)
