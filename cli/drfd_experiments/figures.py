"""Results of experiments as tables, which are pure data, and their output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import zip_longest
from typing import Any

import click

from drfd_cli import output
from drfd_cli.output import Column
from drfd_cli.tables.layout import print_rows

#: Most columns of a description.
_WIDEST = 100
#: A cell of a table, or None if it is empty.
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    #: "%" (the cells are parts of one), "s" (seconds), or "" (none).
    unit: str


def headers(text: str) -> list[Header]:
    """Return the headers of columns that a text names, with their units: `JOB, CPU %, TAKES s`."""
    found = (re.fullmatch("(.+?)(?: ([%s]))?", each) for each in text.split(", "))
    return [Header(each[1], each[2] or "") for each in found if each is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    columns: Sequence[Header]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A description of an experiment, and its results."""

    name: str
    title: str
    about: Sequence[str] = ()
    tables: Sequence[Table] = ()

    def view(self) -> dict[str, object]:
        """Return the figure as JSON values. Equal runs give equal text."""
        return dict(_plain(asdict(self)))


def means_over_time(
    title: str, curves: Mapping[str, Sequence[float]], points: int, seconds: int
) -> Table:
    """Return the mean of each curve in each window of so many points, which take so many seconds.
    A curve that ends sooner has empty cells."""
    windows = (
        [curve[at : at + points] for at in range(0, len(curve), points)]
        for curve in curves.values()
    )
    means = ([sum(window) / len(window) for window in each] for each in windows)
    rows = [[number * seconds, *row] for number, row in enumerate(zip_longest(*means))]
    columns = headers(", ".join(["SECOND", *(f"{name} %" for name in curves)]))
    return Table(title=title, columns=columns, rows=rows)


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
            wide = min(_WIDEST, output.width()) - 2
            click.echo("\n".join(f"  {each}" for each in output.wrapped(line, wide)))
        for table in figure.tables:
            click.echo()
            output.tell(table.title)
            _print_table(table)


def _print_table(table: Table) -> None:
    last = len(table.columns) - 1
    texts = {at for row in table.rows for at, cell in enumerate(row) if isinstance(cell, str)}
    columns = [
        Column(each.name, is_fixed=at < last, is_right=at not in texts)
        for at, each in enumerate(table.columns)
    ]
    rows = [[_shown(*pair) for pair in zip(table.columns, row, strict=True)] for row in table.rows]
    print_rows(columns, rows)


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
    return f"{cell:g}" if isinstance(cell, int) else f"{cell:.4g}"
