"""Settings that a drfd process makes for itself at its start: OOM score, CPUs, keyring."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence

from drfd.linux import syscalls

#: Runs the module of drfd that is the next word, with what is installed and nothing of its user's.
RUN_MODULE = (sys.executable, "-I", "-m")
#: The uid and gid of "nobody" on every Linux.
NOBODY = 65534
#: CAP_DAC_READ_SEARCH of capabilities(7), as a bit.
_READ_ALL = 1 << 2
OOM_SCORE = "/proc/self/oom_score_adj"
#: OOM score of drfd's processes, from -1000 (killed never) to 1000 (first); jobs have 0, the usual.
SPARED = -500
#: OOM score of a process that is started again when it is needed.
_FIRST = 500


def spare() -> None:
    """Make the kernel's OOM killer prefer other processes, unless the score is as low already. Only
    root may do this. Where root may not, as in some containers, nothing changes."""
    if os.getuid() != 0:
        return
    try:
        with open(OOM_SCORE, "r+") as file:
            if int(file.read()) > SPARED:
                file.seek(0)
                file.write(str(SPARED))
    except OSError:
        return


def be_killed_first() -> None:
    """Make the kernel's OOM killer prefer this process. Raises OSError if that is not allowed."""
    with open(OOM_SCORE, "w") as file:
        file.write(str(_FIRST))


def become_helper(*, nice: int, cpu_s: int, more_bytes: int) -> None:
    """Give precedence to the process that has started this one, and end with it: lower the own
    priority for the scheduler and for the OOM killer, and bound the processor time and the memory
    beside what it has. Steps that a sandbox does not allow are skipped."""
    asked: tuple[Callable[[], object], ...] = (
        lambda: syscalls.set_parent_death_signal(signal.SIGKILL),
        lambda: os.setpriority(os.PRIO_PROCESS, 0, nice),
        lambda: resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1)),
        lambda: resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + more_bytes,) * 2),
        lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        syscalls.set_no_new_privileges,
        # A process that has dropped root's rights may not write its own score before.
        lambda: syscalls.set_dumpable(True),
        be_killed_first,
    )
    for ask in asked:
        try:
            ask()
        except (OSError, ValueError):
            continue


def _data_bytes() -> int:
    """Return what counts by RLIMIT_DATA of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def part_of_memory(part: int, least_bytes: int) -> int:
    """Return 1/part of the machine's memory in bytes, or the least if that is more."""
    return max(least_bytes, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // part)


def drop_rights(
    uid: int, gid: int, groups: Sequence[int], load: Callable[[], object] | None = None
) -> None:
    """Become this user for good, groups first, without any capability, and verify it. Raises
    PermissionError if that is not so.

    `load` imports what runs from then on: as this user, but with the right to read all files, since
    root may have installed drfd where no other user can read it.

    The process does not execute a program but stays a copy of the one that it was forked from, so
    the user may neither trace it nor get a core of it. A change of the effective uid alone ensures
    that where fs.suid_dumpable is 0; while another of its uids is root's, the user may not either.
    """
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(0, uid, 0)
    syscalls.set_dumpable(False)
    if load is not None:
        held = syscalls.capabilities()
        syscalls.set_capabilities(held._replace(effective=held.permitted & _READ_ALL))
        load()
    os.setresuid(uid, uid, uid)
    ids = (os.getresuid(), os.getresgid(), {*os.getgroups()})
    has_rights = uid != 0 and syscalls.capabilities().permitted
    if ids != ((uid,) * 3, (gid,) * 3, {*groups}) or has_rights:
        raise PermissionError("root's rights were not given up")


def take_cpus() -> None:
    """Run on all CPUs of process 1 of the machine or container that our cpuset allows. These leave
    out the CPUs that the kernel command line isolates, and those that systemd keeps from all
    services. The daemon of an ordinary user stays on the CPUs that its user has chosen."""
    if os.getuid() != 0:
        return
    try:
        cpus = os.sched_getaffinity(1)
        if cpus != os.sched_getaffinity(0):
            os.sched_setaffinity(0, cpus)
    except OSError:
        # A sandbox forbids the call, or the cpuset contains none of these CPUs.
        return


def leave_session_keyring() -> None:
    """Join a new session keyring: drfd, and what it starts, must not have the keys of the session
    that it was started from."""
    try:
        syscalls.join_session_keyring()
    except OSError:
        # The kernel has no keyrings, or the quota is used up; the launcher reports it for jobs.
        return
