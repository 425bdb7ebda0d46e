"""Files of the kernel, with plain calls: Python's own files cost a multiple of what these do."""

from __future__ import annotations

import os


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


class Plain:
    """A controller of cgroupspy that reads and writes so."""

    def get_property(self, filename: bytes) -> str:
        return get(self._path(filename)).strip()

    def set_property(self, filename: bytes, value: object) -> None:
        put(self._path(filename), str(value))

    def _path(self, filename: bytes) -> str:
        return os.fsdecode(self.filepath(filename))  # type: ignore[attr-defined]
