"""drf demo cluster: what it expects, what it makes of measurements, and where it cannot run."""

from __future__ import annotations

import os
import shutil
import signal
import tomllib
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from cli.drf import Drf
from drfd.daemon.cluster import NodeConfig
from drfd.daemon.config import parse
from drfd.sim.paper.sharing import JOBS, PHASES
from drfd_cli.demo import private_daemon, scaling, three_nodes
from drfd_cli.demo.cluster import Sharing, figure
from drfd_cli.demo.scaling import Scale
from drfd_cli.demo.three_nodes import NODES, Crowd, Sample, Tally

MIB = 1 << 20
PHASE_S = 8
WAYS = {way.name: way for way in three_nodes.ways()}
#: (CPU, memory) of both jobs in each phase, as drfd's nodes hold them.
LEVELS = (((0.25, 0.71), (0.75, 0.2)), ((0.5, 0.3), (0.5, 0.4)), ((0.25, 0.45), (0.3, 0.4)))


def shares(levels: tuple[tuple[tuple[float, float], ...], ...] = LEVELS):  # type: ignore[no-untyped-def]
    return {
        job: [pair[at] for pair in levels for _ in range(PHASE_S)] for at, job in enumerate(JOBS)
    }


def crowds(**changed: Crowd) -> list[tuple[Crowd, Crowd]]:
    """Live ones as simulated, but those of the ways that are named."""
    usual = {
        "DRF": Crowd({"large": 5.5, "small": 12.5}, 0.0),
        "3 slots": Crowd({"large": 4.5, "small": 4.5}, 0.0),
        "6 slots": Crowd({"large": 9.0, "small": 9.0}, 0.75),
    }
    return [(changed.get(name.replace(" ", "_"), crowd), crowd) for name, crowd in usual.items()]


def tally(**changed: int) -> Tally:
    return Tally(Counter(dict.fromkeys(NODES, 30) | changed))


def test_what_is_as_simulated_is_shown_beside_it() -> None:
    found, wrong = figure(Sharing(shares(), [shares()], PHASE_S), crowds(), tally())
    assert wrong == []
    eight, nine, nodes = found.tables
    assert [row[:5] for row in eight.rows] == [
        [1, "job 1", "1 CPU, 10 GB", 0.71, 0.71],
        [1, "job 2", "1 CPU, 1 GB", 0.75, 0.75],
        [2, "job 1", "2 CPU, 4 GB", 0.5, 0.5],
        [2, "job 2", "1 CPU, 3 GB", 0.5, 0.5],
        [3, "job 1", "1 CPU, 7 GB", pytest.approx(0.45), pytest.approx(0.45)],
        [3, "job 2", "1 CPU, 4 GB", pytest.approx(0.4), pytest.approx(0.4)],
    ]
    assert nine.rows == [
        ["DRF", 5.5, 5.5, 12.5, 12.5, 0.0, 0.0],
        ["3 slots", 4.5, 4.5, 4.5, 4.5, 0.0, 0.0],
        ["6 slots", 9.0, 9.0, 9.0, 9.0, 0.75, 0.75],
    ]
    assert nodes.rows == [
        ["head", "drfd", 30, 0],
        ["n1", "Slurm", 30, 0],
        ["n2", "Slurm", 30, 0],
    ]
    assert found.notes[0] == (
        "Tolerance: 12% of all nodes for a share, 1.5 for a number of tasks. "
        "All differences are within it."
    )


def test_each_result_beyond_the_tolerance_is_named() -> None:
    other = (LEVELS[0], (((0.5, 0.3)), (0.25, 0.37)), LEVELS[2])
    live = crowds(
        DRF=Crowd({"large": 5.5, "small": 10.9}, 0.1),
        **{"6_slots": Crowd({"large": 7.4, "small": 9.0}, 0.2)},
    )
    counted = tally(n2=0)
    counted.failed["n1"] = 2
    counted.failures.extend(["a task on n1 ended as FAILED"] * 2)
    found, wrong = figure(Sharing(shares(other), [shares()], PHASE_S), live, counted)
    assert wrong == [
        "phase 2: job 2 had 37%, simulated 50%",
        "DRF: 10.9 small tasks, simulated 12.5",
        "DRF: nodes with too little memory for 10% of the time, simulated 0%",
        "6 slots: 7.4 large tasks, simulated 9.0",
        "a task on n1 ended as FAILED",
        "no task completed on n2",
    ]
    assert found.tables[2].rows[1:] == [["n1", "Slurm", 30, 2], ["n2", "Slurm", 0, 0]]
    assert found.notes[0].endswith(f"Beyond it: {'; '.join(wrong)}.")


