"""The arrays in the journal, and how their tasks stand.

No answer takes more work than a walk over the index entries of one array.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from drfd.core.array import Array
from drfd.core.job import Job, JobState, Outcome
from drfd.core.roster import Bad, Left
from drfd.indices import Ids, gaps, joined
from drfd.journal import records

#: Of the tasks in one state, so many are named.
_NAMED = 10_000
_BAD = tuple(outcome.value for outcome in Outcome if outcome is not Outcome.COMPLETED)


@dataclass(frozen=True, slots=True)
class Roll:
    """The tasks of an array that have a record of their own, by state or outcome."""

    counts: dict[str, int]
    #: Of those that have ended and did not complete: which.
    bad: dict[str, list[Ids]]


class Arrays:
    """Reads, and writes into the open transaction of the journal that it belongs to."""

    def __init__(
        self, database: sqlite3.Connection, reported: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        """`reported`: the journal's own way to complain; the word says what could not be done."""
        self._db = database
        self._reported = reported

    def put(self, array: Array, *, is_live: bool) -> None:
        with self._reported("write"):
            self._db.execute(
                "insert or replace into arrays (id, last_id, uid, user, live, cancelled_at, data)"
                " values (?, ?, ?, ?, ?, ?, ?)",
                (
                    array.id,
                    array.last_id,
                    array.spec.uid,
                    array.spec.user,
                    is_live,
                    array.common.ended_at,
                    records.encode(array),
                ),
            )

    def end(self, array_id: int) -> None:
        """The last of its tasks has ended."""
        with self._reported("write"):
            self._db.execute("update arrays set live = 0 where id = ?", (array_id,))

    def get(self, array_id: int) -> Array | None:
        """Any array ever submitted."""
        return self._one("select data from arrays where id = ?", array_id)

    def of_task(self, job_id: int) -> Array | None:
        """The array that has a task of this id."""
        query = "select data from arrays where id < ? order by id desc limit 1"
        array = self._one(query, job_id)
        return array if array is not None and array.has_task(job_id) else None

    def labels(self, job_ids: Iterable[int]) -> dict[int, str]:
        """What people call those that are tasks of arrays."""
        arrays = {job_id: self.of_task(job_id) for job_id in job_ids}
        return {each: array.task(each).label for each, array in arrays.items() if array is not None}

    def live(self) -> list[Left]:
        """Those that are not over."""
        query = "select data from arrays where live = 1 order by id"
        with self._reported("read"):
            arrays = [records.decode_array(data) for (data,) in self._db.execute(query)]
            return [(array, self._unborn(array), self._bad(array)) for array in arrays]

    def last_id(self) -> int:
        """The highest id that an array has taken; 0: there is none."""
        with self._reported("read"):
            row = self._db.execute("select last_id from arrays order by id desc limit 1").fetchone()
        return 0 if row is None else int(row[0])

    def roll(self, array: Array) -> Roll:
        query = "select state, count(*) from jobs where array_id = ? group by state"
        named = "select id from jobs where array_id = ? and state = ? order by id limit ?"
        with self._reported("read"):
            counts = dict(self._db.execute(query, (array.id,)).fetchall())
            bad = {
                state: joined(
                    job_id for (job_id,) in self._db.execute(named, (array.id, state, _NAMED))
                )
                for state in _BAD
                if state in counts
            }
        return Roll(counts, bad)

    def first_bad(self, array: Array) -> Job | None:
        """The first task, by index, that has ended and did not complete."""
        query = "select min(id) from jobs where array_id = ? and state = ?"
        with self._reported("read"):
            found = [self._db.execute(query, (array.id, state)).fetchone()[0] for state in _BAD]
            first = min((each for each in found if each is not None), default=None)
            if array.cancelled and (first is None or array.cancelled[0][0] < first):
                return array.task(array.cancelled[0][0])
            if first is None:
                return None
            row = self._db.execute("select data from jobs where id = ?", (first,)).fetchone()
            return records.decode_job(row[0])

    def ended_of(self, array: Array, *, limit: int) -> list[Job]:
        """The last ended tasks, by index, of those with a record of their own."""
        query = (
            "select data from jobs where id > ? and id <= ? and live = 0 order by id desc limit ?"
        )
        with self._reported("read"):
            rows = self._db.execute(query, (array.id, array.last_id, limit)).fetchall()
            return [records.decode_job(data) for (data,) in rows]

    def cancelled(self, *, limit: int, user: str | None) -> list[Array]:
        """Those of which all waiting tasks were cancelled at once last, newest first."""
        query = (
            "select data from arrays where cancelled_at is not null"
            " and (:user is null or user = :user) order by cancelled_at desc limit :limit"
        )
        with self._reported("read"):
            rows = self._db.execute(query, {"user": user, "limit": limit}).fetchall()
            return [records.decode_array(data) for (data,) in rows]

    def _one(self, query: str, job_id: int) -> Array | None:
        with self._reported("read"):
            row = self._db.execute(query, (job_id,)).fetchone()
            return None if row is None else records.decode_array(row[0])

    def _bad(self, array: Array) -> Bad | None:
        job = self.first_bad(array)
        return None if job is None or job.outcome is None else (job.id, job.outcome)

    def _unborn(self, array: Array) -> tuple[Ids, ...]:
        if array.common.state is JobState.ENDED:
            return ()
        # By the index alone: the rows themselves are long.
        rows = self._db.execute("select id from jobs where array_id = ?", (array.id,))
        return tuple(gaps(sorted(job_id for (job_id,) in rows), array.id + 1, array.last_id))
