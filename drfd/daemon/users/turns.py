"""Round robin over users: requests of one user are worked on one after the other.

A round is one round of the event loop, in which one request of each user is worked on at most, up
to the point at which it waits, or a part of it is done (`InParts`). Requests that take long, by
what they read or because a child process answers them, have a turn of their own, so that a user's
submissions do not wait for the user's reports.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

#: Seconds of one part of long work.
PART_S = 0.002


class UserTurns:
    """Whose turn it is, by uid."""

    def __init__(self) -> None:
        #: What waits for each user's next turn. A user has a line from a turn until a round of the
        #: loop without one.
        self._lines: dict[tuple[int, bool], deque[asyncio.Future[None]]] = {}

    def next(self, uid: int, *, is_long: bool = False) -> _Turn:
        """Return what waits for the user's next turn, and has it for the length of the block."""
        return _Turn(self, (uid, is_long))

    async def begin(self, whose: tuple[int, bool]) -> None:
        line = self._lines.get(whose)
        if line is None:
            self._lines[whose] = deque()
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():
                self.end(whose)
            raise

    def end(self, whose: tuple[int, bool]) -> None:
        """Give the turn to the first in the user's line, who has it in the next round."""
        if not self._pass_on(whose):
            asyncio.get_running_loop().call_soon(self._end_line, whose)

    def _end_line(self, whose: tuple[int, bool]) -> None:
        if not self._pass_on(whose):
            del self._lines[whose]

    def _pass_on(self, whose: tuple[int, bool]) -> bool:
        line = self._lines[whose]
        while line:
            following = line.popleft()
            if not following.done():
                following.set_result(None)
                return True
        return False


class _Turn:
    """One turn. A class, because a generator takes three times as long."""

    __slots__ = ("_turns", "_whose")

    def __init__(self, turns: UserTurns, whose: tuple[int, bool]) -> None:
        self._turns = turns
        self._whose = whose

    async def __aenter__(self) -> None:
        await self._turns.begin(self._whose)

    async def __aexit__(self, *_: object) -> None:
        self._turns.end(self._whose)


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
