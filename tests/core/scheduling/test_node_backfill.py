"""Jobs on several nodes in random streams, under a virtual clock.

No node is given more than it has, the reserved starts do not slip, and nothing idles that the
reservations leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as some

from core.scheduling.streams import (
    Machine,
    Stream,
    assert_no_reserved_start_slips,
    assert_nothing_idles,
    streams,
)
from drfd.core.amounts.node_room import NodeRoom, OnNodes
from drfd.core.amounts.vectors import Vector, fits, minus, not_negative, total
from drfd.core.scheduling.backfill import Availability, Reservation, shadow
from seeds import examples

NOTHING = (0, 0)


def room(*capacity: Vector) -> NodeRoom:
    """Nodes without jobs."""
    nodes = {f"n{at}": each for at, each in enumerate(capacity)}
    return NodeRoom.of(map(sum, zip(*capacity, strict=True)), nodes, nodes)


@some.composite
def node_streams(draw: some.DrawFn, *, exact: bool = False) -> Stream:
    """Demands of two resources, each of which fits on an empty node."""
    amounts = some.tuples(some.integers(1, 12), some.integers(0, 12))
    capacity = draw(some.lists(amounts, min_size=1, max_size=4))
    below = [some.tuples(*(some.integers(0, top) for top in each)) for each in capacity]
    return draw(streams(room(*capacity), some.one_of(below), exact=exact))


def on_nodes(vector: Vector, names: Sequence[str]) -> list[Vector]:
    there = vector.nodes if isinstance(vector, OnNodes) else {}
    return [there.get(name, NOTHING) for name in names]


def has_place(machine: Machine, job_id: int, reservations: Sequence[Reservation]) -> bool:
    """Whether one node has enough free for the job, now and beside each reservation."""
    ask, free = machine.asks[job_id], machine.free
    assert isinstance(free, NodeRoom)
    names, end_s = list(free.nodes), machine.now_s + ask.guess_s
    rows = [on_nodes(free, names)]
    for each in reservations:
        if each.is_drain:
            pairs = zip(rows[0], on_nodes(each.held, names), strict=True)
            rows.append([not_negative(minus(there, kept)) for there, kept in pairs])
        if end_s > each.start_s:
            rows.append(on_nodes(each.extra, names))
    return any(
        all(fits(ask.demand, there) for there in of_node) for of_node in zip(*rows, strict=True)
    )


@examples(150, quick=6)
@given(node_streams())
def test_nothing_idles(stream: Stream) -> None:
    assert_nothing_idles(stream, has_place)


@examples(150, quick=13)
@given(node_streams())
def test_no_node_is_given_more_than_it_has(stream: Stream) -> None:
    machine = Machine(stream)
    for _ in machine.passes():
        free = machine.free
        assert isinstance(free, NodeRoom)
        assert all(min(each) >= 0 for each in free.nodes.values())
        assert free == tuple(map(sum, zip(*free.nodes.values(), strict=True)))
        for held in machine.held.values():
            assert isinstance(held, OnNodes)
            assert list(held.nodes.values()) == [tuple(held)], "a job runs on one node"


@examples(150, quick=13)
@given(node_streams(exact=True))
def test_with_exact_estimates_no_reserved_start_slips(stream: Stream) -> None:
    assert_no_reserved_start_slips(stream)


@examples(150, quick=9)
@given(node_streams())
def test_no_reservation_has_less_than_nothing_to_spare(stream: Stream) -> None:
    machine = Machine(stream)
    for done in machine.passes():
        for each in done.reservations:
            assert min(each.extra) >= 0
            assert all(min(there) >= 0 for there in on_nodes(each.extra, list(stream.room.nodes)))


@examples(150, quick=10)
@given(some.data())
def test_a_closed_node_counts_as_none(data: some.DataObject) -> None:
    """Jobs start when and where they would without it."""
    amounts = some.tuples(some.integers(1, 12), some.integers(0, 12))
    first, *others = data.draw(some.lists(amounts, min_size=2, max_size=4))
    below = [some.tuples(*(some.integers(0, top) for top in each)) for each in others]
    whole = room(first, *others)
    stream = data.draw(streams(whole.without(["n0"]), some.one_of(below)))
    names = [f"n{at}" for at in range(1, len(others) + 1)]
    nodes = dict(zip(names, others, strict=True))
    alone = NodeRoom.of(map(sum, zip(*others, strict=True)), nodes, nodes)
    closed, without = Machine(stream), Machine(stream._replace(room=alone))
    for found, wanted in zip(closed.passes(), without.passes(), strict=True):
        assert found.admitted == wanted.admitted
        assert closed.held == without.held
        assert found.reservations == wanted.reservations


@given(
    nodes=some.lists(some.tuples(some.integers(-4, 8), some.integers(-4, 8)), min_size=1),
    ends=some.lists(
        some.tuples(
            some.integers(0, 9).map(float),
            some.integers(0, 9),
            some.tuples(some.integers(0, 4), some.integers(0, 4)),
        )
    ),
    demand=some.tuples(some.integers(0, 8), some.integers(0, 8)),
)
def test_a_job_starts_when_a_node_has_enough_and_not_when_all_together_have(
    nodes: list[Vector], ends: list[tuple[float, int, Vector]], demand: Vector
) -> None:
    free, now_s = room(*nodes).summed(), 3.0
    coming = [(end_s, OnNodes(held, {f"n{at % len(nodes)}": held})) for end_s, at, held in ends]
    found = shadow(demand, 1.0, Availability(free=free, now_s=now_s, ends=coming))
    for at_s in sorted({now_s, *(end_s for end_s, _ in coming if end_s > now_s)}):
        there = total([held for end_s, held in coming if end_s <= at_s], free)
        if fits(demand, there):
            assert found is not None and found.start_s == at_s
            assert found.extra == minus(there, found.held)
            return
    assert found is None
