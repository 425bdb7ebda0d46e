"""Jobs that wait for other jobs, and for a time: when they may start, and what they are told."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import pytest

from drfd.common.errors import NotPermitted, Refused
from drfd.core.amounts.resources import Resources
from drfd.core.decisions import dependencies
from drfd.core.decisions.decide import decide, leftovers
from drfd.core.decisions.dependencies import (
    Settlement,
    awaited,
    first_stuck,
    is_met,
    settle_all,
)
from drfd.core.explain.reasons import (
    AwaitedJob,
    DependenciesEnded,
    HeldAndNever,
    HeldBy,
    NeverStarts,
    ReasonCode,
    StartsFrom,
    WaitReason,
    WaitsFor,
    explain_wait,
)
from drfd.core.ledger.ledger import Ledger
from drfd.core.model import events as ev
from drfd.core.model import stimuli as st
from drfd.core.model.job import (
    UNSTARTED,
    Broken,
    Dependency,
    Job,
    JobSpec,
    JobState,
    Notify,
    Outcome,
    RequiredOutcome,
    Words,
    owner_of,
)
from drfd.core.model.lifecycle import NotifyNever, RemoveAttempt, owed
from fakes import ALICE, BOB, Bench, attempt_started, ended, now, rules, spec
from seeds import runs, seeds


def after(*ids: int, want: RequiredOutcome = RequiredOutcome.OK, **more: object) -> JobSpec:
    return spec(after=tuple(Dependency(each, want) for each in ids), **more)  # type: ignore[arg-type]


def end(bench: Bench, job_id: int, *, exit_code: int = 0, at_s: float = 0.0) -> list[ev.Event]:
    """The running job exits; what the removal of its cgroup brings about."""
    attempt = bench.job(job_id).attempt
    bench.feed(ended(job_id, attempt, at_s, exit_code=exit_code))
    return bench.feed(st.AttemptRemoved(now(at_s), job_id, attempt))


def reason(bench: Bench, job_id: int) -> WaitReason:
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
) -> WaitReason:
    awaited_job = AwaitedJob(str(job_id), user, is_array, states, until_s)
    return WaitReason(ReasonCode.DEPENDENCY, WaitsFor(awaited_job, others))


def test_of_a_job_that_never_starts_the_conditions_that_are_left_are_told(bench: Bench) -> None:
    first, other = bench.start(), bench.start()
    awaited = (
        Dependency(first),
        Dependency(other, RequiredOutcome.ANY),
    )
    waiting = bench.submit(replace(bench.job(first).spec, after=awaited))
    end(bench, first, exit_code=3)
    assert reason(bench, waiting) == WaitReason(
        ReasonCode.DEPENDENCY_NEVER,
        NeverStarts(
            *(str(waiting), str(first), Outcome.FAILED, RequiredOutcome.OK),
            ((str(other), RequiredOutcome.ANY),),
        ),
    )


def test_a_hold_does_not_hide_that_a_job_never_starts(bench: Bench) -> None:
    """A release alone would help nobody."""
    first = bench.start()
    held = bench.submit(after(first), held=True)
    assert reason(bench, held).code is ReasonCode.HELD
    end(bench, first, exit_code=3)
    never = NeverStarts(str(held), str(first), Outcome.FAILED, RequiredOutcome.OK)
    both = HeldAndNever(never, HeldBy("alice", str(held)))
    assert reason(bench, held) == WaitReason(ReasonCode.DEPENDENCY_NEVER, both)
    bench.feed(st.ReleaseAsked(now(), held, ALICE))
    assert reason(bench, held) == WaitReason(ReasonCode.DEPENDENCY_NEVER, never)


def test_the_reason_names_the_job_that_is_waited_for_and_its_end_at_the_latest(
    bench: Bench,
) -> None:
    first = bench.start(spec("root.bob", actor=BOB, time_limit_s=60), at_s=10)
    second = bench.submit(after(first))
    third = bench.submit(after(first, second))
    assert reason(bench, second) == waits_for(
        first, (JobState.RUNNING, 1), user="bob", until_s=now(70).at_s
    )
    assert reason(bench, third) == waits_for(second, (JobState.PENDING, 1), others=1)
    end(bench, first, exit_code=1)
    assert reason(bench, third).code is ReasonCode.DEPENDENCY_NEVER


def test_what_waits_for_a_job_that_never_starts_is_told_so(bench: Bench) -> None:
    first = bench.submit(held=True)
    second = bench.submit(after(first))
    third = bench.submit(after(second))
    bench.feed(st.CancelAsked(now(), first, ALICE))
    assert reason(bench, third) == waits_for(second)


@pytest.mark.parametrize("job_id", [1, 7])
def test_nobody_waits_for_a_job_that_does_not_exist(bench: Bench, job_id: int) -> None:
    with pytest.raises(Refused, match=f"there is no job {job_id} to wait for"):
        bench.submit(after(job_id))


def test_only_so_many_jobs_wait_for_one_and_others_cannot_take_all_their_places(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_only_so_many_jobs_wait_for_the_tasks_of_one_array(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tasks may be cancelled in one turn, in which everybody else waits."""
    monkeypatch.setattr(dependencies, "MOST_DEPENDENTS", 4)
    monkeypatch.setattr(dependencies, "MOST_OF_OTHERS", 2)
    (submitted,) = bench.feed(st.SubmitAsked(now(), spec(), True, spans=((0, 99, 1),)))
    assert isinstance(submitted, ev.ArraySubmitted)
    first = submitted.array_id + 1
    for task in (first, first + 1):
        bench.submit(after(task, pool="root.bob", actor=BOB))
    with pytest.raises(Refused, match="wait 2 times for array 1"):
        bench.submit(after(first + 2, pool="root.bob", actor=BOB))
    with pytest.raises(Refused, match="and 4 times are the most"):
        bench.submit(after(first + 2, first + 3, first + 4))
    last = bench.submit(after(first + 2, first + 3))
    # Those that are among them may stay.
    change(bench, last, after=(Dependency(first + 3, RequiredOutcome.ANY),))
    bench.submit(after(first + 99))


