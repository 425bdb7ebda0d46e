"""A file that grows: what is in it and what comes, byte for byte, also when it begins anew."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from typing import BinaryIO

_BLOCK_BYTES = 1 << 16
#: A line that is longer is cut where its job's id stands before it.
_LINE_BYTES = 1 << 16
#: Of the ids before lines; neighbours differ.
_COLOURS = (36, 33, 32, 35, 34, 31)


class Unreadable(Exception):
    """There is something, but nothing that can be read; says what."""


class Tail:
    def __init__(self, path: str, lines: int | None, write: Callable[[bytes], None]) -> None:
        """`lines`: of what is there at first, only the last so many."""
        self.path = path
        self._lines = lines
        self._write = write
        self._file: BinaryIO | None = None

    def copy(self) -> None:
        """Write what has come since the last time. Raises Unreadable."""
        if self._file is None and not self._open():
            return
        self._copy_file()
        if self._is_replaced() and self._open():
            self._copy_file()
        sys.stdout.buffer.flush()

    def finish(self) -> None:
        """Nothing will come any more."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if isinstance(self._write, Prefixed):
            self._write.finish()
            sys.stdout.buffer.flush()

    def _open(self) -> bool:
        """False when there is no such file, or not yet."""
        fd = _open_file(self.path)
        if fd is None:
            return False
        file = open(fd, "rb")  # noqa: SIM115
        if self._file is not None:
            self._file.close()
        elif self._lines is not None:
            file.seek(_start_of_last(file, self._lines))
        self._file = file
        return True

    def _copy_file(self) -> None:
        file = self._file
        assert file is not None
        if os.fstat(file.fileno()).st_size < file.tell():
            # Emptied by its job: start again.
            file.seek(0)
        while piece := file.read(_BLOCK_BYTES):
            self._write(piece)

    def _is_replaced(self) -> bool:
        """Another file has its name: a rotated log."""
        assert self._file is not None
        try:
            now, ours = os.stat(self.path), os.fstat(self._file.fileno())
        except OSError:
            return False
        return (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino)


def last_bytes(path: str, most: int) -> bytes | None:
    """The end of a file, from the beginning of a line if one is there; None when there is no such
    file. Raises Unreadable."""
    fd = _open_file(path)
    if fd is None:
        return None
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        file.seek(max(0, size - most))
        data = file.read(most)
    if size > most:
        data = data.partition(b"\n")[2] or data
    return data


def _open_file(path: str) -> int | None:
    """None when there is no such file, or not yet."""
    try:
        # Without O_NONBLOCK a pipe that nobody writes would hang here.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(f"cannot read {path}: {error.strerror}") from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise Unreadable(f"cannot read {path}: Is a directory")
        raise Unreadable(f"the output went to {path}, which is no file that keeps it")
    return fd


class Prefixed:
    """Whole lines, each with what its job is called before it."""

    def __init__(self, label: str, *, is_coloured: bool) -> None:
        self._prefix = f"{label}: ".encode()
        if is_coloured:
            colour = _COLOURS[int(label.rpartition("_")[2]) % len(_COLOURS)]
            self._prefix = b"\x1b[%dm%s\x1b[0m" % (colour, self._prefix)
        self._rest = b""

    def __call__(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) >= _LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        sys.stdout.buffer.write(b"".join(self._prefix + line + b"\n" for line in lines))

    def finish(self) -> None:
        if self._rest:
            self(b"\n")


def plain(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Where the last so many lines begin. A last line without an end counts as one."""
    size = file.seek(0, os.SEEK_END)
    if lines == 0 or size == 0:
        return size
    # What stands at the very end ends the last line, and begins none.
    at = size - 1
    while at > 0:
        begin = max(0, at - _BLOCK_BYTES)
        file.seek(begin)
        block = file.read(at - begin)
        end = len(block)
        while (found := block.rfind(b"\n", 0, end)) >= 0:
            lines -= 1
            if lines == 0:
                return begin + found + 1
            end = found
        at = begin
    return 0
