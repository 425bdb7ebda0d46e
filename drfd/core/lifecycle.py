"""Which event moves which state where. Everything about job states is in this table.

What is not in it raises `InvalidTransition` and changes nothing. ARCHITECTURE.md shows the same
table; a test compares them.
"""

from __future__ import annotations

from drfd.core import events as ev
from drfd.core.job import JobState as S

#: state → event → next state. A job is born by `Submitted` as PENDING or HELD.
TRANSITIONS: dict[S, dict[type, S]] = {
    S.PENDING: {
        ev.Admitted: S.STARTING,
        ev.Held: S.HELD,
        ev.Cancelled: S.ENDED,
        ev.DependencySettled: S.PENDING,
        ev.BeginReached: S.PENDING,
        ev.Changed: S.PENDING,
    },
    # Held: an administrator's hold outweighs the owner's own.
    S.HELD: {
        ev.Held: S.HELD,
        ev.Released: S.PENDING,
        ev.Cancelled: S.ENDED,
        ev.DependencySettled: S.HELD,
        ev.BeginReached: S.HELD,
        ev.Changed: S.HELD,
    },
    # Exited: the launcher was away for the job's whole life and reports only its end.
    S.STARTING: {
        ev.Launched: S.RUNNING,
        ev.LaunchFailed: S.CLEANING,
        ev.StopRequested: S.STOPPING,
        ev.Exited: S.CLEANING,
        ev.Changed: S.STARTING,
    },
    # LaunchFailed: the runner is up and says so before exec has succeeded.
    # It runs on until it is frozen; until then its resumption may be asked for, too.
    S.RUNNING: {
        ev.LaunchFailed: S.CLEANING,
        ev.StopRequested: S.STOPPING,
        ev.PreemptRequested: S.STOPPING,
        ev.SuspendRequested: S.RUNNING,
        ev.ResumeRequested: S.RUNNING,
        ev.Suspended: S.SUSPENDED,
        ev.Exited: S.CLEANING,
        ev.Warned: S.RUNNING,
        ev.SignalRequested: S.RUNNING,
        ev.Changed: S.RUNNING,
    },
    # Waits to go on, unless somebody keeps it suspended.
    S.SUSPENDED: {
        ev.SuspendRequested: S.SUSPENDED,
        ev.ResumeRequested: S.SUSPENDED,
        ev.Resumed: S.RUNNING,
        ev.StopRequested: S.STOPPING,
        ev.Exited: S.CLEANING,
        ev.Changed: S.SUSPENDED,
    },
    # Launched: a stop may overtake the news of the start.
    # StopRequested: what was only to be requeued is to end for good.
    S.STOPPING: {
        ev.Launched: S.STOPPING,
        ev.LaunchFailed: S.CLEANING,
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
    """A bug: the table has no such event in this state. Ends the daemon; the journal is whole."""


def next_state(state: S, event: ev.JobEvent) -> S:
    try:
        return TRANSITIONS[state][type(event)]
    except KeyError:
        raise InvalidTransition(f"{state} does not allow {event!r}") from None


def table_rows() -> list[str]:
    """The table as lines of markdown, for ARCHITECTURE.md."""
    rows = ["| state | event | next state |", "|---|---|---|"]
    for state, moves in TRANSITIONS.items():
        rows += [f"| {state} | {kind.__name__} | {after} |" for kind, after in moves.items()]
        if not moves:
            rows.append(f"| {state} | – | – |")
    return rows