def _counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids that are looked up from now on."""
    found: list[int] = []
    find = bench.ledger.find

    def counted(job_id: int) -> Job | None:
        found.append(job_id)
        return find(job_id)

    monkeypatch.setattr(bench.ledger, "find", counted)
    return found


def test_what_the_tasks_of_an_array_wait_for_is_looked_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it can ever start was found out for each task anew, by who waited for the array."""
    chain = [bench.submit(spec(), held=True)]
    for _ in range(39):
        chain.append(bench.submit(after(chain[-1])))
    tasks = [replace(bench.job(chain[-1]), id=1000 + at) for at in range(40)]
    looked = _counted(bench, monkeypatch)
    assert first_stuck(tasks, bench.ledger) is None
    assert len(looked) < 200
    broken = replace(tasks[7], broken=Broken(5, Outcome.FAILED))
    assert first_stuck([*tasks, broken], bench.ledger) is broken


def test_an_arrays_tasks_are_looked_through_once_for_all_that_wait_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a list they were looked through for each job that waits: nobody's list was told in less
    than a minute while a thousand jobs waited for an array with thousands of records."""
    (submitted,) = bench.feed(st.SubmitAsked(now(), spec(), True, spans=((0, 9, 1),)))
    assert isinstance(submitted, ev.ArraySubmitted)
    array_id = submitted.array_id
    waiting = [bench.submit(after(array_id)) for _ in range(5)]
    for task in range(array_id + 1, array_id + 11):
        bench.feed(st.ReleaseAsked(now(), task, ALICE))
    looked: list[int] = []
    parts = dependencies._parts

    def counted(ledger: Ledger, job_id: int) -> list[Job]:
        looked.append(job_id)
        return parts(ledger, job_id)

    monkeypatch.setattr(dependencies, "_parts", counted)
    pending = waits_for(array_id, (JobState.PENDING, 10), is_array=True)
    assert {reason(bench, each) for each in waiting} == {pending}
    assert looked == [array_id]
    # What happens to any of them is seen.
    bench.feed(st.HoldAsked(now(), array_id + 7, ALICE))
    assert reason(bench, waiting[0]) == waits_for(
        array_id, (JobState.HELD, 1), (JobState.PENDING, 9), is_array=True
    )
    bench.feed(st.ReleaseAsked(now(), array_id + 7, ALICE))
    assert reason(bench, waiting[0]) == pending


# -- begin times -----------------------------------------------------------------------------------


def unix(at_s: int) -> int:
    return int(now(at_s).at_s)


def test_a_job_starts_at_its_begin_time_and_not_before(bench: Bench) -> None:
    job_id = bench.submit(spec(begin_s=unix(60)))
    assert bench.schedule() == []
    assert reason(bench, job_id) == WaitReason(ReasonCode.BEGIN_TIME, StartsFrom(unix(60), None))
    assert bench.feed(st.Tick(now(59.9))) == []
    bench.feed(st.Tick(now(60.5)))
    assert bench.job(job_id).eligible_at == now(60.5).at_s
    assert bench.schedule(60.5) == [job_id]


# -- changes ---------------------------------------------------------------------------------------


def change(bench: Bench, job_id: int, *, by: st.Actor = ALICE, at_s: float = 0.0,
           ended: dict[int, Outcome] | None = None, **wish: object) -> list[ev.Event]:  # fmt: skip
    wishes = st.Change(**wish)  # type: ignore[arg-type]
    return bench.feed(st.ChangeAsked(now(at_s), job_id, by, wishes, ended or {}))


def test_a_circle_is_refused_however_long(bench: Bench) -> None:
    first = bench.submit(held=True)
    second = bench.submit(after(first))
    third = bench.submit(after(second))
    for job_id in (first, second, third):
        with pytest.raises(Refused) as refused:
            change(bench, first, after=(Dependency(job_id),))
        assert refused.value.code == "cycle"
    change(bench, third, after=(Dependency(first),))
    change(bench, second, after=(Dependency(third),))


def test_what_would_be_refused_at_submission_is_refused_and_changes_nothing(bench: Bench) -> None:
    job_id = bench.submit(held=True)
    before = bench.job(job_id)
    for wish, code in (
        ({"cores_milli": 10_000}, "too-big"),
        ({"pool": "nowhere"}, "no-such-pool"),
        ({"after": (Dependency(99),)}, "no-such-job"),
    ):
        with pytest.raises(Refused) as refused:
            change(bench, job_id, **wish)
        assert refused.value.code == code
        if code == "too-big":
            assert refused.value.hint == "the job stays as it is"
    with pytest.raises(NotPermitted):
        change(bench, job_id, by=BOB, priority=1)
    assert bench.job(job_id) == before


def test_a_change_to_what_is_so_already_is_no_event(bench: Bench) -> None:
    job_id = bench.submit(held=True)
    assert change(bench, job_id, priority=0, cores_milli=1000, begin_s=0, after=()) == []


def test_a_running_jobs_time_is_shortened_by_its_owner_and_lengthened_by_administrators(
    bench: Bench,
) -> None:
    job_id = bench.start(spec(time_limit_s=60))
    admin = st.Actor(user="root", uid=0, is_admin=True)
    for longer in (61, 0):
        with pytest.raises(NotPermitted, match="only an administrator may give it more time"):
            change(bench, job_id, time_limit_s=longer)
    with pytest.raises(Refused, match=r"only the time limit \(-t\) can be changed"):
        change(bench, job_id, time_limit_s=30, priority=4)
    change(bench, job_id, time_limit_s=30)
    change(bench, job_id, time_limit_s=45, by=admin)
    assert bench.feed(st.Tick(now(44))) == []
    (stop,) = bench.feed(st.Tick(now(45)))
    assert isinstance(stop, ev.StopRequested)
    assert stop.outcome is Outcome.TIMEOUT


def test_ranges_of_rates_are_changed_like_those_of_cores(bench: Bench) -> None:
    job_id = bench.submit(held=True)
    (event,) = change(bench, job_id, read_bps=100, read_max_bps="all", write_bps=10)
    assert bench.job(job_id).spec.most == Resources(read_bps=1000)
    assert isinstance(event, ev.Altered)
    assert event.text == "io 0/0 → 100..1000/10"
    change(bench, job_id, cores_max_milli=4000)
    assert bench.job(job_id).spec.most == Resources(cores_milli=4000, read_bps=1000)
    change(bench, job_id, read_bps=50)
    assert bench.job(job_id).spec.most == Resources(cores_milli=4000)
    with pytest.raises(Refused, match="--io: the range ends at 20/s, below the 50/s"):
        change(bench, job_id, read_max_bps=20)


@pytest.mark.parametrize("state", [JobState.STOPPING, JobState.CLEANING])
def test_what_is_about_to_end_cannot_be_changed(bench: Bench, state: JobState) -> None:
    bench.bring(state)
    with pytest.raises(Refused, match="nothing can be changed"):
        change(bench, 1, time_limit_s=5)


def test_the_dependencies_of_one_users_jobs_are_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
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


RULES = replace(rules(cores=1000, memory_gib=1000), max_waiting_per_user=10**6)


class Parts:
    """Books whose jobs are told of ends `most` at a time, by who asks for it."""

    def __init__(self, most: float = inf) -> None:
        self.ledger = Ledger(RULES.axes)
        self.settlement = Settlement()
        self.most = most
        #: How each has ended, as the journal keeps it.
        self.ended: dict[int, Outcome] = {}

    def feed(self, stimulus: st.Stimulus) -> list[ev.Event]:
        found = decide(self.ledger, stimulus, RULES)
        for event in found:
            self._apply(event)
        return found

    def tell(self) -> list[ev.Event]:
        """One part."""
        found = []
        for event in self.settlement.take(self.ledger, self.most):
            self._apply(event)
            found.append(event)
        return found

    def _apply(self, event: ev.Event) -> None:
        arrays = dict(self.ledger.arrays.items())
        job = self.ledger.apply(event)
        if job is not None and job.state is JobState.ENDED:
            assert job.outcome is not None
            gone = [job.id]
            if job.id in arrays:
                whole = arrays[job.id].array
                gone = [
                    each
                    for each in range(whole.id + 1, whole.last_id + 1)
                    if each not in self.ended and not self.ledger.lives(each)
                ]
            self.ended.update(dict.fromkeys(gone, job.outcome))
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
        self.feed(attempt_started(job_id))
        self.feed(ended(job_id, 1, at_s, exit_code=exit_code))
        self.feed(st.AttemptRemoved(now(at_s), job_id, 1))


def results(ledger: Ledger) -> dict[int, Any]:
    """What is true of each job that lives; since when it waits for its turn, too."""
    jobs = [*ledger.jobs.values(), *(each.array.common for each in ledger.arrays.values())]
    return {job.id: (job.state, job.awaits, job.broken, job.eligible_at) for job in jobs}


def life(books: Parts, seed: int, between: Callable[[], object]) -> None:
    """Jobs and arrays that wait for each other, their ends, and what is asked for meanwhile."""
    random, at_s = Random(seed), 0.0
    ids: list[int] = []
    for _ in range(60):
        at_s += 1.0
        live = [each for each in ids if books.ledger.lives(each)]
        chance = random.random()
        known = random.sample(ids[-12:], min(len(ids), random.choice([0, 1, 1, 2, 4])))
        asked = spec(
            after=tuple(Dependency(each, random.choice([*RequiredOutcome])) for each in known),
            priority=random.choice([0, 0, 5]),
            actor=random.choice([ALICE, BOB]),
        )
        chosen = random.choice(live) if live else None
        code, choice = random.choice([0, 0, 1]), random.random()
        if chance < 0.5 or chosen is None:
            spans = ((0, 3, 1),) if choice < 0.2 else ()
            first = books.submit(asked, spans=spans)
            ids += range(first, books.ledger.next_id)
        elif chance < 0.8:
            job = books.ledger.find(chosen)
            # What waits, as far as has been told, starts in one of the books later than in another.
            if job is not None and job.state is JobState.PENDING and not job.spec.after:
                books.run(chosen, code, at_s)
        else:
            kind = st.CancelAsked if choice < 0.7 else st.HoldAsked
            try:
                books.feed(kind(now(at_s), chosen, st.Actor("root", 0, is_admin=True)))
            except Refused:
                pass
        between()


@pytest.mark.parametrize(("most", "lives"), runs([1, 2], steps=30, quick=3))
def test_told_in_parts_all_jobs_stand_as_if_they_had_been_told_at_once(
    most: int, lives: int
) -> None:
    """Whatever happens between two parts, and also if the books are read anew between them."""
    told = untold = 0
    for seed in range(lives):
        at_once, parts, read = Parts(), Parts(most), Parts(most)

        def read_again(books: Parts = read) -> None:
            nonlocal told, untold
            told += len(books.tell())
            untold += bool(books.ledger.dependents.ended)
            before = books.ledger
            before.check()
            books.ledger = Ledger.of_jobs(
                RULES.axes,
                before.jobs.values(),
                arrays=before.arrays.live(),
                next_id=before.next_id,
                ended=lambda ids: {each: before.dependents.ended[each] for each in ids},
            )
            books.settlement = Settlement()

        life(at_once, seed, at_once.tell)
        life(parts, seed, parts.tell)
        life(read, seed, read_again)
        for books in (parts, read):
            told += len(settle_all(books.ledger))
            assert results(books.ledger) == results(at_once.ledger), seed
            assert not books.ledger.dependents.ended
            books.ledger.check()
        # And these are right: as each end of all that a job waits for says by itself.
        for job in at_once.ledger.jobs.values():
            over = [each for each in job.spec.after if each.job_id in at_once.ended]
            assert set(job.awaits) == set(job.spec.after) - set(over), seed
            bad = any(not is_met(each.want, at_once.ended[each.job_id]) for each in over)
            assert (job.broken is not None) is bad, seed
    if lives == 30:
        assert told > 100
        assert untold > (20 if most == 1 else 1)


def crowd(books: Parts, first: int, *specs: JobSpec) -> list[int]:
    ids = [books.submit(each) for each in specs]
    books.run(first, 0, 5.0)
    assert len(books.ledger.dependents.ended) == 1
    return ids


def test_the_end_of_one_users_job_is_told_beside_a_crowd_that_waits_for_anothers() -> None:
    books = Parts(4)
    first, other = books.submit(spec()), books.submit(spec("root.bob", actor=BOB))
    crowd(books, first, *(after(first) for _ in range(100)))
    (theirs,) = [books.submit(after(other, pool="root.bob", actor=BOB))]
    books.tell()
    books.run(other, 0, 6.0)
    assert theirs in [event.job_id for event in books.tell()]


def test_who_is_not_told_yet_can_be_asked_about_changed_and_cancelled() -> None:
    books = Parts(1)
    first = books.submit(spec())
    told, *ids = crowd(books, first, *(after(first) for _ in range(4)))
    assert [event.job_id for event in books.tell()] == [told]

    def job(job_id: int) -> Job:
        return books.ledger.jobs[job_id]

    reason = explain_wait(job(ids[0]), books.ledger, None, RULES)
    assert reason == WaitReason(ReasonCode.DEPENDENCY, DependenciesEnded())
    assert awaited(job(ids[0]), books.ledger) == []
    assert first_stuck([job(each) for each in ids], books.ledger) is None
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


def test_a_copy_of_the_books_knows_whom_to_tell(bench: Bench) -> None:
    books = Parts(1)
    first = books.submit(spec())
    crowd(books, first, *(after(first) for _ in range(3)))
    books.tell()
    copy = deepcopy(books.ledger.with_axes(RULES.axes))
    assert [event.job_id for event in settle_all(copy)] == [3, 4]


# -- jobs that are cancelled when they can never start -----------------------------------------


def if_never(*ids: int, want: RequiredOutcome = RequiredOutcome.OK) -> JobSpec:
    return after(*ids, want=want, cancel_if_never=True)


def fate(bench: Bench, job_id: int) -> tuple[Outcome, str] | None:
    """How the job has ended by a rule, and what is said of it."""
    for event in bench.events:
        if isinstance(event, ev.Cancelled) and event.job_id == job_id:
            assert event.by == "drfd"
            return Outcome.CANCELLED, event.why
    assert bench.ledger.find(job_id) is not None
    return None


def why(label: object, outcome: str) -> tuple[Outcome, str]:
    return Outcome.CANCELLED, (
        f"cancelled, because job {label} ended {outcome} and it could never start "
        "(--if-never cancel)"
    )


def test_a_chain_is_cancelled_to_its_end_and_each_names_its_cause(bench: Bench) -> None:
    first = bench.start()
    second = bench.submit(if_never(first))
    third = bench.submit(if_never(second), held=True)
    kept = bench.submit(after(second))
    rescue = bench.submit(if_never(second, want=RequiredOutcome.ANY))
    end(bench, first, exit_code=3)
    assert fate(bench, second) == why(first, "FAILED")
    assert fate(bench, third) == why(second, "CANCELLED")
    assert fate(bench, kept) is None, "its owner may still want it"
    assert bench.job(kept).broken == Broken(second, Outcome.CANCELLED)
    assert bench.schedule(2) == [rescue]
    assert not bench.ledger.dependents.ended


def test_a_dependency_that_is_met_cancels_nobody(bench: Bench) -> None:
    first = bench.start()
    second = bench.submit(if_never(first))
    end(bench, first)
    assert fate(bench, second) is None
    assert bench.schedule(2) == [second]


def test_a_task_that_failed_is_named_by_its_index(bench: Bench) -> None:
    (array,) = bench.feed(st.SubmitAsked(now(), spec(), spans=((7, 9, 1),)))
    assert isinstance(array, ev.ArraySubmitted)
    task, *_ = bench.schedule()
    waiting = bench.submit(if_never(task))
    bench.feed(attempt_started(task))
    end(bench, task, exit_code=1)
    assert fate(bench, waiting) == why(f"{array.array_id}_7", "FAILED")


@pytest.mark.parametrize("most", [1, 3, inf])
@pytest.mark.parametrize("seed", seeds(range(25), quick=5))
def test_in_any_graph_exactly_those_are_cancelled_that_must_be(seed: int, most: float) -> None:
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
            books.settlement = Settlement()
    while books.ledger.dependents.ended:
        assert books.tell(), "what is left is told"
    for job_id in ids:
        after_these = specs[job_id].after
        over = {each: books.ended.get(each.job_id) for each in after_these}
        is_broken = any(out is not None and not is_met(on.want, out) for on, out in over.items())
        job = books.ledger.find(job_id)
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


# -- owners who are notified that a job can never start ----------------------------------------

TELL = Notify(("fail",), Words.of(["tell"]))


def never(bench: Bench, asked: JobSpec, **more: Any) -> list[ev.Event]:
    """Job 1 fails, for which this job or array waits; what comes of that for it."""
    first = bench.start()
    assert first == 1
    bench.feed(st.SubmitAsked(now(), replace(asked, after=(Dependency(first),)), **more))
    return [each for each in end(bench, first, exit_code=3) if getattr(each, "job_id", 1) != 1]


def owes(bench: Bench) -> list[NotifyNever]:
    return [each for each in map(owed, bench.ledger.jobs_to_notify()) if each is not None]  # type: ignore[misc]


def test_an_array_that_never_starts_is_one_notification(bench: Bench) -> None:
    never(bench, spec(notify=TELL, cancel_if_never=True), spans=((0, 99, 1),))
    assert owes(bench) == [NotifyNever(3, UNSTARTED)]
    kinds = [type(each) for each in bench.feed(st.NeverNotified(now(), 3, "told"))]
    assert kinds == [ev.OwnerNotified, ev.Cancelled]
    assert bench.ledger.is_empty


def test_new_dependencies_that_can_never_be_met_are_another_notification(bench: Bench) -> None:
    never(bench, spec(notify=TELL))
    bench.feed(st.NeverNotified(now(), 2, "told"))
    change = st.ChangeAsked(now(), 2, ALICE, st.Change(after=(Dependency(7),)))
    bench.feed(replace(change, ended={7: Outcome.FAILED}))
    assert owes(bench) == [NotifyNever(2, UNSTARTED)]


def test_the_launchers_file_of_it_stays_until_the_notification_is_recorded(bench: Bench) -> None:
    never(bench, spec(notify=TELL))
    known = {(2, UNSTARTED): owner_of(bench.job(2), "j")}
    assert leftovers(bench.ledger, known, "j", lambda _: None).removals == []
    bench.feed(st.NeverNotified(now(), 2, "told"))
    found = leftovers(bench.ledger, known, "j", lambda _: None)
    assert (found.removals, found.strays) == ([RemoveAttempt(2, UNSTARTED)], {})
