"""An experiment's tables, curves and notes on the screen, as JSON, and as a picture."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from drfd_cli import output, plot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drfd.sim.figures import Cell, Column, Figure, Table

_WIDEST = 100


def show(figures: Sequence[Figure]) -> None:
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
        for panel in figure.panels:
            click.echo()
            click.echo(plot.draw(panel))
        if figure.notes:
            click.echo()
        for note in figure.notes:
            _wrap("- ", note)


def print_table(table: Table) -> None:
    columns: list[output.Column] = [
        (each.name, "right") if _is_number(table, at) else each.name
        for at, each in enumerate(table.columns)
    ]
    rows = [[_shown(*pair) for pair in zip(table.columns, row, strict=True)] for row in table.rows]
    output.print_rows(columns, rows, fixed=[each.name for each in table.columns[:-1]])


def _is_number(table: Table, at: int) -> bool:
    cells = [row[at] for row in table.rows]
    return all(isinstance(cell, int | float) or cell is None for cell in cells)


def _shown(column: Column, cell: Cell) -> str:
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


def _wrap(lead: str, text: str) -> None:
    wide = min(_WIDEST, output.width())
    for line in textwrap.wrap(
        output.clean(text, 2000), wide, initial_indent=lead, subsequent_indent="  "
    ):
        click.echo(line)
