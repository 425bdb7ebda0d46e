"""The arrays in the journal, and the states of their tasks.

A task has a row in `jobs` from its first event on: until then it is as it was submitted.

No query reads more than the index entries of one array.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from drfd.common.indices import Ids, gaps, joined
from drfd.core.ledger.queue import FailedTask, LiveArray
from drfd.core.model import events as ev
from drfd.core.model.job import Array, Job, Outcome
from drfd.journal import records
from drfd.journal.files import Database

_BAD = tuple(outcome.value for outcome in Outcome if outcome is not Outcome.COMPLETED)
#: Asks for these arrays, and the first task with each of these outcomes. Only constants are put
#: into the statement.
_FIRST = "(select min(id) from jobs where live = 0 and array_id = arrays.id and state = '{}')"
_ENDS_QUERY = (
    f"select id, {', '.join(map(_FIRST.format, _BAD))} from arrays"  # noqa: S608
    " where id in (select value from json_each(?))"
)
_WRITE = (
    "insert into arrays (id, last_id, uid, user, live, seq, data, events)"
    " values (?, ?, ?, ?, 1, ?, ?, ?) on conflict (id) do update set"
    " data = excluded.data, events = cast(events || excluded.events as blob)"
)


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The tasks of an array that have ended."""

    #: Their number by outcome.
    counts: dict[str, int]
    #: Ids of those that did not complete, by outcome.
    bad: dict[str, list[Ids]]


class Arrays:
    """The table of arrays; writes belong to the journal's open transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def put(self, array: Array, seq: int, line: bytes) -> None:
        """Store a new array with the number of its submission, or one with an order."""
        row = (array.id, array.last_id, array.spec.uid, array.spec.user, seq)
        self._db.write(_WRITE, (*row, records.encode(array), line))

    def end(self, array_id: int, at_s: float) -> None:
        """Mark an array as ended, after the end of its last task."""
        self._db.write("update arrays set live = 0, ended_at = ? where id = ?", (at_s, array_id))

    def get(self, array_id: int) -> Array | None:
        """Return an array, live or ended, or None if there is none with this id."""
        row = self._db.row("select data from arrays where id = ?", (array_id,))
        return None if row is None else records.decode_array(row[0])

    def live(self) -> list[LiveArray]:
        """Return the live arrays."""
        query = (
            "select data, event, spec from arrays join submissions on job_id = id"
            " where live = 1 order by id"
        )
        found = []
        with self._db.reported("read"):
            for data, event, spec in self._db.execute(query).fetchall():
                array = records.decode_array(data)
                submitted = records.decode_submission(event, spec)
                assert isinstance(submitted, ev.ArraySubmitted)
                ids = tuple(self.untouched(array))
                found.append(LiveArray(array, self._bad(array), ids, submitted.new_job()))
        return found

    def last_id(self) -> int:
        """Return the highest id of an array's task, or 0 if there is no array."""
        row = self._db.row("select last_id from arrays order by id desc limit 1")
        return 0 if row is None else int(row[0])

    def roll(self, array: Array) -> TaskCounts:
        """Count the tasks that have ended, by outcome."""
        query = "select state, count(*) from jobs where live = 0 and array_id = ? group by state"
        named = "select id from jobs where live = 0 and array_id = ? and state = ? order by id"
        with self._db.reported("read"):
            counts = dict(self._db.execute(query, (array.id,)).fetchall())
            bad = {
                state: joined(job_id for (job_id,) in self._db.execute(named, (array.id, state)))
                for state in _BAD
                if state in counts
            }
        return TaskCounts(counts, bad)

    def outcomes(self, ids: list[int]) -> dict[int, Outcome]:
        """Return the outcomes of those that are ended arrays: COMPLETED, or that of the first task,
        by index, of which it is not."""
        found = {}
        for array_id, *firsts in self._db.rows(_ENDS_QUERY, (json.dumps(ids),)):
            ends = zip(firsts, _BAD, strict=True)
            first = min((each for each in ends if each[0] is not None), default=None)
            found[array_id] = Outcome.COMPLETED if first is None else Outcome(first[1])
        return found

    def first_bad(self, array: Array, outcomes: Iterable[str] = _BAD) -> Job | None:
        """Return the first task, by index, that has ended with one of these outcomes, or None."""
        query = "select min(id) from jobs where live = 0 and array_id = ? and state = ?"
        with self._db.reported("read"):
            found = [self._db.execute(query, (array.id, each)).fetchone()[0] for each in outcomes]
            first = min((each for each in found if each is not None), default=None)
            if first is None:
                return None
            query = "select data, spec from records where id = ?"
            return records.decode_job(*self._db.execute(query, (first,)).fetchone())

    def ended_ids(self, array: Array, *, limit: int) -> list[int]:
        """Return the ids of the last ended tasks."""
        query = "select id from jobs where id > ? and id <= ? and live = 0 order by id desc limit ?"
        return [job_id for (job_id,) in self._db.rows(query, (array.id, array.last_id, limit))]

    def _bad(self, array: Array) -> FailedTask | None:
        job = self.first_bad(array)
        return None if job is None or job.outcome is None else (job.id, job.outcome)

    def untouched(self, array: Array) -> list[Ids]:
        """Return the ids of the tasks that are as they were submitted."""
        # Both queries use an index alone, because the rows are long.
        query = (
            "select id from jobs where live = 0 and array_id = :id"
            " union all select id from jobs where live = 1 and id > :id and id <= :last"
        )
        rows = self._db.execute(query, {"id": array.id, "last": array.last_id})
        return gaps(sorted(job_id for (job_id,) in rows), array.id + 1, array.last_id)
