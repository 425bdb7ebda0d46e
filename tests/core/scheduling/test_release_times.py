"""Estimates of run times and ends, and the context that a pass gets from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from drfd.core.amounts.vectors import Vector
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job, JobState
from drfd.core.scheduling import release_times as ends_module
from drfd.core.scheduling.backfill import PassContext, Reservation
from drfd.core.scheduling.release_times import Ends, RunTimes, make_pass_context
from fakes import ADMIN, ALICE, BOB, GIB, Bench, attempt_started, demand, now, rules, schedule, spec


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


@pytest.mark.parametrize(
    ("runs", "limit_s", "expected_s"),
    [
        ((), None, 3600),
        ((), 600, 600),
        ((100, 200), None, 300),
        ((9999, 100, 200), None, 300),
        ((50,), 7200, 100),
        ((1, 2), 7200, 60),
        ((5000, 5000), 7200, 7200),
    ],
)
def test_twice_what_the_last_two_took_and_never_more_than_the_limit(
    runs: tuple[float, ...], limit_s: int | None, expected_s: float
) -> None:
    assert times(*runs).length_s(spec(time_limit_s=limit_s)) == expected_s


def test_a_job_that_outlives_its_estimate_is_given_twice_as_long() -> None:
    guess = times(100, 100)
    assert guess.end_s(running(None), 1100.0) == 1200
    assert guess.end_s(running(None), 1200.0) == 1400
    assert guess.end_s(running(None), 2000.0) == 2600
    assert guess.end_s(running(500), 1400.0) == 1500


def test_at_its_limit_it_ends_any_moment() -> None:
    assert times(100).end_s(running(500), 1600.0) == 1600


def test_one_that_is_about_to_start_counts_from_now() -> None:
    job = replace(running(None), started_at=None, state=JobState.STARTING)
    assert times(100).end_s(job, 5000.0) == 5200


def test_the_time_that_a_job_was_frozen_does_not_count() -> None:
    """Started at 1000, frozen for 500 s in sum."""
    job = replace(running(600), suspended_s=500.0)
    assert times().end_s(job, 1700.0) == 1000 + 500 + 600
    assert times(100).end_s(job, 1700.0) == 1000 + 500 + 400, "it has outlived its estimate"


def test_the_end_of_a_frozen_job_moves_along() -> None:
    """It ran for 100 s of its 600, and was frozen at 1150 and, for 50 s, before."""
    job = replace(running(600), state=JobState.SUSPENDED, suspended_at=1150.0, suspended_s=50.0)
    assert [times().end_s(job, now_s) for now_s in (1150.0, 2000.0)] == [1650, 2500]


def test_other_users_have_other_times() -> None:
    assert times(100).length_s(replace(spec(time_limit_s=None), user="bob")) == 3600


#: Whose jobs they are.
ACTORS = (ALICE, BOB, ADMIN)


def read(ledger: Ledger, run_times: RunTimes, now_s: float) -> list[tuple[float, Vector]]:
    """Of every job that holds something, from nothing but the books."""
    return sorted(
        (run_times.end_s(job, now_s), ledger.allocation(job))
        for job in ledger.allocated_jobs()
        if job.state is not JobState.SUSPENDED or ledger.wanted(job) is not None
    )


def lives(seed: int, steps: int) -> Iterator[tuple[Bench, RunTimes, Ends, float]]:
    """Jobs come, start, freeze, go on and end in a random order; the clock is set back at times."""
    random, bench, run_times = Random(seed), Bench(rules()), RunTimes()
    ends, at_s = Ends(bench.ledger, run_times), 0.0

    def tell(before: int) -> None:
        for event in bench.events[before:]:
            ends.note(getattr(event, "job_id", 0))

    for _ in range(steps):
        at_s = max(0.0, at_s + random.choice((0, 1, 30, 400, 4000, -200)))
        before = len(bench.events)
        jobs = list(bench.ledger.jobs.values())
        running = [job.id for job in jobs if job.state is JobState.RUNNING]
        match random.choice(("start", "start", "wait", "end", "freeze", "thaw", "begin")):
            case "start" | "begin" as how:
                asked = spec(
                    actor=random.choice(ACTORS),
                    asks=demand(random.choice((0.1, 0.2)), 0.1),
                    time_limit_s=random.choice((None, 60, 3600)),
                )
                bench.submit(asked, at_s=at_s)
                for job_id in bench.schedule(at_s):
                    if how == "start":
                        bench.feed(attempt_started(job_id, at_s=at_s))
            case "end" if running:
                job = bench.job(random.choice(running))
                bench.finish(job.id, at_s=at_s)
                run_times.add(job.spec.user, random.choice((5, 500, 5000)))
                ends.note_user(job.spec.user)
            case "freeze" if running:
                bench.suspend(random.choice(running), by=random.choice((None, ADMIN)), at_s=at_s)
            case "thaw":
                bench.schedule(at_s)
            case _:
                pass
        tell(before)
        yield bench, run_times, ends, now(at_s).at_s


@pytest.mark.parametrize(("seed", "few"), [(0, 10), (1, 1), (2, 1), (3, 1000)])
def test_what_is_kept_is_what_would_be_read(
    seed: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether times are moved one by one or all together."""
    monkeypatch.setattr(ends_module, "_FEW", few)
    most = 0
    for bench, run_times, ends, now_s in lives(seed, 60):
        ends.read_noted()
        found = [(end_s, held) for end_s, _, held in ends.at(now_s)]
        assert found == sorted(found, key=lambda end: end[0])
        assert sorted(found) == read(bench.ledger, run_times, now_s)
        suspended = {
            job.id: (job.spec.leaf, wanted)
            for job in bench.ledger.allocated_jobs()
            if (wanted := bench.ledger.wanted(job)) is not None
        }
        assert ends.suspended == suspended
        most = max(most, len(found))
    assert most > 5


