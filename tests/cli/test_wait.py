"""drf wait: how awaited jobs have ended, with the end of their errors, and how far they are."""

import io
import json
import os
import subprocess
import sys
from typing import Any

import pytest

import drfd.client.connection
from canned import CannedDaemon, Message
from cli.drf import Result
from cli.test_show import ARRAY
from drfd.client.connection import Connection
from drfd_cli.commands import wait as wait_module
from drfd_cli.commands.wait import job_line, wait_for

LINE = "drf: job 42 FAILED: exit code 127\n"


def over(daemon: CannedDaemon, *jobs: Message, done: bool = True) -> None:
    daemon.replies |= {"submit": {"id": 42}, "wait": {"done": done, "ended": [*jobs]}}


# -- what it asks, and its code ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "code"),
    [*(([status], status) for status in (0, 1, 3, 124, 125, 137, 143, 255)),
     ([0, 0], 0), ([0, 3, 4], 3), ([137, 0], 137)],
)  # fmt: skip
def test_wait_prints_each_end_and_exits_as_the_first_that_failed(
    drf, daemon, ended, statuses, code
):
    jobs = [
        ended("FAILED" if each else "COMPLETED", each, id=at) for at, each in enumerate(statuses)
    ]
    over(daemon, *jobs)
    result = drf("wait", *range(1, len(statuses) + 1))
    lines = [f"job {job['id']} {job['state']}: exit code {job['status']}\n" for job in jobs]
    failed = [f"drf: {line}" for line in lines if "FAILED" in line]
    assert result == Result(code, "".join(lines), "".join(failed))


@pytest.mark.parametrize(
    ("words", "ends", "code", "err"),
    [
        # Neither a refusal, nor how a job can time out.
        (["--timeout", "1", 42, 43], [(False, [42])], 75,
         "drf: job 42 FAILED: exit code 3\ndrf: timed out: not ended: 43\n"),
        (["--any", 42, 43, 44], [(True, [43])], 3, "drf: job 43 FAILED: exit code 3\n"),
        (["--any", "--timeout", "1", 42, 43], [(False, [])], 75,
         "drf: timed out: none has ended\n"),
    ],
)  # fmt: skip
def test_a_wait_that_timed_out_is_75_even_if_some_have_ended(
    drf, daemon, ended, words, ends, code, err
):
    ((done, ids),) = ends
    over(daemon, *(ended("FAILED", 3, id=each) for each in ids), done=done)
    result = drf("wait", *words)
    assert (result.code, result.err) == (code, err)


def test_wait_for_all_of_ones_jobs_but_that_in_which_it_runs(drf, daemon, ended, job, monkeypatch):
    over(daemon, ended("COMPLETED", 0))
    live = [job(id=4), job(id=7, array_id=6, array_index=1), job(id=9)]
    daemon.replies |= {"status": {"jobs": live, "after": None}, "hello": {"user": "alice"}}
    monkeypatch.setenv("DRF_JOB_ID", "9")
    assert drf("wait", "--all").code == 0
    (asked,) = daemon.asked("wait")
    assert asked["ids"] == [4, 6]
    daemon.replies["status"]["jobs"] = live[2:]
    assert drf("wait", "--all") == Result(0, "", "drf: no job of yours waits or runs\n")


def test_wait_says_each_end_once_in_a_log_of_both_streams(spawn, finish, daemon, ended):
    over(daemon, ended("FAILED", 3))
    result = finish(spawn("wait", 42, stderr=subprocess.STDOUT))
    assert (result.code, result.out) == (3, "job 42 FAILED: exit code 3\n")


# -- the end of its errors ---------------------------------------------------------------------


@pytest.fixture
def mine(ended, tmp_path):
    """A failed job of whoever runs the test, with errors."""

    def make(said: bytes = b"oh\n", **changes: Any) -> Message:
        (tmp_path / "err").write_bytes(said)
        files = {"stderr": str(tmp_path / "err"), "stdout": str(tmp_path / "out")}
        return ended("FAILED", 127, **({"uid": os.getuid()} | files | changes))

    return make


@pytest.mark.parametrize(
    "words", ["wait --json 42", "submit -q -w -- true"], ids=lambda words: words[:4]
)
def test_a_failed_job_is_told_with_its_last_errors(drf, daemon, mine, tmp_path, words):
    over(daemon, mine(b"bash: line 1: pyhton: command not found\n"))
    result = drf(*words.split())
    assert (result.code, result.err) == (
        127,
        f"{LINE}drf: the last errors of job 42 (drf log --err 42 prints all):\n"
        "  | bash: line 1: pyhton: command not found\n",
    )
    # One file for both streams is named as output.
    over(daemon, mine(b"no such file\n", stdout=str(tmp_path / "err")))
    assert drf(*words.split()).err == (
        f"{LINE}drf: the last output of job 42 (drf log 42 prints all):\n  | no such file\n"
    )


