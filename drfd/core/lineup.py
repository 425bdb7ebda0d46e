"""Everybody who waits, lined up for the next pass, and kept from pass to pass.

Derived from queues, holdings and usage; whoever changes those says of which leaf (`touch`), and
only that leaf is read again before the next pass. A pass moves leaves as it admits jobs, and marks
them touched: what it has done counts only if the books say so too.

Leaves are lined up by demand vector, so that what does not fit is never looked at, however many
wait for it. The work of a change grows with the number of vectors that anybody waits for, with the
depth of the tree, and with the logarithm of the number of leaves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from drfd.core.backfill import Outlook
from drfd.core.fairshare import FairShare, Standing
from drfd.core.ladder import NEVER, Ladder, Rank
from drfd.core.lane import Lane
from drfd.core.node import Node
from drfd.core.queue import Entry, LeafQueue
from drfd.core.resources import Vector, fits, minus, plus
from drfd.core.tree import path_up


class _Place(NamedTuple):
    """How a leaf stands in the lanes."""

    head: int | None
    #: By itself and by the pools that it is in.
    spent: tuple[float, ...]
    #: The first job of each demand.
    heads: Mapping[Vector, int]


class _Walk:
    """Along a line of jobs, past those that the pass has admitted."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self._next = next(entries, None)

    def head(self, given: Collection[int]) -> Entry | None:
        while self._next is not None and self._next[1] in given:
            self._next = next(self._entries, None)
        return self._next


