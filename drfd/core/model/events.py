"""Events, named in the past tense: only events are appended to the journal and applied.

A kind, once released, is never edited, because its records must stay readable. A new meaning gets a
new kind. No kind is a subclass of another.
"""

from __future__ import annotations

from enum import StrEnum
from typing import get_args

from msgspec import Struct

from drfd.core.amounts.instances import Instances
from drfd.core.amounts.resources import Resources
from drfd.core.model.job import Dependency, JobSpec, Outcome, Postponed, Usage, UserGroup


class StartReason(StrEnum):
    """The scheduler's rule by which a job was started, recorded for a later audit."""

    #: The job was first in the order of fair shares.
    TURN = "turn"
    #: Resources had been reserved for this job.
    RESERVATION = "reservation"
    #: Resources were reserved for another job, and this was the first that does not delay it.
    BACKFILL = "backfill"


class _OfJob(Struct, frozen=True, kw_only=True):
    job_id: int
    at_s: float


class _OfAttempt(_OfJob, frozen=True, kw_only=True):
    attempt: int


class Admitted(_OfAttempt, frozen=True, kw_only=True):
    """The job starts: its demand and these instances are allocated, and its launch is owed."""

    instances: Instances = ()
    #: The node that it starts on; "" if there is one machine.
    node: str = ""
    why: StartReason = StartReason.TURN

    def launched(self, mono_s: float) -> Launched:
        """Return the event of a launch that takes no time, as in simulations and forecasts."""
        return Launched(
            job_id=self.job_id, at_s=self.at_s, attempt=self.attempt, mono_s=mono_s, cgroup=None
        )


class Launched(_OfAttempt, frozen=True, kw_only=True):
    mono_s: float
    cgroup: str | None


class LaunchFailed(_OfAttempt, frozen=True, kw_only=True):
    """The job's program never ran: a limit could not be applied, a directory is missing, …"""

    #: A sentence for the submitter that says what failed.
    text: str
    #: LAUNCH_FAILED, or the outcome of the stop requested while the job was starting.
    outcome: Outcome


class LaunchPostponed(_OfAttempt, frozen=True, kw_only=True):
    """The job's program has not run, because of a temporary shortage.

    Once the attempt is removed, the job waits again at its old place in the queue.
    """

    why: Postponed
    #: Unix time before which this job may not start, or None if only the shortage delays it.
    not_before_s: int | None = None


class StopRequested(_OfJob, frozen=True, kw_only=True):
    """A user or a limit requires the job to stop; recorded before the first signal is sent."""

    mono_s: float
    #: None if the job is to be queued again.
    outcome: Outcome | None
    text: str
    #: Of a job that is queued again, the user who holds it from then on, or None.
    held_by: str | None = None


class PreemptRequested(_OfJob, frozen=True, kw_only=True):
    """The job is stopped for another and queued again; recorded before the first signal."""

    mono_s: float
    #: The starving job that gets the released resources.
    for_job: int
    text: str


class Escalated(_OfJob, frozen=True, kw_only=True):
    """The grace time is over, and SIGKILL is owed from now on."""


class Exited(_OfAttempt, frozen=True, kw_only=True):
    """The job's first process has ended; its cgroup may not be empty yet."""

    #: Both are None if the exit status cannot be known.
    exit_code: int | None
    signal: int | None
    #: None if only this attempt is over and the job goes back to the queue.
    outcome: Outcome | None
    text: str
    usage: Usage | None
    #: With LOST, the cause: one of `core.decisions.outcome.LOSSES`.
    loss: str | None = None


class Cleaned(_OfAttempt, frozen=True, kw_only=True):
    """No process and no cgroup of the attempt is left, so its resources are free."""

    #: Result of the notification command, or None if there was none.
    notice: str | None = None


class Requeued(_OfAttempt, frozen=True, kw_only=True):
    """The attempt is removed, and the job waits again at its old place in the queue."""


class SuspendRequested(_OfJob, frozen=True, kw_only=True):
    """The job is to be frozen; it keeps its whole allocation until then."""

    #: The user who must resume it, or None if drfd resumes it as soon as there is room.
    by: str | None
    text: str


class Suspended(_OfAttempt, frozen=True, kw_only=True):
    """All processes of the job are frozen; it keeps its memory and releases cores and rates."""

    mono_s: float


class ResumeRequested(_OfJob, frozen=True, kw_only=True):
    """The job is to go on as soon as the resources that it released are free."""

    by: str


class Resumed(_OfJob, frozen=True, kw_only=True):
    """The job's whole demand is allocated again, and its thaw is owed."""

    mono_s: float


class Retried(_OfAttempt, frozen=True, kw_only=True):
    """The attempt is removed, and its outcome is one after which the job is tried again."""

    #: Unix time before which the next attempt may not start.
    not_before_s: int


class Warned(_OfJob, frozen=True, kw_only=True):
    """The time limit is near, and the signal that the job asked for is owed."""

    signal: int


class SignalRequested(_OfJob, frozen=True, kw_only=True):
    """A user has requested a signal for the job; recorded before it is sent."""

    signal: int
    by: str


class Submitted(_OfJob, frozen=True, kw_only=True):
    spec: JobSpec
    held: bool = False


class Held(_OfJob, frozen=True, kw_only=True):
    by: str


class Released(_OfJob, frozen=True, kw_only=True):
    by: str


