"""What holds without cgroups, as any user has it: suspension by signals, and CPUs by affinity."""

import os
import signal
import time
from pathlib import Path

import pytest

from instance import BLOWS, PLAIN, Instance, wait_for

#: Writes to `beats` again and again, in a process of its own, until there is a `gate`.
BEATS = "(while :; do echo x; sleep 0.02; done) >> beats & while ! [ -e gate ]; do sleep 0.02; done"


@pytest.fixture
def plain(lend) -> Instance:
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


def test_a_suspended_job_lends_its_cores_and_goes_on_to_its_own_end(plain):
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


@pytest.mark.parametrize("blow", BLOWS[:3])
def test_a_suspended_job_stays_so_through_every_crash_and_can_be_resumed(plain, blow):
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


def test_a_suspended_job_that_somebody_kills_is_over(plain):
    """Nobody has to resume it to find that out."""
    job_id = beating(plain, script=f"echo $$; {BEATS}")
    pid = int(wait_for("its pid", lambda: plain.output(job_id)))
    suspend(plain, job_id)
    os.kill(pid, signal.SIGKILL)
    job = plain.wait_end(job_id)
    assert (job["state"], job["signal"]) == ("FAILED", signal.SIGKILL)
    assert Path(f"/proc/{pid}").exists() is False
