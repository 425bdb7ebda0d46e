"""What passes of a kept scheduler carry from one to the next: reservations, limits and restarts.

Each test gives jobs to a bench of 9 cores and asserts which of them start, and when.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from core.worlds import CAROL, DAVE, change, of, pass_of, preemptions, start_s, why
from drfd.core.decisions.stimuli import (
    CancelAsked,
    DrainAsked,
    FrozenReport,
    RemovedReport,
    ResumeAsked,
    SubmitAsked,
)
from drfd.core.explain.reasons import explain_wait
from drfd.core.fairness.rules import NodeSettings, Pool, Preempting, ReservationSettings, Rules
from drfd.core.model import events as ev
from drfd.core.model.events import StartReason
from drfd.core.model.job import JobState, Postponed, UserGroup, Whose
from drfd.core.model.options import Demand
from drfd.core.scheduling import backfill
from drfd.core.scheduling.backfill import KeptReservation
from drfd.core.scheduling.gates import SlotsTaken
from drfd.core.scheduling.kept_free import ExternalLoad
from drfd.core.scheduling.preemption import Departures
from drfd.core.scheduling.release_times import RunTimes
from drfd.core.scheduling.scheduler import Scheduler
from drfd.core.scheduling.waits import MachineShort, OwesIdle
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    Bench,
    demand,
    ended,
    happened,
    launched,
    now,
    postponed,
    replace,
    rules,
)
from seeds import examples

#: Jobs may be stopped as soon as they run.
SOON = Preempting(exempt_s=0)


def may_go(actor, cores, memory_gib=0, **more):
    return of(actor, cores, memory_gib, preemptible=True, **more)


@dataclass
class Machine:
    """A bench with a scheduler that is kept from pass to pass."""

    rules: Rules = field(default_factory=rules)
    scheduler: Scheduler = field(default_factory=lambda: Scheduler(half_life_s=3600.0))
    bench: Bench = field(init=False)

    def __post_init__(self):
        self.bench = Bench(self.rules)

    def submit(self, asked, at_s):
        return self.bench.submit(asked, at_s=at_s)

    def start(self, asked, at_s):
        job_id = self.submit(asked, at_s)
        assert self.starts(at_s) == [job_id]
        return job_id

    def starts(self, at_s):
        """The jobs that a pass starts, whose processes run at once, or stops."""
        found = pass_of(self.bench, self.scheduler, at_s)
        for job_id in found:
            job = self.bench.job(job_id)
            if job.state is JobState.STARTING:
                self.bench.feed(launched(job_id, job.attempt, at_s=at_s))
        return found

    def restart(self, at_s):
        """What outlives the daemon of reservations is all that the next scheduler knows."""
        stored = [each.kept for each in self.scheduler.reservations]
        self.scheduler = Scheduler(half_life_s=3600.0)
        self.scheduler.restore(stored, self.bench.ledger, now(at_s).at_s)

    def finish(self, job_id, at_s):
        self.bench.feed(ended(job_id, self.bench.job(job_id).attempt, at_s=at_s))
        job = self.bench.job(job_id)
        self.scheduler.remember([job], self.rules, now(at_s))
        self.bench.feed(RemovedReport(now(at_s).at_s, job_id, job.attempt))


def test_a_reserved_job_starts_only_within_the_limit_of_its_pool():
    """A job of the pool that was started beside the reservation has filled the limit meanwhile."""
    pools = {"p": Pool(limit={"cores": 6000})}
    machine = Machine(replace(rules(), pools=pools))
    before = machine.start(of(BOB, 7, limit_s=1000), 0)
    reserved = machine.submit(of(ALICE, 5, pool="root.p"), 1)
    assert machine.starts(31) == []
    beside = machine.start(of(CAROL, 2, pool="root.p", limit_s=60), 32)
    assert machine.scheduler.last_plan.starts[beside].why is StartReason.BACKFILL
    machine.finish(before, 50)
    assert machine.starts(50) == [], "there is room for 5 + 2 cores, and the limit is 6"
    machine.finish(beside, 90)
    assert machine.starts(90) == [reserved]
    assert machine.scheduler.last_plan.starts[reserved].why is StartReason.RESERVATION


@pytest.mark.parametrize(("at_s", "late"), [([0], 1), ([10_000, 0], 1), ([10_000, 9_990], 0)])
def test_a_job_from_before_the_clock_was_set_back_has_waited_longest(at_s, late):
    """By its own time it would get a reservation in some hours. A few seconds change nothing."""
    machine = Machine()
    machine.start(of(CAROL, 5), 10_000)
    big = machine.submit(of(ALICE, 9), 10_000)
    assert not any(map(machine.starts, at_s))
    assert [each.job_id for each in machine.scheduler.reservations] == [big] * late


def test_use_from_before_the_clock_was_set_back_counts_as_of_now_for_those_who_wait_already():
    """Alice has used the machine for 100 s while the clock was ahead by years, bob for an hour."""
    machine, ahead_s = Machine(), 10**8
    machine.finish(machine.start(of(BOB, 9), 0), 3600)
    machine.finish(machine.start(of(ALICE, 9), ahead_s), ahead_s + 100)
    last = machine.start(of(CAROL, 9), ahead_s + 100)
    _, first = [machine.submit(of(actor, 9), ahead_s + 100) for actor in (BOB, ALICE)]
    assert not any(map(machine.starts, (ahead_s + 100, 3700)))
    machine.finish(last, 3701)
    assert machine.starts(3701) == [first]


def test_suspended_jobs_come_first_in_a_drain_only():
    """During any other reservation who holds less is served first."""
    machine = Machine()
    suspended = machine.start(of(ALICE, 4), 0)
    machine.start(of(DAVE, 5, limit_s=5000), 1)
    machine.submit(of(CAROL, 9), 2)
    assert machine.starts(40) == []
    machine.bench.suspend(suspended, by=None, at_s=41)
    waiting = machine.submit(of(BOB, 4, limit_s=60), 41)
    assert machine.starts(42) == [waiting]


def test_a_user_whose_reservation_kept_too_much_idle_gets_the_next_one_later():
    machine = Machine(replace(rules(), reserving=ReservationSettings(allowance_s=0)))
    before = machine.start(of(CAROL, 5, limit_s=200), 0)
    first = machine.submit(of(BOB, 9, limit_s=100), 0)
    second = machine.submit(of(BOB, 9), 0)
    assert machine.starts(30) == []
    held_back = machine.submit(of(ALICE, 4), 32)
    assert machine.starts(32) == [], "4 of 9 cores idle, and bob is entitled to a third"
    machine.finish(before, 122)
    assert machine.starts(122) == [first]
    machine.finish(first, 126)
    assert machine.starts(126) == [held_back]
    # 90 s of the ninth of the machine beyond the share, less what half of it repays in 4 s.
    assert machine.starts(127) == [] and not machine.scheduler.reservations
    paid_s = machine.scheduler.next_pass_s
    assert paid_s == pytest.approx(now(126 + 2 * (90 / 9 - 2)).at_s, abs=0.01)
    reason = why(machine.bench, second, machine.scheduler.last_plan)
    assert isinstance(reason, OwesIdle) and reason.until_s == paid_s
    assert machine.starts(paid_s - now().at_s) == []
    assert [each.job_id for each in machine.scheduler.reservations] == [second]
    assert machine.scheduler.next_pass_s is None


def test_a_step_of_the_clock_charges_nobody_and_repays_nothing():
    machine = Machine()
    machine.start(of(CAROL, 5), 0)
    machine.submit(of(BOB, 9), 0)
    machine.submit(of(ALICE, 4, limit_s=9000), 1)
    scheduler, ledger = machine.scheduler, machine.bench.ledger

    def owed_s(at_s: float, ahead_s: float) -> float:
        """How long the share has been kept idle that is beyond bob's own."""
        clock = now(at_s)._replace(at_s=now(at_s + ahead_s).at_s)
        assert list(scheduler.run(ledger, machine.rules, clock)) == []
        debt = scheduler.debts["root.bob"]
        return debt.owed / (debt.idle - debt.entitled) / 1000

    assert [owed_s(30, 0), owed_s(40, 10**8), owed_s(60, 20)] == [0, 10, 30]


