"""Estimates of how long jobs run and when they give back what they hold: a pass's view of time.

`make_pass_context` gives a pass all of it as a `PassContext`.

`Ends` keeps the estimated ends in order from pass to pass. The caller names the job of each event
(`note`) and each user whose estimate has changed (`note_user`); only those jobs are read again, and
those that have outlived their estimate. So a pass on a machine full of small jobs does not read all
of them.

Time limits are far too long (a median job uses a twentieth of its own), so the mean run time of a
user's last two jobs is the better guess (Tsafrir, Etsion, Feitelson, TPDS 2007, "Backfilling using
system-generated predictions"), doubled for safety, and doubled again whenever a job outlives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

from drfd.core.amounts.vectors import Vector
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.share_tree import path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import Entry
from drfd.core.ledger.windows import first_start_s
from drfd.core.ledger.windows import length_s as window_length_s
from drfd.core.model.job import Job, JobSpec, JobState
from drfd.core.scheduling.backfill import InOrder, LineEnd, PassContext, Reservation
from drfd.core.scheduling.certainty import Certainty, ExpectedEnd, least_certain
from drfd.core.scheduling.kept_free import ExternalLoad

#: The estimated run time for a user without ended jobs, and the shortest estimate, in seconds.
UNKNOWN_S, LEAST_S = 3600.0, 60.0


@dataclass
class RunTimes:
    """The run times of each user's last two jobs, in seconds."""

    _last: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, user: str, run_s: float) -> None:
        self._last.setdefault(user, deque(maxlen=2)).append(max(0.0, run_s))

    def guess_s(self, user: str) -> float:
        """Return the estimated run time of the user's jobs without a time limit."""
        likely_s = self._likely_s(user)
        return UNKNOWN_S if likely_s is None else max(LEAST_S, likely_s)

    def _likely_s(self, user: str) -> float | None:
        """Return the estimate without a least one, or None for a user without ended jobs."""
        last = self._last.get(user)
        return 2 * sum(last) / len(last) if last else None

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
        likely_s = self._likely_s(job.spec.user)
        if likely_s is not None:
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
        return estimated_end_s(started_s, self.length_s(job.spec), job.spec.time_limit_s, now_s)


def estimated_end_s(started_s: float, length_s: float, limit_s: int | None, now_s: float) -> float:
    """Return the estimated end of a running job whose first estimate was `length_s`, which is
    within its time limit."""
    while started_s + length_s <= now_s:
        length_s *= 2
    if limit_s is not None:
        length_s = min(length_s, float(limit_s))
    # A job at its limit is being stopped, and ends at any moment.
    return max(now_s, started_s + length_s)


class _Alike:
    """The running jobs of one user with one time limit: their run times are estimated as one."""

    __slots__ = ("length_s", "spec", "started")

    def __init__(self, spec: JobSpec, length_s: float) -> None:
        #: The specification of one of them, and the estimate.
        self.spec, self.length_s = spec, length_s
        #: The start (Unix time), later by the time that the job was frozen, and the resources, by
        #: id.
        self.started: dict[int, tuple[float, Vector]] = {}

    def ends(self, now_s: float) -> list[LineEnd]:
        """Return their estimated ends."""
        # Users may run thousands of jobs alike, most of which have not outlived the estimate.
        length_s, later = self.length_s, self._later
        return [
            (
                end_s if (end_s := started_s + length_s) > now_s else later(started_s, now_s),
                job_id,
                held,
            )
            for job_id, (started_s, held) in self.started.items()
        ]

    def end(self, job_id: int, now_s: float) -> LineEnd:
        """Return the estimated end of one of them."""
        started_s, held = self.started[job_id]
        return self._later(started_s, now_s), job_id, held

    def _later(self, started_s: float, now_s: float) -> float:
        return estimated_end_s(started_s, self.length_s, self.spec.time_limit_s, now_s)


