"""The table [gres] of the configuration: countable resources, such as GPUs, and their instances.

Each instance has a number or name of its own. Those of `gpu` are the GPUs of the machine, by number
or UUID; those of any other resource may have device nodes, and are numbered in the order in which
these are written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from drfd.common.errors import Refused
from drfd.common.strict_table import TomlTable, one_of, read_flag, read_path, wrong
from drfd.common.units import parse_size
from drfd.core.model.machine import Instance, InstancePlace, Instances
from drfd.core.model.resources import Axes
from drfd.devices.gpus import GPU, Gpu, automatic, find_gpus
from drfd.devices.kernel_files import is_basic, node_at
from drfd.linux.device_nodes import DeviceNode

#: The list of instances that stands for all GPUs of the machine.
AUTO = "auto"
#: Whether only GPUs in the list are hidden from jobs that do not have them, or all of the machine.
LISTED, ALL = "listed", "all"
_read_hide = one_of(LISTED, ALL)
#: Name of a countable resource, in small letters: in capitals it is part of a variable's name.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
#: The most instances that a hint writes out.
_MOST_WRITTEN = 16
#: Name of an instance: a number, or as a driver writes it (GPU-…/1/0). A comma separates instances.
_INSTANCE = re.compile(r"[\w.:/+-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountableResource:
    """A table or list of [gres]."""

    name: str
    #: In the order of the file, which is the order of allocation; empty if they are to be found.
    instances: tuple[str, ...] = ()
    #: Whether the instances are all GPUs that the machine has.
    is_auto: bool = False
    #: Paths of the device nodes of each instance; empty if it has none that are named.
    devices: tuple[tuple[str, ...], ...] = ()
    #: Whether GPUs that are not in the list are hidden from all jobs, too.
    hides_all: bool = False
    #: The memory of each instance if several jobs may share one by their declared memory, in bytes.
    shared_bytes: int | None = None


Countables = tuple[CountableResource, ...]


def read_gpus(countables: Countables) -> tuple[Gpu, ...]:
    """Return the GPUs of this machine, or none if none are given out. Raises HostError if
    they cannot be read."""
    if any(each.name == GPU and not each.devices for each in countables):
        return find_gpus()
    return ()


def instances_of(countables: Countables, gpus: Sequence[Gpu]) -> Instances:
    """Return the instances by resource. Those of "auto" are the GPUs of the machine that can be
    used, without those that are a part of its processor."""
    found = tuple(gpu.name for gpu in automatic(gpus))
    return tuple((each.name, found if each.is_auto else each.instances) for each in countables)


def places_of(
    instances: Instances, gpus: Sequence[Gpu]
) -> tuple[tuple[Instance, InstancePlace], ...]:
    """Return where those GPUs are that are given out, of which the kernel says it."""
    found = []
    by_name = {name: gpu for gpu in gpus for name in (gpu.name, gpu.uuid) if name is not None}
    listed = {
        by_name[name].name: name for kind, some in instances if kind == GPU for name in some
        if name in by_name
    }  # fmt: skip
    for number, name in listed.items():
        gpu = by_name[number]
        links = frozenset(listed[other] for other in gpu.links if other in listed)
        if gpu.numa_node is not None or links:
            found.append(((GPU, name), InstancePlace(gpu.numa_node, links)))
    return tuple(found)


def shared_memory(countables: Countables) -> tuple[str, int] | None:
    """Return the resource that jobs may share by memory, with the memory of each instance."""
    found = ((each.name, each.shared_bytes) for each in countables if each.shared_bytes is not None)
    return next(found, None)


def names_with_nodes(countables: Countables) -> frozenset[str]:
    """Return the resources whose instances have device nodes, or may have them."""
    return frozenset(each.name for each in countables if each.name == GPU or each.devices)


def device_warnings(countables: Countables) -> Iterator[str]:
    """Yield a sentence for each named node that is not there."""
    for each in countables:
        for number, paths in enumerate(each.devices):
            for path in paths:
                try:
                    node_at(path)
                except (OSError, ValueError) as error:
                    why = error.strerror if isinstance(error, OSError) else "it is no device node"
                    yield f"gres.{each.name}.devices: {each.name} {number}: {path}: {why}"


def gpu_warnings(countables: Countables, gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield a sentence if the list of GPUs is not true of this machine. Nothing is said of a list
    where no GPU is found: its numbers may stand for something else."""
    for each in countables:
        if each.name != GPU or each.devices:
            continue
        known = {name for gpu in gpus for name in (gpu.name, gpu.uuid)}
        missing = [name for name in each.instances if name not in known]
        for gpu in gpus:
            if gpu.fault and (each.is_auto or {gpu.name, gpu.uuid}.intersection(each.instances)):
                yield f"gres.{GPU}: GPU {gpu.name}: {gpu.fault}"
        for gpu in gpus:
            if gpu.uuid is not None and {gpu.name, gpu.uuid}.issubset(each.instances):
                yield (
                    f"gres.{GPU}: {gpu.uuid} is GPU {gpu.name}, which is in the list, too: no job "
                    "that is given it starts"
                )
        if each.is_auto and not automatic(gpus):
            yield f"gres.{GPU}: {AUTO!r} finds no GPU here; drfd gpus says what was looked at"
        elif gpus and missing:
            yield (
                f"gres.{GPU}: the machine has no GPU {missing[0]}, so no job that is given it "
                "starts; drfd gpus lists those it has"
            )


