"""The demo of the README's first line: what it shows, and that it leaves nothing behind."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from drfd.common.errors import Unavailable
from instance import BIN, wait_for


def processes_of(place: Path) -> list[str]:
    """The commands of processes that name a directory, also in their environment or files."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
            known = words + (entry / "environ").read_bytes()
            fds = [*(entry / "fd").iterdir()]
        except OSError:
            # Gone, or no process.
            continue
        for fd in fds:
            with suppress(OSError):
                known += os.fsencode(os.readlink(fd))
        if os.fsencode(place) in known:
            found.append(words.replace(b"\0", b" ").decode())
    return found


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


def demo(room: Path, *before: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*map(str, before), str(BIN / "drf"), "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(room)},
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


@pytest.mark.skipif(os.getuid() != 0, reason="only root can cover a file by another one")
def test_a_demo_whose_jobs_cannot_be_started_says_why_and_ends(room):
    """As where drfd was built without a C compiler."""
    # That of the installed drfd, which the tests may stand beside.
    code = "from drfd.launcher.runner.starter.sources import PROGRAM; print(PROGRAM)"
    asked = [BIN / "python", "-I", "-c", code]
    program = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    covered = f'mount --bind /dev/null {program} && exec "$@"'
    with demo(room, "unshare", "--mount", "sh", "-c", covered, "sh") as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (Unavailable.exit_code, "")
    assert err.strip().endswith(f"drfd-launcher: no job can be started: {program} is no file")


def test_a_demo_that_is_interrupted_leaves_nothing(room):
    with demo(room) as process:
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
