"""How the users of a run fared from moment to moment: promises kept, and envy.

Only the time counts in which somebody waits: who has nothing waiting wants for nothing. What is
promised is as in the daemon: by weights, guarantees and limits, among those who hold something or
wait. Figures are floats: they are for people, and decide nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from drfd.core.fairshare import Standing
from drfd.core.resources import Vector, minus, plus
from drfd.sim.driver import Run
from drfd.sim.workload import SimJob

#: At so many moments, at equal distances, it is asked who envies whom.
SAMPLES = 500
#: The length of a window: of the second one, if the run is no longer than so many of the first.
_DAY_S, _HOUR_S, _FEW_DAYS = 86400, 3600, 14
#: A user must wait for so much of a window for it to count.
_LEAST_OF_WINDOW = 0.25
#: A whole job is whole whatever rounding has made of it.
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Window:
    leaf: str
    start_s: float
    length_s: int
    #: The part of what was promised that was held, on average; at most 1.
    kept: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    #: By leaf, for those who ever waited: the part of what was promised that they held while they
    #: waited, on average over that time; what is held beyond a promise does not count.
    kept: dict[str, float]
    #: For how long each of them had something waiting.
    waited_s: dict[str, float]
    #: Where the least of a promise was kept over a whole window.
    worst: Window | None
    #: Of all users who waited, moment by moment: the part who would rather have held what another
    #: one of their weight held, by more than one of their own waiting jobs.
    envy: float


def over_time(run: Run) -> OverTime:
    watch = _Watch(run)
    for at_s, changes in groupby(_changes(run), key=itemgetter(0)):
        watch.go_to(at_s)
        watch.take(changes)
    return watch.sum_up()


#: (when, what comes first at a moment, the place of the job in the run, the job, what happens).
_Change = tuple[float, int, int, SimJob, str]


def _changes(run: Run) -> Iterator[_Change]:
    found: list[_Change] = []
    for at, ran in enumerate(run.ran):
        found.append((ran.job.submit_s, 1, ran.job.id, ran.job, "waits"))
        found.append((ran.start_s, 2, at, ran.job, "starts"))
        # What ends as soon as it starts never held anything.
        found.append((ran.end_s, 0 if ran.job.run_s else 3, at, ran.job, "ends"))
    found += [(left.job.submit_s, 1, left.job.id, left.job, "waits") for left in run.unstarted]
    found.sort(key=itemgetter(0, 1, 2))
    yield from found


class _Watch:
    """Goes through a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rules = run.rules
        self._standing = Standing(run.rules.shares)
        self._nothing: Vector = (0,) * len(run.rules.room)
        self._used: dict[str, Vector] = {}
        self._running: Counter[str] = Counter()
        #: Waiting jobs by leaf, in the order of their submission.
        self._waiting: dict[str, dict[int, Vector]] = {}
        #: Of a leaf that waits: what it is entitled to of each resource, in amounts; what it keeps
        #: of that now, and since when it has.
        self._entitled: dict[str, list[float]] = {}
        self._keeps: dict[str, tuple[float, float]] = {}
        #: By leaf and window: for how long it waited, and how much of that it kept.
        self._sums: dict[tuple[str, int], list[float]] = {}
        first = [left.job.submit_s for left in run.unstarted]
        first += [ran.job.submit_s for ran in run.ran]
        last = [*first, *(ran.end_s for ran in run.ran)]
        self._start_s, self._end_s = min(first, default=0.0), max(last, default=0.0)
        span_s = self._end_s - self._start_s
        self._window_s = _DAY_S if span_s > _FEW_DAYS * _DAY_S else _HOUR_S
        self._step_s = max(span_s / SAMPLES, 1e-9)
        self._sampled = self._pairs = self._envious = 0

    def go_to(self, at_s: float) -> None:
        """Things stand as they do until then."""
        while self._sampled < SAMPLES:
            sample_s = self._start_s + (self._sampled + 0.5) * self._step_s
            if sample_s >= at_s:
                break
            self._sampled += 1
            self._look_for_envy()
        self._now_s = at_s

    def take(self, changes: Iterator[_Change]) -> None:
        touched: dict[str, None] = {}
        before = len(self._standing.nodes), self._competing()
        for _, _, _, job, what in changes:
            leaf = self._run.leaves[job.id]
            touched[leaf] = None
            self._change(leaf, job, what)
        entered = [leaf for leaf in touched if self._enter_or_leave(leaf)]
        if entered or (len(self._standing.nodes), self._competing()) != before:
            self._standing.settle()
            self._entitled.clear()
            touched |= dict.fromkeys(self._keeps)
        for leaf in touched:
            self._settle(leaf)

    def sum_up(self) -> OverTime:
        for leaf in list(self._keeps):
            self._note(leaf)
        sums: dict[str, list[float]] = {}
        worst: Window | None = None
        for (leaf, at), (waited_s, kept_s) in sorted(self._sums.items()):
            both = sums.setdefault(leaf, [0.0, 0.0])
            both[0] += waited_s
            both[1] += kept_s
            if waited_s >= _LEAST_OF_WINDOW * self._window_s and (
                worst is None or kept_s / waited_s < worst.kept
            ):
                start_s = self._start_s + at * self._window_s
                worst = Window(leaf, start_s, self._window_s, kept_s / waited_s)
        return OverTime(
            kept={leaf: kept_s / waited_s for leaf, (waited_s, kept_s) in sums.items()},
            waited_s={leaf: waited_s for leaf, (waited_s, _) in sums.items()},
            worst=worst,
            envy=self._envious / self._pairs if self._pairs else 0.0,
        )

    def _competing(self) -> int:
        return len(self._used) + len(self._waiting)

    def _change(self, leaf: str, job: SimJob, what: str) -> None:
        demand = self._rules.axes.vector(job.demand)
        if what == "waits":
            self._waiting.setdefault(leaf, {})[job.id] = demand
            return
        if what == "starts":
            del self._waiting[leaf][job.id]
            if not self._waiting[leaf]:
                del self._waiting[leaf]
            self._running[leaf] += 1
            self._used[leaf] = plus(self._used.get(leaf, self._nothing), demand)
            return
        self._running[leaf] -= 1
        self._used[leaf] = minus(self._used[leaf], demand)
        if not self._running[leaf]:
            del self._running[leaf], self._used[leaf]

    def _enter_or_leave(self, leaf: str) -> bool:
        node = self._standing.nodes.get(leaf)
        competes = node is not None and node.competes
        if competes == (leaf in self._used or leaf in self._waiting):
            return False
        if competes:
            self._standing.leave(leaf)
        else:
            self._standing.enter(leaf)
        return True

    def _settle(self, leaf: str) -> None:
        """Note what it has kept until now, and see what it keeps from now on."""
        self._note(leaf)
        if leaf in self._waiting:
            used = self._used.get(leaf, self._nothing)
            pairs = zip(used, self._promised(leaf), strict=True)
            kept = max((amount / most for amount, most in pairs if most), default=1.0)
            self._keeps[leaf] = self._now_s, min(1.0, kept)

    def _promised(self, leaf: str) -> list[float]:
        found = self._entitled.get(leaf)
        if found is None:
            node = self._standing.nodes[leaf]
            parts, capacity = node.yard.parts, self._rules.room
            factor = 1.0
            while node.above is not None:
                factor *= float(node.weight) / float(node.above.total)
                node = node.above
            found = [top * float(part) * factor for part, top in zip(parts, capacity, strict=True)]
            self._entitled[leaf] = found
        return found

    def _note(self, leaf: str) -> None:
        found = self._keeps.pop(leaf, None)
        if found is None:
            return
        since_s, kept = found
        while since_s < self._now_s:
            at = int((since_s - self._start_s) // self._window_s)
            until_s = min(self._now_s, self._start_s + (at + 1) * self._window_s)
            both = self._sums.setdefault((leaf, at), [0.0, 0.0])
            both[0] += until_s - since_s
            both[1] += (until_s - since_s) * kept
            since_s = until_s

    def _look_for_envy(self) -> None:
        for leaf, waiting in self._waiting.items():
            demand = next(iter(waiting.values()))
            mine, used = self._promised(leaf), self._used
            own = _tasks(demand, used.get(leaf, self._nothing))
            self._pairs += 1
            self._envious += any(
                _tasks(demand, _scaled(held, mine, self._promised(other))) > own + 1
                for other, held in used.items()
                if other != leaf
            )


def _tasks(demand: Vector, bundle: Vector | list[float]) -> int:
    """How many whole jobs of this demand a bundle is good for."""
    pairs = zip(demand, bundle, strict=True)
    return int(min((there / asked for asked, there in pairs if asked), default=0.0) + _EPSILON)


def _scaled(held: Vector, mine: list[float], theirs: list[float]) -> list[float]:
    """What another one holds, as it would be with my part of what is promised."""
    rows = zip(held, mine, theirs, strict=True)
    return [amount * my / other if other else 0.0 for amount, my, other in rows]
