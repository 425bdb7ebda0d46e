"""Arrays: as if every task had been submitted by itself, and as cheap as one job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from time import process_time
from typing import Any

import pytest

from drfd.common.errors import NotPermitted, Refused
from drfd.common.indices import Span
from drfd.core.amounts.resources import Axes
from drfd.core.decisions.decide import decide
from drfd.core.explain.reasons import (
    ArrayLimit,
    AwaitedJob,
    NeverStarts,
    ReasonCode,
    WaitReason,
    WaitsFor,
    explain_wait,
)
from drfd.core.ledger.ledger import Ledger
from drfd.core.ledger.queue import Line, Run
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    Array,
    Broken,
    Dependency,
    Group,
    Job,
    JobSpec,
    JobState,
    Outcome,
    RequiredOutcome,
    Retry,
    output_path,
)
from drfd.core.model.lifecycle import InvalidTransition
from drfd.core.scheduling.scheduling_pass import start_events
from fakes import (
    ADMIN,
    ALICE,
    BOB,
    Bench,
    attempt_started,
    demand,
    ended,
    now,
    rules,
    schedule,
    spec,
    tables,
)
from seeds import seeds

S = JobState


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


def test_tasks_have_the_ids_after_their_arrays_in_the_order_of_their_indices() -> None:
    bench = Bench()
    array_id = submit(bench, (1, 1, 1), (7, 11, 2), (20, 21, 1))
    tasks = [bench.ledger.job(job_id) for job_id in range(array_id + 1, array_id + 7)]
    assert [task.array_index for task in tasks] == [1, 7, 9, 11, 20, 21]
    assert [task.label for task in tasks[:2]] == ["1_1", "1_7"]
    assert {task.array_id for task in tasks} == {array_id}
    assert bench.submit() == array_id + 7
    bench.check()


def test_an_index_leads_to_its_task_and_back() -> None:
    array = array_of((1, 1, 1), (7, 11, 2), (20, 21, 1))
    there = {index: array.id_of(index) for index in range(25)}
    known = {index: job_id for index, job_id in there.items() if job_id is not None}
    assert list(known) == [1, 7, 9, 11, 20, 21]
    assert [array.index_of(job_id) for job_id in known.values()] == list(known)


def test_ranges_of_tasks_are_told_by_their_indices() -> None:
    array = array_of((1, 1, 1), (7, 11, 2), (20, 21, 1))
    assert list(array.spans_of((5, 10))) == [(1, 1, 1), (7, 11, 2), (20, 21, 1)]
    assert list(array.spans_of((6, 7), (9, 9))) == [(7, 9, 2), (20, 20, 1)]
    assert list(array.spans_of((8, 9))) == [(11, 11, 2), (20, 20, 1)]


def array_of(*spans: Span) -> Array:
    common = Job(id=4, array_id=4, spec=spec(), submitted_at=1.0, eligible_at=1.0)
    return Array(common=common, spans=spans, at_once=None)


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


def test_output_goes_by_array_and_index() -> None:
    task = array_of((3, 9, 3)).task(6)
    asked = replace(task, spec=replace(task.spec, cwd="/home/alice", name="a/b"))
    assert output_path("%A_%a-%j-%x%%a.out", asked) == "/home/alice/4_6-6-a_b%a.out"
    alone = Job(id=9, spec=spec(), submitted_at=0.0)
    assert output_path("%A_%a", alone) == "/home/alice/9_0"


# -- the books ----------------------------------------------------------------------------------


def test_a_task_has_no_record_before_something_happens_to_it_alone() -> None:
    bench = Bench(rules(cores=2))
    array_id = submit(bench, (0, 4, 1))
    assert (bench.ledger.jobs, bench.ledger.job_counts.waiting["alice"]) == ({}, 5)
    assert bench.schedule() == [array_id + 1, array_id + 2]
    assert sorted(bench.ledger.jobs) == [array_id + 1, array_id + 2]
    assert bench.ledger.arrays[array_id].ids() == ((array_id + 3, array_id + 5),)
    assert bench.ledger.job_counts.waiting["alice"] == 3
    bench.check()


def test_an_array_leaves_the_books_with_its_last_task() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 1, 1))
    for job_id in bench.schedule():
        assert array_id in bench.ledger.arrays
        bench.finish(job_id)
    assert bench.ledger.is_empty
    assert bench.ledger.next_id == array_id + 3
    bench.check()


def test_a_requeued_task_is_still_one_of_its_array() -> None:
    bench = Bench(rules(cores=1))
    array_id = submit(bench, (5, 9, 1))
    (job_id,) = bench.schedule()
    bench.feed(attempt_started(job_id))
    bench.preempt(job_id)
    bench.feed(ended(job_id))
    bench.feed(st.AttemptRemoved(now(), job_id, 1))
    task = bench.job(job_id)
    assert (task.state, task.array_id, task.array_index) == (S.PENDING, array_id, 5)
    assert bench.schedule() == [job_id], "in its old place"
    bench.check()


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


def test_a_hold_takes_one_event_whatever_the_size() -> None:
    bench = Bench(rules(max_waiting_per_user=10**6))
    array_id = submit(bench, (0, 99_999, 1))
    assert bench.feed(st.HoldAsked(now(), array_id, ALICE)) == [
        ev.Held(job_id=array_id, at_s=now().at_s, by="alice")
    ]
    assert bench.schedule() == []
    assert bench.feed(st.HoldAsked(now(), array_id, ALICE)) == []
    bench.feed(st.ReleaseAsked(now(5), array_id, ALICE))
    assert len(bench.schedule()) == 9
    assert bench.ledger.job(array_id + 50).eligible_at == now(5).at_s


def test_a_cancellation_ends_what_waits_and_stops_what_runs() -> None:
    bench = Bench(rules(cores=2))
    array_id = submit(bench, (0, 4, 1))
    first, second = bench.schedule()
    bench.feed(attempt_started(first))
    events = bench.feed(st.CancelAsked(now(), array_id, ALICE))
    assert [type(event) for event in events] == [
        *(ev.Cancelled, ev.StopRequested, ev.StopRequested)
    ]
    assert states(bench, first, second, array_id + 3) == ["STOPPING", "STOPPING", None]
    assert bench.feed(st.CancelAsked(now(), array_id, ALICE)) == []
    bench.check()


def test_an_array_that_waits_is_gone_when_it_has_been_cancelled() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 4, 1))
    bench.feed(st.CancelAsked(now(), array_id, ADMIN))
    assert bench.ledger.is_empty
    with pytest.raises(Refused, match="there is no live job 1"):
        bench.feed(st.CancelAsked(now(), array_id, ALICE))
    bench.check()


def test_a_single_task_can_be_held_released_and_cancelled() -> None:
    bench = Bench(rules(cores=2))
    array_id = submit(bench, (0, 4, 1))
    bench.feed(st.HoldAsked(now(), array_id + 1, ALICE))
    bench.feed(st.CancelAsked(now(), array_id + 3, ALICE))
    assert bench.schedule() == [array_id + 2, array_id + 4]
    bench.feed(st.ReleaseAsked(now(), array_id + 1, ALICE))
    assert states(bench, array_id + 1, array_id + 3, array_id + 5) == ["PENDING", None, "PENDING"]
    bench.check()


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


def test_only_what_has_no_record_is_meant_when_that_is_said() -> None:
    bench = Bench(rules(cores=1))
    array_id = submit(bench, (0, 4, 1))
    (running,) = bench.schedule()
    (event,) = bench.feed(st.CancelAsked(now(), array_id, ALICE, unmaterialized_only=True))
    assert event == ev.Cancelled(job_id=array_id, at_s=now().at_s, by="alice")
    assert states(bench, running) == ["STARTING"]
    with pytest.raises(Refused, match="there is no live job 1"):
        bench.feed(st.CancelAsked(now(), array_id, ALICE, unmaterialized_only=True))


def test_others_cannot_touch_an_array_nor_its_tasks() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 4, 1))
    for job_id in (array_id, array_id + 3):
        for ask in (st.CancelAsked, st.HoldAsked):
            with pytest.raises(NotPermitted, match="belongs to alice"):
                bench.feed(ask(now(), job_id, BOB))


def test_what_an_administrator_holds_of_an_array_its_owner_cannot_release() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 4, 1))
    bench.feed(st.HoldAsked(now(), array_id, ALICE))
    bench.feed(st.HoldAsked(now(), array_id, ADMIN))
    for job_id in (array_id, array_id + 3):
        with pytest.raises(NotPermitted, match="held by root"):
            bench.feed(st.ReleaseAsked(now(), job_id, ALICE))
    bench.feed(st.ReleaseAsked(now(), array_id, ADMIN))
    assert states(bench, array_id + 1) == ["PENDING"]


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


def test_an_array_of_jobs_too_big_for_the_machine_is_refused() -> None:
    with pytest.raises(Refused, match="it could never start"):
        submit(Bench(), (0, 3, 1), asked=spec(asks=demand(10)))


# -- so many at once ----------------------------------------------------------------------------


def test_no_more_tasks_run_at_once_than_were_said() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 4, 1), at_once=2)
    first, second = bench.schedule()
    assert (first, second) == (array_id + 1, array_id + 2)
    assert bench.schedule() == []
    bench.finish(first)
    assert bench.schedule() == [array_id + 3]
    bench.feed(st.CancelAsked(now(), second, ALICE))
    bench.feed(st.AttemptRemoved(now(), second, 1))
    assert bench.schedule() == [], "it is being stopped: it has not ended"
    bench.check()


def test_a_task_that_is_shut_out_says_so_and_lets_others_pass() -> None:
    bench = Bench(rules(cores=2))
    array_id = submit(bench, (0, 4, 1), at_once=1)
    other = bench.submit()
    assert bench.schedule() == [array_id + 1, other]
    task = bench.ledger.job(array_id + 2)
    assert explain_wait(task, bench.ledger, None, bench.rules) == WaitReason(
        ReasonCode.LIMIT, ArrayLimit(1, at_once=1, running=1)
    )
    wanted = bench.ledger.wanted(task)
    assert wanted is not None
    assert bench.ledger.queues.is_shut_out(task, wanted)


def test_the_first_tasks_come_first_also_when_they_come_back() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 4, 1), at_once=2)
    bench.feed(st.HoldAsked(now(), array_id + 1, ALICE))
    started = bench.schedule()
    assert started == [array_id + 2, array_id + 3]
    bench.feed(st.ReleaseAsked(now(), array_id + 1, ALICE))
    bench.finish(started[0])
    assert bench.schedule() == [array_id + 1]
    bench.check()


@pytest.mark.parametrize("seed", seeds(range(6)))
def test_with_a_bound_as_many_run_as_may_and_all_come_to_their_end(seed: int) -> None:
    random = Random(seed)
    bench = Bench(rules(cores=9))
    most = random.randint(1, 5)
    array_id = submit(bench, (0, 39, 1), at_once=most)
    done: set[int] = set()
    for step in range(400):
        ids = list(range(array_id + 1, array_id + 41))
        chosen = random.choice(ids)
        ask = random.choice([st.HoldAsked, st.ReleaseAsked, st.ReleaseAsked])
        try:
            bench.feed(ask(now(), random.choice([chosen, chosen, array_id]), ALICE))
        except Refused:
            pass
        bench.schedule()
        array_state = bench.ledger.arrays.get(array_id)
        if array_state is None:
            break
        held = [job.id for job in bench.ledger.allocated_jobs()]
        pending = [each for each in ids if states(bench, each) == ["PENDING"]]
        assert len(held) == min(most, len(held) + len(pending))
        for job_id in random.sample(held, random.randint(0, len(held))):
            assert job_id not in done
            bench.finish(job_id)
            done.add(job_id)
        if step % 20 == 0:
            bench.check()
    assert len(done) == 40
    bench.check()


# -- as if every task had been submitted by itself -----------------------------------------------


class Twins:
    """Two benches in which the same happens: one has arrays, the other their tasks one by one."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        how = rules(6, 12, weights={"bob": self.random.choice(["1", "3"])})
        self.together, self.singly = Bench(how), Bench(how)
        self.arrays: dict[int, range] = {}
        self.at_s = 0.0

    def conditions(self) -> dict[str, Any]:
        """Now and then a time, or jobs and tasks to wait for."""
        ledger = self.together.ledger
        live = [job_id for job_id in range(1, ledger.next_id) if ledger.find(job_id)]
        some = self.random.sample(live, min(len(live), self.random.choice([0, 0, 1, 2])))
        begin_s = int(now(self.at_s).at_s) + self.random.randint(0, 60)
        return {
            "begin_s": self.random.choice([None, None, begin_s]),
            "after": tuple(
                Dependency(on, self.random.choice(list(RequiredOutcome))) for on in some
            ),
            "retry": self.random.choice([None, Retry(1, (Outcome.FAILED,))]),
        }

    def submit(self) -> None:
        actor = self.random.choice([ALICE, BOB])
        asks = demand(self.random.choice([1, 2, 3]), self.random.choice([1, 2, 5]))
        asked = spec(
            f"root.{actor.user}", actor=actor, asks=asks, priority=self.random.randint(-1, 1),
            **(self.conditions() if self.random.random() < 0.4 else {}),
        )  # fmt: skip
        held = self.random.random() < 0.2
        size = self.random.choice([0, 0, 1, 4, 9])
        if not size:
            assert self.together.submit(asked, held=held) == self.singly.submit(asked, held=held)
            return
        array_id = submit(self.together, (0, size - 1, 1), asked=asked, held=held)
        # The array itself takes an id.
        alone = self.singly.submit(replace(asked, after=()))
        self.singly.feed(st.CancelAsked(now(), alone, actor))
        ids = [self.singly.submit(asked, held=held) for _ in range(size)]
        self.arrays[array_id] = range(ids[0], ids[-1] + 1)

    def ask(self) -> None:
        ask = self.random.choice([st.CancelAsked, st.HoldAsked, st.ReleaseAsked, st.ReleaseAsked])
        actor = self.random.choice([ALICE, BOB, ADMIN])
        if self.arrays and self.random.random() < 0.4:
            array_id, tasks = self.random.choice([*self.arrays.items()])
            attempt(self.together, ask(now(), array_id, actor))
            for job_id in tasks:
                attempt(self.singly, ask(now(), job_id, actor))
        else:
            job_id = self.random.randrange(1, self.together.ledger.next_id + 1)
            if job_id not in self.arrays:
                for bench in (self.together, self.singly):
                    attempt(bench, ask(now(), job_id, actor))

    def tick(self) -> None:
        self.at_s += self.random.choice([1, 5, 30])
        for bench in (self.together, self.singly):
            bench.feed(st.Tick(now(self.at_s)))

    def schedule(self) -> list[int]:
        started = self.together.schedule()
        assert started == self.singly.schedule()
        return started

    def finish(self) -> None:
        running = sorted(job.id for job in self.together.ledger.allocated_jobs())
        for job_id in self.random.sample(running, self.random.randint(0, len(running))):
            exit_code, attempt = self.random.choice([0, 0, 3]), self.together.job(job_id).attempt
            for bench in (self.together, self.singly):
                bench.feed(ended(job_id, attempt, exit_code=exit_code))
                bench.feed(st.AttemptRemoved(now(self.at_s), job_id, attempt))

    def compare(self) -> None:
        here, there = self.together.ledger, self.singly.ledger
        for table in ("queues", "used", "allocations", "allocated", "next_id"):
            assert getattr(here, table) == getattr(there, table), table
        for table in ("states", "waiting"):
            assert getattr(here.job_counts, table) == getattr(there.job_counts, table), table
        for job_id in range(1, here.next_id):
            task, job = here.find(job_id), there.find(job_id)
            if task is not None:
                task = replace(task, array_id=None, array_index=None)
            assert task == job


