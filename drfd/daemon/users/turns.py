"""Round robin over users: requests of one user are worked on one after the other.

A round is one round of the event loop, in which one request of each user is worked on at most, up
to the point at which it waits or pauses (`Pauses`). Requests that take long, by what they read or
because a child process answers them, have a turn of their own, so that a user's submissions do not
wait for the user's reports.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

#: Seconds of long work between two pauses.
PART_S = 0.002


class Turns:
    """Whose turn it is, by uid."""

    def __init__(self) -> None:
        self._turns: defaultdict[tuple[int, bool], asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def next(self, uid: int, *, is_long: bool = False) -> AsyncIterator[None]:
        """Wait for the user's next turn, and have it for the length of the block."""
        async with self._turns[uid, is_long]:
            # In the next round: each of many connections would find the turn free in this one.
            await asyncio.sleep(0)
            yield


class Pauses:
    """Pauses for other users' requests, at intervals, in one piece of long work. State may change
    in each."""

    def __init__(self, mono: Callable[[], float] = time.monotonic) -> None:
        self._mono = mono
        self._since_s = mono()
        self._before_s = 0.0

    async def pause(self) -> None:
        """Pause if PART_S have passed since the last time. To be called often."""
        part_s = self._mono() - self._since_s
        if part_s >= PART_S:
            self._before_s += part_s
            await asyncio.sleep(0)
            self._since_s = self._mono()

    def worked_s(self) -> float:
        """Return the seconds of work so far, without the pauses."""
        return self._before_s + self._mono() - self._since_s
