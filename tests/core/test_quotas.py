"""Quotas of the week: what is used is what was run, and who has used a quota up waits, or comes
last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from drfd.core.explain.forecast import Forecast
from drfd.core.explain.reasons import OutOfQuota, ReasonCode, WaitReason, explain_wait
from drfd.core.fairness.rules import NodeSettings, Pool, Preempting, ReservationSettings, Rules
from drfd.core.fairness.share_tree import WeekQuota, path_up
from drfd.core.fairness.week_quotas import (
    QuotaUse,
    Stretch,
    WeekUse,
    is_plain,
    plain_stretch,
    stretches,
)
from drfd.core.model import events as ev
from drfd.core.model.job import Job, JobSpec, JobState
from drfd.core.model.stimuli import Actor, AttemptRemoved, CancelAsked, ResumeAsked
from drfd.core.scheduling import scheduling_pass
from drfd.core.scheduling.plan import Plan
from drfd.core.scheduling.release_times import Ends, RunTimes, make_pass_context
from drfd.core.scheduling.scheduler import Scheduler
from drfd.core.scheduling.scheduling_pass import CONFIGURABLE
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    GIB,
    Bench,
    attempt_started,
    demand,
    ended,
    happened,
    now,
    rules,
    spec,
)
from seeds import runs

CAROL = Actor("carol", 1003, is_admin=False)
HOUR, DAY = 3600.0, 86400.0
#: Begins of weeks on the clock of `now`.
WEEKS = tuple(now(day * DAY).at_s for day in (-3, 4, 11, 18, 25))


def hours(share_hours: float, *, waits: bool = False) -> WeekQuota:
    return WeekQuota(share_hours=Fraction(str(share_hours)), waits=waits)


def with_quotas(
    pools: Mapping[str, WeekQuota | None], users: Mapping[str, WeekQuota] | None = None
) -> Rules:
    """The usual machine. `users` are named "lab/alice", or "/alice" for users in no pool."""
    return replace(
        rules(),
        pools={name: Pool(quota=quota) for name, quota in pools.items()},
        members={
            (name.partition("/")[0], name.partition("/")[2]): NodeSettings(quota=quota)
            for name, quota in (users or {}).items()
        },
        patience=ReservationSettings(reserves=False),
    )


def use_of(how: Rules, at_s: float = 0.0) -> WeekUse:
    return WeekUse(how.shares, how.axes, WEEKS, now(at_s).at_s)


def used(week_use: WeekUse, at_s: float) -> dict[str, float]:
    found = week_use.all_use(now(at_s).at_s)
    return {path: round(each.used_hours, 6) for path, each in found.items()}


def of(actor: Actor, pool: str = "", cores: float = 1, **more: object) -> JobSpec:
    path = f"root.{pool}" if pool else f"root.{actor.user}"
    return spec(path, actor=actor, asks=demand(cores), **more)  # type: ignore[arg-type]


def full(path: str, *, waits: bool = False) -> dict[str, QuotaUse]:
    return {path: QuotaUse(path, 41, 40, waits, WEEKS[1])}


def plan_of(bench: Bench, used_up: Mapping[str, QuotaUse], at_s: float = 0.0) -> Plan:
    """A pass over the books that changes nothing."""
    ledger = bench.ledger
    context = make_pass_context(
        Ends(ledger, RunTimes()),
        patience=bench.rules.patience,
        now_s=now(at_s).at_s,
        before=(),
    )
    wait_index = scheduling_pass.build_wait_index(ledger, bench.rules, {}, {})
    return scheduling_pass.schedule(ledger, bench.rules, wait_index, context, used_up=used_up)


# -- what is used ----------------------------------------------------------------------------------


def test_nothing_of_last_week_counts_in_this_one() -> None:
    how = with_quotas({"lab": hours(40)})
    week_use, bench = use_of(how), Bench(how)
    job_id = bench.start(of(ALICE, "lab", 9))
    week_use.note(bench.job(job_id), now().at_s)
    turn = 4 * DAY
    assert used(week_use, turn - 1) == {"root.lab": pytest.approx(96, abs=1e-3)}
    assert used(week_use, turn) == {"root.lab": 0}
    assert used(week_use, turn + HOUR) == {"root.lab": 1}, "and it runs on"
    # It is counted from the beginning by a daemon that starts now.
    afresh = use_of(how, turn + HOUR)
    afresh.count(bench.job(job_id), plain_stretch(bench.job(job_id)))
    assert used(afresh, turn + HOUR) == {"root.lab": 1}


def test_a_quota_is_used_up_from_the_millisecond_on_at_which_it_is_reached() -> None:
    how = with_quotas({"lab": hours(2)})
    week_use, bench = use_of(how), Bench(how)
    week_use.note(bench.job(bench.start(of(ALICE, "lab", 9))), now().at_s)
    assert week_use.used_up(now(2 * HOUR - 0.01).at_s) == {}
    found = week_use.used_up(now(2 * HOUR).at_s)
    assert found == {"root.lab": QuotaUse("root.lab", 2.0, 2.0, False, WEEKS[1])}
    assert week_use.used_up(WEEKS[1]) == {}


def test_after_the_clock_was_set_back_all_is_to_be_counted_again() -> None:
    week_use = use_of(with_quotas({"lab": hours(2)}), 10 * DAY)
    assert not week_use.is_outdated(now(10 * DAY - 30).at_s), "a small step"
    assert week_use.is_outdated(now(10 * DAY - HOUR).at_s)
    assert not week_use.is_outdated(now(17 * DAY).at_s)
    assert week_use.is_outdated(WEEKS[-2]), "no week after it is known"


def test_a_launch_that_was_put_off_uses_nothing() -> None:
    launched, exited = happened(ev.Launched, at_s=5), happened(ev.Exited, at_s=9)
    assert list(stretches([launched, exited])) == [Stretch(now(5).at_s, now(9).at_s)]
    assert list(stretches([launched])) == [Stretch(now(5).at_s, None)]
    put_off = happened(ev.LaunchPostponed, at_s=6, not_before_s=int(now(7).at_s))
    assert list(stretches([launched, put_off])) == []
    how = with_quotas({}, {"/alice": hours(4)})
    bench, week_use = Bench(how), use_of(how)
    _watch(bench, week_use)
    bench.start(of(ALICE, cores=9))
    bench.befall(put_off)
    assert used(week_use, HOUR) == {"root.alice": 0}


@pytest.mark.parametrize(("seed", "steps"), runs(range(12), steps=120, quick=25))
def test_the_sums_are_those_of_a_count_step_by_step(seed: int, steps: int) -> None:
    """Over random weeks, with jobs that are frozen, preempted and started again; and a daemon that
    starts then finds the same sums in the journal."""
    random = Random(seed)
    how = with_quotas({"lab": hours(1), "free": None}, {"lab/alice": hours(2), "/bob": hours(3)})
    paths = ("root.lab", "root.lab.alice", "root.bob")
    bench, week_use = Bench(how), use_of(how, 3 * DAY)
    events, ended_jobs = _watch(bench, week_use)
    counted: Counter[str] = Counter()
    clock_s, most_attempts = 3 * DAY, 0
    for _ in range(steps):
        length_s = random.choice((60.0, 1800.0, 7200.0))
        left_s = min(each for each in WEEKS if each > now(clock_s).at_s) - now(clock_s).at_s
        if length_s >= left_s:
            # The week turns: what was used before does not count any more.
            counted.clear()
        for job in bench.ledger.jobs.values():
            most_attempts = max(most_attempts, job.attempt)
            if job.state is JobState.RUNNING:
                share = max(
                    Fraction(job.spec.demand.cores_milli, 9000),
                    Fraction(job.spec.demand.memory_bytes, 18 * GIB),
                )
                for path in path_up(job.spec.leaf):
                    counted[path] += share * Fraction(  # type: ignore[assignment]
                        length_s if length_s < left_s else length_s - left_s
                    )
        clock_s += length_s
        _happen(bench, random, clock_s)
        expected = {path: float(counted[path]) / 3600 for path in paths}
        assert used(week_use, clock_s) == pytest.approx(expected, abs=2e-6)
    afresh = use_of(how, clock_s)
    for job in [*bench.ledger.jobs.values(), *ended_jobs.values()]:
        own = stretches(each for each in events if each.job_id == job.id)
        afresh.count(job, plain_stretch(job) if is_plain(job) else own)
    assert used(afresh, clock_s) == used(week_use, clock_s)
    if steps < 100:
        return
    assert most_attempts > 1
    assert any(each.suspensions for each in [*bench.ledger.jobs.values(), *ended_jobs.values()])


def _watch(bench: Bench, week_use: WeekUse) -> tuple[list[ev.JobEvent], dict[int, Job]]:
    """Tell the week's use of every event, as the engine does; the events, and the ended jobs."""
    events: list[ev.JobEvent] = []
    ended_jobs: dict[int, Job] = {}
    apply = bench.ledger.apply

    def applied(event: ev.JobEvent) -> Job | None:
        job = apply(event)
        events.append(event)
        if job is not None:
            week_use.note(job, event.at_s)
            if job.state is JobState.ENDED:
                ended_jobs[job.id] = job
        return job

    bench.ledger.apply = applied  # type: ignore[method-assign, assignment]
    return events, ended_jobs


