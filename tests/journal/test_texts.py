"""Long command lines, environments and scripts: each of a user is stored and counted once."""

from __future__ import annotations

import sqlite3
import tracemalloc
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
from drfd.journal.texts import INLINE_BYTES
from fakes import ALICE, BOB, apply_and_append, happened, now, spec, tables

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


def test_the_same_command_line_of_one_user_stands_once_on_the_disk_and_in_memory(
    book: Book, path: Path
) -> None:
    """It stood in each event and each record, and was an object of its own for each job."""
    for job_id in (1, 2, 3):
        book.submit(job_id, asked(LONG))
    book.submit(4, asked(LONG, BOB))
    book.journal.commit()
    size = len(Words.of(LONG).data)
    assert rows(path, "select uid, uses, bytes from commands order by id") == [
        (ALICE.uid, 3, size),
        (BOB.uid, 1, size),
    ]
    jobs = book.ledger.jobs
    assert jobs[1].spec.argv is jobs[3].spec.argv
    assert list(jobs[4].spec.argv) == LONG
    for table in ("jobs", "events"):
        assert rows(path, f"select max(length(data)) < 1500 from {table}") == [(1,)]
    again = Journal(path).load(Axes())
    assert again.jobs[1].spec.argv is again.jobs[3].spec.argv
    assert tables(again) == tables(book.ledger)


def test_events_of_a_job_with_a_long_command_line_are_short(book: Book, path: Path) -> None:
    """A change of its priority wrote half a megabyte, twice."""
    book.submit(1, asked(["x" * 100_000] * 5))
    book.journal.commit()
    for number in range(100):
        book.enter(happened(ev.Altered, 1, priority=number))
    book.journal.commit()
    ((size,),) = rows(path, "select sum(length(data)) from events")
    assert isinstance(size, int)
    assert size < 100 * 150 + 1500
    assert rows(path, "select length(data) < 1500 from jobs") == [(1,)]


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


def test_a_short_one_stands_where_it_did(book: Book, path: Path) -> None:
    book.submit(1, asked(["x" * (INLINE_BYTES - 1)]))
    book.submit(2, asked(["x" * INLINE_BYTES]))
    book.journal.commit()
    query = "select typeof(json_extract(cast(data as text), '$.spec.argv')) from jobs order by id"
    assert rows(path, query) == [("text",), ("integer",)]


def test_what_a_failed_turn_stored_is_forgotten(book: Book) -> None:
    """Its number may be another's by then."""
    book.submit(1, asked(LONG))
    first = book.ledger.jobs[1].spec.argv
    book.journal.rollback()
    book.ledger = book.journal.load(Axes())
    assert book.journal.commands.live_bytes == {}
    book.submit(1, asked(["y" * 5000]))
    book.submit(2, asked(LONG))
    book.journal.commit()
    again = book.journal.load(Axes())
    assert (again.jobs[2].spec.argv, list(again.jobs[1].spec.argv)) == (first, ["y" * 5000])


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


def test_counting_the_jobs_of_a_command_line_does_not_write_it_again(
    book: Book, path: Path
) -> None:
    """A loop of submissions of the same half megabyte would fill the disk all the same."""
    log = path.with_name(f"{path.name}-wal")
    words = ["x" * 100_000] * 5
    book.submit(1, asked(words))
    book.journal.commit()
    before = log.stat().st_size
    for job_id in range(2, 22):
        book.submit(job_id, asked(words))
        book.journal.commit()
        book.enter(happened(ev.Cancelled, job_id))
        book.journal.commit()
    assert log.stat().st_size - before < 40 * 60_000


def test_ended_jobs_are_read_with_it(book: Book, path: Path) -> None:
    book.submit(1, asked(LONG))
    book.enter(happened(ev.Cancelled, 1))
    book.journal.commit()
    (job,) = read_ended(path, PastFilter())
    assert list(job.spec.argv) == LONG
    (job,) = read_ended(path, PastFilter(), commands=False)
    assert list(job.spec.argv) == []


def test_many_arguments_cost_their_letters_and_one_byte_each() -> None:
    """A hundred thousand of one letter cost seven megabytes."""
    words = ["a"] * 100_000
    tracemalloc.start()
    kept = Words.of(words)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 3 * 200_000
    assert (len(kept), list(kept) == words) == (100_000, True)


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


def test_jobs_with_one_environment_keep_it_once(book: Book, path: Path) -> None:
    for job_id in (1, 2, 3):
        book.submit_with(job_id, Payload(env=ENV, script=f"#!/bin/sh\necho {job_id % 2}\n"))
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
    book.submit_with(1, PAYLOAD)
    book.submit_with(2, PAYLOAD, actor=BOB)
    book.journal.commit()
    assert [(uid, uses) for uid, uses, _ in kept(path)] == [
        (ALICE.uid, 1), (ALICE.uid, 1), (BOB.uid, 1), (BOB.uid, 1),
    ]  # fmt: skip
    book.cancel(1)
    assert book.journal.payload(2) == PAYLOAD


def test_a_text_goes_with_the_last_job_that_has_it(book: Book, path: Path) -> None:
    for job_id in (1, 2):
        book.submit_with(job_id, PAYLOAD)
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
    book.submit_with(1, payload)
    book.journal.commit()
    assert (book.journal.payload(1), open_journal().payload(1)) == (payload, payload)


# -- how much a user keeps ---------------------------------------------------------------------


def test_what_is_there_already_adds_nothing(book: Book) -> None:
    payloads = book.journal.payloads
    assert payloads.bytes_with(ALICE.uid, PAYLOAD) == SIZE
    book.submit_with(1, PAYLOAD)
    assert payloads.bytes_with(ALICE.uid, PAYLOAD) == SIZE
    assert payloads.bytes_with(ALICE.uid, Payload(env=ENV, script="12345")) == SIZE + 5
    assert payloads.bytes_with(BOB.uid, Payload()) == 0
    book.cancel(1)
    assert payloads.bytes_with(ALICE.uid, Payload()) == 0


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


def test_a_text_whose_number_was_given_to_another_one_is_stored_anew(book: Book) -> None:
    book.submit_with(1, Payload(script="first"))
    book.cancel(1)
    book.submit_with(2, Payload(script="other"))
    book.submit_with(3, Payload(script="first"))
    book.journal.commit()
    assert book.journal.payload(2).script == "other"
    assert book.journal.payload(3).script == "first"


def test_a_text_of_a_turn_that_was_taken_back_is_stored_anew(book: Book) -> None:
    book.submit_with(1, Payload(script="first"))
    book.journal.rollback()
    book.submit_with(2, Payload(script="other"))
    book.submit_with(3, Payload(script="first"))
    book.journal.commit()
    assert book.journal.payload(2).script == "other"
    assert book.journal.payload(3).script == "first"