@pytest.mark.parametrize(("at_once", "idle"), [(None, 4), (1, 2)])
def test_a_reservation_keeps_idle_what_equal_jobs_would_take_that_may_run_at_once(at_once, idle):
    machine = Machine()
    machine.start(of(CAROL, 5), 0)
    machine.submit(of(BOB, 9), 0)
    assert machine.starts(30) == []
    for _ in range(3):
        machine.submit(of(ALICE, 2, group=UserGroup("sweep", at_once), limit_s=9000), 31)
    assert machine.starts(31) == []
    (debt,) = machine.scheduler.debts.values()
    assert debt.idle == idle * 10**9 // 9


@pytest.mark.parametrize(
    ("asked", "limit", "idle"),
    [((1, 2, 3), 9, 3), ((3, 2, 1), 9, 4), ((5, 4, 1), 9, 4), ((2, 1.5, 1), 3, 3)],
)
def test_a_reservation_keeps_idle_what_unlike_jobs_would_take_in_their_order(asked, limit, idle):
    """As far as a limit on all of them lets them start."""
    machine = Machine(replace(rules(), pools={"alice": Pool(limit={"cores": limit * 1000})}))
    machine.start(of(CAROL, 5), 0)
    machine.submit(of(BOB, 9), 0)
    assert machine.starts(30) == []
    for cores in asked:
        machine.submit(of(ALICE, cores, limit_s=9000), 31)
    assert machine.starts(31) == []
    (debt,) = machine.scheduler.debts.values()
    assert debt.idle == idle * 10**9 // 9


def test_a_stored_reservation_of_a_job_that_has_started_is_dropped():
    machine = Machine()
    before = machine.start(of(BOB, 5), 0)
    reserved = machine.submit(of(ALICE, 9), 1)
    assert machine.starts(31) == []
    stored = [each.kept for each in machine.scheduler.reservations]
    machine.finish(before, 100)
    assert machine.starts(100) == [reserved]
    machine.scheduler = Scheduler(half_life_s=3600.0)
    machine.scheduler.restore(stored, machine.bench.ledger, 101)
    machine.finish(reserved, 102)
    other = machine.submit(of(CAROL, 9), 102)
    assert machine.starts(102) == [other]


@pytest.mark.parametrize(
    ("asked", "passes"), [((0.9, 18), True), ((0.91, 0), False)], ids=["a tenth", "more"]
)
def test_a_job_passes_by_the_resources_that_the_reserved_one_needs(asked, passes):
    """Alice's job needs 9 cores and no memory."""
    machine = Machine()
    machine.start(of(BOB, 5, 0, limit_s=1000), 0)
    machine.submit(of(ALICE, 9, 0), 1)
    assert machine.starts(31) == []
    small = machine.submit(of(CAROL, *asked, limit_s=9000), 32)
    assert machine.starts(32) == ([small] if passes else [])
    assert machine.scheduler.is_cut == passes, "others may start when the reserved job is later"


@pytest.mark.parametrize("is_drain", [True, False])
def test_a_reservation_is_as_late_after_a_drain_or_a_restart_as_before(is_drain):
    """Bob's job was expected to take an hour. Carol's would have ended before its next estimate."""
    machine = Machine(replace(rules(), reserving=ReservationSettings(drain_after_s=1000)))
    machine.start(of(BOB, 5, limit_s=None), 0)
    reserved = machine.submit(of(ALICE, 9), 1)
    assert machine.starts(31) == []
    first, second = (machine.submit(of(CAROL, 2, limit_s=60), 4000) for _ in range(2))
    if is_drain:
        machine.bench.feed(DrainAsked(now(4000), True, ADMIN))
        assert machine.starts(4000) == []
        machine.bench.feed(DrainAsked(now(4100), False, ADMIN))
    else:
        machine.restart(4000)
    assert machine.starts(4100) == [first, second]
    machine.finish(second, 4160)
    machine.submit(of(CAROL, 0.5, 0, limit_s=60), 4601)
    assert machine.starts(4601) == [], "not even a small job"
    (kept,) = machine.scheduler.reservations
    assert (kept.job_id, kept.due_s, kept.is_drain) == (reserved, now(3600).at_s, True)


