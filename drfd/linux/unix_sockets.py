"""Unix sockets: addresses of any length, and the peer's identity.

Imports must stay few: `drf submit` loads this module first. Therefore these functions take the
sockets of `_socket`, the part of `socket` that is written in C and is their base class; `socket`
takes longer to load than a submission lasts.
"""

from __future__ import annotations

import _socket
import os
import struct

#: Longest path, in bytes, that fits a unix socket address (unix(7)).
_LONGEST_ADDRESS = 107
#: `struct ucred`: pid, uid and gid; the ids are unsigned.
_UCRED = "iII"


class at_socket:
    """`with at_socket(path) as address`: an address to bind or connect to, however long the path.
    The address is valid inside the block. Raises OSError if the directory of a long path cannot be
    entered. This is no generator of contextlib, which would double the time to load this module."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._directory: int | None = None

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= _LONGEST_ADDRESS:
            return self._path
        directory, name = os.path.split(self._path)
        # O_PATH: the directory may be one that can be entered and not listed.
        self._directory = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._directory}/{name}"

    def __exit__(self, *_: object) -> None:
        if self._directory is not None:
            os.close(self._directory)


def peer_of(connection: _socket.socket) -> tuple[int, int]:
    """Return the uid and the gid that the peer had when it connected (SO_PEERCRED, unix(7))."""
    size = struct.calcsize(_UCRED)
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, size)
    _, uid, gid = struct.unpack(_UCRED, credentials)
    return uid, gid
