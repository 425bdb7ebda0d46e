"""Inputs of the core: requests of users, reports from the launcher, and the passing of time.

Each decides which events follow from it, given the ledger and the rules, and changes nothing. A
stimulus that no longer matters (a report of an earlier attempt, a second report of one end), or a
request that is fulfilled already, gives no events; a request that must not be granted raises
Refused. `at_s` is Unix time, for people; `mono_s` is the machine's monotonic clock, by which limits
and grace times are measured.

A request about an array is one event for each task that it changes. Holding, releasing and changing
a whole array are recorded of the array, too.

`drf set` may change a waiting job's whole specification, checked like a submission. Of a started
job it may change the upper ends of ranges and the wall time, which only an administrator may
lengthen, since others count on its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
from msgspec import Struct

from drfd.common.errors import NotPermitted, Refused
from drfd.common.indices import Span, count_of
from drfd.common.owner import Owner, read_owner
from drfd.core.decisions import dependencies, job_requests
from drfd.core.decisions import outcome as ends
from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.postponed import job_until_s, next_try
from drfd.core.model import events as ev
from drfd.core.model.job import (
    WAITING_STATES,
    Dependency,
    Job,
    JobSpec,
    JobState,
    Outcome,
    Usage,
    Whose,
)
from drfd.core.model.job import Actor as Actor
from drfd.core.model.job import Heard as Heard
from drfd.core.model.job import Now as Now
from drfd.core.model.options import OPTIONS
from drfd.core.model.options import Change as Change

#: Highest id that a launcher report can raise the next id above. No machine has given out as many,
#: so an attempt with a higher id is not drfd's.
HIGHEST_RAISED_ID = 10**15
_RUNS = (JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED)


class Stimulus:
    """An input of the core."""

    __slots__ = ()

    def decide(self, ledger: Ledger, rules: Rules) -> list[ev.Event]:
        """Return the events that follow. Raises Refused for a request that is not granted."""
        raise NotImplementedError


# -- requests -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubmitAsked(Stimulus):
    now: Now
    spec: JobSpec
    held: bool = False
    #: Outcomes of those dependencies that have left the ledger, by job id.
    ended: Mapping[int, Outcome] = field(default_factory=dict)
    #: Indices of the array (see `drfd.common.indices`), or empty for a single job.
    spans: tuple[Span, ...] = ()
    #: Maximum number of tasks of the array running at once.
    at_once: int | None = None
    #: Whether an administrator asks.
    is_admin: bool = False

    def decide(self, ledger: Ledger, rules: Rules) -> list[ev.Event]:
        spec, at_s = job_requests.in_group(ledger, self.spec), self.now.at_s
        job_requests.refuse_unfit(spec, rules, ledger.calendar, at_s)
        job_requests.refuse_late_warning(spec)
        tasks: dict[tuple[Dependency, ...], int] = {(): count_of(self.spans)} if self.spans else {}
        dependencies.refuse_impossible(ledger, spec.after, self.ended, user=spec.user, tasks=tasks)
        job_requests.refuse_too_many(
            ledger.job_counts.waiting[spec.user], spec.user, self.spans, rules
        )
        job_requests.refuse_many_kinds(ledger, spec, job_requests.NewKinds(set))
        job_id, held = ledger.next_id, self.held
        settled = dependencies.settle_ended(job_id, spec, self.ended, at_s)
        if not self.spans:
            return [ev.Submitted(job_id, at_s, spec=spec, held=held), *settled]
        return [
            ev.ArraySubmitted(
                array_id=job_id,
                at_s=at_s,
                spec=spec,
                spans=self.spans,
                at_once=self.at_once,
                held=held,
                ends=settled[0].ends if settled else (),
            )
        ]


@dataclass(frozen=True, slots=True)
class JobAsked(Stimulus):
    """A request about a live job, or about all tasks of an array."""

    now: Now
    #: The id of the job or array.
    job_id: int
    actor: Actor
    #: Whether it is recorded of an array, too.
    is_recorded: ClassVar[bool] = False
    #: The tasks of the array that are meant; () for all.
    tasks: tuple[int, ...] = field(default=(), kw_only=True)
    #: Whether these are a part, the first that is granted, of a request about the whole array.
    is_part: bool = field(default=False, kw_only=True)

    def decide(self, ledger: Ledger, rules: Rules) -> list[ev.Event]:
        return self.for_each_job(ledger, self.judge)

    def judge(self, job: Job) -> list[ev.Event]:
        """Return the events for a job that the actor may act on."""
        raise NotImplementedError

    def for_each_job(
        self, ledger: Ledger, judge: Callable[[Job], list[ev.Event]]
    ) -> list[ev.Event]:
        """Return the events of `judge` for the job, or for every task of the array. Raises Refused
        if `judge` refuses all of them."""
        array_state = ledger.arrays.get(self.job_id)
        if array_state is None:
            return judge(job_requests.owned(ledger, self.job_id, self.actor))
        found: list[ev.Event] = []
        refusals: list[Refused] = []
        array = array_state.array
        tasks = self.tasks or [job.id for job in ledger.tasks(array)]
        for job_id in tasks:
            try:
                found += judge(job_requests.owned(ledger, job_id, self.actor))
            except Refused as refusal:
                refusals.append(refusal)
        if len(refusals) == len(tasks):
            raise refusals[0] if refusals else job_requests.no_such(self.job_id)
        if self.is_recorded and found and (self.is_part or not self.tasks):
            found = self.record(array.common, judge) + found
        return found

    def record(self, common: Job, judge: Callable[[Job], list[ev.Event]]) -> list[ev.Event]:
        """Return what is recorded of the array itself, at most one event."""
        with suppress(Refused):
            return judge(common)[:1]
        return []

    def outweighs(self, job: Job) -> bool:
        """Return whether an administrator's hold is to replace the owner's own."""
        return self.actor.is_admin and job.held_by == job.spec.user != self.actor.user


class CancelAsked(JobAsked):
    """A request to end a job, or to take it out of the queue."""

    def judge(self, job: Job) -> list[ev.Event]:
        by = self.actor.user
        if job.state in ev.Cancelled.moves:
            return [ev.Cancelled(job.id, self.now.at_s, by=by)]
        return stop(job, self.now, Outcome.CANCELLED, f"cancelled by {by}")


class HoldAsked(JobAsked):
    """A request to keep a waiting job from starting until it is released."""

    is_recorded: ClassVar[bool] = True

    def judge(self, job: Job) -> list[ev.Event]:
        if job.state is JobState.HELD and not self.outweighs(job):
            return []
        if job.state not in ev.Held.moves:
            is_running = job.state is JobState.RUNNING
            raise Refused(
                "not-waiting",
                f"job {job.label} is {job.shown_state}; only a waiting job can be held",
                hint=f"drf suspend {job.label} freezes it" if is_running else "",
            )
        return [ev.Held(job.id, self.now.at_s, by=self.actor.user)]

    def record(self, common: Job, judge: Callable[[Job], list[ev.Event]]) -> list[ev.Event]:
        if common.held_by == self.actor.user:
            # Some of its tasks were released since.
            return [ev.Held(common.id, self.now.at_s, by=self.actor.user)]
        return super().record(common, judge)


class ReleaseAsked(JobAsked):
    is_recorded: ClassVar[bool] = True

    def judge(self, job: Job) -> list[ev.Event]:
        if job.state not in ev.Released.moves:
            raise Refused("not-held", f"job {job.label} is {job.shown_state}, not held")
        job_requests.refuse_if_kept(job, self.actor)
        return [ev.Released(job.id, self.now.at_s, by=self.actor.user)]

    def record(self, common: Job, judge: Callable[[Job], list[ev.Event]]) -> list[ev.Event]:
        if common.state is JobState.PENDING:
            # Some of its tasks were held alone.
            return [ev.Released(common.id, self.now.at_s, by=self.actor.user)]
        return super().record(common, judge)


@dataclass(frozen=True, slots=True)
class RequeueAsked(JobAsked):
    """A request to stop a job's attempt and queue the job again under its id. It is granted until
    the job is cleaned up: a program that reached its time limit may ask for it."""

    #: Whether it is held from then on.
    held: bool

    def judge(self, job: Job) -> list[ev.Event]:
        if job.state in WAITING_STATES:
            hint = f"drf hold {job.label} keeps it from starting" if self.held else ""
            text = f"job {job.label} is {job.shown_state}: it is in the queue already"
            raise Refused("not-running", text, hint=hint)
        if job.spec.attach is not None:
            text = f"job {job.label} has a terminal; only a batch job is requeued"
            raise Refused("not-batch", text)
        intended = job.outcome if job.stop is None else job.stop.outcome
        if intended is Outcome.CANCELLED:
            raise Refused("not-running", f"job {job.label} is being cancelled")
        by = self.actor.user if self.held else None
        if job.stop is not None and (job.stop.outcome, job.stop.held_by) == (None, by):
            return []
        return [
            ev.StopRequested(
                job.id,
                self.now.at_s,
                mono_s=self.now.mono_s,
                outcome=None,
                text=f"requeued by {self.actor.user}",
                held_by=by,
            )
        ]


class SuspendAsked(JobAsked):
    """A request to freeze a running job."""

    def judge(self, job: Job) -> list[ev.Event]:
        if job.state not in ev.SuspendRequested.moves:
            is_waiting = job.state is JobState.PENDING
            raise Refused(
                "not-running",
                f"job {job.label} is {job.shown_state}; only a running job can be suspended",
                hint="drf hold keeps a waiting job from starting" if is_waiting else "",
            )
        if job.held_by is not None and not self.outweighs(job):
            return []
        by, now = self.actor.user, self.now
        since_s = None if self.actor.is_admin else now.mono_s
        text = f"suspended by {by}"
        return [ev.SuspendRequested(job.id, now.at_s, by=by, text=text, kept_mono_s=since_s)]


class ResumeAsked(JobAsked):
    def judge(self, job: Job) -> list[ev.Event]:
        if job.state is not JobState.SUSPENDED and not job.freezing:
            raise Refused("not-suspended", f"job {job.label} is {job.shown_state}, not suspended")
        job_requests.refuse_if_kept(job, self.actor)
        if job.held_by is None:
            return []
        return [ev.ResumeRequested(job.id, self.now.at_s, by=self.actor.user)]


@dataclass(frozen=True, slots=True)
class SignalAsked(JobAsked):
    signal: int

    def judge(self, job: Job) -> list[ev.Event]:
        is_frozen = job.state is JobState.SUSPENDED or job.freezing
        if job.state not in ev.SignalRequested.moves or is_frozen:
            raise Refused(
                "not-running",
                f"job {job.label} is {job.shown_state}; only a running job can be sent a signal",
                hint=f"drf resume {job.label} lets it run" if is_frozen else "",
            )
        by, number = self.actor.user, ends.signal_for(job, self.signal)
        return [ev.SignalRequested(job.id, self.now.at_s, signal=number, by=by)]


@dataclass(frozen=True, slots=True)
class ChangeAsked(JobAsked):
    is_recorded: ClassVar[bool] = True
    change: Change
    #: As in `SubmitAsked`.
    ended: Mapping[int, Outcome] = field(default_factory=dict)
    #: Labels of the tasks that have left the ledger, among its first old and new dependencies.
    names: Mapping[int, str] = field(default_factory=dict)

    def decide(self, ledger: Ledger, rules: Rules) -> list[ev.Event]:
        new, array_state = job_requests.NewKinds(set), ledger.arrays.get(self.job_id)
        if array_state is not None:
            if self.tasks and not self.is_part:
                some = (ledger.jobs[each] for each in self.tasks if each in ledger.jobs)
                tasks = Counter(job.spec.after for job in some)
            else:
                # Of a request about the whole array, the first part is refused if any is.
                tasks = array_state.afters.copy()
                tasks[()] = array_state.states.total() - tasks.total()
            self._refuse_impossible(ledger, self.job_id, array_state.array.spec, tasks)
        return self.for_each_job(ledger, lambda job: self._change(job, ledger, rules, new))

    def _refuse_impossible(
        self,
        ledger: Ledger,
        job_id: int,
        spec: JobSpec,
        tasks: Mapping[tuple[Dependency, ...], int],
    ) -> None:
        after = self.change.after
        if after is not None:
            dependencies.refuse_impossible(
                ledger, after, self.ended, user=spec.user, job_id=job_id, tasks=tasks
            )

    def _change(
        self, job: Job, ledger: Ledger, rules: Rules, new: job_requests.NewKinds
    ) -> list[ev.Event]:
        wish, at_s = self.change, self.now.at_s
        spec = job_requests.changed(job.spec, wish, rules)
        if job.state in _RUNS:
            job_requests.refuse_while_running(job, wish, spec, self.actor)
        elif job.state not in WAITING_STATES:
            raise Refused(
                "not-waiting", f"job {job.label} is {job.shown_state}: nothing can be changed"
            )
        elif (spec.demand, spec.pool) != (job.spec.demand, job.spec.pool):
            # A job that no longer fits since a change of the configuration may still be renamed.
            job_requests.refuse_unfit_change(spec, rules, ledger.calendar, at_s)
        if job.state in WAITING_STATES:
            job_requests.refuse_many_kinds(ledger, spec, new)
        if wish.time_limit_s is not None:
            job_requests.refuse_late_warning(spec)
        if job.array_id != self.job_id:
            # Else it is as for the array as a whole.
            tasks = {} if job.array_id is None else {job.spec.after: 1}
            self._refuse_impossible(ledger, job.id, job.spec, tasks)
        is_waiting_anew = job.not_before_s is not None or job.spec.begin_s != spec.begin_s
        if spec == job.spec and (wish.begin_s is None or not is_waiting_anew):
            return []
        text = ", ".join(job_requests.differences(job.spec, spec, ledger, self.names))
        changes = {
            option.name: option.none if after is None else after
            for option in OPTIONS
            if (after := getattr(spec, option.name)) != getattr(job.spec, option.name)
            or (option.is_condition and getattr(wish, option.name) is not None)
        }
        event = ev.Altered(
            job.id, at_s, by=self.actor.user, text=text or "may start at once", **changes
        )
        if wish.after is None:
            return [event]
        return [event, *dependencies.settle_ended(job.id, spec, self.ended, at_s)]


@dataclass(frozen=True, slots=True)
class DrainAsked(Stimulus):
    now: Now
    on: bool
    actor: Actor
    #: None to keep the reason of a stop that lasts already.
    reason: str | None = None
    #: The node, or "" for all of them.
    node: str = ""

    def decide(self, ledger: Ledger, rules: Rules) -> list[ev.Event]:
        if not self.actor.is_admin:
            raise NotPermitted("not-admin", "only an administrator may drain or undrain")
        node, before = self.node, ledger.drains.get(self.node)
        # A node that was removed from the configuration may still be undrained.
        if node and before is None:
            job_requests.refuse_unknown_node(node, ledger.axes)
        if before is None and not self.on:
            return []
        if before is not None and self.on and self.reason in (None, before.reason):
            return []
        return [
            ev.Drained(
                at_s=self.now.at_s,
                on=self.on,
                by=self.actor.user,
                reason=(self.reason or "") if self.on else "",
                since_s=before.stopped_s if before is not None and self.on else None,
                node=node,
            )
        ]


# -- reports ------------------------------------------------------------------------------------


class Report(Stimulus, Struct, tag_field="report", frozen=True):
    """A report on one attempt, by the launcher or from measurements, with the fields of the
    launcher's message. It matters while the attempt is the present one of its job, and the job's
    state allows the event."""

    at_s: float
    job_id: int = msgspec.field(name="id")
    attempt: int
    #: The known facts of `Owner`; none if the launcher does not name the owner.
    owner_facts: dict[str, object] = msgspec.field(default_factory=dict, name="of")
    #: The event that follows from it as a rule.
    event: ClassVar[type[ev.JobEvent]]

    @property
    def key(self) -> tuple[int, int]:
        return self.job_id, self.attempt

    @property
    def owner(self) -> Owner:
        return read_owner(self.owner_facts)

    def decide(self, ledger: Ledger, rules: Rules) -> list[ev.Event]:
        job = ledger.jobs.get(self.job_id)
        if job is None or job.attempt != self.attempt or job.state not in self.event.moves:
            return []
        return self.judge(job, ledger)

    def judge(self, job: Job, ledger: Ledger) -> list[ev.Event]:
        raise NotImplementedError


class LaunchedReport(Report, tag="launched", frozen=True, kw_only=True):
    """The attempt's program runs. The launcher reports it again after every reconnection."""

    mono_s: float
    #: 0 if it is not known.
    runner_pid: int = 0
    #: None if the attempt has no cgroup.
    cgroup: str | None = None
    event = ev.Launched

    def judge(self, job: Job, ledger: Ledger) -> list[ev.Event]:
        if job.started_at is not None:
            return []
        return [
            ev.Launched(
                job.id, self.at_s, attempt=self.attempt, mono_s=self.mono_s, cgroup=self.cgroup
            )
        ]


