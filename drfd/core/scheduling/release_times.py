"""Estimates of how long jobs run and when they give back what they hold: a pass's view of time.

`make_pass_context` gives a pass all of it as a `PassContext`.

Time limits are far too long (a median job uses a twentieth of its own), so the mean run time of a
user's last two jobs is the better guess (Tsafrir, Etsion, Feitelson, TPDS 2007, "Backfilling using
system-generated predictions"), doubled for safety, and doubled again whenever a job outlives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf, isfinite
from operator import itemgetter

from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.share_tree import path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import Entry
from drfd.core.ledger.windows import first_start_s
from drfd.core.ledger.windows import length_s as window_length_s
from drfd.core.model.job import Job, JobSpec, JobState
from drfd.core.scheduling.backfill import LineEnd, PassContext, Reservation
from drfd.core.scheduling.certainty import Certainty, ExpectedEnd, least_certain
from drfd.core.scheduling.kept_free import ExternalLoad

#: The estimated run time for a user without ended jobs, and the shortest estimate, in seconds.
UNKNOWN_S, LEAST_S = 3600.0, 60.0

_time = itemgetter(0)


@dataclass
class RunTimes:
    """The run times of each user's last two jobs, in seconds."""

    _last: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, user: str, run_s: float) -> None:
        run_s = max(0.0, run_s)
        self._last[user] = self._last.get(user, (run_s, run_s))[1], run_s

    def guess_s(self, user: str) -> float:
        """Return the estimated run time of the user's jobs without a time limit."""
        last = self._last.get(user)
        # The sum is twice the mean.
        return UNKNOWN_S if last is None else max(LEAST_S, sum(last))

    def length_s(self, spec: JobSpec) -> float:
        """Return the estimated run time of a job that has not started. It is the same for all
        jobs of a user with one time limit."""
        guess_s = self.guess_s(spec.user)
        return guess_s if spec.time_limit_s is None else min(guess_s, float(spec.time_limit_s))

    def expected_end(self, job: Job, now_s: float) -> ExpectedEnd:
        """Return the end of a job that holds resources, for people. Other than `end_s` it does not
        move while nothing happens: a job that has outlived its estimate, or whose user has none, is
        expected at its time limit. The least estimate, which only spares reservations a surprise,
        counts when the job has outlived a shorter one: a line of jobs of seconds would seem to take
        minutes."""
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
        started_s += job.frozen_s(now_s)
        end_s = started_s + (length_s := self.length_s(job.spec))
        if end_s > now_s:
            return end_s
        while started_s + length_s <= now_s:
            length_s *= 2
        limit_s = inf if job.spec.time_limit_s is None else job.spec.time_limit_s
        # A job at its limit is being stopped, and ends at any moment.
        return max(now_s, started_s + min(length_s, limit_s))


#: How often the next hour at which a job's limits let it start, and the next time without a window,
#: are looked for in turn.
_MOST_TURNS = 20
#: A job whose wait begins more than this many seconds in the future came before the clock was set
#: back. It counts as waiting longest: by its own time it might not be late for years.
_AHEAD_S = 3600.0


def make_pass_context(
    ledger: Ledger,
    run_times: RunTimes,
    *,
    patience: ReservationSettings,
    now_s: float,
    before: tuple[Reservation, ...],
    external: ExternalLoad | None = None,
) -> PassContext:
    """Return the context of a pass at `now_s` (Unix time). `before` are the reservations of the
    last pass."""

    def since_s(job_id: int) -> float:
        job = ledger.job(job_id)
        since_s = job.submitted_at if job.eligible_at is None else job.eligible_at
        if job.suspended_at is not None:
            since_s = job.suspended_at
        return since_s if since_s <= now_s + _AHEAD_S else 0.0

    def length_s(job_id: int) -> float:
        job = ledger.job(job_id)
        if job.suspended_at is not None:
            # The remaining time must be exactly what `ends` say, or the job would delay itself.
            return run_times.end_s(job, now_s) - now_s
        return run_times.length_s(job.spec)

    def entry(job_id: int) -> Entry | None:
        job = ledger.find(job_id)
        wanted = None if job is None else ledger.wanted(job)
        if job is None or wanted is None or ledger.queues.is_shut_out(job, wanted):
            return None
        return -job.spec.priority, job_id

    @cache
    def ends() -> Sequence[LineEnd]:
        line = list[LineEnd]()
        if external is not None and isfinite(external.until_s):
            line.append((external.until_s, 0, ledger.axes.at_home(external.kept)))
        jobs, end_s = ledger.jobs, run_times.end_s
        for allocations in ledger.allocations.values():
            for job_id, held in allocations.items():
                job = jobs[job_id]
                # Nobody knows when a job that a user keeps suspended will be resumed.
                if job.held_by is None or job.state is not JobState.SUSPENDED:
                    line.append((end_s(job, now_s), job_id, held))
        return sorted(line, key=_time)

    def certainty(start_s: float) -> Certainty:
        if external is not None and external.until_s <= start_s:
            return Certainty.UNKNOWN
        return least_certain(
            expected.certainty if expected.end_s <= start_s else Certainty.UNKNOWN
            for job in ledger.allocated_jobs()
            if run_times.end_s(job, now_s) <= start_s
            for expected in (run_times.expected_end(job, now_s),)
        )

    def when_allowed_s(job_id: int, start_s: float) -> float:
        job = ledger.job(job_id)
        demand = dict(zip(ledger.axes.names, ledger.wanted(job) or (), strict=False))
        at_s = start_s
        for _ in range(_MOST_TURNS):
            after_s = first_start_s(ledger.windows, window_length_s(job), at_s)
            if after_s is not None:
                after_s = ledger.limit_hours.first_fit_s(path_up(job.spec.leaf), demand, after_s)
            if after_s is None:
                # A job that is too long for all gaps between windows, or larger than its limits
                # at all hours, is held back and reserves nothing.
                return start_s
            if after_s == at_s:
                break
            at_s = after_s
        return at_s

    suspended = {}
    if ledger.job_counts.states[JobState.SUSPENDED]:
        for job in ledger.allocated_jobs():
            if (wanted := ledger.wanted(job)) is not None:
                suspended[job.id] = job.spec.leaf, wanted
    return PassContext(
        now_s=now_s,
        patience=patience,
        ends=ends,
        since_s=since_s,
        length_s=length_s,
        entry=entry,
        before=before,
        suspended=suspended,
        external=external,
        certainty=certainty,
        when_allowed_s=when_allowed_s,
    )
