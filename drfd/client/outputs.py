"""The files that jobs write their output to."""

from __future__ import annotations

import os
import stat

from drfd.common.errors import Refused


def last_bytes(path: str, most: int) -> bytes | None:
    """Return at most the last `most` bytes of a file, from the beginning of a line if one begins
    among them, or None if there is no such file. Raises Refused."""
    fd = open_file(path)
    if fd is None:
        return None
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        file.seek(max(0, size - most))
        data = file.read(most)
    if size > most:
        data = data.partition(b"\n")[2] or data
    return data


def open_file(path: str) -> int | None:
    """Return a descriptor of a regular file, or None if there is no file. Raises Refused if
    there is something else, or it cannot be read."""
    try:
        # Without O_NONBLOCK, open of a FIFO without a writer would block (fifo(7)).
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused("no-output", f"cannot read {path}: {error.strerror}") from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise Refused("no-output", f"cannot read {path}: Is a directory")
        raise Refused("no-output", f"the output went to {path}, which is no file that keeps it")
    return fd
