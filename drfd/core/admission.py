"""One scheduling pass: which waiting jobs may start now, and in which order leaves are served.

Two phases. First only launches that keep a leaf, or a pool that it is in, within its entitlement,
so that whole, indivisible jobs cannot push anyone below what they are promised; then whatever still
fits. In both, the tree is descended to the least satisfied child at every level (progressive
filling, section 4 of the DRF paper, with min-satisfaction for the hierarchy; `core.ladder` has the
order and its ties). A leaf whose jobs do not fit is passed over, not waited for.

A pass looks at the vectors that fit, at the leaves that it launches from, and at those that a
reservation keeps back; in the first phase also at leaves that come first and would break their
promise, though not when none would keep it. Each launch looks at every vector that still fits.
With thousands of them a pass may be cut: as room only shrinks while jobs are launched, the next one
goes on where it stopped, and others have their turn between.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import inf

from drfd.core.backfill import Backfill, Outlook
from drfd.core.eldest import Eldest
from drfd.core.fairshare import FairShare
from drfd.core.ladder import Ladder, Turn
from drfd.core.lane import Lane
from drfd.core.lineup import Lineup
from drfd.core.plan import Plan
from drfd.core.queue import Entry, LeafQueue
from drfd.core.reservation import Reservation
from drfd.core.resources import Vector, fits, minus
from drfd.core.serving import Order
from drfd.core.tree import TOP


def plan(
    *,
    queues: Mapping[str, LeafQueue],
    used: Mapping[str, Vector],
    free: Vector,
    shares: FairShare,
    spent: Mapping[str, float] | None = None,
    outlook: Outlook | None = None,
    recent: Mapping[str, Vector] | None = None,
) -> Plan:
    """The pass over `queues`, with `used` held per leaf, `free` left of the capacity, and what each
    node has `spent` lately, which decides ties. Without an `outlook` nothing is reserved. `recent`
    counts as held besides what is used (see `core.shortjobs`).

    Changes nothing. Lines everybody up first: for pass after pass, see `run_pass`.
    """
    lineup = Lineup(queues=queues, used=used, shares=shares, spent=spent or {}, recent=recent or {})
    return run_pass(lineup, free=free, outlook=outlook)


def run_pass(
    lineup: Lineup, *, free: Vector, outlook: Outlook | None, most_looks: int | None = None
) -> Plan:
    """The pass over a line-up that has been kept. The tables behind it are not changed, and the
    next pass reads what has become of the leaves that this one has launched from. `most_looks`: it
    is cut after the launch with which it has looked at so many vectors."""
    lineup.begin(outlook)
    walk = _Walk(lineup, free, outlook, most_looks)
    walk.keep_reservations()
    walk.serve(promise_only=True)
    walk.serve(promise_only=False)
    return Plan(
        admitted=list(walk.given),
        free=walk.free,
        order=Order(lineup.order),
        reservations=tuple(walk.backfill.kept) if walk.backfill is not None else (),
        eldest=None if walk.eldest is None else walk.eldest.job_id,
        outlook=outlook,
        standing=lineup.standing,
        is_cut=walk.is_cut,
    )


class _Walk:
    """The pass while it runs: what it has given so far."""

    def __init__(
        self, lineup: Lineup, free: Vector, outlook: Outlook | None, most_looks: int | None
    ) -> None:
        self.lineup = lineup
        self.standing = lineup.standing
        self.free = free
        self.backfill = Backfill(outlook) if outlook is not None else None
        #: Whom nobody of its own leaf may pass.
        self.eldest: Eldest | None = None
        #: What it has admitted, in order, with the demands.
        self.given: dict[int, Vector] = {}
        #: The lanes that may still be launched from, fewer and fewer: what fits and hurts no
        #: reservation.
        self._open = {lane: lane.now for lane in lineup.lanes.values()}
        self._looks, self._most_looks = 0, most_looks
        #: Where leaves or pools have been set aside until the end of the phase, and how often.
        self._changed: list[Ladder] = []
        #: Demands that would not fit even if all that runs had ended.
        self._hopeless: set[Vector] = set()

    def keep_reservations(self) -> None:
        """The jobs that the pass before has reserved for come first: each starts, or keeps what it
        has been promised, as things are now."""
        if self.backfill is None:
            return
        for before in self.backfill.outlook.before:
            entry = self.backfill.outlook.entry(before.job_id)
            if entry is None or not self.backfill.may_keep(before):
                continue
            is_within = self.standing.is_within_limits(before.leaf, before.demand)
            has_room = fits(before.demand, self.free)
            may_start = self.backfill.allows(before.demand, before.job_id, self.free)
            if is_within and has_room and may_start:
                self._admit(before.leaf, before.demand, entry)
            elif is_within or not has_room or before.is_forced:
                self._reserve(before.leaf, before.demand, before.job_id, before)
        self._let_go_on()
        self.eldest = Eldest(self.lineup, self.backfill, self.free)

    def _let_go_on(self) -> None:
        """A drain may wait for memory that suspended jobs keep until they have gone on: for these
        it makes room too, or all would wait for ever."""
        backfill = self.backfill
        if backfill is None or not backfill.drains:
            return
        for job_id, (leaf, demand) in sorted(backfill.outlook.suspended.items()):
            entry = backfill.outlook.entry(job_id)
            if (
                entry is not None
                and job_id not in self.given
                and fits(demand, self.free)
                and self.standing.is_within_limits(leaf, demand)
                and backfill.allows(demand, job_id, self.free)
            ):
                self._admit(leaf, demand, entry)

    def serve(self, *, promise_only: bool) -> None:
        """One phase."""
        while not self.is_cut and (found := self._next(promise_only=promise_only)) is not None:
            leaf, lanes = found
            if not promise_only:
                self._seek_place(leaf)
            start = self._first_start(leaf, lanes)
            if start is not None:
                self._admit(leaf, *start)
            else:
                # Room only shrinks during a phase, so this leaf is done with it.
                self._drop(leaf, promise_only=promise_only)
        for ladder in self._changed:
            ladder.take_back()
        self._changed.clear()

    @property
    def is_cut(self) -> bool:
        is_far = self._most_looks is not None and self._looks >= self._most_looks
        return is_far and bool(self.given)

    def _next(self, *, promise_only: bool) -> tuple[str, list[Lane]] | None:
        """The leaf that is served next, and the lanes in which the phase lets it start a job."""
        self._open = {
            lane: ladder
            for lane in self._open
            if fits(lane.demand, self.free) and (ladder := self._unhurting(lane)) is not None
        }
        self._looks += len(self._open)
        while True:
            before = len(self._changed)
            found = self._descend(promise_only=promise_only)
            # What has been set aside on the way counted in the choice of the way.
            if len(self._changed) == before:
                return found

    def _unhurting(self, lane: Lane) -> Ladder | None:
        """Of the lane, the leaves whose job hurts no reservation."""
        if self.backfill is None:
            return lane.now
        deadline_s = self.backfill.deadline_s(lane.demand, self.free)
        if deadline_s is None or deadline_s == inf:
            return None if deadline_s is None else lane.now
        return lane.in_time(deadline_s, self.backfill.outlook)

    def _descend(self, *, promise_only: bool) -> tuple[str, list[Lane]] | None:
        """From the top, always to the child that is served first."""
        path, node = TOP, self.standing.nodes[TOP]
        promised = Fraction(node.yard.unit)
        # With each lane: is the promise of a node on the way kept, whatever stands below it?
        lanes = [(lane, not promise_only) for lane in self._open]
        late = [] if promise_only else self._late_ladders()
        while path not in self.lineup.first:
            most = promised / node.total if node.total else promised
            turns = [self._first(lane, path, None if kept else most) for lane, kept in lanes]
            turns += [ladder.least(path) for ladder in late]
            turn = min([turn for turn in turns if turn is not None], default=None)
            if turn is None:
                return None
            path, node = turn.path, self.standing.nodes[turn.path]
            promised = most * node.weight
            lanes = [
                (lane, kept or lane.after.share(node) <= most)
                for lane, kept in lanes
                if self._open[lane].turn(path) is not None
            ]
        return path, [lane for lane, kept in lanes if kept]

    def _first(self, lane: Lane, path: str, most: Fraction | None) -> Turn | None:
        """The node's child that is served first in the lane. `most`: the level that each of them
        may reach for its weight and keep its promise; those that cannot are set aside."""
        ladder = self._open[lane]
        if most is None:
            return ladder.least(path)
        best = lane.after.least(path)
        if best is None or best.level > most:
            return None
        while (turn := ladder.least(path)) is not None:
            after = lane.after.turn(turn.path)
            if after is not None and after.level <= most:
                return turn
            self._set_aside(ladder, turn.path)
        return None

    def _late_ladders(self) -> list[Ladder]:
        """Of the leaves whose first job may get a place: while there is one."""
        if self.backfill is None or not self.backfill.has_place:
            return []
        return [
            lane.late
            for lane in self.lineup.lanes.values()
            if lane.late.heads
            and lane.demand not in self._hopeless
            # Nothing keeps back what stands in an open lane as a whole.
            and self._open.get(lane) is not lane.now
        ]

    def _first_start(self, leaf: str, lanes: list[Lane]) -> tuple[Vector, Entry] | None:
        """The leaf's first job that hurts no reservation, if later ones may pass its first one."""
        eldest = self.eldest
        if eldest is not None and eldest.bars(leaf, free=self.free, given=self.given):
            return None
        best: tuple[Vector, Entry] | None = None
        for lane in lanes:
            entry = self.lineup.head(leaf, lane.demand)
            if (
                entry is not None
                and (best is None or entry < best[1])
                and (
                    self.backfill is None or self.backfill.allows(lane.demand, entry[1], self.free)
                )
            ):
                best = lane.demand, entry
        return best

    def _seek_place(self, leaf: str) -> None:
        """The leaf's first job gets a place if it cannot start and has waited long enough."""
        (_, job_id), demand = self.lineup.first[leaf]
        if (
            self.backfill is not None
            and self.backfill.may_reserve(job_id)
            # What a limit of its pool keeps back gains nothing by a place.
            and self.standing.is_within_limits(leaf, demand)
            and not (fits(demand, self.free) and self.backfill.allows(demand, job_id, self.free))
        ):
            self._reserve(leaf, demand, job_id)

    def _admit(self, leaf: str, demand: Vector, entry: Entry) -> None:
        self.given[entry[1]] = demand
        self.free = minus(self.free, demand)
        outlook = None
        if self.backfill is not None:
            self.backfill.let_in(demand, entry[1])
            outlook = self.backfill.outlook
        self.lineup.take(leaf, demand, entry[1], lanes=self._open, outlook=outlook)

    def _reserve(
        self, leaf: str, demand: Vector, job_id: int, before: Reservation | None = None
    ) -> None:
        assert self.backfill is not None
        if not self.backfill.reserve(
            job_id, leaf, demand, free=self.free, given=self.given, before=before
        ):
            self._hopeless.add(demand)

    def _drop(self, leaf: str, *, promise_only: bool) -> None:
        for lane, ladder in self._open.items():
            self._set_aside(ladder, leaf)
            if promise_only:
                self._set_aside(lane.after, leaf)
        for lane in self.lineup.lanes.values():
            if lane.late.heads:
                self._set_aside(lane.late, leaf)

    def _set_aside(self, ladder: Ladder, path: str) -> None:
        if ladder.turn(path) is not None:
            ladder.set_aside(path)
            self._changed.append(ladder)
