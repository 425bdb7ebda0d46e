"""The commands of administrators where a path is out of reach for whoever runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seeds import seeds

#: An ordinary user without an account.
_UID = 64_999
_WHO: dict[str, Any] = {}
if os.getuid() == 0:
    _WHO = {"user": _UID, "group": _UID, "extra_groups": []}


@pytest.fixture
def locked() -> Iterator[Path]:
    """A directory that nobody may enter, with a state directory in it."""
    try:
        subprocess.run([sys.executable, "-c", ""], check=True, **_WHO)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"other users cannot run {sys.executable}")
    # Pytest's own are below one that other users may not enter.
    top = Path(tempfile.mkdtemp(prefix="drfd-"))
    top.chmod(0o755)
    place = top / "locked"
    (place / "state" / "controller").mkdir(parents=True)
    (place / "state" / "controller" / "journal.sqlite").touch()
    place.chmod(0)
    yield place
    place.chmod(0o700)
    shutil.rmtree(top)


def told(locked: Path, *words: str, **env: str) -> tuple[int, str]:
    """Exit code and standard error of `drfd WORDS`, run by an ordinary user."""
    home = {"PATH": os.defpath, "HOME": str(locked.parent)}
    command = [sys.executable, "-I", "-m", "drfd.daemon", *words]
    done = subprocess.run(
        command, env=home | env, cwd="/", capture_output=True, text=True, timeout=60, **_WHO
    )
    return done.returncode, done.stderr


def test_the_journal_of_somebody_else_is_told_in_one_line(locked: Path) -> None:
    """It was a traceback."""
    state = locked / "state"
    assert told(locked, "compact", "--state", str(state)) == (
        1,
        f"drfd: cannot reach the journal {state}/controller/journal.sqlite: Permission denied "
        "(run this as the user who started that daemon, or as root)\n",
    )


@pytest.mark.parametrize(
    "case",
    seeds(
        [
            ("serve --state {}/state", 1),
            ("serve --config {}/drfd.toml", 78),
            ("launcher --state {}/state --controller root", 1),
            ("calibrate --path {}/state", 1),
            ("calibrate --config {}/drfd.toml", 78),
            ("check-config {}/drfd.toml", 78),
            ("install --dry-run --root {}/state", 78),
            ("uninstall --dry-run --root {}/state", 77),
        ],
        quick=3,
    ),
)
def test_a_place_out_of_reach_is_one_line_that_names_it(
    locked: Path, case: tuple[str, int]
) -> None:
    """Half of the commands ended with a traceback."""
    words, code = case
    found, err = told(locked, *words.format(locked).split())
    assert (found, err.count("\n")) == (code, 1), err
    assert str(locked) in err and "Permission denied" in err


@pytest.mark.parametrize("words", seeds(["serve --idle-exit 0", "calibrate"], quick=1))
@pytest.mark.parametrize("variable", seeds(["XDG_CONFIG_HOME", "HOME"], quick=1))
def test_a_home_out_of_reach_is_one_line_too(locked: Path, words: str, variable: str) -> None:
    found, err = told(locked, *words.split(), **{variable: str(locked)})
    assert (found, err.count("\n")) == (78, 1), err
    assert f"drfd: cannot read {locked}" in err
