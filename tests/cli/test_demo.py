"""drf demo cluster and lend: what is made of measurements, and where they cannot run."""

from __future__ import annotations

import os
import shutil
import signal
import tomllib
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cli.drf import Drf, Result
from drfd.common.errors import Refused
from drfd.daemon.cluster import NodeConfig
from drfd.daemon.config import parse
from drfd.sim.paper.sharing import JOBS, PHASES
from drfd_cli.demo import lending, private_daemon, scaling, three_nodes
from drfd_cli.demo.cluster import Sharing, figure
from drfd_cli.demo.lending import Recording, Sample, theory
from drfd_cli.demo.scaling import Scale
from drfd_cli.demo.three_nodes import NODES, Crowd, Tally

# -- cluster -----------------------------------------------------------------------------------

MIB = 1 << 20
PHASE_S = 8
WAYS = {way.name: way for way in three_nodes.ways()}
#: (CPU, memory) of both jobs in each phase, as drfd's nodes hold them.
Levels = tuple[tuple[tuple[float, float], ...], ...]
LEVELS: Levels = (
    ((0.25, 0.71), (0.75, 0.2)), ((0.5, 0.3), (0.5, 0.4)), ((0.25, 0.45), (0.3, 0.4)),
)  # fmt: skip


def shares(levels: Levels = LEVELS) -> Any:
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
    assert [(row[0], row[1], row[3], row[4]) for row in eight.rows] == [
        (phase, job, pytest.approx(share), pytest.approx(share))
        for phase, pair in enumerate(((0.71, 0.75), (0.5, 0.5), (0.45, 0.4)), start=1)
        for job, share in zip(("job 1", "job 2"), pair, strict=True)
    ]
    assert nine.rows == [
        ["DRF", 5.5, 5.5, 12.5, 12.5, 0.0, 0.0],
        ["3 slots", 4.5, 4.5, 4.5, 4.5, 0.0, 0.0],
        ["6 slots", 9.0, 9.0, 9.0, 9.0, 0.75, 0.75],
    ]
    assert nodes.rows == [
        ["head", "drfd", 30, 0], ["n1", "Slurm", 30, 0], ["n2", "Slurm", 30, 0],
    ]  # fmt: skip
    assert found.notes[0] == (
        "Tolerance: 12% of all nodes for a share, 1.5 for a number of tasks. "
        "All differences are within it."
    )


def test_each_result_beyond_the_tolerance_is_named() -> None:
    other: Levels = (LEVELS[0], ((0.5, 0.3), (0.25, 0.37)), LEVELS[2])
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


def test_means_are_over_all_runs_and_a_node_is_crowded_while_its_tasks_need_more() -> None:
    other: Levels = (((0.25, 0.91), (0.75, 0.2)), *LEVELS[1:])
    sharing = Sharing(shares(), [shares(), shares(other)], PHASE_S)
    assert sharing.dominant("job 1", 0) == (0.71, pytest.approx(0.81))
    samples = [
        # 7 GB, 6 GB, nothing.
        three_nodes.Sample({("head", "large"): 3, ("head", "small"): 2, ("n1", "large"): 3}),
        three_nodes.Sample({("n2", "large"): 4, ("n1", "small"): 12}),
    ]
    found = three_nodes.crowd_of(samples, {"large": Fraction(2), "small": Fraction(1, 2)}, 6)
    assert found == Crowd({"large": 5.0, "small": 7.0}, pytest.approx(1 / 3))


@pytest.mark.slow
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
    crowd = three_nodes.simulated_crowd(WAYS["3 slots"], 8, range(1))
    assert (crowd.tasks["large"], crowd.crowded) == (pytest.approx(4.5, abs=0.6), 0.0)


@pytest.mark.parametrize(
    ("way", "cores", "gb", "policy"),
    [
        (None, 4, 14, "drf"), ("DRF", 8, 6, "drf"), ("3 slots", 3, 6, "slots"),
        ("6 slots", 6, 12, "slots"),
    ],
)  # fmt: skip
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
    amounts = {"cores_milli": 1000 * cores, "memory_bytes": gb * scale.gb_bytes}
    assert {name: getattr(config, name) for name in amounts} == amounts
    assert config.nodes == (
        NodeConfig(name="head", engine="local"),
        NodeConfig(name="n1", engine="slurm", **amounts),
        NodeConfig(name="n2", engine="slurm", **amounts),
    )
    slots = 3 * cores if policy == "slots" else None
    assert (config.policy, config.slots) == (policy, slots)
    assert config.slurm.conf == f"{tmp_path}/slurm/slurm.conf"


@pytest.mark.parametrize(("uid", "user"), [(0, "root"), (1000, None)])
def test_roots_daemon_stays_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, user: str | None
) -> None:
    """As the user drfd of an installation, it would take only jobs that are signed."""
    monkeypatch.setattr(os, "getuid", lambda: uid)
    text = scaling.config_for(tmp_path, ["A"], cores_milli=1000, memory_bytes=MIB)
    assert parse(tomllib.loads(text), "drfd.toml").user == user


