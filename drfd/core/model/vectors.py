"""Arithmetic of vectors: amounts of resources in the order of `core.model.resources.Axes`.

What is free on a machine is a plain vector, unless several jobs may share an instance of a
countable resource: then it is a `Room`, which also has what is free of each of these instances, and
what a job holds is a `Placed`. A demand stays plain, and `place` turns it into what would be held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import add, sub
from typing import overload

from drfd.core.model.instances import SharedInstances

#: Amounts in the order of `Axes.names`.
Vector = tuple[int, ...]


class Placed(Vector):
    """A vector, with the part of each shared instance that is in it."""

    parts: Vector

    def __new__(cls, amounts: Iterable[int], parts: Vector) -> Placed:
        placed = super().__new__(cls, amounts)
        placed.parts = parts
        return placed

    def __eq__(self, other: object) -> bool:
        same = not isinstance(other, Placed) or self.parts == other.parts
        return same and tuple.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __getnewargs__(self) -> tuple[Vector, Vector]:
        """Return what copies are made of."""
        return tuple(self), self.parts

    __hash__ = tuple.__hash__


class Room(Placed):
    """Free amounts, with what is free of each shared instance."""

    shared: SharedInstances

    @classmethod
    def of(cls, amounts: Iterable[int], parts: Vector, shared: SharedInstances) -> Room:
        room = cls(amounts, parts)
        assert isinstance(room, Room)
        room.shared = shared
        return room

    def place(self, demand: Vector) -> Vector | None:
        """Return what a job of this demand would hold if it started here, or None if none of the
        instances has that much free. The other amounts are not compared."""
        asked = demand[self.shared.axis]
        if not asked:
            return demand
        parts = self.shared.parts_for(asked, self.parts)
        return None if parts is None else Placed(demand, parts)

    def shut(self, names: Iterable[str]) -> Room:
        """Return the room without anything free of these instances."""
        closed = frozenset(names)
        named = zip(self.shared.names, self.parts, strict=True)
        taken = tuple([max(0, part) if name in closed else 0 for name, part in named])
        amounts = list(self)
        amounts[self.shared.axis] -= sum(taken)
        return Room.of(amounts, tuple(map(sub, self.parts, taken)), self.shared)

    def reopened(self, allocated: Vector) -> Room:
        """Return the room with all free of the instances that jobs do not hold."""
        taken = allocated.parts if isinstance(allocated, Placed) else (0,) * len(self.parts)
        parts = tuple([max(0, self.shared.size - each) for each in taken])
        return Room.of(self, parts, self.shared).summed()

    def summed(self) -> Room:
        """Return the room with the sum of its parts: an instance of which jobs hold more than it
        has, since its size was changed, takes nothing from the others."""
        amounts = list(self)
        amounts[self.shared.axis] = sum([max(0, part) for part in self.parts])
        return self.with_amounts(amounts)

    def with_amounts(self, amounts: Iterable[int]) -> Room:
        return Room.of(amounts, self.parts, self.shared)


@overload
def plus(left: Room, right: Vector) -> Room: ...
@overload
def plus(left: Vector, right: Vector) -> Vector: ...
def plus(left: Vector, right: Vector) -> Vector:
    if len(left) != len(right):
        raise ValueError(_UNLIKE)
    if left.__class__ is not tuple or right.__class__ is not tuple:
        return _with_parts(left, right, add)
    return tuple(map(add, left, right))


@overload
def minus(left: Room, right: Vector) -> Room: ...
@overload
def minus(left: Vector, right: Vector) -> Vector: ...
def minus(left: Vector, right: Vector) -> Vector:
    if len(left) != len(right):
        raise ValueError(_UNLIKE)
    if left.__class__ is not tuple or right.__class__ is not tuple:
        return _with_parts(left, right, sub)
    return tuple(map(sub, left, right))


def least(left: Vector, right: Vector) -> Vector:
    """Return the smaller of each two amounts, and of each two parts; a plain vector bounds only the
    amounts."""
    if left.__class__ is not tuple or right.__class__ is not tuple:
        return _with_parts(left, right, min)
    return tuple(map(min, left, right))


def not_negative(vector: Vector) -> Vector:
    """Return the vector with zero in place of negative amounts."""
    amounts = tuple([max(0, amount) for amount in vector])
    return vector.with_amounts(amounts) if isinstance(vector, Room) else amounts


def remainder(free: Vector, held: Vector) -> Vector:
    """Return what is left of `free` beside `held`, of which there may be less free: then zero. A
    shared instance of which too little is free takes nothing from the others."""
    left = not_negative(minus(free, held))
    return left.summed() if isinstance(left, Room) and isinstance(held, Placed) else left


def total(vectors: Iterable[Vector], zero: Vector) -> Vector:
    for vector in vectors:
        zero = plus(zero, vector)
    return zero


def fits(demand: Vector, free: Vector) -> bool:
    """True if the demand fits; a demand of zero fits even where `free` is negative."""
    # This is the hottest path of a pass.
    for asked, there in zip(demand, free, strict=True):
        if asked > there and asked:
            return False
    return free.__class__ is tuple or place(demand, free) is not None


def place(demand: Vector, free: Vector) -> Vector | None:
    """Return what a job of this demand would hold if it started in `free`, or None if none of the
    shared instances has as much free as it wants of one. Other amounts are not compared."""
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
    if isinstance(free, Room) and free.shared.axis not in found and free.place(demand) is None:
        found.append(free.shared.axis)
        found.sort()
    return found


def lacking_of(demand: Vector, free: Vector, axis: int) -> tuple[int, int]:
    """Return how much of an axis the demand wants, and the free amount that it could be taken of:
    of shared instances that is what the one with the most has, or all that are wholly free for a
    demand of several."""
    asked, there = demand[axis], free[axis]
    if not (isinstance(free, Room) and axis == free.shared.axis):
        return asked, there
    size = free.shared.size
    if asked <= size:
        return asked, max(free.parts, default=0)
    return asked, sum([size for part in free.parts if part >= size])


_UNLIKE = "vectors of machines with different resources"


def _with_parts(left: Vector, right: Vector, change: Callable[[int, int], int]) -> Vector:
    """Return the changed amounts and parts, as a room if one of the two is one. A plain vector is
    of no shared instance."""
    amounts = [change(*pair) for pair in zip(left, right, strict=True)]
    if not isinstance(right, Placed):
        assert isinstance(left, Placed)
        parts = left.parts
    elif not isinstance(left, Placed):
        parts = right.parts if change is not sub else tuple([-part for part in right.parts])
    else:
        parts = tuple([change(*pair) for pair in zip(left.parts, right.parts, strict=True)])
    room = left if isinstance(left, Room) else right
    if isinstance(room, Room):
        return Room.of(amounts, parts, room.shared)
    return Placed(amounts, parts)
