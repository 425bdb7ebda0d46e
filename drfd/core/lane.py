"""The leaves that have a job of one demand waiting, in the several ways in which a pass asks."""

from __future__ import annotations

from collections.abc import Mapping

from drfd.core.backfill import Outlook
from drfd.core.fairshare import Standing
from drfd.core.ladder import Ladder, Rank
from drfd.core.resources import Vector
from drfd.core.tree import TOP, parent_of


class Lane:
    def __init__(self, demand: Vector, standing: Standing, spent: Mapping[str, float]) -> None:
        self.demand = demand
        #: As the leaves stand, and as they would stand if they held one such job more.
        self.now = Ladder(standing, spent, demand)
        self.after = Ladder(standing, spent, demand, is_after=True)
        #: Those whose first job it is that has waited long enough for a reservation.
        self.late = Ladder(standing, spent, demand)
        #: Those whose job is short enough for what was asked last: see `in_time`.
        self._short = Ladder(standing, spent, demand)
        self._jobs: dict[str, int] = {}
        #: How long the jobs run, in seconds: (negative, leaf) of those, (positive, leaf) of the
        #: others; and the leaves for which that is not known.
        self._in: Rank[tuple[float, str]] = Rank()
        self._out: Rank[tuple[float, str]] = Rank()
        self._unmeasured: set[str] = set()

    def put(self, leaf: str, head: int | None, job_id: int | None) -> None:
        """Let the leaf, whose first job is `head`, stand in the lane with the job `job_id`; None:
        it does not. What it holds may have changed as well, and so what its pools do."""
        if job_id is None and leaf not in self._jobs:
            # As for most leaves in most lanes: only a pool that it is in may stand here.
            self._lift_pool_of(leaf)
            return
        if job_id is not None:
            self._jobs[leaf] = job_id
        else:
            self._jobs.pop(leaf, None)
        self.now.put(leaf, head if job_id is not None else None)
        self.after.put(leaf, head if job_id is not None else None)
        if self.late.heads:
            self.late.lift(leaf)
        self._unmeasured.add(leaf)

    def lift(self, leaf: str) -> None:
        for ladder in (self.now, self.after, self.late, self._short):
            ladder.lift(leaf)

    def _lift_pool_of(self, leaf: str) -> None:
        path = parent_of(leaf)
        while path != TOP and self.now.least(path) is None:
            path = parent_of(path)
        if path != TOP:
            self.lift(path)

    def forget_length(self, leaf: str) -> None:
        """How long the leaf's job is estimated to run may have changed."""
        self._unmeasured.add(leaf)

    def in_time(self, deadline_s: float, outlook: Outlook) -> Ladder:
        """The leaves whose job would have ended by then if it started now, as estimated. What is
        asked may differ from what was asked last: that costs as much as there are leaves between.
        """

        def sort(leaf: str, length_s: float) -> None:
            if outlook.now_s + length_s <= deadline_s:
                self._in.put((-length_s, leaf))
                self._short.put(leaf, self.now.heads[leaf])
            else:
                self._out.put((length_s, leaf))
                self._short.put(leaf, None)

        for leaf in self._unmeasured:
            self._in.drop(leaf)
            self._out.drop(leaf)
            if leaf in self._jobs:
                sort(leaf, outlook.length_s(self._jobs[leaf]))
            else:
                self._short.put(leaf, None)
        self._unmeasured.clear()
        while (longest := self._in.least()) and outlook.now_s - longest[0] > deadline_s:
            self._in.drop(longest[1])
            sort(longest[1], -longest[0])
        while (shortest := self._out.least()) and outlook.now_s + shortest[0] <= deadline_s:
            self._out.drop(shortest[1])
            sort(shortest[1], shortest[0])
        return self._short
