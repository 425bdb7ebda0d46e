"""Jobs that belong together: those that wait for others, arrays, and groups that users make."""

from collections import Counter
from math import inf
from random import Random
from typing import Any

import pytest

from core.worlds import change, lines_counted
from drfd.common.errors import NotPermitted, Refused
from drfd.common.indices import Span, read_group
from drfd.core.decisions import dependencies, job_requests
from drfd.core.decisions import stimuli as st
from drfd.core.decisions.dependencies import (
    awaited,
    first_stuck,
    is_met,
    report_ends,
)
from drfd.core.explain.reasons import explain_wait
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model.job import (
    Array,
    Broken,
    Dependency,
    Job,
    JobSpec,
    JobState,
    Outcome,
    RequiredOutcome,
    Tasks,
    UserGroup,
)
from drfd.core.model.options import Demand
from drfd.core.scheduling.policies import POLICIES
from drfd.core.scheduling.waits import (
    AwaitedJob,
    CountLimit,
    DependenciesEnded,
    NeverStarts,
    StartsFrom,
    Wait,
    WaitsFor,
)
from fakes import (
    ALICE,
    BOB,
    Bench,
    demand,
    ended,
    launched,
    now,
    replace,
    rules,
    schedule,
    spec,
)
from seeds import seeds

# -- dependencies ----------------------------------------------------------------------------------


def after(*ids: int, want: RequiredOutcome = RequiredOutcome.OK, **more: object) -> JobSpec:
    return spec(after=tuple(Dependency(each, want) for each in ids), **more)  # type: ignore[arg-type]


def end(bench: Bench, job_id: int, *, exit_code: int = 0, at_s: float = 0.0) -> list[ev.Event]:
    """The running job exits; what the removal of its cgroup brings about."""
    attempt = bench.job(job_id).attempt
    bench.feed(ended(job_id, attempt, at_s, exit_code=exit_code))
    return bench.feed(st.RemovedReport(now(at_s).at_s, job_id, attempt))


def reason(bench: Bench, job_id: int) -> Wait:
    found = explain_wait(bench.job(job_id), bench.ledger, None, bench.rules)
    assert found is not None
    return found


def waits_for(
    job_id: int,
    *states: tuple[JobState, int],
    user: str = "alice",
    is_array: bool = False,
    until_s: float | None = None,
    others: int = 0,
) -> Wait:
    awaited_job = AwaitedJob(str(job_id), user, is_array, states, until_s)
    return WaitsFor(awaited_job, others)


def test_of_a_job_that_never_starts_the_conditions_that_are_left_are_told(bench):
    first, other = bench.start(), bench.start()
    awaited = (Dependency(first), Dependency(other, RequiredOutcome.ANY))
    waiting = bench.submit(replace(bench.job(first).spec, after=awaited))
    end(bench, first, exit_code=3)
    assert reason(bench, waiting) == NeverStarts(
        *(str(waiting), str(first), Outcome.FAILED, RequiredOutcome.OK),
        ((str(other), RequiredOutcome.ANY),),
    )


def test_the_reason_names_the_job_that_is_waited_for_and_its_end_at_the_latest(bench):
    first = bench.start(spec("root.bob", actor=BOB, time_limit_s=60), at_s=10)
    second = bench.submit(after(first))
    third = bench.submit(after(first, second))
    assert reason(bench, second) == waits_for(
        first, (JobState.RUNNING, 1), user="bob", until_s=now(70).at_s
    )
    assert reason(bench, third) == waits_for(second, (JobState.PENDING, 1), others=1)
    end(bench, first, exit_code=1)
    assert reason(bench, third).code == "DEPENDENCY_NEVER"


def test_only_so_many_jobs_wait_for_one_and_others_cannot_take_all_their_places(bench, monkeypatch):
    monkeypatch.setattr(dependencies, "MOST_DEPENDENTS", 4)
    monkeypatch.setattr(dependencies, "MOST_OF_OTHERS", 2)
    job_id = bench.start()
    theirs = after(job_id, pool="root.bob", actor=BOB)
    for asked, more in ((theirs, 2), (after(job_id), 2)):
        for _ in range(more):
            last = bench.submit(asked)
        with pytest.raises(Refused, match=f"jobs wait for job {job_id} already"):
            bench.submit(asked)
    # One that is among them may stay.
    change(bench, last, after=(Dependency(job_id, RequiredOutcome.ANY),))


# -- begin times -----------------------------------------------------------------------------------


def unix(at_s: int) -> int:
    return int(now(at_s).at_s)


