"""The runner of a job, from the fork to the record of the end. Every one is real."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import kernel_calls
from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Records
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.system import process
from launcher.rig import ROOT, UNTIL_GO, Driver, Runs, lives, shell, state_of, until, written

#: Each test starts a runner.
pytestmark = pytest.mark.slow

KEY = (1, 1)
PLACE = Unconfined("a test")


class Bell:
    """The launcher's end of the pipe, as a FIFO."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def rung(self) -> list[str]:
        """Since the last time."""
        try:
            return os.read(self._fd, 1 << 16).decode().splitlines()
        except BlockingIOError:
            return []

    def close(self) -> None:
        os.close(self._fd)


def pid_of(attempt: Records) -> int:
    assert attempt.launched is not None
    return int(attempt.launched["pid"])


def how(runs: Runs) -> tuple[int | None, int | None]:
    """Exit code and signal of the attempt, once it has ended."""
    attempt = runs.files.over()
    assert attempt.launch_failed is None
    assert attempt.exited is not None
    return attempt.exited["exit_code"], attempt.exited["signal"]


# -- the record -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "end"),
    [
        *((f"exit {code}", (code, None)) for code in (0, 1, 125, 255)),
        *((f"kill -{number:d} $$", (None, number)) for number in (9, 15, 11, 1)),
    ],
)
def test_exit_code_and_signal_are_on_record(runs, script, end):
    runs.start(script)
    assert how(runs) == end


def test_the_whole_life_is_on_record(runs):
    before = time.time(), time.monotonic()
    runner = runs.start("echo $$; exit 3")
    attempt = runs.files.over()
    after = time.time(), time.monotonic()
    assert attempt.created["at_s"] == 1000.0, "written by whoever made the file"
    assert attempt.runner is not None
    assert attempt.runner["pid"] == runner
    assert pid_of(attempt) == int((runs.work / "out").read_text())
    ended = attempt.exited
    assert ended is not None
    assert before[0] <= ended["at_s"] <= after[0]
    assert before[1] <= ended["mono_s"] <= after[1]
    assert set(ended) == {
        *("at_s", "mono_s", "exit_code", "signal"),
        *("cpu_s", "peak_bytes", "read_bytes", "written_bytes", "counters"),
    }
    assert 0 < ended["peak_bytes"] < 50 << 20, "its shell's"


def test_what_the_job_and_its_children_used_is_on_record(runs):
    """Children that the job did not wait for as well."""
    python = f"{sys.executable} -I -S -c"
    script = (
        f"{python} 'import time\nwhile time.process_time() < 0.1: pass' & "
        "dd if=/dev/zero of=made bs=1M count=4 2>/dev/null; "
        f"{python} 'b\"x\" * 50_000_000'; wait"
    )
    runs.start(script)
    ended = runs.files.over().exited
    assert ended is not None
    assert 0.1 <= ended["cpu_s"] < 60
    assert 50_000_000 < ended["peak_bytes"] < 2_000_000_000
    assert ended["read_bytes"] >= 0
    # Nothing is written to where files live in memory.
    assert ended["written_bytes"] == 0 or 4 << 20 <= ended["written_bytes"] < 64 << 20


def test_the_end_is_that_of_the_first_process(runs):
    """Orphans that the runner reaps meanwhile end in their own ways."""
    script = "(sh -c 'exit 3' &); (sh -c 'kill -9 $$' &); sleep 0.05; exit 7"
    runs.start(script)
    assert how(runs) == (7, None)


_TRACED = """\
import ctypes, os, signal, time
if os.getuid() == 0:  # A process with capabilities is traced by none that has fewer.
    os.setuid(65534)
traced = os.getpid()
if os.fork() == 0:
    while open(f"/proc/{traced}/stat").read().rpartition(")")[2].split()[0] != "t":
        time.sleep(0.01)
    time.sleep(0.3)
    print("still there", flush=True)
    os.kill(traced, signal.SIGKILL)
else:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(traced, signal.SIGUSR1)
"""


def test_a_job_that_has_itself_traced_is_not_over_when_it_stops(runs):
    """Its parent is the runner (PTRACE_TRACEME), which killed all of it then."""
    runs.start(f"exec {sys.executable} -I -S -c '{_TRACED}'")
    assert how(runs) == (None, signal.SIGKILL)
    assert (runs.work / "out").read_text() == "still there\n"


# -- while it lives -------------------------------------------------------------------------


