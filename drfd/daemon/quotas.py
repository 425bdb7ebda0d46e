"""What one user may have of the daemon at a time, so that nobody else has to wait for him.

Requests of one user are worked on a few at a time: who comes with hundreds waits for himself.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from drfd.daemon.config import Limits
from drfd.errors import Refused

#: Requests of one user that are worked on at a time, and that are read.
AT_ONCE = 16
#: As many submissions as are allowed in this time may come all at once.
BURST_S = 100.0
#: Bytes of requests that have begun and are not answered, on all connections of one user together.
#: A short one is not counted: everybody may have one on each of his connections.
MAX_COMING_BYTES = 16 << 20
#: Jobs that one user's connections may wait for or listen to by their ids, all together.
MAX_AWAITED = 200_000
#: Bytes of replies that one user has not read yet, on all connections together; no longer reply is
#: added to them than a short one, which anybody gets.
MAX_UNREAD_BYTES = 64 << 20
SHORT_BYTES = 1 << 20

#: All uids without an account count as one user: anybody may have 65,536 of them (subuid(5)).
STRANGERS = -1


class Quotas:
    def __init__(
        self, limits: Callable[[], Limits], mono: Callable[[], float] = time.monotonic
    ) -> None:
        """`limits`: as the configuration has them now."""
        self._limits = limits
        self._mono = mono
        self._connections: Counter[int] = Counter()
        self._coming: Counter[int] = Counter()
        self._awaited: Counter[int] = Counter()
        self._unread: Counter[int] = Counter()
        self._working: dict[int, asyncio.Semaphore] = {}
        self._reading: dict[int, asyncio.Semaphore] = {}
        #: When the submissions that have come until now would all be there at the usual rate.
        self._due_mono_s: dict[int, float] = {}

    @property
    def is_idle(self) -> bool:
        """Nobody is connected."""
        return not self._connections

    @contextmanager
    def connection(self, uid: int) -> Iterator[None]:
        """For as long as it lasts. Raises Refused for one too many."""
        most = self._limits().connections
        if self._connections[uid] >= most:
            raise Refused(
                "too-many-connections",
                f"uid {uid} has {most} connections open, the most that is allowed",
                hint="end some of the programs that talk to drfd",
            )
        self._connections[uid] += 1
        try:
            yield
        finally:
            _give_back(self._connections, uid, 1)

    @contextmanager
    def coming(self, uid: int) -> Iterator[Callable[[int], None]]:
        """While a request comes in and is answered: to be told how many bytes more it has, if it
        is a long one. Raises Refused for too much."""
        own = 0

        def count(size: int) -> None:
            nonlocal own
            if self._coming[uid] + size > MAX_COMING_BYTES:
                raise Refused(
                    "too-much-at-once",
                    f"uid {uid} has long requests under way on other connections",
                    hint="send them one after the other",
                )
            self._coming[uid] += size
            own += size

        try:
            yield count
        finally:
            _give_back(self._coming, uid, own)

    @contextmanager
    def awaiting(self, uid: int, count: int) -> Iterator[None]:
        """While so many ids are waited for; each costs memory until then. Raises Refused."""
        total = self._awaited[uid] + count
        if total > MAX_AWAITED:
            raise Refused(
                "too-many-ids",
                f"uid {uid} would wait for {total} jobs by their ids; {MAX_AWAITED} are the most",
                hint="name the array instead of its tasks, or wait for fewer at a time",
            )
        self._awaited[uid] = total
        try:
            yield
        finally:
            _give_back(self._awaited, uid, count)

    @contextmanager
    def unread(self, uid: int, size: int) -> Iterator[None]:
        """While a reply of so many bytes is not read. Raises Refused for what is too much to keep
        until then."""
        before = self._unread[uid]
        if before and size > SHORT_BYTES and before + size > MAX_UNREAD_BYTES:
            raise Refused(
                "too-much-unread",
                f"uid {uid} has not read {before} bytes of replies on other connections",
                hint="read them, or end the programs that do not",
            )
        self._unread[uid] += size
        try:
            yield
        finally:
            _give_back(self._unread, uid, size)

    def turn(self, uid: int) -> Turn:
        """To work on one request."""
        return Turn(self._working.setdefault(uid, asyncio.Semaphore(AT_ONCE)))

    def look(self, uid: int) -> Turn:
        """To find out what one request asks for. All that the connections of one user bring at once
        would take seconds."""
        return Turn(self._reading.setdefault(uid, asyncio.Semaphore(AT_ONCE)))

    def early_s(self, uid: int) -> float:
        """One more submission has come; how long it is to wait. Zero, but for programs that go on
        and on."""
        now = self._mono()
        due = max(now, self._due_mono_s.get(uid, now))
        self._due_mono_s[uid] = due + 1 / self._limits().submissions_per_s
        return max(0.0, due - now - BURST_S)


def _give_back(counter: Counter[int], uid: int, amount: int) -> None:
    """Nobody stands in a counter with nothing."""
    counter[uid] -= amount
    if not counter[uid]:
        del counter[uid]


class Turn:
    """One of the places of a user; in it as long as the block lasts, or until one leaves."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_in = False

    async def __aenter__(self) -> Turn:
        await self._places.acquire()
        self._is_in = True
        return self

    async def __aexit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """What is still to be done takes nobody's time."""
        if self._is_in:
            # In the next round of the loop: until then others have had their turn.
            asyncio.get_running_loop().call_soon(self._places.release)
        self._is_in = False