class Ends:
    """The estimated ends of the jobs that hold resources, in order."""

    def __init__(self, ledger: Ledger, run_times: RunTimes) -> None:
        """The ledger may change later, if `note` is called for each change."""
        self.ledger, self.run_times = ledger, run_times
        #: Suspended jobs that wait to be resumed: id → (leaf, the resources that they wait for).
        self.suspended: dict[int, tuple[str, Vector]] = {}
        #: The running jobs with one estimate, by user and time limit, and by job.
        self._alike: dict[str, dict[int | None, _Alike]] = {}
        self._alike_of: dict[int, _Alike] = {}
        #: The jobs that are frozen or have not started, so that their ends move with the clock.
        self._moving: dict[int, tuple[Job, Vector]] = {}
        #: Jobs, and users whose estimate has changed, since the line was made.
        self._noted = {job.id for job in ledger.allocated_jobs()}
        self._noted_users: set[str] = set()
        #: The ends in order as of `_read_at_s`; those of `_stale` jobs are outdated.
        self._line: list[LineEnd] = []
        self._stale: set[int] = set()
        self._read_at_s = float("-inf")

    def note(self, job_id: int) -> None:
        """Read the job again before the next pass: an event was about it."""
        self._noted.add(job_id)

    def note_user(self, user: str) -> None:
        """Estimate the user's running jobs again: one of the user's jobs has ended."""
        self._noted_users.add(user)

    def read_noted(self) -> None:
        """Read the noted jobs."""
        for job_id in self._noted:
            self.suspended.pop(job_id, None)
            self._moving.pop(job_id, None)
            alike = self._alike_of.pop(job_id, None)
            if alike is not None:
                del alike.started[job_id]
                if not alike.started:
                    del self._alike[alike.spec.user][alike.spec.time_limit_s]
            job = self.ledger.jobs.get(job_id)
            if job is not None and job.is_allocated:
                self._enter(job)
        self._stale |= self._noted
        self._noted.clear()

    def _enter(self, job: Job) -> None:
        wanted = self.ledger.wanted(job)
        if wanted is not None:
            self.suspended[job.id] = job.spec.leaf, wanted
        elif job.state is JobState.SUSPENDED:
            # Nobody knows when a job that a user keeps suspended will be resumed.
            return
        held = self.ledger.allocation(job)
        if job.started_at is None or job.suspended_at is not None:
            self._moving[job.id] = job, held
            return
        by_limit = self._alike.setdefault(job.spec.user, {})
        alike = by_limit.get(job.spec.time_limit_s)
        if alike is None:
            alike = _Alike(job.spec, self.run_times.length_s(job.spec))
            by_limit[job.spec.time_limit_s] = alike
        alike.started[job.id] = job.started_at + job.suspended_s, held
        self._alike_of[job.id] = alike

    def at(self, now_s: float) -> Sequence[LineEnd]:
        """Return the ends of the jobs that have been read, in order of time; none of them is in the
        past. The list changes with the next call."""
        stale, fresh = self._stale | self._moving.keys(), list[LineEnd]()
        if now_s < self._read_at_s:
            # The clock has been set back.
            stale.update(self._alike_of)
        self._read_at_s = now_s
        for end_s, job_id, _ in self._line:
            if end_s > now_s:
                break
            stale.add(job_id)
        changed = set[int]()
        for user in self._noted_users:
            for alike in self._alike.get(user, {}).values():
                length_s = self.run_times.length_s(alike.spec)
                if length_s != alike.length_s:
                    alike.length_s = length_s
                    fresh += alike.ends(now_s)
                    changed.update(alike.started)
        self._noted_users.clear()
        self._stale.clear()
        for job_id in stale - changed:
            if job_id in self._alike_of:
                fresh.append(self._alike_of[job_id].end(job_id, now_s))
        for job_id, (job, held) in self._moving.items():
            fresh.append((self.run_times.end_s(job, now_s), job_id, held))
        stale |= changed
        if not stale:
            return self._line
        # The list is mostly in order already, which `sort` exploits.
        self._line = [each for each in self._line if each[1] not in stale] + fresh
        self._line.sort()
        return self._line


#: How often the next hour at which a job's limits let it start, and the next time without a window,
#: are looked for in turn.
_MOST_TURNS = 20
#: A job whose wait begins more than this many seconds in the future came before the clock was set
#: back. It counts as waiting longest: by its own time it might not be late for years.
_AHEAD_S = 3600.0


def make_pass_context(
    ends: Ends,
    *,
    patience: ReservationSettings,
    now_s: float,
    before: tuple[Reservation, ...],
    external: ExternalLoad | None = None,
) -> PassContext:
    """Return the context of a pass at `now_s` (Unix time). `ends` is kept from pass to pass;
    `before` are the reservations of the last pass."""
    ledger, run_times = ends.ledger, ends.run_times

    def since_s(job_id: int) -> float:
        job = ledger.job(job_id)
        since_s = job.submitted_at if job.eligible_at is None else job.eligible_at
        if job.suspended_at is not None:
            since_s = job.suspended_at
        return since_s if since_s <= now_s + _AHEAD_S else 0.0

    def length_s(job_id: int) -> float:
        job = ledger.job(job_id)
        if job.suspended_at is not None:
            # The remaining time must be exactly what `ends` has, or the job would delay itself.
            return run_times.end_s(job, now_s) - now_s
        return run_times.length_s(job.spec)

    def guess_s(job_id: int) -> float:
        return run_times.guess_s(ledger.job(job_id).spec.user)

    def entry(job_id: int) -> Entry | None:
        job = ledger.find(job_id)
        wanted = None if job is None else ledger.wanted(job)
        if job is None or wanted is None or ledger.queues.is_shut_out(job, wanted):
            return None
        return -job.spec.priority, job_id

    ends.read_noted()
    others: list[LineEnd] = []
    if external is not None and isfinite(external.until_s):
        others.append((external.until_s, 0, ledger.axes.at_home(external.kept)))

    def certainty(start_s: float) -> Certainty:
        if external is not None and external.until_s <= start_s:
            return Certainty.UNKNOWN
        return least_certain(
            expected.certainty if expected.end_s <= start_s else Certainty.UNKNOWN
            for job in ledger.allocated_jobs()
            if run_times.end_s(job, now_s) <= start_s
            for expected in (run_times.expected_end(job, now_s),)
        )

    def read() -> Sequence[LineEnd]:
        line = ends.at(now_s)
        return sorted([*others, *line]) if others else line

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

    return PassContext(
        now_s=now_s,
        patience=patience,
        # Most passes reserve nothing, and need not have the ends sorted.
        ends=InOrder(read),
        since_s=since_s,
        length_s=length_s,
        guess_s=guess_s,
        entry=entry,
        before=before,
        suspended=ends.suspended,
        external=external,
        certainty=certainty,
        when_allowed_s=when_allowed_s,
    )
