"""What a runner gives to a job's process, and the process of a notification, from fork to exec."""

from __future__ import annotations

import os
import pwd
import signal
from dataclasses import dataclass
from typing import NoReturn

from drfd.launcher.attempt_files import Key
from drfd.launcher.confinement.interface import Confinement
from drfd.launcher.protocol import Assignment
from drfd.launcher.runner import identity, inheritance
from drfd.launcher.runner.failures import MAX_TEXT, cannot_run, explain, unreadable
from drfd.launcher.system import private_tmp, process
from drfd.launcher.system.files import get
from drfd.linux.sealed import read_sealed
from drfd.payload.unpack import LaunchPayload, decode

#: Seconds after which a notification command gets SIGALRM.
NOTICE_ALARM_S = 60


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
            os.close(fd)


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


def _read(assignment: Assignment) -> LaunchPayload:
    return _decode(read_sealed(assignment.payload_fd))


def _decode(data: bytes) -> LaunchPayload:
    try:
        return decode(data)
    except ValueError as error:
        raise unreadable(error) from None


def _report(fd: int, error: BaseException) -> None:
    os.write(fd, explain(error)[:MAX_TEXT].encode(errors="replace"))


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
