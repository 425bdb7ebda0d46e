"""What a run is judged by: each figure against one worked out by hand."""

from __future__ import annotations

import pytest

from drfd.core.amounts.resources import Resources
from drfd.core.fairness.rules import Rules
from drfd.sim.driver import Run, simulate
from drfd.sim.metrics import measure, over_time
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


def test_the_worst_window_is_one_in_which_somebody_waited_long() -> None:
    """ann keeps the machine for three hours; for most of the first one, bob does not wait."""
    jobs = (job(1, 0, 10800, 4), job(2, 3500, 100, 1, "bob"), job(3, 3501, 100, 1))
    worst = over_time(fifo(*jobs)).worst
    assert worst is not None
    assert (worst.leaf, worst.start_s, worst.length_s, worst.kept) == ("root.bob", 3600, 3600, 0)


# -- envy ----------------------------------------------------------------------------------------
