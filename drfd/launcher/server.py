"""The launcher's loop: orders from the one controller, and reports of the runners' attempts.

The launcher makes no scheduling decisions. An order may be repeated, and every controller that
connects gets all reports again. State that must survive the launcher is only in attempt files and
cgroups.
"""

from __future__ import annotations

import logging
import os
import resource
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from drfd.common.failpoints import reach
from drfd.common.journald import about
from drfd.launcher import attempt_files, protocol
from drfd.launcher.accounts import Accounts, Denied, DirectoryFailed, NotAsked
from drfd.launcher.attempt_files import Attempt, JobsStopRecord, Key
from drfd.launcher.confinement.bounds import LauncherBounds, ProcessBounds, read_launcher_bounds
from drfd.launcher.confinement.cgroup_files import read_counters
from drfd.launcher.confinement.interface import Confinement, Ended, LimitFailed
from drfd.launcher.confinement.processes import living_runner
from drfd.launcher.gpu_meter.supervision import GpuMeter
from drfd.launcher.port import Policy, Port
from drfd.launcher.protocol import (
    Assignment,
    ExecOrder,
    KeyOrder,
    LaunchOrder,
    ListOrder,
    MeasureGpusOrder,
    Message,
    Order,
    RemoveFilesOrder,
    SignalOrder,
    WeightsOrder,
)
from drfd.launcher.runner import inheritance
from drfd.launcher.runner.failures import failure_of, notice_text
from drfd.launcher.runner.identity import Directory
from drfd.launcher.runner.runner import Runners, read_launched
from drfd.launcher.runner.shortage import (
    DIRECTORY,
    JOB,
    LAUNCHER,
    MACHINE,
    MEMORY,
    Shortage,
    failure,
    is_shortage,
    machine_text,
    shortage_of,
)
from drfd.launcher.runner.starter.plan import JobStart
from drfd.launcher.runner.starter.program import Starter, needed_capabilities, open_starter
from drfd.launcher.signalling import TURN_S, Ending, Endings, Freezing, Pace, Signalling
from drfd.launcher.signatures import KeyFiles, SigningKeys, accepts_exec, with_check
from drfd.launcher.system import process
from drfd.launcher.system.background import BackgroundWork, own_program
from drfd.launcher.system.cleanup import IpcSweeps
from drfd.launcher.system.private_tmp import PrivateSpaces
from drfd.launcher.system.tracers import HAS_ENDED_SOME
from drfd.linux import syscalls

#: Reasons why the end of an attempt is not known: the machine was shut down in order, or went down
#: otherwise; the unit of all jobs was stopped, but not the machine; or only the runner is gone.
SHUTDOWN, CRASH = "MACHINE_SHUTDOWN", "MACHINE_CRASH"
STOPPED, RUNNER_GONE = "JOBS_STOPPED", "RUNNER_KILLED"


def reports_from(
    attempt: Attempt,
    *,
    alive: bool,
    jobs_stop: JobsStopRecord | None,
    ended: Ended,
    at_s: float,
    boot_id: str,
) -> list[tuple[str, Message]]:
    """Return (kind, facts) of each report that an attempt file gives rise to.

    `alive` tells whether the runner is alive, and `jobs_stop` when all jobs were last stopped from
    outside. `ended` is what the kernel has counted of an attempt whose runner is gone. `boot_id`
    and `at_s` are the present boot and time."""
    reports: list[tuple[str, Message]] = []
    created = attempt.created
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
    elif attempt.exited is not None and jobs_stop is not None and jobs_stop.affected(attempt):
        end = _unknown_end(Ended(False, False, ended.counted), attempt.exited["at_s"])
        reports.append(("exited", end | _loss(attempt, jobs_stop, boot_id)))
    elif attempt.exited is not None and not alive:
        end = {name: fact for name, fact in attempt.exited.items() if name != "counters"}
        reports.append(("exited", end | ended._asdict()))
    elif not alive and (attempt.may_have_run or created["boot_id"] != boot_id):
        reports.append(("exited", _unknown_end(ended, at_s) | _loss(attempt, jobs_stop, boot_id)))
    elif not alive:
        # Its runner died before the program was released: this counts as never launched.
        reports.append(("missing", {}))
    return reports


def _unknown_end(ended: Ended, at_s: float) -> Message:
    return {
        "at_s": at_s,
        "mono_s": None,
        "exit_code": None,
        "signal": None,
        **ended._asdict(),
    }


