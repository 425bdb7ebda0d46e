"""Rows of jobs beyond those of `drf status`: what waits, in the order of the starts, and a user's
latest jobs.

The rows of what waits are those of snapshots and contain nothing that only the owner may see.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, islice

from drfd.core.decisions.job_requests import owns
from drfd.core.explain.forecast import Next, line, shut_out, upcoming
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import WAITING_STATES, Actor, Job, JobState, Tasks, leaf_path
from drfd.core.scheduling.release_times import StartForecast
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.lookup import Lookup, Row, first_id, job_of
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
    """The jobs that wait, and the tasks of arrays that wait and are alike."""

    engine: Engine
    lookup: Lookup
    #: Returns the start that a forecast has found for a waiting job, or None if none has.
    start_of: Callable[[Job], StartForecast | None] = field(default=lambda _: None, kw_only=True)

    async def ids(self, user: str | None = None, shown: Collection[int] = ()) -> list[int]:
        """Return the ids of the first rows that are not `shown`, of one user or of all, in the
        order of their start. Then come those that only the limit of their group or array keeps out
        of the queue, in the order in which they enter it, then the others, and held ones."""
        ledger = self.engine.ledger
        if user is None:
            left = sum(ledger.job_counts.states[state] for state in WAITING_STATES)
            entries = self._in_turn()
        else:
            left = ledger.job_counts.waiting.get(user, 0)
            name = leaf_path("", user)[1:]
            leaves = (leaf for leaf in ledger.queues if leaf.rpartition(".")[2] == name)
            entries = merge(*(line(ledger, leaf) for leaf in leaves))
        seen: dict[int, Row] = {}
        pieces = self._rows(islice(chain(entries, shut_out(ledger)), _MOST_PIECES))
        # One entry may be of tasks of many rows that take turns.
        for row in islice(pieces, _MOST_PIECES):
            if len(seen) == MOST_PENDING + len(shown):
                break
            if user in (None, job_of(row).spec.user):
                seen[first_id(row)] = row
        left -= sum(row.size if isinstance(row, Tasks) else 1 for row in seen.values())
        found = {row_id: None for row_id in seen if row_id not in shown}
        for state in WAITING_STATES if left > 0 else ():
            select = msg.Selection(user=user, states=(state.value,))
            async for waiting in self.lookup.rows(select):
                if len(found) >= MOST_PENDING:
                    break
                if first_id(waiting) not in shown:
                    found[first_id(waiting)] = None
        return [*found][:MOST_PENDING]

    def count_pending(self) -> int:
        ledger = self.engine.ledger
        waiting = sum(ledger.job_counts.states[state] for state in WAITING_STATES)
        rows = chain.from_iterable(map(ledger.rows, ledger.arrays.values()))
        return waiting - sum(row.size - 1 for row in rows if isinstance(row, Tasks))

    async def waiting_rows(self, ids: Iterable[int]) -> list[replies.SnapshotRow]:
        """Return the rows that still wait, with their reasons."""
        rows: dict[int, replies.SnapshotRow] = {}
        async for row_id in InParts(ids):
            # It may have started or ended in a pause.
            row = self.find(row_id)
            if row is not None:
                rows[first_id(row)] = self._view(row)
        return [*rows.values()]

    def find(self, row_id: int) -> Row | None:
        """Return the row of a job that waits now, or None. If the first of some tasks has started,
        or has ended since, it is that of the next of its array."""
        ledger = self.engine.ledger
        array = ledger.arrays.of_task(row_id)
        if array is None:
            job = ledger.jobs.get(row_id)
            return job if job is not None and job.state in WAITING_STATES else None
        rows = ledger.rows(ledger.arrays[array.id])
        later = islice(rows, bisect_left(rows, row_id, key=first_id), None)
        return next((row for row in later if job_of(row).state in WAITING_STATES), None)

    def _view(self, row: Row) -> replies.SnapshotRow:
        job = job_of(row)
        start_s, start = self.lookup.expected_start_s(job), self.start_of(job)
        view = row_view(
            row,
            reason=wait_view(self.lookup.reason(row)),
            expected_start_s=start_s if start is None else start[0],
        )
        if start is not None:
            view["expected_start_certainty"] = start.certainty.value
        return view

    def _in_turn(self) -> Iterator[Next]:
        scheduler = self.engine.scheduler
        return upcoming(
            self.engine.ledger, scheduler.last_plan, self.engine.rules, scheduler.past_usage
        )

    def _rows(self, entries: Iterable[Next]) -> Iterator[Row]:
        """Yield the rows of queue entries in their order: jobs, or like tasks of an array, which
        may come several times."""
        ledger, groups = self.engine.ledger, dict[int, list[Tasks]]()
        for entry in entries:
            _, job_id, last = entry.run
            while job_id <= last:
                job = ledger.jobs[job_id]
                row, end = _row_of(job, ledger, groups)
                # Suspended jobs are in the queue, too: they wait to go on.
                if job.state is JobState.PENDING:
                    yield row
                job_id = end + 1


def _row_of(job: Job, ledger: Ledger, groups: dict[int, list[Tasks]]) -> tuple[Row, int]:
    """Return the row that a waiting job is in, and the last of the adjacent ids in it. `groups` has
    the rows of several tasks of the arrays so far."""
    if job.array_id is None or job.attempt:
        return job, job.id
    rows = ledger.rows(ledger.arrays[job.array_id])
    if job.array_id not in groups:
        several = [row for row in rows if isinstance(row, Tasks) and row.size > 1]
        groups[job.array_id] = several
    for row in groups[job.array_id]:
        end = row.end_of(job.id)
        if end is not None:
            return row, end
    return rows[bisect_left(rows, job.id, key=first_id)], job.id


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
    groups = set[str]()
    # In the order of their ids.
    async for row in lookup.rows(own, ended=ended):
        job = job_of(row)
        if not owns(actor, job.spec) or request.name not in (None, job.spec.name):
            continue
        if job.spec.group is not None:
            groups.add(job.spec.group.name)
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
        "groups": sorted(groups),
        "pools": sorted(engine.rules.pools),
        "users": sorted(engine.ledger.job_counts.submissions)[:_MOST_USERS],
        "gres": [name for name, _ in engine.rules.capacity.gres],
    }


def _order(state: str) -> tuple[int, str]:
    return _FIRST.index(state) if state in _FIRST else len(_FIRST) + (state == _ARRAY), state
