"""What sim/RESULTS.md shows comes out again.

Its commands on real traces are run where DRFD_TRACES names their folder; they take minutes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import pytest

from bench.traces import MACHINES, RESULTS, Block, blocks, run
from drfd.core.amounts.resources import Resources
from drfd.sim.driver import Run, simulate
from drfd.sim.machine import parse_capacity, rules_of
from drfd.sim.metrics import measure
from drfd.sim.recorded_workloads import read_trace
from drfd.sim.synthetic_workloads import Recipe, generate
from drfd.sim.workload import SimJob
from seeds import seeds

#: Each test computes recorded results again.
pytestmark = pytest.mark.slow

FOLDER = os.environ.get("DRFD_TRACES")
NODE = Resources(cores_milli=64_000, memory_bytes=256 << 30)
BLOCKS = blocks(RESULTS.read_text())


@pytest.mark.parametrize("block", seeds(BLOCKS), ids=lambda block: block.commands[-1][:60])
def test_what_is_shown_comes_out_again(block: Block, tmp_path: Path) -> None:
    folder = tmp_path
    if block.trace is not None:
        if FOLDER is None:
            pytest.skip("DRFD_TRACES does not name the folder of the traces")
        folder = Path(FOLDER)
    assert block.printed == run(block, folder)


def test_each_trace_is_shown() -> None:
    assert {block.trace for block in BLOCKS} == {None, *MACHINES}


def crowd(seed: int) -> Sequence[SimJob]:
    """Like the made-up workload that is shown."""
    recipe = Recipe(
        jobs=600, users=13, capacity=NODE, seed=seed, load=1, burst=10,
        mix={"cpu": 6, "memory": 6, "big": 1},
    )  # fmt: skip
    return generate(recipe).jobs


def big_waits(run: Run) -> list[float]:
    return [ran.wait_s for ran in run.ran if ran.job.group == "big"]


@pytest.mark.parametrize("seed", [1, 3])
def test_a_reservation_cures_starvation_at_hardly_any_loss_of_use(seed: int) -> None:
    """At a fraction of the size: the longest waits of big jobs, and the use of what is scarce."""
    jobs = crowd(seed)
    runs = {each: simulate(jobs, rules_of(NODE), estimates=each) for each in ("none", "predicted")}
    waits = {each: max(big_waits(run)) for each, run in runs.items()}
    assert waits["none"] > 2 * waits["predicted"]
    used = {each: max(measure(run)["use"].values()) for each, run in runs.items()}
    assert used["predicted"] > 0.97 * used["none"]


def test_first_come_first_served_makes_all_wait() -> None:
    jobs = crowd(1)
    found = {each: measure(simulate(jobs, rules_of(NODE), policy=each)) for each in ("drf", "fifo")}
    assert found["fifo"]["wait_s"]["mean"] > 2 * found["drf"]["wait_s"]["mean"]
    assert found["fifo"]["envy"] > found["drf"]["envy"]
    assert found["fifo"]["promise_kept"]["mean"] < found["drf"]["promise_kept"]["mean"]


@pytest.mark.skipif(FOLDER is None, reason="DRFD_TRACES does not name the folder of the traces")
@pytest.mark.parametrize("policy", ["drf", "fifo", "easy", "algorithm1", "yarn"])
@pytest.mark.parametrize("trace", MACHINES)
def test_a_real_trace_runs_at_reduced_size(trace: str, policy: str) -> None:
    """Its first jobs, all of them to the end, and never more at once than there is."""
    assert FOLDER is not None
    machine = parse_capacity(MACHINES[trace])
    work = read_trace(Path(FOLDER, trace), rates=(machine.read_bps, machine.write_bps))
    jobs = work.jobs[:1500]
    run = simulate(jobs, rules_of(machine), policy=policy)
    assert len(run.ran) + len(run.refused) == len(jobs)
    assert not run.unstarted
    held = dict.fromkeys(run.leaves.values(), 0)
    most = 0
    for _, leaf, demand, sign in run.changes():
        held[leaf] += sign * demand[0]
        most = max(most, sum(held.values()))
    assert most <= machine.cores_milli
    assert set(held.values()) == {0}
    assert mean(ran.wait_s for ran in run.ran) >= 0
