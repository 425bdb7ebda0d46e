"""All judgement, verb by verb: who may, what is refused, what stale news is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.decide import may_touch, refuse_unfit, schedule
from drfd.core.job import JobState, Outcome, Stop
from drfd.core.resources import Axes
from drfd.core.rules import Rules
from drfd.errors import NotPermitted, Refused
from fakes import ADMIN, ALICE, BOB, Bench, demand, ended, happened, now, rules, runner_up, spec

S = JobState
ON_THEIR_WAY = [S.STARTING, S.RUNNING, S.STOPPING, S.CLEANING]


def bring(bench: Bench, state: JobState) -> None:
    """Job 1, of alice, is in this state; nobody else is there."""
    bench.submit(held=state is S.HELD)
    if state in (S.PENDING, S.HELD):
        return
    bench.schedule()
    if state is S.STARTING:
        return
    bench.feed(runner_up())
    if state is S.STOPPING:
        bench.feed(st.CancelAsked(now(), 1, ALICE))
    if state in (S.CLEANING, S.ENDED):
        bench.feed(ended())
    if state is S.ENDED:
        bench.feed(st.CgroupGone(now(), 1, 1))


def refused(bench: Bench, stimulus: st.Stimulus) -> Refused:
    """The refusal; that the books stay as they were is checked by `feed`."""
    with pytest.raises(Refused) as caught:
        bench.feed(stimulus)
    return caught.value


# -- submit -----------------------------------------------------------------------------------


def test_a_submission_gets_the_next_id_and_waits(bench: Bench) -> None:
    assert bench.feed(st.SubmitAsked(now(5), spec())) == [
        ev.Submitted(job_id=1, at_s=now(5).at_s, spec=spec())
    ]
    assert bench.submit() == 2
    assert bench.job(1).state is S.PENDING


def test_a_job_can_be_submitted_on_hold(bench: Bench) -> None:
    assert bench.feed(st.SubmitAsked(now(), spec(), held=True)) == [
        ev.Submitted(job_id=1, at_s=now().at_s, spec=spec(), held=True)
    ]
    assert bench.job(1).state is S.HELD
    assert bench.schedule() == []


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (demand(9.5, 1), "9.5 cores, and this machine has 9 for jobs"),
        (demand(1, 20), "20G of memory, and this machine has 18G for jobs"),
        (demand(1, 1, read=2048), "2K/s of disk reads, and this machine has 1000/s for jobs"),
        (demand(1, 1, write=1001), "1001/s of disk writes, and this machine has 1000/s for jobs"),
    ],
)
def test_a_demand_that_can_never_fit_is_refused_and_not_queued(
    bench: Bench, asked: Any, text: str
) -> None:
    refusal = refused(bench, st.SubmitAsked(now(), spec(asks=asked)))
    assert (refusal.code, refusal.exit_code) == ("too-big", 1)
    assert str(refusal) == (
        f"the job asks for {text}: it could never start (not queued; ask for less)"
    )
    assert bench.events == []


def test_a_demand_for_the_whole_machine_is_taken(bench: Bench) -> None:
    job_id = bench.submit(spec(asks=demand(9, 18, read=1000, write=1000)))
    assert bench.schedule() == [job_id]


def test_a_resource_that_the_machine_does_not_have_is_refused() -> None:
    asked = spec(asks=replace(demand(), gres=(("gpu", 1),)))
    refusal = refused(Bench(), st.SubmitAsked(now(), asked))
    assert refusal.code == "no-such-resource"
    assert str(refusal) == "this machine has no resource 'gpu'"


def test_more_of_a_countable_than_there_are_is_refused() -> None:
    gpus = Rules(axes=Axes(gres=("gpu",)), capacity=replace(demand(9, 18), gres=(("gpu", 2),)))
    refuse_unfit(spec(asks=replace(demand(), gres=(("gpu", 2),))), gpus)
    with pytest.raises(Refused, match="3 of gpu, and this machine has 2 for jobs"):
        refuse_unfit(spec(asks=replace(demand(), gres=(("gpu", 3),))), gpus)


def test_one_user_may_have_so_many_jobs_waiting_and_no_more() -> None:
    bench = Bench(rules(max_waiting_per_user=2))
    bench.submit()
    bench.submit(held=True)
    refusal = refused(bench, st.SubmitAsked(now(), spec()))
    assert refusal.code == "too-many-jobs"
    assert str(refusal) == (
        "alice already has 2 jobs waiting, the most that is allowed "
        "(wait for some of them to start)"
    )


def test_the_bound_on_waiting_jobs_is_each_users_own_and_counts_no_started_ones() -> None:
    bench = Bench(rules(max_waiting_per_user=1))
    bench.submit()
    bench.submit(spec("root.bob", actor=BOB))
    assert bench.schedule() == [1, 2]
    bench.submit()
    bench.check()


def test_the_bound_counts_a_users_jobs_over_all_pools() -> None:
    """Else naming pools would be a way around it."""
    bench = Bench(rules(max_waiting_per_user=1, weights={"open": "1"}))
    bench.submit(spec("root.open"))
    assert refused(bench, st.SubmitAsked(now(), spec("root.alice"))).code == "too-many-jobs"


# -- permissions ------------------------------------------------------------------------------


def test_a_job_is_its_owners_and_the_administrators() -> None:
    assert may_touch(ALICE, ALICE.uid)
    assert may_touch(ADMIN, ALICE.uid)
    assert not may_touch(BOB, ALICE.uid)


@pytest.mark.parametrize("kind", [st.CancelAsked, st.HoldAsked, st.ReleaseAsked])
@pytest.mark.parametrize("state", [state for state in JobState if state is not S.ENDED])
def test_nobody_acts_on_somebody_elses_job(bench: Bench, kind: Any, state: JobState) -> None:
    bring(bench, state)
    refusal = refused(bench, kind(now(), 1, BOB))
    assert isinstance(refusal, NotPermitted)
    assert (refusal.code, refusal.exit_code) == ("not-yours", 77)
    assert str(refusal) == "job 1 belongs to alice"


def test_a_user_is_known_by_the_uid_and_not_by_the_name(bench: Bench) -> None:
    bench.submit()
    impostor = st.Actor(user="alice", uid=BOB.uid, is_admin=False)
    assert refused(bench, st.CancelAsked(now(), 1, impostor)).code == "not-yours"
    renamed = st.Actor(user="alice2", uid=ALICE.uid, is_admin=False)
    assert bench.feed(st.CancelAsked(now(), 1, renamed)) != []


@pytest.mark.parametrize("kind", [st.CancelAsked, st.HoldAsked, st.ReleaseAsked])
@pytest.mark.parametrize("actor", [ALICE, ADMIN])
def test_a_verb_about_a_job_that_is_not_there_is_refused(
    bench: Bench, kind: Any, actor: st.Actor
) -> None:
    bring(bench, S.ENDED)
    for job_id in (1, 2):
        refusal = refused(bench, kind(now(), job_id, actor))
        assert refusal.code == "no-such-job"
        assert str(refusal) == f"there is no live job {job_id}"


# -- cancel -----------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", [ALICE, ADMIN])
@pytest.mark.parametrize("state", [S.PENDING, S.HELD])
def test_cancelling_a_waiting_job_ends_it_at_once(
    bench: Bench, state: JobState, actor: st.Actor
) -> None:
    bring(bench, state)
    assert bench.feed(st.CancelAsked(now(5), 1, actor)) == [
        ev.Cancelled(job_id=1, at_s=now(5).at_s, by=actor.user)
    ]
    assert bench.ledger.jobs == {}


@pytest.mark.parametrize("actor", [ALICE, ADMIN])
@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING])
def test_cancelling_a_started_job_asks_it_to_stop(
    bench: Bench, state: JobState, actor: st.Actor
) -> None:
    bring(bench, state)
    assert bench.feed(st.CancelAsked(now(5), 1, actor)) == [
        happened(
            ev.StopRequested,
            at_s=5,
            outcome=Outcome.CANCELLED,
            text=f"cancelled by {actor.user}",
        )
    ]
    assert bench.job(1).stop == Stop(
        outcome=Outcome.CANCELLED,
        text=f"cancelled by {actor.user}",
        at_s=now(5).at_s,
        mono_s=now(5).mono_s,
    )


@pytest.mark.parametrize("state", [S.STOPPING, S.CLEANING])
def test_cancelling_what_is_on_its_way_out_changes_nothing(bench: Bench, state: JobState) -> None:
    """The first cause stays the cause, and the grace time is not counted anew."""
    bring(bench, state)
    before = bench.job(1)
    assert bench.feed(st.CancelAsked(now(5), 1, ADMIN)) == []
    assert bench.job(1) == before


def test_a_job_cancelled_while_it_starts_ends_as_cancelled_however_the_news_comes(
    bench: Bench,
) -> None:
    bring(bench, S.STARTING)
    bench.feed(st.CancelAsked(now(1), 1, ALICE))
    bench.feed(runner_up(at_s=2))
    assert bench.job(1).state is S.STOPPING
    (event,) = bench.feed(ended(at_s=3, exit_code=None, signal=15))
    assert event == happened(
        ev.Exited,
        at_s=3,
        exit_code=None,
        signal=15,
        outcome=Outcome.CANCELLED,
        text="cancelled by alice",
        usage=ended().usage,
    )


# -- hold and release -------------------------------------------------------------------------


@pytest.mark.parametrize("actor", [ALICE, ADMIN])
def test_a_held_job_is_not_scheduled_until_it_is_released(bench: Bench, actor: st.Actor) -> None:
    bench.submit()
    assert bench.feed(st.HoldAsked(now(1), 1, actor)) == [
        ev.Held(job_id=1, at_s=now(1).at_s, by=actor.user)
    ]
    assert bench.schedule(2) == []
    assert bench.feed(st.ReleaseAsked(now(3), 1, ADMIN)) == [
        ev.Released(job_id=1, at_s=now(3).at_s, by="root")
    ]
    assert bench.schedule(4) == [1]


def test_holding_a_held_job_changes_nothing(bench: Bench) -> None:
    bring(bench, S.HELD)
    assert bench.feed(st.HoldAsked(now(5), 1, ALICE)) == []


@pytest.mark.parametrize("state", ON_THEIR_WAY)
def test_only_a_waiting_job_can_be_held(bench: Bench, state: JobState) -> None:
    bring(bench, state)
    refusal = refused(bench, st.HoldAsked(now(), 1, ALICE))
    assert refusal.code == "not-waiting"
    assert str(refusal) == f"job 1 is {state.value}; only a waiting job can be held"


@pytest.mark.parametrize("state", [S.PENDING, *ON_THEIR_WAY])
def test_only_a_held_job_can_be_released(bench: Bench, state: JobState) -> None:
    bring(bench, state)
    refusal = refused(bench, st.ReleaseAsked(now(), 1, ALICE))
    assert refusal.code == "not-held"
    assert str(refusal) == f"job 1 is {state.value}, not held"


def test_an_owner_releases_his_own_hold_and_that_of_the_submission(bench: Bench) -> None:
    bench.submit(held=True)
    assert bench.feed(st.ReleaseAsked(now(), 1, ALICE)) != []
    bench.feed(st.HoldAsked(now(), 1, ALICE))
    assert bench.feed(st.ReleaseAsked(now(), 1, ALICE)) != []


def test_what_an_administrator_holds_only_an_administrator_releases(bench: Bench) -> None:
    bench.submit()
    bench.feed(st.HoldAsked(now(), 1, ADMIN))
    refusal = refused(bench, st.ReleaseAsked(now(), 1, ALICE))
    assert isinstance(refusal, NotPermitted)
    assert (refusal.code, str(refusal)) == ("held-by-admin", "job 1 is held by root")
    assert bench.feed(st.ReleaseAsked(now(), 1, replace(ADMIN, user="carol"))) != []


def test_an_administrators_hold_binds_an_owner_who_had_held_the_job_himself(bench: Bench) -> None:
    """Else the owner's own earlier hold would be a way around the administrator's."""
    bench.submit(held=True)
    bench.feed(st.HoldAsked(now(1), 1, ADMIN))
    assert refused(bench, st.ReleaseAsked(now(2), 1, ALICE)).code == "held-by-admin"


def test_a_released_job_keeps_its_place_in_the_queue(bench: Bench) -> None:
    """Holding costs nothing but the time it lasts."""
    bench.submit(spec(asks=demand(9)))
    bench.submit(spec(asks=demand(9)))
    bench.feed(st.HoldAsked(now(), 1, ALICE))
    bench.feed(st.ReleaseAsked(now(1), 1, ALICE))
    assert bench.schedule(2) == [1]


# -- drain ------------------------------------------------------------------------------------


def test_draining_stops_launching_and_nothing_else(bench: Bench) -> None:
    running = bench.start()
    bench.submit()
    assert bench.feed(st.DrainAsked(now(1), True, ADMIN)) == [
        ev.Drained(at_s=now(1).at_s, on=True, by="root")
    ]
    assert bench.schedule(2) == []
    assert bench.submit() == 3
    bench.finish(running, at_s=3)
    assert bench.schedule(3) == []
    assert bench.feed(st.DrainAsked(now(4), False, ADMIN)) == [
        ev.Drained(at_s=now(4).at_s, on=False, by="root")
    ]
    assert bench.schedule(5) == [2, 3]


@pytest.mark.parametrize("on", [True, False])
def test_draining_twice_changes_nothing(bench: Bench, on: bool) -> None:
    bench.feed(st.DrainAsked(now(), on, ADMIN))
    assert bench.feed(st.DrainAsked(now(1), on, ADMIN)) == []


@pytest.mark.parametrize("on", [True, False])
def test_only_an_administrator_drains(bench: Bench, on: bool) -> None:
    refusal = refused(bench, st.DrainAsked(now(), on, ALICE))
    assert isinstance(refusal, NotPermitted)
    assert (refusal.code, refusal.exit_code) == ("not-admin", 77)
    assert str(refusal) == "only an administrator may drain or undrain"


# -- scheduling -------------------------------------------------------------------------------


def test_a_pass_admits_what_fits_in_order_and_books_it(bench: Bench) -> None:
    bench.submit(spec(asks=demand(6)))
    bench.submit(spec(asks=demand(6)))
    bench.submit(spec(asks=demand(3)))
    assert bench.feed(st.SchedulePass(now(7))) == [
        ev.Admitted(job_id=1, at_s=now(7).at_s, attempt=1),
        ev.Admitted(job_id=3, at_s=now(7).at_s, attempt=1),
    ]
    assert bench.feed(st.SchedulePass(now(8))) == []


def test_a_job_that_has_exited_still_holds_its_resources_until_it_is_cleaned(bench: Bench) -> None:
    first = bench.start(spec(asks=demand(9)))
    bench.submit(spec(asks=demand(9)))
    bench.feed(ended(first))
    assert bench.schedule() == []
    bench.feed(st.CgroupGone(now(), first, 1))
    assert bench.schedule() == [2]


def test_nothing_is_admitted_after_the_capacity_has_shrunk_below_what_is_booked(
    bench: Bench,
) -> None:
    bench.start(spec(asks=demand(9)))
    bench.submit(spec(asks=demand(1)))
    assert schedule(bench.ledger, rules(4, 18)).admitted == []


# -- news of runners --------------------------------------------------------------------------


def test_a_runner_that_is_up_makes_the_job_running(bench: Bench) -> None:
    bring(bench, S.STARTING)
    assert bench.feed(runner_up(at_s=2)) == [happened(ev.Launched, at_s=2)]
    assert bench.job(1).state is S.RUNNING


def test_a_start_is_taken_once_however_often_it_is_reported(bench: Bench) -> None:
    """The launcher repeats its news after every reconnection."""
    bring(bench, S.RUNNING)
    started = bench.job(1)
    assert bench.feed(runner_up(at_s=99)) == []
    bench.feed(st.CancelAsked(now(100), 1, ALICE))
    assert bench.feed(runner_up(at_s=101)) == []
    assert bench.job(1).started_at == started.started_at


def test_a_launch_that_broke_says_what_failed(bench: Bench) -> None:
    bring(bench, S.STARTING)
    assert bench.feed(st.LaunchBroke(now(2), 1, 1, "no such directory")) == [
        happened(ev.LaunchFailed, at_s=2, text="no such directory")
    ]


def test_a_launch_can_still_break_after_the_runner_was_up(bench: Bench) -> None:
    bring(bench, S.RUNNING)
    assert bench.feed(st.LaunchBroke(now(2), 1, 1, "exec failed")) == [
        happened(ev.LaunchFailed, at_s=2, text="exec failed")
    ]


def test_a_launch_that_broke_because_it_was_stopped_ends_as_what_stopped_it(bench: Bench) -> None:
    bring(bench, S.STARTING)
    bench.feed(st.CancelAsked(now(1), 1, ADMIN))
    assert bench.feed(st.LaunchBroke(now(2), 1, 1, "killed before exec")) == [
        happened(ev.LaunchFailed, at_s=2, outcome=Outcome.CANCELLED, text="cancelled by root")
    ]


@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING])
def test_an_exit_is_judged_and_its_usage_kept(bench: Bench, state: JobState) -> None:
    """STARTING: the launcher was away for the job's whole life."""
    bring(bench, state)
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
    bring(bench, S.CLEANING)
    assert bench.feed(st.CgroupGone(now(2), 1, 1)) == [happened(ev.Cleaned, at_s=2)]
    assert bench.ledger.jobs == {}


