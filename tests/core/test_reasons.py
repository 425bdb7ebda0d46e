"""Why a job waits: a code of the closed list, its evidence as values, and its words and columns."""

from dataclasses import replace as altered
from typing import get_args

import pytest
from msgspec.structs import replace

from core.worlds import CAROL, DAVE, ERIN, of, pass_over, why
from drfd.common.units import utc_time
from drfd.core.decisions import stimuli as st
from drfd.core.explain.reasons import explain_wait, unknown_start
from drfd.core.fairness.rules import NodeSettings, Pool, ReservationSettings
from drfd.core.model.job import (
    Dependency,
    Job,
    JobSpec,
    JobState,
    Outcome,
    Postponed,
    RequiredOutcome,
    Whose,
)
from drfd.core.model.machine import FreeResources
from drfd.core.scheduling import backfill, waits
from drfd.core.scheduling.backfill import BehindInOrder, KeptFor, MayNotPass
from drfd.core.scheduling.gates import SlotsTaken
from drfd.core.scheduling.policies import Plan
from drfd.core.scheduling.release_times import Certainty, RunTimes
from drfd.core.scheduling.waits import (
    AwaitedJob,
    BeyondLimit,
    BeyondLimitNow,
    BeyondMachine,
    ClosedNode,
    Code,
    Columns,
    CountLimit,
    DependenciesEnded,
    Draining,
    ExternalUse,
    HasReservation,
    HeldBy,
    Holder,
    LauncherAway,
    MachineShort,
    NeverStarts,
    NextPass,
    NodesAway,
    NodesDrained,
    OwesIdle,
    PathLimit,
    ReservedFirst,
    ResourceShortage,
    Shortfall,
    StartsFrom,
    SuspendedBy,
    TooLittleFree,
    Wait,
    WaitsFor,
    WindowAhead,
    WouldBeServedFirst,
)
from fakes import ADMIN, ALICE, BOB, Bench, demand, now, rules, schedule, spec

# -- reasons ---------------------------------------------------------------------------------------


RESOURCES, FAIR_SHARE = "RESOURCES", "FAIR_SHARE"


def too_little(axis: str, needed: int, free: int, *holders: Holder) -> Wait:
    return TooLittleFree((short(axis, needed, free, *holders),))


def short(axis: str, needed: int, free: int, *holders: Holder) -> Shortfall:
    return Shortfall(ResourceShortage(axis, needed, free), holders)


def holder(
    job: str, user: str, amount: int, until_s: float | None = None, *, is_own: bool = False
) -> Holder:
    return Holder(job, user, amount, None if until_s is None else now(until_s).at_s, is_own)


# -- what is not about capacity --------------------------------------------------------------------


def test_a_job_that_no_pass_has_seen_yet_starts_soon(bench):
    bench.submit()
    soon = NextPass()
    assert explain_wait(bench.job(1), bench.ledger, None, bench.rules) == soon
    empty = Plan(free=FreeResources((9000, 18 << 30, 1000, 1000)))
    assert why(bench, 1, empty) == soon


# -- resources -------------------------------------------------------------------------------------


def test_a_shortage_names_what_is_free_and_who_holds_what_is_lacking_and_until_when(bench):
    bench.start(of(BOB, 2), at_s=100)
    bench.start(of(BOB, 4), at_s=200)
    bench.submit(of(ALICE, 7))
    bench.submit(of(ALICE, 8))
    large, small = holder("2", "bob", 4000, 3800), holder("1", "bob", 2000, 3700)
    assert why(bench, 3) == too_little("cores", 7000, 3000, large)
    assert why(bench, 4) == too_little("cores", 8000, 3000, small, large)


def test_a_shortage_of_something_that_nobody_holds_any_more_names_nobody(bench):
    """The pass that is explained from may be a moment older than the books: a job has ended, or
    was frozen."""
    bench.start(of(BOB, 9))
    bench.suspend(1, by=ADMIN)
    bench.submit()
    full = Plan(free=FreeResources((0, 6 << 30, 0, 0)))
    assert why(bench, 2, full) == too_little("cores", 1000, 0)
    bench.feed(st.CancelAsked(now(), 1, ADMIN))
    bench.finish(1)
    assert why(bench, 2, full) == too_little("cores", 1000, 0)


@pytest.mark.parametrize(
    ("cores", "memory_gib", "evidence"),
    [
        (4, 18, BeyondMachine("1", "cores", 5000, 4000, is_dispensable=False)),
        (9, 4, BeyondMachine("1", "memory", 8 << 30, 4 << 30, is_dispensable=False)),
    ],
)
def test_a_job_that_a_smaller_machine_can_never_run_says_so(cores, memory_gib, evidence):
    bench = Bench()
    bench.submit(of(ALICE, 5, 8))
    smaller = rules(cores, memory_gib)
    for last in (None, schedule(bench.ledger, smaller)):
        reason = explain_wait(bench.job(1), bench.ledger, last, smaller)
        assert reason == evidence


