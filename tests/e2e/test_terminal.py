"""drf run on a terminal, as somebody who sits there sees it; and without one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator import Emulator, close_all
from instance import BIN, CONFIG, Instance, is_alive, wait_for

Sit = Callable[..., Emulator]

CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x04", b"\x1a", b"\x1c"
DRF = BIN / "drf"
RUN = (DRF, "run", "--")


@pytest.fixture
def sit(instance: Instance) -> Iterator[Sit]:
    """Start a program in a terminal of its own, with the instance's daemon."""
    made: list[Emulator] = []

    def start(*command: object, **options: Any) -> Emulator:
        env = {**os.environ, "DRFD_SOCKET": str(instance.socket), "TERM": "linux", "PS1": "$ "}
        env.pop("NO_COLOR", None)
        made.append(Emulator(*command, **{"env": env, "cwd": instance.work, **options}))
        return made[-1]

    yield start
    close_all(made)


def shell(script: str) -> tuple[object, ...]:
    return (*RUN, "sh", "-c", script)


def python(code: str) -> tuple[object, ...]:
    return (*RUN, "python3", "-I", "-c", code)


def leaves_it_as_it_was(terminal: Emulator) -> None:
    assert terminal.modes() == terminal.modes_before


# -- a terminal of its own -----------------------------------------------------------------------


def test_the_job_leads_a_session_on_a_terminal_of_its_own(sit: Sit) -> None:
    terminal = sit(
        *shell(
            "test -t 0 && test -t 1 && test -t 2 && echo three; echo to it > /dev/tty;"
            " set -- $(cat /proc/$$/stat); test $1 = $5 -a $1 = $6 -a $1 = $8 && echo leader"
        )
    )
    assert terminal.ends() == 0
    assert terminal.lines() == ["three", "to it", "leader"]
    leaves_it_as_it_was(terminal)


def test_it_is_not_the_terminal_that_drf_was_started_from(sit: Sit) -> None:
    """What one may do with it (push keys into it, for one) must end with the job."""
    terminal = sit("sh", "-c", f"tty; {DRF} run -- tty")
    terminal.ends()
    mine, jobs = terminal.lines()
    assert mine.startswith("/dev/pts/")
    assert jobs.startswith("/dev/pts/")
    assert mine != jobs


@pytest.mark.parametrize("status", [0, 3, 255])
def test_it_exits_as_the_job_does_and_shows_all_that_it_wrote(sit: Sit, status: int) -> None:
    terminal = sit(*shell(f"seq 5000; exit {status}"))
    assert terminal.ends() == status
    assert terminal.sent.split() == [b"%d" % number for number in range(1, 5001)]
    leaves_it_as_it_was(terminal)


def test_the_job_has_the_size_of_the_terminal_and_hears_when_it_changes(sit: Sit) -> None:
    terminal = sit(*shell("trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.1; done"))
    terminal.sees("24 80")
    terminal.resize(40, 132)
    terminal.sees("40 132")
    assert terminal.ends() == 0


def test_interrupt_and_quit_are_the_jobs_own(sit: Sit, instance: Instance) -> None:
    terminal = sit(*shell("trap 'echo not yet' INT; echo ready; while :; do sleep 0.1; done"))
    terminal.sees("ready")
    terminal.type(CTRL_C)
    terminal.sees("not yet")
    terminal.type(CTRL_BACKSLASH)
    assert terminal.ends() == 128 + signal.SIGQUIT
    leaves_it_as_it_was(terminal)
    assert instance.show(1)["outcome"]["code"] == "FAILED"


def test_an_interrupt_ends_a_job_that_does_not_mind_it(sit: Sit) -> None:
    terminal = sit(*shell("echo ready; exec sleep 1000"))
    terminal.sees("ready")
    terminal.type(CTRL_C)
    assert terminal.ends() == 128 + signal.SIGINT


def test_end_of_input_is_typed_as_anywhere(sit: Sit) -> None:
    terminal = sit(*shell("echo up; exec cat"))
    terminal.sees("up")
    terminal.type(b"hello\r")
    terminal.until("its echo and the copy", lambda: terminal.lines() == ["up", "hello", "hello"])
    terminal.type(CTRL_D)
    assert terminal.ends() == 0


