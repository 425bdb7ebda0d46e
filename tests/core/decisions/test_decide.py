"""Events that follow from reports, stale reports, and reconciliation with the launcher."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.decisions.decide import Leftovers, leftovers, missing_attempts
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job, JobState, Outcome, Owner, owner_of
from drfd.core.model.lifecycle import RemoveAttempt
from drfd.core.model.stimuli import AttemptMissing
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    ROADS,
    Bench,
    attempt_started,
    demand,
    ended,
    happened,
    ledger_at,
    now,
    rules,
    schedule,
    spec,
)

S = JobState


# -- scheduling -------------------------------------------------------------------------------


def test_a_pass_admits_what_fits_in_order_and_books_it(bench: Bench) -> None:
    bench.submit(spec(asks=demand(6)))
    bench.submit(spec(asks=demand(6)))
    bench.submit(spec(asks=demand(3)))
    assert bench.run_pass(7) == [
        ev.Admitted(job_id=1, at_s=now(7).at_s, attempt=1, why=ev.StartReason.TURN),
        ev.Admitted(job_id=3, at_s=now(7).at_s, attempt=1, why=ev.StartReason.TURN),
    ]
    assert bench.run_pass(8) == []


def test_a_job_that_has_exited_still_holds_its_resources_until_it_is_cleaned(bench: Bench) -> None:
    first = bench.start(spec(asks=demand(9)))
    bench.submit(spec(asks=demand(9)))
    bench.feed(ended(first))
    assert bench.schedule() == []
    bench.feed(st.AttemptRemoved(now(), first, 1))
    assert bench.schedule() == [2]


def test_nothing_is_admitted_after_the_capacity_has_shrunk_below_what_is_booked(
    bench: Bench,
) -> None:
    bench.start(spec(asks=demand(9)))
    bench.submit(spec(asks=demand(1)))
    assert schedule(bench.ledger, rules(4, 18)).admitted == []


# -- news of runners --------------------------------------------------------------------------


def test_a_runner_that_is_up_makes_the_job_running(bench: Bench) -> None:
    bench.bring(S.STARTING)
    assert bench.feed(attempt_started(at_s=2)) == [happened(ev.Launched, at_s=2)]
    assert bench.job(1).state is S.RUNNING


def test_a_start_is_taken_once_however_often_it_is_reported(bench: Bench) -> None:
    """The launcher repeats its news after every reconnection."""
    bench.bring(S.RUNNING)
    started = bench.job(1)
    assert bench.feed(attempt_started(at_s=99)) == []
    bench.feed(st.CancelAsked(now(100), 1, ALICE))
    assert bench.feed(attempt_started(at_s=101)) == []
    assert bench.job(1).started_at == started.started_at


def test_a_launch_that_broke_says_what_failed(bench: Bench) -> None:
    bench.bring(S.STARTING)
    assert bench.feed(st.LaunchAborted(now(2), 1, 1, "no such directory")) == [
        happened(ev.LaunchFailed, at_s=2, text="no such directory")
    ]


def test_a_launch_can_still_break_after_the_runner_was_up(bench: Bench) -> None:
    bench.bring(S.RUNNING)
    assert bench.feed(st.LaunchAborted(now(2), 1, 1, "exec failed")) == [
        happened(ev.LaunchFailed, at_s=2, text="exec failed")
    ]


def test_a_launch_that_broke_because_it_was_stopped_ends_as_what_stopped_it(bench: Bench) -> None:
    bench.bring(S.STARTING)
    bench.feed(st.CancelAsked(now(1), 1, ADMIN))
    assert bench.feed(st.LaunchAborted(now(2), 1, 1, "killed before exec")) == [
        happened(ev.LaunchFailed, at_s=2, outcome=Outcome.CANCELLED, text="cancelled by root")
    ]


@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING, S.SUSPENDED])
def test_an_exit_is_judged_and_its_usage_kept(bench: Bench, state: JobState) -> None:
    """STARTING: the launcher was away for the job's whole life. SUSPENDED: it was over before it
    was frozen, or somebody has killed it."""
    bench.bring(state)
    assert bench.feed(ended(at_s=2, exit_code=3)) == [
        happened(
            ev.Exited,
            at_s=2,
            exit_code=3,
            outcome=Outcome.FAILED,
            text="exit code 3",
            usage=ended().usage,
        )
    ]
    assert bench.job(1).state is S.CLEANING


def test_a_clean_cgroup_ends_the_job(bench: Bench) -> None:
    bench.bring(S.CLEANING)
    assert bench.feed(st.AttemptRemoved(now(2), 1, 1)) == [happened(ev.Cleaned, at_s=2)]
    assert bench.ledger.jobs == {}


def test_a_running_job_is_not_over_because_somebody_says_its_cgroup_is_gone(bench: Bench) -> None:
    """First the end, then the cleaning: resources never come back while the end is unknown."""
    bench.bring(S.RUNNING)
    assert bench.feed(st.AttemptRemoved(now(), 1, 1)) == []
    assert bench.job(1).state is S.RUNNING


@pytest.mark.parametrize("state", [S.RUNNING, S.SUSPENDED, S.STOPPING])
def test_an_attempt_that_nobody_knows_of_is_an_end_of_which_nothing_is_known(
    bench: Bench, state: JobState
) -> None:
    bench.bring(state)
    lost = "its exit status cannot be known: the machine was restarted or its runner was killed"
    facts = {"outcome": Outcome.LOST, "text": lost, "loss": "UNKNOWN"}
    if state is S.STOPPING:
        facts = {"outcome": Outcome.CANCELLED, "text": "cancelled by alice"}
    assert bench.feed(st.AttemptMissing(now(2), 1, 1)) == [
        happened(ev.Exited, at_s=2, exit_code=None, signal=None, **facts)
    ]


@pytest.mark.parametrize("state", [S.PENDING, S.HELD, S.STARTING, S.CLEANING, S.ENDED])
def test_an_attempt_that_should_have_no_runner_is_not_missed(bench: Bench, state: JobState) -> None:
    """STARTING: it has simply not been launched yet, and the launch is still owed."""
    bench.bring(state)
    assert bench.feed(st.AttemptMissing(now(2), 1, 1)) == []


#: Makes news of an attempt of a job.
News = Callable[[int, int], st.Stimulus]
NEWS: list[News] = [
    lambda job_id, attempt: attempt_started(job_id, attempt),
    lambda job_id, attempt: st.LaunchAborted(now(), job_id, attempt, "no such file"),
    lambda job_id, attempt: ended(job_id, attempt),
    lambda job_id, attempt: st.Frozen(now(), job_id, attempt),
    lambda job_id, attempt: st.AttemptMissing(now(), job_id, attempt),
    lambda job_id, attempt: st.AttemptRemoved(now(), job_id, attempt),
    lambda job_id, attempt: st.Breached(now(), job_id, attempt, Outcome.LIMIT_EXCEEDED, "much"),
]
NEWS_IDS = ["up", "broke", "ended", "frozen", "missing", "gone", "breached"]


@pytest.mark.parametrize("news", NEWS, ids=NEWS_IDS)
@pytest.mark.parametrize("state", JobState)
def test_news_of_another_attempt_or_another_job_is_ignored(
    bench: Bench, state: JobState, news: News
) -> None:
    bench.bring(state)
    now_at = bench.ledger.jobs[1].attempt if 1 in bench.ledger.jobs else 1
    for job_id, attempt in ((1, now_at + 1), (1, now_at - 1), (2, 1), (10_000, 1)):
        assert bench.feed(news(job_id, attempt)) == []


@pytest.mark.parametrize("news", NEWS, ids=NEWS_IDS)
@pytest.mark.parametrize("state", [S.PENDING, S.HELD, S.ENDED])
def test_news_of_a_job_that_has_no_runner_is_ignored(
    bench: Bench, state: JobState, news: News
) -> None:
    bench.bring(state)
    for attempt in (0, 1):
        assert bench.feed(news(1, attempt)) == []


@pytest.mark.parametrize("news", [each for each in NEWS if each is not NEWS[5]])
def test_the_second_report_of_one_end_is_ignored(bench: Bench, news: News) -> None:
    bench.bring(S.CLEANING)
    assert bench.feed(news(1, 1)) == []


# -- freezing ---------------------------------------------------------------------------------


def test_the_news_that_a_job_is_frozen_suspends_it(bench: Bench) -> None:
    bench.bring(S.RUNNING)
    bench.feed(st.SuspendAsked(now(1), 1, ALICE))
    assert bench.feed(st.Frozen(now(2), 1, 1)) == [
        ev.Suspended(job_id=1, at_s=now(2).at_s, attempt=1, mono_s=now(2).mono_s)
    ]
    assert bench.job(1).state is S.SUSPENDED


@pytest.mark.parametrize("state", JobState)
def test_news_of_a_freezing_that_nobody_asked_for_is_ignored(bench: Bench, state: JobState) -> None:
    """SUSPENDED: the launcher says it again after a restart. RUNNING: somebody else has a
    freezer, or the job has gone on since."""
    bench.bring(state)
    assert bench.feed(st.Frozen(now(5), 1, 1)) == []


def test_late_news_of_a_freezing_does_not_freeze_a_job_that_has_gone_on(bench: Bench) -> None:
    bench.bring(S.SUSPENDED)
    bench.feed(st.ResumeAsked(now(1), 1, ALICE))
    assert bench.schedule(2) == [1]
    assert bench.feed(st.Frozen(now(3), 1, 1)) == []
    job = bench.job(1)
    assert (job.state, job.suspensions) == (S.RUNNING, 1)


def test_late_news_of_a_freezing_does_not_keep_a_job_that_is_being_stopped(bench: Bench) -> None:
    bench.bring(S.RUNNING)
    bench.feed(st.SuspendAsked(now(1), 1, ALICE))
    bench.feed(st.CancelAsked(now(2), 1, ALICE))
    before = bench.job(1)
    assert bench.feed(st.Frozen(now(3), 1, 1)) == []
    assert bench.job(1) == before


# -- requeueing -------------------------------------------------------------------------------

WHY = "stopped for job 2"


def test_a_preempted_job_is_queued_again_when_nothing_of_it_is_left_and_runs_again(
    bench: Bench,
) -> None:
    bench.bring(S.RUNNING)
    bench.preempt(1, at_s=1)
    assert bench.feed(ended(at_s=2, exit_code=None, signal=15)) == [
        happened(
            ev.Exited, at_s=2, exit_code=None, signal=15, outcome=None, text=WHY,
            usage=ended().usage,
        )
    ]  # fmt: skip
    assert bench.schedule(3) == []
    assert bench.feed(st.AttemptRemoved(now(4), 1, 1)) == [happened(ev.Requeued, at_s=4)]
    admitted = happened(ev.Admitted, at_s=5, attempt=2, why=ev.StartReason.TURN)
    assert bench.run_pass(5) == [admitted]
    assert bench.feed(attempt_started(attempt=2, at_s=6)) != []
    (exited,) = bench.feed(ended(attempt=2, at_s=7))
    assert exited == happened(ev.Exited, at_s=7, attempt=2, usage=ended().usage)


def test_a_preempted_job_that_does_not_leave_is_killed_after_the_grace_time(bench: Bench) -> None:
    bench.bring(S.RUNNING)
    bench.preempt(1, at_s=1)
    assert bench.feed(st.Tick(now(10.9))) == []
    assert bench.feed(st.Tick(now(11))) == [happened(ev.Escalated, at_s=11)]
    (exited,) = bench.feed(ended(at_s=12, exit_code=None, signal=9))
    assert isinstance(exited, ev.Exited)
    assert (exited.outcome, exited.text) == (None, WHY)


def test_a_job_that_was_over_before_it_was_preempted_is_over(bench: Bench) -> None:
    """The news of its end was on its way: it has done its work, and does not do it twice."""
    bench.bring(S.RUNNING)
    bench.preempt(1, at_s=5)
    assert bench.feed(ended(at_s=4.9)) == [happened(ev.Exited, at_s=4.9, usage=ended().usage)]
    assert bench.feed(st.AttemptRemoved(now(6), 1, 1)) == [happened(ev.Cleaned, at_s=6)]


def test_a_preempted_job_whose_program_could_not_be_run_is_not_tried_again(bench: Bench) -> None:
    """The runner is up and says so before exec has succeeded."""
    bench.bring(S.RUNNING)
    bench.preempt(1, at_s=1)
    assert bench.feed(st.LaunchAborted(now(2), 1, 1, "exec failed")) == [
        happened(ev.LaunchFailed, at_s=2, text="exec failed")
    ]
    assert bench.feed(st.AttemptRemoved(now(3), 1, 1)) == [happened(ev.Cleaned, at_s=3)]


@pytest.mark.parametrize("missing", [False, True])
def test_a_preempted_job_of_whose_end_nothing_is_known_is_queued_again_all_the_same(
    bench: Bench, missing: bool
) -> None:
    """It was to be run again anyway."""
    bench.bring(S.RUNNING)
    bench.preempt(1, at_s=1)
    news = st.AttemptMissing(now(2), 1, 1)
    unseen = ended(at_s=2, exit_code=None, signal=None, mono_s=None, usage=None)
    lost = happened(ev.Exited, at_s=2, exit_code=None, signal=None, outcome=None, text=WHY)
    assert bench.feed(news if missing else unseen) == [lost]
    assert bench.feed(st.AttemptRemoved(now(3), 1, 1)) == [happened(ev.Requeued, at_s=3)]


def test_news_of_the_earlier_attempt_means_nothing_to_a_job_that_is_queued_again(
    bench: Bench,
) -> None:
    bench.bring(S.RUNNING)
    bench.preempt(1)
    bench.feed(ended())
    bench.feed(st.AttemptRemoved(now(), 1, 1))
    for again in (False, True):
        if again:
            assert bench.schedule(1) == [1]
        before = bench.job(1)
        for news in NEWS:
            assert bench.feed(news(1, 1)) == []
        assert bench.job(1) == before


# -- limits and time --------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING, S.SUSPENDED])
def test_a_measured_breach_stops_the_job(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    breach = st.Breached(now(4), 1, 1, Outcome.LIMIT_EXCEEDED, "measured 2G, declared 1G")
    assert bench.feed(breach) == [
        happened(
            ev.StopRequested,
            at_s=4,
            outcome=Outcome.LIMIT_EXCEEDED,
            text="measured 2G, declared 1G",
        )
    ]


@pytest.mark.parametrize("state", [S.STOPPING, S.CLEANING])
def test_a_breach_of_what_is_being_stopped_changes_nothing(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    assert bench.feed(st.Breached(now(), 1, 1, Outcome.LIMIT_EXCEEDED, "much")) == []


def test_a_breach_ends_a_job_that_was_to_be_queued_again_for_good(bench: Bench) -> None:
    bench.bring(S.RUNNING)
    bench.preempt(1, at_s=1)
    assert bench.feed(st.Breached(now(2), 1, 1, Outcome.LIMIT_EXCEEDED, "much")) == [
        happened(ev.StopRequested, at_s=2, outcome=Outcome.LIMIT_EXCEEDED, text="much")
    ]
    bench.feed(ended(at_s=3))
    assert bench.job(1).outcome is Outcome.LIMIT_EXCEEDED


def test_a_job_is_stopped_when_its_time_is_over_and_killed_after_the_grace_time(
    bench: Bench,
) -> None:
    bench.start(spec(time_limit_s=60), at_s=100)
    assert bench.feed(st.Tick(now(159.9))) == []
    text = "ran for its whole time limit of 1m00s; ask for more next time: -t 2m00s"
    assert bench.feed(st.Tick(now(160))) == [
        happened(ev.StopRequested, at_s=160, outcome=Outcome.TIMEOUT, text=text)
    ]
    assert bench.feed(st.Tick(now(169.9))) == []
    assert bench.feed(st.Tick(now(170))) == [happened(ev.Escalated, at_s=170)]
    assert bench.feed(st.Tick(now(1e9))) == []
    (exited,) = bench.feed(ended(at_s=171, exit_code=None, signal=9))
    assert exited == happened(
        ev.Exited,
        at_s=171,
        exit_code=None,
        signal=9,
        outcome=Outcome.TIMEOUT,
        text=text,
        usage=ended().usage,
    )


def test_time_is_counted_on_the_monotonic_clock(bench: Bench) -> None:
    """A clock that is set forward by a year ends nobody's job."""
    bench.start(spec(time_limit_s=60))
    assert bench.feed(st.Tick(st.Now(at_s=now(3e7).at_s, mono_s=now(59).mono_s))) == []
    assert bench.feed(st.Tick(st.Now(at_s=now(-3e7).at_s, mono_s=now(60).mono_s))) != []


