"""Suspending in real cgroups: the freezer holds every process, and memory stays charged."""

import signal
import sys
import time
from typing import Any

import pytest

from instance import CONFIG, Instance, is_alive, patient, wait_for
from kernel import Kernel

pytestmark = pytest.mark.system

MIB = 1 << 20
#: Touches 100 MiB and burns its cores, and so does a child in another session; each notes the
#: signals that it is sent.
HEAVY = """
import os, signal, sys
def note(number, frame):
    open(signal.Signals(number).name, "w").close()
for number in (signal.SIGTERM, signal.SIGCONT):
    signal.signal(number, note)
block = os.urandom(1 << 20) * 100
if os.fork() == 0:
    os.setsid()
print("ready", os.getpid(), flush=True)
while not os.path.exists("gate"):
    pass
sys.exit(7)
"""


def heavy(instance: Instance, *words: str) -> dict[str, Any]:
    """A job of `HEAVY` that runs, with both its processes."""
    job = instance.running(*words, "-m", "400M", "--", sys.executable, "-c", HEAVY)
    wait_for("both processes", lambda: instance.output(job["id"]).count("ready") == 2)
    return job


def cpu_us(job: dict[str, Any]) -> int:
    return Kernel().use(job)[0]


def suspend(instance: Instance, job: dict[str, Any]) -> None:
    instance.drf("suspend", job["id"])
    instance.wait_state(job["id"], "SUSPENDED")


#: A process counts as frozen just before it gives up its processor: so much, in microseconds, may
#: be booked for the moment between.
LAST_US = 20_000


def stands_still(job: dict[str, Any]) -> None:
    """The whole cgroup is frozen, and takes no time."""
    assert Kernel().is_frozen(job)
    before = cpu_us(job)
    time.sleep(0.3)
    assert cpu_us(job) - before < LAST_US


def goes_on(job: dict[str, Any]) -> None:
    # Whoever resumes it is answered when that is decided; the launcher thaws it a moment later.
    wait_for("its thaw", lambda: not Kernel().is_frozen(job))
    before = cpu_us(job)
    wait_for("work", lambda: cpu_us(job) > before + 100_000)


def test_a_suspended_job_takes_no_time_keeps_its_memory_and_does_not_notice(instance):
    job = heavy(instance, "-c", "9")
    other = instance.submit("-c", "9", "-m", "1G", "--", "true")
    suspend(instance, job)
    stands_still(job)
    assert Kernel().use(job)[1] > 100 * MIB
    assert instance.wait_end(other)["state"] == "COMPLETED"
    stands_still(job)
    instance.drf("resume", job["id"])
    instance.wait_state(job["id"], "RUNNING")
    goes_on(job)
    (instance.work / "gate").touch()
    over = instance.wait_end(job["id"])
    assert (over["state"], over["exit_code"]) == ("FAILED", 7)
    assert not (instance.work / "SIGCONT").exists(), "the freezer is not a signal"
    assert instance.cgroups() == []


def test_a_job_cancelled_while_frozen_is_killed_whole_without_a_word(instance):
    job = heavy(instance)
    pids = [int(word) for word in instance.output(job["id"]).split() if word.isdecimal()]
    suspend(instance, job)
    instance.drf("cancel", job["id"])
    over = instance.wait_end(job["id"])
    assert (over["state"], over["signal"]) == ("CANCELLED", signal.SIGKILL)
    assert not any(map(is_alive, pids))
    assert not (instance.work / "SIGTERM").exists()
    assert instance.cgroups() == []


def test_a_bomb_that_forks_for_ever_is_frozen_whole(instance):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    job = instance.running("-c", "2", "--", sys.executable, "-c", bomb)
    time.sleep(0.3)
    suspend(instance, job)
    stands_still(job)
    instance.drf("cancel", job["id"])
    assert instance.wait_end(job["id"])["state"] == "CANCELLED"
    assert instance.cgroups() == []


def test_what_a_user_keeps_suspended_gives_its_memory_to_others_in_the_end(lend, users):
    """The time limit did not go on, and nobody else had the memory for as long as the user
    liked."""
    instance = lend(f'{CONFIG}[limits]\nsuspended = "3s"\n')
    first, second = ({"user": each.pw_uid, "cwd": instance.home_for(each)} for each in users)
    job = instance.running("-m", "17G", "-t", "1h", "--", "sleep", "3600", **first)
    began_s = time.monotonic()
    told = instance.drf("suspend", job["id"], **first)
    assert "without drf resume it is ended at" in told.stderr
    instance.wait_state(job["id"], "SUSPENDED")
    other = instance.submit("-m", "17G", "--", "true", **second)
    assert instance.wait_end(other)["state"] == "COMPLETED"
    assert 3 <= time.monotonic() - began_s < patient(20)
    over = instance.wait_end(job["id"])
    assert over["state"] == "LIMIT_EXCEEDED"
    assert "suspended for 3s" in over["outcome"]["text"]
    assert instance.cgroups() == []
