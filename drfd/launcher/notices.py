"""Notification of a job's owner: a command of the owner's that runs after the job's end.

It runs as the job's user, in a new cgroup with the job's name and limits, and for at most
`NOTICE_S`. A record in the attempt file is written first: no end is notified twice, and if a
launcher is killed meanwhile, perhaps not at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pwd import struct_passwd

from drfd.common.failpoints import reach
from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Attempt, Key
from drfd.launcher.confinement.interface import Confinement, LimitFailed
from drfd.launcher.protocol import QUOTA, Assignment
from drfd.launcher.runner.failures import explain
from drfd.launcher.runner.identity import Denied, Directory, DirectoryFailed
from drfd.launcher.runner.runner import Runners
from drfd.launcher.runner.starter import plan, report
from drfd.launcher.runner.starter.plan import JobStart
from drfd.launcher.signalling import Ending
from drfd.linux.descriptors import opened

#: Seconds that a command may take.
NOTICE_S = 30.0
_UNKNOWN = "not known: it was cut short"


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
    _wanted: dict[Key, Assignment] = field(default_factory=dict)
    _live: set[Key] = field(default_factory=set)
    #: Those whose users are looked up.
    _asking: set[Key] = field(default_factory=set)
    _results: dict[Key, str] = field(default_factory=dict)

    def add(self, assignment: Assignment) -> Key:
        """Add a notification, to be run when the attempt has no process left. Returns its key."""
        key = (assignment.order.id, assignment.order.attempt)
        if self._wanted.setdefault(key, assignment) is not assignment:
            assignment.close()
        return key

    def is_live(self, key: Key, ending: Ending) -> bool:
        """Return whether the attempt's command is running. Its end makes the ending due."""
        if key in self._asking or (key in self._live and key in self.runners):
            ending.due_mono_s = time.monotonic() + NOTICE_S + 2 * plan.NOTICE_SWEEP_S
            return True
        self._live.discard(key)
        return False

    def is_full(self, key: Key) -> bool:
        """Return whether the attempt's command must wait for the end of other commands."""
        each_users = max(1, self.most // 2)
        if key not in self._wanted or key in self._results or len(self._live) < each_users:
            return False
        self._live = {each for each in self._live if each in self.runners}
        uid = self._wanted[key].order.uid
        # An order is kept in `_wanted` until its attempt is removed, so each running one is there.
        own = sum(self._wanted[each].order.uid == uid for each in self._live)
        return own >= each_users or len(self._live) >= self.most

    def start(self, key: Key) -> bool:
        """Start the attempt's command if one is ordered and has not run; return whether it runs."""
        assignment = self._wanted.get(key)
        if assignment is None or key in self._results:
            return False
        order = assignment.order
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None or attempt.notifying is not None:
            return False
        if order.uid != attempt.created["uid"] or not attempt.owner.may_be(order.owner):
            # The launch has checked only whether jobs of the attempt's own user may run.
            self._results[key] = "not told: it is not for the job's own user"
            return False
        found = self.directory.known(order)
        try:
            if found is None:
                self.directory.ask(order, partial(self._answered, key))
                self._asking.add(key)
                return True
            reach("notice.before-fork")
            self._start(assignment, attempt, *found)
        except (LimitFailed, OSError, MemoryError, ValueError) as error:
            self._results[key] = f"failed: {explain(error)}"
            return False
        # Set before the result is known: a notifier that cannot write its record starts only once.
        self._results[key] = _UNKNOWN
        self._live.add(key)
        reach("notice.after-fork")
        return True

    def _answered(self, key: Key, problem: Denied | DirectoryFailed | None) -> None:
        self._asking.discard(key)
        if problem is not None and key in self._wanted:
            self._results[key] = f"failed: {problem}"
        self.hurry(key)

    def _start(
        self, assignment: Assignment, attempt: Attempt, user: struct_passwd, groups: list[int]
    ) -> None:
        """Start the command in a new cgroup of the attempt's. Raises LimitFailed, OSError."""
        order, place = assignment.order, attempt.created.get("space")
        key = order.key
        # The job's CPUs are others' by now.
        limits = replace(order.limits, cores_by=QUOTA)
        settings = self.confinement.create(key, limits, order.devices)
        if place is not None and not os.path.isdir(place):
            place = None
        job = JobStart(assignment, user, groups, self.confinement, place, notice_s=NOTICE_S)
        name = attempt_files.file_name(key)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        with opened(name, flags, dir_fd=self.attempts_fd) as attempt_fd:
            self.runners.start(job, settings, attempt_fd)

    def read(self, key: Key) -> None:
        """Read the result of the notification, before the attempt's file is removed."""
        if key not in self._wanted or self._results.get(key, _UNKNOWN) != _UNKNOWN:
            return
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None:
            self._results[key] = "not told: nothing was left of the job"
        else:
            self._results[key] = _text_of(attempt)

    def take(self, key: Key) -> dict[str, str]:
        """Return the result of the notification as a fact for the report, and forget it."""
        assignment = self._wanted.pop(key, None)
        if assignment is not None:
            assignment.close()
        text = self._results.pop(key, None)
        return {} if text is None else {"notice": text}


def _text_of(attempt: Attempt) -> str:
    """Return the result of a command in words."""
    notified = attempt.notified
    if notified is None:
        return _UNKNOWN
    if "report" in notified:
        return f"failed: {report.failure_of(notified, attempt.created)['text']}"
    if "is_stopped" in notified:
        return f"failed: it was stopped after {NOTICE_S:.0f} s"
    if notified["signal"] is not None:
        return f"failed: killed by signal {notified['signal']}"
    code = notified["exit_code"]
    return "told" if code == 0 else f"failed: exit code {code}"
