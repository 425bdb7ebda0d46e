"""A turn: what is decided is durable before anyone hears of it, and lost work is told."""

from __future__ import annotations

import itertools
import pickle
import sqlite3
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from daemon.desk import MakeShell, Shell
from drfd.common.errors import HostError, NotPermitted, Refused
from drfd.core.amounts.resources import NOTHING, Axes, Node
from drfd.core.explain.forecast import Forecast
from drfd.core.explain.reasons import BeyondMachine, ReasonCode, WaitReason, explain_wait
from drfd.core.fairness.priority_tree import DecayedUsage
from drfd.core.fairness.rules import Pool, Preempting, ReservationSettings, Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import ArrayState
from drfd.core.ledger.windows import Window
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import Broken, Dependency, Job, JobState, Outcome, RequiredOutcome
from drfd.core.model.lifecycle import Freeze, Kill, Launch, RemoveAttempt, Terminate, Thaw
from drfd.core.model.limit_hours import LimitHours, LimitSteps
from drfd.core.scheduling.plan import PassLimits
from drfd.core.scheduling.release_times import UNKNOWN_S, Ends, make_pass_context
from drfd.daemon.engine.engine import Work
from drfd.daemon.forecasting.messages import LedgerChanges, LedgerCopy
from drfd.journal.journal import Journal
from drfd.journal.records import Payload
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    GIB,
    attempt_started,
    demand,
    ended,
    now,
    rules,
    schedule,
    spec,
    tables,
)

PAYLOAD = Payload(env={"A": "1"})


def asks(cores: float = 1, *, actor: st.Actor = ALICE, held: bool = False) -> st.SubmitAsked:
    return st.SubmitAsked(now(), spec(f"root.{actor.user}", actor=actor, asks=demand(cores)), held)


def gone(job_id: int, attempt: int = 1) -> st.AttemptRemoved:
    return st.AttemptRemoved(now(), job_id, attempt)


def states(shell: Shell) -> dict[int, str]:
    return {job.id: job.state.value for job in shell.engine.ledger.jobs.values()}


def test_a_submission_that_comes_twice_in_one_turn_is_one_job(shell: Shell) -> None:
    """Its client has lost the connection, and asks again before the first is answered."""
    answers: list[Any] = []
    shell.engine.turn([Work(asks(), PAYLOAD, answers.append, "k") for _ in range(2)])
    assert answers == [[ev.Submitted(job_id=1, at_s=now().at_s, spec=spec())]] * 2
    assert shell.host.take() == [Launch(1, 1)]
    shell.engine.turn([Work(asks(actor=BOB), PAYLOAD, answers.append, "k")])
    assert answers[-1][0].job_id == 2, "another user's key is another key"
    assert shell.host.take() == [Launch(2, 1)]


def test_an_array_that_comes_twice_in_one_turn_is_one_array(shell: Shell) -> None:
    answers: list[Any] = []
    array = replace(asks(held=True), spans=((0, 9, 1),))
    shell.engine.turn([Work(array, PAYLOAD, answers.append, "k") for _ in range(2)])
    assert answers[0] == answers[1]
    assert [type(event) for event in answers[0]] == [ev.ArraySubmitted]
    assert shell.engine.ledger.next_id == 12


# -- effects -----------------------------------------------------------------------------------


def test_a_job_that_fits_is_launched_in_the_turn_of_its_submission(shell: Shell) -> None:
    (events,) = shell.turn(asks())
    assert events == [ev.Submitted(job_id=1, at_s=now().at_s, spec=spec())]
    assert shell.host.take() == [Launch(1, 1)]
    assert states(shell) == {1: "STARTING"}


def test_each_step_of_a_life_owes_exactly_one_effect(shell: Shell) -> None:
    seen = []
    for stimulus in (
        asks(),
        attempt_started(1),
        st.CancelAsked(now(1), 1, ALICE),
        st.Tick(now(20)),
        ended(1, signal=9, exit_code=None),
        gone(1),
    ):
        shell.turn(stimulus)
        seen.append((states(shell), shell.host.take()))
    assert seen == [
        ({1: "STARTING"}, [Launch(1, 1)]),
        ({1: "RUNNING"}, []),
        ({1: "STOPPING"}, [Terminate(1, 1)]),
        ({1: "STOPPING"}, [Kill(1, 1)]),
        ({1: "CLEANING"}, [RemoveAttempt(1, 1)]),
        ({}, []),
    ]


def test_what_ends_makes_room_for_what_waits_in_the_same_turn(shell: Shell) -> None:
    shell.turn(asks(9), asks(9, actor=BOB))
    assert shell.host.take() == [Launch(1, 1)]
    shell.turn(attempt_started(1), ended(1))
    assert shell.host.take() == [RemoveAttempt(1, 1)]
    shell.turn(gone(1))
    assert shell.host.take() == [Launch(2, 1)]


def test_a_turn_without_news_does_nothing(shell: Shell) -> None:
    shell.turn(asks())
    shell.host.take()
    shell.changed.clear()
    assert shell.turn(st.Tick(now(1))) == [[]]
    assert (shell.host.take(), shell.changed) == ([], [])


def test_one_effect_is_performed_for_a_job_that_changed_twice_in_a_turn(shell: Shell) -> None:
    shell.turn(asks(), st.HoldAsked(now(), 1, ALICE), st.ReleaseAsked(now(), 1, ALICE))
    assert shell.host.take() == [Launch(1, 1)]


def test_a_job_that_came_and_went_in_one_turn_is_never_launched(shell: Shell) -> None:
    shell.turn(asks(), st.CancelAsked(now(), 1, ALICE))
    assert shell.host.take() == []
    assert shell.journal.job(1).shown_state == "CANCELLED"


def test_every_changed_job_is_reported_once_as_it_is_after_the_turn(shell: Shell) -> None:
    shell.turn(asks(), asks(9), asks(held=True))
    assert [(job.id, job.state) for job in shell.changed] == [
        (1, JobState.STARTING),
        (2, JobState.PENDING),
        (3, JobState.HELD),
    ]
    shell.host.take()


def test_draining_launches_nothing_and_its_end_launches_at_once(shell: Shell) -> None:
    shell.turn(st.DrainAsked(now(), True, ADMIN))
    shell.turn(asks(), asks())
    assert shell.host.take() == []
    shell.turn(st.DrainAsked(now(), False, ADMIN))
    assert shell.host.take() == [Launch(1, 1), Launch(2, 1)]


def test_at_the_end_of_a_maintenance_window_what_was_held_back_starts(
    make_shell: MakeShell,
) -> None:
    """A timer wakes the engine, as no event does."""
    times = [now()]
    shell = make_shell(clock=lambda: times[0])
    at_s = now().at_s
    shell.engine.adopt_windows((Window(name="a", start_s=at_s + 3599, end_s=at_s + 3630),))
    shell.turn(asks())
    assert shell.host.take() == []
    assert shell.engine.due_s() == 60.0, "the clock is looked at each minute"
    times[0] = now(3600)
    assert shell.engine.due_s() == 30.0
    shell.turn()
    assert shell.host.take() == []
    times[0] = now(3630)
    shell.turn()
    assert shell.host.take() == [Launch(1, 1)]
    assert shell.engine.due_s() is None


#: Nothing of the pool lab starts between these seconds.
SHUT_S = (3600, 7230)


def by_hour(own: dict[str, int] | None = None) -> LimitHours:
    times = tuple(now(at_s).at_s for at_s in (-9999, *SHUT_S))
    plain = own or {}
    return LimitHours({"root.lab": LimitSteps(times, (plain, {"cores": 0}, plain))})


def of_lab(cores: float = 1) -> st.SubmitAsked:
    return st.SubmitAsked(now(), spec("root.lab", asks=demand(cores), time_limit_s=86400))


def test_limits_by_hour_are_adopted_at_their_hour_and_what_runs_runs_on(
    make_shell: MakeShell, caplog: pytest.LogCaptureFixture
) -> None:
    """By a timer alone, and the clock is looked at each minute: it may be set."""
    caplog.set_level("INFO", logger="drfd")
    times = [now()]
    by = replace(rules(), pools={"lab": Pool(limit={"cores": 4000})})
    shell = make_shell(by=by, clock=lambda: times[0])
    shell.engine.adopt_limit_hours(by_hour({"cores": 4000}))
    shell.turn(of_lab(3))
    assert shell.host.take() == [Launch(1, 1)]
    shell.turn(attempt_started(1))
    assert shell.engine.due_s() == 60.0
    times[0] = now(3590)
    assert shell.engine.due_s() == 10.0
    shell.turn()
    assert shell.engine.rules.shares.rule("root.lab").limit == (4000, None, None, None)
    times[0] = now(3600)
    caplog.clear()
    shell.turn()
    assert caplog.messages == ["event=limits path=lab cores=0"]
    assert shell.engine.rules.shares.rule("root.lab").limit == (0, None, None, None)
    shell.turn(of_lab())
    assert shell.host.take() == [], "nothing is stopped and nothing started"
    assert states(shell) == {1: "RUNNING", 2: "PENDING"}
    times[0] = now(7200)
    assert shell.engine.due_s() == 30.0
    times[0] = now(7230)
    caplog.clear()
    shell.turn()
    assert shell.host.take() == [Launch(2, 1)]
    assert caplog.messages[0] == "event=limits path=lab cores=4"