def test_who_would_delay_a_reserved_job_of_the_pool_gets_no_reservation_within_its_limit():
    """Alice's job waits for the machine, and bob's for alice's alone."""
    machine = Machine(replace(rules(), pools={"p": Pool(limit={"cores": 6000})}))
    machine.start(of(CAROL, 5, limit_s=1000), 0)
    reserved = machine.submit(of(ALICE, 5, pool="root.p"), 1)
    assert machine.starts(31) == []
    machine.submit(of(BOB, 2, pool="root.p", limit_s=9000), 32)
    assert [machine.starts(at_s) for at_s in (32, 70)] == [[], []]
    assert [each.job_id for each in machine.scheduler.reservations] == [reserved]


def test_a_job_outside_a_pool_takes_nothing_of_what_a_reservation_leaves_within_its_limit():
    """Beside alice's job there will be 4 cores on the machine and one in the pool."""
    machine = Machine(replace(rules(), pools={"p": Pool(limit={"cores": 6000})}))
    machine.start(of(CAROL, 5, limit_s=1000), 0)
    machine.submit(of(ALICE, 5, pool="root.p"), 1)
    assert machine.starts(31) == []
    outside = machine.submit(of(DAVE, 1, limit_s=9000), 32)
    inside = machine.submit(of(BOB, 1, pool="root.p", limit_s=9000), 32)
    assert machine.starts(32) == [outside, inside]


def test_a_reservation_within_the_limit_of_a_pool_counts_for_a_limit_of_its_user_too():
    """Of the 6 cores of the pool, alice may have 4. When bob's job has ended there would be room in
    the pool for both of hers."""
    pools = {"p": Pool(limit={"cores": 6000})}
    members = {("p", "alice"): NodeSettings(limit={"cores": 4000})}
    machine = Machine(replace(rules(), pools=pools, members=members))
    machine.start(of(BOB, 5, pool="root.p", limit_s=1000), 0)
    machine.submit(of(ALICE, 4, pool="root.p"), 1)
    assert machine.starts(31) == []
    machine.submit(of(ALICE, 1, pool="root.p", limit_s=9000), 32)
    assert machine.starts(32) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"reserving": ReservationSettings(reserves=False)},
        {"pools": {"p": Pool(limit={"cores": 2500}), "p.q": Pool(limit={"cores": 4000})}},
    ],
)
def test_a_reservation_ends_that_other_rules_would_not_make(changes):
    machine = Machine(replace(rules(), pools={"p": Pool(), "p.q": Pool(limit={"cores": 4000})}))
    machine.start(of(ALICE, 2, pool="root.p.q"), 0)
    machine.submit(of(ALICE, 4, pool="root.p.q"), 1)
    assert machine.starts(31) == []
    machine.rules = machine.bench.rules = replace(machine.rules, **changes)
    passes = machine.submit(of(BOB, 0.5, pool="root.p.q", limit_s=9000), 32)
    assert (machine.starts(32), machine.scheduler.reservations) == ([passes], ())


def test_of_two_reserved_jobs_of_a_group_only_as_many_start_as_may_run_at_once():
    machine = Machine(replace(rules(), reserving=ReservationSettings(depth=2)))
    group = UserGroup("sweep", 1)
    both = [machine.submit(of(ALICE, cores, group=group), 0) for cores in (1, 2)]
    stored = [KeptReservation(each, now().at_s) for each in both]
    machine.scheduler.restore(stored, machine.bench.ledger, now().at_s)
    assert machine.starts(1) == both[:1]


def test_who_is_reserved_for_behind_another_takes_a_part_of_what_that_leaves():
    """Dave's job starts before alice's, and beside hers there is no room for both others."""
    machine = Machine(replace(rules(), reserving=ReservationSettings(depth=2)))
    for actor, cores, limit_s in ((BOB, 5, 1000), (CAROL, 2, 500)):
        machine.start(of(actor, cores, limit_s=limit_s), 0)
    for actor, cores in ((ALICE, 6), (DAVE, 3)):
        machine.submit(of(actor, cores), 1)
    assert machine.starts(31) == []
    machine.submit(of(CAROL, 1, limit_s=9000), 32)
    assert machine.starts(32) == []


def test_jobs_pass_one_that_has_waited_too_long_as_soon_as_something_is_reserved_for_it():
    """Until then bob has the only reservation."""
    machine = Machine(replace(rules(), reserving=ReservationSettings(drain_after_s=100)))
    machine.start(of(CAROL, 5, limit_s=1000), 0)
    first = machine.submit(of(BOB, 9), 1)
    assert machine.starts(31) == []
    big = machine.submit(of(ALICE, 8), 32)
    small = machine.submit(of(ALICE, 1, limit_s=60), 200)
    assert machine.starts(200) == []
    machine.bench.feed(CancelAsked(now(300), first, BOB))
    assert machine.starts(300) == [small]
    assert [each.job_id for each in machine.scheduler.reservations] == [big]


def test_a_job_is_expected_to_end_at_its_time_limit_at_the_latest():
    """It has outlived the estimate of a minute."""
    machine = Machine()
    job = machine.bench.job(machine.start(of(BOB, limit_s=100), 0))
    run_times = RunTimes({"bob": [(0, 10.0)]})
    for at_s, end_s in ((50, 60), (70, 100), (110, 110)):
        assert run_times.end_s(job, now(at_s).at_s) == now(end_s).at_s


def test_neither_a_drain_nor_other_books_forgive_a_debt():
    machine = Machine()
    machine.start(of(CAROL, 5), 0)
    machine.submit(of(BOB, 9), 0)
    machine.submit(of(ALICE, 4, limit_s=9000), 1)
    assert [machine.starts(at_s) for at_s in (30, 40)] == [[], []]
    before = machine.scheduler.debts["root.bob"]
    assert before.owed > 0
    machine.bench.feed(DrainAsked(now(40), True, ADMIN))
    assert machine.starts(40) == []
    assert machine.scheduler.debts["root.bob"].owed == before.owed
    machine.scheduler.forget_derived_state()
    assert machine.scheduler.debts["root.bob"].owed == before.owed


