"""Who holds what a waiting job is short of, and who is served first when it comes back.

A job is named as a holder only if it holds a resource that is short. The jobs of the waiting job's
own user come first, then those whose time limit ends first, until the named ones hold all that is
lacking; those without which the others hold enough are left out.

Others are named as served first only if they truly take the resource: what the named holders hold
is thought to be given back and handed out to the waiting leaves in the order of service. If the
waiting job fits into what is left at its own turn, nobody else is in its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from typing import Any

from drfd.core.amounts.vectors import (
    Room,
    Vector,
    fits,
    minus,
    placed,
    plus,
    short_axes,
)
from drfd.core.explain.waits import Holder, ReservedFirst, ResourceShortage, ServedFirst, Shortfall
from drfd.core.fairness.rules import Rules
from drfd.core.fairness.service_order import ServiceOrder, by_satisfaction
from drfd.core.fairness.share_tree import TOP, ShareTree, path_up
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import LeafQueue
from drfd.core.model.job import Job, JobState
from drfd.core.scheduling.backfill import Backfill
from drfd.core.scheduling.kept_free import kept
from drfd.core.scheduling.plan import Plan

#: The number of holders of one resource, and of leaves, that an explanation names.
_NAMED = 3
#: Bounds on the search for leaves that are served first: of leaves, of the demands that one of
#: them waits for, and of jobs.
_MOST_LEAVES, _MOST_DEMANDS, _MOST_STEPS = 32, 32, 100


@dataclass(frozen=True, slots=True)
class Blame:
    """The resources that a job is short of, and the jobs whose resources would be enough."""

    shortfalls: tuple[Shortfall, ...]
    jobs: tuple[Job, ...]
    #: The job's demand, and what would be free if these jobs gave back what they hold.
    demand: Vector
    free: Vector
    #: What each node would give back.
    given_back: Mapping[str, Vector]


def find_holders(job: Job, demand: Vector, ledger: Ledger, last: Plan, rules: Rules) -> Blame:
    """Return who holds the resources of which the demand is more than the last pass left free."""
    found: dict[int, Job] = {}
    shortfalls = []
    free = last.free
    nowhere = free.lacking(demand) if isinstance(free, Room) else {}
    for axis in short_axes(demand, last.free):
        needed, there = nowhere.get(axis, (demand[axis], last.free[axis]))
        if isinstance(last.free, Room) and axis in nowhere:
            parts, beside = _enough_parts(job, demand, axis, last.free, ledger, last)
        else:
            parts, beside = list(_enough(job, axis, needed - there, ledger, last)), 0
            if sum([amount for _, amount in parts]) < needed - there:
                beside = rules.axes.vector(kept(ledger, rules, last.external))[axis]
        for held_by, _ in parts:
            if held_by.id not in found:
                found[held_by.id] = held_by
                free = plus(free, ledger.allocation(held_by))
        if axis in short_axes(demand, free):
            free = _raised(free, demand, axis)
        named = tuple([_holder(held_by, amount, job) for held_by, amount in parts[:_NAMED]])
        shortage = ResourceShortage(rules.axes.names[axis], needed, max(0, there))
        shortfalls.append(Shortfall(shortage, named, len(parts) - len(named), beside))
    jobs = tuple(found.values())
    return Blame(tuple(shortfalls), jobs, demand, free, _given_back(jobs, ledger))


def find_limit_holders(
    job: Job, path: str, axis: int, lacking: int, ledger: Ledger, last: Plan
) -> tuple[tuple[Holder, ...], int]:
    """Return who holds what keeps the node at its limit, and the number of those not named: jobs of
    the node that hold so much of the resource together that the job would fit within the limit."""
    # A listing explains many jobs that are alike. A suspended job holds something itself.
    notes = last.notes if job.state is JobState.PENDING else {}
    key = "limit", path, axis, lacking, job.spec.user, ledger.allocations.version
    if key not in notes:
        found = list(_enough(job, axis, lacking, ledger, last, path))
        notes[key] = (
            tuple(_holder(held_by, amount, job) for held_by, amount in found[:_NAMED]),
            max(0, len(found) - _NAMED),
        )
    known: tuple[tuple[Holder, ...], int] = notes[key]
    return known


def _given_back(jobs: Iterable[Job], ledger: Ledger) -> dict[str, Vector]:
    """Return what each node no longer holds when these jobs have ended."""
    given_back: dict[str, Vector] = {}
    for each in jobs:
        for path in path_up(each.spec.leaf):
            before = given_back.get(path, ledger.nothing)
            given_back[path] = plus(before, ledger.allocation(each))
    return given_back


#: A job, and the amount that it holds of a resource.
_Part = tuple[Job, int]


def _enough(
    job: Job, axis: int, lacking: int, ledger: Ledger, last: Plan, path: str = TOP
) -> Iterator[_Part]:
    """Yield the jobs below a node that are named as holders of the resource, with the amounts that
    they hold. A suspended job does not wait for what it has kept itself."""
    by_end = _by_end(axis, ledger, last)
    own = by_end.get(job.spec.user, [])
    others = by_end[None]
    for every in (
        (part for part in own if part[0].id != job.id),
        (part for part in others if part[0].spec.user != job.spec.user),
    ):
        parts = (part for part in every if path == TOP or path in path_up(part[0].spec.leaf))
        found: list[_Part] = []
        for part in parts:
            if lacking <= 0:
                break
            found.append(part)
            lacking -= part[1]
        for part in found:
            # The last one lets the job start; without it the others would not be enough.
            if lacking + part[1] <= 0:
                lacking += part[1]
            else:
                yield part
        if lacking <= 0:
            return


def _enough_parts(
    job: Job, demand: Vector, axis: int, free: Room, ledger: Ledger, last: Plan
) -> tuple[list[_Part], int]:
    """Return the jobs that are named as holders of a resource of which no place has enough,
    without those that have only what is in other places than the demand would get; and how much
    is kept free for processes outside drfd, if these jobs are not enough."""
    shut = () if last.external is None else last.external.shared_names(ledger.axes)
    by_end = _by_end(axis, ledger, last)
    own = [part for part in by_end.get(job.spec.user, []) if part[0].id != job.id]
    others = [part for part in by_end[None] if part[0].spec.user != job.spec.user]
    found: list[_Part] = []
    room = free.shut(shut)
    for part in (*own, *others):
        if room.place(demand) is not None:
            break
        found.append(part)
        room = plus(room, ledger.allocation(part[0])).shut(shut)
    if room.place(demand) is None:
        return found, free.reopened(ledger.allocated)[axis] - free[axis]
    for part in tuple(found):
        less = minus(room, ledger.allocation(part[0]))
        if less.place(demand) is not None:
            # The others are enough without it.
            room = less
            found.remove(part)
    return found, 0


def _raised(free: Vector, demand: Vector, axis: int) -> Vector:
    """Return the free amounts with as much of an axis as the demand wants."""
    amounts = list(free)
    amounts[axis] = max(free[axis], demand[axis])
    if isinstance(free, Room) and axis not in free.lacking(demand):
        return free.like(amounts, free.nodes)
    return tuple(amounts)


def _by_end(axis: int, ledger: Ledger, last: Plan) -> Mapping[str | None, list[_Part]]:
    """Return the jobs that hold any of the resource, those whose time limit ends first before the
    others, then the largest: of each user, and under None of all users."""
    key = "by end", axis, ledger.allocations.version
    if key not in last.notes:
        parts = [
            (ledger.jobs[each], ledger.allocation(ledger.jobs[each])[axis])
            for each in ledger.holders(axis).all
        ]
        # The largest are first already.
        parts.sort(key=lambda part: _until_s(part[0]) or inf)
        by_user: dict[str | None, list[_Part]] = {None: parts}
        for part in parts:
            by_user.setdefault(part[0].spec.user, []).append(part)
        last.notes[key] = by_user
    found: Mapping[str | None, list[_Part]] = last.notes[key]
    return found


def _until_s(held_by: Job) -> float | None:
    """Return the end of a running job at its time limit; the wall time of a frozen one stands
    still."""
    limit_s = held_by.spec.time_limit_s
    if held_by.started_at is None or not limit_s or held_by.suspended_at is not None:
        return None
    return held_by.started_at + held_by.suspended_s + limit_s


def _holder(held_by: Job, amount: int, job: Job) -> Holder:
    is_own = held_by.spec.user == job.spec.user
    return Holder(held_by.label, held_by.spec.user, amount, _until_s(held_by), is_own)


def served_first(
    job: Job, blame: Blame, ledger: Ledger, last: Plan, rules: Rules
) -> ServedFirst | ReservedFirst | None:
    """Return the leaves, or jobs with a reservation, that take so much of what comes back that the
    job does not fit any more; None if it fits at its turn."""
    leaf, demand = job.spec.leaf, blame.demand
    if last.share_tree is None or leaf not in last.share_tree.nodes:
        return None
    share_tree = _after(blame, ledger, last.share_tree, last.notes, rules)
    shut = last.shortages.blocked_leaves(ledger.queues)
    takers = {
        other: _Taker(other, ledger.queues[other], blame.free)
        for other in islice(last.order, _MOST_LEAVES)
        if other in ledger.queues and other not in shut and other in share_tree.nodes
    }
    if leaf not in takers:
        return None
    wanted = short_axes(demand, last.free)
    hand_out = _HandOut(blame.free, share_tree, takers, _backfill(blame, last))
    # A pass begins with the jobs that have a reservation.
    reserved = [
        other
        for other, taken in _serve_reserved(hand_out, ledger, last)
        if other.spec.leaf != leaf and any(taken[axis] for axis in wanted)
    ]
    if not fits(demand, hand_out.free):
        if not reserved:
            return None
        first, count = reserved[0], len(reserved)
        return ReservedFirst(blame.shortfalls, first.label, first.spec.user, count)
    took, have_less = list[str](), True
    for _ in range(_MOST_STEPS):
        following = hand_out.next_leaf(leaf)
        if following is None or following[0] == leaf:
            return None
        other, taken = following
        if any(taken[axis] for axis in wanted):
            have_less = have_less and _has_less(share_tree, other, leaf)
            if other not in took:
                took.append(other)
        hand_out.serve(other, takers[other].head(taken), taken)
        if not fits(demand, hand_out.free):
            if not took:
                return None
            return ServedFirst(blame.shortfalls, tuple(took[:_NAMED]), len(took), have_less)
    return None


def _serve_reserved(hand_out: _HandOut, ledger: Ledger, last: Plan) -> Iterator[tuple[Job, Vector]]:
    """Yield each job with a reservation that starts when the jobs with a reservation are served,
    and its demand; the others keep their reservations."""
    backfill = hand_out.backfill
    if backfill is None:
        return
    for each in last.reservations:
        other = ledger.find(each.job_id)
        if other is None or ledger.wanted(other) != each.demand:
            continue
        if each.leaf not in hand_out.share_tree.nodes:
            # Its leaf is not among those that compete then.
            continue
        fits_free = fits(each.demand, hand_out.free)
        if fits_free and not hand_out.share_tree.is_within_limits(each.leaf, each.demand):
            continue
        if fits_free and backfill.allows(each.demand, other.id, hand_out.free):
            hand_out.serve(each.leaf, other.id, each.demand)
            yield other, each.demand
        else:
            free = hand_out.free
            backfill.reserve(other.id, each.leaf, each.demand, free=free, admitted={}, before=each)


def _after(
    blame: Blame, ledger: Ledger, share_tree: ShareTree, notes: dict[Any, Any], rules: Rules
) -> ShareTree:
    """Return a share tree of its own in which the leaves compete that have jobs when the blamed
    ones have ended, with what they hold then."""
    leaves = {each.spec.leaf for each in blame.jobs} - ledger.queues.keys()
    gone = frozenset(leaf for leaf in leaves if ledger.used[leaf] == blame.given_back[leaf])
    if not gone:
        return _without(share_tree, blame.jobs, ledger)
    key = gone, ledger.allocations.version
    if key not in notes:
        used = {leaf: held for leaf, held in ledger.used.items() if leaf not in gone}
        notes[key] = rules.shares.share_tree(used, ledger.queues)
        notes[key].last = share_tree.last
    found: ShareTree = notes[key]
    left = [each for each in blame.jobs if each.spec.leaf not in gone]
    return _without(found, left, ledger)


def _backfill(blame: Blame, last: Plan) -> Backfill | None:
    """Return the rule that keeps jobs from delaying the reservations of the last pass, for when the
    blamed jobs have ended; None if nothing is reserved."""
    context = last.pass_context
    if context is None or not last.reservations:
        return None
    gone = {each.id for each in blame.jobs}
    ends = [each for each in context.ends() if each[1] not in gone]
    return Backfill(replace(context, ends=lambda: ends))


def _without(share_tree: ShareTree, jobs: Iterable[Job], ledger: Ledger) -> ShareTree:
    """Return a copy of the share tree without what these jobs hold."""
    return share_tree.without(
        (job.spec.leaf, ledger.allocation(job)) for job in jobs if job.spec.leaf in share_tree.nodes
    )


def _has_less(share_tree: ShareTree, other: str, leaf: str) -> bool:
    """Return whether `other`, or a pool that it is in, is less satisfied than `leaf` where their
    paths separate."""
    ours, theirs = path_up(leaf), path_up(other)
    while len(ours) > 1 and len(theirs) > 1 and ours[-1] == theirs[-1]:
        ours, theirs = ours[:-1], theirs[:-1]
    # A pool may be as satisfied as ours and contain a leaf that is less so.
    key = share_tree.satisfaction_key
    return min(map(key, theirs)) < min(map(key, ours))


@dataclass(slots=True)
class _HandOut:
    """What the named holders give back, as it is handed out to those that wait."""

    free: Vector
    share_tree: ShareTree
    #: The leaves that may be served, by their names.
    takers: Mapping[str, _Taker]
    #: Keeps jobs from delaying reservations; None if nothing is reserved.
    backfill: Backfill | None

    def serve(self, leaf: str, job_id: int, demand: Vector) -> None:
        """Let a job of this demand start."""
        held = placed(demand, self.free)
        if self.backfill is not None:
            held = self.backfill.placed(demand, job_id, self.free)
            self.backfill.admit(held, job_id)
        if leaf in self.takers:
            self.takers[leaf].take(demand)
        self.free = minus(self.free, held)
        self.share_tree.hold(leaf, demand)

    def next_leaf(self, favoured: str) -> tuple[str, Vector] | None:
        """Return the leaf that is served next and the demand of the job that it starts; None if
        none can start a job. `favoured` wins ties."""
        # Jobs within the promise of their leaf or pool come before all others.
        able = self._able(promise_only=True) or self._able(promise_only=False)
        if not able:
            return None
        order = ServiceOrder(self.share_tree, by_satisfaction(self.share_tree, {}))
        for each, (head, _) in able.items():
            order.put(each, -1 if each == favoured else head)
        leaf = order.first()
        assert leaf is not None
        return leaf, able[leaf][1]

    def _able(self, *, promise_only: bool) -> dict[str, tuple[int, Vector]]:
        """Return the leaves that can start a job, each with its first job and the demand of the job
        that it would start."""
        found = {
            leaf: each.first(self.free, self.share_tree, self.backfill, promise_only=promise_only)
            for leaf, each in self.takers.items()
        }
        return {leaf: first for leaf, first in found.items() if first is not None}


class _Taker:
    """A leaf that may be served, with the jobs that it waits for."""

    def __init__(self, leaf: str, queue: LeafQueue, free: Vector) -> None:
        self._leaf = leaf
        lines = [(line.first, demand, len(line)) for demand, line in queue.items()]
        able = sorted(each for each in lines if fits(each[1], free))[:_MOST_DEMANDS]
        self._heads = {demand: first for first, demand, _ in able}
        self._left = {demand: count for _, demand, count in able}
        #: The first of all its jobs: ties are decided by it, whether it fits or not.
        _, self._first = min([first for first, _, _ in lines], default=(0, 0))

    def head(self, demand: Vector) -> int:
        """Return its first job of this demand."""
        return self._heads[demand][1]

    def first(
        self, free: Vector, tree: ShareTree, backfill: Backfill | None, *, promise_only: bool
    ) -> tuple[int, Vector] | None:
        """Return its first job, and the demand of the first that can start; None if none can."""
        able = [
            demand
            for demand, left in self._left.items()
            if left
            and fits(demand, free)
            and tree.is_within_limits(self._leaf, demand)
            and (not promise_only or tree.keeps_promise(self._leaf, demand))
            and (backfill is None or backfill.allows(demand, self.head(demand), free))
        ]
        return (self._first, able[0]) if able else None

    def take(self, demand: Vector) -> None:
        """Let a job of this demand start."""
        if demand in self._left:
            self._left[demand] -= 1
