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
from drfd.launcher.signatures import PIECE_BYTES, SealedDigest, SignatureChecks, SigningKeys
from drfd.linux.sealed import NotSealed, seal, sealed_size
from drfd.payload.pack import MAX_BYTES
from drfd.payload.signature import KEY_BYTES, digest_of, fetch_key, proof_of
from kernel import send_lingering
from launcher.rig import Asked, MakeLauncher, order
from seeds import seeds

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
def fds() -> Iterator[list[int]]:
    made: list[int] = []
    yield made
    for fd in made:
        os.close(fd)


def digest_of_sealed(fd: int) -> bytes:
    digest = SealedDigest(fd)
    while (found := digest.step()) is None:
        pass
    return found


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
    assert digest_of_sealed(fds[0]) == digest_of(data)


def test_looking_at_a_hole_makes_no_memory_of_it(fds: list[int]) -> None:
    """Each page that was mapped was made for, and charged to, the launcher and its runners, and
    stayed for as long as the controller kept the file: a few dozen unsigned orders had the kernel
    kill runners for want of memory, and their jobs were lost."""
    size = 8 << 20
    fds.append(holes(size))
    assert digest_of_sealed(fds[0]) == digest_of(bytes(size))
    assert os.fstat(fds[0]).st_blocks == 0


def test_a_file_of_huge_pages_needs_none(fds: list[int]) -> None:
    """To map it failed where the machine has no huge pages, and ended the launcher."""
    try:
        fds.append(holes(2 << 20, os.MFD_HUGETLB))
    except OSError as error:
        pytest.skip(f"no files of huge pages here: {error.strerror}")
    size = sealed_size(fds[0], MAX_BYTES)
    assert digest_of_sealed(fds[0]) == digest_of(bytes(size))


def test_a_descriptor_that_cannot_be_read_is_refused(fds: list[int]) -> None:
    """The failure to read it came later, where nobody expected one, and ended the launcher."""
    fds.append(seal(b"x"))
    fds.append(os.open(f"/proc/self/fd/{fds[0]}", os.O_WRONLY))
    assert sealed_size(fds[0], MAX_BYTES) == 1
    with pytest.raises(NotSealed, match="writing alone"):
        sealed_size(fds[1], MAX_BYTES)


ALICE, BOB = 61001, 61002
PIECES = 8


class Desk:
    """Checks with real keys, and what comes out of them."""

    def __init__(self, room: Path) -> None:
        self.keys = SigningKeys(room)
        self.checks = SignatureChecks(self.keys)
        self.done: list[Assignment] = []
        self.fds: list[int] = []

    def take(self, asked: Asked, *, is_launch: bool = True) -> bool | None:
        digest = digest_of(asked.data)
        key = self.keys.key_of(asked.uid, asked.user)
        proof = proof_of(key, digest) if asked.proof is None else asked.proof
        self.fds.append(seal(asked.data))
        assignment = Assignment(replace(asked.order, proof=proof), self.fds[-1])
        found = self.checks.check_now(assignment)
        if found is None:
            self.checks.begin(assignment, self.done.append, is_launch=is_launch)
        return None if found is None else found.is_signed

    def turns(self) -> int:
        """Look until nothing waits; how often that was."""
        count = 0
        while self.checks.pause_s() is not None:
            self.checks.run_due()
            count += 1
        return count

    def results(self) -> list[tuple[int, bool | None]]:
        return [(each.order.id, each.is_signed) for each in self.done]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.checks.cancel_all()
    for assignment in desk.done:
        assignment.close()


def asked(number: int, uid: int, size: int, **changes: object) -> Asked:
    return order(cwd=Path("/"), id=number, uid=uid, user=f"u{uid}", payload=b"x" * size, **changes)


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


