"""The devices that take the limits for a path, and the measured speed of a disk."""

import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drfd.common.errors import HostError
from drfd.host import disks
from drfd.host.disks import NEEDED_BYTES, Disk, Location, Speed, disk_of, locate, measure

#: A system with plain, encrypted and mirrored disks, btrfs on two of them, and much without.
MOUNTINFO = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw
23 21 0:24 / /tmp rw shared:3 - tmpfs tmpfs rw
24 21 253:1 / /home rw shared:4 - xfs /dev/mapper/vg-home rw
25 21 0:40 /@data /data rw shared:5 - btrfs /dev/sdb1 rw,subvol=/@data
26 21 0:41 / /net rw shared:6 - nfs4 server:/export rw
27 21 0:42 / /var/lib/box/merged rw - overlay overlay rw,lowerdir=/a
28 21 9:0 / /raid rw - vfat /dev/md0 rw
29 21 0:43 / /pool rw - zfs pool/home rw
30 21 0:44 / /odd\\040one rw - fuse.sshfs me@there: rw
31 24 8:17 / /home/other rw - ext4 /dev/sdb1 rw
"""

#: What the kernel lists: place in the device tree → number.
DEVICES = {
    "pci0/sda": "8:0",
    "pci0/sda/sda1": "8:1",
    "pci0/sdb": "8:16",
    "pci0/sdb/sdb1": "8:17",
    "pci0/sdc": "8:32",
    "virtual/dm-1": "253:1",
    "virtual/md0": "9:0",
}


@pytest.fixture
def sysfs(tmp_path) -> Path:
    """/sys as the kernel lays it out: links into a device tree."""
    block = tmp_path / "dev/block"
    block.mkdir(parents=True)
    for name, number in DEVICES.items():
        place = tmp_path / "devices" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "dev").write_text(f"{number}\n")
        (block / number).symlink_to(f"../../devices/{name}")
    for name in ("sda/sda1", "sdb/sdb1"):
        (tmp_path / "devices/pci0" / name / "partition").write_text("1\n")
    return tmp_path


def member(sysfs: Path, filesystem: str, *names: str) -> None:
    """The kernel knows a btrfs over these."""
    devices = sysfs / "fs/btrfs" / filesystem / "devices"
    devices.mkdir(parents=True)
    for name in names:
        (devices / os.path.basename(name)).symlink_to(sysfs / "devices" / name)


@pytest.fixture
def find(sysfs, monkeypatch) -> Callable[..., Location]:
    """`locate` on that system; `on`: the number that the kernel gives for the path."""

    def find(path: str, on: str, sources: dict[str, str] | None = None) -> Location:
        def stat(asked: str) -> SimpleNamespace:
            if asked == path:
                return SimpleNamespace(st_dev=device(on))
            if asked not in (sources or {}):
                raise FileNotFoundError(2, "No such file or directory", asked)
            return SimpleNamespace(st_rdev=device((sources or {})[asked]))

        fake = SimpleNamespace(
            stat=stat,
            major=os.major,
            minor=os.minor,
            makedev=os.makedev,
            path=SimpleNamespace(realpath=lambda path: path, basename=os.path.basename),
        )
        monkeypatch.setattr(disks, "os", fake)
        return locate(path, MOUNTINFO, str(sysfs))

    return find


def device(number: str) -> int:
    major, minor = number.split(":")
    return os.makedev(int(major), int(minor))


@pytest.mark.parametrize(
    ("path", "on", "found"),
    [
        pytest.param("/srv", "8:1", Location(("8:0",), "ext4"), id="a partition's disk"),
        pytest.param("/srv", "8:0", Location(("8:0",), "ext4"), id="a whole disk"),
        pytest.param("/home/a", "253:1", Location(("253:1",), "xfs"), id="a logical volume"),
        pytest.param("/raid", "9:0", Location(("9:0",), "vfat"), id="a mirror"),
        pytest.param("/home/other/x", "8:17", Location(("8:16",), "ext4"), id="a mount further in"),
        pytest.param("/homestead", "8:1", Location(("8:0",), "ext4"), id="a name that begins so"),
    ],
)
def test_limits_go_to_the_device_of_the_file_system_or_the_disk_of_a_partition(
    find, path, on, found
):
    """The kernel refuses limits on partitions; devices made of others take them themselves."""
    assert find(path, on) == found


def test_btrfs_is_found_by_what_is_mounted(find, sysfs):
    """Its files have a device number of their own, which no disk has."""
    device = {"/dev/sdb1": "8:17"}
    assert find("/data/x", "0:55", device) == Location(("8:16",), "btrfs")
    # As in a container.
    why = "/data/x is on /dev/sdb1, which cannot be seen here"
    assert find("/data/x", "0:55") == Location((), "btrfs", why)
    # Over several disks it has them all.
    member(sysfs, "1111", "pci0/sda/sda1")
    member(sysfs, "2222", "pci0/sdc", "pci0/sdb/sdb1")
    assert find("/data/x", "0:55", device) == Location(("8:16", "8:32"), "btrfs")


@pytest.mark.parametrize(
    ("name", "place", "number"),
    [("sdb1", "pci0/sdb/sdb1", "8:16"), ("dm-1", "virtual/dm-1", "253:1")],
)
def test_btrfs_is_found_where_dev_has_no_disks(find, sysfs, name, place, number):
    """As under systemd with PrivateDevices=yes; also on a mapped device."""
    (sysfs / "class/block").mkdir(parents=True)
    (sysfs / f"class/block/{name}").symlink_to(sysfs / "devices" / place)
    (sysfs / "devices/virtual/dm-1/dm").mkdir()
    (sysfs / "devices/virtual/dm-1/dm/name").write_text("sdb1\n")
    assert find("/data/x", "0:55") == Location((number,), "btrfs")


@pytest.mark.parametrize(
    ("path", "filesystem", "why"),
    [
        ("/tmp/x", "tmpfs", "in memory"),
        ("/net/x", "nfs4", "on another machine"),
        ("/var/lib/box/merged/x", "overlay", "laid over others; name a path on the disk itself"),
        ("/pool", "zfs", "does its own I/O, which the kernel attributes to nobody"),
        ("/odd one/x", "fuse.sshfs", "on no block device of its own"),
    ],
)
def test_a_path_on_no_block_device_has_none_and_the_reason(find, path, filesystem, why):
    assert find(path, "0:42") == Location(
        (), filesystem, f"{path} is on {filesystem}, which is {why}"
    )


def test_a_path_that_the_kernel_does_not_list_or_that_does_not_exist_has_no_device(tmp_path, find):
    path = str(tmp_path / "nowhere")
    assert locate(path) == Location((), "", f"{path}: No such file or directory")
    why = "/srv is on device 9:7, which the kernel does not list"
    assert find("/srv", "9:7") == Location((), "ext4", why)


def test_the_real_kernel_gives_devices_or_a_reason():
    found = locate("/")
    assert (found.devices == ()) == bool(found.why_none)
    assert found.filesystem


@pytest.mark.parametrize(
    ("filesystem", "attributes"),
    [("ext4", True), ("ext3", True), ("xfs", True), ("btrfs", True), ("f2fs", True),
     ("vfat", False), ("ntfs3", False), ("", False)],
)  # fmt: skip
def test_the_writers_of_buffered_data_are_known_on_some_file_systems(filesystem, attributes):
    disk = Disk(
        name="d", path="/", read_bps=1, write_bps=1, devices=("8:0",), filesystem=filesystem
    )
    assert disk.attributes_writes is attributes


# -- of which disk a path is -------------------------------------------------------------------


def managed(name: str, path: str, *devices: str) -> Disk:
    return Disk(name=name, path=path, read_bps=1, write_bps=1, devices=devices)


MANAGED = (
    managed("home", "/home", "253:1"),
    managed("root", "/", "8:0"),
    managed("sub", "/data", "8:16"),
    managed("net", "/net"),
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        pytest.param("/home/alice/x", "home", id="its own mount"),
        pytest.param("/srv/x", "root", id="the root's"),
        pytest.param("/data/deep/below", "sub", id="a btrfs subvolume"),
        pytest.param("/home/other/x", "sub", id="another mount on the same disk"),
        pytest.param("/net/x", "net", id="a disk that cannot be limited"),
        pytest.param("/tmp/x", None, id="memory"),
        pytest.param("/raid/x", None, id="a disk that is not managed"),
        pytest.param("/pool/x", None, id="a file system without a device"),
    ],
)
def test_a_path_is_on_the_disk_of_its_mount(sysfs, path, name):
    """None of these paths exists here: nothing of a user's is looked at."""
    found = disk_of(path, MANAGED, MOUNTINFO, str(sysfs))
    assert (found and found.name) == name


