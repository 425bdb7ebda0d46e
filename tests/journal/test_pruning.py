"""Bounds on the journal: the events of one job, and the removal of old jobs step by step."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import Words
from drfd.core.model.stimuli import Actor
from drfd.core.usage import Curve
from drfd.journal import pruning
from drfd.journal.journal import Journal
from drfd.journal.pruning import MOST, read_shares
from drfd.journal.records import Payload
from fakes import ALICE, BOB, apply_and_append, happened, spec, tables

LONG = Words.of(["x" * 5000])
CURVE = Curve(
    attempt=1, start_ms=1, ends_ms=(0, 1), spans_ms=(0, 1), cores_milli=(None, 1),
    memory_kib=(1, 1), read_kib_s=(None, 0),
)  # fmt: skip


class Book:
    """A journal, and the ledger beside it; the clock is set by hand."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.ledger = journal.load(Axes())

    def enter(self, event: ev.Event, at_s: float) -> None:
        apply_and_append(self.journal, replace(event, at_s=at_s), self.ledger)

    def live_and_end(
        self, job_id: int, at_s: float, *, actor: Actor = ALICE, argv: Words = LONG
    ) -> None:
        asked = replace(spec(f"root.{actor.user}", actor=actor), argv=argv)
        self.enter(happened(ev.Submitted, job_id, spec=asked), at_s)
        self.journal.put_payload(job_id, Payload(env={"A": "b"}))
        self.journal.put_submission(actor.uid, f"key-{job_id}", job_id)
        self.journal.put_curve(job_id, CURVE)
        self.enter(happened(ev.Cancelled, job_id), at_s)
        self.journal.commit()

    def prune(self, before_s: float, user: str | None = None) -> int:
        """All that can be removed; in how many goes."""
        goes = 0
        while self.journal.remove_ended(before_s, user) is not None:
            goes += 1
            assert goes < 10_000
        return goes


@pytest.fixture
def book(journal: Journal) -> Book:
    return Book(journal)


def count(path: Path, what: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute(f"select count(*) from {what}").fetchone()[0])


def test_ids_and_marks_never_go_back(book: Book, open_journal: Callable[[], Journal]) -> None:
    """The newest job stays, and so does the one with the last event."""
    for job_id in (1, 2, 3, 4):
        book.live_and_end(job_id, at_s=float(job_id))
    book.enter(happened(ev.Submitted, 5, spec=spec()), 5.0)
    book.enter(happened(ev.Submitted, 6, spec=spec()), 6.0)
    book.enter(happened(ev.Cancelled, 6), 7.0)
    book.enter(happened(ev.Cancelled, 5), 8.0)
    book.journal.commit()
    mark, next_id = book.journal.mark(), book.ledger.next_id
    book.prune(before_s=1e12)
    assert [each for each in range(1, 7) if book.journal.job(each)] == [5, 6]
    again = open_journal()
    assert (again.mark(), again.load(Axes()).next_id) == (mark, next_id)
    book.enter(happened(ev.Submitted, 7, spec=spec()), 9.0)
    book.journal.commit()
    book.prune(before_s=1e12)
    assert book.journal.mark() == mark + 1
    assert [each for each in range(1, 8) if book.journal.job(each)] == [7]


def test_what_lives_stays_whatever_its_age(book: Book, path: Path) -> None:
    book.enter(happened(ev.Submitted, 1, spec=spec()), 1.0)
    book.live_and_end(2, at_s=2.0)
    book.live_and_end(3, at_s=3.0)
    book.prune(before_s=1e12)
    assert tables(book.journal.load(Axes())) == tables(book.ledger)
    assert count(path, "events where job_id = 1") == 1


