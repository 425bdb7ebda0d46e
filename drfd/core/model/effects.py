"""Effects: the order to the launcher that is due for each state of a job.

An effect follows from the job's state alone, so a restarted daemon sends the same one. Every effect
may be repeated: a second launch of an attempt starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from drfd.core.model.job import Job
from drfd.core.model.job import JobState as S


@dataclass(frozen=True, slots=True)
class _AttemptEffect:
    job_id: int
    attempt: int


class Launch(_AttemptEffect):
    """Start a runner for this attempt, unless it has already had one."""


class Terminate(_AttemptEffect):
    """Send SIGTERM to the attempt's processes, unless that has been done."""


class Kill(_AttemptEffect):
    """Kill all processes of the attempt."""


class Freeze(_AttemptEffect):
    """Freeze all processes of the attempt until it is thawed."""


class Thaw(_AttemptEffect):
    """Thaw the attempt's processes."""


class RemoveAttempt(_AttemptEffect):
    """Remove all that is left of the attempt: processes, cgroup, files."""


@dataclass(frozen=True, slots=True)
class SendSignals(_AttemptEffect):
    """Send the attempt's processes signals, so that `count` have been sent in all. `signals` are
    the latest of them. The launcher counts what it sends, so none is sent twice."""

    count: int
    signals: tuple[int, ...]


Effect = Launch | Terminate | Kill | Freeze | Thaw | RemoveAttempt | SendSignals


def owed(job: Job) -> Effect | None:
    """Return the order that the job's state requires, or None if it requires none."""
    match job.state:
        case S.STARTING:
            return Launch(job.id, job.attempt)
        case S.SUSPENDED:
            return Freeze(job.id, job.attempt)
        case S.RUNNING if job.freezing:
            return Freeze(job.id, job.attempt)
        case S.RUNNING if job.suspensions:
            return Thaw(job.id, job.attempt)
        case S.STOPPING if job.stop is not None and job.stop.escalated:
            return Kill(job.id, job.attempt)
        case S.STOPPING:
            return Terminate(job.id, job.attempt)
        case S.CLEANING:
            return RemoveAttempt(job.id, job.attempt)
        case _:
            return None


def signals_owed(job: Job) -> SendSignals | None:
    """Return the signals to be sent after the effect `owed`; a frozen job gets them when thawed."""
    if job.state is not S.RUNNING or job.freezing or not job.signal_count:
        return None
    return SendSignals(job.id, job.attempt, job.signal_count, job.signals)
