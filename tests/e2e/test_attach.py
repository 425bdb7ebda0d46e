"""drf attach: a job's terminal is left and returned to."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from emulator import Emulator, close_all
from instance import BIN, Instance, wait_for

Sit = Callable[..., Emulator]
DRF = BIN / "drf"


@pytest.fixture
def sit(instance: Instance) -> Iterator[Sit]:
    """Start a program in a terminal of its own, with the instance's daemon and a home there."""
    made: list[Emulator] = []
    home = {"XDG_STATE_HOME": str(instance.work / "state")}
    env = {**os.environ, **home, "DRFD_SOCKET": str(instance.socket), "TERM": "linux"}

    def start(*command: object) -> Emulator:
        made.append(Emulator(*command, env=env, cwd=instance.work))
        return made[-1]

    yield start
    close_all(made)


def run(sit: Sit, script: str) -> Emulator:
    return sit(DRF, "run", "--", "sh", "-c", script)


def leave(terminal: Emulator) -> None:
    terminal.type(b"\r~d")
    assert terminal.ends() == 0
    assert terminal.modes() == terminal.modes_before


def detached(sit: Sit, script: str, sign: str = "up") -> Emulator:
    """Run a job, and leave it when the sign is on its terminal."""
    terminal = run(sit, script)
    terminal.sees(sign)
    leave(terminal)
    return terminal


def test_a_detached_job_is_returned_to_left_again_and_ends_there(
    sit: Sit, instance: Instance
) -> None:
    terminal = detached(sit, "echo first; while read x; do echo got $x; done; exit 3", "first")
    assert "drf attach 1 returns" in "\n".join(terminal.lines())

    again = sit(DRF, "attach", "1")
    again.type(b"one\r")
    again.sees("got one")
    leave(again)
    assert instance.show(1)["state"] == "RUNNING"

    # Without an id it is the latest job; what was on the terminal is there again.
    last = sit(DRF, "attach")
    last.sees("got one")
    last.type(b"two\r")
    last.sees("got two")
    last.type(b"\x04")
    assert last.ends() == 3
    assert last.modes() == last.modes_before


def test_what_is_written_while_nobody_looks_is_in_the_file_and_shown_later(
    sit: Sit, instance: Instance
) -> None:
    detached(sit, "echo up; while [ ! -e go ]; do sleep 0.05; done; echo while away; read x")
    (instance.work / "go").touch()
    wait_for("its output", lambda: "while away" in instance.output(1))
    again = sit(DRF, "attach", "1")
    again.sees("while away")
    again.type(b"\r")
    assert again.ends() == 0


def test_the_last_terminal_has_it_and_the_size_is_its_own(sit: Sit) -> None:
    detached(sit, "echo up; while read x; do stty size; done")
    first = sit(DRF, "attach", "1")
    first.type(b"\r")
    first.sees("24 80")
    second = sit(DRF, "attach", "1")
    assert first.ends() == 0
    first.sees("attached to another terminal")
    second.resize(40, 132)
    second.type(b"\r")
    second.sees("40 132")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_the_job_goes_on_when_its_window_is_closed(
    sit: Sit, instance: Instance, number: int
) -> None:
    detached(sit, "echo up; while read x; do echo got $x; done")
    again = sit(DRF, "attach", "1")
    again.type(b"one\r")
    again.sees("got one")
    os.kill(again.process.pid, number)
    again.process.wait()
    last = sit(DRF, "attach", "1")
    last.type(b"two\r")
    last.sees("got two")
    assert instance.show(1)["state"] == "RUNNING"


def test_hanging_up_stops_it(sit: Sit, instance: Instance) -> None:
    detached(sit, "echo up; exec sleep 1000")
    again = sit(DRF, "attach", "1")
    again.sees("up")
    again.type(b"\r~.")
    assert again.ends() == 128 + signal.SIGHUP
    assert instance.wait_end(1)["signal"] == signal.SIGHUP


def test_a_full_screen_program_draws_itself_again(sit: Sit) -> None:
    program = (
        r"draw() { printf '\033[H'; stty size; };"
        r"printf '\033[?1049h'; trap draw WINCH; draw; while [ ! -e go ]; do sleep 0.1; done"
    )
    terminal = detached(sit, program, "24 80")
    assert b"\x1b[?1049l" in terminal.sent
    again = sit(DRF, "attach", "1")
    again.sees("24 80")
    assert b"\x1b[?1049h" in again.sent
    leave(again)
    assert b"\x1b[?1049l" in again.sent


