"""The benchmarks run, of jobs that did what they were to do; how fast is no matter here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_cluster import missing

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif(shutil.which("cc") is None, reason="the baseline is in C: no compiler")
def test_a_short_run_has_a_line_for_each_figure():
    few = ["--runs", "1", "--jobs", "20", "--queued", "20"]
    names = ("slots", "client", "run", "start", "deep")
    only = [word for name in names for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", *few, *only],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for what in (
        *("20 no-op jobs, 2 slots, all", "20 submissions at once", "5 submissions, one after"),
        *("drf run -- true", "start of a job", "start, 20 queued"),
    ):
        (line,) = [line for line in lines if line.startswith(what)]
        assert " of " in line, "beside its baseline"


@pytest.mark.skipif(shutil.which("cc") is None, reason="the job is in C: no compiler")
@pytest.mark.skipif(os.getuid() != 0, reason="not root, who makes a user for it")
def test_drfd_is_measured_beside_other_programs_and_which_are_missing_is_said():
    few = ["--runs", "1", "--jobs", "5", "--starts", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.others", *few],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert {"drf submit", "drfd, Python"} <= {line[:22].rstrip() for line in lines}
    for name in ("hq", "sbatch"):
        if not shutil.which(name):
            assert any(line.startswith(f"(not measured: no {name}") for line in lines)


@pytest.mark.skipif(shutil.which("cc") is None, reason="the job is in C: no compiler")
@pytest.mark.skipif(bool(missing()), reason=missing() or "there is Slurm")
def test_starts_on_a_node_of_slurms_are_measured_beside_sbatch():
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.nodes", "--jobs", "2", "--more", "2"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line[:20].rstrip() for line in lines] == [
        *("with gaps", "drf submit --node", "drfd, Python", "sbatch", "drfd, own machine"),
        *("at once", "drf submit --node", "drfd, Python", "sbatch", "drfd, own machine"),
    ]
    # Until sbatch, the event and the first instruction, which together are the start.
    assert [len(line[20:].split()) for line in lines] == [7, 6, 6, 6, 3] * 2