def test_limits_follow_a_clock_that_is_set_or_leaps_and_a_restart(make_shell: MakeShell) -> None:
    times = [now()]
    by = replace(rules(), pools={"lab": Pool()})
    shell = make_shell(by=by, clock=lambda: times[0])
    shell.engine.adopt_limit_hours(by_hour())

    def is_shut() -> bool:
        shell.turn()
        return shell.engine.rules.shares.rule("root.lab").limit is not None

    found = []
    for at_s in (0, 5000, 100, 5000, 99999, 5000):
        times[0] = now(at_s)
        found.append(is_shut())
    assert found == [False, True, False, True, False, True]
    shell.journal.close()
    again = make_shell(by=by, clock=lambda: times[0])
    again.engine.adopt_limit_hours(by_hour())
    assert again.engine.rules.limits_now == {"root.lab": {"cores": 0}}


def test_a_reload_keeps_limits_by_hour_or_takes_them_back(make_shell: MakeShell) -> None:
    """Each time the rules of the hour are one record for a later audit."""
    by = replace(rules(), pools={"lab": Pool()})
    shell = make_shell(by=by, clock=lambda: now(5000))
    shell.engine.adopt_limit_hours(by_hour())
    shell.engine.started(0.0)
    shell.turn(of_lab())
    assert shell.host.take() == []
    shell.engine.adopt(replace(by, grace_s=20), by_hour())
    shell.turn()
    assert shell.host.take() == []
    assert shell.engine.rules.limits_now == {"root.lab": {"cores": 0}}
    shell.engine.adopt(by)
    shell.turn()
    assert shell.host.take() == [Launch(1, 1)]
    kinds = [type(event) for _, event in shell.journal.audit.events()]
    assert kinds.count(ev.Configured) == 2
    assert shell.engine.due_s() is None


def test_pools_that_jobs_are_in_and_that_are_gone_are_known(make_shell: MakeShell) -> None:
    by = replace(rules(), pools={"lab": Pool(), "lab.night": Pool()})
    shell = make_shell(by=by)
    shell.turn(of_lab(), st.SubmitAsked(now(), spec()))
    assert shell.engine.lost_pools() == []
    shell.engine.adopt(rules())
    assert shell.engine.lost_pools() == ["root.lab"]
    shell.host.take()


def test_nodes_that_jobs_name_and_that_are_gone_are_known(make_shell: MakeShell) -> None:
    several = tuple(Node(name=name, capacity=demand(4, 8)) for name in ("atlas", "n1", "n2"))
    by = Rules(axes=Axes(nodes=several), capacity=demand(12, 24))
    shell = make_shell(by=by)
    for name, cores in (("atlas", 1), ("n1", 4), ("n2", 4), ("n2", 4)):
        asks = replace(demand(cores), node=name)
        shell.turn(st.SubmitAsked(now(), spec(asks=asks)))
    shell.turn(st.SubmitAsked(now(), spec(asks=demand(1))))
    assert shell.engine.lost_nodes() == []
    shell.engine.adopt(Rules(axes=Axes(nodes=several[1:2]), capacity=demand(4, 8)))
    assert shell.engine.lost_nodes() == ["atlas", "n2"]
    shell.engine.adopt(rules())
    assert shell.engine.lost_nodes() == ["atlas", "n1", "n2"]
    shell.host.take()


def test_another_ledger_and_a_forecast_have_the_limits_by_hour(make_shell: MakeShell) -> None:
    by = replace(rules(), pools={"lab": Pool()})
    shell = make_shell(by=by, clock=lambda: now(5000))
    shell.engine.adopt_limit_hours(by_hour())
    shell.engine._reload_ledger()
    assert shell.engine.ledger.limit_hours == by_hour()
    shell.engine.adopt(replace(by, axes=replace(by.axes, gres=("gpu",))), by_hour())
    assert shell.engine.ledger.limit_hours == by_hour()
    future = shell.engine.circumstances().future([], [], shell.engine.rules)
    assert future.ledger.limit_hours == by_hour()


def test_a_window_that_is_taken_back_holds_nothing_back_in_the_next_turn(shell: Shell) -> None:
    at_s = now().at_s
    shell.engine.adopt_windows((Window(name="a", start_s=at_s + 3599, end_s=at_s + 3630),))
    shell.turn(asks())
    assert shell.host.take() == []
    shell.engine.adopt_windows(())
    shell.turn()
    assert shell.host.take() == [Launch(1, 1)]


def test_the_latest_pass_is_kept_for_explanations(shell: Shell) -> None:
    shell.turn(asks(5), asks(6))
    assert shell.engine.scheduler.last_plan.admitted == [1]
    assert shell.engine.scheduler.last_plan.free[0] == 4000
    assert shell.engine.scheduler.last_plan.order == ["root.alice"]
    shell.host.take()


def test_the_end_of_a_task_lets_one_start_that_is_in_another_pool(make_shell: MakeShell) -> None:
    """No event is about the other, and yet its queue has changed."""
    shell = make_shell(by=replace(rules(), pools={"open": Pool()}))
    shell.turn(st.DrainAsked(now(), True, ADMIN))
    shell.turn(st.SubmitAsked(now(), spec(), spans=((1, 2, 1),), at_once=1))
    shell.turn(st.ChangeAsked(now(), 2, ALICE, st.Change(pool="open")))
    shell.turn(st.DrainAsked(now(), False, ADMIN))
    assert shell.host.take() == [Launch(2, 1)]
    shell.turn(st.LaunchAborted(now(), 2, 1, "no such file"), gone(2))
    assert shell.host.take() == [Launch(3, 1)]


def test_a_pass_over_very_many_demands_is_cut_and_goes_on_in_the_next_turn(shell: Shell) -> None:
    """In the order of one that is not; what comes between has its turn."""
    shell.engine.scheduler.limits = PassLimits(examined=8)
    shell.turn(st.DrainAsked(now(), True, ADMIN))
    few = [spec(asks=demand(0.5 + at / 1000)) for at in range(10)]
    few += [spec("root.bob", actor=BOB, asks=demand(0.75 + at / 1000)) for at in range(10)]
    shell.turn(*[st.SubmitAsked(now(), each) for each in few])
    shell.turn(st.DrainAsked(now(), False, ADMIN))
    begun = [effect.job_id for effect in shell.host.take()]
    assert 0 < len(begun) < 5
    while shell.engine.wants_turn:
        shell.turn(st.Tick(now()))
        begun += [effect.job_id for effect in shell.host.take()]
    again = Ledger.of_events(shell.engine.rules.axes, list(shell.journal.events())[:22])
    assert begun == schedule(again, shell.engine.rules).admitted
    assert len(begun) > 10


@pytest.mark.parametrize("policy", ["drf", "fifo"])
def test_a_crowd_of_jobs_for_which_there_is_room_is_started_in_several_turns(
    make_shell: MakeShell, policy: str
) -> None:
    """Two thousand small tasks were started in one turn of a third of a second, in which nobody
    else was answered. The order is that of one pass."""
    small = demand(0.01, 0.01)
    shell = make_shell(by=replace(rules(), policy=policy))
    shell.turn(st.DrainAsked(now(), True, ADMIN))
    crowd = st.SubmitAsked(now(), spec(asks=small), spans=((0, 149, 1),))
    others = [st.SubmitAsked(now(), spec("root.bob", actor=BOB, asks=small)) for _ in range(50)]
    shell.turn(crowd, *others)
    submitted = [each for each in shell.journal.events() if not isinstance(each, ev.Drained)]
    again = Ledger.of_events(shell.engine.rules.axes, submitted)
    whole = schedule(again, shell.engine.rules).admitted
    shell.turn(st.DrainAsked(now(), False, ADMIN))
    begun: list[list[int]] = []
    begun.append([effect.job_id for effect in shell.host.take()])
    while shell.engine.wants_turn:
        shell.turn(st.Tick(now()))
        begun.append([effect.job_id for effect in shell.host.take()])
    assert max(map(len, begun)) <= 64
    assert [job_id for turn in begun for job_id in turn] == whole
    assert len(whole) == 200


def test_after_a_long_pass_that_decides_nothing_there_is_none_for_a_while(shell: Shell) -> None:
    """Each change of one among thousands of unlike waiting jobs asked for a pass of a tenth of a
    second, and nobody else had his turn."""
    mono_s, passes = [1000.0], []
    run = shell.engine.scheduler.run

    def slow(*given: Any) -> Any:
        passes.append(mono_s[0])
        mono_s[0] += 0.1
        return run(*given)

    shell.engine.scheduler.run = slow
    shell.engine.clock = lambda: replace(now(), mono_s=mono_s[0])
    shell.turn(st.SubmitAsked(now(), spec(asks=demand(9))))
    assert [effect.job_id for effect in shell.host.take()] == [1]
    # It has decided something.
    shell.turn(st.SubmitAsked(now(), spec(asks=demand(9))))
    assert len(passes) == 2
    assert shell.engine.again_mono_s is None
    for priority in range(5):
        shell.turn(st.ChangeAsked(now(), 2, ALICE, st.Change(priority=1 + priority)))
    assert len(passes) == 2
    assert shell.engine.again_mono_s == pytest.approx(1000.3)
    assert not shell.engine.wants_turn
    assert shell.engine.due_s() == pytest.approx(0.1)
    mono_s[0] = 1000.6
    # Whoever sets the timer only now, late, still sets one.
    assert shell.engine.due_s() == pytest.approx(0.001)
    shell.turn(st.Tick(now()))
    assert len(passes) == 3
    # Quick passes need no rest.
    shell.engine.scheduler.run = run
    mono_s[0] += 1
    for priority in range(5):
        shell.turn(st.ChangeAsked(now(), 2, ALICE, st.Change(priority=10 + priority)))
        assert shell.engine.again_mono_s is None


