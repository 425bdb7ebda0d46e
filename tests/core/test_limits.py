"""What drfd watches itself: wall time, grace time, and what the kernel cannot enforce."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from drfd.core import events as ev
from drfd.core.job import Job, JobState, Outcome
from drfd.core.limits import (
    IO_FACTOR,
    IO_WINDOW_S,
    Sample,
    deadline_mono_s,
    judge_samples,
    suggest_memory,
    timeout_text,
)
from drfd.core.resources import Resources
from drfd.units import parse_memory, parse_size
from fakes import GIB, demand, happened, ledger_at, now, spec

STEADY = settings(derandomize=True, deadline=None, max_examples=300)
S = JobState
MIB = 1 << 20


def job_at(state: JobState, time_limit_s: int | None = 60) -> Job:
    return ledger_at(state, spec=spec(time_limit_s=time_limit_s)).jobs[1]


def job_that_declares(memory_gib: float = 1, read: int = 0, write: int = 0) -> Job:
    return Job(id=1, spec=spec(asks=demand(1, memory_gib, read, write)), submitted_at=0.0)


def sample(
    mono_s: float, memory: int | None = 0, read: int | None = 0, wrote: int | None = 0
) -> Sample:
    return Sample(
        mono_s=mono_s, memory_bytes=memory, read_bytes=read, written_bytes=wrote, cpu_s=None
    )


# -- deadlines --------------------------------------------------------------------------------


def test_a_running_job_is_due_when_its_time_limit_is_over() -> None:
    assert deadline_mono_s(job_at(S.RUNNING), grace_s=10) == now(60).mono_s


def test_a_stopping_job_is_due_when_the_grace_time_is_over() -> None:
    assert deadline_mono_s(job_at(S.STOPPING), grace_s=10) == now(10).mono_s


def test_a_job_that_was_killed_is_never_due_again() -> None:
    ledger = ledger_at(S.STOPPING)
    job = ledger.apply(happened(ev.Escalated))
    assert job is not None
    assert deadline_mono_s(job, grace_s=10) is None


@pytest.mark.parametrize("state", [S.PENDING, S.HELD, S.STARTING, S.SUSPENDED, S.CLEANING])
def test_a_job_that_does_not_run_is_never_due(state: JobState) -> None:
    assert deadline_mono_s(job_at(state), grace_s=10) is None


def test_the_time_that_a_job_was_frozen_is_added_to_its_deadline() -> None:
    ledger = ledger_at(S.RUNNING, spec=spec(time_limit_s=60))
    due = []
    for event in (
        happened(ev.SuspendRequested, at_s=10),
        happened(ev.Suspended, at_s=12),
        happened(ev.Resumed, at_s=100),
        happened(ev.SuspendRequested, at_s=110),
        happened(ev.Suspended, at_s=110),
        happened(ev.Resumed, at_s=111),
    ):
        job = ledger.apply(event)
        assert job is not None
        due.append(deadline_mono_s(job, grace_s=10))
    first, second, third = now(60).mono_s, now(60 + 88).mono_s, now(60 + 89).mono_s
    assert due == [first, None, second, second, None, third]


def test_a_preempted_job_is_due_when_the_grace_time_is_over() -> None:
    job = ledger_at(S.RUNNING).apply(happened(ev.PreemptRequested, at_s=5))
    assert job is not None
    assert deadline_mono_s(job, grace_s=10) == now(15).mono_s


def test_a_job_stopped_while_it_is_frozen_is_never_due() -> None:
    """It is being killed already."""
    job = ledger_at(S.SUSPENDED).apply(happened(ev.StopRequested))
    assert job is not None
    assert deadline_mono_s(job, grace_s=10) is None


def test_a_job_without_a_limit_is_due_only_once_it_is_stopped() -> None:
    assert deadline_mono_s(job_at(S.RUNNING, None), grace_s=10) is None
    assert deadline_mono_s(job_at(S.STOPPING, None), grace_s=10) == now(10).mono_s


def test_the_text_of_a_timeout_says_what_to_ask_for() -> None:
    assert timeout_text(job_at(S.RUNNING, 5400)) == (
        "ran for its whole time limit of 1h30m; ask for more next time: -t 3h00m"
    )


# -- memory -----------------------------------------------------------------------------------


def test_two_samples_in_a_row_over_the_memory_limit_are_a_breach() -> None:
    found = judge_samples(
        job_that_declares(1), [sample(0, 0), sample(2, 2 * GIB), sample(4, GIB + 1)]
    )
    assert found == (
        Outcome.LIMIT_EXCEEDED,
        "measured 2G of memory, declared 1G; ask for more next time: -m 3G",
    )


@pytest.mark.parametrize(
    "memory",
    [
        [],
        [9 * GIB],
        [9 * GIB, GIB],
        [GIB, 9 * GIB],
        [9 * GIB, GIB, 9 * GIB],
        [9 * GIB, None],
        [None, None],
        [GIB, GIB],
        [9 * GIB, 9 * GIB, 0],
    ],
)
def test_a_peak_or_an_unreadable_or_an_old_sample_is_no_breach_of_memory(
    memory: list[int | None],
) -> None:
    samples = [sample(2.0 * at, amount) for at, amount in enumerate(memory)]
    assert judge_samples(job_that_declares(1), samples) is None


# -- disk I/O ---------------------------------------------------------------------------------

MEGA = 1 << 20


def steady(rate: float, *, seconds: float = IO_WINDOW_S, every_s: float = 2.0) -> list[Sample]:
    """Samples of a job that reads this many bytes a second, and writes half as much."""
    times = [every_s * at for at in range(int(seconds / every_s) + 1)]
    return [sample(1000 + t, 0, int(rate * t), int(rate * t / 2)) for t in times]


def test_reading_far_over_the_declared_rate_for_long_is_a_breach() -> None:
    assert judge_samples(job_that_declares(read=MEGA), steady(3 * MEGA)) == (
        Outcome.LIMIT_EXCEEDED,
        "read 3M/s over 30s, declared 1M/s; ask for more next time with --io",
    )


def test_writing_far_over_the_declared_rate_for_long_is_a_breach() -> None:
    assert judge_samples(job_that_declares(write=MEGA), steady(6 * MEGA)) == (
        Outcome.LIMIT_EXCEEDED,
        "wrote 3M/s over 30s, declared 1M/s; ask for more next time with --io",
    )


def test_nine_tenths_of_the_window_are_long_enough_and_two_samples_are_enough() -> None:
    """Samples come when they come, never exactly the window apart."""
    job = job_that_declares(read=MEGA)
    for apart_s, is_breach in ((27.0, True), (26.9, False)):
        found = judge_samples(job, [sample(0), sample(apart_s, read=int(3 * MEGA * apart_s))])
        assert (found is not None) is is_breach


def test_memory_is_judged_before_io() -> None:
    samples = [replace(each, memory_bytes=9 * GIB) for each in steady(9 * MEGA)]
    found = judge_samples(job_that_declares(read=MEGA), samples)
    assert found is not None
    assert found[1].startswith("measured 9G of memory")


def on_disks(*rates: tuple[str, int, int]) -> Job:
    return replace(job_that_declares(), spec=spec(asks=Resources(disks=rates)))


def test_what_is_measured_is_the_sum_over_all_disks() -> None:
    both = on_disks(("a", MEGA, 0), ("b", 2 * MEGA, 0))
    assert judge_samples(both, steady(6 * MEGA)) is None
    assert judge_samples(both, steady(7 * MEGA)) == (
        Outcome.LIMIT_EXCEEDED,
        "read 7M/s over 30s, declared 3M/s; ask for more next time with --io",
    )


def test_without_a_rate_for_one_disk_the_sum_has_no_bound() -> None:
    assert judge_samples(on_disks(("a", MEGA, 0), ("b", 0, 0)), steady(90 * MEGA)) is None


@pytest.mark.parametrize(
    ("why", "job", "samples"),
    [
        ("no rate declared", job_that_declares(), steady(900 * MEGA)),
        ("just at the factor", job_that_declares(read=MEGA), steady(IO_FACTOR * MEGA)),
        ("too short", job_that_declares(read=MEGA), steady(9 * MEGA, seconds=26)),
        ("one sample", job_that_declares(read=MEGA), steady(9 * MEGA)[-1:]),
        ("no sample", job_that_declares(read=MEGA), []),
        (
            "a burst, then quiet",
            job_that_declares(read=MEGA),
            [sample(0, 0, 0), sample(2, 0, 50 * MEGA), sample(30, 0, 50 * MEGA)],
        ),
        (
            "a burst longer ago than the window",
            job_that_declares(read=MEGA),
            [sample(-2, 0, 0), *(sample(2.0 * at, 0, 900 * MEGA) for at in range(16))],
        ),
        (
            "cannot be read",
            job_that_declares(read=MEGA, write=MEGA),
            [sample(0, 0, None, 0), sample(30, 0, 900 * MEGA, None)],
        ),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_what_is_no_breach_of_io(why: str, job: Job, samples: list[Sample]) -> None:
    assert judge_samples(job, samples) is None


# -- what to ask for next time ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("peak", "text"),
    [
        (1, "16M"),
        (100 * MIB, "160M"),
        (262 * MIB, "416M"),
        (GIB, "1536M"),
        (2 * GIB, "3G"),
        (10 * GIB, "15G"),
        (100 * GIB, "152G"),
    ],
)
def test_the_suggestion_is_half_as_much_again_in_round_figures(peak: int, text: str) -> None:
    assert suggest_memory(peak) == text


@STEADY
@given(some.integers(1, 1 << 50))
def test_the_suggestion_is_enough_and_not_far_too_much_and_can_be_typed(peak: int) -> None:
    asked = parse_size(suggest_memory(peak))
    assert asked == parse_memory(suggest_memory(peak))
    assert peak * 3 <= asked * 2
    assert asked <= peak * 1.5 + max(16 * MIB, peak / 8)
