"""Events, named in the past tense: only events are appended to the journal and applied.

The class of a job's event has its fields, the states in which it may happen with the next state of
each, what it changes of the job, and its line in `drf show`. docs/architecture.md shows the
transitions.

A released kind is never edited, because its records must stay readable; a new meaning gets a new
kind. No kind is a subclass of another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import ClassVar, get_args

from msgspec import Struct
from msgspec.structs import replace

from drfd.common.indices import count_of
from drfd.common.signals import show_signal
from drfd.core.model.account import account_of_run, joined
from drfd.core.model.job import (
    WAITING_STATES,
    Broken,
    Dependency,
    Job,
    JobSpec,
    Now,
    Outcome,
    Postponed,
    Stop,
    Usage,
    UserGroup,
)
from drfd.core.model.job import JobState as S
from drfd.core.model.machine import Instances
from drfd.core.model.options import changed_fields
from drfd.core.model.resources import Resources

#: The states of a job that has not started, and of one that is not being stopped.
_RUNS = (S.STARTING, S.RUNNING, S.SUSPENDED)
#: Number of requested signals that a job remembers. Older ones that could not be sent meanwhile are
#: lost, much as the kernel merges equal pending signals.
_MAX_SIGNALS = 16


class StartReason(StrEnum):
    """The scheduler's rule by which a job was started."""

    #: The job was first in the order of fair shares.
    TURN = "turn"
    #: Resources had been reserved for this job.
    RESERVATION = "reservation"
    #: Resources were reserved for another job, and this was the first that does not delay it.
    BACKFILL = "backfill"


_START_TEXTS = {
    StartReason.TURN: "",
    StartReason.RESERVATION: ", in the room reserved for it",
    StartReason.BACKFILL: ", beside a reservation that it does not delay",
}
#: Number of ended jobs named in a line of `drf show`; there may be a thousand.
_MAX_NAMED = 10
NameOf = Callable[[int], str]


class InvalidTransition(Exception):
    """A bug: an event that the state does not allow. The daemon ends; the journal stays intact."""


def _from(*states: S, to: S | None = None) -> dict[S, S]:
    """Return the moves from these states to `to`, or of an event that leaves them as they are."""
    return {state: to or state for state in states}


class _Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    def line(self, name_of: NameOf) -> str:
        """Return what `drf show` says of the event; `name_of` gives the name of another job."""
        text: str = getattr(self, "text", "")
        return text or (f"by {self.by}" if hasattr(self, "by") else "")


class JobEvent(_Event, frozen=True):
    """An event of one job. Each kind is a direct subclass (see `KINDS`)."""

    job_id: int
    at_s: float
    #: State → next state. In any other state the event cannot happen.
    moves: ClassVar[Mapping[S, S]] = {}

    def apply(self, job: Job) -> Job:
        """Return the job after the event. Raises InvalidTransition if its state does not allow
        the event."""
        state = self.moves.get(job.state)
        if state is None:
            raise InvalidTransition(f"{job.state} does not allow {self!r}")
        return self.changed(job if state is job.state else replace(job, state=state))

    def changed(self, job: Job) -> Job:
        """Return the job, given in its next state, with all other changes."""
        return job


class Submitted(JobEvent, frozen=True, kw_only=True):
    """A job was submitted: it is PENDING, or HELD."""

    spec: JobSpec
    held: bool = False

    def new_job(self) -> Job:
        return _submitted(self, self.job_id, None)


class Admitted(JobEvent, frozen=True, kw_only=True):
    """The job starts: its demand and these instances are allocated, and its launch is owed."""

    attempt: int
    instances: Instances = ()
    #: The node that it starts on; "" if there is one machine.
    node: str = ""
    why: StartReason = StartReason.TURN
    moves = _from(S.PENDING, to=S.STARTING)

    def changed(self, job: Job) -> Job:
        return replace(job, attempt=self.attempt, instances=self.instances, node=self.node)

    def launched(self, mono_s: float) -> Launched:
        """Return the event of a launch that takes no time, as in simulations and forecasts."""
        return Launched(self.job_id, self.at_s, attempt=self.attempt, mono_s=mono_s, cgroup=None)

    def line(self, name_of: NameOf) -> str:
        given = "".join(f", {name} {','.join(some)}" for name, some in self.instances)
        return f"attempt {self.attempt}{given}{_START_TEXTS[self.why]}"


