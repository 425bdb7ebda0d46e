"""The policies: drfd's own and those that it is compared with, their input (`PassInput`), and their
result (`Plan`).

drfd's own (`drf`) is Dominant Resource Fairness over the tree of pools and users, in two phases
(docs/fairness.md 1.2). At every level the least satisfied child is served
(`core.fairness.service_order`). A leaf whose jobs do not fit is passed over, not waited for.
Resources only shrink while jobs are launched, so a leaf of which no job may start is finished.
Another pass follows at once if the pass was cut, or if a reservation became later meanwhile.

The starvation guard keeps a user's small jobs from starving a big one of the same user: the job
that has waited longest, of those that do not fit and have waited too long, lets no later job of its
leaf start until it has a reservation. It applies to one leaf at a time, because more would let the
machine idle.

The other policies serve at every level the child with the least key of another kind. `fifo`, `easy`
and `algorithm1` stop at a job that does not fit. `yarn` follows Hadoop's fair scheduler with its
policy "drf" (tests/core/EXAMPLES.md 2.4); its keys are tuples, so the order is total and cannot
change while it is sorted by, two former bugs of such comparators.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from heapq import heappop, heappush
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Any

from drfd.core.fairness.service_order import NEVER, PassOver, Rank, SortKey, by_satisfaction
from drfd.core.fairness.share_tree import (
    ONE,
    ZERO,
    Level,
    ShareNode,
    Shares,
    ShareTree,
    over,
    path_up,
)
from drfd.core.ledger.queue import Entry
from drfd.core.model.events import StartReason
from drfd.core.model.job import ROOT
from drfd.core.model.machine import Allocation, FreeResources, Vector, fits, plus
from drfd.core.scheduling.backfill import (
    Backfill,
    Closed,
    Delays,
    NoRoom,
    PassContext,
    Reservation,
    Start,
)
from drfd.core.scheduling.debts import Debt, settled
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.core.scheduling.release_times import Certainty
from drfd.core.scheduling.wait_index import Head, MakeRank, WaitIndex
from drfd.core.scheduling.waits import MachineShort, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInput:
    #: The waiting jobs, and the resources that each leaf holds and has used.
    wait_index: WaitIndex
    #: The resources in which jobs may start.
    free: FreeResources
    #: The facts about time; without them nothing is reserved.
    pass_context: PassContext | None = None
    #: The number of starts at which the pass stops and leaves the rest to the next one.
    max_starts: float = inf
    #: How many jobs of each leaf hold a slot under the policy "slots".
    running: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The decisions of a pass, with the facts from which waits can be explained."""

    #: The jobs to admit, in order.
    starts: Mapping[int, Start] = field(default_factory=dict)
    #: The resources left after them.
    free: FreeResources
    #: What still waits after the pass, by leaf, and the share tree; the next pass changes both.
    #: None if no policy was asked.
    wait_index: WaitIndex | None = field(default=None, compare=False)
    #: Whether more jobs may be able to start: the pass reached its `max_starts`, leaves were
    #: dropped before a reservation became later, or a forced reservation was given up after it.
    is_cut: bool = False
    #: The time at which the next pass may decide otherwise even if nothing happens before (Unix
    #: time), or None: a pause ends, a gate opens (`Wait.opens_s`), or see `_DrfPass.next_pass_s`.
    #: Changes of the calendar come besides (`Calendar.next_s`).
    next_pass_s: float | None = field(default=None, compare=False)
    #: The reservations for big jobs, in order; the next pass gets them.
    reservations: tuple[Reservation, ...] = ()
    #: The debts of leaves whose reservations keep or have kept anything idle.
    debts: Mapping[str, Debt] = field(default_factory=dict, compare=False)
    #: See `Backfill`.
    unpassed: Mapping[str, int] = field(default_factory=dict)
    #: The shortage because of which launches pause, and nothing was decided.
    pause: MachineShort | None = None
    pass_context: PassContext | None = field(default=None, compare=False)
    #: Why jobs wait for which there is no room, by leaf, demand and what all jobs hold, which only
    #: shrinks before the next plan: a list of 15,000 jobs of ten users takes 0.5 s for 19.
    told_without_room: dict[tuple[str, Vector, Allocation], Wait | None] = field(
        default_factory=dict, init=False, compare=False
    )

    @property
    def external(self) -> ExternalLoad | None:
        """The load from outside drfd for which the pass kept resources free, or None."""
        return None if self.pass_context is None else self.pass_context.external

    @property
    def order(self) -> Iterator[str]:
        """Yield the leaves that still have waiting jobs, in the order in which they would be served
        next."""
        return iter(()) if self.wait_index is None else self.wait_index.order()

    @property
    def share_tree(self) -> ShareTree | None:
        return None if self.wait_index is None else self.wait_index.share_tree

    @property
    def admitted(self) -> list[int]:
        return list(self.starts)

    def reservation_of(self, job_id: int) -> Reservation | None:
        """Return the job's reservation on the machine. One within a limit says nothing of when it
        starts."""
        found = (each for each in self.reservations if each.job_id == job_id)
        return next((each for each in found if each.within == ROOT), None)

    def certainty_of(self, reservation: Reservation) -> Certainty:
        """Return on what the start of a reservation of this plan rests."""
        context, start_s = self.pass_context, reservation.start_s
        return Certainty.ESTIMATED if context is None else context.certainty(start_s)

    def known_start_s(self, reservation: Reservation | None) -> float | None:
        """Return when a reserved job starts, or None if that rests on something of which nothing is
        known: it would move all the time."""
        if reservation is None or self.certainty_of(reservation) is Certainty.UNKNOWN:
            return None
        return reservation.start_s

    def closed_gate(
        self, demand: Vector, job_id: int, leaf: str, share_tree: ShareTree
    ) -> Closed | None:
        """Return the gate that the pass has left closed for a job, or None. The tree has its leaf,
        which may be newer than the pass."""
        return Backfill(
            self.pass_context or PassContext(),
            share_tree,
            self.free,
            list(self.reservations),
            dict(self.starts),
            dict(self.unpassed),
        ).closed_gate(demand, job_id, leaf)


