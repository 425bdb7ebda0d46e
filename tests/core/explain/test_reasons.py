"""Why a job waits: a code of the closed list, and its evidence as values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drfd.core.explain.holders import Holder, ResourceShortage, ServedFirst, Shortfall
from drfd.core.explain.reasons import (
    BehindInFifo,
    BeyondLimit,
    BeyondMachine,
    HasReservation,
    KeptFor,
    LauncherAway,
    MayNotPass,
    NextPass,
    PathLimit,
    ReasonCode,
    SlotsTaken,
    TooLittleFree,
    WaitReason,
    explain_wait,
)
from drfd.core.fairness.rules import NodeSettings, Pool, ReservationSettings
from drfd.core.model import stimuli as st
from drfd.core.model.job import JobSpec, JobState
from drfd.core.scheduling.certainty import Certainty
from drfd.core.scheduling.plan import Plan
from drfd.core.scheduling.release_times import Ends, RunTimes, make_pass_context
from fakes import ADMIN, ALICE, BOB, Bench, demand, now, rules, schedule, spec

CAROL = st.Actor(user="carol", uid=1003, is_admin=False)
DAVE = st.Actor(user="dave", uid=1004, is_admin=False)
ERIN = st.Actor(user="erin", uid=1005, is_admin=False)
RESOURCES, FAIR_SHARE = ReasonCode.RESOURCES, ReasonCode.FAIR_SHARE


def why(bench: Bench, job_id: int, last: Plan | None = None) -> WaitReason | None:
    """The reason after a pass that had nothing left to do (unless another is given)."""
    last = last or schedule(bench.ledger, bench.rules)
    assert last.admitted == []
    return explain_wait(bench.job(job_id), bench.ledger, last, bench.rules)


def too_little(axis: str, needed: int, free: int, *holders: Holder) -> WaitReason:
    return WaitReason(RESOURCES, TooLittleFree((short(axis, needed, free, *holders),)))


def short(axis: str, needed: int, free: int, *holders: Holder) -> Shortfall:
    return Shortfall(ResourceShortage(axis, needed, free), holders)


def holder(
    job: str, user: str, amount: int, until_s: float | None = None, *, is_own: bool = False
) -> Holder:
    return Holder(job, user, amount, None if until_s is None else now(until_s).at_s, is_own)


def of(
    actor: st.Actor,
    cores: float,
    memory_gib: float = 1,
    *,
    time_limit_s: int = 3600,
    **more: int,
) -> JobSpec:
    asks = demand(cores, memory_gib, **more)
    return spec(f"root.{actor.user}", actor=actor, asks=asks, time_limit_s=time_limit_s)


# -- what is not about capacity ---------------------------------------------------------------


def test_a_job_that_no_pass_has_seen_yet_starts_soon(bench: Bench) -> None:
    bench.submit()
    soon = WaitReason(ReasonCode.STARTING_SOON, NextPass())
    assert explain_wait(bench.job(1), bench.ledger, None, bench.rules) == soon
    empty = Plan(admitted=[], free=(9000, 18 << 30, 1000, 1000), order=[])
    assert why(bench, 1, empty) == soon


# -- suspended jobs ---------------------------------------------------------------------------


# -- resources --------------------------------------------------------------------------------


def test_a_shortage_names_what_is_free_and_who_holds_what_is_lacking_and_until_when(
    bench: Bench,
) -> None:
    bench.start(of(BOB, 2), at_s=100)
    bench.start(of(BOB, 4), at_s=200)
    bench.submit(of(ALICE, 7))
    bench.submit(of(ALICE, 8))
    large, small = holder("2", "bob", 4000, 3800), holder("1", "bob", 2000, 3700)
    assert why(bench, 3) == too_little("cores", 7000, 3000, large)
    assert why(bench, 4) == too_little("cores", 8000, 3000, small, large)


def test_the_holder_whose_end_lets_the_job_start_is_named_and_not_the_largest(
    bench: Bench,
) -> None:
    bench.start(of(BOB, 6))
    bench.start(of(CAROL, 2, time_limit_s=60))
    bench.start(of(CAROL, 0.5, time_limit_s=30))
    bench.submit(of(ALICE, 2))
    assert why(bench, 4) == too_little("cores", 2000, 500, holder("2", "carol", 2000, 60))


def test_a_shortage_of_something_that_nobody_holds_any_more_names_nobody(bench: Bench) -> None:
    """The pass that is explained from may be a moment older than the books: a job has ended, or
    was frozen."""
    bench.start(of(BOB, 9))
    bench.suspend(1, by=ADMIN)
    bench.submit()
    full = Plan(admitted=[], free=(0, 6 << 30, 0, 0), order=["root.alice"])
    assert why(bench, 2, full) == too_little("cores", 1000, 0)
    bench.feed(st.CancelAsked(now(), 1, ADMIN))
    bench.finish(1)
    assert why(bench, 2, full) == too_little("cores", 1000, 0)


@pytest.mark.parametrize(
    ("cores", "memory_gib", "evidence"),
    [
        (
            4,
            18,
            BeyondMachine("1", "cores", 5000, 4000, is_dispensable=False),
        ),
        (
            9,
            4,
            BeyondMachine("1", "memory", 8 << 30, 4 << 30, is_dispensable=False),
        ),
    ],
)
def test_a_job_that_a_smaller_machine_can_never_run_says_so(
    cores: float, memory_gib: float, evidence: BeyondMachine
) -> None:
    bench = Bench()
    bench.submit(of(ALICE, 5, 8))
    smaller = rules(cores, memory_gib)
    for last in (None, schedule(bench.ledger, smaller)):
        reason = explain_wait(bench.job(1), bench.ledger, last, smaller)
        assert reason == WaitReason(RESOURCES, evidence)


def test_a_resource_that_the_job_does_not_ask_for_is_never_what_it_waits_for() -> None:
    """A smaller capacity came with a restart, and reading is overbooked until its holders end."""
    bench = Bench()
    bench.start(spec("root.bob", actor=BOB, asks=demand(1, 1, read=900)))
    bench.submit()
    smaller = replace(bench.rules, capacity=demand(9, 18, read=100, write=1000))
    last = Plan(admitted=[], free=(8000, 17 << 30, -800, 1000), order=["root.alice"])
    assert explain_wait(bench.job(2), bench.ledger, last, smaller) == WaitReason(
        ReasonCode.STARTING_SOON, NextPass()
    )


# -- fair share -------------------------------------------------------------------------------


def served(shortfall: Shortfall, *leaves: str) -> WaitReason:
    return WaitReason(FAIR_SHARE, ServedFirst((shortfall,), leaves, len(leaves)))


def test_what_a_limit_would_hold_back_anyway_is_told_as_the_limit(bench: Bench) -> None:
    bench.rules = replace(bench.rules, pools={"lab": Pool(limit={"cores": 4000})})
    bench.start(spec("root.lab", asks=demand(3)))
    bench.start(of(BOB, 6))
    bench.submit(spec("root.lab", actor=CAROL, asks=demand(2)))
    who = holder("1", "alice", 3000, 3600)
    limit = PathLimit("root.lab", "cores", 4000, 3000, 2000, holders=(who,))
    assert why(bench, 3) == WaitReason(ReasonCode.LIMIT, limit)


def test_a_leaf_that_the_last_pass_did_not_know_has_nobody_before_it(bench: Bench) -> None:
    bench.start(of(BOB, 6))
    bench.submit(of(BOB, 4))
    last = schedule(bench.ledger, bench.rules)
    bench.submit(of(ALICE, 4), at_s=1)
    assert why(bench, 3, last) == too_little("cores", 4000, 3000, holder("1", "bob", 6000, 3600))


def test_a_limit_below_the_demand_is_told_as_one_that_never_lets_the_job_start(
    bench: Bench,
) -> None:
    """Whatever else it would wait for. The limit was lowered after the submission."""
    bench.start(of(BOB, 8))
    bench.submit(spec("root.lab", asks=demand(5)))
    bench.rules = replace(bench.rules, pools={"lab": Pool(limit={"cores": 4000})})
    never = BeyondLimit("2", "root.lab", "cores", 5000, 4000, is_changeable=True)
    assert why(bench, 2) == WaitReason(ReasonCode.LIMIT, never)


def test_a_start_of_which_nothing_is_known_is_not_told_as_a_time(bench: Bench) -> None:
    """Nobody knows how long bob's job will run, for which the big one waits."""
    bench.start(replace(of(BOB, 5), time_limit_s=None))
    bench.submit(of(ALICE, 7), at_s=1)
    before = look_and_schedule(bench, 60)
    bench.submit(of(CAROL, 3), at_s=60)
    last = look_and_schedule(bench, 60, before)
    kept = why(bench, 3, last)
    assert kept is not None
    assert kept.evidence == replace(FOR_ALICE, start_s=None)


