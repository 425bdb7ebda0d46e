"""The account of promises: each leaf's entitlement while it waited, what it held of that, and what
it lacked, by cause.

Time counts only while a leaf has a job that could start. The promise is the dominant part of the
entitlement at that moment, among those who hold something or wait (`ShareTree.least_entitled`).
What a leaf lacks is divided among the causes in the order of `Parts`; the parts add up exactly,
because all amounts are integers: billionths of the machine, times milliseconds.

`PromiseAccount` is notified of each change in order; equal changes give equal accounts.
`EventFold` does so from the events of a journal, those for an audit included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat
from operator import add, mul
from typing import NamedTuple

from drfd.core.fairness.rules import Rules
from drfd.core.fairness.share_tree import FairShare, Level, ShareNode, Shares, ShareTree
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.events import StartReason
from drfd.core.model.machine import Vector, fits, minus, plus
from drfd.core.model.resources import NOTHING, Axes, Resources

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

    def after(self, rate: Parts, length_ms: int, others: int = 0) -> Parts:
        """Return the sums after another time at these amounts per millisecond, of whose `size`
        others have held so much in all."""
        *sums, held, size = map(add, self, map(mul, rate, repeat(length_ms)))
        return Parts._make((*sums, held + others, size - others))

    @property
    def short(self) -> int:
        return self.promised - self.kept


_NO_PARTS = Parts()


class Obstacle(StrEnum):
    """What keeps a part of the machine, or all of it, from being given to jobs."""

    AWAY = "away"
    DRAINED = "drained"
    OUTSIDE = "outside"


class Starts(NamedTuple):
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
    #: By leaf: sums of the time in which it waited.
    sums: dict[str, Parts] = field(default_factory=dict)
    #: (leaf, other leaf) → the part of `Parts.others` that the other one held.
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    starts: dict[StartReason, Starts] = field(default_factory=dict)
    #: Starts past others with the id of a job, the first `MOST_PAST` of each leaf.
    past: list[PastStart] = field(default_factory=list)
    #: Leaf → its longest stretch, the first of equals, also one that is not over.
    longest: dict[str, Stretch] = field(default_factory=dict)
    #: How often the clock was set back. Such a step has no length.
    steps_back: int = 0


@dataclass(slots=True)
class _Leaf:
    """What is known of a leaf that waits or holds something; None for what is not computed yet."""

    name: str
    used: Vector
    #: The different demands of waiting jobs, that of the first job first.
    demands: Sequence[Vector] = ()
    #: What the leaf is promised (`PromiseAccount._divide` comes first), and the largest part of it
    #: that it holds, as parts of the machine.
    promised: int = 0
    held: int = 0
    #: For each axis that counts: the axis, and the satisfaction that one unit of it gives, times
    #: the promise, as numerator and denominator (fractions are slow).
    measures: list[tuple[int, int, int]] | None = None
    #: Its parts per millisecond while it waits, `size` with what others hold.
    rate: Parts | None = None
    #: For how long it has waited at this rate, and what others held of `size` in that time: not in
    #: the sums yet.
    pending_ms: int = 0
    pending_others: int = 0


class PromiseAccount:
    """The sums of all leaves. Times are in milliseconds from any beginning. Vectors are in the
    order of the capacity of the shares in force."""

    def __init__(self, shares: FairShare, *, has_pairs: bool = True) -> None:
        """Without `has_pairs` it is not counted who holds what another one is short of."""
        self._has_pairs = has_pairs
        self.now_ms = 0
        #: Leaf → since when it has waited below its promise.
        self.below_since: dict[str, int] = {}
        self._leaves: dict[str, _Leaf] = {}
        #: The leaves that wait, in the order in which they began to.
        self._waiting: dict[str, _Leaf] = {}
        self._counted = Counted()
        self._told: Counter[str] = Counter()
        self.adopt(shares)

    # -- what was counted ---------------------------------------------------------------------

    @property
    def counted(self) -> Counted:
        self._settle_all()
        return self._counted

    def take_out(self) -> Counted:
        """Return what was counted, and count from nothing. Stretches go on."""
        counted, self._counted = self.counted, Counted()
        self._told.clear()
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
        self._free = shares.capacity
        #: What each obstacle keeps from jobs: the amounts, and the largest part of the machine.
        self._kept_from: dict[Obstacle, Vector] = {}
        self._kept_parts = dict.fromkeys(Obstacle, 0)

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
        self._divide()
        is_short = False
        for leaf in self._waiting.values():
            # Limits of a pool depend on what other leaves hold.
            if leaf.rate is None or self._has_limits:
                self._settle(leaf)
                leaf.rate = self._own_rate(leaf)
                if leaf.rate.short:
                    self.below_since.setdefault(leaf.name, self.now_ms)
                else:
                    self.below_since.pop(leaf.name, None)
            is_short = is_short or leaf.rate.size > 0
        #: What leaves hold beyond their promises, by name.
        over = {
            name: leaf.held - leaf.promised
            for name, leaf in sorted(self._leaves.items() if is_short else ())
            if leaf.held > leaf.promised
        }
        total = sum(over.values())
        length_ms, self.now_ms = at_ms - self.now_ms, at_ms
        for leaf in self._waiting.values():
            leaf.pending_ms += length_ms
            if total and leaf.rate is not None and leaf.rate.size:
                others = min(leaf.rate.size, total)
                leaf.pending_others += others * length_ms
                for other, amount in _divided(others, total, over) if self._has_pairs else ():
                    self._counted.pairs[leaf.name, other] += amount * length_ms

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
            leaf.used, leaf.held = held, self._measured(leaf, held)
            self._free = minus(self._free, more)
            self._tree.hold(name, more)
        leaf.demands = demands
        if demands:
            self._waiting[name] = leaf
        elif name in self._waiting:
            self._forget_rate(leaf)
            del self._waiting[name]
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
        is_beyond = self._measured(leaf, plus(leaf.used, demand)) > leaf.promised
        if is_beyond:
            free = minus(self._free, self._kept_from.get(Obstacle.OUTSIDE, self._nothing))
            for other, each in self._waiting.items():
                if each.held < each.promised and each is not leaf:
                    first = each.demands[0]
                    fits_too = fits(first, free) and (
                        self._measured(each, plus(each.used, first)) <= each.promised
                    )
                    short.append((not fits_too, other))
        short.sort()
        fits_one = bool(short) and not short[0][0]
        marks = (True, is_beyond, bool(short), fits_one)
        starts = self._counted.starts
        starts[why] = Starts(*map(add, starts.get(why, Starts()), marks))
        if short and job_id is not None and self._told[name] < MOST_PAST:
            self._told[name] += 1
            others = tuple(other for _, other in short[:MOST_SHORT])
            self._counted.past.append(PastStart(self.now_ms, job_id, name, why, fits_one, others))

    def entitled(self, name: str) -> Shares:
        self._divide()
        return self._tree.entitled(name)

    # -- inside -------------------------------------------------------------------------------

    def _divide(self) -> None:
        if self._is_divided:
            return
        self._is_divided = True
        have_parts_changed = bool(self._tree.redivide())
        for leaf in self._waiting.values():
            self._forget_rate(leaf)
        # Siblings of the same weight are promised the same.
        by_weight: dict[tuple[ShareNode | None, Level, int], int] = {}
        for leaf in self._leaves.values():
            node = self._tree.nodes[leaf.name]
            key = node.above, node.weight, id(node.entitlement)
            promised = by_weight.get(key)
            if promised is None:
                (up, down), least = node.ratio, node.entitlement.least
                promised = WHOLE * up * least.numerator // (down * least.denominator)
                by_weight[key] = promised
            leaf.promised = promised
            if have_parts_changed:
                leaf.measures = None
                leaf.held = self._measured(leaf, leaf.used)

    def _measured(self, leaf: _Leaf, amounts: Vector) -> int:
        """Return the satisfaction that these amounts give the leaf, times its promise; `_divide`
        comes first."""
        if leaf.measures is None:
            entitlement = self._tree.nodes[leaf.name].entitlement
            up, down = entitlement.least.as_integer_ratio()
            leaf.measures = [
                (axis, WHOLE * up * part.denominator, down * top * part.numerator)
                for axis, (part, top) in enumerate(
                    zip(entitlement.parts, entitlement.capacity, strict=True)
                )
                if top and part
            ]
        return max([amounts[axis] * up // down for axis, up, down in leaf.measures], default=0)

    def _own_rate(self, leaf: _Leaf) -> Parts:
        promised = leaf.promised
        kept = min(promised, leaf.held)
        kept_part = kept * WHOLE // promised if promised else WHOLE
        rest = promised - kept
        if not rest:
            return Parts(1, kept_part, promised, kept)
        is_limited = False
        if self._has_limits:
            # None of the leaf's jobs could start on an empty machine.
            left = self._tree.headroom(leaf.name, self._shares.capacity)
            is_limited = not any(fits(demand, left) for demand in leaf.demands)
        away, drained, outside = self._kept_parts.values()
        causes = []
        for most in (away, drained, WHOLE if is_limited else 0, outside):
            causes.append(min(rest, most))
            rest -= causes[-1]
        return Parts._make([1, kept_part, promised, kept, *causes, 0, rest])

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
        sums, pending = self._counted.sums, (leaf.pending_ms, leaf.pending_others)
        sums[leaf.name] = sums.get(leaf.name, _NO_PARTS).after(leaf.rate, *pending)
        leaf.pending_ms = leaf.pending_others = 0
        if leaf.rate.short:
            stretch = Stretch(self.below_since[leaf.name], self.now_ms)
            longest = self._counted.longest.get(leaf.name)
            if longest is None or stretch.length_ms > longest.length_ms:
                self._counted.longest[leaf.name] = stretch


def _part(amounts: Vector, capacity: Vector) -> int:
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


# -- from the events of a journal ------------------------------------------------------------------


#: Launchers tell the times of these afterwards; they change nothing that counts.
_REPORTED = (ev.Launched, ev.Exited)


class EventFold:
    """Folds the events of a journal into an account, from the first record of the rules on. Jobs
    that a maintenance window blocks count as waiting, because windows are not recorded."""

    def __init__(self, rules_of: Callable[[str], Rules]) -> None:
        """`rules_of` returns the rules with a digest; what it raises is raised by `take`."""
        self.account = PromiseAccount(FairShare(()))
        self.rules_of = rules_of
        self._rules: Rules | None = None
        self._ledger = Ledger(Axes())
        self._is_away = False
        self._nodes_away: tuple[str, ...] = ()
        self._load = ev.ExternalLoadChanged(at_s=0.0, kept=NOTHING)

    def take(self, event: ev.Event | ev.AuditEvent) -> None:
        """Count the time until the event, and let it happen. Events come in their order in the
        journal."""
        if isinstance(event, ev.DaemonStarted):
            self._take_start(event)
            return
        if isinstance(event, _REPORTED):
            self._ledger.apply(event)
            return
        self._go_to(event.at_s)
        match event:
            case ev.JobEvent() | ev.ArraySubmitted():
                self._take_change(event)
            case ev.DaemonStopped():
                self._set_away(everywhere=True)
            case ev.LaunchersAway():
                self._set_away(everywhere=event.everywhere, nodes=event.nodes)
            case ev.Configured():
                self._adopt(event.rules)
            case ev.ExternalLoadChanged():
                self._load = event
                self._tell_obstacles()
            case ev.Drained() | ev.IdsRaised():
                self._ledger.apply(event)
                self._tell_obstacles()

    def advance(self, at_ms: int) -> None:
        """Count the time until then; for whoever divides the time."""
        self.account.advance(at_ms)

    def _go_to(self, at_s: float) -> None:
        self.advance(round(at_s * 1000))

    def _take_start(self, event: ev.DaemonStarted) -> None:
        if event.away_since_s is not None:
            # After a kill, no record says since when there was no daemon. The last event may have
            # been one whose time a launcher has told.
            self._go_to(max(event.away_since_s, self.account.now_ms / 1000))
            self._set_away(everywhere=True)
        self._go_to(event.at_s)
        self._is_away, self._nodes_away = False, ()
        self._adopt(event.rules)

    def _set_away(self, *, everywhere: bool, nodes: tuple[str, ...] = ()) -> None:
        self._is_away, self._nodes_away = everywhere, nodes
        self._tell_obstacles()

    def _adopt(self, digest: str) -> None:
        rules = self.rules_of(digest).also_for(spec.demand for spec in self._ledger.specs())
        if rules.axes != self._ledger.axes:
            self._ledger = self._ledger.with_axes(rules.axes)
        self._rules = rules
        self._ledger.queues.changed.clear()
        self.account.adopt(rules.shares)
        for leaf in sorted({*self._ledger.queues, *self._ledger.used}):
            self._tell(leaf)
        self._tell_obstacles()

    def _take_change(self, event: ev.JobEvent | ev.ArraySubmitted) -> None:
        before = (
            None if isinstance(event, ev.ArraySubmitted) else self._ledger.find_common(event.job_id)
        )
        leaf = "" if before is None else before.spec.leaf
        if isinstance(event, ev.Admitted) and before is not None and self._rules is not None:
            demand = tuple(self._ledger.axes.vector(before.spec.demand))
            self.account.count_start(leaf, demand, event.why, event.job_id)
        used = self._ledger.used.get(leaf)
        self._ledger.apply(event)
        touched = {*self._ledger.queues.changed}
        self._ledger.queues.changed.clear()
        if self._ledger.used.get(leaf) is not used:
            touched.add(leaf)
        if self._rules is not None:
            for leaf in sorted(touched):
                self._tell(leaf)

    def _tell(self, leaf: str) -> None:
        """Tell the account of what the leaf waits for and holds."""
        queue = self._ledger.queues.get(leaf)
        demands: list[Vector] = []
        if queue is not None:
            first = min(queue, key=lambda demand: queue[demand].first)
            demands = [tuple(each) for each in (first, *queue)]
        used = self._ledger.used.get(leaf)
        self.account.put(leaf, demands=tuple(dict.fromkeys(demands)), used=used)

    def _tell_obstacles(self) -> None:
        if self._rules is None:
            return
        drained = self._rules.capacity if self._ledger.draining else NOTHING
        away = self._rules.capacity if self._is_away else NOTHING
        amounts = {
            Obstacle.AWAY: self._sum([away, *self._of_nodes(self._nodes_away)]),
            Obstacle.DRAINED: self._sum([drained, *self._of_nodes(self._ledger.drains)]),
            Obstacle.OUTSIDE: self._sum([self._load.kept, *self._of_others_jobs()]),
        }
        for obstacle, kept in amounts.items():
            self.account.keep_from_jobs(obstacle, kept)

    def _of_others_jobs(self) -> list[Resources]:
        """Return what others' jobs have of the nodes that are open, of each at most what it has."""
        assert self._rules is not None
        closed = {*self._nodes_away, *self._ledger.drains}
        used = {name: each for name, each in self._load.elsewhere if name not in closed}
        return [
            NOTHING.with_amounts(
                {
                    axis: min(amount, used[node.name].amount(axis))
                    for axis, amount in node.capacity.amounts.items()
                }
            )
            for node in self._rules.axes.nodes
            if node.name in used
        ]

    def _of_nodes(self, names: Iterable[str]) -> list[Resources]:
        assert self._rules is not None
        return [node.capacity for node in self._rules.axes.nodes if node.name in names]

    def _sum(self, amounts: Iterable[Resources]) -> Vector:
        total = self._ledger.nothing
        for each in amounts:
            total = plus(total, tuple(self._ledger.axes.vector(each)))
        return total