#: A policy changes no table, and gives out no more of a resource than is free.
Policy = Callable[[PassInput], Plan]


class _Pass:
    """The state of a pass while it runs. The tables behind the index are not changed: the next pass
    reads again the leaves of which this one has started jobs."""

    def __init__(
        self, pass_input: PassInput, make_rank: MakeRank, lead_room: FreeResources | None = None
    ) -> None:
        self.wait_index = pass_input.wait_index
        self.pass_context = pass_input.pass_context or PassContext()
        self.wait_index.begin(self.pass_context, make_rank, lead_room)
        self.share_tree = self.wait_index.share_tree
        self.backfill = Backfill(self.pass_context, self.share_tree, pass_input.free)
        self._max_starts = pass_input.max_starts
        #: The demands with which a job may start; or, where more demands than leaves wait, the
        #: leaves of which one may, each with its first job that fits: of thousands of unlike
        #: demands a pass looks only at those up to the first that may start.
        self.fitting: set[Vector] = {*self.wait_index.alike}
        self.unlike: dict[str, Entry] = {}
        #: How long a job with one of the fitting demands may run, so that it delays nothing.
        self.longest_s = inf
        #: Results of `_deadline_s`, until a job starts or gets a reservation.
        self._deadlines: dict[Vector, float | None] = {}

    def find_fitting(self) -> None:
        """Leave out what cannot start: resources only shrink from now on."""
        index = self.wait_index
        if not index.are_unlike:
            self.fitting = {*index.alike}
            self.renew_fitting()
            return
        self.fitting, sums = set(), self.backfill.free.sums
        for leaf, line in index.heads_in_order.items():
            room = self.share_tree.headroom(leaf, sums)
            if fits(index.least_needed(leaf), room):
                first = next((entry for entry, demand in line if fits(demand, room)), None)
                if first is not None:
                    self.unlike[leaf] = first

    def renew_fitting(self) -> None:
        """Leave out the demands for which there is no room any more: all of them if no job is short
        enough."""
        untils = {each: self._deadline_s(each) for each in self.fitting}
        self.fitting = {each for each, until_s in untils.items() if until_s is not None}
        until_s = max([each for each in untils.values() if each is not None], default=inf)
        self.longest_s = until_s - self.pass_context.now_s
        if inf > self.longest_s < self.wait_index.shortest_s(self.pass_context):
            self.fitting.clear()

    @property
    def has_fitting(self) -> bool:
        while self.fitting and self._deadline_s(each := next(iter(self.fitting))) is None:
            self.fitting.remove(each)
        while self.unlike and not self._may_fit(next(reversed(self.unlike))):
            self.unlike.popitem()
        return bool(self.fitting or self.unlike)

    def _may_fit(self, leaf: str) -> bool:
        """Return False if none of the leaf's jobs may start, however short."""
        index = self.wait_index
        return leaf in index.heads and self._deadline_s(index.least_needed(leaf)) is not None

    def _deadline_s(self, demand: Vector) -> float | None:
        """Return the time by which a job of this demand that starts now must have ended, so that it
        delays no reservation; None if there is no room for it, however short it is."""
        if demand not in self._deadlines:
            deadline_s: float | None = inf
            if not self.backfill.free.fits(demand):
                deadline_s = None
            elif self.backfill.reservations:
                deadline_s = self.backfill.deadline_s(demand)
            self._deadlines[demand] = deadline_s
        return self._deadlines[demand]

    @property
    def is_cut(self) -> bool:
        return len(self.backfill.starts) >= self._max_starts

    def first_start(
        self, leaf: str, begin: Entry | None = None, *, promise_only: bool = False
    ) -> Head | None:
        """Return the leaf's first job, from an entry on, that may start now, or None."""
        index, context, free = self.wait_index, self.pass_context, self.backfill.free
        line, until_s = index.heads_in_order.get(leaf, []), inf
        if self.unlike:
            first = self.unlike.get(leaf) if line else None
            last_s = first and self._until_s(leaf, index.least_needed(leaf), promise_only)
            if first is None or last_s is None:
                return None
            begin, until_s = max(first, begin or first), last_s
        elif len(self.fitting) < len(line):
            # All demands for which there is room are among these.
            heads = index.heads[leaf]
            line = sorted([(heads[demand], demand) for demand in self.fitting if demand in heads])
        at = 0 if begin is None else bisect_left(line, (begin,))
        for entry, demand in islice(line, at, None):
            if (
                free.fits(demand)
                and (until_s == inf or context.end_s(entry[1]) <= until_s)
                and self._deadline_s(demand) is not None
                and (not promise_only or self.share_tree.keeps_promise(leaf, demand))
                and self.backfill.closed_gate(demand, entry[1], leaf) is None
            ):
                return entry, demand
        return None

    def _until_s(self, leaf: str, demand: Vector, promise_only: bool) -> float | None:
        """Return the time by which a job of the leaf that starts now must have ended, or None if no
        job of this demand may start. With less of any resource it is no earlier."""
        until_s, tree = self._deadline_s(demand), self.share_tree
        if until_s is None or not tree.is_within_limits(leaf, demand):
            return None
        return until_s if not promise_only or tree.keeps_promise(leaf, demand) else None

    def start(self, leaf: str, head: Head, why: StartReason | None = None) -> bool:
        """Start a job, by its turn or by a rule. Returns whether jobs of other leaves may not start
        any more because of it, so that the order must be asked for again."""
        (_, job_id), demand = head
        self.backfill.admit(demand, job_id, leaf, why)
        self._deadlines.clear()
        return self.wait_index.take(leaf, head, self.pass_context)

    def resume_suspended(self) -> None:
        """Resume suspended jobs: others may wait for the memory that these keep until they have
        ended."""
        backfill = self.backfill
        for job_id, (leaf, demand) in sorted(self.pass_context.suspended.items()):
            entry = self.pass_context.entry(job_id)
            if (
                entry is not None
                and job_id not in backfill.starts
                and backfill.closed_gate(demand, job_id, leaf) is None
            ):
                self.start(leaf, (entry, demand))

    def next_pass_s(self) -> float:
        """Return the time at which the next pass may decide otherwise even if nothing happens
        before, or infinity."""
        return self.backfill.opens_s

    def plan(self, **more: Any) -> Plan:
        """Return the decisions; `more` are what only some policies know."""
        due_s = self.next_pass_s()
        return Plan(
            starts=self.backfill.starts,
            free=self.backfill.free,
            wait_index=self.wait_index,
            reservations=tuple(self.backfill.reservations),
            pass_context=self.pass_context,
            unpassed=self.backfill.unpassed,
            next_pass_s=due_s if due_s < inf else None,
            **{"is_cut": self.is_cut} | more,
        )


