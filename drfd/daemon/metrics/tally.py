"""Counters and histograms of one daemon: they start at 0 with it.

Each call costs a dictionary access or a binary search, because a turn makes them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from drfd.core.model.job import Job, JobState, Outcome

#: Upper ends of the buckets, in seconds: of times that jobs wait, and of steps of the daemon.
WAIT_BOUNDS_S = (0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 604800.0)
STEP_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(frozen=True, slots=True)
class HistogramCopy:
    """A histogram at one moment: pairs of an upper end (the last is infinite) and the number of
    values up to it, and the sum of all values."""

    cumulative: tuple[tuple[float, int], ...]
    sum_s: float


class Histogram:
    """A histogram of durations."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration; a negative one, after the clock was set back, counts as 0."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    def copy(self) -> HistogramCopy:
        found, total = [], 0
        for bound_s, count in zip((*self._bounds_s, float("inf")), self._counts, strict=True):
            total += count
            found.append((bound_s, total))
        return HistogramCopy(tuple(found), self._sum_s)


@dataclass
class Tally:
    """Ends of jobs by outcome, and the latencies of jobs and of the daemon's own steps."""

    ends: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    wait: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS_S))
    turn: Histogram = field(default_factory=lambda: Histogram(STEP_BOUNDS_S))
    commit: Histogram = field(default_factory=lambda: Histogram(STEP_BOUNDS_S))
    #: Ids of live jobs whose first start has been counted, here or by an earlier daemon.
    _started: set[int] = field(default_factory=set)

    def resume(self, jobs: Iterable[Job]) -> None:
        """Take these live jobs from an earlier daemon: starts that it has seen are not counted."""
        for job in jobs:
            has_run = job.attempt > job.postponements and job.state is not JobState.STARTING
            if job.started_at is not None or has_run:
                self._started.add(job.id)

    def job_changed(self, job: Job) -> None:
        """Count the first start, and the end, of a job that a turn has changed.

        Tasks of an array that end together without a record of their own come as one job, and count
        as one end.
        """
        if job.started_at is not None and job.id not in self._started:
            self._started.add(job.id)
            self.wait.observe(job.started_at - job.submitted_at)
        if job.state is JobState.ENDED:
            self._started.discard(job.id)
            if job.outcome is not None:
                self.ends[job.outcome] += 1
