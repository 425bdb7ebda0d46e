"""The arrays in the journal, and the states of their tasks.

No query reads more than the index entries of one array.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial

from drfd.common.indices import Ids, gaps, joined
from drfd.core.ledger.queue import FailedTask, LiveArray
from drfd.core.model.job import Array, Job, JobState, Outcome
from drfd.journal import records
from drfd.journal.database import Database

#: Number of tasks with one outcome that are listed by id.
_NAMED = 10_000
#: Bytes of arrays in the journal that are read at once; they take some 10 times as much of memory.
_READ_BYTES = 4 << 20
_BAD = tuple(outcome.value for outcome in Outcome if outcome is not Outcome.COMPLETED)
#: Asks for these arrays, and the first task with each of these outcomes. Only constants are put
#: into the statement.
_FIRST = "(select min(id) from jobs where live = 0 and array_id = arrays.id and state = '{}')"
_ENDS_QUERY = (
    f"select id, cancelled_at, {', '.join(map(_FIRST.format, _BAD))} from arrays"  # noqa: S608
    " where id in (select value from json_each(?))"
)
_WRITE = (
    "insert into arrays (id, last_id, uid, user, live, cancelled_at, ended_at, seq, data, spec,"
    " events) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (id) do update set"
    " live = excluded.live, cancelled_at = excluded.cancelled_at, ended_at = excluded.ended_at,"
    " seq = excluded.seq, data = excluded.data, spec = ifnull(excluded.spec, spec),"
    " events = cast(events || excluded.events as blob)"
)
#: Asks which of these jobs without a record are tasks that were cancelled.
_CANCELLED_QUERY = (
    "select value from json_each(?) where (select value <= last_id and cancelled_at is not null"
    " from arrays where id < value order by id desc limit 1)"
)


#: Number of ended arrays in the caches: complete ones, and ones without their cancelled tasks,
#: which may take megabytes.
_WHOLE_KEPT, _HEADS_KEPT = 4, 64


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The number of tasks of an array with a record of their own, by state or outcome."""

    counts: dict[str, int]
    #: Ids of the tasks that ended and did not complete, by outcome.
    bad: dict[str, list[Ids]]


