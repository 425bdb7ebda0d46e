"""Killing drfd, its launcher, or both, at any time costs nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from drfd.core.fairness.rules import Rules
from drfd.core.fairness.stored_rules import read_rules
from drfd.core.model import events as ev
from drfd.core.promises.account import WHOLE, Parts
from drfd.core.promises.event_fold import EventFold
from drfd.journal.journal import Journal
from instance import CONFIG, Instance, is_alive, wait_for

ROOMY = CONFIG.replace("cores = 9", "cores = 100").replace('"18G"', '"100G"')


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_launcher(instance: Instance) -> None:
    instance.kill_launcher()


def kill_controller(instance: Instance) -> None:
    instance.kill()
    instance.start()


def kill_both(instance: Instance) -> None:
    os.kill(instance.launcher_pid(), signal.SIGKILL)
    kill_controller(instance)


def stop_and_start(instance: Instance) -> None:
    instance.stop()
    instance.start()


@pytest.mark.parametrize("blow", [kill_launcher, kill_controller, kill_both, stop_and_start])
def test_jobs_of_every_kind_come_through(
    make_instance: Callable[..., Instance], blow: Callable[[Instance], None]
) -> None:
    instance = make_instance(ROOMY).start()
    gate = instance.work / "gate"
    wait = f"echo $$; while ! [ -e {gate} ]; do sleep 0.05; done; "
    living = [
        instance.submit("-c", "0.1", "-m", "64M", "--", "sh", "-c", f"{wait} exit {code}")
        for code in range(5)
    ]
    for job_id in living:
        instance.wait_state(job_id, "RUNNING")
    pids = [int(wait_for("a pid", lambda i=i: instance.output(i))) for i in living]
    held = instance.submit("--hold", "--", "true")
    blow(instance)
    assert [instance.show(job_id)["state"] for job_id in living] == ["RUNNING"] * 5
    assert [instance.show(job_id)["attempt"] for job_id in living] == [1] * 5
    assert [is_alive(pid) for pid in pids] == [True] * 5
    gate.touch()
    ends = [instance.wait_end(job_id) for job_id in living]
    assert [job["exit_code"] for job in ends] == list(range(5))
    assert [int(instance.output(job_id)) for job_id in living] == pids, "each ran once"
    assert instance.show(held)["state"] == "HELD"


def test_ends_while_nobody_looks_are_recorded(make_instance: Callable[..., Instance]) -> None:
    instance = make_instance(ROOMY).start()
    script = "echo $$; while ! [ -e gate ]; do sleep 0.05; done; exit 7"
    job_id = instance.submit("-c", "0.1", "--", "sh", "-c", script)
    instance.wait_state(job_id, "RUNNING")
    runner = parent(int(wait_for("its pid", lambda: instance.output(job_id))))
    instance.kill()
    (instance.work / "gate").touch()
    # It writes the end down, and leaves.
    wait_for("the runner's end", lambda: not is_alive(runner))
    back_s = time.time()
    instance.start()
    job = instance.wait_end(job_id)
    assert (job["state"], job["exit_code"]) == ("FAILED", 7)
    assert job["ended_at"] < back_s, "its own end, not ours"


def test_a_time_limit_that_passed_meanwhile_is_enforced_at_once(
    make_instance: Callable[..., Instance],
) -> None:
    instance = make_instance(ROOMY).start()
    # Not so short that it might have passed before anybody has looked.
    limit_s = 10
    job_id = instance.submit("-c", "0.1", "-t", f"{limit_s}s", "--", "sleep", "600")
    started_s = instance.wait_state(job_id, "RUNNING")["started_at"]
    instance.kill()
    wait_for("the time limit", lambda: time.time() > started_s + limit_s + 0.5)
    instance.start()
    assert instance.wait_end(job_id)["state"] == "TIMEOUT"


def test_a_wait_survives_the_restart_of_the_daemon(
    make_instance: Callable[..., Instance],
) -> None:
    import threading

    def connections() -> int:
        """How many clients the daemon has: its end of each is named like the listening socket."""
        return Path("/proc/net/unix").read_text().count(str(instance.socket)) - 1

    instance = make_instance(ROOMY).start()
    gate = instance.work / "gate"
    wait = f"while ! [ -e {gate} ]; do sleep 0.05; done; exit 9"
    job_id = instance.submit("-c", "0.1", "--", "sh", "-c", wait)
    instance.wait_state(job_id, "RUNNING")
    wait_for("our own connections' end", lambda: connections() == 0)
    status: list[int] = []
    waiting = threading.Thread(
        target=lambda: status.append(instance.drf("wait", job_id, check=False).returncode)
    )
    waiting.start()
    wait_for("its connection", connections)
    kill_controller(instance)
    gate.touch()
    waiting.join(60)
    assert status == [9]


def test_a_runner_that_is_killed_loses_only_its_own_job(
    make_instance: Callable[..., Instance],
) -> None:
    """Its exit status cannot be known; what it left is killed, and its resources return."""
    instance = make_instance(ROOMY).start()
    job_id = instance.submit("-c", "0.1", "--", "sh", "-c", "echo $$; exec sleep 600")
    other = instance.submit("-c", "0.1", "--", "sh", "-c", "sleep 1; exit 3")
    instance.wait_state(job_id, "RUNNING")
    pid = int(wait_for("its pid", lambda: instance.output(job_id)))
    os.kill(parent(pid), signal.SIGKILL)
    job = instance.wait_end(job_id)
    assert (job["state"], job["exit_code"], job["signal"]) == ("LOST", None, None)
    assert job["outcome"]["reason"] == "RUNNER_KILLED", "not taken for a restart of the machine"
    wait_for("the job's end", lambda: not is_alive(pid))
    assert instance.wait_end(other)["exit_code"] == 3


def test_ten_thousand_queued_jobs_are_all_there_after_a_restart(instance: Instance) -> None:
    """And the daemon answers as soon as an empty one does, within two seconds."""
    import json
    import socket

    def restart_s() -> float:
        """The shortest of three: the machine may stand still during one of them."""
        took_s = []
        for _ in range(3):
            instance.kill()
            started = time.monotonic()
            instance.start()
            took_s.append(time.monotonic() - started)
        return min(took_s)

    empty_s = restart_s()
    instance.drf("drain")
    request = {"op": "submit", "v": 1, "argv": ["true"], "cwd": "/", "env": {"A": "b" * 500}}
    line = json.dumps(request).encode() + b"\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(instance.socket))
        replies = connection.makefile("rb")
        for _ in range(100):
            connection.sendall(line * 100)
            answers = [json.loads(replies.readline()) for _ in range(100)]
            assert all(answer["ok"] for answer in answers)
    took_s = restart_s()
    jobs = instance.status()
    assert [job["id"] for job in jobs] == list(range(1, 10_001))
    assert {job["state"] for job in jobs} == {"PENDING"}
    assert took_s - empty_s < 2.0


def test_a_job_that_comes_before_the_launcher_is_ready_starts_when_it_is(
    make_instance: Callable[..., Instance],
) -> None:
    """As after every start of a user's own daemon, which answers before its launcher is up."""
    instance = make_instance(ROOMY)
    for _ in range(5):
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
        instance.stop()


