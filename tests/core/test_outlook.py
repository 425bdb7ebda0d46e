"""What a pass is told of time: who has waited since when, and what comes back when."""

from __future__ import annotations

from dataclasses import replace

from drfd.core import stimuli as st
from drfd.core.backfill import Outlook
from drfd.core.decide import schedule
from drfd.core.estimate import RunTimes
from drfd.core.outlook import look_out
from drfd.core.reservation import Patience, Reservation
from fakes import ALICE, BOB, GIB, Bench, demand, now, spec


def seen(bench: Bench, at_s: float) -> Outlook:
    return look_out(
        bench.ledger,
        patience=Patience(),
        run_times=RunTimes(),
        now_s=now(at_s).at_s,
        before=(),
    )


def test_a_waiting_job_has_waited_since_it_could_have_started(bench: Bench) -> None:
    bench.submit(at_s=10)
    bench.submit(at_s=10, held=True)
    bench.submit(at_s=10)
    bench.feed(st.HoldAsked(now(20), 3, ALICE))
    bench.feed(st.ReleaseAsked(now(70), 3, ALICE))
    outlook = seen(bench, 100)
    assert [outlook.waited_s(job_id) for job_id in (1, 2, 3)] == [90, 90, 30]


def test_a_suspended_job_has_waited_since_it_was_frozen(bench: Bench) -> None:
    bench.start()
    bench.suspend(1, by=None, at_s=40)
    assert seen(bench, 100).waited_s(1) == 60


def test_a_job_that_is_queued_again_has_its_patience_anew(bench: Bench) -> None:
    bench.start()
    bench.preempt(1, at_s=40)
    bench.finish(1, at_s=70)
    assert seen(bench, 100).waited_s(1) == 30


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
    outlook = seen(bench, 0)
    places = {job_id: outlook.entry(job_id) for job_id in range(1, 7)}
    assert places == {1: (-3, 1), 2: None, 3: None, 4: (-5, 4), 5: None, 6: None}


def test_what_a_job_will_take_is_its_estimate_or_what_is_left_of_it(bench: Bench) -> None:
    """Job 1 has run for 100 s of its 600 when it is frozen."""
    bench.start(spec(time_limit_s=600))
    bench.suspend(1, by=None, at_s=100)
    bench.submit(spec(time_limit_s=600))
    bench.submit(spec(time_limit_s=None))
    outlook = seen(bench, 1000)
    assert [outlook.length_s(job_id) for job_id in (1, 2, 3)] == [500, 600, 3600]


def test_a_suspended_job_is_not_in_the_way_of_a_reservation_that_waits_for_its_memory(
    bench: Bench,
) -> None:
    """Bob's job needs the memory that alice's holds. She has run for a seventh of an odd limit:
    if her end were rounded by a hair to after the shadow time, both would wait for ever."""
    bench.start(spec(asks=demand(9), time_limit_s=703))
    bench.suspend(1, by=None, at_s=100.3)
    bench.submit(spec("root.bob", actor=BOB, asks=demand(9, 18)), at_s=150)
    plan = schedule(bench.ledger, bench.rules, outlook=seen(bench, 250.7))
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
        start_s=now(20).at_s,
        end_s=now(20).at_s,
        spare=(0, 0, 0, 0),
        due_s=now(20).at_s,
    )
    outlook = replace(seen(bench, 1_000_000), before=(drained,))
    plan = schedule(bench.ledger, bench.rules, outlook=outlook)
    assert [each.is_drain for each in plan.reservations] == [True]
    assert plan.admitted == [1]
    for_2_alone = replace(outlook, before=(replace(drained, is_forced=True),))
    assert schedule(bench.ledger, bench.rules, outlook=for_2_alone).admitted == []


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
    assert schedule(bench.ledger, by_turn, outlook=seen(bench, 1)).admitted == [2]
    bench.feed(st.CancelAsked(now(), 1, BOB))
    assert schedule(bench.ledger, by_turn, outlook=seen(bench, 1)).admitted == [2, waiting[0]]
