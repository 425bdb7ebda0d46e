"""Maintenance windows: times in which no job runs that has a time limit.

A job may start only if it would end, by its time limit, before the next window begins; so the
distance of that window bounds the lengths of the jobs that may start (`longest_s`). A job without a
limit counts as one of `NO_LIMIT_S`: it waits for the end of a window that begins earlier than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from drfd.core.model.job import Job

#: The length of a job without a time limit, in seconds.
NO_LIMIT_S = 21 * 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    name: str
    #: Begin and end in Unix time.
    start_s: float
    end_s: float
    reason: str = ""
    #: Whether another one of this name comes each week, beyond those that are known.
    is_weekly: bool = False


def length_s(job: Job) -> int:
    """Return for how many seconds a waiting job runs at most, if it starts or goes on: at least 1.

    A suspended job without a limit counts as short: as it has run already, it goes on when no
    window is open.
    """
    limit_s = job.spec.time_limit_s
    if job.suspended_at is None or job.started_at is None:
        return NO_LIMIT_S if limit_s is None else limit_s
    if limit_s is None:
        return 1
    ran_s = job.suspended_at - job.started_at - job.suspended_s
    return max(1, ceil(limit_s - ran_s))


def longest_s(windows: Sequence[Window], now_s: float) -> float:
    """Return the length, in seconds, of the longest job that may start now: infinity if no window
    is known, 0 if one is open. `windows` are in order of their begin."""
    coming = next((each for each in windows if each.end_s > now_s), None)
    return inf if coming is None else max(0.0, coming.start_s - now_s)


def blocking(windows: Sequence[Window], length_s: float, now_s: float) -> Window | None:
    """Return the first window that a job of this length would run into if it started now, or
    None."""
    return next(
        (each for each in windows if each.end_s > now_s and now_s + length_s > each.start_s), None
    )


def first_start_s(windows: Sequence[Window], length_s: float, from_s: float) -> float | None:
    """Return the first time, from `from_s` on, at which a job of this length may start; None if
    it is longer than every gap between weekly windows."""
    at_s = from_s
    while (found := blocking(windows, length_s, at_s)) is not None:
        at_s = found.end_s
    is_beyond = at_s > from_s and at_s >= max(each.end_s for each in windows)
    # After the last known window of a week's pattern, the next one comes.
    return None if is_beyond and any(each.is_weekly for each in windows) else at_s


def next_end_s(windows: Sequence[Window], now_s: float) -> float | None:
    """Return when the next of the windows ends that are not over, or None."""
    return min((each.end_s for each in windows if each.end_s > now_s), default=None)
