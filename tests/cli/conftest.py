"""The command line against a daemon that says what the test wants to hear."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from canned import Message, daemon, refuse
from cli.drf import DRF, Result
from drfd.client.connection import Connection, Start
from drfd_cli import options, which_job
from drfd_cli.main import main
from drfd_cli.submission import sending

__all__ = ["daemon", "refuse"]


@pytest.fixture
def plain(monkeypatch):
    """No terminal's wishes, and a clock in UTC."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture
def handlers() -> Iterator[None]:
    """What signals do afterwards is what they did before: `drf run` catches them for good."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


def text_of(data: bytes | None) -> str:
    """The text, with surrogates for bytes that are none."""
    return (data or b"").decode(errors="surrogateescape")


@pytest.fixture
def drf(daemon, plain, handlers, monkeypatch, capsysbinary, tmp_path_factory):
    """Run drf in this process, to its end."""
    if not os.access(".", os.W_OK):
        # drf would tell so of each job's output.
        monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    monkeypatch.setenv("DRFD_SOCKET", str(daemon.path))
    clients: list[Connection] = []
    choose = options.choose

    def choose_and_note(explicit: str | None, *, start: Start | None) -> Connection:
        clients.append(choose(explicit, start=start))
        return clients[-1]

    # A process that ends closes its connections; this one does not end.
    for module in (options, sending):
        monkeypatch.setattr(module, "choose", choose_and_note)

    def run(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["drf", *map(str, args)])
        # What a process says once.
        which_job._tell_once.cache_clear()
        capsysbinary.readouterr()
        try:
            with pytest.raises(SystemExit) as end:
                main()
        finally:
            for client in clients:
                client.close()
        said = capsysbinary.readouterr()
        code = end.value.code
        assert isinstance(code, int)
        return Result(code, text_of(said.out), text_of(said.err))

    return run


@pytest.fixture
def spawn(daemon, tmp_path):
    """Start drf as a process of its own, with an environment that holds only what is said here."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        *args: object, env: dict[str, str] | None = None, program: str = DRF, **options: Any
    ) -> subprocess.Popen[bytes]:
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("cwd", tmp_path)
        environment = {"DRFD_SOCKET": str(daemon.path), "PATH": os.environ["PATH"], "TZ": "UTC"}
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-P", "-c", program, *map(str, args)],
            env=environment | (env or {}),
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def finish():
    """Waits for the end of a process of drf."""

    def wait(process: subprocess.Popen[bytes]) -> Result:
        out, err = process.communicate(timeout=60)
        return Result(process.returncode, text_of(out), text_of(err))

    return wait


@pytest.fixture
def job():
    """A job as the daemon shows it: running, unless changed."""

    def make(**changes: Any) -> Message:
        return {
            "id": 42, "array_id": None, "array_index": None, "name": "train", "user": "alice",
            # Nobody who runs the tests: some words are only for the owner.
            "uid": 4_001_001, "pool": "root.alice", "state": "RUNNING", "reason": None,
            "demand": {"cores": 8.0, "memory": 1 << 34, "read": 0, "write": 0, "gres": {}},
            "time_limit_s": 3600, "priority": 0, "attempt": 1, "submitted_at": 1_700_000_000.0,
            "eligible_at": 1_700_000_000.0, "started_at": 1_700_000_010.0, "ended_at": None,
            "expected_start_at": None, "exit_code": None, "signal": None, "outcome": None,
            "usage": {"cores": 7.5, "memory": 1 << 30, "memory_peak": 3 << 29,
                      "read_bytes": 1 << 20, "written_bytes": 10, "cpu_seconds": 75.25},
            "cwd": "/home/alice", "argv": ["train", "--epochs", "3 4"],
            "stdout": "/home/alice/drf-42.out", "stderr": "/home/alice/drf-42.err",
            "cgroup": "drfd/0123456789/job-42.1", **changes,
        }  # fmt: skip

    return make


@pytest.fixture
def ended(job):
    """An ended job as `wait` tells it."""

    def make(code: str = "COMPLETED", status: int = 0, text: str = "", **changes: Any) -> Message:
        return job(
            state=code,
            ended_at=1_700_000_100.0,
            outcome={"code": code, "text": text or f"exit code {status}"},
            status=status,
            **changes,
        )

    return make
