"""Clients that watch everything: the whole at once, again and again, for any number of them.

What is the same for all is worked out and encoded once, when somebody asks for it and what there is
has become too old; nothing is done while nobody watches. A watcher has no queue: its next line is
made when it has read the last one, so who reads slowly costs no more than that line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import msgspec

from drfd.core.job import Job
from drfd.core.stimuli import Actor
from drfd.daemon.overview import Overview

#: What is younger is shown again. Less than the second after which anybody asks again, so that
#: nobody is shown the same twice, whenever in the second the others ask.
_FRESH_S = 0.9
#: The daemon spends one part in so many of a processor on what all see, if need be by showing it
#: less often; and as much again on what single users see besides.
_PART = 50
#: What a user sees besides is this old at most, unless nothing else is to be done.
_OWN_FRESH_S = 10.0
#: How often it is looked whether a slow watcher has read its line.
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class _Common:
    at_s: float
    #: Until then it is shown to whoever asks.
    until_s: float
    #: JSON without the opening brace.
    tail: bytes
    #: Waiting rows that are in it.
    shown: frozenset[int]


@dataclass(slots=True)
class _Own:
    """A user's waiting rows that not everybody is shown."""

    at_s: float
    common: _Common
    rows: dict[int, bytes]
    #: JSON up to what is the same for all: one for all watchers of the user.
    head: bytes


@dataclass
class Snapshots:
    overview: Overview
    mono: Callable[[], float] = time.monotonic
    #: Processor time of this process.
    spent_s: Callable[[], float] = time.process_time
    _common: _Common | None = None
    #: By user.
    _own: dict[str, _Own] = field(default_factory=dict)
    #: What may still be spent on single users.
    _purse_s: float = 0.0
    _watchers: int = 0
    _encoder: msgspec.json.Encoder = field(default_factory=msgspec.json.Encoder)

    def job_changed(self, job: Job) -> None:
        if self._watchers:
            self.overview.job_changed(job)

    async def watch(
        self, actor: Actor, every_s: float, has_read: Callable[[], bool]
    ) -> AsyncGenerator[tuple[bytes, bytes], None]:
        """Lines, each in two pieces: at once, and then one every so often as soon as the last one
        `has_read` by its watcher."""
        if not self._watchers:
            self.overview.begin()
        self._watchers += 1
        try:
            due_s = self.mono()
            while True:
                line, shown = self._line(actor.user), self._common
                yield line
                due_s = max(due_s + every_s, self.mono())
                await asyncio.sleep(due_s - self.mono())
                while not has_read():
                    await asyncio.sleep(_LOOK_S)
                if shown is not None and shown is self._common:
                    # Where it takes long to work out, the next one is waited for.
                    await asyncio.sleep(shown.until_s - self.mono())
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._common = None
                self._own.clear()

    def _line(self, user: str) -> tuple[bytes, bytes]:
        now_s = self.mono()
        common = self._common
        if common is None or now_s >= common.until_s:
            common = self._common = self._look(now_s)
        own = self._own.get(user)
        if own is None or own.common is not common:
            at_s, rows = self._rows_of(user, common, now_s)
            name, mine = self._encoder.encode(user), b",".join(rows.values())
            head = b'{"ok":true,"snapshot":{"user":%b,"mine":[%b],' % (name, mine)
            own = self._own[user] = _Own(at_s, common, rows, head)
        return own.head, common.tail

    def _look(self, now_s: float) -> _Common:
        begin_s = self.spent_s()
        view, shown = self.overview.look()
        tail = self._encoder.encode(view)[1:] + b"}\n"
        until_s = now_s + max(_FRESH_S, _PART * (self.spent_s() - begin_s))
        self._purse_s = (until_s - now_s) / _PART
        gone = [user for user, own in self._own.items() if now_s - own.at_s > 2 * _OWN_FRESH_S]
        for user in gone:
            del self._own[user]
        return _Common(now_s, until_s, tail, shown)

    def _rows_of(self, user: str, common: _Common, now_s: float) -> tuple[float, dict[int, bytes]]:
        """And of when they are."""
        own = self._own.get(user)
        if own is None or self._purse_s > 0 or now_s - own.at_s > _OWN_FRESH_S:
            begin_s = self.spent_s()
            rows = self.overview.own(user, common.shown)
            encoded = map(self._encoder.encode, self.overview.waiting_rows(rows.values()))
            found = dict(zip(rows, encoded, strict=True))
            self._purse_s -= self.spent_s() - begin_s
            return now_s, found
        # As they were, but for those that do not wait any more, or that everybody sees now.
        left = {
            row_id: row
            for row_id, row in own.rows.items()
            if row_id not in common.shown and self.overview.waits(row_id)
        }
        return own.at_s, left
