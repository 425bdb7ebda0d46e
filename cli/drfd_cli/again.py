"""A listing drawn again and again on a screen of its own, until somebody ends it."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout

from drfd.errors import Unavailable
from drfd_cli import output
from drfd_cli.stage import write_all

#: From one drawing to the next; longer when asking takes long, to be no burden to the daemon.
_EVERY_S, _TIMES = 2.0, 10.0
#: The alternate screen, without a cursor and with long lines cut; and back.
_ENTER, _LEAVE = b"\x1b[?1049h\x1b[?25l\x1b[?7l", b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"


class _Screen(io.StringIO):
    """Takes what is printed, for a terminal that gets it in one piece."""

    def isatty(self) -> bool:
        return True


def again(title: str, show: Callable[[], None]) -> None:
    """`show` prints the listing; its last line is seen even if not all fits."""
    ending = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        write_all(1, _ENTER)
        listing: list[str] = []
        while True:
            begin_s = time.monotonic()
            head = f"{title}  {time.strftime('%H:%M:%S')}, ^C ends"
            text = _Screen()
            try:
                with redirect_stdout(text):
                    show()
                listing = text.getvalue().splitlines()
            except Unavailable as error:
                # What was seen last is better than nothing.
                head = f"the daemon is away: {output.clean(error)}"
            _draw([head, *listing])
            time.sleep(max(_EVERY_S, _TIMES * (time.monotonic() - begin_s)))
    except KeyboardInterrupt:
        pass
    finally:
        write_all(1, _LEAVE)
        for number, handler in ending.items():
            signal.signal(number, handler)


def _draw(lines: list[str]) -> None:
    _, rows = os.get_terminal_size(1)
    if len(lines) > rows > 2:
        lines = [*lines[: rows - 2], "…", lines[-1]]
    text = "\x1b[H" + "\x1b[K\r\n".join(lines[: rows or 24]) + "\x1b[K\x1b[J"
    write_all(1, text.encode(sys.__stdout__.encoding if sys.__stdout__ else "utf-8", "replace"))


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
