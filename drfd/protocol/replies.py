"""Replies of the daemon: JSON objects whose shapes are declared here, for both ends.

They are typed dictionaries rather than msgspec structs: loading msgspec and the classes would
lengthen the start of every command, which prints a reply with `--json` as it was sent.

Unless a field says otherwise, sizes are in bytes, rates in bytes per second, times of the clock in
Unix seconds and durations in seconds. A key that is not always sent is `NotRequired`.
"""

# Annotations are evaluated: as text, `NotRequired` would be missing from `__required_keys__`.

from collections.abc import Mapping
from typing import NotRequired, TypedDict

# -- amounts ---------------------------------------------------------------------------------------


class RatesView(TypedDict):
    """Read and write rate of one disk."""

    read: int
    write: int


class ResourcesView(TypedDict):
    """An amount of each resource. With several disks, `read` and `write` are sums over them."""

    cores: float
    memory: int
    read: int
    write: int
    #: Countable resources by name.
    gres: dict[str, int]
    #: Bytes of its own memory on each instance of a countable resource; only if some are declared.
    gres_memory: NotRequired[dict[str, int]]
    #: By the disk's name; only where the machine has several.
    disks: NotRequired[dict[str, RatesView]]
    #: Of a demand, the upper end of a range: the most cores that the job may use while others leave
    #: them idle. Only where one is declared.
    cores_max: NotRequired[float]


class CoresAndMemory(TypedDict):
    cores: float
    memory: int


class ExternalView(CoresAndMemory):
    """Use by processes outside drfd."""

    #: The part of the capacity that is left to them.
    kept: CoresAndMemory


class SumView(TypedDict):
    """Present use; null where it is not known, of several jobs where it is known of none."""

    cores: float | None
    memory: float | None
    read: float | None
    write: float | None


class NowView(SumView):
    """Present use of a job."""

    memory_peak: int | None
    #: Bytes on all GPUs, and utilisation in per cent of one; sent where they are measured.
    gpu_memory: NotRequired[int | None]
    gpu_utilisation: NotRequired[int | None]
    #: Bytes on a single one of its GPUs, at most; sent of a job that declares its memory on each.
    gpu_memory_single: NotRequired[int]


class GpuView(TypedDict):
    """Present use of a GPU or a MIG slice; null where it is not known."""

    #: As the configuration names it.
    name: str | None
    pci: str
    uuid: str | None
    memory_used: int | None
    memory_total: int | None
    #: What jobs have of the memory in use, and what is no job's.
    memory_jobs: int | None
    memory_outside: int | None
    #: Per cent of the time.
    utilisation: int | None
    #: Whether its driver says that it does not answer.
    is_lost: bool
    #: The jobs that use it, and the users of processes outside drfd that do; null where the driver
    #: does not tell its processes.
    jobs: list[int] | None
    outside_uids: list[int] | None


class CurveView(TypedDict):
    """Use over time, oldest point first: means of the interval that ends at `at`."""

    at: list[float]
    cores: list[float | None]
    memory: list[int | None]
    read: list[int | None]
    write: list[int | None]
    #: Bytes on all GPUs, and utilisation in per cent of one; sent of a job that asks for some or is
    #: seen on one.
    gpu_memory: NotRequired[list[int | None]]
    gpu_utilisation: NotRequired[list[int | None]]
    #: The part of `cores` above the lower end; sent of jobs with a range of cores.
    cores_beyond: NotRequired[list[float | None]]


class UsageView(TypedDict):
    """Use of a job so far: zero where it is not known, and null of GPUs that are not measured."""

    cores: float
    memory: int
    memory_peak: int
    read_bytes: int
    written_bytes: int
    cpu_seconds: float
    #: CPU time that the job used beyond the lower end of its range of cores; sent of a job with one
    #: where it is measured.
    beyond_cpu_seconds: NotRequired[float]
    #: Bytes on all GPUs together, at present and at most, and per cent of one GPU, at present and
    #: on average; sent of a job that asks for some or is seen on one.
    gpu_memory: NotRequired[int | None]
    gpu_memory_peak: NotRequired[int | None]
    gpu_utilisation: NotRequired[int | None]
    gpu_utilisation_mean: NotRequired[int | None]