# -- drfd's own ------------------------------------------------------------------------------------


def drf(pass_input: PassInput) -> Plan:
    drf_pass = _DrfPass(pass_input, by_satisfaction)
    drf_pass.renew_reservations()
    drf_pass.find_fitting()
    drf_pass.serve(promise_only=True)
    drf_pass.serve(promise_only=False)
    drf_pass.charge_idle()
    return drf_pass.plan(
        is_cut=drf_pass.is_cut or drf_pass.has_later_reservation,
        debts=drf_pass.debts,
    )


class _DrfPass(_Pass):
    def __init__(self, pass_input: PassInput, make_rank: MakeRank) -> None:
        super().__init__(pass_input, make_rank)
        #: The job that no later one of its leaf may pass until something is reserved for it at the
        #: node that keeps it back: of such jobs the one that has waited longest.
        self._guard: tuple[int, str] | None = None
        #: Demands that would not fit behind the reservations even after the end of all running
        #: jobs: of one leaf if it has limits.
        self._hopeless: set[tuple[str, str, Vector]] = set()
        #: Whether a job got a reservation in place of one further in.
        self._has_moved_reservation = False
        context = self.pass_context
        self.debts = settled(context.debts, context.now_s, self.share_tree)
        #: The leaves that get no further reservation.
        self._indebted = frozenset(
            [leaf for leaf in self.debts if self.debts[leaf].beyond(context.reserving.allowance_s)]
        )

    def _scope(self, leaf: str) -> str:
        """Return the leaf if limits hold for it alone, or the root."""
        return leaf if self.share_tree.limited_nodes(leaf) else ROOT

    def _find_guard(self) -> tuple[int, str] | None:
        never_fitting = set[tuple[str, Vector]]()
        for leaf in self.wait_index.late_leaves(self.pass_context):
            (_, job_id), demand = self.wait_index.first[leaf]
            if not self.pass_context.has_waited_too_long(job_id):
                return None
            path = self.share_tree.reached_limit(leaf, demand)
            if path is None and not self.backfill.free.fits(demand):
                path = ROOT
            kind = self._scope(leaf), demand
            if (
                path is not None
                and self.wait_index.shares.fits_alone(leaf, demand)
                and kind not in never_fitting
                and not self.backfill.is_reserved(job_id, path)
                and leaf not in self._indebted
            ):
                if not self.backfill.never_fits(job_id, leaf, demand):
                    return job_id, path
                # No job need wait behind one that would not fit even after the end of all jobs.
                never_fitting.add(kind)
        return None

    def renew_reservations(self) -> None:
        """Take the jobs that had reservations first: each starts, or its reservation is renewed."""
        # What is kept at a node counts also for those that something is kept for further in.
        for before in sorted(self.pass_context.before, key=lambda each: each.within.count(".")):
            leaf, demand, job_id = before.leaf, before.demand, before.job_id
            entry = self.pass_context.entry(job_id)
            if entry is None or not self.backfill.may_renew(before):
                continue
            if not self.wait_index.is_open(leaf, (entry, demand)):
                continue
            if not self.wait_index.shares.fits_alone(leaf, demand):
                # Its limits have become smaller than the job, perhaps for some hours.
                continue
            if self.backfill.closed_gate(demand, job_id, leaf) is None:
                self.start(leaf, (entry, demand), StartReason.RESERVATION)
            else:
                self._reserve(leaf, demand, job_id, before.within, before)
        if self.backfill.has_drain:
            # The drain may wait for memory of suspended jobs, and would keep them from going on.
            self.resume_suspended()
        self._guard = self._find_guard()
        if self._guard is not None:
            job_id = self._guard[0]
            self.backfill.unpassed[self.pass_context.leaf(job_id)] = job_id

    def serve(self, *, promise_only: bool) -> None:
        """Run one phase: phase 0 of docs/fairness.md, by promises alone, or phase 1."""
        context = self.pass_context
        #: The leaves whose first job has been considered for a reservation, and those with the node
        #: at whose limit it may get one.
        considered, limited = set[str](), dict[str, str]()
        if not promise_only and self.wait_index.shares.has_limits:
            for each in self.wait_index.late_leaves(context):
                self._enter_limited(each, limited)
        #: The leaves of which no job may start in this phase.
        finished = set[str]()
        #: The entry of each leaf that was started last: only later ones may start.
        begins = dict[str, Entry]()
        pass_over = (
            self._promising(finished) if promise_only else self._able(finished, considered, limited)
        )
        turns, has_less_room = self.wait_index.turns(pass_over), False
        while not self.is_cut and (
            self.has_fitting or limited or (not promise_only and self._may_reserve)
        ):
            leaf = turns.first()
            if leaf is None:
                break
            if (
                not promise_only
                and leaf not in considered
                and self.wait_index.is_late(leaf, context)
            ):
                considered.add(leaf)
                if self._reserve_if_late(leaf, limited):
                    self.renew_fitting()
            head = self.first_start(leaf, begins.get(leaf), promise_only=promise_only)
            if head is None:
                turns.drop(leaf)
                finished.add(leaf)
                if has_less_room:
                    self.renew_fitting()
                    has_less_room = False
                continue
            begins[leaf], has_less_room = head[0], True
            if self.start(leaf, head):
                turns = self.wait_index.turns(pass_over)
            else:
                turns.renew(leaf)
            considered.discard(leaf)
            if not promise_only and self.wait_index.is_late(leaf, context):
                self._enter_limited(leaf, limited)

    def _promising(self, finished: Collection[str]) -> PassOver:
        """Pass over the leaves of which no job may start by a promise: their own, or that of a node
        above them. A demand that keeps the promise of a node may be served below it whatever the
        nodes below hold; where none does, children whose key is above the node's promise for all
        of them can keep none of their own."""
        index, tree = self.wait_index, self.share_tree
        #: For each inner node that was reached the demands with which it, or a node above it, keeps
        #: its promise.
        kept: dict[str, Collection[Vector]] = {}
        #: In place of the unlike demands of each leaf stands the least of each resource.
        least = {each: index.least_needed(each) for each in self.unlike if each in index.heads}

        def pass_over(above: str, keys: Sequence[SortKey]) -> int:
            node, outer = tree.nodes[above], kept.get(above, ())
            demands = self.fitting or {*least.values()}
            if not keys or not (outer or tree.may_keep_below(node, demands)):
                return len(keys)
            most, longest_s = over(tree.promised(node), node.total), self.longest_s
            shortest = index.shortest.numbers
            for at, key in enumerate(keys):
                path, own, is_leaf = key.path, demands, key.path in index.first
                if key.value > most and not outer:
                    break
                if is_leaf:
                    if path in finished or (
                        longest_s < inf and shortest.get(path, 0.0) > longest_s
                    ):
                        continue
                    own = {least[path]} if path in least else demands & index.heads[path].keys()
                own = {each for each in own if each in outer or tree.keeps_promise_of(path, each)}
                if not is_leaf:
                    kept[path] = own
                if own or (not is_leaf and tree.may_keep_below(tree.nodes[path], demands)):
                    return at
            return len(keys)

        return pass_over

    def _able(
        self, finished: Collection[str], considered: Collection[str], limited: Collection[str]
    ) -> PassOver:
        """Pass over the leaves of which no job may start or get a reservation."""
        index, context = self.wait_index, self.pass_context
        heads, shortest = index.heads, index.shortest.numbers

        def pass_over(above: str, keys: Sequence[SortKey]) -> int:
            fitting, unlike, longest_s = self.fitting, self.unlike, self.longest_s
            # Without a reservation to give, nothing can be done for those that are only late.
            may_reserve = self._may_reserve
            for at, key in enumerate(keys):
                path = key.path
                if path not in heads or (
                    path not in finished
                    and (
                        path in limited
                        or (may_reserve and path not in considered and index.is_late(path, context))
                        or path in unlike
                        or (
                            (longest_s == inf or shortest.get(path, 0.0) <= longest_s)
                            and not fitting.isdisjoint(heads[path])
                        )
                    )
                ):
                    return at
            return len(keys)

        return pass_over

    @cached_property
    def left_fitting(self) -> list[Vector]:
        """The demands of waiting jobs that fit into what is left free at the end of the pass."""
        return [each for each in self.wait_index.alike if self.backfill.free.fits(each)]

    def charge_idle(self) -> None:
        """Charge what reservations keep idle from now on to their leaves: what waiting jobs would
        take that fit together, and of which a reservation holds back the first of their demand."""
        if not self.backfill.reservations:
            return
        index, tree, kept = self.wait_index, self.share_tree, dict[str, Vector]()
        fitting = self.left_fitting
        #: What is left of what is free, and of limits.
        left = {ROOT: self.backfill.free}
        for (_, job_id), leaf, demand in index.first_jobs(fitting):
            if not left[ROOT].fits(demand):
                continue
            closed = self.backfill.closed_gate(demand, job_id, leaf)
            if not isinstance(closed, Delays):
                continue
            owner = closed.reservation.leaf
            count, limited = index.count(leaf, demand), tree.limited_nodes(leaf)
            for path in limited:
                room = left.setdefault(path, FreeResources(tree.room_below(path)))
                count, _ = room.filled(demand, count)
            count, left[ROOT] = left[ROOT].filled(demand, count)
            if not count:
                continue
            for path in limited:
                _, left[path] = left[path].filled(demand, count)
            together = tuple([amount * count for amount in demand])
            kept[owner] = plus(kept.get(owner, (0,) * len(demand)), together)
            if not any(left[ROOT].fits(each) for each in fitting):
                break
        now_s = self.pass_context.now_s
        for leaf, held in kept.items():
            owed = self.debts[leaf].owed if leaf in self.debts else 0
            idle = index.shares.dominant_share(held)
            self.debts[leaf] = Debt.of(leaf, owed, now_s, self.share_tree, idle)

    @property
    def has_later_reservation(self) -> bool:
        """Return whether a reserved job may be expected to start later than when others were held
        back for it: it waits for the machine now, or a job has passed that delays it."""
        extras = (extra for each in self.backfill.reservations for extra in each.extras.values())
        has_delayed = bool(self.backfill.starts) and any(min(extra.sums) < 0 for extra in extras)
        return self._has_moved_reservation or has_delayed

    def next_pass_s(self) -> float:
        """Return also when a job has waited long enough for a reservation, its leaf has paid enough
        of its debt, or a job has outlived its estimate. Then a reserved job is expected to start
        later, and others may start beside it that fit. All else that time alone changes lets no
        job start."""
        context, backfill = self.pass_context, self.backfill
        may_add = backfill.may_add() or self.wait_index.shares.has_limits
        due_s = self.wait_index.next_late_s(context) if may_add else inf
        reserved_s = max([each.start_s for each in backfill.reservations], default=-inf)
        for leaf in self._indebted if may_add else ():
            repaid_s = self.debts[leaf].repaid_s(context.reserving.allowance_s)
            if repaid_s is not None and leaf in self.wait_index.first:
                due_s = min(due_s, repaid_s)
        if reserved_s > context.now_s and self.left_fitting:
            ends = context.ends()
            at = bisect_right(ends, context.now_s, key=itemgetter(0))
            ends_s = [end_s for end_s, *_ in ends[at : at + 1]]
            ends_s += map(context.end_s, backfill.starts)
            due_s = min([due_s, *[each for each in ends_s if context.now_s < each <= reserved_s]])
        return min(due_s, super().next_pass_s())

    @property
    def _may_reserve(self) -> bool:
        """Whether there may be one more reservation on the machine, and a job is late."""
        late = self.wait_index.late_leaves(self.pass_context)
        return self.backfill.may_add() and next(late, None) is not None

    def _enter_limited(self, leaf: str, limited: dict[str, str]) -> None:
        """Enter a leaf if a limit keeps its first job back that may get a reservation there."""
        (_, job_id), demand = self.wait_index.first[leaf]
        path = self.share_tree.reached_limit(leaf, demand)
        if (
            path is not None
            and self.wait_index.shares.fits_alone(leaf, demand)
            and self.backfill.may_add(path)
            and not self.backfill.is_reserved(job_id, path)
        ):
            limited[leaf] = path

    def _reserve_if_late(self, leaf: str, limited: dict[str, str]) -> bool:
        """Reserve for the leaf's first job if it cannot start and has waited long enough. Returns
        whether anything was reserved."""
        (_, job_id), demand = self.wait_index.first[leaf]
        closed = self.backfill.closed_gate(demand, job_id, leaf)
        path = closed.path if isinstance(closed, NoRoom | Delays) else None
        was_limited = limited.pop(leaf, None) is not None
        if (
            path is not None
            and (path == ROOT or was_limited)
            and self.backfill.may_add(path)
            and leaf not in self._indebted
            and not self.backfill.is_reserved(job_id, path)
            and (path, self._scope(leaf), demand) not in self._hopeless
            and self._reserve(leaf, demand, job_id, path)
        ):
            if not self.backfill.may_add(path):
                for each in [each for each in limited if limited[each] == path]:
                    del limited[each]
            return True
        return False

    def _reserve(
        self,
        leaf: str,
        demand: Vector,
        job_id: int,
        within: str,
        before: Reservation | None = None,
    ) -> bool:
        count = len(self.backfill.reservations)
        if not self.backfill.reserve(job_id, leaf, demand, within, before):
            self._hopeless.add((within, self._scope(leaf), demand))
            return False
        self._has_moved_reservation |= len(self.backfill.reservations) == count
        if self._guard is not None and self.backfill.is_reserved(*self._guard):
            self.backfill.unpassed.clear()
        self._deadlines.clear()
        return True


