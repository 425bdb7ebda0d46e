"""Rows of jobs beyond those of `drf status`: what waits, in the order of the starts and by filter,
and a user's latest jobs.

The rows of what waits are those of snapshots and contain nothing that only the owner may see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, islice
from typing import get_args

from drfd.common.errors import Refused
from drfd.core.decisions.job_requests import owns
from drfd.core.explain.forecast import Next, line, shut_out, upcoming
from drfd.core.explain.waits import Code
from drfd.core.model.job import WAITING_STATES, Actor, Job, JobState, Tasks, leaf_path
from drfd.core.scheduling.policies import Plan
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.lookup import Lookup, Row, job_of
from drfd.daemon.lookup.views import row_view, tasks_label, wait_view
from drfd.daemon.users.loop_time import CooperativeYield
from drfd.journal.history import PastFilter, read_ended
from drfd.protocol import replies
from drfd.protocol.requests import RecentRequest, WaitingRequest

MOST_PENDING = 300
#: The most queue entries that are read for the pending rows. An array of which single tasks have
#: started has many entries and one row.
_MOST_PIECES = 4 * MOST_PENDING
#: The most queue entries that found rows are ordered by, because the queues may not change
#: meanwhile. Rows behind them follow in the order of ids.
_MOST_ORDERED = 2000
#: Least characters of a text that is compared with the codes of reasons, which cost some work.
_LEAST_CODE = 3
_CODES = tuple(code.casefold() for code in get_args(Code))


@dataclass
class WaitingRows:
    """The jobs that wait, and the arrays with tasks without a record that do."""

    engine: Engine
    lookup: Lookup
    #: Reasons for waiting since the last pass, by the job's id.
    _reasons: dict[int, tuple[Job, replies.WaitView | None]] = field(
        default_factory=dict, init=False
    )
    _reasons_of: tuple[Plan | None, bool] = field(default=(None, True), init=False)

    def pending(self) -> dict[int, Row]:
        """Return the first rows in the order of their start; those without one come last."""
        rows = self._rows(islice(self._in_turn(), _MOST_PIECES), MOST_PENDING)
        if len(rows) < MOST_PENDING and len(rows) < self.count_pending():
            rest = islice(self._unqueued(rows), MOST_PENDING - len(rows))
            rows.update({_id_of(row): row for row in rest})
        return rows

    def count_pending(self) -> int:
        ledger = self.engine.ledger
        waiting = sum(ledger.job_counts.states[state] for state in WAITING_STATES)
        # The tasks of an array without records of their own share a row.
        sizes = (len(array_state.unmaterialized) for array_state in ledger.arrays.values())
        return waiting - sum(max(0, size - 1) for size in sizes)

    def own(self, user: str, shown: Container[int]) -> dict[int, Row]:
        """Return the user's rows that are not `shown`, by id."""
        ledger = self.engine.ledger
        left = ledger.job_counts.waiting.get(user, 0)
        found: dict[int, Row] = {}
        if not left:
            return found
        name = leaf_path("", user)[1:]
        leaves = (leaf for leaf in ledger.queues if leaf.rpartition(".")[2] == name)
        entries = merge(*(line(ledger, leaf) for leaf in leaves))
        seen = self._rows(islice(entries, _MOST_PIECES), 2 * MOST_PENDING)
        for row_id, row in seen.items():
            left -= row.size if isinstance(row, Tasks) else 1
            if row_id not in shown and len(found) < MOST_PENDING:
                found[row_id] = row
        if left and len(found) < MOST_PENDING:
            rest = (row for row in self._unqueued(seen) if job_of(row).spec.user == user)
            fresh = ((_id_of(row), row) for row in rest if _id_of(row) not in shown)
            found.update(islice(fresh, MOST_PENDING - len(found)))
        return found

    async def search(self, request: WaitingRequest) -> replies.WaitingReply:
        """Return the first rows that pass the filter. All waiting jobs are searched, with pauses
        for other requests."""
        yielding = CooperativeYield()
        self._reasons.clear()
        found: dict[int, Row] = {}
        passes = self._filter(request)
        ledger = self.engine.ledger
        for row_id in [*ledger.jobs, *ledger.arrays]:
            row = self.find(row_id)
            if row is not None and passes(row):
                found[row_id] = row
            await yielding.maybe_yield()
        rows = []
        for row_id in self._by_start(found)[:MOST_PENDING]:
            # It may have started or ended in a pause.
            row = self.find(row_id)
            if row is not None:
                rows += self.waiting_rows([row])
            await yielding.maybe_yield()
        return {"rows": rows, "total": len(found)}

    def find(self, row_id: int) -> Row | None:
        """Return the job, or the array's tasks without a record, if it waits now, or None."""
        job = self.engine.ledger.jobs.get(row_id)
        if job is not None:
            return job if job.state in WAITING_STATES else None
        array_state = self.engine.ledger.arrays.get(row_id)
        return None if array_state is None else array_state.tasks

    def waiting_rows(self, rows: Iterable[Row]) -> list[replies.SnapshotRow]:
        """Return the rows with the reasons for waiting, which are cached until the next scheduling
        pass: there is one every few seconds while jobs wait."""
        plan, is_ready = self.engine.scheduler.last_plan, self.engine.launchers.is_ready()
        was_plan, was_ready = self._reasons_of
        if plan is not was_plan or is_ready is not was_ready:
            self._reasons.clear()
            self._reasons_of = plan, is_ready
        return [self._view(row) for row in rows]

    def _view(self, row: Row) -> replies.SnapshotRow:
        job = job_of(row)
        known = self._reasons.get(job.id)
        if known is None or known[0] is not job:
            known = self._reasons[job.id] = job, wait_view(self.lookup.reason(job))
        return row_view(row, reason=known[1], expected_start_s=self.lookup.expected_start_s(job))

    def _in_turn(self) -> Iterator[Next]:
        scheduler = self.engine.scheduler
        return upcoming(
            self.engine.ledger, scheduler.last_plan, self.engine.rules, scheduler.past_usage
        )

    def _rows(self, entries: Iterable[Next], most: int) -> dict[int, Row]:
        """Return the rows of queue entries in their order: jobs, or an array's pending tasks."""
        ledger = self.engine.ledger
        rows: dict[int, Row] = {}
        for entry in entries:
            if len(rows) == most:
                break
            job_id = entry.run[1]
            job = ledger.jobs.get(job_id)
            if job is not None:
                # Suspended jobs are in the queue, too: they wait to go on.
                if job.state is JobState.PENDING:
                    rows[job_id] = job
                continue
            task = ledger.job(job_id)
            assert task.array_id is not None
            if task.array_id not in rows:
                array_state = ledger.arrays[task.array_id]
                rows[task.array_id] = Tasks(array_state.array, array_state.ids())
        return rows

    def _unqueued(self, known: Container[int]) -> Iterator[Row]:
        """Yield pending rows that are not `known`: those that only the limit of their group or
        array keeps out of the queue, in the order in which they enter it, then the others, then
        held ones."""
        ledger = self.engine.ledger
        first = self._rows(islice(shut_out(ledger), _MOST_PIECES), 2 * MOST_PENDING)
        seen = {row_id: row for row_id, row in first.items() if row_id not in known}
        yield from seen.values()
        groups = [
            group
            for group in ledger.arrays.tasks()
            if group.array.id not in known and group.array.id not in seen
        ]
        for state in WAITING_STATES:
            if ledger.job_counts.states[state]:
                yield from (group for group in groups if group.array.common.state is state)
                for job in ledger.jobs.values():
                    if job.state is state and job.id not in known and job.id not in seen:
                        yield job

    def _filter(self, request: WaitingRequest) -> Callable[[Row], bool]:
        text = request.text.casefold()
        below = f"{request.below}." if request.below else ""
        is_code = len(text) >= _LEAST_CODE and any(text in code for code in _CODES)
        try:
            task_id = self.lookup.id_of(request.text) if "_" in request.text else None
        except Refused:
            task_id = None

        def passes(row: Row) -> bool:
            job = job_of(row)
            spec = job.spec
            if request.user is not None and spec.user != request.user:
                return False
            if below and not f"{spec.leaf}.".startswith(below):
                return False
            if not text:
                return True
            label = tasks_label(row) if isinstance(row, Tasks) else job.label
            group = "" if spec.group is None else spec.group.name
            words = "\n".join((label, spec.name, spec.user, spec.pool, group, job.shown_state))
            if text in words.casefold():
                return True
            ids = row.ids if isinstance(row, Tasks) else ((row.id, row.id),)
            if task_id is not None and any(first <= task_id <= last for first, last in ids):
                return True
            reason = self.lookup.reason(job) if is_code else None
            return reason is not None and text in reason.code.casefold()

        return passes

    def _by_start(self, found: dict[int, Row]) -> list[int]:
        """Return the ids of the rows in the order of their start; held ones come last."""
        if not found:
            return []
        entries = islice(chain(self._in_turn(), shut_out(self.engine.ledger)), _MOST_ORDERED)
        ranks = {row_id: at for at, row_id in enumerate(self._rows(entries, _MOST_ORDERED))}

        def rank(row_id: int) -> tuple[bool, int, int]:
            is_held = job_of(found[row_id]).state is JobState.HELD
            return is_held, ranks.get(row_id, _MOST_ORDERED), row_id

        return sorted(found, key=rank)


