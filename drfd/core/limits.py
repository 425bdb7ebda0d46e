"""Limits that drfd itself watches: wall time, grace time, and what the kernel cannot enforce.

These functions judge and never act; what they find becomes an event, and the event an effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drfd.core.job import Job, JobState, Outcome
from drfd.core.resources import Resources
from drfd.units import exact_size, show_duration, show_size

#: Measured I/O must be over its declared rate by this factor …
IO_FACTOR = 2
#: … on average over this long, before the job is stopped. Bursts are not breaches.
IO_WINDOW_S = 30.0
#: So many samples in a row over the memory limit.
MEMORY_SAMPLES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A job's measured use at one moment; None: cannot be read."""

    mono_s: float
    memory_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None
    cpu_s: float | None


def deadline_mono_s(job: Job, grace_s: int) -> float | None:
    """When this job next needs a `Tick`, on the monotonic clock; None: never."""
    if job.state is JobState.RUNNING and job.spec.time_limit_s is not None:
        warn = job.spec.warn
        # What is being frozen could not act on a warning.
        early_s = 0 if warn is None or job.warned or job.freezing else warn.before_s
        return _end_mono_s(job, job.spec.time_limit_s) - early_s
    if job.state is JobState.STOPPING and job.stop is not None and not job.stop.escalated:
        return job.stop.mono_s + grace_s
    return None


def is_timed_out(job: Job, mono_s: float) -> bool:
    """Of a running job: has it had all its wall time?"""
    limit_s = job.spec.time_limit_s
    return limit_s is not None and _end_mono_s(job, limit_s) <= mono_s


def _end_mono_s(job: Job, limit_s: int) -> float:
    assert job.started_mono_s is not None
    return job.started_mono_s + job.suspended_s + limit_s


def timeout_text(job: Job) -> str:
    limit_s = job.spec.time_limit_s or 0
    return (
        f"ran for its whole time limit of {show_duration(limit_s)}; "
        f"ask for more next time: -t {show_duration(limit_s * 2)}"
    )


def judge_samples(job: Job, samples: Sequence[Sample]) -> tuple[Outcome, str] | None:
    """Whether the samples of a job whose limits nobody enforces, oldest first, show a breach."""
    return _judge_memory(job, samples) or judge_io(job, samples)


def judge_io(job: Job, samples: Sequence[Sample]) -> tuple[Outcome, str] | None:
    """The same for a job of which the kernel enforces all but its disk rates."""
    window = [s for s in samples if s.mono_s >= samples[-1].mono_s - IO_WINDOW_S - 1e-6]
    if len(window) < 2 or window[-1].mono_s - window[0].mono_s < IO_WINDOW_S * 0.9:
        return None
    first, last = window[0], window[-1]
    span_s = last.mono_s - first.mono_s
    read_bps, write_bps = _declared(job.spec.demand)
    for what, declared, before, after in (
        ("read", read_bps, first.read_bytes, last.read_bytes),
        ("wrote", write_bps, first.written_bytes, last.written_bytes),
    ):
        if not declared or before is None or after is None:
            continue
        rate = (after - before) / span_s
        if rate > IO_FACTOR * declared:
            text = (
                f"{what} {show_size(rate)}/s over {show_duration(span_s)}, "
                f"declared {show_size(declared)}/s; ask for more next time with --io"
            )
            return Outcome.LIMIT_EXCEEDED, text
    return None


def _declared(demand: Resources) -> tuple[int, int]:
    """What a job may do on all disks together: what is measured is their sum. Without a rate for
    one of them there is no bound to the sum."""
    if not demand.disks:
        return demand.read_bps, demand.write_bps
    _, reads, writes = zip(*demand.disks, strict=True)
    return sum(reads) if all(reads) else 0, sum(writes) if all(writes) else 0


def _judge_memory(job: Job, samples: Sequence[Sample]) -> tuple[Outcome, str] | None:
    limit = job.spec.demand.memory_bytes
    recent = [sample.memory_bytes or 0 for sample in samples[-MEMORY_SAMPLES:]]
    if len(recent) < MEMORY_SAMPLES or min(recent) <= limit:
        return None
    text = (
        f"measured {show_size(max(recent))} of memory, declared {show_size(limit)}; "
        f"ask for more next time: -m {suggest_memory(max(recent))}"
    )
    return Outcome.LIMIT_EXCEEDED, text


def suggest_memory(peak_bytes: int) -> str:
    """What to ask for after `peak_bytes` were not enough: half as much again, in round figures."""
    return exact_size(more_memory(peak_bytes))


def more_memory(peak_bytes: int) -> int:
    return round_size(int(peak_bytes * 1.5), like=peak_bytes)


def round_size(size_bytes: int, *, step: int = 16 << 20, like: int | None = None) -> int:
    """Up to a multiple of `step`, or of a larger step where that is at most an eighth of the size
    (of `like`, if given)."""
    while step * 16 < (size_bytes if like is None else like):
        step *= 2
    return -(-size_bytes // step) * step
