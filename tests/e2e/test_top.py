"""The live view as somebody has it on a terminal, with a real daemon.

What is on its screens and what keys do there: tests/cli/top.
"""

import os
import signal
import termios
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from drfd.client.connection import Connection
from emulator import Emulator
from instance import BIN, CONFIG, Instance, children_of, state_of, wait_for

DRF = BIN / "drf"
WEIGHED = CONFIG.replace("[pools.A]\n", "[pools.A]\nweight = 2\n")
CTRL_C, CTRL_Z, ESC, ENTER = b"\x03", b"\x1a", b"\x1b", b"\r"
#: Fails in the middle of drawing, as a program with a fault in it would.
CRASHING = """
import sys
import drfd_cli.top.view as view
from drfd_cli.main import main
real = view.screen
def draw(scene, size, ink):
    if scene.state.row_filter.text:
        raise RuntimeError("a fault")
    return real(scene, size, ink)
import drfd_cli.top.app as app
app.screen = draw
sys.argv = ["drf", "top"]
main()
"""


def fill(instance: Instance) -> Instance:
    """A job that has ended, two that run, tasks that wait, and a job that is held."""
    instance.start()
    with closing(Connection(instance.socket)) as client:

        def submit(pool: str, name: str, *argv: str, cores: int = 1, **more: Any) -> None:
            demand = {"cores_milli": 1000 * cores, "memory_bytes": 64 << 20}
            client.request(
                "submit", argv=list(argv), cwd=str(instance.work), name=name, pool=pool,
                demand=demand, time_limit_s=3600, **more,
            )  # fmt: skip

        submit("A", "quick", "true")
        client.request("wait", ids=[1])
        submit("A", "steady", "sh", "-c", "echo working hard; exec sleep 600")
        submit("B", "wide", "sleep", "600", cores=8)
        submit("B", "sweep", "sleep", "600", cores=2, array="0-9")
        submit("A", "kept", "true", held=True)
    for job_id in (2, 3):
        instance.wait_state(job_id, "RUNNING")
    return instance


@pytest.fixture(scope="module")
def shared() -> Iterator[Instance]:
    """For those who only look."""
    instance = Instance(WEIGHED)
    try:
        yield fill(instance)
    finally:
        instance.destroy()


@pytest.fixture
def instance(make_instance) -> Instance:
    """For those who change something."""
    return fill(make_instance(WEIGHED))


@pytest.fixture
def sit(seat):
    """The live view, or another program, in a terminal."""

    def start(at: Instance, *command: object, **env: str) -> Emulator:
        return seat(at, *(command or (DRF, "top")), env={"TERM": "xterm-256color", **env})

    return start


def row(terminal: Emulator, *words: str) -> str:
    """The line with these words, once it is there."""

    def found() -> str | None:
        lines = terminal.lines()
        return next((line for line in lines if all(word in line for word in words)), None)

    terminal.until(f"a line with {words}", found)
    return found() or ""


def given_back(terminal: Emulator) -> None:
    """As it was, on its ordinary screen, with its cursor."""
    assert terminal.modes() == terminal.modes_before
    for on, off in ((b"?1049h", b"?1049l"), (b"?25l", b"?25h"), (b"?7l", b"?7h")):
        assert terminal.sent.rfind(b"\x1b[" + on) < terminal.sent.rfind(b"\x1b[" + off)


def raw(terminal: Emulator) -> bool:
    return not terminal.modes()[3] & (termios.ICANON | termios.ECHO | termios.ISIG)


def test_it_shows_machine_shares_and_jobs_and_leaves_one_line(sit, shared):
    terminal = sit(shared)
    row(terminal, " cores ", "▒▒▒", " 9/9 ")
    row(terminal, "■ B/", "89%", "cores")
    row(terminal, " 3 ", "wide", "/8", "/1h")
    row(terminal, "4_[0-9]", "sweep", " cores ", " 2 ", "   0")
    row(terminal, " 1 ", "quick", "COMPLETED")
    assert raw(terminal)
    terminal.type(b"q")
    assert terminal.ends() == 0
    given_back(terminal)
    last = terminal.sent.rpartition(b"?1049l")[2].decode()
    assert last.endswith(": 9 of 9 cores and 128M of 18G held; 2 running, 11 waiting\r\n")


def test_keys_act_on_real_jobs(sit, instance):
    terminal = sit(instance)
    row(terminal, " 2 ", "steady")
    # An output is shown by the pager, which ^C does not take the view from.
    terminal.type(b"l")
    row(terminal, "working hard")
    with (instance.work / "drf-2.out").open("a") as file:
        file.write("".join(f"step {number}\n" for number in range(200)))
    row(terminal, "step 199")
    row(terminal, "Waiting for data")
    # less forgets what was typed before it has seen the ^C.
    terminal.type(CTRL_C)
    row(terminal, "(END)")
    terminal.type(b"?step 42" + ENTER)
    row(terminal, "step 42")
    terminal.type(b"q")
    row(terminal, "RUNNING 2", "NAME")
    # A time limit is typed, and marked jobs are suspended together.
    terminal.type(b"t30m\r")
    row(terminal, "set time limit 30m of job 2")
    assert instance.show(2)["time_limit_s"] == 1800
    terminal.type(b"  ")
    row(terminal, "2 marked")
    terminal.type(b"p")
    row(terminal, "suspend 2 jobs?")
    terminal.type(b"y")
    row(terminal, "suspended 2 jobs")
    for job_id in (2, 3):
        instance.wait_state(job_id, "SUSPENDED")


