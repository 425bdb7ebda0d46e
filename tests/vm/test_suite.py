"""The project's own tests pass in the guest, installed from wheels: as root and as a user.

As root, those of marker `system` prove there that limits are kept by cgroup v2.
"""

from __future__ import annotations

import json
import shlex
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from vm.rig import IS_FULL, ROOT, Guest

pytestmark = pytest.mark.vm

TESTS = ROOT / "tests"
PYTHON = "/opt/drfd/bin/python"
RESULTS = "/tmp/results"

#: User → end-to-end tests. All of them would take an hour on emulated processors, so the users
#: get those that depend on what they are: a log-in session, cgroups, runners that outlive drfd.
_CELL = "tests/torture/test_crash_matrix.py::test_every_promise_holds_when"
_CELLS = [
    f"{_CELL}[submit-launch.before-cgroup-launcher]",
    f"{_CELL}[submit-runner.after-running-record-machine]",
    f"{_CELL}[run-freeze.before-report-launcher]",
    f"{_CELL}[clean-notifier.after-mark-itself]",
]
E2E = {
    "root": [
        "tests/e2e/test_restart.py::test_jobs_of_every_kind_come_through[kill_both]",
        "tests/e2e/test_crash.py::test_a_runner_dies_at[runner.after-exec]",
        *_CELLS,
    ],
    "alice": [
        "tests/e2e/test_own_daemon.py::test_the_first_command_starts_it_and_says_so",
        "tests/e2e/test_fairness.py::test_table_1_of_the_paper",
        "tests/e2e/test_restart.py::test_jobs_of_every_kind_come_through[kill_both]",
        "tests/e2e/test_crash.py::test_a_runner_dies_at[runner.after-exec]",
        *_CELLS,
    ],
}
if IS_FULL:
    E2E = {user: ["tests/e2e", "tests/torture/test_crash_matrix.py"] for user in E2E}

#: What whoever has no cgroups skips with reason begins so.
NEEDS_CGROUPS = (
    "tests.torture.test_crash_matrix.test_every_promise_holds_when[submit-launch.before-limits-"
)

#: What is only run when asked for.
LONG = {"tests.e2e.test_demo_paper.test_figure_9_drf_is_better_than_slots"}

DOCTOR = """
from instance import Instance
instance = Instance()
try:
    print(instance.start().drf("doctor", "--json").stdout)
finally:
    instance.destroy()
"""

PRINT_RESULTS = f"""
import json, pathlib
results = pathlib.Path({RESULTS!r}).iterdir()
print(json.dumps({{file.name: file.read_text() for file in results}}))
"""


@dataclass(frozen=True)
class Outcome:
    """What pytest has said of one user's tests; tests by module and name."""

    status: int
    text: str
    passed: frozenset[str]
    skipped: frozenset[str]


@dataclass(frozen=True)
class Suite:
    #: As `drf doctor` of root's private instance says.
    enforcement: str
    root: Outcome
    alice: Outcome


@pytest.fixture(scope="module")
def suite(drfd_guest: Guest, notes: list[str]) -> Suite:
    """Both users' tests, run at a time: one for each of the guest's processors."""
    # The tests alone: what they test is the package that was installed.
    copy = {TESTS: "/srv/drfd/tests", ROOT / "pyproject.toml": "/srv/drfd/pyproject.toml"}
    timeout_s = 7200 if IS_FULL else 1800
    done = drfd_guest.run(["bash", "-c", script()], timeout_s=timeout_s, copy=copy).check()
    files = json.loads(done.stdout)
    outcomes = {user: read_outcome(files, user) for user in ("root", "alice")}
    enforcement = json.loads(files["doctor"])["enforcement"]
    notes.append(f"enforcement by {enforcement}")
    for user, outcome in outcomes.items():
        notes.append(f"{user}'s tests: {outcome.text.splitlines()[-1].strip(' =')}")
    return Suite(enforcement, **outcomes)


def script() -> str:
    alice = f"cd /srv/drfd && {pytest_command('alice', E2E['alice'])}"
    return f"""
        cd /srv/drfd
        chmod -R a+rX .
        install -d -m 1777 {RESULTS}
        export DRFD_TEST_PATIENCE=10
        su -l alice -w DRFD_TEST_PATIENCE -c {shlex.quote(alice)} &
        PYTHONPATH=tests {PYTHON} -c {shlex.quote(DOCTOR)} >{RESULTS}/doctor
        {pytest_command("root", [*system_tests(), *E2E["root"]])}
        wait
        {PYTHON} -c {shlex.quote(PRINT_RESULTS)}
    """


def pytest_command(user: str, tests: list[str]) -> str:
    """A command that leaves what pytest says in files of the user's; standard error shows it, too,
    for the case of a time-out."""
    words = [PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    words += [f"--junitxml={RESULTS}/{user}.xml", *tests]
    run = f"{{ {shlex.join(words)}; echo $? >{RESULTS}/{user}.status; }}"
    return f"{run} 2>&1 | tee {RESULTS}/{user}.text | sed -u 's/^/{user}: /' >&2"


def system_tests() -> list[str]:
    """Modules with tests of marker `system`, found without importing them in the guest."""
    files = sorted(TESTS.rglob("test_*.py"))
    marked = [file for file in files if "pytest.mark.system" in file.read_text()]
    return [str(file.relative_to(ROOT)) for file in marked if file != Path(__file__)]


def read_outcome(files: dict[str, str], user: str) -> Outcome:
    cases = list(ET.fromstring(files[f"{user}.xml"]).iter("testcase"))
    skipped = {name_of(case) for case in cases if case.find("skipped") is not None}
    return Outcome(
        status=int(files[f"{user}.status"]),
        text=files[f"{user}.text"],
        passed=frozenset({name_of(case) for case in cases if len(case) == 0}),
        skipped=frozenset(skipped),
    )


def name_of(case: ET.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


@pytest.mark.parametrize("user", ["root", "alice"])
def test_the_end_to_end_tests_pass_as(suite: Suite, user: str) -> None:
    outcome: Outcome = getattr(suite, user)
    assert outcome.status == 0, outcome.text
    rooms = ("tests.e2e.", "tests.torture.")
    ran = {name for name in outcome.passed if name.startswith(rooms)}
    assert len(ran) >= len(E2E[user])
    skipped = {name for name in outcome.skipped if name.startswith(rooms)} - LONG
    assert all(name.startswith(NEEDS_CGROUPS) for name in skipped)


def test_the_system_tests_pass_by_cgroup_v2(suite: Suite) -> None:
    """All of them: what is skipped proves nothing."""
    if find_spec("drfd.launcher.cgroup_v2") is None:
        pytest.skip("drfd has no cgroup v2 backend (drfd/launcher/cgroup_v2.py) yet")
    assert suite.enforcement == "cgroup-v2"
    assert suite.root.status == 0, suite.root.text
    assert not suite.root.skipped, suite.root.text
    assert len({name for name in suite.root.passed if name.startswith("tests.system.")}) >= 20
