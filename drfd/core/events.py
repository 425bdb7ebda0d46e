"""What has happened, in the past tense: the only thing that is journalled and applied.

A kind, once released, is never edited: its old records must be replayed for ever. A new meaning
gets a new kind. No subclass of an event exists. Those of attempts stand in `core.attempt_events`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from drfd.core.attempt_events import (
    Admitted,
    Cleaned,
    Escalated,
    Exited,
    Launched,
    LaunchFailed,
    PreemptRequested,
    Requeued,
    Resumed,
    ResumeRequested,
    Retried,
    SignalRequested,
    StopRequested,
    Suspended,
    SuspendRequested,
    Warned,
)
from drfd.core.job import JobSpec, Outcome

__all__ = [
    "KINDS",
    "Admitted",
    "ArraySubmitted",
    "BeginReached",
    "Cancelled",
    "Changed",
    "Cleaned",
    "DependencySettled",
    "Drained",
    "Escalated",
    "Event",
    "Exited",
    "Held",
    "JobEvent",
    "LaunchFailed",
    "Launched",
    "PreemptRequested",
    "Released",
    "Requeued",
    "ResumeRequested",
    "Resumed",
    "Retried",
    "SignalRequested",
    "StopRequested",
    "Submitted",
    "SuspendRequested",
    "Suspended",
    "Warned",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    job_id: int
    at_s: float
    spec: JobSpec
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    job_id: int
    at_s: float
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    job_id: int
    at_s: float
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Ended without ever having run."""

    job_id: int
    at_s: float
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencySettled:
    """A job that this one waits for has ended, for good; `is_met`: as this one wants."""

    job_id: int
    at_s: float
    on: int
    outcome: Outcome
    is_met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginReached:
    """The time has come before which it was not to start."""

    job_id: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Something else is asked of it from now on: `spec` is all of it, the unchanged included."""

    job_id: int
    at_s: float
    by: str
    spec: JobSpec
    #: Its dependencies, or its begin time, are set anew, even to what they were.
    sets_after: bool
    sets_begin: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySubmitted:
    """Its tasks have the ids that follow its own, in the order of their indices. An event of a job
    whose `job_id` is an array's is about all its tasks that have no record of their own."""

    array_id: int
    at_s: float
    spec: JobSpec
    #: First, last and step of indices, in order; see `drfd.indices`.
    spans: tuple[tuple[int, int, int], ...]
    #: How many of its tasks may run at once; None: any number.
    at_once: int | None
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Launching stopped (`on`) or goes on; not about one job."""

    at_s: float
    on: bool
    by: str


JobEvent = (
    Submitted
    | Held
    | Released
    | Cancelled
    | Admitted
    | Launched
    | LaunchFailed
    | StopRequested
    | PreemptRequested
    | Escalated
    | Exited
    | Cleaned
    | Requeued
    | SuspendRequested
    | Suspended
    | ResumeRequested
    | Resumed
    | DependencySettled
    | BeginReached
    | Retried
    | Warned
    | SignalRequested
    | Changed
)
Event = JobEvent | ArraySubmitted | Drained

#: Every kind by the name it has in the journal.
KINDS: dict[str, type] = {cls.__name__: cls for cls in get_args(Event)}
