"""Two disks, of which one is a file: rates hold on the disk that they were declared for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from instance import CONFIG, Instance

pytestmark = pytest.mark.system

MIB = 1 << 20
EXTRA = """[[disk]]
name = "extra"
path = "{extra}"
read = "100M"
write = "50M"
"""


@pytest.fixture
def instance(make_instance: Callable[..., Instance], extra: Path) -> Instance:
    """Its first disk is the one of the usual configuration."""
    return make_instance(CONFIG.replace('"test"', '"main"') + EXTRA.format(extra=extra)).start()


#: Seconds in which 30 MiB cannot be written at 4 MiB in a second.
LEAST_S = 6.0


def seconds(instance: Instance, *words: str, where: Path, most_s: float) -> float:
    """How long a job takes to write 30 MiB directly in this directory: at most so long, or else the
    shortest of three times, as what others do with the disk only lengthens it."""
    target = f"of={where / 'written'}"
    command = ["dd", "if=/dev/zero", target, "bs=1M", "count=30", "oflag=direct", "status=none"]
    took_s: list[float] = []
    while len(took_s) < 3 and (not took_s or took_s[-1] >= most_s):
        job = instance.wait_end(instance.submit(*words, "--", *command, cwd=where))
        assert job["state"] == "COMPLETED", job
        took_s.append(float(job["ended_at"] - job["started_at"]))
    assert min(took_s) < most_s, took_s
    return min(took_s)


def test_a_rate_holds_on_the_disk_that_it_names_and_on_no_other(
    instance: Instance, extra: Path
) -> None:
    slow = seconds(instance, "--io", "extra=4M", where=extra, most_s=20)
    assert slow > LEAST_S
    seconds(instance, "--io", "main=4M", where=extra, most_s=slow / 2)
    assert seconds(instance, "--io", "main=4M", where=instance.work, most_s=20) > LEAST_S


def test_a_rate_without_a_name_is_for_the_disk_of_the_directory(
    instance: Instance, extra: Path
) -> None:
    assert seconds(instance, "--io", "4M", where=extra, most_s=20) > LEAST_S
    job_id = instance.submit("--io", "40M/20M", "--", "true", cwd=extra)
    demand: dict[str, Any] = instance.show(job_id)["demand"]
    assert (demand["read"], demand["write"]) == (40 * MIB, 20 * MIB)
    assert demand["disks"]["extra"] == {"read": 40 * MIB, "write": 20 * MIB}
    assert "io 40M/20M on disk extra\n" in instance.drf("show", job_id).stdout


def test_each_disk_is_given_out_by_itself_and_a_reload_may_take_one_away(
    instance: Instance, extra: Path
) -> None:
    holder = instance.submit("--io", "extra=1M/40M", "--", "sleep", "600")
    instance.wait_state(holder, "RUNNING")
    waits = instance.submit("--io", "extra=1M/20M", "--", "true")
    other = instance.submit("--io", "main=1M/20M", "--", "true")
    assert instance.wait_end(other)["state"] == "COMPLETED"
    text = instance.show(waits)["reason"]["text"]
    assert text.startswith("needs 20M/s of disk writes on extra, 10M/s free")
    refused = instance.drf("submit", "--io", "extra=51M", "--", "true", check=False)
    assert refused.returncode == 1
    assert "51M/s of disk writes on extra, and this machine has 50M/s" in refused.stderr
    unknown = instance.drf("submit", "--io", "xtra=51M", "--", "true", check=False)
    assert unknown.stderr == "drf: --io: there is no disk 'xtra' here (disks: main, extra)\n"

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


def test_calibrate_finds_the_rate_that_the_kernel_holds_it_to(
    instance: Instance, tmp_path: Path
) -> None:
    """Run as a job with a limit, the limit is how fast the disk is. Others may keep the disk busy
    meanwhile: one of three has to be right, and none above."""
    free = os.statvfs(instance.work)
    if free.f_bavail * free.f_frsize < 512 * MIB:
        pytest.skip("too little room here")
    command = ["-I", "-m", "drfd.daemon", "calibrate", "--path", instance.work, "--json"]
    # What it reports while it measures goes to its errors.
    limits = ("-m", "256M", "--io", "main=80M/50M", "-e", "/dev/null")
    rates = []
    for _ in range(3):
        job_id = instance.submit(*limits, "--", sys.executable, *command)
        job = instance.wait_end(job_id, seconds=120)
        assert job["state"] == "COMPLETED", job
        (found,) = json.loads(Path(job["stdout"]).read_text())["disks"]
        assert found["direct"]
        assert found["read"] < 90 * MIB and found["write"] < 56 * MIB
        rates.append((found["read"] / MIB, found["write"] / MIB))
        if max(read for read, _ in rates) > 65 and max(write for _, write in rates) > 40:
            return
    raise AssertionError(rates)
