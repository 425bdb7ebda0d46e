"""What this version has written loads for ever, and whatever is new has a golden line.

The files in `tests/data/v0.1` are written by `python -m tests.goldens`, which says what they are.
"""

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest

import goldens
from canned import daemon
from drfd.client.values import JobInfo, Shares
from drfd.core.decisions.stimuli import AttemptReport
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.resources import Axes
from drfd.daemon.launcher_link.messages import ExecReport, StuckReport, read_report
from drfd.journal.journal import Journal
from drfd.launcher import attempt_files, protocol
from drfd.launcher.attempt_files import Records
from drfd.protocol import requests as messages
from fakes import all_events, tables
from goldens import HERE, ask, converse
from instance import BIN

__all__ = ["daemon"]

Message = dict[str, Any]
AGAIN = "run python -m tests.goldens (after a release: into a new directory beside the old one)"


def lines(name: str) -> list[Message]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


CONVERSATION = lines("wire.jsonl")
VERBS = messages.REQUESTS


# -- the state on the disk ----------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path) -> Iterator[Journal]:
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((HERE / "journal.sql").read_text())
    with closing(Journal(path)) as opened:
        yield opened


def test_the_state_and_the_orders_are_written_as_they_were(tmp_path):
    goldens.write_state(tmp_path)
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        assert path.read_bytes() == (HERE / path.relative_to(tmp_path)).read_bytes(), AGAIN


def test_the_journal_loads_and_replays_to_its_own_tables(journal):
    assert all_events(journal) == goldens.EVENTS
    books = journal.load(Axes())
    books.check()
    assert tables(books) == tables(Ledger.of_events(Axes(), goldens.EVENTS))
    assert (journal.curve(2), journal.submissions.get(10)) == (goldens.CURVE, goldens.PAYLOAD)
    assert journal.submissions.job_of(1001, "0123") == 7
    assert journal.fact("external_load", int) == goldens.LOAD


def test_every_kind_of_event_is_in_the_journal():
    assert {type(event) for event in goldens.EVENTS} == {*ev.KINDS.values()}, AGAIN


def test_the_attempt_files_load():
    for job_id, records in goldens.FATES.items():
        found = attempt_files.parse((HERE / "attempts" / f"{job_id}.1").read_bytes())
        marks = {"signalled": {"count": 2}} if job_id == goldens.SIGNALLED else {}
        assert found == Records(goldens.created_of(job_id), **records, **marks)


def test_every_kind_of_record_is_in_an_attempt_file():
    written = {
        json.loads(line)["record"]
        for path in (HERE / "attempts").iterdir()
        for line in filter(None, path.read_text().splitlines())
    }
    assert written == {*attempt_files._KINDS}, AGAIN


# -- what controller and launcher say to each other -----------------------------------------------


def test_the_orders_are_understood_and_every_command_is_among_them():
    orders = [protocol.read_order(json.dumps(each).encode()) for each in lines("orders.jsonl")]
    assert {type(each) for each in orders} == {*get_args(protocol._AnyOrder)}, AGAIN


def test_the_reports_are_understood_and_every_kind_is_among_them():
    reports = lines("reports.jsonl")
    for report in reports:
        if report["report"] == "hello":
            continue
        decoded = read_report(protocol.encode(report))
        if isinstance(decoded, AttemptReport):
            assert decoded.key == (5, 1)
    tags = {
        each.__struct_config__.tag for each in get_args(StuckReport | ExecReport | AttemptReport)
    }
    known = tags | {"hello", "listed", "gpus", "nodes", "start_failed", "notified"}
    assert {report["report"] for report in reports} == known, AGAIN


# -- what clients and the daemon say to each other ------------------------------------------------


@pytest.mark.parametrize("number", range(len(CONVERSATION)))
def test_a_request_is_understood(number):
    line = json.dumps(CONVERSATION[number]["request"]).encode()
    request = messages.decode_request(line)
    assert type(request) is VERBS[CONVERSATION[number]["request"]["op"]]


