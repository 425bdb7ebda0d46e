"""A light path for an ordinary `drf run`, which leaves all others to the complete program.

The request is sent before anything else is loaded that the run needs; meanwhile the daemon starts
the job. Once it is sent, the complete program cannot start over, because the job connects to the
socket named in the request.
"""

from __future__ import annotations

import os
import sys

from drfd.linux.unix_sockets import without_limits
from drfd.payload.environment import ATTACHED
from drfd.protocol.codec import encode_request
from drfd_cli.quick_request import (
    NO_WARNINGS,
    connect,
    doubts_to_print,
    is_sign,
    line_of,
    read_all,
    send,
    socket_of_daemon,
    surroundings,
    warn,
)
from drfd_cli.terminal.attachment import AttachSocket, catch_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from pathlib import Path
    from typing import NoReturn

_TEXTS = {"--escape": "escape"}
_FLAGS = {"-q": "quiet", "--quiet": "quiet", NO_WARNINGS: NO_WARNINGS}


def run(args: list[str]) -> None:
    """Run the job of the arguments after `run`, and exit as it does. Returns if the complete
    program must do it; no job is queued then."""
    found = read_all("run", args, _TEXTS, _FLAGS, is_dashed=False)
    if found is None:
        return
    fields, given = found
    escape = str(fields.pop("escape", "~"))
    around = surroundings(ATTACHED)
    if around is None or not is_sign(escape) or not _shows_all_text():
        return
    fields |= around
    doubts = [] if NO_WARNINGS in given else doubts_to_print({**fields, "attach": ""}, given)
    if doubts is None:
        return
    try:
        # What cannot be sent is told by the complete program.
        encode_request(fields)
        connection, key = connect()
    except (OSError, ValueError):
        return
    warn(doubts)
    _run(connection, key, fields, is_quiet="quiet" in given, escape=escape)


def _shows_all_text() -> bool:
    """Return whether messages can be printed as they are; otherwise the complete program replaces
    characters."""
    return {sys.stdout.encoding, sys.stderr.encoding} == {"utf-8"}


def _run(
    connection: _socket.socket, key: bytes | None, fields: dict[str, object], *, is_quiet: bool,
    escape: str,
) -> NoReturn:  # fmt: skip
    """Submit the job over the connection, attend to it, and exit."""
    signals = catch_signals()
    try:
        attach_socket = AttachSocket()
        try:
            job = {"key": os.urandom(12).hex(), **fields, "attach": attach_socket.path}
            send(without_limits(connection), line_of(job, key))

            # From here on the daemon is at work; what follows is slow to load.
            from drfd.client.connection import Connection
            from drfd_cli.terminal.attached import attend

            path, is_own = socket_of_daemon()
            client = Connection(path, start=_start_own if is_own else None)

            def submit() -> int:
                return client.submitted(connection, job, key)["id"]

            ended = attend(client, attach_socket, signals, submit, is_quiet=is_quiet, escape=escape)
        finally:
            attach_socket.close()
    except (Exception, KeyboardInterrupt) as error:
        from drfd_cli.main import leave

        leave(error)
    sys.stdout.flush()
    # Python's own end takes some milliseconds, in which it only tidies up its memory.
    os._exit(ended["status"])


def _start_own(socket_path: Path) -> None:
    from drfd_cli.options import start_own

    start_own(socket_path)
