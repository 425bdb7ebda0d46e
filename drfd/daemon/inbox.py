"""Work for the engine, until its next turn: what arrives together shares one commit.

That a job has started is news that nobody waits for. It waits a moment itself, for a short job's
end to share the commit: the launcher says it again to whoever comes after us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drfd.core.stimuli import RunnerUp
from drfd.daemon.engine import Work

#: So long a start waits for other work.
PATIENCE_S = 0.01


class Inbox:
    def __init__(self, turn: Callable[[list[Work]], Work | None]) -> None:
        """`turn` takes all that has come, and says what is to be gone on with at once; None: there
        is nothing."""
        self._turn = turn
        self._works: list[Work] = []
        #: The next turn, and whether it is to come as soon as can be.
        self._next: asyncio.Handle | None = None
        self._is_soon = False

    def add(self, work: Work) -> None:
        self._works.append(work)
        loop = asyncio.get_running_loop()
        if not isinstance(work.stimulus, RunnerUp):
            if not self._is_soon:
                if self._next is not None:
                    self._next.cancel()
                self._is_soon = True
                self._next = loop.call_soon(self._take)
        elif self._next is None:
            self._next = loop.call_later(PATIENCE_S, self._take)

    def _take(self) -> None:
        works, self._works = self._works, []
        self._next, self._is_soon = None, False
        more = self._turn(works)
        if more is not None:
            self.add(more)