# -- those that it is compared with ----------------------------------------------------------------


def fifo(pass_input: PassInput) -> Plan:
    """Start jobs in the order of submission, up to the first that does not fit."""
    fifo_pass = _BaselinePass(pass_input, _by_age)
    fifo_pass.resume_suspended()
    fifo_pass.serve(is_strict=True)
    return fifo_pass.plan()


def easy(pass_input: PassInput) -> Plan:
    """Start jobs in the order of submission, with one reservation (EASY; Lifka 1995): others may
    start that will have ended by the reserved time, or that leave enough for the first job that
    does not fit.

    Of a leaf's jobs with one demand, only the first is considered. Without a context the ends of
    jobs are unknown, and the policy is `fifo`.
    """
    easy_pass = _BaselinePass(pass_input, _by_age)
    easy_pass.resume_suspended()
    blocked = easy_pass.serve(is_strict=True)
    if blocked is not None:
        easy_pass.backfill_behind(*blocked)
    return easy_pass.plan()


def slots(pass_input: PassInput) -> Plan:
    """Apply max-min fairness to slots, one for each job, whatever it needs."""
    count = Counter[str]()
    for leaf, number in pass_input.running.items():
        for path in path_up(leaf):
            count[path] += number

    def by_count(share_tree: ShareTree, past_usage: Mapping[str, float]) -> Rank:
        return _by(
            share_tree,
            past_usage,
            lambda node: count[node.path] / (share_tree.least_entitled(node.path) or ONE),
        )

    baseline = _BaselinePass(pass_input, by_count)
    baseline.count = count
    baseline.serve()
    return baseline.plan()


