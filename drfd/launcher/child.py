"""The job's own process, from fork to exec: limits first, then the user, then what the user named.

Nothing the user named (directory, output files, program) is touched before the rights are dropped.
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
from pathlib import Path
from typing import NoReturn

from drfd.launcher import identity, process
from drfd.launcher.confinement import Confinement, LimitFailed
from drfd.launcher.files import get
from drfd.launcher.protocol import Order
from drfd.paths import at_socket

_ATTACH_WAIT_S = 10.0
#: A command that tells an owner is ended after this.
NOTICE_ALARM_S = 60


class StepFailed(Exception):
    """What could not be done, in a sentence for the submitter."""


def run_child(
    order: Order,
    user: pwd.struct_passwd,
    groups: list[int],
    env: dict[str, str],
    report_fd: int,
    go_fd: int,
) -> NoReturn:
    """Become the job, as this user, with the first byte from `go_fd`: that it is in its place. What
    goes wrong is written to `report_fd`, which closes itself at exec; a byte says that only the
    second one is missing.

    Whatever a runner can do for it before or after the fork is not done here: after a fork each
    page that is touched is copied first."""
    try:
        _become_job(order, user, groups, env, report_fd, go_fd)
    except BaseException as error:
        text = explain(error)
        os.write(report_fd, json.dumps({"text": text}).encode())
    finally:
        os._exit(125)


def run_notice(order: Order, confinement: Confinement, report_fd: int) -> NoReturn:
    """Become the command that tells the job's owner: within the job's limits, silent, and ended by
    an alarm. What goes wrong is written to `report_fd`, which closes itself at exec."""
    try:
        os.setsid()
        user = identity.account(order.uid)
        groups = identity.groups_of(user)
        confinement.enter((order.id, order.attempt), order.limits, order.uid, pid=0)
        identity.reset_oom_score()
        identity.reset_file_limit()
        identity.become(user, groups, order.gid)
        os.umask(order.umask)
        try:
            os.chdir(order.cwd)
        except OSError:
            # Gone with the job's own cleaning up, perhaps: the owner is to hear of it all the same.
            os.chdir("/")
        null = os.open("/dev/null", os.O_RDWR)
        for target in (0, 1, 2):
            os.dup2(null, target)
        process.close_all_but(report_fd)
        env = identity.environment(user, order)
        _reset_signals()
        # It outlives exec (execve(2)); whoever waits for the command is more patient than that.
        signal.alarm(NOTICE_ALARM_S)
        try:
            os.execvpe(order.argv[0], list(order.argv), env)  # noqa: S606
        except OSError as error:
            raise StepFailed(_explain_exec(order.argv[0], error, is_script=False)) from None
    except BaseException as error:
        os.write(report_fd, explain(error).encode())
    finally:
        os._exit(125)


def _become_job(
    order: Order,
    user: pwd.struct_passwd,
    groups: list[int],
    env: dict[str, str],
    report_fd: int,
    go_fd: int,
) -> None:
    os.setsid()
    if os.read(go_fd, 1) != b"+":
        os._exit(125)
    identity.reset_oom_score()
    identity.become(user, groups, order.gid)
    os.umask(order.umask)
    try:
        os.chdir(order.cwd)
    except OSError as error:
        raise StepFailed(f"{user.pw_name} cannot enter {order.cwd}: {error.strerror}") from None
    if order.attach is None:
        _open_outputs(order, user.pw_name)
    else:
        _take_descriptors(order.attach)
    path, argv = _program(order)
    os.write(report_fd, b"+")
    if os.read(go_fd, 1) != b"+":
        os._exit(125)
    try:
        # No shell: the words are the user's. What Python does for a search costs twenty pages.
        if "/" in path:
            os.execve(path, argv, env)  # noqa: S606
        os.execvpe(path, argv, env)  # noqa: S606
    except OSError as error:
        name = argv[0] if order.script is None else f"the script {argv[0]}"
        raise StepFailed(_explain_exec(name, error, is_script=order.script is not None)) from None


def explain(error: BaseException) -> str:
    """Why a job could not be started, for its submitter."""
    match error:
        case StepFailed() | identity.Denied():
            return str(error)
        case LimitFailed():
            return f"it could not be set up: {error}"
        case OSError():
            return f"it could not be set up: {error.strerror}"
        case MemoryError():
            return "it could not be set up: out of memory"
        case _:
            return f"it could not be set up: {error!r}"


def _open_outputs(order: Order, user: str) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    _place(null, 0)
    # What an attempt that was preempted has written is worth keeping.
    is_first = order.attempt == 1
    out = _open_output(order.stdout, user, empty=is_first)
    same = order.stderr == order.stdout
    err = os.dup(out) if same else _open_output(order.stderr, user, empty=is_first)
    _place(out, 1)
    _place(err, 2)


def _open_output(path: str, user: str, *, empty: bool) -> int:
    # Without O_NONBLOCK a FIFO that nobody reads would hang here for ever.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
    if empty:
        # Linux does so to regular files alone (open(2)).
        flags |= os.O_TRUNC
    try:
        fd = os.open(path, flags, 0o666)
    except OSError as error:
        is_pipe = error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode)
        why = "nobody reads this pipe" if is_pipe else error.strerror
        raise StepFailed(f"{user} cannot write the output file {path}: {why}") from None
    os.set_blocking(fd, True)
    return fd


def _place(fd: int, target: int) -> None:
    os.dup2(fd, target)
    os.close(fd)


def _take_descriptors(path: str) -> None:
    """Standard input, output and error from the submitter's own socket (`drf run`)."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ATTACH_WAIT_S)
            with at_socket(Path(path)) as address:
                connection.connect(address)
            kind, fds, _, _ = socket.recv_fds(connection, 1, 3)
    except OSError as error:
        raise StepFailed(f"the terminal that waited for this job is gone ({error})") from None
    if len(fds) != 3:
        raise StepFailed("the terminal that waited for this job is gone")
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    for fd in fds:
        os.close(fd)
    if kind == b"t":
        _take_terminal()


