"""A job's terminal, as somebody who sits there sees it: `drf run` on one and without one, and
`drf attach`, by which it is left and returned to."""

import os
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from functools import partial

import pytest

from emulator import Emulator
from instance import BIN, CONFIG, Instance, is_alive, state_of, wait_for

Sit = Callable[..., Emulator]

CTRL_C, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x1a", b"\x1c"
DRF = BIN / "drf"
RUN = (DRF, "run", "--")


@pytest.fixture
def sit(instance, seat):
    """Start a program in a terminal of its own, with the instance's daemon and a home there."""
    return partial(seat, instance)


def latest(instance: Instance) -> int:
    """The id of the job that was submitted last."""
    return max(job["id"] for job in instance._ask("status", ended=1)["jobs"])


def shell(script: str) -> tuple[object, ...]:
    return (*RUN, "sh", "-c", script)


def python(code: str) -> tuple[object, ...]:
    return (*RUN, "python3", "-I", "-c", code)


def leaves_it_as_it_was(terminal: Emulator) -> None:
    assert terminal.modes() == terminal.modes_before


# -- a terminal of its own --------------------------------------------------------------------


def test_the_job_leads_a_session_on_a_terminal_of_its_own(sit):
    terminal = sit(
        *shell(
            "test -t 0 && test -t 1 && test -t 2 && echo three; echo to it > /dev/tty;"
            " set -- $(cat /proc/$$/stat); test $1 = $5 -a $1 = $6 -a $1 = $8 && echo leader"
        )
    )
    assert terminal.ends() == 0
    assert terminal.lines() == ["three", "to it", "leader"]
    leaves_it_as_it_was(terminal)


@pytest.mark.parametrize("status", [0, 3, 255])
def test_it_exits_as_the_job_does_and_shows_all_that_it_wrote(sit, status):
    terminal = sit(*shell(f"seq 5000; exit {status}"))
    assert terminal.ends() == status
    assert terminal.sent.split() == [b"%d" % number for number in range(1, 5001)]
    leaves_it_as_it_was(terminal)


def test_the_job_has_the_size_of_the_terminal_and_hears_when_it_changes(sit):
    terminal = sit(*shell("trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.1; done"))
    terminal.sees("24 80")
    terminal.resize(40, 132)
    terminal.sees("40 132")
    assert terminal.ends() == 0


def test_interrupt_and_quit_are_the_jobs_own(sit, instance):
    terminal = sit(*shell("trap 'echo not yet' INT; echo ready; while :; do sleep 0.1; done"))
    terminal.sees("ready")
    terminal.type(CTRL_C)
    terminal.sees("not yet")
    terminal.type(CTRL_BACKSLASH)
    assert terminal.ends() == 128 + signal.SIGQUIT
    leaves_it_as_it_was(terminal)
    assert instance.show(latest(instance))["outcome"]["code"] == "FAILED"


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


def test_a_full_screen_program_draws_reads_keys_and_follows_the_size(sit):
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


def test_a_program_that_does_not_read_holds_nothing_up(sit, instance):
    """More is typed, or pasted, than any queue of the kernel holds."""
    terminal = sit(*shell("stty raw -echo; echo ready; while [ ! -e go ]; do sleep 0.05; done"))
    terminal.sees("ready")
    for _ in range(50):
        terminal.type(b"x" * 1000)
    (instance.work / "go").touch()
    assert terminal.ends() == 0
    leaves_it_as_it_was(terminal)


@pytest.mark.skipif(os.getuid() != 0, reason="not root: the daemon runs jobs of its own user only")
def test_another_users_job_has_a_terminal_of_that_user(lend, seat):
    """It is made by that user's own drf; root has no part in it."""
    instance = lend(CONFIG + '[daemon]\nsystem_users = ["nobody"]\n')
    instance.work.chmod(0o777)
    terminal = seat(
        instance,
        *shell("id -u; stat -c %u $(tty); echo to it > /dev/tty; read x; echo got $x"),
        env={"HOME": "/"},
        user=65534,
        group=65534,
        extra_groups=[],
    )
    terminal.sees("to it")
    terminal.type(b"this\r")
    assert terminal.ends() == 0
    assert terminal.lines() == ["65534", "65534", "to it", "this", "got this"]


