"""How certain an expected start is: what it rests on, that it stands still, and that it is true."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from drfd.core.explain.forecast import NEVER_KNOWN, Forecast
from drfd.core.fairness.rules import ReservationSettings
from drfd.core.model import stimuli as st
from drfd.core.model.job import JobSpec, JobState
from drfd.core.scheduling.certainty import Certainty, ExpectedStart
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.core.scheduling.release_times import RunTimes
from fakes import ADMIN, ALICE, BOB, Bench, attempt_started, demand, ended, now, rules, spec
from seeds import examples


def of(actor: st.Actor, cores: int, limit_s: int | None, memory_gib: int = 1) -> JobSpec:
    asks = demand(cores, memory_gib)
    return spec(f"root.{actor.user}", actor=actor, asks=asks, time_limit_s=limit_s)


def look(
    bench: Bench,
    job_id: int,
    at_s: float,
    run_times: RunTimes | None = None,
    external: ExternalLoad | None = None,
) -> ExpectedStart:
    ledger = deepcopy(bench.ledger)
    future = Forecast(ledger, bench.rules, run_times or RunTimes(), {}, (), now(at_s), external)
    return future.expected_start(job_id)


def at(start_s: float, certainty: Certainty) -> ExpectedStart:
    return ExpectedStart(now(start_s).at_s, certainty)


def ran(user: str, *lengths_s: float) -> RunTimes:
    run_times = RunTimes()
    for each in lengths_s:
        run_times.add(user, each)
    return run_times


def test_earlier_jobs_of_those_who_hold_make_it_an_estimate(bench: Bench) -> None:
    bench.start(of(BOB, 9, 6000))
    bench.submit(of(ALICE, 1, 60))
    assert look(bench, 2, 50, ran("bob", 100, 200)) == at(300, Certainty.ESTIMATED)


def test_a_job_that_outlives_its_estimate_is_expected_at_its_limit(bench: Bench) -> None:
    bench.start(of(BOB, 9, 6000))
    bench.submit(of(ALICE, 1, 60))
    assert look(bench, 2, 301, ran("bob", 100, 200)) == at(6000, Certainty.LIMITS)


@pytest.mark.parametrize("run_times", [RunTimes(), ran("bob", 10)])
def test_without_a_limit_and_an_estimate_it_is_unknown(bench: Bench, run_times: RunTimes) -> None:
    bench.start(of(BOB, 9, None))
    bench.submit(of(ALICE, 1, 60))
    assert look(bench, 2, 100, run_times) == NEVER_KNOWN


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
    plain = replace(rules(), patience=ReservationSettings(reserves=False))
    bench = Bench(plain)
    for actor, cores, memory_gib, limit_s in jobs:
        bench.submit(of(actor, cores, limit_s, memory_gib))
    start_all(bench, 0)
    return bench


def start_all(bench: Bench, at_s: float) -> list[int]:
    started = bench.schedule(at_s)
    for job_id in started:
        bench.feed(attempt_started(job_id, at_s=at_s))
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
            bench.feed(st.AttemptRemoved(now(at_s), job_id, 1))
        for job_id in start_all(bench, at_s):
            starts[job_id] = at_s
            ends[job_id] = at_s + length_s(job_id)
    return starts


@examples(100, quick=3)
@given(JOBS, some.booleans(), some.integers(1, 50))
def test_a_start_is_true_under_what_it_rests_on_and_stands_still(
    jobs: list[tuple[st.Actor, int, int, int]], is_known: bool, later_s: int
) -> None:
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
    for job_id in waiting:
        found = look(bench, job_id, 1, run_times)
        assert found.start_s == now(starts[job_id]).at_s
        assert found == look(bench, job_id, 1 + later_s, run_times)
        assert is_known or found.certainty is Certainty.LIMITS


@examples(100, quick=4)
@given(JOBS, some.lists(some.integers(1, 600), min_size=10, max_size=10))
def test_who_waits_alone_starts_no_later_than_by_the_limits(
    jobs: list[tuple[st.Actor, int, int, int]], lengths: list[int]
) -> None:
    bench = crowd(jobs)
    waiting = [job.id for job in bench.ledger.jobs.values() if job.state is JobState.PENDING]
    for job_id in waiting[1:]:
        bench.feed(st.CancelAsked(now(), job_id, ADMIN))
    if waiting:
        limits = {job.id: job.spec.time_limit_s or 0 for job in bench.ledger.jobs.values()}
        found = look(bench, waiting[0], 0)
        starts = truth(bench, lambda each: min(limits[each], lengths[each - 1]))
        assert found.start_s is not None
        assert now(starts[waiting[0]]).at_s <= found.start_s
