"""Ceilings of disk rates: never more than the disk has, and floors kept for those who sleep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.lending.ceilings import Borrower, Place, judge
from drfd.core.lending.disks import DiskRate

MIB = float(1 << 20)
DISK = DiskRate(rate=100 * MIB, fixed=0.0)
ALONE = {"root.a": Place(entitled=100 * MIB, held=0.0)}
TWO = {name: Place(entitled=50 * MIB, held=0.0) for name in ("root.a", "root.b")}


def job(
    job_id: int = 1, leaf: str = "root.a", *, floor: float = 10, most: float = 80,
    ceiling: float = 10, used: float = 10,
) -> Borrower:  # fmt: skip
    """A job with amounts in MiB per second."""
    return Borrower(
        job_id=job_id, leaf=leaf, floor=floor * MIB, most=most * MIB, ceiling=ceiling * MIB,
        used=used * MIB,
    )  # fmt: skip


def step(
    *jobs: Borrower, disk: DiskRate = DISK, places: Mapping[str, Place] = ALONE
) -> list[float]:
    found = judge(jobs, disk, places)
    return [round(found[each.job_id].ceiling / MIB, 3) for each in jobs]


def after(
    demand: Mapping[int, float], *jobs: Borrower, steps: int = 8, disk: DiskRate = DISK,
    places: Mapping[str, Place] = TWO,
) -> list[float]:  # fmt: skip
    """The ceilings after some steps in which each job uses what it may of its demand."""
    for _ in range(steps):
        jobs = tuple(
            replace(each, used=min(each.ceiling, demand[each.job_id] * MIB)) for each in jobs
        )
        found = judge(jobs, disk, places)
        jobs = tuple(replace(each, ceiling=found[each.job_id].ceiling) for each in jobs)
    return [round(each.ceiling / MIB, 3) for each in jobs]


def test_who_wakes_up_has_its_part_after_few_steps_and_others_give_way_at_once() -> None:
    high = job(ceiling=80, used=80)
    low = job(2, "root.b")
    assert step(high, low, places=TWO) == [45, 20]
    assert after({1: 500, 2: 500}, high, low) == [45, 45]


amounts = some.integers(1, 60)


@some.composite
def borrowers(draw: some.DrawFn) -> list[Borrower]:
    found = []
    for number in range(draw(some.integers(1, 6))):
        floor = draw(amounts)
        leaf = draw(some.sampled_from(["root.a", "root.b"]))
        most = floor + draw(some.integers(0, 90))
        found.append(job(number, leaf, floor=floor, most=most, ceiling=floor, used=0))
    return found


@given(borrowers(), amounts, some.data())
def test_ceilings_stay_between_floor_and_most_and_below_the_disk_together(
    jobs: list[Borrower], fixed: int, data: some.DataObject
) -> None:
    disk = replace(DISK, fixed=fixed * MIB)
    bound = max(0.9 * DISK.rate - disk.fixed, sum(each.floor for each in jobs))
    for _ in range(6):
        parts = data.draw(some.lists(some.floats(0, 1), min_size=len(jobs), max_size=len(jobs)))
        jobs = [
            replace(each, used=part * each.ceiling) for each, part in zip(jobs, parts, strict=True)
        ]
        found = judge(jobs, disk, TWO)
        for each in jobs:
            ceiling = found[each.job_id].ceiling
            assert each.floor <= ceiling <= each.most + 1
            assert ceiling <= max(each.floor, 2 * each.ceiling) + 1
        jobs = [replace(each, ceiling=found[each.job_id].ceiling) for each in jobs]
        assert sum(each.ceiling for each in jobs) <= bound + 1


@pytest.mark.parametrize("used", [0.0, 0.5, 1.0])
def test_where_the_floors_alone_are_too_much_nothing_is_lent(used: float) -> None:
    jobs = [job(number, floor=35, ceiling=36, used=36 * used, most=200) for number in range(3)]
    assert step(*jobs) == [35, 35, 35]
