"""The account of promises of a journal's events, by the hour, in a file beside the journal.

An hour closes with the first event after it. Hours follow each other in the order of the events: a
clock that is set back closes the present hour and begins another one, which may have the name of
one that is closed already. So no closed hour is ever changed.

Users decide how many jobs they have and how they behave. The size of an hour does not depend on
that: it has a row for each leaf that waited, the largest balances of each leaf, and the first
starts of each leaf past others.

The file is written by one process at a time, which reads the journal and never writes it, so that
nothing of it delays the daemon's turns. It holds the closed hours, and what follows from the events
until now, from which the next one goes on. The latter is a pickle, which only this user can have
written; without it, or where events are missing, all events that the journal has are folded again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sqlite3
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from drfd import __version__
from drfd.common.errors import HostError, printable
from drfd.core.fairness.rules import Rules, read_rules
from drfd.core.model import events as ev
from drfd.core.model.events import InvalidTransition, StartReason
from drfd.core.promises import EventFold, Parts, PastStart, Starts, Stretch
from drfd.journal import records
from drfd.journal.database import Database, open_snapshot
from drfd.journal.records import without_words

NAME = "promises.sqlite"
#: `PRAGMA user_version` of the tables, which changes with the meaning of an hour's text, too.
_VERSION = 1
#: Which program can go on from a stored book.
_PROGRAM = f"{__version__} {sys.version}"
HOUR_MS = 3_600_000
#: A longer time in which nothing happens is not divided into hours. The clock may have been wrong.
_MAX_STEP_MS = 31 * 24 * HOUR_MS
#: Hours with a later end do not keep older ones from being removed: the clock was wrong then.
_AHEAD_MS = 24 * HOUR_MS
#: Balances with single others that an hour has of each leaf; the rest is summed up.
MAX_PAIRS = 16
#: Stands in a balance for all further others together.
THE_REST = ""
#: What an event raises that does not belong to what stands, because one before it is missing.
_MISFITS = (InvalidTransition, LookupError, AssertionError, AttributeError, TypeError, ValueError)

_TABLES = """
    create table facts (
        name  text primary key,
        value any not null
    ) strict, without rowid;
    -- `data` is the hour's text, compressed.
    create table hours (
        last_seq integer not null,
        end_ms   integer not null,
        begin_ms integer not null,
        data     blob    not null,
        primary key (last_seq, end_ms)
    ) strict, without rowid;
"""


class Hour(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted between two moments in the same hour. Amounts are those of `Parts`."""

    begin_ms: int
    end_ms: int
    #: The events that happened in it; without any, the last one is before the first.
    first_seq: int
    last_seq: int
    #: By leaf: the sums, and the longest stretch that ended in the hour or went on at its end.
    rows: tuple[tuple[str, Parts, Stretch | None], ...]
    #: Leaf, other leaf, and what the other one held of what the first was short of.
    pairs: tuple[tuple[str, str, int], ...]
    starts: tuple[tuple[StartReason, Starts], ...]
    past: tuple[PastStart, ...]
    #: How often the clock was set back.
    steps_back: int
    #: Events left out because one before them was missing.
    doubtful: int

    @property
    def place(self) -> tuple[int, int]:
        """The order of hours."""
        return self.last_seq, self.end_ms

    def without_stretches(self) -> Hour:
        rows = tuple((leaf, parts, None) for leaf, parts, _ in self.rows)
        return msgspec.structs.replace(self, rows=rows)


_decode_hour = msgspec.json.Decoder(Hour).decode


