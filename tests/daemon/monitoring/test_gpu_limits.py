"""On which GPUs declared memory is kept, and what is said of the others."""

from __future__ import annotations

import pytest

from drfd.daemon.monitoring.gpu_limits import (
    Keeping,
    keepings,
    keepings_text,
    unkept_text,
)
from drfd.daemon.monitoring.gpu_use import GpuProcess, GpuReading, MeasuredGpu

READING = GpuReading(
    name="0", pci="0000:01:00.0", uuid="GPU-a", slice=None, memory_used=1, memory_total=9,
    utilisation=1, is_lost=False, processes=[],
)  # fmt: skip
KNOWN = GpuProcess(pid=1, uid=1, cgroups=[], memory=5, utilisation=None)
UNKNOWN = GpuProcess(pid=2, uid=1, cgroups=[], memory=None, utilisation=None)
LOST = MeasuredGpu(
    GpuReading(
        name="1", pci="0000:02:00.0", uuid=None, slice=None, memory_used=None, memory_total=None,
        utilisation=None, is_lost=True, processes=None,
    ),
    None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "why_not"),
    [
        (MeasuredGpu(READING, {}), ""),
        (MeasuredGpu(READING, {(1, 1): [KNOWN], None: [KNOWN]}), ""),
        (
            MeasuredGpu(READING, {(1, 1): [KNOWN], None: [UNKNOWN]}),
            "its driver does not say how much memory each process has",
        ),
        (MeasuredGpu(READING, None), "its driver does not say which processes use it"),
    ],
)
def test_memory_is_kept_where_the_driver_tells_it_of_each_process(
    gpu: MeasuredGpu, why_not: str
) -> None:
    """By whichever of its names the configuration calls the GPU."""
    assert keepings(["0", "GPU-a"], [gpu], {}) == dict.fromkeys(["0", "GPU-a"], Keeping(why_not))


def test_what_the_kernel_limits_needs_no_reading() -> None:
    found = keepings(["0", "1"], [LOST], {}, by_kernel=["0", "GPU-a"])
    assert keepings_text(found) == "0 kernel (dmem); 1 not kept: its driver says that it is lost"
    assert unkept_text({"0": found["0"]}) is None
