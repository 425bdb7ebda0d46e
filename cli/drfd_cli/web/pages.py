"""What the page asks for: its files, the stream of snapshots, a job with its output, ended jobs.

Everything is asked of the daemon as the user who runs `drf web`, and output files are read with
this user's rights, so the page shows what `drf top`, `show`, `why`, `history` and `log` show.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from drfd.client.words import parse_id
from drfd.common.errors import DrfdError, NotPermitted, Refused, Unavailable
from drfd.common.units import AXES, utc_time
from drfd_cli.commands.log import output_of, tail_of
from drfd_cli.output import label
from drfd_cli.tables.columns import PAST_JOBS
from drfd_cli.tables.layout import with_values
from drfd_cli.tables.live import live_columns

if TYPE_CHECKING:
    from starlette.requests import Request

    from drfd.client.connection import Connection
    from drfd.protocol.replies import JobView, SnapshotView
    from drfd_cli.output import Column
    from drfd_cli.top.feed import News


#: The most open pages, each with a stream of snapshots.
_MOST_STREAMS = 16
#: Questions to the daemon at a time, each with a thread.
_MOST_ASKED = 40
#: Bytes of the end of an output file that are read, and lines of them that are shown.
_TAIL_BYTES, _TAIL_LINES = 1 << 16, 300
#: Ended jobs in a reply.
_ENDED = 50
#: The directory of the page's files.
_STATIC = Path(__file__).with_name("static")
#: The columns of each table of jobs, by the keys of `live_columns` and of `drf history`; those that
#: the user wants stand before the last one.
_TABLES = {
    "running": ("name", "user", *(f"{name}_now" for name in AXES), "gpu_now", "spent"),
    "waiting": ("name", "user", "cores", "memory", "io", "gres", "expected_start", "why"),
    "ended": ("name", "user", "ended_at", "ran", "memory_used", "state", "cause"),
}


def _cell(column: Column, row: Any) -> list[str]:
    """Return the text of a cell and its style. The page has times in the zone of its reader."""
    if column.key.endswith("_at") and (at_s := column.word(row)) is not None:
        return [utc_time(cast("float", at_s)), ""]
    cell = column.cell(row)
    return [str(cell), getattr(cell, "style", "")]


class Feed:
    """The newest snapshot for all streams. A thread brings it, streams wait for it."""

    def __init__(
        self,
        news: Callable[[], News],
        is_over: Callable[[], bool],
        columns: Sequence[str] = (),
        *,
        look_s: float = 1.0,
        alive_s: float = 15.0,
    ) -> None:
        """`columns`: keys of columns of jobs that the user wants besides. `look_s`: after so long a
        stream, and who waits for an answer, looks whether the server ends. `alive_s`: after so long
        a stream without news sends a line, so that a proxy does not end it."""
        self.news = news
        self.is_over = is_over
        self.columns = columns
        self.look_s, self.alive_s = look_s, alive_s
        self.streams = self.asked = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Set when there is a new snapshot, and then replaced by another one.
        self._is_new = asyncio.Event()

    def wake(self) -> None:
        """Tell all streams, from another thread, that there is a new snapshot."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._wake_all)
            except RuntimeError:
                # The server has ended.
                self._loop = None

    def _wake_all(self) -> None:
        self._is_new.set()
        self._is_new = asyncio.Event()

    def table(self, name: str, rows: Sequence[Any], at_s: float) -> dict[str, object]:
        """Return a list of jobs: headings with their classes, and of each row the label, by what
        its page is asked for, and the cells with their styles."""
        there = {**PAST_JOBS, **live_columns(at_s)}
        # Rows of the history know only what drf history tells.
        own = [key for key in self.columns if name != "ended" or key in PAST_JOBS]
        columns = with_values([there[key] for key in _TABLES[name]], rows)
        columns[-1:-1] = [there[key] for key in own]
        return {
            "heads": [
                [each.title, "number" if each.is_right else "why wide" * each.is_sentence]
                for each in columns
            ],
            "rows": [
                [shown := row.get("label") or label(row), str(row["id"]) if "[" in shown else shown,
                 *(_cell(each, row) for each in columns)]
                for row in rows
            ],
        }  # fmt: skip

    def _seen(self, snapshot: SnapshotView) -> dict[str, object]:
        """Return a snapshot, with tables in place of its lists of jobs."""
        rest: dict[str, object] = {**snapshot}
        for key in ("running", "pending", "mine", "ended"):
            del rest[key]
        waiting = [*snapshot["pending"], *snapshot["mine"]]
        return {
            "snapshot": rest,
            "running": self.table("running", snapshot["running"], snapshot["at"]),
            "waiting": self.table("waiting", waiting, snapshot["at"]),
            "more": snapshot["pending_more"] - len(snapshot["mine"]),
        }

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the newest snapshot whenever there is one, as server-sent events. A reader that is
        slow gets fewer."""
        self._loop = asyncio.get_running_loop()
        self.streams += 1
        try:
            last, was_silent, quiet_s = None, False, 0.0
            while not self.is_over():
                is_new, news = self._is_new, self.news()
                is_silent = bool(news.trouble(time.monotonic()))
                if news is not last or is_silent != was_silent:
                    last, was_silent, quiet_s = news, is_silent, 0.0
                    view = {
                        **self._seen(news.snapshot),
                        "away": news.away_since_s is not None,
                        "silent": is_silent,
                    }
                    yield b"data: " + _json(view) + b"\n\n"
                elif quiet_s >= self.alive_s:
                    quiet_s = 0.0
                    yield b":\n\n"
                try:
                    await asyncio.wait_for(is_new.wait(), self.look_s)
                except TimeoutError:
                    quiet_s += self.look_s
        finally:
            self.streams -= 1


def application(place: str, connection: Connection, feed: Feed) -> Starlette:
    """Return the page below `/place/`. `connection` names the daemon; it is not used itself."""

    async def stream(request: Request) -> Response:
        if feed.streams >= _MOST_STREAMS:
            text = f"{_MOST_STREAMS} pages are open already: close one"
            return _error(503, text)
        return StreamingResponse(feed.lines(), media_type="text/event-stream")

    async def job(request: Request) -> Response:
        ref, has_why = request.path_params["ref"], "why" in request.query_params
        return await ask(lambda asked: _job(asked, ref, has_why=has_why))

    async def history(request: Request) -> Response:
        return await ask(lambda asked: _history(asked, request.query_params, feed))

    async def ask(question: Callable[[Connection], object]) -> Response:
        """Have a thread ask the daemon. Neither other questions nor the end of the server wait for
        a daemon that does not answer."""
        if feed.asked >= _MOST_ASKED:
            return _error(503, "the daemon has not answered earlier questions yet")

        def answer() -> Response:
            try:
                with closing(connection.another()) as asked:
                    return Response(_json(question(asked)), media_type="application/json")
            except DrfdError as error:
                statuses = {Unavailable: 503, NotPermitted: 403}
                found = (code for kind, code in statuses.items() if isinstance(error, kind))
                return _error(next(found, 404), str(error))

        def forget(_: object) -> None:
            feed.asked -= 1

        feed.asked += 1
        answered = asyncio.wrap_future(_begin(answer))
        answered.add_done_callback(forget)
        while not answered.done():
            if feed.is_over():
                answered.cancel()
                return _error(503, "the page ends")
            await asyncio.wait([answered], timeout=feed.look_s)
        return answered.result()

    return Starlette(
        routes=[
            Mount(
                f"/{place}",
                routes=[
                    Route("/events", stream),
                    Route("/history", history),
                    Route("/jobs/{ref}", job),
                    Mount("/", StaticFiles(directory=_STATIC, html=True)),
                ],
            )
        ]
    )


def _begin(work: Callable[[], Response]) -> Future[Response]:
    """Do the work in a thread, which the end of the process does not wait for."""
    done = Future[Response]()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    # So that it is not cancelled with whoever waits for it.
    done.set_running_or_notify_cancel()
    threading.Thread(target=run, daemon=True).start()
    return done


def _job(asked: Connection, text: str, *, has_why: bool) -> dict[str, object]:
    """Return a job or an array with the end of its output; with `has_why` also what explains it, or
    null if that is only for its owner."""
    ref = parse_id(text)
    shown = asked.request("show", id=ref)
    found: dict[str, object] = {"show": shown}
    if has_why:
        try:
            found["why"] = asked.request("why", id=ref)
        except NotPermitted:
            found["why"] = None
    if "job" in shown:
        job = shown["job"]
        found["output"] = _output(job, errors=False)
        if job["stderr"] not in (None, job["stdout"]):
            found["errors"] = _output(job, errors=True)
    return found


def _output(job: JobView, *, errors: bool) -> dict[str, object]:
    """Return the last lines of an output file, or in `note` why there are none."""
    path, note = output_of(job, errors=errors)
    lines = list[str]()
    if not note:
        lines, note = tail_of(path, job["uid"], _TAIL_BYTES, _TAIL_LINES)
    return {"path": path or None, "lines": lines, "note": note}


def _history(asked: Connection, query: Any, feed: Feed) -> dict[str, object]:
    """Return ended jobs, the latest first: the user's own unless the query has `everybody`; after
    the place in `at` and `id`, if it has them."""
    past: dict[str, object] = {}
    if "everybody" not in query:
        past["user"] = asked.request("hello")["user"]
    after = None
    if "at" in query and "id" in query:
        try:
            after = [float(query["at"]), int(query["id"])]
        except ValueError:
            raise Refused("bad-value", "at and id are not numbers") from None
        if not math.isfinite(after[0]):
            raise Refused("bad-value", "at is not a time")
    page = asked.request("history", past=past, limit=_ENDED, after=after)
    return {"after": page["after"], **feed.table("ended", page["jobs"], time.time())}


def _error(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)


def _json(value: object) -> bytes:
    # ASCII alone: neither a line break that is none elsewhere nor half a surrogate pair.
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
