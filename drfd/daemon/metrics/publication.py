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
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from drfd.daemon.config import MetricsSettings

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from drfd.daemon.metrics.source import MetricsSource

log = logging.getLogger("drfd")

LOOPBACK = "127.0.0.1"
#: The name on the command line → the file in this package.
METRICS_FILES = {"alerts": "alerts.yml", "dashboard": "dashboard.json"}
#: Connections at a time, each of which has a thread; a new one takes the place of the oldest. So
#: clients that send or read nothing keep nobody out.
MOST_CONNECTIONS = 16
#: Seconds between two connections that are accepted, so that a flood of requests does not slow the
#: scheduler down. The others wait in the kernel.
ACCEPT_PAUSE_S = 0.02
#: Seconds for which a client may send, or read, nothing; and until the figures must be there.
SILENCE_S, FIGURES_S = 5.0, 10.0
#: Names of this machine in a request: a page of another name that a browser shows, and whose name
#: leads to this machine, must not read the metrics.
_LOOPBACK_HOSTS = {"127.0.0.1", "localhost", ""}

#: Returns the metrics in the format that an Accept header prefers, and the content type.
Text = Callable[[str], tuple[bytes, str]]


def shipped_file(name: str) -> str:
    """Return the text of a shipped file, by its name on the command line."""
    return resources.files("drfd.daemon.metrics").joinpath(METRICS_FILES[name]).read_text()


def metrics_warnings(settings: MetricsSettings) -> tuple[str, ...]:
    """Return a warning if metrics are wanted and the library for them is not installed."""
    if not settings.is_on or importlib.util.find_spec("prometheus_client") is not None:
        return ()
    return (
        "metrics: no metrics are given, because the Python package prometheus-client is not "
        "installed: pip install 'drfd[metrics]' in drfd's environment, then restart drfd",
    )


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, *_: object) -> None:
        """Log nothing: a client could fill the log."""


class Endpoint(ThreadingMixIn, WSGIServer):
    """Answers GET /metrics at a listening socket, in threads of its own."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, text: Text) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()
        self.setup_environ()
        self.set_app(_app(text))
        self._open: deque[socket.socket] = deque()

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


def _app(text: Text) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    #: The last error of making the text, once it has been logged.
    reported = ""

    def answer(environ: WSGIEnvironment) -> tuple[str, bytes, str]:
        """Return the status, the page and its content type."""
        nonlocal reported
        plain = "text/plain; charset=utf-8"
        if environ.get("HTTP_HOST", "").partition(":")[0].lower() not in _LOOPBACK_HOSTS:
            return "403 Forbidden", b"ask for 127.0.0.1 or localhost\n", plain
        if environ["PATH_INFO"] != "/metrics":
            return "404 Not Found", b"the metrics are at /metrics\n", plain
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", b"metrics can only be read\n", plain
        try:
            page, content_type = text(environ.get("HTTP_ACCEPT", ""))
        except Exception as error:
            if reported != repr(error):
                reported = repr(error)
                log.error("event=metrics-failed error=%s", reported, exc_info=error)
            line = b"the figures cannot be had; see drfd's log\n"
            return "503 Service Unavailable", line, plain
        return "200 OK", page, content_type

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        status, page, content_type = answer(environ)
        start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(page)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [page]

    return app


@dataclass
class Outlets:
    """The opened port, and the file. The port is opened before root's rights are dropped."""

    settings: MetricsSettings
    tcp: socket.socket | None = None
    warnings: tuple[str, ...] = ()

    async def run(self, source: MetricsSource | None) -> None:
        """Give metrics until cancelled; `source` is None if there are none."""
        if source is not None:
            if self.tcp is not None:
                _serve(self.tcp, source)
            if self.settings.textfile is not None:
                path = Path(self.settings.textfile)
                await _write_regularly(path, self.settings.interval_s, source)
        await asyncio.Event().wait()

    def close(self) -> None:
        if self.tcp is not None:
            self.tcp.close()


def _serve(listener: socket.socket, source: MetricsSource) -> None:
    """Answer requests in a thread of its own, until the process ends."""
    loop = asyncio.get_running_loop()

    def text(accept: str) -> tuple[bytes, str]:
        asked = asyncio.run_coroutine_threadsafe(source.text(accept), loop)
        try:
            return asked.result(FIGURES_S)
        finally:
            asked.cancel()

    endpoint = Endpoint(listener, text)
    Thread(target=endpoint.serve_forever, name="metrics", daemon=True).start()


def open_outlets(settings: MetricsSettings) -> Outlets:
    """Open what the configuration asks for."""
    outlets = Outlets(settings, warnings=metrics_warnings(settings))
    if outlets.warnings or settings.port is None:
        return outlets
    try:
        outlets.tcp = socket.create_server((LOOPBACK, settings.port))
    except OSError as error:
        cure = "choose another port and restart drfd"
        if error.errno == errno.EAFNOSUPPORT:
            cure = "the unit drfd.service keeps it from the network: see administration.md"
        place = f"{LOOPBACK}:{settings.port}"
        text = f"metrics.port: cannot listen at {place}: {os.strerror(error.errno or 0)}; {cure}"
        outlets.warnings = (text,)
    return outlets


async def _write_regularly(path: Path, interval_s: int, source: MetricsSource) -> None:
    """Write the file at intervals, and remove it at the end: old figures must not look new."""
    reported = ""
    try:
        while True:
            text, _ = await source.text("")
            try:
                await asyncio.to_thread(write_file, path, text)
                reported = ""
            except OSError as error:
                problem = error.strerror or str(error)
                if problem != reported:
                    log.warning("event=metrics-not-written path=%s error=%s", path, problem)
                reported = problem
            await asyncio.sleep(interval_s)
    finally:
        with suppress(OSError):
            path.unlink()


def write_file(path: Path, text: bytes) -> None:
    """Replace the file in one step. Raises OSError."""
    # The name does not end in .prom, so node_exporter passes it over.
    fresh = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(fd, "wb") as file:
            file.write(text)
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise
