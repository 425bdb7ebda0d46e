"""Where the metrics are given: a Unix socket, a port of the loopback device, a file.

None of them is worth a scheduler that does not start: what cannot be had becomes a warning.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import logging
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drfd.common.errors import HostError
from drfd.daemon.config import MetricsSettings
from drfd.daemon.metrics.endpoint import Endpoint
from drfd.daemon.metrics.rendering import PLAIN
from drfd.daemon.metrics.source import MetricsSource
from drfd.daemon.server.server import ListeningSocket

log = logging.getLogger("drfd")

#: Name of the socket, which is beside the daemon's own.
SOCKET_NAME = "metrics.sock"
LOOPBACK = "127.0.0.1"


def metrics_warnings(settings: MetricsSettings) -> tuple[str, ...]:
    """Return a warning if metrics are wanted and the library for them is not installed."""
    if not settings.is_on or importlib.util.find_spec("prometheus_client") is not None:
        return ()
    return (
        "metrics: no metrics are given, because the Python package prometheus-client is not "
        "installed: pip install 'drfd[metrics]' in drfd's environment, then restart drfd",
    )


@dataclass
class Outlets:
    """The opened sockets, and the file. They are opened before root's rights are dropped."""

    settings: MetricsSettings
    unix: ListeningSocket | None = None
    tcp: socket.socket | None = None
    warnings: tuple[str, ...] = ()

    async def run(self, source: MetricsSource) -> None:
        """Give metrics until cancelled."""
        parts = []
        if self.unix is not None:
            parts.append(Endpoint(self.unix.listener, source.text).run())
        if self.tcp is not None:
            parts.append(Endpoint(self.tcp, source.text).run())
        if self.settings.textfile is not None and not metrics_warnings(self.settings):
            path = Path(self.settings.textfile)
            parts.append(_keep_file(path, self.settings.interval_s, source))
        try:
            await asyncio.gather(*parts)
        except Exception as error:
            # Jobs do not depend on metrics.
            log.error("event=metrics-failed error=%s", error, exc_info=error)
        await asyncio.Event().wait()

    def close(self) -> None:
        if self.unix is not None:
            self.unix.close()
        if self.tcp is not None:
            self.tcp.close()


def open_outlets(settings: MetricsSettings, beside: Path, *, is_open: bool) -> Outlets:
    """Open what the configuration asks for. `beside` is the path of the daemon's socket; its users
    may read the metrics, too, which is everybody if `is_open`."""
    outlets = Outlets(settings, warnings=metrics_warnings(settings))
    if outlets.warnings:
        return outlets
    found = []
    if settings.socket:
        try:
            outlets.unix = ListeningSocket(beside.with_name(SOCKET_NAME), is_open=is_open)
        except HostError as error:
            found.append(f"metrics.socket: {error.text}; after a change, restart drfd")
    if settings.port is not None:
        try:
            outlets.tcp = _listen(settings.port)
        except OSError as error:
            cure = "choose another port and restart drfd"
            if error.errno == errno.EAFNOSUPPORT:
                cure = "the unit drfd.service keeps it from the network: see administration.md"
            place = f"{LOOPBACK}:{settings.port}"
            found.append(f"metrics.port: cannot listen at {place}: {error.strerror}; {cure}")
    outlets.warnings = tuple(found)
    return outlets


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen()
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


async def _keep_file(path: Path, interval_s: int, source: MetricsSource) -> None:
    """Write the file at intervals, and remove it at the end: old figures must not look new."""
    reported = ""
    try:
        while True:
            text = await source.text(PLAIN)
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
