"""The cpuset files of job cgroups, on either version of cgroups; what is set is read back.

A job is pinned if its memory is: on version 2, if it has memory nodes of its own; on version 1,
where every cpuset must have some, if its memory moves along when they change. So the kernel alone
remembers it. Kernel documents: cgroup-v1/cpusets.rst, cgroup-v2.rst.
"""

from __future__ import annotations

import os
from pathlib import Path

from cgroupspy.controllers import Controller
from cgroupspy.interfaces import CommaDashSetFile, FlagFile
from cgroupspy.nodes import Node

from drfd.launcher.attempts import Key, cgroup_key, cgroup_name
from drfd.launcher.confinement import LimitFailed
from drfd.launcher.files import Plain
from drfd.launcher.placement import Cpus
from drfd.launcher.vanishing import VANISHED, unless_gone


class _V1(Plain):
    cpus = CommaDashSetFile("cpuset.cpus")
    mems = CommaDashSetFile("cpuset.mems")
    effective_cpus = CommaDashSetFile("cpuset.effective_cpus", readonly=True)
    effective_mems = CommaDashSetFile("cpuset.effective_mems", readonly=True)
    memory_migrate = FlagFile("cpuset.memory_migrate")


class _V2(Plain):
    cpus = CommaDashSetFile("cpuset.cpus")
    mems = CommaDashSetFile("cpuset.mems")
    effective_cpus = CommaDashSetFile("cpuset.cpus.effective", readonly=True)
    effective_mems = CommaDashSetFile("cpuset.mems.effective", readonly=True)


class Cpusets:
    """Those of the jobs below one parent."""

    def __init__(self, parent: str, *, is_v1: bool) -> None:
        self._parent = parent
        self._is_v1 = is_v1

    def cpus(self) -> Cpus:
        """What jobs may run on."""
        return frozenset(self._at(self._parent).effective_cpus)

    def memory_nodes(self) -> frozenset[int]:
        return frozenset(self._at(self._parent).effective_mems)

    def jobs(self) -> list[Key]:
        """Jobs that have a cpuset; on version 1, those of an older drfd may have none."""
        try:
            names = os.listdir(self._parent)
        except FileNotFoundError:
            return []
        return sorted(key for name in names if (key := cgroup_key(name)) is not None)

    def pinned(self, key: Key) -> Cpus | None:
        """The CPUs of a pinned job; None of another."""
        own = self._at(self._directory(key))
        with unless_gone():
            is_pinned = own.memory_migrate if self._is_v1 else own.mems
            return frozenset(own.cpus) if is_pinned else None
        return None

    def pin(self, key: Key, cpus: Cpus, nodes: frozenset[int]) -> None:
        """Raises LimitFailed."""
        own = self._at(self._directory(key))
        self._set(own, "cpus", cpus)
        if self._is_v1:
            # Before the nodes: what the job has already is to follow them.
            self._set(own, "memory_migrate", True)
        self._set(own, "mems", nodes)

    def share(self, key: Key, cpus: Cpus) -> None:
        """Raises LimitFailed, and FileNotFoundError for one that has vanished."""
        own = self._at(self._directory(key))
        if own.effective_cpus != cpus:
            self._set(own, "cpus", cpus)
        if self._is_v1 and own.memory_migrate:
            self._set(own, "memory_migrate", False)
        # On version 2 it has none of its own, and uses those of its parent.
        nodes = self.memory_nodes() if self._is_v1 else frozenset[int]()
        if own.mems != nodes:
            self._set(own, "mems", nodes)

    def _set(self, own: Controller, name: str, value: object) -> None:
        path = os.fsdecode(own.filepath(own.get_interface(name).filename))
        try:
            setattr(own, name, value)
        except OSError as error:
            if error.errno in VANISHED:
                raise FileNotFoundError(error.errno, error.strerror, path) from None
            raise LimitFailed(f"{path}: {error.strerror}") from error
        there = getattr(own, name)
        if there != value:
            raise LimitFailed(f"{path} was set to {value} and reads {there}")

    def _directory(self, key: Key) -> str:
        return f"{self._parent}/{cgroup_name(key)}"

    def _at(self, directory: str) -> Controller:
        return (_V1 if self._is_v1 else _V2)(Node(directory))


def open_v1(mount: str, group: str) -> None:
    """Let the group use all that its parent may: on version 1 a new cpuset is empty, and takes no
    process. Raises OSError."""
    parent = _V1(Node(mount))
    for part in Path(group).parts:
        own = _V1(Node(os.path.join(parent.node.full_path.decode(), part)))
        for name in ("cpus", "mems"):
            if getattr(own, name) != getattr(parent, f"effective_{name}"):
                setattr(own, name, getattr(parent, f"effective_{name}"))
        parent = own
