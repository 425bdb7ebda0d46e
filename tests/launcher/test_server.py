"""A real launcher, driven over its socket, through what can happen to it and to its runners; and as
a program: its options, its lock, its supervisor."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import JOBS_STOP_FILE, Key
from drfd.launcher.protocol import Devices, Message, SignalOrder
from drfd.launcher.system import process
from drfd.linux.device_nodes import DeviceNode
from kernel_calls import leased
from launcher.rig import (
    UNTIL_GO,
    WAIT_S,
    Controller,
    LauncherProcess,
    go,
    lives,
    order,
    pid_in,
    python,
    shell,
    state_of,
    until,
    written,
)

pytestmark = pytest.mark.slow

KEY = (1, 1)
NOTHING_KNOWN = [{"report": "listed", "known": []}]


@pytest.fixture
def controller(launcher) -> Controller:
    return launcher.connect()


def ended(controller: Controller, key: Key = KEY) -> tuple[int | None, int | None]:
    """Exit code and signal of the end that is reported next."""
    report = controller.take("exited", id=key[0], attempt=key[1])
    return report["exit_code"], report["signal"]


def begin(controller: Controller, work: Path, script: str = UNTIL_GO, **changes: Any) -> int:
    """Start a job, and wait until it is up; the pid of its runner."""
    controller.launch(shell(script, cwd=work, **changes))
    return int(controller.take("launched", id=changes.get("id", 1))["runner_pid"])


def remove(controller: Controller, key: Key = KEY) -> None:
    controller.ask("remove", key)
    controller.take("removed", id=key[0], attempt=key[1])


def kinds(reports: list[Message]) -> list[str]:
    return [report["report"] for report in reports]


# -- a job's life ---------------------------------------------------------------------------


def test_a_job_is_reported_from_its_start_to_its_removal(launcher, controller, work):
    before = time.time(), time.monotonic()
    controller.launch(shell(UNTIL_GO, cwd=work))
    up = controller.take("launched", id=1, attempt=1)
    runner = launcher.files.read().runner
    assert runner is not None
    assert set(up) == {"report", "id", "attempt", "of", "at_s", "mono_s", "cgroup", "runner_pid"}
    assert up["of"] == shell("", cwd=work).owner.facts()
    assert (up["cgroup"], up["runner_pid"]) == (None, runner["pid"])
    assert before[0] <= up["at_s"] <= time.time()
    assert before[1] <= up["mono_s"] <= time.monotonic()
    pid_in(work / "pid")
    go(work)
    end = controller.take("exited", id=1, attempt=1)
    assert set(end) == {
        *("report", "id", "attempt", "of", "at_s", "mono_s", "exit_code", "signal"),
        *("cpu_s", "peak_bytes", "read_bytes", "written_bytes", "counters"),
    }
    assert (end["exit_code"], end["signal"]) == (7, None)
    assert not attempt_files.is_locked(launcher.files.fd, KEY), "reported while the runner lives"
    assert kinds(controller.list()) == ["launched", "exited", "listed"]
    remove(controller)
    assert controller.list() == NOTHING_KNOWN
    assert os.listdir(launcher.files.path) == []


@pytest.mark.parametrize("other", [{"uid": 4711}, {"user": "x"}, {"journal": "f" * 32}])
def test_an_attempt_of_another_owner_is_no_answer_to_a_launch(launcher, controller, work, other):
    """It was reported as the job's own, and a cancellation of the job killed its processes."""
    begin(controller, work)
    pid = pid_in(work / "pid")
    controller.launch(shell("touch ran", cwd=work, **other))
    assert "another job's attempt" in controller.take("launch_failed", id=1, attempt=1)["text"]
    listed = controller.list()[-1]
    assert listed == {"report": "listed", "known": [[1, 1]]}
    assert controller.owners == {"1.1": shell("", cwd=work).owner.facts()}
    assert lives(pid) and not (work / "ran").exists()
    go(work)
    ended(controller)
    remove(controller)