def test_what_a_frozen_job_has_given_back_is_kept_until_the_starving_job_has_all():
    """It would go on itself, until the other one gives back its cores."""
    machine = Machine(replace(rules(), preempting=replace(SOON, suspends=True)))
    machine.start(of(ALICE, 5), 0)
    victims = [machine.start(may_go(ALICE, 2), 0) for _ in range(2)]
    starving = machine.submit(of(BOB, 4), 1)
    assert machine.starts(1) == []
    assert sorted(machine.starts(400)) == victims
    for at_s, job_id, starts in ((401, victims[0], []), (402, victims[1], [starving])):
        clock = now(at_s)
        machine.bench.feed(FrozenReport(clock.at_s, job_id, 1, mono_s=clock.mono_s))
        assert machine.starts(at_s) == starts


@pytest.mark.parametrize(
    ("ends", "estimate_s"), [("by itself", 2000), ("frozen for a while", 1400), ("cancelled", 3600)]
)
def test_estimates_rest_on_the_time_that_jobs_ran_which_ended_by_themselves(ends, estimate_s):
    machine = Machine()
    job_id = machine.start(of(BOB), 0)
    if ends == "frozen for a while":
        machine.bench.suspend(job_id, by=None, at_s=100)
        assert machine.starts(400) == [job_id]
    elif ends == "cancelled":
        machine.bench.feed(CancelAsked(now(999), job_id, BOB))
    machine.finish(job_id, 1000)
    assert machine.scheduler.run_times.length_s(of(BOB, limit_s=None)) == estimate_s


def test_a_changed_demand_of_an_array_is_reserved_for_and_not_the_one_before():
    machine = Machine()
    machine.start(of(BOB, 5, limit_s=1000), 0)
    found = machine.bench.feed(SubmitAsked(now(1), of(ALICE, 9), spans=((1, 2, 1),)))
    array_id = found[0].array_id
    assert machine.starts(31) == []
    machine.scheduler.forget_reservation(array_id, machine.bench.ledger)
    assert machine.scheduler.reservations == ()


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_changed_demand_is_reserved_for_and_not_the_one_before(is_restarted):
    """Beside 5 of 9 cores there is room for a long job of 4, beside 9 there was none."""
    machine = Machine()
    machine.start(of(BOB, 5, limit_s=1000), 0)
    changed = machine.submit(of(ALICE, 9), 1)
    assert machine.starts(31) == []
    if is_restarted:
        machine.restart(40)
    machine.scheduler.forget_reservation(changed, machine.bench.ledger)
    change(machine.bench, changed, demand=Demand(cores_milli=5000))
    long = machine.submit(of(CAROL, 4, limit_s=9000), 40)
    assert machine.starts(40) == [long]


@pytest.mark.parametrize("cores", range(1, 9))
def test_a_job_starts_with_the_smaller_demand_that_it_was_given(cores):
    """Whichever of both demands is read first."""
    machine = Machine()
    machine.start(of(BOB, 1), 0)
    job_id = machine.submit(of(ALICE, 9), 1)
    assert machine.starts(1) == []
    change(machine.bench, job_id, demand=Demand(cores_milli=cores * 1000))
    assert machine.starts(2) == [job_id]


@pytest.mark.parametrize(("cores", "counts"), [(0.39, False), (0.4, True), (4, True)])
def test_estimates_rest_on_jobs_of_at_least_a_tenth_of_the_dominant_share(cores, counts):
    """Bob's last two jobs took a second, and those of four cores before them 1000 seconds. Another
    one of four cores starts beside the reservation only if it is expected to end in 500 s."""
    machine = Machine()
    for at_s, size, run_s in ((0, 4, 1000), (1000, 4, 1000), (2000, cores, 1), (2010, cores, 1)):
        machine.finish(machine.start(of(BOB, size, 0.1, limit_s=None), at_s), at_s + run_s)
    machine.start(of(CAROL, 5, limit_s=531), 2100)
    machine.submit(of(ALICE, 9), 2100)
    assert machine.starts(2131) == []
    asked = machine.submit(of(BOB, 4, 0.1, limit_s=None), 2131)
    assert machine.starts(2131) == ([asked] if counts else [])


@examples(200, quick=5)
@given(some.lists(some.tuples(some.integers(1, 40), some.integers(0, 500))), some.integers(1, 40))
def test_only_the_last_two_jobs_that_count_decide_an_estimate(ended_jobs, cores):
    run_times = RunTimes()
    machine = rules(cores=100)
    for each, run_s in ended_jobs:
        run_times.add("bob", run_s, share=each / 100)
    run_times.measure_by(machine)
    last = [run_s for each, run_s in reversed(ended_jobs) if 10 * each >= cores][:2]
    expected_s = max(60, last[0] + last[-1]) if last else 3600
    assert run_times.length_s(of(BOB, cores, 0, limit_s=None)) == expected_s


# -- preemption ------------------------------------------------------------------------------------


def test_a_preemptible_job_is_exempt_for_an_hour_and_after_each_stop_for_twice_as_long():
    """Alice holds all 9 cores, and bob starves."""
    machine = Machine(replace(rules(), preempting=Preempting()))
    machine.start(of(ALICE, 5), 0)
    victim = machine.start(of(ALICE, 4, preemptible=True), 100)
    until_s = -400
    for hours in (1, 2, 4):
        since_s, until_s = until_s + 500, until_s + 500 + 3600 * hours
        starving = machine.submit(of(BOB, 4), since_s)
        for at_s in (since_s + 1, since_s + 1000, until_s - 1):
            assert machine.starts(at_s) == []
        assert machine.starts(until_s) == [victim]
        assert machine.starts(until_s + 1) == []
        assert [each.job_id for each in machine.scheduler.reservations] == [starving]
        machine.finish(victim, until_s + 1)
        assert machine.starts(until_s + 1) == [starving]
        machine.finish(starving, until_s + 500)
        assert machine.starts(until_s + 500) == [victim]


@pytest.mark.parametrize("reserves", [True, False])
def test_room_for_a_starving_job_is_kept_while_jobs_leave_it_and_no_longer(reserves):
    """Two of alice's jobs have to stop for bob's. One of them does not end."""
    reserving = ReservationSettings(reserves=reserves)
    machine = Machine(replace(rules(), preempting=Preempting(), reserving=reserving))
    machine.start(of(ALICE, 5), 0)
    victims = [machine.start(of(ALICE, 2, preemptible=True), 0) for _ in range(2)]
    machine.submit(of(BOB, 4), 1)
    assert [machine.starts(at_s) for at_s in (1, 1000)] == [[], []]
    assert sorted(machine.starts(5000)) == victims
    machine.finish(victims[0], 5001)
    passes = machine.submit(of(CAROL, 2, limit_s=60), 5001)
    assert [machine.starts(at_s) for at_s in (5001, 5060, 5080)] == [[], [], []]
    assert machine.scheduler.is_cut, "another pass is due"
    assert machine.starts(5080) == [passes]


