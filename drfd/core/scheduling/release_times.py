"""Estimates of run times, and of when jobs release what they hold.

A median job uses a twentieth of its time limit, so the estimate is the mean run time of the user's
last two jobs (Tsafrir, Etsion, Feitelson, TPDS 2007), doubled for safety, and doubled again
whenever a job outlives it. Jobs of less than a tenth of its dominant share do not count: a user
could lower the estimates for large jobs by short ones of next to nothing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from operator import attrgetter, itemgetter
from typing import NamedTuple

from drfd.core.fairness.rules import Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.job import Job, JobSpec, JobState
from drfd.core.model.machine import Allocation
from drfd.core.model.resources import Resources


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


class StartForecast(NamedTuple):
    """The start of a waiting job as it is told to people."""

    #: Unix time; None if no start is in sight, or if it is unknown.
    start_s: float | None
    certainty: Certainty


#: The estimated run time for a user without ended jobs, and the shortest estimate, in seconds.
UNKNOWN_S, LEAST_S = 3600.0, 60.0


#: The part of a job's dominant share below which other jobs say nothing about it: one in this many.
_PART = 10


@dataclass
class RunTimes:
    """The run times of each user's last jobs, in seconds."""

    #: User → rounded dominant share and run time of ended jobs, the latest first. A job is left
    #: out if two later ones have at least its share: it is among the last two for no other job.
    ended: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    #: Results of `length_s` by user, demand and time limit: a pass asks for each running job.
    _lengths: dict[str, dict[tuple[Resources, int | None], float]] = field(default_factory=dict)
    #: The rules by which shares are measured.
    _rules: Rules | None = None

    def measure_by(self, rules: Rules) -> None:
        """Measure the shares of jobs by these rules from now on. Before the first call, all ended
        jobs of a user count."""
        self._rules = rules
        self._lengths.clear()

    def add(self, user: str, run_s: float, share: float) -> None:
        """Count an ended job that held this dominant share."""
        first, second = _rounded(share), -1
        ended = [(first, max(0.0, run_s))]
        for each in self.ended.get(user, ()):
            if each[0] > second:
                ended.append(each)
                second, first = sorted((first, second, each[0]))[1:]
        self.ended[user] = ended
        self._lengths.pop(user, None)

    def _twice_mean_s(self, spec: JobSpec) -> float | None:
        """Return twice the mean run time of the user's last two jobs that count for this one, or
        None if there is none."""
        share = 0
        if self._rules is not None:
            demand = self._rules.axes.vector(spec.demand)
            share = _rounded(self._rules.shares.rounded_dominant_share(demand))
        ended = self.ended.get(spec.user, ())
        last = [run_s for each, run_s in ended if _PART * each >= share][:2]
        return last[0] + last[-1] if last else None

    def length_s(self, spec: JobSpec) -> float:
        """Return the estimated run time of a job that has not started. It is the same for all
        jobs of a user with one demand and one time limit."""
        known = self._lengths.setdefault(spec.user, {})
        limit_s = spec.time_limit_s
        key = spec.demand, limit_s
        length_s = known.get(key)
        if length_s is None:
            guess_s = self._twice_mean_s(spec)
            guess_s = UNKNOWN_S if guess_s is None else max(LEAST_S, guess_s)
            length_s = known[key] = guess_s if limit_s is None else min(guess_s, float(limit_s))
        return length_s

    def expected_end(self, job: Job, now_s: float) -> ExpectedEnd:
        """Return the end of a job, for people. Unlike `end_s` it does not move while nothing
        happens: a job that has outlived its estimate, or whose user has none, is expected at its
        time limit. The least estimate counts only for a job that has outlived a shorter one."""
        started_s = job.started_at if job.started_at is not None else now_s
        started_s += job.frozen_s(now_s)
        limit_s = job.spec.time_limit_s
        likely_s = self._twice_mean_s(job.spec)
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
        return _end_s(started_s, self.length_s(job.spec), job.spec.time_limit_s, now_s)


def _end_s(started_s: float, length_s: float, limit_s: int | None, now_s: float) -> float:
    """Return the estimated end of a job; the estimate doubles whenever the job outlives it."""
    if started_s + length_s > now_s:
        return started_s + length_s
    while started_s + length_s <= now_s:
        length_s *= 2
    # A job at its limit is being stopped, and ends at any moment.
    return max(now_s, started_s + min(length_s, inf if limit_s is None else limit_s))


