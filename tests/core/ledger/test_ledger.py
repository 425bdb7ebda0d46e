"""The books: one writer, tables that agree, and a history that replays to the same books."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest

from drfd.core.amounts.resources import Axes
from drfd.core.ledger.ledger import JobCounts, Ledger
from drfd.core.ledger.queue import LeafQueue
from drfd.core.model import events as ev
from drfd.core.model.account import AccountedAmount
from drfd.core.model.job import Job, JobState, Outcome, Stop, Usage
from drfd.core.model.lifecycle import TRANSITIONS, InvalidTransition
from drfd.core.model.stimuli import AttemptRemoved
from fakes import (
    ALICE,
    BOB,
    Bench,
    attempt_started,
    demand,
    ended,
    happened,
    ledger_at,
    now,
    spec,
    tables,
)

S = JobState
KINDS = list(get_args(ev.JobEvent))
LIVE = [state for state in JobState if state is not S.ENDED]
GIB = 1 << 30
NOTHING = (0, 0, 0, 0)
#: What `spec()` asks for.
ONE = (1000, GIB, 0, 0)


# -- state × event ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS[1:]], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", LIVE)
def test_an_event_moves_the_job_as_the_table_says_or_changes_nothing(
    state: JobState, kind: type
) -> None:
    ledger = ledger_at(state)
    before = tables(ledger)
    after = TRANSITIONS[state].get(kind)
    if after is None:
        with pytest.raises(InvalidTransition):
            ledger.apply(happened(kind))
        assert tables(ledger) == before
    else:
        job = ledger.apply(happened(kind))
        assert job is not None
        assert job.state is after
        assert ledger.jobs == ({} if after is S.ENDED else {1: job})
    ledger.check()


@pytest.mark.parametrize("state", LIVE)
def test_a_job_cannot_be_born_twice(state: JobState) -> None:
    """The same id again would be counted twice in every table."""
    ledger = ledger_at(state)
    before = tables(ledger)
    with pytest.raises(InvalidTransition):
        ledger.apply(happened(ev.Submitted, spec=spec("root.bob", actor=BOB)))
    assert tables(ledger) == before


def test_an_event_about_a_job_that_has_ended_is_an_invalid_transition() -> None:
    ledger = ledger_at(S.ENDED)
    before = tables(ledger)
    with pytest.raises(InvalidTransition):
        ledger.apply(happened(ev.Cleaned))
    assert tables(ledger) == before


# -- what each event makes of a job -----------------------------------------------------------


def test_a_submitted_job_waits_in_the_queue_of_its_leaf() -> None:
    ledger = Ledger(Axes())
    job = ledger.apply(happened(ev.Submitted, 3, spec=spec(priority=5)))
    assert job == Job(
        id=3,
        spec=spec(priority=5),
        state=S.PENDING,
        submitted_at=now().at_s,
        eligible_at=now().at_s,
    )
    queue = LeafQueue()
    queue.add(ONE, (-5, 3))
    assert tables(ledger) == {
        "jobs": {3: job},
        "queues": {"root.alice": queue},
        "used": {},
        "allocations": {},
        "allocated": NOTHING,
        "taken": {},
        "job_counts": JobCounts(
            states=Counter({S.PENDING: 1}),
            waiting=Counter({"alice": 1}),
            stored_bytes=Counter({"alice": spec().stored_bytes}),
            all_stored_bytes=spec().stored_bytes,
        ),
        "dependents": {},
        "begins": [],
        "arrays": {},
        "next_id": 4,
        "drained": None,
        "node_drains": {},
        "nodes_away": {},
        "groups": {},
    }


def test_a_job_submitted_on_hold_waits_outside_the_queue() -> None:
    ledger = Ledger(Axes())
    job = ledger.apply(happened(ev.Submitted, held=True))
    assert job == Job(
        id=1, spec=spec(), state=S.HELD, submitted_at=now().at_s, eligible_at=None, held_by="alice"
    )
    assert ledger.queues == {}
    assert ledger.job_counts.waiting == {"alice": 1}


def test_holding_and_releasing_move_the_time_from_which_a_job_is_eligible() -> None:
    ledger = ledger_at(S.PENDING)
    before = ledger.jobs[1]
    held = ledger.apply(happened(ev.Held, at_s=5, by="root"))
    assert held == replace(before, state=S.HELD, held_by="root", eligible_at=None)
    released = ledger.apply(happened(ev.Released, at_s=9))
    assert released == replace(before, eligible_at=now(9).at_s)


def test_a_job_cancelled_before_it_started_says_by_whom() -> None:
    ledger = ledger_at(S.PENDING)
    before = ledger.jobs[1]
    assert ledger.apply(happened(ev.Cancelled, at_s=5, by="root")) == replace(
        before,
        state=S.ENDED,
        ended_at=now(5).at_s,
        outcome=Outcome.CANCELLED,
        outcome_text="cancelled by root before it started",
    )


def test_a_life_leaves_its_marks_one_by_one() -> None:
    ledger = ledger_at(S.PENDING)
    job = ledger.jobs[1]
    steps: list[tuple[Any, dict[str, Any]]] = [
        (happened(ev.Admitted, at_s=1, attempt=1), {"state": S.STARTING, "attempt": 1}),
        (
            happened(ev.Launched, at_s=2, cgroup="drfd/1.1"),
            {
                "state": S.RUNNING,
                "started_at": now(2).at_s,
                "started_mono_s": now(2).mono_s,
                "cgroup": "drfd/1.1",
            },
        ),
        (
            happened(ev.StopRequested, at_s=3, outcome=Outcome.TIMEOUT, text="too long"),
            {
                "state": S.STOPPING,
                "stop": Stop(
                    outcome=Outcome.TIMEOUT,
                    text="too long",
                    at_s=now(3).at_s,
                    mono_s=now(3).mono_s,
                ),
            },
        ),
        (
            happened(ev.Escalated, at_s=4),
            {
                "stop": Stop(
                    outcome=Outcome.TIMEOUT,
                    text="too long",
                    at_s=now(3).at_s,
                    mono_s=now(3).mono_s,
                    escalated=True,
                )
            },
        ),
        (
            happened(
                ev.Exited,
                at_s=5,
                exit_code=None,
                signal=9,
                outcome=Outcome.TIMEOUT,
                text="too long",
                usage=Usage(cpu_s=2.0),
            ),
            {
                "state": S.CLEANING,
                "ended_at": now(5).at_s,
                "signal": 9,
                "outcome": Outcome.TIMEOUT,
                "outcome_text": "too long",
                "usage": Usage(cpu_s=2.0),
            },
        ),
        (happened(ev.Cleaned, at_s=6), {"state": S.ENDED}),
    ]
    for event, changes in steps:
        job = replace(job, **changes)
        assert ledger.apply(event) == job
    assert ledger.jobs == {}


def test_the_news_of_a_start_that_a_stop_overtook_keeps_the_stop() -> None:
    ledger = ledger_at(S.STARTING)
    stopping = ledger.apply(happened(ev.StopRequested, at_s=1))
    assert stopping is not None
    assert ledger.apply(happened(ev.Launched, at_s=2, cgroup=None)) == replace(
        stopping, started_at=now(2).at_s, started_mono_s=now(2).mono_s
    )


def test_a_failed_launch_leaves_what_failed() -> None:
    ledger = ledger_at(S.STARTING)
    starting = ledger.jobs[1]
    assert ledger.apply(happened(ev.LaunchFailed, at_s=1)) == replace(
        starting,
        state=S.CLEANING,
        ended_at=now(1).at_s,
        outcome=Outcome.LAUNCH_FAILED,
        outcome_text="no such file",
    )


def test_draining_is_about_no_job_and_lasts_until_it_is_undone() -> None:
    ledger = ledger_at(S.RUNNING)
    before = tables(ledger)
    drained = ev.Drained(at_s=0, on=True, by="root", reason="disk swap")
    assert ledger.apply(drained) is None
    assert tables(ledger) == before | {"drained": drained}
    assert ledger.apply(ev.Drained(at_s=1, on=False, by="root")) is None
    assert tables(ledger) == before


# -- who holds what ---------------------------------------------------------------------------


def test_memory_comes_back_only_when_the_cgroup_is_gone() -> None:
    """A main process can exit and leave children that still use it."""
    ledger = ledger_at(S.RUNNING)
    ledger.apply(happened(ev.Exited))
    assert ledger.allocated == ONE
    assert ledger.used == {"root.alice": ONE}
    ledger.apply(happened(ev.Cleaned))
    assert ledger.allocated == NOTHING
    assert ledger.used == {}
    assert ledger.allocations == {}


def test_resources_are_booked_at_admission_before_anything_runs() -> None:
    ledger = ledger_at(S.PENDING)
    assert ledger.allocated == NOTHING
    ledger.apply(happened(ev.Admitted))
    assert ledger.allocated == ONE
    assert ledger.queues == {}
    assert ledger.job_counts.waiting == {}
    assert [job.id for job in ledger.allocated_jobs()] == [1]


@pytest.mark.parametrize("state", JobState)
def test_a_state_puts_a_job_into_its_tables_and_no_others(state: JobState) -> None:
    """SUSPENDED by its owner: it keeps its memory, and waits for nothing."""
    ledger = ledger_at(state)
    holds = state in (S.STARTING, S.RUNNING, S.SUSPENDED, S.STOPPING, S.CLEANING)
    held = (0, GIB, 0, 0) if state is S.SUSPENDED else ONE
    assert (set(ledger.queues) == {"root.alice"}) is (state is S.PENDING)
    assert ledger.job_counts.waiting == ({"alice": 1} if state in (S.PENDING, S.HELD) else {})
    assert ledger.allocated == (held if holds else NOTHING)
    assert ledger.used == ({"root.alice": held} if holds else {})
    assert ledger.allocations == ({"root.alice": {1}} if holds else {})
    assert set(ledger.jobs) == (set() if state is S.ENDED else {1})
    assert ledger.active_leaves() == ({"root.alice"} if holds or state is S.PENDING else set())


def test_each_leaf_holds_the_sum_of_its_jobs_and_the_books_the_sum_of_the_leaves() -> None:
    ledger = Ledger(Axes())
    asks = [demand(1, 4), demand(3, 1, read=5), demand(1, 2)]
    owners = [("root.alice", ALICE), ("root.bob", BOB), ("root.alice", ALICE)]
    for job_id, (asked, (leaf, actor)) in enumerate(zip(asks, owners, strict=True), start=1):
        ledger.apply(happened(ev.Submitted, job_id, spec=spec(leaf, actor=actor, asks=asked)))
        ledger.apply(happened(ev.Admitted, job_id))
    assert ledger.used == {
        "root.alice": (2000, 6 * GIB, 0, 0),
        "root.bob": (3000, 1 * GIB, 5, 0),
    }
    assert ledger.allocated == (5000, 7 * GIB, 5, 0)
    assert ledger.allocations == {"root.alice": {1, 3}, "root.bob": {2}}
    assert sorted(job.id for job in ledger.allocated_jobs()) == [1, 2, 3]


def test_a_machine_with_countables_books_them_too() -> None:
    ledger = ledger_at(
        S.STARTING, axes=Axes(gres=("gpu",)), spec=spec(asks=replace(demand(), gres=(("gpu", 2),)))
    )
    assert ledger.nothing == (0, 0, 0, 0, 0)
    assert ledger.allocated == (1000, GIB, 0, 0, 2)


# -- suspension -------------------------------------------------------------------------------

GPUS = Axes(gres=("gpu",))
#: 2 cores, 4 GiB, 5 and 6 bytes per second, and a GPU: all, what stays, and what is given back.
RICH = spec(asks=replace(demand(2, 4, read=5, write=6), gres=(("gpu", 1),)), priority=3)
ALL, KEPT, GIVEN = (2000, 4 * GIB, 5, 6, 1), (0, 4 * GIB, 0, 0, 1), (2000, 0, 5, 6, 0)


def test_what_is_held_and_waited_for_through_every_step_of_a_suspension() -> None:
    """Everything until it is frozen; then what it stores and owns, and it waits for the rest as
    long as nobody keeps it."""
    ledger = ledger_at(S.RUNNING, axes=GPUS, spec=RICH)
    steps: list[tuple[Any, tuple[int, ...], tuple[int, ...] | None]] = [
        (happened(ev.SuspendRequested, by="alice"), ALL, None),
        (happened(ev.ResumeRequested), ALL, None),
        (happened(ev.SuspendRequested, by="alice"), ALL, None),
        (happened(ev.Suspended), KEPT, None),
        (happened(ev.ResumeRequested), KEPT, GIVEN),
        (happened(ev.SuspendRequested, by="root"), KEPT, None),
        (happened(ev.ResumeRequested, by="root"), KEPT, GIVEN),
        (happened(ev.Resumed), ALL, None),
        (happened(ev.SuspendRequested, by=None), ALL, None),
        (happened(ev.Suspended), KEPT, GIVEN),
        (happened(ev.Resumed), ALL, None),
        (happened(ev.Exited), ALL, None),
    ]
    for event, held, wanted in steps:
        job = ledger.apply(event)
        assert job is not None
        assert (ledger.allocation(job), ledger.wanted(job)) == (held, wanted), event
        assert (ledger.allocated, ledger.used) == (held, {"root.alice": held}), event
        queue = LeafQueue()
        if wanted is not None:
            queue.add(wanted, (-3, 1))
        assert ledger.queues == ({} if wanted is None else {"root.alice": queue}), event
        assert ledger.job_counts.waiting == {}, (
            "it has started: the bound on waiting jobs is not about it"
        )
        ledger.check()


def test_a_job_that_does_not_hold_anything_holds_nothing() -> None:
    for state in (S.PENDING, S.HELD):
        ledger = ledger_at(state)
        assert ledger.allocation(ledger.jobs[1]) == NOTHING
    assert ledger_at(S.PENDING).wanted(ledger_at(S.PENDING).jobs[1]) == ONE
    assert ledger_at(S.HELD).wanted(ledger_at(S.HELD).jobs[1]) is None


@pytest.mark.parametrize(
    "end", [[happened(ev.StopRequested), happened(ev.Exited)], [happened(ev.Exited)]]
)
def test_a_job_that_ends_while_it_is_frozen_gets_nothing_back_on_its_way_out(
    end: list[Any],
) -> None:
    """Its cores are somebody else's by then."""
    ledger = ledger_at(S.SUSPENDED, axes=GPUS, spec=RICH)
    for event in end:
        job = ledger.apply(event)
        assert job is not None
        assert (ledger.allocated, ledger.wanted(job)) == (KEPT, None)
    ledger.apply(happened(ev.Cleaned))
    assert ledger.allocated == (0, 0, 0, 0, 0)
    ledger.check()


