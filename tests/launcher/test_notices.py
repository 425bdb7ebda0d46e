"""Commands of the owner's in the job's place: once after the end, when nothing else of it is left,
and inside of a job that runs, as far as that needs no cgroup."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from drfd.launcher.protocol import ExecOrder, SignalOrder
from drfd.launcher.system import process
from kernel_calls import leased
from launcher.rig import UNTIL_GO, Asked, Controller, go, order, pid_in, shell, state_of, until

pytestmark = pytest.mark.slow


@pytest.fixture
def controller(launcher) -> Controller:
    return launcher.connect()


def notify(controller: Controller, order: Asked) -> str | None:
    """What the report of the removal says of it."""
    controller.notify(order)
    report = controller.take("removed", id=order.id, attempt=order.attempt)
    return report.get("notice")


def run(controller: Controller, work: Path) -> None:
    controller.launch(shell("exit 7", cwd=work))
    controller.take("launched")
    controller.take("exited")


@pytest.mark.parametrize(
    ("script", "notice"),
    [("exit 4", "failed: exit code 4"), ("kill -9 $$", "failed: killed by signal 9")],
)
def test_it_is_said_what_became_of_it(controller, work, script, notice):
    run(controller, work)
    assert notify(controller, shell(f"echo x >> told; {script}", cwd=work)) == notice
    assert (work / "told").read_text() == "x\n"


def test_a_failed_launch_is_notified_too_and_a_command_that_is_not_there_named(controller, work):
    controller.launch(order("no-such-thing", cwd=work))
    controller.take("launch_failed")
    absent = "failed: there is no command nosuchcommand in the job's PATH"
    assert notify(controller, shell("", cwd=work, argv=("nosuchcommand",))) == absent


def test_a_directory_that_is_gone_does_not_keep_it_from_telling(controller, work, tmp_path):
    run(controller, work)
    order = shell(f"pwd > {tmp_path}/told", cwd=tmp_path / "gone")
    assert notify(controller, order) == "told"
    assert (tmp_path / "told").read_text() == "/\n"


def test_what_became_of_one_is_said_to_the_next_controller(launcher, controller, work):
    run(controller, work)
    controller.notify(shell("echo x >> told; exit 4", cwd=work))
    controller.close()
    until("the command", lambda: (work / "told").exists())
    launcher.files.over()
    controller = launcher.connect()
    controller.list()
    assert controller.take("removed").get("notice") == "failed: exit code 4"


def test_it_waits_for_a_place_among_the_jobs_that_run(make_launcher, work):
    bound = "import drfd.launcher.confinement.bounds as b; b._MOST_RUNNING = 1"
    controller = make_launcher().serve(prelude=bound)
    run(controller, work)
    other = shell(UNTIL_GO, cwd=work, id=2)
    controller.launch(other)
    controller.take("launched", id=2)
    controller.notify(shell("echo x >> told", cwd=work))
    assert not (work / "told").exists()
    go(work)
    controller.take("exited", id=2)
    assert controller.take("removed", id=1)["notice"] == "told"


def test_nobody_but_the_job_s_user_is_told(controller, work):
    """The controller may be told what to order: it cannot have anything run as root this way."""
    run(controller, work)
    order = shell("echo x > told", cwd=work, uid=os.getuid() + 1)
    assert notify(controller, order) == "not told: it is not for the job's own user"
    assert not (work / "told").exists()


def test_signals_that_still_wait_for_their_turn_at_the_end_of_the_job_are_not_for_it(
    make_launcher, work
):
    """One that was sent as the job ended killed the command."""
    slow = "import drfd.launcher.schedule as s; s._SLOW_S, s._PAUSES = 0.0, 300"
    controller = make_launcher().serve(prelude=slow)
    loop = "while [ ! -e {} ]; do sleep 0.02; done"
    other = f"trap 'echo x >> got' USR1; echo > ready; {loop.format('go')}"
    controller.launch(shell(other, cwd=work, id=2))
    controller.take("launched", id=2)
    until("the other job", (work / "ready").exists)
    run(controller, work)

    def signal_to(key: int, count: int) -> None:
        asked = SignalOrder(id=key, attempt=1, count=count, signals=(signal.SIGUSR1,))
        controller.send(asked)

    with controller.at_once():
        # The first one takes long, and its user's next one waits.
        signal_to(2, 1)
        signal_to(1, 1)
        controller.notify(shell(f"echo > begun; {loop.format('stop')}", cwd=work))
    until("the command", (work / "begun").exists)
    until("the signal before", (work / "got").exists)
    signal_to(2, 2)
    until("the signal after it", lambda: (work / "got").read_text() == "x\nx\n")
    (work / "stop").touch()
    assert controller.take("removed", id=1)["notice"] == "told"
    (work / "go").touch()
    controller.take("exited", id=2)


def test_one_that_takes_too_long_is_stopped(make_launcher, work):
    prelude = "import drfd.launcher.runner.starter.plan as p; p.NOTICE_S = 3.0"
    controller = make_launcher().serve(prelude=prelude)
    run(controller, work)
    order = shell("echo $$ > pid; exec sleep 1000", cwd=work)
    assert notify(controller, order) == "failed: it was stopped after 30 s"
    assert state_of(pid_in(work / "pid")) is None


def test_one_that_is_stopped_before_it_has_begun_holds_nothing_up(make_launcher, work):
    """Its owner may do so as soon as it is the owner's: here while its program is being opened."""
    launcher = make_launcher()
    launcher.start(prelude="import drfd.launcher.runner.starter.plan as p; p.NOTICE_S = 4.0")
    controller = launcher.connect()
    run(controller, work)
    program = work / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    def child() -> int | None:
        """The notifier's."""
        attempt = launcher.files.read()
        if attempt.runner is None or not attempt.is_notice:
            return None
        return next(iter(process.children(attempt.runner["pid"])), None)

    with leased(program) as is_opened:
        controller.notify(order(str(program), cwd=work))
        until("its opening", is_opened)
        pid = until("the command's process", child)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert controller.take("removed", id=1)["notice"] == "failed: it was stopped after 30 s"
            assert state_of(pid) is None
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# -- inside of a job: what is refused, and why --------------------------------------------


def answer(
    controller: Controller, job: Asked, process: tuple[int, int] = (1, 1), *, number: int = 1
) -> object:
    """Why this process, by pid and start, is not moved into the job."""
    pid, ticks = process
    asked = ExecOrder(id=job.id, attempt=job.attempt, number=number, pid=pid, start_ticks=ticks)
    controller.send(asked)
    return controller.take("exec", id=job.id, attempt=job.attempt, number=number)["text"]


def test_what_does_not_run_has_no_inside(controller, work):
    job = order("true", cwd=work)
    assert answer(controller, job) == "the job does not run any more"
    controller.launch(job)
    controller.take("launched")
    controller.take("exited")
    assert answer(controller, job, number=2) == "the job does not run any more"


def test_without_cgroups_there_is_none(controller, work, start):
    job = shell(UNTIL_GO, cwd=work)
    controller.launch(job)
    controller.take("launched")
    pid = start("sleep", "1000").pid
    ticks = process.start_ticks(pid)
    assert ticks is not None
    assert "jobs have no cgroups here" in str(answer(controller, job, (pid, ticks)))
    foreign = "the process that asks is not one of its user's"
    assert answer(controller, job, (pid, ticks + 1), number=2) == foreign
    go(work)
    assert controller.take("exited")["exit_code"] == 7
