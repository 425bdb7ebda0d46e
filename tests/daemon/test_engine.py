"""A turn: what is decided is durable before anyone hears of it, and lost work is told."""

import asyncio
import itertools
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from daemon.desk import FullDisk, MakeShell, Shell, look_ahead
from drfd.common.errors import DrfdError, HostError
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.stimuli import Actor, Now, Tick
from drfd.core.fairness.rules import Pool, Preempting, ReservationSettings, Rules
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.calendar import Calendar, LimitSpan, LimitSteps
from drfd.core.model.effects import Freeze, Launch, RemoveAttempt, Terminate
from drfd.core.model.job import Dependency, JobSpec, Outcome
from drfd.core.model.options import Demand
from drfd.core.model.resources import Axes, ClusterNode
from drfd.core.scheduling.debts import Debt
from drfd.daemon.engine.engine import Inbox, Work
from drfd.journal.journal import Journal
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    all_events,
    at,
    demand,
    ended,
    launched,
    now,
    payload,
    replace,
    rules,
    schedule,
    spec,
    tables,
)

# -- what shares a turn, and what waits for it -------------------------------------------------


TICK, UP = Work(Tick(now())), Work(launched(1))
#: Of which a turn leaves something undone.
CUT = Work(Tick(now(1)))


@pytest.fixture
def turns() -> list[list[Work]]:
    """The turns that the inbox has begun."""
    return []


@pytest.fixture
def inbox(turns) -> Inbox:
    def turn(works: list[Work]) -> Work | None:
        turns.append(works)
        return TICK if CUT in works else None

    return Inbox(turn)


async def test_the_rest_of_a_turn_waits_not_alone(inbox, turns):
    inbox.add(CUT)
    asyncio.get_running_loop().call_soon(inbox.add, UP)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert turns == [[CUT], [TICK, UP]]


PAYLOAD = payload({"A": "1"})


def asks(cores: float = 1, *, actor: st.Actor = ALICE, held: bool = False) -> st.SubmitAsked:
    return st.SubmitAsked(now(), spec(f"root.{actor.user}", actor=actor, asks=demand(cores)), held)


def gone(job_id: int, attempt: int = 1) -> st.RemovedReport:
    return st.RemovedReport(now().at_s, job_id, attempt)


def states(shell: Shell) -> dict[int, str]:
    return {job.id: job.state.value for job in shell.engine.ledger.jobs.values()}


@pytest.mark.parametrize("spans", [(), ((0, 9, 1),)], ids=["job", "array"])
def test_a_submission_that_comes_twice_in_one_turn_is_one(shell, spans):
    """Its client has lost the connection, and asks again before the first is answered."""
    answers: list[Any] = []
    asked, signed = replace(asks(held=True), spans=spans), PAYLOAD._replace(key="k")
    shell.engine.turn([Work(asked, signed, answers.append) for _ in range(2)])
    assert answers[0] == answers[1]
    kind = ev.ArraySubmitted if spans else ev.Submitted
    assert [type(event) for event in answers[0]] == [kind]
    next_id = shell.engine.ledger.next_id
    shell.engine.turn([Work(asks(actor=BOB), signed, answers.append)])
    assert answers[-1][0].job_id == next_id, "another user's key is another key"
    assert shell.host.take() == [Launch(next_id, 1)]


async def test_a_time_limit_that_passes_in_a_turn_is_due_at_once_however_many_turns_follow(
    make_shell,
):
    """One user's request each fifth of a second put off everybody's time limits and kills."""
    times = [now()]
    shell = make_shell(clock=lambda: times[0])
    shell.turn(st.SubmitAsked(now(), spec(time_limit_s=60)))
    shell.turn(launched(1))
    shell.host.take()
    times[0] = now(61)
    for _ in range(200):
        shell.submit(Work(launched(1)))
        await asyncio.sleep(0.005)
        if effects := shell.host.take():
            break
    assert effects == [Terminate(1, 1)]


# -- effects -----------------------------------------------------------------------------------


#: Nothing of the pool lab starts between these seconds.
SHUT_S = (3600, 7230)


def by_hour(own: dict[str, int] | None = None) -> Calendar:
    times = tuple(now(at_s).at_s for at_s in (-9999, *SHUT_S))
    plain = own or {}
    return Calendar({"root.lab": LimitSteps(times, (plain, {"cores": 0}, plain))})


def of_lab(cores: float = 1) -> st.SubmitAsked:
    return st.SubmitAsked(now(), spec("root.lab", asks=demand(cores), time_limit_s=86400))