def attempt(bench: Bench, stimulus: st.Stimulus) -> None:
    try:
        bench.feed(stimulus)
    except Refused:
        pass


@pytest.mark.parametrize("seed", seeds(range(6), quick=1))
def test_an_array_lives_as_its_tasks_would_one_by_one(seed: int) -> None:
    twins = Twins(seed)
    launched = 0
    for step in range(80):
        twins.random.choice([twins.submit, twins.ask, twins.finish, twins.tick])()
        launched += len(twins.schedule())
        twins.compare()
        if step % 30 == 0:
            twins.together.check()
    assert launched > 10


# -- as cheap as one job ------------------------------------------------------------------------


def work(do: Callable[[], Any]) -> int:
    """How many calls of functions it takes: what is counted does not depend on the machine."""
    count = 0

    def note(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(None)
    return count


def life(size: int) -> Iterator[tuple[str, int]]:
    """The work of each thing that happens to an array of this size."""
    how = replace(rules(cores=2), max_waiting_per_user=10**6)
    for at_once in (None, 1):
        ledger = Ledger(how.axes)

        def feed(stimulus: st.Stimulus | st.Now, ledger: Ledger = ledger) -> None:
            if isinstance(stimulus, st.Now):
                found = list(start_events(ledger, schedule(ledger, how), stimulus))
            else:
                found = decide(ledger, stimulus, how)
            for event in found:
                ledger.apply(event)

        stimuli = (
            st.SubmitAsked(now(), spec(), spans=((0, size - 1, 1),), at_once=at_once),
            st.HoldAsked(now(), 1 + size // 2, ALICE),
            st.HoldAsked(now(), 1, ALICE),
            st.ReleaseAsked(now(), 1, ALICE),
            now(),
            # Of the middle: to leave from the front is cheaper.
            st.CancelAsked(now(), 2 + 2 * size // 3, ALICE),
            now(),
        )
        for stimulus in stimuli:
            yield f"{type(stimulus).__name__} %{at_once}", work(lambda each=stimulus: feed(each))
        left = ledger.arrays.live()
        jobs = list(ledger.jobs.values())
        yield "load", work(lambda: Ledger.of_jobs(Axes(), jobs, arrays=left))  # noqa: B023
        yield "cancel", work(lambda: feed(st.CancelAsked(now(), 1, ALICE)))


def test_a_hundred_thousand_tasks_are_as_cheap_as_ten() -> None:
    few, many = list(life(10)), list(life(100_000))
    assert [name for name, _ in few] == [name for name, _ in many]
    dear = {name: (a, b) for (name, a), (_, b) in zip(few, many, strict=True) if b > a + a // 4}
    assert dear == {}


# -- conditions: an array waits as one job, and who waits for it waits for all its tasks ----------


def after(*wants: tuple[int, RequiredOutcome], **more: Any) -> JobSpec:
    return spec(after=tuple(Dependency(job_id, want) for job_id, want in wants), **more)


def end(bench: Bench, job_id: int, exit_code: int = 0) -> list[ev.Event]:
    bench.feed(ended(job_id, exit_code=exit_code))
    return bench.feed(st.AttemptRemoved(now(), job_id, 1))


def test_all_tasks_wait_for_another_job_with_one_event_for_all() -> None:
    bench = Bench()
    first = bench.submit()
    array_id = submit(bench, (0, 99, 1), asked=after((first, RequiredOutcome.OK)))
    assert bench.schedule() == [first]
    task = bench.ledger.job(array_id + 50)
    reason = explain_wait(task, bench.ledger, None, bench.rules)
    assert reason == WaitReason(
        ReasonCode.DEPENDENCY,
        WaitsFor(AwaitedJob("1", "alice", is_array=False, states=((JobState.STARTING, 1),))),
    )
    cleaned, settled = end(bench, first)
    assert isinstance(cleaned, ev.Cleaned)
    assert settled == ev.DependencySettled(
        job_id=array_id, at_s=now().at_s, on=first, outcome=Outcome.COMPLETED, is_met=True
    )
    assert len(bench.schedule()) == 9
    bench.check()


def test_all_tasks_wait_for_their_time() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 99, 1), asked=spec(begin_s=int(now(60).at_s)))
    assert bench.schedule() == []
    assert bench.feed(st.Tick(now(60))) == [ev.BeginReached(job_id=array_id, at_s=now(60).at_s)]
    assert len(bench.schedule(60)) == 9
    bench.check()


def test_a_job_that_waits_for_an_array_waits_for_all_its_tasks() -> None:
    bench = Bench(rules(cores=2))
    array_id = submit(bench, (0, 2, 1))
    other = bench.submit(after((array_id, RequiredOutcome.OK)))
    for _ in range(3):
        assert states(bench, other) == ["PENDING"]
        (job_id, *_) = [*bench.schedule(), *sorted(job.id for job in bench.ledger.allocated_jobs())]
        end(bench, job_id)
    assert bench.schedule() == [other]
    bench.check()


@pytest.mark.parametrize(
    ("exits", "want", "starts"),
    [
        ((0, 0, 0), RequiredOutcome.OK, True),
        ((0, 3, 0), RequiredOutcome.OK, False),
        ((0, 3, 0), RequiredOutcome.FAIL, True),
        ((0, 0, 0), RequiredOutcome.FAIL, False),
        ((1, 3, 0), RequiredOutcome.ANY, True),
    ],
)
def test_an_array_has_ended_well_if_all_its_tasks_have(
    exits: tuple[int, ...], want: RequiredOutcome, starts: bool
) -> None:
    bench = Bench()
    array_id = submit(bench, (0, 2, 1))
    other = bench.submit(after((array_id, want)))
    for job_id, exit_code in zip(bench.schedule(), exits, strict=True):
        end(bench, job_id, exit_code)
    assert bench.schedule() == ([other] if starts else [])
    bench.check()


def test_the_end_of_an_array_is_that_of_its_first_bad_task_by_index() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 2, 1))
    other = bench.submit(after((array_id, RequiredOutcome.OK)))
    first, second, third = bench.schedule()
    end(bench, third, 3)
    bench.feed(st.CancelAsked(now(), first, ALICE))
    end(bench, first)
    end(bench, second)
    assert bench.job(other).broken == Broken(array_id, Outcome.CANCELLED)
    bench.check()


