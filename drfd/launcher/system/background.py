"""Programs that do the launcher's work that may take long: it executes them and watches for their
ends. None is a copy of the launcher, in whose memory are the secret of signatures and the orders of
all users.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from drfd.linux.own_process import RUN_MODULE

#: Nice value of these processes, so that users' jobs go first.
_NICE = 10


def own_program(module: str, *words: object) -> list[str]:
    """Return the command that runs a module of drfd's, whose first argument is the launcher's pid:
    its process ends with the launcher (`process.die_with`)."""
    return [*RUN_MODULE, module, str(os.getpid()), *map(str, words)]


class BackgroundWork:
    """The processes that do the work."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        #: pid → its pidfd, and the function that gets its status at its end.
        self._live: dict[int, tuple[int, Callable[[int], object]]] = {}

    def start(
        self,
        command: Sequence[str],
        on_end: Callable[[int], object],
        *keep: int,
        nice: int = _NICE,
        stdout: int = subprocess.DEVNULL,
        stderr: int | None = None,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Execute a program, which gets only the descriptors in `keep`, and call `on_end` with its
        status, as wait(2) gives it, when it has ended. Returns the pid. Raises OSError if the
        process cannot be had now."""
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=keep,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
        # Its end is waited for by the loop.
        child.returncode = 0
        os.setpriority(os.PRIO_PROCESS, child.pid, nice)
        pidfd = os.pidfd_open(child.pid)
        self._live[child.pid] = pidfd, on_end
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._ended(child.pid))
        return child.pid

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
