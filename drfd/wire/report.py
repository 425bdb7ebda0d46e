"""What clients see of a report: exact sums in small units, and what to ask for next time."""

from __future__ import annotations

from collections.abc import Mapping

from drfd.core.account import Account, Amount, Books, Row
from drfd.core.advice import LAST, Advice, advise
from drfd.core.curve import Curve
from drfd.core.job import Job
from drfd.core.series import thinned
from drfd.wire.snapshot import curve_view
from drfd.wire.views import View

#: Of a job's curve in a report.
_POINTS = 12

#: What the parts of a row's key are called.
KEYS = {"job": ("id", "name", "user"), "name": ("name", "user"), "user": ("user",),
        "pool": ("pool",)}  # fmt: skip


def report_view(books: Books, *, limit: int, least: int) -> View:
    """`least`: advice rests on so many successes at least. The rows and the others add up to the
    total."""
    rows, others = books.largest(limit)
    return {
        "by": books.by,
        "rows": [_row(books, row, account, least) for row, account in rows],
        "others": None if others is None else account_view(others),
        "total": account_view(books.total()),
    }


def add_curves(view: View, books: Books, curves: Mapping[int, Curve]) -> View:
    """The same with how the last job of each row went, in few points; null: not known."""
    for shown in view["rows"]:
        job = books.latest[tuple(shown[key] for key in KEYS[books.by])]
        curve = curves.get(job.id)
        shown["curve"] = None if curve is None else _curve_view(job, curve)
    return view


def _curve_view(job: Job, curve: Curve) -> View:
    points = curve_view(Curve.of(curve.attempt, thinned(curve.points(), _POINTS)))
    asked = job.spec.demand
    demand = {"cores": asked.cores_milli / 1000, "memory": asked.memory_bytes}
    return {"id": job.id, "demand": demand, **points}


def _row(books: Books, row: Row, account: Account, least: int) -> View:
    advice = advise(books.similar(row), least=least)
    key = dict(zip(KEYS[books.by], row, strict=True))
    return key | account_view(account) | {"advice": advice_view(advice)}


def account_view(account: Account) -> View:
    """Core-microseconds, byte-milliseconds (per second, of rates), milliseconds, bytes."""
    return {
        "jobs": account.jobs,
        "run_ms": account.run_ms,
        "cores": _amount(account.cores),
        "memory": _amount(account.memory),
        "read": _amount(account.read),
        "write": _amount(account.write),
        "read_bytes": account.read_bytes,
        "written_bytes": account.written_bytes,
        "demand_max": account.memory_declared_bytes,
        "peak_max": account.memory_peak_bytes,
        "throttled_us": account.throttled_us,
        "throttled_unknown_jobs": account.throttled_unknown_jobs,
        "out_of_memory_jobs": account.out_of_memory_jobs,
        "timeout_jobs": account.timeout_jobs,
        "gres_ms": dict(account.gres_ms),
    }


def _amount(amount: Amount) -> View:
    efficiency = amount.efficiency
    return {
        "declared": amount.declared,
        "used": amount.used,
        "unknown": amount.unknown,
        "wasted": amount.wasted,
        "efficiency": None if efficiency is None else round(float(efficiency), 4),
    }


def advice_view(advice: Advice | None) -> View | None:
    if advice is None:
        return None
    return {
        "cores": advice.cores_milli / 1000,
        "memory": advice.memory_bytes,
        "time_limit_s": advice.time_limit_s,
        "read": advice.read_bps,
        "write": advice.write_bps,
        "gres": dict(advice.gres),
        "options": advice.options(),
        "jobs": advice.jobs,
        "short_jobs": advice.short_jobs,
        "of_last": LAST,
    }
