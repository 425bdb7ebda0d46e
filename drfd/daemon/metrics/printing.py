"""What `drfd metrics` prints: the metrics of a running daemon, once, and shipped files."""

from __future__ import annotations

import http.client
import socket
from importlib import resources
from pathlib import Path

from drfd.common.errors import HostError

#: The name on the command line → the file in this package.
METRICS_FILES = {"alerts": "alerts.yml", "dashboard": "dashboard.json"}
#: Seconds in which a daemon must answer.
_ANSWER_S = 30.0


def shipped_file(name: str) -> str:
    """Return the text of a shipped file, by its name on the command line."""
    return resources.files("drfd.daemon.metrics").joinpath(METRICS_FILES[name]).read_text()


def ask_once(path: Path) -> str:
    """Return the metrics of the daemon whose metrics socket this is. Raises HostError."""
    connection = _UnixConnection(path)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise HostError(
            "metrics",
            f"no metrics at {path}: {reason}",
            hint="[metrics] socket = true in drfd.toml and a restart of drfd give them, "
            "and --socket PATH names another place",
        ) from None
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise HostError("metrics", f"no metrics at {path}: the answer is {response.status}")
    return body.decode()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_ANSWER_S)
        self.sock.connect(str(self._path))
