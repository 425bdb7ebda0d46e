"""A small HTTP server for one page: GET /metrics.

Each connection has one request and a few seconds. There are few connections at a time; a new one
takes the place of the oldest, so clients that send or read nothing do not keep others out.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from drfd.daemon.metrics.rendering import content_type

#: Connections at a time.
MOST_CONNECTIONS = 16
#: Bytes of a request's head, at most.
_MOST_HEAD = 8 << 10
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
        """`text` returns the metrics in a format (content type)."""
        self._listener = listener
        self._text = text
        self._request_s, self._answer_s = request_s, answer_s
        self._is_tcp = listener.family != socket.AF_UNIX
        #: Open connections, the oldest first.
        self._open: dict[asyncio.StreamWriter, None] = {}

    @property
    def connections(self) -> int:
        """Return how many clients are connected."""
        return len(self._open)

    async def run(self) -> None:
        """Serve until cancelled."""
        start = asyncio.start_server if self._is_tcp else asyncio.start_unix_server
        server = await start(self._serve, sock=self._listener, limit=_MOST_HEAD)
        try:
            await server.serve_forever()
        finally:
            for writer in self._open:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(self._open) >= MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        # `drain` then waits until all has been taken by the kernel.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            async with asyncio.timeout(self._request_s):
                head = await reader.readuntil(b"\r\n\r\n")
            answer = await self._answer(head)
            async with asyncio.timeout(self._answer_s):
                writer.write(answer)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except asyncio.LimitOverrunError:
            writer.write(_reply("431 Request Header Fields Too Large"))
            writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)
            if not writer.is_closing():
                writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        request, *lines = head.decode("latin-1").split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _reply("400 Bad Request")
        fields = {}
        for line in lines:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
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
