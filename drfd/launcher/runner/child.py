"""The job's own process, from fork to exec: first the limits, then the user, then the user's files.

No path of the user's (directory, output files, program) is touched before the rights are dropped.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import signal
import socket
import stat
import termios
from contextlib import suppress
from dataclasses import dataclass

# Functions that a job's process calls between fork and exec are imported by name: a lookup in a
# module writes to a page of that module, which the kernel has to copy first.
from os import chdir, close, dup2, execve, execvpe, read, set_blocking, setsid, umask, write
from os import open as open_fd
from pathlib import Path
from typing import NoReturn

from drfd.launcher.attempt_files import Key
from drfd.launcher.confinement.interface import Confinement
from drfd.launcher.protocol import Assignment, AttemptLimits, LaunchOrder
from drfd.launcher.runner import identity, inheritance, scripts
from drfd.launcher.runner.failures import (
    MAX_TEXT,
    cannot_enter,
    cannot_run,
    cannot_write,
    describe,
    describe_in_job,
    explain,
    no_space,
    no_terminal,
    not_own,
    terminal_gone,
    terminal_of_another,
    unreadable,
)
from drfd.launcher.system import private_tmp, process
from drfd.launcher.system.files import get, put
from drfd.linux.sealed import read_sealed
from drfd.linux.unix_sockets import at_socket, peer_of, send_descriptors
from drfd.payload.pack import encode
from drfd.payload.unpack import LaunchPayload, decode, is_named_by_id, is_own_file

#: Without O_NONBLOCK a FIFO that nobody reads would block a job indefinitely.
_OUTPUT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
#: Linux truncates only regular files (open(2)).
_EMPTIED_FLAGS = _OUTPUT_FLAGS | os.O_TRUNC
_OWN_FLAGS = _OUTPUT_FLAGS & ~os.O_CREAT | os.O_NOFOLLOW
_INPUT_FLAGS = os.O_RDONLY
_SIZE_FLAGS = os.O_PATH | os.O_CLOEXEC
_ATTACH_WAIT_S = 10.0
#: Seconds after which a notification command gets SIGALRM.
NOTICE_ALARM_S = 60


#: Arbitrary values for `warm_up`. The account is a plain tuple, because Python 3.11 complains about
#: a struct_passwd in a module when the process ends (SystemError: bad argument to internal
#: function).
_NOBODY = ("nobody", "", 65534, 65534, "", "/", "")
_ORDER = LaunchOrder(
    id=1, attempt=1, uid=65534, user="nobody", journal="0" * 32, submitted_us=0, gid=65534,
    array_id=0, array_index=0, name="x", threads=1, variables={}, hidden=(),
    limits=AttemptLimits(cores_milli=0, memory_bytes=0, pids=0),
)  # fmt: skip
_PAYLOAD = encode(
    argv=("x",), cwd="/", umask=0, stdout="drf-%j.out", stderr="x", env={"A": "b"}, script=None,
    attach=None, notify=(),
)  # fmt: skip


def warm_up() -> None:
    """Do once, without effect, what `run_child` does. Otherwise each job's process would repeat, on
    pages of its own, what Python and the C library compute at the first call of a function."""
    try:
        if os.getuid() == 0:
            os.setgroups(os.getgroups())
        os.setresgid(-1, -1, -1)
        os.setresuid(-1, -1, -1)
        os.getresuid()
        process.drops_capabilities()
        inheritance.warm_up()
        umask(umask(0o077))
        fd = open_fd("/dev/null", _INPUT_FLAGS)
        set_blocking(fd, True)
        _move_descriptor(os.dup(fd), fd)
        close(fd)
        put("/dev/null", "0")
        identity.environment(pwd.struct_passwd(_NOBODY), _ORDER, decode(_PAYLOAD))
        execve("/", ["/"], {"PATH": "/"})
    except OSError:
        # A directory cannot be executed, which is the intended end. A job reports other errors.
        return


@dataclass(frozen=True, slots=True)
class JobStart:
    """All that a job's process needs to become the job; prepared by its runner before the fork."""

    assignment: Assignment
    user: pwd.struct_passwd
    groups: list[int]
    confinement: Confinement
    #: Pipe to the runner: the report of a failure to enter the cgroup. It is closed while no user
    #: can control the process, so the runner may believe what it reads there.
    entry_fd: int
    #: The runner's end of that pipe.
    entry_out: int
    #: Pipe to the runner: a "+" when only the release is missing, or the report of a failure after
    #: that. It is closed at exec. A socket if the outputs have a limit: they go with the "+".
    report_fd: int
    #: Pipe from the runner: a "+" to release the process.
    go_fd: int
    #: The runner's end of that pipe.
    go_in: int
    #: Whether the user's quota of keys allows a keyring of the job's own.
    has_quota: bool
    #: Parent of the directories of the attempt's private temporary space; None if it has none.
    place: str | None

    @property
    def key(self) -> Key:
        return self.assignment.order.id, self.assignment.order.attempt

    def close_its_ends(self) -> None:
        """Close the process's ends of the pipes in the runner, which sees then that it has died."""
        for fd in (self.entry_fd, self.report_fd, self.go_fd):
            close(fd)


