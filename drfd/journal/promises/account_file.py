"""The file with the hours of the account of promises, beside the journal.

It is written by one process at a time, which reads the journal and never writes it. All of a step
is one transaction: the hours that closed, the digests of the events, and what stands after the last
of them. A process that is killed loses the step that it was at, and the next one repeats it.

The text of each hour is chained to the one before (SHA-256), and contains a chain of the journal's
rows; so a chain that was noted at some time vouches for all before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from drfd.common.errors import HostError, printable
from drfd.core.fairness.rules import Rules, read_rules
from drfd.core.model import events as ev
from drfd.core.model.resources import NOTHING
from drfd.core.promises import Standing
from drfd.journal import records
from drfd.journal.arrays import Arrays
from drfd.journal.database import Database, open_snapshot
from drfd.journal.promises.book import Book, EventRow, Hour
from drfd.journal.records import without_words

NAME = "promises.sqlite"
#: `PRAGMA user_version` of the tables, which changes with the meaning of an hour's text, too.
VERSION = 1
#: Events of one step, and marks that one sweep looks at.
EVENTS, _SWEPT = 20_000, 20_000
#: Bytes of a mark.
MARK_BYTES = 8
#: Bytes that the states at the end of days may take; the oldest go first.
_KEPT_BYTES = 64 << 20
_DAY_MS = 86_400_000
#: Hours with a later end do not keep older ones from being removed: the clock was wrong then.
_AHEAD_MS = _DAY_MS

_TABLES = """
    create table if not exists facts (
        name  text primary key,
        value text not null
    ) strict, without rowid;
    -- `data` is the hour's text, compressed; `previous` the chain before it, `chain` the one after.
    create table if not exists hours (
        number    integer primary key,
        begin_ms  integer not null,
        end_ms    integer not null,
        first_seq integer not null,
        last_seq  integer not null,
        data      blob    not null,
        previous  blob    not null,
        chain     blob    not null
    ) strict;
    -- What stood after an event, compressed: after the last one, and with `kept` at the ends of
    -- days and wherever the account was begun anew from the journal's jobs.
    create table if not exists states (
        seq  integer not null,
        kept integer not null,
        data blob    not null,
        primary key (kept, seq)
    ) strict, without rowid;
    -- The first bytes of the digest of each event.
    create table if not exists marks (
        seq    integer primary key,
        job_id integer,
        mark   blob    not null
    ) strict;