class Arrays:
    """The table of arrays; writes belong to the journal's open transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database
        # Ended arrays do not change. One with many ranges takes long to decode, and may be needed
        # for a thousand tasks.
        self._whole = lru_cache(_WHOLE_KEPT)(partial(self._read, records.decode_array))
        self._heads = lru_cache(_HEADS_KEPT)(partial(self._read, records.decode_array_head))

    def put(
        self, array: Array, ended_at: float | None, seq: int, line: bytes, spec: bytes | None
    ) -> None:
        """Store an array with a new event; `ended_at` is the Unix time of its last task's end, or
        None if live, and `spec` its specification if it was altered."""
        self._db.write(
            _WRITE,
            (
                *(array.id, array.last_id, array.spec.uid, array.spec.user, ended_at is None),
                *(array.common.ended_at, ended_at, seq, records.encode(array), spec, line),
            ),
        )

    def end(self, array_id: int, at_s: float) -> None:
        """Mark an array as ended, after the end of its last task."""
        self._db.write("update arrays set live = 0, ended_at = ? where id = ?", (at_s, array_id))

    def get(self, array_id: int) -> Array | None:
        """Return an array, live or ended, or None if there is none with this id."""
        with self._db.reported("read"):
            row = self._db.execute("select live from arrays where id = ?", (array_id,)).fetchone()
            if row is None:
                return None
            return self._read(records.decode_array, array_id) if row[0] else self._whole(array_id)

    def of_task(self, job_id: int) -> Array | None:
        """Return the array that has a task with this id, without its cancelled tasks, or None."""
        query = "select id, last_id, live from arrays where id < ? order by id desc limit 1"
        with self._db.reported("read"):
            row = self._db.execute(query, (job_id,)).fetchone()
            if row is None or job_id > row[1]:
                return None
            is_live, decode = row[2], records.decode_array_head
            return self._read(decode, row[0]) if is_live else self._heads(row[0])

    def _read(self, decode: Callable[[bytes], Array], array_id: int) -> Array:
        query = "select data from arrays where id = ?"
        return decode(self._db.execute(query, (array_id,)).fetchone()[0])

    def labels(self, job_ids: Iterable[int]) -> dict[int, str]:
        """Return the labels of those of the jobs that are tasks of arrays."""
        found: dict[int, str] = {}
        array: Array | None = None
        for job_id in sorted(set(job_ids)):
            if array is None or not array.has_task(job_id):
                array = self.of_task(job_id)
            if array is not None:
                found[job_id] = array.task(job_id).label
        return found

    def live(self) -> list[LiveArray]:
        """Return the live arrays with their remaining tasks."""
        query = "select data from arrays where live = 1 order by id"
        with self._db.reported("read"):
            arrays = [records.decode_array(data) for (data,) in self._db.execute(query)]
            return [(array, self._unmaterialized(array), self._bad(array)) for array in arrays]

    def last_id(self) -> int:
        """Return the highest id of an array's task, or 0 if there is no array."""
        row = self._db.row("select last_id from arrays order by id desc limit 1")
        return 0 if row is None else int(row[0])

    def roll(self, array: Array) -> TaskCounts:
        """Count the tasks that have a record of their own, by state or outcome."""
        query = (
            "select state, count(*) from (select state from jobs where live = 0 and array_id = :id"
            " union all select state from jobs where live = 1 and id > :id and id <= :last)"
            " group by state"
        )
        named = (
            "select id from jobs where live = 0 and array_id = ? and state = ? order by id limit ?"
        )
        with self._db.reported("read"):
            ids = {"id": array.id, "last": array.last_id}
            counts = dict(self._db.execute(query, ids).fetchall())
            bad = {
                state: joined(
                    job_id for (job_id,) in self._db.execute(named, (array.id, state, _NAMED))
                )
                for state in _BAD
                if state in counts
            }
        return TaskCounts(counts, bad)

    def outcomes(self, ids: list[int]) -> dict[int, Outcome]:
        """Return the outcomes of those that are ended arrays, or tasks that were cancelled before
        they had a record. That of an array is COMPLETED, or that of its first task, by index, of
        which it is not. Few arrays are decoded for this."""
        rows = self._db.rows(_ENDS_QUERY, (json.dumps(ids),))
        found = {
            array_id: self._outcome(array_id, cancelled_at, firsts)
            for array_id, cancelled_at, *firsts in rows
        }
        others = json.dumps([each for each in ids if each not in found])
        cancelled = self._db.rows(_CANCELLED_QUERY, (others,))
        return found | {job_id: Outcome.CANCELLED for (job_id,) in cancelled}

    def _outcome(
        self, array_id: int, cancelled_at: float | None, firsts: list[int | None]
    ) -> Outcome:
        ends = zip(firsts, _BAD, strict=True)
        first, state = min((each for each in ends if each[0] is not None), default=(None, ""))
        if cancelled_at is None:
            return Outcome.COMPLETED if first is None else Outcome(state)
        if first is not None and state != Outcome.CANCELLED.value:
            array = self.get(array_id)
            if array is not None and first < array.cancelled[0][0]:
                return Outcome(state)
        return Outcome.CANCELLED

    def first_bad(self, array: Array) -> Job | None:
        """Return the first task, by index, that has ended and did not complete, or None."""
        query = "select min(id) from jobs where live = 0 and array_id = ? and state = ?"
        with self._db.reported("read"):
            found = [self._db.execute(query, (array.id, state)).fetchone()[0] for state in _BAD]
            first = min((each for each in found if each is not None), default=None)
            if array.cancelled and (first is None or array.cancelled[0][0] < first):
                return array.task(array.cancelled[0][0])
            if first is None:
                return None
            query = "select data, spec from records where id = ?"
            return records.decode_job(*self._db.execute(query, (first,)).fetchone())

    def ended_ids(self, array: Array, *, limit: int) -> list[int]:
        """Return the ids of the last ended tasks that have records of their own."""
        query = "select id from jobs where id > ? and id <= ? and live = 0 order by id desc limit ?"
        return [job_id for (job_id,) in self._db.rows(query, (array.id, array.last_id, limit))]

    def recorded_ids(self, array: Array, *, after: int, limit: int) -> list[int]:
        """Return the first ids after `after` of tasks that have records of their own."""
        query = "select id from jobs where id > ? and id <= ? order by id limit ?"
        return [job_id for (job_id,) in self._db.rows(query, (after, array.last_id, limit))]

    def cancelled(self, *, limit: int, user: str | None) -> list[Array]:
        """Return the arrays whose waiting tasks were last cancelled together, newest first, so many
        or as many as have `_READ_BYTES`."""
        query = (
            "select data from arrays where cancelled_at is not null"
            " and (:user is null or user = :user) order by cancelled_at desc limit :limit"
        )
        with self._db.reported("read"):
            found, size_bytes = [], 0
            for (data,) in self._db.execute(query, {"user": user, "limit": limit}):
                found.append(records.decode_array(data))
                size_bytes += len(data)
                if size_bytes > _READ_BYTES:
                    break
            return found

    def _bad(self, array: Array) -> FailedTask | None:
        job = self.first_bad(array)
        return None if job is None or job.outcome is None else (job.id, job.outcome)

    def _unmaterialized(self, array: Array) -> tuple[Ids, ...]:
        if array.common.state is JobState.ENDED:
            return ()
        # Both queries use an index alone, because the rows are long.
        query = (
            "select id from jobs where live = 0 and array_id = :id"
            " union all select id from jobs where live = 1 and id > :id and id <= :last"
        )
        rows = self._db.execute(query, {"id": array.id, "last": array.last_id})
        return tuple(gaps(sorted(job_id for (job_id,) in rows), array.id + 1, array.last_id))
