"""drf shutdown: asks, waits until the daemon is gone, and never starts one for that."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drfd import paths

Run = Callable[..., Any]


def test_it_waits_for_the_end_and_says_what_becomes_of_the_jobs(
    daemon: Any, spawn: Callable[..., subprocess.Popen[bytes]], finish: Callable[..., Any]
) -> None:
    daemon.replies = {"shutdown": {"running": [3, 4], "done": [], "failed": []}}
    process = spawn("shutdown")
    assert daemon.asked("shutdown") == [{"op": "shutdown", "kill_jobs": False}]
    assert process.poll() is None
    daemon.stop()
    result = finish(process)
    assert (result.code, result.err) == (0, "")
    assert result.out == "drfd has ended; 2 running jobs left to the next one\n"


def test_with_kill_jobs_it_says_what_holds_after_that(
    daemon: Any, spawn: Callable[..., subprocess.Popen[bytes]], finish: Callable[..., Any]
) -> None:
    daemon.replies = {"shutdown": {"running": [3], "done": [3], "failed": []}}
    process = spawn("shutdown", "--kill-jobs")
    assert daemon.asked("shutdown") == [{"op": "shutdown", "kill_jobs": True}]
    daemon.stop()
    result = finish(process)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "stopping 1 running job",
        "drfd has ended; when it is started again, nothing is launched until drf undrain",
    ]


def test_a_refusal_is_no_end(drf: Run, daemon: Any, refuse: Callable[..., bytes]) -> None:
    daemon.replies = {"shutdown": refuse("NotPermitted", "not-admin", "only an administrator")}
    result = drf("shutdown")
    assert (result.code, result.err) == (77, "drf: only an administrator\n")


def test_no_daemon_is_started_only_to_be_ended(
    drf: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", tmp_path / "system" / "drfd.sock")
    monkeypatch.delenv("DRFD_SOCKET")
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    result = drf("shutdown")
    assert result.code == 69
    assert f"no drfd answers at {tmp_path}/drfd.sock" in result.err
    assert list(tmp_path.iterdir()) == []