def test_a_big_job_keeps_its_reservation_beside_the_room_for_a_starving_one():
    machine = Machine(replace(rules(), preempting=Preempting()))
    machine.start(of(ALICE, 5), 0)
    victims = [machine.start(of(ALICE, 2, preemptible=True), 0) for _ in range(2)]
    big = machine.submit(of(CAROL, 9), 1)
    assert [machine.starts(at_s) for at_s in (1, 1000)] == [[], []]
    starving = machine.submit(of(BOB, 3), 1001)
    assert machine.starts(1001) == []
    assert sorted(machine.starts(5000)) == victims
    assert machine.starts(5001) == []
    assert [each.job_id for each in machine.scheduler.reservations] == [starving, big]
    assert machine.scheduler.ahead().reservations == machine.scheduler.reservations
    assert machine.starts(5080) == [], "neither victim has ended"
    assert [each.job_id for each in machine.scheduler.reservations] == [big]


def test_nobody_is_stopped_for_another_of_the_pool_that_starves():
    """The pool has too little, and of that Alice has more than her part and Bob has nothing."""
    pools = {"lab": Pool(users=frozenset({"alice", "bob"}), weight=Fraction(3))}
    bench = Bench(replace(rules(), pools=pools))
    bench.start(of(CAROL, 4.5))
    bench.start(of(ALICE, 3.5, pool="root.lab"))
    extra = bench.start(of(ALICE, 1, pool="root.lab", preemptible=True))
    starving = bench.submit(of(BOB, 1, pool="root.lab"))
    for path, stopped in (("root.lab", []), ("root.lab.bob", [extra])):
        found = preemptions(bench, path, starving)
        assert [event.job_id for event in found] == stopped


def test_nobody_is_stopped_in_vain_or_for_what_is_free():
    bench = Bench(rules())
    bench.start(of(ALICE, 5, preemptible=True))
    bench.start(of(ALICE, 4, preemptible=True))
    starving = bench.submit(of(BOB, 4))
    for cores, stopped in ((0, [2]), (1, [])):
        load = ExternalLoad(used=demand(cores, 0), kept=demand(cores, 0), until_s=inf)
        found = preemptions(bench, "root.bob", starving, external=load)
        assert [event.job_id for event in found] == stopped
    bench.finish(2)
    assert preemptions(bench, "root.bob", starving) == []


def in_lab(actor, cores, memory_gib=0, **more):
    return of(actor, cores, memory_gib, pool="root.lab", **more)


@pytest.mark.parametrize(
    ("held", "asked", "is_served"),
    [
        ((4.04, 0), (0.45, 0), True),
        ((4.05, 0), (0.45, 0), False),
        ((1, 1), (1, 8), True),
        ((1, 1), (1, 8.1), False),
    ],
)
def test_a_user_starves_below_nine_tenths_for_a_job_within_the_entitlement(held, asked, is_served):
    """Bob is entitled to half of 9 cores and 18 GiB."""
    machine = Machine(replace(rules(), preempting=SOON))
    machine.start(of(BOB, *held), 0)
    machine.start(of(ALICE, 9 - held[0] - asked[0], 0), 0)
    victim = machine.start(may_go(ALICE, asked[0]), 0)
    machine.submit(of(BOB, *asked), 1)
    assert machine.starts(1) == []
    assert machine.starts(400) == ([victim] if is_served else [])


@pytest.mark.parametrize(("limit_gib", "is_served"), [(4, False), (5, True)])
def test_nobody_is_stopped_for_a_job_that_a_limit_keeps_back(limit_gib, is_served):
    """Dave has 4 GiB of what the pool may hold."""
    pools = {"lab": Pool(users=frozenset({"bob", "dave"}), limit={"memory": limit_gib << 30})}
    machine = Machine(replace(rules(), pools=pools, preempting=SOON))
    machine.start(in_lab(DAVE, 0.1, 4), 0)
    machine.start(of(ALICE, 7.9, 0), 0)
    victim = machine.start(may_go(ALICE, 1), 0)
    machine.submit(in_lab(BOB, 1, 1), 1)
    assert machine.starts(1) == []
    assert machine.starts(400) == ([victim] if is_served else [])


@pytest.mark.parametrize(
    ("pools", "after_s"), [({}, 300), ({"bob": Pool(guarantee={"cores": 1000})}, 150)]
)
def test_a_guarantee_halves_the_time_after_which_jobs_are_stopped(pools, after_s):
    machine = Machine(replace(rules(), pools=pools, preempting=SOON))
    machine.start(of(ALICE, 8), 0)
    victim = machine.start(may_go(ALICE, 1), 0)
    machine.submit(of(BOB), 1)
    assert [machine.starts(at_s) for at_s in (1, after_s)] == [[], []]
    assert machine.starts(1 + after_s) == [victim]


@pytest.mark.parametrize("may_stop", [True, False])
def test_only_the_time_counts_in_which_a_user_starves_without_a_break(may_stop):
    """Bob takes his job back and submits another one. Meanwhile jobs may be stopped, or none."""
    reserving = ReservationSettings(reserves=False)
    machine = Machine(replace(rules(), preempting=SOON, reserving=reserving))
    machine.start(of(ALICE, 7), 0)
    victims = [machine.start(may_go(ALICE, 1), 0) for _ in range(2)]

    def replaced(jobs, asked, at_s):
        for job_id in jobs:
            machine.finish(job_id, at_s)
            yield machine.start(asked, at_s)

    first = machine.submit(of(BOB, 2), 1)
    assert machine.starts(1) == []
    if not may_stop:
        victims = list(replaced(victims, of(ALICE, 1), 100))
    machine.bench.feed(CancelAsked(now(200), first, BOB))
    assert machine.starts(200) == []
    machine.submit(of(BOB, 2), 250)
    if not may_stop:
        victims = list(replaced(victims, may_go(ALICE, 1), 250))
    assert [machine.starts(at_s) for at_s in (250, 549)] == [[], []]
    assert sorted(machine.starts(550)) == victims


