"""Tasks that can be cut at will: what the paper proves of them, checked without its algorithm.

Max-min fairness has a certificate that needs no solver: all stays within the machine, and everybody
who wants more needs some full resource none of whose users is better off.
"""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs

from drfd.core.fairness.share_tree import FairShare, NodeRule, path_up
from drfd_experiments import theory
from drfd_experiments.alloc import PoolSpec, Spec, User, allocate
from drfd_experiments.theory import FlowDemand, Tasks, ceei
from seeds import examples

STEADY = examples(80)
Wants = Mapping[str, FlowDemand]
LEAVES = "ABCDE"


def want(*demand: int | str | Fraction, tasks: int | str | None = None) -> FlowDemand:
    return FlowDemand(
        demand=tuple(Fraction(each) for each in demand),
        tasks=None if tasks is None else Fraction(tasks),
    )


def weighted(axes: int, weights: Mapping[str, Fraction | int]) -> dict[str, NodeRule]:
    return {path: NodeRule(weights=(Fraction(each),) * axes) for path, each in weights.items()}


def first_axis(shares: FairShare) -> FairShare:
    rules = {
        path: NodeRule(weights=(rule.weights or ())[:1]) for path, rule in shares.rules.items()
    }
    return FairShare(shares.capacity[:1], rules)


def parts(shares: FairShare, wants: Wants, tasks: Tasks, leaf: str) -> list[Fraction]:
    pairs = zip(wants[leaf].demand, shares.capacity, strict=True)
    return [tasks[leaf] * each / top for each, top in pairs]


def totals(shares: FairShare, wants: Wants, tasks: Tasks) -> list[Fraction]:
    held = [parts(shares, wants, tasks, leaf) for leaf in wants]
    return [sum(column, Fraction(0)) for column in zip(*held, strict=True)]


def is_content(wants: Wants, tasks: Tasks, leaf: str) -> bool:
    return tasks[leaf] == wants[leaf].tasks


def weight_of(shares: FairShare, leaf: str) -> Fraction:
    weights = shares.rule(leaf).weights
    return weights[0] if weights else Fraction(1)


def assert_max_min(shares: FairShare, wants: Wants, tasks: Tasks, measure: object = max) -> None:
    """The certificate. `measure`: how much one holds, from the parts of each resource."""
    total = totals(shares, wants, tasks)
    assert all(each <= 1 for each in total)
    level = {
        leaf: measure(parts(shares, wants, tasks, leaf)) / weight_of(shares, leaf)  # type: ignore[operator]
        for leaf in wants
    }
    for leaf, asked in wants.items():
        assert tasks[leaf] >= 0
        if is_content(wants, tasks, leaf):
            continue
        assert any(
            each
            and full == 1
            and all(level[leaf] >= level[other] for other in wants if wants[other].demand[axis])
            for axis, (each, full) in enumerate(zip(asked.demand, total, strict=True))
        ), f"{leaf} could have more"


NUMBERS = some.builds(Fraction, some.integers(1, 30), some.integers(1, 4))


@some.composite
def problems(
    draw: some.DrawFn, zeros: bool = True, finite: bool = True, weights: bool = True
) -> tuple[FairShare, dict[str, FlowDemand]]:
    axes = draw(some.integers(1, 4))
    capacity = tuple(draw(some.lists(some.integers(1, 40), min_size=axes, max_size=axes)))
    amount = some.just(Fraction(0)) | NUMBERS if zeros else NUMBERS
    vector = some.tuples(*(amount for _ in capacity)).filter(any)
    tasks = some.none() | NUMBERS if finite else some.none()
    leaves = LEAVES[: draw(some.integers(1, 5))]
    wants = {leaf: FlowDemand(demand=draw(vector), tasks=draw(tasks)) for leaf in leaves}
    given_ = draw(some.dictionaries(some.sampled_from(LEAVES), NUMBERS)) if weights else {}
    return FairShare(capacity, weighted(axes, given_)), wants


# -- DRF, flat -------------------------------------------------------------------------------------


@STEADY
@given(problems())
def test_dominant_shares_are_max_min_fair(problem):
    """With weights, zero demands and finite tasks; and so Pareto efficient."""
    assert_max_min(*problem, theory.drf(*problem))


