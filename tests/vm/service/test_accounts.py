"""What a boot finds of the jobs that the one before has left: the second comes after a reboot in
order, the third after the power was cut just when the last job had been acknowledged."""

from __future__ import annotations

import os

from vm.service.installed import UNITS, journal, left, unit

#: By boot: why the jobs that ran are lost, and what they could say.
LOST = {"2": ("MACHINE_SHUTDOWN", ["ready", "term", "end"]), "3": ("MACHINE_CRASH", ["ready"])}
REASON, SAID = LOST[os.environ["DRFD_VM_BOOT"]]


def test_the_services_have_come_up_by_themselves(installed):
    installed.await_units()
    found = [unit(name, "NRestarts") for name in UNITS]
    assert found == [{"NRestarts": "0"}] * 3, journal("drfd*")


def test_every_job_is_accounted_for(installed):
    """Those that ran are lost or were tried again; those that waited have run in order."""
    jobs = left()
    for job_id in jobs["running"]:
        job = installed.wait_end(job_id)
        assert (job["state"], job["exit_code"], job["attempt"]) == ("LOST", None, 1)
        assert job["outcome"]["reason"] == REASON
    again = installed.wait_end(jobs["retried"])
    assert (again["state"], again["attempt"]) == ("COMPLETED", 2)
    ended = [installed.wait_end(job_id) for job_id in jobs["waiting"]]
    assert [(job["state"], job["attempt"]) for job in ended] == [("COMPLETED", 1)] * len(ended)
    order = (installed.work("bob") / "order").read_text().split()
    assert list(map(int, order)) == jobs["waiting"]
    assert installed.live() == []


def test_running_jobs_were_told_and_had_their_time_if_there_was_any(installed):
    """One that says good-bye with status 0 has still been cut short."""
    said = [installed.output(job_id).split() for job_id in left()["running"]]
    assert said == [SAID] * len(said)