def test_a_resource_that_the_job_does_not_ask_for_is_never_what_it_waits_for():
    """A smaller capacity came with a restart, and reading is overbooked until its holders end."""
    bench = Bench()
    bench.start(spec("root.bob", actor=BOB, asks=demand(1, 1, read=900)))
    bench.submit()
    smaller = altered(bench.rules, capacity=demand(9, 18, read=100, write=1000))
    free = FreeResources((8000, 17 << 30, -800, 1000))
    last = Plan(free=free)
    assert explain_wait(bench.job(2), bench.ledger, last, smaller) == NextPass()


# -- fair share ------------------------------------------------------------------------------------


def served(shortfall: Shortfall, *leaves: str) -> Wait:
    return WouldBeServedFirst((shortfall,), leaves, len(leaves))


def test_what_a_limit_would_hold_back_anyway_is_told_as_the_limit(bench):
    bench.rules = altered(bench.rules, pools={"lab": Pool(limit={"cores": 4000})})
    bench.start(spec("root.lab", asks=demand(3)))
    bench.start(of(BOB, 6))
    bench.submit(spec("root.lab", actor=CAROL, asks=demand(2)))
    who = holder("1", "alice", 3000, 3600)
    limit = PathLimit("root.lab", "cores", 4000, 3000, 2000, holders=(who,))
    assert why(bench, 3) == limit


def test_a_limit_below_the_demand_is_told_as_one_that_never_lets_the_job_start(bench):
    """Whatever else it would wait for. The limit was lowered after the submission."""
    bench.start(of(BOB, 8))
    bench.submit(spec("root.lab", asks=demand(5)))
    bench.rules = altered(bench.rules, pools={"lab": Pool(limit={"cores": 4000})})
    never = BeyondLimit("2", "root.lab", "cores", 5000, 4000, is_changeable=True)
    assert why(bench, 2) == never


def test_a_start_of_which_nothing_is_known_is_not_told_as_a_time(bench):
    """Nobody knows how long bob's job will run, for which the big one waits."""
    bench.start(of(BOB, 5, limit_s=None))
    bench.submit(of(ALICE, 7), at_s=1)
    before = look_and_schedule(bench, 60)
    bench.submit(of(CAROL, 3), at_s=60)
    last = look_and_schedule(bench, 60, before)
    kept = why(bench, 3, last)
    assert kept is not None
    assert kept == replace(FOR_ALICE, start_s=None)


def test_within_a_pool_its_users_are_compared(bench):
    bench.rules = altered(bench.rules, pools={"lab": Pool()})
    bench.start(spec("root.lab", asks=demand(5)))
    bench.start(spec("root.lab", asks=demand(4)))
    bench.submit(spec("root.lab", asks=demand(1)))
    bench.submit(spec("root.lab", actor=BOB, asks=demand(5)))
    own = holder("1", "alice", 5000, 3600, is_own=True)
    assert why(bench, 3) == served(short("cores", 1000, 0, own), "root.lab.bob")
    assert why(bench, 4) == too_little("cores", 5000, 0, holder("1", "alice", 5000, 3600))


# -- limits, reservations, a launcher that is away -------------------------------------------------


def test_while_the_launcher_is_away_nothing_else_is_to_blame(bench):
    bench.start(of(BOB, 9))
    bench.submit()
    bench.suspend(1, by=None)
    for job_id in (1, 2):
        assert (
            explain_wait(bench.job(job_id), bench.ledger, None, bench.rules, can_launch=False)
            == LauncherAway()
        )


# -- reservations ----------------------------------------------------------------------------------


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
    run_times.add("dave", 50_000, share=1)
    reserving = ReservationSettings(delay_s=30, drain_after_s=9999, depth=2)
    reserved = () if before is None else before.reservations
    return pass_over(bench, at_s, reserving=reserving, before=reserved, run_times=run_times)


FOR_ALICE = KeptFor(
    "2", "alice", (("cores", 7000), ("memory", 1 << 30)), start_s=now(3600).at_s, is_drain=False
)


def test_a_job_with_a_place_is_told_when_it_starts(bench):
    last = crowded(bench)
    expected = {2: (7000, 3600), 3: (8000, 7200)}
    assert {job_id: why(bench, job_id, last) for job_id in expected} == {
        job_id: HasReservation(
            (short("cores", asked, 4000, holder("1", "bob", 5000, 3600)),),
            now(start_s).at_s,
            Certainty.LIMITS,
        )
        for job_id, (asked, start_s) in expected.items()
    }


def test_nobody_passes_a_job_of_the_same_leaf_that_has_waited_too_long(bench):
    """Erin's second job asks for no cores, so that it is in nobody's way but her first one's."""
    last = crowded(bench, of(ERIN, 6), of(ERIN, 0, 6), at_s=10_100)
    assert why(bench, 5, last) == MayNotPass("4")


def test_a_job_with_a_place_that_fits_is_told_whom_it_would_hurt(bench):
    before = crowded(bench, of(DAVE, 4, limit_s=None))
    bench.feed(st.CancelAsked(now(), 3, ADMIN))
    last = look_and_schedule(bench, 100, before)
    assert [each.job_id for each in last.reservations] == [2, 4]
    assert why(bench, 4, last) == replace(FOR_ALICE, own_start_s=now(7200).at_s)


