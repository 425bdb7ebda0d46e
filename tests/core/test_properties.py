"""What fair shares promise (docs/fairness.md 1.6): passes over random trees, and filled machines.

Every pass is compared with the slow pass of `oracle.py`. Machines have one to five resources, now
and then none of one; users ask for several vectors, with zeros; nodes have weights, limits and
guarantees, and hold something already. Where a row of 1.6 says that a property must not be
asserted, its counterexample is here too.
"""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import product
from math import floor
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from core.oracle import (
    Ask,
    Pass,
    Rule,
    Tree,
    Vector,
    above,
    line,
    promises,
    shared_out,
    taken,
)
from core.worlds import (
    LEAVES,
    NODES,
    WEIGHT,
    World,
    after,
    carry_on,
    entitled,
    rules,
    run,
    start,
    trees,
    worlds,
)
from seeds import examples, runs

# -- one pass over a random tree -------------------------------------------------------------------


@examples(400, quick=5)
@given(worlds())
def test_a_pass_over_a_tree_is_what_the_slow_pass_says(world):
    state = start(world)
    for job_id in run(world).admitted:
        assert job_id in state.choices()
        carry_on(state, job_id)
    assert state.choices() == set()


@examples(150, quick=11)
@given(trees(), some.sets(some.sampled_from(LEAVES), min_size=1))
def test_what_each_node_is_promised_is_what_the_slow_division_says(tree, leaves):
    """By weight, within guarantee and limit, on each resource by itself, level by level."""
    expected = promises(tree, leaves)
    assert entitled(tree, leaves) == expected
    for path, parts in expected.items():
        below = [expected[child] for child in expected if child != "root" and above(child) == path]
        for axis, part in enumerate(parts):
            assert sum((each[axis] for each in below), Fraction(0)) <= part


# -- whole jobs fill an empty machine --------------------------------------------------------------


STEADY = examples(100)
USERS = [f"root.{name}" for name in "abcdef"]


def long_queues(tree: Tree, demands: Mapping[str, Vector], rounds: int | None = None) -> World:
    """One vector each, more jobs than the machine can hold, submitted in turn."""
    rounds = max(tree.capacity) + 1 if rounds is None else rounds
    return World(
        tree, [Ask(leaf, wanted) for _ in range(rounds) for leaf, wanted in demands.items()]
    )


def tasks(world: World) -> Counter[str]:
    """How many jobs of each user run; "a" stands for "root.a"."""
    leaves = (world.asks[job_id - 1].leaf for job_id in run(world).admitted)
    return Counter(leaf.removeprefix("root.") for leaf in leaves)


def filled(capacity: Vector, rounds: int = 40, **demands: Vector) -> Counter[str]:
    wanted = {f"root.{user}": demand for user, demand in demands.items()}
    return tasks(long_queues(Tree(capacity), wanted, rounds))


def dominant(state: Pass, leaf: str) -> Fraction:
    pairs = zip(state.usage(leaf), state.tree.capacity, strict=True)
    return max(Fraction(amount, top) for amount, top in pairs if top)


