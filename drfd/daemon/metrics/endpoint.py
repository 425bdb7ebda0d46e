"""A small HTTP server for one page: GET /metrics.

Each connection has one request and a few seconds. A bounded number of connections is accepted in a
second, and few are open at a time; a new one takes the place of the oldest. So neither clients that
send or read nothing, nor a flood of requests, keep others out or slow the scheduler down.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from drfd.daemon.metrics.rendering import content_type
from drfd.linux.descriptor_guard import guarded

#: Connections at a time.
MOST_CONNECTIONS = 16
#: Seconds between two connections that are accepted. An answer takes a few tenths of a millisecond
#: of the loop, so a flood of requests takes about a fiftieth of its time. The others wait in the
#: kernel. Each accepted connection has at least 16 times as long until another takes its place.
ACCEPT_PAUSE_S = 0.02
#: Seconds until accepting is tried again after a shortage of descriptors or memory.
_RETRY_S = 1.0
#: Bytes of a request's head, at most, and of one read.
_MOST_HEAD, _PIECE_BYTES = 8 << 10, 4 << 10
#: Reads of a request's head, and of what follows it, at most: each byte may come by itself.
_MOST_READS = 64
#: Seconds in which a request must have come, and in which its answer must have been read.
REQUEST_S, ANSWER_S = 5.0, 10.0
#: Names of this machine in a request over TCP: a page of another name that a browser shows, and
#: whose name leads to this machine, must not read the metrics.
_LOOPBACK_HOSTS = {"127.0.0.1", "localhost", ""}


class Endpoint:
    """Answers requests at one listening socket."""

    def __init__(
        self,
        listener: socket.socket,
        text: Callable[[str], Awaitable[bytes]],
        *,
        request_s: float = REQUEST_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`listener` is closed at the end of `run`. `text` returns the metrics in a format (content
        type)."""
        self._is_tcp = listener.family != socket.AF_UNIX
        # Over TCP no descriptors can be sent.
        self._listener = listener if self._is_tcp else guarded(listener)
        self._listener.setblocking(False)
        self._text = text
        self._request_s, self._answer_s = request_s, answer_s
        #: The tasks of open connections, the oldest first.
        self._open: dict[asyncio.Task[None], None] = {}

    @property
    def connections(self) -> int:
        """Return how many clients are connected."""
        return len(self._open)

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except ConnectionAbortedError:
                    continue
                except OSError as error:
                    # There is no descriptor or memory for it.
                    trouble = {"message": "cannot accept a connection", "exception": error}
                    loop.call_exception_handler(trouble)
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._begin(connection)
                await asyncio.sleep(ACCEPT_PAUSE_S)
        finally:
            self._listener.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    def _begin(self, connection: socket.socket) -> None:
        while len(self._open) >= MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        task = asyncio.ensure_future(self._serve(connection))
        self._open[task] = None
        task.add_done_callback(lambda task: self._end(task, connection))

    def _end(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        """Close the connection, even if its task was cancelled before it began."""
        self._open.pop(task, None)
        connection.close()

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._request_s):
                head = await self._read_head(connection)
            answer = await self._answer(head)
            async with asyncio.timeout(self._answer_s):
                await loop.sock_sendall(connection, answer)
                # Closed with unread data, the connection would be reset, and the answer lost.
                connection.shutdown(socket.SHUT_WR)
                await self._discard(connection)

    async def _discard(self, connection: socket.socket) -> None:
        """Read what the client still sends, until it closes or has sent a lot."""
        loop = asyncio.get_running_loop()
        for _ in range(_MOST_READS):
            if not await loop.sock_recv(connection, _PIECE_BYTES):
                return

    async def _read_head(self, connection: socket.socket) -> bytes | None:
        """Return the head of a request, or None if it is too long or comes in too many pieces.
        Raises OSError if the client leaves before."""
        loop = asyncio.get_running_loop()
        data = b""
        for _ in range(_MOST_READS):
            piece = await loop.sock_recv(connection, _PIECE_BYTES)
            if not piece:
                raise ConnectionAbortedError
            data += piece
            head, end, _ = data.partition(b"\r\n\r\n")
            if end and len(head) <= _MOST_HEAD:
                return head
            if len(data) > _MOST_HEAD:
                return None
        return None

    async def _answer(self, head: bytes | None) -> bytes:
        if head is None:
            return _reply("431 Request Header Fields Too Large")
        request, *lines = head.decode("latin-1").split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _reply("400 Bad Request")
        fields: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            # Several lines of one name are one list.
            fields[name] = ",".join(filter(None, (fields.get(name), value.strip())))
        host = fields.get("host", "").rpartition("@")[2].partition(":")[0].lower()
        if self._is_tcp and host not in _LOOPBACK_HOSTS:
            return _reply("403 Forbidden", b"ask for 127.0.0.1 or localhost\n")
        if words[0] != "GET":
            return _reply("405 Method Not Allowed", more="Allow: GET\r\n")
        if words[1].partition("?")[0] != "/metrics":
            return _reply("404 Not Found", b"the metrics are at /metrics\n")
        kind = content_type(fields.get("accept", ""))
        return _reply("200 OK", await self._text(kind), kind)


def _reply(
    status: str, body: bytes = b"", kind: str = "text/plain; charset=utf-8", more: str = ""
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body