def test_it_fills_the_terminal_that_it_has_at_any_moment(sit, shared):
    terminal = sit(shared)
    terminal.sees("q quit")
    terminal.resize(40, 130)
    terminal.until("the last line", lambda: "q quit" in "".join(terminal.lines()[39:40]))
    row(terminal, "POOL", "CORES", "TIME")
    terminal.resize(10, 40)
    terminal.sees("too small")
    terminal.resize(24, 80)
    terminal.until("the last line", lambda: "q quit" in "".join(terminal.lines()[23:24]))


def sees_last_line(terminal: Emulator) -> None:
    """What is left on the screen, which the terminal breaks anywhere if the host's name is long."""
    found = lambda: "9of9cores" in "".join("".join(terminal.lines()).split())  # noqa: E731
    terminal.until("the last line", found)


def test_it_goes_on_when_the_daemon_is_killed_and_started_again(sit, instance):
    terminal = sit(instance)
    row(terminal, " 2 ", "steady")
    instance.kill()
    row(terminal, "the daemon is away, for ")
    # Keys work meanwhile.
    terminal.type(b"/stead")
    row(terminal, "/ stead")
    terminal.type(ESC + b"\x1b[A")
    terminal.until("the other job", lambda: "wide" in "\n".join(terminal.lines()))
    instance.start()
    terminal.until("an end of it", lambda: "away" not in terminal.lines()[0])
    instance.drf("cancel", "2")
    row(terminal, " 2 ", "CANCELLED")
    # It can be left while the daemon is stopped.
    assert instance.process is not None
    instance.process.send_signal(signal.SIGSTOP)
    try:
        terminal.type(ENTER)
        row(terminal, "asking the daemon")
        row(terminal, "no word from the daemon for ")
        terminal.type(CTRL_C)
        assert terminal.ends() == 0
        given_back(terminal)
    finally:
        instance.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_terminal_is_given_back_when_it_is_ended(sit, shared, number):
    terminal = sit(shared)
    row(terminal, " 2 ", "steady")
    terminal.process.send_signal(number)
    status = 130 if number is signal.SIGINT else 128 + number
    assert terminal.ends() == status
    given_back(terminal)


def test_the_terminal_is_given_back_after_a_fault(sit, shared):
    terminal = sit(shared, BIN / "python", "-c", CRASHING)
    row(terminal, " 2 ", "steady")
    terminal.type(b"/x")
    assert terminal.ends() == 1
    given_back(terminal)
    assert "RuntimeError: a fault" in terminal.sent.rpartition(b"?1049l")[2].decode()


@pytest.mark.parametrize("how", ["key", "SIGTSTP", "SIGSTOP"])
def test_it_can_be_suspended_under_a_shell_and_goes_on(sit, shared, how):
    terminal = sit(shared, "bash", "--norc", "--noediting", "-i")
    terminal.sees("$")
    terminal.type(b"%s top\n" % os.fsencode(DRF))
    row(terminal, " 2 ", "steady")
    [pid] = children_of(terminal.process.pid)
    if how == "key":
        terminal.type(CTRL_Z)
    else:
        os.kill(pid, signal.Signals[how])
    terminal.sees("Stopped")
    if how != "SIGSTOP":
        given_back(terminal)
    terminal.type(b"echo and $((20 + 3))\n")
    terminal.sees("and 23")
    terminal.type(b"fg\n")
    terminal.until("the screen", lambda: "and 23" not in "\n".join(terminal.lines()))
    row(terminal, " 2 ", "steady")
    terminal.until("raw keys", lambda: raw(terminal))
    terminal.type(b"q")
    sees_last_line(terminal)


def test_in_the_background_it_stops_and_leaves_the_terminal_to_the_shell(sit, shared):
    terminal = sit(shared, "bash", "--norc", "--noediting", "-i")
    terminal.sees("$")
    terminal.type(b"%s top &\n" % os.fsencode(DRF))
    [pid] = wait_for("it", lambda: children_of(terminal.process.pid))
    wait_for("its stop", lambda: state_of(pid) == "T")
    terminal.type(b"echo not $((20 + 3))\n")
    terminal.sees("not 23")
    assert b"?1049h" not in terminal.sent
    terminal.type(b"fg\n")
    row(terminal, " 2 ", "steady")
    terminal.type(b"q")
    sees_last_line(terminal)
