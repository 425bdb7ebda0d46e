"""Jobs as clients ask for them: looked up, selected, shown with the reason why they wait."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fnmatch import fnmatchcase

from drfd.core import stimuli as st
from drfd.core.asked import may_touch
from drfd.core.job import Job
from drfd.core.reasons import explain_wait
from drfd.daemon.engine import Engine
from drfd.daemon.meter import Meter
from drfd.errors import NotPermitted, Refused
from drfd.wire import messages as msg
from drfd.wire import views
from drfd.wire.views import View

#: Of a time nearer than this, the seconds are told too.
_NEAR_S = 600


@dataclass
class Lookup:
    """Reads the books, and the journal for what is over."""

    engine: Engine
    meter: Meter

    def selected(self, select: msg.Selection) -> list[Job]:
        """Live jobs that pass the selection."""
        return [job for job in self.engine.ledger.jobs.values() if _passes(job, select)]

    def ended(self, request: msg.Status) -> list[Job]:
        if not request.ended:
            return []
        select = request.select
        ended = self.engine.journal.ended(
            limit=request.ended, user=select.user, states=select.states
        )
        return [job for job in ended if _passes(job, select)]

    def any_job(self, job_id: int) -> Job:
        job = self.engine.ledger.jobs.get(job_id) or self.engine.journal.job(job_id)
        if job is None:
            raise Refused("no-such-job", f"there is no job {job_id}")
        return job

    def own_job(self, actor: st.Actor, job_id: int) -> Job:
        job = self.any_job(job_id)
        if not may_touch(actor, job.spec.uid):
            raise NotPermitted("not-yours", f"job {job_id} belongs to {job.spec.user}")
        return job

    def view(self, job: Job, actor: st.Actor) -> View:
        reason = explain_wait(
            job,
            self.engine.ledger,
            self.engine.scheduler.last_plan,
            self.engine.rules,
            clock_time,
            can_launch=self.engine.host.is_ready(),
        )
        return views.job_view(
            job,
            reason=reason,
            usage=self.meter.usage(job),
            private=may_touch(actor, job.spec.uid),
            expected_start_s=self._expected_start_s(job),
        )

    def full_view(self, job: Job, actor: st.Actor) -> View:
        """With what is not worth a look at the kernel for every job of a list."""
        conditions = views.conditions_view(job)
        return self.view(job, actor) | conditions | {"cpus": self.meter.pinned_cpus(job)}

    def _expected_start_s(self, job: Job) -> float | None:
        """Known of the jobs that something is reserved for."""
        last = self.engine.scheduler.last_plan
        if last is None or self.engine.ledger.wanted(job) is None:
            return None
        kept = last.reservation_of(job.id)
        return None if kept is None else kept.start_s


def _passes(job: Job, select: msg.Selection) -> bool:
    return (
        (select.user is None or job.spec.user == select.user)
        and (select.name is None or _is_like(job.spec.name, select.name))
        and (not select.states or job.shown_state in select.states)
    )


def _is_like(name: str, pattern: str) -> bool:
    # A job may be called "[red]", which as a pattern is one letter.
    return name == pattern or fnmatchcase(name, pattern)


def clock_time(at_s: float) -> str:
    """A time of day, with the date when it is not today, to the second when it is near."""
    then, now = time.localtime(at_s), time.localtime()
    if abs(at_s - time.time()) < _NEAR_S:
        return time.strftime("%H:%M:%S", then)
    same_day = then[:3] == now[:3]
    return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", then)
