"""Graphics devices that no job can use as a GPU, because they have another driver or none yet."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from drfd.devices.gpu import AMD, INTEL, NVIDIA
from drfd.devices.kernel_files import driver, entries
from drfd.linux.kernel_files import word_in

#: Vendors by their numbers on a PCI bus, and the driver with which programs can compute.
_VENDORS = {
    "0x10de": (NVIDIA, "nvidia"),
    "0x1002": (AMD, "amdgpu, with KFD"),
    "0x8086": (INTEL, "i915 or xe"),
}
#: The PCI class of display controllers, in the highest byte.
_DISPLAY = "0x03"


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
        vendor = word_in(f"{device}/vendor")
        is_display = word_in(f"{device}/class").startswith(_DISPLAY)
        if is_display and vendor in _VENDORS and address not in found:
            displays.append(
                Display(address, _VENDORS[vendor][0], driver(device), _VENDORS[vendor][1])
            )
    return tuple(displays)
