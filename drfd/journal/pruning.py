"""Removal of old ended jobs from the journal.

They are removed a little at a time, and unused pages are returned to the file system. The next id
and the number of the last event are stored with it, so that none is given out twice.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from drfd.journal.database import Database, open_snapshot, reported

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

    def take(self, size: int) -> None:
        self.rows -= 1
        self.bytes -= size
        self.removed += 1

    @property
    def is_none(self) -> bool:
        return self.rows <= 0 or self.bytes <= 0


#: Stores the next id and the number of the last event, before what has them may be removed.
_KEEP_NUMBERS = """
    insert or replace into facts select 'next_id', max(ifnull((select max(id) from jobs), 0),
        ifnull((select last_id from arrays order by id desc limit 1), 0),
        ifnull((select value - 1 from facts where name = 'next_id'), 0)) + 1
    union all select 'seq', max(ifnull((select max(seq) from jobs), 0),
        ifnull((select max(seq) from arrays), 0),
        ifnull((select cast(value as integer) from facts where name = 'seq'), 0))
"""


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
            self._db.execute(_KEEP_NUMBERS)
            while not left.is_none and self._remove_one(before_s, user, left):
                pass
            if has_begun and not left.removed:
                self._db.execute("rollback")
        if left.removed:
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
            select id, ended_at from arrays
            where live = 0 and ended_at < :before{whose} order by ended_at limit 1
        """  # noqa: S608
        row: tuple[int, float] | None = self._db.execute(
            query, {"before": before_s, "user": user}
        ).fetchone()
        return row

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
                if not has_array:
                    return job_id, ended_at
                self._passed[user] = ended_at, job_id
            if len(rows) < _READ_AT_ONCE:
                # There are no more jobs, so the search did not end for lack of `reads`.
                left.reads = max(1, left.reads)
                return None
        return None

    def _remove_array(self, array_id: int, left: _Left) -> None:
        self._remove_row("arrays", array_id, left)
        # Its tasks are no longer skipped.
        self._passed.clear()

    def _remove_row(self, table: str, row_id: int, left: _Left) -> None:
        # Only constants of this module are put into the statement.
        query = f"delete from {table} where id = ? returning length(data) + length(events)"  # noqa: S608
        ((size,),) = self._db.execute(query, (row_id,)).fetchall()
        left.take(size)

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
