"""Requests of users: who may make them, which are refused, and which events follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from drfd.common.errors import NotPermitted, Refused
from drfd.core.amounts.resources import Axes, Resources
from drfd.core.decisions.decide import decide
from drfd.core.decisions.job_requests import ALWAYS_BYTES, may_touch, refuse_unfit
from drfd.core.fairness.rules import Pool, Rules
from drfd.core.ledger.ledger import SPAN_BYTES
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    DEPENDENCY_BYTES,
    JOB_BYTES,
    LONG_BYTES,
    TEXT_BYTES,
    Dependency,
    JobSpec,
    JobState,
    Notify,
    Outcome,
    RequiredOutcome,
    Stop,
    Words,
)
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    Bench,
    attempt_started,
    demand,
    ended,
    happened,
    now,
    rules,
    spec,
    with_gpus,
)

S = JobState
ON_THEIR_WAY = [S.STARTING, S.RUNNING, S.SUSPENDED, S.STOPPING, S.CLEANING]
#: Makes the wish of a user about a job.
Verb = Callable[[st.Now, int, st.Actor], st.Stimulus]
VERBS: list[Verb] = [st.CancelAsked, st.HoldAsked, st.ReleaseAsked, st.SuspendAsked, st.ResumeAsked]


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
    bench: Bench, asked: Resources, text: str
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
    hint = "no countable resource is given out here"
    assert str(refusal) == f"this machine has no resource 'gpu' ({hint})"


def test_a_misspelt_resource_is_refused_with_what_there_is() -> None:
    asked = spec(asks=replace(demand(), gres=(("gpus", 1),)))
    refusal = refused(Bench(with_gpus(2)), st.SubmitAsked(now(), asked))
    assert str(refusal) == "this machine has no resource 'gpus' (it has 2 gpu)"


def test_memory_of_what_nobody_measures_is_refused() -> None:
    axes = Axes(gres=("license",), instances=(("license", ("a", "b")),))
    plain = with_gpus(0)
    there = replace(plain, axes=axes, capacity=replace(plain.capacity, gres=(("license", 2),)))
    asks = replace(demand(), gres=(("license", 1),), gres_memory=(("license", 1 << 30),))
    with pytest.raises(Refused) as refused:
        refuse_unfit(spec(asks=asks), there)
    assert (refused.value.code, refused.value.hint) == (
        "bad-value",
        "leave out memory= after license",
    )


def test_more_of_a_countable_than_there_are_is_refused() -> None:
    gpus = with_gpus(2)
    refuse_unfit(spec(asks=replace(demand(), gres=(("gpu", 2),))), gpus)
    with pytest.raises(Refused, match="3 gpu, and this machine has 2 for jobs"):
        refuse_unfit(spec(asks=replace(demand(), gres=(("gpu", 3),))), gpus)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ({"cores": 2000}, "3 cores, and root.lab may hold 2 at most"),
        ({"memory": 2 << 30}, "4G of memory, and root.lab may hold 2G at most"),
        ({"cores": 3000, "memory": 4 << 30}, None),
    ],
)
def test_a_demand_above_a_limit_of_its_pool_is_refused(
    limit: dict[str, int], text: str | None
) -> None:
    bench = Bench(replace(rules(), pools={"lab": Pool(limit=limit), "lab.night": Pool()}))
    asks = st.SubmitAsked(now(), spec("root.lab.night", asks=demand(3, 4)))
    if text is None:
        assert bench.feed(asks) != []
        return
    refusal = refused(bench, asks)
    assert refusal.code == "above-limit"
    assert str(refusal) == (
        f"the job asks for {text}: it could never start (not queued; ask for less)"
    )


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
    assert may_touch(ALICE, spec())
    assert may_touch(ADMIN, spec())
    assert not may_touch(BOB, spec())


def test_a_job_is_not_of_a_later_account_with_the_uid_of_its_owner() -> None:
    """The owner was the uid alone, so that whoever got the uid of a deleted account could see and
    cancel the jobs of that account."""
    heir = replace(BOB, uid=ALICE.uid)
    assert not may_touch(heir, spec())
    assert may_touch(heir, spec(actor=heir))


@pytest.mark.parametrize("kind", VERBS)
@pytest.mark.parametrize("state", [state for state in JobState if state is not S.ENDED])
def test_nobody_acts_on_somebody_elses_job(bench: Bench, kind: Verb, state: JobState) -> None:
    bench.bring(state)
    refusal = refused(bench, kind(now(), 1, BOB))
    assert isinstance(refusal, NotPermitted)
    assert (refusal.code, refusal.exit_code) == ("not-yours", 77)
    assert str(refusal) == "job 1 belongs to alice"


def test_a_user_is_known_by_uid_and_name_together(bench: Bench) -> None:
    bench.submit()
    impostor = st.Actor(user="alice", uid=BOB.uid, is_admin=False)
    assert refused(bench, st.CancelAsked(now(), 1, impostor)).code == "not-yours"
    heir = st.Actor(user="alice2", uid=ALICE.uid, is_admin=False)
    assert refused(bench, st.CancelAsked(now(), 1, heir)).code == "not-yours"
    assert bench.feed(st.CancelAsked(now(), 1, ALICE)) != []


@pytest.mark.parametrize("kind", VERBS)
@pytest.mark.parametrize("actor", [ALICE, ADMIN])
def test_a_verb_about_a_job_that_is_not_there_is_refused(
    bench: Bench, kind: Verb, actor: st.Actor
) -> None:
    bench.bring(S.ENDED)
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
    bench.bring(state)
    assert bench.feed(st.CancelAsked(now(5), 1, actor)) == [
        ev.Cancelled(job_id=1, at_s=now(5).at_s, by=actor.user)
    ]
    assert bench.ledger.jobs == {}


@pytest.mark.parametrize("actor", [ALICE, ADMIN])
@pytest.mark.parametrize("state", [S.STARTING, S.RUNNING])
def test_cancelling_a_started_job_asks_it_to_stop(
    bench: Bench, state: JobState, actor: st.Actor
) -> None:
    bench.bring(state)
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
    bench.bring(state)
    before = bench.job(1)
    assert bench.feed(st.CancelAsked(now(5), 1, ADMIN)) == []
    assert bench.job(1) == before


def test_a_job_cancelled_while_it_starts_ends_as_cancelled_however_the_news_comes(
    bench: Bench,
) -> None:
    bench.bring(S.STARTING)
    bench.feed(st.CancelAsked(now(1), 1, ALICE))
    bench.feed(attempt_started(at_s=2))
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


@pytest.mark.parametrize("actor", [ALICE, ADMIN])
def test_cancelling_a_frozen_job_asks_for_its_end_and_gives_it_nothing_back(
    bench: Bench, actor: st.Actor
) -> None:
    """It is killed at once: no grace time, for which it would need its cores."""
    bench.bring(S.SUSPENDED)
    booked = bench.ledger.allocated
    assert bench.feed(st.CancelAsked(now(5), 1, actor)) == [
        happened(
            ev.StopRequested, at_s=5, outcome=Outcome.CANCELLED, text=f"cancelled by {actor.user}"
        )
    ]
    stop = bench.job(1).stop
    assert stop is not None and stop.escalated
    assert bench.ledger.allocated == booked
    assert bench.feed(st.Tick(now(1e9))) == []


def test_cancelling_a_job_that_is_being_frozen_stops_it_with_its_grace_time(bench: Bench) -> None:
    """It may have been frozen by then, and the launcher thaws it with the signal."""
    bench.bring(S.RUNNING)
    bench.feed(st.SuspendAsked(now(1), 1, ALICE))
    bench.feed(st.CancelAsked(now(2), 1, ALICE))
    job = bench.job(1)
    assert (job.state, job.freezing) == (S.STOPPING, False)
    assert bench.feed(st.Tick(now(11.9))) == []
    assert bench.feed(st.Tick(now(12))) == [happened(ev.Escalated, at_s=12)]


@pytest.mark.parametrize("actor", [ALICE, ADMIN])
@pytest.mark.parametrize("is_gone", [False, True])
def test_cancelling_a_job_that_was_to_be_queued_again_ends_it_for_good(
    bench: Bench, is_gone: bool, actor: st.Actor
) -> None:
    """While it is stopped, and while its remains are cleared away."""
    bench.bring(S.RUNNING)
    bench.preempt(1, at_s=1)
    if is_gone:
        bench.feed(ended(at_s=2))
    text = f"cancelled by {actor.user}"
    assert bench.feed(st.CancelAsked(now(3), 1, actor)) == [
        happened(ev.StopRequested, at_s=3, outcome=Outcome.CANCELLED, text=text)
    ]
    assert bench.feed(st.CancelAsked(now(4), 1, ADMIN)) == [], "the first cause stays the cause"
    if not is_gone:
        assert bench.feed(ended(at_s=5)) == [
            happened(ev.Exited, at_s=5, outcome=Outcome.CANCELLED, text=text, usage=ended().usage)
        ]
    job = bench.job(1)
    assert (job.state, job.outcome, job.outcome_text) == (S.CLEANING, Outcome.CANCELLED, text)
    assert bench.feed(st.AttemptRemoved(now(6), 1, 1)) == [happened(ev.Cleaned, at_s=6)]
    assert bench.ledger.jobs == {}


def test_the_grace_time_of_a_requeueing_is_not_counted_anew_by_a_cancel(bench: Bench) -> None:
    bench.bring(S.RUNNING)
    bench.preempt(1, at_s=1)
    bench.feed(st.CancelAsked(now(8), 1, ALICE))
    assert bench.feed(st.Tick(now(10.9))) == []
    assert bench.feed(st.Tick(now(11))) == [happened(ev.Escalated, at_s=11)]


def test_a_job_that_is_queued_again_can_be_cancelled_like_any_that_waits(bench: Bench) -> None:
    bench.bring(S.RUNNING)
    bench.preempt(1)
    bench.feed(ended())
    bench.feed(st.AttemptRemoved(now(), 1, 1))
    assert bench.feed(st.CancelAsked(now(5), 1, ALICE)) == [happened(ev.Cancelled, at_s=5)]
    assert bench.ledger.jobs == {}


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
    bench.bring(S.HELD)
    assert bench.feed(st.HoldAsked(now(5), 1, ALICE)) == []


@pytest.mark.parametrize("state", ON_THEIR_WAY)
def test_only_a_waiting_job_can_be_held(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    refusal = refused(bench, st.HoldAsked(now(), 1, ALICE))
    assert refusal.code == "not-waiting"
    assert refusal.text == f"job 1 is {state.value}; only a waiting job can be held"
    assert refusal.hint == ("drf suspend 1 freezes it" if state is S.RUNNING else "")


@pytest.mark.parametrize("state", [S.PENDING, *ON_THEIR_WAY])
def test_only_a_held_job_can_be_released(bench: Bench, state: JobState) -> None:
    bench.bring(state)
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


# -- suspend and resume -----------------------------------------------------------------------


@pytest.mark.parametrize("actor", [ALICE, ADMIN])
def test_a_job_is_to_be_frozen_and_runs_on_with_all_it_holds_until_it_is(
    bench: Bench, actor: st.Actor
) -> None:
    """Its cores are given to somebody else only when it has really stopped."""
    bench.start(spec(asks=demand(9)))
    bench.submit(spec(asks=demand(9)))
    text = f"suspended by {actor.user}"
    assert bench.feed(st.SuspendAsked(now(5), 1, actor)) == [
        ev.SuspendRequested(job_id=1, at_s=now(5).at_s, by=actor.user, text=text)
    ]
    job = bench.job(1)
    assert (job.state, job.freezing, job.held_by) == (S.RUNNING, True, actor.user)
    assert bench.schedule(6) == []
    assert bench.feed(st.Frozen(now(7), 1, 1)) == [happened(ev.Suspended, at_s=7)]
    assert bench.job(1).state is S.SUSPENDED
    assert bench.schedule(8) == [2]


def test_a_frozen_job_keeps_its_memory_from_others(bench: Bench) -> None:
    bench.start(spec(asks=demand(1, 10)))
    bench.suspend(1)
    bench.submit(spec(asks=demand(1, 9)))
    bench.submit(spec(asks=demand(9, 8)))
    assert bench.schedule() == [3]


def test_a_suspended_job_goes_on_when_it_may_and_there_is_room(bench: Bench) -> None:
    bench.start(spec(asks=demand(9)))
    bench.suspend(1, at_s=1)
    assert bench.schedule(2) == [], "nobody has resumed it"
    bench.submit(spec("root.bob", actor=BOB, asks=demand(9)))
    assert bench.schedule(3) == [2]
    bench.feed(attempt_started(2))
    assert bench.feed(st.ResumeAsked(now(4), 1, ALICE)) == [
        ev.ResumeRequested(job_id=1, at_s=now(4).at_s, by="alice")
    ]
    assert bench.schedule(5) == [], "its cores are bob's"
    bench.finish(2, at_s=6)
    assert bench.run_pass(7) == [happened(ev.Resumed, at_s=7)]
    assert bench.job(1).state is S.RUNNING
    assert bench.run_pass(8) == []


@pytest.mark.parametrize("state", [S.PENDING, S.HELD, S.STARTING, S.STOPPING, S.CLEANING])
def test_only_a_running_job_can_be_suspended(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    refusal = refused(bench, st.SuspendAsked(now(), 1, ALICE))
    assert refusal.code == "not-running"
    hint = " (drf hold keeps a waiting job from starting)" if state is S.PENDING else ""
    assert str(refusal) == (f"job 1 is {state.value}; only a running job can be suspended{hint}")


@pytest.mark.parametrize(
    "state", [S.PENDING, S.HELD, S.STARTING, S.RUNNING, S.STOPPING, S.CLEANING]
)
def test_only_a_suspended_job_can_be_resumed(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    refusal = refused(bench, st.ResumeAsked(now(), 1, ALICE))
    assert refusal.code == "not-suspended"
    assert str(refusal) == f"job 1 is {state.value}, not suspended"


@pytest.mark.parametrize("is_frozen", [False, True])
def test_suspending_twice_changes_nothing(bench: Bench, is_frozen: bool) -> None:
    bench.bring(S.RUNNING)
    bench.feed(st.SuspendAsked(now(), 1, ALICE))
    if is_frozen:
        bench.feed(st.Frozen(now(), 1, 1))
    assert bench.feed(st.SuspendAsked(now(5), 1, ALICE)) == []


@pytest.mark.parametrize("is_frozen", [False, True])
def test_resuming_twice_changes_nothing(bench: Bench, is_frozen: bool) -> None:
    bench.bring(S.RUNNING)
    bench.feed(st.SuspendAsked(now(), 1, ALICE))
    if is_frozen:
        bench.feed(st.Frozen(now(), 1, 1))
    assert bench.feed(st.ResumeAsked(now(1), 1, ALICE)) == [happened(ev.ResumeRequested, at_s=1)]
    assert bench.feed(st.ResumeAsked(now(2), 1, ALICE)) == []


def test_a_job_that_is_resumed_while_it_is_being_frozen_goes_on_once_it_is(bench: Bench) -> None:
    """The order to freeze is on its way; it is undone like any other suspension."""
    bench.bring(S.RUNNING)
    bench.feed(st.SuspendAsked(now(), 1, ALICE))
    bench.feed(st.ResumeAsked(now(1), 1, ALICE))
    assert bench.job(1).freezing
    assert bench.schedule(2) == []
    bench.feed(st.Frozen(now(3), 1, 1))
    assert bench.schedule(4) == [1]
    assert bench.job(1).state is S.RUNNING


@pytest.mark.parametrize("is_frozen", [False, True])
def test_an_administrators_suspension_outweighs_the_owners_own(
    bench: Bench, is_frozen: bool
) -> None:
    """Else the owner's earlier one would be a way around the administrator's."""
    bench.bring(S.RUNNING)
    bench.feed(st.SuspendAsked(now(), 1, ALICE))
    if is_frozen:
        bench.feed(st.Frozen(now(), 1, 1))
    assert bench.feed(st.SuspendAsked(now(1), 1, ADMIN)) == [
        happened(ev.SuspendRequested, at_s=1, by="root", text="suspended by root")
    ]
    refusal = refused(bench, st.ResumeAsked(now(2), 1, ALICE))
    assert isinstance(refusal, NotPermitted)
    assert (refusal.code, str(refusal)) == ("held-by-admin", "job 1 is held by root")
    assert bench.feed(st.SuspendAsked(now(3), 1, ALICE)) == []
    assert bench.job(1).held_by == "root"
    assert bench.feed(st.ResumeAsked(now(4), 1, replace(ADMIN, user="carol"))) != []


def test_an_administrator_who_suspends_his_own_job_is_its_owner(bench: Bench) -> None:
    bench.start(spec("root.root", actor=ADMIN))
    bench.suspend(1, by=ADMIN)
    assert bench.feed(st.SuspendAsked(now(1), 1, ADMIN)) == []
    assert bench.feed(st.SuspendAsked(now(1), 1, replace(ADMIN, user="carol"))) != []


@pytest.mark.parametrize("actor", [ALICE, ADMIN])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_drfd_has_suspended_can_be_kept_so_and_waits_again_when_it_is_resumed(
    bench: Bench, is_frozen: bool, actor: st.Actor
) -> None:
    bench.bring(S.RUNNING)
    request = happened(ev.SuspendRequested, by=None, text="suspended for job 2")
    bench.befall(request)
    if is_frozen:
        bench.feed(st.Frozen(now(), 1, 1))
    assert bench.feed(st.ResumeAsked(now(1), 1, actor)) == [], "it goes on as soon as it can anyway"
    assert bench.feed(st.SuspendAsked(now(2), 1, actor)) != []
    bench.feed(st.Frozen(now(2), 1, 1))
    assert bench.schedule(3) == []
    assert bench.feed(st.ResumeAsked(now(4), 1, actor)) != []
    assert bench.schedule(5) == [1]


def test_a_suspended_job_is_beyond_the_bound_on_waiting_jobs() -> None:
    bench = Bench(rules(max_waiting_per_user=1))
    bench.start()
    bench.suspend(1, by=None)
    assert bench.submit() == 2
    bench.check()


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


def test_draining_lets_no_suspended_job_go_on(bench: Bench) -> None:
    bench.bring(S.SUSPENDED)
    bench.feed(st.ResumeAsked(now(), 1, ALICE))
    bench.feed(st.DrainAsked(now(1), True, ADMIN))
    assert bench.schedule(2) == []
    bench.feed(st.DrainAsked(now(3), False, ADMIN))
    assert bench.schedule(4) == [1]


@pytest.mark.parametrize("on", [True, False])
def test_draining_twice_changes_nothing(bench: Bench, on: bool) -> None:
    bench.feed(st.DrainAsked(now(), on, ADMIN))
    assert bench.feed(st.DrainAsked(now(1), on, ADMIN)) == []


def test_the_reason_of_a_drain_can_be_changed_and_removed(bench: Bench) -> None:
    by = ADMIN.user
    first, later, none = (now(each).at_s for each in range(3))
    assert bench.feed(st.DrainAsked(now(), True, ADMIN, "disk swap")) == [
        ev.Drained(at_s=first, on=True, by=by, reason="disk swap")
    ]
    assert bench.feed(st.DrainAsked(now(1), True, ADMIN)) == []
    assert bench.feed(st.DrainAsked(now(1), True, ADMIN, "disk swap")) == []
    assert bench.feed(st.DrainAsked(now(1), True, ADMIN, "at 19:00")) == [
        ev.Drained(at_s=later, on=True, by=by, reason="at 19:00", since_s=first)
    ]
    assert bench.feed(st.DrainAsked(now(2), True, ADMIN, "")) == [
        ev.Drained(at_s=none, on=True, by=by, since_s=first)
    ]
    bench.feed(st.DrainAsked(now(3), False, ADMIN))
    assert bench.ledger.drained is None
    assert bench.feed(st.DrainAsked(now(4), True, ADMIN)) == [
        ev.Drained(at_s=now(4).at_s, on=True, by=by)
    ]


@pytest.mark.parametrize("on", [True, False])
def test_only_an_administrator_drains(bench: Bench, on: bool) -> None:
    refusal = refused(bench, st.DrainAsked(now(), on, ALICE))
    assert isinstance(refusal, NotPermitted)
    assert (refusal.code, refusal.exit_code) == ("not-admin", 77)
    assert str(refusal) == "only an administrator may drain or undrain"


def test_a_demand_of_a_disk_that_is_not_there_is_refused() -> None:
    """The configuration may change between a request and the decision."""
    bench = Bench(replace(rules(), axes=Axes(disks=("data",))))
    asks = replace(demand(1), disks=(("data", 1, 1), ("gone", 0, 1)))
    with pytest.raises(Refused) as refusal:
        bench.submit(spec(asks=asks))
    assert refusal.value.text == "this machine has no disk 'gone'"
    idle = replace(demand(1), disks=(("data", 1, 1), ("gone", 0, 0)))
    assert bench.submit(spec(asks=idle)) == 1, "what it does not use may be missing"


TWO = Resources(cores_milli=1000, disks=(("data", 10, 20), ("scratch", 0, 0)))


def two_disks() -> Rules:
    few = rules()
    capacity = replace(
        few.capacity, read_bps=0, write_bps=0, disks=(("data", 100, 100), ("scratch", 50, 50))
    )
    return replace(few, capacity=capacity, axes=Axes(disks=("data", "scratch")))


def test_the_upper_end_of_a_range_on_a_disk_may_be_changed_while_the_job_runs() -> None:
    bench = Bench(two_disks())
    job_id = bench.start(spec(asks=TWO))
    changed(bench, job_id, disks=(("data", 10, 20),), disks_max=(("data", 50, "all"),))
    assert bench.job(job_id).spec.most == Resources(disks=(("data", 50, 100),))
    changed(bench, job_id, disks=(("data", 10, 20),), disks_max=(("data", 0, 0),))
    assert bench.job(job_id).spec.most is None
    with pytest.raises(Refused, match="the upper end of a range"):
        changed(bench, job_id, disks=(("data", 11, 20),), disks_max=(("data", 0, 0),))


def changed(bench: Bench, job_id: int, **wish: object) -> Resources:
    bench.feed(st.ChangeAsked(now(), job_id, ALICE, st.Change(**wish)))  # type: ignore[arg-type]
    bench.ledger.check()
    return bench.job(job_id).spec.demand


def test_the_rates_of_the_only_disk_change_with_and_without_its_name() -> None:
    bench = Bench(replace(rules(), axes=Axes(disks=("data",))))
    job_id = bench.submit(spec(asks=Resources(cores_milli=1000, read_bps=1, write_bps=2)))
    asks = changed(bench, job_id, read_bps=3)
    assert (asks.read_bps, asks.write_bps, asks.disks) == (3, 2, ())
    asks = changed(bench, job_id, disks=(("data", 5, 6),))
    assert (asks.read_bps, asks.write_bps, asks.disks) == (5, 6, ())


def test_the_rates_of_a_named_disk_change_and_the_others_stay() -> None:
    bench = Bench(two_disks())
    job_id = bench.submit(spec(asks=TWO))
    asks = changed(bench, job_id, disks=(("scratch", 5, 6),))
    assert asks.disks == (("data", 10, 20), ("scratch", 5, 6))
    assert bench.rules.axes.vector(asks)[2:] == (10, 20, 5, 6)
    assert changed(bench, job_id, priority=3) == asks


def test_of_several_disks_one_must_be_named_and_must_be_there() -> None:
    bench = Bench(two_disks())
    job_id = bench.submit(spec(asks=TWO))
    for wish, complaint in (
        ({"read_bps": 1}, "say which one"),
        ({"disks": (("tape", 1, 1),)}, "no disk 'tape'"),
        ({"disks": (("data", 101, 1),)}, "could never start"),
    ):
        with pytest.raises(Refused, match=complaint):
            changed(bench, job_id, **wish)
    assert bench.job(job_id).spec.demand == TWO


def test_an_only_disk_that_has_another_name_is_refused() -> None:
    for axes in (Axes(), Axes(disks=("data",))):
        bench = Bench(replace(rules(), axes=axes))
        job_id = bench.submit(spec())
        with pytest.raises(Refused, match="no disk 'tape'"):
            changed(bench, job_id, disks=(("tape", 1, 1),))


def test_what_fits_no_more_may_still_be_renamed() -> None:
    bench = Bench(rules())
    job_id = bench.submit(spec(), held=True)
    bench.rules = replace(bench.rules, capacity=Resources(cores_milli=500))
    changed(bench, job_id, name="later")
    assert bench.job(job_id).spec.name == "later"
    with pytest.raises(Refused, match="could never start"):
        changed(bench, job_id, memory_bytes=1)


def test_a_task_that_is_over_is_told_as_people_call_it() -> None:
    bench = Bench(rules())
    job_id = bench.submit(spec(), held=True)
    wish = st.Change(after=(Dependency(7, RequiredOutcome.ANY),))
    ended = {7: Outcome.COMPLETED}
    for names, told in (({7: "4_3"}, "4_3"), ({}, "7")):
        (event, *_) = decide(
            bench.ledger,
            st.ChangeAsked(now(), job_id, ALICE, wish, ended=ended, names=names),
            bench.rules,
        )
        assert isinstance(event, ev.Altered)
        assert event.text == f"after nothing → {told}:any"


MIB = 1 << 20


# -- limits on stored bytes ---------------------------------------------------------------------


def long(size: int = 10_000, **more: object) -> JobSpec:
    """A specification of many bytes."""
    return replace(spec(**more), stderr="x" * size)  # type: ignore[arg-type]


def running(*words: str) -> JobSpec:
    return replace(spec(), argv=Words.of(words))


# -- what counts ------------------------------------------------------------------------------


def test_each_argument_counts_also_an_empty_one_unless_the_journal_counts_them_all() -> None:
    """They were counted by their letters: 100,000 empty ones took a megabyte and cost nothing."""
    empty, some = running(""), running(*[""] * LONG_BYTES)
    assert some.stored_bytes - empty.stored_bytes == LONG_BYTES - 1
    assert running(*[""] * (LONG_BYTES + 1)).stored_bytes == empty.stored_bytes - 1
    assert empty.stored_bytes > JOB_BYTES


def test_each_dependency_and_the_command_that_tells_the_owner_count() -> None:
    plain = spec()
    after = tuple(Dependency(each) for each in range(1, 1001))
    assert replace(plain, after=after).stored_bytes - plain.stored_bytes == 1000 * DEPENDENCY_BYTES
    notify = Notify(("end",), Words.of(["mail", "x" * 100]))
    assert replace(plain, notify=notify).stored_bytes - plain.stored_bytes == TEXT_BYTES + 106


def test_the_socket_of_a_job_with_a_terminal_counts() -> None:
    """It was left out: 200,000 waiting jobs could have 16 KiB each, far above any budget."""
    plain = spec()
    attached = replace(plain, attach="/" + "ü" * 4000)
    assert attached.stored_bytes - plain.stored_bytes >= 4 * 4000


def test_each_range_of_an_arrays_indices_counts_until_it_is_over(bench: Bench) -> None:
    """They were not counted at all."""
    spans = tuple((at, at, 1) for at in range(0, 2000, 2))
    (event,) = bench.feed(st.SubmitAsked(now(), spec(), spans=spans))
    assert isinstance(event, ev.ArraySubmitted)
    job_counts = bench.ledger.job_counts
    assert job_counts.stored_bytes["alice"] == spec().stored_bytes + 999 * SPAN_BYTES
    assert job_counts.all_stored_bytes == job_counts.stored_bytes["alice"]
    most = 2 * job_counts.all_stored_bytes
    bench.rules = replace(
        bench.rules, max_kept_bytes_per_user=most - 1, max_waiting_per_user=10_000
    )
    assert refused(bench, st.SubmitAsked(now(), spec(), spans=spans)).code == "too-long"
    bench.check()
    bench.feed(st.CancelAsked(now(), event.array_id, ALICE))
    assert not job_counts.stored_bytes
    assert not job_counts.all_stored_bytes


def test_a_sign_beyond_ascii_counts_as_much_as_it_may_take() -> None:
    assert spec(name="ü" * 100).stored_bytes - spec(name="u" * 100).stored_bytes == 300


def test_jobs_count_until_they_have_ended(bench: Bench) -> None:
    """Those that ran were not counted any more, though they are kept as before."""
    bench.feed(st.SubmitAsked(now(), long()))
    size = long().stored_bytes
    assert bench.schedule() == [1]
    assert bench.ledger.job_counts.stored_bytes == {"alice": size}
    bench.feed(attempt_started(1))
    bench.feed(ended(1))
    bench.feed(st.AttemptRemoved(now(), 1, 1))
    assert bench.ledger.job_counts.stored_bytes == {}
    assert bench.ledger.job_counts.all_stored_bytes == 0
    bench.check()


def test_an_array_counts_as_one_job_and_each_task_that_has_started(bench: Bench) -> None:
    """Its tasks have no record of their own before."""
    array = st.SubmitAsked(now(), long(), spans=((0, 99, 1),))
    bench.feed(array)
    assert bench.ledger.job_counts.stored_bytes == {"alice": long().stored_bytes}
    started = bench.schedule()
    size = (1 + len(started)) * long().stored_bytes
    assert bench.ledger.job_counts.stored_bytes == {"alice": size}
    bench.check()
    bench.feed(st.ChangeAsked(now(), 1, ALICE, st.Change(name="x" * 20), unmaterialized_only=True))
    more = len("x" * 20) - len("job")
    assert bench.ledger.job_counts.stored_bytes == {"alice": size + more}
    bench.check()
    bench.feed(st.CancelAsked(now(), 1, ALICE, unmaterialized_only=True))
    for job_id in started:
        bench.feed(attempt_started(job_id))
        bench.feed(ended(job_id))
        bench.feed(st.AttemptRemoved(now(), job_id, 1))
    assert bench.ledger.job_counts.stored_bytes == {}
    bench.check()


# -- a user's budget --------------------------------------------------------------------------


def full_bench(**more: int) -> Bench:
    """Alice's two jobs leave no room for a third."""
    most = 2 * long().stored_bytes + 100
    bench = Bench(replace(rules(), max_kept_bytes_per_user=most, **more))  # type: ignore[arg-type]
    for _ in range(2):
        bench.feed(st.SubmitAsked(now(), long(), held=True))
    return bench


