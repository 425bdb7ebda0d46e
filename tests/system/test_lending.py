"""What running jobs are lent, by what their processes can do: a launcher, and orders as a
controller gives them. Other programs may use the machine meanwhile, so measures are ratios, or of
jobs that come before those programs."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from drfd.launcher.attempt_files import Key
from drfd.launcher.protocol import (
    SHARE,
    AttemptLimits,
    Ceilings,
    DiskLimit,
    LendOrder,
    lend_message,
)
from instance import wait_for
from kernel import Kernel
from launcher.rig import Controller, LauncherProcess, order

pytestmark = pytest.mark.system

CPUS = sorted(os.sched_getaffinity(0))
MIB = 1 << 20
#: Two processes that spin, on the CPUs that are the other arguments.
SPIN = """
import os, sys
os.sched_setaffinity(0, {int(word) for word in sys.argv[1:]})
os.fork()
while True: pass
"""
#: Spins on a CPU for as many seconds as it reads from its pipe, and sleeps otherwise.
WAKE = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
pipe = os.open("pipe", os.O_RDWR)
open("ready", "w").close()
while True:
    until = float(os.read(pipe, 100)) + time.monotonic()
    while time.monotonic() < until: pass
"""


_numbers = itertools.count(1)


class Machine:
    """A launcher with jobs in cgroups of their own, and the controller that orders them."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="drfd-test-", dir="/var/tmp"))
        self.launcher = LauncherProcess(self.root / "state")
        self.group = f"drfd-lending-{os.getpid()}-{next(_numbers)}"
        self.controller = self.start()
        self._number = 0

    def start(self) -> Controller:
        self.launcher.start("--group", self.group, cgroups=True)
        return self.launcher.connect()

    def come_first(self) -> None:
        """Let all jobs together come before what else runs (v1; on v2 the guest is ours alone)."""
        kernel = Kernel()
        if kernel.v2 is None:
            Path(kernel.v1["cpu"], self.group, "cpu.shares").write_text("65536")

    def run(self, floor: float, most: float, program: str, *words: object, **more: Any) -> Job:
        """A job that runs, and may be lent so many cores in all."""
        self._number += 1
        disks = more.get("disks", ())
        limits = AttemptLimits(
            cores_milli=round(floor * 1000), memory_bytes=64 * MIB, pids=10, cores_by=SHARE,
            disks=disks,
        )  # fmt: skip
        asked = order(
            *(sys.executable, "-c", program, *map(str, words)), cwd=self.root, id=self._number,
            limits=limits, most=Ceilings(
                cores_milli=round(most * 1000), disks=more.get("most_disks", disks)
            ),
            env=dict(os.environ), stdout="/dev/null", stderr="/dev/null",
        )  # fmt: skip
        self.controller.launch(asked)
        up = self.controller.take("up", id=self._number, attempt=1)
        return Job((self._number, 1), up["cgroup"])

    def lend(self, job: Job, cores: float, disks: tuple[DiskLimit, ...] = ()) -> None:
        """It is carried out when this returns."""
        ask = LendOrder(
            id=job.key[0], attempt=job.key[1], cores_milli=round(cores * 1000), disks=disks
        )
        self.controller.send(lend_message(ask))
        self.controller.list()

    def destroy(self) -> None:
        try:
            if self.launcher.process.poll() is not None:
                self.controller = self.start()
            self.controller.forget_reports()
            for number in range(1, self._number + 1):
                self.controller.ask("remove", (number, 1))
            wait_for("an end of all jobs", lambda: self.controller.list()[-1]["known"] == [])
            self.launcher.process.send_signal(signal.SIGTERM)
            self.launcher.process.wait(60)
        finally:
            self.launcher.clean_up()
            Kernel().end_scope(self.group)
            shutil.rmtree(self.root)


#: Writes to the disk, and a byte into another file for each MiB.
WRITE = """
import mmap, os
block = mmap.mmap(-1, 1 << 20)
data = os.open("data", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
count = os.open("count", os.O_WRONLY | os.O_CREAT)
while True:
    os.pwrite(data, block, 0)
    os.write(count, b"+")
"""


class Job:
    """Its figures in the kernel's files."""

    def __init__(self, key: Key, cgroup: str) -> None:
        self.key, self._cgroup = key, cgroup
        self._kernel = Kernel()
        name = "cpuacct.usage" if self._kernel.v2 is None else "cpu.stat"
        self._usage = self._file("cpuacct", name)

    def _file(self, controller: str, name: str) -> Path:
        return Path(self._kernel.v2 or self._kernel.v1[controller], self._cgroup, name)

    def cpu_s(self) -> float:
        text = self._usage.read_text()
        return int(text) / 1e9 if self._kernel.v2 is None else int(text.split()[1]) / 1e6

    def ceiling(self) -> float:
        """Cores that it may use."""
        if self._kernel.v2 is None:
            quota, period = (
                int(self._file("cpu", f"cpu.cfs_{name}_us").read_text())
                for name in ("quota", "period")
            )
        else:
            quota, period = map(int, self._file("cpu", "cpu.max").read_text().split())
        return quota / period

    def reads(self) -> str:
        """The limits of its reads."""
        name = "blkio.throttle.read_bps_device" if self._kernel.v2 is None else "io.max"
        return self._file("blkio", name).read_text()


@pytest.fixture
def machine() -> Iterator[Machine]:
    if len(CPUS) < 2:
        pytest.skip("one CPU is everybody's")
    machine = Machine()
    try:
        yield machine
    finally:
        machine.destroy()


def use(job: Job, seconds: float = 2.0) -> float:
    """Cores that it uses. The time is never shorter than that of the use: what comes between the
    readings makes the use look smaller."""
    began, before = time.monotonic(), job.cpu_s()
    time.sleep(seconds)
    used = job.cpu_s() - before
    return used / (time.monotonic() - began)


def comes_to(job: Job, cores: float) -> None:
    """It uses so many for two seconds, and never more by an eighth: at the edges of that time it
    may have a period's quota twice. On a busy machine it may take."""
    seen = []

    def does() -> bool:
        seen.append(use(job))
        assert seen[-1] <= cores * 1.125, seen
        return seen[-1] >= cores * 0.9

    wait_for(f"a use of {cores} cores", does, show=lambda: str(seen))


def test_a_job_uses_what_it_is_lent_and_its_floor_after_that(machine: Machine) -> None:
    job = machine.run(0.5, 2, SPIN, *CPUS)
    assert job.ceiling() == 0.5
    machine.come_first()
    comes_to(job, 0.5)
    machine.lend(job, 1.5)
    assert job.ceiling() == 1.5
    comes_to(job, 1.5)
    machine.lend(job, 0.5)
    comes_to(job, 0.5)


def test_nobody_orders_less_than_the_floor_or_more_than_the_most(machine: Machine) -> None:
    job = machine.run(0.5, 1.25, SPIN, *CPUS)
    for asked, there in ((0, 0.5), (0.2, 0.5), (0.75, 0.75), (100, 1.25), (0.75, 0.75)):
        machine.lend(job, asked)
        assert job.ceiling() == there


def test_a_launcher_that_is_killed_leaves_what_is_lent_and_the_next_one_knows_the_bounds(
    machine: Machine,
) -> None:
    job = machine.run(0.5, 1.25, SPIN, *CPUS)
    machine.lend(job, 1)
    machine.launcher.kill()
    assert job.ceiling() == 1
    machine.controller = machine.start()
    assert machine.controller.hello["lendable"]
    assert job.ceiling() == 1
    for asked, there in ((0.1, 0.5), (0.75, 0.75), (100, 1.25)):
        machine.lend(job, asked)
        assert job.ceiling() == there


def test_an_order_about_a_job_that_is_gone_is_logged_once_and_harms_nobody(
    machine: Machine,
) -> None:
    job = machine.run(0.5, 1, SPIN, *CPUS)
    gone = Job((99, 1), "")
    for _ in range(3):
        machine.lend(gone, 1)
    assert machine.launcher.log().count("event=not-lent job=99 attempt=1") == 1
    machine.lend(job, 1)
    assert job.ceiling() == 1


@pytest.fixture
def device(machine: Machine) -> str:
    """The disk of the directory that jobs run in."""
    status = os.stat(machine.root).st_dev
    found = _whole_disk(os.major(status), os.minor(status))
    if found is None or "disks" not in machine.controller.hello["lendable"]:
        pytest.skip("no disk here whose rates can be limited")
    return found


def test_what_the_disk_gives_moves_between_floor_and_most(machine: Machine, device: str) -> None:
    def rates(read_bps: int) -> tuple[DiskLimit, ...]:
        return (DiskLimit(device=device, read_bps=read_bps, write_bps=0),)

    job = machine.run(0.5, 1, SPIN, *CPUS, disks=rates(10 * MIB), most_disks=rates(50 * MIB))
    assert str(10 * MIB) in job.reads()
    for asked, there in ((20, 20), (5, 10), (500, 50)):
        machine.lend(job, 0.5, rates(asked * MIB))
        (line,) = job.reads().splitlines()
        assert str(there * MIB) in line and line.startswith(device)
    machine.lend(job, 1)
    assert str(50 * MIB) in job.reads(), "a disk that is not named keeps its rates"


def test_a_job_writes_at_the_rate_that_it_is_lent(machine: Machine, device: str) -> None:
    def rates(mib: int) -> tuple[DiskLimit, ...]:
        return (DiskLimit(device=device, read_bps=0, write_bps=mib * MIB),)

    def written(seconds: float = 3.0) -> float:
        """MiB in a second."""
        began, before = time.monotonic(), count.stat().st_size
        time.sleep(seconds)
        return (count.stat().st_size - before) / (time.monotonic() - began)

    job = machine.run(0.5, 1, WRITE, disks=rates(2), most_disks=rates(40))
    count = machine.root / "count"
    wait_for("a job that writes", lambda: count.exists() and count.stat().st_size > 2)
    assert written() < 3
    machine.lend(job, 0.5, rates(40))
    wait_for("more from the disk", lambda: written(1) > 6)  # Three times the floor.
    machine.lend(job, 0.5, rates(2))
    # What it has begun before.
    time.sleep(1)
    assert written() < 3


def _whole_disk(major: int, minor: int) -> str | None:
    """The disk of a partition, whose rates the kernel limits."""
    with suppress(OSError):
        place = Path(f"/sys/dev/block/{major}:{minor}").resolve()
        disk = place.parent if (place / "partition").exists() else place
        return (disk / "dev").read_text().strip()
    return None


def test_who_wakes_up_has_the_floor_at_once_though_nobody_is_left_to_give_it(
    machine: Machine,
) -> None:
    """One CPU for a job of three quarters of it and one of a quarter, which is lent everything:
    only the weights hold, which nobody has to move."""
    cpu = CPUS[-1]
    pipe = machine.root / "pipe"
    os.mkfifo(pipe)
    neighbour = machine.run(0.25, len(CPUS), SPIN, cpu)
    sleeper = machine.run(0.75, len(CPUS), WAKE, cpu)
    for job in (neighbour, sleeper):
        machine.lend(job, len(CPUS))
    wait_for("the sleeper", (machine.root / "ready").exists)
    machine.come_first()
    machine.launcher.kill()
    machine.controller.close()
    awake = os.open(pipe, os.O_WRONLY)
    found = []
    for turn in range(12):
        # It has slept for long, or for a moment.
        time.sleep(0.05 + 0.1 * (turn % 4))
        slept = sleeper.cpu_s()
        before = neighbour.cpu_s()
        os.write(awake, b"0.6\n")
        for window in range(2):
            time.sleep(0.2)
            now = sleeper.cpu_s(), neighbour.cpu_s()
            found.append((turn, window, now[0] - slept, now[1] - before))
            slept, before = now
        time.sleep(0.3)
    os.close(awake)
    # A millisecond more or less is the scheduler's; a busy machine may have kept both away.
    assert all(mine + theirs > 0 for *_, mine, theirs in found)
    short = [each for each in found if each[2] / (each[2] + each[3]) < 0.75 * 0.85]
    assert short == [], found