def test_within_a_pool_its_users_are_compared(bench: Bench) -> None:
    bench.rules = replace(bench.rules, pools={"lab": Pool()})
    bench.start(spec("root.lab", asks=demand(5)))
    bench.start(spec("root.lab", asks=demand(4)))
    bench.submit(spec("root.lab", asks=demand(1)))
    bench.submit(spec("root.lab", actor=BOB, asks=demand(5)))
    own = holder("1", "alice", 5000, 3600, is_own=True)
    assert why(bench, 3) == served(short("cores", 1000, 0, own), "root.lab.bob")
    assert why(bench, 4) == too_little("cores", 5000, 0, holder("1", "alice", 5000, 3600))


# -- limits, reservations, a launcher that is away --------------------------------------------


@pytest.mark.parametrize(
    ("limit", "evidence"),
    [
        ({"cores": 4000}, PathLimit("root.lab", "cores", 4000, 3000, 2000)),
        ({"memory": 4 << 30}, PathLimit("root.lab", "memory", 4 << 30, 3 << 30, 2 << 30)),
    ],
)
def test_a_job_that_fits_and_is_kept_back_by_a_limit_names_the_pool_and_what_it_holds(
    bench: Bench, limit: dict[str, int], evidence: PathLimit
) -> None:
    bench.rules = replace(bench.rules, pools={"lab": Pool(limit=limit)})
    bench.start(spec("root.lab", asks=demand(3, 3)))
    bench.submit(spec("root.lab", actor=BOB, asks=demand(2, 2)))
    who = holder("1", "alice", evidence.held, 3600)
    assert why(bench, 2) == WaitReason(ReasonCode.LIMIT, replace(evidence, holders=(who,)))


