"""The GPUs that have been seen since the machine was started, in a file of the controller's.

Their numbers must outlast the controller: jobs do, and have GPUs by number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from drfd.devices.gpu import Gpu
from drfd.linux.device_nodes import DeviceNode
from drfd.linux.kernel_files import get_record

_NAME = "gpus.json"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: What is kept of a GPU, besides its nodes. Neither links nor a fault: these are of the moment.
_FIELDS = ("name", "vendor", "model", "uuid", "pci", "numa_node", "is_integrated", "rank")
#: More than any machine's file has: a GPU takes some 300 bytes.
_MOST_BYTES = 1 << 20


class RosterFile:
    """The file in a directory, which is opened at once: later it may be out of reach. Without a
    directory nothing is remembered."""

    def __init__(self, directory: Path) -> None:
        self._directory: int | None = None
        with suppress(OSError):
            self._directory = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def read(self) -> tuple[Gpu, ...]:
        """Return the GPUs, or none if nothing was written since the machine was started."""
        if self._directory is None:
            return ()
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            file = os.open(_NAME, flags, dir_fd=self._directory)
            try:
                said = json.loads(os.read(file, _MOST_BYTES))
            finally:
                os.close(file)
            if said["boot_id"] != _boot_id():
                return ()
            gpus = tuple(_decode(each) for each in said["gpus"])
            numbers_of(gpus)
            return gpus
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return ()

    def write(self, gpus: Sequence[Gpu]) -> None:
        """Put these GPUs in place of what the file has. Raises OSError."""
        if self._directory is None:
            return
        text = json.dumps({"boot_id": _boot_id(), "gpus": [_encode(gpu) for gpu in gpus]})
        new = f"{_NAME}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(new, flags, 0o644, dir_fd=self._directory), "w") as file:
            file.write(text)
        os.rename(new, _NAME, src_dir_fd=self._directory, dst_dir_fd=self._directory)


def numbers_of(gpus: Sequence[Gpu]) -> dict[str, int]:
    """Return PCI address → number."""
    return {gpu.pci: int(gpu.name.partition(":")[0]) for gpu in gpus}


def _boot_id() -> str:
    return get_record(_BOOT_ID).strip()


def _encode(gpu: Gpu) -> dict[str, object]:
    return {name: getattr(gpu, name) for name in _FIELDS} | {"nodes": sorted(gpu.nodes)}


def _decode(said: dict[str, Any]) -> Gpu:
    """Return the GPU that `_encode` has written. Raises LookupError, TypeError, ValueError."""
    nodes = frozenset(DeviceNode(*each) for each in said["nodes"])
    return Gpu(nodes=nodes, **{name: said[name] for name in _FIELDS})
