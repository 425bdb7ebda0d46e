"""One function per verb: a checked request and who asks → the reply.

What changes anything goes through the engine as a stimulus; what only looks reads the books, which
between two turns hold nothing that is not durable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from drfd import __version__
from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.asked import may_touch
from drfd.core.forecast import Future
from drfd.core.job import Job, JobSpec, JobState
from drfd.core.reasons import explain_wait
from drfd.daemon.config import Config
from drfd.daemon.cures import Standing, find_cures
from drfd.daemon.doctor import doctor_view
from drfd.daemon.engine import Engine, Work
from drfd.daemon.link import Link
from drfd.daemon.lookup import Lookup, clock_time
from drfd.daemon.machine import Site
from drfd.daemon.meter import Meter
from drfd.daemon.records import Records
from drfd.daemon.submission import spec_for
from drfd.daemon.whys import Whys
from drfd.daemon.wishes import Ask, asking
from drfd.errors import DrfdError, NotPermitted, Refused
from drfd.journal.records import Payload
from drfd.wire import messages as msg
from drfd.wire import views
from drfd.wire.used import used_view
from drfd.wire.views import View

#: So many jobs of a list are looked at before others have their turn.
_AT_ONCE = 200

T = TypeVar("T")
Submit = Callable[[Work], None]


@dataclass
class Requests:
    engine: Engine
    submit_work: Submit
    config: Config
    site: Site
    meter: Meter
    link: Link
    standing: Standing
    #: Whether jobs may run as root: only a private instance of root's own.
    takes_root: bool
    #: Reads the configuration again and puts it into force; raises ConfigError and changes nothing.
    reload: Callable[[], Site]
    #: Ends the daemon: `after_jobs`, or at once.
    shut_down: Callable[..., None]
    #: One list at a time for each user: who asks a hundred times at once waits for himself.
    _lists: dict[int, asyncio.Lock] = field(default_factory=dict)
    #: Set by a change of any job; waiters look again.
    _waiters: dict[int, set[asyncio.Event]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lookup = Lookup(self.engine, self.meter)
        self._records = Records(self.engine)
        self._whys = Whys(self.engine, self._lookup, self._records)

    async def answer(self, actor: st.Actor, gid: int, request: msg.AnyRequest) -> View:
        match request:
            case msg.Hello():
                return self._hello(actor)
            case msg.Submit():
                return await self._submit(actor, gid, request)
            case msg.Status():
                async with self._lists.setdefault(actor.uid, asyncio.Lock()):
                    return await self._status(actor, request)
            case msg.Show():
                return self._show(actor, request.id)
            case msg.Why():
                async with self._lists.setdefault(actor.uid, asyncio.Lock()):
                    return await self._whys.why(actor, request.id)
            case msg.History() | msg.Report():
                async with self._lists.setdefault(actor.uid, asyncio.Lock()):
                    return await self._records.answer(actor, request)
            case msg.Wait():
                return await self._wait(actor, request)
            case (
                msg.Cancel()
                | msg.Hold()
                | msg.Release()
                | msg.Suspend()
                | msg.Resume()
                | msg.Signal()
                | msg.Set()
            ):
                return await self._each(actor, request.select, asking(request))
            case msg.Drain():
                await self._decided(st.DrainAsked(self.engine.clock(), request.on, actor))
                return {"draining": self.engine.ledger.draining}
            case msg.Reload():
                if not actor.is_admin:
                    raise NotPermitted("not-admin", "only an administrator may reload")
                return {"warnings": list(self.reload().warnings)}
            case msg.Shutdown():
                return await self._shutdown(actor, request)
            case msg.Shares():
                return views.shares_view(
                    self.engine.ledger, self.engine.rules, self.engine.external
                )
            case msg.Doctor():
                cures = find_cures(self.standing, self.site, self.link)
                external = views.external_view(self.engine.external)
                return doctor_view(self.site, self.link) | {"cures": cures, "external": external}

    def job_changed(self, job: Job) -> None:
        if job.state is JobState.ENDED:
            for event in self._waiters.pop(job.id, ()):
                event.set()

    # -- verbs ------------------------------------------------------------------------------

    def _hello(self, actor: st.Actor) -> View:
        return {"version": __version__, "user": actor.user, "admin": actor.is_admin}

    async def _submit(self, actor: st.Actor, gid: int, request: msg.Submit) -> View:
        if request.key is not None:
            known = self.engine.journal.submission(actor.uid, request.key)
            if known is not None:
                return {"id": known}
        spec = spec_for(
            request,
            actor,
            gid,
            rules=self.engine.rules,
            defaults=self.site.defaults,
            disks=self.site.disks,
            takes_root=self.takes_root,
        )
        if request.dry_run:
            return await self._dry_run(actor, spec, held=request.held)
        payload = Payload(env=request.env, script=request.script)
        asked = st.SubmitAsked(self.engine.clock(), spec, held=request.held)
        events = await self._decided(asked, payload, request.key)
        submitted = events[0]
        assert isinstance(submitted, ev.Submitted)
        return {"id": submitted.job_id}

    async def _status(self, actor: st.Actor, request: msg.Status) -> View:
        if request.select.ids:
            jobs = [self._lookup.any_job(job_id) for job_id in set(request.select.ids)]
        else:
            jobs = self._lookup.selected(request.select) + self._lookup.ended(request)
        shown = []
        for at, job in enumerate(sorted(jobs, key=lambda job: job.id)):
            shown.append(self._lookup.view(job, actor))
            if at % _AT_ONCE == _AT_ONCE - 1:
                # A long list keeps nobody else waiting.
                await asyncio.sleep(0)
        return {
            "jobs": shown,
            "counts": views.counts_view([view["state"] for view in shown]),
            "draining": self.engine.ledger.draining,
        }

    def _show(self, actor: st.Actor, job_id: int) -> View:
        job = self._lookup.own_job(actor, job_id)
        events = [views.event_view(event) for event in self.engine.journal.events(job_id)]
        used = used_view(job) if job.state is JobState.ENDED else None
        return {"job": self._lookup.full_view(job, actor), "events": events, "used": used}

    async def _dry_run(self, actor: st.Actor, spec: JobSpec, *, held: bool) -> View:
        """What would become of a submission, without one."""
        ended = self.engine.ended(spec.after)

        def look(future: Future) -> View:
            job = future.add(spec, held=held, ended=ended)
            plan = future.pass_now()
            if job.id in plan.admitted:
                return {"expected_start_at": future.now.at_s, "reason": None}
            reason = explain_wait(job, future.ledger, plan, future.rules, clock_time)
            start_s = future.start_s(job.id)
            return {"expected_start_at": start_s, "reason": views.reason_view(reason)}

        async with self._lists.setdefault(actor.uid, asyncio.Lock()):
            return await self._ahead(look)

    async def _ahead(self, look: Callable[[Future], T]) -> T:
        """Look ahead, beside the loop."""
        build = self.engine.future()
        return await asyncio.to_thread(lambda: look(build()))

    async def _wait(self, actor: st.Actor, request: msg.Wait) -> View:
        jobs = [self._lookup.own_job(actor, job_id) for job_id in request.ids]
        deadline = None if request.timeout_s is None else time.monotonic() + request.timeout_s
        changed = asyncio.Event()
        for job in jobs:
            if job.state is not JobState.ENDED:
                self._waiters.setdefault(job.id, set()).add(changed)
        try:
            while not self._enough_ended(request):
                left = None if deadline is None else deadline - time.monotonic()
                try:
                    await asyncio.wait_for(changed.wait(), left)
                except TimeoutError:
                    break
                changed.clear()
        finally:
            for job_id in request.ids:
                self._forget_waiter(job_id, changed)
        ended = [self._lookup.any_job(job_id) for job_id in request.ids if self._has_ended(job_id)]
        return {
            "done": len(ended) == len(request.ids) or (request.any and bool(ended)),
            "ended": [
                self._lookup.view(job, actor) | {"status": views.exit_status(job)} for job in ended
            ],
        }

    async def _each(self, actor: st.Actor, select: msg.Selection, ask: Ask) -> View:
        """Do it to every selected job; one that refuses does not stop the others."""
        if select.ids:
            targets = list(dict.fromkeys(select.ids))
        else:
            mine = (job for job in self._lookup.selected(select) if may_touch(actor, job.spec.uid))
            targets = [job.id for job in mine if select.everything or _has_filter(select)]
        now = self.engine.clock()
        results = await asyncio.gather(
            *(self._decided(ask(now, job_id, actor)) for job_id in targets),
            return_exceptions=True,
        )
        done, failed = [], []
        for job_id, result in zip(targets, results, strict=True):
            if isinstance(result, Refused):
                failed.append(
                    {"id": job_id, "error": views.error_view(self._better(job_id, result))}
                )
            elif isinstance(result, BaseException):
                raise result
            else:
                done.append(job_id)
        return {"done": done, "failed": failed}

    async def _shutdown(self, actor: st.Actor, request: msg.Shutdown) -> View:
        if not actor.is_admin:
            raise NotPermitted("not-admin", "only an administrator may shut drfd down")
        if request.kill_jobs:
            # Before the jobs end, or others would take their place.
            await self._decided(st.DrainAsked(self.engine.clock(), True, actor))
        running = sorted(job.id for job in self.engine.ledger.holders())
        reply: View = {"done": [], "failed": []}
        if request.kill_jobs:
            reply = await self._each(actor, msg.Selection(ids=running), st.CancelAsked)
        self.shut_down(after_jobs=request.kill_jobs)
        return reply | {"running": running}

    def _better(self, job_id: int, refusal: Refused) -> Refused:
        """For a job that is over, say how it ended instead of that it does not exist."""
        job = self.engine.journal.job(job_id)
        if refusal.code == "no-such-job" and job is not None:
            return Refused("ended", f"job {job_id} has already ended: {job.shown_state}")
        return refusal

    # -- parts ------------------------------------------------------------------------------

    async def _decided(
        self, stimulus: st.Stimulus, payload: Payload | None = None, key: str | None = None
    ) -> list[ev.Event]:
        """The events that came of it, once they are durable. Raises what refused it."""
        future: asyncio.Future[list[ev.Event]] = asyncio.get_running_loop().create_future()

        def answer(result: list[ev.Event] | DrfdError) -> None:
            if future.done():
                return
            if isinstance(result, DrfdError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit_work(Work(stimulus, payload, answer, key))
        return await future

    def _has_ended(self, job_id: int) -> bool:
        return job_id not in self.engine.ledger.jobs

    def _enough_ended(self, request: msg.Wait) -> bool:
        return (any if request.any else all)(self._has_ended(job_id) for job_id in request.ids)

    def _forget_waiter(self, job_id: int, changed: asyncio.Event) -> None:
        waiters = self._waiters.get(job_id)
        if waiters is not None:
            waiters.discard(changed)
            if not waiters:
                del self._waiters[job_id]


def _has_filter(select: msg.Selection) -> bool:
    return bool(select.user or select.name or select.states)
