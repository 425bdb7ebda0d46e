"""Tables for people: one layout for a terminal of any width, a file and a pipe.

A column is declared once, with its heading, its text, and what it gives way to. A table that is
wider than the screen leaves out columns by rank, then cuts words before numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import click

from drfd_cli.output import clean, columns_of, cut, has_colour, has_screen, pad, width, wrapped

#: Least width of a column that is cut.
_LEAST = 4
#: Least width of a last column that is broken into lines, unless the caller gives one.
_LAST = 16
#: Blanks between two columns where there is room for them, and where columns are cut.
_APART, _TIGHT = 3, 1
#: Most lines into which a sentence in the last column may be broken beside the others.
_MOST_BROKEN = 3
#: The columns before a line below a row.
_INDENT = 6
#: Styles by name (ECMA-48 SGR).
_STYLES = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "bright_black": 90}


@dataclass(frozen=True)
class Column:
    """A column of a list, with all that is said of it."""

    title: str
    #: Returns the cell of a row.
    show: Callable[[Any], object] = str
    is_right: bool = False
    #: Whether it is never cut on a narrow screen.
    is_fixed: bool = False
    is_shown: bool = True


right = partial(Column, is_right=True)


class Painted(str):
    """A table cell with a style, which shows on screens with colours."""

    style: str

    def __new__(cls, text: object, style: str) -> Painted:
        cell = super().__new__(cls, text)
        cell.style = style
        return cell


class Table:
    """A table whose rows come in pages. Each page is laid out when it comes, and may widen columns.

    The last column is broken into lines, of at least `last_width` if that is not zero; without it,
    a fixed one is not. If it `explains` the rows, neighbours on a screen with the same sentence
    have it once; and if the column is so narrow that one would take many lines, all of them are
    printed below their rows over the whole width. The first column names the rows. In a file, the
    rows of a list that `is_long` have a line each.
    """

    def __init__(
        self, columns: Iterable[Column], *, last_width: int = 0, explains: bool = False,
        is_long: bool = False,
    ) -> None:  # fmt: skip
        self.columns = [column for column in columns if column.is_shown]
        self._titles = [clean(column.title) for column in self.columns]
        #: The widths that the pages so far would have.
        self._wanted = [*map(columns_of, self._titles)]
        self._last_width, self._explains = last_width, explains and has_screen()
        self._room = sys.maxsize if is_long and not has_screen() else width()
        self._is_begun = self._is_below = False

    def lines(self, items: Iterable[Any]) -> list[str]:
        """Return the lines of a page of items, the first time below those of the heading."""
        return self.lines_of([[column.show(item) for column in self.columns] for item in items])

    def lines_of(self, rows: Sequence[Sequence[object]]) -> list[str]:
        """Return the lines of rows of cells."""
        cells = [*map(list, zip(*rows, strict=True))] or [[] for _ in self.columns]
        # Most cells of a column are alike.
        texts = [{cell: clean(cell, 400) for cell in {*each}} for each in cells]
        self._wanted = [
            max([before, *map(columns_of, each.values())])
            for before, each in zip(self._wanted, texts, strict=True)
        ]
        below: dict[int, list[str]] = {}
        if self._explains:
            below = self._explained([texts[0][cell] for cell in cells[0]], cells[-1], texts[-1])
        is_broken = self._last_width > 0 or not self.columns[-1].is_fixed or self._is_below
        widths, apart = self._laid_out(is_broken=is_broken)
        gap = " " * apart
        blanks = " " * (sum(widths[:-1]) + apart * (len(widths) - 1) + 1)
        shown = [
            {cell: self._lines_in(at, text, widths[at], cell) for cell, text in each.items()}
            for at, each in enumerate(texts)
        ]
        firsts = [
            [lines[cell][0] for cell in each] for each, lines in zip(cells, shown, strict=True)
        ]
        found = [] if self._is_begun else self._heading(widths, apart)
        self._is_begun = True
        for at, (cell, *parts) in enumerate(zip(cells[-1], *firsts, strict=True)):
            found.append(f" {gap.join(parts)}".rstrip())
            more = shown[-1][cell][1:] if is_broken else ()
            found += [f"{blanks}{each}".rstrip() for each in more]
            found += below.get(at, ())
        return found

    def _heading(self, widths: Sequence[int], apart: int) -> list[str]:
        names = (
            _styled(pad(cut(name, own), own, right=column.is_right), "bold")
            for name, own, column in zip(self._titles, widths, self.columns, strict=True)
        )
        rule = "─" * (sum(widths) + apart * (len(widths) - 1))
        return ["", f" {(' ' * apart).join(names)}".rstrip(), f" {rule}"]

    def _lines_in(self, at: int, text: str, own: int, cell: object) -> list[str]:
        """Return the text of a cell, of the last column in lines."""
        column, is_last = self.columns[at], at == len(self.columns) - 1
        parts = [cut(text, own)] if not is_last or columns_of(text) <= own else wrapped(text, own)
        style = getattr(cell, "style", "")
        return [_styled(pad(each, own, right=column.is_right), style) for each in parts]

    def _laid_out(self, *, is_broken: bool) -> tuple[list[int], int]:
        """Return the widths of the columns, and how far they are apart."""
        widths, apart = [*self._wanted], _APART
        is_fixed = [column.is_fixed for column in self.columns]
        whole = widths[-1]
        if is_broken:
            widths[-1] = min(whole, self._last_width or _LAST)
            is_fixed[-1] = self._last_width > 0
        # There is a blank at each end.
        if sum(widths) + _APART * len(widths) - 1 > self._room:
            apart = _TIGHT
            is_word = [not column.is_right for column in self.columns]
            widths = _squeezed(widths, is_fixed, is_word, self._room - len(widths) - 1)
        if is_broken:
            # The last column gets the rest of the width.
            rest = self._room - sum(widths[:-1]) - apart * (len(widths) - 1) - 2
            widths[-1] = min(whole, max(widths[-1], rest))
        return widths, apart

    def _explained(
        self, names: Sequence[str], cells: list[object], texts: dict[object, str]
    ) -> dict[int, list[str]]:
        """Leave a sentence that neighbours have in common to the first of them, or take all from
        the last column and return the lines below rows."""
        told = [texts[cell] for cell in cells]
        # The indices of neighbours with the same text.
        runs = [[*run] for _, run in groupby(range(len(told)), key=lambda at: told[at])]
        others = self._wanted[:-1]
        room = max(self._last_width, self._room - sum(others) - _APART * len(others) - 2)
        if not self._is_begun:
            most = _MOST_BROKEN * room * 3 // 4
            self._is_below = any(columns_of(text) > most for text in told)
        if not self._is_below:
            for first, *same in runs:
                for at in same if columns_of(told[first]) > room else ():
                    cells[at] = as_first = f"as {names[first]}"
                    texts[as_first] = as_first
            return {}
        below: dict[int, list[str]] = {}
        for run in runs:
            first, last = run[0], run[-1]
            if told[first]:
                ids = f"{names[first]} to {names[last]}: " if first < last else ""
                parts = wrapped(ids + told[first], self._room - _INDENT - 1)
                below[last] = [" " * _INDENT + part for part in parts]
        cells[:] = [""] * len(cells)
        texts[""] = self._titles[-1] = ""
        self._wanted[-1] = 0
        return below


def _styled(text: str, style: str) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and has_colour() else text


def _squeezed(
    widths: Sequence[int], is_fixed: Sequence[bool], is_word: Sequence[bool], room: int
) -> list[int]:
    """Return the widths cut to the sum `room`: words before numbers, the widest first."""
    found = list(widths)
    while sum(found) > room:
        free = [at for at, own in enumerate(found) if own > _LEAST and not is_fixed[at]]
        if not free:
            break
        found[max(free, key=lambda at: (is_word[at], found[at]))] -= 1
    return found


def echo(lines: Iterable[str]) -> None:
    """Print lines of a table on stdout."""
    click.echo("\n".join(lines), color=has_colour())


def print_items(
    columns: Iterable[Column], items: Iterable[Any], *, last_width: int = 0,
    below: Iterable[Mapping[str, object]] = (),
) -> None:  # fmt: skip
    """Print a table with a row for each item, and below them rows of which the cells are given by
    their headings."""
    table = Table(columns, last_width=last_width)
    rows = [[column.show(item) for column in table.columns] for item in items]
    rows += [[row.get(column.title, "") for column in table.columns] for row in below]
    echo([*table.lines_of(rows), ""])


def print_rows(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    """Print a table of rows of cells."""
    echo([*Table(columns).lines_of([*rows]), ""])
