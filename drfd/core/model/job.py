"""Jobs and job arrays: specification, state and outcome; the time, and the user who asks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple

from msgspec import Meta, Struct, structs

from drfd.common.indices import MAX_INDEX, Ids, Span, Spans, show_spans
from drfd.common.owner import Owner
from drfd.common.signals import is_signal
from drfd.core.model.account import Account
from drfd.core.model.machine import Instances
from drfd.core.model.resources import Resources
from drfd.payload import unpack
from drfd.payload.signs import output_signs

#: Bytes of memory that a dependency takes.
DEPENDENCY_BYTES = 160
#: Characters of a command line that a job's record has, which every list shows; the whole is in the
#: submission.
COMMAND_LENGTH = 256


class Now(NamedTuple):
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
class Heard:
    """Since when launchers take orders, on the monotonic clock; None while one takes none."""

    #: That of the controller's own node, and of all that are not named.
    mono_s: float | None = 0.0
    by_node: Mapping[str, float | None] = field(default_factory=dict)

    def since_mono_s(self, node: str) -> float | None:
        return self.by_node.get(node, self.mono_s)


class JobState(StrEnum):
    PENDING = "PENDING"
    HELD = "HELD"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    #: Frozen: the job keeps its memory, and its processes get no CPU time.
    SUSPENDED = "SUSPENDED"
    STOPPING = "STOPPING"
    CLEANING = "CLEANING"
    #: Users see the outcome in place of this state.
    ENDED = "ENDED"


#: States of a job that has not started.
WAITING_STATES = (JobState.PENDING, JobState.HELD)
#: States in which a job's demand is allocated, that is, subtracted from the free capacity.
ALLOCATED_STATES = frozenset(
    {JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPING, JobState.CLEANING}
)


class Outcome(StrEnum):
    """How a job ended; the list is closed."""

    #: The exit code was 0.
    COMPLETED = "COMPLETED"
    #: The exit code was not 0, or a signal that drfd did not send killed it.
    FAILED = "FAILED"
    #: Its owner or an administrator cancelled it, or its `drf run` disappeared.
    CANCELLED = "CANCELLED"
    #: It reached its time limit.
    TIMEOUT = "TIMEOUT"
    #: It needed more memory than it had declared, or the machine ran out of memory.
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    #: It exceeded `--output-max`, the declared memory of a GPU, a rate that is only measured, or
    #: the time for which its user may keep it suspended.
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    #: Its program could not be started.
    LAUNCH_FAILED = "LAUNCH_FAILED"
    #: Nobody saw its end.
    LOST = "LOST"


class Whose(StrEnum):
    """Whom a shortage keeps from starting: all jobs, or a single one."""

    MACHINE = "machine"
    JOB = "job"


#: The path of the root of the fair-share tree, which is entitled to everything.
ROOT = "root"


@lru_cache(maxsize=1 << 14)
def leaf_path(pool: str, user: str) -> str:
    """Return the path of a user's leaf; of a user in no pool, pool and leaf are "root.alice"."""
    name = leaf_name(user)
    return f"{ROOT}.{name}" if pool == f"{ROOT}.{user}" else f"{pool}.{name}"


def leaf_name(user: str) -> str:
    """Return the last part of the path of every leaf of the user."""
    # Escape dots: a dot in a path separates two levels.
    return user.replace("%", "%25").replace(".", "%2E")


def show_path(path: str) -> str:
    """Return the path of a node for people: "lab/alice"."""
    return path.removeprefix(f"{ROOT}.").replace(".", "/").replace("%2E", ".").replace("%25", "%")


class RequiredOutcome(StrEnum):
    """The outcome of another job that a dependency requires."""

    OK = "ok"
    ANY = "any"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Dependency:
    job_id: int
    want: RequiredOutcome = RequiredOutcome.OK


def after_word(label: str, want: RequiredOutcome) -> str:
    """Return a dependency as `--after` takes it: "42", "42:any"."""
    return label if want is RequiredOutcome.OK else f"{label}:{want.value}"


#: Outcomes after which a retry may help. A job that ran out of time or memory would do so again.
RETRIED_BY_DEFAULT = (Outcome.FAILED, Outcome.LAUNCH_FAILED, Outcome.LOST)


