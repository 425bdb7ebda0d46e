"""The GPUs of this machine, looked up again and again without a change of their numbers.

A GPU that vanishes, or a driver that is not loaded for a while, would give its number to the next
GPU, which may be another job's. Numbers are therefore remembered by PCI address until the machine
is started again, also by a later controller (`roster_file`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from drfd.devices.amd import UNPLACED
from drfd.devices.gpus import Gpu, find_gpus
from drfd.devices.nvidia import Memory
from drfd.devices.roster_file import RosterFile, numbers_of

#: PCI address, and the ids of a slice, which outlast a driver.
_Identity = tuple[str, str]


class Roster:
    """GPUs that have been seen, as they were when they were looked up last. What `file` has is
    known from the start, and it is kept up to date."""

    def __init__(self, root: Path = Path("/"), file: RosterFile | None = None) -> None:
        self._root = root
        self._file = file
        self._known = () if file is None else file.read()
        #: What the file has.
        self._written = self._known
        self._memory: Memory = {}

    def look_up(self) -> tuple[Gpu, ...]:
        """Return all GPUs as they are now, without links, and those that have gone. One that has
        gone, cannot be used, or has been replaced by another, has a `fault`, and its nodes of
        before too. Raises HostError as `find_gpus` does."""
        found = find_gpus(
            self._root, with_links=False, memory=self._memory, numbers=numbers_of(self._known)
        )
        now = {_identity(gpu): gpu for gpu in found if not gpu.pci.startswith(UNPLACED)}
        before = [_as_now(gpu, now) for gpu in self._known]
        seen = {_identity(gpu) for gpu in before}
        self._known = (*before, *(gpu for place, gpu in now.items() if place not in seen))
        self._keep()
        return (*self._known, *(gpu for gpu in found if gpu.pci.startswith(UNPLACED)))

    @property
    def known(self) -> tuple[Gpu, ...]:
        """All GPUs as they were when they could be looked up last."""
        return self._known

    def _keep(self) -> None:
        lasting = tuple(replace(gpu, fault="") for gpu in self._known)
        if self._file is None or lasting == self._written:
            return
        # Where there is no room, it is tried again at the next look.
        with suppress(OSError):
            self._file.write(lasting)
            self._written = lasting


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
        fault = f"there is another GPU at {before.pci} now: {same.uuid}"
        return replace(before, fault=fault, nodes=before.nodes | same.nodes)
    if same.fault:
        return replace(before, fault=same.fault, nodes=before.nodes | same.nodes)
    # A driver that has just been loaded does not say the UUID before the GPU has been used.
    return replace(same, uuid=same.uuid or before.uuid)
