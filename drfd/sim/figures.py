"""Curves as pure data, and those of simulated traces: means over many equal intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from drfd.core.model.machine import Vector
from drfd.sim.driver import Run

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
    #: Whether the x axis is logarithmic; then no x is below 1.
    log_x: bool = False


#: Number of intervals of a curve over time.
_STRETCHES = 300
#: Most curves of shares on one panel, as many as can be told apart.
_MOST_CURVES = 8
#: Number of points of a curve of waits.
_QUANTILES = 200
_DAY_S = 86400

#: Units of a time axis: (seconds, name).
_UNITS = ((_DAY_S, "days"), (3600, "hours"), (1, "seconds"))


def panels_of(runs: Mapping[str, Run]) -> list[Panel]:
    """Return the panels of runs of one workload, by name, without runs in which no job ran."""
    runs = {label: run for label, run in runs.items() if run.ran}
    if not runs:
        return []
    first_s = min(ran.start_s for run in runs.values() for ran in run.ran)
    last_s = max(ran.end_s for run in runs.values() for ran in run.ran)
    span = _Span(first_s, last_s)
    held = {label: _held(run, span) for label, run in runs.items()}
    return [
        waits(runs),
        *_use(runs, held, span),
        *(_shares(label, run, held[label], span) for label, run in runs.items()),
    ]


def waits(runs: Mapping[str, Run]) -> Panel:
    """Return the panel of waits: the part of the jobs that waited no longer than x."""
    curves: dict[str, list[Point]] = {}
    for label, run in runs.items():
        times = sorted(max(1.0, ran.wait_s) for ran in run.ran)
        places = {min(len(times) - 1, len(times) * at // _QUANTILES) for at in range(_QUANTILES)}
        curves[label] = [
            (times[at], (at + 1) / len(times)) for at in sorted({*places, len(times) - 1})
        ]
    return Panel(
        title="Waits: the part of the jobs that waited no longer",
        x="seconds", y="part of the jobs", curves=curves, top=1.0, steps=True, log_x=True,
    )  # fmt: skip


class _Span:
    def __init__(self, first_s: float, last_s: float) -> None:
        self.first_s = first_s
        self.step_s = (last_s - first_s) / _STRETCHES or 1.0
        length_s = last_s - first_s
        fitting = [each for each in _UNITS if length_s > 2 * each[0]]
        self.unit_s, self.unit = (fitting or _UNITS[-1:])[0]

    def points(self, values: Sequence[float]) -> list[Point]:
        return [(at * self.step_s / self.unit_s, value) for at, value in enumerate(values)]

    def place(self, at_s: float) -> tuple[int, float]:
        """Return the index of the interval, and the position in it from 0 to 1."""
        exact = (at_s - self.first_s) / self.step_s
        whole = min(_STRETCHES - 1, int(exact))
        return whole, exact - whole


#: Leaf → for each axis, the mean amount held in each interval.
_Held = dict[str, list[list[float]]]


def _held(run: Run, span: _Span) -> _Held:
    """Return the mean amounts held: running sums of what starts and ends in each interval."""
    axes = len(run.rules.shares.capacity)
    changes: _Held = {}
    for at_s, leaf, demand, _, sign in run.changes():
        if not sign:
            continue
        rows = changes.setdefault(leaf, [[0.0] * (_STRETCHES + 1) for _ in range(axes)])
        whole, part = span.place(at_s)
        for axis, amount in enumerate(demand):
            if amount:
                rows[axis][whole] += sign * amount * (1 - part)
                rows[axis][whole + 1] += sign * amount * part
    return {
        leaf: [list(accumulate(row))[:_STRETCHES] for row in rows] for leaf, rows in changes.items()
    }


def _use(runs: Mapping[str, Run], held: Mapping[str, _Held], span: _Span) -> Iterator[Panel]:
    """Yield a panel for each resource that a job asks for."""
    rules = next(iter(runs.values())).rules
    for axis, (name, top) in enumerate(zip(rules.axes.names, rules.shares.capacity, strict=True)):
        curves = dict[str, list[Point]]()
        for label, leaves in held.items() if top else ():
            columns = zip(*(rows[axis] for rows in leaves.values()), strict=True)
            curves[label] = span.points([sum(column) / top for column in columns])
        if any(y for points in curves.values() for _, y in points):
            yield Panel(
                title=f"Use of {name}", x=span.unit, y="part in use", curves=curves, top=1.0,
                steps=True,
            )  # fmt: skip


def _shares(label: str, run: Run, leaves: _Held, span: _Span) -> Panel:
    """Return the panel of the dominant shares of those who held most."""
    shares = {leaf: _dominant(rows, run.rules.shares.capacity) for leaf, rows in leaves.items()}
    most = sorted(shares, key=lambda leaf: (-sum(shares[leaf]), leaf))[:_MOST_CURVES]
    left = len(shares) - len(most)
    others = f"; {left} others held less" if left else ""
    return Panel(
        title=f"Dominant shares by user, {label}{others}",
        x=span.unit, y="share", top=1.0, steps=True,
        curves={leaf.removeprefix("root."): span.points(shares[leaf]) for leaf in most},
    )  # fmt: skip


def _dominant(rows: list[list[float]], room: Vector) -> list[float]:
    parts = [[amount / top for amount in row] for row, top in zip(rows, room, strict=True) if top]
    return [max(0.0, *column) for column in zip(*parts, strict=True)]
