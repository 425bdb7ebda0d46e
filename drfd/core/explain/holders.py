"""The holders of the resources that a waiting job lacks, and the users who are served first.

Holders are named only for a resource that is short: jobs of the waiting job's user first, then
those whose time limit ends first, until they hold all that is lacking; jobs that are not needed for
that are left out. Others are named as served first only if they would take the resource: a pass is
made on the state after the named holders have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from math import inf

from drfd.core.fairness.rules import Rules
from drfd.core.fairness.share_tree import ShareTree, path_up, ways_apart
from drfd.core.ledger.ledger import Ledger
from drfd.core.model.events import StartReason
from drfd.core.model.job import ROOT, Job
from drfd.core.model.machine import FreeResources, Vector, fits, plus
from drfd.core.scheduling.backfill import Delays
from drfd.core.scheduling.policies import PassInput, Plan, drf
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex
from drfd.core.scheduling.waits import (
    Holder,
    ReservedFirst,
    ResourceShortage,
    Shortfall,
    WouldBeServedFirst,
)

#: The number of holders of one resource, and of leaves, that an explanation names.
_NAMED = 3
#: Bounds on the search for leaves that are served first: of leaves, of the demands that one of
#: them waits for, of those that are looked at, and of jobs.
_MOST_LEAVES, _MOST_DEMANDS, _MOST_LOOKS, _MOST_STEPS = 32, 32, 200, 100


@dataclass(frozen=True)
class Case:
    """A live job, and all that its gates look at. `demand` is what it waits for, empty if it does
    not wait for resources, and `plan` the latest pass, empty before the first one."""

    job: Job
    demand: Vector
    ledger: Ledger
    plan: Plan
    rules: Rules
    can_launch: bool
    name_of: Callable[[int], str]
    #: What names the job in a command.
    label: str

    @property
    def leaf(self) -> str:
        return self.job.spec.leaf

    @cached_property
    def short(self) -> list[int]:
        """Return the axes of which the last pass has left too little."""
        return self.plan.free.short_axes(self.demand)

    @cached_property
    def share_tree(self) -> ShareTree:
        tree = self.plan.share_tree
        if tree is not None and self.leaf in tree.nodes:
            return tree
        return self.rules.shares.share_tree(self.ledger.used, [*self.ledger.queues, self.leaf])


@dataclass(frozen=True, slots=True)
class Blame:
    """The resources that a job is short of, and the jobs whose resources would be enough."""

    shortfalls: tuple[Shortfall, ...]
    jobs: tuple[Job, ...]
    #: What would be free if these jobs gave back what they hold.
    free: FreeResources


#: A job, and the amount that it holds of a resource.
_Part = tuple[Job, int]


def find_holders(case: Case) -> Blame:
    """Return who holds the resources of which the demand is more than the last pass left free."""
    demand, ledger, plan, rules = case.demand, case.ledger, case.plan, case.rules
    found: dict[int, Job] = {}
    shortfalls = []
    free = plan.free
    nowhere = free.lacking(demand)
    for axis in case.short:
        needed, there = nowhere.get(axis, (demand[axis], plan.free.sums[axis]))
        if axis in nowhere:
            parts, beside = _enough_parts(case, axis, plan.free)
        else:
            parts, beside = list(_enough(case, axis, needed - there)), 0
            if plan.external and sum([amount for _, amount in parts]) < needed - there:
                beside = rules.axes.vector(plan.external.kept)[axis]
        for held_by, _ in parts:
            if held_by.id not in found:
                found[held_by.id] = held_by
                free += ledger.allocation(held_by)
        if axis in free.short_axes(demand):
            free = _raised(free, demand, axis)
        shortage = ResourceShortage(rules.axes.names[axis], needed, max(0, there))
        shortfalls.append(Shortfall(shortage, *_named(case, parts), beside))
    return Blame(tuple(shortfalls), tuple(found.values()), free)


def find_limit_holders(
    case: Case, path: str, axis: int, lacking: int
) -> tuple[tuple[Holder, ...], int]:
    """Return who holds what keeps the node at its limit, and the number of those not named: jobs of
    the node that hold so much of the resource together that the job would fit within the limit."""
    return _named(case, list(_enough(case, axis, lacking, path)))


def _named(case: Case, parts: Sequence[_Part]) -> tuple[tuple[Holder, ...], int]:
    """Return those that are named, and the number of the others."""
    user, named = case.job.spec.user, parts[:_NAMED]
    holders = [
        Holder(each.label, each.spec.user, amount, limit_ends_s(each), each.spec.user == user)
        for each, amount in named
    ]
    return tuple(holders), len(parts) - len(named)


def _enough(case: Case, axis: int, lacking: int, path: str = ROOT) -> Iterator[_Part]:
    """Yield the jobs below a node that are named as holders of the resource, with the amounts that
    they hold."""
    for every in _by_owner(case, axis):
        parts = (part for part in every if path == ROOT or path in path_up(part[0].spec.leaf))
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


def _enough_parts(case: Case, axis: int, free: FreeResources) -> tuple[list[_Part], int]:
    """Return the jobs that are named as holders of a resource of which no place has enough,
    without those that have only what is in other places than the demand would get; and how much
    is kept free for processes outside drfd, if these jobs are not enough."""
    demand, ledger, external = case.demand, case.ledger, case.plan.external
    if "" in free.nodes:
        # Of the only machine, each resource by itself is enough or not.
        demand = tuple([amount if at == axis else 0 for at, amount in enumerate(demand)])
    shut = () if external is None else external.shared_names(ledger.axes)
    found: list[_Part] = []
    room = free.shut(shut)
    for part in chain(*_by_owner(case, axis)):
        if room.place(demand) is not None:
            break
        found.append(part)
        room = (room + ledger.allocation(part[0])).shut(shut)
    if room.place(demand) is None:
        return found, free.reopened(ledger.allocated).sums[axis] - free.sums[axis]
    for part in tuple(found):
        less = room - ledger.allocation(part[0])
        if less.place(demand) is not None:
            # The others are enough without it.
            room = less
            found.remove(part)
    return found, 0


def _raised(free: FreeResources, demand: Vector, axis: int) -> FreeResources:
    """Return the free amounts with as much of an axis as the demand wants."""
    sums = [*free.sums]
    sums[axis] = max(sums[axis], demand[axis])
    if axis in free.lacking(demand):
        return FreeResources(tuple(sums))
    return free.with_sums(tuple(sums))


def _by_owner(case: Case, axis: int) -> tuple[Iterator[_Part], Iterator[_Part]]:
    """Return the jobs of the job's user that hold any of the resource, and those of others, each
    with those whose time limit ends first before the others, then the largest. A suspended job does
    not wait for what it has kept itself."""
    ledger = case.ledger
    every = chain(*[held.items() for held in ledger.allocations.values()])
    amounts = ((ledger.jobs[job_id], held.sums[axis]) for job_id, held in every)
    parts = [part for part in amounts if part[1] > 0]
    parts.sort(key=lambda part: (limit_ends_s(part[0]) or inf, -part[1], part[0].id))
    user, own_id = case.job.spec.user, case.job.id
    own = (part for part in parts if part[0].spec.user == user and part[0].id != own_id)
    return own, (part for part in parts if part[0].spec.user != user)


def limit_ends_s(job: Job) -> float | None:
    """Return the end of a running job at its time limit; the wall time of a frozen one stands
    still."""
    limit_s = job.spec.time_limit_s
    if job.started_at is None or not limit_s or job.suspended_at is not None:
        return None
    return job.started_at + job.suspended_s + limit_s


def after(case: Case, blame: Blame) -> ShareTree:
    """Return a share tree of its own in which the leaves compete that have jobs when the blamed
    ones have ended, with what they hold then."""
    ledger, share_tree = case.ledger, case.share_tree
    held: dict[str, Vector] = {}
    for each in blame.jobs:
        leaf = each.spec.leaf
        held[leaf] = plus(held.get(leaf, ledger.nothing), ledger.allocation(each).sums)
    gone = frozenset(held.keys() - ledger.queues.keys())
    gone = frozenset([leaf for leaf in gone if ledger.used[leaf] == held[leaf]])
    if gone:
        used = {leaf: held for leaf, held in ledger.used.items() if leaf not in gone}
        share_tree = case.rules.shares.share_tree(used, [*ledger.queues, case.leaf])
    return share_tree.without((leaf, held[leaf]) for leaf in held.keys() & share_tree.nodes.keys())


def served_first(
    case: Case, blame: Blame, share_tree: ShareTree
) -> WouldBeServedFirst | ReservedFirst | None:
    """Return the job with a reservation that the job would delay though it fits, or the leaves, or
    jobs with a reservation, that take so much of what comes back that it does not fit any more;
    None if it starts at its turn. A pass tells, over what there is when the blamed jobs have ended;
    `share_tree` has what the leaves hold then, and is changed."""
    leaf, free = case.leaf, blame.free
    order = [*islice(case.plan.order, _MOST_LEAVES)]
    if leaf not in order:
        return None
    if case.plan.reservations:
        begun = _pass_after(case, order, blame, share_tree.without(()), max_starts=0)
        head = case.ledger.queues[leaf][case.demand].first[1]
        closed = begun.closed_gate(case.demand, head, leaf, begun.share_tree or share_tree)
        if isinstance(closed, Delays):
            first = case.ledger.jobs[closed.reservation.job_id]
            return ReservedFirst(blame.shortfalls, first.label, first.spec.user, 1)
    plan = _pass_after(case, order, blame, share_tree.without(()))
    starts = [(case.ledger.jobs[job_id], start) for job_id, start in plan.starts.items()]
    takers = [other for other, start in starts if any(start.held.sums[axis] for axis in case.short)]
    others = [other for other in takers if other.spec.leaf != leaf]
    by_reservation = StartReason.RESERVATION
    reserved = [each for each in others if plan.starts[each.id].why is by_reservation]
    took, have_less = list[str](), True
    for other, (held, why) in starts:
        is_reserved, path = why is by_reservation, other.spec.leaf
        if path == leaf and not is_reserved:
            return None
        if other in others and not is_reserved:
            have_less = have_less and _has_less(share_tree, path, leaf)
            took += [path] if path not in took else []
        free -= held
        share_tree.hold(path, held.sums)
        if free.fits(case.demand):
            continue
        if is_reserved and reserved:
            first = reserved[0]
            return ReservedFirst(blame.shortfalls, first.label, first.spec.user, len(reserved))
        if took:
            return WouldBeServedFirst(blame.shortfalls, tuple(took[:_NAMED]), len(took), have_less)
        return None
    return None


def _pass_after(
    case: Case,
    order: list[str],
    blame: Blame,
    share_tree: ShareTree,
    max_starts: int = _MOST_STEPS,
) -> Plan:
    """Return a pass over these leaves, and those with a reservation, when the blamed jobs have
    ended. The job's leaf wins ties. Jobs with a reservation start beside `max_starts` others."""
    ledger, plan, shares = case.ledger, case.plan, case.rules.shares
    index = plan.wait_index
    before = tuple([each for each in plan.reservations if each.leaf in share_tree.nodes])
    queues = {}
    for path in dict.fromkeys([*order, *[each.leaf for each in before]]):
        if path in ledger.queues and path in share_tree.nodes:
            lines, most = ledger.queues[path], shares.most(path)
            line = () if index is None else index.heads_in_order.get(path, ())
            heads = [each for _, each in line[:_MOST_LOOKS] if each in lines]
            able = islice(filter(blame.free.fits, heads), _MOST_DEMANDS)
            # Ties are decided by the first job of a leaf, whether it fits or not.
            first = islice((each for each in heads if fits(each, most)), 1)
            queues[path] = {demand: lines[demand] for demand in chain(able, first)}
    others = {path for each in queues for path in path_up(each)} - {*path_up(case.leaf)}
    past_usage = dict.fromkeys(others, 0.0)
    tables = LeafTables(
        queues=queues, all_queues=ledger.queues, used={}, shares=shares, past_usage=past_usage
    )
    context = plan.pass_context
    if context is not None:
        gone = {each.id for each in blame.jobs}
        ends = [each for each in context.ends() if each[1] not in gone]
        suspended = {at: each for at, each in context.suspended.items() if each[0] in queues}
        before = tuple([each for each in before if each.leaf in queues])
        context = replace(context, line=ends, before=before, suspended=suspended)
    return drf(
        PassInput(
            wait_index=WaitIndex(tables, share_tree),
            free=blame.free,
            pass_context=context,
            max_starts=max_starts,
        )
    )


def _has_less(share_tree: ShareTree, other: str, leaf: str) -> bool:
    """Return whether `other`, or a pool that it is in, is less satisfied than `leaf` where their
    paths separate."""
    ours, theirs = ways_apart(leaf, other)
    # A pool may be as satisfied as ours and contain a leaf that is less so.
    key = share_tree.satisfaction_key
    return min(map(key, theirs or (other,))) < min(map(key, ours or (leaf,)))
