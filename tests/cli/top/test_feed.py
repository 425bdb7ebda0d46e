"""What drf top asks the daemon and reads of outputs, and what it sends to the terminal."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style

import drfd.client.connection
from canned_snapshots import many, replies, row, snapshot, waits
from drfd.client.connection import Connection
from drfd.common.errors import DrfdError, Refused
from drfd.protocol.codec import decode
from drfd_cli.commands.log import last_lines
from drfd_cli.top.app import AlternateScreen, encode
from drfd_cli.top.feed import (
    ActionResult,
    Asker,
    FoundOutput,
    News,
    SnapshotReader,
    fetch_detail,
    find_output,
    first_snapshot,
    request_action,
)
from drfd_cli.top.keys import Act
from drfd_cli.top.paint import Theme
from drfd_cli.top.state import Look, State
from drfd_cli.top.view import Scene, Size, screen
from instance import wait_for


@pytest.fixture
def connection(daemon) -> Iterator[Connection]:
    made = Connection(daemon.path)
    yield made
    made.close()


def shown_job(path: Path, **changes: Any) -> dict[str, Any]:
    show, _ = replies()
    return {**show, "job": {**show["job"], "uid": os.getuid(), "stdout": str(path), **changes}}


def test_silence_is_told_with_how_long_it_lasts():
    news = News({}, came_s=100.0)
    assert (news.trouble(101.5), news.trouble(112.0)) == ("", "no word from the daemon for 12s")


# -- actions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "ids", "fields"),
    [
        (Act("cancel", ("42",)), [42], {}),
        (Act("cancel", ("42_7",)), ["42_7"], {}),
        (Act("cancel", ("42_[8-10]",)), ["42_8", "42_9", "42_10"], {}),
        (Act("hold", ("42_[1,8-9]",)), ["42_1", "42_8", "42_9"], {}),
        (Act("set", ("4", "6_[0-1]"), {"time_limit_s": 60}, "time limit 1m"), [4, "6_0", "6_1"],
         {"time_limit_s": 60}),
    ],
)  # fmt: skip
def test_what_is_done_is_done_in_one_request_to_the_rows_and_no_more(
    connection, daemon, act, ids, fields
):
    daemon.replies = {act.verb: {"done": [42], "failed": []}}
    told = request_action(connection, act)
    assert daemon.requests == [{"op": act.verb, "select": {"ids": ids}, **fields}]
    rows = f"job {act.labels[0]}" if len(act.labels) == 1 else "2 jobs"
    assert (told.text.endswith(f" {rows}"), told.is_bad) == (True, False)
    assert not fields or told.text == "set time limit 1m of 2 jobs"


@pytest.mark.parametrize("verb", ["cancel", "release"])
def test_of_tasks_that_have_no_name_on_the_screen_none_is_changed(connection, daemon, verb):
    with pytest.raises(Refused, match=r"more tasks than a row can name.*42"):
        request_action(connection, Act(verb, ("42_[1,3,5,…]",)))
    assert daemon.requests == []


def test_what_was_done_and_what_was_not_is_told(connection, daemon):
    error = {"kind": "NotPermitted", "code": "x", "text": "job 4 is\x1b bob's", "hint": "ask bob"}
    failed = [{"id": 4, "error": error}]
    signal = Act("signal", ("1", "2"), {"signal": 10}, "SIGUSR1")
    why = "job 4 is? bob's (ask bob)"
    for act, done, not_done, text, is_bad in (
        (Act("cancel", ("4",)), [], failed, why, True),
        (Act("hold", ("4", "5")), [5], failed, f"held 1 job, but not 1: {why}", True),
        (Act("suspend", ("1",)), [1], [], "suspended job 1", False),
        (signal, [], [], "2 jobs are not there any more", True),
    ):
        daemon.replies = {act.verb: {"done": done, "failed": not_done}}
        told = request_action(connection, act)
        assert (told.text, told.is_bad) == (text, is_bad)


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (("7",), "submitted job 12, a retry of 7"),
        (("7", "8"), "submitted 2 jobs again, as job 12 and the following"),
    ],
)
def test_ended_jobs_are_submitted_again(connection, daemon, labels, text):
    before = {"argv": ["true"], "cwd": "/", "stdout": "a", "stderr": "a", "demand": {}}
    daemon.replies = {
        "submission": {"submission": before, "label": "7", "state": "FAILED", "live": False},
        "hello": {"version": "1", "user": "alice", "admin": False, "key_file": None},
        "submit": {"id": 12},
    }
    assert request_action(connection, Act("retry", labels)).text == text
    for sent in daemon.asked("submit", times=len(labels)):
        assert {key: sent[key] for key in before} == before


# -- details ----------------------------------------------------------------------


def test_a_page_has_what_is_known_of_the_job_and_the_end_of_its_output(
    connection, daemon, tmp_path, refuse
):
    path = tmp_path / "out"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(20_000)))
    _, why = replies()
    waiting, runs = (shown_job(path, state=state) for state in ("PENDING", "RUNNING"))
    daemon.replies = {"show": [waiting, waiting, runs], "why": why}
    label, errors, detail = fetch_detail(connection, row(40), errors=False, last=None)
    assert (label, errors, detail.why is not None) == ("40", False, True)
    assert [request["id"] for request in daemon.requests] == [40, 40]
    assert (detail.output[-1], len(detail.output), detail.problem) == ("line 19999", 200, "")
    # The reason is asked for again only when the state has changed.
    for count in (1, 2):
        _, _, detail = fetch_detail(connection, row(40), errors=False, last=detail)
        assert len([each for each in daemon.requests if each["op"] == "why"]) == count
        assert detail.why is not None
    # Of tasks in one row it is that of their array.
    daemon.replies = {"show": refuse(text="gone"), "why": refuse()}
    daemon.requests.clear()
    tasks = waits(44, label="44_[8-99]", tasks=92, array_id=44)
    _, _, detail = fetch_detail(connection, tasks, errors=False, last=None)
    assert daemon.requests[0] == {"op": "show", "id": 44}
    assert (detail.show, detail.problem) == (None, "gone")


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("none", {}, "the file is not there"),
        ("none", {"stdout": None}, "only its owner is told where it is"),
        ("none", {"started_at": None}, "not started yet"),
        ("none", {"started_at": None, "attempts": "attempt 2 of 3"}, "the file is not there"),
        ("", {}, "cannot read {}: Is a directory"),
        # An output without an end does not keep the view.
        ("/dev/zero", {}, "the output went to /dev/zero, which is no file that keeps it"),
        ("/etc/passwd", {"uid": 4_001_001}, "/etc/passwd is not a file of the job's user"),
    ],
)
def test_why_there_is_no_output_is_said(
    connection, daemon, tmp_path, refuse, name, changes, problem
):
    job = shown_job(tmp_path / name, **changes)
    daemon.replies = {"show": job, "why": refuse()}
    problem = problem.format(tmp_path)
    _, _, detail = fetch_detail(connection, row(40), errors=False, last=None)
    assert (detail.output, detail.problem) == ((), problem)
    told = find_output(connection, Look(row(40), errors=False))
    assert told == ActionResult(problem, is_bad=True), "no pager is started for it"


def test_a_pager_gets_the_file_of_the_output_or_of_the_errors(connection, daemon, tmp_path):
    path = tmp_path / "out"
    path.write_text("words\n")
    daemon.replies = {"show": shown_job(path, ended_at=None, stderr=str(tmp_path))}
    assert find_output(connection, Look(row(40), errors=False)) == FoundOutput(str(path), True)
    wrong = find_output(connection, Look(row(40), errors=True))
    assert wrong == ActionResult(f"cannot read {tmp_path}: Is a directory", is_bad=True)
    daemon.replies = {"show": shown_job(path, ended_at=9.0)}
    assert find_output(connection, Look(row(40), errors=False)) == FoundOutput(str(path), False)
    daemon.replies = {"show": {"array": {}, "events": []}}
    told = find_output(connection, Look(row(40), errors=False))
    assert told == ActionResult("each task of an array has an output of its own", is_bad=True)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]), (b"a\nb", ["a", "b"]), (b"\xff\xfe\n", ["\ufffd\ufffd"]),
        (b"10%\r50%\r100%\ndone\r\n", ["100%", "done"]), (b"a\tb", ["a       b"]),
        (b"\x1b[31mred\x1b[0m \x1b]0;title\x07x\n", ["red x"]),
    ],
)  # fmt: skip
def test_output_is_shown_as_it_would_stand_on_a_terminal(data, lines):
    assert list(last_lines(data)) == lines


# -- snapshots ---------------------------------------------------------------------------------


@pytest.fixture
def feed(connection, daemon) -> Iterator[SnapshotReader]:
    daemon.replies = {"snapshots": [{"snapshot": snapshot(at=1.0)}, {"snapshot": snapshot(at=2.0)}]}
    made = SnapshotReader(connection, first_snapshot(connection), lambda: None)
    yield made
    made.stop()


def test_snapshots_are_asked_for_again_when_the_daemon_is_back(feed, daemon, monkeypatch):
    """Also if it goes once more before it has sent one."""
    monkeypatch.setattr(drfd.client.connection, "RETRY_S", 0.01)
    feed.start()
    assert (feed.news.snapshot["at"], feed.news.away_since_s) == (1.0, None)
    daemon.stop()
    wait_for("its absence", lambda: feed.news.away_since_s is not None)
    assert feed.news.snapshot["at"] == 1.0
    daemon.replies = {"snapshots": [None, {"snapshot": snapshot(at=2.0)}]}
    daemon.start()
    wait_for("the next one", lambda: feed.news.snapshot["at"] == 2.0)
    assert feed.news.away_since_s is None
    assert daemon.asked("snapshots") == [{"op": "snapshots", "every_s": 1.0}] * 3


@pytest.mark.parametrize("is_away", [False, True])
def test_its_thread_ends_when_it_is_told_to(feed, daemon, is_away):
    """Also one that waits for the daemon's return. It kept trying, as long as the process ran."""
    before = set(threading.enumerate())
    feed.start()
    (thread,) = set(threading.enumerate()) - before
    if is_away:
        daemon.stop()
        wait_for("its absence", lambda: feed.news.away_since_s is not None)
    feed.stop()
    assert not thread.is_alive()
    assert (feed.news.away_since_s is not None, feed.problem) == (is_away, None)