def test_a_job_starts_at_its_begin_time_and_not_before(bench):
    job_id = bench.submit(spec(begin_s=unix(60)))
    assert bench.schedule() == []
    assert reason(bench, job_id) == StartsFrom(unix(60))
    assert bench.feed(st.Tick(now(59.9))) == []
    bench.feed(st.Tick(now(60.5)))
    assert bench.job(job_id).eligible_at == now(60.5).at_s
    assert bench.schedule(60.5) == [job_id]


# -- changes ---------------------------------------------------------------------------------------


def test_a_circle_is_refused_however_long(bench):
    first = bench.submit(held=True)
    second = bench.submit(after(first))
    third = bench.submit(after(second))
    for job_id in (first, second, third):
        with pytest.raises(Refused) as caught:
            change(bench, first, after=(Dependency(job_id),))
        assert caught.value.code == "cycle"
    change(bench, third, after=(Dependency(first),))
    change(bench, second, after=(Dependency(third),))


def test_a_walk_along_a_long_chain_comes_to_an_end(bench, monkeypatch):
    """It went on to the end of the chain, of 200,000 jobs of one user, in one step."""
    monkeypatch.setattr(dependencies, "_MOST_WALKED", 10)
    chain = [bench.submit(held=True)]
    for _ in range(30):
        chain.append(bench.submit(after(chain[-1])))
    assert first_stuck(chain[-1], bench.ledger) is None
    with pytest.raises(Refused, match=r"more than 10 jobs.*submit it anew"):
        change(bench, chain[0], after=(Dependency(chain[-1]),))
    # Of an array, only tasks that wait are part of it.
    array_id = submit_array(bench, (0, 19, 1), held=True)
    for job_id in range(array_id + 1, array_id + 21):
        change(bench, job_id, priority=1)
    change(bench, chain[0], after=(Dependency(array_id),))


def test_what_would_be_refused_at_submission_is_refused_and_changes_nothing(bench):
    job_id = bench.submit(held=True)
    before = bench.job(job_id)
    for wish, code in (
        ({"demand": Demand(cores_milli=10_000)}, "too-big"),
        ({"pool": "nowhere"}, "no-such-pool"),
        ({"after": (Dependency(99),)}, "no-such-job"),
    ):
        with pytest.raises(Refused) as refused:
            change(bench, job_id, **wish)
        assert refused.value.code == code
        if code == "too-big":
            assert refused.value.hint == "the job stays as it is"
    with pytest.raises(NotPermitted):
        change(bench, job_id, BOB, priority=1)
    assert bench.job(job_id) == before


def test_a_running_jobs_time_is_shortened_by_its_owner_and_lengthened_by_administrators(bench):
    job_id = bench.start(spec(time_limit_s=60))
    admin = st.Actor(user="root", uid=0, is_admin=True)
    for longer in (61, 0):
        with pytest.raises(NotPermitted, match="only an administrator may give it more time"):
            change(bench, job_id, time_limit_s=longer)
    with pytest.raises(Refused, match=r"only the time limit \(-t\) can be changed"):
        change(bench, job_id, time_limit_s=30, priority=4)
    change(bench, job_id, time_limit_s=30)
    change(bench, job_id, time_limit_s=45, actor=admin)
    assert bench.feed(st.Tick(now(44))) == []
    (stop,) = bench.feed(st.Tick(now(45)))
    assert isinstance(stop, ev.StopRequested)
    assert stop.outcome is Outcome.TIMEOUT


def test_a_range_is_changed_at_either_end_while_the_job_waits(bench):
    job_id = bench.submit(held=True)
    (event,) = change(bench, job_id, demand=Demand(cores_milli=2000, cores_max_milli="all"))
    assert bench.job(job_id).spec.cores_max_milli == 9000
    assert isinstance(event, ev.Altered)
    assert event.text == "cores 1 → 2..9"
    change(bench, job_id, demand=Demand(cores_max_milli=4000))
    change(bench, job_id, demand=Demand(read_bps=50))
    assert bench.job(job_id).spec.cores_max_milli == 4000
    with pytest.raises(Refused, match="-c: the range ends at 1, below the 2 that the job holds"):
        change(bench, job_id, demand=Demand(cores_max_milli=1000))
    change(bench, job_id, demand=Demand(cores_milli=2000))
    assert bench.job(job_id).spec.cores_max_milli == 0
    change(bench, job_id, demand=Demand(cores_max_milli=4000))
    bench.bring(JobState.RUNNING)


@pytest.mark.parametrize("state", [JobState.STOPPING, JobState.CLEANING])
def test_what_is_about_to_end_cannot_be_changed(bench, state):
    bench.bring(state)
    with pytest.raises(Refused, match="nothing can be changed"):
        change(bench, 1, time_limit_s=5)