def test_a_users_jobs_have_a_bound_together() -> None:
    bench = full_bench()
    refusal = refused(bench, st.SubmitAsked(now(), long()))
    assert (refusal.code, refusal.exit_code) == ("too-long", 1)
    assert str(refusal) == (
        "the jobs of alice would take 33.3K of drfd's memory and journal, and may take 22.3K "
        "(wait for some to end; have long lists of arguments read from a file, and submit jobs "
        "with the same environment and script)"
    )
    bench.submit(spec("root.bob", actor=BOB))
    bench.feed(st.CancelAsked(now(), 1, ALICE))
    bench.feed(st.SubmitAsked(now(), long()))
    bench.check()


def test_what_the_journal_keeps_is_in_the_same_budget() -> None:
    bench = Bench(replace(rules(), max_kept_bytes_per_user=3 * MIB))
    kept = st.Kept(own_bytes=3 * MIB - spec().stored_bytes)
    bench.feed(st.SubmitAsked(now(), spec(), kept=kept))
    assert refused(bench, st.SubmitAsked(now(), spec(), kept=kept)).code == "too-long"


@pytest.mark.parametrize(
    "ask",
    [
        st.HoldAsked(now(), 1, ALICE),
        st.ReleaseAsked(now(), 1, ALICE),
        st.ChangeAsked(now(), 1, ALICE, st.Change(priority=7)),
        st.SuspendAsked(now(), 1, ALICE),
        st.ResumeAsked(now(), 1, ALICE),
        st.SignalAsked(now(), 1, ALICE, 10),
    ],
    ids=lambda ask: type(ask).__name__,
)
def test_changes_are_refused_when_the_budget_is_used_up(ask: st.HoldAsked) -> None:
    """None of them was counted: one user filled the disk by setting a priority again and again."""
    bench = full_bench()
    kept = st.Kept(own_bytes=bench.rules.max_kept_bytes_per_user // 8)
    refusal = refused(bench, replace(ask, kept=kept))
    assert refusal.code == "too-long"
    assert str(refusal).endswith("(cancel some, or wait for some to end)")
    assert refused(bench, replace(ask, job_id=99, kept=kept)).code == "no-such-job"
    assert refused(bench, replace(ask, actor=BOB, kept=kept)).code == "not-yours"


def test_jobs_that_fill_the_budget_can_be_put_in_order() -> None:
    bench = full_bench()
    assert bench.feed(st.ReleaseAsked(now(), 1, ALICE)) == [happened(ev.Released, 1, by="alice")]
    bench.feed(st.ChangeAsked(now(), 1, ALICE, st.Change(priority=7)))
    after = tuple(Dependency(2) for _ in range(100))
    refusal = refused(bench, st.ChangeAsked(now(), 1, ALICE, st.Change(after=after)))
    assert refusal.code == "too-long"


def test_to_cancel_is_never_refused_and_an_administrator_may_change_all() -> None:
    bench = full_bench(max_kept_bytes=1)
    kept = st.Kept(own_bytes=1 << 40, all_bytes=1 << 40)
    bench.feed(st.ReleaseAsked(now(), 1, ADMIN, kept=kept))
    bench.feed(st.CancelAsked(now(), 1, ALICE))
    bench.feed(st.CancelAsked(now(), 2, ALICE))
    assert bench.ledger.job_counts.stored_bytes == {}


# -- the budget of all ------------------------------------------------------------------------


def test_all_users_together_have_a_bound_and_each_has_a_little_in_any_case() -> None:
    """Many users together could exhaust the daemon's memory, each within a bound of his own."""
    bench = Bench(replace(rules(), max_kept_bytes=4 * MIB))
    big = long(2 * MIB)
    bench.feed(st.SubmitAsked(now(), big))
    refusal = refused(bench, st.SubmitAsked(now(), replace(big, user="bob", uid=BOB.uid)))
    assert (refusal.code, refusal.exit_code) == ("too-much-kept", 1)
    assert str(refusal) == (
        "the jobs of all users would take 4M of drfd's memory and journal, and may take 4M "
        "(wait for some to end; the administrator can raise stored_bytes_total under [limits])"
    )
    bench.feed(st.SubmitAsked(now(), replace(big, user="root", uid=0), is_admin=True))
    small = replace(spec("root.bob", actor=BOB), stderr="x" * (ALWAYS_BYTES // 2))
    bench.feed(st.SubmitAsked(now(), small))
    assert refused(bench, st.SubmitAsked(now(), small)).code == "too-much-kept"
    kept = st.Kept(own_bytes=ALWAYS_BYTES, all_bytes=ALWAYS_BYTES)
    assert bench.job(3).state is JobState.PENDING
    assert refused(bench, st.HoldAsked(now(), 3, BOB, kept=kept)).code == "too-much-kept"
    bench.feed(st.HoldAsked(now(), 3, BOB))
    bench.check()
