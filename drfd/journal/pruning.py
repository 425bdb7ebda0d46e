"""Removal of old ended jobs from the journal.

They are removed a little at a time, and unused pages are returned to the file system. The next id
and the number of the last event are stored with it, so that none is given out twice.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from drfd.journal.database import Database, open_snapshot, reported

#: Maximum number of rows and bytes removed in one step, except for a single longer row.
ROWS, _BYTES = 100, 256 << 10
#: Number of ended jobs looked at in one step.
_LOOKED_AT = 500
#: Number of pages returned to the file system in one step, and of unused pages that are kept.
_PAGES_AT_ONCE, _PAGES_KEPT = 512, 1024
#: Length in bytes above which the log is written back and truncated while there is no reader.
_LOG_BYTES = 64 << 20


#: The end and id that those have which stay, and the user, or None for all.
Before = tuple[float, int, str | None]
_NEXT_ARRAYS = f"""
    select id from arrays where live = 0 and (ended_at, id) < (?, ?)
    and ifnull(?, user) = user order by ended_at, id limit {ROWS}
"""  # noqa: S608
_NEXT_JOBS = f"""
    select id, ended_at, ifnull(?3, user) = user
        and not exists (select 1 from arrays where id = array_id) from jobs
    where live = 0 and (ended_at, id) < (?1, ?2)
    and (ended_at, id) > (?4, ?5) order by ended_at, id limit {_LOOKED_AT}
"""  # noqa: S608
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
        #: End and id of the last job that a search has skipped, by the searched user.
        self._passed: dict[str | None, tuple[float, int]] = {}
        #: Whether pages were returned and the file has not been truncated yet.
        self._has_given = False

    def remove(self, before_s: float, user: str | None, before_id: int) -> int | None:
        """Remove some jobs that ended before that Unix time, or then with a lower id, the oldest
        first. With `user`, only that user's jobs. Returns the number of removed jobs and arrays,
        which may be 0 if many jobs had to be skipped, or None if there is nothing more to
        remove."""
        before = before_s, before_id, user
        with self._db.reported("read"):
            arrays = [each for (each,) in self._db.execute(_NEXT_ARRAYS, before)]
            table, ids = ("arrays", arrays) if arrays else ("jobs", self._next(before))
        if ids is None:
            return None
        if arrays:
            # Their tasks are no longer skipped.
            self._passed.clear()
        removed, size = 0, 0
        with self._db.reported("write"):
            if ids:
                self._db.begin()
                self._db.execute(_KEEP_NUMBERS)
            while removed < len(ids) and size < _BYTES:
                # Only constants of this module are put into the statement.
                query = f"delete from {table} where id = ? returning length(data) + length(events)"  # noqa: S608
                ((length,),) = self._db.execute(query, (ids[removed],)).fetchall()
                removed, size = removed + 1, size + length
        return removed

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

    def _next(self, before: Before) -> list[int] | None:
        """Return the next jobs that can be removed, or None if there are no more to look at. The
        tasks of an array can be removed only once it has been."""
        passed = self._passed.pop(before[2], (float("-inf"), 0))
        rows = self._db.execute(_NEXT_JOBS, (*before, *passed)).fetchall()
        if not rows:
            return None
        found = [job_id for job_id, _, may_go in rows if may_go]
        self._passed[before[2]] = passed if found else (rows[-1][1], rows[-1][0])
        return found[:ROWS]

    def _value(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0] or 0)


#: Value of `pragma auto_vacuum` for a file that can shrink.
_INCREMENTAL = 2


def read_excess(path: Path, most: int) -> dict[str, tuple[float, int]]:
    """Return the users with more than `most` ended jobs and arrays, and the end and id of the last
    one that is too much. Raises HostError. It reads an index of them all, so it is called outside
    the daemon's loop."""
    query = (
        "select user, ended_at, id from (select user, ended_at, id, row_number() over"
        " (partition by user order by ended_at desc, id desc) as place from"
        " (select user, ended_at, id from jobs where live = 0"
        " union all select user, ended_at, id from arrays where live = 0)) where place = ?"
    )
    with open_snapshot(path) as db:
        return {user: (at_s, each) for user, at_s, each in db.execute(query, (most + 1,))}


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
