"""Launches that could not be for want of something: they are tried again, and are no ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.explain.reasons import ReasonCode, WaitReason, explain_wait
from drfd.core.fairness.rules import Pool
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.postponed import MOST_PAUSE_S, pause_s
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import JobSpec, JobState, Outcome, Postponed, Retry, Whose
from drfd.core.scheduling.scheduling_pass import start_events
from fakes import ADMIN, ALICE, BOB, Bench, attempt_started, demand, now, rules, schedule, spec

#: The Unix time of `now(0)`.
ZERO_S = 1_700_000_000


def of(actor: st.Actor, **more: object) -> JobSpec:
    return spec(f"root.{actor.user}", actor=actor, **more)  # type: ignore[arg-type]


def short(
    bench: Bench, job_id: int, at_s: float = 0.0, whose: Whose = Whose.MACHINE
) -> list[ev.Event]:
    """The launch of the job was not to be, and nothing is left of it."""
    attempt = bench.job(job_id).attempt
    found = bench.feed(st.LaunchShort(now(at_s), job_id, attempt, "no process", whose, "processes"))
    return found + bench.feed(st.AttemptRemoved(now(at_s), job_id, attempt))


def why(bench: Bench, job_id: int, at_s: float) -> WaitReason:
    plan = schedule(bench.ledger, bench.rules, at_s=at_s)
    found = explain_wait(bench.job(job_id), bench.ledger, plan, bench.rules)
    assert found is not None
    return found


def test_a_launch_for_which_something_was_short_is_no_end_of_the_job(bench: Bench) -> None:
    """A shortage of a moment ended every job that was launched in it as LAUNCH_FAILED."""
    bench.submit()
    assert bench.schedule() == [1]
    kinds = [type(event) for event in short(bench, 1)]
    assert kinds == [ev.LaunchPostponed, ev.Requeued]
    job = bench.job(1)
    assert (job.state, job.outcome, job.retries, job.attempt) == (JobState.PENDING, None, 0, 1)
    assert job.eligible_at == now().at_s
    assert bench.ledger.allocated == bench.ledger.nothing


def test_its_output_is_still_to_be_emptied_by_the_first_attempt_that_runs(bench: Bench) -> None:
    bench.submit()
    for at_s in (0, 10, 20):
        assert bench.schedule(at_s) == [1]
        assert bench.job(1).is_first_run
        short(bench, 1, at_s)
    assert bench.schedule(40) == [1]
    assert bench.job(1).is_first_run
    bench.feed(attempt_started(1, 4, 40))
    bench.preempt(1, at_s=41)
    bench.feed(st.AttemptMissing(now(42), 1, 4))
    bench.feed(st.AttemptRemoved(now(42), 1, 4))
    assert bench.schedule(43) == [1]
    assert not bench.job(1).is_first_run


def test_a_shortage_of_the_machine_keeps_back_all_launches_and_then_one_is_tried(
    bench: Bench,
) -> None:
    for actor in (ALICE, BOB, ALICE, BOB):
        bench.submit(of(actor))
    assert len(bench.schedule()) == 4
    for job_id in (1, 2, 3, 4):
        short(bench, job_id)
    assert bench.schedule(0.5) == []
    (tried,) = bench.schedule(1)
    assert bench.schedule(1.5) == [], "it is not known yet whether it runs"
    short(bench, tried, 2)
    assert bench.schedule(3.5) == [], "the second pause is longer"
    assert bench.schedule(4) == [tried]
    bench.feed(attempt_started(tried, bench.job(tried).attempt, 4.5))
    assert set(bench.schedule(5)) == {1, 2, 3, 4} - {tried}


def test_a_try_that_hangs_does_not_keep_everybody_for_ever(bench: Bench) -> None:
    for _ in range(3):
        bench.submit()
    bench.schedule()
    for job_id in (1, 2, 3):
        short(bench, job_id)
    assert bench.schedule(1) == [1]
    assert bench.schedule(10) == []
    assert bench.schedule(12) == [2]


def test_a_shortage_of_one_user_keeps_back_that_user_alone(bench: Bench) -> None:
    for actor in (ALICE, ALICE, BOB, BOB):
        bench.submit(of(actor))
    bench.schedule()
    for job_id in (1, 2):
        short(bench, job_id, 0, Whose.USER)
    for job_id in (3, 4):
        short(bench, job_id, 0, Whose.JOB)
    bench.submit(of(BOB))
    assert bench.schedule(0.5) == [5]
    assert why(bench, 2, 0.6).code is ReasonCode.MACHINE_SHORT
    bench.feed(st.Tick(now(2)))
    assert bench.schedule(2) in ([3, 1, 4], [1, 3, 4], [3, 4, 1])
    bench.feed(attempt_started(1, 2, 2))
    assert bench.schedule(3) == [2]


def test_pauses_double_up_to_a_minute_and_begin_anew_after_a_success(bench: Bench) -> None:
    assert [pause_s(tries) for tries in (1, 2, 3, 6, 7, 8, 10_000)] == [1, 2, 4, 32, 60, 60, 60]
    bench.submit(of(ALICE))
    at_s, pauses = 0.0, []
    for _ in range(3):
        assert bench.schedule(at_s) == [1]
        (postponed, _) = short(bench, 1, at_s)
        assert isinstance(postponed, ev.LaunchPostponed)
        pauses.append(postponed.why.until_s - now(at_s).at_s)
        at_s += pauses[-1]
    bench.schedule(at_s)
    bench.feed(attempt_started(1, 4, at_s))
    bench.submit(of(BOB))
    assert bench.schedule(at_s) == [2]
    (postponed, _) = short(bench, 2, at_s)
    assert isinstance(postponed, ev.LaunchPostponed)
    pauses.append(postponed.why.until_s - now(at_s).at_s)
    assert pauses == [1, 2, 4, 1]


def test_launches_that_fail_together_count_as_one_failure(bench: Bench) -> None:
    for _ in range(5):
        bench.submit()
    bench.schedule()
    whys = [short(bench, job_id, 0.1 * job_id)[0] for job_id in range(1, 6)]
    assert {event.why.tries for event in whys if isinstance(event, ev.LaunchPostponed)} == {1}


def test_one_job_that_fails_again_and_again_gives_others_their_try(bench: Bench) -> None:
    """What looks like a shortage may be that job, and the others must not wait for it."""
    bench.submit(of(ALICE))
    bench.submit(of(ALICE))
    bench.schedule()
    at_s = 0.0
    tried = []
    for job_id in (1, 2):
        short(bench, job_id, at_s)
    for _ in range(6):
        at_s += MOST_PAUSE_S + 1
        bench.feed(st.Tick(now(at_s)))
        (job_id,) = bench.schedule(at_s)
        tried.append(job_id)
        short(bench, job_id, at_s)
    assert set(tried) == {1, 2}


@pytest.mark.parametrize("whose", Whose)
def test_what_was_put_off_can_be_cancelled_held_and_changed(bench: Bench, whose: Whose) -> None:
    for _ in range(3):
        bench.submit()
    bench.schedule()
    for job_id in (1, 2, 3):
        short(bench, job_id, 0, whose)
    bench.feed(st.CancelAsked(now(0.1), 1, ALICE))
    bench.feed(st.HoldAsked(now(0.2), 2, ALICE))
    bench.feed(st.ChangeAsked(now(0.3), 3, ALICE, st.Change(name="other")))
    assert 1 not in bench.ledger.jobs
    bench.feed(st.Tick(now(5)))
    assert bench.schedule(5) == [3]
    bench.feed(st.ReleaseAsked(now(6), 2, ALICE))
    bench.feed(attempt_started(3, 2, 6))
    assert bench.schedule(7) == [2]


def test_a_cancellation_before_the_bad_news_wins(bench: Bench) -> None:
    bench.submit()
    bench.schedule()
    bench.feed(st.CancelAsked(now(1), 1, ALICE))
    (failed, cleaned) = short(bench, 1, 2)
    assert isinstance(failed, ev.LaunchFailed)
    assert failed.outcome is Outcome.CANCELLED
    assert isinstance(cleaned, ev.Cleaned)


def test_a_cancellation_after_the_bad_news_wins_too(bench: Bench) -> None:
    bench.submit()
    bench.schedule()
    bench.feed(st.LaunchShort(now(1), 1, 1, "no process", Whose.MACHINE, "processes"))
    bench.feed(st.CancelAsked(now(2), 1, ALICE))
    (cleaned,) = bench.feed(st.AttemptRemoved(now(3), 1, 1))
    assert isinstance(cleaned, ev.Cleaned)
    assert 1 not in bench.ledger.jobs


def test_it_costs_none_of_the_tries_that_the_submitter_asked_for(bench: Bench) -> None:
    bench.submit(spec(retry=Retry(1, (Outcome.LAUNCH_FAILED,))))
    for at_s in (0, 5, 20):
        bench.schedule(at_s)
        short(bench, 1, at_s)
    bench.schedule(60)
    bench.feed(st.LaunchAborted(now(60), 1, 4, "no such file"))
    (retried,) = bench.feed(st.AttemptRemoved(now(60), 1, 4))
    assert isinstance(retried, ev.Retried)


@pytest.mark.parametrize("whose", [Whose.MACHINE, Whose.USER])
def test_the_pause_outlives_a_restart(bench: Bench, whose: Whose) -> None:
    """The books are made anew from the records of the jobs."""
    for _ in range(2):
        bench.submit()
    bench.schedule()
    for job_id in (1, 2):
        short(bench, job_id, 0, whose)
    bench.ledger = Ledger.of_jobs(bench.rules.axes, bench.ledger.jobs.values())
    assert bench.schedule(0.5) == []
    assert bench.schedule(1.5) == [1]
    assert bench.schedule(2) == []


def test_a_clock_that_is_set_back_does_not_make_the_pause_longer(bench: Bench) -> None:
    bench.submit()
    bench.schedule()
    short(bench, 1)
    assert bench.schedule(-10_000) == [1]


def test_the_reason_says_what_was_short_and_when_it_is_tried_again(
    bench: Bench,
) -> None:
    for _ in range(2):
        bench.submit()
    bench.schedule()
    for job_id in (1, 2):
        short(bench, job_id)
    shortage = Postponed(
        whose=Whose.MACHINE,
        text="no process",
        resource="processes",
        at_s=ZERO_S,
        until_s=ZERO_S + 1,
        tries=1,
    )
    assert why(bench, 2, 0.5) == WaitReason(ReasonCode.MACHINE_SHORT, shortage)
    bench.schedule(1)
    assert why(bench, 2, 1.1).code is ReasonCode.MACHINE_SHORT
    short(bench, 1, 1.5)
    found = why(bench, 1, 1.6).evidence
    assert isinstance(found, Postponed) and found.tries == 2


def test_a_job_that_there_is_no_room_for_waits_for_room_all_the_same(bench: Bench) -> None:
    bench.rules = replace(rules(cores=1))
    for _ in range(2):
        bench.submit()
    assert bench.schedule() == [1]
    short(bench, 1)
    assert bench.schedule(1) == [1]
    assert why(bench, 2, 11.5).code is ReasonCode.RESOURCES


def test_suspended_jobs_go_on_beside_the_one_that_is_tried(bench: Bench) -> None:
    bench.start()
    bench.suspend(1, by=ADMIN)
    bench.submit()
    bench.submit()
    assert bench.schedule() == [2, 3]
    short(bench, 2)
    short(bench, 3)
    bench.feed(st.ResumeAsked(now(1), 1, ADMIN))
    found = bench.schedule(2)
    assert 1 in found
    assert len(found) == 2


def test_a_job_that_is_left_out_while_one_launch_is_tried_holds_nothing() -> None:
    """Its pool was said to hold what it is to get, and others to wait for the pool's limit."""
    bench = Bench(replace(rules(2), pools={"lab": Pool(limit={"cores": 2000})}))
    tried = bench.submit(of(BOB))
    assert bench.schedule() == [tried]
    short(bench, tried)
    left_out = bench.submit(spec("root.lab", actor=ALICE))
    two = bench.submit(spec("root.lab", actor=ALICE, asks=demand(2)))
    plan = schedule(bench.ledger, bench.rules, at_s=30)
    assert plan.admitted == [tried]
    for event in start_events(bench.ledger, plan, now(30)):
        bench.ledger.apply(event)
    reasons = [
        explain_wait(bench.job(job_id), bench.ledger, plan, bench.rules)
        for job_id in (left_out, two)
    ]
    codes = [None if each is None else each.code for each in reasons]
    assert codes == [ReasonCode.MACHINE_SHORT, ReasonCode.RESOURCES]
