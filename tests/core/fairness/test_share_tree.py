"""Shares are exact, and the integer keys order leaves as the fractions do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as some

from drfd.core.fairness.entitlement import divide_all
from drfd.core.fairness.share_tree import FairShare, NodeRule, path_up
from fakes import flat
from seeds import examples

STEADY = examples(100)
WEIGHTS = some.builds(Fraction, some.integers(1, 12), some.integers(1, 12))
CAPACITIES = some.lists(some.integers(0, 1000), min_size=1, max_size=4).map(tuple)

Machine = tuple[tuple[int, ...], dict[str, Fraction], dict[str, tuple[int, ...]]]


def slow_share(capacity: tuple[int, ...], used: tuple[int, ...]) -> Fraction:
    shares = [Fraction(amount, top) for amount, top in zip(used, capacity, strict=True) if top]
    return max(shares, default=Fraction(0))


@some.composite
def machines(draw: some.DrawFn) -> Machine:
    """A capacity, some weights, and what each of some leaves holds."""
    capacity = draw(CAPACITIES)
    weights = draw(some.dictionaries(some.sampled_from("abc"), WEIGHTS))
    holding = some.tuples(*(some.integers(0, top) for top in capacity))
    used = draw(some.dictionaries(some.sampled_from("abcd"), holding, min_size=2))
    return capacity, weights, used


@STEADY
@given(machines())
def test_keys_order_leaves_as_their_satisfaction_does(machine: Machine) -> None:
    capacity, weights, used = machine
    share_tree = flat(capacity, weights).share_tree(used, ())
    for left in used:
        for right in used:
            keys = [share_tree.satisfaction_key(leaf) for leaf in (left, right)]
            levels = [share_tree.satisfaction(leaf) for leaf in (left, right)]
            assert (keys[0] < keys[1]) is (levels[0] < levels[1])


@STEADY
@given(machines())
def test_shares_agree_with_plain_fractions(machine: Machine) -> None:
    capacity, weights, used = machine
    shares = flat(capacity, weights)
    share_tree = shares.share_tree(used, ())
    nothing = (0,) * len(capacity)
    everyone = sum((weights.get(leaf, Fraction(1)) for leaf in used), Fraction(0))
    for leaf, held in used.items():
        promised = weights.get(leaf, Fraction(1)) / everyone
        share = slow_share(capacity, held)
        assert shares.dominant_share(held) == share
        assert share_tree.entitlement(leaf) == promised or not any(capacity)
        assert share_tree.satisfaction(leaf) == share / promised
        assert share_tree.keeps_promise(leaf, nothing) is (share <= promised)
        axis = shares.dominant_axis(held)
        assert (axis is None) is (share == 0)
        assert axis is None or Fraction(held[axis], capacity[axis]) == share


@examples(100, quick=3)
@given(CAPACITIES, some.randoms(use_true_random=False))
def test_a_standing_that_is_kept_up_to_date_is_as_one_made_anew(
    capacity: tuple[int, ...], random: Random
) -> None:
    """Whoever came and went: also where guarantees and limits bind, or bind no more."""
    amounts = some_amounts(random, capacity)
    nodes = ["root.p", "root.p.a", "root.p.b", "root.p.q", "root.p.q.c", "root.d", "root.e"]
    rules = {path: rule for path in nodes if (rule := some_rule(random, capacity)) is not None}
    shares = FairShare(capacity, rules)
    kept = shares.share_tree({}, ())
    active: dict[str, tuple[int, ...]] = {}
    for _ in range(12):
        leaf = random.choice(["root.p.a", "root.p.b", "root.p.q.c", "root.d", "root.e"])
        if leaf in active:
            kept.hold(leaf, tuple(-amount for amount in active.pop(leaf)))
            kept.leave(leaf)
        else:
            active[leaf] = amounts()
            kept.enter(leaf)
            kept.hold(leaf, active[leaf])
        kept.redivide()
        fresh = shares.share_tree(active, ())
        assert kept.used == fresh.used
        for path in fresh.used:
            assert kept.entitled(path) == fresh.entitled(path) == entitled(shares, path, active)
            assert kept.satisfaction(path) == fresh.satisfaction(path)
            assert kept.satisfaction_key(path) == fresh.satisfaction_key(path)


def some_amounts(random: Random, capacity: tuple[int, ...]) -> Callable[[], tuple[int, ...]]:
    return lambda: tuple(random.randint(0, top) for top in capacity)


def some_rule(random: Random, capacity: tuple[int, ...]) -> NodeRule | None:
    weights = tuple(Fraction(random.randint(1, 5), random.randint(1, 3)) for _ in capacity)
    amounts = some_amounts(random, capacity)()
    return random.choice(
        [
            None,
            NodeRule(weights=weights),
            NodeRule(weights=weights[:1] * len(capacity)),
            NodeRule(limit=amounts),
            NodeRule(guarantee=amounts),
        ]
    )


def entitled(shares: FairShare, path: str, active: Iterable[str]) -> tuple[Fraction, ...]:
    """From the top down, list by list."""
    if path == "root":
        return (Fraction(1),) * len(shares.capacity)
    above = path.rpartition(".")[0]
    siblings = {
        node for leaf in active for node in path_up(leaf) if node.rpartition(".")[0] == above
    }
    claims = {node: shares.claims(node) for node in sorted(siblings)}
    return divide_all(entitled(shares, above, active), claims)[path]


@STEADY
@given(some.lists(some.integers(0, 1 << 41), min_size=1, max_size=4), some.integers(0, 999))
def test_the_rounded_dominant_share_is_the_float_nearest_to_it(
    capacity: list[int], seed: int
) -> None:
    used = tuple(Random(seed).randint(0, top) for top in capacity)
    shares = FairShare(tuple(capacity))
    assert shares.rounded_dominant_share(used) == float(shares.dominant_share(used))
