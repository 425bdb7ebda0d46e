"""What files of /proc, /sys and /dev say of devices."""

from __future__ import annotations

import os
import stat
from os import PathLike

from drfd.devices.gpu import GpuFault
from drfd.linux.device_nodes import BLOCK, CHARACTER, DeviceNode
from drfd.linux.kernel_files import get_record, word_in

#: The major number of graphics nodes (Documentation/admin-guide/devices.txt of Linux).
GRAPHICS_MAJOR = 226

#: Nodes that programs take for granted; without some of them no process can even be started.
_BASIC_PATHS = ("null", "zero", "random", "urandom", "tty", "console", "ptmx", "pts")
#: Those without which a job cannot be started, by their numbers: null, random, urandom, tty,
#: console, ptmx (Documentation/admin-guide/devices.txt of Linux).
_BASIC_NUMBERS = ((1, 3), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2))
#: The major numbers of terminals in /dev/pts (same file).
_FIRST_TERMINAL, _LAST_TERMINAL = 136, 143


def entries(path: str) -> list[str]:
    """Return the names in a directory, or none if it is not there. Raises OSError if it is there
    and cannot be read."""
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def number(text: str) -> int | None:
    """Return the decimal number that the text is, or None if it is none."""
    word = text.strip()
    return int(word) if word.isascii() and word.isdigit() else None


def numa_node(device: str) -> int | None:
    """Return the memory node of the PCI device in this directory of sysfs, or None if the kernel
    does not know one."""
    return number(word_in(f"{device}/numa_node"))


def link_inode(path: str) -> int:
    """Return the number of the inode of a symbolic link, or 0 if there is none."""
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def graphics_nodes(device: str) -> frozenset[DeviceNode]:
    """Return the card nodes and render nodes of the PCI device in this directory of sysfs: none
    where its driver offers no graphics. Raises OSError and GpuFault."""
    above = f"{device}/drm"
    return frozenset(
        _node_in(f"{above}/{name}/dev")
        for name in entries(above)
        if name.startswith(("card", "renderD"))
    )


def _node_in(path: str) -> DeviceNode:
    """Return the character device that a file of sysfs names as MAJOR:MINOR."""
    major, _, minor = get_record(path).partition(":")
    numbers = number(major), number(minor)
    if numbers[0] is None or numbers[1] is None:
        raise GpuFault(f"{path} names no device")
    return DeviceNode(CHARACTER, numbers[0], numbers[1])


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
