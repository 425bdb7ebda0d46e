"""What tests of the core ask the product: passes over random machines, trees and queues as plain
values, and over the books of a bench; reasons, forecasts and preemptions.

They ask through this module, so that little of the product's inside is known elsewhere.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from fractions import Fraction
from types import FrameType
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as some

from core.oracle import Ask, Pass, Rule, Tree, Vector, added, begin, line, within
from drfd.common.errors import Refused
from drfd.core.decisions import stimuli as st
from drfd.core.explain.forecast import Forecast
from drfd.core.explain.reasons import explain_wait
from drfd.core.fairness.rules import Preempting, ReservationSettings
from drfd.core.fairness.share_tree import FairShare, NodeRule
from drfd.core.ledger.queue import LeafQueue, Line
from drfd.core.model import events as ev
from drfd.core.model.job import JobSpec
from drfd.core.model.machine import FreeResources
from drfd.core.scheduling import scheduler
from drfd.core.scheduling.backfill import PassContext, Reservation, make_pass_context
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.core.scheduling.policies import POLICIES, PassInput, Plan
from drfd.core.scheduling.preemption import Departures, Starving, Supply, preempt
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import Scheduler, build_wait_index
from drfd.core.scheduling.wait_index import LeafTables, WaitIndex
from drfd.core.scheduling.waits import Wait
from fakes import ALICE, Bench, demand, now, schedule, spec

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
    free: Vector | FreeResources,
    shares: FairShare,
    past_usage: Mapping[str, float] | None = None,
    pass_context: PassContext | None = None,
    recent: Mapping[str, Vector] | None = None,
) -> Plan:
    """A pass over an index of its own."""
    tables = LeafTables(
        queues=queues, used=used, shares=shares, past_usage=past_usage or {}, recent=recent or {}
    )
    given = PassInput(
        wait_index=WaitIndex(tables),
        free=free if isinstance(free, FreeResources) else FreeResources(free),
        pass_context=pass_context,
    )
    return POLICIES[policy](given)


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
        line = queues.setdefault(ask.leaf, {}).setdefault(ask.demand, Line())
        line.add((-ask.priority, job_id))
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
def worlds(draw: some.DrawFn) -> World:
    """Jobs of few different demands, some of them zero; some room is held already."""
    tree = draw(trees())
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


def guard_of(done: Plan) -> int | None:
    """The job that no later one of its leaf may pass."""
    return next(iter(done.unpassed.values()), None)


def reserved(last: Plan | None) -> Reservation | None:
    """What a pass of depth 1 keeps for a big job on the machine."""
    return next((each for each in all_reserved(last) if each.within == "root"), None)


def all_reserved(last: Plan | None) -> tuple[Reservation, ...]:
    """What a pass keeps for big jobs; goes into the next one."""
    return last.reservations if last is not None else ()


# -- with the books of a bench ---------------------------------------------------------------------

CAROL, DAVE, ERIN = (
    st.Actor(user=user, uid=1003 + at, is_admin=False)
    for at, user in enumerate(("carol", "dave", "erin"))
)


def of(
    actor: st.Actor,
    cores: float = 1,
    memory_gib: float = 1,
    *,
    limit_s: int | None = 3600,
    read: int = 0,
    write: int = 0,
    **more: Any,
) -> JobSpec:
    """A job of this user, in a pool of the user's own unless `more` names another one."""
    asks = demand(cores, memory_gib, read=read, write=write)
    pool = more.pop("pool", f"root.{actor.user}")
    return spec(pool, actor=actor, asks=asks, time_limit_s=limit_s, **more)


def refused(bench: Bench, stimulus: st.Stimulus) -> Refused:
    """The refusal; that the books stay as they were is checked by `feed`."""
    with pytest.raises(Refused) as caught:
        bench.feed(stimulus)
    return caught.value


def change(bench: Bench, job_id: int, actor: st.Actor = ALICE, **wish: Any) -> list[ev.Event]:
    found = bench.feed(st.ChangeAsked(now(), job_id, actor, st.Change(**wish)))
    bench.ledger.check()
    return found


def why(bench: Bench, job_id: int, last: Plan | None = None, **known: Any) -> Wait | None:
    """The reason after a pass that had nothing left to do (unless another is given)."""
    last = last or schedule(bench.ledger, bench.rules)
    assert last.admitted == []
    return explain_wait(bench.job(job_id), bench.ledger, last, bench.rules, **known)


def context(
    bench: Bench,
    at_s: float = 0.0,
    *,
    reserving: ReservationSettings | None = None,
    before: Sequence[Reservation] = (),
    external: ExternalLoad | None = None,
    run_times: RunTimes | None = None,
) -> PassContext:
    """What a pass at this time knows of what runs and what was reserved."""
    return make_pass_context(
        bench.ledger,
        replace(bench.rules, reserving=reserving or bench.rules.reserving),
        run_times or RunTimes(),
        now_s=now(at_s).at_s,
        before=tuple(before),
        external=external,
    )


def pass_over(bench: Bench, at_s: float = 0.0, **known: Any) -> Plan:
    """A pass that changes nothing; `known` goes to its context."""
    ledger, rules = bench.ledger, bench.rules
    wait_index = build_wait_index(ledger, rules, {}, {})
    seen = context(bench, at_s, **known)
    return scheduler.schedule(ledger, rules, wait_index, seen)


def forecast(
    bench: Bench,
    at_s: float = 0.0,
    run_times: RunTimes | None = None,
    *,
    before: tuple[Reservation, ...] = (),
    external: ExternalLoad | None = None,
) -> Forecast:
    """From this time on; of a copy of the books, as a forecast uses them up."""
    ledger, past = deepcopy(bench.ledger), run_times or RunTimes()
    scheduler = Scheduler(bench.rules.half_life_s, past)
    scheduler._restored = before
    return Forecast(ledger, bench.rules, scheduler, now(at_s), external)


def start_s(
    bench: Bench, job_id: int, at_s: float = 0.0, external: ExternalLoad | None = None
) -> float | None:
    """When the job starts, as it looks at `at_s`; seconds since the world began."""
    found = forecast(bench, at_s, external=external).start_s(job_id)
    return None if found is None else found - now().at_s


def preemptions(
    bench: Bench,
    path: str,
    job_id: int,
    how: Preempting | None = None,
    *,
    at_s: float = 5000.0,
    external: ExternalLoad | None = None,
) -> Sequence[ev.PreemptRequested | ev.SuspendRequested]:
    """Who has to give way when the node starves for the job."""
    ledger, rules = bench.ledger, copy(bench.rules)
    object.__setattr__(rules, "preempting", how or Preempting())
    supply = Supply(Departures().update(ledger, now(at_s).mono_s, 0.0), external)
    share_tree = rules.shares.share_tree(ledger.used, ledger.queues)
    return preempt(ledger, rules, share_tree, supply, Starving(path, job_id), now(at_s))


def pass_of(bench: Bench, scheduler: Scheduler, at_s: float) -> list[int]:
    """Make a pass of a kept scheduler; the jobs that start or have to give way."""
    found = []
    for event in scheduler.run(bench.ledger, bench.rules, now(at_s)):
        bench.befall(event)
        found.append(event.job_id)
    return found


@contextmanager
def lines_counted() -> Iterator[list[int]]:
    """The lines of the core that are executed: the same on every machine, however busy."""
    lines = [0]

    def in_product(frame: FrameType, event: str, _: object) -> Any:
        lines[0] += event == "line"
        return in_product

    def trace(frame: FrameType, event: str, _: object) -> Any:
        return in_product if "/drfd/core/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)
