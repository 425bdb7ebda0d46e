"""What clients see of everything at once, again and again: short rows that all may see."""

from __future__ import annotations

from drfd.core.array import Group
from drfd.core.curve import Curve
from drfd.core.job import Job, JobState
from drfd.core.reasons import Reason
from drfd.core.resources import Resources
from drfd.core.series import Point
from drfd.indices import Ids, show_spans
from drfd.wire.views import View, reason_view, resources_view

#: A label names so many ranges of tasks at most.
_MOST_RANGES = 8


def row_view(
    row: Job | Group,
    *,
    reason: Reason | None,
    expected_start_s: float | None,
    now: Point | None,
    peak_bytes: int | None,
) -> View:
    """One job, or tasks of an array that are all alike. Nothing in it is only for its owner."""
    job = row.job if isinstance(row, Group) else row
    spec = job.spec
    ended = job.state is JobState.ENDED
    return {
        "id": row.array.id if isinstance(row, Group) else job.id,
        "label": group_label(row) if isinstance(row, Group) else job.label,
        "array_id": job.array_id,
        "array_index": job.array_index,
        "tasks": row.size if isinstance(row, Group) else 1,
        "name": spec.name,
        "user": spec.user,
        "pool": spec.pool,
        "state": job.shown_state,
        "reason": reason_view(reason),
        "demand": resources_view(spec.demand),
        "time_limit_s": spec.time_limit_s,
        "priority": spec.priority,
        "attempt": job.attempt,
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at if ended else None,
        "expected_start_at": expected_start_s,
        "outcome": job.outcome.value if ended and job.outcome is not None else None,
        "exit_code": job.exit_code,
        "signal": job.signal,
        "now": None if now is None else now_view(now, job, peak_bytes),
    }


def group_label(group: Group) -> str:
    """`42_[8-99]`."""
    shown: list[Ids] = list(group.ids[:_MOST_RANGES])
    more = ",…" if len(group.ids) > _MOST_RANGES else ""
    return f"{group.array.id}_[{show_spans(group.array.spans_of(*shown))}{more}]"


def now_view(now: Point, job: Job | None = None, peak_bytes: int | None = None) -> View:
    """Null is not known."""
    cores = now.cores_milli
    if job is not None and job.suspended_at is not None:
        # No samples are taken of what stands still.
        cores = 0
    view: View = {
        "cores": None if cores is None else cores / 1000,
        "memory": now.memory_bytes,
        "read": now.read_bps,
        "write": now.write_bps,
    }
    return view | {"memory_peak": peak_bytes}


class Sums:
    """What several jobs use now, all together; null where nothing is known of any."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[str, float | None] = dict.fromkeys(("cores", "memory", "read", "write"))

    def add(self, now: View) -> None:
        for name, sum_ in self._sums.items():
            if now[name] is not None:
                self._sums[name] = (sum_ or 0) + now[name]

    @property
    def view(self) -> View:
        cores = self._sums["cores"]
        return self._sums | {"cores": None if cores is None else round(cores, 3)}


def usage_view(curve: Curve | None, demand: Resources | None) -> View:
    return {
        "usage": curve_view(curve or Curve(0)),
        "demand": None if demand is None else resources_view(demand),
    }


def curve_view(curve: Curve) -> View:
    """The points, the oldest first: means of the time that ends then; null is not known."""
    points = list(curve.points())
    return {
        "at": [each.end_ms / 1000 for each in points],
        "cores": [None if (c := each.cores_milli) is None else c / 1000 for each in points],
        "memory": [each.memory_bytes for each in points],
        "read": [each.read_bps for each in points],
        "write": [each.write_bps for each in points],
    }
