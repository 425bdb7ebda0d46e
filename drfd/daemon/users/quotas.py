"""Quotas of each user: bounds on connections, requests, replies and rates, so that no user delays
the others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from drfd.common.errors import Refused
from drfd.core.model.job import Actor
from drfd.daemon.config import UserLimits

#: Seconds of a burst: the changes allowed in that time may come at once.
BURST_S = 100.0
#: Stored bytes that count like one more change.
WEIGHT_BYTES = 4096
#: Changes that a command inside a job counts as: the launcher moves its process on its only thread,
#: which may take hundredths of a second.
EXEC_CHANGES = 100
#: Seconds that a cancellation is delayed at most: it makes room.
MAX_CANCEL_DELAY_S = 1.0
#: Bytes of requests that have begun and are not answered, on all connections of one user together,
#: except short requests.
MAX_INCOMING_BYTES = 16 << 20
#: Jobs that one user's requests may wait for and listen to by their ids, all together.
MAX_NAMED = 200_000
#: Bytes of unread replies on all connections of one user together. Beyond it only short replies,
#: up to SHORT_BYTES, are sent.
MAX_UNREAD_BYTES = 64 << 20
SHORT_BYTES = 1 << 20

#: The uid for quotas of all uids without an account: one user may have 65,536 (subuid(5)).
STRANGERS = -1
#: The uid for quotas of a user until the directory has said whether there is an account.
UNKNOWN = -2


def quota_uid(actor: Actor) -> int:
    """Return the uid whose quotas a user's requests are charged to."""
    return actor.uid if actor.has_account else STRANGERS


def _name(uid: int) -> str:
    return "everybody without an account" if uid == STRANGERS else f"uid {uid}"


class Quotas:
    """The quotas of all users, by uid."""

    def __init__(
        self, limits: Callable[[], UserLimits], mono: Callable[[], float] = time.monotonic
    ) -> None:
        """`limits` returns the present limits of the configuration."""
        self._limits = limits
        self._mono = mono
        self._connections: Counter[int] = Counter()
        self._incoming: Counter[int] = Counter()
        self._awaited: Counter[int] = Counter()
        self._unread: Counter[int] = Counter()
        #: By uid, when the changes counted so far are reached at the allowed rate.
        self._due_mono_s: dict[int, float] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no client is connected."""
        return not self._connections

    def connection(self, uid: int) -> _Held:
        """Count a connection for the length of the block. Raises Refused for one too many."""
        most = self._limits().connections
        if self._connections[uid] >= most:
            raise Refused(
                "too-many-connections",
                f"{_name(uid)} has {most} connections open, the most that is allowed",
                hint="end some of the programs that talk to drfd",
            )
        return _Held(self._connections, uid, 1)

    @contextmanager
    def incoming(self, uid: int) -> Iterator[Callable[[int], None]]:
        """Count a request for the length of the block, from its first byte to its answer. The block
        calls the yielded function with the bytes of a long request, which raises Refused for too
        many."""
        own = 0

        def count(size: int) -> None:
            nonlocal own
            if self._incoming[uid] + size > MAX_INCOMING_BYTES:
                raise Refused(
                    "too-much-at-once",
                    f"{_name(uid)} has long requests under way on other connections",
                    hint="send them one after the other",
                )
            self._incoming[uid] += size
            own += size

        try:
            yield count
        finally:
            _give_back(self._incoming, uid, own)

    def awaiting(self, uid: int, count: int) -> _Held:
        """Count ids that a client waits for or listens to, as each takes memory. Raises Refused for
        too many."""
        total = self._awaited[uid] + count
        if total > MAX_NAMED:
            raise Refused(
                "too-many-ids",
                f"requests of {_name(uid)} would wait for {total} jobs; {MAX_NAMED} are the most",
                hint="name the array instead of its tasks, or fewer at a time",
            )
        return _Held(self._awaited, uid, count)

    def unread(self, uid: int, size: int) -> _Held:
        """Count a reply until it is read. Raises Refused if it is too long to keep until then."""
        before = self._unread[uid]
        if before and size > SHORT_BYTES and before + size > MAX_UNREAD_BYTES:
            raise Refused(
                "too-much-unread",
                f"{_name(uid)} has not read {before} bytes of replies on other connections",
                hint="read them, or end the programs that do not",
            )
        return _Held(self._unread, uid, size)

    def take(self, uid: int, count: int, size: int = 0) -> float:
        """Count so many submissions and changes, with `size` bytes to be stored for each, and
        return for how many seconds the first of them must wait: 0 below the allowed rate."""
        now = self._mono()
        due = max(now, self._due_mono_s.get(uid, now))
        weight = count * (1 + size // WEIGHT_BYTES)
        self._due_mono_s[uid] = due + weight / self._limits().changes_per_s
        return max(0.0, due - now - BURST_S)


class _Held:
    """Adds to a user's counter for the length of the block."""

    __slots__ = ("_amount", "_counter", "_uid")

    def __init__(self, counter: Counter[int], uid: int, amount: int) -> None:
        self._counter, self._uid, self._amount = counter, uid, amount

    def __enter__(self) -> None:
        self._counter[self._uid] += self._amount

    def __exit__(self, *error: object) -> None:
        _give_back(self._counter, self._uid, self._amount)


def _give_back(counter: Counter[int], uid: int, amount: int) -> None:
    """Subtract from a user's counter, and remove it at zero."""
    counter[uid] -= amount
    if not counter[uid]:
        del counter[uid]
