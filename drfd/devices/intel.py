"""GPUs of Intel, from the graphics devices in /sys: render nodes whose driver is i915 or xe.

Intel's runtimes use a GPU through its render node alone, and know no UUID that the kernel has too.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace

from drfd.devices.gpu import INTEL, Gpu, GpuFault, faulty
from drfd.devices.kernel_files import driver, entries, graphics_nodes, numa_node
from drfd.linux.kernel_files import get_record

_DRIVERS = ("i915", "xe")


def find(root: str, elsewhere: Collection[str]) -> list[tuple[Gpu, ...]]:
    """Return each GPU of the machine whose files are below `root`, by PCI address, each alone in a
    tuple. `elsewhere` are the PCI addresses of other vendors' GPUs, which need not be looked at.
    Raises OSError if the list of graphics devices cannot be read."""
    above = f"{root}/sys/class/drm"
    names = [name for name in entries(above) if name.startswith("renderD")]
    addresses = {address(f"{above}/{name}") for name in names} - {""} - set(elsewhere)
    found: list[tuple[Gpu, ...]] = []
    for pci in sorted(addresses, key=lambda pci: (len(pci), pci)):
        device = f"{root}/sys/bus/pci/devices/{pci}"
        if driver(device) not in _DRIVERS:
            continue
        # Intel's integrated GPUs are at 00:02 (Linux, drivers/gpu/drm/i915: "IGD at 00:02.0").
        gpu = Gpu(
            name="",
            vendor=INTEL,
            pci=pci,
            numa_node=numa_node(device),
            is_integrated=pci.startswith("0000:00:"),
            rank=len(found),
        )
        try:
            kind = get_record(f"{device}/device").strip().removeprefix("0x")
            gpu = replace(gpu, model=f"Intel 8086:{kind}", nodes=graphics_nodes(device))
        except (OSError, GpuFault) as error:
            gpu = faulty(gpu, error)
        found.append((gpu,))
    return found


def address(path: str) -> str:
    """Return the PCI address that a link in /sys/class/drm leads through, or "" if it leads to a
    device that is not on a PCI bus."""
    try:
        parts = os.readlink(path).split("/")
    except OSError:
        return ""
    is_pci = len(parts) >= 3 and parts[-2] == "drm" and parts[-3].count(":") == 2
    return parts[-3] if is_pci else ""
