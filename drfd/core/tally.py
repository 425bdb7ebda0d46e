"""What one pass has given out so far, for policies other than the daemon's own.

The queues are only read. A pass admits the first job of a group of like demands or none of the
group, so a counter for each group is all that it remembers of them; and who has come out of turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from drfd.core.backfill import Outlook
from drfd.core.fairshare import FairShare, Standing
from drfd.core.plan import Plan
from drfd.core.queue import Entry, LeafQueue, Line
from drfd.core.reservation import Reservation
from drfd.core.resources import Vector, fits, minus
from drfd.core.tree import path_up

#: More than any demand: the room on an axis that does not bind.
_ENDLESS = 1 << 200

#: A waiting job: its place in its leaf's own order, and its demand.
Head = tuple[Entry, Vector]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What some policies ask for besides the books."""

    #: How many jobs may run at once under the policy "slots".
    slots: int | None = None
    #: How many jobs of each leaf hold a slot.
    running: Mapping[str, int] = field(default_factory=dict)
    #: May "slots" and "cpu" forget the resources that they do not look at? Never on a real machine.
    overcommit: bool = False


PLAIN_TERMS = Terms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a pass is given; see `core.admission.plan`."""

    queues: Mapping[str, LeafQueue]
    used: Mapping[str, Vector]
    free: Vector
    shares: FairShare
    spent: Mapping[str, float]
    outlook: Outlook | None
    terms: Terms


class Tally:
    def __init__(self, given: Situation, *, binding: Iterable[int] | None = None) -> None:
        """`binding`: the only axes on which there must be room; None: all."""
        self.queues = given.queues
        self.free = given.free
        self.standing: Standing = given.shares.standing(given.used, given.queues)
        #: What it has admitted, in order, with the demands.
        self.given: dict[int, Vector] = {}
        #: Jobs that hold resources, or have been admitted, by node.
        self.count: dict[str, int] = {}
        for leaf, number in given.terms.running.items():
            self._add(leaf, number)
        axes = range(len(given.free))
        self._loose = set() if binding is None else set(axes).difference(binding)
        self._most = self._loosened(given.shares.capacity)
        #: How many of each demand it has admitted, by leaf.
        self._passed: dict[str, Counter[Vector]] = {}
        #: Whom it has admitted before those who stand before them.
        self._early: set[int] = set()
        self._outlook = given.outlook

    def heads(self, leaf: str) -> list[Head]:
        """The first waiting job of each demand."""
        groups = self.queues[leaf].groups
        passed = self._passed.get(leaf)
        if passed is None:
            return [(entries.first, demand) for demand, entries in groups.items()]
        return [
            (entries[at], demand)
            for demand, entries in groups.items()
            if (at := self._past(entries, passed.get(demand, 0))) < len(entries)
        ]

    def _past(self, entries: Line, at: int) -> int:
        """The place of the first from there on that has not been admitted out of turn."""
        while self._early and at < len(entries) and entries[at][1] in self._early:
            at += 1
        return at

    def head(self, leaf: str) -> Head | None:
        """The first job of the leaf, but for those beyond the whole machine: a change of its
        configuration has left them behind."""
        heads = self.heads(leaf)
        first = min(heads, default=None)
        if first is None or fits(first[1], self._most):
            return first
        return min((head for head in heads if fits(head[1], self._most)), default=None)

    def first_fit(self, leaf: str) -> Head | None:
        """The first job of the leaf for which there is room."""
        room = self.room(leaf)
        return min((head for head in self.heads(leaf) if fits(head[1], room)), default=None)

    def room(self, leaf: str) -> Vector:
        """What is free, within the limits of the leaf and of the pools that it is in."""
        room = self._loosened(self.free)
        for path in path_up(leaf):
            limit = self.standing.nodes[path].limit
            if limit is not None:
                left = minus(limit, self.standing.used[path])
                room = tuple([min(a, b) for a, b in zip(room, left, strict=True)])
        return room

    def fits_free(self, demand: Vector) -> bool:
        """Is there room, whatever the limits say?"""
        return fits(demand, self._loosened(self.free))

    def admit(self, leaf: str, head: Head) -> None:
        (_, job_id), demand = head
        self.given[job_id] = demand
        self.free = minus(self.free, demand)
        self.standing.hold(leaf, demand)
        self._add(leaf, 1)
        self._passed.setdefault(leaf, Counter())[demand] += 1

    def let_go_on(self) -> None:
        """Let those who were suspended, and wait to go on, come first: others may wait for memory
        that they keep until they have gone on and ended."""
        waiting = {} if self._outlook is None else self._outlook.suspended
        for job_id, (leaf, demand) in sorted(waiting.items()):
            if fits(demand, self.room(leaf)):
                self.admit(leaf, ((0, job_id), demand))
                self._passed[leaf][demand] -= 1
                self._early.add(job_id)

    def plan(self, order: list[str], reservation: Reservation | None = None) -> Plan:
        return Plan(
            admitted=list(self.given),
            free=self.free,
            order=order,
            reservations=() if reservation is None else (reservation,),
            standing=self.standing,
        )

    def _add(self, leaf: str, number: int) -> None:
        for path in path_up(leaf):
            self.count[path] = self.count.get(path, 0) + number

    def _loosened(self, room: Vector) -> Vector:
        if not self._loose:
            return room
        return tuple([_ENDLESS if at in self._loose else each for at, each in enumerate(room)])
