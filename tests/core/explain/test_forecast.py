"""When a waiting job would start: small worlds, worked out by hand.

The machine has 9 cores and 18 GiB unless it says otherwise; times are seconds since the world
began. Jobs run for their whole limits: nobody has run anything before.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.common.errors import Refused
from drfd.core.amounts.resources import Axes
from drfd.core.decisions.dependencies import may_become_eligible
from drfd.core.explain import forecast
from drfd.core.explain.forecast import Forecast, smaller_demand
from drfd.core.fairness.rules import ReservationSettings, Rules
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job, JobSpec, JobState
from drfd.core.scheduling.backfill import Reservation
from drfd.core.scheduling.plan import Plan
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduling_pass import build_wait_index
from fakes import (
    ALICE,
    BOB,
    GIB,
    Bench,
    attempt_started,
    demand,
    happened,
    now,
    rules,
    spec,
    with_gpus,
)
from seeds import examples

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


def ahead(bench: Bench, at_s: float, run_times: RunTimes | None = None) -> Forecast:
    return Forecast(
        ledger=bench.ledger,
        rules=bench.rules,
        run_times=run_times or RunTimes(),
        past_usage={},
        before=(),
        now=now(at_s),
    )


def start(bench: Bench, job_id: int, at_s: float) -> float | None:
    """When the job starts, as it looks at `at_s`. The bench is used up."""
    start_s = ahead(bench, at_s).start_s(job_id)
    return None if start_s is None else start_s - now().at_s


def patient(cores: float, memory_gib: float, patience_s: float, *, reserves: bool = True) -> Rules:
    plain = rules(cores, memory_gib)
    patience = ReservationSettings(patience_s=patience_s, reserves=reserves)
    return Rules(capacity=plain.capacity, patience=patience)


# -- ends and order ---------------------------------------------------------------------------


def test_what_is_starting_or_being_cleared_away_is_counted_too() -> None:
    """One was admitted a moment ago; of the other only the remains are there, any moment gone."""
    bench = Bench()
    bench.submit(of(BOB, 5, 100))
    bench.schedule(0)
    bench.submit(of(BOB, 4, 100))
    bench.schedule(0)
    bench.feed(attempt_started(2))
    bench.befall(happened(ev.Exited, 2, 20))
    bench.submit(of(ALICE, 9, 60))
    assert bench.job(1).state is JobState.STARTING
    assert bench.job(2).state is JobState.CLEANING
    assert start(bench, 3, 30) == 130


def test_the_users_own_past_is_the_better_guess() -> None:
    """Bob's last two jobs took 100 and 200 s: his next one is given twice their mean."""
    bench = Bench()
    bench.start(of(BOB, 9, 86400))
    bench.submit(of(ALICE, 9, 60))
    past = RunTimes()
    past.add("bob", 100)
    past.add("bob", 200)
    assert ahead(bench, 50, past).start_s(2) == now(300).at_s


# -- reservations -----------------------------------------------------------------------------


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


# -- not within sight -------------------------------------------------------------------------


def test_who_is_too_far_behind_is_not_looked_for_any_longer() -> None:
    """A thousand jobs of the whole machine are ahead: the answer is to come within a moment."""
    bench = Bench()
    for job_id in range(1, 1001):
        bench.befall(happened(ev.Submitted, job_id, spec=of(ALICE, 9, 60)))
    assert start(bench, 1000, 0) is None


# -- what is only supposed --------------------------------------------------------------------


def test_a_submission_that_would_be_refused_cannot_be_supposed() -> None:
    bench = Bench(rules(max_waiting_per_user=1))
    bench.submit()
    with pytest.raises(Refused) as too_many:
        ahead(bench, 0).add(st.SubmitAsked(now(), spec()))
    with pytest.raises(Refused) as too_big:
        ahead(bench, 0).add(st.SubmitAsked(now(), of(BOB, 10, 60)))
    assert (too_many.value.code, too_big.value.code) == ("too-many-jobs", "too-big")