def run_child(start: JobStart, others: tuple[int, ...]) -> NoReturn:
    """Become the job, in the process that was forked for it. `others` are descriptors of the
    runner's that are to be closed.

    Everything that a runner can do before or after the fork is done there: after a fork, each page
    that is touched has to be copied first."""
    order = start.assignment.order
    report_fd, record_of = start.entry_fd, describe
    try:
        for fd in others:
            close(fd)
        setsid()
        start.confinement.enter(start.key, order.limits, order.uid)
        close(start.entry_fd)
        report_fd, record_of = start.report_fd, describe_in_job
        _become_job(start)
    except BaseException as error:
        record = record_of(error)
        os.write(report_fd, json.dumps(record | {"text": record["text"][:MAX_TEXT]}).encode())
    finally:
        os._exit(125)


def run_notice(
    assignment: Assignment, confinement: Confinement, report_fd: int, place: str | None
) -> NoReturn:
    """Become the owner's notification command: within the job's limits, without output, and ended
    by an alarm. An error is written to `report_fd`, which is closed at exec. The command sees the
    job's own /tmp and /var/tmp, which are below `place`, and an empty /dev/shm."""
    order = assignment.order
    try:
        os.setsid()
        user = identity.account(order.uid, order.user)
        groups = identity.groups_of(user)
        # Done before it enters its cgroup, which is charged for each page that it touches.
        inheritance.leave_keyring()
        has_quota = inheritance.has_key_quota(order.uid)
        confinement.enter((order.id, order.attempt), order.limits, order.uid)
        inheritance.set_privileged_attributes(order.uid)
        if place is not None and os.path.isdir(place):
            private_tmp.enter(place, order.limits.memory_bytes)
        identity.become(user, groups, order.gid)
        inheritance.join_keyring(has_quota)
        payload = _read(assignment)
        os.umask(payload.umask)
        try:
            os.chdir(payload.cwd)
        except OSError:
            # The job may have removed it; the owner is notified in any case.
            os.chdir("/")
        null = os.open("/dev/null", os.O_RDWR)
        for target in (0, 1, 2):
            os.dup2(null, target)
        process.close_all_but(report_fd)
        env = identity.environment(user, order, payload)
        env |= {
            "DRF_STDOUT": order.output_path(payload.stdout, payload.cwd),
            "DRF_STDERR": order.output_path(payload.stderr, payload.cwd),
        }
        argv = payload.notify
        _reset_signals()
        # An alarm survives exec (execve(2)).
        signal.alarm(NOTICE_ALARM_S)
        inheritance.allow_core()
        try:
            os.execvpe(argv[0], list(argv), env)
        except OSError as error:
            raise cannot_run(argv[0], error, is_script=False) from None
    except BaseException as error:
        _report(report_fd, error)
    finally:
        os._exit(125)


