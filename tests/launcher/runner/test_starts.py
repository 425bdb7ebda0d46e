"""A job's process begins in its cgroup of version 2, as a child of its runner, in both ways; and
with a /tmp of its own it sees nothing of the machine's, whatever /var/tmp is there."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.launcher.runner.failures import DIED
from drfd.launcher.system import process
from launcher.rig import (
    UNTIL_GO,
    AttemptFiles,
    Driver,
    Terminal,
    go,
    order,
    parent_of,
    pid_in,
    shell,
    until,
)
from starters import COMPILED, WAYS
from unified_cgroup import empty_cgroup

pytestmark = [pytest.mark.slow, pytest.mark.system]


@pytest.fixture
def cgroup(work: Path) -> Iterator[Path]:
    """An empty cgroup, which needs no controllers, and which the driver begins jobs in."""
    with empty_cgroup("starter") as made:
        (work / "cgroup").write_text(str(made))
        yield made


def test_a_job_begins_in_its_cgroup_as_a_child_of_its_runner(
    driver: Driver, files: AttemptFiles, work: Path, cgroup: Path
) -> None:
    script = f"cat /proc/self/cgroup; {UNTIL_GO}"
    runner = driver.start(shell(script, cwd=work), files, place="unified")
    job = pid_in(work / "pid")
    assert parent_of(job) == runner
    assert process.children(runner) == [job], "what has begun it is gone"
    assert files.running().running == {"pid": job, "start_ticks": process.start_ticks(job)}
    assert f"0::/{cgroup.name}" in (work / "out").read_text().splitlines()
    go(work)
    attempt = files.over()
    assert attempt.ended is not None
    assert attempt.ended["exit_code"] == 7
    assert driver.reap(runner) == 0


def test_a_process_that_is_not_a_job_yet_is_known_by_its_name(
    starter: Path, files: AttemptFiles, work: Path, cgroup: Path, terminal: Terminal
) -> None:
    """`ps` would show the number of a descriptor."""
    driver = Driver(starter)
    runner = driver.start(
        order("true", cwd=work, attach=str(terminal.path)), files, place="unified"
    )
    with terminal.accept():
        until("the end of what has begun it", lambda: len(process.children(runner)) == 1)
        (pid,) = process.children(runner)
        assert Path(f"/proc/{pid}/comm").read_text() == "drfd-starter\n"
    driver.reap(runner)
    driver.close()


def test_a_cgroup_that_is_gone_keeps_the_job_from_starting(
    driver: Driver, files: AttemptFiles, work: Path, cgroup: Path
) -> None:
    cgroup.rmdir()
    runner = driver.start(order("touch", "ran", cwd=work), files, place="unified")
    attempt = files.over()
    text = f"it could not be set up: {cgroup}: No such file or directory"
    assert (attempt.failed, attempt.running) == ({"text": text}, None)
    assert driver.reap(runner) == 0
    assert not (work / "ran").exists()


def test_a_program_that_is_missing_is_reported_from_the_cgroup(
    driver: Driver, files: AttemptFiles, work: Path, cgroup: Path
) -> None:
    driver.reap(driver.start(order("no-such-thing", cwd=work), files, place="unified"))
    text = "there is no command no-such-thing in the job's PATH"
    assert files.over().failed == {"text": text}


def test_a_cgroup_that_is_frozen_keeps_no_runner(
    driver: Driver, files: AttemptFiles, work: Path, cgroup: Path
) -> None:
    (cgroup / "cgroup.freeze").write_text("1")
    runner = driver.start(order("touch", "ran", cwd=work), files, place="frozen")
    attempt = files.over()
    text = "entering its directory and opening its output files took longer than 1 s"
    assert (attempt.failed, attempt.running) == ({"text": text}, None)
    assert driver.reap(runner) == 0
    assert (cgroup / "cgroup.procs").read_text() == "", "it has been killed"


def test_a_process_that_is_killed_before_it_can_say_its_id_has_died(
    driver: Driver, files: AttemptFiles, work: Path, cgroup: Path
) -> None:
    """As the kernel does where the job's memory is not enough for a first page."""
    (cgroup / "cgroup.freeze").write_text("1")
    runner = driver.start(order("touch", "ran", cwd=work), files, place="unified")
    until("a process in the cgroup", (cgroup / "cgroup.procs").read_text)
    (cgroup / "cgroup.kill").write_text("1")
    attempt = files.over()
    assert (attempt.failed, attempt.running) == ({"text": DIED}, None)
    assert driver.reap(runner) == 0
    assert not (work / "ran").exists()


# -- directories of a job's own -----------------------------------------------------------


#: In a mount namespace of its own, so that the machine keeps what it has.
_ALONE = ("unshare", "--mount", "--propagation", "private", "sh", "-ec")
_ONE = "mount -t tmpfs none {0}; touch {0}/outside; "
#: What is done there, and whether jobs have one directory under both names.
MACHINES = {
    "two": (_ONE.format("/tmp") + _ONE.format("/var/tmp"), False),
    # One directory is mounted at both, as guides to hardening have recommended.
    "first at both": (_ONE.format("/tmp") + "mount --bind /tmp /var/tmp; ", False),
    "second at both": (_ONE.format("/var/tmp") + "mount --bind /var/tmp /tmp; ", False),
    "link": (_ONE.format("/tmp") + "mount -t tmpfs none /var; ln -s /tmp /var/tmp; ", True),
}


def _with_tests(commands: str, work: Path) -> str:
    """These commands, after which what is tested is still there, if it is below /tmp itself."""
    for above in (Path("/tmp"), Path("/var/tmp")):
        for part in (Path(__file__), Path(sys.prefix)):
            if part.is_relative_to(above):
                top = above / part.relative_to(above).parts[0]
                kept = work / "kept"
                kept.mkdir(exist_ok=True)
                keep = f"mount --bind {top} {kept}; "
                return f"{keep}{commands}mkdir -p {top}; mount --bind {kept} {top}; "
    return commands


@pytest.mark.skipif(os.getuid() != 0, reason="not root: cannot mount")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_of_the_machines_is_seen(
    machine: str, way: str, request: pytest.FixtureRequest
) -> None:
    commands, is_one = MACHINES[machine]
    with tempfile.TemporaryDirectory(prefix="drfd-test-", dir="/opt") as place:
        work, program = Path(place), None
        if way == COMPILED:
            program = Path(shutil.copy(request.getfixturevalue("starter"), work))
        for each in ("space", "space/tmp", "space/var"):
            (work / each).mkdir()
        files = AttemptFiles(work / "attempts")
        prepare = _with_tests(commands, work)
        driver = Driver(program, before=(*_ALONE, f'{prepare} exec "$@"', "sh"))
        script = "touch /tmp/first /var/tmp/second; ls -A /tmp; echo; ls -A /var/tmp"
        asked = order("sh", "-c", script, cwd=work)
        driver.reap(driver.start(asked, files, space=work / "space"))
        attempt = files.over()
        driver.close()
        files.clean_up()
        assert attempt.failed is None
        seen = [part.split() for part in (work / "out").read_text().split("\n\n")]
    both = ["first", "second"]
    assert seen == ([both, both] if is_one else [["first"], ["second"]])