# -- suspension --------------------------------------------------------------------------------


def test_each_step_of_a_suspension_owes_exactly_one_effect(shell: Shell) -> None:
    """What is SUSPENDED is owed its freezing still: whoever was told may have died."""
    seen = []
    for stimulus in (
        asks(9),
        attempt_started(1),
        asks(9, actor=BOB),
        st.SuspendAsked(now(1), 1, ALICE),
        st.Frozen(now(2), 1, 1),
        st.ResumeAsked(now(3), 1, ALICE),
        st.CancelAsked(now(4), 2, BOB),
        ended(2),
        gone(2),
    ):
        shell.turn(stimulus)
        seen.append((states(shell), shell.host.take()))
    assert seen == [
        ({1: "STARTING"}, [Launch(1, 1)]),
        ({1: "RUNNING"}, []),
        ({1: "RUNNING", 2: "PENDING"}, []),
        ({1: "RUNNING", 2: "PENDING"}, [Freeze(1, 1)]),
        ({1: "SUSPENDED", 2: "STARTING"}, [Freeze(1, 1), Launch(2, 1)]),
        ({1: "SUSPENDED", 2: "STARTING"}, [Freeze(1, 1)]),
        ({1: "SUSPENDED", 2: "STOPPING"}, [Terminate(2, 1)]),
        ({1: "SUSPENDED", 2: "CLEANING"}, [RemoveAttempt(2, 1)]),
        ({1: "RUNNING"}, [Thaw(1, 1)]),
    ]


def test_a_restarted_daemon_knows_who_is_suspended_and_by_whom(make_shell: MakeShell) -> None:
    before = make_shell()
    before.turn(asks(), asks())
    before.turn(attempt_started(1), attempt_started(2))
    before.turn(st.SuspendAsked(now(), 1, ADMIN), st.SuspendAsked(now(), 2, ALICE))
    before.turn(st.Frozen(now(), 1, 1))
    before.host.take()
    after = make_shell()
    assert tables(after.engine.ledger) == tables(before.engine.ledger)
    after.engine.perform_all_owed()
    assert after.host.take() == [Freeze(1, 1), Freeze(2, 1)]
    (refused,) = after.turn(st.ResumeAsked(now(), 1, ALICE))
    assert (type(refused), refused.code) == (NotPermitted, "held-by-admin")


# -- preemption --------------------------------------------------------------------------------


def preemptible(cores: float = 1) -> st.SubmitAsked:
    return st.SubmitAsked(now(), spec(asks=demand(cores), preemptible=True))


@pytest.fixture
def small(make_shell: MakeShell, request: pytest.FixtureRequest) -> Shell:
    """Two cores, both alice's, with jobs that make room for who starves at all."""
    how = Preempting(suspends=getattr(request, "param", False), after_s=0)
    shell = make_shell(by=replace(rules(2, 18), preempting=how))
    shell.turn(preemptible(), preemptible())
    shell.turn(attempt_started(1, at_s=1), attempt_started(2, at_s=2))
    shell.host.take()
    return shell


def test_a_starving_job_gets_the_place_of_the_one_started_last_which_then_waits(
    small: Shell,
) -> None:
    """Job 1 stays: one core is what bob is entitled to."""
    small.turn(asks(actor=BOB))
    assert small.host.take() == [Terminate(2, 1)]
    assert states(small) == {1: "RUNNING", 2: "STOPPING", 3: "PENDING"}
    small.turn(ended(2, exit_code=None, signal=15, at_s=3))
    assert small.host.take() == [RemoveAttempt(2, 1)]
    small.turn(gone(2))
    assert small.host.take() == [Launch(3, 1)]
    assert states(small) == {1: "RUNNING", 2: "PENDING", 3: "STARTING"}
    small.turn(attempt_started(3), ended(3), gone(3))
    assert small.host.take() == [Launch(2, 2)]
    assert states(small) == {1: "RUNNING", 2: "STARTING"}


@pytest.mark.parametrize("small", [True], indirect=True)
def test_a_starving_job_gets_the_cores_of_the_one_that_is_frozen_for_it(small: Shell) -> None:
    small.turn(asks(actor=BOB))
    assert small.host.take() == [Freeze(2, 1)]
    small.turn(st.Frozen(now(3), 2, 1))
    assert small.host.take() == [Freeze(2, 1), Launch(3, 1)]
    small.turn(attempt_started(3))
    small.turn(ended(3))
    assert small.host.take() == [RemoveAttempt(3, 1)]
    small.turn(gone(3))
    assert small.host.take() == [Thaw(2, 1)]
    assert states(small) == {1: "RUNNING", 2: "RUNNING"}


def test_the_place_of_a_preempted_job_is_kept_for_whom_it_was_stopped(small: Shell) -> None:
    """Carol holds as little as bob, and her job is older: it would have its turn before his."""
    carol = st.Actor(user="carol", uid=1003, is_admin=False)
    small.turn(asks(actor=carol, held=True))
    small.turn(asks(actor=BOB))
    assert small.host.take() == [Terminate(2, 1)]
    small.turn(st.ReleaseAsked(now(), 3, carol))
    small.turn(ended(2, exit_code=None, signal=15, at_s=3))
    small.turn(gone(2))
    assert states(small) == {1: "RUNNING", 2: "PENDING", 3: "PENDING", 4: "STARTING"}
    assert small.host.take() == [RemoveAttempt(2, 1), Launch(4, 1)]


def test_a_victim_that_never_freezes_keeps_others_waiting_for_a_minute_only(
    make_shell: MakeShell,
) -> None:
    """Somebody else makes room then, and the place that was kept for bob is open meanwhile."""
    at_s = [0.0]
    how = Preempting(suspends=True, after_s=0)
    by = replace(rules(3, 18), preempting=how)
    shell = make_shell(by=by, clock=lambda: now(at_s[0]))
    shell.turn(*[preemptible() for _ in range(3)])
    shell.turn(*[attempt_started(job_id, at_s=job_id) for job_id in (1, 2, 3)])
    shell.host.take()
    shell.turn(asks(actor=BOB))
    assert shell.host.take() == [Freeze(3, 1)]
    for at_s[0] in (30, 69):
        shell.engine.want_pass()
        shell.turn(st.Tick(now(at_s[0])))
        assert shell.host.take() == []
    at_s[0] = 71
    shell.engine.want_pass()
    shell.turn(st.Tick(now(71)))
    assert shell.host.take() == [Freeze(2, 1)]
    shell.turn(st.Frozen(now(72), 2, 1))
    assert shell.host.take() == [Freeze(2, 1), Launch(4, 1)]


@pytest.mark.parametrize("suspends", [False, True])
def test_nobody_else_is_stopped_because_the_clock_was_set(
    make_shell: MakeShell, suspends: bool
) -> None:
    time = [now(0)]
    how = Preempting(suspends=suspends, after_s=0)
    shell = make_shell(by=replace(rules(3, 18), preempting=how), clock=lambda: time[0])
    shell.turn(*[preemptible() for _ in range(3)])
    shell.turn(*[attempt_started(job_id, at_s=job_id) for job_id in (1, 2, 3)])
    shell.host.take()
    shell.turn(asks(actor=BOB))
    assert shell.host.take() == [Freeze(3, 1) if suspends else Terminate(3, 1)]
    time[0] = st.Now(at_s=now(7200).at_s, mono_s=now(3).mono_s)
    shell.engine.want_pass()
    shell.turn(st.Tick(time[0]))
    assert shell.host.take() == []


def test_nobody_starves_sooner_because_the_clock_was_set(make_shell: MakeShell) -> None:
    time = [now(0)]
    by = replace(rules(2, 18), preempting=Preempting(after_s=300))
    shell = make_shell(by=by, clock=lambda: time[0])
    shell.turn(preemptible(), preemptible())
    shell.turn(attempt_started(1), attempt_started(2))
    shell.turn(asks(actor=BOB))
    shell.host.take()
    for mono_s, orders in ((299.0, 0), (300.0, 1)):
        time[0] = st.Now(at_s=now(7200).at_s, mono_s=now(mono_s).mono_s)
        shell.engine.want_pass()
        shell.turn(st.Tick(time[0]))
        assert len(shell.host.take()) == orders


def test_with_many_who_wait_it_is_asked_once_a_second_who_starves(make_shell: MakeShell) -> None:
    at_s = [0.0]
    how = Preempting(after_s=0)
    by = replace(rules(2, 18), preempting=how)
    shell = make_shell(by=by, clock=lambda: now(at_s[0]))
    shell.turn(preemptible(2), asks(actor=BOB))
    shell.turn(attempt_started(1))
    crowd = [
        st.Actor(user=f"u{number}", uid=2000 + number, is_admin=False) for number in range(101)
    ]
    shell.turn(*[asks(2, actor=each, held=True) for each in crowd])
    shell.host.take()
    looks: list[int] = []
    look = shell.engine.scheduler._starvation.update
    shell.engine.scheduler._starvation.update = lambda *about: looks.append(1) or look(*about)
    shell.turn(*[st.ReleaseAsked(now(), job_id, ADMIN) for job_id in range(3, 104)])
    for at_s[0] in (0.5, 0.9, 1.0, 1.4, 2.5):
        shell.engine.want_pass()
        shell.turn(st.Tick(now(at_s[0])))
    assert len(looks) == 2


