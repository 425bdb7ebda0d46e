"""Files of the kernel that are written, by plain system calls (`drfd.linux.kernel_files`).

A file that vanishes meanwhile is no error, because the cgroup of a job may go at any time.
"""

from __future__ import annotations

import errno
import os
from types import TracebackType

from cgroupspy.controllers import Controller

from drfd.linux.kernel_files import get

#: Errors of a file that has vanished; ENODEV if it did so between open and read, or write.
VANISHED = (errno.ENOENT, errno.ENODEV)


class unless_gone:
    """Leave the block silently if its file has vanished, or for one of the given errors."""

    def __init__(self, *also: int) -> None:
        self._passed_over = (*VANISHED, *also)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return isinstance(error, OSError) and error.errno in self._passed_over


def put(path: str, text: str) -> None:
    """Write a text in one call. Raises OSError, which names the file."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)


class _Directory:
    """What a controller of cgroupspy asks of its node. A `Node` works out far more."""

    def __init__(self, path: str) -> None:
        self.full_path = path.encode()


class Plain(Controller):  # type: ignore[misc]  # cgroupspy has no types
    """A controller of cgroupspy that reads and writes by plain calls."""

    def __init__(self, directory: str) -> None:
        super().__init__(_Directory(directory))
        self.directory = directory

    def get_property(self, filename: bytes) -> str:
        return get(self._path(filename)).strip()

    def set_property(self, filename: bytes, value: object) -> None:
        put(self._path(filename), str(value))

    def path_of(self, name: str) -> str:
        """Return the path of the file behind an attribute."""
        return self._path(self.get_interface(name).filename)

    def _path(self, filename: bytes) -> str:
        return f"{self.directory}/{filename.decode()}"
