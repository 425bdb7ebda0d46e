"""What a node of Slurm's has, beside what drfd's table of it gives out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from drfd.common.units import is_number
from drfd.slurm.settings import NOTHING, Difference, words_of

#: Asks slurmctld for all nodes, with those of partitions that are hidden.
SHOW_NODES = ("scontrol", "show", "node", "--all", "--oneliner")
_MEBI = 1 << 20
#: A count in a Gres, which may have a unit, and what follows it: the sockets that it belongs to.
_COUNT = re.compile(r"(\d{1,15})([KMGT]?)(?:\(.*)?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOut:
    """What drfd gives out of a node, as the table [nodes.NAME] of its configuration says."""

    name: str
    cores: int
    memory_bytes: int
    gres: tuple[tuple[str, int], ...] = ()
    #: The partition that jobs are submitted to; None for Slurm's default.
    partition: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShown:
    """What Slurm gives out of a node."""

    cpus: int
    memory_bytes: int
    #: How many of the CPUs it gives out together, as the hardware threads of one core.
    threads: int = 1
    #: Its countable resources; None if they are not known.
    gres: Mapping[str, int] | None = None
    #: The partitions that it is in; None if they are not known.
    partitions: frozenset[str] | None = None


def read_nodes(text: str) -> dict[str, NodeShown]:
    """Read the answer to `SHOW_NODES`."""
    found = {}
    for line in text.splitlines():
        # Free text may follow, as the reason of a state, but comes last.
        said: dict[str, str] = {}
        for word in line.split(" "):
            name, is_value, value = word.partition("=")
            if is_value:
                said.setdefault(name, value)
        cpus, mebi = (_number(said.get(name)) for name in ("CPUTot", "RealMemory"))
        if "NodeName" not in said or cpus is None or mebi is None:
            continue
        cores = (_number(said.get("Sockets")) or 0) * (_number(said.get("CoresPerSocket")) or 0)
        # Some of both may be kept for Slurm's own processes.
        usable, kept_mebi = _number(said.get("CPUEfctv")), _number(said.get("MemSpecLimit"))
        found[said["NodeName"]] = NodeShown(
            cpus=cpus if usable is None else usable,
            memory_bytes=(mebi - (kept_mebi or 0)) * _MEBI,
            threads=max(1, cpus // cores) if cores else 1,
            gres=read_gres(said.get("Gres", "")),
            partitions=frozenset(filter(None, said.get("Partitions", "").split(","))),
        )
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and is_number(text) else None


def read_gres(text: str) -> dict[str, int]:
    """Read the resources of a node: of "gpu:a100:2(S:0-1),gpu:v100:1,nic" these are 3 gpu and 1
    nic."""
    found: dict[str, int] = {}
    # The sockets of one may be a list, too.
    for each in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *rest = each.strip().split(":")
        count = _COUNT.fullmatch(rest[-1]) if rest else None
        amount = 1 if count is None else int(count[1]) * _UNITS[count[2].upper()]
        if name not in NOTHING:
            found[name] = found.get(name, 0) + amount
    return found


def node_differences(given_out: GivenOut, shown: NodeShown) -> Iterator[Difference]:
    """Yield of what drfd gives out more than Slurm does on the node."""
    name, table = given_out.name, f"[nodes.{given_out.name}]"
    if given_out.cores > shown.cpus:
        yield Difference(
            f"CPUs of node {name}",
            str(shown.cpus),
            f"at least {given_out.cores}",
            f"drfd gives out more than there is: lower cores in {table}, or mend slurm.conf",
        )
    if given_out.memory_bytes > shown.memory_bytes:
        yield Difference(
            f"RealMemory of node {name}",
            f"{shown.memory_bytes // _MEBI}M",
            f"at least {-(-given_out.memory_bytes // _MEBI)}M",
            f"drfd gives out more than there is: lower memory in {table}, or mend slurm.conf",
        )
    for resource, count in given_out.gres if shown.gres is not None else ():
        assert shown.gres is not None
        if count > shown.gres.get(resource, 0):
            yield Difference(
                f"Gres {resource} of node {name}",
                str(shown.gres.get(resource, 0)),
                f"at least {count}",
                f"drfd gives out more than there is: lower gres.{resource} in {table}, or mend "
                "Gres in slurm.conf, with gres.conf on the node",
            )
    partition = given_out.partition
    if shown.partitions is not None and not (
        shown.partitions if partition is None else partition in shown.partitions
    ):
        yield Difference(
            f"Partitions of node {name}",
            ",".join(sorted(shown.partitions)) or "not set",
            "any" if partition is None else f"with {partition}",
            "Slurm refuses jobs for it: mend partition in the table [slurm], or PartitionName in "
            "slurm.conf",
        )
    # Jobs with no more CPUs than there are cores find room, whatever each has.
    if shown.threads > 1 and given_out.cores > shown.cpus // shown.threads:
        yield Difference(
            f"ThreadsPerCore of node {name}",
            str(shown.threads),
            f"CPUs={shown.cpus} without sockets, cores and threads in slurm.conf, or cores = "
            f"{shown.cpus // shown.threads} in {table}",
            "Slurm gives all threads of a core to one job, so that jobs wait in Slurm",
        )


def all_node_differences(
    all_given_out: Iterable[GivenOut], shown: Mapping[str, NodeShown], gres_types: str
) -> Iterator[Difference]:
    """Yield how Slurm's nodes differ from drfd's tables. `gres_types` is what Slurm shows as the
    setting GresTypes."""
    nodes = list(all_given_out)
    for resource in sorted({resource for node in nodes for resource, _ in node.gres}):
        if resource not in words_of(gres_types):
            tables = [f"[nodes.{node.name}]" for node in nodes if resource in dict(node.gres)]
            yield Difference(
                "GresTypes",
                gres_types if gres_types not in NOTHING else "not set",
                f"with {resource}",
                f"{' and '.join(tables)} {'has' if len(tables) == 1 else 'have'} {resource}, and "
                "Slurm refuses jobs with a Gres that it does not know",
            )
    for node in nodes:
        if node.name in shown:
            yield from node_differences(node, shown[node.name])
        else:
            yield Difference(
                f"node {node.name}",
                "not known to Slurm",
                f"a line NodeName={node.name} in slurm.conf",
                f"nothing starts there: add it, or remove [nodes.{node.name}]",
            )
