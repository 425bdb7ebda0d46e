"""Inputs of the core: authenticated requests, reports from the launcher, and the passing of time.

Each carries its time, because the core reads no clock: `at_s` is Unix time, for people; `mono_s`
is the machine's monotonic clock, by which limits and grace times are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drfd.common.indices import Span
from drfd.common.units import Most
from drfd.core.model.job import Dependency, JobSpec, Outcome, Usage, UserGroup, Whose


@dataclass(frozen=True, slots=True)
class Now:
    at_s: float
    mono_s: float


@dataclass(frozen=True, slots=True)
class Actor:
    """The user who makes a request, authenticated by the kernel."""

    user: str
    uid: int
    is_admin: bool
    #: Whether the uid has an account; if not, `user` is the number.
    has_account: bool = True


@dataclass(frozen=True, slots=True)
class SubmitAsked:
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


@dataclass(frozen=True, slots=True)
class JobAsked:
    """A request about a live job, or about all tasks of an array."""

    now: Now
    #: The id of the job or array.
    job_id: int
    actor: Actor
    #: Whether it is only about the tasks of the array that have no record of their own.
    unmaterialized_only: bool = field(default=False, kw_only=True)


class CancelAsked(JobAsked):
    """A request to end a job, or to take it out of the queue."""


class HoldAsked(JobAsked):
    """A request to keep a waiting job from starting until it is released."""


class ReleaseAsked(JobAsked):
    """A request to let a held job start."""


@dataclass(frozen=True, slots=True)
class RequeueAsked(JobAsked):
    """A request to stop a job's attempt and queue the job again."""

    #: Whether it is held from then on.
    held: bool


class SuspendAsked(JobAsked):
    """A request to freeze a running job."""


class ResumeAsked(JobAsked):
    """A request to let a suspended job go on."""


@dataclass(frozen=True, slots=True)
class SignalAsked(JobAsked):
    """A request to send a running job a signal."""

    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The changes that `drf set` asks for; a field that is None stays as it is."""

    name: str | None = None
    pool: str | None = None
    priority: int | None = None
    #: Seconds; 0 removes the limit.
    time_limit_s: int | None = None
    cores_milli: int | None = None
    memory_bytes: int | None = None
    read_bps: int | None = None
    write_bps: int | None = None
    #: Name, read rate and write rate of each disk, in bytes per second.
    disks: tuple[tuple[str, int, int], ...] | None = None
    #: Upper ends of ranges. A new amount without one is a single figure, and so is one with 0.
    cores_max_milli: Most | None = None
    read_max_bps: Most | None = None
    write_max_bps: Most | None = None
    #: Name, and upper ends of reads and writes, of each of `disks`.
    disks_max: tuple[tuple[str, Most, Most], ...] = ()
    #: Name and count of each countable resource; a count of 0 removes it.
    gres: tuple[tuple[str, int], ...] | None = None
    #: Name and bytes on each instance of it; 0 removes the limit.
    gres_memory: tuple[tuple[str, int], ...] | None = None
    after: tuple[Dependency, ...] | None = None
    #: Unix time; 0 removes the begin time.
    begin_s: int | None = None
    #: One without a name takes the job out of its group.
    group: UserGroup | None = None


@dataclass(frozen=True, slots=True)
class ChangeAsked(JobAsked):
    """A request to change the specification of a job."""

    change: Change
    #: As in `SubmitAsked`.
    ended: Mapping[int, Outcome] = field(default_factory=dict)
    #: Labels of the tasks among its old and new dependencies that have left the ledger, by id.
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrainAsked:
    now: Now
    on: bool
    actor: Actor
    #: None to keep the reason of a stop that lasts already.
    reason: str | None = None
    #: The node, or "" for all of them.
    node: str = ""


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The attempt's program runs. The launcher reports it again after every reconnection."""

    job_id: int
    attempt: int
    at_s: float
    mono_s: float
    cgroup: str | None


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """A report on one attempt, by the launcher or from measurements."""

    now: Now
    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class LaunchAborted(AttemptReport):
    """The attempt's program could not be started."""

    text: str


@dataclass(frozen=True, slots=True)
class LaunchShort(AttemptReport):
    """The attempt's program has not run, because of a temporary shortage."""

    text: str
    whose: Whose
    #: As in `Postponed`.
    resource: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The attempt's first process has ended; code and signal are both None if unknown."""

    job_id: int
    attempt: int
    at_s: float
    #: None if the runner was gone before the end.
    mono_s: float | None
    exit_code: int | None
    signal: int | None
    #: Whether the kernel killed a process in this cgroup for memory.
    oom_killed: bool
    #: Whether the job's own memory limit was the cause, not a shortage of the whole machine.
    over_limit: bool
    usage: Usage | None
    #: How much it had written to its output files when it was killed for that, or None.
    output_bytes: int | None = None
    #: For an end that was not observed, its cause: one of `core.decisions.outcome.LOSSES`.
    loss: str | None = None


class Frozen(AttemptReport):
    """All processes of the attempt are frozen."""


@dataclass(frozen=True, slots=True)
class AttemptMissing(AttemptReport):
    """The launcher has no trace of an attempt that should exist."""

    #: The cause if it is known: one of `core.decisions.outcome.LOSSES`.
    loss: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptRemoved(AttemptReport):
    """No process and no cgroup of the attempt is left."""

    #: Result of the notification command, or None if there was none.
    notice: str | None = None


@dataclass(frozen=True, slots=True)
class NeverNotified:
    """The owner of a job that never starts was notified of that, or cannot be."""

    now: Now
    job_id: int
    #: Result of the notification command, or why it was not run.
    notice: str
    #: Labels of array tasks that are no longer in the ledger.
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IdsSeen:
    """The launcher knows attempts of jobs with ids up to this one."""

    now: Now
    highest: int


@dataclass(frozen=True, slots=True)
class Breached(AttemptReport):
    """The job has exceeded a measured limit for so long that it must be stopped."""

    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class Heard:
    """Since when launchers take orders, on the monotonic clock; None while one takes none."""

    #: That of the controller's own node, and of all that are not named.
    mono_s: float | None = 0.0
    by_node: Mapping[str, float | None] = field(default_factory=dict)

    def since_mono_s(self, node: str) -> float | None:
        return self.by_node.get(node, self.mono_s)


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed, so wall-time limits and grace times are checked."""

    now: Now
    heard: Heard = field(default_factory=Heard)


Stimulus = (
    SubmitAsked
    | CancelAsked
    | HoldAsked
    | ReleaseAsked
    | RequeueAsked
    | SuspendAsked
    | ResumeAsked
    | SignalAsked
    | ChangeAsked
    | DrainAsked
    | AttemptStarted
    | LaunchAborted
    | LaunchShort
    | AttemptEnded
    | Frozen
    | AttemptMissing
    | AttemptRemoved
    | NeverNotified
    | IdsSeen
    | Breached
    | Tick
)