def test_a_running_job_is_not_over_because_somebody_says_its_cgroup_is_gone(bench: Bench) -> None:
    """First the end, then the cleaning: resources never come back while the end is unknown."""
    bring(bench, S.RUNNING)
    assert bench.feed(st.CgroupGone(now(), 1, 1)) == []
    assert bench.job(1).state is S.RUNNING


@pytest.mark.parametrize("state", [S.RUNNING, S.STOPPING])
def test_an_attempt_that_nobody_knows_of_is_an_end_of_which_nothing_is_known(
    bench: Bench, state: JobState
) -> None:
    bring(bench, state)
    lost = "its exit status cannot be known: the machine was restarted or its runner was killed"
    why = (Outcome.LOST, lost) if state is S.RUNNING else (Outcome.CANCELLED, "cancelled by alice")
    assert bench.feed(st.AttemptMissing(now(2), 1, 1)) == [
        happened(ev.Exited, at_s=2, exit_code=None, signal=None, outcome=why[0], text=why[1])
    ]


@pytest.mark.parametrize("state", [S.PENDING, S.HELD, S.STARTING, S.CLEANING, S.ENDED])
def test_an_attempt_that_should_have_no_runner_is_not_missed(bench: Bench, state: JobState) -> None:
    """STARTING: it has simply not been launched yet, and the launch is still owed."""
    bring(bench, state)
    assert bench.feed(st.AttemptMissing(now(2), 1, 1)) == []


