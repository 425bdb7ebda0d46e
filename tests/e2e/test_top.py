"""The live view as somebody has it on a terminal, with a real daemon."""

from __future__ import annotations

import json
import os
import re
import signal
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from drfd.client.connection import Connection
from emulator import Emulator, close_all
from instance import BIN, Instance, wait_for

Sit = Callable[..., Emulator]

DRF = BIN / "drf"
CONFIG = """
[capacity]
cores = 9
memory = "18G"
reserve_memory = 0
[[disk]]
name = "test"
path = "/var/tmp"
read = "1G"
write = "1G"
[pools.A]
weight = 2
[pools.B]
[enforcement]
grace = "1s"
processes = 64
"""
CTRL_C, CTRL_L, CTRL_Z, ESC, ENTER = b"\x03", b"\x0c", b"\x1a", b"\x1b", b"\r"
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
    client = Connection(instance.socket)

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
    client.close()
    for job_id in (2, 3):
        instance.wait_state(job_id, "RUNNING")
    return instance


@pytest.fixture(scope="module")
def shared() -> Iterator[Instance]:
    """For those who only look."""
    instance = Instance(CONFIG)
    try:
        yield fill(instance)
    finally:
        instance.destroy()


@pytest.fixture
def instance(make_instance: Callable[..., Instance]) -> Instance:
    """For those who change something."""
    return fill(make_instance(CONFIG))


@pytest.fixture
def sit() -> Iterator[Sit]:
    made: list[Emulator] = []

    def start(at: Instance, *command: object, **options: Any) -> Emulator:
        env = {**os.environ, "DRFD_SOCKET": str(at.socket), "TERM": "xterm-256color"}
        env.pop("NO_COLOR", None)
        env |= {"PS1": "$ ", **options.pop("env", {})}
        made.append(Emulator(*(command or (DRF, "top")), env=env, cwd=at.work, **options))
        return made[-1]

    yield start
    close_all(made)


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


def test_it_shows_machine_shares_and_jobs_and_leaves_one_line(sit: Sit, shared: Instance) -> None:
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


def test_a_filter_leaves_only_what_matches_until_escape(sit: Sit, shared: Instance) -> None:
    terminal = sit(shared)
    row(terminal, " 2 ", "steady")
    terminal.type(b"/wid")
    row(terminal, "/ wid")
    terminal.until("one job", lambda: "steady" not in "\n".join(terminal.lines()))
    row(terminal, " 3 ", "wide")
    terminal.type(ENTER)
    row(terminal, "only with “wid”; Esc shows all")
    terminal.type(ESC)
    row(terminal, " 2 ", "steady")


def test_a_job_is_cancelled_after_a_question(sit: Sit, instance: Instance) -> None:
    terminal = sit(instance)
    row(terminal, " 2 ", "steady")
    terminal.type(b"c")
    row(terminal, "cancel job 2 (steady)", "y: yes, any other key: no")
    terminal.type(b"n")
    row(terminal, "nothing done")
    assert instance.show(2)["state"] == "RUNNING"
    terminal.type(b"c")
    row(terminal, "cancel job 2 (steady)")
    terminal.type(b"y")
    row(terminal, "cancelled job 2")
    assert instance.wait_end(2)["state"] == "CANCELLED"
    row(terminal, " 2 ", "steady", "CANCELLED")


def test_waiting_tasks_are_held_and_released(sit: Sit, instance: Instance) -> None:
    terminal = sit(instance)
    row(terminal, "4_[0-9]", " cores ")
    terminal.type(b"3h")
    row(terminal, "held job 4_[0-9]")
    row(terminal, "WAITING 11, 11 held")
    assert {each["state"] for each in instance.status("4")} == {"HELD"}
    terminal.type(b"/sweep\rh")
    row(terminal, "released job 4_[0-9]")
    assert {each["state"] for each in instance.status("4")} == {"PENDING"}

    def is_forgotten() -> bool:
        return not any("released job" in line for line in terminal.lines())

    terminal.until("a message that goes away without a key", is_forgotten)


def test_a_jobs_page_has_its_facts_and_the_end_of_its_output(sit: Sit, shared: Instance) -> None:
    terminal = sit(shared)
    row(terminal, " 2 ", "steady")
    terminal.type(ENTER)
    row(terminal, "job 2  steady", "RUNNING")
    row(terminal, "demand", "1 core, 64M memory")
    row(terminal, "Admitted", "attempt 1")
    row(terminal, "output ", "drf-2.out")
    row(terminal, "working hard")
    row(terminal, "memory", " of 64M, most ")
    terminal.type(b"e")
    row(terminal, "errors ", "drf-2.err")
    row(terminal, "nothing yet")
    terminal.type(ESC)
    row(terminal, "RUNNING 2", "NAME")


