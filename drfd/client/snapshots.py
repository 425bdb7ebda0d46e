"""How everything stands, again and again, and how the use of a job or a user went, as values.

What is really used: cores, bytes, bytes per second; None is not known. `raw` is all that was told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from drfd.client.connection import RECONNECT_S, RETRY_S, Connection
from drfd.client.values import Amounts, Reason, Shares
from drfd.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Use:
    """What is really used now."""

    cores: float | None
    memory: int | None
    read: float | None
    write: float | None

    @classmethod
    def of(cls, view: Mapping[str, Any]) -> Use:
        return cls(view["cores"], view["memory"], view["read"], view["write"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job, or waiting tasks of an array that are all alike; what everybody may know of it."""

    id: int
    #: `42`, `42_7`, or `42_[8-99]`.
    label: str
    tasks: int
    name: str
    user: str
    pool: str
    state: str
    reason: Reason | None
    demand: Amounts
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    #: None: it does not run, or has just begun.
    now: Use | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, view: Mapping[str, Any]) -> Row:
        reason, now = view["reason"], view["now"]
        return cls(
            id=view["id"],
            label=view["label"],
            tasks=view["tasks"],
            name=view["name"],
            user=view["user"],
            pool=view["pool"],
            state=view["state"],
            reason=None if reason is None else Reason(reason["code"], reason["text"]),
            demand=Amounts.of(view["demand"]),
            submitted_at=view["submitted_at"],
            started_at=view["started_at"],
            ended_at=view["ended_at"],
            now=None if now is None else Use.of(now),
            raw=view,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    #: Unix time.
    at: float
    host: str
    draining: bool
    shares: Shares
    #: Tasks of arrays counted singly.
    counts: Mapping[str, int]
    running: tuple[Row, ...]
    #: In the order in which they would start now, held ones last: the first ones.
    pending: tuple[Row, ...]
    #: How many rows are left out there, and which of these are the caller's own.
    pending_more: int
    mine: tuple[Row, ...]
    #: Those that ended last, newest first.
    ended: tuple[Row, ...]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, view: Mapping[str, Any]) -> Snapshot:
        rows = {
            kind: tuple(map(Row.of, view[kind])) for kind in ("running", "pending", "mine", "ended")
        }
        return cls(
            at=view["at"],
            host=view["host"],
            draining=view["draining"],
            shares=Shares.of(view),
            counts=view["counts"],
            pending_more=view["pending_more"],
            raw=view,
            **rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Points, the oldest first: means of the time that ends at each of `at` (Unix times)."""

    at: tuple[float, ...]
    cores: tuple[float | None, ...]
    memory: tuple[int | None, ...]
    read: tuple[int | None, ...]
    write: tuple[int | None, ...]
    #: Of a job: what it asked for.
    demand: Amounts | None

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Usage:
        columns = {name: tuple(column) for name, column in reply["usage"].items()}
        demand = reply["demand"]
        return cls(**columns, demand=None if demand is None else Amounts.of(demand))


def watch(connection: Connection, every_s: float) -> Iterator[Snapshot]:
    """One after the other, carried over restarts of the daemon."""
    # Patience is for a daemon that was there: the first connection is made or refused.
    give_up = time.monotonic()
    try:
        while True:
            try:
                connection.send("snapshots", every_s=every_s)
                while True:
                    yield Snapshot.of(connection.receive()["snapshot"])
            except Unavailable as error:
                connection.close()
                if error.code == "lost":
                    give_up = time.monotonic() + RECONNECT_S
                if time.monotonic() > give_up:
                    raise
                time.sleep(RETRY_S)
    finally:
        connection.close()
