"""Arrays: as if every task had been submitted by itself, and as cheap as one job."""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import Any

import pytest

from drfd.common.errors import Refused
from drfd.common.indices import Span
from drfd.core.amounts.resources import Axes
from drfd.core.explain.reasons import (
    AwaitedJob,
    ReasonCode,
    WaitReason,
    WaitsFor,
    explain_wait,
)
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    Array,
    Dependency,
    Group,
    Job,
    JobSpec,
    JobState,
    RequiredOutcome,
)
from drfd.core.model.lifecycle import InvalidTransition
from fakes import (
    ALICE,
    Bench,
    attempt_started,
    demand,
    now,
    rules,
    spec,
    tables,
)


def submit(
    bench: Bench, *spans: Span, at_once: int | None = None, held: bool = False,
    asked: JobSpec | None = None,
) -> int:  # fmt: skip
    """The id of an array that was taken."""
    (event,) = bench.feed(
        st.SubmitAsked(now(), asked or spec(), held, spans=spans, at_once=at_once)
    )
    assert isinstance(event, ev.ArraySubmitted)
    return event.array_id


def states(bench: Bench, *ids: int) -> list[str | None]:
    found = [bench.ledger.find(job_id) for job_id in ids]
    return [None if job is None else job.shown_state for job in found]


# -- ids and indices ----------------------------------------------------------------------------


def test_an_index_leads_to_its_task_and_back() -> None:
    array = array_of((1, 1, 1), (7, 11, 2), (20, 21, 1))
    there = {index: array.id_of(index) for index in range(25)}
    known = {index: job_id for index, job_id in there.items() if job_id is not None}
    assert list(known) == [1, 7, 9, 11, 20, 21]
    assert [array.index_of(job_id) for job_id in known.values()] == list(known)


def array_of(*spans: Span) -> Array:
    common = Job(id=4, array_id=4, spec=spec(), submitted_at=1.0, eligible_at=1.0)
    return Array(common=common, spans=spans, at_once=None)


@pytest.mark.slow
def test_a_torn_array_of_many_pieces_is_told_in_no_time() -> None:
    """For each range of tasks all pieces were counted, and for each task: the line of such an array
    in everybody's `drf status` took ten seconds, in which nobody else was heard."""
    spans = (*((at, at, 1) for at in range(0, 2000, 2)), (10_000, 109_999, 1))
    array = array_of(*spans)
    ranges = tuple((at, at) for at in range(array.id + 1, array.last_id, 3))
    begun_s = process_time()
    assert Group(array, ranges).indices.startswith("0-1998:6,10002-23997:3,")
    for at in range(array.id + 1, array.last_id, 50):
        index = array.index_of(at)
        assert array.id_of(index) == at
        assert array.has_task(at)
    assert process_time() - begun_s < 1.0


# -- the books ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        ev.Held(job_id=9, at_s=0.0, by="alice"),
        ev.Released(job_id=1, at_s=0.0, by="alice"),
        ev.Admitted(job_id=1, at_s=0.0, attempt=1),
        ev.Launched(job_id=2, at_s=0.0, attempt=1, mono_s=0.0, cgroup=None),
        ev.ArraySubmitted(
            array_id=3, at_s=0.0, spec=spec(), spans=((0, 1, 1),), at_once=None, held=False
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_that_cannot_be_changes_nothing(event: ev.Event) -> None:
    bench = Bench()
    submit(bench, (0, 4, 1))
    before = tables(bench.ledger)
    with pytest.raises(InvalidTransition):
        bench.ledger.apply(event)
    assert tables(bench.ledger) == before


def test_nothing_can_happen_to_the_rest_of_an_array_of_which_all_tasks_have_records() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 0, 1))
    bench.schedule()
    with pytest.raises(InvalidTransition):
        bench.ledger.apply(ev.Held(job_id=array_id, at_s=0.0, by="alice"))
    bench.check()


# -- what is asked for of a whole array ---------------------------------------------------------


def test_what_one_task_refuses_the_others_take() -> None:
    """A task that runs cannot be held; those that wait can. What is asked is refused only if every
    task refuses it."""
    bench = Bench(rules(cores=1))
    array_id = submit(bench, (0, 1, 1))
    (running,) = bench.schedule()
    bench.feed(attempt_started(running))
    bench.feed(st.HoldAsked(now(), array_id, ALICE))
    assert states(bench, running, array_id + 2) == ["RUNNING", "HELD"]
    bench.feed(st.SuspendAsked(now(), array_id, ALICE))
    assert bench.job(running).freezing
    bench.feed(st.CancelAsked(now(), array_id + 2, ALICE))
    with pytest.raises(Refused, match="job 1_0 is RUNNING; only a waiting job can be held"):
        bench.feed(st.HoldAsked(now(), array_id, ALICE))