def test_the_dependencies_of_one_users_jobs_are_bounded(bench, monkeypatch):
    """Each is an event when what is waited for ends: the cancellation of a thousand jobs for which
    a thousand waited held everybody up for minutes."""
    monkeypatch.setattr(dependencies, "MOST_MORE", 5)
    ids = [bench.submit(spec(), held=True) for _ in range(6)]
    others = [bench.submit(spec(pool="root.bob", actor=BOB), held=True) for _ in range(2)]
    chain = bench.submit(after(ids[0]))
    for _ in range(10):
        chain = bench.submit(after(chain))
    assert bench.ledger.job_counts.more_dependencies == {}
    first = bench.submit(after(*ids[:4]))
    with pytest.raises(Refused, match="would wait for 6 others beyond the first") as caught:
        bench.submit(after(*ids[:4]))
    assert caught.value.code == "too-many-dependencies"
    second = bench.submit(after(*ids[:3]))
    # Nobody else is concerned, and what counts less is taken.
    bench.submit(after(*others, pool="root.bob", actor=BOB))
    fewer = tuple(Dependency(each) for each in ids[:2])
    bench.feed(st.ChangeAsked(now(0), second, ALICE, st.Change(after=fewer)))
    assert bench.ledger.job_counts.more_dependencies == {ALICE.user: 4, BOB.user: 1}
    bench.feed(st.CancelAsked(now(0), first, ALICE))
    assert bench.ledger.job_counts.more_dependencies == {ALICE.user: 1, BOB.user: 1}


def test_the_dependencies_of_one_users_tasks_are_bounded(bench, monkeypatch):
    """An array that waits for a thousand jobs took 2 GB with its 20,000 tasks."""
    monkeypatch.setattr(dependencies, "MOST_OF_TASKS", 10)
    ids = [bench.submit(spec(), held=True) for _ in range(4)]
    (array,) = bench.feed(st.SubmitAsked(now(), after(*ids[:3]), spans=((0, 3, 1),)))
    more = st.SubmitAsked(now(), after(*ids[:3]), spans=((0, 1, 1),))
    with pytest.raises(Refused, match="would wait for 12 others beyond the first") as caught:
        bench.feed(more)
    assert caught.value.code == "too-many-dependencies"
    every, fewer = (tuple(Dependency(each) for each in ids[:count]) for count in (4, 2))
    with pytest.raises(Refused, match="would wait for 12 others"):
        bench.feed(st.ChangeAsked(now(), array.array_id, ALICE, st.Change(after=every)))
    bench.feed(st.ChangeAsked(now(), array.array_id, ALICE, st.Change(after=fewer)))
    assert bench.ledger.job_counts.task_dependencies == {ALICE.user: 4}
    (other,) = bench.feed(more)
    assert bench.ledger.job_counts.task_dependencies == {ALICE.user: 8}
    for each in (array, other):
        bench.feed(st.CancelAsked(now(), each.array_id, ALICE))
    assert bench.ledger.job_counts.task_dependencies == {}


RULES = replace(rules(cores=1000, memory_gib=1000), max_waiting_per_user=10**6)


class Parts:
    """Books whose jobs are told of ends `most` at a time, by who asks for it."""

    def __init__(self, most: float = inf) -> None:
        self.ledger = Ledger(RULES.axes)
        self.most = most
        #: How each has ended, as the journal keeps it.
        self.ended: dict[int, Outcome] = {}

    def feed(self, stimulus: st.Stimulus) -> list[ev.Event]:
        found = stimulus.decide(self.ledger, RULES)
        for event in found:
            self.book(event)
        return found

    def tell(self) -> list[ev.Event]:
        """One part."""
        found = []
        for event in report_ends(self.ledger, 9.0, self.most):
            self.book(event)
            found.append(event)
        return found

    def book(self, event: ev.Event) -> None:
        arrays = dict(self.ledger.arrays.items())
        job = self.ledger.apply(event)
        if job is not None and job.state is JobState.ENDED:
            assert job.outcome is not None
            self.ended[job.id] = job.outcome
            array_id = job.array_id
            if array_id is not None and array_id not in self.ledger.arrays:
                bad = arrays[array_id].failed
                self.ended[array_id] = Outcome.COMPLETED if bad is None else bad[1]

    def submit(self, asked: JobSpec, **more: Any) -> int:
        first = self.ledger.next_id
        gone = {each.job_id: self.ended[each.job_id] for each in asked.after
                if each.job_id in self.ended}  # fmt: skip
        self.feed(st.SubmitAsked(now(), asked, ended=gone, **more))
        return first

    def run(self, job_id: int, exit_code: int, at_s: float) -> None:
        """From its start to its end."""
        self.ledger.apply(ev.Admitted(job_id=job_id, at_s=now(at_s).at_s, attempt=1))
        self.feed(launched(job_id))
        self.feed(ended(job_id, 1, at_s, exit_code=exit_code))
        self.feed(st.RemovedReport(now(at_s).at_s, job_id, 1))


