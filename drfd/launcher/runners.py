"""The runners that live: given attempts, found again after a restart, watched until they are gone.

Each is known by its pidfd. One that an earlier launcher started may have news that this one is
never rung for; such runners are looked at now and then (`unheard`). Before it has written its pid,
however long that takes, it is known by its lock: it counts as alive, for it may yet let its job go.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drfd.launcher import attempts, process
from drfd.launcher.attempts import Key
from drfd.launcher.protocol import Order
from drfd.launcher.runner import hand_over

#: One that no attempt has needed for so long leaves, with its few MB; the last one stays.
_IDLE_S = 5.0
#: How often one is looked at that cannot tell us that its job is up.
_LOOK_S = 0.02


@dataclass(eq=False, slots=True)
class _Runner:
    pid: int
    pidfd: int
    #: None: idle, or about to leave.
    key: Key | None
    #: None: it takes no further attempt.
    channel: socket.socket | None = None
    idle_since_s: float = 0.0


@dataclass
class Runners:
    attempts_fd: int
    selector: selectors.BaseSelector
    #: Called when a runner has let go of its attempt, or is gone.
    on_gone: Callable[[Key], None]
    #: Starts a runner; its pid and our end of its channel. OSError: there can be none.
    fork: Callable[[], tuple[int, socket.socket]]
    #: Whether one takes another attempt after its first.
    are_kept: bool
    mono: Callable[[], float] = time.monotonic
    #: Adopted before their jobs were let go: their bells ring at a launcher that is gone.
    unheard: set[Key] = field(default_factory=set)
    #: Adopted by their locks alone, until their pids are known.
    _nameless: set[Key] = field(default_factory=set)
    _busy: dict[Key, _Runner] = field(default_factory=dict)
    #: The one that has waited longest first.
    _idle: list[_Runner] = field(default_factory=list)

    def __contains__(self, key: Key) -> bool:
        return key in self._busy or key in self._nameless

    def pause_s(self) -> float | None:
        """How long until they are to be looked at; None: that is not needed."""
        if self.unheard or self._nameless:
            return _LOOK_S
        return self._spare_s()

    def wake(self, key: Key) -> None:
        """Let it go on, if somebody has stopped it: its user can, where we are that user, too."""
        if key in self._busy:
            signal.pidfd_send_signal(self._busy[key].pidfd, signal.SIGCONT)

    def prepare(self) -> None:
        """Have one ready for the next attempt, if that can be."""
        if self.are_kept and not self._idle:
            try:
                self._idle.append(self._new())
            except OSError:
                # The machine is short of something. The attempt will ask again, and say so.
                return

    def start(self, order: Order, created: attempts.Record, attempt_fd: int) -> None:
        """Have the attempt run whose file is `attempt_fd`. OSError: it is not."""
        key = (order.id, order.attempt)
        while True:
            is_new = not self._idle
            runner = self._new() if is_new else self._idle.pop()
            assert runner.channel is not None
            try:
                hand_over(runner.channel, order, created, attempt_fd)
            except OSError:
                self._dismiss(runner)
                # One that has waited may have been killed meanwhile.
                if is_new:
                    raise
                continue
            runner.key = key
            self._busy[key] = runner
            return

    def watch(self, key: Key, pid: int) -> None:
        """A process that is given no attempt by us."""
        try:
            self._busy[key] = self._watched(pid, key)
        except ProcessLookupError:
            return

    def adopt(self, key: Key) -> None:
        """Take over the runner of an attempt of an earlier launcher, if it still lives."""
        if not attempts.is_locked(self.attempts_fd, key):
            return
        attempt = attempts.read(self.attempts_fd, key)
        if attempt is None or attempt.runner is None:
            self._nameless.add(key)
            return
        pid = attempt.runner["pid"]
        if process.start_ticks(pid) == attempt.runner["start_ticks"]:
            self.watch(key, pid)
            if not attempt.may_have_run:
                self.unheard.add(key)

    def look(self) -> None:
        """Whether those that had not written their pids have, or are gone; and who is not needed
        any more."""
        for key in list(self._nameless):
            self._nameless.discard(key)
            self.adopt(key)
            if key not in self:
                self.on_gone(key)
        while self._spare_s() == 0:
            self._dismiss(self._idle[0])

    def _spare_s(self) -> float | None:
        """How long until the one that has waited longest is to leave; None: it is the last."""
        if len(self._idle) <= 1:
            return None
        return max(0.0, self._idle[0].idle_since_s + _IDLE_S - self.mono())

    def _new(self) -> _Runner:
        pid, channel = self.fork()
        runner = self._watched(pid, None)
        runner.channel = channel
        self.selector.register(channel, selectors.EVENT_READ, lambda: self._heard(runner))
        return runner

    def _watched(self, pid: int, key: Key | None) -> _Runner:
        runner = _Runner(pid, os.pidfd_open(pid), key)
        self.selector.register(runner.pidfd, selectors.EVENT_READ, lambda: self._gone(runner))
        return runner

    def _heard(self, runner: _Runner) -> None:
        """It has let go of its attempt, or leaves."""
        if runner.channel is None:
            return
        try:
            is_done = runner.channel.recv(1) == b"."
        except OSError:
            is_done = False
        if not is_done:
            self._dismiss(runner)
            return
        key, runner.key = runner.key, None
        if self.are_kept:
            runner.idle_since_s = self.mono()
            self._idle.append(runner)
        else:
            self._dismiss(runner)
        if key is not None:
            self._let_go(key)

    def _dismiss(self, runner: _Runner) -> None:
        """It leaves when its attempt, if it has one, is over."""
        if runner in self._idle:
            self._idle.remove(runner)
        if runner.channel is not None:
            self.selector.unregister(runner.channel)
            runner.channel.close()
            runner.channel = None

    def _gone(self, runner: _Runner) -> None:
        self._dismiss(runner)
        self.selector.unregister(runner.pidfd)
        os.close(runner.pidfd)
        try:
            os.waitpid(runner.pid, os.WNOHANG)
        except ChildProcessError:
            # Adopted from an earlier launcher: somebody else's child.
            pass
        if runner.key is not None:
            self._let_go(runner.key)

    def _let_go(self, key: Key) -> None:
        del self._busy[key]
        self.unheard.discard(key)
        self.on_gone(key)