class Held(JobEvent, frozen=True, kw_only=True):
    """The job was held; an administrator's hold replaces the owner's own."""

    by: str
    moves = _from(*WAITING_STATES, to=S.HELD)

    def changed(self, job: Job) -> Job:
        return replace(job, held_by=self.by, eligible_at=None)


class Released(JobEvent, frozen=True, kw_only=True):
    by: str
    moves = _from(S.HELD, to=S.PENDING)

    def changed(self, job: Job) -> Job:
        return _eligible(replace(job, held_by=None), self.at_s)


class Cancelled(JobEvent, frozen=True, kw_only=True):
    """The job ended without having run."""

    #: Name of the user, or "drfd" if it was cancelled by a rule that its submitter has chosen.
    by: str
    #: Why drfd cancelled it, in a sentence; empty if a user did.
    why: str = ""
    moves = _from(*WAITING_STATES, to=S.ENDED)

    def changed(self, job: Job) -> Job:
        first = "started again" if job.earlier_runs else "started"
        step = "was tried again" if job.retries else first
        text = self.why or f"cancelled by {self.by} before it {step}"
        return replace(job, ended_at=self.at_s, outcome=Outcome.CANCELLED, outcome_text=text)

    def line(self, name_of: NameOf) -> str:
        return self.why or super().line(name_of)


class Settled(Struct, frozen=True, kw_only=True):
    """The end of a job that another waits for."""

    #: The id of the job that has ended.
    on: int
    outcome: Outcome
    #: Whether the outcome is the one that the dependency requires.
    is_met: bool


class DependencySettled(JobEvent, frozen=True, kw_only=True):
    """Some jobs that this one waits for have ended, one or up to a thousand."""

    ends: tuple[Settled, ...]
    moves = _from(*WAITING_STATES)

    def changed(self, job: Job) -> Job:
        gone = {each.on for each in self.ends}
        awaits = tuple([each for each in job.awaits if each.job_id not in gone])
        unmet = (Broken(each.on, each.outcome) for each in self.ends if not each.is_met)
        broken = next(unmet, None) if job.broken is None else job.broken
        return _eligible(replace(job, awaits=awaits, broken=broken), self.at_s)

    def line(self, name_of: NameOf) -> str:
        named = self.ends[:_MAX_NAMED]
        text = ", ".join(f"job {name_of(each.on)} ended {each.outcome}" for each in named)
        left = len(self.ends) - len(named)
        return f"{text}, and {left} more have ended" if left else text


class BeginReached(JobEvent, frozen=True, kw_only=True):
    """The earliest start time of the job has passed."""

    moves = _from(*WAITING_STATES)

    def changed(self, job: Job) -> Job:
        return _eligible(replace(job, not_before_s=None), self.at_s)


class Launched(JobEvent, frozen=True, kw_only=True):
    """The job's program runs; a stop may overtake the report of that."""

    attempt: int
    mono_s: float
    cgroup: str | None
    moves = _from(S.STARTING, to=S.RUNNING) | _from(S.STOPPING)

    def changed(self, job: Job) -> Job:
        return replace(
            job,
            started_at=self.at_s,
            started_mono_s=self.mono_s,
            cgroup=self.cgroup,
            postponed=None,
        )


class LaunchFailed(JobEvent, frozen=True, kw_only=True):
    """The job's program never ran: a limit could not be applied, a directory is missing, …"""

    attempt: int
    #: A sentence for the submitter that says what failed.
    text: str
    #: LAUNCH_FAILED, or the outcome of the stop requested while the job was starting.
    outcome: Outcome
    # RUNNING: the launch was reported before exec has succeeded.
    moves = _from(S.STARTING, S.RUNNING, S.STOPPING, to=S.CLEANING)

    def changed(self, job: Job) -> Job:
        return replace(
            job, freezing=False, ended_at=self.at_s, outcome=self.outcome, outcome_text=self.text,
            gone=True,
        )  # fmt: skip


class LaunchPostponed(JobEvent, frozen=True, kw_only=True):
    """The job's program has not run, because of a temporary shortage. Once the attempt is removed,
    the job waits again at its old place in the queue."""

    attempt: int
    why: Postponed
    #: Unix time before which this job may not start, or None if only the shortage delays it.
    not_before_s: int | None = None
    moves = LaunchFailed.moves

    def changed(self, job: Job) -> Job:
        return replace(
            job,
            freezing=False,
            started_at=None,
            started_mono_s=None,
            ended_at=self.at_s,
            not_before_s=self.not_before_s,
            postponed=self.why,
            postponements=job.postponements + 1,
        )

    def line(self, name_of: NameOf) -> str:
        return self.why.text


