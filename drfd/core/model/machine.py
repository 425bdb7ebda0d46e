"""Amounts of resources where they are: vectors, and the instances of countable resources.

A vector has amounts in the order of `core.model.resources.Axes`. Free resources are a plain vector,
or a `Room` with those of each node and each shared GPU; what a job then holds is a `Placed`. A
demand stays plain, and `place` turns it into what would be held. Shares are of the sums over all
nodes, as in the DRF paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import add, sub
from typing import NamedTuple, Self, TypeVar

#: Amounts in the order of `Axes.names`.
Vector = tuple[int, ...]
#: A room stays one when something is added or taken away.
V = TypeVar("V", bound=Vector)

#: What is done to each two amounts: `operator.add`, `operator.sub` or `min`.
Change = Callable[[int, int], int]


class _Bound(Vector):
    """A vector that says on which nodes it is, and is equal only to one of the same nodes."""

    @property
    def where(self) -> object:
        """The nodes; None if it says nothing of any, as a plain vector."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.where == getattr(other, "where", None)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


class NodeDemand(_Bound):
    """A demand for which only some nodes will do."""

    among: frozenset[str]

    def __new__(cls, amounts: Iterable[int], among: frozenset[str] = frozenset()) -> Self:
        demand = super().__new__(cls, amounts)
        demand.among = among
        return demand

    @property
    def where(self) -> object:
        return self.among


def nodes_of(demand: object) -> frozenset[str] | None:
    """Return the only nodes that will do for a demand, or None if all will."""
    return demand.among if isinstance(demand, NodeDemand) else None


class Placed(_Bound):
    """A vector, with what of it is on each node; nodes with nothing of it are left out. The only
    machine, if there is one, is the node "". Behind the amounts on a node are the parts of the
    shared instances there."""

    nodes: Mapping[str, Vector]

    def __new__(cls, amounts: Iterable[int], nodes: Mapping[str, Vector] = {}) -> Self:
        placed = super().__new__(cls, amounts)
        placed.nodes = nodes
        return placed

    @property
    def where(self) -> object:
        return self.nodes or None

    def like(self, amounts: Iterable[int], nodes: Mapping[str, Vector]) -> Placed:
        return Placed(amounts, {name: held for name, held in nodes.items() if any(held)})

    def on(self, names: Container[str]) -> Placed:
        elsewhere = [held for name, held in self.nodes.items() if name not in names]
        if not elsewhere:
            return self
        amounts = tuple(self)
        for held in elsewhere:
            amounts = tuple(map(sub, amounts, held))
        return Placed(amounts, {name: held for name, held in self.nodes.items() if name in names})

    def parts(self, node: str) -> Vector:
        """Return the parts of the shared instances on this node."""
        return self.nodes.get(node, ())[len(self) :]


def node_of(held: Vector) -> str:
    """Return the node that a job which holds this is on; "" if there is one machine."""
    return next(iter(held.nodes)) if isinstance(held, Placed) else ""


