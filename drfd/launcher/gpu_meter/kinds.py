"""The kinds of GPUs that are measured, and which of them the machine has: all that the launcher
itself must know of them."""

from __future__ import annotations

import os
from pathlib import Path

from drfd.linux.kernel_files import word_in

#: Kinds of drivers: NVIDIA's own, and those of the kernel's DRM (AMD and Intel).
NVIDIA, DRM = "nvidia", "drm"
#: Seconds between two lines of a process that measures.
PERIOD_S = 2.0
#: Largest number of bytes of a line. Where it would be longer, it has fewer processes.
MAX_LINE_BYTES = 256 << 10
AMD, INTEL = "0x1002", "0x8086"
#: There while NVIDIA's driver is loaded.
_DRIVER = "/proc/driver/nvidia/version"
#: Where Intel's GPUs that are part of the processor are; what they use is the machine's memory.
_IN_PROCESSOR = "0000:00:"


def is_present(kind: str) -> bool:
    return os.path.exists(_DRIVER) if kind == NVIDIA else any(drm_gpus(Path("/")))


def drm_gpus(root: Path) -> dict[str, tuple[str, Path]]:
    """Return PCI address → vendor and sysfs directory of each GPU with a render node and, as far as
    can be told at once, memory of its own."""
    found: dict[str, tuple[str, Path]] = {}
    for node in sorted(root.glob("sys/class/drm/renderD*")):
        device = node / "device"
        vendor = word_in(f"{device}/vendor")
        for line in word_in(f"{device}/uevent").splitlines():
            name, _, pci = line.partition("=")
            if name != "PCI_SLOT_NAME" or vendor not in (AMD, INTEL):
                continue
            if vendor != INTEL or not pci.startswith(_IN_PROCESSOR):
                found[pci] = vendor, device
    return found
