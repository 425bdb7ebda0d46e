"""The project's own tests pass in the guest, installed from wheels: as root and as a user.

As root, those of marker `system` prove there that limits are kept by cgroup v2.
"""

import json
import shlex
from dataclasses import dataclass

import pytest

from failing import VARIABLE
from instance import compiled_starter
from torture.test_crash_matrix import REACHED, Cell, cell_id
from torture.victims import VICTIMS
from vm.rig import (
    COPY,
    IS_FULL,
    PATIENCE,
    PRINT_RESULTS,
    PYTHON,
    RESULTS,
    ROOT,
    STARTER,
    Outcome,
    pytest_command,
    read_outcome,
)

SYSTEM_TESTS = {*(ROOT / "tests/system").glob("test_*.py")}
pytestmark = pytest.mark.vm

#: User → end-to-end tests. All of them would take an hour on emulated processors, so the users
#: get those that depend on what they are: a log-in session, cgroups, runners that outlive drfd.
_RESTARTS = [
    "tests/e2e/test_service.py::test_jobs_of_every_kind_come_through[both]",
]
E2E = {
    "root": _RESTARTS,
    "alice": [
        "tests/e2e/test_service.py::test_the_first_command_starts_it_and_says_so",
        *_RESTARTS,
    ],
}
if IS_FULL:
    E2E = {user: ["tests/e2e"] for user in E2E}

#: Of the crash matrix, what differs most on cgroup v2: places half-made, frozen or half-removed,
#: each phase and each who may die. All of it: test_matrix.py.
_FOR_BOTH = [
    Cell("submit", "launch.before-cgroup", "launcher"),
    Cell("submit", "runner.after-launched-record", "machine"),
    Cell("run", "freeze.before-report", "launcher"),
    Cell("clean", "runner.before-exec", "itself"),
]
SLICE = [
    *_FOR_BOTH,
    Cell("submit", "launch.before-limits", "itself"),
    Cell("submit", "launch.before-fork", "controller"),
    Cell("submit", "runner.before-launched-record", "runner"),
    Cell("launch", "launch.after-fork", "daemons"),
    Cell("run", "thaw.before-thaw", "machine"),
    Cell("run", "runner.before-end-record", "power"),
    Cell("stop", "signal.after-signal", "runner"),
    Cell("clean", "remove.before-kill", "itself"),
    Cell("clean", "remove.before-rmdir", "daemons"),
    Cell("clean", "launch.before-fork", "launcher"),
    Cell("reload", "engine.before-effect", "controller"),
    Cell("restart", "serve.before-adoption", "itself"),
    Cell("tell", "engine.some-untold", "controller"),
    Cell("inside", "exec.before-join", "itself"),
    Cell("inside", "exec.after-join", "launcher"),
]
_CELL = "tests/torture/test_crash_matrix.py::test_every_promise_holds_when"
#: For alice, who has no cgroups, and for root.
LOTS = {
    "alice": [f"{_CELL}[{cell_id(cell)}]" for cell in _FOR_BOTH],
    "matrix": [f"{_CELL}[{cell_id(cell)}]" for cell in SLICE],
}

#: System tests that root's lot has besides, so that both of the guest's processors have as much.
_WITH_ROOT = ("exec", "identity", "inheritance", "private_tmp", "shortages")
WITH_ROOT = [f"tests/system/test_{name}.py" for name in _WITH_ROOT]
#: Tests that are not run there. Those of identity need a compiler, which the guest has not; that of
#: hostile users takes long on an emulated processor.
_NOT_THERE = {
    "hostile": ["memory_grows_by_no_more_than_three_times_what_is_charged"],
    "identity": [
        "no_module_of_the_directory_runs_as_root",
        "a_flood_of_uids_that_a_slow_directory_does_not_know_locks_nobody_out",
        "a_directory_that_takes_long_stalls_nobody_but_whom_it_is_asked_about",
        "a_directory_that_does_not_run_means_try_again_and_never_no_account",
        "a_queued_job_waits_for_a_directory_that_does_not_run",
    ],
}
NOT_THERE = [
    f"tests/system/test_{module}.py::test_{name}"
    for module, names in _NOT_THERE.items()
    for name in names
]
#: What keeps jobs of a real Slurm to their limits.
SLURM = "tests/e2e/test_slurm_nodes.py::test_a_job_is_kept_to_its_rate_and_one_without_is_not"
SYSTEM = sorted({str(file.relative_to(ROOT)) for file in SYSTEM_TESTS} - {*WITH_ROOT})
SYSTEM += ["tests/launcher/runner/test_child.py", SLURM]

