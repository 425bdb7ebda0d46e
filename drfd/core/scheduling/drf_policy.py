"""drfd's own policy: dominant resource fairness over the tree of pools and users.

Two phases. First only launches that keep a leaf, or a pool that it is in, within its entitlement,
so that whole, indivisible jobs cannot push anyone below what they are promised; then whatever still
fits. In both, the tree is descended to the least satisfied child at every level (progressive
filling, section 4 of the DRF paper, with min-satisfaction for the hierarchy;
`core.fairness.priority_tree` has the order and its ties). A leaf whose jobs do not fit is passed
over, not waited for.

A pass looks at the vectors that fit, at the leaves that it launches from, and at those that a
reservation keeps back; in the first phase also at leaves that come first and would break their
promise, though not when none would keep it. Each launch looks at every vector that still fits, but
for those of leaves with many unlike ones: there `DemandSearch` finds the first job that may start.
With thousands of vectors, or of jobs, a pass may be cut: as room only shrinks while jobs are
launched, the next one goes on where it stopped, and other work of the daemon comes between.

`StarvationGuard` keeps a user's small jobs from starving a big one of the same user. Jobs that
overtake it keep up what the leaf holds, so other leaves, which are further below their promise,
always come first. Of the first jobs that have waited too long and do not fit, the one that has
waited longest therefore lets no later job of its leaf start until it has a reservation. Then the
leaf holds less and less, and its turn comes. This applies to one leaf at a time: where many have
waited for long, the machine would idle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf

from drfd.core.amounts.vectors import Room, Vector, fits, minus, placed
from drfd.core.fairness.entitlement import Level
from drfd.core.fairness.priority_tree import PriorityTree, ServingOrder, SiblingKey
from drfd.core.fairness.share_tree import TOP
from drfd.core.ledger.queue import Entry
from drfd.core.model.events import StartReason
from drfd.core.scheduling.backfill import Backfill, Reservation, beside
from drfd.core.scheduling.demand_tree import ANY_LENGTH, Demands, Item
from drfd.core.scheduling.plan import PassInput, Plan
from drfd.core.scheduling.wait_index import DemandGroup, WaitIndex


class StarvationGuard:
    """The first job, waiting longest, that no later job of its leaf may pass."""

    def __init__(self, wait_index: WaitIndex, backfill: Backfill, free: Vector) -> None:
        self._wait_index, self._backfill = wait_index, backfill
        self._hopeless: set[Vector] = set()
        self._found = self._find(free)

    @property
    def job_id(self) -> int | None:
        """Return the job's id, or None if no job has waited too long or it has a reservation."""
        found = self._found
        return None if found is None or self._backfill.is_reserved(found) else found

    def bars(self, leaf: str, *, free: Vector, admitted: Mapping[int, Vector]) -> bool:
        """Return whether no job of the leaf may start now. `free` is left after the jobs
        that this pass has `admitted`."""
        (_, job_id), demand = self._wait_index.first[leaf]
        while job_id == self.job_id:
            if not self._backfill.never_fits(job_id, demand, free=free, admitted=admitted):
                return True
            # No job need wait behind one that would not fit even after the end of all jobs.
            self._hopeless.add(demand)
            self._found = self._find(free)
        return False

    def _find(self, free: Vector) -> int | None:
        if not self._backfill.pass_context.patience.reserves:
            return None
        for leaf in self._wait_index.longest_waiting():
            (_, job_id), demand = self._wait_index.first[leaf]
            if not self._backfill.pass_context.has_waited_too_long(job_id):
                return None
            if (
                demand not in self._hopeless
                and not fits(demand, free)
                and not self._backfill.is_reserved(job_id)
                # A reservation does not help a job that a limit of its pool holds back.
                and self._wait_index.share_tree.is_within_limits(leaf, demand)
                and not self._wait_index.share_tree.is_last(leaf)
            ):
                return job_id
        return None


