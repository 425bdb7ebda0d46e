"""Where the benchmarks run: a private drfd, an ordinary user of it, and the programs in C.

The drfd is as its users have it: the controller has an account of its own, so that each submission
is signed and checked. Two things differ. `respect_external_load` is off, because the benchmark
itself is load; and there are no failpoints, which only tests have.

The baseline has its cgroups beside those of the jobs, in the instance's own directories, so that
both are as deep and below the same controllers, and all goes with the instance.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from drfd.client.connection import Connection
from drfd.daemon.spawn import group_for
from drfd.launcher.runner.starter.sources import PROGRAM, NotCompiled, compile_starter
from instance import CONFIG, Instance
from kernel import Kernel
from system.accounts import delete_account

HERE = Path(__file__).parent
#: More than can be in progress at a time.
CORES = 16
#: An environment variable: the directory in which the programs are, made elsewhere.
PROGRAMS = "DRFD_BENCH_PROGRAMS"
#: Of the accounts that this process makes.
_NUMBERS = count()


class Place:
    def __init__(
        self, cores: int = CORES, *, private_tmp: bool = False, signs: bool = True
    ) -> None:
        """`cores`: the capacity. `signs`: whether the controller has an account of its own, if we
        are root; otherwise it has ours, and nothing is signed."""
        config = CONFIG.replace("cores = 9", f"cores = {cores}")
        self.instance = Instance(config + ("private_tmp = true\n" if private_tmp else ""))
        # The places where a test may kill a process cost a look at a directory each.
        self.instance.has_failpoints = False
        self.uid = os.getuid()
        self._signs = signs
        self._accounts: list[str] = []

    def start(self) -> Place:
        if self.uid == 0:
            self.uid = self._add_account("u").pw_uid
            os.chown(self.instance.work, self.uid, -1)
            if self._signs:
                controller = self._add_account("c").pw_name
                self.instance.as_root = False
                self.instance.configured += f'[daemon]\nuser = "{controller}"\n'
                self.instance.config.write_text(self.instance.configured)
        self._baseline = self._compile("baseline")
        self._migrate = self._compile("migrate")
        self.stamp = self._compile("stamp", "-static")
        # As where drfd was installed with a C compiler.
        with suppress(NotCompiled, OSError):
            compile_starter(PROGRAM)
        self.instance.start()
        return self

    def connect(self) -> Connection:
        """As the user: the kernel tells the daemon who we were when we connected, and gives out the
        user's key."""
        connection = Connection(self.instance.socket)
        before = os.geteuid()
        os.seteuid(self.uid)
        try:
            connection.request("hello")
            connection._learn_key()
        finally:
            os.seteuid(before)
        return connection

    def as_user(self) -> dict[str, Any]:
        """Options of `subprocess` for a program of the user's that speaks to this drfd."""
        env = {**os.environ, "DRFD_SOCKET": str(self.instance.socket)}
        options: dict[str, Any] = {"env": env, "cwd": self.instance.work}
        if self._accounts:
            account = pwd.getpwuid(self.uid)
            options |= {"user": self.uid, "group": account.pw_gid, "extra_groups": []}
        return options

    def fields(
        self, *argv: str, cores: int = 1, stdout: str | None = "/dev/null"
    ) -> dict[str, Any]:
        """Of a submission whose output goes there, or where it goes unless a user says otherwise.
        `cores`: of the capacity."""
        demand = {"cores_milli": cores * 1000, "memory_bytes": 64 << 20}
        output = {} if stdout is None else {"stdout": stdout, "stderr": "/dev/null"}
        return {"argv": list(argv), "cwd": str(self.instance.work), "demand": demand, **output}

    def run_baseline(self, jobs: int, workers: int) -> tuple[float, float]:
        """Seconds for a job on the wall and of processor time, when so many jobs are done by so
        many processes side by side."""
        command = self._baseline_command(jobs // workers, pause_ms=0)
        jobs = jobs // workers * workers
        before, begin_s = _children_cpu_s(), time.perf_counter()
        running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(workers)]
        codes = [each.wait() for each in running]
        if any(codes):
            raise SystemExit(f"the baseline has failed: {codes}")
        wall_s = time.perf_counter() - begin_s
        return wall_s / jobs, (_children_cpu_s() - before) / jobs

    def baseline_ms(self, jobs: int, *, pause_ms: int) -> float:
        """The median of what single jobs take, of which each begins so long after the last."""
        return statistics.median(_lines_ms(self._baseline_command(jobs, pause_ms=pause_ms)))

    def migrations_ms(self, times: int, *, pause_ms: int, who: str) -> list[float]:
        """What it takes to enter a cgroup, each time so long after the last one (migrate.c). None
        without cgroups. `who`: `pid` or `self`."""
        groups = self._groups()
        if not groups:
            return []
        return _lines_ms([self._migrate, str(groups[0]), str(times), str(pause_ms), who])

    @contextmanager
    def stamps(self) -> Iterator[tuple[str, Iterator[int]]]:
        """A path for the output of jobs that run `stamp`, and what they have written, in order."""
        path = self.instance.work / "stamps"
        os.mkfifo(path)
        os.chown(path, self.uid, -1)
        # We write to it, too, so that it has no end while no job does.
        with os.fdopen(os.open(path, os.O_RDWR), "rb") as lines:
            try:
                yield str(path), map(int, lines)
            finally:
                path.unlink()

    def cpu_s(self) -> dict[str, float]:
        """Processor time that each part has used so far."""
        assert self.instance.process is not None
        launcher = self.instance.launcher_pid()
        parts = {"controller": sum(_times(self.instance.process.pid)[:2])}
        parts["launcher"] = sum(_times(launcher)[:2])
        live = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        jobs = sum(_times(launcher)[2:]) + sum(sum(_times(int(pid))) for pid in live)
        return {**parts, "runners and jobs": jobs}

    def destroy(self) -> None:
        try:
            self.instance.destroy()
        finally:
            while self._accounts:
                delete_account(self._accounts.pop())

    def _add_account(self, letter: str) -> pwd.struct_passwd:
        """Jobs of system accounts are not taken, nor root's where others are looked at."""
        name = f"drfdbench{os.getpid()}{letter}{next(_NUMBERS)}"
        subprocess.run(["useradd", "--no-create-home", "--no-log-init", name], check=True)
        self._accounts.append(name)
        return pwd.getpwnam(name)

    def _baseline_command(self, jobs: int, *, pause_ms: int) -> list[str]:
        uid = str(self.uid) if self._accounts else "0"
        groups = [str(path) for path in self._groups()]
        return [self._baseline, str(jobs), uid, str(pause_ms), *groups]

    def _groups(self) -> list[Path]:
        return [top for top in Kernel().groups(group_for(self.instance.state)) if top.exists()]

    def _compile(self, name: str, *options: str) -> str:
        made = self.instance.root / name
        compile_to(made, *options)
        return str(made)


def compile_to(made: Path, *options: str) -> None:
    """Make the program of that name, or copy it from where there is no compiler (PROGRAMS)."""
    if there := os.environ.get(PROGRAMS):
        shutil.copy(Path(there, made.name), made)
        return
    source = HERE / f"{made.name}.c"
    subprocess.run(["cc", "-O2", "-Wall", *options, "-o", str(made), str(source)], check=True)


def _lines_ms(command: list[str]) -> list[float]:
    """The times that a program writes, in nanoseconds, one a line."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [int(line) / 1e6 for line in done.stdout.splitlines()]


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _times(pid: int) -> list[float]:
    """Own user and system time, and those of children that were waited for, in seconds."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in stat[11:15]]
