"""Sums of what runs of jobs declared and used, as exact integers.

A run counts from its start to its end; while suspended only with its memory. The declared resources
of runs whose use is unknown are summed separately, and do not count as wasted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drfd.common.units import AXES, DISK_AXES

if TYPE_CHECKING:
    from drfd.core.model.job import DeclaredJob, Job

#: Figures by name; what is not known is left out.
#:
#: `jobs`, `runs`: a job that was preempted or tried again has more than one run.
#: `run_ms`, `frozen_ms`: time without that frozen, and that time.
#: `AXIS.declared`, `AXIS.used`, `AXIS.unknown`: the amount times the run time in milliseconds; of
#: what is no rate, times the duration. `unknown` is what runs declared whose use is not known. Used
#: are CPU time, peak memory, and of runs that declared a rate, bytes times 1000. `gpu` has the time
#: of runs that declared GPUs; their utilisation times the duration is used.
#: `read_bytes`, `written_bytes`: of all runs, whether they declared a rate or not.
#: `demand_max`, `peak_max`: largest declared memory, and largest peak, of a single job.
#: `throttled_us`, `throttled_unknown_jobs`: time throttled by CPU quotas, summed over CPUs, and the
#: number of jobs for which it is not known.
#: `gres_ms.NAME`: countable resources in milliseconds of one instance, frozen or not.
#: `gpu_memory_peak_max`, `gpu_memory_single_peak_max`: highest memory of a single job on all its
#: GPUs together, and on one of those that it was given.
#: `beyond_us`: CPU time of jobs with a range above its lower end.
Account = dict[str, int]

#: The countable resource whose use is measured.
_GPU = "gpu"
#: What no sum is made of: the highest figure of a job counts.
_HIGHEST = frozenset(
    {"demand_max", "peak_max", "gpu_memory_peak_max", "gpu_memory_single_peak_max"}
)


def joined(account: Account, more: Account) -> Account:
    """Return both accounts as one."""
    figures = account.copy()
    for name, figure in more.items():
        before = figures.get(name, 0)
        figures[name] = max(before, figure) if name in _HIGHEST else before + figure
    return figures


def account_of_run(job: Job) -> Account | None:
    """Return the account of the job's last run, as of no job, or None if that has not come as far
    as the job's program or is not over."""
    times = _times_ms(job)
    if times is None:
        return None
    wall_ms, run_ms = times
    demand, usage = job.spec.demand, job.usage
    seen = usage if usage is not None and usage.memory_peak_bytes else None
    used: dict[str, int | None] = {}
    if seen is not None:
        used |= {"cores": round(seen.cpu_s * 1_000_000), "memory": seen.memory_peak_bytes * wall_ms}
        used |= {axis: seen.moved(axis)[0] * 1000 for axis in DISK_AXES}
    declared = {
        name: amount * (run_ms if AXES[name].is_rate else wall_ms)
        for name, amount in demand.sums.items()
        if amount or name not in DISK_AXES
    }
    percent = None if usage is None else usage.gpu_mean_percent
    if gpus := dict(demand.gres).get(_GPU):
        declared[_GPU] = gpus * wall_ms
        used[_GPU] = None if percent is None else percent * wall_ms // 100
    figures = {
        "runs": 1,
        "run_ms": run_ms,
        "frozen_ms": wall_ms - run_ms,
        "read_bytes": 0 if seen is None else seen.read_bytes,
        "written_bytes": 0 if seen is None else seen.written_bytes,
        "demand_max": demand.memory_bytes,
        "peak_max": 0 if seen is None else seen.memory_peak_bytes,
        "throttled_us": None if seen is None else seen.throttled_us,
        "throttled_unknown_jobs": int(seen is None or seen.throttled_us is None),
        "gpu_memory_peak_max": None if usage is None else usage.gpu_memory_peak_bytes,
        "gpu_memory_single_peak_max": None if usage is None else usage.gpu_memory_single_peak_bytes,
        "beyond_us": None if seen is None else seen.beyond_us,
        **{f"gres_ms.{name}": count * wall_ms for name, count in demand.gres},
    }
    for axis, amount in declared.items():
        figures[f"{axis}.used"] = used.get(axis)
        figures[f"{axis}.{'unknown' if used.get(axis) is None else 'declared'}"] = amount
    return {name: figure for name, figure in figures.items() if figure is not None}


def declared_core_ms(job: Job | DeclaredJob) -> int | None:
    """Return what all runs of the job declared of cores (in thousandths), times milliseconds; None
    if it never ran."""
    times, earlier = _times_ms(job), job.earlier_runs
    if times is None and earlier is None:
        return None
    last = 0 if times is None else job.spec.demand.cores_milli * times[1]
    return last + sum((earlier or {}).get(f"cores.{part}", 0) for part in ("declared", "unknown"))


def _times_ms(job: Job | DeclaredJob) -> tuple[int, int] | None:
    """Return the time from start to end of the last run, and that without the time frozen."""
    if job.started_at is None or job.ended_at is None:
        return None
    wall_ms = max(0, round((job.ended_at - job.started_at) * 1000))
    return wall_ms, max(0, wall_ms - round(job.frozen_s(job.ended_at) * 1000))