def test_whom_the_first_job_of_a_user_would_hurt_is_told_before_the_next_pass_also_with_limits(
    bench,
):
    bench.rules = altered(bench.rules, pools={"lab": Pool(limit={"cores": 4000})})
    last = crowded(bench)
    bench.submit(of(DAVE, 4, limit_s=None), at_s=60)
    assert why(bench, 4, last) == FOR_ALICE


def test_a_user_who_is_newer_than_the_pass_is_told_a_reason_as_those_before(bench):
    """Bob's job alone holds what is short, and nothing of his waits."""
    bench.rules = altered(bench.rules, pools={"lab": Pool(limit={"cores": 9000})})
    last = crowded(bench)
    assert why(bench, 3, last) is not None
    bench.submit(of(DAVE, 8), at_s=60)
    assert why(bench, 4, last).code is why(bench, 3, last).code


def test_who_would_hurt_a_reservation_is_not_told_of_those_who_are_in_nobodys_way(bench):
    """Erin's short job starts when Alice's ends, and Alice's long one does not, with it or
    without."""
    bench.start(of(ALICE, 3, limit_s=600))
    bench.start(of(BOB, 4))
    bench.submit(of(DAVE, 7))
    bench.submit(of(ALICE, 3, limit_s=None), at_s=50)
    bench.submit(of(ERIN, 4, limit_s=60), at_s=50)
    last = look_and_schedule(bench, 60)
    assert [each.job_id for each in last.reservations] == [3]
    own = short("cores", 3000, 2000, holder("1", "alice", 3000, 600, is_own=True))
    assert why(bench, 4, last) == ReservedFirst((own,), "3", "dave", 1)
    bench.feed(st.CancelAsked(now(), 3, ADMIN))
    last = look_and_schedule(bench, 70)
    assert last.reservations == ()
    assert why(bench, 4, last) == TooLittleFree((own,))


# -- other policies --------------------------------------------------------------------------------


def by(policy: str, slots: int | None = None) -> Bench:
    return Bench(altered(rules(), policy=policy, slots=slots))


def test_first_come_first_served_names_who_is_waited_for():
    bench = by("fifo")
    bench.start(of(BOB, 4), at_s=100)
    bench.submit(of(ALICE, 8))
    bench.submit(of(BOB, 1))
    bench.submit(of(ALICE, 1))
    bench.submit(of(CAROL, 6))
    assert why(bench, 2) == too_little("cores", 8000, 5000, holder("1", "bob", 4000, 3700))
    assert why(bench, 3) == why(bench, 4) == BehindInOrder("2", "alice", "fifo")
    assert why(bench, 5) == too_little("cores", 6000, 5000, holder("1", "bob", 4000, 3700))


def test_first_come_first_served_says_so_where_a_limit_holds_up_ones_own_jobs():
    limits = {("", "alice"): NodeSettings(limit={"cores": 3000})}
    bench = Bench(altered(rules(), policy="fifo", members=limits))
    bench.start(of(ALICE, 2))
    bench.submit(of(ALICE, 2))
    bench.submit(of(ALICE, 1))
    found = why(bench, 2)
    assert found is not None and found.code == "LIMIT"
    assert why(bench, 3) == BehindInOrder("2", "alice", "fifo")


def test_nobody_passes_who_came_first_and_waits_for_a_limit_and_for_the_machine():
    limits = {("", "alice"): NodeSettings(limit={"cores": 3000})}
    bench = Bench(altered(rules(), policy="fifo", members=limits))
    bench.start(of(ALICE, 2))
    bench.start(of(BOB, 6))
    bench.submit(of(ALICE, 2))
    bench.submit(of(BOB, 1))
    assert bench.schedule() == []
    found = why(bench, 3)
    assert found is not None and found.code == "LIMIT"
    assert why(bench, 4) == BehindInOrder("3", "alice", "fifo")


def test_nobody_is_said_to_wait_for_a_job_that_the_machine_cannot_run_any_more():
    bench = by("fifo")
    bench.start(of(BOB, 2))
    bench.submit(of(ALICE, 9))
    bench.submit(of(ALICE, 5))
    bench.rules = altered(rules(4), policy="fifo")
    found = [why(bench, job_id) for job_id in (2, 3)]
    assert all(isinstance(each and each, BeyondMachine) for each in found)
    bench.submit(of(ALICE, 3))
    assert why(bench, 4) == too_little("cores", 3000, 2000, holder("1", "bob", 2000, 3600))


def test_when_a_slot_is_free_the_shortage_is_of_resources():
    bench = by("slots", 3)
    bench.start(of(BOB, 6), at_s=5)
    bench.submit(of(ALICE, 4))
    assert why(bench, 2) == too_little("cores", 4000, 3000, holder("1", "bob", 6000, 3605))


# -- the end of a chain of jobs that wait for each other -------------------------------------------


def unknown(bench: Bench, job_id: int) -> str | None:
    last = schedule(bench.ledger, bench.rules)

    def reason_of(job: Job) -> Wait | None:
        return explain_wait(job, bench.ledger, last, bench.rules)

    reason = reason_of(bench.job(job_id))
    assert reason is not None
    return unknown_start(reason, bench.ledger, reason_of)


