"""A connection to a launcher: lines of reports come in, and lines of orders go out.

Some orders have a sealed file beside them. A file is made only when its line is sent, so a long
queue of orders takes no descriptors.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable

from drfd.linux.sealed import seal

#: Errors for want of descriptors or memory for a sealed file; sending is tried again after
#: SEND_RETRY_S seconds.
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.ENOBUFS, errno.ETOOMANYREFS)
SEND_RETRY_S = 0.05
#: Number of orders that wait to be sent from which on the queue is full. Beside them the kernel has
#: some dozen, by the size of its buffer, in bytes: each may take the launcher two milliseconds, in
#: which other users' orders wait.
_MOST_QUEUED, _BUFFER_BYTES = 8, 8 << 10


class Wire(asyncio.Protocol):
    """Each report is taken in the round of the loop in which it comes, so that its turn is made in
    the next one. When sending fails, it stops; the reader of reports handles the end."""

    transport: asyncio.WriteTransport

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        #: Raises what has ended the connection, or what a report has raised.
        self.over = self._loop.create_future()
        self._rest = b""
        #: The rest of each order's line, and the file that is sent with its first byte.
        self._queue: deque[tuple[memoryview, bytes | None]] = deque()
        #: Sends the orders, because a transport cannot send files; None once it is closed.
        self._socket: socket.socket | None = None
        self._is_waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in lines:
                if not self.over.done():
                    self._take(line)
        except Exception as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionError("closed"))

    def _end(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)

    def close(self) -> None:
        self._queue.clear()
        if self._socket is not None:
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None
            self.transport.close()

    # -- orders -----------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return len(self._queue) > _MOST_QUEUED

    def send(self, line: bytes, payload: bytes | None = None) -> None:
        if self._socket is None:
            return
        self._queue.append((memoryview(line), payload))
        if not self._is_waiting:
            self._flush()

    def _flush(self) -> None:
        self._is_waiting = False
        while self._queue and self._socket is not None:
            line, payload = self._queue[0]
            try:
                sent = _send(self._socket, line, payload)
            except BlockingIOError:
                self._is_waiting = True
                self._loop.add_writer(self._socket, self._on_writable)
                return
            except OSError as error:
                if error.errno in _SHORT:
                    self._is_waiting = True
                    self._loop.call_later(SEND_RETRY_S, self._flush)
                else:
                    self._queue.clear()
                return
            # The file has gone with the first byte of the line.
            self._queue[0] = (line[sent:], None)
            if not self._queue[0][0]:
                self._queue.popleft()

    def _on_writable(self) -> None:
        if self._socket is not None:
            self._loop.remove_writer(self._socket)
        self._flush()


def _send(to: socket.socket, line: memoryview, payload: bytes | None) -> int:
    if payload is None:
        return to.send(line)
    fd = seal(payload)
    try:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        return to.sendmsg([line], [rights])
    finally:
        os.close(fd)
