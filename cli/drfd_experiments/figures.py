"""Results of experiments as tables, which are pure data, and their output."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import click

from drfd_cli import output
from drfd_cli.output import Column
from drfd_cli.tables.layout import print_rows

#: A cell of a table, or None if it is empty.
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    #: "%" (the cells are parts of one), "s" (seconds), "x" (a factor), or "" (none).
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    columns: Sequence[Header]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A description of an experiment, its results, and remarks on them."""

    name: str
    title: str
    about: Sequence[str] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()

    def view(self) -> dict[str, object]:
        """Return the figure as JSON values. Equal runs give equal text."""
        return dict(_plain(asdict(self)))


def window_means(values: Sequence[float], size: int) -> list[float]:
    """Return the mean of each `size` values that follow each other, and of what is left."""
    windows = (values[at : at + size] for at in range(0, len(values), size))
    return [sum(window) / len(window) for window in windows]


def _plain(value: Any) -> Any:
    """Return JSON values, with numbers rounded to six digits to hide rounding errors."""
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case float() | Fraction():
            return round(float(value), 6)
    return value


def show_figures(figures: Sequence[Figure]) -> None:
    for number, figure in enumerate(figures):
        if number:
            click.echo()
        output.tell(figure.title)
        for line in figure.about:
            _wrap("  ", line)
        for table in figure.tables:
            click.echo()
            output.tell(table.title)
            print_table(table)
        if figure.notes:
            click.echo()
        for note in figure.notes:
            _wrap("- ", note)


def print_table(table: Table) -> None:
    last = len(table.columns) - 1
    columns = [
        Column(each.name, is_right=_is_number(table, at), is_fixed=at < last)
        for at, each in enumerate(table.columns)
    ]
    rows = [[_shown(*pair) for pair in zip(table.columns, row, strict=True)] for row in table.rows]
    print_rows(columns, rows)


def _is_number(table: Table, at: int) -> bool:
    cells = [row[at] for row in table.rows]
    return all(isinstance(cell, int | float) or cell is None for cell in cells)


def _shown(column: Header, cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    match column.unit:
        case "%":
            return f"{cell:.1%}"
        case "s":
            return f"{cell:.0f} s"
        case "x":
            return f"{cell:.2f} x"
    return f"{cell:g}" if isinstance(cell, int) else f"{cell:.4g}"


_WIDEST = 100


def _wrap(lead: str, text: str) -> None:
    wide = min(_WIDEST, output.width())
    for line in textwrap.wrap(
        output.clean(text, 2000), wide, initial_indent=lead, subsequent_indent="  "
    ):
        click.echo(line)
