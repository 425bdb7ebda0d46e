"""The life cycle of a job: the next state after each event, and the effect that each state owes.

An event that the table does not allow raises `InvalidTransition` and changes nothing;
docs/architecture.md shows the same table, and a test compares them.

An effect is an order to the launcher. It follows from the job's state alone, so a restarted daemon
owes exactly what the previous one owed. Every effect may be repeated: a second launch of an attempt
starts nothing, and a second removal finds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from drfd.core.model import events as ev
from drfd.core.model.job import Job
from drfd.core.model.job import JobState as S
from drfd.core.model.owner import UNSTARTED

#: State → event → next state. `Submitted` creates a job as PENDING or HELD.
TRANSITIONS: dict[S, dict[type, S]] = {
    S.PENDING: {
        ev.Admitted: S.STARTING,
        ev.Held: S.HELD,
        ev.Cancelled: S.ENDED,
        ev.DependencySettled: S.PENDING,
        ev.OwnerNotified: S.PENDING,
        ev.BeginReached: S.PENDING,
        ev.Altered: S.PENDING,
    },
    # Held: an administrator's hold replaces the owner's own.
    S.HELD: {
        ev.Held: S.HELD,
        ev.Released: S.PENDING,
        ev.Cancelled: S.ENDED,
        ev.DependencySettled: S.HELD,
        ev.OwnerNotified: S.HELD,
        ev.BeginReached: S.HELD,
        ev.Altered: S.HELD,
    },
    # Exited: the launcher was disconnected during the whole run and reports only the end.
    S.STARTING: {
        ev.Launched: S.RUNNING,
        ev.LaunchFailed: S.CLEANING,
        ev.LaunchPostponed: S.CLEANING,
        ev.StopRequested: S.STOPPING,
        ev.Exited: S.CLEANING,
        ev.Altered: S.STARTING,
    },
    # LaunchFailed, LaunchPostponed: the runner reports that it is up before exec has succeeded.
    # SuspendRequested, ResumeRequested: the job runs until the freeze is reported.
    S.RUNNING: {
        ev.LaunchFailed: S.CLEANING,
        ev.LaunchPostponed: S.CLEANING,
        ev.StopRequested: S.STOPPING,
        ev.PreemptRequested: S.STOPPING,
        ev.SuspendRequested: S.RUNNING,
        ev.ResumeRequested: S.RUNNING,
        ev.Suspended: S.SUSPENDED,
        ev.Exited: S.CLEANING,
        ev.Warned: S.RUNNING,
        ev.SignalRequested: S.RUNNING,
        ev.Altered: S.RUNNING,
    },
    # The job waits for room to go on, unless a user keeps it suspended.
    S.SUSPENDED: {
        ev.SuspendRequested: S.SUSPENDED,
        ev.ResumeRequested: S.SUSPENDED,
        ev.Resumed: S.RUNNING,
        ev.StopRequested: S.STOPPING,
        ev.Exited: S.CLEANING,
        ev.Altered: S.SUSPENDED,
    },
    # Launched: a stop may overtake the report of the start.
    # StopRequested: a job that was to be requeued is to end instead, or the other way round.
    S.STOPPING: {
        ev.Launched: S.STOPPING,
        ev.LaunchFailed: S.CLEANING,
        ev.LaunchPostponed: S.CLEANING,
        ev.StopRequested: S.STOPPING,
        ev.Escalated: S.STOPPING,
        ev.Exited: S.CLEANING,
    },
    S.CLEANING: {
        ev.StopRequested: S.CLEANING,
        ev.Cleaned: S.ENDED,
        ev.Requeued: S.PENDING,
        ev.Retried: S.PENDING,
    },
    S.ENDED: {},
}


class InvalidTransition(Exception):
    """A bug: an event that the table does not allow. The daemon ends; the journal stays intact."""


def next_state(state: S, event: ev.JobEvent) -> S:
    try:
        return TRANSITIONS[state][type(event)]
    except KeyError:
        raise InvalidTransition(f"{state} does not allow {event!r}") from None


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


class NotifyNever(_AttemptEffect):
    """Notify the owner that the job can never start. `attempt` is UNSTARTED, and for tasks that
    share a record, `job_id` is the first of their array."""


@dataclass(frozen=True, slots=True)
class SendSignals(_AttemptEffect):
    """Send the attempt's processes signals, so that `count` have been sent in all.

    `signals` are the latest of them. The launcher counts what it sends, so none is sent twice.
    """

    count: int
    signals: tuple[int, ...]


Effect = Launch | Terminate | Kill | Freeze | Thaw | RemoveAttempt | NotifyNever | SendSignals


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
        case S.PENDING | S.HELD if job.owes_notice:
            # The launcher knows tasks, not arrays.
            is_common = job.id == job.array_id
            return NotifyNever(job.id + 1 if is_common else job.id, UNSTARTED)
        case _:
            return None


def signals_owed(job: Job) -> SendSignals | None:
    """Return the signals to be sent after the effect `owed`; a frozen job gets them when thawed."""
    if job.state is not S.RUNNING or job.freezing or not job.signal_count:
        return None
    return SendSignals(job.id, job.attempt, job.signal_count, job.signals)
