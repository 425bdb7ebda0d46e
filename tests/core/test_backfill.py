"""Reservations for big jobs (docs/fairness.md 1.3, 1.6): random streams under a virtual clock.

In trees each pass agrees with the slow pass of `oracle.py`. On plain machines, on several nodes and
on shared GPUs nothing is given that is not there, reserved starts do not slip, nothing idles
without reason, and no job starves.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from operator import itemgetter
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as some

from core.oracle import (
    Ask,
    Debt,
    Kept,
    Pass,
    Rule,
    Times,
    Tree,
    added,
    begin,
    line,
    slow_pass,
    within,
)
from core.worlds import (
    LEAVES,
    all_reserved,
    fair_share,
    fits_now,
    guard_of,
    plan,
    queues_of,
    reserved,
    trees,
)
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.share_tree import FairShare
from drfd.core.ledger.queue import Entry
from drfd.core.model.job import ROOT
from drfd.core.model.machine import (
    Allocation,
    FreeResources,
    SharedInstances,
    Vector,
    fits,
    minus,
    not_negative,
    plus,
)
from drfd.core.scheduling.backfill import PassContext, Reservation, allows, shadow
from drfd.core.scheduling.policies import Plan
from seeds import examples


class Patience(NamedTuple):
    """How long big jobs wait before something is reserved, and of how many at a time."""

    patience_s: int
    drain_after_s: int
    depth: int = 1
    #: The part of what a reserved job needs up to which others pass it.
    passes: Fraction = Fraction(0)
    #: The time for which a leaf may owe its share.
    allowance_s: int = 10**6


class Arrival(NamedTuple):
    gap_s: int
    leaf: str
    demand: Vector
    run_s: int
    #: The estimate of `run_s`.
    guess_s: int
    priority: int = 0


@dataclass(kw_only=True)
class ClockContext(PassContext):
    clock: "Clock"

    def since_s(self, job_id: int) -> float:
        return self.clock.came_s[job_id]

    def length_s(self, job_id: int) -> float:
        return self.clock.asks[job_id].guess_s

    def entry(self, job_id: int) -> Entry | None:
        is_waiting = job_id in self.clock.waiting
        return (-self.clock.asks[job_id].priority, job_id) if is_waiting else None

    def leaf(self, job_id: int) -> str:
        return self.clock.asks[job_id].leaf


class Clock(ABC):
    """Runs a stream with real passes, in whole seconds from 0. Whoever knows the machine says what
    is free."""

    def __init__(self, arrivals: Sequence[Arrival], patience: Patience) -> None:
        self._arrivals, self._patience = arrivals, patience
        self.now_s = 0
        #: All that ever came, by id from 1, and when.
        self.asks: dict[int, Arrival] = {}
        self.came_s: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.started_s: dict[int, int] = {}
        self._ended: set[int] = set()
        #: The last pass.
        self.last: Plan | None = None

    def passes(self) -> Iterator[Plan]:
        """One pass at each arrival, each end, and when somebody's patience is over; another at once
        after one that is cut."""
        due: list[tuple[int, Arrival]] = []
        at_s = 0
        for arrival in self._arrivals:
            at_s += arrival.gap_s
            due.append((at_s, arrival))
        while True:
            moments = [self.end_s(job_id) for job_id in self.running]
            moments += [at_s for at_s, _ in due[:1]]
            for job_id in self.waiting:
                for wait_s in (self._patience.patience_s, self._patience.drain_after_s + 1):
                    if self.came_s[job_id] + wait_s > self.now_s:
                        moments.append(self.came_s[job_id] + wait_s)
            if self.last is not None and self.last.is_cut:
                moments = [self.now_s]
            if not moments:
                return
            self.now_s = min(moments)
            self._ended |= {job_id for job_id in self.running if self.end_s(job_id) <= self.now_s}
            while due and due[0][0] <= self.now_s:
                job_id = len(self.asks) + 1
                self.asks[job_id], self.came_s[job_id] = due.pop(0)[1], self.now_s
                self.waiting.add(job_id)
            self.last = self.make_pass()
            for job_id in self.last.admitted:
                self.waiting.remove(job_id)
                self.started_s[job_id] = self.now_s
            yield self.last

    @property
    def running(self) -> list[int]:
        return [job_id for job_id in self.started_s if job_id not in self._ended]

    def end_s(self, job_id: int) -> int:
        return self.started_s[job_id] + self.asks[job_id].run_s

    def guess_s(self, job_id: int) -> int:
        """When a running job will have ended, as estimated: doubled when it outlives that."""
        length_s = self.asks[job_id].guess_s
        while self.started_s[job_id] + length_s <= self.now_s:
            length_s *= 2
        return self.started_s[job_id] + length_s

    def queued(self) -> dict[int, Ask]:
        return {
            job_id: Ask(ask.leaf, ask.demand, ask.priority, self.came_s[job_id], ask.guess_s)
            for job_id, ask in self.asks.items()
            if job_id in self.waiting
        }

    def context(self, held: Mapping[int, Allocation]) -> PassContext:
        patience_s, drain_after_s, depth, passes, allowance_s = self._patience
        return ClockContext(
            clock=self,
            now_s=self.now_s,
            reserving=ReservationSettings(
                delay_s=patience_s,
                drain_after_s=drain_after_s,
                depth=depth,
                passes=passes,
                allowance_s=allowance_s,
            ),
            line=sorted(
                [(self.guess_s(each), each, held[each]) for each in held], key=itemgetter(0, 1)
            ),
            before=all_reserved(self.last),
            debts={} if self.last is None else self.last.debts,
        )

    @abstractmethod
    def make_pass(self) -> Plan: ...


# -- in trees --------------------------------------------------------------------------------------


class TreeStream(NamedTuple):
    tree: Tree
    arrivals: Sequence[Arrival]
    patience: Patience


class View(NamedTuple):
    """What there is before a pass."""

    waiting: dict[int, Ask]
    held: dict[str, Vector]
    #: When the running jobs will have ended, as estimated, their leaves, and what they hold.
    ends: list[tuple[float, str, Vector]]


class TreeMachine(Clock):
    def __init__(self, stream: TreeStream) -> None:
        super().__init__(stream.arrivals, stream.patience)
        self.tree = stream.tree
        #: What the last pass had to go by.
        self.view: View | None = None

    def look(self) -> View:
        held: dict[str, Vector] = {}
        for job_id in self.running:
            ask = self.asks[job_id]
            held[ask.leaf] = added(held.get(ask.leaf, (0,) * len(ask.demand)), ask.demand)
        ends = [
            (self.guess_s(each), self.asks[each].leaf, self.asks[each].demand)
            for each in self.running
        ]
        return View(self.queued(), held, ends)

    def state(self) -> Pass:
        """As it is now, for its questions."""
        now = self.look()
        return begin(self.tree, now.waiting, now.held)

    def make_pass(self) -> Plan:
        self.view = self.look()
        return plan(
            queues=queues_of(self.view.waiting),
            used=self.view.held,
            free=self.state().free,
            shares=fair_share(self.tree),
            pass_context=self.context(
                {each: Allocation(self.asks[each].demand) for each in self.running}
            ),
        )


@some.composite
def tree_streams(
    draw: some.DrawFn, *, bounds: bool = False, exact: bool = False, owing: bool = False
) -> TreeStream:
    """`bounds`: with limits and guarantees. `exact`: estimates are right. `owing`: reservations may
    keep so little idle that leaves get no further one."""
    tree = draw(trees(bounds=bounds, axes=3, open_axes=False))
    small = some.tuples(*(some.integers(0, top // 3) for top in tree.capacity))
    large = some.tuples(*(some.integers(top // 2, top) for top in tree.capacity))
    demands = draw(some.lists(small | large, min_size=1, max_size=4, unique=True))
    seconds = some.integers(1, 20)
    kinds = []
    for demand in demands:
        run_s = draw(seconds)
        kinds.append((demand, run_s, run_s if exact else draw(seconds)))
    arrival = some.builds(
        lambda gap_s, leaf, kind, priority: Arrival(gap_s, leaf, *kind, priority),
        some.sampled_from([0, 0, 1, 3]),
        some.sampled_from(draw(some.lists(some.sampled_from(LEAVES), min_size=1, max_size=5))),
        some.sampled_from(kinds),
        some.sampled_from([0, 0, 0, 1]),
    )
    count = draw(some.integers(2, 20))
    arrivals = draw(some.lists(arrival, min_size=count, max_size=count))
    passes = Fraction(0) if exact else draw(some.sampled_from([Fraction(0), Fraction(2, 5)]))
    patience = Patience(draw(some.integers(0, 6)), draw(some.integers(5, 40)), 1, passes)
    if owing:
        patience = patience._replace(allowance_s=draw(some.sampled_from([0, 2, 20])))
    return TreeStream(tree, arrivals, patience)


#: Of a pool that may hold ten cores, one user's jobs would always leave too little for the other's.
BELOW_A_LIMIT = TreeStream(
    Tree((16,), {"root.P": Rule(limit=(10,))}),
    [
        *[Arrival(3, "root.P.c", (4,), 6, 6)] * 2,
        Arrival(1, "root.P.d", (8,), 6, 6),
        *[Arrival(2, "root.P.c", (4,), 6, 6)] * 10,
    ],
    Patience(3, 4),
)
#: A job that its pool's limit kept back waits for another one to leave the machine, and a short one
#: of the pool that came first in the pass fits before that.
OUT_OF_A_LIMIT = TreeStream(
    Tree((16, 10), {"root.P": Rule(limit=(6, 10))}),
    [
        Arrival(0, "root.b", (0, 8), 100, 100),
        Arrival(0, "root.P.d", (1, 0), 100, 100),
        Arrival(0, "root.P.c", (5, 0), 10, 50),
        Arrival(0, "root.P.d", (3, 5), 1, 1),
        Arrival(0, "root.P.c", (3, 0), 20, 20),
    ],
    Patience(3, 40),
)


#: One user's line of short jobs of the whole machine, and others that fit beside none of them.
LINE_OF_BIG_JOBS = TreeStream(
    Tree((12,), {"root.a": Rule((Fraction(1, 8),)), "root.b": Rule(limit=(6,))}),
    [
        *[Arrival(0, leaf, (1,), 400, 400) for leaf in ("root.b", "root.c")],
        *[Arrival(0, "root.b", (3,), 16, 16), Arrival(1, "root.c", (3,), 7, 7)] * 2,
        *[Arrival(0, "root.a", (10,), 1, 1)] * 3,
        *[Arrival(2, "root.b", (3,), 16, 16), Arrival(2, "root.c", (3,), 7, 7)] * 10,
    ],
    Patience(20, 40, allowance_s=2),
)
#: The same before many users, who never wait for long.
LINE_BEFORE_MANY = TreeStream(
    LINE_OF_BIG_JOBS.tree,
    [
        *[Arrival(0, leaf, (1,), 400, 400) for leaf in ("root.b", "root.P.c")],
        *[Arrival(2, leaf, *((10,), 1, 1) if leaf == "root.a" else ((2,), 9, 9)) for leaf in LEAVES]
        * 8,
    ],
    Patience(9, 1000, allowance_s=2),
)


@examples(100, quick=1)
@given(tree_streams(bounds=True, owing=True))
@example(BELOW_A_LIMIT)
@example(LINE_OF_BIG_JOBS)
@example(OUT_OF_A_LIMIT)
def test_each_pass_is_what_the_slow_pass_says(stream):
    machine = TreeMachine(stream)
    kept: Sequence[Kept] = ()
    debts: Mapping[str, Debt] = {}
    before_s = 0
    for done in machine.passes():
        assert machine.view is not None
        waiting, held, ends = machine.view
        times = Times(
            machine.now_s, *stream.patience[:2], ends, kept, stream.patience.passes,
            debts, machine.now_s - before_s, stream.patience.allowance_s,
        )  # fmt: skip
        slow = slow_pass(stream.tree, waiting, held, times, done.admitted)
        assert done.admitted[: slow.sure] == slow.launches[: slow.sure]
        assume(slow.sure is None)
        kept = slow.kept
        assert kept == [
            Kept(
                each.job_id, each.within, each.start_s,
                {path: extra.sums for path, extra in each.extras.items()}, each.is_drain,
                each.due_s,
            )
            for each in all_reserved(done)
        ]  # fmt: skip
        assert guard_of(done) in (None, slow.starvation_guard)
        debts, before_s = slow.debts(), machine.now_s
        assert debts == {
            leaf: Debt(each.owed // 1000, each.idle, each.entitled)
            for leaf, each in done.debts.items()
        }


@examples(100, quick=2)
@given(tree_streams(owing=True))
@example(LINE_BEFORE_MANY)
def test_what_reservations_of_a_leaf_keep_idle_is_bounded_by_its_share(stream):
    """In any time, by what it is promised in this time and its allowance, and by what a single
    reservation has cost."""
    machine = TreeMachine(stream)
    #: By leaf: the times of passes with all that was kept idle until then, and the most that it was
    #: promised; and what each reservation has cost.
    idle_until, promised = defaultdict[str, list[tuple[int, int]]](list), Counter[str]()
    idle, costs = Counter[str](), Counter[int]()
    last: Plan | None = None
    before_s = 0
    for done in machine.passes():
        for leaf, debt in last.debts.items() if last is not None else ():
            kept = reserved(last)
            cost = debt.idle * (machine.now_s - before_s)
            if cost:
                assert kept is not None and kept.leaf == leaf
                costs[kept.job_id] += cost
            idle[leaf] += cost
            promised[leaf] = max(promised[leaf], debt.entitled)
            idle_until[leaf].append((machine.now_s, idle[leaf]))
        last, before_s = done, machine.now_s
    for leaf, found in idle_until.items():
        own = [cost for job_id, cost in costs.items() if machine.asks[job_id].leaf == leaf]
        dearest = max(own, default=0)
        for (from_s, before), (until_s, after) in combinations(found, 2):
            allowed_s = until_s - from_s + stream.patience.allowance_s
            assert after - before <= promised[leaf] * allowed_s + dearest


@examples(100, quick=5)
@given(tree_streams(bounds=True, exact=True))
def test_with_exact_estimates_a_big_job_starts_by_the_time_that_it_was_first_given(stream):
    """On the machine. Who gets a place only within a limit may find the machine full."""
    machine = TreeMachine(stream)
    promised_s: dict[int, float] = {}
    for done in machine.passes():
        kept = reserved(done)
        if kept is not None:
            promised_s.setdefault(kept.job_id, kept.start_s)
            # Nothing that starts beside it moves it further away.
            assert kept.start_s <= promised_s[kept.job_id]
    for job_id, at_s in promised_s.items():
        assert machine.started_s[job_id] <= at_s


@examples(100, quick=5)
@given(tree_streams(bounds=True))
@example(BELOW_A_LIMIT)
def test_with_bad_estimates_a_big_job_starts_within_its_bound(stream):
    """When it should have started by what it was told first, it is patient for a while; from the
    moment at which it drains, every job that then runs has to end at most. The same below a limit,
    where one job that comes first may have to end as well."""
    longest_s = max(arrival.run_s for arrival in stream.arrivals)
    bound_s = stream.patience.drain_after_s + 2 * longest_s
    machine = TreeMachine(stream)
    due_s: dict[int, float] = {}
    inner_s: dict[tuple[int, str], float] = {}
    drains_s: dict[int, int] = {}
    for done in machine.passes():
        state = machine.state()
        for each in all_reserved(done):
            first_s = inner_s.setdefault((each.job_id, each.within), each.start_s)
            if each.within in state.obstacles(each.job_id, beside=False):
                assert machine.now_s <= first_s + bound_s + longest_s
        kept = reserved(done)
        if kept is not None:
            due_s.setdefault(kept.job_id, kept.start_s)
            if kept.is_drain:
                last_s = max(machine.end_s(job_id) for job_id in machine.running)
                drains_s.setdefault(kept.job_id, last_s)
    for job_id, first_s in due_s.items():
        # It looks at the clock when somebody ends, if not before.
        assert machine.started_s[job_id] <= first_s + bound_s
    for job_id, last_s in drains_s.items():
        assert machine.started_s[job_id] <= last_s


@examples(100, quick=2)
@given(tree_streams(bounds=True))
def test_whoever_has_waited_long_enough_is_reserved_for_or_somebody_else_is(stream):
    """So there is always a next one, and in a stream that ends every job has started."""
    machine = TreeMachine(stream)
    for done in machine.passes():
        state = machine.state()
        for leaf in {ask.leaf for ask in state.waiting.values()}:
            head = state.jobs(leaf)[0]
            places = state.obstacles(head, beside=False)
            waited_s = machine.now_s - state.waiting[head].since_s
            if state.could_start(head) and places and waited_s >= stream.patience.patience_s:
                assert any(
                    each.within == places[0] or (each.job_id == head and places[0] in each.extras)
                    for each in all_reserved(done)
                )
    assert not any(state.could_start(job_id) for job_id in machine.waiting)


@examples(100, quick=4)
@given(tree_streams(bounds=True))
def test_a_reservation_stays_with_its_job_until_that_starts(stream):
    machine = TreeMachine(stream)
    before: int | None = None
    for done in machine.passes():
        kept = reserved(done)
        if before is not None and before in machine.waiting:
            assert kept is not None and kept.job_id == before
        before = kept.job_id if kept is not None else None


@examples(100, quick=4)
@given(tree_streams(bounds=True))
@example(OUT_OF_A_LIMIT)
def test_after_each_pass_nothing_waits_that_the_reservation_allows(stream):
    """What fits, within its limits, would hurt the reservation, or is behind the one job that does
    not fit and has waited too long, and longer than all others."""
    machine = TreeMachine(stream)
    for done in machine.passes():
        if done.is_cut:
            continue
        state = machine.state()
        assert done.free.sums == state.free
        assert all(amount >= 0 for amount in state.free)
        for job_id, ask in state.waiting.items():
            if not fits_now(state, job_id):
                continue
            head = state.jobs(ask.leaf)[0]
            if head == guard_of(done):
                waited_s = machine.now_s - state.waiting[head].since_s
                assert waited_s > stream.patience.drain_after_s
                assert state.obstacles(head, beside=False)
                continue
            assert any(
                hurts(state, each, path, job_id, machine.now_s)
                for each in all_reserved(done)
                for path in each.extras
            )


def hurts(state: Pass, kept: Reservation, path: str, job_id: int, now_s: float) -> bool:
    """Would the job, at this node, delay what is kept for another?"""
    ask, room = state.waiting[job_id], state.room(path)
    if kept.job_id == job_id or path not in ("root", *line(ask.leaf)) or room is None:
        return False
    if not kept.holds_back(ask.demand):
        return False
    left = [max(0, there - asked) for there, asked in zip(room, kept.demand, strict=True)]
    if kept.is_drain and not within(ask.demand, left):
        return True
    return now_s + ask.length_s > kept.start_s and not within(ask.demand, kept.extras[path].sums)


# -- on machines of other kinds --------------------------------------------------------------------

NOTHING = (0, 0)


class Stream(NamedTuple):
    #: What is free without jobs.
    room: FreeResources
    arrivals: Sequence[Arrival]
    patience: Patience


class Machine(Clock):
    def __init__(self, stream: Stream) -> None:
        super().__init__(stream.arrivals, stream.patience)
        self.room = stream.room
        #: What each job holds, or held, that has been started.
        self._held: dict[int, Allocation] = {}

    @property
    def held(self) -> dict[int, Allocation]:
        return {
            job_id: self._held.get(job_id, Allocation(self.asks[job_id].demand))
            for job_id in self.running
        }

    @property
    def free(self) -> FreeResources:
        free = self.room
        for each in self.held.values():
            free -= each
        return free

    def make_pass(self) -> Plan:
        used: dict[str, Vector] = {}
        for job_id, held in self.held.items():
            leaf = self.asks[job_id].leaf
            used[leaf] = plus(used.get(leaf, (0,) * len(held.sums)), held.sums)
        done = plan(
            queues=queues_of(self.queued()),
            used=used,
            free=self.free,
            shares=FairShare(self.room.sums, {}),
            pass_context=self.context(self.held),
        )
        self._held |= {job_id: start.held for job_id, start in done.starts.items()}
        return done


@some.composite
def streams(
    draw: some.DrawFn,
    room: FreeResources,
    demands: some.SearchStrategy[Vector],
    *,
    exact: bool = False,
) -> Stream:
    """`exact`: estimates are right. Of jobs of one user with the same demand a pass looks at the
    first, so that the same demand has the same estimate."""
    seconds = some.integers(1, 20)
    kinds = []
    for demand in draw(some.lists(demands, min_size=1, max_size=5, unique=True)):
        run_s = draw(seconds)
        kinds.append((demand, run_s, run_s if exact else draw(seconds)))
    arrival = some.builds(
        lambda gap_s, leaf, kind: Arrival(gap_s, leaf, *kind),
        some.sampled_from([0, 0, 1, 3]),
        some.sampled_from(["root.a", "root.b", "root.c"]),
        some.sampled_from(kinds),
    )
    depth = draw(some.sampled_from([1, 1, 2, 3]))
    patience = Patience(draw(some.integers(0, 6)), draw(some.integers(5, 40)), depth)
    return Stream(room, draw(some.lists(arrival, min_size=2, max_size=25)), patience)


class Kind(NamedTuple):
    """A kind of machine."""

    #: Random streams for it; True: with exact estimates.
    streams: Callable[[bool], some.SearchStrategy[Stream]]
    #: Has the machine a place for the job, now and beside each reservation?
    has_place: Callable[[Machine, int, Sequence[Reservation]], bool]
    #: The parts of an amount: itself, that of each node, or of each GPU.
    parts: Callable[[Allocation | FreeResources], Sequence[Vector]]


def plain_streams(exact: bool) -> some.SearchStrategy[Stream]:
    amounts = some.tuples(some.integers(0, 8), some.integers(0, 8))
    return streams(FreeResources((8, 8)), amounts, exact=exact)


def has_plain_place(machine: Machine, job_id: int, reservations: Sequence[Reservation]) -> bool:
    ask, free = machine.asks[job_id], machine.free
    end_s = machine.now_s + ask.guess_s
    beside = all(allows(each, ask.demand, end_s, free) for each in reservations)
    return free.fits(ask.demand) and beside


def node_room(*capacity: Vector) -> FreeResources:
    """Nodes without jobs."""
    nodes = {f"n{at}": each for at, each in enumerate(capacity)}
    return FreeResources(tuple(map(sum, zip(*capacity, strict=True))), nodes, nodes)


@some.composite
def node_streams(draw: some.DrawFn, exact: bool) -> Stream:
    """Demands of two resources, each of which fits on an empty node."""
    amounts = some.tuples(some.integers(1, 12), some.integers(0, 12))
    capacity = draw(some.lists(amounts, min_size=1, max_size=4))
    # Equal branches count as one or two, by what Hypothesis has in its cache.
    tops = dict.fromkeys(capacity)
    below = [some.tuples(*(some.integers(0, top) for top in each)) for each in tops]
    return draw(streams(node_room(*capacity), some.one_of(below), exact=exact))


def on_nodes(amount: Allocation | FreeResources, names: Sequence[str]) -> list[Vector]:
    return [amount.nodes.get(name, NOTHING) for name in names]


def has_node(machine: Machine, job_id: int, reservations: Sequence[Reservation]) -> bool:
    """Whether one node has enough free for the job, now and beside each reservation."""
    ask, free = machine.asks[job_id], machine.free
    names, end_s = list(free.nodes), machine.now_s + ask.guess_s
    rows = [on_nodes(free, names)]
    for each in reservations:
        if each.is_drain:
            pairs = zip(rows[0], on_nodes(each.held, names), strict=True)
            rows.append([not_negative(minus(there, kept)) for there, kept in pairs])
        if end_s > each.start_s:
            rows.append(on_nodes(each.extra, names))
    return any(
        all(fits(ask.demand, there) for there in of_node) for of_node in zip(*rows, strict=True)
    )


CORES, SIZE = 12, 8


def gpu_room(gpus: int) -> FreeResources:
    """A machine without jobs."""
    names = tuple(map(str, range(gpus)))
    shared = SharedInstances(axis=1, size=SIZE, names=names, places={})
    amounts = (CORES, gpus * SIZE)
    nodes = {"": amounts + (SIZE,) * gpus}
    return FreeResources(amounts, nodes, nodes, shared)


def gpu_streams(exact: bool) -> some.SearchStrategy[Stream]:
    """Demands of cores, and of a part of one GPU or of whole ones."""

    def of(gpus: int) -> some.SearchStrategy[Stream]:
        whole = some.integers(1, gpus).map(lambda count: count * SIZE)
        demands = some.tuples(some.integers(0, 6), some.integers(0, SIZE) | whole)
        return streams(gpu_room(gpus), demands, exact=exact)

    return some.integers(1, 4).flatmap(of)


def parts_of(amount: Allocation | FreeResources, count: int) -> Vector:
    return amount.nodes.get("", ())[len(amount.sums) :] or (0,) * count


def has_gpus(machine: Machine, job_id: int, reservations: Sequence[Reservation]) -> bool:
    """Whether GPUs suffice for the job that have enough free, now and beside each reservation."""
    ask, free = machine.asks[job_id], machine.free
    end_s, of_gpus = machine.now_s + ask.guess_s, parts_of(free, 0)
    count = len(of_gpus)
    cores, parts = [free.sums[0]], [of_gpus]
    for each in reservations:
        if each.is_drain:
            cores.append(max(0, free.sums[0] - each.held.sums[0]))
            kept = parts_of(each.held, count)
            parts.append(tuple([a - b for a, b in zip(of_gpus, kept, strict=True)]))
        if end_s > each.start_s:
            cores.append(each.extra.sums[0])
            parts.append(parts_of(each.extra, count))
    of_each = [min(column) for column in zip(*parts, strict=True)]
    asked, memory = ask.demand
    if asked and asked > min(cores):
        return False
    if memory < SIZE:
        return not memory or any(part >= memory for part in of_each)
    return sum(part >= SIZE for part in of_each) * SIZE >= memory


def parts_on_nodes(amount: Allocation | FreeResources) -> Sequence[Vector]:
    return [amount.sums, *amount.nodes.values()]


KINDS = {
    "plain": Kind(plain_streams, has_plain_place, parts_on_nodes),
    "nodes": Kind(node_streams, has_node, parts_on_nodes),
    "gpus": Kind(gpu_streams, has_gpus, parts_on_nodes),
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())

#: A drain needs the two GPUs that the first jobs have, and leaves the third one.
DRAIN = Stream(
    gpu_room(3),
    arrivals=[
        Arrival(0, "root.a", (0, memory), run_s, guess_s=1)
        for memory, run_s in [(5, 7)] * 3 + [(16, 8)] * 2 + [(5, 7)] * 2
    ],
    patience=Patience(0, 5),
)


#: Two big jobs are waiting, and one small part could be of a GPU that either of them needs.
BESIDE_TWO = Stream(
    gpu_room(4),
    arrivals=[
        Arrival(0, "root.a", (0, 24), run_s=1, guess_s=1),
        Arrival(0, "root.a", (0, 1), run_s=5, guess_s=9),
        Arrival(0, "root.b", (0, 8), run_s=5, guess_s=1),
        Arrival(1, "root.b", (0, 24), run_s=1, guess_s=1),
        Arrival(3, "root.a", (0, 1), run_s=5, guess_s=9),
    ],
    patience=Patience(0, 5, depth=2),
)


def assert_nothing_idles(kind: Kind, stream: Stream) -> None:
    """What waits has no place, would delay a reservation, or is behind the one job of its user
    that does not fit and has waited too long."""
    machine = Machine(stream)
    for done in machine.passes():
        assert machine.free == done.free
        for job_id in machine.waiting:
            others = [each for each in done.reservations if each.job_id != job_id]
            guard = guard_of(done)
            if guard is not None and machine.asks[guard].leaf == machine.asks[job_id].leaf:
                assert not kind.has_place(machine, guard, ())
            else:
                assert not kind.has_place(machine, job_id, others)
    assert machine.waiting == set()


def assert_nothing_is_given_twice(kind: Kind, stream: Stream) -> None:
    """Neither of what is free now, nor of what reservations leave."""
    machine = Machine(stream)
    for done in machine.passes():
        free = machine.free
        assert free == free.without()
        for amount in (free, *(each.extra for each in done.reservations)):
            assert all(min(part, default=0) >= 0 for part in kind.parts(amount))
        for held in machine.held.values():
            if held.nodes:
                assert [each[: len(held.sums)] for each in held.nodes.values()] == [held.sums]


@EACH_KIND
@examples(150, quick=3)
@given(data=some.data())
def test_nothing_idles_that_reservations_leave(kind, data):
    assert_nothing_idles(kind, data.draw(kind.streams(False)))


@EACH_KIND
@examples(150, quick=4)
@given(data=some.data())
def test_nothing_is_given_twice(kind, data):
    assert_nothing_is_given_twice(kind, data.draw(kind.streams(False)))


@pytest.mark.parametrize("stream", [DRAIN, BESIDE_TWO])
def test_what_reserved_gpus_need_is_left_to_them(stream):
    assert_nothing_idles(KINDS["gpus"], stream)
    assert_nothing_is_given_twice(KINDS["gpus"], stream)


@EACH_KIND
@examples(150, quick=4)
@given(data=some.data())
def test_with_exact_estimates_no_reserved_start_slips(kind, data):
    """Of those that were the first when they were made."""
    machine = Machine(data.draw(kind.streams(True)))
    promised_s: dict[int, float] = {}
    for done in machine.passes():
        for at, kept in enumerate(done.reservations):
            if at and kept.job_id not in promised_s:
                continue
            promised_s.setdefault(kept.job_id, kept.start_s)
            assert kept.start_s <= promised_s[kept.job_id]
    for job_id, at_s in promised_s.items():
        assert machine.started_s[job_id] <= at_s


@examples(150, quick=10)
@given(some.data())
def test_a_closed_node_counts_as_none(data):
    """Jobs start when and where they would without it."""
    amounts = some.tuples(some.integers(1, 12), some.integers(0, 12))
    first, *others = data.draw(some.lists(amounts, min_size=2, max_size=4))
    tops = dict.fromkeys(others)
    below = [some.tuples(*(some.integers(0, top) for top in each)) for each in tops]
    whole = node_room(first, *others)
    stream = data.draw(streams(whole.without(["n0"]), some.one_of(below)))
    names = [f"n{at}" for at in range(1, len(others) + 1)]
    nodes = dict(zip(names, others, strict=True))
    alone = FreeResources(tuple(map(sum, zip(*others, strict=True))), nodes, nodes)
    closed, without = Machine(stream), Machine(stream._replace(room=alone))
    for found, wanted in zip(closed.passes(), without.passes(), strict=True):
        assert found.admitted == wanted.admitted
        assert closed.held == without.held
        assert [comparable(each) for each in found.reservations] == [
            comparable(each) for each in wanted.reservations
        ]


def comparable(reservation: Reservation) -> tuple[object, ...]:
    """Without what closed nodes have."""
    extra, held = reservation.extra, reservation.held
    return reservation.job_id, reservation.start_s, held, extra.sums, extra.nodes


def test_a_small_job_that_is_late_itself_is_reserved_for_beside_big_ones_of_a_whole_node():
    free, whole = node_room((10, 10)), (10, 10)
    held = Allocation(whole, {"n0": whole})
    big = Reservation(
        job_id=1, leaf="root.a", demand=whole, held=held, start_s=5.0, end_s=9.0,
        extras={ROOT: free - held}, due_s=5.0, passes=Fraction(1, 10),
    )  # fmt: skip
    second, now_s = replace(big, start_s=9.0, end_s=12.0), 0.0
    for before, next_s in (([big], 9.0), ([big, second], 12.0)):
        found = shadow((1, 1), 100.0, free=free, now_s=now_s, ends=(), reservations=before)
        assert found is not None and found.start_s == now_s, "it passes"
        not_small = shadow((2, 1), 100.0, free=free, now_s=now_s, ends=(), reservations=before)
        assert not_small is not None and not_small.start_s == next_s


@pytest.mark.parametrize(
    ("asked", "drains", "start_s", "parts"),
    [((0, 3), [0], 0.0, (0, 3)), ((6, 8), [1], 5.0, (0, 8)), ((0, 3), [0, 1], 99.0, (3, 0))],
)
def test_jobs_that_are_reserved_for_have_different_gpus(asked, drains, start_s, parts):
    """Others have the first GPU, which a part would fit best, and the second one."""
    room, runs, others = gpu_room(2), Allocation((6, 7), {"": (6, 7, 4, 3)}), []
    for is_drain, own in zip(drains, ((8, 0), (0, 8)), strict=False):
        held = Allocation((6, 8), {"": (6, 8, *own)})
        others.append(Reservation(
            job_id=1, leaf="root.a", demand=held.sums, held=held, start_s=5.0, end_s=99.0,
            extras={ROOT: room - held}, due_s=5.0, is_drain=bool(is_drain),
        ))  # fmt: skip
    ends = [(5.0, 0, runs)]
    found = shadow(asked, 9.0, free=room - runs, now_s=0.0, ends=ends, reservations=others)
    assert found is not None
    assert (found.start_s, found.held.parts("")) == (start_s, parts)


@given(
    nodes=some.lists(some.tuples(some.integers(-4, 8), some.integers(-4, 8)), min_size=1),
    ends=some.lists(
        some.tuples(
            some.integers(0, 9).map(float),
            some.integers(0, 9),
            some.tuples(some.integers(0, 4), some.integers(0, 4)),
        )
    ),
    demand=some.tuples(some.integers(0, 8), some.integers(0, 8)),
)
def test_a_job_starts_when_a_node_has_enough_and_not_when_all_together_have(nodes, ends, demand):
    free, now_s = node_room(*nodes).without(), 3.0
    coming = [(end_s, Allocation(held, {f"n{at % len(nodes)}": held})) for end_s, at, held in ends]
    coming.sort(key=itemgetter(0))
    line = [(end_s, 0, held) for end_s, held in coming]
    found = shadow(demand, 1.0, free=free, now_s=now_s, ends=line)
    for at_s in sorted({now_s, *(end_s for end_s, _ in coming if end_s > now_s)}):
        there = free
        for end_s, held in coming:
            if end_s <= at_s:
                there += held
        if there.fits(demand):
            assert found is not None and found.start_s == at_s
            assert found.extra == there - found.held
            return
    assert found is None


def long_stream(seed: int, depth: int, *, large: float = 0.1) -> Stream:
    """Three leaves that ask for small and now and then for large jobs, with exact estimates."""
    random, arrivals = Random(seed), []
    for _ in range(120):
        gap_s = 1
        for leaf in "abc":
            if random.random() < 0.5:
                demand = (random.randint(0, 4), random.randint(0, 4))
                if random.random() < large:
                    demand = (random.randint(6, 8), random.randint(0, 8))
                run_s = random.randint(1, 9)
                arrivals.append(Arrival(gap_s, f"root.{leaf}", demand, run_s, run_s))
                gap_s = 0
    return Stream(FreeResources((8, 8)), arrivals, Patience(2, 10_000, depth))


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.slow
def test_with_exact_estimates_every_reserved_job_starts_when_it_was_promised(depth):
    deepest = 0
    for seed in range(20):
        machine = Machine(long_stream(seed, depth))
        promised_s: dict[int, float] = {}
        for done in machine.passes():
            deepest = max(deepest, len(done.reservations))
            for kept in done.reservations:
                promised_s.setdefault(kept.job_id, kept.start_s)
        assert promised_s, "no job was ever reserved for"
        late = {each for each, at_s in promised_s.items() if machine.started_s[each] > at_s}
        assert late == set(), seed
    assert deepest == min(depth, 3), "there are three leaves, and each has one head"


def test_a_job_that_can_never_start_does_not_keep_its_leaf_from_starting_others():
    """The machine was larger when it was submitted. Those behind it start, and get a place."""
    arrivals = [Arrival(0, "root.b", (6,), 10, 10)] * 50
    for gap_s, size in ((0, 12), (0, 4), (25, 4), (0, 9)):
        arrivals.append(Arrival(gap_s, "root.a", (size,), 5, 5))
    machine = Machine(Stream(FreeResources((10,)), arrivals, Patience(0, 20)))
    for _ in machine.passes():
        if machine.now_s > 60:
            break
    assert [machine.started_s.get(job_id) for job_id in (51, 52, 53, 54)] == [None, 0, 25, 40]
