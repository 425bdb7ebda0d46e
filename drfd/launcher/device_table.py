"""Which device nodes the instances of a countable resource have, and which a job must not open.

The controller says by name which instances a job is given. What a name stands for is known here
alone: GPUs are looked up at each launch, because the numbers of their nodes change when a driver is
loaded again or a GPU is divided anew; nodes that the configuration names are looked up then, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from drfd.common.errors import HostError
from drfd.devices.gpus import GPU, Gpu, gpus_named
from drfd.devices.nodes import DeviceNode, node_at, show_node
from drfd.devices.roster import Roster
from drfd.devices.variables import variables_for
from drfd.launcher.confinement.interface import Devices
from drfd.launcher.protocol import Assignment, Grant
from drfd.launcher.settings import DeviceSettings

#: Where the kernel says of a device node on which NUMA node its device is.
_DEVICES = {"c": "/sys/dev/char", "b": "/sys/dev/block"}


class DevicesFailed(Exception):
    """A device cannot be given to a job, or hidden from it; the text names it and the reason."""


class DevicesUnknown(DevicesFailed):
    """The controller knows devices that this launcher was not told of when it started."""


class DevicesTaken(DevicesFailed):
    """The job was given what other jobs have, or are given, under another name."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a job's instances are on this machine."""

    devices: Devices = field(default_factory=Devices)
    #: Variables that name its GPUs to the programs of their makers; they override all others.
    variables: Mapping[str, str] = field(default_factory=dict)

    def told(self, assignment: Assignment) -> Assignment:
        """Return the assignment with these variables."""
        if not self.variables:
            return assignment
        order = assignment.order
        variables = {**order.variables, **self.variables}
        return replace(assignment, order=replace(order, variables=variables))


def _memory() -> Callable[[], Sequence[Gpu]]:
    return Roster().look_up


@dataclass(frozen=True, slots=True)
class DeviceTable:
    #: What the configuration says of devices.
    settings: DeviceSettings = field(default_factory=DeviceSettings)
    #: Whether this machine can hide device nodes (`Confinement.hiding`).
    can_hide: bool = False
    #: Looks up the GPUs of the machine, and remembers their numbers.
    find: Callable[[], Sequence[Gpu]] = field(default_factory=_memory)

    def look_up(self, grants: Sequence[Grant]) -> Found:
        """Return what these instances are now. All other devices whose nodes the configuration
        names are hidden as well. Raises DevicesFailed if a device that the job was given is not
        there, or one that it was not given cannot be told from it."""
        found: dict[str, tuple[set[DeviceNode], set[DeviceNode]]] = {}
        numa_nodes: set[int] = set()
        variables: dict[str, str] = {}
        memory: tuple[tuple[str, int], ...] = ()
        told = {grant.name for grant in grants}
        untold = [name for name in self.settings.paths if name not in told]
        for grant in (*grants, *(Grant(name=name, given=(), others=()) for name in untold)):
            if grant.name in self.settings.paths:
                given, others = self._named(grant)
                numa_nodes.update(_numa_nodes(given))
            elif grant.name == GPU:
                mine, rest, left = self._gpus(grant)
                if self.can_hide:
                    _refuse_blind_slices(mine, rest)
                given, others = _nodes(mine), _nodes(rest)
                numa_nodes.update(gpu.numa_node for gpu in mine if gpu.numa_node is not None)
                if grant.memory_bytes:
                    # Slices have one address, and no driver of slices limits their memory.
                    whole = (gpu for gpu in mine if ":" not in gpu.name)
                    memory = tuple((gpu.pci, grant.memory_bytes) for gpu in whole)
                if mine or rest:
                    variables = variables_for(
                        mine, [*mine, *left, *([] if self.can_hide else rest)]
                    )
            elif grant.given or grant.others:
                raise _unknown(grant)
            else:
                continue
            found[grant.name] = given, others
        _refuse_shared(found)
        own = {node for given, _ in found.values() for node in given}
        foreign = {node for _, others in found.values() for node in others}
        hidden = frozenset(foreign - own) if self.can_hide else frozenset[DeviceNode]()
        return Found(Devices(hidden, frozenset(numa_nodes), memory), variables)

    def hide_all(self, grants: Sequence[Grant]) -> Devices:
        """Return what hides all these instances, as far as they are there, from a command that is
        given none. Raises DevicesFailed if that cannot be told."""
        hidden = set(self.look_up([]).devices.hidden)
        for grant in grants:
            listed = (*grant.given, *grant.others)
            # What this launcher was not told of is hidden as far as it knows nodes at all.
            with suppress(DevicesUnknown):
                nobodys = Grant(name=grant.name, given=(), others=listed)
                hidden |= self.look_up([nobodys]).devices.hidden
        return Devices(frozenset(hidden))

    def names_of(self, addresses: Collection[str]) -> list[str]:
        """Return the names and UUIDs of the whole GPUs at these PCI addresses."""
        if not addresses:
            return []
        try:
            found = [gpu for gpu in self.find() if gpu.pci in addresses and ":" not in gpu.name]
        except HostError:
            return []
        return [name for gpu in found for name in (gpu.name, gpu.uuid) if name is not None]

    def problems(self) -> list[str]:
        """Return a sentence for each device of the configuration that is not there."""
        found = []
        for name, instances in self.settings.paths.items():
            for number, paths in enumerate(instances):
                for path in paths:
                    try:
                        node_at(path)
                    except (OSError, ValueError) as error:
                        found.append(
                            f"{name} {number}: {_why(path, error)}: no job can be given it"
                        )
        return found

    def _named(self, grant: Grant) -> tuple[set[DeviceNode], set[DeviceNode]]:
        """Return the nodes of the job's instances and of the others, of a resource whose nodes the
        configuration names."""
        known = self.settings.paths[grant.name]
        instances = dict(zip(_numbers(known), known, strict=True))
        if not instances.keys() >= {*grant.given, *grant.others}:
            raise _unknown(grant, instances)
        owners: dict[DeviceNode, str] = {}
        given: set[DeviceNode] = set()
        others: set[DeviceNode] = set()
        for name, paths in instances.items():
            for path in paths:
                try:
                    node = node_at(path)
                except (OSError, ValueError) as error:
                    if name in grant.given:
                        raise DevicesFailed(f"{grant.name} {name}: {_why(path, error)}") from None
                    # Nobody can open what is not there.
                    continue
                other = owners.setdefault(node, name)
                if other != name and not {other, name}.isdisjoint(grant.given):
                    raise DevicesFailed(
                        f"{grant.name} {other} and {name} are one device ({show_node(node)}), "
                        "which cannot be given to one job and hidden from another"
                    )
                (given if name in grant.given else others).add(node)
        return given, others

    def _gpus(self, grant: Grant) -> tuple[list[Gpu], list[Gpu], list[Gpu]]:
        """Return the GPUs of the job, those that are hidden from it, and those that are given out
        to nobody and stay visible. All are empty where no GPU is known, so that the numbers may
        stand for something else."""
        try:
            found = self.find()
            if not found:
                return [], [], []
            mine = list(gpus_named(grant.given, found))
        except HostError as error:
            raise DevicesFailed(str(error)) from None
        for name in grant.others:
            if any(name in (gpu.name, gpu.uuid) for gpu in mine):
                raise DevicesTaken(
                    f"the GPU that it was given is GPU {name} as well: that is in use under "
                    "another name since the configuration was changed, or the list has it twice"
                )
        rest: list[Gpu] = []
        left: list[Gpu] = []
        for gpu in found:
            if gpu not in mine:
                (rest if self._is_given_out(gpu, grant, found) else left).append(gpu)
        return mine, rest, left

    def _is_given_out(self, gpu: Gpu, grant: Grant, found: Sequence[Gpu]) -> bool:
        """Return whether a GPU is or may be among those that other jobs are given."""
        if self.settings.hides_all_gpus or not {gpu.name, gpu.uuid}.isdisjoint(grant.others):
            return True
        if self.settings.gives_all_gpus and not gpu.is_integrated:
            return True
        usable = {name for each in found if not each.fault for name in (each.name, each.uuid)}
        missing = {_whole(name) for name in grant.others if name not in usable}
        # What is listed and not found may be the same GPU, which MIG divides otherwise now.
        if not missing.isdisjoint({_whole(gpu.name), _whole(gpu.uuid or "")}):
            return True
        # Before its first use, or when it has a fault, a driver does not say the UUID of a GPU.
        known = {name for each in found for name in (each.name, each.uuid)}
        return gpu.uuid is None and not known.issuperset(grant.others)


