"""User names of uids, asked from the user directory off the loop and cached.

A directory service that is slow or broken delays only users whose name is not cached, and they are
told to try again: that a uid has no account is said only when the directory says so. A cached name
is no longer used once /etc/passwd says something else of its uid than when the name was learned,
because a deleted account's uid may be another's at once.

The directory is asked in threads of its own, from a bounded queue. In the threads that the loop
shares out, a directory that hangs would keep history and forecasts waiting as well. All threads are
started at once, because a machine that has run out of processes starts no new ones; they do not
keep the process from ending.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeVar

from drfd.common.errors import DrfdError, HostError, Unavailable
from drfd.core.model.stimuli import Actor
from drfd.linux.user_database import DirectoryAnswer, LocalAccounts, Subordinates, look_up_name

log = logging.getLogger("drfd")

#: Seconds between two log lines about failures of the directory.
_LOG_PAUSE_S = 60.0

A = TypeVar("A")


@dataclass(slots=True)
class _Inquiry(Generic[A]):
    uid: int
    since_mono_s: float
    answer: asyncio.Future[A]
    #: Number of clients that wait for the answer.
    wanted: int = 0
    #: Whether the answer is wanted for the cache, even if no client waits for it.
    is_for_memory: bool = False
    is_begun: bool = field(default=False)


class Inquiries(Generic[A]):
    """Look-ups of one kind, each uid once at a time, in the order in which they were asked for."""

    def __init__(
        self,
        look_up: Callable[[int], A],
        learn: Callable[[int, A], None],
        *,
        threads: int,
        most: int,
    ) -> None:
        """`learn` is called with each answer on the loop, before its clients get it. `most` bounds
        the questions that are open. Raises HostError if the threads cannot be started."""
        self._look_up = look_up
        self._learn = learn
        self._most = most
        self._open: dict[int, _Inquiry[A]] = {}
        self._waiting: deque[_Inquiry[A]] = deque()
        self._idle = self._threads = threads
        self._logged_mono_s = float("-inf")
        self._orders: SimpleQueue[tuple[_Inquiry[A], asyncio.AbstractEventLoop] | None]
        self._orders = SimpleQueue()
        try:
            for _ in range(threads):
                threading.Thread(target=self._work, name="drfd-directory", daemon=True).start()
        except RuntimeError as error:
            self.close()
            raise HostError("threads", f"cannot start {threads} threads: {error}") from None

    def close(self) -> None:
        """End the threads when the directory has answered their present questions."""
        for _ in range(self._threads):
            self._orders.put(None)

    def age_s(self, uid: int) -> float | None:
        """Return for how many seconds the question has been open, or None if it is not."""
        inquiry = self._open.get(uid)
        return None if inquiry is None else time.monotonic() - inquiry.since_mono_s

    def ask(self, uid: int) -> None:
        """Have the answer learned eventually, if there is room for one more question."""
        inquiry = self._add(uid)
        if inquiry is not None:
            inquiry.is_for_memory = True

    async def answer(self, uid: int) -> A:
        """Return the directory's answer. Raises Unavailable if the directory fails, or too many
        questions are open. A question whose last client stops waiting before it is asked is
        dropped."""
        inquiry = self._add(uid)
        if inquiry is None:
            raise directory_slow(uid, f"has {self._most} questions to answer before")
        inquiry.wanted += 1
        try:
            return await asyncio.shield(inquiry.answer)
        finally:
            inquiry.wanted -= 1
            is_unwanted = not inquiry.wanted and not inquiry.is_for_memory
            if is_unwanted and not inquiry.is_begun and self._open.get(uid) is inquiry:
                del self._open[uid]
                self._waiting.remove(inquiry)

    def _add(self, uid: int) -> _Inquiry[A] | None:
        inquiry = self._open.get(uid)
        if inquiry is None and len(self._open) < self._most:
            future = asyncio.get_running_loop().create_future()
            inquiry = self._open[uid] = _Inquiry(uid, time.monotonic(), future)
            self._waiting.append(inquiry)
            self._begin()
        return inquiry

    def _begin(self) -> None:
        while self._idle and self._waiting:
            inquiry = self._waiting.popleft()
            inquiry.is_begun = True
            self._idle -= 1
            self._orders.put((inquiry, inquiry.answer.get_loop()))

    def _work(self) -> None:
        """Ask the directory, in a thread."""
        while (order := self._orders.get()) is not None:
            inquiry, loop = order
            answered: A | Exception
            try:
                answered = self._look_up(inquiry.uid)
            except Exception as error:
                answered = error
            try:
                loop.call_soon_threadsafe(self._end, inquiry, answered)
            except RuntimeError:
                # The loop has ended.
                return

    def _end(self, inquiry: _Inquiry[A], answered: A | Exception) -> None:
        self._idle += 1
        del self._open[inquiry.uid]
        if isinstance(answered, Exception):
            self._log_failure(answered)
            if inquiry.wanted:
                inquiry.answer.set_exception(directory_slow(inquiry.uid, f"fails: {answered}"))
        else:
            self._learn(inquiry.uid, answered)
            inquiry.answer.set_result(answered)
        self._begin()

    def _log_failure(self, error: Exception) -> None:
        if time.monotonic() - self._logged_mono_s >= _LOG_PAUSE_S:
            self._logged_mono_s = time.monotonic()
            log.warning("event=directory-fails error=%s", error)


def directory_slow(uid: int, what: str) -> Unavailable:
    """Return the error for an unknown uid. `what` completes "the user directory ..."."""
    return Unavailable(
        "directory-slow",
        f"drfd cannot find out now who uid {uid} is: the user directory {what}",
        hint="try again in a moment",
    )


#: Seconds that a request waits for the directory to confirm a cached name that is too old. Then the
#: name is used, for as long again as a cached name may be old.
PATIENCE_S = 0.5
#: Seconds that a client waits for the name of an uncached uid, at most.
WAIT_S = 20.0
#: Cached names, and cached uids without a name; the least recently used ones are dropped.
MOST_NAMES = 4096
MOST_NAMELESS = 1024

#: Returns the user name of a uid, or None when there is no such account. Any error that it raises
#: means that the directory could not be asked.
LookUp = Callable[[int], str | None]


@dataclass(slots=True)
class _Known:
    """A cached name; times are of the monotonic clock."""

    answer: DirectoryAnswer
    since_s: float
    #: When it was learned, or when the directory last failed to answer in time.
    tried_s: float


class Accounts:
    """The users of the machine by uid, with one look-up at a time for each uid, however many
    connections wait for it.

    Three kinds of look-ups have threads and a bounded queue of their own: unknown uids; names that
    are asked for again; and subordinate uids (subuid(5)), of which one user may have 65,536 and
    would keep all threads busy.
    """

    def __init__(
        self,
        admins: frozenset[int],
        look_up: LookUp = look_up_name,
        *,
        subordinates: Subordinates | None = None,
        local: LocalAccounts | None = None,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admins = admins
        self._look_up = look_up
        self._mono = mono
        self._subordinates = subordinates or Subordinates()
        self._local = local or LocalAccounts()
        self.names: OrderedDict[int, _Known] = OrderedDict()
        self.nameless: OrderedDict[int, _Known] = OrderedDict()
        self._firsts = Inquiries(self._ask, self._learn, threads=2, most=256)
        self._again = Inquiries(self._ask, self._learn, threads=1, most=256)
        self._lowest = Inquiries(self._ask, self._learn, threads=1, most=32)

    def close(self) -> None:
        """End the threads, except those that the directory has not answered."""
        for inquiries in (self._firsts, self._again, self._lowest):
            inquiries.close()

    def at_hand(self, uid: int) -> Actor | None:
        """Return the user from the cache, or None if `actor` has to ask the directory first."""
        known = self._recall(self.names, uid)
        if known is not None:
            self.names.move_to_end(uid)
            now_s = self._mono()
            fresh_s, aged_s = known.answer.ages_s()
            if now_s - known.since_s >= fresh_s:
                begun_s = self._again.age_s(uid)
                if begun_s is None:
                    self._again.ask(uid)
                is_patient = begun_s is None or begun_s < PATIENCE_S
                if now_s - known.tried_s >= aged_s and is_patient:
                    return None
            return self._actor(uid, known.answer.name)
        known = self._recall(self.nameless, uid)
        if known is not None and self._mono() - known.since_s < known.answer.ages_s()[1]:
            self.nameless.move_to_end(uid)
            return self._actor(uid, None)
        return None

    def is_known(self, uid: int) -> bool:
        """Whether a name is cached, however old."""
        return self._recall(self.names, uid) is not None

    def is_subordinate(self, uid: int) -> bool:
        return self._subordinates.has(uid)

    async def actor(self, uid: int) -> Actor:
        """Return the user of a uid, with the number in place of a name where there is none. Raises
        Unavailable if the directory cannot say whether there is one. A caller that no longer waits
        cancels; a look-up that nobody waits for is not begun."""
        try:
            async with asyncio.timeout(WAIT_S):
                found = self.at_hand(uid)
                while found is None:
                    found = await self._found_out(uid)
                return found
        except TimeoutError:
            raise directory_slow(uid, f"has not answered for {WAIT_S:g} s") from None

    async def _found_out(self, uid: int) -> Actor | None:
        """Return the user by the directory's answer, or by the cache if the directory is slow.
        Returns None if /etc/passwd has changed meanwhile: the answer may be about another account.
        """
        known = self._recall(self.names, uid)
        if known is None:
            answer = await (self._lowest if self.is_subordinate(uid) else self._firsts).answer(uid)
            return self._actor(uid, answer.name) if answer.holds(uid, self._local) else None
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await self._again.answer(uid)
        except (TimeoutError, DrfdError):
            if not known.answer.holds(uid, self._local):
                return None
            known.tried_s = self._mono()
            answer = known.answer
        return self._actor(uid, answer.name) if answer.holds(uid, self._local) else None

    def _recall(self, kept: OrderedDict[int, _Known], uid: int) -> _Known | None:
        known = kept.get(uid)
        if known is not None and not known.answer.holds(uid, self._local):
            del kept[uid]
            return None
        return known

    def _actor(self, uid: int, name: str | None) -> Actor:
        is_admin = uid in self._admins
        # The owner of a private daemon needs no account: containers have uids without names.
        has_account = name is not None or is_admin
        return Actor(name or str(uid), uid, is_admin=is_admin, has_account=has_account)

    def _ask(self, uid: int) -> DirectoryAnswer:
        """Ask the directory, in a thread of an `Inquiries`."""
        local = self._local.name_of(uid)
        try:
            return DirectoryAnswer(self._look_up(uid), local)
        except OSError:
            # In a container whose directory is not running, the owner of a daemon has no name.
            if uid in self._admins and uid not in self.names:
                return DirectoryAnswer(None, local)
            raise

    def _learn(self, uid: int, answer: DirectoryAnswer) -> None:
        """Cache an answer, even if nobody waits for it any more: the next request finds it."""
        if not answer.holds(uid, self._local):
            return
        self.names.pop(uid, None)
        self.nameless.pop(uid, None)
        now_s = self._mono()
        kept = self.nameless if answer.name is None else self.names
        kept[uid] = _Known(answer, now_s, now_s)
        for each, most in ((self.names, MOST_NAMES), (self.nameless, MOST_NAMELESS)):
            while len(each) > most:
                each.popitem(last=False)
