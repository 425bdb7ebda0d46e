"""The runners: processes of the compiled program, each the parent of one attempt.

A runner outlives launcher and controller. It keeps the right to kill, and its uid, so that a user
can neither forge the record of a job's end nor kill the process that writes it. It makes the job's
cgroups, waits for the job, kills its remaining processes, records the end and removes the cgroups.
It is never inside these, so its memory is not charged to the job.

The launcher knows each runner by its pidfd. One that an earlier launcher started cannot notify this
one that its job is launched, so its attempt file is polled. Before such a runner has written its
pid, however long that takes, it is known by its lock: it counts as alive, because it may yet
release its job.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Key, Records
from drfd.launcher.confinement.interface import Prepared
from drfd.launcher.runner.starter.plan import JobStart, Plans
from drfd.launcher.runner.starter.program import Starter
from drfd.launcher.system import process

#: Seconds between readings of the attempt files of runners that cannot notify this launcher.
POLL_S = 0.02


def read_launched(lines: bytes) -> Iterator[Key]:
    """Yield the attempts that their runners have launched, in order. Each line is whole, as a short
    write to a pipe is (pipe(7), PIPE_BUF)."""
    for line in lines.decode().splitlines():
        number, _, count = line.partition(".")
        yield int(number), int(count)


@dataclass(frozen=True, slots=True)
class Runner:
    """A living runner. One that an earlier launcher has started has no pid until it has written
    that: it is known by its lock."""

    pid: int = 0
    pidfd: int = -1

    def wake(self) -> None:
        """Continue it: where the launcher is not root's, its user can stop it."""
        if self.pid:
            signal.pidfd_send_signal(self.pidfd, signal.SIGCONT)


@dataclass
class Runners:
    """Starts runners, finds those of an earlier launcher, and watches them."""

    attempts_fd: int
    selector: selectors.BaseSelector
    #: Called when a runner with a pid is gone, and with whether it has removed all its cgroups, as
    #: far as that is known.
    on_gone: Callable[[Key, bool], None]
    starter: Starter
    plans: Plans
    #: The pipe through which runners say that their jobs are launched.
    launched_fd: int = -1
    #: Number of runners that are watched.
    count: int = 0

    def start(self, job: JobStart, prepared: Prepared, attempt_fd: int) -> Runner:
        """Start the runner of an attempt. Raises LimitFailed, OSError."""
        encoded = self.plans.encoded(job, prepared)
        pid = self.starter.spawn(attempt_fd, self.launched_fd, encoded, job.assignment.payload_fd)
        try:
            return self._watch(job.key, pid)
        except BaseException:
            # Nobody would know this runner, whose job is about to be reported as not started.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def find(self, key: Key, records: Records | None) -> Runner | None:
        """Return the runner of an attempt of an earlier launcher, or None if it is not alive."""
        if not attempt_files.is_locked(self.attempts_fd, key):
            return None
        if records is None or records.runner is None:
            return Runner()
        pid = records.runner["pid"]
        if process.start_ticks(pid) == records.runner["start_ticks"]:
            with suppress(ProcessLookupError):
                return self._watch(key, pid)
        return None

    def _watch(self, key: Key, pid: int) -> Runner:
        runner = Runner(pid, os.pidfd_open(pid))
        try:
            self.selector.register(
                runner.pidfd, selectors.EVENT_READ, lambda: self._gone(key, runner)
            )
        except BaseException:
            os.close(runner.pidfd)
            raise
        self.count += 1
        return runner

    def _gone(self, key: Key, runner: Runner) -> None:
        self.selector.unregister(runner.pidfd)
        os.close(runner.pidfd)
        self.count -= 1
        status = -1
        # One that was adopted from an earlier launcher is not a child of this one.
        with suppress(ChildProcessError):
            _, status = os.waitpid(runner.pid, os.WNOHANG)
        self.on_gone(key, status == 0)