def crowd(books: Parts, first: int, *specs: JobSpec) -> list[int]:
    ids = [books.submit(each) for each in specs]
    books.run(first, 0, 5.0)
    assert len(books.ledger.dependents.ended) == 1
    return ids


def test_the_end_of_one_users_job_is_told_beside_a_crowd_that_waits_for_anothers():
    books = Parts(4)
    first, other = books.submit(spec()), books.submit(spec("root.bob", actor=BOB))
    crowd(books, first, *(after(first) for _ in range(100)))
    (theirs,) = [books.submit(after(other, pool="root.bob", actor=BOB))]
    books.tell()
    books.run(other, 0, 6.0)
    assert theirs in [event.job_id for event in books.tell()]


def test_a_crowd_of_another_user_that_waits_for_the_same_job_delays_nobody():
    books = Parts(4)
    first, second = (books.submit(spec("root.bob", actor=BOB)) for _ in range(2))
    books.submit(after(first), spans=((0, 99, 1),))
    theirs = [books.submit(after(each, pool="root.bob", actor=BOB)) for each in (first, second)]
    books.run(first, 0, 5.0)
    books.run(second, 0, 6.0)
    assert {*theirs} <= {event.job_id for event in books.tell()}
    books.ledger.check()
    assert len(books.ledger.with_axes(RULES.axes).dependents.untold) == 1


def test_the_begin_time_of_one_users_job_comes_beside_that_of_anothers_crowd():
    books = Parts()
    begin_s = int(now().at_s) + 5
    books.submit(spec(begin_s=begin_s), spans=((0, 99, 1),))
    asked = spec("root.bob", actor=BOB, begin_s=begin_s + 1)
    theirs = [books.submit(asked), books.submit(asked)]
    come = dependencies.begin(books.ledger, begin_s + 2.0)
    assert {*theirs} <= {event.job_id for event in come if isinstance(event, ev.BeginReached)}
    books.ledger.check()


def test_the_ends_of_one_users_jobs_are_told_in_the_order_in_which_they_happened():
    books = Parts(1)
    first, second = books.submit(spec()), books.submit(spec())
    waiting = [books.submit(after(each)) for each in (second, first)]
    books.run(second, 0, 5.0)
    books.run(first, 0, 6.0)
    assert [event.job_id for _ in waiting for event in books.tell()] == waiting


def test_who_is_not_told_yet_can_be_asked_about_changed_and_cancelled():
    books = Parts(1)
    first = books.submit(spec())
    told, *ids = crowd(books, first, *(after(first) for _ in range(4)))
    assert [event.job_id for event in books.tell()] == [told]

    def job(job_id: int) -> Job:
        return books.ledger.jobs[job_id]

    reason = explain_wait(job(ids[0]), books.ledger, None, RULES)
    assert reason == DependenciesEnded()
    assert awaited(job(ids[0]), books.ledger) == []
    assert not any(first_stuck(each, books.ledger) for each in ids)
    # One more may come to wait for what has ended: it is told at once.
    late = books.submit(after(first, want=RequiredOutcome.FAIL))
    assert job(late).broken == Broken(first, Outcome.COMPLETED)
    books.feed(st.ChangeAsked(now(), ids[0], ALICE, st.Change(after=())))
    books.feed(st.CancelAsked(now(), ids[1], ALICE))
    books.feed(st.HoldAsked(now(), ids[2], ALICE))
    assert [event.job_id for event in books.tell()] == [ids[2]]
    assert job(ids[2]).awaits == ()
    assert job(ids[2]).state is JobState.HELD
    books.ledger.check()


# -- jobs that are cancelled when they can never start ---------------------------------------------


def if_never(*ids: int, want: RequiredOutcome = RequiredOutcome.OK) -> JobSpec:
    return after(*ids, want=want, cancel_if_never=True)


def fate(bench: Bench, job_id: int) -> tuple[Outcome, str] | None:
    """How the job has ended by a rule, and what is said of it."""
    for event in bench.events:
        if isinstance(event, ev.Cancelled) and event.job_id == job_id:
            assert event.by == "drfd"
            return Outcome.CANCELLED, event.why
    assert bench.ledger.jobs.get(job_id) is not None
    return None


def cancelled_for(label: object, outcome: str) -> tuple[Outcome, str]:
    return Outcome.CANCELLED, (
        f"cancelled, because job {label} ended {outcome} and it could never start "
        "(--if-never cancel)"
    )


def test_a_dependency_that_is_met_cancels_nobody(bench):
    first = bench.start()
    second = bench.submit(if_never(first))
    end(bench, first)
    assert fate(bench, second) is None
    assert bench.schedule(2) == [second]


