"""Paths in the tree of pools and users: "root.lab.alice"."""

from __future__ import annotations

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
