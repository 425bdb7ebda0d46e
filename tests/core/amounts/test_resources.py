"""Amounts and vectors: exact, in one order, and never silently cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from drfd.core.amounts.resources import NOTHING, Axes, Resources
from drfd.core.amounts.vectors import minus, plus, total
from seeds import examples

STEADY = examples(100)
GPUS = Axes(gres=("gpu", "license"))
AMOUNTS = some.integers(0, 1 << 60)
VECTORS = some.lists(AMOUNTS, min_size=6, max_size=6).map(tuple)


def test_a_vector_holds_the_amounts_in_the_order_of_its_names() -> None:
    asked = Resources(
        cores_milli=1500, memory_bytes=7, read_bps=3, write_bps=2, gres=(("license", 4),)
    )
    assert GPUS.names == ("cores", "memory", "read", "write", "gpu", "license")
    assert GPUS.vector(asked) == (1500, 7, 3, 2, 0, 4)


def test_nothing_is_zero_on_every_axis() -> None:
    assert Axes().vector(NOTHING) == (0, 0, 0, 0)


@STEADY
@given(VECTORS)
def test_a_vector_becomes_resources_and_the_same_vector_again(vector: tuple[int, ...]) -> None:
    assert GPUS.vector(GPUS.resources(vector)) == vector


def test_resources_leave_out_countables_of_which_there_are_none() -> None:
    assert GPUS.resources((1, 2, 3, 4, 0, 5)) == Resources(
        cores_milli=1, memory_bytes=2, read_bps=3, write_bps=4, gres=(("license", 5),)
    )


def test_a_frozen_job_gives_back_rates_and_keeps_what_it_stores_and_owns() -> None:
    assert GPUS.released((1500, 7, 3, 2, 1, 4)) == (1500, 0, 3, 2, 0, 0)


def test_instances_that_the_machine_has_no_more_are_counted_by_name() -> None:
    axes = Axes(gres=("gpu", "license"), instances=(("gpu", ("0", "2")),))
    held = (("gpu", ("0", "1", "3")), ("license", ("a",)), ("fpga", ("x",)))
    assert axes.retired(held) == (0, 0, 0, 0, 2, 1)
    assert axes.retired((("gpu", ("2",)),)) == (0, 0, 0, 0, 0, 0)


def test_sums_and_differences_go_axis_by_axis() -> None:
    assert plus((1, 2, 3), (10, 20, 30)) == (11, 22, 33)
    assert minus((1, 2, 3), (1, 3, 0)) == (0, -1, 3)
    assert total([(1, 2), (3, 4), (5, 6)], (100, 0)) == (109, 12)
    assert total([], (0, 0)) == (0, 0)


# -- disks -------------------------------------------------------------------------------------

TWO = Axes(gres=("gpu",), disks=("data", "scratch"))
NAMED = Resources(
    cores_milli=1000, memory_bytes=5, gres=(("gpu", 2),), disks=(("data", 1, 2), ("scratch", 3, 4))
)


def test_one_disk_has_plain_axes_whatever_it_is_called() -> None:
    assert Axes(disks=("data",)).names == Axes().names == ("cores", "memory", "read", "write")


def test_several_disks_have_axes_of_their_own() -> None:
    assert TWO.names == (
        *("cores", "memory", "read:data", "write:data", "read:scratch", "write:scratch", "gpu"),
    )
    assert TWO.vector(NAMED) == (1000, 5, 1, 2, 3, 4, 2)
    assert TWO.resources(TWO.vector(NAMED)) == NAMED


def test_rates_without_a_disk_are_booked_on_each() -> None:
    """Of a job that was submitted when there was one: it is limited on each, too."""
    assert TWO.vector(Resources(read_bps=7, write_bps=8)) == (0, 0, 7, 8, 7, 8, 0)


def test_what_is_named_counts_on_the_disk_that_is_left() -> None:
    assert Axes(disks=("scratch",)).vector(NAMED) == (1000, 5, 3, 4)


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


def test_a_frozen_job_gives_back_the_rates_of_all_disks() -> None:
    lost = Axes(gres=("gpu",), disks=("data", "scratch"), lost=("old",))
    assert lost.released((1, 2, 3, 4, 5, 6, 7, 8, 9)) == (1, 0, 3, 4, 5, 6, 0, 8, 9)


def test_the_disks_that_are_used_are_those_with_a_rate() -> None:
    demand = Resources(disks=(("a", 0, 0), ("b", 0, 1), ("c", 1, 0)))
    assert demand.used_disks == {"b", "c"}
