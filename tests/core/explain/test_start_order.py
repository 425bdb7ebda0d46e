"""In which order those who wait are shown: as they would be served if all of them found room."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from drfd.core.amounts.resources import Resources
from drfd.core.explain.forecast import upcoming
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import Job, JobSpec, JobState
from fakes import demand, rules, schedule, spec

VAST = 100_000


def books(*specs: JobSpec) -> Ledger:
    jobs = [
        Job(id=at, spec=each, submitted_at=at, eligible_at=at)
        for at, each in enumerate(specs, start=1)
    ]
    return Ledger.of_jobs(rules().axes, jobs)


def order(ledger: Ledger, by: Rules) -> list[int]:
    """After a pass that found no room."""
    full = Job(
        id=1000, spec=spec("root.full", asks=by.capacity), state=JobState.RUNNING, attempt=1,
        submitted_at=0, started_at=0,
    )  # fmt: skip
    jobs = [*ledger.jobs.values(), full]
    ledger = Ledger.of_jobs(by.axes, jobs)
    plan = schedule(ledger, by)
    assert plan.admitted == []
    return [each.run[1] for each in upcoming(ledger, plan, by, {})]


def vast(by: Rules) -> Rules:
    """The same machine, so many times over: all stand to each other as they did."""
    there = by.capacity
    capacity = Resources(
        cores_milli=there.cores_milli * VAST, memory_bytes=there.memory_bytes * VAST,
        read_bps=there.read_bps * VAST, write_bps=there.write_bps * VAST,
    )  # fmt: skip
    return replace(by, capacity=capacity)


@pytest.mark.parametrize("seed", range(40))
def test_it_is_the_order_in_which_a_machine_with_room_for_all_would_start_them(seed: int) -> None:
    """With pools in pools, those that are level may stand the other way round."""
    chance = Random(seed)
    pools = ["root.alice", "root.bob", "root.lab", "root.zoe"]
    specs = [
        spec(
            chance.choice(pools),
            asks=demand(chance.randint(1, 4), chance.randint(1, 8)),
            priority=chance.choice([0, 0, 0, 5]),
        )
        for _ in range(60)
    ]
    by = rules(weights={"lab": "3", "zoe": "1/2"})
    found = order(books(*specs), by)
    assert found == [each.run[1] for each in upcoming(books(*specs), None, by, {})]
    assert found == schedule(books(*specs), vast(by)).admitted
    assert len(found) == 60


def test_under_fifo_the_turn_of_a_leaf_is_that_of_its_first_job() -> None:
    ledger = books(
        spec("root.a"), spec("root.b"), spec("root.b", priority=9), spec("root.a", priority=1)
    )
    assert order(ledger, replace(rules(), policy="fifo")) == [3, 2, 4, 1]


@pytest.mark.parametrize("policy", ["asset", "cpu", "slots"])
def test_under_other_policies_each_leaf_has_one_turn_after_the_other(policy: str) -> None:
    ledger = books(*[spec(f"root.{leaf}", asks=demand(9, 18)) for leaf in "aaabbc"])
    found = order(ledger, replace(rules(), policy=policy))
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    leaves = [ledger.jobs[each].spec.leaf[-7:] for each in found]
    assert len(set(leaves[:3])) == 3
    assert len(set(leaves[3:5])) == 2
