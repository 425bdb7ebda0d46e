"""The installed service: its own tests (`service/`) pass in the guest, over three boots.

Between them the guest reboots in order and has its power cut, each time with jobs running.
"""

import json

import pytest

from vm.rig import (
    COPY,
    PRINT_RESULTS,
    PYTHON,
    RESULTS,
    Outcome,
    module_of,
    pytest_command,
    read_outcome,
)

pytestmark = pytest.mark.vm

CONFIG = "/etc/drfd/drfd.toml"

_OWN = "tests/vm/service/test_"
#: What each boot runs, in this order.
BOOTS = {
    "first": [f"{_OWN}{name}.py" for name in ("install", "limits", "restart")],
    "second": [f"{_OWN}accounts.py"],
    "third": [f"{_OWN}accounts.py", f"{_OWN}uninstall.py"],
}

SCRIPT = f"""
cd /srv/drfd
export PYTHONPATH=tests
installed="{PYTHON} tests/vm/service/installed.py"
case $DRFD_VM_BOOT in
1)
    chmod -R a+rX /srv
    mkdir {RESULTS}
    groupadd lab
    usermod -aG lab alice
    $installed files
    umask 077
    /opt/drfd/bin/drfd install >&2 || {{ journalctl -b -n 100 >&2; exit 1; }}
    umask 022
    # What the tests themselves use, on emulated processors, is a load that jobs would wait for.
    sed -i 's/^# respect_external_load = true/respect_external_load = "memory"/' {CONFIG}
    systemctl reload drfd
    {pytest_command("first", BOOTS["first"])}
    $installed leave
    systemctl reboot
    # The system's end ends it: until then this is not over.
    sleep 600
    ;;
2)
    {pytest_command("second", BOOTS["second"])}
    sync
    $installed cut
    ;;
3)
    {pytest_command("third", BOOTS["third"])}
    {PRINT_RESULTS}
    ;;
esac
"""


@pytest.fixture(scope="module")
def ran(drfd_guest, newer, notes) -> dict[str, Outcome]:
    """By boot."""
    done = drfd_guest.run(
        ["bash", "-c", SCRIPT],
        timeout_s=7200,
        copy={**COPY, newer: "/srv/newer"},
        env={"DRFD_TEST_PATIENCE": "3"},
    ).check()
    files = json.loads(done.stdout)
    outcomes = {boot: read_outcome(files, boot) for boot in BOOTS}
    for boot, outcome in outcomes.items():
        notes.append(f"{boot} boot: {outcome.in_short}")
    return outcomes


@pytest.mark.parametrize("boot", BOOTS)
def test_all_is_well_in_the_boot(ran, boot):
    """What is skipped proves nothing."""
    assert ran[boot].status == 0, ran[boot].trouble
    assert ran[boot].skipped == set(), ran[boot].text
    for module in map(module_of, BOOTS[boot]):
        assert any(name.startswith(module) for name in ran[boot].passed), module