class Retry(Struct, forbid_unknown_fields=True, frozen=True):
    """Run the job again, at most `times` times, after an attempt with one of these outcomes."""

    times: Annotated[int, Meta(ge=0, le=1000)]
    on: Annotated[tuple[Outcome, ...], Meta(max_length=16)] = RETRIED_BY_DEFAULT

    def __post_init__(self) -> None:
        if not {Outcome.COMPLETED, Outcome.CANCELLED}.isdisjoint(self.on):
            raise ValueError("nobody retries what has completed or was cancelled")
        structs.force_setattr(self, "on", tuple(dict.fromkeys(self.on)) or RETRIED_BY_DEFAULT)


class Warn(Struct, forbid_unknown_fields=True, frozen=True):
    """Send this signal to the job `before_s` seconds before its time limit."""

    #: A number, or more than that for some processes alone: see `drfd.common.signals`.
    signal: int
    before_s: Annotated[int, Meta(ge=1, le=1 << 40)]

    def __post_init__(self) -> None:
        if not is_signal(self.signal):
            raise ValueError(f"{self.signal} is no signal")


@dataclass(frozen=True, slots=True)
class Broken:
    """A dependency that can never be met, because its job ended with this outcome."""

    job_id: int
    outcome: Outcome


def notice_demand(demand: Resources) -> Resources:
    """Return what the notification of a job of this demand may use: the job's rates, and little of
    cores and memory."""
    return structs.replace(
        demand,
        cores_milli=min(demand.cores_milli, 250),
        memory_bytes=min(demand.memory_bytes, 256 << 20),
        gres=(),
        gres_memory=(),
    )


@dataclass(frozen=True, slots=True)
class UserGroup:
    """A group that a user makes of their own jobs, as one of these jobs names it."""

    name: str
    #: The job starts only while fewer of the user's jobs of the group run, or None for no limit.
    at_once: int | None = None

    def __str__(self) -> str:
        return self.name if self.at_once is None else f"{self.name}%{self.at_once}"


_Amount = Annotated[int, Meta(ge=0, le=1 << 60)]


class Again(Struct, forbid_unknown_fields=True, frozen=True):
    """What a job or array is submitted again for (`drf retry`)."""

    #: The id of the job or array whose end it makes good. A task stands for the one of its index.
    of: Annotated[int, Meta(ge=1, le=1 << 53)]
    #: Of an array, as its first submission had them: the number of its tasks, the lowest and the
    #: highest index, and the step. A part of it is told these, since its tasks divide the work by
    #: them.
    indices: tuple[_Amount, _Amount, _Amount, _Amount] | None = None


#: The form of a text in one line, without the control characters of terminals; of every text that
#: users give to jobs and lists show.
LINE = r"\A[^\x00-\x1f\x7f-\x9f]*\Z"
COMMENT_LENGTH = 1024
#: What its user writes about a job.
Comment = Annotated[str, Meta(max_length=COMMENT_LENGTH, pattern=LINE)]
#: The name of a user, and of a group of theirs.
GroupKey = tuple[str, str]


class Requested(Struct, frozen=True, kw_only=True):
    """What a submission asks for and the specification of its job takes over as it is: fields of
    the request and of the journal's records, and a part of `drf show` and `drf retry`."""

    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    comment: Comment | None = None
    #: Whether it may be stopped or frozen for a user or pool far below its entitlement.
    preemptible: bool = False
    umask: Annotated[int, Meta(ge=0, le=0o777)] = 0o022
    #: Whether its first run keeps what is in the output files, too.
    append: bool = False
    #: How much a run may write to the output files, or None for no limit.
    output_max_bytes: Annotated[int, Meta(ge=1, le=1 << 60)] | None = None
    warn: Warn | None = None
    retry: Retry | None = None
    #: What it repeats; None for a first submission.
    again: Again | None = None

    def requested(self) -> dict[str, Any]:
        """Return these fields alone."""
        return {name: getattr(self, name) for name in Requested.__struct_fields__}


def command_text(argv: Sequence[str]) -> str:
    """Return the words of a command line as a record has them: a long one is cut short."""
    text = "\0".join(argv)
    return text if len(text) <= COMMAND_LENGTH else f"{text[: COMMAND_LENGTH - 1]}…"


