"""Orders, runners and launchers for tests. What a test starts is ended by pid when it is over.

No cgroups anywhere: these tests run as any user and leave the machine's own alone.
"""

from __future__ import annotations

import functools
import json
import os
import pwd
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec
import pytest
from msgspec import structs

import drfd
import failing
from drfd.daemon.launcher_link.failures import StartFailure
from drfd.daemon.launcher_link.messages import Report, read_report
from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Key, Records
from drfd.launcher.confinement.unconfined import Unconfined
from drfd.launcher.protocol import (
    AttemptLimits,
    Control,
    ControlOrder,
    LaunchOrder,
    ListOrder,
    Message,
    Order,
    encode,
)
from drfd.launcher.runner import identity
from drfd.launcher.system import answers, process
from drfd.linux.sealed import seal
from drfd.linux.unix_sockets import at_socket
from drfd.payload import unpack
from drfd.payload.pack import of_request
from drfd.payload.unpack import LaunchPayload
from instance import compiled_starter, patient, wait_for
from instance import parent_of as parent_of
from instance import state_of as state_of

#: The tree under test, also where another one is installed.
ROOT = Path(drfd.__file__).parent.parent
#: Nothing that is waited for takes so long, unless it never comes.
WAIT_S = patient(60.0)

T = TypeVar("T")

#: Else a launcher reports a start twice where a pause of the machine keeps a job from its exec.
_UNHURRIED = "import drfd.launcher.runner.starter.plan as a; a.EXEC_S = 60.0\n"

#: The fixture `start`.
Start = Callable[..., subprocess.Popen[bytes]]


def until(what: str, probe: Callable[[], T], show: Callable[[], object] = str) -> T:
    """The first true answer of `probe`; fails when there is none for `WAIT_S`."""
    found: T = wait_for(what, probe, seconds=60.0, pause_s=0.003, show=show)
    return found


# -- orders ---------------------------------------------------------------------------------


class Asked(LaunchOrder, frozen=True, kw_only=True, tag="asked"):
    """An order, and beside it what its user has written, as one row of fields."""

    id: int = 1
    attempt: int = 1
    journal: str = "0" * 32
    submitted_us: int = 5
    array_id: int = 0
    array_index: int = 0
    name: str = "job"
    threads: int = 0
    hidden: tuple[str, ...] = ()
    umask: int = 0o022
    cwd: str
    argv: tuple[str, ...]
    env: dict[str, str]
    script: str | None = None
    stdout: str = "out"
    stderr: str = "err"
    attach: str | None = None
    notify: tuple[str, ...] = ()
    payload: bytes | None = None

    @property
    def order(self) -> LaunchOrder:
        return LaunchOrder(**{each: getattr(self, each) for each in LaunchOrder.__struct_fields__})

    @property
    def content(self) -> LaunchPayload:
        return unpack.decode(self.data)

    @property
    def data(self) -> bytes:
        if self.payload is not None:
            return self.payload
        return of_request({
            "argv": self.argv, "cwd": self.cwd, "umask": self.umask, "stdout": self.stdout,
            "stderr": self.stderr, "env": self.env, "script": self.script, "attach": self.attach,
            "notify": {"argv": self.notify},
        })  # fmt: skip


def order(*argv: str, cwd: Path, **changes: Any) -> Asked:
    """An order of the user who runs the tests; output goes to `out` and `err` in `cwd`."""
    usual: dict[str, Any] = {
        "uid": os.getuid(),
        "user": name_of(changes.get("uid", os.getuid())),
        "gid": os.getgid(),
        "cwd": str(cwd),
        "argv": argv or ("true",),
        "env": {},
        "variables": {},
        "limits": AttemptLimits(cores_milli=1000, memory_bytes=64 << 20, pids=1000),
    }
    return Asked(**(usual | changes))


def name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def shell(script: str, *, cwd: Path, **changes: Any) -> Asked:
    return order("sh", "-c", script, cwd=cwd, **changes)


#: A job that has its pid in the file `pid`, and runs until `go`.
UNTIL_GO = "mkfifo go; echo $$ > pid; read x < go; exit 7"


