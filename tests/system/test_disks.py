"""Two disks, of which one is a file: rates hold on the disk that they were declared for, and are
lent there. Others may keep the machine busy meanwhile, so measures are compared with each other.
"""

import json
import sys
import time
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


@pytest.fixture
def instance(make_instance, extra) -> Instance:
    """Its first disk is that of the usual configuration, and cores are given by quota."""
    text = CONFIG.replace('"test"', '"main"') + EXTRA.format(extra=extra)
    made = make_instance(text).start()
    if "blkio" not in Kernel().v1 and Kernel().v2 is None:
        pytest.skip("no controller of disks here")
    return made


#: Seconds in which 30 MiB cannot be written at 4 MiB in a second.
LEAST_S = 6.0


def seconds(instance: Instance, *words: str, where: Path, most_s: float) -> float:
    """The time to write 30 MiB there: others only lengthen it, so the shortest of three counts."""
    target = f"of={where / 'written'}"
    command = ["dd", "if=/dev/zero", target, "bs=1M", "count=30", "oflag=direct", "status=none"]
    took_s: list[float] = []
    while len(took_s) < 3 and (not took_s or took_s[-1] >= most_s):
        job = instance.ended(*words, "--", *command, cwd=where)
        assert job["state"] == "COMPLETED", job
        took_s.append(float(job["ended_at"] - job["started_at"]))
    assert min(took_s) < most_s, took_s
    return min(took_s)


def test_a_rate_holds_on_the_disk_that_it_names_only(instance, extra):
    slow = seconds(instance, "--io", "extra=4M", where=extra, most_s=20)
    assert slow > LEAST_S
    seconds(instance, "--io", "main=4M", where=extra, most_s=slow / 2)
    assert seconds(instance, "--io", "main=4M", where=instance.work, most_s=20) > LEAST_S


def test_a_rate_without_name_is_for_the_directorys_disk(instance, extra):
    assert seconds(instance, "--io", "4M", where=extra, most_s=20) > LEAST_S
    job_id = instance.submit("--io", "40M/20M", "--", "true", cwd=extra)
    demand: dict[str, Any] = instance.show(job_id)["demand"]
    assert (demand["read"], demand["write"]) == (40 * MIB, 20 * MIB)
    assert demand["disks"]["extra"] == {"read": 40 * MIB, "write": 20 * MIB}
    assert "io 40M/20M on disk extra\n" in instance.drf("show", job_id).stdout


def test_each_disk_is_given_out_by_itself_and_a_reload_may_take_one_away(instance, extra):
    holder = instance.running("--io", "extra=1M/40M", "--", "sleep", "600")["id"]
    waits = instance.submit("--io", "extra=1M/20M", "--", "true")
    other = instance.submit("--io", "main=1M/20M", "--", "true")
    assert instance.wait_end(other)["state"] == "COMPLETED"
    text = instance.show(waits)["reason"]["text"]
    assert text.startswith("needs 20M/s of disk writes on extra, 10M/s free")

    config = instance.config.read_text()
    instance.config.write_text(config.replace(EXTRA.format(extra=extra), ""))
    assert "jobs name the disk extra, which is not configured" in instance.drf("reload").stderr
    assert "since its configuration was changed" in instance.show(waits)["reason"]["text"]
    assert instance.show(holder)["state"] == "RUNNING"
    instance.kill()
    instance.start()
    assert "since its configuration was changed" in instance.show(waits)["reason"]["text"]
    assert instance.show(holder)["state"] == "RUNNING"
    instance.config.write_text(config)
    instance.drf("reload")
    instance.drf("cancel", holder)
    assert instance.wait_end(waits)["state"] == "COMPLETED"


# -- lent rates -------------------------------------------------------------------------------

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


class Reader:
    def __init__(self, instance: Instance, where: Path, io: str, *words: str) -> None:
        self._count = instance.work / f"count-{time.monotonic_ns()}"
        program = (sys.executable, "-c", READ, str(self._count))
        (where / "data").write_bytes(bytes(4 * MIB))
        asked = ("--io", f"extra={io}", *words)
        self.job = instance.running(*asked, "--", *program, cwd=where)
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


def test_what_nobody_declares_is_lent_until_somebody_who_holds_less_wants_more(instance, extra):
    """The first pool holds two thirds of the memory: the other gets all but what is promised."""
    first = Reader(instance, extra, "10M..40M/1M", "-p", "A", "-m", "12G")
    wait_for("all that it asked for", lambda: first.limit() == 40)
    # Others can only slow a reader down.
    wait_for("reads at what is lent", lambda: first.rate() > 20)
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
    wait_for("the second one's part", lambda: second.limit() > 30 and first.limit() < 15)
    assert first.limit() + second.limit() <= 45.001
    assert first.rate() < 20
    wait_for("reads at what is lent", lambda: second.rate() > 20)
    assert "may read" in instance.drf("why", first.job["id"]).stdout

    plain = Reader(instance, extra, "20M/1M", "-p", "B", "-m", "100M")
    wait_for("room for its floor", lambda: first.limit() == 10 and second.limit() <= 15.001)
    assert plain.limit() == 20
    for job in (second, plain):
        instance.drf("cancel", job.job["id"])
    wait_for("its loan again", lambda: first.limit() == 40)
    wait_for("reads at what is lent", lambda: first.rate() > 20)


def test_a_loan_outlives_the_controller_and_is_given_back_by_a_job_that_stands_or_loses_its_range(
    instance, extra
):
    job = Reader(instance, extra, "10M..40M/1M")
    wait_for("a loan", lambda: job.limit() == 40)
    instance.kill()
    assert job.limit() == 40
    instance.start()
    wait_for("its loan again", lambda: "lent_disks" in instance.show(job.job["id"]))
    wait_for("a loan", lambda: job.limit() == 40)
    instance.drf("suspend", job.job["id"])
    wait_for("its floor", lambda: job.limit() == 10)
    instance.drf("resume", job.job["id"])
    wait_for("a loan", lambda: job.limit() == 40)
    instance.drf("set", "--io", "extra=10M/1M", job.job["id"])
    wait_for("its floor", lambda: job.limit() == 10)
