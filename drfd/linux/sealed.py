"""Sealed files: bytes in memory that nobody can change any more, passed on as a descriptor."""

from __future__ import annotations

import array
import fcntl
import os
import socket

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class NotSealed(Exception):
    """The descriptor does not refer to a sealed file; the text says why."""


def seal(data: bytes) -> int:
    """Return the descriptor of a new sealed file, which the caller has to close."""
    fd = os.memfd_create("payload", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def sealed_size(fd: int, most: int) -> int:
    """Return the length of a sealed file in bytes. Raises NotSealed if anybody could still change
    it, if it is empty or longer than `most` bytes, or if it cannot be read by this descriptor."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:
        raise NotSealed("it is no file in memory") from None
    if mode not in (os.O_RDONLY, os.O_RDWR):
        raise NotSealed("it is not open for reading")
    if seals & _SEALS != _SEALS:
        raise NotSealed("it can still be changed")
    size = os.fstat(fd).st_size
    if not 0 < size <= most:
        raise NotSealed(f"it has {size} bytes")
    return size


def read_sealed(fd: int) -> bytearray:
    """Return the whole content, whatever the file offset of the shared descriptor is. No other copy
    of it is made."""
    content = bytearray(os.fstat(fd).st_size)
    view, done = memoryview(content), 0
    while done < len(content):
        # A signal may cut a call short.
        done += os.preadv(fd, [view[done:]], done)
    return content


def receive(connection: socket.socket, size: int, most: int) -> tuple[bytes, list[int], bool]:
    """Receive up to `size` bytes with up to `most` descriptors (SCM_RIGHTS, unix(7)). Returns the
    bytes, the descriptors, and whether more descriptors came than that. The descriptors are closed
    on exec, for which `socket.recv_fds` of Python 3.11 does not set the flag."""
    ancillary_bytes = socket.CMSG_SPACE(most * _FD_BYTES)
    data, parts, flags, _ = connection.recvmsg(size, ancillary_bytes, _CLOEXEC)
    fds = array.array("i")
    for level, kind, content in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % _FD_BYTES])
    return data, list(fds), bool(flags & _TRUNCATED)


_FD_BYTES = array.array("i").itemsize
#: Plain numbers: an operation on members of an enumeration costs as much as the call.
_CLOEXEC, _TRUNCATED = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)
