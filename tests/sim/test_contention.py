"""Tasks that ask for more than their node has."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from drfd.sim.contention import slowdown

NODE = (8000, 6144)
AMOUNTS = st.tuples(st.integers(0, 30_000), st.integers(0, 30_000))


@given(st.tuples(st.integers(0, NODE[0]), st.integers(0, NODE[1])), st.integers(0, 100))
def test_who_stays_within_the_node_is_not_slowed(held: tuple[int, int], cost: int) -> None:
    assert slowdown(held, NODE, cost) == 1


def test_cores_are_shared_out() -> None:
    assert slowdown((12_000, 100), NODE, 40) == Fraction(12, 8)


def test_what_is_swapped_costs_as_stated() -> None:
    # A quarter of 8 GB does not fit into 6: 1 + 40 / 16.
    assert slowdown((8000, 8192), NODE, 40) == Fraction(7, 2)
    assert slowdown((8000, 8192), NODE, 0) == 1
    assert slowdown((16_000, 8192), NODE, 40) == 7, "both together"


@given(AMOUNTS, AMOUNTS, st.integers(0, 100))
def test_more_on_a_node_is_never_faster(
    held: tuple[int, int], more: tuple[int, int], cost: int
) -> None:
    both = (held[0] + more[0], held[1] + more[1])
    assert slowdown(both, NODE, cost) >= slowdown(held, NODE, cost)
