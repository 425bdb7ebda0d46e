"""Preemption, by what real processes do: two pools, two cores, and jobs that may be stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from instance import Instance, wait_for

#: A pass every second, so that nobody waits long to be found starving.
CONFIG = """
[capacity]
cores = 2
memory = "8G"
reserve_memory = 0
[[disk]]
name = "test"
path = "/var/tmp"
read = "1G"
write = "1G"
[pools.a]
[pools.b]
[scheduling]
preemption = true
preempt = "{how}"
preempt_after = "1s"
reservation_delay = "1s"
[enforcement]
grace = "20s"
processes = 64
"""
#: Says which attempt it is and its pid, notes a SIGTERM, and goes on until there is a `gate`.
VICTIM = (
    "trap 'echo told $DRF_JOB_ID >> told; exit 3' TERM; echo attempt $DRF_ATTEMPT; echo pid $$; "
    "while ! [ -e gate ]; do echo x >> beats-$DRF_JOB_ID; sleep 0.02; done; echo done"
)


@pytest.fixture
def start(make_instance: Callable[..., Instance]) -> Callable[[str], Instance]:
    return lambda how: make_instance(CONFIG.format(how=how)).start()


def running(instance: Instance, pool: str, *words: str, script: str = VICTIM) -> int:
    """A job of one core that runs, and has set its trap if it sets one."""
    # The shell tells of its child that a signal has ended, where errors go.
    one_core = ("-p", pool, "-c", "1", "-m", "64M", "-e", "/dev/null")
    job_id = instance.submit(*one_core, *words, "--", "sh", "-c", script)
    instance.wait_state(job_id, "RUNNING")
    if script is VICTIM:
        wait_for("a beat", (instance.work / f"beats-{job_id}").exists)
    return job_id


def until_over(name: str) -> str:
    return f"while ! [ -e {name} ]; do sleep 0.05; done"


def kinds(job: dict[str, Any]) -> list[str]:
    return [event["event"] for event in job["events"]]


def test_a_starving_pool_gets_the_place_of_the_job_started_last_which_runs_again_later(
    start: Callable[[str], Instance],
) -> None:
    instance = start("requeue")
    first = running(instance, "a", "--preemptible")
    last = running(instance, "a", "--preemptible")
    starving = running(instance, "b", script=until_over("over"))
    assert (instance.work / "told").read_text() == f"told {last}\n"
    waits = instance.show(last)
    assert (waits["state"], waits["attempt"], waits["outcome"]) == ("PENDING", 1, None)
    assert waits["reason"]["code"] in ("RESOURCES", "FAIR_SHARE")
    (why,) = (e["text"] for e in waits["events"] if e["event"] == "PreemptRequested")
    assert why.startswith(f"stopped for job {starving} (")
    assert f"it was {why}\n" in instance.drf("why", str(last)).stdout
    (instance.work / "over").touch()
    wait_for("a second run", lambda: instance.output(last).count("attempt") == 2)
    (instance.work / "gate").touch()
    job = instance.wait_end(last)
    assert (job["state"], job["exit_code"], job["attempt"]) == ("COMPLETED", 0, 2)
    words = instance.output(last).split()
    assert words[:2] + words[4:6] + words[8:] == ["attempt", "1", "attempt", "2", "done"]
    assert words[3] != words[7], "one process ran both attempts"
    assert kinds(job) == [
        *("Submitted", "Admitted", "Launched", "PreemptRequested", "Exited", "Requeued"),
        *("Admitted", "Launched", "Exited", "Cleaned"),
    ]
    untouched = instance.wait_end(first)
    assert (untouched["state"], untouched["attempt"]) == ("COMPLETED", 1)
    assert "PreemptRequested" not in kinds(untouched)


def test_a_job_that_is_not_marked_is_spared_though_it_was_started_last(
    start: Callable[[str], Instance],
) -> None:
    instance = start("requeue")
    marked = running(instance, "a", "--preemptible")
    unmarked = running(instance, "a")
    running(instance, "b", script=until_over("gate"))
    assert (instance.work / "told").read_text() == f"told {marked}\n"
    assert kinds(instance.show(unmarked)) == ["Submitted", "Admitted", "Launched"]
    (instance.work / "gate").touch()
    for job_id in (unmarked, marked):
        assert instance.wait_end(job_id)["state"] == "COMPLETED"


@pytest.mark.parametrize("how", ["requeue", "suspend"])
def test_where_no_job_is_marked_nobody_is_stopped_however_long_somebody_starves(
    start: Callable[[str], Instance], how: str
) -> None:
    instance = start(how)
    unmarked = [running(instance, "a") for _ in range(2)]
    starving = instance.submit("-p", "b", "-c", "1", "-m", "64M", "--", "true")
    time.sleep(5)
    assert instance.show(starving)["state"] == "PENDING"
    for job_id in unmarked:
        assert kinds(instance.show(job_id)) == ["Submitted", "Admitted", "Launched"]
    (instance.work / "gate").touch()
    for job_id in (starving, *unmarked):
        assert instance.wait_end(job_id)["state"] == "COMPLETED"


def test_a_job_that_is_frozen_for_another_goes_on_afterwards_as_the_same_process(
    start: Callable[[str], Instance],
) -> None:
    instance = start("suspend")
    first = running(instance, "a", "--preemptible")
    last = running(instance, "a", "--preemptible")
    beats = instance.work / f"beats-{last}"
    starving = running(instance, "b", script=until_over("over"))
    waits = instance.show(last)
    assert (waits["state"], waits["reason"]["code"]) == ("SUSPENDED", "RESOURCES")
    assert instance.show(first)["state"] == "RUNNING"
    (why,) = (e["text"] for e in waits["events"] if e["event"] == "SuspendRequested")
    assert why.startswith(f"suspended for job {starving} (")
    assert f"it was {why}\n" in instance.drf("why", str(last)).stdout
    (instance.work / "over").touch()
    instance.wait_state(last, "RUNNING")
    assert why not in instance.drf("why", str(last)).stdout
    before = beats.stat().st_size
    wait_for("another beat", lambda: beats.stat().st_size > before)
    (instance.work / "gate").touch()
    job = instance.wait_end(last)
    assert (job["state"], job["exit_code"], job["attempt"]) == ("COMPLETED", 0, 1)
    words = instance.output(last).split()
    assert (len(words), words[:2], words[4:]) == (5, ["attempt", "1"], ["done"])
    assert not (instance.work / "told").exists()
    assert kinds(job) == [
        *("Submitted", "Admitted", "Launched", "SuspendRequested", "Suspended", "Resumed"),
        *("Exited", "Cleaned"),
    ]
