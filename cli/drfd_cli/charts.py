"""Charts: the use of a job over time, and the figures of experiments.

All of them are lines of characters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import log10
from typing import TYPE_CHECKING, Any, Literal

from drfd.common.units import show_cores, show_duration, show_size
from drfd_cli import output

if TYPE_CHECKING:
    from drfd.protocol.replies import CurveView, ResourcesView
    from drfd.sim.figures import Panel, Point

# -- use of a job over time ------------------------------------------------------------------------

#: Bars from empty to full, and their ASCII form for screens without these characters.
_LEVELS, _PLAIN_LEVELS = " ▁▂▃▄▅▆▇█", " .:-=+*#%"
_LEAST_POINTS = 3

CurveKind = Literal[
    "cores", "cores_beyond", "memory", "read", "write", "gpu_utilisation", "gpu_memory"
]
#: Each with its label and the format of an amount.
_USAGE_KINDS: tuple[tuple[CurveKind, str, Callable[[Any], str]], ...] = (
    ("cores", "cores", lambda cores: show_cores(10 * round(100 * cores))),
    ("cores_beyond", "beyond", lambda cores: show_cores(10 * round(100 * cores))),
    ("memory", "memory", show_size),
    ("read", "read", show_size),
    ("write", "write", show_size),
    ("gpu_utilisation", "GPU", lambda percent: f"{percent}%"),
    ("gpu_memory", "GPU mem", show_size),
)


def usage_lines(
    curve: CurveView | None, demand: ResourcesView, columns: int, *, is_live: bool
) -> list[str]:
    """Return a line for each resource that the job has used, at most `columns` wide, with what it
    uses now if it `is_live`. The cores beyond a lower end have a line of their own."""
    if curve is None:
        return []
    shown = [
        each
        for each in _USAGE_KINDS
        if len(known := _known(curve.get(each[0]))) >= _LEAST_POINTS and any(known)
    ]
    label_columns = max(len(label) for label in ("memory", *(label for _, label, _ in shown)))
    found = []
    for kind, label, show in shown:
        asked, most, last = declared(demand, kind), max(_known(curve[kind])), curve[kind][-1]
        length = show_duration(curve["at"][-1] - curve["at"][0])
        whole = output.show_cores_of(demand) if kind == "cores" else show(asked)
        part = f" of {whole}" if asked else ""
        now = f"{show(last)} now, " if is_live and last is not None else ""
        words = f"{now}most {show(most)}{part}, over {length}"
        room = columns - label_columns - len(words) - 4
        if room >= _LEAST_POINTS:
            bars = spark(curve["at"], curve[kind], max(asked, most), room)
            found.append(f"{label:<{label_columns}} {bars}  {words}")
    return found


def _known(values: Sequence[float | None] | None) -> list[float]:
    return [each for each in values or () if each is not None]


def declared(demand: ResourcesView, kind: CurveKind) -> float:
    """Return the declared amount of what a curve shows, of a range the upper end, or 0 if the job
    declares none."""
    match kind:
        case "cores":
            return demand.get("cores_max", demand["cores"])
        case "cores_beyond":
            return max(0.0, demand.get("cores_max", 0.0) - demand["cores"])
        case "gpu_utilisation":
            return 100 * demand["gres"].get("gpu", 0)
        case "gpu_memory":
            return demand["gres"].get("gpu", 0) * demand.get("gres_memory", {}).get("gpu", 0)
    return demand[kind]


def spark(at: Sequence[float], values: Sequence[float | None], top: float, columns: int) -> str:
    """Return a bar for each of `columns` equal parts of the time, or for each point if there are
    fewer. A blank is an unknown or zero value; any other is visible."""
    chars = _LEVELS if _can_show(_LEVELS) else _PLAIN_LEVELS

    def level(value: float | None) -> int:
        return max(1, min(8, round(8 * value / top))) if value and top else 0

    bars = (chars[level(each)] for each in _highest(at, values, min(columns, len(at))))
    return "".join(bars).rstrip() or "-"


def _highest(
    at: Sequence[float], values: Sequence[float | None], columns: int
) -> list[float | None]:
    """Return for each of `columns` equal parts of the time the highest point that covers a moment
    of it, or None. A point covers the time since the point before it."""
    whole_s = (at[-1] - at[0]) or 1.0
    found: list[float | None] = [None] * columns
    before = 0
    for moment, value in zip(at, values, strict=True):
        last = min(columns - 1, int((moment - at[0]) / whole_s * columns))
        for column in range(min(before + 1, last), last + 1):
            if value is not None:
                found[column] = max(found[column] or 0, value)
        before = last
    return found


def _can_show(chars: str) -> bool:
    try:
        chars.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# -- figures on the screen -------------------------------------------------------------------------

#: A character for each curve, and one for places where several meet.
_CHARACTERS = "o+x*^v#%@&"
_SEVERAL = "="
WIDEST = 100
_ROWS = 10
_BAR = "█"


def draw(panel: Panel) -> str:
    """Return the panel as lines no wider than the screen."""
    columns = min(WIDEST, output.width())
    lines = _bars(panel, columns) if panel.names else _curves(panel, columns)
    return "\n".join([output.shorten(panel.title, columns), *lines])


def _curves(panel: Panel, columns: int) -> list[str]:
    most = top_of(panel)
    labels = [_show(panel, most * row / _ROWS) for row in range(_ROWS, -1, -1)]
    margin = max(map(len, labels)) + 2
    wide = max(10, columns - margin)
    at = (lambda x: log10(max(1.0, x))) if panel.log_x else float
    last = max((points[-1][0] for points in panel.curves.values() if points), default=1.0)
    first = min((points[0][0] for points in panel.curves.values() if points), default=1.0)
    grid = [[" "] * wide for _ in range(_ROWS + 1)]
    chars = dict(zip(panel.curves, _CHARACTERS * len(panel.curves), strict=False))
    for name, points in panel.curves.items():
        placed = [(at(x), y) for x, y in points]
        for column, value in enumerate(_sampled(placed, at(first), at(last), wide, panel.steps)):
            if value is None:
                continue
            row = _ROWS - min(_ROWS, max(0, round(value / most * _ROWS)))
            before = grid[row][column]
            grid[row][column] = chars[name] if before == " " else _SEVERAL
    lines = [
        f"{label if row % 5 == 0 else '':>{margin - 2}} │{''.join(cells)}".rstrip()
        for row, (label, cells) in enumerate(zip(labels, grid, strict=True))
    ]
    ends = _number(first), f"{_number(last)} {panel.x}{', by powers of ten' if panel.log_x else ''}"
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
    most = top_of(panel)
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


def top_of(panel: Panel) -> float:
    """Return the height of the scale."""
    if panel.top is not None:
        return panel.top
    return max((y for points in panel.curves.values() for _, y in points), default=0.0) or 1.0


def is_part(panel: Panel) -> bool:
    """Return whether the values are fractions, which are shown in percent."""
    return panel.y.startswith(("share", "part"))


def _show(panel: Panel, value: float) -> str:
    return f"{value:.0%}" if is_part(panel) else _number(value)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"