def test_nobody_is_preempted_during_a_drain_or_where_it_is_off(
    small: Shell, make_shell: MakeShell
) -> None:
    small.turn(st.DrainAsked(now(), True, ADMIN), asks(actor=BOB))
    assert small.host.take() == []
    off = make_shell(by=rules(2, 18))
    off.turn(st.DrainAsked(now(), False, ADMIN))
    assert off.host.take() == []
    assert states(off) == {1: "RUNNING", 2: "RUNNING", 3: "PENDING"}


def test_an_attempt_that_was_preempted_is_usage_but_no_guess_how_long_jobs_run(
    small: Shell,
) -> None:
    """It was used; how long the job would have run, nobody knows."""
    small.turn(asks(actor=BOB))
    small.turn(ended(2, exit_code=None, signal=15, at_s=102))
    small.engine.clock = lambda: now(102)
    small.turn(gone(2))
    future = ahead(small)
    half_of_the_machine = DecayedUsage(rules().half_life_s)
    half_of_the_machine.add("root.alice", 0.5, now(2).at_s, now(102).at_s)
    assert future.past_usage == half_of_the_machine.past_usage
    assert future.run_times.length_s(spec(time_limit_s=None)) == UNKNOWN_S
    small.turn(ended(1, at_s=801))
    small.turn(gone(1))
    assert ahead(small).run_times.length_s(spec(time_limit_s=None)) == 2 * 800
    small.host.take()


@pytest.mark.parametrize("is_resumed", [True, False])
def test_the_time_that_a_job_was_frozen_is_neither_usage_nor_run_time(
    shell: Shell, is_resumed: bool
) -> None:
    """It ran for 1000 s, was frozen for 4000, and ended then, or after 500 s more."""
    shell.turn(asks(3))
    shell.turn(attempt_started(1))
    shell.turn(st.SuspendAsked(now(1000), 1, ALICE), st.Frozen(now(1000), 1, 1))
    ran_s = 1000.0
    if is_resumed:
        shell.engine.clock = lambda: now(5000)
        shell.turn(st.ResumeAsked(now(5000), 1, ALICE))
        ran_s = 1500.0
    shell.turn(ended(1, at_s=4000 + ran_s))
    shell.engine.clock = lambda: now(4000 + ran_s)
    shell.turn(gone(1))
    future = ahead(shell)
    used = DecayedUsage(rules().half_life_s)
    used.add("root.alice", float(Fraction(3, 9)), now(4000).at_s, now(4000 + ran_s).at_s)
    assert future.past_usage == used.past_usage
    assert future.run_times.length_s(spec(time_limit_s=None)) == 2 * ran_s
    shell.host.take()


# -- looking ahead -----------------------------------------------------------------------------


def test_looking_ahead_changes_nothing(shell: Shell) -> None:
    shell.turn(asks(9), asks(9, actor=BOB))
    shell.host.take()
    shell.changed.clear()
    before, events = tables(shell.engine.ledger), list(shell.journal.events())
    plan = shell.engine.scheduler.last_plan
    future = ahead(shell)
    supposed = future.add(st.SubmitAsked(future.now, spec(asks=demand(9))))
    assert (supposed.id, future.start_s(3)) == (3, now(7200).at_s)
    assert tables(shell.engine.ledger) == before
    assert list(shell.journal.events()) == events
    assert shell.engine.scheduler.last_plan is plan
    assert (shell.host.take(), shell.changed) == ([], [])


def test_what_happens_meanwhile_does_not_reach_who_looks_ahead(shell: Shell) -> None:
    """It is looked ahead in another process, from what the controller has said of that moment."""
    shell.turn(asks(9), asks(9, actor=BOB))
    ledger = shell.engine.ledger
    changes = LedgerChanges.of(ledger.jobs, ledger)
    circumstances = pickle.loads(pickle.dumps(shell.engine.circumstances()))
    shell.turn(attempt_started(1), ended(1))
    shell.turn(gone(1))
    assert states(shell) == {2: "STARTING"}
    books = LedgerCopy()
    books.take(changes)
    future = circumstances.future(books.jobs, books.arrays, shell.engine.rules)
    assert future.start_s(2) == now(3600).at_s
    shell.host.take()


def ahead(shell: Shell) -> Forecast:
    """What a look ahead would begin with now."""
    engine = shell.engine
    ledger = engine.ledger
    return engine.circumstances().future(ledger.jobs.values(), ledger.arrays.live(), engine.rules)


# -- a host that is away -----------------------------------------------------------------------


def test_nothing_is_admitted_while_the_host_is_away(make_shell: MakeShell) -> None:
    """An admitted job holds resources: it should not wait for a launcher in that state."""
    shell = make_shell(ready=False)
    shell.turn(asks())
    assert (states(shell), shell.host.take()) == ({1: "PENDING"}, [])
    shell.host.ready = True
    shell.turn()
    assert (states(shell), shell.host.take()) == ({1: "STARTING"}, [Launch(1, 1)])


def test_what_was_owed_while_the_host_was_away_is_performed_when_it_is_back(shell: Shell) -> None:
    shell.turn(asks(), asks(), asks())
    shell.turn(attempt_started(3))
    shell.host.take()
    shell.host.ready = False
    shell.turn(st.CancelAsked(now(), 2, ALICE))
    shell.turn(ended(3))
    assert shell.host.take() == []
    shell.host.ready = True
    shell.engine.perform_all_owed()
    assert shell.host.take() == [Launch(1, 1), Terminate(2, 1), RemoveAttempt(3, 1)]


def test_a_restarted_daemon_owes_what_the_dead_one_owed(make_shell: MakeShell) -> None:
    before = make_shell()
    before.turn(asks(), asks(), asks(held=True))
    before.turn(attempt_started(2), st.CancelAsked(now(), 2, ALICE))
    assert before.host.take() == [Launch(1, 1), Launch(2, 1), Terminate(2, 1)]
    after = make_shell()
    assert tables(after.engine.ledger) == tables(before.engine.ledger)
    after.engine.perform_all_owed()
    assert after.host.take() == [Launch(1, 1), Terminate(2, 1)]


def promised(make_shell: MakeShell, clock: Any, **how: Any) -> Shell:
    """A daemon on whose 9 cores alice's job has 6 for ten minutes; bob waits for all 9, which are
    reserved for him, and for 1 core for a day."""
    by = replace(rules(9, 90), patience=ReservationSettings(patience_s=0))
    shell = make_shell(by=by, clock=clock, **how)
    if not shell.engine.ledger.jobs:
        for cores, actor, limit_s in ((6, ALICE, 600), (9, BOB, 600), (1, BOB, 86400)):
            asked = spec(
                f"root.{actor.user}", actor=actor, asks=demand(cores), time_limit_s=limit_s
            )
            shell.turn(st.SubmitAsked(clock(), asked, False))
            if cores == 6:
                shell.turn(attempt_started(1))
    return shell


PROMISED = {1: "RUNNING", 2: "PENDING", 3: "PENDING"}


def test_a_restarted_daemon_starts_nothing_in_the_way_of_a_big_job_with_a_reservation(
    make_shell: MakeShell,
) -> None:
    """The long small job keeps its leaf's promise, and comes before any new reservation."""
    seconds = [10.0]
    before = promised(make_shell, lambda: now(seconds[0]))
    assert states(before) == PROMISED
    [reserved] = before.engine.scheduler.reservations
    before.host.take()
    seconds[0] = 20.0
    after = promised(make_shell, lambda: now(seconds[0]))
    seconds[0] = 25.0
    after.turn()
    assert states(after) == PROMISED
    [renewed] = after.engine.scheduler.reservations
    assert (renewed.promise, renewed.start_s) == (reserved.promise, reserved.start_s)
    after.turn(ended(1, at_s=30.0), gone(1))
    assert states(after) == {2: "STARTING", 3: "PENDING"}
    after.host.take()
    assert [each.job_id for each in after.journal.promises()] == [3]


def test_a_big_job_starts_first_that_fits_since_the_daemon_has_died(
    make_shell: MakeShell,
) -> None:
    """The end of what it waited for is reported to the next daemon, with its first turn."""
    before = promised(make_shell, now)
    before.host.take()
    after = promised(make_shell, now)
    after.turn(ended(1, at_s=30.0), gone(1))
    assert states(after) == {2: "STARTING", 3: "PENDING"}
    after.host.take()


def test_a_turn_that_cannot_be_recorded_forgets_no_reservation(make_shell: MakeShell) -> None:
    shell = promised(make_shell, now, journal=FullDisk)
    shell.journal.is_full = True
    shell.turn(asks(1, held=True))
    shell.journal.is_full = False
    shell.engine.want_pass()
    shell.turn()
    assert states(shell) == PROMISED
    shell.host.take()


def test_other_kinds_of_resources_forget_no_reservation(make_shell: MakeShell) -> None:
    shell = promised(make_shell, now)
    shell.engine.adopt(replace(shell.engine.rules, axes=Axes(gres=("gpu",))))
    shell.turn()
    assert states(shell) == PROMISED
    shell.host.take()