class Book(EventFold):
    """Hours of the account, from the first event on."""

    def __init__(self, rules_of: Callable[[str], Rules]) -> None:
        super().__init__(rules_of)
        #: Hours that have closed; the owner of the book takes them out.
        self.closed: list[Hour] = []
        self.last_seq = 0
        #: Number of the last event that was missing or left out.
        self.gap = 0
        self._begin_ms: int | None = None
        self._first_seq = 1
        self._doubtful = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "rules_of": None}

    def read(self, db: Database, until_seq: int = 1 << 62) -> None:
        """Take the events after the last one that was taken. Raises ValueError for one that is not
        known, and what `rules_of` raises."""
        query = "select seq, kind, data from events where seq > ? and seq <= ? order by seq"
        for seq, kind, data in db.execute(query, (self.last_seq, until_seq)):
            begin_ms, is_after_gap = self._begin_ms, seq > self.last_seq + 1
            if is_after_gap:
                self.gap = seq - 1
            if kind in ev.AUDIT_KINDS:
                self.take(records.decode_audit_event(kind, data))
            else:
                event = without_words.event(kind, data)
                try:
                    self.take(event)
                except _MISFITS:
                    self._doubtful += 1
                    self.gap = seq
            if is_after_gap and self._begin_ms != begin_ms:
                self._first_seq = seq
            self.last_seq = seq

    def close_at(self, now_ms: int) -> list[Hour]:
        """Return the hours up to that time, the present one included. The book is of no use
        afterwards: it would divide this hour."""
        if self._begin_ms is not None:
            if now_ms > self.account.now_ms:
                self.advance(now_ms)
            self._close()
        return self.take_closed()

    def take_closed(self) -> list[Hour]:
        """Take out the hours that have closed."""
        hours, self.closed = self.closed, []
        return hours

    def advance(self, at_ms: int) -> None:
        account = self.account
        if self._begin_ms is None:
            # Nothing waits before the first event.
            account.now_ms = self._begin_ms = at_ms
            return
        hour = account.now_ms // HOUR_MS
        if at_ms // HOUR_MS == hour:
            account.advance(at_ms)
            return
        if at_ms < account.now_ms:
            self._close()
            self._begin_ms = at_ms
        elif at_ms - account.now_ms > _MAX_STEP_MS:
            account.advance(at_ms)
            self._close()
        else:
            for end_ms in range((hour + 1) * HOUR_MS, at_ms + 1, HOUR_MS):
                account.advance(end_ms)
                self._close()
        account.advance(at_ms)

    def _close(self) -> None:
        """Close the hour at the account's present time, unless nothing was in it."""
        now_ms = self.account.now_ms
        assert self._begin_ms is not None
        counted = self.account.take_out()
        has_events = self.last_seq >= self._first_seq
        if has_events or counted.sums or counted.steps_back or counted.starts:
            self.closed.append(
                Hour(
                    begin_ms=self._begin_ms,
                    end_ms=now_ms,
                    first_seq=self._first_seq,
                    last_seq=self.last_seq,
                    rows=tuple(
                        (leaf, parts, counted.longest.get(leaf))
                        for leaf, parts in sorted(counted.sums.items())
                    ),
                    pairs=tuple(_largest(counted.pairs)),
                    starts=tuple(sorted(counted.starts.items())),
                    past=tuple(counted.past),
                    steps_back=counted.steps_back,
                    doubtful=self._doubtful,
                )
            )
            self._doubtful = 0
        self._begin_ms, self._first_seq = now_ms, self.last_seq + 1


def _largest(pairs: Counter[tuple[str, str]]) -> list[tuple[str, str, int]]:
    """Return the largest balances of each leaf, and the sum of the rest of each, by leaf."""
    by_leaf: dict[str, list[tuple[int, str]]] = {}
    for (leaf, other), amount in pairs.items():
        by_leaf.setdefault(leaf, []).append((-amount, other))
    found = []
    for leaf, balances in sorted(by_leaf.items()):
        largest = [(other, -amount) for amount, other in nsmallest(MAX_PAIRS, balances)]
        rest = -sum(amount for amount, _ in balances) - sum(amount for _, amount in largest)
        found += [(leaf, other, amount) for other, amount in largest]
        if rest:
            found.append((leaf, THE_REST, rest))
    return found


class Fault(NamedTuple):
    """The first hour that differs from what its events give."""

    begin_ms: int
    text: str


