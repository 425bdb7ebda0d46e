"""When a waiting job would start: small worlds, worked out by hand.

The machine has 9 cores and 18 GiB unless it says otherwise; times are seconds since the world
began. Jobs run for their whole limits: nobody has run anything before.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.dependencies import may_become_eligible
from drfd.core.estimate import RunTimes
from drfd.core.forecast import Future
from drfd.core.job import Dependency, JobSpec, JobState, Want
from drfd.core.reservation import Patience, Reservation
from drfd.core.rules import Rules
from drfd.errors import Refused
from fakes import ADMIN, ALICE, BOB, Bench, demand, happened, now, rules, runner_up, spec

CAROL = st.Actor(user="carol", uid=1003, is_admin=False)


def of(
    actor: st.Actor, cores: float, limit_s: int | None, memory_gib: float = 1, priority: int = 0
) -> JobSpec:
    return spec(
        f"root.{actor.user}",
        actor=actor,
        asks=demand(cores, memory_gib),
        time_limit_s=limit_s,
        priority=priority,
    )


def ahead(bench: Bench, at_s: float, run_times: RunTimes | None = None) -> Future:
    return Future(
        ledger=bench.ledger,
        rules=bench.rules,
        run_times=run_times or RunTimes(),
        spent={},
        before=(),
        now=now(at_s),
    )


def start(bench: Bench, job_id: int, at_s: float) -> float | None:
    """When the job starts, as it looks at `at_s`. The bench is used up."""
    start_s = ahead(bench, at_s).start_s(job_id)
    return None if start_s is None else start_s - now().at_s


def patient(cores: float, memory_gib: float, patience_s: float, *, reserves: bool = True) -> Rules:
    plain = rules(cores, memory_gib)
    patience = Patience(patience_s=patience_s, reserves=reserves)
    return Rules(capacity=plain.capacity, patience=patience)


# -- ends and order ---------------------------------------------------------------------------


def test_what_fits_starts_now() -> None:
    bench = Bench()
    bench.submit()
    assert start(bench, 1, 40) == 40


@pytest.mark.parametrize(("cores", "start_s"), [(2, 50), (5, 100), (6, 200), (9, 200)])
def test_what_does_not_fit_starts_when_enough_has_ended(cores: float, start_s: float) -> None:
    """3 cores come back at 100 and 4 at 200; 2 are free."""
    bench = Bench()
    bench.start(of(BOB, 3, 100))
    bench.start(of(BOB, 4, 200))
    bench.submit(of(ALICE, cores, 60))
    assert start(bench, 3, 50) == start_s


def test_each_resource_counts() -> None:
    """Cores are free all the time; 10 GiB come back at 100."""
    bench = Bench()
    bench.start(of(BOB, 1, 100, 10))
    bench.submit(of(ALICE, 1, 60, 9))
    assert start(bench, 2, 50) == 100


def test_jobs_ahead_in_the_queue_run_first() -> None:
    """Alone on the machine one after the other: at 100, 150, 180; by priority, then by age."""
    bench = Bench()
    bench.start(of(ALICE, 9, 100))
    bench.submit(of(ALICE, 9, 30))
    bench.submit(of(ALICE, 9, 50, priority=1))
    bench.submit(of(ALICE, 9, 70))
    assert start(bench, 4, 10) == 180


def test_who_has_least_is_served_first_in_the_future_too() -> None:
    """At 100 alice's 6 cores come back. Carol, who holds nothing, is before alice, who came
    first; alice follows when carol's job is over."""
    bench = Bench()
    bench.start(of(BOB, 3, 1000))
    bench.start(of(ALICE, 2, 1000))
    bench.start(of(ALICE, 4, 100))
    bench.submit(of(ALICE, 4, 60), at_s=10)
    bench.submit(of(CAROL, 4, 70), at_s=20)
    assert start(bench, 4, 30) == 170


def test_what_is_starting_or_being_cleared_away_is_counted_too() -> None:
    """One was admitted a moment ago; of the other only the remains are there, any moment gone."""
    bench = Bench()
    bench.submit(of(BOB, 5, 100))
    bench.schedule(0)
    bench.submit(of(BOB, 4, 100))
    bench.schedule(0)
    bench.feed(runner_up(2))
    bench.befall(happened(ev.Exited, 2, 20))
    bench.submit(of(ALICE, 9, 60))
    assert bench.job(1).state is JobState.STARTING
    assert bench.job(2).state is JobState.CLEANING
    assert start(bench, 3, 30) == 130


