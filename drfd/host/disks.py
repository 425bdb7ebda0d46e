"""Disks: the devices that take I/O limits for a path, and how fast a disk is.

The device is found from a path by its mount, the device of the file system, and the whole disk if
that is a partition: partitions take no limits. A device made of others (LVM, LUKS, md) takes them
itself.

Speed is measured by sequential direct writes, and then reads, of a file without a name: no other
process sees it, and nothing is left behind, however the measurement ends.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from drfd.common.errors import HostError
from drfd.common.units import show_size
from drfd.core.model.resources import Resources
from drfd.linux.kernel_files import Mount, get, mounts, word_in

#: Size of one write or read. Large, because the kernel splits it into many requests, and a disk
#: reaches its full speed only with many at a time.
_BLOCK_BYTES = 8 << 20
#: Least number of bytes written, more than a disk's cache, and maximum size of the file.
_LEAST_BYTES = 256 << 20
_MOST_BYTES = 1 << 30
#: Shortest and longest time of writing and of reading, in seconds.
_LEAST_S, _MOST_S = 2.0, 10.0
#: Free bytes that a measurement needs; half of them stay free.
NEEDED_BYTES = 2 * _LEAST_BYTES
#: Errors of file systems without O_TMPFILE (open(2)).
_NO_UNNAMED_FILES = (errno.EISDIR, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Measured speed of a disk that serves one process."""

    read_bps: int
    write_bps: int
    #: Whether it was measured without the page cache.
    is_direct: bool