def test_the_cancellation_of_an_array_is_an_end_for_who_waits_for_it_or_for_a_task() -> None:
    bench = Bench(rules(cores=1))
    array_id = submit(bench, (0, 9, 1))
    for_all = bench.submit(after((array_id, RequiredOutcome.ANY)))
    for_one = bench.submit(after((array_id + 5, RequiredOutcome.OK)))
    (running,) = bench.schedule()
    bench.feed(attempt_started(running))
    bench.feed(st.CancelAsked(now(), array_id, ALICE))
    assert bench.job(for_one).broken == Broken(array_id + 5, Outcome.CANCELLED)
    assert bench.job(for_all).awaits, "one task has not ended yet"
    end(bench, running)
    assert bench.schedule() == [for_all]
    bench.check()


def test_what_is_cancelled_together_is_told_nothing_of_the_others_ends() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 9, 1), held=True)
    wish = st.Change(after=(Dependency(array_id + 1),))
    bench.feed(st.ChangeAsked(now(), array_id + 2, ALICE, wish))
    events = bench.feed(st.CancelAsked(now(), array_id, ALICE))
    assert {type(event) for event in events} == {ev.Cancelled}
    assert bench.ledger.is_empty
    bench.check()


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


def test_a_change_of_a_whole_array_is_one_event_and_moves_its_tasks_in_the_queue() -> None:
    bench = Bench(rules(cores=1))
    array_id = submit(bench, (0, 99, 1), at_once=50)
    other = bench.submit(spec(priority=1))
    (event,) = bench.feed(st.ChangeAsked(now(), array_id, ALICE, st.Change(priority=2)))
    assert isinstance(event, ev.Altered)
    assert event.job_id == array_id
    assert bench.schedule() == [array_id + 1]
    bench.feed(
        st.ChangeAsked(now(), array_id, ALICE, st.Change(priority=0), unmaterialized_only=True)
    )
    end(bench, array_id + 1)
    assert bench.schedule() == [other]
    bench.check()


