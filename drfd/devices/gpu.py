"""One GPU, or one MIG slice of a GPU, as a value; and the errors for one that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass, replace

from drfd.common.errors import HostError
from drfd.linux.device_nodes import DeviceNode

#: The countable resource whose instances are the GPUs of the machine.
GPU = "gpu"
NVIDIA, AMD = "nvidia", "amd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a job can be given: a whole GPU, or one slice of a GPU that MIG divides."""

    #: The number of the GPU on this machine ("0"), followed by the ids of GPU instance and compute
    #: instance for a slice ("0:3:0").
    name: str
    #: NVIDIA or AMD.
    vendor: str
    #: As the driver says it, or "" if it does not.
    model: str = ""
    #: What the vendor's runtime accepts as a name, such as "GPU-5d5ba0d6-…", or None if the driver
    #: does not say it. The kernel does not know the UUID of a slice itself, so a slice has the name
    #: that is composed of the GPU's and its ids: "MIG-GPU-5d5ba0d6-…/3/0".
    uuid: str | None = None
    #: PCI address, such as "0000:01:00.0".
    pci: str
    #: The memory node whose CPUs are nearest, or None where the kernel does not know one.
    numa_node: int | None = None
    #: Every node that must be open for this instance and that not all GPUs share.
    nodes: frozenset[DeviceNode] = frozenset()
    #: Is it part of the processor?
    is_integrated: bool = False
    #: Names of the GPUs with a direct link to this one, as far as the kernel knows links.
    links: frozenset[str] = frozenset()
    #: Position among the vendor's GPUs in the order in which its runtime counts them. Slices have
    #: that of their GPU.
    rank: int = 0
    #: Why it cannot be used, naming the file that says so, or "" if it can.
    fault: str = ""


class GpuFault(Exception):
    """A file of the kernel says something about a GPU with which the GPU cannot be used."""


class GpuLost(HostError):
    """A GPU that was asked for by name is not there, or cannot be used."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__("gpu-lost", f"GPU {name}: {why}", hint="drfd gpus shows all GPUs")
        self.name = name


def faulty(gpu: Gpu, error: OSError | GpuFault) -> Gpu:
    """Return the GPU with this error as its fault, and the nodes that are known all the same: they
    must be hidden from jobs, because the GPU may work again later."""
    if isinstance(error, OSError):
        return replace(gpu, fault=f"{error.filename}: {error.strerror}")
    return replace(gpu, fault=str(error))
