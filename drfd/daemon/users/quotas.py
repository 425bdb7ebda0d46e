"""Quotas of each user: bounds on connections, on what is kept for them, and on the rate of
submissions and changes, so that no user delays the others.
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
#: Bytes that are kept for one user's connections, all together: long requests that have begun and
#: are not answered, long replies that are not read, and ids of jobs, when they are many, that are
#: changed, waited for or listened to.
MAX_KEPT_BYTES = 32 << 20
#: What one of these ids takes.
ID_BYTES = 160

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
        self._kept: Counter[int] = Counter()
        #: By uid, when the changes counted so far are reached at the allowed rate.
        self._due_mono_s: dict[int, float] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no client is connected."""
        return not self._connections

    @contextmanager
    def connection(self, uid: int) -> Iterator[None]:
        """Count a connection for the length of the block. Raises Refused for one too many."""
        most = self._limits().connections
        if self._connections[uid] >= most:
            raise Refused(
                "too-many-connections",
                f"{_name(uid)} has {most} connections open, the most that is allowed",
                hint="end some of the programs that talk to drfd",
            )
        self._connections[uid] += 1
        try:
            yield
        finally:
            _give_back(self._connections, uid, 1)

    def keeping(self, uid: int) -> _Keeping:
        """Count what is kept for a client, for the length of the block, which calls the function
        that it gets with numbers of bytes. That raises Refused for too many."""
        return _Keeping(self._kept, uid)

    def take(self, uid: int, count: int, size: int = 0) -> float:
        """Count so many submissions and changes, with `size` bytes to be stored for each, and
        return for how many seconds the first of them must wait: 0 below the allowed rate."""
        now = self._mono()
        due = max(now, self._due_mono_s.get(uid, now))
        weight = count * (1 + size // WEIGHT_BYTES)
        self._due_mono_s[uid] = due + weight / self._limits().changes_per_s
        return max(0.0, due - now - BURST_S)


class _Keeping:
    """What is kept for one client. A class, because a generator takes three times as long."""

    __slots__ = ("_kept", "_own", "_uid")

    def __init__(self, kept: Counter[int], uid: int) -> None:
        self._kept, self._uid, self._own = kept, uid, 0

    def __enter__(self) -> Callable[[int], None]:
        return self._keep

    def __exit__(self, *_: object) -> None:
        if self._own:
            _give_back(self._kept, self._uid, self._own)

    def _keep(self, size: int) -> None:
        before = self._kept[self._uid]
        if before + size > MAX_KEPT_BYTES:
            raise Refused(
                "too-much-at-once",
                f"long requests, unread replies and named jobs of {_name(self._uid)} take "
                f"{before} bytes, and may take {MAX_KEPT_BYTES}",
                hint="send requests one after the other, and read the replies",
            )
        self._kept[self._uid] = before + size
        self._own += size


def _give_back(counter: Counter[int], uid: int, amount: int) -> None:
    """Subtract from a user's counter, and remove it at zero."""
    counter[uid] -= amount
    if not counter[uid]:
        del counter[uid]