def test_a_password_is_not_seen(sit: Sit) -> None:
    terminal = sit(*python("import getpass; print('got', getpass.getpass('Password: ')[::-1])"))
    terminal.sees("Password:")
    terminal.type(b"terces\r")
    assert terminal.ends() == 0
    assert terminal.lines() == ["Password:", "got secret"]


FULL_SCREEN = """
import curses
def play(screen):
    # A key that is not awaited for ever: curses may miss a new size just before it reads.
    screen.timeout(200)
    key, shown = -1, 'none'
    while key != ord('q'):
        rows, columns = screen.getmaxyx()
        screen.erase()
        screen.addstr(0, 0, f'{rows} rows, key {shown}')
        screen.addstr(rows - 1, columns - 9, 'the end')
        key = screen.getch()
        if key != -1:
            shown = curses.keyname(key).decode()
curses.wrapper(play)
print('over')
"""


def test_a_full_screen_program_draws_reads_keys_and_follows_the_size(sit: Sit) -> None:
    terminal = sit(*python(FULL_SCREEN))
    terminal.sees("24 rows, key none", " " * 71 + "the end")
    terminal.type(b"\x1b[A")
    terminal.sees("key KEY_UP")
    terminal.resize(30, 100)
    terminal.sees("30 rows, key KEY_RESIZE", " " * 91 + "the end")
    terminal.type(b"q")
    assert terminal.ends() == 0
    assert "over" in terminal.lines()[-1]
    leaves_it_as_it_was(terminal)


def test_a_program_that_does_not_read_holds_nothing_up(sit: Sit, instance: Instance) -> None:
    """More is typed, or pasted, than any queue of the kernel holds."""
    terminal = sit(*shell("stty raw -echo; echo ready; while [ ! -e go ]; do sleep 0.05; done"))
    terminal.sees("ready")
    for _ in range(50):
        terminal.type(b"x" * 1000)
    (instance.work / "go").touch()
    assert terminal.ends() == 0
    leaves_it_as_it_was(terminal)


@pytest.mark.skipif(os.getuid() != 0, reason="not root: the daemon runs jobs of its own user only")
def test_another_users_job_has_a_terminal_of_that_user(
    make_instance: Callable[..., Instance],
) -> None:
    """It is made by that user's own drf; root has no part in it."""
    instance = make_instance(CONFIG + '[daemon]\nsystem_users = ["nobody"]\n').start()
    instance.work.chmod(0o777)
    terminal = Emulator(
        *shell("id -u; stat -c %u $(tty); echo to it > /dev/tty; read x; echo got $x"),
        cwd=instance.work,
        env={**os.environ, "DRFD_SOCKET": str(instance.socket), "HOME": "/"},
        user=65534,
        group=65534,
        extra_groups=[],
    )
    try:
        terminal.sees("to it")
        terminal.type(b"this\r")
        assert terminal.ends() == 0
        assert terminal.lines() == ["65534", "65534", "to it", "this", "got this"]
    finally:
        terminal.close()


# -- suspending ----------------------------------------------------------------------------------


def test_suspending_gives_the_shell_back_and_stops_the_job(sit: Sit, instance: Instance) -> None:
    terminal = sit("bash", "--norc", "-i")
    terminal.sees("$")
    job = "sh -c 'echo $$ > pid; echo up; exec sleep 1000'"
    terminal.type(f"{DRF} run -- {job}\r".encode())
    terminal.sees("\nup")
    pid = int((instance.work / "pid").read_text())
    terminal.type(CTRL_Z)
    terminal.sees("Stopped")
    wait_for("a stopped job", lambda: state(pid) == "T")
    terminal.type(b"stty -a | grep -wo icanon\r")
    terminal.sees("\nicanon")
    terminal.type(b"fg\r")
    terminal.sees("$ fg")
    wait_for("a job that goes on", lambda: state(pid) in "SR")
    terminal.type(CTRL_C)
    terminal.until("the shell's prompt", lambda: terminal.lines()[-1] == "$")
    terminal.type(b"echo code $?\r")
    terminal.sees("code 130")


