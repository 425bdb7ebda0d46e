"""Lines of a trace as jobs, or the words why they are none.

Every form of trace (`sim.forms`, `sim.swf`) makes a `Found` of a line; here they become a workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite

from drfd.core.resources import Resources
from drfd.errors import Refused
from drfd.sim.workload import BadLine, SimJob, Workload

#: Beyond these, a figure is not meant: a thousand years, more cores and bytes than there are.
_MOST_S, _MOST = 3.2e10, float(1 << 60)


class Bad(Exception):
    """The line is no job; why, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A job as a line gives it."""

    name: str
    submit_s: float
    run_s: float
    demand: Resources
    limit_s: float | None
    user: str
    group: str | None


def collect(
    found: Iterable[tuple[int, Callable[[], Found]]],
    *,
    source: str,
    kind: str,
    notes: tuple[str, ...] = (),
) -> Workload:
    """The workload of (line number, what reads the line)."""
    jobs: list[tuple[float, int, Found]] = []
    bad: list[BadLine] = []
    # Demands that are equal are one: a trace has hundreds of thousands of lines.
    demands: dict[Resources, Resources] = {}
    for number, read in found:
        try:
            each = read()
        except Bad as reason:
            bad.append(BadLine(number=number, why=str(reason)))
            continue
        jobs.append((each.submit_s, number, each))
    if not jobs:
        why = f": line {bad[0].number}: {bad[0].why}" if bad else ""
        raise Refused("bad-trace", f"there is no job in it{why}")
    jobs.sort(key=lambda entry: entry[:2])
    return Workload(
        jobs=[
            SimJob(
                id=id,
                name=each.name,
                submit_s=each.submit_s,
                run_s=each.run_s,
                demand=demands.setdefault(each.demand, each.demand),
                limit_s=each.limit_s,
                user=each.user,
                group=each.group,
            )
            for id, (_, _, each) in enumerate(jobs, start=1)
        ],
        source=source,
        kind=kind,
        bad=tuple(bad),
        notes=notes,
    )


def number(text: str, what: str, most: float = _MOST) -> float:
    """A finite number from 0 up."""
    try:
        value = float(text)
    except ValueError:
        raise Bad(f"{what} is no number" if text else f"{what} is missing") from None
    if not isfinite(value) or value > most:
        raise Bad(f"{what} is out of all bounds")
    if value < 0:
        raise Bad(f"{what} is negative")
    return value


def seconds(text: str, what: str) -> float:
    return number(text, what, _MOST_S)


def name(text: str, what: str) -> str:
    """A word that somebody or something is called by."""
    if not text:
        raise Bad(f"{what} is missing")
    if len(text) > 200:
        raise Bad(f"{what} is too long")
    return text