def test_an_array_stands_for_its_tasks(bench):
    bench.feed(st.SubmitAsked(now(), spec(), True, spans=((0, 4, 1),)))
    waiting = bench.submit(spec(after=(Dependency(1),)))
    assert unknown(bench, waiting) == "somebody must release job 1 first"


def test_what_its_user_keeps_suspended_gives_its_memory_back_in_the_end(bench):
    bench.rules = altered(bench.rules, max_suspended_s=3600)
    holder = bench.start(spec("root.bob", actor=BOB, asks=demand(1, 9)))
    waiting = bench.submit(spec(asks=demand(1, 9)))
    bench.suspend(holder, by=BOB, at_s=5)
    assert unknown(bench, waiting) == (
        f"somebody must resume job {holder} first, or it is ended at {utc_time(now(3605).at_s)}"
    )


# -- words -----------------------------------------------------------------------------------------


CORES = ResourceShortage("cores", 8000, 3000)
KEPT = KeptFor("2", "alice", (("cores", 7000), ("memory", 1 << 30)), 3600, is_drain=False)
POSTPONED = Postponed(
    whose=Whose.JOB, text="no process", resource="processes", at_s=0.0, until_s=1, tries=1
)
#: A job of three hours before a window of two.
AHEAD = WindowAhead("upgrade", "new kernel", 60, 7260, False, 10800, 7260)
RUNNING, STARTING, PENDING = JobState.RUNNING, JobState.STARTING, JobState.PENDING


def awaited_job(*states: tuple[JobState, int], until_s: float | None = None) -> AwaitedJob:
    return AwaitedJob("1", "bob", False, states, until_s)


def awaited_array(*states: tuple[JobState, int]) -> AwaitedJob:
    return AwaitedJob("1", "bob", True, states)


def lacks(axis: str, needed: int, free: int, held: int) -> TooLittleFree:
    return TooLittleFree((short(axis, needed, free, Holder("1", "bob", held)),))


BY_BOB = (Shortfall(CORES, (Holder("2", "bob", 4000, 3800),)),)
BY_MANY = (
    Shortfall(
        CORES,
        (Holder("3", "carol", 1000, 3700, is_own=True), Holder("2", "bob", 4000, 3800)),
        more=2,
        kept=500,
    ),
)


