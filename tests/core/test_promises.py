"""The account of promises: each figure against one worked out by hand, or by another way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.amounts.resources import NOTHING, Resources
from drfd.core.amounts.vectors import Vector, plus
from drfd.core.fairness.rules import NodeSettings, Pool, Rules
from drfd.core.model.events import StartReason
from drfd.core.promises import WHOLE, Account, Obstacle, Parts, Starts, Stretch
from seeds import examples

HOUR = 3_600_000
ANN, BOB, EVE = "root.ann", "root.bob", "root.eve"
HALF = WHOLE // 2


def asks(cores: int, memory: int = 0) -> Resources:
    return Resources(cores_milli=cores * 1000, memory_bytes=memory << 30)


CAPACITY = asks(4, 8)


def machine(**others: Any) -> Rules:
    return Rules(capacity=CAPACITY, **others)


@pytest.fixture
def account() -> Account:
    """ann holds the whole machine for an hour, and bob waits for a core."""
    account = Account(machine(), HOUR)
    account.put(1, ANN, holds=asks(4))
    account.put(2, BOB, wants=asks(1))
    return account


def waited(hours: float, **parts: int) -> Parts:
    """Sums at equal parts over some hours."""
    ms = round(hours * HOUR)
    return Parts(ms, **{name: amount * ms for name, amount in parts.items()})


# -- promised and kept ---------------------------------------------------------------------------


def test_who_waits_is_short_of_what_another_holds_beyond_its_promise(account: Account) -> None:
    account.advance(HOUR)
    assert account.sums == {(0, BOB): waited(1, promised=HALF, others=HALF)}
    assert account.pairs == {(0, BOB, ANN): HALF * HOUR}
    assert account.longest == {BOB: Stretch(0, HOUR)}


def test_who_waits_for_nothing_lacks_nothing(account: Account) -> None:
    account.put(2, BOB)
    account.advance(HOUR)
    assert (account.sums, account.pairs, account.longest) == ({}, {}, {})


def test_what_is_held_counts_up_to_the_promise(account: Account) -> None:
    account.put(1, ANN, holds=asks(3))
    account.put(3, BOB, holds=asks(1))
    account.advance(HOUR)
    parts = waited(1, kept_part=HALF, promised=HALF, kept=HALF // 2, others=HALF // 2)
    assert account.sums == {(0, BOB): parts}
    account.put(4, ANN, wants=asks(1))
    account.advance(2 * HOUR)
    assert account.sums[1, ANN] == waited(1, kept_part=WHOLE, promised=HALF, kept=HALF)


def test_the_sums_are_by_windows(account: Account) -> None:
    account.advance(HOUR // 4)
    account.put(1, ANN)
    account.advance(HOUR // 2)
    account.put(1, ANN, holds=asks(4))
    account.advance(2 * HOUR)
    short = waited(0.25 + 0.5, promised=HALF, others=HALF)
    # Alone, bob is promised the whole machine, and his job is not what keeps him from it.
    alone = waited(0.25, promised=WHOLE, size=WHOLE)
    assert account.sums == {
        (0, BOB): Parts(*[sum(pair) for pair in zip(short, alone, strict=True)]),
        (1, BOB): waited(1, promised=HALF, others=HALF),
    }
    assert account.pairs == {(0, BOB, ANN): HALF * HOUR * 3 // 4, (1, BOB, ANN): HALF * HOUR}


def test_others_are_charged_in_proportion_and_to_the_last_unit() -> None:
    """Three promises of a quarter; what the fourth is short of is more than they are beyond."""
    account = Account(machine(), HOUR)
    account.put(1, ANN, holds=asks(2))
    account.put(2, EVE, holds=asks(0, 3))
    account.put(3, "root.joe", holds=asks(1))
    account.put(4, BOB, wants=asks(1))
    account.advance(1)
    quarter, eighth = WHOLE // 4, WHOLE // 8
    assert account.sums == {(0, BOB): Parts(1, promised=quarter, others=quarter)}
    assert account.pairs == {(0, BOB, ANN): quarter * 2 // 3 + 1, (0, BOB, EVE): quarter // 3}
    account.put(1, ANN, holds=asks(1))
    account.advance(2)
    assert account.sums[0, BOB].size == quarter - eighth
    assert account.pairs[0, BOB, EVE] == quarter // 3 + eighth


def test_the_rules_of_the_time_count(account: Account) -> None:
    account.advance(HOUR)
    heavy = NodeSettings(weight=Fraction(3))
    account.adopt(machine(members={("", "ann"): heavy}))
    account.advance(2 * HOUR)
    assert account.sums[1, BOB] == waited(1, promised=WHOLE // 4, others=WHOLE // 4)
    account.adopt(replace(machine(), capacity=asks(8, 8)))
    account.advance(3 * HOUR)
    assert account.sums[2, BOB] == waited(1, promised=HALF, size=HALF)


def test_what_is_held_is_measured_by_the_promise_of_the_moment() -> None:
    """Weights of single resources: with each user who comes, kim's promise of cores falls less than
    that of memory, of which a quarter is held."""
    heavy = NodeSettings(weights={"cores": Fraction(5)})
    account = Account(machine(members={("", "eve"): heavy}), HOUR)
    account.put(1, "root.kim", holds=asks(0, 2))
    account.put(2, "root.kim", wants=asks(1))
    account.put(3, EVE, holds=asks(1))
    account.advance(HOUR)
    account.put(4, "root.joe", holds=asks(1))
    account.advance(2 * HOUR)
    kept = [sums.kept for sums in account.sums.values()]
    assert kept == [floor(Fraction(each) * WHOLE) * HOUR for each in ("1/12", "3/28")]


def test_a_clock_that_is_set_back_takes_nothing_away(account: Account) -> None:
    account.advance(HOUR // 2)
    account.advance(HOUR // 4)
    account.advance(HOUR)
    assert account.steps_back == 1
    assert account.sums == {(0, BOB): waited(0.5 + 0.75, promised=HALF, others=HALF)}
    assert account.longest == {BOB: Stretch(HOUR // 4, HOUR)}


# -- causes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("obstacle", [Obstacle.AWAY, Obstacle.DRAINED])
def test_while_nothing_may_start_nobody_is_to_blame(account: Account, obstacle: Obstacle) -> None:
    account.keep_from_jobs(obstacle, CAPACITY)
    account.advance(HOUR)
    account.keep_from_jobs(obstacle, NOTHING)
    account.advance(2 * HOUR)
    cause = {obstacle.value: HALF}
    assert account.sums == {
        (0, BOB): waited(1, promised=HALF, **cause),
        (1, BOB): waited(1, promised=HALF, others=HALF),
    }
    assert account.pairs == {(1, BOB, ANN): HALF * HOUR}


def test_a_load_from_outside_counts_as_far_as_it_goes(account: Account) -> None:
    account.keep_from_jobs(Obstacle.OUTSIDE, asks(1))
    account.advance(HOUR)
    quarter = WHOLE // 4
    assert account.sums == {(0, BOB): waited(1, promised=HALF, outside=quarter, others=quarter)}
    account.adopt(replace(machine(), capacity=asks(10, 8)))
    account.advance(2 * HOUR)
    assert account.sums[1, BOB].outside == WHOLE // 10 * HOUR, "of the machine as it is now"


def test_a_limit_that_stops_each_job_is_the_leafs_own() -> None:
    """The pool may hold three cores: one more job of two does not fit beside the first."""
    lab = Pool(users=frozenset({"ann", "bob"}), limit={"cores": 3000})
    account = Account(machine(pools={"lab": lab}), HOUR)
    account.put(1, "root.lab.ann", holds=asks(2))
    account.put(2, "root.lab.bob", wants=asks(2))
    account.advance(HOUR)
    (parts,) = account.sums.values()
    assert parts.promised == parts.own_limit == floor(WHOLE * Fraction(3, 8)) * HOUR
    account.put(3, "root.lab.bob", wants=asks(1))
    account.advance(2 * HOUR)
    parts = account.sums[1, "root.lab.bob"]
    assert (parts.own_limit, parts.others) == (0, WHOLE // 8 * HOUR)
    assert account.pairs == {(1, "root.lab.bob", "root.lab.ann"): WHOLE // 8 * HOUR}


# -- starts --------------------------------------------------------------------------------------


def test_starts_past_somebody_who_is_short_are_counted_by_their_reason() -> None:
    account = Account(machine(), HOUR)
    for job_id, cores in ((1, 2), (2, 1), (3, 1)):
        account.put(job_id, ANN, wants=asks(cores))
    account.put(4, BOB, wants=asks(2))
    account.put(5, BOB, wants=asks(3))
    account.put(4, BOB, wants=asks(2))
    account.start(1, StartReason.TURN)
    account.start(2, StartReason.RESERVATION)
    account.start(3, StartReason.BACKFILL)
    account.advance(HOUR)
    assert account.starts == {
        (0, StartReason.TURN): Starts(1),
        (0, StartReason.RESERVATION): Starts(1, beyond=1, past=1, past_fitting=1),
        (0, StartReason.BACKFILL): Starts(1, beyond=1, past=1),
    }
    assert account.sums == {(0, BOB): waited(1, promised=HALF, others=HALF)}


def test_a_job_that_would_exceed_its_own_promise_was_not_passed_as_fitting() -> None:
    account = Account(machine(), HOUR)
    account.put(1, ANN, wants=asks(3))
    account.put(2, BOB, wants=asks(3))
    account.start(1)
    assert account.starts == {(0, None): Starts(1, beyond=1, past=1)}
    account.put(3, EVE, wants=asks(1))
    account.put(3, EVE)
    account.keep_from_jobs(Obstacle.OUTSIDE, asks(1))
    account.put(2, BOB, wants=asks(1))
    account.put(4, ANN, wants=asks(0, 1))
    account.start(4)
    assert account.starts == {(0, None): Starts(2, beyond=2, past=2)}, "no core was free for bob"


# -- any history ---------------------------------------------------------------------------------

POOLS = {
    "lab": Pool(users=frozenset({"ann", "bob"}), guarantee={"cores": 3000}),
    "den": Pool(users=frozenset({"joe"}), weight=Fraction(3), limit={"memory": 6 << 30}),
}
RULES = (
    machine(),
    machine(pools=POOLS, members={("lab", "bob"): NodeSettings(weight=Fraction(2, 3))}),
    machine(pools=POOLS, members={("", "eve"): NodeSettings(weights={"cores": Fraction(5)})}),
)
LEAVES = ("root.lab.ann", "root.lab.bob", "root.den.joe", EVE, "root.kim")
AMOUNTS = some.builds(asks, some.integers(0, 3), some.integers(0, 5))
STEP = some.one_of(
    some.tuples(some.just("advance"), some.integers(0, 90), some.none()),
    some.tuples(some.just("advance"), some.integers(1, 9), some.none()),
    some.tuples(some.just("wants"), some.integers(0, 9), AMOUNTS),
    some.tuples(some.just("holds"), some.integers(0, 9), AMOUNTS),
    some.tuples(some.just("start"), some.integers(0, 9), some.none()),
    some.tuples(some.just("gone"), some.integers(0, 9), some.none()),
    some.tuples(some.just("adopt"), some.sampled_from(RULES), some.none()),
    some.tuples(some.sampled_from(Obstacle), some.just(0), AMOUNTS),
)
STEPS = some.lists(STEP, min_size=10, max_size=50)
HISTORIES = some.tuples(some.sampled_from(RULES), STEPS)


class Slow:
    """The same account, at each moment anew from what every job wants and holds."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.wants: dict[int, Resources] = {}
        self.holds: dict[int, Resources] = {}
        self.sums: Counter[tuple[str, str]] = Counter()

    def advance(self, ms: int) -> None:
        used: dict[str, Vector] = {}
        for job_id, amounts in self.holds.items():
            leaf, held = leaf_of(job_id), self.rules.axes.vector(amounts)
            used[leaf] = plus(used[leaf], held) if leaf in used else held
        waiting = {leaf_of(job_id) for job_id in self.wants}
        tree = self.rules.shares.share_tree(used, waiting)
        for leaf in waiting:
            promised, satisfaction = tree.entitlement(leaf), tree.satisfaction(leaf)
            self.sums[leaf, "waited"] += ms
            self.sums[leaf, "promised"] += floor(promised * WHOLE) * ms
            self.sums[leaf, "kept"] += floor(min(satisfaction, 1) * promised * WHOLE) * ms