def test_in_the_background_the_keys_are_the_shells_until_it_comes_to_the_fore(sit: Sit) -> None:
    terminal = sit("bash", "--norc", "-i")
    terminal.sees("$")
    # Seen behind the prompt, or before it if the shell is slow; not what is typed here.
    job = "echo sum $((40 + 2)); read x; echo got =$x="
    terminal.type(f"{DRF} run -- sh -c '{job}' &\r".encode())
    terminal.sees("sum 42")
    terminal.type(b"echo for the $((1 + 1))nd\r")
    terminal.sees("\nfor the 2nd")
    terminal.type(b"fg\r")
    terminal.sees("$ fg\n")
    raw = ~(termios.ICANON | termios.ISIG)
    terminal.until("raw keys", lambda: terminal.modes()[3] == terminal.modes()[3] & raw)
    terminal.type(b"job\r")
    terminal.sees("got =job=")
    terminal.until("the shell's prompt", lambda: terminal.lines()[-1] == "$")


def test_a_shell_in_a_job_suspends_its_own_programs(sit: Sit) -> None:
    terminal = sit(*RUN, "bash", "--norc", "-i")
    terminal.sees("$")
    terminal.type(b"sh -c 'echo up; exec sleep 1000'\r")
    terminal.sees("\nup")
    terminal.type(CTRL_Z)
    terminal.sees("Stopped")
    terminal.type(b"kill -9 %1; exec sh -c 'exit 4'\r")
    assert terminal.ends() == 4


#: Reads ^Z as a key, leaves the screen, asks the kernel to stop it, and draws all, as vim does.
OWN_KEYS = """
import os, signal, sys, tty
tty.setraw(0)
def draw():
    os.write(1, b'\\x1b[?1049h\\x1b[2J\\x1b[Hdrawn\\x1b[24;1Hthe end')
signal.signal(signal.SIGWINCH, lambda number, frame: draw())
draw()
while (key := os.read(0, 1)) != b'q':
    if key == b'\\x1a':
        os.write(1, b'\\x1b[?1049l')
        os.kill(0, signal.SIGTSTP)
        draw()
os.write(1, b'\\x1b[?1049l')
"""


@pytest.mark.parametrize(
    ("code", "seen"), [(FULL_SCREEN, "24 rows"), (OWN_KEYS, "drawn")], ids=["curses", "own keys"]
)
def test_a_full_screen_program_leaves_the_screen_and_draws_it_again(
    sit: Sit, instance: Instance, code: str, seen: str
) -> None:
    (instance.work / "full.py").write_text(code)
    env = {**os.environ, "DRFD_SOCKET": str(instance.socket), "TERM": "xterm", "PS1": "$ "}
    terminal = sit("bash", "--norc", "-i", env=env)
    terminal.sees("$")
    terminal.type(f"{DRF} run -- python3 -I full.py\r".encode())
    terminal.sees(seen, "the end")
    terminal.type(CTRL_Z)
    terminal.sees("Stopped")
    entered, _, left = terminal.sent.rpartition(b"\x1b[?1049l")
    assert entered
    assert b"\x1b[?1049h" not in left
    terminal.type(b"clear; echo it is $((40 + 2))\r")
    terminal.sees("it is 42")
    assert seen not in "\n".join(terminal.lines())
    terminal.type(b"fg\r")
    terminal.sees(seen, "the end")
    assert b"\x1b[?1049h" in terminal.sent.rpartition(b"it is 42")[2]
    terminal.type(b"q")
    terminal.until("the shell's prompt", lambda: terminal.lines()[-1].endswith("$"))


def test_a_program_that_stops_itself_goes_on_after_fg(sit: Sit) -> None:
    code = """
import os, signal
def stop(number, frame):
    os.write(1, b'cleaned up\\n')
    os.kill(os.getpid(), signal.SIGSTOP)
    os.write(1, b'back again\\n')
signal.signal(signal.SIGTSTP, stop)
os.write(1, b'\\x1b[?1049hready\\n')
while True:
    signal.pause()
"""
    terminal = sit("bash", "--norc", "-i")
    terminal.sees("$")
    words = " ".join(map(shlex.quote, map(str, python(code))))
    terminal.type(f"PS2=; {words}\r".replace("\n", "\r").encode())
    terminal.sees("\nready")
    terminal.type(CTRL_Z)
    # On a slow machine it cleans up only after fg; it must not stay stopped then.
    terminal.sees("Stopped")
    terminal.type(b"fg\r")
    terminal.sees("\ncleaned up", "\nback again")
    terminal.type(CTRL_BACKSLASH)
    terminal.until("the shell's prompt", lambda: terminal.lines()[-1].endswith("$"))


