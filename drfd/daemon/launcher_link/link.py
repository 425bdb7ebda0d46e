"""The links to launchers: one connection at a time to each, which carries orders and reports.

On every new connection the launcher lists all attempts that it knows, the ledger is reconciled with
the list, and every effect that is still owed is sent again, so a lost connection does no harm.

A link is in one of three states (`MOVES`); only in the last one are orders for jobs sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from drfd.common.errors import HostError, Unavailable
from drfd.common.failpoints import reach
from drfd.common.journald import about
from drfd.common.owner import Owner
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.outcome import judge_gpu_memory
from drfd.core.decisions.reconciliation import AttemptKey, leftovers, loss_by_boot, missing_attempts
from drfd.core.model import effects
from drfd.core.model.job import Job, JobState, Whose, owner_of
from drfd.daemon.engine.engine import ALL_NODES, NO_NODES, Engine, Nodes, Work
from drfd.daemon.launcher_link import messages
from drfd.daemon.launcher_link.device_table import (
    DevicesFailed,
    DevicesTaken,
    DeviceTable,
    Found,
    Grant,
    MachineGpus,
)
from drfd.daemon.launcher_link.wire import Wire
from drfd.daemon.monitoring.gpu_use import GpuUse
from drfd.daemon.monitoring.meter import Meter
from drfd.daemon.users.turns import UserTurns
from drfd.devices.gpus import GPU
from drfd.journal.submissions import Payload
from drfd.launcher import protocol
from drfd.linux.unix_sockets import at_socket

log = logging.getLogger("drfd")

_CONTROLS: dict[type[effects.Effect], protocol.Control] = {
    effects.Terminate: "terminate",
    effects.Kill: "kill",
    effects.Freeze: "freeze",
    effects.Thaw: "thaw",
    effects.RemoveAttempt: "remove",
}
#: Seconds between two attempts to connect, and to a launcher of another version.
RETRY_S, FAULT_RETRY_S = 0.05, 1.0
#: Seconds without a connection after which that is logged.
_STILL_AWAY_S = 5.0
#: Seconds that the launcher may take to start together with this daemon.
_COMING_UP_S = 2.0
#: Seconds until the launcher is asked to list its attempts again, after the journal could not
#: record a report.
RELIST_S = 1.0
#: Seconds for which files of ended attempts are left, so that many are removed by one order.
_REMOVE_FILES_S = 0.1
#: Seconds without a measurement of GPUs after which the process that measures is ended, and then
#: until another is started.
GPUS_SILENT_S = 30.0
#: Seconds until a user's key, if it is not there, is ordered again.
_KEY_PAUSE_S = 0.5
#: Seconds in one round of the loop after which no further launches are made in it, and seconds
#: until a launcher that has many orders to read is looked at again.
_ROUND_S, _FULL_S = 0.005, 0.005

#: A process of a user's: its pid, and its start in clock ticks since boot.
Process: TypeAlias = tuple[int, int]


def booted_at_s() -> float:
    """Return when the machine was started, in Unix time; sleep counts as running."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


class LinkState(Enum):
    #: There is no launcher of this version that has greeted.
    AWAY = "away"
    #: It was asked for all attempts that it knows.
    LISTING = "listing"
    #: The ledger has been reconciled with its list.
    READY = "ready"


class LinkStep(Enum):
    GREETED = "hello"
    RECONCILED = "listed"


#: What leads from one state to the next. The end of the connection leads to AWAY from everywhere.
MOVES = {
    (LinkState.AWAY, LinkStep.GREETED): LinkState.LISTING,
    (LinkState.LISTING, LinkStep.RECONCILED): LinkState.READY,
    # It lists again after an error of the journal, or when it has other nodes.
    (LinkState.READY, LinkStep.RECONCILED): LinkState.READY,
}


