"""What the daemon tells, beside the screen: a stream of snapshots, and answers to questions.

Each has a thread and a connection of its own, so that a daemon that is slow, stopped or away never
keeps the screen from its keys. Threads put down what has come and wake the screen, nothing else.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from drfd.client.connection import RETRY_S, Connection
from drfd.errors import Refused, Unavailable
from drfd.units import show_duration

#: Between two snapshots; the daemon sends no more than this.
EVERY_S = 1.0
#: A daemon that has said nothing for so long is stopped, or in great need.
_SILENT_S = 5.0


@dataclass(frozen=True)
class News:
    """The newest snapshot, when it came, and since when the daemon is away (all monotonic)."""

    snapshot: dict[str, Any]
    came_s: float
    away_since_s: float | None = None

    def trouble(self, now_s: float) -> str:
        """Why it is not what it should be: one from this moment."""
        if self.away_since_s is not None:
            away = show_duration(now_s - self.away_since_s)
            return f"the daemon is away, for {away} now; trying again"
        if now_s - self.came_s > _SILENT_S:
            return f"no word from the daemon for {show_duration(now_s - self.came_s)}"
        return ""


def first_snapshot(connection: Connection) -> dict[str, Any]:
    connection.send("snapshots", every_s=EVERY_S)
    return _next(connection)


def _next(connection: Connection) -> dict[str, Any]:
    snapshot = connection.receive().get("snapshot")
    if not isinstance(snapshot, dict):
        raise Refused("unsupported", "the daemon sends no snapshots", hint="restart the daemon")
    return snapshot


class Feed:
    """Snapshots as they come, over restarts of the daemon."""

    def __init__(self, connection: Connection, first: dict[str, Any], wake: Callable[[], None]):
        """`connection`: the one that `first` has come from."""
        self._connection = connection
        self._wake = wake
        #: Replaced as a whole, never changed.
        self.news = News(first, time.monotonic())
        #: Nothing more will come: the daemon refuses, or what it says is not understood.
        self.problem: Exception | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                while True:
                    self.news = News(_next(self._connection), time.monotonic())
                    self._wake()
            except Unavailable:
                since_s = self.news.away_since_s or time.monotonic()
                self.news = replace(self.news, away_since_s=since_s)
            except Exception as error:
                # The screen's thread raises it: only there the terminal can be given back first.
                self.problem = error
            self._wake()
            if self.problem is not None:
                return
            self._ask_again()

    def _ask_again(self) -> None:
        while True:
            self._connection.close()
            time.sleep(RETRY_S)
            try:
                return self._connection.send("snapshots", every_s=EVERY_S)
            except Unavailable:
                continue


#: Asks the daemon something, and gives what is to be known of it.
Question = Callable[[Connection], Any]


class Asker:
    """Questions one after the other; the answers are fetched."""

    def __init__(self, connection: Connection, wake: Callable[[], None]) -> None:
        self._connection = connection
        self._wake = wake
        self._questions: queue.SimpleQueue[Question] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: Questions without an answer yet.
        self.open_count = 0

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, question: Question) -> None:
        self.open_count += 1
        self._questions.put(question)

    def answers(self) -> list[Any]:
        """What has come since the last time; of what went wrong, the error."""
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
        self.open_count -= len(found)
        return found

    def _run(self) -> None:
        while True:
            question = self._questions.get()
            try:
                answer = question(self._connection)
            except Exception as error:
                answer = error
            self._answers.put(answer)
            self._wake()
