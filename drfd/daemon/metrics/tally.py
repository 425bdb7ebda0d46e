"""Counters and histograms of one daemon: they start at 0 with it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from drfd.core.model.job import Job, JobState, Outcome

#: Upper ends of the buckets, in seconds: of times that jobs wait, and of steps of the daemon.
_WAIT_BOUNDS_S = (0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 604800.0)
_STEP_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Tally:
    """Ends of jobs by outcome, and the latencies of jobs and of the daemon's own steps."""

    def __init__(self, registry: CollectorRegistry) -> None:
        ends = Counter(
            "drfd_jobs_ended", "Ended jobs by outcome, since the daemon's start.", ["outcome"],
            registry=registry,
        )  # fmt: skip
        self._ends = {outcome: ends.labels(outcome.value) for outcome in Outcome}
        self._wait = Histogram(
            "drfd_job_start_delay_seconds", "From a job's submission to its first start.",
            buckets=_WAIT_BOUNDS_S, registry=registry,
        )  # fmt: skip
        self.turn = Histogram(
            "drfd_turn_duration_seconds", "Duration of a turn of the scheduling loop.",
            buckets=_STEP_BOUNDS_S, registry=registry,
        )  # fmt: skip
        self.commit = Histogram(
            "drfd_commit_duration_seconds", "Duration of a commit of the journal.",
            buckets=_STEP_BOUNDS_S, registry=registry,
        )  # fmt: skip
        #: Ids of live jobs whose first start has been counted, here or by an earlier daemon.
        self._started: set[int] = set()

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
            # Not negative after the clock was set back.
            self._wait.observe(max(0.0, job.started_at - job.submitted_at))
        if job.state is JobState.ENDED:
            self._started.discard(job.id)
            if job.outcome is not None:
                self._ends[job.outcome].inc()
