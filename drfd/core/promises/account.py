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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat
from math import floor
from operator import add, mul
from typing import NamedTuple

from drfd.core.amounts.vectors import Vector, fits, minus, plus
from drfd.core.fairness.entitlement import Shares
from drfd.core.fairness.share_tree import FairShare, ShareTree
from drfd.core.model.events import StartReason

#: Starts past others of which one leaf's are told singly, and leaves told with each: a user decides
#: how many jobs it starts.
MOST_PAST, MOST_SHORT = 20, 8

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
        return Parts._make(map(add, self, map(mul, rate, repeat(length_ms))))

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


class PastStart(NamedTuple):
    """A start beyond the own promise, past leaves that waited with less than theirs."""

    at_ms: int
    job_id: int
    leaf: str
    #: None where it is not known.
    why: StartReason
    #: Whether the first job of one of `short` would have fitted in what was free, and within its
    #: promise. Those of whom that is so come first.
    fits: bool
    #: Of many, the first `MOST_SHORT` by name.
    short: tuple[str, ...]


@dataclass(kw_only=True)
class Counted:
    """What an account has counted."""

    #: (window, leaf) → sums of the time in which the leaf waited.
    sums: dict[tuple[int, str], Parts] = field(default_factory=dict)
    #: (window, leaf, other leaf) → the part of `Parts.others` that the other one held.
    pairs: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    #: (window, reason) → counts of starts.
    starts: dict[tuple[int, StartReason], Starts] = field(default_factory=dict)
    #: Starts past others with the id of a job, the first `MOST_PAST` of each leaf.
    past: list[PastStart] = field(default_factory=list)
    #: Leaf → its longest stretch, the first of equals, also one that is not over.
    longest: dict[str, Stretch] = field(default_factory=dict)
    #: How often the clock was set back. Such a step has no length.
    steps_back: int = 0


class _Leaf:
    """What is known of a leaf that waits or holds something."""

    def __init__(self, name: str, nothing: Vector) -> None:
        self.name, self.used = name, nothing
        #: Whether a job holds something, be it nothing of any resource.
        self.is_running = False
        #: The different demands of waiting jobs, that of the first job first.
        self.demands: Sequence[Vector] = ()
        #: What the leaf is promised, and the largest part of it that it holds, as parts of the
        #: machine; None until they are asked for.
        self.promised: int | None = None
        self.held: int | None = None
        #: For each axis that counts: the axis, and the satisfaction that one unit of it gives,
        #: times the promise, as numerator and denominator; None until they are asked for.
        self.measures: list[tuple[int, int, int]] | None = None
        #: Its parts per millisecond while it waits, `size` with what others hold; None likewise.
        self.rate: Parts | None = None
        #: For how long it has waited at this rate, and what others held of `size` in that time: not
        #: in the sums yet.
        self.pending_ms = self.pending_others = 0


