"""What everybody has used lately: it decides ties, and nothing else.

Usage is in dominant-share-seconds and halves every `half_life_s`. All of it decays at the same
rate, so the order of two nodes never changes by itself: each node's usage is kept as the logarithm
of what it would be worth at time 0, and no clock is needed to compare.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import expm1, log, log2

from drfd.core.tree import path_up

_LN2 = log(2)


@dataclass
class History:
    half_life_s: float
    #: log2 of the usage of each node that has any; larger has used more.
    spent: dict[str, float] = field(default_factory=dict)

    def add(self, leaf: str, dominant_share: float, start_s: float, end_s: float) -> None:
        """A job of `leaf` held `dominant_share` from `start_s` to `end_s` (Unix time)."""
        life_s = end_s - start_s
        if life_s <= 0 or dominant_share <= 0:
            return
        # The integral of share · 2^(-(end - t) / half life) over the job's life.
        worth = -dominant_share * self.half_life_s / _LN2 * expm1(-_LN2 * life_s / self.half_life_s)
        term = log2(worth) + end_s / self.half_life_s
        for path in path_up(leaf):
            self.spent[path] = _log2_sum(self.spent.get(path), term)


def _log2_sum(left: float | None, right: float) -> float:
    """log2(2^left + 2^right), without overflow."""
    if left is None:
        return right
    high, low = max(left, right), min(left, right)
    return high + log2(1 + 2 ** (low - high))