def test_a_task_that_failed_is_named_by_its_index(bench):
    (array,) = bench.feed(st.SubmitAsked(now(), spec(), spans=((7, 9, 1),)))
    assert isinstance(array, ev.ArraySubmitted)
    task, *_ = bench.schedule()
    waiting = bench.submit(if_never(task))
    bench.feed(launched(task))
    end(bench, task, exit_code=1)
    assert fate(bench, waiting) == cancelled_for(f"{array.array_id}_7", "FAILED")


@pytest.mark.parametrize("most", [1, 3, inf])
@pytest.mark.parametrize("seed", seeds(range(25), quick=5))
def test_in_any_graph_exactly_those_are_cancelled_that_must_be(seed, most):
    """Each by the end of one that it waits for, however many are told at a time, also if the books
    are read anew between two parts."""
    random, books = Random(seed), Parts(most)
    ids: list[int] = []
    specs: dict[int, JobSpec] = {}
    for _ in range(40):
        known = random.sample(ids, min(len(ids), random.choice([0, 1, 1, 2, 3])))
        asked = spec(
            after=tuple(Dependency(each, random.choice([*RequiredOutcome])) for each in known),
            cancel_if_never=random.random() < 0.6,
        )
        ids.append(books.submit(asked))
        specs[ids[-1]] = asked
    roots = [each for each in ids if not specs[each].after]
    for at_s, root in enumerate(random.sample(roots, len(roots)), 1):
        books.run(root, random.choice([0, 1]), float(at_s))
        books.tell()
        if random.random() < 0.3:
            books.ledger = Ledger.of_jobs(
                RULES.axes, books.ledger.jobs.values(), arrays=(),
                next_id=books.ledger.next_id,
                ended=lambda ids: {each: books.ledger.dependents.ended[each] for each in ids},
            )  # fmt: skip
    while books.ledger.dependents.ended or books.ledger.doomed:
        assert books.tell(), "what is left is told"
    for job_id in ids:
        after_these = specs[job_id].after
        over = {each: books.ended.get(each.job_id) for each in after_these}
        is_broken = any(out is not None and not is_met(on.want, out) for on, out in over.items())
        job = books.ledger.jobs.get(job_id)
        if job_id in roots:
            assert job is None
        elif is_broken and specs[job_id].cancel_if_never:
            assert job is None
            assert books.ended[job_id] is Outcome.CANCELLED
        else:
            assert job is not None
            assert (job.broken is not None) is is_broken
            is_free = not is_broken and all(out is not None for out in over.values())
            assert (job.eligible_at is not None) is is_free
    books.ledger.check()


# -- arrays ----------------------------------------------------------------------------------------


