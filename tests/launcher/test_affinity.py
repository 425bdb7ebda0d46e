"""Jobs without a quota stay on as many CPUs as they declare; those that are to be alone, alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from drfd.launcher import topology
from drfd.launcher.affinity import Affinity
from drfd.launcher.attempts import Attempt
from drfd.launcher.placement import Cpus
from drfd.launcher.protocol import PIN, QUOTA, WEIGHT, Limits
from launcher.rig import Start


@pytest.fixture
def cpus() -> Iterator[list[int]]:
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)


def limits(cores_milli: int, cores_by: str = QUOTA) -> Limits:
    return Limits(cores_milli=cores_milli, memory_bytes=1, pids=1, cores_by=cores_by)


def kept(affinity: Affinity, cores_milli: int, cpus: list[int], by: str = QUOTA) -> set[int]:
    """The CPUs that the next job of so many cores is on."""
    affinity.choose((1, 1), limits(cores_milli, by))
    affinity.keep((1, 1), 0)
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
    assert kept(Affinity(), 1_000_000, cpus, PIN) == set(cpus)


def test_who_has_a_weight_may_run_everywhere(cpus: list[int]) -> None:
    assert kept(Affinity(), 1000, cpus, WEIGHT) == set(cpus)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Affinity:
    """Eight CPUs, whatever this machine has."""
    monkeypatch.setattr(topology, "usable_cpus", lambda: frozenset(range(8)))
    return Affinity()


Place = Callable[[int, int], Cpus]


@pytest.fixture
def place(machine: Affinity, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Where a job of this number, of so many cores, is put."""
    asked: list[Cpus] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: asked.append(cpus))

    def place(number: int, cores_milli: int) -> Cpus:
        machine.choose((number, 1), limits(cores_milli, PIN))
        machine.keep((number, 1), 0)
        return asked.pop()

    return place


def test_jobs_of_whole_cores_are_alone_and_parts_together(machine: Affinity, place: Place) -> None:
    whole = [place(1, 3000), place(2, 2000)]
    parts = [place(3, 500), place(4, 250), place(5, 1500)]
    assert [len(cpus) for cpus in (*whole, *parts)] == [3, 2, 1, 1, 2]
    assert not whole[0] & whole[1]
    assert parts[0] == parts[1] < parts[2]
    assert not parts[2] & (whole[0] | whole[1])
    machine.forget((1, 1))
    assert place(6, 3000) == whole[0]


def test_where_no_cpu_is_left_the_least_used_are_shared(machine: Affinity, place: Place) -> None:
    place(1, 7000)
    assert place(2, 500) == {7}
    assert place(3, 1000) == {0}
    assert place(4, 1000) == {1}


def test_nobody_is_put_beside_a_job_of_an_earlier_launcher(cpus: list[int], start: Start) -> None:
    if len(cpus) < 2:
        pytest.skip("one CPU is everybody's")
    job = start("sleep", "60")
    os.sched_setaffinity(job.pid, cpus[:1])
    affinity = Affinity()
    affinity.adopt((7, 1), Attempt(created={}, running={"pid": job.pid}))
    assert kept(affinity, 1000, cpus, PIN) == {cpus[1]}


def test_a_job_of_an_earlier_launcher_that_is_over_is_nobody(cpus: list[int]) -> None:
    affinity = Affinity()
    affinity.adopt((7, 1), None)
    affinity.adopt((7, 1), Attempt(created={}))
    affinity.adopt((7, 1), Attempt(created={}, running={"pid": 1 << 30}))
    over = Attempt(created={}, running={"pid": os.getpid()}, ended={})
    affinity.adopt((7, 1), over)
    assert kept(affinity, 1000, cpus, PIN) == {cpus[0]}