SENTENCES: list[tuple[Wait, str]] = [
    (HeldBy("alice", "1"), "held by alice; drf release 1 lets it go"),
    (SuspendedBy("alice", "4_7"), "suspended by alice; drf resume 4_7 lets it go on"),
    (SuspendedBy("alice", "4", ends_s=60.0),
     "suspended by alice; drf resume 4 lets it go on, or it is ended at T+60.0s"),
    (HeldBy("root", "1", is_admins=True),
     "held by root; an administrator's drf release 1 lets it go"),
    (SuspendedBy("root", "1", is_admins=True),
     "suspended by root; an administrator's drf resume 1 lets it go on"),
    (CountLimit("group sweep", at_once=2, running=2), "group sweep runs 2 at once at the most"),
    (CountLimit("group sweep", at_once=2, running=1),
     "group sweep runs 2 at once at the most; 1 run, and earlier ones come first"),
    (Draining("root", 5.0),
     "root has stopped launching (drf drain) since T+5.0s, until drf undrain"),
    (Draining("root", 5.0, "disk swap"),
     "root has stopped launching (drf drain) since T+5.0s, until drf undrain: disk swap"),
    (LauncherAway(), "the launcher is not connected; jobs start as soon as it is"),
    (NodesAway((ClosedNode("n1", away_since_s=5.0),)),
     "node n1 has been away since T+5.0s; it starts there when that is over, and no other node "
     "has enough for it"),
    (NodesAway((ClosedNode("n1"),)), "it asks for node n1, which is not configured any more"),
    (
        NodesDrained(
            (
                ClosedNode("n1", drained=Draining("root", 5.0, "new fans")),
                ClosedNode("n2", 7.0, Draining("root", 5.0)),
            )
        ),
        "node n1 was drained by root at T+5.0s: new fans; node n2 has been away since T+7.0s and "
        "was drained by root at T+5.0s; it starts on one of them when that is over, and no other "
        "node has enough for it",
    ),
    (NextPass(), "starts with the next pass"),
    # Dependencies and begin times.
    (NeverStarts("2_0", "1", Outcome.FAILED, RequiredOutcome.OK),
     "job 1 ended FAILED and was to end well, so this one never starts; "
     "drf cancel 2_0, or drf set --after '' 2_0"),
    (NeverStarts("2", "1", Outcome.COMPLETED, RequiredOutcome.FAIL),
     "job 1 ended COMPLETED and was to fail, so this one never starts; "
     "drf cancel 2, or drf set --after '' 2"),
    (
        NeverStarts(
            *("2", "1", Outcome.FAILED, RequiredOutcome.OK),
            (("3_1", RequiredOutcome.OK), ("4", RequiredOutcome.ANY)),
        ),
        "job 1 ended FAILED and was to end well, so this one never starts; "
        "drf cancel 2, or drf set --after 3_1,4:any 2",
    ),
    (
        NeverStarts(
            *("2", "1", Outcome.FAILED, RequiredOutcome.OK),
            held=HeldBy("root", "2", is_admins=True),
        ),
        "job 1 ended FAILED and was to end well, so this one never starts; "
        "drf cancel 2, or drf set --after '' 2; "
        "it is held by root, too (an administrator's drf release 2)",
    ),
    (DependenciesEnded(), "all that it waits for has ended: it is next"),
    (WaitsFor(awaited_job((STARTING, 1))), "waits for job 1 (bob), which is STARTING"),
    (WaitsFor(awaited_job((RUNNING, 1), until_s=70)),
     "waits for job 1 (bob), which is RUNNING and ends by T+70s at the latest"),
    (WaitsFor(awaited_job((PENDING, 1)), 1), "waits for job 1 (bob), which is PENDING, and 1 more"),
    (WaitsFor(awaited_job()), "waits for job 1 (bob), which never starts: see drf why 1"),
    (WaitsFor(awaited_job(), is_through_others=True),
     "waits, over others, for job 1 (bob), which never starts: see drf why 1"),
    (WaitsFor(awaited_array((PENDING, 10))), "waits for array 1 (bob), which is PENDING"),
    (WaitsFor(awaited_array((RUNNING, 2), (PENDING, 7))),
     "waits for array 1 (bob), which is RUNNING (2 tasks) and PENDING (7)"),
    (WaitsFor(awaited_array((RUNNING, 1), (STARTING, 8), (JobState.HELD, 1), (PENDING, 2))),
     "waits for array 1 (bob), which is RUNNING (1 task), STARTING (8), HELD (1) "
     "and PENDING (2)"),
    (StartsFrom(60), "it may start from T+60s on"),
    (StartsFrom(60, "attempt 2 of 4; attempt 1 ended FAILED (exit code 3)"),
     "attempt 2 of 4; attempt 1 ended FAILED (exit code 3); it may start from T+60s on"),
    # Launches for which something was short.
    (MachineShort(POSTPONED),
     "no process; a launch is tried again at T+1s; processes of this user that end make room, "
     "those outside drfd included; an administrator can raise enforcement.processes_per_user"),
    (MachineShort(altered(POSTPONED, whose=Whose.MACHINE, tries=2)),
     "no process; a launch is tried again at T+1s, after 2 tries in vain; processes that end "
     "make room; an administrator can raise kernel.pid_max, or lower "
     "enforcement.processes_total"),
    # Resources.
    (BeyondMachine("1", "cores", 5000, 4000, is_dispensable=False),
     "needs 5 cores, and the machine gives only 4 since its configuration was changed"),
    (BeyondMachine("1", "memory", 8 << 30, 4 << 30, is_dispensable=False),
     "needs 8G of memory, and the machine gives only 4G since its configuration was changed"),
    (BeyondMachine("2", "read:scratch", 30, 0, is_dispensable=True),
     "needs 30/s of disk reads on scratch, and the machine gives only 0/s "
     "since its configuration was changed; drf set --io scratch=0 2 lets it do without"),
    (BeyondMachine("2", "gpu", 1, 0, is_dispensable=True),
     "needs 1 gpu, and the machine gives only 0 "
     "since its configuration was changed; drf set --gres gpu=0 2 lets it do without"),
    (BeyondLimit("7", "root.lab", "cores", 8000, 2000, is_changeable=True),
     "needs 8 cores, and lab may hold only 2, so it never starts; "
     "drf set -c 2 7 lets it start, and so does a higher limit"),
    (BeyondLimit("7", "root.lab", "memory", 8 << 30, 2 << 30, is_changeable=True),
     "needs 8G of memory, and lab may hold only 2G, so it never starts; "
     "drf set -m 2G 7 lets it start, and so does a higher limit"),
    (BeyondLimit("7", "root.lab", "gpu", 2, 1, is_changeable=True),
     "needs 2 gpu, and lab may hold only 1, so it never starts; "
     "drf set --gres gpu=1 7 lets it start, and so does a higher limit"),
    (BeyondLimit("7", "root.lab", "gpu", 2, 0, is_changeable=True),
     "needs 2 gpu, and lab may hold only 0, so it never starts; "
     "a higher limit lets it start, or a smaller demand (drf set)"),
    (BeyondLimit("7", "root.lab", "cores", 8000, 2000, is_changeable=False),
     "needs 8 cores, and lab may hold only 2, so it never starts"),
    (PathLimit("root.lab", "cores", 4000, 3000, 2000),
     "lab may hold 4 cores and holds 3; the job needs 2"),
    (PathLimit("root.lab", "cores", 4000, 3000, 2000, until_s=60),
     "lab may hold 4 cores until T+60s, and holds 3; the job needs 2"),
    (
        PathLimit(
            "root.lab",
            "cores",
            4000,
            3000,
            2000,
            holders=(Holder("7", "bob", 3000, 90),),
            more=2,
        ),
        "lab may hold 4 cores and holds 3; the job needs 2; job 7 (bob) holds 3 until T+90s at the "
        "latest; 2 more jobs the rest",
    ),
    (BeyondLimitNow("root.lab", "cores", 2000, 0, until_s=60, from_s=60),
     "needs 2 cores, and lab may hold 0 until T+60s"),
    (BeyondLimitNow("root.lab", "memory", 2 << 30, 1 << 30, until_s=60, from_s=90),
     "needs 2G of memory, and lab may hold 1G until T+60s; it may start from T+90s on"),
    (BeyondLimitNow("root.lab.alice", "cores", 2000, 0, until_s=60, from_s=None),
     "needs 2 cores, and lab/alice may hold 0 until T+60s; at no hour do all its limits let it "
     "start"),
    (PathLimit("root.lab", "memory", 4 << 30, 3 << 30, 2 << 30),
     "lab may hold 4G of memory and holds 3G; the job needs 2G"),
    (TooLittleFree((short("cores", 1000, 0),)), "needs 1 core, 0 free"),
    (TooLittleFree(BY_MANY),
     "needs 8 cores, 3 free; job 3, also of carol, holds 1 until T+3700s at the latest; "
     "job 2 (bob) holds 4 until T+3800s at the latest; 2 more jobs the rest; "
     "0.5 is kept for processes outside jobs"),
    (TooLittleFree((short("cores", 2000, 0), short("gpu", 1, 0, Holder("4", "dan", 2)), *BY_BOB)),
     "needs 2 cores, 0 free; and needs 1 gpu, 0 free; job 4 (dan) holds 2; "
     "and too little is free of cores"),
    (TooLittleFree(BY_BOB),
     "needs 8 cores, 3 free; job 2 (bob) holds 4 until T+3800s at the latest"),
    (lacks("cores", 1500, 500, 8500), "needs 1.5 cores, 0.5 free; job 1 (bob) holds 8.5"),
    (lacks("memory", 8 << 30, 6 << 30, 12 << 30),
     "needs 8G of memory, 6G free; job 1 (bob) holds 12G"),
    (lacks("read", 512, 300, 700),
     "needs 512/s of disk reads, 300/s free; job 1 (bob) holds 700/s"),
    (lacks("write", 512, 300, 700),
     "needs 512/s of disk writes, 300/s free; job 1 (bob) holds 700/s"),
    (lacks("gpu", 2, 0, 2), "needs 2 gpu, 0 free; job 1 (bob) holds 2"),
    (HasReservation(BY_BOB, 3600),
     "needs 8 cores, 3 free; job 2 (bob) holds 4 until T+3800s at the latest; "
     "what is given back is kept for it, "
     "and it starts about T+3600s, estimated from few earlier jobs"),
    (HasReservation((short("cores", 8000, 3000),), 3600, Certainty.LIMITS),
     "needs 8 cores, 3 free; what is given back is kept for it, "
     "and it starts by T+3600s, when jobs reach their time limits"),
    (HasReservation((short("cores", 8000, 3000),), 3600, Certainty.UNKNOWN),
     "needs 8 cores, 3 free; what is given back is kept for it"),
    (OwesIdle((short("cores", 8000, 3000),), "root.lab.bob", 3600),
     "needs 8 cores, 3 free; nothing is reserved for it before T+3600s: "
     "reservations of lab/bob kept idle more than reservation_allowance"),
    (OwesIdle((short("cores", 8000, 3000),), "root.bob", None),
     "needs 8 cores, 3 free; nothing is reserved for it: "
     "reservations of bob kept idle more than reservation_allowance"),
    (ExternalUse(ResourceShortage("memory", 10 << 30, 8 << 30), used=8 << 30, kept=6 << 30),
     "needs 10G of memory, 8G free; "
     "processes outside drfd use 8G, 6G of it out of what is for jobs"),
    (ExternalUse(CORES, used=6001, kept=6001),
     "needs 8 cores, 3 free; processes outside drfd use 6.001"),
    (ExternalUse(CORES, used=6000, kept=4000,
                 users=(("bob", "python3", 4100), ("carol", "make", 1000))),
     "needs 8 cores, 3 free; "
     "processes outside drfd use 6 (python3 of bob 4.1, make of carol 1), "
     "4 of it out of what is for jobs"),
    (
        ExternalUse(
            ResourceShortage("gpu", 2, 0),
            3,
            3,
            (("0", ("carol", "dave")), ("GPU-5c", ("root",)), ("2", ())),
        ),
        "needs 2 gpu, 0 free; gpu 0 is used by processes of carol, dave outside drfd; "
        "gpu GPU-5c is used by processes of root outside drfd; "
        "gpu 2 is lost: its driver does not reach it any more",
    ),
    (ExternalUse(ResourceShortage("gpu", 1, 0), 1, 1, (("0", ()),)),
     "needs 1 gpu, 0 free; gpu 0 is lost: its driver does not reach it any more"),
    # Shares.
    (WouldBeServedFirst((short("cores", 8000, 3000),), ("root.alice",), 1),
     "needs 8 cores, 3 free; alice has less and goes first"),
    (WouldBeServedFirst(BY_BOB, ("root.lab.bob", "root.carol", "root.dave"), 4),
     "needs 8 cores, 3 free; job 2 (bob) holds 4 until T+3800s at the latest; "
     "lab/bob, carol, dave and 1 more have less and go first"),
    (WouldBeServedFirst((short("cores", 8000, 3000),), ("root.alice",), 1, have_less=False),
     "needs 8 cores, 3 free; alice goes first and stays within its share; this job would not"),
    # Reservations.
    (ReservedFirst((short("cores", 8000, 3000),), "7", "alice", 1),
     "needs 8 cores, 3 free; job 7 (alice) has a reservation and comes first"),
    (ReservedFirst((short("cores", 8000, 3000),), "7", "alice", 2),
     "needs 8 cores, 3 free; job 7 (alice) and 1 more have reservations and come first"),
    (KEPT, "it fits, but room is kept free for job 2 (alice), which needs 7 cores, 1G of memory "
     "and is expected to start by T+3600s; this job would not have ended by then"),
    (replace(KEPT, start_s=None),
     "it fits, but room is kept free for job 2 (alice), which needs 7 cores, 1G of memory"),
    (replace(KEPT, own_start_s=7200),
     "it fits, but room is kept free for job 2 (alice), which needs 7 cores, 1G of memory "
     "and is expected to start by T+3600s; this job would not have ended by then; "
     "it starts by T+7200s itself"),
    (replace(KEPT, behind="4"), "it fits, but job 4, which needs the same, comes first; "
     "room is kept free for job 2 (alice), which needs 7 cores, 1G of memory "
     "and is expected to start by T+3600s"),
    (replace(KEPT, user=None, is_drain=True),
     "it fits, but everything that it needs is kept free for job 2, "
     "which needs 7 cores, 1G of memory and is expected to start by T+3600s"),
    (MayNotPass("4"),
     "it fits, but job 4 comes first: it has waited so long that no later job may pass it"),
    (MayNotPass("4", own_start_s=60),
     "it fits, but job 4 comes first: it has waited so long that no later job may pass it; "
     "it starts by T+60s itself"),
    # Maintenance windows.
    (AHEAD,
     "it might not end before the maintenance window upgrade (T+60s to T+7260s: new kernel): "
     "its time limit is 3h00m; it starts from T+7260s on, or drf set -t TIME gives it a "
     "shorter one"),
    (replace(AHEAD, reason="", limit_s=None),
     "it might not end before the maintenance window upgrade (T+60s to T+7260s): it has no time "
     "limit; it starts from T+7260s on, or drf set -t TIME gives it one"),
    (replace(AHEAD, is_open=True),
     "the maintenance window upgrade is open until T+7260s; nothing starts before: new kernel"),
    (replace(AHEAD, is_open=True, reason="", from_s=9000),
     "the maintenance window upgrade is open until T+7260s; nothing starts before, and this job "
     "not before T+9000s"),
    (replace(AHEAD, from_s=None),
     "its time limit is 3h00m, longer than the times between maintenance windows (upgrade, "
     "T+60s to T+7260s: new kernel), so it never starts; drf set -t TIME gives it a shorter "
     "one"),
    # Other policies.
    (SlotsTaken(2), "all 2 slots are taken (policy slots)"),
    (BehindInOrder("2", "alice", "fifo"),
     "job 2 (alice) comes first and waits itself; with the policy fifo nobody passes it"),
]  # fmt: skip


