"""One method per verb: from a checked request and its sender to the reply.

A change goes through the engine as a stimulus. A query reads the ledger between two turns of the
engine, when all of it is durable.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from drfd import __version__
from drfd.common.errors import DrfdError, HostError, NotPermitted, Refused, Unavailable
from drfd.common.indices import read_array
from drfd.common.units import show_size
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.dependencies import may_start
from drfd.core.decisions.job_requests import may_touch, owns
from drfd.core.explain.ended_jobs import end_notes
from drfd.core.explain.forecast import MOST_JOBS
from drfd.core.explain.reasons import unknown_start
from drfd.core.model import events as ev
from drfd.core.model.job import Actor, Job, JobSpec, JobState
from drfd.core.scheduling.release_times import Certainty
from drfd.core.scheduling.waits import ExternalUse
from drfd.daemon.children.forecasts import (
    Forecasts,
    StartQuestion,
    TrialQuestion,
    WatchedStarts,
)
from drfd.daemon.config import Config, Site
from drfd.daemon.engine.engine import Engine
from drfd.daemon.handlers.batch import BatchActions, stimulus_maker
from drfd.daemon.handlers.doctor import (
    InstallContext,
    cures,
    doctor_view,
    gpu_keepings,
    notices,
    window_views,
)
from drfd.daemon.handlers.history import HistoryHandler
from drfd.daemon.handlers.resubmission import find_submission, refuse_others_job, repeat_note
from drfd.daemon.handlers.submission import (
    SubmitTerms,
    payload_of,
    refuse_beyond_gpus,
    refuse_range,
    spec_for,
)
from drfd.daemon.launcher_link.link import Link, Links, launcher_away
from drfd.daemon.lookup import views
from drfd.daemon.lookup.follow import WaitHandler
from drfd.daemon.lookup.lookup import Lookup, place_of
from drfd.daemon.lookup.rows import find_recent
from drfd.daemon.monitoring.gpu_use import unkept_text
from drfd.daemon.monitoring.meter import Curves, Meter
from drfd.daemon.monitoring.reserves import Reserves
from drfd.daemon.users.quotas import Quotas
from drfd.daemon.users.turns import UserTurns
from drfd.devices.gpu import GPU
from drfd.journal.history import Story, read_story
from drfd.journal.submissions import Payload
from drfd.launcher.protocol import OUT_OF_REACH
from drfd.payload.pack import carried
from drfd.payload.signature import key_file_name
from drfd.payload.unpack import arguments
from drfd.protocol import replies
from drfd.protocol import requests as msg
from drfd.protocol.requests import ExecRequest, Selection

#: The most rows of a reply without pages, which are kept in memory until they are sent.
_MOST_ROWS = 20_000
#: Reasons for waiting that a smaller demand may remove.
_DEMAND_REASONS = {
    "RESOURCES",
    "FAIR_SHARE",
    "RESERVATION",
    "LIMIT",
    "EXTERNAL_LOAD",
    "MAINTENANCE",
}


_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Verb:
    #: Called with the object on which it is declared, the sender, and the request; a stream with
    #: the connection's writer before the sender. Its annotation is the type of the reply.
    answer: Callable[..., Any]
    #: Completes "only an administrator may"; "" for a verb that every user may use.
    admin: str
    #: Returns the verb in the audit log, or None for a request that changes nothing.
    audit: Callable[[Any], str | None]
    #: In which turn of its user a request is answered; "own" if the answer takes turns for parts.
    turn: Literal["short", "long", "own"]
    #: Whether a request may wait for long, and is given up when its client hangs up.
    waits: bool
    #: The type of the lines of a stream; None for a verb with one reply.
    lines: type | None


#: Filled when the modules of the handlers and of the server are imported.
VERBS: dict[type[msg.Request], Verb] = {}


def verb(
    *requests: type[msg.Request],
    admin: str = "",
    audit: bool | Callable[[Any], str | None] = False,
    turn: Literal["short", "long", "own"] = "short",
    waits: bool = False,
    lines: type | None = None,
) -> Callable[[_Function], _Function]:
    """Register a method as what answers such requests. With `audit`, they are logged under the name
    of the verb, or under what `audit` returns for them."""

    def register(answer: _Function) -> _Function:
        for request in requests:
            name = str(request.__struct_config__.tag).replace("_", "-")
            logged = audit if callable(audit) else (lambda _, name=name if audit else None: name)
            VERBS[request] = Verb(answer, admin, logged, "own" if waits else turn, waits, lines)
        return answer

    return register


@dataclass
class Requests:
    engine: Engine
    config: Config
    site: Site
    meter: Meter
    curves: Curves
    links: Links
    reserves: Reserves
    install: InstallContext
    #: Whether jobs of root are accepted, as by a private daemon of root's.
    takes_root: bool
    #: Reloads the configuration; raises ConfigError, and changes nothing, if it is invalid.
    reload: Callable[[], Site]
    #: Ends the daemon, at once or `after_jobs`.
    shut_down: Callable[..., None]
    #: The directory of the signing keys, or None if submissions are not signed.
    keys_dir: Path | None = None
    #: Returns the metrics as a text of OpenMetrics; None if there are none.
    metrics: Callable[[], Awaitable[bytes]] | None = None
    #: The clock of what each user may submit and change in a second.
    mono: Callable[[], float] = time.monotonic
    turns: UserTurns = field(default_factory=UserTurns)

    def __post_init__(self) -> None:
        self.quotas = Quotas(lambda: self.config.limits, self.mono)
        self._lookup = Lookup(self.engine, self.meter)
        self.history = HistoryHandler(
            self.engine, self._lookup, self._largest_gpu, lambda: self.link.has_ranges()
        )
        self.forecasts = Forecasts(self.engine)
        self.starts = WatchedStarts(self.forecasts, self.mono)
        self.waits = WaitHandler(self.engine, self._lookup, self.turns)
        self._batch = BatchActions(self.engine, self._lookup, self.quotas, self.turns)

    @property
    def link(self) -> Link:
        """The link to the controller's own launcher."""
        return self.links.own

    async def answer(self, actor: st.Actor, gid: int, request: msg.Request) -> replies.Reply:
        known = VERBS[type(request)]
        if known.admin and not actor.is_admin:
            raise NotPermitted("not-admin", f"only an administrator may {known.admin}")
        more = (gid,) if isinstance(request, msg.SubmitRequest) else ()
        found = known.answer(self, actor, request, *more)
        reply: replies.Reply = await found if isawaitable(found) else found
        return reply

    def close(self) -> None:
        """End the child processes."""
        for each in (self.forecasts, self.history):
            each.children.close()

    # -- verbs ------------------------------------------------------------------------------

    @verb(msg.SubmissionRequest)
    async def _submission(
        self, actor: st.Actor, request: msg.SubmissionRequest
    ) -> replies.SubmissionReply:
        return await find_submission(self.engine, self._lookup, actor, request.id)

    @verb(msg.RecentRequest)
    async def _recent(self, actor: st.Actor, request: msg.RecentRequest) -> replies.RecentReply:
        return await find_recent(self._lookup, actor, request)

    @verb(msg.HistoryRequest, turn="long")
    async def _past(self, actor: st.Actor, request: msg.HistoryRequest) -> replies.HistoryReply:
        return await self.history.page(actor, request)

    @verb(msg.ReportRequest, turn="long")
    async def _report(self, _: st.Actor, request: msg.ReportRequest) -> replies.ReportReply:
        return await self.history.report(request)

    @verb(msg.WaitRequest, waits=True)
    async def _wait(self, actor: st.Actor, request: msg.WaitRequest) -> replies.WaitReply:
        return await self.waits.wait(actor, request)

    @verb(*msg.BATCHES, audit=True, turn="own")
    async def _act(self, actor: st.Actor, request: msg.BatchRequest) -> replies.BatchReply:
        if not isinstance(request, msg.CancelRequest):
            self.reserves.refuse(actor, is_submission=False)
        if isinstance(request, msg.SetRequest):
            refuse_beyond_gpus(request.demand, self._largest_gpu())
            refuse_range(request.demand, has_ranges=self.link.has_ranges())
        maker = stimulus_maker(await self._lookup.with_ids(request))
        return self._with_notices(await self._batch.ask(actor, request.select, maker))

    @verb(msg.ReloadRequest, admin="reload", audit=True)
    def _reload(self, _: st.Actor, __: msg.ReloadRequest) -> replies.ReloadReply:
        return {"warnings": list(self.reload().warnings)}

    @verb(msg.SharesRequest)
    def _shares(self, _: st.Actor, __: msg.SharesRequest) -> replies.SharesReply:
        engine = self.engine
        shares = views.shares_view(
            engine.ledger, engine.rules, engine.external,
            engine.scheduler.debts, engine.clock().at_s,
        )  # fmt: skip
        hours = self._limit_hours()
        if hours:
            shares["limit_hours"] = hours
        return {**shares, **views.drain_part(engine.ledger)}

    @verb(msg.ExecRequest, audit=True, waits=True)
    async def _exec(self, actor: st.Actor, request: msg.ExecRequest) -> replies.ExecReply:
        is_signed = self.keys_dir is not None
        return await join(self._lookup, self.links, actor, request, is_signed=is_signed)

    @verb(msg.HelloRequest)
    def _hello(self, actor: st.Actor, request: msg.HelloRequest) -> replies.HelloReply:
        key_file = None
        if self.keys_dir is not None and actor.has_account:
            # It is not looked at: its user may have mounted a file system over it that never
            # answers.
            key_file = str(self.keys_dir / key_file_name(actor.uid, actor.user))
        if key_file is not None and request.needs_key:
            self.link.order_key(actor.uid)
        reply: replies.HelloReply = {
            "version": __version__,
            "user": actor.user,
            "admin": actor.is_admin,
            "key_file": key_file,
        }
        if self._has_private_tmp():
            reply["private_tmp"] = True
        if self.site.defaults.time_limit_s is not None:
            reply["time_limit_s"] = self.site.defaults.time_limit_s
        return {**reply, **self._service_state()} if self.link.is_missed() else reply

    def _has_private_tmp(self) -> bool:
        return self.link.hello is not None and self.link.hello.private_tmp is not None

    @verb(msg.MetricsRequest)
    async def _metrics(self, _: st.Actor, __: msg.MetricsRequest) -> replies.MetricsReply:
        if self.metrics is None:
            raise Refused(
                "no-metrics",
                "this daemon gives no metrics",
                hint="write port or textfile in [metrics] of drfd.toml, and restart drfd",
            )
        return {"text": (await self.metrics()).decode()}

    @verb(msg.DoctorRequest)
    def _doctor(self, _: st.Actor, __: msg.DoctorRequest) -> replies.DoctorReply:
        view = doctor_view(self.site, self.links, self.engine.journal.id)
        return {
            **view,
            "warnings": [*view["warnings"], *self.reserves.warnings()],
            "cures": cures(self.install, self.site.disks, self.link),
            "external": views.external_view(self.engine.external),
            "draining": self.engine.ledger.draining,
            "windows": window_views(self.engine.ledger.calendar),
            "limit_hours": self._limit_hours(),
            **views.drain_part(self.engine.ledger),
            **self._service_state(),
        }

    @verb(
        msg.DrainRequest,
        admin="drain or undrain",
        audit=lambda request: "drain" if request.on else "undrain",
    )
    async def _drain(self, actor: st.Actor, request: msg.DrainRequest) -> replies.DrainReply:
        was_undrained = not request.on and (request.node or "") not in self.engine.ledger.drains
        await self.engine.submit_and_wait(
            st.DrainAsked(
                self.engine.clock(), request.on, actor, request.reason, request.node or ""
            )
        )
        reply: replies.DrainReply = {"draining": self.engine.ledger.draining}
        if nodes := sorted(filter(None, self.engine.ledger.drains)):
            reply["nodes"] = nodes
        if was_undrained:
            reply["was_undrained"] = True
        return reply

    @verb(msg.NodesRequest)
    def _nodes(self, _: st.Actor, __: msg.NodesRequest) -> replies.NodesReply:
        return {"nodes": self.machines(), **views.drain_part(self.engine.ledger)}

    def machines(self) -> list[replies.MachineView]:
        """Return the machines on which jobs run, the daemon's own first."""
        ledger, away_s = self.engine.ledger, self.link.away_s()
        away_since_s = None
        if away_s is not None and self.link.is_missed():
            away_since_s = self.engine.clock().at_s - away_s
        return views.machine_views(
            ledger,
            self.engine.rules,
            away_since_s=away_since_s,
            causes=self.links.node_faults(),
        )

    def _limit_hours(self) -> list[replies.LimitHoursView]:
        return views.limit_hours_view(self.engine.ledger.calendar, self.engine.clock().at_s)

    @verb(msg.SubmitRequest, audit=lambda request: None if request.dry_run else "submit")
    async def _submit(
        self, actor: st.Actor, request: msg.SubmitRequest, gid: int
    ) -> replies.SubmitReply | replies.DryRunReply:
        """Check a submission and queue it. Of one that was sent before, return the job, also if it
        would be refused now."""
        try:
            return await self._queue(actor, request, gid)
        except DrfdError:
            key, known = request.key, None
            if key is not None and not request.dry_run:
                known = self.engine.journal.submissions.job_of(actor.uid, key)
            if known is None or self._lookup.user_of(known) != actor.user:
                raise
            return self._submitted(known)

    async def _queue(
        self, actor: st.Actor, request: msg.SubmitRequest, gid: int
    ) -> replies.SubmitReply | replies.DryRunReply:
        """Check a submission and queue it, unless it was sent before. Raises DrfdError."""
        if not request.dry_run:
            self.reserves.refuse(actor, is_submission=True)
        if request.again is not None:
            refuse_others_job(self.engine, self._lookup, actor, request.again.of)
        delay_s = self.site.defaults.slurm_start_delay_s
        spec = spec_for(
            await self._lookup.with_ids(request),
            actor,
            gid,
            SubmitTerms(
                rules=self.engine.rules,
                defaults=self.site.defaults,
                limits=self.config.limits,
                disks=self.site.disks,
                takes_root=self.takes_root,
                is_refused=self.link.refuses(actor.uid),
                largest_gpu_bytes=self._largest_gpu(),
                slurm_begin_s=math.ceil(self.engine.clock().at_s + delay_s) if delay_s else 0,
                has_private_tmp=self._has_private_tmp(),
                has_ranges=self.link.has_ranges(),
            ),
        )
        spans, at_once = ((), None) if request.array is None else read_array(request.array)
        asked = st.SubmitAsked(
            self.engine.clock(),
            spec,
            request.held,
            spans=spans,
            at_once=at_once,
            is_admin=actor.is_admin,
        )
        if request.dry_run:
            return await self._dry_run(asked)
        if self.keys_dir is not None and request.proof is None:
            raise Refused(
                "not-signed",
                "jobs are taken here with their user's signature, and this one has none",
                hint=NO_KEY_HINT,
            )
        payload = payload_of(request)
        event, *_ = await self.engine.submit_and_wait(asked, payload)
        if isinstance(event, ev.Submitted):
            part = views.drain_part(self.engine.ledger)
            reply = cast(replies.SubmitReply, {"id": event.job_id, **part})
        else:
            assert isinstance(event, ev.ArraySubmitted)
            reply = self._submitted(event.array_id)
        notes = self._notes(spec)
        if notes:
            reply["notes"] = notes
        return reply

    def _notes(self, spec: JobSpec) -> list[str]:
        """Return what of a demand is not kept here."""
        unkept = (
            unkept_text(gpu_keepings(self.site, self.link)) if spec.demand.gres_memory else None
        )
        return [] if unkept is None else [f"the declared memory of a {GPU} is {unkept}"]

    def _largest_gpu(self) -> int | None:
        listed = dict(self.engine.rules.axes.instances).get(GPU, ())
        return self.link.gpu_use.largest(listed)

    def _submitted(self, job_id: int) -> replies.SubmitReply:
        array = self._lookup.any_array(job_id)
        tasks = {} if array is None else {"tasks": array.size}
        part = views.drain_part(self.engine.ledger)
        return cast(replies.SubmitReply, {"id": job_id, **tasks, **part})

    @verb(msg.StatusRequest)
    async def _status(self, actor: st.Actor, request: msg.StatusRequest) -> replies.StatusReply:
        """Return a list or a page; `after` is the place of its last row if there may be another."""
        shown = views.Listed[replies.JobView]()
        counts = Counter[str]()
        most = request.limit or _MOST_ROWS
        last, after = None, None
        listed = self._lookup.rows(
            request.select,
            ended=request.ended,
            tasks=request.tasks,
            after=request.after or (0, False),
        )
        async with aclosing(listed) as rows:
            async for row in rows:
                if shown.is_full or (len(shown.rows) == most and not request.select.ids):
                    if request.limit is None:
                        raise _too_many_rows()
                    after = last
                    break
                view = self._lookup.view(row, actor)
                counts[view["state"]] += view.get("tasks", 1)
                shown.add(view)
                last = place_of(row)
        ledger = self.engine.ledger
        gpus = [views.gpu_view(each) for each in self.link.gpu_use.gpus()]
        reply = {
            "jobs": shown.rows,
            "counts": counts,
            "draining": ledger.draining,
            **views.drain_part(ledger),
            "gres": list(ledger.axes.gres),
            "after": after,
            **self._service_state(),
        }
        return cast(replies.StatusReply, {**reply, "gpus": gpus} if gpus else reply)

    def _service_state(self) -> replies.ServiceState:
        """Return the state of the service, which is part of several replies."""
        away_s = self.link.away_s()
        return {
            "launcher_away_s": None if away_s is None else round(away_s, 1),
            "notices": self.notices(),
        }

    def notices(self) -> list[replies.CodeText]:
        """Return what every user should know now of the service, the worst first."""
        now_s = self.engine.clock().at_s
        return notices(self.install, self.link, self.reserves, self.engine.ledger.calendar, now_s)

    def _with_notices(self, reply: replies.BatchReply) -> replies.BatchReply:
        """Add the notices to a reply about running jobs while the launcher is away: it carries the
        request out when it is back."""
        if not self.link.is_missed():
            return reply
        done = set(reply["done"])
        holders = self.engine.ledger.allocated_jobs()
        if any(job.id in done or job.array_id in done for job in holders):
            return {**reply, **self._service_state()}
        return reply

    @verb(msg.ShowRequest)
    async def _show(self, actor: st.Actor, request: msg.ShowRequest) -> replies.ShowReply:
        """Return a job or an array; of another user's job what lists show to everybody: no command,
        paths, conditions or events."""
        job_id = self._lookup.id_of(request.id)
        array = self._lookup.own_array(actor, job_id)
        common = self._lookup.any_job(job_id) if array is None else array.common
        is_own, story = may_touch(actor, common.spec), Story([], 0)
        conditions = views.NO_CONDITIONS
        if is_own:
            task_of = common.array_id if array is None else None
            story = await asyncio.to_thread(read_story, self.engine.journal.path, job_id, task_of)
            name_of = await self._lookup.names_of(common.spec.after)
            # The job may have changed meanwhile.
            common = self._lookup.any_job(job_id) if array is None else common
            conditions = views.conditions_view(common, name_of)
        options = self._signed_part(common) if is_own else {}
        reply: replies.ShowReply = {
            "events": [views.event_view(event, self._lookup.name_of) for event in story.events],
            "events_dropped": story.dropped,
        }
        if array is not None:
            view = await self._lookup.array_view(array)
            reply["array"] = cast(replies.ExplainedArrayView, {**view, **conditions, **options})
            return reply
        details = {**self._details(common), **self._lookup.placed_part(common, is_own=is_own)}
        job = {**self._lookup.view(common, actor), **conditions, **details, **options}
        reply["job"] = cast(replies.ExplainedJobView, job)
        reply["used"] = views.used_view(common) if common.state is JobState.ENDED else None
        curve = self.curves.of_job(common)
        reply["curve"] = None if curve is None else views.curve_view(curve, common.spec.demand)
        all_runs = views.all_runs_view(common)
        if all_runs is not None:
            reply["all_runs"] = all_runs
        return reply

    def _signed_part(self, job: Job) -> dict[str, object]:
        """Return the options of a submission and its whole command."""
        payload = self.engine.journal.submissions.get(job.submission_id) or Payload()
        whole = payload.content() if payload.shared else None
        notice, words = (
            ((), arguments(payload.own)) if whole is None else (whole.notify, whole.argv)
        )
        argv = list(map(carried, words)) or job.spec.argv
        return {"argv": argv, "options": views.option_fields(job.spec, notice)}

    def _details(self, job: Job) -> replies.DetailPart:
        """Return how a job stands with the memory that it declared on each GPU."""
        part: replies.DetailPart = {}
        if not job.spec.demand.gres_memory or job.state is JobState.ENDED:
            return part
        found = gpu_keepings(self.site, self.link)
        own = dict(job.instances).get(GPU) or found
        part["gpu_memory_each"] = {
            each.name: each.readings[-1] for each in self.meter.each_gpu(job)
        }
        unkept = unkept_text({name: each for name, each in found.items() if name in own})
        if unkept is not None:
            part["gpu_memory_unkept"] = unkept
        return part

    @verb(msg.WhyRequest, turn="long")
    async def _why(self, actor: st.Actor, request: msg.WhyRequest) -> replies.WhyReply:
        """Return the job, with why it waits or how it ended, and what would change that. Of another
        user's job only the reason and the expected start are shown."""
        job_id = self._lookup.id_of(request.id)
        array = self._lookup.any_array(job_id)
        tasks: replies.ArrayView | None = None
        if array is not None:
            if may_touch(actor, array.spec):
                tasks = await self._lookup.array_view(array)
            # A task may have ended meanwhile.
            job_id = self._lookup.representative_task(array).id
        job = self._lookup.any_job(job_id)
        is_own = may_touch(actor, job.spec)
        conditions = views.NO_CONDITIONS
        if is_own:
            name_of = await self._lookup.names_of(job.spec.after)
            conditions = views.conditions_view(job, name_of)
        view = cast(replies.ExplainedJobView, {**self._lookup.view(job, actor), **conditions})
        reply: replies.WhyReply = {"job": view, "notes": [], "advice": None}
        if tasks is not None:
            reply["array"] = {
                "id": tasks["id"],
                "tasks": tasks["tasks"],
                "counts": tasks["counts"],
                "indices": tasks["indices"],
            }
        if job.state is JobState.ENDED and not is_own:
            return reply
        if job.state is JobState.ENDED:
            reply["notes"] = end_notes(job)
            reply["advice"] = await asyncio.to_thread(self.history.advice, job)
            return reply
        if is_own:
            reply["notes"] = self._preemption_notes(job)
        if may_start(self.engine.ledger, job):
            await self._add_forecast(job, view, reply, may_advise=is_own)
            reply["notes"] += self._external_notes(job, actor)
        if is_own and job.broken is not None:
            reply["notes"] += await repeat_note(self.engine, self._lookup, job)
        return reply

    async def _add_forecast(
        self, job: Job, view: replies.ExplainedJobView, reply: replies.WhyReply, *, may_advise: bool
    ) -> None:
        """Add the expected start to a waiting job, and for its owner (`may_advise`) a smaller
        demand that would start now."""
        is_short = view["reason"] is not None and view["reason"]["code"] in _DEMAND_REASONS
        has_few = len(self.engine.ledger.jobs) <= MOST_JOBS
        try:
            asked = StartQuestion(job.id, smaller=is_short and has_few and may_advise)
            found = await self.forecasts.ask(lambda: asked)
        except (Unavailable, HostError) as error:
            reply["no_estimate"] = {"code": error.code, "text": error.text}
            return
        view["expected_start_at"] = found["expected_start_at"]
        certainty = found.get("expected_start_certainty")
        if certainty is not None:
            view["expected_start_certainty"] = certainty
        if certainty == Certainty.UNKNOWN.value:
            reason = self._lookup.reason(job)
            unknown = None
            if reason is not None:
                unknown = unknown_start(reason, self.engine.ledger, self._lookup.reason)
                unknown = unknown or found.get("expected_start_unknown")
            if unknown is not None:
                view["expected_start_unknown"] = unknown
        if "no_estimate" in found:
            reply["no_estimate"] = found["no_estimate"]
        if found.get("smaller"):
            words = " ".join(found["smaller"])
            reply["notes"].append(f"drf set {words} {job.label} lets it start now")

    def _external_notes(self, job: Job, actor: st.Actor) -> list[str]:
        """Return with what line of the configuration a job would not wait for processes outside
        drfd, if it waits for them."""
        reason = self._lookup.reason(job)
        setting = reason.setting if isinstance(reason, ExternalUse) else None
        if setting is None:
            return []
        who = "you" if actor.is_admin else "an administrator"
        return [
            f"{who} can have jobs start beside them: respect_external_load = {setting} below "
            f"[scheduling] in {self.install.config_file}, then drf reload"
        ]

    def _preemption_notes(self, job: Job) -> list[str]:
        """Return for whom a waiting job was stopped or frozen, if it was for another job."""
        if not job.preemptions or job.state not in (JobState.PENDING, JobState.SUSPENDED):
            return []
        notes: list[str] = []
        for event in self.engine.journal.events(job.id):
            if isinstance(event, ev.PreemptRequested | ev.SuspendRequested):
                is_for_other = isinstance(event, ev.PreemptRequested) or event.by is None
                notes = [f"it was {event.text}"] if is_for_other else []
            elif isinstance(event, ev.Resumed | ev.Admitted):
                notes = []
        return notes

    @verb(msg.UsageRequest)
    def _usage(self, _: st.Actor, request: msg.UsageRequest) -> replies.UsageReply:
        """Return the use over time of a job. Every user may ask."""
        job = self._lookup.single_job(request.id)
        return views.usage_points_view(self.curves.of_job(job), job.spec)

    async def _dry_run(self, asked: st.SubmitAsked) -> replies.DryRunReply:
        """Return the forecast for a submission that is not made. If there is no estimate, a null
        `reason` may mean that it is not known."""

        after = asked.spec.after
        name_of = await self._lookup.names_of(after)

        def trial() -> TrialQuestion:
            now, ended = self.engine.clock(), self.engine.ended(after)
            names = {each.job_id: name_of(each.job_id) for each in after}
            return TrialQuestion(replace(asked, now=now, ended=ended), names)

        try:
            reply: replies.DryRunReply = await self.forecasts.ask(trial)
        except (Unavailable, HostError) as error:
            no_estimate: replies.CodeText = {"code": error.code, "text": error.text}
            reply = {"expected_start_at": None, "reason": None, "no_estimate": no_estimate}
        if "no_estimate" in reply and reply["reason"] is None:
            # The forecaster has not judged the submission: refuse it here if it is refused.
            trial().asked.decide(self.engine.ledger, self.engine.rules)
        return reply

    @verb(msg.EndStrayRequest, admin="end a stray attempt", audit=True)
    def _end_stray(self, _: st.Actor, request: msg.EndStrayRequest) -> replies.EndStrayReply:
        name = f"{request.id}.{request.attempt}"
        if not self.links.end_stray((request.id, request.attempt)):
            raise Refused("no-stray", f"{name} is no stray attempt", hint="drf doctor lists them")
        return {"ended": name}

    @verb(
        msg.ShutdownRequest,
        admin="shut drfd down",
        audit=lambda request: "shutdown-kill-jobs" if request.kill_jobs else "shutdown",
        turn="own",
    )
    async def _shutdown(
        self, actor: st.Actor, request: msg.ShutdownRequest
    ) -> replies.ShutdownReply:
        if request.kill_jobs:
            # The drain comes first, or other jobs would start in place of the ended ones.
            await self.engine.submit_and_wait(st.DrainAsked(self.engine.clock(), True, actor))
        running = sorted(job.id for job in self.engine.ledger.allocated_jobs())
        reply: replies.BatchReply = {"done": [], "failed": []}
        if request.kill_jobs:
            jobs = self.engine.ledger.jobs
            ids: list[msg.Ref] = [each for each in running if not st.is_over(jobs[each])]
            reply = await self._batch.ask(actor, Selection(ids=ids), st.CancelAsked)
        self.shut_down(after_jobs=request.kill_jobs)
        return {**reply, "running": running, **self._service_state()}


