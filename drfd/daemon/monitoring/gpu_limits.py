"""How the memory that jobs declare on each GPU is kept: by the kernel, by readings, or not at all,
and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from drfd.common.units import show_size
from drfd.core.decisions.outcome import GPU_READINGS
from drfd.daemon.monitoring.gpu_use import MeasuredGpu
from drfd.daemon.monitoring.meter import GPUS_STALE_S, PERIOD_S
from drfd.devices.gpus import GPU

#: The way of a GPU of which the kernel limits the memory of each cgroup.
KERNEL = "kernel (dmem)"
#: The way of a GPU of which the driver tells how much memory each process has.
MEASURED = f"measured every {PERIOD_S:.0f} s, job stopped after {GPU_READINGS} readings above"


class Keeping(NamedTuple):
    """How the declared memory of one GPU is kept."""

    #: Why it is not kept, or "".
    why_not: str = ""
    by_kernel: bool = False

    @property
    def text(self) -> str:
        if self.by_kernel:
            return KERNEL
        return f"not kept: {self.why_not}" if self.why_not else MEASURED


def keepings(
    names: Iterable[str],
    gpus: Sequence[MeasuredGpu],
    why: Mapping[str, str],
    by_kernel: Collection[str] = (),
) -> dict[str, Keeping]:
    """Return how it is kept on each of the GPUs with these names. `why` says by driver why nothing
    is measured, as `GpuUse` does; `by_kernel` are the GPUs whose memory the kernel limits."""
    by_name = {name: gpu for gpu in gpus for name in gpu.names}
    silent = "; ".join(each for _, each in sorted(why.items()))
    silent = silent or f"nothing has been read of it in the last {GPUS_STALE_S:.0f} s"

    def keeping(name: str) -> Keeping:
        if name in by_kernel:
            return Keeping(by_kernel=True)
        return Keeping(_why_not(by_name[name]) if name in by_name else silent)

    return {name: keeping(name) for name in names}


def _why_not(gpu: MeasuredGpu) -> str:
    if gpu.reading.is_lost:
        return "its driver says that it is lost"
    if gpu.users is None:
        return "its driver does not say which processes use it"
    if any(each.memory is None for users in gpu.users.values() for each in users):
        return "its driver does not say how much memory each process has"
    return ""


def keepings_text(found: Mapping[str, Keeping]) -> str:
    """Return the ways of all GPUs in a sentence, which names them where they differ."""
    names: dict[str, list[str]] = {}
    for name, each in found.items():
        names.setdefault(each.text, []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{','.join(some)} {text}" for text, some in names.items())


def shared_text(size: int, sizes: Mapping[str, int | None]) -> str:
    """Return that jobs share GPUs by their declared memory, of which each GPU has `size` bytes to
    give; and which GPUs have less, as far as their sizes are known."""
    small = [
        f"{name} has {show_size(each)}" for name, each in sizes.items() if each and each < size
    ]
    beside = f", but {' and '.join(small)}: lower gres.{GPU}.memory" if small else ""
    return f"jobs share each GPU's {show_size(size)}{beside}"


def unkept_text(found: Mapping[str, Keeping]) -> str | None:
    """Return what a job's owner should know of GPUs on which its declared memory is not kept, or
    None if it is kept on all."""
    bad = {name: each for name, each in found.items() if each.why_not}
    if not bad:
        return None
    where = "" if len(bad) == len(found) else f" on GPU {','.join(bad)}"
    reasons = dict.fromkeys(each.why_not for each in bad.values())
    return f"not watched{where}: {'; '.join(reasons)}"
