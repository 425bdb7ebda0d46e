"""The launcher's loop: orders from the one controller, and reports of the runners' attempts.

The launcher makes no scheduling decisions. An order may be repeated, and every controller that
connects gets all reports again. State that must survive the launcher is only in attempt files and
cgroups.
"""

from __future__ import annotations

import logging
import math
import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from drfd.common.failpoints import reach
from drfd.common.journald import about
from drfd.launcher import attempt_files, protocol
from drfd.launcher.attempt import AttemptEvent, AttemptState
from drfd.launcher.attempt_files import JobsStopRecord, Key, Records
from drfd.launcher.confinement.bounds import KNOWN_EACH, ProcessBounds, read_most_running
from drfd.launcher.confinement.interface import CGROUP_MODE, Confinement, Counted, LimitFailed
from drfd.launcher.gpu_meter.supervision import GpuMeter
from drfd.launcher.performer import Performer
from drfd.launcher.port import Policy, Port
from drfd.launcher.protocol import (
    CRASH,
    RUNNER_GONE,
    SHUTDOWN,
    STOPPED,
    Assignment,
    ExecOrder,
    Hello,
    KeyOrder,
    LaunchOrder,
    ListOrder,
    MeasureGpusOrder,
    Message,
    Order,
    WeightsOrder,
)
from drfd.launcher.runner import inheritance
from drfd.launcher.runner.identity import Directory, Problem
from drfd.launcher.runner.runner import POLL_S, Runner, Runners, read_launched
from drfd.launcher.runner.shortage import (
    DIRECTORY,
    JOB,
    LAUNCHER,
    MACHINE,
    Shortage,
    failure,
    machine_shortage,
    machine_text,
)
from drfd.launcher.runner.starter.plan import JobStart, Plans
from drfd.launcher.runner.starter.program import Starter, needed_capabilities, open_starter
from drfd.launcher.schedule import (
    FREEZE_PAUSES_S,
    HELD_S,
    KILL_PAUSES_S,
    STUCK_S,
    LocalAttempt,
    Schedule,
)
from drfd.launcher.signatures import KeyFiles, SigningKeys, accepts_exec, is_signed
from drfd.launcher.system import process
from drfd.launcher.system.accounts import AccountProcess, Denied, NotAsked
from drfd.launcher.system.background import BackgroundWork, own_program
from drfd.launcher.system.cleanup import IpcSweeps
from drfd.launcher.system.private_tmp import PrivateSpaces
from drfd.launcher.system.tracers import HAS_ENDED_SOME
from drfd.linux import syscalls


def reports_from(
    attempt: Records,
    *,
    alive: bool,
    jobs_stop: JobsStopRecord | None,
    counters: Callable[[], Counted],
    at_s: float,
    boot_id: str,
) -> list[tuple[str, Message]]:
    """Return (kind, facts) of each report that an attempt file gives rise to.

    `alive` tells whether the runner is alive, and `jobs_stop` when all jobs were last stopped from
    outside. `counters` reads the present ones, of an attempt whose runner was killed: it alone has
    left its cgroups, and has recorded none. `boot_id` and `at_s` are the present boot and time."""
    reports: list[tuple[str, Message]] = []
    created = attempt.created
    was_stopped = jobs_stop is not None and jobs_stop.affected(attempt)
    is_of_old = created["boot_id"] != boot_id
    if attempt.launched is not None and attempt.launch_failed is None:
        launched = {
            "at_s": created["at_s"],
            "mono_s": created["mono_s"],
            "cgroup": created["cgroup"],
            "runner_pid": (attempt.runner or {}).get("pid", 0),
        }
        reports.append(("launched", launched))
    if attempt.launch_failed is not None:
        reports.append(("launch_failed", attempt.launch_failed))
    elif attempt.exited is not None and was_stopped:
        at_s, recorded = attempt.exited["at_s"], attempt.exited["counters"]
        reports.append(("exited", _unknown_end(was_stopped, is_of_old, at_s, recorded)))
    elif attempt.exited is not None and not alive:
        reports.append(("exited", attempt.exited))
    elif not alive and (attempt.may_have_run or is_of_old):
        reports.append(("exited", _unknown_end(was_stopped, is_of_old, at_s, counters())))
    elif not alive:
        # Its runner died before the program was released: this counts as never launched.
        reports.append(("missing", {}))
    return reports


