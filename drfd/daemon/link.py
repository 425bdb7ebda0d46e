"""The line to the launcher: keeps it open, sends effects down it, turns reports into stimuli.

Losing it is ordinary life. On every new connection the launcher lists all it knows, the books are
reconciled with that, and whatever is owed is sent again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from drfd.core.effects import Effect, Freeze, Kill, Launch, Remove, Signal, Terminate, Thaw
from drfd.core.job import Job, JobState
from drfd.core.reconcile import AttemptKey, missing_attempts, strays
from drfd.core.stimuli import LaunchBroke, Now, Stimulus, Tick
from drfd.daemon.engine import Engine, Work
from drfd.daemon.meter import Meter
from drfd.daemon.orders import notice_for, order_for, stimulus_for
from drfd.errors import HostError
from drfd.failpoints import reach
from drfd.host.disks import Disk
from drfd.journald import about
from drfd.launcher import protocol
from drfd.launcher.protocol import Message
from drfd.paths import at_socket

log = logging.getLogger("drfd")

_COMMANDS = {
    Terminate: protocol.TERMINATE,
    Kill: protocol.KILL,
    Freeze: protocol.FREEZE,
    Thaw: protocol.THAW,
    Remove: protocol.REMOVE,
}
_RETRY_S = 0.05
_STILL_AWAY_S = 5.0
#: Pause before the launcher is asked again for news that the journal would not take.
_RELIST_S = 1.0
_MAX_REPORT_BYTES = 64 << 20


class Link:
    """An engine's `Host`."""

    def __init__(
        self,
        *,
        socket_path: Path,
        disks: Sequence[Disk],
        max_pids: int,
        cores_by: str,
        meter: Meter,
        clock: Callable[[], Now],
        submit: Callable[[Work], None],
    ) -> None:
        self._socket_path = socket_path
        self._disks = disks
        self._max_pids = max_pids
        self.cores_by = cores_by
        self._meter = meter
        self._clock = clock
        self._submit = submit
        self._writer: asyncio.StreamWriter | None = None
        self._ready = False
        self._away_since: float | None = time.monotonic()
        #: What the launcher said of itself: kind, controls, mounts.
        self.hello: Message = {}
        #: When news that the journal would not take is asked for again.
        self._relist: asyncio.TimerHandle | None = None
        #: Attempts whose processes cannot be killed.
        self.stuck: set[AttemptKey] = set()
        self.engine: Engine | None = None

    def set_limits(self, disks: Sequence[Disk], max_pids: int, cores_by: str) -> None:
        """For jobs that start from now on."""
        self._disks, self._max_pids, self.cores_by = disks, max_pids, cores_by

    def is_ready(self) -> bool:
        return self._ready

    def perform(self, effect: Effect, job: Job) -> None:
        gone = job.spec.demand.used_disks.difference(disk.name for disk in self._disks)
        if isinstance(effect, Launch) and gone:
            # Admitted, and then taken out of the configuration: there is nothing to limit.
            text = f"the disk {min(gone)} is not in the configuration any more"
            self._tell(LaunchBroke(self._clock(), job.id, job.attempt, text))
        elif isinstance(effect, Launch):
            self._send(protocol.launch_message(self._order(job)))
        elif isinstance(effect, Signal):
            key = (effect.job_id, effect.attempt)
            self._send(protocol.signal_message(key, effect.count, effect.signals))
        elif isinstance(effect, Remove) and job.spec.notify is not None:
            notice = notice_for(job, self._order(job))
            if notice is None:
                self._send_attempt(effect)
            else:
                self._send(protocol.notify_message(notice))
        else:
            self._send_attempt(effect)

    def _order(self, job: Job) -> protocol.Order:
        engine = self._engine()
        array = None if job.array_id is None else engine.ledger.arrays[job.array_id].array
        payload = engine.journal.payload(job.array_id or job.id)
        gres = [name for name, _ in engine.rules.axes.instances]
        return order_for(job, payload, self._disks, self._max_pids, self.cores_by, array, gres)

    async def run(self) -> None:
        """Connect, listen, connect again; for ever."""
        while True:
            try:
                await self._listen()
            except (OSError, ValueError, protocol.BadMessage, MemoryError) as error:
                self._tell_away(str(error) or "out of memory")
            finally:
                self._ready = False
                if self._writer is not None:
                    self._writer.close()
                self._writer = None
            await asyncio.sleep(_RETRY_S)

    def _tell_away(self, error: str) -> None:
        """Once for each time that it is lost, or does not come up."""
        now = time.monotonic()
        if self._ready:
            self._away_since = now
            log.warning("event=launcher-away error=%s", error)
        elif self._away_since is not None and now - self._away_since > _STILL_AWAY_S:
            self._away_since = None
            log.error("event=launcher-still-away error=%s", error)

    async def _listen(self) -> None:
        with at_socket(self._socket_path) as address:
            reader, self._writer = await asyncio.open_unix_connection(
                address, limit=_MAX_REPORT_BYTES
            )
        self.list_again()
        while (line := await reader.readline()).endswith(b"\n"):
            self._take(protocol.decode(line))
        raise ConnectionError("closed")

    def list_again(self) -> None:
        """Ask for all that the launcher knows; when it is told, the books are reconciled."""
        self._send({"cmd": protocol.LIST})

    def _take(self, report: Message) -> None:
        match report["report"]:
            case "hello":
                self.hello = report
                self._meter.heed(report)
            case "listed":
                self._reconcile({(job_id, attempt) for job_id, attempt in report["known"]})
            case "stuck":
                self.stuck.add((report["id"], report["attempt"]))
                log.error("job=%d event=stuck", report["id"], extra=about(job=report["id"]))
            case _:
                self._attempt_news(report)

    def _attempt_news(self, report: Message) -> None:
        key = (report["id"], report["attempt"])
        job = self._job(key[0])
        kind = report["report"]
        measured = None
        if kind == "up" and job is not None:
            self._meter.watch(key, report["runner_pid"], report["cgroup"])
        elif kind == "ended" and job is not None:
            # Its cgroup is still there: it goes when we say so.
            self._meter.sample_end(job)
            measured = self._meter.usage(job)
            self._meter.note_end(key, report.get("cpu_s", 0.0))
        elif kind == "removed":
            self.stuck.discard(key)
            self._meter.forget(key)

        def perhaps_launch() -> None:
            # The attempt is not there, so its launch may be owed once more.
            present = self._job(key[0])
            if present is not None and present.state is JobState.STARTING:
                self._engine().perform_owed(present)

        then = perhaps_launch if kind in ("missing", "removed") else None
        self._tell(stimulus_for(report, self._clock(), measured), then)

    def _reconcile(self, known: set[AttemptKey]) -> None:
        """All reports of known attempts are in the queue already; then what only one side knows."""

        def settle() -> None:
            reach("reconcile.before-settling")
            engine = self._engine()
            self._ready = True
            for missing in missing_attempts(engine.ledger, known, self._clock()):
                self._tell(missing)
            for removal in strays(engine.ledger, known):
                self._send_attempt(removal)
            engine.perform_all_owed()
            # Jobs may have come while there was nobody to start them: one more turn, with a pass.
            engine.want_pass()
            self._tell(Tick(self._clock()))

        # A tick is always welcome: with it, `settle` comes after all that was reported before.
        self._tell(Tick(self._clock()), settle)

    def _tell(self, stimulus: Stimulus, then: Callable[[], None] | None = None) -> None:
        """Queue news; what could not be written down is asked for again."""

        def answer(result: object) -> None:
            if isinstance(result, HostError):
                # Once for all of them: each list brings as much news again.
                if self._relist is None:
                    loop = asyncio.get_running_loop()
                    self._relist = loop.call_later(_RELIST_S, self._list_now)
            elif then is not None:
                then()

        self._submit(Work(stimulus, answer=answer))

    def _list_now(self) -> None:
        self._relist = None
        self.list_again()

    def _engine(self) -> Engine:
        assert self.engine is not None
        return self.engine

    def _job(self, job_id: int) -> Job | None:
        return None if self.engine is None else self.engine.ledger.jobs.get(job_id)

    def _send_attempt(self, effect: Effect) -> None:
        command = _COMMANDS[type(effect)]
        self._send({"cmd": command, "id": effect.job_id, "attempt": effect.attempt})

    def _send(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(protocol.encode(message))
