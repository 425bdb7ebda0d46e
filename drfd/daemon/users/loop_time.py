"""Shares of the loop's time: users are charged the cost of their own work.

A step of a task is the code that runs between two points at which it waits. Each step is measured.
A user may use `QUANTUM_S` at once, and in the long run as much time as passes without that user.
Further steps wait, whatever the user's connections and requests are, so that only little work of
one user lies between two steps of another. A user who is alone may use `ALONE_QUANTUM_S` in each
round of the loop.

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


#: Seconds of the loop's time that a user may take at once.
QUANTUM_S = 0.005
#: Seconds that a user who is alone may take in a round of the loop: requests that arrive together
#: share commits.
ALONE_QUANTUM_S = 0.01
#: Seconds without a step of another user after which a user is alone.
ALONE_S = 0.2
#: Seconds of a step from which on the processor time is read too, as the kernel may have run other
#: programs meanwhile. Reading it costs as much as a third of a short step.
LONG_S = 0.0005
#: Seconds after which the processor time is read again before a step.
_READ_AGAIN_S = 0.001
#: Seconds of processor time that only steps of long requests need. Part of a reading may belong to
#: other steps since the last one.
_MUCH_S = 0.0025
#: Number of shares from which on shares without debts are dropped.
_MOST_SHARES = 1024


@dataclass(eq=False, slots=True)
class _Share:
    """A user's share of the loop."""

    #: When time without this user will have matched the cost of the user's steps.
    paid_s: float = 0.0
    #: Estimated cost of a step, by the costliest recent ones.
    step_s: float = 0.0
    #: Whether the user, being alone, has begun a new quantum in this round of the loop.
    is_renewed: bool = False
    #: Tasks that wait for their next step, in the order of arrival.
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    #: Steps that were released and have not run: they run in this round of the loop or the next.
    released: int = 0
    #: The next release of waiting tasks.
    next: asyncio.Handle | None = None


