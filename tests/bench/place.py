"""Where the benchmarks run: a private drfd, an ordinary user of it, and the programs in C.

The baseline has its cgroups beside those of the jobs, in the instance's own directories, so that
both are as deep and below the same controllers, and all goes with the instance.
"""

from __future__ import annotations

import os
import pwd
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drfd.client.connection import Connection
from drfd.daemon.spawn import group_for
from instance import CONFIG, Instance
from kernel import Kernel

HERE = Path(__file__).parent
#: More than can be in progress at a time.
CORES = 16


class Place:
    def __init__(self) -> None:
        config = CONFIG.replace("cores = 9", f"cores = {CORES}")
        self.instance = Instance(config)
        # The places where a test may kill a process cost a look at a directory each.
        self.instance.has_failpoints = False
        self.uid = os.getuid()
        self._user: str | None = None

    def start(self) -> Place:
        if self.uid == 0:
            self._user = self._add_user()
            self.uid = pwd.getpwnam(self._user).pw_uid
            os.chown(self.instance.work, self.uid, -1)
        self._baseline = self._compile("baseline")
        self.stamp = self._compile("stamp", "-static")
        self.instance.start()
        return self

    def connect(self) -> Connection:
        """As the user: the kernel tells the daemon who we were when we connected."""
        connection = Connection(self.instance.socket)
        before = os.geteuid()
        os.seteuid(self.uid)
        try:
            connection.request("hello")
        finally:
            os.seteuid(before)
        return connection

    def fields(self, *argv: str, cores: int = 1, stdout: str = "/dev/null") -> dict[str, Any]:
        """Of a submission whose output goes there. `cores`: of CORES."""
        demand = {"cores_milli": cores * 1000, "memory_bytes": 64 << 20}
        output = {"stdout": stdout, "stderr": "/dev/null"}
        return {"argv": list(argv), "cwd": str(self.instance.work), "demand": demand, **output}

    def run_baseline(self, jobs: int, workers: int) -> tuple[float, float]:
        """Seconds for a job on the wall and of processor time, when so many jobs are done by so
        many processes side by side."""
        groups = [str(path) for path in self._groups()]
        uid = "0" if self._user is None else str(self.uid)
        command = [self._baseline, str(jobs // workers), uid, *groups]
        jobs = jobs // workers * workers
        before, begin_s = _children_cpu_s(), time.perf_counter()
        running = [subprocess.Popen(command) for _ in range(workers)]
        codes = [each.wait() for each in running]
        if any(codes):
            raise SystemExit(f"the baseline has failed: {codes}")
        wall_s = time.perf_counter() - begin_s
        return wall_s / jobs, (_children_cpu_s() - before) / jobs

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
            if self._user is not None:
                subprocess.run(["userdel", self._user], check=True)

    def _add_user(self) -> str:
        """Jobs of system accounts are not taken, nor root's where others are looked at."""
        name = f"drfdbench{os.getpid()}"
        subprocess.run(["useradd", "--no-create-home", "--no-log-init", name], check=True)
        return name

    def _groups(self) -> list[Path]:
        return [top for top in Kernel().groups(group_for(self.instance.state)) if top.exists()]

    def _compile(self, name: str, *options: str) -> str:
        made = self.instance.root / name
        command = ["cc", "-O2", "-Wall", *options, "-o", str(made), str(HERE / f"{name}.c")]
        subprocess.run(command, check=True)
        return str(made)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _times(pid: int) -> list[float]:
    """Own user and system time, and those of children that were waited for, in seconds."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in stat[11:15]]
