"""The GPUs of this machine, looked up again and again without a change of their numbers.

A GPU that vanishes, or a driver that is not loaded for a while, would give its number to the next
GPU, which may be another job's. Numbers are therefore remembered by PCI address; those that nobody
remembers are taken from the machine as it is, so that they are the same as elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from drfd.devices.amd import UNPLACED
from drfd.devices.gpus import Gpu, find_gpus
from drfd.devices.nvidia import Memory

#: PCI address, and the ids of a slice, which outlast a driver.
_Identity = tuple[str, str]


class Roster:
    """GPUs that have been seen, as they were when they were looked up last."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._known: tuple[Gpu, ...] = ()
        self._memory: Memory = {}

    def look_up(self) -> tuple[Gpu, ...]:
        """Return all GPUs as they are now, without links, and those that have gone.

        One that has gone, cannot be used, or has been replaced by another, has a `fault`, and its
        nodes of before. All are numbered anew when a GPU is there that has never been seen. Raises
        HostError as `find_gpus` does.
        """
        found = find_gpus(self._root, with_links=False, memory=self._memory)
        numbers = {gpu.pci: gpu.name.partition(":")[0] for gpu in self._known}
        now = {_identity(gpu): gpu for gpu in found if not gpu.pci.startswith(UNPLACED)}
        if any(pci not in numbers for pci, _ in now):
            self._known = found
            return found
        before = [_as_now(gpu, now) for gpu in self._known]
        seen = {_identity(gpu) for gpu in before}
        slices = [
            replace(gpu, name=":".join(filter(None, (numbers[pci], ids))))
            for (pci, ids), gpu in now.items()
            if (pci, ids) not in seen
        ]
        self._known = (*before, *slices)
        return self._known


def _identity(gpu: Gpu) -> _Identity:
    return gpu.pci, gpu.name.partition(":")[2]


def _as_now(before: Gpu, now: Mapping[_Identity, Gpu]) -> Gpu:
    """Return a known GPU as it is now."""
    same = now.get(_identity(before))
    if same is None:
        is_divided_otherwise = any(pci == before.pci for pci, _ in now)
        what = "MIG divides it otherwise now" if is_divided_otherwise else "it is no longer there"
        return replace(before, fault=f"{what} ({before.vendor}, PCI address {before.pci})")
    if before.uuid and same.uuid and before.uuid != same.uuid:
        return replace(before, fault=f"there is another GPU at {before.pci} now: {same.uuid}")
    if same.fault:
        return replace(before, fault=same.fault)
    # A driver that has just been loaded does not say the UUID before the GPU has been used.
    return replace(same, name=before.name, uuid=same.uuid or before.uuid)
