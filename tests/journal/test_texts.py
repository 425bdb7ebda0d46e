"""Long command lines, environments and scripts: each of a user is stored and counted once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.model import events as ev
from drfd.core.model.job import JobSpec, Notify, Words
from drfd.core.model.stimuli import Actor
from drfd.journal.history import PastFilter, read_ended
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from fakes import ALICE, BOB, apply_and_append, happened, spec, tables

LONG = ["sh", "-c", "x" * 5000, "", "ü"]


def asked(words: list[str], actor: Actor = ALICE) -> JobSpec:
    # As from a request: no object is shared with another's.
    return replace(spec(f"root.{actor.user}", actor=actor), argv=Words.of(words))


class Book:
    """A journal, and the ledger beside it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.ledger = journal.load(Axes())

    def submit(self, job_id: int, asks: JobSpec) -> None:
        self.enter(happened(ev.Submitted, job_id, spec=asks))

    def submit_with(self, job_id: int, payload: Payload, *, actor: Actor = ALICE) -> None:
        self.submit(job_id, spec(f"root.{actor.user}", actor=actor))
        self.journal.put_payload(job_id, payload)

    def cancel(self, *ids: int) -> None:
        for job_id in ids:
            self.enter(happened(ev.Cancelled, job_id))

    def enter(self, event: ev.Event) -> None:
        apply_and_append(self.journal, event, self.ledger)


@pytest.fixture
def book(journal: Journal) -> Book:
    return Book(journal)


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.execute(query))


def test_a_notification_and_an_array_share_it_too(book: Book, path: Path) -> None:
    told = replace(asked(LONG), notify=Notify(("end",), Words.of(LONG)))
    book.submit(1, told)
    book.enter(ev.ArraySubmitted(array_id=2, at_s=1.0, spec=told, spans=((1, 3, 1),), at_once=None))
    book.enter(happened(ev.Admitted, 3))
    book.journal.commit()
    assert rows(path, "select uses from commands") == [(4,)]
    again = Journal(path)
    loaded = again.load(Axes())
    assert tables(loaded) == tables(book.ledger)
    argv = loaded.jobs[1].spec.argv
    task = loaded.jobs[3].spec
    assert task.argv is argv
    assert task.notify is not None
    assert task.notify.argv is argv


def test_how_much_is_kept_of_each_user_is_known_and_known_again(
    book: Book, open_journal: Callable[[], Journal]
) -> None:
    book.submit(1, asked(LONG))
    book.submit(2, asked(LONG))
    book.submit(3, asked([*LONG, "more"]))
    size = len(Words.of(LONG).data)
    kept = {ALICE.uid: 2 * size + len("more") + 1}
    commands = book.journal.commands
    assert commands.live_bytes == kept
    assert commands.bytes_with(ALICE.uid, asked(LONG)) == kept[ALICE.uid]
    assert commands.bytes_with(BOB.uid, asked(LONG, BOB)) == size
    book.journal.commit()
    assert open_journal().commands.live_bytes == kept
    book.enter(happened(ev.Cancelled, 1))
    assert commands.live_bytes == kept
    book.enter(happened(ev.Cancelled, 2))
    left = {ALICE.uid: size + len("more") + 1}
    assert commands.live_bytes == left
    assert commands.bytes_with(ALICE.uid, asked(LONG)) == left[ALICE.uid] + size
    book.journal.commit()
    assert open_journal().commands.live_bytes == left


def test_ended_jobs_are_read_with_it(book: Book, path: Path) -> None:
    book.submit(1, asked(LONG))
    book.enter(happened(ev.Cancelled, 1))
    book.journal.commit()
    (job,) = read_ended(path, PastFilter())
    assert list(job.spec.argv) == LONG
    (job,) = read_ended(path, PastFilter(), commands=False)
    assert list(job.spec.argv) == []


@pytest.mark.parametrize("words", [[], [""], ["", ""], ["a b", "ü", "\n"], ["\U0001f600"]])
def test_words_come_back_as_they_were(words: list[str]) -> None:
    assert (list(Words.of(words)), len(Words.of(words))) == (words, len(words))
    assert Words.of(words) == Words.of(list(words))
    assert hash(Words.of(words)) == hash(Words.of(list(words)))
    assert Words.of(words) != Words.of([*words, ""])


ENV = {"PATH": "/usr/bin", "HOME": "/home/alice"}
PAYLOAD = Payload(env=ENV, script="#!/bin/sh\nexec true\n")
SIZE = len(b'{"PATH":"/usr/bin","HOME":"/home/alice"}') + len(b"#!/bin/sh\nexec true\n")


def kept(path: Path) -> list[tuple[int, int, str]]:
    """What the file holds: whose, how often it is used, the text."""
    with closing(sqlite3.connect(path)) as db:
        query = "select uid, uses, cast(data as text) from texts order by id"
        return list(db.execute(query))


# -- how much a user keeps ---------------------------------------------------------------------


def test_it_is_counted_anew_after_a_rollback_and_a_restart(
    open_journal: Callable[[], Journal],
) -> None:
    book = Book(open_journal())
    book.submit_with(1, PAYLOAD)
    book.journal.commit()
    book.submit_with(2, Payload(script="x" * 1000))
    book.cancel(1)
    assert book.journal.payloads.bytes_with(ALICE.uid, Payload()) == 1000
    book.journal.rollback()
    assert book.journal.payloads.bytes_with(ALICE.uid, Payload()) == SIZE
    assert open_journal().payloads.bytes_with(ALICE.uid, Payload()) == SIZE
