"""drf retry: what was submitted once is submitted again, changed only where it is asked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from canned import CannedDaemon, MakeJob
from cli.drf import Drf


def test_why_has_the_whole_line_for_a_job_of_ones_own(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, tmp_path: Path
) -> None:
    advice = {
        "options": ["-c", "0.5", "-m", "96M", "-t", "1h"], "jobs": 3, "short_jobs": 1,
        "cores": 1000.0, "memory": 96 << 20, "time_limit_s": 3600,
    }  # fmt: skip
    job = ended("OUT_OF_MEMORY", text="needed more", uid=os.getuid(), time_limit_s=3600)
    daemon.replies = {"why": {"job": job, "notes": [], "advice": advice}}
    assert drf("why", 42).out.splitlines()[-1] == "again: drf retry 42 --with '-c 0.5 -m 96M'"
    assert json.loads(drf("why", 42, "--json").out)["retry"] == (
        "drf retry 42 --with '-c 0.5 -m 96M'"
    )
    # A range that differs in its upper end alone is another one.
    ranged = {**advice, "options": ["-c", "8..16"], "cores": 8.0, "cores_max": 16.0}
    for most, again in ((None, "--with '-c 8..16'"), (16.0, "42")):
        asked = job["demand"] | ({} if most is None else {"cores_max": most})
        daemon.replies["why"] |= {"job": job | {"demand": asked}, "advice": ranged}
        assert drf("why", 42).out.splitlines()[-1].endswith(f" {again}")
    limited = ended("LIMIT_EXCEEDED", uid=os.getuid(), output_max_bytes=1 << 30)
    daemon.replies = {"why": {"job": limited, "notes": [], "advice": None}}
    assert drf("why", 42).out.endswith("again: drf retry 42 --with '--output-max 2G'\n")
    output = tmp_path / "drf-42.out"
    with output.open("wb") as file:
        file.truncate(19 << 30 >> 3)
    limited |= {"stdout": str(output), "stderr": str(output), "output_max_bytes": 1 << 20}
    assert drf("why", 42).out.endswith("again: drf retry 42 --with '--output-max 4G'\n")
    for other in (ended("COMPLETED", uid=os.getuid()), ended("FAILED", uid=os.getuid() + 1)):
        daemon.replies = {"why": {"job": other, "notes": [], "advice": None}}
        assert "drf retry" not in drf("why", 42).out


@pytest.mark.parametrize(
    ("free", "blocks", "is_told"), [(9, 300, True), (11, 300, False), (9, 90, False)]
)
def test_why_says_that_the_output_of_a_failed_job_has_filled_the_disk(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, free: int, blocks: int, is_told: bool,
) -> None:  # fmt: skip
    """What it wrote of its error did not fit, either."""
    path = str(tmp_path / "drf-42.out")
    file = SimpleNamespace(st_blocks=blocks * (1 << 20) // 512)
    disk = SimpleNamespace(f_bavail=free, f_frsize=1 << 20, f_blocks=1000)
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda at, **how: file if at == path else stat(at, **how))
    monkeypatch.setattr(os, "statvfs", {path: disk}.__getitem__)
    job = ended("FAILED", uid=os.getuid(), stdout=path, stderr=path)
    daemon.replies = {"why": {"job": job, "notes": [], "advice": None}}
    note = f"the disk of its output is full now (9M of 1000M free), and {path} takes 300M of it"
    assert (note in drf("why", 42).out) == is_told
    assert ("disk" in drf("why", 42).out) == is_told
