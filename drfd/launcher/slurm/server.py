"""The loop of the launcher for Slurm's nodes: it carries out orders by Slurm's commands.

All that is known of Slurm's jobs comes from one list of them, which is asked for at each event,
some moments after it, and in any case every `poll_s`. Events say only that something has happened:
one that is lost, repeated or forged changes nothing. An order acts on a list that was asked for
later than the order came. An outcome that is unknown is looked up: sbatch may have failed after
slurmctld has taken the job. So no attempt is submitted whose name has not been missing in a list
first, and none counts as not submitted whose name has not been missing in some.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Thread

from drfd.common.failpoints import reach
from drfd.common.journald import about
from drfd.common.signals import number_of
from drfd.common.units import is_number
from drfd.launcher import attempt_files, protocol
from drfd.launcher.attempt import Attempt, AttemptEvent, AttemptState
from drfd.launcher.attempt_files import Key, Record, Records
from drfd.launcher.performer import Performer
from drfd.launcher.port import Port
from drfd.launcher.protocol import (
    Assignment,
    ExecOrder,
    Hello,
    LaunchOrder,
    ListOrder,
    Order,
    encode,
)
from drfd.launcher.runner.shortage import JOB, LAUNCHER, MACHINE, SPACE, Shortage, failure
from drfd.launcher.slurm import mapping
from drfd.launcher.slurm.commands import Answer, Commands
from drfd.launcher.slurm.mapping import Name, SlurmJob
from drfd.launcher.slurm.node_watch import ListTimes, NodeWatch
from drfd.launcher.slurm.start_notes import StartNotes
from drfd.launcher.slurm_root.requests import END, JOBS, RESUME, SIGNAL, SUBMIT, SUSPEND
from drfd.launcher.system import process
from drfd.linux.kernel_files import opened
from drfd.linux.sealed import seal

log = logging.getLogger("drfd.launcher")

#: Seconds that slurmctld must take a job for waiting that has started before, until it is ended: by
#: then Slurm has noticed whether its node answers, and has ended it itself if the node is open.
_WAITS_AGAIN_S = 10.0
#: Seconds between two lists while slurmctld does not answer.
_AWAY_S = 1.0
#: Seconds between two removals of old notes.
_FORGET_NOTES_S = 3600.0
_MOST_ATTEMPTS = 20_000
_MOST_DATAGRAM = 4096
#: How many lists must lack a name after a submission with an unknown outcome, and the pause between
#: them: what sbatch has sent may still be on its way.
_LOOKS, _LOOK_PAUSE_S = 2, 2.0
#: Submissions that run at a time.
_AT_ONCE = 8
#: Seconds between two tries to bring something about.
_AGAIN_S = 2.0
#: Seconds after the nodes were asked to register in which all lists must lack an attempt before its
#: end counts as unknown: Slurm's MessageTimeout, by default. Within it they have registered and
#: ended what slurmctld does not know, so that another attempt does not run beside it.
_FORGOTTEN_S = 10.0
#: Least seconds between two orders to register.
_REGISTER_S = 5.0
#: The file with the journals whose jobs are this launcher's.
_JOURNALS = "instances"

_FORGOTTEN_BEFORE = "slurmctld has forgotten the job before its start, or given its id twice"
_LOOK_AT_NODE = "drf doctor tells what its node lacks there, if it lacks anything"
_NOT_SUBMITTED = "its launcher was restarted before Slurm had the job"
_NOT_INSIDE = "commands run inside jobs of the controller's own machine alone"
_CONTROLS = "enforced by Slurm's cgroups, if its configuration says so (task/cgroup)"
_COUNTED = "counted; enforced on nodes with cgroup v2 that have drfd-disks as Slurm's Prolog"


#: States in which something is tried until lists show it.
_UNFINISHED = (
    *(AttemptState.FREEZING, AttemptState.THAWING),
    *(AttemptState.KILLING, AttemptState.REMOVING),
)


@dataclass(slots=True, eq=False)
class NodeAttempt(Attempt):
    """An attempt on a node, and what its launcher keeps for it."""

    #: What its file says; None if it has none.
    records: Records | None = None
    #: A list says that it is missing, or how to go on with it, if it was asked for after this one.
    after_list: int = 0
    #: Number of lists that must lack it, from a moment on, until what follows is sure: that it may
    #: be submitted; or `failed`, which is why it was not.
    looks: int = 0
    looks_from_mono_s: float = 0.0
    failed: Record | None = None
    #: True while sbatch runs.
    is_submitting: bool = False
    #: Since when lists show it as waiting, and since when all nodes were asked to register while
    #: lists lacked it (monotonic clock).
    waits_since_mono_s: float | None = None
    missing_since_mono_s: float | None = None
    #: The last list that was asked for before the note of its end was seen.
    noted_after: int | None = None
    #: When the next try is due (monotonic clock), and how many there were.
    due_mono_s: float = 0.0
    tries: int = 0

    def begin(self) -> None:
        self.due_mono_s, self.tries = 0.0, 0

    @property
    def known(self) -> Records:
        assert self.records is not None
        return self.records

    @property
    def name(self) -> Name:
        """The name by which Slurm's jobs tell that they are this attempt."""
        return Name(self.known.owner.journal or "", self.key)

    def is_due(self) -> bool:
        """Return whether it is time for another try, and count it."""
        now = time.monotonic()
        if now < self.due_mono_s:
            return False
        self.tries += 1
        self.due_mono_s = now + _AGAIN_S
        return True