class UsedView(TypedDict):
    """Use of an ended job in its last attempt; null where it is not known."""

    wall_seconds: float | None
    suspended_seconds: float | None
    cpu_seconds: float | None
    late_cores: float | None
    memory_peak: int | None
    memory_mean: int | None
    memory_working: int | None
    largest_process: int | None
    read_bytes: int | None
    written_bytes: int | None
    read_peak: int | None
    write_peak: int | None
    quota_periods: int | None
    throttled_periods: int | None
    throttled_seconds: float | None
    limit_hits: int | None
    oom_kills: int | None
    io_stalled_seconds: float | None
    processes_peak: int | None
    gpu_memory_peak: int | None
    gpu_utilisation_mean: int | None
    #: The most cores in use between two samples.
    cores_peak: float | None
    #: CPU time beyond the lower end of its range of cores; null without a range.
    beyond_cpu_seconds: float | None


class AllRunsView(TypedDict):
    """Sums over all runs of an ended job; what no run has shown is null."""

    runs: int
    wall_seconds: float
    suspended_seconds: float
    cpu_seconds: float | None
    #: The highest of all runs.
    memory_peak: int | None
    read_bytes: int | None
    written_bytes: int | None
    #: The highest of all runs, on all GPUs together.
    gpu_memory_peak: int | None
    #: CPU time beyond the lower end of its range of cores; null without a range.
    beyond_cpu_seconds: float | None


#: The keys of `UsedView`, in their order.
USED = tuple(UsedView.__annotations__)


# -- jobs and arrays -------------------------------------------------------------------------------


class CodeText(TypedDict):
    """A code of a closed list, and a sentence for people."""

    code: str
    text: str


class EvidenceView(TypedDict):
    """The reason of a wait in short phrases and values, for tables. What does not apply is left
    out."""

    #: What lets the job start: "cores", "share of memory", "job 41", "release".
    waits_for: str
    #: What stands in the way: "job 40 (bob)", "external load".
    blocked_by: NotRequired[str]
    #: The resource that is short, and the amounts needed and free, in cores, bytes, bytes per
    #: second, or instances.
    resource: NotRequired[str]
    needed: NotRequired[float]
    free: NotRequired[float]
    #: Unix time at which the obstacle is expected to end, or at which the launch is tried again.
    until: NotRequired[float]


class WaitView(CodeText):
    evidence: EvidenceView


class OutcomeView(CodeText):
    #: What was lost, if the outcome is LOST.
    reason: NotRequired[str]


class SubmittedView(TypedDict):
    """A job or an array as it was submitted."""

    id: int
    array_id: int | None
    array_index: int | None
    name: str
    user: str
    pool: str
    demand: ResourcesView
    #: Null for no limit.
    time_limit_s: int | None
    priority: int
    submitted_at: float
    #: The user's own group that the job is in, and how many jobs of it may run at once, this one
    #: included; null for no limit. Sent only for jobs in a group.
    group: NotRequired[str]
    group_at_once: NotRequired[int | None]
    #: What its user wrote about it. Sent only if there is one.
    comment: NotRequired[str]
    #: The job or array that it repeats (`drf retry`).
    retry_of: NotRequired[int]
    #: How much a run may write to its output files. Sent only where that is limited.
    output_max_bytes: NotRequired[int]
    #: Of several machines, the only one that will do, and the features that it must have. Sent only
    #: where the submission named some.
    only_node: NotRequired[str]
    features: NotRequired[list[str]]
    #: That it may be stopped for others, and run again. Sent only if that is so.
    preemptible: NotRequired[bool]


