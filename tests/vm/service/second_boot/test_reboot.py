"""After a reboot in order, with jobs that ran and jobs that waited."""

from __future__ import annotations

from vm.service.accounted import check_accounts, check_services
from vm.service.installed import Installed
from vm.service.leave import left


def test_the_services_have_come_up_by_themselves(installed: Installed) -> None:
    check_services(installed)


def test_every_job_is_accounted_for(installed: Installed) -> None:
    """Also that it was a shutdown in order that cut those short that ran."""
    check_accounts(installed, "MACHINE_SHUTDOWN")


def test_running_jobs_were_told_and_had_their_time(installed: Installed) -> None:
    """One that says good-bye with status 0 has still been cut short."""
    said = [installed.output(job_id).split() for job_id in left()["running"]]
    assert said == [["ready", "term", "end"]] * len(said)
