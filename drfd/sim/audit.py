"""What jobs of the past say about the fairness of a policy, by simulating them again.

Three properties of DRF are looked at: envy; whether each user is served at least as well as on a
machine of its own, as large as its entitlement; and whether a user who asks for more than it needs,
or divides its jobs, has them sooner. That is evidence and no proof: run times are taken as they
were, whatever else would have run at the time. Asking for less than is needed is not tried, because
limits are enforced: such a job would take longer, or fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil

from drfd.common.units import AXES
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.share_tree import ShareTree
from drfd.core.model.resources import Axes, Resources, kind_of
from drfd.sim.driver import Run, simulate
from drfd.sim.machine import rules_of
from drfd.sim.metrics import over_time
from drfd.sim.workload import SimJob

#: Users whose false demands are tried: those whose jobs waited most.
MOST_LIARS = 5
#: How much more than needed is asked for, in halves.
_HALVES_MORE = 3
#: Of all amounts, and in two jobs of half the amounts.
ALL, SPLIT = "all", "split"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Mean waits of a user's jobs, of those that fit on a machine of its own."""

    leaf: str
    jobs: int
    #: Jobs that are larger than that machine, which are left out.
    too_large: int
    together_s: float
    alone_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """Mean times from the submission to the end of a user's jobs, with true and false demands."""

    leaf: str
    #: The resource of which half as much again is asked for, `ALL` or `SPLIT`.
    what: str
    true_s: float
    false_s: float

    @property
    def gain(self) -> float:
        """The part of the time that is won; negative for a loss."""
        return 1 - self.false_s / self.true_s if self.true_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    jobs: int
    #: Jobs that are too large for the machine, which are left out.
    refused: int
    #: The part of those who waited, over sampled moments, who would have preferred what another
    #: one held, scaled to their own entitlement.
    envy: float
    alone: tuple[Alone, ...]
    lies: tuple[Lie, ...]


#: Called before each simulation but the first, that of the jobs as they were: with its number, and
#: how many there are.
Progress = Callable[[int, int], None]


def audit(jobs: Sequence[SimJob], rules: Rules, progress: Progress | None = None) -> AuditResult:
    """Simulate the jobs, which are in the order of submission, as they were and otherwise."""
    run = simulate(jobs, rules)
    by_leaf: dict[str, list[SimJob]] = {}
    for ran in run.ran:
        by_leaf.setdefault(run.leaves[ran.job.id], []).append(ran.job)
    for own in by_leaf.values():
        own.sort(key=lambda job: job.id)
    leaves = sorted(by_leaf)
    liars = _liars(run)
    tried = [(leaf, what) for leaf in liars for what in _whats(by_leaf[leaf], rules.axes)]
    numbers = count(1)

    def tell() -> None:
        if progress is not None:
            progress(next(numbers), len(leaves) + len(tried))

    alone = []
    for leaf, share in zip(leaves, _shares(leaves, rules), strict=True):
        tell()
        alone.append(_alone(leaf, by_leaf[leaf], share, rules, run))
    lies = []
    for leaf, what in tried:
        tell()
        lies.append(_lie(leaf, what, jobs, run))
    return AuditResult(
        jobs=len(run.ran),
        refused=len(run.refused),
        envy=over_time(run).envy,
        alone=tuple(alone),
        lies=tuple(filter(None, lies)),
    )


def _liars(run: Run) -> list[str]:
    waited: dict[str, float] = {}
    for ran in run.ran:
        leaf = run.leaves[ran.job.id]
        waited[leaf] = waited.get(leaf, 0.0) + ran.wait_s
    most = sorted(waited, key=lambda leaf: (-waited[leaf], leaf))[:MOST_LIARS]
    return [leaf for leaf in most if waited[leaf]]


