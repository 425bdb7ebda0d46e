"""Notification of a job's owner: a command of the owner's that runs after the job's end.

It runs as the job's user, in a cgroup with the job's name and limits, and for at most `NOTICE_S`.
The job's own is used if it is still there. A record in the attempt file is written first: no end is
notified twice, and if a launcher is killed meanwhile, perhaps not at all.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from drfd.common.failpoints import reach
from drfd.launcher import attempt_files
from drfd.launcher.attempt_files import Attempt, Key
from drfd.launcher.confinement.interface import Confinement, LimitFailed
from drfd.launcher.protocol import QUOTA, Assignment, LaunchOrder
from drfd.launcher.runner import identity, inheritance, privileges, waiting
from drfd.launcher.runner.child import JobStart, forget_signals
from drfd.launcher.runner.failures import MAX_REPORT_BYTES, explain
from drfd.launcher.runner.starter import report
from drfd.launcher.runner.starter.program import Starter
from drfd.launcher.signalling import Ending
from drfd.launcher.system import process
from drfd.linux import syscalls

#: Seconds that a command may take, and that its remaining processes are killed for.
NOTICE_S, _SWEEP_S = 30.0, 5.0
_UNKNOWN = "not known: it was cut short"


@dataclass
class Notices:
    """The notifications that are ordered, and those that are running."""

    confinement: Confinement
    attempts_fd: int
    #: Functions to watch a process until it is gone, and to ask whether it is being watched.
    watch: Callable[[Key, int], None]
    is_watched: Callable[[Key], bool]
    #: Capabilities of a runner, as bits.
    capabilities: int
    starter: Starter
    #: Largest number of commands that run at the same time; one user has half of them.
    most: int = 256
    _wanted: dict[Key, Assignment] = field(default_factory=dict)
    _live: set[Key] = field(default_factory=set)
    _results: dict[Key, str] = field(default_factory=dict)

    def add(self, assignment: Assignment) -> Key:
        """Add a notification, to be run when the attempt has no process left. Returns its key."""
        key = (assignment.order.id, assignment.order.attempt)
        if self._wanted.setdefault(key, assignment) is not assignment:
            assignment.close()
        return key

    def is_live(self, key: Key, ending: Ending) -> bool:
        """Return whether the attempt's command is running. Its end makes the ending due."""
        if key in self._live and self.is_watched(key):
            ending.due_mono_s = time.monotonic() + NOTICE_S + 2 * _SWEEP_S
            return True
        self._live.discard(key)
        return False

    def is_full(self, key: Key) -> bool:
        """Return whether the attempt's command must wait for the end of other commands."""
        each_users = max(1, self.most // 2)
        if key not in self._wanted or key in self._results or len(self._live) < each_users:
            return False
        self._live = {each for each in self._live if self.is_watched(each)}
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
        reach("notice.before-fork")
        try:
            pid = _start_notifier(
                assignment, self.confinement, attempt, self.attempts_fd, self.capabilities,
                self.starter,
            )  # fmt: skip
        except OSError as error:
            self._results[key] = f"not told: {error.strerror}"
            return False
        # Set before the result is known: a notifier that cannot write its record starts only once.
        self._results[key] = _UNKNOWN
        self._live.add(key)
        self.watch(key, pid)
        reach("notice.after-fork")
        return self.is_watched(key)

    def read(self, key: Key) -> None:
        """Read the result of the notification, before the attempt's file is removed."""
        if key not in self._wanted or self._results.get(key, _UNKNOWN) != _UNKNOWN:
            return
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None:
            self._results[key] = "not told: nothing was left of the job"
        else:
            notified = attempt.notified
            self._results[key] = _UNKNOWN if notified is None else _text_of(notified)

    def take(self, key: Key) -> dict[str, str]:
        """Return the result of the notification as a fact for the report, and forget it."""
        assignment = self._wanted.pop(key, None)
        if assignment is not None:
            assignment.close()
        text = self._results.pop(key, None)
        return {} if text is None else {"notice": text}


def _start_notifier(
    assignment: Assignment,
    confinement: Confinement,
    attempt: Attempt,
    attempts_fd: int,
    capabilities: int,
    starter: Starter,
) -> int:
    order = assignment.order
    launcher = os.getpid()
    pid = syscalls.fork()
    if pid:
        return pid
    # This copy of the launcher must never return to the launcher's loop.
    try:
        name = attempt_files.file_name((order.id, order.attempt))
        fd = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, dir_fd=attempts_fd)
        # This includes the launcher's lock, which the next launcher waits for.
        process.close_all_but(fd, assignment.payload_fd, starter.program_fd)
        # The next launcher would not know this process: without a record it would notify again, and
        # with one it would remove the job's cgroup.
        process.die_with(launcher)
        reach("notifier.before-mark")
        attempt_files.append(fd, "notifying", {"at_s": time.time()})
        if confinement.cgroup_path((order.id, order.attempt)) is None:
            # Without a cgroup only this process can kill what the command leaves behind.
            process.outlive_parent()
        reach("notifier.after-mark")
        try:
            text = _notify(assignment, confinement, attempt, capabilities, starter, fd)
        except BaseException as error:
            text = f"failed: {error!r}"
        reach("notifier.before-record")
        attempt_files.append(fd, "notified", {"text": text})
    finally:
        os._exit(0)


