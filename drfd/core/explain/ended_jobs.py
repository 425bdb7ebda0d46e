"""What an ended job teaches: notes about its end, and the demand to declare the next time.

The notes (`end_notes`) go beyond the outcome: the evidence, and what helps. Their sentences are in
`drfd.wording.ends`.

The advice (`advise`) comes from the use of the last similar jobs: those of one user with one name
and command (`kind_of_job`). The most demanding of them decides: it must fit too, and asking for a
little more is better than being killed.

    memory  120 % of the peak; 150 % of the limit for a job that ran out of memory; 120 % of the
            memory without page cache if page cache filled it up to the limit
    cores   CPU time over run time, rounded up to the next half, but no more than was declared;
            150 % of the cores for a job that was throttled in more than a quarter of its quota
            periods. A range keeps its upper end; its lower end is raised up to that for a job that
            was lent far more on average. Where cores are lent, a range is advised to a job with a
            single figure that needs far less on average, but reached it at times
    time    150 % of the longest run time; twice the limit for a job that reached it
    disks   only if a rate was declared: 120 % of the highest rate seen, or the declared rate of a
            job that came near it
    gres    as declared by the last job; of the memory on each GPU, where it was declared, 120 % of
            the peak, 150 % for a job that was stopped for it
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from drfd.common.signals import name_of
from drfd.core.amounts.resources import NOTHING
from drfd.core.decisions.outcome import (
    SLURM_NOT_STARTED,
    more_gpu_memory,
    more_memory,
    round_size,
    within_gpu,
)
from drfd.core.model.account import NO_ACCOUNT, account_of_run
from drfd.core.model.job import Job, Outcome, Usage
from drfd.devices.gpu import GPU

# -- notes: sizes in bytes, times in milliseconds, cores in thousandths ----------------------------


@dataclass(frozen=True, slots=True)
class ResourcesUsed:
    cpu_s: float
    #: None for a job so short that its mean depends more on the clock than on the job.
    mean_cores_milli: int | None
    cores_milli: int
    memory_peak_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Ran:
    ran_ms: int
    used: ResourcesUsed
    #: Whether other runs came before this one.
    is_last_of_many: bool = False


@dataclass(frozen=True, slots=True)
class AllRuns:
    """The sums over all runs of a job that had others before its last attempt."""

    runs: int
    ran_ms: int
    #: None if no run was measured.
    cpu_s: float | None


@dataclass(frozen=True, slots=True)
class UsedBeforeLoss:
    used: ResourcesUsed


@dataclass(frozen=True, slots=True)
class WorkUnknown:
    """Whether the work of a lost job was done is not known."""


@dataclass(frozen=True, slots=True)
class KilledForMemory:
    ran_ms: int
    peak_bytes: int
    limit_bytes: int
    #: Whether drfd stopped it after measurements, because there is no cgroup to enforce the limit.
    is_measured: bool = False


@dataclass(frozen=True, slots=True)
class MachineShort:
    """The machine ran short of memory, not the job, and the kernel or somebody else killed it."""

    by_kernel: bool


@dataclass(frozen=True, slots=True)
class DemandNotAtFault:
    """The demand need not be raised after a shortage of the machine."""


@dataclass(frozen=True, slots=True)
class FirstProcessExited:
    """The first process of a job that ran out of memory was not killed."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class LargestProcess:
    size_bytes: int
    #: Whether it had less than half of the limit.
    is_one_of_many: bool


@dataclass(frozen=True, slots=True)
class InKernelLog:
    """The kernel's log names the killed processes."""


@dataclass(frozen=True, slots=True)
class UsedNearEnd:
    cores_milli: int
    is_idle: bool


