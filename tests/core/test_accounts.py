"""Accounts: what was promised and what came of it, what was declared and used, curves of use."""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import structs

from core.test_walks import walked
from drfd.core.explain.advice import LAST
from drfd.core.explain.ended_jobs import BY, UsageAccounts, account_of, largest_rows
from drfd.core.fairness.rules import NodeSettings, Pool, Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.account import Account
from drfd.core.model.events import StartReason
from drfd.core.model.job import Job, JobState, Outcome, Usage
from drfd.core.model.machine import Vector, plus
from drfd.core.model.resources import Axes, ClusterNode, Resources
from drfd.core.promises import (
    MOST_PAST,
    WHOLE,
    EventFold,
    Obstacle,
    Parts,
    PastStart,
    PromiseAccount,
    Starts,
    Stretch,
)
from drfd.core.usage import (
    FRESH,
    MEASURES,
    MOST,
    BeyondTally,
    Curve,
    Point,
    Series,
    merged,
    thinned,
)
from drfd.journal import records
from fakes import BOB, GIB, demand, happened, now, replace, rules, spec
from seeds import examples

# -- promises --------------------------------------------------------------------------------------


HOUR = 3_600_000
ANN, BOBS, EVE = "root.ann", "root.bob", "root.eve"
HALF = WHOLE // 2


def asks(cores: int, memory: int = 0) -> Resources:
    return Resources(cores_milli=cores * 1000, memory_bytes=memory << 30)


CAPACITY = asks(4, 8)


def machine(**others: Any) -> Rules:
    return Rules(**{"capacity": CAPACITY, **others})


