"""How much later a job starts in the guest after a rest than straight after another one.

The guest's processors are emulated, so that only ratios tell: what a cold start takes beside one
back to back, on cgroup v2 and below systemd.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.bench.place import PROGRAMS, compile_to
from vm.rig import COPY, PATIENCE, PYTHON, Guest

pytestmark = pytest.mark.vm

#: Generous: a machine that runs much else stretches either.
MOST = 5.0
_ROW = re.compile(r"start ([\d.]+) s after an end \(95 %: [\d.]+ ms\) +([\d,.]+) ms")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler for the programs")
def test_a_job_starts_about_as_soon_after_a_rest(
    drfd_guest: Guest, place: Path, notes: list[str]
) -> None:
    programs = place / "programs"
    programs.mkdir()
    for name in ("baseline", "migrate", "stamp"):
        compile_to(programs / name, "-static")
    done = drfd_guest.run(
        f"cd /srv/drfd && exec {PYTHON} -m tests.bench --only cold --runs 1",
        timeout_s=900,
        copy={**COPY, programs: "/srv/programs"},
        env={PROGRAMS: "/srv/programs", "DRFD_TEST_PATIENCE": str(PATIENCE)},
    ).check()
    found = {float(gap): float(ms.replace(",", "")) for gap, ms in _ROW.findall(done.stdout)}
    assert set(found) == {0, 0.05, 0.3, 1, 2}, done.stdout
    ratios = {gap: ms / found[0] for gap, ms in found.items() if gap}
    told = ", ".join(f"{ratio:.2f} after {gap:g} s" for gap, ratio in ratios.items())
    notes.append(f"start after a rest, of one back to back: {told}")
    assert max(ratios.values()) < MOST, done.stdout