def test_while_the_launcher_is_away_nothing_else_is_to_blame(bench: Bench) -> None:
    bench.start(of(BOB, 9))
    bench.submit()
    bench.suspend(1, by=None)
    for job_id in (1, 2):
        assert explain_wait(
            bench.job(job_id), bench.ledger, None, bench.rules, can_launch=False
        ) == WaitReason(ReasonCode.STARTING_SOON, LauncherAway())


# -- reservations ----------------------------------------------------------------------------


def crowded(bench: Bench, *later: JobSpec, at_s: float = 60) -> Plan:
    """Bob holds five of nine cores until T+3600, alice waits for seven and carol for eight; each
    has a place. `later` are submitted after that; dave's jobs are known to be long."""
    bench.start(of(BOB, 5))
    for asked in (of(ALICE, 7), of(CAROL, 8)):
        bench.submit(asked, at_s=1)
    last = look_and_schedule(bench, 60)
    for asked in later:
        bench.submit(asked, at_s=60)
    return look_and_schedule(bench, at_s, last)


def look_and_schedule(bench: Bench, at_s: float, before: Plan | None = None) -> Plan:
    run_times = RunTimes()
    run_times.add("dave", 50_000)
    pass_context = make_pass_context(
        Ends(bench.ledger, run_times),
        patience=ReservationSettings(patience_s=30, drain_after_s=9999, depth=2),
        now_s=now(at_s).at_s,
        before=() if before is None else before.reservations,
    )
    return schedule(bench.ledger, bench.rules, None, pass_context)


FOR_ALICE = KeptFor(
    "2",
    "alice",
    (("cores", 7000), ("memory", 1 << 30)),
    start_s=now(3600).at_s,
    is_drain=False,
)


def test_a_job_with_a_place_is_told_when_it_starts(bench: Bench) -> None:
    last = crowded(bench)
    expected = {2: (7000, 3600), 3: (8000, 7200)}
    assert {job_id: why(bench, job_id, last) for job_id in expected} == {
        job_id: WaitReason(
            RESOURCES,
            HasReservation(
                (short("cores", asked, 4000, holder("1", "bob", 5000, 3600)),),
                now(start_s).at_s,
                Certainty.LIMITS,
            ),
        )
        for job_id, (asked, start_s) in expected.items()
    }


def test_who_stands_behind_a_job_that_is_kept_back_is_told_so(bench: Bench) -> None:
    """The second would have ended in time."""
    last = crowded(bench, of(DAVE, 3), replace(of(DAVE, 3), time_limit_s=60))
    assert why(bench, 5, last) == WaitReason(
        ReasonCode.RESERVATION,
        replace(FOR_ALICE, behind="4"),
    )


def test_in_a_drain_it_does_not_matter_how_soon_a_job_ends(bench: Bench) -> None:
    last = crowded(bench, replace(of(DAVE, 3), time_limit_s=60), at_s=13_700)
    assert why(bench, 4, last) == WaitReason(
        ReasonCode.RESERVATION,
        replace(FOR_ALICE, start_s=now(13_700).at_s, is_drain=True),
    )


def test_nobody_passes_a_job_of_the_same_leaf_that_has_waited_too_long(bench: Bench) -> None:
    """Erin's second job asks for no cores, so that it is in nobody's way but her first one's."""
    last = crowded(bench, of(ERIN, 6), of(ERIN, 0, 6), at_s=10_100)
    assert why(bench, 5, last) == WaitReason(
        ReasonCode.RESERVATION,
        MayNotPass("4"),
    )


