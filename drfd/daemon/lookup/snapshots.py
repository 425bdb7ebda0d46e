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
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

import msgspec

from drfd.common.units import AXES
from drfd.core.fairness.share_tree import path_up
from drfd.core.lending import Loan
from drfd.core.model.job import Actor, Job, JobState
from drfd.core.model.resources import kind_of
from drfd.daemon.lookup import views
from drfd.daemon.lookup.rows import WaitingRows
from drfd.daemon.monitoring.gpu_use import MeasuredGpu
from drfd.daemon.monitoring.meter import Curves
from drfd.host.measurements import read_pressure
from drfd.protocol import replies

MOST_RUNNING, MOST_ENDED = 2000, 50
#: Seconds for which a common part is shown again. It is less than the shortest interval between
#: two snapshots (1 s), so that no client gets the same one twice.
_FRESH_S = 0.9
#: The daemon spends at most this part (1/n) of a processor on the common part, by computing it less
#: often if necessary, and as much again on the users' own rows.
_PART = 50
#: Seconds after which a user's own rows are computed anew even if that part is used up.
_OWN_FRESH_S = 10.0
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
    #: Returns what a running job may use now of its ranges.
    loans_of: Callable[[Job], Sequence[Loan]] = lambda job: ()
    #: Rows of the jobs that ended last, or None if they must be read again.
    _ended: list[replies.SnapshotRow] | None = None
    #: The rows among them that stand for cancelled tasks, by the array's id.
    _cancelled: dict[int, replies.SnapshotRow] = field(default_factory=dict)

    def begin(self) -> None:
        """Drop the caches: changes since the last watcher left were not reported."""
        self._ended = None
        self._reasons.clear()

    def job_changed(self, job: Job) -> None:
        """Drop the cache that contains the job."""
        self._reasons.clear()
        if job.state is JobState.ENDED:
            self._ended = None

    def common_part(self) -> tuple[replies.CommonSnapshot, frozenset[int]]:
        """Return the part that is the same for all users, and the ids of its pending rows."""
        running = [self._running(job) for job in islice(self._holders(), MOST_RUNNING)]
        pending = self.pending()
        shown = {
            "at": self.engine.clock().at_s,
            "host": os.uname().nodename,
            **views.drain_part(self.engine.ledger),
            "notices": self.notices(),
            **self.machine_part(),
            "running": running,
            "pending": self.waiting_rows(pending.values()),
            "pending_more": self.count_pending() - len(pending),
            "ended": self._ended_rows(),
        }
        if machines := self.machines():
            shown["machines"] = machines
        return cast(replies.CommonSnapshot, shown), frozenset(pending)

    def machine_part(self) -> replies.MachinePart:
        """Return the figures of the machine and of the tree, which contain no job."""
        engine = self.engine
        ledger, external = engine.ledger, engine.external
        shares = views.shares_view(ledger, engine.rules, external, engine.quota_use())
        used = self._used()
        view: replies.MachinePart = {
            "draining": ledger.draining,
            "capacity": shares["capacity"],
            "free": shares["free"],
            "external": views.external_view(external),
            "external_off": engine.rules.beside is None,
            "pressure": read_pressure(),
            "nodes": [
                {**node, "used": used.get(node["path"], views.Sums()).view}
                for node in shares["nodes"]
            ],
            "counts": {state.value: count for state, count in ledger.job_counts.states.items()},
        }
        if gpus := self.gpus():
            view["gpus"] = [views.gpu_view(each) for each in gpus]
        return view

    # -- parts ------------------------------------------------------------------------------

    def _holders(self) -> list[Job]:
        return sorted(self.engine.ledger.allocated_jobs(), key=lambda job: job.id)

    def _running(self, job: Job) -> replies.SnapshotRow:
        waits = job.state is JobState.SUSPENDED
        row = views.row_view(
            job,
            reason=views.wait_view(self.lookup.reason(job)) if waits else None,
            now=self.curves.last(job),
            peak_bytes=self.curves.meter.peak_bytes(job),
            gpus=self.curves.meter.gpus(job),
            each_gpu=self.curves.meter.each_gpu(job),
        )
        if row["now"] is not None and not waits:
            self._add_ceilings(job, row["now"])
        return row

    def _add_ceilings(self, job: Job, now: replies.NowView) -> None:
        ceilings = job.spec.demand.sums
        kinds = set()
        for loan in self.loans_of(job):
            kinds.add(kind_of(loan.axis))
            ceilings[kind_of(loan.axis)] += loan.ceiling - loan.floor
        now |= cast(
            replies.NowView,
            {f"{kind}_ceiling": AXES[kind].number(ceilings[kind]) for kind in kinds},
        )

    def _used(self) -> dict[str, views.Sums]:
        """Return what the jobs of each node use at present, by the node's path."""
        sums: dict[str, views.Sums] = {}
        for job in self.engine.ledger.allocated_jobs():
            now = self.curves.last(job)
            if now is not None:
                view = views.now_view(now, job)
                for path in path_up(job.spec.leaf):
                    sums.setdefault(path, views.Sums()).add(view)
        return sums

    def _ended_rows(self) -> list[replies.SnapshotRow]:
        if self._ended is None:
            rows = self.lookup.latest_ended(MOST_ENDED)
            self._cancelled = {
                each: self._cancelled.get(each) or views.row_view(self.lookup.cancelled_of(each))
                for each in rows
                if isinstance(each, int)
            }
            self._ended = [
                self._cancelled[each] if isinstance(each, int) else views.row_view(each)
                for each in rows
            ]
        return self._ended


