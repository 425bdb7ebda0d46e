"""The journal's upkeep: old jobs are removed.

Ended jobs are kept up to the age and the size of the journal in the configuration. A few are
removed at a time, followed by a pause ten times as long. When the journal is too large, jobs of the
user with the most stored bytes are removed first, so that a user's flood does not remove the
history of others.

Removal goes by a clock that follows a leap ahead only in time. A machine may take the year for 2036
for an hour, because its battery is empty or a time server is wrong, and removed jobs do not come
back when the clock is right again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from drfd.common.errors import HostError
from drfd.core.model.job import Now
from drfd.daemon.config import HistorySettings
from drfd.journal.journal import Journal
from drfd.journal.pruning import StoredBytes, read_shares

#: Seconds of a leap that is trusted at once, and how much faster than time passes a greater one is
#: followed.
_LEAST_S, _FASTER = 3600.0, 10
#: Seconds between two records of the trusted time.
_SAVE_S = 1800.0


class TrustedClock:
    """A clock that returns Unix time when called, and follows a leap ahead only in time."""

    def __init__(
        self, clock: Callable[[], Now], trusted_s: float | None, save: Callable[[float], None]
    ) -> None:
        """`trusted_s` is the Unix time that an earlier daemon trusted last, or None; `save` records
        the trusted time for the next daemon."""
        self._clock, self._save = clock, save
        now = clock()
        self._at_s = now.at_s if trusted_s is None else trusted_s
        self._mono_s, self._saved_s = now.mono_s, -inf

    def __call__(self) -> float:
        now = self._clock()
        passed_s, self._mono_s = now.mono_s - self._mono_s, now.mono_s
        is_ahead = now.at_s - self._at_s > _LEAST_S
        self._at_s = min(now.at_s, self._at_s + _FASTER * passed_s) if is_ahead else now.at_s
        if not 0 <= self._at_s - self._saved_s < _SAVE_S:
            self._saved_s = self._at_s
            try:
                self._save(self._at_s)
            except HostError as error:
                log.warning("event=time-not-kept error=%s", error.text)
        return self._at_s


log = logging.getLogger("drfd")

#: Seconds until the next step when nothing was to be done, or after a failure.
_REST_S = 60.0
#: Pause after a step, as a multiple of its duration, and the shortest one in seconds.
_PAUSES, _LEAST_PAUSE_S = 10, 0.05
#: Time until users' stored bytes are read again while there is too much: in seconds, and as a
#: multiple of the time that reading took.
_SHARES_S, _SHARES_PAUSES = 10.0, 20
#: Part of the allowed size to which an exceeded journal is reduced.
_ENOUGH = 0.98


@dataclass
class Retention:
    """Removes ended jobs from the journal when they are too old or too many."""

    journal: Journal
    #: Returns the present configuration.
    history: Callable[[], HistorySettings]
    #: Returns Unix time that can be relied on, see `TrustedClock`.
    clock: Callable[[], float]
    #: Stored bytes by user, and when they must be read again, on the monotonic clock.
    _shares: StoredBytes = field(default_factory=StoredBytes)
    _good_until_s: float = -inf
    #: Whether the size was exceeded and is not yet reduced.
    _is_over: bool = False

    async def run(self) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                is_busy = await self.step()
            except HostError as error:
                log.error("event=%s-failed error=%s", error.code, error.text)
                is_busy = False
            worked_s = time.monotonic() - begun_s
            await asyncio.sleep(max(_LEAST_PAUSE_S, _PAUSES * worked_s) if is_busy else _REST_S)

    async def step(self) -> bool:
        """Remove a few jobs, and return whether there may be more to remove."""
        keep_s, most = self.history().keep_s, self.history().max_bytes
        removed = None
        if keep_s is not None:
            removed = self.journal.remove_ended(self.clock() - keep_s)
        if removed is None and most:
            removed = await self._shrink(most)
        has_more = self.journal.give_back()
        return removed is not None or has_more

    async def _shrink(self, most: int) -> int | None:
        used = self.journal.used_bytes()
        if used <= most:
            self._is_over = False
            return None
        begun_s = time.monotonic()
        if begun_s > self._good_until_s:
            self._shares = await asyncio.to_thread(read_shares, self.journal.path)
            now_s = time.monotonic()
            self._good_until_s = now_s + max(_SHARES_S, _SHARES_PAUSES * (now_s - begun_s))
        shares = self._shares
        # Live jobs have limits of their own. If they counted, a user with many waiting jobs would
        # have everybody's history removed.
        over = used * shares.ended_bytes // max(1, shares.ended_bytes + shares.live_bytes)
        self._is_over = over > (most * _ENOUGH if self._is_over else most)
        if not self._is_over or not shares.ended:
            return None
        user = max(shares.ended, key=shares.ended.__getitem__)
        removed = self.journal.remove_ended(inf, user)
        if removed is None:
            # Nothing of this user's can be removed.
            del shares.ended[user]
            return 0 if shares.ended else None
        shares.ended[user] -= removed
        return removed
