"""The journal's upkeep: old jobs are removed.

Ended jobs are kept up to the age, and to the number for each user, in the configuration. A few are
removed at a time, followed by a pause ten times as long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drfd.common.errors import HostError
from drfd.daemon.config import HistorySettings
from drfd.journal.journal import Journal
from drfd.journal.pruning import read_excess

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
    #: End and id of the last job that is to be removed of each user with too many.
    _excess: dict[str, tuple[float, int]] = field(default_factory=dict)

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
        removed = None
        if keep_s is not None:
            removed = self.journal.remove_ended(self.clock() - keep_s)
        if removed is None and most:
            if not self._excess:
                self._excess = await asyncio.to_thread(read_excess, self.journal.path, most)
            removed = self._remove_excess()
        has_more = self.journal.give_back()
        return removed is not None or has_more

    def _remove_excess(self) -> int | None:
        """Remove some jobs of a user with too many. Returns their number, or None if there is
        nothing more to remove."""
        while self._excess:
            user, (at_s, job_id) = next(iter(self._excess.items()))
            removed = self.journal.remove_ended(at_s, user, job_id + 1)
            if removed is not None:
                return removed
            # What is left, if anything, cannot be removed yet.
            del self._excess[user]
        return None
