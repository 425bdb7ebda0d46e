"""The runners: processes forked from the launcher, each the parent of one job at a time.

A runner outlives launcher and controller. It keeps the launcher's rights, so that a user can
neither forge the record of a job's end nor kill the process that writes it. It waits for the job,
kills its remaining processes and records the end. It is never inside the job's cgroup, so its
memory is not charged to the job.

When no process of the job is left, the runner may take another attempt: a fork of the launcher, and
the pages that both touch after it, cost more than everything else that is done for a short job.

The launcher knows each runner by its pidfd (`Runners`). One that an earlier launcher started cannot
notify this one that its job has started, so its attempt file is polled (`unreported`). Before such
a runner has written its pid, however long that takes, it is known by its lock: it counts as alive,
because it may yet release its job.
"""

from __future__ import annotations

import errno
import gc
import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Attempt, Key
from drfd.launcher.confinement.interface import Confinement
from drfd.launcher.protocol import Assignment, checked_order, decode, encode
from drfd.launcher.runner import identity, inheritance, privileges
from drfd.launcher.runner.attempt_process import FINISHED, AttemptProcess, notification
from drfd.launcher.runner.child import forget_signals
from drfd.launcher.runner.failures import describe
from drfd.launcher.runner.starter.program import Starter
from drfd.launcher.system import process
from drfd.linux import syscalls
from drfd.linux.sealed import receive

#: Number of attempts after which a runner is replaced, because it collects no garbage.
_MOST_ATTEMPTS = 1000
#: Seconds that a runner may take to read an order.
_HAND_OVER_S = 5


def fork_runner(
    confinement: Confinement, notify_fd: int, capabilities: int, starter: Starter
) -> tuple[int, socket.socket]:
    """Fork a runner. Returns its pid and the launcher's end of its channel. `notify_fd` is a pipe
    to the launcher: a line on it names an attempt that has started or is finished. `capabilities`
    are the bits of those that the runner keeps (`privileges.needed`), and `starter` begins its
    jobs' processes. Raises OSError."""
    ours, theirs = socket.socketpair()
    # The kernel keeps the time: Python would ask it before each message whether there is room.
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _HAND_OVER_S, 0))
    try:
        pid = syscalls.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid:
        theirs.close()
        return pid, ours
    try:
        _serve(theirs, confinement, notify_fd, capabilities, starter)
    finally:
        os._exit(0)


def hand_over(
    channel: socket.socket, assignment: Assignment, created: attempt_files.Record, attempt_fd: int
) -> None:
    """Give the attempt whose file is `attempt_fd` to the idle runner at the other end. Raises
    OSError if the runner has not taken it; then the channel is of no further use."""
    data = encode({"created": created, "order": assignment.order})
    try:
        sent = socket.send_fds(channel, [data], [attempt_fd, assignment.payload_fd])
        if sent < len(data):
            channel.sendall(data[sent:])
    except BlockingIOError:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None


def _serve(
    channel: socket.socket,
    confinement: Confinement,
    notify_fd: int,
    capabilities: int,
    starter: Starter,
) -> None:
    """Run one attempt after the other, and say of each when it is finished and another can be
    taken. The end of the channel means that the launcher is gone or has no more attempts for this
    runner."""
    # A collection of the launcher's objects would copy every page.
    gc.disable()
    os.setsid()
    signal.set_wakeup_fd(-1)
    # A user's daemon is stopped with ^C, but not its jobs.
    forget_signals()
    inheritance.take_policy()
    privileges.limit_capabilities(capabilities)
    process.close_all_but(channel.fileno(), notify_fd, starter.program_fd)
    syscalls.become_subreaper()
    me = {"pid": os.getpid(), "start_ticks": process.start_ticks(os.getpid())}
    children_fd = _watch_children()
    starter.read_capabilities()
    directory = identity.Directory()
    for _ in range(_MOST_ATTEMPTS):
        taken = _take(channel)
        if taken is None:
            return
        assignment, created, attempt_fd = taken
        attempt_process = AttemptProcess(
            assignment, confinement, created, attempt_fd, notify_fd, me, children_fd, directory,
            starter,
        )  # fmt: skip
        try:
            attempt_process.run()
        except BaseException as error:
            # Once the job is released, a missing record means that its end is unknown.
            if not attempt_process.is_released:
                attempt_files.append(attempt_fd, "failed", describe(error))
            return
        # This gives up the lock, too.
        os.close(attempt_fd)
        if not attempt_process.is_clean or attempt_process.is_last:
            return
        try:
            _say_finished(attempt_process.key, channel, notify_fd)
        except OSError:
            return


