"""The line of a process that measures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drfd.common.errors import HostError
from drfd.devices.gpu import Gpu
from drfd.devices.roster import Roster
from drfd.launcher.gpu_meter.reading import (
    DRM,
    MAX_LINE_BYTES,
    NVIDIA,
    GpuReading,
    ProcessReading,
    encode,
    named,
)


def gpu(**changes: Any) -> GpuReading:
    usual: GpuReading = {
        "pci": "0000:01:00.0", "uuid": "GPU-a", "slice": None, "memory_used": 1,
        "memory_total": 2, "utilisation": 3, "is_lost": False, "processes": [],
    }  # fmt: skip
    return {**usual, **changes}  # type: ignore[typeddict-item]


def test_gpus_and_slices_have_the_names_that_the_configuration_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVML calls a slice otherwise than the kernel's files do, by which GPUs are given out."""
    found = (
        Gpu(name="0", vendor="nvidia", pci="0000:01:00.0", uuid="GPU-a"),
        Gpu(name="1:3:0", vendor="nvidia", pci="0000:02:00.0", uuid="MIG-GPU-b/3/0"),
        Gpu(name="2", vendor="amd", pci="0000:03:00.0"),
        Gpu(name="3", vendor="amd", pci="0000:0c:00.0", is_integrated=True),
    )
    monkeypatch.setattr(Roster, "look_up", lambda roster: found)
    readings = [
        gpu(),
        gpu(pci="0000:02:00.0", uuid="MIG-x", slice="3:0"),
        gpu(pci="0000:02:00.0", uuid="MIG-y", slice="4:0"),
        gpu(pci="0000:03:00.0", uuid="GPU-0123"),
        gpu(pci="0000:0c:00.0"),
    ]
    assert [(each["name"], each["uuid"]) for each in named(readings, Roster(), NVIDIA)] == [
        ("0", "GPU-a"), ("1:3:0", "MIG-GPU-b/3/0"), (None, "MIG-y"), ("2", "GPU-0123"),
    ]  # fmt: skip


def test_a_gpu_that_has_gone_is_lost_although_the_driver_does_not_list_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else jobs would be given it, and end at once."""
    found = (
        Gpu(name="0", vendor="nvidia", pci="0000:01:00.0", uuid="GPU-a", fault="it is another one"),
        Gpu(name="1", vendor="nvidia", pci="0000:02:00.0", uuid="GPU-b", fault="it has gone"),
        Gpu(name="2:1:0", vendor="nvidia", pci="0000:03:00.0", fault="MIG divides it otherwise"),
        Gpu(name="3", vendor="nvidia", pci="unknown, node 1", fault="it cannot be placed"),
        Gpu(name="4", vendor="amd", pci="0000:0c:00.0", fault="it has gone"),
    )
    monkeypatch.setattr(Roster, "look_up", lambda roster: found)
    lost = {"memory_used": None, "memory_total": None, "utilisation": None, "processes": None}
    assert named([gpu()], Roster(), NVIDIA) == [
        gpu(name="0", is_lost=True),
        gpu(name="1", pci="0000:02:00.0", uuid="GPU-b", is_lost=True, **lost),
    ]
    assert named([], Roster(), DRM) == [
        gpu(name="4", pci="0000:0c:00.0", uuid=None, is_lost=True, **lost)
    ]


def test_gpus_that_cannot_be_found_have_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(roster: Roster) -> tuple[Gpu, ...]:
        raise HostError("gpus", "cannot read")

    monkeypatch.setattr(Roster, "look_up", fail)
    assert named([gpu()], Roster(), NVIDIA) == [gpu(name=None)]


def used_by(uid: int, pids: range, cgroup: str, **changes: Any) -> list[ProcessReading]:
    usual = {"uid": uid, "cgroups": [cgroup], "memory": 1, "utilisation": 0}
    return [{"pid": pid, **usual, **changes} for pid in pids]  # type: ignore[typeddict-item]


@pytest.mark.slow
def test_a_flood_of_processes_of_one_user_leaves_out_no_other_user() -> None:
    """The flood is summed up by its jobs, and its largest processes are named."""
    flood = used_by(1001, range(1000, 9000), "/job-1-1") + used_by(1001, range(9000, 9999), "/b")
    big = used_by(1001, range(1, 2), "/job-1-1", memory=5000)
    others = used_by(1002, range(10_000, 10_050), "/job-2-1", memory=7, utilisation=3)
    line = encode([gpu(processes=flood + big + others), gpu(processes=others)])
    assert len(line) <= MAX_LINE_BYTES
    first, second = json.loads(line)["gpus"]
    assert second == gpu(processes=others)
    shown = first["processes"]
    assert [each for each in shown if each["uid"] == 1002] == others
    assert big[0] in shown
    for cgroup, memory in (("/job-1-1", 13_000), ("/b", 999)):
        own = [each["memory"] for each in shown if each["cgroups"] == [cgroup]]
        assert (sum(own), len(own) < 260) == (memory, True)


@pytest.mark.slow
def test_a_flood_of_cgroups_leaves_out_what_is_small() -> None:
    flood = [
        each for number in range(5000)
        for each in used_by(1001, range(number, number + 1), f"/{number}", memory=number)
    ]  # fmt: skip
    others = used_by(1002, range(10_000, 10_001), "/job-2-1", memory=None)
    line = encode([gpu(processes=flood + others)])
    assert len(line) <= MAX_LINE_BYTES
    shown = json.loads(line)["gpus"][0]["processes"]
    assert shown[-1:] == others
    assert [each["memory"] for each in shown[:-1]] == [*range(4999, 4999 - 256, -1)]


@pytest.mark.slow
def test_where_nothing_else_fits_the_line_leaves_out_the_processes() -> None:
    many = [each for uid in range(10_000) for each in used_by(uid, range(uid, uid + 1), "/a")]
    line = encode([gpu(processes=many), gpu(processes=[])])
    assert len(line) <= MAX_LINE_BYTES
    assert json.loads(line)["gpus"] == [gpu(processes=None)] * 2
