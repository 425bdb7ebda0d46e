"""How far awaited jobs are: what the line says, and when there is one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from canned import CannedDaemon, MakeJob, Message
from cli.drf import DRF, Drf
from drfd_cli.waiting.progress import Left, Rate, Tally, job_line, tally_line

NOW = 1_700_000_100.0
ARRAY = {"id": 42, "array_id": 42, "array_index": None, "array_tasks": "0-99", "tasks": 100}
COUNTS = {"COMPLETED": 38, "FAILED": 2, "RUNNING": 3, "STARTING": 1, "CLEANING": 1, "PENDING": 55}
LEFT = Left("about 12m30s left, from the last 34 ends", "~12m30s left (34 ends)")


def test_each_task_is_counted_once() -> None:
    assert Tally.of(COUNTS, 100) == Tally(total=100, ended=40, failed=2, running=5, waiting=55)
    assert Tally.of({"HELD": 3, "SUSPENDED": 1, "CANCELLED": 2, "LOST": 1}, 7) == Tally(
        total=7, ended=3, failed=3, running=1, waiting=3
    )


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (
            200,
            "array 42 ████████░░░░░░░░░░░░ 40 of 100 ended, 2 failed, 5 running, 55 waiting; "
            "about 12m30s left, from the last 34 ends",
        ),
        (
            90,
            "array 42 ████░░░░░░░░ 40/100, 2 failed, 5 running, 55 waiting; ~12m30s left (34 ends)",
        ),
        (79, "array 42 ██░░░░ 40/100, 2 failed, 5 running, 55 waiting; ~12m30s left (34 ends)"),
        (30, "array 42 40/100, 2 failed, 5 running, 55 waiting; ~12m30s left (34 ends)"),
    ],
)
def test_the_line_has_the_form_that_fits(columns: int, line: str) -> None:
    tally = Tally.of(COUNTS, 100)
    assert tally_line("array 42", tally, LEFT, columns, is_ascii=False) == line
    assert tally_line("array 42", tally, LEFT, columns, is_ascii=True).isascii()


def test_the_bar_is_full_only_at_the_end() -> None:
    nearly = Tally(total=1000, ended=999, failed=0, running=1, waiting=0)
    assert "███████████░ 999/1000" in tally_line("array 42", nearly, LEFT, 90, is_ascii=False)


def test_the_time_left_comes_from_ends_that_were_seen_and_is_unknown_before() -> None:
    rate = Rate()
    rate.note(1000.0, 10)
    few = Tally(total=100, ended=12, failed=0, running=4, waiting=84)
    rate.note(1060.0, 12)
    assert rate.left(few, 1060.0).short == "time left unknown"
    rate.note(1100.0, 20)
    some = Tally(total=100, ended=20, failed=0, running=4, waiting=76)
    assert rate.left(some, 1100.0) == Left(
        "about 13m20s left, from the last 10 ends", "~13m20s left (10 ends)"
    )
    # Without a new end it falls with the clock, until that can no longer be true.
    assert rate.left(some, 1200.0).short == "~11m40s left (10 ends)"
    assert rate.left(some, 2000.0).short == "~2h13m left (10 ends)"
    # What was long ago does not count, but for the last reading before.
    for at_s, ended in ((3000.0, 40), (3100.0, 50)):
        rate.note(at_s, ended)
    later = Tally(total=100, ended=50, failed=0, running=4, waiting=46)
    assert rate.left(later, 3100.0).short == "~55m33s left (30 ends)"


@pytest.mark.parametrize(
    ("changes", "start_s", "line"),
    [
        ({}, None, "job 42 RUNNING for 1m30s, ends 23:13 (in 58m30s) at the latest"),
        ({"time_limit_s": None}, None, "job 42 RUNNING for 1m30s, without a time limit"),
        ({"state": "STOPPING"}, None, "job 42 STOPPING for 1m30s"),
        ({"state": "SUSPENDED"}, None, "job 42 SUSPENDED"),
        ({"state": "STARTING", "started_at": None}, None, "job 42 STARTING"),
        (
            {"state": "PENDING", "reason": {"code": "RESOURCES", "text": "needs 8 cores"}},
            None,
            "job 42 PENDING: RESOURCES: needs 8 cores",
        ),
        (
            {"state": "PENDING", "reason": {"code": "RESOURCES", "text": "needs 8 cores"}},
            NOW + 600,
            "job 42 PENDING, starts about 22:25 (in 10m00s): RESOURCES: needs 8 cores",
        ),
    ],
)
def test_one_job_is_told_with_its_state_and_what_is_known_of_its_start_or_end(
    job: MakeJob, plain: None, changes: dict[str, Any], start_s: float | None, line: str
) -> None:
    view: Any = job(**changes)
    assert job_line(view, start_s, NOW) == line


def on_terminal(daemon: CannedDaemon, *words: object, term: str = "xterm") -> tuple[int, str]:
    """Run drf with stderr on a terminal; return its exit code and what the terminal was sent."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", DRF, *map(str, words)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=terminal,
        env={"DRFD_SOCKET": str(daemon.path), "PATH": os.environ["PATH"], "TZ": "UTC",
             "TERM": term, "PYTHONUTF8": "1"},
    )  # fmt: skip
    os.close(terminal)
    sent = b""
    try:
        while piece := os.read(controller, 4096):
            sent += piece
    except OSError:
        # The program has ended.
        pass
    os.close(controller)
    process.communicate(timeout=60)
    return process.returncode, sent.decode()


