"""drf demo cluster with a real Slurm: a short form of it, and one that is interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from instance import BIN, patient, wait_for
from slurm_cluster import missing, processes_of

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is Slurm"),
]


@pytest.fixture
def room() -> Iterator[Path]:
    """For the directory of the demo; at the end there must be none, and no process of it."""
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
        [str(BIN / "drf"), "demo", "cluster", "--seconds", "40", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(room)},
    )


def test_live_and_simulated_figures_stand_side_by_side(room: Path) -> None:
    with demo(room, "--json") as process:
        out, err = process.communicate(timeout=patient(300))
    assert process.returncode in (0, 1), err
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


def test_when_it_is_interrupted_twice_it_leaves_nothing(room: Path) -> None:
    """The second time while it cleans up, or has just done so."""

    def runs(program: str) -> bool:
        return any(program in words for words in processes_of(room))

    with demo(room) as process:
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
