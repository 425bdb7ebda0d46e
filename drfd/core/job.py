"""What a job is: what was asked for, where it stands, how it ended."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from drfd.core.resources import Instances, Resources


class JobState(StrEnum):
    PENDING = "PENDING"
    HELD = "HELD"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    #: Frozen: it holds its memory, and its processes take no time.
    SUSPENDED = "SUSPENDED"
    STOPPING = "STOPPING"
    CLEANING = "CLEANING"
    #: Users see the outcome in its place.
    ENDED = "ENDED"


#: A job in one of these states is booked: its demand is taken from the free capacity.
HOLDS_RESOURCES = frozenset(
    {
        JobState.STARTING,
        JobState.RUNNING,
        JobState.SUSPENDED,
        JobState.STOPPING,
        JobState.CLEANING,
    }
)


class Outcome(StrEnum):
    """Why a job ended: the closed list."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    LOST = "LOST"


def leaf_path(pool: str, user: str) -> str:
    """The path of a user below a pool, or of one who is in none ("root.alice" is both then)."""
    # A dot in a name would look like one more level.
    name = user.replace("%", "%25").replace(".", "%2E")
    return f"root.{name}" if pool == f"root.{user}" else f"{pool}.{name}"


class Want(StrEnum):
    """How a job must have ended for one that waits for it to start."""

    OK = "ok"
    ANY = "any"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Dependency:
    job_id: int
    want: Want = Want.OK