@dataclass(kw_only=True)
class Checked:
    hours: int
    #: Hours that were compared: those of which all events are there, and what led to them.
    compared: int
    #: Events that were folded, and those that are gone with their jobs.
    events: int
    gone: int
    fault: Fault | None


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
            self._db.execute("pragma journal_mode = wal")
            with self._transaction():
                version = self._db.execute("pragma user_version").fetchone()[0]
                if version not in (0, _VERSION):
                    raise ValueError(
                        f"it has the version {version}, and this drfd reads {_VERSION}"
                    )
                if version == 0:
                    for statement in _TABLES.split(";"):
                        self._db.execute(statement)
                    self._db.execute(f"pragma user_version = {_VERSION}")

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

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._reported():
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            except BaseException:
                self._db.execute("rollback")
                raise

    def catch_up(self, *, forget_before_ms: int | None = None, now_ms: int = 0) -> Book:
        """Take all events that the journal has, and return the book after the last one. Hours that
        ended before `forget_before_ms` are removed; `now_ms` is the present time, by which hours of
        a wrong clock are known."""
        book = self.stored_book()
        with open_snapshot(self.journal) as db:
            (journal_id,) = db.execute("select value from facts where name = 'id'").fetchone()
            self._refuse_another(db, journal_id)
            if book is None or not _is_whole(db, book.last_seq):
                # What stands after a missing event is not what the journal says.
                book = Book(self.rules_of)
            book.read(db)
        with self._transaction():
            query = "select last_seq, end_ms from hours order by last_seq desc, end_ms desc limit 1"
            last = self._db.execute(query).fetchone() or (0, 0)
            self._db.executemany(
                "insert into hours values (?, ?, ?, ?)",
                (
                    (*hour.place, hour.begin_ms, zlib.compress(msgspec.json.encode(hour)))
                    for hour in book.take_closed()
                    if hour.place > last
                ),
            )
            self._put_fact("journal", journal_id)
            self._put_fact("program", _PROGRAM)
            self._put_fact("events", book.last_seq)
            self._put_fact("book", zlib.compress(pickle.dumps(book, 5), 1))
            if forget_before_ms is not None:
                self._forget(forget_before_ms, now_ms)
        return book

    def _refuse_another(self, db: Database, journal_id: str) -> None:
        (last,) = db.execute("select ifnull(max(seq), 0) from events").fetchone()
        with self._reported():
            if self._fact("journal") not in (None, journal_id):
                raise ValueError("it belongs to another journal")
            if last < self.last_seq():
                raise ValueError(
                    f"it knows the events to {self.last_seq()}, and the journal has {last}: "
                    "was the journal restored from a copy?"
                )

    def stored_book(self) -> Book | None:
        """Return the book as it was left, or None if there is none that this program can read."""
        with self._reported():
            if self._fact("program") != _PROGRAM:
                return None
            data = self._fact("book")
        try:
            book: Book = pickle.loads(zlib.decompress(data))  # noqa: S301  # its own file
        except (
            pickle.PickleError,
            zlib.error,
            AttributeError,
            ImportError,
            LookupError,
            TypeError,
        ):
            return None
        book.rules_of = self.rules_of
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

    def _forget(self, before_ms: int, now_ms: int) -> None:
        self._put_fact("forgotten_ms", max(before_ms, self._fact("forgotten_ms") or 0))
        query = (
            "delete from hours where last_seq <"
            " ifnull((select min(last_seq) from hours where end_ms between ? and ?), 1 << 62)"
        )
        self._db.execute(query, (before_ms, now_ms + _AHEAD_MS))

    def _fact(self, name: str) -> Any:
        row = self._db.execute("select value from facts where name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def _put_fact(self, name: str, value: object) -> None:
        self._db.execute("insert or replace into facts values (?, ?)", (name, value))

    # -- reading ------------------------------------------------------------------------------

    def hours(self, since_ms: int = 0, until_ms: int = 1 << 62) -> Iterator[Hour]:
        """Yield the closed hours of which a part is between these times, in their order."""
        query = "select data from hours where end_ms > ? and begin_ms < ? order by last_seq, end_ms"
        with self._reported():
            rows = self._db.execute(query, (since_ms, until_ms)).fetchall()
        for (data,) in rows:
            with self._reported():
                hour = _decode_hour(zlib.decompress(data))
            yield hour

    def begin_ms(self) -> int | None:
        """Return when the first closed hour begins, or None if there is none."""
        with self._reported():
            query = "select begin_ms from hours order by last_seq, end_ms limit 1"
            row = self._db.execute(query).fetchone()
            return None if row is None else int(row[0])

    def last_seq(self) -> int:
        """Return the number of the last event that was taken."""
        with self._reported():
            return int(self._fact("events") or 0)

    def check(self) -> Checked:
        """Fold the journal's events again, and compare the hours that they give with the stored
        ones, the present hour included. Events go with their jobs when these are removed from the
        history. Hours are compared from the last missing event on, and without their longest
        stretches, which may have begun before."""
        # Another process may bring the account up to date meanwhile.
        with self._reported():
            self._db.execute("begin")
        try:
            return self._checked()
        finally:
            self._db.execute("rollback")

    def _checked(self) -> Checked:
        stored, again = [*self.hours()], Book(self.rules_of)
        book = self.stored_book()
        if book is not None:
            stored += book.close_at(book.account.now_ms)
        with open_snapshot(self.journal) as db:
            again.read(db, self.last_seq())
            query = "select count(*) from events where seq <= ?"
            (events,) = db.execute(query, (again.last_seq,)).fetchone()
            (thinned,) = db.execute(_LAST_OF_THINNED).fetchone()
        # Records of the rules, and others of no job, are removed by their age.
        since_ms, gap = self._fact("forgotten_ms") or 0, max(again.gap, thinned)
        sure = [hour for hour in stored if hour.first_seq > gap and hour.begin_ms >= since_ms]
        # Some of the older hours were removed with the history.
        first = (sure[0].place if sure else (1 << 62, 0)) if gap or since_ms else (0, 0)
        computed = [
            hour
            for hour in again.close_at(again.account.now_ms)
            if hour.place >= first and hour.begin_ms >= since_ms
        ]
        return Checked(
            hours=len(stored),
            compared=len(sure),
            events=events,
            gone=again.last_seq - events,
            fault=_first_difference(sure, computed, exactly=not gap),
        )


#: The last event of a job of which some events were dropped.
_LAST_OF_THINNED = """
    select ifnull(max(seq), 0) from events where job_id in (
        select id from jobs where events_dropped union all
        select id from arrays where events_dropped
    )
"""


def _is_whole(db: Database, after_seq: int) -> bool:
    query = "select count(*), ifnull(max(seq), ?) from events where seq > ?"
    count, last = db.execute(query, (after_seq, after_seq)).fetchone()
    return bool(count == last - after_seq)


def _first_difference(stored: list[Hour], computed: list[Hour], *, exactly: bool) -> Fault | None:
    known, again = [
        {hour.place: hour if exactly else hour.without_stretches() for hour in hours}
        for hours in (stored, computed)
    ]
    for place in sorted(known.keys() | again.keys()):
        if place not in known:
            return Fault(again[place].begin_ms, "it is missing")
        if known[place] != again.get(place):
            return Fault(known[place].begin_ms, "its events give another account than is stored")
    return None
