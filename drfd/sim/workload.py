"""Workloads: jobs with submission times and true run times, and the lines that are no jobs.

Readers of traces and histories make a `SimJob` of each line; `collect` makes a workload of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from drfd.common.errors import Refused
from drfd.core.amounts.resources import Resources

#: Largest time in seconds, a thousand years, and largest amount; others are errors.
_MOST_S, _MOST = 3.2e10, float(1 << 60)


class NotAJob(Exception):
    """Raised for a line that is no job; the text says why in a few words."""


def collect(
    found: Iterable[tuple[int, Callable[[], SimJob]]],
    *,
    source: str,
    kind: str,
    notes: tuple[str, ...] = (),
) -> Workload:
    """Make a workload of pairs (line number, function that parses the line).

    Raises Refused if no line is a job.
    """
    jobs: list[tuple[float, int, SimJob]] = []
    bad: list[BadLine] = []
    # Equal demands share one object, since a trace has hundreds of thousands of lines.
    demands: dict[Resources, Resources] = {}
    for number, read in found:
        try:
            each = read()
        except NotAJob as reason:
            bad.append(BadLine(number=number, why=str(reason)))
            continue
        jobs.append((each.submit_s, number, each))
    if not jobs:
        why = f": line {bad[0].number}: {bad[0].why}" if bad else ""
        raise Refused("bad-trace", f"there is no job in it{why}")
    jobs.sort(key=lambda entry: entry[:2])
    return Workload(
        jobs=[
            replace(each, id=id, demand=demands.setdefault(each.demand, each.demand))
            for id, (_, _, each) in enumerate(jobs, start=1)
        ],
        source=source,
        kind=kind,
        bad=tuple(bad),
        notes=notes,
    )


def number(text: str, what: str, most: float = _MOST) -> float:
    """Parse a finite number from 0 up. Raises NotAJob."""
    try:
        value = float(text)
    except ValueError:
        raise NotAJob(f"{what} is no number" if text else f"{what} is missing") from None
    if not isfinite(value) or value > most:
        raise NotAJob(f"{what} is out of all bounds")
    if value < 0:
        raise NotAJob(f"{what} is negative")
    return value


def seconds(text: str, what: str) -> float:
    return number(text, what, _MOST_S)


def name(text: str, what: str) -> str:
    """Check a name. Raises NotAJob if it is empty or too long."""
    if not text:
        raise NotAJob(f"{what} is missing")
    if len(text) > 200:
        raise NotAJob(f"{what} is too long")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    #: Unique in a workload, in the order of submission; 0 for a job that is not yet part of one.
    id: int = 0
    #: Its name in the trace.
    name: str
    submit_s: float
    #: The true run time, unknown to the scheduler.
    run_s: float
    demand: Resources
    #: The wall-time limit, or None if unknown. A job that ran longer is not cut.
    limit_s: float | None
    user: str
    #: Its group in the trace, or None.
    group: str | None = None
    #: Its processor time, or None if unknown.
    cpu_s: float | None = None
    #: The upper end of its range of cores; 0 without one.
    most_cores_milli: int = 0
    #: The bytes of its input, of what it shuffles and of its output, or 0 if unknown.
    data_bytes: int = 0
    #: When it is withdrawn if it still waits; None for never.
    until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line of a trace that is no job."""

    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The input of a simulation."""

    #: In the order of submission.
    jobs: Sequence[SimJob]
    #: The file or another origin, for people.
    source: str
    #: The recognised format.
    kind: str
    #: Lines that are no jobs, in order.
    bad: tuple[BadLine, ...] = ()
    #: Assumptions and synthetic data, which every output mentions.
    notes: tuple[str, ...] = ()
    #: The unit that the numbers of `bad` count.
    unit: str = "line"