def test_nothing_is_read_again_that_no_event_was_about(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, run_times = Bench(rules()), RunTimes()
    for _ in range(20):
        bench.start(spec(asks=demand(0.1, 0.1), time_limit_s=3600))
    ends = Ends(bench.ledger, run_times)
    ends.read_noted()
    assert len(ends.at(now(10).at_s)) == 20
    asked = []
    length_s, allocation = RunTimes.length_s, Ledger.allocation
    monkeypatch.setattr(RunTimes, "length_s", lambda *of: asked.append(of) or length_s(*of))
    monkeypatch.setattr(Ledger, "allocation", lambda *of: asked.append(of) or allocation(*of))
    ends.read_noted()
    assert len(ends.at(now(20).at_s)) == 20
    assert asked == []


def seen(bench: Bench, at_s: float) -> PassContext:
    return make_pass_context(
        Ends(bench.ledger, RunTimes()),
        patience=ReservationSettings(),
        now_s=now(at_s).at_s,
        before=(),
    )


def test_a_waiting_job_has_waited_since_it_could_have_started(bench: Bench) -> None:
    bench.submit(at_s=10)
    bench.submit(at_s=10, held=True)
    bench.submit(at_s=10)
    bench.feed(st.HoldAsked(now(20), 3, ALICE))
    bench.feed(st.ReleaseAsked(now(70), 3, ALICE))
    pass_context = seen(bench, 100)
    assert [pass_context.waited_s(job_id) for job_id in (1, 2, 3)] == [90, 90, 30]


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
    pass_context = seen(bench, 0)
    places = {job_id: pass_context.entry(job_id) for job_id in range(1, 7)}
    assert places == {1: (-3, 1), 2: None, 3: None, 4: (-5, 4), 5: None, 6: None}


def test_what_a_job_will_take_is_its_estimate_or_what_is_left_of_it(bench: Bench) -> None:
    """Job 1 has run for 100 s of its 600 when it is frozen."""
    bench.start(spec(time_limit_s=600))
    bench.suspend(1, by=None, at_s=100)
    bench.submit(spec(time_limit_s=600))
    bench.submit(spec(time_limit_s=None))
    pass_context = seen(bench, 1000)
    assert [pass_context.length_s(job_id) for job_id in (1, 2, 3)] == [500, 600, 3600]


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
