"""Submissions of one connection that are taken before those before them have been answered.

So they share commits, and a program with many of them is not held up by the disk for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from drfd.wire.codec import MAX_REQUEST_BYTES

_MOST = 128


class Ahead:
    def __init__(self, reader: asyncio.StreamReader) -> None:
        """`reader`: of the connection; it raises what one of them has broken with."""
        self._reader = reader
        #: Ends when its reply is sent, hence after all before it.
        self.last: asyncio.Task[None] | None = None
        self._count = self._size_bytes = 0

    def add(self, taking: Coroutine[None, None, None], size_bytes: int) -> None:
        self.last = asyncio.ensure_future(taking)
        self.last.add_done_callback(self._look)
        self._count += 1
        self._size_bytes += size_bytes

    def _look(self, taking: asyncio.Task[None]) -> None:
        """Its asker waits for a reply that will not come, and we for the next request."""
        error = None if taking.cancelled() else taking.exception()
        if isinstance(error, Exception):
            self._reader.set_exception(error)

    async def make_room(self, size_bytes: int) -> None:
        """No more than one long request, or so many short ones."""
        too_many = self._count >= _MOST
        if too_many or self._size_bytes + size_bytes > MAX_REQUEST_BYTES:
            await self.catch_up()

    async def catch_up(self) -> None:
        """Until all have been answered."""
        last, self.last = self.last, None
        self._count = self._size_bytes = 0
        if last is not None:
            await last

    def give_up(self) -> None:
        if self.last is not None:
            self.last.cancel()
            self.last = None
