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

from drfd.core.backfill import Backfill, Outlook
from drfd.core.fairshare import TOP, FairShare, Standing, parent_of, path_up
from drfd.core.queue import Entry, LeafQueue
from drfd.core.reservation import Reservation
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
    #: What is kept for big jobs, in the order of their places; goes into the next pass.
    reservations: tuple[Reservation, ...] = ()
    #: What the pass knew of time, if anything.
    outlook: Outlook | None = field(default=None, compare=False)
    #: Where everybody stands after them; None where a test has no need of it.
    standing: Standing | None = field(default=None, compare=False)

    def reservation_of(self, job_id: int) -> Reservation | None:
        return next((each for each in self.reservations if each.job_id == job_id), None)

    def hurt_by(self, job_id: int, demand: Vector) -> Reservation | None:
        """The reservation that a waiting job would hurt if it started in what is left."""
        if self.outlook is None:
            return None
        return Backfill(self.outlook, list(self.reservations)).hurt(demand, job_id, self.free)

    def has_waited_too_long(self, job_id: int) -> bool:
        """Does a waiting job that does not fit close its leaf to later ones?"""
        return self.outlook is not None and self.outlook.has_waited_too_long(job_id)


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
    backfill = Backfill(outlook) if outlook is not None else None
    walk = _Walk(queues, shares.standing(used, queues), free, spent or {}, backfill)
    walk.keep_reservations()
    walk.run(promise_only=True)
    walk.run(promise_only=False)
    return Plan(
        admitted=list(walk.given),
        free=walk.free,
        order=walk.order(),
        reservations=tuple(backfill.kept) if backfill is not None else (),
        outlook=outlook,
        standing=walk.standing,
    )


@dataclass
class _Walk:
    """The pass while it runs: what it has given so far."""

    queues: Mapping[str, LeafQueue]
    standing: Standing
    free: Vector
    spent: Mapping[str, float]
    backfill: Backfill | None
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

    def keep_reservations(self) -> None:
        """The jobs that the pass before has reserved for come first: each starts, or keeps what it
        has been promised, as things are now."""
        if self.backfill is None:
            return
        for before in self.backfill.outlook.before:
            entry = self.backfill.outlook.entry(before.job_id)
            if entry is None or not self.backfill.may_keep(before):
                continue
            fits_limits = fits(before.demand, self.standing.headroom(before.leaf, before.demand))
            fits_free = fits(before.demand, self.free)
            if (
                fits_limits
                and fits_free
                and self.backfill.allows(before.demand, before.job_id, self.free)
            ):
                self._admit(before.leaf, before.demand, entry)
            elif fits_limits or not fits_free or before.is_forced:
                self._reserve(before.leaf, before.demand, before.job_id, before)

    def _admit(self, leaf: str, demand: Vector, entry: Entry) -> None:
        self.given[entry[1]] = demand
        self.free = minus(self.free, demand)
        self.standing.hold(leaf, demand)
        if self.backfill is not None:
            self.backfill.let_in(demand, entry[1])

    def _reserve(
        self, leaf: str, demand: Vector, job_id: int, before: Reservation | None = None
    ) -> None:
        assert self.backfill is not None
        self.backfill.reserve(job_id, leaf, demand, free=self.free, given=self.given, before=before)

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
        """Look at the leaf's first job. One that cannot start and has waited long enough gets a
        place if there is one; one that does not fit and has waited far longer lets no later job of
        its own leaf pass, so that the leaf's share falls and its turn comes."""
        if self.backfill is None or not self.backfill.outlook.patience.reserves:
            return False
        demand, (_, job_id) = min(heads, key=lambda head: head[1])
        # What a limit of its pool keeps back gains nothing by a reservation.
        if not fits(demand, self.standing.headroom(leaf, demand)):
            return False
        fits_free = fits(demand, self.free)
        if fits_free and self.backfill.allows(demand, job_id, self.free):
            return False
        if self.backfill.may_reserve(job_id):
            self._reserve(leaf, demand, job_id)
        return not fits_free and self.backfill.outlook.has_waited_too_long(job_id)

    def _is_in_the_way(self, demand: Vector, entry: Entry) -> bool:
        """Would it hurt a reservation?"""
        return self.backfill is not None and not self.backfill.allows(demand, entry[1], self.free)
