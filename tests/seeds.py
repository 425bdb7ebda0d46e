"""How many cases of a test that has many alike are tried: a few quickly, all of them otherwise."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

#: Examples of a Hypothesis test that names no number: of all tests, and of the quick ones.
FULL_EXAMPLES, QUICK_EXAMPLES = 100, 20


def seeds(cases: Iterable[Any], *, quick: int = 2) -> list[Any]:
    """The cases, for `parametrize`. All after the first `quick` ones have the mark `slow`."""
    return [
        case if at < quick else pytest.param(case, marks=pytest.mark.slow)
        for at, case in enumerate(cases)
    ]


def runs(cases: Iterable[Any], *, steps: int, quick: int) -> list[Any]:
    """Pairs for `parametrize`: the first case with `quick` steps; slow: each with all steps."""
    cases = list(cases)
    full = [pytest.param(case, steps, marks=pytest.mark.slow) for case in cases]
    return [(cases[0], quick), *full]


def examples(most: int, *, quick: int | None = None) -> settings:
    """Settings of at most so many examples; in a quick run a fifth, or `quick`."""
    if quick is not None and settings.default.max_examples == QUICK_EXAMPLES:
        return settings(max_examples=quick)
    return settings(max_examples=most * settings.default.max_examples // FULL_EXAMPLES)
