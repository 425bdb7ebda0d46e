"""Where the metrics are given: a port of the loopback device, and a file.

Neither is worth a scheduler that does not start: what cannot be had becomes a warning.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from drfd.daemon.config import MetricsSettings

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client import CollectorRegistry

log = logging.getLogger("drfd")

LOOPBACK = "127.0.0.1"
#: Connections at a time, each of which has a thread; a new one takes the place of the oldest. So
#: clients that send or read nothing neither keep others out nor use up the daemon's descriptors.
MOST_CONNECTIONS = 16
#: Seconds between two connections that are accepted, so that a flood of requests does not slow the
#: scheduler down. The others wait in the kernel.
ACCEPT_PAUSE_S = 0.05
#: Seconds for which a client may send, or read, nothing.
SILENCE_S = 5.0
#: Names of this machine in a request: a page of another name that a browser shows, and whose name
#: leads to this machine, must not read the metrics.
_LOOPBACK_HOSTS = {"127.0.0.1", "localhost", ""}


def metrics_warnings(settings: MetricsSettings) -> tuple[str, ...]:
    """Return a warning if metrics are wanted and the library for them is not installed."""
    if not settings.is_on or importlib.util.find_spec("prometheus_client") is not None:
        return ()
    return (
        "metrics: no metrics are given, because the Python package prometheus-client is not "
        "installed: pip install 'drfd[metrics]' in drfd's environment, then restart drfd",
    )


def open_port(settings: MetricsSettings) -> tuple[socket.socket | None, tuple[str, ...]]:
    """Return the listening socket that the configuration asks for, and warnings. It is opened
    before root's rights are dropped."""
    warnings = metrics_warnings(settings)
    if warnings or settings.port is None:
        return None, warnings
    try:
        return socket.create_server((LOOPBACK, settings.port)), ()
    except OSError as error:
        cure = "choose another port and restart drfd"
        if error.errno == errno.EAFNOSUPPORT:
            cure = "the unit drfd.service keeps it from the network: see administration.md"
        place = f"{LOOPBACK}:{settings.port}"
        text = f"metrics.port: cannot listen at {place}: {os.strerror(error.errno or 0)}; {cure}"
        return None, (text,)


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, *_: object) -> None:
        """Log nothing: a client could fill the log."""


class Endpoint(ThreadingMixIn, WSGIServer):
    """Answers requests at a listening socket, in threads of its own."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, registry: CollectorRegistry) -> None:
        from prometheus_client import make_wsgi_app

        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()
        self.setup_environ()
        self._metrics = make_wsgi_app(registry, disable_compression=True)
        self.set_app(self._answer)
        self._open: deque[socket.socket] = deque()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("HTTP_HOST", "").partition(":")[0].lower() in _LOOPBACK_HOSTS:
            answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"ask for 127.0.0.1 or localhost\n"]

    def process_request(self, request: Any, client_address: Any) -> None:
        time.sleep(ACCEPT_PAUSE_S)
        if len(self._open) >= MOST_CONNECTIONS:
            with suppress(OSError):
                self._open.popleft().shutdown(socket.SHUT_RDWR)
        self._open.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the client has left, or has been made to."""


def serve(listener: socket.socket, registry: CollectorRegistry) -> None:
    """Answer requests in a thread of its own, until the process ends."""
    endpoint = Endpoint(listener, registry)
    Thread(target=endpoint.serve_forever, name="metrics", daemon=True).start()


async def write_regularly(path: Path, interval_s: int, registry: CollectorRegistry) -> None:
    """Write the file at intervals, and remove it at the end: old figures must not look new."""
    from prometheus_client import write_to_textfile

    reported = None
    try:
        while True:
            writing = asyncio.ensure_future(
                asyncio.to_thread(write_to_textfile, str(path), registry)
            )
            await asyncio.wait([writing])
            error = writing.exception()
            problem = error and (getattr(error, "strerror", None) or str(error))
            if problem and problem != reported:
                log.warning("event=metrics-not-written path=%s error=%s", path, problem)
            reported = problem
            await asyncio.sleep(interval_s)
    finally:
        await asyncio.wait([writing])
        with suppress(OSError):
            path.unlink()
