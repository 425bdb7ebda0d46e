"""Computes the account of promises again from the journal, and finds the first hour that differs.

Three things are compared: the chain of the hours' texts; the journal's rows with their digests of
the time when they were written; and each hour with what its events give now, byte for byte. The
last needs all events of the hour and of those since the state before it. Events go with their jobs
when these are removed from the history: such hours are counted, and only their chain and the rows
that are left are compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from drfd.journal.database import Database, open_snapshot
from drfd.journal.promises.account_file import (
    MARK_BYTES,
    AccountFile,
    StoredHour,
    first_chain,
    is_forgotten,
    next_chain,
)
from drfd.journal.promises.book import EventRow, Hour, chained

#: Seconds after which a missing event is looked for again: its job may be going.
_AGAIN_S = 5.0
#: Events that are computed with one snapshot of the journal.
_EVENTS = 20_000


class Fault(NamedTuple):
    """A difference. The number of the hour is that after the last if no hour has closed since."""

    number: int
    begin_ms: int | None
    text: str


@dataclass(kw_only=True)
class Checked:
    """What was compared."""

    hours: int = 0
    #: Hours that were computed again from their events.
    computed: int = 0
    #: Rows of the journal that were compared with their digests, and those that are gone.
    events: int = 0
    gone: int = 0
    chain: str = ""
    #: The first hour that differs.
    fault: Fault | None = None


class _Missing(NamedTuple):
    number: int
    begin_ms: int | None
    seq: int
    job_id: int | None


@dataclass
class _Check:
    file: AccountFile
    found: Checked = field(default_factory=Checked)
    #: Missing events whose job is there, and the numbers of all missing events.
    suspects: list[_Missing] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    hours: dict[int, StoredHour] = field(default_factory=dict)
    #: The first event that is not as it was, or a number beyond all: what follows from it is no
    #: fault of its own.
    first_bad_seq: int = 1 << 62

    def run(self, again_s: float) -> Checked:
        self._read_hours()
        self._look_again(again_s)
        self._compute()
        self.found.chain = self.file.head()
        return self.found

    def _fail(
        self, number: int, begin_ms: int | None, text: str, *, seq: int | None = None
    ) -> None:
        if seq is not None:
            self.first_bad_seq = min(self.first_bad_seq, seq)
        if self.found.fault is None or number < self.found.fault.number:
            self.found.fault = Fault(number, begin_ms, text)

    # -- chains and rows ----------------------------------------------------------------------

    def _read_hours(self) -> None:
        before: tuple[StoredHour, Hour] | None = None
        for stored in self.file.hours():
            self.hours[stored.number] = stored
            self.found.hours += 1
            try:
                hour = stored.hour()
            except ValueError:
                self._fail(stored.number, stored.columns[0], "its text cannot be read")
                before = None
                continue
            self._follow(stored, hour, before)
            self._compare_rows(hour)
            before = stored, hour
        self._read_present(None if before is None else before[1])

    def _read_present(self, before: Hour | None) -> None:
        """Compare the events since the last closed hour, and whether that is the last one that has
        closed. `before` is None if there is no hour, or the last one cannot be read."""
        book, last = self.file.present(), max(self.hours, default=0)
        if book.number != last + 1:
            self._fail(last + 1, None, "it is missing")
        if book.last_seq != self.file.last_seq():
            self._fail(book.number, None, "the number of its last event was changed")
        states = self.file.states()
        if before is not None:
            first_seq, chain = before.last_seq + 1, before.events
        elif not last and states:
            begun = self.file.book_after(states[0])
            first_seq, chain = begun.last_seq + 1, begun.events.hex()
        else:
            return
        events = book.events.hex()
        self._compare_range(book.number, None, first_seq, book.last_seq, chain, events)

    def _follow(
        self, stored: StoredHour, hour: Hour, before: tuple[StoredHour, Hour] | None
    ) -> None:
        number, begin_ms = stored.number, hour.begin_ms
        columns = (hour.begin_ms, hour.end_ms, hour.first_seq, hour.last_seq)
        if (hour.number, columns) != (number, stored.columns):
            self._fail(number, begin_ms, "its text is not that of its row")
        if next_chain(stored.previous, stored.text) != stored.chain:
            self._fail(number, begin_ms, "its text does not fit its chain")
        if before is None:
            if number == 1 and stored.previous != first_chain(self.file.journal_id()):
                self._fail(number, begin_ms, "the chain does not begin with the journal's id")
            return
        if number != before[0].number + 1:
            self._fail(before[0].number + 1, None, "it is missing")
        elif stored.previous != before[0].chain or hour.events_before != before[1].events:
            self._fail(number, begin_ms, "its chain does not go on from the hour before")
        elif hour.first_seq != before[1].last_seq + 1:
            self._fail(number, begin_ms, "its events do not follow those of the hour before")

    def _compare_rows(self, hour: Hour) -> None:
        self._compare_range(
            *(hour.number, hour.begin_ms, hour.first_seq, hour.last_seq),
            *(hour.events_before, hour.events),
        )

    def _compare_range(
        self,
        number: int,
        begin_ms: int | None,
        first_seq: int,
        last_seq: int,
        before: str | None,
        after: str | None,
    ) -> None:
        marks = self.file.marks(first_seq, last_seq)
        there: set[int] = set()
        changed: list[tuple[EventRow, bool]] = []
        chain = b"" if before is None else bytes.fromhex(before)
        with open_snapshot(self.file.journal) as db:
            for row in _rows(db, first_seq, last_seq):
                digest = row.digest()
                chain = chained(chain, digest)
                there.add(row.seq)
                mark = marks.get(row.seq)
                if mark is None or mark != (row.job_id, digest[:MARK_BYTES]):
                    changed.append((row, mark is None))
            missing = [seq for seq in range(first_seq, last_seq + 1) if seq not in there]
            for seq in missing:
                # Without a mark it went with its job, and a sweep has seen that.
                if seq in marks and not self._may_be_gone(db, begin_ms, marks[seq][0]):
                    self.suspects.append(_Missing(number, begin_ms, seq, marks[seq][0]))
        self.found.events += len(there)
        self.found.gone += len(missing)
        self.gone.update(missing)
        is_chained = not missing and after is not None and chain.hex() == after
        for row, is_new in changed[:1]:
            what = f"event {row.seq} ({row.kind}{_of_job(row.job_id)})"
            if is_chained:
                self._fail(number, begin_ms, f"the digest of {what} was changed")
            else:
                verb = "added" if is_new else "changed"
                self._fail(number, begin_ms, f"{what} was {verb}", seq=row.seq)
        if not changed and not missing and after is not None and not is_chained:
            self._fail(number, begin_ms, "its events do not fit their chain", seq=first_seq)

    def _may_be_gone(self, db: Database, begin_ms: int | None, job_id: int | None) -> bool:
        if job_id is not None:
            return is_forgotten(db, job_id)
        # Old records of no job are removed once a newer one is old, too.
        return begin_ms is not None and begin_ms < self.file.forgotten_ms()

    def _look_again(self, again_s: float) -> None:
        if not self.suspects:
            return
        time.sleep(again_s)
        with open_snapshot(self.file.journal) as db:
            for each in self.suspects:
                if not self._may_be_gone(db, each.begin_ms, each.job_id):
                    text = f"event {each.seq}{_of_job(each.job_id)} is missing"
                    self._fail(each.number, each.begin_ms, text, seq=each.seq)

    # -- computing again ----------------------------------------------------------------------

    def _compute(self) -> None:
        begins = self.file.states()
        if not begins:
            text = "the account has no state from which hours could be computed again"
            self._fail(min(self.hours, default=1), None, text)
            return
        ends = [min(end, self.first_bad_seq - 1) for end in [*begins[1:], self.file.last_seq()]]
        computed: set[int] = set()
        for begin, end in zip(begins, ends, strict=True):
            book = self.file.book_after(begin)
            while book.last_seq < end:
                with open_snapshot(self.file.journal) as db:
                    most = min(end, book.last_seq + _EVENTS)
                    for row in _rows(db, book.last_seq + 1, most):
                        if row.seq != book.last_seq + 1:
                            break
                        book.take(row, row.digest())
                for hour in book.closed:
                    stored = self.hours.get(hour.number)
                    if stored is None:
                        if self._was_kept(hour):
                            self._fail(hour.number, hour.begin_ms, "it is missing")
                        continue
                    computed.add(hour.number)
                    if stored.text != hour.text():
                        text = "its events give another account than it has"
                        self._fail(hour.number, hour.begin_ms, text)
                book.closed = []
                if book.last_seq < most:
                    # From here on events are gone.
                    break
        self.found.computed = len(computed)

    def _was_kept(self, hour: Hour) -> bool:
        """Return whether an hour that is not there cannot have been removed with the history."""
        forgotten_ms = self.file.forgotten_ms()
        if not forgotten_ms:
            return True
        if not self.hours:
            return True
        # An hour with a later end than the begin of the first one was one of a wrong clock.
        begin_ms = self.hours[min(self.hours)].columns[0]
        return forgotten_ms <= hour.end_ms <= begin_ms


def check(file: AccountFile, *, again_s: float = _AGAIN_S) -> Checked:
    """Compare the account with the journal. Raises HostError if one of them cannot be read."""
    with file.snapshot():
        return _Check(file).run(again_s)


def _rows(db: Database, first_seq: int, last_seq: int) -> Iterator[EventRow]:
    query = (
        "select seq, at_s, job_id, kind, data from events where seq between ? and ? order by seq"
    )
    for values in db.execute(query, (first_seq, last_seq)):
        yield EventRow(*values)


def _of_job(job_id: int | None) -> str:
    return "" if job_id is None else f" of job {job_id}"
