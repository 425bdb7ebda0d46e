"""The loop of the launcher for Slurm's nodes: it carries out orders by Slurm's commands.

All that is known of Slurm's jobs comes from one list of them, which is asked for at each event,
some moments after it, and in any case every `poll_s`. Events say only that something has happened:
one that is lost, repeated or forged changes nothing. An order acts on a list that was asked for
later than the order came.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from drfd.common.failpoints import reach
from drfd.common.journald import about
from drfd.core.model.job import UNSTARTED, read_owner
from drfd.launcher import attempt_files, protocol
from drfd.launcher.attempt_files import Attempt, Key, Record
from drfd.launcher.port import Policy, Port
from drfd.launcher.protocol import (
    Assignment,
    AttemptCommand,
    BadMessage,
    ExecCommand,
    ListCommand,
    Message,
    PayloadCommand,
    SignalCommand,
    read_command,
)
from drfd.launcher.runner.shortage import JOB, MACHINE, Shortage, failure, read_failure
from drfd.launcher.signatures import SignatureChecks, SigningKeys
from drfd.launcher.slurm import mapping
from drfd.launcher.slurm.census import Census, Shown
from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.daemon_process import RunningProcess, running_process
from drfd.launcher.slurm.mapping import (
    LIST_ALLOCATED,
    LIST_JOBS,
    LIST_NODES,
    SHOW_CONFIG,
    Name,
    SlurmJob,
    SlurmNode,
)
from drfd.launcher.slurm.nudge import Nudge
from drfd.launcher.slurm.start_notes import StartNotes
from drfd.launcher.slurm.submission import Prepared, prepare
from drfd.launcher.system import process
from drfd.launcher.system.background import BackgroundWork
from drfd.linux.descriptors import opened
from drfd.linux.sealed import NotSealed, sealed_size
from drfd.payload.pack import MAX_BYTES

log = logging.getLogger("drfd.launcher")

#: When Slurm is asked after an event, in seconds: a job passes some states at its start and end.
_AFTER_EVENT_S = (0.0, 0.05, 0.2, 1.0, 3.0)
#: The least pause between two lists.
_LEAST_PAUSE_S = 0.02
#: How many lists must lack a name before it is submitted after an unknown outcome, and the pause
#: between them: what sbatch has sent may still be on its way.
_LOOKS, _LOOK_PAUSE_S = 2, 2.0
#: Seconds that all lists must lack an attempt before its end counts as unknown: Slurm's
#: MessageTimeout, by default. Within it the nodes have registered and ended what slurmctld does not
#: know, so that another attempt does not run beside it.
_FORGOTTEN_S = 10.0
#: Seconds that slurmctld must take a job for waiting that has started before, until it is ended: by
#: then Slurm has noticed whether its node answers, and has ended it itself if the node is open.
_WAITS_AGAIN_S = 10.0
#: Least seconds between two orders to Slurm's nodes to register.
_REGISTER_S = 5.0
#: Seconds between two looks at the nodes, at most.
_NODES_S = 5.0
_NOT_ASKED, _NO_ANSWER = "Slurm has not been asked yet", "slurmctld does not answer"
#: Seconds between two removals of old notes.
_FORGET_NOTES_S = 3600.0
#: Submissions that run at a time, and those that wait.
_SUBMISSIONS, _MOST_ATTEMPTS = 8, 20_000
#: Seconds between two tries to end a job.
_AGAIN_S = 2.0
#: The file with the journals whose jobs are this launcher's.
_INSTANCES = "instances"
#: The file with the attempts that Slurm does not know, and since when.
_MISSING = "missing"
_MOST_DATAGRAM = 4096
#: Number of paths of a submission.
_PATHS = 3

_FORGOTTEN_BEFORE = "slurmctld has forgotten the job before its start, or given its id twice"
_LOOK_AT_NODE = "drf doctor tells what its node lacks there, if it lacks anything"
_NOT_SIGNED = "the request is not signed by its user: submit it again"
_TAKEN = "another job's attempt has its number here, from another journal perhaps"
_NO_NODE = "the order names no node"
_NOT_INSIDE = "commands run inside jobs of the controller's own machine alone"
_NOT_TOLD = "not told: notifications run for jobs of the controller's own machine alone"
_CONTROLS = "enforced by Slurm's cgroups, if its configuration says so (task/cgroup)"
_COUNTED = "counted; enforced on nodes with cgroup v2 that have drfd-disks as Slurm's Prolog"


@dataclass(slots=True)
class _Submission:
    """An attempt that is not known to be submitted."""

    assignment: Assignment
    #: Number of lists that must lack its name first.
    looks: int
    #: The last list that does not count, and when the next may.
    after_list: int
    due_mono_s: float = 0.0
    #: True while sbatch runs.
    runs: bool = False
    #: What is to be recorded if the lists lack its name: sbatch has failed.
    failed: Record | None = None


@dataclass(slots=True)
class _Wish:
    """What the controller wants of an attempt, until it is so."""

    after_list: int
    terminate: bool = False
    kill: bool = False
    remove: bool = False
    freeze: bool = False
    thaw: bool = False
    #: When the next try to end the job is due, and how many there were.
    due_mono_s: float = 0.0
    tries: int = 0


@dataclass
class SlurmLauncher:
    """The state of the launcher, which `serve` keeps up to date until SIGTERM."""

    state: Path
    policy: Policy
    attempts_fd: int
    port: Port
    events: socket.socket
    starts: StartNotes
    programs: Path
    conf: Path | None = None
    partition: str | None = None
    keys: SigningKeys | None = None
    #: Readable when the process that started this launcher is gone.
    keep_fd: int | None = None
    poll_s: float = 30.0
    #: How long each command of Slurm's may take.
    most_s: float = 5.0
    #: Whether slurmctld is told of each submission, so that it starts the job at once.
    nudges: bool = True
    #: How long Slurm may let a job wait.
    patience_s: float = 60.0
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _boot_id: str = field(default_factory=process.boot_id)
    _running: bool = True
    _known: dict[Key, Attempt] = field(default_factory=dict)
    _instances: set[str] = field(default_factory=set)
    _submissions: dict[Key, _Submission] = field(default_factory=dict)
    _wishes: dict[Key, _Wish] = field(default_factory=dict)
    #: Signals that are to have been sent: how many in all, and the last of them.
    _signals: dict[Key, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    #: The last list that was asked for before sbatch had submitted an attempt.
    _submitted_after: dict[Key, int] = field(default_factory=dict)
    #: The last list that was asked for before an attempt's note of its end was seen.
    _noted_at: dict[Key, int] = field(default_factory=dict)
    #: Since when each attempt that lists lack was missing when all nodes were told to register.
    _missing: dict[Key, float] = field(default_factory=dict)
    #: Those of them for which Slurm has not answered yet that it has told the nodes.
    _unregistered: set[Key] = field(default_factory=set)
    #: Since when lists show each attempt as waiting.
    _waits_since: dict[Key, float] = field(default_factory=dict)
    #: The list at which all nodes were told to register, and when they may be told again.
    _registering: int = -1
    _register_due_mono_s: float = 0.0
    _notes_due_mono_s: float = 0.0
    #: The removal of old notes, of which each list brings a part.
    _forgetting: Iterator[None] = field(default_factory=lambda: iter(()))
    #: When a list is due (monotonic clock), the number of those asked for, and the last one's time.
    _dues: list[float] = field(default_factory=list)
    _lists: int = 0
    _listing: bool = False
    _listed_mono_s: float = 0.0
    _is_away: bool = False
    #: Where slurmctld writes its pid, and which process it was when it was asked.
    _pid_file: str = ""
    _slurm_process: RunningProcess | None = None
    #: Whether it is being asked when it started.
    _asks_config: bool = False
    #: The nodes as Slurm showed them last, and why none of them starts jobs, or None.
    _nodes: dict[str, SlurmNode] = field(default_factory=dict)
    _all_away: str | None = _NOT_ASKED
    _nodes_due_mono_s: float = 0.0
    _asks_nodes: bool = False

    def __post_init__(self) -> None:
        self._commands = Commands(
            self._selector, programs=self.programs, conf=self.conf, most_s=self.most_s
        )
        self._nudge = Nudge(self._commands)
        self._checks = SignatureChecks(self.keys)
        self._background = BackgroundWork(self._selector)
        self._census = Census(self._commands, self._lack_on_node)
        with suppress(FileNotFoundError):
            self._instances.update((self.state / _INSTANCES).read_text().split())

    def serve(self) -> None:
        self.port.open(
            self._selector,
            on_connect=self._hello,
            on_order=self._handle,
            close=self._background.close,
        )
        self.events.setblocking(False)
        self._selector.register(self.events, selectors.EVENT_READ, self._on_event)
        if self.keep_fd is not None:
            self._selector.register(self.keep_fd, selectors.EVENT_READ, self._quit)
        wake_out, wake_in = os.pipe()
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in)
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        self._selector.register(wake_out, selectors.EVENT_READ, self._quit)
        for key in attempt_files.keys(self.attempts_fd):
            self._read(key)
        self._missing = self._read_missing()
        self._hurry()
        while self._running:
            for chosen, _ in self._selector.select(self._pause_s()):
                # An earlier handler of this round may have closed the descriptor.
                if chosen.fd in self._selector.get_map():
                    chosen.data()
            self._commands.run_due()
            self._checks.run_due()
            self._begin_submissions()
            self._ask_for_list()
            self._ask_for_nodes()
            self.port.flush()

    def _pause_s(self) -> float | None:
        now = time.monotonic()
        pauses = [self._commands.pause_s(), self._checks.pause_s()]
        if not self._asks_nodes:
            pauses.append(max(0.0, self._nodes_due_mono_s - now))
        if not self._listing:
            due = min([*self._dues, self._listed_mono_s + self.poll_s])
            pauses.append(max(0.0, due - now, self._listed_mono_s + _LEAST_PAUSE_S - now))
        return min((pause for pause in pauses if pause is not None), default=None)

    def _on_event(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self.events.recv(_MOST_DATAGRAM)
        self._hurry()

    def _hurry(self, *more_s: float) -> None:
        now = time.monotonic()
        self._dues = sorted({*self._dues, *(now + wait for wait in (*_AFTER_EVENT_S, *more_s))})
        # A burst of events needs no more lists than the least pause allows.
        del self._dues[64:]

    def _quit(self) -> None:
        self._running = False

    # -- orders ---------------------------------------------------------------------------------

    def _hello(self) -> Message:
        self._checks.cancel_all()
        return {
            "report": "hello",
            "kind": "slurm",
            "controls": {
                "cores": _CONTROLS,
                "memory": _CONTROLS,
                "read": _COUNTED,
                "write": _COUNTED,
                "processes": "not limited by drfd: Slurm's own limits hold",
            },
            "cores": dict.fromkeys(protocol.CORES_MODES, _CONTROLS)
            | {protocol.SHARE: protocol.NO_SHARE},
            "entry": ("slurm", "Slurm starts a job's process on its node"),
            "hiding": (False, "by Slurm's ConstrainDevices"),
            "lost_devices": [],
            "mounts": {},
            "warnings": [],
            "private_tmp": None,
            "removes_ipc": False,
            "exec": False,
            "processes": None,
            "min_uid": self.policy.min_uid,
            "allowed_uids": sorted(self.policy.allowed_uids),
            "output_max": False,
            "unstarted_notices": False,
            "measures_gpus": False,
            "lends": False,
            "lendable": [],
            "limits_gpus": [],
        }

    def _handle(self, message: Message, payload_fd: int) -> None:
        """Carry out an order. `payload_fd` belongs to this method. Raises BadMessage."""
        try:
            command = read_command(message)
            if isinstance(command, PayloadCommand | ExecCommand):
                sealed_size(payload_fd, MAX_BYTES)
        except (BadMessage, NotSealed) as error:
            if payload_fd != -1:
                self._background.close(payload_fd)
            raise BadMessage(str(error)) from None
        match command:
            case PayloadCommand(protocol.LAUNCH, order):
                self._launch(Assignment(order, payload_fd))
            case PayloadCommand(_, order):
                os.close(payload_fd)
                self._not_told((order.id, order.attempt))
            case ExecCommand(order, inside):
                os.close(payload_fd)
                key = (order.id, order.attempt)
                self._tell(protocol.EXEC, key, number=inside.number, text=_NOT_INSIDE)
            case AttemptCommand(name, key):
                self._checks.cancel(key)
                self._wish(name, key)
            case SignalCommand(key, count, signals):
                self._signals[key] = count, signals
                self._hurry()
            case ListCommand():
                self._report_all()
            case _:
                # Nothing is lent on these nodes, and no GPUs are measured there.
                pass

    def _tell(self, kind: str, key: Key, **facts: object) -> None:
        self.port.send({"report": kind, "id": key[0], "attempt": key[1], **facts})

    def _not_told(self, key: Key) -> None:
        if key[1] == UNSTARTED:
            self._tell(protocol.TOLD, key, notice=_NOT_TOLD)
        else:
            self._wish(protocol.REMOVE, key)

    def _wish(self, name: str, key: Key) -> None:
        attempt = self._known.get(key)
        if attempt is None and name != protocol.REMOVE:
            self._tell("missing", key)
            return
        if attempt is not None and attempt.is_over and name != protocol.REMOVE:
            return
        wish = self._wishes.setdefault(key, _Wish(self._lists))
        wish.after_list, wish.due_mono_s = self._lists, 0.0
        match name:
            case protocol.TERMINATE:
                wish.terminate, wish.freeze = True, False
            case protocol.KILL:
                wish.kill = True
            case protocol.REMOVE:
                wish.remove = True
            case protocol.FREEZE:
                wish.freeze, wish.thaw = True, False
            case protocol.THAW:
                wish.freeze, wish.thaw = False, True
        self._hurry()

    def _report_all(self) -> None:
        owners = {}
        for key, attempt in sorted(self._known.items()):
            owners[attempt_files.file_name(key)] = attempt.owner.facts()
            self._report(key)
        self._report_nodes()
        self.port.send({"report": "listed", "known": sorted(self._known), "owners": owners})

    def _report_nodes(self) -> None:
        nodes = {name: node.facts() for name, node in self._nodes.items()}
        self.port.send({"report": "nodes", "away": self._all_away, "nodes": nodes})

    def _report(self, key: Key) -> None:
        """Report what the attempt file says."""
        attempt = self._known[key]
        owner = attempt.owner.facts()
        if attempt.running is not None:
            up = {**self._start(attempt), "cgroup": None, "runner_pid": 0}
            self._tell("up", key, of=owner, **up)
        if attempt.failed is not None:
            short = read_failure(attempt.failed)
            if short is None:
                text = attempt.failed.get("text", "it is not known why")
                self._tell("broke", key, of=owner, text=text)
            else:
                self._tell("shortage", key, of=owner, **short)
        elif attempt.ended is not None:
            self._tell("ended", key, of=owner, gone=True, **attempt.ended)

    def _start(self, attempt: Attempt) -> dict[str, float]:
        """Return when an attempt began. The file may be of an earlier boot of this machine, which
        the node has outlived."""
        created, now_s = attempt.created, time.time()
        at_s = now_s if created["at_s"] is None else created["at_s"]
        if created["boot_id"] == self._boot_id:
            return {"at_s": at_s, "mono_s": created["mono_s"]}
        return {"at_s": at_s, "mono_s": time.monotonic() - max(0.0, now_s - at_s)}

    # -- launches -------------------------------------------------------------------------------

    def _launch(self, assignment: Assignment) -> None:
        order = assignment.order
        key = (order.id, order.attempt)
        known = self._known.get(key)
        if known is not None and not known.owner.may_be(order.owner):
            self._refuse(assignment, _TAKEN)
            return
        if known is not None and (known.may_have_run or known.submitted is not None):
            assignment.close()
            self._report(key)
            return
        if key in self._submissions:
            assignment.close()
            return
        refusal = self.policy.refusal(order.uid) or (None if order.node else _NO_NODE)
        if refusal is None:
            checked = self._checks.check_now(assignment)
            if checked is None:
                self._checks.begin(assignment, self._launch, is_launch=True)
                return
            assignment = checked
            refusal = None if checked.is_signed else _NOT_SIGNED
        if refusal is not None:
            self._refuse(assignment, refusal)
            return
        if len(self._known) >= _MOST_ATTEMPTS:
            text = f"{len(self._known)} jobs run or wait to be removed, the most that can be"
            self._tell("shortage", key, text=text, whose=MACHINE, resource="launcher")
            assignment.close()
            return
        # One that an earlier launcher may have submitted is looked for as long as after a failure.
        looks, after_list = (1 if known is None else _LOOKS), self._lists
        try:
            # Before the list, which tells the jobs of these journals alone.
            self._remember_instance(order.journal)
            # Slurm answers while the attempt file is written.
            self._hurry()
            self._ask_for_list()
            if known is None:
                self._create(key, assignment)
        except OSError as error:
            attempt_files.remove(self.attempts_fd, key)
            text = f"its attempt file cannot be made: {error.strerror}"
            self._tell("shortage", key, text=text, whose=MACHINE, resource="space")
            assignment.close()
            return
        self._submissions[key] = _Submission(assignment, looks, after_list)

    def _refuse(self, assignment: Assignment, text: str) -> None:
        order = assignment.order
        assignment.close()
        self._tell("broke", (order.id, order.attempt), text=text)

    def _create(self, key: Key, assignment: Assignment) -> None:
        """Make the attempt file. Unlike a local job, one on a node outlives a power cut here."""
        order = assignment.order
        reach("slurm.before-attempt-file")
        created = attempt_files.created_record(
            order.owner, self._boot_id, None, payload=assignment.digest
        ) | {"node": order.node}
        fd = attempt_files.create(self.attempts_fd, key, created)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.fsync(self.attempts_fd)
        self._read(key)

    def _remember_instance(self, journal: str) -> None:
        if journal in self._instances:
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with opened(self.state / _INSTANCES, flags, 0o600) as fd:
            os.write(fd, f"{journal}\n".encode())
            os.fsync(fd)
        self._instances.add(journal)

    def _read(self, key: Key) -> Attempt | None:
        attempt = attempt_files.read(self.attempts_fd, key)
        if attempt is None:
            # Its creation was interrupted, so nothing was submitted.
            attempt_files.remove(self.attempts_fd, key)
            return None
        self._known[key] = attempt
        return attempt

    def _append(self, key: Key, kind: str, record: Record) -> None:
        with opened(
            attempt_files.file_name(key), os.O_RDWR | os.O_APPEND, dir_fd=self.attempts_fd
        ) as fd:
            attempt_files.end_partial_line(fd)
            attempt_files.append(fd, kind, record)
            os.fsync(fd)
        self._read(key)

    def _begin_submissions(self) -> None:
        """Run sbatch for those whose names no list has shown."""
        count = sum(each.runs for each in self._submissions.values())
        for key, each in self._submissions.items():
            if count >= _SUBMISSIONS:
                return
            if each.runs or each.looks > 0:
                continue
            each.runs = True
            count += 1
            reach("slurm.before-submission")
            try:
                prepared = prepare(each.assignment)
            except OSError as error:
                short = Shortage(MACHINE, "processes", "EAGAIN")
                each.failed = failure(f"sbatch cannot be run: {error.strerror}", short)
                self._look_again(each)
                continue
            then = partial(self._submit, key, prepared)
            self._commands.watch(prepared.pid, prepared.paths_fd, prepared.complaint_fd, then)

    def _submit(self, key: Key, prepared: Prepared, answer: Answer) -> None:
        """Run sbatch with what the process has prepared."""
        each = self._submissions[key]
        try:
            gid, record = prepared.read_report()
            paths = answer.output.split("\0")
            if not answer.is_good or record or len(paths) != _PATHS + 1:
                # Nothing was submitted, so there is nothing to look for.
                self._end_submission(key)
                unknown = failure("its submission could not be prepared", None)
                self._fail(key, json.loads(record) if record else unknown)
                return
            words = mapping.submit_words(
                each.assignment.order,
                partition=self.partition,
                cwd=paths[0],
                stdout=paths[1],
                stderr=paths[2],
                gid=gid if os.getuid() == 0 else None,
                env_fd=prepared.env_fd,
            )
            self._nudge.prepare()
            self._commands.run(
                words,
                partial(self._submitted, key),
                stdin=prepared.script_fd,
                fds=(prepared.env_fd,),
            )
        finally:
            prepared.close()

    def _submitted(self, key: Key, answer: Answer) -> None:
        reach("slurm.after-submission")
        each = self._submissions[key]
        number = answer.output.strip().split(";")[0]
        if answer.is_good and number.isascii() and number.isdigit():
            self._nudge.submitted(int(number))
            self._append(key, "submitted", {"slurm_id": int(number), "at_s": time.time()})
            self._submitted_after[key] = self._lists
            self._end_submission(key)
            self._hurry()
            return
        complaint = mapping.first_line(answer.complaint)
        short = None
        if answer.code is None or mapping.may_pass(answer.complaint):
            # That job alone waits: the controller's own machine goes on.
            short = Shortage(JOB, "slurm", "ETIMEDOUT" if answer.code is None else "EAGAIN")
        each.failed = failure(f"Slurm does not take the job: {complaint or 'no reason'}", short)
        self._look_again(each)

    def _look_again(self, each: _Submission) -> None:
        each.runs, each.looks, each.after_list = False, _LOOKS, self._lists
        each.due_mono_s = time.monotonic()
        self._hurry(_LOOK_PAUSE_S, 2 * _LOOK_PAUSE_S)

    def _end_submission(self, key: Key) -> None:
        self._submissions.pop(key).assignment.close()

    def _fail(self, key: Key, record: Record) -> None:
        self._append(key, "failed", record)
        self._report(key)

    # -- lists ----------------------------------------------------------------------------------

    def _ask_for_list(self) -> None:
        now = time.monotonic()
        is_due = bool(self._dues) and self._dues[0] <= now
        if self._listing or now < self._listed_mono_s + _LEAST_PAUSE_S:
            return
        if not is_due and now < self._listed_mono_s + self.poll_s:
            return
        self._dues = [due for due in self._dues if due > now]
        self._listing, self._listed_mono_s = True, now
        self._lists += 1
        self._commands.run(LIST_JOBS, partial(self._take_list, self._lists))

    def _take_list(self, number: int, answer: Answer) -> None:
        self._listing = False
        if not answer.is_good:
            if not self._is_away:
                log.error("event=slurm-away error=%s", mapping.first_line(answer.complaint))
            self._is_away = True
            self._see_nodes(self._nodes, away=self._no_answer(answer))
            self._dues.append(time.monotonic() + 1.0)
            self._dues.sort()
            return
        if self._is_away:
            log.info("event=slurm-back")
            self._waits_since.clear()
            self._nodes_due_mono_s = 0.0
        self._is_away = False
        found: dict[Name, list[SlurmJob]] = {}
        for job in mapping.read_jobs(answer.output):
            if not job.is_waiting:
                self._nudge.saw(job.id)
            if job.name.journal in self._instances:
                found.setdefault(job.name, []).append(job)
        for key in list(self._known):
            self._compare(number, key, found)
        self._census.see_list(number, self._shown_running(found))
        self._forget_notes()
        for name, jobs in found.items():
            attempt = self._known.get(name.key)
            is_ours = attempt is not None and self._name(name.key) == name
            for job in jobs:
                # One that is completing is being ended.
                is_at_end = job.is_over or job.state == "COMPLETING"
                if is_at_end or (is_ours and attempt and not attempt.is_over):
                    continue
                # A submission that arrived after all, or whose end was reported before.
                log.warning("event=stray-job job=%d slurm=%d", name.key[0], job.id)
                self._cancel([job], forced=True)
        for key in list(self._wishes):
            if key not in self._known and number > self._wishes[key].after_list:
                jobs = [job for name in found if name.key == key for job in found[name]]
                if all(job.is_over for job in jobs):
                    del self._wishes[key]
                    self._tell("removed", key)

    def _shown_running(self, found: dict[Name, list[SlurmJob]]) -> dict[Key, Shown]:
        """Return the attempts that a list shows as running, or suspended, and that are not over."""
        shown = {}
        for key, attempt in self._known.items():
            node = attempt.created.get("node")
            if attempt.is_over or attempt.running is None or not isinstance(node, str):
                continue
            job, _ = self._chosen(key, found)
            if job is not None and job.state in ("RUNNING", "SUSPENDED"):
                shown[key] = Shown(job.id, node, job.state == "SUSPENDED")
        return shown

    def _ask_for_nodes(self) -> None:
        now = time.monotonic()
        if not self._asks_nodes and now >= self._nodes_due_mono_s:
            self._asks_nodes = True
            self._nodes_due_mono_s = now + min(_NODES_S, self.poll_s)
            self._commands.run(LIST_NODES, self._take_nodes)

    def _take_nodes(self, answer: Answer) -> None:
        if not answer.is_good:
            self._asks_nodes = False
            self._see_nodes(self._nodes, away=self._no_answer(answer))
            return
        nodes = mapping.read_nodes(answer.output)

        def take_allocated(answer: Answer) -> None:
            self._asks_nodes = False
            if answer.is_good:
                found = mapping.with_others_jobs(nodes, answer.output, self._instances)
                self._see_nodes(found, away=None)
                self._ask_for_config()
            else:
                self._see_nodes(self._nodes, away=self._no_answer(answer))

        self._commands.run(LIST_ALLOCATED, take_allocated)

    def _ask_for_config(self) -> None:
        """Ask when slurmctld started, unless it is seen to be the process that has answered."""
        seen = running_process(self._pid_file, "slurmctld")
        if seen is not None and seen == self._slurm_process:
            self._nudge.keep_ready()
            self._census.ask_nodes(self._lists)
        elif not self._asks_config:
            self._asks_config = True
            self._commands.run(SHOW_CONFIG, partial(self._take_config, seen))

    def _take_config(self, seen: RunningProcess | None, answer: Answer) -> None:
        """See whether slurmctld is another than before, which may have forgotten ends. `seen` was
        its process before the question: an answer of another's is asked for again."""
        self._asks_config = False
        settings = mapping.read_settings(answer.output) if answer.is_good else {}
        found = mapping.read_boot(settings)
        if found is not None:
            self._slurm_process = seen
            self._pid_file = settings.get(mapping.PID_FILE, "")
            if self.nudges:
                self._nudge.see(settings, found[0])
            if self._census.see_start(*found, self._lists):
                self._hurry()
        self._census.ask_nodes(self._lists)

    def _lack_on_node(self, key: Key) -> None:
        """Record the end of an attempt that Slurm shows as running, and whose node lacks it."""
        attempt = self._known.get(key)
        if attempt is None or attempt.is_over:
            return
        log.error("event=not-on-its-node job=%d attempt=%d", *key, extra=about(job=key[0]))
        self._end(key, mapping.missing_end(time.time(), time.monotonic()))
        # The next list shows what is to be cancelled.
        self._hurry()

    def _no_answer(self, answer: Answer) -> str:
        complaint = mapping.first_line(answer.complaint)
        return f"{_NO_ANSWER}: {complaint}" if complaint else _NO_ANSWER

    def _see_nodes(self, nodes: dict[str, SlurmNode], *, away: str | None) -> None:
        if (nodes, away) != (self._nodes, self._all_away):
            self._nodes, self._all_away = nodes, away
            self._report_nodes()

    def _forget_notes(self) -> None:
        """Go on with the removal of old notes, or begin another if it is time for that."""
        for _ in self._forgetting:
            return
        now = time.monotonic()
        if now >= self._notes_due_mono_s:
            self._notes_due_mono_s = now + _FORGET_NOTES_S
            self._forgetting = self.starts.forget_old({self._name(key) for key in self._known})

    def _name(self, key: Key) -> Name:
        return Name(read_owner(self._known[key].created).journal or "", key)

    def _compare(self, number: int, key: Key, found: dict[Name, list[SlurmJob]]) -> None:
        """Bring an attempt up to date with a list."""
        attempt = self._known[key]
        job, others = self._chosen(key, found)
        if others:
            self._cancel(others, forced=True)
        if not attempt.is_over and not self._has_noted_end(number, key, job):
            if job is None:
                self._lacks(number, key, attempt)
            else:
                self._shows(key, job)
                self._see_waiting(key, job)
        wish = self._wishes.get(key)
        if wish is not None and number > wish.after_list:
            self._act(key, wish, job)
        if key in self._signals and key in self._known:
            self._send_signals(key, job)

    def _chosen(
        self, key: Key, found: dict[Name, list[SlurmJob]]
    ) -> tuple[SlurmJob | None, list[SlurmJob]]:
        """Return which job of a list is the attempt, and those that must go."""
        uid = self._known[key].created["uid"]
        # Any user can give a job of the user's own this name.
        return mapping.choose(job for job in found.get(self._name(key), []) if job.uid == uid)

    def _has_noted_end(self, number: int, key: Key, job: SlurmJob | None) -> bool:
        """Record the end of an attempt of which slurmctld, which was killed, has forgotten the end
        that it had told before. Return whether that is so."""
        if job is not None and (job.is_over or job.state == "COMPLETING"):
            return False
        end = self.starts.end(self._name(key))
        # The list may have been asked for before that end.
        if end is None or number <= self._noted_at.setdefault(key, self._lists):
            return False
        if key in self._submissions:
            if self._submissions[key].runs:
                return False
            self._end_submission(key)
        state, status = end
        log.warning("event=end-forgotten-by-slurm job=%d attempt=%d", *key)
        self._end(key, mapping.noted_end(state, status, time.time(), time.monotonic()))
        return True

    def _lacks(self, number: int, key: Key, attempt: Attempt) -> None:
        now = time.monotonic()
        each = self._submissions.get(key)
        if each is not None:
            if each.runs or number <= each.after_list or now < each.due_mono_s:
                return
            each.looks -= 1
            each.after_list, each.due_mono_s = number, now + _LOOK_PAUSE_S
            if each.looks > 0:
                self._hurry(_LOOK_PAUSE_S)
            elif each.failed is not None:
                self._end_submission(key)
                self._end_failed_submission(key, each.failed)
            return
        if attempt.submitted is None and not self._is_to_stop(key):
            # An earlier launcher has ended before it submitted; the controller orders it again.
            return
        if number <= self._submitted_after.get(key, 0):
            return
        self._lose(key)

    def _end_failed_submission(self, key: Key, failed: Record) -> None:
        """Record that an attempt was not submitted, and keep it from starting if it arrives late:
        another attempt may run by then. It may also have come, started, and been forgotten."""
        name = self._name(key)
        if not self.starts.close(name) and (slurm_id := self.starts.first_start(name)) is not None:
            self._append(key, "submitted", {"slurm_id": slurm_id, "at_s": time.time()})
            return
        self._fail(key, failed)

    def _is_to_stop(self, key: Key) -> bool:
        """Return whether the controller wants the attempt to end, so that it orders it no more."""
        wish = self._wishes.get(key)
        return wish is not None and (wish.terminate or wish.kill)

    def _lose(self, key: Key) -> None:
        """Have an attempt that has not begun wait for another submission. Record an unknown end of
        any other, when no node can have a process of it any more."""
        now = time.monotonic()
        if self._known[key].running is None and self.starts.close(self._name(key)):
            self._is_there(key)
            self._fail(key, failure(_FORGOTTEN_BEFORE, Shortage(JOB, "slurm", "EAGAIN")))
            return
        if key not in self._missing:
            if not self._have_registered(now):
                return
            self._missing[key] = now
            self._unregistered.add(key)
        if now - self._missing[key] < _FORGOTTEN_S:
            self._hurry(_FORGOTTEN_S)
            return
        log.error("event=forgotten-by-slurm job=%d attempt=%d", *key, extra=about(job=key[0]))
        self._end(key, mapping.forgotten_end(time.time(), now))

    def _have_registered(self, now: float) -> bool:
        """Return whether all nodes are told to register since the present list was asked for, which
        ends the jobs that slurmctld does not know. It reads its configuration again then, and
        refuses some requests meanwhile: so they are told rarely."""
        if self._registering == self._lists:
            return True
        if now < self._register_due_mono_s:
            self._hurry(self._register_due_mono_s - now)
            return False
        self._registering, self._register_due_mono_s = self._lists, now + _REGISTER_S
        self._command("scontrol", "reconfigure", then=self._told_to_register)
        return True

    def _told_to_register(self, answer: Answer) -> None:
        if answer.is_good:
            self._unregistered.clear()
            self._write_missing()
            return
        # The waits begin again.
        for key in self._unregistered:
            self._missing.pop(key, None)
        self._unregistered.clear()

    def _is_there(self, key: Key) -> None:
        """Take an attempt for missing no longer."""
        if self._missing.pop(key, None) is not None:
            self._unregistered.discard(key)
            self._write_missing()

    def _write_missing(self) -> None:
        """Keep what is missing for the next launcher, should this one die: it waits only for what
        is left of the time. After a start of this machine the file says nothing."""
        since = {
            attempt_files.file_name(key): at
            for key, at in self._missing.items()
            if key not in self._unregistered
        }
        new = self.state / f"{_MISSING}.new"
        try:
            new.write_text(json.dumps({"boot_id": self._boot_id, "since": since}))
            new.rename(self.state / _MISSING)
        except OSError as error:
            log.warning("event=missing-not-written error=%s", error.strerror)

    def _read_missing(self) -> dict[Key, float]:
        try:
            said = json.loads((self.state / _MISSING).read_text())
            if said["boot_id"] != self._boot_id:
                return {}
            since = {str(name): float(at) for name, at in said["since"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        names = {attempt_files.file_name(key): key for key in self._known}
        return {names[name]: at for name, at in since.items() if name in names}

    def _is_slurms_own(self, key: Key, job: SlurmJob) -> bool:
        """Return whether Slurm itself has cancelled a job: because the attempt had started before;
        because another has its id, which slurmctld had forgotten; or because it has ended on its
        node while slurmctld, which had forgotten the start, believed it to wait."""
        name = self._name(key)
        return job.is_cancelled and (
            self.starts.is_refused(name, job.id)
            or self.starts.is_anothers(name, job.id)
            or (not job.has_node and self.starts.first_start(name) is not None)
        )

    def _shows(self, key: Key, job: SlurmJob) -> None:
        each = self._submissions.get(key)
        if each is not None and not each.runs:
            self._end_submission(key)
        attempt = self._known[key]
        if attempt.submitted is None and key not in self._submissions:
            self._append(key, "submitted", {"slurm_id": job.id, "at_s": time.time()})
        is_over = job.is_over and key not in self._submissions
        if is_over and self._is_slurms_own(key, job):
            self._lose(key)
            return
        self._is_there(key)
        if is_over:
            began_s = self._known[key].created["at_s"]
            self._end(key, mapping.end_of(job, time.time(), time.monotonic(), began_s))
        elif job.has_started and self._known[key].running is None:
            self._append(key, "running", {"at_s": time.time()})
            self._report(key)

    def _see_waiting(self, key: Key, job: SlurmJob) -> None:
        """Let no job wait in Slurm for long. If it has started, slurmctld has forgotten that, and
        would start it again: that would be refused, but does not come while the node is closed, and
        slurmctld does not take the end that the job has meanwhile. Any other is taken back."""
        if job.state != "PENDING":
            self._waits_since.pop(key, None)
            return
        name, now = self._name(key), time.monotonic()
        has_started = self.starts.first_start(name) is not None
        is_up = self._known[key].running is not None
        since = self._waits_since.setdefault(key, now)
        due = since + (_WAITS_AGAIN_S if has_started else self.patience_s)
        if now < due:
            self._dues = sorted({*self._dues, due})
        elif has_started:
            node = self._nodes.get(self._known[key].created.get("node", ""))
            if self._all_away is None and node is not None and node.answers:
                log.warning("event=start-forgotten-by-slurm job=%d attempt=%d", *key)
                self._waits_since[key] = now + _AGAIN_S - _WAITS_AGAIN_S
                self._cancel([job], forced=True)
        # Once that is closed, it cannot start.
        elif key not in self._submissions and not is_up and self.starts.close(name):
            log.warning("event=waits-in-slurm job=%d attempt=%d", *key)
            # The attempt is over then, and `_take_list` cancels its job.
            text = f"Slurm has let it wait for {self.patience_s:g} s; {_LOOK_AT_NODE}"
            self._fail(key, failure(text, Shortage(JOB, "slurm", "EAGAIN")))

    def _end(self, key: Key, record: Record) -> None:
        if self._known[key].running is None:
            self._append(key, "running", {"at_s": time.time()})
        reach("slurm.before-end-record")
        self._append(key, "ended", record)
        self._is_there(key)
        self._signals.pop(key, None)
        self._report(key)

    # -- wishes ---------------------------------------------------------------------------------

    def _act(self, key: Key, wish: _Wish, job: SlurmJob | None) -> None:
        now = time.monotonic()
        is_live = job is not None and not job.is_over
        if wish.remove and self._may_remove(key, is_live=is_live):
            self._remove(key)
            return
        if self._known[key].is_over and not is_live:
            wish.terminate = wish.kill = wish.freeze = wish.thaw = False
        elif job is not None and is_live and job.state != "COMPLETING":
            if wish.kill or wish.remove:
                self._try(wish, now, lambda: self._cancel([job], forced=wish.tries % 2 == 0))
            elif wish.terminate:
                self._terminate(job)
                wish.terminate = False
            elif wish.freeze:
                if job.state == "SUSPENDED":
                    wish.freeze = False
                    self._tell("frozen", key)
                elif job.state == "RUNNING":
                    words = ("scontrol", "suspend", str(job.id))
                    self._try(wish, now, lambda: self._command(*words))
            elif wish.thaw:
                if job.state == "SUSPENDED":
                    words = ("scontrol", "resume", str(job.id))
                    self._try(wish, now, lambda: self._command(*words))
                elif job.state == "RUNNING":
                    wish.thaw = False
        if not (wish.terminate or wish.kill or wish.remove or wish.freeze or wish.thaw):
            del self._wishes[key]
        else:
            self._hurry(_AGAIN_S)

    def _try(self, wish: _Wish, now: float, action: Callable[[], None]) -> None:
        if now >= wish.due_mono_s:
            action()
            wish.tries += 1
            wish.due_mono_s = now + _AGAIN_S

    def _may_remove(self, key: Key, *, is_live: bool) -> bool:
        """Return whether nothing of the attempt is left, so that its file may go."""
        each = self._submissions.get(key)
        if is_live or (each is not None and (each.runs or each.failed is not None)):
            return False
        attempt = self._known[key]
        return attempt.is_over or attempt.submitted is None

    def _remove(self, key: Key) -> None:
        if key in self._submissions:
            self._end_submission(key)
        ended = self._known[key].ended or {}
        if ended.get("state") in mapping.GONE and "slurm_id" in ended:
            self.starts.free_id(self._name(key), ended["slurm_id"])
        reach("slurm.before-unlink")
        attempt_files.remove(self.attempts_fd, key)
        del self._known[key]
        del self._wishes[key]
        self._signals.pop(key, None)
        self._is_there(key)
        self._submitted_after.pop(key, None)
        self._noted_at.pop(key, None)
        self._waits_since.pop(key, None)
        self._tell("removed", key)

    def _terminate(self, job: SlurmJob) -> None:
        if job.has_started:
            self._scancel([job], "--signal=TERM", "--full")
        else:
            self._scancel([job])

    def _cancel(self, jobs: list[SlurmJob], *, forced: bool) -> None:
        """End jobs: with SIGKILL at once, if `forced`, those that have started."""
        self._scancel([j for j in jobs if forced and j.state == "RUNNING"], "--signal=KILL")
        self._scancel([j for j in jobs if not forced or j.state != "RUNNING"])

    def _scancel(self, jobs: list[SlurmJob], *options: str) -> None:
        """Run scancel for jobs, each with its name: scancel may wait for a slurmctld that has given
        the ids to others when it comes back."""
        for job in jobs:
            self._command("scancel", *options, f"--name={job.title}", str(job.id))

    def _send_signals(self, key: Key, job: SlurmJob | None) -> None:
        """Send the signals that were not sent: recorded first, so that none is sent twice."""
        if job is None or job.is_over or not job.has_started:
            return
        count, signals = self._signals.pop(key)
        signalled = self._known[key].signalled
        sent = 0 if signalled is None else signalled["count"]
        new = signals[-(count - sent) :] if count > sent else ()
        if not new:
            return
        attempt_files.note_signals(self.attempts_fd, key, count)
        self._read(key)
        for number in dict.fromkeys(new):
            self._scancel([job], f"--signal={number}", "--full")

    def _command(self, *words: str, then: Callable[[Answer], None] | None = None) -> None:
        """Run a command whose effect the next lists show."""

        def on_answer(answer: Answer) -> None:
            if then is not None:
                then(answer)
            if not answer.is_good:
                text = mapping.first_line(answer.complaint)
                log.warning("event=slurm-refuses command=%s error=%s", words[0], text)
            self._hurry()

        self._commands.run(words, on_answer)
