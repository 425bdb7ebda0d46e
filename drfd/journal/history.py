"""The past as users ask for it: ended jobs, the events of one job, and which jobs have changed.

Each function reads over a connection of its own, which sees what is committed and blocks no writer,
so it may be called from any thread while the daemon writes. It reads a bounded number of rows of a
job's events.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from drfd.core.model import events as ev
from drfd.core.model.job import ROOT, Array, DeclaredJob, Job
from drfd.core.usage import Curve
from drfd.journal import records
from drfd.journal.arrays import Arrays, TaskCounts
from drfd.journal.database import Database, open_snapshot
from drfd.protocol.requests import HistoryFilter

#: Number of first events, and of last ones, in a story.
FIRST, LAST = 20, 200


@dataclass(frozen=True, slots=True)
class Story:
    events: list[ev.Event]
    #: Number of events left out between the first and the last ones, and of those dropped.
    omitted: int
    dropped: int


def read_story(path: Path, job_id: int, array_id: int | None) -> Story:
    """Return the first and last events of a job or array. Raises HostError. The events of a task
    include those of its array from before it had a record of its own."""
    with open_snapshot(path) as db:
        (born,) = db.execute("select min(seq) from events where job_id = ?", (job_id,)).fetchone()
        # Each of them is a range of one index.
        parts = [(job_id, _AT_THE_END)]
        if array_id is not None:
            parts.insert(0, (array_id, _AT_THE_END if born is None else born))
        count, dropped = 0, 0
        for part in parts:
            statement = "select count(*) from events where job_id = ? and seq < ?"
            count += db.execute(statement, part).fetchone()[0]
        for table in ("jobs", "arrays"):
            # Only constants of this module are put into the statement.
            statement = f"select events_dropped from {table} where id = ?"  # noqa: S608
            row = db.execute(statement, (job_id,)).fetchone()
            dropped += 0 if row is None else row[0]
        if count <= FIRST + LAST:
            rows = list(_rows(db, parts, "asc", count))
        else:
            last = list(_rows(db, parts[::-1], "desc", LAST))
            rows = [*_rows(db, parts, "asc", FIRST), *last[::-1]]
        events = [records.decode_event(kind, data) for kind, data in rows]
    return Story(events, count - len(events), dropped)


def read_roll(path: Path, array: Array) -> TaskCounts:
    """Count the tasks of an array that have a record of their own. Raises HostError."""
    with open_snapshot(path) as db:
        return Arrays(db).roll(array)


def read_last_ended(path: Path, past: PastFilter, *, most: int) -> tuple[list[Job], list[Array]]:
    """Return the selected ended jobs, and up to `most` arrays of the same user whose waiting tasks
    were all cancelled at once; the newest first. Raises HostError."""
    with _reader(path) as db:
        jobs = [records.decode_job(data) for (data,) in db.execute(*query(past))]
        return jobs, Arrays(db).cancelled(limit=most, user=past.user)


def read_ended_ids(path: Path, array: Array, *, limit: int) -> list[int]:
    """Return the ids of the last ended tasks of an array that have records of their own. Raises
    HostError."""
    with open_snapshot(path) as db:
        return Arrays(db).ended_ids(array, limit=limit)


_AT_THE_END = 1 << 62


def _rows(
    db: sqlite3.Connection, parts: list[tuple[int, int]], order: str, most: int
) -> Iterator[tuple[str, bytes]]:
    # No part of the statement comes from outside.
    statement = (
        "select kind, data from events where job_id = ? and seq < ?"  # noqa: S608
        f" order by seq {order} limit ?"
    )
    for part in parts:
        rows = db.execute(statement, (*part, most)).fetchall()
        most -= len(rows)
        yield from rows


class PastFilter(HistoryFilter, frozen=True):
    """A page of the ended jobs that pass the filter, whose `ids` are numbers."""

    #: The end and id of the job before the first of the page.
    after: tuple[float, int] | None = None
    limit: int | None = None


def query(past: PastFilter) -> tuple[str, dict[str, object]]:
    """Return the statement and its values. It has only the conditions that were given: one that
    allows any value would keep SQLite from using its indexes. A pattern of names needs a connection
    that `read_ended` has prepared."""
    words = ["live = 0"]
    pool = None if past.pool is None else f"{ROOT}.{past.pool.removeprefix(f'{ROOT}.')}"
    values: dict[str, object] = {}
    for word, name, value in (
        (_IS_ONE_OF, "ids", json.dumps(past.ids)),
        ("user = :user", "user", past.user),
        (_state_word(past.states), "states", _state_value(past.states)),
        (f"is_like({_NAME}, :name)", "name", past.name),
        ("json_extract(cast(data as text), '$.spec.group.name') = :group", "group", past.group),
        (_IN_POOL, "pool", pool),
        ("ended_at >= :since", "since", past.since_s),
        ("ended_at < :until", "until", past.until_s),
    ):
        if value not in (None, "[]"):
            words.append(word)
            values[name] = value
    if past.after is not None:
        words.append("(ended_at, id) < (:after_s, :after_id)")
        values["after_s"], values["after_id"] = past.after
    values["limit"] = -1 if past.limit is None else past.limit
    where = " and ".join(words)
    order = "order by ended_at desc, id desc limit :limit"
    # All values are bound; no part of the statement comes from outside.
    return f"select data from jobs where {where} {order}", values  # noqa: S608


def is_like(name: str, pattern: str) -> bool:
    """Return whether the name matches the pattern, or is the same: a name may look like a pattern,
    such as "[red]"."""
    return name == pattern or compiled(pattern).match(name) is not None


@lru_cache(maxsize=64)
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern as fnmatch.fnmatchcase does. Its own cache of 32,768 patterns is not used:
    users could fill it with 250 MB of long ones."""
    return re.compile(translate(pattern))


