"""Rows of jobs beyond those of `drf status`: what waits, in the order of the starts, and a user's
latest jobs.

The rows of what waits are those of snapshots and contain nothing that only the owner may see.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice

from drfd.core.decisions.job_requests import owns
from drfd.core.explain.forecast import Next, line, shut_out, upcoming
from drfd.core.model.job import WAITING_STATES, Actor, Job, JobState, Tasks, leaf_path
from drfd.core.scheduling.policies import Plan
from drfd.core.scheduling.release_times import StartForecast
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.lookup import Lookup, Row, job_of
from drfd.daemon.lookup.views import row_view, wait_view
from drfd.daemon.users.turns import InParts
from drfd.protocol import replies
from drfd.protocol import requests as msg

MOST_PENDING = 300
#: The most queue entries that are read for the order of rows, because the queues may not change
#: meanwhile. An array of which single tasks have started has many entries and one row.
_MOST_PIECES = 4 * MOST_PENDING


@dataclass
class WaitingRows:
    """The jobs that wait, and the arrays with tasks without a record that do."""

    engine: Engine
    lookup: Lookup
    #: Returns the start that a forecast has found for a waiting job, or None if none has.
    start_of: Callable[[Job], StartForecast | None] = field(default=lambda _: None, kw_only=True)
    #: Reasons for waiting since the last pass, by the job's id.
    _reasons: dict[int, tuple[Job, replies.WaitView | None]] = field(
        default_factory=dict, init=False
    )
    _reasons_of: tuple[Plan | None, bool] = field(default=(None, True), init=False)

    async def ids(self, user: str | None = None, shown: Collection[int] = ()) -> list[int]:
        """Return the ids of the first rows that are not `shown`, of one user or of all, in the
        order of their start; those without one come last."""
        ledger = self.engine.ledger
        if user is None:
            left = sum(ledger.job_counts.states[state] for state in WAITING_STATES)
            entries = self._in_turn()
        else:
            left = ledger.job_counts.waiting.get(user, 0)
            name = leaf_path("", user)[1:]
            leaves = (leaf for leaf in ledger.queues if leaf.rpartition(".")[2] == name)
            entries = merge(*(line(ledger, leaf) for leaf in leaves))
        seen = self._rows(islice(entries, _MOST_PIECES), MOST_PENDING + len(shown)) if left else {}
        left -= sum(row.size if isinstance(row, Tasks) else 1 for row in seen.values())
        found = [row_id for row_id in seen if row_id not in shown][:MOST_PENDING]
        most = min(MOST_PENDING - len(found), left)
        return found + await self._unqueued({*seen, *shown}, most, user)

    def count_pending(self) -> int:
        ledger = self.engine.ledger
        waiting = sum(ledger.job_counts.states[state] for state in WAITING_STATES)
        # The tasks of an array without records of their own share a row.
        sizes = (len(array_state.unmaterialized) for array_state in ledger.arrays.values())
        return waiting - sum(max(0, size - 1) for size in sizes)

    async def waiting_rows(self, ids: Iterable[int]) -> list[replies.SnapshotRow]:
        """Return the rows that still wait, with their reasons."""
        rows = list[replies.SnapshotRow]()
        async for row_id in InParts(ids):
            # It may have started or ended in a pause.
            row = self.find(row_id)
            rows += [] if row is None else [self._view(row)]
        return rows

    def find(self, row_id: int) -> Row | None:
        """Return the job, or the array's tasks without a record, if it waits now, or None."""
        job = self.engine.ledger.jobs.get(row_id)
        if job is not None:
            return job if job.state in WAITING_STATES else None
        array_state = self.engine.ledger.arrays.get(row_id)
        return None if array_state is None else array_state.tasks

    def _view(self, row: Row) -> replies.SnapshotRow:
        """Return the row with the reason for waiting, which is cached until the next scheduling
        pass: there is one every few seconds while jobs wait."""
        plan, is_ready = self.engine.scheduler.last_plan, self.engine.launchers.is_ready()
        was_plan, was_ready = self._reasons_of
        if plan is not was_plan or is_ready is not was_ready:
            self._reasons.clear()
            self._reasons_of = plan, is_ready
        job = job_of(row)
        known = self._reasons.get(job.id)
        if known is None or known[0] is not job:
            known = self._reasons[job.id] = job, wait_view(self.lookup.reason(job))
        start_s, start = self.lookup.expected_start_s(job), self.start_of(job)
        view = row_view(
            row, reason=known[1], expected_start_s=start_s if start is None else start[0]
        )
        if start is not None:
            view["expected_start_certainty"] = start.certainty.value
        return view

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

    async def _unqueued(
        self, known: Collection[int], most: int, user: str | None = None
    ) -> list[int]:
        """Return the ids of pending rows that are not `known`: those that only the limit of their
        group or array keeps out of the queue, in the order in which they enter it, then the others,
        then held ones."""
        ledger = self.engine.ledger
        found: dict[int, None] = {}

        def enter(row_id: int, row: Row) -> None:
            if row_id not in known and user in (None, job_of(row).spec.user):
                found[row_id] = None

        if most > 0:
            entries = islice(shut_out(ledger), _MOST_PIECES)
            for row_id, row in self._rows(entries, 2 * MOST_PENDING).items():
                enter(row_id, row)
        for state in WAITING_STATES:
            ids = [*ledger.arrays, *ledger.jobs] if ledger.job_counts.states[state] else []
            async for row_id in InParts(ids):
                if len(found) >= most:
                    break
                waiting = self.find(row_id)
                if waiting is not None and job_of(waiting).state is state:
                    enter(row_id, waiting)
        return [*found][: max(0, most)]


