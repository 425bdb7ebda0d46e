"""Round robin over users: requests of one user are worked on one after the other.

A round is one round of the event loop, in which one request of each user is worked on at most, up
to the point at which it waits, or a part of it is done (`InParts`). Requests that take long, by
what they read or because a child process answers them, have a turn of their own, so that a user's
submissions do not wait for the user's reports.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

#: Seconds of one part of long work.
PART_S = 0.002


class UserTurns:
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


class InParts(Generic[T]):
    """Items of long work, for `async for`: after each part of it other users' requests come first.
    State may change then."""

    def __init__(self, items: Iterable[T]) -> None:
        self._left = iter(items)
        self._since_s = time.monotonic()

    def __aiter__(self) -> InParts[T]:
        return self

    async def __anext__(self) -> T:
        if time.monotonic() - self._since_s >= PART_S:
            await asyncio.sleep(0)
            self._since_s = time.monotonic()
        try:
            return next(self._left)
        except StopIteration:
            raise StopAsyncIteration from None
