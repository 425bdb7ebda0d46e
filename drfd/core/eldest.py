"""Whom nobody of its own leaf may pass: so that a user's small jobs do not starve his big one.

Jobs that pass it keep up what the leaf holds, and so the turns of others, which are further below
their promise, come first for ever. Of the first jobs that have waited too long and do not fit, the
one that has waited longest therefore lets no later one of its leaf start until it has a place. Then
the leaf comes to hold less and less, and its turn comes.

One leaf at a time, because where many have waited for long the machine would idle.
"""

from __future__ import annotations

from collections.abc import Mapping

from drfd.core.backfill import Backfill
from drfd.core.lineup import Lineup
from drfd.core.resources import Vector, fits


class Eldest:
    """That job, from when those with a place have had their turn in a pass."""

    def __init__(self, lineup: Lineup, backfill: Backfill, free: Vector) -> None:
        self._lineup, self._backfill = lineup, backfill
        self._hopeless: set[Vector] = set()
        self._found = self._find(free)

    @property
    def job_id(self) -> int | None:
        """None: nobody has waited too long, or who has got a place meanwhile."""
        found = self._found
        return None if found is None or self._backfill.has_place_for(found) else found

    def bars(self, leaf: str, *, free: Vector, given: Mapping[int, Vector]) -> bool:
        """May no job of the leaf start now? `free` is left, and this pass has `given` so much."""
        (_, job_id), demand = self._lineup.first[leaf]
        while job_id == self.job_id:
            if not self._backfill.is_hopeless(job_id, demand, free=free, given=given):
                return True
            # Nobody need wait behind a job that would not fit even when all has come back.
            self._hopeless.add(demand)
            self._found = self._find(free)
        return False

    def _find(self, free: Vector) -> int | None:
        if not self._backfill.outlook.patience.reserves:
            return None
        for leaf in self._lineup.elders():
            (_, job_id), demand = self._lineup.first[leaf]
            if not self._backfill.outlook.has_waited_too_long(job_id):
                return None
            if (
                demand not in self._hopeless
                and not fits(demand, free)
                and not self._backfill.has_place_for(job_id)
                # What a limit of its pool keeps back gains nothing by a place.
                and self._lineup.standing.is_within_limits(leaf, demand)
            ):
                return job_id
        return None