def _notify(
    assignment: Assignment,
    confinement: Confinement,
    attempt: Attempt,
    capabilities: int,
    starter: Starter,
    attempt_fd: int,
) -> str:
    """Start the command, and become the program that waits for its end. Returns why it could not be
    started."""
    gc.disable()
    order = assignment.order
    key = (order.id, order.attempt)
    os.setsid()
    signal.set_wakeup_fd(-1)
    forget_signals()
    inheritance.take_policy()
    syscalls.become_subreaper()
    try:
        _make_place(confinement, key, order)
    except (LimitFailed, OSError) as error:
        return f"failed: {error}"
    privileges.limit_capabilities(capabilities)
    starter.read_capabilities()
    try:
        job, report_out = _start_of(assignment, confinement, attempt)
        pid = starter.start(job)
    except (identity.Denied, identity.DirectoryFailed, LimitFailed, OSError) as error:
        return f"failed: {explain(error)}"
    privileges.limit_capabilities(1 << privileges.KILL)
    deadline_s = time.monotonic() + NOTICE_S
    problem = _problem(job, report_out, deadline_s)
    if problem is not None:
        return f"failed: {problem}"
    wait = waiting.Wait(
        record="notified",
        job_id=order.id,
        pid=pid,
        attempt_fd=attempt_fd,
        killing=confinement.killing(key),
        sweep_s=_SWEEP_S,
        deadline_s=deadline_s,
        # Without a cgroup only that program can kill what the command leaves behind.
        parent=None if confinement.cgroup_path(key) is None else os.getppid(),
    )
    waiting.become(starter, wait)
    os.kill(pid, signal.SIGKILL)
    return "failed: the machine is short of what it takes to wait for it"


def _start_of(
    assignment: Assignment, confinement: Confinement, attempt: Attempt
) -> tuple[JobStart, int]:
    """Return what the command's process needs, and where its reports come from. Raises Denied,
    DirectoryFailed, OSError."""
    order, place = assignment.order, attempt.created.get("space")
    # A directory that does not answer ends this process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(round(NOTICE_S))
    user = identity.account(order.uid, order.user)
    groups = identity.groups_of(user)
    signal.alarm(0)
    identity.insist_on_root_for(user)
    inheritance.leave_keyring()
    (entry_out, entry_in), (report_out, report_in), (go_out, go_in) = (os.pipe() for _ in range(3))
    start = JobStart(
        assignment, user, groups, confinement, entry_in, entry_out, report_in, go_out, go_in,
        inheritance.has_key_quota(order.uid),
        # That of the job, if it is still there.
        place if place is not None and os.path.isdir(place) else None,
        is_notice=True,
    )  # fmt: skip
    return start, report_out


def _problem(job: JobStart, report_out: int, deadline_s: float) -> str | None:
    """Return why the command could not be executed, or None if it runs, or may run yet: until exec
    its process may hang in the user's directory, or be stopped by the user."""
    said = b""
    while process.is_readable(report_out, max(0.0, deadline_s - time.monotonic())):
        piece = os.read(report_out, MAX_REPORT_BYTES)
        if not piece:
            break
        said = (said + piece)[:MAX_REPORT_BYTES]
    else:
        return None
    if said == b"+":
        return None
    entry = os.read(job.entry_out, MAX_REPORT_BYTES)
    failed = report.of_entry(entry) if entry else report.of_job(said.removeprefix(b"+"), job)
    return str(failed["text"])


def _text_of(notified: attempt_files.Record) -> str:
    """Return the result of a command in words. Without a text it was written by the program that
    has waited for the command (`waiting.py`)."""
    if "text" in notified:
        return str(notified["text"])
    if "is_stopped" in notified:
        return f"failed: it was stopped after {NOTICE_S:.0f} s"
    if notified["signal"] is not None:
        return f"failed: killed by signal {notified['signal']}"
    code = notified["exit_code"]
    return "told" if code == 0 else f"failed: exit code {code}"


def _make_place(confinement: Confinement, key: Key, order: LaunchOrder) -> None:
    """Make the attempt's cgroup if there is none: usually it has gone with the job's last process.
    It gets no CPUs of its own, because only the launcher knows which are free."""
    if confinement.cgroup_path(key) is None or key not in confinement.leftovers():
        confinement.create(key, replace(order.limits, cores_by=QUOTA), order.devices)
