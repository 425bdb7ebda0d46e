"""After the power was cut just when the last job had been acknowledged."""

from __future__ import annotations

from vm.service.accounted import check_accounts, check_services
from vm.service.installed import Installed


def test_the_services_have_come_up_by_themselves(installed: Installed) -> None:
    check_services(installed)


def test_every_job_is_accounted_for(installed: Installed) -> None:
    """Also that no shutdown in order has cut those short that ran."""
    check_accounts(installed, "MACHINE_CRASH")