def could_run(demand: Vector, bundle: Vector) -> int:
    """How many jobs of this demand fit into a bundle."""
    return min(b // d for b, d in zip(bundle, demand, strict=True) if d)


# -- sharing incentive and promise -----------------------------------------------------------------


@some.composite
def capacities(draw: some.DrawFn, least: int = 4, axes: int = 5) -> Vector:
    return tuple(draw(some.lists(some.integers(least, 40), min_size=1, max_size=axes)))


@some.composite
def flat_worlds(draw: some.DrawFn) -> World:
    """Users side by side, with weights, limits and guarantees, and jobs of several vectors."""
    capacity = draw(capacities())
    rule = rules(capacity, bounds=True, open_axes=True)
    tree = Tree(capacity, draw(some.dictionaries(some.sampled_from(USERS), rule, max_size=4)))
    vector = some.tuples(*(some.integers(0, top // 2) for top in capacity))
    ask = some.builds(
        Ask,
        some.sampled_from(USERS),
        some.sampled_from(draw(some.lists(vector, min_size=1, max_size=6))),
        some.integers(-1, 1),
    )
    count = draw(some.integers(5, 30))
    return World(tree, draw(some.lists(ask, min_size=count, max_size=count)))


@examples(100, quick=5)
@given(flat_worlds())
def test_no_job_waits_that_its_users_promise_has_room_for(world):
    """Filled from empty, users side by side: exactly, and whatever their jobs are."""
    state = after(world)
    for ask in state.waiting.values():
        assert not state.keeps_promise(ask.leaf, ask.demand)


@examples(100, quick=13)
@given(capacities(), some.data())
def test_nobody_runs_fewer_jobs_than_on_his_own_part_of_the_machine(capacity, data):
    """Sharing incentive. Weights may differ by resource: then each resource is split by its own."""
    users = USERS[: data.draw(some.integers(1, 5))]
    vector = some.tuples(*(some.integers(0, top) for top in capacity)).filter(any)
    demands = {user: data.draw(vector) for user in users}
    rule = rules(capacity, bounds=False, open_axes=True)
    tree = Tree(capacity, data.draw(some.dictionaries(some.sampled_from(users), rule)))
    world = long_queues(tree, demands)
    ran, promised = tasks(world), start(world).promised
    for user, demand in demands.items():
        parts = zip(promised[user], capacity, demand, strict=True)
        alone = min(floor(part * top / asked) for part, top, asked in parts if asked)
        assert ran[user.removeprefix("root.")] >= alone


@examples(100, quick=11)
@given(capacities(axes=3), some.data())
def test_in_a_tree_no_pool_of_users_who_ask_alike_ends_below_its_promise(capacity, data):
    """Three levels; each pool has a weight of its own, and its users are equals: below it directly,
    in one group, or each in a group of his own."""
    rule = rules(capacity, bounds=False, open_axes=True)
    vector = some.tuples(*(some.integers(0, top // 2) for top in capacity)).filter(any)
    demands, tree_rules = {}, {}
    for pool in data.draw(some.sampled_from(["P", "PQ", "PQR", "PQRS"])):
        tree_rules[f"root.{pool}"] = data.draw(rule)
        wanted, place = data.draw(vector), data.draw(some.sampled_from(["", ".T", ".T{}"]))
        for number in range(data.draw(some.integers(1, 4))):
            demands[f"root.{pool}{place.format(number)}.u{number}"] = wanted
    state = after(long_queues(Tree(capacity, tree_rules), demands))
    for leaf, demand in demands.items():
        for path in (leaf, line(leaf)[-1]):
            assert not state.keeps_promise(path, demand)


@pytest.mark.parametrize(("seed", "ends"), runs(range(3), steps=400, quick=60))
def test_after_many_ends_no_promise_is_short_by_more_than_the_largest_job(seed, ends):
    """Jobs end one by one; each time a pass gives away what has come back."""
    random = Random(seed)
    capacity = tuple(random.randint(10, 60) for _ in range(random.randint(1, 3)))
    demands: dict[str, Vector] = {}
    weights: dict[str, Rule] = {}
    for pool in "PQRS"[: random.randint(2, 4)]:
        weights[f"root.{pool}"] = Rule([Fraction(random.randint(1, 4)) for _ in capacity])
        first, *others = (random.randint(1, top // 3) for top in capacity)
        wanted = (first, *(random.choice([0, other]) for other in others))
        place = random.choice(["", ".T", ".T{}"])
        for number in range(random.randint(1, 3)):
            demands[f"root.{pool}{place.format(number)}.u{number}"] = wanted
    largest = tuple(map(max, zip(*demands.values(), strict=True)))
    held: dict[str, Vector] = {}
    running: list[str] = []
    for _ in range(ends):
        world = long_queues(Tree(capacity, weights), demands)._replace(held=held)
        state = start(world)
        for job_id in run(world).admitted:
            running.append(state.waiting[job_id].leaf)
            carry_on(state, job_id)
        for leaf in demands:
            for path in (leaf, line(leaf)[-1]):
                assert not state.keeps_promise(path, largest)
        leaf = running.pop(random.randrange(len(running)))
        held = dict(state.held) | {leaf: taken(state.held[leaf], demands[leaf])}


def test_a_guarantee_is_a_promise_whatever_the_weights():
    """Sixty per cent for one user among four equals: the first phase keeps it."""
    tree = Tree((10,), {"root.a": Rule(guarantee=(6,))})
    ran = tasks(long_queues(tree, {f"root.{user}": (1,) for user in "abcd"}))
    assert (ran["a"], ran.total()) == (6, 10)


def test_whoever_comes_when_all_is_held_waits_below_his_promise():
    """The sharing incentive ends where jobs that run cannot be stopped."""
    world = World(Tree((6,)), [Ask("root.b", (1,))] * 6, held={"root.a": (6,)})
    assert tasks(world) == {}


def test_a_pool_with_a_short_queue_stays_below_its_promise():
    world = World(Tree((6,)), [Ask("root.P.a", (1,)), *[Ask("root.b", (1,))] * 6])
    assert tasks(world) == {"P.a": 1, "b": 5}


def test_whole_jobs_may_end_below_the_continuous_share():
    """B's continuous share is 40/13 jobs, so three; it runs two, no fewer than half a machine."""
    a, b = Fraction(3, 8), Fraction(1, 5)
    load = max(Fraction(1, 5) / a + Fraction(1, 5) / b, Fraction(3, 8) / a + Fraction(1, 8) / b)
    assert (1 / load / a, 1 / load / b) == (Fraction(64, 39), Fraction(40, 13))
    assert filled((5, 8), a=(1, 3), b=(1, 1)) == {"a": 2, "b": 2}


# -- one resource, one bottleneck ------------------------------------------------------------------


@STEADY
@given(some.integers(0, 14), some.lists(some.integers(1, 6), min_size=1, max_size=4))
def test_one_resource_is_shared_max_min(top, lengths):
    """Of all ways to run jobs of size 1, the one whose worst-off has most, then the next, …"""
    ways = product(*(range(length + 1) for length in lengths))
    best = max(sorted(way) for way in ways if sum(way) <= top)
    asks = [Ask(USERS[at], (1,)) for at, length in enumerate(lengths) for _ in range(length)]
    ran = tasks(World(Tree((top,)), asks))
    assert sorted(ran[user] for user in "abcd"[: len(lengths)]) == best


@STEADY
@given(
    some.integers(12, 100),
    some.lists(some.tuples(some.integers(1, 12), some.integers(1, 9)), min_size=2, max_size=5),
)
def test_one_resource_is_shared_max_min_within_one_job_of_each(top, users):
    """Jobs of any size: nobody is more than one job ahead of a user who still waits, but for the
    rest that is smaller than that user's job and goes to whoever fits into it."""
    asks = [Ask(USERS[at], (size,)) for at, (size, count) in enumerate(users) for _ in range(count)]
    state = after(World(Tree((top,)), asks))
    sizes = {USERS[at]: size for at, (size, _) in enumerate(users)}
    for low in {ask.leaf for ask in state.waiting.values()}:
        for high, size in sizes.items():
            ahead = state.usage(high)[0] - state.usage(low)[0]
            assert ahead < max(size, sizes[low]) + sizes[low]


def filled_with_water(tree: Tree, wanted: Mapping[str, int]) -> dict[str, Fraction]:
    """Max-min by weight at every level, from the top, of what can be divided without end."""
    found: dict[str, Fraction] = {}

    def need(path: str) -> int:
        return sum(count for leaf, count in wanted.items() if path in ("root", *line(leaf)))

    def fill(path: str, amount: Fraction) -> None:
        found[path] = amount
        children = sorted({p for leaf in wanted for p in line(leaf) if above(p) == path})
        claims = []
        for child in children:
            weights = tree.rules.get(child, Rule()).weights or [Fraction(1)]
            claims.append((weights[0], Fraction(0), Fraction(need(child))))
        for child, part in zip(children, shared_out(amount, claims), strict=True):
            fill(child, part)

    fill("root", Fraction(min(tree.capacity[0], need("root"))))
    return found


@examples(100, quick=5)
@given(
    some.integers(20, 300),
    some.dictionaries(some.sampled_from(LEAVES), some.integers(1, 150), min_size=2, max_size=8),
    some.dictionaries(some.sampled_from(NODES), WEIGHT.map(lambda weight: Rule([weight]))),
)
def test_one_resource_is_shared_max_min_at_every_level_of_a_tree(top, wanted, weights):
    """Jobs of size 1: no node is a whole job per leaf away from the water level."""
    world = World(
        Tree((top,), weights), [Ask(leaf, (1,)) for leaf, n in wanted.items() for _ in range(n)]
    )
    state = after(world)
    for path, level in filled_with_water(world.tree, wanted).items():
        held = top - state.free[0] if path == "root" else state.usage(path)[0]
        assert abs(held - level) < len(wanted)


@STEADY
@given(some.integers(1, 5), some.integers(1, 4), some.data())
def test_who_all_need_most_of_the_same_get_equal_parts_of_it(users, times, data):
    """Bottleneck. An n-th of it is a whole number of everybody's jobs."""
    size = 12 * times
    others = data.draw(some.lists(some.integers(1, 50), max_size=4))
    demands = {}
    for user in USERS[:users]:
        most = data.draw(some.sampled_from([1, 2, 3, 4, 6, 12]))
        rest = [data.draw(some.integers(0, most * top // (size * users))) for top in others]
        demands[user] = (most, *rest)
    state = after(long_queues(Tree((size * users, *others)), demands, size))
    assert [state.usage(user)[0] for user in demands] == [size] * users


def test_e5_the_bottleneck_is_shared_by_halves_as_far_as_whole_jobs_go():
    """Continuous: 7/2 and 21/8 jobs."""
    assert filled((21, 21), a=(3, 2), b=(4, 1)) == {"a": 3, "b": 3}


# -- how far apart ---------------------------------------------------------------------------------


def until_blocked(world: World) -> Pass:
    """The state in which the least satisfied user's next job does not fit for the first time.
    Who is passed over because a promise comes first is not blocked."""
    state = start(world)
    for job_id in run(world).admitted:
        ask = state.waiting[job_id]
        least = min(state.level(other.leaf) for other in state.waiting.values())
        if state.level(ask.leaf) > least and not state.keeps_promise(ask.leaf, ask.demand):
            break
        carry_on(state, job_id)
    return state


@examples(100, quick=12)
@given(capacities(), some.data())
def test_until_somebody_is_blocked_no_two_users_are_more_than_one_largest_job_apart(capacity, data):
    """Theorem 7: in dominant shares."""
    vector = some.tuples(*(some.integers(0, top) for top in capacity)).filter(any)
    demands = {user: data.draw(vector) for user in USERS[: data.draw(some.integers(2, 5))]}
    state = until_blocked(long_queues(Tree(capacity), demands))
    levels = [dominant(state, user) for user in demands]
    sizes = (Fraction(d, top) for demand in demands.values() for d, top in zip(demand, capacity))  # noqa: B905
    assert max(levels) - min(levels) <= max(sizes)


#: A's job of four does not fit beside the promise of B, who goes on with small ones.
PASSED_OVER: Mapping[str, Vector] = {"a": (4,), "b": (1,)}


def test_who_goes_on_past_a_blocked_user_gets_further_ahead_than_one_largest_job():
    assert filled((6,), **PASSED_OVER) == {"b": 6}
    state = until_blocked(long_queues(Tree((6,)), {"root.a": (4,), "root.b": (1,)}))
    assert (dominant(state, "root.a"), dominant(state, "root.b")) == (0, Fraction(1, 2))


# -- envy, lies, and more resources: where whole jobs break the continuous rows --------------------


def test_whole_jobs_leave_envy_of_more_than_one_job_of_the_other():
    ran = filled((6,), **PASSED_OVER)
    assert could_run((4,), (ran["b"] - 1,)) > ran["a"]


def test_whole_jobs_leave_envy_of_more_than_one_job_of_ones_own():
    ran = filled((5,), a=(3,), b=(1,), c=(1,))
    assert ran == {"a": 1, "b": 1, "c": 1}
    assert could_run((1,), (3 * ran["a"],)) > ran["b"] + 1


def test_with_whole_jobs_a_lie_can_gain():
    """A needs 1 each and says 4: two honest jobs, and four places for one lie."""
    assert filled((5,), a=(1,), b=(3,)) == {"a": 2, "b": 1}
    assert filled((5,), a=(4,), b=(3,)) == {"a": 1}


def test_e8_more_of_one_resource_makes_a_user_poorer():
    """DRF is not resource monotonic: from a third each to a quarter and a half (of twelve jobs)."""
    assert filled((12, 12), a=(2, 1), b=(1, 2)) == {"a": 4, "b": 4}
    assert filled((12, 48), a=(2, 1), b=(1, 2)) == {"a": 3, "b": 6}


@pytest.mark.parametrize(
    ("lied", "shares"),
    [
        ((2, 0, 0), ["1/2 0 0", "1/2 0 0", "0 2/3 0", "0 1/3 2/3"]),
        ((2, 0, 1), ["1/2 0 1/4", "1/2 0 1/4", "0 3/4 0", "0 1/4 1/2"]),
    ],
)
def test_e16_two_who_lie_alike_make_a_third_gain_and_lose_nothing(lied, shares):
    """The collusion of the lecture, to the digit: group strategy-proofness fails."""
    demands = {"root.a": lied, "root.b": lied, "root.c": (0, 2, 0), "root.d": (0, 1, 2)}
    state = after(long_queues(Tree((24, 24, 24)), demands))
    found = [tuple(Fraction(amount, 24) for amount in state.usage(leaf)) for leaf in demands]
    assert found == [tuple(map(Fraction, each.split())) for each in shares]
