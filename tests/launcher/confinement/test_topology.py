"""Jobs without a quota stay on as many CPUs as they declare; those that are to be alone, alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd.launcher.attempt_files import Attempt
from drfd.launcher.confinement import cores as module
from drfd.launcher.confinement.cores import (
    Affinity,
    Cpus,
    LogicalCpu,
    available_bytes,
    choose_cpus,
    nodes_of,
    parse_list,
    read_machine,
    usable_cpus,
)
from drfd.launcher.protocol import PIN, QUOTA, SHARE, WEIGHT, AttemptLimits
from launcher.rig import Start


@pytest.fixture
def cpus() -> Iterator[list[int]]:
    before = os.sched_getaffinity(0)
    yield sorted(before)
    os.sched_setaffinity(0, before)


def limits(cores_milli: int, cores_by: str = QUOTA) -> AttemptLimits:
    return AttemptLimits(cores_milli=cores_milli, memory_bytes=1, pids=1, cores_by=cores_by)


def kept(affinity: Affinity, cores_milli: int, cpus: list[int], by: str = QUOTA) -> set[int]:
    """The CPUs that the next job of so many cores is on."""
    affinity.choose((1, 1), limits(cores_milli, by))
    os.sched_setaffinity(0, affinity.cpus((1, 1)) or cpus)
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


def test_who_can_be_lent_nothing_keeps_to_what_is_declared(cpus: list[int]) -> None:
    affinity = Affinity()
    found = [kept(affinity, 1000, cpus, SHARE) for _ in cpus]
    assert found == [{cpu} for cpu in cpus]


def test_more_than_there_is_is_all_there_is(cpus: list[int]) -> None:
    assert kept(Affinity(), 1_000_000, cpus) == set(cpus)
    assert kept(Affinity(), 1_000_000, cpus, PIN) == set(cpus)


def test_who_has_a_weight_may_run_everywhere(cpus: list[int]) -> None:
    assert kept(Affinity(), 1000, cpus, WEIGHT) == set(cpus)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Affinity:
    """Eight CPUs, whatever this machine has."""
    monkeypatch.setattr(module, "usable_cpus", lambda: frozenset(range(8)))
    return Affinity()


Place = Callable[[int, int], Cpus]


@pytest.fixture
def place(machine: Affinity, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Where a job of this number, of so many cores, is put."""

    def place(number: int, cores_milli: int) -> Cpus:
        machine.choose((number, 1), limits(cores_milli, PIN))
        found = machine.cpus((number, 1))
        assert found is not None
        return found

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