@dataclass(frozen=True, slots=True)
class Retry:
    """Run it again, so many times at most, after an attempt with one of these outcomes."""

    times: int
    on: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Warn:
    """A signal, so long before the time limit."""

    signal: int
    before_s: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A dependency that can never be met: its job ended otherwise."""

    job_id: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Notify:
    """A command of the submitter's that is run when the job starts or ends."""

    #: Of "start", "end" (any) and "fail" (any but COMPLETED).
    on: tuple[str, ...]
    argv: tuple[str, ...]

    def wants(self, outcome: Outcome) -> bool:
        return "end" in self.on or ("fail" in self.on and outcome is not Outcome.COMPLETED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What the submitter asked for; only `drf set` changes it."""

    name: str
    user: str
    uid: int
    gid: int
    #: The pool that pays, as a path: "root.lab"; "root.alice" for who is in no pool.
    pool: str
    demand: Resources
    #: Wall time in seconds; None is without limit.
    time_limit_s: int | None
    priority: int = 0
    #: It may be stopped, or frozen, for the sake of who is far below its entitlement.
    preemptible: bool = False
    argv: tuple[str, ...]
    cwd: str
    umask: int = 0o022
    #: Output files as the submitter wrote them, with %-patterns; see `output_path`.
    stdout: str
    stderr: str
    #: A socket of the submitter's that hands over its own descriptors 0, 1 and 2 (`drf run`).
    attach: str | None = None
    #: It starts after these have ended as wanted.
    after: tuple[Dependency, ...] = ()
    #: It starts at this Unix time, in whole seconds, at the earliest.
    begin_s: int | None = None
    retry: Retry | None = None
    warn: Warn | None = None
    notify: Notify | None = None

    @property
    def leaf(self) -> str:
        """The leaf of the fair-share tree: the user, below the pool."""
        return leaf_path(self.pool, self.user)

    @property
    def letters(self) -> int:
        """How long all its texts are together."""
        told = () if self.notify is None else self.notify.argv
        return sum(map(len, (self.name, self.cwd, self.stdout, self.stderr, *self.argv, *told)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a job used. Of the first six, a missing reading is zero; of the others, it is None."""

    cores_milli: int = 0
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    cpu_s: float = 0.0
    #: Memory that cannot be dropped (no page cache), as sampled while it ran: mean and highest.
    memory_mean_bytes: int | None = None
    memory_working_bytes: int | None = None
    #: The most memory that one of its processes had resident, shared pages included.
    largest_process_bytes: int | None = None
    #: Cores in use on average in the last samples, half a minute at most.
    late_cores_milli: int | None = None
    #: The highest rates between two samples, per second.
    read_peak_bps: int | None = None
    write_peak_bps: int | None = None
    #: Periods of the CPU quota in which it wanted to run, and in how many of them it was held
    #: back; for how long, summed over CPUs, in microseconds.
    quota_periods: int | None = None
    throttled_periods: int | None = None
    throttled_us: int | None = None
    #: How often it was stopped at its memory limit until something was reclaimed, and how many of
    #: its processes were killed for memory, by whosever limit.
    limit_hits: int | None = None
    oom_kills: int | None = None
    #: How long some process of it waited for a disk, in microseconds.
    io_stalled_us: int | None = None
    processes_peak: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why drfd stops the job; recorded before the first signal is sent."""

    #: What the job will have ended as: CANCELLED, TIMEOUT or LIMIT_EXCEEDED; None: it does not
    #: end, but goes back to the queue.
    outcome: Outcome | None
    text: str
    at_s: float
    #: The machine's monotonic clock, from which the grace time is counted.
    mono_s: float
    #: The grace time is over: SIGKILL.
    escalated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    id: int
    spec: JobSpec
    state: JobState = JobState.PENDING
    #: Runs so far; each has a cgroup and an attempt file of its own.
    attempt: int = 0
    submitted_at: float
    #: Since when nothing but the machine keeps it from starting; None: something else does.
    eligible_at: float | None = None
    #: Dependencies whose jobs still live.
    awaits: tuple[Dependency, ...] = ()
    #: Why it can never start as things stand.
    broken: Broken | None = None
    #: Not to start before this Unix time: its begin time, or the pause before a retry.
    not_before_s: int | None = None
    started_at: float | None = None
    #: Start on the monotonic clock of this boot; a job never outlives its boot.
    started_mono_s: float | None = None
    ended_at: float | None = None
    stop: Stop | None = None
    exit_code: int | None = None
    signal: int | None = None
    outcome: Outcome | None = None
    #: The outcome in a sentence, with its numbers.
    outcome_text: str = ""
    usage: Usage | None = None
    #: Where its cgroups are, below each controller; None when it runs unconfined.
    cgroup: str | None = None
    #: Who keeps it HELD, or SUSPENDED.
    held_by: str | None = None
    #: When it was last stopped or frozen for another job.
    preempted_at: float | None = None
    #: It is being frozen.
    freezing: bool = False
    #: When it was frozen, in Unix time and on the monotonic clock; None: it is not.
    suspended_at: float | None = None
    suspended_mono_s: float | None = None
    #: How long it has been frozen in sum, in this attempt, and how often.
    suspended_s: float = 0.0
    suspensions: int = 0
    #: How often it has been tried again because of how it ended, and how it ended last.
    retries: int = 0
    last_end: str = ""
    #: The warning before its time limit has been given, in this attempt.
    warned: bool = False
    #: Signals asked for in this attempt: how many, and the last of them.
    signal_count: int = 0
    signals: tuple[int, ...] = ()
    #: Of a task of an array: the array, and which of its tasks.
    array_id: int | None = None
    array_index: int | None = None
    #: The countable things that this attempt has, or had.
    instances: Instances = ()

    @property
    def label(self) -> str:
        """How people call it: `42`, or `42_7` for the task with index 7 of array 42."""
        if self.array_id is None:
            return str(self.id)
        # Without an index it stands for tasks of the array that are all alike.
        index = "" if self.array_index is None else f"_{self.array_index}"
        return f"{self.array_id}{index}"

    @property
    def holds_resources(self) -> bool:
        return self.state in HOLDS_RESOURCES

    def frozen_s(self, now_s: float) -> float:
        """How long it has been frozen in sum, in this attempt, until a Unix time."""
        if self.suspended_at is None:
            return self.suspended_s
        return self.suspended_s + max(0.0, now_s - self.suspended_at)

    @property
    def shown_state(self) -> str:
        """What users see: the outcome once there is one and the job is over."""
        if self.state is JobState.ENDED and self.outcome is not None:
            return self.outcome.value
        return self.state.value


def output_path(pattern: str, job: Job) -> str:
    """An output path with %j (job id), %A (array, or the job itself), %a (index, or 0), %x (name),
    %u (user), %% filled in, relative to the cwd."""
    # A slash in a name would be another directory.
    signs = {
        "%%": "%",
        "%j": str(job.id),
        "%A": str(job.array_id or job.id),
        "%a": str(job.array_index or 0),
        "%x": job.spec.name.replace("/", "_"),
        "%u": job.spec.user.replace("/", "_"),
    }
    path = re.sub("%[%jAaxu]", lambda found: signs[found[0]], pattern)
    return path if path.startswith("/") else f"{job.spec.cwd.rstrip('/')}/{path}"