def _refuse_blind_slices(mine: Sequence[Gpu], rest: Sequence[Gpu]) -> None:
    """Raise DevicesFailed if a slice that is not the job's has no known node of its own, so that it
    cannot be hidden from a job on another slice of the same GPU."""
    own = _nodes(mine)
    for gpu in rest:
        is_slice_beside = ":" in gpu.name and any(each.pci == gpu.pci for each in mine)
        if gpu.fault and is_slice_beside and gpu.nodes <= own:
            raise DevicesFailed(
                f"GPU {gpu.name} cannot be hidden from a job on another slice of the same GPU: "
                f"{gpu.fault}"
            )


def _refuse_shared(found: Mapping[str, tuple[set[DeviceNode], set[DeviceNode]]]) -> None:
    """Raise DevicesFailed if what the job is given of one resource must be hidden from it as one of
    another resource."""
    for name, (given, _) in found.items():
        for other, (_, others) in found.items():
            if name != other and not given.isdisjoint(others):
                raise DevicesFailed(
                    f"{show_node(min(given & others))} is a device of {name} and of {other}: it "
                    "cannot be given to one job and hidden from another"
                )


def _whole(name: str) -> str:
    """Return the number or the UUID of the GPU that an instance is, or that it is a slice of."""
    return name.removeprefix("MIG-").partition("/")[0].partition(":")[0]


def _numbers(instances: Sequence[object]) -> tuple[str, ...]:
    return tuple(map(str, range(len(instances))))


def _unknown(grant: Grant, known: Collection[str] = ()) -> DevicesUnknown:
    """Return the error for the first instance that is not among the known ones."""
    name = next(name for name in (*grant.given, *grant.others) if name not in known)
    return DevicesUnknown(
        f"the launcher knows no {grant.name} {name}: the configuration has changed; an "
        "administrator restarts drfd-launcher"
    )


def _nodes(gpus: Iterable[Gpu]) -> set[DeviceNode]:
    return {node for gpu in gpus for node in gpu.nodes}


def _numa_nodes(nodes: Iterable[DeviceNode]) -> set[int]:
    found = set()
    for node in nodes:
        try:
            place = Path(_DEVICES[node.kind], f"{node.major}:{node.minor}", "device/numa_node")
            number = int(place.read_text())
        except (OSError, ValueError):
            continue
        if number >= 0:
            found.add(number)
    return found


def _why(path: str, error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"{path}: {os.strerror(error.errno or 0)}"
    return str(error)
