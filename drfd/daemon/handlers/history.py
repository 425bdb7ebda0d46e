"""Ended jobs: pages of the history, and the report of what they used of what they declared.

Both are read in a thread, over a read-only connection to the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from drfd.common.units import AXES
from drfd.core.decisions.job_requests import may_touch
from drfd.core.explain.advice import (
    LAST,
    LEAST,
    Advice,
    advice_options,
    advise,
    cores_note,
    is_as_asked,
    kind_of_job,
)
from drfd.core.explain.ended_jobs import Row, UsageAccounts
from drfd.core.fairness.rules import ROOT
from drfd.core.model.account import Account, AccountedAmount
from drfd.core.model.job import Actor, Job
from drfd.core.usage import Curve, thinned
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.lookup import Lookup, ids_of
from drfd.daemon.lookup.views import curve_view, demand_view, ended_job_view, packed, sums_view
from drfd.daemon.users.loop_time import CooperativeYield
from drfd.devices.gpu import GPU
from drfd.journal.history import PastFilter, read_curves, read_ended
from drfd.protocol import requests as msg
from drfd.protocol.replies import (
    AccountedView,
    AccountView,
    AdviceView,
    HistoryReply,
    JobCurveView,
    JobView,
    ReportReply,
    ReportRow,
)

#: Jobs of one name that are read for advice.
_SIMILAR = 50

#: Returns advice from similar jobs, newest first.
Advise = Callable[[Sequence[Job]], Advice | None]


@dataclass
class HistoryHandler:
    engine: Engine
    lookup: Lookup
    #: Bytes of the largest GPU that is given out, if the sizes of all are known.
    largest_gpu: Callable[[], int | None]
    lends_cores: Callable[[], bool]

    async def page(self, actor: Actor, request: msg.HistoryRequest) -> HistoryReply:
        """Return a page, newest first. `after` in it asks for the next page, or is null."""
        past = await self._past(request.past, after=request.after, limit=request.limit + 1)
        jobs = await asyncio.to_thread(lambda: list(read_ended(self.engine.journal.path, past)))
        page = jobs[: request.limit]
        after = None
        if len(jobs) > len(page):
            after = (page[-1].ended_at, page[-1].id)
        shown: list[JobView] = []
        yielding = CooperativeYield()
        for job in page:
            row = ended_job_view(job, private=may_touch(actor, job.spec))
            shown.append(packed(row, len(shown)))
            await yielding.maybe_yield()
        return {"jobs": shown, "after": after}

    def advice(self, job: Job) -> AdviceView | None:
        """Return the advice that ended jobs of the same kind give, or None. Blocks."""
        past = PastFilter(user=job.spec.user, name=job.spec.name, limit=_SIMILAR)
        kind = kind_of_job(job)
        ended = read_ended(self.engine.journal.path, past)
        similar = [each for each in ended if kind_of_job(each) == kind]
        advice = self._advise()(similar)
        # Advice that repeats what was asked for is none.
        return None if advice is None or is_as_asked(advice, job) else advice_view(advice)

    def _advise(self, *, least: int = LEAST) -> Advise:
        return partial(
            advise, least=least, gpu_bytes=self.largest_gpu(), lends_cores=self.lends_cores()
        )

    async def report(self, request: msg.ReportRequest) -> ReportReply:
        return await asyncio.to_thread(self._report, request, await self._past(request.past))

    def _report(self, request: msg.ReportRequest, past: PastFilter) -> ReportReply:
        accounts = UsageAccounts(request.by, most_jobs=request.limit)
        accounts.take(read_ended(self.engine.journal.path, past, commands=False))
        view = report_view(
            accounts, limit=request.limit, advise_from=self._advise(least=request.least)
        )
        if request.by in ("user", "pool"):
            # The curve of one job says little about all jobs of a user or pool.
            return view
        ids = [job.id for job in accounts.latest.values()]
        return add_curves(view, accounts, read_curves(self.engine.journal.path, ids))

    async def _past(
        self,
        asked: msg.HistoryFilter,
        *,
        after: tuple[float, int] | None = None,
        limit: int | None = None,
    ) -> PastFilter:
        pool = asked.pool
        return PastFilter(
            ids=tuple(await ids_of(self.lookup, asked.ids)),
            user=asked.user,
            states=tuple(sorted(asked.states)),
            name_like=asked.name,
            group=asked.group,
            pool=None if pool is None else f"{ROOT}.{pool.removeprefix(f'{ROOT}.')}",
            since_s=asked.since_s,
            until_s=asked.until_s,
            after=after,
            limit=limit,
        )


# -- the report ----------------------------------------------------------------------------------

#: The most points of a job's curve in a report.
_POINTS = 12

_KeyPart = Literal["id", "name", "user", "pool"]
#: The parts of a row's key, by what the report is grouped by.
KEYS: dict[str, tuple[_KeyPart, ...]] = {
    "job": ("id", "name", "user"),
    "name": ("name", "user"),
    "user": ("user",),
    "pool": ("pool",),
}


def report_view(accounts: UsageAccounts, *, limit: int, advise_from: Advise) -> ReportReply:
    """Return the report. Rows and `others` add up to `total`."""
    rows, others = accounts.largest(limit)
    return {
        "by": accounts.by,
        "rows": [_row(accounts, row, account, advise_from) for row, account in rows],
        "others": None if others is None else account_view(others),
        "total": account_view(accounts.total()),
    }


def add_curves(
    view: ReportReply, accounts: UsageAccounts, curves: Mapping[int, Curve]
) -> ReportReply:
    """Add to each row the curve of its last job, in few points, or null if there is none."""
    for shown in view["rows"]:
        job = accounts.latest[cast(Row, tuple(shown[key] for key in KEYS[accounts.by]))]
        curve = curves.get(job.id)
        shown["curve"] = None if curve is None else _curve_view(job, curve)
    return view


def _curve_view(job: Job, curve: Curve) -> JobCurveView:
    few = Curve.of(curve.attempt, thinned(curve.points(), _POINTS))
    points = curve_view(few, job.spec.demand)
    return {"id": job.id, "demand": demand_view(job.spec), **points}


def _row(accounts: UsageAccounts, row: Row, account: Account, advise_from: Advise) -> ReportRow:
    advice = advise_from(accounts.similar(row))
    key: dict[str, object] = dict(zip(KEYS[accounts.by], row, strict=True))
    found: dict[str, object] = {**key, **account_view(account), "advice": advice_view(advice)}
    return cast(ReportRow, found)


def account_view(account: Account) -> AccountView:
    """Return the sums in core-microseconds, byte-milliseconds (per second for rates), milliseconds
    (of one instance for countable resources) and bytes."""
    view = {
        "jobs": account.jobs,
        "runs": account.runs,
        "run_ms": account.run_ms,
        **{axis: _amount(account.amount(axis)) for axis in (*AXES, GPU)},
        "read_bytes": account.read_bytes,
        "written_bytes": account.written_bytes,
        "demand_max": account.memory_declared_bytes,
        "peak_max": account.memory_peak_bytes,
        "throttled_us": account.throttled_us,
        "throttled_unknown_jobs": account.throttled_unknown_jobs,
        "out_of_memory_jobs": account.out_of_memory_jobs,
        "timeout_jobs": account.timeout_jobs,
        "gres_ms": dict(account.gres_ms),
        "gpu_memory_peak_max": account.gpu_memory_peak_bytes,
        "gpu_memory_single_peak_max": account.gpu_memory_single_peak_bytes,
        "lent_us": account.lent_us,
    }
    return cast(AccountView, view)


def _amount(amount: AccountedAmount) -> AccountedView:
    efficiency = amount.efficiency
    return {
        "declared": amount.declared,
        "used": amount.used,
        "unknown": amount.unknown,
        "wasted": amount.wasted,
        "efficiency": None if efficiency is None else round(float(efficiency), 4),
    }


def advice_view(advice: Advice | None) -> AdviceView | None:
    if advice is None:
        return None
    ends = sums_view(advice.most)
    view: dict[str, Any] = {
        **sums_view(advice.demand),
        **{f"{name}_max": end for name, end in ends.items() if end},
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
    return cast(AdviceView, view)
