"""The state table is total, every state is reachable and leads to ENDED; effects follow from it."""

from __future__ import annotations

from typing import get_args

import pytest

from drfd.core.model import events as ev
from drfd.core.model.job import ALLOCATED_STATES, JobState
from drfd.core.model.lifecycle import (
    TRANSITIONS,
    InvalidTransition,
    Kill,
    next_state,
    owed,
)
from fakes import happened, ledger_at, table_rows

S = JobState
KINDS = list(get_args(ev.JobEvent))

#: The whole table once more, by hand: a change of it is a change of what users see.
MOVES = {
    (S.PENDING, ev.Admitted): S.STARTING,
    (S.PENDING, ev.Held): S.HELD,
    (S.PENDING, ev.Cancelled): S.ENDED,
    (S.PENDING, ev.DependencySettled): S.PENDING,
    (S.PENDING, ev.OwnerNotified): S.PENDING,
    (S.PENDING, ev.BeginReached): S.PENDING,
    (S.PENDING, ev.Altered): S.PENDING,
    (S.HELD, ev.Held): S.HELD,
    (S.HELD, ev.Released): S.PENDING,
    (S.HELD, ev.Cancelled): S.ENDED,
    (S.HELD, ev.DependencySettled): S.HELD,
    (S.HELD, ev.OwnerNotified): S.HELD,
    (S.HELD, ev.BeginReached): S.HELD,
    (S.HELD, ev.Altered): S.HELD,
    (S.STARTING, ev.Launched): S.RUNNING,
    (S.STARTING, ev.LaunchFailed): S.CLEANING,
    (S.STARTING, ev.LaunchPostponed): S.CLEANING,
    (S.STARTING, ev.StopRequested): S.STOPPING,
    (S.STARTING, ev.Exited): S.CLEANING,
    (S.STARTING, ev.Altered): S.STARTING,
    (S.RUNNING, ev.LaunchFailed): S.CLEANING,
    (S.RUNNING, ev.LaunchPostponed): S.CLEANING,
    (S.RUNNING, ev.StopRequested): S.STOPPING,
    (S.RUNNING, ev.PreemptRequested): S.STOPPING,
    (S.RUNNING, ev.SuspendRequested): S.RUNNING,
    (S.RUNNING, ev.ResumeRequested): S.RUNNING,
    (S.RUNNING, ev.Suspended): S.SUSPENDED,
    (S.RUNNING, ev.Exited): S.CLEANING,
    (S.RUNNING, ev.Warned): S.RUNNING,
    (S.RUNNING, ev.SignalRequested): S.RUNNING,
    (S.RUNNING, ev.Altered): S.RUNNING,
    (S.SUSPENDED, ev.SuspendRequested): S.SUSPENDED,
    (S.SUSPENDED, ev.ResumeRequested): S.SUSPENDED,
    (S.SUSPENDED, ev.Resumed): S.RUNNING,
    (S.SUSPENDED, ev.StopRequested): S.STOPPING,
    (S.SUSPENDED, ev.Exited): S.CLEANING,
    (S.SUSPENDED, ev.Altered): S.SUSPENDED,
    (S.STOPPING, ev.Launched): S.STOPPING,
    (S.STOPPING, ev.LaunchFailed): S.CLEANING,
    (S.STOPPING, ev.LaunchPostponed): S.CLEANING,
    (S.STOPPING, ev.StopRequested): S.STOPPING,
    (S.STOPPING, ev.Escalated): S.STOPPING,
    (S.STOPPING, ev.Exited): S.CLEANING,
    (S.CLEANING, ev.StopRequested): S.CLEANING,
    (S.CLEANING, ev.Cleaned): S.ENDED,
    (S.CLEANING, ev.Requeued): S.PENDING,
    (S.CLEANING, ev.Retried): S.PENDING,
}


def reached_from(state: JobState) -> set[JobState]:
    seen: set[JobState] = set()
    ahead = [state]
    while ahead:
        here = ahead.pop()
        if here not in seen:
            seen.add(here)
            ahead += TRANSITIONS[here].values()
    return seen


def test_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(JobState)


def test_every_state_can_be_reached_from_a_new_job() -> None:
    """A job is born PENDING or HELD."""
    assert reached_from(S.PENDING) == set(JobState)
    assert reached_from(S.HELD) == set(JobState)


@pytest.mark.parametrize("state", JobState)
def test_every_state_can_reach_the_end(state: JobState) -> None:
    assert S.ENDED in reached_from(state)


def test_nothing_follows_the_end() -> None:
    assert [state for state, moves in TRANSITIONS.items() if not moves] == [S.ENDED]


def test_no_way_leads_out_of_the_states_that_hold_resources_but_by_cleaning() -> None:
    """Resources come back when the cgroup is gone, and not before: to the end, or to the queue."""
    ways = {
        (state, kind, after)
        for state, moves in TRANSITIONS.items()
        for kind, after in moves.items()
        if state in ALLOCATED_STATES and after not in ALLOCATED_STATES
    }
    assert ways == {
        (S.CLEANING, ev.Cleaned, S.ENDED),
        (S.CLEANING, ev.Requeued, S.PENDING),
        (S.CLEANING, ev.Retried, S.PENDING),
    }


def test_a_job_that_holds_resources_cannot_reach_the_end_past_cleaning() -> None:
    ways = {state for state, moves in TRANSITIONS.items() if S.ENDED in moves.values()}
    assert ways & ALLOCATED_STATES == {S.CLEANING}


def test_only_admission_leads_into_the_states_that_hold_resources() -> None:
    ways = {
        kind
        for state, moves in TRANSITIONS.items()
        for kind, after in moves.items()
        if state not in ALLOCATED_STATES and after in ALLOCATED_STATES
    }
    assert ways == {ev.Admitted}


def test_every_kind_of_event_but_birth_is_in_the_table() -> None:
    used = {kind for moves in TRANSITIONS.values() for kind in moves}
    assert used == {*KINDS} - {ev.Submitted}


def test_the_refusal_names_the_state_and_the_event() -> None:
    with pytest.raises(InvalidTransition) as caught:
        next_state(S.ENDED, happened(ev.Cleaned, 41))
    assert str(caught.value) == f"ENDED does not allow {happened(ev.Cleaned, 41)!r}"


def test_the_printed_table_has_one_row_for_each_move() -> None:
    rows = table_rows()
    assert rows[:2] == ["| state | event | next state |", "|---|---|---|"]
    assert sorted(rows[2:]) == sorted(
        [
            *(f"| {state} | {kind.__name__} | {after} |" for (state, kind), after in MOVES.items()),
            "| ENDED | – | – |",
        ]
    )


S = JobState


def test_a_job_stopped_while_it_is_frozen_is_owed_its_end_and_no_sigterm() -> None:
    job = ledger_at(S.SUSPENDED, 7).apply(happened(ev.StopRequested, 7))
    assert job is not None
    assert owed(job) == Kill(7, 1)
