"""Trying again after a bad end: whether, when, and how it is told."""

from __future__ import annotations

from math import ceil

from drfd.core.job import Job, JobState, Outcome

#: The pause before the first retry; each further one is twice as long, up to the most. What fails
#: at once must not keep the machine busy, and what it lacks may come back meanwhile.
FIRST_PAUSE_S, MOST_PAUSE_S = 5, 300

#: What another try may mend: with the same limits, a job that ran out of time or memory does again.
USUAL = (Outcome.FAILED, Outcome.LAUNCH_FAILED, Outcome.LOST)


def is_to_retry(job: Job) -> bool:
    """Of a job whose attempt has ended: does it begin anew? What was cancelled never does."""
    retry = job.spec.retry
    return (
        job.state is JobState.CLEANING
        and retry is not None
        and job.outcome is not Outcome.CANCELLED
        and job.outcome in retry.on
        and job.retries < retry.times
    )


def not_before_s(job: Job, at_s: float) -> int:
    """When the next attempt may start, in Unix time."""
    # 2^10 pauses are beyond the most; larger powers would only cost.
    return ceil(at_s) + min(FIRST_PAUSE_S << min(job.retries, 10), MOST_PAUSE_S)


def attempts_text(job: Job) -> str:
    """ "attempt 2 of 4; attempt 1 ended FAILED (exit code 3)", of the present attempt or of the one
    to come; empty for a job that has nothing to do with retries."""
    retry = job.spec.retry
    if retry is None or not job.attempt:
        return ""
    present = job.attempt + (job.state in (JobState.PENDING, JobState.HELD))
    # What was preempted in between counts as no retry.
    most = present + max(0, retry.times - job.retries)
    before = f"; {job.last_end}" if job.last_end else ""
    return f"attempt {present} of {most}{before}"
