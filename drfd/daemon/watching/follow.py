"""Clients that follow jobs: `drf wait` until they end, and event streams at each change.

A stream has one listener. It holds only the ids of the jobs that have changed since its last line,
each once; when there are too many, they are dropped and read from the journal. So a client that
does not read costs no more than one that does, and each receives the latest state of every job.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from msgspec.structs import replace

from drfd.core.decisions.dependencies import first_stuck, stuck_on
from drfd.core.explain.reasons import awaited_job
from drfd.core.explain.waits import WaitsFor
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import stimuli as st
from drfd.core.model.job import Array, Job, JobState, Tasks
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.lookup import EndedRows, Lookup, Row, ids_of, passes
from drfd.daemon.lookup.views import exit_status, reason_view
from drfd.daemon.monitoring.meter import Meter
from drfd.daemon.users.loop_time import PART_S, CooperativeYield, PerUserLocks, in_parts
from drfd.journal.history import read_changed, read_ended_ids
from drfd.protocol import requests as msg
from drfd.protocol.replies import (
    CodeText,
    EndedArrayView,
    EndedJobView,
    EventLine,
    JobView,
    WaitReply,
)
from drfd.protocol.requests import Selection

#: The most changed jobs that are kept for one event stream.
MOST_CHANGED = 10_000
#: Events of the journal that are read at a time.
PAGE = 5_000
#: Jobs of an event stream that are processed before other tasks run.
_AT_ONCE = 50


@dataclass(eq=False, slots=True)
class _Waiter:
    """A client of `drf wait`."""

    #: Set when a job that it waits for has ended or can never start.
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    has_end: bool = False


def has_ended(job_id: int, ledger: Ledger) -> bool:
    """Whether an existing job or array has ended."""
    return ledger.find(job_id) is None and job_id not in ledger.arrays


@dataclass
class Waiting:
    """All clients of `drf wait`, by the jobs that they wait for."""

    engine: Engine
    #: Waiters by the id of a job or an array, whose end wakes them.
    waiters: dict[int, set[_Waiter]] = field(default_factory=dict)
    #: All waiters, each once.
    everybody: set[_Waiter] = field(default_factory=set)
    #: Awaited tasks by the id of their array, for arrays that were live when the wait began; and
    #: the array by the id of such a task.
    tasks: dict[int, set[int]] = field(default_factory=dict)
    array_of: dict[int, int] = field(default_factory=dict)
    #: Whether all waiters have been woken and none has checked its jobs since.
    _all_woken: bool = False

    def job_changed(self, job: Job) -> None:
        """Wake the waiters of an ended job, or of all tasks of an array without own records."""
        if job.state is not JobState.ENDED:
            if job.broken is not None or (job.awaits and self._is_waited_for(job)):
                self._wake_all()
            return
        if job.id == job.array_id:
            # Only awaited tasks: the array may have hundreds of thousands.
            ids = [job.id, *self.tasks.get(job.id, ())]
            for job_id in [each for each in ids if has_ended(each, self.engine.ledger)]:
                self._wake(job_id)
            return
        self._wake(job.id)
        if job.array_id is not None and has_ended(job.array_id, self.engine.ledger):
            self._wake(job.array_id)

    def stuck(self, job_id: int) -> Job | None:
        """Return the job, or a task of the array, that can never start as things stand, or None."""
        ledger = self.engine.ledger
        array_state = ledger.arrays.get(job_id)
        if array_state is None:
            found = [ledger.find(job_id)]
        else:
            found = [ledger.jobs[each] for each in sorted(array_state.live)]
            if array_state.unmaterialized:
                found.append(ledger.find(array_state.unmaterialized.first))
        return first_stuck((job for job in found if job is not None), ledger)

    def in_vain(self, job: Job) -> CodeText | None:
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
        waiter, yielding = _Waiter(), CooperativeYield()
        self.everybody.add(waiter)
        try:
            for job_id in ids:
                if has_ended(job_id, self.engine.ledger):
                    waiter.has_end = True
                else:
                    self._enter(job_id, waiter)
                await yielding.maybe_yield()
            left = list(ids)
            while not (any_one and waiter.has_end):
                waiter.changed.clear()
                self._all_woken = False
                if await self._are_settled(left):
                    break
                left_s = None if deadline is None else deadline - time.monotonic()
                try:
                    await asyncio.wait_for(waiter.changed.wait(), left_s)
                except TimeoutError:
                    break
        finally:
            self.everybody.discard(waiter)
            await in_parts(lambda job_id: self._forget(job_id, waiter), ids)
        ended = []
        for job_id in ids:
            if has_ended(job_id, self.engine.ledger):
                ended.append(job_id)
            await yielding.maybe_yield()
        return ended

    async def _are_settled(self, left: list[int]) -> bool:
        """Whether each has ended or can never start. Only those that must be checked again stay in
        `left`, so that many ends cost no more than there are ids."""
        yielding = CooperativeYield()
        while left and has_ended(left[-1], self.engine.ledger):
            left.pop()
            await yielding.maybe_yield()
        for job_id in reversed(left):
            if not has_ended(job_id, self.engine.ledger) and self.stuck(job_id) is None:
                return False
            await yielding.maybe_yield()
        return True

    def _is_waited_for(self, job: Job) -> bool:
        """Whether a client or another job waits for the job; assumed of an array, for its tasks."""
        ids = (job.id, job.array_id)
        return job.id == job.array_id or any(
            each in self.waiters or each in self.engine.ledger.dependents for each in ids
        )

    def _wake_all(self) -> None:
        """Wake all waiters when something can never start, or may wait for what cannot. They check
        again, and go on waiting if that is not all they wait for."""
        if not self._all_woken:
            self._all_woken = True
            for waiter in self.everybody:
                waiter.changed.set()

    def _enter(self, job_id: int, waiter: _Waiter) -> None:
        self.waiters.setdefault(job_id, set()).add(waiter)
        array = self.engine.ledger.arrays.of_task(job_id)
        if array is not None:
            self.array_of[job_id] = array.id
            self.tasks.setdefault(array.id, set()).add(job_id)

    def _wake(self, job_id: int) -> None:
        for waiter in self.waiters.pop(job_id, ()):
            waiter.has_end = True
            waiter.changed.set()
        self._forget_task(job_id)

    def _forget(self, job_id: int, waiter: _Waiter) -> None:
        waiters = self.waiters.get(job_id)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self.waiters[job_id]
                self._forget_task(job_id)

    def _forget_task(self, job_id: int) -> None:
        array_id = self.array_of.pop(job_id, None)
        if array_id is not None:
            tasks = self.tasks[array_id]
            tasks.discard(job_id)
            if not tasks:
                del self.tasks[array_id]


@dataclass
class WaitHandler:
    """Answers `drf wait`."""

    engine: Engine
    lookup: Lookup
    #: One list of ids at a time for each user is looked up or shown.
    _locks: PerUserLocks = field(default_factory=PerUserLocks)

    def __post_init__(self) -> None:
        self.waiting = Waiting(self.engine)
        self.engine.changes.listen(self.waiting.job_changed)

    async def wait(self, actor: st.Actor, request: msg.WaitRequest) -> WaitReply:
        """Wait for the jobs of a request. The reply has the jobs that have ended, and as `never`
        those that can never start."""
        yielding, lock = CooperativeYield(), self._locks[actor.uid]
        async with lock:
            ids = await ids_of(self.lookup, request.ids)
            for job_id in ids:
                if self.lookup.own_array(actor, job_id) is None:
                    self.lookup.own_job(actor, job_id)
                await yielding.maybe_yield()
        found = await self.waiting.until_ended(
            ids, any_one=request.any, timeout_s=request.timeout_s
        )
        done = len(found) == len(ids) or (request.any and bool(found))
        ended: list[EndedJobView | EndedArrayView] = []
        never: list[JobView] = []
        async with lock:
            for job_id in found:
                ended.append(await self._ended_view(job_id, actor))
                await yielding.maybe_yield()
            for job_id in () if done else ids:
                stuck = self.waiting.stuck(job_id)
                if stuck is not None:
                    view = self.lookup.view(stuck, actor)
                    view["reason"] = self.waiting.in_vain(stuck) or view["reason"]
                    never.append(view)
                await yielding.maybe_yield()
        return {"done": done, "ended": ended, "never": never}

    async def _ended_view(self, job_id: int, actor: st.Actor) -> EndedJobView | EndedArrayView:
        array = self.lookup.any_array(job_id)
        if array is not None:
            return await self.lookup.ended_array_view(array)
        job = self.lookup.any_job(job_id)
        return {**self.lookup.view(job, actor), "status": exit_status(job)}


@dataclass(eq=False, slots=True)
class Listener:
    """The changes that one stream has not sent yet."""

    #: Ids of changed jobs, the latest change last.
    changed: dict[int, None] = field(default_factory=dict)
    #: Whether too many jobs have changed, so that the changes are read from the journal.
    is_behind: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, job_id: int) -> None:
        self.changed.pop(job_id, None)
        self.changed[job_id] = None
        if len(self.changed) > MOST_CHANGED:
            self.changed.clear()
            self.is_behind = True
        self.woken.set()

    def reported(self, row: Row | None) -> Row | None:
        """Forget the change of a job whose end is being sent anyway, and return the row: each end
        is reported once. An ended job does not change any more; of a job that has not ended, the
        row may be older than the change."""
        if isinstance(row, Job) and row.state is JobState.ENDED:
            self.changed.pop(row.id, None)
        return row

    def take(self) -> list[int]:
        taken = list(self.changed)
        self.changed.clear()
        self.woken.clear()
        return taken


@dataclass
class EventFeed:
    """All event streams."""

    engine: Engine
    meter: Meter
    #: Listeners by what they follow: the id of a job or array, the name of a user, or "" for all
    #: jobs. Listeners for tasks of an array are also found by its negated id. A change costs only
    #: the listeners that it may concern.
    listeners: dict[int | str, set[Listener]] = field(default_factory=dict)
    #: One at a time for each user, so that nobody can slow others down with many streams.
    _locks: PerUserLocks = field(default_factory=PerUserLocks)

    def __post_init__(self) -> None:
        self._lookup = Lookup(self.engine, self.meter)
        self.engine.changes.listen(self.job_changed)

    def job_changed(self, job: Job) -> None:
        """Note that a job has changed, or all tasks of an array that have no own record."""
        if not self.listeners:
            return
        keys: list[int | str | None] = [job.id, job.array_id, job.spec.user, ""]
        if job.id == job.array_id:
            keys.append(-job.id)
        for key in set(keys):
            for listener in self.listeners.get(key, ()) if key is not None else ():
                listener.note(job.id)

    async def stream(
        self, actor: st.Actor, request: msg.EventsRequest
    ) -> AsyncGenerator[list[EventLine], None]:
        """Yield `{"event": job}` for each change, and `{"mark": place}` at the beginning and after
        each run of changes: another stream can go on from there. The stream ends when all jobs that
        were requested by id have ended, and otherwise never."""
        yielding = CooperativeYield()
        async with self._locks[actor.uid]:
            ids = sorted(await ids_of(self._lookup, request.select.ids))
        # Jobs that had not ended when they were last checked.
        left = list(ids)
        select = _narrowed(replace(request.select, ids=ids), actor)
        # The listener comes before the first look at the jobs: no change in between is lost.
        listener = Listener()
        keys: set[int | str] = set(ids) or {select.user or ""}
        try:
            for job_id in ids:
                array = self.engine.ledger.arrays.of_task(job_id)
                if array is not None:
                    keys.add(-array.id)
                await yielding.maybe_yield()
            for key in keys:
                self.listeners.setdefault(key, set()).add(listener)
                await yielding.maybe_yield()
            now = self.engine.journal.mark()
            is_known = request.after is not None and request.after <= now
            mark = request.after if request.after is not None and is_known else now
            # The mark comes at once: a client that loses the connection can go on from here.
            yield [{"mark": mark}]
            if request.standing or not is_known:
                ended = await self._ended_tasks(ids, actor)
                rows = self._lookup.rows(
                    msg.StatusRequest(v=request.v, select=select),
                    EndedRows(tasks=dict.fromkeys(ended, ())),
                )
                known = map(self._lookup.known, chain.from_iterable(ended.values()))
                standing = map(listener.reported, chain(rows, known))
                async for views in self._event_lines(standing, actor):
                    yield views
            listener.is_behind |= mark < now
            while True:
                if listener.is_behind:
                    listener.is_behind, before = False, mark
                    async with self._locks[actor.uid]:
                        changed, mark = await asyncio.to_thread(
                            read_changed, self.engine.journal.path, after=mark, limit=PAGE
                        )
                    # There may be another page.
                    listener.is_behind |= mark > before
                else:
                    mark = self.engine.journal.mark()
                    changed = listener.take()
                async for views in self._event_lines(self._concerned(changed, ids, select), actor):
                    yield views
                yield [{"mark": mark}]
                if listener.is_behind or listener.woken.is_set():
                    continue
                while left and has_ended(left[-1], self.engine.ledger):
                    left.pop()
                if ids and not left:
                    return
                await listener.woken.wait()
        finally:
            await in_parts(lambda key: self._forget(key, listener), keys)

    async def _ended_tasks(self, ids: Sequence[int], actor: st.Actor) -> dict[int, list[int]]:
        """Return the ids of the ended tasks of each of these jobs that is an array."""
        found, yielding = {}, CooperativeYield()
        for job_id in ids:
            array = self._lookup.any_array(job_id)
            if array is not None:
                async with self._locks[actor.uid]:
                    path = self.engine.journal.path
                    found[job_id] = await asyncio.to_thread(read_ended_ids, path, array)
            await yielding.maybe_yield()
        return found

    async def _event_lines(
        self, rows: Iterable[Row | None], actor: st.Actor
    ) -> AsyncGenerator[list[EventLine], None]:
        lock = self._locks[actor.uid]
        left = iter(rows)
        while True:
            async with lock:
                views: list[EventLine] = []
                count, until_s = 0, time.monotonic() + PART_S
                for row in islice(left, _AT_ONCE):
                    count += 1
                    if row is not None:
                        views.append({"event": self._lookup.row_view(row, actor)})
                    # Finding the reason why a job waits may take long.
                    if time.monotonic() > until_s:
                        break
                await asyncio.sleep(0)
            # The lock is released: sending may take as long as the client likes.
            if views:
                yield views
            if not count:
                return

    def _concerned(
        self, changed: Iterable[int], ids: Sequence[int], select: Selection
    ) -> Iterator[Row | None]:
        """Yield the present row of each changed job that the listener follows, and None for each
        other one, so that the caller can count the work. `ids` is sorted."""
        for job_id in changed:
            array = self._lookup.any_array(job_id)
            if array is None:
                job = self._lookup.known(job_id)
                if job is None:
                    # The job has been removed from the journal.
                    yield None
                    continue
                is_asked_for = not ids or _has(ids, job.id) or _has(ids, job.array_id)
                yield job if is_asked_for and passes(job, select) else None
                continue
            group = self._group(array) if not ids or _has(ids, array.id) else None
            yield group if group is not None and passes(group.job, select) else None
            for at in range(bisect_right(ids, array.id), bisect_right(ids, array.last_id)):
                yield self._lookup.known(ids[at])

    def _group(self, array: Array) -> Tasks | None:
        """Return the array's tasks without own records, or else its cancelled tasks, or None."""
        array_state = self.engine.ledger.arrays.get(array.id)
        group = None if array_state is None else array_state.tasks
        return group or (Tasks(array, array.cancelled) if array.cancelled else None)

    def _forget(self, key: int | str, listener: Listener) -> None:
        listeners = self.listeners.get(key, set())
        listeners.discard(listener)
        if not listeners:
            self.listeners.pop(key, None)


def _has(ids: Sequence[int], job_id: int | None) -> bool:
    """Whether `ids`, which is sorted, contains the job."""
    if job_id is None:
        return False
    at = bisect_left(ids, job_id)
    return at < len(ids) and ids[at] == job_id


def _narrowed(select: Selection, actor: st.Actor) -> Selection:
    """Return the selection, limited to the user's own jobs unless others are asked for."""
    if select.ids or select.user or select.everything:
        return select
    return replace(select, user=actor.user)
