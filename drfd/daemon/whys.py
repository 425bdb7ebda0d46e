"""`drf why`: the reason or the cause, its evidence, and what would change it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from drfd.core import stimuli as st
from drfd.core.advice import advise
from drfd.core.dependencies import may_become_eligible
from drfd.core.ending import explain_end
from drfd.core.job import Job, JobState
from drfd.core.reasons import ReasonCode
from drfd.core.whatif import MOST_JOBS, smaller_demand
from drfd.daemon.engine import Engine
from drfd.daemon.lookup import Lookup
from drfd.daemon.records import Records
from drfd.wire.parts import Ref
from drfd.wire.report import advice_view
from drfd.wire.views import View, conditions_view

#: Reasons that a smaller demand may do away with.
_SHORT = {
    ReasonCode.RESOURCES,
    ReasonCode.FAIR_SHARE,
    ReasonCode.RESERVATION,
    ReasonCode.LIMIT,
}


@dataclass
class Whys:
    engine: Engine
    lookup: Lookup
    records: Records

    async def why(self, actor: st.Actor, ref: Ref) -> View:
        """The job, `notes` in sentences, and the `advice` of an ended job."""
        job_id = self.lookup.id_of(ref)
        array = self.lookup.own_array(actor, job_id)
        if array is not None:
            job_id = self.lookup.telling(array).id
        job = self.lookup.own_job(actor, job_id)
        view = self.lookup.view(job, actor) | conditions_view(job, self.lookup.name_of)
        reply: View = {"job": view, "notes": [], "advice": None}
        if job.state is JobState.ENDED:
            reply["notes"] = explain_end(job)
            reply["advice"] = await asyncio.to_thread(self._advice, job)
        elif self.engine.ledger.wanted(job) is not None or may_become_eligible(job):
            view["expected_start_at"] = await self._start_s(job)
            if view["reason"] is not None and view["reason"]["code"] in _SHORT:
                reply["notes"] = await self._instead(job)
        return reply

    async def _start_s(self, job: Job) -> float | None:
        build = self.engine.future()
        return await asyncio.to_thread(lambda: build().start_s(job.id))

    async def _instead(self, job: Job) -> list[str]:
        if len(self.engine.ledger.jobs) > MOST_JOBS:
            return []
        build = self.engine.future()
        words = await asyncio.to_thread(smaller_demand, build, job)
        return [] if not words else [f"submitted with {' '.join(words)} it would start now"]

    def _advice(self, job: Job) -> View | None:
        return advice_view(advise(self.records.similar(job)))
