"""The private daemon of `drf demo`, which starts and ends with it and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from drfd.client.autostart import await_daemon, spawn_daemon
from drfd.client.connection import Connection
from drfd.common.errors import Unavailable

if TYPE_CHECKING:
    from drfd.protocol.replies import DoctorReply


#: The environment variable by which the tasks of a demo are found.
MARK = "DRF_DEMO"
#: Seconds that the start of the daemon may take, longer than a client waits.
_START_S = 240.0
#: Seconds after which a daemon without a launcher gets none any more, and the name of its log.
_LAUNCHER_S, _LOG = 30.0, "drfd.log"


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off what ends a demo from outside until the end of the block, which cleans up."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda each, frame: caught.append(each))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if caught:
            signal.raise_signal(caught[0])


@contextmanager
def directory() -> Iterator[Path]:
    """Yield a temporary directory, which is removed at the end, also after a signal."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda caught, frame: sys.exit(128 + caught))
    place = Path(tempfile.mkdtemp(prefix="drf-demo-"))
    # The daemon must read it after it has dropped root's rights.
    place.chmod(0o755)
    try:
        yield place
    finally:
        with uninterrupted():
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def private_daemon(place: Path) -> Iterator[Connection]:
    config, socket_path = place / "drfd.toml", place / "drfd.sock"
    config.write_text(config_for(place))
    log_path = place / _LOG
    process = spawn_daemon(
        log_path, "--state", place / "state", "--socket", socket_path, "--config", config
    )
    try:
        await_daemon(process, socket_path, log_path, within_s=_START_S)
        yield Connection(socket_path)
    finally:
        with uninterrupted():
            _end_jobs(socket_path)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def config_for(place: Path) -> str:
    """Return the configuration of section 4.1 of the DRF paper: 9 CPUs and 18 GB."""
    # Root's daemon would else become the user drfd, if there is one, and take signed jobs alone.
    user = 'user = "root"' if os.getuid() == 0 else ""
    return f"""
[capacity]
cores = 9
memory = "18G"
reserve_memory = 0
[[disk]]
name = "demo"
path = "{place}"
read = "200M"
write = "200M"
[pools.A]
[pools.B]
[pools.C]
[scheduling]
respect_external_load = false
[daemon]
{user}
[enforcement]
grace = "2s"
"""


def controls_of(client: Connection, place: Path) -> DoctorReply:
    """Return the reply to `doctor`, once the launcher has reported what it can enforce. Raises
    Unavailable, with the last reason in the daemon's log, if there is no launcher."""
    doctor: DoctorReply = client.request("doctor")
    while not doctor["controls"]:
        if (doctor["launcher_away_s"] or 0) > _LAUNCHER_S:
            raise Unavailable("no-launcher", _reason_in((place / _LOG).read_text(errors="replace")))
        time.sleep(0.05)
        doctor = client.request("doctor")
    return doctor


def _reason_in(log: str) -> str:
    said = [line for line in log.splitlines() if line.startswith("drfd-launcher: ")]
    reasons = [line for line in said if " event=" not in line]
    return (reasons or said or ["drfd-launcher: it did not start"])[-1]


def limits_line(doctor: DoctorReply) -> str:
    controls = doctor["controls"].items()
    return "Limits here: " + ", ".join(f"{name} {text.split(':')[0]}" for name, text in controls)


def _end_jobs(socket_path: Path) -> None:
    """Cancel all jobs, which would outlive their daemon."""
    client = Connection(socket_path)
    deadline = time.monotonic() + 15
    try:
        client.request("cancel", select={"everything": True})
        while client.request("status")["jobs"] and time.monotonic() < deadline:
            time.sleep(0.1)
    except Unavailable:
        # The daemon never answered, so it has started nothing.
        return