def test_limits_by_hour_are_adopted_at_their_hour_and_what_runs_runs_on(make_shell, caplog):
    """By a timer alone, and the clock is looked at each minute: it may be set."""
    caplog.set_level("INFO", logger="drfd")
    times = [now()]
    by = replace(rules(), pools={"lab": Pool(limit={"cores": 4000})})
    shell = make_shell(by=by, clock=lambda: times[0])
    shell.engine.adopt_calendar(by_hour({"cores": 4000}))
    shell.turn(of_lab(3))
    assert shell.host.take() == [Launch(1, 1)]
    shell.turn(launched(1))
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


def test_what_waits_for_the_end_of_a_window_starts_then_by_a_timer_alone(make_shell):
    times = [now()]
    shell = make_shell(clock=lambda: times[0])
    window = LimitSpan(start_s=now(-60).at_s, end_s=now(30).at_s, name="upgrade")
    shell.engine.adopt_calendar(Calendar(windows=(window,)))
    shell.turn(st.SubmitAsked(now(), spec()))
    assert (shell.host.take(), shell.engine.due_s()) == ([], 30.0)
    times[0] = now(30)
    shell.turn()
    assert shell.host.take() == [Launch(1, 1)]


def test_what_was_reserved_for_a_job_is_forgotten_when_it_is_given_another_demand(make_shell):
    """Beside the 5 of 9 cores that it asks for now there is room for a long job of 4."""
    by = replace(rules(), reserving=ReservationSettings(delay_s=0))
    shell = make_shell(by=by)
    shell.turn(st.SubmitAsked(now(), spec(asks=demand(5), time_limit_s=1000)))
    shell.turn(launched(1))
    shell.turn(st.SubmitAsked(now(), spec(asks=demand(9))))
    assert [each.demand[0] for each in shell.engine.scheduler.reservations] == [9000]
    shell.turn(st.ChangeAsked(now(), 2, ALICE, st.Change(demand=Demand(cores_milli=5000))))
    assert [each.demand[0] for each in shell.engine.scheduler.reservations] == [5000]
    shell.host.take()
    shell.turn(st.SubmitAsked(now(), spec("root.bob", actor=BOB, asks=demand(4))))
    assert shell.host.take() == [Launch(3, 1)]


def test_pools_that_jobs_are_in_and_that_are_gone_are_known(make_shell):
    by = replace(rules(), pools={"lab": Pool(), "lab.night": Pool()})
    shell = make_shell(by=by)
    shell.turn(of_lab(), st.SubmitAsked(now(), spec()))
    assert shell.engine.lost_pools() == []
    shell.engine.adopt(rules())
    assert shell.engine.lost_pools() == ["root.lab"]
    shell.host.take()


def test_nodes_that_jobs_name_and_that_are_gone_are_known(make_shell):
    several = tuple(ClusterNode(name=name, capacity=demand(4, 8)) for name in ("atlas", "n1", "n2"))
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


def test_a_pass_with_very_many_starts_is_cut_and_goes_on_in_the_next_turn(shell):
    """In the order of one that is not; what comes between has its turn."""
    shell.engine.scheduler.max_starts = 4
    shell.turn(st.DrainAsked(now(), True, ADMIN))
    few = [spec(asks=demand(0.5 + at / 1000)) for at in range(10)]
    few += [spec("root.bob", actor=BOB, asks=demand(0.75 + at / 1000)) for at in range(10)]
    shell.turn(*[st.SubmitAsked(now(), each) for each in few])
    shell.turn(st.DrainAsked(now(), False, ADMIN))
    begun = [effect.job_id for effect in shell.host.take()]
    assert len(begun) == 4
    while shell.engine.wants_turn:
        shell.turn(st.Tick(now()))
        begun += [effect.job_id for effect in shell.host.take()]
    again = Ledger.of_events(shell.engine.rules.axes, all_events(shell.journal)[:21])
    assert begun == schedule(again, shell.engine.rules).admitted
    assert len(begun) > 10


# -- preemption --------------------------------------------------------------------------------


def preemptible(cores: float = 1) -> st.SubmitAsked:
    return st.SubmitAsked(now(), spec(asks=demand(cores), preemptible=True))


