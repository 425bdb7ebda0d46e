"""Every end has a cause of the closed list: from our own intent first, then from what was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drfd.core.job import Job, JobState, Outcome, Stop, Usage
from drfd.core.outcome import judge_end
from drfd.core.stimuli import RunnerEnded
from fakes import GIB, ended, now, spec

MIB = 1 << 20
#: Of a report of an end, to replace the usual ones.
Fields = dict[str, Any]
RUNNING = Job(
    id=1,
    spec=spec(),
    state=JobState.RUNNING,
    attempt=1,
    submitted_at=now().at_s,
    started_at=now().at_s,
    started_mono_s=now().mono_s,
)
LOST = (
    Outcome.LOST,
    "its exit status cannot be known: the machine was restarted or its runner was killed",
)
OWN_LIMIT = (
    Outcome.OUT_OF_MEMORY,
    "needed more than its memory limit of 1G (peak 1G) and was killed with all its processes; "
    "ask for more next time: -m 1536M",
)
HOST_LIMIT = (
    Outcome.OUT_OF_MEMORY,
    "the machine itself ran short of memory and this job was killed for it, "
    "which was within its limit of 1G",
)


def stopped(at_s: float, outcome: Outcome | None = Outcome.CANCELLED, text: str = "why") -> Job:
    stop = Stop(outcome=outcome, text=text, at_s=now(at_s).at_s, mono_s=now(at_s).mono_s)
    return replace(RUNNING, state=JobState.STOPPING, stop=stop)


KILLED: Fields = {"exit_code": None, "signal": 9}
UNKNOWN: Fields = {"exit_code": None, "signal": None}
OOM: Fields = {"oom_killed": True}
OVER: Fields = {"oom_killed": True, "over_limit": True}


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (ended(), (Outcome.COMPLETED, "exit code 0")),
        (ended(exit_code=1), (Outcome.FAILED, "exit code 1")),
        (ended(exit_code=255), (Outcome.FAILED, "exit code 255")),
        (ended(**KILLED), (Outcome.FAILED, "killed by signal 9 (SIGKILL)")),
        (ended(exit_code=None, signal=11), (Outcome.FAILED, "killed by signal 11 (SIGSEGV)")),
        (ended(exit_code=None, signal=40), (Outcome.FAILED, "killed by signal 40 (real-time)")),
        (ended(**UNKNOWN), LOST),
        (ended(**UNKNOWN, mono_s=None, usage=None), LOST),
        (ended(**KILLED, **OVER), OWN_LIMIT),
        (ended(**KILLED, **OVER, usage=None), OWN_LIMIT),
        (ended(**KILLED, **OOM), HOST_LIMIT),
        # A child was killed, and the job noticed and went on: still a job without its memory.
        (ended(**OVER), OWN_LIMIT),
        (ended(exit_code=1, **OVER), OWN_LIMIT),
        (ended(**UNKNOWN, **OVER), OWN_LIMIT),
        (ended(**UNKNOWN, **OOM), HOST_LIMIT),
    ],
)
def test_an_end_that_nobody_asked_for_is_judged_by_what_was_seen(
    end: RunnerEnded, cause: tuple[Outcome, str]
) -> None:
    assert judge_end(RUNNING, end) == cause


def test_a_job_that_reached_its_memory_limit_is_told_its_peak() -> None:
    """Where the kernel counts beyond the limit (swap, measured use), the peak says how far."""
    end = ended(**KILLED, **OVER, usage=Usage(memory_peak_bytes=2 * GIB))
    assert judge_end(RUNNING, end) == (
        Outcome.OUT_OF_MEMORY,
        "needed more than its memory limit of 1G (peak 2G) and was killed with all its processes; "
        "ask for more next time: -m 3G",
    )


def test_a_peak_reading_below_the_limit_is_not_believed() -> None:
    """The reading is a sample, and the limit was reached: the kernel has said so."""
    end = ended(**KILLED, **OVER, usage=Usage(memory_peak_bytes=100 * MIB))
    assert judge_end(RUNNING, end) == OWN_LIMIT


@pytest.mark.parametrize(
    "outcome", [Outcome.CANCELLED, Outcome.TIMEOUT, Outcome.LIMIT_EXCEEDED, None]
)
@pytest.mark.parametrize(
    "seen",
    [
        {},
        {"exit_code": 1},
        {"exit_code": None, "signal": 15},
        KILLED,
        UNKNOWN,
        {**KILLED, **OVER},
        {**KILLED, **OOM},
    ],
)
def test_an_end_after_the_stop_is_the_stops_whatever_was_seen(
    seen: Fields, outcome: Outcome | None
) -> None:
    """A SIGKILL proves nothing by itself; a TERM may be answered with any exit code. No outcome:
    the job is to be queued again."""
    job = stopped(5, outcome, "the reason, with numbers")
    for at_s in (5, 6):
        assert judge_end(job, ended(at_s=at_s, **seen)) == (outcome, "the reason, with numbers")


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        ({}, (Outcome.COMPLETED, "exit code 0")),
        ({"exit_code": 3}, (Outcome.FAILED, "exit code 3")),
        (KILLED, (Outcome.FAILED, "killed by signal 9 (SIGKILL)")),
        ({**KILLED, **OVER}, OWN_LIMIT),
        ({**KILLED, **OOM}, HOST_LIMIT),
        (UNKNOWN, LOST),
    ],
)
def test_an_end_before_the_stop_is_the_jobs_own(seen: Fields, cause: tuple[Outcome, str]) -> None:
    """The stop was asked for while the news of the end was on its way."""
    for outcome in (Outcome.CANCELLED, None):
        assert judge_end(stopped(5, outcome), ended(at_s=4.9, **seen)) == cause


def test_before_and_after_are_told_apart_by_the_monotonic_clock() -> None:
    """The wall clock was set back between the end and the stop, or forward."""
    early = replace(ended(at_s=4.9), at_s=9e9)
    late = replace(ended(at_s=5.1), at_s=0.0)
    assert judge_end(stopped(5), early) == (Outcome.COMPLETED, "exit code 0")
    assert judge_end(stopped(5), late) == (Outcome.CANCELLED, "why")


def test_an_end_of_unknown_time_is_put_down_to_the_stop() -> None:
    end = replace(ended(**UNKNOWN, at_s=1), mono_s=None)
    assert judge_end(stopped(5), end) == (Outcome.CANCELLED, "why")


def test_every_outcome_has_a_place_where_it_comes_from() -> None:
    """LAUNCH_FAILED comes from `decide` alone; the others pass through here."""
    seen = {
        judge_end(RUNNING, end)[0]
        for end in (ended(), ended(exit_code=1), ended(**KILLED, **OVER), ended(**UNKNOWN))
    }
    intended = {
        judge_end(stopped(0, outcome), ended())[0]
        for outcome in (Outcome.CANCELLED, Outcome.TIMEOUT, Outcome.LIMIT_EXCEEDED)
    }
    assert seen | intended | {Outcome.LAUNCH_FAILED} == set(Outcome)