def _happen(bench: Bench, random: Random, at_s: float) -> None:
    """Something happens to a random job."""
    jobs = [*bench.ledger.jobs.values()]
    running = [each for each in jobs if each.state is JobState.RUNNING]
    frozen = [each for each in jobs if each.state is JobState.SUSPENDED]
    kind = random.choice(("submit", "submit", "finish", "suspend", "resume", "preempt"))
    if kind == "submit":
        actor, pool = random.choice([(ALICE, "lab"), (CAROL, "lab"), (BOB, ""), (ALICE, "free")])
        cores = random.choice((0.5, 1, 2))
        bench.submit(of(actor, pool, cores, preemptible=True, time_limit_s=None), at_s=at_s)
    elif kind == "suspend" and running:
        bench.suspend(random.choice(running).id, by=ADMIN, at_s=at_s)
    elif kind == "resume" and frozen:
        bench.feed(ResumeAsked(now(at_s), random.choice(frozen).id, ADMIN))
    elif kind in ("finish", "preempt") and running:
        job = random.choice(running)
        if kind == "preempt":
            bench.preempt(job.id, at_s=at_s)
        bench.feed(ended(job.id, job.attempt, at_s))
        bench.feed(AttemptRemoved(now(at_s), job.id, job.attempt))
    for each in bench.schedule(at_s):
        if bench.job(each).state is JobState.STARTING:
            bench.feed(attempt_started(each, bench.job(each).attempt, at_s))


