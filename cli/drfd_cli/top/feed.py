"""Data from the daemon for the live view: a stream of snapshots, and answers to requests.

Stream and requests each have a thread and a connection, so that keys work while the daemon is slow,
stopped or away. A thread stores what it received and wakes the screen, nothing else.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drfd.client.connection import RETRY_S, Connection
from drfd.client.outputs import open_file
from drfd.client.words import Ref, parse_id, parse_ids
from drfd.common.errors import DrfdError, Refused, Unavailable
from drfd.common.units import show_duration
from drfd_cli.commands.job_actions import refusals
from drfd_cli.commands.log import output_of, tail_of
from drfd_cli.commands.retry import Edits, Resubmission
from drfd_cli.top.keys import Act
from drfd_cli.top.state import Look
from drfd_cli.top.view import Detail

if TYPE_CHECKING:
    from drfd.protocol.replies import BatchReply, ShowReply, SnapshotRow, SnapshotView

#: Seconds between two requests of `why`, which costs the daemon some work.
_WHY_S = 15.0
#: Bytes read from the end of an output, and lines kept of it.
_TAIL_BYTES = 1 << 15
_TAIL_LINES = 200
#: Why there is no output to be shown of an array.
_OF_EACH_TASK = "each task of an array has an output of its own"
_DONE = {
    "cancel": "cancelled", "hold": "held", "release": "released", "suspend": "suspended",
    "resume": "resuming", "signal": "sent {} to", "set": "set {} of",
}  # fmt: skip


@dataclass(frozen=True)
class ActionResult:
    """The result of an action on jobs."""

    text: str
    is_bad: bool = False


def fetch_detail(
    connection: Connection, row: SnapshotRow, *, errors: bool, last: Detail | None
) -> tuple[str, bool, Detail]:
    """Request the details of a job. Returns them with its label, and whether they show its `errors`
    in place of its output. `last` is the last result for the job, or None."""
    label, ref = row["label"], ref_of(row)
    try:
        show = connection.request("show", id=ref)
    except DrfdError as error:
        return label, errors, Detail(problem=str(error))
    why, why_s = (last.why, last.why_s) if last is not None else (None, 0.0)
    now_s = time.monotonic()
    if now_s - why_s > _WHY_S or last is None or _state(last.show) != _state(show):
        why, why_s = None, now_s
        # The daemon refuses it of an array.
        with suppress(Refused):
            why = connection.request("why", id=ref)
    lines, path, problem = list[str](), "", _OF_EACH_TASK
    if "job" in show:
        path, problem = output_of(show["job"], errors=errors)
        if not problem:
            lines, problem = tail_of(path, show["job"]["uid"], _TAIL_BYTES, _TAIL_LINES)
    return label, errors, Detail(show, why, why_s, tuple(lines), path, problem, errors)


def _state(show: ShowReply | None) -> str | None:
    return show["job"]["state"] if show is not None and "job" in show else None


def request_action(connection: Connection, action: Act) -> ActionResult:
    verb = action.verb
    if verb == "retry":
        return _retry(connection, action.labels)
    ids = [ref for label in action.labels for ref in _refs(label)]
    reply: BatchReply = connection.request(verb, select={"ids": ids}, **action.fields)
    failed, done = reply["failed"], _DONE[action.verb].format(action.words)
    count = len(action.labels)
    what = f"job {action.labels[0]}" if count == 1 else f"{count:,} jobs"
    if not failed and reply["done"]:
        return ActionResult(f"{done} {what}")
    if failed and not reply["done"]:
        return ActionResult(refusals(failed)[0], is_bad=True)
    if not failed:
        gone = "is" if count == 1 else "are"
        return ActionResult(f"{what} {gone} not there any more", is_bad=True)
    worked = f"{done} {len(reply['done']):,} job{'s' * (len(reply['done']) != 1)}"
    return ActionResult(f"{worked}, but not {len(failed):,}: {refusals(failed)[0]}", is_bad=True)


def _retry(connection: Connection, labels: Sequence[str]) -> ActionResult:
    said: list[str] = []
    call = Resubmission(connection, Edits({}), failed=False, say=said.append)
    call.submit([ref for label in labels for ref in _refs(label)])
    told = [f"job {each.reply['id']}, a retry of {each.of}" for each in call.done]
    refused = [str(error) for error in call.refused]
    if len(told) > 1:
        told = [f"{len(told)} jobs again, as {told[0].partition(',')[0]} and the following"]
    done = [f"submitted {each}" for each in told]
    but = [f"{len(refused)} not: {refused[0]}"] if refused and len(labels) > 1 else refused
    return ActionResult("; ".join([*done, *but, *said]), is_bad=bool(refused or not told))


def _refs(label: str) -> list[Ref]:
    """Return the ids of the jobs in a row, without other tasks of their array."""
    if "…" in label:
        hint = f"name the whole array: {label.partition('_')[0]}"
        raise Refused("too-many", "these are more tasks than a row can name", hint=hint)
    return parse_ids(label)


def ref_of(row: SnapshotRow) -> Ref:
    try:
        return parse_id(row["label"])
    except Refused:
        # A row for several tasks has the id of their array.
        return row["id"]


@dataclass(frozen=True)
class FoundOutput:
    """The file with the output of a job, and whether it may still grow."""

    path: str
    grows: bool


def find_output(connection: Connection, look: Look) -> FoundOutput | ActionResult:
    show = connection.request("show", id=ref_of(look.row))
    if "job" not in show:
        return ActionResult(_OF_EACH_TASK, is_bad=True)
    path, problem = output_of(show["job"], errors=look.errors)
    try:
        fd = None if problem else open_file(path, show["job"]["uid"])
    except Refused as error:
        return ActionResult(str(error), is_bad=True)
    if fd is None:
        return ActionResult(problem or "the file is not there", is_bad=True)
    os.close(fd)
    return FoundOutput(path, grows=show["job"]["ended_at"] is None)


#: Seconds between two snapshots; the daemon sends no more often.
EVERY_S = 1.0
#: Seconds without a message after which the daemon is reported as silent.
_SILENT_S = 5.0
#: Seconds that a thread has to end: one that connects to a daemon that accepts nobody cannot.
_STOP_S = 2.0


@dataclass(frozen=True)
class News:
    """The newest snapshot, when it arrived, and since when the daemon is away (monotonic, s)."""

    snapshot: SnapshotView
    came_s: float
    away_since_s: float | None = None

    def trouble(self, now_s: float) -> str:
        """Return the reason why the snapshot is outdated, or empty text if it is not."""
        if self.away_since_s is not None:
            away = show_duration(now_s - self.away_since_s)
            return f"the daemon is away, for {away} now; trying again"
        if now_s - self.came_s > _SILENT_S:
            return f"no word from the daemon for {show_duration(now_s - self.came_s)}"
        return ""


def first_snapshot(connection: Connection) -> SnapshotView:
    connection.send("snapshots", every_s=EVERY_S)
    return _next(connection)


def _next(connection: Connection) -> SnapshotView:
    snapshot: SnapshotView = connection.receive()["snapshot"]
    return snapshot


class _Worker(ABC):
    """A thread with a connection of its own."""

    def __init__(self, connection: Connection, wake: Callable[[], None]) -> None:
        self._connection = connection
        self._wake = wake
        self._is_stopped = threading.Event()
        # A daemon thread: one that cannot be stopped in time does not keep the process.
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, also if it waits for a reply, and wait until it has ended."""
        self._is_stopped.set()
        # A thread that waits for a reply gets none: closing the connection would not wake it up.
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_is_stopped` is set, and look at it before each wait for a reply."""


class SnapshotReader(_Worker):
    """The thread that receives snapshots, also after restarts of the daemon."""

    def __init__(self, connection: Connection, first: SnapshotView, wake: Callable[[], None]):
        """`connection` is the stream of snapshots that began with `first`."""
        super().__init__(connection, wake)
        #: Replaced as a whole and never modified, because another thread reads it.
        self.news = News(first, time.monotonic())
        #: The error after which no more snapshots arrive.
        self.problem: Exception | None = None

    def _run(self) -> None:
        is_requested = True
        while self.problem is None and not self._is_stopped.is_set():
            try:
                if not is_requested:
                    self._connection.send("snapshots", every_s=EVERY_S)
                is_requested = True
                while not self._is_stopped.is_set():
                    self.news = News(_next(self._connection), time.monotonic())
                    self._wake()
            except Unavailable:
                is_requested = False
                self._connection.close()
                if self._is_stopped.is_set():
                    break
                if self.news.away_since_s is None:
                    self.news = replace(self.news, away_since_s=time.monotonic())
                    self._wake()
                self._is_stopped.wait(RETRY_S)
            except Exception as error:
                # The main thread raises it after restoring the terminal.
                self.problem = error
                self._wake()
        self._connection.close()


#: A function that makes requests and returns an answer for the screen.
Ask = Callable[[Connection], Any]


class Asker(_Worker):
    """The thread that makes requests one after the other. The main thread fetches the answers."""

    def __init__(self, connection: Connection, wake: Callable[[], None]) -> None:
        super().__init__(connection, wake)
        self._asked: queue.SimpleQueue[Ask | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: The number of requests without an answer yet.
        self.open_count = 0

    def stop(self) -> None:
        self._asked.put(None)
        super().stop()

    def ask(self, ask: Ask) -> None:
        self.open_count += 1
        self._asked.put(ask)

    def answers(self) -> list[Any]:
        """Return the answers since the last call. The answer to a failed request is its error."""
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
        self.open_count -= len(found)
        return found

    def _run(self) -> None:
        while (ask := self._asked.get()) is not None and not self._is_stopped.is_set():
            try:
                answer = ask(self._connection)
            except Exception as error:
                answer = error
            self._answers.put(answer)
            self._wake()
        self._connection.close()