def test_a_victim_that_never_freezes_keeps_others_waiting_a_minute(make_shell):
    """Somebody else makes room then, and the place that was kept for bob is open meanwhile."""
    at_s = [0.0]
    how = Preempting(suspends=True, after_s=0, exempt_s=0)
    by = replace(rules(3, 18), preempting=how)
    shell = make_shell(by=by, clock=lambda: now(at_s[0]))
    shell.turn(*[preemptible() for _ in range(3)])
    shell.turn(*[launched(job_id, at_s=job_id - 3) for job_id in (1, 2, 3)])
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
    shell.turn(st.FrozenReport(now(72).at_s, 2, 1, mono_s=now(72).mono_s))
    assert shell.host.take() == [Freeze(2, 1), Launch(4, 1)]


# -- a journal that says no --------------------------------------------------------------------


def promised(make_shell: MakeShell, clock: Any, **how: Any) -> Shell:
    """A daemon on whose 9 cores alice's job has 6 for ten minutes; bob waits for all 9, which are
    reserved for him, and for 1 core for a day."""
    by = replace(rules(9, 90), reserving=ReservationSettings(delay_s=0))
    shell = make_shell(by=by, clock=clock, **how)
    if not shell.engine.ledger.jobs:
        for cores, actor, limit_s in ((6, ALICE, 600), (9, BOB, 600), (1, BOB, 86400)):
            asked = spec(
                f"root.{actor.user}", actor=actor, asks=demand(cores), time_limit_s=limit_s
            )
            shell.turn(st.SubmitAsked(clock(), asked, False))
            if cores == 6:
                shell.turn(launched(1))
    return shell


@pytest.fixture(params=[None, ev.Admitted, ev.Submitted], ids=["commit", "admit", "submit"])
def full(make_shell, request):
    """A shell with one launched job, whose disk is then full."""
    shell = make_shell(journal=FullDisk)
    shell.turn(asks())
    shell.host.take()
    shell.changed.clear()
    shell.journal.is_full = True
    shell.journal.refused_kind = request.param
    return shell


class WithoutMemory(FullDisk):
    """Has none while `is_full`: as SQLite has it, MemoryError. In the commit nobody can tell."""

    def commit(self) -> None:
        if self.is_full and self.refused_kind is None:
            raise MemoryError
        Journal.commit(self)

    def append(self, event: ev.Event, *more: Any) -> None:
        Journal.append(self, event, *more)
        if self.is_full and type(event) is self.refused_kind:
            raise MemoryError


@pytest.mark.parametrize("kind", [ev.Submitted, ev.Admitted])
def test_a_turn_without_memory_has_not_happened(make_shell, kind):
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


