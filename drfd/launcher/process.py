"""Facts about processes, read from /proc, and the few calls that Python does not wrap."""

from __future__ import annotations

import ctypes
import functools
import os
import select
import signal
from collections.abc import Iterable
from typing import NamedTuple

from drfd.launcher.files import get

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_SECUREBITS = 1, 36, 27
_NO_SETUID_FIXUP, _KEEP_CAPS = 1 << 2, 1 << 4

#: Of /proc/PID/stat so many are looked at, from the state on.
_FIELDS = 20

_libc = ctypes.CDLL(None, use_errno=True)
#: Calls that keep Python's global lock.
_held_libc = ctypes.PyDLL(None, use_errno=True)


def fork() -> int:
    """As os.fork, for a process of a single thread. What Python does in the child for the threads
    that are not there touches more memory than all the rest."""
    pid = int(_held_libc.fork())
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def is_readable(fd: int, within_s: float) -> bool:
    """Or at its end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(round(within_s * 1000)))


def become_subreaper() -> None:
    """Orphaned descendants become our children: none escapes by a double fork (prctl(2))."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with(parent: int) -> None:
    """SIGKILL to us, its child, when it ends (prctl(2)); at once if it has already."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with`."""
    if _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


@functools.cache
def drops_capabilities() -> bool:
    """Whether, for all that the kernel says, who becomes somebody else has none of root's rights
    left (capabilities(7)); asked once."""
    bits = int(_libc.prctl(_PR_GET_SECUREBITS, 0, 0, 0, 0))
    return bits >= 0 and not bits & (_NO_SETUID_FIXUP | _KEEP_CAPS)


def boot_id() -> str:
    return get("/proc/sys/kernel/random/boot_id").strip()


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: with the pid, its identity. None for
    one that is gone, or waits to be reaped."""
    stat = _stat(pid)
    return int(stat[19]) if stat is not None and _lives(stat) else None


def descendants(root: int) -> list[int]:
    """All living descendants of `root`, without itself."""
    return [pid for pid, stat in _below(root).items() if _lives(stat)]


class Relative(NamedTuple):
    #: As in proc_pid_stat(5). "T": every thread stands still; "D": or cannot be interrupted.
    state: str
    parent: int


def family(root: int) -> dict[int, Relative]:
    """All descendants of `root`, the dead that nobody has reaped included."""
    below = _below(root).items()
    return {pid: Relative(_state(pid, stat), int(stat[1])) for pid, stat in below}


def rest(pid: int) -> tuple[str, ...] | None:
    """How often each thread has been put to sleep; None: one of them runs, or the process is gone.
    The same as before: it has done nothing meanwhile."""
    counts: list[str] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            # The program's name may hold anything; line feeds in it are escaped.
            lines = get(f"/proc/{pid}/task/{thread}/status").split("\n")
            fields = dict(line.partition(":\t")[::2] for line in lines)
            if fields["State"].startswith("R"):
                return None
            counts += [thread, *(fields[f"{kind}voluntary_ctxt_switches"] for kind in ("", "non"))]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return tuple(counts)


def has_in_environment(pid: int, uid: int, wanted: dict[str, str]) -> bool:
    """Is it a process of this user that was started with these variables?"""
    try:
        if os.stat(f"/proc/{pid}").st_uid != uid:
            return False
        with open(f"/proc/{pid}/environ", "rb") as file:
            given = set(file.read().split(b"\0"))
    except OSError:
        return False
    return all(f"{name}={value}".encode() in given for name, value in wanted.items())


def children(pid: int) -> list[int]:
    """Children of a process that has one thread, the dead among them too that nobody has waited
    for; much faster than by a walk. A kernel that keeps no such list (before 3.5, or built without
    it) names none."""
    try:
        return [int(word) for word in get(f"/proc/{pid}/task/{pid}/children").split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def session_members(session: int) -> list[int]:
    """Living processes of a session."""
    return [pid for pid, stat in _all_stats() if int(stat[3]) == session and _lives(stat)]


def count_of_user(uid: int) -> int:
    """Threads that the user runs now, as RLIMIT_NPROC counts them."""
    count = 0
    for pid, stat in _all_stats():
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += int(stat[17])
        except OSError:
            continue
    return count


def group_of(pid: int) -> int | None:
    stat = _stat(pid)
    return None if stat is None else int(stat[2])


def signal_all(pids: Iterable[int], number: int) -> None:
    """A negative number is a process group: the kernel lets none fork on while it signals them."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            # Gone, or run by a set-uid program; that must not save the others.
            continue


def signal_threads(pids: Iterable[int], number: int) -> None:
    """To every thread: a process hands a signal to one of its threads, which may be in no state to
    take it while the others run on (signal(7))."""
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except (FileNotFoundError, ProcessLookupError):
            continue
        for thread in threads:
            # That it has gone, or is not ours to signal, must not save the others.
            _libc.tgkill(pid, int(thread), number)


def _below(root: int) -> dict[int, list[str]]:
    """All descendants, with their stat."""
    children: dict[int, list[tuple[int, list[str]]]] = {}
    for pid, stat in _all_stats():
        children.setdefault(int(stat[1]), []).append((pid, stat))
    found: dict[int, list[str]] = {}
    front = [root]
    while front:
        below = dict(children.get(front.pop(), []))
        found |= below
        front += below
    return found


def _state(pid: int, stat: list[str]) -> str:
    if int(stat[17]) <= 1:
        return stat[0]
    try:
        tasks = [_stat(f"{pid}/task/{name}") for name in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return "R"
    # One that is stopped has stopped in all its threads; some may have left before.
    states = {"R" if task is None else task[0] for task in tasks}
    if states <= set("TtZX"):
        return "T"
    return "D" if states <= set("TtZXD") else "R"


def _lives(stat: list[str]) -> bool:
    """Not dead; one whose main thread has left lives on in the others (num_threads)."""
    return stat[0] not in "ZX" or int(stat[17]) > 1


def _all_stats() -> Iterable[tuple[int, list[str]]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            stat = _stat(name)
            if stat is not None:
                yield int(name), stat


def _stat(pid: int | str) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on; see proc_pid_stat(5)."""
    try:
        text = get(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # Gone, or hidden from us (hidepid).
        return None
    # The second field is the program's name in parentheses, and may hold anything.
    return text[text.rindex(")") + 2 :].split(" ", _FIELDS)


def close_all_but(*keep: int) -> None:
    """All descriptors from 3 on."""
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))
