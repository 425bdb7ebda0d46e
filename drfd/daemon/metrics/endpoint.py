"""A small HTTP server for one page: GET /metrics.

Each connection has one request and a few seconds. A bounded number of connections is accepted in a
second, and few are open at a time; a new one takes the place of the oldest. So neither clients that
send or read nothing, nor a flood of requests, keep others out or slow the scheduler down.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from drfd.daemon.metrics.rendering import content_type
from drfd.linux.descriptor_guard import guarded

log = logging.getLogger("drfd")

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
#: The end of a head, of a request and of an answer.
_END = b"\r\n\r\n"
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
        #: The last error of making the text, once it has been logged.
        self._reported = ""
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
        try:
            answer = await self._answer_to(connection)
        except asyncio.CancelledError:
            # It has waited longest, and another one takes its place; or drfd ends.
            with suppress(OSError):
                connection.send(_error("503 Service Unavailable", "there are too many readers"))
            raise
        except OSError:
            return
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._answer_s):
                await loop.sock_sendall(connection, answer)
                # Closed with unread data, the connection would be reset, and the answer lost.
                connection.shutdown(socket.SHUT_WR)
                await self._discard(connection)

    async def _answer_to(self, connection: socket.socket) -> bytes:
        """Return the answer to a client's request. Raises OSError if the client leaves."""
        try:
            async with asyncio.timeout(self._request_s):
                head = await self._read_head(connection)
        except TimeoutError:
            text = f"the request was not complete after {self._request_s:g} s"
            return _error("408 Request Timeout", text)
        return await self._answer(head)

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
            head, end, _ = data.partition(_END)
            if end and len(head) <= _MOST_HEAD:
                return head
            if len(data) > _MOST_HEAD:
                return None
        return None

    async def _answer(self, head: bytes | None) -> bytes:
        if head is None:
            text = f"a request's head may have {_MOST_HEAD} bytes at most, in few pieces"
            return _error("431 Request Header Fields Too Large", text)
        request, *lines = head.decode("latin-1").split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _error("400 Bad Request", "this is no request of HTTP/1.0 or HTTP/1.1")
        method, target, _ = words
        fields: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            # Several lines of one name are one list.
            fields[name] = ",".join(filter(None, (fields.get(name), value.strip())))
        answer = await self._page(method, target, fields)
        return answer.partition(_END)[0] + _END if method == "HEAD" else answer

    async def _page(self, method: str, target: str, fields: dict[str, str]) -> bytes:
        host = fields.get("host", "").rpartition("@")[2].partition(":")[0].lower()
        if self._is_tcp and host not in _LOOPBACK_HOSTS:
            return _error("403 Forbidden", "ask for 127.0.0.1 or localhost")
        if target.partition("?")[0] != "/metrics":
            return _error("404 Not Found", "the metrics are at /metrics")
        if method not in ("GET", "HEAD"):
            allow = "Allow: GET, HEAD\r\n"
            return _error("405 Method Not Allowed", "metrics can only be read", allow)
        kind = content_type(fields.get("accept", ""))
        try:
            async with asyncio.timeout(self._answer_s):
                page = await self._text(kind)
        except TimeoutError:
            text = f"the figures were not there after {self._answer_s:g} s"
            return _error("503 Service Unavailable", text)
        except Exception as error:
            self._report(error)
            return _error("503 Service Unavailable", "the figures cannot be had; see drfd's log")
        self._reported = ""
        return _reply("200 OK", page, kind)

    def _report(self, error: Exception) -> None:
        """Log an error, unless it is that of the request before."""
        text = repr(error)
        if text != self._reported:
            log.error("event=metrics-failed error=%s", text, exc_info=error)
        self._reported = text


def _error(status: str, text: str, more: str = "") -> bytes:
    return _reply(status, f"{text}\n".encode(), "text/plain; charset=utf-8", more)


def _reply(status: str, body: bytes, kind: str, more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body
