"""Starting the user's own daemon when no system daemon is there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from drfd import paths
from drfd.errors import Unavailable

_START_S = 15.0
#: It ends by itself after so long without jobs.
_IDLE_EXIT_S = 600


def start_daemon(socket_path: Path) -> None:
    """Start `drfd serve` in the background and wait until it answers."""
    state = paths.user_state(os.environ)
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    log_path = state / "drfd.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-m", "drfd.daemon", "serve"),
                *("--state", str(state), "--socket", str(socket_path)),
                *("--idle-exit", str(_IDLE_EXIT_S)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    print("drf: started your own drfd (no system daemon is running here)", file=sys.stderr)
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if _answers(socket_path):
            return
        # Somebody else's start may have won; then ours ends and theirs answers.
        if process.poll() not in (None, 1):
            break
        time.sleep(0.05)
    raise Unavailable(
        "no-daemon", "your own drfd did not start", hint=f"its last words are in {log_path}"
    )


def _answers(path: Path) -> bool:
    address, directory = paths.socket_address(path)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
        return True
    except OSError:
        return False
    finally:
        if directory is not None:
            os.close(directory)
