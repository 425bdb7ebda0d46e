"""What a run is judged by: each figure against one worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from drfd.core.amounts.resources import Resources
from drfd.core.amounts.vectors import Vector, minus, plus
from drfd.core.fairness.rules import NodeSettings, Pool, Rules
from drfd.core.fairness.share_tree import ShareTree
from drfd.sim.driver import Run, simulate
from drfd.sim.metrics import measure, over_time, spread
from drfd.sim.workload import SimJob

GB = 1 << 30


def job(
    id: int, submit_s: float, run_s: float, cores: int, user: str = "ann", memory: int = 0
) -> SimJob:
    return SimJob(
        id=id, name=f"j{id}", submit_s=submit_s, run_s=run_s, limit_s=None, user=user,
        demand=Resources(cores_milli=cores * 1000, memory_bytes=memory * GB),
    )  # fmt: skip


def machine(**others: object) -> Rules:
    capacity = Resources(cores_milli=4000, memory_bytes=8 * GB)
    return Rules(capacity=capacity, **others)  # type: ignore[arg-type]


def fifo(*jobs: SimJob, rules: Rules | None = None) -> Run:
    return simulate(jobs, rules or machine(), policy="fifo")


# -- waits ---------------------------------------------------------------------------------------


def test_percentiles_are_values_that_occurred() -> None:
    assert spread([5, 1, 2, 4, 3]) == {"mean": 3, "median": 3, "p95": 5, "p99": 5, "max": 5}
    hundred = spread(range(1, 101))
    assert (hundred["median"], hundred["p95"], hundred["p99"]) == (50, 95, 99)
    assert spread([]) == {"mean": None, "median": None, "p95": None, "p99": None, "max": None}


def test_waits_and_slowdowns_are_those_of_the_jobs() -> None:
    """The second waits for 100 s and runs for 1 s, which counts as 10 s."""
    found = measure(fifo(job(1, 0, 100, 4), job(2, 0, 1, 4), job(3, 101, 50, 4)))
    assert found["wait_s"]["max"] == 100
    assert found["wait_s"]["mean"] == pytest.approx(100 / 3)
    assert found["slowdown"]["max"] == pytest.approx(101 / 10)
    assert found["slowdown"]["median"] == 1
    assert (found["span_s"], found["jobs_per_hour"]) == (151, 3 / 151 * 3600)


def test_use_is_the_mean_over_the_whole_run() -> None:
    found = measure(fifo(job(1, 10, 30, 2, memory=8), job(2, 50, 20, 4)))
    assert found["use"] == {
        "cores": pytest.approx((30 * 2 + 20 * 4) / (60 * 4)), "memory": pytest.approx(30 / 60),
    }  # fmt: skip


def test_the_longest_wait_is_told_by_size() -> None:
    tiny = replace(job(3, 2, 5, 0), demand=Resources(cores_milli=10))
    found = measure(fifo(job(1, 0, 100, 4), job(2, 1, 5, 1), tiny))
    assert [(each["jobs"], each["longest_wait_s"]) for each in found["longest_wait_s"]] == [
        (1, 98), (0, None), (2, 99),
    ]  # fmt: skip
    assert found["largest_job"] == {"name": "j1", "share": 1, "wait_s": 0}


def test_a_run_of_nothing_has_no_figures() -> None:
    found = measure(fifo(job(1, 0, 5, 9)))
    assert (found["jobs"], found["refused"], found["largest_job"]) == (0, 1, None)
    assert found["wait_s"]["mean"] is found["jobs_per_hour"] is None
    assert measure(fifo())["users"] == {}


def test_users_are_told_apart() -> None:
    found = measure(fifo(job(1, 0, 100, 4), job(2, 1, 50, 2, user="bob")))["users"]
    assert [(leaf, user["jobs"], user["wait_s"]["mean"]) for leaf, user in found.items()] == [
        ("root.ann", 1, 0), ("root.bob", 1, 99),
    ]  # fmt: skip
    assert found["root.bob"]["share"] == pytest.approx(50 * 2 / (150 * 4))


# -- promises ------------------------------------------------------------------------------------


def test_a_promise_is_kept_as_far_as_what_is_held_goes() -> None:
    """Of half of the machine bob holds nothing while he waits, and then a quarter of the machine
    while he waits for more."""
    jobs = (
        job(1, 0, 100, 4), job(2, 20, 100, 1, "bob"), job(3, 20, 60, 3), job(4, 120, 30, 4, "bob"),
    )  # fmt: skip
    found = over_time(fifo(*jobs))
    # From 20 to 100 both wait; from 100 nobody does, until bob does from 120 on.
    assert found.waited_s == {"root.ann": 80, "root.bob": 80 + 80}
    assert found.kept["root.ann"] == 1
    # Until 160 he holds a quarter beside ann, which is half of what he is promised; then he is
    # alone, a quarter is promised to be the whole, until he starts at 200.
    assert found.kept["root.bob"] == pytest.approx((0 * 80 + 0.5 * 40 + 0.25 * 40) / 160)


def test_who_never_waited_has_no_figure() -> None:
    found = over_time(fifo(job(1, 0, 10, 1), job(2, 0, 10, 1, "bob")))
    assert (found.kept, found.worst, found.envy) == ({}, None, 0)


def test_the_worst_window_is_one_in_which_somebody_waited_long() -> None:
    """ann keeps the machine for three hours; for most of the first one, bob does not wait."""
    jobs = (job(1, 0, 10800, 4), job(2, 3500, 100, 1, "bob"), job(3, 3501, 100, 1))
    worst = over_time(fifo(*jobs)).worst
    assert worst is not None
    assert (worst.leaf, worst.start_s, worst.length_s, worst.kept) == ("root.bob", 3600, 3600, 0)


def test_weights_pools_and_guarantees_count_in_what_is_promised() -> None:
    """Checked at every moment against the core's own satisfaction, on a random run."""
    random, jobs = Random(3), []
    for id in range(1, 120):
        user = random.choice(("ann", "bob", "eve", "joe"))
        cores, memory = random.choice(((1, 1), (2, 1), (1, 4), (3, 3)))
        jobs.append(job(id, random.randrange(900), random.choice((5, 40, 90)), cores, user, memory))
    jobs.sort(key=lambda each: each.submit_s)
    jobs = [replace(each, id=id) for id, each in enumerate(jobs, 1)]
    rules = machine(
        pools={
            "lab": Pool(users=frozenset({"ann", "bob"}), guarantee={"cores": 3000}),
            "den": Pool(users=frozenset({"joe"}), weight=Fraction(3), limit={"memory": 6 * GB}),
        },
        members={
            ("lab", "bob"): NodeSettings(weight=Fraction(2)),
            ("", "eve"): NodeSettings(weight=Fraction(2)),
        },
    )
    run = simulate(jobs, rules)
    found = over_time(run)
    expected = kept_by_the_second(run, int(max(each.end_s for each in run.ran)))
    assert found.kept == {leaf: pytest.approx(kept) for leaf, kept in expected.items()}
    assert len(expected) == 4