def _rounded(share: float) -> int:
    """Return the share in 10^-12, cut to two digits: this bounds how many unlike ones there are."""
    whole = round(share * 1e12)
    unit: int = 10 ** max(0, len(str(whole)) - 2)
    return whole // unit * unit


#: The estimated end of a job (Unix time), its id, and the resources that it gives back. The id is 0
#: where it is not the end of one job.
LineEnd = tuple[float, int, Allocation]
_time, _id = itemgetter(0), attrgetter("id")


#: What running jobs have in common of which the estimates are equal: a user, a demand and a limit.
_Kind = tuple[str, Resources, int | None]
#: When a job started, moved on by the time for which it was frozen (Unix time), and what it holds.
_Part = tuple[float, Allocation]


class Ends:
    """The estimated ends of the jobs that hold resources, kept until something changes.

    They are kept by user, because each end of a job changes the estimates for all of its user.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        #: Jobs that have changed since they were read.
        self._unread: set[int] = set() if ledger is None else set(map(_id, ledger.allocated_jobs()))
        self._kinds: dict[int, _Kind] = {}
        #: User → kind → a job of it, and all of them by id.
        self._alike: dict[str, dict[_Kind, tuple[JobSpec, dict[int, _Part]]]] = {}
        #: User → when these ends were estimated (Unix time), and they in order of time. They do not
        #: move by themselves before the first of them.
        self._lines: dict[str, tuple[float, list[LineEnd]]] = {}
        #: Jobs whose ends move all the time: they have not started, or are frozen.
        self._moving: set[int] = set()

    def catch_up(self, ledger: Ledger) -> None:
        """Take account of the jobs that have changed since the last call, and clear their table."""
        for job_id in ledger.changes.jobs:
            self._moving.discard(job_id)
            kind = self._kinds.pop(job_id, None)
            if kind is not None:
                user = kind[0]
                kinds = self._alike[user]
                del kinds[kind][1][job_id]
                if not kinds[kind][1]:
                    del kinds[kind]
                if not kinds:
                    del self._alike[user]
                self._lines.pop(user, None)
            job = ledger.jobs.get(job_id)
            is_allocated = job is not None and job.is_allocated
            (self._unread.add if is_allocated else self._unread.discard)(job_id)
        ledger.changes.jobs.clear()

    def note_estimates(self, user: str) -> None:
        """Take account of a change of the estimates for a user."""
        self._lines.pop(user, None)

    def all(self, ledger: Ledger, run_times: RunTimes, now_s: float) -> list[LineEnd]:
        """Return the ends in order of time."""
        while self._unread:
            self._read(ledger.jobs[self._unread.pop()], ledger, run_times, now_s)
        found = list[LineEnd]()
        for job_id in self._moving:
            job = ledger.jobs[job_id]
            held = ledger.allocations[job.spec.leaf][job_id]
            found.append((run_times.end_s(job, now_s), job_id, held))
        for user, kinds in self._alike.items():
            since_s, ends = self._lines.get(user, (inf, []))
            if not ends or not since_s <= now_s < ends[0][0]:
                ends = []
                for spec, jobs in kinds.values():
                    length_s, limit_s = run_times.length_s(spec), spec.time_limit_s
                    ends += [
                        (_end_s(started_s, length_s, limit_s, now_s), job_id, held)
                        for job_id, (started_s, held) in jobs.items()
                    ]
                ends.sort(key=_time)
                self._lines[user] = now_s, ends
            found += ends
        # They are runs in order already, which are merged.
        found.sort(key=_time)
        return found

    def _read(self, job: Job, ledger: Ledger, run_times: RunTimes, now_s: float) -> None:
        if job.held_by is not None and job.state is JobState.SUSPENDED:
            # Nobody knows when a job that a user keeps suspended will be resumed.
            return
        if job.started_at is None or job.suspended_at is not None:
            self._moving.add(job.id)
            return
        spec = job.spec
        kind = self._kinds[job.id] = spec.user, spec.demand, spec.time_limit_s
        _, jobs = self._alike.setdefault(spec.user, {}).setdefault(kind, (spec, {}))
        held = ledger.allocations[spec.leaf][job.id]
        jobs[job.id] = job.started_at + job.suspended_s, held
        if spec.user in self._lines:
            _, ends = self._lines[spec.user]
            insort(ends, (run_times.end_s(job, now_s), job.id, held), key=_time)
            self._lines[spec.user] = now_s, ends
