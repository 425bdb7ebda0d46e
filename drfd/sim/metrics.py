"""Metrics of a run, by name: documented JSON, from which all tables are made.

They depend on the run alone, so equal runs have equal metrics, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import ceil
from operator import itemgetter
from typing import Any

from drfd.core.fairness.share_tree import ShareTree
from drfd.core.model.machine import Vector
from drfd.sim.driver import FinishedJob, Run
from drfd.sim.workload import SimJob

#: The number of moments, at equal distances, at which envy is measured.
SAMPLES = 500
#: The lengths of a window in seconds: a day, or an hour in a run of at most `_FEW_DAYS` days.
_DAY_S, _HOUR_S, _FEW_DAYS = 86400, 3600, 14
#: The least part of a window that a user must have waited for the window to count.
_LEAST_OF_WINDOW = 0.25
#: Added before rounding down to whole jobs, against rounding errors.
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, order=True)
class LeafWindow:
    #: The mean part of the entitlement that was held, at most 1.
    kept: float
    leaf: str
    start_s: float
    length_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    #: Leaf that ever waited → the mean part of its entitlement that it held while it waited. What
    #: it held beyond the entitlement does not count.
    kept: dict[str, float]
    #: The window with the smallest part kept, or None if no leaf waited long enough.
    worst: LeafWindow | None
    #: The part of waiting users, over the sampled moments, who would have preferred the holdings of
    #: another user, scaled to their weight: these had room for more than one additional waiting
    #: job.
    envy: float


def over_time(run: Run) -> OverTime:
    first = [left.job.submit_s for left in run.unstarted]
    first += [ran.job.submit_s for ran in run.ran]
    last = [*first, *(ran.end_s for ran in run.ran)]
    start_s = min(first, default=0.0)
    span_s = max(last, default=0.0) - start_s
    window_s = _DAY_S if span_s > _FEW_DAYS * _DAY_S else _HOUR_S
    watch = _Watch(run)
    windows = _Windows(watch, start_s, window_s)
    step_s, sampled = max(span_s / SAMPLES, 1e-9), 0
    for at_s, changes in groupby(run.changes(), key=itemgetter(0)):
        while sampled < SAMPLES and start_s + (sampled + 0.5) * step_s < at_s:
            sampled += 1
            watch.look_for_envy()
        windows.advance(round((at_s - start_s) * 1000))
        for _, leaf, demand, job, sign in changes:
            watch.take(leaf, demand, job, sign)
    windows.close()
    return OverTime(
        kept={leaf: kept / waited for leaf, (waited, kept) in sorted(watch.sums.items())},
        worst=windows.worst,
        envy=watch.envy,
    )


class _Windows:
    """Divides the time of a run into windows, and finds the worst."""

    def __init__(self, watch: _Watch, start_s: float, length_s: int) -> None:
        self._watch, self._start_s, self._length_s = watch, start_s, length_s
        #: The sums at the begin of the window.
        self._before: dict[str, tuple[int, float]] = {}
        self.worst: LeafWindow | None = None

    def advance(self, at_ms: int) -> None:
        length_ms, now_ms = self._length_s * 1000, self._watch.now_ms
        for end_ms in range((now_ms // length_ms + 1) * length_ms, at_ms + 1, length_ms):
            self._watch.advance(end_ms)
            self.close()
        self._watch.advance(at_ms)

    def close(self) -> None:
        """Look at the window that ends now."""
        begin_s = (self._watch.now_ms - 1) // (self._length_s * 1000) * self._length_s
        found = [] if self.worst is None else [self.worst]
        for leaf, (waited_ms, kept) in self._watch.sums.items():
            waited_before_ms, kept_before = self._before.get(leaf, (0, 0.0))
            length_ms = waited_ms - waited_before_ms
            if length_ms >= _LEAST_OF_WINDOW * self._length_s * 1000:
                part = (kept - kept_before) / length_ms
                found.append(LeafWindow(part, leaf, self._start_s + begin_s, self._length_s))
        self.worst = min(found, default=None)
        self._before = {**self._watch.sums}


class _Watch:
    """Follows who holds and waits for what in a run: which part of its entitlement each leaf holds
    while it waits, and how many of those who wait would prefer what another one holds."""

    def __init__(self, run: Run) -> None:
        self._capacity = run.rules.shares.capacity
        self._tree = ShareTree(run.rules.shares)
        self._running: Counter[str] = Counter()
        #: Leaf → its waiting jobs, in the order of submission.
        self._waiting: dict[str, dict[int, Vector]] = {}
        #: The part of its entitlement that a waiting leaf holds now, until that may have changed.
        self._parts: dict[str, float] = {}
        #: Leaf → the milliseconds in which it waited, and the sum of the parts held in each.
        self.sums: dict[str, tuple[int, float]] = {}
        self.now_ms = 0
        self._pairs = self._envious = 0

    @property
    def envy(self) -> float:
        return self._envious / self._pairs if self._pairs else 0.0

    def take(self, leaf: str, demand: Vector, job: SimJob, sign: int) -> None:
        """Take a change of the run (see `Run.changes`)."""
        if leaf not in self._waiting and leaf not in self._running:
            self._tree.enter(leaf)
            self._parts.clear()
        if sign == 0:
            self._waiting.setdefault(leaf, {})[job.id] = demand
            return
        self._tree.hold(leaf, demand if sign > 0 else tuple(-each for each in demand))
        self._parts.pop(leaf, None)
        self._running[leaf] += sign
        if sign > 0:
            del self._waiting[leaf][job.id]
            if not self._waiting[leaf]:
                del self._waiting[leaf]
        elif not self._running[leaf]:
            del self._running[leaf]
            if leaf not in self._waiting:
                self._tree.leave(leaf)
                self._parts.clear()

    def advance(self, at_ms: int) -> None:
        """Count the time until then, in which nothing has changed."""
        length_ms, self.now_ms = at_ms - self.now_ms, at_ms
        if not length_ms:
            return
        self._tree.redivide()
        for leaf in self._waiting:
            part = self._parts.get(leaf)
            if part is None:
                part = self._parts[leaf] = self._part(leaf)
            waited_ms, kept = self.sums.get(leaf, (0, 0.0))
            self.sums[leaf] = waited_ms + length_ms, kept + part * length_ms

    def _part(self, leaf: str) -> float:
        node = self._tree.nodes[leaf]
        if not node.entitlement.least:
            return 1.0
        (up, down), held = node.ratio, node.entitlement.level(self._tree.charged[leaf])
        return min(1.0, float(held * down) / (node.entitlement.unit * up))

    def look_for_envy(self) -> None:
        if not self._waiting:
            return
        self._tree.redivide()
        promised = {leaf: self._promised(leaf) for leaf in {*self._running, *self._waiting}}
        held = self._tree.charged
        for leaf, waiting in self._waiting.items():
            demand, mine = next(iter(waiting.values())), promised[leaf]
            own = _tasks(demand, held[leaf])
            self._pairs += 1
            self._envious += any(
                _tasks(demand, _scaled(held[other], mine, promised[other])) > own + 1
                for other in self._running
                if other != leaf
            )

    def _promised(self, leaf: str) -> list[float]:
        parts = self._tree.entitled(leaf)
        return [top * float(part) for part, top in zip(parts, self._capacity, strict=True)]


def _tasks(demand: Vector, bundle: Vector | list[float]) -> int:
    """Return how many whole jobs of this demand fit into a bundle of resources."""
    pairs = zip(demand, bundle, strict=True)
    return int(min((there / asked for asked, there in pairs if asked), default=0.0) + _EPSILON)


def _scaled(held: Vector, mine: list[float], theirs: list[float]) -> list[float]:
    """Return another user's resources, scaled by the ratio of my entitlement to theirs."""
    rows = zip(held, mine, theirs, strict=True)
    return [amount * my / other if other else 0.0 for amount, my, other in rows]


