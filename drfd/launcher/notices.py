"""Telling a job's owner of its end: a command of the owner's, in what is left of the job.

It runs as the job's user, in the job's own cgroup and so within its limits, before that is removed,
and for so long at most. A mark in the attempt file comes before it: no end is told twice, and one
during which a launcher was killed perhaps not at all.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drfd.failpoints import reach
from drfd.launcher import attempts, process
from drfd.launcher.attempts import Attempt, Key
from drfd.launcher.child import run_notice
from drfd.launcher.confinement import Confinement, LimitFailed
from drfd.launcher.endings import Ending
from drfd.launcher.protocol import Order

#: How long a command may take, and its remains may resist.
NOTICE_S, _SWEEP_S = 30.0, 5.0
#: How often it is looked at.
_LOOK_S = 0.01
_UNKNOWN = "not known: it was cut short together with drfd's launcher"


@dataclass
class Notices:
    confinement: Confinement
    attempts_fd: int
    #: Watch a process until it is gone, and be told whether it still is there.
    watch: Callable[[Key, int], None]
    is_watched: Callable[[Key], bool]
    _wanted: dict[Key, Order] = field(default_factory=dict)
    _live: set[Key] = field(default_factory=set)
    _told: dict[Key, str] = field(default_factory=dict)

    def add(self, order: Order) -> Key:
        """To be run when nothing of the attempt is left but its place."""
        key = (order.id, order.attempt)
        self._wanted.setdefault(key, order)
        return key

    def is_live(self, key: Key, ending: Ending) -> bool:
        """While it runs, the attempt is left alone: its end wakes the ending."""
        if key in self._live and self.is_watched(key):
            ending.due_mono_s = time.monotonic() + NOTICE_S + 2 * _SWEEP_S
            return True
        self._live.discard(key)
        return False

    def start(self, key: Key) -> bool:
        """Run what is wanted, if it has not been; True when something runs now."""
        order = self._wanted.get(key)
        if order is None or key in self._told:
            return False
        attempt = attempts.read(self.attempts_fd, key)
        if attempt is None or attempt.notifying is not None:
            return False
        if order.uid != attempt.created["uid"]:
            # Whether jobs of the attempt's user may run was looked at when it was launched.
            self._told[key] = "not told: it is not for the job's own user"
            return False
        reach("notice.before-fork")
        try:
            pid = _start_notifier(order, self.confinement, attempt, self.attempts_fd)
        except OSError as error:
            self._told[key] = f"not told: {error.strerror}"
            return False
        # If it cannot even make its mark, it is not started over and over.
        self._told[key] = _UNKNOWN
        self._live.add(key)
        self.watch(key, pid)
        reach("notice.after-fork")
        return self.is_watched(key)

    def read(self, key: Key) -> None:
        """Before the attempt's file is removed: what became of it."""
        if key not in self._wanted or self._told.get(key, _UNKNOWN) != _UNKNOWN:
            return
        attempt = attempts.read(self.attempts_fd, key)
        if attempt is None:
            self._told[key] = "not told: nothing was left of the job"
        elif attempt.notified is None:
            self._told[key] = _UNKNOWN
        else:
            self._told[key] = str(attempt.notified["text"])

    def take(self, key: Key) -> dict[str, str]:
        """The same, as a fact for the report, once."""
        self._wanted.pop(key, None)
        text = self._told.pop(key, None)
        return {} if text is None else {"notice": text}


def _start_notifier(
    order: Order, confinement: Confinement, attempt: Attempt, attempts_fd: int
) -> int:
    launcher = os.getpid()
    pid = process.fork()
    if pid:
        return pid
    # Whatever happens, this copy of the launcher must not go on as one.
    try:
        name = attempts.file_name((order.id, order.attempt))
        fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, dir_fd=attempts_fd)
        # The launcher's lock, above all: the next one waits for it.
        process.close_all_but(fd)
        # The next one would not know of us: without a mark it tells again, and with one it takes
        # the job's place away.
        process.die_with(launcher)
        reach("notifier.before-mark")
        attempts.append(fd, "notifying", {"at_s": time.time()})
        if confinement.cgroup_path((order.id, order.attempt)) is None:
            # Then nobody but us would end what the command leaves behind.
            process.outlive_parent()
        reach("notifier.after-mark")
        try:
            text = _notify(order, confinement, attempt)
        except BaseException as error:
            text = f"failed: {error!r}"
        reach("notifier.before-record")
        attempts.append(fd, "notified", {"text": text})
    finally:
        os._exit(0)


def _notify(order: Order, confinement: Confinement, attempt: Attempt) -> str:
    """Run it to its end, and tell how that was."""
    gc.disable()
    key = (order.id, order.attempt)
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    process.become_subreaper()
    try:
        _make_place(confinement, key, order)
    except (LimitFailed, OSError) as error:
        return f"failed: {error}"
    me = {"pid": os.getpid(), "start_ticks": process.start_ticks(os.getpid())}
    # This boot's, whatever boot the job was of: only the notice is to be found by it.
    ours = Attempt(created={**attempt.created, "boot_id": process.boot_id()}, runner=me)
    out, into = os.pipe()
    pid = process.fork()
    if pid == 0:
        os.close(out)
        run_notice(order, confinement, into)
    os.close(into)
    # Not its problem first: until exec it may hang where its user likes, or be stopped by him.
    status = _wait(pid)
    deadline = time.monotonic() + _SWEEP_S
    # All that it has forked is, or will be, a child of ours.
    while not (confinement.kill_pass(key, ours) and _is_childless()):
        if time.monotonic() > deadline:
            break
        time.sleep(_LOOK_S)
    if status is None:
        return f"failed: it was stopped after {NOTICE_S:.0f} s"
    code = os.waitstatus_to_exitcode(status)
    # It has ended, and nobody else has had the other end.
    problem = os.read(out, 4096)
    if problem:
        return f"failed: {problem.decode(errors='replace')}"
    if code < 0:
        return f"failed: killed by signal {-code}"
    return "told" if code == 0 else f"failed: exit code {code}"


def _make_place(confinement: Confinement, key: Key, order: Order) -> None:
    """After a reboot there is a file and no cgroup."""
    if confinement.cgroup_path(key) is None or key not in confinement.leftovers():
        confinement.create(key, order.limits)


def _wait(pid: int) -> int | None:
    """Its wait status; None when it has taken too long."""
    deadline = time.monotonic() + NOTICE_S
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(_LOOK_S)
    return None


def _is_childless() -> bool:
    """After reaping the dead ones."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return False
        except ChildProcessError:
            return True
