"""Streams of jobs through the real pass, under a virtual clock, into rooms of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as some

from core.passes import plan
from drfd.core.amounts.vectors import Room, Vector, minus, plus
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.share_tree import FairShare
from drfd.core.ledger.queue import LeafQueue
from drfd.core.scheduling.backfill import PassContext, Reservation
from drfd.core.scheduling.plan import Plan

#: Whether there is room for a waiting job of the machine, now and beside each reservation.
HasPlace = Callable[["Machine", int, Sequence[Reservation]], bool]


class Arrival(NamedTuple):
    gap_s: int
    leaf: str
    demand: Vector
    run_s: int
    #: The estimate of `run_s`.
    guess_s: int


class Stream(NamedTuple):
    #: What is free without jobs.
    room: Room
    arrivals: Sequence[Arrival]
    patience_s: int
    drain_after_s: int
    depth: int


@some.composite
def streams(
    draw: some.DrawFn, room: Room, demands: some.SearchStrategy[Vector], *, exact: bool = False
) -> Stream:
    """`exact`: estimates are right."""
    seconds = some.integers(1, 20)
    kinds = []
    for _ in range(draw(some.integers(1, 5))):
        run_s = draw(seconds)
        kinds.append((draw(demands), run_s, run_s if exact else draw(seconds)))
    arrival = some.builds(
        lambda gap_s, leaf, kind: Arrival(gap_s, leaf, *kind),
        some.sampled_from([0, 0, 1, 3]),
        some.sampled_from(["root.a", "root.b", "root.c"]),
        some.sampled_from(kinds),
    )
    return Stream(
        room,
        draw(some.lists(arrival, min_size=2, max_size=25)),
        draw(some.integers(0, 6)),
        draw(some.integers(5, 40)),
        draw(some.sampled_from([1, 1, 2, 3])),
    )


@dataclass
class Machine:
    """Runs a stream with the real pass. Times are whole seconds from 0."""

    stream: Stream
    now_s: int = 0
    #: All that ever came, by id from 1, with the time at which it came.
    asks: dict[int, Arrival] = field(default_factory=dict)
    since_s: dict[int, int] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    started_s: dict[int, int] = field(default_factory=dict)
    held: dict[int, Vector] = field(default_factory=dict)
    last: Plan | None = None

    @property
    def free(self) -> Room:
        free = self.stream.room
        for each in self.held.values():
            free = minus(free, each)
        return free

    @property
    def nothing(self) -> Vector:
        return (0,) * len(self.stream.room)

    def end_s(self, job_id: int) -> int:
        return self.started_s[job_id] + self.asks[job_id].run_s

    def guess_s(self, job_id: int) -> int:
        """When a running job will have ended, as estimated: doubled when it outlives that."""
        length_s = self.asks[job_id].guess_s
        while self.started_s[job_id] + length_s <= self.now_s:
            length_s *= 2
        return self.started_s[job_id] + length_s

    def passes(self) -> Iterator[Plan]:
        """One pass at each arrival, each end, and when somebody's patience is over."""
        due: list[tuple[int, Arrival]] = []
        at_s = 0
        for arrival in self.stream.arrivals:
            at_s += arrival.gap_s
            due.append((at_s, arrival))
        while True:
            moments = [self.end_s(job_id) for job_id in self.held] + [at_s for at_s, _ in due[:1]]
            for job_id in self.waiting:
                for wait_s in (self.stream.patience_s, self.stream.drain_after_s + 1):
                    if self.since_s[job_id] + wait_s > self.now_s:
                        moments.append(self.since_s[job_id] + wait_s)
            if not moments:
                return
            self.now_s = min(moments)
            for job_id in [each for each in self.held if self.end_s(each) <= self.now_s]:
                del self.held[job_id]
            while due and due[0][0] <= self.now_s:
                job_id = len(self.asks) + 1
                self.asks[job_id] = due.pop(0)[1]
                self.since_s[job_id] = self.now_s
                self.waiting.add(job_id)
            yield self._pass()

    def _pass(self) -> Plan:
        queues: dict[str, LeafQueue] = {}
        used: dict[str, Vector] = {}
        for job_id in sorted(self.waiting):
            ask = self.asks[job_id]
            queues.setdefault(ask.leaf, LeafQueue()).add(ask.demand, (0, job_id))
        for job_id, held in self.held.items():
            leaf = self.asks[job_id].leaf
            used[leaf] = plus(used.get(leaf, self.nothing), held)
        self.last = plan(
            queues=queues,
            used=used,
            free=self.free,
            shares=FairShare(tuple(self.stream.room), {}),
            pass_context=PassContext(
                now_s=self.now_s,
                patience=ReservationSettings(
                    patience_s=self.stream.patience_s,
                    drain_after_s=self.stream.drain_after_s,
                    depth=self.stream.depth,
                ),
                ends=[(self.guess_s(each), held) for each, held in self.held.items()],
                since_s=lambda job_id: self.since_s[job_id],
                length_s=lambda job_id: self.asks[job_id].guess_s,
                entry=lambda job_id: (0, job_id) if job_id in self.waiting else None,
                before=() if self.last is None else tuple(self.last.reservations),
            ),
        )
        for job_id in self.last.admitted:
            self.waiting.remove(job_id)
            self.started_s[job_id] = self.now_s
            self.held[job_id] = self.last.held[job_id]
        return self.last


def assert_no_reserved_start_slips(stream: Stream) -> None:
    """Of a stream with exact estimates: for reservations that were the first when they were
    made."""
    machine = Machine(stream)
    promised_s: dict[int, float] = {}
    for done in machine.passes():
        for at, kept in enumerate(done.reservations):
            if at and kept.job_id not in promised_s:
                continue
            promised_s.setdefault(kept.job_id, kept.start_s)
            assert kept.start_s <= promised_s[kept.job_id]
    for job_id, at_s in promised_s.items():
        assert machine.started_s[job_id] <= at_s


def assert_nothing_idles(stream: Stream, has_place: HasPlace) -> None:
    """What waits has no place, would delay a reservation, or is behind the one job of its user
    that does not fit and has waited too long."""
    machine = Machine(stream)
    for done in machine.passes():
        assert machine.free == done.free == machine.free.summed()
        for job_id in machine.waiting:
            others = [each for each in done.reservations if each.job_id != job_id]
            guard = done.starvation_guard
            if guard is not None and machine.asks[guard].leaf == machine.asks[job_id].leaf:
                assert not has_place(machine, guard, ())
            else:
                assert not has_place(machine, job_id, others)
    assert machine.waiting == set()
