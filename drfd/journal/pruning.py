"""Bounds on the journal: events of a live job beyond a limit, and old ended jobs, are removed.

A user can cause events without end by holding and releasing, signals and changes. Beyond a limit
some events from the middle are deleted; the first and the last stay, and the deleted are counted.

Old jobs are removed a little at a time, and unused pages are returned to the file system. The job
or array with the highest id stays, and so does the one with the last event, so that ids and
sequence numbers are never given out twice.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drfd.core.model import events as ev
from drfd.core.model.job import JobSpec
from drfd.journal.database import Database, open_snapshot, reported
from drfd.journal.records import decode_event

#: Maximum number of events of one job or array, and of their bytes; the first and last events stay
#: however long they are.
MOST, MOST_BYTES = 1000, 1 << 20
FIRST, LAST = 20, 50
#: Bytes that a live job or array takes in memory and in the journal besides events and texts.
JOB_BYTES = 1400
#: Number of events deleted at a time.
_AT_ONCE = 50
#: Kinds deleted first: they leave no trace in the job, or only the last of them does.
_REPEATED = frozenset(
    {
        *("Altered", "Held", "Released", "SignalRequested", "DependencySettled"),
        "LaunchPostponed",
        *("SuspendRequested", "Suspended", "ResumeRequested", "Resumed"),
    }
)


class EventCount(NamedTuple):
    """The events of one job or array: their number, their bytes, and the number deleted."""

    number: int = 0
    bytes: int = 0
    #: Number of events that were deleted.
    dropped: int = 0

    @property
    def cost(self) -> int:
        """The bytes that the job or array takes until it has ended."""
        return self.bytes + JOB_BYTES if self.number else 0


_NONE = EventCount()


class EventTally:
    """Counts the events of live jobs and arrays; deletes belong to the journal's open transaction.
    The counts are stored in the rows of jobs and arrays, so opening a journal reads no events."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._of: dict[int, EventCount] = {}
        #: Bytes that live jobs and arrays take without their texts, by uid.
        self.bytes: Counter[int] = Counter()
        for table in ("jobs", "arrays"):
            columns = "id, uid, events, event_bytes, events_dropped"
            # Only constants of this module are put into the statement.
            query = f"select {columns} from {table} where live = 1"  # noqa: S608
            for job_id, uid, *figures in self._db.execute(query):
                self._of[job_id] = EventCount(*figures)
                self.bytes[uid] += self._of[job_id].cost

    def added(self, job_id: int, spec: JobSpec, size: int, *, live: bool) -> EventCount:
        """Count an appended event of `size` bytes; return the counts for the job's row. `live`
        tells whether the job is live after the event."""
        before = self._of.get(job_id, _NONE)
        number, total, dropped = before.number + 1, before.bytes + size, before.dropped
        if number > MOST or (total > MOST_BYTES and number > FIRST + LAST + _AT_ONCE):
            number, total, dropped = self._thin(job_id, EventCount(number, total, dropped))
        now = EventCount(number, total, dropped)
        if live:
            self._of[job_id] = now
            self.bytes[spec.uid] += now.cost - before.cost
        else:
            self.forget(job_id, spec.uid)
        return now

    def forget(self, job_id: int, uid: int) -> None:
        """Drop the counts of a job or array that has ended."""
        self.bytes[uid] -= self._of.pop(job_id, _NONE).cost
        if not self.bytes[uid]:
            del self.bytes[uid]

    def _thin(self, job_id: int, now: EventCount) -> EventCount:
        query = (
            "select seq, kind, length(data) from events where job_id = ? order by seq"
            " limit ? offset ?"
        )
        middle = min(MOST, now.number - FIRST - LAST)
        rows = self._db.execute(query, (job_id, middle, FIRST)).fetchall()
        # The sort is stable, so the oldest of each group come first.
        rows.sort(key=lambda row: row[1] not in _REPEATED)
        gone = rows[:_AT_ONCE]
        self._db.executemany("delete from events where seq = ?", ((seq,) for seq, *_ in gone))
        size = sum(length for *_, length in gone)
        return EventCount(now.number - len(gone), now.bytes - size, now.dropped + len(gone))


