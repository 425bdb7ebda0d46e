"""Output of the live view: on the alternate screen of the terminal, printed, or as a picture.

On the alternate screen only lines that have changed are written.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from drfd_cli import output
from drfd_cli.terminal.pty import write_all
from drfd_cli.terminal.relay import ENTER_SCREEN, LEAVE_SCREEN, Terminal
from drfd_cli.top.paint import Line, Theme
from drfd_cli.top.state import State
from drfd_cli.top.view import Scene, Size, screen, whole

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotView

#: Columns and rows of a picture if neither the terminal nor the environment gives them.
_SIZE = (110, 34)
#: The references to fonts on a web server, which are removed from pictures.
_FONT_FACE = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def print_once(snapshot: SnapshotView, theme: Theme) -> None:
    system = ColorSystem.STANDARD if theme.has_colour else None
    for line in whole(Scene(snapshot, State(), snapshot["at"]), output.width(), theme):
        click.echo(encode(line, system).rstrip())


def save_svg(snapshot: SnapshotView, path: str) -> None:
    """Save the screen as an SVG picture with the size of the terminal."""
    columns, rows = shutil.get_terminal_size(_SIZE)
    lines = screen(
        Scene(snapshot, State(), snapshot["at"]), Size(columns, rows), Theme(has_colour=True)
    )
    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="256",
        legacy_windows=False,
    )  # fmt: skip
    pieces = [piece for line in lines for piece in (*line, Segment.line())]
    console.print(Segments(pieces), end="")
    picture = console.export_svg(title="drf top", unique_id="drf-top")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_FONT_FACE.sub("", picture))


_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}


class AlternateScreen:
    """The alternate screen. A caller that enters it must call `leave` on every way out."""

    def __init__(self, fd: int, keys_fd: int) -> None:
        self._fd = fd
        self.terminal = Terminal(keys_fd)
        self._shown: list[str] = []
        self._is_entered = False
        name = Console(force_terminal=True, no_color=False).color_system or "standard"
        self._system = _SYSTEMS.get(name, ColorSystem.STANDARD)
        self._encoding = sys.stdout.encoding

    def enter(self) -> None:
        self.terminal.go_raw(discard_input=False)
        self._is_entered = True
        self.forget()
        self._write(ENTER_SCREEN + "\x1b[2J")

    def leave(self) -> None:
        if self._is_entered:
            self._is_entered = False
            try:
                self._write(LEAVE_SCREEN)
            except OSError:
                # The terminal has been closed.
                pass
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
