"""The driver: the daemon's scheduler over a workload, on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from drfd.core.amounts.resources import Resources
from drfd.core.fairness.rules import ReservationSettings, Rules
from drfd.core.scheduling.scheduling_pass import POLICIES
from drfd.sim.driver import ESTIMATES, FinishedJob, Run, simulate
from drfd.sim.workload import SimJob
from seeds import seeds

GB = 1 << 30


def job(id: int, submit_s: float, run_s: float, cores: float, **others: object) -> SimJob:
    given: dict[str, object] = {
        "name": f"j{id}",
        "demand": Resources(cores_milli=int(cores * 1000), memory_bytes=GB),
        "limit_s": None,
        "user": "ann",
    }
    return SimJob(id=id, submit_s=submit_s, run_s=run_s, **{**given, **others})  # type: ignore[arg-type]


def machine(cores: int = 4, **others: object) -> Rules:
    capacity = Resources(cores_milli=cores * 1000, memory_bytes=64 * GB)
    return Rules(capacity=capacity, **others)  # type: ignore[arg-type]


def starts(run: Run) -> dict[int, float]:
    return {each.job.id: each.start_s for each in run.ran}


def crowd(seed: int, count: int) -> list[SimJob]:
    """Some users' jobs, of all sizes, more than the machine can run at once."""
    random, at_s, jobs = Random(seed), 0, []
    for id in range(1, count + 1):
        at_s += random.choice((0, 0, 1, 7))
        run_s = random.choice((1, 5, 40, 200))
        jobs.append(
            job(
                id,
                at_s,
                run_s,
                random.choice((0.5, 1, 1, 2, 4)),
                user=random.choice(("ann", "bob", "eve")),
                limit_s=random.choice((None, 2 * run_s, 1000)),
            )
        )
    return jobs


def most_held(ran: Sequence[FinishedJob]) -> int:
    """Cores at once, in thousandths: summed by hand."""
    changes = [(each.start_s, 1, each.job.demand.cores_milli) for each in ran]
    changes += [(each.end_s, -1, each.job.demand.cores_milli) for each in ran]
    held = most = 0
    for _, sign, cores in sorted(changes):
        held += sign * cores
        most = max(most, held)
    return most


def test_a_reservation_starts_the_big_job_that_is_passed_over_without_estimates() -> None:
    small = [job(id, id, 10, 1, user="bob", limit_s=10) for id in range(1, 200)]
    big = job(200, 20.5, 10, 4, limit_s=10)
    jobs = sorted([*small, big], key=lambda each: each.submit_s)
    jobs = [replace(each, id=id) for id, each in enumerate(jobs, 1)]
    rules = machine(patience=ReservationSettings(patience_s=0))

    def wait_s(estimates: str) -> float:
        run = simulate(jobs, rules, estimates=estimates)
        return next(each.wait_s for each in run.ran if each.job.demand.cores_milli == 4000)

    assert wait_s("none") > 150
    assert wait_s("exact") < 11


@pytest.mark.parametrize("estimates", seeds(ESTIMATES, quick=1))
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_all_jobs_within_the_machine(policy: str, estimates: str) -> None:
    jobs = crowd(7, 120)
    run = simulate(jobs, machine(), policy=policy, estimates=estimates)
    assert sorted(starts(run)) == [each.id for each in jobs]
    assert (run.refused, run.unstarted) == ((), ())
    assert most_held(run.ran) <= 4000
    assert all(each.wait_s >= 0 for each in run.ran)
    assert run == simulate(jobs, machine(), policy=policy, estimates=estimates)
