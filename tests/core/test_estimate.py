"""How long jobs will run, from their limits and their user's past."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.estimate import RunTimes
from drfd.core.job import Job, JobState
from fakes import spec


def running(limit_s: int | None, started_s: float = 1000.0) -> Job:
    return Job(
        id=1,
        spec=spec(time_limit_s=limit_s),
        state=JobState.RUNNING,
        submitted_at=0.0,
        started_at=started_s,
    )


def times(*runs: float) -> RunTimes:
    found = RunTimes()
    for run_s in runs:
        found.add("alice", run_s)
    return found


@pytest.mark.parametrize(
    ("runs", "limit_s", "expected_s"),
    [
        ((), None, 3600),
        ((), 600, 600),
        ((100, 200), None, 300),
        ((9999, 100, 200), None, 300),
        ((50,), 7200, 100),
        ((1, 2), 7200, 60),
        ((5000, 5000), 7200, 7200),
    ],
)
def test_twice_what_the_last_two_took_and_never_more_than_the_limit(
    runs: tuple[float, ...], limit_s: int | None, expected_s: float
) -> None:
    assert times(*runs).length_s(spec(time_limit_s=limit_s)) == expected_s


def test_a_job_that_outlives_its_estimate_is_given_twice_as_long() -> None:
    guess = times(100, 100)
    assert guess.end_s(running(None), 1100.0) == 1200
    assert guess.end_s(running(None), 1200.0) == 1400
    assert guess.end_s(running(None), 2000.0) == 2600
    assert guess.end_s(running(500), 1400.0) == 1500


def test_at_its_limit_it_ends_any_moment() -> None:
    assert times(100).end_s(running(500), 1600.0) == 1600


def test_one_that_is_about_to_start_counts_from_now() -> None:
    job = replace(running(None), started_at=None, state=JobState.STARTING)
    assert times(100).end_s(job, 5000.0) == 5200


def test_the_time_that_a_job_was_frozen_does_not_count() -> None:
    """Started at 1000, frozen for 500 s in sum."""
    job = replace(running(600), suspended_s=500.0)
    assert times().end_s(job, 1700.0) == 1000 + 500 + 600
    assert times(100).end_s(job, 1700.0) == 1000 + 500 + 400, "it has outlived its estimate"


def test_the_end_of_a_frozen_job_moves_along() -> None:
    """It ran for 100 s of its 600, and was frozen at 1150 and, for 50 s, before."""
    job = replace(running(600), state=JobState.SUSPENDED, suspended_at=1150.0, suspended_s=50.0)
    assert [times().end_s(job, now_s) for now_s in (1150.0, 2000.0)] == [1650, 2500]


def test_other_users_have_other_times() -> None:
    assert times(100).length_s(replace(spec(time_limit_s=None), user="bob")) == 3600