class LaunchFailedReport(Report, tag="launch_failed", frozen=True, kw_only=True):
    """The attempt's program could not be started."""

    text: str
    #: Of a temporary shortage: whose and what it is, as in `Postponed`.
    whose: Whose | None = None
    resource: str = ""
    event = ev.LaunchFailed

    def judge(self, job: Job, ledger: Ledger) -> list[ev.Event]:
        at_s, attempt, text = self.at_s, self.attempt, self.text
        if job.stop is not None and job.stop.outcome is not None:
            # The job is to stop, so its launch is not tried again after a shortage either.
            outcome, text = job.stop.outcome, job.stop.text
        elif self.whose is None:
            outcome = Outcome.LAUNCH_FAILED
        else:
            why = next_try(
                ledger.pause, job, self.whose, text=text, resource=self.resource, at_s=at_s
            )
            until_s = job_until_s(why)
            return [
                ev.LaunchPostponed(job.id, at_s, attempt=attempt, why=why, not_before_s=until_s)
            ]
        return [ev.LaunchFailed(job.id, at_s, attempt=attempt, text=text, outcome=outcome)]


class ExitedReport(Report, tag="exited", frozen=True, kw_only=True):
    """The attempt's first process has ended. What is left out is not known, as if its runner was
    gone before the end. One of which nothing is left, and that notifies nobody, is removed."""

    mono_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    #: Whether the kernel killed a process in this cgroup for memory.
    oom_killed: bool = False
    #: Whether the job's own memory limit was the cause, not a shortage of the whole machine.
    over_limit: bool = False
    #: How much it had written to its output files when it was killed for that, or None.
    output_bytes: int | None = None
    #: Whether its cgroup is gone, too, so that nothing but its file is left.
    gone: bool = False
    #: For an end that was not observed, its cause: one of `core.decisions.outcome.LOSSES`.
    loss: str | None = None
    #: Usage of the runner's children, as the runner measured it.
    cpu_s: float = 0.0
    peak_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    #: The counters of the cgroup, by the names of `launcher.confinement.cgroup_files`, if there may
    #: be one; and what they mean, by those of `Usage`.
    counters: dict[str, int] | None = None
    counted: dict[str, int] = {}
    #: What follows from these and from the controller's own measurements.
    usage: Usage | None = None
    event = ev.Exited

    def judge(self, job: Job, ledger: Ledger) -> list[ev.Event]:
        outcome, text = ends.judge_end(job, self)
        exited = ev.Exited(
            job.id,
            self.at_s,
            attempt=self.attempt,
            exit_code=self.exit_code,
            signal=self.signal,
            outcome=outcome,
            text=text,
            usage=self.usage,
            loss=ends.loss_of(outcome, self),
            gone=self.gone,
        )
        if not self.gone or job.spec.notify:
            return [exited]
        removed = RemovedReport(self.at_s, job.id, self.attempt)
        return [exited, *removed.judge(exited.apply(job), ledger)]


