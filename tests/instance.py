"""A private drfd for a test: started, driven through the real command line, killed, cleaned up.

Only what a test asks again and again goes over the socket: starting a program is slow on some
machines.

Used with root (real cgroups of either version, of a name of its own) and without (limits measured).
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import failing
from drfd.client.connection import Connection
from drfd.common.errors import Unavailable
from drfd.daemon.spawn import group_for
from drfd.launcher.runner.starter.compiler import FLAGS, NotCompiled, compile_starter
from drfd.launcher.runner.starter.sources import PROGRAM
from drfd.launcher.system.process import start_ticks
from failing import VARIABLE
from kernel import Kernel, is_removed

BIN = Path(sys.executable).parent
#: Every wait for drfd is so many times longer, where processors are slow.
PATIENCE = float(os.environ.get("DRFD_TEST_PATIENCE", "1"))
#: Nothing that will come takes longer, on slow processors either: what fails there is told soon.
_LONGEST_S = 360.0

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
[pools.B]
[enforcement]
grace = "1s"
processes = 64
"""


#: The same with room for many small jobs; and where nothing is enforced, as any user has it.
ROOMY = CONFIG.replace("cores = 9", "cores = 50").replace('"18G"', '"50G"')
PLAIN = f"{CONFIG}cgroups = false\n"
#: Options of a job that leaves room for others, and a line of its script: it waits for a file.
SMALL = ("-c", "0.1", "-m", "64M")
GATE = "while ! [ -e gate ]; do sleep 0.02; done"

#: For a daemon to which all that the machine does besides is no matter.
ALONE = "[scheduling]\nrespect_external_load = false\n"


def patient(seconds: float) -> float:
    """Return for how long to wait for what elsewhere comes within so many seconds."""
    return min(seconds * PATIENCE, max(seconds, _LONGEST_S))


def wait_for(
    what: str,
    is_so: Callable[[], Any],
    *,
    seconds: float = 120.0,
    pause_s: float = 0.02,
    show: Callable[[], Any] = str,
) -> Any:
    """Poll until `is_so` gives something true; fail with what was seen after a generous time."""
    deadline = time.monotonic() + patient(seconds)
    while time.monotonic() < deadline:
        found = is_so()
        if found:
            return found
        time.sleep(pause_s)
    raise AssertionError(f"waited {patient(seconds)} s in vain for {what}; {show()}")


