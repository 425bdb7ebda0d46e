"""The upper ends of ranges, as a specification has them and as the machine can meet them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.common.errors import Refused
from drfd.common.units import ALL, Most
from drfd.core.amounts.resources import Resources
from drfd.core.model.job import most_cores_milli
from drfd.core.model.ranges import most_here, most_of
from fakes import demand, spec

CAPACITY = demand(16, 64, read=1000, write=500)
TWO = replace(demand(2), disks=(("data", 100, 0), ("root", 50, 20)))
TWO_DISKS = replace(demand(16, 64), disks=(("data", 1000, 900), ("root", 300, 300)))


@pytest.mark.parametrize(
    ("cores", "most"),
    [
        (0, None),
        (2000, None),
        (8000, Resources(cores_milli=8000)),
        # A wish, kept as declared.
        (99_000, Resources(cores_milli=99_000)),
        (ALL, Resources(cores_milli=16_000)),
    ],
)
def test_what_is_not_above_the_demand_is_no_range(cores: Most, most: Resources | None) -> None:
    assert most_of(demand(2), cores, {}, CAPACITY) == most


def test_an_open_range_of_all_there_is_is_no_range() -> None:
    assert most_of(demand(16), ALL, {}, CAPACITY) is None


def test_each_rate_has_an_upper_end_of_its_own() -> None:
    plain = demand(2, read=100, write=100)
    assert most_of(plain, 0, {"data": (400, ALL)}, CAPACITY) == Resources(
        read_bps=400, write_bps=500
    )
    assert most_of(TWO, 0, {"data": (ALL, 0), "root": (0, 30)}, TWO_DISKS) == Resources(
        disks=(("data", 1000, 0), ("root", 0, 30))
    )


@pytest.mark.parametrize(
    ("cores", "rates", "error"),
    [
        (1000, (0, 0), "-c: the range ends at 1, below the 2 that the job holds"),
        (0, (50, 0), "--io: the range ends at 50/s, below the 100/s that the job holds"),
        (0, (0, 50), "--io: a range of writes has no lower end, which is what the job holds"),
    ],
)
def test_an_upper_end_below_the_lower_one_is_refused(
    cores: Most, rates: tuple[Most, Most], error: str
) -> None:
    with pytest.raises(Refused) as refused:
        most_of(demand(2, read=100), cores, {"": rates}, CAPACITY)
    assert refused.value.text == error
    assert refused.value.hint.endswith("LEAST..MOST")


def test_the_machine_of_the_moment_cuts_the_wish() -> None:
    wish = spec(asks=demand(2, read=100), most=Resources(cores_milli=99_000, read_bps=400))
    assert most_cores_milli(wish) == 99_000
    assert most_here(wish, CAPACITY) == Resources(cores_milli=16_000, read_bps=400)
    assert most_here(wish, demand(2, read=200)) == Resources(read_bps=200)
    assert most_here(wish, demand(2, read=100)) is None
    assert most_here(spec(asks=demand(2)), CAPACITY) is None
    assert most_cores_milli(spec(asks=demand(2))) == 2000


def test_the_wish_on_each_disk_is_cut_by_its_own_rate() -> None:
    wish = spec(asks=TWO, most=Resources(disks=(("data", 5000, 0), ("root", 60, 30))))
    assert most_here(wish, TWO_DISKS) == Resources(disks=(("data", 1000, 0), ("root", 60, 30)))
    gone = replace(TWO_DISKS, disks=(("root", 300, 25),))
    assert most_here(wish, gone) == Resources(disks=(("root", 60, 25),))