# -- suspending -------------------------------------------------------------------------------


def test_suspending_gives_the_shell_back_and_stops_the_job(sit, instance):
    terminal = sit("bash", "--norc", "-i")
    terminal.sees("$")
    job = "sh -c 'echo $$ > pid; echo up; exec sleep 1000'"
    terminal.type(f"{DRF} run -- {job}\r".encode())
    terminal.sees("\nup")
    pid = int((instance.work / "pid").read_text())
    terminal.type(CTRL_Z)
    terminal.sees("Stopped")
    wait_for("a stopped job", lambda: state_of(pid) == "T")
    terminal.type(b"stty -a | grep -wo icanon\r")
    terminal.sees("\nicanon")
    terminal.type(b"fg\r")
    terminal.sees("$ fg")
    wait_for("a job that goes on", lambda: state_of(pid) in ("S", "R"))
    terminal.type(CTRL_C)
    terminal.until("the shell's prompt", lambda: terminal.lines()[-1] == "$")
    terminal.type(b"echo code $?\r")
    terminal.sees("code 130")


def test_in_the_background_the_keys_are_the_shells_until_it_comes_to_the_fore(sit):
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


def test_a_shell_in_a_job_suspends_its_own_programs(sit):
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
def test_a_full_screen_program_leaves_the_screen_and_draws_it_again(sit, instance, code, seen):
    (instance.work / "full.py").write_text(code)
    terminal = sit("bash", "--norc", "-i", env={"TERM": "xterm"})
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


def test_a_program_that_stops_itself_goes_on_after_fg(sit):
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


# -- escapes ----------------------------------------------------------------------------------


def test_hanging_up_by_an_escape_ends_the_job(sit, instance):
    terminal = sit(*shell("echo up; exec sleep 1000"))
    terminal.sees("up")
    terminal.type(b"\r~?")
    terminal.sees("~d   detach")
    terminal.type(b"~.")
    assert terminal.ends() == 128 + signal.SIGHUP
    leaves_it_as_it_was(terminal)
    assert instance.wait_end(latest(instance))["signal"] == signal.SIGHUP


# -- before it starts -------------------------------------------------------------------------


@pytest.fixture
def drained(instance) -> Instance:
    """Nothing starts until it is undrained."""
    instance.drf("drain")
    return instance


def test_while_it_waits_the_reason_is_one_line_and_keys_are_lost(sit, drained):
    terminal = sit(*shell("read x; echo got $x"))
    terminal.sees("waits: DRAINING")
    assert f"drf: job {latest(drained)} waits: DRAINING" in "\n".join(terminal.lines())
    terminal.type(b"too early\r")
    drained.drf("undrain")
    terminal.until("its start", lambda: terminal.lines() == [""])
    terminal.type(b"in time\r")
    assert terminal.ends() == 0
    assert terminal.lines() == ["in time", "got in time"]


def test_while_it_waits_an_interrupt_cancels_it(sit, drained):
    terminal = sit(*shell("echo ran"))
    terminal.sees("waits: DRAINING")
    terminal.type(CTRL_C)
    assert terminal.ends() == 125
    assert terminal.lines() == [f"drf: job {latest(drained)} is cancelled before it has started"]
    leaves_it_as_it_was(terminal)
    assert drained.show(latest(drained))["state"] == "CANCELLED"


def test_a_waiting_job_whose_drf_is_killed_is_cancelled(sit, drained):
    terminal = sit(*shell("echo ran"))
    terminal.sees("waits: DRAINING")
    terminal.process.kill()
    assert drained.wait_end(latest(drained))["state"] == "CANCELLED"


