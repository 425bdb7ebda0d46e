"""The HTTP server: one page, and clients that cannot do harm."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drfd.daemon.metrics import endpoint as endpoint_module
from drfd.daemon.metrics.endpoint import MOST_CONNECTIONS, Endpoint
from drfd.daemon.metrics.rendering import OPENMETRICS, PLAIN
from kernel import LINGER_S, send_lingering

ASK = b"GET /metrics HTTP/1.1\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def text(kind: str) -> bytes:
    return b"plain\n" if kind == PLAIN else b"open\n"


@dataclass
class Served:
    """A running endpoint, and where clients find it."""

    endpoint: Endpoint
    family: int
    address: Any

    async def connect(self) -> Streams:
        if self.family == socket.AF_UNIX:
            return await asyncio.open_unix_connection(self.address)
        return await asyncio.open_connection(*self.address)

    async def ask(self, request: bytes) -> bytes:
        reader, writer = await self.connect()
        writer.write(request)
        try:
            return await reader.read()
        finally:
            writer.close()

    def client(self, stack: ExitStack) -> socket.socket:
        """A client that waits for nothing but its place in the backlog."""
        client = stack.enter_context(socket.socket(self.family))
        client.connect(self.address)
        return client


@asynccontextmanager
async def endpoint(
    listener: socket.socket,
    *,
    request_s: float = 60.0,
    answer_s: float = 60.0,
    text: Callable[[str], Awaitable[bytes]] = text,
) -> AsyncIterator[Served]:
    family, address = listener.family, listener.getsockname()
    made = Endpoint(listener, text, request_s=request_s, answer_s=answer_s)
    task = asyncio.create_task(made.run())
    try:
        yield Served(made, family, address)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)
    return listener


def tcp() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


def is_readable(client: socket.socket) -> bool:
    """True once the answer has begun."""
    return bool(select.select([client], [], [], 0.0)[0])


async def test_the_page_comes_in_the_format_that_is_accepted(tmp_path: Path) -> None:
    listener = unix(tmp_path / "s")
    async with endpoint(listener) as served:
        answer = await served.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n") and OPENMETRICS.encode() in head
        assert body == b"open\n"
        answer = await served.ask(b"GET /metrics?x HTTP/1.0\r\nACCEPT: text/plain\r\n\r\n")
        assert answer.endswith(b"\r\n\r\nplain\n") and PLAIN.encode() in answer
        two_lines = b"Accept: application/openmetrics-text;q=0.1\r\nAccept: text/plain\r\n"
        for lines in (two_lines, b"\r\n".join(reversed(two_lines.split(b"\r\n")[:2])) + b"\r\n"):
            answer = await served.ask(b"GET /metrics HTTP/1.1\r\n" + lines + b"\r\n")
            assert answer.endswith(b"plain\n") and PLAIN.encode() in answer


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/2.0\r\n\r\n", b"400 Bad Request"),
        (b"\xff\x00\r\n\r\n", b"400 Bad Request"),
        (b"GET /" + b"a" * 20_000, b"431 Request Header Fields Too Large"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", b"403 Forbidden"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: x\r\n\r\n", b"403 Forbidden"),
    ],
)
async def test_each_error_is_its_status_and_a_line_of_text(
    request_text: bytes, status: bytes
) -> None:
    async with endpoint(tcp()) as served:
        is_error(await served.ask(request_text), status)


async def test_a_head_has_no_body(tmp_path: Path) -> None:
    async with endpoint(unix(tmp_path / "s")) as served:
        page = await served.ask(ASK)
        assert await served.ask(b"HEAD" + ASK[3:]) == page.removesuffix(b"open\n")
        missing = await served.ask(b"HEAD / HTTP/1.1\r\n\r\n")
        assert missing.startswith(b"HTTP/1.1 404 ") and missing.endswith(b"\r\n\r\n")


async def test_a_method_that_is_refused_names_those_that_there_are(tmp_path: Path) -> None:
    async with endpoint(unix(tmp_path / "s")) as served:
        answer = await served.ask(b"PUT /metrics HTTP/1.1\r\n\r\n")
        assert b"\r\nAllow: GET, HEAD\r\n" in answer


async def test_without_figures_the_service_is_unavailable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(kind: str) -> bytes:
        raise RuntimeError("no figures\ntoday")

    async with endpoint(unix(tmp_path / "s"), text=fails) as served:
        for _ in range(3):
            is_error(await served.ask(ASK), b"503 Service Unavailable")
    assert [each.getMessage() for each in caplog.records] == [
        "event=metrics-failed error=RuntimeError('no figures\\ntoday')"
    ], "once for one error in a row"


async def test_figures_that_take_too_long_are_not_waited_for(tmp_path: Path) -> None:
    async def waits(kind: str) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with endpoint(unix(tmp_path / "s"), text=waits, answer_s=0.05) as served:
        is_error(await served.ask(ASK), b"503 Service Unavailable")


def is_error(answer: bytes, status: bytes) -> None:
    """Fail unless the answer has this status, and one line of text for its body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    assert first == b"HTTP/1.1 " + status
    assert b"Content-Type: text/plain; charset=utf-8" in lines
    assert b"Content-Length: %d" % len(body) in lines
    assert body.endswith(b"\n") and body[:-1].decode().isprintable() and len(body) > 5


