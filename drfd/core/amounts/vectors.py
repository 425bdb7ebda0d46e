"""Arithmetic of vectors: amounts of resources in the order of `core.amounts.resources.Axes`.

What is free on a machine is a plain vector, unless it matters where it is free: then it is a
`Room`, which also has what is free in each place, and what a job holds is a `Placed`. A demand
stays plain, and `place` turns it into what would be held. `core.amounts.instance_room` has the
rooms of a machine on which several jobs may share a GPU, and `core.amounts.node_room` those of
several machines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from operator import add, sub
from typing import Self, overload

#: Amounts in the order of `Axes.names`.
Vector = tuple[int, ...]

#: What is done to each two amounts: `operator.add`, `operator.sub` or `min`.
Change = Callable[[int, int], int]


class Placed(Vector, ABC):
    """A vector, with where its amounts are."""

    @property
    @abstractmethod
    def where(self) -> object:
        """Return what is equal for vectors that are of the same places."""

    @abstractmethod
    def with_amounts(self, amounts: Iterable[int]) -> Self:
        """Return other amounts, of the same places."""

    @abstractmethod
    def taken_away(self) -> Placed:
        """Return the vector with what it has in each place taken away; the sums are not changed."""

    @abstractmethod
    def changed(self, amounts: Iterable[int], other: Placed, change: Change) -> Placed:
        """Return these amounts, with what is in each place changed by what `other` has there. The
        result is a room if one of the two is one."""

    def __eq__(self, other: object) -> bool:
        same = not isinstance(other, Placed) or self.where == other.where
        return same and tuple.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


class Room(Placed):
    """Free amounts, with what is free in each place."""

    @abstractmethod
    def place(self, demand: Vector) -> Vector | None:
        """Return what a job of this demand would hold if it started here, or None if no place has
        that much free. The sums are not compared."""

    def has_place(self, demand: Vector) -> bool:
        """Return whether a place has enough free for the demand. The sums are not compared."""
        return self.place(demand) is not None

    @abstractmethod
    def lacking(self, demand: Vector) -> dict[int, tuple[int, int]]:
        """Return the axes on which no place has enough free for the demand, each with how much it
        wants and the free amount that it could be taken of. The sums are not compared."""

    @abstractmethod
    def shut(self, names: Iterable[str]) -> Room:
        """Return the room without anything free of these shared instances."""

    @abstractmethod
    def reopened(self, allocated: Vector) -> Room:
        """Return the room with all free of the shared instances that jobs do not hold."""

    @abstractmethod
    def summed(self) -> Room:
        """Return the room with the sums of what is free in each place: a place of which jobs hold
        more than it has, since its size was changed, takes nothing from the others."""


@overload
def plus(left: Room, right: Vector) -> Room: ...
@overload
def plus(left: Vector, right: Vector) -> Vector: ...
def plus(left: Vector, right: Vector) -> Vector:
    # The usual case without a further call: passes add and subtract all the time.
    if left.__class__ is right.__class__ is tuple and len(left) == len(right):
        return tuple(map(add, left, right))
    return combine(left, right, add)


@overload
def minus(left: Room, right: Vector) -> Room: ...
@overload
def minus(left: Vector, right: Vector) -> Vector: ...
def minus(left: Vector, right: Vector) -> Vector:
    # As in `plus`.
    if left.__class__ is right.__class__ is tuple and len(left) == len(right):
        return tuple(map(sub, left, right))
    return combine(left, right, sub)


def least(left: Vector, right: Vector) -> Vector:
    """Return the smaller of each two amounts, in each place too; a plain vector bounds only the
    sums."""
    return combine(left, right, min)


def not_negative(vector: Vector) -> Vector:
    """Return the vector with zero in place of negative amounts."""
    if vector.__class__ is tuple and min(vector, default=0) >= 0:
        return vector
    amounts = tuple([max(0, amount) for amount in vector])
    return vector.with_amounts(amounts) if isinstance(vector, Room) else amounts


def remainder(free: Vector, held: Vector) -> Vector:
    """Return what is left of `free` beside `held`, of which there may be less free: then zero. A
    place in which too little is free takes nothing from the others."""
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
    return free.__class__ is tuple or not isinstance(free, Room) or free.has_place(demand)


def place(demand: Vector, free: Vector) -> Vector | None:
    """Return what a job of this demand would hold if it started in `free`, or None if no place has
    as much free as it wants of one. The sums are not compared."""
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
    """Return each two amounts made one, in each place too. A plain vector is of no place."""
    if len(left) != len(right):
        raise ValueError("vectors of machines with different resources")
    if left.__class__ is tuple and right.__class__ is tuple:
        return tuple(map(change, left, right))
    amounts = tuple([change(*pair) for pair in zip(left, right, strict=True)])
    if isinstance(left, Placed):
        if isinstance(right, Placed):
            return left.changed(amounts, right, change)
        return left.with_amounts(amounts)
    if not isinstance(right, Placed):
        return amounts
    return (right.taken_away() if change is sub else right).with_amounts(amounts)