def test_when_the_launchers_supervisor_dies_the_daemon_ends_and_says_so(instance: Instance) -> None:
    """Nobody would start a launcher, nor any job, any more; jobs that run go on."""
    script = "while ! [ -e gate ]; do sleep 0.05; done; exit 5"
    job_id = instance.submit("--", "sh", "-c", script)
    instance.wait_state(job_id, "RUNNING")
    os.kill(parent(instance.launcher_pid()), signal.SIGKILL)
    wait_for("the daemon's end", instance.is_dead)
    assert "the supervisor of the launcher has died" in instance.log.read_text()
    (instance.work / "gate").touch()
    instance.start()
    assert instance.wait_end(job_id)["exit_code"] == 5


def test_the_journal_knows_when_there_was_no_daemon_and_by_which_rules_it_worked(
    make_instance: Callable[..., Instance],
) -> None:
    instance = make_instance().start()
    instance.kill()
    died_s = time.time()
    instance.start()
    instance.config.write_text(CONFIG.replace("cores = 9", "cores = 8"))
    instance.drf("reload")
    instance.stop()
    with closing(Journal(instance.state / "controller" / "journal.sqlite")) as journal:
        # A daemon may see before its launcher has come that there is none.
        events = [
            event for _, event in journal.audit.events() if not isinstance(event, ev.LaunchersAway)
        ]
        first, second, configured, stopped = events
        assert isinstance(first, ev.DaemonStarted) and first.away_since_s is None
        assert isinstance(second, ev.DaemonStarted) and second.rules == first.rules
        assert second.away_since_s is not None
        assert first.at_s <= second.away_since_s <= died_s + 1
        assert isinstance(configured, ev.Configured)
        assert '"cores_milli":8000' in (journal.audit.rules(configured.rules) or "")
        assert isinstance(stopped, ev.DaemonStopped)


def test_the_journal_tells_what_was_promised_and_kept_also_without_a_daemon(
    make_instance: Callable[..., Instance],
) -> None:
    """Five cores are held, and five waited for, of nine."""
    instance = make_instance().start()
    first = instance.submit("-c", "5", "--", "sleep", "600")
    instance.wait_state(first, "RUNNING")
    second = instance.submit("-c", "5", "--", "true")
    instance.kill()
    time.sleep(1)
    instance.start()
    instance.drf("cancel", str(first))
    assert instance.wait_end(second)["exit_code"] == 0
    instance.stop()
    with closing(Journal(instance.state / "controller" / "journal.sqlite")) as journal:

        def rules_of(digest: str) -> Rules:
            return read_rules(journal.audit.rules(digest) or "")

        accounts = []
        for _ in range(2):
            fold = EventFold(3_600_000, rules_of)
            for _, event in journal.record():
                fold.take(event)
            accounts.append(fold.account)
    account, again = accounts
    assert (account.sums, account.starts) == (again.sums, again.starts)
    parts = Parts()
    for each in account.sums.values():
        parts = parts.after(each, 1)
    assert parts.promised == WHOLE * parts.waited
    # For a moment after the cancellation, before the second job starts, nothing is held.
    assert parts.kept > WHOLE * 5 // 9 * (parts.waited - 100)
    assert parts.promised == parts.kept + parts.away + parts.size
    assert parts.away >= WHOLE * 4 // 9 * 1000, "the daemon was away for a second at least"
    assert parts.size > 0
    assert sum(starts.all for starts in account.starts.values()) == 2