class StopRequested(JobEvent, frozen=True, kw_only=True):
    """A user or a limit requires the job to stop; recorded before the first signal is sent. Of a
    job that stops or is cleaned up already, it changes whether the job ends or is requeued."""

    mono_s: float
    #: None if the job is to be queued again.
    outcome: Outcome | None
    text: str
    #: Of a job that is queued again, the user who holds it from then on, or None.
    held_by: str | None = None
    moves = _from(*_RUNS, S.STOPPING, to=S.STOPPING) | _from(S.CLEANING)

    def changed(self, job: Job) -> Job:
        # A frozen job cannot act on SIGTERM, so there is no grace time. That of a job with a stop
        # has begun already.
        is_frozen = job.suspended_at is not None
        stop = job.stop or _stop(self, escalated=is_frozen)
        stop = dataclasses.replace(stop, outcome=self.outcome, text=self.text, held_by=self.held_by)
        job = replace(job, stop=stop, freezing=False)
        if job.state is S.CLEANING:
            return replace(job, outcome=self.outcome, outcome_text=self.text)
        return job


class PreemptRequested(JobEvent, frozen=True, kw_only=True):
    """The job is stopped for another and queued again; recorded before the first signal."""

    mono_s: float
    text: str
    moves = _from(S.RUNNING, to=S.STOPPING)

    def changed(self, job: Job) -> Job:
        preemptions = job.preemptions + 1
        return replace(job, stop=_stop(self), freezing=False, preemptions=preemptions)


class SuspendRequested(JobEvent, frozen=True, kw_only=True):
    """The job is to be frozen; it keeps its whole allocation until then."""

    #: The user who must resume it, or None if drfd resumes it as soon as there is room.
    by: str | None
    text: str
    #: Of a user who is no administrator, the time from which the longest suspension is measured.
    kept_mono_s: float | None = None
    # It runs until the freeze is reported.
    moves = _from(S.RUNNING, S.SUSPENDED)

    def changed(self, job: Job) -> Job:
        return replace(
            job,
            held_by=self.by,
            kept_since=None if self.kept_mono_s is None else Now(self.at_s, self.kept_mono_s),
            preemptions=job.preemptions + (self.by is None),
            freezing=job.freezing or job.state is S.RUNNING,
        )


class ResumeRequested(JobEvent, frozen=True, kw_only=True):
    """The job is to go on as soon as the resources that it released are free."""

    by: str
    moves = SuspendRequested.moves

    def changed(self, job: Job) -> Job:
        return replace(job, held_by=None, kept_since=None)


class Suspended(JobEvent, frozen=True, kw_only=True):
    """All processes of the job are frozen; it keeps its memory and releases cores and rates."""

    attempt: int
    mono_s: float
    moves = _from(S.RUNNING, to=S.SUSPENDED)

    def changed(self, job: Job) -> Job:
        return replace(
            job,
            freezing=False,
            suspended_at=self.at_s,
            suspended_mono_s=self.mono_s,
            suspensions=job.suspensions + 1,
        )


class Resumed(JobEvent, frozen=True, kw_only=True):
    """The job's whole demand is allocated again, and its thaw is owed."""

    mono_s: float
    moves = _from(S.SUSPENDED, to=S.RUNNING)

    def changed(self, job: Job) -> Job:
        assert job.suspended_mono_s is not None
        return replace(
            job,
            suspended_at=None,
            suspended_mono_s=None,
            suspended_s=job.suspended_s + self.mono_s - job.suspended_mono_s,
        )


class Warned(JobEvent, frozen=True, kw_only=True):
    """The time limit is near, and the signal that the job asked for is owed."""

    signal: int
    moves = _from(S.RUNNING)

    def changed(self, job: Job) -> Job:
        return _signalled(replace(job, warned=True), self.signal)

    def line(self, name_of: NameOf) -> str:
        return f"the time limit is near: {show_signal(self.signal)} sent"


class SignalRequested(JobEvent, frozen=True, kw_only=True):
    """A user has requested a signal for the job; recorded before it is sent."""

    signal: int
    by: str
    moves = _from(S.RUNNING)

    def changed(self, job: Job) -> Job:
        return _signalled(job, self.signal)

    def line(self, name_of: NameOf) -> str:
        return f"{show_signal(self.signal)}, by {self.by}"


