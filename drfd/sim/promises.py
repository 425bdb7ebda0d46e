"""What each leaf was promised while it waited, what it held of that, and why it lacked the rest.

The promise is the dominant part of the entitlement at that moment, among those who hold something
or wait (`ShareTree.least_entitled`). All amounts are integers, billionths of the machine times
milliseconds, so the parts add up exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import add, mul
from typing import NamedTuple

from drfd.core.fairness.share_tree import FairShare, Level, ShareNode, Shares, ShareTree
from drfd.core.model.events import StartReason
from drfd.core.model.machine import Vector, fits, minus, plus

#: The whole machine, and the whole of a promise, in the account's units.
WHOLE = 10**9


class Parts(NamedTuple):
    """Amounts of one leaf. `promised` is the sum of `kept` and of the causes after it."""

    #: Milliseconds in which the leaf waited.
    waited: int = 0
    #: The part of the promise that was held, without regard to how large the promise was.
    kept_part: int = 0
    promised: int = 0
    kept: int = 0
    #: A limit of the leaf, or of a pool that it is in, stopped each of its jobs.
    own_limit: int = 0
    #: Held by others beyond their promises.
    others: int = 0
    #: There was room, but not for so large a job: fragments, or kept free for a reservation.
    size: int = 0

    def after(self, rate: Parts, length_ms: int, others: int = 0) -> Parts:
        """Return the sums after another time at these amounts per millisecond, of whose `size`
        others have held so much in all."""
        *sums, held, size = map(add, self, map(mul, rate, repeat(length_ms)))
        return Parts._make((*sums, held + others, size - others))


class Starts(NamedTuple):
    all: int = 0
    #: Starts with which a leaf held more than its promise.
    beyond: int = 0
    #: Of these, starts while another leaf waited and held less than its own promise.
    past: int = 0
    #: Of these, starts while the first job of such a leaf would have fitted in what was free, and
    #: within its promise.
    past_fitting: int = 0


@dataclass(slots=True)
class _Leaf:
    """A leaf that waits or holds something; None for what is not computed yet."""

    name: str
    used: Vector
    #: The different demands of waiting jobs, that of the first job first.
    demands: Sequence[Vector] = ()
    #: What the leaf is promised (`PromiseAccount._divide` comes first), and the largest part of it
    #: that it holds, as parts of the machine.
    promised: int = 0
    held: int = 0
    #: For each axis that counts: the axis, and the satisfaction that one unit of it gives, times
    #: the promise, as numerator and denominator (fractions are slow).
    measures: list[tuple[int, int, int]] | None = None
    #: Its parts per millisecond while it waits, `size` with what others hold.
    rate: Parts | None = None
    #: For how long it has waited at this rate, and what others held of `size` in that time: not in
    #: the sums yet.
    pending_ms: int = 0
    pending_others: int = 0


class PromiseAccount:
    """The sums of all leaves. Times are in milliseconds from any beginning. Vectors are in the
    order of the capacity of the shares."""

    def __init__(self, shares: FairShare) -> None:
        self.now_ms = 0
        self.starts: dict[StartReason, Starts] = {}
        self._sums: dict[str, Parts] = {}
        self._leaves: dict[str, _Leaf] = {}
        #: The leaves that wait, in the order in which they began to.
        self._waiting: dict[str, _Leaf] = {}
        self._shares = shares
        self._tree = ShareTree(shares)
        self._is_divided = True
        self._nothing: Vector = (0,) * len(shares.capacity)
        self._has_limits = any(rule.limit is not None for rule in shares.rules.values())
        self._free = shares.capacity

    @property
    def sums(self) -> dict[str, Parts]:
        """Leaf → its sums over the time in which it waited."""
        for leaf in self._waiting.values():
            self._settle(leaf)
        return dict(self._sums)

    def advance(self, at_ms: int) -> None:
        """Count the time until then, in which nothing has changed."""
        length_ms, self.now_ms = at_ms - self.now_ms, at_ms
        if not length_ms or not self._waiting:
            return
        self._divide()
        for leaf in self._waiting.values():
            # Limits of a pool depend on what other leaves hold.
            if leaf.rate is None or self._has_limits:
                self._settle(leaf)
                leaf.rate = self._rate(leaf)
            leaf.pending_ms += length_ms
        short = [leaf for leaf in self._waiting.values() if leaf.rate and leaf.rate.size]
        over = sum(max(0, leaf.held - leaf.promised) for leaf in self._leaves.values() if short)
        for leaf in short:
            assert leaf.rate is not None
            leaf.pending_others += min(leaf.rate.size, over) * length_ms

    def put(self, name: str, *, demands: Sequence[Vector] = (), used: Vector | None = None) -> None:
        """Have jobs of the leaf wait with these different demands, that of the first job first, and
        the leaf hold these amounts, from now on; None if no job of it holds anything."""
        leaf = self._leaves.get(name)
        if leaf is None:
            leaf = self._leaves[name] = _Leaf(name, self._nothing)
            self._tree.enter(name)
            self._is_divided = False
        held = self._nothing if used is None else used
        if held != leaf.used:
            more = minus(held, leaf.used)
            self._forget_rate(leaf)
            leaf.used, leaf.held = held, self._measured(leaf, held)
            self._free = minus(self._free, more)
            self._tree.hold(name, more)
        leaf.demands = demands
        if demands:
            self._waiting[name] = leaf
        elif name in self._waiting:
            self._forget_rate(leaf)
            del self._waiting[name]
        if not demands and used is None:
            del self._leaves[name]
            self._tree.leave(name)
            self._is_divided = False

    def count_start(self, name: str, demand: Vector, why: StartReason) -> None:
        """Count the start of a waiting job of the leaf, just before what it changes is put."""
        self._divide()
        leaf = self._leaves[name]
        is_beyond = self._measured(leaf, plus(leaf.used, demand)) > leaf.promised
        short = [
            each
            for each in self._waiting.values()
            if is_beyond and each.held < each.promised and each is not leaf
        ]
        marks = (True, is_beyond, bool(short), any(map(self._fits_first, short)))
        self.starts[why] = Starts(*map(add, self.starts.get(why, Starts()), marks))

    def entitled(self, name: str) -> Shares:
        self._divide()
        return self._tree.entitled(name)

    # -- inside -------------------------------------------------------------------------------

    def _divide(self) -> None:
        if self._is_divided:
            return
        self._is_divided = True
        have_parts_changed = bool(self._tree.redivide())
        for leaf in self._waiting.values():
            self._forget_rate(leaf)
        # Siblings of the same weight are promised the same.
        by_weight: dict[tuple[ShareNode | None, Level, int], int] = {}
        for leaf in self._leaves.values():
            node = self._tree.nodes[leaf.name]
            key = node.above, node.weight, id(node.entitlement)
            promised = by_weight.get(key)
            if promised is None:
                (up, down), least = node.ratio, node.entitlement.least
                promised = WHOLE * up * least.numerator // (down * least.denominator)
                by_weight[key] = promised
            leaf.promised = promised
            if have_parts_changed:
                leaf.measures = None
                leaf.held = self._measured(leaf, leaf.used)

    def _measured(self, leaf: _Leaf, amounts: Vector) -> int:
        """Return the satisfaction that these amounts give the leaf, times its promise."""
        if leaf.measures is None:
            entitlement = self._tree.nodes[leaf.name].entitlement
            up, down = entitlement.least.as_integer_ratio()
            leaf.measures = [
                (axis, WHOLE * up * part.denominator, down * top * part.numerator)
                for axis, (part, top) in enumerate(
                    zip(entitlement.parts, entitlement.capacity, strict=True)
                )
                if top and part
            ]
        return max([amounts[axis] * up // down for axis, up, down in leaf.measures], default=0)

    def _fits_first(self, leaf: _Leaf) -> bool:
        """Return whether the leaf's first job fits in what is free, and within its promise."""
        first = leaf.demands[0]
        return fits(first, self._free) and (
            self._measured(leaf, plus(leaf.used, first)) <= leaf.promised
        )

    def _rate(self, leaf: _Leaf) -> Parts:
        promised = leaf.promised
        kept = min(promised, leaf.held)
        kept_part = kept * WHOLE // promised if promised else WHOLE
        rest, own_limit = promised - kept, 0
        if rest and self._has_limits:
            # None of the leaf's jobs could start on an empty machine.
            left = self._tree.headroom(leaf.name, self._shares.capacity)
            own_limit = 0 if any(fits(demand, left) for demand in leaf.demands) else rest
        return Parts(1, kept_part, promised, kept, own_limit, size=rest - own_limit)

    def _forget_rate(self, leaf: _Leaf) -> None:
        self._settle(leaf)
        leaf.rate = None

    def _settle(self, leaf: _Leaf) -> None:
        """Add what is pending to the sums."""
        if leaf.pending_ms:
            assert leaf.rate is not None
            sums = self._sums.get(leaf.name, Parts())
            self._sums[leaf.name] = sums.after(leaf.rate, leaf.pending_ms, leaf.pending_others)
            leaf.pending_ms = leaf.pending_others = 0
