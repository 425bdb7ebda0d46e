"""What is known of the other end of a connection, without reading from it."""

from __future__ import annotations

import fcntl
import select
import socket
import sys
import termios


def has_hung_up(peer: socket.socket) -> bool:
    """Closed at the other end. One that has only finished writing still wants its answer."""
    poll = select.poll()
    poll.register(peer.fileno(), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def has_read_all(peer: socket.socket) -> bool:
    """Nothing that was written is left in the kernel (SIOCOUTQ; see tcp(7))."""
    unread = fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    return int.from_bytes(unread, sys.byteorder) == 0