def test_all_that_ends_at_one_moment_is_there_at_that_moment() -> None:
    """Or the small job behind it would take the first core that comes back, for a minute."""
    bench = Bench(patient(9, 18, 1000))
    for _ in range(9):
        bench.start(of(BOB, 1, 100))
    bench.submit(of(ALICE, 9, 60))
    bench.submit(of(ALICE, 1, 60))
    assert start(bench, 10, 30) == 100


def test_the_users_own_past_is_the_better_guess() -> None:
    """Bob's last two jobs took 100 and 200 s: his next one is given twice their mean."""
    bench = Bench()
    bench.start(of(BOB, 9, 86400))
    bench.submit(of(ALICE, 9, 60))
    past = RunTimes()
    past.add("bob", 100)
    past.add("bob", 200)
    assert ahead(bench, 50, past).start_s(2) == now(300).at_s


def test_a_job_at_its_limit_ends_any_moment() -> None:
    bench = Bench()
    bench.start(of(BOB, 9, 100))
    bench.submit(of(ALICE, 9, 60))
    assert start(bench, 2, 105) == 105


# -- reservations -----------------------------------------------------------------------------


def reserved() -> tuple[Bench, Reservation]:
    """At 20, of four cores bob has three until 100, and all four are reserved for carol."""
    bench = Bench(patient(4, 18, 10))
    bench.start(of(BOB, 3, 100))
    bench.submit(of(CAROL, 4, 50), at_s=5)
    (kept,) = ahead(bench, 20).pass_now().reservations
    return bench, kept


def test_a_job_with_the_reservation_starts_at_its_shadow_time() -> None:
    bench, kept = reserved()
    assert kept.start_s == now(100).at_s
    assert replace(ahead(bench, 20), before=(kept,)).start_s(2) == now(100).at_s


@pytest.mark.parametrize(("limit_s", "start_s"), [(80, 20), (81, 150)])
def test_a_job_passes_the_reservation_if_it_ends_before(limit_s: int, start_s: float) -> None:
    """Carol's starts at 100. Alice's single core is free at 20: for 80 s, no longer; or when
    carol's is over."""
    bench, kept = reserved()
    bench.submit(of(ALICE, 1, limit_s), at_s=20)
    assert replace(ahead(bench, 20), before=(kept,)).start_s(3) == now(start_s).at_s


def test_without_reservations_it_passes_however_long_it_runs() -> None:
    bench, kept = reserved()
    bench.submit(of(ALICE, 1, 5000), at_s=20)
    bench.rules = patient(4, 18, 10, reserves=False)
    assert replace(ahead(bench, 20), before=(kept,)).start_s(3) == now(20).at_s


@pytest.mark.parametrize(("patience_s", "start_s"), [(90, 220), (1000, 600)])
def test_patience_runs_out_in_the_future(patience_s: float, start_s: float) -> None:
    """Of four cores, bob has three until 100 and alice one until 220. Carol wants all four, since
    5: at 100 she has waited for 95 s, and alice's next job, of two cores for 500 s, may not take
    them if that is long enough."""
    bench = Bench(patient(4, 18, patience_s))
    bench.start(of(BOB, 3, 100))
    bench.submit(of(CAROL, 4, 50), at_s=5)
    bench.start(of(ALICE, 1, 200), at_s=20)
    bench.submit(of(ALICE, 2, 500), at_s=20)
    assert start(bench, 2, 20) == start_s


# -- suspended jobs ---------------------------------------------------------------------------


def test_a_suspended_job_goes_on_when_its_cores_are_free_and_ends_so_much_later() -> None:
    """Job 1 has run for 20 s of 60 when job 2 takes its cores, until 130. Then it goes on, and is
    over at 170: a job that needs its memory starts then."""
    for wanted, start_s in ((1, 130), (3, 170)):
        bench = Bench(patient(9, 18, 10_000))
        bench.start(of(ALICE, 9, 60))
        bench.suspend(1, by=None, at_s=20)
        bench.start(of(BOB, 9, 100), at_s=30)
        bench.submit(of(BOB, 9, 60, 18), at_s=40)
        assert start(bench, wanted, 50) == start_s, wanted


