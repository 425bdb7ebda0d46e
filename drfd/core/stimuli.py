"""What the shell reports to the core: requests already authenticated, news from the host, time.

`Now` comes with each, because the core reads no clock: `at_s` is Unix time, for people; `mono_s`
is the machine's monotonic clock, from which limits and grace times are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drfd.core.job import Dependency, JobSpec, Outcome, Usage
from drfd.indices import Span


@dataclass(frozen=True, slots=True)
class Now:
    at_s: float
    mono_s: float


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks, as the kernel vouches for it."""

    user: str
    uid: int
    is_admin: bool
    #: Whether the machine knows the uid; if not, the number is the name.
    has_account: bool = True


@dataclass(frozen=True, slots=True)
class SubmitAsked:
    now: Now
    spec: JobSpec
    held: bool = False
    #: How those of its dependencies ended that the books do not hold any more.
    ended: Mapping[int, Outcome] = field(default_factory=dict)
    #: An array with these indices (see `drfd.indices`); none: one job.
    spans: tuple[Span, ...] = ()
    #: How many tasks of the array may run at once.
    at_once: int | None = None
    #: How much the environments and scripts of its user's jobs have together, with this one's.
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """`job_id`: a job, or an array: all its tasks; with `unborn_only`, those that have no record
    of their own. So it is with all that is asked for of jobs."""

    now: Now
    job_id: int
    actor: Actor
    unborn_only: bool = False


@dataclass(frozen=True, slots=True)
class HoldAsked:
    now: Now
    job_id: int
    actor: Actor
    unborn_only: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseAsked:
    now: Now
    job_id: int
    actor: Actor
    unborn_only: bool = False


@dataclass(frozen=True, slots=True)
class SuspendAsked:
    now: Now
    job_id: int
    actor: Actor
    unborn_only: bool = False


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    now: Now
    job_id: int
    actor: Actor
    unborn_only: bool = False


@dataclass(frozen=True, slots=True)
class SignalAsked:
    now: Now
    job_id: int
    actor: Actor
    signal: int
    unborn_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to be different; None: as it is."""

    name: str | None = None
    pool: str | None = None
    priority: int | None = None
    #: 0: without limit.
    time_limit_s: int | None = None
    cores_milli: int | None = None
    memory_bytes: int | None = None
    read_bps: int | None = None
    write_bps: int | None = None
    #: Of disks by their names: reads and writes per second.
    disks: tuple[tuple[str, int, int], ...] | None = None
    #: Of countables by their names; 0: none of it.
    gres: tuple[tuple[str, int], ...] | None = None
    after: tuple[Dependency, ...] | None = None
    #: 0: at once.
    begin_s: int | None = None


@dataclass(frozen=True, slots=True)
class ChangeAsked:
    now: Now
    job_id: int
    actor: Actor
    change: Change
    #: As in `SubmitAsked`.
    ended: Mapping[int, Outcome] = field(default_factory=dict)
    unborn_only: bool = False
    #: What people call tasks of arrays that the books do not hold any more, and that it waited for
    #: or is to wait for.
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrainAsked:
    now: Now
    on: bool
    actor: Actor


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The attempt's program runs. Reported again after every reconnection."""

    job_id: int
    attempt: int
    at_s: float
    mono_s: float
    cgroup: str | None


@dataclass(frozen=True, slots=True)
class LaunchBroke:
    now: Now
    job_id: int
    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class RunnerEnded:
    """The attempt's first process is gone. `exit_code` and `signal` both None: nobody knows how."""

    job_id: int
    attempt: int
    at_s: float
    #: None when the runner did not live to see the end.
    mono_s: float | None
    exit_code: int | None
    signal: int | None
    #: The kernel killed in this cgroup for memory.
    oom_killed: bool
    #: … because the job's own limit was reached (else the whole machine ran out).
    over_limit: bool
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Frozen:
    """No process of the attempt runs any more."""

    now: Now
    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptMissing:
    """The launcher knows nothing of an attempt that should be there."""

    now: Now
    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CgroupGone:
    """Nothing is left of the attempt: no process, no cgroup."""

    now: Now
    job_id: int
    attempt: int
    #: What became of the command that tells its owner; None: there was none.
    notice: str | None = None


@dataclass(frozen=True, slots=True)
class Breached:
    """A measured limit is broken for so long that the job must go."""

    now: Now
    job_id: int
    attempt: int
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: look at wall-time limits and grace times."""

    now: Now


@dataclass(frozen=True, slots=True)
class SchedulePass:
    now: Now


Stimulus = (
    SubmitAsked
    | CancelAsked
    | HoldAsked
    | ReleaseAsked
    | SuspendAsked
    | ResumeAsked
    | SignalAsked
    | ChangeAsked
    | DrainAsked
    | RunnerUp
    | LaunchBroke
    | RunnerEnded
    | Frozen
    | AttemptMissing
    | CgroupGone
    | Breached
    | Tick
    | SchedulePass
)
