"""Ended jobs: pages of the history, advice from them, and the report of what they used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import asdict, replace

from drfd.core.decisions.job_requests import may_touch
from drfd.core.explain.advice import advise, is_as_asked, kind_of_job
from drfd.core.model.job import Actor, Job
from drfd.daemon.children.children import Children, Program, WorkKind
from drfd.daemon.children.usage_report import UsageTask, advice_view, answers
from drfd.daemon.engine.engine import Engine
from drfd.daemon.lookup.lookup import Lookup, ids_of
from drfd.daemon.lookup.views import Listed, ended_job_view
from drfd.journal.history import PastFilter, read_declared, read_ended
from drfd.protocol import requests as msg
from drfd.protocol.replies import AdviceView, HistoryReply, JobView, ReportReply

#: Jobs of one name that are read for advice.
_SIMILAR = 50

_REPORT = WorkKind(
    *("the report", "no-reporter", "report-failed", "report-busy"), nice=10, cpu_s=120
)
#: Jobs of which a report is made by a thread of the daemon.
_FEW = 50
#: Seconds that a report is waited for.
_REPORT_S = 90.0


@dataclass
class HistoryHandler:
    engine: Engine
    lookup: Lookup
    #: Bytes of the largest GPU that is given out, if the sizes of all are known.
    largest_gpu: Callable[[], int | None]
    has_ranges: Callable[[], bool]
    children: Children = field(default_factory=lambda: Children(_REPORT, patience_s=_REPORT_S))

    async def page(self, actor: Actor, request: msg.HistoryRequest) -> HistoryReply:
        """Return a page, newest first. `after` in it asks for the next page, or is null."""
        past = await self._past(request.past, after=request.after, limit=request.limit + 1)
        return await asyncio.to_thread(
            _read_page, self.engine.journal.path, past, actor, request.limit
        )

    def advice(self, job: Job) -> AdviceView | None:
        """Return the advice that ended jobs of the same kind give, or None. Blocks."""
        past = PastFilter(user=job.spec.user, name=msg.pattern_of(job.spec.name), limit=_SIMILAR)
        kind = kind_of_job(job)
        ended = read_ended(self.engine.journal.path, past)
        similar = [each for each in ended if kind_of_job(each) == kind]
        advice = advise(similar, gpu_bytes=self.largest_gpu(), has_ranges=self.has_ranges())
        # Advice that repeats what was asked for is none.
        return None if advice is None or is_as_asked(advice, job) else advice_view(advice)

    async def report(self, request: msg.ReportRequest) -> ReportReply:
        task = UsageTask(
            journal=str(self.engine.journal.path),
            past=await self._past(request.past),
            by=request.by,
            limit=request.limit,
            least=request.least,
            largest_gpu=self.largest_gpu(),
            has_ranges=self.has_ranges(),
        )
        if await asyncio.to_thread(_is_small, task):
            return await asyncio.to_thread(lambda: next(answers(task)))
        program = Program("drfd.daemon.children.usage_report", task)
        reply: ReportReply = await self.children.ask(lambda: program)
        return reply

    async def _past(
        self,
        asked: msg.HistoryFilter,
        *,
        after: tuple[float, int] | None = None,
        limit: int | None = None,
    ) -> PastFilter:
        """Return the filter with the names of tasks replaced by ids."""
        named = asdict(asked) | {"ids": await ids_of(self.lookup, asked.ids)}
        return PastFilter(**named, after=after, limit=limit)


def _is_small(task: UsageTask) -> bool:
    """Return whether a new process would take longer than the report. Blocks."""
    some = replace(task.past, limit=_FEW + 1)
    return sum(1 for _ in read_declared(Path(task.journal), some)) <= _FEW


def _read_page(path: Path, past: PastFilter, actor: Actor, most: int) -> HistoryReply:
    """Return so many jobs, or as many as fill a page. Blocks."""
    shown = Listed[JobView]()
    last: Job | None = None
    for job in read_ended(path, past):
        if last is not None and (len(shown.rows) == most or shown.is_full):
            return {"jobs": shown.rows, "after": (last.ended_at, last.id)}
        shown.add(ended_job_view(job, private=may_touch(actor, job.spec)))
        last = job
    return {"jobs": shown.rows, "after": None}
