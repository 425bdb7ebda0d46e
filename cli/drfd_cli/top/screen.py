"""The terminal's screen while it is ours: lines are written where they are not there yet."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from drfd_cli.stage import write_all
from drfd_cli.terminal import Terminal
from drfd_cli.top.paint import Line

#: The alternate screen, no cursor, and no new line where a sign is wider than we thought.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}


class Screen:
    """Whoever enters it must leave it on every way out."""

    def __init__(self, fd: int, keys_fd: int) -> None:
        self._fd = fd
        self.terminal = Terminal(keys_fd)
        self._shown: list[str] = []
        self._is_entered = False
        name = Console(force_terminal=True, no_color=False).color_system or "standard"
        self._system = _SYSTEMS.get(name, ColorSystem.STANDARD)
        self._encoding = sys.stdout.encoding

    def enter(self) -> None:
        self.terminal.go_raw(forget_keys=False)
        self._is_entered = True
        self.forget()
        self._write(_ENTER)

    def leave(self) -> None:
        if self._is_entered:
            self._is_entered = False
            try:
                self._write(_LEAVE)
            except OSError:
                # It has been closed: nobody is left to see it.
                pass
        self.terminal.restore()

    def forget(self) -> None:
        """What is there is not known: all is written anew."""
        self._shown = []

    def size(self) -> tuple[int, int]:
        """Columns and rows; a serial line that does not know them has the usual ones."""
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
                # Cleared first: what a terminal takes for narrower leaves nothing behind.
                pieces.append(f"\x1b[{row}H\x1b[0m\x1b[2K{new}")
        self._shown = encoded
        if pieces:
            self._write("".join(pieces))

    def _write(self, text: str) -> None:
        write_all(self._fd, text.encode(self._encoding, "replace"))


def encode(line: Line, system: ColorSystem | None) -> str:
    """The line with its styles as escape sequences, once for neighbours of one style."""
    found, words = [], ""
    style = Style.null()
    for piece in line:
        its = piece.style or Style.null()
        if its != style and words:
            found.append(style.render(words, color_system=system))
            words = ""
        style = its
        words += piece.text
    if words:
        found.append(style.render(words, color_system=system))
    return "".join(found)