def test_a_job_starts_in_the_future_at_its_begin_time_if_there_is_room() -> None:
    bench = Bench(patient(9, 18, 3600))
    bench.start(of(ALICE, 9, 100))
    job_id = bench.submit(replace(of(BOB, 1, 50), begin_s=int(now(300).at_s)))
    assert may_become_eligible(bench.job(job_id))
    assert start(bench, job_id, 10) == 300


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_what_is_kept_from_pass_to_pass_changes_no_answer(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits is lined up once for a whole look ahead. Its oracle reads everything anew in each
    pass, which took 60 ms for each of 300 passes among 4,000 unlike jobs."""
    random = Random(seed)
    # Of many unlike demands, so that some users stand apart, and with places kept for some.
    bench = Bench(patient(9, 18, random.choice([0, 300]), reserves=random.random() < 0.7))
    for _ in range(40):
        actor = random.choice([ALICE, BOB, CAROL])
        limit_s = random.choice([60, 600, 3600, 7200])
        asked = of(actor, random.randrange(1, 90) / 10, limit_s, random.randrange(1, 12))
        bench.submit(replace(asked, priority=random.randrange(3)))
    ids = [*bench.ledger.jobs]
    wanted = random.sample(ids, 6)
    ledger = bench.ledger
    lined_up: list[object] = []
    monkeypatch.setattr(
        forecast, "build_wait_index", lambda *a: lined_up.append(a) or build_wait_index(*a)
    )

    def starts(kind: type[Forecast]) -> list[float | None]:
        return [
            kind(deepcopy(ledger), bench.rules, RunTimes(), {}, (), now(1)).start_s(each)
            for each in wanted
        ]

    found = starts(Forecast)
    assert len(lined_up) == len(wanted), "once for each look ahead"
    assert found == starts(Forgetful)
    assert len(lined_up) > 10 * len(wanted), "as often as there are passes"
    assert len({*found}) > 2


class Forgetful(Forecast):
    def pass_now(self) -> Plan:
        self._wait_index = self._ends = None
        self.ledger.queues.changed.clear()
        return super().pass_now()


def asking(
    cores: float, memory_gib: float = 1, *, by: object = ALICE, limit_s: int = 3600
) -> JobSpec:
    actor = BOB if by is BOB else ALICE
    return spec(
        f"root.{actor.user}", actor=actor, asks=demand(cores, memory_gib), time_limit_s=limit_s
    )


def builder(
    bench: Bench, at_s: float = 0.0, before: tuple[Reservation, ...] = ()
) -> Callable[[], Forecast]:
    return lambda: Forecast(deepcopy(bench.ledger), bench.rules, RunTimes(), {}, before, now(at_s))


def smaller(job: Job, limit_s: int | None = None, **amounts: Any) -> JobSpec:
    """The specification of the job with these amounts, and this time limit if one is given."""
    less = replace(job.spec, demand=replace(job.spec.demand, **amounts))
    return less if limit_s is None else replace(less, time_limit_s=limit_s)


def test_disk_rates_are_cut_too() -> None:
    bench = Bench(rules=replace(rules(), capacity=demand(9, 18, read=100 << 20, write=100 << 20)))
    bench.start(spec(asks=demand(1, 1, read=40 << 20)))
    waiting = bench.submit(spec(asks=demand(1, 1, read=80 << 20, write=10 << 20)))
    job = bench.job(waiting)
    assert smaller_demand(builder(bench), job) == smaller(job, read_bps=60 << 20)


def test_of_things_that_are_counted_none_can_be_cut() -> None:
    bench = Bench(with_gpus(2))
    asks = replace(demand(8, 1), gres=(("gpu", 2),))
    bench.start(spec(asks=asks))
    waiting = bench.submit(spec(asks=asks))
    assert smaller_demand(builder(bench), bench.job(waiting)) is None


def test_who_may_submit_no_more_hears_of_nothing() -> None:
    """In the book's place for it, the job itself has gone; yet there are too many others."""
    bench = Bench(rules=rules(max_waiting_per_user=4))
    bench.start(asking(4))
    waiting = [bench.submit(asking(8)) for _ in range(4)]
    bench.rules = rules(max_waiting_per_user=2)
    assert smaller_demand(builder(bench), bench.job(waiting[0])) is None


def test_what_others_would_get_first_is_not_suggested() -> None:
    """Two wait for what is free; bob, who holds nothing, comes before alice."""
    bench = Bench()
    bench.start(asking(4))
    bench.submit(asking(5.5, by=BOB))
    bench.submit(asking(4.5, by=BOB))
    waiting = bench.submit(asking(8))
    assert smaller_demand(builder(bench), bench.job(waiting)) is None


def test_a_shorter_time_passes_before_a_place_that_is_kept() -> None:
    bench = Bench(
        rules=Rules(
            capacity=rules().capacity,
            patience=ReservationSettings(patience_s=0, drain_after_s=9999),
        )
    )
    bench.start(asking(5, by=BOB, limit_s=1800))
    bench.submit(asking(9, by=BOB))
    (kept,) = builder(bench, 5.0)().pass_now().reservations
    # It fits beside the running one, and would stand in the way of the big one.
    waiting = bench.submit(asking(4, limit_s=7200), at_s=5.0)
    build = builder(bench, 5.0, (kept,))
    assert build().pass_now().admitted == []
    job = bench.job(waiting)
    assert smaller_demand(build, job) == smaller(job, limit_s=29 * 60)
    # A moment before that place is taken, no time is short enough.
    assert smaller_demand(builder(bench, 1790.0, (kept,)), bench.job(waiting)) is None


def test_a_job_that_runs_or_is_held_has_no_need() -> None:
    bench = Bench()
    running = bench.start(asking(4))
    held = bench.submit(asking(4), held=True)
    for job_id in (running, held):
        assert smaller_demand(builder(bench), bench.job(job_id)) is None


@examples(60)
@given(
    some.lists(some.tuples(some.integers(1, 18), some.integers(1, 18)), min_size=2, max_size=8),
    some.integers(1, 18),
    some.integers(1, 18),
)
def test_what_is_suggested_starts(others: list[tuple[int, int]], cores: int, memory: int) -> None:
    bench = Bench()
    for at, (half_cores, gib) in enumerate(others):
        bench.submit(asking(half_cores / 2, gib, by=BOB if at % 2 else ALICE))
    bench.schedule()
    waiting = bench.submit(asking(cores / 2, memory))
    if waiting in builder(bench)().pass_now().admitted:
        return
    job = bench.job(waiting)
    found = smaller_demand(builder(bench), job)
    if found is None:
        return
    asked, less = job.spec.demand, found.demand
    assert less.cores_milli <= asked.cores_milli and less.memory_bytes <= asked.memory_bytes
    assert found != job.spec and (found.time_limit_s or 0) <= 3600
    assert less.memory_bytes % GIB == 0 or less.memory_bytes % (16 << 20) == 0
    bench.ledger.apply(_cancelled(waiting))
    again = bench.submit(replace(job.spec, demand=less))
    assert again in bench.schedule()


def _cancelled(job_id: int) -> object:
    from drfd.core.model import events as ev

    return ev.Cancelled(job_id=job_id, at_s=now().at_s, by="alice")


def test_the_rate_of_one_of_several_disks_is_cut() -> None:
    disks = (("data", 100 << 20, 100 << 20), ("scratch", 100 << 20, 100 << 20))
    few = rules()
    capacity = replace(few.capacity, read_bps=0, write_bps=0, disks=disks)
    bench = Bench(replace(few, capacity=capacity, axes=Axes(disks=("data", "scratch"))))
    asks = replace(demand(1), disks=(("data", 60 << 20, 0), ("scratch", 0, 0)))
    bench.start(spec(asks=asks))
    waiting = bench.submit(spec(asks=asks))
    job, disks = bench.job(waiting), (("data", 40 << 20, 0), ("scratch", 0, 0))
    assert smaller_demand(builder(bench), job) == smaller(job, disks=disks)