def go(work: Path) -> None:
    """Let `UNTIL_GO` end. Not a plain open, which would wait for a dead reader for ever."""

    def open_pipe() -> int | None:
        try:
            return os.open(work / "go", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None

    fd = until("a job that waits for `go`", open_pipe)
    os.write(fd, b"\n")
    os.close(fd)


# -- processes ------------------------------------------------------------------------------


def python(code: str, *words: object) -> list[str]:
    """A command that runs `code` with this tree importable; `words` from sys.argv[1] on."""
    setup = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
    return [sys.executable, "-I", "-c", setup + code, *map(str, words)]


def found(uid: int, name: str) -> identity.Found:
    """The account and its groups, as this process asks for them."""
    answer = answers.answer_to((0, "account", uid, name, []), (os.getuid(), os.getgid()))
    return identity.found_in(answer, uid)


def lives(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    return state_of(pid) not in (None, "Z", "X")


def written(path: Path) -> str:
    """What the file says, once it ends with a line end."""

    def whole() -> str:
        text = path.read_text() if path.exists() else ""
        return text if text.endswith("\n") else ""

    return until(f"a line in {path.name}", whole)


#: Processes that tests have learned of, with their start times.
_learned: list[tuple[int, int]] = []


def pid_in(path: Path) -> int:
    """The pid that a job has written there. Whatever becomes of the test, the process ends."""
    pid = int(written(path))
    ticks = process.start_ticks(pid)
    if ticks is not None:
        _learned.append((pid, ticks))
    return pid


def end_learned() -> None:
    for pid, ticks in _learned:
        if process.start_ticks(pid) == ticks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    _learned.clear()


class Terminal:
    """The submitter's side of `drf run`: hands over descriptors to the job that connects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._listener.settimeout(WAIT_S)

    def listen_as(self, uid: int) -> None:
        """Be a terminal of this user's, for those who connect from now on; for root alone."""
        self.path.parent.chmod(0o711)
        self.path.chmod(0o777)
        os.seteuid(uid)
        try:
            self._listener.listen(1)
        finally:
            os.seteuid(os.getuid())

    def accept(self) -> socket.socket:
        return self._listener.accept()[0]

    def hand_over(self, connection: socket.socket, *fds: int) -> None:
        with connection:
            if fds:
                socket.send_fds(connection, [b"+"], list(fds))

    def close(self) -> None:
        self._listener.close()


# -- attempt files --------------------------------------------------------------------------


def in_words(report: Report) -> Message:
    """The message that this report is in place of; "whose" is there for a shortage alone."""
    said: Message = msgspec.to_builtins(report)
    if said.get("whose", said) is None:
        del said["whose"], said["resource"]
    return said


class AttemptFiles:
    """A directory of attempt files."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def read(self, key: Key = (1, 1)) -> Records:
        """What is on record, a failure in words as the controller tells it."""
        attempt = attempt_files.read(self.fd, key)
        assert attempt is not None, f"no attempt {key}"
        if attempt.launch_failed is not None:
            known = {"has_space": attempt.created.get("space") is not None}
            failed = msgspec.convert({**attempt.launch_failed, **known}, StartFailure)
            words = failed.in_words(attempt.owner.user)
            record = {"text": words.text} if words.whose is None else words._asdict()
            attempt = replace(attempt, launch_failed=record)
        return attempt

    def over(self, key: Key = (1, 1)) -> Records:
        """The attempt, once it has an end on record and its runner is gone."""

        def look() -> bool:
            return self.read(key).is_over and not attempt_files.is_locked(self.fd, key)

        until(f"the end of attempt {key}", look, show=lambda: self.read(key))
        return self.read(key)

    def running(self, key: Key = (1, 1)) -> Records:
        """The attempt, once its program is let go."""
        until(f"a start of attempt {key}", lambda: self.read(key).launched, lambda: self.read(key))
        return self.read(key)

    def clean_up(self) -> None:
        """Kill the jobs and runners of all attempts here."""
        for key in attempt_files.keys(self.fd):
            attempt = attempt_files.read(self.fd, key)
            if attempt is not None:
                end(attempt)
        os.close(self.fd)


def end(attempt: Records) -> None:
    """Kill what is left of an attempt: its job, then its runner, then what the runner leaves."""
    runner = attempt.runner
    place = Unconfined("a test ends")
    until("an end of what the test has started", lambda: place.kill_pass((0, 0), attempt))
    if runner is not None and process.start_ticks(runner["pid"]) == runner["start_ticks"]:
        try:
            os.kill(runner["pid"], signal.SIGKILL)
        except ProcessLookupError:
            return
        until("an end of the runner", lambda: not lives(runner["pid"]))
        until("an end of what the test has started", lambda: place.kill_pass((0, 0), attempt))


# -- runners --------------------------------------------------------------------------------


class Driver:
    """A process of its own that starts runners, which are its children."""

    def __init__(self, starter: Path | None = None, before: tuple[str, ...] = ()) -> None:
        """`starter`: the compiled program that begins jobs' processes, if another one is meant.
        `before`: a command that executes the driver."""
        self.starter = starter or compiled_starter()
        driver = Path(__file__).with_name("runner_driver.py")
        self._process = subprocess.Popen(
            [*before, sys.executable, "-I", str(driver), str(ROOT), str(self.starter)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self,
        order: Asked,
        files: AttemptFiles,
        *,
        bell: Path | None = None,
        place: str = "plain",
        space: Path | None = None,
        forged: dict[str, str] | None = None,
    ) -> int:
        """Start a runner; its pid. `bell`: a FIFO. `place`: a confinement of runner_driver.py.
        `space`: the parent of the directories of its private temporary space. `forged`: variables
        that no order may have."""
        return self._ask(
            do="start",
            order=encode(order.order).decode(),
            payload=order.data.hex(),
            cwd=order.cwd,
            attempts=str(files.path),
            bell=str(bell) if bell else None,
            place=place,
            space=str(space) if space else None,
            forged=forged or {},
        )

    def reap(self, pid: int) -> int:
        """Wait for a runner; its exit code, negative for a signal."""
        return self._ask(do="reap", pid=pid)

    def _ask(self, **request: object) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], WAIT_S)[0], f"no answer to {request}"
        line = self._process.stdout.readline()
        assert line, "the driver is dead"
        return int(json.loads(line))

    def close(self) -> None:
        with self._process as process:
            process.kill()


@dataclass(frozen=True)
class Runs:
    """Where the jobs of a test run, each below a runner that the driver starts."""

    driver: Driver
    files: AttemptFiles
    work: Path

    def start(self, asked: Asked | str = UNTIL_GO, **how: Any) -> int:
        """Start a runner; its pid. A text is a shell's script; `how`: see `Driver.start`."""
        wanted = shell(asked, cwd=self.work) if isinstance(asked, str) else asked
        return self.driver.start(wanted, self.files, **how)

    def over(self, runner: int) -> Records:
        """The attempt, once its runner has ended well."""
        assert self.driver.reap(runner) == 0
        return self.files.over()

    def pid(self) -> int:
        """What the job has written into the file `pid`."""
        return pid_in(self.work / "pid")

    def go(self) -> None:
        go(self.work)


# -- launchers ------------------------------------------------------------------------------

BOOT = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); exec(sys.argv.pop(1)); "
    "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


class LauncherProcess:
    """drfd.launcher of this tree, with failpoints and a state directory of its own."""

    def __init__(self, state: Path) -> None:
        state.mkdir(parents=True, exist_ok=True)
        self.state = state
        self.failpoints = state / "failpoints"
        self.failpoints.mkdir(mode=0o755, exist_ok=True)
        self._log = state / "log"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controllers: list[Controller] = []

    def start(
        self,
        *options: str,
        cgroups: bool = False,
        pass_fds: tuple[int, ...] = (),
        prelude: str = "",
    ) -> subprocess.Popen[bytes]:
        """`prelude`: Python to run first, to shorten a waiting time."""
        me = str(os.getuid())
        command = [sys.executable, "-I", "-c", BOOT, str(ROOT), _UNHURRIED + prelude]
        command += [failing.__file__, str(self.failpoints), "drfd.launcher"]
        command += ["--state", str(self.state), "--controller", me, "--allow-uid", me]
        config = self.state / "drfd.toml"
        config.write_text(f"[enforcement]\ncgroups = {str(cgroups).lower()}\n")
        command += ["--config", str(config)]
        with self._log.open("ab") as log:
            started = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, failing.VARIABLE: str(compiled_starter())},
                pass_fds=pass_fds,
                start_new_session=True,
            )
        self._processes.append(started)
        return started

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The one started last."""
        return self._processes[-1]

    def kill(self) -> None:
        """kill -9, as a crash."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> Controller:
        """Crash, start again, connect."""
        self.kill()
        return self.serve()

    def serve(self, *options: str, **how: Any) -> Controller:
        """Start, and connect."""
        self.start(*options, **how)
        return self.connect()

    def connect(self) -> Controller:
        """A controller that has read its hello. A predecessor's socket file does not count."""

        def attempt() -> Controller | None:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(WAIT_S)
            try:
                with at_socket(self.state / "launcher.sock") as address:
                    connection.connect(address)
                # A runner that is just being forked may hold a dead launcher's socket.
                if connection.recv(1, socket.MSG_PEEK):
                    return Controller(connection)
            except OSError:
                pass
            connection.close()
            return None

        controller = until("a launcher that listens", attempt, show=self.log)
        self._controllers.append(controller)
        return controller

    def log(self) -> str:
        return self._log.read_text()

    @cached_property
    def files(self) -> AttemptFiles:
        """Not before the launcher has made the directory."""
        return AttemptFiles(self.state / "attempts")

    def clean_up(self) -> None:
        for controller in self._controllers:
            controller.close()
        for started in self._processes:
            started.kill()
            started.wait()
        self.files.clean_up()