DOCTOR = """
from instance import Instance
instance = Instance()
try:
    print(instance.start().drf("doctor", "--json").stdout)
finally:
    instance.destroy()
"""


@dataclass(frozen=True)
class Suite:
    #: As `drf doctor` of root's private instance says.
    enforcement: str
    #: Its warnings.
    warnings: str
    #: Most of the system tests.
    system: Outcome
    #: The end-to-end tests of either user; root's with the other system tests.
    root: Outcome
    alice: Outcome
    #: Root's cells of the crash matrix.
    matrix: Outcome


@pytest.fixture(scope="module")
def suite(drfd_guest, notes) -> Suite:
    """The system tests beside the others: one of them for each of the guest's processors."""
    # The guest has no compiler.
    copy = {**COPY, compiled_starter(): STARTER}
    done = drfd_guest.run(["bash", "-c", script()], timeout_s=7200, copy=copy).check()
    files = json.loads(done.stdout)
    outcomes = {lot: read_outcome(files, lot) for lot in ("system", "root", "alice", "matrix")}
    doctor = json.loads(files["doctor"])
    notes.append(f"enforcement by {doctor['enforcement']}")
    for lot, outcome in outcomes.items():
        notes.append(f"tests of {lot}: {outcome.in_short}")
    return Suite(doctor["enforcement"], " ".join(doctor["warnings"]), **outcomes)


def script() -> str:
    alice = [*E2E["alice"], *LOTS["alice"]]
    not_there = [f"--deselect={test}" for test in NOT_THERE]
    alices = f"cd /srv/drfd && {pytest_command('alice', alice)}"
    return f"""
        cd /srv/drfd
        chmod -R a+rX .
        install -d -m 1777 {RESULTS}
        # With the last, cells can be named that are not in the matrix's short form.
        export DRFD_TEST_PATIENCE={PATIENCE} DRFD_TORTURE=1 {VARIABLE}={STARTER}
        {{
            su -l alice -w DRFD_TEST_PATIENCE,DRFD_TORTURE,{VARIABLE} -c {shlex.quote(alices)}
            PYTHONPATH=tests {PYTHON} -c {shlex.quote(DOCTOR)} >{RESULTS}/doctor
            {pytest_command("root", [*E2E["root"], *WITH_ROOT, *not_there])}
            {pytest_command("matrix", LOTS["matrix"])}
        }} &
        {pytest_command("system", ["-m", "system", *SYSTEM, *not_there])}
        wait
        {PRINT_RESULTS}
    """


@pytest.mark.parametrize("user", ["root", "alice"])
def test_the_end_to_end_tests_pass_as(suite, user):
    outcome: Outcome = getattr(suite, user)
    assert outcome.status == 0, outcome.trouble
    rooms = ("tests.e2e.", "tests.torture.")
    ran = {name for name in outcome.passed if name.startswith(rooms)}
    assert len(ran) >= len(E2E[user])
    assert not {name for name in outcome.skipped if name.startswith(rooms)}


def test_every_promise_holds_in_a_slice_of_the_crash_matrix(suite):
    """By cgroup v2, and after reboots that leave no cgroup of systemd's either."""
    assert {cell.phase for cell in SLICE} == {*REACHED}
    assert {cell.victim for cell in SLICE} == {*VICTIMS}
    assert suite.matrix.status == 0, suite.matrix.trouble
    assert len(suite.matrix.passed) == len(SLICE)


def test_the_system_tests_pass_by_cgroup_v2(suite):
    """All that ask for cgroups: what is skipped proves nothing."""
    assert suite.enforcement == "cgroup-v2"
    assert "is moved into its cgroup" not in suite.warnings
    assert suite.system.status == 0, suite.system.trouble
    skipped = suite.system.skipped | suite.root.skipped
    assert not {name for name in skipped if name.startswith("tests.system.")}
    passed = suite.system.passed | suite.root.passed
    rooms = {name.split(".")[2] for name in passed if name.startswith("tests.system.")}
    assert len(rooms) == len(SYSTEM_TESTS)


def test_slurm_keeps_jobs_to_their_limits_by_cgroup_v2(suite):
    _, _, name = SLURM.rpartition("::")
    assert name in {each.rpartition(".")[2] for each in suite.system.passed}