def test_a_suspension_leaves_its_marks_one_by_one() -> None:
    ledger = ledger_at(S.RUNNING)
    job = ledger.jobs[1]
    steps: list[tuple[Any, dict[str, Any]]] = [
        (happened(ev.SuspendRequested, at_s=1), {"held_by": "alice", "freezing": True}),
        (
            happened(ev.Suspended, at_s=2),
            {
                "state": S.SUSPENDED,
                "freezing": False,
                "suspended_at": now(2).at_s,
                "suspended_mono_s": now(2).mono_s,
                "suspensions": 1,
            },
        ),
        (happened(ev.SuspendRequested, at_s=3, by="root"), {"held_by": "root"}),
        (happened(ev.ResumeRequested, at_s=4, by="root"), {"held_by": None}),
        (
            happened(ev.Resumed, at_s=12),
            {
                "state": S.RUNNING,
                "suspended_at": None,
                "suspended_mono_s": None,
                "suspended_s": 10.0,
            },
        ),
        (
            happened(ev.SuspendRequested, at_s=20, by=None),
            {"freezing": True, "preempted_at": now(20).at_s},
        ),
        (
            happened(ev.Suspended, at_s=21),
            {
                "state": S.SUSPENDED,
                "freezing": False,
                "suspended_at": now(21).at_s,
                "suspended_mono_s": now(21).mono_s,
                "suspensions": 2,
            },
        ),
        (
            happened(ev.Resumed, at_s=24),
            {
                "state": S.RUNNING,
                "suspended_at": None,
                "suspended_mono_s": None,
                "suspended_s": 13.0,
            },
        ),
    ]
    for event, changes in steps:
        job = replace(job, **changes)
        assert ledger.apply(event) == job


