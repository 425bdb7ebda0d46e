"""The launcher is away, or somebody else stops the jobs: whoever asks is told, and the books say it
within seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from instance import is_alive, wait_for
from vm.service.installed import BIN, Installed, ask, journal, main_pid, pids_in, run, unit

#: While it is there, systemd starts no launcher.
BAR = Path("/run/no-launcher")
UNITS = Path("/etc/systemd/system")
LAUNCHER = UNITS / "drfd-launcher.service.d/bar.conf"
SLICE = UNITS / "drfd.slice.d/stoppable.conf"
DROP_INS = {
    LAUNCHER: f"[Unit]\nConditionPathExists=!{BAR}\n",
    SLICE: "[Unit]\nRefuseManualStop=no\n",
}


@pytest.fixture
def drop_in(request: pytest.FixtureRequest) -> Iterator[None]:
    """An administrator's addition to a unit."""
    path: Path = request.param
    path.parent.mkdir()
    path.write_text(DROP_INS[path])
    run("systemctl", "daemon-reload")
    yield
    BAR.unlink(missing_ok=True)
    path.unlink()
    path.parent.rmdir()
    run("systemctl", "daemon-reload")


def running(service: Installed, *users: str) -> list[int]:
    ids = [service.submit(user, "sleep", "1000") for user in users]
    for job_id in ids:
        service.wait_state(job_id, "RUNNING")
    return ids


def ends(service: Installed, ids: list[int]) -> list[tuple[object, object, object]]:
    jobs = [service.wait_end(job_id) for job_id in ids]
    return [(job["state"], job["signal"], job["outcome"].get("reason")) for job in jobs]


def test_a_launcher_that_is_stopped_comes_back(service: Installed) -> None:
    ids = running(service, "alice")
    before = main_pid("drfd-launcher")
    run("systemctl", "stop", "drfd-launcher")
    wait_for("another launcher", lambda: main_pid("drfd-launcher") not in (0, before))
    service.await_answer()
    assert service.show(ids[0])["state"] == "RUNNING"


@pytest.mark.parametrize("drop_in", [LAUNCHER], indirect=True)
def test_while_it_is_away_nobody_waits_for_it_and_everybody_is_told(
    service: Installed, drop_in: None
) -> None:
    """The commands hung for ever, or said that it was done; drf status said nothing."""
    ids = running(service, "alice", "bob")
    pids = [pid for job_id in ids for pid in pids_in(service.show(job_id))]
    BAR.touch()
    run("systemctl", "stop", "drfd-launcher")
    wait_for("a word on it", lambda: (ask("status")["launcher_away_s"] or 0) > 6)
    away = "the launcher has been away for"
    cure = "systemctl start drfd-launcher starts it"
    status = run(BIN / "drf", "status")
    assert status.stderr.startswith(f"drf: {away}") and cure in status.stderr
    assert "LAUNCHER AWAY" in run(BIN / "drf", "top", "--once").stdout
    said = service.login("alice", f"drf cancel {ids[0]}", check=False)
    assert f"cancelled job {ids[0]}\n" in said
    assert away in said and "the request is kept, and done then" in said
    done = run(BIN / "drf", "shutdown", "--kill-jobs", check=False)
    assert (done.returncode, done.stdout) == (69, "stopping 2 running jobs\n")
    assert away in done.stderr and "the request is kept" in done.stderr
    done = run(BIN / "drfd", "uninstall", "--kill-jobs", check=False)
    assert done.returncode == 1, "it has said so, and removed nothing"
    assert away in done.stderr and unit("drfd", "LoadState")["LoadState"] == "loaded"
    assert [is_alive(pid) for pid in pids] == [True] * len(pids)

    BAR.unlink()
    run("systemctl", "start", "drfd-launcher")
    wait_for("the end that was asked for", lambda: not main_pid("drfd"))
    assert [is_alive(pid) for pid in pids] == [False] * len(pids)
    service.start()
    run(BIN / "drf", "undrain")
    # Their grace time may have gone by meanwhile.
    assert [state for state, *_ in ends(service, ids)] == ["CANCELLED"] * 2


@pytest.mark.parametrize("name", ["drfd-jobs.service", "drfd.slice"])
def test_what_holds_the_jobs_refuses_to_be_stopped_by_hand(service: Installed, name: str) -> None:
    """The slice did not, and its stop ended all jobs."""
    ids = running(service, "alice")
    done = run("systemctl", "stop", name, check=False)
    assert done.returncode != 0 and "refused" in done.stderr
    assert service.show(ids[0])["state"] == "RUNNING"


@pytest.mark.parametrize("drop_in", [SLICE], indirect=True)
def test_jobs_that_systemd_has_stopped_are_lost_and_all_runs_again(
    service: Installed, drop_in: None
) -> None:
    """The launcher stayed away, and the books said RUNNING until somebody started it."""
    ids = running(service, "alice", "bob")
    run("systemctl", "stop", "drfd.slice")
    assert ends(service, ids) == [("LOST", None, "JOBS_STOPPED")] * 2
    service.await_answer()
    assert service.wait_end(service.submit("carol", "true"))["state"] == "COMPLETED"
    for name in ("drfd-jobs", "drfd-launcher", "drfd"):
        # They answer a moment before systemd knows that they are ready.
        wait_for(
            f"{name} to be active",
            lambda name=name: unit(name, "ActiveState") == {"ActiveState": "active"},
            show=lambda: journal("drfd*"),
        )


def test_jobs_that_were_killed_with_their_unit_say_by_which_signal(service: Installed) -> None:
    ids = running(service, "alice", "bob")
    run("systemctl", "kill", "--signal=KILL", "drfd.slice")
    assert ends(service, ids) == [("FAILED", 9, None)] * 2
    service.await_answer()
    assert service.wait_end(service.submit("carol", "true"))["state"] == "COMPLETED"


def test_jobs_whose_runners_were_killed_say_so(service: Installed) -> None:
    ids = running(service, "alice", "bob")
    pids = [pid for job_id in ids for pid in pids_in(service.show(job_id))]
    run("systemctl", "kill", "--signal=KILL", "drfd-launcher")
    assert ends(service, ids) == [("LOST", None, "RUNNER_KILLED")] * 2
    assert [is_alive(pid) for pid in pids] == [False] * len(pids)


def test_a_wrong_configuration_is_refused_and_the_log_of_the_unit_names_the_key(
    service: Installed,
) -> None:
    config = Path("/etc/drfd/drfd.toml")
    before = config.read_text()
    config.write_text(before.replace("[scheduling]", "[scheduling]\nno_such_key = 1"))
    try:
        assert run("systemctl", "reload", "drfd", check=False).returncode != 0
        words = ("journalctl", "--no-pager", "-o", "cat", "-n", "20", "-u", "drfd")
        # What a service says goes through journald, which may be late.
        wait_for("the key in the log", lambda: "no_such_key" in run(*words).stdout)
        assert "no_such_key" in run("systemctl", "status", "drfd", "--no-pager").stdout
    finally:
        config.write_text(before)
    run("systemctl", "reload", "drfd")
    assert json.loads(run(BIN / "drf", "doctor", "--json").stdout)["launcher"] == "connected"
