"""The runners: processes of the compiled program, each the parent of one attempt.

A runner outlives launcher and controller. It keeps the right to kill, and its uid, so that a user
can neither forge the record of a job's end nor kill the process that writes it. It waits for the
job, kills its remaining processes, records the end and removes the job's cgroups. It is never
inside these, so its memory is not charged to the job.

The launcher knows each runner by its pidfd (`Runners`). One that an earlier launcher started cannot
notify this one that its job is launched, so its attempt file is polled (`unreported`). Before such
a runner has written its pid, however long that takes, it is known by its lock: it counts as alive,
because it may yet release its job.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Attempt, Key
from drfd.launcher.confinement.interface import CgroupSetting
from drfd.launcher.runner.starter import layout, plan
from drfd.launcher.runner.starter.plan import JobStart
from drfd.launcher.runner.starter.program import Starter
from drfd.launcher.system import process

#: Seconds between readings of the attempt files of runners that cannot notify this launcher.
_POLL_S = 0.02


def read_launched(lines: bytes) -> Iterator[Key]:
    """Yield the attempts that their runners have launched, in order. Each line is whole, as a short
    write to a pipe is (pipe(7), PIPE_BUF)."""
    for line in lines.decode().splitlines():
        number, _, count = line.partition(".")
        yield int(number), int(count)


@dataclass(frozen=True, eq=False, slots=True)
class _Runner:
    pid: int
    pidfd: int
    key: Key
    #: The first record of its attempt, if this launcher has begun it.
    created: attempt_files.Record | None = None


@dataclass
class Runners:
    """The living runners, as the launcher starts and watches them."""

    attempts_fd: int
    selector: selectors.BaseSelector
    #: Called when a runner is gone.
    on_gone: Callable[[Key], None]
    starter: Starter
    #: The capabilities that a runner begins with, as bits.
    capabilities: int
    #: The pipe through which runners say that their jobs are launched.
    launched_fd: int = -1
    #: Attempts whose launch is to be reported. Of those adopted before their jobs were released the
    #: pipe leads to the previous launcher, so their files are polled.
    unreported: set[Key] = field(default_factory=set)
    #: Attempts adopted by their locks alone, until the pids of their runners are known.
    _nameless: set[Key] = field(default_factory=set)
    _all: dict[Key, _Runner] = field(default_factory=dict)

    def __contains__(self, key: Key) -> bool:
        return key in self._all or key in self._nameless

    def __len__(self) -> int:
        return len(self._all) + len(self._nameless)

    def pause_s(self) -> float | None:
        """Return the seconds until `run_due` has something to do, or None if it has nothing."""
        return _POLL_S if self.unreported or self._nameless else None

    def wake(self, key: Key) -> None:
        """Continue a stopped runner: where the launcher is not root's, its user can stop it."""
        if key in self._all:
            signal.pidfd_send_signal(self._all[key].pidfd, signal.SIGCONT)

    def start(
        self,
        job: JobStart,
        settings: list[CgroupSetting],
        attempt_fd: int,
        created: attempt_files.Record,
    ) -> None:
        """Start the runner of an attempt, which sets these limits first. Raises LimitFailed,
        OSError."""
        encoded = layout.encode(plan.plan_of(job, settings, self.capabilities))
        pid = self.starter.spawn(attempt_fd, self.launched_fd, encoded, job.assignment.payload_fd)
        try:
            self._watch(job.key, pid, created)
        except BaseException:
            # Nobody would know this runner, whose job is about to be reported as not started.
            runner = self._all.pop(job.key, None)
            if runner is not None:
                os.close(runner.pidfd)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def launched(self, key: Key) -> Attempt | None:
        """Return what is known of an attempt of which its runner has just said that its job is
        launched; None if its file must be read."""
        runner = self._all.get(key)
        if runner is None or runner.created is None:
            return None
        return Attempt(runner.created, runner={"pid": runner.pid}, launched={})

    def adopt(self, key: Key) -> None:
        """Take over the runner of an attempt of an earlier launcher, if it is alive."""
        if not attempt_files.is_locked(self.attempts_fd, key):
            return
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None or attempt.runner is None:
            self._nameless.add(key)
            return
        pid = attempt.runner["pid"]
        if process.start_ticks(pid) == attempt.runner["start_ticks"]:
            with suppress(ProcessLookupError):
                self._watch(key, pid)
                if not attempt.may_have_run:
                    self.unreported.add(key)

    def run_due(self) -> None:
        """Check on runners that had not written their pids."""
        for key in list(self._nameless):
            self._nameless.discard(key)
            self.adopt(key)
            if key not in self:
                self.on_gone(key)

    def _watch(self, key: Key, pid: int, created: attempt_files.Record | None = None) -> None:
        runner = _Runner(pid, os.pidfd_open(pid), key, created)
        self._all[key] = runner
        self.selector.register(runner.pidfd, selectors.EVENT_READ, lambda: self._gone(runner))

    def _gone(self, runner: _Runner) -> None:
        self.selector.unregister(runner.pidfd)
        os.close(runner.pidfd)
        # One that was adopted from an earlier launcher is not a child of this one.
        with suppress(ChildProcessError):
            os.waitpid(runner.pid, os.WNOHANG)
        del self._all[runner.key]
        self.unreported.discard(runner.key)
        self.on_gone(runner.key)
