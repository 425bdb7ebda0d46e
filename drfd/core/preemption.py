"""Preemption: stopping, or freezing, preemptible jobs for somebody whose promise is broken.

A node of the tree starves while a job waits below it that would keep the node within its
entitlement, and the node's satisfaction is below `below`, for `after_s` without a break. For such
a job, victims are sought where most is held, the most recently started first. A victim may be taken
only if all nodes that pay for it, below the lowest node that it shares with the starving job, keep
their promise without it, and if its side stays at least as satisfied as the starving one will be.
Either the victims make room for the job, or there are none; if some of them suffice, those who have
run longest are spared. A victim's side stays at its promise, and no pool that holds both comes to
starve by the exchange, so nobody is stopped for the victim in its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import merge
from itertools import groupby

from drfd.core import events as ev
from drfd.core.fairshare import FairShare, Standing
from drfd.core.job import Job, JobState
from drfd.core.ledger import Ledger
from drfd.core.resources import Vector, fits, minus, plus, total
from drfd.core.stimuli import Now
from drfd.core.tree import path_up

#: How long jobs may take to give back what they hold, and grace time besides.
_SLOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempting:
    """When and how; seconds."""

    #: Whether victims are frozen, or stopped and queued again.
    suspends: bool = False
    #: How long a node must starve; half as long if it is guaranteed something.
    after_s: float = 300.0
    #: A node starves below this satisfaction.
    below: Fraction = Fraction(9, 10)
    #: A job is a victim no more often than this.
    rest_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Starving:
    """A node whose promise is broken, and the job below it that waits for its place."""

    path: str
    job_id: int


@dataclass
class Starvation:
    """Since when each node starves, on the monotonic clock; to be shown every pass."""

    since_mono_s: dict[str, float] = field(default_factory=dict)

    def look(
        self, ledger: Ledger, standing: Standing, shares: FairShare, how: Preempting, mono_s: float
    ) -> list[Starving]:
        """Those for whom somebody may be stopped now, the least satisfied first."""
        starving = _starving(ledger, standing, shares, how)
        self.since_mono_s = {path: self.since_mono_s.get(path, mono_s) for path in starving}
        due = []
        for path, job_id in starving.items():
            after_s = how.after_s
            if shares.rule(path).guarantee is not None:
                after_s /= 2
            if mono_s - self.since_mono_s[path] >= after_s:
                due.append((standing.satisfaction(path), path, job_id))
        return [Starving(path, job_id) for _, path, job_id in sorted(due)]


def _starving(
    ledger: Ledger, standing: Standing, shares: FairShare, how: Preempting
) -> dict[str, int]:
    """Starving nodes, each with its first job that is promised a place, of the leaf with least."""
    found: dict[str, int] = {}
    for leaf in sorted(ledger.queues, key=lambda leaf: (standing.satisfaction(leaf), leaf)):
        short = [path for path in path_up(leaf) if standing.satisfaction(path) < how.below]
        groups = ledger.queues[leaf].groups.items() if short else ()
        for (_, job_id), demand in sorted((group.first, demand) for demand, group in groups):
            if standing.is_within_limits(leaf, demand):
                for path in short:
                    if standing.keeps_promise_of(path, demand):
                        found.setdefault(path, job_id)
    return found


#: What jobs are about to give back: (leaf, amount).
Gifts = Sequence[tuple[str, Vector]]


@dataclass
class Departures:
    """Since when each job has been seen giving back what it holds, on the monotonic clock: who sets
    the machine's clock makes nobody late. What is known of it begins anew with the daemon."""

    since_mono_s: dict[tuple[int, int, JobState, int], float] = field(default_factory=dict)

    def look(self, ledger: Ledger, mono_s: float, grace_s: float) -> Gifts:
        """What jobs that are being stopped or frozen will give back. What does not come within a
        minute after `grace_s`, the time between SIGTERM and SIGKILL, is not counted on: some
        processes never freeze, or die."""
        leaving = [(job, gift) for job in ledger.holders() if (gift := _gift_of(ledger, job))]
        before = self.since_mono_s
        self.since_mono_s = {
            key: before.get(key, mono_s) for key in (_departure(job) for job, _ in leaving)
        }
        oldest_mono_s = mono_s - grace_s - _SLOW_S
        return [
            (job.spec.leaf, gift)
            for job, gift in leaving
            if self.since_mono_s[_departure(job)] > oldest_mono_s
        ]


def _departure(job: Job) -> tuple[int, int, JobState, int]:
    """What may take its time once: an attempt's processes to end, its cgroup to vanish, each of its
    freezings."""
    return job.id, job.attempt, job.state, job.suspensions


def _gift_of(ledger: Ledger, job: Job) -> Vector | None:
    """What it is about to give back; None: it goes on."""
    if job.state in (JobState.STOPPING, JobState.CLEANING):
        return ledger.held(job)
    return ledger.axes.released(ledger.held(job)) if job.freezing else None


def preempt(
    ledger: Ledger,
    standing: Standing,
    room: Vector,
    starving: Starving,
    how: Preempting,
    now: Now,
    external: Vector | None = None,
    *,
    leaving: Gifts = (),
) -> list[ev.PreemptRequested | ev.SuspendRequested]:
    """What is asked of the victims, so that the starving job fits; nothing if nobody may be one,
    or need be. `room`: the machine's capacity. Nobody is stopped for the sake of what is kept for
    `external` load, nor in vain because of it. `leaving`: what comes back anyway."""
    demand = ledger.wanted(ledger.job(starving.job_id))
    free = plus(minus(room, ledger.booked), total((gift for _, gift in leaving), ledger.nothing))
    if demand is None or fits(demand, free):
        return []
    candidates = (job for job in ledger.holders() if _is_candidate(job, how, now.at_s))
    left = standing.as_held()
    for leaf, gift in leaving:
        left.hold(leaf, minus(ledger.nothing, gift))
    search = _Search(ledger, left, starving, demand, free, how)
    victims = search.victims(candidates)
    if external is not None and not fits(demand, minus(search.free, external)):
        return []
    return [_request(ledger, victim, starving, how, now) for victim in victims]


