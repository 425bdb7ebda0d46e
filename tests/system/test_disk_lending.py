"""Disk rates that are lent, by what jobs read from a disk of our own: a file. Others may keep the
processors busy meanwhile, so what is read is compared with what was read before."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from instance import CONFIG, Instance, wait_for
from kernel import Kernel

pytestmark = pytest.mark.system

MIB = 1 << 20
EXTRA = """[[disk]]
name = "extra"
path = "{extra}"
read = "50M"
write = "50M"
"""
#: Reads from the disk, and writes a byte into the file of its argument for each MiB.
READ = """
import mmap, os, sys
block = mmap.mmap(-1, 1 << 20)
data = os.open("data", os.O_RDONLY | os.O_DIRECT)
count = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
while True:
    os.preadv(data, [block], 0)
    os.write(count, b"+")
"""


@pytest.fixture
def instance(make_instance: Callable[..., Instance], extra: Path) -> Instance:
    """Cores are given out by quota, as usual: ranges of disks count in any mode."""
    (extra / "data").write_bytes(bytes(4 * MIB))
    text = CONFIG.replace('"test"', '"main"') + EXTRA.format(extra=extra)
    instance = make_instance(text).start()
    if "blkio" not in Kernel().v1 and Kernel().v2 is None:
        pytest.skip("no controller of disks here")
    return instance


class Reader:
    def __init__(self, instance: Instance, where: Path, io: str, *words: str) -> None:
        self._count = instance.work / f"count-{time.monotonic_ns()}"
        program = (sys.executable, "-c", READ, str(self._count))
        job_id = instance.submit("--io", f"extra={io}", *words, "--", *program, cwd=where)
        self.job: dict[str, Any] = instance.wait_state(job_id, "RUNNING")
        wait_for("its first MiB", lambda: self._read() > 0)

    def _read(self) -> int:
        return self._count.stat().st_size if self._count.exists() else 0

    def rate(self, seconds: float = 2.0) -> float:
        """MiB in a second."""
        began, before = time.monotonic(), self._read()
        time.sleep(seconds)
        return (self._read() - before) / (time.monotonic() - began)

    def limit(self) -> float:
        """What the kernel lets it read, in MiB per second."""
        kernel = Kernel()
        name = "blkio.throttle.read_bps_device" if kernel.v2 is None else "io.max"
        text = Path(kernel.v2 or kernel.v1["blkio"], self.job["cgroup"], name).read_text()
        return int(text.split()[1].removeprefix("rbps=")) / MIB


def test_what_nobody_declares_is_lent_until_somebody_who_holds_less_wants_more(
    instance: Instance, extra: Path
) -> None:
    """The first job's pool holds two thirds of the memory, so the other one is lent all but what
    both of them are promised."""
    first = Reader(instance, extra, "10M..40M/1M", "-p", "A", "-m", "12G")
    wait_for("all that it asked for", lambda: first.limit() == 40)
    alone = first.rate()
    shown = instance.show(first.job["id"])
    (loan,) = shown["lent_disks"]
    assert (loan["disk"], loan["direction"], loan["floor"]) == ("extra", "read", 10 * MIB)
    assert loan["ceiling"] == loan["most"] == 40 * MIB
    text = "may read 40M/s on extra now, 30M/s of that lent: all that it asked for"
    assert f"loan {text}" in " ".join(instance.drf("show", first.job["id"]).stdout.split())
    assert "unlent" not in shown
    (row,) = json.loads(instance.drf("top", "--once", "--json").stdout)["running"]
    assert (row["demand"]["read"], row["now"]["read_ceiling"]) == (10 * MIB, 40 * MIB)
    assert "write_ceiling" not in row["now"], "no range of writes is declared"

    second = Reader(instance, extra, "10M..40M/1M", "-p", "B", "-m", "100M")
    wait_for("the second one's part", lambda: second.limit() > 30)
    assert first.limit() < 15 and first.limit() + second.limit() <= 45.001
    both = first.rate(), second.rate()
    assert alone > 2 * both[0] and both[1] > 1.5 * both[0], (alone, both)
    assert "may read" in instance.drf("why", first.job["id"]).stdout

    plain = Reader(instance, extra, "20M/1M", "-p", "B", "-m", "100M")
    wait_for("room for its floor", lambda: first.limit() + second.limit() <= 25.001)
    assert (first.limit(), plain.limit()) == (10, 20)
    for job in (second, plain):
        instance.drf("cancel", job.job["id"])
    wait_for("its loan again", lambda: first.limit() == 40)
    assert first.rate() > 2 * both[0]


def test_a_loan_is_given_back_by_a_job_that_is_suspended_or_loses_its_range(
    instance: Instance, extra: Path
) -> None:
    job = Reader(instance, extra, "10M..40M/1M")
    wait_for("a loan", lambda: job.limit() == 40)
    instance.drf("suspend", job.job["id"])
    wait_for("its floor", lambda: job.limit() == 10)
    instance.drf("resume", job.job["id"])
    wait_for("a loan", lambda: job.limit() == 40)
    instance.drf("set", "--io", "extra=10M/1M", job.job["id"])
    wait_for("its floor", lambda: job.limit() == 10)


def test_a_controller_that_is_killed_leaves_what_is_lent_and_the_next_one_goes_on(
    instance: Instance, extra: Path
) -> None:
    job = Reader(instance, extra, "10M..40M/1M")
    wait_for("a loan", lambda: job.limit() == 40)
    instance.kill()
    assert job.limit() == 40
    instance.start()
    wait_for("its loan again", lambda: "lent_disks" in instance.show(job.job["id"]))
    wait_for("a loan", lambda: job.limit() == 40)
