"""When a waiting job would start, how certain that is, and maintenance windows.

The machine has 9 cores and 18 GiB unless it says otherwise; times are seconds since the world
began. Jobs run for their whole limits: nobody has run anything before.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from core.worlds import forecast, of, pass_over, start_s
from drfd.common.errors import Refused
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.dependencies import may_start
from drfd.core.explain.forecast import NEVER_KNOWN, smaller_demand, upcoming
from drfd.core.explain.reasons import explain_wait
from drfd.core.fairness.rules import ReservationSettings, Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.calendar import NO_LIMIT_S, Calendar, LimitSpan
from drfd.core.model.job import Job, JobSpec, JobState, UserGroup
from drfd.core.model.resources import Resources
from drfd.core.scheduling.release_times import Certainty, RunTimes, StartForecast
from drfd.core.scheduling.scheduler import Scheduler
from drfd.core.scheduling.waits import Wait, WindowAhead
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    GIB,
    Bench,
    demand,
    ended,
    happened,
    launched,
    now,
    replace,
    rules,
    schedule,
    spec,
    with_gpus,
)
from seeds import examples, runs

# -- small worlds, worked out by hand --------------------------------------------------------------


def patient(cores: float, memory_gib: float, delay_s: float, *, reserves: bool = True) -> Rules:
    plain = rules(cores, memory_gib)
    reserving = ReservationSettings(delay_s=delay_s, reserves=reserves)
    return Rules(capacity=plain.capacity, reserving=reserving)


# -- ends and order --------------------------------------------------------------------------------


def test_what_is_starting_or_being_cleared_away_is_counted_too():
    """One was admitted a moment ago; of the other only the remains are there, any moment gone."""
    bench = Bench()
    bench.submit(of(BOB, 5, limit_s=100))
    bench.schedule(0)
    bench.submit(of(BOB, 4, limit_s=100))
    bench.schedule(0)
    bench.feed(launched(2))
    bench.befall(happened(ev.Exited, 2, 20))
    bench.submit(of(ALICE, 9, limit_s=60))
    assert bench.job(1).state is JobState.STARTING
    assert bench.job(2).state is JobState.CLEANING
    assert start_s(bench, 3, 30) == 130


def test_the_users_own_past_is_the_better_guess():
    """Bob's last two jobs took 100 and 200 s: his next one is given twice their mean."""
    bench = Bench()
    bench.start(of(BOB, 9, limit_s=86400))
    bench.submit(of(ALICE, 9, limit_s=60))
    past = RunTimes()
    past.add("bob", 100, share=1)
    past.add("bob", 200, share=1)
    assert forecast(bench, 50, past).start_s(2) == now(300).at_s


# -- suspended jobs --------------------------------------------------------------------------------


def test_a_suspended_job_goes_on_when_its_cores_are_free_and_ends_so_much_later():
    """Job 1 has run for 20 s of 60 when job 2 takes its cores, until 130. Then it goes on, and is
    over at 170: a job that needs its memory starts then."""
    for wanted, found_s in ((1, 130), (3, 170)):
        bench = Bench(patient(9, 18, 10_000))
        bench.start(of(ALICE, 9, limit_s=60))
        bench.suspend(1, by=None, at_s=20)
        bench.start(of(BOB, 9, limit_s=100), at_s=30)
        bench.submit(of(BOB, 9, 18, limit_s=60), at_s=40)
        assert start_s(bench, wanted, 50) == found_s, wanted


def test_what_somebody_keeps_suspended_never_ends():
    """Its cores are free, its memory is not, as far as one can see."""
    for memory_gib, found_s in ((17, 50), (18, None)):
        bench = Bench()
        bench.start(of(ALICE, 9, limit_s=60))
        bench.suspend(1, at_s=20)
        bench.submit(of(BOB, 9, memory_gib, limit_s=60), at_s=30)
        assert start_s(bench, 2, 50) == found_s


# -- not within sight ------------------------------------------------------------------------------