@pytest.mark.parametrize(("proof", "is_signed"), [(None, True), ("0" * 64, False)])
def test_what_is_short_is_known_at_once_and_what_is_long_a_piece_at_a_time(
    desk: Desk, proof: str | None, is_signed: bool
) -> None:
    assert desk.take(asked(1, ALICE, PIECE_BYTES, proof=proof)) is is_signed
    assert desk.checks.pause_s() is None
    assert desk.take(asked(2, ALICE, PIECES * PIECE_BYTES, proof=proof)) is None
    assert (desk.checks.pause_s(), len(desk.checks)) == (0, 1)
    assert desk.turns() == PIECES
    assert desk.results() == [(2, is_signed)]
    assert desk.done[0].digest == digest_of(b"x" * (PIECES * PIECE_BYTES))
    os.close(desk.fds[0])


def test_users_with_long_payloads_take_turns(desk: Desk) -> None:
    for number in (1, 2, 3):
        desk.take(asked(number, ALICE, PIECES * PIECE_BYTES))
    desk.take(asked(4, BOB, 2 * PIECE_BYTES))
    assert desk.turns() == 3 * PIECES + 2
    assert desk.results() == [(4, True), (1, True), (2, True), (3, True)]


def test_what_is_to_be_ended_is_not_launched_later(desk: Desk) -> None:
    for number in (1, 2):
        desk.take(asked(number, ALICE, PIECES * PIECE_BYTES))
    desk.take(asked(1, ALICE, PIECES * PIECE_BYTES), is_launch=False)
    desk.checks.run_due()
    desk.checks.cancel((1, 1))
    assert len(desk.checks) == 2
    assert [is_open(fd) for fd in desk.fds] == [False, True, True]
    desk.turns()
    assert desk.results() == [(2, True), (1, True)], "a notice is not called off"


def test_an_order_that_is_repeated_is_looked_at_once(desk: Desk) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        desk.take(asked(1, ALICE, PIECES * PIECE_BYTES))
        desk.checks.run_due()
    desk.turns()
    assert desk.results() == [(1, True)]
    assert len(os.listdir("/proc/self/fd")) == before + 1


def test_what_another_controller_has_ordered_is_forgotten(desk: Desk) -> None:
    desk.take(asked(1, ALICE, PIECES * PIECE_BYTES))
    desk.take(asked(2, BOB, PIECES * PIECE_BYTES), is_launch=False)
    desk.checks.cancel_all()
    assert (desk.turns(), desk.results(), len(desk.checks)) == (0, [], 0)
    assert not any(map(is_open, desk.fds))


def test_without_keys_everything_is_taken_from_the_controller() -> None:
    fd = seal(b"x")
    taken = SignatureChecks(None).check_now(Assignment(asked(1, ALICE, 1).order, fd))
    assert taken is not None and (taken.is_signed, taken.digest) == (True, None)
    os.close(fd)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="not root: controller and launcher are one user")
def test_a_launch_does_not_wait_for_the_payload_of_another(
    make_launcher: MakeLauncher, work: Path
) -> None:
    """The digest of 64 MiB was worked out in one go, a tenth of a second each time, and nothing
    else was launched, ended or reported meanwhile."""
    launchers = make_launcher()
    launchers.start("--controller", "64321")
    controller = launchers.connect()
    long = order("true", cwd=work, uid=ALICE, payload=b"x" * MAX_BYTES)
    with controller.at_once():
        controller.launch(replace(long, id=1))
        controller.launch(order("true", cwd=work, id=2, uid=BOB))
    for number in (2, 1):
        report = controller.take("broke", id=number)
        assert "not signed by its user" in report["text"]
    assert controller.list()[-1]["known"] == []


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="not root: controller and launcher are one user")
@pytest.mark.parametrize("command", seeds(["kill", "terminate", "remove"], quick=1))
def test_a_launch_that_is_called_off_while_it_is_looked_at_never_comes(
    make_launcher: MakeLauncher, work: Path, command: str
) -> None:
    launchers = make_launcher()
    launchers.start("--controller", "64321")
    controller = launchers.connect()
    long = order("true", cwd=work, uid=ALICE, payload=b"x" * MAX_BYTES)
    with controller.at_once():
        controller.launch(long)
        controller.ask(command)
    controller.take("removed" if command == "remove" else "missing", id=1)
    controller.launch(replace(long, id=2))
    assert controller.take("broke")["id"] == 2


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
