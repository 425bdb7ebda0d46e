"""Graphics devices that no job can use as a GPU, because they have another driver or none yet."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

from drfd.devices import intel, nvidia
from drfd.devices.gpu import AMD, INTEL, NVIDIA, Gpu
from drfd.devices.kernel_files import GRAPHICS_MAJOR, driver, entries, number, read_text
from drfd.devices.nodes import CHARACTER, DeviceNode

#: Vendors by their numbers on a PCI bus, and the driver with which programs can compute.
_VENDORS = {
    "0x10de": (NVIDIA, "nvidia"),
    "0x1002": (AMD, "amdgpu, with KFD"),
    "0x8086": (INTEL, "i915 or xe"),
}
#: The PCI class of display controllers, in the highest byte.
_DISPLAY = "0x03"
#: That of processing accelerators, which AMD's GPUs without a screen are.
_ACCELERATOR = "0x12"
#: Names of graphics nodes with the lowest minor number of each kind (drm_drv.c of Linux).
_KINDS = (("card", 0), ("renderD", 128))


class Display(NamedTuple):
    """A graphics device of a vendor of GPUs."""

    pci: str
    vendor: str
    #: The driver that it has, or "" if it has none.
    driver: str
    #: The drivers with which it would be a GPU.
    wanted: str


def other_displays(found: Collection[str], root: Path = Path("/")) -> tuple[Display, ...]:
    """Return the graphics devices of the vendors whose GPUs drfd finds, by PCI address, without
    those that were found at these addresses. What cannot be read is left out."""
    above = f"{str(root).rstrip('/')}/sys/bus/pci/devices"
    displays = []
    for address in sorted(entries(above)):
        device = f"{above}/{address}"
        try:
            vendor = read_text(f"{device}/vendor").strip()
            is_display = read_text(f"{device}/class").startswith(_DISPLAY)
        except OSError:
            continue
        if is_display and vendor in _VENDORS and address not in found:
            displays.append(
                Display(address, _VENDORS[vendor][0], driver(device), _VENDORS[vendor][1])
            )
    return tuple(displays)


class UndrivenGpus:
    """GPUs of the machine below `root` that no driver has been bound to yet. No kernel file says
    which nodes they will have, and a job that runs could open these once there are some."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = str(root).rstrip("/")
        #: The links to all PCI devices, by their names and inodes, as they were when they were
        #: read, and the vendors of the GPUs among them. They are too many to be read each time.
        self._links: frozenset[tuple[str, int]] = frozenset()
        self._vendors: dict[str, str] = {}

    def addresses(self, gpus: Iterable[Gpu]) -> tuple[str, ...]:
        """Return their PCI addresses, without those of GPUs that can be used. Raises OSError if a
        file of the kernel cannot be read."""
        usable = {gpu.pci for gpu in gpus if not gpu.fault}
        return tuple(
            address
            for address in self._found()
            if address not in usable and not driver(f"{self._root}/sys/bus/pci/devices/{address}")
        )

    def nodes(self, gpus: Collection[Gpu]) -> frozenset[DeviceNode]:
        """Return the nodes that they can get: each driver takes the lowest minor numbers that are
        free. Raises OSError if a file of the kernel cannot be read."""
        addresses = self.addresses(gpus)
        if not addresses:
            return frozenset()
        above = f"{self._root}/sys/class/drm"
        # A node of the firmware's screen leaves its number to that of the GPU behind it.
        used = {name for name in entries(above) if intel.address(f"{above}/{name}")}
        found: set[tuple[int, int]] = set()
        for kind, first in _KINDS:
            free = (minor for minor in count(first) if f"{kind}{minor}" not in used)
            found.update((GRAPHICS_MAJOR, minor) for minor in islice(free, len(addresses)))
        if any(self._vendors[address] == NVIDIA for address in addresses):
            of_nvidia = list(self._vendors.values()).count(NVIDIA)
            found.update((nvidia.MAJOR, minor) for minor in range(of_nvidia))
        taken = {node for gpu in gpus if not gpu.fault for node in gpu.nodes}
        return frozenset(DeviceNode(CHARACTER, *numbers) for numbers in found) - taken

    def _found(self) -> dict[str, str]:
        """Return the PCI addresses and vendors of all GPUs that are no part of the processor."""
        above = f"{self._root}/sys/bus/pci/devices"
        try:
            with os.scandir(above) as devices:
                links = frozenset((device.name, device.inode()) for device in devices)
        except FileNotFoundError:
            return {}
        if links != self._links:
            vendors = {}
            for address, _ in sorted(links):
                try:
                    vendor = read_text(f"{above}/{address}/vendor").strip()
                    kind = read_text(f"{above}/{address}/class")
                except FileNotFoundError:
                    continue
                is_gpu = vendor in _VENDORS and kind.startswith((_DISPLAY, _ACCELERATOR))
                if is_gpu and not (vendor == "0x8086" and address.startswith("0000:00:")):
                    vendors[address] = _VENDORS[vendor][0]
            self._links, self._vendors = links, vendors
        return self._vendors


def unclaimed_nodes(gpus: Iterable[Gpu], root: Path = Path("/")) -> frozenset[DeviceNode]:
    """Return the graphics nodes that are of none of these GPUs: among them are those of a GPU whose
    own cannot be read. Raises OSError if they cannot be listed."""
    minors = (
        number(name.removeprefix(kind))
        for name in entries(f"{str(root).rstrip('/')}/sys/class/drm")
        for kind, _ in _KINDS
        if name.startswith(kind)
    )
    found = {DeviceNode(CHARACTER, GRAPHICS_MAJOR, each) for each in minors if each is not None}
    return frozenset(found).difference(*(gpu.nodes for gpu in gpus))