class FrozenReport(Report, tag="frozen", frozen=True, kw_only=True):
    """All processes of the attempt are frozen."""

    mono_s: float
    event = ev.Suspended

    def judge(self, job: Job, ledger: Ledger) -> list[ev.Event]:
        # Ignore a report that is repeated after a restart, or that a thaw has overtaken.
        if not job.freezing:
            return []
        return [ev.Suspended(job.id, self.at_s, attempt=job.attempt, mono_s=self.mono_s)]


class MissingReport(Report, tag="missing", frozen=True, kw_only=True):
    """The launcher has no trace of an attempt that should exist."""

    #: The cause if it is known: one of `core.decisions.outcome.LOSSES`.
    loss: str | None = None
    event = ev.Exited

    def judge(self, job: Job, ledger: Ledger) -> list[ev.Event]:
        # A STARTING job has not been launched yet: the launch is still owed.
        if job.state is JobState.STARTING:
            return []
        end = ExitedReport(self.at_s, job.id, self.attempt, loss=self.loss)
        return end.judge(job, ledger)


class RemovedReport(Report, tag="removed", frozen=True, kw_only=True):
    """No process and no cgroup of the attempt is left."""

    #: Result of the notification command, or None if there was none.
    notice: str | None = None
    event = ev.Cleaned

    def judge(self, job: Job, ledger: Ledger) -> list[ev.Event]:
        job_id, at_s, attempt = job.id, self.at_s, self.attempt
        if job.outcome is None:
            holder = None if job.stop is None else job.stop.held_by
            again = ev.Requeued(job_id, at_s, attempt=attempt)
            return [again, *([ev.Held(job_id, at_s, by=holder)] if holder else [])]
        if job.is_to_retry:
            until_s = ends.not_before_s(job, at_s)
            return [ev.Retried(job_id, at_s, attempt=attempt, not_before_s=until_s)]
        return [ev.Cleaned(job_id, at_s, attempt=attempt, notice=self.notice)]


