"""The installed service: its own tests (`service/`) pass in the guest, over three boots.

Between them the guest reboots in order and has its power cut, each time with jobs running. A few of
the system tests, whose daemons are their own, run in the first boot, so that every mechanism of
cgroup v2 is proved by its effect.
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

_OWN, _SYSTEM = "tests/vm/service/test_", "tests/system/test_"
#: Mechanism of cgroup v2 → the test that proves it by its effect.
MECHANISMS = {
    "memory": f"{_OWN}limits.py::test_a_job_out_of_memory_dies_whole_and_alone",
    "swap": f"{_OWN}limits.py::test_a_job_has_no_swap_beyond_its_memory",
    "quota of cores": f"{_SYSTEM}enforcement.py::test_a_tenth_of_a_core_is_a_tenth_of_a_core",
    "weight of cores": f"{_SYSTEM}cores.py::"
    "test_two_jobs_that_want_one_cpu_share_it_as_they_have_declared",
    "disk rates": f"{_SYSTEM}enforcement.py::test_disk_bandwidth_is_what_was_declared[write]",
    "processes": f"{_OWN}limits.py::test_the_number_of_processes_is_what_the_reload_has_set",
    "devices": f"{_SYSTEM}devices.py::test_no_way_of_a_user_leads_to_a_hidden_device[0-ways0]",
    "freezing": f"{_SYSTEM}suspend.py::"
    "test_a_suspended_job_takes_no_time_keeps_its_memory_and_does_not_notice",
    "killing": f"{_SYSTEM}enforcement.py::test_a_bomb_that_forks_for_ever_is_killed_whole",
    "delegation": f"{_SYSTEM}unified.py::test_a_lingering_user_has_limits_enforced",
    "restart": f"{_OWN}restart.py::test_jobs_and_their_limits_live_through[restart]",
    "reboot": f"{_OWN}accounts.py::test_every_job_is_accounted_for",
}
#: What each boot runs, in this order.
BOOTS = {
    "first": [
        *(f"{_OWN}{name}.py" for name in ("install", "limits", "restart")),
        *(test for test in MECHANISMS.values() if test.startswith(_SYSTEM)),
    ],
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


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_cgroup_v2_has_its_effect_by(ran, mechanism):
    module, _, name = MECHANISMS[mechanism].partition("::")
    assert any(f"{module_of(module)}{name}" in outcome.passed for outcome in ran.values())
