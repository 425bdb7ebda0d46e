"""The policies that exist to compare with: each does what its name says, and no more than it may.

Those that compare siblings are checked against a slow pass that recomputes everything each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from core.worlds import plan
from drfd.core.amounts.vectors import Vector, fits, minus, plus, total
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.fairness.share_tree import FairShare, NodeRule, path_up
from drfd.core.ledger.queue import LeafQueue
from drfd.core.scheduling.backfill import PassContext
from drfd.core.scheduling.baseline_policies import YarnKey, yarn_key
from drfd.core.scheduling.plan import Plan, PolicyOptions
from drfd.core.scheduling.scheduling_pass import POLICIES
from drfd.sim import theory
from drfd.sim.theory import FlowDemand
from seeds import examples

STEADY = examples(40, quick=3)
#: Policies that pass over what does not fit.
SKIPPING = ["drf", "cpu", "asset", "hdrf-naive", "yarn"]


class Ask(NamedTuple):
    """A waiting job; its id is its place in the list of all, from 1."""

    leaf: str
    demand: Vector
    priority: int = 0


class World(NamedTuple):
    capacity: Vector
    asks: Sequence[Ask]
    rules: Mapping[str, NodeRule] = {}
    used: Mapping[str, Vector] = {}


def queues_of(asks: Sequence[Ask]) -> dict[str, LeafQueue]:
    queues: dict[str, LeafQueue] = {}
    for job_id, ask in enumerate(asks, start=1):
        queues.setdefault(ask.leaf, LeafQueue()).add(ask.demand, (-ask.priority, job_id))
    return queues


def free_of(world: World) -> Vector:
    return minus(world.capacity, total(world.used.values(), (0,) * len(world.capacity)))


def run(
    policy: str,
    world: World,
    terms: PolicyOptions | None = None,
    pass_context: PassContext | None = None,
) -> Plan:
    return plan(
        policy,
        queues=queues_of(world.asks),
        used=world.used,
        free=free_of(world),
        shares=FairShare(world.capacity, world.rules),
        pass_context=pass_context,
        terms=terms or PolicyOptions(slots=1000),
    )


def launched(policy: str, world: World, terms: PolicyOptions | None = None) -> str:
    """The leaves of the launches, in order: "B A A"."""
    return " ".join(world.asks[at - 1].leaf for at in run(policy, world, terms).admitted)


def tasks(policy: str, world: World, terms: PolicyOptions | None = None) -> Counter[str]:
    return Counter(launched(policy, world, terms).split())


# -- what all have in common --------------------------------------------------------------------

LEAVES = ["a", "b", "p.a", "p.b", "q.r.a"]
WEIGHT = some.builds(Fraction, some.integers(1, 5), some.integers(1, 3))


@some.composite
def worlds(draw: some.DrawFn) -> World:
    """A machine, jobs of few kinds, weights, limits, guarantees, and what runs."""
    axes = draw(some.integers(1, 3))
    capacity = tuple(draw(some.lists(some.integers(1, 30), min_size=axes, max_size=axes)))
    vector = some.tuples(*(some.integers(0, max(1, top // 2)) for top in capacity)).filter(any)
    menu = draw(some.lists(vector, min_size=1, max_size=4))
    ask = some.builds(Ask, some.sampled_from(LEAVES), some.sampled_from(menu), some.integers(-1, 1))
    amounts = some.tuples(*(some.integers(0, top) for top in capacity))
    rule = some.builds(
        NodeRule,
        weights=some.none() | some.tuples(*[WEIGHT] * axes),
        limit=some.none() | amounts,
        guarantee=some.none() | amounts,
    )
    nodes = sorted({path for leaf in LEAVES for path in path_up(leaf)})
    rules = draw(some.dictionaries(some.sampled_from(nodes), rule, max_size=3))
    used: dict[str, Vector] = {}
    room = capacity
    for leaf in draw(some.sets(some.sampled_from([*LEAVES, "x"]), max_size=3)):
        part = tuple(draw(some.integers(0, left)) for left in room)
        used[leaf] = part
        room = minus(room, part)
    return World(capacity, draw(some.lists(ask, max_size=20)), rules, used)


def outlook_of(world: World, lengths: Callable[[int], float] = float) -> PassContext:
    return PassContext(
        now_s=0.0,
        patience=ReservationSettings(),
        ends=[(10.0 * at, held) for at, held in enumerate(world.used.values(), start=1)],
        since_s=lambda job_id: 0.0,
        length_s=lengths,
        entry=lambda job_id: (-world.asks[job_id - 1].priority, job_id),
        before=(),
    )


@pytest.mark.parametrize("policy", POLICIES)
@STEADY
@given(world=worlds())
def test_no_policy_gives_more_than_there_is_nor_a_job_twice(policy: str, world: World) -> None:
    done = run(policy, world, pass_context=outlook_of(world))
    given_out = [world.asks[at - 1].demand for at in done.admitted]
    assert done.free == minus(free_of(world), total(given_out, (0,) * len(world.capacity)))
    assert all(amount >= 0 for amount in done.free)
    assert len(set(done.admitted)) == len(done.admitted)
    held = {path: (0,) * len(world.capacity) for leaf in LEAVES for path in path_up(leaf)}
    pairs = [*((world.asks[at - 1].leaf, world.asks[at - 1].demand) for at in done.admitted)]
    for leaf, demand in pairs:
        for path in path_up(leaf):
            held[path] = plus(held[path], demand)
    for path, rule in world.rules.items():
        if rule.limit is not None and any(held[path]):
            below = [each for leaf, each in world.used.items() if path in path_up(leaf)]
            before = total(below, (0,) * len(world.capacity))
            for new, old, most in zip(held[path], before, rule.limit, strict=True):
                assert not new or most is None or new + old <= most


@pytest.mark.parametrize("policy", POLICIES)
@STEADY
@given(world=worlds(), random=some.randoms(use_true_random=False))
def test_a_pass_changes_nothing_and_the_order_of_tables_does_not_matter(
    policy: str, world: World, random: Random
) -> None:
    shuffled = list(enumerate(world.asks, start=1))
    random.shuffle(shuffled)
    queues: dict[str, LeafQueue] = {}
    for job_id, ask in shuffled:
        queues.setdefault(ask.leaf, LeafQueue()).add(ask.demand, (-ask.priority, job_id))
    used = dict(reversed(list(world.used.items())))
    again = plan(
        policy, queues=queues, used=used, free=free_of(world),
        shares=FairShare(world.capacity, world.rules), terms=PolicyOptions(slots=1000),
    )  # fmt: skip
    assert again == run(policy, world)
    assert queues == queues_of(world.asks)
    assert used == world.used


@pytest.mark.parametrize("policy", POLICIES)
@STEADY
@given(world=worlds())
def test_every_leaf_that_still_waits_is_told_once(policy: str, world: World) -> None:
    done = run(policy, world)
    left = {ask.leaf for at, ask in enumerate(world.asks, 1) if at not in done.admitted}
    assert len(done.order) == len(set(done.order))
    assert set(done.order) == left


@pytest.mark.parametrize("policy", [*SKIPPING, "slots"])
@STEADY
@given(world=worlds())
def test_who_passes_over_what_does_not_fit_leaves_nothing_that_does(
    policy: str, world: World
) -> None:
    world = world._replace(
        rules={path: NodeRule(weights=rule.weights) for path, rule in world.rules.items()}
    )
    done = run(policy, world)
    left = [ask for at, ask in enumerate(world.asks, 1) if at not in done.admitted]
    assert [ask for ask in left if fits(ask.demand, done.free)] == []


# -- comparing siblings -------------------------------------------------------------------------


def slow_turns(world: World, measure: Callable[[list[Fraction]], Any], *, stops: bool) -> list[int]:
    """Always the least (measure of shares over entitlements, head, name), level by level."""
    shares = FairShare(world.capacity, world.rules)
    leaves = {*world.used, *(ask.leaf for ask in world.asks)}
    share_tree = shares.share_tree({}, leaves)
    waiting = dict(enumerate(world.asks, start=1))
    held = {path: (0,) * len(world.capacity) for leaf in leaves for path in path_up(leaf)}
    for leaf, amount in world.used.items():
        for path in path_up(leaf):
            held[path] = plus(held[path], amount)
    free, order, closed = free_of(world), [], set()

    def may(job_id: int) -> bool:
        ask = waiting[job_id]
        for path in path_up(ask.leaf):
            after = plus(held[path], ask.demand)
            for asked, most, new in zip(
                ask.demand, shares.rule(path).limit or (), after, strict=False
            ):
                if asked and most is not None and new > most:
                    return False
        return True

    def key(path: str) -> Any:
        return measure(
            [
                Fraction(amount, top) / part if part else Fraction(0)
                for amount, top, part in zip(
                    held[path], world.capacity, share_tree.entitled(path), strict=True
                )
            ]
        )

    while True:
        own: dict[str, list[int]] = {}
        for job_id in sorted(waiting, key=lambda each: (-waiting[each].priority, each)):
            if waiting[job_id].leaf not in closed:
                own.setdefault(waiting[job_id].leaf, []).append(job_id)
        if not own:
            return order
        at = "root"
        while at not in own:
            at = min(
                children_of(at, own), key=lambda node: (key(node), next_head(node, own, key), node)
            )
        if stops:
            first = own[at][0]
            if not fits(waiting[first].demand, free):
                return order
            able = [first] if may(first) else []
        else:
            able = [each for each in own[at] if fits(waiting[each].demand, free) and may(each)]
        if not able:
            closed.add(at)
            continue
        order.append(able[0])
        ask = waiting.pop(able[0])
        free = minus(free, ask.demand)
        for path in path_up(at):
            held[path] = plus(held[path], ask.demand)


def children_of(path: str, own: Mapping[str, list[int]]) -> set[str]:
    lines = ([*path_up(leaf), "root"] for leaf in own)
    return {line[line.index(path) - 1] for line in lines if path in line}


def next_head(path: str, own: Mapping[str, list[int]], key: Callable[[str], Any]) -> int:
    """The job whose turn it is below a node."""
    if path in own:
        return own[path][0]
    turns = [(key(node), next_head(node, own, key), node) for node in children_of(path, own)]
    return min(turns)[1]


@pytest.mark.parametrize(
    ("policy", "measure"),
    [
        ("algorithm1", max),
        ("hdrf-naive", max),
        ("asset", sum),
        ("cpu", lambda parts: parts[0]),
    ],
)
@STEADY
@given(world=worlds())
def test_a_pass_is_what_the_slow_pass_says(
    policy: str, measure: Callable[[list[Fraction]], Any], world: World
) -> None:
    expected = slow_turns(world, measure, stops=policy == "algorithm1")
    assert run(policy, world).admitted == expected


def test_algorithm_1_goes_on_when_only_a_limit_stops_somebody() -> None:
    world = World((10,), [Ask("A", (2,)), Ask("B", (1,))] * 10, {"A": NodeRule(limit=(3,))})
    assert tasks("algorithm1", world) == {"A": 1, "B": 8}


@STEADY
@given(
    some.lists(some.integers(5, 60), min_size=1, max_size=3),
    some.integers(1, 5),
    some.data(),
)
def test_algorithm_1_is_within_one_largest_task_of_the_continuous_answer(
    capacity: list[int], count: int, data: some.DataObject
) -> None:
    """Theorem 7: and so are any two users of each other. Who goes on after that may go further."""
    vector = some.tuples(*(some.integers(0, max(1, top // 3)) for top in capacity)).filter(any)
    demands = {name: data.draw(vector) for name in "ABCDE"[:count]}
    machine = tuple(capacity)
    asks = [Ask(leaf, demand) for _ in range(max(machine) + 1) for leaf, demand in demands.items()]
    ran = tasks("algorithm1", World(machine, asks))

    def share(demand: Vector, number: int | Fraction) -> Fraction:
        return max(number * Fraction(each, top) for each, top in zip(demand, machine, strict=True))

    largest = max(share(demand, 1) for demand in demands.values())
    wants = {leaf: FlowDemand(demand=tuple(map(Fraction, each))) for leaf, each in demands.items()}
    ideal = theory.algorithm1(FairShare(machine), wants)
    shares = {leaf: share(demand, ran[leaf]) for leaf, demand in demands.items()}
    assert max(shares.values()) - min(shares.values()) <= largest
    for leaf, demand in demands.items():
        assert abs(shares[leaf] - share(demand, ideal[leaf])) <= largest


# -- first come, first served -------------------------------------------------------------------


def test_nobody_waits_for_a_job_that_the_machine_cannot_run_any_more() -> None:
    """Its configuration was changed while the job waited."""
    for policy in ("fifo", "easy", "algorithm1"):
        assert run(policy, World((5,), [Ask("A", (9,)), Ask("A", (2,))])).admitted == [2]


def test_easy_starts_nothing_where_nobody_knows_when_enough_will_be_free() -> None:
    world = World((10,), [Ask("A", (8,)), Ask("B", (1,))], used={"x": (6,)})
    blind = replace(outlook_of(world), ends=[])
    assert run("easy", world, pass_context=blind).admitted == []


def test_easy_counts_on_the_ends_of_what_it_has_just_started() -> None:
    asks = [Ask("A", (5,)), Ask("A", (8,)), Ask("B", (5,)), Ask("B", (4,))]
    world = World((10,), asks)
    lengths = {1: 7.0, 3: 8.0, 4: 7.0}
    done = run(
        "easy", world, pass_context=outlook_of(world, lambda job_id: lengths.get(job_id, 99.0))
    )
    assert done.admitted == [1, 4]
    assert [kept.start_s for kept in done.reservations] == [7.0]


@STEADY
@given(worlds())
def test_easy_starts_all_that_first_come_first_served_would(world: World) -> None:
    first = run("fifo", world).admitted
    assert run("easy", world, pass_context=outlook_of(world)).admitted[: len(first)] == first


@STEADY
@given(some.randoms(use_true_random=False))
def test_with_exact_estimates_easy_never_delays_the_first_that_waits(random: Random) -> None:
    """A stream under a virtual clock: nobody starts later than at the time first kept for them."""
    jobs = {
        job_id: (Ask("ABC"[job_id % 3], (random.randint(1, 8), random.randint(1, 8))),
                 float(random.randint(1, 20)))
        for job_id in range(1, 40)
    }  # fmt: skip
    waiting, running, promised, now_s = dict(jobs), {}, {}, 0.0
    while waiting:
        queues: dict[str, LeafQueue] = {}
        for job_id, (ask, _) in waiting.items():
            queues.setdefault(ask.leaf, LeafQueue()).add(ask.demand, (0, job_id))
        used: dict[str, Vector] = {}
        for job_id in running:
            ask = jobs[job_id][0]
            used[ask.leaf] = plus(used.get(ask.leaf, (0, 0)), ask.demand)
        done = plan(
            "easy", queues=queues, used=used, free=minus((10, 10), total(used.values(), (0, 0))),
            shares=FairShare((10, 10)),
            pass_context=PassContext(
                now_s=now_s, patience=ReservationSettings(),
                ends=[(end_s, jobs[job_id][0].demand) for job_id, end_s in running.items()],
                since_s=lambda job_id: 0.0, length_s=lambda job_id: jobs[job_id][1],
                entry=lambda job_id: (0, job_id), before=(),
            ),
        )  # fmt: skip
        for job_id in done.admitted:
            assert now_s <= promised.get(job_id, now_s)
            running[job_id] = now_s + waiting.pop(job_id)[1]
        for kept in done.reservations:
            promised.setdefault(kept.job_id, kept.start_s)
        now_s = min(running.values())
        running = {job_id: end_s for job_id, end_s in running.items() if end_s > now_s}


# -- the comparator of YARN ---------------------------------------------------------------------

CLUSTER = (8, 8000)


def before(left: YarnKey, right: YarnKey) -> bool:
    return left < right


def test_a_needy_queue_comes_before_one_that_is_not() -> None:
    needy = yarn_key((4, 0), CLUSTER, min_share=(5, 0))
    assert before(needy, yarn_key((1, 0), CLUSTER))


KEYS = some.builds(
    yarn_key,
    some.tuples(some.integers(0, 8), some.sampled_from([0, 1000, 2000, 4000, 8000])),
    some.just(CLUSTER),
    some.none() | some.tuples(WEIGHT, WEIGHT),
    some.none() | some.tuples(some.integers(0, 8), some.sampled_from([0, 1000, 4000, 8000])),
)


@examples(300)
@given(KEYS, KEYS, KEYS)
def test_the_comparator_is_a_total_order(one: YarnKey, two: YarnKey, three: YarnKey) -> None:
    for left, right in permutations((one, two, three), 2):
        assert [before(left, right), left == right, before(right, left)].count(True) == 1
    for a, b, c in permutations((one, two, three)):
        assert not (before(a, b) and before(b, c)) or before(a, c)
        assert not (a == b and before(b, c)) or before(a, c)


def test_yarn_serves_minimum_shares_first_then_the_longest_wait_then_the_name() -> None:
    asks = [Ask("b", (1, 1)), Ask("a", (1, 1)), Ask("c", (1, 1))] * 4
    world = World((8, 8), asks, {"c": NodeRule(guarantee=(3, 0))})
    assert launched("yarn", world) == "c c c b a b a b"
