"""Snapshots of the whole service at intervals, for any number of watching clients (`drf top`).

A snapshot has the running, pending and ended jobs, shares and counts, as far as every user may see
them. This common part is computed and encoded once for all clients, when one asks for it and the
last one is too old; without clients nothing is computed. A client has no queue: its next snapshot
is made when it has read the last one, so a slow reader costs no more than one line.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from drfd.core.fairness.share_tree import path_up
from drfd.core.model.job import Actor, Job, JobState
from drfd.daemon.lookup import views
from drfd.daemon.lookup.rows import WaitingRows
from drfd.daemon.monitoring.gpu_use import MeasuredGpu
from drfd.daemon.monitoring.meter import Curves
from drfd.daemon.users.turns import InParts
from drfd.host.measurements import read_pressure
from drfd.protocol import replies
from drfd.protocol import requests as msg

MOST_RUNNING, MOST_ENDED = 2000, 50
#: Seconds for which a common part is shown again. It is less than the shortest interval between
#: two snapshots (1 s), so that no client gets the same one twice.
_FRESH_S = 0.9
#: For how many times as long as it took to make, with all that the daemon did meanwhile, a common
#: part is shown at least.
_REST = 20
#: JSON of truth values.
_TRUTH = (b"false", b"true")
#: Seconds between two checks whether a slow client has read its snapshot.
POLL_S = 0.2


@dataclass
class Overview(WaitingRows):
    """Computes snapshots."""

    curves: Curves
    #: Returns the problems of the service as a whole.
    notices: Callable[[], list[replies.CodeText]] = list
    #: Returns the GPUs whose use is measured.
    gpus: Callable[[], list[MeasuredGpu]] = list
    #: Returns the machines on which jobs run, if there are several.
    machines: Callable[[], list[replies.MachineView]] = list
    #: Has a new forecast of starts made for the rows, if one is due.
    renew_starts: Callable[[], None] = lambda: None

    async def common_part(self) -> tuple[replies.CommonSnapshot, frozenset[int]]:
        """Return the part that is the same for all users, and the ids of its pending rows. Jobs may
        have started or ended meanwhile."""
        ledger = self.engine.ledger
        running = list[replies.SnapshotRow]()
        ids = sorted(job.id for job in ledger.allocated_jobs())[:MOST_RUNNING]
        async for job_id in InParts(ids):
            job = ledger.jobs.get(job_id)
            if job is not None and job.is_allocated:
                running.append(self._running(job))
        pending = await self.ids()
        more = max(0, self.count_pending() - len(pending))
        rows = await self.waiting_rows(pending)
        self.renew_starts()
        ended = await self.lookup.latest_ended(msg.Selection(), MOST_ENDED)
        shown = {
            "at": self.engine.clock().at_s,
            "host": os.uname().nodename,
            **views.drain_part(ledger),
            "notices": self.notices(),
            **self.machine_part(),
            "running": running,
            "pending": rows,
            "pending_more": more,
            "ended": [views.row_view(each) for each in ended],
        }
        if machines := self.machines():
            shown["machines"] = machines
        return cast(replies.CommonSnapshot, shown), frozenset(pending)

    def machine_part(self) -> replies.MachinePart:
        """Return the figures of the machine and of the tree, which contain no job."""
        engine = self.engine
        ledger, external = engine.ledger, engine.external
        shares = views.shares_view(ledger, engine.rules, external)
        used = self._used()
        view: replies.MachinePart = {
            "draining": ledger.draining,
            "capacity": shares["capacity"],
            "free": shares["free"],
            "external": views.external_view(external),
            "external_off": engine.rules.unheeded_outside,
            "pressure": read_pressure(),
            "nodes": [
                {**node, "used": views.sum_view(used[node["path"]])} for node in shares["nodes"]
            ],
            "counts": {state.value: count for state, count in ledger.job_counts.states.items()},
        }
        if gpus := self.gpus():
            view["gpus"] = [views.gpu_view(each) for each in gpus]
        return view

    # -- parts ------------------------------------------------------------------------------

    def _running(self, job: Job) -> replies.SnapshotRow:
        waits = job.state is JobState.SUSPENDED
        point, meter = self.curves.last(job), self.curves.meter
        now: replies.NowView | None = None
        if point is not None:
            used = meter.peak_bytes(job), meter.gpus(job), meter.each_gpu(job)
            now = views.now_view(point, job, *used)
        reason = views.wait_view(self.lookup.reason(job)) if waits else None
        return views.row_view(job, reason=reason, now=now)

    def _used(self) -> dict[str, list[replies.NowView]]:
        """Return what the jobs of each node use at present, by the node's path."""
        found = defaultdict[str, list[replies.NowView]](list)
        for job in self.engine.ledger.allocated_jobs():
            now = self.curves.last(job)
            if now is not None:
                view = views.now_view(now, job)
                for path in path_up(job.spec.leaf):
                    found[path].append(view)
        return found


@dataclass(slots=True)
class _Common:
    """The part of a snapshot that is the same for all users, and what each user's has besides."""

    #: Until then it is used for all clients.
    until_s: float
    #: JSON without the opening brace.
    tail: bytes
    #: Ids of its pending rows.
    shown: frozenset[int]
    #: By user: JSON of the name and of the pending rows that are not in the common part.
    heads: dict[str, bytes] = field(default_factory=dict)


@dataclass
class SnapshotFeed:
    """All watching clients, and the JSON that they share."""

    overview: Overview
    mono: Callable[[], float] = time.monotonic
    _common: _Common | None = None
    #: Makes the next one, on nobody's account.
    _making: asyncio.Task[None] | None = None
    _encoder: msgspec.json.Encoder = field(default_factory=msgspec.json.Encoder)

    async def watch(
        self, actor: Actor, every_s: float, has_read: Callable[[], bool]
    ) -> AsyncGenerator[tuple[bytes, bytes], None]:
        """Yield snapshots, each in two pieces: one at once, and then one every `every_s` seconds,
        but not before the client has read the last one (`has_read`)."""
        due_s = self.mono()
        while True:
            common = await self._newest()
            yield await self._head(actor, common), common.tail
            due_s = max(due_s + every_s, self.mono())
            await asyncio.sleep(due_s - self.mono())
            while not has_read():
                await asyncio.sleep(POLL_S)
            if common is self._common:
                # The common part takes long to compute: wait for the next one.
                await asyncio.sleep(common.until_s - self.mono())

    async def _newest(self) -> _Common:
        while (common := self._common) is None or self.mono() >= common.until_s:
            self._making = self._making or asyncio.create_task(self._make())
            await asyncio.shield(self._making)
        return common

    async def _make(self) -> None:
        try:
            begin_s = self.mono()
            view, shown = await self.overview.common_part()
            tail = self._encoder.encode(view)[1:] + b"}\n"
            rest_s = max(_FRESH_S, _REST * (self.mono() - begin_s))
            self._common = _Common(begin_s + rest_s, tail, shown)
        finally:
            self._making = None

    async def _head(self, actor: Actor, common: _Common) -> bytes:
        head = common.heads.get(actor.user)
        if head is None:
            begin_s = self.mono()
            ids = await self.overview.ids(actor.user, common.shown)
            mine = self._encoder.encode(await self.overview.waiting_rows(ids))
            head = b'"user":%b,"mine":%b,' % (self._encoder.encode(actor.user), mine)
            common.heads[actor.user] = head
            common.until_s += _REST * (self.mono() - begin_s)
        return b'{"ok":true,"snapshot":{"admin":%b,%b' % (_TRUTH[actor.is_admin], head)