def _whats(jobs: Sequence[SimJob], axes: Axes) -> list[str]:
    """Return what can be falsely asked for: resources that one of the jobs asks for, but no
    instances."""
    vectors = {axes.vector(job.demand) for job in jobs}
    columns = zip(axes.names, zip(*vectors, strict=True), strict=True)
    asked = [name for name, amounts in columns if any(amounts) and kind_of(name) in AXES]
    return [*asked, ALL, SPLIT]


# -- alone -----------------------------------------------------------------------------------------


def _shares(leaves: Sequence[str], rules: Rules) -> Iterator[Resources]:
    """Yield what each leaf is entitled to while all of them have jobs."""
    tree = ShareTree(rules.shares)
    for leaf in leaves:
        tree.enter(leaf)
    tree.redivide()
    for leaf in leaves:
        parts = tree.entitled(leaf)
        tops = zip(rules.axes.vector(rules.capacity), parts, strict=True)
        yield rules.axes.resources(tuple(int(top * part) for top, part in tops))


def _alone(leaf: str, own: Sequence[SimJob], share: Resources, rules: Rules, run: Run) -> Alone:
    machine = rules_of(share)
    by_oneself = simulate(own, replace(rules, axes=machine.axes, capacity=share))
    waits = {ran.job.id: ran.wait_s for ran in by_oneself.ran}
    together = [ran.wait_s for ran in run.ran if ran.job.id in waits]
    return Alone(
        leaf=leaf,
        jobs=len(waits),
        too_large=len(own) - len(waits),
        together_s=_mean(together),
        alone_s=_mean([*waits.values()]),
    )


# -- lies ------------------------------------------------------------------------------------------


def _lie(leaf: str, what: str, jobs: Sequence[SimJob], run: Run) -> Lie | None:
    """Return what came of a lie, or None if not all of the user's jobs ran."""
    told: list[SimJob] = []
    #: Number of the job → that of the true one.
    true_ids: dict[int, int] = {}
    for job in jobs:
        is_own = run.leaves.get(job.id) == leaf
        for each in _told(job, what, run.rules) if is_own else (job,):
            number = len(told) + 1
            told.append(replace(each, id=number))
            if is_own:
                true_ids[number] = job.id
    false_run = simulate(told, run.rules)
    ends: dict[int, float] = {}
    for ran in false_run.ran:
        if ran.job.id in true_ids:
            true_id = true_ids.pop(ran.job.id)
            ends[true_id] = max(ends.get(true_id, 0.0), ran.end_s)
    if true_ids:
        return None
    own = [ran for ran in run.ran if run.leaves[ran.job.id] == leaf]
    return Lie(
        leaf=leaf,
        what=what,
        true_s=_mean([ran.end_s - ran.job.submit_s for ran in own]),
        false_s=_mean([ends[ran.job.id] - ran.job.submit_s for ran in own]),
    )


def _told(job: SimJob, what: str, rules: Rules) -> tuple[SimJob, ...]:
    """Return what is submitted in place of a job. Nobody asks for more than the machine has."""
    asked, axes = job.demand, rules.axes
    if what == SPLIT:
        halves = [_halved(amount, name) for amount, name in _named(asked, axes)]
        if any(half is None for half in halves):
            return (job,)
        half_job = replace(job, demand=axes.resources(tuple(half or 0 for half in halves)))
        return half_job, half_job
    tops = axes.vector(rules.capacity)
    more = [
        min(max(amount, top), ceil(amount * _HALVES_MORE / 2))
        if what in (name, ALL) and kind_of(name) in AXES
        else amount
        for (amount, name), top in zip(_named(asked, axes), tops, strict=True)
    ]
    return (replace(job, demand=axes.resources(tuple(more))),)


def _named(amounts: Resources, axes: Axes) -> Iterator[tuple[int, str]]:
    return zip(axes.vector(amounts), axes.names, strict=True)


def _halved(amount: int, name: str) -> int | None:
    """Return half of an amount, or None for an odd number of instances, and for a core or less."""
    kind = kind_of(name)
    is_whole = amount <= 1000 if kind == "cores" else kind not in AXES and amount % 2
    return None if is_whole else ceil(amount / 2)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
