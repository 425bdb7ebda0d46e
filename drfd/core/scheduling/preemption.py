"""Preemption: stopping or freezing preemptible jobs for a node below its entitlement.

A node starves while a job waits below it that would keep it within its entitlement, and its
satisfaction has been below `below` for `after_s`. Victims are sought where most is held, the most
recently started first, of preemptible jobs that are no longer exempt. Below the lowest node that
victim and starving job share, each node on the victim's side must keep its entitlement, and that
side stays at least as satisfied as the starving one becomes. If the victims do not make the job
fit, there are none; victims that are not needed are spared, longest-running first. So nobody is
stopped for a victim in its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby
from typing import NamedTuple

from drfd.core.fairness.rules import Preempting, Rules
from drfd.core.fairness.share_tree import FairShare, ShareTree, path_up, ways_apart
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobState, Now
from drfd.core.model.machine import Allocation, FreeResources, Vector, minus
from drfd.core.scheduling.kept_free import ExternalLoad, free_of

#: The seconds after the grace time in which stopped jobs are expected to release their resources.
_SLOW_S = 60.0
#: After so many preemptions, a job's exempt time grows no more.
_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Starving:
    """A starving node, and the job below it for which room is to be made."""

    path: str
    job_id: int


@dataclass
class Starvation:
    """The time since which each node starves, on the monotonic clock; updated every pass."""

    since_mono_s: dict[str, float] = field(default_factory=dict)

    def update(
        self,
        ledger: Ledger,
        share_tree: ShareTree,
        shares: FairShare,
        how: Preempting,
        mono_s: float,
    ) -> list[Starving]:
        """Return the nodes for which jobs may be preempted now, the least satisfied first."""
        starving = _starving(ledger, share_tree, how)
        self.since_mono_s = {path: self.since_mono_s.get(path, mono_s) for path in starving}
        due = []
        for path, job_id in starving.items():
            after_s = how.after_s
            if shares.rule(path).guarantee is not None:
                after_s /= 2
            if mono_s - self.since_mono_s[path] >= after_s:
                due.append((share_tree.satisfaction(path), path, job_id))
        return [Starving(path, job_id) for _, path, job_id in sorted(due)]


def _starving(ledger: Ledger, share_tree: ShareTree, how: Preempting) -> dict[str, int]:
    """Return each starving node with the first job, of the least satisfied leaf, that would keep
    the node within its entitlement."""
    found: dict[str, int] = {}
    for leaf in sorted(ledger.queues, key=lambda leaf: (share_tree.satisfaction(leaf), leaf)):
        short = [path for path in path_up(leaf) if share_tree.satisfaction(path) < how.below]
        lines = ledger.queues[leaf].items() if short else ()
        for (_, job_id), demand in sorted((line.first, demand) for demand, line in lines):
            if share_tree.is_within_limits(leaf, demand):
                for path in short:
                    if share_tree.keeps_promise_of(path, demand):
                        found.setdefault(path, job_id)
    return found


#: (leaf, resources) that jobs which are being stopped or frozen will release.
Releases = Sequence[tuple[str, Allocation]]


@dataclass
class Departures:
    """The time since which each job is releasing its resources, on the monotonic clock, so that
    setting the machine's clock makes no job late. A restarted daemon begins again."""

    since_mono_s: dict[tuple[int, int, JobState, int], float] = field(default_factory=dict)

    def update(self, ledger: Ledger, mono_s: float, grace_s: float) -> Releases:
        """Return the resources that jobs which are being stopped or frozen will release. Those not
        released a minute after `grace_s`, the time between SIGTERM and SIGKILL, do not count:
        some processes never freeze, or never end."""
        leaving = {}
        for job in ledger.allocated_jobs():
            is_ending = job.state in (JobState.STOPPING, JobState.CLEANING)
            if is_ending or job.freezing:
                # Each step has its own time: its processes end, its cgroup is removed, or it is
                # frozen (once more).
                step = job.id, job.attempt, job.state, job.suspensions
                held = ledger.allocation(job)
                leaving[step] = job.spec.leaf, held if is_ending else ledger.axes.released(held)
        self.since_mono_s = {step: self.since_mono_s.get(step, mono_s) for step in leaving}
        oldest_mono_s = mono_s - grace_s - _SLOW_S
        return [each for step, each in leaving.items() if self.since_mono_s[step] > oldest_mono_s]


class Supply(NamedTuple):
    """What jobs will release without preemption, and the load from outside drfd, or None."""

    leaving: Releases = ()
    external: ExternalLoad | None = None


def preempt(
    ledger: Ledger,
    rules: Rules,
    share_tree: ShareTree,
    supply: Supply,
    starving: Starving,
    now: Now,
) -> list[ev.PreemptRequested | ev.SuspendRequested]:
    """Return the requests to the victims that make the starving job fit. There are none if victims
    cannot make it fit, or if it will fit without. No job is stopped to make room for external load,
    nor in vain because of it."""
    demand, how = ledger.wanted(ledger.jobs[starving.job_id]), rules.preempting
    gone = sum([release for _, release in supply.leaving], Allocation(ledger.nothing))
    free = free_of(ledger, rules, None, gone)
    if demand is None or how is None:
        return []
    closed = ledger.closed_nodes
    candidates = (
        job
        for job in ledger.allocated_jobs()
        if _is_candidate(job, how, now.mono_s) and (job.node or ledger.axes.home) not in closed
    )
    left = share_tree.as_held()
    for leaf, release in supply.leaving:
        left.hold(leaf, (-release).sums)
    search = _Search(ledger, left, starving, demand, free, how)
    victims = search.victims(candidates)
    gone = sum(map(search.release, victims), gone)
    if not free_of(ledger, rules, supply.external, gone).fits(demand):
        return []
    return [_request(ledger, victim, starving, how, now) for victim in victims]


