"""What the launcher is owed is a function of the job's state alone."""

from __future__ import annotations

import pytest

from drfd.core import events as ev
from drfd.core.effects import Effect, Freeze, Kill, Launch, Remove, Terminate, Thaw, owed
from drfd.core.job import JobState
from fakes import happened, ledger_at

S = JobState


@pytest.mark.parametrize(
    ("state", "effect"),
    [
        (S.PENDING, None),
        (S.HELD, None),
        (S.STARTING, Launch(7, 1)),
        (S.RUNNING, None),
        (S.SUSPENDED, Freeze(7, 1)),
        (S.STOPPING, Terminate(7, 1)),
        (S.CLEANING, Remove(7, 1)),
    ],
)
def test_each_state_owes_one_thing_or_nothing(state: JobState, effect: Effect | None) -> None:
    assert owed(ledger_at(state, 7).jobs[7]) == effect


def test_an_ended_job_owes_nothing() -> None:
    job = ledger_at(S.CLEANING).apply(happened(ev.Cleaned))
    assert job is not None
    assert job.state is S.ENDED
    assert owed(job) is None


def test_a_job_that_outlived_its_grace_time_is_to_be_killed() -> None:
    ledger = ledger_at(S.STOPPING, 7)
    job = ledger.apply(happened(ev.Escalated, 7))
    assert job is not None
    assert owed(job) == Kill(7, 1)


def test_a_job_stopped_while_it_starts_is_owed_the_stop_and_no_launch() -> None:
    ledger = ledger_at(S.STARTING, 7)
    job = ledger.apply(happened(ev.StopRequested, 7))
    assert job is not None
    assert owed(job) == Terminate(7, 1)


def test_a_failed_launch_is_cleaned_up_like_any_end() -> None:
    """The cgroup was made before the failure: it must go before the resources come back."""
    ledger = ledger_at(S.STARTING, 7)
    job = ledger.apply(happened(ev.LaunchFailed, 7))
    assert job is not None
    assert owed(job) == Remove(7, 1)


def test_a_suspension_owes_the_freezing_before_and_after_it_is_done_and_then_the_thawing() -> None:
    """A launcher that was started again may not know what the dead one was told."""
    ledger = ledger_at(S.RUNNING, 7)
    seen = []
    for event in (
        happened(ev.SuspendRequested, 7),
        happened(ev.ResumeRequested, 7),
        happened(ev.Suspended, 7),
        happened(ev.Resumed, 7),
        happened(ev.SuspendRequested, 7, by=None),
        happened(ev.Suspended, 7),
    ):
        job = ledger.apply(event)
        assert job is not None
        seen.append(owed(job))
    freeze, thaw = Freeze(7, 1), Thaw(7, 1)
    assert seen == [freeze, freeze, freeze, thaw, freeze, freeze]


def test_a_job_stopped_while_it_is_being_frozen_is_owed_the_stop() -> None:
    ledger = ledger_at(S.RUNNING, 7)
    ledger.apply(happened(ev.SuspendRequested, 7))
    job = ledger.apply(happened(ev.StopRequested, 7))
    assert job is not None
    assert owed(job) == Terminate(7, 1)


def test_a_job_stopped_while_it_is_frozen_is_owed_its_end_and_no_sigterm() -> None:
    job = ledger_at(S.SUSPENDED, 7).apply(happened(ev.StopRequested, 7))
    assert job is not None
    assert owed(job) == Kill(7, 1)


def test_a_preempted_job_is_owed_what_any_stopped_one_is_and_then_nothing() -> None:
    ledger = ledger_at(S.RUNNING, 7)
    seen = []
    for event in (
        happened(ev.PreemptRequested, 7),
        happened(ev.Escalated, 7),
        happened(ev.Exited, 7, outcome=None),
        happened(ev.Requeued, 7),
        happened(ev.Admitted, 7, attempt=2),
        happened(ev.Launched, 7, attempt=2),
    ):
        job = ledger.apply(event)
        assert job is not None
        seen.append(owed(job))
    assert seen == [Terminate(7, 1), Kill(7, 1), Remove(7, 1), None, Launch(7, 2), None]


def test_the_effect_is_about_the_present_attempt() -> None:
    ledger = ledger_at(S.PENDING, 7)
    job = ledger.apply(happened(ev.Admitted, 7, attempt=3))
    assert job is not None
    assert owed(job) == Launch(7, 3)
