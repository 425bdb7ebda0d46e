"""Parts of shared GPUs and whole ones in random streams, under a virtual clock.

No GPU is given more than it has, the reserved starts do not slip, and nothing idles that the
reservations leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as some

from core.scheduling.streams import (
    Arrival,
    Machine,
    Stream,
    assert_no_reserved_start_slips,
    assert_nothing_idles,
    streams,
)
from drfd.core.amounts.instance_room import InstanceRoom, OnInstances
from drfd.core.amounts.instances import SharedInstances
from drfd.core.amounts.vectors import Vector
from drfd.core.scheduling.backfill import Reservation
from seeds import examples

CORES, SIZE = 12, 8


def room(gpus: int) -> InstanceRoom:
    """A machine without jobs."""
    names = tuple(map(str, range(gpus)))
    shared = SharedInstances(axis=1, size=SIZE, names=names, places={})
    return InstanceRoom.of((CORES, gpus * SIZE), (SIZE,) * gpus, shared)


def gpu_streams(*, exact: bool = False) -> some.SearchStrategy[Stream]:
    """Demands of cores, and of a part of one GPU or of whole ones."""

    def of(gpus: int) -> some.SearchStrategy[Stream]:
        whole = some.integers(1, gpus).map(lambda count: count * SIZE)
        demands = some.tuples(some.integers(0, 6), some.integers(0, SIZE) | whole)
        return streams(room(gpus), demands, exact=exact)

    return some.integers(1, 4).flatmap(of)


def parts_of(vector: Vector, count: int) -> Vector:
    return vector.parts if isinstance(vector, OnInstances) else (0,) * count


def has_place(machine: Machine, job_id: int, reservations: Sequence[Reservation]) -> bool:
    """Whether GPUs suffice for the job that have enough free, now and beside each reservation."""
    ask, free = machine.asks[job_id], machine.free
    assert isinstance(free, InstanceRoom)
    end_s, count = machine.now_s + ask.guess_s, len(free.parts)
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
    asked, memory = ask.demand
    if asked and asked > min(cores):
        return False
    if memory < SIZE:
        return not memory or any(part >= memory for part in of_each)
    return sum(part >= SIZE for part in of_each) * SIZE >= memory


#: A drain needs the two GPUs that the first jobs have, and leaves the third one.
DRAIN = Stream(
    room(3),
    arrivals=[
        Arrival(0, "root.a", (0, memory), run_s, guess_s=1)
        for memory, run_s in [(5, 7)] * 3 + [(16, 8)] * 2 + [(5, 7)] * 2
    ],
    patience_s=0,
    drain_after_s=5,
    depth=1,
)


@examples(150, quick=7)
@given(gpu_streams())
@example(DRAIN)
def test_nothing_idles(stream: Stream) -> None:
    assert_nothing_idles(stream, has_place)


@examples(150, quick=8)
@given(gpu_streams())
@example(DRAIN)
def test_no_gpu_is_given_more_than_it_has(stream: Stream) -> None:
    machine = Machine(stream)
    for _ in machine.passes():
        free = machine.free
        assert isinstance(free, InstanceRoom)
        assert free[1] == sum(free.parts)
        assert min(*free, *free.parts) >= 0


@examples(150, quick=10)
@given(gpu_streams(exact=True))
def test_with_exact_estimates_no_reserved_start_slips(stream: Stream) -> None:
    assert_no_reserved_start_slips(stream)


#: Two big jobs are waiting, and one small part could be of a GPU that either of them needs.
BESIDE_TWO = Stream(
    room(4),
    arrivals=[
        Arrival(0, "root.a", (0, 24), run_s=1, guess_s=1),
        Arrival(0, "root.a", (0, 1), run_s=5, guess_s=9),
        Arrival(0, "root.b", (0, 8), run_s=5, guess_s=1),
        Arrival(1, "root.b", (0, 24), run_s=1, guess_s=1),
        Arrival(3, "root.a", (0, 1), run_s=5, guess_s=9),
    ],
    patience_s=0,
    drain_after_s=5,
    depth=2,
)


@examples(150, quick=10)
@given(gpu_streams())
@example(BESIDE_TWO)
def test_no_reservation_has_less_than_nothing_to_spare(stream: Stream) -> None:
    """Neither jobs that start beside it nor other reserved jobs take what it needs."""
    machine = Machine(stream)
    for done in machine.passes():
        for each in done.reservations:
            assert min(each.extra) >= 0
            assert min(each.extra.parts if isinstance(each.extra, OnInstances) else (0,)) >= 0
