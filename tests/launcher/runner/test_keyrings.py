"""A session keyring of its own, where one can be had; each process under test is its own."""

from __future__ import annotations

import os
import subprocess
from itertools import count

import pytest

from launcher.rig import python

pytestmark = pytest.mark.slow
as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root: cannot become anybody")

#: `refuse` has keyctl fail from then on, as a container's filter does.
HELPERS = """
import errno, kernel_calls, os, struct
from drfd.linux import syscalls
from drfd.launcher.runner import identity, inheritance
def refuse(number):
    call = syscalls._NUMBERS["keyctl"][os.uname().machine]
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | number)]
    steps += [(0x06, 0, 0, 0x7FFF0000)]
    syscalls.set_no_new_privileges()
    syscalls.filter_calls(b"".join(struct.pack("=HBBI", *step) for step in steps))
def take():
    inheritance.leave_keyring()
    inheritance.join_keyring(inheritance.has_key_quota(os.getuid()))
def fill():
    made = 0
    while True:
        out, into = os.pipe()
        if os.fork() == 0:
            try:
                syscalls.join_session_keyring()
            except OSError as error:
                os.write(into, errno.errorcode[error.errno].encode())
                os._exit(1)
            os.close(out)
            os.write(into, b"+")
            os.kill(os.getpid(), 19)
        os.close(into)
        word = os.read(out, 20).decode()
        if word != "+":
            return made, word
        made += 1
"""


#: Users whose keys nobody else has counted: neither another test nor another run on this machine.
_uids = count(1_000_000 + 10 * os.getpid())


def run(code: str, uid: int = 0) -> str:
    """What it prints. What it leaves behind is killed with its process group. `uid`: its UID."""
    command = python(f"UID = {uid}\n{HELPERS}{code}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            out, _ = process.communicate(timeout=120)
        finally:
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                pass
    assert process.returncode == 0
    return out.strip()


def test_the_launcher_and_each_job_have_one_of_their_own() -> None:
    code = """
before = kernel_calls.session_keyring()
assert inheritance.why_no_keyrings() is None and inheritance.keyring_warning() is None
mine = kernel_calls.session_keyring()
inheritance.leave_keyring()
inheritance.join_keyring(inheritance.has_key_quota(os.getuid()))
print(len({before, mine, kernel_calls.session_keyring()}))
"""
    assert run(code) == "3"


def test_where_keyctl_is_forbidden_jobs_run_without_and_it_is_said() -> None:
    code = "refuse(errno.EPERM); take(); print(inheritance.keyring_warning())"
    assert run(code) == "jobs have no keyrings: keyctl is not permitted here, to jobs neither"


def test_a_kernel_without_keyrings_is_no_warning() -> None:
    code = """
refuse(errno.ENOSYS)
take()
print(inheritance.why_no_keyrings(), inheritance.keyring_warning())
"""
    assert run(code) == "the kernel has no keyrings None"


def test_a_job_that_cannot_have_one_does_not_start() -> None:
    """The launcher has got its own before: keyrings work here, and this failure says nothing of
    what the job would find in the launcher's."""
    code = """
inheritance.why_no_keyrings()
refuse(errno.EACCES)
try:
    inheritance.leave_keyring()
    inheritance.join_keyring(True)
except identity.Denied as error:
    print(error)
"""
    denied = "it can have no session keyring of its own: Permission denied"
    assert run(code) == denied


@pytest.mark.parametrize("name", ["ENOMEM", "EDQUOT"])
@as_root
def test_a_shortage_is_told_from_a_refusal(name: str) -> None:
    """It may pass: the job need not be lost to it."""
    code = f"""
inheritance.why_no_keyrings()
refuse(errno.{name})
try:
    inheritance.leave_keyring()
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    assert run(code) == name


@as_root
def test_a_users_own_launcher_runs_more_jobs_than_the_user_may_have_keys() -> None:
    """The kernel allows an ordinary user 200 keys (keys/maxkeys)."""
    code = """
os.setgroups([]); os.setresgid(*[UID] * 3); os.setresuid(*[UID] * 3)
inheritance.why_no_keyrings()
mine = kernel_calls.session_keyring()
made, why = fill()
inheritance.leave_keyring()
inheritance.join_keyring(inheritance.has_key_quota(UID))
print(made > 50, why, kernel_calls.session_keyring() == mine)
"""
    assert run(code, next(_uids)) == "True EDQUOT True"


#: Becomes an ordinary user in the way of a job, and says whose keyring it has, and whether it takes
#: a key, and can be linked to the user's own.
BECOME = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
ADD, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
SESSION, USER = -3, -4
def add(name):
    return libc.syscall(ADD, b"user", name, b"x", ctypes.c_size_t(1), SESSION)
def become():
    inheritance.leave_keyring()
    os.setgroups([]); os.setresgid(*[UID] * 3); os.setresuid(*[UID] * 3)
    inheritance.join_keyring(inheritance.has_key_quota(UID))
def describe():
    ring = kernel_calls.session_keyring()
    owner = next(l.split()[5] for l in open("/proc/keys") if int(l.split()[0], 16) == ring)
    linked = libc.syscall(KEYCTL, 8, ring, USER)
    print(owner, add(b"mine") > 0, linked == 0)
inheritance.why_no_keyrings()
"""


@as_root
def test_what_a_user_can_fill_is_counted_against_the_user() -> None:
    """It was counted against root, whose room for keys the keyrings of some ten thousand jobs use
    up, each full of keys and kept by a file that the job has handed to a process outside. No job
    of anybody's could start any more."""
    uid = next(_uids)
    assert run(BECOME + "become(); describe()", uid) == f"{uid} True True"


@as_root
def test_who_has_used_half_the_room_gets_one_that_cannot_be_filled_nor_kept() -> None:
    code = """
if os.fork() == 0:
    os.setresgid(*[UID] * 3); os.setresuid(*[UID] * 3)
    syscalls.join_session_keyring()
    for number in range(105):
        assert add(b"%d" % number) > 0
    os.kill(os.getpid(), 19)
    os._exit(0)
os.waitpid(-1, os.WUNTRACED)
become()
describe()
"""
    assert run(BECOME + code, next(_uids)) == "0 False False"