def test_a_job_without_a_time_limit_is_never_stopped_by_time(bench: Bench) -> None:
    bench.start(spec(time_limit_s=None))
    assert bench.feed(st.Tick(now(1e9))) == []


@pytest.mark.parametrize("state", [S.PENDING, S.HELD, S.STARTING, S.SUSPENDED, S.CLEANING])
def test_time_means_nothing_to_a_job_that_does_not_run(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    assert bench.feed(st.Tick(now(1e9))) == []


def test_wall_time_stands_still_while_a_job_is_frozen(bench: Bench) -> None:
    """Of a minute, 30 s are used before, 5 s until the job is frozen; 25 s are left."""
    bench.start(spec(time_limit_s=60), at_s=100)
    bench.feed(st.SuspendAsked(now(130), 1, ALICE))
    bench.feed(st.Frozen(now(135), 1, 1))
    assert bench.feed(st.Tick(now(1e6))) == []
    bench.feed(st.ResumeAsked(now(1e6), 1, ALICE))
    assert bench.feed(st.Tick(now(1e6 + 50))) == [], "it still waits for its cores"
    assert bench.schedule(1e6 + 100) == [1]
    assert bench.feed(st.Tick(now(1e6 + 124.9))) == []
    (stopped,) = bench.feed(st.Tick(now(1e6 + 125)))
    assert isinstance(stopped, ev.StopRequested)
    assert stopped.outcome is Outcome.TIMEOUT


def test_wall_time_goes_on_until_a_job_is_really_frozen(bench: Bench) -> None:
    bench.start(spec(time_limit_s=60), at_s=100)
    bench.feed(st.SuspendAsked(now(130), 1, ALICE))
    (stopped,) = bench.feed(st.Tick(now(160)))
    assert isinstance(stopped, ev.StopRequested)
    assert bench.job(1).state is S.STOPPING


def test_an_attempt_after_a_requeueing_has_its_whole_wall_time(bench: Bench) -> None:
    bench.start(spec(time_limit_s=60))
    bench.suspend(1, at_s=10)
    bench.feed(st.ResumeAsked(now(20), 1, ALICE))
    bench.schedule(20)
    bench.preempt(1, at_s=30)
    bench.feed(ended(at_s=30))
    bench.feed(st.AttemptRemoved(now(30), 1, 1))
    bench.schedule(40)
    bench.feed(attempt_started(attempt=2, at_s=100))
    assert bench.feed(st.Tick(now(159.9))) == []
    assert len(bench.feed(st.Tick(now(160)))) == 1


def test_a_cancelled_job_is_killed_after_the_grace_time_that_is_configured() -> None:
    bench = Bench(rules(grace_s=3))
    bench.bring(S.STARTING)
    bench.feed(st.CancelAsked(now(10), 1, ALICE))
    assert bench.feed(st.Tick(now(12.9))) == []
    assert bench.feed(st.Tick(now(13))) == [happened(ev.Escalated, at_s=13)]
    bench.check()


def test_the_grace_time_is_not_counted_anew_when_the_start_is_reported_late(bench: Bench) -> None:
    bench.bring(S.STARTING)
    bench.feed(st.CancelAsked(now(10), 1, ALICE))
    bench.feed(attempt_started(at_s=15))
    assert bench.feed(st.Tick(now(20))) == [happened(ev.Escalated, at_s=20)]


def test_one_tick_finds_all_that_is_due_in_the_order_of_their_ids(bench: Bench) -> None:
    bench.start(spec("root.bob", actor=BOB, time_limit_s=30))
    bench.start(spec(time_limit_s=1000))
    bench.start(spec(time_limit_s=30))
    bench.start(spec("root.bob", actor=BOB, time_limit_s=1000))
    bench.feed(st.CancelAsked(now(), 2, ALICE))
    found = bench.feed(st.Tick(now(40)))
    assert [
        (type(event), event.job_id) for event in found if not isinstance(event, ev.Drained)
    ] == [
        (ev.StopRequested, 1),
        (ev.Escalated, 2),
        (ev.StopRequested, 3),
    ]


# -- other policies -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "memory", "expected"),
    [
        ("drf", 4, [1, 4, 2, 5, 3]),
        ("cpu", 4, [1, 4, 2, 3, 5]),
        ("slots", 4, [1, 4, 2, 5]),
        ("drf", 6, [1, 4, 2, 5]),
        ("asset", 6, [1, 4, 5, 2]),
        ("fifo", 6, [1, 2, 3]),
    ],
)
def test_the_books_are_scheduled_by_the_policy_that_is_configured(
    policy: str, memory: int, expected: list[int]
) -> None:
    """Alice submits three jobs of one core and so many GiB, then bob three of <3 cores, 1 GiB>."""
    bench = Bench(replace(rules(), policy=policy, slots=4))
    for _ in range(3):
        bench.submit(spec("root.alice", actor=ALICE, asks=demand(1, memory)))
    for _ in range(3):
        bench.submit(spec("root.bob", actor=BOB, asks=demand(3, 1)))
    assert bench.schedule() == expected
    bench.check()


