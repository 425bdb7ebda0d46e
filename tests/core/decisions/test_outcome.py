"""Limits that drfd watches, the outcome of an attempt, and its retry."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.common.errors import Refused
from drfd.common.units import parse_memory, parse_size
from drfd.core.amounts.resources import Resources
from drfd.core.decisions.outcome import (
    IO_FACTOR,
    IO_WINDOW_S,
    RETRIED_BY_DEFAULT,
    GpuMemory,
    Sample,
    deadline_mono_s,
    judge_end,
    judge_gpu_memory,
    judge_samples,
    suggest_memory,
    timeout_text,
)
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    Job,
    JobSpec,
    JobState,
    Outcome,
    Retry,
    Stop,
    Usage,
    Warn,
)
from drfd.core.model.lifecycle import SendSignals, signals_owed
from fakes import (
    ALICE,
    GIB,
    Bench,
    attempt_started,
    demand,
    ended,
    ledger_at,
    now,
    spec,
)
from seeds import examples

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


def test_a_job_that_wrote_too_much_is_told_how_much_that_was() -> None:
    limited = replace(RUNNING, spec=replace(RUNNING.spec, output_max_bytes=1 << 30))
    assert judge_end(limited, ended(**KILLED, output_bytes=3 << 29)) == (
        Outcome.LIMIT_EXCEEDED,
        "wrote 1.5G to its output files, of which 1G are allowed, and was killed with all its "
        "processes; --output-max allows more next time",
    )


def test_a_peak_reading_below_the_limit_is_not_believed() -> None:
    """The reading is a sample, and the limit was reached: the kernel has said so."""
    end = ended(**KILLED, **OVER, usage=Usage(memory_peak_bytes=100 * MIB))
    assert judge_end(RUNNING, end) == OWN_LIMIT


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


THRICE = Retry(3, RETRIED_BY_DEFAULT)


def trying(retry: Retry = THRICE) -> JobSpec:
    return spec(retry=retry)


def fail(bench: Bench, job_id: int, at_s: float = 0.0, **how: object) -> ev.Event:
    """The running attempt ends badly; what its removal brings about."""
    attempt = bench.job(job_id).attempt
    bench.feed(ended(job_id, attempt, at_s, **({"exit_code": 3} | how)))
    (event,) = bench.feed(st.AttemptRemoved(now(at_s), job_id, attempt))
    return event


def start_again(bench: Bench, job_id: int, at_s: float) -> None:
    bench.feed(st.Tick(now(at_s)))
    assert bench.schedule(at_s) == [job_id]
    bench.feed(attempt_started(job_id, bench.job(job_id).attempt, at_s))


def test_a_clock_that_is_set_back_does_not_hold_a_retry_for_years(bench: Bench) -> None:
    """The pause was over only when the clock had come there again. The time that a user has set is
    left as it is."""
    years_s = 1e8
    bench.submit(spec(begin_s=int(now(years_s).at_s)))
    job_id = bench.start(trying())
    assert isinstance(fail(bench, job_id, years_s), ev.Retried)
    bench.ledger.check()
    # A second or two set the clock back, too, and the pause remains one.
    assert bench.feed(st.Tick(now(years_s - 2))) == []
    bench.feed(st.Tick(now(10)))
    assert bench.schedule(10) == [job_id]
    bench.ledger.check()


def test_the_pause_before_a_retry_can_be_cut_short(bench: Bench) -> None:
    job_id = bench.start(trying())
    fail(bench, job_id)
    (event,) = bench.feed(st.ChangeAsked(now(1), job_id, ALICE, st.Change(begin_s=0)))
    assert isinstance(event, ev.Altered)
    assert event.text == "may start at once"
    assert bench.schedule(1) == [job_id]


# -- warnings --------------------------------------------------------------------------------------


def test_each_attempt_has_its_warning(bench: Bench) -> None:
    job_id = bench.start(spec(time_limit_s=100, warn=Warn(10, 30), retry=THRICE))
    bench.feed(st.Tick(now(70)))
    fail(bench, job_id, 80)
    start_again(bench, job_id, 85)
    assert signals_owed(bench.job(job_id)) is None
    assert deadline_mono_s(bench.job(job_id), 10) == now(85 + 70).mono_s


def test_a_warning_that_could_not_come_in_time_is_refused(bench: Bench) -> None:
    with pytest.raises(Refused, match="no time limit"):
        bench.submit(spec(time_limit_s=None, warn=Warn(10, 30)))
    with pytest.raises(Refused, match="30s before the end of 30s"):
        bench.submit(spec(time_limit_s=30, warn=Warn(10, 30)))
    job_id = bench.submit(spec(time_limit_s=31, warn=Warn(10, 30)))
    with pytest.raises(Refused, match="no time is left"):
        bench.feed(st.ChangeAsked(now(), job_id, ALICE, st.Change(time_limit_s=20)))


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [each for each in JobState if each is not JobState.RUNNING])
def test_only_a_running_job_is_sent_a_signal(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    with pytest.raises(Refused):
        bench.feed(st.SignalAsked(now(), 1, ALICE, 10))


def test_what_is_frozen_gets_its_signals_when_it_goes_on(bench: Bench) -> None:
    job_id = bench.start()
    bench.feed(st.SignalAsked(now(), job_id, ALICE, 10))
    bench.suspend(job_id)
    assert signals_owed(bench.job(job_id)) is None
    bench.feed(st.ResumeAsked(now(), job_id, ALICE))
    bench.schedule()
    assert signals_owed(bench.job(job_id)) == SendSignals(job_id, 1, 1, (10,))


STEADY = examples(300)
S = JobState
MIB = 1 << 20


# -- limits that drfd watches ---------------------------------------------------------------------


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
        Outcome.OUT_OF_MEMORY,
        "needed more than its memory limit of 1G (measured 2G) and was stopped; "
        "ask for more next time: -m 3G",
    )


# -- memory of GPUs ---------------------------------------------------------------------------


def job_on_gpus(declared: int | None = 20 * GIB, count: int = 2) -> Job:
    memory = () if declared is None else (("gpu", declared),)
    asks = replace(demand(), gres=(("gpu", count),), gres_memory=memory)
    return Job(id=1, spec=spec(asks=asks), submitted_at=0.0)


def test_two_readings_in_a_row_above_the_memory_of_a_gpu_are_a_breach() -> None:
    """The limit is of each GPU: what it has on the others does not count."""
    gpus = [GpuMemory("0", (GIB, GIB)), GpuMemory("GPU-b", (21 * GIB, 22 * GIB), 80 * GIB)]
    assert judge_gpu_memory(job_on_gpus(), gpus) == (
        Outcome.LIMIT_EXCEEDED,
        "used 22G of the memory of GPU GPU-b, and 20G were declared; it was stopped after 2 "
        "readings above that; ask for more next time: --gres gpu=2,memory=34G (what CUDA needs "
        "for itself on a GPU, 0.3G to 0.5G, counts too)",
    )


@pytest.mark.parametrize(
    "readings",
    [
        (),
        (30 * GIB,),
        (30 * GIB, 20 * GIB),
        (20 * GIB, 30 * GIB),
        (20 * GIB, 20 * GIB),
        (30 * GIB, 30 * GIB, 1),
    ],
)
def test_a_spike_or_an_old_reading_is_no_breach_on_a_gpu(readings: tuple[int, ...]) -> None:
    job = job_on_gpus()
    assert judge_gpu_memory(job, [GpuMemory("0", readings)]) is None
    # Nor is each of two GPUs once.
    assert judge_gpu_memory(job, [GpuMemory(name, (30 * GIB,)) for name in "01"]) is None


def test_a_job_that_declares_no_memory_of_gpus_may_use_all_of_it() -> None:
    assert judge_gpu_memory(job_on_gpus(None), [GpuMemory("0", (1 << 50, 1 << 50))]) is None


@given(
    some.integers(1, 1 << 40), some.integers(1, 1 << 40), some.none() | some.integers(1, 1 << 41)
)
def test_what_is_advised_after_a_breach_is_more_than_was_declared_and_used(
    declared: int, more: int, total: int | None
) -> None:
    """And no more than the GPU has, unless it was used already."""
    used = declared + more
    found = judge_gpu_memory(job_on_gpus(declared), [GpuMemory("0", (used, used), total)])
    assert found is not None
    (advised,) = re.findall(r"--gres gpu=2,memory=([0-9A-Z]+) ", found[1])
    assert parse_size(advised) >= used > declared
    assert total is None or parse_size(advised) <= max(total, used)
    shown = re.findall(r"used (\S+) of .* and (\S+) were declared", found[1])[0]
    assert shown[0] != shown[1]


# -- disk I/O ---------------------------------------------------------------------------------

MEGA = 1 << 20


def steady(rate: float, *, seconds: float = IO_WINDOW_S, every_s: float = 2.0) -> list[Sample]:
    """Samples of a job that reads this many bytes a second, and writes half as much."""
    times = [every_s * at for at in range(int(seconds / every_s) + 1)]
    return [sample(1000 + t, 0, int(rate * t), int(rate * t / 2)) for t in times]


def test_writing_far_over_the_declared_rate_for_long_is_a_breach() -> None:
    assert judge_samples(job_that_declares(write=MEGA), steady(6 * MEGA)) == (
        Outcome.LIMIT_EXCEEDED,
        "wrote 3M/s over 30s, declared 1M/s; ask for more next time with --io",
    )


def test_memory_is_judged_before_io() -> None:
    samples = [replace(each, memory_bytes=9 * GIB) for each in steady(9 * MEGA)]
    found = judge_samples(job_that_declares(read=MEGA), samples)
    assert found is not None
    assert found[0] is Outcome.OUT_OF_MEMORY


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


@STEADY
@given(some.integers(1, 1 << 50))
def test_the_suggestion_is_enough_and_not_far_too_much_and_can_be_typed(peak: int) -> None:
    asked = parse_size(suggest_memory(peak))
    assert asked == parse_memory(suggest_memory(peak))
    assert peak * 3 <= asked * 2
    assert asked <= peak * 1.5 + max(16 * MIB, peak / 8)
