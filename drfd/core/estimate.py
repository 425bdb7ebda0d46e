"""How long jobs will run: their limits, and better guesses from their user's own past.

Limits are far too long (a median job uses a twentieth of its own), so what a user's last two jobs
took is the better guess (Tsafrir, Etsion, Feitelson, TPDS 2007, "Backfilling using system-generated
predictions"), doubled for safety, and doubled again whenever a job outlives it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from drfd.core.job import Job, JobSpec

#: What is guessed of a user who has run nothing yet, and the least that is guessed of anybody.
UNKNOWN_S, LEAST_S = 3600.0, 60.0


@dataclass
class RunTimes:
    """The run times of each user's last two jobs, in seconds."""

    _last: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, user: str, run_s: float) -> None:
        self._last.setdefault(user, deque(maxlen=2)).append(max(0.0, run_s))

    def length_s(self, spec: JobSpec) -> float:
        """For a job that has not started; the same for all jobs of a user with one limit."""
        last = self._last.get(spec.user)
        guess_s = max(LEAST_S, 2 * sum(last) / len(last)) if last else UNKNOWN_S
        return guess_s if spec.time_limit_s is None else min(guess_s, float(spec.time_limit_s))

    def end_s(self, job: Job, now_s: float) -> float:
        """For one that holds resources: the Unix time at which it will have ended; never past."""
        started_s = job.started_at if job.started_at is not None else now_s
        # The time that it was frozen does not count.
        started_s += job.frozen_s(now_s)
        return estimated_end_s(started_s, self.length_s(job.spec), job.spec.time_limit_s, now_s)


def estimated_end_s(started_s: float, length_s: float, limit_s: int | None, now_s: float) -> float:
    """Of a job that was to run for `length_s`, which is within its limit, and has not ended."""
    while started_s + length_s <= now_s:
        length_s *= 2
    if limit_s is not None:
        length_s = min(length_s, float(limit_s))
    # At its limit it is being stopped: any moment now.
    return max(now_s, started_s + length_s)