class Link:
    """One launcher, connected or not, and its latest reports about itself."""

    #: Whose effects are carried out here; set by `run`.
    _engine: Engine

    def __init__(
        self,
        *,
        socket_path: Path,
        settings: messages.LaunchSettings,
        meter: Meter,
        gpus: MachineGpus | None = None,
    ) -> None:
        self.settings = settings
        #: The GPUs of this machine.
        self.gpus = gpus or MachineGpus()
        #: Those on which this launcher runs jobs.
        self.nodes = ALL_NODES
        #: Set while there is a node: without one no launcher is looked for.
        self._has_nodes = asyncio.Event()
        self._has_nodes.set()
        self.meter = meter
        self.gpu_use = GpuUse(meter)
        self._socket_path = socket_path
        self.state = LinkState.AWAY
        #: Since when no launcher has taken orders, on the monotonic clock, or None if one does.
        self.away_since_s: float | None = time.monotonic()
        self._logged_away = False
        #: What the launcher has said first, on its latest connection; None before it ever greeted.
        self.hello: protocol.Hello | None = None
        #: Why the launcher gets no orders though it is there, with the remedy, or None.
        self.fault: str | None = None
        #: Its latest report about its nodes, if it makes any.
        self.seen_nodes: messages.NodesReport | None = None
        #: Attempts whose processes cannot be killed.
        self.stuck: set[AttemptKey] = set()
        #: Attempts that belong to no job of this journal, and their owners as far as known. An
        #: administrator may end them.
        self.strays: dict[AttemptKey, Owner] = {}
        #: Bytes of memory that ended attempts have left in use, until they are removed.
        self.left_bytes: dict[AttemptKey, int] = {}
        #: Called when a launcher takes orders from now on.
        self.on_ready: Callable[[], None] = lambda: None
        self._forget_connection()

    def _forget_connection(self) -> None:
        """Begin with nothing of what concerns one connection alone."""
        #: The present connection; None while there is none.
        self.wire: Wire | None = None
        #: The pending repetition of the list after a failure of the journal.
        self._relist: asyncio.TimerHandle | None = None
        #: The next look whether GPUs are measured; whether that was ordered, and whether a line has
        #: come since the last look.
        self._gpu_watch: asyncio.TimerHandle | None = None
        self._measures = self._has_measured = False
        #: Number → the pending answer to an order to move a process into a job.
        self._execs: dict[int, asyncio.Future[str | None]] = {}
        self._exec_count = 0
        #: Uid → when its key was last ordered (monotonic clock).
        self._keys_ordered_s: dict[int, float] = {}
        #: Ended attempts of which only the file is left, whose removal is to be ordered.
        self._gone: list[AttemptKey] = []
        #: What waits for a look at the machine's GPUs, or for its turn to make an order.
        self._tasks: set[asyncio.Task[None]] = set()
        #: The turns of all users; and those of each, of whom one at most waits for them.
        self._turns, self._turns_of = asyncio.Lock(), UserTurns()
        #: Seconds that orders have taken in this round of the loop.
        self._spent_s = 0.0

    def _move(self, step: LinkStep) -> None:
        self.state = MOVES[self.state, step]

    def is_ready(self) -> bool:
        return self.state is LinkState.READY

    def adopt(self, nodes: Nodes) -> None:
        """Let the launcher run jobs on these nodes from now on."""
        before, self.nodes = self.nodes, nodes
        if nodes.names == frozenset():
            self._has_nodes.clear()
        else:
            self._has_nodes.set()
        if nodes != before and self.state is not LinkState.AWAY:
            self.list_again()

    def node_faults(self) -> dict[str, str]:
        """Return the nodes on which this launcher starts nothing just now, and why; "" if it is
        away itself."""
        names = self.nodes.names or ()
        if not self.is_ready():
            return dict.fromkeys(names, self.fault or "")
        seen = self.seen_nodes
        if seen is None:
            return {}
        return {name: fault for name in names if (fault := seen.fault_of(name))}

    def node_facts(self) -> dict[str, messages.NodeFacts]:
        """Return what this launcher knows of its nodes, if it tells of any."""
        seen = self.seen_nodes
        names = self.nodes.names or ()
        return {} if seen is None else {n: seen.nodes[n] for n in names if n in seen.nodes}

    def has_ranges(self) -> bool:
        """Return whether jobs may use cores beyond their lower end here. What the launcher has not
        said yet is taken for granted."""
        return self.hello is None or self.hello.ranges

    def away_s(self) -> float | None:
        """Return for how many seconds no launcher has taken orders, or None if one does."""
        return None if self.away_since_s is None else time.monotonic() - self.away_since_s

    def is_missed(self) -> bool:
        """Whether the launcher is away, except while it starts together with this daemon."""
        away_s = self.away_s()
        return away_s is not None and (self.hello is not None or away_s > _COMING_UP_S)

    def refuses(self, uid: int) -> bool:
        """Return whether the launcher has said that it runs no jobs of this user."""
        hello = self.hello
        if hello is None or uid in hello.allowed_uids:
            return False
        return protocol.is_system_account(uid, hello.min_uid)

    def end_stray(self, key: AttemptKey) -> bool:
        """Have the launcher end and remove an attempt that belongs to no job. Returns False if
        there is no such attempt, or no launcher."""
        if key not in self.strays or not self.is_ready():
            return False
        self.send(protocol.ControlOrder(do="remove", id=key[0], attempt=key[1]))
        return True

    # -- the connection ---------------------------------------------------------------------------

    async def run(self, engine: Engine) -> None:
        """Connect, exchange orders and reports, and connect again. Never returns."""
        self._engine = engine
        while True:
            await self._has_nodes.wait()
            try:
                await self._connect()
            except (OSError, ValueError, protocol.BadMessage, MemoryError) as error:
                self._log_away(str(error) or "out of memory")
            finally:
                self._disconnect()
            await asyncio.sleep(RETRY_S if self.fault is None else FAULT_RETRY_S)

    def _log_away(self, error: str) -> None:
        """Log a lost connection, and once that no new one has been made for a while."""
        if self.is_ready():
            log.warning("event=launcher-away%s error=%s", self.nodes, error)
        elif self._logged_away:
            return
        elif self.fault is not None or (self.away_s() or 0.0) > _STILL_AWAY_S:
            self._logged_away = True
            log.error("event=launcher-still-away%s error=%s", self.nodes, error)

    async def _connect(self) -> None:
        self.wire = wire = Wire(self._take)
        try:
            with at_socket(self._socket_path) as address:
                loop = asyncio.get_running_loop()
                await loop.create_unix_connection(lambda: wire, address)
        except OSError:
            self.fault = None
            raise
        await wire.over

    def _disconnect(self) -> None:
        was_ready, self.state = self.is_ready(), LinkState.AWAY
        for timer in (self._relist, self._gpu_watch):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        for answer in self._execs.values():
            if not answer.done():
                answer.set_exception(launcher_away())
        if self.wire is not None:
            self.wire.close()
        self._forget_connection()
        if was_ready:
            self.away_since_s, self._logged_away = time.monotonic(), False
            # Who waits for these nodes is told so, and the journal records it.
            self._engine.submit(Work(st.Tick(self._engine.clock())))

    def _take(self, line: bytes) -> None:
        """Take a report. Raises BadMessage, ConnectionError."""
        if self.state is LinkState.AWAY:
            self._take_hello(line)
        else:
            self._take_report(messages.read_report(line))

    def _take_hello(self, line: bytes) -> None:
        """Take the launcher's first report. Raises ConnectionError for one of another version,
        which may lack any other field, or one that is malformed."""
        try:
            version = msgspec.json.decode(line, type=_Versioned).version
            self.fault = _version_fault(version, is_home=self.nodes.has_home)
            if self.fault is None:
                self.hello = hello = msgspec.json.decode(line, type=protocol.Hello)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.fault = f"the first report of the launcher cannot be understood: {error}"
        if self.fault is not None:
            raise ConnectionError(self.fault)
        self._move(LinkStep.GREETED)
        self.list_again()
        if self.nodes.has_home:
            self.meter.configure(hello)
            # A launcher that has greeted measures none.
            if self._has_gpus():
                self.measure_gpus()
            self._has_measured = True
            self._watch_gpus()

    # -- orders -----------------------------------------------------------------------------------

    def send(self, order: protocol.Order, payload: bytes | None = None) -> None:
        """Send an order, if there is a launcher that has greeted."""
        if self.wire is not None and self.state is not LinkState.AWAY:
            self.wire.send(protocol.encode(order), payload)

    def list_again(self) -> None:
        """Ask for all attempts that the launcher knows; its answer reconciles the ledger."""
        self._relist = None
        self.send(protocol.ListOrder())

    def order_key(self, uid: int) -> None:
        """Have the launcher write a user's key file, unless that was ordered a moment ago."""
        now_s = time.monotonic()
        if now_s - self._keys_ordered_s.get(uid, -_KEY_PAUSE_S) >= _KEY_PAUSE_S:
            self._keys_ordered_s[uid] = now_s
            self.send(protocol.KeyOrder(uid))

    def measure_gpus(self) -> None:
        """Have the launcher measure GPUs, if the configuration has them, or stop doing so."""
        self._measures = self._has_gpus()
        self.send(protocol.MeasureGpusOrder(self._measures))

    def _watch_gpus(self) -> None:
        """Have the process that measures GPUs ended if it is silent, and later another started:
        its driver may hang, or be loaded only now."""
        if self._has_gpus() and not self._has_measured:
            self._measures = not self._measures
            self.send(protocol.MeasureGpusOrder(self._measures))
        self._has_measured = False
        loop = asyncio.get_running_loop()
        self._gpu_watch = loop.call_later(GPUS_SILENT_S, self._watch_gpus)

    def _has_gpus(self) -> bool:
        return bool(dict(self._engine.rules.axes.instances).get(GPU))

    def perform(self, effect: effects.Effect, job: Job) -> None:
        """Send the order for an effect, or report at once why it cannot be carried out."""
        if (effect.job_id, effect.attempt) in self.strays:
            self._submit(self._refused_by_stray(effect, job))
            return
        begins = isinstance(effect, effects.Launch)
        begins = begins or (isinstance(effect, effects.RemoveAttempt) and bool(job.spec.notify))
        looks = begins and any(grant.name == GPU for grant in self._grants(job))
        is_full = self._spent_s > _ROUND_S or (self.wire is not None and self.wire.is_full)
        if looks or (begins and is_full):
            self._do_later(self._order_later(effect, job.id, job.spec.uid, looks=looks))
        else:
            self._order_now(effect, job)

    async def _order_later(
        self, effect: effects.Effect, job_id: int, uid: int, *, looks: bool
    ) -> None:
        """Look at the machine's GPUs if need be, and then send the order for an effect if it is
        still due: in its user's turn, in the next round of the loop if this one has no time for it,
        and when few orders wait to be sent."""
        fault = ""
        try:
            if looks:
                await self.gpus.look_up()
        except HostError as error:
            fault = str(error)
        async with self._turns_of.next(uid), self._turns:
            if self._spent_s > _ROUND_S:
                await asyncio.sleep(0)
            while self.wire is not None and self.wire.is_full:
                await asyncio.sleep(_FULL_S)
            job = self._engine.ledger.jobs.get(job_id)
            if job is None or effects.owed(job) != effect or not self.is_ready():
                return
            if fault and isinstance(effect, effects.Launch):
                self._submit(self._launch_failed(job, _unset(fault)))
            else:
                self._order_now(effect, job)

    def _order_now(self, effect: effects.Effect, job: Job) -> None:
        if not self._spent_s:
            asyncio.get_running_loop().call_soon(setattr, self, "_spent_s", 0.0)
        begin_s = time.monotonic()
        match effect:
            case effects.Launch():
                self._order_launch(job)
            case effects.SendSignals(job_id, attempt, count, signals):
                order = protocol.SignalOrder(
                    id=job_id, attempt=attempt, count=count, signals=signals
                )
                self.send(order)
            case effects.RemoveAttempt() if job.spec.notify:
                self._order_notice(effect, job)
            case _:
                self._send_attempt(effect)
        self._spent_s += time.monotonic() - begin_s

    def _order_launch(self, job: Job) -> None:
        if not self._is_configured(job):
            # The launcher of the node that was may have started it.
            return
        text = self._unkept_limit(job)
        if text is not None:
            self._submit(self._launch_failed(job, text))
            return
        try:
            found = self._devices().look_up(self._grants(job))
        except DevicesTaken as error:
            short = self._launch_failed(job, str(error))
            self._submit(replace(short, whose=Whose.JOB, resource="devices"))
        except DevicesFailed as error:
            self._submit(self._launch_failed(job, _unset(str(error))))
        else:
            order, payload = self._order_and_payload(job, found)
            self.send(order, payload)

    def _order_notice(self, effect: effects.RemoveAttempt, job: Job) -> None:
        hidden = self._devices().hide_all(self._grants(job))
        order, payload = self._order_and_payload(job, hidden)
        notice = messages.notice_for(job, order)
        if notice is None:
            self._send_attempt(effect)
        else:
            self.send(notice, payload)

    def _do_later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self, job: Job, process: Process, proof: str | None) -> str | None:
        """Have the launcher move a process of its user's into a running job. Returns why it has
        not been, or None. Raises Unavailable if the launcher is away."""
        if not self.is_ready():
            raise launcher_away()
        if (job.id, job.attempt) in self.strays:
            return "processes of an earlier job are in its place; drf doctor shows them"
        self._exec_count += 1
        number = self._exec_count
        pid, start_ticks = process
        order = protocol.ExecOrder(
            id=job.id,
            attempt=job.attempt,
            number=number,
            pid=pid,
            start_ticks=start_ticks,
            proof=proof,
        )
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._execs[number] = answer
        try:
            self.send(order)
            return await answer
        finally:
            del self._execs[number]

    def _unkept_limit(self, job: Job) -> str | None:
        """Return why a limit of the job cannot be kept, without which it must not start, or
        None."""
        disks = {disk.name for disk in self.settings.disks}
        missing = job.spec.demand.used_disks.difference(disks)
        if missing:
            # The disk was removed from the configuration after the job was admitted.
            return f"the disk {min(missing)} is not in the configuration any more"
        if job.spec.output_max_bytes is not None and not self.nodes.has_home:
            return "nothing on Slurm's nodes keeps --output-max"
        return None

    def _refused_by_stray(self, effect: effects.Effect, job: Job) -> st.Stimulus:
        """Return the stimulus in place of an effect, if the launcher has an attempt of another job
        under the same id and attempt number."""
        at_s = self._engine.clock().at_s
        if isinstance(effect, effects.Launch):
            text = f"processes of an earlier job {job.id} are in its place; drf doctor shows them"
            return self._launch_failed(job, text)
        if isinstance(effect, effects.RemoveAttempt):
            return st.RemovedReport(at_s, job.id, job.attempt)
        return st.MissingReport(at_s, job.id, job.attempt)

    def _launch_failed(self, job: Job, text: str) -> st.LaunchFailedReport:
        return st.LaunchFailedReport(self._engine.clock().at_s, job.id, job.attempt, text=text)

    def _order_and_payload(self, job: Job, found: Found) -> tuple[protocol.LaunchOrder, bytes]:
        engine = self._engine
        payload = engine.journal.submissions.get(job.submission_id) or Payload()
        order = messages.order_for(
            job,
            engine.journal.id,
            self.settings,
            None if job.array_id is None else engine.ledger.arrays[job.array_id].array,
            countables=engine.rules.axes.instances,
            proof=payload.proof,
            beside=engine.ledger.allocated_jobs(),
            capacity_milli=engine.rules.own_capacity.cores_milli if self.has_ranges() else 0,
            home=engine.rules.axes.home,
            found=found,
        )
        data = payload.data
        return messages.with_slurm_variables(order, data, job.restarts), data

    def _grants(self, job: Job) -> tuple[Grant, ...]:
        """Return what the job is given of devices. Another node chooses its devices itself."""
        axes = self._engine.rules.axes
        if job.node not in ("", axes.home):
            return ()
        return tuple(
            messages.grants_for(
                job, axes.instances, self._engine.ledger.taken, self.settings.countables
            )
        )

    def _devices(self) -> DeviceTable:
        assert self.hello is not None
        can_hide, _ = self.hello.hiding
        return DeviceTable(self.settings.countables, can_hide, self.gpus.known)

    def _send_attempt(self, effect: effects.Effect) -> None:
        do = _CONTROLS[type(effect)]
        self.send(protocol.ControlOrder(do=do, id=effect.job_id, attempt=effect.attempt))

    # -- reports --------------------------------------------------------------------------------

    def _take_report(self, report: messages.Report) -> None:
        match report:
            case messages.GpusReport():
                self._has_measured = True
                self._do_later(self._take_gpus(report))
            case messages.ListedReport():
                self._reconcile(report.owners)
            case messages.ExecReport():
                answer = self._execs.get(report.number)
                if answer is not None and not answer.done():
                    answer.set_result(report.text)
            case messages.NodesReport():
                self.seen_nodes = report
                if self.is_ready():
                    # Who waits for these nodes is told so, and the journal records it.
                    self._submit(st.Tick(self._engine.clock()))
            case messages.StuckReport():
                self.stuck.add(report.key)
                job_id = report.key[0]
                log.error("job=%d event=stuck", job_id, extra=about(job=job_id))
            case _:
                self._take_attempt_report(report)

    async def _take_gpus(self, report: messages.GpusReport) -> None:
        # Slices come and go.
        with suppress(HostError):
            await self.gpus.look_up()
        use, engine = self.gpu_use, self._engine
        use.take(report.line, engine.ledger.jobs, self.gpus.known)
        listed = dict(engine.rules.axes.instances).get(GPU, ())
        used = {(GPU, each): users for each, users in use.used_outside(listed).items()}
        if engine.see_instances(used):
            self._submit(st.Tick(engine.clock()))
        for job in list(engine.ledger.allocated_jobs()):
            if job.spec.demand.gres_memory and job.state is JobState.RUNNING:
                breach = judge_gpu_memory(job, self.meter.each_gpu(job))
                if breach is not None:
                    self._submit(st.Breached.of(job, engine.clock(), *breach))

    def _take_attempt_report(self, report: st.AttemptReport) -> None:
        key = report.key
        job = self._engine.ledger.jobs.get(key[0])
        if job is not None and not report.owner.may_be(owner_of(job, self._engine.journal.id)):
            # The report is about a stray with the job's id.
            return
        if job is not None and not self.nodes.may_have(job):
            # So is this one: the job runs elsewhere.
            return
        then: Callable[[], None] | None = None
        match report:
            case st.LaunchedReport() if job is not None and self.nodes.has_home:
                self.meter.watch(key, report.runner_pid, report.cgroup)
            case st.ExitedReport() if job is not None:
                measured, left_bytes = None, 0
                if self.nodes.has_home:
                    cpu_s = max(report.cpu_s, report.counted.get("cpu_us", 0) / 1e6)
                    measured = self.meter.finish(job, cpu_s, report.mono_s)
                    left_bytes = report.counted.get("left_bytes", 0)
                if left_bytes:
                    self.left_bytes[key] = left_bytes
                report = replace(
                    report,
                    usage=messages.final_usage(report, measured),
                    # Nothing of the job's is free before memory that it has left is counted.
                    gone=report.gone and not left_bytes,
                )
                if report.gone and not job.spec.notify:
                    # Its file is still to go. If that order is lost, the next reconciliation gives
                    # it.
                    then = partial(self._remove_file, key)
            case st.RemovedReport():
                if self._forget(key) or job is None:
                    return
                then = self._launch_if_owed(key[0])
            case st.MissingReport():
                if job is not None and self._may_run_elsewhere(job):
                    return
                if job is not None:
                    report = replace(report, loss=loss_by_boot(job, self._booted_at_s()))
                then = self._launch_if_owed(key[0])
        self._submit(report, then)

    def _forget(self, key: AttemptKey) -> bool:
        """Drop the state of a removed attempt, and return whether it was a stray."""
        self.stuck.discard(key)
        self.meter.forget(key)
        # Memory left in use counts as external before the job's memory is allocated to others.
        if left_bytes := self.left_bytes.pop(key, 0):
            self._engine.note_left(left_bytes)
        if self.strays.pop(key, None) is None:
            return False
        log.info("event=stray-ended job=%d attempt=%d", *key)
        return True

    def _remove_file(self, key: AttemptKey) -> None:
        """Drop the state of an ended attempt, before anybody sees the end, and order the removal of
        its file, together with those of others: the launcher does not answer."""
        self._forget(key)
        if not self._gone:
            asyncio.get_running_loop().call_later(_REMOVE_FILES_S, self._remove_files)
        self._gone.append(key)

    def _remove_files(self) -> None:
        attempts, self._gone = tuple(self._gone), []
        self.send(protocol.RemoveFilesOrder(attempts))

    def _launch_if_owed(self, job_id: int) -> Callable[[], None]:
        """Return a callback that launches the job if its launch is owed by then."""

        def launch() -> None:
            present = self._engine.ledger.jobs.get(job_id)
            if present is not None and present.state is JobState.STARTING:
                self._engine.perform_owed(present)

        return launch

    def _reconcile(self, known: dict[AttemptKey, Owner]) -> None:
        """Compare the ledger with the launcher's list, once the engine has processed the reports of
        all listed attempts, which are in its inbox already."""

        wire = self.wire

        def reconcile() -> None:
            reach("reconcile.before-settling")
            if self.wire is not wire:
                return
            engine = self._engine
            self._move(LinkStep.RECONCILED)
            self.away_since_s = None
            # Submitted first, so that it is durable before any job is admitted.
            highest = max((job_id for job_id, _ in known), default=0)
            self._submit(st.IdsSeen(engine.clock(), highest))
            nodes = self.nodes
            elsewhere = {key: owner for key, owner in known.items() if self._is_elsewhere(key)}
            here = {key: owner for key, owner in known.items() if key not in elsewhere}
            left = leftovers(engine.ledger, here, engine.journal.id, engine.journal.job)
            self._note_strays({**left.strays, **elsewhere})
            ours = here.keys() - left.strays.keys()
            booted_at_s = self._booted_at_s()
            for missing in missing_attempts(engine.ledger, ours, engine.clock().at_s, booted_at_s):
                if nodes.must_have(engine.ledger.jobs[missing.job_id]):
                    self._submit(missing)
            for removal in left.removals:
                self._send_attempt(removal)
            self.on_ready()
            engine.perform_all_owed(nodes)
            # Jobs may have been submitted while no launcher was there to start them.
            engine.want_pass()
            self._submit(st.Tick(engine.clock()))

        # A tick changes nothing; its answer comes after all reports before it are recorded.
        self._submit(st.Tick(self._engine.clock()), reconcile)

    def _booted_at_s(self) -> float | None:
        """Return when the machine was started on which jobs run, if it is this one."""
        return booted_at_s() if self.nodes.has_home else None

    def _is_elsewhere(self, key: AttemptKey) -> bool:
        """Return whether the job's present attempt is on another launcher's node: then this
        one's is of an earlier journal, and somebody's work. If that node is not configured any
        more, it was this launcher's."""
        job = self._engine.ledger.jobs.get(key[0])
        if job is None or job.attempt != key[1] or self.nodes.may_have(job):
            return False
        return self._is_configured(job)

    def _is_configured(self, job: Job) -> bool:
        """Return whether the node that the job is on is configured, or the job on none."""
        return not job.node or job.node in (node.name for node in self._engine.rules.axes.nodes)

    def _may_run_elsewhere(self, job: Job) -> bool:
        """Return whether the job may run although this launcher does not know it: on a node that is
        not configured any more. Where none is, the job's user may end it all the same."""
        nodes = self.nodes
        if nodes.must_have(job):
            return False
        return not (nodes.are_all and job.state is JobState.STOPPING)

    def _note_strays(self, strays: dict[AttemptKey, Owner]) -> None:
        for key in strays.keys() - self.strays.keys():
            words = "event=stray job=%d attempt=%d uid=%s: it is of no job of this journal"
            log.warning(words, *key, strays[key].uid)
        self.strays = strays
        self._engine.taken_attempts[self] = dict(sorted(strays))

    def _submit(self, stimulus: st.Stimulus, then: Callable[[], None] | None = None) -> None:
        """Queue a stimulus for the engine, and call `then` when it is durable. If the journal fails
        the launcher is asked to list its attempts again."""

        def answer(result: object) -> None:
            if isinstance(result, HostError):
                # One list is enough for all failed stimuli: it repeats every report.
                if self._relist is None:
                    loop = asyncio.get_running_loop()
                    self._relist = loop.call_later(RELIST_S, self.list_again)
            elif then is not None:
                then()

        self._engine.submit(Work(stimulus, answer=answer))