def kept_by_the_second(run: Run, seconds: int) -> dict[str, float]:
    """All times are whole seconds: look at each."""
    sums: dict[str, list[float]] = {}
    for at_s in range(seconds):
        used: dict[str, Vector] = {}
        waiting = set()
        for ran in run.ran:
            leaf, demand = run.leaves[ran.job.id], run.rules.axes.vector(ran.job.demand)
            if ran.start_s <= at_s < ran.end_s:
                used[leaf] = plus(used.get(leaf, minus(demand, demand)), demand)
            elif ran.job.submit_s <= at_s < ran.start_s:
                waiting.add(leaf)
        share_tree: ShareTree = run.rules.shares.share_tree(used, waiting)
        for leaf in waiting:
            both = sums.setdefault(leaf, [0, 0])
            both[0] += 1
            both[1] += min(1.0, float(share_tree.satisfaction(leaf)))
    return {leaf: kept / waited for leaf, (waited, kept) in sums.items()}


# -- envy ----------------------------------------------------------------------------------------


def test_who_waits_envies_one_who_holds_more_than_one_job_more() -> None:
    """bob waits for one core, and ann holds four: enough for four of his jobs, and he has none."""
    assert over_time(fifo(job(1, 0, 100, 4), job(2, 0, 10, 1, "bob"))).envy == 1
    assert over_time(fifo(job(1, 0, 100, 4), job(2, 0, 10, 3, "bob"))).envy == 0


def test_a_larger_weight_is_no_reason_for_envy() -> None:
    jobs = (job(1, 0, 100, 3), job(2, 0, 100, 1, "bob"), job(3, 1, 10, 1, "bob"))
    heavy = machine(members={("", "ann"): NodeSettings(weight=Fraction(3))})
    assert over_time(fifo(*jobs)).envy == 1
    assert over_time(fifo(*jobs, rules=heavy)).envy == 0
