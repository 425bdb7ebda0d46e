"""Whether a user has signed what root is to run: what root does with a file of the controller's
before it knows; the door at which users get their keys, also where the user directory is slow; and
how a user's client gets one."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from drfd.launcher.protocol import Assignment
from drfd.launcher.signatures import SigningKeys, sealed_digest, with_check
from drfd.linux.sealed import NotSealed, seal, sealed_size
from drfd.payload.pack import MAX_BYTES, of_request
from drfd.payload.signature import KEY_BYTES, digest_of, fetch_key, proof_of
from drfd.protocol.codec import MAX_REQUEST_BYTES, encode_request
from kernel import send_lingering
from launcher.rig import order

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def fds() -> Iterator[list[int]]:
    made: list[int] = []
    yield made
    for fd in made:
        os.close(fd)


def holes(size: int, flags: int = 0) -> int:
    fd = os.memfd_create("holes", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | flags)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


@pytest.mark.parametrize("size", [1, (256 << 10) - 1, 256 << 10, (1 << 20) + 7])
def test_a_file_read_in_pieces_has_the_digest_of_its_bytes(size: int, fds: list[int]) -> None:
    data = (os.urandom(1 << 16) * (size // (1 << 16) + 1))[:size]
    fds.append(seal(data))
    # Whoever shares the descriptor may have read on.
    os.lseek(fds[0], size, os.SEEK_SET)
    assert sealed_digest(fds[0]) == digest_of(data)


def test_looking_at_a_hole_makes_no_memory_of_it(fds: list[int]) -> None:
    """Each page that was mapped was made for, and charged to, the launcher and its runners, and
    stayed for as long as the controller kept the file: a few dozen unsigned orders had the kernel
    kill runners for want of memory, and their jobs were lost."""
    size = 8 << 20
    fds.append(holes(size))
    assert sealed_digest(fds[0]) == digest_of(bytes(size))
    assert os.fstat(fds[0]).st_blocks == 0


def test_a_file_of_huge_pages_needs_none(fds: list[int]) -> None:
    """To map it failed where the machine has no huge pages, and ended the launcher."""
    try:
        fds.append(holes(2 << 20, os.MFD_HUGETLB))
    except OSError as error:
        pytest.skip(f"no files of huge pages here: {error.strerror}")
    size = sealed_size(fds[0], MAX_BYTES)
    assert sealed_digest(fds[0]) == digest_of(bytes(size))


def test_a_descriptor_that_cannot_be_read_is_refused(fds: list[int]) -> None:
    """The failure to read it came later, where nobody expected one, and ended the launcher."""
    fds.append(seal(b"x"))
    fds.append(os.open(f"/proc/self/fd/{fds[0]}", os.O_WRONLY))
    assert sealed_size(fds[0], MAX_BYTES) == 1
    with pytest.raises(NotSealed, match="writing alone"):
        sealed_size(fds[1], MAX_BYTES)


@pytest.mark.parametrize("proof", [None, "0" * 64])
@pytest.mark.parametrize("has_keys", [True, False])
def test_only_what_its_user_has_signed_is_accepted_if_anything_is_signed(
    proof: str | None, has_keys: bool, tmp_path: Path, fds: list[int]
) -> None:
    keys, asked = SigningKeys(tmp_path), order(cwd=Path("/"), payload=b"x" * 1000)
    if proof is None:
        proof = proof_of(keys.key_of(asked.uid, asked.user), digest_of(asked.data))
        is_signed = True
    else:
        is_signed = not has_keys
    fds.append(seal(asked.data))
    assignment = Assignment(replace(asked.order, proof=proof), fds[0])
    found = with_check(assignment, keys if has_keys else None)
    digest = digest_of(asked.data) if has_keys else None
    assert (found.is_signed, found.digest) == (is_signed, digest)


def test_the_payload_of_the_longest_request_is_accepted(fds: list[int]) -> None:
    fields = {"op": "submit", "v": 1, "argv": ["x"], "cwd": "/", "script": ""}
    fields["script"] = "x" * (MAX_REQUEST_BYTES - len(encode_request(fields)))
    assert len(encode_request(fields)) == MAX_REQUEST_BYTES
    fds.append(seal(of_request(fields)))
    assert MAX_REQUEST_BYTES * 0.99 < sealed_size(fds[0], MAX_BYTES) < MAX_BYTES * 0.51


# -- the door of keys ---------------------------------------------------------------------


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
signatures.serve(listener, lambda uid, name: name.encode().ljust(32, b"."), 0)
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


# -- how a user's client gets its key -----------------------------------------------------


@pytest.fixture(autouse=True)
def of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the doors of this test, whoever runs it, be root's."""
    monkeypatch.setattr("drfd.payload.signature.peer_of", lambda connection: (0, 0))


@pytest.mark.slow
def test_who_comes_to_a_crowded_door_waits_in_line(tmp_path: Path) -> None:
    """It was turned away at once, as often as it asked: with a few processes that wait at the door
    all the time one user kept all others from submitting."""
    door = tmp_path / "keys.sock"
    key = bytes(range(KEY_BYTES))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(door))
        listener.listen(0)
        crowd = []
        while True:
            one = socket.socket(socket.AF_UNIX)
            crowd.append(one)
            one.setblocking(False)
            try:
                one.connect(str(door))
            except BlockingIOError:
                break

        def serve() -> None:
            time.sleep(0.5)
            for _ in crowd:
                connection, _ = listener.accept()
                with connection:
                    connection.send(key)

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        assert fetch_key(str(door), patience_s=0) == key
        server.join()
        for one in crowd:
            one.close()


#: More, in either way, than a socket keeps for whoever does not read it.
@pytest.mark.parametrize(("piece_bytes", "pieces"), [(1 << 16, 64), (1, 20_000)])
def test_a_door_that_says_too_much_is_not_heard_out(
    tmp_path: Path, piece_bytes: int, pieces: int
) -> None:
    """All that a false door sent was kept in memory, for as long as it went on."""
    door = tmp_path / "keys.sock"
    sent: list[int] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            for _ in range(pieces):
                sent.append(connection.send(bytes(piece_bytes)))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(door))
        listener.listen(1)
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        assert fetch_key(str(door), patience_s=-1) is None
        server.join(30)
    assert not server.is_alive()
    assert sum(sent) < piece_bytes * pieces


def test_only_root_gives_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller names the door, and could name one of its own."""
    monkeypatch.setattr("drfd.payload.signature.peer_of", lambda connection: (64000, 0))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "keys.sock"))
        listener.listen()
        assert fetch_key(str(tmp_path / "keys.sock"), patience_s=-1) is None
        with listener.accept()[0] as caller:
            assert caller.recv(1) == b""


def test_a_key_that_comes_in_pieces_is_a_key(tmp_path: Path) -> None:
    door = tmp_path / "keys.sock"
    key = bytes(range(KEY_BYTES))

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            for at in range(KEY_BYTES):
                connection.send(key[at : at + 1])
                time.sleep(0.001)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(door))
        listener.listen(1)
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        assert fetch_key(str(door), patience_s=-1) == key
        server.join(30)
