"""What `drfd metrics` prints: the metrics of a running daemon, once, and shipped files."""

from __future__ import annotations

import errno
import http.client
import socket
from contextlib import closing
from importlib import resources
from pathlib import Path

from drfd.common.errors import HostError, printable
from drfd.linux.unix_sockets import connect_in_line, without_limits

#: The name on the command line → the file in this package.
METRICS_FILES = {"alerts": "alerts.yml", "dashboard": "dashboard.json"}
#: Seconds for which to wait for a place in line, and for each piece of the answer.
ANSWER_S = 30
#: Bytes of an answer, at most.
_MOST_BYTES = 64 << 20
#: Bytes of what an error says, at most.
_MOST_SAID = 200
_OTHER_PLACE = "--socket PATH names another place"
_TRY_AGAIN = "try again, and if it stays so, see drf doctor"
_OTHER_PROGRAM = f"another program may listen there; {_OTHER_PLACE}"
#: What is wrong and what helps, by the error of connecting. Others are told in the system's words.
_BY_ERRNO = {
    errno.ENOENT: (
        "No such file or directory",
        f"[metrics] socket = true in drfd.toml and a restart of drfd give them, and {_OTHER_PLACE}",
    ),
    errno.ECONNREFUSED: ("nobody listens there", f"start drfd; {_OTHER_PLACE}"),
    errno.EACCES: ("Permission denied", "ask as root, or as the user whose drfd it is"),
}


def shipped_file(name: str) -> str:
    """Return the text of a shipped file, by its name on the command line."""
    return resources.files("drfd.daemon.metrics").joinpath(METRICS_FILES[name]).read_text()


def ask_once(path: Path) -> str:
    """Return the metrics of the daemon whose metrics socket this is. Raises HostError."""
    with closing(_UnixConnection(path)) as connection:
        try:
            connection.connect()
        except OSError as error:
            raise _not_connected(path, error) from None
        try:
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            with response:
                body = response.read(_MOST_BYTES)
            if response.status == http.client.OK:
                if response.length:
                    # The rest is missing.
                    raise http.client.IncompleteRead(b"")
                return body.decode()
        except TimeoutError:
            text = f"it did not answer within {ANSWER_S} s"
            raise _no_metrics(path, text, _TRY_AGAIN) from None
        except OSError:
            text = "the connection was closed without an answer"
            raise _no_metrics(path, text, _TRY_AGAIN) from None
        except (http.client.HTTPException, UnicodeDecodeError):
            raise _no_metrics(path, "the answer is not drfd's", _OTHER_PROGRAM) from None
    said = body[:_MOST_SAID].decode("ascii", "replace").strip()
    text = ", ".join(filter(None, (f"{response.status} {response.reason}", said)))
    raise _no_metrics(path, text, _TRY_AGAIN)


def _no_metrics(path: Path, text: str, hint: str) -> HostError:
    return HostError("metrics", printable(f"no metrics at {path}: {text}"), hint=hint)


def _not_connected(path: Path, error: OSError) -> HostError:
    if error.errno == errno.EAGAIN:
        text = f"it has too many readers, and did not answer within {ANSWER_S} s"
        return _no_metrics(path, text, _TRY_AGAIN)
    if error.errno is None:
        # Python's own error, before it asks the system.
        return _no_metrics(path, "the name is too long for a socket", _OTHER_PLACE)
    text, hint = _BY_ERRNO.get(error.errno, (str(error.strerror), _OTHER_PLACE))
    return _no_metrics(path, text, hint)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connect, once there is a place in line. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX)
        connect_in_line(self.sock, str(self._path), ANSWER_S)
        without_limits(self.sock)
        self.sock.settimeout(ANSWER_S)
