"""Countable things, one by one: who gets which, and that nobody shares one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from drfd.core.amounts.instances import Instance, InstancePlace, choose_instances
from drfd.core.explain.forecast import Forecast, smaller_demand
from drfd.core.fairness.rules import Pool, Preempting, Rules
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
    of_gpus,
    spec,
    with_gpus,
)

THERE = (("gpu", ("0", "1", "2")), ("tape", ("left", "right")))


def gpus_of(job: Job) -> tuple[str, ...]:
    return dict(job.instances).get("gpu", ())


def run(bench: Bench, scheduler: Scheduler, at_s: float) -> list[int]:
    """Make a pass of a kept scheduler; the jobs that start."""
    found = []
    for event in scheduler.run(bench.ledger, bench.rules, now(at_s)):
        bench.befall(event)
        found.append(getattr(event, "job_id", 0))
        scheduler.note(bench.job(found[-1]))
    return found


def submit(bench: Bench, scheduler: Scheduler, asked: JobSpec, at_s: float) -> int:
    job_id = bench.submit(asked, at_s=at_s)
    scheduler.note(bench.job(job_id))
    return job_id


def places(*nodes: int | None, links: Iterable[str] = ()) -> list[tuple[Instance, InstancePlace]]:
    """GPUs from 0 on these NUMA nodes; `links`: pairs such as "02"."""
    linked: dict[str, set[str]] = {str(number): set() for number in range(len(nodes))}
    for one, other in links:
        linked[one].add(other)
        linked[other].add(one)
    return [
        (("gpu", str(number)), InstancePlace(node, frozenset(linked[str(number)])))
        for number, node in enumerate(nodes)
    ]


def chosen_gpus(
    count: int, known: list[tuple[Instance, InstancePlace]], taken: Iterable[str] = ()
) -> str:
    there = (("gpu", tuple(name for (_, name), _ in known)),)
    held = {("gpu", name) for name in taken}
    ((_, found),) = choose_instances([("gpu", count)], there, held, known)
    return "".join(found)


@pytest.mark.parametrize(
    ("count", "taken", "chosen"),
    [
        (1, "", "0"),
        (2, "", "01"),
        (2, "0", "12"),
        (4, "0", "4567"),
        (1, "0", "1"),
        (3, "014", "567"),
        (1, "014", "2"),
        # On no single node: all of the emptier one, and the rest of the other.
        (5, "0", "14567"),
        (3, "0146", "235"),
    ],
)
def test_instances_of_one_node_are_chosen_and_large_nodes_kept_whole(
    count: int, taken: str, chosen: str
) -> None:
    assert chosen_gpus(count, places(0, 0, 0, 0, 1, 1, 1, 1), taken) == chosen


def test_linked_instances_are_chosen_together() -> None:
    pairs = places(0, 0, 0, 0, links=["02", "13"])
    assert chosen_gpus(2, pairs) == "02"
    assert chosen_gpus(2, pairs, "0") == "13"
    assert chosen_gpus(2, pairs, "01") == "23"
    ring = places(None, None, None, None, None, links=["12", "23", "34"])
    assert chosen_gpus(3, ring) == "123"
    # Nodes count for more than links, which may lead over the border.
    assert chosen_gpus(2, places(0, 1, 0, links=["01"])) == "02"


def test_more_than_is_free_is_a_bug_of_whoever_admitted_it() -> None:
    with pytest.raises(AssertionError, match="2 of gpu were admitted"):
        choose_instances([("gpu", 2)], THERE, {("gpu", "0"), ("gpu", "2")})


def test_a_requeued_job_gets_new_ones() -> None:
    bench = Bench(with_gpus(2))
    first = bench.start(of_gpus(1, preemptible=True))
    bench.preempt(first)
    bench.feed(ended(first))
    bench.feed(st.AttemptRemoved(now(), first, 1))
    assert bench.job(first).instances == ()
    other = bench.submit(of_gpus(1, priority=9))
    assert bench.schedule() == [other, first]
    assert gpus_of(bench.job(first)) == ("1",)
    bench.check()


@pytest.mark.parametrize("policy", CONFIGURABLE)
def test_a_limit_of_none_of_a_countable_refuses_it_and_stands_in_no_other_way(
    policy: str,
) -> None:
    pools = {"lab": Pool(users=frozenset({"alice"}), limit={"gpu": 0})}
    bench = Bench(with_gpus(2, pools=pools, policy=policy))
    bench.submit(of_gpus(1, pool="root.bob", actor=BOB))
    with pytest.raises(Exception, match=r"root\.lab may hold 0 at most"):
        bench.submit(of_gpus(1, pool="root.lab"))
    plain = bench.submit(spec(pool="root.lab"))
    assert plain in bench.schedule()
    share_tree = bench.rules.shares.share_tree(bench.ledger.used, ())
    assert share_tree.entitlement("root.lab") == Fraction(1, 2)


def test_who_starves_for_a_gpu_is_served_by_a_requeue_and_not_by_a_freeze() -> None:
    bench = Bench(with_gpus(2))
    for at_s in (0, 10):
        last = bench.start(of_gpus(1, preemptible=True), at_s=at_s)
    starving = Starving("root.bob", bench.submit(of_gpus(1, pool="root.bob", actor=BOB)))
    share_tree = bench.rules.shares.share_tree(bench.ledger.used, bench.ledger.queues)
    for how, victims in ((Preempting(), [last]), (Preempting(suspends=True), [])):
        found = preempt(
            bench.ledger,
            share_tree,
            Supply(capacity=bench.rules.shares.capacity),
            starving,
            how,
            now(5000),
        )
        assert [event.job_id for event in found] == victims


def test_a_smaller_demand_that_would_start_keeps_its_gpus() -> None:
    bench = Bench(with_gpus(2))
    bench.start(spec(asks=demand(6, 1)))
    asks = replace(demand(8, 1), gres=(("gpu", 2),))
    waiting = bench.job(bench.submit(spec(asks=asks)))

    def build() -> Forecast:
        books = Ledger.of_events(bench.rules.axes, bench.events)
        return Forecast(books, bench.rules, RunTimes(), {}, (), now())

    smaller = replace(waiting.spec, demand=replace(asks, cores_milli=3000))
    assert smaller_demand(build, waiting) == smaller


# -- another configuration --------------------------------------------------------------------


def reload(bench: Bench, rules: Rules) -> None:
    """As the engine does it."""
    bench.rules = rules.also_for(bench.ledger.demands())
    bench.ledger = bench.ledger.with_axes(bench.rules.axes)


def test_what_waits_for_a_resource_that_is_gone_waits_on_and_starts_when_it_is_back() -> None:
    bench = Bench(with_gpus(1))
    waiting = bench.submit(of_gpus(1))
    plain = with_gpus(1)
    none = replace(plain, axes=replace(plain.axes, gres=(), instances=()), capacity=demand(9, 18))
    reload(bench, none)
    assert bench.schedule() == []
    with pytest.raises(Exception, match="no resource 'gpu'"):
        bench.submit(of_gpus(1))
    reload(bench, plain)
    assert bench.schedule() == [waiting]


# -- random lives -----------------------------------------------------------------------------


def some_gpus(random: Random, **changes: Any) -> JobSpec:
    count = random.choice([0, 1, 1, 2, 3])
    return of_gpus(count, **changes) if count else spec(**changes)


def steps(bench: Bench, random: Random, asks: Callable[..., JobSpec] = some_gpus) -> Iterator[str]:
    """One random thing after the other that may happen to a job; its name."""
    for _ in range(300):
        # In order of ids, so that a seed means the same always.
        live = sorted(bench.ledger.allocated_jobs(), key=lambda job: job.id)
        job = random.choice(live) if live else None
        match random.choice(["submit", "pass", "pass", "up", "end", "gone", "freeze", "resume"]):
            case "submit":
                actor, pool = random.choice([(ALICE, "root.alice"), (BOB, "root.bob")])
                bench.submit(asks(random, actor=actor, pool=pool, preemptible=True))
                yield "submit"
            case "pass":
                bench.schedule()
                yield "pass"
            case "up" if job is not None and job.state is JobState.STARTING:
                bench.feed(attempt_started(job.id, job.attempt))
                yield "up"
            case "end" if job is not None and job.state in (JobState.RUNNING, JobState.SUSPENDED):
                if random.random() < 0.3 and job.state is JobState.RUNNING and not job.freezing:
                    bench.preempt(job.id)
                bench.feed(ended(job.id, job.attempt))
                yield "end"
            case "gone" if job is not None and job.state is JobState.CLEANING:
                bench.feed(st.AttemptRemoved(now(), job.id, job.attempt))
                yield "gone"
            case "freeze" if job is not None and job.state is JobState.RUNNING:
                bench.feed(st.SuspendAsked(now(), job.id, ADMIN))
                bench.feed(st.Frozen(now(), job.id, job.attempt))
                yield "freeze"
            case "resume" if job is not None and job.state is JobState.SUSPENDED:
                bench.feed(st.ResumeAsked(now(), job.id, ADMIN))
                yield "resume"
