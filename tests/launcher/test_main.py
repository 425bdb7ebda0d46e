"""The launcher as a program: its options, its lock, its supervisor. Every one is a real process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.rig import (
    UNTIL_GO,
    WAIT_S,
    Controller,
    LauncherProcess,
    MakeLauncher,
    go,
    lives,
    pid_in,
    python,
    shell,
    until,
)

#: Each test starts launchers.
pytestmark = pytest.mark.slow

MAIN = "from drfd.launcher.main import main; main(sys.argv[1:])"


def refused(*options: str) -> str:
    """What it says to options that it does not take."""
    done = subprocess.run(python(MAIN, *options), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--state, --controller-uid"),
        (("--state", "/tmp"), "--controller-uid"),
        (("--controller-uid", "0"), "--state"),
        (("--state", "/tmp", "--controller-uid", "alice"), "alice"),
        (("--state", "/tmp", "--controller-uid", "0", "--allow-uid", "x"), "--allow-uid"),
        (("--state", "/tmp", "--controller-uid", "0", "--nice"), "--nice"),
    ],
)
def test_options_that_are_wrong_are_named(options: tuple[str, ...], said: str) -> None:
    assert said in refused(*options)


def test_a_state_directory_that_is_not_there_ends_it(tmp_path: Path) -> None:
    words = ["--state", tmp_path / "gone", "--controller-uid", os.getuid()]
    done = subprocess.run(python(MAIN, *words), capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0, str(tmp_path / "gone") in done.stderr) == (True, True)


def test_its_rooms_are_closed_to_others(launcher: LauncherProcess) -> None:
    launcher.connect()
    modes = {
        name: (launcher.state / name).stat().st_mode & 0o777
        for name in ("attempts", "launcher.sock", "launcher.lock")
    }
    assert modes == {"attempts": 0o700, "launcher.sock": 0o600, "launcher.lock": 0o600}


def test_a_long_path_does_not_keep_it_from_listening(
    make_launcher: MakeLauncher, tmp_path: Path
) -> None:
    """An address holds 107 bytes."""
    launcher = make_launcher(tmp_path / ("x" * 100) / ("y" * 100))
    launcher.start()
    assert launcher.connect().hello["kind"] == "none"


@pytest.mark.skipif(os.getuid() == 0, reason="root may have real cgroups, see tests/system")
def test_an_ordinary_user_is_told_why_there_are_no_cgroups(make_launcher: MakeLauncher) -> None:
    launcher = make_launcher()
    launcher.start(cgroups=True)
    hello = launcher.connect().hello
    assert hello["kind"] == "none"
    told = hello["controls"]["memory"]
    reasons = (
        *(f"cannot make cgroups as uid {os.getuid()}", "no cgroup v1", "enable-linger"),
        *("Permission denied", "Read-only file system", "processes live in"),
    )
    assert any(reason in told for reason in reasons), told


def test_uids_are_refused_and_allowed_as_the_options_say(
    make_launcher: MakeLauncher, work: Path
) -> None:
    """The tests' own uid is allowed by the rig, and others by their number."""
    launcher = make_launcher()
    launcher.start("--min-uid", "3000000000")
    controller = launcher.connect()
    controller.launch(shell("exit 3", cwd=work))
    controller.take("up")
    assert controller.take("ended")["exit_code"] == 3
    controller.launch(shell("exit 3", cwd=work, id=2, uid=2_999_999_999))
    controller.take("broke", id=2, text=refusal(2_999_999_999))
    controller.launch(shell("exit 3", cwd=work, id=3, uid=3_000_000_000))
    controller.take("broke", id=3, text="there is no user with uid 3000000000 any more")


def refusal(uid: int) -> str:
    return f"jobs of uid {uid} are not allowed: it is root's or a system account's"


# -- one at a time --------------------------------------------------------------------------


def test_a_second_launcher_waits_until_the_first_is_gone(launcher: LauncherProcess) -> None:
    first = launcher.connect()
    old = launcher.process
    launcher.start()
    assert first.list() == [{"report": "listed", "known": []}], "the first serves on"
    old.kill()
    old.wait(WAIT_S)
    assert launcher.connect().peer_pid == launcher.process.pid != old.pid


