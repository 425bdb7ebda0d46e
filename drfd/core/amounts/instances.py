"""Instances of countable resources, such as the GPUs of a machine, and which of them a job gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: Instances of countable resources by name: (("gpu", ("0", "1")),).
Instances = tuple[tuple[str, tuple[str, ...]], ...]

#: Resource and instance: ("gpu", "0").
Instance = tuple[str, str]


class InstancePlace(NamedTuple):
    """Where an instance of a countable resource is, as far as is known."""

    #: NUMA node.
    node: int | None = None
    #: Instances of the same resource that have a direct link to it.
    links: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInstances:
    """The instances of a resource of which a job gets a part of one, or some as a whole."""

    #: The axis of their sum.
    axis: int
    #: The node on which they are.
    node: str = ""
    #: The size of each; amounts below it are a part of one, and others are multiples of it.
    size: int
    names: tuple[str, ...]
    places: Mapping[str, InstancePlace]

    def parts_for(self, asked: int, free: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return how much of each instance a job gets that asks for so much: a part of the one
        that has the least left which suffices, or wholly free ones; None if there are none."""
        if not asked:
            return (0,) * len(self.names)
        if asked < self.size:
            enough = [(left, at) for at, left in enumerate(free) if left >= asked]
            return self._parts({min(enough)[1]}, asked) if enough else None
        count = -(-asked // self.size)
        whole = [name for name, left in zip(self.names, free, strict=True) if left >= self.size]
        if len(whole) < count:
            return None
        chosen = choose_near(count, whole, self.places)
        return self._parts({self.names.index(each) for each in chosen}, self.size)

    def _parts(self, chosen: set[int], part: int) -> tuple[int, ...]:
        return tuple([part if at in chosen else 0 for at in range(len(self.names))])


def choose_instances(
    asked: Iterable[tuple[str, int]],
    there: Instances,
    taken: Container[Instance],
    places: Iterable[tuple[Instance, InstancePlace]] = (),
) -> Instances:
    """Choose, for each name and count in `asked`, instances that are not `taken`: on as few NUMA
    nodes as possible, preferring the node that is left with the fewest; of these the ones with the
    most links between them; and of equal ones the first.

    There must be enough: a pass admits only what fits, and every job that uses capacity of a
    resource has exactly as many of its instances. The choice is made when a job is admitted and is
    part of that event, so a restart finds it again.
    """
    lists = dict(there)
    chosen = []
    for name, count in asked:
        free = [each for each in lists.get(name, ()) if (name, each) not in taken]
        assert len(free) >= count, f"{count} of {name} were admitted, and {free} are free"
        known = {instance: place for (kind, instance), place in places if kind == name}
        chosen.append((name, tuple(choose_near(count, free, known))))
    return tuple(chosen)


def choose_near(count: int, free: list[str], places: Mapping[str, InstancePlace]) -> list[str]:
    """Choose `count` of the free instances that are near each other, in the order of `free`."""
    if not places:
        return free[:count]
    nodes: dict[int | None, list[str]] = {}
    for each in free:
        nodes.setdefault(places.get(each, _NOWHERE).node, []).append(each)
    found: set[str] = set()
    while len(found) < count:
        wanted = count - len(found)
        enough = [node for node, some in nodes.items() if len(some) >= wanted]
        # The fullest node that has enough, or else the emptiest.
        if enough:
            node = min(enough, key=lambda node: len(nodes[node]))
        else:
            node = max(nodes, key=lambda node: len(nodes[node]))
        found.update(_linked(wanted, nodes.pop(node), places))
    return [each for each in free if each in found]


def _linked(count: int, some: list[str], places: Mapping[str, InstancePlace]) -> list[str]:
    """Choose `count` instances of one node, or all: from each of them grow a group by the instance
    with the most links into it, and return the group with the most links."""
    links = {each: places.get(each, _NOWHERE).links for each in some}
    if count >= len(some) or not any(links.values()):
        return some[:count]
    groups = []
    for first in some:
        group, within = [first], 0
        while len(group) < count:
            rest = (each for each in some if each not in group)
            nearest = max(rest, key=lambda each: len(links[each].intersection(group)))
            within += len(links[nearest].intersection(group))
            group.append(nearest)
        groups.append((within, group))
    return max(groups, key=lambda each: each[0])[1]


_NOWHERE = InstancePlace()


def each_instance(instances: Instances) -> Iterator[Instance]:
    return ((name, each) for name, some in instances for each in some)


def count_instances(instances: Instances, sign: int, taken: Counter[Instance]) -> None:
    """Add (`sign` 1) or remove (-1) the instances of a job in `taken`. Only the ledger calls it."""
    for each in each_instance(instances):
        taken[each] += sign
        if not taken[each]:
            del taken[each]
