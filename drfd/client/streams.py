"""Streams of replies: changes of jobs, snapshots, and a wait beside other work.

Each of them survives a restart of the daemon.
"""

from __future__ import annotations

import select

from drfd.client.connection import RETRY_S, Connection, Reconnect
from drfd.common.errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from drfd.protocol.codec import Message
    from drfd.protocol.replies import JobView, SnapshotView, WaitReply


def follow(
    connection: Connection,
    chosen: Mapping[str, object],
    began: Callable[[], object] | None = None,
) -> Iterator[JobView]:
    """Yield each changed job as JSON until all jobs that `chosen` names have ended. `began` is
    called when the daemon has begun.

    The daemon sends a mark, its place in the journal, at the beginning and after each run of
    changes. After a lost connection the stream is requested again from the last mark on, so that
    every job that has changed since is sent in its present state.
    """
    mark: int | None = None
    # The daemon sends the second mark after the jobs as they stood at the beginning.
    marks = 0

    def request() -> dict[str, object]:
        nonlocal marks
        marks = marks if marks > 1 else 0
        return {"select": chosen, "after": mark, "standing": marks < 2}

    for line in _lines(connection, "events", request):
        if "event" in line:
            yield line["event"]
        elif "mark" in line:
            mark, marks = line["mark"], marks + 1
            if began is not None:
                began()
                began = None
        else:
            return


def watch(connection: Connection, every_s: float) -> Iterator[SnapshotView]:
    """Yield snapshots without end, `every_s` seconds apart."""
    for line in _lines(connection, "snapshots", lambda: {"every_s": every_s}):
        yield line["snapshot"]


def _lines(
    connection: Connection, verb: str, request: Callable[[], dict[str, object]]
) -> Iterator[Message]:
    """Yield the lines of a stream, and request it again after a lost connection. The connection is
    closed at the end."""
    reconnect = Reconnect(connection)
    try:
        while True:
            try:
                connection.send(verb, **request())
                while True:
                    yield connection.receive()
            except Unavailable as error:
                reconnect.pause(error)
    finally:
        connection.close()


class Watch:
    """Wait for the first of some jobs to end, beside other work such as a terminal's."""

    def __init__(self, client: Connection, *ids: int, attended: bool = False) -> None:
        """Prepare the wait. If `attended`, the daemon cancels the jobs if this process is gone."""
        self._client = client
        self._request: dict[str, object] = {"ids": list(ids)}
        if len(ids) > 1:
            self._request["any"] = True
        if attended:
            self._request["attended"] = True
        self._is_asked = False
        self._reconnect = Reconnect(client)
        #: Whether to wait without end for the daemon to come back.
        self.is_patient = False

    def repeat(self) -> None:
        """Wait once more, after a reply about jobs that can never start."""
        self._is_asked = False

    def poll(
        self, timeout_s: float, reads: Sequence[int] = (), writes: Sequence[int] = ()
    ) -> tuple[WaitReply | None, set[int]]:
        """Wait for at most `timeout_s`. Return the reply, or None if no job has ended, and the
        descriptors of `reads` and `writes` that are ready. Raises Unavailable when the daemon has
        been away for too long."""
        self._ask()
        mine = [self._client.fileno()] if self._is_asked else []
        left = timeout_s if self._is_asked else min(timeout_s, RETRY_S)
        readable, writable, _ = select.select([*mine, *reads], writes, [], left)
        reply: WaitReply | None = None
        if mine and mine[0] in readable:
            try:
                reply = self._client.receive()
            except Unavailable as error:
                self._is_asked = False
                self._reconnect.check(error)
        return reply, {*readable, *writable} - set(mine)

    def _ask(self) -> None:
        if self._is_asked:
            return
        try:
            self._client.send("wait", **self._request)
        except Unavailable as error:
            if not self.is_patient:
                self._reconnect.check(error)
            return
        self._is_asked = True