def test_what_cannot_be_run_is_reported_and_leaves_no_trace(launcher, controller, work):
    """Without cgroups no device can be hidden, so no job begins from which one should be."""
    devices = Devices(hidden=frozenset({DeviceNode("c", 1, 7)}))
    uid = 1 if os.getuid() == 0 else 0
    for changes, text in (
        ({"devices": devices}, "it could not be set up: devices cannot be hidden from jobs"),
        ({"uid": uid}, f"uid {uid} "),
    ):
        controller.launch(order("touch", "ran", cwd=work, **changes))
        assert text in controller.take("launch_failed", id=1, attempt=1)["text"]
        assert controller.list() == NOTHING_KNOWN
        assert os.listdir(launcher.files.path) == os.listdir(work) == []
    # No report can hold a byte that is no UTF-8: a job of this name ended everybody's connection.
    controller.launch(order(os.fsdecode(b"none-\xff"), cwd=work))
    text = "there is no command none-\\xff in the job's PATH"
    controller.take("launch_failed", id=1, attempt=1, text=text)
    assert kinds(controller.list()) == ["launch_failed", "listed"]
    remove(controller)
    assert controller.list() == NOTHING_KNOWN


#: Runs out of descriptors when the job at {path} has begun and its runner is to be watched, once.
BLIND = """
import errno, os, time
import drfd.launcher.runner.runner as r
watch = r.Runners._watch
def fail(*words):
    r.Runners._watch = watch
    while not os.path.exists({path!r}): time.sleep(0.01)
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
r.Runners._watch = fail
"""


def test_a_job_whose_runner_cannot_be_watched_runs_once(make_launcher, work):
    controller = make_launcher().serve(prelude=BLIND.format(path=str(work / "pid")))
    controller.launch(shell("echo ran >> runs; echo $$ > pid; exec sleep 60", cwd=work))
    controller.take("launched", id=1, attempt=1)
    controller.take("exited", id=1, attempt=1, loss="RUNNER_KILLED")
    pid = pid_in(work / "pid")
    remove(controller)
    assert not lives(pid)
    assert (work / "runs").read_text() == "ran\n"


def test_more_jobs_than_descriptors_at_the_start_are_no_obstacle(make_launcher, work):
    """Each runner costs the launcher one; the usual soft limit of 1024 is not meant for it."""
    few = "(30, r.getrlimit(r.RLIMIT_NOFILE)[1])"
    prelude = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, {few})"
    controller = make_launcher().serve(prelude=prelude)
    for number in range(1, 31):
        outputs = {"stdout": f"out{number}", "stderr": "/dev/null"}
        script = "echo $$ > pid$DRF_JOB_ID; ulimit -n; sleep 60"
        env = {"DRF_JOB_ID": str(number)}
        controller.launch(shell(script, cwd=work, id=number, variables=env, **outputs))
        controller.take("launched", id=number)
    assert len(controller.list()) == 31
    assert written(work / "out30") == "1024\n", "a job has the usual limit"


