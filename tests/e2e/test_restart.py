"""Killing drfd, its launcher, or both, at any time costs nothing: no job is lost, run twice, or
without its end. (At every failpoint: tests/torture/test_crash_matrix.py.) And what is
told of jobs that are over outlives it, too.
"""

import csv
import io
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from instance import BLOWS, GATE, ROOMY, SMALL, is_alive, parent_of, wait_for


@pytest.mark.parametrize("blow", BLOWS)
def test_jobs_of_every_kind_come_through(lend, blow):
    instance = lend(ROOMY)
    script = f"echo $$; {GATE}; exit "
    living = [instance.submit(*SMALL, "--", "sh", "-c", f"{script}{code}") for code in range(5)]
    for job_id in living:
        instance.wait_state(job_id, "RUNNING")
    pids = [int(wait_for("a pid", lambda i=i: instance.output(i))) for i in living]
    held = instance.submit("--hold", "--", "true")
    instance.strike(blow)
    assert [instance.show(job_id)["state"] for job_id in living] == ["RUNNING"] * 5
    assert [instance.show(job_id)["attempt"] for job_id in living] == [1] * 5
    assert [is_alive(pid) for pid in pids] == [True] * 5
    (instance.work / "gate").touch()
    ends = [instance.wait_end(job_id) for job_id in living]
    assert [job["exit_code"] for job in ends] == list(range(5))
    assert [int(instance.output(job_id)) for job_id in living] == pids, "each ran once"
    assert instance.show(held)["state"] == "HELD"


def test_ends_while_nobody_looks_are_recorded(lend):
    instance = lend(ROOMY)
    script = f"echo $$; {GATE}; exit 7"
    job_id = instance.running(*SMALL, "--", "sh", "-c", script)["id"]
    runner = parent_of(int(wait_for("its pid", lambda: instance.output(job_id))))
    instance.kill()
    (instance.work / "gate").touch()
    # It writes the end down, and leaves.
    wait_for("the runner's end", lambda: not is_alive(runner))
    back_s = time.time()
    instance.start()
    job = instance.wait_end(job_id)
    assert (job["state"], job["exit_code"]) == ("FAILED", 7)
    assert job["ended_at"] < back_s, "its own end, not ours"


def test_a_time_limit_that_passed_meanwhile_is_enforced_at_once(lend):
    instance = lend(ROOMY)
    # Not so short that it might have passed before anybody has looked.
    limit_s = 5
    job_id = instance.submit("-c", "0.1", "-t", f"{limit_s}s", "--", "sleep", "600")
    started_s = instance.wait_state(job_id, "RUNNING")["started_at"]
    instance.kill()
    wait_for("the time limit", lambda: time.time() > started_s + limit_s + 0.5)
    instance.start()
    assert instance.wait_end(job_id)["state"] == "TIMEOUT"


def test_a_wait_survives_the_restart_of_the_daemon(lend):
    def connections() -> int:
        """How many clients the daemon has: its end of each is named like the listening socket."""
        return Path("/proc/net/unix").read_text().count(str(instance.socket)) - 1

    instance = lend(ROOMY)
    job_id = instance.running(*SMALL, "--", "sh", "-c", f"{GATE}; exit 9")["id"]
    wait_for("our own connections' end", lambda: connections() == 0)
    status: list[int] = []
    waiting = threading.Thread(
        target=lambda: status.append(instance.drf("wait", job_id, check=False).returncode)
    )
    waiting.start()
    wait_for("its connection", connections)
    instance.strike("controller")
    (instance.work / "gate").touch()
    waiting.join(60)
    assert status == [9]


def test_a_job_that_comes_before_the_launcher_is_ready_starts_when_it_is(instance):
    """As after every start of a user's own daemon, which answers before its launcher is up."""
    for _ in range(3):
        instance.stop()
        instance.launch()
        done = wait_for(
            "the first answer",
            lambda: [
                done
                for done in [instance.drf("submit", "-q", "--", "true", check=False)]
                if done.returncode == 0
            ],
        )[0]
        assert instance.wait_end(int(done.stdout))["state"] == "COMPLETED"


def test_when_the_launchers_supervisor_dies_the_daemon_ends_and_says_so(instance):
    """Nobody would start a launcher, nor any job, any more; jobs that run go on."""
    job_id = instance.running("--", "sh", "-c", f"{GATE}; exit 5")["id"]
    os.kill(parent_of(instance.launcher_pid()), signal.SIGKILL)
    wait_for("the daemon's end", instance.is_dead)
    assert "the supervisor of the launcher has died" in instance.log.read_text()
    (instance.work / "gate").touch()
    instance.start()
    assert instance.wait_end(job_id)["exit_code"] == 5


# -- what is over ------------------------------------------------------------------------------

HOLD = "import time; block = bytearray(80 << 20); time.sleep(3)"
HOLDER = ("-p", "A", "--", sys.executable, "-c", HOLD)


@pytest.mark.anew
def test_history_report_and_why_tell_of_them_also_after_a_restart(instance):
    for _ in range(3):
        instance.submit("-c", "3", "-m", "1G", "-n", "train", *HOLDER)
    instance.submit("-p", "B", "-m", "0.1G", "--", "sh", "-c", "exit 127")
    assert instance.drf("wait", 1, 2, 3, 4, check=False).returncode == 127
    instance.stop()
    instance.start()

    def ids(*words: str) -> list[int]:
        found = json.loads(instance.drf("history", "--json", *words).stdout)
        return sorted(job["id"] for job in found["jobs"])

    assert ids() == [1, 2, 3, 4]
    assert ids("-s", "failed") == [4]
    assert ids("--name", "train", "--since", "1h", "-p", "A") == [1, 2, 3]
    rows = list(csv.DictReader(io.StringIO(instance.drf("history", "--csv").stdout)))
    assert sorted(row["exit_code"] for row in rows) == ["0", "0", "0", "127"]
    peaks = [int(row["memory_peak"]) for row in rows if row["exit_code"] == "0"]
    assert all(80 << 20 < peak < 500 << 20 for peak in peaks)

    report = json.loads(instance.drf("report", "--json").stdout)
    by_name = {row["name"]: row for row in report["rows"]}
    advice = by_name["train"]["advice"]
    assert (by_name["train"]["jobs"], by_name["exit"]["advice"]) == (3, None)
    assert report["total"]["cores"]["used"] == sum(row["cores"]["used"] for row in report["rows"])
    options = advice["options"]
    assert f"next time drf submit {' '.join(options)}" in instance.drf("report").stdout
    assert f"next time: drf submit {' '.join(options)}" in instance.drf("why", 2).stdout
    assert "127 is a shell's word for: there is no such command" in instance.drf("why", 4).stdout
    assert instance.ended(*options, *HOLDER)["state"] == "COMPLETED", "what is advised is enough"
