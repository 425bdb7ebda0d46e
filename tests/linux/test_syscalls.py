"""System calls by ctypes: each does what it says, seen from outside, and each failure is an error.
What changes the process that calls runs in a process of its own. And what drfd asks of the kernel
for itself; and the user database, small files that are parsed again when they have changed."""

import errno
import os
import pwd
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from drfd.linux import descriptor_guard, service, syscalls
from drfd.linux.service import Service
from drfd.linux.unix_sockets import at_socket
from drfd.linux.user_database import LocalAccounts, ParsedFile, written_name
from drfd_cli.terminal.sockets import connect_in_line
from instance import wait_for
from kernel import LINGER_S, send_lingering

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


# -- sockets: addresses, connections with descriptors, and sd_notify ----------------------------


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="drfd-", dir="/tmp") as directory:
        yield Path(directory)


def of_length(top: Path, length: int) -> Path:
    """A path of exactly this many bytes, in a directory that exists."""
    directory = top
    while length - len(str(directory)) > 100:
        directory /= "d" * min(80, length - len(str(directory)) - 12)
        directory.mkdir()
    path = directory / ("s" * (length - len(str(directory)) - 1))
    assert len(str(path)) == length
    return path


def test_a_path_that_fits_is_its_own_address_by_its_bytes(short):
    with at_socket(short / "s") as address:
        assert address == f"{short}/s"
    path = short / ("ü" * 60)
    with at_socket(path) as address:
        assert address.startswith("/proc/self/fd/")
        assert address.endswith(f"/{path.name}")
    with pytest.raises(FileNotFoundError), at_socket(short / ("d" * 100) / "drfd.sock"):
        pass


@pytest.mark.parametrize("length", [106, 107, 108, 150, 1000])
def test_a_socket_of_any_path_length_can_be_bound_and_joined(short, length):
    path = of_length(short, length)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with at_socket(path) as address:
            assert (address == str(path)) == (length <= 107)
            server.bind(address)
        server.listen()
        connect_in_line(client, str(path), 60)
    assert path.is_socket()


@pytest.mark.skipif(os.getuid() == 0, reason="root may list every directory")
def test_the_directory_of_a_long_path_need_only_be_entered(short):
    path = of_length(short, 150)
    with socket.socket(socket.AF_UNIX) as server, at_socket(path) as address:
        server.bind(address)
        server.listen()
        path.parent.chmod(0o300)
        try:
            with socket.socket(socket.AF_UNIX) as client:
                connect_in_line(client, str(path), 60)
        finally:
            path.parent.chmod(0o700)


@pytest.mark.slow
def test_who_is_not_answered_is_not_kept_for_ever(short):
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(short / "s"))
        server.listen()
        before = time.monotonic()
        connect_in_line(client, str(short / "s"), 1)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        assert time.monotonic() - before > 0.9


# -- unwanted descriptors -----------------------------------------------------------------


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
def test_a_descriptor_that_nobody_wants_keeps_nobody_waiting(tmp_path, stack, deed, before):
    """Who read past it, or closed the connection, waited as long as its sender wished."""
    path = str(tmp_path / "s")
    command = [sys.executable, "-c", SERVE, str(ROOT), path, deed]
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
def pair(tmp_path, stack) -> tuple[socket.socket, socket.socket]:
    """A caller, and the connection that a guarded listener has of it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    listener = stack.enter_context(descriptor_guard.guarded(listener))
    caller = stack.enter_context(socket.socket(socket.AF_UNIX))
    caller.connect(str(tmp_path / "s"))
    return caller, stack.enter_context(listener.accept()[0])


def test_all_else_is_read_as_ever(pair):
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


@pytest.mark.slow
def test_a_connection_with_a_descriptor_is_good_for_nothing_more(pair):
    caller, connection = pair
    caller.sendall(b"before")
    assert connection.recv(100) == b"before"
    socket.send_fds(caller, [b"with"], [0])
    for _ in range(2):
        with pytest.raises(ConnectionError):
            connection.recv(100)


@pytest.mark.slow
def test_nothing_is_left_open_of_connections_with_descriptors(pair):
    caller, connection = pair
    inode = inode_of(connection.fileno())
    socket.send_fds(caller, [b"with"], [0] * 100)
    connection.close()
    assert connection.fileno() == -1
    wait_for("the end of the connection", lambda: inode not in open_inodes())


@pytest.mark.slow
def test_however_many_connections_with_descriptors_are_closed_two_threads_do(stack, tmp_path):
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
    """Of this process, in which a thread may be closing others."""
    return {inode_of(fd) for fd in os.listdir("/proc/self/fd")}


# -- sd_notify ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/notify", "@"])
def test_what_is_said_arrives_as_one_datagram(tmp_path, name):
    """A manager may listen at a path or, in some containers, in the abstract name space."""
    path = f"@drfd-test-{os.getpid()}" if name == "@" else f"{tmp_path}{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path[1:] if name == "@" else path)
        manager.settimeout(5)
        Service(notify_socket=path).notify("READY=1", "STATUS=2 jobs run")
        assert manager.recv(100) == b"READY=1\nSTATUS=2 jobs run"


def test_what_describes_this_process_leaves_the_environment_and_the_journal_is_found():
    env = {"PATH": "/bin", "NOTIFY_SOCKET": "/n", "INVOCATION_ID": "1", "WATCHDOG_USEC": "3000000"}
    env |= {"LISTEN_FDS": "1", "JOURNAL_STREAM": "0:0", "WATCHDOG_PID": str(os.getpid())}
    told = service.take(env)
    assert env == {"PATH": "/bin"}
    assert told == Service(notify_socket="/n", watchdog_s=3.0, has_journal=False)
    status = os.fstat(2)
    here = f"{status.st_dev}:{status.st_ino}"
    assert service.take({"JOURNAL_STREAM": here}).has_journal
    assert not service.take({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}).has_journal