def test_a_daemon_that_knows_no_snapshots_is_a_problem_and_not_away(feed, daemon, refuse):
    daemon.replies = {"snapshots": refuse(text="older")}
    feed.start()
    daemon.hang_up()
    wait_for("a problem", lambda: feed.problem is not None)
    assert isinstance(feed.problem, DrfdError)
    assert feed.problem.text == "older"


def test_answers_come_in_the_order_of_the_questions_and_errors_are_answers(
    connection, daemon, refuse
):
    daemon.replies = {"shares": {"n": 1}, "doctor": refuse(text="no")}
    asker = Asker(connection, lambda: None)
    asker.start()
    for verb in ("shares", "doctor", "shares"):
        asker.ask(lambda to, verb=verb: to.request(verb))
    answers: list[Any] = []
    wait_for("answers", lambda: answers.extend(asker.answers()) or len(answers) == 3)
    assert [getattr(each, "text", None) or each["n"] for each in answers] == [1, "no", 1]
    assert asker.open_count == 0
    asker.stop()


# -- the terminal ------------------------------------------------------------------------------


class Sent:
    """A screen on a terminal that keeps what comes."""

    def __init__(self) -> None:
        self.fd, self.side = os.openpty()
        self.screen = AlternateScreen(self.side, self.side)

    def take(self) -> str:
        found = b""
        os.write(self.side, b"\0")
        while not found.endswith(b"\0"):
            found += os.read(self.fd, 1 << 16)
        return found[:-1].decode()

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.side)


