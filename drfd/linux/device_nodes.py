"""Device nodes: the kind and the two numbers by which the kernel knows a device.

A path is only a name: another node with the same kind and numbers opens the same device.
"""

from __future__ import annotations

from typing import NamedTuple

#: Kinds of device nodes, by the letters of mknod(1).
CHARACTER, BLOCK = "c", "b"


class DeviceNode(NamedTuple):
    """A device as the kernel's device controllers name it."""

    #: CHARACTER or BLOCK.
    kind: str
    major: int
    minor: int


def show_node(node: DeviceNode) -> str:
    """Return the node in the form of the kernel's devices controller, such as "c 195:0"."""
    return f"{node.kind} {node.major}:{node.minor}"