def drf(pass_input: PassInput) -> Plan:
    """Run one pass. The tables behind the index are not changed: the next pass reads again the
    leaves of which this one has started jobs."""
    wait_index, pass_context = pass_input.wait_index, pass_input.pass_context
    wait_index.begin(pass_context)
    walk = _Walk(pass_input)
    walk.renew_reservations()
    walk.serve(promise_only=True)
    walk.serve(promise_only=False)
    return Plan(
        admitted=list(walk.admitted),
        held=walk.admitted,
        reasons=walk.reasons,
        free=walk.free,
        order=ServingOrder(wait_index.order),
        reservations=tuple(walk.backfill.reservations) if walk.backfill is not None else (),
        starvation_guard=None if walk.starvation_guard is None else walk.starvation_guard.job_id,
        pass_context=pass_context,
        share_tree=wait_index.share_tree,
        is_cut=walk.is_cut,
        examined=walk.examined,
    )


class _Walk:
    """The state of a pass while it runs."""

    def __init__(self, pass_input: PassInput) -> None:
        wait_index, pass_context = pass_input.wait_index, pass_input.pass_context
        self.wait_index = wait_index
        self.share_tree = wait_index.share_tree
        self.free = pass_input.free
        self.backfill = Backfill(pass_context) if pass_context is not None else None
        #: The job that no later job of its leaf may pass.
        self.starvation_guard: StarvationGuard | None = None
        #: The admitted jobs with what they hold, in order.
        self.admitted: dict[int, Vector] = {}
        #: The rule by which a job starts, for each that does not start by its own turn.
        self.reasons: dict[int, StartReason] = {}
        #: The demand groups that fit and delay no reservation, of which a pass only removes some,
        #: and their leaves that delay none. `_next` makes it of `_considered`.
        self._open: dict[DemandGroup, PriorityTree] = {}
        self._considered: Collection[DemandGroup] = wait_index.demand_groups.values()
        self._apart = DemandSearch(wait_index, self.backfill)
        #: Whether a job has started or got a reservation since leaves were last searched.
        self._has_moved = False
        #: Whether `_open` has been sifted since a job has started or got a reservation.
        self._is_sifted = False
        self._examined, self._limits = 0, pass_input.limits
        self._examined_before = self._apart.examined
        #: The trees in which nodes are excluded until the end of the phase, with repetitions.
        self._changed: list[PriorityTree] = []
        #: Demands that would not fit even after the end of all running jobs.
        self._hopeless: set[Vector] = set()

    def renew_reservations(self) -> None:
        """Take the jobs that had reservations first: each starts, or its reservation is renewed."""
        if self.backfill is None:
            return
        for before in self.backfill.pass_context.before:
            entry = self.backfill.pass_context.entry(before.job_id)
            if entry is None or not self.backfill.may_renew(before):
                continue
            if not fits(before.demand, self.share_tree.most(before.leaf)):
                # Its limits have become smaller than the job, perhaps for some hours.
                continue
            if self.share_tree.is_last(before.leaf) and not before.is_forced:
                # Nothing is kept from leaves that come first.
                continue
            is_within = self.share_tree.is_within_limits(before.leaf, before.demand)
            has_room = fits(before.demand, self.free)
            may_start = self.backfill.allows(before.demand, before.job_id, self.free)
            if is_within and has_room and may_start:
                self._admit(before.leaf, before.demand, entry)
                self.reasons[before.job_id] = StartReason.RESERVATION
            elif is_within or not has_room or before.is_forced:
                self._reserve(before.leaf, before.demand, before.job_id, before)
        self._resume_suspended()
        self.starvation_guard = StarvationGuard(self.wait_index, self.backfill, self.free)

    def _resume_suspended(self) -> None:
        """Resume suspended jobs during a drain. A drain may wait for memory that they keep until
        they have ended, so without this all of them would wait for each other."""
        backfill = self.backfill
        if backfill is None or not backfill.has_drain:
            return
        for job_id, (leaf, demand) in sorted(backfill.pass_context.suspended.items()):
            entry = backfill.pass_context.entry(job_id)
            if (
                entry is not None
                and job_id not in self.admitted
                and fits(demand, self.free)
                and self.share_tree.is_within_limits(leaf, demand)
                and backfill.allows(demand, job_id, self.free)
            ):
                self._admit(leaf, demand, entry)

    def serve(self, *, promise_only: bool) -> None:
        """Run one phase."""
        self._apart.begin(self.free, promise_only=promise_only)
        self._has_moved = False
        while not self.is_cut and (found := self._next(promise_only=promise_only)) is not None:
            leaf, demand_groups = found
            if not promise_only:
                self._reserve_if_late(leaf)
            start = self._first_start(leaf, demand_groups)
            if start is not None:
                self._admit(leaf, *start)
            else:
                # Free resources only shrink during a phase, so the leaf is finished.
                self._drop(leaf, promise_only=promise_only)
        for priority_tree in self._changed:
            priority_tree.take_back()
        self._changed.clear()

    @property
    def is_cut(self) -> bool:
        most_examined, most_starts = self._limits.examined, self._limits.starts
        if most_starts is not None and len(self.admitted) >= most_starts:
            return True
        is_far = most_examined is not None and self.examined >= most_examined
        return is_far and bool(self.admitted)

    @property
    def examined(self) -> int:
        """Return the number of times that a demand vector was examined."""
        return self._examined + self._apart.examined - self._examined_before

    def _next(self, *, promise_only: bool) -> tuple[str, list[DemandGroup]] | None:
        """Return the leaf that is served next, and the demand groups in which the phase lets it
        start a job, or None if no leaf is left."""
        if not self._is_sifted:
            free = self.free
            has_room = [group for group in self._considered if fits(group.demand, free)]
            if self.backfill is None or not self.backfill.reservations:
                self._open = {demand_group: demand_group.now for demand_group in has_room}
            else:
                self._open = {
                    demand_group: priority_tree
                    for demand_group in has_room
                    if (priority_tree := self._without_delay(demand_group, self.backfill))
                    is not None
                }
            self._considered, self._is_sifted = self._open, True
            if promise_only:
                for path in self.share_tree.last:
                    for priority_tree in self._open.values():
                        self._set_aside(priority_tree, path)
        self._examined += len(self._open)
        if self._has_moved:
            self._apart.recheck(self.free)
            self._has_moved = False
        while True:
            before = len(self._changed)
            found = self._descend(promise_only=promise_only)
            # If a node was set aside on the way, it had influenced the choices before.
            if len(self._changed) == before:
                return found

    def _without_delay(self, demand_group: DemandGroup, backfill: Backfill) -> PriorityTree | None:
        """Return the leaves of the group whose job delays no reservation, or None for none."""
        deadline_s = backfill.deadline_s(demand_group.demand, self.free)
        if deadline_s is None or deadline_s == inf:
            return None if deadline_s is None else demand_group.now
        return demand_group.in_time(deadline_s, backfill.pass_context)

    def _descend(self, *, promise_only: bool) -> tuple[str, list[DemandGroup]] | None:
        """Descend from the top, always to the child that is served first."""
        path, groups = TOP, self._open
        # The demand groups of which a node on the way keeps its promise, so that all below may
        # start, and the others.
        kept, others = list[DemandGroup](), list[DemandGroup]()
        trees = list[PriorityTree]()
        if promise_only:
            others = [each for each in groups if each.may_keep_promise]
        else:
            kept = list(groups)
            trees = self._late_trees()
        if self._apart.priority_tree is not None:
            trees.append(self._apart.priority_tree)
        if not (kept or others or trees):
            return None
        first = self.wait_index.first
        while path not in first:
            keys = [groups[demand_group].least(path) for demand_group in kept]
            keys += [priority_tree.least(path) for priority_tree in trees]
            if others:
                most = self.share_tree.promised(path)
                keys += [self._first_promised(demand_group, path, most) for demand_group in others]
            key = min([key for key in keys if key is not None], default=None)
            if key is None:
                return None
            path, above = key.path, path
            kept = [each for each in kept if groups[each].serves(path, above)]
            others = [each for each in others if groups[each].serves(path, above)]
            if others:
                node = self.share_tree.nodes[path]
                keeping = [each for each in others if each.after.share(node) <= most[1]]
                kept += keeping
                others = [each for each in others if each not in keeping]
        return path, kept

    def _first_promised(
        self, demand_group: DemandGroup, path: str, most: tuple[int, Level]
    ) -> SiblingKey | None:
        """Return the key of the node's child that is served first in the demand group, of those
        that keep their promise: whose level, with one more job, is within `most`."""
        best = demand_group.after.least(path)
        if best is None or best[:2] > most:
            return None
        priority_tree = self._open[demand_group]
        while (key := priority_tree.least(path)) is not None:
            after = demand_group.after.key_of(key.path)
            if after is not None and after[:2] <= most:
                return key
            self._set_aside(priority_tree, key.path)
        return None

    def _late_trees(self) -> list[PriorityTree]:
        """Return the trees of late leaves whose first job may get one more reservation."""
        if not self.wait_index.late or self.backfill is None or not self.backfill.may_add:
            return []
        return [
            priority_tree
            for (demand, is_apart), priority_tree in self.wait_index.late.items()
            if demand not in self._hopeless and (is_apart or not self._is_open(demand))
        ]

    def _is_open(self, demand: Vector) -> bool:
        """Return whether all jobs of the demand group may start, apart from those over limits."""
        demand_group = self.wait_index.demand_groups.get(demand)
        return demand_group is not None and self._open.get(demand_group) is demand_group.now

    def _first_start(
        self, leaf: str, demand_groups: list[DemandGroup]
    ) -> tuple[Vector, Entry] | None:
        """Return the leaf's first job that may start without delaying a reservation, or None."""
        starvation_guard = self.starvation_guard
        if starvation_guard is not None and starvation_guard.bars(
            leaf, free=self.free, admitted=self.admitted
        ):
            return None
        if leaf in self.wait_index.apart:
            item = self._apart.first(leaf, self.free)
            return None if item is None else (item.demand, item.entry)
        best: tuple[Vector, Entry] | None = None
        for demand_group in demand_groups:
            entry = self.wait_index.head(leaf, demand_group.demand)
            if (
                entry is not None
                and (best is None or entry < best[1])
                and (
                    self.backfill is None
                    or self.backfill.allows(demand_group.demand, entry[1], self.free)
                )
            ):
                best = demand_group.demand, entry
        return best

    def _reserve_if_late(self, leaf: str) -> None:
        """Reserve for the leaf's first job if it cannot start and has waited long enough."""
        (_, job_id), demand = self.wait_index.first[leaf]
        if (
            self.backfill is not None
            and self.backfill.may_reserve(job_id)
            # A reservation does not help a job that a limit of its pool holds back, and none is
            # made while leaves wait that come first.
            and self.share_tree.is_within_limits(leaf, demand)
            and not self.share_tree.is_last(leaf)
            and not (fits(demand, self.free) and self.backfill.allows(demand, job_id, self.free))
        ):
            self._reserve(leaf, demand, job_id)

    def _admit(self, leaf: str, demand: Vector, entry: Entry) -> None:
        pass_context, held = None, demand
        if self.backfill is None:
            held = placed(demand, self.free)
        else:
            if self.backfill.reservations:
                self.reasons[entry[1]] = StartReason.BACKFILL
            held = self.backfill.placed(demand, entry[1], self.free)
            self.backfill.admit(held, entry[1])
            pass_context = self.backfill.pass_context
        self.admitted[entry[1]] = held
        self.free = minus(self.free, held)
        self.wait_index.take(leaf, demand, entry[1], pass_context=pass_context)
        self._apart.note(leaf)
        self._has_moved, self._is_sifted = True, False

    def _reserve(
        self, leaf: str, demand: Vector, job_id: int, before: Reservation | None = None
    ) -> None:
        assert self.backfill is not None
        self._has_moved, self._is_sifted = True, False
        if not self.backfill.reserve(
            job_id, leaf, demand, free=self.free, admitted=self.admitted, before=before
        ):
            self._hopeless.add(demand)

    def _drop(self, leaf: str, *, promise_only: bool) -> None:
        for demand_group, priority_tree in self._open.items():
            self._set_aside(priority_tree, leaf)
            if promise_only and demand_group.may_keep_promise:
                self._set_aside(demand_group.after, leaf)
        for priority_tree in self.wait_index.late.values():
            self._set_aside(priority_tree, leaf)
        self._apart.drop(leaf)

    def _set_aside(self, priority_tree: PriorityTree, path: str) -> None:
        if priority_tree.key_of(path) is not None:
            priority_tree.set_aside(path)
            self._changed.append(priority_tree)


