"""The HTTP server: one page, and clients that cannot do harm."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drfd.daemon.metrics.endpoint import MOST_CONNECTIONS, Endpoint
from drfd.daemon.metrics.rendering import OPENMETRICS, PLAIN

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def text(kind: str) -> bytes:
    return b"plain\n" if kind == PLAIN else b"open\n"


@asynccontextmanager
async def endpoint(
    listener: socket.socket, *, request_s: float = 60.0, answer_s: float = 60.0, page: bytes = b""
) -> AsyncIterator[Endpoint]:
    async def long_text(kind: str) -> bytes:
        return page

    serves = long_text if page else text
    served = Endpoint(listener, serves, request_s=request_s, answer_s=answer_s)
    task = asyncio.create_task(served.run())
    try:
        yield served
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()


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


async def connect(listener: socket.socket) -> Streams:
    if listener.family == socket.AF_UNIX:
        return await asyncio.open_unix_connection(listener.getsockname())
    return await asyncio.open_connection(*listener.getsockname())


async def ask(listener: socket.socket, request: bytes) -> bytes:
    reader, writer = await connect(listener)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


def is_readable(client: socket.socket) -> bool:
    """True once the answer has begun."""
    return bool(select.select([client], [], [], 0.0)[0])


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_the_page_comes_in_the_format_that_is_accepted(tmp_path: Path) -> None:
    listener = unix(tmp_path / "s")
    async with endpoint(listener):
        answer = await ask(listener, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n") and OPENMETRICS.encode() in head
        assert body == b"open\n"
        answer = await ask(listener, b"GET /metrics?x HTTP/1.0\r\nACCEPT: text/plain\r\n\r\n")
        assert answer.endswith(b"\r\n\r\nplain\n") and PLAIN.encode() in answer


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\xff\x00\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 20_000, b"431"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", b"403"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost:80\r\n\r\n", b"200"),
    ],
)
async def test_each_request_gets_its_status(request_text: bytes, status: bytes) -> None:
    listener = tcp()
    async with endpoint(listener):
        assert (await ask(listener, request_text)).split(b" ")[1] == status


async def test_a_client_that_asks_nothing_is_dropped(tmp_path: Path) -> None:
    listener = unix(tmp_path / "s")
    async with endpoint(listener, request_s=0.05):
        reader, writer = await connect(listener)
        writer.write(b"GET /met")
        assert await is_closed(reader)
        writer.close()


async def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    listener = unix(tmp_path / "s")
    async with endpoint(listener, answer_s=0.05, page=b"x" * (64 << 20)) as served:
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(tmp_path / "s"))
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        while not is_readable(client):
            await asyncio.sleep(0.01)
        while served.connections:
            await asyncio.sleep(0.01)
        client.close()


async def test_idle_clients_keep_nobody_out(tmp_path: Path) -> None:
    """The oldest of them makes room."""
    listener = unix(tmp_path / "s")
    async with endpoint(listener) as served:
        idle: list[Streams] = []
        for count in range(1, MOST_CONNECTIONS + 1):
            idle.append(await connect(listener))
            while served.connections < count:
                await asyncio.sleep(0.01)
        answer = await ask(listener, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert answer.endswith(b"open\n")
        assert await is_closed(idle[0][0])
        assert served.connections <= MOST_CONNECTIONS
        for _, writer in idle:
            writer.close()
