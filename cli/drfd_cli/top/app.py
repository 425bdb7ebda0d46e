"""The live view on a terminal: keys and snapshots in, the screen out.

One thread draws; it sleeps until a key, a snapshot, an answer or a signal has come.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from drfd.client.connection import Connection
from drfd.errors import DrfdError
from drfd_cli.output import clean
from drfd_cli.top.asking import Told, act, look
from drfd_cli.top.detail import Detail
from drfd_cli.top.feed import Asker, Feed
from drfd_cli.top.header import in_words
from drfd_cli.top.keys import Keys
from drfd_cli.top.paint import Ink
from drfd_cli.top.screen import Screen
from drfd_cli.top.state import Act, Page, State, Wish, press
from drfd_cli.top.view import Scene, Size, screen, settled, shown

#: Whatever has not followed ESC by then does not belong to it; over ssh it may take a while.
_ESCAPE_S = 0.1
#: Longer than from snapshot to snapshot: what then is said is that none comes.
_MISSED_S = 1.2
#: A job's page is no newer than this; nor are the daemon's measures.
_JOB_S = 1.8
#: While another program has the terminal, we look so often whether it is ours again.
_BACKGROUND_S = 0.2
_NOTICED = (signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP)
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class App:
    def __init__(self, connection: Connection, first: dict[str, Any], ink: Ink) -> None:
        """`connection`: the one that the first snapshot has come from, and the others come."""
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._screen = Screen(1, 0)
        self._ink = ink
        self._keys = Keys()
        self._state = State()
        self._detail: Detail | None = None
        self._feed = Feed(connection, first, self._wake)
        self._asker = Asker(Connection(connection.path), self._wake)
        self._asked_s = 0.0
        self._is_continued = self._is_stopped = False

    def run(self) -> str:
        """Until the user leaves it; what is to be said then."""
        with self._signals():
            self._await_foreground()
            try:
                self._screen.enter()
                self._feed.start()
                self._asker.start()
                while self._step():
                    pass
            finally:
                self._screen.leave()
        return in_words(self._feed.news.snapshot)

    def _step(self) -> bool:
        """Draw, wait for something, and take it in; False when it is over."""
        self._draw()
        ready, _, _ = select.select([0, self._woken], [], [], self._patience())
        if self._woken in ready:
            self._take_signals()
            if self._feed.problem is not None:
                raise self._feed.problem
            self._take_answers()
        if 0 in ready:
            data = os.read(0, 4096)
            # Without data the terminal has gone away.
            return bool(data) and all(map(self._press, self._keys.feed(data)))
        return all(map(self._press, self._keys.flush() if not ready else ()))

    def _patience(self) -> float:
        return _ESCAPE_S if self._keys.is_waiting else _MISSED_S

    def _draw(self) -> None:
        size = Size(*self._screen.size())
        self._screen.show(screen(self._scene(), size, self._ink))

    def _scene(self) -> Scene:
        news = self._feed.news
        trouble = news.trouble(time.monotonic())
        # Of a daemon that is away nothing goes on, as far as we know.
        now_s = news.snapshot["at"] if trouble else time.time()
        return Scene(news.snapshot, self._state, now_s, self._detail, trouble)

    def _press(self, key: str) -> bool:
        """False when that was the last key."""
        before, snapshot = self._state, self._feed.news.snapshot
        size = Size(*self._screen.size())
        listed = shown(snapshot, before)
        self._state, wish = press(before, key, listed, max(1, size.rows // 3))
        self._state = settled(self._scene(), size, self._ink)
        match wish:
            case Wish.QUIT:
                return False
            case Wish.REDRAW:
                self._screen.forget()
            case Wish.SUSPEND:
                self._stop()
            case Act():
                self._asker.ask(lambda connection: act(connection, wish))
        if (before.job, before.shows_errors) != (self._state.job, self._state.shows_errors):
            if before.job != self._state.job:
                self._detail = None
            self._ask_about_job()
        return True

    def _ask_about_job(self) -> None:
        row, errors = self._state.job, self._state.shows_errors
        if row is not None:
            self._asked_s, last = time.monotonic(), self._detail
            self._asker.ask(lambda connection: look(connection, row, errors=errors, last=last))

    def _take_answers(self) -> None:
        for answer in self._asker.answers():
            match answer:
                case Told():
                    self._tell(answer)
                case (str(label), bool(errors), Detail() as detail):
                    job = self._state.job
                    if (job and job["label"], self._state.shows_errors) == (label, errors):
                        self._detail = detail
                case DrfdError():
                    self._tell(Told(clean(str(answer), 400), is_bad=True))
                case Exception():
                    raise answer
        is_old = time.monotonic() - self._asked_s > _JOB_S
        if self._state.page is Page.JOB and is_old and not self._asker.open_count:
            self._ask_about_job()

    def _tell(self, told: Told) -> None:
        self._state = replace(self._state, message=told.text, is_bad=told.is_bad)

    # -- signals --------------------------------------------------------------------------------

    def _wake(self) -> None:
        try:
            os.write(self._waker, b"\0")
        except BlockingIOError:
            # It is full of reasons to wake up.
            pass

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in (*_NOTICED, *_ENDING)}
        for number in _NOTICED:
            signal.signal(number, self._notice)
        for number in _ENDING:
            signal.signal(number, _end)
        wakeup = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _notice(self, number: int, frame: object) -> None:
        if number == signal.SIGTSTP:
            self._is_stopped = True
        if number == signal.SIGCONT:
            self._is_continued = True

    def _take_signals(self) -> None:
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            pass
        if self._is_stopped:
            self._stop()
        elif self._is_continued:
            # Somebody has stopped us without a warning, and the shell has set its own modes.
            self._come_back()

    def _stop(self) -> None:
        """As the shell expects of ^Z."""
        self._screen.leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(0, signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._notice)
        self._come_back()

    def _come_back(self) -> None:
        self._await_foreground()
        self._is_stopped = self._is_continued = False
        self._screen.enter()

    def _await_foreground(self) -> None:
        """The terminal is the shell's while we are in the background: stop, as whoever writes."""
        while not self._screen.terminal.is_ours():
            os.kill(0, signal.SIGTTOU)
            time.sleep(_BACKGROUND_S)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
