"""Load from outside: when it is seen, what it keeps free, and what it never does."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

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
from drfd.core.scheduling.scheduling_pass import free_of
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


def test_a_load_is_seen_when_all_the_latest_samples_show_it() -> None:
    gauge = ExternalLoadEstimator()
    assert show(gauge, *[use(4, 8)] * (SAMPLES - 1)) == 0
    assert gauge.load(now(8).at_s) is None
    assert show(gauge, use(4, 8), at_s=8) == 1
    load = gauge.load(now(8).at_s)
    assert load == ExternalLoad(used=use(4, 8), kept=use(4, 8), until_s=now(68).at_s)


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


def test_what_the_machine_has_besides_covers_what_jobs_leave() -> None:
    gauge = ExternalLoadEstimator()
    assert not leave(gauge, 3, beside=use(0, 4))
    assert leave(gauge, 3, beside=use(0, 4))
    assert gauge.kept == use(0, 2)


def test_little_that_is_left_adds_up() -> None:
    gauge = ExternalLoadEstimator()
    assert [leave(gauge, 0.375) for _ in range(4)] == [False, False, True, True]
    assert gauge.kept == use(0, 1.5)


@pytest.mark.parametrize("length", range(1, SAMPLES))
def test_a_spike_is_not_seen(length: int) -> None:
    gauge = ExternalLoadEstimator()
    quiet = [use()] * SAMPLES
    assert show(gauge, *quiet, *[use(16, 30)] * length, *quiet) == 0
    assert gauge.kept == NOTHING


@pytest.mark.parametrize("length", range(1, SAMPLES))
def test_a_pause_does_not_end_it(length: int) -> None:
    gauge = ExternalLoadEstimator()
    loud = [use(4, 8)] * SAMPLES
    assert show(gauge, *loud, *[use()] * length, *loud) == 1
    assert gauge.kept == use(4, 8)


def test_it_ends_when_all_the_latest_samples_are_without_it() -> None:
    gauge = ExternalLoadEstimator()
    show(gauge, *[use(4, 8)] * SAMPLES)
    assert show(gauge, *[use()] * SAMPLES) == 1
    assert gauge.load(now(99).at_s) is None


def test_an_unsteady_load_counts_with_the_least_that_it_always_is() -> None:
    gauge = ExternalLoadEstimator()
    show(gauge, *[use(2), use(9), use(3), use(16), use(2.5)] * 3)
    assert gauge.kept == use(2)


def test_what_the_machine_has_besides_covers_the_first_part() -> None:
    gauge = ExternalLoadEstimator()
    assert show(gauge, *[use(4, 8)] * 9, beside=use(4, 7.5)) == 0
    assert show(gauge, *[use(4, 10)] * 9, beside=use(4, 7.5)) == 1
    assert gauge.kept == use(0, 2.5)
    load = gauge.load(now(0).at_s)
    assert load is not None
    assert load.used == use(4, 10), "all of it is told"


def test_it_is_noticed_from_a_sixteenth_on_and_until_half_of_that() -> None:
    """So that a load about as large as the threshold does not come and go."""
    gauge = ExternalLoadEstimator()
    assert show(gauge, *[use(0.999, 0.999)] * SAMPLES) == 0
    assert show(gauge, *[use(1, 1)] * SAMPLES) == 1
    assert show(gauge, *[use(0.5, 0.5)] * SAMPLES) == 1
    assert gauge.kept == use(0.5, 0.5)
    assert show(gauge, *[use(0.499, 0.499)] * SAMPLES) == 1
    assert gauge.kept == NOTHING


def test_it_is_expected_to_last_as_long_again_as_it_has_lasted() -> None:
    gauge = ExternalLoadEstimator()
    show(gauge, *[use(4)] * SAMPLES, at_s=-8)
    loads = [gauge.load(now(at_s).at_s) for at_s in (10, 100, 3599, 3600)]
    until = [None if load is None else load.until_s - now().at_s for load in loads]
    assert until == [70, 200, 7198, inf], "a minute at least, and after an hour for ever"


def test_its_time_begins_anew_when_it_has_ended_and_comes_again() -> None:
    gauge = ExternalLoadEstimator()
    show(gauge, *[use(4)] * SAMPLES, *[use()] * SAMPLES)
    show(gauge, *[use(4)] * SAMPLES, at_s=5000)
    load = gauge.load(now(5008).at_s)
    assert load is not None
    assert load.until_s == now(5068).at_s


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


def test_nothing_starts_in_what_is_kept_for_it(bench: Bench) -> None:
    """The bench has 9 cores and 18 GiB."""
    bench.submit(spec(asks=demand(4, 4)))
    bench.submit(spec(asks=demand(4, 4)))
    assert a_pass(bench, loaded(3, 2)).admitted == [1]
    assert a_pass(bench, loaded(1, 10)).admitted == [1, 2]
    assert a_pass(bench, loaded(1, 10.5)).admitted == [1]


def test_running_jobs_keep_all_they_have(bench: Bench) -> None:
    """More may then be in use than there is: nothing is free, and nothing else happens."""
    bench.start(spec(asks=demand(8, 16)))
    bench.submit()
    last = a_pass(bench, loaded(5, 10))
    assert last.admitted == []
    assert free_of(bench.ledger, bench.rules, loaded(5, 10))[0] == -4000


def test_it_does_not_change_what_anybody_is_entitled_to(bench: Bench) -> None:
    bench.start(of_bob(3))
    bench.submit()
    one, other = (a_pass(bench, load) for load in (None, loaded(2, 4)))
    for path in ("root.alice", "root.bob"):
        assert one.share_tree is not None
        assert other.share_tree is not None
        assert one.share_tree.entitlement(path) == other.share_tree.entitlement(path)
        assert one.share_tree.satisfaction("root.bob") == other.share_tree.satisfaction("root.bob")


def why(bench: Bench, job_id: int, last: Plan) -> WaitReason | None:
    return explain_wait(bench.job(job_id), bench.ledger, last, bench.rules)


def test_who_waits_for_it_is_told_what_it_uses_and_what_is_left(bench: Bench) -> None:
    bench.start(spec(asks=demand(2, 4)))
    bench.submit(spec(asks=demand(1, 10)))
    load = replace(loaded(0, 6), used=use(1.5, 8))
    assert why(bench, 2, a_pass(bench, load)) == WaitReason(
        ReasonCode.EXTERNAL_LOAD,
        ExternalUse(ResourceShortage("memory", 10 << 30, 8 << 30), used=8 << 30, kept=6 << 30),
    )


def test_who_would_wait_without_it_too_waits_for_resources(bench: Bench) -> None:
    bench.start(of_bob(8))
    bench.submit(spec(asks=demand(2)))
    reason = why(bench, 2, a_pass(bench, loaded(1)))
    assert reason is not None
    assert reason.code is ReasonCode.RESOURCES


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


def test_a_big_job_keeps_its_place_while_the_load_is_expected_to_end(bench: Bench) -> None:
    """Else each minute of somebody's compiling would cost it the place, for a day if a long job
    takes it."""
    bench.start(of_bob(5, limit_s=600))
    bench.submit(spec(asks=demand(9)))
    bench.submit(of_bob(1, limit_s=86400))
    bench.submit(of_bob(0.5, limit_s=60))
    last = a_pass(bench, loaded(2, until_s=300), at_s=100)
    assert [each.job_id for each in last.reservations] == [2]
    assert last.reservations[0].start_s == now(600).at_s
    assert last.admitted == [4], "it ends in time; the other would not"


def test_for_a_load_without_an_end_in_sight_nothing_is_kept_idle(bench: Bench) -> None:
    bench.submit(spec(asks=demand(9)))
    bench.submit(of_bob(1, limit_s=86400))
    last = a_pass(bench, loaded(2), at_s=200_000)
    assert last.reservations == ()
    assert last.admitted == [2]


def test_who_fits_beside_such_a_load_is_reserved_for_as_ever(bench: Bench) -> None:
    bench.start(of_bob(5, limit_s=600))
    bench.submit(spec(asks=demand(7)))
    last = a_pass(bench, loaded(2), at_s=100)
    assert [(each.job_id, each.start_s) for each in last.reservations] == [(2, now(600).at_s)]


def forecast(bench: Bench, job_id: int, load: ExternalLoad | None) -> float | None:
    """In seconds; the bench is used up."""
    future = Forecast(bench.ledger, bench.rules, RunTimes(), {}, (), now(100), load)
    start_s = future.start_s(job_id)
    return None if start_s is None else start_s - now().at_s


@pytest.mark.parametrize(
    ("load", "start_s"),
    [
        (None, 100),
        (loaded(2, until_s=300), 300),
        (loaded(0, 5, until_s=300), 100),
        (loaded(2), None),
    ],
)
def test_a_forecast_counts_on_its_end(load: ExternalLoad | None, start_s: float | None) -> None:
    bench = Bench()
    job_id = bench.submit(spec(asks=demand(8)))
    assert forecast(bench, job_id, load) == start_s


def test_a_forecast_goes_on_when_the_load_is_over_and_jobs_are_not() -> None:
    bench = Bench()
    bench.start(of_bob(5, limit_s=600))
    job_id = bench.submit(spec(asks=demand(9), time_limit_s=60))
    assert forecast(bench, job_id, loaded(2, until_s=300)) == 600


# -- instances ---------------------------------------------------------------------------------

BY = ("carol",)


def test_an_instance_is_in_use_from_the_third_reading_that_shows_it_to_the_third_without() -> None:
    gauge, by = ExternalLoadEstimator(), Rules(capacity=CAPACITY, beside=NOTHING)
    one, two = ("gpu", "0"), ("gpu", "1")
    seen = []
    for number, used in enumerate(([one], [one, two], [one], [two], [], [two], [], [], [])):
        changed = gauge.see_instances(dict.fromkeys(used, BY), by, 2.0 * number)
        seen.append((changed, sorted(name for _, name in gauge.instances)))
    assert seen == [
        *[(False, [])] * 2, (True, ["0"]), (False, ["0"]), (False, ["0"]), (True, []),
        *[(False, [])] * 3,
    ]  # fmt: skip


def test_an_instance_is_not_in_use_for_ever_because_nobody_reads_any_more() -> None:
    gauge, by = ExternalLoadEstimator(), Rules(capacity=CAPACITY, beside=NOTHING)
    used = {("gpu", "0"): BY}
    for at_s in (0.0, 2.0, 4.0):
        gauge.see_instances(used, by, at_s)
    load = gauge.load(34.0)
    assert load is not None and load.instances == ((("gpu", "0"), BY),)
    assert gauge.load(34.1) is None
    assert gauge.see_instances({}, by, 60.0) is False
    # Where jobs need not respect such load, there is none.
    free = Rules(capacity=CAPACITY, beside=None)
    for at_s in (61.0, 62.0, 63.0):
        gauge.see_instances(used, free, at_s)
    assert gauge.load(63.0) is None


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
