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
from drfd.core.promises.account import (
    MOST_PAST,
    MOST_SHORT,
    WHOLE,
    Account,
    Obstacle,
    Parts,
    PastStart,
    Starts,
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


def test_who_waits_is_short_of_what_another_holds_beyond_its_promise(account: Bench) -> None:
    account.advance(HOUR)
    assert account.sums == {(0, BOB): waited(1, promised=HALF, others=HALF)}
    assert account.pairs == {(0, BOB, ANN): HALF * HOUR}
    assert account.longest == {BOB: Stretch(0, HOUR)}


def test_who_waits_for_nothing_lacks_nothing(account: Bench) -> None:
    account.have(2, BOB)
    account.advance(HOUR)
    assert (account.sums, account.pairs, account.longest) == ({}, {}, {})


def test_what_is_held_counts_up_to_the_promise(account: Bench) -> None:
    account.have(1, ANN, holds=asks(3))
    account.have(3, BOB, holds=asks(1))
    account.advance(HOUR)
    parts = waited(1, kept_part=HALF, promised=HALF, kept=HALF // 2, others=HALF // 2)
    assert account.sums == {(0, BOB): parts}
    account.have(4, ANN, wants=asks(1))
    account.advance(2 * HOUR)
    assert account.sums[1, ANN] == waited(1, kept_part=WHOLE, promised=HALF, kept=HALF)


def test_the_sums_are_by_windows(account: Bench) -> None:
    account.advance(HOUR // 4)
    account.have(1, ANN)
    account.advance(HOUR // 2)
    account.have(1, ANN, holds=asks(4))
    account.advance(2 * HOUR)
    short = waited(0.25 + 0.5, promised=HALF, others=HALF)
    # Alone, bob is promised the whole machine, and his job is not what keeps him from it.
    alone = waited(0.25, promised=WHOLE, size=WHOLE)
    assert account.sums == {
        (0, BOB): Parts(*[sum(pair) for pair in zip(short, alone, strict=True)]),
        (1, BOB): waited(1, promised=HALF, others=HALF),
    }
    assert account.pairs == {(0, BOB, ANN): HALF * HOUR * 3 // 4, (1, BOB, ANN): HALF * HOUR}


def test_a_stretch_ends_when_the_promise_is_kept_or_nobody_waits(account: Bench) -> None:
    account.advance(HOUR)
    account.have(2, BOB)
    account.advance(2 * HOUR)
    account.have(2, BOB, wants=asks(1))
    account.advance(3 * HOUR)
    assert account.longest == {BOB: Stretch(0, HOUR)}
    account.have(1, ANN, holds=asks(2))
    account.have(3, BOB, holds=asks(2))
    account.advance(4 * HOUR)
    account.have(3, BOB)
    account.advance(6 * HOUR)
    assert account.longest == {BOB: Stretch(4 * HOUR, 6 * HOUR)}


def test_others_are_charged_in_proportion_and_to_the_last_unit() -> None:
    """Three promises of a quarter; what the fourth is short of is more than they are beyond."""
    account = Bench(machine())
    account.have(1, ANN, holds=asks(2))
    account.have(2, EVE, holds=asks(0, 3))
    account.have(3, "root.joe", holds=asks(1))
    account.have(4, BOB, wants=asks(1))
    account.advance(1)
    quarter, eighth = WHOLE // 4, WHOLE // 8
    assert account.sums == {(0, BOB): Parts(1, promised=quarter, others=quarter)}
    assert account.pairs == {(0, BOB, ANN): quarter * 2 // 3 + 1, (0, BOB, EVE): quarter // 3}
    account.have(1, ANN, holds=asks(1))
    account.advance(2)
    assert account.sums[0, BOB].size == quarter - eighth
    assert account.pairs[0, BOB, EVE] == quarter // 3 + eighth


def test_the_rules_of_the_time_count(account: Bench) -> None:
    account.advance(HOUR)
    heavy = NodeSettings(weight=Fraction(3))
    account.rule(machine(members={("", "ann"): heavy}))
    account.advance(2 * HOUR)
    assert account.sums[1, BOB] == waited(1, promised=WHOLE // 4, others=WHOLE // 4)
    account.rule(replace(machine(), capacity=asks(8, 8)))
    account.advance(3 * HOUR)
    assert account.sums[2, BOB] == waited(1, promised=HALF, size=HALF)


def test_what_is_held_is_measured_by_the_promise_of_the_moment() -> None:
    """Weights of single resources: with each user who comes, kim's promise of cores falls less than
    that of memory, of which a quarter is held."""
    heavy = NodeSettings(weights={"cores": Fraction(5)})
    account = Bench(machine(members={("", "eve"): heavy}))
    account.have(1, "root.kim", holds=asks(0, 2))
    account.have(2, "root.kim", wants=asks(1))
    account.have(3, EVE, holds=asks(1))
    account.advance(HOUR)
    account.have(4, "root.joe", holds=asks(1))
    account.advance(2 * HOUR)
    kept = [sums.kept for sums in account.sums.values()]
    assert kept == [floor(Fraction(each) * WHOLE) * HOUR for each in ("1/12", "3/28")]


def test_a_clock_that_is_set_back_takes_nothing_away(account: Bench) -> None:
    account.advance(HOUR // 2)
    account.advance(HOUR // 4)
    account.advance(HOUR)
    assert account.steps_back == 1
    assert account.sums == {(0, BOB): waited(0.5 + 0.75, promised=HALF, others=HALF)}
    assert account.longest == {BOB: Stretch(HOUR // 4, HOUR)}


# -- causes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("obstacle", [Obstacle.AWAY, Obstacle.DRAINED])
def test_while_nothing_may_start_nobody_is_to_blame(account: Bench, obstacle: Obstacle) -> None:
    account.obstruct(obstacle, CAPACITY)
    account.advance(HOUR)
    account.obstruct(obstacle, NOTHING)
    account.advance(2 * HOUR)
    cause = {obstacle.value: HALF}
    assert account.sums == {
        (0, BOB): waited(1, promised=HALF, **cause),
        (1, BOB): waited(1, promised=HALF, others=HALF),
    }
    assert account.pairs == {(1, BOB, ANN): HALF * HOUR}


def test_a_load_from_outside_counts_as_far_as_it_goes(account: Bench) -> None:
    account.obstruct(Obstacle.OUTSIDE, asks(1))
    account.advance(HOUR)
    quarter = WHOLE // 4
    assert account.sums == {(0, BOB): waited(1, promised=HALF, outside=quarter, others=quarter)}
    account.rule(replace(machine(), capacity=asks(10, 8)))
    account.advance(2 * HOUR)
    assert account.sums[1, BOB].outside == WHOLE // 10 * HOUR, "of the machine as it is now"


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


def test_starts_past_somebody_who_is_short_are_counted_by_their_reason() -> None:
    account = Bench(machine())
    for job_id, cores in ((1, 2), (2, 1), (3, 1)):
        account.have(job_id, ANN, wants=asks(cores))
    account.have(4, BOB, wants=asks(2))
    account.have(5, BOB, wants=asks(3))
    account.have(4, BOB, wants=asks(2))
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
    assert account.counted.past == [
        PastStart(0, 2, ANN, StartReason.RESERVATION, True, (BOB,)),
        PastStart(0, 3, ANN, StartReason.BACKFILL, False, (BOB,)),
    ]


def test_whoever_starts_many_jobs_has_few_told_singly_with_few_of_those_whom_they_pass() -> None:
    count = MOST_PAST + 5
    account = Bench(machine(capacity=asks(1000, 8)))
    for user in range(MOST_SHORT + 3):
        account.have(1000 + user, f"root.u{user:02}", wants=asks(999 if user % 2 else 1))
    for job_id in range(count):
        account.have(job_id, ANN, wants=asks(500 if not job_id else 1))
        account.start(job_id)
    assert account.starts == {(0, None): Starts(count, count, count, count)}
    told = account.take_out().past
    assert [each.job_id for each in told] == [*range(MOST_PAST)]
    evens = [f"root.u{user:02}" for user in range(0, MOST_SHORT + 3, 2)]
    assert told[0].short == (*evens, "root.u01", "root.u03")[:MOST_SHORT]
    # What is told from now on is counted anew.
    account.have(count, ANN, wants=asks(1))
    account.start(count)
    assert [each.job_id for each in account.counted.past] == [count]


def test_a_job_that_would_exceed_its_own_promise_was_not_passed_as_fitting() -> None:
    account = Bench(machine())
    account.have(1, ANN, wants=asks(3))
    account.have(2, BOB, wants=asks(3))
    account.start(1)
    assert account.starts == {(0, None): Starts(1, beyond=1, past=1)}
    account.have(3, EVE, wants=asks(1))
    account.have(3, EVE)
    account.obstruct(Obstacle.OUTSIDE, asks(1))
    account.have(2, BOB, wants=asks(1))
    account.have(4, ANN, wants=asks(0, 1))
    account.start(4)
    assert account.starts == {(0, None): Starts(2, beyond=2, past=2)}, "no core was free for bob"


def test_nobody_goes_past_its_own_jobs() -> None:
    account = Bench(machine())
    account.have(1, ANN, holds=asks(1))
    for job_id in (2, 3):
        account.have(job_id, BOB, wants=asks(3))
    account.start(2)
    assert account.starts == {(0, None): Starts(1, beyond=1)}


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
