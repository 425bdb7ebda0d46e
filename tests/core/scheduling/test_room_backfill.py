"""Parts of shared GPUs and whole ones in random streams, under a virtual clock.

No GPU is given more than it has, the reserved starts do not slip, and nothing idles that the
reservations leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as some

from core.passes import plan
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.share_tree import FairShare
from drfd.core.ledger.queue import LeafQueue
from drfd.core.model.instance_room import InstanceRoom, OnInstances
from drfd.core.model.instances import SharedInstances
from drfd.core.model.vectors import Vector, minus, plus
from drfd.core.scheduling.backfill import PassContext, Reservation
from drfd.core.scheduling.plan import Plan
from seeds import examples

STEADY = examples(150)

CORES, SIZE = 12, 8


class Arrival(NamedTuple):
    gap_s: int
    leaf: str
    cores: int
    #: Of one GPU, or a multiple of `SIZE` for whole ones.
    memory: int
    run_s: int
    #: The estimate of `run_s`.
    guess_s: int


class Stream(NamedTuple):
    gpus: int
    arrivals: Sequence[Arrival]
    patience_s: int
    drain_after_s: int
    depth: int


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
    def room(self) -> InstanceRoom:
        """The machine without jobs."""
        count = self.stream.gpus
        names = tuple(map(str, range(count)))
        shared = SharedInstances(axis=1, size=SIZE, names=names, places={})
        return InstanceRoom.of((CORES, count * SIZE), (SIZE,) * count, shared)

    @property
    def free(self) -> InstanceRoom:
        free = self.room
        for each in self.held.values():
            free = minus(free, each)
        return free

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
            queues.setdefault(ask.leaf, LeafQueue()).add((ask.cores, ask.memory), (0, job_id))
        for job_id, held in self.held.items():
            leaf = self.asks[job_id].leaf
            used[leaf] = plus(used.get(leaf, (0, 0)), held)
        self.last = plan(
            queues=queues,
            used=used,
            free=self.free,
            shares=FairShare(tuple(self.room), {}),
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


@some.composite
def streams(draw: some.DrawFn, *, exact: bool = False) -> Stream:
    """`exact`: estimates are right."""
    gpus = draw(some.integers(1, 4))
    whole = some.integers(1, gpus).map(lambda count: count * SIZE)
    seconds = some.integers(1, 20)
    kinds = []
    for _ in range(draw(some.integers(1, 5))):
        run_s = draw(seconds)
        cores, memory = draw(some.integers(0, 6)), draw(some.integers(0, SIZE) | whole)
        kinds.append((cores, memory, run_s, run_s if exact else draw(seconds)))
    arrival = some.builds(
        lambda gap_s, leaf, kind: Arrival(gap_s, leaf, *kind),
        some.sampled_from([0, 0, 1, 3]),
        some.sampled_from(["root.a", "root.b", "root.c"]),
        some.sampled_from(kinds),
    )
    arrivals = draw(some.lists(arrival, min_size=2, max_size=25))
    return Stream(
        gpus,
        arrivals,
        draw(some.integers(0, 6)),
        draw(some.integers(5, 40)),
        draw(some.sampled_from([1, 1, 2, 3])),
    )


def parts_of(vector: Vector, count: int) -> Vector:
    return vector.parts if isinstance(vector, OnInstances) else (0,) * count


def has_place(machine: Machine, job_id: int, reservations: Sequence[Reservation]) -> bool:
    """Whether GPUs suffice for the job that have enough free, now and beside each reservation."""
    ask, free, count = machine.asks[job_id], machine.free, machine.stream.gpus
    end_s = machine.now_s + ask.guess_s
    cores, parts = [free[0]], [free.parts]
    for each in reservations:
        if each.is_drain:
            cores.append(max(0, free[0] - each.held[0]))
            kept = parts_of(each.held, count)
            parts.append(tuple([a - b for a, b in zip(free.parts, kept, strict=True)]))
        if end_s > each.start_s:
            cores.append(each.extra[0])
            parts.append(parts_of(each.extra, count))
    of_each = [min(column) for column in zip(*parts, strict=True)]
    if ask.cores and ask.cores > min(cores):
        return False
    if ask.memory < SIZE:
        return not ask.memory or any(part >= ask.memory for part in of_each)
    return sum(part >= SIZE for part in of_each) * SIZE >= ask.memory


#: A drain needs the two GPUs that the first jobs have, and leaves the third one.
DRAIN = Stream(
    gpus=3,
    arrivals=[
        Arrival(0, "root.a", cores=0, memory=memory, run_s=run_s, guess_s=1)
        for memory, run_s in [(5, 7)] * 3 + [(16, 8)] * 2 + [(5, 7)] * 2
    ],
    patience_s=0,
    drain_after_s=5,
    depth=1,
)


@STEADY
@given(streams())
@example(DRAIN)
def test_no_gpu_is_given_more_than_it_has_and_nothing_idles(stream: Stream) -> None:
    """What waits has no place, would delay a reservation, or is behind the one job of its user
    that does not fit and has waited too long."""
    machine = Machine(stream)
    for done in machine.passes():
        free = machine.free
        assert (free, done.free[1]) == (done.free, sum(free.parts))
        assert min(*free, *free.parts) >= 0
        for job_id in machine.waiting:
            others = [each for each in done.reservations if each.job_id != job_id]
            guard = done.starvation_guard
            if guard is not None and machine.asks[guard].leaf == machine.asks[job_id].leaf:
                assert not has_place(machine, guard, ())
            else:
                assert not has_place(machine, job_id, others)
    assert machine.waiting == set()


@STEADY
@given(streams(exact=True))
def test_with_exact_estimates_no_reserved_start_slips(stream: Stream) -> None:
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


#: Two big jobs are waiting, and one small part could be of a GPU that either of them needs.
BESIDE_TWO = Stream(
    gpus=4,
    arrivals=[
        Arrival(0, "root.a", cores=0, memory=24, run_s=1, guess_s=1),
        Arrival(0, "root.a", cores=0, memory=1, run_s=5, guess_s=9),
        Arrival(0, "root.b", cores=0, memory=8, run_s=5, guess_s=1),
        Arrival(1, "root.b", cores=0, memory=24, run_s=1, guess_s=1),
        Arrival(3, "root.a", cores=0, memory=1, run_s=5, guess_s=9),
    ],
    patience_s=0,
    drain_after_s=5,
    depth=2,
)


@STEADY
@given(streams())
@example(BESIDE_TWO)
def test_no_reservation_has_less_than_nothing_to_spare(stream: Stream) -> None:
    """Neither jobs that start beside it nor other reserved jobs take what it needs."""
    machine = Machine(stream)
    for done in machine.passes():
        for each in done.reservations:
            assert min(each.extra) >= 0
            assert min(parts_of(each.extra, stream.gpus)) >= 0
