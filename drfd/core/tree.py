"""The tree of pools and users: names of nodes ("root.lab.alice"), and what is configured there."""

from __future__ import annotations

from dataclasses import dataclass

from drfd.core.entitlement import Shares
from drfd.core.resources import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """What the configuration says of a node. A tuple has one entry per axis."""

    #: None: 1 on every axis.
    weights: Shares | None = None
    #: The most that the node may hold, in amounts; None for an axis without limit.
    limit: tuple[int | None, ...] | None = None
    #: What it is promised while it is active, in amounts.
    guarantee: Vector | None = None


PLAIN = NodeRule()


#: The root: entitled to everything, and never compared with anybody.
TOP = "root"


def parent_of(path: str) -> str:
    """The node above. A path need not begin with the root's name to be below it."""
    return path.rpartition(".")[0] or TOP


def path_up(leaf: str) -> list[str]:
    """The leaf and the nodes above it, up to the children of the root."""
    nodes = []
    while leaf != TOP:
        nodes.append(leaf)
        leaf = parent_of(leaf)
    return nodes