def useful(asked: FlowDemand, held: list[Fraction], shares: FairShare) -> Fraction:
    """How many of one's own tasks some bundle can run."""
    pairs = zip(asked.demand, held, shares.capacity, strict=True)
    return min(part * top / each for each, part, top in pairs if each)


@STEADY
@given(problems(finite=False))
def test_nobody_envies_another_for_his_weight(problem):
    shares, wants = problem
    tasks = theory.drf(shares, wants)
    for one in wants:
        for other in wants:
            bundle = parts(shares, wants, tasks, other)
            scale = weight_of(shares, one) / weight_of(shares, other)
            assert useful(wants[one], [scale * part for part in bundle], shares) <= tasks[one]


@STEADY
@given(problems())
def test_nobody_is_worse_off_than_with_a_part_of_the_machine_of_his_own(problem):
    """Sharing incentive, weighted."""
    shares, wants = problem
    tasks = theory.drf(shares, wants)
    everybody = sum(weight_of(shares, leaf) for leaf in wants)
    for leaf, asked in wants.items():
        own = [weight_of(shares, leaf) / everybody] * len(shares.capacity)
        alone = useful(asked, own, shares)
        assert tasks[leaf] >= (alone if asked.tasks is None else min(alone, asked.tasks))


@examples(80, quick=6)
@given(problems(finite=False), some.data())
def test_a_lie_gains_nothing(problem, data):
    shares, wants = problem
    leaf = data.draw(some.sampled_from(sorted(wants)))
    lie = data.draw(some.tuples(*(some.just(Fraction(0)) | NUMBERS for _ in shares.capacity)))
    if not any(lie):
        return
    honest = theory.drf(shares, wants)
    told = {**wants, leaf: FlowDemand(demand=lie)}
    held = parts(shares, told, theory.drf(shares, told), leaf)
    assert useful(wants[leaf], held, shares) <= honest[leaf]


@pytest.mark.slow
@examples(80, quick=10)
@given(problems(finite=False), some.data())
def test_no_two_can_lie_so_that_both_gain(problem, data):
    """That one of them gains and the other loses nothing is possible: golden E16."""
    shares, wants = problem
    pair = data.draw(some.lists(some.sampled_from(sorted(wants)), min_size=2, max_size=2))
    vector = some.tuples(*(some.just(Fraction(0)) | NUMBERS for _ in shares.capacity)).filter(any)
    honest = theory.drf(shares, wants)
    told = {**wants, **{leaf: FlowDemand(demand=data.draw(vector)) for leaf in pair}}
    tasks = theory.drf(shares, told)
    gains = [
        useful(wants[leaf], parts(shares, told, tasks, leaf), shares) > honest[leaf]
        for leaf in pair
    ]
    assert not all(gains)


@STEADY
@given(problems(zeros=False), some.data())
def test_when_one_leaves_nobody_loses(problem, data):
    """Population monotonicity, where everybody needs some of everything."""
    shares, wants = problem
    before = theory.drf(shares, wants)
    gone = data.draw(some.sampled_from(sorted(wants)))
    left = {leaf: asked for leaf, asked in wants.items() if leaf != gone}
    after = theory.drf(shares, left)
    assert all(after[leaf] >= before[leaf] for leaf in left)


def test_with_zero_demands_somebody_may_lose_when_another_leaves():
    """So it is not asserted there: A keeps C from processors, and so from B's memory."""
    shares = FairShare((1, 1), weighted(2, {"A": 2}))
    wants = {"A": want(1, 0), "B": want(0, 1), "C": want(1, 1)}
    assert theory.drf(shares, wants)["B"] == Fraction(2, 3)
    assert theory.drf(shares, {leaf: wants[leaf] for leaf in "BC"})["B"] == Fraction(1, 2)


# -- DRF in a tree ---------------------------------------------------------------------------------


def test_what_the_machine_lacks_stops_only_those_who_ask_for_it():
    shares = FairShare((9, 0))
    assert theory.drf(shares, {"A": want(1, 1), "B": want(1, 0)}) == {"A": 0, "B": 9}


