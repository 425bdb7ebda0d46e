"""Without a system daemon, `drf` starts the user's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from drfd.common.paths import SYSTEM_SOCKET
from instance import ALONE, BIN, patient, wait_for

pytestmark = pytest.mark.skipif(
    SYSTEM_SOCKET.parent.exists(), reason="a system daemon is, or was, running here"
)


@pytest.fixture
def home() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="drfd-home-"))
    # Root's own daemon reads the system's configuration, and sees what others do after ten seconds.
    config = place / ".config/drfd/drfd.toml"
    config.parent.mkdir(parents=True)
    config.write_text(ALONE)
    yield place
    if daemons(place):
        # Its jobs first: nobody would clean up after them once their state is gone.
        drf(place, "cancel", "--all", "--yes")
        wait_for(
            "the end of its jobs", lambda: '"jobs": []' in drf(place, "status", "--json").stdout
        )
    for pid in daemons(place):
        # One that has found the state directory taken leaves by itself.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    # The launcher ends a moment after the daemon, and writes below this place until then.
    wait_for("the end of all its processes", lambda: not processes(place))
    shutil.rmtree(place)


def daemons(home: Path) -> list[int]:
    """Controllers whose state is below this home."""
    return [pid for pid, words in processes(home).items() if b"serve" in words]


def processes(home: Path) -> dict[int, list[bytes]]:
    """The command lines of those that are told of a path below this home."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(os.fsencode(home)) for word in command):
            found[int(entry.name)] = command
    return found


def drf(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": os.environ["PATH"], **more}
    return subprocess.run(
        [str(BIN / "drf"), *words],
        capture_output=True, text=True, env=env, cwd=home, timeout=patient(120), check=False,
    )  # fmt: skip


def test_the_first_command_starts_it_and_says_so(home: Path) -> None:
    first = drf(home, "submit", "-w", "--", "sh", "-c", "echo it runs; exit 3")
    assert first.returncode == 3
    assert first.stdout == "submitted job 1\n"
    # On a slow machine it says besides that the launcher is not there yet, and when it is.
    said = [line for line in first.stderr.splitlines() if not line.startswith("drf: the launcher ")]
    assert said[:2] == [
        "drf: started your own drfd (no system daemon is running here); "
        "drf doctor says what it can enforce",
        "drf: job 1 FAILED: exit code 3",
    ]
    assert (home / "drf-1.out").read_text() == "it runs\n"
    second = drf(home, "submit", "-q", "--", "true")
    assert (second.stdout, second.stderr) == ("2\n", "")
    # The other one finds the state directory taken, and leaves.
    wait_for("one daemon to be left", lambda: len(daemons(home)) == 1)
    assert (home / ".local/state/drfd").stat().st_mode & 0o066 == 0


def test_two_first_commands_at_once_start_one(home: Path) -> None:
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    both = [
        subprocess.Popen(
            [str(BIN / "drf"), "submit", "-w", "--", "true"],
            env=env, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = sorted(process.communicate(timeout=patient(120))[0] for process in both)
    assert said == ["submitted job 1\n", "submitted job 2\n"]
    assert [process.returncode for process in both] == [0, 0]
    # The other one finds the state directory taken, and leaves.
    wait_for("one daemon to be left", lambda: len(daemons(home)) == 1)


def test_a_job_finds_its_daemon_and_a_shell_is_told_where_it_is(home: Path) -> None:
    """It answers in the runtime directory, whose variable jobs and cron do not have."""
    first = drf(
        home, "submit", "-q", "--wait", "--", str(BIN / "drf"), "submit", "-q", "--wait", "--",
        "true", XDG_RUNTIME_DIR=str(home),
    )  # fmt: skip
    assert first.returncode == 0, first.stderr
    assert (home / "drf-1.out").read_text().splitlines()[0] == "2"
    other = drf(home, "status")
    assert other.returncode == 69
    assert f"its socket: {home}/drfd.sock" in other.stderr
    [daemon] = daemons(home)
    os.kill(daemon, signal.SIGTERM)
    wait_for("the daemon's end", lambda: not daemons(home))