@dataclass
class SlurmLauncher(Performer[NodeAttempt]):
    """The state of the launcher, which `serve` keeps up to date until SIGTERM.

    Unlike a local job, one on a node outlives a power cut of this machine: therefore each record is
    on the disk before anything follows from it."""

    state: Path
    attempts_fd: int
    port: Port
    #: The connection to the root helper, and the socket for datagrams of Slurm's scripts.
    helper: socket.socket
    events: socket.socket
    starts: StartNotes
    keep_fd: int | None = None
    poll_s: float = 30.0
    #: How long Slurm may let a job wait.
    patience_s: float = 60.0
    _boot_id: str = field(default_factory=process.boot_id)
    #: The exit code after `serve`.
    exit_code: int = 0
    #: The journals whose jobs are this launcher's.
    _journals: set[str] = field(default_factory=set)
    #: Those that may be submitted, and the number of those that are being.
    _submittable: deque[NodeAttempt] = field(default_factory=deque)
    _submitting: int = 0
    #: The list at which all nodes were last asked to register, and when.
    _registered_at: int = -1
    _registered_mono_s: float = float("-inf")
    _notes_due_mono_s: float = 0.0
    _is_away: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._times = ListTimes(self.poll_s)
        self._commands = Commands(
            self.helper, self._selector, on_done=self._times.schedule, on_lost=self._lose_helper
        )
        self._nodes = NodeWatch(self._commands, self._times, self._report_nodes)

    def serve(self) -> None:
        self.port.open(self._selector, on_connect=self._hello, on_order=self._handle)
        self.events.setblocking(False)
        self._selector.register(self.events, selectors.EVENT_READ, self._on_event)
        self._adopt()
        self._run((self._nodes, self._times), self._turn)

    def _turn(self) -> None:
        self._submit()
        self._ask_for_list()
        self._nodes.ask()

    def _on_event(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self.events.recv(_MOST_DATAGRAM)
        self._times.schedule()

    def _lose_helper(self) -> None:
        """End the process: the next one connects to the next helper."""
        log.error("event=helper-lost")
        self._running, self.exit_code = False, 1

    def _adopt(self) -> None:
        """Take over what an earlier launcher has left."""
        with suppress(FileNotFoundError):
            self._journals.update((self.state / _JOURNALS).read_text().split())
        for key in attempt_files.keys(self.attempts_fd):
            records = attempt_files.read(self.attempts_fd, key)
            if records is None:
                # Its creation was interrupted, so nothing was submitted.
                attempt_files.remove(self.attempts_fd, key)
                continue
            attempt = self._attempts[key] = self._new(key)
            attempt.state, attempt.records = AttemptState.STARTING, records
            if records.is_over:
                self._happen(attempt, AttemptEvent.ENDED)
            elif records.launched is not None:
                self._happen(attempt, AttemptEvent.RELEASED)
            elif records.submitted is None:
                self._look_again(attempt, failure(_NOT_SUBMITTED, Shortage(JOB, "slurm")))
        self._times.schedule()

    # -- orders ---------------------------------------------------------------------------------

    def _hello(self) -> Hello:
        controls = {
            "cores": _CONTROLS,
            "memory": _CONTROLS,
            "read": _COUNTED,
            "write": _COUNTED,
            "processes": "not limited by drfd: Slurm's own limits hold",
        }
        return Hello(
            kind="slurm",
            controls=controls,
            cores=dict.fromkeys(protocol.CORES_MODES, _CONTROLS),
            hiding=(False, "by Slurm's ConstrainDevices"),
            # Users are told by the local launcher; the helper refuses.
            min_uid=0,
            allowed_uids=[],
        )

    def _handle(self, order: Order, payload_fd: int) -> None:
        """Carry out an order. `payload_fd`, a LaunchOrder's, belongs to this method."""
        match order:
            case LaunchOrder(is_notice=True):
                os.close(payload_fd)
                self._happen(self._attempt(order.key), AttemptEvent.REMOVE)
            case LaunchOrder():
                self._launch(Assignment(order, payload_fd))
            case ExecOrder(number=number):
                self._tell(protocol.EXEC, self._attempt(order.key), number=number, text=_NOT_INSIDE)
            case ListOrder():
                self._list()
            case _:
                # No GPUs are measured on these nodes.
                self._order(order)

    def _new(self, key: Key) -> NodeAttempt:
        return NodeAttempt(key)

    def _read(self, attempt: NodeAttempt) -> Records | None:
        return attempt.records

    def _list(self) -> None:
        known, owners = sorted(self._attempts), {}
        for key in known:
            attempt = self._attempts[key]
            if attempt.records is not None:
                owners[attempt_files.file_name(key)] = attempt.records.owner.facts()
                self._report(attempt)
        self._report_nodes()
        self.port.send({"report": "listed", "known": known, "owners": owners})

    def _report_nodes(self) -> None:
        watch = self._nodes
        self.port.send({"report": "nodes", "away": watch.all_away, "nodes": watch.nodes})

    def _report(self, attempt: NodeAttempt, records: Records | None = None) -> None:
        """Report what the attempt file says."""
        records = records or attempt.known
        owner = records.owner.facts()
        if records.launched is not None:
            # The file may be of an earlier boot of this machine, which the node has outlived.
            at_s, mono_s = records.created["at_s"], records.created["mono_s"]
            if records.created["boot_id"] != self._boot_id:
                mono_s = time.monotonic() - max(0.0, time.time() - at_s)
            self._tell("launched", attempt, of=owner, at_s=at_s, mono_s=mono_s)
        if records.launch_failed is not None:
            self._tell("launch_failed", attempt, of=owner, **records.launch_failed)
        elif records.exited is not None:
            self._tell("exited", attempt, of=owner, gone=True, **records.exited)

    def _clear(self, attempt: NodeAttempt, _: Records | None) -> None:
        """A job that is over holds nothing on its node."""
        if attempt.known.exited is not None:
            self._happen(attempt, AttemptEvent.CLEARED)

    def _pursue(self, attempt: NodeAttempt) -> None:
        """Have the next list that is asked for say how to go on."""
        attempt.after_list, attempt.due_mono_s = self._times.count, 0.0
        self._times.schedule()

    # -- launches -------------------------------------------------------------------------------

    def _admit(self, attempt: NodeAttempt) -> None:
        if (count := len(self._attempts) - 1) >= _MOST_ATTEMPTS:
            text = f"{count} jobs run or wait to be removed, the most that can be"
            self._refuse(attempt, failure(text, Shortage(MACHINE, LAUNCHER)))
            return
        assert attempt.pending is not None
        order = attempt.pending.order
        self._pursue(attempt)
        attempt.looks, attempt.failed = 1, None
        try:
            # Before the list, which holds the jobs of these journals alone.
            self._remember_journal(order.journal)
            # Slurm answers while the attempt file is written.
            self._ask_for_list()
            if attempt.records is None:
                self._create(attempt, order)
        except OSError as error:
            text = f"its attempt file cannot be made: {error.strerror}"
            self._refuse(attempt, failure(text, Shortage(MACHINE, SPACE)))

    def _refuse(self, attempt: NodeAttempt, why: Record) -> None:
        """Report that an attempt is not launched, of which Slurm has nothing."""
        self._put(attempt, None)
        self._unlink(attempt)
        self._tell("launch_failed", attempt, **why)
        self._happen(attempt, AttemptEvent.REFUSED)

    def _cancel(self, attempt: NodeAttempt) -> None:
        if attempt.state is AttemptState.UNKNOWN:
            self._unlink(attempt)
        super()._cancel(attempt)

    def _remember_journal(self, journal: str) -> None:
        """Take the jobs of this journal for this launcher's from now on. Raises OSError."""
        if journal in self._journals:
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with opened(self.state / _JOURNALS, flags, 0o600) as fd:
            os.write(fd, f"{journal}\n".encode())
            os.fsync(fd)
        self._journals.add(journal)

    def _create(self, attempt: NodeAttempt, order: LaunchOrder) -> None:
        """Make the attempt file. Raises OSError; there is none then."""
        reach("slurm.before-attempt-file")
        created = attempt_files.created_record(order.owner, self._boot_id, None)
        created["node"] = order.node
        try:
            fd = attempt_files.create(self.attempts_fd, attempt.key, created)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            os.fsync(self.attempts_fd)
        except OSError:
            attempt_files.remove(self.attempts_fd, attempt.key)
            raise
        attempt.records = Records(created)

    def _append(self, attempt: NodeAttempt, kind: str, record: Record) -> None:
        """Add a record to the file of an attempt."""
        attempt_files.add(self.attempts_fd, attempt.key, kind, record, is_synced=True)
        attempt.records = replace(attempt.known, **{kind: record})

    def _submit(self) -> None:
        """Submit those of which lists have shown nothing. With a fault of Slurm's none is given to
        it."""
        while self._nodes.knows_gate and self._submittable and self._submitting < _AT_ONCE:
            attempt, fault = self._submittable.popleft(), self._nodes.gate_fault
            if attempt.state is not AttemptState.WAITING or attempt.looks:
                continue
            if fault is not None:
                self._refuse(attempt, failure(fault, Shortage(JOB, "slurm")))
            else:
                self._happen(attempt, AttemptEvent.READY)

    def _start(self, attempt: NodeAttempt) -> None:
        """Have the helper submit an attempt."""
        reach("slurm.before-submission")
        assert attempt.pending is not None
        try:
            order_fd = seal(encode(attempt.pending.order))
            try:
                self._commands.run(
                    SUBMIT, partial(self._submitted, attempt),
                    fds=(order_fd, attempt.pending.payload_fd),
                )  # fmt: skip
            finally:
                os.close(order_fd)
        except OSError as error:
            text = f"sbatch cannot be run: {error.strerror}"
            self._look_again(attempt, failure(text, Shortage(MACHINE, "processes")))
        else:
            attempt.is_submitting = True
            self._submitting += 1
        self._put(attempt, None)

    def _submitted(self, attempt: NodeAttempt, answer: Answer) -> None:
        reach("slurm.after-submission")
        attempt.is_submitting = False
        self._submitting -= 1
        number = answer.output.strip().split(";")[0]
        if not answer.was_run:
            # There is nothing to look for.
            self._fail(attempt, _why(answer))
        elif answer.is_good and is_number(number):
            self._note_submitted(attempt, int(number))
        else:
            complaint = mapping.first_line(answer.complaint)
            # That job alone waits: the controller's own machine goes on.
            waits = answer.code is None or mapping.may_pass(answer.complaint)
            text = f"Slurm does not take the job: {complaint or 'no reason'}"
            self._look_again(attempt, failure(text, Shortage(JOB, "slurm") if waits else None))

    def _note_submitted(self, attempt: NodeAttempt, slurm_id: int) -> None:
        attempt.failed = None
        self._append(attempt, "submitted", {"slurm_id": slurm_id, "at_s": time.time()})
        attempt.after_list = self._times.count
        self._times.schedule()

    def _look_again(self, attempt: NodeAttempt, failed: Record) -> None:
        """Look whether Slurm has taken an attempt although sbatch says otherwise."""
        attempt.failed, attempt.looks = failed, _LOOKS
        attempt.after_list, attempt.looks_from_mono_s = self._times.count, time.monotonic()
        self._times.schedule(_LOOK_PAUSE_S, 2 * _LOOK_PAUSE_S)

    def _fail(self, attempt: NodeAttempt, why: Record) -> None:
        self._append(attempt, "launch_failed", why)
        self._happen(attempt, AttemptEvent.ENDED)

    # -- lists ----------------------------------------------------------------------------------

    def _ask_for_list(self) -> None:
        number = self._times.begin()
        if number is not None:
            self._commands.run(JOBS, partial(self._take_list, number))

    def _take_list(self, number: int, answer: Answer) -> None:
        self._times.end()
        listed = mapping.read_jobs(answer.output) if answer.is_good else None
        if listed is None:
            if answer.is_good:
                answer = replace(answer, code=None, complaint="its list names a job twice")
            if not self._is_away:
                log.error("event=slurm-away error=%s", mapping.first_line(answer.complaint))
            self._is_away = True
            self._nodes.note_failure(answer)
            self._times.add(time.monotonic() + _AWAY_S)
            return
        if self._is_away:
            log.info("event=slurm-back")
            for attempt in self._attempts.values():
                attempt.waits_since_mono_s = None
            self._nodes.ask_soon()
        self._is_away = False
        found: dict[Key, list[SlurmJob]] = {}
        for job in listed:
            if job.name.journal in self._journals:
                found.setdefault(job.name.key, []).append(job)
        for key, attempt in list(self._attempts.items()):
            self._compare(number, attempt, found.pop(key, []))
        for jobs in found.values():
            self._end_strays(jobs)
        self._forget_notes()

    def _end_strays(self, jobs: Iterable[SlurmJob]) -> None:
        """End jobs that are no attempt, as a submission that arrived after all, or a second one."""
        for job in jobs:
            # One that is completing is being ended.
            if not job.is_over and job.state != "COMPLETING":
                log.warning("event=stray-job job=%d slurm=%d", job.name.key[0], job.id)
                self._commands.end(job)

    def _forget_notes(self) -> None:
        """Begin to remove old notes, of which there may be very many, if it is time for that."""
        now = time.monotonic()
        if now >= self._notes_due_mono_s:
            self._notes_due_mono_s = now + _FORGET_NOTES_S
            known = {each.name for each in self._attempts.values() if each.records is not None}
            Thread(target=self.starts.forget_old, args=(known,), daemon=True).start()

    def _compare(self, number: int, attempt: NodeAttempt, jobs: list[SlurmJob]) -> None:
        """Bring an attempt up to date with the jobs that a list shows under its key."""
        job = None
        if attempt.records is not None:
            # Any user can give a job of the user's own this name.
            uid, name = attempt.known.created["uid"], attempt.name
            job = mapping.choose(each for each in jobs if (each.uid, each.name) == (uid, name))
            self._end_strays(each for each in jobs if each is not job)
            if not attempt.known.is_over and not self._has_noted_end(number, attempt, job):
                if job is None:
                    self._lacks(number, attempt)
                else:
                    self._shows(attempt, job)
                    self._limit_waiting(attempt, job)
            jobs = [] if job is None else [job]
        live = [each for each in jobs if not each.is_over]
        if attempt.state in (AttemptState.ENDED, AttemptState.BARE):
            self._end_strays(live)
        elif number > attempt.after_list:
            self._go_on(attempt, live)

    def _has_noted_end(self, number: int, attempt: NodeAttempt, job: SlurmJob | None) -> bool:
        """Record the end of an attempt of which slurmctld, which was killed, has forgotten the end
        that it had reported before. Return whether that is so."""
        if attempt.is_submitting:
            return False
        if job is not None and (job.is_over or job.state == "COMPLETING"):
            return False
        if (end := self.starts.end(attempt.name)) is None:
            return False
        if attempt.noted_after is None:
            # The list may have been asked for before that end.
            attempt.noted_after = self._times.count
        if number <= attempt.noted_after:
            return False
        log.warning("event=end-forgotten-by-slurm job=%d attempt=%d", *attempt.key)
        self._end(attempt, mapping.noted_end(*end, time.time(), time.monotonic()))
        return True

    def _lacks(self, number: int, attempt: NodeAttempt) -> None:
        now = time.monotonic()
        if attempt.is_submitting or number <= attempt.after_list:
            return
        if attempt.looks > 0:
            if now < attempt.looks_from_mono_s:
                return
            attempt.looks -= 1
            attempt.after_list, attempt.looks_from_mono_s = number, now + _LOOK_PAUSE_S
            if attempt.looks > 0:
                self._times.schedule(_LOOK_PAUSE_S)
                return
            if attempt.state is AttemptState.WAITING:
                self._submittable.append(attempt)
        if attempt.known.submitted is not None or attempt.failed is not None:
            self._lose(attempt)

    def _take_back(self, attempt: NodeAttempt, event: str, text: str) -> bool:
        """Have an attempt that has not begun wait for another submission, and keep it from starting
        if it arrives late: another may run by then. Return whether that could be done."""
        if attempt.is_submitting or attempt.known.launched is not None:
            return False
        if not self.starts.close(attempt.name):
            return False
        log.warning("event=%s job=%d attempt=%d", event, *attempt.key)
        self._fail(attempt, attempt.failed or failure(text, Shortage(JOB, "slurm")))
        return True

    def _lose(self, attempt: NodeAttempt) -> None:
        """Take back an attempt that has not begun. Record an unknown end of any other, when no node
        can have a process of it any more."""
        if self._take_back(attempt, "not-in-slurm", _FORGOTTEN_BEFORE):
            return
        has_started = attempt.known.launched or self.starts.first_start(attempt.name) is not None
        if attempt.failed is not None and not has_started:
            self._fail(attempt, attempt.failed)
        elif self._is_gone(attempt):
            job = about(job=attempt.key[0])
            log.error("event=forgotten-by-slurm job=%d attempt=%d", *attempt.key, extra=job)
            self._end(attempt, mapping.forgotten_end(time.time(), time.monotonic()))

    def _is_gone(self, attempt: NodeAttempt) -> bool:
        """Return whether no node can have a process any more of an attempt that the present list
        lacks. If not, a list is asked for when that may be so.

        slurmctld forgets its last seconds when it is killed. A node goes on with a job until it
        registers and hears that slurmctld does not know it. So the nodes are asked to register,
        and the end is unknown some seconds after that. The next launcher asks and waits again."""
        now = time.monotonic()
        if attempt.missing_since_mono_s is None:
            # slurmctld reads its configuration again then, and refuses some requests meanwhile: so
            # the nodes are asked rarely.
            due_mono_s = self._registered_mono_s + _REGISTER_S
            if self._registered_at != self._times.count:
                if now < due_mono_s:
                    self._times.schedule(due_mono_s - now)
                    return False
                self._registered_at, self._registered_mono_s = self._times.count, now
                self._commands.register(partial(self._take_registration, now))
            attempt.missing_since_mono_s = now
        if now < attempt.missing_since_mono_s + _FORGOTTEN_S:
            self._times.schedule(_FORGOTTEN_S)
            return False
        return True

    def _take_registration(self, asked_mono_s: float, answer: Answer) -> None:
        for attempt in () if answer.is_good else self._attempts.values():
            # Where Slurm refuses it, the wait begins again.
            if (attempt.missing_since_mono_s or 0.0) >= asked_mono_s:
                attempt.missing_since_mono_s = None

    def _is_slurms_own(self, attempt: NodeAttempt, job: SlurmJob) -> bool:
        """Return whether Slurm itself has cancelled a job: because the attempt had started before;
        because another has its id, which slurmctld had forgotten; or because it has ended on its
        node while slurmctld, which had forgotten the start, believed it to wait."""
        name = attempt.name
        return job.is_cancelled and (
            self.starts.is_refused(name, job.id)
            or self.starts.is_anothers(name, job.id)
            or (not job.has_node and self.starts.first_start(name) is not None)
        )

    def _shows(self, attempt: NodeAttempt, job: SlurmJob) -> None:
        self._happen(attempt, AttemptEvent.FOUND)
        is_over = job.is_over and not attempt.is_submitting
        if attempt.known.submitted is None and not attempt.is_submitting:
            self._note_submitted(attempt, job.id)
        if is_over and self._is_slurms_own(attempt, job):
            self._lose(attempt)
            return
        attempt.missing_since_mono_s = None
        text = f"Slurm does not start it on its node; {_LOOK_AT_NODE}"
        if is_over and job.is_unplaced and self._take_back(attempt, "unplaced-by-slurm", text):
            return
        if is_over:
            began_s = attempt.known.created["at_s"]
            self._end(attempt, mapping.end_of(job, time.time(), time.monotonic(), began_s))
        elif job.has_started and attempt.known.launched is None:
            self._append(attempt, "launched", {"at_s": time.time()})
            self._happen(attempt, AttemptEvent.RELEASED)

    def _limit_waiting(self, attempt: NodeAttempt, job: SlurmJob) -> None:
        """Let no job wait in Slurm for long. If it has started, slurmctld has forgotten that, and
        would start it again: that would be refused, but does not come while the node is closed, and
        slurmctld does not take the end that the job has meanwhile. Any other is taken back."""
        if job.state != "PENDING":
            attempt.waits_since_mono_s = None
            return
        now = time.monotonic()
        has_started = self.starts.first_start(attempt.name) is not None
        if attempt.waits_since_mono_s is None:
            attempt.waits_since_mono_s = now
        due = attempt.waits_since_mono_s + (_WAITS_AGAIN_S if has_started else self.patience_s)
        if now < due:
            self._times.add(due)
        elif has_started:
            if self._nodes.answers(attempt.known.created.get("node", "")):
                log.warning("event=start-forgotten-by-slurm job=%d attempt=%d", *attempt.key)
                attempt.waits_since_mono_s = now + _AGAIN_S - _WAITS_AGAIN_S
                self._commands.end(job)
        else:
            # The attempt is over then, and its job a stray one.
            text = f"Slurm has let it wait for {self.patience_s:g} s; {_LOOK_AT_NODE}"
            self._take_back(attempt, "waits-in-slurm", text)

    def _end(self, attempt: NodeAttempt, record: Record) -> None:
        if attempt.known.launched is None:
            self._append(attempt, "launched", {"at_s": time.time()})
        reach("slurm.before-end-record")
        self._append(attempt, "exited", record)
        self._hush(attempt)
        self._happen(attempt, AttemptEvent.ENDED)

    # -- what is going on -----------------------------------------------------------------------

    def _go_on(self, attempt: NodeAttempt, live: Sequence[SlurmJob]) -> None:
        """Do the next thing with those of an attempt's jobs in Slurm that are not over."""
        for job in live:
            if job.state != "COMPLETING":
                self._act(attempt, job)
        if not live and attempt.state is AttemptState.REMOVING:
            # Slurm may have a job that no list has shown yet.
            is_sure = not attempt.is_submitting and attempt.failed is None
            records = attempt.records
            if records is None or records.is_over or (is_sure and records.submitted is None):
                self._unlink(attempt)
                is_last = attempt.pending is None
                self._happen(attempt, AttemptEvent.CLEARED if is_last else AttemptEvent.REPLACED)
        if attempt.state in _UNFINISHED and attempt.key in self._attempts:
            self._times.schedule(_AGAIN_S)

    def _act(self, attempt: NodeAttempt, job: SlurmJob) -> None:
        if job.has_started and attempt.signals is not None:
            self._send_signals(attempt, job, *attempt.signals)
        if attempt.terminates:
            attempt.terminates = False
            if job.has_started:
                self._commands.act(SIGNAL, job, signal.SIGTERM)
            else:
                self._commands.act(END, job)
        state = attempt.state
        if state in (AttemptState.KILLING, AttemptState.REMOVING):
            if attempt.is_due():
                # By SIGKILL and by cancelling in turn.
                self._commands.end(job) if attempt.tries % 2 else self._commands.act(END, job)
        elif state is AttemptState.FREEZING and job.state == "SUSPENDED":
            self._happen(attempt, AttemptEvent.FROZEN)
        elif state is AttemptState.THAWING and job.state == "RUNNING":
            self._happen(attempt, AttemptEvent.THAWED)
        elif state in _UNFINISHED and job.state in ("RUNNING", "SUSPENDED") and attempt.is_due():
            self._commands.act(SUSPEND if state is AttemptState.FREEZING else RESUME, job)

    def _send_signals(
        self, attempt: NodeAttempt, job: SlurmJob, count: int, signals: tuple[int, ...]
    ) -> None:
        """Send the signals that were not sent: recorded first, so that none is sent twice."""
        attempt.signals = None
        if new := attempt.known.unsent(count, signals):
            attempt_files.note_signals(self.attempts_fd, attempt.key, count)
            attempt.records = replace(attempt.known, signalled={"count": count})
        for number in new:
            # Slurm does not know the processes of what is one job script to it.
            self._commands.act(SIGNAL, job, number_of(number))

    def _unlink(self, attempt: NodeAttempt) -> None:
        if attempt.records is None:
            return
        exited = attempt.known.exited or {}
        if exited.get("state") in mapping.GONE and "slurm_id" in exited:
            self.starts.free_id(attempt.name, exited["slurm_id"])
        reach("slurm.before-unlink")
        attempt_files.remove(self.attempts_fd, attempt.key)
        attempt.records = attempt.failed = None


def _why(answer: Answer) -> Record:
    """Return the `launch_failed` record of a submission that the helper has not begun."""
    try:
        record: Record = json.loads(answer.complaint)
    except ValueError:
        # What prepares it was killed, took too long, or was short of something.
        log.error("event=not-prepared error=%s", answer.complaint.strip().rpartition("\n")[2][:500])
        return failure("its submission could not be prepared", Shortage(JOB, "slurm"))
    return record