def test_an_output_is_followed_and_searched_on_the_whole_screen(
    sit: Sit, instance: Instance
) -> None:
    path = instance.work / "drf-2.out"
    terminal = sit(instance)
    row(terminal, " 2 ", "steady")
    terminal.type(b"l")
    row(terminal, "output of job 2", ", following")
    row(terminal, "working hard")
    with path.open("a") as file:
        file.write("".join(f"step {number}\n" for number in range(200)))
    row(terminal, "step 199")
    terminal.type(b"/step 42" + ENTER)
    row(terminal, " step 42")
    terminal.type(b"G")
    row(terminal, "step 199")
    terminal.type(ESC)
    terminal.until("no search", lambda: "Esc" in terminal.lines()[-1])
    terminal.type(b"q")
    row(terminal, "RUNNING 2", "NAME")


def test_a_time_limit_is_typed_and_marked_jobs_are_suspended_together(
    sit: Sit, instance: Instance
) -> None:
    terminal = sit(instance)
    row(terminal, " 2 ", "steady")
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


def test_it_fills_the_terminal_that_it_has_at_any_moment(sit: Sit, shared: Instance) -> None:
    terminal = sit(shared)
    terminal.sees("q quit")
    terminal.resize(40, 130)
    terminal.until("the last line", lambda: "q quit" in "".join(terminal.lines()[39:40]))
    row(terminal, "READ", "WRITE", "TIME")
    terminal.resize(10, 40)
    terminal.sees("too small")
    terminal.resize(24, 80)
    terminal.until("the last line", lambda: "q quit" in "".join(terminal.lines()[23:24]))


def test_what_others_have_written_over_it_is_gone_after_a_redraw(
    sit: Sit, shared: Instance
) -> None:
    terminal = sit(shared)
    row(terminal, " 2 ", "steady")
    terminal._stream.feed(b"\x1b[8;1Hrubbish\x1b[9;1Hmore rubbish")
    terminal.type(CTRL_L)
    terminal.until("a clean screen", lambda: "rubbish" not in "\n".join(terminal.lines()))


def test_it_goes_on_when_the_daemon_is_killed_and_started_again(
    sit: Sit, instance: Instance
) -> None:
    terminal = sit(instance)
    row(terminal, " 2 ", "steady")
    instance.kill()
    row(terminal, "the daemon is away, for ", "trying again")
    # Keys work meanwhile.
    terminal.type(b"/stead")
    row(terminal, "/ stead")
    terminal.type(ESC + b"\x1b[A")
    terminal.until("the other job", lambda: "wide" in "\n".join(terminal.lines()))
    instance.start()
    terminal.until("an end of it", lambda: "away" not in terminal.lines()[0])
    instance.drf("cancel", "2")
    row(terminal, " 2 ", "CANCELLED")
    terminal.type(b"q")
    assert terminal.ends() == 0


def test_it_can_be_left_while_the_daemon_is_stopped(sit: Sit, instance: Instance) -> None:
    terminal = sit(instance)
    row(terminal, " 2 ", "steady")
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
def test_the_terminal_is_given_back_when_it_is_ended(
    sit: Sit, shared: Instance, number: signal.Signals
) -> None:
    terminal = sit(shared)
    row(terminal, " 2 ", "steady")
    terminal.process.send_signal(number)
    status = 130 if number is signal.SIGINT else 128 + number
    assert terminal.ends() == status
    given_back(terminal)


def test_the_terminal_is_given_back_after_a_fault(sit: Sit, shared: Instance) -> None:
    terminal = sit(shared, BIN / "python", "-c", CRASHING)
    row(terminal, " 2 ", "steady")
    terminal.type(b"/x")
    assert terminal.ends() == 1
    given_back(terminal)
    assert "RuntimeError: a fault" in terminal.sent.rpartition(b"?1049l")[2].decode()


@pytest.mark.parametrize("how", ["key", "SIGTSTP", "SIGSTOP"])
def test_it_can_be_suspended_under_a_shell_and_goes_on(
    sit: Sit, shared: Instance, how: str
) -> None:
    terminal = sit(shared, "bash", "--norc", "--noediting", "-i")
    terminal.sees("$")
    terminal.type(b"%s top\n" % os.fsencode(DRF))
    row(terminal, " 2 ", "steady")
    [pid] = children(terminal.process.pid)
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
    terminal.sees("9 of 9 cores")