class Controller:
    """The other end of the launcher's socket. Every report must be taken, or was said before."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reports = connection.makefile("rb")
        self._seen: list[Message] = []
        #: The last report about all nodes, of a launcher that makes any; it may come at any time.
        self.nodes: Message | None = None
        self.hello = self.take("hello")

    @property
    def peer_pid(self) -> int:
        """The launcher behind the socket."""
        credentials = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", credentials)[0])

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is sent meanwhile is there as a whole before the launcher reads any of it."""
        os.kill(self.peer_pid, signal.SIGSTOP)
        try:
            until("a stop of the launcher", lambda: state_of(self.peer_pid) == "T")
            yield
        finally:
            os.kill(self.peer_pid, signal.SIGCONT)

    def send(self, order: Order) -> None:
        self.send_raw(encode(order))

    def send_raw(self, data: bytes) -> None:
        self._connection.sendall(data)

    def launch(self, order: Asked) -> None:
        self.send_sealed(order.order, order.data)

    def notify(self, order: Asked) -> None:
        """Its arguments are the command."""
        told = structs.replace(order, notify=order.argv, is_notice=True)
        self.send_sealed(told.order, told.data)

    def send_sealed(self, order: Order, data: bytes) -> None:
        fd = seal(data)
        line = encode(order)
        sent = socket.send_fds(self._connection, [line], [fd])
        os.close(fd)
        # A launcher that dies of the order may be gone by now.
        if sent < len(line):
            self.send_raw(line[sent:])

    def ask(self, command: Control, key: Key = (1, 1)) -> None:
        self.send(ControlOrder(do=command, id=key[0], attempt=key[1]))

    def list(self) -> list[Message]:
        """All that the launcher says it knows, `listed` last."""
        self.send(ListOrder())
        reports = [self.next_report()]
        while reports[-1]["report"] != "listed":
            reports.append(self.next_report())
        self._seen += reports
        return reports

    def take(self, kind: str, **facts: object) -> Message:
        """The next report that was not heard before word for word: it must be of this kind."""
        report = self.next_report()
        while report in self._seen:
            report = self.next_report()
        self._seen.append(report)
        about = {name: report.get(name) for name in ("report", *facts)}
        assert about == {"report": kind, **facts}, report
        return report

    def is_dropped(self) -> bool:
        """Whether the launcher has ended this connection and said nothing more."""
        try:
            return self._reports.readline() == b""
        except ConnectionResetError:
            return True

    def next_report(self) -> Message:
        try:
            line = self._reports.readline()
        except TimeoutError:
            raise AssertionError(f"no report within {WAIT_S} s after {self._seen}") from None
        assert line, f"the launcher has ended the connection after {self._seen}"
        report: Message = json.loads(line)
        if report["report"] in ("start_failed", "notified"):
            # As the controller takes it.
            report = in_words(read_report(line))
        if report["report"] == "nodes":
            self.nodes = report
            return self.next_report()
        if report["report"] not in ("launched", "exited"):
            # It is that of the report, which is the same when it is repeated.
            report.pop("at_s", None), report.pop("mono_s", None)
        # Whose the attempts are is looked at apart from that there are any.
        self.owners: dict[str, Message] = report.pop("owners", {})
        return report

    def close(self) -> None:
        self._reports.close()
        self._connection.close()


P = ParamSpec("P")


def alone(test: Callable[P, None]) -> Callable[P, None]:
    """The test, in a child process; it fails with what it raises there."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Of Python 3.12 and later, about the parent's threads: the child does without them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(_tell(writing, lambda: test(*args, **kwargs)))
        os.close(writing)
        with open(reading) as told:
            words = told.read()
        _, status = os.waitpid(pid, 0)
        if words or status:
            pytest.fail(words or f"the test's process ended with status {status}", pytrace=False)

    return run


def _tell(writing: int, test: Callable[[], None]) -> int:
    try:
        test()
    except BaseException:
        os.write(writing, traceback.format_exc().encode(errors="replace")[:60_000])
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
