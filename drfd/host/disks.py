"""Which disk a path is on, where on that disk the kernel takes limits, and what it can tell of it.

From a path to its mount, from there to the device of the file system, and if that is a partition to
its disk: partitions take no limits. A device made of others (LVM, LUKS, md) takes them itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Assumed until the administrator says or measures better: a slow disk, so that nobody is promised
#: what the disk cannot give.
GUESS_READ_BPS, GUESS_WRITE_BPS = 200 << 20, 200 << 20

SYS_DEV_BLOCK = "/sys/dev/block"

#: File systems whose buffered writes cgroup v2 attributes to who wrote (cgroup-v2.rst, Writeback).
_WITH_WRITEBACK = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs")

#: Why a file system without a device of its own cannot be limited.
_ELSEWHERE = {
    "tmpfs": "in memory",
    "ramfs": "in memory",
    "overlay": "laid over others; name a path on the disk itself",
    "zfs": "does its own I/O, which the kernel attributes to nobody",
    **dict.fromkeys(
        ("nfs", "nfs4", "cifs", "smb3", "ceph", "afs", "9p", "virtiofs", "lustre"),
        "on another machine",
    ),
}


@dataclass(frozen=True, slots=True)
class Location:
    """`devices`: "major:minor" of each disk that holds the path, as the kernel takes limits on it;
    none: `why_none`."""

    devices: tuple[str, ...]
    filesystem: str
    why_none: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A managed disk. `devices` as in Location: more than one for a file system over several."""

    name: str
    path: str
    read_bps: int
    write_bps: int
    devices: tuple[str, ...]
    filesystem: str = ""
    is_guess: bool = False
    #: Why there are no `devices`, for people.
    why_none: str = ""

    @property
    def attributes_writes(self) -> bool:
        """Whether cgroup v2 knows who caused a buffered write."""
        return self.filesystem in _WITH_WRITEBACK


@dataclass(frozen=True, slots=True)
class Mount:
    point: str
    filesystem: str
    source: str
    #: "major:minor"; the major 0 stands for no device.
    device: str


def locate(path: str, mountinfo: str | None = None, sys: str = "/sys") -> Location:
    """Where the limits for `path` go. `mountinfo`: the text of /proc/self/mountinfo."""
    if mountinfo is None:
        mountinfo = _mountinfo()
    try:
        number = os.stat(path).st_dev
    except OSError as error:
        return Location((), "", f"{path}: {error.strerror}")
    mount = _mount_of(os.path.realpath(path), mountinfo)
    if os.major(number) == 0 and mount.filesystem == "btrfs":
        # Each subvolume has a number of its own, which says nothing of the disk.
        found = _number_of(mount.source, sys)
        if found is None:
            why = f"{path} is on {mount.source}, which cannot be seen here"
            return Location((), "btrfs", why)
        number = found
    if os.major(number) == 0:
        why = _ELSEWHERE.get(mount.filesystem, "on no block device of its own")
        return Location((), mount.filesystem, f"{path} is on {mount.filesystem}, which is {why}")
    device = f"{os.major(number)}:{os.minor(number)}"
    if not Path(sys, "dev/block", device).exists():
        why = f"{path} is on device {device}, which the kernel does not list"
        return Location((), mount.filesystem, why)
    members = _btrfs_members(device, sys) if mount.filesystem == "btrfs" else (device,)
    whole = dict.fromkeys(_whole_disk(member, sys) for member in members)
    return Location(tuple(whole), mount.filesystem)


def disk_of(
    path: str, disks: Sequence[Disk], mountinfo: str | None = None, sys: str = "/sys"
) -> Disk | None:
    """The first of the disks that holds the path, which must be without links; None: none does.
    Nothing but the table of mounts is looked at: the path may be anybody's."""
    if mountinfo is None:
        mountinfo = _mountinfo()
    mount = _mount_of(path, mountinfo)
    held: set[str] = set()
    if Path(sys, "dev/block", mount.device).exists():
        held = {_whole_disk(mount.device, sys)}
    for disk in disks:
        other = _mount_of(os.path.realpath(disk.path), mountinfo)
        # Subvolumes have devices of their own, and one source.
        is_same = mount.source.startswith("/") and mount.source == other.source
        if other.point == mount.point or is_same or held.intersection(disk.devices):
            return disk
    return None


def _number_of(source: str, sys: str) -> int | None:
    """Of a block device: by its file or, where /dev has none (PrivateDevices=, systemd.exec(5)), by
    the name that the kernel or the device mapper knows it by."""
    try:
        return os.stat(source).st_rdev
    except OSError:
        pass
    name = os.path.basename(source)
    blocks = Path(sys, "class/block")
    for entry in (blocks / name, *sorted(blocks.glob("dm-*"))):
        is_it = entry.name == name or _text(entry / "dm/name") == name
        number = _text(entry / "dev")
        if is_it and number is not None:
            major, minor = map(int, number.split(":"))
            return os.makedev(major, minor)
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _whole_disk(device: str, sys: str) -> str:
    entry = Path(sys, "dev/block", device).resolve()
    if (entry / "partition").exists():
        entry = entry.parent
    return (entry / "dev").read_text().strip()


def _btrfs_members(device: str, sys: str) -> tuple[str, ...]:
    """All devices of the file system that this one is of."""
    for filesystem in sorted(Path(sys, "fs/btrfs").glob("*/devices")):
        members = tuple(sorted((each / "dev").read_text().strip() for each in filesystem.iterdir()))
        if device in members:
            return members
    return (device,)


def _mountinfo() -> str:
    """Users mount, too, and their directories may be called anything."""
    return os.fsdecode(Path("/proc/self/mountinfo").read_bytes())


def _mount_of(path: str, mountinfo: str) -> Mount:
    """The mount that a path without links is on: the innermost, of those the latest."""
    found = Mount("", "unknown", "", "0:0")
    for line in mountinfo.split("\n"):
        before, _, after = line.partition(" - ")
        places, kinds = before.split(" "), after.split(" ")
        if len(places) < 5 or len(kinds) < 2:
            continue
        device, point = places[2], _unescape(places[4])
        inside = point == "/" or path == point or path.startswith(f"{point}/")
        if inside and len(point) >= len(found.point):
            found = Mount(point, kinds[0], _unescape(kinds[1]), device)
    return found


def _unescape(text: str) -> str:
    """Blanks and the like are written as \\040 in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)