def submit_array(
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
    found = [bench.ledger.jobs.get(job_id) for job_id in ids]
    return [None if job is None else job.shown_state for job in found]


# -- ids and indices -------------------------------------------------------------------------------


def test_an_index_leads_to_its_task_and_back():
    array = array_of((1, 1, 1), (7, 11, 2), (20, 21, 1))
    there = {index: array.id_of(index) for index in range(25)}
    known = {index: job_id for index, job_id in there.items() if job_id is not None}
    assert list(known) == [1, 7, 9, 11, 20, 21]
    assert [array.index_of(job_id) for job_id in known.values()] == list(known)


def array_of(*spans: Span) -> Array:
    common = Job(id=4, array_id=4, spec=spec(), submitted_at=1.0, eligible_at=1.0)
    return Array(common=common, spans=spans, at_once=None)


@pytest.mark.slow
def test_a_torn_array_of_many_pieces_is_told_in_few_steps():
    """For each range of tasks all pieces were counted, and for each task: the line of such an array
    in everybody's `drf status` took ten seconds, in which nobody else was heard."""
    spans = (*((at, at, 1) for at in range(0, 2000, 2)), (10_000, 109_999, 1))
    array = array_of(*spans)
    ranges = tuple((at, at) for at in range(array.id + 1, array.last_id, 3))
    with lines_counted() as lines:
        assert array.show_indices(*ranges).startswith("0-1998:6,10002-23997:3,")
        for at in range(array.id + 1, array.last_id, 50):
            index = array.index_of(at)
            assert array.id_of(index) == at
            assert array.has_task(at)
    # Not a step for each piece, for each of the ranges and tasks.
    assert lines[0] < 4 * (len(ranges) + 3 * 2040)


# -- the books -------------------------------------------------------------------------------------


# -- what is asked for of a whole array ------------------------------------------------------------


def test_what_one_task_refuses_the_others_take():
    """A task that runs cannot be held; those that wait can. What is asked is refused only if every
    task refuses it."""
    bench = Bench(rules(cores=1))
    array_id = submit_array(bench, (0, 1, 1))
    (running,) = bench.schedule()
    bench.feed(launched(running))
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
def test_more_tasks_than_a_user_may_have_waiting_are_refused(waiting, words):
    bench = Bench(rules(max_waiting_per_user=3))
    for _ in range(waiting):
        bench.submit()
    with pytest.raises(Refused) as refusal:
        submit_array(bench, (0, 3, 1))
    assert refusal.value.text == words
    if not waiting:
        submit_array(bench, (0, 2, 1))


# -- conditions: an array waits as one job, and who waits for it waits for all its tasks -----------


@pytest.mark.parametrize(("asked", "on"), [(0, 3), (3, 0), (0, 0), (3, 3), (0, 9), (3, 9)])
def test_no_task_can_wait_for_its_own_array_nor_the_array_for_who_waits_for_it(asked, on):
    """0 is the array, 3 one of its tasks, 9 a job that waits for another of its tasks: two of them
    cannot wait for each other."""
    bench = Bench()
    array_id = submit_array(bench, (0, 6, 1), held=True)
    other = bench.submit(after(array_id + 3))
    where = {0: array_id, 3: array_id + 3, 9: other}
    wish = st.Change(after=(Dependency(where[on]),))
    with pytest.raises(Refused) as refusal:
        bench.feed(st.ChangeAsked(now(), where[asked], ALICE, wish))
    assert refusal.value.code == "cycle"


@pytest.mark.parametrize(("begun", "state"), [(False, JobState.PENDING), (True, JobState.STARTING)])
def test_who_waits_for_an_array_is_told_how_its_slowest_task_stands(begun, state):
    bench = Bench()
    array_id = submit_array(bench, (0, 1, 1))
    other = bench.submit(after(array_id))
    if begun:
        bench.schedule()
    reason = explain_wait(bench.job(other), bench.ledger, None, bench.rules)
    assert reason == WaitsFor(AwaitedJob("1", "alice", is_array=True, states=((state, 2),)))


def test_an_order_about_an_array_is_one_about_each_of_its_tasks_and_is_recorded_once(bench):
    """Also in parts; an order about some of its tasks is not recorded of the array."""
    array_id = submit_array(bench, (0, 9, 1), held=True)
    ids = range(array_id + 1, array_id + 11)
    told = bench.feed(st.ReleaseAsked(now(), array_id, ALICE, tasks=(ids[0],)))
    assert [each.job_id for each in told] == [ids[0]]
    told = bench.feed(st.ReleaseAsked(now(), array_id, ALICE, tasks=tuple(ids[1:5]), is_part=True))
    assert [each.job_id for each in told] == [array_id, *ids[1:5]]
    told = bench.feed(st.ReleaseAsked(now(), array_id, ALICE, tasks=tuple(ids[5:])))
    assert [each.job_id for each in told] == [*ids[5:]]
    change = st.Change(priority=7, begin_s=int(now(50.0).at_s))
    for some in (ids[:5], ids[5:]):
        asked = st.ChangeAsked(now(), array_id, ALICE, change, tasks=tuple(some), is_part=True)
        told = bench.feed(asked)
        whole = [array_id] if some == ids[:5] else []
        assert [each.job_id for each in told] == [*whole, *some]
    array = bench.ledger.arrays[array_id].array
    assert (array.common.state, array.spec.priority) == (JobState.PENDING, 7)
    bench.ledger.check()


def test_a_task_that_was_changed_alone_changes_nothing_of_its_array(bench):
    """`drf retry` and `drf show` of the array took its new specification for that of all tasks."""
    array_id = submit_array(bench, (0, 9, 1))
    bench.feed(st.ChangeAsked(now(), array_id + 1, ALICE, st.Change(priority=7)))
    array_state = bench.ledger.arrays[array_id]
    assert array_state.array.spec.priority == 0
    first, rest = bench.ledger.rows(array_state)
    assert isinstance(first, Tasks)
    assert isinstance(rest, Tasks)
    assert (first.indices, first.first.spec.priority) == ("0", 7)
    assert (rest.indices, rest.first.spec.priority) == ("1-9", 0)


def test_tasks_that_are_changed_alike_share_what_they_have(bench):
    array_id = submit_array(bench, (0, 99, 1))
    change = st.Change(priority=7, after=(Dependency(bench.submit(spec())),))
    bench.feed(st.ChangeAsked(now(), array_id, ALICE, change))
    tasks = [*bench.ledger.tasks(bench.ledger.arrays[array_id].array)]
    assert len({id(task.spec) for task in tasks}) == len({id(task.awaits) for task in tasks}) == 1
    assert bench.ledger.job_counts.more_dependencies == {}


def test_the_dependencies_of_an_array_count_once(bench):
    """An array of 20,000 tasks that waited for two jobs took all that its user may have."""
    first, second = bench.submit(spec()), bench.submit(spec())
    both = (Dependency(first), Dependency(second))
    array_id = submit_array(bench, (0, 99, 1), asked=spec(after=both))
    counts = bench.ledger.job_counts.more_dependencies
    assert counts == {"alice": 1}
    assert len(bench.ledger.dependents[first]) == 1
    third = bench.submit(spec())
    wish = st.Change(after=(*both, Dependency(third)))
    bench.feed(st.ChangeAsked(now(), array_id + 1, ALICE, wish))
    assert counts == {"alice": 3}
    bench.feed(st.ChangeAsked(now(), array_id, ALICE, wish))
    assert counts == {"alice": 2}
    bench.feed(st.CancelAsked(now(), array_id, ALICE))
    assert not counts
    bench.ledger.check()


# -- groups ----------------------------------------------------------------------------------------


PATIENT = replace(rules(), reserving=replace(rules().reserving, reserves=False))


def grouped(
    cores: int = 1,
    at_once: int | None = 2,
    name: str = "sweep",
    pool: str = "root.alice",
    **more: Any,
) -> JobSpec:
    return replace(spec(pool, **more), demand=demand(cores), group=UserGroup(name, at_once))


def job_id_of(events: list[ev.Event]) -> int:
    event = events[0]
    return event.array_id if isinstance(event, ev.ArraySubmitted) else event.job_id


def why_now(bench: Bench, job_id: int) -> Wait | None:
    return explain_wait(bench.ledger.jobs[job_id], bench.ledger, None, bench.rules)


def test_of_the_limits_of_array_and_group_the_one_that_is_reached_is_told():
    """The array might run two at once; its group runs one already."""
    bench = Bench(rules(9, 9))
    first = bench.submit(grouped(at_once=1))
    assert bench.schedule() == [first]
    asked = st.SubmitAsked(now(), grouped(at_once=1), False, spans=((0, 5, 1),), at_once=2)
    (event,) = bench.feed(asked)
    assert isinstance(event, ev.ArraySubmitted)
    assert why_now(bench, event.array_id + 6) == CountLimit("group sweep", at_once=1, running=1)
    # Alone, the array runs as many as it may.
    asked = st.SubmitAsked(now(), spec(), False, spans=((0, 5, 1),), at_once=2)
    (event,) = bench.feed(asked)
    assert isinstance(event, ev.ArraySubmitted)
    assert len(bench.schedule()) == 2
    assert why_now(bench, event.array_id + 6) == CountLimit(f"array {event.array_id}", 2, running=2)


# -- the text --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "%2", "a b", "a%", "a%0", "a%x", "a%-1", "a%2%3", "x" * 65, "a\n", "--", ".a"]
)
def test_a_group_that_cannot_be_read_is_refused(text):
    with pytest.raises(Refused) as refused:
        read_group(text)
    assert refused.value.text.startswith("--group: ")
    assert refused.value.hint == "write --group sweep, or --group sweep%2 for two at once"