def test_a_task_that_is_tried_again_keeps_its_place_and_lets_another_run_meanwhile() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 2, 1), at_once=1, asked=spec(retry=Retry(1, (Outcome.FAILED,))))
    assert bench.schedule() == [array_id + 1]
    (retried,) = end(bench, array_id + 1, 1)
    assert isinstance(retried, ev.Retried)
    assert bench.schedule() == [array_id + 2], "the first one pauses"
    bench.feed(st.Tick(now(60)))
    end(bench, array_id + 2)
    assert bench.schedule(60) == [array_id + 1]
    bench.check()


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


def test_of_an_array_that_runs_in_part_it_is_told_how_many_tasks_stand_how() -> None:
    bench = Bench()
    array_id = submit(bench, (0, 11, 1))
    other = bench.submit(after((array_id, RequiredOutcome.OK)))
    assert len(bench.schedule()) == 9
    bench.feed(attempt_started(array_id + 1))
    bench.feed(st.HoldAsked(now(), array_id + 12, ALICE))
    reason = explain_wait(bench.job(other), bench.ledger, None, bench.rules)
    states = {JobState.RUNNING: 1, JobState.STARTING: 8, JobState.HELD: 1, JobState.PENDING: 2}
    assert reason == WaitReason(
        ReasonCode.DEPENDENCY,
        WaitsFor(AwaitedJob(str(array_id), "alice", is_array=True, states=(*states.items(),))),
    )