NEWS = [
    lambda job_id, attempt: runner_up(job_id, attempt),
    lambda job_id, attempt: st.LaunchBroke(now(), job_id, attempt, "no such file"),
    lambda job_id, attempt: ended(job_id, attempt),
    lambda job_id, attempt: st.AttemptMissing(now(), job_id, attempt),
    lambda job_id, attempt: st.CgroupGone(now(), job_id, attempt),
    lambda job_id, attempt: st.Breached(now(), job_id, attempt, Outcome.LIMIT_EXCEEDED, "much"),
]
NEWS_IDS = ["up", "broke", "ended", "missing", "gone", "breached"]


@pytest.mark.parametrize("news", NEWS, ids=NEWS_IDS)
@pytest.mark.parametrize("state", JobState)
def test_news_of_another_attempt_or_another_job_is_ignored(
    bench: Bench, state: JobState, news: Any
) -> None:
    bring(bench, state)
    now_at = bench.ledger.jobs[1].attempt if 1 in bench.ledger.jobs else 1
    for job_id, attempt in ((1, now_at + 1), (1, now_at - 1), (2, 1), (10_000, 1)):
        assert bench.feed(news(job_id, attempt)) == []


@pytest.mark.parametrize("news", NEWS, ids=NEWS_IDS)
@pytest.mark.parametrize("state", [S.PENDING, S.HELD, S.ENDED])
def test_news_of_a_job_that_has_no_runner_is_ignored(
    bench: Bench, state: JobState, news: Any
) -> None:
    bring(bench, state)
    for attempt in (0, 1):
        assert bench.feed(news(1, attempt)) == []