@some.composite
def trees(draw: some.DrawFn) -> tuple[FairShare, dict[str, FlowDemand]]:
    """Up to three levels, some weights, zero demands, some finite."""
    axes = draw(some.integers(1, 3))
    capacity = tuple(draw(some.lists(some.integers(1, 20), min_size=axes, max_size=axes)))
    vector = some.tuples(*(some.just(Fraction(0)) | NUMBERS for _ in capacity)).filter(any)
    places = ["a", "b", "p.a", "p.b", "q.a", "q.r.a", "q.r.b", "q.s.a", "q.s.b"]
    leaves = draw(some.lists(some.sampled_from(places), min_size=1, unique=True))
    tasks = some.none() | NUMBERS
    wants = {leaf: FlowDemand(demand=draw(vector), tasks=draw(tasks)) for leaf in leaves}
    nodes = sorted({path for leaf in leaves for path in path_up(leaf)})
    weights = draw(some.dictionaries(some.sampled_from(nodes), NUMBERS))
    return FairShare(capacity, weighted(axes, weights)), wants


def level_of(shares: FairShare, wants: Wants, tasks: Tasks, path: str) -> Fraction:
    below = [leaf for leaf in wants if path in path_up(leaf)]
    active = {leaf for leaf, each in wants.items() if each.tasks != 0}
    entitled = shares.share_tree({}, active).entitled(path)
    held = [sum(col) for col in zip(*(parts(shares, wants, tasks, leaf) for leaf in below))]  # noqa: B905
    return max(Fraction(part) / own for part, own in zip(held, entitled, strict=True))


@examples(80, quick=4)
@given(trees())
def test_in_a_tree_every_promise_is_kept_and_nothing_useful_is_left(problem):
    """Who wants more holds what is promised, and so does each pool that it is in."""
    shares, wants = problem
    tasks = theory.drf(shares, wants)
    total = totals(shares, wants, tasks)
    assert all(each <= 1 for each in total)
    for leaf, asked in wants.items():
        if is_content(wants, tasks, leaf):
            continue
        assert any(each and full == 1 for each, full in zip(asked.demand, total, strict=True))
        for path in path_up(leaf):
            assert level_of(shares, wants, tasks, path) >= 1


@examples(80, quick=10)
@given(trees())
def test_on_one_resource_a_tree_is_filled_like_water_at_every_level(problem):
    shares, wants = problem
    one = first_axis(shares)
    only = {
        leaf: FlowDemand(demand=(Fraction(1),), tasks=each.tasks) for leaf, each in wants.items()
    }
    tasks = theory.drf(one, only)
    expected: dict[str, Fraction] = {}
    pour("root", Fraction(one.capacity[0]), one, only, expected)
    assert tasks == expected


def pour(
    path: str, amount: Fraction, shares: FairShare, wants: Wants, got: dict[str, Fraction]
) -> None:
    """Divide `amount` among the children of `path` by weight, each up to all that is wanted."""
    if path in wants:
        got[path] = amount
        return
    wanted: dict[str, Fraction] = {}
    for leaf, each in wants.items():
        line = [*path_up(leaf), "root"]
        if path in line:
            child = line[line.index(path) - 1]
            enough = Fraction(10**9) if each.tasks is None else each.tasks
            wanted[child] = wanted.get(child, Fraction(0)) + enough
    left, open_ = amount, set(wanted)
    while open_:
        unit = left / sum(weight_of(shares, child) for child in open_)
        low = {c for c in open_ if wanted[c] <= unit * weight_of(shares, c)}
        for child in low or open_:
            share = wanted[child] if low else unit * weight_of(shares, child)
            pour(child, share, shares, wants, got)
            left -= share
        open_ -= low or open_


def test_a_tree_of_one_level_and_a_pool_around_everybody_change_nothing():
    wants = {"A": want(1, 4), "B": want(3, 1), "C": want(2, 2, tasks=1)}
    flat = theory.drf(FairShare((9, 18)), wants)
    pooled = theory.drf(FairShare((9, 18)), {f"p.{leaf}": w for leaf, w in wants.items()})
    assert pooled == {f"p.{leaf}": tasks for leaf, tasks in flat.items()}