#: Maximum number of rows and bytes removed in one step, except for a single longer row.
ROWS, _BYTES = 100, 256 << 10
#: Number of ended jobs read by one query, and in one step.
_READ_AT_ONCE, _MOST_READ = 20, 500
#: Number of pages returned to the file system in one step, and of unused pages that are kept.
_PAGES_AT_ONCE, _PAGES_KEPT = 512, 1024
#: Length in bytes above which the log is written back and truncated while there is no reader.
_LOG_BYTES = 64 << 20


@dataclass(slots=True)
class _Left:
    """Work that is left for this step: rows and bytes to remove, and jobs to read."""

    rows: int = ROWS
    bytes: int = _BYTES
    reads: int = _MOST_READ
    #: Number of jobs and arrays that were removed.
    removed: int = 0

    def take(self, size: int, rows: int = 1) -> None:
        self.rows -= rows
        self.bytes -= size

    @property
    def is_none(self) -> bool:
        return self.rows <= 0 or self.bytes <= 0

    @property
    def has_removed(self) -> bool:
        return self.rows < ROWS


class Pruning:
    """Removes ended jobs; writes belong to the journal's open transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db
        #: End and id of the last job that a search has skipped, by the searched user. Tasks are
        #: skipped while their array is in the journal.
        self._passed: dict[str | None, tuple[float, int]] = {}
        #: Whether pages were returned and the file has not been truncated yet.
        self._has_given = False

    def remove(self, before_s: float, user: str | None) -> int | None:
        """Remove some jobs that ended before that Unix time, the oldest first. With `user`, only
        that user's jobs. Returns the number of removed jobs and arrays, which may be 0 if many jobs
        had to be skipped, or None if there is nothing more to remove."""
        left = _Left()
        with self._db.reported("write"):
            has_begun = not self._db.in_transaction
            self._db.begin()
            while not left.is_none and self._remove_one(before_s, user, left):
                pass
            if user is None:
                self._remove_drains(before_s, left)
            if has_begun and not left.has_removed:
                self._db.execute("rollback")
        if left.has_removed:
            return left.removed
        if left.reads <= 0:
            return 0
        # The next search begins from the start.
        self._passed.pop(user, None)
        return None

    def give_back(self) -> bool:
        """Return some unused pages to the file system; return whether there may be more. A journal
        that was restored from a dump only reuses its pages, until it is compacted."""
        with self._db.reported("write"):
            unused = self._value("pragma freelist_count")
            if unused <= _PAGES_KEPT or self._value("pragma auto_vacuum") != _INCREMENTAL:
                if self._has_given:
                    # Only writing back the log truncates the file.
                    self._has_given = False
                    self._write_back()
                return False
            self._has_given = True
            # The statement works page by page, and `execute` would stop after the first one.
            self._db.executescript(f"pragma incremental_vacuum({_PAGES_AT_ONCE})")
            return True

    def cut_log(self, log: Path) -> None:
        """Write a long log back into the file and truncate it, unless there is a reader."""
        with self._db.reported("write"):
            if log.exists() and log.stat().st_size > _LOG_BYTES:
                self._write_back()

    def _write_back(self) -> None:
        """Write the log back as far as no reader needs it, without waiting for readers."""
        timeout_ms = self._value("pragma busy_timeout")
        self._db.execute("pragma busy_timeout = 0")
        try:
            self._db.execute("pragma wal_checkpoint(truncate)").fetchone()
        finally:
            self._db.execute(f"pragma busy_timeout = {timeout_ms}")

    def _remove_one(self, before_s: float, user: str | None, left: _Left) -> bool:
        """Remove the oldest job or array; return whether there was one."""
        array = self._oldest_array(before_s, user)
        job = self._oldest_job(before_s, user, left)
        if job is None and left.reads <= 0:
            # A job that was not read yet may be older than the array.
            return False
        if array is not None and (job is None or array[1] <= job[1]):
            self._remove_array(array[0], left)
        elif job is not None:
            self._remove_row("jobs", job[0], left)
        return array is not None or job is not None

    def _oldest_array(self, before_s: float, user: str | None) -> tuple[int, float] | None:
        whose = "" if user is None else " and user = :user"
        # Only constants of this module are put into the statement.
        query = f"""
            select id, ended_at, last_id from arrays
            where live = 0 and ended_at < :before{whose} order by ended_at limit 3
        """  # noqa: S608
        for array_id, ended_at, last_id in self._db.execute(
            query, {"before": before_s, "user": user}
        ).fetchall():
            if last_id < self._highest_id() and self._has_later_events(array_id):
                return array_id, ended_at
        return None

    def _oldest_job(
        self, before_s: float, user: str | None, left: _Left
    ) -> tuple[int, float] | None:
        """Return id and end of the oldest job that can be removed, or None. It is None also if too
        many jobs had to be skipped."""
        whose = "" if user is None else " and user = :user"
        # Only constants of this module are put into the statement.
        query = f"""
            select id, ended_at, exists (select 1 from arrays where id = array_id) from jobs
            where live = 0 and ended_at < :before and (ended_at, id) > (:at_s, :id){whose}
            order by ended_at, id limit {_READ_AT_ONCE}
        """  # noqa: S608
        while left.reads > 0:
            at_s, job_id = self._passed.get(user, (float("-inf"), 0))
            values = {"before": before_s, "at_s": at_s, "id": job_id, "user": user}
            rows = self._db.execute(query, values).fetchall()
            left.reads -= len(rows)
            for job_id, ended_at, has_array in rows:
                if not has_array and job_id < self._highest_id() and self._has_later_events(job_id):
                    return job_id, ended_at
                self._passed[user] = ended_at, job_id
            if len(rows) < _READ_AT_ONCE:
                # There are no more jobs, so the search did not end for lack of `reads`.
                left.reads = max(1, left.reads)
                return None
        return None

    def _highest_id(self) -> int:
        query = (
            "select max(ifnull((select max(id) from jobs), 0), ifnull((select last_id from arrays"
            " order by id desc limit 1), 0))"
        )
        return self._value(query)

    def _has_later_events(self, job_id: int) -> bool:
        last = self._db.execute("select max(seq) from events where job_id = ?", (job_id,))
        return (last.fetchone()[0] or 0) < self._value("select max(seq) from events")

    def _remove_array(self, array_id: int, left: _Left) -> None:
        self._remove_row("arrays", array_id, left)
        # Its tasks are no longer skipped.
        self._passed.clear()

    def _remove_row(self, table: str, row_id: int, left: _Left) -> None:
        # Only constants of this module are put into the statement.
        query = f"delete from {table} where id = ? returning length(data) + event_bytes, events"  # noqa: S608
        ((size, events),) = self._db.execute(query, (row_id,)).fetchall()
        left.take(size, 1 + events)
        left.removed += 1

    def _remove_drains(self, before_s: float, left: _Left) -> None:
        for seq, size in self._outdated_drains(before_s):
            if left.is_none:
                break
            self._db.execute("delete from events where seq = ?", (seq,))
            left.take(size)

    def _outdated_drains(self, before_s: float) -> list[tuple[int, int]]:
        """Return number and length of the records of drains that another one of the same node
        followed before that Unix time, the oldest first."""
        rows = self._db.execute(
            "select seq, at_s, data from events where job_id is null and kind = 'Drained'"
            " order by seq desc"
        ).fetchall()
        found, followed_s = [], dict[str, float]()
        for seq, at_s, data in rows:
            event = decode_event("Drained", data)
            assert isinstance(event, ev.Drained)
            if followed_s.get(event.node, before_s) < before_s:
                found.append((seq, len(data)))
            followed_s[event.node] = at_s
        return found[::-1]

    def _value(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0] or 0)


#: Value of `pragma auto_vacuum` for a file that can shrink.
_INCREMENTAL = 2


def read_excess(path: Path, most: int) -> dict[str, int]:
    """Return the users with more than `most` ended jobs and arrays, and by how many they have more.
    Raises HostError. It reads an index of them all, so it is called outside the daemon's loop."""
    query = (
        "select user, count(*) - :most from (select user from jobs where live = 0"
        " union all select user from arrays where live = 0) group by user having count(*) > :most"
    )
    with open_snapshot(path) as db:
        return dict(db.execute(query, {"most": most}).fetchall())


def compact(path: Path) -> tuple[int, int]:
    """Rewrite the whole journal, so that it is as short as possible and can shrink from now on. No
    other process may have it open. Returns its length before and after. Raises HostError."""
    with reported(path, "compact"):
        before = path.stat().st_size
        with closing(Database.open(path)) as db:
            db.execute("pragma auto_vacuum = incremental")
            db.execute("vacuum")
            db.execute("pragma wal_checkpoint(truncate)").fetchone()
        return before, path.stat().st_size
