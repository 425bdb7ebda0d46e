"""A panel's lines: a head that names it and its columns, and a line for each row that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.segment import Segment

from drfd_cli.top.paint import Ink, Line, fit, fit_right, joined, marked, spaces
from drfd_cli.top.rows import Row


@dataclass(frozen=True)
class Column:
    title: str
    width: int
    is_right: bool = False


@dataclass(frozen=True)
class Table:
    """`title` stands over the first column, as wide as there is room."""

    title: str
    columns: Sequence[Column]
    #: Makes a cell of exactly its width for each column.
    cells: Callable[[Row], list[Line]]
    rows: list[Row]
    #: What is said instead of rows.
    nothing: str
    #: What is said below the last row, when the list goes on elsewhere.
    more: str = ""

    @property
    def height(self) -> int:
        """Of all of it."""
        return 1 + max(1, len(self.rows)) + bool(self.more)


def draw(
    table: Table, ink: Ink, columns: int, height: int, *, cursor: int | None, is_focus: bool
) -> list[Line]:
    """`height` lines. `cursor`: the row that must be among them, and is marked in the focus."""
    if height <= 0:
        return []
    lines = [_head(table, ink, columns, is_focus=is_focus)]
    room = height - 1
    first = 0
    if cursor is not None:
        first = max(0, min(cursor - room // 2, len(table.rows) - room))
    for at, row in enumerate(table.rows[first : first + room], first):
        line: Line = [Segment(" ")]
        for cell in table.cells(row):
            line += [*cell, Segment(" ")]
        line = joined(line, columns)
        lines.append(marked(line, ink["cursor"]) if is_focus and at == cursor else line)
    if not table.rows:
        lines.append([Segment(fit(f" {table.nothing}", columns), ink["dim"])])
    elif table.more and first + room > len(table.rows):
        lines.append([Segment(fit(f" {table.more}", columns), ink["dim"])])
    lines = lines[:height]
    return lines + [[spaces(columns)] for _ in range(height - len(lines))]


def _head(table: Table, ink: Ink, columns: int, *, is_focus: bool) -> Line:
    names = [
        (fit_right if column.is_right else fit)(column.title, column.width)
        for column in table.columns
    ]
    words = " " + " ".join(names)
    # The title takes the room of the blanks after it, and hides what it must.
    title = f" {table.title} "
    rest = words[len(title) :]
    if rest[:1] not in ("", " "):
        # Never the half of a word.
        end = (rest + " ").index(" ")
        rest = " " * end + rest[end:]
    return [Segment(fit(title + rest, columns), ink["head_focus" if is_focus else "head"])]


def text(word: str, column: Column, ink: Ink, style: str = "plain") -> Line:
    cut = fit_right(word, column.width) if column.is_right else fit(word, column.width)
    return [Segment(cut, ink[style])]
