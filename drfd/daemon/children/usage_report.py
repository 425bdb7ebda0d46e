"""The report of what ended jobs used of what they declared: a program, a child process of the
controller, that reads them in the journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec

from drfd.common.units import AXES
from drfd.core.explain.advice import LAST, Advice, advice_options, advise, cores_note
from drfd.core.explain.ended_jobs import UsageAccounts, largest_rows
from drfd.core.model.account import Account
from drfd.core.model.job import Job
from drfd.core.usage import Curve, thinned
from drfd.daemon.children.answers import run_program
from drfd.daemon.lookup.views import curve_view, demand_view, sums_view
from drfd.devices.gpu import GPU
from drfd.journal.history import PastFilter, read_curves, read_declared, read_ended
from drfd.protocol import replies

#: The most points of a job's curve in a report.
_POINTS = 12

#: The parts of a row's key, by what the report is grouped by.
_KEYS = {
    "job": ("id", "name", "user"),
    "name": ("name", "user"),
    "user": ("user",),
    "pool": ("pool",),
}


#: Figures of an account that are 0, or null, where they are not known.
_SUMS: Sequence[str] = (
    *("jobs", "runs", "run_ms", "read_bytes", "written_bytes", "demand_max", "peak_max"),
    *("throttled_us", "throttled_unknown_jobs", "out_of_memory_jobs", "timeout_jobs"),
)
_NULLABLE = ("gpu_memory_peak_max", "gpu_memory_single_peak_max", "beyond_us")


def account_view(account: Account) -> replies.AccountView:
    """Return the sums in core-microseconds, byte-milliseconds (per second for rates), milliseconds
    (of one instance for countable resources) and bytes."""
    held = ((name.partition(".")[::2], figure) for name, figure in sorted(account.items()))
    view = {
        **{name: account.get(name, 0) for name in _SUMS},
        **{axis: _amount(account, axis) for axis in (*AXES, GPU)},
        "gres_ms": {name: figure for (kind, name), figure in held if kind == "gres_ms"},
        **{name: account.get(name) for name in _NULLABLE},
    }
    return cast(replies.AccountView, view)


def _amount(account: Account, axis: str) -> replies.AccountedView:
    """Return the amounts of a resource, of which what was declared where the use is not known does
    not count as wasted."""
    parts = ("declared", "used", "unknown")
    declared, used, unknown = (account.get(f"{axis}.{part}", 0) for part in parts)
    return {
        "declared": declared,
        "used": used,
        "unknown": unknown,
        "wasted": declared - used,
        "efficiency": round(used / declared, 4) if declared else None,
    }


def advice_view(advice: Advice | None) -> replies.AdviceView | None:
    if advice is None:
        return None
    view = {
        **sums_view(advice.demand),
        **({"cores_max": advice.cores_max_milli / 1000} if advice.cores_max_milli else {}),
        "time_limit_s": advice.time_limit_s,
        "gres": dict(advice.demand.gres),
        "gres_memory": dict(advice.demand.gres_memory),
        "options": advice_options(advice),
        "jobs": advice.jobs,
        "short_jobs": advice.short_jobs,
        "of_last": LAST,
    }
    note = cores_note(advice)
    if note is not None:
        view["cores_note"] = note
    return cast(replies.AdviceView, view)


class UsageTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which ended jobs are in the report, and how: see `ReportRequest`."""

    journal: str
    past: PastFilter
    by: str
    limit: int
    least: int
    #: See `advise`.
    largest_gpu: int | None
    has_ranges: bool


def answers(task: UsageTask) -> Iterator[replies.ReportReply]:
    """Read the jobs. Rows and `others` add up to `total`. Raises HostError."""
    path = Path(task.journal)
    # Read twice, so that only the rows that are shown are kept in memory.
    shown = largest_rows(read_declared(path, task.past), task.by, task.limit)
    accounts = UsageAccounts(task.by, shown)
    accounts.take(read_ended(path, task.past))
    # The curve of one job says little about all jobs of a user or pool.
    has_curves = task.by not in ("user", "pool")
    curves = read_curves(path, [job.id for job in accounts.latest.values()] if has_curves else [])
    rows = []
    # The jobs of a row may have been removed since it was chosen.
    for row in filter(accounts.latest.__contains__, accounts.rows):
        advice = advise(
            accounts.similar(row),
            least=task.least,
            gpu_bytes=task.largest_gpu,
            has_ranges=task.has_ranges,
        )
        view: dict[str, object] = {
            **dict(zip(_KEYS[task.by], row, strict=True)),
            **account_view(accounts.rows[row]),
            "advice": advice_view(advice),
        }
        if has_curves:
            job = accounts.latest[row]
            view["curve"] = _curve_view(job, curves.get(job.id))
        rows.append(cast(replies.ReportRow, view))
    yield {
        "by": task.by,
        "rows": rows,
        "others": account_view(accounts.rest) if accounts.rest else None,
        "total": account_view(accounts.total()),
    }


def _curve_view(job: Job, curve: Curve | None) -> replies.JobCurveView | None:
    """Return the curve of a job in few points, if there is one."""
    if curve is None:
        return None
    few = Curve(curve.attempt, tuple(thinned(curve.points, _POINTS)))
    points = curve_view(few, job.spec.demand)
    return {"id": job.id, "demand": demand_view(job.spec), **points}


if __name__ == "__main__":
    run_program(UsageTask, answers)
