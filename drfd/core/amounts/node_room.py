"""What is free, and what is held, on several machines, the nodes.

Shares are of the sums over all nodes, as in the DRF paper. A job runs on one node, so it matters
what each of them has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from operator import add
from typing import Self

from drfd.core.amounts.vectors import (
    Change,
    Placed,
    Room,
    Vector,
    combine,
    fits,
    lacking_of,
    minus,
    not_negative,
    placed,
    short_axes,
)


class NodeDemand(Vector):
    """A demand for which only some nodes will do."""

    among: frozenset[str]

    def __new__(cls, amounts: Iterable[int], among: frozenset[str]) -> Self:
        demand = super().__new__(cls, amounts)
        demand.among = among
        return demand

    def __getnewargs__(self) -> tuple[Vector, frozenset[str]]:
        """Return what copies are made of."""
        return tuple(self), self.among

    def __eq__(self, other: object) -> bool:
        return nodes_of(other) == self.among and tuple.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


def nodes_of(demand: object) -> frozenset[str] | None:
    """Return the only nodes that will do for a demand, or None if all will."""
    return demand.among if isinstance(demand, NodeDemand) else None


class OnNodes(Placed):
    """A vector, with what of it is on each node. Nodes with nothing of it are left out."""

    nodes: Mapping[str, Vector]

    def __new__(cls, amounts: Iterable[int], nodes: Mapping[str, Vector]) -> Self:
        found = super().__new__(cls, amounts)
        found.nodes = nodes
        return found

    def __getnewargs__(self) -> tuple[Vector, Mapping[str, Vector]]:
        """Return what copies are made of."""
        return tuple(self), self.nodes

    @property
    def where(self) -> Mapping[str, Vector]:
        return self.nodes

    def with_amounts(self, amounts: Iterable[int]) -> Self:
        return self._like(amounts, self.nodes)

    def beside(self, names: frozenset[str]) -> OnNodes:
        """Return what is not on these nodes."""
        amounts: Vector = tuple(self)
        for name in names & self.nodes.keys():
            amounts = minus(amounts, tuple(self.nodes[name]))
        left = {name: held for name, held in self.nodes.items() if name not in names}
        return OnNodes(amounts, left)

    def taken_away(self) -> Self:
        nothing = (0,) * len(self)
        return self._like(self, {name: minus(nothing, held) for name, held in self.nodes.items()})

    def changed(self, amounts: Iterable[int], other: Placed, change: Change) -> OnNodes:
        assert isinstance(other, OnNodes)
        if isinstance(other, NodeRoom) and not isinstance(self, NodeRoom):
            assert change is add, "a room is never taken from what is held"
            return other.changed(amounts, self, change)
        nodes, nothing = dict(self.nodes), (0,) * len(self)
        for name, there in other.nodes.items():
            nodes[name] = combine(nodes.get(name, nothing), there, change)
            if not any(nodes[name]) and not isinstance(self, NodeRoom):
                del nodes[name]
        return self._like(amounts, nodes)

    def _like(self, amounts: Iterable[int], nodes: Mapping[str, Vector]) -> Self:
        return type(self)(amounts, nodes)


def node_of(held: Vector | None) -> str:
    """Return the node that a job which holds this is on; "" if there is one machine."""
    return next(iter(held.nodes)) if isinstance(held, OnNodes) else ""


class NodeRoom(OnNodes, Room):
    """Free amounts, with what is free on each node, also where that is nothing."""

    #: What each node has in all.
    capacity: Mapping[str, Vector]
    #: Nodes on which nothing starts: the room is without them, whatever jobs give back there.
    closed: frozenset[str]

    @classmethod
    def of(
        cls,
        amounts: Iterable[int],
        nodes: Mapping[str, Vector],
        capacity: Mapping[str, Vector],
        closed: frozenset[str] = frozenset(),
    ) -> Self:
        room = cls(amounts, nodes)
        room.capacity, room.closed = capacity, closed
        return room

    def without(self, names: Iterable[str]) -> Self:
        """Return the room with these nodes closed."""
        closed = self.closed.union(names)
        left = {name: free for name, free in self.nodes.items() if name not in closed}
        return self.of(self, left, self.capacity, closed).summed()

    def without_jobs(self) -> Self:
        """Return the room with all of each node free but for the closed ones."""
        return self.of(self, self.capacity, self.capacity).without(self.closed)

    def changed(self, amounts: Iterable[int], other: Placed, change: Change) -> OnNodes:
        assert isinstance(other, OnNodes)
        if not self.closed.isdisjoint(other.nodes):
            other = other.beside(self.closed)
            amounts = [change(*pair) for pair in zip(self, other, strict=True)]
        return super().changed(amounts, other, change)

    def place(self, demand: Vector) -> Vector | None:
        """Return the demand on the node of which the largest part that stays free is the smallest,
        so that others keep room for large jobs; the first by name of equal ones."""
        alike: dict[tuple[Vector, Vector], str] = {}
        for name in sorted(self._roomy(demand)):
            alike.setdefault((self.nodes[name], self.capacity[name]), name)
        if not alike:
            return None
        _, name = min([(self._rest(name, demand), name) for name in alike.values()])
        held = placed(tuple(demand), self.nodes[name])
        return OnNodes(held, {name: held})

    def has_place(self, demand: Vector) -> bool:
        return next(self._roomy(demand), None) is not None

    def _roomy(self, demand: Vector) -> Iterator[str]:
        """Yield the names of the nodes that have enough free."""
        names = list(self.nodes)
        found: Iterable[int] = range(len(names))
        # Whole columns first: on most axes of a full cluster few nodes have enough.
        for asked, column in zip(demand, self._columns, strict=True):
            if asked:
                found = [at for at in found if column[at] >= asked]
        among = nodes_of(demand)
        for name in map(names.__getitem__, found):
            if (among is None or name in among) and fits(demand, self.nodes[name]):
                yield name

    @cached_property
    def _columns(self) -> list[tuple[int, ...]]:
        """What is free of each resource, node by node."""
        return list(zip(*self.nodes.values(), strict=True)) or [()] * len(self)

    def among(self, demand: Vector) -> Mapping[str, Vector]:
        """Return what is free on the nodes that will do for the demand."""
        among = nodes_of(demand)
        if among is None:
            return self.nodes
        return {name: free for name, free in self.nodes.items() if name in among}

    def _rest(self, name: str, demand: Vector) -> float:
        """Return the largest part of a node's resources that stays free beside the demand."""
        amounts = zip(self.nodes[name], demand, self.capacity[name], strict=True)
        return max([(free - asked) / top for free, asked, top in amounts if top > 0], default=0.0)

    def lacking(self, demand: Vector) -> dict[int, tuple[int, int]]:
        """Return what is short on the node that comes nearest."""
        free = self.nearest(demand)
        if free is None:
            return {}
        return {axis: lacking_of(demand, free, axis) for axis in short_axes(demand, free)}

    def nearest(self, demand: Vector) -> Vector | None:
        """Return what is free on the node that comes nearest to having enough, of those that are
        large enough if there are any; None if no node will do."""
        among = self.among(demand)
        able = [name for name in among if fits(demand, self.capacity[name])] or among
        lacks = [(*self._lack(name, demand), name) for name in able]
        return self.nodes[min(lacks)[-1]] if lacks else None

    def _lack(self, name: str, demand: Vector) -> tuple[int, float]:
        """Return on how many axes a node is short, and the largest part of the demand among what it
        is short of."""
        free = self.nodes[name]
        lacks = [lacking_of(demand, free, axis) for axis in short_axes(demand, free)]
        return len(lacks), max([1 - there / asked for asked, there in lacks], default=0.0)

    def shut(self, names: Iterable[str]) -> Self:
        closed = frozenset(names)
        return self._on_each(lambda _, room: room.shut(closed))

    def reopened(self, allocated: Vector) -> Self:
        held: Mapping[str, Vector] = allocated.nodes if isinstance(allocated, OnNodes) else {}
        return self._on_each(lambda name, room: room.reopened(held.get(name, ())))

    def summed(self) -> Self:
        """Return the room with the sums over its nodes: one on which jobs hold more than it has
        takes nothing from the others."""
        return self.with_amounts([sum(not_negative(column)) for column in self._columns])

    def _on_each(self, change: Callable[[str, Room], Room]) -> Self:
        """Return the room with the rooms of shared instances on its nodes changed."""
        nodes = {
            name: change(name, free) if isinstance(free, Room) else free
            for name, free in self.nodes.items()
        }
        return self._like(self, nodes).summed()

    def _like(self, amounts: Iterable[int], nodes: Mapping[str, Vector]) -> Self:
        return self.of(amounts, nodes, self.capacity, self.closed)
