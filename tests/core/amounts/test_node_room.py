"""What is free on several machines, and where a job is placed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from drfd.core.amounts.instance_room import InstanceRoom, OnInstances
from drfd.core.amounts.instances import SharedInstances
from drfd.core.amounts.node_room import NodeDemand, NodeRoom, OnNodes, node_of
from drfd.core.amounts.resources import Axes, Node, Resources
from drfd.core.amounts.vectors import (
    Vector,
    fits,
    lacking_of,
    minus,
    place,
    placed,
    plus,
    short_axes,
    total,
)
from seeds import examples

SIZE = 24


def room(**nodes: Vector) -> NodeRoom:
    """So much free on each node, of 8 cores and 64 of memory."""
    sums = map(sum, zip(*nodes.values(), strict=True))
    return NodeRoom.of(sums, nodes, dict.fromkeys(nodes, (8, 64)))


def with_gpus(*parts: int) -> InstanceRoom:
    names = tuple(map(str, range(len(parts))))
    shared = SharedInstances(axis=1, size=SIZE, names=names, places={})
    return InstanceRoom.of((8, sum(parts)), parts, shared)


def on(demand: Vector, node: str) -> OnNodes:
    return OnNodes(demand, {node: demand})


def test_demands_for_other_nodes_are_others() -> None:
    bound = NodeDemand((4, 8), frozenset({"a"}))
    assert bound == NodeDemand((4, 8), frozenset({"a"}))
    assert bound != (4, 8)
    assert bound != (4, 8)
    assert bound != NodeDemand((4, 8), frozenset({"b"}))
    assert len({bound, (4, 8), NodeDemand((4, 8), frozenset({"b"}))}) == 3
    assert plus(bound, bound) == (8, 16)
    assert minus((4, 8), bound) == (0, 0)


def test_what_is_placed_is_taken_and_comes_back() -> None:
    free = room(a=(8, 64), b=(4, 32))
    held = placed((4, 8), free)
    left = minus(free, held)
    assert isinstance(left, NodeRoom)
    assert (tuple(left), left.nodes) == ((8, 88), {"a": (8, 64), "b": (0, 24)})
    assert plus(left, held) == free == plus(held, left)
    assert total([held, on((1, 1), "a")], (0, 0)) == OnNodes((5, 9), {"a": (1, 1), "b": (4, 8)})
    assert plus(minus((0, 0), held), held) == OnNodes((0, 0), {})
    assert minus(total([held, held], (0, 0)), held) == held


def test_a_closed_node_has_nothing_free_whatever_comes_back_there() -> None:
    free = minus(room(a=(8, 64), b=(4, 32)), on((8, 8), "a")).without(["a"])
    assert (free, free.nodes) == ((4, 32), {"b": (4, 32)})
    back = plus(free, on((8, 8), "a"))
    assert isinstance(back, NodeRoom)
    assert (back, back.nodes, back.closed) == ((4, 32), {"b": (4, 32)}, {"a"})
    assert place((5, 1), back) is None
    assert short_axes((5, 1), back) == [0]
    assert not fits(NodeDemand((1, 1), frozenset({"a"})), back)
    nothing = back.without(["b"])
    assert (nothing, place((1, 1), nothing)) == ((0, 0), None)


def test_nodes_may_have_gpus_that_are_shared() -> None:
    capacity = {"a": with_gpus(SIZE, SIZE), "b": (8, 0)}
    nodes = {"a": with_gpus(10, 10), "b": (8, 0)}
    free = NodeRoom.of((16, 20), nodes, capacity)
    assert not fits((1, 15), free)
    assert lacking_of((1, 15), free, 1) == (15, 10)
    held = placed((1, 9), free)
    assert held == OnNodes((1, 9), {"a": OnInstances((1, 9), (9, 0))})
    assert minus(free, held).shut(["1"]) == (15, 1)
    assert minus(free, held).shut(["1"]).reopened(held) == (15, 39)


amounts = some.tuples(some.integers(-3, 8), some.integers(-3, 8))


@examples(100, quick=11)
@given(nodes=some.lists(amounts, min_size=1, max_size=4), demand=amounts)
def test_a_demand_is_placed_exactly_if_a_node_has_enough(
    nodes: list[Vector], demand: Vector
) -> None:
    demand = tuple([max(0, each) for each in demand])
    free = room(**{f"n{at}": each for at, each in enumerate(nodes)}).summed()
    assert fits(demand, free) is any(fits(demand, each) for each in nodes)
    assert fits(demand, free) is (short_axes(demand, free) == [])
    if fits(demand, free):
        left = minus(free, placed(demand, free))
        held = [name for name in free.nodes if left.nodes[name] != free.nodes[name]]
        assert len(held) == any(demand)
        assert all(minus(free.nodes[name], demand) == left.nodes[name] for name in held)


@given(
    nodes=some.lists(amounts, min_size=2, max_size=4),
    moves=some.lists(some.tuples(some.integers(0, 3), amounts, some.booleans()), max_size=6),
)
def test_a_room_without_nodes_is_the_room_of_the_others(
    nodes: list[Vector], moves: list[tuple[int, Vector, bool]]
) -> None:
    whole = {f"n{at}": each for at, each in enumerate(nodes)}
    closed = room(**whole).without(["n0"])
    others = room(**{name: free for name, free in whole.items() if name != "n0"}).summed()
    for at, held, is_start in moves:
        change = on(held, f"n{at % len(nodes)}")
        closed = minus(closed, change) if is_start else plus(closed, change)
        if at % len(nodes):
            others = minus(others, change) if is_start else plus(others, change)
    assert (closed, closed.nodes, closed.summed()) == (others, others.nodes, others.summed())


@given(nodes=some.lists(some.sampled_from([(8, 64), (4, 64), (8, 9), (1, 1)]), min_size=1))
def test_of_many_alike_nodes_the_one_is_taken_that_each_by_itself_would_give(
    nodes: list[Vector],
) -> None:
    demand, free = (3, 8), room(**{f"n{at}": each for at, each in enumerate(nodes)})
    rests = [
        (max((cores - 3) / 8, (memory - 8) / 64), name)
        for name, (cores, memory) in free.nodes.items()
        if cores >= 3 and memory >= 8
    ]
    assert place(demand, free) == (on(demand, min(rests)[1]) if rests else None)


def test_a_part_of_a_core_is_for_nodes_that_give_out_parts() -> None:
    own = Node(name="head", capacity=Resources(cores_milli=2500))
    whole = Node(name="n1", capacity=Resources(cores_milli=4000), whole_cores=True)
    axes = Axes(nodes=(own, whole))
    free = axes.room(axes.amounts(Resources(cores_milli=6500)))
    assert isinstance(free, NodeRoom)
    assert free.nodes["head"] == axes.amounts(own.capacity)
    for milli, among in ((500, {"head"}), (1000, {"head", "n1"}), (3000, {"head", "n1"})):
        assert axes.nodes_for(Resources(cores_milli=milli)) == among
    part = axes.vector(Resources(cores_milli=2500))
    assert node_of(free.place(part)) == "head"
    assert not free.has_place(axes.vector(Resources(cores_milli=3500)))
    assert node_of(free.place(axes.vector(Resources(cores_milli=3000)))) == "n1"
