"""What reservations keep idle, as debts of their leaves (docs/fairness.md 1.3).

The debt of a leaf grows by the dominant share of the machine that its reservations keep idle, and
shrinks by what the leaf is entitled to. Shares are whole billionths, times milliseconds, and debts
products of both, so that a debt is the same however often it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from drfd.core.fairness.share_tree import ZERO, ShareTree

_WHOLE = 10**9


def _ms(time_s: float) -> int:
    return round(time_s * 1000)


def _billionths(share: Fraction) -> int:
    return share.numerator * _WHOLE // share.denominator


class Debt(NamedTuple):
    """The debt of a leaf after a pass."""

    owed: int
    at_ms: int
    #: The share that the leaf's reservations keep idle until the next pass.
    idle: int
    #: The largest part of a resource that the leaf is entitled to, or was when it was active.
    entitled: int

    @classmethod
    def of(
        cls, leaf: str, owed: int, now_s: float, share_tree: ShareTree, idle: Fraction = ZERO
    ) -> Debt:
        node = share_tree.nodes[leaf]
        most, (up, down) = node.entitlement.most, node.ratio
        entitled = _WHOLE * most.numerator * up // (most.denominator * down)
        return cls(owed, _ms(now_s), _billionths(idle), entitled)

    def owed_at(self, now_s: float) -> int:
        since_ms = max(0, _ms(now_s) - self.at_ms)
        return max(0, self.owed + (self.idle - self.entitled) * since_ms)

    def beyond(self, allowance_s: float) -> int:
        """Return how much more it is than the entitlement of this time, or 0."""
        return max(0, self.owed - self.allowed(allowance_s))

    def allowed(self, allowance_s: float) -> int:
        return self.entitled * _ms(allowance_s)

    def repaid_s(self, allowance_s: float) -> float | None:
        """Return when it will be no more than that (Unix time), or None if it does not shrink."""
        rate = self.entitled - self.idle
        return (self.at_ms - -self.beyond(allowance_s) // rate) / 1000 if rate > 0 else None


def share_hours(debt: int) -> float:
    return debt / (_WHOLE * 3_600_000)


def settled(before: Mapping[str, Debt], now_s: float, share_tree: ShareTree) -> dict[str, Debt]:
    """Return the debts as they are now, while nothing is kept idle."""
    found = {}
    for leaf, debt in before.items():
        if owed := debt.owed_at(now_s):
            if leaf in share_tree.nodes:
                found[leaf] = Debt.of(leaf, owed, now_s, share_tree)
            else:
                found[leaf] = debt._replace(owed=owed, at_ms=_ms(now_s), idle=0)
    return found
