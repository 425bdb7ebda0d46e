"""Variables that tell a job which of the machine's countable things are its own.

They are told, not enforced: what a program does not look at, it may use all the same.

    DRF_GRES_GPU           "0,1", for each resource that the job asked for
    CUDA_VISIBLE_DEVICES   for a resource called gpu: the same, read by CUDA and by what follows it
    HIP_VISIBLE_DEVICES    the same for AMD's HIP
    CUDA_DEVICE_ORDER      PCI_BUS_ID, so that numbers mean what nvidia-smi shows and what they mean
                           to other jobs: CUDA by itself counts the fastest device first

Where GPUs are given out, a job that asked for none is shown none: -1 is no device to both, while an
empty HIP_VISIBLE_DEVICES counts as unset. ROCR_VISIBLE_DEVICES and GPU_DEVICE_ORDINAL, which also
number the devices anew below HIP's own list, are taken out: two lists that are both meant for the
whole machine would leave nothing (AMD, "GPU isolation techniques").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from drfd.core.resources import Instances

_GPU = "gpu"
_PREFIX = "DRF_GRES_"
_LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_BELOW = ("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_NONE = "-1"


def without_devices(env: Mapping[str, str], gres: Collection[str]) -> dict[str, str]:
    """The submitter's variables, without what may speak of devices of others. `gres`: what this
    machine gives out."""
    foreign = _BELOW if _GPU in gres else ()
    return {
        name: value
        for name, value in env.items()
        if name not in foreign and not name.startswith(_PREFIX)
    }


def device_variables(instances: Instances, gres: Collection[str]) -> dict[str, str]:
    """They win over the submitter's."""
    lists = {name: ",".join(each) for name, each in instances}
    found = {f"{_PREFIX}{name.upper()}": text for name, text in lists.items()}
    if _GPU in gres:
        found |= dict.fromkeys(_LISTS, lists.get(_GPU, _NONE))
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return found
