"""What a simulation is fed: jobs with their arrivals, and how long each really runs.

Whatever they were read from: a trace, this machine's own past, a generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drfd.core.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    #: Grows with the time of submission; unique in a workload.
    id: int
    #: What the trace calls it.
    name: str
    submit_s: float
    #: How long it runs once it has started; the scheduler does not know.
    run_s: float
    demand: Resources
    #: The submitter's wall-time limit; None: unknown. A job that ran past it is not cut.
    limit_s: float | None
    user: str
    #: The group that the trace puts it in; None: in none.
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line of a trace that is no job."""

    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    #: In the order of submission.
    jobs: Sequence[SimJob]
    #: The file, or what else it comes from.
    source: str
    #: What the source was recognised as.
    kind: str
    #: Lines that are no jobs, in order.
    bad: tuple[BadLine, ...] = ()
    #: What must be said with every result: what was assumed, what is synthetic.
    notes: tuple[str, ...] = ()
    #: What the numbers of `bad` count.
    unit: str = "line"
