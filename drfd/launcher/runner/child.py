"""What root has decided about a process that is to become a user's: a job's, or a notification."""

from __future__ import annotations

import os
import pwd
import signal
from dataclasses import dataclass

from drfd.launcher.attempt_files import Key
from drfd.launcher.confinement.interface import Confinement
from drfd.launcher.protocol import Assignment
from drfd.launcher.system.files import get


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
    #: The runner's end of that pipe; -1 if nobody reads it.
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
    #: Whether the command that notifies the owner is begun, and not the job.
    is_notice: bool = False

    @property
    def key(self) -> Key:
        return self.assignment.order.id, self.assignment.order.attempt

    def close_its_ends(self) -> None:
        """Close the process's ends of the pipes in the runner, which sees then that it has died."""
        for fd in (self.entry_fd, self.report_fd, self.go_fd):
            os.close(fd)


def ignored_signals() -> tuple[int, ...]:
    """Return the signals that this process ignores; a program that it executes inherits that.

    Those that the C library keeps for itself are left out, because nobody can set them. A process
    that was started by posix_spawn(3) of glibc ignores them."""
    line = next(line for line in get("/proc/self/status").split("\n") if line.startswith("SigIgn:"))
    mask = int(line.split()[1], 16)
    return tuple(number for number in signal.valid_signals() if mask >> (number - 1) & 1)


def forget_signals() -> None:
    """Have a program that this process executes begin with no signal ignored or blocked, and let
    this process outlive those for the launcher.

    An ignored signal would stay ignored there; a handled one gets its default action (execve(2)).
    """
    for number in (*ignored_signals(), signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _do_nothing(number: int, frame: object) -> None:
    pass
