"""Files of the kernel, with plain calls: Python's own files cost a multiple of what these do."""

from __future__ import annotations

import os

from cgroupspy.controllers import Controller
from cgroupspy.nodes import Node


def get(path: str) -> str:
    """All that it says. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while piece := os.read(fd, 1 << 16):
            data += piece
    finally:
        os.close(fd)
    return os.fsdecode(data)


def put(path: str, text: str) -> None:
    """Write this, at once. Raises OSError that names the file."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)


def exchange(path: str, text: str) -> str | None:
    """Write this, at once, and what the file says then; None for one that cannot be read. To open
    a file of a new cgroup costs more than all that is done with it. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC)
    except PermissionError:
        put(path, text)
        return None
    try:
        os.write(fd, text.encode())
    except OSError as error:
        error.filename = path
        raise
    else:
        return _reread(fd)
    finally:
        os.close(fd)


def _reread(fd: int) -> str | None:
    try:
        return os.fsdecode(os.pread(fd, 1 << 16, 0))
    except OSError:
        # Root may open for reading what cannot be read.
        return None


class Plain(Controller):  # type: ignore[misc]  # cgroupspy has no types
    """A controller of cgroupspy that reads and writes so. Who reads what was just set is told what
    the kernel said of it then."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._just_set: dict[bytes, str | None] = {}

    def get_property(self, filename: bytes) -> str:
        there = self._just_set.pop(filename, None)
        return (get(self._path(filename)) if there is None else there).strip()

    def set_property(self, filename: bytes, value: object) -> None:
        self._just_set[filename] = exchange(self._path(filename), str(value))

    def _path(self, filename: bytes) -> str:
        return os.fsdecode(self.filepath(filename))