def test_five_lines_of_bounded_length_are_shown_and_none_acts_on_the_terminal(drf, daemon, mine):
    lines = [*(f"line {number}" for number in range(1000)), "10%\r90%"]
    bad = "\x1b[31mred\x1b]0;title\x07\x9b\u202e" + "x" * 9000
    over(daemon, mine("\n".join([*lines, bad, "", ""]).encode()))
    shown = drf("wait", 42).err.splitlines()[2:]
    assert 1 <= len(shown) <= 5
    assert all(line.startswith("  | ") and line.isprintable() and len(line) < 210 for line in shown)
    over(daemon, mine("\n".join([*lines, "\x1b[31mred", ""]).encode()))
    shown = drf("wait", 42).err.splitlines()[2:]
    assert shown == ["  | line 997", "  | line 998", "  | line 999", "  | 90%", "  | red"]


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": os.getuid() + 1}, {"started_at": None}, {"stderr": None},
        {"stderr": "/dev/null"}, {"stderr": "/nowhere/drf-42.err"}, {"stderr": "/"},
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_read_that_is_not_the_callers_own_output_of_this_job(drf, daemon, mine, changes):
    over(daemon, mine(b"what another said\n", **changes))
    assert drf("submit", "-w", "--", "true").err == LINE


def test_of_many_ends_each_has_a_line_and_three_their_errors(drf, daemon, ended, mine):
    over(daemon, *(mine(id=number) for number in range(1, 6)), ended(id=6))
    lines = drf("wait", *range(1, 7)).err.splitlines()
    assert [line for line in lines if "FAILED" in line] == [
        f"drf: job {number} FAILED: exit code 127" for number in range(1, 6)
    ]
    assert lines.count("  | oh") == 3


def test_a_failed_array_shows_the_errors_of_its_first_failed_task(drf, daemon, ended, mine, refuse):
    text = "98 of 100 tasks completed; 2 FAILED (7,9)"
    array = ended("FAILED", 127, text=text) | {
        "array_tasks": "0-99", "indices": {"FAILED": "7,9", "CANCELLED": "3"},
    }  # fmt: skip
    over(daemon, array)
    daemon.replies["show"] = {"job": mine(b"no data\n", id=50, array_id=42, array_index=7)}
    assert drf("wait", 42).err == (
        f"drf: array 42 FAILED: {text}\n"
        "drf: the last errors of job 42_7 (drf log --err 42_7 prints all):\n"
        "  | no data\n"
    )
    assert daemon.requests[-1] == {"op": "show", "id": "42_7"}
    daemon.replies["show"] = refuse("Refused", "no-such-job", "it is gone")
    assert drf("submit", "-w", "--", "true").err == f"drf: array 42 FAILED: {text}\n"


@pytest.mark.parametrize(
    ("number", "line"),
    [(11, "drf: job 42 FAILED: killed by signal 11 (SIGSEGV)\n"), (2, ""), (13, "")],
)
def test_an_attached_run_tells_the_signal_that_killed_it_as_a_shell_does(
    drf, daemon, ended, number, line
):
    text = f"killed by signal {number} (SIGSEGV)"
    over(daemon, ended("FAILED", 128 + number, text=text, exit_code=None, signal=number))
    assert drf("run", "--", "true") == Result(128 + number, "", line)


# -- meanwhile ---------------------------------------------------------------------------------

NOW = 1_700_000_100.0
COUNTS = {"COMPLETED": 38, "FAILED": 2, "RUNNING": 3, "STARTING": 1, "CLEANING": 1, "PENDING": 55}
AWAY = {
    "launcher_away_s": 60.0,
    "notices": [{"code": "LAUNCHER_AWAY", "text": "the launcher has been away for 60s"}],
}


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def watched(daemon, plain, monkeypatch):
    """Waits for these jobs a hundred times as impatiently as `drf wait`, until a request was made
    so often; what a terminal was sent."""

    def watch(*ids: int | str, op: str, times: int, term: str = "xterm", **more: bool) -> str:
        def wait(request: object) -> Message:
            daemon.asked(op, times=times)
            return {"done": True, "ended": []}

        daemon.replies["wait"] = wait
        sent, client = io.BytesIO(), Connection(daemon.path)
        with monkeypatch.context() as patch:
            patch.setenv("TERM", term)
            patch.setattr(sys, "stderr", Terminal(sent, encoding="utf-8"))
            for name in ("_SILENT_S", "_LOOK_S", "_PAUSE_S", "_TIMES"):
                patch.setattr(wait_module, name, getattr(wait_module, name) / 100)
            patch.setattr(drfd.client.connection, "EVERY_S", 0.01)
            wait_for(client, list(ids), **more)
            sys.stderr.flush()
        client.close()
        return sent.getvalue().decode()

    return watch