def _become_job(start: JobStart) -> None:
    assignment, user, place, go_fd = start.assignment, start.user, start.place, start.go_fd
    order = assignment.order
    inheritance.set_privileged_attributes(order.uid)
    outside = None if place is None else _enter(place, order)
    identity.become(user, start.groups, order.gid)
    inheritance.join_keyring(start.has_quota)
    # From here on the process has only the user's rights.
    payload = _read(assignment)
    if not payload.argv or not payload.argv[0]:
        raise unreadable("it names no program")
    env = identity.environment(user, order, payload)
    umask(payload.umask)
    _enter_directory(payload.cwd, user, outside)
    if payload.attach is None:
        _open_outputs(order, payload, user.pw_name, outside)
    else:
        _take_descriptors(payload.attach, outside)
    path, argv = _program(payload)
    if order.output_max_bytes and payload.attach is None:
        with socket.socket(fileno=start.report_fd) as report:
            # Root closes them, which asks no file system of the user's (FUSE) for anything.
            outputs = [open_fd(f"/proc/self/fd/{fd}", _SIZE_FLAGS) for fd in (1, 2)]
            send_descriptors(report, b"+", outputs)
            report.detach()
    else:
        write(start.report_fd, b"+")
    if read(go_fd, 1) != b"+":
        os._exit(125)
    inheritance.allow_core()
    try:
        # No shell interprets the user's words. A search in PATH by Python touches twenty pages.
        if "/" in path:
            execve(path, argv, env)
        execvpe(path, argv, env)
    except OSError as error:
        is_script, hint = payload.script is not None, _hint(outside, path)
        raise cannot_run(payload.argv[0], error, is_script=is_script, hint=hint) from error


def _enter_directory(path: str, user: pwd.struct_passwd, outside: int | None) -> None:
    try:
        chdir(path)
    except OSError as error:
        raise cannot_enter(user.pw_name, path, error, _hint(outside, path)) from error


def _read(assignment: Assignment) -> LaunchPayload:
    return _decode(read_sealed(assignment.payload_fd))


def _decode(data: bytes) -> LaunchPayload:
    try:
        return decode(data)
    except ValueError as error:
        raise unreadable(error) from None


def _report(fd: int, error: BaseException) -> None:
    write(fd, explain(error)[:MAX_TEXT].encode(errors="replace"))


def _enter(place: str, order: LaunchOrder) -> int:
    try:
        return private_tmp.enter(place, order.limits.memory_bytes)
    except OSError as error:
        # Without its space the job would see files of others, and leave its own behind.
        raise no_space(error) from error


def _hint(outside: int | None, path: str) -> str:
    return "" if outside is None else private_tmp.hint(path)


def _open_outputs(
    order: LaunchOrder, payload: LaunchPayload, user: str, outside: int | None
) -> None:
    _move_descriptor(open_fd("/dev/null", _INPUT_FLAGS), 0)
    # The output of an attempt that was preempted is kept.
    empty = order.empties_output
    patterns = payload.stdout, payload.stderr
    stdout, stderr = (order.output_path(each, payload.cwd) for each in patterns)
    own_out, own_err = map(is_named_by_id, patterns)
    out = _open_output(stdout, user, outside, empty=empty, own=own_out)
    same = stderr == stdout
    err = os.dup(out) if same else _open_output(stderr, user, outside, empty=empty, own=own_err)
    _move_descriptor(out, 1)
    _move_descriptor(err, 2)


