"""Results of experiments as tables and curves, which are pure data, and their output."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import click

from drfd_cli import output
from drfd_cli.output import Column
from drfd_cli.tables.layout import print_rows

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A chart: curves or bars on one pair of axes."""

    title: str
    #: Labels of the axes: "seconds", "share of memory".
    x: str
    y: str
    #: The names of bars, drawn in place of curves; the x of a point is an index of this list.
    names: Sequence[str] = ()
    #: Name → the points from left to right.
    curves: dict[str, list[Point]]
    #: The largest y of the scale, or None to fit the curves.
    top: float | None = None
    #: Whether a curve is level until its next point, rather than straight between points.
    steps: bool = False


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
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = ()

    def view(self) -> dict[str, object]:
        """Return the figure as JSON values. Equal runs give equal text."""
        view = _plain(asdict(self))
        for panel in view["panels"]:
            for key in ("top", "steps"):
                del panel[key]
        return dict(view)


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
        for panel in figure.panels:
            click.echo()
            click.echo(draw(panel))
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


def _wrap(lead: str, text: str) -> None:
    wide = min(_WIDEST, output.width())
    for line in textwrap.wrap(
        output.clean(text, 2000), wide, initial_indent=lead, subsequent_indent="  "
    ):
        click.echo(line)


# -- curves and bars on the screen -----------------------------------------------------------------

#: A character for each curve, and one for places where several meet.
_CHARACTERS = "o+x*^v#%@&"
_SEVERAL = "="
_WIDEST = 100
_ROWS = 10
_BAR = "█"


def draw(panel: Panel) -> str:
    """Return the panel as lines no wider than the screen."""
    columns = min(_WIDEST, output.width())
    lines = _bars(panel, columns) if panel.names else _curves(panel, columns)
    return "\n".join([output.shorten(panel.title, columns), *lines])


def _curves(panel: Panel, columns: int) -> list[str]:
    most = _top_of(panel)
    labels = [_show(panel, most * row / _ROWS) for row in range(_ROWS, -1, -1)]
    margin = max(map(len, labels)) + 2
    wide = max(10, columns - margin)
    last = max((points[-1][0] for points in panel.curves.values() if points), default=1.0)
    first = min((points[0][0] for points in panel.curves.values() if points), default=1.0)
    grid = [[" "] * wide for _ in range(_ROWS + 1)]
    chars = dict(zip(panel.curves, _CHARACTERS * len(panel.curves), strict=False))
    for name, points in panel.curves.items():
        for column, value in enumerate(_sampled(points, first, last, wide, panel.steps)):
            if value is None:
                continue
            row = _ROWS - min(_ROWS, max(0, round(value / most * _ROWS)))
            before = grid[row][column]
            grid[row][column] = chars[name] if before == " " else _SEVERAL
    lines = [
        f"{label if row % 5 == 0 else '':>{margin - 2}} │{''.join(cells)}".rstrip()
        for row, (label, cells) in enumerate(zip(labels, grid, strict=True))
    ]
    ends = _number(first), f"{_number(last)} {panel.x}"
    lines.append(" " * (margin - 1) + "└" + "─" * wide)
    lines.append(" " * margin + ends[0] + ends[1].rjust(wide - len(ends[0])))
    legend = [f"{char} {output.shorten(name, 30)}" for name, char in chars.items()]
    if len(legend) > 1:
        legend.append(f"{_SEVERAL} several")
    lines.append(" " * margin + "   ".join(legend))
    return lines


def _sampled(
    points: Sequence[Point], first: float, last: float, wide: int, steps: bool
) -> list[float | None]:
    """Return the value at each column: the mean of its points. A column without points has the
    value before it if `steps`, else an interpolated one."""
    span = (last - first) or 1.0
    found: list[list[float]] = [[] for _ in range(wide)]
    for x, y in points:
        found[min(wide - 1, int((x - first) / span * wide))].append(y)
    values = [sum(each) / len(each) if each else None for each in found]
    known = [column for column, value in enumerate(values) if value is not None]
    for left, right in pairwise(known):
        low, high = values[left], values[right]
        assert low is not None and high is not None
        for column in range(left + 1, right):
            part = 0.0 if steps else (column - left) / (right - left)
            values[column] = low + (high - low) * part
    return values


def _bars(panel: Panel, columns: int) -> list[str]:
    most = _top_of(panel)
    # Each bar has its name on the left and its value on the right.
    rows = [
        (output.shorten(place, 24), output.shorten(name, 24), points)
        for at, place in enumerate(panel.names)
        for name, each in panel.curves.items()
        if (points := next((y for x, y in each if x == at), None)) is not None
    ]
    single = len(panel.curves) == 1
    heads = [place if single else f"{place}, {name}" for place, name, _ in rows]
    margin = max(map(output.columns_of, heads), default=0) + 1
    wide = max(10, columns - margin - 10)
    return [
        f"{output.pad(head, margin)}│{_BAR * max(0, round(value / most * wide))} "
        f"{_show(panel, value)}"
        for head, (*_, value) in zip(heads, rows, strict=True)
    ]


def _top_of(panel: Panel) -> float:
    """Return the height of the scale."""
    if panel.top is not None:
        return panel.top
    return max((y for points in panel.curves.values() for _, y in points), default=0.0) or 1.0


def _is_part(panel: Panel) -> bool:
    """Return whether the values are fractions, which are shown in percent."""
    return panel.y.startswith(("share", "part"))


def _show(panel: Panel, value: float) -> str:
    return f"{value:.0%}" if _is_part(panel) else _number(value)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"