class Breached(Report, frozen=True, kw_only=True):
    """The job has exceeded a measured limit for so long that it must be stopped."""

    mono_s: float
    outcome: Outcome
    text: str
    event = ev.StopRequested

    @classmethod
    def of(cls, job: Job, now: Now, outcome: Outcome, text: str) -> Breached:
        return cls(now.at_s, job.id, job.attempt, mono_s=now.mono_s, outcome=outcome, text=text)

    def judge(self, job: Job, ledger: Ledger) -> list[ev.Event]:
        return stop(job, Now(self.at_s, self.mono_s), self.outcome, self.text)


def stop(job: Job, now: Now, outcome: Outcome, text: str) -> list[ev.Event]:
    """Return the request to stop, or nothing if the job is being stopped or has ended already. A
    job that was to be requeued or retried ends instead."""
    is_retried = job.is_to_retry and outcome is not Outcome.CANCELLED
    if is_retried or is_over(job) or (job.stop is not None and job.stop.outcome is not None):
        return []
    at_s, mono_s = now.at_s, now.mono_s
    return [ev.StopRequested(job.id, at_s, mono_s=mono_s, outcome=outcome, text=text)]


def is_over(job: Job) -> bool:
    """Return whether the job's last attempt has ended; what is left of it may still be there."""
    return job.state is JobState.CLEANING and job.outcome is not None and not job.is_to_retry


