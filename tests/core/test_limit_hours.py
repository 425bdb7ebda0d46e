"""Limits by hour: what may start at which time, and what is said of the jobs that may not."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.common.errors import Refused
from drfd.core.explain.forecast import Forecast
from drfd.core.explain.reasons import (
    BeyondLimit,
    LimitAtThisHour,
    ReasonCode,
    WaitReason,
    explain_wait,
)
from drfd.core.fairness.rules import NodeSettings, Pool, Rules
from drfd.core.model import stimuli as st
from drfd.core.model.job import JobSpec
from drfd.core.model.limit_hours import NO_HOURS, LimitHours, LimitSpan, LimitSteps, limit_steps
from drfd.core.scheduling.certainty import Certainty, ExpectedStart
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import Scheduler
from fakes import ALICE, BOB, Bench, demand, now, rules, schedule, spec
from seeds import examples

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
