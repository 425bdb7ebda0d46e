"""Trying again after a bad end, warnings before the time limit, and signals that people send."""

from __future__ import annotations

import pytest

from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.awaiting import SIGNALS_KEPT
from drfd.core.effects import Signal, signals_owed
from drfd.core.job import Dependency, JobSpec, JobState, Outcome, Retry, Warn
from drfd.core.limits import deadline_mono_s
from drfd.core.reasons import ReasonCode, explain_wait
from drfd.core.retry import USUAL, attempts_text, not_before_s
from drfd.errors import NotPermitted, Refused
from fakes import ALICE, BOB, Bench, ended, now, runner_up, spec

THRICE = Retry(3, USUAL)


def trying(retry: Retry = THRICE) -> JobSpec:
    return spec(retry=retry)


def fail(bench: Bench, job_id: int, at_s: float = 0.0, **how: object) -> ev.Event:
    """The running attempt ends badly; what its removal brings about."""
    attempt = bench.job(job_id).attempt
    bench.feed(ended(job_id, attempt, at_s, **({"exit_code": 3} | how)))
    (event,) = bench.feed(st.CgroupGone(now(at_s), job_id, attempt))
    return event


def start_again(bench: Bench, job_id: int, at_s: float) -> None:
    bench.feed(st.Tick(now(at_s)))
    assert bench.schedule(at_s) == [job_id]
    bench.feed(runner_up(job_id, bench.job(job_id).attempt, at_s))


def test_a_failed_job_waits_a_little_and_is_tried_again(bench: Bench) -> None:
    job_id = bench.start(trying())
    event = fail(bench, job_id, at_s=9.5)
    assert event == ev.Retried(
        job_id=job_id, at_s=now(9.5).at_s, attempt=1, not_before_s=int(now(15).at_s)
    )
    assert bench.schedule(10) == []
    reason = explain_wait(bench.job(job_id), bench.ledger, None, bench.rules, lambda at: "14:05")
    assert reason is not None
    assert (reason.code, reason.text) == (
        ReasonCode.BEGIN_TIME,
        "attempt 2 of 4; attempt 1 ended FAILED (exit code 3); it may start from 14:05 on",
    )
    start_again(bench, job_id, 15)
    assert attempts_text(bench.job(job_id)) == (
        "attempt 2 of 4; attempt 1 ended FAILED (exit code 3)"
    )


def test_after_the_last_try_its_end_is_final(bench: Bench) -> None:
    job_id = bench.start(trying(Retry(2, USUAL)))
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
    job_id = bench.start(spec(retry=Retry(1000, USUAL)))
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
    bench.feed(st.LaunchBroke(now(), job_id, 1, "no such file"))
    (event,) = bench.feed(st.CgroupGone(now(), job_id, 1))
    assert isinstance(event, ev.Retried)
    assert bench.job(job_id).last_end == "attempt 1 ended LAUNCH_FAILED (no such file)"


def test_what_was_cancelled_is_never_tried_again(bench: Bench) -> None:
    """While it runs, while its remains are removed, and while it waits for its next try."""
    jobs = [bench.start(trying()) for _ in range(3)]
    bench.feed(st.CancelAsked(now(), jobs[0], ALICE))
    assert isinstance(fail(bench, jobs[0]), ev.Cleaned)
    bench.feed(ended(jobs[1], exit_code=3))
    bench.feed(st.CancelAsked(now(), jobs[1], ALICE))
    (event,) = bench.feed(st.CgroupGone(now(), jobs[1], 1))
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
    assert attempts_text(bench.job(job_id)) == "attempt 2 of 5"
    start_again(bench, job_id, 1)
    assert isinstance(fail(bench, job_id, 2), ev.Retried)
    assert attempts_text(bench.job(job_id)).startswith("attempt 3 of 5; attempt 2 ended FAILED")


def test_who_waits_for_it_waits_for_its_last_try(bench: Bench) -> None:
    job_id = bench.start(trying(Retry(1, USUAL)))
    other = bench.submit(spec(after=(Dependency(job_id),)))
    fail(bench, job_id)
    assert bench.job(other).awaits == (Dependency(job_id),)
    start_again(bench, job_id, 5)
    bench.feed(ended(job_id, 2))
    bench.feed(st.CgroupGone(now(), job_id, 2))
    assert bench.schedule(6) == [other]


def test_the_pause_before_a_retry_can_be_cut_short(bench: Bench) -> None:
    job_id = bench.start(trying())
    fail(bench, job_id)
    (event,) = bench.feed(st.ChangeAsked(now(1), job_id, ALICE, st.Change(begin_s=0)))
    assert isinstance(event, ev.Changed)
    assert event.text == "may start at once"
    assert bench.schedule(1) == [job_id]


# -- warnings --------------------------------------------------------------------------------------


def test_a_warning_comes_once_and_so_long_before_the_limit(bench: Bench) -> None:
    job_id = bench.start(spec(time_limit_s=100, warn=Warn(10, 30)))
    assert deadline_mono_s(bench.job(job_id), 10) == now(70).mono_s
    assert bench.feed(st.Tick(now(69))) == []
    assert bench.feed(st.Tick(now(70))) == [ev.Warned(job_id=job_id, at_s=now(70).at_s, signal=10)]
    assert signals_owed(bench.job(job_id)) == Signal(job_id, 1, 1, (10,))
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
    assert signals_owed(bench.job(job_id)) == Signal(job_id, 1, SIGNALS_KEPT + 3, kept)


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
    assert signals_owed(bench.job(job_id)) == Signal(job_id, 1, 1, (10,))