def test_a_restarted_daemon_schedules_in_its_first_turn(make_shell: MakeShell) -> None:
    make_shell(ready=False).turn(asks())
    after = make_shell()
    after.turn()
    assert after.host.take() == [Launch(1, 1)]


# -- answers -----------------------------------------------------------------------------------


def test_a_refusal_is_an_answer_and_leaves_the_rest_of_the_turn_alone(shell: Shell) -> None:
    too_big, taken, not_yours = shell.turn(asks(10), asks(), st.CancelAsked(now(), 1, BOB))
    assert (type(too_big), too_big.code) == (Refused, "too-big")
    assert [event.job_id for event in taken] == [1]
    assert (type(not_yours), not_yours.code) == (NotPermitted, "not-yours")
    assert shell.host.take() == [Launch(1, 1)]
    assert [type(event) for event in shell.journal.events()] == [ev.Submitted, ev.Admitted]


def test_a_request_sees_what_earlier_ones_of_its_turn_did(shell: Shell) -> None:
    first, second = shell.turn(asks(held=True), st.ReleaseAsked(now(), 1, ALICE))
    assert [type(event) for event in (*first, *second)] == [ev.Submitted, ev.Released]
    assert shell.host.take() == [Launch(1, 1)]


def test_a_payload_is_kept_with_its_job_and_not_with_a_refused_one(shell: Shell) -> None:
    shell.turn((asks(10), PAYLOAD), (asks(), PAYLOAD))
    assert shell.journal.payload(1) == PAYLOAD
    assert shell.journal.payload(2) == Payload()
    shell.host.take()


def test_nobody_hears_of_anything_before_the_commit(make_shell: MakeShell) -> None:
    """Neither asker nor launcher nor watcher; all of the turn shares one commit."""
    heard_early: list[str] = []
    commits = []

    class Watched(Journal):
        def commit(self) -> None:
            heard_early.extend(f"effect {effect}" for effect in shell.host.effects)
            heard_early.extend(f"change of {job.id}" for job in shell.changed)
            heard_early.extend(f"answer {answer}" for answer in answers)
            commits.append(len(list(self.events())))
            super().commit()

    shell = make_shell(journal=Watched)
    answers: list[object] = []
    work = [shell_work(asks(), answers), shell_work(asks(), answers)]
    shell.engine.turn(work)
    assert (heard_early, commits) == ([], [4])
    assert len(answers) == 2
    assert shell.host.take() == [Launch(1, 1), Launch(2, 1)]


def shell_work(stimulus: st.Stimulus, answers: list[object]) -> Work:
    from drfd.daemon.engine.engine import Work

    return Work(stimulus, None, answers.append)


# -- a journal that says no --------------------------------------------------------------------


class FullDisk(Journal):
    """Refuses to commit, or to append the event of a given kind, while `is_full`."""

    is_full = False
    refused_kind: type | None = None

    def commit(self) -> None:
        if self.is_full and self._db.in_transaction:
            raise HostError("journal", "cannot write the journal: disk is full")
        super().commit()

    def append(self, event: ev.Event, job: Job | None, array_state: ArrayState | None) -> None:
        if self.is_full and type(event) is self.refused_kind:
            raise HostError("journal", "cannot write the journal: disk is full")
        super().append(event, job, array_state)


@pytest.fixture(params=[None, ev.Admitted, ev.Submitted], ids=["commit", "admit", "submit"])
def full(make_shell: MakeShell, request: pytest.FixtureRequest) -> Shell:
    """A shell with one launched job, whose disk is then full."""
    shell = make_shell(journal=FullDisk)
    shell.turn(asks())
    shell.host.take()
    shell.changed.clear()
    shell.journal.is_full = True
    shell.journal.refused_kind = request.param
    return shell


def test_a_turn_that_cannot_be_written_has_not_happened(full: Shell) -> None:
    before = tables(full.engine.ledger)
    answers = full.turn((asks(), PAYLOAD), asks(99), asks())
    assert [(type(answer), answer.code) for answer in answers] == [(HostError, "journal")] * 3
    assert (full.host.take(), full.changed) == ([], [])
    assert tables(full.engine.ledger) == before
    assert tables(full.journal.load(full.engine.rules.axes)) == before
    assert full.journal.payload(2) == Payload()


class WithoutMemory(FullDisk):
    """Has none while `is_full`: as SQLite has it, MemoryError. In the commit nobody can tell."""

    def commit(self) -> None:
        if self.is_full and self.refused_kind is None:
            raise MemoryError
        Journal.commit(self)

    def append(self, event: ev.Event, job: Job | None, array_state: ArrayState | None) -> None:
        Journal.append(self, event, job, array_state)
        if self.is_full and type(event) is self.refused_kind:
            raise MemoryError


@pytest.mark.parametrize("kind", [ev.Submitted, ev.Admitted])
def test_a_turn_without_memory_has_not_happened(make_shell: MakeShell, kind: type) -> None:
    shell = make_shell(journal=WithoutMemory)
    shell.turn(asks())
    shell.host.take()
    before = tables(shell.engine.ledger)
    shell.journal.is_full, shell.journal.refused_kind = True, kind
    answers = shell.turn((asks(), PAYLOAD), asks(99))
    assert [(type(answer), answer.code) for answer in answers] == [(HostError, "memory")] * 2
    assert (shell.host.take(), tables(shell.engine.ledger)) == ([], before)
    shell.journal.is_full = False
    ((submitted, *_),) = shell.turn((asks(), PAYLOAD))
    assert submitted.job_id == 2 and shell.host.take() == [Launch(2, 1)]


def test_a_commit_without_memory_is_left_to_a_successor(make_shell: MakeShell) -> None:
    """Whether it is written, only the file says: nobody is told anything."""
    shell = make_shell(journal=WithoutMemory)
    shell.journal.is_full = True
    with pytest.raises(MemoryError):
        shell.turn(asks())
    assert (shell.host.take(), shell.changed) == ([], [])


def test_the_turn_after_a_failed_one_works(full: Shell) -> None:
    full.turn(asks(), asks())
    full.journal.is_full = False
    (events,) = full.turn((asks(), PAYLOAD))
    assert [event.job_id for event in events] == [2]
    assert full.host.take() == [Launch(2, 1)]
    assert full.journal.payload(2) == PAYLOAD
    assert states(full) == {1: "STARTING", 2: "STARTING"}


def test_what_waited_before_a_failed_turn_is_scheduled_after_it(make_shell: MakeShell) -> None:
    shell = make_shell(journal=FullDisk)
    shell.turn(asks(9), asks(9))
    shell.turn(attempt_started(1), ended(1))
    shell.host.take()
    shell.journal.is_full = True
    shell.turn(gone(1))
    assert (shell.host.take(), states(shell)) == ([], {1: "CLEANING", 2: "PENDING"})
    shell.journal.is_full = False
    shell.turn(gone(1))
    assert (shell.host.take(), states(shell)) == ([Launch(2, 1)], {2: "STARTING"})


def test_a_failed_turn_does_not_explain_waits_from_a_pass_that_never_counted(
    make_shell: MakeShell,
) -> None:
    shell = make_shell(journal=FullDisk)
    shell.turn(asks(1))
    shell.host.take()
    shell.journal.is_full = True
    shell.turn(asks(6), asks(2))
    plan = shell.engine.scheduler.last_plan
    assert plan is None or plan.free[0] == 8000
    assert plan is None or plan.admitted == [1]


def test_a_news_that_could_not_be_written_is_not_half_taken(make_shell: MakeShell) -> None:
    """The job still runs in the books, so that the news counts when it is told again."""
    shell = make_shell(journal=FullDisk)
    shell.turn(asks())
    shell.turn(attempt_started(1))
    shell.host.take()
    shell.journal.is_full = True
    shell.turn(ended(1))
    assert (states(shell), shell.host.take()) == ({1: "RUNNING"}, [])
    shell.journal.is_full = False
    shell.turn(ended(1))
    assert (states(shell), shell.host.take()) == ({1: "CLEANING"}, [RemoveAttempt(1, 1)])


def test_what_an_ended_job_has_used_counts_once_however_often_its_end_is_told(
    make_shell: MakeShell,
) -> None:
    shell = make_shell(journal=FullDisk, clock=lambda: now(5))
    shell.turn(asks(), asks())
    shell.turn(attempt_started(1), ended(1, at_s=5.0))
    shell.journal.is_full = True
    shell.turn(gone(1))
    shell.journal.is_full = False
    # Another turn is written before the end is told again.
    shell.turn(attempt_started(2))
    shell.turn(gone(1))
    shell.host.take()
    again = make_shell(clock=lambda: now(5))
    for engine in (shell.engine, again.engine):
        assert engine.scheduler._short_jobs.counted == {"root.alice": (1000, GIB, 0, 0)}
    assert shell.engine.scheduler._history.past_usage == again.engine.scheduler._history.past_usage
    assert shell.engine.scheduler.run_times == again.engine.scheduler.run_times


