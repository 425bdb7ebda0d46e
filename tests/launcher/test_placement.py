"""Which CPUs a job gets for itself: on machines of every shape."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfd.launcher.placement import Cpu, Cpus, choose, nodes_of


def built(nodes: int, cores: int, threads: int) -> tuple[Cpu, ...]:
    """As kernels number them: each core's first thread, node by node, then the second ones."""
    count = nodes * cores
    return tuple(
        Cpu(number=thread * count + core, node=core // cores, core=core)
        for thread in range(threads)
        for core in range(count)
    )


@st.composite
def machines(draw: st.DrawFn) -> tuple[tuple[Cpu, ...], Cpus]:
    """A machine, some CPUs of which may be offline, and those of them that are free."""
    shape = built(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    online = tuple(draw(st.lists(st.sampled_from(shape), unique=True, min_size=1)))
    free = draw(st.sets(st.sampled_from(sorted(cpu.number for cpu in online))))
    return online, frozenset(free)


def threads_of(machine: tuple[Cpu, ...]) -> dict[tuple[int, int], set[int]]:
    cores: dict[tuple[int, int], set[int]] = {}
    for cpu in machine:
        cores.setdefault((cpu.node, cpu.core), set()).add(cpu.number)
    return cores


def free_by_node(machine: tuple[Cpu, ...], free: Cpus) -> dict[int, int]:
    nodes = {cpu.node for cpu in machine}
    return {node: sum(c.node == node and c.number in free for c in machine) for node in nodes}


@given(machines(), st.integers(1, 40))
def test_it_is_as_many_free_cpus_as_asked_or_nothing(
    given_: tuple[tuple[Cpu, ...], Cpus], count: int
) -> None:
    machine, free = given_
    chosen = choose(count, free, machine)
    if count > len(free):
        assert chosen is None
    else:
        assert chosen is not None and chosen <= free and len(chosen) == count


@given(machines(), st.data())
def test_no_choice_needs_fewer_nodes(
    given_: tuple[tuple[Cpu, ...], Cpus], data: st.DataObject
) -> None:
    """So a job that fits on one node is on one."""
    machine, free = given_
    count = data.draw(st.integers(1, max(1, len(free))))
    chosen = choose(count, free, machine)
    if chosen is None:
        return
    used = len(nodes_of(chosen, machine))
    left = free_by_node(machine, free)
    assert not any(sum(few) >= count for few in combinations(left.values(), used - 1))


@given(machines(), st.data())
def test_a_physical_core_is_broken_only_if_nothing_else_is_left_on_its_node(
    given_: tuple[tuple[Cpu, ...], Cpus], data: st.DataObject
) -> None:
    """At most one of a node's whole cores is taken in part, and then no CPU of a core that others
    have begun on is left free there."""
    machine, free = given_
    chosen = choose(data.draw(st.integers(1, max(1, len(free)))), free, machine)
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
def test_whole_cores_come_first(given_: tuple[tuple[Cpu, ...], Cpus], data: st.DataObject) -> None:
    """A part of a core is taken only if no whole one of the node would do."""
    machine, free = given_
    chosen = choose(data.draw(st.integers(1, max(1, len(free)))), free, machine)
    if chosen is None:
        return
    for node in nodes_of(chosen, machine):
        here = [cpus for core, cpus in threads_of(machine).items() if core[0] == node]
        in_parts = sum(len(cpus & chosen) for cpus in here if cpus & chosen and not cpus <= chosen)
        untouched = [len(cpus) for cpus in here if cpus <= free and not cpus & chosen]
        assert not untouched or in_parts < min(untouched)


@given(machines(), st.lists(st.integers(1, 6), max_size=12))
def test_no_two_jobs_are_ever_on_one_cpu(
    given_: tuple[tuple[Cpu, ...], Cpus], counts: list[int]
) -> None:
    machine, free = given_
    held: list[Cpus] = []
    for count in counts:
        chosen = choose(count, free.difference(*held), machine)
        if chosen is not None:
            held.append(chosen)
    assert sum(map(len, held)) == len(frozenset().union(*held))


@given(machines(), st.data())
def test_what_is_to_be_avoided_makes_no_difference_to_how_many_nodes(
    given_: tuple[tuple[Cpu, ...], Cpus], data: st.DataObject
) -> None:
    machine, free = given_
    count = data.draw(st.integers(1, max(1, len(free))))
    avoid = frozenset(data.draw(st.sets(st.sampled_from(sorted(c.number for c in machine)))))
    plain, wary = choose(count, free, machine), choose(count, free, machine, avoid=avoid)
    if plain is None or wary is None:
        assert plain is wary is None
        return
    assert len(nodes_of(plain, machine)) == len(nodes_of(wary, machine))


def test_both_threads_of_a_core_belong_together() -> None:
    machine = built(1, 4, 2)
    assert choose(2, frozenset(range(8)), machine) == {0, 4}
    assert choose(3, frozenset({0, 1, 2, 4, 5}), machine) == {0, 4, 2}


def test_the_fullest_node_that_has_room_is_taken_so_that_another_stays_whole() -> None:
    machine = built(2, 4, 1)
    assert choose(2, frozenset({0, 1, 2, 3, 5, 6, 7}), machine) == {5, 6}
    assert choose(4, frozenset({0, 1, 2, 3, 5, 6, 7}), machine) == {0, 1, 2, 3}


@pytest.mark.parametrize(("avoid", "chosen"), [((), {0, 1}), ((0,), {1, 2}), ((0, 1, 2), {0, 3})])
def test_what_is_to_be_avoided_comes_last(avoid: tuple[int, ...], chosen: set[int]) -> None:
    machine = built(1, 4, 1)
    assert choose(2, frozenset(range(4)), machine, avoid=frozenset(avoid)) == chosen