def _unknown_end(was_stopped: bool, is_of_old: bool, at_s: float, counters: Counted) -> Message:
    """Return the report of an end that nobody has seen, with the reason."""
    loss = (SHUTDOWN if was_stopped else CRASH) if is_of_old else ""
    loss = loss or (STOPPED if was_stopped else RUNNER_GONE)
    unknown = dict.fromkeys(("mono_s", "exit_code", "signal"))
    return {"at_s": at_s, **unknown, "counters": counters, "loss": loss}


log = logging.getLogger("drfd.launcher")

#: Why an owner is not notified.
_NOTHING_LEFT = "not told: nothing was left of the job"
_NOT_ITS_USERS = "not told: it is not for the job's own user"
_NOT_SIGNED = "the request is not signed by its user: submit it again"
#: Answer to the order to move a process into a job with private temporary directories.
_PRIVATE_TMP = (
    "the job has a /tmp of its own (enforcement.private_tmp), which a process from outside does not"
    " see"
)
#: States in which a process can join it.
_JOINABLE = (
    *(AttemptState.STARTING, AttemptState.RUNNING),
    *(AttemptState.FREEZING, AttemptState.THAWING),
)
#: Seconds until a signal that could not be recorded is tried again.
_RETRY_S = 1.0
#: The program that ends tracers, and the largest number of processes that it looks at.
_TRACERS, _MOST_HELD = "drfd.launcher.system.tracers", 1000
_MKDIR, _RMDIR = "/bin/mkdir", "/bin/rmdir"
#: Number of runners of an attempt that may die before they release the job.
_MAX_LOST_RUNNERS = 3
_RUNNERS_LOST = f"its runner was killed {_MAX_LOST_RUNNERS} times before it could start the job"
#: The launcher can take care of no more attempts, or not of this one.
_LAUNCHER_SHORT = Shortage(MACHINE, LAUNCHER)