def test_every_verb_and_every_field_of_it_has_a_golden_request():
    requests = [*(each["request"] for each in CONVERSATION), goldens.STREAM, goldens.SNAPSHOT]
    said = {(each["op"], name) for each in requests for name in each}
    # `drf run` only: there is nobody to attach to here. Marks are of one journal.
    unsaid = {("submit", "attach"), ("wait", "attended"), ("events", "after")}
    # The jobs of a list are requests to submit.
    verbs = {op: cls for op, cls in VERBS.items() if op != "submit_list"}
    known = {(op, field) for op, cls in verbs.items() for field in cls.__struct_fields__}
    assert known - said == unsaid, AGAIN
    assert {op for op, _ in said} == {*verbs}, AGAIN


def test_todays_daemon_answers_as_it_always_did(make_instance):
    """Every field of every golden reply is there, of the same kind; new ones may come."""
    instance = make_instance(goldens.SETTINGS).start()
    requests = [each["request"] for each in CONVERSATION]
    replies = list(converse(instance, requests[:-1]))
    stream = ask(instance, goldens.STREAM)
    (snapshot,) = ask(instance, goldens.SNAPSHOT)
    replies += converse(instance, requests[-1:])
    for each, reply in zip(CONVERSATION, replies, strict=True):
        op = each["request"]["op"]
        assert_shape(each["reply"], reply, f"{op}", is_deep=op != "doctor")
    for then, now in zip(lines("events.jsonl"), stream, strict=True):
        assert_shape(then, now, "events")
    assert_shape(lines("snapshot.jsonl")[0], snapshot, "snapshots")


#: Objects in whose place None always was possible.
_MAY_BE_NONE = {"advice", "reason", "outcome", "curve"}


def assert_shape(then: object, now: object, place: str, *, is_deep: bool = True) -> None:
    if isinstance(then, dict):
        if now is None and place.rpartition(".")[2] in _MAY_BE_NONE:
            return
        assert isinstance(now, dict), place
        for name, value in then.items():
            assert name in now, f"{place}.{name} is gone"
            if is_deep:
                assert_shape(value, now[name], f"{place}.{name}")
    elif isinstance(then, list):
        assert isinstance(now, list), place
        if then:
            assert now, f"{place} is empty"
            assert_shape(then[0], now[0], f"{place}[0]")
    elif then is not None and now is not None:
        numbers = (int, float)
        is_same = type(then) is type(now) or (type(then) in numbers and type(now) in numbers)
        assert is_same, f"{place} was {then!r} and is {now!r}"


def test_todays_client_reads_the_replies():
    jobs = 0
    for each in CONVERSATION:
        op, reply = each["request"]["op"], each["reply"]
        views = [*reply.get("jobs", []), *reply.get("ended", [])]
        views += [reply["job"]] if "job" in reply and op in ("show", "why") else []
        for view in views:
            job = JobInfo.of(view)
            assert job.state == view["state"] and job.raw == view
            jobs += 1
        if op == "shares":
            assert {"root.A", "root.root"} <= {*Shares.of(reply).nodes}
    assert jobs >= 15
    told = [JobInfo.of(line["event"]) for line in lines("events.jsonl") if "event" in line]
    assert len(told) >= 6 and all(job.has_ended for job in told)


#: What people type → which verb's replies it shows.
SCREENS = {
    "status": "status",
    "show 2": "show",
    "why 2": "why",
    "shares": "shares",
    "history": "history",
    "report": "report",
    "doctor": "doctor",
}


@pytest.mark.parametrize("words", SCREENS)
def test_todays_screens_show_the_replies(daemon, words):
    for each in CONVERSATION:
        daemon.replies.setdefault(each["request"]["op"], each["reply"])
    golden = [each["reply"] for each in CONVERSATION if each["request"]["op"] == SCREENS[words]]
    command = [BIN / "drf", *words.split()]
    env = {**os.environ, "DRFD_SOCKET": str(daemon.path)}
    for reply in filter(lambda reply: reply["ok"], golden):
        daemon.replies[SCREENS[words]] = reply
        for extra in ([], ["--json"]):
            done = subprocess.run([*command, *extra], env=env, capture_output=True, text=True)
            assert done.returncode == 0 and "Traceback" not in done.stderr, (reply, done)
            assert extra == [] or json.loads(done.stdout)