def test_in_the_background_it_stops_and_leaves_the_terminal_to_the_shell(
    sit: Sit, shared: Instance
) -> None:
    terminal = sit(shared, "bash", "--norc", "--noediting", "-i")
    terminal.sees("$")
    terminal.type(b"%s top &\n" % os.fsencode(DRF))
    [pid] = wait_for("it", lambda: children(terminal.process.pid))
    wait_for("its stop", lambda: state_of(pid) == "T")
    terminal.type(b"echo not $((20 + 3))\n")
    terminal.sees("not 23")
    assert b"?1049h" not in terminal.sent
    terminal.type(b"fg\n")
    row(terminal, " 2 ", "steady")
    terminal.type(b"q")
    terminal.sees(": 9 of 9 cores")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# -- without a terminal ----------------------------------------------------------------------------


def test_without_a_terminal_it_prints_one_screen(shared: Instance) -> None:
    for words in (["top"], ["top", "--once"]):
        shown = shared.drf(*words).stdout
        assert "\x1b" not in shown
        lines = shown.splitlines()
        assert any(line.startswith(" cores ") and "9/9" in line for line in lines)
        assert any("4_[0-9]" in line and " cores " in line for line in lines)
        assert "q quit" not in shown


def test_once_on_a_terminal_prints_with_colours_and_leaves(sit: Sit, shared: Instance) -> None:
    terminal = sit(shared, DRF, "top", "--once")
    assert terminal.ends() == 0
    assert b"\x1b[" in terminal.sent
    assert b"?1049h" not in terminal.sent
    given = sit(shared, DRF, "top", "--once", env={"NO_COLOR": "1"})
    assert given.ends() == 0
    assert b"\x1b[" not in given.sent


def test_the_screen_works_without_colours(sit: Sit, shared: Instance) -> None:
    terminal = sit(shared, env={"NO_COLOR": "1"})
    row(terminal, "b B/", "cores")
    row(terminal, "b 3", "wide")
    terminal.type(b"q")
    terminal.ends()
    codes = {int(code) for some in re.findall(rb"\x1b\[([0-9;]*)m", terminal.sent)
             for code in some.split(b";")}  # fmt: skip
    assert codes <= {0, 1, 7}


def test_json_is_the_snapshot(shared: Instance) -> None:
    told = json.loads(shared.drf("top", "--once", "--json").stdout)
    assert told["counts"] == {"RUNNING": 2, "PENDING": 10, "HELD": 1}
    assert [each["label"] for each in told["running"]] == ["2", "3"]


def test_a_picture_is_saved(shared: Instance) -> None:
    path = shared.work / "saved.svg"
    shared.drf("top", "--svg", path, env={"COLUMNS": "100", "LINES": "30"})
    picture = path.read_text()
    words = "".join(ElementTree.fromstring(picture).itertext()).replace("\xa0", " ")
    assert "steady" in words
    assert "wide" in words
    assert "url(http" not in picture


def test_a_picture_that_cannot_be_saved_is_one_line(shared: Instance) -> None:
    done = shared.drf("top", "--svg", shared.work / "nowhere" / "top.svg", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"drf: {shared.work}/nowhere/top.svg: No such file or directory\n"
    done = shared.drf("top", "--svg", "top.svg", "--json", check=False)
    assert done.returncode == 2
    assert not (shared.work / "top.svg").exists()


def test_a_daemon_that_is_not_there_is_one_line(shared: Instance) -> None:
    done = shared.drf("--socket", shared.root / "nobody", "top", check=False)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith("drf: no drfd answers at ")


# -- drf status --watch ----------------------------------------------------------------------------


def test_the_table_is_drawn_again_as_the_queue_changes(sit: Sit, instance: Instance) -> None:
    terminal = sit(instance, DRF, "status", "--watch")
    row(terminal, "2", "steady", "RUNNING")
    instance.drf("cancel", "2")
    terminal.until("its end", lambda: "steady" not in "\n".join(terminal.lines()))
    terminal.type(CTRL_C)
    assert terminal.ends() == 0
    given_back(terminal)


def test_a_watched_table_outlives_the_daemon(sit: Sit, instance: Instance) -> None:
    terminal = sit(instance, DRF, "status", "--watch")
    row(terminal, "2", "steady", "RUNNING")
    instance.kill()
    row(terminal, "the daemon is away")
    row(terminal, "2", "steady", "RUNNING")
    instance.start()
    terminal.until("its return", lambda: "away" not in "\n".join(terminal.lines()))
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.ends() == 128 + signal.SIGTERM
    given_back(terminal)


def test_watch_is_not_for_programs(shared: Instance) -> None:
    done = shared.drf("status", "--watch", "--json", check=False)
    assert done.returncode == 2
    assert "--watch is for people" in done.stderr