def test_why_a_program_could_not_be_run_is_told_when_the_disk_has_room_again(
    launcher, controller, work
):
    """Else its job counts as lost."""
    (launcher.failpoints / "runner.after-launched-record").write_text("stop")
    controller.launch(order("/none", cwd=work))
    reached = launcher.failpoints / "runner.after-launched-record.reached"
    runner = int(until("the runner stops", lambda: reached.exists() and reached.read_text()))
    until("a stop of the runner", lambda: state_of(runner) == "T")
    before = resource.prlimit(runner, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    os.kill(runner, signal.SIGCONT)
    until("the end of the job's process", lambda: not process.children(runner))
    time.sleep(0.3)
    assert lives(runner)
    resource.prlimit(runner, resource.RLIMIT_FSIZE, before)
    assert "/none" in controller.take("launch_failed", id=1, attempt=1)["text"]


# -- stopping -------------------------------------------------------------------------------


def test_terminate_asks_the_whole_job_to_leave(controller, work):
    script = (
        "sh -c 'trap \"echo told > b; exit\" TERM; echo > c; while :; do sleep 0.01; done' & "
        "trap 'wait; exit 9' TERM; until [ -s c ]; do :; done; echo up; wait"
    )
    begin(controller, work, script)
    written(work / "out")
    controller.ask("terminate")
    assert ended(controller) == (9, None)
    assert written(work / "b") == "told\n"


def test_a_job_that_is_told_to_leave_before_its_program_begins_leaves(launcher, controller, work):
    """Until then its process takes no notice of signals."""
    (launcher.failpoints / "runner.before-launched-record").write_text("stop")
    controller.launch(shell("sleep 300", cwd=work))
    reached = launcher.failpoints / "runner.before-launched-record.reached"
    runner = int(until("the runner stops", lambda: reached.exists() and reached.read_text()))
    controller.ask("terminate")
    assert kinds(controller.list()) == ["listed"]
    os.kill(runner, signal.SIGCONT)
    controller.take("launched", id=1, attempt=1)
    assert ended(controller) == (None, signal.SIGTERM)


def test_a_program_long_in_coming_counts_as_begun(make_launcher, work):
    """From a mount that hangs, or because its user keeps it: else no time limit would count."""
    controller = make_launcher().serve(prelude="a.EXEC_S = 1.0")
    program = work / "program"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    # For reading: a writer counts for an instant after its lease is gone, and no file that has one
    # is executed.
    with leased(program, os.O_RDONLY) as is_opened:
        controller.launch(order(str(program), cwd=work))
        controller.take("launched", id=1, attempt=1)
        until("its opening", is_opened)
    assert ended(controller) == (3, None)


def signals(controller: Controller, count: int, *numbers: int, key: Key = KEY) -> None:
    asked = SignalOrder(id=key[0], attempt=key[1], count=count, signals=numbers)
    controller.send(asked)


@pytest.mark.parametrize("command", ["terminate", "kill", "freeze", "thaw"])
def test_an_attempt_that_nobody_knows_is_missing(controller, command):
    """But removing what is not there is done: a repeated order is answered as the first one."""
    controller.ask(command, (9, 9))
    controller.take("missing", id=9, attempt=9)
    signals(controller, 1, signal.SIGUSR1)
    for number in (9, 10):
        controller.ask("remove", (number, 1))
        controller.take("removed", id=number, attempt=1)


@pytest.mark.parametrize("command", ["terminate", "kill", "freeze", "thaw"])
def test_an_attempt_that_is_over_is_not_signalled(controller, work, command):
    begin(controller, work, "exit 3")
    assert ended(controller) == (3, None)
    controller.ask(command)
    signals(controller, 1, signal.SIGUSR1)
    reports = controller.list()
    assert kinds(reports) == ["launched", "exited", "listed"]
    assert reports[1]["exit_code"] == 3


def test_what_cannot_be_ended_is_reported_stuck_and_a_runner_that_was_stopped_goes_on(
    make_launcher, work
):
    """Its user has stopped it; or else it would be a process that the kernel does not let go."""
    prelude = "import drfd.launcher.schedule as e; e.STUCK_S = 0.1"
    controller = make_launcher().serve(prelude=prelude)
    runner = begin(controller, work, "exec sleep 60")
    os.kill(runner, signal.SIGSTOP)
    controller.ask("remove")
    controller.take("stuck", id=1, attempt=1)
    assert ended(controller) == (None, signal.SIGKILL)
    controller.take("removed", id=1, attempt=1)


# -- freezing -------------------------------------------------------------------------------

#: Two processes, the second in a session of its own, that each write a line to `out` again and
#: again; the first has its pid in `pid` and leaves with 9 on a SIGTERM.
BEATS = (
    "setsid sh -c 'echo $$ > child; while :; do echo b; sleep 0.01; done' & "
    "trap 'exit 9' TERM; until [ -s child ]; do :; done; echo $$ > pid; "
    "while :; do echo a; sleep 0.01; done"
)


def beating(controller: Controller, work: Path) -> list[int]:
    """A job of `BEATS` that runs; its two processes."""
    begin(controller, work, BEATS)
    pids = [pid_in(work / "pid"), pid_in(work / "child")]
    until("beats of both", lambda: {"a", "b"} <= set((work / "out").read_text().split()))
    return pids


#: Freezing takes until a file is there: as if a process slept where no signal reaches it.
SLOW = (
    "import os; from drfd.launcher.confinement.unconfined import Unconfined as U\n"
    "quick = U.freeze\n"
    "U.freeze = lambda *words: quick(*words) and os.path.exists({path!r})"
)


@pytest.fixture
def slow(make_launcher, work) -> Controller:
    """Of a launcher on such a machine; the file is `at-last` in `work`."""
    return make_launcher().serve(prelude=SLOW.format(path=str(work / "at-last")))


def test_a_job_is_reported_frozen_when_it_is_and_not_before(slow, work):
    """Meanwhile others are served."""
    beating(slow, work)
    slow.ask("freeze")
    assert kinds(slow.list()) == ["launched", "listed"]
    begin(slow, work, "exit 3", id=2, stdout="out2")
    assert ended(slow, (2, 1)) == (3, None)
    (work / "at-last").touch()
    slow.take("frozen", id=1, attempt=1)
    assert "frozen" not in kinds(slow.list()), "once is enough"


# -- bad orders -----------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b'{"cmd":"launch","id":1}\n', b'{"cmd":"%b"}\n' % bytes(99_999)])
def test_garbage_ends_the_connection_and_nothing_else(launcher, controller, work, said):
    begin(controller, work)
    pid_in(work / "pid")
    controller.send_raw(said.replace(b"\0", b"x"))
    assert controller.is_dropped()
    assert len(launcher.log()) < 9_999
    again = launcher.connect()
    assert kinds(again.list()) == ["launched", "listed"]
    assert again.peer_pid == controller.peer_pid, "it was started again"
    go(work)
    assert ended(again) == (7, None)


# -- runners die ----------------------------------------------------------------------------


def test_an_attempt_file_that_a_power_cut_has_emptied_is_missing(launcher, controller, work):
    """Else a job that was running would seem to run for ever."""
    (launcher.files.path / "1.1").touch()
    controller = launcher.restart()
    missing = {"report": "missing", "id": 1, "attempt": 1}
    assert controller.list() == [missing, {"report": "listed", "known": [list(KEY)]}]
    remove(controller)
    assert controller.list() == NOTHING_KNOWN


def test_what_was_ended_with_all_jobs_has_an_unknown_end(launcher, controller, work):
    """The jobs' unit was stopped, as at a shutdown; how its jobs took that is not their own end."""
    runner = begin(controller, work, "trap 'exit 0' TERM; echo $$ > pid; sleep 60 & wait")
    job = pid_in(work / "pid")
    launcher.kill()
    (launcher.state / JOBS_STOP_FILE).write_text(f"{process.boot_id()} {time.time()}\n")
    os.kill(job, signal.SIGTERM)
    until("an end of the runner", lambda: not lives(runner))
    again = launcher.restart()
    up, end, _ = again.list()
    assert (up["report"], end["report"], unknown(end)) == ("launched", "exited", True)
    assert end["loss"] == "JOBS_STOPPED"
    record = launcher.files.read().exited
    assert record is not None and record["exit_code"] == 0
    again.ask("remove")
    again.take("removed", id=1, attempt=1)
    begin(again, work, "exit 3", id=2)
    assert ended(again, (2, 1)) == (3, None), "later jobs end as they do"


def unknown(end: Message) -> bool:
    """Nobody can know how it ended: LOST."""
    facts = ("mono_s", "exit_code", "signal")
    return not any(end[fact] is not None for fact in facts)


# -- the launcher as a program ------------------------------------------------------------


MAIN = "from drfd.launcher.main import main; main(sys.argv[1:])"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--state, --controller"),
        (("--state", "/tmp"), "--controller"),
        (("--controller", "0"), "--state"),
        (("--state", "/tmp", "--controller", "0", "--allow-uid", "x"), "--allow-uid"),
        (("--state", "/tmp", "--controller", "0", "--nice"), "--nice"),
    ],
)
def test_options_that_are_wrong_are_named(options, said):
    done = subprocess.run(python(MAIN, *options), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, said in done.stderr) == (2, "", True)