class LoopTime:
    """Measures steps of work on the loop, and delays those of users who have used too much."""

    def __init__(
        self,
        mono: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """`cpu` returns the processor time of the loop's thread."""
        self._mono = mono
        self._cpu = cpu
        #: The last reading of the processor time, and its time.
        self._read_cpu_s, self._read_s = cpu(), mono()
        self.shares: dict[int, _Share] = {}
        #: The user of the last step, its time, and the time of the last step of any other user.
        self._last_uid: int | None = None
        self._last_s = self._others_s = float("-inf")

    async def metered(self, uid: int, work: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Return what `work` returns. Its steps are measured, and delayed if need be."""
        result: T = await _steps(self, uid, work(*arguments).__await__())
        return result

    def begin(self) -> float:
        """Start a measurement, and return the time to be given to `cost_s`."""
        now_s = self._mono()
        if now_s - self._read_s >= _READ_AGAIN_S:
            self._read_cpu_s, self._read_s = self._cpu(), now_s
        return now_s

    def cost_s(self, since_s: float) -> float:
        """Return the cost of the work since `since_s`: the time that it took, but no more than the
        processor time of this thread since the last reading. Work that needs much processor time
        costs all the time that it took: where the kernel runs other programs most of the time, too
        little would otherwise pass between two such steps for the steps of other users."""
        now_s = self._mono()
        took_s = now_s - since_s
        if took_s < LONG_S:
            return took_s
        before_s, self._read_cpu_s, self._read_s = self._read_cpu_s, self._cpu(), now_s
        cpu_s = self._read_cpu_s - before_s
        return took_s if cpu_s >= _MUCH_S else min(took_s, cpu_s)

    def charge(self, uid: int, cost_s: float) -> None:
        """Charge a user for work that the loop has just done."""
        now_s = self._mono()
        if uid != self._last_uid:
            self._others_s, self._last_uid = self._last_s, uid
        self._last_s = now_s
        share = self.shares.get(uid) or self._add(uid, now_s)
        # The time of the work itself pays nothing.
        paid_s = now_s - cost_s
        if share.paid_s > paid_s:
            paid_s = share.paid_s
        share.paid_s = paid_s + 2 * cost_s
        step_s = share.step_s * 0.98
        share.step_s = cost_s if cost_s > step_s else step_s

    def may_go(self, uid: int, now_s: float) -> bool:
        """Whether the user's next step may run at once."""
        share = self.shares.get(uid)
        if share is None:
            return True
        if share.waiting or share.released:
            # Steps that came before go first.
            return False
        if share.paid_s <= now_s + QUANTUM_S:
            return True
        if not self._is_alone(uid, now_s):
            return False
        if share.paid_s <= now_s + ALONE_QUANTUM_S:
            return True
        if share.is_renewed:
            return False
        share.paid_s = now_s
        share.is_renewed = True
        asyncio.get_running_loop().call_soon(_end_round, share)
        return True

    def _is_alone(self, uid: int, now_s: float) -> bool:
        others_s = self._others_s if uid == self._last_uid else self._last_s
        return now_s - others_s >= ALONE_S

    def wait(self, uid: int) -> Generator[Any, Any, None]:
        """Wait until the user's next step may run, in the order of the calls."""
        share = self.shares.get(uid) or self._add(uid, self._mono())
        permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append(permit)
        if share.next is None:
            share.next = self._plan(uid, share)
        try:
            yield from permit
        finally:
            # A step that is closed before its release must not be released later.
            if not permit.cancel() and not permit.cancelled():
                share.released -= 1

    def _left_s(self, uid: int, share: _Share) -> float:
        """Return how long the user must still wait or, below zero, how long the next steps may
        take. Charges are dropped while the user is alone."""
        now_s = self._mono()
        if self._is_alone(uid, now_s):
            share.paid_s = min(share.paid_s, now_s)
            return -ALONE_QUANTUM_S
        return max(0.0, share.paid_s - now_s) - QUANTUM_S

    def _plan(self, uid: int, share: _Share) -> asyncio.Handle:
        loop = asyncio.get_running_loop()
        left_s = self._left_s(uid, share)
        if left_s > 0:
            return loop.call_later(left_s, self._release, uid, share)
        return loop.call_soon(self._release, uid, share)

    def _release(self, uid: int, share: _Share) -> None:
        """Release at least one waiting step, and as many as there is time for if all are costly."""
        share.next = None
        left_s = self._left_s(uid, share)
        if left_s <= 0:
            count = max(1, int(-left_s / share.step_s)) if share.step_s > 0 else 1
            while share.waiting and count:
                permit = share.waiting.popleft()
                if not permit.done():
                    permit.set_result(None)
                    share.released += 1
                    count -= 1
        if share.waiting:
            # The released steps run in the next round of the loop, and their cost is known then.
            loop = asyncio.get_running_loop()
            share.next = loop.call_soon(self._plan_again, uid, share)

    def _plan_again(self, uid: int, share: _Share) -> None:
        share.next = self._plan(uid, share)

    def _add(self, uid: int, now_s: float) -> _Share:
        if len(self.shares) >= _MOST_SHARES:
            kept = {
                uid: share
                for uid, share in self.shares.items()
                if share.waiting or share.released or share.paid_s > now_s
            }
            self.shares = kept
        share = self.shares[uid] = _Share()
        return share


def _end_round(share: _Share) -> None:
    share.is_renewed = False


@coroutine
def _steps(loop_time: LoopTime, uid: int, work: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Do the work step by step."""
    error: BaseException | None = None
    while True:
        since_s = loop_time.begin()
        if error is None and not loop_time.may_go(uid, since_s):
            try:
                yield from loop_time.wait(uid)
            except BaseException as caught:
                # A cancelled task ends at once.
                error = caught
            since_s = loop_time.begin()
        try:
            if error is None:
                waits_for = work.send(None)
            else:
                thrown, error = error, None
                waits_for = work.throw(thrown)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            loop_time.charge(uid, loop_time.cost_s(since_s))
        try:
            yield waits_for
        except BaseException as caught:
            error = caught
