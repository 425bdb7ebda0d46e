"""Limits that drfd watches, the outcome of an attempt, and its retry."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.common.errors import NotPermitted, Refused
from drfd.common.units import parse_memory, parse_size
from drfd.core.amounts.resources import Resources
from drfd.core.decisions.outcome import (
    IO_FACTOR,
    IO_WINDOW_S,
    LOSSES,
    RETRIED_BY_DEFAULT,
    Attempts,
    GpuMemory,
    Sample,
    attempts_of,
    deadline_mono_s,
    judge_end,
    judge_gpu_memory,
    judge_samples,
    loss_of,
    not_before_s,
    suggest_memory,
    timeout_text,
)
from drfd.core.explain.reasons import ReasonCode, StartsFrom, WaitReason, explain_wait
from drfd.core.ledger.transitions import SIGNALS_KEPT
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    Dependency,
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
from drfd.core.model.stimuli import AttemptEnded
from fakes import (
    ALICE,
    BOB,
    GIB,
    Bench,
    attempt_started,
    demand,
    ended,
    happened,
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
    end: AttemptEnded, cause: tuple[Outcome, str]
) -> None:
    assert judge_end(RUNNING, end) == cause


@pytest.mark.parametrize("loss", LOSSES)
def test_an_end_that_nobody_saw_has_a_code_and_a_sentence_of_its_own(loss: str) -> None:
    """A reboot, a power cut, a stop of all jobs and a killed runner had one text for all."""
    end = ended(**UNKNOWN, loss=loss)
    outcome, text = judge_end(RUNNING, end)
    assert (outcome, loss_of(outcome, end)) == (Outcome.LOST, loss)
    assert text == f"its exit status cannot be known: {LOSSES[loss]}"


@pytest.mark.parametrize("loss", [None, "A_WORD_OF_LATER"])
def test_an_end_of_which_the_launcher_says_nothing_known_has_the_old_sentence(
    loss: str | None,
) -> None:
    end = ended(**UNKNOWN, loss=loss)
    assert judge_end(RUNNING, end) == LOST
    assert loss_of(Outcome.LOST, end) == "UNKNOWN"


def test_only_a_lost_job_has_such_a_code() -> None:
    """One that drfd was stopping, or that ran out of memory, has a cause of its own."""
    end = ended(**UNKNOWN, **OVER, loss="RUNNER_KILLED")
    outcome, _ = judge_end(RUNNING, end)
    assert (outcome, loss_of(outcome, end)) == (Outcome.OUT_OF_MEMORY, None)


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


def test_a_failed_job_waits_a_little_and_is_tried_again(bench: Bench) -> None:
    job_id = bench.start(trying())
    event = fail(bench, job_id, at_s=9.5)
    assert event == ev.Retried(
        job_id=job_id,
        at_s=now(9.5).at_s,
        attempt=1,
        not_before_s=int(now(15).at_s),
    )
    assert bench.schedule(10) == []
    attempts = Attempts(2, 4, "attempt 1 ended FAILED (exit code 3)")
    reason = explain_wait(bench.job(job_id), bench.ledger, None, bench.rules)
    assert reason == WaitReason(ReasonCode.BEGIN_TIME, StartsFrom(int(now(15).at_s), attempts))
    start_again(bench, job_id, 15)
    assert attempts_of(bench.job(job_id)) == attempts


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


def test_after_the_last_try_its_end_is_final(bench: Bench) -> None:
    job_id = bench.start(trying(Retry(2, RETRIED_BY_DEFAULT)))
    for attempt, at_s in ((1, 0), (2, 100)):
        assert isinstance(fail(bench, job_id, at_s), ev.Retried)
        start_again(bench, job_id, at_s + 50)
        assert bench.job(job_id).attempt == attempt + 1
    assert isinstance(fail(bench, job_id, 200), ev.Cleaned)
    assert job_id not in bench.ledger.jobs


def test_a_good_end_is_final(bench: Bench) -> None:
    job_id = bench.start(trying())
    assert isinstance(fail(bench, job_id, exit_code=0), ev.Cleaned)


def test_the_pauses_grow_up_to_five_minutes(bench: Bench) -> None:
    job_id = bench.start(spec(retry=Retry(1000, RETRIED_BY_DEFAULT)))
    pauses, at_s = [], 0
    for _ in range(9):
        event = fail(bench, job_id, at_s)
        assert isinstance(event, ev.Retried)
        pauses.append(event.not_before_s - int(now(at_s).at_s))
        at_s += 1000
        start_again(bench, job_id, at_s)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert not_before_s(bench.job(job_id), 0.0) == 300


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ({"exit_code": 3}, Outcome.FAILED),
        ({"exit_code": None, "signal": 9, "oom_killed": True}, Outcome.OUT_OF_MEMORY),
        ({"exit_code": None, "mono_s": None}, Outcome.LOST),
    ],
)
def test_only_after_what_was_named_it_is_tried_again(
    bench: Bench, how: dict[str, object], outcome: Outcome
) -> None:
    job_id, other = (
        bench.start(trying(Retry(1, (outcome,)))),
        bench.start(trying(Retry(1, tuple(set(Outcome) - {outcome})))),
    )
    assert isinstance(fail(bench, job_id, **how), ev.Retried)
    assert isinstance(fail(bench, other, **how), ev.Cleaned)


def test_a_launch_that_failed_is_tried_again(bench: Bench) -> None:
    job_id = bench.submit(trying())
    bench.schedule()
    bench.feed(st.LaunchAborted(now(), job_id, 1, "no such file"))
    (event,) = bench.feed(st.AttemptRemoved(now(), job_id, 1))
    assert isinstance(event, ev.Retried)
    assert bench.job(job_id).last_end == "attempt 1 ended LAUNCH_FAILED (no such file)"


def test_what_was_cancelled_is_never_tried_again(bench: Bench) -> None:
    """While it runs, while its remains are removed, and while it waits for its next try."""
    jobs = [bench.start(trying()) for _ in range(3)]
    bench.feed(st.CancelAsked(now(), jobs[0], ALICE))
    assert isinstance(fail(bench, jobs[0]), ev.Cleaned)
    bench.feed(ended(jobs[1], exit_code=3))
    bench.feed(st.CancelAsked(now(), jobs[1], ALICE))
    (event,) = bench.feed(st.AttemptRemoved(now(), jobs[1], 1))
    assert isinstance(event, ev.Cleaned)
    fail(bench, jobs[2])
    (event,) = bench.feed(st.CancelAsked(now(), jobs[2], ALICE))
    assert isinstance(event, ev.Cancelled)
    assert bench.ledger.jobs == {}


def test_a_breach_seen_too_late_does_not_keep_it_from_another_try(bench: Bench) -> None:
    job_id = bench.start(trying())
    bench.feed(ended(job_id, exit_code=3))
    late = st.Breached(now(), job_id, 1, Outcome.LIMIT_EXCEEDED, "too much")
    assert bench.feed(late) == []


def test_a_preemption_is_no_retry(bench: Bench) -> None:
    job_id = bench.start(spec(retry=THRICE, preemptible=True))
    bench.preempt(job_id)
    assert isinstance(fail(bench, job_id), ev.Requeued)
    assert bench.job(job_id).retries == 0
    assert attempts_of(bench.job(job_id)) == Attempts(2, 5, "")
    start_again(bench, job_id, 1)
    assert isinstance(fail(bench, job_id, 2), ev.Retried)
    assert attempts_of(bench.job(job_id)) == Attempts(3, 5, "attempt 2 ended FAILED (exit code 3)")


def test_who_waits_for_it_waits_for_its_last_try(bench: Bench) -> None:
    job_id = bench.start(trying(Retry(1, RETRIED_BY_DEFAULT)))
    other = bench.submit(spec(after=(Dependency(job_id),)))
    fail(bench, job_id)
    assert bench.job(other).awaits == (Dependency(job_id),)
    start_again(bench, job_id, 5)
    bench.feed(ended(job_id, 2))
    bench.feed(st.AttemptRemoved(now(), job_id, 2))
    assert bench.schedule(6) == [other]


def test_the_pause_before_a_retry_can_be_cut_short(bench: Bench) -> None:
    job_id = bench.start(trying())
    fail(bench, job_id)
    (event,) = bench.feed(st.ChangeAsked(now(1), job_id, ALICE, st.Change(begin_s=0)))
    assert isinstance(event, ev.Altered)
    assert event.text == "may start at once"
    assert bench.schedule(1) == [job_id]


# -- warnings --------------------------------------------------------------------------------------


def test_a_warning_comes_once_and_so_long_before_the_limit(bench: Bench) -> None:
    job_id = bench.start(spec(time_limit_s=100, warn=Warn(10, 30)))
    assert deadline_mono_s(bench.job(job_id), 10) == now(70).mono_s
    assert bench.feed(st.Tick(now(69))) == []
    assert bench.feed(st.Tick(now(70))) == [ev.Warned(job_id=job_id, at_s=now(70).at_s, signal=10)]
    assert signals_owed(bench.job(job_id)) == SendSignals(job_id, 1, 1, (10,))
    assert bench.feed(st.Tick(now(99))) == []
    (stop,) = bench.feed(st.Tick(now(100)))
    assert isinstance(stop, ev.StopRequested)
    assert signals_owed(bench.job(job_id)) is None, "it is being stopped: nothing else matters"


def test_each_attempt_has_its_warning(bench: Bench) -> None:
    job_id = bench.start(spec(time_limit_s=100, warn=Warn(10, 30), retry=THRICE))
    bench.feed(st.Tick(now(70)))
    fail(bench, job_id, 80)
    start_again(bench, job_id, 85)
    assert signals_owed(bench.job(job_id)) is None
    assert deadline_mono_s(bench.job(job_id), 10) == now(85 + 70).mono_s


def test_the_time_for_which_it_was_frozen_puts_the_warning_off(bench: Bench) -> None:
    job_id = bench.start(spec(time_limit_s=100, warn=Warn(10, 30)))
    bench.suspend(job_id, at_s=10)
    assert bench.feed(st.Tick(now(75))) == []
    bench.feed(st.ResumeAsked(now(80), job_id, ALICE))
    bench.schedule(80)
    assert deadline_mono_s(bench.job(job_id), 10) == now(140).mono_s


def test_a_warning_that_could_not_come_in_time_is_refused(bench: Bench) -> None:
    with pytest.raises(Refused, match="no time limit"):
        bench.submit(spec(time_limit_s=None, warn=Warn(10, 30)))
    with pytest.raises(Refused, match="30s before the end of 30s"):
        bench.submit(spec(time_limit_s=30, warn=Warn(10, 30)))
    job_id = bench.submit(spec(time_limit_s=31, warn=Warn(10, 30)))
    with pytest.raises(Refused, match="no time is left"):
        bench.feed(st.ChangeAsked(now(), job_id, ALICE, st.Change(time_limit_s=20)))


# -- signals ---------------------------------------------------------------------------------------


def test_signals_are_counted_and_the_last_ones_kept(bench: Bench) -> None:
    job_id = bench.start()
    assert signals_owed(bench.job(job_id)) is None
    for number in range(1, SIGNALS_KEPT + 4):
        (event,) = bench.feed(st.SignalAsked(now(), job_id, ALICE, number))
        assert event == ev.SignalRequested(
            job_id=job_id, at_s=now().at_s, signal=number, by="alice"
        )
    kept = tuple(range(4, SIGNALS_KEPT + 4))
    assert signals_owed(bench.job(job_id)) == SendSignals(job_id, 1, SIGNALS_KEPT + 3, kept)


@pytest.mark.parametrize("state", [each for each in JobState if each is not JobState.RUNNING])
def test_only_a_running_job_is_sent_a_signal(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    with pytest.raises(Refused):
        bench.feed(st.SignalAsked(now(), 1, ALICE, 10))


def test_nobody_signals_anothers_job(bench: Bench) -> None:
    job_id = bench.start()
    with pytest.raises(NotPermitted):
        bench.feed(st.SignalAsked(now(), job_id, BOB, 10))


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
        Outcome.OUT_OF_MEMORY,
        "needed more than its memory limit of 1G (measured 2G) and was stopped; "
        "ask for more next time: -m 3G",
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
