"""Nothing that happens to the services happens to the jobs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from instance import wait_for
from vm.service.installed import (
    BIN,
    USERS,
    Installed,
    confinement,
    demand,
    gated,
    main_pid,
    run,
    unit,
)  # fmt: skip

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
    assert [line for line in said.splitlines() if line.startswith("run ")] == [
        "run systemctl restart drfd-launcher.service",
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
def twenty(installed: Installed) -> Iterator[Twenty]:
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
def test_jobs_and_their_limits_live_through(
    twenty: Twenty, blow: Callable[[Installed], None]
) -> None:
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


def test_the_new_version_is_what_runs(twenty: Twenty) -> None:
    """After the upgrade."""
    (wheel,) = NEWER.glob("drfd-*.whl")
    version = wheel.name.split("-")[1]
    assert version in twenty.service.login("alice", "drf doctor --json")
    assert version in twenty.service.login("alice", "drf --version")


def test_an_end_while_both_are_stopped_is_known_afterwards(twenty: Twenty) -> None:
    service = twenty.service
    gate = Path("/run/gate-of-one")
    job_id = service.submit("carol", *gated(gate, "exit 77"))
    service.wait_state(job_id, "RUNNING")
    run("systemctl", "stop", "drfd", "drfd-launcher")
    assert unit("drfd-jobs", "ActiveState") == {"ActiveState": "active"}
    gate.touch()
    record = Path(f"/var/lib/drfd/launcher/attempts/{job_id}.1")
    wait_for("the record of its end", lambda: '"ended"' in record.read_text())
    gate.unlink()
    back_s = time.time()
    service.start()
    job = service.wait_end(job_id)
    assert (job["state"], job["exit_code"]) == ("FAILED", 77)
    assert job["ended_at"] < back_s, "its own end, not ours"


def test_no_exit_code_is_lost_and_none_has_run_twice(twenty: Twenty) -> None:
    """After all that."""
    twenty.gate.touch()
    jobs = [twenty.service.wait_end(job_id) for job_id in twenty.ids]
    assert [job["exit_code"] for job in jobs] == list(range(JOBS))
    assert [job["attempt"] for job in jobs] == [1] * JOBS
    assert [len(twenty.service.output(job_id).split()) for job_id in twenty.ids] == [1] * JOBS
