"""After a restart: what only the books know, and what only the launcher knows."""

from __future__ import annotations

import pytest

from drfd.core import events as ev
from drfd.core.effects import Remove
from drfd.core.job import JobState
from drfd.core.ledger import Ledger
from drfd.core.reconcile import missing_attempts, strays
from drfd.core.resources import Axes
from drfd.core.stimuli import AttemptMissing
from fakes import ROADS, happened, ledger_at, now

S = JobState


def books(*states: JobState) -> Ledger:
    """One job in each of these states, with ids from 1."""
    return Ledger.of_events(
        Axes(),
        [
            happened(kind, job_id)
            for job_id, state in enumerate(states, start=1)
            for kind in ROADS[state]
        ],
    )


ALL = books(
    S.PENDING, S.HELD, S.STARTING, S.RUNNING, S.STOPPING, S.CLEANING, S.ENDED, S.SUSPENDED
)  # fmt: skip


def test_only_running_suspended_and_stopping_jobs_can_be_missing() -> None:
    """A STARTING job is launched again, a CLEANING one is removed: both are owed anyway."""
    assert missing_attempts(ALL, [], now()) == [
        AttemptMissing(now(), 4, 1),
        AttemptMissing(now(), 5, 1),
        AttemptMissing(now(), 8, 1),
    ]


def test_an_attempt_that_the_launcher_knows_is_not_missing() -> None:
    assert missing_attempts(ALL, [(8, 1), (5, 1), (4, 1)], now()) == []


def test_an_earlier_attempt_of_the_same_job_does_not_stand_for_the_present_one() -> None:
    assert missing_attempts(books(S.RUNNING), [(1, 0), (1, 2)], now()) == [
        AttemptMissing(now(), 1, 1)
    ]


def test_missing_attempts_come_in_the_order_of_their_ids() -> None:
    ledger = books(*[S.RUNNING] * 20)
    found = missing_attempts(ledger, [(3, 1)], now())
    assert [each.job_id for each in found] == [1, 2, *range(4, 21)]


@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING, S.SUSPENDED, S.STOPPING, S.CLEANING])
def test_the_present_attempt_of_a_job_that_holds_resources_is_no_stray(state: JobState) -> None:
    assert strays(ledger_at(state), [(1, 1)]) == []


@pytest.mark.parametrize("state", [S.PENDING, S.HELD, S.ENDED])
def test_an_attempt_of_a_job_that_should_have_none_is_a_stray(state: JobState) -> None:
    assert strays(ledger_at(state), [(1, 1)]) == [Remove(1, 1)]


def test_the_attempt_of_a_job_that_was_queued_again_is_a_stray() -> None:
    """The daemon died after it had written that nothing was left, or the launcher knows better."""
    ledger = ledger_at(S.RUNNING)
    for event in (
        happened(ev.PreemptRequested),
        happened(ev.Exited, outcome=None),
        happened(ev.Requeued),
    ):
        ledger.apply(event)
    assert strays(ledger, [(1, 1)]) == [Remove(1, 1)]
    assert missing_attempts(ledger, [], now()) == []


def test_another_attempt_than_the_present_one_is_a_stray() -> None:
    ledger = ledger_at(S.PENDING)
    ledger.apply(happened(ev.Admitted, attempt=2))
    assert strays(ledger, [(1, 3), (1, 2), (1, 1)]) == [Remove(1, 1), Remove(1, 3)]


def test_an_attempt_of_an_id_that_was_never_given_out_is_left_alone() -> None:
    """The journal may be an old copy: those jobs are somebody's."""
    assert strays(ledger_at(S.RUNNING), [(2, 1), (99, 1)]) == []


def test_strays_of_one_launcher_and_present_jobs_are_told_apart() -> None:
    known = [(job_id, 1) for job_id in range(8, 0, -1)]
    assert strays(ALL, known) == [Remove(1, 1), Remove(2, 1), Remove(7, 1)]
