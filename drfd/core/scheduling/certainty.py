"""On what an expected end or start rests: time limits, a few earlier jobs, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Certainty(StrEnum):
    """On what an expected start rests."""

    #: On time limits, or on nothing that may take longer: the jobs before it end by then.
    LIMITS = "limits"
    #: On the run times of a few earlier jobs of the same users.
    ESTIMATED = "estimated"
    #: On something of which nothing is known.
    UNKNOWN = "unknown"


_WORST_LAST = (Certainty.LIMITS, Certainty.ESTIMATED, Certainty.UNKNOWN)


def least_certain(found: Iterable[Certainty]) -> Certainty:
    """Return the worst; `LIMITS` of nothing."""
    return max(found, key=_WORST_LAST.index, default=Certainty.LIMITS)


class ExpectedEnd(NamedTuple):
    """The end of a job as it is told to people."""

    #: Unix time; infinity if it is unknown.
    end_s: float
    certainty: Certainty


class ExpectedStart(NamedTuple):
    """The start of a waiting job as it is told to people."""

    #: Unix time; None if no start is in sight, or if it is unknown.
    start_s: float | None
    certainty: Certainty
