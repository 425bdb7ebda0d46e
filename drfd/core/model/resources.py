"""Amounts of resources, as exact integers.

`Resources` is a declaration by name; a vector has the same amounts in the order of `Axes`, for
arithmetic. Fairness uses only vectors, so it works for any number of axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from drfd.common.units import AXES, DISK_AXES, PLAIN_AXES
from drfd.core.model.machine import (
    Allocation,
    FreeResources,
    Instance,
    InstancePlace,
    Instances,
    NodeDemand,
    SharedInstances,
    Vector,
    minus,
)

_plain_amounts = attrgetter(*(axis.field for axis in PLAIN_AXES.values()))
_SUMMED = (*PLAIN_AXES, *DISK_AXES)
_disk_amounts = attrgetter(*(AXES[name].field for name in DISK_AXES))
_RATES = frozenset(name for name, axis in AXES.items() if axis.is_rate)
#: One core.
CORE_MILLI = 1000


class Resources(Struct, frozen=True, kw_only=True, cache_hash=True):
    """A demand, a limit or a capacity. A rate of zero means that none was declared."""

    cores_milli: int = 0
    memory_bytes: int = 0
    #: Rates of the only disk; on a machine with several, a demand applies to each of them.
    read_bps: int = 0
    write_bps: int = 0
    #: Countable resources: name and count, sorted by name; counts are above zero.
    gres: tuple[tuple[str, int], ...] = ()
    #: Bytes of its own memory on each instance of a countable resource, sorted by name, above zero:
    #: (("gpu", 20 << 30),). A resource that is not named has no limit.
    gres_memory: tuple[tuple[str, int], ...] = ()
    #: On a machine with several disks, in place of the two rates: (name, read, write) of each.
    disks: tuple[tuple[str, int, int], ...] = ()
    #: Of a demand: the name of the only node that will do, and the features that a node must have,
    #: sorted.
    node: str = ""
    features: tuple[str, ...] = ()

    @property
    def amounts(self) -> dict[str, int]:
        """All amounts but those of countable resources, by the names of their axes: "cores", and
        "read", or "read:data" if disks are named."""
        found = dict(zip(PLAIN_AXES, _plain_amounts(self), strict=True))
        for disk, *rates in self.disks or (("", *_disk_amounts(self)),):
            found |= zip(disk_axes([disk]), rates, strict=True)
        return found

    def amount(self, axis: str) -> int:
        """Return the amount of one of these axes; rates without a disk's name are of every disk."""
        kind, _, disk = axis.partition(":")
        at = DISK_AXES.index(kind) if kind in DISK_AXES else None
        return getattr(self, AXES[kind].field) if at is None else self.rates(disk)[at]

    def with_amounts(self, amounts: Mapping[str, int]) -> Resources:
        """Return these amounts in place of its own, and zero for axes that are left out. Names that
        are of none of these axes are ignored."""
        fields = {each.field: amounts.get(name, 0) for name, each in AXES.items()}
        pairs = (name.partition(":") for name in amounts)
        disks = dict.fromkeys(disk for kind, _, disk in pairs if disk and kind in DISK_AXES)
        rates: Any = (
            (disk, *(amounts.get(axis, 0) for axis in disk_axes([disk]))) for disk in disks
        )
        return replace(self, **fields, disks=tuple(rates))

    def rates(self, disk: str) -> tuple[int, int]:
        """Return the read and write rates on this disk, in bytes per second."""
        if not self.disks:
            return self.read_bps, self.write_bps
        return next(((read, write) for name, read, write in self.disks if name == disk), (0, 0))

    @property
    def sums(self) -> dict[str, int]:
        """The same amounts, with the sums over all disks."""
        rates: Iterable[int] = _disk_amounts(self)
        if self.disks:
            rates = map(sum, zip(*(each[1:] for each in self.disks), strict=True))
        return dict(zip(_SUMMED, (*_plain_amounts(self), *rates), strict=True))

    @property
    def used_disks(self) -> frozenset[str]:
        """Names of the disks with a rate above zero."""
        return frozenset(name for name, read, write in self.disks if read or write)


NOTHING = Resources()


