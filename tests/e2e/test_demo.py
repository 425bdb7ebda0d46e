"""Demos: of the README's first line, of the DRF paper's figures 8 and 9 and of lending with real
processes, and of a cluster with a real Slurm: short, and clean afterwards."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from instance import BIN, Instance, patient, wait_for
from slurm_cluster import missing, processes_of

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def room() -> Iterator[Path]:
    """For directories of demos; at the end there must be none, and no process of one."""
    place = Path(tempfile.mkdtemp(prefix="drfd-test-", dir="/var/tmp"))
    place.chmod(0o755)
    try:
        yield place
        assert list(place.iterdir()) == []
        wait_for("the end of its processes", lambda: not processes_of(place))
    finally:
        shutil.rmtree(place)


def demo(room: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / "drf"), "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Only a checkout has the experiments.
        env={**os.environ, "TMPDIR": str(room), "PYTHONPATH": str(ROOT / "cli")},
    )


def tasks_of(name: str) -> list[int]:
    """The processes of the demo whose directory is called so."""
    mark = f"DRF_DEMO={name}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            # Gone, or somebody else's.
            continue
    return found


@cache
def has_cgroups() -> bool:
    """Whether a daemon of ours would have cgroups."""
    instance = Instance()
    try:
        return instance.start().has_cgroups()
    finally:
        instance.destroy()


def test_the_demo_shows_the_paper_and_stops_the_liar(room):
    with demo(room) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert "First launches: B A A B A " in out
    assert "Dominant shares then: A 67%, B 67% " in out
    outcomes = re.findall(r"^  job +\d+ (\S+) .*  ([A-Z_]+): ", out, re.MULTILINE)
    liar = [state for name, state in outcomes if name == "C-liar"]
    assert liar == ["OUT_OF_MEMORY"]
    assert {state for name, state in outcomes if name != "C-liar"} == {"COMPLETED"}
    assert len(outcomes) == 12


def test_figure_8_has_the_papers_shares(room):
    with demo(room, "fig8", "--seconds", "12", "--json") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode in (0, 1) and out, err
    figure = json.loads(out)
    names = [each["name"] for each in figure["tables"][0]["columns"]]
    shares = [row[names.index("DOMINANT")] for row in figure["tables"][0]["rows"]]
    # On a busy machine tasks come and go slowly, so only the first phase is sure to be settled: the
    # last tasks of a phase may end before those of the next are submitted.
    assert shares[:2] == pytest.approx([0.714, 0.75], abs=0.13)
    assert all(0 <= share <= 1 for share in shares[2:])
    # What is enforced is no more than what was declared; what is measured is honest. Where nothing
    # is enforced, the end of a short task on a busy machine takes a part of its small demand.
    most = 1.2 if has_cgroups() else 1.5
    for _, cpu, memory in figure["tables"][1]["rows"]:
        assert cpu <= most
        assert memory <= 1.2
    assert figure["as_expected"] == (process.returncode == 0)


@pytest.mark.parametrize("name", ["fig8", "lend"])
def test_a_demo_that_is_interrupted_leaves_nothing(room, name):
    if name == "lend" and not has_cgroups():
        pytest.skip("no cgroups, so nothing is lent here")
    with demo(room, name) as process:
        try:
            # Python's tempfile makes a file there first, to see whether it may.
            (place,) = wait_for("its directory", lambda: list(room.glob("drf-demo-*")))
            wait_for("its tasks", lambda: tasks_of(place.name))
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        except BaseException:
            process.terminate()
            raise
    assert (process.returncode, err.strip()) == (130, "")
    assert tasks_of(place.name) == []


def test_where_nothing_can_be_lent_the_demo_says_so_and_leaves_nothing(room):
    if has_cgroups():
        pytest.skip("there are cgroups here")
    with demo(room, "lend") as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("drf: cores cannot be lent here (") and err.count("\n") == 1


# -- a cluster ---------------------------------------------------------------------------------

CLUSTER = ("cluster", "--seconds", "40")


def with_slurm(test: Callable[..., None]) -> Callable[..., None]:
    lacks = pytest.mark.skipif(bool(missing()), reason=missing() or "there is Slurm")
    return pytest.mark.system(lacks(test))


@with_slurm
def test_live_and_simulated_figures_stand_side_by_side(room):
    with demo(room, *CLUSTER, "--json") as process:
        out, err = process.communicate(timeout=patient(300))
    assert process.returncode in (0, 1) and out, err
    found = json.loads(out)
    eight, nine, nodes = (table["rows"] for table in found["tables"])
    assert [row[:2] for row in eight] == [
        [phase, job] for phase in (1, 2, 3) for job in ("job 1", "job 2")
    ]
    # On a busy machine tasks come and go slowly, so only the first phase is sure to be settled.
    for live, simulated in (row[3:5] for row in eight[:2]):
        assert live == pytest.approx(simulated, abs=0.13)
    ways = {row[0]: row[1:] for row in nine}
    assert [*ways] == ["DRF", "3 slots", "6 slots"]
    for name, (large, _, small, _, crowded, simulated_crowded) in ways.items():
        assert large > 0 and small > 0
        assert (crowded > 0, simulated_crowded > 0) == (name == "6 slots",) * 2
    for name, most in (("3 slots", 9), ("6 slots", 18)):
        assert ways[name][0] + ways[name][2] <= most
    assert [[name, engine, failed] for name, engine, _, failed in nodes] == [
        ["head", "drfd", 0],
        ["n1", "Slurm", 0],
        ["n2", "Slurm", 0],
    ]
    assert all(completed > 0 for _, _, completed, _ in nodes)
    assert found["as_expected"] == (process.returncode == 0)


@with_slurm
def test_when_it_is_interrupted_twice_it_leaves_nothing(room):
    """The second time while it cleans up, or has just done so."""

    def runs(program: str) -> bool:
        return any(program in words for words in processes_of(room))

    with demo(room, *CLUSTER) as process:
        try:
            wait_for("a task of Slurm's", lambda: runs("slurmstepd"))
            process.send_signal(signal.SIGINT)
            wait_for("the end of drfd", lambda: not runs("drfd.daemon"))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=patient(120))
        except BaseException:
            process.terminate()
            raise
    assert process.returncode != 0
