"""What a job inherits: resource limits and scheduling by a fixed policy, and a session keyring.

A launcher may be started from a shell with limits, a nice value or a CPU mask of its own, and a
program inherits all of these through fork and exec. So a job's parent first sets for itself what
the job is to inherit (`policy`; start.h); the few settings that differ from job to job are made in
the job's own process.

Where the launcher is not root, the limits, the nice value and the CPUs that it cannot set, or that
its user has chosen, stay as they are. docs/enforcement.md has the same table for users; a test
compares them.
"""

from __future__ import annotations

import errno
import functools
import os
import resource
from os import getuid
from resource import RLIM_INFINITY, RLIMIT_CORE, setrlimit

from drfd.linux import syscalls
from drfd.linux.kernel_files import get
from drfd.linux.own_process import OOM_SCORE, spare, take_cpus
from drfd.linux.syscalls import join_session_keyring

_MIB = 1 << 20
#: Limit → soft and hard value, as the kernel and systemd give them to services. `_threads` computes
#: NPROC and SIGPENDING.
LIMITS: dict[str, tuple[int, int]] = {
    "CPU": (RLIM_INFINITY, RLIM_INFINITY),
    "FSIZE": (RLIM_INFINITY, RLIM_INFINITY),
    "DATA": (RLIM_INFINITY, RLIM_INFINITY),
    "STACK": (8 * _MIB, RLIM_INFINITY),
    # A job that wants core files raises the soft limit itself: ulimit -c.
    "CORE": (0, RLIM_INFINITY),
    "RSS": (RLIM_INFINITY, RLIM_INFINITY),
    # A higher soft limit slows down programs that close all descriptors up to it.
    "NOFILE": (1024, 524288),
    "MEMLOCK": (8 * _MIB, 8 * _MIB),
    "AS": (RLIM_INFINITY, RLIM_INFINITY),
    "MSGQUEUE": (819200, 819200),
    "NICE": (0, 0),
    "RTPRIO": (0, 0),
    "RTTIME": (RLIM_INFINITY, RLIM_INFINITY),
}
#: Timer slack of jobs, in nanoseconds: the kernel's value for the first process.
TIMER_SLACK_NS = 50_000
#: Core limit, in bytes, with which a process leaves no core, neither as a file nor through a
#: program that core_pattern names; with 0 it is still piped to such a program (fs/coredump.c).
_NO_CORE = 1
_CAP_AUDIT_CONTROL = 30
_LOGIN_UID = "/proc/self/loginuid"


# -- drfd's own processes -----------------------------------------------------------------------


def protect(*, no_new_privileges: bool) -> None:
    """Protect the launcher and its runners, at the launcher's start: no core, no tracer, spared by
    the OOM killer, and on all CPUs that jobs may have, which the launcher has to know.

    With `no_new_privileges`, neither the launcher nor any job gains rights by a set-uid program.
    The launcher needs none, and no order of the controller can undo this."""
    if no_new_privileges:
        syscalls.set_no_new_privileges()
    hard = resource.getrlimit(RLIMIT_CORE)[1]
    setrlimit(RLIMIT_CORE, (_least(_NO_CORE, hard), hard))
    spare()
    take_cpus()
    if getuid() == 0:
        syscalls.set_dumpable(False)


def allow_many_files() -> None:
    """Raise the limit of open files to the hard one: the launcher holds some for each runner."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# -- what a job inherits ------------------------------------------------------------------------


def policy() -> tuple[int, ...]:
    """Return number, soft and hard value of each limit that a job's parent sets for itself, one
    after the other. It inherits the others from this process, which has them now."""
    limits = LIMITS | _threads()
    return tuple(
        part
        for name, values in limits.items()
        if resource.getrlimit(number := getattr(resource, f"RLIMIT_{name}")) != values
        for part in (number, *values)
    )


def bound_processes(per_user: int) -> None:
    """Limit the processes of each job's user (RLIMIT_NPROC), at the launcher's start."""
    global _per_user
    _per_user = per_user


#: Set by `bound_processes`; None for the kernel's value.
_per_user: int | None = None


def _threads() -> dict[str, tuple[int, int]]:
    """Return the limits that the kernel computes from its memory: half of all threads that it can
    have, and for the processes of one user at most the launcher's bound.

    The number of processes of a job is a separate limit (`Confinement`)."""
    half = _half_of_threads()
    return {"NPROC": max_processes(), "SIGPENDING": (half, half)}


@functools.cache
def _half_of_threads() -> int:
    return int(get("/proc/sys/kernel/threads-max")) // 2


def max_processes() -> tuple[int, int]:
    """Return the soft and the hard limit on the processes of a job's user."""
    half = _half_of_threads()
    most = half if _per_user is None else min(half, _per_user)
    return most, most


def _least(one: int, other: int) -> int:
    """Return the lower limit; RLIM_INFINITY is a negative number."""
    return min(one, other, key=lambda limit: float("inf") if limit == RLIM_INFINITY else limit)


@functools.cache
def oom_score() -> str:
    """Return the OOM score adjustment of this process; the kernel is asked once."""
    return get(OOM_SCORE).strip()


@functools.cache
def may_set_login() -> bool:
    """Return whether the kernel has login uids and this process may set one."""
    if not os.path.exists(_LOGIN_UID):
        return False
    return bool(syscalls.capabilities().effective >> _CAP_AUDIT_CONTROL & 1)


# -- session keyrings ---------------------------------------------------------------------------
# A process that inherits a session keyring has full use of every key in it (session-keyring(7)). It
# survives a change of uid and exec, so jobs of two users that share the launcher's would read each
# other's tickets and passphrases. So each job has a new one, and so does the launcher.
#
# The kernel counts a keyring, and each key in it again, against the uid that has made it: root has
# a quota of some ten thousand, an ordinary user one of 200 keys in all. A keyring outlives its job
# if a process outside has a link to it, or a file that the job has opened. So keyrings that users
# can fill are counted against the user, who could otherwise use up root's quota, without which no
# job of any user starts. A job whose user's quota is used up keeps an empty keyring, into which
# nothing can be put.


@functools.cache
def why_no_keyrings() -> str | None:
    """Give this process a new session keyring. Returns None, or the reason why neither it nor any
    job can have one. The kernel is asked once, at the launcher's start, for all runners."""
    try:
        join_session_keyring()
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return "the kernel has no keyrings"
        if error.errno in (errno.EPERM, errno.EACCES):
            # A container filters this call, for its jobs, too.
            return "keyctl is not permitted here, to jobs neither"
    return None


def keyring_warning() -> str | None:
    """Return a sentence for the administrator if only jobs lack the kernel's keyrings, or None."""
    why = why_no_keyrings()
    return None if why is None or why.startswith("the kernel") else f"jobs have no keyrings: {why}"