class Links:
    """An engine's `Launchers`: the controller's own, and those of other nodes. An order goes to the
    launcher of the node that its job is on. Each launcher may be away and come back by itself:
    the engine starts nothing on its nodes meanwhile, and goes on with the others."""

    def __init__(self, own: Link, *others: Link) -> None:
        self.own = own
        self._links = (own, *others)

    def is_ready(self) -> bool:
        return any(link.is_ready() and link.nodes != NO_NODES for link in self._links)

    def nodes_away(self) -> frozenset[str]:
        return frozenset(self.node_faults())

    def node_faults(self) -> dict[str, str]:
        """Return the nodes on which nothing starts just now, and why; "" if their launcher is
        away."""
        return {name: text for link in self._links for name, text in link.node_faults().items()}

    def node_facts(self) -> dict[str, messages.NodeFacts]:
        """Return what the launchers know of their nodes."""
        return {name: facts for link in self._links for name, facts in link.node_facts().items()}

    def perform(self, effect: effects.Effect, job: Job) -> None:
        link = self.of(job)
        if link is not None and link.is_ready():
            link.perform(effect, job)

    def of(self, job: Job) -> Link | None:
        """Return the link to the launcher of the job's node, or None if there is none. Of a node
        that is not configured it is the controller's own: that may have had the name."""
        return next((link for link in self._links if link.nodes.has(job)), None)

    def adopt(self, nodes: Iterable[Nodes]) -> None:
        """Let the launchers run jobs on these nodes from now on, in their order."""
        for link, names in zip(self._links, nodes, strict=True):
            link.adopt(names)

    def set_up(self, settings: messages.LaunchSettings) -> None:
        """Let these limits hold for all jobs that start from now on."""
        for link in self._links:
            link.settings = settings

    @property
    def strays(self) -> dict[AttemptKey, Owner]:
        """Attempts that belong to no job of this journal, of all launchers."""
        return {key: owner for link in self._links for key, owner in link.strays.items()}

    @property
    def stuck(self) -> set[AttemptKey]:
        """Attempts whose processes cannot be killed, of all launchers."""
        return {key for link in self._links for key in link.stuck}

    def end_stray(self, key: AttemptKey) -> bool:
        """Have the launchers that know this attempt of no job end and remove it. Returns False if
        none does."""
        found = [link.end_stray(key) for link in self._links]
        return any(found)

    async def run(self, engine: Engine) -> None:
        """Keep all connections. Never returns."""
        await asyncio.gather(*(link.run(engine) for link in self._links))


class _Versioned(msgspec.Struct):
    version: object = None


def _version_fault(version: object, *, is_home: bool) -> str | None:
    """Return a line that says which side to restart if the launcher is of another version."""
    if version == protocol.VERSION:
        return None
    name = "drfd-launcher" if is_home else "drfd-slurm-launcher"
    is_newer = isinstance(version, int) and version > protocol.VERSION
    return (
        f"{name} speaks version {version} of the launcher's protocol, drfd version "
        f"{protocol.VERSION}: restart {'drfd' if is_newer else name}"
    )


def _unset(why: str) -> str:
    return f"it could not be set up: {why}"


def launcher_away() -> Unavailable:
    return Unavailable(
        "launcher-away", "drfd's launcher is away just now", hint="try again in a moment"
    )
