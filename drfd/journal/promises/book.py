"""Folds the rows of a journal into hours of the account of promises, which close one after the
other.

An hour closes with the first event after it. Hours follow each other in the order of the events: a
clock that is set back closes the present hour and begins another one, which may have the name of
one that is closed already. So no closed hour is ever changed.

Users decide how many jobs they have and how they behave. The size of an hour does not depend on
that: it has a row for each leaf that waited, the largest balances of each leaf, and the first
starts of each leaf past others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from heapq import nsmallest
from typing import NamedTuple

import msgspec

from drfd.common.indices import Ids
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.queue import FailedTask
from drfd.core.model import events as ev
from drfd.core.model.events import InvalidTransition, StartReason
from drfd.core.model.resources import Axes, Resources
from drfd.core.promises import Counted, EventFold, Parts, PastStart, Standing, Starts, Stretch
from drfd.journal import records
from drfd.journal.records import without_words

HOUR_MS = 3_600_000
#: A longer time in which nothing happens is not divided into hours. The clock may have been wrong.
_MOST_STEP_MS = 31 * 24 * HOUR_MS
#: Balances with single others that an hour has of each leaf; the rest is summed up.
MOST_PAIRS = 16
#: Stands in a balance for all further others together.
THE_REST = ""
#: A window that no time is beyond: the book divides the time by itself.
_ENDLESS = 1 << 80
#: What an event raises that does not belong to what stands, because one before it is missing.
_MISFITS = (InvalidTransition, LookupError, AssertionError, AttributeError, TypeError, ValueError)


class EventRow(NamedTuple):
    """A row of the journal's table of events."""

    seq: int
    at_s: float
    job_id: int | None
    kind: str
    data: bytes

    def digest(self) -> bytes:
        head = f"{self.seq} {self.at_s!r} {self.job_id} {self.kind} "
        return hashlib.sha256(head.encode() + self.data).digest()

    def event(self) -> ev.Event | ev.AuditEvent:
        """Decode the event. Raises ValueError for a kind or content that is not known."""
        if self.kind in ev.AUDIT_KINDS:
            return records.decode_audit_event(self.kind, self.data)
        return without_words.event(self.kind, self.data)