def test_the_runner_is_out_of_the_launchers_session_and_of_its_fate(runs):
    """^C at the terminal and TERM to the service are for others."""
    runner = runs.start()
    runs.pid()
    assert os.getsid(runner) == runner != os.getsid(runs.driver.pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(runner, number)
    runs.go()
    assert how(runs) == (7, None)


def test_the_runner_keeps_no_descriptor_of_the_launcher(runs):
    runner = runs.start("echo up; sleep 60")
    written(runs.work / "out")

    def files_of_runner() -> list[str]:
        nonlocal targets
        targets = []
        for fd in os.listdir(f"/proc/{runner}/fd"):
            # It may be closing it.
            with suppress(FileNotFoundError):
                targets += [os.readlink(f"/proc/{runner}/fd/{fd}")] if int(fd) > 2 else []
        return [target for target in targets if target.startswith("/")]

    targets: list[str] = []
    # What the job is to run is closed once it runs, a moment after it says so.
    kept = sorted([str(runs.files.path / "1.1"), f"/proc/{runner}/task/{runner}/children"])
    until("no other files", lambda: sorted(files_of_runner()) == kept)
    others = [target for target in targets if not target.startswith("/")]
    assert others == ["anon_inode:[signalfd]"]


def test_the_bell_rings_at_the_start_alone(runs, tmp_path):
    """The file has the news already."""
    bell = Bell(tmp_path / "bell")
    runner = runs.start(bell=bell.path)
    assert until("the bell", bell.rung) == ["1.1"]
    attempt = runs.files.read()
    assert attempt.launched is not None
    assert not attempt.is_over
    runs.go()
    assert runs.driver.reap(runner) == 0, "its exit says the rest"
    assert bell.rung() == []
    assert runs.files.read().is_over
    assert not attempt_files.is_locked(runs.files.fd, (1, 1))
    bell.close()


def test_a_bell_that_nobody_answers_does_not_hold_up_the_runner(runs, tmp_path):
    """The launcher's pipe does not block: it has been made so."""
    bell = Bell(tmp_path / "bell")
    full = os.open(bell.path, os.O_WRONLY | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(full, b"x" * 4096)
    runs.start("exit 4", bell=bell.path)
    assert how(runs) == (4, None)
    os.close(full)
    bell.close()


def test_root_asks_nothing_of_the_file_system_that_an_output_is_on(runs):
    """The close of an ordinary descriptor waits for the user's own file system (FUSE), for ever."""
    runner = runs.start(shell(UNTIL_GO, cwd=runs.work, output_max_bytes=1 << 20))
    runs.files.running()
    fds = Path(f"/proc/{runner}/fd").iterdir()
    own = [each for each in fds if each.resolve().parent == runs.work]
    infos = [Path(f"/proc/{runner}/fdinfo/{each.name}").read_text() for each in own]
    flags = [int(re.findall(r"flags:\s*(\d+)", info)[0], 8) for info in infos]
    assert flags and all(flag & os.O_PATH for flag in flags)
    runs.go()
    assert how(runs) == (7, None)


# -- what the job leaves behind -------------------------------------------------------------

ESCAPES = {
    "in the background": "sleep 60 & echo $! > pid",
    "in a session of its own": "setsid sleep 60 & echo $! > pid",
    "forked twice": "(sleep 60 & echo $! > pid)",
    "forked twice, in a session of its own": "(setsid sleep 60 & echo $! > pid)",
    "a daemon's child": "(setsid sh -c 'sleep 60 & echo $! > pid; wait' &)",
    "deaf to TERM": "(trap '' TERM HUP INT; setsid sleep 60 & echo $! > pid)",
    "stopped": "(setsid sh -c 'echo $$ > pid; kill -STOP $$' &)",
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
def test_nothing_of_a_job_outlives_it(runs, escape):
    """The end is on record only when all of it is gone: then its memory is free."""
    runs.start(f"{escape}; until [ -s pid ]; do sleep 0.01; done; exit 8")
    left = runs.pid()
    until("the end", lambda: runs.files.read().exited)
    assert state_of(left) is None
    assert how(runs) == (8, None)


# -- killed from outside --------------------------------------------------------------------


def test_a_killed_runner_leaves_no_end_and_no_lock(runs):
    """And its job, which is found by its session."""
    runner = runs.start("sleep 60 & echo $! > pid; wait")
    child = runs.pid()
    job = pid_of(runs.files.running())
    os.kill(runner, signal.SIGKILL)
    runs.driver.reap(runner)
    attempt = runs.files.read()
    assert (attempt.exited, attempt.launch_failed, attempt.may_have_run) == (None, None, True)
    assert not attempt_files.is_locked(runs.files.fd, KEY)
    assert lives(job)
    assert lives(child)
    until("an end by force", lambda: PLACE.kill_pass(KEY, attempt))
    assert not lives(job)
    # Killed with it, and so perhaps a moment later.
    until("the end of its child", lambda: not lives(child))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_job_is_known_again_where_processes_of_others_are_hidden(files, work):
    """Else it went on when its runner had been killed, as LOST."""
    hide = 'mount -t proc -o hidepid=2,gid=65533 proc /proc && exec "$@"'
    driver = Driver(before=("unshare", "--mount", "sh", "-c", hide, "sh"))
    try:
        runs = Runs(driver, files, work)
        runs.start()
        job = runs.pid()
        ticks = process.start_ticks(job)
        assert files.running().launched == {"pid": job, "start_ticks": ticks}
        runs.go()
        assert how(runs) == (7, None)
    finally:
        driver.close()


# -- out of memory --------------------------------------------------------------------------


takes_descriptors = pytest.mark.skipif(
    os.getuid() != 0, reason="not root: may take none of another's"
)


@pytest.fixture
def short(work) -> Callable[..., None]:
    """Make the place of the running job be short of memory; `kills`: the kernel has killed."""
    events = work / "events"
    events.touch()
    (work / "killed").write_text("oom_kill 0\n")
    for name in ("pids.max", "freezer.state"):
        (work / f"events.{name}").touch()

    def strike(runner: int, *, kills: bool) -> None:
        (work / "killed").write_text(f"oom_kill {kills:d}\n")
        fd = kernel_calls.take_descriptor(runner, int(events.read_text().split()[0]))
        os.eventfd_write(fd, 1)
        os.close(fd)

    return strike


@takes_descriptors
def test_when_the_kernel_kills_one_the_rest_follows(runs, short):
    """Half a job does no good, and waits for ever."""
    script = "(setsid sleep 60 & echo $! > pid); echo up; sleep 60"
    runner = runs.start(script, place="short")
    written(runs.work / "out")
    left = runs.pid()
    short(runner, kills=True)
    assert how(runs) == (None, signal.SIGKILL)
    assert state_of(left) is None
    # That none forks any more, and that none is frozen, which would keep it from dying.
    assert (runs.work / "events.pids.max").read_text().strip("0") == ""
    assert (runs.work / "events.pids.max").read_text() != ""
    assert (runs.work / "events.freezer.state").read_text().startswith("THAWED")


def test_a_process_that_hangs_before_its_program_begins_is_given_up(runs):
    """Its time limit does not count yet: it would keep what is given to it for ever."""
    attempt = runs.over(runs.start("echo up", place="stopped"))
    text = "entering its directory and opening its output files took longer than 1 s"
    assert (attempt.launch_failed, attempt.launched) == ({"text": text}, None)
    assert not (runs.work / "out").exists()


#: Executes the rest of its words where clone3 fails, as in many containers.
WITHOUT_CLONE3 = """
import os, struct, sys
sys.path[:0] = sys.argv[1:3]
import kernel_calls
from drfd.linux import syscalls
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 435), (0x06, 0, 0, 0x50026), (0x06, 0, 0, 0x7FFF0000)]
syscalls.set_no_new_privileges()
kernel_calls.filter_calls(b"".join(struct.pack("=HBBI", *step) for step in steps))
os.execv(sys.argv[3], sys.argv[3:])
"""


@pytest.mark.parametrize(
    "before",
    [
        (sys.executable, "-I", "-c", WITHOUT_CLONE3, str(ROOT), str(ROOT / "tests")),
        pytest.param(
            ("/usr/bin/setpriv", "--bounding-set", "-kill"),
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root has capabilities to lose"),
        ),
    ],
    ids=["clone3", "CAP_KILL"],
)
def test_jobs_run_where_a_container_refuses(files, work, before):
    driver = Driver(before=before)
    try:
        runs = Runs(driver, files, work)
        runs.start("exit 3")
        assert how(runs) == (3, None)
    finally:
        driver.close()


@takes_descriptors
def test_a_shortage_without_a_kill_ends_nothing(runs, short):
    """The kernel also tells when it could reclaim enough."""
    runner = runs.start(place="short")
    runs.pid()
    short(runner, kills=False)
    runs.go()
    assert how(runs) == (7, None)
