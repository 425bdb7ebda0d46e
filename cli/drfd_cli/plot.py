"""Curves and bars in a terminal's letters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import log10
from typing import TYPE_CHECKING

from drfd_cli import output

if TYPE_CHECKING:
    from drfd.sim.figures import Panel, Point

#: One for each curve; SEVERAL where two meet.
_SIGNS = "o+x*^v#%@&"
_SEVERAL = "="
_WIDEST = 100
_ROWS = 10
_BAR = "█"


def draw(panel: Panel) -> str:
    """The panel as lines, no wider than the screen."""
    columns = min(_WIDEST, output.width())
    lines = _bars(panel, columns) if panel.names else _curves(panel, columns)
    return "\n".join([output.shorten(panel.title, columns), *lines])


def _curves(panel: Panel, columns: int) -> list[str]:
    most = top_of(panel)
    labels = [_show(panel, most * row / _ROWS) for row in range(_ROWS, -1, -1)]
    margin = max(map(len, labels)) + 2
    wide = max(10, columns - margin)
    at = _log if panel.log_x else float
    last = max((points[-1][0] for points in panel.curves.values() if points), default=1.0)
    first = min((points[0][0] for points in panel.curves.values() if points), default=1.0)
    grid = [[" "] * wide for _ in range(_ROWS + 1)]
    signs = dict(zip(panel.curves, _SIGNS * len(panel.curves), strict=False))
    for name, points in panel.curves.items():
        placed = [(at(x), y) for x, y in points]
        for column, value in enumerate(_sampled(placed, at(first), at(last), wide, panel.steps)):
            if value is None:
                continue
            row = _ROWS - min(_ROWS, max(0, round(value / most * _ROWS)))
            before = grid[row][column]
            grid[row][column] = signs[name] if before == " " else _SEVERAL
    lines = [
        f"{label if row % 5 == 0 else '':>{margin - 2}} │{''.join(cells)}".rstrip()
        for row, (label, cells) in enumerate(zip(labels, grid, strict=True))
    ]
    ends = _number(first), f"{_number(last)} {panel.x}{', by powers of ten' if panel.log_x else ''}"
    lines.append(" " * (margin - 1) + "└" + "─" * wide)
    lines.append(" " * margin + ends[0] + ends[1].rjust(wide - len(ends[0])))
    legend = [f"{sign} {output.shorten(name, 30)}" for name, sign in signs.items()]
    if len(legend) > 1:
        legend.append(f"{_SEVERAL} several")
    lines.append(" " * margin + "   ".join(legend))
    return lines


def _log(x: float) -> float:
    return log10(max(1.0, x))


def _sampled(
    points: Sequence[Point], first: float, last: float, wide: int, steps: bool
) -> list[float | None]:
    """The value at each column: the mean of the points there, else the one before (level, or on the
    way to the next)."""
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
    most = top_of(panel)
    # Of each bar the value on the right, and what it is of on the left.
    rows = [
        (output.shorten(place, 24), output.shorten(name, 24), points)
        for at, place in enumerate(panel.names)
        for name, each in panel.curves.items()
        if (points := next((y for x, y in each if x == at), None)) is not None
    ]
    single = len(panel.curves) == 1
    heads = [place if single else f"{place}, {name}" for place, name, _ in rows]
    margin = max(map(len, heads), default=0) + 1
    wide = max(10, columns - margin - 10)
    return [
        f"{head:<{margin}}│{_BAR * max(0, round(value / most * wide))} {_show(panel, value)}"
        for head, (*_, value) in zip(heads, rows, strict=True)
    ]


def top_of(panel: Panel) -> float:
    """The height of the scale."""
    if panel.top is not None:
        return panel.top
    return max((y for points in panel.curves.values() for _, y in points), default=0.0) or 1.0


def is_part(panel: Panel) -> bool:
    """Are the values parts of one, shown in percent?"""
    return panel.y.startswith(("share", "part"))


def _show(panel: Panel, value: float) -> str:
    return f"{value:.0%}" if is_part(panel) else _number(value)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"
