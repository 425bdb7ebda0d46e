"""What is said to be enforced, disk by disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drfd.daemon.doctor import disk_control
from drfd.host.disks import Disk

DISK = Disk(name="data", path="/data", read_bps=1, write_bps=1, devices=("8:0",), filesystem="ext4")


def hello(read: str, write: str) -> dict[str, Any]:
    return {"kind": "x", "mounts": {}, "controls": {"cores": "x", "read": read, "write": write}}


@pytest.mark.parametrize(
    ("said", "changes", "found"),
    [
        pytest.param(("enforced", "enforced"), {}, ("enforced", "enforced"), id="all"),
        pytest.param(
            ("enforced", "enforced"),
            {"filesystem": "vfat"},
            (
                "enforced",
                "enforced: direct I/O only; the kernel does not attribute buffered writes on vfat",
            ),
            id="a file system that does not tell who wrote",
        ),
        pytest.param(
            ("enforced", "enforced: direct I/O only; v1"),
            {"filesystem": "vfat"},
            ("enforced", "enforced: direct I/O only; v1"),
            id="a kernel that does not",
        ),
        pytest.param(
            ("enforced", "enforced"),
            {"devices": (), "why_none": "/data is on tmpfs"},
            ("not controlled: /data is on tmpfs",) * 2,
            id="no disk",
        ),
        pytest.param(
            ("measured: so", "measured: so"),
            {"devices": (), "why_none": "/data is on tmpfs"},
            ("measured: so", "measured: so"),
            id="processes are measured wherever they write",
        ),
    ],
)
def test_a_disk_is_controlled_as_far_as_launcher_and_file_system_allow(
    said: tuple[str, str], changes: dict[str, Any], found: tuple[str, str]
) -> None:
    control = disk_control(replace(DISK, **changes), hello(*said))
    assert control == {"read": found[0], "write": found[1]}


def test_nothing_is_said_while_the_launcher_is_away() -> None:
    assert disk_control(DISK, {}) == {}
