"""What it costs to hide devices from an attempt: its cgroups made and removed, with and without.

Numbers that no device here has stand for those of GPUs: the kernel does not look them up. Where
cgroup v2 is mounted beside version 1, without the controllers that limit jobs, its way is measured
on directories alone.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from drfd.devices.nodes import CHARACTER, DeviceNode
from drfd.launcher.confinement.cgroup_files import find_unified
from drfd.launcher.confinement.detect import choose
from drfd.launcher.confinement.device_hiding import HiddenByBpf
from drfd.launcher.confinement.interface import Devices
from drfd.launcher.protocol import AttemptLimits
from tests.bench.figures import Chosen, Figure
from tests.bench.place import Place

#: Nodes of a GPU: its own, that for rendering and that of the card.
_OF_A_GPU = 3
#: GPUs that are hidden: one of two, and all but one of eight.
_HIDDEN_GPUS = (1, 7)
#: Microseconds that hiding may add to a launch.
_MOST_US = 300
_ROUNDS = 100
_LIMITS = AttemptLimits(cores_milli=1000, memory_bytes=64 << 20, pids=64)

#: Makes and removes an attempt's place with these devices hidden.
Make = Callable[[int, Devices], None]


def devices(place: Place, chosen: Chosen) -> Iterator[Figure]:
    """An attempt's cgroups with their limits, and directories of version 2 alone."""
    mountinfo = Path("/proc/self/mountinfo").read_text()
    group = f"drfd-bench-{os.getpid()}/devices"
    confinement = choose(group, None, mountinfo)
    how, why = confinement.hiding()
    try:
        if how == "none":
            print(f"({why})", flush=True)
            return

        def make(number: int, given: Devices) -> None:
            confinement.create((number, 1), _LIMITS, given)
            confinement.remove((number, 1))

        yield from _compare(f"attempt's cgroups, {how}", make, chosen)
    finally:
        confinement.close()
        for mount in {*confinement.mounts().values(), "/sys/fs/cgroup/devices"}:
            with suppress(OSError):
                os.rmdir(f"{mount}/{os.path.dirname(group)}")
    unified = find_unified(mountinfo)
    if how != "bpf" and unified is not None:
        yield from _by_bpf_alone(unified, chosen)


def _by_bpf_alone(unified: str, chosen: Chosen) -> Iterator[Figure]:
    group = f"drfd-bench-{os.getpid()}"
    os.mkdir(f"{unified}/{group}")
    by_bpf = HiddenByBpf(unified, group)

    def make(number: int, given: Devices) -> None:
        directory = f"{unified}/{group}/job-{number}-1"
        os.mkdir(directory)
        if given.hidden:
            by_bpf.hide(directory, given.hidden)
        os.rmdir(directory)

    try:
        yield from _compare("a directory, bpf", make, chosen)
    finally:
        os.rmdir(f"{unified}/{group}")


def _compare(what: str, make: Make, chosen: Chosen) -> Iterator[Figure]:
    variants = [Devices(hidden=_nodes(gpus)) for gpus in (0, *_HIDDEN_GPUS)]
    found: list[list[float]] = [[] for _ in variants]
    numbers = count(1)
    for _ in range(_ROUNDS * chosen.runs):
        # They take turns, so that whatever else the machine does slows all.
        for given, times in zip(variants, found, strict=True):
            begin_s = time.perf_counter()
            make(next(numbers), given)
            times.append((time.perf_counter() - begin_s) * 1e6)
    bare, *hiding = map(statistics.median, found)
    for gpus, value in zip(_HIDDEN_GPUS, hiding, strict=True):
        nodes = gpus * _OF_A_GPU
        yield Figure(
            what=f"{what}, {nodes} nodes (+{value - bare:.0f} µs)", value=value, unit="µs",
            baseline=bare, baseline_what="none hidden",
            aim=f"+{_MOST_US} µs", is_met=value - bare <= _MOST_US,
        )  # fmt: skip


def _nodes(gpus: int) -> frozenset[DeviceNode]:
    first = {DeviceNode(CHARACTER, 195, number) for number in range(gpus)}
    drawing = {DeviceNode(CHARACTER, 226, at + number) for at in (0, 128) for number in range(gpus)}
    return frozenset(first | drawing)
