"""Texts of jobs that are not over: each of a user once, counted, and gone with its last job."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from drfd.core import events as ev
from drfd.core.resources import Axes
from drfd.core.stimuli import Actor
from drfd.journal import records
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from fakes import ALICE, BOB, happened, now, spec

ENV = {"PATH": "/usr/bin", "HOME": "/home/alice"}
PAYLOAD = Payload(env=ENV, script="#!/bin/sh\nexec true\n")
SIZE = len(b'{"PATH":"/usr/bin","HOME":"/home/alice"}') + len(b"#!/bin/sh\nexec true\n")


class Book:
    """A journal, and the ledger beside it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.ledger = journal.load(Axes())

    def submit(self, job_id: int, payload: Payload, *, actor: Actor = ALICE) -> None:
        asked = spec(f"root.{actor.user}", actor=actor)
        self.enter(happened(ev.Submitted, job_id, spec=asked))
        self.journal.put_payload(job_id, payload)

    def enter(self, event: ev.Event) -> None:
        self.journal.enter(event, self.ledger)

    def cancel(self, *ids: int) -> None:
        for job_id in ids:
            self.enter(happened(ev.Cancelled, job_id))


@pytest.fixture
def book(journal: Journal) -> Book:
    return Book(journal)


def kept(path: Path) -> list[tuple[int, int, str]]:
    """What the file holds: whose, how often it is used, the text."""
    with closing(sqlite3.connect(path)) as db:
        query = "select uid, uses, cast(data as text) from texts order by id"
        return list(db.execute(query))


def test_jobs_with_one_environment_keep_it_once(book: Book, path: Path) -> None:
    for job_id in (1, 2, 3):
        book.submit(job_id, Payload(env=ENV, script=f"#!/bin/sh\necho {job_id % 2}\n"))
    book.journal.commit()
    assert kept(path) == [
        (ALICE.uid, 3, '{"PATH":"/usr/bin","HOME":"/home/alice"}'),
        (ALICE.uid, 2, "#!/bin/sh\necho 1\n"),
        (ALICE.uid, 1, "#!/bin/sh\necho 0\n"),
    ]
    for job_id in (1, 2, 3):
        script = f"#!/bin/sh\necho {job_id % 2}\n"
        assert book.journal.payload(job_id) == Payload(env=ENV, script=script)


def test_users_share_nothing(book: Book, path: Path) -> None:
    book.submit(1, PAYLOAD)
    book.submit(2, PAYLOAD, actor=BOB)
    book.journal.commit()
    assert [(uid, uses) for uid, uses, _ in kept(path)] == [
        (ALICE.uid, 1), (ALICE.uid, 1), (BOB.uid, 1), (BOB.uid, 1),
    ]  # fmt: skip
    book.cancel(1)
    assert book.journal.payload(2) == PAYLOAD


def test_a_text_goes_with_the_last_job_that_has_it(book: Book, path: Path) -> None:
    for job_id in (1, 2):
        book.submit(job_id, PAYLOAD)
    book.cancel(1)
    assert book.journal.payload(2) == PAYLOAD
    book.cancel(2)
    book.journal.commit()
    assert kept(path) == []
    assert book.journal.payload(2) == Payload()


def test_an_array_has_them_once_and_until_its_last_task_has_ended(book: Book, path: Path) -> None:
    book.enter(
        ev.ArraySubmitted(
            array_id=1, at_s=now().at_s, spec=spec(), spans=((0, 1, 1),), at_once=None
        )
    )
    book.journal.put_payload(1, PAYLOAD)
    book.cancel(2)
    assert book.journal.payload(1) == PAYLOAD
    book.cancel(3)
    book.journal.commit()
    assert (book.journal.payload(1), kept(path)) == (Payload(), [])


@pytest.mark.parametrize(
    "payload",
    [Payload(), Payload(env=ENV), Payload(script="#!/bin/sh\nü\n"), Payload(script=""), PAYLOAD],
    ids=["nothing", "environment", "script", "empty script", "both"],
)
def test_what_was_put_is_read_again(open_journal: Callable[[], Journal], payload: Payload) -> None:
    book = Book(open_journal())
    book.submit(1, payload)
    book.journal.commit()
    assert (book.journal.payload(1), open_journal().payload(1)) == (payload, payload)


# -- how much a user keeps ---------------------------------------------------------------------


def test_what_is_there_already_adds_nothing(book: Book) -> None:
    payloads = book.journal.payloads
    assert payloads.bytes_with(ALICE.uid, PAYLOAD) == SIZE
    book.submit(1, PAYLOAD)
    assert payloads.bytes_with(ALICE.uid, PAYLOAD) == SIZE
    assert payloads.bytes_with(ALICE.uid, Payload(env=ENV, script="12345")) == SIZE + 5
    assert payloads.bytes_with(BOB.uid, Payload()) == 0
    book.cancel(1)
    assert payloads.bytes_with(ALICE.uid, Payload()) == 0


def test_it_is_counted_anew_after_a_rollback_and_a_restart(
    open_journal: Callable[[], Journal],
) -> None:
    book = Book(open_journal())
    book.submit(1, PAYLOAD)
    book.journal.commit()
    book.submit(2, Payload(script="x" * 1000))
    book.cancel(1)
    assert book.journal.payloads.bytes_with(ALICE.uid, Payload()) == 1000
    book.journal.rollback()
    assert book.journal.payloads.bytes_with(ALICE.uid, Payload()) == SIZE
    assert open_journal().payloads.bytes_with(ALICE.uid, Payload()) == SIZE


def test_a_payload_that_an_older_version_wrote_is_read_and_forgotten(
    book: Book, path: Path
) -> None:
    book.enter(happened(ev.Submitted, 1))
    book.journal.commit()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("insert into payloads values (1, ?)", (records.encode(PAYLOAD),))
    assert book.journal.payload(1) == PAYLOAD
    book.cancel(1)
    book.journal.commit()
    assert book.journal.payload(1) == Payload()
