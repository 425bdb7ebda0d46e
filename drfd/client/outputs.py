"""The files that jobs write their output to."""

from __future__ import annotations

import os
import stat

from drfd.common.errors import Refused
from drfd.linux.kernel_files import opened


def last_bytes(path: str, uid: int, most: int) -> bytes | None:
    """Return at most the last `most` bytes of a file, from the beginning of a line if one begins
    among them, or None if there is no such file. `uid`: the job's user. Raises Refused."""
    fd = open_file(path, uid)
    if fd is None:
        return None
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        file.seek(max(0, size - most))
        data = file.read(most)
    if size > most:
        data = data.partition(b"\n")[2] or data
    return data


def open_file(path: str, uid: int) -> int | None:
    """Return a descriptor of a regular file, or None if there is no file. `uid`: the job's user,
    whose files alone an administrator reads, because a link could lead to any. Raises Refused if
    there is something else, or it cannot be read."""
    try:
        # It is opened when it is known to be a file: with a device that may do something.
        with opened(path, os.O_PATH) as found:
            status = os.fstat(found)
            is_own = uid in (os.geteuid(), status.st_uid)
            if stat.S_ISREG(status.st_mode) and is_own:
                return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused("no-output", f"cannot read {path}: {error.strerror}") from None
    if stat.S_ISDIR(status.st_mode):
        raise Refused("no-output", f"cannot read {path}: Is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise Refused("no-output", f"the output went to {path}, which is no file that keeps it")
    raise Refused("no-output", f"{path} is not a file of the job's user")
