"""The crash matrix on cgroup v2, below the guest's systemd: every failpoint × who dies × phase.

By default a slice of it runs beside the guest's other tests (test_suite.py). DRFD_VM_FULL=1 asks
for all of it, as root and as a user with a systemd manager of his own. Each phase has a guest of
its own: `-k 'root and reload'` is one of them, and takes some five minutes.
"""

import json
import shlex

import pytest

from failing import VARIABLE
from instance import compiled_starter
from torture.test_crash_matrix import REACHED, cell_id, cells
from vm.rig import (
    COPY,
    IS_FULL,
    PATIENCE,
    PRINT_RESULTS,
    RESULTS,
    STARTER,
    pytest_command,
    read_outcome,
)

pytestmark = [
    pytest.mark.vm,
    pytest.mark.skipif(not IS_FULL, reason="takes hours; DRFD_VM_FULL=1 runs it"),
]

MODULE = "tests/torture/test_crash_matrix.py"
#: One for each of the guest's processors.
LOTS = 2
WHERE = "/srv/drfd/lots"


def lots_of(phase: str) -> list[list[str]]:
    """All tests of a phase; each lot ends with a look at its own journal."""
    ids = [cell_id(cell) for cell in cells(is_full=True) if cell.phase == phase]
    tests = [f"{MODULE}::test_every_promise_holds_when[{each}]" for each in ids]
    reach = "test_each_phase_reaches_the_failpoints_that_the_matrix_says"
    tests.insert(0, f"{MODULE}::{reach}[{phase}]")
    last = f"{MODULE}::test_after_all_that_the_journal_replays_to_the_same_books"
    return [[*tests[first::LOTS], last] for first in range(LOTS)]


def script(user: str) -> str:
    """All lots at a time, as this user."""
    commands = "\n".join(
        f"{pytest_command(f'lot-{number}', [f'@{WHERE}/{number}'])} &" for number in range(LOTS)
    )
    variables = {"DRFD_TEST_PATIENCE": str(PATIENCE), "DRFD_TORTURE": "1", VARIABLE: STARTER}
    exports = " ".join(f"{name}={value}" for name, value in variables.items())
    lots = f"cd /srv/drfd && export {exports}\n{commands}\nwait"
    return f"""
        chmod -R a+rX /srv/drfd
        install -d -m 1777 {RESULTS}
        # A user's jobs are in cgroups only if his own manager stays.
        {"" if user == "root" else f"loginctl enable-linger {user}"}
        su -l {user} -c {shlex.quote(lots)}
        {PRINT_RESULTS}
    """


@pytest.mark.parametrize("phase", REACHED)
@pytest.mark.parametrize("user", ["root", "alice"])
def test_every_promise_holds_by_cgroup_v2(drfd_guest, notes, tmp_path, user, phase):
    lots = lots_of(phase)
    for number, tests in enumerate(lots):
        (tmp_path / str(number)).write_text("\n".join(tests) + "\n")
    copy = {**COPY, tmp_path: WHERE, compiled_starter(): STARTER}
    done = drfd_guest.run(script(user), timeout_s=7200, copy=copy).check()
    files = json.loads(done.stdout)
    outcomes = [read_outcome(files, f"lot-{number}") for number in range(LOTS)]
    passed = sum(len(outcome.passed) for outcome in outcomes)
    notes.append(f"crash matrix, {phase}, as {user}: {passed} tests passed")
    for outcome, tests in zip(outcomes, lots, strict=True):
        assert outcome.status == 0, outcome.trouble
        # What is skipped proves nothing.
        assert len(outcome.passed) == len(tests), outcome.text