# -- what starts -----------------------------------------------------------------------------------


def test_a_job_that_does_not_fit_keeps_no_other_of_its_group_waiting():
    bench = Bench(PATIENT)
    bench.start(replace(spec("root.bob", actor=BOB), demand=demand(5)))
    big = [bench.submit(grouped(9)) for _ in range(3)]
    small = bench.submit(grouped(1))
    assert bench.schedule() == [small]
    assert all(why_now(bench, each) is not None for each in big)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_room_of_a_job_that_is_left_out_goes_to_others_in_the_same_pass(policy):
    """Also if it waits in another pool."""
    bench = Bench(replace(PATIENT, policy=policy))
    first = bench.submit(grouped(2, at_once=1))
    bench.submit(grouped(5, at_once=1, pool="root.lab"))
    other = bench.submit(replace(spec(), demand=demand(6)))
    last = bench.submit(replace(spec("root.bob", actor=BOB), demand=demand(1)))
    plan = schedule(bench.ledger, bench.rules)
    assert sorted(plan.admitted) == [first, other, last]
    assert not plan.is_cut


# -- changes ---------------------------------------------------------------------------------------


def test_the_number_can_be_changed():
    bench = Bench(PATIENT)
    ids = [bench.submit(grouped(at_once=1)) for _ in range(4)]
    assert bench.schedule() == ids[:1]
    change = st.Change(group=UserGroup("sweep", 2))
    (event,) = bench.feed(st.ChangeAsked(now(), ids[1], ALICE, change))
    assert isinstance(event, ev.Altered)
    assert event.text == "group sweep%1 → sweep%2"
    assert bench.feed(st.ChangeAsked(now(), ids[1], ALICE, change)) == []
    assert bench.schedule() == [ids[1]]
    out = st.Change(group=UserGroup(""))
    bench.feed(st.ChangeAsked(now(), ids[2], ALICE, out))
    assert bench.ledger.jobs[ids[2]].spec.group is None
    assert bench.schedule() == [ids[2]]
    assert isinstance(why_now(bench, ids[3]), Wait)
    with pytest.raises(Refused, match="only the time limit"):
        bench.feed(st.ChangeAsked(now(), ids[0], ALICE, change))
    with pytest.raises(NotPermitted):
        bench.feed(st.ChangeAsked(now(), ids[3], BOB, change))
    bench.ledger.check()


