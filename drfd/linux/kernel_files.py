"""Files by plain system calls, above all the kernel's: Python's file objects cost several times as
much. And the table of mounts (proc_pid_mountinfo(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


def get(path: str) -> str:
    """Return the contents of a file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while piece := os.read(fd, 1 << 16):
            data += piece
    finally:
        os.close(fd)
    return os.fsdecode(data)


def get_record(path: str) -> str:
    """Return the contents of a file that the kernel writes as one record, however long: a single
    read returns all of it (seq_file.rst), without another one that finds the end. Raises OSError,
    which names the file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 16).decode(errors="replace")
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)


def word_in(path: str) -> str:
    """Return the content of a small file without white space around it, or "" if it cannot be
    read."""
    try:
        return get_record(path).strip()
    except OSError:
        return ""


def cgroups_of(directory: str) -> list[str]:
    """Return the different paths in the hierarchies of cgroups of the process with this directory
    in /proc; none if it is gone."""
    lines = word_in(f"{directory}/cgroup").split("\n")
    return sorted({line.split(":", 2)[2] for line in lines if ":/" in line})


class Mount(NamedTuple):
    point: str
    #: The directory of its file system that is mounted.
    root: str
    filesystem: str
    source: str
    #: "major:minor"; major 0 means no device.
    device: str
    #: Options of the file system: of a hierarchy of cgroups, its controllers.
    options: list[str]


def mounts(mountinfo: str) -> Iterator[Mount]:
    """Yield the mounts in this text of a file mountinfo, which may not be UTF-8."""
    # Users can mount, too, and name their directories freely, except for the escaped characters.
    for line in mountinfo.split("\n"):
        before, _, after = line.partition(" - ")
        places, kinds = before.split(" "), after.split(" ", 2)
        if len(places) > 4 and len(kinds) == 3:
            point, root, source = map(_unescape, (places[4], places[3], kinds[1]))
            yield Mount(point, root, kinds[0], source, places[2], kinds[2].split(","))


def _unescape(path: str) -> str:
    """Return the path in a field, in which blanks and the like are written as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)


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