class Hour(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted between two moments in the same hour. Amounts are those of `Parts`."""

    number: int
    begin_ms: int
    end_ms: int
    #: The events that happened in it; without any, the last one is before the first.
    first_seq: int
    last_seq: int
    #: The chain of all events before the hour, and at its end, in hexadecimal.
    events_before: str
    events: str
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

    def text(self) -> bytes:
        """Return the canonical text: equal hours have equal texts."""
        return msgspec.json.encode(self)


class _State(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    begin_ms: int | None
    first_seq: int
    last_seq: int
    events_before: str
    events: str
    doubtful: int
    is_doubtful: bool
    now_ms: int
    below_since: dict[str, int]
    sums: list[tuple[str, Parts]]
    pairs: list[tuple[str, str, int]]
    starts: list[tuple[StartReason, Starts]]
    past: list[PastStart]
    longest: list[tuple[str, Stretch]]
    steps_back: int
    rules: str | None
    axes: Axes | None
    jobs: list[msgspec.Raw]
    arrays: list[tuple[msgspec.Raw, tuple[Ids, ...], FailedTask | None]]
    next_id: int
    drained: ev.Drained | None
    node_drains: tuple[ev.Drained, ...]
    is_away: bool
    nodes_away: tuple[str, ...]
    outside: Resources
    elsewhere: tuple[tuple[str, Resources], ...] = ()


_decode = msgspec.json.Decoder(_State).decode


class Book:
    """Hours of the account, from one event on."""

    def __init__(self, rules_of: Callable[[str], Rules], *, seq: int = 0) -> None:
        """`rules_of` returns the rules with a digest; what it raises is raised by `take`. `seq` is
        the number of the last event before the book."""
        self._fold = EventFold(_ENDLESS, rules_of, advance=self._advance)
        #: Hours that have closed; the owner of the book takes them out.
        self.closed: list[Hour] = []
        #: Number of the next hour that closes.
        self.number = 1
        self.last_seq = seq
        self._begin_ms: int | None = None
        self._first_seq = seq + 1
        self._before = self._events = bytes(32)
        self._doubtful = 0
        #: Whether events were left out, because one before them was missing, since the book stood
        #: as the journal says.
        self.is_doubtful = False

    @classmethod
    def of_state(cls, data: bytes, rules_of: Callable[[str], Rules]) -> Book:
        """Return the book that `state` has told of. Raises ValueError for any other text."""
        state = _decode(data)
        book = cls(rules_of)
        book.number, book._begin_ms = state.number, state.begin_ms
        book._first_seq, book.last_seq = state.first_seq, state.last_seq
        book._before = bytes.fromhex(state.events_before)
        book._events = bytes.fromhex(state.events)
        book._doubtful, book.is_doubtful = state.doubtful, state.is_doubtful
        account = book._fold.account
        account.now_ms, account.below_since = state.now_ms, dict(state.below_since)
        window = state.now_ms // _ENDLESS
        counted = Counted(
            sums={(window, leaf): parts for leaf, parts in state.sums},
            pairs=Counter({(window, leaf, other): part for leaf, other, part in state.pairs}),
            starts={(window, why): starts for why, starts in state.starts},
            past=list(state.past),
            longest=dict(state.longest),
            steps_back=state.steps_back,
        )
        account.resume(counted)
        arrays = [(without_words.array(raw), ids, bad) for raw, ids, bad in state.arrays]
        book._fold.stand(
            Standing(
                rules=state.rules,
                axes=state.axes,
                jobs=tuple(map(without_words.job, state.jobs)),
                arrays=tuple(arrays),
                next_id=state.next_id,
                drained=state.drained,
                node_drains=state.node_drains,
                is_away=state.is_away,
                nodes_away=state.nodes_away,
                outside=state.outside,
                elsewhere=state.elsewhere,
            )
        )
        return book

    def state(self) -> bytes:
        """Return all that is needed to go on after the last event that was taken."""
        account, standing = self._fold.account, self._fold.standing()
        counted = account.counted
        state = _State(
            number=self.number,
            begin_ms=self._begin_ms,
            first_seq=self._first_seq,
            last_seq=self.last_seq,
            events_before=self._before.hex(),
            events=self._events.hex(),
            doubtful=self._doubtful,
            is_doubtful=self.is_doubtful,
            now_ms=account.now_ms,
            below_since=account.below_since,
            sums=[(leaf, parts) for (_, leaf), parts in counted.sums.items()],
            pairs=[(leaf, other, part) for (_, leaf, other), part in counted.pairs.items()],
            starts=[(why, starts) for (_, why), starts in counted.starts.items()],
            past=counted.past,
            longest=[*counted.longest.items()],
            steps_back=counted.steps_back,
            rules=standing.rules,
            axes=standing.axes,
            jobs=[msgspec.Raw(records.encode(job)) for job in standing.jobs],
            arrays=[
                (msgspec.Raw(records.encode(array)), ids, bad)
                for array, ids, bad in standing.arrays
            ],
            next_id=standing.next_id,
            drained=standing.drained,
            node_drains=standing.node_drains,
            is_away=standing.is_away,
            nodes_away=standing.nodes_away,
            outside=standing.outside,
            elsewhere=standing.elsewhere,
        )
        return msgspec.json.encode(state)

    @property
    def events(self) -> bytes:
        """The chain of all events that were taken."""
        return self._events

    @property
    def first_seq(self) -> int:
        """Number of the first event of the present hour."""
        return self._first_seq

    def take(self, row: EventRow, digest: bytes) -> None:
        """Take the next event; an hour before it closes. `digest` is that of the row. Raises
        ValueError for an event that is not known."""
        event = row.event()
        try:
            self._fold.take(event)
        except _MISFITS:
            self._doubtful += 1
            self.is_doubtful = True
        self.last_seq = row.seq
        self._events = chained(self._events, digest)

    def stand(self, standing: Standing, at_ms: int) -> None:
        """Go on from what the journal says that stands after the last event, which was then."""
        if self._begin_ms is None:
            self._fold.account.now_ms = self._begin_ms = at_ms
        self._fold.stand(standing)
        self.is_doubtful = False

    def close_at(self, now_ms: int) -> list[Hour]:
        """Return the hours up to that time, the present one included. The book is of no use
        afterwards: it would divide this hour."""
        if self._begin_ms is not None and now_ms > self._fold.account.now_ms:
            self._advance(now_ms)
        if self._begin_ms is not None:
            self._close()
        hours, self.closed = self.closed, []
        return hours

    def _advance(self, at_ms: int) -> None:
        account = self._fold.account
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
            account.advance(at_ms)
            return
        if at_ms - account.now_ms > _MOST_STEP_MS:
            account.advance(at_ms)
            self._close()
            return
        for end_ms in range((hour + 1) * HOUR_MS, at_ms + 1, HOUR_MS):
            account.advance(end_ms)
            self._close()
        account.advance(at_ms)

    def _close(self) -> None:
        """Close the hour at the account's present time, unless nothing was in it."""
        now_ms = self._fold.account.now_ms
        assert self._begin_ms is not None
        counted = self._fold.account.take_out()
        has_events = self.last_seq >= self._first_seq
        if has_events or counted.sums or counted.steps_back or counted.starts:
            self.closed.append(
                Hour(
                    number=self.number,
                    begin_ms=self._begin_ms,
                    end_ms=now_ms,
                    first_seq=self._first_seq,
                    last_seq=self.last_seq,
                    events_before=self._before.hex(),
                    events=self._events.hex(),
                    rows=tuple(
                        (leaf, parts, counted.longest.get(leaf))
                        for (_, leaf), parts in sorted(counted.sums.items())
                    ),
                    pairs=tuple(_largest(counted.pairs)),
                    starts=tuple(
                        (why, starts) for (_, why), starts in sorted(counted.starts.items())
                    ),
                    past=tuple(counted.past),
                    steps_back=counted.steps_back,
                    doubtful=self._doubtful,
                )
            )
            self.number += 1
            self._doubtful = 0
        self._begin_ms = now_ms
        self._first_seq, self._before = self.last_seq + 1, self._events


def chained(chain: bytes, digest: bytes) -> bytes:
    """Return the chain of events with one more."""
    return hashlib.sha256(chain + digest).digest()


def _largest(pairs: Counter[tuple[int, str, str]]) -> list[tuple[str, str, int]]:
    """Return the largest balances of each leaf, and the sum of the rest of each, by leaf."""
    by_leaf: dict[str, list[tuple[int, str]]] = {}
    for (_, leaf, other), amount in pairs.items():
        by_leaf.setdefault(leaf, []).append((-amount, other))
    found = []
    for leaf, balances in sorted(by_leaf.items()):
        largest = [(other, -amount) for amount, other in nsmallest(MOST_PAIRS, balances)]
        rest = -sum(amount for amount, _ in balances) - sum(amount for _, amount in largest)
        found += [(leaf, other, amount) for other, amount in largest]
        if rest:
            found.append((leaf, THE_REST, rest))
    return found
