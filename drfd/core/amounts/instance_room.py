"""What is free, and what is held, where several jobs may share a GPU by its memory.

A demand of less than a GPU has is taken of one of them, and a larger one is of whole GPUs, so it
matters what each of them has left.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import sub
from typing import Self

from drfd.core.amounts.instances import SharedInstances
from drfd.core.amounts.vectors import Change, Placed, Room, Vector


class OnInstances(Placed):
    """A vector, with the part of each shared instance that is in it."""

    parts: Vector

    def __new__(cls, amounts: Iterable[int], parts: Vector) -> Self:
        placed = super().__new__(cls, amounts)
        placed.parts = parts
        return placed

    def __getnewargs__(self) -> tuple[Vector, Vector]:
        """Return what copies are made of."""
        return tuple(self), self.parts

    @property
    def where(self) -> Vector:
        return self.parts

    def with_amounts(self, amounts: Iterable[int]) -> Self:
        return self._like(amounts, self.parts)

    def taken_away(self) -> Self:
        return self._like(self, tuple([-part for part in self.parts]))

    def changed(self, amounts: Iterable[int], other: Placed, change: Change) -> OnInstances:
        assert isinstance(other, OnInstances)
        parts = tuple([change(*pair) for pair in zip(self.parts, other.parts, strict=True)])
        like = other if isinstance(other, InstanceRoom) else self
        return like._like(amounts, parts)  # of this class

    def _like(self, amounts: Iterable[int], parts: Vector) -> Self:
        return type(self)(amounts, parts)


class InstanceRoom(OnInstances, Room):
    """Free amounts, with what is free of each shared instance."""

    shared: SharedInstances

    @classmethod
    def of(cls, amounts: Iterable[int], parts: Vector, shared: SharedInstances) -> Self:
        room = cls(amounts, parts)
        room.shared = shared
        return room

    def place(self, demand: Vector) -> Vector | None:
        asked = demand[self.shared.axis]
        if not asked:
            return demand
        parts = self.shared.parts_for(asked, self.parts)
        return None if parts is None else OnInstances(demand, parts)

    def lacking(self, demand: Vector) -> dict[int, tuple[int, int]]:
        """Return the axis of the shared instances, if they do not suffice: a part could be taken of
        the one with the most left, and several of all that are wholly free."""
        if self.place(demand) is not None:
            return {}
        axis, size = self.shared.axis, self.shared.size
        if demand[axis] <= size:
            return {axis: (demand[axis], max(self.parts, default=0))}
        return {axis: (demand[axis], sum([size for part in self.parts if part >= size]))}

    def shut(self, names: Iterable[str]) -> Self:
        closed = frozenset(names)
        named = zip(self.shared.names, self.parts, strict=True)
        taken = tuple([max(0, part) if name in closed else 0 for name, part in named])
        amounts = list(self)
        amounts[self.shared.axis] -= sum(taken)
        return self._like(amounts, tuple(map(sub, self.parts, taken)))

    def reopened(self, allocated: Vector) -> Self:
        taken = allocated.parts if isinstance(allocated, OnInstances) else (0,) * len(self.parts)
        parts = tuple([max(0, self.shared.size - each) for each in taken])
        return self._like(self, parts).summed()

    def summed(self) -> Self:
        amounts = list(self)
        amounts[self.shared.axis] = sum([max(0, part) for part in self.parts])
        return self.with_amounts(amounts)

    def _like(self, amounts: Iterable[int], parts: Vector) -> Self:
        return self.of(amounts, parts, self.shared)