class Account:
    """The sums of all leaves, by windows of time.

    Times are in milliseconds from any beginning, from which windows are counted too: the window of
    a time is its number divided by the length of a window. Vectors are in the order of the
    capacity of the shares in force.
    """

    def __init__(self, shares: FairShare, window_ms: int, *, has_pairs: bool = True) -> None:
        """Without `has_pairs` it is not counted who holds what another one is short of."""
        self._window_ms, self._has_pairs = window_ms, has_pairs
        self.now_ms = self._window = 0
        #: Leaf → since when it has waited below its promise.
        self.below_since: dict[str, int] = {}
        self._leaves: dict[str, _Leaf] = {}
        #: The leaves that wait, in the order in which they began to.
        self._waiting: dict[str, _Leaf] = {}
        self.resume(Counted())
        self.adopt(shares)

    # -- what was counted ---------------------------------------------------------------------

    def resume(self, counted: Counted) -> None:
        """Go on counting from there."""
        self._settle_all()
        self._counted = counted
        self._told = Counter(each.leaf for each in counted.past)

    @property
    def counted(self) -> Counted:
        self._settle_all()
        return self._counted

    def take_out(self) -> Counted:
        """Return what was counted, and count from nothing. Stretches go on."""
        counted = self.counted
        self.resume(Counted())
        return counted

    # -- changes ------------------------------------------------------------------------------

    def adopt(self, shares: FairShare) -> None:
        """Have these shares be in force from now on, on a machine without obstacles on which nobody
        waits or holds anything: the caller tells again what does."""
        self._shares = shares
        self._tree = ShareTree(shares)
        self._is_divided = True
        self._nothing: Vector = (0,) * len(shares.capacity)
        self._has_limits = any(rule.limit is not None for rule in shares.rules.values())
        self._settle_all()
        self._leaves, self._waiting = {}, {}
        #: What leaves hold beyond their promises, by name, and the leaves of which it is not known.
        self._over: dict[str, int] = {}
        self._over_total = 0
        self._stale: set[str] = set()
        self._free = shares.capacity
        #: What each obstacle keeps from jobs: the amounts, and the largest part of the machine.
        self._kept_from: dict[Obstacle, Vector] = {}
        self._kept_parts: dict[Obstacle, int] = {}

    def advance(self, at_ms: int) -> None:
        """Count the time until then, in which nothing has changed."""
        for name in self.below_since.keys() - self._waiting.keys():
            del self.below_since[name]
        if at_ms < self.now_ms:
            self._settle_all()
            self._counted.steps_back += 1
            self.now_ms = at_ms
            # The stretches that go on are counted from now on.
            self.below_since = dict.fromkeys(self.below_since, at_ms)
        if at_ms == self.now_ms or not self._waiting:
            self.now_ms = at_ms
            return
        total = self._total_over()
        for leaf in self._waiting.values():
            # Limits of a pool depend on what other leaves hold.
            if leaf.rate is None or self._has_limits:
                self._settle(leaf)
                leaf.rate = self._own_rate(leaf)
                if leaf.rate.short:
                    self.below_since.setdefault(leaf.name, self.now_ms)
                else:
                    self.below_since.pop(leaf.name, None)
        over = dict(sorted(self._over.items())) if self._has_pairs else {}
        while self.now_ms < at_ms:
            window = self.now_ms // self._window_ms
            if window != self._window:
                self._settle_all()
                self._window = window
            until_ms = min(at_ms, (window + 1) * self._window_ms)
            length_ms, self.now_ms = until_ms - self.now_ms, until_ms
            for leaf in self._waiting.values():
                assert leaf.rate is not None
                leaf.pending_ms += length_ms
                others = min(leaf.rate.size, total)
                if others:
                    leaf.pending_others += others * length_ms
                    for other, amount in _divided(others, total, over) if over else ():
                        self._counted.pairs[window, leaf.name, other] += amount * length_ms

    def put(self, name: str, *, demands: Sequence[Vector] = (), used: Vector | None = None) -> None:
        """Have jobs of the leaf wait with these different demands, that of the first job first, and
        the leaf hold these amounts, from now on; None if no job of it holds anything."""
        leaf = self._leaves.get(name)
        if leaf is None:
            if not demands and used is None:
                return
            leaf = self._leaves[name] = _Leaf(name, self._nothing)
            self._tree.enter(name)
            self._is_divided = False
        held = self._nothing if used is None else tuple(used)
        if held != leaf.used:
            more = minus(held, leaf.used)
            self._forget_rate(leaf)
            leaf.used, leaf.held = held, None
            self._free = minus(self._free, more)
            self._tree.hold(name, more)
        leaf.demands = demands
        if demands:
            self._waiting[name] = leaf
        elif name in self._waiting:
            self._forget_rate(leaf)
            del self._waiting[name]
        leaf.is_running = used is not None
        self._stale.add(name)
        if not demands and used is None:
            del self._leaves[name]
            self._tree.leave(name)
            self._is_divided = False

    def keep_from_jobs(self, obstacle: Obstacle, amounts: Vector) -> None:
        """Have the obstacle keep these amounts from jobs, from now on: the capacity for all."""
        self._kept_from[obstacle] = amounts
        self._kept_parts[obstacle] = _part(amounts, self._shares.capacity)
        for leaf in self._leaves.values():
            self._forget_rate(leaf)

    def count_start(
        self, name: str, demand: Vector, why: StartReason, job_id: int | None = None
    ) -> None:
        """Count the start of a waiting job of the leaf, just before what it changes is put. With
        the job's id, whom it goes past is told, too."""
        self._divide()
        leaf = self._leaves[name]
        #: Leaves that are short, and whether their first job would not fit.
        short: list[tuple[bool, str]] = []
        is_beyond = self._measured(name, leaf, plus(leaf.used, demand)) > self._promised(name, leaf)
        if is_beyond:
            free = minus(self._free, self._kept_from.get(Obstacle.OUTSIDE, self._nothing))
            for other, each in self._waiting.items():
                promised = self._promised(other, each)
                if other == name or self._held(other, each) >= promised:
                    continue
                with_first = self._measured(other, each, plus(each.used, each.demands[0]))
                fits_too = fits(each.demands[0], free) and with_first <= promised
                short.append((not fits_too, other))
        short.sort()
        fits_one = bool(short) and not short[0][0]
        key = self.now_ms // self._window_ms, why
        marks = (True, is_beyond, bool(short), fits_one)
        starts = self._counted.starts
        starts[key] = Starts(*map(add, starts.get(key, Starts()), marks))
        if short and job_id is not None and self._told[name] < MOST_PAST:
            self._told[name] += 1
            others = tuple(other for _, other in short[:MOST_SHORT])
            self._counted.past.append(PastStart(self.now_ms, job_id, name, why, fits_one, others))

    def entitled(self, name: str) -> Shares:
        """Return the parts of the machine promised to a leaf that waits or holds something."""
        self._divide()
        return self._tree.entitled(name)

    # -- inside -------------------------------------------------------------------------------

    def _divide(self) -> None:
        """Bring the promises up to date after leaves have come or gone."""
        if self._is_divided:
            return
        self._is_divided = True
        have_parts_changed = bool(self._tree.redivide())
        self._stale.update(self._leaves)
        for leaf in self._leaves.values():
            self._forget_rate(leaf)
            leaf.promised = None
            if have_parts_changed:
                leaf.held = leaf.measures = None

    def _promised(self, name: str, leaf: _Leaf) -> int:
        """Return what the leaf is promised; `_divide` comes first."""
        if leaf.promised is None:
            leaf.promised = floor(self._tree.entitlement(name) * WHOLE)
        return leaf.promised

    def _held(self, name: str, leaf: _Leaf) -> int:
        """Return what the leaf holds, to be compared with its promise; `_divide` comes first."""
        if leaf.held is None:
            leaf.held = self._measured(name, leaf, leaf.used)
        return leaf.held

    def _measured(self, name: str, leaf: _Leaf, amounts: Vector) -> int:
        """Return the satisfaction that these amounts give the leaf, times its promise; `_divide`
        comes first."""
        if leaf.measures is None:
            leaf.measures = self._measures(name)
        return max([amounts[axis] * up // down for axis, up, down in leaf.measures], default=0)

    def _measures(self, name: str) -> list[tuple[int, int, int]]:
        """Return `_Leaf.measures`: integers, because fractions are slow."""
        parts = self._tree.nodes[name].entitlement.parts
        rows = enumerate(zip(parts, self._shares.capacity, strict=True))
        counting = [(axis, part, top) for axis, (part, top) in rows if top and part]
        if not counting:
            return []
        least = WHOLE * min(part for _, part, _ in counting)
        exact = ((axis, least / (top * part)) for axis, part, top in counting)
        return [(axis, each.numerator, each.denominator) for axis, each in exact]

    def _total_over(self) -> int:
        """Bring `_over` up to date, and return the sum."""
        self._divide()
        for name in self._stale:
            leaf = self._leaves.get(name)
            over = 0
            if leaf is not None and leaf.is_running:
                over = max(0, self._held(name, leaf) - self._promised(name, leaf))
            self._over_total += over - self._over.pop(name, 0)
            if over:
                self._over[name] = over
        self._stale.clear()
        return self._over_total

    def _own_rate(self, leaf: _Leaf) -> Parts:
        """Return `_Leaf.rate`."""
        promised = self._promised(leaf.name, leaf)
        kept = min(promised, self._held(leaf.name, leaf))
        kept_part = kept * WHOLE // promised if promised else WHOLE
        rest = promised - kept
        if not rest:
            return Parts(1, kept_part, promised, kept)
        away = min(rest, self._kept_parts.get(Obstacle.AWAY, 0))
        rest -= away
        drained = min(rest, self._kept_parts.get(Obstacle.DRAINED, 0))
        rest -= drained
        own_limit = rest if self._is_limited(leaf.name, leaf) else 0
        rest -= own_limit
        outside = min(rest, self._kept_parts.get(Obstacle.OUTSIDE, 0))
        rest -= outside
        return Parts(1, kept_part, promised, kept, away, drained, own_limit, outside, 0, rest)

    def _is_limited(self, name: str, leaf: _Leaf) -> bool:
        """Return whether none of the leaf's jobs could start on an empty machine, by limits."""
        if not self._has_limits:
            return False
        left = self._tree.headroom(name, self._shares.capacity)
        return not any(fits(demand, left) for demand in leaf.demands)

    def _forget_rate(self, leaf: _Leaf) -> None:
        self._settle(leaf)
        leaf.rate = None

    def _settle_all(self) -> None:
        for leaf in self._waiting.values():
            self._settle(leaf)

    def _settle(self, leaf: _Leaf) -> None:
        """Add what is pending to the sums, and follow the stretch that it is part of."""
        if not leaf.pending_ms:
            return
        assert leaf.rate is not None
        key = self._window, leaf.name
        parts = self._counted.sums.get(key, Parts()).after(leaf.rate, leaf.pending_ms)
        self._counted.sums[key] = parts._replace(
            others=parts.others + leaf.pending_others, size=parts.size - leaf.pending_others
        )
        leaf.pending_ms = leaf.pending_others = 0
        if leaf.rate.short:
            stretch = Stretch(self.below_since[leaf.name], self.now_ms)
            longest = self._counted.longest.get(leaf.name)
            if longest is None or stretch.length_ms > longest.length_ms:
                self._counted.longest[leaf.name] = stretch


def _part(amounts: Vector, capacity: Vector) -> int:
    """Return the largest part that the amounts are of any resource of the machine."""
    pairs = zip(amounts, capacity, strict=True)
    return max([amount * WHOLE // top for amount, top in pairs if top], default=0)


def _divided(charged: int, total: int, over: Mapping[str, int]) -> list[tuple[str, int]]:
    """Charge those who are over their promises, by `total` together, with at most that much, in
    proportion. What is left by rounding down falls to the first ones, one each."""
    by = {name: charged * amount // total for name, amount in over.items()}
    left = charged - sum(by.values())
    for name, amount in over.items():
        if left and by[name] < amount:
            by[name] += 1
            left -= 1
    return [(name, amount) for name, amount in by.items() if amount]
