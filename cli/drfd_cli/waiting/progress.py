"""The line that shows how far awaited jobs are: on a terminal, while `drf` waits for them.

The daemon is asked at intervals, each a multiple of the time that the last answer took: the reason
of a wait changes without an event of the job, and an array of short tasks has thousands of events.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drfd.common.errors import DrfdError
from drfd.common.units import show_duration
from drfd_cli import output

if TYPE_CHECKING:
    from drfd.client.connection import Connection
    from drfd.client.words import Ref
    from drfd.protocol.replies import ArrayView, JobView

#: Seconds between two requests, at least, and the multiple of the time that the last one took.
_LOOK_S, _TIMES = 2.0, 20.0
#: Seconds between two requests for an expected start, which cost the daemon more.
_FORECAST_S = 30.0
#: Seconds over which the rate of ends is measured, and the ends that a rate needs.
_RATE_S, _LEAST_ENDS = 900.0, 3
#: Return to the beginning of the line and erase it (ECMA-48 EL).
_CLEAR = "\r\x1b[K"


@dataclass(frozen=True)
class Tally:
    """How many of the awaited jobs or tasks are in which state."""

    total: int
    ended: int
    #: Those of the ended ones that did not complete.
    failed: int
    running: int
    waiting: int

    @classmethod
    def of(cls, counts: dict[str, int], total: int) -> Tally:
        """Count states and outcomes."""
        running = sum(count for state, count in counts.items() if state in output.STARTED)
        waiting = sum(count for state, count in counts.items() if state in output.WAITING)
        ended = total - running - waiting
        return cls(total, ended, ended - counts.get("COMPLETED", 0), running, waiting)


@dataclass(frozen=True)
class Left:
    """The remaining time, with what it is estimated from, in full and in few words."""

    long: str
    short: str


class Rate:
    """The ends seen while drf waits, from which the remaining time is estimated."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, ended: int) -> None:
        if not self._seen or self._seen[-1][1] != ended:
            self._seen.append((now_s, ended))
        while len(self._seen) > 1 and self._seen[1][0] < now_s - _RATE_S:
            self._seen.popleft()

    def left(self, tally: Tally, now_s: float) -> Left:
        """Return the remaining time as of `now_s`. It falls with the clock until the next end."""
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        ends = last - first
        if ends < _LEAST_ENDS or last_s <= first_s:
            return Left("time left not known yet", "time left unknown")
        open_jobs = tally.total - tally.ended
        left_s = open_jobs * (last_s - first_s) / ends - (now_s - last_s)
        if left_s < 0:
            # The ends come more slowly than before.
            left_s = open_jobs * (now_s - first_s) / ends
        left = show_duration(left_s)
        return Left(f"about {left} left, from the last {ends} ends", f"~{left} left ({ends} ends)")


def tally_line(what: str, tally: Tally, left: Left, columns: int, *, is_ascii: bool) -> str:
    """Return the first of several forms, from the longest on, that fits into `columns`."""
    full, empty = ("#", "-") if is_ascii else ("█", "░")

    def bar(width: int) -> str:
        # The bar is full only when all have ended.
        done = tally.ended * width // tally.total
        return full * done + empty * (width - done)

    counts = [f"{tally.failed} failed"] * bool(tally.failed)
    counts += [f"{tally.running} running", f"{tally.waiting} waiting"]
    rest = ", ".join(counts)
    short = f"{tally.ended}/{tally.total}, {rest}; {left.short}"
    forms = [
        f"{what} {bar(20)} {tally.ended} of {tally.total} ended, {rest}; {left.long}",
        f"{what} {bar(12)} {short}",
        f"{what} {bar(6)} {short}",
    ]
    fitting = (form for form in forms if output.columns_of(form) <= columns)
    return next(fitting, f"{what} {short}")


def job_line(job: JobView, start_s: float | None, now_s: float) -> str:
    """Return the line of one job: its state, and its expected start with the reason of its wait, or
    its end at the latest. `start_s` is the expected start if the job's view has none."""
    name = f"job {output.label(job)} {job['state']}"
    if job["state"] in output.WAITING:
        start_s = job["expected_start_at"] or start_s
        start = "" if start_s is None else f", starts about {output.show_when(start_s, now_s)}"
        return f"{name}{start}: {output.why_line(job)}"
    if job["started_at"] is None or job["state"] == "SUSPENDED":
        return name
    name += f" for {show_duration(output.run_s(job, now_s))}"
    limit_s = job["time_limit_s"]
    if limit_s is None or job["state"] != "RUNNING":
        return name if limit_s is not None else f"{name}, without a time limit"
    end_s = now_s + limit_s - output.run_s(job, now_s)
    return f"{name}, ends {output.show_when(end_s, now_s)} at the latest"


