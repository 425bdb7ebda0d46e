"""Has the account of promises brought up to date each hour, read and checked by child processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drfd.common.errors import DrfdError
from drfd.daemon.children.children import Children, Program, WorkKind
from drfd.daemon.children.ledger_report import LedgerTask
from drfd.daemon.config import HistorySettings
from drfd.protocol.replies import LedgerCheckReply, LedgerReply

log = logging.getLogger("drfd")

#: Seconds from the daemon's start until the account is first brought up to date, and between two
#: such times.
_FIRST_S, _EVERY_S = 600.0, 3600.0
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
    ) -> None:
        """`trusted_s` returns the Unix time by which history is removed; `now_s` that of the
        clock."""
        self._journal = journal
        self._history = history
        self._now_s, self._trusted_s = now_s, trusted_s
        kind = WorkKind(
            *("the account of promises", "no-accountant", "accountant-failed", "ledger-busy"),
            nice=19,
            cpu_s=_MAX_CPU_S,
        )
        self.children = Children(kind, patience_s=_MAX_S)
        self._turn = asyncio.Lock()

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
        Raises DrfdError."""
        asked: dict[str, Any] = {"user": user}
        if since_s is not None:
            asked["since_ms"] = round(since_s * 1000)
        if until_s is not None:
            asked["until_ms"] = round(until_s * 1000)
        async with self._turn:
            reply: LedgerReply = await self._work(**asked)
            return reply

    async def check(self) -> LedgerCheckReply:
        """Check the account, and return what was found. Raises DrfdError."""
        await self.keep_up()
        found: LedgerCheckReply = await self._work(checks=True)
        return found

    async def _work(self, **asked: Any) -> Any:
        """Have a child do a task, and return its reply. Raises DrfdError."""
        keep_s = self._history().keep_s
        before_ms = None if keep_s is None else round((self._trusted_s() - keep_s) * 1000)
        task = LedgerTask(
            journal=str(self._journal),
            now_ms=round(self._now_s() * 1000),
            forget_before_ms=before_ms,
            **asked,
        )
        return await self.children.ask(lambda: Program("drfd.daemon.children.ledger_report", task))