@dataclass(frozen=True, slots=True)
class _Common:
    """The part of a snapshot that is the same for all users."""

    at_s: float
    #: Until then it is used for all clients.
    until_s: float
    #: JSON without the opening brace.
    tail: bytes
    #: Ids of its pending rows.
    shown: frozenset[int]


@dataclass(slots=True)
class _Own:
    """The pending rows of one user that are not in the common part."""

    at_s: float
    common: _Common
    rows: dict[int, bytes]
    #: JSON from the user's name up to the common part, for all clients of the user.
    head: bytes


@dataclass
class SnapshotFeed:
    """All watching clients, and the JSON that they share."""

    overview: Overview
    mono: Callable[[], float] = time.monotonic
    #: Returns the processor time of this process.
    spent_s: Callable[[], float] = time.process_time
    _common: _Common | None = None
    _own: dict[str, _Own] = field(default_factory=dict)
    #: Processor time that may still be spent on users' own rows.
    _budget_s: float = 0.0
    watchers: int = 0
    _encoder: msgspec.json.Encoder = field(default_factory=msgspec.json.Encoder)

    async def watch(
        self, actor: Actor, every_s: float, has_read: Callable[[], bool]
    ) -> AsyncGenerator[tuple[bytes, bytes], None]:
        """Yield snapshots, each in two pieces: one at once, and then one every `every_s` seconds,
        but not before the client has read the last one (`has_read`)."""
        changes = self.overview.engine.changes
        if not self.watchers:
            self.overview.begin()
            changes.listen(self.overview.job_changed)
        self.watchers += 1
        try:
            due_s = self.mono()
            while True:
                line, shown = self.line(actor), self._common
                yield line
                due_s = max(due_s + every_s, self.mono())
                await asyncio.sleep(due_s - self.mono())
                while not has_read():
                    await asyncio.sleep(POLL_S)
                if shown is not None and shown is self._common:
                    # The common part takes long to compute: wait for the next one.
                    await asyncio.sleep(shown.until_s - self.mono())
        finally:
            self.watchers -= 1
            if not self.watchers:
                changes.ignore(self.overview.job_changed)
                self._common = None
                self._own.clear()

    def line(self, actor: Actor) -> tuple[bytes, bytes]:
        user, now_s = actor.user, self.mono()
        common = self._common
        if common is None or now_s >= common.until_s:
            common = self._common = self._compute_common(now_s)
        own = self._own.get(user)
        if own is None or own.common is not common:
            at_s, rows = self._rows_of(user, common, now_s)
            name, mine = self._encoder.encode(user), b",".join(rows.values())
            head = b'"user":%b,"mine":[%b],' % (name, mine)
            own = self._own[user] = _Own(at_s, common, rows, head)
        head = b'{"ok":true,"snapshot":{"admin":%b,%b' % (_TRUTH[actor.is_admin], own.head)
        return head, common.tail

    def _compute_common(self, now_s: float) -> _Common:
        begin_s = self.spent_s()
        view, shown = self.overview.common_part()
        tail = self._encoder.encode(view)[1:] + b"}\n"
        until_s = now_s + max(_FRESH_S, _PART * (self.spent_s() - begin_s))
        self._budget_s = (until_s - now_s) / _PART
        gone = [user for user, own in self._own.items() if now_s - own.at_s > 2 * _OWN_FRESH_S]
        for user in gone:
            del self._own[user]
        return _Common(now_s, until_s, tail, shown)

    def _rows_of(self, user: str, common: _Common, now_s: float) -> tuple[float, dict[int, bytes]]:
        """Return the user's own rows, and when they were computed."""
        own = self._own.get(user)
        if own is None or self._budget_s > 0 or now_s - own.at_s > _OWN_FRESH_S:
            begin_s = self.spent_s()
            rows = self.overview.own(user, common.shown)
            encoded = map(self._encoder.encode, self.overview.waiting_rows(rows.values()))
            found = dict(zip(rows, encoded, strict=True))
            self._budget_s -= self.spent_s() - begin_s
            return now_s, found
        # Old rows stay, unless their jobs wait no longer or are in the common part.
        left = {
            row_id: row
            for row_id, row in own.rows.items()
            if row_id not in common.shown and self.overview.find(row_id) is not None
        }
        return own.at_s, left
