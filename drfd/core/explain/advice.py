"""Advice from ended jobs: the demand to declare the next time, and the options that do so.

`advise` uses the last similar jobs, of one user with one name and command (`kind_of_job`). The most
demanding of them decides.

    memory  120 % of the peak; 150 % of the limit for a job that ran out; 120 % of the use without
            page cache if page cache filled the limit
    cores   CPU time over run time, rounded up to a half, at most the declared ones; 150 % for a job
            that was throttled in more than a quarter of its quota periods. A range keeps its upper
            end, and gets a higher lower end if far more was used on average. Where there are
            ranges, one is advised to a job that needs far less on average but reached all at times
    time    150 % of the longest run time; twice the limit for a job that reached it
    disks   only if a rate was declared: 120 % of the highest rate, or the declared one if nearly
            reached
    gres    as declared by the last job; declared memory of a GPU as memory of the machine
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from drfd.common.units import DISK_AXES, exact_duration, show_cores, show_gres_word
from drfd.core.decisions.outcome import more_gpu_memory, more_memory, round_size, within_gpu
from drfd.core.model.job import Job, JobSpec, Outcome, Usage
from drfd.core.model.options import changed_amounts
from drfd.core.model.resources import NOTHING, Resources, disk_axes
from drfd.devices.gpu import GPU


def ran_ms(job: Job) -> int:
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

    #: Whether it used more than its lower end on average; else it declared a single figure, which
    #: it used at times.
    is_above_floor: bool
    mean_milli: int
    declared_milli: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    #: Rates of a job on more than one disk are known in sum only, so those of one disk are advised.
    demand: Resources
    time_limit_s: int
    #: Upper end of a range of cores; 0 means that a single figure is advised.
    cores_max_milli: int = 0
    #: Why the range of cores is advised, or its lower end raised; None if neither is so.
    cores_reason: CoresReason | None = None
    #: Number of jobs from which this is derived, and of those that ran out of memory or time.
    jobs: int
    short_jobs: int


#: Programs that run another one, which their arguments name.
_RUNNERS = re.compile(
    r"((ba|da|z|k|c|tc|fi)?sh|env|nice|time|timeout|nohup|srun|mpirun|mpiexec|uv|conda|java|node|"
    r"python|pypy|perl|ruby|R|Rscript|julia|octave|matlab|lua|php|awk|make|xargs)[-0-9.]*"
)


def kind_of_job(job: Job) -> tuple[str, ...]:
    """Return the key of jobs that are likely to have the same needs: user, name and command. A name
    that is only the command's first word, or that of an interpreter, is replaced by the whole
    command."""
    spec = job.spec
    words = spec.argv
    program = words[0].rpartition("/")[2]
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
    has_ranges: bool = False,
) -> Advice | None:
    """Return advice from similar jobs, newest first, or None if fewer than `least` completed and
    none ran out of memory or time. Jobs that are no evidence are skipped. `gpu_bytes` is what the
    largest GPU has, if known; `has_ranges` whether jobs may declare ranges of cores."""
    jobs = [job for job in similar if is_evidence(job)][:LAST]
    done = [job for job in jobs if job.outcome is Outcome.COMPLETED]
    short = [job for job in jobs if _is_short(job)]
    if len(done) < least and not short:
        return None
    last, wishes = jobs[0].spec, [_cores(job, has_ranges=has_ranges) for job in jobs]
    amounts = {
        **last.demand.sums,
        "cores": max(each.floor_milli for each in wishes),
        "memory": max(map(_memory, jobs)),
    }
    time_s = max(map(_time_s, jobs))
    if len(done) < least:
        # Demands that were too small are raised; there is not enough evidence to lower any.
        amounts = {axis: max(amount, last.demand.sums[axis]) for axis, amount in amounts.items()}
        time_s = max(time_s, last.time_limit_s or 0)
    disks = frozenset[str]().union(*(job.spec.demand.used_disks for job in jobs))
    one = jobs if len(disks) <= 1 else []
    amounts |= {axis: max((_rate(job, axis) for job in one), default=0) for axis in DISK_AXES}
    end = max(each.most_milli for each in wishes)
    disk = min(disks, default="")
    memory = _gres_memory(jobs, gpu_bytes, may_lower=len(done) >= least)
    reasons = [each.reason for each in wishes if each.reason is not None]
    return Advice(
        demand=replace(_on_disk(amounts, disk), gres=last.demand.gres, gres_memory=memory),
        # A range has a lower end below its upper one.
        cores_max_milli=end if amounts["cores"] < end else 0,
        time_limit_s=time_s,
        cores_reason=max(reasons, default=None),
        jobs=len(jobs),
        short_jobs=len(short),
    )


def _on_disk(sums: Mapping[str, int], disk: str) -> Resources:
    """Return these amounts, of rates on this disk."""
    names = dict(zip(DISK_AXES, disk_axes([disk]), strict=True))
    return NOTHING.with_amounts({names.get(axis, axis): amount for axis, amount in sums.items()})


def is_as_asked(advice: Advice, job: Job) -> bool:
    demand = job.spec.demand
    return (
        advice.time_limit_s == job.spec.time_limit_s
        and advice.demand.sums == demand.sums
        and advice.cores_max_milli == job.spec.cores_max_milli
        and advice.demand.gres_memory == demand.gres_memory
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


def _cores(job: Job, *, has_ranges: bool) -> _CoresWish:
    usage, declared, end = _used(job), job.spec.demand.cores_milli, job.spec.cores_max_milli
    mean = round(usage.cpu_s * 1_000_000) // max(1, ran_ms(job))
    needed = _halves(mean * (100 - _NOISE_PERCENT) // 100)
    if end and usage.beyond_us:
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
    if has_ranges and not end and is_bursty and _is_far_less(needed, declared):
        reason = CoresReason(is_above_floor=False, mean_milli=mean, declared_milli=declared)
        return _CoresWish(needed, more, reason)
    # If its quota has not held it back, it needs no more.
    return _CoresWish(more if is_held_back else min(needed, declared), end)


def _is_far_less(cores_milli: int, than_milli: int) -> bool:
    return cores_milli * 4 <= than_milli * 3


def _halves(cores_milli: int) -> int:
    """Round up to halves of a core, of which there is at least one."""
    return max(500, -(-cores_milli // 500) * 500)


def _time_s(job: Job) -> int:
    limit_s = job.spec.time_limit_s
    if job.outcome is Outcome.TIMEOUT and limit_s is not None:
        return round_time(limit_s * 2)
    return round_time(-(-max(1, ran_ms(job)) * 3 // 2000))


def _rate(job: Job, axis: str) -> int:
    usage, declared = _used(job), job.spec.demand.sums[axis]
    moved, peak = usage.moved(axis)
    if not declared:
        return 0
    seen = max(peak or 0, moved * 1000 // max(1000, ran_ms(job)))
    if seen * 10 >= declared * 9:
        # The limit may have prevented a higher rate.
        return declared
    return round_size(max(_MIB, seen * 6 // 5), step=_MIB)


def round_time(seconds: int) -> int:
    """Round up to whole minutes, to five minutes above ten, to quarters of an hour above two
    hours, and to hours above a day."""
    step = 60
    for above, longer in ((600, 300), (7200, 900), (86400, 3600)):
        if seconds > above:
            step = longer
    return max(step, -(-seconds // step) * step)


# -- as options of drf submit ----------------------------------------------------------------------


def advice_options(advice: Advice) -> list[str]:
    """Return the options that declare the advised demand."""
    pairs = changed_amounts(NOTHING, advice.demand, advice.cores_max_milli)
    at = sum([option != "--io" for option, _ in pairs])
    pairs.insert(at, ("-t", exact_duration(advice.time_limit_s)))
    memory = dict(advice.demand.gres_memory)
    for name, count in advice.demand.gres:
        pairs.append(("--gres", show_gres_word(name, count, memory.get(name))))
    return [*chain.from_iterable(pairs)]


def cores_note(advice: Advice) -> str | None:
    """Return why a range of cores is advised or its lower end raised, as a part of a sentence:
    "used 1.6 of 8 cores on average, at times all of them: a range books 2 and may use 8"."""
    reason = advice.cores_reason
    if reason is None:
        return None
    used, declared = show_cores(round(reason.mean_milli, -1)), show_cores(reason.declared_milli)
    floor, most = advice.demand.cores_milli, advice.cores_max_milli
    if reason.is_above_floor:
        needed = f"asking for {show_cores(floor)} guarantees it"
        return f"used {used} of {declared} declared on average: {needed}"
    if not most:
        return None
    seen = f"used {used} of {declared} cores on average, at times all of them"
    return f"{seen}: a range books {show_cores(floor)} and may use {show_cores(most)}"


def changed_options(asked: JobSpec, changed: JobSpec) -> list[str]:
    """Return the options for the changed amounts and the changed time limit. A range keeps its
    upper end."""
    pairs = changed_amounts(asked.demand, changed.demand, changed.cores_max_milli)
    if changed.time_limit_s is not None and changed.time_limit_s != asked.time_limit_s:
        pairs.append(("-t", exact_duration(changed.time_limit_s)))
    return [*chain.from_iterable(pairs)]