class Escalated(JobEvent, frozen=True, kw_only=True):
    """The grace time is over, and SIGKILL is owed from now on."""

    moves = _from(S.STOPPING)

    def changed(self, job: Job) -> Job:
        assert job.stop is not None
        return replace(job, stop=dataclasses.replace(job.stop, escalated=True))


class Exited(JobEvent, frozen=True, kw_only=True):
    """The job's first process has ended; its cgroup may not be empty yet."""

    attempt: int
    #: Both are None if the exit status cannot be known.
    exit_code: int | None
    signal: int | None
    #: None if only this attempt is over and the job goes back to the queue.
    outcome: Outcome | None
    text: str
    usage: Usage | None
    #: With LOST, the cause: one of `core.decisions.outcome.LOSSES`.
    loss: str | None = None
    #: Whether no process and no cgroup is left either.
    gone: bool = False
    # STARTING: the launcher was disconnected during the whole run and reports only the end.
    moves = _from(*_RUNS, S.STOPPING, to=S.CLEANING)

    @classmethod
    def completed(cls, job_id: int, attempt: int, at_s: float) -> Exited:
        """Return the event of a good end of which nothing was measured, as in simulations and
        forecasts."""
        return cls(
            job_id, at_s, attempt=attempt, exit_code=0, signal=None,
            outcome=Outcome.COMPLETED, text="", usage=None,
        )  # fmt: skip

    def changed(self, job: Job) -> Job:
        return replace(
            job,
            freezing=False,
            ended_at=self.at_s,
            exit_code=self.exit_code,
            signal=self.signal,
            outcome=self.outcome,
            outcome_text=self.text,
            loss=self.loss,
            usage=self.usage,
            gone=self.gone,
        )


class Cleaned(JobEvent, frozen=True, kw_only=True):
    """No process and no cgroup of the attempt is left, so its resources are free."""

    attempt: int
    #: Result of the notification command, or None if there was none.
    notice: str | None = None
    moves = _from(S.CLEANING, to=S.ENDED)

    def line(self, name_of: NameOf) -> str:
        return "" if self.notice is None else f"notification {self.notice}"


class Requeued(JobEvent, frozen=True, kw_only=True):
    """The attempt is removed, and the job waits again at its old place in the queue."""

    attempt: int
    moves = _from(S.CLEANING, to=S.PENDING)

    def changed(self, job: Job) -> Job:
        return _eligible(_queued_again(job), self.at_s)


class Retried(JobEvent, frozen=True, kw_only=True):
    """The attempt is removed, and its outcome is one after which the job is tried again."""

    attempt: int
    #: Unix time before which the next attempt may not start.
    not_before_s: int
    moves = Requeued.moves

    def changed(self, job: Job) -> Job:
        again = replace(
            _queued_again(job),
            not_before_s=self.not_before_s,
            retries=job.retries + 1,
            last_end=f"attempt {job.attempt} ended {job.outcome} ({job.outcome_text})",
        )
        return _eligible(again, self.at_s)

    def line(self, name_of: NameOf) -> str:
        return f"after attempt {self.attempt}"


class Altered(JobEvent, frozen=True, kw_only=True):
    """The specification of the job was changed; a field that is None is unchanged. `OPTIONS` has
    the values that remove something."""

    by: str
    text: str
    name: str | None = None
    comment: str | None = None
    pool: str | None = None
    priority: int | None = None
    time_limit_s: int | None = None
    demand: Resources | None = None
    #: Perhaps equal to the old ones, as is the begin time.
    after: tuple[Dependency, ...] | None = None
    begin_s: int | None = None
    group: UserGroup | None = None
    cores_max_milli: int | None = None
    moves = _from(*WAITING_STATES, *_RUNS)

    def changed(self, job: Job) -> Job:
        changes = changed_fields(self)
        job = replace(job, spec=replace(job.spec, **changes))
        if "after" in changes:
            job = replace(job, awaits=job.spec.after, broken=None)
        if "begin_s" in changes:
            job = replace(job, not_before_s=job.spec.begin_s)
        return _eligible(job, self.at_s) if {"after", "begin_s"} & changes.keys() else job

    def line(self, name_of: NameOf) -> str:
        return f"{self.text}, by {self.by}"