class ExpectedStart(TypedDict):
    """When a job is expected to start."""

    expected_start_at: float | None
    #: On what the expected start rests: "limits" (the time limits of the jobs before it),
    #: "estimated" (the run times of a few earlier jobs), or "unknown". Sent where it was asked, if
    #: there is an estimate.
    expected_start_certainty: NotRequired[str]
    #: Why the start is unknown, if not for the jobs before it; a sentence without a full stop.
    expected_start_unknown: NotRequired[str]


class ProgressView(SubmittedView, ExpectedStart):
    """A job with its state and its latest attempt."""

    state: str
    attempt: int
    started_at: float | None
    ended_at: float | None
    #: Of the latest attempt: for how long its earlier suspensions lasted, and when the latest began
    #: that has not ended otherwise. Sent only if there were some. Neither counts as run time.
    suspended_seconds: NotRequired[float]
    suspended_at: NotRequired[float]
    exit_code: int | None
    signal: int | None
    #: Of several machines, the one that its latest attempt is on, or was. Sent only where there are
    #: several, once it has started.
    node: NotRequired[str]


class OwnedView(SubmittedView):
    """A job or an array with whose it is, and what only its owner may see."""

    uid: int
    #: These four are null for everybody but the owner and administrators, and in the last rows of a
    #: `wait` for many jobs with long paths. Of several tasks, the files have their patterns. Only
    #: `show` has a long command whole: lists have 256 characters, of which the last is "…" then.
    cwd: str | None
    argv: list[str] | None
    stdout: str | None
    stderr: str | None


class JobView(OwnedView, ProgressView):
    """A job, or pending tasks of an array that are all alike (then `tasks` is sent)."""

    #: Null for a job that does not wait.
    reason: CodeText | None
    eligible_at: float | None
    #: Null for a job that has not ended.
    outcome: OutcomeView | None
    usage: UsageView
    cgroup: str | None
    #: Instances of countable resources that were allocated to the job.
    gres_instances: NotRequired[dict[str, list[str]]]
    #: Indices of the tasks, such as `0-999`, and their number.
    array_tasks: NotRequired[str]
    tasks: NotRequired[int]
    #: Of `wait`: the exit status of `drf wait` for the job.
    status: NotRequired[int]
    #: Of `history`; the second of a job that has run before its last attempt.
    used: NotRequired[UsedView]
    all_runs: NotRequired[AllRunsView]


class TasksView(TypedDict):
    """How the tasks of an array are."""

    id: int
    tasks: int
    #: Tasks by state.
    counts: dict[str, int]
    #: Indices of the tasks that did not complete, by state.
    indices: dict[str, str]


class ArrayView(OwnedView, TasksView):
    """An array as a whole, for its owner."""

    array_tasks: str
    #: Indices of the live tasks that were changed by themselves, if there are any.
    altered: NotRequired[str]


class DependencyView(TypedDict):
    id: int
    label: str
    want: str


class RetryView(TypedDict):
    times: int
    on: list[str]
    #: Retries that were made.
    done: int


class WarnView(TypedDict):
    signal: str
    before_s: int


class ConditionsView(TypedDict):
    """Conditions of the start, and retries, of a submission."""

    after: list[DependencyView]
    begin_at: int | None
    retry: RetryView | None
    warn: WarnView | None
    attempts: str
    #: "keep" or "cancel": what happens when a job that it waits for ends otherwise than required.
    if_never: str


class DetailPart(TypedDict, total=False):
    """What `show` adds, where it applies."""

    #: Fields of a submit request that the options of the submission set, but conditions of the
    #: start; for its owner and administrators.
    options: dict[str, object]
    #: Of a live job that declares its memory on each GPU: what it has now on those of its GPUs
    #: where that is measured, by the GPU's name, and where it is not watched, and why.
    gpu_memory_each: dict[str, int]
    gpu_memory_unkept: str
    #: Of a job: CPUs pinned to it, such as `0-3,8`, and memory nodes (NUMA) of its instances of
    #: countable resources, as far as they are known.
    cpus: str | None
    memory_nodes: list[int]


