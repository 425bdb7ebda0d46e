"""Several jobs on one GPU, by the memory that they declare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.explain.test_reasons import why
from core.ledger.test_instances import gpus_of, reload, run, submit
from drfd.core.amounts.instance_room import OnInstances
from drfd.core.amounts.resources import NOTHING
from drfd.core.explain.forecast import Forecast, smaller_demand
from drfd.core.explain.reasons import TooLittleFree
from drfd.core.fairness.rules import Pool, Preempting
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import stimuli as st
from drfd.core.model.job import JobSpec, JobState
from drfd.core.scheduling.preemption import Starving, Supply, preempt
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import Scheduler
from fakes import (
    ALICE,
    BOB,
    Bench,
    demand,
    now,
    of_gpu_memory,
    of_gpus,
    spec,
    with_shared_gpus,
)

GIB = 1 << 30


def taken(bench: Bench) -> list[int]:
    """How much of each GPU jobs hold, in GiB."""
    held = bench.ledger.allocated
    return [part // GIB for part in held.parts] if isinstance(held, OnInstances) else []


def test_a_limit_counts_the_memory() -> None:
    pools = {"lab": Pool(users=frozenset({"alice"}), limit={"memory:gpu": 20 * GIB})}
    bench = Bench(with_shared_gpus(2, pools=pools))
    jobs = [bench.submit(of_gpu_memory(8, pool="root.lab")) for _ in range(3)]
    assert bench.schedule() == jobs[:2]
    with pytest.raises(Exception, match=r"24G of gpu memory, and root\.lab may hold 20G at most"):
        bench.submit(of_gpus(1, pool="root.lab"))


def test_more_than_a_gpu_has_is_refused() -> None:
    bench = Bench(with_shared_gpus(2))
    with pytest.raises(Exception, match="30G of a gpu's memory, and each gpu here has 24G"):
        bench.submit(of_gpu_memory(30))
    with pytest.raises(Exception, match="72G of gpu memory, and this machine has 48G for jobs"):
        bench.submit(of_gpus(3))


def test_the_jobs_on_the_gpu_that_is_free_first_are_named() -> None:
    """Those on the other one give back as much, and nothing that helps."""
    bench = Bench(with_shared_gpus(2))
    late, first = (
        bench.start(of_gpu_memory(memory, time_limit_s=limit_s))
        for memory, limit_s in ((14, 1200), (8, 600))
    )
    for memory, limit_s in ((16, 9000), (6, 900)):
        bench.start(of_gpu_memory(memory, time_limit_s=limit_s))
    waiting = bench.submit(of_gpus(1, pool="root.bob", actor=BOB))
    assert bench.schedule() == []
    found = why(bench, waiting)
    assert found is not None and isinstance(found.evidence, TooLittleFree)
    (short,) = found.evidence.shortfalls
    assert [each.job for each in short.holders] == [str(first), str(late)]
    assert (short.more, short.shortage.free) == (0, 2 * GIB)


def test_a_wait_for_several_gpus_says_how_much_is_of_free_ones() -> None:
    bench = Bench(with_shared_gpus(4))
    running = [bench.start(of_gpu_memory(memory)) for memory in (14, 12)]
    waiting = bench.submit(of_gpus(3, pool="root.bob", actor=BOB))
    assert bench.schedule() == []
    found = why(bench, waiting)
    assert found is not None and isinstance(found.evidence, TooLittleFree)
    (short,) = found.evidence.shortfalls
    assert (short.shortage.needed, short.shortage.free) == (72 * GIB, 48 * GIB)
    # One of the two is enough.
    assert [each.job for each in short.holders] in [[str(each)] for each in running]


def test_a_frozen_job_keeps_its_part_and_goes_on_with_it() -> None:
    bench = Bench(with_shared_gpus(1))
    frozen = bench.start(of_gpu_memory(14))
    bench.suspend(frozen)
    other, third = bench.submit(of_gpu_memory(10)), bench.submit(of_gpu_memory(10))
    assert bench.schedule() == [other]
    bench.feed(st.ResumeAsked(now(), frozen, ALICE))
    assert bench.schedule() == [frozen]
    assert (taken(bench), bench.job(third).state) == ([24], JobState.PENDING)
    bench.check()


def test_a_gpu_in_use_outside_gets_no_more_jobs_though_some_run_on_it() -> None:
    bench, scheduler = Bench(with_shared_gpus(2)), Scheduler(3600)
    first = submit(bench, scheduler, of_gpu_memory(4), 0)
    assert run(bench, scheduler, 0) == [first]
    bench.rules = replace(bench.rules, beside=NOTHING)
    for at_s in (1, 2, 3):
        scheduler.external_load.see_instances(
            {("gpu", "0"): ("carol",)}, bench.rules, now(at_s).at_s
        )
    second = submit(bench, scheduler, of_gpu_memory(4), 4)
    assert run(bench, scheduler, 4) == [second]
    assert gpus_of(bench.job(second)) == ("1",)
    third = submit(bench, scheduler, of_gpus(1), 5)
    assert run(bench, scheduler, 5) == []
    job = bench.job(second)
    bench.finish(second)
    scheduler.note(job)
    assert run(bench, scheduler, 6) == [third]
    assert gpus_of(bench.job(third)) == ("1",)


def test_the_newest_jobs_on_one_gpu_make_room_for_who_starves() -> None:
    bench = Bench(with_shared_gpus(2))
    for at_s in (0, 10, 20, 30):
        bench.start(of_gpu_memory(12, preemptible=True), at_s=at_s)
    starving = Starving("root.bob", bench.submit(of_gpus(1, pool="root.bob", actor=BOB)))
    share_tree = bench.rules.shares.share_tree(bench.ledger.used, bench.ledger.queues)
    found = preempt(
        bench.ledger,
        share_tree,
        Supply(capacity=bench.rules.shares.capacity),
        starving,
        Preempting(),
        now(5000),
    )
    gone = [bench.job(event.job_id) for event in found]
    assert {gpus_of(job) for job in gone} == {("1",)}
    assert len(gone) == 2


def test_nobody_is_stopped_on_a_gpu_that_is_in_use_outside() -> None:
    bench = Bench(with_shared_gpus(2))
    for at_s in (0, 10, 20, 30):
        bench.start(of_gpu_memory(12, preemptible=True), at_s=at_s)
    starving = Starving("root.bob", bench.submit(of_gpus(1, pool="root.bob", actor=BOB)))
    share_tree = bench.rules.shares.share_tree(bench.ledger.used, bench.ledger.queues)
    capacity, nothing = bench.rules.shares.capacity, bench.ledger.nothing

    def stopped(*shut: str) -> int:
        supply = Supply(capacity=capacity, external=nothing, shut=shut)
        return len(preempt(bench.ledger, share_tree, supply, starving, Preempting(), now(5000)))

    # The newest jobs are on GPU 1.
    assert (stopped(), stopped("0"), stopped("1")) == (2, 2, 0)


def test_a_smaller_demand_keeps_its_part() -> None:
    bench = Bench(with_shared_gpus(1))
    bench.start(spec(asks=demand(6, 1)))
    asked = of_gpu_memory(8)
    waiting = bench.job(bench.submit(_with_cores(asked, 8)))

    def build() -> Forecast:
        books = Ledger.of_events(bench.rules.axes, bench.events)
        return Forecast(books, bench.rules, RunTimes(), {}, (), now())

    smaller = smaller_demand(build, waiting)
    assert smaller is not None
    assert smaller.demand == _with_cores(asked, 3).demand


def _with_cores(asked: JobSpec, cores: int) -> JobSpec:
    return replace(asked, demand=replace(asked.demand, cores_milli=cores * 1000))


def test_a_gpu_that_is_held_beyond_its_new_size_takes_nothing_from_the_others() -> None:
    bench = Bench(with_shared_gpus(2))
    small = [bench.start(of_gpu_memory(12)) for _ in range(2)]
    reload(bench, with_shared_gpus(2, size=16 * GIB))
    big = bench.submit(of_gpus(1))
    assert bench.schedule() == [big]
    assert gpus_of(bench.job(big)) == ("1",)
    part = bench.submit(of_gpu_memory(6))
    assert bench.schedule() == []
    for each in small:
        bench.finish(each)
    assert bench.schedule() == [part]
    bench.check()


# -- random lives -----------------------------------------------------------------------------