def test_a_pool_that_is_served_in_vain_catches_up_before_others_go_on():
    """The pool's processors decide its level when they are all taken; its memory lags behind, since
    its member b counts a third of a. b rises alone until memory decides, and then with m."""
    shares = FairShare((1, 1), weighted(2, {"p.a": 3}))
    wants = {leaf: want(1, 0) for leaf in ("c", "d", "e", "p.a")}
    wants |= {"m": want(0, 1), "p.b": want(0, 1, tasks="0.4")}
    quarter = dict.fromkeys(("c", "d", "e", "p.a"), Fraction(1, 4))
    assert theory.drf(shares, wants) == quarter | {"m": Fraction("0.6"), "p.b": Fraction("0.4")}
    wants["p.b"] = want(0, 1)
    half = Fraction(1, 2)
    assert theory.drf(shares, wants) == quarter | {"m": half, "p.b": half}


GRAIN = 20


@some.composite
def whole_trees(draw: some.DrawFn) -> Spec:
    """Long queues of small whole tasks: of a quarter of 1/GRAIN of the machine at most."""
    names = ["cpu", "memory", "disk"][: draw(some.integers(1, 3))]
    amounts = some.fixed_dictionaries(dict.fromkeys(names, some.integers(0, 3).map(Decimal)))
    places = ["a", "b", "p.a", "p.b", "q.a", "q.r.a", "q.r.b", "q.s.a", "q.s.b"]
    weights = some.none() | some.integers(1, 3).map(Decimal)
    return Spec(
        capacity=dict.fromkeys(names, Decimal(12 * GRAIN)),
        users=[
            User(
                name=place,
                demand=draw(amounts.filter(lambda demand: any(demand.values()))),
                weight=draw(weights),
                tasks=draw(some.none() | some.integers(1, 6 * GRAIN).map(Decimal)),
                pool=place.rpartition(".")[0] or None,
            )
            for place in draw(
                some.lists(some.sampled_from(places), min_size=2, max_size=6, unique=True)
            )
        ],
        pools={
            path: PoolSpec(weight=draw(weights), parent=path.rpartition(".")[0] or None)
            for path in ("p", "q", "q.r", "q.s")
        },
    )


@pytest.mark.parametrize("policy", ["hdrf", "hdrf-naive"])
@examples(15)
@given(problem=whole_trees())
def test_small_whole_tasks_given_out_one_by_one_come_close(problem, policy):
    """Whether siblings are compared by min-satisfaction or naively: see `Flow`."""
    whole, cut = (
        allocate(structs.replace(problem, policy=policy, mode=mode))
        for mode in ("discrete", "continuous")
    )
    for user in problem.users:
        gap = abs(whole.dominant_share(user.name) - cut.dominant_share(user.name))
        assert gap < Fraction(1, 20)


def test_guarantees_count_as_promises_and_may_leave_nothing():
    rules = {"a": NodeRule(guarantee=(6,)), "b": NodeRule(guarantee=(2,))}
    wants = {"a": want(1), "b": want(1)}
    assert theory.drf(FairShare((10,), rules), wants) == {"a": 6, "b": 4}
    everything = {"a": NodeRule(guarantee=(10,))}
    assert theory.drf(FairShare((10,), everything), wants) == {"a": 10, "b": 0}
    little = {"a": want(1, tasks=4), "b": want(1)}
    assert theory.drf(FairShare((10,), everything), little) == {"a": 4, "b": 0}


# -- the others ------------------------------------------------------------------------------------


@STEADY
@given(problems())
def test_asset_fairness_evens_out_what_all_resources_are_worth(problem):
    assert_max_min(*problem, theory.asset(*problem), measure=sum)


def test_first_come_first_served_stops_at_the_first_that_is_cut_short():
    wants = {"A": want(2, 1, tasks=2), "B": want(4, 1, tasks=9), "C": want(0, 1, tasks=1)}
    shares = FairShare((9, 18))
    assert theory.fifo(shares, wants) == {"A": 2, "B": Fraction(5, 4), "C": 0}
    assert theory.fifo(shares, {leaf: wants[leaf] for leaf in "CAB"})["C"] == 1
    assert theory.fifo(shares, {leaf: wants[leaf] for leaf in "AC"}) == {"A": 2, "C": 1}


