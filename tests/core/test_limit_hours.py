"""Limits by hour: what may start at which time, and what is said of the jobs that may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.common.errors import Refused
from drfd.core.explain.forecast import Forecast
from drfd.core.explain.reasons import (
    BeyondLimit,
    LimitAtThisHour,
    PathLimit,
    ReasonCode,
    WaitReason,
    explain_wait,
)
from drfd.core.fairness.rules import NodeSettings, Pool, Rules
from drfd.core.fairness.share_tree import path_up
from drfd.core.model import stimuli as st
from drfd.core.model.job import JobSpec, JobState
from drfd.core.model.limit_hours import NO_HOURS, LimitHours, LimitSpan, LimitSteps, limit_steps
from drfd.core.scheduling.certainty import Certainty, ExpectedStart
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import Scheduler
from fakes import ALICE, BOB, Bench, attempt_started, demand, now, rules, schedule, spec
from seeds import examples, seeds

HOUR = 3600
LAB = "root.lab"
AXES = ("cores", "memory")
SOME = examples(200)


def T(at_s: float) -> float:
    return now(at_s).at_s


def cores(*steps: tuple[float, float | None], path: str = LAB) -> LimitHours:
    """So many cores from these times on; None for no limit."""
    return hours(**{path: steps})


def hours(**steps: tuple[tuple[float, float | None], ...]) -> LimitHours:
    return LimitHours(
        {
            path.replace("__", "."): LimitSteps(
                tuple(T(at_s) for at_s, _ in each),
                tuple({} if most is None else {"cores": int(most * 1000)} for _, most in each),
            )
            for path, each in steps.items()
        }
    )


# -- the times -------------------------------------------------------------------------------------


def test_within_its_times_another_limit_counts_of_what_it_names() -> None:
    day = LimitSpan(start_s=10, end_s=20, limit={"cores": 2})
    own = {"cores": 8, "memory": 5}
    steps = limit_steps(own, [day], AXES, from_s=0, until_s=100)
    assert steps == LimitSteps((0, 10, 20), (own, {"cores": 2, "memory": 5}, own))


def test_times_that_meet_are_one_and_the_tightest_of_several_counts() -> None:
    spans = [
        LimitSpan(start_s=10, end_s=20, limit={"cores": 4}),
        LimitSpan(start_s=20, end_s=30, limit={"cores": 4, "memory": 1}),
        LimitSpan(start_s=25, end_s=40, limit={"cores": 3}),
    ]
    steps = limit_steps({"cores": 2}, spans, AXES, from_s=0, until_s=35)
    assert steps.times == (0, 10, 20, 25, 30)
    assert [limit["cores"] for limit in steps.limits] == [2, 4, 4, 3, 3]
    assert [limit.get("memory") for limit in steps.limits] == [None, None, 1, 1, None]


def test_a_rate_is_for_each_disk_without_an_amount_of_its_own() -> None:
    axes = ("read:a", "read:b")
    span = LimitSpan(start_s=10, end_s=20, limit={"read": 1, "read:b": 2})
    steps = limit_steps({"read": 9}, [span], axes, from_s=0, until_s=15)
    assert steps.limits == ({"read:a": 9, "read:b": 9}, {"read:a": 1, "read:b": 2})


def test_it_is_known_how_long_a_limit_holds_and_when_it_rises() -> None:
    found = cores((0, 2), (10, 1), (20, 4), (30, None))
    steps = found.steps[LAB]
    assert [steps.rises_s("cores", T(at_s)) for at_s in (0, 10, 20, 30)] == [
        *(T(20), T(20), T(30), None)
    ]
    assert found.hold_s(T(15)) == (T(10), T(20))
    assert found.hold_s(T(-5)) == (-inf, T(10))
    assert found.hold_s(T(30)) == (T(30), inf)
    assert steps.at(T(-5)) == {"cores": 2000}, "the first one holds before, too"
    assert steps.most(T(0)) == {}
    assert cores((0, 2), (10, 1)).steps[LAB].most(T(5)) == {"cores": 2000}
    assert cores((0, 2), (10, 1)).steps[LAB].most(T(10)) == {"cores": 1000}


AMOUNTS = some.dictionaries(some.sampled_from(AXES), some.integers(0, 3))
SPANS = some.builds(
    lambda start, length, limit: LimitSpan(start_s=start, end_s=start + length, limit=limit),
    some.integers(-5, 30), some.integers(1, 15), AMOUNTS,
)  # fmt: skip


@given(own=AMOUNTS, spans=some.lists(SPANS, max_size=5), asked=AMOUNTS)
@SOME
def test_the_steps_are_what_each_moment_says_by_itself(
    own: dict[str, int], spans: list[LimitSpan], asked: dict[str, int]
) -> None:
    """Against a slow oracle that knows neither steps nor bisection."""

    def limit(at_s: float) -> dict[str, int]:
        found = {}
        for axis in AXES:
            open_now = [
                each.limit[axis]
                for each in spans
                if each.start_s <= at_s < each.end_s and axis in each.limit
            ]
            if open_now or axis in own:
                found[axis] = min(open_now) if open_now else own[axis]
        return found

    def may(at_s: float) -> bool:
        return all(not asked[axis] or asked[axis] <= limit(at_s).get(axis, 99) for axis in asked)

    steps = limit_steps(own, spans, AXES, from_s=0, until_s=30)
    known = range(30)
    assert [steps.at(at_s) for at_s in known] == [limit(at_s) for at_s in known]
    changes = [at_s for at_s in known[1:] if limit(at_s) != limit(at_s - 1)]
    found = LimitHours({LAB: steps})
    assert [*found.times] == changes
    for at_s in known:
        first = next((each for each in known[at_s:] if may(each)), None)
        assert found.first_fit_s([LAB], asked, at_s) == first
        rises = [each for each in known[at_s:] if limit(each).get("cores", 99) >
                 limit(at_s).get("cores", 99)]  # fmt: skip
        assert steps.rises_s("cores", at_s) == (rises[0] if rises else None)


# -- what may start --------------------------------------------------------------------------------


class HourBench(Bench):
    """A bench whose limits follow the hour."""

    def at(self, at_s: float) -> None:
        self.rules = replace(self.rules, limits_now=self.ledger.limit_hours.at(T(at_s)))
        self.ledger.hold_back(T(at_s))

    def schedule(self, at_s: float = 0.0) -> list[int]:
        self.at(at_s)
        return super().schedule(at_s)

    def why(self, job_id: int, at_s: float = 0.0) -> WaitReason | None:
        self.at(at_s)
        last = schedule(self.ledger, self.rules, at_s=at_s)
        return explain_wait(self.job(job_id), self.ledger, last, self.rules)

    def ahead(self, at_s: float = 0.0) -> Forecast:
        self.at(at_s)
        return Forecast(deepcopy(self.ledger), self.rules, RunTimes(), {}, (), now(at_s))


def with_pools(**pools: Pool) -> Rules:
    return replace(rules(), pools=pools)


@pytest.fixture
def bench() -> Iterator[HourBench]:
    """Nothing of the pool lab starts in the first hour; then it may hold 4 cores, after two hours
    anything."""
    bench = HourBench(with_pools(lab=Pool(), free=Pool()))
    bench.ledger.limit_hours = cores((0, 0), (HOUR, 4), (2 * HOUR, None))
    yield bench
    bench.check()


def asks(number: float, path: str = LAB, *, actor: st.Actor = ALICE, limit_s: int = 60) -> JobSpec:
    return spec(path, actor=actor, asks=demand(number), time_limit_s=limit_s)


def test_nothing_of_a_pool_starts_before_its_hour_and_others_do_not_wait_for_it(
    bench: HourBench,
) -> None:
    small, big = bench.submit(asks(4)), bench.submit(asks(5))
    other = bench.submit(asks(5, "root.free", actor=BOB))
    assert bench.schedule() == [other]
    assert bench.schedule(HOUR - 1) == []
    assert bench.schedule(HOUR) == [small]
    bench.finish(other, at_s=HOUR)
    assert bench.schedule(HOUR) == [], "the big one is beyond the limit of this hour"
    assert bench.schedule(2 * HOUR) == [big]


def test_running_jobs_run_on_when_a_limit_shrinks(bench: HourBench) -> None:
    bench.ledger.limit_hours = cores((0, None), (HOUR, 2))
    first, second = bench.submit(asks(3)), bench.submit(asks(1))
    assert bench.schedule() == [first, second]
    late = bench.submit(asks(1), at_s=HOUR)
    assert bench.schedule(HOUR) == []
    assert bench.job(first).state is not JobState.STOPPING
    bench.finish(first, at_s=HOUR + 1)
    assert bench.schedule(HOUR + 1) == [late]


def test_a_job_without_the_limited_resource_starts_at_any_hour() -> None:
    bench = HourBench(with_pools(lab=Pool()))
    nothing = LimitSteps((T(0),), ({"read": 0},))
    bench.ledger.limit_hours = LimitHours({LAB: nothing})
    assert bench.schedule() == [] == [bench.submit(asks(1))][1:]
    assert bench.schedule() == [1]


@pytest.mark.parametrize("policy", ["drf", "fifo", "easy", "slots", "cpu", "asset"])
def test_each_policy_passes_over_what_may_not_start_at_this_hour(policy: str) -> None:
    """Also where it needs more than is free: a line that nobody passes does not stand for it."""
    bench = HourBench(replace(with_pools(lab=Pool()), policy=policy))
    bench.ledger.limit_hours = cores((0, 0), (HOUR, None))
    running = bench.submit(asks(1, "root.bob", actor=BOB))
    assert bench.schedule() == [running]
    shut = bench.submit(asks(9))
    other = bench.submit(asks(1, "root.bob", actor=BOB))
    assert bench.schedule() == [other]
    for job_id in (running, other):
        bench.finish(job_id, at_s=1)
    assert bench.schedule(HOUR) == [shut]


def test_a_guarantee_counts_up_to_the_limit_of_the_hour() -> None:
    """Else a pool that may start nothing would keep others from what it is promised."""
    plain = with_pools(lab=Pool(guarantee={"cores": 6000}, weight=Fraction(1)), free=Pool())
    shut = replace(plain, limits_now={LAB: {"cores": 2000}})
    assert shut.shares.rule(LAB).guarantee == (2000, 0, 0, 0)
    tree = shut.shares.share_tree({}, ["root.lab.alice", "root.free.bob"])
    assert tree.entitled("root.free")[0] == Fraction(7, 9)
    assert plain.shares.rule(LAB).guarantee == (6000, 0, 0, 0)


def test_a_drain_for_a_job_ends_at_the_hour_from_which_on_it_may_not_start() -> None:
    """What is kept free for it would be idle until its limits let it start."""
    patience = replace(rules().patience, patience_s=0.0, drain_after_s=0.0)
    bench = HourBench(replace(with_pools(lab=Pool()), patience=patience))
    bench.ledger.limit_hours = cores((0, None), (HOUR, 0), (9 * HOUR, None))
    scheduler = Scheduler(7 * 86400)

    def started(at_s: float) -> list[int]:
        bench.at(at_s)
        found = list(scheduler.run(bench.ledger, bench.rules, now(at_s)))
        for event in found:
            bench.befall(event)
            scheduler.note(bench.job(event.job_id))
        return [event.job_id for event in found]

    first = bench.submit(asks(8, "root.bob", actor=BOB, limit_s=2 * HOUR))
    assert started(0) == [first]
    big = bench.submit(asks(9), at_s=1)
    assert started(2) == []
    assert [each.job_id for each in scheduler.reservations] == [big]
    assert scheduler.reservations[0].start_s == T(9 * HOUR), "when its limit lets it, not before"
    small = bench.submit(asks(1, "root.bob", actor=BOB, limit_s=12 * HOUR), at_s=HOUR)
    assert started(HOUR) == [small]
    assert scheduler.reservations == ()


# -- what is refused -------------------------------------------------------------------------------


def test_what_fits_at_some_hour_is_taken_and_what_fits_at_none_is_refused() -> None:
    bench = HourBench(with_pools(lab=Pool(limit={"cores": 2000})))
    bench.ledger.limit_hours = cores((0, 0), (HOUR, 4), (2 * HOUR, 2))
    bench.at(0)
    assert bench.submit(asks(4)) == 1
    with pytest.raises(Refused) as refusal:
        bench.submit(asks(5))
    assert refusal.value.code == "above-limit"
    assert refusal.value.text == (
        "the job asks for 5 cores, and root.lab may hold 4 at most: it could never start"
    )
    with pytest.raises(Refused, match="5 cores"):
        bench.feed(st.ChangeAsked(now(), 1, ALICE, st.Change(cores_milli=5000)))


def test_what_the_limits_of_two_nodes_never_allow_together_is_refused() -> None:
    """The pool by night and the user in it by day."""
    members = {("lab", "alice"): NodeSettings()}
    bench = HourBench(replace(with_pools(lab=Pool()), members=members))
    night, day = ((0, 0), (HOUR, None)), ((0, None), (HOUR, 0))
    bench.ledger.limit_hours = hours(root__lab=night, root__lab__alice=day)
    bench.at(0)
    with pytest.raises(Refused, match="at no hour do the limits of lab/alice and lab together"):
        bench.submit(asks(1))
    # It was taken before the configuration was changed.
    bench.ledger.limit_hours = NO_HOURS
    bench.at(0)
    job_id = bench.submit(asks(1))
    bench.ledger.limit_hours = hours(root__lab=night, root__lab__alice=day)
    assert bench.why(job_id) == WaitReason(
        ReasonCode.LIMIT, LimitAtThisHour(LAB, "cores", 1000, 0, T(HOUR), None)
    )


# -- what is said ----------------------------------------------------------------------------------


def test_the_reason_says_until_when_the_limit_holds_and_when_the_job_may_start(
    bench: HourBench,
) -> None:
    small, big = bench.submit(asks(4)), bench.submit(asks(5))
    assert bench.why(small) == WaitReason(
        ReasonCode.LIMIT, LimitAtThisHour(LAB, "cores", 4000, 0, T(HOUR), T(HOUR))
    )
    assert bench.why(big) == WaitReason(
        ReasonCode.LIMIT, LimitAtThisHour(LAB, "cores", 5000, 0, T(HOUR), T(2 * HOUR))
    )


def test_a_limit_that_others_have_reached_says_until_when_it_holds(bench: HourBench) -> None:
    bench.start(asks(3), at_s=HOUR)
    job_id = bench.submit(asks(2), at_s=HOUR)
    expected = PathLimit(LAB, "cores", 4000, 3000, 2000, T(2 * HOUR))
    reason = bench.why(job_id, HOUR)
    assert reason is not None and isinstance(reason.evidence, PathLimit)
    assert [each.job for each in reason.evidence.holders] == ["1"]
    assert replace(reason.evidence, holders=()) == expected


def test_a_limit_of_all_hours_says_that_the_job_never_starts(bench: HourBench) -> None:
    job_id = bench.submit(asks(5))
    bench.ledger.limit_hours = cores((0, 0), (HOUR, 4), (2 * HOUR, 0))
    assert bench.why(job_id) == WaitReason(
        ReasonCode.LIMIT, BeyondLimit("1", LAB, "cores", 5000, 4000, is_changeable=True)
    )


def test_a_forecast_waits_for_the_hour_and_for_the_jobs_before(bench: HourBench) -> None:
    small, next_one = bench.submit(asks(4)), bench.submit(asks(4, limit_s=30 * 60))
    big = bench.submit(asks(5))
    assert bench.ahead().expected_start(small) == ExpectedStart(T(HOUR), Certainty.LIMITS)
    assert bench.ahead().start_s(next_one) == T(HOUR + 60)
    assert bench.ahead().start_s(big) == T(2 * HOUR)


def test_nobody_can_say_when_a_job_starts_that_waits_beyond_what_is_known() -> None:
    bench = HourBench(with_pools(lab=Pool()))
    bench.ledger.limit_hours = replace(cores((0, 1), (HOUR, 0), (9 * HOUR, 1)), until_s=T(8 * HOUR))
    first = bench.start(asks(1, limit_s=2 * HOUR))
    late = bench.submit(asks(1))
    assert bench.ahead().expected_start(late) == ExpectedStart(None, Certainty.UNKNOWN)
    other = bench.submit(asks(9, "root.bob", actor=BOB))
    assert bench.ahead().start_s(other) == T(2 * HOUR), "no limit of its own depends on the hour"
    bench.finish(first)


# -- everything together ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(range(30), quick=6))
def test_no_job_starts_beyond_a_limit_of_its_hour_and_forecasts_come_true(seed: int) -> None:
    """Jobs run as long as their limits, so that a forecast at the begin is exact."""
    random = Random(seed)
    bench = HourBench(
        replace(
            with_pools(lab=Pool(), night=Pool(limit={"cores": 3000})),
            policy=random.choice(["drf", "drf", "fifo"]),
            patience=replace(rules().patience, reserves=False),
        )
    )
    paths = ("root.lab", "root.night", "root.lab.alice")
    own: Mapping[str, float | None] = {"root.night": 3}
    table: dict[str, tuple[tuple[float, float | None], ...]] = {}
    for path in random.sample(paths, random.randrange(1, 4)):
        steps, at = [(0.0, random.choice([0, 1, 4, own.get(path)]))], 0.0
        for _ in range(random.randrange(1, 6)):
            at += random.randrange(1, 200)
            steps.append((at, random.choice([0, 1, 2, 4, 6])))
        table[path.replace(".", "__")] = (*steps, (at + 50, own.get(path)))
    bench.ledger.limit_hours = hours(**table)
    bench.rules = replace(bench.rules, members={("lab", "alice"): NodeSettings()})
    bench.at(0)
    for _ in range(random.randrange(1, 12)):
        path = random.choice(["root.lab", "root.night", "root.free"])
        actor = random.choice([ALICE, BOB])
        path = f"root.{actor.user}" if path == "root.free" else path
        limit_s = random.choice([1, 5, 20, 50, 100, 200])
        try:
            bench.submit(asks(random.randrange(1, 7), path, actor=actor, limit_s=limit_s))
        except Refused as refusal:
            assert refusal.code == "above-limit"
    expected = {job_id: bench.ahead().start_s(job_id) for job_id in bench.ledger.jobs}
    assert None not in expected.values(), "each of them fits at some hour"
    clock, ends, began = 0.0, dict[int, float](), dict[int, float]()
    while bench.ledger.jobs:
        for job_id in bench.schedule(clock):
            began[job_id] = T(clock)
            bench.feed(attempt_started(job_id, at_s=clock))
            ends[job_id] = clock + (bench.job(job_id).spec.time_limit_s or 0)
        limits = bench.ledger.limit_hours.at(T(clock))
        for job in bench.ledger.jobs.values():
            if job.state is JobState.PENDING:
                reason = bench.why(job.id, clock)
                assert reason is not None
                fact = reason.evidence
                assert not isinstance(fact, BeyondLimit)
                if isinstance(fact, LimitAtThisHour):
                    assert limits[fact.path]["cores"] == fact.limit < fact.needed
                    assert fact.from_s is not None
                    assert T(clock) < (fact.until_s or 0) <= fact.from_s <= (expected[job.id] or 0)
        for path, limit in limits.items():
            started = [
                bench.job(job_id)
                for job_id in ends
                if began[job_id] == T(clock) and path in path_up(bench.job(job_id).spec.leaf)
            ]
            most = limit.get("cores", 9000)
            assert all(bench.ledger.demand(job)[0] <= most for job in started)
            if started:
                used = bench.ledger.used.items()
                assert sum(held[0] for leaf, held in used if path in path_up(leaf)) <= most
        _, next_s = bench.ledger.limit_hours.hold_s(T(clock))
        clock = min([*ends.values(), next_s - T(0)])
        for job_id, end_s in list(ends.items()):
            if end_s <= clock:
                del ends[job_id]
                bench.finish(job_id, at_s=clock)
    assert began == expected
