"""Lending in the simulator: how fast jobs are, and that nobody ends later for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.amounts.resources import Resources
from drfd.core.fairness.rules import Rules
from drfd.sim.driver import Run, simulate
from drfd.sim.lending import for_lending, used_together
from drfd.sim.machine import rules_of
from drfd.sim.metrics import measure
from drfd.sim.synthetic_workloads import Recipe, generate
from drfd.sim.workload import SimJob, Workload
from seeds import examples, seeds

GB = 1 << 30


def job(id: int, run_s: float, cores: float, most: float = 0, **others: Any) -> SimJob:
    plain = SimJob(
        id=id, name=f"j{id}", submit_s=0, run_s=run_s, limit_s=None, user="ann",
        demand=Resources(cores_milli=round(cores * 1000), memory_bytes=GB),
        most_cores_milli=round(most * 1000),
    )  # fmt: skip
    return replace(plain, **others)


def machine(cores: float = 8, memory_gb: int = 100) -> Rules:
    return rules_of(Resources(cores_milli=round(cores * 1000), memory_bytes=memory_gb * GB))


def ends(run: Run) -> dict[int, float]:
    return {each.job.id: each.end_s for each in run.ran}


def lent(jobs: Sequence[SimJob], rules: Rules, **options: Any) -> dict[int, float]:
    return ends(simulate(jobs, rules, lends=True, **options))


def test_what_jobs_hold_and_do_not_use_is_lent() -> None:
    idle = job(1, 100, 6, cpu_s=60)
    # A core is free and another is held and used, so that seven are there for the second.
    assert lent([idle, job(2, 70, 1, most=8)], machine(7)) == {1: 100, 2: pytest.approx(70 / 6.4)}


def test_what_is_left_goes_by_dominant_shares_and_anew_at_each_end() -> None:
    """The scene of the demo: a holds six tenths of the memory, b and c a tenth each."""
    sizes = {"a": 60, "b": 10, "c": 10}
    jobs = [
        job(id, 1000, 0.25, most=1, user=user,
            demand=Resources(cores_milli=250, memory_bytes=size * GB))
        for id, (user, size) in enumerate(sizes.items(), start=1)
    ]  # fmt: skip
    assert used_together(jobs, machine(1)) == pytest.approx({1: 0.25, 2: 0.375, 3: 0.375})
    asleep = [*jobs[:2], replace(jobs[2], cpu_s=0.0)]
    # b is raised to what a holds of the memory, and then a is lent the rest.
    assert used_together(asleep, machine(1)) == pytest.approx({1: 0.4, 2: 0.6, 3: 0})
    found = lent(jobs, machine(1))
    # 250 core-seconds each. Of b and c each has 0.375 cores; then a has all.
    assert found == pytest.approx({2: 250 / 0.375, 3: 250 / 0.375, 1: 750})


def test_a_start_takes_back_what_was_lent() -> None:
    jobs = [job(1, 100, 4, most=8), job(2, 1000, 4, submit_s=25)]
    # 25 s with eight cores are 50 s of its time; the rest it has four.
    assert lent(jobs, machine()) == {1: 75, 2: 1025}


def test_who_used_more_than_declared_takes_longer_without_lending() -> None:
    work = Workload(jobs=[job(1, 50, 2, cpu_s=400)], source="here", kind="test")
    ready = for_lending(work, None)
    assert [each.run_s for each in ready.jobs] == [200]
    assert ready.notes[1:] == (
        "no job has a range, so nothing is lent; --ranges 4 gives them all one",
        "1 job used more cores than it declared; without lending it takes as long as its "
        "processor time does on what it declared",
    )


def test_measures_tell_busy_cores_from_held_ones() -> None:
    work = Workload(jobs=[job(1, 100, 4, cpu_s=200), job(2, 100, 4)], source="here", kind="test")
    ready = for_lending(work, 2)
    assert ready.notes[1:] == (
        "as if each job could use 2 times the cores that it declares",
        "1 of 2 jobs say nothing of their processor time, and count as busy on all their cores all "
        "the time",
    )
    plain, lending = (
        measure(simulate(ready.jobs, machine(), lends=lends)) for lends in (False, True)
    )
    assert (plain["lends"], lending["lends"]) == (False, True)
    assert plain["cores_busy"] == 600 / 800
    assert plain["run_s"]["mean"] == plain["users"]["root.ann"]["run_s"]["mean"] == 100
    assert lending["cores_busy"] == pytest.approx(600 / (8 * lending["span_s"]))
    assert lending["run_s"]["mean"] < 100
    bare = measure(simulate([job(1, 100, 4)], machine()))
    assert bare["cores_busy"] is None


tenths = some.integers(1, 40).map(lambda number: number / 10)


@some.composite
def crowds(draw: some.DrawFn) -> list[SimJob]:
    jobs = []
    for id in range(1, draw(some.integers(2, 12)) + 1):
        cores, run_s = draw(tenths), draw(some.integers(1, 100))
        used = draw(some.floats(0, 1)) * cores * run_s
        memory = draw(some.integers(1, 30)) * GB
        jobs.append(
            job(
                id, run_s, cores, most=draw(some.sampled_from([0, 1, 2, 4])) * cores,
                submit_s=draw(some.integers(0, 50)), user=draw(some.sampled_from("abc")),
                cpu_s=draw(some.sampled_from([None, used])),
                demand=Resources(cores_milli=round(cores * 1000), memory_bytes=memory),
            )
        )  # fmt: skip
    jobs.sort(key=lambda each: each.submit_s)
    return [replace(each, id=id) for id, each in enumerate(jobs, start=1)]


@examples(100, quick=4)
@given(crowds())
def test_no_job_ends_later_where_none_waits_or_all_wait_in_one_line(jobs: list[SimJob]) -> None:
    """Whoever has ranges, and whoever has none. In one line, a job starts as soon as those before
    it have left enough, and these end no later."""
    roomy = machine(50, 400)
    for rules, policy in ((roomy, "drf"), (machine(4, 40), "fifo")):
        plain, lending = (
            ends(simulate(jobs, rules, policy=policy, estimates="none", lends=lends))
            for lends in (False, True)
        )
        assert plain.keys() == lending.keys() == {each.id for each in jobs}
        late = {id: end_s for id, end_s in lending.items() if end_s > plain[id] + 1e-6}
        assert late == {}


NODE = Resources(cores_milli=64_000, memory_bytes=256 * GB, read_bps=2 * GB, write_bps=GB)


@pytest.mark.parametrize("seed", seeds(range(40), quick=1))
def test_no_users_jobs_end_later_on_average_where_all_have_ranges(seed: int) -> None:
    """Queues under DRF with reservations. Single jobs may: who ends sooner frees other places."""
    work = for_lending(generate(Recipe(jobs=300, users=6, capacity=NODE, seed=seed)), 4)
    plain, lending = (_stays(simulate(work.jobs, rules_of(NODE), lends=each)) for each in (0, 1))
    assert all(lending[user] <= plain[user] + 1e-6 for user in plain)
    assert sum(lending.values()) < 0.8 * sum(plain.values())


def _stays(run: Run) -> dict[str, float]:
    """The mean time from submission to end, by user."""
    found: dict[str, list[float]] = {}
    for each in run.ran:
        found.setdefault(each.job.user, []).append(each.end_s - each.job.submit_s)
    return {user: sum(times) / len(times) for user, times in found.items()}


def test_equal_arguments_give_equal_runs() -> None:
    random = Random(5)
    jobs = [
        job(id, random.randint(1, 99), 1, most=random.choice([1, 4]), user=f"u{id % 9}",
            cpu_s=random.random())
        for id in range(1, 100)
    ]  # fmt: skip
    first, second = (simulate(jobs, machine(), lends=True) for _ in range(2))
    assert first.ran == second.ran
    assert sum(each.run_s < each.job.run_s for each in first.ran) > 10
