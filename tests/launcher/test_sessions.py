"""Orders to run a command inside a job, as far as no cgroup is needed: what is refused, and why."""

from __future__ import annotations

import errno
import os
import selectors
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from alone import alone
from drfd.launcher import sessions
from drfd.launcher.protocol import Assignment, Inside, exec_message
from drfd.payload.pack import encode
from launcher.rig import UNTIL_GO, Asked, Controller, LauncherProcess, go, order, shell

pytestmark = pytest.mark.slow

COMMAND = encode(
    argv=("touch", "seen"), cwd="", umask=0, stdout="", stderr="", env={}, script=None,
    attach="/nowhere", notify=(),
)  # fmt: skip


@pytest.fixture
def controller(launcher: LauncherProcess) -> Controller:
    return launcher.connect()


def answer(controller: Controller, job: Asked, number: int = 1) -> object:
    inside = Inside(number=number, command=COMMAND)
    controller.send_sealed(exec_message(job.order, inside), job.data)
    return controller.take("exec", id=job.id, attempt=job.attempt, number=number)["text"]


def test_what_does_not_run_has_no_inside(controller: Controller, work: Path) -> None:
    job = order("true", cwd=work)
    assert answer(controller, job) == "the job does not run any more"
    controller.launch(job)
    controller.take("up")
    controller.take("ended")
    assert answer(controller, job, 2) == "the job does not run any more"


def test_without_cgroups_there_is_none_and_the_job_goes_on(
    controller: Controller, work: Path
) -> None:
    job = shell(UNTIL_GO, cwd=work)
    controller.launch(job)
    controller.take("up")
    assert answer(controller, job) == "jobs have no cgroups here"
    other = replace(job, journal="1" * 32)
    assert answer(controller, other, 2) == "the job is another user's"
    go(work)
    assert controller.take("ended")["exit_code"] == 7
    assert not (work / "seen").exists()


def test_what_is_no_order_ends_the_connection(controller: Controller, work: Path) -> None:
    job = order("true", cwd=work)
    message = exec_message(job.order, Inside(number=1, command=COMMAND))
    del message["inside"]["proof"]
    controller.send_sealed(message, job.data)
    assert controller.is_dropped()


@pytest.mark.parametrize("failing", ["pidfd_open", "register"])
@alone
def test_a_command_whose_end_could_not_be_noticed_is_killed(
    failing: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of descriptors; it would be counted among its user's for ever."""
    pids: list[int] = []
    open_pidfd = os.pidfd_open

    def fail(pid: int) -> int:
        pids.append(pid)
        if failing == "pidfd_open":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_pidfd(pid)

    class Full(selectors.PollSelector):
        def register(self, *words: Any, **named: Any) -> selectors.SelectorKey:
            if len(self.get_map()) == 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().register(*words, **named)

    monkeypatch.setattr(os, "pidfd_open", fail)
    monkeypatch.setattr(sessions, "_serve", lambda *words: time.sleep(60))
    nothing: Any = None
    with Full() as selector:
        found = sessions.Sessions(nothing, selector, 0, nothing)
        assignment = Assignment(order("true", cwd=work).order, -1)
        with pytest.raises(OSError, match=r"open files|space"):
            found.start(assignment, Inside(number=1, command=COMMAND), nothing)
        assert (found._live, dict(selector.get_map())) == ({}, {})
    with pytest.raises(ChildProcessError):
        os.waitpid(pids[0], os.WNOHANG)