class ExplainedJobView(JobView, ConditionsView, DetailPart):
    pass


class ExplainedArrayView(ArrayView, ConditionsView, DetailPart):
    pass


class EndedArrayView(ArrayView):
    state: str
    reason: None
    outcome: OutcomeView
    status: int


class EventView(TypedDict):
    """An event in the life of a job."""

    at: float
    event: str
    text: str


# -- replies ---------------------------------------------------------------------------------------


class ErrorView(TypedDict):
    """A refusal or failure. `kind` names the class in `drfd.common.errors`."""

    kind: str
    code: str
    text: str
    hint: str


class DrainView(TypedDict):
    """Who has stopped launching, since when, and for what reason; the reason may be empty."""

    by: str
    since: float
    reason: str


class DrainPart(TypedDict):
    """Part of several replies."""

    #: Sent only while launching is stopped.
    drain: NotRequired[DrainView]


class ServiceState(TypedDict):
    """Whether jobs can start and stop at present."""

    #: Null while the launcher is connected.
    launcher_away_s: float | None
    notices: list[CodeText]


class HelloReply(TypedDict):
    version: str
    user: str
    admin: bool
    #: The file with the user's signing key, which may not be there yet; null where submissions are
    #: not signed, and for users without an account.
    key_file: str | None
    #: True where each job has a /tmp of its own. Sent only there.
    private_tmp: NotRequired[bool]
    #: The time limit of jobs that ask for none. Sent only if they have one.
    time_limit_s: NotRequired[int]
    launcher_away_s: NotRequired[float | None]
    notices: NotRequired[list[CodeText]]


class SubmitReply(DrainPart):
    id: int
    #: What of the demand is not kept here, in sentences; only if something is not.
    notes: NotRequired[list[str]]
    #: Number of tasks of an array.
    tasks: NotRequired[int]


class SubmitListReply(TypedDict):
    #: What the reply to each submission would be by itself: with `ok`, and with `error` where it
    #: was refused.
    replies: list[object]


class RepeatView(TypedDict):
    """A job, task or array that repeats another one."""

    label: str
    state: str
    live: bool
    #: Of an array, its indices, such as `0-999`.
    array: NotRequired[str]


class AwaitedView(TypedDict):
    """A dependency of a job that is to be submitted again."""

    label: str
    want: str
    #: Empty for a job that is not known any more.
    state: str
    live: bool
    #: Whether its end, or that of `repeat`, is the one that is wanted; null before it has ended.
    met: bool | None
    #: What has been submitted last in its place, if anything has.
    repeat: NotRequired[RepeatView]


class SubmissionReply(TypedDict):
    """What a job was submitted with."""

    #: The id of the job or array, or the task as `42_7`.
    label: str
    state: str
    #: Whether it has not ended, or for an array, whether some task has not.
    live: bool
    #: Fields of the request `submit`, without conditions of the start.
    submission: dict[str, object]
    #: The conditions of the start: fields of that request, for a live job or one with dependencies.
    conditions: NotRequired[dict[str, object]]
    #: Who else than its user holds it.
    held_by: NotRequired[str]
    #: Whether other live jobs wait for its end.
    awaited: NotRequired[bool]
    #: The field `again` of a request that submits it again.
    again: NotRequired[dict[str, object]]
    #: What has been submitted again in its place, the latest first.
    repeats: NotRequired[list[RepeatView]]
    #: What it waited for.
    waited_for: NotRequired[list[AwaitedView]]
    #: Whether somebody cancelled it, rather than a rule; of an array, its waiting tasks.
    cancelled_by_hand: NotRequired[bool]
    #: The signature of the submission, or null where none was wanted.
    proof: str | None


