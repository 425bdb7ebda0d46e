"""The past as users ask for it: ended jobs, the events of one job, and which jobs have changed.

Each function reads over a connection of its own, which sees what is committed and blocks no writer,
so it may be called from any thread while the daemon writes.
"""

from __future__ import annotations

import json
import re
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
from drfd.journal.files import Database, open_snapshot
from drfd.protocol.requests import HistoryFilter


@dataclass(frozen=True, slots=True)
class Story:
    events: list[ev.Event]
    #: Number of events that were given up.
    dropped: int


def read_story(path: Path, job_id: int, array_id: int | None) -> Story:
    """Return the events of a job, or of an array as a whole. Raises HostError."""
    with open_snapshot(path) as db:
        return story(db, job_id, array_id)


def story(db: Database, job_id: int, array_id: int | None) -> Story:
    """Return the events of a job, or of an array as a whole. A task was submitted with its
    array."""
    query = "select event, spec from submissions where job_id = ?"
    rows = db.execute(query, (job_id if array_id is None else array_id,))
    first = [records.decode_submission(*row) for row in rows]
    query = (
        "select events, dropped from jobs where id = :id"
        " union all select events, dropped from arrays where id = :id"
    )
    events, dropped = db.execute(query, {"id": job_id}).fetchone() or (b"", 0)
    return Story([*first, *(event for _, event in records.decode_events(events))], dropped)


def read_roll(path: Path, array: Array) -> TaskCounts:
    """Count the tasks of an array that have ended. Raises HostError."""
    with open_snapshot(path) as db:
        return Arrays(db).roll(array)


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
        (_IS_STATE, "states", json.dumps(past.states)),
        (f"is_like({_NAME}, :name)", "name", past.name),
        ("json_extract(cast(spec as text), '$.group.name') = :group", "group", past.group),
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
    return f"select data, spec from records where {where} {order}", values  # noqa: S608


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
        for row in db.execute(*query(past)):
            yield records.decode_job(*row)


def read_declared(path: Path, past: PastFilter) -> Iterator[DeclaredJob]:
    """Yield as `read_ended` does, in a third of the time."""
    with _reader(path) as db:
        for row in db.execute(*query(past)):
            yield records.decode_declared(*row)


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


_IS_STATE = "state in (select value from json_each(:states))"
_IS_ONE_OF = (
    "id in (select value from json_each(:ids) union select id from jobs"
    " where live = 0 and array_id in (select value from json_each(:ids)))"
)
_NAME = "json_extract(cast(spec as text), '$.name')"
_POOL = "json_extract(cast(spec as text), '$.pool')"
_IN_POOL = f"({_POOL} = :pool or substr({_POOL}, 1, length(:pool) + 1) = :pool || '.')"
