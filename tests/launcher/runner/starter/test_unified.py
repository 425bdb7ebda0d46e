"""A job's process begins in its cgroup of version 2, as a child of its runner, in both ways."""

from __future__ import annotations

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
from unified_cgroup import empty_cgroup

pytestmark = [pytest.mark.system, pytest.mark.slow]


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