async def test_a_client_that_asks_nothing_is_dropped(tmp_path: Path) -> None:
    listener = unix(tmp_path / "s")
    async with endpoint(listener, request_s=0.05) as served:
        reader, writer = await served.connect()
        writer.write(b"GET /met")
        is_error(await reader.read(), b"408 Request Timeout")
        writer.close()


async def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    async def long_text(kind: str) -> bytes:
        return b"x" * (64 << 20)

    listener = unix(tmp_path / "s")
    with ExitStack() as stack:
        async with endpoint(listener, answer_s=0.05, text=long_text) as served:
            client = served.client(stack)
            client.sendall(ASK)
            while not is_readable(client):
                await asyncio.sleep(0.01)
            while served.endpoint.connections:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("pause_s", [60.0, 0.0005])
async def test_a_flood_of_requests_is_answered_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause_s: float
) -> None:
    """Each answer takes time in which no job is scheduled. Nobody is turned away for that."""
    monkeypatch.setattr(endpoint_module, "ACCEPT_PAUSE_S", pause_s)
    answered = 0

    async def counted(kind: str) -> bytes:
        nonlocal answered
        answered += 1
        return b"page\n"

    with ExitStack() as stack:
        async with endpoint(unix(tmp_path / "s"), text=counted) as served:
            clients = [served.client(stack) for _ in range(3 * MOST_CONNECTIONS)]
            for client in clients:
                client.sendall(ASK)
            is_over = any if pause_s > 1 else all
            while not is_over(map(is_readable, clients)):
                await asyncio.sleep(0.001)
            for _ in range(20):
                await asyncio.sleep(0)
            assert answered == (1 if pause_s > 1 else len(clients))
        for client in clients[:answered]:
            assert client.recv(1 << 12).endswith(b"page\n")


async def test_a_client_that_sends_bytes_one_by_one_is_refused(tmp_path: Path) -> None:
    """Each read takes time of the loop."""
    with ExitStack() as stack:
        async with endpoint(unix(tmp_path / "s")) as served:
            client = served.client(stack)
            while not is_readable(client):
                client.send(b"x")
                await asyncio.sleep(0.001)
            is_error(client.recv(1 << 12), b"431 Request Header Fields Too Large")


@pytest.mark.slow
async def test_a_descriptor_that_comes_with_a_request_stops_nobody(tmp_path: Path) -> None:
    """The last close of a lingering TCP socket takes as long as its owner wishes."""
    with ExitStack() as stack:
        async with endpoint(unix(tmp_path / "s")) as served:
            client = served.client(stack)
            send_lingering(client, stack)
            begin_s = time.monotonic()
            assert (await served.ask(ASK)).endswith(b"open\n")
            assert time.monotonic() - begin_s < LINGER_S / 2


async def test_idle_clients_keep_nobody_out(tmp_path: Path) -> None:
    """The oldest of them makes room."""
    listener = unix(tmp_path / "s")
    async with endpoint(listener) as served:
        idle: list[Streams] = []
        for count in range(1, MOST_CONNECTIONS + 1):
            idle.append(await served.connect())
            while served.endpoint.connections < count:
                await asyncio.sleep(0.01)
        answer = await served.ask(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert answer.endswith(b"open\n")
        is_error(await idle[0][0].read(), b"503 Service Unavailable")
        assert served.endpoint.connections <= MOST_CONNECTIONS
        for _, writer in idle:
            writer.close()
