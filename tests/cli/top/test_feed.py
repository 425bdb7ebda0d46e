"""What the live view asks the daemon, and what it makes of the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from canned import CannedDaemon, Refuse
from canned_snapshots import replies, row, snapshot, waits
from drfd.client.connection import Connection
from drfd.common.errors import DrfdError, Refused
from drfd_cli.top.actions import Act, Verb
from drfd_cli.top.feed import (
    Asker,
    News,
    Shortfalls,
    SnapshotReader,
    fetch_detail,
    fetch_shortfalls,
    first_snapshot,
    request_action,
)
from drfd_cli.waiting.output_files import last_lines


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def connection(daemon: CannedDaemon) -> Iterator[Connection]:
    made = Connection(daemon.path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("verb", "label", "ids"),
    [
        (Verb.CANCEL, "42", [42]),
        (Verb.CANCEL, "42_7", ["42_7"]),
        (Verb.CANCEL, "42_[8-10]", ["42_8", "42_9", "42_10"]),
        (Verb.HOLD, "42_[8-99]", [42]),
        (Verb.RELEASE, "42_[1,3,5,…]", [42]),
    ],
)
def test_what_is_done_is_done_to_the_row_and_no_more(
    connection: Connection, daemon: CannedDaemon, verb: Verb, label: str, ids: list[Any]
) -> None:
    daemon.replies = {verb.value: {"done": [42], "failed": []}}
    told = request_action(connection, Act(verb, (label,)))
    assert daemon.requests == [{"op": verb.value, "select": {"ids": ids}}]
    assert (told.text.endswith(f" job {label}"), told.is_bad) == (True, False)


def test_of_tasks_that_have_no_name_on_the_screen_none_is_cancelled(
    connection: Connection, daemon: CannedDaemon
) -> None:
    with pytest.raises(Refused, match="more tasks than a row can name"):
        request_action(connection, Act(Verb.CANCEL, ("42_[1,3,5,…]",)))
    assert daemon.requests == []


def test_a_refusal_is_told_with_its_hint(connection: Connection, daemon: CannedDaemon) -> None:
    error = {"kind": "NotPermitted", "code": "x", "text": "job 7 is\x1b bob's", "hint": "ask bob"}
    daemon.replies = {"cancel": {"done": [], "failed": [{"id": 7, "error": error}]}}
    told = request_action(connection, Act(Verb.CANCEL, ("7",)))
    assert (told.text, told.is_bad) == ("job 7 is? bob's (ask bob)", True)


def test_what_users_lacked_in_seven_days_is_known_by_their_leaves(
    connection: Connection, daemon: CannedDaemon
) -> None:
    rows = [
        {"user": "ann.b", "pool": "lab/sub", "promised": 5000, "kept": 2000},
        {"user": "bob", "pool": None, "promised": 7, "kept": 6},
        {"user": "carol", "pool": None, "promised": 7, "kept": 7},
    ]
    daemon.replies = {"ledger": {"rows": rows}}
    assert fetch_shortfalls(connection).of == {"root.lab.sub.ann%2Eb": 3000, "root.bob": 1}
    (request,) = daemon.requests
    assert 0 <= time.time() - 7 * 86400 - request["since_s"] < 60


def test_an_account_that_cannot_be_read_is_no_error(
    connection: Connection, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"ledger": refuse(text="no such verb")}
    assert fetch_shortfalls(connection) == Shortfalls()


def shown(path: Path, **changes: Any) -> dict[str, Any]:
    show, _, _ = replies()
    return {**show, "job": {**show["job"], "stdout": str(path), **changes}}


def test_a_page_has_what_is_known_of_the_job_and_the_end_of_its_output(
    connection: Connection, daemon: CannedDaemon, tmp_path: Path, refuse: Refuse
) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(20_000)))
    _, why, _ = replies()
    daemon.replies = {"show": shown(path), "why": why, "usage": refuse(text="no such verb")}
    label, errors, detail = fetch_detail(connection, row(40), errors=False, last=None)
    assert (label, errors, detail.why is not None, detail.usage) == ("40", False, True, None)
    assert [request["id"] for request in daemon.requests] == [40, 40, 40]
    assert detail.output[-1] == "line 19999"
    assert len(detail.output) == 200
    assert detail.problem == ""


def test_why_is_asked_again_only_when_the_state_has_changed(
    connection: Connection, daemon: CannedDaemon, tmp_path: Path, refuse: Refuse
) -> None:
    _, why, _ = replies()
    waiting, runs = (shown(tmp_path, state=state) for state in ("PENDING", "RUNNING"))
    daemon.replies = {"show": [waiting, waiting, runs], "why": why, "usage": refuse()}
    last = None
    for count in (1, 1, 2):
        _, _, last = fetch_detail(connection, row(40), errors=False, last=last)
        assert len([each for each in daemon.requests if each["op"] == "why"]) == count
        assert last.why is not None


def test_of_tasks_in_one_row_the_page_is_that_of_their_array(
    connection: Connection, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"show": refuse(text="gone"), "why": refuse(), "usage": refuse()}
    tasks = waits(44, label="44_[8-99]", tasks=92, array_id=44)
    _, _, detail = fetch_detail(connection, tasks, errors=False, last=None)
    assert daemon.requests[0] == {"op": "show", "id": 44}
    assert (detail.show, detail.problem) == (None, "gone")


def test_why_there_is_no_output_is_said(
    connection: Connection, daemon: CannedDaemon, tmp_path: Path, refuse: Refuse
) -> None:
    for name, changes, problem in (
        ("none", {}, "the file is not there"),
        ("none", {"stdout": None}, "only its owner is told where it is"),
        ("none", {"started_at": None}, "not started yet"),
        ("none", {"started_at": None, "attempts": "attempt 2 of 3"}, "the file is not there"),
        ("", {}, f"cannot read {tmp_path}: Is a directory"),
    ):
        job = shown(tmp_path / name, **changes)
        daemon.replies = {"show": job, "why": refuse(), "usage": refuse()}
        _, _, detail = fetch_detail(connection, row(40), errors=False, last=None)
        assert (detail.output, detail.problem) == ((), problem)


def test_an_output_without_an_end_does_not_keep_the_view(
    connection: Connection, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"show": shown(Path("/dev/zero")), "why": refuse(), "usage": refuse()}
    _, _, detail = fetch_detail(connection, row(40), errors=False, last=None)
    assert detail.problem == "the output went to /dev/zero, which is no file that keeps it"


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"10%\r50%\r100%\ndone\r\n", ["100%", "done"]),
        (b"\x1b[31mred\x1b[0m \x1b]0;title\x07x\n", ["red x"]),
        (b"\xff\xfe\n", ["\ufffd\ufffd"]),
        (b"a\tb", ["a       b"]),
    ],
)
def test_output_is_shown_as_it_would_stand_on_a_terminal(data: bytes, lines: list[str]) -> None:
    assert list(last_lines(data)) == lines


# -- snapshots -------------------------------------------------------------------------------------


@pytest.fixture
def feed(connection: Connection, daemon: CannedDaemon) -> Iterator[SnapshotReader]:
    daemon.replies = {"snapshots": [{"snapshot": snapshot(at=1.0)}, {"snapshot": snapshot(at=2.0)}]}
    made = SnapshotReader(connection, first_snapshot(connection), lambda: None)
    yield made
    made.stop()


def test_snapshots_are_asked_for_again_when_the_daemon_is_back(
    feed: SnapshotReader, daemon: CannedDaemon
) -> None:
    feed.start()
    assert (feed.news.snapshot["at"], feed.news.away_since_s) == (1.0, None)
    daemon.stop()
    until(lambda: feed.news.away_since_s is not None)
    assert feed.news.snapshot["at"] == 1.0
    daemon.start()
    until(lambda: feed.news.snapshot["at"] == 2.0)
    assert feed.news.away_since_s is None
    assert daemon.asked("snapshots") == [{"op": "snapshots", "every_s": 1.0}] * 2


@pytest.mark.parametrize("is_away", [False, True])
def test_its_thread_ends_when_it_is_told_to(
    feed: SnapshotReader, daemon: CannedDaemon, is_away: bool
) -> None:
    """Also one that waits for the daemon's return. It kept trying, as long as the process ran."""
    before = set(threading.enumerate())
    feed.start()
    (thread,) = set(threading.enumerate()) - before
    if is_away:
        daemon.stop()
        until(lambda: feed.news.away_since_s is not None)
    feed.stop()
    assert not thread.is_alive()
    assert (feed.news.away_since_s is not None, feed.problem) == (is_away, None)


