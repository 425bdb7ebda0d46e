"""Why an attempt ended, from what was recorded before and what the runner saw."""

from __future__ import annotations

from signal import Signals

from drfd.core.job import Job, Outcome
from drfd.core.limits import suggest_memory
from drfd.core.stimuli import RunnerEnded
from drfd.units import show_size


def judge_end(job: Job, end: RunnerEnded) -> tuple[Outcome | None, str]:
    """The cause and its sentence; None: it goes back to the queue.

    A SIGKILL proves nothing by itself: the cause comes from our own intent, recorded before the
    first signal, and from the kernel's counters.
    """
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
    if end.signal is not None:
        return Outcome.FAILED, f"killed by signal {end.signal} ({signal_name(end.signal)})"
    if end.exit_code is None:
        return Outcome.LOST, (
            "its exit status cannot be known: the machine was restarted or its runner was killed"
        )
    if end.exit_code == 0:
        return Outcome.COMPLETED, "exit code 0"
    return Outcome.FAILED, f"exit code {end.exit_code}"


def _ended_before_stop(job: Job, end: RunnerEnded) -> bool:
    return job.stop is not None and end.mono_s is not None and end.mono_s < job.stop.mono_s


def signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return "real-time"