def test_room_is_made_for_the_least_satisfied_user_and_for_one_at_a_time():
    machine = Machine(replace(rules(), preempting=SOON))
    machine.start(of(BOB, 1), 0)
    machine.start(of(ALICE, 6), 0)
    victims = [machine.start(may_go(ALICE, 1), at_s) for at_s in (1, 2)]
    starving = [machine.submit(of(each), 3) for each in (BOB, CAROL)]
    assert [machine.starts(at_s) for at_s in (3, 400)] == [[], victims[1:]]
    assert [each.job_id for each in machine.scheduler.reservations] == starving[1:]
    machine.finish(victims[1], 401)
    assert machine.starts(401) == starving[1:] + victims[:1]


def test_room_for_a_pool_is_made_for_the_first_job_of_its_least_satisfied_user():
    """The pool holds half of what it is entitled to: bob most of his part of the cores, and dave a
    little less of his part of the memory."""
    pools = {"lab": Pool(users=frozenset({"bob", "dave"}))}
    machine = Machine(replace(rules(), pools=pools, preempting=SOON))
    machine.start(in_lab(BOB, 2.2), 0)
    machine.start(in_lab(DAVE, 0.1, 4.1), 0)
    machine.start(of(ALICE, 5.7, 0), 0)
    victim = machine.start(may_go(ALICE, 1), 0)
    asked = in_lab(BOB, 1), in_lab(DAVE, 1), in_lab(DAVE, 0.9)
    _, first, _ = [machine.submit(each, 1) for each in asked]
    assert machine.starts(1) == []
    assert machine.starts(400) == [victim]
    assert machine.scheduler.reservations[0].job_id == first