def test_its_rooms_are_closed_to_others(launcher):
    launcher.connect()
    modes = {
        name: (launcher.state / name).stat().st_mode & 0o777
        for name in ("attempts", "launcher.sock", "launcher.lock")
    }
    assert modes == {"attempts": 0o700, "launcher.sock": 0o600, "launcher.lock": 0o600}


def test_a_long_path_does_not_keep_it_from_listening(make_launcher, tmp_path):
    """An address holds 107 bytes."""
    launcher = make_launcher(tmp_path / ("x" * 100) / ("y" * 100))
    assert launcher.serve().hello["kind"] == "none"


@pytest.mark.skipif(os.getuid() == 0, reason="root may have real cgroups, see tests/system")
def test_an_ordinary_user_is_told_why_there_are_no_cgroups(make_launcher):
    hello = make_launcher().serve(cgroups=True).hello
    assert hello["kind"] == "none"
    told = hello["controls"]["memory"]
    reasons = (
        *(f"cannot make cgroups as uid {os.getuid()}", "no cgroup v", "enable-linger"),
        *("Permission denied", "Read-only file system", "processes live in"),
    )
    assert any(reason in told for reason in reasons), told


def test_uids_are_refused_and_allowed_by_options(make_launcher, work):
    """The tests' own uid is allowed by the rig, and others by their number."""
    controller = make_launcher().serve("--min-uid", "3000000000")
    begin(controller, work, "exit 3")
    assert ended(controller) == (3, None)
    controller.launch(shell("exit 3", cwd=work, id=2, uid=2_999_999_999))
    refusal = "jobs of uid 2999999999 are not allowed: it is root's or a system account's"
    controller.take("launch_failed", id=2, text=refusal)
    controller.launch(shell("exit 3", cwd=work, id=3, uid=3_000_000_000))
    controller.take("launch_failed", id=3, text="there is no user with uid 3000000000 any more")


