"""Why an attached job waits: one line on stderr, kept up to date where somebody looks at it."""

from __future__ import annotations

import os
import sys
import time

from drfd.client.connection import Connection
from drfd.errors import DrfdError
from drfd_cli import output

#: Waiting longer than this is explained, and the explanation is looked at again so often.
_PATIENCE_S = 1.0
_REFRESH_S = 2.0
_CLEAR = "\r\x1b[K"


class WaitingLine:
    def __init__(self, client: Connection, job_id: int) -> None:
        """`client`: a connection for these questions alone."""
        self._client = client
        self._job_id = job_id
        self._next = time.monotonic() + _PATIENCE_S
        self._is_live = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._shown = ""

    def refresh(self) -> None:
        """Called while the job waits, as often as one likes."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REFRESH_S
        try:
            job = self._client.request("status", select={"ids": [self._job_id]})["jobs"][0]
        except DrfdError:
            # The daemon is being restarted, or has its hands full.
            self._client.close()
            return
        if job["reason"] is not None:
            self._show(job)

    def _show(self, job: output.View) -> None:
        text = f"job {self._job_id} waits: {output.why_line(job)}"
        if self._is_live:
            line = output.shorten(f"drf: {text}", output.width(sys.stderr) - 1)
            sys.stderr.write(_CLEAR + line)
            sys.stderr.flush()
            self._shown = line
        elif job["reason"]["code"] != self._shown:
            # In a log every change of the figures would be one line.
            output.say(text)
            self._shown = job["reason"]["code"]

    def clear(self) -> None:
        """It waits no longer, or something else is to be said."""
        if self._is_live and self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._shown = ""
