"""Who is at the other end of a unix socket: the kernel's word, not the message's."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple


class Peer(NamedTuple):
    """The process as it was when it connected (SO_PEERCRED, unix(7))."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return Peer(*struct.unpack("3i", credentials))