def leaf_of(job_id: int) -> str:
    return LEAVES[job_id % len(LEAVES)]


def follow(history: tuple[Rules, Sequence[Any]], window_ms: int) -> tuple[Account, Slow]:
    rules, steps = history
    account, slow = Account(rules, window_ms), Slow(rules)
    for what, one, other in steps:
        if what == "advance":
            account.advance(account.now_ms + one)
            slow.advance(one)
        elif what == "adopt":
            slow.rules = one
            account.adopt(one)
        elif isinstance(what, Obstacle):
            account.keep_from_jobs(what, other)
        elif what == "start":
            if one in slow.wants:
                slow.holds[one] = slow.wants.pop(one)
                account.start(one)
        else:
            slow.wants.pop(one, None)
            slow.holds.pop(one, None)
            if what != "gone":
                getattr(slow, what)[one] = other
            account.put(one, leaf_of(one), **({} if what == "gone" else {what: other}))
    return account, slow


@given(HISTORIES)
@examples(300)
def test_the_parts_add_up_exactly_and_others_are_charged_with_all_of_theirs(history: Any) -> None:
    account, _ = follow(history, window_ms=50)
    by: Counter[tuple[int, str]] = Counter()
    for (window, leaf, other), amount in account.pairs.items():
        assert amount > 0 and leaf != other
        by[window, leaf] += amount
    for key, sums in account.sums.items():
        _, kept_part, promised, kept, *causes = sums
        assert promised == kept + sum(causes)
        assert min(sums) >= 0 and kept_part <= WHOLE * sums.waited and sums.waited <= 50
        assert sums.others == by.pop(key, 0)
    assert not by


@given(HISTORIES)
@examples(300)
def test_what_is_promised_and_kept_is_what_the_tree_of_the_moment_says(history: Any) -> None:
    account, slow = follow(history, window_ms=70)
    found: Counter[tuple[str, str]] = Counter()
    for (_, leaf), sums in account.sums.items():
        for name in ("waited", "promised", "kept"):
            found[leaf, name] += getattr(sums, name)
    assert found == slow.sums


@given(HISTORIES)
@examples(100)
def test_the_length_of_windows_changes_no_sum(history: Any) -> None:
    found = []
    for window_ms in (7, 1 << 40):
        account, _ = follow(history, window_ms)
        sums: dict[str, Parts] = {}
        for (_, leaf), parts in account.sums.items():
            sums[leaf] = sums.get(leaf, Parts()).after(parts, 1)
        pairs: Counter[tuple[str, str]] = Counter()
        for (_, *both), amount in account.pairs.items():
            pairs[both[0], both[1]] += amount
        starts = Counter[str]()
        for counts in account.starts.values():
            starts.update(counts._asdict())
        found.append((sums, pairs, starts, account.longest))
    assert found[0] == found[1]