class RecentJobView(TypedDict):
    id: int
    name: str
    #: Of an array that has ended, "array".
    state: str
    live: bool


class RecentReply(TypedDict):
    #: Newest first.
    recent: list[RecentJobView]
    #: Names that a command line may contain; the groups are of these jobs, the users are those who
    #: have live jobs.
    groups: list[str]
    pools: list[str]
    users: list[str]
    gres: list[str]


class DryRunReply(ExpectedStart):
    """The forecast for a submission that was not made."""

    reason: CodeText | None
    #: Why no start could be estimated.
    no_estimate: NotRequired[CodeText]


class StatusReply(ServiceState, DrainPart):
    jobs: list[JobView]
    counts: dict[str, int]
    draining: bool
    #: Names of countable resources.
    gres: list[str]
    #: The GPUs whose use is measured; sent where there are some.
    gpus: NotRequired[list[GpuView]]
    #: Place of the last row, if there is another page.
    after: tuple[int, bool] | None


class ShowReply(TypedDict):
    """A job or an array; `used`, `all_runs` and `curve` are sent with a job only."""

    job: NotRequired[ExplainedJobView]
    array: NotRequired[ExplainedArrayView]
    events: list[EventView]
    #: Number of events that are no longer stored.
    events_dropped: int
    used: NotRequired[UsedView | None]
    #: Sent of an ended job that has run before its last attempt.
    all_runs: NotRequired[AllRunsView]
    curve: NotRequired[CurveView | None]


class AdviceView(ResourcesView):
    """Recommended request for the next job of this kind."""

    time_limit_s: int
    #: Why a range of cores is recommended, or its lower end is raised, as a part of a sentence.
    cores_note: NotRequired[str]
    #: The same as options of `drf submit`.
    options: list[str]
    #: Number of jobs that the advice rests on, and how many of them hit a limit.
    jobs: int
    short_jobs: int
    of_last: int


class WhyReply(TypedDict):
    #: Of an array, one task that tells most.
    job: ExplainedJobView
    #: Sent to the owner of an array.
    array: NotRequired[TasksView]
    notes: list[str]
    advice: AdviceView | None
    no_estimate: NotRequired[CodeText]


class HistoryReply(TypedDict):
    jobs: list[JobView]
    #: End and id of the last row, if there is another page.
    after: tuple[float | None, int] | None


class AccountedView(TypedDict):
    """An amount of one resource, integrated over run time."""

    declared: int
    used: int
    #: Declared by jobs whose use is not known.
    unknown: int
    wasted: int
    efficiency: float | None


class AccountView(TypedDict):
    """Sums over jobs: core-microseconds, byte-milliseconds, milliseconds, bytes."""

    jobs: int
    #: A job that was preempted or tried again has more than one.
    runs: int
    run_ms: int
    cores: AccountedView
    memory: AccountedView
    read: AccountedView
    write: AccountedView
    read_bytes: int
    written_bytes: int
    demand_max: int
    peak_max: int | None
    throttled_us: int
    throttled_unknown_jobs: int
    out_of_memory_jobs: int
    timeout_jobs: int
    gres_ms: dict[str, int]
    #: GPU time, in milliseconds of one GPU.
    gpu: AccountedView
    #: Highest memory of a single job on all its GPUs together, and on one of those that it was
    #: given, in bytes; null where it is not measured.
    gpu_memory_peak_max: int | None
    gpu_memory_single_peak_max: int | None
    #: CPU time that jobs with a range of cores used beyond its lower end; null if none has one.
    beyond_us: int | None


class JobCurveView(CurveView):
    """Use over time of one job, and what it requested."""

    id: int
    demand: ResourcesView


class ReportRow(AccountView):
    """The jobs of one key, of which the parts that are sent depend on `by` of the request."""

    #: As text.
    id: NotRequired[str]
    name: NotRequired[str]
    user: NotRequired[str]
    pool: NotRequired[str]
    advice: AdviceView | None
    #: Of the row's last job; sent by job and by name only.
    curve: NotRequired[JobCurveView | None]


