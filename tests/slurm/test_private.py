"""A private Slurm: it is there while it is used, says why it is not, and leaves nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.common.errors import HostError
from drfd.slurm.files import MORE_CONF
from drfd.slurm.private import PrivateNode, PrivateSlurm, files_without_limits
from instance import wait_for
from slurm_cluster import missing, processes_of

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is Slurm"),
]


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="drfd-slurm-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_it_has_the_nodes_it_is_told_and_leaves_no_process(place: Path) -> None:
    nodes = [PrivateNode("small", 1, 500), PrivateNode("large", 16, 64000)]
    slurm = PrivateSlurm(place, nodes)
    files = files_without_limits(place, place / "events", place / "starts")
    (place / "starts").mkdir()
    try:
        slurm.start(files)
        words = "%N %c %m"
        assert sorted(slurm.ask("sinfo", "-h", "-N", "-o", words).splitlines()) == [
            "large 16 64000",
            "small 1 500",
        ]
        slurm.ask(
            *("sbatch", "--comment=a.1.1", f"--output={place}/out", "--export=ALL"),
            *("--nodelist=large", "--wrap=sleep 1000"),
        )
        assert processes_of(place) != []
    finally:
        slurm.stop()
    assert processes_of(place) == []


def test_no_process_of_a_job_outlives_it_where_slurmctld_has_died(place: Path) -> None:
    slurm = PrivateSlurm(place, [PrivateNode("n1", 1, 500)])
    (place / "starts").mkdir()
    try:
        slurm.start(files_without_limits(place, place / "events", place / "starts"))
        slurm.ask(
            *("sbatch", "--comment=a.1.1", f"--output={place}/out", "--export=ALL"),
            "--wrap=trap '' TERM; sleep 1000 & wait",
        )
        wait_for("the job", lambda: any("sleep 1000" in each for each in processes_of(place)))
        slurm.kill("slurmctld")
    finally:
        slurm.stop()
    assert processes_of(place) == []


def test_why_it_does_not_start_is_told_in_one_line(place: Path) -> None:
    slurm = PrivateSlurm(place, [PrivateNode("n1", 1, 500)])
    files = files_without_limits(place, place / "events", place / "starts")
    files[MORE_CONF] += "SelectType=select/nonsense\n"
    try:
        with pytest.raises(HostError) as caught:
            slurm.start(files)
    finally:
        slurm.stop()
    assert caught.value.text.startswith("a private Slurm does not start: ")
    assert "\n" not in caught.value.text
    assert processes_of(place) == []
