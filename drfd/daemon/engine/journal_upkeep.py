"""The journal's upkeep: old jobs are removed.

Ended jobs are kept up to the age, and to the number for each user, in the configuration. A few are
removed at a time, followed by a pause ten times as long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from drfd.common.errors import HostError
from drfd.daemon.config import HistorySettings
from drfd.journal.journal import Journal
from drfd.journal.pruning import read_removable

log = logging.getLogger("drfd")

#: Seconds until the next step when nothing was to be done, or after a failure.
_REST_S = 60.0
#: Pause after a step, as a multiple of its duration, and the shortest one in seconds.
_PAUSES, _LEAST_PAUSE_S = 10, 0.05


@dataclass
class Retention:
    """Removes ended jobs from the journal when they are too old or too many."""

    journal: Journal
    #: Returns the present configuration.
    history: Callable[[], HistorySettings]
    #: Returns Unix time.
    clock: Callable[[], float] = time.time
    #: What has been found and is to be removed.
    _due: deque[tuple[str, int]] = field(default_factory=deque)

    async def run(self) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                is_busy = await self.step()
            except HostError as error:
                log.error("event=%s-failed error=%s", error.code, error.text)
                is_busy = False
            worked_s = time.monotonic() - begun_s
            await asyncio.sleep(max(_LEAST_PAUSE_S, _PAUSES * worked_s) if is_busy else _REST_S)

    async def step(self) -> bool:
        """Remove a few jobs, and return whether there may be more to remove."""
        keep_s, most = self.history().keep_s, self.history().max_jobs_per_user
        if not self._due:
            before_s = -inf if keep_s is None else self.clock() - keep_s
            path = self.journal.path
            self._due = await asyncio.to_thread(read_removable, path, before_s, most or None)
        has_some = bool(self._due)
        if has_some:
            self.journal.remove_ended(self._due)
        return self.journal.give_back() or has_some
