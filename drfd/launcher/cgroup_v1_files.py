"""The files of a cgroup v1, as cgroupspy's descriptors with two file names mended.

In cgroupspy 0.2.3 a trailing space makes the write throttles unusable.
"""

from __future__ import annotations

import errno
import os

from cgroupspy.contenttypes import DeviceThrottle
from cgroupspy.controllers import BlkIOController, CpuController, MemoryController
from cgroupspy.interfaces import BaseFileInterface, TypedFile

from drfd.launcher.confinement import LimitFailed
from drfd.launcher.files import Plain


class _Throttle(TypedFile):  # type: ignore[misc]  # cgroupspy has no types
    """Lines of "major:minor bytes_per_second"."""

    def __init__(self, filename: str) -> None:
        super().__init__(filename, contenttype=DeviceThrottle, many=True)


class BlockIO(Plain, BlkIOController):  # type: ignore[misc]
    read_bps = _Throttle("blkio.throttle.read_bps_device")
    write_bps = _Throttle("blkio.throttle.write_bps_device")


class Cpu(Plain, CpuController):  # type: ignore[misc]
    pass


class Memory(Plain, MemoryController):  # type: ignore[misc]
    pass


class Pids(Plain):
    #: A number, or "max".
    max = BaseFileInterface("pids.max")


class Freezer(Plain):
    state = BaseFileInterface("freezer.state")


def verify(what: str, wanted: object, there: object) -> None:
    if wanted != there:
        raise LimitFailed(f"{what} was set to {wanted} and reads {there}")


def explain(error: OSError) -> str:
    # A refused write has no file name: closing is when it is noticed.
    name = os.fsdecode(error.filename) if error.filename else "a cgroup's limit"
    if error.errno == errno.ENOSPC:
        return f"{name}: the kernel has no room for another cgroup (65535 memory cgroups at most)"
    return f"{name}: {error.strerror}"
