"""The installed service: its own tests (`service/`) pass in the guest, over three boots.

Between them the guest reboots in order and has its power cut, each time with jobs running.
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
MODULES = [f"{boot}_boot.test_{name}" for boot, names in BOOTS.items() for name in names]

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
            module = case.get("classname", "").removeprefix("tests.vm.service.")
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
    modules = " ".join(f"{HERE}/{boot}_boot/test_{name}.py" for name in BOOTS[boot])
    run = f"{PYTHON} -m pytest -vv -p no:cacheprovider --junitxml={RESULTS}/{boot}.xml {modules}"
    return f"{run} 2>&1 | tee {RESULTS}/{boot}.text >&2"


@pytest.mark.parametrize("module", MODULES)
def test_in_the_guest_all_is_well_with(ran: Ran, module: str) -> None:
    """What is skipped proves nothing."""
    tests = ran.tests.get(module)
    assert tests, ran.text
    wrong = {name: text for name, text in tests.items() if text}
    assert not wrong, "\n".join(f"{name}:\n{text}" for name, text in wrong.items())