class _BaselinePass(_Pass):
    """A pass without reservations, but for the one of `easy`."""

    def __init__(self, pass_input: PassInput, make_rank: MakeRank) -> None:
        open_nodes, free = None, pass_input.free
        if free.has_closed:
            # Nobody need wait behind a job of a node on which nothing starts.
            open_nodes = free.without_jobs()
        super().__init__(pass_input, make_rank, open_nodes)
        #: Jobs that hold a slot, by node.
        self.count = Counter[str]()

    def start(self, leaf: str, head: Head, why: StartReason | None = None) -> bool:
        self.count.update(path_up(leaf))
        return super().start(leaf, head, why)

    def serve(self, *, is_strict: bool = False) -> tuple[str, Head] | None:
        """Start jobs. A leaf in which no job fits is passed over; if the policy is strict, only the
        first job of each leaf is considered, and the leaf and job are returned that do not fit,
        which nobody may pass."""
        turns, backfill = self.wait_index.turns(), self.backfill
        while (
            not self.is_cut
            and (is_strict or self.has_fitting)
            and (leaf := turns.first()) is not None
        ):
            head = self.wait_index.leads(leaf) if is_strict else self.first_start(leaf)
            if head is None or not self.wait_index.shares.fits_alone(leaf, head[1]):
                turns.drop(leaf)
                continue
            (_, job_id), demand = head
            closed = backfill.closed_gate(demand, job_id, leaf)
            if closed is not None:
                # Whoever waits for the machine, and for a limit too, lets nobody pass.
                is_full = not backfill.free.fits(demand)
                backfill.unpassed[ROOT if is_full else leaf] = job_id
                if is_full:
                    return leaf, head
                turns.drop(leaf)
            elif self.start(leaf, head):
                turns = self.wait_index.turns()
            else:
                turns.renew(leaf)
        return None

    def backfill_behind(self, leaf: str, head: Head) -> None:
        """Start jobs that do not delay the one that nobody may pass, in the order of submission."""
        (_, job_id), demand = head
        if not self.backfill.reserve(job_id, leaf, demand):
            return
        self.backfill.unpassed.clear()
        self._deadlines.clear()
        line: list[tuple[int, str]] = []

        def push(leaf: str) -> None:
            head = self.first_start(leaf)
            if head is not None:
                heappush(line, (head[0][1], leaf))

        for each in self.wait_index.first:
            push(each)
        while line and not self.is_cut:
            next_id, each = heappop(line)
            found = self.first_start(each)
            # There is less room than when the leaf was pushed: another of its jobs may be next.
            if found is not None and found[0][1] == next_id:
                self.start(each, found)
            if each in self.wait_index.first:
                push(each)


