"""Quotas of the week in the daemon: counted from the journal, restored on Monday at 00:00."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from daemon.desk import MakeDesk, MakeShell, Shell
from drfd.core.explain.reasons import OutOfQuota, explain_wait
from drfd.core.fairness.rules import Pool, Rules
from drfd.core.fairness.share_tree import WeekQuota
from drfd.core.model import stimuli as st
from drfd.core.model.job import Outcome, Retry
from drfd.core.model.lifecycle import Launch
from drfd.core.model.stimuli import Actor, Now
from drfd.journal.records import Payload
from fakes import ALICE, BOB, attempt_started, demand, ended, rules, spec
from local_clock import at

HOUR = 3600.0
#: A Friday, and the Monday after it.
FRIDAY, MONDAY = "2026-10-23 12:00", "2026-10-26 00:00"


pytestmark = pytest.mark.usefixtures("in_berlin")


class Clock:
    def __init__(self) -> None:
        self.at_s = at(FRIDAY)

    def __call__(self) -> Now:
        return Now(self.at_s, self.at_s - at(FRIDAY) + 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def with_quota(share_hours: float = 2, *, waits: bool = True) -> Rules:
    quota = WeekQuota(share_hours=Fraction(share_hours), waits=waits)
    return replace(rules(), pools={"lab": Pool(quota=quota), "free": Pool()})


def asks(clock: Clock, cores: float = 9, actor: Actor = ALICE, pool: str = "lab") -> st.SubmitAsked:
    asked = spec(f"root.{pool}", actor=actor, asks=demand(cores), time_limit_s=None)
    return st.SubmitAsked(clock(), asked)


def runs(shell: Shell, clock: Clock, job_id: int, length_s: float) -> None:
    """The job, which has been sent to the launcher, runs and ends."""
    shell.turn(started(clock, job_id))
    clock.at_s += length_s
    shell.turn(ends(clock, job_id), st.AttemptRemoved(clock(), job_id, 1))


def started(clock: Clock, job_id: int, attempt: int = 1) -> st.AttemptStarted:
    usual = attempt_started(job_id, attempt)
    return replace(usual, at_s=clock().at_s, mono_s=clock().mono_s)


def ends(clock: Clock, job_id: int, attempt: int = 1) -> st.AttemptEnded:
    return replace(ended(job_id, attempt), at_s=clock().at_s, mono_s=clock().mono_s)


def used_hours(shell: Shell) -> float:
    return round(shell.engine.quota_use()["root.lab"].used_hours, 6)


def why(shell: Shell, job_id: int) -> object:
    engine = shell.engine
    found = explain_wait(
        engine.ledger.job(job_id),
        engine.ledger,
        engine.scheduler.last_plan,
        engine.rules,
        used_up=engine.used_up(),
    )
    return None if found is None else found.evidence


def test_jobs_wait_for_the_next_week_over_the_end_of_the_daemon(
    make_shell: MakeShell, clock: Clock
) -> None:
    shell = make_shell(by=with_quota(), clock=clock)
    shell.turn(asks(clock))
    assert shell.host.take() == [Launch(1, 1)]
    runs(shell, clock, 1, 2 * HOUR)
    shell.turn(asks(clock), asks(clock, 1, BOB, "free"))
    assert shell.host.take() == [Launch(3, 1)], "the pool has used its 2 hours"
    evidence = why(shell, 2)
    assert isinstance(evidence, OutOfQuota)
    assert evidence.use.used_hours == 2
    assert evidence.use.restored_s == at(MONDAY)
    runs(shell, clock, 3, 60)
    shell.host.take()

    # It was killed: the next daemon counts from the journal.
    later = make_shell(by=with_quota(), clock=clock)
    later.turn()
    assert used_hours(later) == 2
    assert isinstance(why(later, 2), OutOfQuota)
    assert 0 < (later.engine.due_s() or 0) <= 60, "it looks at the clock, which may be set"
    clock.at_s = at(MONDAY) - 1
    later.turn(st.Tick(clock()))
    assert later.host.take() == []
    assert later.engine.due_s() == pytest.approx(1)
    clock.at_s = at(MONDAY)
    later.turn(st.Tick(clock()))
    assert later.host.take() == [Launch(2, 1)]
    later.turn(started(clock, 2))
    clock.at_s += HOUR
    assert used_hours(later) == 1


def test_attempts_and_breaks_are_counted_by_the_next_daemon(
    make_shell: MakeShell, clock: Clock
) -> None:
    """They are in the job's events, not in its record."""
    shell = make_shell(by=with_quota(30), clock=clock)
    asked = asks(clock)
    retried = replace(asked, spec=replace(asked.spec, retry=Retry(1, (Outcome.FAILED,))))
    shell.turn(retried)
    shell.turn(started(clock, 1))
    clock.at_s += HOUR
    shell.turn(st.SuspendAsked(clock(), 1, ALICE), st.Frozen(clock(), 1, 1))
    clock.at_s += HOUR
    shell.turn(st.ResumeAsked(clock(), 1, ALICE))
    clock.at_s += HOUR
    assert used_hours(shell) == 2
    shell.host.take()
    shell.turn(replace(ends(clock, 1), exit_code=1), st.AttemptRemoved(clock(), 1, 1))
    clock.at_s += HOUR
    shell.turn(st.Tick(clock()))
    shell.host.take()
    assert used_hours(shell) == 2
    assert used_hours(make_shell(by=with_quota(30), clock=clock)) == 2
    shell.turn(started(clock, 1, 2))
    clock.at_s += HOUR
    assert used_hours(shell) == 3
    assert used_hours(make_shell(by=with_quota(30), clock=clock)) == 3
    shell.turn(ends(clock, 1, 2), st.AttemptRemoved(clock(), 1, 2))
    shell.host.take()
    clock.at_s += HOUR
    assert used_hours(shell) == 3
    assert used_hours(make_shell(by=with_quota(30), clock=clock)) == 3


