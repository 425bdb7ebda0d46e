"""Jobs without a quota stay on as many CPUs as they declare."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from drfd.launcher.affinity import Affinity


@pytest.fixture
def cpus() -> Iterator[list[int]]:
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)


def kept(affinity: Affinity, cores_milli: int, cpus: list[int]) -> set[int]:
    """The CPUs that the next job of so many cores is on."""
    affinity.choose(cores_milli)
    affinity.keep(cores_milli)
    found = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    return found


@pytest.mark.parametrize(("cores_milli", "count"), [(0, 1), (1, 1), (1000, 1), (1001, 2)])
def test_cores_are_rounded_up_to_whole_cpus(cpus: list[int], cores_milli: int, count: int) -> None:
    assert len(kept(Affinity(), cores_milli, cpus)) == min(count, len(cpus))


def test_neighbours_go_round_all_cpus(cpus: list[int]) -> None:
    affinity = Affinity()
    found = [kept(affinity, 1000, cpus) for _ in range(2 * len(cpus))]
    assert found == [{cpu} for cpu in cpus] * 2


def test_more_than_there_is_is_all_there_is(cpus: list[int]) -> None:
    assert kept(Affinity(), 1_000_000, cpus) == set(cpus)