def test_the_time_frozen_is_counted_on_the_monotonic_clock() -> None:
    ledger = ledger_at(S.SUSPENDED)
    job = ledger.apply(happened(ev.Resumed, at_s=5e6, mono_s=now(7).mono_s))
    assert job is not None
    assert job.suspended_s == 7.0


@pytest.mark.parametrize(
    "event", [happened(ev.LaunchFailed), happened(ev.StopRequested), happened(ev.Exited),
              happened(ev.PreemptRequested)],
    ids=lambda event: type(event).__name__,
)  # fmt: skip
def test_a_job_on_its_way_out_is_not_being_frozen_any_more(event: ev.Event) -> None:
    ledger = ledger_at(S.RUNNING)
    ledger.apply(happened(ev.SuspendRequested))
    job = ledger.apply(event)
    assert job is not None
    assert not job.freezing
    assert ledger.allocated == ONE


def test_a_job_stopped_while_it_is_frozen_is_to_be_killed_at_once() -> None:
    """It could neither take a SIGTERM nor use the grace time: its cores are not its own."""
    ledger = ledger_at(S.SUSPENDED)
    job = ledger.apply(happened(ev.StopRequested, at_s=4))
    assert job is not None
    assert job.stop == Stop(
        outcome=Outcome.CANCELLED,
        text="cancelled by alice",
        at_s=now(4).at_s,
        mono_s=now(4).mono_s,
        escalated=True,
    )


