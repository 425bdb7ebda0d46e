"""The policies that drfd's own is compared with: first come first served, EASY backfilling, and
orders of siblings in the tree.

All of them work on a `BaselinePass`, which records what a pass has given out so far.

The tree policies compare siblings by a key of each node, without min-satisfaction: at every level
the child with the least key is served, whatever is below it (`TreeOrder`). Ties go to the node with
less decayed usage, then to the job submitted first, then to the name, as under drfd's own policy.

`yarn` follows Hadoop's fair scheduler with its policy "drf": a queue is needy while it holds less
of its dominant resource than its minimum share. Needy ones come first, by what they hold over their
minimum shares; the others by their shares of the cluster over their weights; each compares its
resources in its own order of dominance, the largest first. Every queue has a key, and keys are
ordered as tuples are: so the order is total, and cannot change while somebody sorts by it (both
have been bugs of comparators like this one).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction
from heapq import heappop, heappush
from math import lcm
from operator import itemgetter
from typing import Any, NamedTuple

from drfd.core.amounts.node_room import NodeRoom
from drfd.core.amounts.vectors import Vector, fits, minus, placed
from drfd.core.fairness.entitlement import ONE, ZERO, Shares
from drfd.core.fairness.priority_tree import NEVER, IndexedHeap
from drfd.core.fairness.share_tree import TOP, ShareTree, parent_of, path_up
from drfd.core.ledger.queue import Entry, Line
from drfd.core.model.events import StartReason
from drfd.core.scheduling.backfill import Backfill, Reservation
from drfd.core.scheduling.plan import PassInput, Plan

#: A waiting job: its entry in its leaf's queue, and its demand.
Head = tuple[Entry, Vector]


class BaselinePass:
    def __init__(self, pass_input: PassInput) -> None:
        tables = pass_input.wait_index.tables
        self.queues = pass_input.wait_index.open_queues()
        self.free = pass_input.free
        self._shares = tables.shares
        self.share_tree: ShareTree = tables.shares.share_tree(tables.used, self.queues)
        #: The nodes that have used up their quota, which come after the others.
        self.share_tree.last = pass_input.wait_index.beyond
        #: The admitted jobs with what they hold, in order.
        self.admitted: dict[int, Vector] = {}
        #: The rule by which a job starts, for each that does not start by its own turn.
        self.reasons: dict[int, StartReason] = {}
        #: Jobs that hold resources, or have been admitted, by node.
        self.count: dict[str, int] = {}
        for leaf, number in pass_input.options.running.items():
            self._add(leaf, number)
        self._most = tables.shares.capacity
        #: What the nodes on which jobs start have in all, if there are others.
        self._open: Vector | None = None
        if isinstance(pass_input.free, NodeRoom) and pass_input.free.closed:
            self._open = pass_input.free.without_jobs()
        #: The number of admitted jobs of each demand, by leaf.
        self._passed: dict[str, Counter[Vector]] = {}
        #: The jobs admitted before earlier ones of their queue.
        self._early: set[int] = set()
        self._pass_context = pass_input.pass_context

    def heads(self, leaf: str) -> list[Head]:
        """Return the first waiting job of each demand."""
        groups = self.queues[leaf].groups
        passed = self._passed.get(leaf)
        if passed is None:
            return [(entries.first, demand) for demand, entries in groups.items()]
        return [
            (entries[at], demand)
            for demand, entries in groups.items()
            if (at := self._past(entries, passed.get(demand, 0))) < len(entries)
        ]

    def _past(self, entries: Line, at: int) -> int:
        """Return the index, from `at` on, of the first job not admitted out of turn."""
        while self._early and at < len(entries) and entries[at][1] in self._early:
            at += 1
        return at

    def head(self, leaf: str) -> Head | None:
        """Return the first job of the leaf that the whole machine has room for, or None. A
        change of the configuration may leave larger ones in the queue."""
        return self._first_within(leaf, self._most)

    def allowed_head(self, leaf: str) -> Head | None:
        """Return the first job of the leaf that the whole machine and the leaf's limits have room
        for, or None. The limits may be smaller than a job for some hours."""
        return self._first_within(leaf, self._shares.most(leaf, self._most))

    def _first_within(self, leaf: str, most: Vector) -> Head | None:
        heads = self.heads(leaf)
        if self._open is not None:
            # Nobody need wait behind a job of a node on which nothing starts.
            heads = [head for head in heads if fits(head[1], self._open)]
        first = min(heads, default=None)
        if first is None or fits(first[1], most):
            return first
        return min((head for head in heads if fits(head[1], most)), default=None)

    def first_fit(self, leaf: str) -> Head | None:
        """Return the first job of the leaf for which there is room, or None."""
        headroom = self.headroom(leaf)
        return min((head for head in self.heads(leaf) if fits(head[1], headroom)), default=None)

    def headroom(self, leaf: str) -> Vector:
        """Return what is free within the limits of the leaf and of the pools that it is in."""
        return self.share_tree.headroom(leaf, self.free)

    def fits_free(self, demand: Vector) -> bool:
        """Return whether there is room, apart from limits."""
        return fits(demand, self.free)

    def admit(self, leaf: str, head: Head) -> None:
        (_, job_id), demand = head
        held = placed(demand, self.free)
        self.admitted[job_id] = held
        self.free = minus(self.free, held)
        self.share_tree.hold(leaf, demand)
        self._add(leaf, 1)
        self._passed.setdefault(leaf, Counter())[demand] += 1

    def resume_suspended(self) -> None:
        """Resume suspended jobs first: others may wait for the memory that these keep."""
        waiting = {} if self._pass_context is None else self._pass_context.suspended
        for job_id, (leaf, demand) in sorted(waiting.items()):
            if fits(demand, self.headroom(leaf)):
                self.admit(leaf, ((0, job_id), demand))
                self._passed[leaf][demand] -= 1
                self._early.add(job_id)

    def plan(self, order: list[str], reservations: tuple[Reservation, ...] = ()) -> Plan:
        return Plan(
            admitted=list(self.admitted),
            held=self.admitted,
            reasons=self.reasons,
            free=self.free,
            order=order,
            reservations=reservations,
            share_tree=self.share_tree,
        )

    def _add(self, leaf: str, number: int) -> None:
        for path in path_up(leaf):
            self.count[path] = self.count.get(path, 0) + number


#: Returns the job of a leaf that would be next.
Choose = Callable[[str], Head | None]


def fifo(pass_input: PassInput) -> Plan:
    """Start jobs in the order of submission, up to the first that does not fit."""
    baseline = BaselinePass(pass_input)
    _serve_until_blocked(baseline)
    return baseline.plan(_order(baseline))


def easy(pass_input: PassInput) -> Plan:
    """Start jobs in the order of submission, with one reservation: the first job that does not fit
    starts when enough of the running ones have ended; until then others may start that will have
    ended by then, or that leave it enough (EASY; Lifka 1995).

    Of a leaf's jobs with one demand, only the first is considered. Without a context the ends of
    jobs are unknown, and the policy is `fifo`.
    """
    baseline = BaselinePass(pass_input)
    blocked = _serve_until_blocked(baseline)
    if blocked is None or pass_input.pass_context is None:
        return baseline.plan(_order(baseline))
    leaf, ((_, job_id), demand) = blocked
    backfill = Backfill(pass_input.pass_context)
    if backfill.reserve(job_id, leaf, demand, free=baseline.free, admitted=baseline.admitted):
        _backfill(baseline, backfill)
    return baseline.plan(_order(baseline), tuple(backfill.reservations))


def _serve_until_blocked(baseline: BaselinePass) -> tuple[str, Head] | None:
    """Start jobs in order, and return the leaf and the job that no later one may pass, or None."""
    baseline.resume_suspended()
    line = _line(baseline, baseline.allowed_head)
    while line:
        *_, leaf = heappop(line)
        head = baseline.allowed_head(leaf)
        assert head is not None
        if fits(head[1], baseline.headroom(leaf)):
            baseline.admit(leaf, head)
            _push(baseline, line, leaf, baseline.allowed_head(leaf))
        elif not baseline.fits_free(head[1]):
            return leaf, head
    return None


#: (whether the leaf comes after the others, its next job, the leaf)
_Turn = tuple[bool, int, str]


def _line(baseline: BaselinePass, choose: Choose) -> list[_Turn]:
    line: list[_Turn] = []
    for leaf in baseline.queues:
        _push(baseline, line, leaf, choose(leaf))
    return line


def _push(baseline: BaselinePass, line: list[_Turn], leaf: str, head: Head | None) -> None:
    if head is not None:
        heappush(line, (baseline.share_tree.is_last(leaf), head[0][1], leaf))


def _order(baseline: BaselinePass) -> list[str]:
    return [leaf for *_, leaf in sorted(_line(baseline, baseline.head))]


def _backfill(baseline: BaselinePass, backfill: Backfill) -> None:
    """Start jobs that do not delay the reservation."""

    def choose(leaf: str) -> Head | None:
        headroom = baseline.headroom(leaf)
        able = (
            (entry, demand)
            for entry, demand in baseline.heads(leaf)
            if fits(demand, headroom)
            and not backfill.is_reserved(entry[1])
            and backfill.allows(demand, entry[1], baseline.free)
        )
        return min(able, default=None)

    line = _line(baseline, choose)
    while line:
        _, job_id, leaf = heappop(line)
        head = choose(leaf)
        # There is less room than when the leaf was pushed: another of its jobs may be next.
        if head is not None and head[0][1] == job_id:
            baseline.admit(leaf, head)
            baseline.reasons[job_id] = StartReason.BACKFILL
            backfill.admit(baseline.admitted[job_id], job_id)
            head = choose(leaf)
        _push(baseline, line, leaf, head)


#: (0 for a needy queue or 1, then the quotients to compare); a quotient is (0, value), or (1, 0) if
#: its divisor is 0.
YarnKey = tuple[int, tuple[tuple[int, Fraction], ...]]


def yarn_key(
    used: Vector, capacity: Vector, weights: Shares | None = None, min_share: Vector | None = None
) -> YarnKey:
    """Return the key of a queue; the least is served first."""
    heavy = weights or (ONE,) * len(used)
    shares = [
        Fraction(amount, top) / weight if top else ZERO
        for amount, top, weight in zip(used, capacity, heavy, strict=True)
    ]
    # If shares are equal, the first resource, which is the CPU, is the dominant one.
    order = sorted(range(len(used)), key=lambda axis: (-shares[axis], axis))
    least = min_share or (0,) * len(used)
    if used[order[0]] < least[order[0]]:
        return 0, tuple(_over(used[axis], least[axis]) for axis in order)
    return 1, tuple((0, shares[axis]) for axis in order)


def _over(amount: int, least: int) -> tuple[int, Fraction]:
    return (0, Fraction(amount, least)) if least else (1, ZERO)


#: Returns the key of a node by its present holdings. Keys order siblings totally.
Key = Callable[[str], Any]


class _SiblingKey(NamedTuple):
    is_last: bool
    key: Any
    past_usage: float
    #: The next job.
    job_id: int
    path: str


class TreeOrder:
    """The leaves that wait, in the order of service by a key of each node."""

    def __init__(self, baseline: BaselinePass, key: Key, past_usage: Mapping[str, float]) -> None:
        self._baseline, self._key, self._past_usage = baseline, key, past_usage
        self._build()

    def least(self) -> str | None:
        """Return the leaf that is served next, or None if no leaf waits."""
        path = TOP
        while path not in self._baseline.queues:
            least = self._children[path].least()
            if least is None:
                return None
            path = least.path
        return path

    def drop(self, leaf: str) -> None:
        """Remove the leaf: it is not served any more."""
        self._set(leaf, None)
        self._lift(leaf)

    def refresh(self, leaf: str) -> None:
        """Update the leaf, which holds more now and has another first job."""
        head = self._baseline.head(leaf)
        self._set(leaf, None if head is None else head[0][1])
        self._lift(leaf)

    def order(self) -> list[str]:
        """Empty the order: return the leaves that wait, in the order of service if all fitted."""
        self._build()
        found = []
        while leaf := self.least():
            found.append(leaf)
            self.drop(leaf)
        return found

    def _build(self) -> None:
        #: The keys of the children of each node.
        self._children: defaultdict[str, IndexedHeap[_SiblingKey]] = defaultdict(IndexedHeap)
        for leaf in self._baseline.queues:
            self.refresh(leaf)

    def _lift(self, leaf: str) -> None:
        for path in path_up(leaf)[1:]:
            least = self._children[path].least()
            self._set(path, None if least is None else least.job_id)

    def _set(self, path: str, job_id: int | None) -> None:
        siblings = self._children[parent_of(path)]
        if job_id is None:
            siblings.drop(path)
        else:
            past_usage = self._past_usage.get(path, NEVER)
            is_last = path in self._baseline.share_tree.last
            siblings.put(_SiblingKey(is_last, self._key(path), past_usage, job_id, path))


def algorithm1(pass_input: PassInput) -> Plan:
    """Follow algorithm 1 of the DRF paper literally: serve the least dominant share, and stop
    when its next job does not fit."""
    baseline = BaselinePass(pass_input)
    tree_order = _order_by_parts(baseline, pass_input, max)
    while leaf := tree_order.least():
        head = baseline.head(leaf)
        assert head is not None
        if not baseline.fits_free(head[1]):
            break
        if fits(head[1], baseline.headroom(leaf)):
            baseline.admit(leaf, head)
            tree_order.refresh(leaf)
        else:
            # A limit of its own keeps the job back, which does not stop the others.
            tree_order.drop(leaf)
    return baseline.plan(tree_order.order())


def hdrf_naive(pass_input: PassInput) -> Plan:
    """Compare siblings by their own dominant shares, so that a child whose sibling is rich in
    another resource starves."""
    baseline = BaselinePass(pass_input)
    return _served(baseline, _order_by_parts(baseline, pass_input, max))


def asset(pass_input: PassInput) -> Plan:
    """Serve the least sum of shares of all resources: asset fairness (DRF paper, section 5.1)."""
    baseline = BaselinePass(pass_input)
    return _served(baseline, _order_by_parts(baseline, pass_input, sum))


def cpu(pass_input: PassInput) -> Plan:
    """Apply max-min fairness to the first resource alone."""
    baseline = BaselinePass(pass_input)
    return _served(baseline, _order_by_parts(baseline, pass_input, itemgetter(0)))


def slots(pass_input: PassInput) -> Plan:
    """Apply max-min fairness to slots, one for each job, whatever it needs."""
    assert pass_input.options.slots is not None, "how many slots?"
    baseline = BaselinePass(pass_input)
    factors = _factors(
        {path: (baseline.share_tree.entitlement(path),) for path in _nodes(baseline)}, (1,)
    )

    def key(path: str) -> int:
        return baseline.count.get(path, 0) * factors[path][0]

    left = pass_input.options.slots - sum(pass_input.options.running.values())
    return _served(baseline, TreeOrder(baseline, key, pass_input.wait_index.past_usage), most=left)


def yarn(pass_input: PassInput) -> Plan:
    """Follow the fair scheduler of Hadoop with its policy "drf"; guarantees are minimum shares.
    Decayed usage plays no part: of equal queues the one that waits longest is served."""
    baseline = BaselinePass(pass_input)

    def key(path: str) -> YarnKey:
        rule = pass_input.wait_index.shares.rule(path)
        held = baseline.share_tree.used[path]
        return yarn_key(held, pass_input.wait_index.shares.capacity, rule.weights, rule.guarantee)

    return _served(baseline, TreeOrder(baseline, key, {}))


def _served(baseline: BaselinePass, tree_order: TreeOrder, *, most: int | None = None) -> Plan:
    """Start jobs, at most `most`. A leaf in which no job fits is passed over."""
    while (most is None or len(baseline.admitted) < most) and (leaf := tree_order.least()):
        head = baseline.first_fit(leaf)
        if head is None:
            tree_order.drop(leaf)
        else:
            baseline.admit(leaf, head)
            tree_order.refresh(leaf)
    return baseline.plan(tree_order.order())


def _order_by_parts(
    baseline: BaselinePass, pass_input: PassInput, measure: Callable[[list[int]], int]
) -> TreeOrder:
    """Return the order of the tree by the quotients of a node's holdings and its entitlements,
    measured as one number."""
    entitled = {path: baseline.share_tree.entitled(path) for path in _nodes(baseline)}
    factors = _factors(entitled, pass_input.wait_index.shares.capacity)
    used = baseline.share_tree.used

    def key(path: str) -> int:
        pairs = zip(used[path], factors[path], strict=True)
        return measure([amount * factor for amount, factor in pairs])

    return TreeOrder(baseline, key, pass_input.wait_index.past_usage)


def _nodes(baseline: BaselinePass) -> set[str]:
    return {path for leaf in baseline.queues for path in path_up(leaf)}


def _factors(entitled: Mapping[str, Shares], capacity: Vector) -> dict[str, tuple[int, ...]]:
    """Return the integers by which amounts are multiplied to compare the holdings of nodes with
    their entitlements, all in one unit, so that nothing is rounded."""
    kinds: dict[Shares, list[Fraction]] = {}
    for parts in entitled.values():
        if parts not in kinds:
            pairs = zip(parts, capacity, strict=True)
            # Nobody holds a resource that the machine lacks or the node is not entitled to.
            kinds[parts] = [1 / (part * top) if part and top else ZERO for part, top in pairs]
    unit = lcm(*(each.denominator for row in kinds.values() for each in row))
    whole = {parts: tuple(int(each * unit) for each in row) for parts, row in kinds.items()}
    return {path: whole[parts] for path, parts in entitled.items()}