class ProgressLine:
    """Shows the line on stderr, rewrites it, and erases it; nothing if that is no terminal."""

    def __init__(self, client: Connection, ids: Sequence[Ref], *, pace: float) -> None:
        """`client` names the daemon; its connection is not used. `pace` multiplies the intervals
        between requests."""
        self._is_live = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        encoding = (getattr(sys.stderr, "encoding", None) or "ascii").lower().replace("-", "")
        self._is_ascii = encoding != "utf8"
        self._client = client.another() if self._is_live else client
        self._ids = ids
        self._pace = pace
        self._is_array: bool | None = None
        self._next = self._next_forecast = 0.0
        self._start_s: float | None = None
        self._rate = Rate()
        #: Returns the line as it is now, from what the daemon said last.
        self._line: Callable[[], str] | None = None
        self._is_shown = False

    def look(self) -> None:
        """Bring the line up to date; call this about once a second."""
        if not self._is_live:
            return
        if time.monotonic() >= self._next:
            began = time.monotonic()
            try:
                self._line = self._ask()
            except (DrfdError, LookupError):
                # The daemon is being restarted, or a job was removed. What is known still stands.
                self._client.close()
            took = time.monotonic() - began
            self._next = time.monotonic() + self._pace * max(_LOOK_S, _TIMES * took)
        line = "" if self._line is None else self._line()
        if line:
            sys.stderr.write(_CLEAR + output.shorten(line, output.width(sys.stderr) - 1))
            sys.stderr.flush()
            self._is_shown = True

    def clear(self) -> None:
        """Erase the line, because another message follows, or nothing."""
        if self._is_shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._is_shown = False

    def close(self) -> None:
        self.clear()
        if self._is_live:
            self._client.close()

    def _ask(self) -> Callable[[], str]:
        if len(self._ids) > 1:
            return self._several()
        if self._is_array is not False:
            show = self._client.request("show", id=self._ids[0])
            self._is_array = "array" in show
            if "array" in show:
                return self._array(show["array"])
        return self._job()

    def _rows(self) -> list[JobView]:
        select = {"ids": list(self._ids)}
        pages = self._client.pages("status", select=select)
        return [row for page in pages for row in page["jobs"]]

    def _job(self) -> Callable[[], str]:
        (job,) = self._rows()
        if job["outcome"] is not None:
            return str
        if job["state"] == "PENDING" and job["expected_start_at"] is None:
            self._forecast()
        return lambda: job_line(job, self._start_s, time.time())

    def _forecast(self) -> None:
        if time.monotonic() < self._next_forecast:
            return
        why = self._client.request("why", id=self._ids[0])
        self._start_s = why["job"]["expected_start_at"]
        self._next_forecast = time.monotonic() + _FORECAST_S

    def _array(self, array: ArrayView) -> Callable[[], str]:
        tally = Tally.of(array["counts"], array["tasks"])
        if not tally.running and tally.waiting:
            # Nothing runs: why not is worth more than a rate.
            row = next((row for row in self._rows() if row["reason"] is not None), None)
            if row is not None:
                return self._tally(f"array {array['id']}", tally, output.why_line(row))
        return self._tally(f"array {array['id']}", tally)

    def _several(self) -> Callable[[], str]:
        wanted = set(map(str, self._ids))
        states: dict[str, str] = {}
        for row in self._rows():
            names = {output.label(row), str(row["array_id"])}
            for name in names & wanted:
                # An array runs as long as any of its tasks does.
                if states.get(name) not in output.STARTED and row["outcome"] is None:
                    states[name] = row["state"]
                elif row["outcome"] is not None:
                    states.setdefault(name, row["state"])
        counts: dict[str, int] = {}
        for name in wanted:
            state = states.get(name, "COMPLETED")
            counts[state] = counts.get(state, 0) + 1
        return self._tally(f"{len(wanted)} jobs", Tally.of(counts, len(wanted)))

    def _tally(self, what: str, tally: Tally, reason: str | None = None) -> Callable[[], str]:
        self._rate.note(time.monotonic(), tally.ended)
        if tally.ended == tally.total:
            return str

        def line() -> str:
            told = self._rate.left(tally, time.monotonic())
            if reason is not None:
                told = Left(reason, reason)
            columns = output.width(sys.stderr) - 1
            return tally_line(what, tally, told, columns, is_ascii=self._is_ascii)

        return line
