"""Notification of a job's owner: a command of the owner's that runs after the job's end. That of
its start is begun by its runner (`tell_start` in start.h).

It runs as the job's user, in a new cgroup with the job's name and limits, and for at most
`NOTICE_S`. A record in the attempt file is written first: no end is notified twice, and if a
launcher is killed meanwhile, perhaps not at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pwd import struct_passwd

from drfd.common.failpoints import reach
from drfd.launcher import attempt_files
from drfd.launcher.accounts import Denied, DirectoryFailed
from drfd.launcher.attempt_files import Attempt, Key
from drfd.launcher.confinement.interface import Confinement, LimitFailed
from drfd.launcher.protocol import Assignment
from drfd.launcher.runner.failures import explain, failure_of
from drfd.launcher.runner.identity import Directory
from drfd.launcher.runner.runner import Runners
from drfd.launcher.runner.starter import plan
from drfd.launcher.runner.starter.plan import JobStart
from drfd.launcher.signalling import Ending
from drfd.linux.descriptors import opened

#: Seconds that a command may take.
NOTICE_S = 30.0
_UNKNOWN, _NOTHING_LEFT = "not known: it was cut short", "not told: nothing was left of the job"


@dataclass(slots=True)
class Notice:
    """A notification that is ordered, until its attempt is removed."""

    assignment: Assignment
    #: Whether its user is being looked up.
    is_looked_up: bool = False
    #: How its command has ended, or why it did not run; None until one of both is certain.
    result: str | None = None


@dataclass
class Notices:
    """The notifications that are ordered, and those that are running."""

    confinement: Confinement
    attempts_fd: int
    runners: Runners
    directory: Directory
    #: Makes the next try of an attempt's removal due now.
    hurry: Callable[[Key], None]
    #: Largest number of commands that run at the same time; one user has half of them.
    most: int = 256
    _all: dict[Key, Notice] = field(default_factory=dict)
    #: Those whose commands were running when this was last looked at.
    _running: set[Key] = field(default_factory=set)

    def add(self, assignment: Assignment) -> Key:
        """Add a notification, to be run when the attempt has no process left. Returns its key."""
        key = assignment.order.key
        if self._all.setdefault(key, Notice(assignment)).assignment is not assignment:
            assignment.close()
        return key

    def is_running(self, key: Key, ending: Ending) -> bool:
        """Return whether the attempt's command is running. Its end makes the ending due."""
        is_looked_up = key in self._all and self._all[key].is_looked_up
        if is_looked_up or (key in self._running and key in self.runners):
            ending.due_mono_s = time.monotonic() + NOTICE_S + 2 * plan.NOTICE_SWEEP_S
            return True
        self._running.discard(key)
        return False

    def must_wait(self, key: Key) -> bool:
        """Return whether the attempt's command must wait for the end of other commands."""
        each_users = max(1, self.most // 2)
        notice = self._all.get(key)
        if notice is None or notice.result is not None or len(self._running) < each_users:
            return False
        self._running = {each for each in self._running if each in self.runners}
        uid = notice.assignment.order.uid
        own = sum(self._all[each].assignment.order.uid == uid for each in self._running)
        return own >= each_users or len(self._running) >= self.most

    def start(self, key: Key) -> bool:
        """Start the attempt's command if one is ordered and has not run; return whether it runs."""
        notice = self._all.get(key)
        if notice is None or notice.result is not None:
            return False
        order = notice.assignment.order
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None or attempt.notifying is not None:
            return False
        if order.uid != attempt.created["uid"] or not attempt.owner.may_be(order.owner):
            # The launch has checked only whether jobs of the attempt's own user may run.
            notice.result = "not told: it is not for the job's own user"
            return False
        found = self.directory.known(order)
        try:
            if found is None:
                self.directory.ask(order, partial(self._looked_up, key, notice))
                notice.is_looked_up = True
                return True
            reach("notice.before-fork")
            self._start(notice.assignment, attempt, *found)
        except (LimitFailed, OSError, MemoryError, ValueError) as error:
            notice.result = f"failed: {explain(error)}"
            return False
        # Set before the result is known: a notifier that cannot write its record starts only once.
        notice.result = _UNKNOWN
        self._running.add(key)
        reach("notice.after-fork")
        return True

    def _looked_up(
        self, key: Key, notice: Notice, problem: Denied | DirectoryFailed | None
    ) -> None:
        notice.is_looked_up = False
        if problem is not None:
            notice.result = f"failed: {problem}"
        self.hurry(key)

    def _start(
        self, assignment: Assignment, attempt: Attempt, user: struct_passwd, groups: list[int]
    ) -> None:
        """Start the command in a new cgroup of the attempt's. Raises LimitFailed, OSError."""
        order, place = assignment.order, attempt.created.get("space")
        key = order.key
        settings = self.confinement.create(key, order.limits, order.devices)
        if place is not None and not os.path.isdir(place):
            place = None
        job = JobStart(assignment, user, groups, self.confinement, place, notice_s=NOTICE_S)
        name = attempt_files.file_name(key)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        with opened(name, flags, dir_fd=self.attempts_fd) as attempt_fd:
            self.runners.start(job, settings, attempt_fd)

    def result(self, key: Key) -> dict[str, object]:
        """Return how the notification has ended, as facts for the report, if there is one. Called
        before the attempt's file is removed."""
        notice = self._all.get(key)
        if notice is None:
            return {}
        if notice.result is None or notice.result == _UNKNOWN:
            attempt = attempt_files.read(self.attempts_fd, key)
            notice.result = _NOTHING_LEFT if attempt is None else _text_of(attempt)
        return {"notice": notice.result}

    def forget(self, key: Key) -> None:
        """Forget the notification of an attempt that is removed, or whose result is reported."""
        if key in self._all:
            self._all.pop(key).assignment.close()


def _text_of(attempt: Attempt) -> str:
    """Return the result of a command in words."""
    notified = attempt.notified
    if notified is None:
        return _UNKNOWN
    if "report" in notified:
        return f"failed: {failure_of(notified, attempt.created)['text']}"
    if "is_stopped" in notified:
        return f"failed: it was stopped after {NOTICE_S:.0f} s"
    if notified["signal"] is not None:
        return f"failed: killed by signal {notified['signal']}"
    code = notified["exit_code"]
    return "told" if code == 0 else f"failed: exit code {code}"