#: By what holds for them: jobs that run, the oldest first, the job that waits, and the places of
#: those that have to give way. There are 9 cores and 18 GiB. Alice, bob and dave may use the lab.
GIVE_WAY = {
    "a job that is not needed is spared, the one that has run longest": (
        [of(ALICE, 4.6, 0), may_go(ALICE, 3), may_go(ALICE, 0.7), may_go(ALICE, 0.7)],
        of(BOB, 3.7, 0), [4, 2],
    ),
    "down to what is promised": ([of(ALICE, 4.5, 0), may_go(ALICE, 4.5)], of(BOB), [2]),
    "no further": ([of(ALICE, 4.1, 0), may_go(ALICE, 4.9)], of(BOB), []),
    "nor by several jobs": ([of(ALICE, 1, 0), *[may_go(ALICE, 2)] * 4], of(BOB, 4.5), []),
    "nor a user whose pool has enough": (
        [in_lab(DAVE, 5), in_lab(ALICE, 2), in_lab(ALICE, 2, preemptible=True)], of(BOB), [],
    ),
    "those who would still have more": (
        [in_lab(DAVE, 1, 13), of(ALICE, 7, 0), may_go(ALICE, 1)], in_lab(BOB, 1, 0.5), [3],
    ),
    "nobody who would have less": (
        [in_lab(DAVE, 1, 15), of(ALICE, 7, 0), may_go(ALICE, 1)], in_lab(BOB, 1, 0.5), [],
    ),
    "a large job of a pool that has enough without it": (
        [of(CAROL, 1.8, 0), in_lab(ALICE, 3.2), in_lab(ALICE, 4, preemptible=True)],
        in_lab(BOB, 1), [3],
    ),
    "not if the pool would starve": (
        [of(CAROL, 2.6, 0), in_lab(ALICE, 2.4), in_lab(ALICE, 4, preemptible=True)],
        in_lab(BOB, 1), [],
    ),
    "a spared job still counts for its pool": (
        [of(CAROL, 4.9, 0), in_lab(ALICE, 2.6),
         *[in_lab(ALICE, each, preemptible=True) for each in (1, 0.5)]],
        in_lab(BOB, 1), [3],
    ),
    "of the pool that has most, before a user who has more than each of its users": (
        [in_lab(DAVE, 3), in_lab(ALICE, 1.5), in_lab(ALICE, 0.3, preemptible=True),
         of(CAROL, 3.9, 0), may_go(CAROL, 0.3)],
        of(BOB, 0.3, 0), [3],
    ),
    "of who has most, a job that holds what is missing": (
        [of(ALICE, 3, 0), may_go(ALICE, 1), may_go(ALICE, 0, 13), of(CAROL, 3.2, 0),
         may_go(CAROL, 1)],
        of(BOB, 1.5, 0), [2],
    ),
    "two jobs that each hold a part of what is missing": (
        [of(ALICE, 3, 0), may_go(ALICE, 1), may_go(ALICE, 0, 13), of(CAROL, 3.2, 0),
         may_go(CAROL, 1)],
        of(BOB, 1.5, 5.5), [3, 5],
    ),
    "of two who have the same, the one whose promise allows it": (
        [of(ALICE, 1.25, 4.5), may_go(ALICE, 1), of(CAROL, 1.25, 0), may_go(CAROL, 1),
         of(DAVE, 4.5, 0)],
        of(BOB, 1, 0), [2],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("running", "asked", "stopped"), GIVE_WAY.values(), ids=GIVE_WAY)
def test_who_has_to_give_way(running, asked, stopped):
    pools = {"lab": Pool(users=frozenset({"alice", "bob", "dave"}))}
    bench = Bench(replace(rules(), pools=pools))
    for at_s, each in enumerate(running):
        bench.start(each, at_s=at_s)
    starving = bench.submit(asked)
    found = preemptions(bench, asked.leaf, starving)
    assert [event.job_id for event in found] == stopped


@pytest.mark.parametrize(
    ("how", "memory_gib", "is_served"),
    [
        (SOON, 9, True),
        (replace(SOON, suspends=True), 8, True),
        (replace(SOON, suspends=True), 9, False),
    ],
)
def test_what_another_job_is_giving_back_counts_once(how, memory_gib, is_served):
    """It is being stopped and gives back 2 cores and 9 GiB, or frozen and keeps its memory."""
    bench = Bench(rules())
    bench.start(of(ALICE, 5, 0))
    other = bench.start(may_go(ALICE, 2, 1))
    leaving = bench.start(may_go(ALICE, 2, 9), at_s=1)
    if how.suspends:
        bench.befall(happened(ev.SuspendRequested, leaving, by=None, text="for job 9"))
    else:
        bench.preempt(leaving)
    starving = bench.submit(of(BOB, 4, memory_gib))
    found = preemptions(bench, "root.bob", starving, how)
    assert [event.job_id for event in found] == ([other] if is_served else [])


def test_what_a_user_is_giving_back_already_does_not_count_as_held():
    """Alice is left with just the third that she is entitled to."""
    bench = Bench(rules())
    bench.start(of(CAROL, 4))
    bench.start(of(ALICE, 2))
    bench.start(may_go(ALICE, 1))
    leaving = bench.start(of(ALICE, 2))
    bench.feed(CancelAsked(now(1), leaving, ALICE))
    starving = bench.submit(of(BOB, 3))
    assert preemptions(bench, "root.bob", starving) == []


@pytest.mark.parametrize(
    ("asked", "held", "passed_on", "is_served"), [(of, 2, 3, False), (in_lab, 3.5, 1, True)]
)
def test_short_jobs_that_have_ended_do_not_count_as_held(asked, held, passed_on, is_served):
    """What a short job of alice held has gone to carol. Alice is left with the third that she is
    entitled to, or the lab with less than its three quarters."""
    pools = {"lab": Pool(users=frozenset({"alice", "bob"}), weight=Fraction(3))}
    machine = Machine(replace(rules(), pools=pools, preempting=replace(SOON, after_s=0)))
    machine.start(asked(ALICE, held), 0)
    victim = machine.start(asked(ALICE, 1, preemptible=True), 0)
    short = machine.start(asked(ALICE, passed_on), 0)
    machine.start(of(CAROL, 8 - held - passed_on), 0)
    machine.finish(short, 1)
    machine.start(of(CAROL, passed_on), 1)
    machine.submit(asked(BOB, 1), 2)
    assert machine.starts(2) == ([victim] if is_served else [])


@pytest.mark.parametrize("is_alone", [True, False])
def test_nobody_is_stopped_by_entitlements_that_the_starts_of_the_pass_have_changed(is_alone):
    """Of carol's group one job may run, so with it nothing waits in her own leaf, and alice, who
    could have spared her job before, is entitled to what she holds."""
    pools = {"lab": Pool(users=frozenset({"carol", "dave"}))}
    machine = Machine(replace(rules(), pools=pools, preempting=SOON))
    machine.start(in_lab(DAVE, 5.5, 0), 0)
    machine.start(of(ALICE, 2.5, 0), 0)
    victim = machine.start(may_go(ALICE, 1), 0)
    machine.submit(of(BOB, 1, 0), 1)
    assert machine.starts(1) == []
    machine.submit(of(CAROL, 9, group=UserGroup("g", 1)), 400)
    first = [] if is_alone else [machine.submit(in_lab(CAROL, 0, 1, group=UserGroup("g", 1)), 400)]
    assert machine.starts(400) == (first or [victim])
    assert machine.starts(401) == []


def test_a_suspended_job_is_not_stopped_and_its_exempt_time_goes_on_when_it_does():
    bench = Bench(rules())
    bench.start(of(ALICE, 5, 0))
    victim = bench.start(may_go(ALICE, 4, 10))
    bench.suspend(victim, at_s=100)
    starving = bench.submit(of(BOB, 1, 9), at_s=100)
    assert preemptions(bench, "root.bob", starving, at_s=5000) == []
    bench.feed(ResumeAsked(now(5000), victim, ALICE))
    assert bench.schedule(at_s=5000) == [victim]
    for at_s, stopped in ((8499, []), (8500, [victim])):
        found = preemptions(bench, "root.bob", starving, at_s=at_s)
        assert [event.job_id for event in found] == stopped


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_stopped_job_has_its_time_to_end_and_as_much_to_be_cleared_away(has_ended):
    """The grace time and a minute, since the request or since its processes have ended."""
    machine = Machine(replace(rules(), preempting=SOON))
    machine.start(of(ALICE, 5), 0)
    victim = machine.start(may_go(ALICE, 4), 0)
    starving = machine.submit(of(BOB, 4), 1)
    assert [machine.starts(at_s) for at_s in (1, 400)] == [[], [victim]]
    until_s = 470
    if has_ended:
        machine.bench.feed(ended(victim, at_s=460))
        until_s = 531
        assert machine.starts(461) == []
    for at_s, is_kept in ((until_s - 1, True), (until_s, False)):
        assert machine.starts(at_s) == []
        assert any(each.is_forced for each in machine.scheduler.reservations) == is_kept
    assert starving in machine.bench.ledger.jobs


def test_a_job_that_gives_way_once_more_has_its_time_anew():
    """Nobody has looked while it ran again."""
    bench, departures = Bench(rules()), Departures()
    job_id = bench.start(may_go(ALICE, 4))
    for attempt, at_s in ((1, 0), (2, 1000)):
        bench.preempt(job_id, at_s=at_s)
        assert departures.update(bench.ledger, now(at_s).mono_s, 0.0)
        bench.feed(ended(job_id, attempt, at_s))
        bench.feed(RemovedReport(now(at_s).at_s, job_id, attempt))
        assert bench.schedule(at_s) == [job_id]
        bench.feed(launched(job_id, attempt + 1))
    for at_s in (2000, 3000):
        bench.befall(happened(ev.SuspendRequested, job_id, at_s, by=None, text="for job 9"))
        assert departures.update(bench.ledger, now(at_s).mono_s, 0.0)
        bench.feed(FrozenReport(now(at_s).at_s, job_id, 3, mono_s=now(at_s).mono_s))
        assert bench.schedule(at_s) == [job_id]


def test_when_room_is_given_up_that_nobody_leaves_it_is_made_for_another_who_starves():
    """One of alice's jobs does not end."""
    machine = Machine(replace(rules(), preempting=SOON))
    machine.start(of(ALICE, 5), 0)
    small, large = (machine.start(may_go(ALICE, cores), cores) for cores in (1, 3))
    for each in (of(BOB, 3), of(CAROL, 1)):
        machine.submit(each, 4)
    assert [machine.starts(at_s) for at_s in (4, 400)] == [[], [large]]
    assert machine.starts(470) == [small]
    assert machine.scheduler.is_cut, "another pass is due"


@pytest.mark.parametrize("is_drain", [True, False])
def test_nobody_is_stopped_while_nothing_starts(is_drain):
    """In a drain, and in the pause after a shortage of the machine."""
    machine = Machine(replace(rules(), preempting=SOON))
    machine.start(of(ALICE, 5), 0)
    victim = machine.start(may_go(ALICE, 4), 0)
    machine.submit(of(BOB, 4), 1)
    assert machine.starts(1) == []
    if is_drain:
        machine.bench.feed(DrainAsked(now(2), True, ADMIN))
    else:
        machine.bench.ledger.pause = postponed(until_s=now(450).at_s)
    assert machine.starts(400) == []
    assert machine.scheduler.next_pass_s == (None if is_drain else now(450).at_s)
    assert machine.starts(450) == ([] if is_drain else [victim])


def test_jobs_that_a_pass_had_to_leave_to_the_next_one_start_though_others_are_stopped():
    machine = Machine(replace(rules(), preempting=SOON))
    machine.start(of(ALICE, 5.8, 0), 0)
    victim = machine.start(may_go(ALICE, 3), 0)
    machine.submit(of(BOB, 3), 1)
    assert machine.starts(1) == []
    machine.scheduler.max_starts = 1
    small = [machine.submit(of(CAROL, 0.1, 0, limit_s=60), 400) for _ in range(2)]
    assert machine.starts(400) == small[:1] and machine.scheduler.is_cut
    assert machine.starts(400) == small[1:]
    machine.scheduler.max_starts = inf
    assert machine.starts(401) == [victim]


def test_no_other_job_is_ever_stopped():
    """Carol's alone would not suffice."""
    machine = Machine(replace(rules(), preempting=Preempting()))
    for each in (of(ALICE, 4), of(ALICE, 4), may_go(CAROL, 1)):
        machine.start(each, 0)
    machine.submit(of(BOB, 3), 1)
    for at_s in range(0, 1_000_000, 50_000):
        assert machine.starts(at_s) == []


# -- passes by time alone --------------------------------------------------------------------------


def test_the_next_pass_is_due_when_a_job_has_waited_long_enough():
    machine = Machine()
    machine.start(of(BOB, 5), 0)
    assert machine.scheduler.next_pass_s is None
    machine.submit(of(ALICE, 9), 1)
    assert machine.starts(1) == []
    assert machine.scheduler.next_pass_s == now(31).at_s
    assert machine.starts(31) == []
    assert machine.scheduler.next_pass_s is None, "nothing fits beside the reservation"


def test_the_next_pass_is_due_when_a_job_outlives_its_estimate_beside_one_that_fits():
    """Bob's job is expected to take an hour, and then two. So carol's may pass alice's."""
    machine = Machine()
    machine.start(of(BOB, 5, limit_s=None), 0)
    machine.submit(of(ALICE, 9), 1)
    assert machine.starts(31) == []
    passes = machine.submit(of(CAROL, 4, limit_s=3600), 32)
    assert machine.starts(32) == []
    assert machine.scheduler.next_pass_s == now(3600).at_s
    assert machine.starts(3600) == [passes]


def test_the_next_pass_is_due_when_a_job_outlives_its_estimate_that_has_just_started():
    machine = Machine()
    machine.start(of(CAROL, 5, limit_s=9000), 0)
    machine.submit(of(ALICE, 9), 1)
    assert machine.starts(31) == []
    machine.submit(of(DAVE, 2, limit_s=9000), 32)
    assert machine.starts(32) == []
    machine.start(of(BOB, 2, limit_s=600), 100)
    assert machine.scheduler.next_pass_s == now(700).at_s


def test_a_suspended_job_waits_for_a_reservation_from_its_suspension_on():
    machine = Machine()
    suspended = machine.start(of(ALICE, 5, limit_s=90_000), 0)
    machine.start(of(DAVE, 4, limit_s=90_000), 0)
    machine.bench.suspend(suspended, by=None, at_s=5000)
    machine.start(of(CAROL, 5), 5000)
    assert machine.starts(5001) == []
    assert machine.scheduler.next_pass_s == now(5030).at_s


QUIET = MachineShort(
    Postponed(whose=Whose.MACHINE, text="noon", resource="", at_s=0, until_s=now(100).at_s, tries=1)
)


class AtNoon(NamedTuple):
    now_s: float

    def closed(self, leaf, demand, started):
        is_closed = self.now_s < now(100).at_s and demand[0] > 2000
        return QUIET if is_closed else None


@pytest.fixture
def at_noon(monkeypatch):
    monkeypatch.setattr(backfill, "gates_of", lambda ledger, rules, now_s: [AtNoon(now_s)])


def test_a_pass_explains_by_the_slots_that_it_has_given_itself():
    machine = Machine(replace(rules(), policy="slots", slots=1))
    machine.start(of(BOB), 0)
    machine.finish(1, 1)
    first, second = (machine.submit(of(ALICE), 1) for _ in range(2))
    assert machine.starts(1) == [first]
    last = machine.scheduler.last_plan
    found = explain_wait(machine.bench.job(second), machine.bench.ledger, last, machine.rules)
    assert found == SlotsTaken(1)


@pytest.mark.parametrize("policy", ["drf", "fifo", "easy", "cpu"])
def test_a_gate_that_opens_by_time_is_explained_forecast_and_passed_again(policy, at_noon):
    machine = Machine(replace(rules(), policy=policy))
    machine.start(of(BOB, 2), 0)
    big = machine.submit(of(ALICE, 3), 1)
    small = machine.submit(of(ALICE, 2), 2)
    assert machine.starts(40) == ([] if policy in ("fifo", "easy") else [small])
    assert machine.scheduler.next_pass_s == now(100).at_s
    assert (
        explain_wait(
            machine.bench.job(big), machine.bench.ledger, machine.scheduler.last_plan, machine.rules
        )
        == QUIET
    )
    assert start_s(machine.bench, big, 40) == 100
    assert big in machine.starts(100)
