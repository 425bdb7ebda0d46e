"""What files of /proc and /sys say of devices."""

from __future__ import annotations

import os

from drfd.devices.gpu import GpuFault
from drfd.linux.device_nodes import CHARACTER, DeviceNode
from drfd.linux.kernel_files import get_record, word_in

#: The major number of graphics nodes (Documentation/admin-guide/devices.txt of Linux).
GRAPHICS_MAJOR = 226


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
