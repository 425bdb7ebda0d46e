"""Has the account of promises brought up to date each hour, read and checked by child processes.

A child that nobody waits for any longer goes on: the first one may have much to do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drfd.common.errors import DrfdError, Unavailable
from drfd.daemon.children.children import Children, Kind, Program
from drfd.daemon.children.ledger_report import Task
from drfd.daemon.config import HistorySettings
from drfd.protocol.replies import LedgerCheckReply, LedgerReply

log = logging.getLogger("drfd")

#: Seconds from the daemon's start until the account is first brought up to date, and between two
#: such times.
_FIRST_S, _EVERY_S = 600.0, 3600.0
#: Seconds that a request waits for its answer.
PATIENCE_S = 45.0
#: Seconds of processor time, and in all, that one task may take: the first one may have much to do.
_MAX_CPU_S, _MAX_S = 3600, 6 * 3600.0
#: Nobody reads the rows from then on.
_NO_ROWS_MS = 1 << 62


class Accountant:
    """Gives the tasks. At most one child brings the account up to date at a time."""

    def __init__(
        self,
        journal: Path,
        history: Callable[[], HistorySettings],
        now_s: Callable[[], float],
        trusted_s: Callable[[], float],
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`trusted_s` returns the Unix time by which history is removed; `now_s` that of the
        clock."""
        self._journal = journal
        self._history = history
        self._now_s, self._trusted_s = now_s, trusted_s
        self.patience_s = patience_s
        kind = Kind(
            *("the account of promises", "no-accountant", "accountant-failed", "ledger-busy"),
            nice=19,
            cpu_s=_MAX_CPU_S,
        )
        self.children = Children(kind, patience_s=_MAX_S)
        self._turn = asyncio.Lock()
        self._check: asyncio.Task[LedgerCheckReply] | None = None
        self._check_began_s = 0.0

    async def run(self) -> None:
        """Bring the account up to date each hour. Never returns."""
        await asyncio.sleep(_FIRST_S)
        while True:
            try:
                await self.keep_up()
            except DrfdError as error:
                log.warning("event=promises-not-kept error=%s", error)
            await asyncio.sleep(_EVERY_S)

    async def keep_up(self) -> None:
        """Bring the account up to date. Raises DrfdError."""
        async with self._turn:
            await self._work(since_ms=_NO_ROWS_MS)

    async def read(
        self, since_s: float | None, until_s: float | None, user: str | None
    ) -> LedgerReply:
        """Return the account between these Unix times with this user's parts, or with everybody's.
        Raises HostError, and Unavailable if there is no answer in time."""
        asked: dict[str, Any] = {"user": user}
        if since_s is not None:
            asked["since_ms"] = round(since_s * 1000)
        if until_s is not None:
            asked["until_ms"] = round(until_s * 1000)
        try:
            async with asyncio.timeout(self.patience_s):
                await self._turn.acquire()
                task = asyncio.create_task(self._work_and_leave(asked))
                task.add_done_callback(_forget)
                return await asyncio.shield(task)
        except TimeoutError:
            raise Unavailable(
                "ledger-busy",
                "the account of promises is still being brought up to date",
                hint="try again in a moment",
            ) from None

    async def check(self) -> LedgerCheckReply:
        """Check the account, and return what was found, or for how long the check has run: then it
        goes on, and the next call may have its result. Raises DrfdError."""
        if self._check is None:
            self._check_began_s = time.monotonic()
            self._check = asyncio.create_task(self._check_now())
            self._check.add_done_callback(_forget)
        task = self._check
        try:
            async with asyncio.timeout(self.patience_s):
                found = await asyncio.shield(task)
        except TimeoutError:
            return {"running_s": round(time.monotonic() - self._check_began_s, 1)}
        except DrfdError:
            self._drop(task)
            raise
        self._drop(task)
        return found

    def _drop(self, task: asyncio.Task[LedgerCheckReply]) -> None:
        # Another caller may have got the same result, and a third one begun anew.
        if self._check is task:
            self._check = None

    async def _check_now(self) -> LedgerCheckReply:
        await self.keep_up()
        found: LedgerCheckReply = await self._work(checks=True)
        return found

    async def _work_and_leave(self, asked: dict[str, Any]) -> LedgerReply:
        try:
            reply: LedgerReply = await self._work(**asked)
            return reply
        finally:
            self._turn.release()

    async def _work(self, **asked: Any) -> Any:
        """Have a child do a task, and return its reply. Raises DrfdError."""
        keep_s = self._history().keep_s
        before_ms = None if keep_s is None else round((self._trusted_s() - keep_s) * 1000)
        task = Task(
            journal=str(self._journal),
            now_ms=round(self._now_s() * 1000),
            forget_before_ms=before_ms,
            **asked,
        )
        return await self.children.ask(lambda: Program("drfd.daemon.children.ledger_report", task))


def _forget(task: asyncio.Task[Any]) -> None:
    """Take note of an error that nobody waits for."""
    if not task.cancelled() and task.exception() is not None:
        log.debug("event=promises-not-kept error=%s", task.exception())