class Cancelled(_OfJob, frozen=True, kw_only=True):
    """The job ended without having run."""

    #: Name of the user, or "drfd" if it was cancelled by a rule that its submitter has chosen.
    by: str
    #: Why drfd cancelled it, in a sentence; empty if a user did.
    why: str = ""


class Settled(Struct, frozen=True, kw_only=True):
    """The end of a job that another waits for."""

    #: The id of the job that has ended.
    on: int
    outcome: Outcome
    #: Whether the outcome is the one that the dependency requires.
    is_met: bool


class DependencySettled(_OfJob, frozen=True, kw_only=True):
    """One or more jobs that this one waits for have ended; `on` is the first of them."""

    on: int
    outcome: Outcome
    is_met: bool
    #: Further ends in the same event, so that a thousand ends need one event per waiting job.
    also: tuple[Settled, ...] = ()

    @property
    def all(self) -> tuple[Settled, ...]:
        """All ends of this event, the first one included."""
        first = Settled(on=self.on, outcome=self.outcome, is_met=self.is_met)
        return (first, *self.also)


class OwnerNotified(_OfJob, frozen=True, kw_only=True):
    """The job's owner was notified that the job can never start, or could not be."""

    #: Result of the notification command, or why it was not run.
    notice: str


class BeginReached(_OfJob, frozen=True, kw_only=True):
    """The earliest start time of the job has passed."""


class Altered(_OfJob, frozen=True, kw_only=True, omit_defaults=True):
    """The specification of the job was changed; a field that is None is unchanged."""

    by: str
    text: str
    name: str | None = None
    pool: str | None = None
    priority: int | None = None
    #: Seconds; 0 removes the limit.
    time_limit_s: int | None = None
    demand: Resources | None = None
    #: New dependencies, and new begin time (0 removes it), perhaps equal to the old ones.
    after: tuple[Dependency, ...] | None = None
    begin_s: int | None = None
    #: The new group; one without a name for none.
    group: UserGroup | None = None
    #: The new upper ends of ranges; nothing of all for none.
    most: Resources | None = None


class ArraySubmitted(Struct, frozen=True, kw_only=True):
    """An array was submitted; its tasks have the ids after its own, in the order of their indices.

    A job event whose `job_id` is an array's id is about all tasks that have no record of their own.
    """

    array_id: int
    at_s: float
    spec: JobSpec
    #: First index, last index and step of each range, in order; see `drfd.common.indices`.
    spans: tuple[tuple[int, int, int], ...]
    #: Maximum number of tasks running at once, or None if there is no such limit.
    at_once: int | None
    held: bool = False


class Drained(Struct, frozen=True, kw_only=True):
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
        """Unix time since which launching has been stopped."""
        return self.at_s if self.since_s is None else self.since_s


class Configured(Struct, frozen=True, kw_only=True):
    """New rules came into force; not about one job."""

    at_s: float
    #: Digest under which the journal keeps the canonical text of the rules.
    rules: str


class DaemonStarted(Struct, frozen=True, kw_only=True):
    """A controller started; not about one job."""

    at_s: float
    version: str
    #: Digest of the rules in force from its start, as in `Configured`.
    rules: str
    #: Unix time at which an earlier controller was last seen alive, or None for a new journal. No
    #: job could start between then and `at_s`.
    away_since_s: float | None


class DaemonStopped(Struct, frozen=True, kw_only=True):
    """A controller shut down in order while jobs run on; not about one job."""

    at_s: float


class ExternalLoadChanged(Struct, frozen=True, kw_only=True):
    """Processes or jobs outside drfd use more or less of the capacity than at the last such event.

    Not about one job. Small changes are not recorded.
    """

    at_s: float
    #: Resources of the controller's own machine that are kept free for processes from now on.
    kept: Resources
    #: Other nodes → what their scheduler has given to jobs that are not drfd's, sorted by name;
    #: those with nothing are left out.
    elsewhere: tuple[tuple[str, Resources], ...] = ()


class LaunchersAway(Struct, frozen=True, kw_only=True):
    """Other nodes than before are without a launcher, so that nothing starts on them.

    Not about one job. A launcher is taken to be there until such an event says otherwise.
    """

    at_s: float
    #: Whether nothing starts anywhere, as without the launcher of the controller's own machine.
    everywhere: bool
    #: The nodes without a launcher, by name, while there is one elsewhere.
    nodes: tuple[str, ...] = ()


class IdsRaised(Struct, frozen=True, kw_only=True):
    """The next job gets this id or a higher one.

    The launcher knows attempts with lower ids that this journal never gave out.
    """

    at_s: float
    next_id: int


JobEvent = (
    Submitted
    | Held
    | Released
    | Cancelled
    | Admitted
    | Launched
    | LaunchFailed
    | LaunchPostponed
    | StopRequested
    | PreemptRequested
    | Escalated
    | Exited
    | Cleaned
    | Requeued
    | SuspendRequested
    | Suspended
    | ResumeRequested
    | Resumed
    | DependencySettled
    | OwnerNotified
    | BeginReached
    | Retried
    | Warned
    | SignalRequested
    | Altered
)
Event = JobEvent | ArraySubmitted | Drained | IdsRaised
#: Events that do not change the ledger, recorded because an audit cannot derive them from jobs.
AuditEvent = Configured | DaemonStarted | DaemonStopped | ExternalLoadChanged | LaunchersAway

#: Every kind of event by its name in the journal.
KINDS: dict[str, type] = {cls.__name__: cls for cls in get_args(Event)}
AUDIT_KINDS: dict[str, type] = {cls.__name__: cls for cls in get_args(AuditEvent)}
