"""Jobs and arrays as clients ask for them: looked up, selected, shown with why they wait."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from heapq import merge
from typing import TypeVar

from msgspec.structs import replace

from drfd.core import stimuli as st
from drfd.core.array import Array, Group
from drfd.core.asked import may_touch
from drfd.core.job import Job
from drfd.core.reasons import Reason, explain_wait
from drfd.daemon.engine import Engine
from drfd.daemon.meter import Meter
from drfd.errors import NotPermitted, Refused
from drfd.wire import array_views, views
from drfd.wire import messages as msg
from drfd.wire.codec import VERSION
from drfd.wire.parts import Ref, Selection
from drfd.wire.views import View

#: Of a time nearer than this, the seconds are told too.
_NEAR_S = 600

Request = TypeVar("Request", bound=msg.Request)
#: What a list has a row for: a job, or the tasks of an array that are all alike.
Row = Job | Group
#: Where a row stands in a list: by its id, or that of its first task, with a mark of such groups.
Place = tuple[int, bool]

#: Of an array that is asked for by its id, so many ended tasks are listed.
_ENDED_TASKS = 20


@dataclass
class Lookup:
    """Reads the books, and the journal for what is over."""

    engine: Engine
    meter: Meter

    def id_of(self, ref: Ref) -> int:
        """The id of a job, or of an array, that a client may name as `42` or `42_7`."""
        if isinstance(ref, int):
            return ref
        array_id, index = map(int, ref.split("_"))
        array = self.any_array(array_id)
        if array is None:
            raise Refused("no-such-job", f"there is no array {array_id}")
        job_id = array.id_of(index)
        if job_id is None:
            raise Refused("no-such-job", f"array {array_id} has no task with the index {index}")
        return job_id

    def with_ids(self, request: Request) -> Request:
        """The same request, with the ids of the jobs and arrays that it names to wait for."""
        if not isinstance(request, msg.Submit | msg.Set) or not request.after:
            return request
        after = [replace(each, id=self.id_of(each.id)) for each in request.after]
        return replace(request, after=after)

    def targets(self, actor: st.Actor, select: Selection) -> Iterator[tuple[str, int, bool] | None]:
        """What the actor may touch of a selection: its name, its id, and whether it is only what
        waits of an array. None stands for a job that is passed over; each is looked at when it is
        asked for."""
        ledger = self.engine.ledger
        for job_id in list(ledger.jobs):
            job = ledger.jobs.get(job_id)
            if job is not None and may_touch(actor, job.spec.uid) and passes(job, select):
                yield job.label, job.id, False
            else:
                yield None
        for group in list(ledger.arrays.groups()):
            if may_touch(actor, group.array.spec.uid) and passes(group.job, select):
                yield f"{group.array.id}_[{group.indices}]", group.array.id, True

    def rows(self, request: msg.Status) -> Iterator[Row | None]:
        """What a list shows, in the order of ids, from where `request.after` says; None stands for
        a job that is passed over. Looks at each when it is asked for, so a list that takes a while
        may be left for others to have their turn."""
        if request.select.ids:
            return self._named_rows(request)
        select, after = request.select, request.after or (0, False)
        ledger = self.engine.ledger
        # Nearly in order already, so this costs little.
        ids = sorted(ledger.jobs)
        live = (ledger.jobs.get(job_id) for job_id in ids[bisect_right(ids, after[0]) :])
        jobs = (job if job is not None and passes(job, select) else None for job in live)
        groups = [group for group in ledger.arrays.groups() if passes(group.job, select)]
        others = _told([*groups, *self._ended(request)], request.tasks, after)
        return _merged(jobs, others)

    def _named_rows(self, request: msg.Status) -> Iterator[Row]:
        """Always all of them: a page would have to look for those before it once more."""
        told = set()
        for job_id in sorted(set(map(self.id_of, request.select.ids))):
            for row in _told(self._named(job_id, request.ended), request.tasks):
                if place_of(row) not in told:
                    told.add(place_of(row))
                    yield row

    def _named(self, job_id: int, ended: int) -> list[Row]:
        array = self.any_array(job_id)
        if array is None:
            return [self.any_job(job_id)]
        roster = self.engine.ledger.arrays.get(array.id)
        rows: list[Row] = []
        if roster is not None:
            rows += [self.engine.ledger.jobs[live] for live in roster.live]
            if roster.unborn:
                rows.append(Group(array, roster.ids()))
        if roster is None or ended:
            rows += self.engine.journal.arrays.ended_of(array, limit=ended or _ENDED_TASKS)
            rows += _cancelled(array)
        return rows

    def _ended(self, request: msg.Status) -> list[Row]:
        if not request.ended:
            return []
        select, journal = request.select, self.engine.journal
        jobs = journal.ended(limit=request.ended, user=select.user, states=select.states)
        arrays = journal.arrays.cancelled(limit=request.ended, user=select.user)
        rows: list[Row] = [*jobs, *(group for array in arrays for group in _cancelled(array))]
        chosen = [row for row in rows if passes(_shown(row), select)]
        return sorted(chosen, key=lambda row: -(_shown(row).ended_at or 0))[: request.ended]

    def any_array(self, array_id: int) -> Array | None:
        roster = self.engine.ledger.arrays.get(array_id)
        return self.engine.journal.arrays.get(array_id) if roster is None else roster.array

    def name_of(self, job_id: int) -> str:
        """What people call any job, task or array."""
        job = self.engine.ledger.find(job_id)
        if job is not None:
            return job.label
        array = self.engine.journal.arrays.of_task(job_id)
        return str(job_id) if array is None else array.task(job_id).label

    def own_array(self, actor: st.Actor, array_id: int) -> Array | None:
        array = self.any_array(array_id)
        if array is not None and not may_touch(actor, array.spec.uid):
            raise NotPermitted("not-yours", f"array {array_id} belongs to {array.spec.user}")
        return array

    def any_job(self, job_id: int) -> Job:
        job = self.engine.ledger.find(job_id) or self.engine.journal.job(job_id)
        if job is None:
            raise Refused("no-such-job", f"there is no job {job_id}")
        return job

    def own_job(self, actor: st.Actor, job_id: int) -> Job:
        job = self.any_job(job_id)
        if not may_touch(actor, job.spec.uid):
            raise NotPermitted("not-yours", f"job {job.label} belongs to {job.spec.user}")
        return job

    def telling(self, array: Array) -> Job:
        """The task that tells most of an array: one that waits, or runs, or failed."""
        ledger, table = self.engine.ledger, self.engine.journal.arrays
        roster = ledger.arrays.get(array.id)
        if roster is not None and roster.unborn:
            return array.task(roster.unborn.first[1])
        if roster is not None:
            return ledger.jobs[min(roster.live)]
        return table.first_bad(array) or table.ended_of(array, limit=1)[0]

    def row_view(self, row: Row, actor: st.Actor) -> View:
        view = self.view(_shown(row), actor)
        return array_views.group_view(row, view) if isinstance(row, Group) else view

    def array_view(self, array: Array) -> View:
        """All about an array, for its owner."""
        roster = self.engine.ledger.arrays.get(array.id)
        unborn = None if roster is None or not roster.unborn else Group(array, roster.ids())
        return array_views.array_view(array, self.engine.journal.arrays.roll(array), unborn)

    def ended_array_view(self, array: Array) -> View:
        """An array that is over, as `wait` tells it."""
        bad = self.engine.journal.arrays.first_bad(array)
        return array_views.ended_view(self.array_view(array), bad)

    def latest_ended(self, most: int) -> list[Row]:
        """Newest first."""
        return self._ended(msg.Status(v=VERSION, ended=most))

    def reason(self, job: Job) -> Reason | None:
        """Why it waits; None: it does not."""
        return explain_wait(
            job,
            self.engine.ledger,
            self.engine.scheduler.last_plan,
            self.engine.rules,
            clock_time,
            can_launch=self.engine.host.is_ready(),
            name_of=self.name_of,
        )

    def view(self, job: Job, actor: st.Actor) -> View:
        return views.job_view(
            job,
            reason=self.reason(job),
            usage=self.meter.usage(job),
            private=may_touch(actor, job.spec.uid),
            expected_start_s=self.expected_start_s(job),
        )

    def full_view(self, job: Job, actor: st.Actor) -> View:
        """With what is not worth a look at the kernel for every job of a list."""
        conditions = views.conditions_view(job, self.name_of)
        return self.view(job, actor) | conditions | {"cpus": self.meter.pinned_cpus(job)}

    def expected_start_s(self, job: Job) -> float | None:
        """Known of the jobs that something is reserved for."""
        last = self.engine.scheduler.last_plan
        if last is None or self.engine.ledger.wanted(job) is None:
            return None
        kept = last.reservation_of(job.id)
        return None if kept is None else kept.start_s


def _shown(row: Row) -> Job:
    return row.job if isinstance(row, Group) else row


def place_of(row: Row) -> Place:
    return (row.first_id, True) if isinstance(row, Group) else (row.id, False)


def _cancelled(array: Array) -> list[Row]:
    """Its tasks that were cancelled all at once."""
    return [Group(array, array.cancelled)] if array.cancelled else []


def _told(rows: Iterable[Row], by_task: bool, after: Place = (0, False)) -> Iterator[Row]:
    """Those behind a place, in order; `by_task`: groups task by task."""
    if not by_task:
        return iter(sorted((row for row in rows if place_of(row) > after), key=place_of))
    return merge(*(_one_by_one(row, after[0]) for row in rows), key=place_of)


def _one_by_one(row: Row, after_id: int) -> Iterator[Row]:
    if isinstance(row, Group):
        for first, last in row.ids:
            yield from map(row.array.task, range(max(first, after_id + 1), last + 1))
    elif row.id > after_id:
        yield row


def _merged(jobs: Iterable[Job | None], others: Iterator[Row]) -> Iterator[Row | None]:
    """Both are in order, but for the None among the jobs."""
    other = next(others, None)
    for job in jobs:
        while job is not None and other is not None and place_of(other) < place_of(job):
            yield other
            other = next(others, None)
        yield job
    if other is not None:
        yield other
        yield from others


def passes(job: Job, select: Selection) -> bool:
    return (
        (select.user is None or job.spec.user == select.user)
        and (select.name is None or _is_like(job.spec.name, select.name))
        and (not select.states or job.shown_state in select.states)
    )


def _is_like(name: str, pattern: str) -> bool:
    # A job may be called "[red]", which as a pattern is one letter.
    return name == pattern or fnmatchcase(name, pattern)


def clock_time(at_s: float) -> str:
    """A time of day, with the date when it is not today, to the second when it is near."""
    then, now = time.localtime(at_s), time.localtime()
    if abs(at_s - time.time()) < _NEAR_S:
        return time.strftime("%H:%M:%S", then)
    same_day = then[:3] == now[:3]
    return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", then)
