"""The policies that exist to compare with: each does what its name says, and no more than it may.

Those that compare siblings are checked against a slow pass that recomputes everything each time.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from core.oracle import Ask, Rule, Tree, line, within
from core.worlds import (
    WEIGHT,
    World,
    carry_on,
    entitled,
    fair_share,
    fits_now,
    of,
    plan,
    queues_of,
    run,
    start,
    worlds,
)
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.ledger.queue import Entry
from drfd.core.model.events import Admitted, StartReason
from drfd.core.model.machine import Allocation
from drfd.core.scheduling.backfill import PassContext
from drfd.core.scheduling.policies import POLICIES, Plan, YarnKey, yarn_key
from fakes import ALICE, BOB, Bench, rules
from seeds import examples

STEADY = examples(40, quick=3)
#: Policies that pass over what does not fit.
SKIPPING = ["drf", "cpu", "asset", "hdrf-naive", "yarn"]


def done_by(policy: str, world: World, **more: Any) -> Plan:
    return run(world, policy, **more)


def launched(policy: str, world: World) -> str:
    """The leaves of the launches, in order: "b a a"."""
    leaves = (world.asks[at - 1].leaf for at in done_by(policy, world).admitted)
    return " ".join(leaf.removeprefix("root.") for leaf in leaves)


def tasks(policy: str, world: World) -> Counter[str]:
    return Counter(launched(policy, world).split())


# -- what all have in common -----------------------------------------------------------------------


@dataclass(kw_only=True)
class Outlook(PassContext):
    asks: Callable[[int], Ask]
    lengths: Callable[[int], float]

    def length_s(self, job_id: int) -> float:
        return self.lengths(job_id)

    def entry(self, job_id: int) -> Entry:
        return -self.asks(job_id).priority, job_id

    def leaf(self, job_id: int) -> str:
        return self.asks(job_id).leaf


def outlook_of(world: World, lengths: Callable[[int], float] = float) -> PassContext:
    held = enumerate(world.held.values(), start=1)
    return Outlook(
        asks=lambda job_id: world.asks[job_id - 1],
        lengths=lengths,
        reserving=ReservationSettings(),
        line=[(10.0 * at, 0, Allocation(each)) for at, each in held],
    )


@pytest.mark.parametrize("policy", POLICIES)
@STEADY
@given(world=worlds())
def test_no_policy_gives_more_than_there_is_nor_a_job_twice(policy, world):
    done, before = done_by(policy, world, pass_context=outlook_of(world)), start(world)
    now = start(world)
    for job_id in done.admitted:
        carry_on(now, job_id)
    assert len(set(done.admitted)) == len(done.admitted)
    assert done.free.sums == now.free
    assert min(done.free.sums) >= 0
    for path, rule in world.tree.rules.items():
        for axis, most in enumerate(rule.limit or ()):
            new, old = now.usage(path)[axis], before.usage(path)[axis]
            assert most is None or new <= max(most, old)


@pytest.mark.parametrize("policy", POLICIES)
@STEADY
@given(world=worlds(), random=some.randoms(use_true_random=False))
def test_a_pass_changes_nothing_and_the_order_of_tables_does_not_matter(policy, world, random):
    """So whatever order a restart has put them in, the same jobs give the same pass."""
    tables = (world.waiting, world.held, world.past_usage)
    rows = [list(table.items()) for table in tables]
    for each in rows:
        random.shuffle(each)
    jobs, used, past_usage = map(dict, rows)
    queues = queues_of(jobs)
    again = plan(
        policy, queues=queues, used=used, free=start(world).free, shares=fair_share(world.tree),
        past_usage=past_usage,
    )  # fmt: skip
    assert again == done_by(policy, world)
    assert queues == queues_of(world.waiting)
    assert used == world.held


@pytest.mark.parametrize("policy", POLICIES)
@STEADY
@given(world=worlds())
def test_every_leaf_that_still_waits_is_told_once(policy, world):
    done = done_by(policy, world)
    left = {ask.leaf for at, ask in world.waiting.items() if at not in done.admitted}
    assert sorted(done.order) == sorted(left)


@pytest.mark.parametrize("policy", [*SKIPPING, "slots"])
@STEADY
@given(world=worlds())
def test_who_passes_over_what_does_not_fit_leaves_nothing_that_does(policy, world):
    done, state = done_by(policy, world), start(world)
    for job_id in done.admitted:
        carry_on(state, job_id)
    assert [job_id for job_id in state.waiting if fits_now(state, job_id)] == []


# -- comparing siblings ----------------------------------------------------------------------------


def slow_turns(world: World, measure: Callable[[list[Fraction]], Any], *, stops: bool) -> list[int]:
    """Always the least (measure of shares over entitlements, head, name), level by level."""
    leaves = {*world.held, *(ask.leaf for ask in world.asks)}
    parts_of, capacity = entitled(world.tree, leaves), world.tree.capacity
    state, order, closed = start(world), list[int](), set[str]()

    def key(path: str) -> Any:
        rows = zip(state.usage(path), capacity, parts_of[path], strict=True)
        return measure([_quotient(*row) for row in rows])

    while True:
        own = {leaf: state.jobs(leaf) for leaf in sorted(leaves - closed)}
        own = {leaf: jobs for leaf, jobs in own.items() if jobs}
        if not own:
            return order
        at = "root"
        while at not in own:
            at = min(
                children_of(at, own), key=lambda node: (key(node), next_head(node, own, key), node)
            )
        able = [each for each in own[at] if fits_now(state, each)]
        if stops:
            first = state.waiting[own[at][0]]
            if not within(first.demand, state.free):
                return order
            able = own[at][:1] if state.within_limits(at, first.demand) else []
        if able:
            order.append(able[0])
            carry_on(state, able[0])
        else:
            closed.add(at)


def _quotient(amount: int, top: int, part: Fraction) -> Fraction:
    """The share over the entitlement. A node to which guarantees of siblings leave nothing is above
    all others once it has some."""
    if not top:
        return Fraction(0)
    return Fraction(amount, top) / part if part else Fraction(amount << 80)


def children_of(path: str, own: Mapping[str, list[int]]) -> set[str]:
    roads = ([*line(leaf), "root"] for leaf in own)
    return {road[road.index(path) - 1] for road in roads if path in road}


def next_head(path: str, own: Mapping[str, list[int]], key: Callable[[str], Any]) -> int:
    """The job whose turn it is below a node."""
    if path in own:
        return own[path][0]
    turns = [(key(node), next_head(node, own, key), node) for node in children_of(path, own)]
    return min(turns)[1]


@pytest.mark.parametrize(
    ("policy", "measure"),
    [("algorithm1", max), ("hdrf-naive", max), ("asset", sum), ("cpu", lambda parts: parts[0])],
)
@STEADY
@given(world=worlds())
def test_a_pass_is_what_the_slow_pass_says(policy, measure, world):
    """Of jobs within their limits: what can never start has its turn here, and not in DRF."""
    within_limits = [world.waiting[at] for at in world.waiting if start(world).could_start(at)]
    world = world._replace(past_usage={}, asks=within_limits)
    expected = slow_turns(world, measure, stops=policy == "algorithm1")
    assert done_by(policy, world).admitted == expected


def test_algorithm_1_goes_on_when_only_a_limit_stops_somebody():
    tree = Tree((10,), {"root.a": Rule(limit=(3,))})
    world = World(tree, [Ask("root.a", (2,)), Ask("root.b", (1,))] * 10)
    assert tasks("algorithm1", world) == {"a": 1, "b": 8}


# -- first come, first served ----------------------------------------------------------------------


def test_nobody_waits_for_a_job_that_the_machine_cannot_run_any_more():
    """Its configuration was changed while the job waited."""
    for policy in ("fifo", "easy", "algorithm1"):
        asks = [Ask(f"root.{leaf}", (size,)) for leaf, size in (("a", 9), ("b", 9), ("a", 2))]
        assert done_by(policy, World(Tree((5,)), asks)).admitted == [3]


def test_easy_starts_nothing_where_nobody_knows_when_enough_will_be_free():
    asks = [Ask("root.a", (8,)), Ask("root.b", (1,))]
    world = World(Tree((10,)), asks, held={"root.x": (6,)})
    blind = replace(outlook_of(world), line=())
    assert done_by("easy", world, pass_context=blind).admitted == []


def test_easy_counts_on_the_ends_of_what_it_has_just_started():
    asks = [Ask(f"root.{leaf}", (size,)) for leaf, size in (("a", 5), ("a", 8), ("b", 5), ("b", 4))]
    world = World(Tree((10,)), asks)
    lengths = {1: 7.0, 3: 8.0, 4: 7.0}
    outlook = outlook_of(world, lambda job_id: lengths.get(job_id, 99.0))
    done = done_by("easy", world, pass_context=outlook)
    assert done.admitted == [1, 4]
    assert [kept.start_s for kept in done.reservations] == [7.0]


@STEADY
@given(worlds())
def test_easy_starts_all_that_first_come_first_served_would(world):
    first = done_by("fifo", world).admitted
    easy = done_by("easy", world, pass_context=outlook_of(world))
    assert easy.admitted[: len(first)] == first


# -- the comparator of YARN ------------------------------------------------------------------------

CLUSTER = (8, 8000)


def before(left: YarnKey, right: YarnKey) -> bool:
    return left < right


KEYS = some.builds(
    yarn_key,
    some.tuples(some.integers(0, 8), some.sampled_from([0, 1000, 2000, 4000, 8000])),
    some.just(CLUSTER),
    some.none() | some.tuples(WEIGHT, WEIGHT),
    some.none() | some.tuples(some.integers(0, 8), some.sampled_from([0, 1000, 4000, 8000])),
)


@examples(300)
@given(KEYS, KEYS, KEYS)
def test_the_comparator_is_a_total_order(one, two, three):
    for left, right in permutations((one, two, three), 2):
        assert [before(left, right), left == right, before(right, left)].count(True) == 1
    for a, b, c in permutations((one, two, three)):
        assert not (before(a, b) and before(b, c)) or before(a, c)
        assert not (a == b and before(b, c)) or before(a, c)


def test_yarn_serves_minimum_shares_first_then_the_longest_wait_then_the_name():
    asks = [Ask(f"root.{leaf}", (1, 1)) for leaf in "bac"] * 4
    world = World(Tree((8, 8), {"root.c": Rule(guarantee=(3, 0))}), asks)
    assert launched("yarn", world) == "c c c b a b a b"


# -- slots -----------------------------------------------------------------------------------------


def test_a_frozen_job_gives_its_slot_to_another_one():
    bench = Bench(replace(rules(), policy="slots", slots=1))
    bench.suspend(bench.start(of(ALICE)))
    waiting = bench.submit(of(BOB))
    assert bench.schedule() == [waiting]


def test_a_pass_gives_slots_to_who_has_fewer_and_counts_those_that_it_gives():
    bench = Bench(replace(rules(), policy="slots", slots=4))
    bench.start(of(ALICE))
    waiting = [bench.submit(of(actor)) for actor in (ALICE, ALICE, BOB, BOB, BOB)]
    assert sorted(bench.schedule()) == [waiting[0], *waiting[2:4]]
    whys = [event.why for event in bench.events if isinstance(event, Admitted)]
    assert whys == [StartReason.TURN] * 4