def read_ended(path: Path, past: PastFilter) -> Iterator[Job]:
    """Yield the selected jobs, newest first. Raises HostError."""
    with _reader(path) as db:
        for (data,) in db.execute(*query(past)):
            yield records.decode_job(data)


def read_declared(path: Path, past: PastFilter) -> Iterator[DeclaredJob]:
    """Yield as `read_ended` does, in a third of the time."""
    with _reader(path) as db:
        for (data,) in db.execute(*query(past)):
            yield records.decode_declared(data)


@contextmanager
def _reader(path: Path) -> Iterator[Database]:
    with open_snapshot(path) as db:
        db.create_function("is_like", 2, is_like, deterministic=True)
        yield db


def read_curves(path: Path, ids: Iterable[int]) -> dict[int, Curve]:
    """Return the usage curves of these jobs, of those that have one. Raises HostError."""
    statement = "select job_id, data from curves where job_id in (select value from json_each(?))"
    with open_snapshot(path) as db:
        rows = db.execute(statement, (json.dumps(list(ids)),)).fetchall()
        return {job_id: records.decode_curve(data) for job_id, data in rows}


_IS_ONE_OF = (
    "(id in (select value from json_each(:ids)) or array_id in (select value from json_each(:ids)))"
)
_NAME = "json_extract(cast(data as text), '$.spec.name')"
_IN_POOL = (
    "(json_extract(cast(data as text), '$.spec.pool') = :pool"
    " or substr(json_extract(cast(data as text), '$.spec.pool'), 1, length(:pool) + 1)"
    " = :pool || '.')"
)


def _state_word(states: tuple[str, ...]) -> str:
    """Return the condition: one state is looked up in its index, several are filtered by time."""
    if len(states) == 1:
        return "state = :states"
    # The plus keeps SQLite from collecting all of them by state only to sort them by time.
    return "+state in (select value from json_each(:states))"


def _state_value(states: tuple[str, ...]) -> str:
    return states[0] if len(states) == 1 else json.dumps(states)