@pytest.mark.parametrize(
    ("waiting", "words"),
    [
        (0, "the array has 4 tasks, and alice may have 3 jobs waiting"),
        (1, "the array has 4 tasks, and alice may have 3 jobs waiting and has 1"),
        (3, "alice already has 3 jobs waiting, the most that is allowed"),
    ],
)
def test_more_tasks_than_a_user_may_have_waiting_are_refused(waiting: int, words: str) -> None:
    bench = Bench(rules(max_waiting_per_user=3))
    for _ in range(waiting):
        bench.submit()
    with pytest.raises(Refused) as refusal:
        submit(bench, (0, 3, 1))
    assert refusal.value.text == words
    if not waiting:
        submit(bench, (0, 2, 1))


# -- so many at once ----------------------------------------------------------------------------


# -- as if every task had been submitted by itself -----------------------------------------------


def attempt(bench: Bench, stimulus: st.Stimulus) -> None:
    try:
        bench.feed(stimulus)
    except Refused:
        pass


# -- as cheap as one job ------------------------------------------------------------------------


# -- conditions: an array waits as one job, and who waits for it waits for all its tasks ----------


def after(*wants: tuple[int, RequiredOutcome], **more: Any) -> JobSpec:
    return spec(after=tuple(Dependency(job_id, want) for job_id, want in wants), **more)


@pytest.mark.parametrize(("asked", "on"), [(0, 3), (3, 0), (0, 0), (3, 3), (0, 9), (3, 9)])
def test_no_task_can_wait_for_its_own_array_nor_the_array_for_who_waits_for_it(
    asked: int, on: int
) -> None:
    """0 is the array, 3 one of its tasks, 9 a job that waits for another of its tasks: two of them
    cannot wait for each other."""
    bench = Bench()
    array_id = submit(bench, (0, 6, 1), held=True)
    other = bench.submit(after((array_id + 3, RequiredOutcome.OK)))
    where = {0: array_id, 3: array_id + 3, 9: other}
    wish = st.Change(after=(Dependency(where[on]),))
    with pytest.raises(Refused) as refusal:
        bench.feed(st.ChangeAsked(now(), where[asked], ALICE, wish))
    assert refusal.value.code == "cycle"


@pytest.mark.parametrize(
    ("begun", "state"),
    [
        (False, JobState.PENDING),
        (True, JobState.STARTING),
    ],
)
def test_who_waits_for_an_array_is_told_how_its_slowest_task_stands(
    begun: bool, state: JobState
) -> None:
    bench = Bench()
    array_id = submit(bench, (0, 1, 1))
    other = bench.submit(after((array_id, RequiredOutcome.OK)))
    if begun:
        bench.schedule()
    reason = explain_wait(bench.job(other), bench.ledger, None, bench.rules)
    assert reason == WaitReason(
        ReasonCode.DEPENDENCY,
        WaitsFor(AwaitedJob("1", "alice", is_array=True, states=((state, 2),))),
    )


def test_the_books_of_a_machine_with_other_disks_have_the_same_arrays() -> None:
    disks = (("data", 1, 0), ("gone", 0, 2))
    few = replace(rules(), axes=Axes(disks=("data", "gone")))
    room = replace(few.capacity, read_bps=0, write_bps=0, disks=(("data", 9, 9), ("gone", 9, 9)))
    bench = Bench(replace(few, capacity=room))
    asks = replace(demand(1), disks=disks)
    array_id = submit(bench, (0, 4, 1), at_once=2, asked=spec(asks=asks))
    assert len(bench.schedule()) == 2
    again = bench.ledger.with_axes(Axes(disks=("data", "gone")))
    again.check()
    assert {each.used_disks for each in again.demands()} == {frozenset({"data", "gone"})}
    assert len(list(again.demands())) == 3
    assert again.arrays[array_id].ids() == bench.ledger.arrays[array_id].ids()
    assert again.next_id == bench.ledger.next_id
    assert set(again.jobs) == set(bench.ledger.jobs)


def test_what_is_asked_for_of_a_torn_array_leaves_the_line_of_its_tasks_as_it_is(
    bench: Bench,
) -> None:
    """Each request about the tasks of an array in thirty thousand pieces built their line anew,
    which kept everybody else waiting for a tenth of a second."""
    array_id = submit(bench, (0, 99, 1), held=True)
    for task in range(array_id + 2, array_id + 100, 2):
        bench.feed(st.ReleaseAsked(now(), task, ALICE))
    array_state = bench.ledger.arrays[array_id]
    before = array_state.unmaterialized
    bench.feed(st.ReleaseAsked(now(), array_id, ALICE, unmaterialized_only=True))
    bench.feed(
        st.ChangeAsked(now(), array_id, ALICE, st.Change(name="x"), unmaterialized_only=True)
    )
    assert array_state.unmaterialized is before
    change = st.Change(priority=7)
    bench.feed(st.ChangeAsked(now(), array_id, ALICE, change, unmaterialized_only=True))
    assert array_state.unmaterialized == [(-7, job_id) for _, job_id in before]
