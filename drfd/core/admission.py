"""One scheduling pass: which waiting jobs may start now, and in which order leaves are served.

Two phases. First only launches that keep a leaf, or a pool that it is in, within its entitlement,
so that whole, indivisible jobs cannot push anyone below what they are promised; then whatever still
fits. In both, the tree is descended to the least satisfied child at every level (progressive
filling, section 4 of the DRF paper, with min-satisfaction for the hierarchy); ties go to who has
used less lately, then to the job submitted first, then to the name.
A leaf whose jobs do not fit is passed over, not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from drfd.core.fairshare import TOP, FairShare, Standing, parent_of, path_up
from drfd.core.queue import Entry, LeafQueue
from drfd.core.resources import Vector, fits, minus

#: Stands for "has used nothing lately" (see `core.history`).
NEVER = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the pass decided, and what it saw, so that waits can be explained from it."""

    #: Jobs to admit, in order.
    admitted: list[int]
    #: What is left after them.
    free: Vector
    #: Leaves that still have waiting jobs, in the order in which they would be served next.
    order: list[str]
    #: Where everybody stands after them; None where a test has no need of it.
    standing: Standing | None = field(default=None, compare=False)


class _Turn(NamedTuple):
    """A node's place among its siblings; compared field by field."""

    satisfaction: int
    spent: float
    head: int
    path: str


def plan(
    *,
    queues: Mapping[str, LeafQueue],
    used: Mapping[str, Vector],
    free: Vector,
    shares: FairShare,
    spent: Mapping[str, float] | None = None,
) -> Plan:
    """The pass over `queues`, with `used` held per leaf, `free` left of the capacity, and what each
    node has `spent` lately, which decides ties.

    Changes nothing; the work grows with active nodes and with launches × demand vectors, not with
    the lengths of queues.
    """
    walk = _Walk(queues, shares.standing(used, queues), free, spent or {})
    walk.run(promise_only=True)
    walk.run(promise_only=False)
    return Plan(admitted=walk.admitted, free=walk.free, order=walk.order(), standing=walk.standing)


@dataclass
class _Walk:
    """The pass while it runs: what it has given so far."""

    queues: Mapping[str, LeafQueue]
    standing: Standing
    free: Vector
    spent: Mapping[str, float]
    admitted: list[int] = field(default_factory=list)
    #: How many entries of a group this pass has taken.
    _taken: dict[tuple[str, Vector], int] = field(default_factory=dict)
    #: The present turn of each node that can still launch in this phase.
    _turns: dict[str, _Turn] = field(default_factory=dict)
    #: Turns of the children of each node; stale ones are dropped when they come up.
    _heaps: dict[str, list[_Turn]] = field(default_factory=dict)

    def run(self, *, promise_only: bool) -> None:
        self._turns, self._heaps = {}, {}
        for waiting in self.queues:
            self._refresh(waiting)
        while leaf := self._least():
            found = self._first_fit(leaf, promise_only=promise_only)
            if found is None:
                # Room only shrinks during a phase, so this leaf is done with it.
                self._set_turn(leaf, None)
                self._lift(leaf)
                continue
            demand, entry = found
            self.admitted.append(entry[1])
            self.free = minus(self.free, demand)
            self.standing.hold(leaf, demand)
            self._taken[leaf, demand] = self._taken.get((leaf, demand), 0) + 1
            self._refresh(leaf)

    def order(self) -> list[str]:
        """The leaves that still wait, as they would be served if room came up now."""
        self._turns, self._heaps = {}, {}
        for waiting in self.queues:
            self._refresh(waiting)
        found = []
        while leaf := self._least():
            found.append(leaf)
            self._set_turn(leaf, None)
            self._lift(leaf)
        return found

    def _least(self) -> str | None:
        """The leaf that is served next: from the top, always the least satisfied child."""
        path = TOP
        while path not in self.queues:
            turn = self._top(path)
            if turn is None:
                return None
            path = turn.path
        return path

    def _refresh(self, leaf: str) -> None:
        """Recompute the turn of a leaf, and of all above it."""
        heads = self._heads(leaf)
        turn = None
        if heads:
            _, head = min(entry for _, entry in heads)
            key = self.standing.satisfaction_key(leaf)
            turn = _Turn(key, self.spent.get(leaf, NEVER), head, leaf)
        self._set_turn(leaf, turn)
        self._lift(leaf)

    def _lift(self, leaf: str) -> None:
        """An inner node is as satisfied as the least satisfied of itself and its children."""
        for path in path_up(leaf)[1:]:
            least = self._top(path)
            turn = None
            if least is not None:
                own = self.standing.satisfaction_key(path)
                spent = self.spent.get(path, NEVER)
                turn = _Turn(min(own, least.satisfaction), spent, least.head, path)
            self._set_turn(path, turn)

    def _set_turn(self, path: str, turn: _Turn | None) -> None:
        if turn is None:
            self._turns.pop(path, None)
        elif self._turns.get(path) != turn:
            self._turns[path] = turn
            heappush(self._heaps.setdefault(parent_of(path), []), turn)

    def _top(self, path: str) -> _Turn | None:
        heap = self._heaps.get(path, [])
        while heap and self._turns.get(heap[0].path) != heap[0]:
            heappop(heap)
        return heap[0] if heap else None

    def _heads(self, leaf: str) -> list[tuple[Vector, Entry]]:
        """The first waiting entry of each group that has one left."""
        heads = []
        for demand, entries in self.queues[leaf].groups.items():
            at = self._taken.get((leaf, demand), 0)
            if at < len(entries):
                heads.append((demand, entries[at]))
        return heads

    def _first_fit(self, leaf: str, *, promise_only: bool) -> tuple[Vector, Entry] | None:
        room = self.standing.headroom(leaf, self.free)
        best: tuple[Vector, Entry] | None = None
        for demand, entry in self._heads(leaf):
            if (best is None or entry < best[1]) and fits(demand, room):
                if promise_only and not self.standing.keeps_promise(leaf, demand):
                    continue
                best = demand, entry
        return best
