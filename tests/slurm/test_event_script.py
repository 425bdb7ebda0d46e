"""The script that Slurm runs at the start and the end of a job: one datagram, and no failure."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from drfd.slurm.files import event_script

pytestmark = pytest.mark.skipif(not shutil.which("logger"), reason="no logger (bsdutils)")

STARTED = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_COMMENT": "moon.12.1"}
ENDED = {"JOBID": "7", "JOBSTATE": "OUT_OF_MEMORY", "EXITCODE": "0:125", "NODES": "n1"}


def run(place: Path, env: dict[str, str]) -> None:
    script = place.parent / "drfd-event"
    script.write_text(event_script(place))
    done = subprocess.run(["/bin/sh", script], env=env, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (STARTED, b"start 7 n1 moon.12.1"),
        ({**STARTED, "SLURM_JOB_COMMENT": "$(id) `id` a  b"}, b"start 7 n1 $(id) `id` a  b"),
        (ENDED, b"end 7 0:125 n1 OUT_OF_MEMORY"),
    ],
)
def test_a_datagram_says_what_has_happened(
    tmp_path: Path, env: dict[str, str], line: bytes
) -> None:
    place = tmp_path / "a socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(place))
        run(place, env)
        listener.settimeout(10)
        assert listener.recv(4096).partition(b" drfd-slurm: ")[2] == line
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.recv(4096)


def test_it_does_not_fail_where_nobody_listens(tmp_path: Path) -> None:
    run(tmp_path / "nobody", STARTED)


def test_it_does_not_wait_long_for_a_listener_that_does_not_read(tmp_path: Path) -> None:
    place = tmp_path / "socket"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        listener.bind(str(place))
        sender.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                sender.sendto(b"x", str(place))
        began = time.monotonic()
        run(place, ENDED)
        assert 1 < time.monotonic() - began < 20
