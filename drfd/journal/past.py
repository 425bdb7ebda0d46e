"""What has been, as people ask for it: ended jobs by user, state, name, pool and time, newest
first; jobs that have changed since.

Reads over a connection of its own, which sees what is committed and holds up no writer, so it may
be used from any thread while the daemon writes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drfd.core.curve import Curve
from drfd.core.job import Job
from drfd.errors import HostError
from drfd.journal import records


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Which ended jobs; what is left out does not matter."""

    #: Of jobs, or of arrays for all their tasks.
    ids: tuple[int, ...] = ()
    user: str | None = None
    states: tuple[str, ...] = ()
    name: str | None = None
    #: As a path, "root.lab": jobs of this pool and of those below it.
    pool: str | None = None
    #: Unix times of the end: from the first on, and before the second.
    since_s: float | None = None
    until_s: float | None = None
    #: Only what comes after the job with this end and id: the next page.
    after: tuple[float, int] | None = None
    limit: int | None = None


def query(past: Past) -> tuple[str, dict[str, Any]]:
    """The statement and its values. Only what was asked for is in it: a condition that allows for
    everything would keep SQLite from its indexes."""
    words, values = ["live = 0"], {}
    for word, name, value in (
        (_IS_ONE_OF, "ids", json.dumps(past.ids)),
        ("user = :user", "user", past.user),
        (_state_word(past.states), "states", _state_value(past.states)),
        ("json_extract(cast(data as text), '$.spec.name') = :name", "name", past.name),
        (_IN_POOL, "pool", past.pool),
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
    # All values are bound: the words are ours.
    return f"select data from jobs where {where} {order}", values  # noqa: S608


def read_ended(path: Path, past: Past) -> Iterator[Job]:
    """The jobs, newest first, while they are read. Raises HostError."""
    statement, values = query(past)
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as db:
            for (data,) in db.execute(statement, values):
                yield records.decode_job(data)
    except (sqlite3.Error, ValueError) as error:
        raise HostError("journal", f"cannot read the journal {path}: {error}") from error


def read_curves(path: Path, ids: Iterable[int]) -> dict[int, Curve]:
    """How the use of these jobs went, of those that anything is known of. Raises HostError."""
    statement = "select job_id, data from curves where job_id in (select value from json_each(?))"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as db:
            rows = db.execute(statement, (json.dumps(list(ids)),)).fetchall()
            return {job_id: records.decode_curve(data) for job_id, data in rows}
    except (sqlite3.Error, ValueError) as error:
        raise HostError("journal", f"cannot read the journal {path}: {error}") from error


def read_changed(path: Path, *, after: int, limit: int) -> tuple[list[int], int]:
    """The jobs and arrays that the next `limit` events after `after` are about, in the order of the
    last of these; and the last event looked at. Raises HostError."""
    statement = "select seq, job_id from events where seq > ? order by seq limit ?"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as db:
            rows = db.execute(statement, (after, limit)).fetchall()
    except sqlite3.Error as error:
        raise HostError("journal", f"cannot read the journal {path}: {error}") from error
    latest = {job_id: seq for seq, job_id in rows if job_id is not None}
    return sorted(latest, key=latest.__getitem__), rows[-1][0] if rows else after


_IS_ONE_OF = (
    "(id in (select value from json_each(:ids)) or array_id in (select value from json_each(:ids)))"
)
_IN_POOL = (
    "(json_extract(cast(data as text), '$.spec.pool') = :pool"
    " or substr(json_extract(cast(data as text), '$.spec.pool'), 1, length(:pool) + 1)"
    " = :pool || '.')"
)


def _state_word(states: tuple[str, ...]) -> str:
    """One state is looked up in its index; several are picked out of the order by time."""
    if len(states) == 1:
        return "state = :states"
    # The plus keeps SQLite from collecting all of them by state only to sort them by time.
    return "+state in (select value from json_each(:states))"


def _state_value(states: tuple[str, ...]) -> str:
    return states[0] if len(states) == 1 else json.dumps(states)