@pytest.mark.parametrize("news", [each for each in NEWS if each is not NEWS[4]])
def test_the_second_report_of_one_end_is_ignored(bench: Bench, news: Any) -> None:
    bring(bench, S.CLEANING)
    assert bench.feed(news(1, 1)) == []


# -- limits and time --------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING])
def test_a_measured_breach_stops_the_job(bench: Bench, state: JobState) -> None:
    bring(bench, state)
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
    bring(bench, state)
    assert bench.feed(st.Breached(now(), 1, 1, Outcome.LIMIT_EXCEEDED, "much")) == []


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


@pytest.mark.parametrize("state", [S.PENDING, S.HELD, S.STARTING, S.CLEANING])
def test_time_means_nothing_to_a_job_that_does_not_run(bench: Bench, state: JobState) -> None:
    bring(bench, state)
    assert bench.feed(st.Tick(now(1e9))) == []


def test_a_cancelled_job_is_killed_after_the_grace_time_that_is_configured() -> None:
    bench = Bench(rules(grace_s=3))
    bring(bench, S.STARTING)
    bench.feed(st.CancelAsked(now(10), 1, ALICE))
    assert bench.feed(st.Tick(now(12.9))) == []
    assert bench.feed(st.Tick(now(13))) == [happened(ev.Escalated, at_s=13)]
    bench.check()


def test_the_grace_time_is_not_counted_anew_when_the_start_is_reported_late(bench: Bench) -> None:
    bring(bench, S.STARTING)
    bench.feed(st.CancelAsked(now(10), 1, ALICE))
    bench.feed(runner_up(at_s=15))
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
