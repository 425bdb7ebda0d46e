"""The daemon's stream of changes, carried over its restarts so that no end is missed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from drfd.client.connection import RECONNECT_S, RETRY_S, Connection
from drfd.errors import Unavailable


def follow(connection: Connection, select: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each change as the JSON of its job, until all jobs that `select` names have ended.

    First, and after each run of changes, the daemon sends a mark, its place in the journal. When
    the line is lost, the stream is asked for again from the last mark on: then come all jobs that
    have changed since, as they are now, whether the daemon was away or we were slow.
    """
    mark: int | None = None
    # The second mark says that all has been told that there was at the start.
    marks = 0
    # Patience is for a daemon that was there: the first connection is made or refused.
    give_up = time.monotonic()
    try:
        while True:
            try:
                connection.send("events", select=select, after=mark, standing=marks < 2)
                while True:
                    told = connection.receive()
                    if "event" in told:
                        yield told["event"]
                    elif "mark" in told:
                        mark, marks = told["mark"], marks + 1
                    else:
                        return
            except Unavailable as error:
                connection.close()
                if error.code == "lost":
                    give_up = time.monotonic() + RECONNECT_S
                marks = marks if marks > 1 else 0
                if time.monotonic() > give_up:
                    raise
                time.sleep(RETRY_S)
    finally:
        connection.close()
