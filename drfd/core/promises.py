"""The account of promises: what each leaf was promised while it waited, what it held of that, and
what it was short of, by cause.

Only time counts in which a leaf has a job that could start: who waits for nothing lacks nothing. A
promise is the dominant part of the machine that a leaf is entitled to at that moment, by weights,
guarantees and limits, among those who hold something or wait (`ShareTree.entitlement`); it is kept
as far as what the leaf holds goes (`ShareTree.satisfaction`). Holding more than one's promise is no
fault: it was idle when it was taken. It is the cause of what others are short of only while these
wait.

What a leaf is short of is divided among the causes in the order of `Parts`, and the parts add up
exactly, because all amounts are integers: billionths of the machine, times milliseconds. The
account belongs to whoever tells it of each change in the order in which they happened; equal
changes give equal accounts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import floor
from operator import add
from typing import NamedTuple

from drfd.core.amounts.resources import NOTHING, Resources
from drfd.core.amounts.vectors import Vector, fits, minus, plus
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.share_tree import ShareTree
from drfd.core.model.events import StartReason

#: The whole machine, and the whole of a promise, in the account's units.
WHOLE = 10**9


class Parts(NamedTuple):
    """Amounts of one leaf. `promised` is the sum of `kept` and of the causes after it."""

    #: Milliseconds in which the leaf waited.
    waited: int = 0
    #: The part of the promise that was held, without regard to how large the promise was.
    kept_part: int = 0
    promised: int = 0
    kept: int = 0
    #: Nothing could start, because there was no daemon or no launcher.
    away: int = 0
    #: Nothing was allowed to start.
    drained: int = 0
    #: A limit of the leaf, or of a pool that it is in, stopped each of its jobs.
    own_limit: int = 0
    #: Kept free for processes outside drfd.
    outside: int = 0
    #: Held by others beyond their promises.
    others: int = 0
    #: There was room, but not for so large a job: fragments, or kept free for a reservation.
    size: int = 0

    def after(self, rate: Parts, length_ms: int) -> Parts:
        """Return the sums after another time at these amounts per millisecond."""
        rows = zip(self, rate, strict=True)
        return Parts(*[before + each * length_ms for before, each in rows])

    @property
    def short(self) -> int:
        return self.promised - self.kept


class Obstacle(StrEnum):
    """What keeps a part of the machine, or all of it, from being given to jobs."""

    AWAY = "away"
    DRAINED = "drained"
    OUTSIDE = "outside"


class Starts(NamedTuple):
    """Counts of starts for one reason."""

    all: int = 0
    #: Starts with which a leaf held more than its promise.
    beyond: int = 0
    #: Of these, starts while another leaf waited and held less than its own promise.
    past: int = 0
    #: Of these, starts while the first job of such a leaf would have fitted in what was free, and
    #: within its promise.
    past_fitting: int = 0


class Stretch(NamedTuple):
    """A time in which a leaf waited and always held less than its promise, in milliseconds."""

    begin_ms: int
    end_ms: int

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.begin_ms


@dataclass(frozen=True, slots=True)
class _Job:
    leaf: str
    #: The demand that it waits with, if it waits and could start.
    wants: Resources | None
    #: What it holds, if anything is allocated to it.
    holds: Resources | None


class _Leaf:
    """What is known of a leaf that waits or holds something."""

    def __init__(self, nothing: Vector) -> None:
        self.used = nothing
        #: The number of jobs that hold something.
        self.running = 0
        #: The demands of the waiting jobs by id, in the order in which these began to wait.
        self.waiting: dict[int, Vector] = {}
        #: The number of waiting jobs by demand.
        self.demands: Counter[Vector] = Counter()
        #: What the leaf is promised, and the largest part of it that it holds, as parts of the
        #: machine; None until they are asked for.
        self.promised: int | None = None
        self.held: int | None = None


class Account:
    """The sums of all leaves, by windows of time.

    Times are in milliseconds from any beginning, from which windows are counted too: the window of
    a time is its number divided by the length of a window.
    """

    def __init__(self, rules: Rules, window_ms: int) -> None:
        self._window_ms = window_ms
        self.now_ms = 0
        #: (window, leaf) → sums of the time in which the leaf waited.
        self.sums: dict[tuple[int, str], Parts] = {}
        #: (window, leaf, other leaf) → the part of `Parts.others` that the other one held.
        self.pairs: Counter[tuple[int, str, str]] = Counter()
        #: (window, reason) → counts of starts; the reason is None where it is not known.
        self.starts: dict[tuple[int, StartReason | None], Starts] = {}
        #: Leaf → its longest stretch, the first of equals, also one that is not over.
        self.longest: dict[str, Stretch] = {}
        #: How often the clock was set back. Such a step has no length.
        self.steps_back = 0
        self._jobs: dict[int, _Job] = {}
        #: What each obstacle keeps from jobs.
        self._kept_from: dict[Obstacle, Resources] = {}
        #: Leaf → since when it has waited below its promise.
        self._below_since: dict[str, int] = {}
        self._adopt(rules)

    # -- changes ------------------------------------------------------------------------------

    def advance(self, at_ms: int) -> None:
        """Count the time until then, in which nothing has changed."""
        since_ms, self.now_ms = self.now_ms, at_ms
        if at_ms < since_ms:
            self.steps_back += 1
            # The stretches that go on are counted from now on.
            self._below_since = dict.fromkeys(self._below_since, at_ms)
        if at_ms <= since_ms:
            return
        over = self._over_promise() if self._waiting else {}
        rates = [(leaf, *self._rate(leaf, over)) for leaf in self._waiting]
        for leaf, rate, _ in rates:
            self._follow_stretch(leaf, since_ms, is_below=rate.short > 0)
        while since_ms < at_ms and rates:
            window = since_ms // self._window_ms
            until_ms = min(at_ms, (window + 1) * self._window_ms)
            length_ms = until_ms - since_ms
            for leaf, rate, by in rates:
                key = window, leaf
                self.sums[key] = self.sums.get(key, Parts()).after(rate, length_ms)
                for other, amount in by:
                    self.pairs[window, leaf, other] += amount * length_ms
            since_ms = until_ms

    def put(
        self,
        job_id: int,
        leaf: str,
        *,
        wants: Resources | None = None,
        holds: Resources | None = None,
    ) -> None:
        """Have the job wait with this demand, and hold these resources, from now on."""
        job = _Job(leaf, wants, holds)
        before = self._jobs.pop(job_id, None)
        if before == job:
            self._jobs[job_id] = job
            return
        if before is not None:
            self._take_out(job_id, before)
        if wants is not None or holds is not None:
            self._jobs[job_id] = job
            self._take_in(job_id, job)
        if before is not None:
            self._settle(before.leaf)

    def start(self, job_id: int, why: StartReason | None = None) -> None:
        """Have a waiting job hold what it waits for, from now on."""
        job = self._jobs[job_id]
        assert job.wants is not None
        self._count_start(job.leaf, self._vector(job.wants), why)
        self.put(job_id, job.leaf, holds=job.wants)

    def keep_from_jobs(self, obstacle: Obstacle, amounts: Resources) -> None:
        """Have the obstacle keep these amounts from jobs, from now on: the capacity for all."""
        self._kept_from[obstacle] = amounts
        self._kept_parts[obstacle] = _part(self._vector(amounts), self._rules.shares.capacity)

    def adopt(self, rules: Rules) -> None:
        """Have these rules hold from now on."""
        jobs = self._jobs
        self._adopt(rules)
        for job_id, job in jobs.items():
            self._take_in(job_id, job)
        for leaf in dict.fromkeys(job.leaf for job in jobs.values()):
            self._settle(leaf)
        for obstacle, amounts in self._kept_from.items():
            self.keep_from_jobs(obstacle, amounts)

    # -- what holds now -----------------------------------------------------------------------

    @property
    def waiting(self) -> dict[str, dict[int, Vector]]:
        """Each leaf that waits, with the demands of its jobs in the order in which they came."""
        return {name: self._leaves[name].waiting for name in self._waiting}

    @property
    def used(self) -> dict[str, Vector]:
        """What each leaf holds that has a job which holds something."""
        return {name: leaf.used for name, leaf in self._leaves.items() if leaf.running}

    def entitled(self, leaf: str) -> tuple[Fraction, ...]:
        """Return the parts of the machine promised to a leaf that waits or holds something."""
        return self._tree.entitled(leaf)

    # -- inside -------------------------------------------------------------------------------

    def _adopt(self, rules: Rules) -> None:
        self._rules = rules
        self._tree = ShareTree(rules.shares)
        self._is_divided = True
        self._nothing: Vector = (0,) * len(rules.shares.capacity)
        self._has_limits = any(rule.limit is not None for rule in rules.shares.rules.values())
        self._leaves: dict[str, _Leaf] = {}
        #: The leaves with a job that waits, in the order in which they began to.
        self._waiting: dict[str, None] = {}
        self._free = rules.shares.capacity
        self._vectors: dict[Resources, Vector] = {}
        self._kept_parts: dict[Obstacle, int] = {}

    def _vector(self, amounts: Resources) -> Vector:
        found = self._vectors.get(amounts)
        if found is None:
            found = self._vectors[amounts] = tuple(self._rules.axes.vector(amounts))
        return found

    def _take_in(self, job_id: int, job: _Job) -> None:
        leaf = self._leaves.get(job.leaf)
        if leaf is None:
            leaf = self._leaves[job.leaf] = _Leaf(self._nothing)
            self._tree.enter(job.leaf)
            self._is_divided = False
        if job.wants is not None:
            demand = leaf.waiting[job_id] = self._vector(job.wants)
            leaf.demands[demand] += 1
            self._waiting[job.leaf] = None
        if job.holds is not None:
            leaf.running += 1
            self._hold(job.leaf, leaf, self._vector(job.holds))

    def _take_out(self, job_id: int, job: _Job) -> None:
        """Undo `_take_in`, but for leaves that are left with nothing (see `_settle`)."""
        leaf = self._leaves[job.leaf]
        if job.wants is not None:
            demand = leaf.waiting.pop(job_id)
            leaf.demands[demand] -= 1
            if not leaf.demands[demand]:
                del leaf.demands[demand]
            if not leaf.waiting:
                del self._waiting[job.leaf]
        if job.holds is not None:
            leaf.running -= 1
            self._hold(job.leaf, leaf, minus(self._nothing, self._vector(job.holds)))

    def _hold(self, name: str, leaf: _Leaf, more: Vector) -> None:
        leaf.used, leaf.held = plus(leaf.used, more), None
        self._free = minus(self._free, more)
        self._tree.hold(name, more)

    def _settle(self, name: str) -> None:
        leaf = self._leaves.get(name)
        if leaf is not None and not leaf.waiting and not leaf.running:
            del self._leaves[name]
            self._tree.leave(name)
            self._is_divided = False
        if name not in self._waiting:
            self._below_since.pop(name, None)

    def _divide(self) -> None:
        """Bring the promises up to date after leaves have come or gone."""
        if self._is_divided:
            return
        self._is_divided = True
        have_parts_changed = bool(self._tree.redivide())
        for leaf in self._leaves.values():
            leaf.promised = None
            if have_parts_changed:
                leaf.held = None

    def _promised(self, name: str, leaf: _Leaf) -> int:
        """Return what the leaf is promised; `_divide` comes first."""
        if leaf.promised is None:
            leaf.promised = floor(self._tree.entitlement(name) * WHOLE)
        return leaf.promised

    def _held(self, name: str, leaf: _Leaf) -> int:
        """Return what the leaf holds, to be compared with its promise; `_divide` comes first."""
        if leaf.held is None:
            leaf.held = self._measured(name, leaf.used)
        return leaf.held

    def _measured(self, name: str, amounts: Vector) -> int:
        """Return the satisfaction that these amounts give the leaf, times its promise."""
        parts = self._tree.nodes[name].entitlement.parts
        rows = zip(amounts, parts, self._rules.shares.capacity, strict=True)
        counting = [(amount, part, top) for amount, part, top in rows if top and part]
        if not counting:
            return 0
        least = min(part for _, part, _ in counting)
        return max(floor(WHOLE * amount * least / (top * part)) for amount, part, top in counting)

    def _over_promise(self) -> dict[str, int]:
        """Return what leaves hold beyond their promises."""
        self._divide()
        found = {}
        for name, leaf in self._leaves.items():
            if leaf.running:
                over = self._held(name, leaf) - self._promised(name, leaf)
                if over > 0:
                    found[name] = over
        return found

    def _rate(self, name: str, over: Mapping[str, int]) -> tuple[Parts, list[tuple[str, int]]]:
        """Return the leaf's parts per millisecond, and that of `others` by leaf."""
        leaf = self._leaves[name]
        promised = self._promised(name, leaf)
        kept = min(promised, self._held(name, leaf))
        kept_part = kept * WHOLE // promised if promised else WHOLE
        rest = promised - kept
        if not rest:
            return Parts(1, kept_part, promised, kept), []
        away = min(rest, self._kept_parts.get(Obstacle.AWAY, 0))
        rest -= away
        drained = min(rest, self._kept_parts.get(Obstacle.DRAINED, 0))
        rest -= drained
        own_limit = rest if self._is_limited(name, leaf) else 0
        rest -= own_limit
        outside = min(rest, self._kept_parts.get(Obstacle.OUTSIDE, 0))
        rest -= outside
        by = _divided(rest, over)
        others = sum(amount for _, amount in by)
        rate = Parts(
            1, kept_part, promised, kept, away, drained, own_limit, outside, others, rest - others
        )
        return rate, by

    def _is_limited(self, name: str, leaf: _Leaf) -> bool:
        """Return whether none of the leaf's jobs could start on an empty machine, by limits."""
        if not self._has_limits:
            return False
        left = self._tree.headroom(name, self._rules.shares.capacity)
        return not any(fits(demand, left) for demand in leaf.demands)

    def _follow_stretch(self, name: str, since_ms: int, *, is_below: bool) -> None:
        """Take note of whether the leaf was below its promise since then."""
        if not is_below:
            self._below_since.pop(name, None)
            return
        found = Stretch(self._below_since.setdefault(name, since_ms), self.now_ms)
        longest = self.longest.get(name)
        if longest is None or found.length_ms > longest.length_ms:
            self.longest[name] = found

    def _count_start(self, name: str, demand: Vector, why: StartReason | None) -> None:
        self._divide()
        leaf = self._leaves[name]
        is_past = fits_too = False
        is_beyond = self._measured(name, plus(leaf.used, demand)) > self._promised(name, leaf)
        if is_beyond:
            outside = self._kept_from.get(Obstacle.OUTSIDE, NOTHING)
            free = minus(self._free, self._vector(outside))
            for other in self._waiting:
                each = self._leaves[other]
                promised = self._promised(other, each)
                if other == name or self._held(other, each) >= promised:
                    continue
                is_past = True
                first = next(iter(each.waiting.values()))
                with_it = self._measured(other, plus(each.used, first))
                fits_too = fits_too or (fits(first, free) and with_it <= promised)
        key = self.now_ms // self._window_ms, why
        before = self.starts.get(key, Starts())
        marks = (True, is_beyond, is_past, fits_too)
        self.starts[key] = Starts(*map(add, before, marks))


def _part(amounts: Vector, capacity: Vector) -> int:
    """Return the largest part that the amounts are of any resource of the machine."""
    pairs = zip(amounts, capacity, strict=True)
    return max([amount * WHOLE // top for amount, top in pairs if top], default=0)


def _divided(short: int, over: Mapping[str, int]) -> list[tuple[str, int]]:
    """Charge those who are over their promises with what is short, in proportion, but with no more
    than they are over. What is left by rounding down falls to the first ones, one each."""
    total = sum(over.values())
    charged = min(short, total)
    if not charged:
        return []
    by = {name: charged * amount // total for name, amount in over.items()}
    left = charged - sum(by.values())
    for name, amount in over.items():
        if left and by[name] < amount:
            by[name] += 1
            left -= 1
    return [(name, amount) for name, amount in by.items() if amount]
