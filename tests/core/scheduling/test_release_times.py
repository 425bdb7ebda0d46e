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
from seeds import runs


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


@pytest.mark.parametrize(("few", "steps"), runs([1, 10, 1000], steps=60, quick=30))
def test_what_is_kept_is_what_would_be_read(
    few: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether times are moved one by one or all together."""
    monkeypatch.setattr(ends_module, "_FEW", few)
    most = 0
    for bench, run_times, ends, now_s in lives(few, steps):
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
    assert most > steps / 12


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
