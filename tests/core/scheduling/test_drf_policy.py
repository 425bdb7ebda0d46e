"""One scheduling pass: the paper's worked examples, the promise for whole jobs, and its properties.

The properties are checked against a slow pass written here with fractions, from docs/fairness.md
1.2, which shares no code with the product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as some

from core.passes import plan
from drfd.core.ledger.queue import LeafQueue
from drfd.core.scheduling.plan import Plan
from fakes import flat
from seeds import examples

STEADY = examples(100)
Vector = tuple[int, ...]


class Ask(NamedTuple):
    """A waiting job; its id is its place in the list of all, from 1."""

    leaf: str
    demand: Vector
    priority: int = 0


class World(NamedTuple):
    capacity: Vector
    asks: Sequence[Ask]
    weights: Mapping[str, Fraction] = {}
    used: Mapping[str, Vector] = {}


def free_of(world: World) -> Vector:
    held = [sum(amounts) for amounts in zip(*world.used.values(), strict=True)]
    return tuple(top - h for top, h in zip(world.capacity, held or [0] * 9, strict=False))


def run(world: World) -> Plan:
    queues: dict[str, LeafQueue] = {}
    for job_id, ask in enumerate(world.asks, start=1):
        queues.setdefault(ask.leaf, LeafQueue()).add(ask.demand, (-ask.priority, job_id))
    return plan(
        queues=queues,
        used=world.used,
        free=free_of(world),
        shares=flat(world.capacity, world.weights),
    )


def launched(world: World) -> str:
    """The leaves of the launches, in order: "B A A B A"."""
    return " ".join(world.asks[job_id - 1].leaf for job_id in run(world).admitted)


def tasks(world: World) -> Counter[str]:
    return Counter(launched(world).split())


class Launch(NamedTuple):
    """One launch of a pass and the state of the world just before it."""

    job_id: int
    ask: Ask
    held: dict[str, Vector]
    free: Vector
    waiting: dict[int, Ask]


def trace(world: World) -> list[Launch]:
    held = {ask.leaf: (0,) * len(world.capacity) for ask in world.asks} | dict(world.used)
    free = free_of(world)
    waiting = dict(enumerate(world.asks, start=1))
    launches = []
    for job_id in run(world).admitted:
        ask = waiting[job_id]
        launches.append(Launch(job_id, ask, dict(held), free, dict(waiting)))
        del waiting[job_id]
        held[ask.leaf] = added(held[ask.leaf], ask.demand)
        free = tuple(there - asked for there, asked in zip(free, ask.demand, strict=True))
    return launches


def added(left: Vector, right: Vector) -> Vector:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def within(demand: Vector, room: Vector) -> bool:
    return all(asked <= there for asked, there in zip(demand, room, strict=True))


def share(world: World, held: Vector) -> Fraction:
    return max(Fraction(h, top) if top else Fraction(0) for h, top in zip(held, world.capacity))  # noqa: B905


def promised(world: World, leaf: str) -> Fraction:
    active = {*world.used, *(ask.leaf for ask in world.asks)}
    weight = {each: world.weights.get(each, Fraction(1)) for each in active}
    return weight[leaf] / sum(weight.values())


def keeps_promise(world: World, launch: Launch) -> bool:
    after = added(launch.held[launch.ask.leaf], launch.ask.demand)
    return share(world, after) <= promised(world, launch.ask.leaf)


def slow_pass(world: World) -> list[int]:
    """The rule, word for word: two phases; least (satisfaction, head's submission, name) first."""
    waiting = dict(enumerate(world.asks, start=1))
    held = {ask.leaf: (0,) * len(world.capacity) for ask in world.asks} | dict(world.used)
    free = free_of(world)
    order: list[int] = []
    for surplus in (False, True):
        closed: set[str] = set()
        while serving := {ask.leaf for ask in waiting.values()} - closed:
            own = {
                leaf: sorted(
                    (job_id for job_id, ask in waiting.items() if ask.leaf == leaf),
                    key=lambda job_id: (-waiting[job_id].priority, job_id),
                )
                for leaf in serving
            }
            leaf = min(
                serving,
                key=lambda each: (
                    share(world, held[each]) / promised(world, each),
                    own[each][0],
                    each,
                ),
            )
            for job_id in own[leaf]:
                after = added(held[leaf], waiting[job_id].demand)
                keeps = share(world, after) <= promised(world, leaf)
                if within(waiting[job_id].demand, free) and (surplus or keeps):
                    free = tuple(
                        f - d for f, d in zip(free, waiting.pop(job_id).demand, strict=True)
                    )
                    held[leaf] = after
                    order.append(job_id)
                    break
            else:
                closed.add(leaf)
    return order


# -- goldens: the paper and its examples --------------------------------------------------------

#: Section 4.1: 9 CPUs and 18 GB; A's tasks need <1 CPU, 4 GB>, B's <3 CPUs, 1 GB>.
A, B = Ask("A", (1, 4)), Ask("B", (3, 1))
E1 = World((9, 18), [B, A, *[A, B] * 5])


# -- the promise --------------------------------------------------------------------------------


# -- inside a leaf ------------------------------------------------------------------------------


# -- edges --------------------------------------------------------------------------------------


# -- properties ---------------------------------------------------------------------------------

WEIGHT = some.builds(Fraction, some.integers(1, 5), some.integers(1, 3))
LEAVES = "ABCDE"


@some.composite
def worlds(draw: some.DrawFn, priorities: bool = True) -> World:
    """A machine, some jobs with few different demands (zeros too), weights, and what runs."""
    axes = draw(some.integers(1, 3))
    capacity = tuple(draw(some.lists(some.integers(1, 30), min_size=axes, max_size=axes)))
    vector = some.tuples(*(some.integers(0, max(1, top // 2)) for top in capacity))
    menu = draw(some.lists(vector, min_size=1, max_size=5))
    ask = some.builds(
        Ask,
        some.sampled_from(LEAVES),
        some.sampled_from(menu),
        some.integers(-1, 1) if priorities else some.just(0),
    )
    asks = draw(some.lists(ask, max_size=20))
    weights = draw(some.dictionaries(some.sampled_from(LEAVES), WEIGHT, max_size=4))
    used: dict[str, Vector] = {}
    room = capacity
    for leaf in draw(some.sets(some.sampled_from(LEAVES + "X"), max_size=3)):
        part = tuple(draw(some.integers(0, left)) for left in room)
        used[leaf] = part
        room = tuple(left - taken for left, taken in zip(room, part, strict=True))
    return World(capacity, asks, weights, used)


@some.composite
def one_vector_each(draw: some.DrawFn) -> World:
    """From an empty machine: each leaf has very many jobs of one demand, which fits."""
    axes = draw(some.integers(1, 3))
    capacity = tuple(draw(some.lists(some.integers(2, 40), min_size=axes, max_size=axes)))
    vector = some.tuples(*(some.integers(0, top) for top in capacity)).filter(any)
    leaves = LEAVES[: draw(some.integers(1, 5))]
    rounds = max(capacity) + 1
    demands = {leaf: draw(vector) for leaf in leaves}
    asks = [Ask(leaf, demands[leaf]) for _ in range(rounds) for leaf in leaves]
    return World(capacity, asks, draw(some.dictionaries(some.sampled_from(leaves), WEIGHT)))


@examples(100, quick=13)
@given(worlds())
def test_a_pass_is_what_the_slow_pass_says(world: World) -> None:
    assert run(world).admitted == slow_pass(world)


@examples(100, quick=15)
@given(worlds(priorities=False))
def test_without_priorities_a_pass_is_what_the_slow_pass_says(world: World) -> None:
    assert run(world).admitted == slow_pass(world)


@examples(100, quick=13)
@given(worlds())
def test_no_more_is_given_than_there_is_and_no_job_twice(world: World) -> None:
    plan_ = run(world)
    given_out = [world.asks[job_id - 1].demand for job_id in plan_.admitted]
    assert all(amount >= 0 for amount in plan_.free)
    assert plan_.free == tuple(
        there - sum(asked[axis] for asked in given_out) for axis, there in enumerate(free_of(world))
    )
    assert len(set(plan_.admitted)) == len(plan_.admitted)


@examples(100, quick=15)
@given(worlds())
def test_after_a_pass_nothing_that_waits_fits(world: World) -> None:
    """Pareto efficiency for whole jobs."""
    plan_ = run(world)
    left = [ask for job_id, ask in enumerate(world.asks, 1) if job_id not in plan_.admitted]
    assert [ask for ask in left if within(ask.demand, plan_.free)] == []
    assert set(plan_.order) == {ask.leaf for ask in left}


@examples(100, quick=7)
@given(worlds())
def test_no_launch_passes_over_a_leaf_that_is_further_below_its_entitlement(world: World) -> None:
    """The choice rule, read off the trace. All launches that keep a promise come first."""
    launches = trace(world)
    flags = [keeps_promise(world, launch) for launch in launches]
    assert flags == sorted(flags, reverse=True)
    for launch, promise in zip(launches, flags, strict=True):

        def level(leaf: str, held: Mapping[str, Vector] = launch.held) -> Fraction:
            return share(world, held[leaf]) / promised(world, leaf)

        for ask in launch.waiting.values():
            rival = launch._replace(ask=ask)
            eligible = within(ask.demand, launch.free) and (
                not promise or keeps_promise(world, rival)
            )
            assert not eligible or level(launch.ask.leaf) <= level(ask.leaf)


@examples(100, quick=14)
@given(worlds())
def test_inside_a_leaf_no_job_passes_an_earlier_one_that_could_start(world: World) -> None:
    for launch in trace(world):
        promise = keeps_promise(world, launch)
        for job_id, ask in launch.waiting.items():
            if ask.leaf != launch.ask.leaf or not within(ask.demand, launch.free):
                continue
            if promise and not keeps_promise(world, launch._replace(ask=ask)):
                continue
            assert (-launch.ask.priority, launch.job_id) <= (-ask.priority, job_id)


@STEADY
@given(one_vector_each())
def test_nobody_runs_fewer_jobs_than_on_a_part_of_the_machine_of_his_own(world: World) -> None:
    """Sharing incentive: filled from empty, one demand per user, long queues; zeros included."""
    ran = tasks(world)
    for leaf, asked in {ask.leaf: ask.demand for ask in world.asks}.items():
        own = promised(world, leaf)
        alone = min(
            int(own * top / amount)
            for top, amount in zip(world.capacity, asked, strict=True)
            if amount
        )
        assert ran[leaf] >= alone


@STEADY
@given(
    some.integers(1, 60),
    some.integers(1, 8),
    some.lists(some.integers(1, 12), min_size=1, max_size=5),
)
def test_one_resource_and_alike_jobs_are_shared_max_min(
    top: int, size: int, lengths: list[int]
) -> None:
    """Water filling, one job at a time: the lowest user who still has jobs gets the next."""
    asks = [Ask(LEAVES[at], (size,)) for at, length in enumerate(lengths) for _ in range(length)]
    level = dict.fromkeys(range(len(lengths)), 0)
    for _ in range(top // size):
        thirsty = [at for at in level if level[at] < lengths[at]]
        if thirsty:
            level[min(thirsty, key=lambda at: level[at])] += 1
    assert tasks(World((top,), asks)) == {LEAVES[at]: count for at, count in level.items() if count}


@STEADY
@given(
    some.integers(12, 100),
    some.lists(some.tuples(some.integers(1, 12), some.integers(1, 9)), min_size=2, max_size=5),
)
def test_one_resource_is_shared_max_min_within_one_job_of_each(
    top: int, users: list[tuple[int, int]]
) -> None:
    """Jobs of any size: nobody is more than one job ahead of a user who still waits, but for the
    rest that is smaller than that user's job and goes to whoever fits into it."""
    size = {LEAVES[at]: each for at, (each, _) in enumerate(users)}
    asks = [
        Ask(LEAVES[at], (each,)) for at, (each, count) in enumerate(users) for _ in range(count)
    ]
    ran, wanted = tasks(World((top,), asks)), Counter(ask.leaf for ask in asks)
    waits = [leaf for leaf in size if ran[leaf] < wanted[leaf]]
    for low in waits:
        for high in size:
            ahead = ran[high] * size[high] - ran[low] * size[low]
            assert ahead < max(size[high], size[low]) + size[low]


@STEADY
@given(worlds())
def test_launching_one_at_a_time_gives_the_same_order(world: World) -> None:
    """So nothing depends on how many launches one pass makes."""
    whole = run(world)
    held, order = dict(world.used), []
    waiting = dict(enumerate(world.asks, start=1))
    while True:
        left = sorted(waiting)
        now = World(world.capacity, [waiting[job_id] for job_id in left], world.weights, held)
        # A leaf without jobs, running or waiting, is no longer active; keep all that were.
        now = now._replace(used={ask.leaf: (0,) * len(world.capacity) for ask in world.asks} | held)
        admitted = run(now).admitted
        if not admitted:
            break
        job_id = left[admitted[0] - 1]
        ask = waiting.pop(job_id)
        held[ask.leaf] = added(held.get(ask.leaf, (0,) * len(world.capacity)), ask.demand)
        order.append(job_id)
    assert order == whole.admitted


@examples(100, quick=14)
@given(worlds(), some.randoms(use_true_random=False))
def test_the_order_of_tables_does_not_matter(world: World, random: Random) -> None:
    """A rebuilt ledger has its leaves, groups and jobs in another order, and the same future."""
    shuffled = list(enumerate(world.asks, start=1))
    random.shuffle(shuffled)
    queues: dict[str, LeafQueue] = {}
    for job_id, ask in shuffled:
        queues.setdefault(ask.leaf, LeafQueue()).add(ask.demand, (-ask.priority, job_id))
    again = plan(
        queues=queues,
        used=dict(reversed(list(world.used.items()))),
        free=free_of(world),
        shares=flat(world.capacity, world.weights),
    )
    assert again == run(world) == run(world)


@STEADY
@given(worlds())
def test_names_do_not_matter_but_for_their_order(world: World) -> None:
    new = {leaf: f"root.{leaf.lower()}-{ord(leaf)}" for leaf in LEAVES + "X"}
    renamed = World(
        world.capacity,
        [ask._replace(leaf=new[ask.leaf]) for ask in world.asks],
        {new[leaf]: weight for leaf, weight in world.weights.items()},
        {new[leaf]: held for leaf, held in world.used.items()},
    )
    before, after = run(world), run(renamed)
    assert (after.admitted, after.free) == (before.admitted, before.free)
    assert after.order == [new[leaf] for leaf in before.order]


@STEADY
@given(worlds(), some.integers(2, 1 << 40))
def test_the_unit_of_a_resource_does_not_matter(world: World, factor: int) -> None:
    """Bytes or gibibytes: shares are exact, so the decisions are the same."""

    def scaled(vector: Vector) -> Vector:
        return (vector[0] * factor, *vector[1:])

    larger = World(
        scaled(world.capacity),
        [ask._replace(demand=scaled(ask.demand)) for ask in world.asks],
        world.weights,
        {leaf: scaled(held) for leaf, held in world.used.items()},
    )
    assert run(larger).admitted == run(world).admitted


@examples(100, quick=6)
@given(worlds(), WEIGHT)
def test_only_the_ratios_of_weights_matter(world: World, factor: Fraction) -> None:
    leaves = {*world.used, *(ask.leaf for ask in world.asks)}
    heavier = {leaf: world.weights.get(leaf, Fraction(1)) * factor for leaf in leaves}
    assert run(world._replace(weights=heavier)).admitted == run(world).admitted