# -- the latest jobs of a user, and words that command lines may contain ---------------------------

#: Ended jobs that are read for each that is wanted, because tasks of one array are one row, and the
#: most that are read.
_READ_FOR_EACH, _MOST_READ = 5, 1000
#: The most users that a reply names.
_MOST_USERS = 1000
#: States of an array's tasks, of which the first that some task has is the array's.
_FIRST = (JobState.RUNNING, JobState.STARTING, JobState.SUSPENDED, JobState.PENDING)
#: That of an array of which no task is live.
_ARRAY = "array"


async def find_recent(
    lookup: Lookup, actor: Actor, request: msg.RecentRequest
) -> replies.RecentReply:
    """Return the jobs and arrays that the user has submitted last, newest first. Jobs are found by
    it that are named `train` or `@-1`, and command lines are completed."""
    pattern = None if request.name is None else msg.pattern_of(request.name)
    own = msg.Selection(user=actor.user, name=pattern)
    ended = min(_MOST_READ, request.limit * _READ_FOR_EACH)
    found: dict[int, replies.RecentJobView] = {}
    # In the order of their ids.
    rows = await lookup.rows(msg.StatusRequest(v=request.v, select=own, ended=ended))
    async for row in InParts(rows):
        job = None if row is None else job_of(row)
        if job is None or not owns(actor, job.spec) or request.name not in (None, job.spec.name):
            continue
        array_id = row.array.id if isinstance(row, Tasks) else job.array_id
        is_live = job.state is not JobState.ENDED
        job_id, state = job.id if array_id is None else array_id, job.shown_state
        if array_id is not None:
            before = found.get(array_id)
            # The tasks of an array may have ended differently.
            states = [state if is_live else _ARRAY, _ARRAY if before is None else before["state"]]
            state = min(states, key=_order)
            is_live = state != _ARRAY
        found[job_id] = {"id": job_id, "name": job.spec.name, "state": state, "live": is_live}
        if len(found) > request.limit:
            del found[next(iter(found))]
    engine = lookup.engine
    return {
        "recent": [found[job_id] for job_id in sorted(found, reverse=True)],
        "pools": sorted(engine.rules.pools),
        "users": sorted(engine.ledger.job_counts.records)[:_MOST_USERS],
        "gres": [name for name, _ in engine.rules.capacity.gres],
    }


def _order(state: str) -> tuple[int, str]:
    return _FIRST.index(state) if state in _FIRST else len(_FIRST) + (state == _ARRAY), state