def test_who_is_too_far_behind_is_not_looked_for_any_longer():
    """Hundreds of jobs of the whole machine are ahead: the answer is to come within a moment."""
    bench = Bench()
    for job_id in range(1, 701):
        bench.befall(happened(ev.Submitted, job_id, spec=of(ALICE, 9, limit_s=60)))
    assert start_s(bench, 700, 0) is None


# -- what is only supposed -------------------------------------------------------------------------


def test_a_submission_that_would_be_refused_cannot_be_supposed():
    bench = Bench(rules(max_waiting_per_user=1))
    bench.submit()
    with pytest.raises(Refused) as too_many:
        forecast(bench, 0).add(st.SubmitAsked(now(), spec()))
    with pytest.raises(Refused) as too_big:
        forecast(bench, 0).add(st.SubmitAsked(now(), of(BOB, 10, limit_s=60)))
    assert (too_many.value.code, too_big.value.code) == ("too-many-jobs", "too-big")


def test_a_job_starts_in_the_future_at_its_begin_time_if_there_is_room():
    bench = Bench(patient(9, 18, 3600))
    bench.start(of(ALICE, 9, limit_s=100))
    job_id = bench.submit(replace(of(BOB, 1, limit_s=50), begin_s=int(now(300).at_s)))
    assert may_start(bench.ledger, bench.job(job_id))
    assert start_s(bench, job_id, 10) == 300


def suggested(bench: Bench, job_id: int, at_s: float = 0.0, **more: Any) -> JobSpec | None:
    return smaller_demand(forecast(bench, at_s, **more), bench.job(job_id))


def smaller(job: Job, limit_s: int | None = None, **amounts: Any) -> JobSpec:
    """The specification of the job with these amounts, and this time limit if one is given."""
    less = replace(job.spec, demand=replace(job.spec.demand, **amounts))
    return less if limit_s is None else replace(less, time_limit_s=limit_s)


def test_of_things_that_are_counted_none_can_be_cut():
    bench = Bench(with_gpus(2))
    asks = replace(demand(8, 1), gres=(("gpu", 2),))
    bench.start(spec(asks=asks))
    waiting = bench.submit(spec(asks=asks))
    assert suggested(bench, waiting) is None


def test_who_may_submit_no_more_hears_of_nothing():
    """In the book's place for it, the job itself has gone; yet there are too many others."""
    bench = Bench(rules=rules(max_waiting_per_user=4))
    bench.start(of(ALICE, 4))
    waiting = [bench.submit(of(ALICE, 8)) for _ in range(4)]
    bench.rules = rules(max_waiting_per_user=2)
    assert suggested(bench, waiting[0]) is None


def test_what_others_would_get_first_is_not_suggested():
    """Two wait for what is free; bob, who holds nothing, comes before alice."""
    bench = Bench()
    bench.start(of(ALICE, 4))
    bench.submit(of(BOB, 5.5))
    bench.submit(of(BOB, 4.5))
    waiting = bench.submit(of(ALICE, 8))
    assert suggested(bench, waiting) is None


def test_a_shorter_time_passes_before_a_place_that_is_kept():
    bench = Bench(
        rules=Rules(
            capacity=rules().capacity,
            reserving=ReservationSettings(delay_s=0, drain_after_s=9999),
        )
    )
    bench.start(of(BOB, 5, limit_s=1800))
    bench.submit(of(BOB, 9))
    (kept,) = forecast(bench, 5.0).pass_now().reservations
    # It fits beside the running one, and would stand in the way of the big one.
    waiting = bench.submit(of(ALICE, 4, limit_s=7200), at_s=5.0)
    assert forecast(bench, 5.0, before=(kept,)).pass_now().admitted == []
    less = smaller(bench.job(waiting), limit_s=29 * 60)
    assert suggested(bench, waiting, 5.0, before=(kept,)) == less
    # A moment before that place is taken, no time is short enough.
    assert suggested(bench, waiting, 1790.0, before=(kept,)) is None