def built(nodes: int, cores: int, threads: int) -> tuple[LogicalCpu, ...]:
    """As kernels number them: each core's first thread, node by node, then the second ones."""
    count = nodes * cores
    return tuple(
        LogicalCpu(number=thread * count + core, node=core // cores, core=core)
        for thread in range(threads)
        for core in range(count)
    )


@st.composite
def machines(draw: st.DrawFn) -> tuple[tuple[LogicalCpu, ...], Cpus]:
    """A machine, some CPUs of which may be offline, and those of them that are free."""
    shape = built(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    online = tuple(draw(st.lists(st.sampled_from(shape), unique=True, min_size=1)))
    free = draw(st.sets(st.sampled_from(sorted(cpu.number for cpu in online))))
    return online, frozenset(free)


def threads_of(machine: tuple[LogicalCpu, ...]) -> dict[tuple[int, int], set[int]]:
    cores: dict[tuple[int, int], set[int]] = {}
    for cpu in machine:
        cores.setdefault((cpu.node, cpu.core), set()).add(cpu.number)
    return cores


def free_by_node(machine: tuple[LogicalCpu, ...], free: Cpus) -> dict[int, int]:
    nodes = {cpu.node for cpu in machine}
    return {node: sum(c.node == node and c.number in free for c in machine) for node in nodes}


@given(machines(), st.integers(1, 40))
def test_it_is_as_many_free_cpus_as_asked_or_nothing(
    given_: tuple[tuple[LogicalCpu, ...], Cpus], count: int
) -> None:
    machine, free = given_
    chosen = choose_cpus(count, free, machine)
    if count > len(free):
        assert chosen is None
    else:
        assert chosen is not None and chosen <= free and len(chosen) == count


@given(machines(), st.data())
def test_no_choice_needs_fewer_nodes(
    given_: tuple[tuple[LogicalCpu, ...], Cpus], data: st.DataObject
) -> None:
    """So a job that fits on one node is on one."""
    machine, free = given_
    count = data.draw(st.integers(1, max(1, len(free))))
    chosen = choose_cpus(count, free, machine)
    if chosen is None:
        return
    used = len(nodes_of(chosen, machine))
    left = free_by_node(machine, free)
    assert not any(sum(few) >= count for few in combinations(left.values(), used - 1))


@given(machines(), st.data())
def test_cpus_are_of_the_near_nodes_as_far_as_these_have_some(
    given_: tuple[tuple[LogicalCpu, ...], Cpus], data: st.DataObject
) -> None:
    machine, free = given_
    count = data.draw(st.integers(1, max(1, len(free))))
    near = data.draw(st.frozensets(st.sampled_from(sorted({cpu.node for cpu in machine}))))
    chosen = choose_cpus(count, free, machine, near=near)
    if chosen is None:
        return
    there = {cpu.number for cpu in machine if cpu.node in near} & free
    assert len(chosen & there) == min(count, len(there))


@given(machines(), st.data())
def test_a_physical_core_is_broken_only_if_nothing_else_is_left_on_its_node(
    given_: tuple[tuple[LogicalCpu, ...], Cpus], data: st.DataObject
) -> None:
    """At most one of a node's whole cores is taken in part, and then no CPU of a core that others
    have begun on is left free there."""
    machine, free = given_
    chosen = choose_cpus(data.draw(st.integers(1, max(1, len(free)))), free, machine)
    if chosen is None:
        return
    cores = threads_of(machine)
    for node in nodes_of(chosen, machine):
        here = {core: cpus for core, cpus in cores.items() if core[0] == node}
        whole = [cpus for cpus in here.values() if cpus <= free]
        broken = [cpus for cpus in whole if cpus & chosen and not cpus <= chosen]
        untouched_parts = [
            cpus for cpus in here.values() if not cpus <= free and cpus & free - chosen
        ]
        assert len(broken) <= 1
        assert not (broken and untouched_parts)


@given(machines(), st.data())
def test_whole_cores_come_first(
    given_: tuple[tuple[LogicalCpu, ...], Cpus], data: st.DataObject
) -> None:
    """A part of a core is taken only if no whole one of the node would do."""
    machine, free = given_
    chosen = choose_cpus(data.draw(st.integers(1, max(1, len(free)))), free, machine)
    if chosen is None:
        return
    for node in nodes_of(chosen, machine):
        here = [cpus for core, cpus in threads_of(machine).items() if core[0] == node]
        in_parts = sum(len(cpus & chosen) for cpus in here if cpus & chosen and not cpus <= chosen)
        untouched = [len(cpus) for cpus in here if cpus <= free and not cpus & chosen]
        assert not untouched or in_parts < min(untouched)


@given(machines(), st.lists(st.integers(1, 6), max_size=12))
def test_no_two_jobs_are_ever_on_one_cpu(
    given_: tuple[tuple[LogicalCpu, ...], Cpus], counts: list[int]
) -> None:
    machine, free = given_
    held: list[Cpus] = []
    for count in counts:
        chosen = choose_cpus(count, free.difference(*held), machine)
        if chosen is not None:
            held.append(chosen)
    assert sum(map(len, held)) == len(frozenset().union(*held))


@given(machines(), st.data())
def test_what_is_to_be_avoided_makes_no_difference_to_how_many_nodes(
    given_: tuple[tuple[LogicalCpu, ...], Cpus], data: st.DataObject
) -> None:
    machine, free = given_
    count = data.draw(st.integers(1, max(1, len(free))))
    avoid = frozenset(data.draw(st.sets(st.sampled_from(sorted(c.number for c in machine)))))
    plain, wary = choose_cpus(count, free, machine), choose_cpus(count, free, machine, avoid=avoid)
    if plain is None or wary is None:
        assert plain is wary is None
        return
    assert len(nodes_of(plain, machine)) == len(nodes_of(wary, machine))


def test_both_threads_of_a_core_belong_together() -> None:
    machine = built(1, 4, 2)
    assert choose_cpus(2, frozenset(range(8)), machine) == {0, 4}
    assert choose_cpus(3, frozenset({0, 1, 2, 4, 5}), machine) == {0, 4, 2}


def test_the_fullest_node_that_has_room_is_taken_so_that_another_stays_whole() -> None:
    machine = built(2, 4, 1)
    assert choose_cpus(2, frozenset({0, 1, 2, 3, 5, 6, 7}), machine) == {5, 6}
    assert choose_cpus(4, frozenset({0, 1, 2, 3, 5, 6, 7}), machine) == {0, 1, 2, 3}


@pytest.mark.parametrize(("avoid", "chosen"), [((), {0, 1}), ((0,), {1, 2}), ((0, 1, 2), {0, 3})])
def test_what_is_to_be_avoided_comes_last(avoid: tuple[int, ...], chosen: set[int]) -> None:
    machine = built(1, 4, 1)
    assert choose_cpus(2, frozenset(range(4)), machine, avoid=frozenset(avoid)) == chosen


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", set()),
        ("\n", set()),
        ("0\n", {0}),
        ("0-3\n", {0, 1, 2, 3}),
        ("0-1,8,10-11", {0, 1, 8, 10, 11}),
    ],
)
def test_lists_are_read_as_the_kernel_writes_them(text: str, found: set[int]) -> None:
    assert parse_list(text) == found


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_two_nodes_of_two_threads_a_core(tmp_path: Path) -> None:
    write(tmp_path / "node/node0/cpulist", "0,2\n")
    write(tmp_path / "node/node1/cpulist", "1,3\n")
    (tmp_path / "node/possible").write_text("0-1\n")
    for number, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")):
        write(tmp_path / f"cpu/cpu{number}/topology/thread_siblings_list", f"{siblings}\n")
    assert read_machine({3, 0, 1}, tmp_path) == (
        LogicalCpu(0, 0, 0),
        LogicalCpu(1, 1, 1),
        LogicalCpu(3, 1, 1),
    )


def test_a_machine_that_tells_nothing_is_one_node_of_single_threads(tmp_path: Path) -> None:
    assert read_machine({0, 1}, tmp_path) == (LogicalCpu(0, 0, 0), LogicalCpu(1, 0, 1))
    assert available_bytes(0, tmp_path) == 0


def test_a_node_has_room_for_what_is_free_and_what_can_be_dropped(tmp_path: Path) -> None:
    lines = (
        "MemTotal: 900",
        "MemFree: 1",
        "Active(anon): 90",
        "Active(file): 2",
        "Inactive(file): 4",
    )
    write(tmp_path / "node/node1/meminfo", "".join(f"Node 1 {line} kB\n" for line in lines))
    assert available_bytes(1, tmp_path) == 7 * 1024


def test_this_machine_can_be_read() -> None:
    machine = read_machine(usable_cpus())
    assert {cpu.number for cpu in machine} == os.sched_getaffinity(0)
    assert sum(available_bytes(node) for node in {cpu.node for cpu in machine}) > 0
