"""Which CPUs a job gets that wants some for itself. Pure.

A job of several CPUs is fastest where they share memory and caches, and slowest where half of a
physical core works for somebody else: so one memory node before several, whole cores before parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Cpus = frozenset[int]


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical CPU. `core`: the physical core that it is a thread of; the same number on
    another node is another core."""

    number: int
    node: int
    core: int


def choose(
    count: int, free: Cpus, machine: Iterable[Cpu], avoid: Cpus = frozenset()
) -> Cpus | None:
    """`count` of the `free` CPUs, on as few nodes as possible, and there the node that is left with
    the least; None if there are not so many. Those to `avoid` are taken after their equals."""
    nodes: dict[int, list[Cpu]] = {}
    for cpu in sorted(machine, key=lambda cpu: cpu.number):
        nodes.setdefault(cpu.node, []).append(cpu)
    left = {node: len(free.intersection(_numbers(cpus))) for node, cpus in nodes.items()}
    if count > sum(left.values()):
        return None
    chosen: set[int] = set()
    while len(chosen) < count:
        wanted = count - len(chosen)
        node = _node_for(wanted, left, _touches(avoid, nodes))
        chosen |= _on_node(min(wanted, left.pop(node)), free, nodes[node], avoid)
    return frozenset(chosen)


def nodes_of(cpus: Cpus, machine: Iterable[Cpu]) -> frozenset[int]:
    return frozenset(cpu.node for cpu in machine if cpu.number in cpus)


def _node_for(wanted: int, left: dict[int, int], touches: Callable[[int], int]) -> int:
    """The fullest node that has enough, else the emptiest."""
    enough = [node for node, count in left.items() if count >= wanted]
    if enough:
        return min(enough, key=lambda node: (left[node], touches(node), node))
    return min(left, key=lambda node: (-left[node], node))


def _touches(avoid: Cpus, nodes: dict[int, list[Cpu]]) -> Callable[[int], int]:
    return lambda node: len(avoid.intersection(_numbers(nodes[node])))


def _on_node(count: int, free: Cpus, cpus: list[Cpu], avoid: Cpus) -> set[int]:
    """Whole cores while one is not too many; what is missing then from cores that others have begun
    on, and only then from a whole one."""
    cores: dict[int, list[int]] = {}
    for cpu in cpus:
        cores.setdefault(cpu.core, []).append(cpu.number)
    whole = [core for core in cores.values() if free.issuperset(core)]
    parts = [[cpu for cpu in core if cpu in free] for core in cores.values() if core not in whole]
    chosen: set[int] = set()
    broken: list[list[int]] = []
    for core in sorted(whole, key=lambda core: (len(avoid.intersection(core)), core)):
        if len(core) <= count - len(chosen):
            chosen.update(core)
        else:
            broken.append(core)
    # The part with the fewest free first: it is of the least use to others.
    for part in sorted(parts, key=lambda part: (len(part), part)) + broken:
        single = sorted(part, key=lambda cpu: (cpu in avoid, cpu))
        chosen.update(single[: count - len(chosen)])
    return chosen


def _numbers(cpus: Iterable[Cpu]) -> Cpus:
    return frozenset(cpu.number for cpu in cpus)
