"""Nothing that happens to the services happens to the jobs: they are stopped, killed, restarted
and upgraded, the launcher is away, or somebody else stops the jobs. Whoever asks is told, and the
books say it within seconds."""

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from instance import is_alive, wait_for
from vm.service.installed import (
    BIN,
    USERS,
    Installed,
    ask,
    confinement,
    demand,
    gated,
    main_pid,
    pids_in,
    run,
    unit,
)

# -- the launcher is away, or somebody else stops the jobs ----------------------------------------

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
def drop_in(request) -> Iterator[None]:
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


def ends(service: Installed, ids: list[int]) -> list[tuple[object, object, object]]:
    jobs = [service.wait_end(job_id) for job_id in ids]
    return [(job["state"], job["signal"], job["outcome"].get("reason")) for job in jobs]


def test_a_launcher_that_is_stopped_comes_back(service):
    ids = service.running("alice")
    before = main_pid("drfd-launcher")
    run("systemctl", "stop", "drfd-launcher")
    wait_for("another launcher", lambda: main_pid("drfd-launcher") not in (0, before))
    service.await_answer()
    assert service.show(ids[0])["state"] == "RUNNING"


@pytest.mark.parametrize("drop_in", [LAUNCHER], indirect=True)
def test_while_it_is_away_nobody_waits_for_it_and_everybody_is_told(service, drop_in):
    """The commands hung for ever, or said that it was done; drf status said nothing."""
    ids = service.running("alice", "bob")
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
    assert away in said and "the request is stored, and carried out when it is back" in said
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
def test_what_holds_the_jobs_refuses_to_be_stopped_by_hand(service, name):
    """The slice did not, and its stop ended all jobs."""
    ids = service.running("alice")
    done = run("systemctl", "stop", name, check=False)
    assert done.returncode != 0 and "refused" in done.stderr
    assert service.show(ids[0])["state"] == "RUNNING"


@pytest.mark.parametrize("drop_in", [SLICE], indirect=True)
def test_jobs_that_systemd_has_stopped_are_lost_and_all_runs_again(service, drop_in):
    """The launcher stayed away, and the books said RUNNING until somebody started it."""
    ids = service.running("alice", "bob")
    run("systemctl", "stop", "drfd.slice")
    assert ends(service, ids) == [("LOST", None, "JOBS_STOPPED")] * 2
    service.await_answer()
    assert service.wait_end(service.submit("carol", "true"))["state"] == "COMPLETED"
    service.await_units()


def test_jobs_that_were_killed_with_their_unit_say_by_which_signal(service):
    ids = service.running("alice", "bob")
    done = run("systemctl", "kill", "--signal=KILL", "drfd.slice", check=False)
    # It has signalled all, but says so if a killed job's cgroup goes while it looks for more there.
    assert done.returncode == 0 or "No such device" in done.stderr
    assert ends(service, ids) == [("FAILED", 9, None)] * 2
    service.await_answer()
    assert service.wait_end(service.submit("carol", "true"))["state"] == "COMPLETED"


def test_jobs_whose_runners_were_killed_say_so(service):
    ids = service.running("alice", "bob")
    pids = [pid for job_id in ids for pid in pids_in(service.show(job_id))]
    run("systemctl", "kill", "--signal=KILL", "drfd-launcher")
    assert ends(service, ids) == [("LOST", None, "RUNNER_KILLED")] * 2
    assert [is_alive(pid) for pid in pids] == [False] * len(pids)


def test_a_wrong_configuration_is_refused_and_the_units_log_names_it(service):
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


# -- blows, and an upgrade ------------------------------------------------------------------------

#: With one core in twenty each, they fit.
JOBS = 20
NEWER = Path("/srv/newer")


def kill(*names: str) -> None:
    """And wait until systemd has started others."""
    before = {name: main_pid(name) for name in names}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    for name, pid in before.items():
        wait_for(f"another {name}", lambda name=name, pid=pid: main_pid(name) not in (0, pid))


def restart(installed: Installed) -> None:
    run("systemctl", "restart", "drfd-launcher", "drfd")


def reload_systemd(installed: Installed) -> None:
    run("systemctl", "daemon-reload")


