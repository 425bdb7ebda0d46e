"""Whether a user has signed what root is to run: what root does with a file of the controller's
before it knows; the files in which users find their keys, also where the user directory is slow;
and which files a user's client takes for one."""

import errno
import fcntl
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from drfd.client import connection
from drfd.client.connection import read_key
from drfd.launcher.signatures import KeyFiles, SigningKeys, is_signed, sealed_digest
from drfd.launcher.system.accounts import AccountProcess
from drfd.linux.sealed import NotSealed, seal, sealed_size
from drfd.payload.pack import of_request
from drfd.payload.signature import (
    KEY_BYTES,
    MAX_BYTES,
    digest_of,
    key_file_name,
    proof_of,
)
from drfd.protocol.codec import MAX_REQUEST_BYTES, encode_request
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


@pytest.mark.parametrize("size", [1, (1 << 20) + 7])
def test_a_file_has_the_digest_of_its_bytes(size, fds):
    data = (os.urandom(1 << 16) * (size // (1 << 16) + 1))[:size]
    fds.append(seal(data))
    # Whoever shares the descriptor may have read on.
    os.lseek(fds[0], size, os.SEEK_SET)
    assert sealed_digest(fds[0]) == digest_of(data)


def test_looking_at_a_hole_makes_no_memory_of_it(fds):
    """Mapped pages were charged to the launcher and its runners, which the kernel killed."""
    size = 8 << 20
    fds.append(holes(size))
    assert sealed_digest(fds[0]) == digest_of(bytes(size))
    assert os.fstat(fds[0]).st_blocks == 0


def test_a_file_of_huge_pages_needs_none(fds):
    """To map it failed where the machine has no huge pages, and ended the launcher."""
    try:
        fds.append(holes(2 << 20, os.MFD_HUGETLB))
    except OSError as error:
        pytest.skip(f"no files of huge pages here: {error.strerror}")
    size = sealed_size(fds[0], MAX_BYTES)
    assert sealed_digest(fds[0]) == digest_of(bytes(size))


def test_a_descriptor_that_cannot_be_read_is_refused(fds):
    """The failure to read it came later, where nobody expected one, and ended the launcher."""
    fds.append(seal(b"x"))
    fds.append(os.open(f"/proc/self/fd/{fds[0]}", os.O_WRONLY))
    assert sealed_size(fds[0], MAX_BYTES) == 1
    with pytest.raises(NotSealed, match="not open for reading"):
        sealed_size(fds[1], MAX_BYTES)


@pytest.mark.parametrize("proof", [None, "0" * 64])
@pytest.mark.parametrize("has_keys", [True, False])
def test_only_what_its_user_has_signed_is_accepted_if_anything_is_signed(
    proof, has_keys, tmp_path, fds
):
    keys, asked = SigningKeys(tmp_path), order(cwd=Path("/"), payload=b"x" * 1000)
    if proof is None:
        proof = proof_of(keys.key_of(asked.uid, asked.user), digest_of(asked.data))
        is_accepted = True
    else:
        is_accepted = not has_keys
    fds.append(seal(asked.data))
    signed = replace(asked.order, proof=proof)
    assert is_signed(signed, fds[0], keys if has_keys else None) == is_accepted


def test_the_payload_of_the_longest_request_is_accepted(fds):
    fields = {"op": "submit", "v": 1, "argv": ["x"], "cwd": "/", "script": ""}
    fields["script"] = "x" * (MAX_REQUEST_BYTES - len(encode_request(fields)))
    assert len(encode_request(fields)) == MAX_REQUEST_BYTES
    fds.append(seal(of_request(fields)))
    assert MAX_REQUEST_BYTES * 0.99 < sealed_size(fds[0], MAX_BYTES) < MAX_BYTES * 0.51


# -- the key files ------------------------------------------------------------------------


ME = os.geteuid()


class Asked(NamedTuple):
    """A question for the user directory, and what gets the answer."""

    question: tuple[object, ...]
    take: Callable[[object], None]


class Directory(AccountProcess):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def ask(self, question, on_answer) -> None:
        self.asked.append(Asked(question, on_answer))


class Writers:
    """Key files of a directory, and what the user directory says while they are written."""

    def __init__(self, place: Path) -> None:
        self.place, self.keys = place / "keys", SigningKeys(place)
        self.open()

    def open(self) -> None:
        self.directory = Directory()
        self.files = KeyFiles(self.place, self.keys, self.directory)

    def write(self, *uids: int, name: object = "me") -> None:
        """Order these files, and have the directory say this of each."""
        for uid in uids:
            self.files.order(uid)
        for asked in self.directory.asked:
            asked.take(name)
        self.directory.asked = []

    def names(self) -> list[str]:
        return sorted(os.listdir(self.place))

    def key(self, name: str) -> bytes | None:
        """As the user's client reads it."""
        return read_key(f"{self.place}/{key_file_name(ME, name)}")


@pytest.fixture
def writers(tmp_path) -> Iterator[Writers]:
    if ME != 0:
        pytest.skip("not root: only root gives keys")
    tmp_path.chmod(0o711)
    writers = Writers(tmp_path)
    yield writers
    os.close(writers.files._fd)


as_root = pytest.mark.skipif(ME != 0, reason="not root: only root gives keys")


def test_a_key_file_is_its_users_alone_in_a_directory_of_roots(writers):
    writers.write(ME, 61002)
    assert writers.key("me") == writers.keys.key_of(ME, "me")
    seen = [(writers.place / name).stat() for name in writers.names()]
    assert {(each.st_uid, each.st_mode) for each in seen} == {
        (uid, stat.S_IFREG | 0o400) for uid in (ME, 61002)
    }
    place = writers.place.stat()
    assert (place.st_uid, place.st_mode) == (0, stat.S_IFDIR | 0o711)


def test_a_uid_that_is_given_to_somebody_else_has_their_key_and_no_other(writers):
    writers.write(ME, name="grace")
    old = writers.key("grace")
    assert old is not None and writers.key("hopper") is None
    writers.write(ME, name="hopper")
    assert writers.key("grace") is None
    assert writers.key("hopper") not in (None, old)


def test_each_launcher_writes_them_anew(writers):
    """Secret and accounts may have changed, and one that was killed may have left half a file. A
    directory that somebody has made there ended the next one."""
    writers.write(ME)
    (writers.place / f"{ME}-new").touch()
    (writers.place / "odd").mkdir()
    os.close(writers.files._fd)
    writers.open()
    assert writers.names() == ["odd"]
    writers.write(ME)
    assert writers.key("me") == writers.keys.key_of(ME, "me")


@pytest.mark.parametrize("answer", [None, 7, ["me"]])
def test_without_an_account_there_is_no_key(writers, answer):
    """Nor while the directory does not say whether there is one."""
    writers.write(61002, name=answer)
    assert writers.names() == []


def test_on_a_full_disk_nothing_is_left_half_done(writers, monkeypatch):
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        writers.write(ME)
    assert writers.names() == []
    writers.write(ME)
    assert writers.names() == [key_file_name(ME, "me")]


def test_a_user_is_asked_for_once_at_a_time_and_few_are_at_once(writers):
    """While the directory says nothing of a user, others get their keys."""
    writers.files.order(61001)
    silent = writers.directory.asked.pop()
    writers.write(61001, ME)
    assert writers.names() == [key_file_name(ME, "me")]
    for uid in range(61002, 61100):
        writers.files.order(uid)
    assert len(writers.directory.asked) == 7
    silent.take(None)
    writers.write(61001)
    assert key_file_name(61001, "me") in writers.names()


@pytest.fixture
def key_file(tmp_path) -> Path:
    place = tmp_path / "keys"
    place.mkdir(mode=0o711)
    (place / "key").write_bytes(bytes(range(KEY_BYTES)))
    (place / "key").chmod(0o400)
    return place / "key"


def _linked(file: Path) -> None:
    file.rename(file.with_name("other"))
    file.symlink_to("other")


@as_root
@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.parent.chmod(0o733),
        lambda file: os.chown(file.parent, 61002, -1),
        lambda file: os.chown(file.parents[1], 61002, -1),
        lambda file: file.parents[1].chmod(0o777),
        lambda file: _linked(file.parent),
        lambda file: os.chown(file, 61002, -1),
        lambda file: file.chmod(0o440),
        lambda file: os.truncate(file, KEY_BYTES - 1),
        lambda file: file.write_bytes(bytes(KEY_BYTES + 1)),
        lambda file: file.unlink(),
        _linked,
    ],
)
def test_only_a_file_as_root_writes_it_is_a_key(key_file, spoil):
    """The controller names the file, and could name one that it knows, or a terminal."""
    assert read_key(str(key_file)) == bytes(range(KEY_BYTES))
    spoil(key_file)
    assert read_key(str(key_file)) is None


@as_root
@pytest.mark.parametrize(
    ("mounted", "is_users"),
    [
        ("/home/x rw - fuse.x x rw,user_id=0,group_id=0", False),
        ("/home/x rw - fuse.x x rw,user_id=61002,group_id=0", True),
        ("/tmp/user_id=0,x rw - fuse.x x rw,user_id=61002,group_id=0", True),
        ("/home/x rw - fuse.x user_id=0, rw,user_id=61002,group_id=0", True),
        ("/home/x rw - fuse.x x rw,user_id=61002,group_id=0,x_user_id=0", True),
        ("/home/x\\040-\\040ext4 rw - fuse x rw,user_id=61002", True),
        ("/home/x rw - ext4 x rw", False),
    ],
)
def test_a_file_of_a_file_system_that_a_user_has_mounted_is_no_key(
    key_file, monkeypatch, mounted, is_users
):
    """Its server says that root owns it all, and its user may name its place and its source after
    what is looked for."""
    device = os.stat(key_file).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = [io.BytesIO(f"9 1 {number} / {mounted}\n".encode())]
    monkeypatch.setattr(connection, "open", lambda *_: mounts.pop(), raising=False)
    assert (read_key(str(key_file)) is None) is is_users
    assert not mounts
