"""drf shutdown: asks, waits until the daemon is gone, and never starts one for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from canned import CannedDaemon, Refuse
from cli.drf import Drf, Finish, Spawn
from drfd.common import paths
from drfd_cli.commands import administration


def test_it_waits_for_the_end_and_says_what_becomes_of_the_jobs(
    daemon: CannedDaemon, spawn: Spawn, finish: Finish
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
    daemon: CannedDaemon, spawn: Spawn, finish: Finish
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


def test_a_refusal_is_no_end(drf: Drf, daemon: CannedDaemon, refuse: Refuse) -> None:
    daemon.replies = {"shutdown": refuse("NotPermitted", "not-admin", "only an administrator")}
    result = drf("shutdown")
    assert (result.code, result.err) == (77, "drf: only an administrator\n")


def test_no_daemon_is_started_only_to_be_ended(
    drf: Drf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", tmp_path / "system" / "drfd.sock")
    monkeypatch.delenv("DRFD_SOCKET")
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    result = drf("shutdown")
    assert result.code == 69
    assert f"no drfd answers at {tmp_path}/drfd.sock" in result.err
    assert list(tmp_path.iterdir()) == []


AWAY = {"code": "LAUNCHER_AWAY", "text": "the launcher has been away for 12s"}
KEPT = (
    "drf: the launcher has been away for 12s (the request is kept: the jobs are stopped when "
    "the launcher is back, and then drfd ends)\n"
)


def test_nobody_waits_for_a_launcher_that_is_stopped(drf: Drf, daemon: CannedDaemon) -> None:
    """It waited for ever, and said nothing."""
    full = {"code": "DISK_SHORT", "text": "the disk is full"}
    standing = {"launcher_away_s": 12.3, "notices": [full, AWAY]}
    daemon.replies = {"shutdown": {"running": [3], "done": [3], "failed": [], **standing}}
    result = drf("shutdown", "--kill-jobs")
    assert (result.code, result.out, result.err) == (69, "stopping 1 running job\n", KEPT)


def test_nor_for_one_that_goes_away_meanwhile(
    drf: Drf, daemon: CannedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "_LOOK_S", 0.01)
    daemon.replies = {
        "shutdown": {"running": [3], "done": [3], "failed": []},
        "status": {"jobs": [], "counts": {}, "launcher_away_s": 12.3, "notices": [AWAY]},
    }
    result = drf("shutdown", "--kill-jobs")
    assert (result.code, result.err) == (69, KEPT)
