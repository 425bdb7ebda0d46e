"""Demos: of the README's first line and of the DRF paper's figure 8 with real processes, short, and
clean afterwards."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from instance import BIN, Instance, wait_for
from slurm_cluster import processes_of

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


def test_a_demo_that_is_interrupted_leaves_nothing(room):
    with demo(room, "fig8") as process:
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