def test_a_detached_full_screen_program_leaves_the_screen(sit: Sit, instance: Instance) -> None:
    terminal = sit(
        *shell(r"printf '\033[?1049h\033[?25lup\n'; while [ ! -e go ]; do sleep .1; done")
    )
    terminal.sees("up")
    terminal.type(b"\r~d")
    assert terminal.ends() == 0
    assert b"\x1b[?1049l" in terminal.sent
    assert b"\x1b[?25h" in terminal.sent
    (instance.work / "go").touch()
    instance.wait_end(1)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# -- escapes -------------------------------------------------------------------------------------


def test_a_detached_job_goes_on_into_its_output_file(sit: Sit, instance: Instance) -> None:
    terminal = sit(*shell("echo before; while [ ! -e go ]; do sleep 0.05; done; echo after; tty"))
    terminal.sees("before")
    terminal.type(b"\r~d")
    assert terminal.ends() == 0
    leaves_it_as_it_was(terminal)
    assert "drf: job 1 goes on; its output goes to " in "\n".join(terminal.lines())
    terminal.close()
    (instance.work / "go").touch()
    assert instance.wait_end(1)["outcome"]["code"] == "COMPLETED"
    wait_for("its output", lambda: "/dev/pts/" in instance.output(1))
    assert instance.output(1).split()[0] == "after"


def test_hanging_up_by_an_escape_ends_the_job(sit: Sit, instance: Instance) -> None:
    terminal = sit(*shell("echo up; exec sleep 1000"))
    terminal.sees("up")
    terminal.type(b"\r~?")
    terminal.sees("~d   detach")
    terminal.type(b"~.")
    assert terminal.ends() == 128 + signal.SIGHUP
    leaves_it_as_it_was(terminal)
    assert instance.wait_end(1)["signal"] == signal.SIGHUP


def test_a_tilde_is_a_tilde_elsewhere_and_when_there_are_no_escapes(sit: Sit) -> None:
    terminal = sit(DRF, "run", "--escape", "none", "--", "sh", "-c", "echo up; read x; echo =$x")
    terminal.sees("up")
    terminal.type(b"~.\r")
    terminal.sees("=~.")
    terminal = sit(*shell("echo up; read x; echo =$x"))
    terminal.sees("up")
    terminal.type(b"a~.\r")
    terminal.sees("=a~.")


# -- before it starts ----------------------------------------------------------------------------


@pytest.fixture
def drained(instance: Instance) -> Instance:
    """Nothing starts until it is undrained."""
    instance.drf("drain")
    return instance


def test_while_it_waits_the_reason_is_one_line_and_keys_are_lost(
    sit: Sit, drained: Instance
) -> None:
    terminal = sit(*shell("read x; echo got $x"))
    terminal.sees("drf: job 1 waits: DRAINING")
    terminal.type(b"too early\r")
    drained.drf("undrain")
    terminal.until("its start", lambda: terminal.lines() == [""])
    terminal.type(b"in time\r")
    assert terminal.ends() == 0
    assert terminal.lines() == ["in time", "got in time"]


def test_while_it_waits_an_interrupt_cancels_it(sit: Sit, drained: Instance) -> None:
    terminal = sit(*shell("echo ran"))
    terminal.sees("job 1 waits")
    terminal.type(CTRL_C)
    assert terminal.ends() == 125
    assert terminal.lines() == ["drf: job 1 is cancelled before it has started"]
    leaves_it_as_it_was(terminal)
    assert drained.show(1)["state"] == "CANCELLED"


