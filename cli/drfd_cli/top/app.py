"""The live view on a terminal: it reads keys and snapshots, and draws the screen; and a screen that
is printed.

One thread draws. It sleeps until a key, a snapshot, an answer or a signal arrives. On the alternate
screen only lines that have changed are written.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console
from rich.segment import Segment
from rich.style import Style

from drfd.client.connection import Connection
from drfd.common.errors import DrfdError
from drfd_cli import output
from drfd_cli.output import clean
from drfd_cli.terminal.pty import write_all
from drfd_cli.terminal.relay import ENTER_SCREEN, LEAVE_SCREEN, Terminal, end_by_signal
from drfd_cli.top.feed import (
    ActionResult,
    Asker,
    FoundOutput,
    SnapshotReader,
    fetch_detail,
    find_output,
    request_action,
)
from drfd_cli.top.keys import Act, KeyDecoder, Page
from drfd_cli.top.paint import Line, Theme
from drfd_cli.top.panels import summary
from drfd_cli.top.state import Look, State, UserAction, press, shown, viewer_of
from drfd_cli.top.view import Detail, Scene, Size, screen, scrolled, whole

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotView


def print_once(snapshot: SnapshotView, theme: Theme, columns: Sequence[str] = ()) -> None:
    system = ColorSystem.STANDARD if theme.has_colour else None
    for line in whole(
        Scene(snapshot, State(columns=columns), snapshot["at"]), output.width(), theme
    ):
        click.echo(encode(line, system).rstrip())


class AlternateScreen:
    """The alternate screen. A caller that enters it must call `leave` on every way out."""

    def __init__(self, fd: int, keys_fd: int) -> None:
        self._fd = fd
        self.terminal = Terminal(keys_fd)
        self._shown: list[str] = []
        self._is_entered = False
        name = Console(force_terminal=True, no_color=False).color_system or "standard"
        self._system = COLOR_SYSTEMS.get(name, ColorSystem.STANDARD)
        self._encoding = sys.stdout.encoding

    def enter(self) -> None:
        self.terminal.go_raw(discard_input=False)
        self._is_entered = True
        self.forget()
        self._write(ENTER_SCREEN + "\x1b[2J")

    def leave(self) -> None:
        if self._is_entered:
            self._is_entered = False
            # The terminal may have been closed.
            with suppress(OSError):
                self._write(LEAVE_SCREEN)
        self.terminal.restore()

    def forget(self) -> None:
        """Make the next call of `show` write all lines."""
        self._shown = []

    def size(self) -> tuple[int, int]:
        """Return columns and rows, or the usual ones for a serial line that reports none."""
        columns, rows = os.get_terminal_size(self._fd)
        return columns or 80, rows or 24

    def show(self, lines: Sequence[Line]) -> None:
        encoded = [encode(line, self._system) for line in lines]
        pieces = []
        if len(encoded) != len(self._shown):
            self._shown = [""] * len(encoded)
            pieces.append("\x1b[0m\x1b[2J")
        for row, (new, old) in enumerate(zip(encoded, self._shown, strict=True), 1):
            if new != old:
                # Clear the line first, because the terminal may take a character for narrower.
                pieces.append(f"\x1b[{row}H\x1b[0m\x1b[2K{new}")
        self._shown = encoded
        if pieces:
            self._write("".join(pieces))

    def _write(self, text: str) -> None:
        write_all(self._fd, text.encode(self._encoding, "replace"))


def encode(line: Line, system: ColorSystem | None) -> str:
    """Return the line with its styles as escape sequences, merged for neighbours of one style."""
    return "".join(
        (piece.style or Style.null()).render(piece.text, color_system=system)
        for piece in Segment.simplify(line)
    )


#: Seconds within which the rest of an escape sequence follows ESC, also over ssh.
_ESCAPE_S = 0.1
#: Seconds to wait for a key or a snapshot, a little longer than the time between two snapshots.
_INPUT_S = 1.2
#: Seconds between two requests for the page of a job, as often as the daemon measures use.
_JOB_S = 1.8
#: Seconds after which a message about the last action goes away, if no key was pressed.
_MESSAGE_S = 8.0
#: Seconds between two checks whether drf is in the foreground again.
_BACKGROUND_S = 0.2
_NOTICED = (signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP)
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class App:
    """The live view: connects terminal, state, snapshots and requests."""

    def __init__(
        self, connection: Connection, first: SnapshotView, theme: Theme,
        columns: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`connection` is the stream of snapshots that began with `first`; `columns` are the
        keys of those that the user wants besides."""
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._screen = AlternateScreen(1, 0)
        self._theme = theme
        self._keys = KeyDecoder()
        self._state = State(columns=columns)
        self._detail: Detail | None = None
        self._feed = SnapshotReader(connection, first, self._wake)
        self._asker = Asker(Connection(connection.path), self._wake)
        self._asked_s = 0.0
        #: The message on the screen, and since when (monotonic seconds).
        self._message, self._message_s = "", 0.0
        self._is_continued = self._is_stopped = False

    def run(self) -> str:
        """Run until the user quits, and return the line that stays on the terminal."""
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
                for worker in (self._feed, self._asker):
                    worker.stop()
        return summary(self._feed.news.snapshot)

    def _step(self) -> bool:
        """Draw, wait for input, and handle it; False when the user has quit."""
        self._forget_message()
        self._screen.show(screen(self._scene(), Size(*self._screen.size()), self._theme))
        timeout_s = _ESCAPE_S if self._keys.is_waiting else _INPUT_S
        ready, _, _ = select.select([0, self._woken], [], [], timeout_s)
        if self._woken in ready:
            self._take_signals()
            if self._feed.problem is not None:
                raise self._feed.problem
            self._take_answers()
        if 0 in ready:
            data = os.read(0, 4096)
            # Without data the terminal is gone.
            return bool(data) and all(map(self._press, self._keys.feed(data)))
        return all(map(self._press, self._keys.flush() if not ready else ()))

    def _forget_message(self) -> None:
        """Take away a message that has stood long enough: nobody may press a key for hours."""
        now_s = time.monotonic()
        if self._state.message != self._message:
            self._message, self._message_s = self._state.message, now_s
        elif self._message and now_s - self._message_s > _MESSAGE_S:
            self._state = replace(self._state, message="", is_bad=False)

    def _scene(self) -> Scene:
        news = self._feed.news
        trouble = news.trouble(time.monotonic())
        # While the daemon is away, clocks stand still at its last snapshot.
        now_s = news.snapshot["at"] if trouble else time.time()
        return Scene(news.snapshot, self._state, now_s, self._detail, trouble)

    def _press(self, key: str) -> bool:
        """Handle a key. Returns False if it quits."""
        before, snapshot = self._state, self._feed.news.snapshot
        size = Size(*self._screen.size())
        listed = shown(snapshot, before)
        self._state, action = press(
            before, key, listed, max(1, size.rows // 3), viewer_of(snapshot)
        )
        self._state = scrolled(self._scene(), size, self._theme)
        match action:
            case UserAction.QUIT:
                return False
            case UserAction.REDRAW:
                self._screen.forget()
            case UserAction.SUSPEND:
                self._stop()
            case Act():
                self._asker.ask(lambda connection: request_action(connection, action))
            case Look():
                self._asker.ask(lambda connection: find_output(connection, action))
        if (before.job, before.shows_errors) != (self._state.job, self._state.shows_errors):
            if before.job != self._state.job:
                self._detail = None
            if self._state.page is Page.JOB:
                self._ask_about_job()
        return True

    def _page(self, output: FoundOutput) -> None:
        """Show an output by the user's pager, which has the terminal until it ends."""
        words = os.environ.get("PAGER", "").split() or ["less"]
        if os.path.basename(words[0]) == "less":
            words.append("+F" if output.grows else "+G")
        self._screen.leave()
        # ^C is for the pager, which gets it too, and ^Z stops both.
        before = signal.signal(signal.SIGINT, lambda number, frame: None)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            subprocess.run([*words, output.path], check=False)
        except OSError as error:
            told = f"{words[0]}: {error.strerror}; the variable PAGER names another"
            self._tell(ActionResult(told, is_bad=True))
        finally:
            signal.signal(signal.SIGINT, before)
            signal.signal(signal.SIGTSTP, self._notice)
            self._come_back()

    def _ask_about_job(self) -> None:
        row, errors = self._state.job, self._state.shows_errors
        if row is not None:
            self._asked_s, last = time.monotonic(), self._detail
            self._asker.ask(
                lambda connection: fetch_detail(connection, row, errors=errors, last=last)
            )

    def _take_answers(self) -> None:
        for answer in self._asker.answers():
            match answer:
                case ActionResult():
                    self._tell(answer)
                case (str(label), bool(errors), Detail() as detail):
                    job = self._state.job
                    if (job and job["label"], self._state.shows_errors) == (label, errors):
                        self._detail = detail
                case FoundOutput():
                    self._page(answer)
                case DrfdError():
                    self._tell(ActionResult(clean(str(answer), 400), is_bad=True))
                case Exception():
                    raise answer
        is_old = time.monotonic() - self._asked_s > _JOB_S
        if self._state.page is Page.JOB and is_old and not self._asker.open_count:
            self._ask_about_job()

    def _tell(self, told: ActionResult) -> None:
        self._state = replace(self._state, message=told.text, is_bad=told.is_bad)

    # -- signals --------------------------------------------------------------------------------

    def _wake(self) -> None:
        # If the pipe is full, the screen wakes up anyway.
        with suppress(BlockingIOError):
            os.write(self._waker, b"\0")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in (*_NOTICED, *_ENDING)}
        for number in _NOTICED:
            signal.signal(number, self._notice)
        for number in _ENDING:
            signal.signal(number, end_by_signal)
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
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        if self._is_stopped:
            self._stop()
        elif self._is_continued:
            # After a SIGSTOP, the shell has set its own modes of the terminal.
            self._come_back()

    def _stop(self) -> None:
        """Stop the process group of drf, as the shell expects of ^Z."""
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
        """Stop drf in the background, as the kernel stops a program that changes the terminal."""
        while not self._screen.terminal.is_ours():
            os.kill(0, signal.SIGTTOU)
            time.sleep(_BACKGROUND_S)
