"""What was allocated and used, and who had which share, since the live view began.

The view has no other memory than this: some hundred moments, which cover longer times the longer it
runs. A moment keeps the highest values of its time, so that no short peak is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

from drfd.common.units import show_duration
from drfd.core.model.job import show_path
from drfd_cli.charts import bars, highest
from drfd_cli.top.paint import Line, Theme, fit, fit_right, joined, spaces
from drfd_cli.top.panels import gres_label, leaf_marks, parts_of_capacity
from drfd_cli.top.state import leaves

if TYPE_CHECKING:
    from drfd.protocol.replies import SnapshotView

#: The most moments that are kept.
MOST = 600
#: Seconds of the first moments, and without a snapshot after which the curves have a gap.
_FIRST_S, _GAP_S = 1.0, 10.0
#: Parts of the capacity by resource, or dominant shares by path.
_Parts = Mapping[str, float]


@dataclass(frozen=True)
class Moment:
    """A short time: its end, as Unix time, and the highest values in it."""

    at_s: float
    held: _Parts = field(default_factory=dict)
    used: _Parts = field(default_factory=dict)
    #: Of leaves that hold something or wait.
    shares: _Parts = field(default_factory=dict)
    entitled: _Parts = field(default_factory=dict)

    def joined(self, later: Moment) -> Moment:
        """Return both as one moment."""
        return Moment(
            later.at_s, _highest(self.held, later.held), _highest(self.used, later.used),
            _highest(self.shares, later.shares), {**self.entitled, **later.entitled},
        )  # fmt: skip


def _highest(some: _Parts, others: _Parts) -> _Parts:
    return {
        name: max(some.get(name, 0.0), others.get(name, 0.0)) for name in {**some, **others}
    }  # fmt: skip


class History:
    """The moments so far, oldest first; before there are `limit`, every two of them become one."""

    def __init__(self, limit: int = MOST) -> None:
        self._limit = limit
        self.moments: list[Moment] = []
        #: The largest share that each leaf has had, by path.
        self.most: _Parts = {}
        self._each_s = _FIRST_S
        #: When the last moment began.
        self._begin_s = 0.0

    def add(self, snapshot: SnapshotView) -> None:
        """Take a snapshot, unless it is the last one again."""
        at_s, moments = snapshot["at"], self.moments
        last_s = moments[-1].at_s if moments else None
        if last_s is not None and at_s <= last_s:
            return
        held, used = parts_of_capacity(snapshot)
        nodes = [
            node
            for node in leaves(snapshot["nodes"])
            if node["running"] or node["pending"] or node["dominant_share"]
        ]
        moment = Moment(
            at_s, held, used, {node["path"]: node["dominant_share"] for node in nodes},
            {node["path"]: node["entitlement"] for node in nodes},
        )  # fmt: skip
        self.most = _highest(self.most, moment.shares)
        gap_s = 0.0 if last_s is None else at_s - last_s
        if gap_s > max(_GAP_S, 3 * self._each_s):
            # The daemon was away, or drf was stopped: nothing is known of that time.
            moments.append(Moment(at_s - self._each_s))
        elif moments and at_s - self._begin_s < self._each_s:
            moments[-1] = moments[-1].joined(moment)
            return
        self._begin_s = at_s
        moments.append(moment)
        if len(moments) >= self._limit:
            pairs = zip(moments[::2], moments[1::2], strict=False)
            rest = moments[len(moments) // 2 * 2 :]
            self.moments = [*(first.joined(second) for first, second in pairs), *rest]
            self._each_s *= 2


# -- the panel -----------------------------------------------------------------------------------

#: Columns of a label and of a figure, and the least of a curve.
_LABEL, _FIGURE, _LEAST_CURVE = 11, 5, 10
#: The most lines of a curve.
_TALLEST = 3


@dataclass(frozen=True)
class _Cell:
    """A curve with its label: half of a row."""

    label: str
    values: Sequence[float | None]
    style: Style


def height_of(history: History, snapshot: SnapshotView) -> int:
    """Return the number of lines of the whole panel with the lowest curves, or 0 before there is
    anything to draw."""
    if len(history.moments) < 2:
        return 0
    held, _ = parts_of_capacity(snapshot)
    users = (len(_holders(history)) + 1) // 2
    return 1 + len(held) + (1 + users if users else 0)


def history_lines(
    history: History, snapshot: SnapshotView, theme: Theme, columns: int, room: int
) -> list[Line]:
    """Return the panel as `room` lines: resources first, then the users with the largest shares."""
    whole = height_of(history, snapshot)
    if not whole or room < 2:
        return [[spaces(columns)]] * room
    moments = history.moments
    over = show_duration(moments[-1].at_s - moments[0].at_s)
    headings = bool(_holders(history)) + 1
    tall = max(1, min(_TALLEST, (room - headings) // max(1, whole - headings)))
    lines = [_head(f"ALLOCATED, the last {over}", "USED", theme, columns)]
    pairs = list(_resource_cells(history, snapshot, theme))
    if whole > room:
        # Shares go before resources of which nothing was given out.
        pairs = [pair for pair in pairs if any(pair[0].values)] or pairs
        pairs = pairs[: max(2, room - 3)] if headings > 1 else pairs
    for pair in pairs:
        lines += _row(pair, moments, columns, tall)
    shares = list(_share_cells(history, snapshot, theme, most=2 * room))
    if shares and len(lines) + 1 < room:
        lines.append(_head("SHARES, the largest", "", theme, columns))
        for at in range(0, len(shares), 2):
            lines += _row(shares[at : at + 2], moments, columns, tall)
    # No curve is shown in part.
    whole_rows = 1 + (room - 1) // tall * tall if len(lines) > room and tall > 1 else room
    lines = [joined(line, columns) for line in lines[:whole_rows]]
    return [*lines, *([[spaces(columns)]] * (room - len(lines)))]


def _holders(history: History) -> list[str]:
    """Return the paths that had a share at some time, those with the largest now first."""
    most, now = history.most, history.moments[-1].shares
    paths = (path for path, share in most.items() if share)
    return sorted(paths, key=lambda path: (-now.get(path, 0.0), -most[path], path))


def _resource_cells(
    history: History, snapshot: SnapshotView, theme: Theme
) -> Iterator[list[_Cell]]:
    held, used = parts_of_capacity(snapshot)
    for name in held:
        cells = [_Cell(gres_label(name), _curve(history, lambda each: each.held, name),
                       theme["plain"])]  # fmt: skip
        if name in used:
            cells.append(_Cell("", _curve(history, lambda each: each.used, name), theme["good"]))
        yield cells


def _share_cells(
    history: History, snapshot: SnapshotView, theme: Theme, *, most: int
) -> Iterator[_Cell]:
    marks = leaf_marks(snapshot["nodes"])
    for path in _holders(history)[:most]:
        style = theme[marks[path].style if path in marks else "plain"]
        label = show_path(path)
        yield _Cell(label, _curve(history, lambda each: each.shares, path), style)


def _curve(history: History, part: Callable[[Moment], _Parts], name: str) -> list[float | None]:
    """Return the values at each moment: None in a gap, and zero for one that is not there."""
    return [part(each).get(name, 0.0 if each.held else None) for each in history.moments]


def _row(cells: Sequence[_Cell], moments: Sequence[Moment], columns: int, tall: int) -> list[Line]:
    """Return the lines of one or two curves beside each other."""
    half = (columns - 3) // 2
    width = max(_LEAST_CURVE, half - _LABEL - _FIGURE)
    at = [each.at_s for each in moments]
    lines: list[Line] = [[Segment(" ")] for _ in range(tall)]
    for cell in cells:
        curve = bars(highest(at, cell.values, width), 1.0, tall)
        now = cell.values[-1]
        for line, chars in enumerate(curve):
            is_foot = line == tall - 1
            told = f"{now:.0%}" if is_foot and now is not None else ""
            lines[line] += [
                Segment(fit(cell.label if is_foot else "", _LABEL)),
                Segment(chars, cell.style),
                Segment(fit_right(told, _FIGURE) + " "),
            ]
    return lines


def _head(left: str, right: str, theme: Theme, columns: int) -> Line:
    half = (columns - 3) // 2
    words = fit(f" {left}", 1 + half + 1) + fit(f"{'':{_LABEL}}{right}", columns - half - 2)
    return [Segment(words, theme["head"])]