def test_a_job_that_runs_or_is_held_has_no_need():
    bench = Bench()
    running = bench.start(of(ALICE, 4))
    held = bench.submit(of(ALICE, 4), held=True)
    for job_id in (running, held):
        assert suggested(bench, job_id) is None


@examples(60)
@given(
    some.lists(some.tuples(some.integers(1, 18), some.integers(1, 18)), min_size=2, max_size=8),
    some.integers(1, 18),
    some.integers(1, 18),
)
def test_what_is_suggested_starts(others, cores, memory):
    bench = Bench()
    for at, (half_cores, gib) in enumerate(others):
        bench.submit(of(BOB if at % 2 else ALICE, half_cores / 2, gib))
    bench.schedule()
    waiting = bench.submit(of(ALICE, cores / 2, memory))
    if waiting in forecast(bench).pass_now().admitted:
        return
    job = bench.job(waiting)
    found = suggested(bench, job.id)
    if found is None:
        return
    asked, less = job.spec.demand, found.demand
    assert less.cores_milli <= asked.cores_milli and less.memory_bytes <= asked.memory_bytes
    assert found != job.spec and (found.time_limit_s or 0) <= 3600
    assert less.memory_bytes % GIB == 0 or less.memory_bytes % (16 << 20) == 0
    bench.befall(ev.Cancelled(job_id=waiting, at_s=now().at_s, by="alice"))
    again = bench.submit(replace(job.spec, demand=less))
    assert again in bench.schedule()


# -- how certain a start is ------------------------------------------------------------------------


def at(start_s: float, certainty: Certainty) -> StartForecast:
    return StartForecast(now(start_s).at_s, certainty)


def ran(user: str, *lengths_s: float) -> RunTimes:
    run_times = RunTimes()
    for each in lengths_s:
        run_times.add(user, each, share=1)
    return run_times


@pytest.mark.parametrize("run_times", [RunTimes(), ran("bob", 10)])
def test_without_a_limit_and_an_estimate_it_is_unknown(bench, run_times):
    bench.start(of(BOB, 9, limit_s=None))
    bench.submit(of(ALICE, 1, limit_s=60))
    assert forecast(bench, 100, run_times).expected_start(2) == NEVER_KNOWN


# -- random worlds ---------------------------------------------------------------------------------

JOBS = some.lists(
    some.tuples(
        some.sampled_from([ALICE, BOB]),
        some.integers(1, 9),
        some.integers(1, 9),
        some.sampled_from([60, 100, 250, 600]),
    ),
    min_size=2,
    max_size=9,
)


def crowd(jobs: list[tuple[st.Actor, int, int, int]]) -> Bench:
    """The jobs are submitted, and those that fit run since the beginning."""
    plain = replace(rules(), reserving=ReservationSettings(reserves=False))
    bench = Bench(plain)
    for actor, cores, memory_gib, limit_s in jobs:
        bench.submit(of(actor, cores, memory_gib, limit_s=limit_s))
    start_all(bench, 0)
    return bench


def start_all(bench: Bench, at_s: float) -> list[int]:
    started = bench.schedule(at_s)
    for job_id in started:
        bench.feed(launched(job_id, at_s=at_s))
    return started


def truth(bench: Bench, length_s: Callable[[int], float]) -> dict[int, float]:
    """When each job starts if each runs so long, by the passes of the bench alone."""
    bench = deepcopy(bench)
    ends = {
        job.id: length_s(job.id)
        for job in bench.ledger.jobs.values()
        if job.state is JobState.RUNNING
    }
    starts: dict[int, float] = {}
    while ends:
        at_s = min(ends.values())
        for job_id in [each for each, end_s in ends.items() if end_s == at_s]:
            del ends[job_id]
            bench.feed(ended(job_id, at_s=at_s))
            bench.feed(st.RemovedReport(now(at_s).at_s, job_id, 1))
        for job_id in start_all(bench, at_s):
            starts[job_id] = at_s
            ends[job_id] = at_s + length_s(job_id)
    return starts