# -- requeueing -------------------------------------------------------------------------------


def preempted(state: JobState, *, at_s: float = 5.0, **submitted: Any) -> Ledger:
    """Books with a job that is to be requeued, in this state."""
    ledger = ledger_at(S.RUNNING, **submitted)
    ledger.apply(happened(ev.PreemptRequested, at_s=at_s))
    if state is not S.STOPPING:
        ledger.apply(happened(ev.Exited, at_s=at_s, outcome=None, text="stopped for job 2"))
    if state is S.PENDING:
        ledger.apply(happened(ev.Requeued, at_s=9))
    return ledger


def test_a_preempted_job_holds_everything_until_nothing_is_left_of_it() -> None:
    for state in (S.STOPPING, S.CLEANING):
        ledger = preempted(state)
        assert ledger.jobs[1].state is state
        assert (ledger.allocated, ledger.queues, ledger.job_counts.waiting) == (ONE, {}, {})
        ledger.check()


def test_a_requeued_job_waits_in_its_old_place_as_if_it_had_not_run_but_for_its_attempt() -> None:
    ledger = preempted(S.PENDING, spec=spec(priority=4))
    job = Job(
        id=1,
        spec=spec(priority=4),
        state=S.PENDING,
        attempt=1,
        submitted_at=now().at_s,
        eligible_at=now(9).at_s,
        preempted_at=now(5).at_s,
        # The test below has the sums.
        earlier_runs=ledger.job(1).earlier_runs,
    )
    queue = LeafQueue()
    queue.add(ONE, (-4, 1))
    assert tables(ledger) == {
        "jobs": {1: job},
        "queues": {"root.alice": queue},
        "used": {},
        "allocations": {},
        "allocated": NOTHING,
        "taken": {},
        "job_counts": JobCounts(
            states=Counter({S.PENDING: 1}),
            waiting=Counter({"alice": 1}),
            stored_bytes=Counter({"alice": spec().stored_bytes}),
            all_stored_bytes=spec().stored_bytes,
        ),
        "dependents": {},
        "begins": [],
        "arrays": {},
        "next_id": 2,
        "drained": None,
        "node_drains": {},
        "nodes_away": {},
        "groups": {},
    }
    started = ledger.apply(happened(ev.Admitted, at_s=10, attempt=2))
    assert started == replace(job, state=S.STARTING, attempt=2)


