"""A drfd of a demo's own: started, asked, ended, and nothing left behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drfd.client.autostart import await_daemon, spawn_daemon
from drfd.client.connection import Connection
from drfd.errors import Unavailable
from drfd_cli import output

View = dict[str, Any]

#: How often the daemon is waited for as long as the client waits.
_TRIES = 4


@contextmanager
def directory(*, keep: bool = False, on_disk: bool = False) -> Iterator[Path]:
    """Of the demo's own, gone at its end, also when that comes by a signal. `on_disk`: not in
    memory, as /tmp may be."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda caught, frame: sys.exit(128 + caught))
    above = "/var/tmp" if on_disk else None  # noqa: S108  # mkdtemp makes one of our own in it
    place = Path(tempfile.mkdtemp(prefix="drf-demo-", dir=above))
    # Readable for the daemon when it gives up root's rights.
    place.chmod(0o755)
    try:
        yield place
    finally:
        if keep:
            output.say(f"outputs and logs are in {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def private_daemon(place: Path, config_text: str) -> Iterator[Connection]:
    config, socket_path = place / "drfd.toml", place / "drfd.sock"
    config.write_text(config_text)
    log_path = place / "drfd.log"
    process = spawn_daemon(
        log_path, "--state", place / "state", "--socket", socket_path, "--config", config
    )
    try:
        _await(process, socket_path, log_path)
        yield Connection(socket_path)
    finally:
        _end_jobs(socket_path)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def _await(process: subprocess.Popen[bytes], socket_path: Path, log_path: Path) -> None:
    """As long as it lives, and on slow processors longer than somebody who types would wait."""
    for left in reversed(range(_TRIES)):
        try:
            await_daemon(process, socket_path, log_path)
            break
        except Unavailable:
            if left == 0 or process.poll() is not None:
                raise


def controls_of(client: Connection) -> View:
    """What `drf doctor` says, as soon as the launcher has told what it can enforce."""
    doctor = client.request("doctor")
    while not doctor["controls"]:
        time.sleep(0.05)
        doctor = client.request("doctor")
    return doctor


def _end_jobs(socket_path: Path) -> None:
    """Jobs outlive a daemon; those of the demo shall not, however it ends."""
    client = Connection(socket_path)
    deadline = time.monotonic() + 15
    try:
        client.request("cancel", select={"everything": True})
        while client.request("status")["jobs"] and time.monotonic() < deadline:
            time.sleep(0.1)
    except Unavailable:
        # It never came up, and so has started nothing.
        return
