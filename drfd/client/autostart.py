"""Start of the user's own daemon where there is no system daemon."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from drfd.common import paths
from drfd.common.errors import StillStarting, Unavailable
from drfd.linux.unix_sockets import at_socket

#: Seconds that a daemon may take to answer after its start.
_START_S = 60.0
#: Idle seconds after which the daemon ends by itself.
_IDLE_EXIT_S = 600


def start_daemon(socket_path: Path) -> None:
    """Start the user's daemon in the background. Raises Unavailable if it does not answer."""
    state = paths.user_state(os.environ)
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    if state.stat().st_uid != os.geteuid():
        # HOME is still another user's, as with `su -m`, whose link the log would follow.
        raise Unavailable("no-daemon", f"{state} belongs to somebody else: HOME is not yours")
    log_path = state / "drfd.log"
    process = spawn_daemon(
        log_path, "--state", state, "--socket", socket_path, "--idle-exit", _IDLE_EXIT_S
    )
    await_daemon(process, socket_path, log_path, within_s=_START_S)


def spawn_daemon(log_path: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """Start `drfd serve` with these arguments, in a session of its own. It serves this user alone,
    and so may run as root for root."""
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "drfd.daemon", "serve", "--as-root", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )


def await_daemon(
    process: subprocess.Popen[bytes], socket_path: Path, log_path: Path, *, within_s: float
) -> None:
    """Wait until the daemon answers. Raises Unavailable, with the last line of its log, if it does
    not."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if _answers(socket_path):
            return
        # Another process may have been faster: its daemon is about to answer.
        if process.poll() not in (None, StillStarting.exit_code):
            if _answers(socket_path):
                return
            break
        time.sleep(0.05)
    words = log_path.read_text(errors="replace").strip().rpartition("\n")[2]
    raise Unavailable("no-daemon", f"drfd did not start: {words}", hint=f"see {log_path}")


def _answers(path: Path) -> bool:
    try:
        with at_socket(path) as address, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
        return True
    except OSError:
        return False
