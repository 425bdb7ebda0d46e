"""Removal of old ended jobs from the journal.

They are removed a little at a time, and unused pages are returned to the file system. The next id
and the number of the last event are stored with it, so that none is given out twice.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from drfd.journal.files import Database, open_snapshot

#: Maximum number of rows and bytes removed in one step, except for a single longer row.
ROWS, _BYTES = 100, 256 << 10
#: Number of them that are found at a time, and more than a user can have.
_FOUND, _ALL = 10_000, 1 << 62
#: Number of pages returned to the file system in one step, and of unused pages that are kept.
_PAGES_AT_ONCE, _PAGES_KEPT = 512, 1024
#: Length in bytes above which the log is written back and truncated while there is no reader.
_LOG_BYTES = 64 << 20


#: The oldest ended jobs and arrays, each with its table, that ended too long ago, or of which their
#: user has too many later ones. The tasks of an array stay until it has been removed.
_REMOVABLE = """
    select kind, id from (
        select *, row_number() over (partition by user order by ended_at desc, id desc) as place
        from (select 'jobs' as kind, id, user, ended_at, array_id from jobs where live = 0
            union all select 'arrays', id, user, ended_at, null from arrays where live = 0))
    where (ended_at < ? or place > ?) and not exists (select 1 from arrays where id = array_id)
    order by ended_at, id limit ?
"""
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
        #: Whether pages were returned and the file has not been truncated yet.
        self._has_given = False

    def remove(self, due: deque[tuple[str, int]]) -> None:
        """Remove the first of these jobs and arrays."""
        last, size = len(due) - ROWS, 0
        with self._db.reported("write"):
            self._db.begin()
            self._db.execute(_KEEP_NUMBERS)
            while due and len(due) > last and size < _BYTES:
                table, each = due.popleft()
                # The table is a constant of this module.
                query = f"delete from {table} where id = ? returning length(data) + length(events)"  # noqa: S608
                size += sum(length for (length,) in self._db.execute(query, (each,)).fetchall())

    def give_back(self) -> bool:
        """Return some unused pages to the file system; return whether there may be more. A journal
        that was restored from a dump only reuses its pages."""
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

    def _value(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0] or 0)


#: Value of `pragma auto_vacuum` for a file that can shrink.
_INCREMENTAL = 2


def read_removable(path: Path, before_s: float, most: int | None) -> deque[tuple[str, int]]:
    """Return the oldest jobs and arrays, each with its table, that ended before that Unix time, or
    of which their user has more than `most`. Raises HostError. It reads an index of all that have
    ended, so it is called outside the daemon's loop."""
    with open_snapshot(path) as db:
        return deque(db.execute(_REMOVABLE, (before_s, _ALL if most is None else most, _FOUND)))