@examples(100, quick=3)
@given(JOBS, some.booleans(), some.integers(1, 50))
def test_a_start_is_true_under_what_it_rests_on_and_stands_still(jobs, is_known, later_s):
    """If jobs run to their limits, or as long as estimated, then each starts when foretold, and
    nothing that anybody is told changes as long as nothing happens."""
    bench = crowd(jobs)
    waiting = [job.id for job in bench.ledger.jobs.values() if job.state is JobState.PENDING]
    run_times = ran("bob", 40, 50) if is_known else RunTimes()
    limits = {job.id: job.spec.time_limit_s or 0 for job in bench.ledger.jobs.values()}
    users = {job.id: job.spec.user for job in bench.ledger.jobs.values()}

    def length_s(job_id: int) -> float:
        is_estimated = is_known and users[job_id] == "bob"
        return min(limits[job_id], 90) if is_estimated else limits[job_id]

    starts = truth(bench, length_s)
    together = dict(forecast(bench, 1, run_times).expected_starts(waiting))
    assert together.keys() == set(waiting)
    for job_id in waiting:
        found = forecast(bench, 1, run_times).expected_start(job_id)
        assert found == together[job_id]
        assert found.start_s == now(starts[job_id]).at_s
        assert found == forecast(bench, 1 + later_s, run_times).expected_start(job_id)
        assert is_known or found.certainty is Certainty.LIMITS


@examples(100, quick=4)
@given(JOBS, some.lists(some.integers(1, 600), min_size=10, max_size=10))
def test_who_waits_alone_starts_no_later_than_by_the_limits(jobs, lengths):
    bench = crowd(jobs)
    waiting = [job.id for job in bench.ledger.jobs.values() if job.state is JobState.PENDING]
    for job_id in waiting[1:]:
        bench.feed(st.CancelAsked(now(), job_id, ADMIN))
    if waiting:
        limits = {job.id: job.spec.time_limit_s or 0 for job in bench.ledger.jobs.values()}
        found = forecast(bench, 0).expected_start(waiting[0])
        starts = truth(bench, lambda each: min(limits[each], lengths[each - 1]))
        assert found.start_s is not None
        assert now(starts[waiting[0]]).at_s <= found.start_s


# -- in which order those who wait are shown -------------------------------------------------------


VAST = 100_000


def books(*specs: JobSpec) -> Ledger:
    jobs = [
        Job(id=at, spec=each, submitted_at=at, eligible_at=at)
        for at, each in enumerate(specs, start=1)
    ]
    return Ledger.of_jobs(rules().axes, jobs)


def order_of(ledger: Ledger, by: Rules) -> list[int]:
    """After a pass that found no room."""
    full = Job(
        id=1000, spec=spec("root.full", asks=by.capacity), state=JobState.RUNNING, attempt=1,
        submitted_at=0, started_at=0,
    )  # fmt: skip
    jobs = [*ledger.jobs.values(), full]
    ledger = Ledger.of_jobs(by.axes, jobs)
    plan = schedule(ledger, by)
    assert plan.admitted == []
    return [each.run[1] for each in upcoming(ledger, plan, by, {})]


def vast(by: Rules) -> Rules:
    """The same machine, so many times over: all stand to each other as they did."""
    there = by.capacity
    capacity = Resources(
        cores_milli=there.cores_milli * VAST, memory_bytes=there.memory_bytes * VAST,
        read_bps=there.read_bps * VAST, write_bps=there.write_bps * VAST,
    )  # fmt: skip
    return replace(by, capacity=capacity)


@pytest.mark.parametrize("seed", range(40))
def test_it_is_the_order_in_which_a_machine_with_room_for_all_would_start_them(seed):
    """With pools in pools, those that are level may stand the other way round."""
    chance = Random(seed)
    pools = ["root.alice", "root.bob", "root.lab", "root.zoe"]
    specs = [
        spec(
            chance.choice(pools),
            asks=demand(chance.randint(1, 4), chance.randint(1, 8)),
            priority=chance.choice([0, 0, 0, 5]),
        )
        for _ in range(60)
    ]
    by = rules(weights={"lab": "3", "zoe": "1/2"})
    found = order_of(books(*specs), by)
    assert found == [each.run[1] for each in upcoming(books(*specs), None, by, {})]
    assert found == schedule(books(*specs), vast(by)).admitted
    assert len(found) == 60


