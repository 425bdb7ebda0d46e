"""One function per verb: a checked request and who asks → the reply.

What changes anything goes through the engine as a stimulus; what only looks reads the books, which
between two turns hold nothing that is not durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from drfd import __version__
from drfd.core import events as ev
from drfd.core import stimuli as st
from drfd.core.forecast import Future
from drfd.core.job import Job, JobState
from drfd.core.reasons import explain_wait
from drfd.daemon.awaited import Awaited
from drfd.daemon.breath import Turns
from drfd.daemon.config import Config
from drfd.daemon.cures import Standing, find_cures
from drfd.daemon.curves import Curves
from drfd.daemon.decided import SubmitWork, decided
from drfd.daemon.doctor import doctor_view
from drfd.daemon.each import Each
from drfd.daemon.engine import Engine
from drfd.daemon.link import Link
from drfd.daemon.lookup import Lookup, clock_time, place_of
from drfd.daemon.machine import Site
from drfd.daemon.meter import Meter
from drfd.daemon.records import Records
from drfd.daemon.refs import by_ids
from drfd.daemon.submission import spec_for
from drfd.daemon.whys import Whys
from drfd.daemon.wishes import asking
from drfd.errors import NotPermitted, Refused
from drfd.indices import read_array
from drfd.journal.records import Payload
from drfd.wire import messages as msg
from drfd.wire import views
from drfd.wire.parts import Ref, Selection
from drfd.wire.snapshot import curve_view, usage_view
from drfd.wire.used import used_view
from drfd.wire.views import View

#: So many jobs of a list are looked at before others have their turn.
_AT_ONCE = 50
#: Of more rows, a list must be asked for in pages: they are kept in memory until they are sent.
_MOST_ROWS = 20_000

T = TypeVar("T")


@dataclass
class Requests:
    engine: Engine
    submit_work: SubmitWork
    config: Config
    site: Site
    meter: Meter
    curves: Curves
    link: Link
    standing: Standing
    #: Whether jobs may run as root: only a private instance of root's own.
    takes_root: bool
    #: Reads the configuration again and puts it into force; raises ConfigError and changes nothing.
    reload: Callable[[], Site]
    #: Ends the daemon: `after_jobs`, or at once.
    shut_down: Callable[..., None]
    #: For lists.
    _lists: Turns = field(default_factory=Turns)
    #: For what is shown of one job.
    _shows: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        self._lookup = Lookup(self.engine, self.meter)
        self._records = Records(self.engine, self._lookup)
        self._whys = Whys(self.engine, self._lookup, self._records)
        self._awaited = Awaited(self.engine, self._lookup)
        self._each = Each(self.engine, self._lookup, self.submit_work)

    async def answer(self, actor: st.Actor, gid: int, request: msg.Question) -> View:
        match request:
            case msg.Hello():
                return self._hello(actor)
            case msg.Submit():
                return await self._submit(actor, gid, request)
            case msg.Status():
                async with self._lists[actor.uid]:
                    return await self._status(actor, request)
            case msg.Show():
                # Of a long array it takes tens of milliseconds.
                async with self._shows[actor.uid]:
                    return self._show(actor, request.id)
            case msg.Why():
                async with self._lists[actor.uid]:
                    return await self._whys.why(actor, request.id)
            case msg.History() | msg.Report():
                async with self._lists[actor.uid]:
                    return await self._records.answer(actor, request)
            case msg.Wait():
                return await self._awaited.wait(actor, request)
            case msg.OnMany():
                return await self._each.ask(
                    actor, request.select, asking(self._lookup.with_ids(request))
                )
            case msg.Drain():
                await decided(
                    self.submit_work, st.DrainAsked(self.engine.clock(), request.on, actor)
                )
                return {"draining": self.engine.ledger.draining}
            case msg.Reload():
                if not actor.is_admin:
                    raise NotPermitted("not-admin", "only an administrator may reload")
                return {"warnings": list(self.reload().warnings)}
            case msg.Shutdown():
                return await self._shutdown(actor, request)
            case msg.Usage():
                return self._usage(request)
            case msg.Shares():
                return views.shares_view(
                    self.engine.ledger, self.engine.rules, self.engine.external
                )
            case msg.Doctor():
                cures = find_cures(self.standing, self.site, self.link)
                external = views.external_view(self.engine.external)
                return doctor_view(self.site, self.link) | {"cures": cures, "external": external}

    def job_changed(self, job: Job) -> None:
        self._awaited.job_changed(job)

    # -- verbs ------------------------------------------------------------------------------

    def _hello(self, actor: st.Actor) -> View:
        return {"version": __version__, "user": actor.user, "admin": actor.is_admin}

    async def _submit(self, actor: st.Actor, gid: int, request: msg.Submit) -> View:
        if request.key is not None:
            known = self.engine.journal.submission(actor.uid, request.key)
            if known is not None:
                return self._submitted(known)
        spec = spec_for(
            self._lookup.with_ids(request),
            actor,
            gid,
            rules=self.engine.rules,
            defaults=self.site.defaults,
            limits=self.config.limits,
            disks=self.site.disks,
            takes_root=self.takes_root,
        )
        spans, at_once = ((), None) if request.array is None else read_array(request.array)
        asked = st.SubmitAsked(
            self.engine.clock(), spec, request.held, spans=spans, at_once=at_once
        )
        if request.dry_run:
            return await self._dry_run(actor, asked)
        payload = Payload(env=request.env, script=request.script)
        event, *_ = await decided(self.submit_work, asked, payload, request.key)
        assert isinstance(event, ev.Submitted | ev.ArraySubmitted)
        return self._submitted(event.job_id if isinstance(event, ev.Submitted) else event.array_id)

    def _submitted(self, job_id: int) -> View:
        array = self._lookup.any_array(job_id)
        return {"id": job_id} if array is None else {"id": job_id, "tasks": array.size}

    async def _status(self, actor: st.Actor, request: msg.Status) -> View:
        """A page has the place of its last row where there may be another."""
        shown: list[View] = []
        most = request.limit or _MOST_ROWS
        last, after = None, None
        if request.select.ids:
            request = await by_ids(self._lookup, request)
        for at, row in enumerate(self._lookup.rows(request)):
            if at % _AT_ONCE == _AT_ONCE - 1:
                # A long list keeps nobody else waiting.
                await asyncio.sleep(0)
            if row is None:
                continue
            if len(shown) == most and not request.select.ids:
                if request.limit is None:
                    raise _too_many_rows()
                after = last
                break
            shown.append(self._lookup.row_view(row, actor))
            last = place_of(row)
        ledger, counts = self.engine.ledger, views.counts_view(shown)
        has = {"draining": ledger.draining, "gres": list(ledger.axes.gres), "after": after}
        return {"jobs": shown, "counts": counts, **has}

    def _show(self, actor: st.Actor, ref: Ref) -> View:
        job_id = self._lookup.id_of(ref)
        array = self._lookup.own_array(actor, job_id)
        job = None if array is not None else self._lookup.own_job(actor, job_id)
        events = [
            views.event_view(event, self._lookup.name_of)
            for event in self.engine.journal.events(job_id)
        ]
        if job is not None:
            used = used_view(job) if job.state is JobState.ENDED else None
            curve = self.curves.of_job(job)
            return {
                "job": self._lookup.full_view(job, actor),
                "events": events,
                "used": used,
                "curve": None if curve is None else curve_view(curve),
            }
        assert array is not None
        view = self._lookup.array_view(array) | views.conditions_view(
            array.common, self._lookup.name_of
        )
        return {"array": view, "events": events}

    def _usage(self, request: msg.Usage) -> View:
        """Everybody may see what a job uses, and so how it went."""
        if (request.id is None) is (request.user is None):
            raise Refused("bad-request", "usage is of one job, or of one user: give id or user")
        if request.user is not None:
            return usage_view(self.curves.of_user(request.user), None)
        assert request.id is not None
        job_id = self._lookup.id_of(request.id)
        array = self._lookup.any_array(job_id)
        if array is not None:
            hint = f"for instance {array.id}_{array.index_of(array.id + 1)}"
            raise Refused("is-array", f"{array.id} is an array: name one of its tasks", hint=hint)
        job = self._lookup.any_job(job_id)
        return usage_view(self.curves.of_job(job), job.spec.demand)

    async def _dry_run(self, actor: st.Actor, asked: st.SubmitAsked) -> View:
        """What would become of a submission, without one."""
        asked = replace(asked, ended=self.engine.ended(asked.spec.after))
        # The journal is for this thread alone.
        names = {each.job_id: self._lookup.name_of(each.job_id) for each in asked.spec.after}

        def look(future: Future) -> View:
            job = future.add(asked)
            plan = future.pass_now()
            if job.id in plan.admitted:
                return {"expected_start_at": future.now.at_s, "reason": None}
            reason = explain_wait(
                job, future.ledger, plan, future.rules, clock_time, name_of=names.__getitem__
            )
            start_s = future.start_s(job.id)
            return {"expected_start_at": start_s, "reason": views.reason_view(reason)}

        async with self._lists[actor.uid]:
            return await self._ahead(look)

    async def _ahead(self, look: Callable[[Future], T]) -> T:
        """Look ahead, beside the loop."""
        build = self.engine.future()
        return await asyncio.to_thread(lambda: look(build()))

    async def _shutdown(self, actor: st.Actor, request: msg.Shutdown) -> View:
        if not actor.is_admin:
            raise NotPermitted("not-admin", "only an administrator may shut drfd down")
        if request.kill_jobs:
            # Before the jobs end, or others would take their place.
            await decided(self.submit_work, st.DrainAsked(self.engine.clock(), True, actor))
        running: list[Ref] = sorted(job.id for job in self.engine.ledger.holders())
        reply: View = {"done": [], "failed": []}
        if request.kill_jobs:
            reply = await self._each.ask(actor, Selection(ids=running), st.CancelAsked)
        self.shut_down(after_jobs=request.kill_jobs)
        return reply | {"running": running}


def _too_many_rows() -> Refused:
    return Refused(
        "too-long",
        f"the list has more than {_MOST_ROWS} rows, the most that one reply may have",
        hint="ask for pages (limit, after), or choose by ids, user or state",
    )
