"""Estimates of run times, and of when jobs release what they hold.

A median job uses a twentieth of its time limit, so the estimate is the mean run time of the user's
last two jobs (Tsafrir, Etsion, Feitelson, TPDS 2007), doubled for safety, and doubled again
whenever a job outlives it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import NamedTuple

from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import Job, JobSpec, JobState
from drfd.core.model.machine import Vector


class Certainty(StrEnum):
    """On what an expected start rests, the best first."""

    #: On time limits, or on nothing that may take longer: the jobs before it end by then.
    LIMITS = "limits"
    #: On the run times of a few earlier jobs of the same users.
    ESTIMATED = "estimated"
    #: On something of which nothing is known.
    UNKNOWN = "unknown"


def least_certain(found: Iterable[Certainty]) -> Certainty:
    """Return the worst; `LIMITS` of nothing."""
    return max(found, key=list(Certainty).index, default=Certainty.LIMITS)


class ExpectedEnd(NamedTuple):
    """The end of a job as it is told to people."""

    #: Unix time; infinity if it is unknown.
    end_s: float
    certainty: Certainty


class ExpectedStart(NamedTuple):
    """The start of a waiting job as it is told to people."""

    #: Unix time; None if no start is in sight, or if it is unknown.
    start_s: float | None
    certainty: Certainty


#: The estimated run time for a user without ended jobs, and the shortest estimate, in seconds.
UNKNOWN_S, LEAST_S = 3600.0, 60.0


@dataclass
class RunTimes:
    """The run times of each user's last two jobs, in seconds."""

    _last: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: Results of `length_s` by user and by time limit: a pass asks for each running job.
    _lengths: dict[str, dict[int | None, float]] = field(default_factory=dict)

    def add(self, user: str, run_s: float) -> None:
        run_s = max(0.0, run_s)
        self._last[user] = self._last.get(user, (run_s, run_s))[1], run_s
        self._lengths.pop(user, None)

    def length_s(self, spec: JobSpec) -> float:
        """Return the estimated run time of a job that has not started. It is the same for all
        jobs of a user with one time limit."""
        known, limit_s = self._lengths.setdefault(spec.user, {}), spec.time_limit_s
        if limit_s not in known:
            last = self._last.get(spec.user)
            # The sum is twice the mean.
            guess_s = UNKNOWN_S if last is None else max(LEAST_S, sum(last))
            known[limit_s] = guess_s if limit_s is None else min(guess_s, float(limit_s))
        return known[limit_s]

    def expected_end(self, job: Job, now_s: float) -> ExpectedEnd:
        """Return the end of a job, for people. Unlike `end_s` it does not move while nothing
        happens: a job that has outlived its estimate, or whose user has none, is expected at its
        time limit. The least estimate counts only for a job that has outlived a shorter one."""
        started_s = job.started_at if job.started_at is not None else now_s
        started_s += job.frozen_s(now_s)
        limit_s = job.spec.time_limit_s
        if job.spec.user in self._last:
            likely_s = sum(self._last[job.spec.user])
            for guess_s in (likely_s, max(LEAST_S, likely_s)):
                if started_s + guess_s > now_s and (limit_s is None or guess_s < limit_s):
                    return ExpectedEnd(started_s + guess_s, Certainty.ESTIMATED)
        if limit_s is None:
            return ExpectedEnd(inf, Certainty.UNKNOWN)
        return ExpectedEnd(max(now_s, started_s + limit_s), Certainty.LIMITS)

    def end_s(self, job: Job, now_s: float) -> float:
        """Return the estimated end (Unix time) of a job that holds resources; never in the past."""
        started_s = job.started_at if job.started_at is not None else now_s
        # Time in which the job was frozen does not count.
        started_s += job.suspended_s if job.suspended_at is None else job.frozen_s(now_s)
        length_s = self.length_s(job.spec)
        if started_s + length_s > now_s:
            return started_s + length_s
        while started_s + length_s <= now_s:
            length_s *= 2
        limit_s = inf if job.spec.time_limit_s is None else job.spec.time_limit_s
        # A job at its limit is being stopped, and ends at any moment.
        return max(now_s, started_s + min(length_s, limit_s))


#: The estimated end of a job (Unix time), its id, and the resources that it gives back. The id is 0
#: where it is not the end of one job.
LineEnd = tuple[float, int, Vector]


@dataclass
class Ends:
    """The estimated ends of the jobs that hold resources, kept by leaf until something changes."""

    #: Leaf → since when and until when its ends do not move by themselves (Unix times), and these
    #: by job.
    _lines: dict[str, tuple[float, float, dict[int, LineEnd]]] = field(default_factory=dict)

    def forget(self, leaf: str, job_id: int | None = None) -> None:
        """Compute the end of a job again that has changed; with None those of all jobs of the leaf,
        because the estimates for its user have."""
        if job_id is None:
            self._lines.pop(leaf, None)
        elif leaf in self._lines:
            self._lines[leaf][2].pop(job_id, None)

    def all(self, ledger: Ledger, run_times: RunTimes, now_s: float) -> list[LineEnd]:
        found = list[LineEnd]()
        for leaf, allocations in ledger.allocations.items():
            since_s, until_s, ends = self._lines.get(leaf, (inf, inf, {}))
            if not since_s <= now_s < until_s:
                since_s, until_s, ends = now_s, inf, {}
            if len(ends) != len(allocations):
                for job_id in [each for each in allocations if each not in ends]:
                    job = ledger.jobs[job_id]
                    # Nobody knows when a job that a user keeps suspended will be resumed.
                    if job.held_by is None or job.state is not JobState.SUSPENDED:
                        end_s = run_times.end_s(job, now_s)
                        ends[job_id] = end_s, job_id, allocations[job_id]
                        moves = job.started_at is None or job.suspended_at is not None
                        until_s = min(until_s, now_s if moves else end_s)
                self._lines[leaf] = since_s, until_s, ends
            found += ends.values()
        return found