@dataclass
class Launcher(Performer[LocalAttempt]):
    """The state of the launcher, which `serve` keeps up to date until it is told to end."""

    confinement: Confinement
    policy: Policy
    attempts_fd: int
    port: Port
    #: Bounds on the processes of jobs, reported to the controller; None if there are none.
    processes: ProcessBounds | None = None
    #: The most attempts that have a runner; a multiple may have a file.
    most_running: int = field(default_factory=lambda: read_most_running(""))
    keep_fd: int | None = None
    #: When all jobs were last stopped from outside.
    jobs_stop: JobsStopRecord | None = None
    #: Keys that verify users' signatures on orders; None if orders are not signed here.
    keys: SigningKeys | None = None
    #: Directory of the users' key files.
    keys_dir: Path | None = None
    #: Sentences for `drf doctor`: protections that this machine lacks.
    warnings: list[str] = field(default_factory=list)
    #: Directory for the private temporary spaces of new attempts; None if they have none.
    space_home: str | None = None
    #: The default of `space_home`, which may hold spaces of an earlier configuration.
    usual_space_home: str | None = None
    #: How jobs' processes are begun.
    starter: Starter = field(default_factory=open_starter)
    #: Whether a user's IPC objects are removed after the user's last job.
    removes_ipc: bool = False
    _boot_id: str = field(default_factory=process.boot_id)
    _schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = needed_capabilities(
            enters_spaces=self.space_home is not None, serves_root=self.policy.refusal(0) is None
        )
        plans = Plans(self.confinement, needed & syscalls.capabilities().permitted)
        self._runners = Runners(
            self.attempts_fd, self._selector, self._on_gone,
            self.starter, plans,
        )  # fmt: skip
        self._background = background = BackgroundWork(self._selector)
        self._accounts = AccountProcess(background, self._selector)
        self._directory = Directory(self._accounts)
        self._spaces = PrivateSpaces(background, self.space_home)
        self._sweeps = IpcSweeps(
            background, min_uid=self.policy.min_uid if self.removes_ipc else None
        )
        self._gpu_meter = GpuMeter(background, self._selector, self.port.send)
        #: uid → killed processes that stay, each with when it was seen; and from when on a program
        #: may look for what keeps them (monotonic clock).
        self._held: dict[int, dict[int, float]] = {}
        self._next_search_s: dict[int, float] = {}
        #: Parts with work that is due at some time.
        self._timed = (self._sweeps, self._directory)
        self._key_files: KeyFiles | None = None
        if self.keys is not None and self.keys_dir is not None:
            self._key_files = KeyFiles(self.keys_dir, self.keys, self._accounts)

    def serve(self) -> None:
        """Run until SIGTERM, or until `keep_fd` is readable."""
        self._launched_out, self._runners.launched_fd = os.pipe()
        os.set_blocking(self._runners.launched_fd, False)
        os.set_inheritable(self._runners.launched_fd, True)
        self.port.open(self._selector, on_connect=self._hello, on_order=self._handle)
        self._selector.register(self._launched_out, selectors.EVENT_READ, self._on_launched)
        with suppress(OSError):
            # It is begun when it is needed otherwise.
            self._accounts.begin()
        reach("serve.before-adoption")
        for key in attempt_files.keys(self.attempts_fd):
            self._adopt(key)
        places = {each.space for each in self._attempts.values() if each.space is not None}
        self._spaces.sweep(places, self.usual_space_home)
        self._run((self._schedule, *self._timed), self._turn)
        self.confinement.close()

    def _turn(self) -> None:
        for part in self._timed:
            part.run_due()
        self._schedule.run_due(self._work)

    def _adopt(self, key: Key) -> None:
        """Take over an attempt of an earlier launcher."""
        attempt = self._attempts[key] = LocalAttempt(key, AttemptState.STARTING)
        records = attempt_files.read(self.attempts_fd, key)
        if records is not None:
            attempt.uid, attempt.is_notice = records.created["uid"], records.is_notice
            attempt.space = records.created.get("space")
            self.confinement.adopt(key, records.created["cgroup"] or "")
            self._sweeps.begun(records.created["uid"])
        self._look_for_runner(attempt, records)

    # -- orders -----------------------------------------------------------------------------

    def _hello(self) -> Hello:
        for attempt in self._attempts.values():
            attempt.is_reported = False
        # The controller orders it anew.
        self._gpu_meter.turn(False)
        return Hello(
            kind=self.confinement.kind,
            controls=self.confinement.controls(),
            cores=self.confinement.cores(),
            hiding=self.confinement.hiding(),
            mounts=self.confinement.mounts(),
            warnings=self.warnings,
            private_tmp=self._spaces.home,
            removes_ipc=self.removes_ipc,
            exec=self.confinement.kind != "none",
            processes=None if self.processes is None else asdict(self.processes),
            min_uid=self.policy.min_uid,
            allowed_uids=sorted(self.policy.allowed_uids),
            ranges=self.confinement.has_ranges(),
            limits_gpus=sorted(self.confinement.limitable_gpus()),
        )

    def _handle(self, order: Order, payload_fd: int) -> None:
        """Carry out an order. `payload_fd`, a LaunchOrder's, belongs to this method."""
        match order:
            case LaunchOrder(is_notice=True):
                self._notify(Assignment(order, payload_fd))
            case LaunchOrder():
                self._launch(Assignment(order, payload_fd))
            case ExecOrder():
                self._exec(order)
            case WeightsOrder():
                self.confinement.weigh(dict(order.cores_milli))
            case ListOrder():
                self._list()
            case KeyOrder(uid):
                if self._key_files is not None:
                    self._key_files.order(uid)
            case MeasureGpusOrder(on):
                self._gpu_meter.turn(on)
            case _:
                self._order(order)

    def _pursue(self, attempt: LocalAttempt) -> None:
        self._schedule.add(attempt)

    def _new(self, key: Key) -> LocalAttempt:
        return LocalAttempt(key)

    def _read(self, attempt: LocalAttempt) -> Records | None:
        return attempt_files.read(self.attempts_fd, attempt.key)

    def _exec(self, order: ExecOrder) -> None:
        """Move a process of the owner's into a running attempt, and report why not, or None."""
        try:
            text = self._join(order)
        except PermissionError:
            text = protocol.OUT_OF_REACH
        except (LimitFailed, OSError) as error:
            text = f"the process could not be moved into its cgroup: {error}"
        self._tell(protocol.EXEC, self._attempt(order.key), number=order.number, text=text)

    def _join(self, order: ExecOrder) -> str | None:
        """Raises LimitFailed, OSError."""
        key, pid, attempt = order.key, order.pid, self._attempt(order.key)
        records = self._read(attempt) if attempt.state in _JOINABLE else None
        if records is None or records.launched is None or records.is_over:
            return "the job does not run any more"
        if not accepts_exec(order, records.owner, self._boot_id, self.keys):
            log.error("event=exec-not-signed job=%d attempt=%d", *key, extra=about(job=key[0]))
            return _NOT_SIGNED
        if records.created.get("space") is not None:
            return _PRIVATE_TMP
        with process.opened_pidfd(pid) as pidfd:
            # The kernel takes the pid, not the pidfd: it must still be that of the same process.
            is_it = process.start_ticks(pid) == order.start_ticks
            if not is_it or {*process.uids(pid)} != {records.created["uid"]}:
                return "the process that asks is not one of its user's"
            if not process.is_new(pid):
                return "its pid may be given to another process soon: try again"
            reach("exec.before-join")
            # Its user may run another program than drf, with the limits of a login. Only
            # CAP_SYS_RESOURCE changes them.
            if os.getuid() == 0:
                with suppress(PermissionError):
                    resource.prlimit(pid, resource.RLIMIT_NPROC, inheritance.max_processes())
            self.confinement.join(key, pid, pidfd)
            reach("exec.after-join")
            return "the process has ended" if process.is_readable(pidfd, 0) else None

    # -- launches ---------------------------------------------------------------------------

    def _notify(self, assignment: Assignment) -> None:
        """Launch the command that notifies of a job's end in place of the job, once nothing of that
        is left but its file. However often that is ordered, it is launched once."""
        order, attempt = assignment.order, self._attempt(assignment.order.key)
        records = self._read(attempt)
        if records is None:
            attempt.notice = {"text": _NOTHING_LEFT}
        elif order.uid != records.created["uid"] or not records.owner.may_be(order.owner):
            # A launch is checked only for whether jobs of its own user may run.
            attempt.notice = {"text": _NOT_ITS_USERS}
        elif records.is_notice:
            assignment.close()
            self._report(attempt)
            return
        else:
            # What still waits for its turn was meant for the job.
            self._hush(attempt)
            self._put(attempt, assignment)
        if attempt.pending is not assignment:
            assignment.close()
        self._happen(attempt, AttemptEvent.REMOVE)

    def _fail(self, attempt: LocalAttempt, text: str, short: Shortage | None = None) -> None:
        """Report that an attempt is not launched, or its owner not notified."""
        is_notice = attempt.pending is not None and attempt.pending.order.is_notice
        self._put(attempt, None)
        if is_notice:
            attempt.notice = {"text": f"failed: {text}"}
            self._happen(attempt, AttemptEvent.REMOVE)
        else:
            self._tell("launch_failed", attempt, **failure(text, short))
            self._happen(attempt, AttemptEvent.REFUSED)

    def _admit(self, attempt: LocalAttempt) -> None:
        """Start an attempt, or report why not, or ask for its user's account first."""
        assignment = attempt.pending
        assert assignment is not None
        order = assignment.order
        refusal, full = self.policy.refusal(order.uid), self._full(attempt)
        try:
            if refusal is None and full is None and not assignment.is_signed:
                assignment.is_signed = is_signed(order, assignment.payload_fd, self.keys)
                refusal = None if assignment.is_signed else _NOT_SIGNED
            if refusal is not None:
                self._fail(attempt, refusal)
            elif full is not None and order.is_notice:
                # It waits for the end of other jobs.
                self._schedule.put_off(attempt, *KILL_PAUSES_S)
            elif full is not None:
                self._fail(attempt, full, _LAUNCHER_SHORT)
            elif (account := self._directory.known(order)) is None:
                self._directory.ask(order, partial(self._looked_up, attempt, assignment))
            else:
                attempt.account = account
                self._prepare(attempt, order)
        except OSError as error:
            short = machine_shortage(error)
            if short is None:
                raise
            self._fail(attempt, machine_text(short, error), short)

    def _prepare(self, attempt: LocalAttempt, order: LaunchOrder) -> None:
        """Start an attempt when the cgroups are there that its runner does not make: in directories
        that its user may enter, another process makes them (`clearing`). Raises OSError."""
        if attempt.is_in_program:
            # It was ordered again meanwhile.
            return
        attempt.is_made, directories = False, list[str]()
        with suppress(OSError):
            # `create` tries it again, and says why not.
            directories = self.confinement.to_make(order.key, order.limits, order.devices)
        if not directories:
            self._happen(attempt, AttemptEvent.READY)
            return

        def made(status: int) -> None:
            attempt.is_in_program = False
            if attempt.pending is not None:
                attempt.is_made = status == 0
                self._happen(attempt, AttemptEvent.READY)
            else:
                start([_RMDIR, "--", *reversed(directories)], lambda _: None)

        start = partial(self._background.start, nice=0, stderr=subprocess.DEVNULL, env={})
        start([_MKDIR, "-m", f"{CGROUP_MODE:o}", "--", *directories], made)
        attempt.is_in_program = True

    def _looked_up(
        self, attempt: LocalAttempt, assignment: Assignment, problem: Problem | None
    ) -> None:
        if attempt.pending is not assignment:
            return
        if problem is None:
            self._admit(attempt)
            return
        # Other users may be in local files, which answer.
        short = None if isinstance(problem, Denied) else Shortage(JOB, DIRECTORY)
        text = str(problem)
        if isinstance(problem, NotAsked) and (of_all := machine_shortage(problem.error)):
            short, text = of_all, machine_text(of_all, problem.error)
        self._fail(attempt, text, short)

    def _full(self, attempt: LocalAttempt) -> str | None:
        """Return why nothing more is started, or None: this process runs as root, and must not use
        up all that root may have, whatever the controller orders."""
        is_waiting = attempt.state is AttemptState.WAITING
        if self._runners.count + self._waiting - is_waiting >= self.most_running:
            return f"as many jobs run as the launcher can take care of: {self.most_running}"
        if (known := len(self._attempts) - 1) >= KNOWN_EACH * self.most_running and is_waiting:
            return f"{known} jobs run or wait to be removed, the most that can be"
        return None

    def _start(self, attempt: LocalAttempt) -> None:
        assignment, account, key = attempt.pending, attempt.account, attempt.key
        assert assignment is not None
        assert account is not None
        order = assignment.order
        is_notice = order.is_notice
        if not is_notice:
            attempt.space = self._spaces.place_for(key, order.uid)
            self._sweeps.begun(order.uid)
        elif attempt.space is not None and not os.path.isdir(attempt.space):
            attempt.space = None
        # The command that notifies sees what the job has left there.
        space = attempt.space
        # The start time that users see is taken here, so that it follows the order of launches.
        cgroup = self.confinement.cgroup_path(key, order.limits.groups)
        created = attempt_files.created_record(
            order.owner, self._boot_id, cgroup, space, is_notice=is_notice
        )
        attempt.uid, attempt.is_notice, attempt.created = order.uid, is_notice, created
        attempt.is_reported = attempt.is_cleared = False
        reach("launch.before-attempt-file")
        try:
            if is_notice:
                attempt_files.remove(self.attempts_fd, key)
            attempt_fd = attempt_files.create(self.attempts_fd, key, created)
            try:
                reach("launch.before-cgroup")
                prepared = self.confinement.create(
                    key, order.limits, order.devices, attempt.is_made
                )
                if not is_notice:
                    self._spaces.make(space)
                reach("launch.before-fork")
                job = JobStart(assignment, *account, space)
                attempt.runner = self._runners.start(job, prepared, attempt_fd)
            finally:
                os.close(attempt_fd)
        except (LimitFailed, OSError, MemoryError, ValueError) as error:
            # ValueError: a text of the order that no file can hold.
            self._not_started(attempt, error)
        else:
            self._put(attempt, None)
            reach("launch.after-fork")

    def _not_started(self, attempt: LocalAttempt, error: Exception) -> None:
        """Remove an attempt that could not be started, and report why."""
        short = machine_shortage(error)
        try:
            records = self._read(attempt)
            if records is not None and records.may_have_run:
                # It had begun when its runner could not be watched. It must not be launched again.
                self._put(attempt, None)
                self._runner_gone(attempt)
                return
            self._happen(attempt, AttemptEvent.FAILED)
            if self.confinement.remove(attempt.key):
                self._unlink(attempt)
                self._happen(attempt, AttemptEvent.CLEARED)
        except OSError as next_error:
            # The controller orders the removal again, as often as it takes.
            if short is None or machine_shortage(next_error) is None:
                raise
        if short is None:
            self._fail(attempt, f"it could not be set up: {error}")
            return
        log.warning(
            "event=launch-postponed job=%d attempt=%d resource=%s error=%s",
            *(*attempt.key, short.resource, error),
            extra=about(job=attempt.key[0]),
        )
        self._fail(attempt, machine_text(short, error), short)

    # -- runners ----------------------------------------------------------------------------

    def _look_for_runner(self, attempt: LocalAttempt, records: Records | None) -> None:
        """Look for the runner of an attempt of an earlier launcher, which cannot notify this one,
        and whether it has released its job."""
        if attempt.runner is None or not attempt.runner.pid:
            attempt.runner = self._runners.find(attempt.key, records)
        if attempt.runner is None:
            self._runner_gone(attempt)
        elif not attempt.runner.pid or records is None or not records.may_have_run:
            self._schedule.add(attempt, POLL_S)
        elif not records.is_over:
            self.confinement.begun(attempt.key)
            self._happen(attempt, AttemptEvent.RELEASED, records)

    def _on_launched(self) -> None:
        for key in read_launched(os.read(self._launched_out, 1 << 16)):
            attempt = self._attempts.get(key)
            # Its end is reported when the runner is gone, not before.
            if attempt is not None and attempt.runner is not None and attempt.created is not None:
                self.confinement.begun(key)
                records = Records(attempt.created, {"pid": attempt.runner.pid}, launched={})
                self._happen(attempt, AttemptEvent.RELEASED, records)

    def _on_gone(self, key: Key, is_cleared: bool) -> None:
        # Without cgroups a removal does not show that no process is left.
        self._attempts[key].is_cleared = is_cleared and self.confinement.kind != "none"
        self._runner_gone(self._attempts[key])

    def _runner_gone(self, attempt: LocalAttempt) -> None:
        attempt.runner = None
        self._hush(attempt)
        records = self._read(attempt)
        is_of_old = records is not None and records.created["boot_id"] != self._boot_id
        if records is not None and (records.may_have_run or is_of_old):
            self._happen(attempt, AttemptEvent.ENDED, records)
        else:
            # Nor is it put on record that a runner cannot make its cgroups where these were to be.
            self.confinement.insist_on_group()
            attempt.lost_runners += 1
            self._happen(attempt, AttemptEvent.LOST, records)

    def _clear(self, attempt: LocalAttempt, records: Records | None) -> None:
        """Take note, before the end is reported, that the runner of an attempt that has just ended
        has removed its cgroups: the controller then gives the job's resources to others when it
        records the end. What is left is removed when the controller orders that."""
        if attempt.is_cleared and records is not None and records.exited is not None:
            self.confinement.forget(attempt.key)
            self._happen(attempt, AttemptEvent.CLEARED)

    # -- reports ----------------------------------------------------------------------------

    def _list(self) -> None:
        owners: dict[str, dict[str, int | str]] = {}
        for key in sorted(self._attempts):
            attempt = self._attempts[key]
            if (records := self._read(attempt)) is not None:
                owners[attempt_files.file_name(key)] = records.owner.facts()
            if attempt.state not in (AttemptState.WAITING, AttemptState.REMOVING):
                self._report(attempt, records, is_again=True)
        # A cgroup without a file is an attempt that is almost removed.
        everything = sorted({*self._attempts, *self.confinement.leftovers()})
        self.port.send({"report": "listed", "known": everything, "owners": owners})

    def _report(
        self, attempt: LocalAttempt, records: Records | None = None, *, is_again: bool = False
    ) -> None:
        """Report what the attempt file says. Its launch is reported only once to a controller,
        unless it `is_again` asked for, which it is without `records`."""
        is_again |= records is None
        records = records or self._read(attempt)
        alive = attempt.runner is not None
        if records is None:
            # Its creation was interrupted, or a power cut has emptied the file.
            if not alive:
                self._tell("missing", attempt)
            return
        if records.is_notice:
            # What became of it is reported with the removal.
            if not alive and self.port.is_connected:
                self._happen(attempt, AttemptEvent.REMOVE)
            return
        reports = reports_from(
            records,
            alive=alive,
            jobs_stop=self.jobs_stop,
            counters=partial(self.confinement.numbers, attempt.key),
            at_s=time.time(),
            boot_id=self._boot_id,
        )
        owner = records.owner.facts()
        for kind, facts in reports:
            if kind == "launched":
                if attempt.is_reported and not is_again:
                    continue
                attempt.is_reported = self.port.is_connected
            if kind == "launch_failed":
                kind, facts = "start_failed", {"failed": self._failed(records)}
            if kind == "missing" and attempt.lost_runners >= _MAX_LOST_RUNNERS:
                kind, facts = "launch_failed", failure(_RUNNERS_LOST, _LAUNCHER_SHORT)
            if kind == "exited" and attempt.state is AttemptState.BARE:
                facts = {**facts, "gone": True}
            self._tell(kind, attempt, of=owner, **facts)

    def _report_removed(self, attempt: LocalAttempt) -> None:
        if attempt.notice is None:
            self._tell("removed", attempt)
        else:
            self._tell("notified", attempt, **attempt.notice)

    def _failed(self, records: Records) -> Message:
        """Return what is told of a start that failed. What its record says is not read here: its
        user may have written it."""
        has_space = records.created.get("space") is not None
        return {**(records.launch_failed or {}), "has_space": has_space}

    def _notice(self, records: Records) -> Message:
        """Return what became of a notification, nothing of which runs any more."""
        owner = records.owner.facts()
        if records.launch_failed is not None:
            return {"of": owner, "failed": self._failed(records)}
        exited = records.exited or {}
        names = exited.keys() & {"exit_code", "signal", "is_stopped"}
        return {"of": owner, "ended": {name: exited[name] for name in names}}

    # -- what is due ------------------------------------------------------------------------

    def _work(self, attempt: LocalAttempt) -> None:
        """Do what is due of an attempt."""
        try:
            runner, is_new = attempt.runner, attempt.state is AttemptState.STARTING
            if runner is not None and (not runner.pid or (is_new and attempt.created is None)):
                self._look_for_runner(attempt, self._read(attempt))
            if attempt.signals is not None or attempt.terminates:
                self._signal(attempt)
            if attempt.state is AttemptState.FREEZING:
                self._freeze(attempt)
            elif attempt.state is AttemptState.THAWING:
                self._thaw(attempt)
            elif attempt.state in (AttemptState.KILLING, AttemptState.REMOVING):
                self._end(attempt)
        except OSError as error:
            if machine_shortage(error) is None:
                raise
            self._try_again(attempt)

    def _signal(self, attempt: LocalAttempt) -> None:
        """Send what is to be sent, and later what cannot be recorded now."""
        records, signals, terminates = self._read(attempt), attempt.signals, attempt.terminates
        if records is None or records.launched is None:
            return
        self._hush(attempt)
        if signals is not None and not records.is_over:
            try:
                self._send(attempt.key, records, *signals)
            except OSError as error:
                job = attempt.key[0]
                log.error("event=signal-put-off job=%d error=%s", job, error, extra=about(job=job))
                attempt.signals = signals
                self._schedule.add(attempt, _RETRY_S)
        if terminates and not records.is_over:
            reach("signal.before-signal")
            # A stopped process could not handle SIGTERM.
            self.confinement.signal(attempt.key, records, signal.SIGTERM, signal.SIGCONT)
            reach("signal.after-signal")

    def _send(self, key: Key, records: Records, count: int, signals: tuple[int, ...]) -> None:
        """Send those of the last `signals`, of `count` in all, that have not been sent. One that is
        among them several times is sent once, as the kernel keeps it once for a process. If the
        launcher is killed, a signal is lost rather than sent twice."""
        if new := records.unsent(count, signals):
            reach("signals.before-mark")
            attempt_files.note_signals(self.attempts_fd, key, count)
            reach("signals.after-mark")
        for number in new:
            self.confinement.signal(key, records, number)

    def _freeze(self, attempt: LocalAttempt) -> None:
        records = self._read(attempt)
        if records is None or records.is_over:
            return
        if self.confinement.freeze(attempt.key, records):
            reach("freeze.before-report")
            self._happen(attempt, AttemptEvent.FROZEN)
        else:
            self._schedule.put_off(attempt, *FREEZE_PAUSES_S)

    def _thaw(self, attempt: LocalAttempt) -> None:
        records = self._read(attempt)
        if records is not None and not records.is_over:
            reach("thaw.before-thaw")
            self.confinement.thaw(attempt.key, records)
        self._happen(attempt, AttemptEvent.THAWED)

    def _end(self, attempt: LocalAttempt) -> None:
        """Try again to kill all processes of an attempt, and then to remove it or to replace it by
        what was ordered to be launched."""
        if attempt.is_in_program:
            return
        key, records = attempt.key, self._read(attempt)
        reach("remove.before-kill")
        if attempt.runner is not None:
            self._kill(attempt, attempt.runner, records)
            # It exits by itself once its job is gone, after it has recorded the end.
            self._not_gone(attempt, records)
            return
        reach("remove.before-rmdir")
        if not attempt.is_cleared:
            if command := self.confinement.clearing(key):
                self._clear_apart(attempt, command)
                return
            if not self.confinement.kill_pass(key, records):
                self._not_gone(attempt, records)
                return
        self.confinement.forget(key)
        if attempt.pending is not None and attempt.pending.order.is_notice:
            self._admit(attempt)
        else:
            if records is not None and records.is_notice:
                attempt.notice = attempt.notice or self._notice(records)
            self._unlink(attempt)
            is_last = attempt.pending is None
            self._happen(attempt, AttemptEvent.CLEARED if is_last else AttemptEvent.REPLACED)

    def _kill(self, attempt: LocalAttempt, runner: Runner, records: Records | None) -> None:
        """Kill an attempt that has a runner. Cgroups that it may be making or removing are not
        looked at: see `clearing`."""
        if records is not None and records.launched is not None:
            if not records.is_over:
                self.confinement.kill_pass(attempt.key, records)
        elif runner.pid:
            listed = partial(process.children, runner.pid)
            process.signal_those(listed(), listed, signal.SIGKILL)

    def _clear_apart(self, attempt: LocalAttempt, command: list[str]) -> None:
        def done(status: int) -> None:
            attempt.is_in_program, attempt.is_cleared = False, status == 0
            if attempt.is_cleared:
                self._schedule.add(attempt)
            else:
                self._not_gone(attempt, self._read(attempt))

        self._background.start(command, done, nice=0)
        attempt.is_in_program = True

    def _not_gone(self, attempt: LocalAttempt, records: Records | None) -> None:
        self._try_again(attempt)
        if attempt.takes_s() > HELD_S:
            self._free(attempt, records)

    def _try_again(self, attempt: LocalAttempt) -> None:
        """Try later, and report once that it takes long."""
        first_s, most_s = KILL_PAUSES_S
        self._schedule.put_off(attempt, first_s, STUCK_S if attempt.is_stuck else most_s)
        if not attempt.is_stuck and attempt.takes_s() >= STUCK_S:
            attempt.is_stuck = True
            log.error(
                "event=stuck job=%d attempt=%d", *attempt.key, extra=about(job=attempt.key[0])
            )
            self._tell("stuck", attempt)
            if attempt.runner is not None:
                attempt.runner.wake()

    def _free(self, attempt: LocalAttempt, records: Records | None) -> None:
        """Kill tracers of the attempt's user that keep killed processes from exiting, or their exit
        from being reported to the runner. A user's are looked for by one program at a time, and not
        all the time: processes that wait in the kernel, however many, have no tracer."""
        if records is None or os.getuid() != 0 or not (uid := records.created["uid"]):
            # A debugger of root is an administrator's; a user's own launcher serves only itself.
            return
        if attempt.runner is None:
            held = self.confinement.members(attempt.key, records)
        else:
            # The program looks at all that descend from these. Zombies are in no cgroup.
            held = process.children(attempt.runner.pid)

        now_s = time.monotonic()
        seen = self._held.setdefault(uid, {})
        seen |= dict.fromkeys(held, now_s)
        if now_s < self._next_search_s.get(uid, 0.0):
            return

        def freed(status: int) -> None:
            self._next_search_s[uid] = time.monotonic() + HELD_S
            if os.waitstatus_to_exitcode(status) == HAS_ENDED_SOME:
                log.warning("event=tracers-killed uid=%d", uid)

        # What was seen long ago may be another process by now. Those beyond the number have their
        # turn when these are gone.
        pids = [pid for pid, seen_s in seen.items() if seen_s >= now_s - STUCK_S][:_MOST_HELD]
        self._background.start(own_program(_TRACERS, uid, records.owner.user or "", *pids), freed)
        self._next_search_s[uid] = math.inf
        del self._held[uid]

    def _unlink(self, attempt: LocalAttempt) -> None:
        """Remove the file, after all else: the attempt is known as long as either exists."""
        self._spaces.remove(attempt.space)
        reach("remove.before-unlink")
        attempt_files.remove(self.attempts_fd, attempt.key)
        reach("remove.after-unlink")
        if attempt.uid is not None:
            self._sweeps.gone(attempt.uid)
            attempt.uid = None
