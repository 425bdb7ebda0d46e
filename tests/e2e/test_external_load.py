"""Load from outside drfd, by a real process: jobs wait for it, and running ones are left alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from instance import Instance, wait_for

GIB = 1 << 30
MIB = 1 << 20
#: So much the process outside takes.
OUTSIDE = 3 * GIB

HOG = f"""
import sys
block = bytearray({OUTSIDE})
block[::4096] = b"x" * ({OUTSIDE} // 4096)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hog() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a process that holds memory, and is no job."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def config() -> str:
    """Nearly all memory that is free now is for jobs: what others use already, and a GiB more, the
    machine has besides, for guests may boot meanwhile. So few cores are that others, who use the
    rest as they like, are not noticed there."""
    memory = psutil.virtual_memory()
    return f"""
[capacity]
cores = 0.25
memory = {memory.available // MIB * MIB - GIB}
reserve_memory = 0
[[disk]]
name = "test"
path = "/var/tmp"
read = "1G"
write = "1G"
[scheduling]
respect_external_load = true
[enforcement]
grace = "1s"
cgroups = false
"""


def reason(instance: Instance, job_id: int) -> str | None:
    found = instance.show(job_id)["reason"]
    return None if found is None else str(found["code"])


def test_a_job_waits_for_memory_that_others_really_use_and_starts_when_they_have_ended(
    make_instance: Callable[..., Instance], hog: Callable[[], subprocess.Popen[bytes]]
) -> None:
    if psutil.virtual_memory().available < 2 * OUTSIDE + 2 * GIB:
        pytest.skip("too little memory is free here for a process that takes 3 GiB of it")
    instance = make_instance(config()).start()
    before = instance.submit("-c", "0.05", "-m", "64M", "--", "sleep", "600")
    instance.wait_state(before, "RUNNING")
    outside = hog()

    def seen() -> dict[str, object] | None:
        return instance._ask("shares").get("external")

    load = wait_for("the load to be seen", seen)
    assert load["memory"] >= OUTSIDE * 0.9
    assert load["kept"]["memory"] < load["memory"], "what is there for others covers a part"

    capacity = instance._ask("shares")["capacity"]["memory"]
    asked = (capacity - GIB // 2) // MIB
    job_id = instance.submit("-c", "0.05", "-m", f"{asked}M", "--", "true")
    wait_for("the reason", lambda: reason(instance, job_id) == "EXTERNAL_LOAD")
    text = instance.show(job_id)["reason"]["text"]
    assert "processes outside drfd use" in text
    assert "processes outside drfd use" in instance.drf("doctor").stdout
    assert "outside" in instance.drf("shares").stdout
    small = instance.submit("-c", "0.05", "-m", "64M", "--", "true")
    assert instance.wait_end(small)["state"] == "COMPLETED", "what is left is given out"
    assert instance.show(before)["state"] == "RUNNING"

    outside.kill()
    outside.wait()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert instance.show(before)["state"] == "RUNNING"


def test_what_drfds_own_jobs_use_is_not_from_outside(
    make_instance: Callable[..., Instance],
) -> None:
    """The same memory, held by a job: the load of the machine is the same, and nobody waits."""
    if psutil.virtual_memory().available < 2 * OUTSIDE + 2 * GIB:
        pytest.skip("too little memory is free here for a process that takes 3 GiB of it")
    instance = make_instance(config()).start()
    # Its input is empty, so it waits for a sleep instead.
    hold = HOG.replace("sys.stdin.read()", "import time; time.sleep(600)")
    job_id = instance.submit("-c", "0.05", "-m", "4G", "--", sys.executable, "-c", hold)
    wait_for("its memory", lambda: instance.show(job_id)["usage"]["memory"] > OUTSIDE)
    big = instance.submit("-c", "0.05", "-m", "64M", "-t", "60s", "--", "sleep", "16")
    assert instance.wait_end(big)["state"] == "COMPLETED"
    # Others may really use more than before, but not so much as the job.
    external = instance._ask("shares").get("external")
    assert external is None or external["kept"]["memory"] < OUTSIDE - 2 * GIB
    assert instance.show(job_id)["state"] == "RUNNING"
