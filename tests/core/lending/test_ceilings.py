"""Ceilings from measured use: what is lent, to whom, and how calmly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from core.lending.fluid import FluidJob, FluidMachine, Phase, workload
from drfd.core.lending.ceilings import Borrower, Place, judge
from drfd.core.lending.cores import Machine
from seeds import examples, seeds

IDLE = Machine(capacity=8.0, outside=0.0, busy=0.3)
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


def settled(machine: Machine, *jobs: Borrower, places: Mapping[str, Place] = ALONE) -> list[float]:
    """The ceilings after some seconds in which the use does not change but for the ceilings."""
    for _ in range(5):
        found = judge(jobs, machine, places)
        jobs = tuple(replace(each, ceiling=found[each.job_id].ceiling) for each in jobs)
    return [round(each.ceiling, 2) for each in jobs]


def test_a_hungry_job_is_lent_what_is_idle_in_steps() -> None:
    assert ceilings(IDLE, job()) == {1: 4}
    assert ceilings(IDLE, job(ceiling=4, used=4)) == {1: 8}
    assert judge([job()], IDLE, ALONE)[1].is_hungry
    assert not judge([job(ceiling=8)], IDLE, ALONE)[1].is_hungry


def test_a_job_without_a_range_has_what_it_declared() -> None:
    assert ceilings(IDLE, job(most=2), job(2, most=2, used=0.1, throttled=False)) == {1: 2, 2: 2}


def test_an_idle_machine_leaves_everybody_room_to_grow() -> None:
    quiet = job(used=0.5, throttled=False)
    assert settled(IDLE, quiet) == [8]
    assert settled(IDLE, quiet, replace(quiet, job_id=2)) == [4, 4]


def test_what_an_idle_job_does_not_use_is_lent_and_its_floor_stays() -> None:
    """Together the ceilings are then more than there is: weights give the sleeper its floor back
    when it wakes up."""
    sleeper = job(2, floor=4, ceiling=4, used=0, throttled=False)
    assert settled(FULL, job(), sleeper) == [8, 4]


def test_nothing_is_kept_for_a_crowd_of_sleepers() -> None:
    sleepers = [
        job(number, floor=0.05, ceiling=0.05, used=0, throttled=False) for number in range(2, 102)
    ]
    assert settled(FULL, job(), *sleepers) == [8, *[0.05] * 100]


def test_on_a_full_machine_a_job_that_gets_less_than_its_floor_is_left_all_of_it() -> None:
    """One thread with a floor of a core, on one of two CPUs, on which a borrower's second thread
    runs, too."""
    machine = Machine(capacity=2.0, outside=0.0, busy=1.0)
    places = {"root.a": Place(entitled=1, held=0), "root.b": Place(entitled=1, held=0)}
    squeezed = job(floor=1, most=2, ceiling=1, used=0.7, throttled=False)
    borrower = job(2, "root.b", floor=1, most=2, ceiling=1.3, used=1.3)
    assert settled(machine, squeezed, borrower, places=places) == [1, 1]
    rests = replace(squeezed, used=0.3)
    assert settled(machine, rests, borrower, places=places)[1] > 1.5
    not_full = replace(machine, busy=0.8)
    assert settled(not_full, squeezed, borrower, places=places)[1] > 1.05


def test_who_holds_less_is_lent_first() -> None:
    places = {"root.a": Place(entitled=4, held=1.2), "root.b": Place(entitled=4, held=0.2)}
    jobs = job(floor=2, used=2), job(2, "root.b", floor=2, used=2)
    assert settled(FULL, *jobs, places=places) == [3.2, 4.8]
    even = {"root.a": Place(entitled=4, held=0), "root.b": Place(entitled=4, held=0)}
    assert settled(FULL, *jobs, places=even) == [4, 4]


def test_load_from_outside_is_left_what_it_uses_and_may_grow() -> None:
    machine = Machine(capacity=8.0, outside=2.0, busy=0.9)
    (ceiling,) = settled(machine, job())
    assert ceiling < 8 - 2
    assert settled(Machine(capacity=8.0, outside=7.9, busy=1.0), job()) == [2]


def test_a_ceiling_that_nobody_needs_stays_and_comes_down_at_once_when_somebody_does() -> None:
    high = job(ceiling=8, used=1, throttled=False)
    assert ceilings(IDLE, high) == {1: 8}
    other = job(2, "root.b", floor=2, ceiling=2)
    places = {"root.a": Place(entitled=4, held=0), "root.b": Place(entitled=4, held=0)}
    both = ceilings(FULL, replace(high, used=7), other, places=places)
    assert both == {1: 4, 2: 4}


def test_frozen_jobs_are_not_asked_about() -> None:
    assert judge([], FULL, {}) == {}


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


@pytest.mark.parametrize("seed", seeds(range(12), quick=2))
def test_no_job_ends_later_than_under_a_quota(seed: int) -> None:
    """All of them at once, so that nobody waits for a start."""
    ends: dict[str, dict[int, float]] = {}
    for mode in ("quota", "share"):
        queues = workload(seed, burst=4)
        some_of_each = {user: queue[:2] for user, queue in queues.items()}
        cores = sum(each.floor for queue in some_of_each.values() for each in queue)
        machine = FluidMachine(mode, some_of_each, cores=cores, memory=10_000)
        machine.run(4000)
        assert not machine.running
        assert machine.short < 1e-6
        ends[mode] = {each.id: each.ended_s or 0.0 for each in machine.ended}
    assert all(end_s <= ends["quota"][job_id] + 1e-6 for job_id, end_s in ends["share"].items())
    assert sum(ends["share"].values()) < 0.9 * sum(ends["quota"].values())


@pytest.mark.parametrize("seed", seeds(range(6), quick=1))
def test_more_of_the_machine_is_used_and_more_fairly_than_by_weights(seed: int) -> None:
    found = {}
    for mode in ("quota", "weight", "share"):
        machine = FluidMachine(mode, workload(seed, burst=4))
        machine.run(900)
        found[mode] = machine
        assert machine.short < 1e-6
    assert found["share"].used > 1.15 * found["quota"].used
    assert found["share"].used > 0.9 * found["weight"].used
    wronged = {mode: each.wronged / max(1, each.hungry) for mode, each in found.items()}
    assert wronged["share"] < 0.5 * wronged["weight"]


def test_constant_demand_is_lent_calmly() -> None:
    """At most one write for each job in five seconds, once it has settled."""
    jobs = [
        FluidJob(number, f"user{number % 3}", 2.0, 16.0, 1.0, [Phase(1e9)]) for number in range(12)
    ]
    queues: dict[str, list[FluidJob]] = {}
    for each in jobs:
        queues.setdefault(each.user, []).append(each)
    machine = FluidMachine("share", queues, cores=32.0)
    machine.run(10)
    machine.writes = 0
    machine.run(70)
    assert machine.writes <= 60 / 5 * len(jobs) * 0.25


@examples(50)
@given(borrowers())
def test_the_order_of_the_jobs_makes_no_difference(jobs: list[Borrower]) -> None:
    found, again = (judge(each, FULL, PLACES) for each in (jobs, list(reversed(jobs))))
    for job_id, each in found.items():
        assert again[job_id].ceiling == pytest.approx(each.ceiling)
