"""Plain values of Python, and texts as people write them, as the wire has them. Raises Refused."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from drfd.client import words
from drfd.client.submission import Rates
from drfd.client.values import Job
from drfd.client.words import Ref
from drfd.errors import Refused
from drfd.indices import read_array
from drfd.units import parse_cores, parse_disk_rates, parse_duration, parse_memory

#: Jobs, arrays, and tasks: 42, "42_7", "3-7,9", a Job, or several of these.
Ids = int | str | Job | Iterable[int | str | Job]
#: A time: seconds, "1h30m", or a timedelta.
Span = int | str | timedelta


def ids(given: Ids) -> list[Ref]:
    """Each of them once, in their order."""
    each_of = [given] if isinstance(given, int | str | Job) else given
    found: list[Ref] = []
    for each in each_of:
        found += words.parse_ids(str(each.id if isinstance(each, Job) else each))
    return list(dict.fromkeys(found))


def one(job: int | str | Job) -> Ref:
    return job.id if isinstance(job, Job) else words.parse_id(str(job))


def selection(
    given: Ids | None, user: str | None, name: str | None, states: Iterable[str]
) -> dict[str, Any]:
    select = {
        "ids": [] if given is None else ids(given),
        "user": user,
        "name": name,
        "states": [state.upper() for state in states],
    }
    return {key: value for key, value in select.items() if value}


def after(given: Ids) -> tuple[tuple[Ref, str], ...]:
    """Also "42:any" and "42:fail"."""
    each_of = [given] if isinstance(given, int | str | Job) else given
    text = ",".join(str(each.id if isinstance(each, Job) else each) for each in each_of)
    return tuple(words.parse_after(text))


def demand(
    cores: float | str | None,
    memory: int | str | None,
    io: str | Iterable[str] | None,
    gres: Mapping[str, int] | None,
) -> dict[str, Any]:
    """`cores`, `mem`, `io` and `gres` of `submission.compose`."""
    rates: tuple[Rates, ...] = ()
    if io is not None:
        rates = tuple(map(parse_disk_rates, [io] if isinstance(io, str) else io))
    return {
        "cores": None if cores is None else parse_cores(cores),
        "mem": None if memory is None else parse_memory(memory),
        "io": rates,
        "gres": tuple((gres or {}).items()),
    }


def limit(given: Span | None) -> int | None:
    """Seconds; 0 for "unlimited"."""
    return 0 if given == "unlimited" else span(given)


def span(given: Span | None) -> int | None:
    if given is None:
        return None
    if isinstance(given, timedelta):
        given = int(given.total_seconds())
    return parse_duration(given)


def begin(given: str | float | datetime | None) -> int | None:
    """Unix time of "18:00", "now+2h", a Unix time or a datetime (without a zone: the local one)."""
    if given is None:
        return None
    if isinstance(given, str):
        return words.parse_begin(given)
    at_s = given.timestamp() if isinstance(given, datetime) else given
    if at_s <= time.time():
        raise Refused("bad-value", f"begin: {given!r} is over already")
    return int(at_s)


def array(given: str | range | None) -> str | None:
    """Indices: "0-99%5", or a range."""
    if isinstance(given, range):
        if not given or given.step < 0:
            raise Refused("bad-value", f"array: {given!r} has no index", hint="write range(100)")
        given = f"{given[0]}-{given[-1]}:{given.step}"
    if given is not None:
        read_array(given)
    return given
