"""The first line of the README: what it shows is so."""

from __future__ import annotations

import re
import subprocess

from instance import BIN


def test_the_demo_shows_the_paper_and_stops_the_liar() -> None:
    done = subprocess.run(
        [str(BIN / "drf"), "demo"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "First launches: B A A B A " in done.stdout
    assert "Dominant shares then: A 67%, B 67% " in done.stdout
    outcomes = re.findall(r"^  job +\d+ (\S+) .*  ([A-Z_]+): ", done.stdout, re.MULTILINE)
    liar = [state for name, state in outcomes if name == "C-liar"]
    assert liar == ["OUT_OF_MEMORY"]
    assert {state for name, state in outcomes if name != "C-liar"} == {"COMPLETED"}
    assert len(outcomes) == 12
