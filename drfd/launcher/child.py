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

# What a job's process calls between fork and exec has a name of its own here: who looks up a name
# in a module writes to that name's page, which is copied first.
from os import chdir, close, dup2, execve, execvpe, read, set_blocking, setsid, umask, write
from os import open as open_fd
from pathlib import Path
from typing import NoReturn

from drfd.launcher import identity, process
from drfd.launcher.confinement import Confinement, LimitFailed
from drfd.launcher.files import get
from drfd.launcher.protocol import Order
from drfd.paths import at_socket

#: Without O_NONBLOCK a FIFO that nobody reads would hang a job for ever.
_OUTPUT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
#: Linux empties regular files alone (open(2)).
_EMPTIED_FLAGS = _OUTPUT_FLAGS | os.O_TRUNC
_INPUT_FLAGS = os.O_RDONLY
_ATTACH_WAIT_S = 10.0
#: A command that tells an owner is ended after this.
NOTICE_ALARM_S = 60


class StepFailed(Exception):
    """What could not be done, in a sentence for the submitter."""


def rehearse() -> None:
    """Do once, to no effect, what `run_child` does. What Python and the C library work out at the
    first call of a function, each job's process would work out anew, on pages of its own."""
    try:
        if os.getuid() == 0:
            os.setgroups(os.getgroups())
        os.setresgid(-1, -1, -1)
        os.setresuid(-1, -1, -1)
        os.getresuid()
        process.drops_capabilities()
        identity.oom_score()
        umask(umask(0o077))
        fd = open_fd("/dev/null", _INPUT_FLAGS)
        set_blocking(fd, True)
        _place(os.dup(fd), fd)
        close(fd)
        execve("/", ["/"], {"PATH": "/"})  # noqa: S606
    except OSError:
        # That nothing runs a directory ends it well. What else fails, a job will say.
        return


def run_child(
    order: Order,
    user: pwd.struct_passwd,
    groups: list[int],
    env: dict[str, str],
    report_fd: int,
    go_fd: int,
    others: tuple[int, ...],
) -> NoReturn:
    """Become the job, as this user, with the first byte from `go_fd`: that it is in its place. What
    goes wrong is written to `report_fd`, which closes itself at exec; a byte says that only the
    second one is missing. `others` are descriptors of the runner's that are not to be kept open.

    Whatever a runner can do for it before or after the fork is not done here: after a fork each
    page that is touched is copied first."""
    try:
        for fd in others:
            close(fd)
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
    setsid()
    if read(go_fd, 1) != b"+":
        os._exit(125)
    identity.reset_oom_score()
    identity.become(user, groups, order.gid)
    umask(order.umask)
    try:
        chdir(order.cwd)
    except OSError as error:
        raise StepFailed(f"{user.pw_name} cannot enter {order.cwd}: {error.strerror}") from None
    if order.attach is None:
        _open_outputs(order, user.pw_name)
    else:
        _take_descriptors(order.attach)
    path, argv = _program(order)
    write(report_fd, b"+")
    if read(go_fd, 1) != b"+":
        os._exit(125)
    try:
        # No shell: the words are the user's. What Python does for a search costs twenty pages.
        if "/" in path:
            execve(path, argv, env)  # noqa: S606
        execvpe(path, argv, env)  # noqa: S606
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
    _place(open_fd("/dev/null", _INPUT_FLAGS), 0)
    # What an attempt that was preempted has written is worth keeping.
    is_first = order.attempt == 1
    out = _open_output(order.stdout, user, empty=is_first)
    same = order.stderr == order.stdout
    err = os.dup(out) if same else _open_output(order.stderr, user, empty=is_first)
    _place(out, 1)
    _place(err, 2)


def _open_output(path: str, user: str, *, empty: bool) -> int:
    try:
        fd = open_fd(path, _EMPTIED_FLAGS if empty else _OUTPUT_FLAGS, 0o666)
    except OSError as error:
        is_pipe = error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode)
        why = "nobody reads this pipe" if is_pipe else error.strerror
        raise StepFailed(f"{user} cannot write the output file {path}: {why}") from None
    set_blocking(fd, True)
    return fd


def _place(fd: int, target: int) -> None:
    dup2(fd, target)
    close(fd)


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