# -- who waits -------------------------------------------------------------------------------------


def why(bench: Bench, job_id: int, used_up: Mapping[str, QuotaUse]) -> WaitReason | None:
    last = plan_of(bench, used_up)
    return explain_wait(bench.job(job_id), bench.ledger, last, bench.rules, used_up=used_up)


def test_a_user_without_quota_left_does_not_keep_others_of_the_pool_waiting() -> None:
    bench = Bench(with_quotas({"lab": None}, {"lab/alice": hours(40, waits=True)}))
    theirs, ours = bench.submit(of(ALICE, "lab")), bench.submit(of(BOB, "lab"))
    used_up = full("root.lab.alice", waits=True)
    assert plan_of(bench, used_up).admitted == [ours]
    reason = why(bench, theirs, used_up)
    assert reason is not None
    assert reason.code is ReasonCode.QUOTA


@pytest.mark.parametrize("policy", CONFIGURABLE)
def test_every_policy_knows_quotas(policy: str) -> None:
    """The first job is of a pool that has used up its quota: it comes last, or waits."""
    usual = with_quotas({"lab": hours(40), "free": None})
    bench = Bench(replace(usual, policy=policy))
    theirs = [bench.submit(of(ALICE, "lab", 4)) for _ in range(3)]
    ours = [bench.submit(of(BOB, "free", 4)) for _ in range(2)]
    assert plan_of(bench, {}).admitted[0] == theirs[0]
    assert plan_of(bench, full("root.lab")).admitted == ours
    assert plan_of(bench, full("root.lab", waits=True)).admitted == ours
    for job_id in ours:
        bench.feed(CancelAsked(now(), job_id, ADMIN))
    assert plan_of(bench, full("root.lab")).admitted == theirs[:2], "nothing idles"
    assert plan_of(bench, full("root.lab", waits=True)).admitted == []


# -- who comes last --------------------------------------------------------------------------------


def test_a_job_that_comes_last_says_so_and_names_who_holds_what_it_needs() -> None:
    bench = Bench(with_quotas({"lab": hours(40), "free": None}))
    bench.start(of(CAROL, "free", 6))
    theirs = bench.submit(of(ALICE, "lab", 4))
    bench.submit(of(BOB, "free", 4))
    used_up = full("root.lab")
    reason = why(bench, theirs, used_up)
    assert reason is not None
    assert reason.code is ReasonCode.QUOTA
    assert isinstance(reason.evidence, OutOfQuota)
    assert reason.evidence.use == used_up["root.lab"]
    (shortfall,) = reason.evidence.shortfalls
    assert [each.user for each in shortfall.holders] == ["carol"]