def test_a_batch_job_with_a_terminal(sit: Sit, instance: Instance) -> None:
    """Its output is in its file; the daemon may be restarted; a script has one, too."""
    (instance.work / "script").write_text("#!/bin/sh\ntty\necho up\nread x\necho got $x\n")
    terminal = sit(DRF, "submit", "--pty", "script")
    assert terminal.ends() == 0
    assert terminal.lines() == ["submitted job 1"]
    wait_for("its output", lambda: "up" in instance.output(1))
    assert instance.output(1).startswith("/dev/pts/")
    instance.kill()
    instance.start()
    again = sit(DRF, "attach", "1")
    again.sees("up")
    again.type(b"word\r")
    assert again.ends() == 0
    assert "got word" in "\n".join(again.lines())


def test_a_batch_job_has_a_terminal_in_each_run_and_after_the_login_is_over(
    sit: Sit, instance: Instance
) -> None:
    script = "tty; [ -e again ] || { touch again; exit 3; }"
    login = instance.work / "login"
    login.mkdir(mode=0o700)
    words = ("submit", "--hold", "--pty", "--retry", "1", "--", "sh", "-c", script)
    terminal = sit("env", f"XDG_RUNTIME_DIR={login}", DRF, *words)
    assert terminal.ends() == 0
    assert not [*login.iterdir()], "it disappears with the login"
    instance.drf("release", "1")
    assert instance.wait_end(1)["exit_code"] == 0
    assert instance.output(1).count("/dev/pts/") == 2
    left = instance.work / "state" / "drfd"
    wait_for("nothing left", lambda: not [*left.glob("*/*/*")])


@pytest.mark.parametrize("words", [("submit", "--pty"), ("run",)])
def test_the_job_goes_on_when_its_window_closes_at_once(
    sit: Sit, instance: Instance, words: tuple[str, ...]
) -> None:
    """The program in front of a window is often its session leader: when that ends, the kernel
    hangs up who is still there. What keeps the job's terminal is only beginning then."""
    slow = (
        "import os, time\n"
        "fork = os.fork\n"
        "os.fork = lambda: fork() or time.sleep(0.5) or 0\n"
        "from drfd_cli.start import main\n"
        "main()\n"
    )
    terminal = sit(sys.executable, "-c", slow, *words, "--", "sh", "-c", "echo up; read x")
    if words == ("run",):
        terminal.sees("up")
        terminal.type(b"\r~d")
    assert terminal.ends() == 0
    again = sit(DRF, "attach", "1")
    again.sees("up")
    again.type(b"\r")
    assert again.ends() == 0


def test_a_detached_job_has_its_terminal_in_its_next_run_too(sit: Sit, instance: Instance) -> None:
    script = "tty; read x; echo got $x; [ -e again ] || { touch again; exit 3; }"
    login = instance.work / "login"
    login.mkdir(mode=0o700)
    run = (DRF, "run", "--retry", "1", "--", "sh", "-c", script)
    terminal = sit("env", f"XDG_RUNTIME_DIR={login}", *run)
    terminal.sees("/dev/pts/")
    leave(terminal)
    for word in (b"one", b"two"):
        wait_for("its run", lambda: instance.show(1)["state"] == "RUNNING")
        again = sit(DRF, "attach", "1")
        again.type(word + b"\r")
        again.sees(f"got {word.decode()}")
        again.type(b"\r~d")
        again.ends()
    assert instance.wait_end(1)["exit_code"] == 0
    wait_for("nothing left", lambda: not [*login.iterdir()])


def test_sockets_of_other_machines_with_the_same_home_stay(sit: Sit, instance: Instance) -> None:
    old, other = (
        instance.work / "state" / "drfd" / kind / machine / "drf-run-1"
        for kind, machine in (("attach", os.uname().nodename), ("attach", "another.machine"))
    )
    for each in (old, other):
        each.parent.mkdir(parents=True)
        each.touch()
        os.utime(each, (1, 1))
    terminal = sit(DRF, "submit", "--pty", "--", "true")
    assert terminal.ends() == 0
    instance.wait_end(1)
    assert not old.exists()
    assert other.exists()


def test_it_says_what_it_cannot_return_to(sit: Sit, instance: Instance) -> None:
    batch = instance.submit("--", "sleep", "1000")
    refused = sit(DRF, "attach", str(batch))
    assert refused.ends() == 1
    refused.sees("has no terminal")
    terminal = run(sit, "echo up; read x")
    terminal.sees("up")
    refused = sit(DRF, "attach", "2")
    assert refused.ends() == 1
    refused.sees("is not detached")
    assert "needs a terminal" in instance.drf("attach", "2", check=False).stderr
    array = instance.drf("submit", "--pty", "--array", "0-1", "--", "true", check=False)
    assert "not for an array" in array.stderr
    limited = instance.drf("submit", "--pty", "--output-max", "1M", "--", "true", check=False)
    assert "--output-max does not limit" in limited.stderr
