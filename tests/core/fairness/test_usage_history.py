"""Usage that decays, without a clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.fairness.priority_tree import DecayedUsage
from drfd.core.scheduling.scheduler import Scheduler
from fakes import Bench, now

DAY = 86400.0
YEAR = 365 * DAY


def past_usage(*jobs: tuple[str, float, float, float]) -> dict[str, float]:
    history = DecayedUsage(half_life_s=7 * DAY)
    for job in jobs:
        history.add(*job)
    return history.past_usage


def test_use_from_the_future_counts_as_of_now() -> None:
    """The clock was ahead for an hour, and who used the machine in that hour lost every tie for ten
    years after it had been set right."""
    history = DecayedUsage(half_life_s=7 * DAY)
    now_s, ahead_s = 20_000 * DAY, 3650 * DAY
    history.add("root.before", 0.5, now_s - DAY, now_s)
    history.add("root.ahead", 0.5, now_s + ahead_s - 100, now_s + ahead_s)
    history.add("root.across", 0.5, now_s, now_s + ahead_s)
    assert history.clamp(now_s + 10)
    assert history.past_usage["root.ahead"] < history.past_usage["root.before"]
    assert history.past_usage["root.ahead"] == pytest.approx(
        past_usage(("root.ahead", 0.5, now_s - 90, now_s + 10))["root.ahead"]
    )
    # Nobody knows how long that job ran. Two weeks of the whole machine are more, all the same.
    history.add("root.more", 1.0, now_s, now_s + 14 * DAY)
    assert history.past_usage["root.across"] < history.past_usage["root.more"]
    assert not history.clamp(now_s + 14 * DAY)


def test_a_clock_that_is_set_back_a_little_changes_no_order() -> None:
    history = DecayedUsage(half_life_s=7 * DAY)
    history.add("root.a", 0.5, 0, 100)
    history.add("root.b", 0.5, 100, 200)
    before = dict(history.past_usage)
    assert not history.clamp(150)
    assert history.past_usage == before


def test_a_scheduler_dates_use_from_the_future_back_when_it_hears_of_it_and_in_each_pass() -> None:
    bench = Bench()
    job = bench.job(bench.submit())
    rules, scheduler = bench.rules, Scheduler(half_life_s=7 * DAY)
    ahead = replace(job, started_at=now(10 * YEAR - 50).at_s, ended_at=now(10 * YEAR).at_s)
    usual = replace(job, started_at=now(-50).at_s, ended_at=now(0).at_s)
    # As a restarted daemon reads it in the journal.
    scheduler.remember([ahead], rules, now(0))
    read = dict(scheduler.past_usage)
    scheduler = Scheduler(half_life_s=7 * DAY)
    scheduler.remember([usual], rules, now(0))
    assert read == pytest.approx(scheduler.past_usage)
    # As it happens while the clock is ahead.
    scheduler = Scheduler(half_life_s=7 * DAY)
    scheduler.remember([ahead], rules, now(10 * YEAR))
    list(scheduler.run(bench.ledger, rules, now(0)))
    assert scheduler.past_usage == pytest.approx(read)