def test_an_array_goes_as_a_whole_when_its_last_task_is_old_enough(book: Book, path: Path) -> None:
    """Without its array, a task that has no record would be nobody; without the records of its
    tasks, an array would take them for such."""
    asked = replace(spec(), argv=LONG)
    book.enter(
        ev.ArraySubmitted(array_id=1, at_s=1.0, spec=asked, spans=((1, 4, 1),), at_once=None), 1.0
    )
    book.journal.put_payload(1, Payload(env={"A": "b"}))
    for job_id in (2, 3):
        book.enter(happened(ev.Cancelled, job_id), float(job_id))
    book.live_and_end(6, at_s=3.5)
    book.live_and_end(7, at_s=3.6)
    book.journal.commit()
    book.prune(before_s=10.0)
    assert (count(path, "arrays"), count(path, "jobs")) == (1, 3)
    assert tables(book.journal.load(Axes())) == tables(book.ledger)
    book.enter(happened(ev.Cancelled, 1), 20.0)
    book.live_and_end(8, at_s=21.0)
    book.prune(before_s=15.0)
    assert (count(path, "arrays"), count(path, "jobs")) == (1, 3)
    book.prune(before_s=20.5)
    assert (count(path, "arrays"), count(path, "jobs")) == (0, 1)
    assert count(path, "events where job_id <= 7") == 0
    assert count(path, "commands where uses = 1") == 1


def test_one_go_is_short_however_much_there_is(book: Book) -> None:
    """Others wait meanwhile."""
    book.enter(happened(ev.Submitted, 1, spec=spec()), 1.0)
    for number in range(700):
        book.enter(happened(ev.Altered, 1, priority=number), 1.0)
    book.enter(happened(ev.Cancelled, 1), 1.0)
    for job_id in range(2, 200):
        book.live_and_end(job_id, at_s=2.0)
    changes = book.journal._db.total_changes
    goes = 0
    while book.journal.remove_ended(1e12) is not None:
        # Each job has four more rows besides its events.
        assert book.journal._db.total_changes - changes < 4 * pruning._ROWS
        changes = book.journal._db.total_changes
        goes += 1
    assert goes >= 10
    assert book.journal.job(1) is None
    assert book.journal.job(199) is not None


def test_a_go_is_short_also_where_all_must_be_passed_over(book: Book, path: Path) -> None:
    """All ended tasks of an array that goes on were looked at in one go, hundreds of thousands, and
    nobody else was served meanwhile."""
    submitted = ev.ArraySubmitted(
        array_id=1, at_s=1.0, spec=spec("root.bob", actor=BOB), spans=((0, 1999, 1),), at_once=None
    )
    book.enter(submitted, 1.0)
    for job_id in range(2, 2001):
        book.enter(happened(ev.Cancelled, job_id, by="bob"), 2.0)
    for job_id in (2002, 2003):
        book.live_and_end(job_id, at_s=3.0, actor=BOB)
    goes = []
    while (removed := book.journal.remove_ended(1e12, "bob")) is not None:
        goes.append(removed)
        assert len(goes) < 100
    # The first ones only pass over.
    assert goes[:3] == [0] * 3
    assert sum(goes) > 0
    assert count(path, "jobs where id > 2001") == 1
    assert count(path, "jobs where id <= 2001") == 1999


def test_ended_tasks_that_must_stay_are_counted(
    book: Book, open_journal: Callable[[], Journal]
) -> None:
    asked = spec("root.bob", actor=BOB)
    for array_id in (1, 11):
        submitted = ev.ArraySubmitted(
            array_id=array_id, at_s=1.0, spec=asked, spans=((0, 8, 1),), at_once=None
        )
        book.enter(submitted, 1.0)
        for job_id in range(array_id + 1, array_id + 9):
            book.enter(happened(ev.Cancelled, job_id, by="bob"), 2.0)
    book.journal.commit()
    both = book.journal.finished_bytes(BOB.uid)
    assert both > 16 * 500
    assert book.journal.finished_bytes(ALICE.uid) == 0
    # As one that opens it counts them.
    book.enter(happened(ev.Cancelled, 1, by="bob"), 3.0)
    book.journal.rollback()
    assert book.journal.finished_bytes(BOB.uid) == both
    again = Book(open_journal())
    assert again.journal.finished_bytes(BOB.uid) == both
    again.enter(happened(ev.Cancelled, 1, by="bob"), 3.0)
    assert again.journal.finished_bytes(BOB.uid) == pytest.approx(both / 2, rel=0.1)
    # The last task on its own.
    again.enter(happened(ev.Cancelled, 20, by="bob"), 3.0)
    assert again.journal.finished_bytes(BOB.uid) == 0


