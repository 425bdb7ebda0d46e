"""How fast a disk is: sequential direct writes, then reads, of a file that nobody else can see.

The file has no name, so nothing is left behind, however the measuring ends.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drfd.errors import HostError
from drfd.units import show_size

#: Large, because a disk is as fast as it can be only with many requests at a time: the kernel cuts
#: a block into these.
_BLOCK_BYTES = 8 << 20
#: More than the memory that a disk itself has, so that it cannot be read from there alone.
_LEAST_BYTES = 256 << 20
_MOST_BYTES = 1 << 30
#: Measured for so long at least, and for so long at most, however slow the disk is.
_LEAST_S, _MOST_S = 2.0, 10.0
#: So much must be free: half of it is left to others.
ROOM_BYTES = 2 * _LEAST_BYTES
#: What a file system says that has no files without a name (open(2)).
_NO_UNNAMED_FILES = (errno.EISDIR, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Bytes per second, one job at a time."""

    read_bps: int
    write_bps: int
    #: Past the page cache.
    is_direct: bool


def measure(directory: Path) -> Speed:
    """Takes between four and twenty seconds. Raises HostError, with the directory in it."""
    try:
        system = os.statvfs(directory)
        free_bytes = system.f_bavail * system.f_frsize
        if free_bytes < ROOM_BYTES:
            raise HostError(
                "no-room",
                f"{directory}: {show_size(free_bytes)} is free, and measuring takes "
                f"{show_size(ROOM_BYTES)}",
                hint="make room, or name another directory on the same disk with --path",
            )
        with _unseen_file(directory) as fd:
            size = min(_MOST_BYTES, free_bytes // 2 // _BLOCK_BYTES * _BLOCK_BYTES)
            return _measure(fd, size)
    except OSError as error:
        raise HostError(
            "calibrate",
            f"{directory} cannot be measured: {error.strerror}",
            hint="name a directory on the same disk that you may write in with --path",
        ) from None


def _measure(fd: int, size: int) -> Speed:
    is_direct = _go_direct(fd)
    # A map of its own begins at a page, as direct I/O wants it. Not zeros, which some file systems
    # do not write at all.
    with mmap.mmap(-1, _BLOCK_BYTES) as block:
        block.write(os.urandom(_BLOCK_BYTES))
        write_bps, written = _timed(
            lambda at: os.pwrite(fd, block, at), size, at_the_end=lambda: os.fdatasync(fd)
        )
        if not is_direct:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        read_bps, _ = _timed(lambda at: os.preadv(fd, [block], at), min(size, written))
    return Speed(read_bps=read_bps, write_bps=write_bps, is_direct=is_direct)


def _timed(
    step: Callable[[int], int], size: int, *, at_the_end: Callable[[], None] | None = None
) -> tuple[int, int]:
    """(bytes per second, bytes) of steps over a file of this size, again and again."""
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


def _go_direct(fd: int) -> bool:
    """Past the page cache from now on, where the file system can do that."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return False
    return True


@contextmanager
def _unseen_file(directory: Path) -> Iterator[int]:
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
