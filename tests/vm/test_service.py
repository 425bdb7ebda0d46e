"""The installed service: its own tests (`service/`) pass in the guest, over three boots.

Between them the guest reboots in order and has its power cut, each time with jobs running. A few of
the system tests, whose daemons are their own, run in the first boot, so that every mechanism of
cgroup v2 is proved by its effect.
"""

from __future__ import annotations

import json
import shlex
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pytest

from vm.rig import ROOT, Guest

pytestmark = pytest.mark.vm

TESTS = ROOT / "tests"
PYTHON = "/opt/drfd/bin/python"
HERE = "tests/vm/service"
#: Kept over the boots.
RESULTS = "/var/tmp/results"

#: Boot → modules, in the order in which they run.
BOOTS = {
    "first": ["install", "identity", "limits", "escape", "sandbox", "stop", "away", "restart"],
    "second": ["reboot"],
    "third": ["power_cut", "uninstall"],
}
MODULES = [f"{HERE}/{boot}_boot/test_{name}.py" for boot, names in BOOTS.items() for name in names]

_FIRST, _SYSTEM = f"{HERE}/first_boot/test_", "tests/system/test_"
_LIMITS = f"{_FIRST}limits.py::test_"
#: Mechanism of cgroup v2 → the test that proves it by its effect.
MECHANISMS = {
    "memory": f"{_LIMITS}a_job_out_of_memory_dies_whole_and_alone",
    "swap": f"{_LIMITS}a_job_has_no_swap_beyond_its_memory",
    "quota of cores": f"{_LIMITS}half_a_core_is_half_a_core",
    "weight of cores": f"{_SYSTEM}cores.py::"
    "test_two_jobs_that_want_one_cpu_share_it_as_they_have_declared",
    "disk rates": f"{_LIMITS}disk_rates_hold_for_direct_and_buffered_transfers",
    "number of processes": f"{_LIMITS}the_number_of_processes_is_what_the_reload_has_set",
    "devices": f"{_SYSTEM}devices.py::test_a_job_can_open_all_but_what_is_hidden_from_it[user]",
    "freezing": f"{_SYSTEM}suspend.py::"
    "test_a_suspended_job_takes_no_time_keeps_its_memory_and_does_not_notice",
    "killing": f"{_SYSTEM}enforcement.py::test_a_bomb_that_forks_for_ever_is_killed_whole",
    "delegation": f"{_SYSTEM}unified.py::test_a_lingering_user_has_limits_enforced",
    "restart": f"{_FIRST}restart.py::test_jobs_and_their_limits_live_through[restart]",
    "reboot": f"{HERE}/second_boot/test_reboot.py::test_every_job_is_accounted_for",
}

PRINT_RESULTS = f"""
import json, pathlib
results = pathlib.Path({RESULTS!r}).iterdir()
print(json.dumps({{file.name: file.read_text() for file in results}}))
"""


@dataclass(frozen=True)
class Ran:
    #: What pytest has said, boot by boot.
    text: str
    #: Module → test → what went wrong with it; "": nothing.
    tests: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def ran(drfd_guest: Guest, newer: Path, notes: list[str]) -> Ran:
    copy = {
        TESTS: "/srv/drfd/tests",
        ROOT / "pyproject.toml": "/srv/drfd/pyproject.toml",
        newer: "/srv/newer",
    }
    done = drfd_guest.run(
        ["bash", "-c", script()], timeout_s=7200, copy=copy, env={"DRFD_TEST_PATIENCE": "3"}
    ).check()
    files = json.loads(done.stdout)
    text = "\n".join(files[f"{boot}.text"] for boot in BOOTS)
    found: dict[str, dict[str, str]] = {}
    for boot in BOOTS:
        notes.append(f"{boot} boot: {files[f'{boot}.text'].splitlines()[-1].strip(' =')}")
        for case in ET.fromstring(files[f"{boot}.xml"]).iter("testcase"):
            module = case.get("classname", "")
            wrong = "".join(f"{each.get('message')}\n{each.text}" for each in case)
            found.setdefault(module, {})[case.get("name", "")] = wrong
    return Ran(text, found)


def script() -> str:
    return f"""
        case $DRFD_VM_BOOT in
        1)
            chmod -R a+rX /srv
            mkdir {RESULTS}
            groupadd lab
            usermod -aG lab alice
            cd /srv/drfd
            export PYTHONPATH=tests
            {PYTHON} {HERE}/files.py
            umask 077
            /opt/drfd/bin/drfd install >&2 || {{ journalctl -b -n 100 >&2; exit 1; }}
            umask 022
            {pytest_command("first")}
            {PYTHON} {HERE}/leave.py
            systemctl reboot
            # The system's end ends it: until then this is not over.
            sleep 600
            ;;
        2)
            cd /srv/drfd
            export PYTHONPATH=tests
            {pytest_command("second")}
            sync
            {PYTHON} {HERE}/leave.py cut
            ;;
        3)
            cd /srv/drfd
            {pytest_command("third")}
            {PYTHON} -c {shlex.quote(PRINT_RESULTS)}
            ;;
        esac
    """


def pytest_command(boot: str) -> str:
    """Leaves what pytest says in files; standard error shows it, too, for a time-out."""
    tests = [f"{HERE}/{boot}_boot/test_{name}.py" for name in BOOTS[boot]]
    if boot == "first":
        tests += [test for test in MECHANISMS.values() if test.startswith(_SYSTEM)]
    words = ["-vv", "-p", "no:cacheprovider", "--durations=25", f"--junitxml={RESULTS}/{boot}.xml"]
    run = shlex.join([PYTHON, "-m", "pytest", *words, *tests])
    return f"{run} 2>&1 | tee {RESULTS}/{boot}.text >&2"


@pytest.mark.parametrize("module", MODULES)
def test_in_the_guest_all_is_well_with(ran: Ran, module: str) -> None:
    """What is skipped proves nothing."""
    tests = ran.tests.get(room_of(module))
    assert tests, ran.text
    wrong = {name: text for name, text in tests.items() if text}
    assert not wrong, "\n".join(f"{name}:\n{text}" for name, text in wrong.items())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_cgroup_v2_has_its_effect_by(ran: Ran, mechanism: str) -> None:
    module, _, name = MECHANISMS[mechanism].partition("::")
    assert ran.tests[room_of(module)][name] == ""


def room_of(module: str) -> str:
    """As pytest names it in its report."""
    return module.removesuffix(".py").replace("/", ".")