def after(daemon: CannedDaemon, op: str, times: int, reply: Message) -> Callable[[object], Message]:
    """A reply to `wait` that comes when another request was made so often."""

    def wait(request: object) -> Message:
        daemon.asked(op, times=times)
        # The line is printed after the answer has come.
        time.sleep(0.3)
        return reply

    return wait


@pytest.mark.parametrize("words", [("wait", 42), ("submit", "-w", "--array", "0-99", "--", "x")])
def test_a_line_is_shown_on_a_terminal_rewritten_and_erased(
    daemon: CannedDaemon, ended: MakeJob, words: tuple[object, ...]
) -> None:
    over = {**ended(text="100 of 100 tasks completed"), **ARRAY, "indices": {}}
    later = {"COMPLETED": 60, "RUNNING": 5, "PENDING": 35}
    daemon.replies = {
        "submit": {"id": 42, "tasks": 100},
        "show": [{"array": {**ARRAY, "counts": counts}} for counts in (COUNTS, later, later)],
        "wait": after(daemon, "show", 2, {"done": True, "ended": [over]}),
    }
    status, sent = on_terminal(daemon, *words)
    first, second, *more = sent.split("\r\x1b[K")[1:]
    assert status == 0
    assert "40/100, 2 failed, 5 running, 55 waiting; time left unknown" in first
    assert any("60/100, 5 running, 35 waiting; ~" in line for line in (second, *more))
    assert more[-1] == "", "the line is gone at the end"


def test_messages_do_not_stand_in_the_line(
    daemon: CannedDaemon, job: MakeJob, ended: MakeJob
) -> None:
    away = {
        "launcher_away_s": 60.0,
        "notices": [{"code": "LAUNCHER_AWAY", "text": "the launcher has been away for 60s"}],
    }
    waits = job(state="HELD", started_at=None, reason={"code": "HELD", "text": "held by bob"})
    daemon.replies = {
        "show": {"job": waits}, "status": {"jobs": [waits]}, "hello": away,
        "wait": after(daemon, "hello", 1, {"done": True, "ended": [ended("FAILED", 3)]}),
    }  # fmt: skip
    status, sent = on_terminal(daemon, "wait", 42)
    assert status == 3
    assert "\r\x1b[Kjob 42 HELD: HELD: held by bob\r\x1b[Kdrf: the launcher has been away" in sent
    assert sent.endswith("\r\x1b[Kdrf: job 42 FAILED: exit code 3\r\n")


@pytest.mark.parametrize("way", ["pipe", "dumb", "quiet"])
def test_without_a_terminal_nothing_is_asked_and_nothing_shown(
    drf: Drf, daemon: CannedDaemon, ended: MakeJob, way: str
) -> None:
    answer = threading.Timer(2.5, lambda: None)
    answer.start()

    def wait(request: object) -> Message:
        answer.join()
        return {"done": True, "ended": [ended()]}

    daemon.replies = {"submit": {"id": 42}, "wait": wait, "show": {"job": ended()}}
    if way == "pipe":
        assert drf("wait", 42).err == ""
    elif way == "dumb":
        assert on_terminal(daemon, "wait", 42, term="dumb") == (0, "")
    else:
        assert on_terminal(daemon, "submit", "-q", "-w", "--", "true") == (0, "")
    assert not [request for request in daemon.requests if request["op"] in ("show", "status")]


def test_several_jobs_are_counted_by_their_own_states(
    daemon: CannedDaemon, job: MakeJob, ended: MakeJob
) -> None:
    rows = [job(id=41), ended("FAILED", 3), job(id=50, array_id=43, array_index=7)]
    daemon.replies = {
        "status": {"jobs": rows},
        "wait": after(daemon, "status", 1, {"done": True, "ended": [ended()]}),
    }
    _, sent = on_terminal(daemon, "wait", 41, 42, 43, "44_3")
    assert "4 jobs ██████░░░░░░ 2/4, 1 failed, 2 running, 0 waiting; time left unknown" in sent


def test_a_daemon_that_refuses_to_tell_keeps_nobody_from_waiting(
    daemon: CannedDaemon, ended: MakeJob
) -> None:
    daemon.replies = {
        "show": None,
        "wait": after(daemon, "show", 1, {"done": True, "ended": [ended()]}),
    }
    assert on_terminal(daemon, "wait", 42) == (0, "")