def test_the_simulated_share_is_the_mean_of_all_runs() -> None:
    other = (((0.25, 0.91), (0.75, 0.2)), *LEVELS[1:])
    sharing = Sharing(shares(), [shares(), shares(other)], PHASE_S)
    assert sharing.dominant("job 1", 0) == (0.71, pytest.approx(0.81))


def test_a_node_is_crowded_while_its_tasks_need_more_than_it_has() -> None:
    samples = [
        # 7 GB, 6 GB, nothing.
        Sample({("head", "large"): 3, ("head", "small"): 2, ("n1", "large"): 3}),
        Sample({("n2", "large"): 4, ("n1", "small"): 12}),
    ]
    found = three_nodes.crowd_of(samples, {"large": Fraction(2), "small": Fraction(1, 2)}, 6)
    assert found == Crowd({"large": 5.0, "small": 7.0}, pytest.approx(1 / 3))


def test_the_simulator_expects_the_papers_order() -> None:
    """Three slots leave nodes empty, and six give them more than they have."""
    drf, three, six = (three_nodes.simulated_crowd(way, 8, range(8)) for way in WAYS.values())
    assert (three.tasks, three.crowded) == ({"large": 4.5, "small": 4.5}, 0.0)
    assert six.tasks == {"large": 9.0, "small": 9.0} and six.crowded > 0.5
    # Shares of two users each: 2 of 18 GB a large task, 1 of 24 CPUs a small one.
    assert drf.tasks == {
        "large": pytest.approx(5.5, abs=0.2),
        "small": pytest.approx(12.5, abs=0.3),
    }
    assert drf.crowded == 0.0


def test_figure_8_is_simulated_over_three_nodes() -> None:
    runs = three_nodes.simulated_shares(20, range(3))
    found = Sharing(runs[0], runs, 20)
    means = [found.dominant(job, at)[1] for at in range(len(PHASES)) for job in JOBS]
    assert means == pytest.approx([0.714, 0.75, 0.5, 0.47, 0.46, 0.39], abs=0.04)


@pytest.mark.parametrize(
    ("way", "cores", "gb", "policy"),
    [
        (None, 4, 14, "drf"),
        ("DRF", 8, 6, "drf"),
        ("3 slots", 3, 6, "slots"),
        ("6 slots", 6, 12, "slots"),
    ],
)
def test_the_nodes_of_each_run_are_equal(
    tmp_path: Path, way: str | None, cores: int, gb: int, policy: str
) -> None:
    scale = Scale(1000, 50 * MIB)
    text = (
        three_nodes.figure8_config(tmp_path, scale)
        if way is None
        else three_nodes.figure9_config(tmp_path, scale, WAYS[way])
    )
    config = parse(tomllib.loads(text), "drfd.toml")
    memory_bytes = gb * scale.gb_bytes
    assert (config.cores_milli, config.memory_bytes) == (1000 * cores, memory_bytes)
    amounts = {"cores_milli": 1000 * cores, "memory_bytes": memory_bytes}
    assert config.nodes == (
        NodeConfig(name="head", engine="local"),
        NodeConfig(name="n1", engine="slurm", **amounts),
        NodeConfig(name="n2", engine="slurm", **amounts),
    )
    assert config.policy == policy
    assert config.slots == (3 * cores if policy == "slots" else None)
    assert config.slurm.conf == f"{tmp_path}/slurm/slurm.conf"


@pytest.mark.parametrize(("uid", "user"), [(0, "root"), (1000, None)])
def test_roots_daemon_stays_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, user: str | None
) -> None:
    """As the user drfd of an installation, it would take only jobs that are signed."""
    monkeypatch.setattr(os, "getuid", lambda: uid)
    text = scaling.config_for(tmp_path, ["A"], cores_milli=1000, memory_bytes=MIB)
    assert parse(tomllib.loads(text), "drfd.toml").user == user


def test_only_root_is_shown_it(drf: Drf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    result = drf("demo", "cluster")
    assert (result.code, result.out, result.err) == (
        1,
        "",
        "drf: drf demo cluster needs root: Slurm's daemons start jobs as their users (run it with "
        "sudo)\n",
    )


def test_packages_that_are_not_installed_are_named(
    drf: Drf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    result = drf("demo", "cluster")
    assert (result.code, result.out, result.err) == (
        1,
        "",
        "drf: drf demo cluster starts a private Slurm, which is not installed (install munge "
        "and slurm-wlm)\n",
    )


def test_a_signal_waits_for_the_end_of_the_cleaning_up() -> None:
    before = signal.getsignal(signal.SIGINT)
    done = []
    with pytest.raises(KeyboardInterrupt):
        with private_daemon.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("all")
        done.append("more")
    assert done == ["all"]
    assert signal.getsignal(signal.SIGINT) is before