class ArraySubmitted(_Event, frozen=True, kw_only=True):
    """An array was submitted; its tasks have the ids after its own, in the order of their indices.
    A job event whose `job_id` is an array's id records an order about all tasks. It changes what is
    shown of the array; each task that the order changes has an event of its own.
    """

    array_id: int
    at_s: float
    spec: JobSpec
    #: First index, last index and step of each range, in order; see `drfd.common.indices`.
    spans: tuple[tuple[int, int, int], ...]
    #: Maximum number of tasks running at once, or None if there is no such limit.
    at_once: int | None
    held: bool = False
    #: The jobs that it would wait for and that had ended before.
    ends: tuple[Settled, ...] = ()

    def new_job(self) -> Job:
        """Return a job that its tasks are like: with the array's id, and no index."""
        job = _submitted(self, self.array_id, self.array_id)
        if not self.ends:
            return job
        return DependencySettled(self.array_id, self.at_s, ends=self.ends).apply(job)

    def line(self, name_of: NameOf) -> str:
        return f"{count_of(self.spans)} tasks"


def _submitted(event: Submitted | ArraySubmitted, job_id: int, array_id: int | None) -> Job:
    spec = event.spec
    is_early = spec.begin_s is not None and spec.begin_s > event.at_s
    must_wait = event.held or bool(spec.after) or is_early
    return Job(
        id=job_id,
        array_id=array_id,
        spec=spec,
        state=S.HELD if event.held else S.PENDING,
        submitted_at=event.at_s,
        eligible_at=None if must_wait else event.at_s,
        held_by=spec.user if event.held else None,
        awaits=spec.after,
        not_before_s=spec.begin_s if must_wait else None,
    )


def _eligible(job: Job, at_s: float) -> Job:
    """Return the job, marked eligible if no condition delays it at that Unix time."""
    is_early = job.not_before_s is not None and job.not_before_s > at_s
    if job.state is not S.PENDING or job.awaits or job.broken is not None or is_early:
        return replace(job, eligible_at=None)
    since_s = at_s if job.eligible_at is None else job.eligible_at
    return replace(job, eligible_at=since_s, not_before_s=None)


def _stop(event: StopRequested | PreemptRequested, *, escalated: bool = False) -> Stop:
    return Stop(
        outcome=None, text=event.text, at_s=event.at_s, mono_s=event.mono_s, escalated=escalated
    )


def _signalled(job: Job, number: int) -> Job:
    signals = (*job.signals, number)[-_MAX_SIGNALS:]
    return replace(job, signals=signals, signal_count=job.signal_count + 1)


def _queued_again(job: Job) -> Job:
    """Return the job without the state of its last attempt, waiting again. A job whose launch was
    postponed keeps the time since which it has been eligible."""
    run = account_of_run(job)
    is_postponed = job.postponed is not None and job.outcome is None
    return Job(
        id=job.id,
        spec=job.spec,
        state=S.PENDING,
        attempt=job.attempt,
        submitted_at=job.submitted_at,
        preemptions=job.preemptions,
        retries=job.retries,
        last_end=job.last_end,
        earlier_runs=job.earlier_runs if run is None else joined(job.earlier_runs or {}, run),
        array_id=job.array_id,
        array_index=job.array_index,
        postponements=job.postponements,
        postponed=job.postponed if is_postponed else None,
        not_before_s=job.not_before_s if is_postponed else None,
        eligible_at=job.eligible_at if is_postponed else None,
    )


class Drained(_Event, frozen=True, kw_only=True):
    """Launching was stopped (`on`) or allowed again, on one node or on all, or the reason of the
    stop was changed; not about one job."""

    at_s: float
    on: bool
    by: str
    #: What the administrator says about the stop, for everybody to read; may be empty.
    reason: str = ""
    #: Since when launching has been stopped, if only the reason was changed.
    since_s: float | None = None
    #: The node, or "" for all of them.
    node: str = ""

    @property
    def stopped_s(self) -> float:
        return self.at_s if self.since_s is None else self.since_s


class IdsRaised(_Event, frozen=True, kw_only=True):
    """The next job gets this id or a higher one. The launcher knows attempts with lower ids that
    this journal never gave out."""

    at_s: float
    next_id: int


Event = JobEvent | ArraySubmitted | Drained | IdsRaised

#: Every kind of event by its name in the journal.
KINDS: dict[str, type] = {
    cls.__name__: cls for cls in (*JobEvent.__subclasses__(), *get_args(Event)[1:])
}