def test_slots_that_running_jobs_hold_are_taken() -> None:
    bench = Bench(replace(rules(), policy="slots", slots=2))
    first = bench.start(spec("root.alice", actor=ALICE))
    for _ in range(3):
        bench.submit(spec("root.bob", actor=BOB))
    assert bench.schedule() == [2]
    assert bench.schedule() == []
    bench.finish(first, at_s=1)
    assert bench.schedule(2) == [3]


def test_a_suspended_job_gives_its_slot_back_and_needs_one_to_go_on() -> None:
    """It still holds its memory; counted as one that runs, it would wait for its own slot."""
    bench = Bench(replace(rules(), policy="slots", slots=1))
    first = bench.start()
    bench.suspend(first)
    second = bench.start(spec("root.bob", actor=BOB))
    bench.feed(st.ResumeAsked(now(), first, ALICE))
    assert bench.schedule() == []
    bench.finish(second)
    bench.submit(spec("root.bob", actor=BOB))
    assert bench.schedule() == [first]
    assert bench.schedule() == []


@pytest.mark.parametrize("policy", ["fifo", "asset", "cpu", "slots"])
def test_no_policy_of_a_daemon_gives_more_than_the_machine_has(policy: str) -> None:
    """However many slots or cores would be left."""
    bench = Bench(replace(rules(), policy=policy, slots=100))
    for _ in range(10):
        bench.submit(spec(asks=demand(0.5, 5)))
    assert len(bench.schedule()) == 3
    bench.check()


