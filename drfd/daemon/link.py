"""The line to the launcher: keeps it open, sends effects down it, turns reports into stimuli.

Losing it is ordinary life. On every new connection the launcher lists all it knows, the books are
reconciled with that, and whatever is owed is sent again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from drfd.core.effects import Effect, Kill, Launch, Remove, Terminate
from drfd.core.job import Job, JobState
from drfd.core.reconcile import AttemptKey, missing_attempts, strays
from drfd.core.stimuli import Now, Tick
from drfd.daemon.engine import Engine, Work
from drfd.daemon.meter import Meter
from drfd.daemon.orders import order_for, stimulus_for
from drfd.host.disks import Disk
from drfd.launcher import protocol
from drfd.launcher.protocol import Message
from drfd.paths import socket_address

log = logging.getLogger("drfd")

_COMMANDS = {Terminate: protocol.TERMINATE, Kill: protocol.KILL, Remove: protocol.REMOVE}
_RETRY_S = 0.05
_MAX_REPORT_BYTES = 64 << 20


class Link:
    """An engine's `Host`."""

    def __init__(
        self,
        *,
        socket_path: Path,
        disks: Sequence[Disk],
        max_pids: int,
        meter: Meter,
        clock: Callable[[], Now],
        submit: Callable[[Work], None],
    ) -> None:
        self._socket_path = socket_path
        self._disks = disks
        self._max_pids = max_pids
        self._meter = meter
        self._clock = clock
        self._submit = submit
        self._writer: asyncio.StreamWriter | None = None
        self._ready = False
        #: What the launcher said of itself: kind, controls, mounts.
        self.hello: Message = {}
        #: Attempts whose processes cannot be killed.
        self.stuck: set[AttemptKey] = set()
        self.engine: Engine | None = None

    def is_ready(self) -> bool:
        return self._ready

    def perform(self, effect: Effect, job: Job) -> None:
        assert self.engine is not None
        if isinstance(effect, Launch):
            payload = self.engine.journal.payload(job.id)
            order = order_for(job, payload, self._disks, self._max_pids)
            self._send(protocol.launch_message(order))
        else:
            self._send_attempt(effect)

    async def run(self) -> None:
        """Connect, listen, connect again; for ever."""
        while True:
            try:
                await self._listen()
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                if self._ready:
                    log.warning("event=launcher-away error=%s", error or "closed")
            self._ready, self._writer = False, None
            await asyncio.sleep(_RETRY_S)

    async def _listen(self) -> None:
        address, directory = socket_address(self._socket_path)
        reader, self._writer = await asyncio.open_unix_connection(address, limit=_MAX_REPORT_BYTES)
        if directory is not None:
            os.close(directory)
        self._send({"cmd": protocol.LIST})
        while line := await reader.readline():
            self._take(protocol.decode(line))
        raise asyncio.IncompleteReadError(b"", None)

    def _take(self, report: Message) -> None:
        match report["report"]:
            case "hello":
                self.hello = report
                self._meter.mounts = report["mounts"]
            case "listed":
                self._reconcile({(job_id, attempt) for job_id, attempt in report["known"]})
            case "stuck":
                self.stuck.add((report["id"], report["attempt"]))
                log.error("job=%d event=stuck", report["id"])
            case _:
                self._attempt_news(report)

    def _attempt_news(self, report: Message) -> None:
        key = (report["id"], report["attempt"])
        job = self._job(key[0])
        measured = None
        if report["report"] == "up":
            self._meter.watch(key, report["runner_pid"])
        if job is not None and report["report"] == "ended":
            # Its cgroup is still there: it goes when we say so.
            self._meter.sample(job)
            measured = self._meter.usage(job)
            self._meter.forget(key)
        if report["report"] == "removed":
            self.stuck.discard(key)
        stimulus = stimulus_for(report, self._clock(), measured)
        self._submit(Work(stimulus, answer=self._ask_again(key[0], report)))

    def _ask_again(self, job_id: int, report: Message) -> Callable[[object], None] | None:
        """After news that an attempt is not there, its launch may be owed once more."""
        if report["report"] not in ("missing", "removed"):
            return None

        def again(_: object) -> None:
            job = self._job(job_id)
            if job is not None and job.state is JobState.STARTING and self.engine is not None:
                self.engine.perform_owed(job)

        return again

    def _reconcile(self, known: set[AttemptKey]) -> None:
        """All reports of known attempts are in the queue already; then what only one side knows."""
        assert self.engine is not None
        engine = self.engine

        def settle(_: object) -> None:
            self._ready = True
            for missing in missing_attempts(engine.ledger, known, self._clock()):
                self._submit(Work(missing))
            for removal in strays(engine.ledger, known):
                self._send_attempt(removal)
            engine.perform_all_owed()
            engine.want_pass()

        # A tick is always welcome: with it, `settle` comes after all that was reported before.
        self._submit(Work(Tick(self._clock()), answer=settle))

    def _job(self, job_id: int) -> Job | None:
        return None if self.engine is None else self.engine.ledger.jobs.get(job_id)

    def _send_attempt(self, effect: Effect) -> None:
        command = _COMMANDS[type(effect)]
        self._send({"cmd": command, "id": effect.job_id, "attempt": effect.attempt})

    def _send(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(protocol.encode(message))
