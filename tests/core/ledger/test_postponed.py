"""Launches that could not be for want of something: they are tried again, and are no ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.explain.reasons import ReasonCode, WaitReason, explain_wait
from drfd.core.fairness.rules import Pool
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.postponed import MOST_PAUSE_S
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import JobSpec, Outcome, Postponed, Whose
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