def _say_finished(key: Key, channel: socket.socket, notify_fd: int) -> None:
    """Tell the launcher that an attempt is finished. Raises OSError if the launcher is gone."""
    try:
        # A byte on the channel would wake this process, which waits there, when it is read.
        os.write(notify_fd, notification(key, FINISHED))
    except BlockingIOError:
        channel.send(b".")


def _take(channel: socket.socket) -> tuple[Assignment, attempt_files.Record, int] | None:
    """Receive the next attempt; None if there is none to come."""
    data, fds, _ = receive(channel, 1 << 16, 2)
    while not data.endswith(b"\n"):
        more = channel.recv(1 << 20)
        if not more:
            return None
        data += more
    message = decode(data)
    attempt_fd, payload_fd = fds
    return Assignment(checked_order(message["order"]), payload_fd), message["created"], attempt_fd


def _watch_children() -> int:
    """Return a descriptor that becomes readable when a child has died."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    signal.signal(signal.SIGCHLD, _do_nothing)
    signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    return out


def _do_nothing(number: int, frame: object) -> None:
    pass


#: Seconds after which an idle runner, which takes a few MB, exits; the last one stays.
_IDLE_S = 5.0
#: Largest number of idle runners; each serves the jobs of only one user.
_MAX_IDLE = 64
#: Seconds between readings of the attempt files of runners that cannot notify this launcher.
_POLL_S = 0.02


@dataclass(eq=False, slots=True)
class _Runner:
    pid: int
    pidfd: int
    #: The attempt; None if the runner is idle, or about to exit.
    key: Key | None
    #: The channel for attempts; None if the runner takes no further attempt.
    channel: socket.socket | None = None
    idle_since_s: float = 0.0
    #: The first record of its attempt, if this launcher has begun it.
    created: attempt_files.Record | None = None
    #: The only user whose jobs the runner serves; None if it has served none yet.
    uid: int | None = None


@dataclass
class Runners:
    """The living runners, busy or idle, as the launcher watches them."""

    attempts_fd: int
    selector: selectors.BaseSelector
    #: Called when a runner has finished its attempt, or is gone.
    on_gone: Callable[[Key], None]
    #: Starts a runner; returns its pid and the launcher's end of its channel. Raises OSError.
    fork: Callable[[], tuple[int, socket.socket]]
    #: Whether a runner takes another attempt after its first.
    are_kept: bool
    mono: Callable[[], float] = time.monotonic
    #: Attempts adopted before their jobs were released: the notify pipe of their runners leads to
    #: the previous launcher, so their files are polled.
    unreported: set[Key] = field(default_factory=set)
    #: Attempts adopted by their locks alone, until the pids of their runners are known.
    _nameless: set[Key] = field(default_factory=set)
    _busy: dict[Key, _Runner] = field(default_factory=dict)
    #: Idle runners, the one that has been idle longest first.
    _idle: list[_Runner] = field(default_factory=list)

    def __contains__(self, key: Key) -> bool:
        return key in self._busy or key in self._nameless

    def __len__(self) -> int:
        return len(self._busy) + len(self._nameless)

    def pause_s(self) -> float | None:
        """Return the seconds until `run_due` has something to do, or None if it has nothing."""
        if self.unreported or self._nameless:
            return _POLL_S
        return self._spare_s()

    def wake(self, key: Key) -> None:
        """Continue a stopped runner: where the launcher is not root's, its user can stop it."""
        if key in self._busy:
            signal.pidfd_send_signal(self._busy[key].pidfd, signal.SIGCONT)

    def prepare(self) -> None:
        """Start an idle runner for the next attempt, if there is none and one can be had."""
        if self.are_kept and not self._idle:
            try:
                self._idle.append(self._new())
            except OSError:
                # The machine is short of something. The next attempt tries again and reports it.
                return

    def start(self, assignment: Assignment, created: attempt_files.Record, attempt_fd: int) -> None:
        """Give the attempt whose file is `attempt_fd` to a runner. Raises OSError if none takes
        it."""
        order = assignment.order
        key = (order.id, order.attempt)
        while True:
            waiting = self._waiting_for(order.uid)
            is_new = waiting is None
            runner = waiting or self._new()
            runner.uid = order.uid
            assert runner.channel is not None
            try:
                hand_over(runner.channel, assignment, created, attempt_fd)
            except OSError:
                self._dismiss(runner)
                # An idle runner may have been killed meanwhile.
                if is_new:
                    raise
                continue
            runner.key, runner.created = key, created
            self._busy[key] = runner
            return

    def _waiting_for(self, uid: int) -> _Runner | None:
        """Take an idle runner that has served this user, or nobody yet. The memory of one that has
        served another user may hold that user's data. Returns None if there is none."""
        own = [runner for runner in self._idle if runner.uid == uid]
        found = own or [runner for runner in self._idle if runner.uid is None]
        if not found:
            return None
        self._idle.remove(found[-1])
        return found[-1]

    def started(self, key: Key) -> Attempt | None:
        """Return what is known of a running attempt, of which its runner has just said that its
        job has started; None if its file must be read."""
        runner = self._busy.get(key)
        if runner is None or runner.created is None:
            return None
        return Attempt(runner.created, runner={"pid": runner.pid}, running={})

    def finished(self, key: Key) -> None:
        """Take note that a runner has finished its attempt, and can take another."""
        runner = self._busy.get(key)
        if runner is not None and runner.channel is not None:
            self._free(runner)

    def watch(self, key: Key, pid: int) -> None:
        """Watch a process that gets no attempt from this launcher."""
        try:
            self._busy[key] = self._watched(pid, key)
        except ProcessLookupError:
            return

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
            self.watch(key, pid)
            if not attempt.may_have_run:
                self.unreported.add(key)

    def run_due(self) -> None:
        """Check on runners that had not written their pids, and end idle ones that are too many."""
        for key in list(self._nameless):
            self._nameless.discard(key)
            self.adopt(key)
            if key not in self:
                self.on_gone(key)
        while self._spare_s() == 0:
            self._dismiss(self._idle[0])

    def _spare_s(self) -> float | None:
        """Return the seconds until the longest idle runner is to exit, or None to keep it."""
        if len(self._idle) <= 1:
            return None
        return max(0.0, self._idle[0].idle_since_s + _IDLE_S - self.mono())

    def _new(self) -> _Runner:
        pid, channel = self.fork()
        runner = self._watched(pid, None)
        runner.channel = channel
        self.selector.register(channel, selectors.EVENT_READ, lambda: self._on_channel(runner))
        return runner

    def _watched(self, pid: int, key: Key | None) -> _Runner:
        runner = _Runner(pid, os.pidfd_open(pid), key)
        self.selector.register(runner.pidfd, selectors.EVENT_READ, lambda: self._gone(runner))
        return runner

    def _on_channel(self, runner: _Runner) -> None:
        """Handle the end of a runner's channel, which means that it takes no further attempt, or a
        byte there: its attempt is finished, and the pipe for saying so was full."""
        if runner.channel is None:
            return
        try:
            is_done = runner.channel.recv(1) == b"."
        except OSError:
            is_done = False
        if not is_done:
            self._dismiss(runner)
            if runner.key is not None:
                # The runner has become another program. The next attempt is not to wait for a fork.
                self.prepare()
            return
        self._free(runner)

    def _free(self, runner: _Runner) -> None:
        key, runner.key, runner.created = runner.key, None, None
        if self.are_kept:
            runner.idle_since_s = self.mono()
            self._idle.append(runner)
            if len(self._idle) > _MAX_IDLE:
                self._dismiss(self._idle[0])
        else:
            self._dismiss(runner)
        if key is not None:
            self._released(key)

    def _dismiss(self, runner: _Runner) -> None:
        """Have a runner exit when its attempt, if it has one, is over."""
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
            # It was adopted from an earlier launcher, and is not a child of this one.
            pass
        if runner.key is not None:
            self._released(runner.key)

    def _released(self, key: Key) -> None:
        del self._busy[key]
        self.unreported.discard(key)
        self.on_gone(key)