def test_old_news_say_what_is_wrong_with_them() -> None:
    news = News({}, came_s=100.0)
    assert news.trouble(101.5) == ""
    assert news.trouble(112.0) == "no word from the daemon for 12s"
    away = replace(news, away_since_s=102.0)
    assert away.trouble(105.0) == "the daemon is away, for 3s now; trying again"


def test_a_daemon_that_knows_no_snapshots_is_a_problem_and_not_away(
    feed: SnapshotReader, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"snapshots": refuse(text="older")}
    feed.start()
    daemon.hang_up()
    until(lambda: feed.problem is not None)
    assert isinstance(feed.problem, DrfdError)
    assert feed.problem.text == "older"


def test_answers_come_in_the_order_of_the_questions_and_errors_are_answers(
    connection: Connection, daemon: CannedDaemon, refuse: Refuse
) -> None:
    daemon.replies = {"shares": {"n": 1}, "doctor": refuse(text="no")}
    asker = Asker(connection, lambda: None)
    asker.start()
    for verb in ("shares", "doctor", "shares"):
        asker.ask(lambda to, verb=verb: to.request(verb))
    answers: list[Any] = []
    until(lambda: answers.extend(asker.answers()) or len(answers) == 3)
    assert [getattr(each, "text", None) or each["n"] for each in answers] == [1, "no", 1]
    assert asker.open_count == 0
    asker.stop()


def test_who_waits_for_an_answer_ends_when_it_is_told_to(
    connection: Connection, daemon: CannedDaemon
) -> None:
    answer = threading.Event()
    daemon.replies = {"ledger": lambda request: answer.wait(60) and None}
    before = set(threading.enumerate())
    asker = Asker(connection, lambda: None)
    asker.start()
    (thread,) = set(threading.enumerate()) - before
    asker.ask(lambda to: to.request("ledger", since_s=0.0))
    daemon.asked("ledger")
    asker.stop()
    assert not thread.is_alive()
    answer.set()
