"""Ends of attempts: the limits that drfd watches itself, the outcome, and the retry.

The kernel enforces most limits. The rest are wall time, grace time, and limits that this kernel or
an unprivileged daemon cannot enforce.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from drfd.common.signals import name_of, number_of
from drfd.common.units import exact_size, show_apart, show_duration, show_gres_word, show_size
from drfd.core.model.job import WAITING_STATES, Job, JobState, Outcome
from drfd.core.model.resources import kind_of
from drfd.devices.gpu import GPU

if TYPE_CHECKING:
    from drfd.core.decisions.stimuli import ExitedReport
    from drfd.core.fairness.rules import Rules

MACHINE_CRASH = "MACHINE_CRASH"
SLURM_NOT_STARTED = "SLURM_NOT_STARTED"
#: Causes of an unknown outcome: the stable code that the launcher reports, and a sentence.
LOSSES = {
    "MACHINE_SHUTDOWN": "the machine was shut down or restarted in order while it ran",
    MACHINE_CRASH: (
        "the machine went down while it ran, and not in order: a power cut, a reset or a crash"
    ),
    "JOBS_STOPPED": (
        "systemd stopped the unit that all jobs live in, drfd-jobs.service, and the machine ran on"
    ),
    "RUNNER_KILLED": (
        "its runner, the process of drfd that waits for its end, was killed, and not by drfd"
    ),
    "NODE_FAILED": "its node went down, or did not answer, while it ran",
    "SLURM_FORGOT": "Slurm does not know the job any more, and has told no end of it",
    "SLURM_ENDED": "Slurm has ended it for a reason of its own, and not at drfd's order",
    SLURM_NOT_STARTED: (
        "Slurm could not start its program on the node, mostly because the directory of its output "
        "file is not there, or because Slurm's Prolog (drfd-disks) is missing or fails; the log of "
        "slurmd on the node tells more"
    ),
}
#: Code for a cause that is not known.
UNKNOWN_LOSS = "UNKNOWN"


def judge_end(job: Job, end: ExitedReport) -> tuple[Outcome | None, str]:
    """Return the outcome and its sentence; the outcome is None if the job goes back to the queue. A
    SIGKILL proves nothing by itself: the cause is the stop that drfd recorded before the first
    signal, or what the kernel's counters show."""
    if job.stop is not None and not _ended_before_stop(job, end):
        return job.stop.outcome, job.stop.text
    if end.oom_killed and end.over_limit:
        limit = job.spec.demand.memory_bytes
        peak = max(end.usage.memory_peak_bytes if end.usage else 0, limit)
        return Outcome.OUT_OF_MEMORY, (
            f"needed more than its memory limit of {show_size(limit)} (peak {show_size(peak)}) "
            f"and was killed with all its processes; "
            f"ask for more next time: -m {suggest_memory(peak)}"
        )
    if end.oom_killed:
        return Outcome.OUT_OF_MEMORY, (
            f"the machine itself ran short of memory and this job was killed for it, "
            f"which was within its limit of {show_size(job.spec.demand.memory_bytes)}"
        )
    if end.output_bytes is not None:
        most = job.spec.output_max_bytes or 0
        return Outcome.LIMIT_EXCEEDED, (
            f"wrote {show_size(end.output_bytes)} to its output files, of which {show_size(most)} "
            "are allowed, and was killed with all its processes; "
            "--output-max allows more next time"
        )
    if end.signal is not None:
        return (
            Outcome.FAILED,
            f"killed by signal {end.signal} ({name_of(end.signal) or 'real-time'})",
        )
    if end.exit_code is None:
        why = LOSSES.get(end.loss or "", "the machine was restarted or its runner was killed")
        return Outcome.LOST, f"its exit status cannot be known: {why}"
    if end.exit_code == 0:
        return Outcome.COMPLETED, "exit code 0"
    return Outcome.FAILED, f"exit code {end.exit_code}"