def with_gres(demand: Resources, counts: Mapping[str, int], memory: Mapping[str, int]) -> Resources:
    """Return the demand with these countable resources, and bytes on each of their instances, in
    place of its own. Zeros are left out, and so is memory on what is not asked for."""
    return replace(
        demand,
        gres=tuple(sorted((name, count) for name, count in counts.items() if count)),
        gres_memory=tuple(
            sorted((name, size) for name, size in memory.items() if size and counts.get(name))
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One of several machines."""

    name: str
    capacity: Resources
    features: frozenset[str] = frozenset()
    #: Whether jobs get whole cores there, so that no job with a part of one runs on it.
    whole_cores: bool = False

    def will_do(self, demand: Resources) -> bool:
        """Return whether a job may run there, however large the node is."""
        return (
            demand.node in ("", self.name)
            and self.features.issuperset(demand.features)
            and not (self.whole_cores and demand.cores_milli % CORE_MILLI)
        )


@dataclass(frozen=True, slots=True)
class Axes:
    """The order of a machine's resources in its vectors."""

    gres: tuple[str, ...] = ()
    #: The machine's disks. Several have the axes "read:NAME" and "write:NAME" each; with one, or
    #: none, or one without a name, the axes are "read" and "write".
    disks: tuple[str, ...] = ()
    #: Disks that the machine no longer has but jobs still name: axes without capacity.
    lost: tuple[str, ...] = ()
    #: Instances of each of `gres` in the order in which they are given out; none of a resource that
    #: the machine no longer has.
    instances: Instances = ()
    #: Where instances are of which something is known.
    places: tuple[tuple[Instance, InstancePlace], ...] = ()
    #: The countable resource of which several jobs may share an instance, and the memory of each of
    #: its instances, in bytes. Its axis "memory:NAME" counts bytes.
    shared: tuple[str, int] | None = None
    #: The machines, if there are several; the first one is the controller's own. Instances are of
    #: that one alone.
    nodes: tuple[ClusterNode, ...] = ()

    @property
    def home(self) -> str:
        """The name of the controller's own node; "" if there is one machine."""
        return self.nodes[0].name if self.nodes else ""

    @property
    def names(self) -> tuple[str, ...]:
        rates = disk_axes(self.disks if len(self.disks) > 1 else [""])
        return (*PLAIN_AXES, *rates, *map(self.axis_of, self.gres), *disk_axes(self.lost))

    def axis_of(self, name: str) -> str:
        return memory_axis(name) if self.is_shared(name) else name

    def is_shared(self, name: str) -> bool:
        """Return whether several jobs may share an instance of this countable resource."""
        return self.shared is not None and self.shared[0] == name

    def vector(self, amount: Resources) -> Vector:
        """Return the amounts of a demand in order, without countable resources that have no axis.
        It is bound to the nodes that will do, where not all do."""
        is_part = amount.cores_milli % CORE_MILLI and any(node.whole_cores for node in self.nodes)
        if amount.node or amount.features or is_part:
            return NodeDemand(self.amounts(amount), self.nodes_for(amount))
        return self.amounts(amount)

    def nodes_for(self, demand: Resources) -> frozenset[str]:
        """Return the names of the nodes that will do for a demand, however large they are."""
        return frozenset(node.name for node in self.nodes if node.will_do(demand))

    def amounts(self, amount: Resources) -> Vector:
        """Return the amounts in order, for any node."""
        if not (self.gres or self.lost or amount.disks) and len(self.disks) < 2:
            return _plain_amounts(amount) + _disk_amounts(amount)
        counts = dict(amount.gres)
        if self.shared is not None:
            counts[self.shared[0]] = self._shared_bytes(amount)
        named = amount.amounts
        return (
            *_plain_amounts(amount),
            *chain.from_iterable(map(amount.rates, self.disks or ("",))),
            *(counts.get(name, 0) for name in self.gres),
            *(named.get(axis, 0) for axis in disk_axes(self.lost)),
        )

    def _shared_bytes(self, amount: Resources) -> int:
        """Return the memory of shared instances in an amount: of one instance a part, if the amount
        says which, and otherwise all of each."""
        assert self.shared is not None
        (name, size), counts = self.shared, dict(amount.gres)
        count, part = counts.get(name, 0), dict(amount.gres_memory).get(name, size)
        return (min(part, size) if count == 1 else count * size) + counts.get(memory_axis(name), 0)

    def free(self, sums: Vector) -> FreeResources:
        """Return what is free without jobs: all of each node, and of each shared instance."""
        if not self.nodes and self.shared is None:
            return FreeResources(sums)
        nodes = {node.name: self.amounts(node.capacity) for node in self.nodes} or {"": sums}
        if self.shared is None:
            return FreeResources(sums, nodes, nodes)
        name, size = self.shared
        nodes[self.home] += (size,) * len(self._shared_names)
        shared = SharedInstances(
            axis=self.names.index(memory_axis(name)),
            node=self.home,
            size=size,
            names=self._shared_names,
            places={instance: place for (kind, instance), place in self.places if kind == name},
        )
        return FreeResources(sums, nodes, nodes, shared)

    @property
    def _shared_names(self) -> tuple[str, ...]:
        """The instances that several jobs may share."""
        return dict(self.instances).get(self.shared[0], ()) if self.shared is not None else ()

    def held(self, demand: Vector, instances: Instances, node: str) -> Allocation:
        """Return what a job of this demand holds on this node that was given these instances.
        Instances that the machine no longer has use no capacity, and neither does a node that is no
        longer there. A job from before there were nodes is on the first one."""
        name = node or self.home
        if self.nodes and all(each.name != name for each in self.nodes):
            return Allocation((0,) * len(demand))
        there = {name: frozenset(some) for name, some in self.instances}
        gone = {
            name: len(set(some).difference(there.get(name, ())))
            for name, some in instances
            if not self.is_shared(name)
        }
        amounts = tuple(demand)
        if any(gone.values()):
            amounts = minus(amounts, self.amounts(Resources(gres=tuple(gone.items()))))
        if self.shared is None:
            return self.on_node(name, amounts)
        own = dict(instances).get(self.shared[0], ())
        axis = self.names.index(memory_axis(self.shared[0]))
        part = demand[axis] // len(own) if own else 0
        parts = [part if each in own else 0 for each in self._shared_names]
        return self.on_node(name, (*amounts[:axis], sum(parts), *amounts[axis + 1 :]), parts)

    def on_node(self, node: str, amounts: Vector, parts: Iterable[int] = ()) -> Allocation:
        """Return amounts that are in use on this node, with these parts of its shared instances."""
        if not self.nodes and self.shared is None:
            return Allocation(amounts)
        parts = tuple(parts) or (0,) * len(self._shared_names)
        return Allocation(amounts, {node: amounts + parts if node == self.home else amounts})

    def split_gres(
        self, gres: Iterable[tuple[str, int]], held: Allocation
    ) -> tuple[list[tuple[str, int]], Instances]:
        """Split what a job asks for into what it gets as whole instances that are not chosen yet,
        and the shared instances that it was placed on."""
        whole = [pair for pair in gres if not self.is_shared(pair[0])]
        if self.shared is None or not held.nodes:
            return whole, ()
        there = zip(self._shared_names, held.parts(self.home), strict=True)
        return whole, ((self.shared[0], tuple([each for each, part in there if part])),)

    def resources(self, vector: Vector) -> Resources:
        amounts = dict(zip(self.names, vector, strict=True))
        counts = ((axis, amounts[axis]) for axis in map(self.axis_of, self.gres))
        gres = tuple((axis, count) for axis, count in counts if count)
        lost = disk_axes(self.lost)
        return Resources(gres=gres).with_amounts(
            {name: amount for name, amount in amounts.items() if name not in lost}
        )

    def released(self, held: Allocation) -> Allocation:
        """Return the part of what a job holds that a frozen job releases: cores and rates, not
        memory."""
        return self.on_node(held.node, self._rates(held.sums))

    def _rates(self, amounts: Vector) -> Vector:
        names = zip(self.names, amounts, strict=True)
        return tuple([amount if kind_of(name) in _RATES else 0 for name, amount in names])

    def at_home(self, amount: Resources) -> Allocation:
        """Return an amount that is used on the controller's own node."""
        return self.on_node(self.home, self.amounts(amount))

    def is_home(self, node: str) -> bool:
        return node in ("", self.home)

    def to_resume(self, demand: Vector, node: str) -> Vector:
        """Return what a job that is frozen on this node waits for."""
        released = self._rates(demand)
        return NodeDemand(released, frozenset({node})) if self.nodes else released

    def unknown_disk(self, amount: Resources) -> str | None:
        return min(amount.used_disks.difference(self.disks), default=None)


def memory_axis(name: str) -> str:
    """Return the name of the axis of a countable resource that jobs share by its memory."""
    return f"memory:{name}"


def kind_of(axis: str) -> str:
    """Return the kind of an axis: "read" for "read:data". What is set for the kind holds for each
    such axis that has no setting of its own; the memory of GPUs is a kind by itself."""
    kind, _, which = axis.partition(":")
    return axis if which and kind == "memory" else kind


def disk_axes(disks: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the axes of these disks, of which "" stands for the only one."""
    return tuple(f"{kind}:{disk}" if disk else kind for disk in disks for kind in DISK_AXES)
