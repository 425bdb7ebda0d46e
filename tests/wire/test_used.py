"""What an ended job used, as clients see it: unknown is null."""

from __future__ import annotations

from dataclasses import replace

from drfd.core.job import Job, JobState, Outcome, Usage
from drfd.wire.used import USED, ended_view, used_view
from fakes import spec

JOB = Job(
    id=3,
    spec=spec(),
    state=JobState.ENDED,
    attempt=1,
    submitted_at=0.0,
    started_at=100.0,
    ended_at=160.5,
    suspended_s=10.25,
    outcome=Outcome.COMPLETED,
    usage=Usage(
        cpu_s=40.1234, memory_peak_bytes=700, read_bytes=1, throttled_us=1_500_000, limit_hits=0
    ),
)


def test_what_was_counted_is_shown_and_what_was_not_is_null() -> None:
    assert used_view(JOB) == {
        "wall_seconds": 60.5, "suspended_seconds": 10.25, "cpu_seconds": 40.123, "late_cores": None,
        "memory_peak": 700, "memory_mean": None, "memory_working": None, "largest_process": None,
        "read_bytes": 1, "written_bytes": 0, "read_peak": None, "write_peak": None,
        "quota_periods": None, "throttled_periods": None, "throttled_seconds": 1.5,
        "limit_hits": 0, "oom_kills": None, "io_stalled_seconds": None, "processes_peak": None,
    }  # fmt: skip


def test_of_a_job_that_never_ran_nothing_is_known() -> None:
    job = replace(JOB, started_at=None, usage=None)
    assert set(used_view(job).values()) == {None}
    assert tuple(used_view(job)) == tuple(used_view(JOB)) == USED


def test_a_job_that_nobody_has_seen_running_did_not_use_nothing() -> None:
    """It was lost with all that could have told."""
    view = used_view(replace(JOB, usage=Usage()))
    assert (view["wall_seconds"], view["cpu_seconds"], view["read_bytes"]) == (60.5, None, None)


def test_a_job_that_was_frozen_when_it_ended_was_frozen_until_then() -> None:
    job = replace(JOB, suspended_s=0.0, suspended_at=150.0)
    assert used_view(job)["suspended_seconds"] == 10.5


def test_others_see_what_it_used_and_not_what_it_was() -> None:
    theirs = ended_view(JOB, private=False)
    assert theirs["used"] == used_view(JOB)
    assert (theirs["argv"], theirs["cwd"], theirs["stdout"]) == (None, None, None)
    assert ended_view(JOB, private=True)["argv"] == ["true"]