def test_under_fifo_the_turn_of_a_leaf_is_that_of_its_first_job():
    ledger = books(
        spec("root.a"), spec("root.b"), spec("root.b", priority=9), spec("root.a", priority=1)
    )
    assert order_of(ledger, replace(rules(), policy="fifo")) == [3, 2, 4, 1]


@pytest.mark.parametrize("policy", ["asset", "cpu", "slots"])
def test_under_other_policies_each_leaf_has_one_turn_after_the_other(policy):
    ledger = books(*[spec(f"root.{leaf}", asks=demand(9, 18)) for leaf in "aaabbc"])
    found = order_of(ledger, replace(rules(), policy=policy))
    assert sorted(found) == [1, 2, 3, 4, 5, 6]
    leaves = [ledger.jobs[each].spec.leaf[-7:] for each in found]
    assert len(set(leaves[:3])) == 3
    assert len(set(leaves[3:5])) == 2


# -- maintenance windows ---------------------------------------------------------------------------


#: Seconds on the clock of `now`.
HOUR = 3600


def window(
    start_s: float, end_s: float, name: str = "upgrade", *, is_weekly: bool = False
) -> LimitSpan:
    return LimitSpan(
        name=name,
        start_s=now(start_s).at_s,
        end_s=now(end_s).at_s,
        reason="new kernel",
        is_weekly=is_weekly,
    )


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.ledger.calendar = Calendar(windows=(window(2 * HOUR, 4 * HOUR),))
    yield bench
    bench.ledger.check()


def lasting(limit_s: int | None, cores: float = 1, **more: object) -> JobSpec:
    return spec(asks=demand(cores), time_limit_s=limit_s, **more)  # type: ignore[arg-type]


def started(bench: Bench, at_s: float = 0.0) -> list[int]:
    bench.ledger.hold_back(now(at_s).at_s)
    bench.ledger.check()
    return bench.schedule(at_s)


def reason_at(bench: Bench, job_id: int, at_s: float = 0.0) -> Wait | None:
    bench.ledger.hold_back(now(at_s).at_s)
    last = schedule(bench.ledger, bench.rules, at_s=at_s)
    return explain_wait(bench.ledger.jobs[job_id], bench.ledger, last, bench.rules)


# -- reservations ------------------------------------------------------------------------------


@pytest.mark.parametrize("due_s", [None, 600, 5 * HOUR])
def test_a_reservation_is_due_after_the_window_that_it_must_wait_for(due_s, bench):
    """Before that it is not late, and holds nobody back as a drain."""
    bench.start(lasting(6000, 5))
    reserved = bench.submit(lasting(5000, 9))
    reserving = ReservationSettings(delay_s=0)
    (first,) = pass_over(bench, 0, reserving=reserving).reservations
    assert (first.job_id, first.start_s) == (reserved, now(4 * HOUR).at_s)
    if due_s is not None:
        before = replace(first, due_s=now(due_s).at_s)
        (first,) = pass_over(bench, 10, reserving=reserving, before=(before,)).reservations
    assert first.due_s == now(max(4 * HOUR, due_s or 0)).at_s


# -- which jobs start ------------------------------------------------------------------------------


def test_nothing_starts_while_a_window_is_open(bench):
    job_id = bench.submit(lasting(1))
    assert started(bench, 2 * HOUR) == []
    reason = reason_at(bench, job_id, 2 * HOUR)
    assert reason is not None
    assert isinstance(reason, WindowAhead)
    assert reason.is_open


