"""The account of promises: each figure against one worked out by hand, or by another way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.amounts.resources import Resources
from drfd.core.amounts.vectors import Vector, plus
from drfd.core.fairness.rules import NodeSettings, Pool, Rules
from drfd.core.model.events import StartReason
from drfd.core.promises.account import (
    WHOLE,
    Account,
    Obstacle,
    Parts,
    Stretch,
)
from seeds import examples

HOUR = 3_600_000
ANN, BOB, EVE = "root.ann", "root.bob", "root.eve"
HALF = WHOLE // 2


def asks(cores: int, memory: int = 0) -> Resources:
    return Resources(cores_milli=cores * 1000, memory_bytes=memory << 30)


CAPACITY = asks(4, 8)


def machine(**others: Any) -> Rules:
    return Rules(**{"capacity": CAPACITY, **others})


class Bench(Account):
    """An account that is told of single jobs."""

    def __init__(self, rules: Rules, window_ms: int = HOUR) -> None:
        self.rules = rules
        self.wants: dict[int, tuple[str, Resources]] = {}
        self.holds: dict[int, tuple[str, Resources]] = {}
        self.obstacles: dict[Obstacle, Resources] = {}
        super().__init__(rules.shares, window_ms)

    def have(
        self,
        job_id: int,
        leaf: str,
        *,
        wants: Resources | None = None,
        holds: Resources | None = None,
    ) -> None:
        """Let the job wait with this demand, or hold these resources, or neither."""
        for table, amounts in ((self.wants, wants), (self.holds, holds)):
            if amounts is None:
                table.pop(job_id, None)
            else:
                table[job_id] = leaf, amounts
        self.tell(leaf)

    def start(self, job_id: int, why: StartReason | None = None) -> None:
        leaf, amounts = self.wants[job_id]
        self.count_start(leaf, self.rules.axes.vector(amounts), why, job_id)
        self.have(job_id, leaf, holds=amounts)

    def rule(self, rules: Rules) -> None:
        self.rules = rules
        self.adopt(rules.shares)
        for leaf in self.leaves():
            self.tell(leaf)
        for obstacle, amounts in self.obstacles.items():
            self.obstruct(obstacle, amounts)

    def obstruct(self, obstacle: Obstacle, amounts: Resources) -> None:
        self.obstacles[obstacle] = amounts
        self.keep_from_jobs(obstacle, self.rules.axes.vector(amounts))

    def leaves(self) -> list[str]:
        return [*dict.fromkeys(leaf for leaf, _ in (*self.wants.values(), *self.holds.values()))]

    def tell(self, name: str) -> None:
        vector = self.rules.axes.vector
        demands = [vector(amounts) for leaf, amounts in self.wants.values() if leaf == name]
        self.put(name, demands=tuple(dict.fromkeys(demands)), used=self.used().get(name))

    def used(self) -> dict[str, Vector]:
        found: dict[str, Vector] = {}
        for leaf, amounts in self.holds.values():
            held = self.rules.axes.vector(amounts)
            found[leaf] = plus(found[leaf], held) if leaf in found else held
        return found


@pytest.fixture
def account() -> Bench:
    """ann holds the whole machine for an hour, and bob waits for a core."""
    account = Bench(machine())
    account.have(1, ANN, holds=asks(4))
    account.have(2, BOB, wants=asks(1))
    return account


def waited(hours: float, **parts: int) -> Parts:
    """Sums at equal parts over some hours."""
    ms = round(hours * HOUR)
    return Parts(ms, **{name: amount * ms for name, amount in parts.items()})


# -- promised and kept ---------------------------------------------------------------------------


def test_a_clock_that_is_set_back_takes_nothing_away(account: Bench) -> None:
    account.advance(HOUR // 2)
    account.advance(HOUR // 4)
    account.advance(HOUR)
    assert account.steps_back == 1
    assert account.sums == {(0, BOB): waited(0.5 + 0.75, promised=HALF, others=HALF)}
    assert account.longest == {BOB: Stretch(HOUR // 4, HOUR)}


# -- causes --------------------------------------------------------------------------------------


def test_a_limit_that_stops_each_job_is_the_leafs_own() -> None:
    """The pool may hold three cores: one more job of two does not fit beside the first."""
    lab = Pool(users=frozenset({"ann", "bob"}), limit={"cores": 3000})
    account = Bench(machine(pools={"lab": lab}))
    account.have(1, "root.lab.ann", holds=asks(2))
    account.have(2, "root.lab.bob", wants=asks(2))
    account.advance(HOUR)
    (parts,) = account.sums.values()
    assert parts.promised == parts.own_limit == floor(WHOLE * Fraction(3, 8)) * HOUR
    account.have(3, "root.lab.bob", wants=asks(1))
    account.advance(2 * HOUR)
    parts = account.sums[1, "root.lab.bob"]
    assert (parts.own_limit, parts.others) == (0, WHOLE // 8 * HOUR)
    assert account.pairs == {(1, "root.lab.bob", "root.lab.ann"): WHOLE // 8 * HOUR}


# -- starts --------------------------------------------------------------------------------------


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


def look(bench: Bench, ms: int) -> Counter[tuple[str, str]]:
    """What a time adds to the sums, from what every job wants and holds."""
    waiting = {leaf for leaf, _ in bench.wants.values()}
    tree = bench.rules.shares.share_tree(bench.used(), waiting)
    found: Counter[tuple[str, str]] = Counter()
    for leaf in waiting:
        promised, satisfaction = tree.entitlement(leaf), tree.satisfaction(leaf)
        found[leaf, "waited"] = ms
        found[leaf, "promised"] = floor(promised * WHOLE) * ms
        found[leaf, "kept"] = floor(min(satisfaction, 1) * promised * WHOLE) * ms
    return found


def leaf_of(job_id: int) -> str:
    return LEAVES[job_id % len(LEAVES)]


def follow(
    history: tuple[Rules, Sequence[Any]], window_ms: int
) -> tuple[Bench, Counter[tuple[str, str]]]:
    """Return the account of a history, and sums that were found by looking at each moment."""
    rules, steps = history
    account, sums = Bench(rules, window_ms), Counter[tuple[str, str]]()
    for what, one, other in steps:
        if what == "advance":
            account.advance(account.now_ms + one)
            sums.update(look(account, one))
        elif what == "adopt":
            account.rule(one)
        elif isinstance(what, Obstacle):
            account.obstruct(what, other)
        elif what == "start":
            if one in account.wants:
                account.start(one)
        else:
            account.have(one, leaf_of(one), **({} if what == "gone" else {what: other}))
    return account, sums


@given(HISTORIES)
@examples(300, quick=18)
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
@examples(300, quick=16)
def test_what_is_promised_and_kept_is_what_the_tree_of_the_moment_says(history: Any) -> None:
    account, looked = follow(history, window_ms=70)
    found: Counter[tuple[str, str]] = Counter()
    for (_, leaf), sums in account.sums.items():
        for name in ("waited", "promised", "kept"):
            found[leaf, name] += getattr(sums, name)
    assert found == looked


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
