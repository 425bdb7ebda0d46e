"""One screen that stands still: printed, or saved as a picture."""

from __future__ import annotations

import io
import re
import shutil
from typing import Any

import click
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment, Segments

from drfd_cli import output
from drfd_cli.top.paint import Ink
from drfd_cli.top.screen import encode
from drfd_cli.top.state import State
from drfd_cli.top.view import Scene, Size, screen, whole

#: Of a picture when nobody says how large.
_SIZE = (110, 34)
#: A picture must not ask a server in the net for its letters.
_FONT_FACE = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def print_once(snapshot: dict[str, Any], ink: Ink) -> None:
    system = ColorSystem.STANDARD if ink.has_colour else None
    for line in whole(Scene(snapshot, State(), snapshot["at"]), output.width(), ink):
        click.echo(encode(line, system).rstrip())


def save_svg(snapshot: dict[str, Any], path: str) -> None:
    """As the screen looks on a terminal of this size."""
    columns, rows = shutil.get_terminal_size(_SIZE)
    lines = screen(
        Scene(snapshot, State(), snapshot["at"]), Size(columns, rows), Ink(has_colour=True)
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