@pytest.fixture
def from_t(monkeypatch):
    """Times are told as seconds from T on."""
    for name in ("utc_time", "short_utc"):
        monkeypatch.setattr(waits, name, lambda at_s: f"T+{at_s}s")
    monkeypatch.setattr(backfill, "utc_time", waits.utc_time)


@pytest.mark.usefixtures("from_t")
@pytest.mark.parametrize(("reason", "sentence"), SENTENCES)
def test_the_reason_is_told_in_these_words(reason, sentence):
    assert reason.text() == sentence


COLUMNS: list[tuple[Wait, Columns]] = [
    (HeldBy("alice", "1"), Columns("release", "alice")),
    (SuspendedBy("root", "4_7"), Columns("resume", "root")),
    (CountLimit("group sweep", 2, 2), Columns("group sweep", "2 at once")),
    (Draining("root", 5.0), Columns("undrain", "root")),
    (AHEAD, Columns("end of upgrade", "maintenance window", until_s=7260)),
    (replace(AHEAD, from_s=None), Columns("never starts", "maintenance window")),
    (LauncherAway(), Columns("launcher")),
    (NodesAway((ClosedNode("n1"), ClosedNode("n2"))), Columns("n1 or n2")),
    (NodesDrained((ClosedNode("n1"),)), Columns("n1")),
    (NextPass(), Columns("next pass")),
    (NeverStarts("2_0", "1", Outcome.FAILED, RequiredOutcome.OK),
     Columns("never starts", "job 1 FAILED")),
    (DependenciesEnded(), Columns("next pass")),
    (WaitsFor(awaited_job((RUNNING, 1), until_s=70)), Columns("job 1", "bob", until_s=70)),
    (WaitsFor(awaited_array((PENDING, 10)), 3), Columns("array 1 +3", "bob")),
    (StartsFrom(60), Columns("T+60s", until_s=60)),
    (MachineShort(POSTPONED), Columns("processes", "own limit", until_s=1)),
    (MachineShort(altered(POSTPONED, whose=Whose.MACHINE, resource="memory")),
     Columns("memory", "machine", until_s=1)),
    (BeyondMachine("2", "read:scratch", 30, 0, is_dispensable=True),
     Columns("more scratch reads", "capacity 0/s")),
    (CountLimit("array 1", 4, 4), Columns("array 1", "4 at once")),
    (BeyondLimit("7", "root.lab", "cores", 8000, 2000, is_changeable=True),
     Columns("limit of cores", "lab: 2")),
    (BeyondLimitNow("root.lab", "cores", 2000, 0, until_s=60, from_s=90),
     Columns("limit of cores", "lab: 0", until_s=90)),
    (PathLimit("root.lab", "cores", 4000, 3000, 2000),
     Columns("limit of cores", "lab", ResourceShortage("cores", 2000, 1000))),
    (TooLittleFree((short("read", 1000, 0),)),
     Columns("disk reads", shortage=ResourceShortage("read", 1000, 0))),
    (TooLittleFree(BY_BOB), Columns("cores", "job 2 (bob)", CORES, 3800)),
    (TooLittleFree(BY_MANY), Columns("cores", "job 3 (carol) +3", CORES)),
    (HasReservation(BY_BOB, 3600), Columns("cores", "running jobs", CORES, 3600)),
    (OwesIdle(BY_BOB, "root.bob", 3600), Columns("cores", "job 2 (bob)", CORES, 3800)),
    (HasReservation(BY_BOB, 3600, Certainty.UNKNOWN), Columns("cores", "running jobs", CORES)),
    (ExternalUse(CORES, used=6001, kept=6001), Columns("cores", "external load", CORES)),
    (WouldBeServedFirst((short("cores", 8000, 3000),), ("root.alice",), 1),
     Columns("share of cores", "alice", CORES)),
    (WouldBeServedFirst((short("cores", 8000, 3000),), ("root.lab.bob",), 4),
     Columns("share of cores", "lab/bob +3", CORES)),
    (ReservedFirst((short("cores", 8000, 3000),), "7", "alice", 1),
     Columns("cores", "reservation (alice)", CORES)),
    (KEPT, Columns("start of 2", "reservation (alice)", until_s=3600)),
    (replace(KEPT, user=None), Columns("start of 2", "reservation", until_s=3600)),
    (MayNotPass("4", own_start_s=60), Columns("start of 4", "starvation guard")),
    (SlotsTaken(2), Columns("a slot", "2 slots taken")),
    (BehindInOrder("2", "alice", "fifo"), Columns("start of 2", "job 2 (alice)")),
]  # fmt: skip


