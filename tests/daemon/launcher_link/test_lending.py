"""What is lent here, by the configuration and by what the launcher says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.amounts.resources import Resources
from drfd.daemon.launcher_link.lending import lends, unlent_text
from drfd.host.disks import Disk
from drfd.launcher.protocol import PIN, QUOTA, SHARE, WEIGHT, Message
from fakes import demand, spec

ALL_OF_IT: Message = {"lendable": ["cores", "disks"]}
CORES: Message = {"lendable": ["cores"]}
NONE: Message = {"lendable": []}
RANGE = spec(asks=demand(2, read=10), most=Resources(cores_milli=8000, read_bps=20))


@pytest.mark.parametrize(
    ("hello", "mode", "lent"),
    [
        (ALL_OF_IT, SHARE, {"cores", "disks"}),
        (CORES, SHARE, {"cores"}),
        (NONE, SHARE, set()),
        # None has said anything yet.
        ({}, SHARE, set()),
        # Disk rates need no mode of their own.
        *((ALL_OF_IT, mode, {"disks"}) for mode in (QUOTA, WEIGHT, PIN)),
        *((hello, mode, set()) for hello in (CORES, NONE, {}) for mode in (QUOTA, WEIGHT, PIN)),
    ],
)
def test_something_is_lent_only_where_both_say_so(
    hello: Message, mode: str, lent: set[str]
) -> None:
    assert lends(hello, mode) == lent


@pytest.mark.parametrize(
    ("hello", "mode", "text"),
    [
        ({}, SHARE, None),
        (ALL_OF_IT, SHARE, None),
        (CORES, SHARE,
         "no disk rates are lent here (the kernel gives no way); the job has the lower end"),
        (NONE, SHARE,
         "no cores or disk rates are lent here (the kernel gives no way); the job has the lower "
         "end"),
        (ALL_OF_IT, QUOTA,
         "no cores are lent here (enforcement.cores is quota); the job has the lower end"),
        (NONE, QUOTA,
         "no cores are lent here (enforcement.cores is quota), and no disk rates (the kernel gives "
         "no way); the job has the lower end"),
        ({}, QUOTA,
         "no cores are lent here (enforcement.cores is quota); the job has the lower end"),
        (ALL_OF_IT, WEIGHT,
         "no cores are lent here (enforcement.cores is weight); the job has the lower end, and of "
         "cores what others leave idle"),
    ],
)  # fmt: skip
def test_an_owner_is_told_what_of_a_range_does_not_count(
    hello: Message, mode: str, text: str | None
) -> None:
    assert unlent_text(RANGE, hello, mode) == text
    assert unlent_text(spec(asks=demand(2)), hello, mode) is None


def test_a_range_of_cores_needs_no_word_where_cores_are_lent() -> None:
    wide = spec(asks=demand(2), most=Resources(cores_milli=8000))
    assert unlent_text(wide, ALL_OF_IT, SHARE) is None


def test_of_a_disk_whose_rates_cannot_be_limited_nothing_is_lent() -> None:
    """Another one of the machine may take limits."""
    fast, slow = (
        Disk(name=name, path=f"/{name}", read_bps=100, write_bps=100, devices=devices, why_none=why)
        for name, devices, why in (("data", ("8:0",), ""), ("net", (), "/net is on nfs, elsewhere"))
    )
    asks = replace(demand(2), disks=(("data", 10, 10), ("net", 10, 10)))
    for disk, text in (
        ("data", None),
        ("net", "no disk rates are lent here (/net is on nfs, elsewhere); the job has the lower "
         "end"),
    ):  # fmt: skip
        ranged = spec(asks=asks, most=Resources(disks=((disk, 20, 0),)))
        assert unlent_text(ranged, ALL_OF_IT, QUOTA, (fast, slow)) == text
