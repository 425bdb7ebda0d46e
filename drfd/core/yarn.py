"""The order of queues in Hadoop's fair scheduler, policy "drf": whom it serves first.

A queue is needy while it holds less of its dominant resource than its minimum share. Needy ones
come first, by what they hold over their minimum shares; the others by their shares of the cluster
over their weights; each compares its resources in its own order of dominance, the largest first.
Every queue has a key, and keys are ordered as tuples are: so the order is total, and cannot change
while somebody sorts by it (both have been bugs of comparators like this one).
"""

from __future__ import annotations

from fractions import Fraction

from drfd.core.entitlement import ONE, ZERO, Shares
from drfd.core.resources import Vector

#: (0 for needy ones, then what they compare, in order). A quotient by nothing is the second kind.
YarnKey = tuple[int, tuple[tuple[int, Fraction], ...]]


def yarn_key(
    used: Vector, capacity: Vector, weights: Shares | None = None, min_share: Vector | None = None
) -> YarnKey:
    """Less is served first. Of equal keys the one that started first is, then the first name."""
    heavy = weights or (ONE,) * len(used)
    shares = [
        Fraction(amount, top) / weight if top else ZERO
        for amount, top, weight in zip(used, capacity, heavy, strict=True)
    ]
    # Of equal shares the first resource, which is the CPU, is the dominant one.
    order = sorted(range(len(used)), key=lambda axis: (-shares[axis], axis))
    least = min_share or (0,) * len(used)
    if used[order[0]] < least[order[0]]:
        return 0, tuple(_over(used[axis], least[axis]) for axis in order)
    return 1, tuple((0, shares[axis]) for axis in order)


def _over(amount: int, least: int) -> tuple[int, Fraction]:
    return (0, Fraction(amount, least)) if least else (1, ZERO)