def _by(
    share_tree: ShareTree, past_usage: Mapping[str, float], key: Callable[[ShareNode], Any]
) -> Rank:
    """Return the order by a key of each node by itself."""

    def rank(node: ShareNode, least: SortKey | None) -> tuple[Any, float]:
        return key(node), past_usage.get(node.path, NEVER)

    return rank


def _by_age(share_tree: ShareTree, past_usage: Mapping[str, float]) -> Rank:
    """Return the order of the jobs, whoever owns them."""

    def rank(node: ShareNode, least: SortKey | None) -> tuple[Any, float]:
        return 0, NEVER

    return rank


def _by_shares(measure: Callable[[Sequence[Level]], Level]) -> MakeRank:
    """Return the order by the quotients of a node's holdings and its entitlements, measured as one
    number."""

    def make_rank(share_tree: ShareTree, past_usage: Mapping[str, float]) -> Rank:
        def key(node: ShareNode) -> Level:
            return over(measure(node.entitlement.levels(share_tree.held(node.path))), node.weight)

        return _by(share_tree, past_usage, key)

    return make_rank


def _by_yarn_key(share_tree: ShareTree, past_usage: Mapping[str, float]) -> Rank:
    """Return the order of `yarn`, in which decayed usage plays no part: of equal queues the one
    that waits longest is served."""

    def key(node: ShareNode) -> YarnKey:
        rule, held = node.rule, share_tree.held(node.path)
        return yarn_key(held, node.entitlement.capacity, rule.weights, rule.guarantee)

    return _by(share_tree, {}, key)


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