def _take_terminal() -> None:
    """Standard input is a pty made for this job: its keys are signals for the session, and its
    end is a hang-up."""
    try:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    except OSError as error:
        raise StepFailed(f"its terminal cannot be taken: {error.strerror}") from None


def _program(order: Order) -> tuple[str, list[str]]:
    """What to exec: argv[0] by PATH, or the script's text from memory, so that it runs as it was
    when it was submitted."""
    if order.script is None:
        return order.argv[0], list(order.argv)
    fd = os.memfd_create("script", 0)
    os.write(fd, order.script.encode())
    path = f"/proc/self/fd/{fd}"
    if not order.script.startswith("#!"):
        return "/bin/sh", ["sh", path, *order.argv[1:]]
    return path, list(order.argv)


def ignored_signals() -> tuple[int, ...]:
    """Those that this process ignores, and so does a program that it becomes."""
    line = next(line for line in get("/proc/self/status").split("\n") if line.startswith("SigIgn:"))
    mask = int(line.split()[1], 16)
    return tuple(number for number in range(1, signal.NSIG) if mask >> (number - 1) & 1)


def _reset_signals() -> None:
    for number in ignored_signals():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _explain_exec(path: str, error: OSError, *, is_script: bool) -> str:
    if error.errno == errno.ENOENT and is_script:
        return f"{path} names an interpreter in its first line that is not there"
    if error.errno == errno.ENOENT and "/" not in path:
        return f"there is no command {path} in the job's PATH"
    if error.errno == errno.ENOENT:
        return f"there is no program {path}, or its interpreter is missing"
    if error.errno == errno.ENOEXEC:
        return f"{path} is not a program: a script needs a first line such as #!/bin/sh"
    return f"cannot run {path}: {error.strerror}"
