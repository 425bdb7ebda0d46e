"""Jobs that ended very early: for a moment they still count, in fairness and nowhere else.

A job that ended before `min_hold_s` counts in what its leaf holds until its start + `min_hold_s`
(as in Armada's short job penalty). Else a stream of one-second jobs always looks as if it held
nothing, and its next job is always the first to start. What these jobs held is free all the same,
and does not count against limits, so that nothing idles.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush

from drfd.core.resources import Vector, minus, plus


@dataclass
class ShortJobs:
    #: By leaf: what jobs that ended early still count.
    counted: dict[str, Vector] = field(default_factory=dict)
    #: (until when, monotonic clock; leaf; demand), a heap; and how many of them each leaf has.
    _until: list[tuple[float, str, Vector]] = field(default_factory=list)
    _number: Counter[str] = field(default_factory=Counter)

    def add(self, leaf: str, demand: Vector, until_mono_s: float) -> None:
        """A job of the leaf has ended and counts until then."""
        heappush(self._until, (until_mono_s, leaf, demand))
        self._number[leaf] += 1
        before = self.counted.get(leaf)
        self.counted[leaf] = demand if before is None else plus(before, demand)

    def forget(self, now_mono_s: float) -> list[str]:
        """Drop those whose time is over; their leaves."""
        leaves = []
        while self._until and self._until[0][0] <= now_mono_s:
            _, leaf, demand = heappop(self._until)
            self.counted[leaf] = minus(self.counted[leaf], demand)
            self._number[leaf] -= 1
            if not self._number[leaf]:
                del self._number[leaf], self.counted[leaf]
            leaves.append(leaf)
        return leaves
