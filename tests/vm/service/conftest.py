"""Tests of the installed service: they run in the guest, as root, and nowhere else.

`tests/vm/test_service.py` boots the guest for them, and says which boot runs which modules.
"""

import os
from collections.abc import Iterator

import pytest

from vm.service.installed import USERS, Installed

collect_ignore_glob = [] if "DRFD_VM_BOOT" in os.environ else ["test_*"]


@pytest.fixture(scope="session")
def installed() -> Installed:
    """It has been installed by the script that runs these tests, or has come up at the boot."""
    found = Installed()
    found.await_answer()
    return found


@pytest.fixture
def service(installed) -> Iterator[Installed]:
    """With nobody's jobs, before and after."""
    yield installed
    installed.start()
    for user in USERS:
        installed.as_user(user, "cancel", select={"everything": True})
    installed.await_no_jobs()