#: Of equal texts and demands, the one that was seen first. These are enough for the users of a
#: machine. `sys.intern` is not used for texts: CPython 3.12.0 to 3.12.4 keeps them for ever.
_first_equal = lru_cache(maxsize=1024)(lambda value: value)


class JobSpec(Requested, frozen=True, kw_only=True, omit_defaults=True):
    """The specification of a job as its submitter gave it; only `drf set` changes it."""

    name: str
    user: str
    uid: int
    gid: int
    #: The path of the pool that is charged: "root.lab", or "root.alice" for a user in no pool.
    pool: str
    demand: Resources
    #: Limit of the wall time in seconds, or None if there is no limit.
    time_limit_s: int | None
    #: The words of the command line with a NUL between them, as `command_text` has it.
    command: str
    cwd: str
    #: Output files as the submitter wrote them, with %-patterns; see `output_path`.
    stdout: str
    stderr: str
    #: Path of the submitter's socket that passes its descriptors 0, 1 and 2 (`drf run`).
    attach: str | None = None
    #: Dependencies that must be met before the job starts.
    after: tuple[Dependency, ...] = ()
    #: Earliest start, as Unix time in whole seconds.
    begin_s: int | None = None
    #: When the submitter's command that notifies the owner runs: some of "start", "end" (any
    #: outcome) and "fail" (any outcome but COMPLETED).
    notify: tuple[str, ...] = ()
    group: UserGroup | None = None
    #: Whether it is cancelled as soon as one of its dependencies can never be met.
    cancel_if_never: bool = False
    #: The upper end of its range of cores, as declared: the most that it may use while others leave
    #: them idle, above the demand; 0 without a range. It is booked nowhere: `demand` is what the
    #: job holds.
    cores_max_milli: int = 0

    def __post_init__(self) -> None:
        # What the jobs of a user have in common takes memory once.
        for name in ("user", "pool", "cwd", "stdout", "stderr", "demand"):
            structs.force_setattr(self, name, _first_equal(getattr(self, name)))

    @property
    def argv(self) -> list[str]:
        """The words of the command line, which may be cut short."""
        return self.command.split("\0")

    @property
    def group_key(self) -> GroupKey | None:
        return None if self.group is None else (self.user, self.group.name)

    @property
    def leaf(self) -> str:
        """The path of the job's leaf in the fair-share tree: the user below the pool."""
        return leaf_path(self.pool, self.user)


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resource use of a job. A missing reading is 0 in the first six fields, else None."""

    cores_milli: int = 0
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    cpu_s: float = 0.0
    #: Mean and highest sample of the memory that cannot be dropped (without page cache).
    memory_mean_bytes: int | None = None
    memory_working_bytes: int | None = None
    #: Highest resident memory of a single process, shared pages included.
    largest_process_bytes: int | None = None
    #: Mean of the cores in use in the last samples, over half a minute at most.
    late_cores_milli: int | None = None
    #: Highest rates between two samples, in bytes per second.
    read_peak_bps: int | None = None
    write_peak_bps: int | None = None
    #: Periods of the CPU quota in which the job was runnable, those in which it was throttled, and
    #: the time that it was throttled, in microseconds summed over CPUs.
    quota_periods: int | None = None
    throttled_periods: int | None = None
    throttled_us: int | None = None
    #: How often the job hit its memory limit and had to reclaim, and how many of its processes were
    #: killed for memory, by its own limit or another.
    limit_hits: int | None = None
    oom_kills: int | None = None
    #: Time in which at least one of its processes waited for a disk, in microseconds.
    io_stalled_us: int | None = None
    processes_peak: int | None = None
    #: Memory on all GPUs together, at present and the highest sample.
    gpu_memory_bytes: int | None = None
    gpu_memory_peak_bytes: int | None = None
    #: The highest sample of the memory on a single one of its GPUs.
    gpu_memory_single_peak_bytes: int | None = None
    #: Utilisation in per cent of one GPU (200 for two busy ones), at present and the mean of all
    #: samples.
    gpu_percent: int | None = None
    gpu_mean_percent: int | None = None
    #: The most cores in use between two samples.
    cores_peak_milli: int | None = None
    #: Of a job with a range of cores, the processor time beyond the lower end, in microseconds.
    beyond_us: int | None = None

    def moved(self, axis: str) -> tuple[int, int | None]:
        """Return the bytes read from or written to disks, and the highest rate."""
        if axis == "read":
            return self.read_bytes, self.read_peak_bps
        return self.written_bytes, self.write_peak_bps


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why drfd stops the job; recorded before the first signal is sent."""

    #: CANCELLED, TIMEOUT, LIMIT_EXCEEDED, or OUT_OF_MEMORY where memory is only measured; None if
    #: the job goes back to the queue.
    outcome: Outcome | None
    text: str
    #: The user who holds the job once it is back in the queue, or None.
    held_by: str | None = None
    at_s: float
    #: Begin of the grace time on the machine's monotonic clock.
    mono_s: float
    #: Whether the grace time is over, so that SIGKILL follows.
    escalated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Postponed:
    """A launch that failed for a shortage and is to be tried again."""

    whose: Whose
    #: A sentence that names what was short.
    text: str
    #: "memory", "processes", "descriptors", "space", "quota", "launcher" or "directory".
    resource: str
    at_s: float
    #: Unix time before which no launch that needs the same resource is tried.
    until_s: float
    #: Launches in a row that failed for this shortage.
    tries: int


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job at one moment; without an index, an array, or one that represents tasks of it."""

    id: int
    spec: JobSpec
    state: JobState = JobState.PENDING
    #: Number of runs so far; each has its own cgroup and attempt file.
    attempt: int = 0
    submitted_at: float
    #: Unix time since which only a lack of resources keeps the job waiting, or None if something
    #: else does (a hold, a dependency, its begin time).
    eligible_at: float | None = None
    #: Dependencies on jobs that have not ended yet.
    awaits: tuple[Dependency, ...] = ()
    #: The dependency that can never be met, if there is one.
    broken: Broken | None = None
    #: Earliest start as Unix time: the begin time, or the end of the pause before a retry.
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
    #: With LOST, the cause, one of `core.decisions.outcome.LOSSES`.
    loss: str | None = None
    usage: Usage | None = None
    #: Whether no process of its program and no cgroup was left when its end was recorded.
    gone: bool = False
    #: Path of its cgroups below each controller, or None if it runs unconfined.
    cgroup: str | None = None
    #: Name of the user who keeps the job HELD or SUSPENDED.
    held_by: str | None = None
    #: Since when its user, who is no administrator, keeps it suspended, or None.
    kept_since: Now | None = None
    #: Number of times that it was stopped or frozen for another job.
    preemptions: int = 0
    #: Whether a freeze has been requested and not reported yet.
    freezing: bool = False
    #: Time of the freeze, as Unix time and on the monotonic clock, or None if it is not frozen.
    suspended_at: float | None = None
    suspended_mono_s: float | None = None
    #: Total time, in seconds, and number of the completed freezes of this attempt.
    suspended_s: float = 0.0
    suspensions: int = 0
    #: Number of retries so far, and how the attempt before the present one ended.
    retries: int = 0
    last_end: str = ""
    #: The sums of the runs before the present attempt, or None if there was none.
    earlier_runs: Account | None = None
    #: The latest postponed launch, and how many there were; none of them counts as a retry.
    postponed: Postponed | None = None
    postponements: int = 0
    #: Whether the signal before the time limit has been sent in this attempt.
    warned: bool = False
    #: Signals requested in this attempt: their number, and the latest of them.
    signal_count: int = 0
    signals: tuple[int, ...] = ()
    #: For a task of an array: the array's id, and the task's index.
    array_id: int | None = None
    array_index: int | None = None
    #: Instances of countable resources that this attempt has or had.
    instances: Instances = ()
    #: The node that it has been started on; "" if there is one machine.
    node: str = ""

    @property
    def label(self) -> str:
        """The name shown to users: `42`, or `42_7` for the task with index 7 of array 42."""
        if self.array_id is None:
            return str(self.id)
        # A job without an index represents tasks of the array that are all alike.
        index = "" if self.array_index is None else f"_{self.array_index}"
        return f"{self.array_id}{index}"

    @property
    def submission_id(self) -> int:
        """The id of what was submitted: of the array that the job is a task of, or else its own."""
        return self.array_id or self.id

    @property
    def restarts(self) -> int:
        """Number of earlier attempts that have come as far as executing the job's program."""
        return max(0, self.attempt - self.postponements - 1)

    @property
    def is_allocated(self) -> bool:
        return self.state in ALLOCATED_STATES

    @property
    def is_to_retry(self) -> bool:
        """True if the attempt has ended and is to be retried; a cancelled job never is."""
        retry = self.spec.retry
        return (
            self.state is JobState.CLEANING
            and retry is not None
            and self.outcome is not Outcome.CANCELLED
            and self.outcome in retry.on
            and self.retries < retry.times
        )

    @property
    def notifies_end(self) -> bool:
        """Whether the job has ended, and its owner is notified of that."""
        if self.state is not JobState.CLEANING or self.is_to_retry or self.outcome is None:
            return False
        on = self.spec.notify
        return "end" in on or ("fail" in on and self.outcome is not Outcome.COMPLETED)

    @property
    def only_notifies(self) -> bool:
        """Whether nothing of the job is left but the notification of its owner."""
        return self.gone and self.notifies_end

    def frozen_s(self, now_s: float) -> float:
        """Return for how many seconds this attempt has been frozen in total until `now_s`."""
        if self.suspended_at is None:
            return self.suspended_s
        return self.suspended_s + max(0.0, now_s - self.suspended_at)

    @property
    def shown_state(self) -> str:
        """The state shown to users: for an ended job its outcome."""
        if self.state is JobState.ENDED and self.outcome is not None:
            return self.outcome.value
        return self.state.value


