"""What to ask for next time, from what the last similar jobs have really used.

Similar are jobs of one user with one name. The most demanding of the last ones decides: it must fit
too, and a job that asks for a little more is better off than one that is killed.

    memory  its peak and a fifth; half as much again as its limit for one that ran out of memory;
            where page cache has filled it up to the limit, what it held without that, and a fifth
    cores   CPU time per run time, up to the next half; half as much again for one that its quota
            held back in more than a quarter of its periods
    time    one and a half times the longest; twice the limit for one that hit it
    disks   only where a rate was declared: the highest rate seen and a fifth, or what was declared
            by one that came near to it
    gres    what the last one declared: nobody measures it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drfd.core.job import Job, Outcome, Usage
from drfd.core.limits import more_memory, round_size
from drfd.units import exact_duration, exact_size, show_cores

#: So many of the last similar jobs count, and fewer successes than this prove nothing.
LAST, LEAST = 10, 3
#: CPU time and run time are taken at slightly different moments: so many hundredths are noise.
_NOISE_PERCENT = 3
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    cores_milli: int
    memory_bytes: int
    time_limit_s: int
    #: 0: declare none.
    read_bps: int
    write_bps: int
    #: Which, where there are several. What a job does on more than one is known in sum only, and
    #: says nothing of each.
    disk: str = ""
    gres: tuple[tuple[str, int], ...] = ()
    #: On how many jobs it rests, and how many of them ran out of memory or time.
    jobs: int
    short_jobs: int

    def options(self) -> list[str]:
        """For `drf submit`."""
        words = ["-c", show_cores(self.cores_milli), "-m", exact_size(self.memory_bytes)]
        words += ["-t", exact_duration(self.time_limit_s)]
        if self.read_bps or self.write_bps:
            disk = f"{self.disk}=" if self.disk else ""
            words += ["--io", f"{disk}{exact_size(self.read_bps)}/{exact_size(self.write_bps)}"]
        for name, count in self.gres:
            words += ["--gres", f"{name}={count}"]
        return words


def is_evidence(job: Job) -> bool:
    """Has it shown what it needs? One that failed or was stopped may have had most before it."""
    if job.started_at is None or job.usage is None or not job.usage.memory_peak_bytes:
        return False
    return job.outcome is Outcome.COMPLETED or _is_short(job)


def advise(similar: Sequence[Job], *, least: int = LEAST) -> Advice | None:
    """`similar`: newest first; those that are no evidence are passed over. None: too few have
    succeeded, and none has shown that it had too little."""
    jobs = [job for job in similar if is_evidence(job)][:LAST]
    done = [job for job in jobs if job.outcome is Outcome.COMPLETED]
    short = [job for job in jobs if _is_short(job)]
    if len(done) < least and not short:
        return None
    cores, memory = max(map(_cores, jobs)), max(map(_memory, jobs))
    time_s = max(map(_time_s, jobs))
    if len(done) < least:
        # What was short is raised; too little is known to lower anything.
        last = jobs[0].spec
        cores, memory = max(cores, last.demand.cores_milli), max(memory, last.demand.memory_bytes)
        time_s = max(time_s, last.time_limit_s or 0)
    disks = frozenset[str]().union(*(job.spec.demand.used_disks for job in jobs))
    one = jobs if len(disks) <= 1 else []
    return Advice(
        cores_milli=cores,
        memory_bytes=memory,
        time_limit_s=time_s,
        read_bps=max((_rate(job, "read") for job in one), default=0),
        write_bps=max((_rate(job, "write") for job in one), default=0),
        disk=min(disks, default=""),
        gres=jobs[0].spec.demand.gres,
        jobs=len(jobs),
        short_jobs=len(short),
    )


def ran_out(job: Job) -> bool:
    """Did it run out of its own memory, not of the machine's?"""
    if job.outcome is not Outcome.OUT_OF_MEMORY or job.usage is None:
        return False
    near = job.usage.memory_peak_bytes * 10 >= job.spec.demand.memory_bytes * 9
    return near or bool(job.usage.limit_hits)


def _is_short(job: Job) -> bool:
    return job.outcome is Outcome.TIMEOUT or ran_out(job)


def _used(job: Job) -> Usage:
    assert job.usage is not None
    return job.usage


def _run_ms(job: Job) -> int:
    """How long its last attempt ran, without the time that it was frozen."""
    assert job.started_at is not None
    assert job.ended_at is not None
    return max(1, round((job.ended_at - job.started_at - job.frozen_s(job.ended_at)) * 1000))


def _memory(job: Job) -> int:
    usage, declared = _used(job), job.spec.demand.memory_bytes
    peak = usage.memory_peak_bytes
    if ran_out(job):
        return more_memory(max(peak, declared))
    working = usage.memory_working_bytes
    if usage.limit_hits == 0 or peak * 10 < declared * 9 or working is None:
        return round_size(peak * 6 // 5)
    # It was at its limit and lived: some of what it held was cache, which gave way.
    needed = max(working, min(usage.largest_process_bytes or 0, peak))
    enough = round_size(needed * 6 // 5)
    return enough if enough < declared else round_size(declared)


def _cores(job: Job) -> int:
    usage, declared = _used(job), job.spec.demand.cores_milli
    mean = round(usage.cpu_s * 1_000_000) // _run_ms(job)
    # It cannot have had more than its quota for long.
    needed = min(mean * (100 - _NOISE_PERCENT) // 100, max(declared, 500))
    periods, held_back = usage.quota_periods, usage.throttled_periods
    if periods and held_back is not None and periods >= 10 and held_back * 4 > periods:
        needed = max(needed, declared * 3 // 2)
    return max(500, -(-needed // 500) * 500)


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
    seen = max(peak or 0, moved * 1000 // max(1000, _run_ms(job)))
    if seen * 10 >= declared * 9:
        # The limit may be all that kept it from more.
        return declared
    return round_size(max(_MIB, seen * 6 // 5), step=_MIB)


def _longer_s(job: Job) -> int:
    """Half as long again as it ran, in whole seconds, up."""
    return -(-_run_ms(job) * 3 // 2000)


def round_time(seconds: int) -> int:
    """Up to whole minutes; five of them above ten, quarters of an hour above two hours, hours
    above a day."""
    step = 60
    for above, longer in ((600, 300), (7200, 900), (86400, 3600)):
        if seconds > above:
            step = longer
    return max(step, -(-seconds // step) * step)
