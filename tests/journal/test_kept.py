"""What the journal keeps for live jobs: counted as it comes, and anew from the file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.model import events as ev
from drfd.core.model.job import Words
from drfd.core.model.stimuli import Actor, Kept
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from fakes import ALICE, BOB, apply_and_append, happened, now, spec


class Book:
    """A journal, and the ledger beside it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.ledger = journal.load(Axes())

    def submit(self, job_id: int, *, actor: Actor = ALICE) -> None:
        asked = spec(f"root.{actor.user}", actor=actor)
        self.enter(happened(ev.Submitted, job_id, spec=asked))

    def enter(self, *events: ev.Event) -> None:
        for event in events:
            apply_and_append(self.journal, event, self.ledger)


@pytest.fixture
def book(journal: Journal) -> Book:
    return Book(journal)


def in_file(path: Path, *ids: int) -> int:
    """What the events of these jobs or arrays take."""
    with closing(sqlite3.connect(path)) as db:
        rows = list(db.execute("select job_id, length(data) from events"))
    return sum(size for job_id, size in rows if job_id in ids)


def test_each_event_of_a_users_jobs_counts(book: Book, path: Path) -> None:
    """Nobody counted them: one waiting job and a loop of `drf set` filled the disk."""
    book.submit(1)
    book.submit(2, actor=BOB)
    book.enter(
        happened(ev.Held, 1, by="alice"),
        happened(ev.Released, 1, by="alice"),
        happened(ev.Held, 2, by="bob"),
    )
    book.journal.commit()
    assert book.journal.kept(ALICE.uid) == Kept(in_file(path, 1), in_file(path, 1, 2))
    assert book.journal.kept(BOB.uid) == Kept(in_file(path, 2), in_file(path, 1, 2))
    assert in_file(path, 1) > 100


def test_a_job_that_is_over_does_not_count(book: Book) -> None:
    for job_id in (1, 2):
        book.submit(job_id)
        book.enter(happened(ev.Held, job_id, by="alice"))
    book.enter(happened(ev.Cancelled, 1))
    one = book.journal.kept(ALICE.uid).own_bytes
    book.enter(happened(ev.Cancelled, 2))
    assert one > 0
    assert book.journal.kept(ALICE.uid) == Kept()


def test_an_array_counts_until_its_last_task_is_over(book: Book) -> None:
    array = ev.ArraySubmitted(
        array_id=1, at_s=now().at_s, spec=spec(), spans=((0, 1, 1),), at_once=None
    )
    book.enter(array, happened(ev.Held, 1, by="alice"))
    whole = book.journal.kept(ALICE.uid).own_bytes
    assert whole > 100
    book.enter(happened(ev.Cancelled, 2))
    assert book.journal.kept(ALICE.uid).own_bytes == whole
    book.enter(happened(ev.Cancelled, 3))
    assert book.journal.kept(ALICE.uid) == Kept()


def test_the_next_daemon_counts_the_same(book: Book, path: Path) -> None:
    book.submit(1)
    array = ev.ArraySubmitted(
        array_id=2, at_s=now().at_s, spec=spec(), spans=((0, 3, 1),), at_once=None
    )
    book.enter(happened(ev.Held, 1, by="alice"), array)
    book.enter(happened(ev.Held, 2, by="alice"), happened(ev.Held, 4, by="alice"))
    book.submit(7, actor=BOB)
    book.enter(happened(ev.Held, 7, by="bob"), happened(ev.Cancelled, 7))
    book.journal.commit()
    kept = book.journal.kept(ALICE.uid)
    book.journal.close()
    again = Journal(path)
    try:
        assert again.kept(ALICE.uid) == kept
        assert again.kept(BOB.uid) == Kept(0, kept.all_bytes)
    finally:
        again.close()


def test_what_is_taken_back_is_not_counted(book: Book) -> None:
    book.submit(1)
    book.enter(happened(ev.Held, 1, by="alice"))
    book.journal.commit()
    kept = book.journal.kept(ALICE.uid)
    book.enter(happened(ev.Released, 1, by="alice"))
    assert book.journal.kept(ALICE.uid) != kept
    book.journal.rollback()
    assert book.journal.kept(ALICE.uid) == kept


def test_texts_of_the_same_user_are_in_the_sum_once(book: Book) -> None:
    payload = Payload(env={"A": "x" * 1000})
    with_it = book.journal.kept(ALICE.uid, None, payload)
    assert with_it.own_bytes == with_it.all_bytes > 1000
    book.submit(1)
    events = book.journal.kept(ALICE.uid).own_bytes
    book.journal.put_payload(1, payload)
    size = with_it.own_bytes
    assert book.journal.kept(ALICE.uid, None, payload) == Kept(size + events, size + events)
    assert book.journal.kept(BOB.uid, None, payload) == Kept(size, 2 * size + events)


def test_a_new_long_command_line_is_in_the_sum_and_one_that_is_there_is_not(book: Book) -> None:
    """Each of 100,000 arguments counted as much as it had letters, an empty one nothing."""
    some = replace(spec(), argv=Words.of([""] * 1000))
    assert book.journal.kept(ALICE.uid, some) == Kept(1000, 1000)
    book.enter(happened(ev.Submitted, 1, spec=some))
    assert book.journal.kept(ALICE.uid, some) == book.journal.kept(ALICE.uid)
    assert book.journal.kept(BOB.uid, some).own_bytes == 1000