class Instance:
    def __init__(self, config: str = CONFIG) -> None:
        # Not pytest's own directory: other users of the tests must be able to enter.
        # On a disk: what is in memory (/tmp on Debian 13) has no bandwidth to be limited.
        self.root = Path(tempfile.mkdtemp(prefix="drfd-test-", dir="/var/tmp"))
        self.root.chmod(0o755)
        self.state = self.root / "state"
        self.socket = self.root / "drfd.sock"
        self.config = self.root / "drfd.toml"
        self.work = self.root / "work"
        self.work.mkdir()
        self.failpoints = self.root / "failpoints"
        self.failpoints.mkdir(mode=0o755)
        self.configured = config
        self.config.write_text(config)
        if "external_load" not in config:
            # What else the machine does is no matter of the test.
            extra = self.root / "drfd.d"
            extra.mkdir()
            (extra / "alone.toml").write_text(ALONE)
        self.log = self.root / "drfd.log"
        self.process: subprocess.Popen[bytes] | None = None
        #: A program and its arguments that runs the daemon's command line, which is its last ones.
        self.before: list[str] = []
        #: More for the daemon's own command line, and its environment.
        self.options: list[str] = []
        #: Where no user drfd is there, or it cannot reach the state; unless another is named.
        self.as_root = "[daemon]\nuser = " not in config
        self.env: dict[str, str] = {}
        #: Whether tests may have it die at a failpoint.
        self.has_failpoints = True

    # -- the daemon ---------------------------------------------------------------------------

    def start(self) -> Instance:
        self.launch()
        wait_for("the daemon's answer", self.answers, show=self.log.read_text)
        return self

    def launch(self) -> None:
        """Start it and do not wait until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.before,
                    *(sys.executable, "-I"),
                    *((failing.__file__, str(self.failpoints)) if self.has_failpoints else ("-m",)),
                    *("drfd.daemon", "serve"),
                    *("--config", str(self.config), "--state", str(self.state)),
                    *("--socket", str(self.socket), *self.options),
                    *(["--as-root"] if self.as_root else []),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, failing.VARIABLE: str(compiled_starter()), **self.env},
                start_new_session=True,
            )

    def answers(self) -> bool:
        try:
            return bool(self._ask("doctor")["launcher"] == "connected")
        except Unavailable:
            return False

    def has_cgroups(self) -> bool:
        """As the launcher says, once it is there."""
        said = wait_for("the launcher", lambda: self._ask("doctor")["enforcement"])
        return bool(said != "none")

    def kill(self) -> None:
        """SIGKILL to the controller; its supervisor and launcher see that and leave."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def kill_launcher(self) -> None:
        """SIGKILL to the launcher; its supervisor starts another."""
        pid = self.launcher_pid()
        os.kill(pid, signal.SIGKILL)
        wait_for("another launcher", lambda: self.launcher_pid() != pid and self.answers())

    def strike(self, blow: str) -> None:
        """Have its daemons die or end, as a test is told (BLOWS), and start them again."""
        if blow == "launcher":
            self.kill_launcher()
            return
        if blow == "both":
            os.kill(self.launcher_pid(), signal.SIGKILL)
        self.stop() if blow == "restart" else self.kill()
        self.start()

    def arm(self, point: str, whom: object) -> Path:
        """Have `whom` die at a failpoint. The file is there with all its words at once."""
        armed, written = self.failpoints / point, self.root / f"{point}.armed"
        written.write_text(f"{whom}\n")
        written.rename(armed)
        return armed

    def is_dead(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def restart_if_dead(self) -> None:
        if self.is_dead():
            self.start()

    def stop(self) -> None:
        """SIGTERM: in order, jobs run on."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(patient(120))

    def launcher_pid(self) -> int:
        """The launcher itself: the supervisor's child that listens."""
        return int(wait_for("a launcher", lambda: self._launchers()[-1:])[0])

    def stop_with_launcher(self) -> None:
        """SIGTERM, and wait until the launcher is gone too: it leaves a moment after the daemon."""
        launcher = self.launcher_pid()
        self.stop()
        wait_for("the launcher's end", lambda: not is_alive(launcher))

    def _launchers(self) -> list[int]:
        """Processes of this instance's launcher, supervisor first, runners left out."""
        found = self._processes_with(b"drfd.launcher", self.state / "launcher")
        assert self.process is not None
        supervisor = [pid for parent, pid in found if parent == self.process.pid]
        return supervisor and [pid for parent, pid in found if parent == supervisor[0]]

    def slurm_launcher_pid(self, module: bytes = b"drfd.launcher.slurm") -> int | None:
        """The launcher of Slurm's nodes, or its root helper: the child of its supervisor, if there
        are both."""
        found = self._processes_with(module, self.state / "slurm-launcher")
        pids = {pid for _, pid in found}
        return next((pid for parent, pid in found if parent in pids), None)

    def _processes_with(self, module: bytes, place: Path) -> list[tuple[int, int]]:
        """Parent and pid of those that run this module with this path."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError):
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if module in command and os.fsencode(place) in command:
                    found.append((parent_of(int(entry.name)), int(entry.name)))
        return found

    # -- the command line ---------------------------------------------------------------------

    def drf(
        self, *words: object, check: bool = True, user: int | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run drf, as another user if asked (then with that user's own groups)."""
        if user is not None:
            account = pwd.getpwuid(user)
            options = {
                "user": user,
                "group": account.pw_gid,
                "extra_groups": os.getgrouplist(account.pw_name, account.pw_gid),
                **options,
            }
        env = {**os.environ, "DRFD_SOCKET": str(self.socket), **options.pop("env", {})}
        options.setdefault("cwd", self.work)
        options["timeout"] = patient(options.get("timeout", 120))
        done = subprocess.run(
            [str(BIN / "drf"), *map(str, words)],
            capture_output=True,
            text=True,
            env=env,
            stdin=options.pop("stdin", subprocess.DEVNULL if "input" not in options else None),
            **options,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"drf {words}: {done.returncode} {done.stdout}{done.stderr}")
        return done

    def submit(self, *words: object, **options: Any) -> int:
        return int(self.drf("submit", "-q", *words, **options).stdout)

    def show(self, job_id: int) -> dict[str, Any]:
        """What `drf show --json` prints."""
        reply = self._ask("show", id=job_id)
        return {**reply["job"], "events": reply["events"]}

    def status(self, *words: object) -> list[dict[str, Any]]:
        """What `drf status --json` prints; without words, it is asked over the socket."""
        if not words:
            return list(self._ask("status", select={})["jobs"])
        return list(json.loads(self.drf("status", "--json", *words).stdout)["jobs"])

    def wait_end(self, job_id: int, *, seconds: float = 120) -> dict[str, Any]:
        client = Connection(self.socket)
        try:
            client.wait([job_id], any_one=False, timeout_s=patient(seconds))
        finally:
            client.close()
        return self.show(job_id)

    def wait_state(self, job_id: int, state: str) -> dict[str, Any]:
        def has_come() -> dict[str, Any] | None:
            job = self.show(job_id)
            return job if job["state"] == state else None

        return dict(wait_for(f"job {job_id} {state}", has_come, show=lambda: self.show(job_id)))

    def output(self, job_id: int) -> str:
        return Path(self.show(job_id)["stdout"]).read_text()

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        client = Connection(self.socket)
        try:
            return client.request(op, **fields)
        finally:
            client.close()

    def home_for(self, account: pwd.struct_passwd) -> Path:
        """A closed directory of that user's, made where there is none yet."""
        home = self.root / account.pw_name
        home.mkdir(mode=0o700, exist_ok=True)
        os.chown(home, account.pw_uid, account.pw_gid)
        return home

    def running(self, *words: object, **options: Any) -> dict[str, Any]:
        """Submit a job and wait until it runs."""
        return self.wait_state(self.submit(*words, **options), "RUNNING")

    def ended(self, *words: object, **options: Any) -> dict[str, Any]:
        """Submit a job and wait for its end."""
        return self.wait_end(self.submit(*words, **options))

    # -- the machine --------------------------------------------------------------------------

    def cgroups(self) -> list[str]:
        """Job cgroups of this instance that exist, below any controller."""
        return sorted(map(str, self._job_groups()))

    def _job_groups(self) -> list[Path]:
        """Below those of pools and users."""
        found, left = [], [*map(str, self._groups())]
        while left:
            with suppress(FileNotFoundError):
                for each in os.scandir(left.pop()):
                    found += [Path(each.path)] if each.name.startswith("job-") else []
                    left += [each.path] if each.name.startswith("of-") else []
        return found

    def _groups(self) -> list[Path]:
        return Kernel().groups(group_for(self.state))

    def destroy(self) -> None:
        """End everything that this instance started, and take away all that it made."""
        try:
            if not self.is_dead():
                for armed in self.failpoints.iterdir():
                    # Somebody may reach the point just now.
                    armed.unlink(missing_ok=True)
                self._end_all_jobs()
        finally:
            if not self.is_dead():
                self.stop()
            self._kill_leftovers()
            shutil.rmtree(self.root, ignore_errors=True)

    def clear(self) -> bool:
        """End all jobs and empty its directory. False: it is not what was started any more."""
        if self.is_dead() or not self.answers() or self.config.read_text() != self.configured:
            return False
        if any(self.failpoints.iterdir()):
            return False
        self._ask("drain", on=False)
        self._end_all_jobs()
        # What keeps the terminal of a job that has ended takes away its own files meanwhile.
        wait_for("an empty directory", self._sweep)
        return True

    def _sweep(self) -> bool:
        left = {*self.work.iterdir(), *self.root.iterdir()} - self._own
        for place in left:
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)
        return not left

    @property
    def _own(self) -> set[Path]:
        """What there is of it in its directory."""
        extra = self.root / "drfd.d"
        places = {self.state, self.socket, self.config, extra, self.log}
        return places | {self.work, self.failpoints}

    def _end_all_jobs(self) -> None:
        if self._live_jobs():
            self._ask("cancel", select={"everything": True})

        def are_gone() -> bool:
            # What a user has sent before may become jobs after that: root's turn comes sooner.
            live = self._live_jobs()
            waiting = [job["id"] for job in live if job["state"] in ("PENDING", "HELD")]
            if waiting:
                self._ask("cancel", select={"ids": waiting})
            return not live

        wait_for("all jobs gone", are_gone, seconds=60)

    def _live_jobs(self) -> list[Any]:
        return list(self._ask("status", select={})["jobs"])

    def _kill_leftovers(self) -> None:
        """For a test that failed half-way: what is left in our own cgroups, and the cgroups.

        The launcher ends a moment after the daemon, and may take them away meanwhile.
        """
        for job in self._job_groups():
            with suppress(OSError):
                for pid in (job / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
        deadline = time.monotonic() + 5
        while not all(is_removed(top) for top in self._groups()) and time.monotonic() < deadline:
            time.sleep(0.01)
        Kernel().end_holder(group_for(self.state))


class OwnLauncher:
    """A launcher that the test itself starts beside an instance's daemon, and may kill."""

    def __init__(
        self,
        instance: Instance,
        *words: str,
        config: str = CONFIG,
        env: dict[str, str] | None = None,
    ) -> None:
        """`words`: what the interpreter runs, and its options besides those that say for whom;
        `config`: the launcher's own configuration."""
        me = str(os.getuid())
        self.room = instance.root / "launcher"
        for place in (instance.state, self.room):
            place.mkdir(mode=0o711)
        instance.options = ["--launcher", str(self.room)]
        instance.has_failpoints = False
        self._instance, self._env = instance, {**os.environ, **(env or {})}
        self._command = [sys.executable, "-I", *words, "--state", str(self.room)]
        (self.room / "config").write_text(config)
        self._command += ["--config", str(self.room / "config")]
        self._command += ["--controller", me, "--allow-uid", me]
        self.start()

    def start(self) -> None:
        with self._instance.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stderr=log, env=self._env
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """After the daemon and its jobs."""
        try:
            self._instance.destroy()
        finally:
            self.process.terminate()
            self.process.wait()


#: For `Instance.strike`: who is killed, or that the daemon is stopped in order.
BLOWS = ("launcher", "controller", "both", "restart")


# -- processes --------------------------------------------------------------------------------


def is_alive(pid: int) -> bool:
    return start_ticks(pid) is not None


def stat_of(pid: int) -> list[str]:
    """What /proc/PID/stat has after the name, the state first; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def state_of(pid: int) -> str | None:
    """Its letter; None: it is gone."""
    return next(iter(stat_of(pid)), None)


def parent_of(pid: int) -> int:
    return int(stat_of(pid)[1])


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_s(pid: int) -> float:
    """Processor time of all its threads, in user and in system mode."""
    return sum(map(int, stat_of(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def resident_bytes(pid: int, what: str = "VmRSS") -> int:
    return int(status_of(pid)[what].split()[0]) * 1024


# -- accounts ---------------------------------------------------------------------------------

#: Two ordinary users that exist while the tests run (the fixture `users`).
Accounts = tuple[pwd.struct_passwd, pwd.struct_passwd]
#: The exit code of userdel(8) while the account has a process.
_IN_USE = 8


def add_account(name: str, *options: str) -> pwd.struct_passwd:
    words = ["useradd", "--no-create-home", "--no-log-init", *options, name]
    subprocess.run(words, check=True)
    return pwd.getpwnam(name)


def delete_account(name: str) -> None:
    """Remove the account, once the last of its processes is gone."""

    def is_deleted() -> bool:
        done = subprocess.run(["userdel", name], capture_output=True, text=True)
        assert done.returncode in (0, _IN_USE), done.stderr
        return done.returncode == 0

    wait_for(f"the end of all processes of {name}", is_deleted, pause_s=0.2)


# -- fixtures ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def idle() -> Iterator[dict[str, Instance]]:
    """By their configuration: those that wait for the next test of the module."""
    found: dict[str, Instance] = {}
    yield found
    for instance in found.values():
        instance.destroy()


@pytest.fixture
def lend(
    idle: dict[str, Instance], request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Instance]]:
    """A daemon that runs, without jobs; other tests may have used it, but for a mark `anew`."""
    lent: list[Instance] = []
    failed = request.session.testsfailed

    def take(config: str) -> Instance:
        used = None if "anew" in request.keywords else idle.pop(config, None)
        lent.append(used or Instance(config))
        return used or lent[-1].start()

    yield take
    for instance in lent:
        is_clear = False
        try:
            has_passed = request.session.testsfailed == failed
            is_clear = has_passed and instance.configured not in idle and instance.clear()
        finally:
            if is_clear:
                idle[instance.configured] = instance
            else:
                instance.destroy()


@pytest.fixture
def instance(lend: Callable[[str], Instance]) -> Instance:
    return lend(CONFIG)


# -- daemons in a mount namespace of their own ---------------------------------------------------

#: Mounts that others do not see need root; what is done to processes needs nothing.
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root may mount, in a namespace of its own")


class Sheltered(Instance):
    """An instance whose daemons see other mounts than the rest of the machine."""

    def __init__(self, mounts: str, config: str = ROOMY) -> None:
        """`mounts`: a shell script that makes them; $STATE is the state directory."""
        super().__init__(config)
        self.state.mkdir(mode=0o755)
        script = f"set -e; mount --make-rprivate /; {mounts}\necho ready; exec sleep 100000"
        self.keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script],
            env={**os.environ, "STATE": str(self.state)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.keeper.stdout is not None
        assert self.keeper.stdout.readline() == "ready\n"
        self.before = ["nsenter", f"--mount=/proc/{self.keeper.pid}/ns/mnt", "--"]
        self.has_failpoints = False

    @property
    def inside(self) -> Path:
        """The root directory as the daemons see it."""
        return Path(f"/proc/{self.keeper.pid}/root")

    def within(self, *words: str) -> None:
        assert self.can(*words), words

    def can(self, *words: str) -> bool:
        """Whether the command succeeds."""
        return subprocess.run([*self.before, *words], check=False).returncode == 0

    def destroy(self) -> None:
        try:
            super().destroy()
        finally:
            self.keeper.kill()
            self.keeper.communicate()


#: Makes one with these mounts.
MakeShelter = Callable[..., Sheltered]


@contextmanager
def made_shelters() -> Iterator[MakeShelter]:
    """A maker of instances that are gone afterwards."""
    made: list[Sheltered] = []

    def make(mounts: str, config: str = ROOMY) -> Sheltered:
        made.append(Sheltered(mounts, config))
        return made[-1]

    try:
        yield make
    finally:
        for instance in made:
            instance.destroy()


# -- the program that begins jobs' processes ----------------------------------------------------


@functools.cache
def compiled_starter() -> Path:
    """The program with failpoints, of the environment or compiled once; or that installed."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    place = tempfile.mkdtemp(prefix="drfd-starter-")
    atexit.register(_remove, place, os.getpid())
    program = Path(place, "drfd-starter")
    try:
        compile_starter(program, flags=(*FLAGS, "-DFAILPOINTS"))
    except NotCompiled:
        if PROGRAM.exists():
            return PROGRAM
        raise
    return program


def _remove(place: str, owner: int) -> None:
    """Not in a process that a test has forked."""
    if os.getpid() == owner:
        shutil.rmtree(place, ignore_errors=True)
