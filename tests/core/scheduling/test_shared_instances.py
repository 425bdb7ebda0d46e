"""Several jobs on one GPU, by the memory that they declare."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from core.explain.test_reasons import why
from core.ledger.test_instances import gpus_of, reload, run, steps, submit
from drfd.core.amounts.instance_room import OnInstances
from drfd.core.amounts.resources import NOTHING, Resources
from drfd.core.amounts.vectors import fits, minus
from drfd.core.explain.forecast import Forecast, smaller_demand
from drfd.core.explain.reasons import TooLittleFree
from drfd.core.fairness.rules import Pool, Preempting
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import stimuli as st
from drfd.core.model.job import Job, JobSpec, JobState
from drfd.core.scheduling.preemption import Starving, Supply, preempt
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import Scheduler
from drfd.core.scheduling.scheduling_pass import CONFIGURABLE
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    Bench,
    attempt_started,
    demand,
    ended,
    now,
    of_gpu_memory,
    of_gpus,
    spec,
    tables,
    with_gpus,
    with_shared_gpus,
)
from seeds import seeds

GIB = 1 << 30


def taken(bench: Bench) -> list[int]:
    """How much of each GPU jobs hold, in GiB."""
    held = bench.ledger.allocated
    return [part // GIB for part in held.parts] if isinstance(held, OnInstances) else []


@pytest.mark.parametrize("policy", CONFIGURABLE)
def test_jobs_share_a_gpu_while_their_memory_fits(policy: str) -> None:
    bench = Bench(with_shared_gpus(2, policy=policy, slots=9))
    jobs = [bench.submit(of_gpu_memory(10)) for _ in range(5)]
    assert bench.schedule() == jobs[:4]
    assert [gpus_of(bench.job(each)) for each in jobs[:4]] == [("0",), ("0",), ("1",), ("1",)]
    assert taken(bench) == [20, 20]
    # Four and four are free, which is not eight of one GPU.
    last = bench.submit(of_gpu_memory(5))
    assert bench.schedule() == []
    small = bench.submit(of_gpu_memory(4))
    assert (small in bench.schedule()) is (policy != "fifo")
    assert bench.job(last).state is JobState.PENDING
    bench.check()


def test_a_job_without_memory_gets_a_gpu_of_its_own() -> None:
    bench = Bench(with_shared_gpus(2))
    part, whole, two = (
        bench.submit(each) for each in (of_gpu_memory(1), of_gpus(1), of_gpu_memory(1, 2))
    )
    assert bench.schedule() == [part, whole]
    assert [gpus_of(bench.job(each)) for each in (part, whole)] == [("0",), ("1",)]
    assert taken(bench) == [1, 24]
    bench.finish(part)
    bench.finish(whole)
    assert bench.schedule() == [two]
    # Several GPUs are whole ones, however little memory is declared on each.
    assert (gpus_of(bench.job(two)), taken(bench)) == (("0", "1"), [24, 24])
    bench.check()


def test_gpu_memory_is_a_dominant_resource() -> None:
    """Of two GPUs, half the memory each, whoever came first."""
    bench = Bench(with_shared_gpus(2))
    greedy = [bench.submit(of_gpu_memory(6)) for _ in range(8)]
    other = [bench.submit(of_gpu_memory(12, pool="root.bob", actor=BOB)) for _ in range(4)]
    assert set(bench.schedule()) == {*greedy[:4], *other[:2]}
    shares = bench.rules.shares
    assert shares.dominant_share(bench.ledger.used["root.alice"]) == Fraction(1, 2)
    assert bench.rules.axes.names[shares.dominant_axis(bench.ledger.used["root.bob"]) or 0] == (
        "memory:gpu"
    )


def test_a_limit_counts_the_memory() -> None:
    pools = {"lab": Pool(users=frozenset({"alice"}), limit={"memory:gpu": 20 * GIB})}
    bench = Bench(with_shared_gpus(2, pools=pools))
    jobs = [bench.submit(of_gpu_memory(8, pool="root.lab")) for _ in range(3)]
    assert bench.schedule() == jobs[:2]
    with pytest.raises(Exception, match=r"24G of gpu memory, and root\.lab may hold 20G at most"):
        bench.submit(of_gpus(1, pool="root.lab"))


@pytest.mark.parametrize("policy", CONFIGURABLE)
def test_a_pool_with_a_limit_of_cores_may_have_several_parts(policy: str) -> None:
    pools = {"lab": Pool(users=frozenset({"alice"}), limit={"cores": 3000})}
    bench = Bench(with_shared_gpus(1, pools=pools, policy=policy, slots=9))
    for _ in range(3):
        bench.start(of_gpu_memory(4, pool="root.lab"))
    bench.submit(of_gpu_memory(4, pool="root.lab"))
    assert bench.schedule() == []
    assert taken(bench) == [12]


def test_a_limit_of_memory_is_none_of_gpu_memory() -> None:
    pools = {"lab": Pool(users=frozenset({"alice"}), limit={"memory": 2 * GIB})}
    bench = Bench(with_shared_gpus(1, pools=pools))
    job = bench.submit(of_gpu_memory(20, pool="root.lab"))
    assert bench.schedule() == [job]


def test_more_than_a_gpu_has_is_refused() -> None:
    bench = Bench(with_shared_gpus(2))
    with pytest.raises(Exception, match="30G of a gpu's memory, and each gpu here has 24G"):
        bench.submit(of_gpu_memory(30))
    with pytest.raises(Exception, match="72G of gpu memory, and this machine has 48G for jobs"):
        bench.submit(of_gpus(3))


def test_a_wait_for_one_gpu_says_what_one_has_free() -> None:
    bench = Bench(with_shared_gpus(2))
    for _ in range(2):
        bench.start(of_gpu_memory(14))
    waiting = bench.submit(of_gpu_memory(12))
    assert bench.schedule() == []
    found = why(bench, waiting)
    assert found is not None
    assert isinstance(found.evidence, TooLittleFree)
    (short,) = found.evidence.shortfalls
    assert (short.shortage.axis, short.shortage.needed, short.shortage.free) == (
        "memory:gpu", 12 * GIB, 10 * GIB,
    )  # fmt: skip
    assert [each.amount for each in short.holders] == [14 * GIB]


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


def test_a_whole_gpu_is_kept_for_a_job_that_has_waited_long() -> None:
    """Small jobs come for ever, and would never leave a GPU without any."""
    bench, scheduler = Bench(with_shared_gpus(2)), Scheduler(3600)
    ends: dict[int, float] = {}
    at_s, big, random = 0.0, 0, Random(1)
    while at_s < 20_000 and not (big and bench.job(big).state is JobState.RUNNING):
        for job_id in sorted(each for each, end_s in ends.items() if end_s <= at_s):
            job = bench.job(job_id)
            bench.feed(ended(job_id, at_s=at_s))
            bench.feed(st.AttemptRemoved(now(at_s), job_id, 1))
            scheduler.note(job)
            del ends[job_id]
        if at_s == 600:
            big = submit(bench, scheduler, of_gpus(1, pool="root.bob", actor=BOB), at_s)
        submit(bench, scheduler, of_gpu_memory(random.randint(4, 12), time_limit_s=600), at_s)
        for job_id in run(bench, scheduler, at_s):
            bench.feed(attempt_started(job_id, at_s=at_s))
            scheduler.note(bench.job(job_id))
            ends[job_id] = at_s + 580
        at_s += 20
    assert bench.job(big).state is JobState.RUNNING
    bench.check()


def test_short_jobs_may_use_the_gpu_that_is_kept_and_longer_ones_the_other() -> None:
    bench, scheduler = Bench(with_shared_gpus(2)), Scheduler(3600)
    first = submit(bench, scheduler, of_gpu_memory(20, time_limit_s=3600), 0)
    second = submit(bench, scheduler, of_gpu_memory(8, time_limit_s=9000), 0)
    assert run(bench, scheduler, 0) == [first, second]
    for each in (first, second):
        bench.feed(attempt_started(each))
        scheduler.note(bench.job(each))
    big = submit(bench, scheduler, of_gpus(1, pool="root.bob", actor=BOB), 0)
    assert run(bench, scheduler, 100) == []
    (kept,) = scheduler.reservations
    assert isinstance(kept.held, OnInstances)
    assert (kept.job_id, [part // GIB for part in kept.held.parts]) == (big, [24, 0])
    # The four that the kept GPU has free are for jobs that end in time; the sixteen of the other
    # are for all.
    late = submit(bench, scheduler, of_gpu_memory(4, time_limit_s=7200), 100)
    assert run(bench, scheduler, 101) == [late]
    assert gpus_of(bench.job(late)) == ("1",)
    short = submit(
        bench, scheduler, of_gpu_memory(4, pool="root.root", actor=ADMIN, time_limit_s=600), 100
    )
    assert run(bench, scheduler, 102) == [short]
    assert gpus_of(bench.job(short)) == ("0",)
    bench.check()


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


def test_jobs_of_one_gpu_each_keep_it_when_gpus_become_shared_and_back() -> None:
    bench = Bench(with_gpus(2))
    first = bench.start(of_gpu_memory(4))
    reload(bench, with_shared_gpus(2))
    second, third = bench.submit(of_gpu_memory(20)), bench.submit(of_gpu_memory(20))
    assert bench.schedule() == [second, third]
    assert [gpus_of(bench.job(each)) for each in (first, second, third)] == [("0",), ("0",), ("1",)]
    reload(bench, with_gpus(2))
    fourth = bench.submit(of_gpus(1))
    assert bench.schedule() == []
    for each in (first, second, third):
        bench.finish(each)
    assert bench.schedule() == [fourth]


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


def test_amounts_are_told_by_memory() -> None:
    axes = with_shared_gpus(2).axes
    assert axes.names == ("cores", "memory", "read", "write", "memory:gpu")
    vector = axes.vector(Resources(gres=(("gpu", 2),)))
    assert vector == (0, 0, 0, 0, 48 * GIB)
    assert axes.resources(vector) == Resources(gres=(("memory:gpu", 48 * GIB),))
    assert axes.vector(axes.resources(vector)) == vector


# -- random lives -----------------------------------------------------------------------------


def _some_memory(random: Random, **changes: Any) -> JobSpec:
    part = of_gpu_memory(random.randint(1, 24), **changes)
    others = of_gpus(1, **changes), of_gpus(2, **changes), of_gpu_memory(3, 2, **changes)
    return random.choice([part, part, part, *others, spec(**changes)])


@pytest.mark.parametrize("seed", seeds(range(30), quick=1))
def test_no_gpu_is_ever_given_more_than_it_has_and_nothing_idles(seed: int) -> None:
    bench, random = Bench(with_shared_gpus(4)), Random(seed)
    seen = set()
    for step in steps(bench, random, _some_memory):
        seen.add(step)
        of_each: dict[str, int] = {}
        for job in bench.ledger.allocated_jobs():
            own = gpus_of(job)
            part = _part(job)
            for each in own:
                of_each[each] = of_each.get(each, 0) + part
        assert all(each <= 24 * GIB for each in of_each.values())
        assert sum(of_each.values()) == bench.ledger.allocated[4]
        if step == "pass":
            axes, shares = bench.ledger.axes, bench.rules.shares
            free = minus(axes.room(shares.capacity), bench.ledger.allocated)
            waiting = [bench.ledger.wanted(job) for job in bench.ledger.jobs.values()]
            assert not any(each is not None and fits(each, free) for each in waiting)
        if random.random() < 0.1:
            bench.check()
            before = tables(bench.ledger)
            bench.ledger = Ledger.of_events(bench.rules.axes, bench.events)
            assert tables(bench.ledger) == before
    assert seen >= {"submit", "pass", "up", "end", "gone", "freeze"}
    while bench.ledger.allocations:
        for job in list(bench.ledger.allocated_jobs()):
            bench.feed(st.CancelAsked(now(), job.id, ADMIN))
            bench.feed(ended(job.id, job.attempt))
            bench.feed(st.AttemptRemoved(now(), job.id, job.attempt))
    assert taken(bench) == [0, 0, 0, 0]
    bench.check()


def _part(job: Job) -> int:
    (_, count), *_ = job.spec.demand.gres or (("gpu", 0),)
    memory = dict(job.spec.demand.gres_memory).get("gpu", 24 * GIB)
    return memory if count == 1 else 24 * GIB
