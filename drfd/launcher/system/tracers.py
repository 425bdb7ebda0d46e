"""The end of debuggers that keep a job's processes after SIGKILL, if the job's user could end them.

A traced process (ptrace(2)) waits for its tracer even when it has been killed: with its memory, if
the tracer wants to see it exit (PTRACE_O_TRACEEXIT); and as a zombie, whose parent is not notified
until the tracer has been. The tracer is not part of the job. So a user could keep a job's resources
beyond its time limit and any cancellation, with a process outside the job.

    python -m drfd.launcher.system.tracers LAUNCHER UID USER PID...
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Sequence

from drfd.launcher.system import process
from drfd.linux.user_database import Subordinates

#: Status of the program if it has ended any.
HAS_ENDED_SOME = 3
_SUBORDINATES = Subordinates()


def main(words: Sequence[str]) -> None:
    process.die_with(int(words[0]))
    if end_tracers(map(int, words[3:]), int(words[1]), words[2]):
        sys.exit(HAS_ENDED_SOME)


def end_tracers(pids: Iterable[int], uid: int, name: str) -> int:
    """Send SIGKILL to all processes that trace one of these processes of a job of this user, and
    return how many there were. Only processes that are the user's by `_may_end` are killed. Users
    have many threads and long chains of tracers, so this may take seconds."""
    seen: set[int] = set()
    ended, front = 0, [*_with_descendants(pids)]
    while front:
        for thread in process.threads(front.pop()):
            tracer = process.tracer(thread)
            if tracer is None or tracer in seen:
                continue
            seen.add(tracer)
            if _end(tracer, thread, uid, name):
                ended += 1
                # It may be traced itself.
                front.append(tracer)
    return ended


def _with_descendants(pids: Iterable[int]) -> dict[int, None]:
    """Return these processes and all that descend from them. The first process of a pid namespace
    waits, when it is killed, for its zombies (pid_namespaces(7)), and is in no cgroup then."""
    found = dict.fromkeys(pids)
    front = [*found]
    while front:
        for thread in process.threads(front.pop()):
            new = [pid for pid in process.children(thread) if pid not in found]
            found.update(dict.fromkeys(new))
            front += new
    return found


def _end(tracer: int, traced: int, uid: int, name: str) -> bool:
    try:
        with process.opened_pidfd(tracer) as pidfd:
            # Checked again while the pidfd is held: the pid may have been reused.
            if process.tracer(traced) != tracer or not _may_end(uid, name, tracer):
                return False
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    return True


def _may_end(uid: int, name: str, pid: int) -> bool:
    """Return whether the user, or a subordinate uid of the user's, could kill a process by its real
    or saved uid (kill(2)), or whether it comes from a login of the user's. Who traces a job goes on
    with it in a set-uid program, which may become another user altogether, as sudo becomes root
    before it asks for a password."""
    return process.login(pid) == uid or any(
        each == uid or _SUBORDINATES.are_of(uid, name, each) for each in process.uids(pid)[::2]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