# -- who goes away ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill -9", "the window is closed"])
def test_a_job_whose_terminal_goes_away_is_hung_up(sit, instance, how):
    terminal = sit(
        *shell("trap 'echo hung up > hup; exit 5' HUP; echo up; while :; do sleep .1; done")
    )
    terminal.sees("up")
    if how == "kill -9":
        terminal.process.kill()
    else:
        terminal.close()
    assert instance.wait_end(latest(instance))["exit_code"] == 5
    assert (instance.work / "hup").read_text() == "hung up\n"


def test_a_job_that_does_not_mind_being_hung_up_is_cancelled(sit, instance):
    terminal = sit(*shell("trap '' HUP; echo $$ > pid; echo up; while :; do sleep .1; done"))
    terminal.sees("up")
    pid = int((instance.work / "pid").read_text())
    terminal.process.kill()
    assert instance.wait_end(latest(instance))["state"] == "CANCELLED"
    assert not is_alive(pid)


def test_a_terminate_stops_the_job_and_leaves_the_terminal_as_it_was(sit, instance):
    terminal = sit(*shell("echo up; exec sleep 1000"))
    terminal.sees("up")
    terminal.process.terminate()
    assert terminal.ends() == 128 + signal.SIGTERM
    leaves_it_as_it_was(terminal)
    assert instance.show(latest(instance))["state"] == "CANCELLED"


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "restart"])
def test_a_restart_of_the_daemon_does_not_cut_the_terminal(sit, instance, crash):
    terminal = sit(*shell("echo up; read x; echo got $x; exit 6"))
    terminal.sees("up")
    instance.kill() if crash else instance.stop()
    terminal.type(b"mean")
    terminal.sees("mean")
    instance.start()
    terminal.type(b"while\r")
    assert terminal.ends() == 6
    assert terminal.lines()[-1] == "got meanwhile"


# -- without a terminal, or with half of one --------------------------------------------------


def test_errors_may_go_elsewhere(sit, instance):
    with open(instance.work / "errors", "wb") as errors:
        terminal = sit(*shell("test -t 0 && test -t 1 && echo two; echo oops >&2"), stderr=errors)
        assert terminal.ends() == 0
    assert terminal.lines() == ["two"]
    assert (instance.work / "errors").read_text() == "oops\n"


def test_a_pager_behind_the_job_keeps_the_terminal(sit):
    """`drf run -- make | less`: less reads its keys from the same terminal."""
    script = f"{DRF} run -- sh -c 'sleep 0.2; tty; echo end' | (read x < /dev/tty; echo $x; cat)"
    terminal = sit("sh", "-c", f"tty; {script}")
    terminal.sees("/dev/pts/")
    terminal.type(b"for the pager\r")
    assert terminal.ends() == 0
    mine, _, read, jobs, end = terminal.lines()
    assert (read, jobs, end) == ("for the pager", mine, "end")


def test_in_a_pipe_everything_is_passed_on_byte_for_byte(instance):
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


def test_a_job_without_terminal_is_cancelled_when_its_drf_is_gone(instance):
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
    assert instance.wait_end(latest(instance))["state"] == "CANCELLED"


# -- left and returned to ---------------------------------------------------------------------


@pytest.fixture
def attach(sit, instance):
    return lambda: sit(DRF, "attach", latest(instance))


def leave(terminal: Emulator) -> None:
    terminal.type(b"\r~d")
    assert terminal.ends() == 0
    assert terminal.modes() == terminal.modes_before


def detached(sit: Sit, script: str, sign: str = "up") -> Emulator:
    """Run a job, and leave it when the sign is on its terminal."""
    terminal = sit(*shell(script))
    terminal.sees(sign)
    leave(terminal)
    return terminal


