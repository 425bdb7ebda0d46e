"""Which device nodes the instances of a countable resource have, and which a job must not open.

GPUs are looked up at each launch, because the numbers of their nodes change when a driver is loaded
again or a GPU is divided anew; nodes that the configuration names are looked up then, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from drfd.common.errors import HostError
from drfd.daemon.countable import Countables
from drfd.devices.gpus import GPU, Gpu, find_gpus, gpus_named
from drfd.devices.kernel_files import node_at, numa_node
from drfd.devices.nvidia import Memory
from drfd.devices.variables import variables_for
from drfd.launcher.protocol import Devices
from drfd.linux.device_nodes import DeviceNode, show_node

#: Where the kernel says of a device node on which NUMA node its device is.
_DEVICES = {"c": "/sys/dev/char", "b": "/sys/dev/block"}


class DevicesFailed(Exception):
    """A device cannot be given to a job, or hidden from it; the text names it and the reason."""


class DevicesTaken(DevicesFailed):
    """The job was given what is not configured any more, or what other jobs have under another
    name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an attempt is given of a countable resource that may have device nodes."""

    name: str
    #: The instances that are the attempt's, and all others that are given out to jobs.
    given: tuple[str, ...]
    others: tuple[str, ...]
    #: Bytes of its own memory on each of its instances; 0 for no limit that the kernel keeps.
    memory_bytes: int = 0


class MachineGpus:
    """The GPUs of this machine, looked up beside the loop, because a driver may take seconds to
    answer."""

    def __init__(self, known: tuple[Gpu, ...] = ()) -> None:
        self._memory: Memory = {}
        self._lock = asyncio.Lock()
        #: All GPUs as they were when they could be looked up last.
        self.known = known

    async def look_up(self) -> None:
        """Look all GPUs up, in the order of calls. Raises HostError."""
        async with self._lock:
            self.known = await asyncio.to_thread(find_gpus, with_links=False, memory=self._memory)


@dataclass(frozen=True, slots=True)
class Found:
    """What a job's instances are on this machine."""

    devices: Devices = field(default_factory=Devices)
    #: Variables that name its GPUs to the programs of their makers; they override all others.
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceTable:
    countables: Countables = ()
    #: Whether this machine can hide device nodes.
    can_hide: bool = False
    #: The GPUs of the machine, as they are now.
    gpus: Sequence[Gpu] = ()

    @property
    def _paths(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Resource → paths of the nodes of each of its instances, which are numbered from 0."""
        return {each.name: each.devices for each in self.countables if each.devices}

    def look_up(self, grants: Sequence[Grant]) -> Found:
        """Return what these instances are now. All other devices whose nodes the configuration
        names are hidden as well. Raises DevicesFailed if a device that the job was given is not
        there, or one that it was not given cannot be told from it."""
        found: dict[str, tuple[set[DeviceNode], set[DeviceNode]]] = {}
        numa_nodes: set[int] = set()
        variables: dict[str, str] = {}
        memory: tuple[tuple[str, int], ...] = ()
        told = {grant.name for grant in grants}
        paths = self._paths
        untold = [name for name in paths if name not in told]
        for grant in (*grants, *(Grant(name=name, given=(), others=()) for name in untold)):
            if grant.name in paths:
                given, others = _named(grant, paths[grant.name])
                places = (f"{_DEVICES[node.kind]}/{node.major}:{node.minor}" for node in given)
                known = (numa_node(f"{place}/device") for place in places)
                numa_nodes.update(each for each in known if each is not None)
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
            elif grant.given:
                raise _unknown(grant)
            else:
                continue
            found[grant.name] = given, others
        _refuse_shared(found)
        own = {node for given, _ in found.values() for node in given}
        foreign = {node for _, others in found.values() for node in others}
        hidden = frozenset(foreign - own) if self.can_hide else frozenset[DeviceNode]()
        return Found(Devices(hidden, frozenset(numa_nodes), memory), variables)

    def hide_all(self, grants: Sequence[Grant]) -> Found:
        """Return what hides all these instances, as far as they are there, from a command that is
        given none."""
        nobodys = [
            Grant(name=each.name, given=(), others=(*each.given, *each.others)) for each in grants
        ]
        return Found(Devices(self.look_up(nobodys).devices.hidden))

    def _gpus(self, grant: Grant) -> tuple[list[Gpu], list[Gpu], list[Gpu]]:
        """Return the GPUs of the job, those that are hidden from it, and those that are given out
        to nobody and stay visible. All are empty where the configuration has numbers and no GPU is
        known: these may stand for something else."""
        found = self.gpus
        if not found and not any(each.is_auto for each in self.countables):
            return [], [], []
        try:
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
        if any(each.hides_all for each in self.countables):
            return True
        if not {gpu.name, gpu.uuid}.isdisjoint(grant.others):
            return True
        if any(each.is_auto for each in self.countables) and not gpu.is_integrated:
            return True
        usable = {name for each in found if not each.fault for name in (each.name, each.uuid)}
        missing = {_whole(name) for name in grant.others if name not in usable}
        # What is listed and not found may be the same GPU, which MIG divides otherwise now.
        if not missing.isdisjoint({_whole(gpu.name), _whole(gpu.uuid or "")}):
            return True
        # Before its first use, or when it has a fault, a driver does not say the UUID of a GPU.
        known = {name for each in found for name in (each.name, each.uuid)}
        return gpu.uuid is None and not known.issuperset(grant.others)


def _named(grant: Grant, known: Sequence[Sequence[str]]) -> tuple[set[DeviceNode], set[DeviceNode]]:
    """Return the nodes of the job's instances and of the others, of a resource whose nodes the
    configuration names."""
    instances = dict(zip(map(str, range(len(known))), known, strict=True))
    if not instances.keys() >= {*grant.given}:
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


def _unknown(grant: Grant, known: Iterable[str] = ()) -> DevicesTaken:
    """Return the error for the first instance that is not among the known ones."""
    name = next(name for name in grant.given if name not in {*known})
    return DevicesTaken(f"{grant.name} {name} is not configured any more")


def _nodes(gpus: Iterable[Gpu]) -> set[DeviceNode]:
    return {node for gpu in gpus for node in gpu.nodes}


def _why(path: str, error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"{path}: {os.strerror(error.errno or 0)}"
    return str(error)
