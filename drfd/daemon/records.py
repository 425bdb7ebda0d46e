"""What is asked of jobs that are over: read beside the loop, over the journal's own second door."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from drfd.core import stimuli as st
from drfd.core.account import Books
from drfd.core.asked import may_touch
from drfd.core.job import Job
from drfd.core.rules import ROOT
from drfd.daemon.engine import Engine
from drfd.daemon.lookup import Lookup
from drfd.journal.past import Past, read_curves, read_ended
from drfd.wire import messages as msg
from drfd.wire import parts
from drfd.wire.report import add_curves, report_view
from drfd.wire.used import ended_view
from drfd.wire.views import View

#: Among so many jobs of a name the last that teach something are looked for.
_SIMILAR = 50


@dataclass
class Records:
    engine: Engine
    lookup: Lookup

    async def answer(self, actor: st.Actor, request: msg.History | msg.Report) -> View:
        if isinstance(request, msg.History):
            return await self._history(actor, request)
        # A line for each of a million jobs is nothing to read: of these, the latest.
        limit = request.limit if request.by == "job" else None
        past = self._past(request.past, limit=limit)
        return await asyncio.to_thread(self._report, request, past)

    async def _history(self, actor: st.Actor, request: msg.History) -> View:
        """A page, newest first; `after` asks for the next one, null when there is none."""
        past = self._past(request.past, after=request.after, limit=request.limit + 1)
        jobs = await asyncio.to_thread(self._read, past)
        page = jobs[: request.limit]
        after = None
        if len(jobs) > len(page):
            after = (page[-1].ended_at, page[-1].id)
        shown = [ended_view(job, private=may_touch(actor, job.spec.uid)) for job in page]
        return {"jobs": shown, "after": after}

    def similar(self, job: Job) -> list[Job]:
        """Ended jobs like this one, newest first; blocks."""
        past = Past(user=job.spec.user, name=job.spec.name, limit=_SIMILAR)
        return self._read(past)

    def _report(self, request: msg.Report, past: Past) -> View:
        books = Books(request.by)
        books.take(read_ended(self.engine.journal.path, past))
        view = report_view(books, limit=request.limit, least=request.least)
        if request.by in ("user", "pool"):
            # Of all kinds of jobs together, none stands for the others.
            return view
        ids = [job.id for job in books.latest.values()]
        return add_curves(view, books, read_curves(self.engine.journal.path, ids))

    def _read(self, past: Past) -> list[Job]:
        return list(read_ended(self.engine.journal.path, past))

    def _past(
        self,
        asked: parts.Past,
        *,
        after: tuple[float, int] | None = None,
        limit: int | None = None,
    ) -> Past:
        pool = asked.pool
        return Past(
            ids=tuple(map(self.lookup.id_of, asked.ids)),
            user=asked.user,
            states=tuple(asked.states),
            name=asked.name,
            pool=None if pool is None else f"{ROOT}.{pool.removeprefix(f'{ROOT}.')}",
            since_s=asked.since_s,
            until_s=asked.until_s,
            after=after,
            limit=limit,
        )
