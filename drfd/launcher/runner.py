"""The runner: parent of one job, forked from the launcher, outlives it and the controller.

It keeps the launcher's rights, so that a user can neither forge the record of a job's end nor
kill the process that takes it; it waits, kills what the job leaves behind, and leaves the record.
It is never inside the job's cgroup, hence never charged to it.

When nothing is left of the job, it may be given another: a fork of the launcher, and the pages that
both touch after it, cost more than all else that is done for a short job.
"""

from __future__ import annotations

import gc
import os
import signal
import socket

from drfd.launcher import attempts, child, identity, process
from drfd.launcher.child import explain, ignored_signals
from drfd.launcher.confinement import Confinement
from drfd.launcher.errand import Errand
from drfd.launcher.protocol import Order, checked_order, decode, encode, launch_message

#: A runner takes so many attempts, and is then replaced: it collects no garbage.
_MOST_ATTEMPTS = 1000
#: How long it may take to read an order.
_HAND_OVER_S = 5.0


def fork_runner(confinement: Confinement, bell_fd: int) -> tuple[int, socket.socket]:
    """A new runner: its pid, and our end of its channel. `bell_fd` is a pipe to the launcher: a
    line on it says that the attempt file has news. OSError: there can be none."""
    ours, theirs = socket.socketpair()
    ours.settimeout(_HAND_OVER_S)
    try:
        pid = process.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid:
        theirs.close()
        return pid, ours
    try:
        _serve(theirs, confinement, bell_fd)
    finally:
        os._exit(0)


def hand_over(
    channel: socket.socket, order: Order, created: attempts.Record, attempt_fd: int
) -> None:
    """Leave the attempt whose file is `attempt_fd` to the idle runner at the other end. OSError: it
    has not been taken; the channel is good for nothing then."""
    data = encode({"created": created, "order": launch_message(order)})
    sent = socket.send_fds(channel, [data], [attempt_fd])
    if sent < len(data):
        channel.sendall(data[sent:])


def _serve(channel: socket.socket, confinement: Confinement, bell_fd: int) -> None:
    """One attempt after the other. A byte on the channel says that we have let go of one, and can
    take another; its end, that the launcher is gone or has no more for us."""
    # Freed objects of the launcher are not ours to collect: it would copy every page.
    gc.disable()
    os.setsid()
    signal.set_wakeup_fd(-1)
    # A user's daemon is stopped with ^C; its jobs are not. What is ignored would be so in the job,
    # too; what is handled is at its default there (execve(2)).
    for number in (*ignored_signals(), signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    identity.reset_file_limit()
    process.close_all_but(channel.fileno(), bell_fd)
    process.become_subreaper()
    me = {"pid": os.getpid(), "start_ticks": process.start_ticks(os.getpid())}
    children_fd = _watch_children()
    child.rehearse()
    directory = identity.Directory()
    for _ in range(_MOST_ATTEMPTS):
        taken = _take(channel)
        if taken is None:
            return
        order, created, attempt_fd = taken
        errand = Errand(
            order, confinement, created, attempt_fd, bell_fd, me, children_fd, directory
        )
        try:
            errand.run(channel.fileno())
        except BaseException as error:
            # Else its end is not known, and that is what a record that is missing says.
            if not errand.is_let_go:
                attempts.append(attempt_fd, "failed", {"text": explain(error)})
            return
        # With it goes the lock.
        os.close(attempt_fd)
        if not errand.is_clean:
            return
        try:
            channel.send(b".")
        except OSError:
            return


def _take(channel: socket.socket) -> tuple[Order, attempts.Record, int] | None:
    """The next attempt; None: there is none to come."""
    data, fds, _, _ = socket.recv_fds(channel, 1 << 16, 1, socket.MSG_CMSG_CLOEXEC)
    while not data.endswith(b"\n"):
        more = channel.recv(1 << 20)
        if not more:
            return None
        data += more
    message = decode(data)
    return checked_order(message["order"]), message["created"], fds[0]


def _watch_children() -> int:
    """A descriptor that becomes readable when a child has died."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    signal.signal(signal.SIGCHLD, _do_nothing)
    signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    return out


def _do_nothing(number: int, frame: object) -> None:
    pass
