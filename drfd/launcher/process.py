"""Facts about processes, read from /proc, and the few calls that Python does not wrap."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphaned descendants become our children: none escapes by a double fork (prctl(2))."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: with the pid, its identity. None for
    one that is gone, or waits to be reaped."""
    stat = _stat(pid)
    return int(stat[19]) if stat is not None and _lives(stat) else None


def descendants(root: int) -> list[int]:
    """All living descendants of `root`, without itself."""
    children: dict[int, list[int]] = {}
    for pid, stat in _all_stats():
        if _lives(stat):
            children.setdefault(int(stat[1]), []).append(pid)
    found: list[int] = []
    front = [root]
    while front:
        below = children.get(front.pop(), [])
        found += below
        front += below
    return found


def children(pid: int) -> list[int]:
    """Living children of a process that has one thread. A kernel that keeps no such list (before
    3.5, or built without it) names none."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            listed = [int(word) for word in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [child for child in listed if start_ticks(child) is not None]


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


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            # Gone, or run by a set-uid program; that must not save the others.
            continue


def _lives(stat: list[str]) -> bool:
    """Not dead; one whose main thread has left lives on in the others (num_threads)."""
    return stat[0] not in "ZX" or int(stat[17]) > 1


def _all_stats() -> Iterable[tuple[int, list[str]]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            stat = _stat(int(name))
            if stat is not None:
                yield int(name), stat


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on; see proc_pid_stat(5)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # Gone, or hidden from us (hidepid).
        return None
    # The second field is the program's name in parentheses, and may hold anything.
    return data[data.rindex(b")") + 2 :].decode().split()