def test_a_real_lock_on_the_file_fails_the_turn_and_not_the_daemon(shell: Shell) -> None:
    shell.turn(asks())
    shell.host.take()
    shell.journal._db.execute("pragma busy_timeout = 0")
    path = str(shell.journal._db.path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    (answer,) = shell.turn(asks())
    other.close()
    assert (type(answer), states(shell)) == (HostError, {1: "STARTING"})
    (events,) = shell.turn(asks())
    assert [event.job_id for event in events] == [2]
    assert shell.host.take() == [Launch(2, 1)]


def test_outcomes_come_from_what_was_recorded_first(shell: Shell) -> None:
    """A job that was killed for its wall time has not simply died of signal 9."""
    shell.turn(asks())
    shell.turn(attempt_started(1))
    shell.turn(st.Tick(now(3600)))
    shell.turn(st.Tick(now(3610)))
    shell.turn(ended(1, at_s=3611.0, exit_code=None, signal=9))
    shell.turn(gone(1))
    assert shell.journal.job(1).outcome is Outcome.TIMEOUT
    assert shell.host.take() == [Launch(1, 1), Terminate(1, 1), Kill(1, 1), RemoveAttempt(1, 1)]


# -- reservations ------------------------------------------------------------------------------


def crowded(make_shell: MakeShell, depth: int) -> Shell:
    """Alice holds six of nine cores; she and bob have each waited a minute for seven."""
    seconds = [0.0]
    by = replace(
        rules(), patience=ReservationSettings(patience_s=30, drain_after_s=9999, depth=depth)
    )
    shell = make_shell(by=by, clock=lambda: now(seconds[0]))
    shell.turn(asks(6))
    shell.turn(attempt_started(1))
    shell.turn(asks(7, actor=BOB), asks(7))
    seconds[0] = 60.0
    shell.engine.want_pass()
    shell.turn()
    assert shell.host.take() == [Launch(1, 1)]
    return shell


@pytest.mark.parametrize("depth", [1, 2])
def test_reservations_go_from_pass_to_pass_up_to_the_configured_depth(
    make_shell: MakeShell, depth: int
) -> None:
    shell = crowded(make_shell, depth)
    starts = [(each.job_id, each.start_s) for each in shell.engine.scheduler.last_plan.reservations]
    assert starts == [(2, now(3600).at_s), (3, now(7200).at_s)][:depth]
    shell.turn(ended(1), gone(1))
    assert shell.host.take() == [Launch(2, 1)]
    assert [each.job_id for each in shell.engine.scheduler.last_plan.reservations] == [3]


def test_a_job_that_has_a_place_does_not_start_while_launching_is_stopped(
    make_shell: MakeShell,
) -> None:
    shell = crowded(make_shell, 2)
    shell.turn(st.DrainAsked(now(), True, ADMIN))
    shell.turn(ended(1), gone(1))
    assert shell.host.take() == []
    assert [each.job_id for each in shell.engine.scheduler.last_plan.reservations] == [2, 3]
    shell.turn(st.DrainAsked(now(), False, ADMIN))
    assert shell.host.take() == [Launch(2, 1)]


# -- the line-up that is kept ------------------------------------------------------------------


def test_after_every_turn_a_fresh_pass_would_find_nothing_more_to_do(
    make_shell: MakeShell,
) -> None:
    """Through ends, holds, journals that fail and other rules: nothing is forgotten in the line-up
    that the engine keeps, and nothing kept too long."""
    random = Random(1)
    seconds = [0.0]
    by = replace(
        rules(4, 8, weights={"lab": "2"}),
        patience=ReservationSettings(patience_s=20, drain_after_s=300, depth=2),
    )
    shell = make_shell(by=by, journal=FullDisk, clock=lambda: now(seconds[0]))
    shell.journal.refused_kind = ev.Admitted
    admitted = reserved = 0
    for number in range(250):
        seconds[0] += random.choice([0, 1, 5])
        shell.turn(*random_news(random, shell, seconds[0]))
        shell.journal.is_full = False
        engine = shell.engine
        if number % 50 == 49:
            cores = random.choice([3, 4, 6])
            engine.rules = replace(engine.rules, capacity=demand(cores, 8, read=1000, write=1000))
            engine.want_pass()
            shell.turn()
        shell.host.take()
        if engine.scheduler.last_plan is None:
            continue
        admitted += len(engine.scheduler.last_plan.admitted)
        reserved += len(engine.scheduler.last_plan.reservations)
        pass_context = make_pass_context(
            Ends(engine.ledger, engine.scheduler.run_times),
            patience=engine.rules.patience,
            now_s=seconds[0] + now().at_s,
            before=engine.scheduler.last_plan.reservations,
        )
        fresh = schedule(
            engine.ledger,
            engine.rules,
            engine.scheduler._history.past_usage,
            pass_context,
            engine.scheduler._short_jobs.counted,
        )
        assert fresh.admitted == []
        assert (fresh.free, list(fresh.order)) == (
            engine.scheduler.last_plan.free, list(engine.scheduler.last_plan.order),
        )  # fmt: skip
        assert fresh.reservations == engine.scheduler.last_plan.reservations
        shell.journal.is_full = random.random() < 0.05
    assert admitted > 100
    assert reserved > 100


def test_a_job_in_a_pool_that_is_gone_starts_beside_a_reservation_once_it_is_known_to_be_short(
    make_shell: MakeShell,
) -> None:
    """What its user's jobs take is known of jobs in pools that are not configured any more, too."""
    seconds = [0.0]
    by = replace(rules(weights={"old": "1"}), patience=ReservationSettings(patience_s=0))
    shell = make_shell(by=by, clock=lambda: now(seconds[0]))
    shell.turn(asks(7, actor=BOB), asks(1))
    shell.turn(attempt_started(1), attempt_started(2))
    shell.turn(asks(9, actor=BOB))
    seconds[0] = 10.0
    shell.turn(st.SubmitAsked(now(), spec("root.old", time_limit_s=None), False))
    shell.engine.rules = replace(by, pools={})
    shell.engine.want_pass()
    shell.turn()
    assert states(shell) == {1: "RUNNING", 2: "RUNNING", 3: "PENDING", 4: "PENDING"}
    seconds[0] = 20.0
    shell.turn(ended(2, at_s=20.0), gone(2))
    assert states(shell) == {1: "RUNNING", 3: "PENDING", 4: "STARTING"}
    shell.host.take()


def random_news(random: Random, shell: Shell, at_s: float) -> list[st.Stimulus]:
    jobs = sorted(shell.engine.ledger.jobs.values(), key=lambda job: job.id)
    actor = random.choice([ALICE, BOB, ADMIN])
    pool = random.choice([f"root.{actor.user}", "root.lab"])
    asked = spec(
        pool,
        actor=actor,
        asks=demand(random.choice([0.5, 1, 2, 3]), random.choice([1, 2, 5])),
        time_limit_s=random.choice([None, 30, 400]),
        priority=random.choice([0, 0, 1]),
    )
    news: list[st.Stimulus] = [st.SubmitAsked(now(at_s), asked, False)]
    for job in jobs:
        chance = random.random()
        match job.state:
            case JobState.STARTING:
                news.append(attempt_started(job.id, at_s=at_s))
            case JobState.RUNNING if chance < 0.4:
                news += [ended(job.id, at_s=at_s), st.AttemptRemoved(now(at_s), job.id, 1)]
            case JobState.PENDING if chance < 0.05:
                news.append(st.HoldAsked(now(at_s), job.id, ADMIN))
            case JobState.HELD if chance < 0.1:
                news.append(st.ReleaseAsked(now(at_s), job.id, ADMIN))
            case _:
                pass
    return news


# -- very short jobs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("min_hold_s", "at_s", "restarts", "first"),
    [
        (10, 2.0, False, BOB),
        (10, 2.0, True, BOB),
        (10, 11.0, False, ALICE),
        (10, 11.0, True, ALICE),
        (0, 2.0, False, ALICE),
    ],
)
def test_a_job_that_took_a_second_counts_for_ten(
    make_shell: MakeShell, min_hold_s: int, at_s: float, restarts: bool, first: st.Actor
) -> None:
    """Alice has just had four cores for a second; bob holds one. Now both want three, and there is
    room for one of them."""
    seconds = [0.0]
    by = replace(rules(), min_hold_s=min_hold_s)
    shell = make_shell(by=by, clock=lambda: now(seconds[0]))
    shell.turn(asks(4), asks(1, actor=BOB), asks(4, actor=ADMIN))
    shell.turn(*(attempt_started(job_id, at_s=0) for job_id in (1, 2, 3)))
    seconds[0] = 1.0
    shell.turn(ended(1, at_s=1.0), gone(1))
    shell.host.take()
    if restarts:
        shell = make_shell(by=by, clock=lambda: now(seconds[0]))
    seconds[0] = at_s
    shell.turn(asks(3, actor=ALICE), asks(3, actor=BOB))
    started = [shell.engine.ledger.jobs[effect.job_id] for effect in shell.host.take()]
    assert [job.spec.user for job in started] == [first.user]


@pytest.mark.parametrize("ends_first", [False, True])
def test_a_short_job_counts_no_longer_when_the_clock_is_set_back(
    make_shell: MakeShell, ends_first: bool
) -> None:
    clock = [now(0.0)]
    shell = make_shell(clock=lambda: clock[0])
    shell.turn(asks())
    shell.turn(attempt_started(1), ended(1, at_s=1.0))
    if ends_first:
        shell.turn(gone(1))
    clock[0] = st.Now(now(-9999.0).at_s, now(1.0).mono_s)
    shell.turn(gone(1))
    assert shell.engine.scheduler._short_jobs.counted
    clock[0] = st.Now(now(-9980.0).at_s, now(20.0).mono_s)
    shell.engine.want_pass()
    shell.turn()
    assert shell.engine.scheduler._short_jobs.counted == {}
    shell.host.take()


