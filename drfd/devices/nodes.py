"""Device nodes: the kind and the two numbers by which the kernel knows a device.

A path is only a name: another node with the same kind and numbers opens the same device.
"""

from __future__ import annotations

import os
import stat
from os import PathLike
from typing import NamedTuple

#: Kinds of device nodes, by the letters of mknod(1).
CHARACTER, BLOCK = "c", "b"


class DeviceNode(NamedTuple):
    """A device as the kernel's device controllers name it."""

    #: CHARACTER or BLOCK.
    kind: str
    major: int
    minor: int


def node_at(path: str | PathLike[str]) -> DeviceNode:
    """Return the device whose node, or a link to it, is at `path`.

    Raises OSError if nothing can be seen there, and ValueError if it is no device.
    """
    found = os.stat(path)
    if stat.S_ISCHR(found.st_mode):
        kind = CHARACTER
    elif stat.S_ISBLK(found.st_mode):
        kind = BLOCK
    else:
        raise ValueError(f"{os.fspath(path)} is no device node")
    return DeviceNode(kind, os.major(found.st_rdev), os.minor(found.st_rdev))


def show_node(node: DeviceNode) -> str:
    """Return the node in the form of the kernel's devices controller, such as "c 195:0"."""
    return f"{node.kind} {node.major}:{node.minor}"
