"""Facts about processes, read from /proc, and signals to them."""

from __future__ import annotations

import errno
import os
import select
import selectors
import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from drfd.linux import syscalls
from drfd.linux.kernel_files import get, get_record

#: Number of fields of /proc/PID/stat that are split, from the third (state) on.
_FIELDS = 20
#: Largest number of pidfds that are open at a time: all are listed again for so many.
_HELD_AT_A_TIME = 512
#: Errors of pidfd_open(2) for a process that has ended; the last two if a thread has its number.
_NO_PROCESS = (errno.ESRCH, errno.ENOENT, errno.EINVAL)


def is_readable(fd: int, within_s: float) -> bool:
    """Return whether a descriptor becomes readable, or reaches its end, within this time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(round(within_s * 1000)))


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (prctl(2)), or has ended already."""
    syscalls.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def watch_for_end(
    selector: selectors.BaseSelector, keep_fd: int | None, quit_: Callable[[], None]
) -> None:
    """Have a loop call `quit_` at SIGTERM, and when `keep_fd`, if it is given, reaches its end."""
    if keep_fd is not None:
        selector.register(keep_fd, selectors.EVENT_READ, quit_)
    wake_out, wake_in = os.pipe()
    os.set_blocking(wake_in, False)
    signal.set_wakeup_fd(wake_in)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    selector.register(wake_out, selectors.EVENT_READ, quit_)


def boot_id() -> str:
    return get("/proc/sys/kernel/random/boot_id").strip()


def start_ticks(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot, or None if it is gone or a
    zombie. Pid and start time together identify a process."""
    stat = _stat(pid)
    return int(stat[19]) if stat is not None and _lives(stat) else None


def is_new(pid: int) -> bool:
    """Return whether the kernel, which gives out pids in turn, will give out half of all before it
    gives out this one again: for as long as a few system calls take it means no other process."""
    latest, most = int(get("/proc/loadavg").split()[-1]), int(get("/proc/sys/kernel/pid_max"))
    return (pid - latest - 1) % most >= most // 2


@contextmanager
def opened_pidfd(pid: int) -> Iterator[int]:
    """Yield a descriptor of the process, which is readable once it has ended. Raises OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def descendants(root: int) -> list[int]:
    """Return all living descendants of `root`, without `root` itself."""
    children: dict[int, list[tuple[int, list[str]]]] = {}
    for pid, stat in _all_stats():
        children.setdefault(int(stat[1]), []).append((pid, stat))
    found: dict[int, list[str]] = {}
    front = [root]
    while front:
        below = dict(children.get(front.pop(), []))
        found |= below
        front += below
    return [pid for pid, stat in found.items() if _lives(stat)]


def children(pid: int) -> list[int]:
    """Return the children of a process that has one thread, zombies included. This is much faster
    than a walk through /proc. A kernel without this list (before 3.5, or built without it) names
    none."""
    try:
        return [int(word) for word in get(f"/proc/{pid}/task/{pid}/children").split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def threads(pid: int) -> list[int]:
    """Return the threads of a process, which may be a zombie."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def tracer(thread: int) -> int | None:
    """Return the process that traces a thread, or None."""
    try:
        # The thread that traces it, or 0 if there is none in this pid namespace.
        tracing = int(_status(thread)["TracerPid"])
        return int(_status(tracing)["Tgid"]) if tracing else None
    except (FileNotFoundError, ProcessLookupError):
        return None


def uids(pid: int) -> list[int]:
    """Return the real, effective, saved and file system uid, or none if the process is gone."""
    try:
        return [int(word) for word in _status(pid).get("Uid", "").split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def login(pid: int) -> int | None:
    """Return the uid of the login that a process comes from, whatever set-uid programs it has
    executed; (uid_t) -1 if it comes from none, or None if the process or the kernel has no such
    number."""
    try:
        return int(get(f"/proc/{pid}/loginuid"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def session_members(session: int) -> list[int]:
    """Return the living processes of a session."""
    return [pid for pid, stat in _all_stats() if int(stat[3]) == session and _lives(stat)]


def count_of_user(uid: int) -> int:
    """Return the number of threads that the user runs now, as RLIMIT_NPROC counts them."""
    count = 0
    for pid, stat in _all_stats():
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += int(stat[17])
        except OSError:
            continue
    return count


def signal_those(pids: Collection[int], listed: Callable[[], Iterable[int]], *numbers: int) -> None:
    """Send signals to processes that were listed a moment ago, some of which may be exiting. The
    list is read again while their pidfds are held, up to the last of them, so that a process that
    got the pid of one that has exited is not signalled: it is not on the list."""
    chosen = [*pids]
    for first in range(0, len(chosen), _HELD_AT_A_TIME):
        held: dict[int, int] = {}
        try:
            for pid in chosen[first : first + _HELD_AT_A_TIME]:
                try:
                    held[pid] = os.pidfd_open(pid)
                except OSError as error:
                    if error.errno not in _NO_PROCESS:
                        raise
            gone = {*held}
            for pid in listed():
                gone.discard(pid)
                if not gone:
                    break
            # In their order: a shell that is told before its child does not go on after its end.
            for pid in [each for each in held if each not in gone]:
                try:
                    for number in numbers:
                        signal.pidfd_send_signal(held[pid], number)
                except (ProcessLookupError, PermissionError):
                    continue
        finally:
            for fd in held.values():
                os.close(fd)


def _lives(stat: list[str]) -> bool:
    """Return whether a process is alive, if only in threads that outlive its main thread."""
    return stat[0] not in "ZX" or int(stat[17]) > 1


def _all_stats() -> Iterable[tuple[int, list[str]]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            stat = _stat(name)
            if stat is not None:
                yield int(name), stat


def _status(pid: int | str) -> dict[str, str]:
    """Return the fields of /proc/PID/status; see proc_pid_status(5). Raises OSError."""
    # The program's name may contain anything, but line feeds in it are escaped.
    lines = get(f"/proc/{pid}/status").split("\n")
    return dict(line.partition(":\t")[::2] for line in lines)


def _stat(pid: int | str) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (state) on; see proc_pid_stat(5)."""
    try:
        text = get_record(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # The process is gone, or hidden (hidepid).
        return None
    # The second field is the program's name in parentheses, which may contain anything.
    return text[text.rindex(")") + 2 :].split(" ", _FIELDS)