def _too_many_rows() -> Refused:
    return Refused(
        "too-long",
        f"the list has more than {_MOST_ROWS} rows or {show_size(views.FULL_BYTES)} of long ones, "
        "the most that one reply may have",
        hint="ask for pages (limit, after), or choose by ids, user or state",
    )


# -- drf exec: only the owner may ask for a process to be moved into a running job. An administrator
# may stop a job, but not act as its user; and what its user has not signed, the launcher refuses.


#: What is said of a job that no command can be run in, by its state.
_NOT_RUNNING = {
    JobState.SUSPENDED: ("is suspended", "drf resume {0}"),
    JobState.STOPPING: ("is being stopped", ""),
    JobState.CLEANING: ("has just ended", ""),
    JobState.ENDED: ("has ended", ""),
}
_WAITS = ("does not run yet", "drf why {0}")
#: What to do if a signature is missing, because drf had no key or is no drf that signs.
NO_KEY_HINT = (
    "try again in a moment: the launcher has not written your key yet, and drf doctor shows whether"
    " it runs"
)


async def join(
    lookup: Lookup, links: Links, actor: Actor, request: ExecRequest, *, is_signed: bool
) -> replies.ExecReply:
    """Have a process moved into a job, and return when it is there. `is_signed`: whether that needs
    its user's signature. Raises Refused, NotPermitted, Unavailable."""
    job = lookup.single_job(request.id)
    if not owns(actor, job.spec):
        owner = job.spec.user
        raise NotPermitted(
            "not-yours", f"job {job.label} belongs to {owner}: only {owner} runs commands inside it"
        )
    if job.state is not JobState.RUNNING:
        what, hint = _NOT_RUNNING.get(job.state, _WAITS)
        raise Refused("not-running", f"job {job.label} {what}", hint=hint.format(job.label))
    if job.attempt != request.attempt:
        raise Refused("begun-again", f"job {job.label} has begun again meanwhile", hint="try again")
    link = links.of(job)
    if link is None:
        raise launcher_away()
    if not link.nodes.are_all and not link.nodes.has_home:
        raise Refused(
            "not-on-node",
            f"job {job.label} runs on node {job.node}, and commands run inside jobs of the "
            "daemon's own machine alone",
        )
    if link.hello is None or not link.hello.exec:
        raise Refused(
            "no-cgroups",
            "jobs have no cgroups here, so nothing can be run inside one",
            hint="drf doctor says why",
        )
    if is_signed and request.proof is None:
        raise Refused(
            "not-signed",
            "commands are taken here with their user's signature, and this one has none",
            hint=NO_KEY_HINT,
        )
    problem = await link.join(job, (request.pid, request.start_ticks), request.proof)
    if problem is not None:
        code = "out-of-reach" if problem == OUT_OF_REACH else "not-begun"
        raise Refused(code, f"not run inside job {job.label}: {problem}")
    return {"id": job.id, "attempt": job.attempt}
