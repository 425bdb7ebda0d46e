"""The files of a cgroup v2, as descriptors; a limit that is set is read back.

cgroupspy's descriptors carry over, its tree and its file types of 0.2.3 do not: they know version 1
alone, and stumble over "max" and over nested keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from cgroupspy.interfaces import BaseFileInterface, DictFile, FlagFile
from cgroupspy.nodes import Node

from drfd.launcher.confinement import LimitFailed
from drfd.launcher.files import Plain


class _Amount(BaseFileInterface):  # type: ignore[misc]  # cgroupspy has no types
    """A number; None is the kernel's "max", no limit."""

    def sanitize_get(self, value: str) -> int | None:
        return None if value == "max" else int(value)


class _Quota(BaseFileInterface):  # type: ignore[misc]
    """(quota, period) in microseconds; no quota is None."""

    def sanitize_get(self, value: str) -> tuple[int | None, int]:
        quota, period = value.split()
        return None if quota == "max" else int(quota), int(period)

    def sanitize_set(self, value: tuple[int, int]) -> str:
        return f"{value[0]} {value[1]}"


class _Throttle(BaseFileInterface):  # type: ignore[misc]
    """Lines of "major:minor rbps=1000 wbps=max …": read as device → its rates that are limited,
    written one device at a time."""

    def sanitize_get(self, value: str) -> dict[str, dict[str, int]]:
        found = {}
        for line in value.splitlines():
            device, *pairs = line.split()
            rates = (pair.split("=", 1) for pair in pairs)
            found[device] = {name: int(rate) for name, rate in rates if rate != "max"}
        return found

    def sanitize_set(self, value: tuple[str, Mapping[str, int]]) -> str:
        device, rates = value
        return " ".join([device, *(f"{name}={rate}" for name, rate in rates.items())])


class JobCgroup(Plain):
    events = DictFile("cgroup.events", readonly=True)
    freeze = FlagFile("cgroup.freeze")
    kill = FlagFile("cgroup.kill", writeonly=True)
    cpu_max = _Quota("cpu.max")
    cpu_weight = _Amount("cpu.weight")
    memory_max = _Amount("memory.max")
    swap_max = _Amount("memory.swap.max")
    oom_group = FlagFile("memory.oom.group")
    memory_events = DictFile("memory.events", readonly=True)
    own_memory_events = DictFile("memory.events.local", readonly=True)
    pids_max = _Amount("pids.max")
    io_max = _Throttle("io.max")

    @classmethod
    def at(cls, directory: str) -> JobCgroup:
        return cls(Node(directory))

    def limit(self, name: str, value: object) -> None:
        """Set a limit and read it back. Raises LimitFailed, which names the file."""
        self._write(name, value)
        self._verify(name, value, getattr(self, name))

    def limit_disk(self, device: str, rates: Mapping[str, int]) -> None:
        """The same for io.max, which has the limits of all disks: bytes per second by key."""
        self._write("io_max", (device, rates))
        self._verify("io_max", rates, self.io_max.get(device))

    def _write(self, name: str, value: object) -> None:
        try:
            setattr(self, name, value)
        except OSError as error:
            # The kernel forbids to make files here, which says nothing of why there is none.
            there = os.path.exists(self._file(name))
            why = error.strerror if there else "the kernel offers no such file here"
            raise LimitFailed(f"{self._file(name)}: {why}") from error

    def _verify(self, name: str, wanted: object, there: object) -> None:
        if wanted != there:
            raise LimitFailed(f"{self._file(name)} was set to {wanted} and reads {there}")

    def _file(self, name: str) -> str:
        return self._path(self.get_interface(name).filename)
