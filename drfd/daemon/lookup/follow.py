"""Clients that follow jobs: `drf wait` until they end, and event streams at each change.

A stream holds its place in the journal, and reads from there which jobs have changed when one does.
So a client that does not read costs nothing, and each receives the latest state of every job.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import filterfalse

from msgspec.structs import replace

from drfd.common.indices import MAX_TASKS
from drfd.core.decisions.dependencies import first_stuck, stuck_on
from drfd.core.explain.reasons import awaited_job
from drfd.core.model.job import Actor, Job, JobState, Tasks
from drfd.core.scheduling.waits import WaitsFor
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.lookup import Lookup, Row, ids_of, job_of, passes
from drfd.daemon.lookup.views import Listed, exit_status, reason_view, short_row
from drfd.daemon.monitoring.meter import Meter
from drfd.daemon.users.quotas import quota_uid
from drfd.daemon.users.turns import PART_S, InParts, UserTurns
from drfd.protocol import replies
from drfd.protocol import requests as msg
from drfd.protocol.requests import Selection

#: Events of the journal that are read at a time.
PAGE = 500
#: Jobs of an event stream that are processed in a turn, at most.
_AT_ONCE = 50


@dataclass
class WaitHandler:
    """Answers all clients of `drf wait`."""

    engine: Engine
    lookup: Lookup
    turns: UserTurns
    #: What wakes clients, each with the ids of the jobs and arrays that it waits for; in place of a
    #: task's, the negated id of its array: the end of any of its tasks wakes the client.
    waiters: dict[asyncio.Event, set[int]] = field(default_factory=dict)
    #: Whether all waiters have been woken and none has checked its jobs since.
    _all_woken: bool = False

    def __post_init__(self) -> None:
        self.engine.listeners.append(self.job_changed)

    async def wait(self, actor: Actor, request: msg.WaitRequest) -> replies.WaitReply:
        """Wait for the jobs of a request. The reply has the jobs that have ended, and as `never`
        those that can never start."""
        async with self.turns.next(quota_uid(actor)):
            ids = await ids_of(self.lookup, request.ids)
            async for job_id in InParts(ids):
                if self.lookup.own_array(actor, job_id) is None:
                    self.lookup.own_job(actor, job_id)
        found = await self.until_ended(ids, any_one=request.any, timeout_s=request.timeout_s)
        async with self.turns.next(quota_uid(actor)):
            return await self._reply(actor, request, ids, found)

    async def _reply(
        self, actor: Actor, request: msg.WaitRequest, ids: Sequence[int], found: Sequence[int]
    ) -> replies.WaitReply:
        done = len(found) == len(ids) or (request.any and bool(found))
        ended = Listed[replies.JobView | replies.EndedArrayView]()
        never = Listed[replies.JobView]()
        # There is no next page of a wait, so further rows are short once it is full.
        async for job_id in InParts(found):
            row = await self._ended_view(job_id, actor)
            ended.add(short_row(row) if ended.is_full else row)
        async for job_id in InParts(() if done else ids):
            stuck = self.stuck(job_id)
            if stuck is not None:
                view = self.lookup.view(stuck, actor)
                view["reason"] = self.in_vain(stuck) or view["reason"]
                never.add(short_row(view) if never.is_full else view)
        return {"done": done, "ended": ended.rows, "never": never.rows}

    async def _ended_view(
        self, job_id: int, actor: Actor
    ) -> replies.JobView | replies.EndedArrayView:
        array = self.lookup.any_array(job_id)
        if array is not None:
            return await self.lookup.ended_array_view(array)
        job = self.lookup.any_job(job_id)
        return {**self.lookup.view(job, actor), "status": exit_status(job)}

    def job_changed(self, job: Job) -> None:
        """Wake the waiters of an ended job."""
        if job.state is not JobState.ENDED:
            if job.broken is not None or (job.awaits and self._is_waited_for(job)):
                self._wake_all()
            return
        keys = [job.id]
        if job.array_id is not None:
            keys.append(-job.array_id)
            if not self.engine.ledger.lives(job.array_id):
                keys.append(job.array_id)
        for waiter, awaited in self.waiters.items():
            if not awaited.isdisjoint(keys):
                waiter.set()

    def stuck(self, job_id: int) -> Job | None:
        """Return the job, or a task of the array, that can never start as things stand, or None."""
        return first_stuck(job_id, self.engine.ledger)

    def in_vain(self, job: Job) -> replies.CodeText | None:
        """Return the reason for a job that can never start because of a chain of dependencies: it
        names the job at the end of the chain. None if the job's own reason names that job."""
        ledger = self.engine.ledger
        last = stuck_on(job, ledger)
        if last is None or last.id == job.id or any(on.job_id == last.id for on in job.awaits):
            return None
        return reason_view(WaitsFor(awaited_job(last, ledger), is_through_others=True))

    async def until_ended(
        self, ids: Sequence[int], *, any_one: bool, timeout_s: float | None
    ) -> list[int]:
        """Wait until all jobs have ended or can never start, or until one has ended if `any_one`,
        or until the timeout. Return the ids that have ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        ledger, waiter = self.engine.ledger, asyncio.Event()
        left = list(filter(ledger.lives, ids))
        arrays = {each: ledger.arrays.of_task(each) for each in left}
        self.waiters[waiter] = {each if of is None else -of.id for each, of in arrays.items()}
        try:
            while True:
                waiter.clear()
                self._all_woken = False
                if (any_one and not all(map(ledger.lives, ids))) or await self._are_settled(left):
                    break
                left_s = None if deadline is None else deadline - time.monotonic()
                try:
                    await asyncio.wait_for(waiter.wait(), left_s)
                except TimeoutError:
                    break
        finally:
            del self.waiters[waiter]
        return list(filterfalse(ledger.lives, ids))

    async def _are_settled(self, left: list[int]) -> bool:
        """Whether each has ended or can never start. Only those that must be checked again stay in
        `left`, so that many ends cost no more than there are ids."""
        while left and not self.engine.ledger.lives(left[-1]):
            left.pop()
        async for job_id in InParts(reversed(left)):
            if self.engine.ledger.lives(job_id) and self.stuck(job_id) is None:
                return False
        return True

    def _is_waited_for(self, job: Job) -> bool:
        """Whether a client or another job waits for the job; assumed of an array, for its tasks."""
        keys = [job.id] if job.array_id is None else [job.id, job.array_id, -job.array_id]
        return (
            job.id == job.array_id
            or any(each in self.engine.ledger.dependents for each in keys)
            or any(not awaited.isdisjoint(keys) for awaited in self.waiters.values())
        )

    def _wake_all(self) -> None:
        """Wake all waiters when something can never start, or may wait for what cannot. They check
        again, and go on waiting if that is not all they wait for."""
        if not self._all_woken:
            self._all_woken = True
            for waiter in self.waiters:
                waiter.set()


@dataclass
class EventFeed:
    """All event streams."""

    engine: Engine
    meter: Meter
    turns: UserTurns = field(default_factory=UserTurns)
    #: What wakes streams at a change of a job: of this user's, or with "" of anybody's.
    listeners: dict[asyncio.Event, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lookup = Lookup(self.engine, self.meter)
        self.engine.listeners.append(self.job_changed)

    def job_changed(self, job: Job) -> None:
        for woken, user in self.listeners.items():
            if user in ("", job.spec.user):
                woken.set()

    async def stream(
        self, actor: Actor, request: msg.EventsRequest
    ) -> AsyncGenerator[list[replies.EventLine], None]:
        """Yield `{"event": job}` for each change, and `{"mark": place}` at the beginning and after
        each run of changes: another stream can go on from there. The stream ends when all jobs that
        were requested by id have ended, and otherwise never."""
        journal = self.engine.journal
        ids = sorted(await ids_of(self._lookup, request.select.ids))
        # Jobs that had not ended when they were last checked.
        left = list(ids)
        select = _narrowed(replace(request.select, ids=ids), actor)
        woken = asyncio.Event()
        self.listeners[woken] = "" if ids else select.user or ""
        try:
            now = journal.mark()
            is_known = request.after is not None and request.after <= now
            mark = request.after if request.after is not None and is_known else now
            # The mark comes at once: a client that loses the connection can go on from here.
            yield [{"mark": mark}]
            if request.standing or not is_known:
                listed = self._lookup.rows(select, ended=MAX_TASKS if ids else 0)
                async with aclosing(listed) as rows:
                    before = (row async for row in rows if not self._ends_after(mark, row))
                    async for views in self._event_lines(before, actor):
                        yield views
            is_due = True
            while True:
                woken.clear()
                changed, last = journal.changed(after=mark, limit=PAGE, user=select.user)
                is_all, mark = last == mark, last
                concerned = self._concerned(changed, mark, ids, select)
                async for views in self._event_lines(concerned, actor):
                    is_due = True
                    yield views
                if is_due:
                    yield [{"mark": mark}]
                is_due = False
                if not is_all or woken.is_set():
                    continue
                while left and not self.engine.ledger.lives(left[-1]):
                    left.pop()
                if ids and not left:
                    return
                await woken.wait()
        finally:
            del self.listeners[woken]

    async def _event_lines(
        self, rows: AsyncIterator[Row], actor: Actor
    ) -> AsyncGenerator[list[replies.EventLine], None]:
        has_more = True
        while has_more:
            views: list[replies.EventLine] = []
            async with self.turns.next(quota_uid(actor)):
                until_s = time.monotonic() + PART_S
                async for row in rows:
                    views.append({"event": self._lookup.view(row, actor)})
                    # Finding the reason why a job waits may take long.
                    if len(views) == _AT_ONCE or time.monotonic() > until_s:
                        break
                else:
                    has_more = False
            if views:
                yield views

    def _ends_after(self, mark: int, row: Row) -> bool:
        """Return whether the end of the job comes after the mark: each end is sent once, among the
        changes."""
        is_over = isinstance(row, Job) and row.state is JobState.ENDED
        return is_over and self.engine.journal.has_changed(job_of(row).id, after=mark)

    async def _concerned(
        self,
        changed: Iterable[tuple[int, int | None]],
        mark: int,
        ids: Sequence[int],
        select: Selection,
    ) -> AsyncIterator[Row]:
        """Yield the present row of each changed job that the stream follows. `changed` are ids with
        the array's, `ids` is sorted. What has changed after the mark comes with those changes, in
        their order."""
        ledger = self.engine.ledger
        async for job_id, array_id in InParts(changed):
            if self.engine.journal.has_changed(job_id, after=mark):
                continue
            if array_id != job_id:
                is_asked_for = not ids or _has(ids, job_id) or _has(ids, array_id)
                job = self._lookup.known(job_id) if is_asked_for else None
                if job is not None and passes(job, select):
                    yield job
            elif (array_state := ledger.arrays.get(job_id)) is not None:
                # An order to the whole array: tasks that are not alike have changes of their own.
                is_asked_for = not ids or _has(ids, job_id)
                async for row in InParts(ledger.rows(array_state) if is_asked_for else ()):
                    if isinstance(row, Tasks) and passes(row.job, select):
                        yield row
                last_id = array_state.array.last_id
                for at in range(bisect_right(ids, job_id), bisect_right(ids, last_id)):
                    if ids[at] in ledger.jobs:
                        yield ledger.jobs[ids[at]]


def _has(ids: Sequence[int], job_id: int | None) -> bool:
    """Whether `ids`, which is sorted, contains the job."""
    if job_id is None:
        return False
    at = bisect_left(ids, job_id)
    return at < len(ids) and ids[at] == job_id


def _narrowed(select: Selection, actor: Actor) -> Selection:
    """Return the selection, limited to the user's own jobs unless others are asked for."""
    if select.ids or select.user or select.everything:
        return select
    return replace(select, user=actor.user)