#: Seconds by which the bound on run times in a search is too wide; `_may_pass` compares exactly.
_SLACK_S = 1.0


class DemandSearch:
    """The leaves that wait for many unlike demand vectors (`WaitIndex.apart`), during one pass.

    For each leaf, the first job that the phase lets start is known. It is searched for within what
    is free, the limits, the promises and what reservations leave, and again only when it has
    started or may not start any more. During a phase room only shrinks, so a leaf of which no job
    may start is finished.
    """

    def __init__(self, wait_index: WaitIndex, backfill: Backfill | None) -> None:
        self._wait_index, self._backfill = wait_index, backfill
        #: Leaves of which nothing may start, whatever the phase.
        self._shut: set[str] = set()
        self._promise_only = False
        #: The job that was found for each other leaf.
        self.found: dict[str, Item] = {}
        #: These leaves in order; None if no leaf stands apart, as on most machines.
        self.priority_tree: PriorityTree | None = None

    def begin(self, free: Vector, *, promise_only: bool) -> None:
        """Begin a phase."""
        if not self._wait_index.apart:
            return
        self._promise_only = promise_only
        self.found.clear()
        self.priority_tree = PriorityTree(self._wait_index.share_tree, self._wait_index.past_usage)
        for leaf in self._wait_index.apart:
            if leaf in self._wait_index.first and leaf not in self._shut:
                self._search(leaf, free)

    def recheck(self, free: Vector) -> None:
        """Check all that was found again, after a job has started or got a reservation."""
        for leaf in list(self.found):
            self.first(leaf, free)

    def first(self, leaf: str, free: Vector) -> Item | None:
        """Return the first job of the leaf that may start now, or None."""
        item = self.found.get(leaf)
        if item is not None and not self._may_start(leaf, item, free):
            self._search(leaf, free)
        return self.found.get(leaf)

    def note(self, leaf: str) -> None:
        """Take account of a started job: the leaf and its pools hold more."""
        if self.priority_tree is None:
            return
        if leaf not in self._wait_index.first:
            self.drop(leaf)
        elif leaf in self.found:
            self.priority_tree.put(leaf, self._wait_index.first[leaf][0][1])
        self.priority_tree.lift(leaf)

    def drop(self, leaf: str) -> None:
        """Finish the leaf for this phase."""
        if self.priority_tree is not None and self.found.pop(leaf, None) is not None:
            self.priority_tree.put(leaf, None)

    @property
    def examined(self) -> int:
        """Return the number of items and nodes read in searches."""
        return sum(demands.examined for demands in self._wait_index.apart.values())

    def _may_start(self, leaf: str, item: Item, free: Vector) -> bool:
        """Return whether the job that was found may still start."""
        share_tree, demand = self._wait_index.share_tree, item.demand
        return (
            self._wait_index.head(leaf, demand) == item.entry
            and fits(demand, free)
            and share_tree.is_within_limits(leaf, demand)
            and self._may_pass(item, free)
            and (not self._promise_only or share_tree.keeps_promise(leaf, demand))
        )

    def _search(self, leaf: str, free: Vector) -> None:
        demands = self._wait_index.apart[leaf]
        headroom = self._wait_index.share_tree.headroom(leaf, free)
        item = self._first(leaf, demands, headroom, free)
        if item is None:
            self._shut.add(leaf)
        elif self._promise_only:
            item = self._first_promised(leaf, demands, headroom, free, item)
        if item is None or self.priority_tree is None:
            self.drop(leaf)
        else:
            self.found[leaf] = item
            self.priority_tree.put(leaf, self._wait_index.first[leaf][0][1])

    def _first_promised(
        self, leaf: str, demands: Demands, headroom: Vector, free: Vector, any_item: Item
    ) -> Item | None:
        """Return the first job that keeps the promise of the leaf or of a pool that it is in, or
        None. `any_item` is the first job without that condition."""
        share_tree = self._wait_index.share_tree
        if share_tree.keeps_promise(leaf, any_item.demand):
            return any_item
        found: Item | None = None
        for path in share_tree.promising(leaf):
            promised = share_tree.promised_headroom(path)
            if min(promised) >= 0:
                within = tuple([min(pair) for pair in zip(headroom, promised, strict=True)])
                found = self._first(leaf, demands, within, free, before=found) or found
        return found

    def _first(
        self,
        leaf: str,
        demands: Demands,
        headroom: tuple[float, ...],
        free: Vector,
        *,
        before: Item | None = None,
    ) -> Item | None:
        """Return the first job within the headroom that delays no reservation, or None."""
        if self._backfill is None or not self._backfill.reservations:
            if not isinstance(free, Room):
                return demands.first((*headroom, ANY_LENGTH), before=before)
            return demands.first(
                (*headroom, ANY_LENGTH), lambda item: fits(item.demand, free), before=before
            )
        found: Item | None = before
        for bounds in self._bounds(leaf, headroom, free, self._backfill):
            better = demands.first(bounds, lambda item: self._may_pass(item, free), before=found)
            found = better or found
        return None if found is before else found

    def _bounds(
        self, leaf: str, headroom: tuple[float, ...], free: Vector, backfill: Backfill
    ) -> Iterator[tuple[float, ...]]:
        """Yield bounds that together contain every job that delays no reservation: jobs that end
        before the first reservation, or fit into its extra and end before the second, and
        so on."""
        pass_context = backfill.pass_context
        guess_s = pass_context.guess_s(self._wait_index.first[leaf][0][1])
        for each in backfill.reservations:
            if each.is_drain:
                headroom = _least(headroom, beside(each, free))
        in_order = sorted(backfill.reservations, key=lambda each: each.start_s)
        for each in in_order:
            most_s = each.start_s - pass_context.now_s + _SLACK_S
            yield *headroom, ANY_LENGTH if guess_s <= most_s else most_s
            headroom = _least(headroom, [max(0, amount) for amount in each.extra])
        yield *headroom, ANY_LENGTH

    def _may_pass(self, item: Item, free: Vector) -> bool:
        """Return whether there is an instance for the job, if it needs one, and it delays no
        reservation."""
        if isinstance(free, Room) and not fits(item.demand, free):
            return False
        backfill = self._backfill
        if backfill is None or not backfill.reservations:
            return True
        deadline_s = backfill.deadline_s(item.demand, free)
        if deadline_s is None or deadline_s == inf:
            return deadline_s is not None
        return backfill.pass_context.end_s(item.entry[1]) <= deadline_s


def _least(headroom: tuple[float, ...], other: Sequence[int]) -> tuple[float, ...]:
    return tuple([min(pair) for pair in zip(headroom, other, strict=True)])
