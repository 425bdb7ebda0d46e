"""Requests of users: who may make them, which are refused, and which events follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.common.errors import NotPermitted, Refused
from drfd.core.amounts.resources import Axes, Resources
from drfd.core.decisions.job_requests import ALWAYS_BYTES, refuse_unfit
from drfd.core.fairness.rules import Rules
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    Dependency,
    JobSpec,
    JobState,
)
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    Bench,
    demand,
    happened,
    now,
    rules,
    spec,
    with_gpus,
)

S = JobState


def refused(bench: Bench, stimulus: st.Stimulus) -> Refused:
    """The refusal; that the books stay as they were is checked by `feed`."""
    with pytest.raises(Refused) as caught:
        bench.feed(stimulus)
    return caught.value


# -- submit -----------------------------------------------------------------------------------


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


# -- permissions ------------------------------------------------------------------------------


# -- cancel -----------------------------------------------------------------------------------


# -- hold and release -------------------------------------------------------------------------


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


# -- suspend and resume -----------------------------------------------------------------------


@pytest.mark.parametrize("is_frozen", [False, True])
def test_resuming_twice_changes_nothing(bench: Bench, is_frozen: bool) -> None:
    bench.bring(S.RUNNING)
    bench.feed(st.SuspendAsked(now(), 1, ALICE))
    if is_frozen:
        bench.feed(st.Frozen(now(), 1, 1))
    assert bench.feed(st.ResumeAsked(now(1), 1, ALICE)) == [happened(ev.ResumeRequested, at_s=1)]
    assert bench.feed(st.ResumeAsked(now(2), 1, ALICE)) == []


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


# -- drain ------------------------------------------------------------------------------------


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


MIB = 1 << 20


# -- limits on stored bytes ---------------------------------------------------------------------


def long(size: int = 10_000, **more: object) -> JobSpec:
    """A specification of many bytes."""
    return replace(spec(**more), stderr="x" * size)  # type: ignore[arg-type]


# -- what counts ------------------------------------------------------------------------------


def test_the_socket_of_a_job_with_a_terminal_counts() -> None:
    """It was left out: 200,000 waiting jobs could have 16 KiB each, far above any budget."""
    plain = spec()
    attached = replace(plain, attach="/" + "ü" * 4000)
    assert attached.stored_bytes - plain.stored_bytes >= 4 * 4000


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