class _Cores(Struct, frozen=True, gc=False):
    cores_milli: int = 0


class _DeclaredSpec(Struct, frozen=True, gc=False):
    name: str
    user: str
    pool: str
    demand: _Cores


class DeclaredJob(Struct, frozen=True, gc=False):
    """What an ended job declared of cores, as fields of its record."""

    id: int
    spec: _DeclaredSpec
    started_at: float | None = None
    ended_at: float | None = None
    suspended_at: float | None = None
    suspended_s: float = 0.0
    earlier_runs: Account | None = None
    frozen_s: ClassVar[Callable[[Any, float], float]] = Job.frozen_s


def output_path(pattern: str, job: Job) -> str:
    """Return the path of an output file as the job's process opens it (`drfd.payload.unpack`)."""
    signs = output_signs(
        job_id=job.id,
        array_id=job.array_id or 0,
        index=job.array_index or 0,
        name=job.spec.name,
        user=job.spec.user,
    )
    return unpack.output_path(pattern, job.spec.cwd, signs)


def shares_output(job: Job, others: Iterable[Job]) -> bool:
    """Return whether an output file of the job may be one of another task of its array, or is one
    of the `others`, as far as their paths say."""
    paths = set()
    for pattern in {job.spec.stdout, job.spec.stderr}:
        signs = set(unpack.signs_in(pattern))
        # The path holds the job's id, or those of array and task.
        if "%j" in signs or signs >= {"%A", "%a"} or pattern.startswith("/dev/"):
            continue
        if job.array_id is not None and "%a" not in signs:
            return True
        paths.add(output_path(pattern, job))
    return bool(paths) and any(
        other.id != job.id
        and other.spec.uid == job.spec.uid
        # Each task has a path of its own here.
        and (job.array_id is None or other.array_id != job.array_id)
        and unpack.may_be_output(path, each, other.spec.cwd, other.spec.name)
        and path == output_path(each, other)
        for other in others
        for each in {other.spec.stdout, other.spec.stderr}
        for path in paths
    )


