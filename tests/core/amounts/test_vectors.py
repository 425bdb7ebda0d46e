"""Vectors, and what is free where several jobs share an instance."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.amounts.instance_room import InstanceRoom, OnInstances
from drfd.core.amounts.instances import SharedInstances
from drfd.core.amounts.vectors import (
    fits,
    lacking_of,
    minus,
    place,
    placed,
    plus,
    short_axes,
    total,
)

SIZE = 24


def room(*parts: int, cores: int = 8) -> InstanceRoom:
    """Free cores, and shared instances with so much free each."""
    names = tuple(map(str, range(len(parts))))
    shared = SharedInstances(axis=1, size=SIZE, names=names, places={})
    return InstanceRoom.of((cores, sum(parts)), parts, shared)


@pytest.mark.parametrize("compute", [plus, minus, fits, short_axes])
def test_vectors_of_different_machines_do_not_mix(compute: object) -> None:
    assert callable(compute)
    with pytest.raises(ValueError, match=r"zip|machines"):
        compute((1, 1), (1, 1, 1))


def test_parts_of_two_instances_are_not_one_part() -> None:
    free = room(10, 10)
    assert free[1] >= 15
    assert not fits((1, 15), free)
    assert place((1, 15), free) is None
    assert short_axes((1, 15), free) == [1]
    assert short_axes((9, 15), free) == [0, 1]
    assert lacking_of((1, 15), free, 1) == (15, 10)
    assert lacking_of((1, 21), free, 1) == (21, 10)
    assert lacking_of((1, 2 * SIZE), room(24, 23, 9), 1) == (2 * SIZE, SIZE)
    assert lacking_of((9, 2 * SIZE), room(24, 24, 9), 0) == (9, 8)


def test_what_is_placed_is_taken_and_comes_back() -> None:
    free = room(24, 12)
    held = placed((2, 12), free)
    left = minus(free, held)
    assert isinstance(left, InstanceRoom)
    assert (tuple(left), left.parts) == ((6, 24), (24, 0))
    assert plus(left, held) == free
    back = total([held, held], (0, 0))
    assert isinstance(back, OnInstances)
    assert back.parts == (0, 24)
    gone = minus((0, 0), held)
    assert isinstance(gone, OnInstances)
    assert (tuple(gone), gone.parts) == ((-2, -12), (0, -12))
    assert plus(gone, held) == OnInstances((0, 0), (0, 0))
    with pytest.raises(AssertionError, match="no room"):
        placed((1, 13), left.shut(["0"]))


def test_instances_are_shut_and_opened_again() -> None:
    shut = room(24, 12).shut(["0"])
    assert (tuple(shut), shut.parts) == ((8, 12), (0, 12))
    opened = shut.reopened(OnInstances((0, 12), (0, 12)))
    assert (tuple(opened), opened.parts) == ((8, 36), (24, 12))


def test_vectors_are_equal_if_their_parts_are() -> None:
    assert OnInstances((1, 2), (2, 0)) == OnInstances((1, 2), (2, 0))
    assert OnInstances((1, 2), (2, 0)) != OnInstances((1, 2), (0, 2))
    assert OnInstances((1, 2), (2, 0)) == (1, 2)
    assert len({OnInstances((1, 2), (2, 0)), OnInstances((1, 2), (2, 0))}) == 1


amounts = some.integers(0, SIZE)


@given(parts=some.lists(amounts, max_size=4), asked=some.integers(0, 4 * SIZE))
def test_a_demand_is_placed_exactly_if_some_instances_have_enough(
    parts: list[int], asked: int
) -> None:
    if asked > SIZE:
        asked -= asked % SIZE
    free = room(*parts)
    if asked < SIZE:
        possible = not asked or any(part >= asked for part in parts)
    else:
        some_whole = combinations(parts, asked // SIZE)
        possible = any(min(each) >= SIZE for each in some_whole)
    assert fits((1, asked), free) is possible
    if possible and asked:
        held = placed((1, asked), free)
        assert isinstance(held, OnInstances)
        assert sum(held.parts) == asked == held[1]
        assert set(held.parts) <= {0, min(asked, SIZE)}
        left = minus(free, held)
        assert isinstance(left, InstanceRoom)
        assert min(left.parts) >= 0
        assert left[1] == sum(left.parts)
