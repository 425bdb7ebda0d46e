"""Launches postponed because of a shortage.

After a shortage of the machine all launches pause. Any other shortage delays only its job. The
pause doubles if a launch fails before any has succeeded.
"""

from __future__ import annotations

from math import ceil

from drfd.core.model.job import Job, Postponed, Whose

#: The pause after the first shortage, and the longest pause, in seconds.
FIRST_PAUSE_S, MOST_PAUSE_S = 1, 60
#: Number of consecutive failures after which others are tried without the job that failed: it may
#: be the cause.
_TRIES_TOGETHER = 3
#: A shortage that occurs more than this many seconds after the end of a pause counts as a new one.
_FORGOTTEN_S = 600.0


def pause_end_s(pause: Postponed | None, now_s: float) -> float | None:
    """Return the Unix time at which the pause ends, or None if there is none, or it is over. A
    remaining time above the longest pause counts as over, because the clock was set back."""
    is_waited_for = pause is not None and 0 < pause.until_s - now_s <= MOST_PAUSE_S
    return pause.until_s if pause is not None and is_waited_for else None


def next_try(
    pause: Postponed | None, job: Job, whose: Whose, *, text: str, resource: str, at_s: float
) -> Postponed:
    """Return the postponement that follows from a failed launch of this job. `pause` is that of all
    launches."""
    before = pause if whose is Whose.MACHINE else job.postponed
    if before is not None and (before.whose is not whose or at_s - before.until_s > _FORGOTTEN_S):
        before = None
    if before is not None and whose is Whose.MACHINE and pause_end_s(before, at_s):
        # This launch was under way when the other one failed.
        tries, until_s = before.tries, before.until_s
    else:
        tries = 1 if before is None else before.tries + 1
        until_s = at_s + pause_s(tries)
    return Postponed(
        whose=whose, text=text, resource=resource, at_s=at_s, until_s=until_s, tries=tries
    )


def pause_s(tries: int) -> int:
    """Return the pause, in seconds, after the failure with this number in a row, from 1 on."""
    # 2^6 seconds exceed the longest pause; larger powers would only cost time.
    return min(FIRST_PAUSE_S << min(tries - 1, 6), MOST_PAUSE_S)


def job_until_s(postponed: Postponed) -> int | None:
    """Return the Unix time until which the job itself must wait, or None if it need not."""
    if postponed.whose is Whose.JOB:
        return ceil(postponed.until_s)
    if postponed.tries <= _TRIES_TOGETHER:
        return None
    # After the common pause, others are tried first.
    return ceil(postponed.until_s + pause_s(postponed.tries))
