"""Unix sockets: addresses of any length, connecting where many others wait, the peer's identity.

Imports must stay few: `drf submit` loads this module first. Therefore these functions take the
sockets of `_socket`, the part of `socket` that is written in C and is their base class; `socket`
takes longer to load than a submission lasts.
"""

from __future__ import annotations

import _socket
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

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


def connect_in_line(connection: _socket.socket, path: str, timeout_s: int) -> None:
    """Connect a blocking socket to `path`, waiting in line where the socket's backlog is full.

    This call, and each later sending and receiving, raises OSError after `timeout_s`. With Python's
    own timeout the socket would not block, and each attempt would fail for as long as processes of
    another user fill the backlog (EAGAIN of connect(2) on a unix socket).
    """
    limit_waits(connection, timeout_s)
    with at_socket(path) as address:
        connection.connect(address)


def limit_waits(connection: _socket.socket, timeout_s: int) -> None:
    """Let each sending and receiving raise OSError after `timeout_s`; 0 is no limit."""
    for limit in (_socket.SO_SNDTIMEO, _socket.SO_RCVTIMEO):
        connection.setsockopt(_socket.SOL_SOCKET, limit, struct.pack("ll", timeout_s, 0))


def without_limits(connection: _socket.socket) -> _socket.socket:
    """Remove the limits that `connect_in_line` has set, and return the socket."""
    limit_waits(connection, 0)
    return connection


def accept_own(listener: _socket.socket) -> _socket.socket | None:
    """Accept a connection of a process of this user. Another user's is closed, and None returned.
    Raises OSError."""
    # The method of `socket.socket.accept`, which the types of `_socket` leave out.
    untyped: Any = listener
    fd, _ = untyped._accept()
    connection = _socket.socket(fileno=fd)
    if peer_of(connection)[0] == os.getuid():
        return connection
    connection.close()
    return None


def send_descriptors(connection: _socket.socket, mark: bytes, fds: Sequence[int]) -> None:
    """Send descriptors to the process at the other end, beside one byte (SCM_RIGHTS, unix(7))."""
    rights = struct.pack(f"{len(fds)}i", *fds)
    connection.sendmsg([mark], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])


def peer_of(connection: _socket.socket) -> tuple[int, int]:
    """Return the uid and the gid that the peer had when it connected (SO_PEERCRED, unix(7))."""
    size = struct.calcsize(_UCRED)
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, size)
    _, uid, gid = struct.unpack(_UCRED, credentials)
    return uid, gid
