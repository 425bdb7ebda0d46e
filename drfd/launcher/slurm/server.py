"""The loop of the launcher for Slurm's nodes: it carries out orders by Slurm's commands.

All that is known of Slurm's jobs comes from one list of them, which is asked for at each event,
some moments after it, and in any case every `poll_s`. Events say only that something has happened:
one that is lost, repeated or forged changes nothing. An order acts on a list that was asked for
later than the order came.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Thread

from drfd.common.failpoints import reach
from drfd.common.journald import about
from drfd.common.signals import number_of
from drfd.launcher import attempt_files, protocol
from drfd.launcher.attempt_files import Key, Record, Records
from drfd.launcher.port import Port
from drfd.launcher.protocol import (
    ABOUT_ONE,
    Assignment,
    AttemptOrder,
    ExecOrder,
    LaunchOrder,
    ListOrder,
    Message,
    Order,
    RemoveFilesOrder,
    SignalOrder,
)
from drfd.launcher.runner.shortage import JOB, LAUNCHER, MACHINE, SPACE, Shortage, failure
from drfd.launcher.slurm import mapping
from drfd.launcher.slurm.commands import Answer, Commands, Greeting
from drfd.launcher.slurm.desired import AGAIN_S, Desired
from drfd.launcher.slurm.list_times import ListTimes
from drfd.launcher.slurm.mapping import Name, SlurmJob
from drfd.launcher.slurm.node_watch import NodeWatch
from drfd.launcher.slurm.records.attempts import Attempts
from drfd.launcher.slurm.records.missing import Missing
from drfd.launcher.slurm.records.start_notes import StartNotes
from drfd.launcher.slurm.submissions import Submissions
from drfd.launcher.slurm_root.requests import JOBS, SIGNAL
from drfd.launcher.system import process

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

_FORGOTTEN_BEFORE = "slurmctld has forgotten the job before its start, or given its id twice"
_LOOK_AT_NODE = "drf doctor tells what its node lacks there, if it lacks anything"
_TAKEN = "another job's attempt has its number here, from another journal perhaps"
_NOT_INSIDE = "commands run inside jobs of the controller's own machine alone"
_CONTROLS = "enforced by Slurm's cgroups, if its configuration says so (task/cgroup)"
_COUNTED = "counted; enforced on nodes with cgroup v2 that have drfd-disks as Slurm's Prolog"


@dataclass
class SlurmLauncher:
    """The state of the launcher, which `serve` keeps up to date until SIGTERM."""

    state: Path
    attempts_fd: int
    port: Port
    #: The connection to the root helper, and what it has said at first.
    helper: socket.socket
    greeting: Greeting
    starts: StartNotes
    #: Readable when the process that started this launcher is gone.
    keep_fd: int | None = None
    poll_s: float = 30.0
    #: How long Slurm may let a job wait.
    patience_s: float = 60.0
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _running: bool = True
    #: The exit code after `serve`.
    exit_code: int = 0
    _desired: dict[Key, Desired] = field(default_factory=dict)
    #: Signals that are to have been sent: how many in all, and the last of them.
    _signals: dict[Key, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    #: The last list that was asked for before sbatch had submitted an attempt.
    _submitted_after: dict[Key, int] = field(default_factory=dict)
    #: The last list that was asked for before an attempt's note of its end was seen.
    _noted_at: dict[Key, int] = field(default_factory=dict)
    #: Since when lists show each attempt as waiting.
    _waits_since: dict[Key, float] = field(default_factory=dict)
    _notes_due_mono_s: float = 0.0
    _is_away: bool = False

    def __post_init__(self) -> None:
        self._attempts = Attempts(self.state, self.attempts_fd, process.boot_id())
        self._times = ListTimes(self.poll_s)
        self._commands = Commands(
            self.helper, self._selector, on_done=self._times.schedule, on_lost=self._lose_helper
        )
        self._missing = Missing(self._times, self._commands.register)
        self._submissions = Submissions(
            self._commands, self._times, on_submitted=self._take_submitted, on_failed=self._fail
        )
        self._nodes = NodeWatch(
            self._commands, self._times, self._attempts.journals, self._report_nodes
        )

    def serve(self) -> None:
        self.port.open(self._selector, on_connect=self._hello, on_order=self._handle)
        self.greeting.events.setblocking(False)
        self._selector.register(self.greeting.events, selectors.EVENT_READ, self._on_event)
        process.watch_for_end(self._selector, self.keep_fd, self._quit)
        self._attempts.load()
        self._times.schedule()
        while self._running:
            for chosen, _ in self._selector.select(self._pause_s()):
                # An earlier handler of this round may have closed the descriptor.
                if chosen.fd in self._selector.get_map():
                    chosen.data()
            if self._nodes.knows_gate:
                self._submissions.begin(self._nodes.gate_fault)
            self._ask_for_list()
            self._nodes.ask()
            self.port.flush()

    def _pause_s(self) -> float | None:
        pauses = (each.pause_s() for each in (self._nodes, self._times))
        return min((pause for pause in pauses if pause is not None), default=None)

    def _on_event(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self.greeting.events.recv(_MOST_DATAGRAM)
        self._times.schedule()

    def _quit(self) -> None:
        self._running = False

    def _lose_helper(self) -> None:
        """End the process: the next one connects to the next helper."""
        log.error("event=helper-lost")
        self._running, self.exit_code = False, 1

    # -- orders ---------------------------------------------------------------------------------

    def _hello(self) -> Message:
        controls = {
            "cores": _CONTROLS,
            "memory": _CONTROLS,
            "read": _COUNTED,
            "write": _COUNTED,
            "processes": "not limited by drfd: Slurm's own limits hold",
        }
        return protocol.hello_report(
            protocol.Hello(
                kind="slurm",
                controls=controls,
                cores=dict.fromkeys(protocol.CORES_MODES, _CONTROLS),
                hiding=(False, "by Slurm's ConstrainDevices"),
                min_uid=self.greeting.min_uid,
                allowed_uids=self.greeting.allowed_uids,
            )
        )

    def _handle(self, command: str, order: Order, payload_fd: int) -> None:
        """Carry out an order. `payload_fd`, a LaunchOrder's, belongs to this method."""
        match order:
            case LaunchOrder() if command == protocol.LAUNCH:
                self._launch(Assignment(order, payload_fd))
            case LaunchOrder():
                os.close(payload_fd)
                self._add_order(protocol.REMOVE, order.key)
            case ExecOrder(number=number):
                self._send_report(protocol.EXEC, order.key, number=number, text=_NOT_INSIDE)
            case SignalOrder():
                # However many attempts are named that nobody knows, nothing is kept of them.
                if order.key in self._attempts:
                    self._signals[order.key] = order.count, order.signals
                    self._times.schedule()
            case RemoveFilesOrder(attempts):
                for each in attempts:
                    self._add_order(protocol.REMOVE, each.key)
            case ListOrder():
                self._report_all()
            case AttemptOrder() if command in ABOUT_ONE:
                self._add_order(command, order.key)
            case _:
                # No GPUs are measured on these nodes.
                pass

    def _send_report(self, kind: str, key: Key, **facts: object) -> None:
        self.port.send(protocol.attempt_report(kind, key, **facts))

    def _add_order(self, name: str, key: Key) -> None:
        attempt = self._attempts.get(key)
        if attempt is None and name != protocol.REMOVE:
            self._send_report("missing", key)
            return
        if attempt is not None and attempt.is_over and name != protocol.REMOVE:
            return
        self._desired.setdefault(key, Desired(self._times.count)).add(name, self._times.count)
        self._times.schedule()

    def _report_all(self) -> None:
        known, owners = sorted(self._attempts), {}
        for key in known:
            owners[attempt_files.file_name(key)] = self._attempts[key].owner.facts()
            self._report(key)
        self._report_nodes()
        self.port.send({"report": "listed", "known": known, "owners": owners})

    def _report_nodes(self) -> None:
        nodes = {name: node.facts() for name, node in self._nodes.nodes.items()}
        self.port.send({"report": "nodes", "away": self._nodes.all_away, "nodes": nodes})

    def _report(self, key: Key) -> None:
        """Report what the attempt file says."""
        attempt = self._attempts[key]
        owner = attempt.owner.facts()
        if attempt.launched is not None:
            self._send_report("launched", key, of=owner, **self._attempts.start(key))
        if attempt.launch_failed is not None:
            self._send_report("launch_failed", key, of=owner, **attempt.launch_failed)
        elif attempt.exited is not None:
            self._send_report("exited", key, of=owner, gone=True, **attempt.exited)

    # -- launches -------------------------------------------------------------------------------

    def _launch(self, assignment: Assignment) -> None:
        order = assignment.order
        key = order.key
        known = self._attempts.get(key)
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
        if len(self._attempts) >= _MOST_ATTEMPTS:
            text = f"{len(self._attempts)} jobs run or wait to be removed, the most that can be"
            self._refuse(assignment, text, Shortage(MACHINE, LAUNCHER))
            return
        after_list = self._times.count
        try:
            # Before the list, which holds the jobs of these journals alone.
            self._attempts.remember_journal(order.journal)
            # Slurm answers while the attempt file is written.
            self._times.schedule()
            self._ask_for_list()
            if known is None:
                self._attempts.create(key, assignment)
        except OSError as error:
            text = f"its attempt file cannot be made: {error.strerror}"
            self._refuse(assignment, text, Shortage(MACHINE, SPACE))
            return
        self._submissions.add(
            key, assignment, after_list=after_list, may_be_there=known is not None
        )

    def _refuse(self, assignment: Assignment, text: str, short: Shortage | None = None) -> None:
        assignment.close()
        self._send_report("launch_failed", assignment.order.key, **failure(text, short))

    def _take_submitted(self, key: Key, slurm_id: int) -> None:
        self._attempts.note_submitted(key, slurm_id)
        self._submitted_after[key] = self._times.count

    def _fail(self, key: Key, record: Record) -> None:
        self._attempts.append(key, "launch_failed", record)
        self._report(key)

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
            self._waits_since.clear()
            self._nodes.ask_soon()
        self._is_away = False
        found: dict[Name, list[SlurmJob]] = {}
        for job in listed:
            if job.name.journal in self._attempts.journals:
                found.setdefault(job.name, []).append(job)
        for key in list(self._attempts):
            self._compare(number, key, found)
        self._forget_notes()
        for name, jobs in found.items():
            attempt = self._attempts.get(name.key)
            is_ours = attempt is not None and self._attempts.name(name.key) == name
            for job in jobs:
                # One that is completing is being ended.
                is_at_end = job.is_over or job.state == "COMPLETING"
                if is_at_end or (is_ours and attempt and not attempt.is_over):
                    continue
                # A submission that arrived after all, or whose end was reported before.
                log.warning("event=stray-job job=%d slurm=%d", name.key[0], job.id)
                self._commands.end(job)
        for key in list(self._desired):
            if key not in self._attempts and number > self._desired[key].after_list:
                jobs = [job for name in found if name.key == key for job in found[name]]
                if all(job.is_over for job in jobs):
                    del self._desired[key]
                    self._send_report("removed", key)

    def _forget_notes(self) -> None:
        """Begin to remove old notes, of which there may be very many, if it is time for that."""
        now = time.monotonic()
        if now >= self._notes_due_mono_s:
            self._notes_due_mono_s = now + _FORGET_NOTES_S
            known = set(map(self._attempts.name, self._attempts))
            Thread(target=self.starts.forget_old, args=(known,), daemon=True).start()

    def _compare(self, number: int, key: Key, found: dict[Name, list[SlurmJob]]) -> None:
        """Bring an attempt up to date with a list."""
        attempt = self._attempts[key]
        job, others = self._chosen(key, found)
        for other in others:
            self._commands.end(other)
        if not attempt.is_over and not self._has_noted_end(number, key, job):
            if job is None:
                self._lacks(number, key, attempt)
            else:
                self._shows(key, job)
                self._limit_waiting(key, job)
        desired = self._desired.get(key)
        if desired is not None and number > desired.after_list:
            self._act(key, desired, job)
        if key in self._signals and key in self._attempts:
            self._send_signals(key, job)

    def _chosen(
        self, key: Key, found: dict[Name, list[SlurmJob]]
    ) -> tuple[SlurmJob | None, list[SlurmJob]]:
        """Return which job of a list is the attempt, and those that must go."""
        uid, name = self._attempts[key].created["uid"], self._attempts.name(key)
        # Any user can give a job of the user's own this name.
        return mapping.choose(job for job in found.get(name, []) if job.uid == uid)

    def _has_noted_end(self, number: int, key: Key, job: SlurmJob | None) -> bool:
        """Record the end of an attempt of which slurmctld, which was killed, has forgotten the end
        that it had reported before. Return whether that is so."""
        if job is not None and (job.is_over or job.state == "COMPLETING"):
            return False
        end = self.starts.end(self._attempts.name(key))
        # The list may have been asked for before that end.
        if end is None or number <= self._noted_at.setdefault(key, self._times.count):
            return False
        if self._submissions.runs(key):
            return False
        self._submissions.end(key)
        state, status = end
        log.warning("event=end-forgotten-by-slurm job=%d attempt=%d", *key)
        self._end(key, mapping.noted_end(state, status, time.time(), time.monotonic()))
        return True

    def _lacks(self, number: int, key: Key, attempt: Records) -> None:
        if key in self._submissions:
            failed = self._submissions.lacks(key, number)
            if failed is not None:
                self._end_failed_submission(key, failed)
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
        name = self._attempts.name(key)
        if not self.starts.close(name) and (slurm_id := self.starts.first_start(name)) is not None:
            self._attempts.note_submitted(key, slurm_id)
            return
        self._fail(key, failed)

    def _is_to_stop(self, key: Key) -> bool:
        """Return whether the controller wants the attempt to end, so that it orders it no more."""
        desired = self._desired.get(key)
        return desired is not None and desired.end in (protocol.TERMINATE, protocol.KILL)

    def _lose(self, key: Key) -> None:
        """Have an attempt that has not begun wait for another submission. Record an unknown end of
        any other, when no node can have a process of it any more."""
        if self._attempts[key].launched is None and self.starts.close(self._attempts.name(key)):
            self._missing.forget(key)
            self._fail(key, failure(_FORGOTTEN_BEFORE, Shortage(JOB, "slurm")))
        elif self._missing.is_gone(key):
            log.error("event=forgotten-by-slurm job=%d attempt=%d", *key, extra=about(job=key[0]))
            self._end(key, mapping.forgotten_end(time.time(), time.monotonic()))

    def _is_slurms_own(self, key: Key, job: SlurmJob) -> bool:
        """Return whether Slurm itself has cancelled a job: because the attempt had started before;
        because another has its id, which slurmctld had forgotten; or because it has ended on its
        node while slurmctld, which had forgotten the start, believed it to wait."""
        name = self._attempts.name(key)
        return job.is_cancelled and (
            self.starts.is_refused(name, job.id)
            or self.starts.is_anothers(name, job.id)
            or (not job.has_node and self.starts.first_start(name) is not None)
        )

    def _shows(self, key: Key, job: SlurmJob) -> None:
        if not self._submissions.runs(key):
            self._submissions.end(key)
        is_on_its_way = key in self._submissions
        if self._attempts[key].submitted is None and not is_on_its_way:
            self._attempts.note_submitted(key, job.id)
        is_over = job.is_over and not is_on_its_way
        if is_over and self._is_slurms_own(key, job):
            self._lose(key)
            return
        self._missing.forget(key)
        if is_over and self._is_taken_back(key, job):
            text = f"Slurm does not start it on its node; {_LOOK_AT_NODE}"
            self._fail(key, failure(text, Shortage(JOB, "slurm")))
        elif is_over:
            began_s = self._attempts[key].created["at_s"]
            self._end(key, mapping.end_of(job, time.time(), time.monotonic(), began_s))
        elif job.has_started and self._attempts[key].launched is None:
            self._attempts.note_launched(key)
            self._report(key)

    def _is_taken_back(self, key: Key, job: SlurmJob) -> bool:
        """Return whether Slurm has ended a job because its node has less than it needs, and no node
        has started the attempt or ever will."""
        if not job.is_unplaced or self._attempts[key].launched is not None:
            return False
        if not self.starts.close(self._attempts.name(key)):
            return False
        log.warning("event=unplaced-by-slurm job=%d attempt=%d", *key)
        return True

    def _limit_waiting(self, key: Key, job: SlurmJob) -> None:
        """Let no job wait in Slurm for long. If it has started, slurmctld has forgotten that, and
        would start it again: that would be refused, but does not come while the node is closed, and
        slurmctld does not take the end that the job has meanwhile. Any other is taken back."""
        if job.state != "PENDING":
            self._waits_since.pop(key, None)
            return
        name, now = self._attempts.name(key), time.monotonic()
        has_started = self.starts.first_start(name) is not None
        is_up = self._attempts[key].launched is not None
        since = self._waits_since.setdefault(key, now)
        due = since + (_WAITS_AGAIN_S if has_started else self.patience_s)
        if now < due:
            self._times.add(due)
        elif has_started:
            if self._nodes.answers(self._attempts[key].created.get("node", "")):
                log.warning("event=start-forgotten-by-slurm job=%d attempt=%d", *key)
                self._waits_since[key] = now + AGAIN_S - _WAITS_AGAIN_S
                self._commands.end(job)
        # Once that is closed, it cannot start.
        elif key not in self._submissions and not is_up and self.starts.close(name):
            log.warning("event=waits-in-slurm job=%d attempt=%d", *key)
            # The attempt is over then, and `_take_list` cancels its job.
            text = f"Slurm has let it wait for {self.patience_s:g} s; {_LOOK_AT_NODE}"
            self._fail(key, failure(text, Shortage(JOB, "slurm")))

    def _end(self, key: Key, record: Record) -> None:
        if self._attempts[key].launched is None:
            self._attempts.note_launched(key)
        reach("slurm.before-end-record")
        self._attempts.append(key, "exited", record)
        self._missing.forget(key)
        self._signals.pop(key, None)
        self._report(key)

    # -- desired states -------------------------------------------------------------------------

    def _act(self, key: Key, desired: Desired, job: SlurmJob | None) -> None:
        live = None if job is None or job.is_over else job
        if desired.remove and live is None and self._may_remove(key):
            self._remove(key)
            return
        if live is not None:
            desired.pursue(live, self._commands, partial(self._send_report, "frozen", key))
        elif self._attempts[key].is_over:
            desired.keep_removal_only()
        if desired.is_reached:
            del self._desired[key]
        else:
            self._times.schedule(AGAIN_S)

    def _may_remove(self, key: Key) -> bool:
        """Return whether nothing is left of an attempt that Slurm does not show as live."""
        if self._submissions.is_doubtful(key):
            return False
        attempt = self._attempts[key]
        return attempt.is_over or attempt.submitted is None

    def _remove(self, key: Key) -> None:
        self._submissions.end(key)
        exited = self._attempts[key].exited or {}
        if exited.get("state") in mapping.GONE and "slurm_id" in exited:
            self.starts.free_id(self._attempts.name(key), exited["slurm_id"])
        self._attempts.remove(key)
        del self._desired[key]
        self._missing.forget(key)
        for about_it in (self._signals, self._submitted_after, self._noted_at, self._waits_since):
            about_it.pop(key, None)
        self._send_report("removed", key)

    def _send_signals(self, key: Key, job: SlurmJob | None) -> None:
        """Send the signals that were not sent: recorded first, so that none is sent twice."""
        if job is None or job.is_over or not job.has_started:
            return
        count, signals = self._signals.pop(key)
        new = self._attempts[key].unsent(count, signals)
        if not new:
            return
        self._attempts.note_signals(key, count)
        for number in new:
            # Slurm does not know the processes of what is one job script to it.
            self._commands.act(SIGNAL, job, number_of(number))