@pytest.mark.usefixtures("from_t")
@pytest.mark.parametrize(("reason", "columns"), COLUMNS)
def test_the_reason_has_these_columns(reason, columns):
    assert reason.columns() == columns


def test_every_reason_has_a_sentence_and_columns_here_and_one_of_the_documented_codes():
    kinds = [Wait]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {type(reason) for reason, _ in SENTENCES} == {*kinds[1:]}
    assert {type(reason) for reason, _ in COLUMNS} == {*kinds[1:]}
    assert {kind.code for kind in kinds[1:]} == {*get_args(Code)}


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        (HeldBy("root", "2"), "somebody must release it first"),
        (SuspendedBy("root", "2"), "somebody must resume it first"),
        (Draining("root", 0), "no job starts until drf undrain"),
        (NodesAway((ClosedNode("n1"), ClosedNode("n2"))), "no job starts on n1 or n2 just now"),
        (WaitsFor(awaited_job((JobState.HELD, 1))), "the job that it waits for is held"),
        (WaitsFor(awaited_job((JobState.SUSPENDED, 1))), "the job that it waits for is suspended"),
        (WaitsFor(awaited_job()), "what it waits for can no longer happen"),
        (WaitsFor(awaited_job((RUNNING, 1))), None),
        (
            BeyondMachine("7", "cores", 8000, 4000, is_dispensable=False),
            "it needs more than the machine gives",
        ),
        (
            BeyondLimit("7", "root.lab", "cores", 8000, 2000, is_changeable=True),
            "it needs more than its limit lets it have",
        ),
        (
            ExternalUse(CORES, used=1, kept=1),
            "nobody knows when processes outside jobs will use less",
        ),
        (
            TooLittleFree((Shortfall(CORES, kept=1000),)),
            "nobody knows when processes outside jobs will use less",
        ),
        (TooLittleFree((Shortfall(CORES),)), None),
        (replace(AHEAD, from_s=None), "it is too long for the times between maintenance windows"),
        (AHEAD, None),
    ],
)
def test_an_unknown_start_has_its_own_cause(evidence, text):
    assert evidence.unknown() == text


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        (HeldBy("root", "3"), "somebody must release job 3 first"),
        (SuspendedBy("root", "3"), "somebody must resume job 3 first"),
        (WaitsFor(awaited_job()), "what job 3 waits for can no longer happen"),
        (
            ExternalUse(CORES, used=1, kept=1),
            "job 3 comes first, and nobody knows when processes outside jobs will use less",
        ),
        (TooLittleFree((Shortfall(CORES),)), None),
    ],
)
def test_an_unknown_start_may_be_another_jobs(evidence, text):
    assert evidence.unknown("job 3") == text
