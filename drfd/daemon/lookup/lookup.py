"""Jobs and arrays: looked up by id, selected by filters, and shown with the reasons for waiting.

A client may name a hundred thousand ids; they are looked up with pauses for other requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge
from typing import TypeVar

from msgspec.structs import replace

from drfd.common.errors import NotPermitted, Refused, printable
from drfd.common.indices import show_spans
from drfd.core.decisions.job_requests import may_touch
from drfd.core.explain.reasons import explain_wait
from drfd.core.model.job import WAITING_STATES, Actor, Array, Dependency, Job, Tasks
from drfd.core.model.machine import each_instance
from drfd.core.scheduling.waits import Wait
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup import views
from drfd.daemon.monitoring.meter import Meter
from drfd.daemon.users.turns import InParts
from drfd.journal.history import (
    PastFilter,
    is_like,
    read_ended,
    read_ended_ids,
    read_roll,
)
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

    async def rows(self, request: msg.StatusRequest) -> Iterator[Row | None]:
        """Return the rows of a list in order of ids, behind `request.after`. None stands for a
        skipped job, so that the caller can pause. A job is looked up when its row is due. Live jobs
        are listed before the journal is read, and may end meanwhile: none is missing from both.
        Named jobs have no pages, which would repeat the look-ups."""
        ledger, after = self.engine.ledger, request.after or (0, False)
        ended: list[Row] = []
        live = {*ledger.jobs} if request.ended else set[int]()
        if request.select.ids:
            named, after = set(await ids_of(self, request.select.ids)), (0, False)
            listed = await self._listed(named, request.ended)
            # The rows of an array have its live tasks, also those that are named besides.
            arrays = ((each, ledger.arrays.of_task(each)) for each in listed & ledger.jobs.keys())
            beside = {each for each, array in arrays if array is not None and -array.id in listed}
            listed, live = listed - beside, live | beside
            found = (
                self.any_job(job_id) if job_id in named else self.known(job_id)
                for job_id in sorted(listed)
                if job_id > 0
            )  # fmt: skip
        else:
            listed = self._live()
            if request.ended:
                rows = await self.latest_ended(request.select, request.ended)
                live |= {*ledger.jobs}
                listed |= self._live()
                ended = [row for row in rows if row.id not in live and place_of(row) > after]
                ended.sort(key=place_of)
            by_id = self.known if request.ended else ledger.jobs.get
            found = (by_id(job_id) for job_id in sorted(listed) if job_id > after[0])
        jobs = (job if job is not None and _has_row(job, request) else None for job in found)
        return _merged(jobs, self._task_rows(listed, live, request, after), ended)

    def _live(self) -> set[int]:
        """Return the ids of live single jobs, and negated ones of live arrays."""
        ledger = self.engine.ledger
        jobs = {job_id for job_id, job in ledger.jobs.items() if job.array_id is None}
        return jobs | {-array_id for array_id in ledger.arrays}

    def _task_rows(
        self, listed: set[int], live: set[int], request: msg.StatusRequest, after: Place
    ) -> Iterator[Row | None]:
        """Yield the rows of the tasks of listed arrays, with those that were `live` before and have
        ended since. The ids of an array's tasks are between it and the next array."""
        ledger = self.engine.ledger
        for array_id in sorted(-each for each in listed if each < 0):
            yield None
            array_state, array = ledger.arrays.get(array_id), self.any_array(array_id)
            assert array is not None
            first, last = array.ids
            if last <= after[0]:
                continue
            rows: Iterable[Row] = ()
            if array_state is not None:
                rows = ledger.tasks(array) if request.tasks else ledger.rows(array_state)
            between = range(first, last + 1) if live else range(0)
            gone = (each for each in between if each in live and each not in ledger.jobs)
            for row in merge(rows, map(self.any_job, gone), key=place_of):
                is_due = place_of(row) > after and place_of(row)[0] not in listed
                yield row if is_due and _has_row(job_of(row), request) else None

    async def _listed(self, named: set[int], ended: int) -> set[int]:
        """Return the ids that are named, with an array's negated one for its live tasks, and those
        of ended ones."""
        listed = set[int]()
        async for job_id in InParts(named):
            array, state = self.any_array(job_id), self.engine.ledger.arrays.get(job_id)
            most = ended or (_ENDED_TASKS if state is None else 0)
            listed.add(job_id if array is None else -job_id)
            if array is not None and most:
                path = self.engine.journal.path
                listed.update(await asyncio.to_thread(read_ended_ids, path, array, limit=most))
        return listed

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
        """Return the jobs of a selection without ids that ended last, newest first."""
        past = PastFilter(
            user=select.user, name=select.name, group=select.group, states=select.states, limit=most
        )
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


def _has_row(job: Job, request: msg.StatusRequest) -> bool:
    return bool(request.select.ids) or passes(job, request.select)


def job_of(row: Row) -> Job:
    return row.job if isinstance(row, Tasks) else row


def place_of(row: Row) -> Place:
    """Return the place of a row in the order of lists."""
    return first_id(row), isinstance(row, Tasks)


def first_id(row: Row) -> int:
    return row.first.id if isinstance(row, Tasks) else row.id


def _merged(*rows: Iterable[Row | None]) -> Iterator[Row | None]:
    """Merge sequences of rows in order, which may contain None."""
    return merge(*rows, key=lambda row: (0, False) if row is None else place_of(row))


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