def test_a_requeued_job_keeps_the_sums_of_its_earlier_runs(bench: Bench) -> None:
    job_id = bench.start(spec(preemptible=True, asks=demand(2)))
    for attempt, (start_s, end_s) in enumerate([(0, 25), (40, 45)], 1):
        if attempt > 1:
            assert bench.schedule(start_s) == [job_id]
            bench.feed(attempt_started(job_id, attempt, start_s))
        bench.preempt(job_id, at_s=end_s)
        seen = Usage(cpu_s=2.0, memory_peak_bytes=7)
        bench.feed(ended(job_id, attempt, end_s, signal=15, exit_code=None, usage=seen))
        bench.feed(AttemptRemoved(now(end_s), job_id, attempt))
    runs = bench.job(job_id).earlier_runs
    assert runs is not None
    assert (runs.jobs, runs.runs, runs.run_ms) == (0, 2, 30_000)
    assert runs.cores == AccountedAmount(60_000_000, 4_000_000)
    gone = copy.deepcopy(bench.ledger).apply(happened(ev.Cancelled, job_id, 50.0, by="root"))
    assert gone is not None
    assert gone.outcome_text == "cancelled by root before it started again"
    assert gone.earlier_runs == runs


def test_a_requeueing_that_becomes_an_end_keeps_its_grace_time() -> None:
    """Somebody has cancelled it meanwhile; the SIGTERM was sent long ago."""
    ledger = preempted(S.STOPPING)
    before = ledger.jobs[1]
    assert before.stop == Stop(
        outcome=None, text="stopped for job 2", at_s=now(5).at_s, mono_s=now(5).mono_s
    )
    ledger.apply(happened(ev.Escalated, at_s=15))
    assert ledger.apply(happened(ev.StopRequested, at_s=16)) == replace(
        before,
        stop=Stop(
            outcome=Outcome.CANCELLED,
            text="cancelled by alice",
            at_s=now(5).at_s,
            mono_s=now(5).mono_s,
            escalated=True,
        ),
    )


