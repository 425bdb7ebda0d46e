"""Stopping: the service, the launching of new jobs, and the jobs themselves."""

from __future__ import annotations

import json

from instance import wait_for
from vm.service.installed import BIN, Installed, confinement, run, unit


def test_stopping_the_service_leaves_jobs_running(service: Installed) -> None:
    job_id = service.submit("alice", "sleep", "1000")
    job = service.wait_state(job_id, "RUNNING")
    before = confinement(job)
    run("systemctl", "stop", "drfd")
    said = service.login("alice", "drf status", check=False)
    assert "no drfd answers" in said
    assert confinement(job) == before
    service.start()
    assert service.show(job_id)["state"] == "RUNNING"


def test_the_unit_that_holds_the_jobs_refuses_to_be_stopped_by_hand(service: Installed) -> None:
    job_id = service.submit("alice", "sleep", "1000")
    service.wait_state(job_id, "RUNNING")
    done = run("systemctl", "stop", "drfd-jobs", check=False)
    assert done.returncode != 0 and "refused" in done.stderr
    assert service.show(job_id)["state"] == "RUNNING"


def test_while_it_drains_nothing_starts_and_what_runs_goes_on(service: Installed) -> None:
    running = service.submit("alice", "sleep", "1000")
    service.wait_state(running, "RUNNING")
    refused = service.login("alice", "drf drain; echo $?", check=False)
    assert refused.split()[0] == "77"
    run(BIN / "drf", "drain")
    try:
        waiting = service.submit("bob", "true")
        assert service.show(waiting)["reason"]["code"] == "DRAINING"
        # It is still so after a restart.
        run("systemctl", "restart", "drfd")
        service.await_answer()
        assert json.loads(run(BIN / "drf", "status", "--json").stdout)["draining"] is True
        states = [service.show(job_id)["state"] for job_id in (running, waiting)]
        assert states == ["RUNNING", "PENDING"]
    finally:
        run(BIN / "drf", "undrain")
    assert service.wait_end(waiting)["state"] == "COMPLETED"


def test_a_shutdown_that_kills_ends_every_job_and_then_the_service(service: Installed) -> None:
    ids = [service.submit(user, "sleep", "1000") for user in ("alice", "bob")]
    for job_id in ids:
        service.wait_state(job_id, "RUNNING")
    run(BIN / "drf", "shutdown", "--kill-jobs")
    wait_for("the end", lambda: unit("drfd", "ActiveState") == {"ActiveState": "inactive"})
    service.start()
    ended = [service.show(job_id) for job_id in ids]
    assert [(job["state"], job["signal"]) for job in ended] == [("CANCELLED", 15)] * 2
    waiting = service.submit("carol", "true")
    assert service.show(waiting)["reason"]["code"] == "DRAINING"
    run(BIN / "drf", "undrain")
    assert service.wait_end(waiting)["state"] == "COMPLETED"