def test_who_has_used_up_a_quota_is_not_named_as_served_first() -> None:
    """Carol would be the least satisfied, and so be said to go first."""
    bench = Bench(with_quotas({}, {"/carol": hours(40)}))
    bench.start(spec(asks=demand(0, 9)))
    bench.start(of(BOB, cores=9))
    ours = bench.submit(of(ALICE, cores=5))
    theirs = bench.submit(of(CAROL, cores=5))
    found = why(bench, ours, {})
    assert found is not None
    assert found.code is ReasonCode.FAIR_SHARE
    found = why(bench, ours, full("root.carol"))
    assert found is not None
    assert found.code is ReasonCode.RESOURCES
    found = why(bench, theirs, full("root.carol"))
    assert found is not None
    assert found.code is ReasonCode.QUOTA


def test_nobody_is_preempted_for_who_has_used_up_a_quota() -> None:
    how = replace(
        with_quotas({"lab": hours(1, waits=True), "free": None}), preempting=Preempting(after_s=0)
    )
    for is_over in (False, True):
        bench, scheduler = Bench(how), Scheduler(how.half_life_s)
        scheduler.week_use = use_of(how)
        for _ in range(9):
            bench.start(of(BOB, "free", preemptible=True))
        if is_over:
            hog = bench.job(1)
            hog = replace(hog, id=99, spec=replace(hog.spec, pool="root.lab"))
            scheduler.week_use.count(hog, [Stretch(now(-10 * HOUR).at_s, now().at_s)])
        bench.submit(of(ALICE, "lab", 4))
        found = [type(each) for each in scheduler.run(bench.ledger, how, now(HOUR))]
        assert found == ([] if is_over else [ev.PreemptRequested] * 4)


def test_an_index_that_is_kept_serves_as_a_new_one_does() -> None:
    """Quotas are used up, and restored, between passes that share an index."""
    random = Random(5)
    bench = Bench(with_quotas({"lab": hours(40), "free": hours(40)}))
    kept = scheduling_pass.build_wait_index(bench.ledger, bench.rules, {}, {})
    for _ in range(60):
        actor, pool = random.choice([(ALICE, "lab"), (BOB, "lab"), (BOB, "free"), (CAROL, "")])
        bench.submit(of(actor, pool, random.choice((1, 2, 4))))
        paths = random.sample(("root.lab", "root.free", "root.carol", "root.lab.bob"), k=2)
        used_up = {path: full(path, waits=random.random() < 0.3)[path] for path in paths}
        expected = plan_of(bench, used_up)
        context = make_pass_context(
            Ends(bench.ledger, RunTimes()),
            patience=bench.rules.patience,
            now_s=now().at_s,
            before=(),
        )
        kept.catch_up(bench.ledger.queues)
        found = scheduling_pass.schedule(bench.ledger, bench.rules, kept, context, used_up=used_up)
        assert found.admitted == expected.admitted
        assert list(found.order) == list(expected.order)
        for event in scheduling_pass.start_events(bench.ledger, found, now()):
            bench.ledger.apply(event)
            kept.touch(bench.job(event.job_id).spec.leaf, ())
        for job in [*bench.ledger.allocated_jobs()]:
            if random.random() < 0.4:
                bench.feed(attempt_started(job.id))
                bench.finish(job.id)
                kept.touch(job.spec.leaf, ())


# -- forecasts -------------------------------------------------------------------------------------


def test_a_job_that_waits_for_its_quota_is_expected_at_the_turn_of_the_week() -> None:
    how = with_quotas({"lab": hours(1, waits=True), "free": None})
    bench, week_use = Bench(how), use_of(how)
    first = bench.start(of(ALICE, "lab", 9, time_limit_s=7200))
    week_use.note(bench.job(first), now().at_s)
    second = bench.submit(of(ALICE, "lab", 1))
    third = bench.submit(of(BOB, "free", 1))

    def start_s(job_id: int) -> float | None:
        ledger = deepcopy(bench.ledger)
        use = week_use.copy()
        future = Forecast(ledger, how, RunTimes(), {}, (), now(), week_use=use)
        return future.expected_start(job_id).start_s

    assert start_s(second) == WEEKS[1], "the first has used up the quota when it ends"
    assert start_s(third) == now(7200).at_s
    assert used(week_use, 0) == {"root.lab": 0}, "a forecast changes nothing"