def test_a_waiting_job_whose_drf_is_killed_is_cancelled(sit: Sit, drained: Instance) -> None:
    terminal = sit(*shell("echo ran"))
    terminal.sees("job 1 waits")
    terminal.process.kill()
    assert drained.wait_end(1)["state"] == "CANCELLED"


# -- who goes away -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill -9", "the window is closed"])
def test_a_job_whose_terminal_goes_away_is_hung_up(sit: Sit, instance: Instance, how: str) -> None:
    terminal = sit(
        *shell("trap 'echo hung up > hup; exit 5' HUP; echo up; while :; do sleep .1; done")
    )
    terminal.sees("up")
    if how == "kill -9":
        terminal.process.kill()
    else:
        terminal.close()
    assert instance.wait_end(1)["exit_code"] == 5
    assert (instance.work / "hup").read_text() == "hung up\n"


def test_a_job_that_does_not_mind_being_hung_up_is_cancelled(sit: Sit, instance: Instance) -> None:
    terminal = sit(*shell("trap '' HUP; echo $$ > pid; echo up; while :; do sleep .1; done"))
    terminal.sees("up")
    pid = int((instance.work / "pid").read_text())
    terminal.process.kill()
    assert instance.wait_end(1)["state"] == "CANCELLED"
    assert not is_alive(pid)


def test_a_terminate_stops_the_job_and_leaves_the_terminal_as_it_was(
    sit: Sit, instance: Instance
) -> None:
    terminal = sit(*shell("echo up; exec sleep 1000"))
    terminal.sees("up")
    terminal.process.terminate()
    assert terminal.ends() == 128 + signal.SIGTERM
    leaves_it_as_it_was(terminal)
    assert instance.show(1)["state"] == "CANCELLED"


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "restart"])
def test_a_restart_of_the_daemon_does_not_cut_the_terminal(
    sit: Sit, instance: Instance, crash: bool
) -> None:
    terminal = sit(*shell("echo up; read x; echo got $x; exit 6"))
    terminal.sees("up")
    instance.kill() if crash else instance.stop()
    terminal.type(b"mean")
    terminal.sees("mean")
    instance.start()
    terminal.type(b"while\r")
    assert terminal.ends() == 6
    assert terminal.lines()[-1] == "got meanwhile"


# -- without a terminal, or with half of one -----------------------------------------------------


def test_errors_may_go_elsewhere(sit: Sit, instance: Instance) -> None:
    with open(instance.work / "errors", "wb") as errors:
        terminal = sit(*shell("test -t 0 && test -t 1 && echo two; echo oops >&2"), stderr=errors)
        assert terminal.ends() == 0
    assert terminal.lines() == ["two"]
    assert (instance.work / "errors").read_text() == "oops\n"


def test_a_pager_behind_the_job_keeps_the_terminal(sit: Sit) -> None:
    """`drf run -- make | less`: less reads its keys from the same terminal."""
    script = f"{DRF} run -- sh -c 'sleep 0.2; tty; echo end' | (read x < /dev/tty; echo $x; cat)"
    terminal = sit("sh", "-c", f"tty; {script}")
    terminal.sees("/dev/pts/")
    terminal.type(b"for the pager\r")
    assert terminal.ends() == 0
    mine, _, read, jobs, end = terminal.lines()
    assert (read, jobs, end) == ("for the pager", mine, "end")


def test_in_a_pipe_everything_is_passed_on_byte_for_byte(instance: Instance) -> None:
    data = bytes(range(256)) * 4000
    (instance.work / "data").write_bytes(data)
    done = subprocess.run(
        f"cat data | {DRF} run -- cat | cat",
        shell=True,
        cwd=instance.work,
        env={**os.environ, "DRFD_SOCKET": str(instance.socket)},
        capture_output=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == (data, b"")


def test_a_job_without_terminal_is_cancelled_when_its_drf_is_gone(instance: Instance) -> None:
    process = subprocess.Popen(
        [*map(str, RUN), "sh", "-c", "echo up; exec sleep 1000"],
        cwd=instance.work,
        env={**os.environ, "DRFD_SOCKET": str(instance.socket)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.kill()
    process.communicate()
    assert instance.wait_end(1)["state"] == "CANCELLED"