# -- load from outside -------------------------------------------------------------------------


def test_a_load_from_outside_is_heeded_by_the_next_pass_and_forgotten_when_it_does_not_matter(
    make_shell: MakeShell,
) -> None:
    by = replace(rules(9, 18), beside=demand(1, 0))
    shell = make_shell(by=by)
    seen = [shell.engine.see_external(demand(4, 0)) for _ in range(5)]
    assert seen == [False] * 4 + [True]
    shell.turn(st.SubmitAsked(now(), spec(asks=demand(7))))
    assert shell.host.take() == []
    assert shell.engine.scheduler.last_plan is not None
    assert shell.engine.scheduler.last_plan.free[0] == 6000
    assert ahead(shell).external == shell.engine.external
    shell.engine.rules = replace(by, beside=None)
    assert shell.engine.see_external(demand(4, 0))
    shell.turn(st.Tick(now()))
    assert [effect.job_id for effect in shell.host.take()] == [1]


def test_memory_that_a_job_has_left_is_not_given_out_before_it_is_measured(
    make_shell: MakeShell,
) -> None:
    shell = make_shell(by=replace(rules(9, 18), beside=demand(0, 1)))
    shell.engine.note_left(demand(0, 5).memory_bytes)
    shell.turn(st.SubmitAsked(now(), spec(asks=demand(1, 15))))
    assert shell.host.take() == []
    shell.turn(st.SubmitAsked(now(), spec(asks=demand(1, 14))))
    assert started(shell) == [2]


def test_a_daemon_that_is_started_again_keeps_free_what_was_in_use(
    make_shell: MakeShell,
) -> None:
    """Its own samples take ten seconds, in which it gave out all of the capacity."""
    by = replace(rules(9, 18), beside=demand(0, 1))
    shell = make_shell(by=by)
    shell.engine.note_left(demand(0, 5).memory_bytes)
    shell.turn(st.Tick(now()))
    after = make_shell(by=by)
    after.engine.started(0.0)
    assert after.engine.external is not None
    assert after.engine.external.kept == demand(0, 4)
    after.turn(st.SubmitAsked(now(), spec(asks=demand(1, 15))))
    assert after.host.take() == []
    # What is measured then counts alone.
    assert [after.engine.see_external(demand(0, 0)) for _ in range(5)][-1]
    after.turn(st.Tick(now()))
    assert started(after) == [1]


def test_what_others_jobs_have_on_other_nodes_is_recorded_and_known_after_a_restart(
    make_shell: MakeShell,
) -> None:
    """Their launcher tells of it some moments later."""
    nodes = tuple(Node(name=name, capacity=demand(4, 8)) for name in ("head", "n1"))
    by = Rules(axes=Axes(nodes=nodes), capacity=demand(8, 16))
    shell = make_shell(by=by)
    shell.engine.started(0.0)
    others = (("n1", demand(3, 1)),)
    assert shell.engine.see_elsewhere(dict(others))
    assert not shell.engine.see_elsewhere(dict(others))
    shell.turn(st.SubmitAsked(now(), spec(asks=replace(demand(2), node="n1"))))
    assert shell.host.take() == []
    after = make_shell(by=by)
    after.engine.started(0.0)
    after.turn(st.Tick(now()))
    assert after.host.take() == []
    assert after.engine.external is not None
    assert after.engine.external.elsewhere == others
    assert after.engine.see_elsewhere({})
    after.turn(st.Tick(now()))
    assert started(after) == [1]
    events = [event for _, event in after.journal.audit.events()]
    loads = [event for event in events if isinstance(event, ev.ExternalLoadChanged)]
    assert [(each.kept, each.elsewhere) for each in loads] == [(NOTHING, others), (NOTHING, ())]


def test_where_nothing_is_kept_free_a_restart_and_what_jobs_leave_change_nothing(
    make_shell: MakeShell,
) -> None:
    shell = make_shell(by=replace(rules(9, 18), beside=demand(0, 1)))
    shell.engine.note_left(demand(0, 5).memory_bytes)
    shell.turn(st.Tick(now()))
    after = make_shell(by=replace(rules(9, 18), beside=None))
    after.engine.started(0.0)
    after.engine.note_left(demand(0, 5).memory_bytes)
    assert after.engine.external is None


# -- several disks -----------------------------------------------------------------------------


def with_disks(**rates: int) -> Rules:
    """As many bytes per second are read and written on each."""
    disks = tuple((name, rate, rate) for name, rate in rates.items())
    capacity = replace(demand(9, 18), disks=disks)
    return replace(rules(), axes=Axes(disks=tuple(rates)), capacity=capacity)


def on_disk(name: str, rate: int) -> st.SubmitAsked:
    asks = replace(demand(1), disks=((name, rate, rate),))
    return st.SubmitAsked(now(), spec(asks=asks))


def started(shell: Shell) -> list[int]:
    return [effect.job_id for effect in shell.host.take()]


def test_each_disk_is_given_out_by_itself(make_shell: MakeShell) -> None:
    shell = make_shell(by=with_disks(data=100, scratch=50))
    shell.turn(on_disk("data", 80), on_disk("data", 30), on_disk("scratch", 40))
    assert started(shell) == [1, 3]
    (refusal,) = shell.turn(on_disk("scratch", 60))
    assert isinstance(refusal, Refused)
    assert "asks for 60/s of disk reads on scratch, and this machine has 50/s" in refusal.text


def test_jobs_that_name_a_disk_that_is_gone_wait_and_all_others_go_on(
    make_shell: MakeShell,
) -> None:
    shell = make_shell(by=with_disks(data=100, scratch=50))
    shell.turn(on_disk("scratch", 40), on_disk("scratch", 30), on_disk("data", 10))
    assert started(shell) == [1, 3]
    one = replace(rules(), axes=Axes(disks=("data",)), capacity=demand(9, 18, 100, 100))
    shell.engine.adopt(one)
    assert shell.engine.rules.axes.lost == ("scratch",)
    shell.turn(on_disk("data", 20))
    assert started(shell) == [4], "what is held goes on, what is left is given out"
    ledger = shell.engine.ledger
    assert ledger.allocated[2:] == (30, 30, 40, 40)
    reason = explain_wait(
        ledger.jobs[2],
        ledger,
        shell.engine.scheduler.last_plan,
        shell.engine.rules,
    )
    gone_disk = BeyondMachine("2", "read:scratch", 30, 0, is_dispensable=True)
    assert reason == WaitReason(ReasonCode.RESOURCES, gone_disk)
    after = make_shell(by=one)
    assert after.engine.rules.axes.lost == ("scratch",), "after a restart too"
    assert tables(after.engine.ledger) == tables(ledger)
    shell.engine.adopt(with_disks(data=100, scratch=50))
    shell.turn(attempt_started(1), ended(1), st.AttemptRemoved(now(), 1, 1))
    assert 2 in started(shell), "it starts when the disk is there again"


def test_a_waiting_job_is_freed_from_a_disk_that_is_gone_and_gets_no_new_rate_on_it(
    make_shell: MakeShell,
) -> None:
    shell = make_shell(by=with_disks(data=100, scratch=50))
    shell.turn(on_disk("data", 80), on_disk("scratch", 40), on_disk("scratch", 30))
    assert started(shell) == [1, 2]
    shell.engine.adopt(
        replace(rules(), axes=Axes(disks=("data",)), capacity=demand(9, 18, 100, 100))
    )

    def change(**wish: object) -> object:
        asked = st.Change(**wish)  # type: ignore[arg-type]
        (reply,) = shell.turn(st.ChangeAsked(now(), 3, ALICE, asked))
        return reply

    for wish in ({"disks": (("scratch", 1, 1),)}, {"cores_milli": 2000}):
        refusal = change(**wish)
        assert isinstance(refusal, Refused)
        assert "no disk 'scratch'" in refusal.text
    assert not isinstance(change(disks=(("scratch", 0, 0),), read_bps=15), Refused)
    asks = shell.engine.ledger.jobs[3].spec.demand
    assert (asks.read_bps, asks.disks) == (15, ())
    assert started(shell) == [3]


def test_a_disk_more_is_taken_up_while_jobs_run(make_shell: MakeShell) -> None:
    """What was declared when there was one disk is held on each: that is where it is limited."""
    shell = make_shell(by=rules())
    shell.turn(st.SubmitAsked(now(), spec(asks=demand(1, 1, 60, 60))))
    assert started(shell) == [1]
    shell.engine.adopt(with_disks(data=100, scratch=50))
    shell.turn(on_disk("data", 30), on_disk("data", 30))
    assert started(shell) == [2]
    assert shell.engine.ledger.allocated[2:] == (90, 90, 60, 60)


def test_a_grace_time_begins_when_somebody_can_send_the_signal(shell: Shell) -> None:
    """It ran while the launcher was away, so that the job was killed without a SIGTERM."""
    shell.turn(asks(), attempt_started(1))
    shell.host.take()
    shell.host.ready = False
    shell.turn(st.CancelAsked(now(1), 1, ALICE))
    assert shell.turn(st.Tick(now(100))) == [[]]
    shell.host.ready = True
    shell.engine.clock = lambda: now(100)
    shell.engine.perform_all_owed()
    assert shell.host.take() == [Terminate(1, 1)]
    assert shell.turn(st.Tick(now(109))) == [[]]
    assert shell.turn(st.Tick(now(110))) == [[ev.Escalated(job_id=1, at_s=now(110).at_s)]]
    assert shell.host.take() == [Kill(1, 1)]


