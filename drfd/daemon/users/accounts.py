"""User names of uids, asked from the user directory off the loop and cached.

A directory service that is slow or broken delays only users whose name is not cached, and they are
told to try again: that a uid has no account is said only when the directory says so. A cached name
is no longer used once /etc/passwd says something else of its uid than when the name was learned,
because a deleted account's uid may be another's at once.

The directory is asked in threads of its own, from a bounded queue. In the threads that the loop
shares out, a directory that hangs would keep history and forecasts waiting as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from drfd.common.errors import DrfdError, Unavailable
from drfd.core.model.job import Actor
from drfd.daemon.users.threads import ThreadPool
from drfd.linux.user_database import LocalAccounts, Subordinates, look_up_name

log = logging.getLogger("drfd")

#: Threads that ask the directory about unknown uids, and questions that are open at a time.
_FIRST_THREADS = 2
MAX_QUESTIONS = 256
#: Seconds between two log lines about failures of the directory.
_LOG_PAUSE_S = 60.0
#: Seconds that a request waits for the directory to confirm a cached name that is too old. Then the
#: name is used, for as long again as a cached name may be old.
PATIENCE_S = 0.5
#: Seconds that a client waits for the name of an uncached uid, at most.
WAIT_S = 20.0
#: Cached answers; the least recently used ones are dropped, those without a name first.
MAX_CACHED = 4096

#: Ages in seconds from which an answer is refreshed, and beyond which it is not used any more: that
#: a uid has no account, a name that is in /etc/passwd too, and a name of the directory alone.
_NAMELESS_AGES_S = 60.0, 60.0
_LOCAL_AGES_S = 60.0, 600.0
_REMOTE_AGES_S = 5.0, 15.0

#: Returns the user name of a uid, or None when there is no such account. Any error that it raises
#: means that the directory could not be asked.
LookUp = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class DirectoryAnswer:
    """The answer of the directory for a uid."""

    name: str | None
    #: The uid's name in /etc/passwd before the directory was asked, or None if it had none there.
    local: str | None

    def ages_s(self) -> tuple[float, float]:
        """Return the ages in seconds at which the answer is refreshed and at which it expires."""
        if self.name is None:
            return _NAMELESS_AGES_S
        return _LOCAL_AGES_S if self.name == self.local else _REMOTE_AGES_S

    def holds(self, uid: int, local: LocalAccounts) -> bool:
        """Return whether /etc/passwd gives the uid the same name as before the answer. If not, the
        uid may have another account by now."""
        return self.local == local.name_of(uid)


@dataclass(slots=True)
class _Known:
    """A cached answer; times are of the monotonic clock."""

    answer: DirectoryAnswer
    since_s: float
    #: When it was learned, or when the directory last failed to answer in time.
    tried_s: float


@dataclass(eq=False, slots=True)
class _Question:
    """A question to the directory, and the same in the loop's terms."""

    work: Future[DirectoryAnswer]
    answer: asyncio.Future[DirectoryAnswer]
    #: Number of clients that wait, and one more if the cache wants the answer. A question that
    #: nobody wants any more is not put to the directory.
    wanted: int = 0