def test_a_real_lock_on_the_file_fails_the_turn_and_not_the_daemon(shell):
    shell.journal._db.execute("pragma busy_timeout = 0")
    with closing(sqlite3.connect(shell.journal.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        (answer,) = shell.turn(asks())
    assert (type(answer), states(shell), shell.host.take()) == (HostError, {}, [])
    (events,) = shell.turn(asks())
    assert [event.job_id for event in events] == [1]
    assert shell.host.take() == [Launch(1, 1)]


# -- load from outside -------------------------------------------------------------------------


def test_a_load_from_outside_is_heeded_by_the_next_pass_and_forgotten_when_it_does_not_matter(
    make_shell,
):
    by = replace(rules(9, 18), beside=demand(1, 0))
    shell = make_shell(by=by)
    seen = [shell.engine.see_external(demand(4, 0)) for _ in range(5)]
    assert seen == [False] * 4 + [True]
    shell.turn(st.SubmitAsked(now(), spec(asks=demand(7))))
    assert shell.host.take() == []
    assert shell.engine.scheduler.last_plan is not None
    assert shell.engine.scheduler.last_plan.free.sums[0] == 6000
    assert look_ahead(shell.engine).external == shell.engine.external
    assert [shell.engine.see_external(demand(6, 0)) for _ in range(5)][-1], "more of it"
    shell.engine.rules = replace(by, beside=None)
    assert shell.engine.see_external(demand(4, 0))
    shell.turn(st.Tick(now()))
    assert [effect.job_id for effect in shell.host.take()] == [1]


def test_a_daemon_that_is_started_again_keeps_free_what_was_in_use(make_shell):
    """Its own samples take ten seconds, in which it gave out all of the capacity."""
    by = replace(rules(9, 18), beside=demand(0, 1))
    shell = make_shell(by=by)
    shell.engine.note_left(demand(0, 5).memory_bytes)
    shell.turn(st.Tick(now()))
    after = make_shell(by=by)
    assert after.engine.external is not None
    assert after.engine.external.kept == demand(0, 4)
    after.turn(st.SubmitAsked(now(), spec(asks=demand(1, 15))))
    assert after.host.take() == []
    # What is measured then counts alone.
    assert [after.engine.see_external(demand(0, 0)) for _ in range(5)][-1]
    after.turn(st.Tick(now()))
    assert started(after) == [1]


@pytest.mark.slow
def test_a_load_is_stored_when_it_begins_changes_notably_and_ends(make_shell):
    clock = [now()]
    shell = make_shell(by=replace(rules(9, 100), beside=demand(0, 1)), clock=lambda: clock[0])
    load = shell.engine.scheduler.external_load

    def stored_gib(kept_gib: int, at_s: float) -> int:
        clock[0] = now(at_s)
        load.kept = demand(0, kept_gib)
        shell.turn()
        return (shell.journal.fact("external_load", int) or 0) >> 30

    assert stored_gib(1, 100) == 1, "less than a twentieth of the capacity, but it begins"
    assert stored_gib(5, 200) == 1, "less than a twentieth more"
    assert stored_gib(6, 300) == 6
    assert stored_gib(90, 310) == 6, "half a minute lies between two records"
    assert stored_gib(90, 330) == 90, "and then what holds is stored"
    assert stored_gib(0, 400) == 0


# -- what ended, and who waits for it ----------------------------------------------------------


def started(shell: Shell) -> list[int]:
    return [effect.job_id for effect in shell.host.take()]


def with_dependents(shell: Shell, count: int) -> tuple[int, list[int]]:
    """A job that has all but ended, and so many that wait for its end."""
    answers: list[Any] = []
    after = (Dependency(1),)
    shell.engine.turn([Work(asks(9))])
    waiting = st.SubmitAsked(now(), spec(asks=demand(1, 2), after=after))
    shell.engine.turn([Work(waiting, answer=answers.append) for _ in range(count)])
    shell.engine.turn([Work(launched(1)), Work(ended(1))])
    assert shell.host.take() == [Launch(1, 1), RemoveAttempt(1, 1)]
    return 1, [events[0].job_id for events in answers]


def untold(shell: Shell, ids: list[int]) -> list[int]:
    return [each for each in ids if shell.engine.ledger.jobs[each].awaits]


def test_work_that_is_due_before_the_timer_is_set_still_has_a_turn(make_shell):
    """A daemon that stood still between a turn and the next timer took the rest of the dependents
    for told, and a begin time that had come in between for served: both waited for another event,
    perhaps for ever."""
    times = itertools.count()
    shell = make_shell(clock=lambda: now(next(times)))
    job_id, ids = with_dependents(shell, 300)
    shell.engine.turn([Work(gone(job_id))])
    shell.host.take()
    shell.engine.clock = lambda: now(5000)
    shell.engine.leftovers_due_mono_s = now(5001).mono_s
    shell.engine.turn([])
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


# -- suspensions and debts over time -----------------------------------------------------------


HOUR = 3600.0
#: A Friday, and the Monday after it.
FRIDAY, MONDAY = "2026-10-23 12:00", "2026-10-26 00:00"


class Clock:
    """`set_by_s`: how far somebody has set it."""

    def __init__(self) -> None:
        self.at_s, self.set_by_s = at(FRIDAY), 0.0

    def __call__(self) -> Now:
        return Now(self.at_s + self.set_by_s, self.at_s - at(FRIDAY) + 1000)


@pytest.fixture
def clock(in_berlin) -> Clock:
    return Clock()


def of_pool(
    clock: Clock, cores: float = 9, actor: Actor = ALICE, pool: str = "lab"
) -> st.SubmitAsked:
    asked = spec(f"root.{pool}", actor=actor, asks=demand(cores), time_limit_s=None)
    return st.SubmitAsked(clock(), asked)


def runs(shell: Shell, clock: Clock, job_id: int, length_s: float) -> None:
    """The job, which has been sent to the launcher, runs and ends."""
    shell.turn(begins(clock, job_id))
    clock.at_s += length_s
    shell.turn(ends(clock, job_id), st.RemovedReport(clock().at_s, job_id, 1))


def begins(clock: Clock, job_id: int, attempt: int = 1) -> st.LaunchedReport:
    usual = launched(job_id, attempt)
    return replace(usual, at_s=clock().at_s, mono_s=clock().mono_s)


def ends(clock: Clock, job_id: int, attempt: int = 1) -> st.ExitedReport:
    return replace(ended(job_id, attempt), at_s=clock().at_s, mono_s=clock().mono_s)


async def test_shares_show_what_reservations_have_kept_idle(make_desk, clock):
    reserving = ReservationSettings(allowance_s=3600)
    desk = make_desk(by=replace(rules(9, 90), reserving=reserving), clock=clock)
    shell = desk.shell
    shell.turn((of_pool(clock, 4.5), payload()))
    scheduler = shell.engine.scheduler
    assert scheduler.last_plan is not None
    owed = Debt(owed=HOUR * 10**12, at_ms=round(clock.at_s * 1000), idle=0, entitled=10**9)
    scheduler.last_plan = replace(scheduler.last_plan, debts={"root.lab.alice": owed})
    for owed_hours in (1, 0.75):
        nodes = {each["path"]: each for each in (await desk.ask(ALICE, op="shares"))["nodes"]}
        assert nodes["root.lab.alice"]["debt"] == {"owed_hours": owed_hours, "allowed_hours": 1}
        # It is repaid also while no pass is made, and is a part of whatever the machine has.
        clock.at_s += HOUR / 4
        shell.engine.adopt(replace(rules(18, 180), reserving=reserving))
    shell.host.take()


def run_of(shell: Shell, clock: list[Now], job_id: int, actor: Actor = ALICE) -> None:
    """A job is submitted now and has run for the 50 s before 100 · `job_id`."""
    shell.turn(asks(actor=actor))
    clock[0] = now(100.0 * job_id)
    end = replace(ended(job_id), at_s=clock[0].at_s)
    shell.turn(replace(launched(job_id), at_s=clock[0].at_s - 50), end, gone(job_id))
    shell.host.take()


def test_what_is_stored_of_ended_runs_is_used_under_the_same_rules_alone(make_shell, monkeypatch):
    """To read all ended jobs again takes longer than all else of a start."""
    clock = [now()]

    def daemon(**more: Any) -> Shell:
        return make_shell(clock=lambda: clock[0], **more)

    first = daemon()
    run_of(first, clock, 1)
    first.engine.stopped()
    counted = first.engine.scheduler.past_runs
    other = daemon(by=rules(cores=18)).engine.scheduler.past_runs
    assert other.usage.keys() == counted.usage.keys() and other.usage != counted.usage
    monkeypatch.setattr(Journal, "ended_since", lambda journal, at_s: iter(()))
    assert daemon().engine.scheduler.past_runs == counted


def test_a_daemon_of_which_no_job_has_ever_run_leaves_what_the_next_one_can_read(make_shell):
    """The first job of a new user may name a program that is not there."""
    first = make_shell()
    first.turn(asks())
    first.turn(st.LaunchFailedReport(now().at_s, 1, 1, text="no such file"))
    first.turn(gone(1))
    first.host.take()
    first.engine.stopped()
    assert make_shell().engine.journal.job(1).outcome is Outcome.LAUNCH_FAILED


def test_a_new_half_life_counts_from_its_reload_on_and_after_a_restart(make_shell):
    """What was counted by another would be worth nothing, or more than all that comes."""
    day = replace(rules(), half_life_s=86400)
    week, clock = replace(day, half_life_s=7 * 86400), [now()]
    first = make_shell(by=day, clock=lambda: clock[0])
    run_of(first, clock, 1)
    first.engine.adopt(week)
    run_of(first, clock, 2, BOB)
    run_of(first, clock, 3, BOB)
    first.engine.stopped()
    second = make_shell(by=week, clock=lambda: clock[0])
    for shell, times in (first, 2), (second, 1):
        usage = shell.engine.scheduler.past_usage
        assert 2 ** (usage["root.bob"] - usage["root.alice"]) == pytest.approx(times, abs=0.01)
        run_of(second, clock, 4)


# -- clocks that are set -----------------------------------------------------------------------


YEAR_S = 365 * 86400.0


def running(shell: Shell, clock: Clock, asked: JobSpec) -> int:
    (answer,) = shell.turn(st.SubmitAsked(clock(), asked))
    assert not isinstance(answer, DrfdError)
    job_id = answer[0].job_id
    assert shell.host.take() == [Launch(job_id, 1)]
    shell.turn(begins(clock, job_id))
    return job_id


@pytest.mark.parametrize("jump_s", [-YEAR_S, -HOUR])
def test_what_is_to_begin_later_begins_by_the_clock_as_it_is_now(make_shell, clock, jump_s):
    shell = make_shell(clock=clock)
    begin_s = int(clock.at_s) + 100
    shell.turn(st.SubmitAsked(clock(), spec(begin_s=begin_s)))
    clock.set_by_s = jump_s
    for passes_s, effects in ((101, []), (-jump_s, [Launch(1, 1)])):
        clock.at_s += passes_s
        shell.turn(st.Tick(clock()))
        assert shell.host.take() == effects