#: The order in which a policy serves nodes. Under "slots" these are the numbers of jobs, in place
#: of which stands what they hold.
RANKS: Mapping[str, MakeRank] = {
    "drf": by_satisfaction,
    "fifo": _by_age,
    "easy": _by_age,
    "slots": by_satisfaction,
    # Max-min fairness of the first resource alone.
    "cpu": _by_shares(itemgetter(0)),
    # Asset fairness: the least sum of shares of all resources (DRF paper, section 5.1).
    "asset": _by_shares(sum),
    # Algorithm 1 of the DRF paper, literally: the least dominant share, up to a job that does not
    # fit.
    "algorithm1": _by_shares(max),
    # Siblings by their own dominant shares: a child whose sibling is rich in another resource
    # starves.
    "hdrf-naive": _by_shares(max),
    # Hadoop's fair scheduler with its policy "drf"; guarantees are minimum shares.
    "yarn": _by_yarn_key,
}


def _in_order(name: str) -> Policy:
    """Return the policy that only serves leaves in its order."""

    def policy(pass_input: PassInput) -> Plan:
        baseline = _BaselinePass(pass_input, RANKS[name])
        baseline.serve(is_strict=name == "algorithm1")
        return baseline.plan()

    return policy


POLICIES: Mapping[str, Policy] = {
    **{name: _in_order(name) for name in RANKS},
    "drf": drf,
    "fifo": fifo,
    "easy": easy,
    "slots": slots,
}