class Room(Placed):
    """Free amounts, with what is free on each node that is not closed."""

    #: What each node has, closed ones too.
    capacity: Mapping[str, Vector]
    #: The instances that several jobs may share; they are all on one node.
    shared: SharedInstances | None

    def __new__(
        cls,
        amounts: Iterable[int],
        nodes: Mapping[str, Vector] = {},
        capacity: Mapping[str, Vector] | None = None,
        shared: SharedInstances | None = None,
    ) -> Self:
        room = super().__new__(cls, amounts, nodes)
        room.capacity, room.shared = capacity or nodes, shared
        return room

    def like(self, amounts: Iterable[int], nodes: Mapping[str, Vector]) -> Room:
        return Room(amounts, nodes, self.capacity, self.shared)

    @property
    def has_closed(self) -> bool:
        return len(self.nodes) < len(self.capacity)

    def without(self, names: Container[str] = ()) -> Room:
        """Return the room with these nodes closed, and with the sums of what is free on the others:
        one on which jobs hold more than it has, since its size was changed, takes nothing from the
        others. The same holds for shared instances; the only machine has no others."""
        nodes = {name: free for name, free in self.nodes.items() if name not in names}
        sums = [*self]
        if self.shared is not None and self.shared.node in nodes:
            axis, amounts = self.shared.axis, list(nodes[self.shared.node])
            sums[axis] = amounts[axis] = sum(not_negative(tuple(amounts[len(self) :])))
            nodes[self.shared.node] = tuple(amounts)
        if "" not in nodes:
            columns = list(zip(*nodes.values(), strict=False))[: len(self)]
            sums = [sum(not_negative(column)) for column in columns] or [0] * len(self)
        return self.like(sums, nodes)

    def without_jobs(self) -> Room:
        """Return the room with all of each node free but for the closed ones."""
        return self.like(self, {name: self.capacity[name] for name in self.nodes}).without()

    def place(self, demand: Vector) -> Vector | None:
        """Return what a job of this demand would hold if it started here, or None if no node has
        enough free. The sums are not compared.

        It is the node of which the largest part that stays free is the smallest, so that others
        keep room for large jobs; the first by name of equal ones."""
        alike: dict[tuple[Vector, Vector], str] = {}
        for name in sorted(self._roomy(demand)):
            alike.setdefault((self.nodes[name], self.capacity[name]), name)
        if not alike:
            return None
        _, name = min([(self._rest(name, demand), name) for name in alike.values()])
        held = self._on(self.nodes[name], demand)
        assert held is not None
        return Placed(demand, {name: held})

    def has_place(self, demand: Vector) -> bool:
        """Return whether a node has enough free for the demand. The sums are not compared."""
        return next(self._roomy(demand), None) is not None

    def _roomy(self, demand: Vector) -> Iterator[str]:
        """Yield the names of the nodes that have enough free."""
        names = list(self.nodes)
        found: Iterable[int] = range(len(names))
        # Whole columns first: on most axes of a full cluster few nodes have enough.
        for asked, column in zip(demand, self._columns, strict=False):
            if asked:
                found = [at for at in found if column[at] >= asked]
        among = nodes_of(demand)
        for name in map(names.__getitem__, found):
            if (among is None or name in among) and self._on(self.nodes[name], demand) is not None:
                yield name

    @cached_property
    def _columns(self) -> list[tuple[int, ...]]:
        """What is free of each resource, node by node."""
        return list(zip(*self.nodes.values(), strict=False))

    def _on(self, free: Vector, demand: Vector) -> Vector | None:
        """Return what a job of this demand would hold on a node on which so much is free, or None
        if that is too little."""
        held = tuple(demand)
        if not all(asked <= there or not asked for asked, there in zip(held, free, strict=False)):
            return None
        if len(free) == len(held) or self.shared is None:
            return held
        parts = self.shared.parts_for(held[self.shared.axis], free[len(held) :])
        return None if parts is None else held + parts

    def _rest(self, name: str, demand: Vector) -> float:
        """Return the largest part of a node's resources that stays free beside the demand."""
        amounts = zip(self.nodes[name], demand, self.capacity[name], strict=False)
        return max([(free - asked) / top for free, asked, top in amounts if top > 0], default=0.0)

    def lacking(self, demand: Vector) -> dict[int, tuple[int, int]]:
        """Return the axes on which no node has enough free for the demand, each with how much it
        wants and the free amount on the node that comes nearest. Of the only machine these are its
        shared instances: its amounts are the sums, which are not compared."""
        name = self._nearest(demand)
        return {} if name is None else self._lacking(name, demand)

    def _lacking(self, name: str, demand: Vector) -> dict[int, tuple[int, int]]:
        free, shared = self.nodes[name], self.shared
        pairs = enumerate(zip(demand, free, strict=False)) if name else ()
        lacks = {axis: pair for axis, pair in pairs if pair[0] > pair[1] and pair[0]}
        if shared is not None and len(free) > len(demand):
            asked, parts = demand[shared.axis], free[len(demand) :]
            if shared.parts_for(asked, parts) is None:
                # A part could be taken of the one with the most left, and several of all that are
                # wholly free.
                whole = sum([shared.size for part in parts if part >= shared.size])
                lacks[shared.axis] = asked, max(parts, default=0) if asked <= shared.size else whole
        return lacks

    def nearest(self, demand: Vector) -> Vector | None:
        """Return what is free on the node that comes nearest to having enough, or None if no node
        will do."""
        name = self._nearest(demand)
        return None if name is None else self.nodes[name][: len(self)]

    def _nearest(self, demand: Vector) -> str | None:
        """Return the node that comes nearest, of those that are large enough if there are any."""
        bound = nodes_of(demand)
        among = [name for name in self.nodes if bound is None or name in bound]
        able = [name for name in among if self._on(self.capacity[name], demand) is not None]

        def lack(name: str) -> tuple[int, float, str]:
            """On how many axes the node is short, and the largest part of the demand among what it
            is short of."""
            lacks = self._lacking(name, demand).values()
            return len(lacks), max([1 - there / asked for asked, there in lacks], default=0.0), name

        return min(able or among, key=lack, default=None)

    def shut(self, names: Iterable[str]) -> Room:
        """Return the room without anything free of these shared instances."""
        if self.shared is None:
            return self.without()
        closed = frozenset(names)
        parts = zip(self.shared.names, self.parts(self.shared.node), strict=False)
        return self._with_parts([min(0, part) if name in closed else part for name, part in parts])

    def reopened(self, allocated: Vector) -> Room:
        """Return the room with all free of the shared instances that jobs do not hold."""
        if self.shared is None:
            return self.without()
        node, size = self.shared.node, self.shared.size
        held = allocated.parts(node) if isinstance(allocated, Placed) else ()
        held = held or (0,) * len(self.shared.names)
        return self._with_parts([max(0, size - part) for part in held])

    def _with_parts(self, parts: Iterable[int]) -> Room:
        assert self.shared is not None
        nodes = dict(self.nodes)
        if self.shared.node in nodes:
            nodes[self.shared.node] = (*nodes[self.shared.node][: len(self)], *parts)
        return self.like(self, nodes).without()


