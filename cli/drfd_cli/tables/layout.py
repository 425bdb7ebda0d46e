"""Tables for people: one layout for a terminal of any width, a file and a pipe.

A column is declared once, with its heading, its text, and what it gives way to. A table that is
wider than the screen leaves out columns by rank, then cuts words before numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import click

from drfd_cli.output import (
    Column,
    clean,
    columns_of,
    cut,
    has_colour,
    has_screen,
    pad,
    width,
    wrapped,
)

#: Least width of a column that is cut.
_LEAST = 4
#: Least width of a last column that is broken into lines.
_LAST = 16
#: The rank of sentences that every screen has: columns of higher ones give way to them.
_SENTENCES = 3
#: A width that no text has.
_ENDLESS = 1000
#: Blanks between two columns where there is room for them, and where columns are cut.
_APART, _TIGHT = 3, 1
#: Most lines into which a sentence in the last column may be broken beside the others.
_MOST_BROKEN = 3
#: The columns before a line below a row.
_INDENT = 6
#: Styles by purpose (ECMA-48 SGR).
_STYLES = {"title": 1, "hot": 31, "good": 32, "warm": 33, "held": 35, "dim": 90}


right = partial(Column, is_right=True)


class Painted(str):
    """A table cell with a style, which shows on screens with colours."""

    style: str

    def __new__(cls, text: object, style: str) -> Painted:
        cell = super().__new__(cls, text)
        cell.style = style
        return cell


class TextTable:
    """A table whose rows come in pages. Each page is laid out when it comes, and may widen columns.

    Unless it is fixed, the last column is broken into lines. On a screen, neighbours with the same
    sentence in it have it once; and if the column is so narrow that one would take many lines, all
    of them are printed below their rows over the whole width. The first column names the rows. In a
    file, the rows of a list that `is_long` have a line each.
    """

    def __init__(self, columns: Iterable[Column], *, is_long: bool = False) -> None:
        self.columns = [*columns]
        self._titles = [clean(column.title) for column in self.columns]
        #: The widths that the pages so far would have.
        self._wanted = [*map(columns_of, self._titles)]
        self._is_long = is_long
        self._room = sys.maxsize if is_long and not has_screen() else width()
        self._is_begun = self._is_below = False

    def lines(self, items: Iterable[Any]) -> list[str]:
        """Return the lines of a page of items, the first time below those of the heading."""
        return self.lines_of([[column.cell(item) for column in self.columns] for item in items])

    def lines_of(self, rows: Sequence[Sequence[object]]) -> list[str]:
        cells = [*map(list, zip(*rows, strict=True))] or [[] for _ in self.columns]
        # Most cells of a column are alike.
        texts = [
            {cell: cut(clean(cell, 400), column.most or _ENDLESS) for cell in {*each}}
            for column, each in zip(self.columns, cells, strict=True)
        ]
        self._wanted = [
            max([before, *map(columns_of, each.values())])
            for before, each in zip(self._wanted, texts, strict=True)
        ]
        if not self._is_begun:
            kept = self._kept(cells)
            every: list[list[Any]] = [self.columns, self._titles, self._wanted, cells, texts]
            for some in every:
                some[:] = [some[at] for at in kept]
        below: dict[int, list[str]] = {}
        if self.columns[-1].is_sentence and has_screen():
            below = self._explained([texts[0][cell] for cell in cells[0]], cells[-1], texts[-1])
        is_broken = not self.columns[-1].is_fixed
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
            found += [f"{blanks}{each}".rstrip() for each in shown[-1][cell][1:]]
            found += below.get(at, ())
        return found

    def _heading(self, widths: Sequence[int], apart: int) -> list[str]:
        names = (
            _styled(pad(cut(name, own), own, right=column.is_right), "title")
            for name, own, column in zip(self._titles, widths, self.columns, strict=True)
        )
        rule = "─" * (sum(widths) + apart * (len(widths) - 1))
        return ["", f" {(' ' * apart).join(names)}".rstrip(), f" {rule}"]

    def _lines_in(self, at: int, text: str, own: int, cell: object) -> list[str]:
        """Return the text of a cell, of the last column in lines."""
        column, is_last = self.columns[at], at == len(self.columns) - 1
        is_whole = not is_last or column.is_fixed or columns_of(text) <= own
        parts = [cut(text, own)] if is_whole else wrapped(text, own)
        style = getattr(cell, "style", "")
        return [_styled(pad(each, own, right=column.is_right), style) for each in parts]

    def _leasts(self) -> list[int]:
        """Return the widths that the columns keep before others are left out."""
        return [
            min(wanted, _LAST if column.is_sentence else column.least or wanted)
            for column, wanted in zip(self.columns, self._wanted, strict=True)
        ]

    def _kept(self, cells: Sequence[Sequence[object]]) -> list[int]:
        """Return the indices of the columns that do not give way, or have a value in any row, as
        far as the screen is wide enough."""
        leasts, wanted, room = self._leasts(), self._wanted, self._room - 2 + _APART
        there = [
            at
            for at, (column, each) in enumerate(zip(self.columns, cells, strict=True))
            if not column.rank or self._is_long or not each or {*each} - {"", "-"}
        ]
        last = there[-1]

        def fitting(*of_last: int) -> list[int]:
            spans = [(leasts[at], wanted[at], max(0, self.columns[at].rank)) for at in there[:-1]]
            found = fitted([*spans, (of_last[0], wanted[last], of_last[1])], room, _APART)
            return [there[at] for at in sorted(found)]

        if not self.columns[last].is_sentence or self.columns[last].rank:
            return fitting(leasts[last], self.columns[last].rank)
        # As wide as `_explained` wants it; without room for that, the sentences are below the rows.
        most = -(-wanted[last] * 4 // (3 * _MOST_BROKEN))
        kept = fitting(max(leasts[last], most), _SENTENCES)
        return kept if last in kept else sorted({*fitting(leasts[last], _SENTENCES), last})

    def _laid_out(self, *, is_broken: bool) -> tuple[list[int], int]:
        """Return the widths of the columns, and how far they are apart."""
        leasts, wanted = self._leasts(), [*self._wanted]
        if is_broken:
            leasts[-1] = min(leasts[-1], _LAST)
        # There is a blank at each end.
        used = sum(wanted[:-1]) + leasts[-1] + _APART * len(wanted) - 1
        apart = _APART if used <= self._room else _TIGHT
        return widths_of(self.columns, leasts, wanted, self._room - 2 + apart, apart), apart

    def _explained(
        self, names: Sequence[str], cells: list[object], texts: dict[object, str]
    ) -> dict[int, list[str]]:
        """Leave a sentence that neighbours have in common to the first of them, or take all from
        the last column and return the lines below rows."""
        told = [texts[cell] for cell in cells]
        # The indices of neighbours with the same text.
        runs = [[*run] for _, run in groupby(range(len(told)), key=lambda at: told[at])]
        others = self._wanted[:-1]
        room = max(_LAST, self._room - sum(others) - _APART * len(others) - 2)
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


def fitted(spans: Sequence[tuple[int, int, int]], room: int, apart: int) -> dict[int, int]:
    """Return the widths of the columns that fit, by their indices, each with so many blanks behind
    it. The spans are their least and their wanted widths, and the order in which they are added, 0
    for those that are there in any case. The first ones get what is left of the room."""
    left = room - sum(least + apart for least, _, rank in spans if not rank)
    kept = {at for at, (*_, rank) in enumerate(spans) if not rank}
    for at in sorted(range(len(spans)), key=lambda at: spans[at][2]):
        if at not in kept and spans[at][0] + apart <= left:
            kept.add(at)
            left -= spans[at][0] + apart
    widths = {}
    for at in sorted(kept):
        least, wanted, _ = spans[at]
        widths[at] = least + max(0, min(left, wanted - least))
        left -= widths[at] - least
    return widths


def widths_of(
    columns: Sequence[Column], leasts: Sequence[int], wanted: Sequence[int], room: int, apart: int
) -> list[int]:
    """Return the widths of columns none of which is left out, each with so many blanks behind it:
    where the room is too small, words are cut before numbers, the widest first."""
    found = list(leasts)
    while sum(found) + apart * len(found) > room:
        free = [
            at
            for at, column in enumerate(columns)
            if found[at] > _LEAST and not (column.is_fixed or column.is_sentence)
        ]
        if not free:
            break
        found[max(free, key=lambda at: (not columns[at].is_right, found[at]))] -= 1
    spans = [(least, most, 0) for least, most in zip(found, wanted, strict=True)]
    return [*fitted(spans, room, apart).values()]


def with_values(columns: Iterable[Column], rows: Sequence[Any]) -> list[Column]:
    """Return the columns that do not give way, or have a value in any row."""
    return [each for each in columns if not each.rank or any(each.cell(row) != "-" for row in rows)]


def echo(lines: Iterable[str]) -> None:
    click.echo("\n".join(lines), color=has_colour())


def print_items(
    columns: Iterable[Column],
    items: Iterable[Any],
    below: Iterable[tuple[str, Any]] = (),
    *,
    naming: str = "",
) -> None:
    """Print a table with a row for each item, and below them rows of items that have only some of
    the values, with their names in the column of the key `naming`, if it is there."""
    table = TextTable(columns)
    rows = [[column.cell(item) for column in table.columns] for item in items]
    if naming in {column.key for column in table.columns}:
        rows += [
            [
                name if column.key == naming else column.cell(item, missing="")
                for column in table.columns
            ]
            for name, item in below
        ]
    echo([*table.lines_of(rows), ""])


def print_rows(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
    echo([*TextTable(columns).lines_of([*rows]), ""])