def test_of_one_user_when_there_is_too_much(book: Book, path: Path) -> None:
    for job_id in range(1, 40):
        book.live_and_end(job_id, at_s=float(job_id), actor=BOB if job_id % 10 == 0 else ALICE)
    shares = read_shares(path).ended
    assert shares["alice"] > 5 * shares["bob"] > 5000
    book.prune(1e12, "alice")
    assert set(read_shares(path).ended) == {"alice", "bob"}
    assert [each for each in range(1, 40) if book.journal.job(each)] == [10, 20, 30, 39]


def test_the_file_gets_shorter(book: Book, path: Path) -> None:
    """By what was removed, while the journal is in use."""
    for job_id in range(1, 400):
        book.live_and_end(job_id, at_s=float(job_id), argv=Words.of([f"{job_id} " * 5000]))
    book.journal._db.execute("pragma wal_checkpoint(truncate)").fetchone()
    before, used = path.stat().st_size, book.journal.used_bytes()
    assert before > 8 << 20
    book.prune(before_s=1e12)
    assert book.journal.used_bytes() < used / 4
    for _ in range(1000):
        if not book.journal.give_back():
            break
    log = path.with_name(f"{path.name}-wal")
    assert path.stat().st_size + log.stat().st_size < before / 3


def test_of_what_belongs_to_no_job_the_newest_of_each_kind_stays(book: Book, path: Path) -> None:
    for number in range(5):
        book.enter(ev.Drained(at_s=0.0, on=number % 2 == 0, by="root"), 100.0 * number)
        book.journal.append_audit(ev.DaemonStopped(at_s=100.0 * number))
    book.live_and_end(1, at_s=900.0)
    book.prune(before_s=350.0)
    with closing(sqlite3.connect(path)) as db:
        query = "select kind, at_s from events where job_id is null order by kind, seq"
        assert list(db.execute(query)) == [
            ("DaemonStopped", 300.0),
            ("DaemonStopped", 400.0),
            ("Drained", 300.0),
            ("Drained", 400.0),
        ]
    assert book.journal.load(Axes()).draining


def test_a_failed_go_takes_nothing_away(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    for job_id in (1, 2, 3):
        book.live_and_end(job_id, at_s=float(job_id))

    def fail(*_: object) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(book.journal.commands, "release", fail)
        with pytest.raises(Exception, match="cannot write the journal"):
            book.prune(before_s=10.0)
    assert book.journal.job(1) is not None
    assert len(list(book.journal.events())) == 6
    book.prune(before_s=2.5)
    assert book.journal.job(1) is None


def test_what_has_happened_to_its_attempts_stays_while_there_is_else_to_give_up(
    journal: Journal,
) -> None:
    ledger = Ledger(Axes())
    apply_and_append(journal, happened(ev.Submitted, 1, spec=spec()), ledger)
    for number in range(MOST):
        apply_and_append(journal, happened(ev.Altered, 1, priority=number), ledger)
        if number == 500:
            apply_and_append(journal, happened(ev.Admitted, 1), ledger)
            apply_and_append(journal, happened(ev.Launched, 1), ledger)
    for _ in range(3 * MOST):
        apply_and_append(journal, happened(ev.SignalRequested, 1), ledger)
    journal.commit()
    kinds = Counter(type(event) for event in journal.events(1))
    assert (kinds[ev.Submitted], kinds[ev.Admitted], kinds[ev.Launched]) == (1, 1, 1)
    assert kinds.total() <= MOST


def test_marks_go_on_over_what_was_given_up(journal: Journal) -> None:
    """A stream of changes goes on from its mark, whatever is between."""
    ledger = Ledger(Axes())
    apply_and_append(journal, happened(ev.Submitted, 1, spec=spec()), ledger)
    marks = []
    for number in range(MOST + 200):
        apply_and_append(journal, happened(ev.Altered, 1, priority=number), ledger)
        marks.append(journal.mark())
    assert marks == list(range(2, MOST + 202))
