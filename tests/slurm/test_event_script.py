"""The script that Slurm runs at the start and the end of a job: one datagram, and no failure."""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from drfd.slurm.files import event_script

pytestmark = pytest.mark.skipif(not shutil.which("logger"), reason="no logger (bsdutils)")

STARTED = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_COMMENT": "moon.12.1"}
ENDED = {"JOBID": "7", "JOBSTATE": "OUT_OF_MEMORY", "EXITCODE": "0:125", "NODES": "n1"}


def run(place: Path, env: dict[str, str], code: int = 0) -> None:
    """Run the script, which notes starts in the directory `its starts` if there is one."""
    script = place.parent / "drfd-event"
    script.write_text(event_script(place, place.parent / "its starts"))
    done = subprocess.run(["/bin/sh", script], env=env, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (STARTED, b"start 7 n1 moon.12.1"),
        ({**STARTED, "SLURM_JOB_COMMENT": "moon.12.1.5000.0"}, b"start 7 n1 moon.12.1"),
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


@pytest.mark.slow
def test_it_does_not_wait_long_for_a_listener_that_does_not_read(tmp_path: Path) -> None:
    place = tmp_path / "socket"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        listener.bind(str(place))
        # One sender may reach the limit of its own buffer before that of the listener's queue.
        while fill(place, stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))):
            pass
        began = time.monotonic()
        run(place, ENDED)
        assert 1 < time.monotonic() - began < 20


def fill(place: Path, sender: socket.socket) -> int:
    """Send datagrams until no more are taken from this sender, and return how many were."""
    sender.setblocking(False)
    for sent in itertools.count():
        try:
            sender.sendto(b"x", str(place))
        except BlockingIOError:
            return sent
    raise AssertionError


def noted(place: Path) -> dict[str, str]:
    return {link.name: str(link.readlink()) for link in (place.parent / "its starts").iterdir()}


def test_it_fails_at_the_second_start_of_an_attempt_alone(tmp_path: Path) -> None:
    place = tmp_path / "nobody"
    (tmp_path / "its starts").mkdir()
    run(place, STARTED)
    assert noted(place) == {"moon.12.1": "7", "7": "moon.12.1"}
    run(place, {**ENDED, "JOBSTATE": "NODE_FAIL"})
    run(place, STARTED, code=1)
    run(place, {**STARTED, "SLURM_JOB_ID": "8"}, code=1)
    run(place, {**STARTED, "SLURM_JOB_ID": "9", "SLURM_JOB_COMMENT": "moon.12.2"})
    assert noted(place) == {
        "7": "moon.12.1",
        "9": "moon.12.2",
        "moon.12.1": "7",
        "moon.12.1.7": "refused",
        "moon.12.1.8": "refused",
        "moon.12.2": "9",
    }


def test_it_fails_at_the_start_of_another_under_the_id_of_one_that_has_started(
    tmp_path: Path,
) -> None:
    place = tmp_path / "nobody"
    (tmp_path / "its starts").mkdir()
    run(place, STARTED)
    second = {**STARTED, "SLURM_JOB_COMMENT": "moon.13.1"}
    run(place, second, code=1)
    # The other has not started, and does under an id of its own.
    run(place, {**second, "SLURM_JOB_ID": "8"})
    assert noted(place) == {
        "7": "moon.12.1",
        "8": "moon.13.1",
        "moon.12.1": "7",
        "moon.13.1": "8",
        "moon.13.1.7": "reused",
    }


def test_disk_rates_in_the_comment_are_no_part_of_the_name(tmp_path: Path) -> None:
    place = tmp_path / "nobody"
    (tmp_path / "its starts").mkdir()
    run(place, {**STARTED, "SLURM_JOB_COMMENT": "moon.12.1.5000.0"})
    assert noted(place) == {"moon.12.1": "7", "7": "moon.12.1"}


def test_it_notes_the_end_of_an_attempt_that_has_started(tmp_path: Path) -> None:
    place = tmp_path / "nobody"
    (tmp_path / "its starts").mkdir()
    run(place, ENDED)
    assert noted(place) == {}
    run(place, STARTED)
    run(place, {**ENDED, "JOBSTATE": "CANCELLED"})
    assert noted(place) == {"moon.12.1": "7", "7": "moon.12.1"}
    run(place, {**ENDED, "JOBSTATE": "FAILED", "EXITCODE": "3:0"})
    assert noted(place)["moon.12.1.ended"] == "FAILED:3:0"


def test_an_attempt_may_start_whose_id_was_noted_before_the_script_was_killed(
    tmp_path: Path,
) -> None:
    place = tmp_path / "nobody"
    (tmp_path / "its starts").mkdir()
    (tmp_path / "its starts" / "7").symlink_to("moon.12.1")
    run(place, STARTED)
    assert noted(place) == {"7": "moon.12.1", "moon.12.1": "7"}


@pytest.mark.parametrize(
    "comment", ["../x.1.1", "a/b.1.1", "$(id).1.1", ".1.1", "a..1", "a.1.", ""]
)
def test_a_comment_that_names_no_attempt_is_no_path(tmp_path: Path, comment: str) -> None:
    place = tmp_path / "nobody"
    (tmp_path / "its starts").mkdir()
    for _ in range(2):
        run(place, {**STARTED, "SLURM_JOB_COMMENT": comment})
    assert noted(place) == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drfd-event", "its starts"]