# -- one at a time --------------------------------------------------------------------------


def test_jobs_have_outputs_where_its_own_were_shut(make_launcher, work):
    """The file that was opened as 1 could not be put there."""
    controller = make_launcher().serve(prelude="import os; os.closerange(0, 3)\n")
    begin(controller, work, "echo there; echo errors >&2")
    assert ended(controller) == (0, None)
    assert ((work / "out").read_text(), (work / "err").read_text()) == ("there\n", "errors\n")


def test_a_second_launcher_waits_until_the_first_is_gone(launcher):
    first = launcher.connect()
    old = launcher.process
    launcher.start()
    assert first.list() == NOTHING_KNOWN, "the first serves on"
    old.kill()
    old.wait(WAIT_S)
    assert launcher.connect().peer_pid == launcher.process.pid != old.pid


def test_a_second_launcher_gives_up_when_the_first_stays(make_launcher, launcher):
    first = launcher.connect()
    second = launcher.start(
        prelude="import drfd.launcher.startup as m; m._PREDECESSOR_WAIT_S = 0.1"
    )
    assert second.wait(WAIT_S) == 1
    said = launcher.log().splitlines()[-1]
    assert said == f"drfd-launcher: another launcher holds {launcher.state}", "and nothing after it"
    assert first.list() == NOTHING_KNOWN


# -- signals --------------------------------------------------------------------------------


def test_interrupt_from_a_terminal_is_not_for_it(launcher):
    controller = launcher.connect()
    launcher.process.send_signal(signal.SIGINT)
    assert controller.list() == NOTHING_KNOWN


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


@pytest.fixture
def kept(make_launcher) -> Iterator[Kept]:
    kept = Kept(make_launcher())
    yield kept
    kept.let_go()
    kept.supervisor.wait(WAIT_S)


def test_a_launcher_whose_supervisor_was_killed_ends_with_the_controller(kept):
    controller = kept.launcher.connect()
    kept.supervisor.kill()
    kept.supervisor.wait(WAIT_S)
    assert controller.list() == NOTHING_KNOWN
    kept.let_go()
    until("an end of the launcher", lambda: not lives(controller.peer_pid))


def test_no_job_holds_the_supervisors_pipe(kept, work):
    """Whoever holds an end of it keeps the other side waiting for its close."""
    controller = kept.launcher.connect()
    runner = begin(controller, work, "echo $$ > pid; sleep 60")
    pipes = {pipe for pipe in opened(controller.peer_pid) if pipe.startswith("pipe:")}
    job = pid_in(work / "pid")
    assert not pipes & opened(job)
    until("no pipe", lambda: not pipes & opened(runner))


def opened(pid: int) -> set[str]:
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        # A shell has one more for a moment, when it has written to a file.
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found
