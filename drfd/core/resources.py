"""Amounts of what jobs compete for, as exact integers.

`Resources` is what people declare; `Vector` is the same amounts in the order of `Axes`, which is
what the arithmetic works on. Fairness knows only vectors, so it holds for any number of axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Amounts in the order of `Axes.names`.
Vector = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """A demand, a limit or a capacity. A zero rate means: none declared."""

    cores_milli: int = 0
    memory_bytes: int = 0
    read_bps: int = 0
    write_bps: int = 0
    #: Countable things by name, sorted; counts are above zero.
    gres: tuple[tuple[str, int], ...] = ()


NOTHING = Resources()

#: The resources that a process uses only while it runs.
_RATES = frozenset({"cores", "read", "write"})


@dataclass(frozen=True, slots=True)
class Axes:
    """The order of a machine's resources in its vectors."""

    gres: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return ("cores", "memory", "read", "write", *self.gres)

    def vector(self, amount: Resources) -> Vector:
        """The amounts in order, without countables that the machine lacks (see `unknown_gres`)."""
        counts = dict(amount.gres)
        return (
            amount.cores_milli,
            amount.memory_bytes,
            amount.read_bps,
            amount.write_bps,
            *(counts.get(name, 0) for name in self.gres),
        )

    def resources(self, vector: Vector) -> Resources:
        counts = zip(self.gres, vector[4:], strict=True)
        return Resources(
            cores_milli=vector[0],
            memory_bytes=vector[1],
            read_bps=vector[2],
            write_bps=vector[3],
            gres=tuple((name, count) for name, count in counts if count),
        )

    def released(self, demand: Vector) -> Vector:
        """What of a demand a frozen job gives back: time and rates, not what it stores or owns."""
        names = zip(self.names, demand, strict=True)
        return tuple([amount if name in _RATES else 0 for name, amount in names])

    def unknown_gres(self, amount: Resources) -> str | None:
        return next((name for name, _ in amount.gres if name not in self.gres), None)


def plus(left: Vector, right: Vector) -> Vector:
    return tuple([a + b for a, b in zip(left, right, strict=True)])


def minus(left: Vector, right: Vector) -> Vector:
    return tuple([a - b for a, b in zip(left, right, strict=True)])


def total(vectors: Iterable[Vector], zero: Vector) -> Vector:
    for vector in vectors:
        zero = plus(zero, vector)
    return zero


def fits(demand: Vector, room: Vector) -> bool:
    """What is not asked for fits even where more is booked than there is."""
    # `all` over a generator would cost three times as much on the hottest path of a pass.
    for asked, there in zip(demand, room, strict=True):  # noqa: SIM110
        if asked > there and asked:
            return False
    return True


def short_axes(demand: Vector, room: Vector) -> list[int]:
    """The axes on which `demand` does not fit into `room`."""
    pairs = enumerate(zip(demand, room, strict=True))
    return [axis for axis, (asked, there) in pairs if asked > there and asked]