def owner_of(job: Job, journal_id: str) -> Owner:
    return Owner(
        uid=job.spec.uid, user=job.spec.user, journal=journal_id, submitted_us=submitted_us(job)
    )


def submitted_us(job: Job) -> int:
    return round(job.submitted_at * 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One submission of many tasks, which are jobs that differ in their index at first. The array
    has its own id, and its tasks have the ids after it, in the order of their indices."""

    #: A job with the array's id and no index: what was submitted, with the orders since then that
    #: were about the array as a whole.
    common: Job
    #: Ranges of indices, in order, none of them within another.
    spans: tuple[Span, ...]
    #: Maximum number of tasks running at once, or None if there is no such limit.
    at_once: int | None

    def __post_init__(self) -> None:
        if not isinstance(self.spans, Spans):
            object.__setattr__(self, "spans", Spans(self.spans))

    @property
    def _spans(self) -> Spans:
        assert isinstance(self.spans, Spans)
        return self.spans

    @property
    def id(self) -> int:
        return self.common.id

    @property
    def last_id(self) -> int:
        return self.common.id + self.size

    @property
    def spec(self) -> JobSpec:
        return self.common.spec

    @property
    def size(self) -> int:
        return self._spans.size

    @property
    def ids(self) -> Ids:
        """The ids of all tasks."""
        return self.id + 1, self.last_id

    @property
    def indices(self) -> str:
        """The indices of all tasks as users write them: `7-999%50`."""
        return self.show_indices(self.ids)

    def show_indices(self, *ids: Ids) -> str:
        bound = "" if self.at_once is None else f"%{self.at_once}"
        return show_spans(self.spans_of(*ids)) + bound

    @property
    def told_indices(self) -> tuple[int, int, int, int]:
        """What tasks are told of the array: the number of tasks, the lowest and the highest index,
        and the step; those of the first submission, if this one repeats a part of it."""
        again = self.spec.again
        if again is not None and again.indices is not None:
            return again.indices
        step = self.spans[0][2] if len(self.spans) == 1 else 1
        return self.size, self.spans[0][0], self.spans[-1][1], step

    def tasks(self, like: Job, *ids: Ids) -> Iterator[Job]:
        """Yield tasks that are like this job but for their index."""
        for first, last in ids:
            at = first
            for low, high, step in self.spans_of((first, last)):
                for index in range(low, high + 1, step):
                    yield structs.replace(like, id=at, array_index=index)
                    at += 1

    def label_of(self, job_id: int) -> str:
        return f"{self.id}_{self.index_of(job_id)}"

    def has_task(self, job_id: int) -> bool:
        return 0 < job_id - self.common.id <= self.size

    def index_of(self, job_id: int) -> int:
        ((first, _, _),) = self.spans_of((job_id, job_id))
        return first

    def id_of(self, index: int) -> int | None:
        at = bisect_right(self.spans, (index, MAX_INDEX, MAX_INDEX)) - 1
        if at < 0:
            return None
        first, last, step = self.spans[at]
        if index > last or (index - first) % step:
            return None
        return self.id + 1 + self._spans.before(at) + (index - first) // step

    def spans_of(self, *ids: Ids) -> Iterator[Span]:
        """Yield the ranges of indices of the tasks with these ids."""
        for low, high in ids:
            yield from self._spans.part(low - self.id - 1, high - self.id - 1)


#: The most ranges of indices in the name of some tasks of an array.
MAX_RANGES = 8


@dataclass(frozen=True, slots=True)
class Tasks:
    """Waiting tasks of an array that are alike but for their index: one row of a list."""

    array: Array
    ids: tuple[Ids, ...]
    #: The first of them.
    first: Job

    @property
    def size(self) -> int:
        return sum(last - first + 1 for first, last in self.ids)

    def end_of(self, job_id: int) -> int | None:
        """Return the last of the adjacent ids that a task is among, or None if it is not there."""
        at = bisect_right(self.ids, (job_id, self.array.last_id)) - 1
        return self.ids[at][1] if at >= 0 and job_id <= self.ids[at][1] else None

    @property
    def job(self) -> Job:
        """A job that represents all of them: the first task, without its index."""
        return structs.replace(self.first, array_index=None)

    @property
    def indices(self) -> str:
        """The indices as users write them: `7-999%50`."""
        return self.array.show_indices(*self.ids)

    @property
    def argument(self) -> str:
        """What names them in a command of a shell: `42`, `42_7` or `'42_[7-20]'`. Of very scattered
        ones it is the array."""
        if self.size == 1:
            return self.array.label_of(self.first.id)
        if self.size == self.array.size or len(self.ids) > MAX_RANGES:
            return str(self.array.id)
        return f"'{self.array.id}_[{show_spans(self.array.spans_of(*self.ids))}]'"
