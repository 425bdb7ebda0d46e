"""What the kernel's session keyring holds for one job is out of every other job's reach."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from instance import CONFIG, Accounts, Instance, wait_for

pytestmark = pytest.mark.system


if os.uname().machine not in ("x86_64", "aarch64"):
    pytest.skip("keyctl's numbers are known here for two machines", allow_module_level=True)

#: add_key(2) and keyctl(2), as ordinary programs use them.
KEYS = """
import ctypes, json, os, sys, time
add_number, keyctl_number = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
SESSION, USER = -3, -4
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def add(kind, name, payload, ring=SESSION):
    size = ctypes.c_size_t(len(payload or b""))
    return checked(libc.syscall(add_number, kind, name, payload, size, ring))
def keyctl(*words):
    return checked(libc.syscall(keyctl_number, *words))
def search(name, ring=SESSION):
    try:
        return keyctl(10, ring, b"user", name, 0)
    except OSError as error:
        return error.strerror
def read(key):
    buffer = ctypes.create_string_buffer(100)
    size = keyctl(11, key, buffer, ctypes.c_size_t(100))
    return buffer.raw[:size].decode()
"""
#: Runs the words that follow in a session keyring with a key of root's, as a log-in has one.
ROOTS_SESSION = (
    KEYS
    + """
keyctl(1, None)
key = add(b"user", b"of-root", b"root's passphrase")
keyctl(5, key, 0x3F3F3F3F)  # Whoever can find it may use it.
os.execv(sys.argv[1], sys.argv[1:])
"""
)
#: Leaves a key, looks for those of others, uses its keyring in every way, and waits.
USE = (
    KEYS
    + """
mine, *others = (name.encode() for name in sys.argv[1:])
ring = keyctl(0, SESSION, 0)
key = add(b"user", mine, b"ticket")
keyctl(5, key, 0x3F3F3F3F)
inner = add(b"keyring", b"inner", None)
deep = add(b"user", b"deep", b"treasure", inner)
found = {
    "ring": ring,
    "mine": read(search(mine)),
    "deep": read(search(b"deep")),
    "others": [search(name) for name in others],
    "owner": next(
        line.split()[5] for line in open("/proc/keys") if int(line.split()[0], 16) == ring
    ),
}
print(json.dumps(found), flush=True)
while not os.path.exists("gate"):
    time.sleep(0.05)
"""
)
ABSENT = "Required key not available"


@pytest.fixture
def in_session(make_instance: Callable[..., Instance], users: Accounts) -> Instance:
    """A daemon that root starts from a session with keys. `users`: that they can run Python."""
    instance = make_instance(CONFIG)
    instance.before = [sys.executable, "-c", ROOTS_SESSION]
    return instance.start()


@pytest.fixture
def homes(in_session: Instance, users: Accounts) -> tuple[Path, Path]:
    first, second = (in_session.root / user.pw_name for user in users)
    for home, user in zip((first, second), users, strict=True):
        home.mkdir(mode=0o700)
        os.chown(home, user.pw_uid, user.pw_gid)
    return first, second


def use(
    instance: Instance, home: Path, uid: int, words: list[str], *options: str
) -> dict[str, Any]:
    """What such a job found; it goes on until there is a gate."""
    out = home / f"out-{words[0]}"
    instance.submit(
        *("-o", out, *options, "--", sys.executable, "-c", USE, *words), user=uid, cwd=home
    )
    wait_for("what it found", lambda: out.exists() and out.read_text(), show=instance.status)
    return dict(json.loads(out.read_text()))


def test_jobs_share_no_key_with_each_other_nor_with_the_daemons_session(
    in_session: Instance, users: Accounts, homes: tuple[Path, Path]
) -> None:
    """Each had the launcher's session keyring: the second user read the first one's ticket there,
    and root's passphrase; two jobs of one user are as separate."""
    alice = use(in_session, homes[0], users[0].pw_uid, ["a", "of-root"])
    bob = use(in_session, homes[1], users[1].pw_uid, ["b", "a", "deep-a", "of-root"])
    again = use(in_session, homes[0], users[0].pw_uid, ["a2", "a", "of-root"])
    assert [alice["others"], bob["others"], again["others"]] == [
        [ABSENT],
        [ABSENT] * 3,
        [ABSENT] * 2,
    ]
    for found in (alice, bob, again):
        assert (found["mine"], found["deep"]) == ("ticket", "treasure")
    assert len({found["ring"] for found in (alice, bob, again)}) == 3
    for home in homes:
        (home / "gate").touch()


def test_a_jobs_keyring_is_counted_against_its_user(
    in_session: Instance, users: Accounts, homes: tuple[Path, Path]
) -> None:
    """Against root it would count for as long as somebody keeps it, with all keys in it."""
    (homes[0] / "gate").touch()
    assert use(in_session, homes[0], users[0].pw_uid, ["a"])["owner"] == str(users[0].pw_uid)


#: What a command that tells of an end finds, and leaves; then its program ends.
TELL = USE.replace(
    "print(json.dumps(found), flush=True)\n", 'json.dump(found, open("told", "w"))\n'
)


@pytest.mark.parametrize("event", ["start", "end"])
def test_the_commands_that_tell_an_owner_have_their_own(
    in_session: Instance, users: Accounts, homes: tuple[Path, Path], event: str
) -> None:
    """They had the launcher's, like jobs."""
    (homes[0] / "gate").touch()
    (homes[1] / "tell.py").write_text(TELL)
    command = f"{sys.executable} tell.py n a of-root"
    alice = use(in_session, homes[0], users[0].pw_uid, ["a"])
    # That of a start is a part of the job, and ends with it.
    job = {"start": "while [ ! -s told ]; do sleep 0.1; done", "end": "true"}[event]
    in_session.submit(
        *("--notify", event, "--notify-command", command, "--", "sh", "-c", job),
        user=users[1].pw_uid,
        cwd=homes[1],
    )
    told = homes[1] / "told"
    wait_for("what it found", lambda: told.exists() and told.read_text())
    found = json.loads(told.read_text())
    assert (found["mine"], found["others"]) == ("ticket", [ABSENT] * 2)
    assert found["ring"] != alice["ring"]
    (homes[1] / "gate").touch()