def test_nothing_starts_by_any_policy_while_launching_is_stopped() -> None:
    bench = Bench(replace(rules(), policy="fifo"))
    bench.submit()
    bench.feed(st.DrainAsked(now(), True, ADMIN))
    assert bench.schedule() == []


S = JobState


# -- reconciliation -----------------------------------------------------------------------------


def books(*states: JobState) -> Ledger:
    """One job in each of these states, with ids from 1."""
    return Ledger.of_events(
        Axes(),
        [
            happened(kind, job_id)
            for job_id, state in enumerate(states, start=1)
            for kind in ROADS[state]
        ],
    )


JOURNAL = "0" * 32
NOBODY = Owner()
Key = tuple[int, int]


def removals(ledger: Ledger, known: Collection[Key], *ended: int) -> list[RemoveAttempt]:
    """Of attempts of which nothing is known but their keys. `ended`: jobs that are over."""
    return sort_out(ledger, dict.fromkeys(known, NOBODY), *ended).removals


def sort_out(ledger: Ledger, known: dict[Key, Owner], *ended: int) -> Leftovers:
    over = {job_id: job(job_id) for job_id in ended}
    return leftovers(ledger, known, JOURNAL, over.get)


def job(job_id: int) -> Job:
    submitted = Ledger(Axes()).apply(happened(ev.Submitted, job_id))
    assert submitted is not None
    return submitted


