"""The GPUs of this machine: all of them, and those that are meant by names.

Numbers count the GPUs by vendor (NVIDIA, AMD) and PCI address, from 0; only UUIDs stay the same
when a GPU is added or taken away. The minor numbers of device nodes change when a driver is loaded
again or MIG is configured anew: whoever needs nodes looks the GPUs up again each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from drfd.common.errors import HostError
from drfd.devices import amd, nvidia
from drfd.devices.gpu import GPU, Gpu, GpuLost

__all__ = ["GPU", "PLACES", "Gpu", "GpuLost", "automatic", "find_gpus", "gpus_named"]

#: What is looked at, for people.
PLACES = ("/proc/driver/nvidia/gpus", "/sys/class/kfd/kfd/topology/nodes")


def find_gpus(
    root: Path = Path("/"),
    *,
    with_links: bool = True,
    memory: nvidia.Memory | None = None,
) -> tuple[Gpu, ...]:
    """Return all GPUs of the machine whose /proc and /sys are below `root`, in the order of their
    numbers. A GPU that MIG divides is replaced by its slices.

    A GPU that cannot be used is among them with its `fault`, so that it does not change the numbers
    of others. Links are the dearest to read and may be left out. With one `memory` for all calls,
    NVIDIA's driver is asked once alone; otherwise it has some seconds to answer each time. Raises
    HostError if a driver's list of GPUs is there and cannot be read.
    """
    above = str(root).rstrip("/")
    try:
        found = nvidia.find(above, {} if memory is None else memory)
        found += amd.find(above, with_links=with_links)
    except OSError as error:
        raise HostError("gpus", f"cannot read {error.filename}: {error.strerror}") from None
    by_address = {instances[0].pci: number for number, instances in enumerate(found)}
    return tuple(
        replace(
            each,
            name=f"{by_address[each.pci]}{each.name}",
            links=frozenset(str(by_address[pci]) for pci in each.links),
        )
        for instances in found
        for each in instances
    )


def automatic(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that `gpu = "auto"` means: the usable ones, without integrated ones."""
    return tuple(gpu for gpu in gpus if not gpu.is_integrated and not gpu.fault)


def gpus_named(names: Iterable[str], gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs of these names: numbers, names of slices, or UUIDs. Raises GpuLost for one
    that is not there or cannot be used."""
    known = {name: gpu for gpu in gpus for name in (gpu.uuid, gpu.name) if name is not None}
    found = []
    for name in names:
        if name not in known:
            slices = [gpu.name for gpu in gpus if gpu.name.startswith(f"{name}:")]
            divided = f"it is divided by MIG: name its slices {', '.join(slices)}"
            raise GpuLost(name, divided if slices else "there is no such GPU on this machine")
        if known[name].fault:
            raise GpuLost(name, known[name].fault)
        found.append(known[name])
    return tuple(found)