"""

_decode_hour = msgspec.json.Decoder(Hour).decode


class StoredHour(NamedTuple):
    number: int
    #: As the table has them, beside the text: begin, end, first and last event.
    columns: tuple[int, int, int, int]
    text: bytes
    previous: bytes
    chain: bytes

    def hour(self) -> Hour:
        return _decode_hour(self.text)


def first_chain(journal_id: str) -> bytes:
    """Return the chain before the first hour."""
    return hashlib.sha256(journal_id.encode()).digest()


def next_chain(previous: bytes, text: bytes) -> bytes:
    return hashlib.sha256(previous + text).digest()


class AccountFile:
    """The account of a journal's promises. Methods raise HostError."""

    def __init__(self, journal: Path) -> None:
        """Open or create the file that belongs to the journal."""
        self.journal = journal
        self.path = journal.with_name(NAME)
        self._rules: dict[str, Rules] = {}
        with self._reported():
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = Database.open(self.path)
            version = self._db.execute("pragma user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise ValueError(f"it has the version {version}, and this drfd reads {VERSION}")
            self._db.execute("pragma journal_mode = wal")
            if version != VERSION:
                # With `begin` alone, another process that writes meanwhile would be an error.
                script = f"begin immediate; {_TABLES} pragma user_version = {VERSION}; commit;"
                self._db.executescript(script)

    def __enter__(self) -> AccountFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._db.close()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, zlib.error) as error:
            raise HostError(
                "promises",
                f"cannot use the account of promises {self.path}: {printable(str(error))}",
                hint="it can be moved away: it is then computed anew from the events that the "
                "journal still has",
            ) from error

    # -- catching up --------------------------------------------------------------------------

    def catch_up(self, *, forget_before_ms: int | None = None, now_ms: int = 0) -> Book:
        """Take all events that the journal has, and return the book after the last one.

        Hours that ended before `forget_before_ms` are removed, the oldest first; `now_ms` is the
        present time, by which hours of a wrong clock are known.
        """
        book = self._book()
        while True:
            previous_seq = book.last_seq
            with open_snapshot(self.journal) as db:
                keeps, marks = self._take(db, book)
                is_last = len(marks) < EVENTS
                if is_last and book.is_doubtful:
                    at_ms = _last_ms(db)
                    book.stand(_standing(db), at_ms)
                    keeps.append((book.last_seq, book.state()))
            if marks or keeps:
                self._store(book, previous_seq, keeps, marks)
            if is_last:
                break
        self._forget(forget_before_ms, now_ms)
        return book

    def rules_of(self, digest: str) -> Rules:
        """Return the rules with this digest."""
        if digest not in self._rules:
            with open_snapshot(self.journal) as db:
                query = "select text from rules_in_force where digest = ?"
                row = db.execute(query, (digest,)).fetchone()
                if row is None or hashlib.sha256(row[0].encode()).hexdigest() != digest:
                    fault = "no text" if row is None else "another text"
                    raise ValueError(f"it has {fault} of the rules {digest}, which were in force")
                self._rules[digest] = read_rules(row[0])
        return self._rules[digest]

    def _book(self) -> Book:
        """Return the book as it was left, or a new one."""
        with self._reported():
            row = self._db.execute("select data from states where kept = 0").fetchone()
            known = self._fact("journal")
        with open_snapshot(self.journal) as db:
            (journal_id,) = db.execute("select value from facts where name = 'id'").fetchone()
            count, last = db.execute("select count(*), ifnull(max(seq), 0) from events").fetchone()
            if row is None:
                book = Book(self.rules_of, seq=0 if count == last else last)
                if count != last:
                    # Some of the past is gone.
                    book.stand(_standing(db), _last_ms(db))
        if row is not None:
            with self._reported():
                book = Book.of_state(zlib.decompress(row[0]), self.rules_of)
                if known != journal_id:
                    raise ValueError("it belongs to another journal")
                if last < book.last_seq:
                    raise ValueError(
                        f"it knows the events to {book.last_seq}, and the journal has {last}: "
                        "was the journal restored from a copy?"
                    )
            return book
        with self._reported():
            self._db.execute("begin immediate")
            query = "insert or replace into facts values ('journal', ?)"
            self._db.execute(query, (journal_id,))
            self._put_state(book.last_seq, book.state(), kept=True)
            self._put_state(book.last_seq, book.state(), kept=False)
            self._db.execute("commit")
        return book

    def _take(
        self, db: Database, book: Book
    ) -> tuple[list[tuple[int, bytes]], list[tuple[int, int | None, bytes]]]:
        """Take some events; return the states at the ends of days, and the marks of the events."""
        query = (
            "select seq, at_s, job_id, kind, data from events where seq > ? order by seq limit ?"
        )
        keeps, marks = [], []
        looked_at = len(book.closed)
        for values in db.execute(query, (book.last_seq, EVENTS)):
            row = EventRow(*values)
            digest = row.digest()
            book.take(row, digest)
            marks.append((row.seq, row.job_id, digest[:MARK_BYTES]))
            closed, looked_at = book.closed[looked_at:], len(book.closed)
            if any(hour.begin_ms // _DAY_MS != hour.end_ms // _DAY_MS for hour in closed):
                keeps.append((row.seq, book.state()))
        return keeps, marks

    def _store(
        self,
        book: Book,
        previous_seq: int,
        keeps: list[tuple[int, bytes]],
        marks: list[tuple[int, int | None, bytes]],
    ) -> None:
        hours, book.closed = book.closed, []
        with self._reported():
            self._db.execute("begin immediate")
            try:
                query = "select seq from states where kept = 0"
                if self._db.execute(query).fetchone() != (previous_seq,):
                    raise ValueError("another process writes it")
                chain = self._head()
                for hour in hours:
                    text = hour.text()
                    previous, chain = chain, next_chain(chain, text)
                    self._db.execute(
                        "insert into hours values (?, ?, ?, ?, ?, ?, ?, ?)",
                        (
                            *(hour.number, hour.begin_ms, hour.end_ms),
                            *(hour.first_seq, hour.last_seq),
                            *(zlib.compress(text), previous, chain),
                        ),
                    )
                self._db.executemany("insert into marks values (?, ?, ?)", marks)
                for seq, state in keeps:
                    self._put_state(seq, state, kept=True)
                self._put_state(book.last_seq, book.state(), kept=False)
                self._db.execute("commit")
            except BaseException:
                self._db.execute("rollback")
                raise

    def _put_state(self, seq: int, data: bytes, *, kept: bool) -> None:
        if not kept:
            self._db.execute("delete from states where kept = 0")
        query = "insert or replace into states (seq, kept, data) values (?, ?, ?)"
        self._db.execute(query, (seq, kept, zlib.compress(data, 1)))

    def _head(self) -> bytes:
        row = self._db.execute("select chain from hours order by number desc limit 1").fetchone()
        return first_chain(self._fact("journal") or "") if row is None else bytes(row[0])

    def _fact(self, name: str) -> str | None:
        row = self._db.execute("select value from facts where name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    # -- forgetting ---------------------------------------------------------------------------

    def _forget(self, before_ms: int | None, now_ms: int) -> None:
        with self._reported():
            self._db.execute("begin immediate")
            try:
                if before_ms is not None:
                    self._forget_hours(before_ms, now_ms)
                self._forget_states()
                self._sweep_marks()
                self._db.execute("commit")
            except BaseException:
                self._db.execute("rollback")
                raise

    def _forget_hours(self, before_ms: int, now_ms: int) -> None:
        since_ms = max(before_ms, int(self._fact("forgotten_ms") or 0))
        query = "insert or replace into facts values ('forgotten_ms', ?)"
        self._db.execute(query, (str(since_ms),))
        # The last hour stays: the next one is chained to it.
        query = (
            "delete from hours where number < min("
            " ifnull((select min(number) from hours where end_ms between ? and ?), 1 << 62),"
            " (select max(number) from hours))"
        )
        self._db.execute(query, (before_ms, now_ms + _AHEAD_MS))

    def _forget_states(self) -> None:
        first = self._db.execute("select min(first_seq) from hours").fetchone()[0]
        if first is not None:
            # One state before the first hour is enough to compute it.
            query = (
                "delete from states where kept = 1 and seq <"
                " (select max(seq) from states where kept = 1 and seq < ?)"
            )
            self._db.execute(query, (first,))
        query = "select seq, length(data) from states where kept = 1 order by seq desc"
        total = 0
        for number, (seq, size) in enumerate(self._db.execute(query).fetchall()):
            total += size
            # The last one stays: without any, nothing could be computed again.
            if number and total > _KEPT_BYTES:
                self._db.execute("delete from states where kept = 1 and seq = ?", (seq,))

    def _sweep_marks(self) -> None:
        """Remove some marks of events that went with their jobs."""
        swept = int(self._fact("swept_seq") or 0)
        query = "select seq, job_id from marks where seq > ? order by seq limit ?"
        rows = self._db.execute(query, (swept, _SWEPT)).fetchall()
        # After the last one, the next sweep begins with the first.
        last = rows[-1][0] if len(rows) == _SWEPT else 0
        if rows:
            with open_snapshot(self.journal) as db:
                query = "select seq from events where seq between ? and ?"
                there = {seq for (seq,) in db.execute(query, (rows[0][0], rows[-1][0]))}
                gone = [row for row in rows if row[0] not in there]
                went = [
                    (seq,)
                    for seq, job_id in gone
                    if job_id is not None and is_forgotten(db, job_id)
                ]
            self._db.executemany("delete from marks where seq = ?", went)
        query = "insert or replace into facts values ('swept_seq', ?)"
        self._db.execute(query, (str(last),))

    # -- reading ------------------------------------------------------------------------------

    def hours(self) -> Iterator[StoredHour]:
        """Yield the closed hours in their order."""
        return self._hours(None, None)

    def hours_between(self, since_ms: int, until_ms: int) -> Iterator[Hour]:
        """Yield the closed hours of which a part is between these times, in their order."""
        for stored in self._hours(since_ms, until_ms):
            with self._reported():
                hour = stored.hour()
            yield hour

    def _hours(self, since_ms: int | None, until_ms: int | None) -> Iterator[StoredHour]:
        query = (
            "select number, data, previous, chain, begin_ms, end_ms, first_seq, last_seq from hours"
            " where (:since is null or end_ms > :since) and (:until is null or begin_ms < :until)"
            " order by number"
        )
        with self._reported():
            for number, data, *chains, begin_ms, end_ms, first, last in self._db.execute(
                query, {"since": since_ms, "until": until_ms}
            ):
                columns = begin_ms, end_ms, first, last
                yield StoredHour(number, columns, zlib.decompress(data), *chains)

    def begin_ms(self) -> int | None:
        """Return when the first closed hour begins, or None if there is none."""
        with self._reported():
            query = "select begin_ms from hours order by number limit 1"
            row = self._db.execute(query).fetchone()
            return None if row is None else int(row[0])

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Have all that is read in the block be of one moment."""
        with self._reported():
            self._db.execute("begin")
        try:
            yield
        finally:
            self._db.execute("rollback")

    def head(self) -> str:
        """Return the chain after the last closed hour, in hexadecimal."""
        with self._reported():
            return self._head().hex()

    def journal_id(self) -> str:
        with self._reported():
            return self._fact("journal") or ""

    def forgotten_ms(self) -> int:
        """Return the time before which hours and events may have been removed."""
        with self._reported():
            return int(self._fact("forgotten_ms") or 0)

    def states(self) -> list[int]:
        """Return the numbers of the events after which a state is kept, in order."""
        with self._reported():
            query = "select seq from states where kept = 1 order by seq"
            return [seq for (seq,) in self._db.execute(query)]

    def book_after(self, seq: int) -> Book:
        """Return the book of the state that is kept after this event."""
        with self._reported():
            query = "select data from states where kept = 1 and seq = ?"
            (data,) = self._db.execute(query, (seq,)).fetchone()
            return Book.of_state(zlib.decompress(data), self.rules_of)

    def present(self) -> Book:
        """Return the book after the last event that was taken. Raises HostError also if there is
        none yet."""
        with self._reported():
            row = self._db.execute("select data from states where kept = 0").fetchone()
            if row is None:
                raise ValueError("it has no present state")
            return Book.of_state(zlib.decompress(row[0]), self.rules_of)

    def last_seq(self) -> int:
        """Return the number of the last event that was taken."""
        with self._reported():
            row = self._db.execute("select seq from states where kept = 0").fetchone()
            return 0 if row is None else int(row[0])

    def marks(self, first_seq: int, last_seq: int) -> dict[int, tuple[int | None, bytes]]:
        """Return job and mark of the events between these numbers that have one."""
        with self._reported():
            query = "select seq, job_id, mark from marks where seq between ? and ?"
            rows = self._db.execute(query, (first_seq, last_seq))
            return {seq: (job_id, mark) for seq, job_id, mark in rows}


def is_forgotten(db: Database, job_id: int) -> bool:
    """Return whether events of the job may be missing: it was removed from the history, or had so
    many that some were dropped."""
    query = (
        "select min(events_dropped) from (select events_dropped from jobs where id = :id"
        " union all select events_dropped from arrays where id = :id)"
    )
    (dropped,) = db.execute(query, {"id": job_id}).fetchone()
    return dropped is None or dropped > 0


def _last_ms(db: Database) -> int:
    row = db.execute("select at_s from events order by seq desc limit 1").fetchone()
    return 0 if row is None else round(row[0] * 1000)


def _standing(db: Database) -> Standing:
    """Return what stands after the last event, by the journal's tables."""
    arrays = Arrays(db, without_words)
    jobs = db.execute("select data from jobs where live = 1 order by id")
    (last_id,) = db.execute("select ifnull(max(id), 0) from jobs").fetchone()
    raised = db.execute("select value from facts where name = 'next_id'").fetchone()
    rules, is_away, nodes_away, load = _surroundings(db)
    drains = _drains(db)
    return Standing(
        rules=rules,
        axes=None,
        jobs=tuple(without_words.job(data) for (data,) in jobs),
        arrays=tuple(arrays.live()),
        next_id=max(last_id + 1, arrays.last_id() + 1, 1 if raised is None else int(raised[0])),
        drained=drains.pop("", None),
        node_drains=tuple(drains.values()),
        is_away=is_away,
        nodes_away=nodes_away,
        outside=load.kept,
        elsewhere=load.elsewhere,
    )


def _surroundings(
    db: Database,
) -> tuple[str | None, bool, tuple[str, ...], ev.ExternalLoadChanged]:
    """Return the digest of the rules, whether there is no launcher anywhere, the nodes without one,
    and the load from outside."""
    query = (
        "select kind, data from events"
        " where job_id is null and kind in (select value from json_each(?)) order by seq"
    )
    rules: str | None = None
    is_away, nodes_away = False, tuple[str, ...]()
    load = ev.ExternalLoadChanged(at_s=0.0, kept=NOTHING)
    for kind, data in db.execute(query, (json.dumps([*ev.AUDIT_KINDS]),)):
        match records.decode_audit_event(kind, data):
            case ev.DaemonStarted() as event:
                rules, is_away, nodes_away = event.rules, False, ()
            case ev.Configured() as event:
                rules = event.rules
            case ev.DaemonStopped():
                is_away, nodes_away = True, ()
            case ev.LaunchersAway() as event:
                is_away, nodes_away = event.everywhere, event.nodes
            case ev.ExternalLoadChanged() as event:
                load = event
    return rules, is_away, nodes_away, load


def _drains(db: Database) -> dict[str, ev.Drained]:
    query = "select data from events where job_id is null and kind = 'Drained' order by seq"
    found: dict[str, ev.Drained] = {}
    for (data,) in db.execute(query):
        event = without_words.event("Drained", data)
        assert isinstance(event, ev.Drained)
        found.pop(event.node, None)
        if event.on:
            found[event.node] = event
    return found
