"""Environment variables that name a job's GPUs to the runtimes of the vendors.

Each runtime reads lists of its own, and by default counts only what it can open. An index therefore
changes its meaning with what the kernel hides, and an index that names nothing hides every device
after it. UUIDs do not change, and are used wherever the runtime takes them:

    CUDA_VISIBLE_DEVICES   UUIDs ("CUDA Environment Variables" in the CUDA Programming Guide), or
                           indices if the driver does not say every UUID
    CUDA_DEVICE_ORDER      PCI_BUS_ID, so that indices mean what nvidia-smi shows: CUDA by itself
                           counts the fastest device first
    ROCR_VISIBLE_DEVICES   for all programs that use ROCm: UUIDs, and an index in the order of KFD
                           for a GPU without one (ROCR-Runtime, core/runtime/amd_filter_device.cpp)
    HIP_VISIBLE_DEVICES    indices of what ROCR_VISIBLE_DEVICES leaves, as HIP applies it after that

HIP reads CUDA_VISIBLE_DEVICES if it has no list of its own (clr, rocclr/device/rocm/rocdevice.cpp).
Some programs refuse to run if these two lists differ (Ray, accelerators/amd_gpu.py), and some, also
on GPUs of NVIDIA, if ROCR_VISIBLE_DEVICES is set beside them (verl, in single_controller/base).
The two lists therefore only differ where a job sees GPUs of both vendors, and ROCR_VISIBLE_DEVICES
is only set where the kernel leaves GPUs of AMD visible that the job was not given.

The UUIDs of MIG slices are known to NVML alone. A slice that is the only instance of NVIDIA that a
job can open is index 0; any other is named by its GPU's UUID and its ids, which is the form of the
CUDA Programming Guide, and of the MIG User Guide for drivers before 470. CUDA uses one slice at
most.
"""

from __future__ import annotations

from collections.abc import Sequence

from drfd.devices.gpu import AMD, NVIDIA, Gpu

CUDA, CUDA_ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
ROCR, HIP = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
#: No device, to CUDA, HIP and ROCR. An empty list counts as unset to HIP.
_NONE = "-1"


def variables_for(given: Sequence[Gpu], visible: Sequence[Gpu]) -> dict[str, str]:
    """Return the variables of a job that was given some GPUs and can open the visible ones: all of
    the machine where the kernel hides none, and otherwise its own and those that are listed for
    nobody. The other names in this module must not be set for the job."""
    # Runtimes do not count what they cannot open.
    usable = [gpu for gpu in visible if not gpu.fault]
    by_vendor = {
        vendor: (
            [gpu for gpu in given if gpu.vendor == vendor],
            sorted((gpu for gpu in usable if gpu.vendor == vendor), key=lambda gpu: gpu.rank),
        )
        for vendor in (NVIDIA, AMD)
    }
    cuda = _cuda(*by_vendor[NVIDIA])
    rocr, hip = _rocm(*by_vendor[AMD])
    found = {CUDA: cuda or hip or _NONE, HIP: hip or cuda or _NONE, CUDA_ORDER: "PCI_BUS_ID"}
    if rocr:
        found[ROCR] = rocr
    return found


def _cuda(own: list[Gpu], seen: list[Gpu]) -> str:
    """Return CUDA's list, or "" if the job sees no GPU of NVIDIA."""
    if not own:
        return _NONE if seen else ""
    is_only_slice = len(seen) == 1 and ":" in own[0].name
    uuids = [gpu.uuid for gpu in own if gpu.uuid]
    # CUDA does not say what a list means that has both.
    has_uuids = len(uuids) == len(own) and not is_only_slice
    return ",".join(uuids) if has_uuids else _indices(own, seen)


def _rocm(own: list[Gpu], seen: list[Gpu]) -> tuple[str, str]:
    """Return the lists of ROCR and of HIP. ROCR's is "" if it need not be set, and HIP's if the job
    sees no GPU of AMD."""
    if not own:
        return (_NONE, _NONE) if seen else ("", "")
    hip = ",".join(str(index) for index in range(len(own)))
    if len(own) == len(seen):
        return "", hip
    return ",".join(gpu.uuid or _indices([gpu], seen) for gpu in own), hip


def _indices(own: list[Gpu], seen: list[Gpu]) -> str:
    names = [gpu.name for gpu in seen]
    return ",".join(str(names.index(gpu.name)) for gpu in own)
