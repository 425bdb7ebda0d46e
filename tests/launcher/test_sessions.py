"""Orders to run a command inside a job, as far as no cgroup is needed: what is refused, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drfd.launcher.protocol import Inside, exec_message
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
