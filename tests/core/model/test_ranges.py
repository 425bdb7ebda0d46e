"""The upper ends of ranges, as a specification has them and as the machine can meet them."""

from __future__ import annotations

import pytest

from drfd.common.errors import Refused
from drfd.common.units import ALL, Most
from drfd.core.amounts.resources import Resources
from drfd.core.model.job import most_cores_milli
from drfd.core.model.ranges import most_here, most_of
from fakes import demand, spec

CAPACITY = demand(16, 64, read=1000, write=500)


def test_an_open_range_of_all_there_is_is_no_range() -> None:
    assert most_of(demand(16), ALL, {}, CAPACITY) is None


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
