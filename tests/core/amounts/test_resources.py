"""Amounts and vectors: exact, in one order, and never silently cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from drfd.core.amounts.resources import Axes, Resources
from seeds import examples

STEADY = examples(100)
GPUS = Axes(gres=("gpu", "license"))
AMOUNTS = some.integers(0, 1 << 60)
VECTORS = some.lists(AMOUNTS, min_size=6, max_size=6).map(tuple)


@STEADY
@given(VECTORS)
def test_a_vector_becomes_resources_and_the_same_vector_again(vector: tuple[int, ...]) -> None:
    assert GPUS.vector(GPUS.resources(vector)) == vector


# -- disks -------------------------------------------------------------------------------------

TWO = Axes(gres=("gpu",), disks=("data", "scratch"))
NAMED = Resources(
    cores_milli=1000, memory_bytes=5, gres=(("gpu", 2),), disks=(("data", 1, 2), ("scratch", 3, 4))
)


def test_several_disks_have_axes_of_their_own() -> None:
    assert TWO.names == (
        *("cores", "memory", "read:data", "write:data", "read:scratch", "write:scratch", "gpu"),
    )
    assert TWO.vector(NAMED) == (1000, 5, 1, 2, 3, 4, 2)
    assert TWO.resources(TWO.vector(NAMED)) == NAMED


def test_a_disk_that_is_gone_has_axes_as_long_as_somebody_names_it() -> None:
    axes = Axes(gres=("gpu",), disks=("data",), lost=("scratch",))
    assert axes.names == (
        "cores",
        "memory",
        "read",
        "write",
        "gpu",
        "read:scratch",
        "write:scratch",
    )
    assert axes.vector(NAMED) == (1000, 5, 1, 2, 2, 3, 4)
    assert axes.vector(Resources(read_bps=7)) == (0, 0, 7, 0, 0, 0, 0)
    assert axes.resources((1, 2, 3, 4, 5, 6, 7)) == Resources(
        cores_milli=1, memory_bytes=2, read_bps=3, write_bps=4, gres=(("gpu", 5),)
    )
