"""Past usage: what breaks ties in the order of service, and which ended jobs still count as held.

`DecayedUsage` decides ties and nothing else. `ShortJobs` has the jobs that ended less than
`Rules.min_hold_s` (the key `min_charge_time`) after their start: until that time is over, the
leaves are compared as if these jobs still ran (as with Armada's short job penalty). Otherwise a
user with a stream of one-second jobs would always seem to hold nothing, and the user's next job
would always start first. The resources of these jobs are free, and do not count against limits, so
that nothing idles.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import expm1, inf, log, log2

from drfd.core.amounts.vectors import Vector, minus, plus
from drfd.core.fairness.share_tree import path_up

#: The decayed usage of a node that has none (see `DecayedUsage`).
NEVER = float("-inf")


@dataclass
class ShortJobs:
    """The jobs that ended soon after their start and still count as held by their leaves."""

    #: The amounts that still count, by leaf.
    counted: dict[str, Vector] = field(default_factory=dict)
    #: A heap of (end on the monotonic clock, leaf, demand), and the number of entries per leaf.
    _until: list[tuple[float, str, Vector]] = field(default_factory=list)
    _number: Counter[str] = field(default_factory=Counter)

    def add(self, leaf: str, demand: Vector, until_mono_s: float) -> None:
        """Let a job of the leaf that has ended count until `until_mono_s`."""
        heappush(self._until, (until_mono_s, leaf, demand))
        self._number[leaf] += 1
        before = self.counted.get(leaf)
        self.counted[leaf] = demand if before is None else plus(before, demand)

    def forget(self, now_mono_s: float) -> list[str]:
        """Drop the jobs whose time is over. Returns their leaves."""
        leaves = []
        while self._until and self._until[0][0] <= now_mono_s:
            _, leaf, demand = heappop(self._until)
            self.counted[leaf] = minus(self.counted[leaf], demand)
            self._number[leaf] -= 1
            if not self._number[leaf]:
                del self._number[leaf], self.counted[leaf]
            leaves.append(leaf)
        return leaves


_LN2 = log(2)


@dataclass
class DecayedUsage:
    """The recent usage of each node, in dominant-share-seconds that halve every `half_life_s`.

    All usage decays at the same rate, so the order of two nodes never changes by itself: each
    node's usage is kept as the logarithm of what it would be worth at time 0, and no clock is
    needed to compare. Times are those of the wall clock, which may have been years ahead for a
    while; usage that is dated in the future counts as if it were of now, because it would not decay
    until then.
    """

    half_life_s: float
    #: log2 of the usage of each node that has any; a larger value means more usage.
    past_usage: dict[str, float] = field(default_factory=dict)
    #: The latest time of any use (Unix time).
    _newest_s: float = -inf

    def add(self, leaf: str, dominant_share: float, start_s: float, end_s: float) -> None:
        """Add a job of `leaf` that held `dominant_share` from `start_s` to `end_s` (Unix time)."""
        self._newest_s = max(self._newest_s, end_s)
        life_s = end_s - start_s
        if life_s <= 0 or dominant_share <= 0:
            return
        # The integral of share · 2^(-(end - t) / half life) over the job's life.
        worth = -dominant_share * self.half_life_s / _LN2 * expm1(-_LN2 * life_s / self.half_life_s)
        term = log2(worth) + end_s / self.half_life_s
        for path in path_up(leaf):
            self.past_usage[path] = _log2_sum(self.past_usage.get(path), term)

    def clamp(self, now_s: float) -> bool:
        """Treat usage that is dated after `now_s` (Unix time) as if it had happened at `now_s`.
        Returns whether the order of nodes may have changed: only if the usage of a node was more
        than the whole machine can have used since the epoch."""
        ahead_s, self._newest_s = self._newest_s - now_s, min(self._newest_s, now_s)
        if ahead_s <= 0:
            return False
        # The integral of 2^(-t / half life) over all t that have passed.
        most = log2(self.half_life_s / _LN2) + now_s / self.half_life_s
        over = {path: used for path, used in self.past_usage.items() if used > most}
        for path, used in over.items():
            self.past_usage[path] = min(used - ahead_s / self.half_life_s, most)
        return bool(over)


def _log2_sum(left: float | None, right: float) -> float:
    """Return log2(2^left + 2^right) without overflow. If `left` is None, the first term is 0."""
    if left is None:
        return right
    high, low = max(left, right), min(left, right)
    return high + log2(1 + 2 ** (low - high))