def test_algorithm_1_stops_for_all_where_progressive_filling_goes_on():
    shares = FairShare((1, 1))
    wants = {"A": want(1, 0), "B": want(1, 0), "C": want(0, 1)}
    half = Fraction(1, 2)
    assert theory.algorithm1(shares, wants) == {"A": half, "B": half, "C": half}
    assert theory.drf(shares, wants) == {"A": half, "B": half, "C": 1}


@STEADY
@given(problems(zeros=False, finite=False))
def test_algorithm_1_is_drf_where_everybody_needs_everything(problem):
    assert theory.algorithm1(*problem) == theory.drf(*problem)


# -- the market ------------------------------------------------------------------------------------

TINY = Fraction(1, 10**10)


@examples(80, quick=4)
@given(problems(finite=False))
def test_the_market_is_feasible_envy_free_and_nobody_trades_for_less(problem):
    """Equal incomes: nobody prefers another's bundle, nor their part of the whole machine."""
    shares, wants = problem
    weights = {leaf: weight_of(shares, leaf) for leaf in wants}
    tasks = ceei(shares.capacity, wants, weights)
    total = totals(shares, wants, tasks)
    assert all(each <= 1 + TINY for each in total)
    for one, asked in wants.items():
        assert any(
            each and full >= 1 - TINY for each, full in zip(asked.demand, total, strict=True)
        )
        own = [weights[one] / sum(weights.values())] * len(shares.capacity)
        assert useful(asked, own, shares) <= tasks[one] * (1 + TINY)
        for other in wants:
            scale = weights[one] / weights[other]
            bundle = [scale * part for part in parts(shares, wants, tasks, other)]
            assert useful(asked, bundle, shares) <= tasks[one] * (1 + TINY)


@examples(80, quick=8)
@given(problems())
def test_two_in_the_market_share_as_a_search_along_the_frontier_says(problem):
    """Bisection over what the first one gets; the second one gets all that is possible then."""
    shares, wants = problem
    if len(wants) < 2:
        return
    one, other = sorted(wants)[:2]
    weights = {leaf: weight_of(shares, leaf) for leaf in (one, other)}
    tasks = ceei(shares.capacity, {leaf: wants[leaf] for leaf in (one, other)}, weights)
    # The second one's lines: at most `start` tasks, less `fall` for each task of the first.
    lines = [
        (top / b, a / b)
        for a, b, top in zip(wants[one].demand, wants[other].demand, shares.capacity, strict=True)
        if b
    ]
    if wants[other].tasks is not None:
        lines.append((wants[other].tasks, Fraction(0)))
    high = min(top / a for a, top in zip(wants[one].demand, shares.capacity, strict=True) if a)
    if wants[one].tasks is not None:
        high = min(high, wants[one].tasks)
    low, most = Fraction(0), high
    for _ in range(90):
        middle = (low + high) / 2
        left, fall = min(((start - fall * middle, fall) for start, fall in lines))
        rises = left > 0 and weights[one] / middle > weights[other] * fall / left
        low, high = (middle, high) if rises else (low, middle)
    assert abs(tasks[one] - high) <= most / 10**10
    best = min(start - fall * high for start, fall in lines)
    assert abs(tasks[other] - best) <= min(start for start, _ in lines) / 10**9


def test_the_market_gives_all_that_is_wanted_where_there_is_enough():
    """Limits of tasks are met exactly, though the machine is full at the same time."""
    wants = {"A": want(1, 1, tasks=4), "B": want(1, 0, tasks="5.5"), "C": want(0, 1, tasks=0)}
    assert ceei((10, 10), wants) == {"A": 4, "B": Fraction(11, 2), "C": 0}
    assert ceei((9, 10), {"A": want(1, 1, tasks=4), "B": want(1, 0, tasks=5)}) == {"A": 4, "B": 5}


def test_the_market_has_nothing_for_who_asks_for_what_is_not_there():
    assert ceei((4, 0), {"A": want(1, 1), "B": want(1, 0)}) == {"A": 0, "B": 4}
    assert ceei((0,), {"A": want(1)}) == {"A": 0}


def test_incomes_may_differ():
    found = ceei((12,), {"A": want(1), "B": want(2)}, {"B": Fraction(1, 3)})
    assert found == {"A": 9, "B": Fraction(3, 2)}
