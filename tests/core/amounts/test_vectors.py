"""Vectors, and what is free where several jobs share an instance."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.amounts.instance_room import InstanceRoom, OnInstances
from drfd.core.amounts.instances import SharedInstances
from drfd.core.amounts.vectors import (
    Vector,
    fits,
    lacking_of,
    least,
    minus,
    not_negative,
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


@pytest.mark.parametrize(
    ("demand", "free", "short"),
    [
        ((2, 2), (2, 2), []),
        ((2, 3), (2, 2), [1]),
        ((3, 3), (2, 2), [0, 1]),
        ((0, 0), (0, 0), []),
        ((1, 0), (0, 9), [0]),
    ],
)
def test_a_demand_fits_when_it_is_short_on_no_axis(
    demand: Vector, free: Vector, short: list[int]
) -> None:
    assert short_axes(demand, free) == short
    assert fits(demand, free) is (short == [])


@pytest.mark.parametrize("compute", [plus, minus, fits, short_axes])
def test_vectors_of_different_machines_do_not_mix(compute: object) -> None:
    assert callable(compute)
    with pytest.raises(ValueError, match=r"zip|machines"):
        compute((1, 1), (1, 1, 1))


def test_a_part_is_taken_of_the_fullest_instance_that_has_enough() -> None:
    found = place((1, 10), room(24, 12, 9))
    assert isinstance(found, OnInstances)
    assert (tuple(found), found.parts) == ((1, 10), (0, 10, 0))
    assert place((1, 13), room(24, 12, 12)) == OnInstances((1, 13), (13, 0, 0))


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


def test_whole_instances_are_those_of_which_nothing_is_taken() -> None:
    assert place((1, 2 * SIZE), room(24, 23, 24, 24)) == OnInstances((1, 48), (24, 0, 24, 0))
    assert not fits((1, 2 * SIZE), room(24, 23, 23, 1))


def test_who_asks_for_none_is_placed_nowhere() -> None:
    assert place((8, 0), room()) == (8, 0)
    assert fits((8, 0), room(0, 0))


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


def test_a_plain_vector_bounds_the_amounts_alone() -> None:
    bounded = least(room(24, 12), (4, 20))
    assert isinstance(bounded, InstanceRoom)
    assert (tuple(bounded), bounded.parts) == ((4, 20), (24, 12))
    both = least(room(24, 12), room(5, 20, cores=9))
    assert isinstance(both, InstanceRoom)
    assert (tuple(both), both.parts) == ((8, 25), (5, 12))
    low = not_negative(minus(room(24), (9, 0)))
    assert isinstance(low, InstanceRoom)
    assert (tuple(low), low.parts) == ((0, 24), (24,))


def test_vectors_are_equal_if_their_parts_are() -> None:
    assert OnInstances((1, 2), (2, 0)) == OnInstances((1, 2), (2, 0))
    assert OnInstances((1, 2), (2, 0)) != OnInstances((1, 2), (0, 2))
    assert OnInstances((1, 2), (2, 0)) == (1, 2)
    assert len({OnInstances((1, 2), (2, 0)), OnInstances((1, 2), (2, 0))}) == 1


@pytest.mark.parametrize("copy", [deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_are_whole(copy: Callable[[Vector], Vector]) -> None:
    again = copy(room(24, 12))
    assert isinstance(again, InstanceRoom)
    assert (again, again.shared) == (room(24, 12), room(24, 12).shared)
    assert copy(OnInstances((1, 2), (2, 0))) == OnInstances((1, 2), (2, 0))


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
