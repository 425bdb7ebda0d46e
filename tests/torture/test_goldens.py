"""What this version has written loads for ever, and whatever is new has a golden line.

The files in `tests/data/v0.1` are written by `python -m tests.goldens`, which says what they are.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pytest

from canned import CannedDaemon, daemon
from drfd.client.values import JobInfo, Shares
from drfd.core.amounts.resources import Axes
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.stimuli import Now
from drfd.daemon.launcher_link.messages import (
    AttemptReport,
    ExecReport,
    StuckReport,
    ToldReport,
    decode_report,
    stimulus_for,
)
from drfd.journal.journal import Journal
from drfd.journal.records import decode_event
from drfd.launcher import attempt_files, protocol
from drfd.launcher.attempt_files import Attempt
from drfd.launcher.lending import bounds_of, read_bounds
from drfd.protocol import requests as messages
from fakes import tables
from goldens import (
    AUDIT_EVENTS,
    EVENTS,
    FATES,
    HERE,
    LAST_EVENTS,
    LENT,
    LENT_ORDER,
    RULES_TEXT,
    SETTINGS,
    SIGNALLED,
    SNAPSHOT,
    ask,
    converse,
    created_of,
)
from instance import BIN, Instance
from journal.test_golden import NOTIFIED, RAISED

__all__ = ["daemon"]

Message = dict[str, Any]
AGAIN = "run python -m tests.goldens (after a release: into a new directory beside the old one)"


def lines(name: str) -> list[Message]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


CONVERSATION = lines("wire.jsonl")
VERBS = {cls.__struct_config__.tag: cls for cls in get_args(messages.AnyRequest)}


# -- the state on the disk ----------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((HERE / "journal.sql").read_text())
    with closing(Journal(path)) as opened:
        yield opened


def test_the_journal_loads_and_replays_to_its_own_tables(journal: Journal) -> None:
    events = list(journal.events())
    books = journal.load(Axes())
    books.check()
    assert tables(books) == tables(Ledger.of_events(Axes(), events))
    assert len(books.jobs) >= 5 and len(books.arrays.live()) >= 1


def test_every_kind_of_event_is_in_the_journal(journal: Journal) -> None:
    """In this one, in that of the last version of the tables, or as a line of its own there."""
    there = {type(event) for event in (*journal.events(), *LAST_EVENTS, RAISED, NOTIFIED)}
    assert not {*ev.KINDS.values()} - there, AGAIN


def test_the_records_for_an_audit_are_as_they_were_written(journal: Journal) -> None:
    there = [event for _, event in journal.audit.events()]
    assert there == AUDIT_EVENTS, AGAIN
    assert {type(event) for event in there} == {*ev.AUDIT_KINDS.values()}, AGAIN
    assert journal.audit.rules(there[1].rules) == RULES_TEXT


def test_the_reasons_of_starts_are_read() -> None:
    """None is from before they were recorded."""
    line = '{"job_id":1,"at_s":5.5,"attempt":1%s}'
    for word, why in (
        ("", None),
        (',"why":"turn"', ev.StartReason.TURN),
        (',"why":"reservation"', ev.StartReason.RESERVATION),
        (',"why":"backfill"', ev.StartReason.BACKFILL),
    ):
        then = ev.Admitted(job_id=1, at_s=5.5, attempt=1, why=why)
        assert decode_event("Admitted", (line % word).encode()) == then


def test_the_attempt_files_load() -> None:
    for job_id, records in FATES.items():
        found = attempt_files.parse((HERE / "attempts" / f"{job_id}.1").read_bytes())
        marks = {"signalled": {"count": 2}} if job_id == SIGNALLED else {}
        assert found == Attempt(created_of(job_id), **records, **marks)
        assert read_bounds(found) == (bounds_of(LENT_ORDER) if job_id == LENT else None)


def test_every_kind_of_record_is_in_an_attempt_file() -> None:
    written = {
        json.loads(line)["record"]
        for path in (HERE / "attempts").iterdir()
        for line in path.read_text().splitlines()
    }
    assert written == {*attempt_files._KINDS}, AGAIN


# -- what controller and launcher say to each other -----------------------------------------------


def test_the_orders_are_understood_and_every_command_is_among_them() -> None:
    """A launcher that is newer, or older, than its controller: an update restarts one first."""
    commands = set()
    for message in lines("orders.jsonl"):
        command = message.pop("cmd")
        commands.add(command)
        if command in (protocol.LAUNCH, protocol.NOTIFY):
            order = protocol.read_order(message)
            assert json.loads(json.dumps(protocol.launch_message(order))) == {
                "cmd": protocol.LAUNCH,
                **message,
            }
        elif command == protocol.EXEC:
            order, inside = protocol.read_inside(message)
            again = json.loads(json.dumps(protocol.exec_message(order, inside)))
            assert again == {"cmd": protocol.EXEC, **message}
        elif command == protocol.SIGNAL:
            assert protocol.read_signals(message) == ((5, 1), 3, (10, 12))
        elif command == protocol.LEND:
            again = protocol.lend_message(protocol.read_lend(message))
            assert json.loads(json.dumps(again)) == {"cmd": protocol.LEND, **message}
        elif command == protocol.MEASURE_GPUS:
            assert protocol.read_command({"cmd": command, **message}).on is True  # type: ignore[union-attr]
        elif command != protocol.LIST:
            assert protocol.read_attempt(message) == (5, 1)
    known = {value for name, value in vars(protocol).items() if _is_command(name, value)}
    assert commands == known, AGAIN


def _is_command(name: str, value: object) -> bool:
    """By how the module writes them: constants that are words."""
    others = (
        "SOCKET_NAME",
        "SECRET_NAME",
        "ALLOWED_NAME",
        "UNIFIED",
        "EVERY_DISK",
        "QUOTA",
        "WEIGHT",
        "PIN",
        "SHARE",
        "NO_PIN",
        "SHARE",
        "NO_SHARE",
        "TOLD",
        "GPUS",
    )
    return name.isupper() and isinstance(value, str) and name not in others


def test_the_reports_are_understood_and_every_kind_is_among_them() -> None:
    reports = lines("reports.jsonl")
    now = Now(at_s=9.5, mono_s=4.5)
    for report in reports:
        decoded = decode_report(report)
        if isinstance(decoded, AttemptReport):
            stimulus = stimulus_for(decoded, now, None)
            assert stimulus.job_id == 5  # type: ignore[union-attr]
            assert isinstance(decoded, ToldReport) or stimulus.attempt == 1  # type: ignore[union-attr]
    tags = {
        each.__struct_config__.tag for each in get_args(StuckReport | ExecReport | AttemptReport)
    }
    known = tags | {"hello", "listed", "gpus", "nodes"}
    assert {report["report"] for report in reports} == known, AGAIN


# -- what clients and the daemon say to each other ------------------------------------------------


@pytest.mark.parametrize("number", range(len(CONVERSATION)))
def test_a_request_is_understood(number: int) -> None:
    line = json.dumps(CONVERSATION[number]["request"]).encode()
    request = messages.decode_request(line)
    assert type(request) is VERBS[CONVERSATION[number]["request"]["op"]]


def test_every_verb_and_every_field_of_it_has_a_golden_request() -> None:
    requests = [each["request"] for each in CONVERSATION]
    said = {
        (op, name) for each in [*requests, EVENTS, SNAPSHOT] for op in [each["op"]] for name in each
    }
    # `drf run` alone: there is nobody to attach to here. Marks are of one journal.
    unsaid = {("submit", "attach"), ("wait", "attended"), ("events", "after")}
    unsaid |= {("submit", "proof"), ("status", "after"), ("usage", "user")}
    # Newer than the goldens.
    unsaid |= {("submit", "if_never"), ("submit", "group"), ("set", "group")}
    unsaid |= {("exec", "proof"), ("submit", "append"), ("submit", "output_max_bytes")}
    unsaid |= {("submit", "again")}
    unsaid |= {("history", "after"), ("set", "name"), ("set", "pool"), ("set", "demand")}
    known = {(op, field) for op, cls in VERBS.items() for field in cls.__struct_fields__}
    assert known - said == unsaid, AGAIN
    assert {op for op, _ in said} == {*VERBS}, AGAIN


def test_todays_daemon_answers_as_it_always_did(make_instance: Callable[..., Instance]) -> None:
    """Every field of every golden reply is there, of the same kind; new ones may come."""
    instance = make_instance(SETTINGS).start()
    requests = [each["request"] for each in CONVERSATION]
    replies = list(converse(instance, requests[:-1]))
    stream = ask(instance, EVENTS)
    (snapshot,) = ask(instance, SNAPSHOT)
    replies += converse(instance, requests[-1:])
    for each, reply in zip(CONVERSATION, replies, strict=True):
        op = each["request"]["op"]
        assert_shape(each["reply"], reply, f"{op}", is_deep=op != "doctor")
    for then, now in zip(lines("events.jsonl"), stream, strict=True):
        assert_shape(then, now, "events")
    assert_shape(lines("snapshot.jsonl")[0], snapshot, "snapshots")


#: Objects in whose place None always was possible.
_MAY_BE_NONE = {"advice", "reason", "outcome"}


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


def test_todays_client_reads_the_replies() -> None:
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
    "ledger": "ledger",
}


@pytest.mark.parametrize("words", SCREENS)
def test_todays_screens_show_the_replies(daemon: CannedDaemon, words: str) -> None:
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
