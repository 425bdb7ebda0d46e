"""Who may see the page: requests with the token, by a host name that is the page's own.

Every process of the machine can connect to a loopback port, and every site that a browser shows can
make it send requests there. So the page is below a path of random letters; a request needs the
token, which the link carries once and a cookie afterwards; and its Host header must name the page's
own address, which a name that another site has made point here (DNS rebinding) does not. Browsers
send a cookie to all ports of a host, but only below its path, which the servers of other users on
other ports cannot know.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: The key of a request's scope with the function that is called once it has shown the token.
KNOWN = "drfd.known"
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
class Pass:
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

    def __init__(self, app: ASGIApp, shown: Pass, hosts: Iterable[str]) -> None:
        """`hosts`: the values of the Host header that name the page, in lower case."""
        self._app = app
        self._pass = shown
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
        given = _query_token(scope)
        if given is not None and self._pass.is_token(given):
            _tell_known(scope)
            # The token leaves the address, the history of the browser and its bookmarks. Without
            # a path the browser keeps the cookie for the page's own, also behind a proxy.
            reply = Response(status_code=303, headers={"Location": "./"})
            cookie = f"{_COOKIE}={self._pass.token}; HttpOnly; SameSite=Strict"
            reply.headers["Set-Cookie"] = cookie
            return reply
        if not any(self._pass.is_token(each) for each in _cookie_tokens(headers)):
            return _say(403, "no entry: open the link that drf web printed, with its token")
        _tell_known(scope)
        return None


def _query_token(scope: Scope) -> str | None:
    try:
        values = parse_qs(scope["query_string"].decode("ascii"), max_num_fields=8).get("token")
    except ValueError:
        return None
    return None if values is None or len(values) != 1 else values[0]


def _cookie_tokens(headers: Headers) -> Iterable[str]:
    """Yield the values of all cookies of this name: another page may have set one, too."""
    for line in headers.getlist("cookie"):
        for part in line.split(";"):
            name, _, value = part.strip().partition("=")
            if name == _COOKIE:
                yield value


def _tell_known(scope: Scope) -> None:
    known: Callable[[], None] | None = scope.get(KNOWN)
    if known is not None:
        known()


def _say(status: int, text: str) -> Response:
    # Strangers keep no connection.
    return PlainTextResponse(f"drf web: {text}\n", status, headers={"Connection": "close"})
