"""What a benchmark yields, and what all of them need: lines of a table, beside their baselines.

A figure is the median of several runs, and each run takes its baseline anew: what else the machine
does slows both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from drfd.client.connection import Connection
from tests.bench.place import Place


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table."""

    what: str
    value: float
    unit: str
    #: The value as a multiple of this one, of the same run.
    baseline: float
    baseline_what: str
    #: What it is meant to be: a text, and whether it is.
    aim: str = ""
    is_met: bool | None = None


@dataclass(frozen=True)
class Chosen:
    runs: int
    jobs: int
    queued: int


def late(found: list[float]) -> float:
    """What 95 of 100 are below."""
    return statistics.quantiles(found, n=20)[-1]


def end_well(client: Connection, job_id: int) -> None:
    """Wait for it. A job or array that has failed was not what is measured."""
    reply = client.wait([job_id], any_one=False, timeout_s=None)
    if reply["ended"][0]["state"] != "COMPLETED":
        raise SystemExit(f"job {job_id} has failed: {reply['ended'][0]}")


@contextmanager
def drained(place: Place) -> Iterator[None]:
    """Nothing is launched meanwhile, and nothing is left."""
    place.instance.drf("drain")
    try:
        yield
    finally:
        place.instance.drf("cancel", "--all", "--yes")
        place.instance.drf("undrain")
