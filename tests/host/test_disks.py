"""Which device takes the limits for a path: always the whole disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from drfd.host import disks
from drfd.host.disks import find_device

Lies = Callable[[int, int], None]


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Lies:
    """Make the kernel say that every path is on the device major:minor."""

    def set_device(major: int, minor: int) -> None:
        fake = SimpleNamespace(
            stat=lambda path: SimpleNamespace(st_dev=os.makedev(major, minor)),
            major=os.major,
            minor=os.minor,
        )
        monkeypatch.setattr(disks, "os", fake)

    return set_device


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """sda with a partition sda1, and dm-0, as the kernel lists them: links into a device tree."""
    block = tmp_path / "dev" / "block"
    block.mkdir(parents=True)
    devices = {"pci0/sda": "8:0", "pci0/sda/sda1": "8:1", "virtual/dm-0": "253:0"}
    for name, number in devices.items():
        place = tmp_path / "devices" / name
        place.mkdir(parents=True)
        (place / "dev").write_text(f"{number}\n")
        (block / number).symlink_to(f"../../devices/{name}")
    (tmp_path / "devices/pci0/sda/sda1/partition").write_text("1\n")
    return block


@pytest.mark.parametrize(
    ("major", "minor", "device"),
    [
        pytest.param(8, 1, "8:0", id="a partition is traced to its disk"),
        pytest.param(8, 0, "8:0", id="a whole disk is itself"),
        pytest.param(253, 0, "253:0", id="a logical volume is itself"),
    ],
)
def test_the_device_is_the_whole_disk(
    on_device: Lies, sysfs: Path, major: int, minor: int, device: str
) -> None:
    on_device(major, minor)
    assert find_device("/data", str(sysfs)) == (device, "")


def test_a_path_on_no_block_device_has_none_and_the_reason(on_device: Lies, sysfs: Path) -> None:
    """Overlay, btrfs, tmpfs and NFS have an anonymous device of major 0."""
    on_device(0, 42)
    assert find_device("/data", str(sysfs)) == (
        None,
        "/data is on no block device of its own (overlay, btrfs, network or memory)",
    )


def test_a_device_that_the_kernel_does_not_list_is_none_and_named(
    on_device: Lies, sysfs: Path
) -> None:
    on_device(9, 7)
    assert find_device("/data", str(sysfs)) == (
        None,
        "/data is on device 9:7, which the kernel does not list",
    )


def test_a_path_that_does_not_exist_has_no_device(sysfs: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "nowhere")
    assert find_device(path, str(sysfs)) == (None, f"{path}: No such file or directory")


def test_the_real_kernel_gives_a_device_or_a_reason() -> None:
    device, why_none = find_device("/")
    assert (device is None) == bool(why_none)
