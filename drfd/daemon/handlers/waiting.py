"""Waiting rows by filter, a page at a time: those that a snapshot leaves out, for `drf top`.

All waiting jobs are searched, with pauses for other requests. The rows are the same as those of a
snapshot and contain nothing that only the owner may see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, get_args

from drfd.common.errors import Refused
from drfd.core.explain.forecast import shut_out, upcoming
from drfd.core.explain.waits import Code
from drfd.core.model.job import WAITING_STATES, Job, JobState, Tasks
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.lookup import Lookup, Row, job_of
from drfd.daemon.lookup.views import row_view, tasks_label, wait_view
from drfd.daemon.users.loop_time import CooperativeYield
from drfd.protocol.replies import SnapshotRow, WaitingReply
from drfd.protocol.requests import WaitingRequest

#: The most queue entries that are put in the order of their start, because the queues may not
#: change meanwhile. Rows behind them follow in the order of ids.
MOST_ORDERED = 2000
#: Least characters of a text that is compared with the codes of reasons, which cost some work.
_LEAST_CODE = 3
_CODES = tuple(code.casefold() for code in get_args(Code))

_SORT_KEYS: dict[str, Callable[[Job], Any]] = {
    "submission": lambda job: job.submitted_at,
    "user": lambda job: job.spec.user,
    "name": lambda job: job.spec.name,
    "cores": lambda job: -job.spec.demand.cores_milli,
    "memory": lambda job: -job.spec.demand.memory_bytes,
}


@dataclass
class WaitingRows:
    engine: Engine
    lookup: Lookup

    async def answer(self, request: WaitingRequest) -> WaitingReply:
        """Return a page of the rows that pass the filter. `skip` counts from the first one, or is
        null for the last page."""
        yielding = CooperativeYield()
        found: dict[int, Row] = {}
        passes = self._filter(request)
        ledger = self.engine.ledger
        for row_id in [*ledger.jobs, *ledger.arrays]:
            row = self._row(row_id)
            if row is not None and passes(row):
                found[row_id] = row
            await yielding.maybe_yield()
        ids = self._in_order(found, request)
        total = len(ids)
        first = max(0, total - request.limit) if request.skip is None else min(request.skip, total)
        rows = []
        for row_id in ids[first : first + request.limit]:
            # It may have started or ended in a pause.
            row = self._row(row_id)
            if row is not None:
                rows.append(self._view(row))
            await yielding.maybe_yield()
        return {"rows": rows, "first": first, "total": total}

    def _row(self, row_id: int) -> Row | None:
        """Return the job, or the array's tasks without a record, if it waits now, or None."""
        ledger = self.engine.ledger
        job = ledger.jobs.get(row_id)
        if job is not None:
            return job if job.state in WAITING_STATES else None
        array_state = ledger.arrays.get(row_id)
        return None if array_state is None else array_state.tasks

    def _filter(self, request: WaitingRequest) -> Callable[[Row], bool]:
        text = request.text.casefold()
        below = f"{request.below}." if request.below else ""
        is_code = len(text) >= _LEAST_CODE and any(text in code for code in _CODES)
        try:
            task_id = self.lookup.id_of(request.text) if "_" in request.text else None
        except (Refused, ValueError):
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
            if task_id is not None and _has_task(row, task_id):
                return True
            if not is_code:
                return False
            reason = wait_view(self.lookup.reason(job))
            return reason is not None and text in reason["code"].casefold()

        return passes

    def _in_order(self, found: dict[int, Row], request: WaitingRequest) -> list[int]:
        """Return the ids of the rows in the requested order."""
        ids = sorted(found)
        if request.order != "turn":
            key = _SORT_KEYS[request.order]
            ids.sort(key=lambda row_id: key(job_of(found[row_id])))
        elif ids:
            ranks = self._ranks()
            last = len(ranks)

            def rank(row_id: int) -> tuple[bool, int]:
                return job_of(found[row_id]).state is JobState.HELD, ranks.get(row_id, last)

            ids.sort(key=rank)
        if request.reverse:
            ids.reverse()
        return ids

    def _ranks(self) -> dict[int, int]:
        """Return the places of jobs and arrays in the order of their start."""
        ledger, scheduler = self.engine.ledger, self.engine.scheduler
        order = upcoming(ledger, scheduler.last_plan, self.engine.rules, scheduler.past_usage)
        ranks: dict[int, int] = {}
        for entry in islice(chain(order, shut_out(ledger)), MOST_ORDERED):
            job_id = entry.run[1]
            if job_id not in ledger.jobs:
                array_id = ledger.job(job_id).array_id
                assert array_id is not None
                job_id = array_id
            ranks.setdefault(job_id, len(ranks))
        return ranks

    def _view(self, row: Row) -> SnapshotRow:
        job = job_of(row)
        return row_view(
            row,
            reason=wait_view(self.lookup.reason(job)),
            expected_start_s=self.lookup.expected_start_s(job),
        )


def _has_task(row: Row, task_id: int) -> bool:
    if isinstance(row, Job):
        return row.id == task_id
    return any(first <= task_id <= last for first, last in row.ids)
