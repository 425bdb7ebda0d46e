"""What is counted of jobs: each first start and each end once."""

from __future__ import annotations

from dataclasses import replace

from drfd.core.model.job import Job, JobState, Outcome
from drfd.daemon.metrics.tally import Tally
from fakes import spec

WAITING = Job(id=7, spec=spec(), submitted_at=100.0)
RUNNING = replace(WAITING, state=JobState.RUNNING, attempt=1, started_at=103.0)
ENDED = replace(RUNNING, state=JobState.ENDED, outcome=Outcome.COMPLETED)


def starts(tally: Tally) -> tuple[int, float]:
    copy = tally.wait.copy()
    return copy.cumulative[-1][1], copy.sum_s


def ends(tally: Tally) -> dict[Outcome, int]:
    return {outcome: count for outcome, count in tally.ends.items() if count}


def test_a_start_and_an_end_count_once_however_often_the_job_changes() -> None:
    tally = Tally()
    for job in (WAITING, RUNNING, RUNNING, replace(RUNNING, state=JobState.STOPPING), ENDED):
        tally.job_changed(job)
    assert starts(tally) == (1, 3.0)
    assert ends(tally) == {Outcome.COMPLETED: 1}


def test_a_job_that_starts_and_ends_in_one_turn_counts_too() -> None:
    tally = Tally()
    tally.job_changed(ENDED)
    assert starts(tally) == (1, 3.0)
    assert ends(tally) == {Outcome.COMPLETED: 1}


def test_starts_that_an_earlier_daemon_has_seen_are_not_counted_again() -> None:
    tally = Tally()
    requeued = replace(WAITING, id=8, attempt=1)
    starting = replace(WAITING, id=9, attempt=1, state=JobState.STARTING)
    tally.resume([RUNNING, requeued, starting])
    tally.job_changed(ENDED)
    tally.job_changed(replace(requeued, attempt=2, state=JobState.RUNNING, started_at=900.0))
    assert starts(tally) == (0, 0.0)
    tally.job_changed(replace(starting, state=JobState.RUNNING, started_at=110.0))
    assert starts(tally) == (1, 10.0)