def _id_of(row: Row) -> int:
    return row.array.id if isinstance(row, Tasks) else row.id


# -- the latest jobs of a user, and words that command lines may contain ---------------------------

#: Ended jobs that are read for each that is wanted, because tasks of one array are one row, and the
#: most that are read.
_READ_FOR_EACH, _MOST_READ = 5, 1000
#: The most users that a reply names.
_MOST_USERS = 1000
#: States of an array's tasks, of which the first that some task has is the array's.
_FIRST = (JobState.RUNNING, JobState.STARTING, JobState.SUSPENDED, JobState.PENDING)


async def find_recent(engine: Engine, actor: Actor, request: RecentRequest) -> replies.RecentReply:
    """Return the jobs and arrays that the user has submitted last, newest first. Jobs are found by
    it that are named `train` or `@-1`, and command lines are completed."""
    most = min(_MOST_READ, request.limit * _READ_FOR_EACH)
    past = PastFilter(user=actor.user, name=request.name, limit=most)
    # The ended ones first, so that a job that ends meanwhile is not missing from both.
    ended = await asyncio.to_thread(
        lambda: list(read_ended(engine.journal.path, past, commands=False))
    )
    found: dict[int, replies.RecentJobView] = {}
    for job in ended:
        # The tasks of an array may have ended differently.
        state = job.shown_state if job.array_id is None else "array"
        job_id = job.array_id or job.id
        found[job_id] = {"id": job_id, "name": job.spec.name, "state": state, "live": False}
    yielding, ledger, left = CooperativeYield(), engine.ledger, request.limit
    for job_id in sorted({*ledger.jobs, *ledger.arrays}, reverse=True):
        await yielding.maybe_yield()
        array_state, live = ledger.arrays.get(job_id), ledger.jobs.get(job_id)
        if array_state is not None:
            spec = array_state.array.spec
        elif live is not None and live.array_id is None:
            spec = live.spec
        else:
            continue
        if not left or not owns(actor, spec) or request.name not in (None, spec.name):
            continue
        if array_state is not None:
            states = {ledger.jobs[task].state for task in array_state.live}
            if array_state.unmaterialized:
                states.add(array_state.array.common.state)
            state = next((each for each in _FIRST if each in states), min(states)).value
        elif live is not None:
            state = live.shown_state
        found[job_id] = {"id": job_id, "name": spec.name, "state": state, "live": True}
        left -= 1
    return {
        "recent": [found[job_id] for job_id in sorted(found, reverse=True)[: request.limit]],
        "pools": sorted(engine.rules.pools),
        "users": sorted(ledger.job_counts.records)[:_MOST_USERS],
        "gres": [name for name, _ in engine.rules.capacity.gres],
    }