def _request(
    ledger: Ledger, victim: Job, starving: Starving, how: Preempting, now: Now
) -> ev.PreemptRequested | ev.SuspendRequested:
    job = ledger.job(starving.job_id)
    whom = f"job {job.label} ({job.spec.user})"
    why = f"for {whom}: {starving.path} has far less than it is entitled to"
    if how.suspends:
        return ev.SuspendRequested(
            job_id=victim.id, at_s=now.at_s, by=None, text=f"suspended {why}"
        )
    return ev.PreemptRequested(
        job_id=victim.id,
        at_s=now.at_s,
        mono_s=now.mono_s,
        for_job=starving.job_id,
        text=f"stopped {why}; it is queued again",
    )


def _is_candidate(job: Job, how: Preempting, now_s: float) -> bool:
    is_rested = job.preempted_at is None or now_s - job.preempted_at >= how.rest_s
    return job.spec.preemptible and job.state is JobState.RUNNING and not job.freezing and is_rested


def _newest_first(job: Job) -> tuple[float, int]:
    return -(job.started_at or 0.0), -job.id


class _Search:
    """The search for victims, with a standing of its own that goes along with what they give. A
    side must keep its promise by what it holds and will not give back anyway; what has ended early
    counts for nobody here."""

    def __init__(
        self,
        ledger: Ledger,
        standing: Standing,
        starving: Starving,
        demand: Vector,
        free: Vector,
        how: Preempting,
    ) -> None:
        self._ledger = ledger
        self._before = standing
        self._standing = standing.as_held()
        self._starving = starving
        self._leaf = ledger.job(starving.job_id).spec.leaf
        self._demand = demand
        #: What will be free when the victims have given back what they hold.
        self.free = free
        self._how = how

    def victims(self, candidates: Iterable[Job]) -> list[Job]:
        """All that are needed, or nobody."""
        left: dict[str, list[Job]] = {}
        for job in sorted(candidates, key=_newest_first):
            left.setdefault(job.spec.leaf, []).append(job)
        chosen: list[Job] = []
        while not fits(self._demand, self.free):
            victim = self._next(left)
            if victim is None:
                return []
            chosen.append(victim)
            leaf = victim.spec.leaf
            left[leaf] = [job for job in left[leaf] if job is not victim]
            self._move(victim, self._less(victim))
        needed: set[int] = set()
        for job in sorted(chosen, key=lambda job: (job.started_at or 0.0, job.id)):
            if fits(self._demand, minus(self.free, self._gift(job))):
                self._move(job, self._gift(job))
            else:
                needed.add(job.id)
        if self._starves_a_common_pool():
            return []
        return [job for job in chosen if job.id in needed]

    def _move(self, job: Job, change: Vector) -> None:
        self._standing.hold(job.spec.leaf, change)
        self.free = minus(self.free, change)

    def _starves_a_common_pool(self) -> bool:
        """Nodes above the starving one may lose more by the victims than they gain."""
        self._standing.hold(self._leaf, self._demand)
        for path in path_up(self._leaf):
            after = self._standing.satisfaction(path)
            if after < self._how.below and after < self._before.satisfaction(path):
                return True
        return False

    def _gift(self, job: Job) -> Vector:
        """What it gives back when it is stopped, or frozen."""
        held = self._ledger.held(job)
        return self._ledger.axes.released(held) if self._how.suspends else held

    def _less(self, job: Job) -> Vector:
        return minus(self._ledger.nothing, self._gift(job))

    def _next(self, left: dict[str, list[Job]]) -> Job | None:
        """From the top down where most is held; there, who was started last."""
        ranks = {leaf: self._rank(leaf) for leaf in left}
        for _, leaves in groupby(sorted(left, key=ranks.__getitem__), key=ranks.__getitem__):
            # What one job of a leaf may not give, no other may that gives the same.
            refused: set[tuple[str, Vector]] = set()
            for job in merge(*(left[leaf] for leaf in leaves), key=_newest_first):
                gift = self._gift(job)
                if (job.spec.leaf, gift) in refused:
                    continue
                if self._is_missing(gift) and self._may_go(job):
                    return job
                refused.add((job.spec.leaf, gift))
        return None

    def _is_missing(self, gift: Vector) -> bool:
        triples = zip(self._demand, self.free, gift, strict=True)
        return any(asked > there and given for asked, there, given in triples)

    def _rank(self, leaf: str) -> list[Fraction]:
        return [-self._standing.satisfaction(path) for path in reversed(path_up(leaf))]

    def _may_go(self, job: Job) -> bool:
        """Would all on its side keep their promise, and no less than the starving side gets?"""
        theirs, ours = path_up(job.spec.leaf), path_up(self._leaf)
        while theirs and ours and theirs[-1] == ours[-1]:
            theirs.pop()
            ours.pop()
        # Within the starving node nothing is promised to one rather than to the other.
        if self._starving.path not in ours:
            return False
        standing = self._standing
        standing.hold(job.spec.leaf, self._less(job))
        keeps = all(standing.satisfaction(path) >= 1 for path in theirs)
        standing.hold(self._leaf, self._demand)
        is_just = standing.satisfaction(ours[-1]) <= standing.satisfaction(theirs[-1])
        standing.hold(self._leaf, minus(self._ledger.nothing, self._demand))
        standing.hold(job.spec.leaf, self._gift(job))
        return keeps and is_just
