"""Settings that a drfd process makes for itself at its start: OOM score, CPUs, rights."""

from __future__ import annotations

import os
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