ALL = books(
    S.PENDING, S.HELD, S.STARTING, S.RUNNING, S.STOPPING, S.CLEANING, S.ENDED, S.SUSPENDED
)  # fmt: skip


def test_only_running_suspended_and_stopping_jobs_can_be_missing() -> None:
    """A STARTING job is launched again, a CLEANING one is removed: both are owed anyway."""
    assert missing_attempts(ALL, [], now()) == [
        AttemptMissing(now(), 4, 1),
        AttemptMissing(now(), 5, 1),
        AttemptMissing(now(), 8, 1),
    ]


def test_an_attempt_that_the_launcher_knows_is_not_missing() -> None:
    assert missing_attempts(ALL, [(8, 1), (5, 1), (4, 1)], now()) == []


def test_an_earlier_attempt_of_the_same_job_does_not_stand_for_the_present_one() -> None:
    assert missing_attempts(books(S.RUNNING), [(1, 0), (1, 2)], now()) == [
        AttemptMissing(now(), 1, 1)
    ]


def test_missing_attempts_come_in_the_order_of_their_ids() -> None:
    ledger = books(*[S.RUNNING] * 20)
    found = missing_attempts(ledger, [(3, 1)], now())
    assert [each.job_id for each in found] == [1, 2, *range(4, 21)]