View = dict[str, Any]

#: Run times count as at least so many seconds: else short jobs would outweigh all others.
SLOWDOWN_LEAST_S = 10.0
#: Bounds between the classes of job sizes: parts of the machine, of the resource that a job asks
#: for the most of.
SIZES = (0.01, 0.1)


def measure(run: Run) -> View:
    first_s = min((ran.job.submit_s for ran in run.ran), default=0.0)
    last_s = max((ran.end_s for ran in run.ran), default=0.0)
    span_s = last_s - first_s
    found = over_time(run)
    worst = found.worst
    return {
        "policy": run.rules.policy,
        "estimates": run.estimates,
        "jobs": len(run.ran),
        "refused": len(run.refused),
        "unstarted": len(run.unstarted),
        "passes": run.passes,
        "span_s": span_s,
        "jobs_per_hour": len(run.ran) / span_s * 3600 if span_s else None,
        "wait_s": spread([ran.wait_s for ran in run.ran]),
        "slowdown": spread([slowdown(ran) for ran in run.ran]),
        "run_s": spread([ran.run_s for ran in run.ran]),
        "use": _parts_held(run, run.ran, span_s),
        "promise_kept": {
            "mean": _mean(list(found.kept.values())),
            "least": _least(found.kept),
            "worst_window": worst and asdict(worst) | {"start_s": worst.start_s - first_s},
        },
        "envy": found.envy,
        "longest_wait_s": _by_size(run),
        "largest_job": _largest(run),
        "users": _users(run, found.kept, span_s),
    }