class Accounts:
    """The users of the machine by uid, with one look-up at a time for each uid, however many
    connections wait for it. Subordinate uids (subuid(5)) are never looked up, as one user may have
    65,536 of them: they have no account unless /etc/passwd says so."""

    def __init__(
        self,
        admins: frozenset[int],
        look_up: LookUp = look_up_name,
        *,
        subordinates: Subordinates | None = None,
        local: LocalAccounts | None = None,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises HostError if the threads cannot be started."""
        self._admins = admins
        self._look_up = look_up
        self._mono = mono
        self._subordinates = subordinates or Subordinates()
        self._local = local or LocalAccounts()
        self.cached: OrderedDict[int, _Known] = OrderedDict()
        self._open: dict[int, _Question] = {}
        self._first = ThreadPool(_FIRST_THREADS, "drfd-directory")
        #: Known uids have a thread of their own: a directory that hangs keeps no others waiting.
        self._again = ThreadPool(1, "drfd-directory")
        self._logged_mono_s = float("-inf")

    def close(self) -> None:
        """End the threads, except those that the directory has not answered."""
        self._first.shutdown()
        self._again.shutdown()

    def at_hand(self, uid: int) -> Actor | None:
        """Return the user from the cache, or None if `actor` has to ask the directory first."""
        known = self._recall(uid)
        if known is None:
            is_subordinate = self._subordinates.has(uid) and self._local.name_of(uid) is None
            return self._actor(uid, None) if is_subordinate else None
        now_s = self._mono()
        fresh_s, aged_s = known.answer.ages_s()
        if known.answer.name is not None and now_s - known.since_s >= fresh_s:
            # Refreshed for the requests to come.
            with suppress(Unavailable):
                self._ask(uid).wanted += 1
        if now_s - known.tried_s >= aged_s:
            return None
        self.cached.move_to_end(uid)
        return self._actor(uid, known.answer.name)

    def is_known(self, uid: int) -> bool:
        """Whether a name is cached, however old."""
        known = self._recall(uid)
        return known is not None and known.answer.name is not None

    async def actor(self, uid: int) -> Actor:
        """Return the user of a uid, with the number in place of a name where there is none. Raises
        Unavailable if the directory cannot say whether there is one. A caller that no longer waits
        cancels."""
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
        known = self._recall(uid) if self.is_known(uid) else None
        try:
            async with asyncio.timeout(PATIENCE_S if known is not None else None):
                answer = await self._answer(uid)
        except (TimeoutError, DrfdError):
            if known is None:
                raise
            known.tried_s = self._mono()
            answer = known.answer
        return self._actor(uid, answer.name) if answer.holds(uid, self._local) else None

    def _recall(self, uid: int) -> _Known | None:
        known = self.cached.get(uid)
        if known is not None and not known.answer.holds(uid, self._local):
            del self.cached[uid]
            return None
        return known

    def _actor(self, uid: int, name: str | None) -> Actor:
        is_admin = uid in self._admins
        # The owner of a private daemon needs no account: containers have uids without names.
        has_account = name is not None or is_admin
        return Actor(name or str(uid), uid, is_admin=is_admin, has_account=has_account)

    # -- questions ------------------------------------------------------------------------------

    def _ask(self, uid: int) -> _Question:
        """Return the open question for a uid, a new one if need be. Raises Unavailable if too many
        are open."""
        question = self._open.get(uid)
        if question is None:
            if len(self._open) >= MAX_QUESTIONS:
                raise directory_slow(uid, f"has {MAX_QUESTIONS} questions to answer before")
            pool = self._again if uid in self.cached else self._first
            work = pool.submit(self._look_up_one, uid)
            question = self._open[uid] = _Question(work, asyncio.wrap_future(work))
            question.answer.add_done_callback(partial(self._end, uid))
        return question

    async def _answer(self, uid: int) -> DirectoryAnswer:
        question = self._ask(uid)
        question.wanted += 1
        try:
            return await asyncio.shield(question.answer)
        finally:
            question.wanted -= 1
            if not question.wanted and question.work.cancel():
                del self._open[uid]

    def _look_up_one(self, uid: int) -> DirectoryAnswer:
        """Ask the directory, in a thread. Raises Unavailable."""
        local = self._local.name_of(uid)
        try:
            return DirectoryAnswer(self._look_up(uid), local)
        except Exception as error:
            # In a container whose directory is not running, the owner of a daemon has no name.
            if isinstance(error, OSError) and uid in self._admins and not self.is_known(uid):
                return DirectoryAnswer(None, local)
            raise directory_slow(uid, f"fails: {error}") from error

    def _end(self, uid: int, answer: asyncio.Future[DirectoryAnswer]) -> None:
        if answer.cancelled():
            return
        del self._open[uid]
        error = answer.exception()
        if error is None:
            self._learn(uid, answer.result())
        elif time.monotonic() - self._logged_mono_s >= _LOG_PAUSE_S:
            self._logged_mono_s = time.monotonic()
            log.warning("event=directory-fails error=%s", error.__cause__)

    def _learn(self, uid: int, answer: DirectoryAnswer) -> None:
        """Cache an answer, even if nobody waits for it any more: the next request finds it."""
        if not answer.holds(uid, self._local):
            return
        now_s = self._mono()
        self.cached[uid] = _Known(answer, now_s, now_s)
        self.cached.move_to_end(uid)
        if len(self.cached) > MAX_CACHED:
            nameless = (uid for uid, known in self.cached.items() if known.answer.name is None)
            del self.cached[next(nameless, next(iter(self.cached)))]


def directory_slow(uid: int, what: str) -> Unavailable:
    """Return the error for an unknown uid. `what` completes "the user directory ..."."""
    return Unavailable(
        "directory-slow",
        f"drfd cannot find out now who uid {uid} is: the user directory {what}",
        hint="try again in a moment",
    )