def test_a_detached_job_is_returned_to_left_again_and_ends_there(sit, attach, instance):
    terminal = detached(sit, "echo first; while read x; do echo got $x; done; exit 3", "first")
    assert f"drf attach {latest(instance)} returns" in "\n".join(terminal.lines())

    again = attach()
    again.type(b"one\r")
    again.sees("got one")
    leave(again)
    # Its process may be ahead of the word that it runs.
    instance.wait_state(latest(instance), "RUNNING")

    # Without an id it is the latest job; what was on the terminal is there again.
    last = sit(DRF, "attach")
    last.sees("got one")
    last.type(b"two\r")
    last.sees("got two")
    last.type(b"\x04")
    assert last.ends() == 3
    assert last.modes() == last.modes_before


def test_what_is_written_while_nobody_looks_is_in_the_file_and_shown_later(sit, attach, instance):
    detached(sit, "echo up; while [ ! -e go ]; do sleep 0.05; done; echo while away; read x")
    (instance.work / "go").touch()
    wait_for("its output", lambda: "while away" in instance.output(latest(instance)))
    again = attach()
    again.sees("while away")
    again.type(b"\r")
    assert again.ends() == 0


def test_the_last_terminal_has_it_and_the_size_is_its_own(sit, attach):
    detached(sit, "echo up; while read x; do stty size; done")
    first = attach()
    first.type(b"\r")
    first.sees("24 80")
    second = attach()
    assert first.ends() == 0
    first.sees("attached to another terminal")
    second.resize(40, 132)
    second.type(b"\r")
    second.sees("40 132")


def test_a_pipe_under_the_name_of_the_output_holds_nobody_up(instance):
    """In a directory of several users it may be somebody else's."""
    before = instance.submit("--hold", "--", "true")
    os.mkfifo(instance.work / f"job-{before + 1}.out")
    words = ("submit", "--pty", "-o", "job-%j.out", "--", "true")
    done = instance.drf(*words, check=False, timeout=30)
    why = f"job-{before + 1}.out: No such device or address; the job is cancelled"
    assert (done.returncode, why in done.stderr) == (1, True)
    # Or its own process has met the pipe first.
    assert instance.wait_end(before + 1)["state"] in ("CANCELLED", "LAUNCH_FAILED")


def test_a_batch_job_has_a_terminal_in_each_run(sit, instance):
    script = "tty; [ -e again ] || { touch again; exit 3; }"
    place = instance.work / "tmp"
    place.mkdir(mode=0o700)
    words = ("submit", "--hold", "--pty", "--retry", "1", "--", "sh", "-c", script)
    terminal = sit("env", f"TMPDIR={place}", DRF, *words)
    assert terminal.ends() == 0
    instance.drf("release", latest(instance))
    assert instance.wait_end(latest(instance))["exit_code"] == 0

    def runs() -> int:
        return instance.output(latest(instance)).count("/dev/pts/")

    # What keeps the terminal may copy the last words only after the end is on record.
    wait_for("the output of both runs", lambda: runs() >= 2, show=runs)
    wait_for("nothing left", lambda: not [*place.iterdir()])
    assert runs() == 2


@pytest.mark.parametrize("words", [("submit", "--pty"), ("run",)])
def test_the_job_goes_on_when_its_window_closes_at_once(sit, attach, instance, words):
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
    again = attach()
    again.sees("up")
    again.type(b"\r")
    assert again.ends() == 0


def test_it_says_what_it_cannot_return_to(sit, attach, instance):
    batch = instance.submit("--", "sleep", "1000")
    refused = sit(DRF, "attach", str(batch))
    assert refused.ends() == 1
    refused.sees("has no terminal")
    terminal = sit(*shell("echo up; read x"))
    terminal.sees("up")
    refused = attach()
    assert refused.ends() == 1
    refused.sees("is not detached")
    assert "needs a terminal" in instance.drf("attach", latest(instance), check=False).stderr
