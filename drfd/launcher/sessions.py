"""Commands that an owner runs inside a running job (`drf exec`).

Each has a process of root's, forked from the launcher and outside the job's cgroup, which starts
the command in the cgroup, waits for it, and tells its client how it has ended. It outlives launcher
and controller. The command is a member of the job: it is counted to it, and killed with it. If this
process is killed, the command goes on as any process of the job, and its client learns no more.

The client has made a socket, which the command's process connects to once it has become the user,
and where it gets its standard descriptors. This connection stays open between this process and the
client:

    to the client    one line with the exit code, or the negative number of a signal
    to this process  bytes that are numbers of signals for the command; the end hangs it up

On a pipe to the launcher, the command's process says "+" just before exec, or why it cannot start.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from drfd.common.failpoints import reach
from drfd.launcher.attempt_files import Attempt, Key
from drfd.launcher.confinement.interface import Confinement
from drfd.launcher.protocol import Assignment, Inside
from drfd.launcher.runner import identity, inheritance, privileges
from drfd.launcher.runner.child import InsideStart, ignored_signals, run_inside
from drfd.launcher.runner.failures import MAX_TEXT, explain
from drfd.launcher.system import process
from drfd.linux import syscalls
from drfd.linux.sealed import receive

#: Largest number of commands inside the jobs of one user.
_MOST_EACH = 16
#: Seconds that a command's process may take until it has its descriptors, and that a command may
#: take to end after its client has gone.
_START_S, _HANG_UP_S = 60.0, 5.0
#: Signals that a client may have sent to its command.
_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_GONE = "it was killed before it could begin"


@dataclass
class Sessions:
    """The commands that this launcher has started inside jobs, until their processes end."""

    confinement: Confinement
    selector: selectors.BaseSelector
    #: Capabilities that a command's process may keep until it becomes the user.
    capabilities: int
    #: Called with the attempt, the order's number, and why the command has not begun, or None.
    tell: Callable[[Key, int, str | None], None]
    #: Largest number of commands at a time.
    most: int = 256
    #: pid → its user.
    _live: dict[int, int] = field(default_factory=dict)

    def refusal(self, uid: int) -> str | None:
        """Return why no further command of this user can be started, or None."""
        if sum(own == uid for own in self._live.values()) >= _MOST_EACH:
            return (
                f"{_MOST_EACH} commands of its user run inside jobs already, the most there can be"
            )
        if len(self._live) >= self.most:
            return f"{self.most} commands run inside jobs already, the most there can be"
        return None

    def start(self, assignment: Assignment, inside: Inside, attempt: Attempt) -> None:
        """Start a command; whether it has begun is told later. Raises OSError, and then no process
        of it is left."""
        order = assignment.order
        out, into = os.pipe()
        reach("inside.before-fork")
        try:
            pid = syscalls.fork()
        except OSError:
            os.close(out)
            os.close(into)
            raise
        if pid == 0:
            # This copy of the launcher must never return to the launcher's loop.
            try:
                _serve(assignment, inside, self.confinement, attempt, self.capabilities, into)
            finally:
                os._exit(0)
        os.close(into)
        key = (order.id, order.attempt)
        said = bytearray()
        watched = [out]
        try:
            pidfd = os.pidfd_open(pid)
            watched.append(pidfd)
            self.selector.register(pidfd, selectors.EVENT_READ, lambda: self._gone(pid, pidfd))
            self.selector.register(
                out, selectors.EVENT_READ, lambda: self._read(out, said, key, inside.number)
            )
        except OSError:
            # For want of descriptors, perhaps: its end could not be noticed.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            for fd in watched:
                if fd in self.selector.get_map():
                    self.selector.unregister(fd)
                os.close(fd)
            raise
        self._live[pid] = order.uid
        reach("inside.after-fork")

    def _gone(self, pid: int, pidfd: int) -> None:
        self.selector.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(pid, 0)
        del self._live[pid]

    def _read(self, fd: int, said: bytearray, key: Key, number: int) -> None:
        piece = os.read(fd, MAX_TEXT)
        said += piece[: MAX_TEXT - len(said)]
        if piece:
            return
        self.selector.unregister(fd)
        os.close(fd)
        problem = said.removeprefix(b"+").decode(errors="replace")
        self.tell(key, number, (problem or None) if said else _GONE)


# -- in the process of a command -------------------------------------------------------------------


def _serve(
    assignment: Assignment,
    inside: Inside,
    confinement: Confinement,
    attempt: Attempt,
    capabilities: int,
    report_fd: int,
) -> None:
    """Start the command, wait for its end, and tell the client."""
    gc.disable()
    os.setsid()
    signal.set_wakeup_fd(-1)
    # As in a runner: a handled signal has its default action again in the command.
    for number in (*ignored_signals(), signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    process.close_all_but(report_fd, assignment.payload_fd)
    inheritance.take_policy()
    privileges.limit_capabilities(capabilities)
    ours, theirs = socket.socketpair()
    try:
        pid = _start(assignment, inside, confinement, attempt, report_fd, ours, theirs)
    except Exception as error:
        os.write(report_fd, explain(error)[:MAX_TEXT].encode(errors="replace"))
        return
    os.close(report_fd)
    theirs.close()
    assignment.close()
    pidfd = os.pidfd_open(pid)
    client = _client(ours)
    # Nothing is left to do that needs more rights than those to wait and to signal.
    privileges.drop_privileges()
    if client is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return
    status = _await_end(pid, pidfd, client)
    reach("inside.before-answer")
    with suppress(OSError):
        answer = f"{os.waitstatus_to_exitcode(status)}\n".encode()
        client.send(answer, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _start(
    assignment: Assignment,
    inside: Inside,
    confinement: Confinement,
    attempt: Attempt,
    report_fd: int,
    ours: socket.socket,
    theirs: socket.socket,
) -> int:
    """Fork the command's process into the job's cgroup and return its pid."""
    order = assignment.order
    user = identity.account(order.uid, order.user)
    groups = identity.groups_of(user)
    identity.insist_on_root_for(user)
    # Done before it enters the cgroup, which is charged for each page that it touches.
    inheritance.leave_keyring()
    has_quota = inheritance.has_key_quota(order.uid)
    start = InsideStart(
        assignment, inside.command, user, groups, confinement, report_fd, theirs, has_quota,
        place=attempt.created.get("space"),
    )  # fmt: skip
    parent = os.getpid()
    reach("inside.before-enter")
    pid = confinement.fork((order.id, order.attempt))
    if pid:
        return pid
    try:
        # Until it is in the cgroup, it must not outlive what would kill it.
        process.die_with(parent)
        ours.close()
        run_inside(start)
    finally:
        os._exit(125)


def _client(channel: socket.socket) -> socket.socket | None:
    """Return the connection to the client that the command's process passes on, or None if it has
    failed before or takes too long."""
    if not process.is_readable(channel.fileno(), _START_S):
        return None
    _, fds, _ = receive(channel, 1, 1)
    return socket.socket(fileno=fds[0]) if fds else None


def _await_end(pid: int, pidfd: int, client: socket.socket) -> int:
    """Wait for the command and return its wait status. Signals of the client are passed on, and
    when it goes away the command is hung up, and killed if it does not mind."""
    with selectors.PollSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        selector.register(client, selectors.EVENT_READ)
        kill_at_s: float | None = None
        while True:
            left_s = None if kill_at_s is None else max(0.0, kill_at_s - time.monotonic())
            ready = {key.fd for key, _ in selector.select(left_s)}
            if pidfd in ready:
                return os.waitpid(pid, 0)[1]
            if client.fileno() in ready:
                numbers = _read_signals(client)
                if not numbers:
                    selector.unregister(client)
                    numbers, kill_at_s = [signal.SIGHUP], time.monotonic() + _HANG_UP_S
                for number in numbers:
                    _signal(pid, number)
            if kill_at_s is not None and time.monotonic() >= kill_at_s:
                _signal(pid, signal.SIGKILL)
                kill_at_s = time.monotonic() + _HANG_UP_S


def _read_signals(client: socket.socket) -> list[int]:
    """Return the signals that the client asks for, or none if it has gone."""
    try:
        data = client.recv(16, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return [0]
    except OSError:
        return []
    return [number if number in _FORWARDED else 0 for number in data]


def _signal(pid: int, number: int) -> None:
    """Signal the command's process group, which it leads and which nobody else has reaped."""
    with suppress(OSError):
        os.killpg(pid, number)
