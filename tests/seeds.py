"""How many cases of a test that has many alike are tried: a few quickly, all of them otherwise."""

from __future__ import annotations

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


def examples(most: int) -> settings:
    """Settings of a Hypothesis test that tries at most so many examples, and a fifth if quick."""
    return settings(max_examples=most * settings.default.max_examples // FULL_EXAMPLES)