def _open_output(path: str, user: str, outside: int | None, *, empty: bool, own: bool) -> int:
    flags = _EMPTIED_FLAGS if empty and not own else _OUTPUT_FLAGS
    if own:
        flags |= os.O_EXCL
    try:
        try:
            fd = private_tmp.open_outside(outside, path, flags, 0o666)
        except FileNotFoundError:
            _make_directories(os.path.dirname(path), outside)
            fd = private_tmp.open_outside(outside, path, flags, 0o666)
    except FileExistsError:
        fd = _open_own(path, user, outside, empty=empty)
    except OSError as error:
        is_pipe = error.errno == errno.ENXIO and _is_pipe(path, outside)
        raise cannot_write(user, path, error, is_pipe=is_pipe) from error
    set_blocking(fd, True)
    return fd


def _make_directories(path: str, outside: int | None) -> None:
    """Make a directory and those above it, unless they are there."""
    names = path.split("/")
    for count in range(2, len(names) + 1):
        above = "/".join(names[:count])
        with suppress(FileExistsError), private_tmp.path_outside(outside, above) as each:
            os.mkdir(each)


def _open_own(path: str, user: str, outside: int | None, *, empty: bool) -> int:
    """Open an output file that is there already and must be the user's own: another user may have
    put a file or a link there, to read the output or to have it written elsewhere."""
    try:
        fd = private_tmp.open_outside(outside, path, _OWN_FLAGS)
        if not is_own_file(os.fstat(fd)):
            raise not_own(path)
        if empty:
            os.ftruncate(fd, 0)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise not_own(path) from error
        raise cannot_write(user, path, error, is_pipe=False) from error
    return fd


def _is_pipe(path: str, outside: int | None) -> bool:
    try:
        fd = private_tmp.open_outside(outside, path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
    close(fd)
    return is_pipe


def _move_descriptor(fd: int, target: int) -> None:
    dup2(fd, target)
    close(fd)


def _take_descriptors(path: str, outside: int | None) -> None:
    """Receive standard input, output and error from the client's own socket (`drf run`)."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_ATTACH_WAIT_S)
        with private_tmp.path_outside(outside, path) as seen, at_socket(Path(seen)) as address:
            connection.connect(address)
        # When the client has left, another user may listen at its path.
        if peer_of(connection)[0] != os.getuid():
            raise terminal_of_another()
        kind, fds, _, _ = socket.recv_fds(connection, 1, 3)
    except OSError as error:
        raise terminal_gone(error) from error
    if len(fds) != 3:
        raise terminal_gone(None)
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    for fd in fds:
        os.close(fd)
    if kind == b"t":
        _take_terminal()
    connection.close()


def _take_terminal() -> None:
    """Make the pty at standard input, which was made for this job, the controlling terminal: its
    keys become signals for the session, and its end a hang-up."""
    try:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    except OSError as error:
        raise no_terminal(error) from None


def _program(payload: LaunchPayload) -> tuple[str, list[str]]:
    """Return the path and the arguments to execute: argv[0], searched in PATH, or the script from a
    file in memory, so that it runs as it was submitted."""
    argv = list(payload.argv)
    if payload.script is None:
        return argv[0], argv
    # The submitter's own value: it decides which code the interpreter loads beside the script.
    start = scripts.start_of(payload.script, payload.env.get(scripts.VARIABLE))
    # Open after exec, too: the interpreter opens the script by the name of this descriptor.
    fd = os.memfd_create("script", 0)
    left = memoryview(start.text.encode(errors="surrogateescape"))
    while left:
        left = left[write(fd, left) :]
    return start.command(fd, argv)


def ignored_signals() -> tuple[int, ...]:
    """Return the signals that this process ignores; a program that it executes inherits that.

    Those that the C library keeps for itself are left out, because nobody can set them. A process
    that was started by posix_spawn(3) of glibc ignores them."""
    line = next(line for line in get("/proc/self/status").split("\n") if line.startswith("SigIgn:"))
    mask = int(line.split()[1], 16)
    return tuple(number for number in signal.valid_signals() if mask >> (number - 1) & 1)


def _reset_signals() -> None:
    for number in ignored_signals():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