def read_gres(table: TomlTable) -> Countables:
    """Read the table, sorted by name. Raises ConfigError."""
    found = []
    for name in sorted(table.names()):
        if not _NAME.fullmatch(name):
            hint = "use small letters, digits and _, beginning with a letter"
            table.fail(repr(name), "is not a name for a resource", hint=hint)
        if name in Axes().names:
            table.fail(name, "is a resource already", hint="choose another name")
        if table.is_table(name):
            found.append(_read_table(name, table.table(name)))
        else:
            found.append(_listed(table, name, name))
    _refuse_one_device_twice(table, found)
    return tuple(found)


def _refuse_one_device_twice(table: TomlTable, countables: Sequence[CountableResource]) -> None:
    """Raise ConfigError if two instances are one device, by one path or by two: a job that is given
    one of them could not be kept from the other."""
    owners: dict[DeviceNode | str, tuple[str, int, str]] = {}
    for each in countables:
        for number, paths in enumerate(each.devices):
            for path in paths:
                device = _device(path)
                name, other, first = owners.setdefault(device, (each.name, number, path))
                if (name, other) != (each.name, number):
                    table.fail(
                        f"{each.name}.devices",
                        f"{path} is {each.name} {number} and, as {first}, {name} {other}",
                        hint="a device can be one instance only",
                    )


def _device(path: str) -> DeviceNode | str:
    """Return the device at a path, or what the path leads to while no device is there."""
    try:
        return node_at(path)
    except (OSError, ValueError):
        return os.path.realpath(path)


def _read_table(name: str, table: TomlTable) -> CountableResource:
    devices: tuple[tuple[str, ...], ...] = table.take("devices", _read_devices, ())
    keys = set(table.names())
    if "devices" in keys and "instances" in keys:
        table.fail("instances", "is there beside devices", hint="each device is an instance")
    if not keys.intersection(("devices", "instances")):
        hint = 'instances = [0, 1], or devices = ["/dev/…"]'
        table.fail("instances" if name == GPU else "devices", "is missing", hint=f"write {hint}")
    hide = table.take("hide", _read_hide, LISTED)
    if hide == ALL and (name != GPU or devices):
        table.fail("hide", "is for GPUs that drfd finds", hint="list each device under devices")
    shared_bytes = _read_shared(name, table, has_devices=bool(devices))
    if "devices" in keys:
        numbers = tuple(map(str, range(len(devices))))
        return CountableResource(name=name, instances=numbers, devices=devices)
    listed = _listed(table, "instances", name)
    return replace(listed, hides_all=hide == ALL, shared_bytes=shared_bytes)


def _read_devices(value: object) -> tuple[tuple[str, ...], ...]:
    """Return the paths of each instance: an element is one, or a list of them. Raises Refused."""
    if not isinstance(value, list) or not value:
        raise wrong(value, "a list of device nodes", '["/dev/xdma0", "/dev/xdma1"]')
    return tuple(_read_nodes(each) for each in value)


def _read_nodes(value: object) -> tuple[str, ...]:
    paths = value if isinstance(value, list) else [value]
    if not paths:
        raise wrong(value, "a device node", '"/dev/xdma0"')
    return tuple(map(_read_node, paths))


def _read_node(value: object) -> str:
    path = read_path(value)
    if is_basic(path):
        raise Refused(
            "config",
            f"{path} is a device that every process needs: hidden from other jobs, it would keep "
            "them from starting",
            hint="list the device's own node",
        )
    return path


def _read_shared(name: str, table: TomlTable, *, has_devices: bool) -> int | None:
    """Return the memory of each instance if the table lets several jobs share one."""
    share = table.take("share", read_flag, False)
    memory_bytes: int | None = table.take("memory", parse_size, None)
    if not share:
        if memory_bytes is not None:
            table.fail("memory", "is for GPUs that jobs share", hint="write share = true beside it")
        return None
    if name != GPU or has_devices:
        table.fail("share", "is for GPUs that drfd finds; of no other is the memory measured")
    if memory_bytes is None:
        hint = 'write that of the smallest GPU: memory = "24G"'
        table.fail("memory", "is missing beside share = true", hint=hint)
    return memory_bytes


def _listed(table: TomlTable, key: str, name: str) -> CountableResource:
    instances: tuple[str, ...] | None = table.take(key, partial(_read_instances, name), None)
    if instances is None:
        return CountableResource(name=name, is_auto=True)
    twice = {each for each in instances if instances.count(each) > 1}
    if twice:
        table.fail(key, f"{min(twice)!r} is in the list twice")
    return CountableResource(name=name, instances=instances)


def _read_instances(name: str, value: object) -> tuple[str, ...] | None:
    """Return the names of the list, or None for "auto"."""
    if value == AUTO:
        if name != GPU:
            raise Refused(
                "config", f"{AUTO!r} finds GPUs, which are called {GPU}",
                hint='name the devices: devices = ["/dev/…"] in a table of its own',
            )  # fmt: skip
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_WRITTEN:
        numbers = ", ".join(map(str, range(value)))
        raise Refused(
            "config", f"{value} is a number, and each instance has a number or name of its own",
            hint=f"write {name} = [{numbers}]",
        )  # fmt: skip
    if not isinstance(value, list):
        raise wrong(value, "a list of numbers or names", "[0, 1]")
    return tuple(map(_read_instance, value))


def _read_instance(value: object) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not is_number and not (isinstance(value, str) and _INSTANCE.fullmatch(value)):
        raise wrong(value, "a number from 0 up, nor a name of letters, digits and .:/+-_", "0")
    return str(value)
