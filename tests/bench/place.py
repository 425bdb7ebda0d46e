"""What benchmarks share: a private drfd, an ordinary user of it, the programs in C, and figures.

The drfd is as its users have it: the controller has an account of its own, so that each submission
is signed and checked. Two things differ. `respect_external_load` is off, because the benchmark
itself is load; and there are no failpoints, which only tests have.

The baseline has its cgroups beside those of the jobs, in the instance's own directories, so that
both are as deep and below the same controllers, and all goes with the instance.

A figure is the median of several runs, and each run takes its baseline anew: what else the machine
does slows both.
"""

from __future__ import annotations

import argparse
import compileall
import os
import pwd
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import drfd
import drfd_cli
from drfd.client.connection import Connection
from drfd.daemon.spawn import group_for
from drfd.launcher.runner.starter.compiler import NotCompiled, compile_starter
from drfd.launcher.runner.starter.sources import PROGRAM
from instance import (
    CONFIG,
    Instance,
    add_account,
    children_of,
    cpu_s,
    delete_account,
    stat_of,
    wait_for,
)
from kernel import Kernel

HERE = Path(__file__).parent
#: More than can be in progress at a time.
CORES = 16
#: Of the accounts that this process makes.
_NUMBERS = count()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table."""

    what: str
    value: float
    unit: str
    #: The value as a multiple of this one, of the same run.
    baseline: float
    baseline_what: str
    #: What it is meant to be: a text, and whether it is.
    aim: str = ""
    is_met: bool | None = None


@dataclass(frozen=True)
class Chosen:
    runs: int
    jobs: int


def options_of(name: str, text: str | None) -> argparse.ArgumentParser:
    """For the arguments of a benchmark. What it has made is taken away, too, when it is told to
    end. The program is compiled before: with PYTHONDONTWRITEBYTECODE each start would do it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for package in (drfd, drfd_cli):
        compileall.compile_dir(Path(package.__file__).parent, quiet=2)
    return argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def late(found: list[float]) -> float:
    """What 95 of 100 are below."""
    return statistics.quantiles(found, n=20)[-1]


def latest(found: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(found, n=100, method="inclusive")[98]


def end_well(client: Connection, job_id: int) -> None:
    """Wait for it. A job or array that has failed was not what is measured."""
    reply = client.wait([job_id], any_one=False, timeout_s=None)
    if reply["ended"][0]["state"] != "COMPLETED":
        raise SystemExit(f"job {job_id} has failed: {reply['ended'][0]}")


def fill(instance: Instance, count: int, fields: Callable[[int], dict[str, Any]]) -> None:
    """Submit so many jobs; those who ask at the same time share a sync of the disk."""

    def submit(share: range) -> None:
        client = Connection(instance.socket)
        for number in share:
            client.request("submit", cwd="/", **fields(number))
        client.close()

    threads = [threading.Thread(target=submit, args=(range(at, count, 64),)) for at in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def await_running(instance: Instance, count: int) -> None:
    def are_all() -> bool:
        return bool(instance._ask("status")["counts"].get("RUNNING") == count)

    wait_for("all of them to run", are_all, seconds=600, pause_s=0.5)


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
        self.stamp = self._compile("stamp", "-static")
        with suppress(NotCompiled):
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
        before, begin_s = children_cpu_s(), time.perf_counter()
        running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(workers)]
        codes = [each.wait() for each in running]
        if any(codes):
            raise SystemExit(f"the baseline has failed: {codes}")
        wall_s = time.perf_counter() - begin_s
        return wall_s / jobs, (children_cpu_s() - before) / jobs

    def baseline_ms(self, jobs: int, *, pause_ms: int) -> float:
        """The median of what single jobs take, of which each begins so long after the last."""
        command = self._baseline_command(jobs, pause_ms=pause_ms)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return statistics.median(int(line) / 1e6 for line in done.stdout.splitlines())

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
        parts = {"controller": cpu_s(self.instance.process.pid), "launcher": cpu_s(launcher)}
        jobs = _waited_s(launcher) + sum(cpu_s(p) + _waited_s(p) for p in children_of(launcher))
        return {**parts, "runners and jobs": jobs}

    @contextmanager
    def drained(self) -> Iterator[None]:
        """Nothing is launched meanwhile, and nothing is left."""
        self.instance.drf("drain")
        try:
            yield
        finally:
            self.instance.drf("cancel", "--all", "--yes")
            self.instance.drf("undrain")

    def destroy(self) -> None:
        try:
            self.instance.destroy()
        finally:
            while self._accounts:
                delete_account(self._accounts.pop())

    def _add_account(self, letter: str) -> pwd.struct_passwd:
        """Jobs of system accounts are not taken, nor root's where others are looked at."""
        name = f"drfdbench{os.getpid()}{letter}{next(_NUMBERS)}"
        account = add_account(name)
        self._accounts.append(name)
        return account

    def _baseline_command(self, jobs: int, *, pause_ms: int) -> list[str]:
        uid = str(self.uid) if self._accounts else "0"
        groups = [str(path) for path in self._groups()]
        return [self._baseline, str(jobs), uid, str(pause_ms), *groups]

    def _groups(self) -> list[Path]:
        return [top for top in Kernel().groups(group_for(self.instance.state)) if top.exists()]

    def _compile(self, name: str, *options: str) -> str:
        made, source = str(self.instance.root / name), str(HERE / f"{name}.c")
        subprocess.run(["cc", "-O2", "-Wall", *options, "-o", made, source], check=True)
        return made


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _waited_s(pid: int) -> float:
    """Processor time of children that were waited for."""
    return sum(map(int, stat_of(pid)[13:15])) / os.sysconf("SC_CLK_TCK")
