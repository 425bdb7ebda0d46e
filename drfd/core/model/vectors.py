"""Arithmetic of vectors: amounts of resources in the order of `core.model.resources.Axes`."""

from __future__ import annotations

from collections.abc import Iterable
from operator import add, sub

#: Amounts in the order of `Axes.names`.
Vector = tuple[int, ...]

_UNLIKE = "vectors of machines with different resources"


def plus(left: Vector, right: Vector) -> Vector:
    if len(left) != len(right):
        raise ValueError(_UNLIKE)
    return tuple(map(add, left, right))


def minus(left: Vector, right: Vector) -> Vector:
    if len(left) != len(right):
        raise ValueError(_UNLIKE)
    return tuple(map(sub, left, right))


def total(vectors: Iterable[Vector], zero: Vector) -> Vector:
    for vector in vectors:
        zero = plus(zero, vector)
    return zero


def fits(demand: Vector, free: Vector) -> bool:
    """True if the demand fits; a demand of zero fits even where `free` is negative."""
    # This is the hottest path of a pass.
    for asked, there in zip(demand, free, strict=True):  # noqa: SIM110  # `all` takes thrice as long
        if asked > there and asked:
            return False
    return True


def short_axes(demand: Vector, free: Vector) -> list[int]:
    """Return the axes on which `demand` does not fit into `free`."""
    pairs = enumerate(zip(demand, free, strict=True))
    return [axis for axis, (asked, there) in pairs if asked > there and asked]
