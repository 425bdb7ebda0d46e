"""The runners that live: found again after a restart, watched until they are gone.

Each is known by its pidfd. One that an earlier launcher started may have news that this one is
never rung for; such runners are looked at now and then (`unheard`).
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drfd.launcher import attempts, process
from drfd.launcher.attempts import Key

#: The runner writes its pid first of all; a lock without one is a few microseconds old.
_PID_WAIT_S = 5.0


@dataclass
class Runners:
    attempts_fd: int
    selector: selectors.BaseSelector
    #: Called when a runner is gone.
    on_gone: Callable[[Key], None]
    #: Adopted before their jobs were let go: their bells ring at a launcher that is gone.
    unheard: set[Key] = field(default_factory=set)
    _pidfds: dict[Key, int] = field(default_factory=dict)

    def __contains__(self, key: Key) -> bool:
        return key in self._pidfds

    def watch(self, key: Key, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        self._pidfds[key] = pidfd
        self.selector.register(pidfd, selectors.EVENT_READ, lambda: self._gone(key, pid))

    def adopt(self, key: Key) -> None:
        """Take over the runner of an attempt of an earlier launcher, if it still lives."""
        if not attempts.is_locked(self.attempts_fd, key):
            return
        attempt = attempts.read(self.attempts_fd, key)
        deadline = time.monotonic() + _PID_WAIT_S
        while attempt is None or attempt.runner is None:
            if time.monotonic() > deadline or not attempts.is_locked(self.attempts_fd, key):
                return
            time.sleep(0.002)
            attempt = attempts.read(self.attempts_fd, key)
        pid = attempt.runner["pid"]
        if process.start_ticks(pid) == attempt.runner["start_ticks"]:
            self.watch(key, pid)
            if not attempt.may_have_run:
                self.unheard.add(key)

    def _gone(self, key: Key, pid: int) -> None:
        pidfd = self._pidfds.pop(key)
        self.selector.unregister(pidfd)
        os.close(pidfd)
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            # Adopted from an earlier launcher: somebody else's child.
            pass
        self.unheard.discard(key)
        self.on_gone(key)