def test_a_line_is_shown_on_a_terminal_rewritten_and_erased(daemon, watched):
    later = {"COMPLETED": 60, "RUNNING": 5, "PENDING": 35}
    daemon.replies["show"] = [{"array": {**ARRAY, "counts": each}} for each in (COUNTS, later)]
    daemon.replies["hello"] = {}
    shown = watched(42, op="show", times=4).split("\r\x1b[K")[1:]
    assert shown[0] == "array 42: 40 of 100 ended, 2 failed, 5 running, 55 waiting"
    # The remaining time follows from the ends that were seen.
    assert any("60 of 100 ended, 5 running, 35 waiting, about " in line for line in shown)
    assert shown[-1] == "", "the line is gone at the end"


def test_messages_do_not_stand_in_the_line(daemon, job, watched):
    waits = job(state="HELD", started_at=None, reason={"code": "HELD", "text": "held by bob"})
    daemon.replies = {"show": {"job": waits}, "status": {"jobs": [waits]}}
    daemon.replies["hello"] = [{"version": "1"}, AWAY]
    sent = watched(42, op="hello", times=2)
    assert "\r\x1b[Kjob 42 HELD: HELD: held by bob\r\x1b[Kdrf: the launcher has been away" in sent


def test_several_jobs_are_counted_by_their_own_states(daemon, job, ended, watched):
    rows = [job(id=41), ended("FAILED", 3), job(id=50, array_id=43, array_index=7)]
    daemon.replies = {"status": {"jobs": rows}, "hello": {}}
    sent = watched(41, 42, 43, "44_3", op="status", times=2)
    assert "4 jobs: 2 of 4 ended, 1 failed, 2 running, 0 waiting" in sent


def test_without_a_terminal_or_an_answer_nothing_is_shown(daemon, watched):
    daemon.replies = {"show": None, "hello": {}}
    assert watched(42, op="show", times=2) == "", "a daemon that refuses keeps nobody from waiting"
    daemon.requests.clear()
    assert watched(42, op="hello", times=3, term="dumb") == ""
    assert watched(42, op="hello", times=6, is_quiet=True) == ""
    assert {request["op"] for request in daemon.requests} == {"wait", "hello"}


@pytest.mark.slow
def test_who_waits_is_told_once_that_the_launcher_is_away_and_once_that_it_is_back(daemon, watched):
    """They were silent for as long as nothing could start."""
    there, starting = {"version": "1"}, AWAY | {"launcher_away_s": 3.0}
    # The fourth time the daemon does not answer.
    daemon.replies["hello"] = [there, starting, AWAY, None, AWAY, there, there, AWAY]
    sent = watched(42, op="hello", times=9, is_quiet=True)
    away = "drf: the launcher has been away for 60s"
    assert sent.splitlines() == [away, "drf: the launcher is back", away]


def test_a_group_is_waited_for(drf, daemon, job):
    rows = [job(id=5), job(id=9, array_id=8, array_index=0), job(id=8, array_tasks="1-3")]
    daemon.replies = {"status": {"jobs": rows, "counts": {}, "draining": False}}
    daemon.replies["hello"] = {"user": "alice", "admin": False}
    over(daemon)
    drf("wait", "-g", "sweep")
    assert daemon.asked("wait")[0]["ids"] == [5, 8]
    assert daemon.asked("status")[0]["select"] == {"user": "alice", "group": "sweep"}
    daemon.replies["status"] = {"jobs": [], "counts": {}, "draining": False}
    told = "drf: no job of yours in the group sweep waits or runs\n"
    assert drf("wait", "-g", "sweep") == Result(0, "", told)
    assert json.loads(drf("wait", "-g", "sweep", "--json").out) == {"done": True, "jobs": []}


def test_an_array_of_which_nothing_runs_is_told_with_the_reason(daemon, job, watched):
    row = job(state="PENDING", started_at=None, reason={"code": "HELD", "text": "held by bob"})
    waiting = {**ARRAY, "tasks": 3, "counts": {"COMPLETED": 1, "HELD": 2}}
    daemon.replies = {"show": {"array": waiting}, "status": {"jobs": [row]}, "hello": {}}
    sent = watched(42, op="status", times=2)
    assert "array 42: 1 of 3 ended, 0 running, 2 waiting: HELD: held by bob" in sent


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "RUNNING for 1m30s, ends 23:13 (in 58m30s) at the latest"),
        ({"time_limit_s": None}, "RUNNING for 1m30s, without a time limit"),
        ({"state": "STOPPING"}, "STOPPING for 1m30s"),
        ({"state": "SUSPENDED"}, "SUSPENDED"),
        ({"state": "STARTING", "started_at": None}, "STARTING"),
        ({"state": "PENDING"}, "PENDING: RESOURCES: needs 8 cores"),
        ({"state": "PENDING", "expected_start_at": NOW + 600},
         "PENDING, starts about 22:25 (in 10m00s): RESOURCES: needs 8 cores"),
    ],
)  # fmt: skip
def test_one_job_is_told_with_its_state_and_what_is_known_of_its_start_or_end(
    job, plain, changes, line
):
    view: Any = job(reason={"code": "RESOURCES", "text": "needs 8 cores"}, **changes)
    assert job_line(view, NOW) == f"job 42 {line}"
