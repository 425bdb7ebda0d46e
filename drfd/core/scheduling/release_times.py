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

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import NamedTuple

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


#: The line is sorted again if more than one in this many of its times have changed.
_FEW = 32


class _Alike:
    """The jobs of one user with one time limit that hold resources: their run times are estimated
    as one."""

    __slots__ = ("count", "length_s", "spec", "started")

    def __init__(self, spec: JobSpec, length_s: float) -> None:
        #: The specification of one of them, and the estimate.
        self.spec, self.length_s = spec, length_s
        #: The number of jobs, those included that do not run.
        self.count = 0
        #: The start (as in `_Holder`) and the resources of those that run, by id.
        self.started: dict[int, tuple[float, Vector]] = {}

    def end_s(self, started_s: float, now_s: float) -> float:
        """Return the estimated end of one that runs."""
        end_s = started_s + self.length_s
        if end_s > now_s:
            return end_s
        return estimated_end_s(started_s, self.length_s, self.spec.time_limit_s, now_s)

    def ends(self, now_s: float) -> list[LineEnd]:
        """Return the estimated ends of those that run."""
        # Users may run hundreds of jobs alike, most of which have not outlived the estimate.
        length_s, end_s = self.length_s, self.end_s
        return [
            (
                first_s if (first_s := started_s + length_s) > now_s else end_s(started_s, now_s),
                job_id,
                held,
            )
            for job_id, (started_s, held) in self.started.items()
        ]


class _Holder(NamedTuple):
    """A job that holds resources which it will give back."""

    job: Job
    held: Vector
    #: The start (Unix time), later by the time that the job was frozen; None if it is frozen now or
    #: has not started, so that its end moves with the clock.
    started_s: float | None
    alike: _Alike


class Ends:
    """The estimated ends of the jobs that hold resources, in order."""

    def __init__(self, ledger: Ledger, run_times: RunTimes) -> None:
        """The ledger may change later, if `note` is called for each change."""
        self.ledger, self.run_times = ledger, run_times
        #: Suspended jobs that wait to be resumed: id → (leaf, the resources that they wait for).
        self.suspended: dict[int, tuple[str, Vector]] = {}
        self._holders: dict[int, _Holder] = {}
        #: The jobs with one estimate, by user and time limit. Estimates of `_noted_users` are
        #: outdated.
        self._alike: dict[str, dict[int | None, _Alike]] = {}
        #: The jobs whose end moves with the clock.
        self._moving: set[int] = set()
        self._noted = {job.id for job in ledger.allocated_jobs()}
        self._noted_users: set[str] = set()
        #: The ends in order as of `_read_at_s`; the times of `_stale` jobs are outdated.
        self._line: list[LineEnd] = []
        #: The job's end in it, by id.
        self._places: dict[int, LineEnd] = {}
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
            self._forget(job_id)
            job = self.ledger.jobs.get(job_id)
            if job is not None and job.is_allocated:
                self._enter(job)
        self._noted.clear()

    def at(self, now_s: float) -> Sequence[LineEnd]:
        """Return the ends of the jobs that have been read, in order of time; none of them is in the
        past. The list changes with the next call."""
        self._sort(now_s)
        return self._line

    def _enter(self, job: Job) -> None:
        wanted = self.ledger.wanted(job)
        if wanted is not None:
            self.suspended[job.id] = job.spec.leaf, wanted
        elif job.state is JobState.SUSPENDED:
            # Nobody knows when a job that a user keeps suspended will be resumed.
            return
        alike = self._alike_of(job.spec)
        started_s = None
        if job.started_at is not None and job.suspended_at is None:
            started_s = job.started_at + job.suspended_s
        if started_s is None:
            self._moving.add(job.id)
        held = self.ledger.allocation(job)
        if started_s is not None:
            alike.started[job.id] = started_s, held
        alike.count += 1
        self._holders[job.id] = _Holder(job, held, started_s, alike)
        self._stale.add(job.id)

    def _alike_of(self, spec: JobSpec) -> _Alike:
        by_limit = self._alike.setdefault(spec.user, {})
        alike = by_limit.get(spec.time_limit_s)
        if alike is None:
            alike = _Alike(spec, self.run_times.length_s(spec))
            by_limit[spec.time_limit_s] = alike
        return alike

    def _forget(self, job_id: int) -> None:
        self.suspended.pop(job_id, None)
        holder = self._holders.pop(job_id, None)
        if holder is not None:
            spec, alike = holder.job.spec, holder.alike
            alike.started.pop(job_id, None)
            alike.count -= 1
            if not alike.count:
                by_limit = self._alike[spec.user]
                del by_limit[spec.time_limit_s]
                if not by_limit:
                    del self._alike[spec.user]
            self._moving.discard(job_id)
            self._stale.add(job_id)

    def _estimate_again(self) -> list[_Alike]:
        """Estimate the run times of the noted users' jobs; return those that have changed."""
        changed = []
        for user in self._noted_users:
            for alike in self._alike.get(user, {}).values():
                length_s = self.run_times.length_s(alike.spec)
                if length_s != alike.length_s:
                    alike.length_s = length_s
                    changed.append(alike)
        self._noted_users.clear()
        return changed

    def _sort(self, now_s: float) -> None:
        changed = self._estimate_again()
        if now_s < self._read_at_s:
            # The clock has been set back.
            self._stale.update(self._holders)
        self._read_at_s = now_s
        for end_s, job_id, _ in self._line:
            if end_s > now_s:
                break
            self._stale.add(job_id)
        stale, line, places = self._stale, self._line, self._places
        stale |= self._moving
        fresh: list[LineEnd] = []
        for alike in changed:
            fresh += alike.ends(now_s)
            stale.difference_update(alike.started)
        fresh += self._estimated(stale, now_s)
        for alike in changed:
            stale.update(alike.started)
        if not stale:
            return
        if len(stale) * _FEW < len(line):
            for job_id in stale:
                if job_id in places:
                    del line[bisect_left(line, places[job_id])]
            for each in fresh:
                insort(line, each)
        else:
            line = [each for each in line if each[1] not in stale]
            line += fresh
            # The list is mostly in order already, which `sort` exploits.
            line.sort()
            self._line = line
        for job_id in stale.difference(self._holders):
            places.pop(job_id, None)
        places.update([(each[1], each) for each in fresh])
        stale.clear()

    def _estimated(self, job_ids: Iterable[int], now_s: float) -> list[LineEnd]:
        """Return the ends of those of the jobs that hold resources."""
        found = []
        for job_id in job_ids:
            holder = self._holders.get(job_id)
            if holder is None:
                continue
            job, held, started_s, alike = holder
            if started_s is None:
                end_s = self.run_times.end_s(job, now_s)
            else:
                end_s = alike.end_s(started_s, now_s)
            found.append((end_s, job_id, held))
        return found


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