def test_a_job_that_is_moved_before_it_runs_again_has_used_the_quota_of_its_pool_of_then(
    make_shell: MakeShell, clock: Clock
) -> None:
    shell = make_shell(by=with_quota(30), clock=clock)
    asked = asks(clock)
    shell.turn(replace(asked, spec=replace(asked.spec, retry=Retry(1, (Outcome.FAILED,)))))
    shell.turn(started(clock, 1))
    clock.at_s += 2 * HOUR
    shell.host.take()
    shell.host.ready = False
    shell.turn(replace(ends(clock, 1), exit_code=1), st.AttemptRemoved(clock(), 1, 1))
    moves = st.Change(pool="root.free", cores_milli=1000)
    shell.turn(st.ChangeAsked(clock(), 1, ALICE, change=moves))
    assert shell.engine.ledger.job(1).spec.pool == "root.free"
    assert used_hours(shell) == 2
    assert used_hours(make_shell(by=with_quota(30), clock=clock)) == 2
    shell.host.take()


def test_a_job_that_ended_in_the_future_counts_until_now(
    make_shell: MakeShell, clock: Clock
) -> None:
    shell = make_shell(by=with_quota(30), clock=clock)
    shell.turn(asks(clock))
    shell.turn(started(clock, 1))
    clock.at_s += 10 * HOUR
    shell.turn(ends(clock, 1), st.AttemptRemoved(clock(), 1, 1))
    clock.at_s -= 9 * HOUR
    shell.turn(st.Tick(clock()))
    assert used_hours(shell) == 1, "the clock was wrong by 9 hours"
    shell.host.take()


def test_a_quota_that_comes_with_a_reload_counts_from_the_begin_of_the_week(
    make_shell: MakeShell, clock: Clock
) -> None:
    shell = make_shell(by=replace(with_quota(), pools={"lab": Pool()}), clock=clock)
    shell.turn(asks(clock))
    runs(shell, clock, 1, 3 * HOUR)
    shell.host.take()
    assert shell.engine.quota_use() == {}
    shell.engine.adopt(with_quota())
    shell.turn(asks(clock))
    assert used_hours(shell) == 3
    assert shell.host.take() == []
    shell.engine.adopt(with_quota(4))
    shell.turn(st.Tick(clock()))
    assert shell.host.take() == [Launch(2, 1)], "a larger one lets it start"


def test_a_clock_that_was_a_week_ahead_restores_nothing_for_good(
    make_shell: MakeShell, clock: Clock
) -> None:
    shell = make_shell(by=with_quota(), clock=clock)
    shell.turn(asks(clock))
    runs(shell, clock, 1, 2 * HOUR)
    friday_s = clock.at_s
    clock.at_s += 7 * 24 * HOUR
    shell.turn(st.Tick(clock()))
    assert used_hours(shell) == 0
    clock.at_s = friday_s
    shell.turn(asks(clock))
    assert used_hours(shell) == 2
    assert shell.host.take() == [Launch(1, 1)]


async def test_the_shares_show_how_much_of_a_quota_is_used(
    make_desk: MakeDesk, clock: Clock
) -> None:
    desk = make_desk(by=with_quota(waits=False), clock=clock)
    shell = desk.shell
    shell.turn((asks(clock, 4.5), Payload()))
    runs(shell, clock, 1, HOUR)
    nodes = {each["path"]: each for each in (await desk.ask(ALICE, op="shares"))["nodes"]}
    assert nodes["root.lab"]["quota"] == {
        "used_hours": 0.5,
        "share_hours": 2,
        "then": "last",
        "restored_at": at(MONDAY),
    }
    assert "quota" not in nodes["root.free"]
    shell.host.take()