def _request(
    ledger: Ledger, victim: Job, starving: Starving, how: Preempting, now: Now
) -> ev.PreemptRequested | ev.SuspendRequested:
    job = ledger.jobs[starving.job_id]
    whom = f"job {job.label} ({job.spec.user})"
    why = f"for {whom}: {starving.path} has far less than it is entitled to"
    if how.suspends:
        return ev.SuspendRequested(victim.id, now.at_s, by=None, text=f"suspended {why}")
    return ev.PreemptRequested(
        victim.id,
        now.at_s,
        mono_s=now.mono_s,
        text=f"stopped {why}; it is queued again",
    )


def _is_candidate(job: Job, how: Preempting, mono_s: float) -> bool:
    if not job.spec.preemptible or job.state is not JobState.RUNNING or job.freezing:
        return False
    # Without the doubling, one job could be stopped again and again, and never end.
    exempt_s: int = how.exempt_s << min(job.preemptions, _MOST_DOUBLINGS)
    assert job.started_mono_s is not None
    return mono_s - job.started_mono_s - job.suspended_s >= exempt_s


def _newest_first(job: Job) -> tuple[float, int]:
    return -(job.started_at or 0.0), -job.id


class _Search:
    """The search for victims, on a copy of the share tree from which their resources are moved.
    A node must keep its promise by what it holds and will not give back anyway; recently ended
    short jobs do not count here."""

    def __init__(
        self,
        ledger: Ledger,
        share_tree: ShareTree,
        starving: Starving,
        demand: Vector,
        free: FreeResources,
        how: Preempting,
    ) -> None:
        self._ledger = ledger
        self._before = share_tree
        self._share_tree = share_tree.as_held()
        self._starving = starving
        self._leaf = ledger.jobs[starving.job_id].spec.leaf
        self._demand = demand
        #: The resources that will be free when the victims have released theirs.
        self.free = free
        self._how = how

    def victims(self, candidates: Iterable[Job]) -> list[Job]:
        """Return all the jobs that are needed, or none if they do not suffice."""
        left: dict[str, list[Job]] = {}
        for job in sorted(candidates, key=_newest_first):
            left.setdefault(job.spec.leaf, []).append(job)
        chosen: list[Job] = []
        while not self.free.fits(self._demand):
            victim = self._next(left)
            if victim is None:
                return []
            chosen.append(victim)
            leaf = victim.spec.leaf
            left[leaf] = [job for job in left[leaf] if job is not victim]
            self._move(victim, -self.release(victim))
        needed: set[int] = set()
        for job in sorted(chosen, key=lambda job: (job.started_at or 0.0, job.id)):
            if (self.free - self.release(job)).fits(self._demand):
                self._move(job, self.release(job))
            else:
                needed.add(job.id)
        if self._starves_a_common_pool():
            return []
        return [job for job in chosen if job.id in needed]

    def _move(self, job: Job, change: Allocation) -> None:
        self._share_tree.hold(job.spec.leaf, change.sums)
        self.free -= change

    def _starves_a_common_pool(self) -> bool:
        """Return whether a pool above the job and a victim would starve: it may lose more with the
        victims than it gains."""
        self._share_tree.hold(self._leaf, self._demand)
        for path in path_up(self._leaf):
            after = self._share_tree.satisfaction(path)
            if after < self._how.below and after < self._before.satisfaction(path):
                return True
        return False

    def release(self, job: Job) -> Allocation:
        """Return the resources that the job releases when it is stopped or frozen."""
        held = self._ledger.allocation(job)
        return self._ledger.axes.released(held) if self._how.suspends else held

    def _next(self, left: dict[str, list[Job]]) -> Job | None:
        """Return the next victim: from the top down where most is held, the job started last."""
        ranks = {
            leaf: [-self._share_tree.satisfaction(path) for path in reversed(path_up(leaf))]
            for leaf in left
        }
        for _, leaves in groupby(sorted(left, key=ranks.__getitem__), key=ranks.__getitem__):
            # If one job of a leaf may not be a victim, no other that releases the same may.
            refused: set[tuple[str, Allocation]] = set()
            for job in merge(*(left[leaf] for leaf in leaves), key=_newest_first):
                release = self.release(job)
                if (job.spec.leaf, release) in refused:
                    continue
                helps = any(release.sums[axis] for axis in self.free.short_axes(self._demand))
                if helps and self._may_go(job):
                    return job
                refused.add((job.spec.leaf, release))
        return None

    def _may_go(self, job: Job) -> bool:
        """Return whether all nodes on the job's side would keep their promise and stay at least
        as satisfied as the starving side becomes."""
        theirs, ours = ways_apart(job.spec.leaf, self._leaf)
        # Within the starving node, neither job has a better claim than the other.
        if self._starving.path not in ours:
            return False
        share_tree, release = self._share_tree, self.release(job)
        share_tree.hold(job.spec.leaf, (-release).sums)
        keeps = all(share_tree.satisfaction(path) >= 1 for path in theirs)
        share_tree.hold(self._leaf, self._demand)
        is_just = share_tree.satisfaction(ours[-1]) <= share_tree.satisfaction(theirs[-1])
        share_tree.hold(self._leaf, minus(self._ledger.nothing, self._demand))
        share_tree.hold(job.spec.leaf, release.sums)
        return keeps and is_just
