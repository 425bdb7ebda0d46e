"""The configuration of several machines: the tables [nodes.NAME] and [slurm].

The controller's own machine is the node with the engine "local". Its capacity is that of a single
machine; that of a node with the engine "slurm" is what its table says.
"""

from __future__ import annotations

import pwd
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from drfd.common.errors import Refused
from drfd.common.strict_table import (
    TomlTable,
    one_of,
    read_count,
    read_names,
    wrong,
)
from drfd.common.units import AXES, parse_cores
from drfd.core.model.resources import NOTHING, Axes, ClusterNode, Resources
from drfd.launcher.protocol import MAX_INSTANCES
from drfd.launcher.settings import SlurmSettings

LOCAL, SLURM = "local", "slurm"
#: A node's name, as Slurm and the launcher's protocol take it; and that of a feature, which stands
#: in lists on the command line.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FEATURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")

#: Nodes as they are configured. The local one has no capacity yet. Rates are of each disk; 0 if
#: jobs with such a rate are not to run there.
Nodes = tuple[ClusterNode, ...]


def has_slurm(nodes: Nodes) -> bool:
    """Return whether there are nodes of Slurm's, which alone gives out whole cores."""
    return any(node.whole_cores for node in nodes)


def read_nodes(table: TomlTable, shared: str | None) -> Nodes:
    """Read the table, the local node first and the others by name. Raises ConfigError. `shared` is
    the countable resource that jobs share by memory, or None."""
    found: list[ClusterNode] = []
    for name in sorted(table.names()):
        if not _NAME.fullmatch(name):
            hint = "use letters, digits, '.', - and _, beginning with a letter or digit"
            table.fail(repr(name), "is not a name for a node", hint=hint)
        below = table.table(name)
        node = below.attempt(partial(_read_node, name, below, shared), None)
        found += [] if node is None else [node]
    locals_ = [node for node in found if not node.whole_cores]
    if len(locals_) > 1:
        names = " and ".join(node.name for node in locals_)
        text = f'{names} have engine = "local"'
        table.fail(locals_[1].name, text, hint="one node alone is this machine")
    if found and not locals_ and len(found) == len(table.names()):
        hint = f'add [{table.at("NAME")}] with engine = "local"'
        table.fail(found[0].name, "no node is this machine", hint=hint)
    return tuple(sorted(found, key=lambda node: (node.whole_cores, node.name)))


def _read_node(name: str, table: TomlTable, shared: str | None) -> ClusterNode:
    engine = table.take("engine", one_of(LOCAL, SLURM), None)
    if engine is None:
        hint = 'write engine = "slurm", or engine = "local" for this machine'
        table.fail("engine", "is missing", hint=hint)
    features = frozenset(table.take("features", _read_features, ()))
    if engine == LOCAL:
        for key in table.names():
            if key not in ("engine", "features"):
                hint = "[capacity], [[disk]] and [gres] say what this machine has"
                table.fail(key, "is not set for the local node", hint=hint)
        return ClusterNode(name=name, capacity=NOTHING, features=features)
    gres = tuple(sorted(table.take("gres", _read_gres, {}).items()))
    for key, _ in gres:
        if key == shared:
            hint = f"leave out gres.{key}.share, or the {key} of this node"
            table.fail(f"gres.{key}", f"jobs share each {key}, which Slurm's nodes cannot do", hint)
    readers = {axis: row.parse for axis, row in AXES.items()} | {"cores": _read_whole_cores}
    amounts = {axis: table.take(axis, read, 0) for axis, read in readers.items()}
    for key, example in (("cores", "32"), ("memory", '"128G"')):
        if not amounts[key]:
            hint = f"write {key} = {example}: what jobs may have of the node"
            table.fail(key, "is missing", hint=hint)
    capacity = Resources(gres=gres).with_amounts(amounts)
    return ClusterNode(name=name, capacity=capacity, features=features, whole_cores=True)


def _read_whole_cores(value: object) -> int:
    """Read a number of cores. Slurm gives out whole ones."""
    return parse_cores(read_count(value))


def _read_features(value: object) -> list[str]:
    features = read_names(value)
    for each in features:
        if not _FEATURE.fullmatch(each):
            raise wrong(each, "a feature of letters, digits and . _ : + -", '["ssd", "avx512"]')
    return features


#: As in [gres].
_GRES = re.compile(r"[a-z][a-z0-9_]*")


def _read_gres(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise wrong(value, "a table of numbers", "{gpu = 2}")
    for name in value:
        if not _GRES.fullmatch(name) or name in Axes().names:
            raise Refused(
                "config",
                f"{name!r} is not a name for a countable resource",
                hint="use small letters, digits and _, beginning with a letter",
            )
    counts = {name: read_count(count) for name, count in value.items()}
    for name, count in counts.items():
        if count > MAX_INSTANCES:
            raise Refused("config", f"{count} {name} are more than the {MAX_INSTANCES} that can be")
    return counts


def refuse_useless(slurm: TomlTable, nodes: Nodes) -> None:
    """Note an error if there is a table [slurm], and no node of Slurm's."""
    if slurm.names() and not has_slurm(nodes):
        hint = 'add [nodes.NAME] with engine = "slurm", or leave this table out'
        slurm.error(slurm.at(slurm.names()[0]), "no node is Slurm's", hint)


def node_gres(nodes: Nodes) -> tuple[str, ...]:
    """Return the names of countable resources of Slurm's nodes, sorted."""
    return tuple(sorted({name for node in nodes for name, _ in node.capacity.gres}))


def with_nodes(axes: Axes, own: Resources, nodes: Nodes) -> tuple[Axes, Resources]:
    """Return axes and capacity of all nodes together, from those of the controller's machine. They
    are as they were where no nodes are configured."""
    if not nodes:
        return axes, own
    # Instances are the controller's own; a resource of other nodes alone has none here.
    others = tuple((name, ()) for name in node_gres(nodes) if name not in axes.gres)
    instances = tuple(sorted((*axes.instances, *others)))
    home, *rest = nodes
    found = (replace(home, capacity=own), *rest)
    gres = tuple(name for name, _ in instances)
    axes = replace(axes, gres=gres, instances=instances, nodes=found)
    return axes, _sum([node.capacity for node in found])


def _sum(amounts: Sequence[Resources]) -> Resources:
    """Return the sum, where each but the first has one rate for all disks."""
    counts: Counter[str] = Counter()
    for amount in amounts:
        counts.update(dict(amount.gres))
    return Resources(gres=tuple(sorted(counts.items()))).with_amounts(
        {axis: sum(each.amount(axis) for each in amounts) for axis in amounts[0].amounts}
    )


def slurm_warnings(nodes: Nodes, slurm: SlurmSettings) -> list[str]:
    """Return what the launcher of Slurm's nodes would not find on this machine."""
    if not has_slurm(nodes):
        return []
    found = []
    if not Path(slurm.programs, "sbatch").exists():
        found.append(
            f"slurm.commands: there is no sbatch in {slurm.programs}: install Slurm's client"
        )
    if slurm.conf is not None and not Path(slurm.conf).exists():
        found.append(f"slurm.config: there is no file {slurm.conf}")
    try:
        pwd.getpwnam(slurm.user)
    except KeyError:
        found.append(f"slurm.user: there is no user {slurm.user}: name Slurm's own (SlurmUser)")
    return found
