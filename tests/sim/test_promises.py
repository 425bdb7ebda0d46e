"""What a simulation counts: what was promised to those who waited, and what came of it."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import floor
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from drfd.core.fairness.rules import NodeSettings, Pool, Rules
from drfd.core.model.events import StartReason
from drfd.core.model.machine import Vector, plus
from drfd.core.model.resources import Resources
from drfd.sim.promises import WHOLE, PromiseAccount, Starts
from seeds import examples

HOUR = 3_600_000
ANN, BOB, EVE = "root.ann", "root.bob", "root.eve"


def asks(cores: int, memory: int = 0) -> Resources:
    return Resources(cores_milli=cores * 1000, memory_bytes=memory << 30)


def machine(**others: Any) -> Rules:
    return Rules(**{"capacity": asks(4, 8), **others})


class Bench(PromiseAccount):
    """An account that is told of single jobs."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.wants: dict[int, tuple[str, Resources]] = {}
        self.holds: dict[int, tuple[str, Resources]] = {}
        super().__init__(rules.shares)

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
        vector = self.rules.axes.vector
        demands = [vector(amounts) for name, amounts in self.wants.values() if name == leaf]
        self.put(leaf, demands=tuple(dict.fromkeys(demands)), used=self.used().get(leaf))

    def start(self, job_id: int) -> None:
        leaf, amounts = self.wants[job_id]
        self.count_start(leaf, self.rules.axes.vector(amounts), StartReason.TURN)
        self.have(job_id, leaf, holds=amounts)

    def used(self) -> dict[str, Vector]:
        found: dict[str, Vector] = {}
        for leaf, amounts in self.holds.values():
            held = self.rules.axes.vector(amounts)
            found[leaf] = plus(found[leaf], held) if leaf in found else held
        return found


def test_a_start_is_beyond_the_promise_only_if_it_leads_above_it():
    """Ann starts jobs up to half of the machine, and then more, while bob waits."""
    account = Bench(machine())
    account.have(1, BOB, wants=asks(1))
    for job_id, cores in ((2, 2), (3, 1), (4, 1)):
        account.have(job_id, ANN, wants=asks(cores))
        account.start(job_id)
    assert account.starts == {StartReason.TURN: Starts(all=3, beyond=2, past=2, past_fitting=2)}
    account.have(1, BOB, wants=asks(3))
    account.have(5, ANN, wants=asks(0))
    account.start(5)
    assert account.starts == {StartReason.TURN: Starts(all=4, beyond=3, past=3, past_fitting=2)}


def test_a_limit_that_stops_each_job_is_the_leafs_own():
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
    (after,) = account.sums.values()
    assert after.own_limit == parts.own_limit
    assert after.others == WHOLE // 8 * HOUR


# -- any history -----------------------------------------------------------------------------------

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
)
HISTORIES = some.tuples(some.sampled_from(RULES), some.lists(STEP, min_size=10, max_size=50))


def look_at(bench: Bench, ms: int) -> Counter[tuple[str, str]]:
    """What a time adds to the sums, from what every job wants and holds."""
    waiting = {leaf for leaf, _ in bench.wants.values()}
    tree = bench.rules.shares.share_tree(bench.used(), waiting)
    found: Counter[tuple[str, str]] = Counter()
    for leaf in waiting:
        promised, satisfaction = tree.least_entitled(leaf), tree.satisfaction(leaf)
        found[leaf, "waited"] = ms
        found[leaf, "promised"] = floor(promised * WHOLE) * ms
        found[leaf, "kept"] = floor(min(satisfaction, 1) * promised * WHOLE) * ms
    return found


def follow(history: tuple[Rules, Sequence[Any]]) -> tuple[Bench, Counter[tuple[str, str]]]:
    """Return the account of a history, and sums that were found by looking at each moment."""
    rules, steps = history
    account, sums = Bench(rules), Counter[tuple[str, str]]()
    for what, one, other in steps:
        if what == "advance":
            account.advance(account.now_ms + one)
            sums.update(look_at(account, one))
        elif what == "start":
            if one in account.wants:
                account.start(one)
        else:
            changes = {} if what == "gone" else {what: other}
            account.have(one, LEAVES[one % len(LEAVES)], **changes)
    return account, sums


@given(HISTORIES)
@examples(300, quick=16)
def test_what_is_promised_and_kept_is_what_the_tree_of_the_moment_says(history):
    account, looked = follow(history)
    found: Counter[tuple[str, str]] = Counter()
    for leaf, parts in account.sums.items():
        for name in ("waited", "promised", "kept"):
            found[leaf, name] += getattr(parts, name)
        _, kept_part, promised, kept, *causes = parts
        assert promised == kept + sum(causes)
        assert min(parts) >= 0 and kept_part <= WHOLE * parts.waited
    assert found == looked