def test_a_job_with_a_place_that_fits_is_told_whom_it_would_hurt(bench: Bench) -> None:
    before = crowded(bench, replace(of(DAVE, 4), time_limit_s=None))
    bench.feed(st.CancelAsked(now(), 3, ADMIN))
    last = look_and_schedule(bench, 100, before)
    assert [each.job_id for each in last.reservations] == [2, 4]
    assert why(bench, 4, last) == WaitReason(
        ReasonCode.RESERVATION,
        replace(FOR_ALICE, own_start_s=now(7200).at_s),
    )


# -- the list ---------------------------------------------------------------------------------


def test_the_codes_are_the_documented_closed_list() -> None:
    assert [code.value for code in ReasonCode] == [
        "RESOURCES",
        "FAIR_SHARE",
        "RESERVATION",
        "LIMIT",
        "DEPENDENCY",
        "DEPENDENCY_NEVER",
        "BEGIN_TIME",
        "HELD",
        "DRAINING",
        "NODE_AWAY",
        "MAINTENANCE",
        "QUOTA",
        "EXTERNAL_LOAD",
        "MACHINE_SHORT",
        "STARTING_SOON",
    ]


def test_after_a_pass_every_waiting_job_has_a_reason_other_than_starting_soon(
    bench: Bench,
) -> None:
    """A pass places all that fits, so what still waits waits for something."""
    for at in range(12):
        actor = (ALICE, BOB, CAROL)[at % 3]
        bench.submit(of(actor, 1 + at % 4, 1 + at % 5))
    bench.schedule()
    waiting = [job.id for job in bench.ledger.jobs.values() if job.state is JobState.PENDING]
    codes = {job_id: why(bench, job_id) for job_id in waiting}
    assert waiting
    assert {reason.code for reason in codes.values() if reason} <= {RESOURCES, FAIR_SHARE}
    assert None not in codes.values()


# -- other policies -----------------------------------------------------------------------------


def by(policy: str, slots: int | None = None) -> Bench:
    return Bench(replace(rules(), policy=policy, slots=slots))


def test_first_come_first_served_names_who_is_waited_for() -> None:
    bench = by("fifo")
    bench.start(of(BOB, 4), at_s=100)
    bench.submit(of(ALICE, 8))
    bench.submit(of(BOB, 1))
    bench.submit(of(ALICE, 1))
    bench.submit(of(CAROL, 6))
    assert why(bench, 2) == too_little("cores", 8000, 5000, holder("1", "bob", 4000, 3700))
    assert (
        why(bench, 3)
        == why(bench, 4)
        == WaitReason(ReasonCode.RESERVATION, BehindInFifo("2", "alice"))
    )
    assert why(bench, 5) == too_little("cores", 6000, 5000, holder("1", "bob", 4000, 3700))


def test_first_come_first_served_says_so_where_a_limit_holds_up_ones_own_jobs() -> None:
    limits = {("", "alice"): NodeSettings(limit={"cores": 3000})}
    bench = Bench(replace(rules(), policy="fifo", members=limits))
    bench.start(of(ALICE, 2))
    bench.submit(of(ALICE, 2))
    bench.submit(of(ALICE, 1))
    found = why(bench, 2)
    assert found is not None and found.code is ReasonCode.LIMIT
    assert why(bench, 3) == WaitReason(
        ReasonCode.RESERVATION,
        BehindInFifo("2", "alice"),
    )


def test_nobody_is_said_to_wait_for_a_job_that_the_machine_cannot_run_any_more() -> None:
    bench = by("fifo")
    bench.start(of(BOB, 2))
    bench.submit(of(ALICE, 9))
    bench.submit(of(ALICE, 5))
    bench.rules = replace(rules(4), policy="fifo")
    found = [why(bench, job_id) for job_id in (2, 3)]
    assert all(isinstance(each and each.evidence, BeyondMachine) for each in found)
    bench.submit(of(ALICE, 3))
    assert why(bench, 4) == too_little("cores", 3000, 2000, holder("1", "bob", 2000, 3600))


def test_when_all_slots_are_taken_that_is_what_is_waited_for() -> None:
    bench = by("slots", 2)
    bench.start(of(BOB, 1))
    bench.start(of(BOB, 5))
    bench.submit(of(ALICE, 1))
    assert why(bench, 3) == WaitReason(RESOURCES, SlotsTaken(2))


def test_when_a_slot_is_free_the_shortage_is_of_resources() -> None:
    bench = by("slots", 3)
    bench.start(of(BOB, 6), at_s=5)
    bench.submit(of(ALICE, 4))
    assert why(bench, 2) == too_little("cores", 4000, 3000, holder("1", "bob", 6000, 3605))
