"""Sockets between the processes of one user that share a terminal, and to the daemon where many
others wait. They are those of `_socket`: see `drfd.linux.unix_sockets`.
"""

from __future__ import annotations

import _socket
import os
import struct

from drfd.linux.unix_sockets import at_socket, peer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


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
