"""A runner waits for no process that has died before it could say so."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from drfd.launcher.confinement.interface import Entrance
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.protocol import Assignment
from drfd.launcher.runner.child import JobStart
from drfd.launcher.runner.starter.compiled import Compiled
from drfd.launcher.system import process
from launcher.rig import order

ANN = pwd.struct_passwd(("ann", "", 1000, 1000, "", "/", "/bin/sh"))
#: More than a pipe holds.
MANY_GROUPS = list(range(1, 60_000))


class Place(Unconfined):
    def __init__(self, cgroup: str | None) -> None:
        super().__init__("a test")
        self._cgroup = cgroup

    def entrance(self, key: object, limits: object, uid: object) -> Entrance:
        return Entrance(cgroup=self._cgroup)


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """A wait without end fails the test."""

    def fail(number: int, frame: object) -> None:
        raise AssertionError("it waits in vain")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def started_by(name: str, *, groups: list[int], cgroup: str | None) -> int:
    """Begin a job's process by another program, and return its wait status."""
    program = shutil.which(name)
    assert program is not None
    (entry_out, entry_in), (report_out, report_in), (go_out, go_in) = (os.pipe() for _ in range(3))
    payload_fd, program_fd = os.memfd_create("payload"), os.open(program, os.O_PATH | os.O_CLOEXEC)
    job = JobStart(
        Assignment(order("x", cwd=Path("/")).order, payload_fd), ANN, groups, Place(cgroup),
        entry_in, entry_out, report_in, go_out, go_in, has_quota=False, place=None,
    )  # fmt: skip
    try:
        starter = Compiled(program_fd)
        starter.warm_up()
        return os.waitpid(starter.start(job, ()), 0)[1]
    finally:
        for fd in (entry_out, report_out, go_in, payload_fd, program_fd):
            os.close(fd)


def test_a_process_that_dies_before_it_has_read_its_plan_is_not_waited_for() -> None:
    assert started_by("false", groups=MANY_GROUPS, cgroup=None) == 1 << 8


@pytest.mark.parametrize("name", ["true", "false"])
def test_a_process_that_does_not_say_its_id_is_not_waited_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the kernel had killed the process in the cgroup for memory, and nobody listed it."""
    monkeypatch.setattr(process, "children", lambda pid: [])
    assert started_by(name, groups=[], cgroup="/none") == (name == "false") << 8