def plus(left: V, right: Vector) -> V:
    # The usual case without a further call: passes add and subtract all the time.
    if left.__class__ is right.__class__ is tuple and len(left) == len(right):
        return tuple(map(add, left, right))
    return combine(left, right, add)  # type: ignore[return-value]


def minus(left: V, right: Vector) -> V:
    # As in `plus`.
    if left.__class__ is right.__class__ is tuple and len(left) == len(right):
        return tuple(map(sub, left, right))
    return combine(left, right, sub)  # type: ignore[return-value]


def least(left: Vector, right: Vector) -> Vector:
    """Return the smaller of each two amounts, on each node too; a plain vector bounds only the
    sums."""
    return combine(left, right, min)


def not_negative(vector: Vector) -> Vector:
    """Return the vector with zero in place of negative amounts."""
    if vector.__class__ is tuple and min(vector, default=0) >= 0:
        return vector
    amounts = tuple([max(0, amount) for amount in vector])
    return vector.like(amounts, vector.nodes) if isinstance(vector, Room) else amounts


def remainder(free: Vector, held: Vector) -> Vector:
    """Return what is left of `free` beside `held`, of which there may be less free: then zero. A
    node on which too little is free takes nothing from the others."""
    left = not_negative(minus(free, held))
    return left.without() if isinstance(left, Room) and isinstance(held, Placed) else left


def total(vectors: Collection[Vector], zero: Vector) -> Vector:
    # As in `plus`.
    if {zero.__class__, *map(type, vectors)} == {tuple}:
        return tuple(map(sum, zip(zero, *vectors, strict=True)))
    for vector in vectors:
        zero = plus(zero, vector)
    return zero


def fits(demand: Vector, free: Vector) -> bool:
    """True if the demand fits; a demand of zero fits even where `free` is negative."""
    # This is the hottest path of a pass.
    for asked, there in zip(demand, free, strict=True):
        if asked > there and asked:
            return False
    return free.__class__ is tuple or not isinstance(free, Room) or free.has_place(demand)


def place(demand: Vector, free: Vector) -> Vector | None:
    """Return what a job of this demand would hold if it started in `free`, or None if no node has
    as much free. The sums are not compared."""
    return free.place(demand) if isinstance(free, Room) else demand


def placed(demand: Vector, free: Vector) -> Vector:
    """Return what a job of this demand holds that starts in `free`, into which it fits."""
    found = place(demand, free)
    assert found is not None, "a job was started for which there was no room"
    return found


def short_axes(demand: Vector, free: Vector) -> list[int]:
    """Return the axes on which `demand` does not fit into `free`."""
    pairs = enumerate(zip(demand, free, strict=True))
    found = [axis for axis, (asked, there) in pairs if asked > there and asked]
    return sorted({*found, *free.lacking(demand)}) if isinstance(free, Room) else found


def lacking_of(demand: Vector, free: Vector, axis: int) -> tuple[int, int]:
    """Return how much the demand wants of an axis on which it is short, and the free amount that it
    could be taken of."""
    amounts = demand[axis], free[axis]
    return free.lacking(demand).get(axis, amounts) if isinstance(free, Room) else amounts


def combine(left: Vector, right: Vector, change: Change) -> Vector:
    """Return each two amounts made one, on each node too. A plain vector is on no node. What is on
    a closed node of a room changes nothing."""
    if len(left) != len(right):
        raise ValueError("vectors of machines with different resources")
    if isinstance(left, Room) and isinstance(right, Placed):
        right = right.on(left.nodes)
    elif isinstance(right, Room) and isinstance(left, Placed):
        left = left.on(right.nodes)
    amounts = tuple(map(change, left, right))
    if not isinstance(right, Placed):
        return left.like(amounts, left.nodes) if isinstance(left, Placed) else amounts
    nodes = dict(left.nodes) if isinstance(left, Placed) else {}
    for name, there in right.nodes.items():
        nodes[name] = tuple(map(change, nodes.get(name, (0,) * len(there)), there))
    one = right if isinstance(right, Room) or not isinstance(left, Placed) else left
    return one.like(amounts, nodes)