def test_a_second_launcher_gives_up_when_the_first_stays(
    make_launcher: MakeLauncher, launcher: LauncherProcess
) -> None:
    first = launcher.connect()
    second = launcher.start(prelude="import drfd.launcher.main as m; m._PREDECESSOR_WAIT_S = 0.1")
    assert second.wait(WAIT_S) == 1
    said = launcher.log().splitlines()[-1]
    assert said == f"drfd-launcher: another launcher holds {launcher.state}", "and nothing after it"
    assert first.list() == [{"report": "listed", "known": []}]


def test_a_job_does_not_hold_the_launchers_lock(launcher: LauncherProcess, work: Path) -> None:
    """Nor does its runner: else no launcher could follow while a job runs."""
    controller = launcher.connect()
    controller.launch(shell("echo $$ > pid; sleep 600", cwd=work))
    controller.take("up")
    job = pid_in(work / "pid")
    # It would give up after ten seconds, and the job holds on for longer.
    again = launcher.restart()
    assert [report["report"] for report in again.list()] == ["up", "listed"]
    assert lives(job)


# -- signals --------------------------------------------------------------------------------


def test_interrupt_from_a_terminal_is_not_for_it(launcher: LauncherProcess) -> None:
    controller = launcher.connect()
    launcher.process.send_signal(signal.SIGINT)
    assert controller.list() == [{"report": "listed", "known": []}]


# -- its supervisor -------------------------------------------------------------------------


class Kept:
    """A launcher with a supervisor, as `drfd serve` starts it; `let_go` is the controller's end."""

    def __init__(self, launcher: LauncherProcess) -> None:
        self.launcher = launcher
        out, self._pipe = os.pipe()
        self.supervisor = launcher.start("--keep-fd", str(out), pass_fds=(out,))
        os.close(out)

    def let_go(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1

    def reconnect(self, old_pid: int) -> Controller:
        """A controller of the next launcher."""

        def next_one() -> Controller | None:
            controller = self.launcher.connect()
            return controller if controller.peer_pid != old_pid else None

        return until("another launcher", next_one)


@pytest.fixture
def kept(make_launcher: MakeLauncher) -> Iterator[Kept]:
    kept = Kept(make_launcher())
    yield kept
    kept.let_go()
    kept.supervisor.wait(WAIT_S)


def test_a_kept_launcher_is_restarted_when_it_is_killed(kept: Kept, work: Path) -> None:
    controller = kept.launcher.connect()
    controller.launch(shell(UNTIL_GO, cwd=work))
    controller.take("up")
    pid_in(work / "pid")
    for _ in range(2):
        pid = controller.peer_pid
        assert pid != kept.supervisor.pid
        os.kill(pid, signal.SIGKILL)
        controller = kept.reconnect(pid)
        assert [report["report"] for report in controller.list()] == ["up", "listed"]
    go(work)
    assert controller.take("ended")["exit_code"] == 7
    assert kept.supervisor.poll() is None


def test_supervisor_and_launcher_end_when_the_controller_is_gone(kept: Kept, work: Path) -> None:
    """And the job goes on, for the next."""
    controller = kept.launcher.connect()
    controller.launch(shell("echo $$ > pid; sleep 60", cwd=work))
    controller.take("up")
    job, pid = pid_in(work / "pid"), controller.peer_pid
    kept.let_go()
    assert kept.supervisor.wait(WAIT_S) == 0
    assert not lives(pid)
    assert lives(job)
    kept.launcher.start()
    assert [report["report"] for report in kept.launcher.connect().list()] == ["up", "listed"]


def test_a_launcher_whose_supervisor_was_killed_ends_with_the_controller(kept: Kept) -> None:
    controller = kept.launcher.connect()
    kept.supervisor.kill()
    kept.supervisor.wait(WAIT_S)
    assert controller.list() == [{"report": "listed", "known": []}]
    kept.let_go()
    until("an end of the launcher", lambda: not lives(controller.peer_pid))


def test_no_job_holds_the_supervisors_pipe(kept: Kept, work: Path) -> None:
    """Whoever holds an end of it keeps the other side waiting for its close."""
    controller = kept.launcher.connect()
    controller.launch(shell("echo $$ > pid; sleep 60", cwd=work))
    runner = controller.take("up")["runner_pid"]
    pipes = {pipe for pipe in opened(controller.peer_pid) if pipe.startswith("pipe:")}
    job = pid_in(work / "pid")
    shared = {pid: sorted(pipes & opened(pid)) for pid in (runner, job)}
    assert shared[job] == []
    assert len(shared[runner]) == 1, "the bell alone"


def opened(pid: int) -> set[str]:
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        # A shell has one more for a moment, when it has written to a file.
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found