def slowdown(ran: FinishedJob) -> float:
    """Return the bounded slowdown: the time from submission to end, over the run time."""
    return max(1.0, (ran.wait_s + ran.run_s) / max(ran.job.run_s, SLOWDOWN_LEAST_S))


def size(job: SimJob, run: Run) -> float:
    """Return the largest part that the job asks for of any resource of the machine."""
    return float(run.rules.shares.dominant_share(run.rules.axes.vector(job.demand)))


def spread(values: Sequence[float]) -> View:
    """Return mean and percentiles (nearest rank), which are None if there are no values."""
    ordered = sorted(values)

    def at(percent: int) -> float | None:
        return ordered[max(1, ceil(len(ordered) * percent / 100)) - 1] if ordered else None

    return {"mean": _mean(ordered), "median": at(50), "p95": at(95), "p99": at(99), "max": at(100)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _least(by_leaf: dict[str, float]) -> View | None:
    leaf = min(by_leaf, key=lambda each: (by_leaf[each], each), default=None)
    return None if leaf is None else {"kept": by_leaf[leaf], "leaf": leaf}


def _parts_held(run: Run, rans: Iterable[FinishedJob], span_s: float) -> View:
    """Return the mean part of each resource that these jobs held over the span of the run."""
    rules = run.rules
    sums = [0.0] * len(rules.shares.capacity)
    for ran in rans:
        for axis, amount in enumerate(rules.axes.vector(ran.job.demand)):
            sums[axis] += amount * ran.run_s
    rows = zip(rules.axes.names, sums, rules.shares.capacity, strict=True)
    return {name: held / (top * span_s) if span_s else 0.0 for name, held, top in rows if top}


def _by_size(run: Run) -> list[View]:
    longest: list[list[Any]] = [[0, None] for _ in (*SIZES, 1)]
    sizes: dict[object, int] = {}
    for ran in run.ran:
        at = sizes.get(ran.job.demand)
        if at is None:
            at = sizes[ran.job.demand] = sum(size(ran.job, run) >= bound for bound in SIZES)
        longest[at][0] += 1
        longest[at][1] = max(ran.wait_s, longest[at][1] or 0.0)
    bounds = zip((0.0, *SIZES), (*SIZES, None), strict=True)
    return [
        {"from": low, "below": high, "jobs": jobs, "longest_wait_s": wait_s}
        for (low, high), (jobs, wait_s) in zip(bounds, longest, strict=True)
    ]


def _largest(run: Run) -> View | None:
    """Return the job that asks for the most, the first of equal ones, or None without jobs."""
    asked = {ran.job.demand: ran.job for ran in run.ran}
    if not asked:
        return None
    most = max(asked, key=lambda demand: size(asked[demand], run))
    ran = min((each for each in run.ran if each.job.demand == most), key=lambda each: each.job.id)
    return {"name": ran.job.name, "share": size(ran.job, run), "wait_s": ran.wait_s}


def _users(run: Run, kept: dict[str, float], span_s: float) -> View:
    by_leaf: dict[str, list[FinishedJob]] = {}
    for ran in run.ran:
        by_leaf.setdefault(run.leaves[ran.job.id], []).append(ran)
    return {
        leaf: {
            "user": rans[0].job.user,
            "jobs": len(rans),
            "wait_s": spread([ran.wait_s for ran in rans]),
            "slowdown": spread([slowdown(ran) for ran in rans]),
            "run_s": spread([ran.run_s for ran in rans]),
            "promise_kept": kept.get(leaf),
            # The mean dominant share.
            "share": max(_parts_held(run, rans, span_s).values(), default=0.0),
        }
        for leaf, rans in sorted(by_leaf.items())
    }