def test_too_many_kinds_of_jobs_in_a_group_are_refused(monkeypatch):
    monkeypatch.setattr(job_requests, "MOST_KINDS", 2)
    bench = Bench(PATIENT)
    bench.submit(grouped(1))
    bench.submit(grouped(2))
    with pytest.raises(Refused) as refused:
        bench.submit(grouped(3))
    assert refused.value.code == "too-many-kinds"
    bench.submit(grouped(2))
    bench.submit(grouped(2, at_once=None))
    bench.submit(grouped(3, name="other"))


@pytest.mark.parametrize(
    ("wish", "how"),
    [({}, {"held": True}), ({"begin_s": now().at_s + 100}, {}), ({}, {"spans": ((0, 5, 1),)})],
    ids=["held", "begins later", "array"],
)
def test_jobs_that_cannot_start_yet_count_among_the_kinds(wish, how, monkeypatch):
    """All of them may become free at once, when nothing can be refused any more."""
    monkeypatch.setattr(job_requests, "MOST_KINDS", 2)
    bench = Bench(PATIENT)
    asked = [st.SubmitAsked(now(), replace(grouped(cores), **wish), **how) for cores in (1, 2)]
    first, _ = [job_id_of(bench.feed(each)) for each in asked]
    with pytest.raises(Refused, match="different demands"):
        bench.submit(grouped(3))
    other = bench.submit(grouped(3, name="other"))
    change = st.ChangeAsked(now(), other, ALICE, st.Change(group=UserGroup("sweep", 2)))
    with pytest.raises(Refused, match="different demands"):
        bench.feed(change)
    bench.ledger.check()
    bench.feed(st.CancelAsked(now(), first, ALICE))
    bench.feed(change)
    bench.ledger.check()


def test_a_change_of_an_array_cannot_bring_too_many_kinds(monkeypatch):
    monkeypatch.setattr(job_requests, "MOST_KINDS", 2)
    bench = Bench(PATIENT)
    alone = replace(grouped(), group=None)
    (event,) = bench.feed(st.SubmitAsked(now(), alone, spans=((0, 3, 1),), held=True))
    assert isinstance(event, ev.ArraySubmitted)
    for task in (1, 2, 3):
        change = st.Change(demand=Demand(cores_milli=1000 * (task + 1)))
        bench.feed(st.ChangeAsked(now(), event.array_id + task, ALICE, change))
    change = st.Change(group=UserGroup("sweep", 2))
    assert len(bench.feed(st.ChangeAsked(now(), event.array_id, ALICE, change))) == 2
    bench.ledger.check()


# -- forecasts -------------------------------------------------------------------------------------


# -- whatever happens ------------------------------------------------------------------------------


def running(bench: Bench) -> Counter[tuple[str, str]]:
    jobs = bench.ledger.allocated_jobs()
    return Counter((job.spec.user, job.spec.group.name) for job in jobs if job.spec.group)


def test_a_job_that_names_no_limit_has_that_of_its_group():
    """Of the waiting jobs, then of the running ones; another group and another user have their
    own."""
    bench = Bench()

    def limit(job_id: int) -> int | None:
        group = bench.ledger.jobs[job_id].spec.group
        assert group is not None
        return group.at_once

    def fresh(**more: Any) -> int | None:
        job_id = job_id_of(bench.feed(st.SubmitAsked(now(), grouped(at_once=None, **more))))
        found = limit(job_id)
        bench.feed(st.CancelAsked(now(), job_id, ALICE))
        return found

    assert fresh() is None
    running = bench.start(grouped(at_once=1))
    assert (fresh(), fresh(name="other")) == (1, None)
    waiting = job_id_of(bench.feed(st.SubmitAsked(now(), grouped(at_once=None))))
    assert limit(waiting) == 1
    bench.feed(st.ChangeAsked(now(), waiting, ALICE, st.Change(group=UserGroup("sweep", 3))))
    assert (fresh(), limit(running)) == (3, 1)
    assert limit(job_id_of(bench.feed(st.SubmitAsked(now(), grouped(at_once=7))))) == 7
    assert fresh() == 3