def test_a_requeueing_that_becomes_an_end_when_the_job_has_gone_is_its_outcome() -> None:
    ledger = preempted(S.CLEANING)
    before = ledger.jobs[1]
    assert (before.outcome, before.outcome_text) == (None, "stopped for job 2")
    job = ledger.apply(happened(ev.StopRequested, at_s=7))
    assert job == replace(
        before,
        outcome=Outcome.CANCELLED,
        outcome_text="cancelled by alice",
        stop=Stop(
            outcome=Outcome.CANCELLED,
            text="cancelled by alice",
            at_s=now(5).at_s,
            mono_s=now(5).mono_s,
        ),
    )


# -- ids --------------------------------------------------------------------------------------


def test_an_id_is_never_given_out_again() -> None:
    ledger = ledger_at(S.ENDED, 41)
    assert ledger.jobs == {}
    assert ledger.next_id == 42


def test_rebuilt_books_go_on_counting_where_the_old_ones_stopped() -> None:
    assert Ledger.of_jobs(Axes(), []).next_id == 1
    assert Ledger.of_jobs(Axes(), [], next_id=42).next_id == 42
    live = ledger_at(S.RUNNING, 50).jobs.values()
    assert Ledger.of_jobs(Axes(), live, next_id=42).next_id == 51


@pytest.mark.parametrize("state", LIVE)
def test_books_rebuilt_from_the_live_jobs_are_the_books(state: JobState) -> None:
    ledger = ledger_at(state, 7)
    rebuilt = Ledger.of_jobs(Axes(), ledger.jobs.values())
    assert tables(rebuilt) == tables(ledger)


def test_books_rebuilt_with_a_job_that_waits_to_go_on_have_it_in_its_queue() -> None:
    ledger = ledger_at(S.SUSPENDED, 7)
    ledger.apply(happened(ev.ResumeRequested, 7))
    rebuilt = Ledger.of_jobs(Axes(), ledger.jobs.values())
    assert set(rebuilt.queues) == {"root.alice"}
    assert tables(rebuilt) == tables(ledger)


def test_books_rebuilt_during_a_drain_are_draining() -> None:
    drained = ev.Drained(at_s=0, on=True, by="root", reason="disk swap")
    assert Ledger.of_jobs(Axes(), [], drained=drained).drained == drained
    assert Ledger.of_jobs(Axes(), [], drained=drained).with_axes(Axes()).drained == drained
    assert Ledger.of_events(Axes(), [ev.Drained(at_s=0, on=True, by="root")]).draining


# -- check ------------------------------------------------------------------------------------


def _miscount(ledger: Ledger) -> None:
    ledger.allocated = (1000, 0, 0, 0)


def _forget_use(ledger: Ledger) -> None:
    ledger.used.clear()


def _forget_holder(ledger: Ledger) -> None:
    ledger.allocations["root.alice"].clear()


def _queue_twice(ledger: Ledger) -> None:
    ledger.queues["root.bob"].add(ONE, (0, 9))


def _lose_waiter(ledger: Ledger) -> None:
    ledger.job_counts.waiting.clear()


def _reuse_ids(ledger: Ledger) -> None:
    ledger.next_id = 2


@pytest.mark.parametrize(
    "spoil", [_miscount, _forget_use, _forget_holder, _queue_twice, _lose_waiter, _reuse_ids]
)
def test_check_finds_every_table_that_disagrees_with_the_jobs(
    spoil: Callable[[Ledger], None],
) -> None:
    ledger = ledger_at(S.RUNNING)
    ledger.apply(happened(ev.Submitted, 2, spec=spec("root.bob", actor=BOB)))
    ledger.check()
    spoilt = copy.deepcopy(ledger)
    spoil(spoilt)
    with pytest.raises(AssertionError):
        spoilt.check()
    ledger.check()


def test_a_long_day_replays_to_the_same_books(bench: Bench) -> None:
    """`bench` compares the books with the replayed and the rebuilt ones when the test ends."""
    first = bench.start()
    bench.submit(spec("root.bob", actor=BOB, asks=demand(9, 1)))
    bench.submit(held=True)
    bench.finish(first, at_s=10)
    assert bench.schedule(11) == [2]
    assert {job.id: job.state for job in bench.ledger.jobs.values()} == {2: S.STARTING, 3: S.HELD}
