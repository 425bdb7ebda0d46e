"""The benchmarks run, of jobs that did what they were to do; how fast is no matter here."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from instance import patient

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif(shutil.which("cc") is None, reason="the baseline is in C: no compiler")
def test_a_short_run_has_a_line_for_each_figure():
    few = ["--runs", "1", "--jobs", "20"]
    names = ("slots", "client", "run")
    only = [word for name in names for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", *few, *only],
        cwd=ROOT, capture_output=True, text=True, timeout=patient(300),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    begins = ("20 no-op jobs, 2 slots, all", "20 submissions at once", "5 submissions, one after")
    for what in (*begins, "drf run -- true"):
        (line,) = [line for line in lines if line.startswith(what)]
        assert " of " in line, "beside its baseline"
