"""How everything stands, in rows that all may see, in the order in which people look for them."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice

from drfd.core.array import Group
from drfd.core.job import Job, JobState, leaf_path
from drfd.core.plan import Plan
from drfd.core.reasons import Reason
from drfd.core.tree import path_up
from drfd.core.upcoming import Next, line, upcoming
from drfd.daemon.curves import Curves
from drfd.daemon.engine import Engine
from drfd.daemon.lookup import Lookup, Row
from drfd.host.pressure import read_pressure
from drfd.wire import views
from drfd.wire.snapshot import Sums, now_view, row_view
from drfd.wire.views import View

#: Rows of each kind at most.
MOST_RUNNING, MOST_PENDING, MOST_ENDED = 2000, 300, 50
#: An array with holes stands in a queue in many pieces, and is one row.
_MOST_PIECES = 4 * MOST_PENDING
#: A sentence with times of the day in it is true for so long.
_SAID_FOR_S = 5.0
_WAITING = (JobState.PENDING, JobState.HELD)


@dataclass
class Overview:
    engine: Engine
    lookup: Lookup
    curves: Curves
    #: Those that ended last; None: to be read again.
    _ended: list[View] | None = None
    #: Why jobs wait, as of one pass with nothing changed since.
    _reasons: dict[int, tuple[Job, Reason | None]] = field(default_factory=dict)
    _reasons_of: tuple[Plan | None, bool] = (None, True)
    _reasons_until_s: float = 0.0

    def begin(self) -> None:
        """Somebody looks again: of what has changed meanwhile nobody has told us."""
        self._ended = None
        self._reasons.clear()

    def job_changed(self, job: Job) -> None:
        self._reasons.clear()
        if job.state is JobState.ENDED:
            self._ended = None

    def look(self) -> tuple[View, frozenset[int]]:
        """What is the same for everybody; and the ids of the waiting rows that are in it."""
        engine = self.engine
        ledger, external = engine.ledger, engine.external
        running = [self._running(job) for job in islice(self._holders(), MOST_RUNNING)]
        pending = self._pending()
        shares = views.shares_view(ledger, engine.rules, external)
        used = self._used()
        view = {
            "at": engine.clock().at_s,
            "host": os.uname().nodename,
            "draining": ledger.draining,
            "capacity": shares["capacity"],
            "free": shares["free"],
            "external": views.external_view(external),
            "pressure": read_pressure(),
            "nodes": [
                node | {"used": used.get(node["path"], Sums()).view} for node in shares["nodes"]
            ],
            "counts": {state.value: count for state, count in ledger.census.states.items()},
            "running": running,
            "pending": self.waiting_rows(pending.values()),
            "pending_more": self._count_waiting_rows() - len(pending),
            "ended": self._ended_rows(),
        }
        return view, frozenset(pending)

    def own(self, user: str, shown: Container[int]) -> dict[int, Row]:
        """The user's waiting rows that are not `shown`, by id."""
        ledger = self.engine.ledger
        left = ledger.census.waiting.get(user, 0)
        found: dict[int, Row] = {}
        if not left:
            return found
        name = leaf_path("", user)[1:]
        leaves = (leaf for leaf in ledger.queues if leaf.rpartition(".")[2] == name)
        entries = merge(*(line(ledger.queues[leaf]) for leaf in leaves))
        seen = self._rows(islice(entries, _MOST_PIECES), 2 * MOST_PENDING)
        for row_id, row in seen.items():
            left -= row.size if isinstance(row, Group) else 1
            if row_id not in shown and len(found) < MOST_PENDING:
                found[row_id] = row
        if left and len(found) < MOST_PENDING:
            rest = (row for row in self._unqueued(seen) if _spec_of(row) == user)
            fresh = ((_id_of(row), row) for row in rest if _id_of(row) not in shown)
            found.update(islice(fresh, MOST_PENDING - len(found)))
        return found

    def waits(self, row_id: int) -> bool:
        ledger = self.engine.ledger
        job = ledger.jobs.get(row_id)
        if job is not None:
            return job.state in _WAITING
        roster = ledger.arrays.get(row_id)
        return roster is not None and bool(roster.unborn)

    def waiting_rows(self, rows: Iterable[Row]) -> list[View]:
        self._forget_reasons()
        return [self._waiting_row(row) for row in rows]

    # -- parts ------------------------------------------------------------------------------

    def _holders(self) -> list[Job]:
        return sorted(self.engine.ledger.holders(), key=lambda job: job.id)

    def _running(self, job: Job) -> View:
        waits = job.state is JobState.SUSPENDED
        return row_view(
            job,
            reason=self.lookup.reason(job) if waits else None,
            expected_start_s=None,
            now=self.curves.last(job),
            peak_bytes=self.curves.meter.peak_bytes(job),
        )

    def _used(self) -> dict[str, Sums]:
        """By node: what the jobs in it and below really use."""
        sums: dict[str, Sums] = {}
        for job in self.engine.ledger.holders():
            now = self.curves.last(job)
            if now is not None:
                view = now_view(now, job)
                for path in path_up(job.spec.leaf):
                    sums.setdefault(path, Sums()).add(view)
        return sums

    def _pending(self) -> dict[int, Row]:
        """In the order in which they would start; then those that may not as yet, and held ones."""
        engine = self.engine
        scheduler = engine.scheduler
        order = upcoming(engine.ledger, scheduler.last_plan, engine.rules, scheduler.spent)
        rows = self._rows(islice(order, _MOST_PIECES), MOST_PENDING)
        if len(rows) < MOST_PENDING and len(rows) < self._count_waiting_rows():
            rest = islice(self._unqueued(rows), MOST_PENDING - len(rows))
            rows.update({_id_of(row): row for row in rest})
        return rows

    def _rows(self, entries: Iterable[Next], most: int) -> dict[int, Row]:
        """Of what stands in queues, in its order: a job, or an array's tasks without a record."""
        ledger = self.engine.ledger
        rows: dict[int, Row] = {}
        for entry in entries:
            if len(rows) == most:
                break
            job_id = entry.run[1]
            job = ledger.jobs.get(job_id)
            if job is not None:
                # Who is frozen waits, too: to go on.
                if job.state is JobState.PENDING:
                    rows[job_id] = job
                continue
            task = ledger.job(job_id)
            assert task.array_id is not None
            if task.array_id not in rows:
                roster = ledger.arrays[task.array_id]
                rows[task.array_id] = Group(roster.array, roster.ids())
        return rows

    def _unqueued(self, known: Container[int]) -> Iterator[Row]:
        """Waiting rows that are not `known`, pending ones first."""
        ledger = self.engine.ledger
        groups = [group for group in ledger.arrays.groups() if group.array.id not in known]
        for state in _WAITING:
            if ledger.census.states[state]:
                yield from (group for group in groups if group.array.common.state is state)
                for job in ledger.jobs.values():
                    if job.state is state and job.id not in known:
                        yield job

    def _count_waiting_rows(self) -> int:
        ledger = self.engine.ledger
        waiting = sum(ledger.census.states[state] for state in _WAITING)
        sizes = [len(roster.unborn) for roster in ledger.arrays.values() if roster.unborn]
        return waiting - sum(sizes) + len(sizes)

    def _waiting_row(self, row: Row) -> View:
        job = row.job if isinstance(row, Group) else row
        known = self._reasons.get(job.id)
        if known is None or known[0] is not job:
            known = self._reasons[job.id] = job, self.lookup.reason(job)
        return row_view(
            row,
            reason=known[1],
            expected_start_s=self.lookup.expected_start_s(job),
            now=None,
            peak_bytes=None,
        )

    def _forget_reasons(self) -> None:
        """When a pass, or the clock, may have made them untrue."""
        plan, is_ready = self.engine.scheduler.last_plan, self.engine.host.is_ready()
        was_plan, was_ready = self._reasons_of
        now_s = time.monotonic()
        if plan is not was_plan or is_ready is not was_ready or now_s > self._reasons_until_s:
            self._reasons.clear()
        if not self._reasons:
            self._reasons_of = plan, is_ready
            self._reasons_until_s = now_s + _SAID_FOR_S

    def _ended_rows(self) -> list[View]:
        if self._ended is None:
            rows = self.lookup.latest_ended(MOST_ENDED)
            self._ended = [
                row_view(row, reason=None, expected_start_s=None, now=None, peak_bytes=None)
                for row in rows
            ]
        return self._ended


def _id_of(row: Row) -> int:
    return row.array.id if isinstance(row, Group) else row.id


def _spec_of(row: Row) -> str:
    return row.array.spec.user if isinstance(row, Group) else row.spec.user
