"""Unwanted descriptors block no process that reads or closes a socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from drfd.linux import descriptor_guard
from instance import wait_for
from kernel import LINGER_S, send_lingering

ROOT = str(Path(__file__).parents[2])

#: What a server does with its connection; "done" when nothing has kept it.
SERVE = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from drfd.linux import descriptor_guard

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen()
listener = descriptor_guard.guarded(listener)
print("ready", flush=True)
connection, _ = listener.accept()
sys.stdin.readline()
connection.setblocking(False)
try:
    if sys.argv[3] == "reads":
        while connection.recv(1000):
            pass
    elif sys.argv[3] == "reads into":
        while connection.recv_into(bytearray(1000)):
            pass
except OSError:
    pass
connection.close()
print("done", flush=True)
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("deed", ["reads", "reads into", "closes"])
@pytest.mark.parametrize("before", [0, 70_000], ids=["at once", "after much else"])
def test_a_descriptor_that_nobody_wants_keeps_nobody_waiting(
    tmp_path: Path, stack: ExitStack, deed: str, before: int
) -> None:
    """Whoever read past it, or closed the connection, waited for as long as its sender wished: one
    message of any user's stopped a whole daemon."""
    path = str(tmp_path / "s")
    command = [sys.executable, "-c", SERVE, ROOT, path, deed]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = stack.enter_context(subprocess.Popen(command, **pipes, bufsize=0))  # type: ignore[call-overload]
    stack.callback(server.kill)
    assert server.stdout.readline() == b"ready\n"
    client = stack.enter_context(socket.socket(socket.AF_UNIX))
    client.connect(path)
    client.sendall(b"x" * before)
    send_lingering(client, stack)
    out, _ = server.communicate(b"\n", timeout=LINGER_S - 10)
    assert out == b"done\n"


@pytest.fixture
def pair(tmp_path: Path, stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """A caller, and the connection that a guarded listener has of it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    listener = stack.enter_context(descriptor_guard.guarded(listener))
    caller = stack.enter_context(socket.socket(socket.AF_UNIX))
    caller.connect(str(tmp_path / "s"))
    return caller, stack.enter_context(listener.accept()[0])


def test_all_else_is_read_as_ever(pair: tuple[socket.socket, socket.socket]) -> None:
    caller, connection = pair
    caller.sendall(b"one line\nand")
    assert connection.recv(9) == b"one line\n"
    buffer = bytearray(9)
    assert connection.recv_into(buffer) == 3
    assert buffer[:3] == b"and"
    connection.sendall(b"yes")
    assert caller.recv(9) == b"yes"
    caller.shutdown(socket.SHUT_WR)
    assert connection.recv(9) == b""
    connection.setblocking(False)
    assert connection.recv_into(buffer) == 0


def test_a_connection_with_a_descriptor_is_good_for_nothing_more(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    caller, connection = pair
    caller.sendall(b"before")
    assert connection.recv(100) == b"before"
    socket.send_fds(caller, [b"with"], [0])
    for _ in range(2):
        with pytest.raises(ConnectionError):
            connection.recv(100)


def test_nothing_is_left_open_of_connections_with_descriptors(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    caller, connection = pair
    inode = inode_of(connection.fileno())
    socket.send_fds(caller, [b"with"], [0] * 100)
    connection.close()
    assert connection.fileno() == -1
    wait_for("the end of the connection", lambda: inode not in open_inodes())


def test_however_many_connections_with_descriptors_are_closed_two_threads_do(
    stack: ExitStack, tmp_path: Path
) -> None:
    """Each had a thread of its own, for which whoever closed it waited."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "many"))
    listener.listen()
    listener = stack.enter_context(descriptor_guard.guarded(listener))
    threads = threading.active_count()
    connections, inodes = [], set()
    for _ in range(100):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / "many"))
            connections.append(listener.accept()[0])
            inodes.add(inode_of(connections[-1].fileno()))
            socket.send_fds(caller, [b"with"], [0])
    most = 0
    for connection in connections:
        connection.close()
        most = max(most, threading.active_count() - threads)
    assert most <= 3, "the last one may be about to end"
    wait_for("the end of all connections", lambda: not inodes & open_inodes())


def inode_of(fd: int | str) -> int:
    """Of an open file of this process; 0 where it has just been closed."""
    try:
        return os.stat(f"/proc/self/fd/{fd}").st_ino
    except FileNotFoundError:
        return 0


def open_inodes() -> set[int]:
    """Of this process. Other descriptors of it may come and go, as a test before has left some for
    a thread to close."""
    return {inode_of(fd) for fd in os.listdir("/proc/self/fd")}