def test_a_task_that_can_never_start_says_so_by_its_name() -> None:
    bench = Bench()
    first = bench.submit()
    array_id = submit(bench, (0, 1, 1), asked=after((first, RequiredOutcome.OK)))
    bench.schedule()
    end(bench, first, 1)
    reason = explain_wait(bench.ledger.job(array_id + 1), bench.ledger, None, bench.rules)
    assert reason == WaitReason(
        ReasonCode.DEPENDENCY_NEVER,
        NeverStarts("2_0", "1", Outcome.FAILED, RequiredOutcome.OK),
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


@pytest.mark.parametrize("at_once", seeds([5, None], quick=1))
def test_a_torn_array_is_held_and_released_with_the_work_of_few_tasks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at_once: int | None
) -> None:
    """Each of its pieces left the queue, or entered it, by itself: with twenty thousand of them,
    everybody else waited for a tenth of a second."""
    array_id = submit(bench, (0, 199, 1), held=True, at_once=at_once)
    for task in range(array_id + 2, array_id + 200, 2):
        bench.feed(st.ReleaseAsked(now(), task, ALICE))
        bench.feed(st.HoldAsked(now(), task, ALICE))
    moved: list[Run] = []
    for name in ("add_run", "remove_run"):
        one = getattr(Line, name)
        monkeypatch.setattr(
            Line, name, lambda line, run, one=one: (moved.append(run), one(line, run))
        )
    for _ in range(3):
        bench.feed(st.ReleaseAsked(now(), array_id, ALICE, unmaterialized_only=True))
        assert [len(queue) for queue in bench.ledger.queues.values()] == [at_once or 101]
        bench.feed(st.HoldAsked(now(), array_id, ALICE, unmaterialized_only=True))
        assert not bench.ledger.queues
    assert len(moved) < 100
    bench.ledger.check()