def _loss(attempt: Attempt, jobs_stop: JobsStopRecord | None, boot_id: str) -> Message:
    """Return the reason why the end is unknown, as a fact of the report."""
    was_stopped = jobs_stop is not None and jobs_stop.affected(attempt)
    if attempt.created["boot_id"] != boot_id:
        return {"loss": SHUTDOWN if was_stopped else CRASH}
    return {"loss": STOPPED if was_stopped else RUNNER_GONE}


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
#: Answer to a launch under a number that an attempt of another job has.
_TAKEN = "another job's attempt has its number here, from another journal perhaps"
#: The program that ends tracers, and the largest number of processes that it looks at.
_TRACERS, _MOST_HELD = "drfd.launcher.system.tracers", 1000
#: Number of runners of an attempt that may die before they release the job.
_MAX_LOST_RUNNERS = 3
_RUNNERS_LOST = f"its runner was killed {_MAX_LOST_RUNNERS} times before it could start the job"
#: The launcher can take care of no more attempts, or not of this one.
_LAUNCHER_SHORT = Shortage(MACHINE, LAUNCHER)


@dataclass
class Launcher:
    """The state of the launcher, which `serve` keeps up to date until it is told to end."""

    confinement: Confinement
    policy: Policy
    attempts_fd: int
    port: Port
    #: Bounds on the processes of jobs, reported to the controller; None if there are none.
    processes: ProcessBounds | None = None
    #: Bounds on what this launcher keeps for attempts.
    bounds: LauncherBounds = field(default_factory=lambda: read_launcher_bounds(""))
    #: Readable when the process that started this launcher is gone; None if systemd started it.
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
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _endings: Endings = field(default_factory=Endings)
    _boot_id: str = field(default_factory=process.boot_id)
    _running: bool = True
    #: Attempts that have a file, or may have one. The file is made before everything else of an
    #: attempt and removed last.
    _known: set[Key] = field(default_factory=set)
    #: Attempts whose launch was reported to this controller.
    _reported: set[Key] = field(default_factory=set)
    #: Ended attempts whose cgroups are gone, so that only their files are left.
    _without_cgroup: set[Key] = field(default_factory=set)
    #: Attempts whose users are looked up before they are launched.
    _looking_up: dict[Key, Assignment] = field(default_factory=dict)
    #: Number of runners of an attempt that have died before they released the job.
    _lost_runners: dict[Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        needed = needed_capabilities(
            enters_spaces=self.space_home is not None, serves_root=self.policy.refusal(0) is None
        )
        self._runners = Runners(
            self.attempts_fd, self._selector, self._runner_gone, self.starter,
            needed & syscalls.capabilities().permitted,
        )  # fmt: skip
        self._pace = Pace()
        self._freezing = Freezing(
            self.confinement, self.attempts_fd, self._tell, self._endings.__contains__, self._pace
        )
        self._signalling = Signalling(self.confinement, self.attempts_fd, self._pace)
        self._background = background = BackgroundWork(self._selector)
        self._accounts = Accounts(background, self._selector)
        self._directory = Directory(self._accounts)
        self._spaces = PrivateSpaces(background, self.space_home)
        self._sweeps = IpcSweeps(
            background, min_uid=self.policy.min_uid if self.removes_ipc else None
        )
        self._gpu_meter = GpuMeter(background, self._selector, self.port.send)
        #: Parts with work that is due at some time.
        self._timed: list[Freezing | Signalling | IpcSweeps | GpuMeter]
        self._timed = [self._freezing, self._signalling, self._sweeps, self._gpu_meter]
        self._key_files: KeyFiles | None = None
        if self.keys is not None and self.keys_dir is not None:
            self._key_files = KeyFiles(self.keys_dir, self.keys, self._accounts)
        self._attempt_orders: dict[str, Callable[[Key], None]] = {
            protocol.TERMINATE: self._terminate,
            protocol.KILL: self._kill,
            protocol.FREEZE: self._freeze,
            protocol.THAW: self._freezing.thaw,
            protocol.REMOVE: partial(self._endings.add, remove=True),
        }

    def serve(self) -> None:
        """Run until SIGTERM, or until `keep_fd` is readable."""
        self._launched_out, self._runners.launched_fd = os.pipe()
        os.set_blocking(self._runners.launched_fd, False)
        self.port.open(self._selector, on_connect=self._hello, on_order=self._handle)
        self._selector.register(self._launched_out, selectors.EVENT_READ, self._on_launched)
        process.watch_for_end(self._selector, self.keep_fd, self._quit)
        with suppress(OSError):
            # It is begun when it is needed otherwise.
            self._accounts.begin()
        reach("serve.before-adoption")
        for key in attempt_files.keys(self.attempts_fd):
            self._known.add(key)
            self._runners.adopt(key)
            self._adopt(key, attempt_files.read(self.attempts_fd, key))
        self._spaces.sweep(self.usual_space_home)
        while self._running:
            for chosen, _ in self._selector.select(self._pause_s()):
                # An earlier handler of this round may have closed the descriptor.
                if chosen.fd in self._selector.get_map():
                    chosen.data()
            self._runners.run_due()
            for key in list(self._runners.unreported):
                self._report_launch(key)
            for part in self._timed:
                part.run_due()
            until_s = time.monotonic() + TURN_S
            for key, ending in self._endings.due():
                begun_s, uid = time.monotonic(), self._user_of(key, ending)
                if begun_s > until_s:
                    break
                # The end of one whose runner is gone is only looked at.
                if key in self._runners and (wait_s := self._pace.wait_s(uid)):
                    ending.due_mono_s = begun_s + wait_s
                    continue
                try:
                    self._continue(key, ending)
                except OSError as error:
                    if not is_shortage(error):
                        raise
                    self._endings.put_off(ending)
                self._pace.took(uid, begun_s)
            self.port.flush()
        self.confinement.close()

    def _pause_s(self) -> float | None:
        pauses = [part.pause_s() for part in (self._runners, self._endings, *self._timed)]
        return min((pause_s for pause_s in pauses if pause_s is not None), default=None)

    def _adopt(self, key: Key, attempt: Attempt | None) -> None:
        """Take over an attempt of an earlier launcher."""
        if attempt is None:
            return
        self._spaces.adopt(key, attempt.created.get("space"))
        self._sweeps.begun(key, attempt.created["uid"])
        if key not in self._runners and attempt.exited is not None:
            self._remove_cgroup(key)

    # -- orders -----------------------------------------------------------------------------

    def _hello(self) -> Message:
        self._reported.clear()
        # The controller orders it anew.
        self._gpu_meter.turn(False)
        return protocol.hello_report(
            protocol.Hello(
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
        )

    def _handle(self, command: str, order: Order, payload_fd: int) -> None:
        """Carry out an order. `payload_fd`, a LaunchOrder's, belongs to this method."""
        match order:
            case LaunchOrder():
                if command == protocol.NOTIFY:
                    self._notify(Assignment(order, payload_fd, is_notice=True))
                else:
                    self._launch_or_close(Assignment(order, payload_fd))
            case ExecOrder():
                self._exec(order)
            case WeightsOrder():
                self.confinement.weigh(dict(order.cores_milli))
            case SignalOrder():
                # However many attempts are named that nobody knows, nothing is kept of them.
                if order.key in self._known:
                    self._signalling.add(order.key, order.count, order.signals)
            case RemoveFilesOrder(attempts):
                for each in attempts:
                    self._remove_file(each.key)
            case ListOrder():
                self._list()
            case KeyOrder(uid):
                if self._key_files is not None:
                    self._key_files.order(uid)
            case MeasureGpusOrder(on):
                self._gpu_meter.turn(on)
            case _:
                if command in (protocol.TERMINATE, protocol.KILL, protocol.REMOVE):
                    self._stop_looking_up(order.key)
                self._attempt_orders[command](order.key)

    def _tell(self, kind: str, key: Key, **facts: object) -> None:
        self.port.send(protocol.attempt_report(kind, key, **facts))

    def _fail(self, assignment: Assignment, text: str, short: Shortage | None = None) -> None:
        """Report that an attempt is not launched, or its owner not notified."""
        key = assignment.order.key
        if assignment.is_notice:
            self._endings.add(key, remove=True, notice=f"failed: {text}")
        else:
            self._tell("launch_failed", key, **failure(text, short))

    def _notify(self, assignment: Assignment) -> None:
        """Launch the command that notifies of a job's end in place of the job, once nothing of that
        is left but its file. However often that is ordered, it is launched once."""
        order, key = assignment.order, assignment.order.key
        known = attempt_files.read(self.attempts_fd, key) if key in self._known else None
        notice = None
        if known is None:
            notice = _NOTHING_LEFT
        elif order.uid != known.created["uid"] or not known.owner.may_be(order.owner):
            # A launch is checked only for whether jobs of its own user may run.
            notice = _NOT_ITS_USERS
        elif not known.is_notice:
            # What still waits for its turn was meant for the job.
            self._signalling.drop(key)
            self._freezing.forget(key)
            self._endings.add(key, remove=True, relaunch=assignment)
            return
        assignment.close()
        if known is not None and notice is None:
            self._report(key, known)
        else:
            self._endings.add(key, remove=True, notice=notice)

    def _exec(self, order: ExecOrder) -> None:
        """Move a process of the owner's into a running attempt, and report why not, or None."""
        try:
            text = self._join(order)
        except PermissionError:
            text = protocol.OUT_OF_REACH
        except (LimitFailed, OSError) as error:
            text = f"the process could not be moved into its cgroup: {error}"
        self._tell(protocol.EXEC, order.key, number=order.number, text=text)

    def _join(self, order: ExecOrder) -> str | None:
        """Raises LimitFailed, OSError."""
        key, pid = order.key, order.pid
        attempt = attempt_files.read(self.attempts_fd, key) if key in self._known else None
        if attempt is None or attempt.launched is None or attempt.is_over or key in self._endings:
            return "the job does not run any more"
        if not accepts_exec(order, attempt.owner, self._boot_id, self.keys):
            log.error("event=exec-not-signed job=%d attempt=%d", *key, extra=about(job=key[0]))
            return _NOT_SIGNED
        if attempt.created.get("space") is not None:
            return _PRIVATE_TMP
        with process.opened_pidfd(pid) as pidfd:
            # The kernel takes the pid, not the pidfd: it must still be that of the same process.
            is_it = process.start_ticks(pid) == order.start_ticks
            if not is_it or {*process.uids(pid)} != {attempt.created["uid"]}:
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

    def _launch_or_close(self, assignment: Assignment) -> None:
        """Launch, or report a shortage, and close the payload if it is not needed any more."""
        try:
            is_needed = self._launch(assignment)
        except OSError as error:
            # The attempt could not even be looked up, so nothing of it has been started.
            short = shortage_of(error, MACHINE)
            if short is None:
                raise
            self._fail(assignment, machine_text(short, error), short)
            is_needed = False
        if not is_needed:
            assignment.close()

    def _launch(self, assignment: Assignment) -> bool:
        """Launch an attempt, unless it is known, refused or must wait. Returns whether the
        payload's descriptor is still needed. Raises OSError if the attempt cannot be looked up."""
        order = assignment.order
        key = order.key
        if key in self._endings:
            self._endings.add(key, remove=True, relaunch=assignment)
            return True
        known = attempt_files.read(self.attempts_fd, key) if key in self._known else None
        if known is not None and not known.owner.may_be(order.owner):
            # The other job's end, usage and signals must never be taken for this job's.
            self._fail(assignment, _TAKEN)
            return False
        is_of_old = known is not None and known.created["boot_id"] != self._boot_id
        has_run = key in self._runners or is_of_old or (known is not None and known.may_have_run)
        if has_run and not assignment.is_notice:
            assert known is not None
            self._report(key, known)
            return False
        refusal = self.policy.refusal(order.uid)
        full = self._full(assignment)
        if refusal is None and full is None and not assignment.is_signed:
            assignment = with_check(assignment, self.keys)
            refusal = None if assignment.is_signed else _NOT_SIGNED
        if refusal is not None:
            self._fail(assignment, refusal)
            return False
        is_in_the_way = key in self._known and not assignment.is_notice
        if (is_in_the_way and not self._remove(key)) or (full and assignment.is_notice):
            # A runner died before it released its job; the job's process is about to exit. Or the
            # command that notifies must wait for the end of other jobs.
            self._endings.add(key, remove=True, relaunch=assignment)
            return True
        if full is not None:
            self._fail(assignment, full, _LAUNCHER_SHORT)
            return False
        found = self._directory.known(order)
        if found is None:
            self._directory.ask(order, partial(self._looked_up, key, assignment))
            self._stop_looking_up(key)
            self._looking_up[key] = assignment
            return True
        space = self._spaces.place_for(key, order.uid)
        if assignment.is_notice and known is not None:
            # The command sees what the job has left there.
            space = known.created.get("space")
            space = space if space is not None and os.path.isdir(space) else None
        # The start time that users see is taken here, so that it follows the order of launches.
        cgroup = self.confinement.cgroup_path(key, order.limits.groups)
        created = attempt_files.created_record(
            order.owner, self._boot_id, cgroup, space, is_notice=assignment.is_notice
        )
        reach("launch.before-attempt-file")
        try:
            if assignment.is_notice:
                attempt_files.remove(self.attempts_fd, key)
                self._without_cgroup.discard(key)
            self._start(JobStart(assignment, *found, self.confinement, space), created)
        except (LimitFailed, OSError, MemoryError, ValueError) as error:
            # ValueError: a text of the order that no file can hold.
            self._take_back(assignment, error)
            return False
        reach("launch.after-fork")
        return False

    def _stop_looking_up(self, key: Key) -> None:
        if key in self._looking_up:
            self._looking_up.pop(key).close()

    def _looked_up(
        self, key: Key, assignment: Assignment, problem: Denied | DirectoryFailed | None
    ) -> None:
        if self._looking_up.get(key) is not assignment:
            return
        if problem is None:
            del self._looking_up[key]
            self._launch_or_close(assignment)
            return
        self._stop_looking_up(key)
        # Other users may be in local files, which answer.
        short = None if isinstance(problem, Denied) else Shortage(JOB, DIRECTORY)
        text = str(problem)
        if isinstance(problem, NotAsked) and (of_all := shortage_of(problem.error, MACHINE)):
            short, text = of_all, machine_text(of_all, problem.error)
        self._fail(assignment, text, short)

    def _start(self, job: JobStart, created: attempt_files.Record) -> None:
        order, key = job.assignment.order, job.key
        self._known.add(key)
        attempt_fd = attempt_files.create(self.attempts_fd, key, created)
        try:
            reach("launch.before-cgroup")
            settings = self.confinement.create(key, order.limits, order.devices)
            if not job.assignment.is_notice:
                self._spaces.make(key, job.place)
            self._sweeps.begun(key, order.uid)
            reach("launch.before-fork")
            self._runners.start(job, settings, attempt_fd, created)
        finally:
            os.close(attempt_fd)

    def _full(self, assignment: Assignment) -> str | None:
        """Return why nothing more is started, or None: this process runs as root, and must not use
        up all that root may have, whatever the controller orders."""
        if len(self._runners) + len(self._looking_up) >= self.bounds.running:
            return f"as many jobs run as the launcher can take care of: {self.bounds.running}"
        if len(self._known) >= self.bounds.known and not assignment.is_notice:
            return f"{len(self._known)} jobs run or wait to be removed, the most that can be"
        return None

    def _take_back(self, assignment: Assignment, error: Exception) -> None:
        """Remove an attempt that could not be started, and report why."""
        key = assignment.order.key
        short = shortage_of(error, MACHINE)
        try:
            attempt = attempt_files.read(self.attempts_fd, key)
            if attempt is not None and attempt.may_have_run:
                # It had begun when its runner could not be watched. It must not be launched again.
                self._report(key, attempt)
                return
            self._remove(key)
        except OSError as next_error:
            # The controller orders the removal again, as often as it takes.
            if short is None or not is_shortage(next_error):
                raise
        if short is None:
            self._fail(assignment, f"it could not be set up: {error}")
            return
        log.warning(
            "event=launch-postponed job=%d attempt=%d resource=%s error=%s",
            *(*key, short.resource, error),
            extra=about(job=key[0]),
        )
        self._fail(assignment, machine_text(short, error), short)

    def _list(self) -> None:
        known = attempt_files.keys(self.attempts_fd)
        owners: dict[str, dict[str, int | str]] = {}
        for key in known:
            attempt = attempt_files.read(self.attempts_fd, key)
            if attempt is not None:
                owners[attempt_files.file_name(key)] = attempt.owner.facts()
            if key in self._endings:
                continue
            if attempt is None:
                # Its creation was interrupted, or a power cut has emptied the file.
                self._tell("missing", key)
            else:
                self._report(key, attempt)
        # A cgroup without a file is an attempt that is almost removed.
        everything = sorted({*known, *self.confinement.leftovers(), *self._looking_up})
        self.port.send({"report": "listed", "known": everything, "owners": owners})

    def _freeze(self, key: Key) -> None:
        self._signalling.drop(key)
        self._freezing.freeze(key)

    def _terminate(self, key: Key) -> None:
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None:
            self._tell("missing", key)
            return
        if not attempt.is_over:
            self._freezing.forget(key)
            self._signalling.terminate(key, attempt)

    def _kill(self, key: Key) -> None:
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None:
            self._tell("missing", key)
        elif not attempt.is_over:
            self._endings.add(key, remove=False)

    # -- runners ----------------------------------------------------------------------------

    def _runner_gone(self, key: Key) -> None:
        self._endings.hurry(key)
        self._signalling.forget(key)
        but = "launched" if key in self._reported else None
        self._reported.discard(key)
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None:
            return
        if attempt.exited is not None:
            self._remove_cgroup(key)
        self._report(key, attempt, but=but)

    def _remove_cgroup(self, key: Key) -> None:
        """Remove what its runner has left of the cgroup of an attempt that has just ended, before
        the end is reported: the controller then gives the job's resources to others when it records
        the end. A cgroup that is in use is left until the controller orders the removal of the
        attempt."""
        # Without cgroups a removal does not show that no process is left.
        if self.confinement.kind == "none" or self._endings.removes(key):
            return
        if self.confinement.are_removed(key):
            self._without_cgroup.add(key)
            return
        reach("end.before-rmdir")
        with suppress(OSError):
            if self.confinement.remove(key):
                self._without_cgroup.add(key)
        reach("end.after-rmdir")

    def _on_launched(self) -> None:
        for key in read_launched(os.read(self._launched_out, 1 << 16)):
            if key in self._runners:
                # Reported in this turn of the loop, unless the attempt turns out to be over.
                self._runners.unreported.add(key)

    def _report_launch(self, key: Key) -> None:
        """Report the launch of a job. Its end is reported when the runner is gone, not before."""
        attempt = self._runners.launched(key) or attempt_files.read(self.attempts_fd, key)
        if attempt is None or attempt.may_have_run:
            self._runners.unreported.discard(key)
        if attempt is not None and attempt.launched is not None and not attempt.is_over:
            self._report(key, attempt)
            self._reported.add(key)
            self._signalling.launched(key)

    def _report(self, key: Key, attempt: Attempt, *, but: str | None = None) -> None:
        """Report what the attempt file says, `but` for this kind of report."""
        alive = key in self._runners
        if attempt.is_notice:
            # What became of it is reported with the removal.
            if not alive and self.port.is_connected:
                self._endings.add(key, remove=True)
            return
        if attempt.launch_failed is not None:
            failed = self._failure(key, attempt.launch_failed, attempt.created)
            attempt = replace(attempt, launch_failed=failed)
        ended = Ended(False, False, {}) if alive else self._ended(key, attempt)
        reports = reports_from(
            attempt,
            alive=alive,
            jobs_stop=self.jobs_stop,
            ended=ended,
            at_s=time.time(),
            boot_id=self._boot_id,
        )
        owner = attempt.owner.facts()
        for kind, facts in reports:
            if kind == but:
                continue
            if kind == "missing" and self._has_lost_too_many_runners(key):
                kind, facts = "launch_failed", failure(_RUNNERS_LOST, _LAUNCHER_SHORT)
            if kind == "exited" and key in self._without_cgroup:
                facts = {**facts, "gone": True}
            self._tell(kind, key, of=owner, **facts)

    def _ended(self, key: Key, attempt: Attempt) -> Ended:
        """Return what the kernel has counted of an attempt whose runner is gone. It is on record
        unless the runner was killed."""
        if attempt.exited is None:
            return self._look(key)
        ended = self.confinement.judge(attempt.exited["counters"])
        if largest := attempt.exited["peak_bytes"]:
            ended = ended._replace(counted={**ended.counted, "largest_process_bytes": largest})
        return ended

    def _look(self, key: Key) -> Ended:
        return self.confinement.judge(read_counters(self.confinement.counters(key)))

    def _failure(
        self, key: Key, failed: attempt_files.Record, created: attempt_files.Record
    ) -> attempt_files.Record:
        """Return a failure in words. A shortage of memory is a final one if the job has hit its own
        limit, because it would hit it again."""
        found = failure_of(failed, created)
        if found.get("resource") == MEMORY and self._look(key).counted.get("limit_hits"):
            return failure(found["text"], None)
        return found

    def _has_lost_too_many_runners(self, key: Key) -> bool:
        """Return whether too many of its runners have died before they released the job. A
        controller launches such an attempt again at once, which must come to an end."""
        self._lost_runners[key] = self._lost_runners.get(key, 0) + 1
        return self._lost_runners[key] >= _MAX_LOST_RUNNERS

    # -- endings ----------------------------------------------------------------------------

    def _user_of(self, key: Key, ending: Ending) -> int | None:
        if ending.uid is None and (attempt := attempt_files.read(self.attempts_fd, key)):
            ending.uid = attempt.created["uid"]
        return ending.uid

    def _continue(self, key: Key, ending: Ending) -> None:
        if not self._is_empty(key):
            if self._put_off(key, ending):
                self._runners.wake(key)
            if ending.resists() and not ending.is_being_freed:
                self._free(key, ending)
            return
        if ending.relaunch is not None and ending.relaunch.is_notice:
            if self._full(ending.relaunch):
                self._endings.put_off(ending)
                return
            if not self._is_without_cgroup(key):
                self._put_off(key, ending)
                return
        elif ending.remove:
            reach("remove.before-rmdir")
            attempt = attempt_files.read(self.attempts_fd, key)
            if attempt is not None and attempt.is_notice:
                ending.notice = ending.notice or notice_text(attempt)
            if not self._remove(key):
                self._put_off(key, ending)
                return
        self._endings.finish(key)
        if ending.relaunch is not None:
            self._launch_or_close(ending.relaunch)
        elif ending.remove:
            self._lost_runners.pop(key, None)
            self._tell("removed", key, **({"notice": ending.notice} if ending.notice else {}))

    def _put_off(self, key: Key, ending: Ending) -> bool:
        """Try again later. Returns True once: when it is reported that it takes long."""
        if is_stuck := self._endings.put_off(ending):
            log.error("event=stuck job=%d attempt=%d", *key, extra=about(job=key[0]))
            self._tell("stuck", key)
        return is_stuck

    def _free(self, key: Key, ending: Ending) -> None:
        """Kill tracers of the attempt's user that keep killed processes from exiting, or their exit
        from being reported to the runner."""
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None or os.getuid() != 0 or not (uid := attempt.created["uid"]):
            # A debugger of root is an administrator's; a user's own launcher serves only itself.
            return
        held = self.confinement.members(key, attempt)
        if attempt.runner is not None and (runner := living_runner(attempt)):
            # Zombies are in no cgroup, but they are children of the runner.
            held += process.children(runner)

        def freed(status: int) -> None:
            ending.is_being_freed = False
            if os.waitstatus_to_exitcode(status) == HAS_ENDED_SOME:
                log.warning("event=tracers-killed job=%d", key[0], extra=about(job=key[0]))

        # Those beyond that number have their turn when these are gone.
        held = held[:_MOST_HELD]
        self._background.start(own_program(_TRACERS, uid, attempt.owner.user or "", *held), freed)
        ending.is_being_freed = True

    def _is_empty(self, key: Key) -> bool:
        """Try again to kill all processes of the attempt, and return whether none is left."""
        reach("remove.before-kill")
        if key in self._without_cgroup:
            return key not in self._runners
        attempt = attempt_files.read(self.attempts_fd, key)
        # The runner exits by itself once its job is gone, after it has recorded the end.
        return self.confinement.kill_pass(key, attempt) and key not in self._runners

    def _is_without_cgroup(self, key: Key) -> bool:
        """Remove the attempt's cgroup. Returns False if it is still in use."""
        return key in self._without_cgroup or self.confinement.remove(key)

    def _remove(self, key: Key) -> bool:
        """Remove the cgroup, then the file: the attempt is known as long as either exists. Returns
        False if the cgroup is still in use."""
        if not self._is_without_cgroup(key):
            return False
        self._spaces.remove(key)
        reach("remove.before-unlink")
        attempt_files.remove(self.attempts_fd, key)
        reach("remove.after-unlink")
        self._known.discard(key)
        self._without_cgroup.discard(key)
        self._sweeps.gone(key)
        return True

    def _remove_file(self, key: Key) -> None:
        """Remove the file of an attempt whose end was reported, and of which nothing else is left:
        that was found then, so that no process and no cgroup is looked for."""
        if key in self._without_cgroup and key not in self._runners and key not in self._endings:
            self._lost_runners.pop(key, None)
            self._remove(key)
        else:
            self._endings.add(key, remove=True)

    def _quit(self) -> None:
        self._running = False
