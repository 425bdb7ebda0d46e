"""Death while many jobs are on their way, through the command line: none is lost, run twice, or
without its end.

A run submits jobs, some of which are stopped or frozen, while one failpoint is armed; whoever dies
is started again. Every job appends a line to a file of its own when it starts, so that a second run
would show. (Every failpoint, one job at a time: tests/torture/test_crash_matrix.py.)
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from drfd.common import failpoints
from instance import CONFIG, Instance, wait_for

ROOMY = CONFIG.replace("cores = 9", "cores = 50").replace('"18G"', '"50G"')


def run_of_jobs(instance: Instance) -> dict[int, tuple[str, int | None]]:
    """Submit jobs of several fates, restart the daemon when it dies; id → how it must end."""
    fates = {
        "good": ("exit 0", ("COMPLETED", 0)),
        "bad": ("exit 3", ("FAILED", 3)),
        "slow": ("sleep 0.3; exit 4", ("FAILED", 4)),
        "stopped": ("sleep 1000", ("CANCELLED", None)),
        "frozen": ("while ! [ -e gate ]; do sleep 0.05; done; exit 5", ("FAILED", 5)),
    }
    names = [(name, number) for number in range(2) for name in fates]
    # One is enough, and each costs time.
    names.remove(("frozen", 1))
    for name, number in names:
        script = fates[name][0]
        marked = f"echo x >> ran-{name}-{number}; {script}"
        submit_surely(instance, f"{name}-{number}", marked)
    for number in range(2):
        cancel_surely(instance, f"stopped-{number}")
    ask_until(instance, "suspend", "SUSPENDED")
    ask_until(instance, "resume", "RUNNING")
    (instance.work / "gate").touch()
    wait_for("the end of all jobs", lambda: all_over(instance),
             show=lambda: (instance.status(), instance.log.read_text()[-3000:]))  # fmt: skip
    return {job["id"]: fates[job["name"].split("-")[0]][1] for job in all_jobs(instance)}


def submit_surely(instance: Instance, name: str, script: str) -> None:
    """While drf asks, and asks again, whoever has died is started again: one job comes of it."""
    words = ["submit", "-q", "-c", "0.1", "-m", "64M", "-n", name]
    if name.startswith("good"):
        words += ["--notify", "end", "--notify-command", f"echo {name} >> told"]
    words += ["--", "sh", "-c", script]
    said: list[str] = []

    def ask() -> None:
        # Exit 69 at once: nobody was there to be asked.
        while (done := instance.drf(*words, check=False)).returncode == 69:
            pass
        said.append(done.stdout)

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():
        instance.restart_if_dead()
        asking.join(0.05)
    accepted = [job["id"] for job in all_jobs(instance) if job["name"] == name]
    assert accepted == [int(said[0])], "what was acknowledged is there, once"


def cancel_surely(instance: Instance, name: str) -> None:
    """A cancel whose daemon died before it was durable was never acknowledged: ask again, until
    somebody answers."""

    def is_answered() -> bool:
        instance.restart_if_dead()
        done = instance.drf("cancel", "--name", name, "--yes", check=False)
        return done.returncode != os.EX_UNAVAILABLE

    wait_for(f"an answer about {name}", is_answered, show=instance.log.read_text)


def all_jobs(instance: Instance) -> list[dict[str, Any]]:
    """The daemon may still be about to die: then it is started again, and asked again."""

    def asked() -> subprocess.CompletedProcess[str] | None:
        instance.restart_if_dead()
        done = instance.drf("status", "--json", "--all", check=False)
        return done if done.returncode == 0 else None

    done = wait_for("the daemon", asked, show=instance.log.read_text)
    return list(json.loads(done.stdout)["jobs"])


def ask_until(instance: Instance, verb: str, state: str) -> None:
    """Ask it of the job that is to be frozen until it is so: while it starts, it refuses; and
    whoever dies over it is started again."""

    def has_come() -> bool:
        instance.restart_if_dead()
        instance.drf(verb, "--name", "frozen-0", "--yes", check=False)
        found = instance.drf("status", "--json", "--state", state, check=False)
        return '"name": "frozen-0"' in found.stdout

    wait_for(f"frozen-0 {state}", has_come, show=lambda: instance.log.read_text()[-3000:])


def answers(instance: Instance) -> bool:
    """Is it up, or up again?"""
    instance.restart_if_dead()
    return instance.answers()


def all_over(instance: Instance) -> bool:
    return all(job["ended_at"] for job in all_jobs(instance))


def check_all(instance: Instance, fates: dict[int, tuple[str, int | None]]) -> None:
    assert len(fates) == 9, "every job is there, once"
    for job_id, (state, exit_code) in fates.items():
        job = instance.show(job_id)
        events = [event["event"] for event in job["events"]]
        assert job["state"] == state, (job, instance.log.read_text()[-3000:])
        if exit_code is not None:
            assert job["exit_code"] == exit_code
        ran = instance.work / f"ran-{job['name']}"
        runs = len(ran.read_text().split()) if ran.exists() else 0
        assert runs == 1 or (runs == 0 and state == "CANCELLED"), job
        assert events.count("Submitted") == 1 and events.count("Cleaned") <= 1
    told = (instance.work / "told").read_text().split()
    # Whoever dies in the moment of telling does not tell again.
    assert told and len(told) == len(set(told))
    assert instance.cgroups() == []
    assert list((instance.state / "launcher" / "attempts").iterdir()) == []


#: One of each process and of each kind: before and after what is written, and what is done.
POINTS = ["journal.after-commit", "server.before-reply", "launch.after-fork", "remove.after-unlink"]


@pytest.mark.parametrize("point", POINTS)
def test_dying_at(make_instance: Callable[..., Instance], point: str) -> None:
    """The process that reaches the point dies there."""
    instance = make_instance(ROOMY).start()
    armed = instance.arm(point, "self")
    fates = run_of_jobs(instance)
    assert not armed.exists(), "the point was never reached"
    check_all(instance, fates)


@pytest.mark.parametrize("whom", ["controller", "launcher"])
@pytest.mark.parametrize("point", ["runner.after-exec"])
def test_others_die_while_a_runner_is_at(
    make_instance: Callable[..., Instance], point: str, whom: str
) -> None:
    instance = make_instance(ROOMY).start()
    assert instance.process is not None
    pid = instance.process.pid if whom == "controller" else instance.launcher_pid()
    armed = instance.arm(point, pid)
    fates = run_of_jobs(instance)
    assert not armed.exists(), "the point was never reached"
    check_all(instance, fates)


@pytest.mark.parametrize("point", failpoints.RUNNER)
def test_a_runner_dies_at(make_instance: Callable[..., Instance], point: str) -> None:
    """Before its job is let go, the job is launched again; after that its end cannot be known,
    unless it is on record already. The other jobs notice nothing."""
    instance = make_instance(ROOMY).start()
    instance.arm(point, "self")
    job_id = instance.submit("-c", "0.1", "--", "sh", "-c", "echo x >> ran; exit 3")
    job = instance.wait_end(job_id)
    ran = instance.work / "ran"
    runs = len(ran.read_text().split()) if ran.exists() else 0
    if point in ("runner.before-child", "runner.before-running-record", "runner.after-end-record"):
        assert (job["state"], job["exit_code"], runs) == ("FAILED", 3, 1)
    else:
        assert (job["state"], job["exit_code"]) == ("LOST", None)
        assert runs <= 1
    other = instance.submit("-c", "0.1", "--", "true")
    assert instance.wait_end(other)["state"] == "COMPLETED"
    assert instance.cgroups() == []


def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_is_queued_twice(
    make_instance: Callable[..., Instance],
) -> None:
    """The daemon dies between the commit and the reply, and is started again a moment later."""

    instance = make_instance(ROOMY).start()
    instance.arm("server.before-reply", "self")
    said: list[str] = []
    asking = threading.Thread(
        target=lambda: said.append(
            instance.drf("submit", "-q", "-c", "0.1", "-n", "once", "--", "true").stdout
        )
    )
    asking.start()
    wait_for("the daemon's death", instance.is_dead)
    instance.start()
    asking.join(60)
    assert said == ["1\n"]
    assert [job["name"] for job in instance.status("--all")] == ["once"]