@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING, S.SUSPENDED, S.STOPPING, S.CLEANING])
def test_the_present_attempt_of_a_job_that_holds_resources_is_no_stray(state: JobState) -> None:
    assert removals(ledger_at(state), [(1, 1)]) == []


@pytest.mark.parametrize("state", [S.PENDING, S.HELD, S.ENDED])
def test_an_attempt_of_a_job_that_should_have_none_is_a_stray(state: JobState) -> None:
    assert removals(ledger_at(state), [(1, 1)], 1) == [RemoveAttempt(1, 1)]


def test_the_attempt_of_a_job_that_was_queued_again_is_a_stray() -> None:
    """The daemon died after it had written that nothing was left, or the launcher knows better."""
    ledger = ledger_at(S.RUNNING)
    for event in (
        happened(ev.PreemptRequested),
        happened(ev.Exited, outcome=None),
        happened(ev.Requeued),
    ):
        ledger.apply(event)
    assert removals(ledger, [(1, 1)]) == [RemoveAttempt(1, 1)]
    assert missing_attempts(ledger, [], now()) == []


def test_another_attempt_than_the_present_one_is_a_stray() -> None:
    ledger = ledger_at(S.PENDING)
    ledger.apply(happened(ev.Admitted, attempt=2))
    assert removals(ledger, [(1, 3), (1, 2), (1, 1)]) == [RemoveAttempt(1, 1), RemoveAttempt(1, 3)]