@pytest.mark.parametrize(("limit_s", "starts"), [(2 * HOUR, True), (2 * HOUR + 1, False)])
def test_a_job_starts_that_ends_when_the_window_begins(limit_s, starts, bench):
    job_id = bench.submit(lasting(limit_s))
    assert started(bench) == ([job_id] if starts else [])


@pytest.mark.parametrize(("limit_s", "last_s"), [(HOUR, 4800), (None, 2 * HOUR - 1)])
def test_a_suspended_job_goes_on_if_the_rest_of_it_ends_before_the_window(limit_s, last_s):
    """It has run for 20 minutes. Without a limit it goes on until the window begins."""
    bench = Bench()
    bench.start(lasting(limit_s))
    bench.suspend(1, by=None, at_s=600)
    assert bench.schedule(1200) == [1]
    bench.suspend(1, by=None, at_s=1800)
    bench.ledger.calendar = Calendar(windows=(window(2 * HOUR, 4 * HOUR),))
    assert started(bench, last_s + 1) == []
    assert started(bench, last_s) == [1]


def test_a_job_that_is_changed_to_be_short_starts(bench):
    job_id = bench.submit(lasting(3 * HOUR))
    assert started(bench) == []
    assert bench.ledger.active_leaves() == {"root.alice"}
    bench.feed(st.ChangeAsked(now(), job_id, ALICE, st.Change(time_limit_s=HOUR)))
    assert started(bench) == [job_id]


def test_the_tasks_of_an_array_wait_together_and_start_as_many_at_once_as_may(bench):
    asked = lasting(3 * HOUR)
    bench.feed(st.SubmitAsked(now(), asked, spans=((0, 9, 1),), at_once=2))
    bench.feed(st.SubmitAsked(now(), asked, spans=((0, 1, 1),)))
    assert started(bench) == []
    assert bench.ledger.queues.held_back() == {asked.leaf}
    assert started(bench, 4 * HOUR) == [2, 3, 13, 14]


# -- what is said ----------------------------------------------------------------------------------


def test_a_forecast_knows_the_job_that_waits_for_room_until_too_late(bench):
    """It fits before the window now, and no longer when there is room."""
    bench.start(lasting(HOUR, 9))
    job_id = bench.submit(lasting(HOUR + 1, 9))
    assert forecast(bench).start_s(job_id) == now(4 * HOUR).at_s


def test_nobody_can_say_when_a_job_starts_that_fits_no_gap_of_a_week(bench):
    weekly = [window(at_s, at_s + HOUR, is_weekly=True) for at_s in (HOUR, 9 * HOUR, 17 * HOUR)]
    bench.ledger.calendar = Calendar(windows=tuple(weekly))
    job_id = bench.submit(lasting(8 * HOUR))
    assert forecast(bench).start_s(job_id) is None
    reason = reason_at(bench, job_id)
    assert reason is not None
    assert isinstance(reason, WindowAhead)
    assert reason.from_s is None


def test_a_shorter_time_limit_is_found_that_lets_the_job_start_now(bench):
    job_id = bench.submit(lasting(3 * HOUR))
    bench.ledger.hold_back(now().at_s)
    found = suggested(bench, job_id)
    assert found == replace(bench.ledger.jobs[job_id].spec, time_limit_s=2 * HOUR)


def test_the_reserved_start_of_a_big_job_is_not_in_a_window_and_keeps_nothing_before_it(bench):
    """Until the window nothing is kept for a job that has no room before it."""
    scheduler = Scheduler(7 * 86400)
    patient = replace(bench.rules, reserving=replace(bench.rules.reserving, delay_s=0.0))
    bench.start(lasting(HOUR, 8))
    big = bench.submit(lasting(HOUR + 60, 9))
    for event in list(scheduler.run(bench.ledger, patient, now(30))):
        bench.befall(event)
    (reserved,) = scheduler.reservations
    assert (reserved.job_id, reserved.start_s) == (big, now(4 * HOUR).at_s)
    small = bench.submit(lasting(HOUR + 1800, actor=BOB, pool="root.bob"))
    assert [event.job_id for event in scheduler.run(bench.ledger, patient, now(40))] == [small]


