"""Shares of the loop's time: deficit round robin over users (M. Shreedhar and G. Varghese,
"Efficient Fair Queuing Using Deficit Round-Robin", 1995).

A step of a task is the code that runs between two points at which it waits. In each round a user
may use SLICE_S; what the steps have used above that is missing in the next rounds. Further steps
wait for these, in the order of arrival, whatever the user's connections and requests are, so that
only little work of one user lies between two steps of another. Between two rounds the loop is free
for SLICE_S, so that who needs little is soon served; but not as long as one user is alone.

Long work on the loop yields between its parts (`CooperativeYield`, `in_parts`).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass, field
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds of one part of long work.
PART_S = 0.002
#: Seconds of the loop's time that a user may use in a round, and that lie between two rounds.
SLICE_S = 0.005
#: Seconds without work of another user after which a user is alone.
ALONE_S = 0.2


class PerUserLocks(defaultdict[int, asyncio.Lock]):
    """A lock for each uid: a user's requests of one kind wait for each other, not for others'."""

    def __init__(self) -> None:
        super().__init__(asyncio.Lock)


class CooperativeYield:
    """Yields to other tasks at intervals during one long piece of work. State may change at every
    `maybe_yield`."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()

    async def maybe_yield(self) -> None:
        """Yield if PART_S have passed since the last time. To be called often."""
        if time.monotonic() - self._since_s >= PART_S:
            await asyncio.sleep(0)
            self._since_s = time.monotonic()


async def in_parts(do: Callable[[T], None], each: Iterable[T]) -> None:
    """Call `do` with each item, yielding between parts. A cancellation does the rest at once."""
    yielding, left = CooperativeYield(), list(each)
    try:
        while left:
            do(left.pop())
            await yielding.maybe_yield()
    finally:
        for one in left:
            do(one)


@dataclass(eq=False, slots=True)
class _Share:
    """A user's share of the loop."""

    #: Seconds left in this round; below zero, what the next rounds are short of.
    left_s: float = SLICE_S
    #: Estimated cost of a step, by the costliest recent ones.
    step_s: float = 0.0
    #: Tasks that wait for their next step, in the order of arrival.
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    #: Steps that were released and have not run yet.
    released: int = 0


class LoopTime:
    """Measures steps of work on the loop, and delays those of users who have used too much."""

    def __init__(self, mono: Callable[[], float] = time.monotonic) -> None:
        self.mono = mono
        #: Of users who have used some of their slice since a round last gave them a whole one.
        self.shares: defaultdict[int, _Share] = defaultdict(_Share)
        self._has_next = False
        #: The user of the last step, its time, and the time of the last step of any other user.
        self._last_uid: int | None = None
        self._last_s = self._others_s = float("-inf")

    async def metered(self, uid: int, work: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Return what `work` returns. Its steps are measured, and delayed if need be."""
        result: T = await _steps(self, uid, work(*arguments).__await__())
        return result

    def charge(self, uid: int, cost_s: float) -> None:
        """Charge a user for work that the loop has just done."""
        if uid != self._last_uid:
            self._others_s, self._last_uid = self._last_s, uid
        self._last_s = self.mono()
        share = self.shares[uid]
        share.left_s -= cost_s
        share.step_s = max(cost_s, share.step_s * 0.98)

    def may_go(self, uid: int) -> bool:
        """Whether the user's next step may run at once: steps that came before go first."""
        share = self.shares.get(uid)
        return share is None or (share.left_s > 0 and not share.waiting and not share.released)

    def wait(self, uid: int) -> Generator[Any, Any, None]:
        """Wait until the user's next step may run."""
        permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share = self.shares[uid]
        share.waiting.append(permit)
        self._plan_round()
        try:
            yield from permit
        finally:
            # A step that is closed before its release must not be released later.
            if not permit.cancel() and not permit.cancelled():
                share.released -= 1

    def _plan_round(self) -> None:
        if not self._has_next:
            self._has_next = True
            is_alone = self.mono() - self._others_s >= ALONE_S
            pause_s = 0.0 if is_alone else SLICE_S
            asyncio.get_running_loop().call_later(pause_s, self._begin_round)

    def _begin_round(self) -> None:
        """Give everybody the next part, and release as many waiting steps as there is time for if
        all are costly. There are no rounds while nobody waits."""
        self._has_next = False
        for uid, share in list(self.shares.items()):
            share.left_s = min(SLICE_S, share.left_s + SLICE_S)
            count = max(1, int(share.left_s / share.step_s)) if share.step_s else 1
            while share.left_s > 0 and share.waiting and count:
                permit = share.waiting.popleft()
                if not permit.done():
                    permit.set_result(None)
                    share.released += 1
                    count -= 1
            if share.waiting:
                self._plan_round()
            elif share.left_s == SLICE_S and not share.released:
                del self.shares[uid]


@coroutine
def _steps(loop_time: LoopTime, uid: int, work: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Do the work step by step."""
    error: BaseException | None = None
    while True:
        if error is None and not loop_time.may_go(uid):
            try:
                yield from loop_time.wait(uid)
            except BaseException as caught:
                # A cancelled task ends at once.
                error = caught
        since_s = loop_time.mono()
        try:
            waits_for = work.send(None) if error is None else work.throw(error)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            # It refers to this frame: both would wait for a garbage collection.
            error = None
            loop_time.charge(uid, loop_time.mono() - since_s)
        try:
            yield waits_for
        except BaseException as caught:
            error = caught