@pytest.mark.parametrize(
    ("uid", "told"),
    [
        (1000, "drf demo cluster needs root: Slurm's daemons start jobs as their users (run it "
         "with sudo)"),
        (0, "drf demo cluster starts a private Slurm, which is not installed (install munge and "
         "slurm-wlm)"),
    ],
)  # fmt: skip
def test_where_it_cannot_run_is_said_with_the_cure(
    drf: Drf, monkeypatch: pytest.MonkeyPatch, uid: int, told: str
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    assert drf("demo", "cluster") == Result(1, "", f"drf: {told}\n")


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


# -- lend --------------------------------------------------------------------------------------


def recorded(mode: str, awake: dict[str, float], asleep: dict[str, float]) -> Recording:
    """Four turns of ten seconds, in which the pools use so many cores."""
    found, used = Recording(mode), dict.fromkeys("ABC", 0.0)
    for tenth in range(401):
        found.samples.append(Sample(tenth / 10, dict(used), 0.5 * tenth / 10))
        uses = asleep if tenth // 100 % 2 else awake
        used = {pool: amount + uses[pool] / 10 for pool, amount in used.items()}
    found.turns = [(10.0 * turn, 10.0 * turn + 10, turn % 2 == 1) for turn in range(4)]
    return found


QUARTER = dict.fromkeys("ABC", 0.25)
QUOTAS = recorded("quota", QUARTER, QUARTER | {"C": 0.0})
AWAKE, ASLEEP = theory(asleep=False), theory(asleep=True)
GOOD = recorded("share", AWAKE, ASLEEP)


def test_uses_are_means_over_the_times_in_which_all_has_settled() -> None:
    assert pytest.approx({"A": 0.25, "B": 0.375, "C": 0.375}) == AWAKE
    assert pytest.approx({"A": 0.4, "B": 0.6, "C": 0.0}) == ASLEEP
    for asleep, wanted in ((False, AWAKE), (True, ASLEEP)):
        means = {pool: GOOD.mean(pool, asleep=asleep) for pool in "ABC"}
        assert means == pytest.approx(wanted, abs=1e-6)
    assert GOOD.after_waking() == pytest.approx(0.375)
    assert GOOD.busiest() == pytest.approx(0.5)
    assert GOOD.rates("C")[9:11] == [(9.5, pytest.approx(0.375)), (10.5, pytest.approx(0))]


def test_what_is_as_promised_is_said_beside_the_theory() -> None:
    figure, wrong = lending.figure_of([QUOTAS, GOOD])
    assert wrong == []
    assert figure.tables[0].rows == [
        ["all are awake", "A", 0.25, 0.25, 0.25],
        ["all are awake", "B", 0.25, 0.375, 0.375],
        ["all are awake", "C", 0.25, 0.375, 0.375],
        ["all are awake", "together", 0.75, 1.0, 1.0],
        ["C is asleep", "A", 0.25, 0.4, 0.4],
        ["C is asleep", "B", 0.25, 0.6, 0.6],
        ["C is asleep", "C", 0.0, 0.0, 0.0],
        ["C is asleep", "together", 0.5, 1.0, 1.0],
        ["its first 0.5 s awake", "C", 0.25, 0.375, 0.25],
    ]
    assert figure.notes[0].endswith("so it is.") and len(figure.notes) == 2


@pytest.mark.parametrize(
    ("awake", "asleep", "wrong"),
    [
        (AWAKE, {"A": 0.5, "B": 0.5, "C": 0.0},
         ["while C is asleep, A used 0.50, not 0.40", "while C is asleep, B used 0.50, not 0.60"]),
        (AWAKE | {"C": 0.1}, ASLEEP,
         ["while all are awake, C used 0.10, not 0.38", "C had 0.10 cores after it was woken up"]),
    ],
)  # fmt: skip
def test_what_is_not_as_promised_is_named(
    awake: dict[str, float], asleep: dict[str, float], wrong: list[str]
) -> None:
    assert lending.figure_of([QUOTAS, recorded("share", awake, asleep)])[1] == wrong


@pytest.mark.parametrize(
    ("share", "is_blamed"),
    [(GOOD, False), (recorded("share", AWAKE, {"A": 0.1, "B": 0.1, "C": 0.0}), True)],
)
def test_other_programs_are_blamed_only_where_something_is_wrong(
    share: Recording, is_blamed: bool
) -> None:
    cpus = os.cpu_count() or 1
    busy = [replace(each, busy=each.at_s * cpus) for each in share.samples]
    notes = " ".join(lending.figure_of([QUOTAS, replace(share, samples=busy)])[0].notes)
    assert ("Other programs were in the way: for a while" in notes) == is_blamed


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ("pinned: to as many CPUs as declared", "quota"),
        ("enforced: no more than declared", "share"),
    ],
)
def test_where_nothing_can_be_lent_that_is_said_with_a_way_out(said: str, mode: str) -> None:
    doctor: Any = {"controls": {"cores": said}}
    with pytest.raises(Refused, match="cores cannot be lent here") as refused:
        lending.check_lending(doctor, mode)
    assert said in refused.value.text and "docs/enforcement.md" in (refused.value.hint or "")