# -- everything together ---------------------------------------------------------------------------

NAMES = (ALICE, BOB)


@pytest.mark.parametrize(("seed", "steps"), runs(range(20), steps=50, quick=12))
def test_no_job_with_a_limit_runs_in_a_window_and_none_waits_without_need(seed, steps):
    random = Random(seed)
    bench = Bench(
        rules=replace(rules(), reserving=replace(rules().reserving, reserves=random.random() < 0.3))
    )
    scheduler = Scheduler(7 * 86400)
    windows: list[LimitSpan] = []
    at = 0
    for number in range(random.randrange(1, 4)):
        at += random.randrange(1, 300)
        windows.append(window(at, at + random.randrange(1, 100), str(number)))
    windows.sort(key=lambda each: each.start_s)
    bench.ledger.calendar = Calendar(windows=tuple(windows))
    ends: dict[int, float] = {}
    clock = 0.0
    for _ in range(steps):
        for _ in range(random.randrange(3)):
            actor = random.choice(NAMES)
            group = UserGroup("g", random.randrange(1, 3)) if random.random() < 0.2 else None
            limit_s = random.choice([None, 1, 5, 20, 50, 100, 200, 400])
            asked = spec(
                f"root.{actor.user}",
                actor=actor,
                asks=demand(random.randrange(1, 6)),
                time_limit_s=limit_s,
                group=group,
            )
            spans, most = (((0, 3, 1),), random.choice([None, 1, 2]))
            if random.random() < 0.2:
                bench.feed(st.SubmitAsked(now(clock), asked, spans=spans, at_once=most))
            else:
                bench.submit(asked, at_s=clock)
        if random.random() < 0.2:
            waiting = [
                each for each in bench.ledger.jobs.values() if each.state is JobState.PENDING
            ]
            if waiting:
                job = random.choice(waiting)
                actor = ALICE if job.spec.user == "alice" else BOB
                change = random.choice([st.Change(time_limit_s=random.choice([3, 30, 300])), None])
                bench.feed(
                    st.CancelAsked(now(clock), job.id, actor)
                    if change is None
                    else st.ChangeAsked(now(clock), job.id, actor, change)
                )
        if random.random() < 0.1:
            bench.ledger.calendar = Calendar(windows=bench.ledger.calendar.windows[1:])
        while True:
            found = list(scheduler.run(bench.ledger, bench.rules, now(clock)))
            for event in found:
                bench.befall(event)
                job = bench.ledger.jobs[event.job_id]
                bench.feed(launched(job.id, job.attempt, at_s=clock))
                length = job.spec.time_limit_s
                ahead = bench.ledger.calendar.ahead(length or NO_LIMIT_S, now(clock).at_s)
                assert ahead is None
                ends[job.id] = clock + random.uniform(0.1, length or 30)
            if not found and not scheduler.is_cut:
                break
        bench.ledger.check()
        plan = scheduler.last_plan
        assert plan is not None
        for job in pending(bench):
            reason = explain_wait(job, bench.ledger, plan, bench.rules)
            assert reason is not None
            length = job.spec.time_limit_s or NO_LIMIT_S
            is_ahead = bench.ledger.calendar.ahead(length, now(clock).at_s) is not None
            if reason.code != "LIMIT":
                assert (reason.code == "MAINTENANCE") is is_ahead
            if not is_ahead and not plan.reservations and plan.free.fits(bench.ledger.demand(job)):
                assert reason.code == "LIMIT", "it waits without need"
        times = [*ends.values(), clock + random.uniform(1, 60)]
        times += [bench.ledger.calendar.next_s(now(clock).at_s) - now(0).at_s]
        clock = max(clock, min(times))
        for job_id, end_s in list(ends.items()):
            if end_s <= clock:
                del ends[job_id]
                bench.finish(job_id, at_s=clock)


def pending(bench: Bench) -> Iterator[Job]:
    for job in bench.ledger.jobs.values():
        if job.state is JobState.PENDING:
            yield job
