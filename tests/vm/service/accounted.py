"""What a boot finds of the jobs that the one before has left."""

from __future__ import annotations

from instance import wait_for
from vm.service.installed import Installed, journal, unit
from vm.service.leave import left


def check_accounts(installed: Installed, reason: str) -> None:
    """Those that ran are lost for this reason, and nobody says that they ended well, or have been
    tried again if that was wished for; those that waited have run, once each, in their order."""
    jobs = left()
    for job_id in jobs["running"]:
        job = installed.wait_end(job_id)
        assert (job["state"], job["exit_code"], job["attempt"]) == ("LOST", None, 1)
        assert job["outcome"]["reason"] == reason
    again = installed.wait_end(jobs["retried"])
    assert (again["state"], again["attempt"]) == ("COMPLETED", 2)
    ended = [installed.wait_end(job_id) for job_id in jobs["waiting"]]
    assert [(job["state"], job["attempt"]) for job in ended] == [("COMPLETED", 1)] * len(ended)
    order = (installed.work("bob") / "order").read_text().split()
    assert list(map(int, order)) == jobs["waiting"]
    assert installed.live() == []


def check_services(installed: Installed) -> None:
    installed.await_answer()
    for name in ("drfd-jobs", "drfd-launcher", "drfd"):
        # They answer a moment before systemd knows that they are ready.
        wait_for(
            f"{name} to be active",
            lambda name=name: unit(name, "ActiveState") == {"ActiveState": "active"},
            show=lambda: journal("drfd*"),
        )
        found = unit(name, "ActiveState", "NRestarts")
        assert found == {"ActiveState": "active", "NRestarts": "0"}
