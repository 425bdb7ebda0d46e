"""Ceilings from measured use: what is lent, to whom, and how calmly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.lending.ceilings import Borrower, Place, judge
from drfd.core.lending.cores import Machine
from seeds import examples

FULL = Machine(capacity=8.0, outside=0.0, busy=1.0)
ALONE = {"root.a": Place(entitled=8.0, held=0.0)}


def job(
    job_id: int = 1,
    leaf: str = "root.a",
    *,
    floor: float = 2.0,
    most: float = 8.0,
    ceiling: float = 2.0,
    used: float = 2.0,
    throttled: bool = True,
) -> Borrower:
    return Borrower(
        job_id=job_id,
        leaf=leaf,
        floor=floor,
        most=most,
        ceiling=ceiling,
        used=used,
        is_throttled=throttled,
    )


def ceilings(
    machine: Machine, *jobs: Borrower, places: Mapping[str, Place] = ALONE
) -> dict[int, float]:
    found = judge(jobs, machine, places)
    return {job_id: round(each.ceiling, 3) for job_id, each in found.items()}


cores = some.integers(0, 64).map(lambda eighths: eighths / 8)


@some.composite
def borrowers(draw: some.DrawFn) -> list[Borrower]:
    found = []
    for number in range(draw(some.integers(1, 6))):
        floor = draw(some.integers(1, 16)) / 8
        most = floor + draw(cores)
        ceiling = floor + draw(some.floats(0, 1)) * (most - floor)
        found.append(
            job(
                number,
                draw(some.sampled_from(["root.a", "root.b", "root.lab.c", "root.lab.d"])),
                floor=floor,
                most=most,
                ceiling=ceiling,
                used=draw(some.floats(0, 1)) * ceiling,
                throttled=draw(some.booleans()),
            )
        )
    return found


PLACES = {
    "root.a": Place(entitled=3, held=0.3),
    "root.b": Place(entitled=3, held=1.5),
    "root.lab": Place(entitled=2, held=0.7),
    "root.lab.c": Place(entitled=1, held=0.1),
    "root.lab.d": Place(entitled=1, held=1.3),
}


@given(borrowers(), cores, some.floats(0, 1))
def test_nobody_is_below_the_floor_or_above_the_most_and_nothing_is_lent_twice(
    jobs: list[Borrower], outside: float, busy: float
) -> None:
    machine = Machine(capacity=8.0, outside=outside, busy=busy)
    for _ in range(4):
        found = judge(jobs, machine, PLACES)
        assert found.keys() == {each.job_id for each in jobs}
        jobs = [replace(each, ceiling=found[each.job_id].ceiling) for each in jobs]
        for each in jobs:
            assert each.floor - 1e-9 <= each.ceiling <= each.most + 1e-9
    # What jobs use of their floors is theirs; beyond it no more is lent than there is.
    idle = sum(max(0.0, each.floor - each.used * 1.3 - 0.05) for each in jobs)
    lent = sum(each.ceiling - each.floor for each in jobs)
    floors = sum(each.floor for each in jobs)
    assert lent <= max(0.0, machine.room - floors) * 1.05 + idle * 1.05 + 0.05 * floors + 1e-6


@examples(50)
@given(borrowers())
def test_the_order_of_the_jobs_makes_no_difference(jobs: list[Borrower]) -> None:
    found, again = (judge(each, FULL, PLACES) for each in (jobs, list(reversed(jobs))))
    for job_id, each in found.items():
        assert again[job_id].ceiling == pytest.approx(each.ceiling)
