"""What the launcher must be told, as a function of state alone.

So a restarted daemon owes exactly what the dead one owed. Every effect may be repeated: a second
launch of the same attempt starts nothing, a second removal finds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from drfd.core.job import Job, JobState


@dataclass(frozen=True, slots=True)
class Launch:
    """There must be a runner for this attempt, unless it has already had one."""

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """The attempt's processes must have been sent SIGTERM."""

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Kill:
    """No process of the attempt may live on."""

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Freeze:
    """No process of the attempt may run until it is thawed."""

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Thaw:
    """The attempt's processes must not be frozen any more."""

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Nothing of the attempt may be left: processes, cgroup, files."""

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Signal:
    """The attempt's processes must have been sent so many signals, of which these are the last.
    Whoever sends them counts, so that none is sent twice."""

    job_id: int
    attempt: int
    count: int
    signals: tuple[int, ...]


Effect = Launch | Terminate | Kill | Freeze | Thaw | Remove | Signal


def owed(job: Job) -> Effect | None:
    match job.state:
        case JobState.STARTING:
            return Launch(job.id, job.attempt)
        case JobState.SUSPENDED:
            return Freeze(job.id, job.attempt)
        case JobState.RUNNING if job.freezing:
            return Freeze(job.id, job.attempt)
        case JobState.RUNNING if job.suspensions:
            return Thaw(job.id, job.attempt)
        case JobState.STOPPING if job.stop is not None and job.stop.escalated:
            return Kill(job.id, job.attempt)
        case JobState.STOPPING:
            return Terminate(job.id, job.attempt)
        case JobState.CLEANING:
            return Remove(job.id, job.attempt)
        case _:
            return None


def signals_owed(job: Job) -> Signal | None:
    """Comes after what the state owes. One that is frozen gets them when it goes on."""
    if job.state is not JobState.RUNNING or job.freezing or not job.signal_count:
        return None
    return Signal(job.id, job.attempt, job.signal_count, job.signals)
