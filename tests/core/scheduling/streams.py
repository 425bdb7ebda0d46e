"""Streams of jobs through the real pass, under a virtual clock, into rooms of any kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from hypothesis import strategies as some

from core.worlds import plan
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


class Times(Protocol):
    """What the clock must know of a stream."""

    @property
    def arrivals(self) -> Sequence[Any]:
        """Each with `gap_s`, the seconds since the one before."""

    @property
    def patience_s(self) -> int: ...

    @property
    def drain_after_s(self) -> int: ...


class Clock(ABC):
    """The jobs of a stream in time, in whole seconds from 0, and when a pass is due. Whoever knows
    the jobs says how long they run, and makes the passes."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self.now_s = 0
        self.waiting: set[int] = set()
        self.started_s: dict[int, int] = {}
        self._ended: set[int] = set()
        #: The last pass.
        self.last: Plan | None = None

    def passes(self) -> Iterator[Plan]:
        """One pass at each arrival, each end, and when somebody's patience is over."""
        due: list[tuple[int, Any]] = []
        at_s, times = 0, self._times
        for arrival in times.arrivals:
            at_s += arrival.gap_s
            due.append((at_s, arrival))
        while True:
            moments = [self.end_s(job_id) for job_id in self.running]
            moments += [at_s for at_s, _ in due[:1]]
            for job_id in self.waiting:
                for wait_s in (times.patience_s, times.drain_after_s + 1):
                    if self.came_s(job_id) + wait_s > self.now_s:
                        moments.append(self.came_s(job_id) + wait_s)
            if not moments:
                return
            self.now_s = min(moments)
            self._ended |= {job_id for job_id in self.running if self.end_s(job_id) <= self.now_s}
            while due and due[0][0] <= self.now_s:
                self.waiting.add(self.submit(due.pop(0)[1]))
            self.last = self.make_pass()
            for job_id in self.last.admitted:
                self.waiting.remove(job_id)
                self.started_s[job_id] = self.now_s
            yield self.last

    @property
    def running(self) -> list[int]:
        return [job_id for job_id in self.started_s if job_id not in self._ended]

    def end_s(self, job_id: int) -> int:
        return self.started_s[job_id] + self.run_s(job_id)

    def guess_s(self, job_id: int) -> int:
        """When a running job will have ended, as estimated: doubled when it outlives that."""
        length_s = self.length_s(job_id)
        while self.started_s[job_id] + length_s <= self.now_s:
            length_s *= 2
        return self.started_s[job_id] + length_s

    @abstractmethod
    def submit(self, arrival: Any) -> int:
        """Take a job, which waits from now on, and return its id."""

    @abstractmethod
    def came_s(self, job_id: int) -> int: ...

    @abstractmethod
    def run_s(self, job_id: int) -> int: ...

    @abstractmethod
    def length_s(self, job_id: int) -> int:
        """The estimate of `run_s`."""

    @abstractmethod
    def make_pass(self) -> Plan: ...


class Machine(Clock):
    """Runs a stream with the real pass."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.stream = stream
        #: All that ever came, by id from 1, with the time at which it came.
        self.asks: dict[int, Arrival] = {}
        self._came_s: dict[int, int] = {}
        #: What each job holds, or held, that has been started.
        self._held: dict[int, Vector] = {}

    @property
    def held(self) -> dict[int, Vector]:
        return {job_id: self._held[job_id] for job_id in self.running}

    @property
    def free(self) -> Room:
        free = self.stream.room
        for each in self.held.values():
            free = minus(free, each)
        return free

    @property
    def nothing(self) -> Vector:
        return (0,) * len(self.stream.room)

    def submit(self, arrival: Arrival) -> int:
        job_id = len(self.asks) + 1
        self.asks[job_id] = arrival
        self._came_s[job_id] = self.now_s
        return job_id

    def came_s(self, job_id: int) -> int:
        return self._came_s[job_id]

    def run_s(self, job_id: int) -> int:
        return self.asks[job_id].run_s

    def length_s(self, job_id: int) -> int:
        return self.asks[job_id].guess_s

    def make_pass(self) -> Plan:
        queues: dict[str, LeafQueue] = {}
        used: dict[str, Vector] = {}
        for job_id in sorted(self.waiting):
            ask = self.asks[job_id]
            queues.setdefault(ask.leaf, LeafQueue()).add(ask.demand, (0, job_id))
        for job_id, held in self.held.items():
            leaf = self.asks[job_id].leaf
            used[leaf] = plus(used.get(leaf, self.nothing), held)
        done = plan(
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
                since_s=self.came_s,
                length_s=self.length_s,
                entry=lambda job_id: (0, job_id) if job_id in self.waiting else None,
                before=() if self.last is None else tuple(self.last.reservations),
            ),
        )
        self._held.update(done.held)
        return done


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