@pytest.fixture
def sent() -> Iterator[Sent]:
    with closing(Sent()) as made:
        yield made


def test_only_lines_that_differ_are_sent(sent):
    lines = [[Segment("one")], [Segment("two")], [Segment("three")]]
    sent.screen.show(lines)
    assert "one" in sent.take()
    sent.screen.show(lines)
    assert sent.take() == ""
    sent.screen.show([lines[0], [Segment("2", Style(bold=True))], lines[2]])
    assert sent.take() == "\x1b[2H\x1b[0m\x1b[2K\x1b[1m2\x1b[0m"
    sent.screen.forget()
    sent.screen.show(lines)
    again = sent.take()
    assert again.startswith("\x1b[0m\x1b[2J")
    assert again.index("one") < again.index("two") < again.index("three")
    # One of another size is drawn as a whole.
    sent.screen.show(lines[:1])
    assert sent.take() == "\x1b[0m\x1b[2J\x1b[1H\x1b[0m\x1b[2Kone"


def test_leaving_undoes_what_entering_did_and_may_be_repeated(sent):
    sent.screen.enter()
    entered = sent.take()
    assert [entered.count(f"\x1b[?{mode}") for mode in ("1049h", "25l", "7l")] == [1, 1, 1]
    sent.screen.leave()
    sent.screen.leave()
    left = sent.take()
    assert [left.count(f"\x1b[?{mode}") for mode in ("1049l", "25h", "7h")] == [1, 1, 1]


@pytest.mark.slow
def test_a_busy_machines_snapshot_costs_a_small_part_of_its_second():
    """5 % of a core is the promise: read, listed, drawn, encoded; in processor time."""
    line = json.dumps({"ok": True, "snapshot": many(60, 10_000)}).encode()
    theme, rounds = Theme(has_colour=True), 20
    took_s = []
    for number in range(rounds):
        begin_s = time.process_time()
        found = decode(line)["snapshot"]
        lines = screen(Scene(found, State(), found["at"] + number), Size(200, 60), theme)
        assert sum(len(encode(each, ColorSystem.EIGHT_BIT)) for each in lines) > 200 * 60
        took_s.append(time.process_time() - begin_s)
    # The middle one: on a busy machine some rounds take longer, also in processor time.
    assert median(took_s) < 0.05
