"""Maintenance windows: nothing that has a time limit runs in them, and nothing waits for them that
would end before."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest

from drfd.core.amounts.vectors import fits
from drfd.core.explain.forecast import Forecast, smaller_demand
from drfd.core.explain.reasons import (
    ReasonCode,
    WaitReason,
    WindowAhead,
    explain_wait,
)
from drfd.core.ledger.windows import (
    NO_LIMIT_S,
    Window,
    blocking,
)
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job, JobSpec, JobState, UserGroup
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import Scheduler
from fakes import ALICE, BOB, Bench, attempt_started, demand, now, rules, schedule, spec
from seeds import runs

#: Seconds on the clock of `now`.
HOUR = 3600


def window(
    start_s: float, end_s: float, name: str = "upgrade", *, is_weekly: bool = False
) -> Window:
    return Window(
        name=name,
        start_s=now(start_s).at_s,
        end_s=now(end_s).at_s,
        reason="new kernel",
        is_weekly=is_weekly,
    )


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.ledger.windows = (window(2 * HOUR, 4 * HOUR),)
    yield bench
    bench.ledger.check()


def lasting(limit_s: int | None, cores: float = 1, **more: object) -> JobSpec:
    return spec(asks=demand(cores), time_limit_s=limit_s, **more)  # type: ignore[arg-type]


def started(bench: Bench, at_s: float = 0.0) -> list[int]:
    bench.ledger.hold_back(now(at_s).at_s)
    bench.ledger.check()
    return bench.schedule(at_s)


def why(bench: Bench, job_id: int, at_s: float = 0.0) -> WaitReason | None:
    bench.ledger.hold_back(now(at_s).at_s)
    last = schedule(bench.ledger, bench.rules, at_s=at_s)
    return explain_wait(bench.ledger.job(job_id), bench.ledger, last, bench.rules)


# -- the times -------------------------------------------------------------------------------------


# -- which jobs start ------------------------------------------------------------------------------


def test_nothing_starts_while_a_window_is_open(bench: Bench) -> None:
    job_id = bench.submit(lasting(1))
    assert started(bench, 2 * HOUR) == []
    reason = why(bench, job_id, 2 * HOUR)
    assert reason is not None
    assert isinstance(reason.evidence, WindowAhead)
    assert reason.evidence.is_open


def test_a_job_that_is_changed_to_be_short_starts(bench: Bench) -> None:
    job_id = bench.submit(lasting(3 * HOUR))
    assert started(bench) == []
    bench.feed(st.ChangeAsked(now(), job_id, ALICE, st.Change(time_limit_s=HOUR)))
    assert started(bench) == [job_id]


def test_of_a_suspended_job_the_time_that_is_left_counts(bench: Bench) -> None:
    job_id = bench.start(lasting(2 * HOUR))
    bench.suspend(job_id, at_s=HOUR)
    bench.feed(st.ResumeAsked(now(HOUR), job_id, ALICE))
    assert started(bench, HOUR + 1) == [], "a second too late"
    assert started(bench, 4 * HOUR) == [job_id]


def test_the_tasks_of_an_array_wait_together_and_start_as_many_at_once_as_may(
    bench: Bench,
) -> None:
    asked = lasting(3 * HOUR)
    bench.feed(st.SubmitAsked(now(), asked, spans=((0, 9, 1),), at_once=2))
    bench.feed(st.SubmitAsked(now(), asked, spans=((0, 1, 1),)))
    assert started(bench) == []
    assert [*bench.ledger.queues.held_back().values()] == [4], "two of one and both of the other"
    assert started(bench, 4 * HOUR) == [2, 3, 13, 14]


def test_short_jobs_of_a_group_pass_long_ones(bench: Bench) -> None:
    group = UserGroup("sweep", 1)
    long = [bench.submit(lasting(3 * HOUR, group=group)) for _ in range(2)]
    short = [bench.submit(lasting(HOUR, group=group)) for _ in range(2)]
    assert started(bench) == short[:1]
    reason = why(bench, short[1])
    assert reason is not None
    assert reason.code is ReasonCode.LIMIT
    reason = why(bench, long[0])
    assert reason is not None
    assert reason.code is ReasonCode.MAINTENANCE


# -- what is said ----------------------------------------------------------------------------------


def ahead(bench: Bench) -> Forecast:
    return Forecast(deepcopy(bench.ledger), bench.rules, RunTimes(), {}, (), now())


def test_a_forecast_looks_beyond_the_window(bench: Bench) -> None:
    long, short = bench.submit(lasting(3 * HOUR)), bench.submit(lasting(HOUR))
    assert ahead(bench).start_s(long) == now(4 * HOUR).at_s
    assert ahead(bench).start_s(short) == now().at_s


def test_a_forecast_knows_the_job_that_waits_for_room_until_too_late(bench: Bench) -> None:
    """It fits before the window now, and no longer when there is room."""
    bench.start(lasting(HOUR, 9))
    job_id = bench.submit(lasting(HOUR + 1, 9))
    assert ahead(bench).start_s(job_id) == now(4 * HOUR).at_s


def test_nobody_can_say_when_a_job_starts_that_fits_no_gap_of_a_week(bench: Bench) -> None:
    bench.ledger.windows = tuple(
        window(at_s, at_s + HOUR, is_weekly=True) for at_s in (HOUR, 9 * HOUR, 17 * HOUR)
    )
    job_id = bench.submit(lasting(8 * HOUR))
    assert ahead(bench).start_s(job_id) is None
    reason = why(bench, job_id)
    assert reason is not None
    assert isinstance(reason.evidence, WindowAhead)
    assert reason.evidence.from_s is None


def test_a_shorter_time_limit_is_found_that_lets_the_job_start_now(bench: Bench) -> None:
    job_id = bench.submit(lasting(3 * HOUR))
    bench.ledger.hold_back(now().at_s)
    found = smaller_demand(lambda: ahead(bench), bench.ledger.job(job_id))
    assert found == replace(bench.ledger.job(job_id).spec, time_limit_s=2 * HOUR)


def test_the_reserved_start_of_a_big_job_is_not_in_a_window_and_keeps_nothing_before_it(
    bench: Bench,
) -> None:
    """Until the window nothing is kept for a job that has no room before it."""
    scheduler = Scheduler(7 * 86400)
    patient = replace(bench.rules, patience=replace(bench.rules.patience, patience_s=0.0))
    bench.start(lasting(HOUR, 8))
    big = bench.submit(lasting(HOUR + 60, 9))
    for event in list(scheduler.run(bench.ledger, patient, now(30))):
        bench.befall(event)
    (reserved,) = scheduler.reservations
    assert (reserved.job_id, reserved.start_s) == (big, now(4 * HOUR).at_s)
    small = bench.submit(lasting(HOUR + 1800, actor=BOB, pool="root.bob"))
    assert [event.job_id for event in scheduler.run(bench.ledger, patient, now(40))] == [small]


# -- everything together ---------------------------------------------------------------------------

NAMES = (ALICE, BOB)


@pytest.mark.parametrize(("seed", "steps"), runs(range(20), steps=50, quick=12))
def test_no_job_with_a_limit_runs_in_a_window_and_none_waits_without_need(
    seed: int, steps: int
) -> None:
    random = Random(seed)
    bench = Bench(
        rules=replace(rules(), patience=replace(rules().patience, reserves=random.random() < 0.3))
    )
    scheduler = Scheduler(7 * 86400)
    windows: list[Window] = []
    at = 0
    for number in range(random.randrange(1, 4)):
        at += random.randrange(1, 300)
        windows.append(window(at, at + random.randrange(1, 100), str(number)))
    bench.ledger.windows = tuple(sorted(windows, key=lambda each: each.start_s))
    ends: dict[int, float] = {}
    clock = 0.0
    for _ in range(steps):
        for _ in range(random.randrange(3)):
            actor = random.choice(NAMES)
            group = UserGroup("g", random.randrange(1, 3)) if random.random() < 0.2 else None
            limit_s = random.choice([None, 1, 5, 20, 50, 100, 200, 400])
            asked = spec(
                f"root.{actor.user}",
                actor=actor,
                asks=demand(random.randrange(1, 6)),
                time_limit_s=limit_s,
                group=group,
            )
            spans, most = (((0, 3, 1),), random.choice([None, 1, 2]))
            if random.random() < 0.2:
                bench.feed(st.SubmitAsked(now(clock), asked, spans=spans, at_once=most))
            else:
                bench.submit(asked, at_s=clock)
        if random.random() < 0.2:
            waiting = [
                each for each in bench.ledger.jobs.values() if each.state is JobState.PENDING
            ]
            if waiting:
                job = random.choice(waiting)
                actor = ALICE if job.spec.user == "alice" else BOB
                change = random.choice([st.Change(time_limit_s=random.choice([3, 30, 300])), None])
                bench.feed(
                    st.CancelAsked(now(clock), job.id, actor)
                    if change is None
                    else st.ChangeAsked(now(clock), job.id, actor, change)
                )
        if random.random() < 0.1:
            bench.ledger.windows = bench.ledger.windows[1:]
        while True:
            found = list(scheduler.run(bench.ledger, bench.rules, now(clock)))
            for event in found:
                bench.befall(event)
                job = bench.ledger.job(event.job_id)
                scheduler.note(job)
                bench.feed(attempt_started(job.id, job.attempt, at_s=clock))
                scheduler.note(bench.ledger.job(job.id))
                length = job.spec.time_limit_s
                assert blocking(bench.ledger.windows, length or NO_LIMIT_S, now(clock).at_s) is None
                ends[job.id] = clock + random.uniform(0.1, length or 30)
            if not found and not scheduler.is_cut:
                break
        bench.ledger.check()
        plan = scheduler.last_plan
        assert plan is not None
        for job in pending(bench):
            reason = explain_wait(job, bench.ledger, plan, bench.rules)
            assert reason is not None
            length = job.spec.time_limit_s or NO_LIMIT_S
            is_ahead = blocking(bench.ledger.windows, length, now(clock).at_s) is not None
            if reason.code is not ReasonCode.LIMIT:
                assert (reason.code is ReasonCode.MAINTENANCE) is is_ahead
            if not is_ahead and not plan.reservations and fits(bench.ledger.demand(job), plan.free):
                assert reason.code is ReasonCode.LIMIT, "it waits without need"
        times = [*ends.values(), clock + random.uniform(1, 60)]
        next_end = bench.ledger.window_end_s(now(clock).at_s)
        times += [] if next_end is None else [next_end - now(0).at_s]
        clock = max(clock, min(times))
        for job_id, end_s in list(ends.items()):
            if end_s <= clock:
                del ends[job_id]
                job = bench.ledger.job(job_id)
                bench.finish(job_id, at_s=clock)
                scheduler.note(job)


def pending(bench: Bench) -> Iterator[Job]:
    for job in bench.ledger.jobs.values():
        if job.state is JobState.PENDING:
            yield job
    for array_state in bench.ledger.arrays.values():
        for _, job_id in array_state.unmaterialized:
            yield bench.ledger.job(job_id)
