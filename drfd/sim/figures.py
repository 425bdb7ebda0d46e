"""What an experiment has found: tables, and curves to be drawn. Pure data, and JSON of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

#: Of an empty cell: None.
Cell = str | int | float | None
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    #: "%" (the cells are parts of one), "s" (seconds), "x" (times as much), or "" (as it is).
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One set of axes."""

    title: str
    #: Below and beside: "seconds", "share of memory".
    x: str
    y: str
    #: By name; the points of each from left to right.
    curves: dict[str, list[Point]]
    #: The height of the whole scale; None: as the curves need.
    top: float | None = None
    #: Straight from point to point, or level until the next.
    steps: bool = False
    #: Each tenth of a power of ten as wide as any other; no x is below 1.
    log_x: bool = False
    #: Bars over names in place of curves: the points' x are places in here.
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Of an experiment: what was done, what came out, what to think of it."""

    name: str
    title: str
    about: Sequence[str] = ()
    tables: Sequence[Table] = ()
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    def view(self) -> dict[str, Any]:
        """As JSON has it; the same run gives the same text."""
        return {
            "name": self.name,
            "title": self.title,
            "about": list(self.about),
            "tables": [
                {
                    "title": table.title,
                    "columns": [{"name": each.name, "unit": each.unit} for each in table.columns],
                    "rows": [[_plain(cell) for cell in row] for row in table.rows],
                }
                for table in self.tables
            ],
            "panels": [
                {
                    "title": panel.title,
                    "x": panel.x,
                    "y": panel.y,
                    "names": list(panel.names),
                    "curves": {
                        name: [[_plain(x), _plain(y)] for x, y in points]
                        for name, points in panel.curves.items()
                    },
                }
                for panel in self.panels
            ],
            "notes": list(self.notes),
        }


def _plain(cell: Cell | Fraction) -> Cell:
    """Without the noise of the last digits."""
    if isinstance(cell, float | Fraction):
        return round(float(cell), 6)
    return cell
