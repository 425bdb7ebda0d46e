"""Files as descriptors, closed at the end of a block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def opened(
    path: str | os.PathLike[str], flags: int, mode: int = 0o777, *, dir_fd: int | None = None
) -> Iterator[int]:
    """Open a file as `os.open` does, and close it after the block. Raises OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)
