"""What jobs leave of shared memory, semaphores and queues goes with their user's last job."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drfd.launcher.system import cleanup
from drfd.linux import syscalls
from instance import CONFIG, Accounts, Instance, wait_for

pytestmark = pytest.mark.system

#: Leave one of each kind.
LEAVE = (
    "ipcmk -M 1000000 -S 3 -Q; mkdir -p /dev/shm/drfdt-$(id -u)/d; touch /dev/shm/drfdt-$(id -u)-f"
)
KINDS = ("shm", "sem", "msg")


def left_by(user: pwd.struct_passwd) -> int:
    """How many things the user has left."""
    rows = sum(row["uid"] == user.pw_uid for kind in KINDS for row in cleanup.table(kind))
    return rows + sum(owner_of(each) == user.pw_uid for each in Path("/dev/shm").iterdir())


def owner_of(path: Path) -> int | None:
    """The launcher may remove it meanwhile."""
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None


def remove(user: pwd.struct_passwd) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            cleanup.sweep(user.pw_uid)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


@pytest.fixture(autouse=True)
def clean(users: Accounts) -> Iterator[None]:
    yield
    for user in users:
        remove(user)


def test_what_is_left_goes_with_the_users_last_job(instance: Instance, users: Accounts) -> None:
    """Without it all of this stays until the machine is started again."""
    alice, bob = users
    instance.work.chmod(0o777)
    last = instance.submit("--", "sleep", "600", user=alice.pw_uid)
    script = ("--", "sh", "-c", LEAVE)
    theirs = instance.submit("--", "sh", "-c", f"{LEAVE}; sleep 600", user=bob.pw_uid)
    assert instance.wait_end(instance.submit(*script, user=alice.pw_uid))["state"] == "COMPLETED"
    wait_for("bob's", lambda: left_by(bob) == 5)
    # Two seconds after its job, while another of the same user runs.
    marker = instance.submit("--", "sleep", "2", user=alice.pw_uid)
    instance.wait_end(marker)
    assert left_by(alice) == 5
    instance.drf("cancel", last)
    instance.wait_end(last)
    wait_for("nothing left", lambda: left_by(alice) == 0)
    assert left_by(bob) == 5
    instance.drf("cancel", theirs)
    wait_for("nothing left", lambda: left_by(bob) == 0)


def test_a_user_who_has_another_process_keeps_all(instance: Instance, users: Accounts) -> None:
    alice, bob = users
    instance.work.chmod(0o777)
    session = subprocess.Popen(["sleep", "600"], user=alice.pw_uid)
    try:
        script = ("--", "sh", "-c", LEAVE)
        instance.wait_end(instance.submit(*script, user=alice.pw_uid))
        # Bob's goes, and would have gone after alice's.
        instance.wait_end(instance.submit(*script, user=bob.pw_uid))
        wait_for("bob's gone", lambda: left_by(bob) == 0)
        assert left_by(alice) == 5
    finally:
        session.kill()
        session.wait()


def test_what_another_user_has_attached_stays(instance: Instance, users: Accounts) -> None:
    alice, bob = users
    instance.work.chmod(0o777)
    words = ("--", "sh", "-c", "ipcmk -M 1000000 -p 0666 >id; ipcmk -Q")
    instance.work.joinpath("id").touch(mode=0o666)
    instance.work.joinpath("id").chmod(0o666)
    keeper = instance.submit("--", "sleep", "600", user=alice.pw_uid)
    instance.wait_end(instance.submit(*words, user=alice.pw_uid))
    number = instance.work.joinpath("id").read_text().split()[-1]
    attach = (
        "import ctypes, sys, time; libc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p;"
        f"libc.shmat({number}, None, 0); print('attached', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-I", "-c", attach], user=bob.pw_uid, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == b"attached\n"
        instance.drf("cancel", keeper)
        instance.wait_end(keeper)
        wait_for("the queue gone", lambda: left_by(alice) == 1)
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def test_it_can_be_turned_off(lend: Callable[[str], Instance], users: Accounts) -> None:
    instance = lend(f"{CONFIG}remove_ipc = false\n")
    alice, bob = users
    instance.work.chmod(0o777)
    instance.wait_end(instance.submit("--", "sh", "-c", LEAVE, user=alice.pw_uid))
    instance.wait_end(instance.submit("--", "sleep", "3", user=bob.pw_uid))
    assert left_by(alice) == 5
    assert "files in /dev/shm stay" in instance.drf("doctor").stdout


def test_roots_own_is_never_removed(instance: Instance) -> None:
    """Nor that of system accounts: databases live on it."""
    place = Path(tempfile.mkdtemp(prefix="drfdt-", dir="/dev/shm"))
    try:
        instance.wait_end(instance.submit("--", "touch", place / "file"))
        instance.wait_end(instance.submit("--", "sleep", "3"))
        assert (place / "file").exists()
    finally:
        shutil.rmtree(place)


def test_a_file_system_of_another_users_own_keeps_nothing_from_being_removed(
    users: Accounts,
) -> None:
    """The kernel tells nobody but its user whose such a directory is (FUSE), and the sweep of any
    other user ended there; or it asks that user's program, which need not answer."""
    alice, bob = users
    if not Path("/dev/fuse").exists():
        pytest.skip("no FUSE here")
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if _sweep_beside_fuse(alice, bob) == ["alices"] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _sweep_beside_fuse(alice: pwd.struct_passwd, bob: pwd.struct_passwd) -> list[str]:
    """In a /dev/shm of our own; the names that are left there."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777")
    shm = Path("/dev/shm")
    # Whatever the order in which the directory is read.
    for name in ("before", "alices", "after"):
        inner = shm / name
        inner.mkdir()
        owner = alice if name == "alices" else bob
        os.chown(inner, owner.pw_uid, owner.pw_gid)
        if name != "alices":
            (inner / "file").touch()
            os.chown(inner / "file", owner.pw_uid, owner.pw_gid)
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id={alice.pw_uid},group_id={alice.pw_gid}"
    syscalls.mount("fuse", str(shm / "alices"), "fuse", 0, options)
    remove(bob)
    return sorted(os.listdir(shm))
