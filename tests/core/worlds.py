"""Random machines, trees and queues as plain values, and real passes over them.

Tests ask the product through this module, so that little of its inside is known elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from hypothesis import strategies as some

from core.oracle import Ask, Pass, Rule, Tree, Vector, added, begin, line, within
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.ledger.queue import LeafQueue
from drfd.core.scheduling.backfill import PassContext, Reservation
from drfd.core.scheduling.plan import PassInput, Plan, PolicyOptions
from drfd.core.scheduling.scheduling_pass import POLICIES
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex

#: Leaves of three depths. Pools and groups have capitals, users have none.
LEAVES = (
    "root.a", "root.b", "root.P.c", "root.P.d", "root.P.S.e", "root.P.S.f", "root.P.T.g",
    "root.Q.h", "root.Q.U.i", "root.Q.U.j",
)  # fmt: skip
NODES = sorted({path for leaf in LEAVES for path in line(leaf)})
WEIGHT = some.builds(Fraction, some.integers(1, 5), some.integers(1, 3))


def plan(
    policy: str = "drf",
    *,
    queues: Mapping[str, LeafQueue],
    used: Mapping[str, Vector],
    free: Vector,
    shares: FairShare,
    past_usage: Mapping[str, float] | None = None,
    pass_context: PassContext | None = None,
    recent: Mapping[str, Vector] | None = None,
    terms: PolicyOptions | None = None,
) -> Plan:
    """A pass over an index of its own."""
    tables = LeafTables(
        queues=queues, used=used, shares=shares, past_usage=past_usage or {}, recent=recent or {}
    )
    given = PassInput(
        wait_index=WaitIndex(tables),
        free=free,
        pass_context=pass_context,
        options=terms or PolicyOptions(),
    )
    return POLICIES[policy](given)


def run_pass(wait_index: WaitIndex, *, free: Vector, pass_context: PassContext | None) -> Plan:
    """A pass of the daemon's own policy over an index that is kept."""
    return POLICIES["drf"](PassInput(wait_index=wait_index, free=free, pass_context=pass_context))


class World(NamedTuple):
    tree: Tree
    #: A job's id is its place in this list, from 1.
    asks: Sequence[Ask]
    held: Mapping[str, Vector] = {}
    #: Usage lately, by path; decides ties.
    past_usage: Mapping[str, float] = {}

    @property
    def waiting(self) -> dict[int, Ask]:
        return dict(enumerate(self.asks, start=1))


def queues_of(waiting: Mapping[int, Ask]) -> dict[str, LeafQueue]:
    queues: dict[str, LeafQueue] = {}
    for job_id, ask in waiting.items():
        queues.setdefault(ask.leaf, LeafQueue()).add(ask.demand, (-ask.priority, job_id))
    return queues


def fair_share(tree: Tree) -> FairShare:
    return FairShare(
        tree.capacity,
        {
            path: NodeRule(
                weights=tuple(rule.weights) if rule.weights else None,
                limit=tuple(rule.limit) if rule.limit else None,
                guarantee=tuple(rule.guarantee) if rule.guarantee else None,
            )
            for path, rule in tree.rules.items()
        },
    )


def run(
    world: World,
    policy: str = "drf",
    *,
    pass_context: PassContext | None = None,
    terms: PolicyOptions | None = None,
) -> Plan:
    """The real pass; without a context nothing is reserved."""
    return plan(
        policy,
        queues=queues_of(world.waiting),
        used=world.held,
        free=start(world).free,
        shares=fair_share(world.tree),
        past_usage=world.past_usage,
        pass_context=pass_context,
        terms=terms,
    )


def entitled(tree: Tree, leaves: set[str]) -> dict[str, list[Fraction]]:
    """What the product promises each node while `leaves` are active, per resource."""
    share_tree = fair_share(tree).share_tree({}, leaves)
    nodes = {"root"} | {path for leaf in leaves for path in line(leaf)}
    return {path: list(share_tree.entitled(path)) for path in nodes}