def loss_of(outcome: Outcome | None, end: ExitedReport) -> str | None:
    """Return the code of the cause for LOST, or None for any other outcome."""
    if outcome is not Outcome.LOST:
        return None
    return end.loss if end.loss in LOSSES else UNKNOWN_LOSS


def _ended_before_stop(job: Job, end: ExitedReport) -> bool:
    return job.stop is not None and end.mono_s is not None and end.mono_s < job.stop.mono_s


def signal_for(job: Job, signal: int) -> int:
    """Return the signal as the job is sent it: one with a terminal has no batch shell to spare."""
    return signal if job.spec.attach is None else number_of(signal)


#: The pause before the first retry and the longest one, in seconds; each is twice as long as the
#: one before. A job that fails at once must not keep the machine busy, and its cause may go away.
FIRST_RETRY_PAUSE_S, MAX_RETRY_PAUSE_S = 5, 300


def not_before_s(job: Job, at_s: float) -> int:
    """Return the Unix time before which the next attempt may not start."""
    # 2^10 pauses exceed the longest one; larger powers would only cost time.
    return ceil(at_s) + min(FIRST_RETRY_PAUSE_S << min(job.retries, 10), MAX_RETRY_PAUSE_S)


def attempts_text(job: Job) -> str:
    """Return which attempt it is of a job with retries that has begun the first one, or "": for
    example "attempt 2 of 4; attempt 1 ended FAILED (exit code 3)"."""
    retry = job.spec.retry
    if retry is None or not job.attempt:
        return ""
    present = job.attempt + (job.state in WAITING_STATES)
    # Attempts that were preempted do not count as retries.
    most = present + max(0, retry.times - job.retries)
    before = f"; {job.last_end}" if job.last_end else ""
    return f"attempt {present} of {most}{before}"


#: Factor by which the measured I/O rate must exceed the declared one before a job is stopped.
IO_FACTOR = 2
#: Seconds over which the I/O rate is averaged, so that bursts are no breach.
IO_WINDOW_S = 30.0
#: Number of consecutive samples over the memory limit before a job is stopped.
MEMORY_SAMPLES = 2
#: Number of consecutive readings of a GPU over the declared memory before a job is stopped.
GPU_READINGS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A job's measured use at one moment; a field that cannot be read is None."""

    mono_s: float
    memory_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None
    cpu_s: float | None


def deadline_mono_s(job: Job, rules: Rules, heard_since_mono_s: float | None = 0.0) -> float | None:
    """Return the monotonic time at which this job next needs a `Tick`, or None if it needs none.
    `heard_since_mono_s` is the time since which the launcher takes orders, or None if it takes none
    now. A grace time begins when SIGTERM can be sent, so that no job is killed without one."""
    if job.state is JobState.RUNNING and job.spec.time_limit_s is not None:
        warn = job.spec.warn
        # A job that is being frozen could not act on a warning.
        early_s = 0 if warn is None or job.warned or job.freezing else warn.before_s
        return _end_mono_s(job, job.spec.time_limit_s) - early_s
    if job.state is JobState.STOPPING and job.stop is not None and not job.stop.escalated:
        if heard_since_mono_s is None:
            return None
        return max(job.stop.mono_s, heard_since_mono_s) + rules.grace_s
    if job.state is JobState.SUSPENDED and job.kept_since and rules.max_suspended_s is not None:
        return job.kept_since.mono_s + rules.max_suspended_s
    return None


def is_timed_out(job: Job, mono_s: float) -> bool:
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


def kept_text(limit_s: int) -> str:
    return (
        f"its user kept it suspended for {show_duration(limit_s)}, and no job may hold its memory "
        f"so for longer (limits.suspended); resume it sooner next time"
    )


def judge_samples(job: Job, samples: Sequence[Sample]) -> tuple[Outcome, str] | None:
    """Return the breach that the samples show, oldest first, of a job without enforced limits."""
    return _judge_memory(job, samples) or judge_io(job, samples)