def measure(directory: Path) -> Speed:
    """Measure the disk of a directory, in four to twenty seconds. Raises HostError."""
    try:
        system = os.statvfs(directory)
        free_bytes = system.f_bavail * system.f_frsize
        if free_bytes < NEEDED_BYTES:
            raise HostError(
                "no-room",
                f"{directory}: {show_size(free_bytes)} is free, and measuring takes "
                f"{show_size(NEEDED_BYTES)}",
                hint="make room, or name another directory on the same disk with --path",
            )
        with _unnamed_file(directory) as fd:
            size = min(_MOST_BYTES, free_bytes // 2 // _BLOCK_BYTES * _BLOCK_BYTES)
            return _measure(fd, size)
    except OSError as error:
        raise HostError(
            "calibrate",
            f"{directory} cannot be measured: {error.strerror}",
            hint="name a directory on the same disk that you may write in with --path",
        ) from None


def _measure(fd: int, size: int) -> Speed:
    is_direct = _use_direct_io(fd)
    # An anonymous map is page-aligned, as direct I/O requires. Random bytes, because some file
    # systems do not write zeros.
    with mmap.mmap(-1, _BLOCK_BYTES) as block:
        block.write(os.urandom(_BLOCK_BYTES))
        write_bps, written = _measure_rate(
            lambda at: os.pwrite(fd, block, at), size, at_the_end=lambda: os.fdatasync(fd)
        )
        if not is_direct:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        read_bps, _ = _measure_rate(lambda at: os.preadv(fd, [block], at), min(size, written))
    return Speed(read_bps=read_bps, write_bps=write_bps, is_direct=is_direct)


def _measure_rate(
    step: Callable[[int], int], size: int, *, at_the_end: Callable[[], None] | None = None
) -> tuple[int, int]:
    """Repeat steps over a file of this size. Returns bytes per second and bytes."""
    begin_s, done = time.monotonic(), 0
    while True:
        if step(done % size) != _BLOCK_BYTES:
            raise OSError(0, "the disk took or gave less than a whole block")
        done += _BLOCK_BYTES
        passed_s = time.monotonic() - begin_s
        if passed_s >= _MOST_S or (passed_s >= _LEAST_S and done >= _LEAST_BYTES):
            break
    if at_the_end is not None:
        at_the_end()
    return int(done / (time.monotonic() - begin_s)), done


def _use_direct_io(fd: int) -> bool:
    """Switch to direct I/O, if the file system supports it."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return False
    return True


@contextmanager
def _unnamed_file(directory: Path) -> Iterator[int]:
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NO_UNNAMED_FILES:
            raise
        fd, name = tempfile.mkstemp(prefix=".drfd-calibrate-", dir=directory)
        os.unlink(name)
    try:
        yield fd
    finally:
        os.close(fd)


#: Rates in bytes per second assumed until the administrator configures or measures them: those of a
#: slow disk, so that nothing is promised that the disk cannot do.
GUESS_READ_BPS, GUESS_WRITE_BPS = 200 << 20, 200 << 20

SYS_DEV_BLOCK = "/sys/dev/block"
_MOUNTINFO = "/proc/self/mountinfo"

#: File systems whose buffered writes cgroup v2 attributes to the writer (cgroup-v2.rst, Writeback).
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
    """The disks that hold a path."""

    #: "major:minor" of each disk, for limits, or empty if `why_none` gives the reason.
    devices: tuple[str, ...]
    filesystem: str
    why_none: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A managed disk."""

    name: str
    path: str
    read_bps: int
    write_bps: int
    #: As in Location; several for a file system that spans several disks.
    devices: tuple[str, ...]
    filesystem: str = ""
    is_guess: bool = False
    #: The reason for the lack of `devices`, for people.
    why_none: str = ""

    @property
    def attributes_writes(self) -> bool:
        """Whether cgroup v2 attributes buffered writes to the writer."""
        return self.filesystem in _WITH_WRITEBACK


def rates_by_device(rates: Resources, disks: Sequence[Disk]) -> dict[str, tuple[int, int]]:
    """Return read and write rates by the device that takes limits, without devices that have none.
    Rates declared by name for two disks on one device add up there; a rate for all disks does
    not."""
    found: dict[str, tuple[int, int]] = {}
    for disk in disks:
        read_bps, write_bps = rates.rates(disk.name)
        for device in disk.devices:
            more = found.get(device, (0, 0)) if rates.disks else (0, 0)
            found[device] = read_bps + more[0], write_bps + more[1]
    return {device: pair for device, pair in found.items() if any(pair)}


def locate(path: str, mountinfo: str | None = None, sys: str = "/sys") -> Location:
    """Return the disks of `path`. `mountinfo` is the text of /proc/self/mountinfo."""
    if mountinfo is None:
        mountinfo = get(_MOUNTINFO)
    try:
        number = os.stat(path).st_dev
    except OSError as error:
        return Location((), "", f"{path}: {error.strerror}")
    mount = _mount_of(os.path.realpath(path), mountinfo)
    if os.major(number) == 0 and mount.filesystem == "btrfs":
        # Each subvolume has a device number of its own, unrelated to the disk's.
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


#: Where file systems are mounted that are not for jobs.
_NOT_FOR_JOBS = ("/boot", "/efi", "/run", "/snap", "/var/snap")


def known_disks(state: Path) -> list[tuple[str, str, Location]]:
    """Return a name, a path and the place of each disk of this machine that may be for jobs: first
    that of a state directory, which need not be there, then others on which file systems are
    mounted."""
    there = next(each for each in (state, *state.parents) if each.is_dir())
    found = [("state", str(state), locate(str(there)))]
    for mount in mounts(get(_MOUNTINFO)):
        if not mount.source.startswith("/") or mount.point.startswith(_NOT_FOR_JOBS):
            continue
        location, known = locate(mount.point), {at for *_, each in found for at in each.devices}
        if known.isdisjoint(location.devices) and location.devices:
            name = name_for(Path(mount.point), {name for name, *_ in found})
            found.append((name, mount.point, location))
    return found


def name_for(path: Path, taken: Collection[str] = ()) -> str:
    """Return a name for the disk of a path that has none, other than those that are `taken`."""
    name = re.sub(r"[^\w.-]", "-", path.name, flags=re.ASCII) or "root"
    others = (f"{name}{at}" for at in count(2))
    return next(each for each in chain((name,), others) if each not in taken)


def disk_of(
    path: str, disks: Sequence[Disk], mountinfo: str | None = None, sys: str = "/sys"
) -> Disk | None:
    """Return the first of the disks that holds the path, or None if none does. The path must be
    without symbolic links. Only the table of mounts is read, since the path may lie in a directory
    of any user."""
    if mountinfo is None:
        mountinfo = get(_MOUNTINFO)
    mount = _mount_of(path, mountinfo)
    held: set[str] = set()
    if Path(sys, "dev/block", mount.device).exists():
        held = {_whole_disk(mount.device, sys)}
    for disk in disks:
        other = _mount_of(os.path.realpath(disk.path), mountinfo)
        # Subvolumes have different device numbers, and the same source.
        is_same = mount.source.startswith("/") and mount.source == other.source
        if other.point == mount.point or is_same or held.intersection(disk.devices):
            return disk
    return None


def _number_of(source: str, sys: str) -> int | None:
    """Return the number of a block device, or None if it is unknown. It is found by the file in
    /dev or, where there is none (PrivateDevices=, systemd.exec(5)), by its name in the kernel or
    the device mapper."""
    try:
        return os.stat(source).st_rdev
    except OSError:
        pass
    name = os.path.basename(source)
    blocks = Path(sys, "class/block")
    for entry in (blocks / name, *sorted(blocks.glob("dm-*"))):
        is_it = entry.name == name or word_in(f"{entry}/dm/name") == name
        number = word_in(f"{entry}/dev")
        if is_it and number:
            major, minor = map(int, number.split(":"))
            return os.makedev(major, minor)
    return None


def _whole_disk(device: str, sys: str) -> str:
    entry = Path(sys, "dev/block", device).resolve()
    if (entry / "partition").exists():
        entry = entry.parent
    return (entry / "dev").read_text().strip()


def _btrfs_members(device: str, sys: str) -> tuple[str, ...]:
    """Return all devices of the file system that this device belongs to."""
    for filesystem in sorted(Path(sys, "fs/btrfs").glob("*/devices")):
        members = tuple(sorted((each / "dev").read_text().strip() for each in filesystem.iterdir()))
        if device in members:
            return members
    return (device,)


def _mount_of(path: str, mountinfo: str) -> Mount:
    """Return the mount of a path without links: the innermost, and the latest of equal ones."""
    found = Mount("", "", "unknown", "", "0:0", [])
    for mount in mounts(mountinfo):
        inside = mount.point == "/" or f"{path}/".startswith(f"{mount.point}/")
        if inside and len(mount.point) >= len(found.point):
            found = mount
    return found