class Bench(PromiseAccount):
    """An account that is told of single jobs."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.wants: dict[int, tuple[str, Resources]] = {}
        self.holds: dict[int, tuple[str, Resources]] = {}
        self.obstacles: dict[Obstacle, Resources] = {}
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
    account.have(2, BOBS, wants=asks(1))
    return account


def waited(hours: float, **parts: int) -> Parts:
    """Sums at equal parts over some hours."""
    ms = round(hours * HOUR)
    return Parts(ms, **{name: amount * ms for name, amount in parts.items()})


# -- promised and kept -----------------------------------------------------------------------------


def test_a_clock_that_is_set_back_takes_nothing_away(account):
    account.advance(HOUR // 2)
    account.advance(HOUR // 4)
    account.advance(HOUR)
    assert account.counted.steps_back == 1
    assert account.counted.sums == {BOBS: waited(0.5 + 0.75, promised=HALF, others=HALF)}
    assert account.counted.longest == {BOBS: Stretch(HOUR // 4, HOUR)}


def test_a_start_is_beyond_the_promise_only_if_it_leads_above_it_and_few_are_told_in_an_hour():
    """Ann starts jobs up to half of the machine, and then more, while bob waits."""
    account = Bench(machine())
    account.have(1, BOBS, wants=asks(1))
    for job_id, cores in ((2, 2), *((3 + at, int(at == 0)) for at in range(MOST_PAST + 5))):
        account.have(job_id, ANN, wants=asks(cores))
        account.start(job_id, StartReason.TURN)
    more = MOST_PAST + 5
    assert account.counted.starts == {StartReason.TURN: Starts(1 + more, more, more, more)}
    assert len(account.take_out().past) == MOST_PAST
    account.have(99, ANN, wants=asks(0))
    account.start(99, StartReason.TURN)
    (told,) = account.take_out().past
    assert told == PastStart(0, 99, ANN, StartReason.TURN, fits=True, short=(BOBS,))


# -- causes ----------------------------------------------------------------------------------------


def test_a_limit_that_stops_each_job_is_the_leafs_own():
    """The pool may hold three cores: one more job of two does not fit beside the first."""
    lab = Pool(users=frozenset({"ann", "bob"}), limit={"cores": 3000})
    account = Bench(machine(pools={"lab": lab}))
    account.have(1, "root.lab.ann", holds=asks(2))
    account.have(2, "root.lab.bob", wants=asks(2))
    account.advance(HOUR)
    (parts,) = account.take_out().sums.values()
    assert parts.promised == parts.own_limit == floor(WHOLE * Fraction(3, 8)) * HOUR
    account.have(3, "root.lab.bob", wants=asks(1))
    account.advance(2 * HOUR)
    parts = account.counted.sums["root.lab.bob"]
    assert (parts.own_limit, parts.others) == (0, WHOLE // 8 * HOUR)
    assert account.counted.pairs == {("root.lab.bob", "root.lab.ann"): WHOLE // 8 * HOUR}


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
    some.tuples(some.just("adopt"), some.sampled_from(RULES), some.none()),
    some.tuples(some.sampled_from(Obstacle), some.just(0), AMOUNTS),
)
CHANGES = some.lists(STEP, min_size=10, max_size=50)
HISTORIES = some.tuples(some.sampled_from(RULES), CHANGES)


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


def leaf_of(job_id: int) -> str:
    return LEAVES[job_id % len(LEAVES)]


def follow(history: tuple[Rules, Sequence[Any]]) -> tuple[Bench, Counter[tuple[str, str]]]:
    """Return the account of a history, and sums that were found by looking at each moment."""
    rules, steps = history
    account, sums = Bench(rules), Counter[tuple[str, str]]()
    for what, one, other in steps:
        if what == "advance":
            account.advance(account.now_ms + one)
            sums.update(look_at(account, one))
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
@examples(300, quick=12)
def test_the_parts_add_up_exactly_and_others_are_charged_with_all_of_theirs(history):
    account, _ = follow(history)
    by: Counter[str] = Counter()
    for (leaf, other), amount in account.counted.pairs.items():
        assert amount > 0 and leaf != other
        by[leaf] += amount
    for key, sums in account.counted.sums.items():
        _, kept_part, promised, kept, *causes = sums
        assert promised == kept + sum(causes)
        assert min(sums) >= 0 and kept_part <= WHOLE * sums.waited
        assert sums.others == by.pop(key, 0)
    assert not by


@given(HISTORIES)
@examples(300, quick=16)
def test_what_is_promised_and_kept_is_what_the_tree_of_the_moment_says(history):
    account, looked = follow(history)
    found: Counter[tuple[str, str]] = Counter()
    for leaf, sums in account.counted.sums.items():
        for name in ("waited", "promised", "kept"):
            found[leaf, name] += getattr(sums, name)
    assert found == looked


# -- promises from events --------------------------------------------------------------------------


BEGIN_S = now().at_s
ALICES = "root.alice"
#: Nine cores, of which alice holds nine, and bob waits for one.
PLAIN = rules()
HOLDS = (
    happened(ev.Submitted, 1, spec=spec(asks=demand(9))),
    happened(ev.Admitted, 1),
    happened(ev.Submitted, 2, spec=spec(BOBS, actor=BOB)),
)
#: What the digests of rules stand for.
RULES_BY_NAME: dict[str, Rules] = {
    "plain": PLAIN,
    "heavy": rules(weights={"alice": "3"}),
    "bigger": rules(18),
    "other axes": replace(PLAIN, axes=Axes(gres=("gpu",), disks=("a", "b"))),
    "gpu": replace(
        PLAIN,
        axes=Axes(gres=("gpu",), instances=(("gpu", ("0", "1")),)),
        capacity=replace(PLAIN.capacity, gres=(("gpu", 2),)),
    ),
    "nodes": replace(
        PLAIN,
        axes=Axes(
            nodes=(
                ClusterNode(name="n1", capacity=demand(3)),
                ClusterNode(name="n2", capacity=demand(6)),
            )
        ),
    ),
}


def unix(hours: float) -> float:
    return BEGIN_S + 3600 * hours


def started(rules: str = "plain", hours: float = 0, away: float | None = None) -> ev.DaemonStarted:
    since_s = None if away is None else unix(away)
    return ev.DaemonStarted(at_s=unix(hours), version="1", rules=rules, away_since_s=since_s)


def folded(*events: ev.Event | ev.AuditEvent) -> PromiseAccount:
    fold = EventFold(RULES_BY_NAME.__getitem__)
    for event in events:
        fold.take(event)
    return fold.account


def sums_of(account: PromiseAccount) -> dict[str, Parts]:
    """By leaf, in machine-billionths times hours."""
    found: dict[str, Parts] = {}
    for leaf, parts in account.counted.sums.items():
        assert not any(part % HOUR for part in parts)
        found[leaf] = Parts(*[part // HOUR for part in parts])
    return found


def end(hours: float) -> ev.IdsRaised | ev.Configured:
    """An event at this time that changes nothing."""
    return ev.Configured(at_s=unix(hours), rules="plain")


def test_times_that_a_launcher_tells_later_are_no_clock_set_back():
    """A job has ended an hour before the daemon was back and took note of it."""
    events = (
        structs.replace(happened(ev.Launched, 1), at_s=unix(-0.1)),
        started(hours=3, away=1),
        structs.replace(happened(ev.Exited, 1), at_s=unix(2)),
        started(hours=3, away=2),
    )
    account = folded(started(), *HOLDS, *events, end(4))
    assert account.counted.steps_back == 0
    parts = Parts(4, promised=4 * HALF, away=2 * HALF, others=2 * HALF)
    assert sums_of(account) == {BOBS: parts}


# -- causes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pause",
    [
        (ev.DaemonStopped(at_s=unix(1)), started(hours=3, away=1)),
        # After a kill.
        (started(hours=3, away=1),),
        (
            ev.LaunchersAway(at_s=unix(1), everywhere=True),
            ev.LaunchersAway(at_s=unix(3), everywhere=False),
        ),
        # The launcher is back when the next daemon is.
        (ev.LaunchersAway(at_s=unix(1), everywhere=True), started(hours=3, away=2)),
    ],
)
def test_without_a_daemon_or_a_launcher_nobody_is_to_blame(pause):
    account = folded(started(), *HOLDS, *pause, end(4))
    parts = Parts(4, promised=4 * HALF, away=2 * HALF, others=2 * HALF)
    assert sums_of(account) == {BOBS: parts}


def test_nodes_that_are_closed_count_as_far_as_they_go():
    """A third of the cores are on the first node."""
    account = folded(
        started("nodes"),
        *HOLDS,
        ev.LaunchersAway(at_s=unix(0), everywhere=False, nodes=("n1",)),
        ev.Drained(at_s=unix(1), on=True, by="root", node="n1"),
        ev.LaunchersAway(at_s=unix(2), everywhere=False),
        ev.Drained(at_s=unix(3), on=False, by="root", node="n1"),
        ev.Configured(at_s=unix(4), rules="nodes"),
    )
    third = WHOLE // 3
    assert sums_of(account) == {
        BOBS: Parts(
            4, promised=4 * HALF, away=2 * third, drained=third + HALF - third,
            others=3 * HALF - 2 * third,
        )
    }  # fmt: skip


def test_jobs_of_others_on_other_nodes_count_as_far_as_they_go():
    """A third of the cores are on the first node. Where that is closed, it counts as a whole."""
    few = (("n1", Resources(cores_milli=900)),)
    load = ev.ExternalLoadChanged(at_s=unix(0), kept=Resources(), elsewhere=few)
    more = (*few, ("no such node", Resources(cores_milli=5000)))
    all_of_it = (("n1", Resources(cores_milli=99_000)),)
    account = folded(
        started("nodes"),
        *HOLDS,
        load,
        structs.replace(load, at_s=unix(1), elsewhere=more),
        structs.replace(load, at_s=unix(2), elsewhere=all_of_it),
        ev.Drained(at_s=unix(3), on=True, by="root", node="n1"),
        ev.Drained(at_s=unix(4), on=False, by="root", node="n1"),
        structs.replace(load, at_s=unix(4), elsewhere=()),
        end(5),
    )
    third = WHOLE // 3
    tenth = WHOLE // 10
    assert sums_of(account) == {
        BOBS: Parts(
            5, promised=5 * HALF, drained=third, outside=2 * tenth + third,
            others=5 * HALF - 2 * third - 2 * tenth,
        )
    }  # fmt: skip


# -- rules -----------------------------------------------------------------------------------------


def test_nothing_is_counted_before_there_is_a_record_of_the_rules():
    account = folded(*HOLDS, started(hours=5), end(6))
    assert sums_of(account) == {BOBS: Parts(1, promised=HALF, others=HALF)}
    assert account.counted.starts == {}


def test_rules_that_are_not_known_are_an_error():
    with pytest.raises(KeyError):
        folded(started("others"))


# -- any history -----------------------------------------------------------------------------------


def looked_at(rules: Rules, events: Iterable[ev.Event]) -> Counter[tuple[str, str]]:
    """Sums over the whole history, from the books at each moment."""
    ledger, now_ms = Ledger(rules.axes), None
    found: Counter[tuple[str, str]] = Counter()
    for event in events:
        at_ms = round(event.at_s * 1000)
        length_ms = 0 if now_ms is None else max(0, at_ms - now_ms)
        now_ms = at_ms
        tree = rules.shares.share_tree(ledger.used, ledger.queues)
        for leaf in ledger.queues if length_ms else ():
            promised = tree.least_entitled(leaf)
            found[leaf, "waited"] += length_ms
            found[leaf, "promised"] += floor(promised * WHOLE) * length_ms
            kept = floor(min(1, tree.satisfaction(leaf)) * promised * WHOLE)
            found[leaf, "kept"] += kept * length_ms
        ledger.apply(event)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_the_account_of_a_random_history_is_what_its_books_say_at_each_moment(seed):
    bench = walked(seed)
    fold = EventFold({"walk": bench.rules}.__getitem__)
    fold.take(started("walk"))
    for event in bench.events:
        fold.take(event)
    found: Counter[tuple[str, str]] = Counter()
    for leaf, parts in fold.account.counted.sums.items():
        assert parts.promised == parts.kept + sum(parts[4:])
        for name in ("waited", "promised", "kept"):
            found[leaf, name] += getattr(parts, name)
    assert found == looked_at(bench.rules, bench.events)
    assert found[ALICES, "waited"] > 0
    admitted = [event for event in bench.events if isinstance(event, ev.Admitted)]
    assert sum(starts.all for starts in fold.account.counted.starts.values()) == len(admitted)


# -- used against declared -------------------------------------------------------------------------


JOB = Job(
    id=1,
    spec=spec(asks=demand(2, 1, read=100), name="train"),
    state=JobState.ENDED,
    attempt=1,
    submitted_at=0.0,
    started_at=1000.0,
    ended_at=1010.0,
    suspended_s=2.0,
    outcome=Outcome.COMPLETED,
    usage=Usage(
        cpu_s=4.0, memory_peak_bytes=GIB // 4, read_bytes=80, written_bytes=7, throttled_us=500
    ),
)


def test_countables_are_held_as_long_as_the_job_lasts_and_add_up_by_name():
    def of(**counts: int) -> Job:
        asks = replace(JOB.spec.demand, gres=tuple(sorted(counts.items())))
        usage = structs.replace(JOB.usage, gpu_mean_percent=150)
        return structs.replace(JOB, spec=spec(asks=asks), usage=usage)

    one = account_of(of(gpu=2))
    assert one is not None
    assert one.gres_ms == (("gpu", 20_000),)
    assert one.amount("gpu").used == 15_000
    books = books_of([of(gpu=2), of(), of(fpga=1, gpu=1)], "user")
    assert books.total().gres_ms == (("fpga", 10_000), ("gpu", 30_000))


def test_a_job_that_never_ran_is_in_no_account():
    assert account_of(structs.replace(JOB, started_at=None)) is None
    books = books_of([structs.replace(JOB, started_at=None)], "user")
    assert (books.rows, books.total()) == ({}, Account())


def test_evidence_is_the_last_jobs_that_teach_something():
    failed = structs.replace(JOB, outcome=Outcome.FAILED)
    jobs = [failed, *(structs.replace(JOB, id=at) for at in range(20, 0, -1))]
    learned = list(range(20, 20 - LAST, -1))
    for limit in (3, 50):
        similar = books_of(jobs, "job", limit).similar(("20", "train", "alice"))
        assert [job.id for job in similar] == learned
    assert books_of(jobs, "user").similar(("alice",)) == []


def books_of(jobs: list[Job], by: str, limit: int = 10) -> UsageAccounts:
    declared = [records.decode_declared(records.encode(job)) for job in jobs]
    books = UsageAccounts(by, largest_rows(declared, by, limit))
    books.take(jobs)
    return books


SOME_JOBS = some.builds(
    lambda user, name, cores, run_s, cpu_s, known, outcome: structs.replace(
        JOB,
        spec=replace(spec(asks=demand(cores), name=name), user=user),
        ended_at=1000.0 + run_s,
        outcome=outcome,
        usage=Usage(cpu_s=cpu_s, memory_peak_bytes=7, throttled_us=None) if known else None,
    ),
    some.sampled_from("ab"),
    some.sampled_from("xyz"),
    some.sampled_from([0.1, 0.333, 4]),
    some.floats(0, 1e5),
    some.floats(0, 1e6),
    some.booleans(),
    some.sampled_from(list(Outcome)),
)


@given(some.lists(SOME_JOBS, max_size=30), some.sampled_from(sorted(BY)), some.integers(0, 5))
def test_rows_and_others_add_up_to_the_total_exactly(jobs, by, limit):
    books, whole = books_of(jobs, by, limit), books_of(jobs, by, len(jobs))
    declared = {row: account.amount("cores") for row, account in whole.rows.items()}
    sizes = {row: each.declared + each.unknown for row, each in declared.items()}
    order = sizes if by == "job" else sorted(sizes, key=lambda row: (-sizes[row], row))
    assert list(books.rows.items()) == [(row, whole.rows[row]) for row in list(order)[:limit]]
    assert sum(books.rows.values(), books.rest) == books.total()
    one_by_one = [account for job in jobs if (account := account_of(job)) is not None]
    assert books.total() == sum(one_by_one, Account())
    assert books.total().jobs == len(one_by_one)


# -- curves ----------------------------------------------------------------------------------------


STEADY = examples(40)
#: Milliseconds since the reading before.
steps = some.integers(1, 10_000)
amounts = some.none() | some.integers(0, 1 << 45)


@some.composite
def readings(draw: some.DrawFn) -> list[Point]:
    """Some are late, and some could not be read. Long runs are of a few repeated ones."""
    each = some.tuples(steps, amounts, amounts, amounts, amounts)
    kinds = draw(some.lists(each, min_size=1, max_size=40))
    count = draw(some.integers(1, 1500))
    found, end_ms = [], draw(some.integers(0, 1 << 41))
    for at in range(count):
        span_ms, cpu, memory, io, gpu = kinds[at % len(kinds)]
        end_ms += span_ms
        # Of the first of all, nothing is known but the memory.
        found.append(
            point(end_ms, span_ms, cpu, memory, io, gpu)
            if at
            else point(end_ms, 0, None, memory, None, gpu)
        )
    return found


def point(
    end_ms: int,
    span_ms: int,
    cpu: int | None,
    memory: int | None,
    io: int | None,
    gpu: int | None = None,
) -> Point:
    pairs: dict[str, tuple[int, int]] = {}
    if cpu is not None:
        pairs |= {"cores_milli": (cpu, span_ms), "beyond_milli": (cpu // 2, span_ms)}
    if memory is not None:
        pairs["memory_bytes"] = memory, 1
    if io is not None:
        pairs |= {"read_bps": (io, span_ms), "write_bps": (io, span_ms)}
    if gpu is not None:
        pairs |= {"gpu_memory_bytes": (gpu, 1), "gpu_percent": (gpu >> 20, 1)}
    return Point.of(end_ms, span_ms, **pairs)


def sums(points: list[Point]) -> tuple[int, ...]:
    rows = [(each.span_ms, *each.amounts, *each.divisors) for each in points]
    return tuple(map(sum, zip(*rows, strict=True)))


@STEADY
@given(readings())
def test_a_series_has_few_points_in_order_and_loses_nothing(given_):
    series = Series()
    for each in given_:
        series.add(each)
        assert len(series) <= MOST
    kept = list(series)
    assert [each.end_ms for each in kept] == sorted({each.end_ms for each in kept})
    assert sums(kept) == sums(given_)
    assert kept[-1].end_ms == given_[-1].end_ms
    # Where one ends, the next begins: nothing is told twice, or of another time.
    assert all(b.end_ms - b.span_ms == a.end_ms for a, b in pairwise(kept))


@STEADY
@given(readings())
def test_the_newest_readings_stay_as_they_were(given_):
    series = Series()
    for each in given_:
        series.add(each)
    assert list(series)[-FRESH:] == given_[-FRESH:]


@STEADY
@given(readings(), some.integers(1, 64))
def test_thinned_points_are_few_in_order_and_lose_nothing(given_, most):
    kept = thinned(given_, most)
    assert len(kept) <= most
    assert [each.end_ms for each in kept] == sorted({each.end_ms for each in kept})
    assert sums(kept) == sums(given_)
    assert kept[-1].end_ms == given_[-1].end_ms
    if len(given_) <= most:
        assert kept == given_


def steady(count: int, *, step_ms: int = 2000) -> list[Point]:
    return [point(at * step_ms, step_ms, at, at, at) for at in range(1, count + 1)]


def test_with_a_longest_point_the_oldest_are_dropped():
    series = Series(longest_ms=20_000)
    given_ = steady(8_000)
    for each in given_:
        series.add(each)
    kept = list(series)
    assert len(kept) == MOST
    assert max(each.span_ms for each in kept) <= 22_000
    assert kept[-1].end_ms == given_[-1].end_ms
    since_ms = kept[0].end_ms - kept[0].span_ms
    assert sums(kept) == sums([each for each in given_ if each.end_ms > since_ms])


def test_a_series_goes_on_from_points_that_were_kept():
    given_ = steady(5000)
    before = Series()
    for each in given_[:4000]:
        before.add(each)
    after = Series(thinned(before, 128))
    for each in given_[4000:]:
        after.add(each)
    assert len(after) <= MOST
    assert sums(list(after)) == sums(given_)
    old = list(after)[:-FRESH]
    assert max(each.span_ms for each in old) <= 4 * min(each.span_ms for each in old[:-1])


def test_means_are_of_what_is_known():
    known, unknown = point(2000, 2000, 3_000_000, 4096, 1000), point(4000, 2000, None, None, None)
    both = merged(known, unknown)
    assert (both.end_ms, both.span_ms) == (4000, 4000)
    names = "cores_milli", "memory_bytes", "read_bps", "write_bps"
    assert [*map(both.mean, names)] == [1500, 4096, 500, 500]
    assert {unknown.mean(measure.name) for measure in MEASURES} == {None}
    busy = Point.of(2000, 2000, gpu_memory_bytes=(9, 1), gpu_percent=(80, 1))
    both = merged(merged(busy, unknown), busy)
    assert (both.mean("gpu_memory_bytes"), both.mean("gpu_percent")) == (9, 80)


@STEADY
@given(readings())
def test_a_curve_says_what_the_points_said(given_):
    curve = Curve.of(1, given_)
    assert len(curve) == len(given_)
    for then, after in zip(given_, curve.points(), strict=True):
        assert after[:2] == then[:2]
        for measure in MEASURES:
            unit = {"gpu_percent": 0, "read_bps": 1026, "write_bps": 1026}.get(measure.name)
            unit = 1 << measure.shift if unit is None else unit
            assert near(after.mean(measure.name), then.mean(measure.name), unit)
    again = Curve.of(1, curve.points())
    for column in ("read_kib_s", "write_kib_s"):
        again.columns.pop(column, None), curve.columns.pop(column, None)
    assert again == curve


def near(after: int | None, then: int | None, unit: int) -> bool:
    return then is after if then is None or after is None else abs(after - then) <= unit


def test_each_use_beyond_the_floor_counts_and_none_below_it_makes_up_for_it():
    """A floor of half a core; readings after one second each."""
    tally, found = BeyondTally(1, 0, 1000), []
    for cpu_us, mono_ms in ((1_500_000, 2000), (1_500_000, 3000), (2_400_000, 4000)):
        tally = tally.plus(500, cpu_us, mono_ms)
        found.append(tally.beyond_us)
    assert found == [1_000_001, 1_000_001, 1_400_001]
    assert tally == BeyondTally(1_400_001, 2_400_000, 4000)
    assert tally.plus(500, 9_000_000, 4000) == tally, "not later"
    # Without a cgroup, ended processes no longer count.
    assert tally.plus(500, 100_000, 5000) == BeyondTally(1_400_001, 2_400_000, 5000)
