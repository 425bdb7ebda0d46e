"""Waiting for jobs beside other work, such as a terminal."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any

from drfd.client.connection import RECONNECT_S, RETRY_S, Connection
from drfd.errors import Unavailable
from drfd.wire.codec import Message


class Watch:
    """A `wait` for the first of these jobs, beside other work, over restarts of the daemon."""

    def __init__(self, client: Connection, *ids: int, attended: bool = False) -> None:
        """`attended`: the daemon cancels the jobs when this process is gone."""
        self._client = client
        self._request: dict[str, Any] = {"ids": list(ids)}
        if len(ids) > 1:
            self._request["any"] = True
        if attended:
            self._request["attended"] = True
        self._is_asked = False
        self._give_up = time.monotonic() + RECONNECT_S
        #: Never give up waiting for a daemon that is away.
        self.is_patient = False

    def poll(
        self, timeout_s: float, reads: Sequence[int] = (), writes: Sequence[int] = ()
    ) -> tuple[Message | None, set[int]]:
        """Wait a little: the reply, if one has ended, and which other descriptors are ready."""
        self._ask()
        mine = [self._client.fileno()] if self._is_asked else []
        left = timeout_s if self._is_asked else min(timeout_s, RETRY_S)
        readable, writable, _ = select.select([*mine, *reads], writes, [], left)
        reply = None
        if mine and mine[0] in readable:
            try:
                reply = self._client.receive()
            except Unavailable:
                self._is_asked = False
                self._give_up = time.monotonic() + RECONNECT_S
        return reply, {*readable, *writable} - set(mine)

    def _ask(self) -> None:
        if self._is_asked:
            return
        try:
            self._client.send("wait", **self._request)
        except Unavailable:
            if not self.is_patient and time.monotonic() > self._give_up:
                raise
            return
        self._is_asked = True
