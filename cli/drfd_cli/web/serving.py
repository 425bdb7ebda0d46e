"""Listens for the page, and decides who may see it: requests with the token, by a host name that
is the page's own.

Every process of the machine can connect to a loopback port, and every site that a browser shows can
make it send requests there. So the page is below a path of random letters; a request needs the
token, which the link carries once and a cookie afterwards; and its Host header must name the page's
own address, which a name that another site has made point here (DNS rebinding) does not. Browsers
send a cookie to all ports of a host, but only below its path, which the servers of other users on
other ports cannot know.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, Response

from drfd.common.errors import HostError
from drfd_cli.top.feed import SnapshotReader, first_snapshot
from drfd_cli.web.pages import Feed, application

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from drfd.client.connection import Connection


_COOKIE = "drfd-web"
#: Sent with every reply. Only files of the page are loaded, and it is in no other site's frame.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Access:
    """What the link of a page has: the random path below which it is, and the token."""

    place: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def link(self) -> str:
        """The part of the link after the host name."""
        return f"/{self.place}/?token={self.token}"

    def is_token(self, text: str) -> bool:
        """Return whether the text is the token; how long that takes does not tell how near."""
        return hmac.compare_digest(text.encode(errors="replace"), self.token.encode())


class Guard:
    """An ASGI application that passes on only requests that may see the page."""

    def __init__(self, app: ASGIApp, access: Access, hosts: Iterable[str]) -> None:
        """`hosts`: the values of the Host header that name the page, in lower case."""
        self._app = app
        self._access = access
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # No messages at the start and the end of the server, and no websockets.
            return

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_safe)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the reply to a request that is not passed on, or None."""
        headers = Headers(scope=scope)
        if [host.lower() for host in headers.getlist("host")] != [headers.get("host", "").lower()]:
            return _say(400, "one Host header is needed")
        if headers["host"].lower() not in self._hosts:
            return _say(
                421,
                "this page has another address: open the link that drf web printed; behind a "
                "proxy, name its host with drf web --host NAME",
            )
        given = QueryParams(scope["query_string"]).getlist("token")
        if len(given) == 1 and self._access.is_token(given[0]):
            # The token leaves the address, the history of the browser and its bookmarks. Without
            # a path the browser keeps the cookie for the page's own, also behind a proxy.
            reply = Response(status_code=303, headers={"Location": "./"})
            cookie = f"{_COOKIE}={self._access.token}; HttpOnly; SameSite=Strict"
            reply.headers["Set-Cookie"] = cookie
            return reply
        if not any(self._access.is_token(each) for each in _cookie_tokens(headers)):
            return _say(403, "no entry: open the link that drf web printed, with its token")
        return None


def _cookie_tokens(headers: Headers) -> Iterable[str]:
    """Yield the values of all cookies of this name: another page may have set one, too."""
    for line in headers.getlist("cookie"):
        for part in line.split(";"):
            name, _, value = part.strip().partition("=")
            if name == _COOKIE:
                yield value


def _say(status: int, text: str) -> Response:
    # Strangers keep no connection.
    return PlainTextResponse(f"drf web: {text}\n", status, headers={"Connection": "close"})


#: The longest head of a request, in bytes.
_HEAD_BYTES = 1 << 14
#: Seconds for which a connection is kept between two requests, and that replies have at the end.
_KEEP_S, _END_S = 30, 3
_BACKLOG = 64


def listen_on_port(port: int) -> socket.socket:
    """Return a socket that listens on a loopback port, any free one if it is 0. Raises
    HostError."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise HostError(
            "no-port",
            f"cannot listen on port {port}: {why}",
            hint="another one: --port NUMBER",
        ) from None


def serve(
    listener: socket.socket,
    connection: Connection,
    access: Access,
    hosts: Iterable[str],
    columns: Sequence[str],
    on_ready: Callable[[], None],
) -> None:
    """Serve the page until SIGINT or SIGTERM. `connection`: names the daemon. `columns`: keys of
    columns of jobs that the user wants besides. `on_ready`: called when it can be opened. Raises
    what the daemon refuses at the start."""
    snapshots = connection.another()
    first = first_snapshot(snapshots)
    reader = SnapshotReader(snapshots, first, lambda: feed.wake())
    feed = Feed(
        lambda: reader.news, lambda: server.should_exit or reader.problem is not None, columns
    )
    server = server_of(Guard(application(access.place, connection, feed), access, hosts))
    reader.start()
    # It listens already: who connects now is served in a moment.
    on_ready()
    try:
        server.run(sockets=[listener])
    finally:
        reader.stop()
    if reader.problem is not None:
        raise reader.problem


def server_of(app: ASGIApp) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", interface="asgi3",
            log_config=None, log_level="error", access_log=False, server_header=False,
            proxy_headers=False, h11_max_incomplete_event_size=_HEAD_BYTES,
            timeout_keep_alive=_KEEP_S, timeout_graceful_shutdown=_END_S,
        )
    )  # fmt: skip


class _Server(uvicorn.Server):
    """A server that a signal ends without ending the process, which has files to remove."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, setattr, self, "should_exit", True)
        yield
        for number in numbers:
            loop.remove_signal_handler(number)