def test_what_somebody_keeps_suspended_never_ends() -> None:
    """Its cores are free, its memory is not, as far as one can see."""
    for memory_gib, start_s in ((17, 50), (18, None)):
        bench = Bench()
        bench.start(of(ALICE, 9, 60))
        bench.suspend(1, at_s=20)
        bench.submit(of(BOB, 9, 60, memory_gib), at_s=30)
        assert start(bench, 2, 50) == start_s


def test_a_job_that_is_still_being_frozen_is_expected_to_run_to_its_end() -> None:
    bench = Bench()
    bench.start(of(ALICE, 9, 60))
    bench.feed(st.SuspendAsked(now(20), 1, ALICE))
    bench.submit(of(BOB, 9, 60))
    assert start(bench, 2, 30) == 60


# -- not within sight -------------------------------------------------------------------------


def test_during_a_drain_no_start_is_in_sight() -> None:
    bench = Bench()
    bench.start(of(BOB, 9, 100))
    bench.submit(of(ALICE, 1, 60))
    bench.feed(st.DrainAsked(now(10), True, ADMIN))
    assert start(bench, 2, 20) is None


def test_a_job_that_the_machine_can_no_longer_hold_never_starts() -> None:
    """It was made smaller."""
    bench = Bench()
    bench.submit(of(ALICE, 9, 60))
    bench.rules = rules(8, 18)
    assert start(bench, 1, 20) is None


def test_who_is_too_far_behind_is_not_looked_for_any_longer() -> None:
    """A thousand jobs of the whole machine are ahead: the answer is to come within a moment."""
    bench = Bench()
    for job_id in range(1, 1001):
        bench.befall(happened(ev.Submitted, job_id, spec=of(ALICE, 9, 60)))
    assert start(bench, 1000, 0) is None


# -- what is only supposed --------------------------------------------------------------------


def test_a_supposed_submission_is_the_next_job_and_waits_like_any_other() -> None:
    bench = Bench()
    bench.start(of(BOB, 9, 100))
    future = ahead(bench, 30)
    job = future.add(st.SubmitAsked(future.now, of(ALICE, 9, 60)))
    assert (job.id, job.state, job.submitted_at) == (2, JobState.PENDING, now(30).at_s)
    assert future.pass_now().admitted == []
    assert future.start_s(2) == now(100).at_s


def test_a_supposed_submission_on_hold_starts_at_no_time_that_is_in_sight() -> None:
    future = ahead(Bench(), 30)
    assert future.add(st.SubmitAsked(future.now, spec(), held=True)).state is JobState.HELD
    assert future.start_s(1) is None


def test_a_submission_that_would_be_refused_cannot_be_supposed() -> None:
    bench = Bench(rules(max_waiting_per_user=1))
    bench.submit()
    with pytest.raises(Refused) as too_many:
        ahead(bench, 0).add(st.SubmitAsked(now(), spec()))
    with pytest.raises(Refused) as too_big:
        ahead(bench, 0).add(st.SubmitAsked(now(), of(BOB, 10, 60)))
    assert (too_many.value.code, too_big.value.code) == ("too-many-jobs", "too-big")


def test_a_job_that_waits_for_others_starts_after_the_last_of_them() -> None:
    bench = Bench(patient(9, 18, 3600))
    first = bench.start(of(ALICE, 1, 100))
    second = bench.submit(replace(of(ALICE, 9, 50), after=(Dependency(first),)))
    third = bench.submit(replace(of(BOB, 1, 50), after=(Dependency(first), Dependency(second))))
    assert start(bench, third, 10) == 150


def test_a_job_starts_in_the_future_at_its_begin_time_if_there_is_room() -> None:
    bench = Bench(patient(9, 18, 3600))
    bench.start(of(ALICE, 9, 100))
    job_id = bench.submit(replace(of(BOB, 1, 50), begin_s=int(now(300).at_s)))
    assert may_become_eligible(bench.job(job_id))
    assert start(bench, job_id, 10) == 300


def test_what_waits_for_a_bad_end_has_no_start_in_sight() -> None:
    """All jobs are supposed to end well."""
    bench = Bench(patient(9, 18, 3600))
    first = bench.start(of(ALICE, 1, 100))
    job_id = bench.submit(replace(of(BOB, 1, 50), after=(Dependency(first, Want.FAIL),)))
    assert start(bench, job_id, 10) is None
    assert not may_become_eligible(bench.job(job_id))
