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
#: Nodes that programs take for granted; without some of them no process can even be started.
_BASIC_PATHS = ("null", "zero", "random", "urandom", "tty", "console", "ptmx", "pts")
#: Those without which a job cannot be started, by their numbers: null, random, urandom, tty,
#: console, ptmx (Documentation/admin-guide/devices.txt of Linux).
_BASIC_NUMBERS = ((1, 3), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2))
#: The major numbers of terminals in /dev/pts (same file).
_FIRST_TERMINAL, _LAST_TERMINAL = 136, 143


class DeviceNode(NamedTuple):
    """A device as the kernel's device controllers name it."""

    #: CHARACTER or BLOCK.
    kind: str
    major: int
    minor: int


def node_at(path: str | PathLike[str]) -> DeviceNode:
    """Return the device whose node, or a link to it, is at `path`. Raises OSError if nothing can be
    seen there, and ValueError if it is no device."""
    found = os.stat(path)
    if stat.S_ISCHR(found.st_mode):
        kind = CHARACTER
    elif stat.S_ISBLK(found.st_mode):
        kind = BLOCK
    else:
        raise ValueError(f"{os.fspath(path)} is no device node")
    return DeviceNode(kind, os.major(found.st_rdev), os.minor(found.st_rdev))


def is_basic(path: str) -> bool:
    """Return whether all processes need the device at `path`, so that it can be hidden from none.

    /dev/full is not among them, nor a node of another name with the numbers of /dev/zero."""
    place = os.path.realpath(path)
    if any(place == f"/dev/{name}" for name in _BASIC_PATHS) or place.startswith("/dev/pts/"):
        return True
    try:
        kind, major, minor = node_at(path)
    except (OSError, ValueError):
        return False
    is_terminal = _FIRST_TERMINAL <= major <= _LAST_TERMINAL
    return kind == CHARACTER and (is_terminal or (major, minor) in _BASIC_NUMBERS)


def show_node(node: DeviceNode) -> str:
    """Return the node in the form of the kernel's devices controller, such as "c 195:0"."""
    return f"{node.kind} {node.major}:{node.minor}"
