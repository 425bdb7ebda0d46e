"""What is on record of an ended job is what the kernel saw of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from drfd.common.units import parse_memory
from drfd.core.amounts.resources import Axes
from drfd.core.model.job import Usage
from drfd.journal.journal import Journal
from instance import PATIENCE, Instance, wait_for

pytestmark = pytest.mark.system

#: Burns so many seconds of CPU on two threads of execution.
BURN = (
    "import os, time\n"
    "for _ in range(2):\n"
    "    if os.fork() == 0:\n"
    "        while time.process_time() < {seconds}: pass\n"
    "        os._exit(0)\n"
    "for _ in range(2): os.wait()\n"
)


def used(instance: Instance, job_id: int) -> Usage:
    """As it is in the journal, which belongs to whoever runs this."""
    (path,) = instance.state.rglob("journal.sqlite")
    journal = Journal(path)
    try:
        assert job_id not in journal.load(Axes()).jobs
        job = journal.job(job_id)
    finally:
        journal.close()
    assert job is not None
    assert job.usage is not None
    return job.usage


def python(code: str, **values: Any) -> tuple[str, str, str]:
    return sys.executable, "-c", code.format(**values)


def test_a_job_that_wants_more_cores_than_it_has_is_recorded_as_held_back(
    instance: Instance,
) -> None:
    job = instance.wait_end(instance.submit("-c", "0.1", "--", *python(BURN, seconds=0.2)))
    usage = used(instance, job["id"])
    assert 0.4 <= usage.cpu_s < 5 * PATIENCE
    assert usage.quota_periods and usage.throttled_periods and usage.throttled_us
    assert usage.throttled_periods <= usage.quota_periods + 1
    # With a tenth of a core it stands still for most of the time, however busy others are.
    assert usage.throttled_periods * 4 > usage.quota_periods
    assert usage.throttled_us > 200_000


def test_a_job_that_asked_for_enough_was_never_held_back(instance: Instance) -> None:
    # A single process never takes two cores, however the kernel's clock ticks.
    job = instance.wait_end(instance.submit("-c", "2", "-m", "1G", "--", "sleep", "0.2"))
    usage = used(instance, job["id"])
    assert (usage.limit_hits, usage.oom_kills) == (0, 0)
    assert (usage.throttled_periods or 0) * 4 < max(4, usage.quota_periods or 0)


def test_a_kill_for_memory_is_on_record_with_what_led_to_it(instance: Instance) -> None:
    job = instance.wait_end(instance.submit("-m", "64M", "--", *python("bytearray(200 << 20)")))
    usage = used(instance, job["id"])
    assert job["state"] == "OUT_OF_MEMORY"
    assert usage.oom_kills
    assert usage.limit_hits is None or usage.limit_hits > 0, "not known is not zero"
    assert usage.largest_process_bytes is not None
    assert 32 << 20 < usage.largest_process_bytes < 80 << 20


def test_the_mean_is_of_what_it_held_while_it_ran(instance: Instance) -> None:
    """It holds it for most of its life, however long its interpreter takes to start."""
    hold = (
        "import time; block = bytearray(100 << 20)\n"
        "began_s = int(open('/proc/self/stat').read().split()[21]) / 100\n"
        "time.sleep(6 + 2 * (time.clock_gettime(time.CLOCK_BOOTTIME) - began_s))"
    )
    job = instance.wait_end(instance.submit("-m", "1G", "--", *python(hold)))
    usage = used(instance, job["id"])
    assert usage.memory_mean_bytes is not None
    assert usage.memory_working_bytes is not None
    assert 50 << 20 < usage.memory_mean_bytes <= usage.memory_working_bytes < 160 << 20


def test_what_a_job_used_while_drfd_was_away_is_on_record(instance: Instance) -> None:
    code = "import time\nwhile not __import__('os').path.exists('go'): time.sleep(0.05)\n" + BURN
    job_id = instance.submit("-c", "0.1", "-m", "256M", "--", *python(code, seconds=0.2))
    instance.wait_state(job_id, "RUNNING")
    instance.kill()
    (instance.work / "go").touch()
    attempt = Path(instance.state, "launcher", "attempts", f"{job_id}.1")
    wait_for("the end, unseen by drfd", lambda: '"ended"' in attempt.read_text())
    instance.start()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    usage = used(instance, job_id)
    assert usage.cpu_s >= 0.4
    assert usage.throttled_us and usage.memory_peak_bytes > 1 << 20


def test_a_program_of_one_core_and_300_megabytes_is_told_so(instance: Instance) -> None:
    """Where others keep the processors busy, it gets less of one; that much is told then."""
    work = (
        "import time; block = bytearray(300 << 20)\n"
        "while time.process_time() < 2: pass\n"
        "print('done')"
    )
    done = instance.drf("profile", "--", *python(work))
    assert done.stdout == "done\n"
    line = done.stderr.splitlines()[-1]
    words = line.split()
    assert words[:4] == ["drf:", "drf", "submit", "-c"]
    (job,) = json.loads(instance.drf("history", "--json", "-n", "1").stdout)["jobs"]
    used = job["used"]
    got = used["cpu_seconds"] / used["wall_seconds"]
    # What is said follows from figures that are not rounded as these are.
    said = {"0.5"} if got < 0.51 else {"1"} if got > 0.52 else {"0.5", "1"}
    assert words[4] in said, (got, line)
    assert words[5] == "-m"
    assert 320 << 20 <= parse_memory(words[6]) <= 448 << 20
    assert job["demand"]["cores"] == 9, "it had room"
    # What it was told fits.
    again = instance.wait_end(instance.submit(*words[3:9], "--", *python(work)))
    assert again["state"] == "COMPLETED"