def test_an_attempt_of_an_id_that_was_never_given_out_is_left_alone() -> None:
    """The journal may be an old copy: those jobs are somebody's."""
    left = sort_out(ledger_at(S.RUNNING), {(2, 1): NOBODY, (99, 1): NOBODY, (1, 1): NOBODY})
    assert left == Leftovers([], {(2, 1): NOBODY, (99, 1): NOBODY})


@pytest.mark.parametrize(
    "other",
    [{"uid": 1002}, {"user": "bob"}, {"journal": "f" * 32}, {"submitted_us": 7}],
    ids=lambda other: next(iter(other)),
)
@pytest.mark.parametrize("state", [S.RUNNING, S.PENDING, S.ENDED])
def test_an_attempt_of_another_owner_is_nobodys_here(
    state: JobState, other: dict[str, Any]
) -> None:
    """Only ids were compared: an attempt of a job that another journal, or an older copy of this
    one, had given the id to was taken for this job's, or killed."""
    own = owner_of(job(1), JOURNAL)
    assert sort_out(ledger_at(state), {(1, 1): own}, 1).strays == {}
    stray = replace(own, **other)
    assert sort_out(ledger_at(state), {(1, 1): stray}, 1) == Leftovers([], {(1, 1): stray})


def test_an_attempt_file_of_an_older_version_tells_the_uid_alone() -> None:
    own = {(1, 1): Owner(uid=job(1).spec.uid)}
    assert sort_out(ledger_at(S.RUNNING), own) == Leftovers([], {})
    assert sort_out(ledger_at(S.ENDED), own, 1) == Leftovers([RemoveAttempt(1, 1)], {})
    other = {(1, 1): Owner(uid=4711)}
    assert sort_out(ledger_at(S.RUNNING), other) == Leftovers([], other)


def test_strays_of_one_launcher_and_present_jobs_are_told_apart() -> None:
    known = [(job_id, 1) for job_id in range(8, 0, -1)]
    assert removals(ALL, known, 7) == [
        RemoveAttempt(1, 1),
        RemoveAttempt(2, 1),
        RemoveAttempt(7, 1),
    ]


@pytest.mark.parametrize(
    ("booted_at_s", "loss"), [(None, None), (now(-1).at_s, None), (now(1).at_s, "MACHINE_CRASH")]
)
def test_what_began_before_the_boot_and_left_no_file_went_down_with_the_machine(
    booted_at_s: float | None, loss: str | None
) -> None:
    """Its file was lost because it had not reached the disk."""
    (missing,) = missing_attempts(books(S.RUNNING), [], now(), booted_at_s)
    assert missing.loss == loss
