"""What simulations of a trace have given, as curves: shares, waits, use.

Over time everything is a mean over one of many equal stretches, so that a curve shows what was held
and not what happened to be held at a moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from drfd.core.resources import Vector
from drfd.sim.driver import Run
from drfd.sim.figures import Panel, Point

#: Stretches of time.
_STRETCHES = 300
#: More curves than that are not told apart any more.
_MOST_CURVES = 8
#: Points of a curve of waits.
_QUANTILES = 200
_DAY_S = 86400

#: For what is drawn along the time: its unit in seconds, and the unit's name.
_UNITS = ((_DAY_S, "days"), (3600, "hours"), (1, "seconds"))


def panels_of(runs: Mapping[str, Run]) -> list[Panel]:
    """Of runs of one workload, by their names; runs in which nothing ran are left out."""
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
    """Which part of the jobs waited no longer than so."""
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
    """A stretch of time, cut into equal ones."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self.first_s = first_s
        self.step_s = (last_s - first_s) / _STRETCHES or 1.0
        length_s = last_s - first_s
        fitting = [each for each in _UNITS if length_s > 2 * each[0]]
        self.unit_s, self.unit = (fitting or _UNITS[-1:])[0]

    def points(self, values: Sequence[float]) -> list[Point]:
        return [(at * self.step_s / self.unit_s, value) for at, value in enumerate(values)]

    def place(self, at_s: float) -> tuple[int, float]:
        """In which stretch, and how far in it."""
        exact = (at_s - self.first_s) / self.step_s
        whole = min(_STRETCHES - 1, int(exact))
        return whole, exact - whole


#: Of each leaf and axis, the mean amount held in each stretch.
_Held = dict[str, list[list[float]]]


def _held(run: Run, span: _Span) -> _Held:
    """A job changes the mean at two places: from the stretch in which it starts, and again from
    that in which it ends. All others follow by summing up."""
    axes = len(run.rules.room)
    changes: _Held = {}
    for at_s, leaf, demand, sign in _changes(run):
        rows = changes.setdefault(leaf, [[0.0] * (_STRETCHES + 1) for _ in range(axes)])
        whole, part = span.place(at_s)
        for axis, amount in enumerate(demand):
            if amount:
                rows[axis][whole] += sign * amount * (1 - part)
                rows[axis][whole + 1] += sign * amount * part
    return {
        leaf: [list(accumulate(row))[:_STRETCHES] for row in rows] for leaf, rows in changes.items()
    }


def _changes(run: Run) -> Iterator[tuple[float, str, Vector, int]]:
    for at_s, leaf, demand, sign in run.changes():
        yield at_s, leaf, run.rules.axes.vector(demand), sign


def _use(runs: Mapping[str, Run], held: Mapping[str, _Held], span: _Span) -> Iterator[Panel]:
    """Each resource that anybody asks for."""
    rules = next(iter(runs.values())).rules
    for axis, (name, top) in enumerate(zip(rules.axes.names, rules.room, strict=True)):
        curves = {
            label: span.points([amount / top for amount in _together(leaves, axis)])
            for label, leaves in held.items()
            if top
        }
        if any(y for points in curves.values() for _, y in points):
            yield Panel(
                title=f"Use of {name}", x=span.unit, y="part in use", curves=curves, top=1.0,
                steps=True,
            )  # fmt: skip


def _together(leaves: _Held, axis: int) -> list[float]:
    return [sum(column) for column in zip(*(rows[axis] for rows in leaves.values()), strict=True)]


def _shares(label: str, run: Run, leaves: _Held, span: _Span) -> Panel:
    """The dominant shares of those who held most."""
    shares = {leaf: _dominant(rows, run.rules.room) for leaf, rows in leaves.items()}
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