class ReportReply(TypedDict):
    by: str
    rows: list[ReportRow]
    #: The sum of the rows that were left out.
    others: AccountView | None
    total: AccountView


class WaitReply(TypedDict):
    """The jobs that have ended. `done` is false if the time was over first."""

    done: bool
    ended: list[JobView | EndedArrayView]
    #: Jobs that can never start.
    never: list[JobView]


class Failure(TypedDict):
    id: int | str
    error: ErrorView


class BatchReply(TypedDict):
    """Result of a verb for several jobs."""

    done: list[int]
    failed: list[Failure]
    #: Labels of the jobs in `done`, where they are not simply the ids.
    labels: NotRequired[list[str]]
    #: By the label of an array: indices of running tasks, which were not changed.
    kept: NotRequired[dict[str, str]]
    #: How many more of the named jobs were refused than are in `failed`.
    unnamed: NotRequired[int]
    #: When the first of the jobs that were suspended is ended unless it is resumed, if it is.
    ended_at: NotRequired[float]
    launcher_away_s: NotRequired[float | None]
    notices: NotRequired[list[CodeText]]


class DrainReply(TypedDict):
    draining: bool
    #: What is drained of several machines; sent only if some are.
    nodes: NotRequired[list[str]]
    #: Sent only if what was to be undrained was not drained.
    was_undrained: NotRequired[bool]


class MachineView(TypedDict):
    """A machine on which jobs run."""

    #: Empty if it is the only one.
    name: str
    #: "local" for the daemon's own machine, "slurm" for one of Slurm's.
    engine: str
    features: list[str]
    #: "up"; or if nothing starts there, "away" (its launcher, or the machine, does not answer) or
    #: "drained".
    state: str
    #: Since when it is away or drained; null while it is up.
    since: float | None
    #: Why it is away, as far as that is known, or the reason of its drain; may be empty.
    text: str
    capacity: ResourcesView
    allocated: ResourcesView
    #: Number of jobs that have resources there.
    running: int
    #: Only if it is drained by itself.
    drain: NotRequired[DrainView]


class NodesReply(DrainPart):
    nodes: list[MachineView]


class ReloadReply(TypedDict):
    warnings: list[str]


class ShutdownReply(BatchReply):
    #: Jobs that were running.
    running: list[int]


class UsageReply(TypedDict):
    usage: CurveView
    demand: ResourcesView


class DebtView(TypedDict):
    """What reservations of a user have kept idle, in dominant-share-hours."""

    owed_hours: float
    #: Beyond this the user's jobs get no further reservation.
    allowed_hours: float


class NodeView(TypedDict):
    """A pool or a user in the fair-share tree."""

    path: str
    #: One number, or one per resource where they differ.
    weight: float | dict[str, float]
    entitlement: float
    usage: ResourcesView
    dominant_resource: str | None
    dominant_share: float
    satisfaction: float
    running: int
    pending: int
    #: Only of a user who has a debt.
    debt: NotRequired[DebtView]


class LimitHoursView(TypedDict):
    """A pool or user whose limits depend on the hour. Limits are amounts by resource: cores a
    number, bytes, bytes per second, counts. A resource that is left out has no limit."""

    path: str
    #: The limits now.
    limit: dict[str, float]
    #: Unix time at which they change, and the limits then; null if no change is known.
    until: float | None
    next: dict[str, float] | None
    #: All of it in words.
    text: str


class SharesReply(DrainPart):
    capacity: ResourcesView
    free: ResourcesView
    nodes: list[NodeView]
    #: Sent only while processes outside drfd use more than is left to them.
    external: NotRequired[ExternalView | None]
    #: Sent only where limits depend on the hour.
    limit_hours: NotRequired[list[LimitHoursView]]