def start(world: World) -> Pass:
    """The state before a pass, to be carried on by hand."""
    return begin(world.tree, world.waiting, world.held, world.past_usage)


def after(world: World) -> Pass:
    """The state that the real pass leaves behind."""
    state = start(world)
    for job_id in run(world).admitted:
        carry_on(state, job_id)
    return state


def carry_on(state: Pass, job_id: int) -> None:
    """Launch a job, whatever the rules say."""
    ask = state.waiting.pop(job_id)
    state.held[ask.leaf] = added(state.held[ask.leaf], ask.demand)


# -- strategies ------------------------------------------------------------------------------------


@some.composite
def rules(draw: some.DrawFn, capacity: Vector, *, bounds: bool, open_axes: bool) -> Rule:
    """Weights for all resources or for each; now and then a limit, a guarantee within it.
    `open_axes`: a limit may leave some resources out."""
    each = some.tuples(*[WEIGHT for _ in capacity])
    alike = WEIGHT.map(lambda weight: (weight,) * len(capacity))
    weights = draw(some.none() | alike | each)
    if not bounds:
        return Rule(weights)
    limit = guarantee = None
    if draw(some.booleans()):
        most = [some.integers(top // 4, top) for top in capacity]
        limit = draw(some.tuples(*(some.none() | each for each in most) if open_axes else most))
    if draw(some.booleans()):
        # A quarter at most, which is now and then more than the node above has.
        guarantee = draw(some.tuples(*(some.integers(0, c // 4) for c in capacity)))
    return Rule(weights, limit, guarantee)


@some.composite
def trees(draw: some.DrawFn, *, bounds: bool = True, axes: int = 5, open_axes: bool = True) -> Tree:
    """1 to `axes` resources; of some there may be nothing."""
    count = draw(some.integers(1, axes))
    sizes = some.sampled_from([*range(4, 31), 0, 0])
    capacity = tuple(draw(some.lists(sizes, min_size=count, max_size=count)))
    rule = rules(capacity, bounds=bounds, open_axes=open_axes)
    return Tree(capacity, draw(some.dictionaries(some.sampled_from(NODES), rule, max_size=6)))


@some.composite
def worlds(draw: some.DrawFn, *, bounds: bool = True, axes: int = 5) -> World:
    """Jobs of few different demands, some of them zero; some room is held already."""
    tree = draw(trees(bounds=bounds, axes=axes))
    vector = some.tuples(*(some.integers(0, top // 3 + 1 if top else 0) for top in tree.capacity))
    menu = draw(some.lists(vector, min_size=1, max_size=5))
    leaves = draw(some.lists(some.sampled_from(LEAVES), min_size=1, max_size=6, unique=True))
    ask = some.builds(Ask, some.sampled_from(leaves), some.sampled_from(menu), some.integers(-1, 1))
    count = draw(some.integers(2, 20))
    asks = draw(some.lists(ask, min_size=count, max_size=count))
    part = some.tuples(*(some.integers(0, top // 4) for top in tree.capacity))
    held = draw(some.dictionaries(some.sampled_from(LEAVES), part, max_size=3))
    lately = some.dictionaries(some.sampled_from(NODES), some.sampled_from([-1.0, 0.0, 2.5]))
    return World(tree, asks, held, draw(lately))


def fits_now(state: Pass, job_id: int) -> bool:
    """Into what is free, and within all limits."""
    ask = state.waiting[job_id]
    return within(ask.demand, state.free) and state.within_limits(ask.leaf, ask.demand)


def reserved(last: Plan | None) -> Reservation | None:
    """What a pass of depth 1 keeps for a big job."""
    return next(iter(all_reserved(last)), None)


def all_reserved(last: Plan | None) -> tuple[Reservation, ...]:
    """What a pass keeps for big jobs; goes into the next one."""
    return last.reservations if last is not None else ()