@dataclass(frozen=True, slots=True)
class ShellRefused:
    """An exit code with which a shell reports that it could not run a command, 126 or 127."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class ShellSawSignal:
    """An exit code with which a shell reports that a signal killed its command."""

    exit_code: int
    signal: str


@dataclass(frozen=True, slots=True)
class FaultSignal:
    """A signal of `FAULT_SIGNALS`."""

    signal: str


@dataclass(frozen=True, slots=True)
class SignalFromElsewhere:
    """The signal was not sent by drfd."""

    #: Whether the kernel is known to have killed nothing in the job for memory.
    is_not_for_memory: bool


@dataclass(frozen=True, slots=True)
class NearMemoryLimit:
    peak_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class HasErrorOutput:
    job: str
    #: Whether the errors have a file of their own.
    is_apart: bool = True


class LaunchFault(StrEnum):
    """Causes of a failed launch that the user or an administrator can remove.

    Each value is a part of the sentence with which `drfd/launcher/runner/` reports the cause.
    """

    NOT_IN_PATH = "in the job's PATH"
    NO_PROGRAM = "there is no program"
    NO_INTERPRETER = "names an interpreter"
    NO_FIRST_LINE = "needs a first line"
    NO_DIRECTORY = "cannot enter"
    NO_OUTPUT = "cannot write the output file"
    NO_TERMINAL = "the terminal that waited"
    NO_USER = "there is no user"
    NO_LIMITS = "it could not be set up"


EndNote = (
    Ran
    | AllRuns
    | UsedBeforeLoss
    | WorkUnknown
    | KilledForMemory
    | MachineShort
    | DemandNotAtFault
    | FirstProcessExited
    | LargestProcess
    | InKernelLog
    | UsedNearEnd
    | ShellRefused
    | ShellSawSignal
    | FaultSignal
    | SignalFromElsewhere
    | NearMemoryLimit
    | HasErrorOutput
    | LaunchFault
)

#: Signals that a fault of the program, a limit of its own or a closed terminal or pipe causes.
FAULT_SIGNALS = frozenset(
    {
        *("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGSYS"),
        *("SIGPIPE", "SIGHUP", "SIGXFSZ", "SIGXCPU"),
    }
)
_KILLING_SIGNALS = frozenset({"SIGKILL", "SIGTERM", "SIGINT"})


def end_notes(job: Job) -> list[EndNote]:
    """Return the notes, the most important first; none for a live job. They are about the last
    attempt, but for one about all runs."""
    usage = job.usage if job.usage is not None and job.usage.memory_peak_bytes else None
    found: Iterator[EndNote]
    match job.outcome:
        case Outcome.OUT_OF_MEMORY if usage is not None:
            found = _out_of_memory(job, usage)
        case Outcome.TIMEOUT if usage is not None:
            found = _timeout(job, usage)
        case Outcome.LAUNCH_FAILED:
            found = (fault for fault in LaunchFault if fault.value in job.outcome_text)
        case Outcome.FAILED:
            found = _failed(job, usage)
        case Outcome.LOST:
            found = _lost(job, usage)
        case Outcome.COMPLETED | Outcome.CANCELLED | Outcome.LIMIT_EXCEEDED if usage is not None:
            found = iter([_ran(job, usage)])
        case _:
            found = iter([])
    return [*found, *_all_runs(job)]


def _all_runs(job: Job) -> Iterator[EndNote]:
    earlier = job.earlier_runs
    if job.outcome is None or earlier is None:
        return
    account = earlier + (account_of_run(job) or NO_ACCOUNT)
    cpu_s = account.cores.used / 1_000_000 if account.memory_peak_bytes else None
    yield AllRuns(account.runs, account.run_ms, cpu_s)


def _out_of_memory(job: Job, usage: Usage) -> Iterator[EndNote]:
    limit = job.spec.demand.memory_bytes
    is_measured = job.stop is not None and job.stop.outcome is Outcome.OUT_OF_MEMORY
    yield KilledForMemory(_ran_ms(job), usage.memory_peak_bytes, limit, is_measured)
    if is_measured:
        return
    if not ran_out(job):
        yield MachineShort(by_kernel=bool(usage.oom_kills))
        yield DemandNotAtFault()
        return
    if job.exit_code is not None:
        yield FirstProcessExited(job.exit_code)
    largest = usage.largest_process_bytes
    if largest is not None:
        yield LargestProcess(largest, is_one_of_many=largest * 2 < limit)
    yield InKernelLog()


def _timeout(job: Job, usage: Usage) -> Iterator[EndNote]:
    yield _ran(job, usage)
    late = usage.late_cores_milli
    if late is not None:
        yield UsedNearEnd(late, is_idle=late * 20 < job.spec.demand.cores_milli)


def _failed(job: Job, usage: Usage | None) -> Iterator[EndNote]:
    code = job.exit_code
    if job.signal is not None:
        yield from _signal(job.signal, usage)
    elif code in (126, 127):
        yield ShellRefused(code)
    elif code is not None and 128 < code < 128 + 65:
        name = name_of(code - 128)
        if name is not None:
            yield ShellSawSignal(code, name)
            yield from _signal(code - 128, usage)
    limit = job.spec.demand.memory_bytes
    if usage is not None and usage.memory_peak_bytes * 10 >= limit * 9:
        yield NearMemoryLimit(usage.memory_peak_bytes, limit)
    if job.spec.attach is None:
        # Otherwise it went to a terminal.
        yield HasErrorOutput(job.label, is_apart=job.spec.stderr != job.spec.stdout)


def _signal(number: int, usage: Usage | None) -> Iterator[EndNote]:
    name = name_of(number)
    if name in FAULT_SIGNALS:
        yield FaultSignal(name)
    elif name in _KILLING_SIGNALS:
        yield SignalFromElsewhere(usage is not None and usage.oom_kills == 0)


def _lost(job: Job, usage: Usage | None) -> Iterator[EndNote]:
    if usage is not None:
        yield UsedBeforeLoss(_resources_used(job, usage))
    if job.loss != SLURM_NOT_STARTED:
        yield WorkUnknown()


def _ran(job: Job, usage: Usage) -> Ran:
    is_last_of_many = job.earlier_runs is not None
    return Ran(_ran_ms(job), _resources_used(job, usage), is_last_of_many)


def _resources_used(job: Job, usage: Usage) -> ResourcesUsed:
    ran_ms, demand = _ran_ms(job), job.spec.demand
    mean = None if ran_ms < 1000 else round(usage.cpu_s * 1_000_000) // ran_ms // 10 * 10
    return ResourcesUsed(
        usage.cpu_s, mean, demand.cores_milli, usage.memory_peak_bytes, demand.memory_bytes
    )


def _ran_ms(job: Job) -> int:
    """Return the run time of the last attempt in milliseconds, without the time frozen."""
    if job.started_at is None or job.ended_at is None:
        return 0
    return max(0, round((job.ended_at - job.started_at - job.frozen_s(job.ended_at)) * 1000))


#: Number of last similar jobs that count, and the completed ones needed to lower a demand.
LAST, LEAST = 10, 3
#: Error of CPU time over run time, in percent: both are read at slightly different moments.
_NOISE_PERCENT = 3
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class CoresReason:
    """Use of cores by a job that another range, or a range at all, would have served better."""

    #: Whether it was lent more than its lower end on average; else it declared a single figure,
    #: which it used at times.
    is_above_floor: bool
    mean_milli: int
    declared_milli: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    cores_milli: int
    memory_bytes: int
    time_limit_s: int
    #: Bytes per second; 0 means to declare no rate.
    read_bps: int
    write_bps: int
    #: Upper ends of ranges; 0 means that a single figure is advised.
    most_cores_milli: int = 0
    most_read_bps: int = 0
    most_write_bps: int = 0
    #: Why the range of cores is advised, or its lower end raised; None if neither is so.
    cores_reason: CoresReason | None = None
    #: Name of the disk if there are several. Rates of a job on more than one are known in sum only.
    disk: str = ""
    gres: tuple[tuple[str, int], ...] = ()
    #: As in `Resources`.
    gres_memory: tuple[tuple[str, int], ...] = ()
    #: Number of jobs from which this is derived, and of those that ran out of memory or time.
    jobs: int
    short_jobs: int


#: Programs that run another one, which their arguments name.
_RUNNERS = re.compile(
    r"((ba|da|z|k|c|tc|fi)?sh|env|nice|time|timeout|nohup|srun|mpirun|mpiexec|uv|conda|java|node|"
    r"python|pypy|perl|ruby|R|Rscript|julia|octave|matlab|lua|php|awk|make|xargs)[-0-9.]*"
)


def kind_of_job(job: Job) -> tuple[str, ...]:
    """Return the key that jobs have in common which are likely to have the same needs: the user,
    the name, and the command.

    A name that is no more than the first word of the command says little, and neither does the
    name of an interpreter or a shell: then the whole command counts.
    """
    spec = job.spec
    words = list(spec.argv)
    program = words[0].rpartition("/")[2] if words else ""
    if spec.name != program and not _RUNNERS.fullmatch(program):
        return spec.user, spec.name, program
    return spec.user, spec.name, *words


def is_evidence(job: Job) -> bool:
    """Return whether the job has shown its needs; one that failed or was stopped early has not."""
    if job.started_at is None or job.usage is None or not job.usage.memory_peak_bytes:
        return False
    return job.outcome is Outcome.COMPLETED or _is_short(job)


def advise(
    similar: Sequence[Job],
    *,
    least: int = LEAST,
    gpu_bytes: int | None = None,
    lends_cores: bool = False,
) -> Advice | None:
    """Return advice from similar jobs, newest first; jobs that are no evidence are skipped.
    `gpu_bytes` is what the largest GPU has, if that is known; `lends_cores` says whether idle cores
    are lent.

    None if fewer than `least` completed and none ran out of memory or time.
    """
    jobs = [job for job in similar if is_evidence(job)][:LAST]
    done = [job for job in jobs if job.outcome is Outcome.COMPLETED]
    short = [job for job in jobs if _is_short(job)]
    if len(done) < least and not short:
        return None
    wishes = [_cores(job, lends=lends_cores) for job in jobs]
    cores = max(each.floor_milli for each in wishes)
    most_cores = max(each.most_milli for each in wishes)
    memory, time_s = max(map(_memory, jobs)), max(map(_time_s, jobs))
    if len(done) < least:
        # Demands that were too small are raised; there is not enough evidence to lower any.
        last = jobs[0].spec
        cores, memory = max(cores, last.demand.cores_milli), max(memory, last.demand.memory_bytes)
        time_s = max(time_s, last.time_limit_s or 0)
    disks = frozenset[str]().union(*(job.spec.demand.used_disks for job in jobs))
    one = jobs if len(disks) <= 1 else []
    read_bps = max((_rate(job, "read") for job in one), default=0)
    write_bps = max((_rate(job, "write") for job in one), default=0)
    ends = [job.spec.most.rate_sums for job in one if job.spec.most is not None]
    reasons = [each.reason for each in wishes if each.reason is not None]
    return Advice(
        cores_milli=cores,
        memory_bytes=memory,
        time_limit_s=time_s,
        read_bps=read_bps,
        write_bps=write_bps,
        most_cores_milli=_above(cores, most_cores),
        most_read_bps=_above(read_bps, max((read for read, _ in ends), default=0)),
        most_write_bps=_above(write_bps, max((write for _, write in ends), default=0)),
        cores_reason=max(reasons, default=None),
        disk=min(disks, default=""),
        gres=jobs[0].spec.demand.gres,
        gres_memory=_gres_memory(jobs, gpu_bytes, may_lower=len(done) >= least),
        jobs=len(jobs),
        short_jobs=len(short),
    )


def is_as_asked(advice: Advice, job: Job) -> bool:
    """Return whether the advice is what the job asked for already."""
    demand, most = job.spec.demand, job.spec.most or NOTHING
    return (
        advice.cores_milli == demand.cores_milli
        and advice.most_cores_milli == most.cores_milli
        and advice.memory_bytes == demand.memory_bytes
        and advice.time_limit_s == job.spec.time_limit_s
        and (advice.read_bps, advice.write_bps) == demand.rate_sums
        and (advice.most_read_bps, advice.most_write_bps) == most.rate_sums
        and advice.gres_memory == demand.gres_memory
    )


def ran_out(job: Job) -> bool:
    """Return whether the job reached its own memory limit; else the machine ran short."""
    if job.outcome is not Outcome.OUT_OF_MEMORY or job.usage is None:
        return False
    near = job.usage.memory_peak_bytes * 10 >= job.spec.demand.memory_bytes * 9
    return near or bool(job.usage.limit_hits)


def ran_out_on_gpu(job: Job) -> bool:
    """Return whether the job was stopped for its memory on a GPU."""
    limit = dict(job.spec.demand.gres_memory).get(GPU)
    if job.outcome is not Outcome.LIMIT_EXCEEDED or limit is None or job.usage is None:
        return False
    return (job.usage.gpu_memory_single_peak_bytes or 0) > limit


def _is_short(job: Job) -> bool:
    return job.outcome is Outcome.TIMEOUT or ran_out(job) or ran_out_on_gpu(job)


def _used(job: Job) -> Usage:
    assert job.usage is not None
    return job.usage


def _memory(job: Job) -> int:
    usage, declared = _used(job), job.spec.demand.memory_bytes
    peak = usage.memory_peak_bytes
    if ran_out(job):
        return more_memory(max(peak, declared))
    working = usage.memory_working_bytes
    if usage.limit_hits == 0 or peak * 10 < declared * 9:
        return round_size(peak * 6 // 5)
    # The job reached its limit and survived, so a part of its memory was reclaimable cache. A job
    # that ended before it was sampled has shown no more than that.
    own = min(usage.largest_process_bytes or 0, peak)
    needed = declared if working is None else max(working, own)
    return min(round_size(needed * 6 // 5), declared)


def _gres_memory(
    jobs: Sequence[Job], gpu_bytes: int | None, *, may_lower: bool
) -> tuple[tuple[str, int], ...]:
    """Return the memory on each instance as the last job declared it, that on a GPU by what these
    jobs, newest first, had there."""
    declared = dict(jobs[0].spec.demand.gres_memory)
    if GPU not in declared:
        return jobs[0].spec.demand.gres_memory
    peaks = [(job, _used(job).gpu_memory_single_peak_bytes) for job in jobs]
    needed = [
        more_gpu_memory(peak, gpu_bytes)
        if ran_out_on_gpu(job)
        else within_gpu(round_size(peak * 6 // 5), peak, gpu_bytes)
        for job, peak in peaks
        if peak
    ]
    is_known = may_lower and all(peak for _, peak in peaks)
    declared[GPU] = max([*needed, *([] if is_known else [declared[GPU]])])
    return tuple(sorted(declared.items()))


@dataclass(frozen=True, slots=True)
class _CoresWish:
    """The range of cores that one job needs. The upper end is 0 for a single figure."""

    floor_milli: int
    most_milli: int = 0
    reason: CoresReason | None = None


def _cores(job: Job, *, lends: bool) -> _CoresWish:
    usage, declared = _used(job), job.spec.demand.cores_milli
    end = 0 if job.spec.most is None else job.spec.most.cores_milli
    mean = round(usage.cpu_s * 1_000_000) // max(1, _ran_ms(job))
    needed = _halves(mean * (100 - _NOISE_PERCENT) // 100)
    if end and usage.lent_us:
        # It was held back by what was idle, if at all, which says nothing of its floor.
        if not _is_far_less(declared, min(needed, end)):
            return _CoresWish(min(needed, declared), end)
        reason = CoresReason(is_above_floor=True, mean_milli=mean, declared_milli=declared)
        return _CoresWish(min(needed, end), end, reason)
    periods, held_back = usage.quota_periods, usage.throttled_periods
    is_held_back = bool(
        periods and held_back is not None and periods >= 10 and held_back * 4 > periods
    )
    # A job cannot exceed its quota for long.
    more = _halves(max(min(needed, declared), declared * 3 // 2)) if is_held_back else declared
    is_bursty = is_held_back or (usage.cores_peak_milli or 0) * 10 >= declared * 9
    if lends and not end and is_bursty and _is_far_less(needed, declared):
        reason = CoresReason(is_above_floor=False, mean_milli=mean, declared_milli=declared)
        return _CoresWish(needed, more, reason)
    # If its quota has not held it back, it needs no more.
    return _CoresWish(more if is_held_back else min(needed, declared), end)


def _is_far_less(cores_milli: int, than_milli: int) -> bool:
    return cores_milli * 4 <= than_milli * 3


def _above(least: int, most: int) -> int:
    """Return the upper end of a range, or 0 if there is no lower end or none below it."""
    return most if 0 < least < most else 0


def _halves(cores_milli: int) -> int:
    """Round up to halves of a core, of which there is at least one."""
    return max(500, -(-cores_milli // 500) * 500)


def _time_s(job: Job) -> int:
    limit_s = job.spec.time_limit_s
    if job.outcome is Outcome.TIMEOUT and limit_s is not None:
        return round_time(limit_s * 2)
    return round_time(_longer_s(job))


def _rate(job: Job, what: str) -> int:
    usage, (read_bps, write_bps) = _used(job), job.spec.demand.rate_sums
    declared, moved, peak = (
        (read_bps, usage.read_bytes, usage.read_peak_bps)
        if what == "read"
        else (write_bps, usage.written_bytes, usage.write_peak_bps)
    )
    if not declared:
        return 0
    seen = max(peak or 0, moved * 1000 // max(1000, _ran_ms(job)))
    if seen * 10 >= declared * 9:
        # The limit may have prevented a higher rate.
        return declared
    return round_size(max(_MIB, seen * 6 // 5), step=_MIB)


def _longer_s(job: Job) -> int:
    """Return 150 % of the run time in whole seconds, rounded up."""
    return -(-max(1, _ran_ms(job)) * 3 // 2000)


def round_time(seconds: int) -> int:
    """Round up to whole minutes, to five minutes above ten, to quarters of an hour above two
    hours, and to hours above a day."""
    step = 60
    for above, longer in ((600, 300), (7200, 900), (86400, 3600)):
        if seconds > above:
            step = longer
    return max(step, -(-seconds // step) * step)