#: What the launcher reports on an attempt.
AttemptReport = (
    LaunchedReport
    | LaunchFailedReport
    | ExitedReport
    | FrozenReport
    | MissingReport
    | RemovedReport
)


@dataclass(frozen=True, slots=True)
class IdsSeen(Stimulus):
    """The launcher knows attempts of jobs with ids up to this one. The next id is above all of
    them: a journal restored from an old copy would otherwise give two jobs, perhaps of two users,
    one id."""

    now: Now
    highest: int

    def decide(self, ledger: Ledger, rules: Rules) -> list[ev.Event]:
        if self.highest < ledger.next_id or self.highest > HIGHEST_RAISED_ID:
            return []
        return [ev.IdsRaised(at_s=self.now.at_s, next_id=self.highest + 1)]


@dataclass(frozen=True, slots=True)
class Tick(Stimulus):
    """Time has passed, so wall-time limits, suspensions and grace times are checked."""

    now: Now
    heard: Heard = field(default_factory=Heard)

    def decide(self, ledger: Ledger, rules: Rules) -> list[ev.Event]:
        found: list[ev.Event] = []
        at_s, mono_s = self.now.at_s, self.now.mono_s
        for job in ledger.allocated_jobs():
            due_mono_s = ends.deadline_mono_s(job, rules, self.heard.since_mono_s(job.node))
            if due_mono_s is None or due_mono_s > mono_s:
                continue
            if job.state is JobState.STOPPING:
                found.append(ev.Escalated(job.id, at_s))
            elif job.state is JobState.SUSPENDED:
                text = ends.kept_text(rules.max_suspended_s or 0)
                found += stop(job, self.now, Outcome.LIMIT_EXCEEDED, text)
            elif ends.is_timed_out(job, mono_s):
                found += stop(job, self.now, Outcome.TIMEOUT, ends.timeout_text(job))
            else:
                assert job.spec.warn is not None
                signal = ends.signal_for(job, job.spec.warn.signal)
                found.append(ev.Warned(job.id, at_s, signal=signal))
        found += dependencies.begin(ledger, at_s)
        return sorted(found, key=lambda event: getattr(event, "job_id", 0))
