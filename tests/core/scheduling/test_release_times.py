"""Estimates of run times and ends, and the context that a pass gets from them."""

from __future__ import annotations

from dataclasses import replace

from drfd.core.fairness.rules import ReservationSettings
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job, JobState
from drfd.core.scheduling.backfill import PassContext, Reservation
from drfd.core.scheduling.release_times import Ends, RunTimes, make_pass_context
from fakes import ALICE, BOB, GIB, Bench, demand, now, schedule, spec


def running(limit_s: int | None, started_s: float = 1000.0) -> Job:
    return Job(
        id=1,
        spec=spec(time_limit_s=limit_s),
        state=JobState.RUNNING,
        submitted_at=0.0,
        started_at=started_s,
    )


def times(*runs: float) -> RunTimes:
    found = RunTimes()
    for run_s in runs:
        found.add("alice", run_s)
    return found


def seen(bench: Bench, at_s: float) -> PassContext:
    return make_pass_context(
        Ends(bench.ledger, RunTimes()),
        patience=ReservationSettings(),
        now_s=now(at_s).at_s,
        before=(),
    )


def test_what_comes_back_is_what_is_held(bench: Bench) -> None:
    """A frozen job gives back its memory alone, and its end moves along while it is frozen."""
    bench.start(spec(asks=demand(2, 3), time_limit_s=600))
    bench.start(spec(asks=demand(4, 5), time_limit_s=600))
    bench.suspend(2, by=None, at_s=100)
    assert sorted(seen(bench, 400).ends) == [
        (now(600).at_s, (2000, 3 * GIB, 0, 0)),
        (now(900).at_s, (0, 5 * GIB, 0, 0)),
    ]


def test_nothing_comes_back_of_a_job_that_somebody_keeps_suspended(bench: Bench) -> None:
    """Until it is stopped, which may be while it is frozen."""
    bench.start()
    bench.suspend(1)
    assert list(seen(bench, 0).ends) == []
    bench.feed(st.CancelAsked(now(), 1, ALICE))
    assert [held for _, held in seen(bench, 0).ends] == [(0, GIB, 0, 0)]


def test_only_who_waits_has_a_place_in_the_queue(bench: Bench) -> None:
    bench.start(spec(priority=3))
    bench.start(spec(priority=3))
    bench.start()
    bench.submit(spec(priority=5))
    bench.submit(held=True)
    bench.suspend(1, by=None)
    bench.suspend(2)
    pass_context = seen(bench, 0)
    places = {job_id: pass_context.entry(job_id) for job_id in range(1, 7)}
    assert places == {1: (-3, 1), 2: None, 3: None, 4: (-5, 4), 5: None, 6: None}


def test_a_suspended_job_is_not_in_the_way_of_a_reservation_that_waits_for_its_memory(
    bench: Bench,
) -> None:
    """Bob's job needs the memory that alice's holds. She has run for a seventh of an odd limit:
    if her end were rounded by a hair to after the shadow time, both would wait for ever."""
    bench.start(spec(asks=demand(9), time_limit_s=703))
    bench.suspend(1, by=None, at_s=100.3)
    bench.submit(spec("root.bob", actor=BOB, asks=demand(9, 18)), at_s=150)
    plan = schedule(bench.ledger, bench.rules, pass_context=seen(bench, 250.7))
    assert plan.admitted == [1]
    assert [kept.job_id for kept in plan.reservations] == [2]


def test_a_drain_lets_go_on_what_holds_the_memory_that_it_waits_for(bench: Bench) -> None:
    """Else both would wait for ever, on an idle machine."""
    bench.start(spec(asks=demand(9), time_limit_s=600))
    bench.suspend(1, by=None, at_s=10)
    bench.submit(spec("root.bob", actor=BOB, asks=demand(9, 18)), at_s=20)
    drained = Reservation(
        job_id=2,
        leaf="root.bob",
        demand=bench.ledger.demand(bench.job(2)),
        held=bench.ledger.demand(bench.job(2)),
        start_s=now(20).at_s,
        end_s=now(20).at_s,
        extra=(0, 0, 0, 0),
        due_s=now(20).at_s,
    )
    pass_context = replace(seen(bench, 1_000_000), before=(drained,))
    plan = schedule(bench.ledger, bench.rules, pass_context=pass_context)
    assert [each.is_drain for each in plan.reservations] == [True]
    assert plan.admitted == [1]
    for_2_alone = replace(pass_context, before=(replace(drained, is_forced=True),))
    assert schedule(bench.ledger, bench.rules, pass_context=for_2_alone).admitted == []


def test_first_come_first_served_lets_go_on_who_holds_the_memory_that_the_first_waits_for(
    bench: Bench,
) -> None:
    """Bob's job came first and was held meanwhile. Those of alice's that ask for the same cores as
    hers does to go on still start one by one, when they can."""
    bench.submit(spec("root.bob", actor=BOB, asks=demand(1, 18)), held=True)
    bench.start(spec(asks=demand(4)))
    bench.suspend(2, by=None)
    bench.feed(st.ReleaseAsked(now(), 1, BOB))
    waiting = [bench.submit(spec(asks=demand(4, 0))) for _ in range(2)]
    by_turn = replace(bench.rules, policy="fifo")
    assert schedule(bench.ledger, by_turn, pass_context=seen(bench, 1)).admitted == [2]
    bench.feed(st.CancelAsked(now(), 1, BOB))
    assert schedule(bench.ledger, by_turn, pass_context=seen(bench, 1)).admitted == [2, waiting[0]]