def judge_io(job: Job, samples: Sequence[Sample]) -> tuple[Outcome, str] | None:
    """Return the breach of the disk rates that the samples show, oldest first, or None."""
    window = [s for s in samples if s.mono_s >= samples[-1].mono_s - IO_WINDOW_S - 1e-6]
    if len(window) < 2 or window[-1].mono_s - window[0].mono_s < IO_WINDOW_S * 0.9:
        return None
    first, last = window[0], window[-1]
    span_s = last.mono_s - first.mono_s
    for axis, what, before, after in (
        ("read", "read", first.read_bytes, last.read_bytes),
        ("write", "wrote", first.written_bytes, last.written_bytes),
    ):
        # Measured is the sum over all disks, which has no limit if one of them has none.
        rates = [rate for name, rate in job.spec.demand.amounts.items() if kind_of(name) == axis]
        declared = sum(rates) if all(rates) else 0
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


def _judge_memory(job: Job, samples: Sequence[Sample]) -> tuple[Outcome, str] | None:
    limit = job.spec.demand.memory_bytes
    recent = [sample.memory_bytes or 0 for sample in samples[-MEMORY_SAMPLES:]]
    if len(recent) < MEMORY_SAMPLES or min(recent) <= limit:
        return None
    peak = max(sample.memory_bytes or 0 for sample in samples)
    text = (
        f"needed more than its memory limit of {show_size(limit)} (measured {show_size(peak)}) "
        f"and was stopped; ask for more next time: -m {suggest_memory(peak)}"
    )
    return Outcome.OUT_OF_MEMORY, text


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """A job's own memory on one of its GPUs."""

    #: The GPU as the configuration names it.
    name: str
    #: Bytes in the latest readings, oldest first, without a gap.
    readings: tuple[int, ...]
    #: Bytes that the GPU has in all, or None if they are not known.
    total_bytes: int | None = None


def judge_gpu_memory(job: Job, gpus: Iterable[GpuMemory]) -> tuple[Outcome, str] | None:
    """Return the breach of the memory declared on each GPU that the readings show, or None."""
    limit = dict(job.spec.demand.gres_memory).get(GPU)
    if limit is None:
        return None
    for each in gpus:
        recent = each.readings[-GPU_READINGS:]
        if len(recent) < GPU_READINGS or min(recent) <= limit:
            continue
        peak = max(recent)
        wish = show_gres_word(
            GPU, dict(job.spec.demand.gres)[GPU], more_gpu_memory(peak, each.total_bytes)
        )
        measured, declared = show_apart(peak, limit)
        return Outcome.LIMIT_EXCEEDED, (
            f"used {measured} of the memory of GPU {each.name}, and {declared} were declared; it "
            f"was stopped after {GPU_READINGS} readings above that; ask for more next time: "
            f"--gres {wish} (what CUDA needs for itself on a GPU, 0.3G to 0.5G, counts too)"
        )
    return None


def more_gpu_memory(peak_bytes: int, total_bytes: int | None) -> int:
    """Return the memory of a GPU to ask for after `peak_bytes` were too little, of a GPU that has
    `total_bytes` in all."""
    return within_gpu(more_memory(peak_bytes), peak_bytes, total_bytes)


def within_gpu(size_bytes: int, peak_bytes: int, total_bytes: int | None) -> int:
    """Return no more than the GPU has in whole mebibytes, if that is known, unless the peak is."""
    if total_bytes is None:
        return size_bytes
    return min(size_bytes, max(total_bytes >> 20 << 20, peak_bytes))


def suggest_memory(peak_bytes: int) -> str:
    """Return the memory to ask for after `peak_bytes` were too little: 1.5 times that, rounded."""
    return exact_size(more_memory(peak_bytes))


def more_memory(peak_bytes: int) -> int:
    return round_size(int(peak_bytes * 1.5), like=peak_bytes)


def round_size(size_bytes: int, *, step: int = 16 << 20, like: int | None = None) -> int:
    """Round up to a multiple of `step`, or of a larger step up to an eighth of the size. `like`, if
    given, is the size from which the step is chosen."""
    while step * 16 < (size_bytes if like is None else like):
        step *= 2
    return -(-size_bytes // step) * step