def upgrade(installed: Installed) -> None:
    """To a version of its own, from a wheel, without a network."""
    before = {name: main_pid(name) for name in ("drfd", "drfd-launcher", "drfd-jobs")}
    (wheel,) = NEWER.glob("drfd-*.whl")
    run("pip", "--python", BIN / "python", "install", "-q", "--no-deps", "--no-index", wheel)
    said = run(BIN / "drfd", "install").stdout
    assert [line for line in said.splitlines() if "restart" in line] == [
        "run systemctl restart drfd-launcher.service",
        "run systemctl try-restart drfd-slurm-root.service drfd-slurm-launcher.service",
        "run systemctl restart drfd.service",
    ]
    after = {name: main_pid(name) for name in before}
    assert {name for name in before if before[name] == after[name]} == {"drfd-jobs"}


def kill_controller(installed: Installed) -> None:
    kill("drfd")


def kill_launcher(installed: Installed) -> None:
    kill("drfd-launcher")


def kill_both(installed: Installed) -> None:
    kill("drfd", "drfd-launcher")


BLOWS = [kill_controller, kill_launcher, kill_both, restart, reload_systemd, upgrade]


@dataclass
class Twenty:
    """Jobs of three users that run, how each will end, and what the kernel has of them."""

    service: Installed
    ids: list[int]
    gate: Path
    confined: dict[int, dict[str, object]]

    def seen(self) -> dict[int, dict[str, object]]:
        return {job_id: confinement(self.service.show(job_id)) for job_id in self.ids}


@pytest.fixture(scope="module")
def twenty(installed) -> Iterator[Twenty]:
    """They live through all the tests here, one after the other."""
    gate = Path("/run/gate-of-twenty")
    ids = [
        installed.submit(
            USERS[number % 3], *gated(gate, f"exit {number}"), demand=demand(io_bps=1 << 20)
        )
        for number in range(JOBS)
    ]
    for job_id in ids:
        installed.wait_state(job_id, "RUNNING")
    living = Twenty(installed, ids, gate, {})
    wait_for("their first words", lambda: all(map(installed.output, ids)))
    # The sleep that each is in may end at any time: of its processes only the first one counts.
    living.confined = living.seen()
    yield living
    gate.unlink(missing_ok=True)


def limits_of(confined: dict[int, dict[str, object]]) -> dict[int, dict[str, object]]:
    """By job: all but its processes."""
    return {
        job_id: {name: value for name, value in facts.items() if name != "pids"}
        for job_id, facts in confined.items()
    }


@pytest.mark.parametrize("blow", BLOWS)
def test_jobs_and_their_limits_live_through(twenty, blow):
    service = twenty.service
    blow(service)
    service.await_answer()
    jobs = [service.show(job_id) for job_id in twenty.ids]
    assert {(job["state"], job["attempt"]) for job in jobs} == {("RUNNING", 1)}
    seen = twenty.seen()
    assert limits_of(seen) == limits_of(twenty.confined)
    assert all("rbps=1048576 wbps=1048576" in str(facts["io.max"]) for facts in seen.values())
    for job_id, facts in seen.items():
        pids = facts["pids"]
        assert isinstance(pids, list) and int(service.output(job_id)) in pids
    # And new ones start.
    assert service.wait_end(service.submit("bob", "true"))["state"] == "COMPLETED"


def test_the_new_version_is_what_runs(twenty):
    """After the upgrade."""
    (wheel,) = NEWER.glob("drfd-*.whl")
    version = wheel.name.split("-")[1]
    assert version in twenty.service.login("alice", "drf doctor --json")
    assert version in twenty.service.login("alice", "drf --version")


def test_an_end_while_both_are_stopped_is_known_afterwards(twenty):
    service = twenty.service
    gate = Path("/run/gate-of-one")
    job_id = service.submit("carol", *gated(gate, "exit 77"))
    service.wait_state(job_id, "RUNNING")
    run("systemctl", "stop", "drfd", "drfd-launcher")
    assert unit("drfd-jobs", "ActiveState") == {"ActiveState": "active"}
    gate.touch()
    record = Path(f"/var/lib/drfd/launcher/attempts/{job_id}.1")
    wait_for("the record of its end", lambda: '"exited"' in record.read_text())
    gate.unlink()
    back_s = time.time()
    service.start()
    job = service.wait_end(job_id)
    assert (job["state"], job["exit_code"]) == ("FAILED", 77)
    assert job["ended_at"] < back_s, "its own end, not ours"


def test_no_exit_code_is_lost_and_none_has_run_twice(twenty):
    """After all that."""
    twenty.gate.touch()
    jobs = [twenty.service.wait_end(job_id) for job_id in twenty.ids]
    assert [job["exit_code"] for job in jobs] == list(range(JOBS))
    assert [job["attempt"] for job in jobs] == [1] * JOBS
    assert [len(twenty.service.output(job_id).split()) for job_id in twenty.ids] == [1] * JOBS
