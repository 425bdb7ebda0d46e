"""Load from outside: when it is seen, what it keeps free, and what it never does."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from drfd.core.amounts.resources import NOTHING, Resources
from drfd.core.explain.forecast import Forecast
from drfd.core.explain.holders import ResourceShortage
from drfd.core.explain.reasons import (
    ExternalUse,
    ReasonCode,
    WaitReason,
    explain_wait,
)
from drfd.core.fairness.rules import ReservationSettings, Rules
from drfd.core.model.job import JobSpec
from drfd.core.scheduling.kept_free import (
    SAMPLES,
    ExternalLoad,
    ExternalLoadEstimator,
    beside_jobs,
)
from drfd.core.scheduling.plan import Plan
from drfd.core.scheduling.release_times import Ends, RunTimes, make_pass_context
from drfd.core.scheduling.scheduler import Scheduler
from fakes import BOB, Bench, demand, now, of_gpus, rules, schedule, spec, with_gpus

#: 16 cores and 32 GiB for jobs: a load of 1 core, or of 1 GiB, is noticed.
CAPACITY = demand(16, 32)


def use(cores: float = 0, memory_gib: float = 0) -> Resources:
    return demand(cores, memory_gib)


def show(
    gauge: ExternalLoadEstimator,
    *samples: Resources,
    beside: Resources = NOTHING,
    at_s: float = 0.0,
) -> int:
    """How many of the samples, two seconds apart, have changed what is kept."""
    machine = Rules(capacity=CAPACITY, beside=beside)
    return sum(
        gauge.see(each, machine, now(at_s + 2 * number).at_s) for number, each in enumerate(samples)
    )


# -- the gauge ---------------------------------------------------------------------------------


def leave(gauge: ExternalLoadEstimator, memory_gib: float, *, beside: Resources = NOTHING) -> bool:
    """A job has ended and left so much memory in use."""
    machine = Rules(capacity=CAPACITY, beside=beside)
    return gauge.leave(use(0, memory_gib).memory_bytes, machine, now(0).at_s)


def test_what_a_job_leaves_in_memory_is_seen_at_once() -> None:
    """Before, it took ten seconds, in which the next job was given the same memory."""
    gauge = ExternalLoadEstimator()
    show(gauge, *[use(0, 1)] * SAMPLES)
    assert leave(gauge, 3)
    assert gauge.kept == use(0, 4)
    # Samples that show it change nothing, and those that do not show it any more end it.
    assert show(gauge, *[use(0, 4)] * 2 * SAMPLES) == 0
    assert show(gauge, *[use(0, 1)] * (SAMPLES - 1)) == 0
    assert show(gauge, use(0, 1)) == 1
    assert gauge.kept == use(0, 1)


def test_what_is_left_before_the_first_samples_is_seen_too() -> None:
    gauge = ExternalLoadEstimator()
    show(gauge, use(0, 1))
    assert leave(gauge, 3)
    assert gauge.kept == use(0, 3)
    show(gauge, *[use(0, 4)] * SAMPLES)
    assert gauge.kept == use(0, 4)


# -- the pass ----------------------------------------------------------------------------------


def loaded(cores: float = 0, memory_gib: float = 0, *, until_s: float = inf) -> ExternalLoad:
    return ExternalLoad(
        used=use(cores, memory_gib), kept=use(cores, memory_gib), until_s=now(until_s).at_s
    )


def a_pass(
    bench: Bench, load: ExternalLoad | None, at_s: float = 0, last: Plan | None = None
) -> Plan:
    """One pass at this time, after another."""
    pass_context = make_pass_context(
        Ends(bench.ledger, RunTimes()),
        patience=ReservationSettings(patience_s=30),
        now_s=now(at_s).at_s,
        before=last.reservations if last is not None else (),
        external=load,
    )
    return schedule(bench.ledger, bench.rules, pass_context=pass_context)


def of_bob(cores: float, memory_gib: float = 1, limit_s: int = 3600) -> JobSpec:
    asks = demand(cores, memory_gib)
    return spec("root.bob", actor=BOB, asks=asks, time_limit_s=limit_s)


def why(bench: Bench, job_id: int, last: Plan) -> WaitReason | None:
    return explain_wait(bench.job(job_id), bench.ledger, last, bench.rules)


def test_under_fifo_too_the_first_job_says_that_it_waits_for_it() -> None:
    bench = Bench(replace(rules(9, 18), policy="fifo"))
    bench.submit(spec(asks=demand(9)))
    bench.submit(of_bob(1))
    last = a_pass(bench, loaded(2))
    found = [why(bench, job_id, last) for job_id in (1, 2)]
    assert [each.code for each in found if each is not None] == [
        ReasonCode.EXTERNAL_LOAD,
        ReasonCode.RESERVATION,
    ]


# -- reservations and forecasts ----------------------------------------------------------------


def test_for_a_load_without_an_end_in_sight_nothing_is_kept_idle(bench: Bench) -> None:
    bench.submit(spec(asks=demand(9)))
    bench.submit(of_bob(1, limit_s=86400))
    last = a_pass(bench, loaded(2), at_s=200_000)
    assert last.reservations == ()
    assert last.admitted == [2]


def forecast(bench: Bench, job_id: int, load: ExternalLoad | None) -> float | None:
    """In seconds; the bench is used up."""
    future = Forecast(bench.ledger, bench.rules, RunTimes(), {}, (), now(100), load)
    start_s = future.start_s(job_id)
    return None if start_s is None else start_s - now().at_s


def test_a_forecast_goes_on_when_the_load_is_over_and_jobs_are_not() -> None:
    bench = Bench()
    bench.start(of_bob(5, limit_s=600))
    job_id = bench.submit(spec(asks=demand(9), time_limit_s=60))
    assert forecast(bench, job_id, loaded(2, until_s=300)) == 600


# -- instances ---------------------------------------------------------------------------------

BY = ("carol",)


def test_a_gpu_that_others_use_is_given_to_no_job_and_the_reason_names_them() -> None:
    bench = Bench(with_gpus(2, beside=NOTHING))
    scheduler = Scheduler(half_life_s=3600.0)

    def run() -> None:
        for event in scheduler.run(bench.ledger, bench.rules, now()):
            bench.ledger.apply(event)

    for _ in range(3):
        scheduler.external_load.see_instances({("gpu", "0"): BY}, bench.rules, now().at_s)
    first, second = bench.submit(of_gpus(1)), bench.submit(of_gpus(1))
    run()
    assert bench.job(first).instances == (("gpu", ("1",)),)
    assert bench.job(second).instances == ()
    assert scheduler.last_plan is not None
    waiting = bench.job(second)
    reason = explain_wait(waiting, bench.ledger, scheduler.last_plan, bench.rules)
    shortage = ResourceShortage("gpu", 1, 0)
    assert reason == WaitReason(ReasonCode.EXTERNAL_LOAD, ExternalUse(shortage, 1, 1, (("0", BY),)))
    for _ in range(3):
        scheduler.external_load.see_instances({}, bench.rules, now().at_s)
    run()
    assert bench.job(second).instances == (("gpu", ("0",)),)
    # What a job has is not taken from it, nor counted twice.
    for _ in range(3):
        scheduler.external_load.see_instances({("gpu", "0"): BY}, bench.rules, now().at_s)
    assert beside_jobs(scheduler.external_load.load(now().at_s), bench.ledger) is None
