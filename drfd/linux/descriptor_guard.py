"""Connections protected from descriptors that clients send along (SCM_RIGHTS, unix(7)).

The kernel closes such descriptors in the process that reads past them or closes the socket with
them unread. The sender decides how long such a close takes: a TCP socket with SO_LINGER whose other
end reads nothing can block it for days. So each read of a connection first checks for descriptors,
and a connection with descriptors is closed by a thread that is ending: there the kernel does not
wait.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any

from drfd.linux import syscalls

#: Size of one read where unread data is discarded.
_PIECE_BYTES = 1 << 16
#: Plain integers, because each read needs them and Python's flag types cost more than the call.
_PEEK, _DID_NOT_FIT = int(socket.MSG_PEEK), int(socket.MSG_CTRUNC)
_NOW = int(socket.MSG_DONTWAIT)
#: How long the closing thread waits for the next connection before it ends, and how long it gathers
#: connections to close together: each round needs another thread.
_STAYS_S, _GATHERS_S = 5.0, 0.005
_FAMILY, _TYPE = int(socket.AF_UNIX), int(socket.SOCK_STREAM)


class UnwantedDescriptors(ConnectionError):
    """The client has sent a descriptor; the connection must be closed."""


def guarded(listener: socket.socket) -> socket.socket:
    """Return a listener that replaces the given one and whose connections take no descriptors."""
    return _Listener(listener.family, listener.type, listener.proto, fileno=listener.detach())


class PeerState(Enum):
    """The state of the client of a new connection."""

    LEFT = "has sent nothing, not even a descriptor, and will not any more"
    STAYS = "has sent something, or may do so"
    DESCRIPTORS = "has sent descriptors before anything else"


def peek(connection: socket.socket) -> PeerState:
    """Return the state of the client, without reading or blocking. A connection whose client has
    left may be closed with a plain close."""
    try:
        data, _, answer, _ = connection.recvmsg(1, 0, _PEEK | _NOW)
    except OSError:
        return PeerState.STAYS
    if answer & _DID_NOT_FIT:
        return PeerState.DESCRIPTORS
    return PeerState.STAYS if data else PeerState.LEFT


class _Listener(socket.socket):
    def accept(self) -> tuple[socket.socket, Any]:
        # Like socket.accept, which would return an object of another class.
        fd, address = self._accept()  # type: ignore[attr-defined]
        return _Guarded(_FAMILY, _TYPE, 0, fileno=fd), address


class _Guarded(socket.socket):
    """A connection whose descriptors are never taken, nor closed by a thread that goes on."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        return super().recv(self._peek(size, flags), flags) if size else b""

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        most = self._peek(size or memoryview(buffer).nbytes, flags)
        return super().recv_into(buffer, most, flags) if most else 0

    def close(self) -> None:
        if self.fileno() >= 0 and self._holds_descriptors():
            _closer.close(self)
        else:
            super().close()

    def _peek(self, size: int, flags: int = 0) -> int:
        """Return how many bytes can be read before a message with descriptors. The kernel returns
        at most the bytes up to the first such message, and the flag that its descriptors did not
        fit. Raises UnwantedDescriptors."""
        data, _, answer, _ = super().recvmsg(size, 0, flags | _PEEK)
        if answer & _DID_NOT_FIT:
            raise UnwantedDescriptors("a descriptor came with a message")
        return len(data)

    def _holds_descriptors(self) -> bool:
        """Return whether descriptors are unread. The data before them is discarded, and no more is
        received."""
        try:
            self.shutdown(socket.SHUT_RD)
        except OSError:
            # The client has disconnected; received data may still be there.
            pass
        try:
            while size := self._peek(_PIECE_BYTES, _NOW):
                super().recv(size, _NOW)
        except UnwantedDescriptors:
            return True
        except OSError:
            return False
        return False


class _Closer:
    """Closes connections with descriptors in the background, by at most two threads at a time."""

    def __init__(self) -> None:
        self._fds: SimpleQueue[int] = SimpleQueue()
        self._lock = threading.Lock()
        #: Whether a thread serves the queue.
        self._is_at_work = False

    def close(self, connection: socket.socket) -> None:
        self._fds.put(connection.detach())
        with self._lock:
            if self._is_at_work:
                return
            self._is_at_work = True
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:
            # No thread can be had.
            self._is_at_work = False
            _close(self._take_all())

    def _work(self) -> None:
        while True:
            try:
                first = self._fds.get(timeout=_STAYS_S)
            except Empty:
                with self._lock:
                    if self._fds.empty():
                        self._is_at_work = False
                        return
            else:
                time.sleep(_GATHERS_S)
                _close([first, *self._take_all()])

    def _take_all(self) -> list[int]:
        fds: list[int] = []
        try:
            while True:
                fds.append(self._fds.get_nowait())
        except Empty:
            return fds


_closer = _Closer()


def _close(fds: list[int]) -> None:
    """Close descriptors without blocking: a thread with copies of them closes these by ending."""
    is_held, is_closed = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            syscalls.unshare(syscalls.CLONE_FILES)
        except OSError:
            # Closing may block then.
            return
        finally:
            is_held.set()
        is_closed.wait()

    try:
        threading.Thread(target=hold, daemon=True).start()
        is_held.wait()
    except RuntimeError:
        # No thread can be had.
        pass
    for fd in fds:
        os.close(fd)
    is_closed.set()
