"""One scheduling pass: which waiting jobs may start now, and in which order leaves are served.

Two phases. First only launches that keep a leaf within its entitlement, so that whole, indivisible
jobs cannot push anyone below an equal split of the machine; then whatever still fits. In both, the
leaf that is furthest below its entitlement is served first (progressive filling, section 4 of the
DRF paper); ties go to the job submitted first, then to the name.
A leaf whose jobs do not fit is passed over, not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from drfd.core.fairshare import FairShare
from drfd.core.queue import Entry, LeafQueue
from drfd.core.resources import Vector, fits, minus, plus


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the pass decided, and what it saw, so that waits can be explained from it."""

    #: Jobs to admit, in order.
    admitted: list[int]
    #: What is left after them.
    free: Vector
    #: Leaves that still have waiting jobs, in the order in which they would be served next.
    order: list[str]


class _Turn(NamedTuple):
    """A leaf's place in the heap; compared field by field."""

    key: int
    head: int
    leaf: str


def plan(
    *,
    queues: Mapping[str, LeafQueue],
    used: Mapping[str, Vector],
    free: Vector,
    shares: FairShare,
) -> Plan:
    """The pass over `queues`, with `used` held per leaf and `free` left of the capacity.

    Changes nothing; the work grows with launches × demand vectors, not with queue lengths.
    """
    walk = _Walk(queues, used, free, shares)
    walk.run(promise_only=True)
    walk.run(promise_only=False)
    return Plan(admitted=walk.admitted, free=walk.free, order=walk.order())


class _Walk:
    """The pass while it runs: what it has given so far."""

    def __init__(
        self,
        queues: Mapping[str, LeafQueue],
        used: Mapping[str, Vector],
        free: Vector,
        shares: FairShare,
    ) -> None:
        self._queues = queues
        self._shares = shares
        self._nothing: Vector = (0,) * len(free)
        self._used = dict(used)
        self._total_weight = shares.total_weight({*queues, *used})
        #: How many entries of a group this pass has taken.
        self._taken: dict[tuple[str, Vector], int] = {}
        self.free = free
        self.admitted: list[int] = []

    def run(self, *, promise_only: bool) -> None:
        heap = [turn for leaf in self._queues if (turn := self._turn(leaf)) is not None]
        heapify(heap)
        while heap:
            leaf = heappop(heap).leaf
            found = self._first_fit(leaf, promise_only=promise_only)
            if found is None:
                # Room only shrinks during a phase, so this leaf is done with it.
                continue
            demand, entry = found
            self.admitted.append(entry[1])
            self.free = minus(self.free, demand)
            self._used[leaf] = plus(self._held(leaf), demand)
            self._taken[leaf, demand] = self._taken.get((leaf, demand), 0) + 1
            turn = self._turn(leaf)
            if turn is not None:
                heappush(heap, turn)

    def order(self) -> list[str]:
        turns = sorted(turn for leaf in self._queues if (turn := self._turn(leaf)) is not None)
        return [turn.leaf for turn in turns]

    def _held(self, leaf: str) -> Vector:
        return self._used.get(leaf, self._nothing)

    def _heads(self, leaf: str) -> list[tuple[Vector, Entry]]:
        """The first waiting entry of each group that has one left."""
        heads = []
        for demand, entries in self._queues[leaf].groups.items():
            at = self._taken.get((leaf, demand), 0)
            if at < len(entries):
                heads.append((demand, entries[at]))
        return heads

    def _turn(self, leaf: str) -> _Turn | None:
        heads = self._heads(leaf)
        if not heads:
            return None
        _, head = min(entry for _, entry in heads)
        return _Turn(self._shares.order_key(leaf, self._held(leaf)), head, leaf)

    def _first_fit(self, leaf: str, *, promise_only: bool) -> tuple[Vector, Entry] | None:
        held = self._held(leaf)
        best: tuple[Vector, Entry] | None = None
        for demand, entry in self._heads(leaf):
            if (best is None or entry < best[1]) and fits(demand, self.free):
                if promise_only and not self._shares.keeps_promise(
                    leaf, plus(held, demand), self._total_weight
                ):
                    continue
                best = demand, entry
        return best
