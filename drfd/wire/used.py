"""What clients see of what an ended job used. What is not known is null, never zero."""

from __future__ import annotations

from drfd.core.job import Job
from drfd.wire.views import View, job_view

_MEASURED = (
    "cpu_seconds",
    "late_cores",
    "memory_peak",
    "memory_mean",
    "memory_working",
    "largest_process",
    "read_bytes",
    "written_bytes",
    "read_peak",
    "write_peak",
    "quota_periods",
    "throttled_periods",
    "throttled_seconds",
    "limit_hits",
    "oom_kills",
    "io_stalled_seconds",
    "processes_peak",
)
#: The names of all that `used_view` shows.
USED = ("wall_seconds", "suspended_seconds", *_MEASURED)


def ended_view(job: Job, *, private: bool) -> View:
    """An ended job as everywhere, and what is on record of its last attempt."""
    return job_view(job, reason=None, usage=None, private=private) | {"used": used_view(job)}


def used_view(job: Job) -> View:
    """Sizes in bytes, rates in bytes per second, times in seconds."""
    usage = job.usage
    ran = job.started_at is not None and job.ended_at is not None
    wall_s = round(max(0.0, (job.ended_at or 0.0) - (job.started_at or 0.0)), 3) if ran else None
    frozen_s = round(job.frozen_s(job.ended_at or 0.0), 3) if ran else None
    if usage is None or not usage.memory_peak_bytes:
        # A job has always had some memory: zero is a job that nobody has seen.
        return {"wall_seconds": wall_s, "suspended_seconds": frozen_s} | dict.fromkeys(_MEASURED)
    values = (
        round(usage.cpu_s, 3),
        None if usage.late_cores_milli is None else usage.late_cores_milli / 1000,
        usage.memory_peak_bytes,
        usage.memory_mean_bytes,
        usage.memory_working_bytes,
        usage.largest_process_bytes,
        usage.read_bytes,
        usage.written_bytes,
        usage.read_peak_bps,
        usage.write_peak_bps,
        usage.quota_periods,
        usage.throttled_periods,
        _seconds(usage.throttled_us),
        usage.limit_hits,
        usage.oom_kills,
        _seconds(usage.io_stalled_us),
        usage.processes_peak,
    )
    measured = dict(zip(_MEASURED, values, strict=True))
    return {"wall_seconds": wall_s, "suspended_seconds": frozen_s} | measured


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
