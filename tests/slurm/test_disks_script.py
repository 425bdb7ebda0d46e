"""The script that limits the disk rates of a job on its node: what it writes, and no failure. That
the kernel keeps jobs to it is proved by tests/e2e/test_slurm_disks.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from drfd.slurm.files import disks_script

JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}
RATED = {**JOB, "SLURM_JOB_COMMENT": "moon.12.1.5000.0"}


@pytest.fixture
def scope(tmp_path: Path) -> Path:
    """Slurm's cgroup of all jobs, on a node with a disk and a loop device without a file."""
    for name, number, sectors in (("sda", "8:0", "2048"), ("loop0", "7:0", "0")):
        device = tmp_path / "block" / name
        device.mkdir(parents=True)
        (device / "dev").write_text(f"{number}\n")
        (device / "size").write_text(f"{sectors}\n")
    cgroups = tmp_path / "fs" / "cgroup"
    made = cgroups / "system.slice" / "slurmstepd.scope"
    made.mkdir(parents=True)
    (cgroups / "cgroup.controllers").write_text("cpu io memory\n")
    return made


def run(sys: Path, env: dict[str, str]) -> None:
    """Run the script, which never fails."""
    script = sys / "drfd-disks"
    script.write_text(disks_script(sys))
    done = subprocess.run(["/bin/sh", script], env=env, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("rates", "limits"),
    [("5000.0", "rbps=5000 wbps=max"), ("0.3000", "rbps=max wbps=3000"), ("1.2", "rbps=1 wbps=2")],
)
def test_each_disk_gets_the_rates_of_the_comment(
    tmp_path: Path, scope: Path, rates: str, limits: str
) -> None:
    run(tmp_path, {**JOB, "SLURM_JOB_COMMENT": f"moon.12.1.{rates}"})
    assert (scope / "job_7" / "io.max").read_text() == f"8:0 {limits}\n"
    assert (scope / "cgroup.subtree_control").read_text() == "+io\n"


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "moon.12.1",
        "moon.12.1.0.0",
        "a comment",
        "moon.12.1.x.3",
        "moon.12.1.1.2.3",
        "* . ? . /",
    ],
)
def test_without_rates_there_is_nothing_to_do(tmp_path: Path, scope: Path, comment: str) -> None:
    run(tmp_path, {**JOB, "SLURM_JOB_COMMENT": comment})
    run(tmp_path, JOB)
    assert [*scope.iterdir()] == []


def test_what_another_job_with_this_id_has_left_does_not_hold(tmp_path: Path, scope: Path) -> None:
    run(tmp_path, RATED)
    run(tmp_path, {**JOB, "SLURM_JOB_COMMENT": "moon.13.1"})
    assert (scope / "job_7" / "io.max").read_text() == "8:0 rbps=max wbps=max\n"


def test_the_cgroup_of_this_node_comes_before_one_for_all(tmp_path: Path, scope: Path) -> None:
    """As Slurm names it where several slurmd may be on one machine."""
    own = scope.with_name("n1_slurmstepd.scope")
    own.mkdir()
    run(tmp_path, RATED)
    assert ([*scope.iterdir()], (own / "job_7" / "io.max").exists()) == ([], True)


def test_at_the_end_an_empty_cgroup_is_removed_and_no_other(tmp_path: Path, scope: Path) -> None:
    ended = {**RATED, "SLURM_SCRIPT_CONTEXT": "epilog_slurmd"}
    run(tmp_path, ended)
    (scope / "job_7").mkdir()
    (scope / "job_7" / "step_batch").mkdir()
    run(tmp_path, ended)
    assert (scope / "job_7").exists()
    (scope / "job_7" / "step_batch").rmdir()
    run(tmp_path, ended)
    assert not (scope / "job_7").exists()


def test_it_does_nothing_without_cgroup_v2_or_slurms_cgroup(tmp_path: Path, scope: Path) -> None:
    cgroups = scope.parents[1]
    (cgroups / "cgroup.controllers").unlink()
    run(tmp_path, RATED)
    assert [*scope.iterdir()] == []
    (cgroups / "cgroup.controllers").touch()
    scope.rmdir()
    run(tmp_path, RATED)
    run(tmp_path, {})
    assert [*scope.parent.iterdir()] == []
