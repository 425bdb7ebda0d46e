"""What is lent here, by the configuration and by what the launcher says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.amounts.resources import Resources
from drfd.daemon.launcher_link.lending import unlent_text
from drfd.host.disks import Disk
from drfd.launcher.protocol import QUOTA, SHARE, WEIGHT, Message
from fakes import demand, spec

ALL_OF_IT: Message = {"lendable": ["cores", "disks"]}
CORES: Message = {"lendable": ["cores"]}
NONE: Message = {"lendable": []}
RANGE = spec(asks=demand(2, read=10), most=Resources(cores_milli=8000, read_bps=20))


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
