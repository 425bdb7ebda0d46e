"""Uninstalling, one step further each time; the last thing that the guest does."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from drfd.launcher.system.process import start_ticks
from instance import is_alive, wait_for
from vm.service.installed import BEFORE, BIN, UNITS, listed, pids_in, run, unit

GROUP = Path("/sys/fs/cgroup/drfd.slice")


def test_it_refuses_while_jobs_run(installed):
    (job_id,) = installed.running("alice")
    done = run(BIN / "drfd", "uninstall", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("drfd: 1 job is not over yet") and "--kill-jobs" in done.stderr
    assert installed.show(job_id)["state"] == "RUNNING"


def test_with_kill_jobs_it_ends_them_and_keeps_its_state(installed):
    """Also while the launcher is away, which is started: the removal waited for ever."""
    (job,) = installed.live()
    pids = pids_in(installed.show(job["id"]))
    assert [is_alive(pid) for pid in pids] == [True] * len(pids)
    slow = Path("/run/systemd/system/drfd-launcher.service.d/slow.conf")
    slow.parent.mkdir(parents=True)
    slow.write_text("[Service]\nExecStartPre=/bin/sleep 40\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "stop", "drfd-launcher")
    done = run(BIN / "drfd", "uninstall", "--kill-jobs")
    shutil.rmtree(slow.parent)
    assert "run systemctl start drfd-launcher.service" in done.stdout.splitlines()
    notes = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: kept: /var/lib/drfd (--purge removes it)",
        "note: kept: /etc/drfd (--purge removes it)",
    ]
    assert [start_ticks(pid) for pid in pids] == [None] * len(pids)
    assert not GROUP.exists() and not Path("/run/drfd").exists()
    assert {unit(name, "LoadState")["LoadState"] for name in UNITS} == {"not-found"}
    assert {path for path in listed() - BEFORE_ALL if not path.startswith("/var/lib/drfd/")} == {
        "/etc/drfd", "/etc/drfd/drfd.toml", "/var/lib/drfd",
    }  # fmt: skip


def test_installed_once_more_it_goes_on_where_it_was(installed):
    """Drained, as the removal has left it, and nothing starts. That is said."""
    said = run(BIN / "drfd", "install").stdout.splitlines()
    assert said[-2:] == [
        "note: the queue is still drained, as it was left: nothing starts until drf undrain",
        "drfd runs; try drf doctor",
    ]
    installed.await_answer()
    run(BIN / "drf", "undrain")
    job = installed.wait_end(installed.submit("alice", "true"))
    assert job["state"] == "COMPLETED"
    assert job["id"] > 20, "ids go on"


def test_with_purge_nothing_is_left(installed):
    # That of the last job goes a moment after its end is known; until then it is refused.
    attempts = Path("/var/lib/drfd/launcher/attempts")
    wait_for("no attempt to be left", lambda: not os.listdir(attempts))
    run(BIN / "drfd", "uninstall", "--purge")
    assert listed() - BEFORE_ALL == set()
    assert not GROUP.exists() and not Path("/run/drfd").exists()
    assert {unit(name, "LoadState")["LoadState"] for name in UNITS} == {"not-found"}
    with pytest.raises(KeyError):
        pwd.getpwnam("drfd")
    # A runner that waited for another job ends when it sees that its launcher has ended.
    wait_for("the end of all processes", lambda: not ours(), show=ours)


def ours() -> list[int]:
    return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if is_ours(pid)]


def is_ours(pid: int) -> bool:
    try:
        return b"drfd.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


BEFORE_ALL = frozenset(BEFORE.read_text().splitlines())
