"""An owner is told of an end by a command: with whose rights, within what, how often."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from instance import is_alive, wait_for

pytestmark = pytest.mark.system

#: Who runs it, in which cgroup, and what it was told.
WHO = (
    "{ id -u; id -ru; id -G; pwd; grep -o 'job-[0-9]*-[0-9]*' /proc/self/cgroup | sort -u;"
    ' echo "$DRF_JOB_ID $DRF_STATE [$DRF_EXIT_CODE] [$DRF_SIGNAL] $HELLO"; } >> told'
)


def note(job: dict[str, Any]) -> str:
    (event,) = [event for event in job["events"] if event["event"] == "Cleaned"]
    return str(event["text"])


def test_the_command_runs_as_the_job_s_user_there(instance, users):
    alice, _ = users
    home = instance.home_for(alice)
    job_id = instance.submit(
        "--notify", "end", "--notify-command", WHO, "--", "sh", "-c", "exit 3",
        user=alice.pw_uid, cwd=home, env={"HELLO": "ü"},
    )  # fmt: skip
    job = instance.wait_end(job_id)
    assert (job["state"], note(job)) == ("FAILED", "notification told")
    uid, real, groups, directory, place, told = (home / "told").read_text().splitlines()
    assert (int(uid), int(real)) == (alice.pw_uid, alice.pw_uid)
    assert {int(gid) for gid in groups.split()} == set(os.getgrouplist(alice.pw_name, alice.pw_gid))
    assert (directory, place) == (str(home), f"job-{job_id}-1")
    assert told == f"{job_id} FAILED [3] [] ü"
    assert (home / "told").stat().st_uid == alice.pw_uid
    assert instance.cgroups() == []


def test_it_is_told_why_a_limit_ended_the_job(instance):
    command = 'echo "$DRF_STATE $DRF_SIGNAL $DRF_REASON" > told'
    words = ("--notify", "fail", "--notify-command", command)
    job_id = instance.submit(*words, "-t", "1s", "--", "sleep", "600")
    assert instance.wait_end(job_id)["state"] == "TIMEOUT"
    assert (instance.work / "told").read_text().startswith("TIMEOUT 15 ran for its whole time")


def test_a_failure_is_told_and_changes_nothing(instance):
    """Here of a command that takes more memory than the job has."""
    words = ("-m", "64M", "--notify-command", "head -c 300m /dev/zero | tail")
    job = instance.ended(*words, "--", "true")
    assert (job["state"], job["exit_code"]) == ("COMPLETED", 0)
    assert note(job).startswith("notification failed: ")
    assert instance.cgroups() == []


def test_the_rest_of_the_machine_is_free_while_it_runs(instance):
    """The next job waited for it for up to thirty seconds."""
    whole = ("-c", "8.75", "-m", "16G")
    words = ("--notify", "end", "--notify-command", "echo > begun; while [ ! -e go ]; do :; done")
    job_id = instance.submit(*words, *whole, "--", "true")
    wait_for("the command", (instance.work / "begun").exists)
    assert instance.ended(*whole, "--", "true")["state"] == "COMPLETED"
    assert instance.show(job_id)["state"] == "CLEANING"
    (instance.work / "go").touch()
    assert note(instance.wait_end(job_id)) == "notification told"


def test_what_it_leaves_behind_is_ended_with_the_job(instance):
    words = ("--notify-command", "setsid sleep 1000 & echo $! > pid")
    job = instance.ended(*words, "--", "true")
    pid = int((instance.work / "pid").read_text())
    assert note(job) == "notification told"
    # Whoever is its parent by now may have it to reap still.
    assert not is_alive(pid)
    assert instance.cgroups() == []


def test_an_end_that_drfd_has_not_seen_is_told_when_it_is_back(instance):
    words = ("--notify-command", "echo $DRF_STATE >> told")
    wait = "while [ ! -e go ]; do sleep 0.05; done"
    job_id = instance.running(*words, "--", "sh", "-c", wait)["id"]
    instance.kill()
    (instance.work / "go").touch()
    attempt = Path(instance.state, "launcher", "attempts", f"{job_id}.1")
    wait_for("the end, unseen by drfd", lambda: '"exited"' in attempt.read_text())
    time.sleep(0.2)
    assert not (instance.work / "told").exists(), "nobody has judged it yet"
    instance.start()
    assert instance.wait_end(job_id)["state"] == "COMPLETED"
    assert (instance.work / "told").read_text() == "COMPLETED\n"