# -- instances of countable resources --------------------------------------------------------------

#: Instances of countable resources by name: (("gpu", ("0", "1")),).
Instances = tuple[tuple[str, tuple[str, ...]], ...]

#: Resource and instance: ("gpu", "0").
Instance = tuple[str, str]


class InstancePlace(NamedTuple):
    """Where an instance of a countable resource is, as far as is known."""

    #: NUMA node.
    node: int | None = None
    #: Instances of the same resource that have a direct link to it.
    links: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInstances:
    """The instances of a resource of which a job gets a part of one, or some as a whole."""

    #: The axis of their sum.
    axis: int
    #: The node on which they are.
    node: str = ""
    #: The size of each; amounts below it are a part of one, and others are multiples of it.
    size: int
    names: tuple[str, ...]
    places: Mapping[str, InstancePlace]

    def parts_for(self, asked: int, free: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return how much of each instance a job gets that asks for so much: a part of the one
        that has the least left which suffices, or wholly free ones; None if there are none."""
        if not asked:
            return (0,) * len(self.names)
        if asked < self.size:
            enough = [(left, at) for at, left in enumerate(free) if left >= asked]
            return self._parts({min(enough)[1]}, asked) if enough else None
        count = -(-asked // self.size)
        whole = [name for name, left in zip(self.names, free, strict=True) if left >= self.size]
        if len(whole) < count:
            return None
        chosen = choose_near(count, whole, self.places)
        return self._parts({self.names.index(each) for each in chosen}, self.size)

    def _parts(self, chosen: set[int], part: int) -> tuple[int, ...]:
        return tuple([part if at in chosen else 0 for at in range(len(self.names))])


def choose_instances(
    asked: Iterable[tuple[str, int]],
    there: Instances,
    taken: Container[Instance],
    places: Iterable[tuple[Instance, InstancePlace]] = (),
) -> Instances:
    """Choose, for each name and count in `asked`, instances that are not `taken`: on as few NUMA
    nodes as possible, preferring the node that is left with the fewest; of these the ones with the
    most links between them; then the first.

    There must be enough: a pass admits only what fits. The choice is part of the event of
    admission, so a restart finds it again.
    """
    lists = dict(there)
    chosen = []
    for name, count in asked:
        free = [each for each in lists.get(name, ()) if (name, each) not in taken]
        assert len(free) >= count, f"{count} of {name} were admitted, and {free} are free"
        known = {instance: place for (kind, instance), place in places if kind == name}
        chosen.append((name, tuple(choose_near(count, free, known))))
    return tuple(chosen)


def choose_near(count: int, free: list[str], places: Mapping[str, InstancePlace]) -> list[str]:
    """Choose `count` of the free instances that are near each other, in the order of `free`."""
    if not places:
        return free[:count]
    nodes: dict[int | None, list[str]] = {}
    for each in free:
        nodes.setdefault(places.get(each, _NOWHERE).node, []).append(each)
    found: set[str] = set()
    while len(found) < count:
        wanted = count - len(found)
        enough = [node for node, some in nodes.items() if len(some) >= wanted]
        # The fullest node that has enough, or else the emptiest.
        if enough:
            node = min(enough, key=lambda node: len(nodes[node]))
        else:
            node = max(nodes, key=lambda node: len(nodes[node]))
        found.update(_linked(wanted, nodes.pop(node), places))
    return [each for each in free if each in found]


def _linked(count: int, some: list[str], places: Mapping[str, InstancePlace]) -> list[str]:
    """Choose `count` instances of one node, or all: from each of them grow a group by the instance
    with the most links into it, and return the group with the most links."""
    links = {each: places.get(each, _NOWHERE).links for each in some}
    if count >= len(some) or not any(links.values()):
        return some[:count]
    groups = []
    for first in some:
        group, within = [first], 0
        while len(group) < count:
            rest = (each for each in some if each not in group)
            nearest = max(rest, key=lambda each: len(links[each].intersection(group)))
            within += len(links[nearest].intersection(group))
            group.append(nearest)
        groups.append((within, group))
    return max(groups, key=lambda each: each[0])[1]


_NOWHERE = InstancePlace()


def each_instance(instances: Instances) -> Iterator[Instance]:
    return ((name, each) for name, some in instances for each in some)


def count_instances(instances: Instances, sign: int, taken: Counter[Instance]) -> None:
    """Add (`sign` 1) or remove (-1) the instances of a job in `taken`. Only the ledger calls it."""
    for each in each_instance(instances):
        taken[each] += sign
        if not taken[each]:
            del taken[each]
