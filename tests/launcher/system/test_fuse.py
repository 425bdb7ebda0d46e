"""A user's file system that never answers keeps none of the user's killed processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import kernel_calls
from drfd.launcher.system import fuse
from launcher.rig import WAIT_S, state_of, until

MINE, OTHERS = 64_321, 64_322
#: Answers the first request (FUSE_INIT) alone.
SERVER = """
import os, struct, sys
fd = int(sys.argv[1])
while True:
    length, code, unique = struct.unpack_from("=IIQ", os.read(fd, 1 << 17))
    if code == 26:
        body = struct.pack("=IIIIHHII", 7, 31, 0, 0, 12, 12, 4096, 1).ljust(64, bytes(1))
        os.write(fd, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)
    else:
        print("asked", flush=True)
"""


@pytest.fixture
def control(tmp_path, monkeypatch) -> Iterator[None]:
    at = tmp_path / "control"
    at.mkdir()
    try:
        kernel_calls.mount("none", str(at), "fusectl")
    except OSError as error:
        pytest.skip(f"no control files of FUSE: {error}")
    monkeypatch.setattr(fuse, "_CONNECTIONS", at)
    yield
    subprocess.run(["umount", at], check=True)


@pytest.fixture
def silent(control, tmp_path) -> Iterator[subprocess.Popen[str]]:
    """The server of a file system at `at`, of a user of its own."""
    at = tmp_path / "at"
    at.mkdir()
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id={MINE},group_id={MINE}"
    kernel_calls.mount("fuse", str(at), "fuse", options=options)
    words = [sys.executable, "-I", "-c", SERVER, str(fd)]
    server = subprocess.Popen(words, pass_fds=(fd,), stdout=subprocess.PIPE, text=True)
    os.close(fd)
    yield server
    server.kill()
    server.communicate()
    subprocess.run(["umount", "-l", at], check=True)


@pytest.mark.system
def test_a_killed_process_that_waits_for_it_ends(silent, tmp_path):
    fd = os.open(tmp_path / "at", os.O_PATH)
    stat = subprocess.Popen(
        ["stat", f"/proc/self/fd/{fd}/file"], user=MINE, group=MINE, extra_groups=[], pass_fds=(fd,)
    )
    os.close(fd)
    try:
        assert silent.stdout.readline() == "asked\n"
        assert fuse.abort_unanswered([os.getpid()], MINE) == 0, "it waits for nothing"
        stat.kill()
        until("a process that cannot be killed", lambda: state_of(stat.pid) == "D")
        assert fuse.abort_unanswered([stat.pid], OTHERS) == 0
        assert fuse.abort_unanswered([stat.pid], MINE) == 1
        assert stat.wait(WAIT_S) == -signal.SIGKILL
    finally:
        silent.kill()
        stat.kill()
        stat.wait(WAIT_S)
