"""One scheduling pass: which waiting jobs may start now, and in which order leaves are served.

Two phases. First only launches that keep a leaf, or a pool that it is in, within its entitlement,
so that whole, indivisible jobs cannot push anyone below what they are promised; then whatever still
fits. In both, the tree is descended to the least satisfied child at every level (progressive
filling, section 4 of the DRF paper, with min-satisfaction for the hierarchy); ties go to who has
used less lately, then to the job submitted first, then to the name.
A leaf whose jobs do not fit is passed over, not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from drfd.core.fairshare import TOP, FairShare, Standing, parent_of, path_up
from drfd.core.queue import Entry, LeafQueue
from drfd.core.reservation import Patience, Reservation, allows, reserve, taken
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
    #: What is kept for a big job; goes into the next pass.
    reservation: Reservation | None = None
    #: Where everybody stands after them; None where a test has no need of it.
    standing: Standing | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a pass must know of time, to reserve and to backfill."""

    now_s: float
    patience: Patience
    #: When the running jobs will have ended, as estimated, and what each gives back.
    ends: Iterable[tuple[float, Vector]]
    #: Of a waiting job: how long it has waited, and how long it will run as estimated.
    waited_s: Callable[[int], float]
    length_s: Callable[[int], float]
    #: A job's place in its queue; None when it does not wait any more.
    entry: Callable[[int], Entry | None]
    #: The reservation of the pass before.
    before: Reservation | None

    def end_s(self, job_id: int) -> float:
        """When a waiting job would have ended, as estimated, if it started now."""
        return self.now_s + self.length_s(job_id)


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
    outlook: Outlook | None = None,
) -> Plan:
    """The pass over `queues`, with `used` held per leaf, `free` left of the capacity, and what each
    node has `spent` lately, which decides ties. Without an `outlook` nothing is reserved.

    Changes nothing; the work grows with active nodes and with launches × demand vectors, not with
    the lengths of queues.
    """
    walk = _Walk(queues, shares.standing(used, queues), free, spent or {}, outlook)
    walk.keep_reservation()
    walk.run(promise_only=True)
    walk.run(promise_only=False)
    return Plan(
        admitted=list(walk.given),
        free=walk.free,
        order=walk.order(),
        reservation=walk.kept,
        standing=walk.standing,
    )


@dataclass
class _Walk:
    """The pass while it runs: what it has given so far."""

    queues: Mapping[str, LeafQueue]
    standing: Standing
    free: Vector
    spent: Mapping[str, float]
    outlook: Outlook | None
    #: The reservation as it stands.
    kept: Reservation | None = None
    #: What it has admitted, in order, with the demands.
    given: dict[int, Vector] = field(default_factory=dict)
    #: How many entries of a group it has looked past.
    _passed: dict[tuple[str, Vector], int] = field(default_factory=dict)
    #: The present turn of each node that can still launch in this phase.
    _turns: dict[str, _Turn] = field(default_factory=dict)
    #: Turns of the children of each node; stale ones are dropped when they come up.
    _heaps: dict[str, list[_Turn]] = field(default_factory=dict)

    def run(self, *, promise_only: bool) -> None:
        self._line_up()
        while leaf := self._least():
            found = self._first_fit(leaf, promise_only=promise_only)
            if found is None:
                # Room only shrinks during a phase, so this leaf is done with it.
                self._drop(leaf)
                continue
            self._admit(leaf, *found)
            self._refresh(leaf)

    def keep_reservation(self) -> None:
        """The job that the pass before has reserved for comes first: it starts, or keeps what it
        has been promised, as things are now."""
        before = self.outlook.before if self.outlook is not None else None
        if self.outlook is None or before is None:
            return
        entry = self.outlook.entry(before.job_id)
        if entry is None or not self.outlook.patience.reserves:
            return
        if fits(before.demand, self.standing.headroom(before.leaf, self.free)):
            self._admit(before.leaf, before.demand, entry)
        elif not fits(before.demand, self.free):
            self._reserve(before.leaf, before.demand, before.job_id)

    def _admit(self, leaf: str, demand: Vector, entry: Entry) -> None:
        job_id = entry[1]
        self.given[job_id] = demand
        self.free = minus(self.free, demand)
        self.standing.hold(leaf, demand)
        if self.kept is not None and self.kept.job_id == job_id:
            self.kept = None
        elif self.kept is not None and self.outlook is not None:
            self.kept = taken(self.kept, demand, self.outlook.end_s(job_id))

    def _reserve(self, leaf: str, demand: Vector, job_id: int) -> None:
        assert self.outlook is not None
        given = [(self.outlook.end_s(other), held) for other, held in self.given.items()]
        self.kept = reserve(
            job_id=job_id,
            leaf=leaf,
            demand=demand,
            free=self.free,
            ends=[*self.outlook.ends, *given],
            before=self.outlook.before,
            now_s=self.outlook.now_s,
            waited_s=self.outlook.waited_s(job_id),
            rules=self.outlook.patience,
        )

    def order(self) -> list[str]:
        """The leaves that still wait, as they would be served if room came up now."""
        self._line_up()
        found = []
        while leaf := self._least():
            found.append(leaf)
            self._drop(leaf)
        return found

    def _line_up(self) -> None:
        """A turn for every leaf that waits."""
        self._turns, self._heaps = {}, {}
        for waiting in self.queues:
            self._refresh(waiting)

    def _drop(self, leaf: str) -> None:
        self._set_turn(leaf, None)
        self._lift(leaf)

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
            at = self._passed.get((leaf, demand), 0)
            while at < len(entries) and entries[at][1] in self.given:
                at += 1
            self._passed[leaf, demand] = at
            if at < len(entries):
                heads.append((demand, entries[at]))
        return heads

    def _first_fit(self, leaf: str, *, promise_only: bool) -> tuple[Vector, Entry] | None:
        room = self.standing.headroom(leaf, self.free)
        heads = self._heads(leaf)
        if not promise_only and self._closes(leaf, heads):
            return None
        best: tuple[Vector, Entry] | None = None
        for demand, entry in heads:
            if (best is None or entry < best[1]) and fits(demand, room):
                if promise_only and not self.standing.keeps_promise(leaf, demand):
                    continue
                if self._is_in_the_way(demand, entry):
                    continue
                best = demand, entry
        return best

    def _closes(self, leaf: str, heads: list[tuple[Vector, Entry]]) -> bool:
        """Look at the leaf's first job. One that has waited long enough and does not fit gets the
        reservation if there is none; one that has waited far longer lets no later job of its own
        leaf pass, so that the leaf's share falls and its turn comes."""
        if self.outlook is None or not self.outlook.patience.reserves:
            return False
        demand, (_, job_id) = min(heads, key=lambda head: head[1])
        # What a limit of its pool keeps back gains nothing by a reservation.
        if fits(demand, self.free) or not fits(demand, self.standing.headroom(leaf, demand)):
            return False
        waited_s = self.outlook.waited_s(job_id)
        if self.kept is None and waited_s >= self.outlook.patience.patience_s:
            self._reserve(leaf, demand, job_id)
        return waited_s > self.outlook.patience.drain_after_s

    def _is_in_the_way(self, demand: Vector, entry: Entry) -> bool:
        """Would it hurt the reservation?"""
        if self.kept is None or self.outlook is None or self.kept.job_id == entry[1]:
            return False
        return not allows(self.kept, demand, self.outlook.end_s(entry[1]), self.free)
