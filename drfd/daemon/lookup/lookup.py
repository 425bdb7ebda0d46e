"""Jobs and arrays: looked up by id, selected by filters, and shown with the reasons for waiting.

A client may name a hundred thousand ids; they are looked up with pauses for other requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge
from typing import TypeVar

from msgspec.structs import replace

from drfd.common.errors import NotPermitted, Refused, printable
from drfd.common.indices import show_spans
from drfd.core.decisions.job_requests import may_touch
from drfd.core.explain.reasons import explain_wait
from drfd.core.model.job import WAITING_STATES, Actor, Array, Dependency, Job, JobState, Tasks
from drfd.core.model.machine import each_instance
from drfd.core.scheduling.waits import Wait
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup import views
from drfd.daemon.monitoring.meter import Meter
from drfd.daemon.users.turns import InParts
from drfd.journal.history import PastFilter, is_like, read_ended, read_roll
from drfd.protocol import replies
from drfd.protocol import requests as msg
from drfd.protocol.requests import Ref, Selection


async def resolved(lookup: Lookup, refs: Iterable[Ref]) -> AsyncIterator[tuple[Ref, int | Refused]]:
    """Yield each name of a job or array once, with its id or with why there is none."""
    # An ended array is decoded from the journal each time, and has many tasks.
    any_array = lru_cache(_ARRAYS)(lookup.any_array)
    async for ref in InParts(dict.fromkeys(refs)):
        try:
            yield ref, lookup.id_of(ref, any_array)
        except Refused as refusal:
            if refusal.code == _NO_NAME:
                raise
            yield ref, refusal


async def id_by_name(lookup: Lookup, refs: Iterable[Ref]) -> dict[Ref, int]:
    """Return the id of each job and array by its name. Raises Refused if one does not exist."""
    found: dict[Ref, int] = {}
    async for ref, job_id in resolved(lookup, refs):
        if isinstance(job_id, Refused):
            raise job_id
        found[ref] = job_id
    return found


async def ids_of(lookup: Lookup, refs: Iterable[Ref]) -> list[int]:
    """Return the ids of jobs and arrays, each once. Raises Refused if one does not exist."""
    return list(dict.fromkeys((await id_by_name(lookup, refs)).values()))


Request = TypeVar("Request", bound=msg.Request)
#: A row of a list: a job, or tasks of an array that are all alike.
Row = Job | Tasks
#: The order of rows: the id of the job or of the first task, and whether it is a group.
Place = tuple[int, bool]

_TASK = re.compile("([0-9]{1,15})_([0-9]{1,10})")
#: Code of the refusal of what cannot name a job.
_NO_NAME = "bad-request"
#: Arrays whose tasks a request may name by turns, before one is read once more.
_ARRAYS = 8
#: The most ended tasks that a list shows of an array that is requested by its id.
_ENDED_TASKS = 20
#: The most attempts to count an array's tasks without a change meanwhile.
_ROLL_CALLS = 3


@dataclass
class Lookup:
    """Finds live jobs in the ledger and ended ones in the journal."""

    engine: Engine
    meter: Meter

    def id_of(self, ref: Ref, any_array: Callable[[int], Array | None] | None = None) -> int:
        """Return the id of a job or array that a client names as `42` or `42_7`. Raises Refused for
        a task that does not exist."""
        if isinstance(ref, int):
            return ref
        found = _TASK.fullmatch(ref)
        if found is None:
            raise Refused(_NO_NAME, f"{printable(ref)!r} is no job, array or task")
        array_id, index = int(found[1]), int(found[2])
        array = (any_array or self.any_array)(array_id)
        if array is None:
            raise Refused("no-such-job", f"there is no array {array_id}")
        job_id = array.id_of(index)
        if job_id is None:
            text = f"array {array_id} has no task with the index {index}"
            raise Refused("no-such-job", text)
        return job_id

    async def with_ids(self, request: Request) -> Request:
        """Return the request with the dependencies that it names replaced by ids."""
        if not isinstance(request, msg.SubmitRequest | msg.SetRequest) or not request.after:
            return request
        ids = await id_by_name(self, [each.id for each in request.after])
        return replace(request, after=[replace(each, id=ids[each.id]) for each in request.after])

    async def names_of(self, after: Iterable[Dependency]) -> Callable[[int], str]:
        """Return what gives the labels of jobs that a job waits for, or waited for, and of others.
        They are looked up in parts, array by array."""
        names: dict[int, str] = {}
        async for job_id in InParts(sorted({each.job_id for each in after})):
            names[job_id] = self.name_of(job_id)
        return lambda job_id: names.get(job_id) or self.name_of(job_id)

    async def rows(
        self, select: Selection, *, ended: int = 0, tasks: bool = False, after: Place = (0, False)
    ) -> AsyncGenerator[Row, None]:
        """Yield the rows of a list in order of ids, behind `after`: of jobs and arrays that are
        named, or of the live jobs that pass the filters and so many that ended last. With `tasks`,
        each task has a row of its own. Each row is looked up when it is due, and other requests
        come between; with `ended`, what ends meanwhile is not missing."""
        engine = self.engine
        #: Ended jobs, by the job or array that was submitted.
        past: dict[int, dict[int, Job]] = {}

        def note(job: Job) -> None:
            if job.state is JobState.ENDED:
                past.setdefault(job.submission_id, {})[job.id] = job

        if ended:
            engine.listeners.append(note)
        try:
            named = await self._by_submission(select.ids)
            if ended and not named:
                for job in await self.latest_ended(select, ended):
                    note(job)
            async for head in InParts(sorted(named or {*self._submissions(after[0]), *past})):
                if named:
                    await self._look_up_ended(head, named[head], past, ended)
                live = self._live_rows(head, named.get(head), tasks=tasks)
                over = sorted(past.pop(head, {}).values(), key=place_of)
                async for row in InParts(merge(live, over, key=place_of)):
                    if place_of(row) > after and (named or passes(job_of(row), select)):
                        yield row
        finally:
            if ended:
                engine.listeners.remove(note)

    def _submissions(self, after: int) -> Iterator[int]:
        """Yield the ids of live arrays, and those of live single jobs behind `after`."""
        ledger = self.engine.ledger
        yield from ledger.arrays
        for job_id, job in ledger.jobs.items():
            if job_id > after and job.array_id is None:
                yield job_id

    async def _by_submission(self, refs: Iterable[Ref]) -> dict[int, set[int]]:
        """Return the ids that are named, by the job or array that was submitted. Raises Refused if
        one does not exist."""
        found: dict[int, set[int]] = {}
        async for job_id in InParts(await ids_of(self, refs)):
            array = self.any_array(job_id)
            head = job_id if array is not None else self.any_job(job_id).submission_id
            found.setdefault(head, set()).add(job_id)
        return found

    def _live_rows(self, head: int, named: set[int] | None, *, tasks: bool) -> Iterable[Row]:
        """Return the rows of a live job, or of an array or only the tasks of it that are named."""
        ledger = self.engine.ledger
        if named is not None and head not in named:
            found = map(ledger.jobs.get, sorted(named))
            return [job for job in found if job is not None]
        array_state = ledger.arrays.get(head)
        if array_state is not None:
            return ledger.tasks(array_state.array) if tasks else ledger.rows(array_state)
        return [ledger.jobs[head]] if head in ledger.jobs else []

    async def _look_up_ended(
        self, head: int, named: set[int], past: dict[int, dict[int, Job]], ended: int
    ) -> None:
        """Add to `past` the named jobs and tasks that have ended, and the last ended tasks of an
        array that is named itself."""
        array = self.any_array(head)
        found = past.setdefault(head, {})
        if head not in named:
            past[head] = found = {each: job for each, job in found.items() if each in named}
        most = ended or (0 if head in self.engine.ledger.arrays else _ENDED_TASKS)
        if array is not None and head in named and most:
            last = await self.latest_ended(Selection(ids=[head]), most)
            found.update({job.id: job for job in last})
        for job_id in named - {head} if array is not None else named:
            if job_id not in self.engine.ledger.jobs:
                found[job_id] = self.any_job(job_id)

    def any_array(self, array_id: int) -> Array | None:
        """Return the array, live or ended, or None if there is none."""
        array_state = self.engine.ledger.arrays.get(array_id)
        return (
            self.engine.journal.arrays.get(array_id) if array_state is None else array_state.array
        )

    def name_of(self, job_id: int) -> str:
        """Return the label of a job, task or array, live or ended."""
        job = self.known(job_id)
        return str(job_id) if job is None else job.label

    def user_of(self, job_id: int) -> str:
        """Return the name of the user who submitted the job or array. Raises Refused if there is
        none."""
        array = self.any_array(job_id)
        return (self.any_job(job_id) if array is None else array).spec.user

    def own_array(self, actor: Actor, array_id: int) -> Array | None:
        """Return the array, or None if there is none. Raises NotPermitted for another user's."""
        array = self.any_array(array_id)
        if array is not None and not may_touch(actor, array.spec):
            raise NotPermitted("not-yours", f"array {array_id} belongs to {array.spec.user}")
        return array

    def known(self, job_id: int) -> Job | None:
        """Return the job, live or ended, or None if there is none."""
        return self.engine.ledger.jobs.get(job_id) or self.engine.journal.job(job_id)

    def any_job(self, job_id: int) -> Job:
        """Return the job, live or ended. Raises Refused if there is none."""
        job = self.known(job_id)
        if job is None:
            raise Refused("no-such-job", f"there is no job {job_id}")
        return job

    def single_job(self, ref: Ref) -> Job:
        """Return the job or task, live or ended. Raises Refused if there is none, or it is an
        array."""
        job_id = self.id_of(ref)
        array = self.any_array(job_id)
        if array is not None:
            hint = f"for instance {array.id}_{array.index_of(array.id + 1)}"
            raise Refused("is-array", f"{array.id} is an array: name one of its tasks", hint=hint)
        return self.any_job(job_id)

    def own_job(self, actor: Actor, job_id: int) -> Job:
        """Return the job. Raises Refused if there is none, NotPermitted for another user's."""
        job = self.any_job(job_id)
        if not may_touch(actor, job.spec):
            raise NotPermitted("not-yours", f"job {job.label} belongs to {job.spec.user}")
        return job

    def representative_task(self, array: Array) -> Job:
        """Return the most informative task of an array: a waiting, running or failed one."""
        ledger, table = self.engine.ledger, self.engine.journal.arrays
        waiting = (task for task in ledger.tasks(array) if task.state in WAITING_STATES)
        live = next(waiting, None) or next(ledger.tasks(array), None)
        if live is not None:
            return live
        return table.first_bad(array) or self.any_job(table.ended_ids(array, limit=1)[0])

    async def array_view(self, array: Array) -> replies.ArrayView:
        """Return the array with the counts of its tasks. Only its owner may see it."""
        journal = self.engine.journal
        for _ in range(_ROLL_CALLS):
            mark = journal.mark()
            roll = await asyncio.to_thread(read_roll, journal.path, array)
            # After a change, a task that has ended meanwhile may be counted twice.
            if mark == journal.mark():
                break
        array_state = self.engine.ledger.arrays.get(array.id)
        if array_state is None:
            return views.array_view(array, roll, {})
        view = views.array_view(array, roll, array_state.states)
        rows = (row for row in self.engine.ledger.rows(array_state) if _is_altered(row, array))
        ids = [
            ids for row in rows for ids in (row.ids if isinstance(row, Tasks) else ((row.id,) * 2,))
        ]
        if ids:
            view["altered"] = show_spans(array.spans_of(*sorted(ids)))
        return view

    async def ended_array_view(self, array: Array) -> replies.EndedArrayView:
        """Return an array that has ended, as `wait` reports it."""
        bad = self.engine.journal.arrays.first_bad(array)
        return views.ended_array_view(await self.array_view(array), bad)

    async def latest_ended(self, select: Selection, most: int) -> list[Job]:
        """Return the jobs that pass the filters of a selection and ended last, newest first. The
        id of an array stands for its tasks."""
        past = PastFilter(
            ids=select.ids, user=select.user, name=select.name, group=select.group,
            states=select.states, limit=most,
        )  # fmt: skip
        return await asyncio.to_thread(lambda: list(read_ended(self.engine.journal.path, past)))

    def reason(self, row: Row) -> Wait | None:
        """Return why the job waits, or the tasks, or None if they do not."""
        job = job_of(row)
        if job.array_id is not None and job.array_id not in self.engine.ledger.arrays:
            # The array has ended since the row of its tasks was made.
            return None
        return explain_wait(
            job,
            self.engine.ledger,
            self.engine.scheduler.last_plan,
            self.engine.rules,
            can_launch=self.engine.launchers.is_ready(),
            name_of=self.name_of,
            label=row.argument if isinstance(row, Tasks) else "",
        )

    def view(self, row: Row, actor: Actor) -> replies.JobView:
        """Return a row of a list as this user may see it."""
        job = job_of(row)
        view = views.job_view(
            job,
            reason=views.reason_view(self.reason(row)),
            usage=self.meter.usage(job),
            private=may_touch(actor, job.spec),
            expected_start_s=self.expected_start_s(job),
        )
        if isinstance(row, Tasks):
            view |= {"id": row.array.id, "array_tasks": row.indices, "tasks": row.size}
        return view

    def placed_part(self, job: Job, *, is_own: bool) -> replies.DetailPart:
        """Return the pinned CPUs of a user's own job, and the memory nodes of its instances. Lists
        leave them out, because the CPUs are read from the kernel's files."""
        if not is_own:
            return {"cpus": None, "memory_nodes": []}
        places = dict(self.engine.rules.axes.places) if job.instances else {}
        nodes = {places[each].node for each in each_instance(job.instances) if each in places}
        return {
            "cpus": self.meter.pinned_cpus(job),
            "memory_nodes": sorted(node for node in nodes if node is not None),
        }

    def expected_start_s(self, job: Job) -> float | None:
        """Return the expected start of a job with a reservation. None for other jobs, and if it
        rests on something of which nothing is known: it would move all the time."""
        last = self.engine.scheduler.last_plan
        if last is None or self.engine.ledger.wanted(job) is None:
            return None
        return last.known_start_s(last.reservation_of(job.id))


def _is_altered(row: Row, array: Array) -> bool:
    spec = row.first.spec if isinstance(row, Tasks) else row.spec
    return spec is not array.spec and spec != array.spec


def job_of(row: Row) -> Job:
    return row.job if isinstance(row, Tasks) else row


def place_of(row: Row) -> Place:
    """Return the place of a row in the order of lists."""
    return first_id(row), isinstance(row, Tasks)


def first_id(row: Row) -> int:
    return row.first.id if isinstance(row, Tasks) else row.id


def passes(job: Job, select: Selection) -> bool:
    """Return whether the job passes all filters of the selection, apart from `ids`."""
    return (
        (select.user is None or job.spec.user == select.user)
        and (select.name is None or is_like(job.spec.name, select.name))
        and (select.group is None or _is_in(job, select.group))
        and (not select.states or job.shown_state in select.states)
    )


def _is_in(job: Job, group: str) -> bool:
    return job.spec.group is not None and job.spec.group.name == group