@pytest.fixture
def short(monkeypatch):
    """Less of everything: these tests are not about the figures."""
    for name, value in (("_LEAST_BYTES", 16 << 20), ("_MOST_BYTES", 32 << 20), ("_LEAST_S", 0.01)):
        monkeypatch.setattr(disks, name, value)


@pytest.fixture
def roomy(tmp_path) -> Path:
    system = os.statvfs(tmp_path)
    if system.f_bavail * system.f_frsize < NEEDED_BYTES:
        pytest.skip("the tests' own disk is nearly full")
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_it_is_told_in_bytes_per_second_and_nothing_is_left(roomy):
    begin_s = time.monotonic()
    found = measure(roomy)
    passed_s = time.monotonic() - begin_s
    # 16 MiB at least, each way, within the time that all of it took.
    assert found.read_bps > (16 << 20) / passed_s / 2
    assert found.write_bps > (16 << 20) / passed_s / 2
    assert list(roomy.iterdir()) == []


@pytest.mark.usefixtures("short")
def test_where_all_files_have_names_it_has_none_at_once(roomy, monkeypatch):
    # What kernels do without the flag: they open the directory itself, and may not write it.
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    seen: list[list[Path]] = []
    measured = disks._measure

    def look(fd: int, size: int) -> Speed:
        seen.append(list(roomy.iterdir()))
        return measured(fd, size)

    monkeypatch.setattr(disks, "_measure", look)
    assert measure(roomy).write_bps > 0
    assert seen == [[]]


@pytest.mark.usefixtures("short")
def test_where_direct_io_is_refused_it_is_measured_without_and_said(roomy, monkeypatch):
    control = fcntl.fcntl

    def refuse(fd: int, command: int, flags: int = 0) -> Any:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return control(fd, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    found = measure(roomy)
    assert not found.is_direct
    assert found.read_bps > 0


def test_without_room_or_directory_it_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    with pytest.raises(HostError) as error:
        measure(tmp_path / "none")
    assert error.value.text == f"{tmp_path}/none cannot be measured: No such file or directory"
    blocks = NEEDED_BYTES // 4096 - 1
    small = SimpleNamespace(f_bavail=blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    with pytest.raises(HostError) as error:
        measure(tmp_path)
    assert error.value.text == f"{tmp_path}: 512M is free, and measuring takes 512M"
    assert "--path" in error.value.hint
