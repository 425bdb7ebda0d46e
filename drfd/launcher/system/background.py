"""Work of the launcher that may take long, done in processes that it forks and watches."""

from __future__ import annotations

import gc
import os
import selectors
import signal
from collections.abc import Callable

from drfd.launcher.system import process
from drfd.linux.own_process import NOBODY, drop_rights

#: Nice value of these processes, so that users' jobs go first.
_NICE = 10


class BackgroundWork:
    """The processes that do the work. All of them end with the launcher."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        #: pid → its pidfd, and the function that gets its status at its end.
        self._live: dict[int, tuple[int, Callable[[int], object]]] = {}

    def start(
        self,
        work: Callable[[], object],
        on_end: Callable[[], object],
        *keep: int,
        nice: int = _NICE,
    ) -> int:
        """Do `work` in a new process, which keeps only the descriptors in `keep`, and call `on_end`
        here when it is over, however it ended. Returns the pid. Raises OSError if no process can be
        had now."""
        pid = self.fork(work, *keep, nice=nice)
        self.watch(pid, lambda status: on_end())
        return pid

    def fork(self, work: Callable[[], object], *keep: int, nice: int) -> int:
        """Do the same, and leave it to the caller to `watch` the process."""
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            # This copy of the launcher must never return to the launcher's loop.
            try:
                gc.disable()
                signal.set_wakeup_fd(-1)
                # This includes the launcher's lock, which the next launcher waits for.
                process.close_all_but(*keep)
                process.die_with(launcher)
                os.setsid()
                os.nice(nice)
                work()
            finally:
                os._exit(0)
        return pid

    def watch(self, pid: int, on_end: Callable[[int], object]) -> None:
        """Call `on_end` with the status of a child, as wait(2) gives it, when that has ended."""
        pidfd = os.pidfd_open(pid)
        self._live[pid] = pidfd, on_end
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._ended(pid))

    def kill(self, pid: int) -> None:
        """Kill one of the processes without waiting for its end: its last system call may take
        long, and a user's own file system (FUSE) may never answer. `on_end` is called as usual."""
        if pid in self._live:
            os.kill(pid, signal.SIGKILL)

    def _ended(self, pid: int) -> None:
        pidfd, on_end = self._live.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        on_end(os.waitpid(pid, 0)[1])


def become_bare(uid: int) -> None:
    """Drop to this uid for good, without any of its groups: enough to remove what belongs to it."""
    launcher = os.getppid()
    drop_rights(uid, NOBODY, [])
    # The change of uid has taken the signal away (prctl(2)).
    process.die_with(launcher)