def with_dependents(shell: Shell, count: int) -> tuple[int, list[int]]:
    """A job that has all but ended, and so many that wait for its end."""
    answers: list[Any] = []
    after = (Dependency(1),)
    shell.engine.turn([Work(asks(9))])
    waiting = st.SubmitAsked(now(), spec(asks=demand(1, 2), after=after))
    shell.engine.turn([Work(waiting, answer=answers.append) for _ in range(count)])
    shell.engine.turn([Work(attempt_started(1)), Work(ended(1))])
    assert shell.host.take() == [Launch(1, 1), RemoveAttempt(1, 1)]
    return 1, [events[0].job_id for events in answers]


def untold(shell: Shell, ids: list[int]) -> list[int]:
    return [each for each in ids if shell.engine.ledger.jobs[each].awaits]


def test_one_end_is_news_for_a_crowd_and_others_have_their_turns_meanwhile(shell: Shell) -> None:
    """Ten thousand jobs that waited for one were told of its end in one turn of more than a second,
    in which nobody else was answered."""
    job_id, ids = with_dependents(shell, 300)
    shell.engine.turn([Work(gone(job_id))])
    assert 0 < len(ids) - len(untold(shell, ids)) <= 64
    assert shell.host.take() == [Launch(each, 1) for each in ids[:9]], "and the first of them start"
    answers: list[Any] = []
    turns = 1
    while shell.engine.wants_turn:
        before = len(untold(shell, ids))
        work = Work(asks(actor=BOB, held=True), answer=answers.append)
        shell.engine.turn([work])
        assert len(answers) == turns
        assert before - len(untold(shell, ids)) <= 64
        turns += 1
    assert untold(shell, ids) == []
    assert 5 <= turns <= 7
    assert shell.engine.again_mono_s is None


def test_work_that_comes_due_before_the_timer_is_set_still_has_a_turn(
    make_shell: MakeShell,
) -> None:
    """A daemon that stood still between a turn and the next timer took the rest of the dependents
    for told, and a begin time that had come in between for served: both waited for another event,
    perhaps for ever."""
    times = itertools.count()
    shell = make_shell(clock=lambda: now(next(times)))
    job_id, ids = with_dependents(shell, 300)
    shell.engine.turn([Work(gone(job_id))])
    shell.host.take()
    shell.engine.clock = lambda: now(5000)
    shell.engine._leftovers_due_mono_s = now(5001).mono_s
    assert not shell.engine.wants_turn
    assert shell.engine.due_s() == 1
    shell.engine.clock = lambda: now(5002)
    assert untold(shell, ids)
    assert shell.engine.due_s() == pytest.approx(0.001)
    while shell.engine.wants_turn:
        shell.engine.turn([])
    assert untold(shell, ids) == []
    shell.engine.turn([Work(replace(asks(), spec=spec(begin_s=int(now(6000).at_s))))])
    assert shell.engine.due_s() == pytest.approx(60)
    shell.engine.clock = lambda: now(6000)
    assert shell.engine.due_s() == pytest.approx(0.001)


@pytest.mark.parametrize("deaths", [1, 3, 100])
def test_a_daemon_that_dies_before_all_are_told_is_followed_by_one_that_tells_the_others(
    make_shell: MakeShell, deaths: int
) -> None:
    shell = make_shell()
    job_id, ids = with_dependents(shell, 300)
    shell.engine.notified_at_once = 20
    shell.engine.turn([Work(st.DrainAsked(now(), True, ADMIN)), Work(gone(job_id))])
    while untold(shell, ids):
        if deaths:
            deaths -= 1
            shell = make_shell()
            shell.engine.notified_at_once = 20
        left = len(untold(shell, ids))
        assert shell.engine.wants_turn
        shell.engine.turn([])
        assert left > len(untold(shell, ids)) >= left - 20
    assert not shell.engine.wants_turn
    kept = Ledger.of_events(Axes(), shell.journal.events())
    assert tables(kept) == tables(shell.journal.load(Axes()))
    # As if it had been said at once: each was told once, at the time of the end.
    told = [each for each in shell.journal.events() if isinstance(each, ev.DependencySettled)]
    assert sorted(event.job_id for event in told) == ids
    assert {(event.on, event.at_s, event.is_met) for event in told} == {(1, now().at_s, True)}
    assert {shell.engine.ledger.jobs[each].eligible_at for each in ids} == {now().at_s}


def test_after_a_restart_jobs_are_told_of_tasks_and_arrays_that_ended_in_any_way(
    make_shell: MakeShell,
) -> None:
    shell = make_shell()
    shell.engine.turn([Work(st.DrainAsked(now(), True, ADMIN))])
    spans = ((0, 3, 1),)
    shell.engine.turn([Work(replace(asks(held=True), spans=spans)) for _ in range(2)])
    # One task has a record of its own, and ends otherwise than the others.
    shell.engine.turn([Work(st.ReleaseAsked(now(), 2, ALICE))])
    wants = [Dependency(each, RequiredOutcome.ANY) for each in (1, 2, 3, 6, 8)]
    waiting = [replace(asks(), spec=spec(after=(each,))) for each in wants]
    waiting.append(replace(asks(), spec=spec(after=tuple(wants))))
    shell.engine.turn(list(map(Work, waiting)))
    ids = list(range(11, 17))
    shell.engine.notified_at_once = 0
    for array_id in (1, 6):
        shell.engine.turn([Work(st.CancelAsked(now(7), array_id, ALICE))])
    assert len(untold(shell, ids)) == 6
    before = shell.engine.ledger.dependents.ended
    shell = make_shell()
    after = shell.engine.ledger.dependents.ended
    assert {on: end[:3] for on, end in before.items()} == {on: end[:3] for on, end in after.items()}
    shell.engine.turn([])
    assert untold(shell, ids) == []
    assert {shell.engine.ledger.jobs[each].eligible_at for each in ids} == {now(7).at_s}


def test_when_the_machine_has_other_resources_jobs_are_still_told_of_ends(
    make_shell: MakeShell,
) -> None:
    """Of the ends after such a reload none was told: whoever waited for another job waited for
    ever, and the daemon tried to tell it without a pause."""
    shell = make_shell(by=with_disks(data=100))
    for job_id, waits in ((1, 2), (3, 4)):
        shell.turn(asks(1), replace(asks(), spec=spec(asks=demand(1), after=(Dependency(job_id),))))
        assert started(shell)[-1] == job_id
        shell.turn(attempt_started(job_id), ended(job_id))
        shell.turn(gone(job_id))
        assert untold(shell, [waits]) == []
        assert not shell.engine.wants_turn
        shell.host.take()
        shell.engine.adopt(with_disks(data=100, scratch=50))


def test_a_job_whose_end_nobody_knows_any_more_ended_as_a_lost_one(make_shell: MakeShell) -> None:
    """Its record was removed from the history before all were told: they do not wait for ever."""
    shell = make_shell()
    job_id, ids = with_dependents(shell, 2)
    shell.engine.notified_at_once = 0
    shell.engine.turn([Work(gone(job_id))])
    shell.journal.close()
    with sqlite3.connect(shell.journal.path) as database:
        database.execute("delete from events where job_id = 1")
        database.execute("delete from jobs where id = 1")
    shell = make_shell()
    shell.engine.turn([])
    assert [shell.engine.ledger.jobs[each].broken for each in ids] == [Broken(1, Outcome.LOST)] * 2


def test_what_could_not_be_written_is_told_after_a_pause(make_shell: MakeShell) -> None:
    """And not again and again, as fast as the processor can."""
    full = make_shell(journal=FullDisk)
    job_id, ids = with_dependents(full, 2)
    full.journal.is_full = True
    full.engine.turn([Work(gone(job_id))])
    assert len(untold(full, ids)) == 2
    assert not full.engine.wants_turn
    full.journal.is_full = False
    full.engine.notified_at_once = 0
    full.engine._leftovers_due_mono_s = 0.0
    full.engine.turn([Work(gone(job_id))])
    full.journal.is_full = True
    full.engine.notified_at_once = 64
    assert full.engine.wants_turn
    full.engine.turn([])
    assert not full.engine.wants_turn
    assert full.engine.again_mono_s == now(0.5).mono_s
    full.host.take()


def test_a_crowd_whose_time_has_come_is_let_go_in_parts_without_a_pause(
    make_shell: MakeShell,
) -> None:
    """Of a thousand at a time, each part was a turn of its own length, and half a second passed
    before the next."""
    times = [0.0]
    shell = make_shell(clock=lambda: now(times[0]))
    asked = replace(asks(), spec=spec(begin_s=int(now().at_s) + 5))
    shell.engine.turn([Work(st.DrainAsked(now(), True, ADMIN)), *[Work(asked)] * 150])
    assert not shell.engine.wants_turn
    times[0] = 5.0
    turns = 0
    while shell.engine.wants_turn:
        before = len(shell.engine.ledger.begins)
        shell.engine.turn([Work(st.Tick(now(5)))])
        assert before - len(shell.engine.ledger.begins) <= 64
        turns += 1
    assert not shell.engine.ledger.begins
    assert turns == 3