class Lineup:
    def __init__(
        self,
        *,
        queues: Mapping[str, LeafQueue],
        used: Mapping[str, Vector],
        shares: FairShare,
        spent: Mapping[str, float],
        recent: Mapping[str, Vector],
    ) -> None:
        """Over tables that may change later. `spent` decides ties (see `core.history`); `recent`
        counts besides what is used, but not against limits (see `core.shortjobs`)."""
        self.shares = shares
        self.standing = Standing(shares)
        self.lanes: dict[Vector, Lane] = {}
        #: What everybody has used lately.
        self.spent = spent
        #: The first waiting job of each leaf, and what it asks for: of those that could ever start,
        #: if there are any. A change of the configuration may have left others behind.
        self.first: dict[str, tuple[Entry, Vector]] = {}
        self._queues, self._used, self._recent = queues, used, recent
        self._nothing: Vector = (0,) * len(shares.capacity)
        self._touched = {*queues, *used, *recent}
        #: What each active leaf holds by itself, and what else counts, as the standing knows it.
        self._held: dict[str, tuple[Vector, Vector]] = {}
        self._places: dict[str, _Place] = {}
        #: Of first jobs that have not waited long enough: (since when, Unix time; leaf).
        self._young: Rank[tuple[float, str]] = Rank()
        #: The lanes in which leaves are late; those of which it must be asked again.
        self._late: dict[str, Vector] = {}
        #: Of late leaves: (since when their first job waits, Unix time; leaf), the eldest first.
        self._elders: list[tuple[float, str]] = []
        self._ages: dict[str, float] = {}
        self._undated: set[str] = set()
        self._dated_s = float("-inf")
        #: What the present pass has admitted, and how far it has looked past that.
        self._given: set[int] = set()
        self._walks: dict[tuple[str, Vector], _Walk] = {}

    def touch(self, leaf: str) -> None:
        """Its queue has changed, or what it holds or has spent, by itself or with its pools."""
        self._touched.add(leaf)

    def begin(self, outlook: Outlook | None) -> None:
        """A pass begins: read what has changed."""
        self._given.clear()
        self._walks.clear()
        touched = [leaf for leaf in self._touched if leaf in self._held or self._is_active(leaf)]
        self._touched.clear()
        moved = {leaf for leaf in touched if self._weigh(leaf)}
        remeasured = self.standing.settle()
        for leaf in touched:
            self._line_up(leaf, has_moved=leaf in moved)
        for node in remeasured:
            for leaf in _leaves(node):
                for lane in self.lanes.values():
                    lane.lift(leaf)
        if outlook is not None and outlook.patience.reserves:
            self._date(outlook)

    def head(self, leaf: str, demand: Vector) -> Entry | None:
        """The leaf's first job of this demand that the pass has not admitted."""
        queue = self._queues.get(leaf)
        line = None if queue is None else queue.groups.get(demand)
        if line is None or line.first[1] not in self._given:
            return None if line is None else line.first
        walk = self._walks.get((leaf, demand))
        if walk is None:
            walk = self._walks[leaf, demand] = _Walk(iter(line))
        return walk.head(self._given)

    def take(
        self,
        leaf: str,
        demand: Vector,
        job_id: int,
        *,
        lanes: Iterable[Lane],
        outlook: Outlook | None,
    ) -> None:
        """The pass has admitted a job, and will look at these `lanes` again, and at who is late."""
        self._touched.add(leaf)
        self._places.pop(leaf, None)
        self._given.add(job_id)
        held, recent = self._held[leaf]
        self._held[leaf] = plus(held, demand), recent
        self.standing.hold(leaf, demand)
        self._find_first(leaf)
        for lane in lanes:
            entry = self.head(leaf, lane.demand)
            if entry is not None:
                lane.put(leaf, self._job(leaf), entry[1])
            else:
                lane.put(leaf, None, None)
        if outlook is not None:
            is_late = leaf in self.first and outlook.is_late(self._job(leaf))
            self._set_late(leaf, is_late=is_late)
            self._set_age(leaf, outlook if is_late else None)
            for lane in self.lanes.values():
                if lane.late.heads:
                    lane.late.lift(leaf)

    def elders(self) -> Iterator[str]:
        """The leaves whose first job has waited long enough for a place, the eldest first."""
        return (leaf for _, leaf in self._elders)

    def order(self) -> list[str]:
        """The leaves that still wait, as they would be served if room came up now."""
        ladder = Ladder(self.standing, self.spent)
        for leaf in self.first:
            ladder.put(leaf, self._job(leaf))
        found = []
        while (leaf_ := ladder.next_leaf()) is not None:
            found.append(leaf_)
            ladder.put(leaf_, None)
        return found

    def _is_active(self, leaf: str) -> bool:
        return leaf in self._queues or leaf in self._used or leaf in self._recent

    def _weigh(self, leaf: str) -> bool:
        """Tell the standing what the leaf holds now; has that changed?"""
        before = self._held.pop(leaf, None)
        held, recent = before or (self._nothing, self._nothing)
        is_active = self._is_active(leaf)
        if is_active:
            if before is None:
                self.standing.enter(leaf)
            now = self._used.get(leaf, self._nothing), self._recent.get(leaf, self._nothing)
            self._held[leaf] = now
        else:
            now = self._nothing, self._nothing
        self.standing.hold(leaf, minus(now[0], held))
        if now[1] != recent:
            self.standing.remember(leaf, minus(now[1], recent))
        if not is_active:
            self.standing.leave(leaf)
        return now != before

    def _line_up(self, leaf: str, *, has_moved: bool) -> None:
        before = self._places.pop(leaf, None)
        place = self._find_place(leaf)
        if before is None or has_moved or place[:2] != before[:2]:
            # Every lane: pools that the leaf is in may stand in any.
            stale = {*self.lanes, *place.heads}
        else:
            pairs = place.heads.items() ^ before.heads.items()
            stale = {demand for demand, _ in pairs}
        for demand in stale:
            lane = self.lanes.get(demand)
            if lane is None:
                lane = self.lanes[demand] = Lane(demand, self.standing, self.spent)
            lane.put(leaf, place.head, place.heads.get(demand))
            if not lane.now.heads:
                del self.lanes[demand]
        for demand in place.heads:
            self.lanes[demand].forget_length(leaf)
        self._set_late(leaf, is_late=leaf in self._late)
        self._undated.add(leaf)

    def _find_place(self, leaf: str) -> _Place:
        self._find_first(leaf)
        if leaf not in self.first:
            return _Place(None, (), {})
        spent = tuple([self.spent.get(path, NEVER) for path in path_up(leaf)])
        heads = {each: line.first[1] for each, line in self._queues[leaf].groups.items()}
        self._places[leaf] = _Place(self._job(leaf), spent, heads)
        return self._places[leaf]

    def _find_first(self, leaf: str) -> None:
        queue = self._queues.get(leaf)
        found = [
            (head, each)
            for each in (queue.groups if queue else ())
            if (head := self.head(leaf, each)) is not None
        ]
        if found:
            most = self.standing.most(leaf)
            able = [each for each in found if fits(each[1], most)]
            self.first[leaf] = min(able or found)
        else:
            self.first.pop(leaf, None)

    def _job(self, leaf: str) -> int:
        (_, job_id), _ = self.first[leaf]
        return job_id

    def _date(self, outlook: Outlook) -> None:
        """Find out who is late by now."""
        if outlook.now_s < self._dated_s:
            # The clock has been set back.
            self._undated.update(self._late)
        self._dated_s = outlook.now_s
        for leaf in self._undated:
            self._young.drop(leaf)
            is_late = leaf in self.first and outlook.is_late(self._job(leaf))
            if leaf in self.first and not is_late:
                self._young.put((outlook.since_s(self._job(leaf)), leaf))
            if is_late is not (leaf in self._late):
                self._set_late(leaf, is_late=is_late)
            self._set_age(leaf, outlook if is_late else None)
        self._undated.clear()
        while (eldest := self._young.least()) is not None and outlook.is_late(self._job(eldest[1])):
            self._young.drop(eldest[1])
            self._set_late(eldest[1], is_late=True)
            self._set_age(eldest[1], outlook)

    def _set_age(self, leaf: str, outlook: Outlook | None) -> None:
        """`outlook`: None if the leaf is not late."""
        before = self._ages.pop(leaf, None)
        if before is not None:
            del self._elders[bisect_left(self._elders, (before, leaf))]
        if outlook is not None:
            self._ages[leaf] = outlook.since_s(self._job(leaf))
            insort(self._elders, (self._ages[leaf], leaf))

    def _set_late(self, leaf: str, *, is_late: bool) -> None:
        before = self._late.pop(leaf, None)
        now = None
        if is_late and leaf in self.first:
            _, now = self.first[leaf]
            self._late[leaf] = now
            self.lanes[now].late.put(leaf, self._job(leaf))
        if before not in (None, now) and before in self.lanes:
            self.lanes[before].late.put(leaf, None)


def _leaves(node: Node) -> Iterator[str]:
    if node.competes:
        yield node.path
    for child in node.below.values():
        yield from _leaves(child)
