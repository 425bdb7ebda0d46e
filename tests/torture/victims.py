"""Who dies in a cell of the crash matrix, and the instance that is driven through it.

While somebody stands still at a failpoint, whoever is to die is killed: the one who stands there,
the controller, the launcher, the job's runner, both daemons, or everything, as by a reset of the
machine (then the attempt files are of another boot, or are empty).
"""

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import failing
from drfd.common.errors import DrfdError, Refused, Unavailable
from drfd.daemon.spawn import group_for
from drfd.launcher import attempt_files
from instance import Instance, state_of, wait_for
from kernel import Kernel, is_removed

VICTIMS = ("itself", "controller", "launcher", "runner", "daemons", "machine", "power")


class Victim(Instance):
    """An instance that is asked over the socket alone, and is started again when it has died."""

    def __init__(self, config: str) -> None:
        super().__init__(config)
        self._starting = threading.Lock()

    def restart_if_dead(self) -> None:
        """Without waiting for it: it may be to die at once. Several threads may ask."""
        with self._starting:
            if self.is_dead():
                self.launch()

    def has_come_back(self) -> bool:
        self.restart_if_dead()
        return self.answers()

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Until it answers, whoever has died over it."""

        def answered() -> dict[str, Any] | None:
            self.restart_if_dead()
            try:
                return self._ask(op, **fields)
            except Unavailable:
                return None

        return dict(wait_for(f"an answer to {op}", answered, show=self.tail))

    def try_ask(self, op: str, **fields: Any) -> DrfdError | None:
        """Once; what it was refused with."""
        try:
            self._ask(op, **fields)
            return None
        except DrfdError as error:
            return error

    def tail(self) -> str:
        return self.log.read_text()[-3000:]

    def submit_job(self, name: str, script: str, **fields: Any) -> int:
        """Accepted once, however often it had to be asked for."""
        demand = {"cores_milli": 100, "memory_bytes": 64 << 20, **fields.pop("demand", {})}
        request = {"argv": ["sh", "-c", script], "cwd": str(self.work), "name": name}
        request |= {"env": {"PATH": os.environ["PATH"]}, "demand": demand, "key": name, **fields}
        return int(self.ask("submit", **request)["id"])

    def state_of(self, job_id: int) -> str:
        return str(self.ask("show", id=job_id)["job"]["state"])

    def await_state(self, job_id: int, *states: str) -> str:
        def has_come() -> str | None:
            state = self.state_of(job_id)
            return state if state in states else None

        show = lambda: (self.ask("show", id=job_id), self.tail())  # noqa: E731
        return str(wait_for(f"job {job_id} {states}", has_come, show=show))

    def hides_devices(self) -> bool:
        """As the launcher says, of the resource that has a device."""
        said = wait_for("the launcher", lambda: self.ask("doctor")["controls"].get("fpga"))
        return str(said).startswith("enforced")

    def makes_cgroups(self) -> bool:
        """Whether runners make the cgroups of jobs from which devices are hidden: on version 2 that
        is done in the job's own, which the launcher makes then."""
        kind = wait_for("the launcher", lambda: self.ask("doctor")["enforcement"])
        return kind == "cgroup-v1" or (kind == "cgroup-v2" and not self.hides_devices())

    # -- the processes ------------------------------------------------------------------------

    def stopped_at(self, point: str) -> int | None:
        """The pid of whoever stands still there."""
        try:
            text = (self.failpoints / f"{point}.reached").read_text()
        except FileNotFoundError:
            return None
        return int(text) if text.endswith("\n") and state_of(int(text)) == "T" else None

    def runner_of(self, job_id: int) -> int | None:
        return next((pid for pid, jobs in self.runners().items() if job_id in jobs), None)

    def runners(self) -> dict[int, set[int]]:
        """Runner → the jobs that it has, by the attempt files, which may go at any time."""
        found: dict[int, set[int]] = {}
        for path in (self.state / "launcher" / "attempts").glob("*.*"):
            try:
                attempt = attempt_files.parse(path.read_bytes())
            except FileNotFoundError:
                continue
            if attempt is not None and attempt.runner is not None:
                job_id = int(path.name.partition(".")[0])
                found.setdefault(int(attempt.runner["pid"]), set()).add(job_id)
        return found

    def kill_runner(self, pid: int) -> set[int]:
        """The jobs that it had. Stopped first, it is given no other."""
        os.kill(pid, signal.SIGSTOP)
        wait_for("a runner that stands still", lambda: state_of(pid) in ("T", "t", "Z", None))
        had = self.runners().get(pid, set())
        os.kill(pid, signal.SIGKILL)
        return had | self.runners().get(pid, set())

    def memory_limits(self) -> dict[str, int]:
        """Of all job cgroups that are there, straight from the kernel's files."""
        found: dict[str, int] = {}
        for directory in self.cgroups():
            for name in ("memory.limit_in_bytes", "memory.max"):
                try:
                    text = Path(directory, name).read_text().strip()
                except OSError:
                    continue
                # One that is just being made has no limit yet, and no process either.
                if text != "max" and int(text) < 1 << 60:
                    found[directory] = int(text)
        return found

    def kill_daemons(self, whom: str) -> None:
        """The controller, the launcher, or both."""
        assert self.process is not None
        launcher = self.launcher_pid() if whom != "controller" else None
        if whom != "launcher":
            self.process.kill()
        if launcher is not None:
            _kill(launcher)

    def kill_victim(self, victim: str, *, point: str, at: int, job_id: int | None) -> None:
        """And then let go whoever stands at the point, `at`."""
        match victim:
            case "itself":
                _kill(at)
            case "controller" | "launcher":
                self.kill_daemons(victim)
            case "runner":
                runner = None if job_id is None else self.runner_of(job_id)
                if runner is not None:
                    _kill(runner)
            case "daemons":
                self.kill_daemons("both")
            case "machine" | "power":
                # Nobody is to be started before all are gone.
                with self._starting:
                    self._kill_everything()
                    self._boot_anew(is_emptied=victim == "power")
        is_beside = point in failing.RUNNER
        if is_beside and victim in ("controller", "launcher", "daemons"):
            # The next ones find an attempt that is half-way, and must not begin it anew.
            wait_for("its successor", self.has_come_back, show=self.tail)
        let_go(at)
        if victim in ("controller", "daemons"):
            # Whoever acts may wait for a process inside the job, which the next controller ends.
            wait_for("the next controller", self.has_come_back, show=self.tail)

    def everything(self) -> list[int]:
        """All processes of this instance: daemons and runners first, then what is left of jobs."""
        rooms = (os.fsencode(self.state), os.fsencode(self.state / "launcher"))
        ours, jobs, runners, state = [], [], self.runners(), re.compile(f"{self.state}/")
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                words = {*(entry / "cmdline").read_bytes().split(b"\0")}
                # A runner that is in no record yet has files of the state open.
                opened = map(os.readlink, (entry / "fd").iterdir())
                is_runner = int(entry.name) in runners or any(map(state.match, opened))
                if {*rooms} & words or is_runner:
                    ours.append(int(entry.name))
                elif os.readlink(entry / "cwd") == str(self.work):
                    jobs.append(int(entry.name))
            except OSError:
                continue
        return ours + jobs

    def _kill_everything(self) -> None:
        assert self.process is not None
        # Nobody is to see the others go: at a reset all are gone at once.
        for pid in self.everything():
            _signal(pid, signal.SIGSTOP)
        while left := [pid for pid in self.everything() if state_of(pid) not in (None, "Z")]:
            for pid in left:
                _kill(pid)
            # On cgroup v1 what is frozen does not even die.
            for directory in self.cgroups():
                for name, thawed in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                    if Path(directory, name).exists():
                        Path(directory, name).write_text(thawed)
            self.process.poll()
        self.process.wait()

    def _boot_anew(self, *, is_emptied: bool) -> None:
        for directory in self.cgroups():
            wait_for(f"the end of {directory}", lambda d=directory: is_removed(Path(d)))
        # What held them is not there after a reboot either.
        Kernel().end_holder(group_for(self.state))
        for top in self._groups():
            for group in (*sorted(top.rglob("of-*"), reverse=True), top):
                wait_for(f"the end of {group}", lambda d=group: is_removed(d))
        for path in (self.state / "launcher" / "attempts").iterdir():
            attempt = attempt_files.parse(path.read_bytes())
            path.unlink()
            if is_emptied or attempt is None:
                path.touch(0o600)
                continue
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for kind in attempt_files._KINDS:
                record = getattr(attempt, kind)
                if record is not None:
                    boot = {"boot_id": "another"} if kind == "created" else {}
                    attempt_files.append(fd, kind, {**record, **boot})
            os.close(fd)

    # -- what must hold -----------------------------------------------------------------------

    def check_at_rest(self) -> None:
        """Nothing runs: no cgroup, no process, no attempt is left, and the books say so."""
        rest = {"cgroups": [], "attempts": [], "jobs": [], "booked": []}
        wait_for("nothing to be left", lambda: self._left() == rest, show=self._left)

    def _left(self) -> dict[str, list[Any]]:
        live = self.ask("status", select={})["jobs"]
        nodes = self.ask("shares")["nodes"]
        return {
            "cgroups": self.cgroups(),
            "attempts": [path.name for path in (self.state / "launcher/attempts").iterdir()],
            "jobs": [job["id"] for job in live if job["state"] not in ("PENDING", "HELD")],
            "booked": [node["path"] for node in nodes if any(_amounts(node["usage"]))],
        }


def once_more(victim: Victim, verb: str, job_id: int, until: Callable[[str], bool]) -> None:
    """Ask it of a job until it is so, or the job is over: while it starts, it may be refused."""

    def is_so() -> bool:
        state = victim.state_of(job_id)
        if until(state):
            return True
        error = victim.try_ask(verb, select={"ids": [job_id]})
        assert error is None or isinstance(error, Refused | Unavailable)
        return False

    wait_for(f"{verb} of {job_id}", is_so, show=victim.tail)


def _amounts(usage: dict[str, Any]) -> list[Any]:
    return [amount for name, amount in usage.items() if not isinstance(amount, dict)]


def let_go(pid: int) -> None:
    """Whoever stands still goes on."""
    _signal(pid, signal.SIGCONT)


def _kill(pid: int) -> None:
    _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
