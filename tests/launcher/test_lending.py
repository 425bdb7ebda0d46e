"""What a launcher lends, whatever it is ordered to: never less than the floor."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Attempt, Record
from drfd.launcher.lending import LENDS, Bounds, bounds_of, read_bounds, record_of
from drfd.launcher.protocol import (
    PIN,
    QUOTA,
    SHARE,
    WEIGHT,
    AttemptLimits,
    Ceilings,
    DiskLimit,
    LendOrder,
)
from launcher.rig import LauncherProcess, order

_rates = st.integers(0, 50)
_disks = st.lists(
    st.builds(
        DiskLimit, device=st.sampled_from(["8:0", "8:16", "9:0"]), read_bps=_rates, write_bps=_rates
    ),
    max_size=3,
    unique_by=lambda disk: disk.device,
).map(tuple)
_ceilings = st.builds(Ceilings, cores_milli=st.integers(0, 8000), disks=_disks)
BOUNDS = Bounds(
    Ceilings(cores_milli=500, disks=(DiskLimit(device="8:0", read_bps=10, write_bps=0),)),
    Ceilings(cores_milli=2000, disks=(DiskLimit(device="8:0", read_bps=50, write_bps=0),)),
)


@given(floor=_ceilings, most=_ceilings, cores_milli=st.integers(0, 10_000), disks=_disks)
def test_nothing_is_set_below_the_floor_or_above_the_most(
    floor: Ceilings, most: Ceilings, cores_milli: int, disks: tuple[DiskLimit, ...]
) -> None:
    """Also where the most is below the floor: then it is the floor."""
    asked = LendOrder(id=1, attempt=1, cores_milli=cores_milli, disks=disks)
    cores, rates = Bounds(floor, most).clamp(asked)
    top = max(floor.cores_milli, most.cores_milli)
    if most.cores_milli == 0:
        assert cores is None
    else:
        assert cores is not None and floor.cores_milli <= cores <= top
        assert cores == cores_milli or cores in (floor.cores_milli, top)
    named = {disk.device for disk in disks}
    assert [disk.device for disk in rates] == [
        disk.device for disk in floor.disks if disk.device in named
    ]
    floors = {disk.device: disk for disk in floor.disks}
    tops = floors | {disk.device: disk for disk in most.disks}
    for disk in rates:
        for least, rate, highest in (
            (floors[disk.device].read_bps, disk.read_bps, tops[disk.device].read_bps),
            (floors[disk.device].write_bps, disk.write_bps, tops[disk.device].write_bps),
        ):
            # What has no limit never gets one.
            assert (rate == 0) if least == 0 else (least <= rate <= max(least, highest))


def test_an_order_may_move_the_upper_ends_and_never_the_lower_ones() -> None:
    """The owner may declare others while the job runs."""

    def clamped(cores_milli: int, read_bps: int, most: Ceilings | None) -> tuple[int | None, int]:
        disks = (DiskLimit(device="8:0", read_bps=read_bps, write_bps=9),)
        asked = LendOrder(id=1, attempt=1, cores_milli=cores_milli, disks=disks, most=most)
        cores, (rates,) = BOUNDS.clamp(asked)
        assert rates.write_bps == 0
        return cores, rates.read_bps

    wider = Ceilings(cores_milli=5000, disks=(replace(BOUNDS.most.disks[0], read_bps=90),))
    assert clamped(9000, 99, None) == (2000, 50)
    assert clamped(9000, 99, wider) == (5000, 90)
    assert clamped(9000, 99, Ceilings(cores_milli=100)) == (500, 10)
    assert clamped(0, 0, wider) == (500, 10)


def test_the_bounds_are_in_the_order_and_in_the_attempt_file(tmp_path: Path) -> None:
    limits = AttemptLimits(
        cores_milli=500, memory_bytes=1, pids=1, cores_by=SHARE, disks=BOUNDS.floor.disks
    )
    asked = order(cwd=tmp_path, limits=limits, most=BOUNDS.most).order
    assert bounds_of(asked) == BOUNDS
    assert bounds_of(replace(asked, most=None)) == Bounds(BOUNDS.floor, BOUNDS.floor)
    for mode in (QUOTA, WEIGHT, PIN):
        other = replace(limits, cores_by=mode)
        only_disks = replace(BOUNDS, most=replace(BOUNDS.most, cores_milli=0))
        assert bounds_of(replace(asked, limits=other)) == only_disks
        assert bounds_of(replace(asked, limits=replace(other, disks=()))) is None
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        os.close(attempt_files.create(directory, (1, 1), {"uid": 0, LENDS: record_of(BOUNDS)}))
        kept = attempt_files.read(directory, (1, 1))
    finally:
        os.close(directory)
    assert kept is not None and read_bounds(kept) == BOUNDS


@pytest.mark.parametrize(
    "record",
    [
        {},
        {LENDS: None},
        {LENDS: []},
        {LENDS: {"floor": record_of(BOUNDS)["floor"]}},
        {LENDS: {**record_of(BOUNDS), "most": {"cores_milli": "all", "disks": []}}},
    ],
    ids=repr,
)
def test_who_has_no_bounds_that_can_be_read_is_lent_nothing(record: Record) -> None:
    assert read_bounds(Attempt(record)) is None


@pytest.mark.slow
def test_an_order_about_an_attempt_that_cannot_be_lent_to_is_logged_once_and_not_answered(
    launcher: LauncherProcess,
) -> None:
    controller = launcher.connect()
    for key in ((7, 1), (7, 1), (8, 1), (7, 1)):
        controller.send({"cmd": "lend", "id": key[0], "attempt": key[1], "cores_milli": 1})
    assert [report["report"] for report in controller.list()] == ["listed"]
    said = [line for line in launcher.log().splitlines() if "event=not-lent" in line]
    assert ["job=7" in line for line in said] == [True, False]


@pytest.mark.slow
def test_without_cgroups_an_order_to_lend_is_logged_once_and_the_job_goes_on(
    launcher: LauncherProcess, work: Path
) -> None:
    controller = launcher.connect()
    limits = AttemptLimits(cores_milli=500, memory_bytes=64 << 20, pids=1000, cores_by=SHARE)
    most = Ceilings(cores_milli=2000)
    controller.launch(order("sleep", "1000", cwd=work, limits=limits, most=most))
    controller.take("up", id=1, attempt=1)
    for _ in range(3):
        controller.send({"cmd": "lend", "id": 1, "attempt": 1, "cores_milli": 1000})
    up, listed = controller.list()
    assert (up["report"], up["lends"]) == ("up", {"cores_milli": 2000, "disks": []})
    assert listed["report"] == "listed"
    said = [line for line in launcher.log().splitlines() if "event=not-lent" in line]
    assert len(said) == 1 and "nothing can be lent" in said[0]
