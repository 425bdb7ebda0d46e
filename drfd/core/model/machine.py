"""Amounts of resources where they are: vectors, and the instances of countable resources.

A vector has amounts in the order of `core.model.resources.Axes`: shares and limits are of sums over
all nodes, as in the DRF paper. What jobs hold is an `Allocation`, and what is left of the machine
are `FreeResources`: both have the sums, and beside them the amounts on each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add, sub
from typing import NamedTuple, Self

from msgspec import Struct

#: Amounts in the order of `Axes.names`.
Vector = tuple[int, ...]
#: `plus` or `minus`.
Change = Callable[[Vector, Vector], Vector]


class NodeDemand(Vector):
    """A demand for which only some nodes will do. It is equal to one for the same nodes."""

    among: frozenset[str]

    def __new__(cls, amounts: Iterable[int], among: frozenset[str] = frozenset()) -> Self:
        demand = super().__new__(cls, amounts)
        demand.among = among
        return demand

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.among == nodes_of(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def nodes_of(demand: object) -> frozenset[str] | None:
    """Return the only nodes that will do for a demand, or None if all will."""
    return demand.among if isinstance(demand, NodeDemand) else None


# The usual case without a further call: passes do these all the time.


def plus(left: Vector, right: Vector) -> Vector:
    if len(left) != len(right):
        raise ValueError(_UNLIKE)
    return tuple(map(add, left, right))


def minus(left: Vector, right: Vector) -> Vector:
    if len(left) != len(right):
        raise ValueError(_UNLIKE)
    return tuple(map(sub, left, right))


_UNLIKE = "vectors of machines with different resources"


def least(left: Vector, right: Vector) -> Vector:
    return tuple(map(min, left, right))


def not_negative(vector: Vector) -> Vector:
    """Return the vector with zero in place of negative amounts."""
    return vector if min(vector, default=0) >= 0 else tuple([max(0, each) for each in vector])


def total(vectors: Collection[Vector], zero: Vector) -> Vector:
    return tuple(map(sum, zip(zero, *vectors, strict=True)))


def fits(demand: Vector, free: Vector) -> bool:
    """True if the demand fits; a demand of zero fits even where `free` is negative."""
    for asked, there in zip(demand, free, strict=True):  # noqa: SIM110  # the hottest path
        if asked > there and asked:
            return False
    return True


def short_axes(demand: Vector, free: Vector) -> list[int]:
    """Return the axes on which `demand` does not fit into `free`."""
    pairs = enumerate(zip(demand, free, strict=True))
    return [axis for axis, (asked, there) in pairs if asked > there and asked]


class Allocation(Struct, frozen=True):
    """What jobs hold, with what of it is on each node. Without several nodes and shared instances,
    there are only the sums; the only machine with shared instances is the node ""."""

    sums: Vector
    #: Nodes with nothing of it are left out of sums and differences. Behind the amounts on a node
    #: are the parts of the shared instances there.
    nodes: Mapping[str, Vector] = {}

    def __hash__(self) -> int:
        return hash(self.sums)

    def __add__(self, other: Allocation) -> Allocation:
        return self._combined(other, plus)

    def __sub__(self, other: Allocation) -> Allocation:
        return self._combined(other, minus)

    def __neg__(self) -> Allocation:
        return Allocation((0,) * len(self.sums)) - self

    def _combined(self, other: Allocation, change: Change) -> Allocation:
        if not self.nodes and not other.nodes:
            return Allocation(change(self.sums, other.sums))
        nodes = dict(self.nodes)
        for name, there in other.nodes.items():
            nodes[name] = change(nodes.get(name, (0,) * len(there)), there)
        nodes = {name: held for name, held in nodes.items() if any(held)}
        return Allocation(change(self.sums, other.sums), nodes)

    def on(self, names: Container[str]) -> Allocation:
        """Return what of it is on these nodes; amounts that are on no node count for any."""
        elsewhere = [held for name, held in self.nodes.items() if name not in names]
        if not elsewhere:
            return self
        sums = self.sums
        for held in elsewhere:
            sums = tuple(map(sub, sums, held))
        return Allocation(sums, {name: held for name, held in self.nodes.items() if name in names})

    def parts(self, node: str) -> Vector:
        """Return the parts of the shared instances on this node."""
        return self.nodes.get(node, ())[len(self.sums) :]

    @property
    def node(self) -> str:
        """The node that a job which holds this is on; "" if there is one machine."""
        return next(iter(self.nodes), "")


class FreeResources(Struct, frozen=True, dict=True):
    """What is free of a machine or below a limit, with what is free on each node that is not
    closed. Amounts are negative where more is held than there is."""

    sums: Vector
    #: As in `Allocation`.
    nodes: Mapping[str, Vector] = {}
    #: What each node has, closed ones too; empty where only the sums count.
    capacity: Mapping[str, Vector] = {}
    #: The instances that several jobs may share; they are all on one node.
    shared: SharedInstances | None = None

    def __hash__(self) -> int:
        return hash(self.sums)

    def __add__(self, held: Allocation) -> FreeResources:
        if not self.capacity:
            return FreeResources(plus(self.sums, held.sums))
        return self._combined(held, plus)

    def __sub__(self, held: Allocation) -> FreeResources:
        if not self.capacity:
            return FreeResources(minus(self.sums, held.sums))
        return self._combined(held, minus)

    def with_all(self, held: Sequence[Allocation]) -> FreeResources:
        """Return what is free when all of this is given back."""
        if not self.capacity:
            return FreeResources(total([each.sums for each in held], self.sums))
        free = self
        for each in held:
            free += each
        return free

    def _combined(self, held: Allocation, change: Change) -> FreeResources:
        """Return both combined. What is on a closed node changes nothing."""
        here, nodes = held.on(self.nodes), dict(self.nodes)
        for name, there in here.nodes.items():
            nodes[name] = change(nodes[name], there)
        return self._like(change(self.sums, here.sums), nodes)

    def _like(self, sums: Vector, nodes: Mapping[str, Vector]) -> FreeResources:
        return FreeResources(sums, nodes, self.capacity, self.shared)

    @property
    def has_closed(self) -> bool:
        return len(self.nodes) < len(self.capacity)

    def without(self, names: Container[str] = ()) -> FreeResources:
        """Return what is free with these nodes closed, and with the sums of the others: one on
        which jobs hold more than it has, since its size was changed, takes nothing from the others.
        The same holds for shared instances; the only machine has no others."""
        if not self.capacity:
            return self
        nodes = {name: free for name, free in self.nodes.items() if name not in names}
        sums = [*self.sums]
        if self.shared is not None and self.shared.node in nodes:
            axis, amounts = self.shared.axis, list(nodes[self.shared.node])
            sums[axis] = amounts[axis] = sum(not_negative(tuple(amounts[len(sums) :])))
            nodes[self.shared.node] = tuple(amounts)
        if "" not in nodes:
            columns = list(zip(*nodes.values(), strict=False))[: len(sums)]
            sums = [sum(not_negative(column)) for column in columns] or [0] * len(sums)
        return self._like(tuple(sums), nodes)

    def without_jobs(self) -> FreeResources:
        """Return all of each node but for the closed ones."""
        return self._like(self.sums, {name: self.capacity[name] for name in self.nodes}).without()

    def least(self, other: FreeResources) -> FreeResources:
        """Return the smaller of each two amounts, on each node too."""
        both = self.nodes.keys() & other.nodes.keys()
        nodes = {
            name: least(free, other.nodes[name]) if name in both else free
            for name, free in self.nodes.items()
        }
        return self._like(least(self.sums, other.sums), nodes)

    def remainder(self, held: Allocation) -> FreeResources:
        """Return what is left beside `held`, of which there may be less free: then zero. A node on
        which too little is free takes nothing from the others."""
        left = self - held
        left = left.with_sums(not_negative(left.sums))
        return left.without() if held.nodes else left

    def with_sums(self, sums: Vector) -> FreeResources:
        return self._like(sums, self.nodes)

    def fits(self, demand: Vector) -> bool:
        """True if the demand fits, and on one node; a demand of zero fits even where an amount is
        negative."""
        # As in `fits`, without a further call.
        for asked, there in zip(demand, self.sums, strict=True):
            if asked > there and asked:
                return False
        return not self.capacity or next(self._roomy(demand), None) is not None

    def place(self, demand: Vector) -> Allocation | None:
        """Return what a job of this demand would hold if it started here, or None if no node has
        enough free. The sums are not compared.

        It is the node of which the largest part that stays free is the smallest, so that others
        keep room for large jobs; the first by name of equal ones."""
        if not self.capacity:
            return Allocation(tuple(demand))
        alike: dict[tuple[Vector, Vector], str] = {}
        for name in sorted(self._roomy(demand)):
            alike.setdefault((self.nodes[name], self.capacity[name]), name)
        if not alike:
            return None
        _, name = min([(self._rest(name, demand), name) for name in alike.values()])
        held = self._on(self.nodes[name], demand)
        assert held is not None
        return Allocation(tuple(demand), {name: held})

    def placed(self, demand: Vector) -> Allocation:
        """Return what a job of this demand holds that starts here, and fits."""
        found = self.place(demand)
        assert found is not None, "a job was started for which there was no room"
        return found

    def filled(self, demand: Vector, most: int) -> tuple[int, FreeResources]:
        """Return how many jobs of this demand start here together, `most` at most, and what they
        leave."""
        count, free = 0, self
        if not self.capacity:
            pairs = list(zip(demand, self.sums, strict=True))
            count = max(0, min([most, *[there // asked for asked, there in pairs if asked]]))
            return count, FreeResources(tuple([there - asked * count for asked, there in pairs]))
        while count < most and free.fits(demand):
            count, free = count + 1, free - free.placed(demand)
        return count, free

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

    def short_axes(self, demand: Vector) -> list[int]:
        """Return the axes on which the demand does not fit."""
        return sorted({*short_axes(demand, self.sums), *self.lacking(demand)})

    def shortage(self, demand: Vector, axis: int) -> tuple[int, int]:
        """Return how much the demand wants of an axis on which it is short, and the free amount
        that it could be taken of."""
        return self.lacking(demand).get(axis, (demand[axis], self.sums[axis]))

    def nearest(self, demand: Vector) -> Vector | None:
        """Return what is free on the node that comes nearest to having enough, or None if no node
        will do."""
        if not self.capacity:
            return self.sums
        name = self._nearest(demand)
        return None if name is None else self.nodes[name][: len(self.sums)]

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

    def shut(self, names: Iterable[str]) -> FreeResources:
        """Return what is free without anything of these shared instances."""
        if self.shared is None:
            return self.without()
        closed, there = frozenset(names), self.nodes.get(self.shared.node, ())[len(self.sums) :]
        parts = zip(self.shared.names, there, strict=False)
        return self._with_parts([min(0, part) if name in closed else part for name, part in parts])

    def reopened(self, allocated: Allocation) -> FreeResources:
        """Return what is free with all of the shared instances that jobs do not hold."""
        if self.shared is None:
            return self.without()
        node, size = self.shared.node, self.shared.size
        held = allocated.parts(node) or (0,) * len(self.shared.names)
        return self._with_parts([max(0, size - part) for part in held])

    def _with_parts(self, parts: Iterable[int]) -> FreeResources:
        assert self.shared is not None
        nodes = dict(self.nodes)
        if self.shared.node in nodes:
            nodes[self.shared.node] = (*nodes[self.shared.node][: len(self.sums)], *parts)
        return self._like(self.sums, nodes).without()


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
