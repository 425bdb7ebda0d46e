"""What holds without cgroups, as any user has it: suspension by signals, and CPUs by affinity."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from instance import BLOWS, CONFIG, PLAIN, Instance, wait_for

#: Writes to `beats` again and again, in a process of its own, until there is a `gate`.
BEATS = "(while :; do echo x; sleep 0.02; done) >> beats & while ! [ -e gate ]; do sleep 0.02; done"


@pytest.fixture
def plain(lend: Callable[[str], Instance]) -> Instance:
    return lend(PLAIN)


def beats(instance: Instance) -> int:
    path = instance.work / "beats"
    return path.stat().st_size if path.exists() else 0


def goes_on(instance: Instance) -> None:
    before = beats(instance)
    wait_for("another beat", lambda: beats(instance) > before)


def stands_still(instance: Instance) -> None:
    before = beats(instance)
    time.sleep(0.5)
    assert beats(instance) == before


def beating(instance: Instance, *words: str, script: str = BEATS) -> int:
    job_id = instance.submit(*words, "--", "sh", "-c", f"{script}; exit 7")
    goes_on(instance)
    # Its process may be ahead of the word that it runs.
    instance.wait_state(job_id, "RUNNING")
    return job_id


def suspend(instance: Instance, job_id: int) -> None:
    assert instance.drf("suspend", job_id).stdout == f"suspended job {job_id}\n"
    instance.wait_state(job_id, "SUSPENDED")
    stands_still(instance)


def test_a_suspended_job_lends_its_cores_and_goes_on_to_its_own_end(plain: Instance) -> None:
    job_id = beating(plain, "-c", "9", "-m", "1G")
    other = plain.submit(
        *("-c", "9", "-m", "1G", "--", "sh", "-c", "while ! [ -e over ]; do sleep 0.05; done")
    )
    assert plain.show(other)["state"] == "PENDING"
    suspend(plain, job_id)
    assert plain.show(job_id)["reason"]["text"].endswith(f"drf resume {job_id} lets it go on")
    plain.wait_state(other, "RUNNING")
    assert plain.drf("resume", "--state", "suspended", "--yes").stdout == f"resumed job {job_id}\n"
    waits = plain.show(job_id)
    assert (waits["state"], waits["reason"]["code"]) == ("SUSPENDED", "RESOURCES")
    stands_still(plain)
    (plain.work / "over").touch()
    plain.wait_state(job_id, "RUNNING")
    goes_on(plain)
    (plain.work / "gate").touch()
    job = plain.wait_end(job_id)
    assert (job["state"], job["exit_code"], job["attempt"]) == ("FAILED", 7, 1)
    assert [event["event"] for event in job["events"]] == [
        *("Submitted", "Admitted", "Launched", "SuspendRequested", "Suspended"),
        *("ResumeRequested", "Resumed", "Exited", "Cleaned"),
    ]


def test_wall_time_stands_still_while_a_job_is_suspended(plain: Instance) -> None:
    """Longer suspended than its whole limit, it still has the rest of it, and no more."""
    job_id = beating(plain, "-t", "4s")
    suspend(plain, job_id)
    before = beats(plain)
    time.sleep(4.5)
    assert plain.show(job_id)["state"] == "SUSPENDED"
    plain.drf("resume", job_id)
    job = plain.wait_end(job_id)
    assert job["state"] == "TIMEOUT"
    assert beats(plain) > before
    assert job["ended_at"] - job["started_at"] > 8.5


@pytest.mark.parametrize("blow", BLOWS[:3])
def test_a_suspended_job_stays_so_through_every_crash_and_can_be_resumed(
    plain: Instance, blow: str
) -> None:
    job_id = beating(plain)
    suspend(plain, job_id)
    before = beats(plain)
    plain.strike(blow)
    stands_still(plain)
    assert beats(plain) == before, "it ran meanwhile"
    assert plain.show(job_id)["state"] == "SUSPENDED"
    plain.drf("resume", job_id)
    plain.wait_state(job_id, "RUNNING")
    goes_on(plain)
    (plain.work / "gate").touch()
    job = plain.wait_end(job_id)
    assert (job["exit_code"], job["attempt"]) == (7, 1)


def test_a_suspended_job_that_somebody_kills_is_over(plain: Instance) -> None:
    """Nobody has to resume it to find that out."""
    job_id = beating(plain, script=f"echo $$; {BEATS}")
    pid = int(wait_for("its pid", lambda: plain.output(job_id)))
    suspend(plain, job_id)
    os.kill(pid, signal.SIGKILL)
    job = plain.wait_end(job_id)
    assert (job["state"], job["signal"]) == ("FAILED", signal.SIGKILL)
    assert Path(f"/proc/{pid}").exists() is False


CPUS = sorted(os.sched_getaffinity(0))
PINNED = CONFIG.replace("cores = 9", f"cores = {len(CPUS)}") + '\ncgroups = false\ncores = "pin"\n'
TELL = "while [ ! -e gate ]; do sleep 0.1; done; grep Cpus_allowed_list: /proc/self/status"


def test_whole_cores_are_apart_also_for_the_next_launcher(
    lend: Callable[[str], Instance],
) -> None:
    if len(CPUS) < 2:
        pytest.skip("one CPU is everybody's")
    instance = lend(PINNED)
    assert "measured: whole cores on CPUs of their own" in instance.drf("doctor").stdout
    ids = []
    for _ in CPUS:
        ids.append(instance.submit("-c", "1", "-m", "64M", "--", "sh", "-c", TELL))
        instance.wait_state(ids[-1], "RUNNING")
        instance.kill_launcher()
    (instance.work / "gate").touch()
    for job_id in ids:
        assert instance.wait_end(job_id)["state"] == "COMPLETED"
    where = [instance.output(job_id).split()[1] for job_id in ids]
    assert sorted(map(int, where)) == CPUS