class DiskView(TypedDict):
    """A managed disk and how it is controlled."""

    name: str
    path: str
    device: str | None
    filesystem: str
    read: int
    write: int
    #: By direction: `enforced`, or why it is not.
    control: dict[str, str]
    #: Whether the speed is a guess.
    guess: bool
    problem: str | None


class StrayView(TypedDict):
    """Processes, cgroup or record of an attempt that belongs to no job here."""

    id: int
    attempt: int
    uid: int | None
    user: str | None
    is_foreign: bool


class EnforcementView(TypedDict):
    """Limits that are enforced on this machine, and problems."""

    version: str
    #: Null while the launcher is away.
    enforcement: str | None
    controls: dict[str, str]
    private: dict[str, str]
    #: Limits on processes: of all jobs together, and of each user.
    processes: dict[str, int] | None
    gres: dict[str, list[str]]
    disks: list[DiskView]
    capacity: ResourcesView
    warnings: list[str]
    stuck_jobs: list[int]
    strays: list[StrayView]
    launcher: str


class WindowView(TypedDict):
    """A maintenance window: no job runs in it that has a time limit. Times are Unix times."""

    name: str
    start: float
    end: float
    reason: str
    #: Whether it comes each week.
    weekly: bool


class DoctorReply(EnforcementView, ServiceState, DrainPart):
    cures: list[str]
    external: ExternalView | None
    draining: bool
    #: The maintenance windows that are open or come next, of each name one.
    windows: list[WindowView]
    #: The pools and users whose limits depend on the hour.
    limit_hours: list[LimitHoursView]


class EndStrayReply(TypedDict):
    #: Job and attempt, as `41.1`.
    ended: str


class ExecReply(TypedDict):
    """The process is in the job."""

    id: int
    attempt: int


class MetricsReply(TypedDict):
    text: str


# -- streams ---------------------------------------------------------------------------------------


class EventLine(TypedDict):
    """A line of `events`: a job that has changed, as it stands, or a place in the journal."""

    event: NotRequired[JobView]
    #: A later stream with `after` set to it begins here.
    mark: NotRequired[int]


class SnapshotRow(ProgressView):
    """A job, or tasks of an array that are all alike; visible to everybody."""

    label: str
    tasks: int
    reason: WaitView | None
    outcome: str | None
    now: NowView | None


class SnapshotNode(NodeView):
    #: What the jobs of the node use at present.
    used: SumView


class MachinePart(TypedDict):
    """The figures of the machine and of the fair-share tree in a snapshot."""

    draining: bool
    capacity: ResourcesView
    free: ResourcesView
    external: ExternalView | None
    #: Resources of which the use by other processes is not taken into account: cores, memory.
    external_off: list[str]
    #: Pressure stall information by resource; null where the kernel has none.
    pressure: dict[str, dict[str, float | None]] | None
    nodes: list[SnapshotNode]
    #: Jobs by state, tasks counted singly.
    counts: dict[str, int]
    #: As in `StatusReply`.
    gpus: NotRequired[list[GpuView]]


class CommonSnapshot(MachinePart, DrainPart):
    """The part of a snapshot that is the same for all users."""

    #: The machines on which jobs run; sent where there are several.
    machines: NotRequired[list[MachineView]]
    at: float
    host: str
    notices: list[CodeText]
    running: list[SnapshotRow]
    #: In the order of their expected start; `pending_more` rows are left out.
    pending: list[SnapshotRow]
    pending_more: int
    #: Newest first.
    ended: list[SnapshotRow]


class SnapshotView(CommonSnapshot):
    user: str
    #: Whether the user is an administrator.
    admin: bool
    #: The user's own pending rows that are not in `pending`.
    mine: list[SnapshotRow]


class SnapshotLine(TypedDict):
    snapshot: SnapshotView


#: Any of these: which one, the annotation of the verb's method says.
Reply = Mapping[str, object]
