"""System calls by ctypes: each does what it says, seen from outside, and each failure is an error.
What changes the process that calls runs in a process of its own. And what drfd asks of the kernel
for itself; and the user database, small files that are parsed again when they have changed."""

import errno
import os
import pwd
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drfd.linux import syscalls
from drfd.linux.user_database import LocalAccounts, ParsedFile, written_name

ROOT = Path(syscalls.__file__).parents[2]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="not root")
HELPERS = """
import errno, kernel_calls, os, signal, struct
from drfd.linux import syscalls
def status():
    lines = open("/proc/self/status").read().splitlines()
    return dict(line.split(":\\t", 1) for line in lines)
def errno_of(call, *words):
    try:
        call(*words)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
"""


def run(code: str, **options: object) -> str:
    """What the code prints, in a process of its own."""
    setup = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n{HELPERS}"
    command = [sys.executable, "-I", "-c", setup + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload]
    assert done.stderr == ""
    return str(done.stdout).strip()


def test_an_error_names_the_call_and_the_reason():
    with pytest.raises(OSError, match=r"Invalid argument: 'prctl\(PR_SET_PDEATHSIG\)'"):
        syscalls.set_parent_death_signal(signal.NSIG + 100)


def test_a_uid_has_an_account_or_none_and_its_groups():
    assert syscalls.has_account(0)
    assert not syscalls.has_account(4_000_000_123)
    for user in pwd.getpwall():
        expected = os.getgrouplist(user.pw_name, user.pw_gid)
        assert syscalls.groups_of(user.pw_name.encode(), user.pw_gid) == expected


@as_root
def test_a_directory_that_is_not_running_does_not_say_that_there_is_no_account(tmp_path):
    """Python's `pwd.getpwuid` raises KeyError for both."""
    (tmp_path / "nsswitch").write_text("passwd: files hesiod\n")
    code = f"""
import pwd
syscalls.unshare(kernel_calls.CLONE_NEWNS)
kernel_calls.mount("", "/", flags=kernel_calls.MS_REC | kernel_calls.MS_PRIVATE)
kernel_calls.mount({str(tmp_path / "nsswitch")!r}, "/etc/nsswitch.conf", "", kernel_calls.MS_BIND)
try:
    pwd.getpwuid(4_000_000_123)
except KeyError:
    print(errno_of(syscalls.has_account, 4_000_000_123), syscalls.has_account(0))
"""
    assert run(code) == "ENOENT True"


# -- BPF programs on cgroups ----------------------------------------------------------------


@as_root
def test_programs_are_loaded_for_this_process_or_refused():
    with pytest.raises(OSError) as raised:
        syscalls.load_device_program(b"\xb7" + bytes(7))
    assert raised.value.errno in (errno.EINVAL, errno.EACCES)
    # It returns 1.
    program = struct.pack("=BBhiBBhi", 0xB7, 0, 0, 1, 0x95, 0, 0, 0)
    fds = [syscalls.load_device_program(program) for _ in range(2)]
    numbers = [syscalls.device_program_id(fd) for fd in fds]
    assert len({0, *numbers}) == 3
    assert [os.get_inheritable(fd) for fd in fds] == [False, False]
    for fd in fds:
        os.close(fd)


# -- what drfd asks for itself ------------------------------------------------------------


@as_root
def test_root_takes_all_cpus_for_programs_and_a_score_that_is_lower_and_never_raised():
    code = """
from drfd.linux import own_process
os.sched_setaffinity(0, [max(os.sched_getaffinity(1))])
own_process.take_cpus()
print(os.sched_getaffinity(0) == os.sched_getaffinity(1))
def score():
    return int(open(own_process.OOM_SCORE).read())
before = score()
own_process.spare()
after = score()
own_process.spare()
print(after in (before, own_process.SPARED), score() == after)
"""
    assert run(code) == "True\nTrue True"


def test_an_ordinary_user_asks_for_nothing_and_the_choice_of_cpus_stays():
    code = """
from drfd.linux import own_process
if os.getuid() == 0:
    os.setresuid(*[64321] * 3)
one = {max(os.sched_getaffinity(0))}
os.sched_setaffinity(0, one)
own_process.take_cpus()
before = open(own_process.OOM_SCORE).read()
own_process.spare()
print(os.sched_getaffinity(0) == one, open(own_process.OOM_SCORE).read() == before)
"""
    assert run(code) == "True True"


# -- the user database --------------------------------------------------------------------


class Rig:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.parsed = 0
        self.reread = ParsedFile(file, self._parse, 10)

    def _parse(self, content: bytes) -> bytes:
        self.parsed += 1
        return content.upper()

    def replace(self, content: bytes) -> None:
        """As the programs do that change accounts."""
        new = self.file.with_name("new")
        new.write_bytes(content)
        new.rename(self.file)


def test_a_file_is_parsed_once_for_each_version_that_can_be_read_and_is_not_too_long(tmp_path):
    rig = Rig(tmp_path / "file")
    assert rig.reread.content() == b""
    for content in (b"one", b"two"):
        rig.replace(content)
        before = rig.parsed
        assert [rig.reread.content() for _ in range(3)] == [content.upper()] * 3
        assert rig.parsed == before + 1
    rig.file.unlink()
    assert rig.reread.content() == b""
    rig = Rig(tmp_path / "file")
    rig.replace(b"x" * 11)
    assert rig.reread.content() == b""
    rig.replace(b"x" * 10)
    assert rig.reread.content() == b"X" * 10
    # It counted as empty until it changed: everybody of the file was unknown from then on.
    rig = Rig(tmp_path / "file")
    rig.replace(b"one")
    with no_descriptors():
        assert rig.reread.content() == b""
    assert rig.reread.content() == b"ONE"


@contextmanager
def no_descriptors() -> Iterator[None]:
    lowest_free = os.open("/", os.O_PATH)
    os.close(lowest_free)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_names_are_written_as_utf_8(tmp_path):
    passwd = tmp_path / "passwd"
    passwd.write_bytes(b"m\xfcller:x:5:5::/:\nm\xc3\xbcller:x:6:6::/:\nDOMAIN\\eve:x:7:7::/:\n")
    names = [LocalAccounts(passwd).name_of(uid) for uid in (5, 6, 7)]
    assert names == [r"m\xfcller", "m\u00fcller", r"DOMAIN\eve"]
    assert [written_name(name or "") for name in names] == names, "twice is the same"
