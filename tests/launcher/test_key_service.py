"""The door of keys where the user directory is slow."""

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

from drfd.payload.signature import fetch_key
from kernel import send_lingering

#: Stands for a directory: what it says of a uid, of which it says nothing for ever, and of which
#: once there is a file. Callers have the uids of a list, one after the other.
_SERVE = """
import pwd, socket, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from drfd.launcher import signatures

SILENT, BROKEN, NOBODY, SLOW, RENAMED = 61001, 61002, 61003, (61004, 61005), 61006
asked = []
passwd = sys.argv[2] + ".passwd"
uids = iter(map(int, sys.argv[3].split(",")))

def look_up(uid):
    asked.append(uid)
    if uid == SILENT or uid >= 100000:
        threading.Event().wait()
    while uid in SLOW and not Path(f"{sys.argv[2]}.{uid}").exists():
        time.sleep(0.01)
    if uid in (BROKEN, NOBODY):
        raise KeyError(uid)
    if uid == RENAMED:
        line = next(line for line in open(passwd) if f":{uid}:" in line)
        return pwd.struct_passwd((line.split(":")[0], "", uid, uid, "", "/", ""))
    return pwd.struct_passwd((f"u{uid}", "", uid, uid, "", "/", ""))

def has_account(uid):
    if uid == BROKEN and asked.count(uid) == 1:
        raise OSError(5, "the directory is not running")
    return False

pwd.getpwuid = look_up
signatures.syscalls.has_account = has_account
signatures.peer_of = lambda connection: (next(uids), 0)
Subordinates = getattr(signatures, "Subordinates", None)
if Subordinates is not None:
    Subordinates.has = lambda self, uid: uid >= 100000
LocalAccounts = getattr(signatures, "LocalAccounts", None)
signatures.LocalAccounts = lambda: LocalAccounts(Path(passwd))
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen(1024)
print("ready", flush=True)
signatures.serve(listener, lambda uid, name: name.encode().ljust(32, b"."))
"""
_ROOT = str(Path(__file__).parents[2])


class Door:
    def __init__(self, path: Path, uids: list[int]) -> None:
        self.path = path
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, _ROOT, str(path), ",".join(map(str, uids))],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self._open: list[socket.socket] = []

    def crowd(self, number: int) -> None:
        for _ in range(number):
            self._open.append(socket.socket(socket.AF_UNIX))
            self._open[-1].connect(str(self.path))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        for one in self._open:
            one.close()


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[list[Door]]:
    made: list[Door] = []
    yield made
    for door in made:
        door.close()


def fetched(door: Door) -> bytes | None:
    """None also if there is no answer for a while."""
    found: list[bytes | None] = []
    asker = threading.Thread(
        target=lambda: found.append(fetch_key(str(door.path), patience_s=0)), daemon=True
    )
    asker.start()
    asker.join(60)
    return found[0] if found else None


@pytest.mark.slow
@pytest.mark.parametrize("uids", [[61001] * 400, list(range(100000, 100400))])
def test_a_user_of_whom_the_directory_says_nothing_keeps_no_other_waiting(
    doors: list[Door], tmp_path: Path, uids: list[int]
) -> None:
    """All threads asked for that user's uid, or for those that are subordinate to it, and the other
    callers were turned away."""
    doors.append(Door(tmp_path / "keys.sock", [*uids, 1000, 1001, 1000]))
    doors[0].crowd(len(uids))
    for uid in (1000, 1001, 1000):
        assert fetched(doors[0]) == f"u{uid}".encode().ljust(32, b".")


def test_no_answer_of_the_directory_is_not_taken_for_no_account(
    doors: list[Door], tmp_path: Path
) -> None:
    """Whoever came in that moment was told for a minute that there was no such account."""
    doors.append(Door(tmp_path / "keys.sock", [61002, 61002, 61003]))
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(doors[0].path))
        assert caller.recv(64) == b""
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(doors[0].path))
            assert caller.recv(64) == b"-"


def test_the_door_is_open_to_this_very_user(doors: list[Door], tmp_path: Path) -> None:
    doors.append(Door(tmp_path / "keys.sock", [os.getuid()]))
    assert fetched(doors[0]) == f"u{os.getuid()}".encode().ljust(32, b".")


def test_a_uid_that_is_given_to_somebody_else_gets_their_key_at_once(
    doors: list[Door], tmp_path: Path
) -> None:
    """It got the deleted account's for up to ten minutes: what it signed with that was refused."""
    passwd = tmp_path / "keys.sock.passwd"
    passwd.write_text("grace:x:61006:100:::\n")
    doors.append(Door(tmp_path / "keys.sock", [61006] * 3))
    assert [fetched(doors[0]) for _ in range(2)] == [b"grace".ljust(32, b".")] * 2
    new = tmp_path / "new"
    new.write_text("hopper:x:61006:100:::\n")
    new.rename(passwd)
    assert fetched(doors[0]) == b"hopper".ljust(32, b".")


@pytest.mark.slow
def test_a_descriptor_that_a_caller_sends_keeps_nobody_waiting(
    doors: list[Door], tmp_path: Path
) -> None:
    """The door closed it with the connection, which takes as long as the caller wishes, and gave
    nobody a key meanwhile."""
    doors.append(Door(tmp_path / "keys.sock", [61004, 1000, 61005, 1000]))
    with ExitStack() as stack:
        for uid in (61004, 61005):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(str(doors[0].path))
                send_lingering(caller, stack)
                (tmp_path / f"keys.sock.{uid}").touch()
                assert len(caller.recv(64)) == 32
            assert fetched(doors[0]) == b"u1000".ljust(32, b".")
